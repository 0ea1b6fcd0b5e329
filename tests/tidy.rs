//! The rules of the tree that no compiler checks: the length of files and functions, which crate
//! may use which, that the pure crates stay pure, and which words are banned.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

/// Lines of a file without its tests. Longer files are hard to read in one go.
const FILE_LINES_MAX: usize = 600;
/// Lines of a function, so that it fits one screen.
const FUNCTION_LINES_MAX: usize = 70;

fn root() -> PathBuf {
    let tests = Path::new(env!("CARGO_MANIFEST_DIR"));
    tests
        .parent()
        .expect("the tests are a folder of the tree")
        .to_owned()
}

/// Returns every Rust file of the tree with its text, by path relative to the root.
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

/// Returns the part of a file before its unit tests.
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

/// Returns the functions above the limit, found by the indentation of their first line and closing
/// brace.
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
        let mut head = lines[at..]
            .iter()
            .filter(|line| line.ends_with(['{', ';', '}']));
        if head.next().is_none_or(|end| !end.ends_with('{')) {
            // A function of a trait without a body, or one whose body is on its line.
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
        ("src/strconv", &[]),
        ("src/cel", &["strconv"]),
        ("src/apimachinery", &["strconv"]),
        ("src/managedfields", &["apimachinery"]),
        ("src/fairness", &[]),
        ("src/storage", &[]),
        ("src/sealing", &["apimachinery"]),
        (
            "src/plane",
            &[
                "apimachinery",
                "fairness",
                "fencing",
                "ring",
                "sealing",
                "storage",
            ],
        ),
        (
            "src/ownership",
            &["apimachinery", "fencing", "plane", "ring", "storage"],
        ),
        ("src/auth", &["apimachinery"]),
        ("src/pki", &["apimachinery", "auth", "ring"]),
        (
            "src/registry",
            &[
                "apimachinery",
                "auth",
                "descriptions",
                "fairness",
                "managedfields",
                "plane",
                "storage",
            ],
        ),
        (
            "src/apiextensions",
            &["apimachinery", "cel", "managedfields", "plane", "registry"],
        ),
        (
            "src/batteries",
            &[
                "apiextensions",
                "apimachinery",
                "auth",
                "cel",
                "delegated",
                "fairness",
                "managedfields",
                "ownership",
                "plane",
                "registry",
                "storage",
            ],
        ),
        (
            "src/admission",
            &[
                "apimachinery",
                "auth",
                "batteries",
                "pki",
                "plane",
                "registry",
            ],
        ),
        ("src/audit", &["apimachinery", "auth", "outbound"]),
        ("src/descriptions", &[]),
        ("src/outbound", &[]),
        (
            "src/delegated",
            &["apimachinery", "auth", "cel", "outbound"],
        ),
        (
            "src/controllers",
            &[
                "admission",
                "apimachinery",
                "audit",
                "auth",
                "batteries",
                "fairness",
                "ownership",
                "pki",
                "plane",
                "registry",
                "storage",
            ],
        ),
        (
            "src/server",
            &[
                "apimachinery",
                "audit",
                "auth",
                "batteries",
                "controllers",
                "descriptions",
                "fairness",
                "outbound",
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
    let engines: [(&str, &[&str]); 3] = [
        (
            "src/storage/sled",
            &["use sled::", "sled::Db", "sled::Config"],
        ),
        ("src/storage/fjall", &["use fjall::", "fjall::Database"]),
        ("src/storage/etcd", &["etcd_client::"]),
    ];
    for (name, text) in sources() {
        let is_foreign = |(folder, uses): &(&str, &[&str])| {
            !name.starts_with(folder) && uses.iter().any(|word| text.contains(word))
        };
        // It measures what a server adds to a bare client of etcd, and so has to be one.
        let is_bare_client = name == "bench/against_etcd.rs";
        if !is_test(&name) && !is_bare_client && engines.iter().any(is_foreign) {
            wrong.push(name);
        }
    }
    report("an engine is named outside its file", &wrong);
}

/// A strategy gets schemas and features from its context: planes can differ in them, and a
/// process-wide table is the same for all planes.
#[test]
fn no_strategy_reaches_the_global_kind_tables() {
    // The tables themselves, and the layer that is made from them before there are planes.
    let allowed = ["src/batteries/kind_tables.rs", "src/batteries/bootstrap.rs"];
    // Ways to name the tables, to make other ones, and to store one for the process. Compiled patterns and what
    // expressions may use are constants, so they are allowed.
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
            let code = code.replace("LazyLock<Environment>", "");
            if code != "pub mod kind_tables;" && banned.iter().any(|word| code.contains(word)) {
                wrong.push(format!("{name}:{}: {code}", at + 1));
            }
        }
    }
    report("a strategy reaches the global kind tables", &wrong);
}

