//! The rules of the tree that no compiler checks: how long files and functions are, which crate
//! may know which, that the pure crates stay pure, and which words are not used.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};

/// Lines of a file without its tests.
const FILE_LINES_MAX: usize = 600;
/// Lines of a function.
const FUNCTION_LINES_MAX: usize = 70;

fn root() -> PathBuf {
    let tests = Path::new(env!("CARGO_MANIFEST_DIR"));
    tests
        .parent()
        .expect("the tests are a folder of the tree")
        .to_owned()
}

/// Every Rust file of the tree with its text, by path relative to the root.
fn sources() -> BTreeMap<String, String> {
    let root = root();
    let mut found = BTreeMap::new();
    let mut folders: Vec<PathBuf> = ["ring", "fencing", "src", "bench", "tests"]
        .iter()
        .map(|name| root.join(name))
        .collect();
    while let Some(folder) = folders.pop() {
        for entry in fs::read_dir(&folder).expect("a folder of the tree can be read") {
            let path = entry.expect("an entry can be read").path();
            if path.is_dir() {
                folders.push(path);
            } else if path.extension().is_some_and(|ending| ending == "rs") {
                let name = path
                    .strip_prefix(&root)
                    .expect("found below the root")
                    .display()
                    .to_string();
                found.insert(
                    name,
                    fs::read_to_string(&path).expect("a source file is text"),
                );
            }
        }
    }
    assert!(
        found.len() > 100,
        "the tree was found: {} files",
        found.len()
    );
    found
}

/// The part of a file before its unit tests.
fn without_tests(text: &str) -> &str {
    text.split("\n#[cfg(test)]\nmod tests {")
        .next()
        .unwrap_or(text)
}

fn is_test(name: &str) -> bool {
    ["/tests/", "/model/", "/examples/"]
        .iter()
        .any(|part| name.contains(part))
        || name.starts_with("tests/")
        || name.ends_with("tests.rs")
}

fn report(rule: &str, found: &[String]) {
    assert!(found.is_empty(), "{rule}:\n  {}", found.join("\n  "));
}

#[test]
fn files_and_functions_fit_their_place() {
    let mut long = Vec::new();
    for (name, text) in sources() {
        let body = without_tests(&text);
        let lines = body.lines().count();
        if lines > FILE_LINES_MAX {
            long.push(format!("{name}: {lines} lines"));
        }
        if is_test(&name) {
            continue;
        }
        let functions = long_functions(&name, body);
        long.extend(functions);
    }
    report("too long", &long);
}

/// Functions over the bound, by the indentation of their first line and closing brace.
fn long_functions(name: &str, text: &str) -> Vec<String> {
    let lines: Vec<&str> = text.lines().collect();
    let mut found = Vec::new();
    for (at, line) in lines.iter().enumerate() {
        let words = line.trim_start();
        let starts = [
            "fn ",
            "pub fn ",
            "pub(crate) fn ",
            "pub(super) fn ",
            "async fn ",
            "pub async fn ",
            "pub(crate) async fn ",
        ];
        if !starts.iter().any(|start| words.starts_with(start)) {
            continue;
        }
        let indent = &line[..line.len() - words.len()];
        let close = format!("{indent}}}");
        let length = lines[at..]
            .iter()
            .position(|line| *line == close)
            .unwrap_or(0);
        if length > FUNCTION_LINES_MAX {
            found.push(format!("{name}:{}: a function of {length} lines", at + 1));
        }
    }
    found
}

#[test]
fn crates_know_only_what_lies_below_them() {
    let below: &[(&str, &[&str])] = &[
        ("ring", &[]),
        ("fencing", &["ring"]),
        ("src/apimachinery", &[]),
        ("src/storage", &[]),
        ("src/plane", &["apimachinery", "fencing", "ring", "storage"]),
        (
            "src/ownership",
            &["apimachinery", "fencing", "plane", "ring", "storage"],
        ),
        ("src/auth", &["apimachinery"]),
        ("src/pki", &["apimachinery", "auth", "ring"]),
        (
            "src/registry",
            &["apimachinery", "auth", "ownership", "plane", "storage"],
        ),
        (
            "src/batteries",
            &[
                "apimachinery",
                "auth",
                "ownership",
                "plane",
                "registry",
                "storage",
            ],
        ),
        (
            "src/controllers",
            &[
                "apimachinery",
                "auth",
                "batteries",
                "ownership",
                "plane",
                "registry",
                "storage",
            ],
        ),
        (
            "src/server",
            &[
                "apimachinery",
                "auth",
                "batteries",
                "controllers",
                "ownership",
                "pki",
                "plane",
                "registry",
                "ring",
                "storage",
            ],
        ),
    ];
    let mut wrong = Vec::new();
    for (folder, allowed) in below {
        let manifest = fs::read_to_string(root().join(folder).join("Cargo.toml"))
            .expect("a crate has a manifest");
        let manifest: toml::Table = manifest.parse().expect("a manifest is TOML");
        let Some(dependencies) = manifest.get("dependencies").and_then(toml::Value::as_table)
        else {
            continue;
        };
        for name in dependencies.keys() {
            if let Some(own) = name.strip_prefix("polyplane-")
                && !allowed.contains(&own)
            {
                wrong.push(format!("{folder} depends on {own}"));
            }
        }
    }
    report("layering", &wrong);
}

