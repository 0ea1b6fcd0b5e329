//! Names on which dashboards, alerts, scripts and log searches rely: metrics, flags with their
//! defaults and variables, fields of log lines. See `polyplane_tests::frozen`.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, ensure};
use clap::{ArgAction, Command};
use http::{Method, StatusCode};
use polyplane_batteries::polyplane::control_plane::DirectoryRecord;
use polyplane_tests::client::Client;
use polyplane_tests::frozen::text;
use polyplane_tests::outside::Outside;
use polyplane_tests::process::Up;
use polyplane_tests::programs::{ask, create_plane, create_plane_of};
use polyplane_tests::ring::addresses::Block;
use serde_json::{Value, json};

const CONFIG_MAPS: &str = "/api/v1/namespaces/default/configmaps";

/// Returns type, name, labels and help of each family in `/metrics`, which must be more than so many.
fn families(exposition: &str, few: usize) -> Result<String> {
    #[derive(Default)]
    struct Family {
        kind: String,
        help: String,
        labels: BTreeSet<String>,
    }
    let mut families: BTreeMap<String, Family> = BTreeMap::new();
    for line in exposition.lines().filter(|line| !line.is_empty()) {
        let comment = line.strip_prefix("# ").and_then(|rest| {
            let (what, rest) = rest.split_once(' ')?;
            let (name, said) = rest.split_once(' ').unwrap_or((rest, ""));
            Some((what, name, said))
        });
        match comment {
            Some(("HELP", name, help)) => {
                families.entry(name.to_owned()).or_default().help = help.to_owned();
            }
            Some(("TYPE", name, kind)) => {
                families.entry(name.to_owned()).or_default().kind = kind.to_owned();
            }
            Some(_) => {}
            None => {
                let end = line.find(['{', ' ']).context("a series has a name")?;
                let stem = ["_bucket", "_sum", "_count"]
                    .iter()
                    .filter_map(|ending| line[..end].strip_suffix(ending))
                    .find(|stem| families.contains_key(*stem));
                let name = stem.unwrap_or(&line[..end]).to_owned();
                let family = families.get_mut(&name);
                let family = family.with_context(|| format!("{name} has no type"))?;
                family.labels.extend(labels(&line[end..]));
            }
        }
    }
    ensure!(families.len() > few, "only {} families", families.len());
    let mut shown = String::new();
    for (name, Family { kind, help, labels }) in families {
        let labels: Vec<String> = labels.into_iter().collect();
        shown += &format!("{kind} {name}{{{}}}\n    {help}\n", labels.join(","));
    }
    Ok(shown)
}

/// Returns the names in `{name="value",…}`.
fn labels(series: &str) -> Vec<String> {
    let mut names = Vec::new();
    let mut rest = series.strip_prefix('{').unwrap_or_default();
    while let Some((name, value)) = rest.split_once("=\"") {
        names.push(name.trim_start_matches(',').to_owned());
        let mut escaped = false;
        let end = value.find(|letter| {
            let ends = letter == '"' && !escaped;
            escaped = letter == '\\' && !escaped;
            ends
        });
        rest = end.map_or("", |end| &value[end + 1..]);
        if rest.starts_with('}') {
            break;
        }
    }
    names
}

/// Planes that are created at most until a replica owns one of them.
const PLANES_MAX: usize = 40;
/// What the metrics of a replica have that has served a watch.
const SERVED: &str = "apiserver_watch_events_total{";