/// `no_std` excludes clocks, I/O and threads, and `clippy.toml` excludes floats; this test checks
/// the dependencies.
#[test]
fn the_pure_crates_depend_on_nothing_impure() {
    let allowed = ["polyplane-ring", "thiserror", "twox-hash"];
    let mut wrong = Vec::new();
    for name in ["ring", "fencing"] {
        let folder = root().join(name);
        let manifest = fs::read_to_string(folder.join("Cargo.toml")).expect("it is there");
        let manifest: toml::Table = manifest.parse().expect("a manifest is TOML");
        let named = manifest.get("dependencies").and_then(toml::Value::as_table);
        for dependency in named.into_iter().flat_map(toml::Table::keys) {
            if !allowed.contains(&dependency.as_str()) {
                wrong.push(format!("{name} depends on {dependency}"));
            }
        }
        let library = fs::read_to_string(folder.join("lib.rs")).expect("it is there");
        if !library.contains("\n#![no_std]\n") || library.contains("extern crate std") {
            wrong.push(format!("{name} has the standard library"));
        }
        let bans = fs::read_to_string(folder.join("clippy.toml")).unwrap_or_default();
        if !["f32", "f64"].iter().all(|float| bans.contains(float)) {
            wrong.push(format!("{name} does not ban floats"));
        }
    }
    report("impure", &wrong);
}

