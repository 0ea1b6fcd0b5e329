//! The audit log: the events of a plane are those of the reference with the same policy and the same
//! requests. `RECORD=1` records the reference.

use std::path::Path;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use bytes::Bytes;
use http::Method;
use polyplane_tests::client::Client;
use polyplane_tests::connection::{Ask, Connection};
use polyplane_tests::kubeconfig::{Caller, Endpoint, Protocol};
use polyplane_tests::process::Up;
use polyplane_tests::programs::{Server, create_plane};
use polyplane_tests::recorded::{compare, records};
use serde_json::{Map, Value, json};

const MAPS: &str = "/api/v1/namespaces/default/configmaps";
const SECRETS: &str = "/api/v1/namespaces/default/secrets";
/// Marks the requests of the test among those of other clients.
const AGENT: &str = "audit-test/1";
/// What must not be anywhere in the log.
const CANARY: &str = "canary-in-a-secret";

const POLICY: &str = r#"
apiVersion: audit.k8s.io/v1
kind: Policy
omitManagedFields: true
rules:
- {level: None, nonResourceURLs: ["/readyz*"]}
- {level: Metadata, resources: [{resources: [secrets]}]}
- {level: RequestResponse, verbs: [create, update, patch, delete], resources: [{resources: [configmaps]}]}
- {level: Request, verbs: [watch], omitStages: [RequestReceived]}
- {level: Metadata}
"#;

/// A server with an audit log.
struct Audited {
    endpoint: Endpoint,
    _up: Option<Up>,
    _reference: Option<Server>,
    client: Client,
    log: std::path::PathBuf,
}

async fn start(folder: &Path, format: &str) -> Result<Audited> {
    let (policy, log) = (folder.join("policy.yaml"), folder.join("audit.log"));
    std::fs::write(&policy, POLICY)?;
    let flags = [
        format!("--audit-policy-file={}", policy.display()),
        format!("--audit-log-path={}", log.display()),
        format!("--audit-log-format={format}"),
    ];
    if records() {
        let server = Server::start_reference_flagged(&flags).await?;
        let endpoint = Endpoint::from_kubeconfig(&server.kubeconfig, Some("reference"))?;
        return Ok(Audited {
            client: Client::open(&endpoint).await?,
            endpoint,
            _up: None,
            _reference: Some(server),
            log,
        });
    }
    let flags = flags.each_ref().map(String::as_str);
    let up = Up::start(&folder.join("data"), &flags).await?;
    let plane = create_plane(&up.root()?, "audited").await?;
    Ok(Audited {
        client: Client::open(&plane).await?,
        endpoint: plane,
        _up: Some(up),
        _reference: None,
        log,
    })
}

/// The requests, each with the code of its answer.
fn requests() -> Vec<(&'static str, Ask, u16)> {
    let ask = |method: Method, path: &str, headers: &[(&str, &str)], body: String| {
        let own = [("user-agent", AGENT)];
        let headers = own.iter().chain(headers);
        Ask {
            method,
            path: path.to_owned(),
            headers: headers
                .map(|(name, value)| ((*name).to_owned(), (*value).to_owned()))
                .collect(),
            body: Bytes::from(body),
        }
    };
    let none = || String::new();
    let json_type: &[(&str, &str)] = &[("content-type", "application/json")];
    let map = json!({"metadata": {"name": "m"}, "data": {"a": "1"}}).to_string();
    let secret = json!({"metadata": {"name": "s"}, "stringData": {"a": CANARY}}).to_string();
    let one = format!("{MAPS}/m");
    let merge = [("content-type", "application/merge-patch+json")];
    let apply = [("content-type", "application/apply-patch+yaml")];
    let applied = "apiVersion: v1\nkind: ConfigMap\nmetadata: {name: m}\ndata: {b: '2'}\n";
    let watch = format!("{MAPS}?watch=1&timeoutSeconds=1&resourceVersion=0");
    let as_jane = [("impersonate-user", "jane"), ("impersonate-group", "dev")];
    let stranger = [("authorization", "Bearer nobody-knows-this-token")];
    let proxied = [("x-forwarded-for", "192.0.2.7, 192.0.2.8")];
    let (get, post, patch) = (Method::GET, Method::POST, Method::PATCH);
    vec![
        (
            "create",
            ask(post.clone(), MAPS, json_type, map.clone()),
            201,
        ),
        ("create again", ask(post.clone(), MAPS, json_type, map), 409),
        ("get", ask(get.clone(), &one, &[], none()), 200),
        (
            "get of nothing",
            ask(get.clone(), &format!("{MAPS}/x"), &[], none()),
            404,
        ),
        (
            "list",
            ask(get.clone(), &format!("{MAPS}?limit=500"), &[], none()),
            200,
        ),
        (
            "patch",
            ask(
                patch.clone(),
                &one,
                &merge,
                r#"{"data": {"a": "2"}}"#.into(),
            ),
            200,
        ),
        (
            "apply",
            ask(
                patch,
                &format!("{one}?fieldManager=me"),
                &apply,
                applied.into(),
            ),
            200,
        ),
        (
            "wrong body",
            ask(
                post.clone(),
                MAPS,
                json_type,
                r#"{"metadata": {"name": "A"}}"#.into(),
            ),
            422,
        ),
        ("watch", ask(get.clone(), &watch, &[], none()), 200),
        ("secret", ask(post, SECRETS, json_type, secret), 201),
        (
            "secret read",
            ask(get.clone(), &format!("{SECRETS}/s"), &[], none()),
            200,
        ),
        (
            "version",
            ask(get.clone(), "/version", &proxied, none()),
            200,
        ),
        (
            "not recorded",
            ask(get.clone(), "/readyz", &[], none()),
            200,
        ),
        (
            "impersonated",
            ask(get.clone(), &one, &as_jane, none()),
            403,
        ),
        ("stranger", ask(get, &one, &stranger, none()), 401),
        ("delete", ask(Method::DELETE, &one, &[], none()), 200),
    ]
}