/// There are two replicas and an audit, so that the metrics of connections and backends have series too.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn frozen_metrics() -> Result<()> {
    let folder = tempfile::tempdir()?;
    // An address of its own, because on a shared one the next port may be another program's.
    let block = Block::take()?;
    let listen = format!("{}:6443", block.first());
    let policy = folder.path().join("policy.yaml");
    let rule = "rules: [{level: Metadata}]";
    std::fs::write(
        &policy,
        format!("apiVersion: audit.k8s.io/v1\nkind: Policy\n{rule}\n"),
    )?;
    let webhook = Outside::start(|_| (StatusCode::OK, json!({}))).await?;
    let config = webhook.kubeconfig(folder.path(), "/audit", None)?;
    let flags = [
        "--replicas=2".to_owned(),
        format!("--listen={listen}"),
        format!("--audit-policy-file={}", policy.display()),
        format!(
            "--audit-log-path={}",
            folder.path().join("audit.log").display()
        ),
        format!("--audit-webhook-config-file={}", config.display()),
    ];
    let flags = flags.each_ref().map(String::as_str);
    let server = Up::start(&folder.path().join("data"), &flags).await?;
    let root = Client::open(&server.root()?).await?;
    let mut exposition = String::new();
    // Until this replica has owned one. Which replica owns a plane depends on its id, which is random.
    for number in 0..PLANES_MAX {
        let name = format!("plane-{number}");
        let client = Client::open(&create_plane(&server.root()?, &name).await?).await?;
        let object = json!({"metadata": {"name": "x"}});
        client.post(CONFIG_MAPS, &object).await?.expect(201)?;
        client
            .get(&format!("{CONFIG_MAPS}/nothing"))
            .await?
            .refuses(404, "not found")?;
        wait_in_vain(&client).await?;
        let watch = format!("{CONFIG_MAPS}?watch=1&timeoutSeconds=1");
        client.watch(&watch).await?.until_end().await?;
        let answer = root.get("/metrics").await?;
        answer
            .body
            .as_str()
            .context("no text")?
            .clone_into(&mut exposition);
        if exposition.contains(SERVED) {
            break;
        }
    }
    server.stop().await?;
    text("metrics", &families(&exposition, 20)?)
}

/// A plane's own metrics have families that those of its replica do not have.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn frozen_plane_metrics() -> Result<()> {
    let folder = tempfile::tempdir()?;
    let server = Up::start(folder.path(), &[]).await?;
    // The family of limits has a series for each limit that is set.
    let spec = json!({"limits": {"objects": 1000}});
    let plane = create_plane_of(&server.root()?, "a", &spec).await?;
    let plane = Client::open(&plane).await?;
    plane.get("/readyz").await?.expect(200)?;
    let mut exposition = String::new();
    for path in ["/metrics", "/metrics/slis"] {
        let answer = plane.get(path).await?.expect(200)?;
        exposition += answer.as_str().context("no text")?;
    }
    server.stop().await?;
    text("plane-metrics", &families(&exposition, 10)?)
}

/// Makes a request wait for seats that its priority level has not got, and another one pass.
async fn wait_in_vain(client: &Client) -> Result<()> {
    let (api, own) = (
        "/apis/flowcontrol.apiserver.k8s.io/v1",
        json!({"name": "own"}),
    );
    let queuing = json!({"queues": 1, "handSize": 1, "queueLengthLimit": 1});
    let limited = json!({"nominalConcurrencyShares": 0, "borrowingLimitPercent": 0,
        "limitResponse": {"type": "Queue", "queuing": queuing}});
    let level = json!({"metadata": own, "spec": {"type": "Limited", "limited": limited}});
    let path = format!("{api}/prioritylevelconfigurations");
    client.post(&path, &level).await?.expect(201)?;
    let rule = json!({"subjects": [{"kind": "User", "user": {"name": "jane"}}],
        "nonResourceRules": [{"verbs": ["*"], "nonResourceURLs": ["/version"]}]});
    let schema =
        json!({"metadata": own, "spec": {"priorityLevelConfiguration": own, "rules": [rule]}});
    client
        .post(&format!("{api}/flowschemas"), &schema)
        .await?
        .expect(201)?;
    for (path, status) in [("/version?timeout=100ms", 429), ("/api?timeout=10s", 200)] {
        let mut asked = ask(Method::GET, path, &Value::Null);
        asked.headers = vec![("impersonate-user".to_owned(), "jane".to_owned())];
        let answer = client.raw(asked).await?;
        ensure!(answer.status == status, "{path}: {}", answer.status);
    }
    Ok(())
}

/// Replaces values that differ from plane to plane by a mark.
fn form(value: &Value) -> Value {
    match value {
        Value::Object(fields) => {
            let forms = fields
                .iter()
                .map(|(name, value)| (name.clone(), form(value)));
            Value::Object(forms.collect())
        }
        Value::Array(items) => Value::Array(items.iter().map(form).collect()),
        Value::String(_) => "<text>".into(),
        Value::Number(_) => "<number>".into(),
        Value::Bool(_) | Value::Null => value.clone(),
    }
}