#[test]
fn nothing_is_left_for_later_in_silence() {
    // `todo!`, `dbg!`, `unsafe` and `#[allow]` are refused by lints of the workspace.
    let banned = ["#[ignore", "cfg!(test)"];
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

/// A path in backticks in a document or comment names a file, and `PROTOCOL n` names a rule.
#[test]
fn citations_resolve() {
    let files = tree_files();
    let rules = protocol_rules();
    let (mut wrong, mut checked) = (Vec::new(), 0);
    for path in &files {
        let (is_rust, is_document) = (path.ends_with(".rs"), path.ends_with(".md"));
        if !(is_rust || is_document) || path.starts_with("tests/frozen/") {
            continue;
        }
        let text = fs::read_to_string(root().join(path)).expect("a source file is text");
        for (at, line) in text.lines().enumerate() {
            let prose = match line.split_once("//") {
                Some((_, comment)) if is_rust => comment,
                _ if is_document => line,
                _ => continue,
            };
            for cited in cited_paths(prose) {
                checked += 1;
                if !leads_somewhere(cited, &files) {
                    wrong.push(format!("{path}:{}: `{cited}`", at + 1));
                }
            }
            for rule in cited_rules(prose) {
                checked += 1;
                if !rules.contains(rule) {
                    wrong.push(format!("{path}:{}: PROTOCOL {rule}", at + 1));
                }
            }
        }
    }
    assert!(checked > 200, "only {checked} citations were found");
    report("a citation that leads nowhere", &wrong);
}

/// Returns every file of the tree that is not built, by path relative to the root.
fn tree_files() -> BTreeSet<String> {
    let (mut found, mut folders) = (BTreeSet::new(), vec![root()]);
    while let Some(folder) = folders.pop() {
        for entry in fs::read_dir(&folder).expect("a folder of the tree can be read") {
            let path = entry.expect("an entry can be read").path();
            let relative = path.strip_prefix(root()).expect("found below the root");
            let relative = relative.display().to_string();
            if !path.is_dir() {
                found.insert(relative);
            } else if !["target", ".git", ".polyplane"].contains(&relative.as_str()) {
                folders.push(path);
            }
        }
    }
    found
}

/// Returns the texts in backticks that have the form of a path of this tree.
fn cited_paths(line: &str) -> impl Iterator<Item = &str> {
    let inside = line.split('`').skip(1).step_by(2);
    inside.filter(|word| {
        let plain = |letter: char| letter.is_ascii_alphanumeric() || "_-./".contains(letter);
        let is_file = [".rs", ".md"].iter().any(|ending| word.ends_with(ending));
        is_file && word.chars().all(plain) && !word.starts_with(['.', '/', '-'])
    })
}

/// Returns whether a cited path names a file. It may leave out its beginning: `history/log.rs`, or
/// only `log.rs`.
fn leads_somewhere(cited: &str, files: &BTreeSet<String>) -> bool {
    let behind_a_folder = format!("/{cited}");
    files.contains(cited) || files.iter().any(|path| path.ends_with(&behind_a_folder))
}

/// Returns the numbers of the rules of the fence protocol.
fn protocol_rules() -> BTreeSet<String> {
    let text = fs::read_to_string(root().join("fencing/PROTOCOL.md")).expect("it is there");
    let bold = text.lines().filter_map(|line| line.strip_prefix("**"));
    let rules: BTreeSet<String> = bold
        .filter_map(|line| line.split_once(". "))
        .filter(|(number, _)| number.bytes().all(|digit| digit.is_ascii_digit()))
        .map(|(number, _)| number.to_owned())
        .collect();
    assert!(rules.len() > 20, "{rules:?}");
    rules
}

/// Returns the first number after each `PROTOCOL`.
fn cited_rules(line: &str) -> impl Iterator<Item = &str> {
    let behind = line.split("PROTOCOL").skip(1);
    behind.filter_map(|text| {
        let text = text.trim_start_matches("`").strip_prefix(' ')?;
        let end = text.find(|letter: char| !letter.is_ascii_digit());
        let number = &text[..end.unwrap_or(text.len())];
        (!number.is_empty()).then_some(number)
    })
}

/// The code of a crate uses every dependency that its manifest names.
#[test]
fn dependencies_are_used() {
    // Named only to set its features: tonic's client is used through etcd-client.
    let (mut wrong, mut checked) = (Vec::new(), 0);
    let sources = sources();
    for manifest_path in tree_files()
        .iter()
        .filter(|path| path.ends_with("Cargo.toml"))
    {
        let folder = manifest_path.trim_end_matches("Cargo.toml");
        if folder.is_empty() {
            continue;
        }
        let manifest = fs::read_to_string(root().join(manifest_path)).expect("it is there");
        let manifest: toml::Table = manifest.parse().expect("a manifest is TOML");
        for section in ["dependencies", "dev-dependencies", "build-dependencies"] {
            // Tests have dependencies of their own.
            let product = section != "dev-dependencies" && folder != "tests/";
            let own = sources.iter().filter(|(name, _)| name.starts_with(folder));
            let own: Vec<&str> = own
                .filter(|(name, _)| !(product && is_test(name) && !name.contains("/examples/")))
                .map(|(_, text)| if product { without_tests(text) } else { text })
                .collect();
            let named = manifest.get(section).and_then(toml::Value::as_table);
            for name in named.into_iter().flat_map(toml::Table::keys) {
                checked += 1;
                let word = name.replace('-', "_");
                let is_used = own.iter().any(|text| {
                    ["::", " as ", ";", "}"]
                        .iter()
                        .any(|end| text.contains(&format!("{word}{end}")))
                });
                if !is_used {
                    wrong.push(format!("{manifest_path}: {name}"));
                }
            }
        }
    }
    assert!(checked > 100, "only {checked} dependencies were found");
    report("a dependency that nothing uses", &wrong);
}

/// `tools/rustc` passes it, and nobody notices a release without.
#[test]
fn release_builds_have_the_profile_of_the_toolchain_and_the_target() {
    let pinned = fs::read_to_string(root().join("rust-toolchain.toml")).expect("read");
    let pinned: toml::Value = toml::from_str(&pinned).expect("TOML");
    let channel = pinned["toolchain"]["channel"].as_str().expect("a text");
    let flags = |toolchain: &str, flags: &[&str]| {
        let mut command = Command::new(root().join("tools/rustc"));
        command
            .arg("echo")
            .args(flags)
            .env_remove("POLYPLANE_COUNTS");
        command.env("RUSTUP_TOOLCHAIN", toolchain);
        let printed = command.output().expect("it runs").stdout;
        String::from_utf8(printed).expect("text")
    };
    let toolchain = format!("{channel}-x86_64-unknown-linux-gnu");
    let release = ["-C", "opt-level=3"];
    let profile = format!("tools/profile/{toolchain}.profdata");
    let with = flags(&toolchain, &release);
    assert!(with.contains(&profile), "make it anew: {with}");
    // As the image is built, on a machine whose own toolchain is another one.
    let image = ["-C", "opt-level=3", "--target", "x86_64-unknown-linux-musl"];
    let profile = format!("tools/profile/{channel}-for-x86_64-unknown-linux-musl.profdata");
    let with = flags(&format!("{channel}-x86_64-unknown-linux-musl"), &image);
    assert!(with.contains(&profile), "make it anew: {with}");
    let other = ["-C", "opt-level=3", "--target", "wasm32-unknown-unknown"];
    for (toolchain, without) in [
        (&*toolchain, &["-C", "opt-level=2"][..]),
        (&*toolchain, &other),
        ("0.0.0", &release),
    ] {
        assert_eq!(flags(toolchain, without).trim_end(), without.join(" "));
    }
}