/// Requests about which stages say something in annotations: why they are allowed, what admission thinks of
/// them, that their kind ends, what they have issued.
fn annotated() -> Vec<(&'static str, Ask, u16)> {
    const BINDINGS: &str = "/apis/rbac.authorization.k8s.io/v1/clusterrolebindings";
    const ACCOUNTS: &str = "/api/v1/namespaces/guarded/serviceaccounts";
    const PODS: &str = "/api/v1/namespaces/guarded/pods";
    let ask = |method: Method, path: &str, user: &str, body: Value| Ask {
        method,
        path: path.to_owned(),
        headers: [
            ("user-agent", AGENT),
            ("content-type", "application/json"),
            ("impersonate-user", user),
        ]
        .into_iter()
        .filter(|(_, value)| !value.is_empty())
        .map(|(name, value)| (name.to_owned(), value.to_owned()))
        .collect(),
        body: match body.is_null() {
            true => Bytes::new(),
            false => Bytes::from(body.to_string()),
        },
    };
    let post = |path: &str, body: Value| ask(Method::POST, path, "", body);
    let read = |path: &str, user: &str| ask(Method::GET, path, user, Value::Null);
    let role =
        json!({"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": "view"});
    let viewer = json!({"apiGroup": "rbac.authorization.k8s.io", "kind": "User", "name": "viewer"});
    let lost = json!({"apiGroup": "rbac.authorization.k8s.io", "kind": "User", "name": "lost"});
    let nothing =
        json!({"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": "gone"});
    let binding = |name: &str, role: &Value, user: &Value| json!({"metadata": {"name": name}, "roleRef": role, "subjects": [user]});
    let labels = json!({"pod-security.kubernetes.io/enforce": "baseline",
        "pod-security.kubernetes.io/audit": "restricted", "pod-security.kubernetes.io/audit-version": "v1.30"});
    let pod = |name: &str, host: bool| {
        json!({"metadata": {"name": name}, "spec": {"serviceAccountName": "runner", "hostNetwork": host,
            "automountServiceAccountToken": false, "containers": [{"name": "c", "image": "i"}]}})
    };
    let namespace = json!({"metadata": {"name": "guarded", "labels": labels}});
    let token = json!({"spec": {"expirationSeconds": 600}});
    vec![
        (
            "bind",
            post(BINDINGS, binding("viewers", &role, &viewer)),
            201,
        ),
        (
            "bind nothing",
            post(BINDINGS, binding("lost", &nothing, &lost)),
            201,
        ),
        ("allowed by a role", read(MAPS, "viewer"), 200),
        ("allowed to everybody", read("/apis", "viewer"), 200),
        ("refused", read(SECRETS, "viewer"), 403),
        ("role is missing", read(MAPS, "lost"), 403),
        (
            "kind that ends",
            read("/api/v1/namespaces/default/endpoints", ""),
            200,
        ),
        ("namespace", post("/api/v1/namespaces", namespace), 201),
        (
            "account",
            post(ACCOUNTS, json!({"metadata": {"name": "runner"}})),
            201,
        ),
        ("pod", post(PODS, pod("harmless", false)), 201),
        ("pod refused", post(PODS, pod("on-its-node", true)), 403),
        (
            "token",
            post(&format!("{ACCOUNTS}/runner/token"), token),
            201,
        ),
    ]
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn events_are_those_of_the_reference() -> Result<()> {
    let steps = recorded_in("json", |line| Ok(normal(serde_json::from_str(line)?))).await?;
    compare(records(), "audit", &steps)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_legacy_format_is_that_of_the_reference() -> Result<()> {
    let steps = recorded_in("legacy", |line| Ok(json!(normal_text(line)?))).await?;
    compare(records(), "audit-legacy", &steps)
}

/// Makes the requests, and returns the lines of each as `read` reads them.
async fn recorded_in(
    format: &str,
    read: impl Fn(&str) -> Result<Value>,
) -> Result<Map<String, Value>> {
    let folder = tempfile::tempdir()?;
    let server = start(folder.path(), format).await?;
    let mut expected = Vec::new();
    for (name, ask, code) in requests().into_iter().chain(annotated()) {
        let answer = match name {
            // The reference closes the connection of a stranger.
            "stranger" => {
                let (caller, protocol) = (Caller::Anonymous, Protocol::Http2);
                let stranger = Connection::open(&server.endpoint, caller, protocol).await?;
                stranger.send(ask).await?
            }
            _ => server.client.raw(ask).await?,
        };
        let id = answer.headers.get("audit-id").context("no audit id")?;
        let id = id.to_str()?.to_owned();
        ensure!(
            answer.status == code,
            "{name}: {} {:?}",
            answer.status,
            answer.body
        );
        expected.push((name, id));
    }
    let last = expected
        .last()
        .map(|(_, id)| id.clone())
        .unwrap_or_default();
    let text = logged(&server.log, &last).await?;
    ensure!(!text.contains(CANARY), "the log has a secret");
    let mut steps = Map::new();
    for (name, id) in expected {
        let events: Result<Vec<Value>> = text
            .lines()
            .filter(|line| line.contains(&id))
            .map(&read)
            .collect();
        steps.insert(name.to_owned(), Value::Array(events?));
    }
    Ok(steps)
}

/// Returns the log once it has the end of a request.
async fn logged(path: &Path, id: &str) -> Result<String> {
    for _ in 0..500 {
        let text = std::fs::read_to_string(path).unwrap_or_default();
        let is_last = |line: &str| line.contains(id) && line.contains("\"ResponseComplete\"");
        if text.lines().any(is_last) {
            return Ok(text);
        }
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    anyhow::bail!("the log lacks the end of {id}")
}

/// Replaces what differs from run to run and from server to server in a line of the legacy format.
fn normal_text(line: &str) -> Result<String> {
    let (time, rest) = line.split_once(" AUDIT: ").context("no legacy line")?;
    ensure!(time.ends_with('Z') && time.len() > 20, "{time}");
    let mut shown = String::new();
    let mut rest = rest.trim_end();
    let mut is_nobody = false;
    while let Some((name, value)) = rest.split_once("=\"") {
        let mut escaped = false;
        let end = value.find(|one: char| {
            let is_end = one == '"' && !escaped;
            escaped = one == '\\' && !escaped;
            is_end
        });
        let end = end.context("a value without an end")?;
        is_nobody |= name.trim() == "user" && &value[..end] == "<none>";
        let value_shown = match name.trim() {
            "id" => "<id>",
            "user" | "groups" if !is_nobody => "<administrator>",
            _ => &value[..end],
        };
        shown.push_str(&format!("{name}=\"{value_shown}\""));
        rest = &value[end + 1..];
    }
    ensure!(rest.is_empty(), "{line}");
    Ok(shown)
}

/// Removes what differs from run to run and from server to server.
fn normal(mut event: Value) -> Value {
    for name in ["requestReceivedTimestamp", "stageTimestamp"] {
        let text = event[name].as_str().unwrap_or_default();
        event[name] = json!(if text.len() == 27 && text.ends_with('Z') {
            "<time>"
        } else {
            "?"
        });
    }
    event["auditID"] = json!("<id>");
    if event["user"]["username"].is_string() {
        event["user"] = json!("<administrator>");
    }
    // The administrators of the two servers have different roles.
    let is_administrator = event["impersonatedUser"].is_null();
    let own = |key: &str| {
        key.starts_with("polyplane.dev/")
            || (key == "authorization.k8s.io/reason" && is_administrator)
    };
    if let Some(members) = event.as_object_mut() {
        if let Some(Value::Object(annotations)) = members.get_mut("annotations") {
            annotations.retain(|key, _| !own(key));
            let issued = annotations.get_mut("authentication.kubernetes.io/issued-credential-id");
            if let Some(Value::String(id)) = issued {
                *id = id
                    .chars()
                    .map(|one| if one.is_ascii_hexdigit() { 'x' } else { one })
                    .collect();
            }
        }
        members.retain(|key, value| match key.as_str() {
            "annotations" => *value != json!({}),
            _ => true,
        });
    }
    blank(&mut event);
    event
}

/// Replaces identities and times in a body.
fn blank(value: &mut Value) {
    match value {
        Value::Object(members) => {
            for (name, value) in members {
                match name.as_str() {
                    "uid" | "resourceVersion" | "creationTimestamp" if value.is_string() => {
                        *value = json!(format!("<{name}>"));
                    }
                    _ => blank(value),
                }
            }
        }
        Value::Array(items) => items.iter_mut().for_each(blank),
        _ => {}
    }
}