/// The `ControlPlane` is the directory's record of a plane: replicas of every release read the
/// plane's id, layer, birth and placement from its bytes.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn frozen_directory_record() -> Result<()> {
    let folder = tempfile::tempdir()?;
    let server = Up::start(folder.path(), &[]).await?;
    create_plane(&server.root()?, "a").await?;
    let root = Client::open(&server.root()?).await?;
    let path = "/apis/polyplane.dev/v1alpha1/controlplanes/a";
    let spec = json!({"spec": {"placement": {"zone": "z1"}}});
    let kind = "application/merge-patch+json";
    let patched = root.typed(http::Method::PATCH, path, kind, spec.to_string());
    let object = patched.await?.expect(200)?;
    server.stop().await?;
    let record = DirectoryRecord::read(object.to_string().as_bytes());
    let record = record.context("replicas cannot read it")?;
    ensure!(
        record.zone.as_deref() == Some("z1") && record.born_at.ends_with('Z'),
        "{record:?}"
    );
    let mut shown = serde_json::to_string_pretty(&form(&object))?;
    shown.push('\n');
    text("directory-record", &shown)
}

/// Appends a command's flags, and those of its subcommands.
fn flags(command: &Command, path: &str, shown: &mut String) {
    *shown += &format!("{path}\n");
    let mut lines = Vec::new();
    for arg in command.get_arguments() {
        let Some(long) = arg.get_long() else {
            let place = arg.get_id();
            lines.push(format!("    <{place}>{}\n", amount(arg)));
            continue;
        };
        let mut line = format!("    --{long}{}", amount(arg));
        if let Some(short) = arg.get_short() {
            line += &format!(" -{short}");
        }
        for alias in arg.get_all_aliases().unwrap_or_default() {
            line += &format!(" alias=--{alias}");
        }
        let text = |value: &std::ffi::OsStr| value.to_string_lossy().into_owned();
        for value in arg.get_default_values() {
            line += &format!(" default={}", text(value));
        }
        if let Some(variable) = arg.get_env() {
            line += &format!(" env={}", text(variable));
        }
        for value in arg.get_possible_values() {
            line += &format!(" value={}", value.get_name());
        }
        lines.push(line + "\n");
    }
    lines.sort();
    *shown += &lines.concat();
    for below in command.get_subcommands() {
        flags(below, &format!("{path} {}", below.get_name()), shown);
    }
}

fn amount(arg: &clap::Arg) -> String {
    let many = match arg.get_action() {
        ArgAction::Append => "…",
        _ => "",
    };
    let needed = match arg.is_required_set() {
        true => " required",
        false => "",
    };
    let names = arg.get_value_names().unwrap_or_default();
    match arg.get_action().takes_values() {
        true => format!(" {}{many}{needed}", names.join(" ")),
        false => String::new(),
    }
}

#[test]
fn frozen_flags() -> Result<()> {
    let mut shown = String::new();
    flags(&polyplane::command(), "polyplane", &mut shown);
    ensure!(shown.lines().count() > 40, "few flags: {shown}");
    text("flags", &shown)
}

/// Returns the name under which a crate's log fields are recorded: that of the crate which first
/// logged them.
fn frozen_as(folder: &str) -> &str {
    match folder {
        "pki" => "server",
        other => other,
    }
}

/// Returns every Rust file of the product, with its crate.
fn sources() -> Result<Vec<(String, PathBuf)>> {
    let root = polyplane_tests::golden::folder().join("..");
    let mut folders = Vec::new();
    for entry in std::fs::read_dir(root.join("src"))? {
        let path = entry?.path();
        if path.is_dir() {
            let name = path.file_name().context("a name")?;
            let name = frozen_as(&name.to_string_lossy()).to_owned();
            folders.push((name, path));
        }
    }
    let mut files = Vec::new();
    while let Some((name, folder)) = folders.pop() {
        for entry in std::fs::read_dir(folder)? {
            let path = entry?.path();
            let tests = ["tests", "examples", "conformance"].map(Path::new);
            let is_test = path
                .file_name()
                .is_some_and(|last| tests.contains(&Path::new(last)));
            match path.is_dir() {
                true if !is_test => folders.push((name.clone(), path)),
                false if path.extension().is_some_and(|ending| ending == "rs") => {
                    files.push((name.clone(), path));
                }
                _ => {}
            }
        }
    }
    files.sort();
    Ok(files)
}