#[test]
fn engines_are_named_in_one_place() {
    let mut wrong = Vec::new();
    for (name, text) in sources() {
        let engine = name.starts_with("src/storage/sled");
        let uses = ["use sled::", "sled::Db", "sled::Config", "etcd_client::"];
        if !engine
            && !is_test(&name)
            && uses.iter().any(|word| text.contains(word))
            && !name.starts_with("src/storage/etcd")
        {
            wrong.push(name);
        }
    }
    report("an engine is named outside its file", &wrong);
}

/// A strategy takes schemas and features from its context: planes can differ in them, and a
/// process-wide table is the same for all planes.
#[test]
fn no_strategy_reaches_the_global_kind_tables() {
    // The tables themselves, and the layer that is made of it before there are planes.
    let allowed = ["src/batteries/kind_tables.rs", "src/batteries/bootstrap.rs"];
    // Ways to name the tables, to make other ones, and to keep one for the process. A compiled
    // pattern is a constant.
    let banned = [
        "kind_tables",
        "Schemas::parse",
        "Features::parse",
        "KindTable::build",
        "include_bytes!",
        "include_str!",
        "OnceLock",
        "OnceCell",
        "LazyCell",
        "LazyLock<",
        "thread_local!",
    ];
    let mut wrong = Vec::new();
    for (name, text) in sources() {
        let in_strategies = name.starts_with("src/batteries/") && !is_test(&name);
        if !in_strategies || allowed.contains(&name.as_str()) {
            continue;
        }
        for (at, line) in without_tests(&text).lines().enumerate() {
            let code = line.split("//").next().unwrap_or("").trim();
            let code = code.replace("LazyLock<Regex>", "");
            if code != "pub mod kind_tables;" && banned.iter().any(|word| code.contains(word)) {
                wrong.push(format!("{name}:{}: {code}", at + 1));
            }
        }
    }
    report("a strategy reaches the global kind tables", &wrong);
}

#[test]
fn the_pure_crates_have_no_clock_no_io_and_no_floats() {
    let banned = [
        "std::time",
        "Instant::now",
        "SystemTime",
        "std::fs",
        "std::net",
        "std::io",
        "tokio",
        "f32",
        "f64",
        "println!",
        "tracing",
    ];
    let mut wrong = Vec::new();
    for (name, text) in sources() {
        let pure = (name.starts_with("ring/") || name.starts_with("fencing/"))
            && !is_test(&name)
            && !name.contains("/examples/")
            && !name.contains("/model");
        if !pure {
            continue;
        }
        let body = without_tests(&text);
        for word in banned {
            let used = body.lines().any(|line| {
                let code = line.split("//").next().unwrap_or("");
                code.split(|letter: char| !(letter.is_alphanumeric() || "_:!".contains(letter)))
                    .any(|part| part.starts_with(word))
            });
            if used {
                wrong.push(format!("{name} uses {word}"));
            }
        }
    }
    report("impure", &wrong);
}

#[test]
fn nothing_is_left_for_later_in_silence() {
    let banned = [
        "todo!(",
        "unimplemented!(",
        "dbg!(",
        "#[ignore",
        "unsafe {",
        "#[allow(",
    ];
    let mut wrong = Vec::new();
    for (name, text) in sources() {
        if name == "tests/tidy.rs" {
            continue;
        }
        for (at, line) in text.lines().enumerate() {
            let code = line.split("//").next().unwrap_or("");
            if let Some(word) = banned.iter().find(|word| code.contains(**word)) {
                wrong.push(format!("{name}:{}: {word}", at + 1));
            }
        }
    }
    report("not in this tree", &wrong);
}

#[test]
fn names_say_what_things_are() {
    let banned: BTreeSet<&str> = [
        "manager",
        "helper",
        "helpers",
        "util",
        "utils",
        "misc_stuff",
    ]
    .into();
    let mut wrong = Vec::new();
    for name in sources().keys() {
        let stems = name.trim_end_matches(".rs").split('/');
        if let Some(stem) = stems
            .flat_map(|part| part.split('_'))
            .find(|stem| banned.contains(stem))
        {
            wrong.push(format!("{name}: {stem}"));
        }
    }
    report("a name that says nothing", &wrong);
}

#[test]
fn every_module_says_what_it_owns() {
    let mut wrong = Vec::new();
    for (name, text) in sources() {
        if !text.starts_with("//!") && !text.starts_with("#!") {
            wrong.push(name);
        }
    }
    report("no module documentation at the top", &wrong);
}