/// Splits at commas up to the bracket that closes the text.
fn arguments(text: &str) -> Vec<&str> {
    let (mut depth, mut start, mut parts) = (0_i32, 0, Vec::new());
    let (mut quoted, mut escaped) = (false, false);
    for (at, letter) in text.char_indices() {
        if quoted {
            quoted = letter != '"' || escaped;
            escaped = letter == '\\' && !escaped;
            continue;
        }
        match letter {
            '"' => quoted = true,
            '(' | '[' | '{' => depth += 1,
            ',' if depth == 0 => {
                parts.push(text[start..at].trim());
                start = at + 1;
            }
            ')' | ']' | '}' if depth == 0 => {
                parts.push(text[start..at].trim());
                return parts.into_iter().filter(|part| !part.is_empty()).collect();
            }
            ')' | ']' | '}' => depth -= 1,
            _ => {}
        }
    }
    parts
}

/// Returns the name of the field that an argument of a tracing macro creates, if it creates one.
fn field(argument: &str) -> Option<&str> {
    let name = argument.split(" = ").next()?.trim();
    let name = name.trim_start_matches(['%', '?']);
    let is_name = |letter: char| letter.is_ascii_alphanumeric() || "_.".contains(letter);
    (!name.is_empty() && name.chars().all(is_name) && !argument.contains("::")
        || argument.contains(" = ") && name.chars().all(is_name))
    .then_some(name)
}

/// Collects the fields of all events and spans, and the names of spans. Searches and alerts use
/// these names; messages are prose and may change.
fn log_names(text: &str, name: &str, found: &mut BTreeMap<String, usize>) {
    let text = text
        .split("\n#[cfg(test)]\nmod tests {")
        .next()
        .unwrap_or(text);
    let code: String = text
        .lines()
        .filter(|line| !line.trim_start().starts_with("//"))
        .map(|line| format!("{line}\n"))
        .collect();
    let levels = ["trace", "debug", "info", "warn", "error"];
    for level in levels {
        for (call, is_span) in [
            (format!("{level}!("), false),
            (format!("{level}_span!("), true),
        ] {
            for (at, _) in code.match_indices(&call) {
                let inside = arguments(&code[at + call.len()..]);
                let place = inside.iter().position(|part| part.starts_with('"'));
                let fields = inside.iter().filter_map(|part| field(part));
                let fields: Vec<&str> = fields.collect();
                if let (true, Some(place)) = (is_span, place) {
                    let span = format!("span {}: {}", inside[place], fields.join(" "));
                    *found.entry(format!("{name} {level} {span}")).or_default() += 1;
                    continue;
                }
                for field in fields {
                    *found.entry(format!("{name} {level} {field}")).or_default() += 1;
                }
            }
        }
    }
}

#[test]
fn frozen_log_fields() -> Result<()> {
    let mut found = BTreeMap::new();
    for (name, path) in sources()? {
        log_names(&std::fs::read_to_string(path)?, &name, &mut found);
    }
    ensure!(found.len() > 30, "few fields: {found:?}");
    let lines: String = found.keys().map(|line| format!("{line}\n")).collect();
    text("log-fields", &lines)
}

#[test]
fn fields_are_found_in_every_way_they_are_written() {
    let code = "tracing::warn!(%error, key = ?event.key, count, a.b = 1, \"x, {y}\", y = z(1, 2));\n\
                let span = tracing::info_span!(\"request\", verb, plane = tracing::field::Empty);\n";
    let mut found = BTreeMap::new();
    log_names(code, "c", &mut found);
    let names: Vec<&str> = found.keys().map(String::as_str).collect();
    let wanted = [
        "c info span \"request\": verb plane",
        "c warn a.b",
        "c warn count",
        "c warn error",
        "c warn key",
        "c warn y",
    ];
    assert_eq!(names, wanted);
}
