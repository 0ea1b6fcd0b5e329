//! The backends of the audit: what a webhook gets, and what becomes of events when a backend or the
//! server fails.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use http::StatusCode;
use polyplane_tests::client::Client;
use polyplane_tests::drop_in::DropIn;
use polyplane_tests::kubeconfig::Endpoint;
use polyplane_tests::outside::Outside;
use polyplane_tests::process::{Up, refused};
use polyplane_tests::programs::{create_plane, delete_plane};
use serde_json::{Value, json};

const MAPS: &str = "/api/v1/namespaces/default/configmaps";
const SECRETS: &str = "/api/v1/namespaces/default/secrets";
const NAMESPACES: &str = "/api/v1/namespaces";
/// What must not be in any event.
const CANARY: &str = "canary-in-a-secret";
/// What the webhook's kubeconfig has.
const TOKEN: &str = "canary-of-the-webhook";

const POLICY: &str = r#"
apiVersion: audit.k8s.io/v1
kind: Policy
rules:
- {level: None, nonResourceURLs: ["/readyz*", "/metrics*"]}
- {level: None, users: ["system:apiserver"]}
- {level: RequestResponse, resources: [{resources: [configmaps]}]}
- {level: RequestResponse}
"#;

/// A server that keeps the events which it accepts, and refuses them while it is down.
struct Receiver {
    server: Outside,
    is_down: Arc<AtomicBool>,
    config: PathBuf,
}

impl Receiver {
    async fn start(folder: &Path) -> Result<Self> {
        let is_down = Arc::new(AtomicBool::new(false));
        let server = Outside::start({
            let is_down = Arc::clone(&is_down);
            move |_| match is_down.load(Ordering::SeqCst) {
                true => (StatusCode::INTERNAL_SERVER_ERROR, json!({"down": true})),
                false => (StatusCode::OK, json!({"down": false})),
            }
        })
        .await?;
        let config = server.kubeconfig(folder, "/events", Some(TOKEN))?;
        Ok(Self {
            server,
            is_down,
            config,
        })
    }

    fn goes(&self, down: bool) {
        self.is_down.store(down, Ordering::SeqCst);
    }

    /// Returns the events of all lists that were accepted.
    fn events(&self) -> Result<Vec<Value>> {
        let mut events = Vec::new();
        for request in self.server.received() {
            let list: Value = serde_json::from_slice(&request.body)?;
            ensure!(
                list["kind"] == "EventList" && list["apiVersion"] == "audit.k8s.io/v1",
                "{list}"
            );
            ensure!(request.path == "/events" && request.method == http::Method::POST);
            ensure!(request.authorization == format!("Bearer {TOKEN}"));
            if request.answered == StatusCode::OK {
                events.extend(
                    list["items"]
                        .as_array()
                        .context("no items")?
                        .iter()
                        .cloned(),
                );
            }
        }
        Ok(events)
    }

    /// Waits until an accepted event is as wanted, and returns all events.
    async fn until(&self, what: &str, is_wanted: impl Fn(&[Value]) -> bool) -> Result<Vec<Value>> {
        for _ in 0..1500 {
            let events = self.events()?;
            if is_wanted(&events) {
                return Ok(events);
            }
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
        anyhow::bail!("the webhook did not get {what}")
    }
}

/// Returns the flags of a server with the policy and more.
fn flags(folder: &Path, more: &[String]) -> Result<Vec<String>> {
    let policy = folder.join("policy.yaml");
    std::fs::write(&policy, POLICY)?;
    let mut flags = vec![format!("--audit-policy-file={}", policy.display())];
    flags.extend_from_slice(more);
    Ok(flags)
}

async fn start(folder: &Path, flags: &[String]) -> Result<Up> {
    let flags: Vec<&str> = flags.iter().map(String::as_str).collect();
    Up::start(&folder.join("data"), &flags).await
}

fn webhook(receiver: &Receiver, more: &[&str]) -> Vec<String> {
    let mut flags = vec![format!(
        "--audit-webhook-config-file={}",
        receiver.config.display()
    )];
    flags.extend(more.iter().map(|flag| format!("--audit-webhook-{flag}")));
    flags
}

fn id(event: &Value) -> (String, String) {
    let text = |name: &str| event[name].as_str().unwrap_or_default().to_owned();
    (text("auditID"), text("stage"))
}

fn plane_of(event: &Value) -> &str {
    let name = &event["annotations"]["polyplane.dev/control-plane"];
    name.as_str().unwrap_or_default()
}

fn lost(event: &Value) -> Option<u64> {
    let count = &event["annotations"]["polyplane.dev/lost-events"];
    count.as_str()?.parse().ok()
}

fn map(name: &str) -> Value {
    json!({"metadata": {"name": name}, "data": {"a": "1"}})
}

fn log_lines(log: &Path) -> Result<Vec<Value>> {
    let text = std::fs::read_to_string(log)?;
    let lines = text.lines().map(serde_json::from_str);
    let lines: Result<Vec<Value>, _> = lines.collect();
    lines.context("a line of the log is no JSON")
}

/// Returns the value of a series in `/metrics`.
async fn metric(root: &Endpoint, series: &str) -> Result<u64> {
    let client = Client::open(root).await?;
    let ask = polyplane_tests::programs::ask(http::Method::GET, "/metrics", &Value::Null);
    let text = client.raw(ask).await?;
    let text = String::from_utf8_lossy(&text.body).into_owned();
    let value = text.lines().find_map(|line| line.strip_prefix(series));
    let value = value.with_context(|| format!("no series {series}"))?;
    Ok(value.trim().parse()?)
}

/// The webhook gets what the log gets, in lists of upstream's kind and under its credential; secrets in
/// bodies are in neither; what the server does in a controller's place is in both, as that controller.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_webhook_gets_what_the_log_gets() -> Result<()> {
    let folder = tempfile::tempdir()?;
    let receiver = Receiver::start(folder.path()).await?;
    let log = folder.path().join("audit.log");
    let mut more = webhook(&receiver, &["batch-max-wait=50ms"]);
    more.push(format!("--audit-log-path={}", log.display()));
    let up = start(folder.path(), &flags(folder.path(), &more)?).await?;
    let plane = Client::open(&create_plane(&up.root()?, "a").await?).await?;
    plane.post(MAPS, &map("one")).await?.expect(201)?;
    let secret = json!({"metadata": {"name": "s"}, "stringData": {"a": CANARY}});
    plane.post(SECRETS, &secret).await?.expect(201)?;
    plane.get(&format!("{SECRETS}/s")).await?.expect(200)?;
    plane
        .get(&format!("{SECRETS}/s?token={CANARY}"))
        .await?
        .expect(200)?;
    let account = "/api/v1/namespaces/default/serviceaccounts/default";
    let before = plane.get(account).await?.expect(200)?;
    plane.delete(account).await?.expect(200)?;
    loop {
        let after = plane.get(account).await?;
        if after.status == 200 && after.body["metadata"]["uid"] != before["metadata"]["uid"] {
            break;
        }
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    let named = json!({"metadata": {"name": "short"}});
    plane.post(NAMESPACES, &named).await?.expect(201)?;
    let short = format!("{NAMESPACES}/short");
    plane.delete(&short).await?.expect(200)?;
    while plane.get(&short).await?.status != 404 {
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    up.stop().await?;
    // The stop has sent everything.
    let events = receiver.events()?;
    let mut lines = log_lines(&log)?;
    for line in &mut lines {
        let members = line.as_object_mut().context("an object")?;
        ensure!(members.remove("kind") == Some(json!("Event")));
        members.remove("apiVersion");
    }
    let by_id = |events: &[Value]| -> BTreeMap<(String, String), Value> {
        events.iter().map(|one| (id(one), one.clone())).collect()
    };
    ensure!(by_id(&lines) == by_id(&events), "they differ");
    ensure!(lines.len() == events.len() && by_id(&lines).len() == lines.len());
    let text = serde_json::to_string(&events)?;
    ensure!(!text.contains(CANARY) && !text.contains(TOKEN));
    controllers_are_recorded(&events)
}

/// The namespace's deletion is the namespace controller's, its account the account controller's.
fn controllers_are_recorded(events: &[Value]) -> Result<()> {
    let of = |user: &str, verb: &str, resource: &str| {
        let user = format!("system:serviceaccount:kube-system:{user}");
        let found = events.iter().find(|event| {
            event["user"]["username"] == user.as_str()
                && event["verb"] == verb
                && event["objectRef"]["resource"] == resource
                && event["stage"] == "ResponseComplete"
                && plane_of(event) == "a"
        });
        found.with_context(|| format!("{user} has not done {verb} {resource}"))
    };
    let created = of("service-account-controller", "create", "serviceaccounts")?;
    ensure!(created["responseStatus"]["code"] == 201, "{created}");
    ensure!(created["objectRef"]["name"] == "default", "{created}");
    ensure!(created.get("sourceIPs").is_none(), "{created}");
    ensure!(
        created["requestObject"]["kind"] == "ServiceAccount",
        "{created}"
    );
    let uri = created["requestURI"].as_str().unwrap_or_default();
    ensure!(uri.starts_with("/api/v1/namespaces/"), "{created}");
    let allowed = &created["annotations"]["authorization.k8s.io/decision"];
    ensure!(allowed == "allow", "{created}");
    of(
        "namespace-controller",
        "deletecollection",
        "serviceaccounts",
    )
    .or_else(|_| of("namespace-controller", "delete", "serviceaccounts"))?;
    let finalized = of("namespace-controller", "update", "namespaces")?;
    let object = &finalized["objectRef"];
    ensure!(
        object["namespace"] == "short" && object["subresource"] == "finalize",
        "{finalized}"
    );
    Ok(())
}

/// While the webhook is down, events wait and are sent again, each is accepted once, and then nothing
/// more comes.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_webhook_that_comes_back_gets_every_event_once() -> Result<()> {
    let folder = tempfile::tempdir()?;
    let receiver = Receiver::start(folder.path()).await?;
    let more = webhook(
        &receiver,
        &[
            "batch-max-wait=20ms",
            "batch-max-size=10",
            "initial-backoff=300ms",
        ],
    );
    let up = start(folder.path(), &flags(folder.path(), &more)?).await?;
    let plane = Client::open(&create_plane(&up.root()?, "a").await?).await?;
    receiver.goes(true);
    let refusals = receiver.server.received().len();
    for number in 0..60 {
        let made = plane.post(MAPS, &map(&format!("m{number}"))).await?;
        made.expect(201)?;
    }
    while receiver.server.received().len() < refusals + 4 {
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    receiver.goes(false);
    let is_creation = |event: &&Value| {
        event["verb"] == "create"
            && event["objectRef"]["resource"] == "configmaps"
            && event["objectRef"]["namespace"] == "default"
            && event["user"]["username"] != "system:apiserver"
            && event["stage"] == "ResponseComplete"
            && event["responseStatus"]["code"] == 201
            && event["objectRef"]["name"]
                .as_str()
                .is_some_and(|name| name.starts_with('m'))
    };
    let all = |events: &[Value]| events.iter().filter(is_creation).count() >= 60;
    receiver.until("60 creations", all).await?;
    let root = up.root()?;
    ensure!(metric(&root, "apiserver_audit_error_total{plugin=\"webhook\"}").await? == 0);
    ensure!(metric(&root, "apiserver_audit_error_total{plugin=\"buffered\"}").await? == 0);
    up.stop().await?;
    let events = receiver.events()?;
    let ids: BTreeSet<_> = events.iter().map(id).collect();
    ensure!(ids.len() == events.len(), "an event was accepted twice");
    ensure!(events.iter().filter(is_creation).count() == 60);
    ensure!(events.iter().all(|event| lost(event).is_none()));
    Ok(())
}

/// While the webhook is down and the queue is full, the plane that floods loses its own events, the other
/// none, and events say how many; none is lost without being told.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_full_queue_loses_events_of_the_flood_alone() -> Result<()> {
    let folder = tempfile::tempdir()?;
    let receiver = Receiver::start(folder.path()).await?;
    let more = webhook(
        &receiver,
        &[
            "batch-max-wait=20ms",
            "batch-max-size=5",
            "batch-buffer-size=100",
            "batch-throttle-enable=false",
            "initial-backoff=2s",
        ],
    );
    let up = start(folder.path(), &flags(folder.path(), &more)?).await?;
    let root = up.root()?;
    let loud = Client::open(&create_plane(&root, "loud").await?).await?;
    let quiet = Client::open(&create_plane(&root, "quiet").await?).await?;
    receiver.goes(true);
    for number in 0..300 {
        loud.get(&format!("{MAPS}/x{number}")).await?;
        if number % 100 == 50 {
            quiet.get(&format!("{MAPS}/y{number}")).await?;
        }
    }
    receiver.goes(false);
    let told = |events: &[Value]| events.iter().any(|event| lost(event).is_some());
    receiver.until("how many were lost", told).await?;
    loud.get(&format!("{MAPS}/last")).await?;
    up.stop().await?;
    let events = receiver.events()?;
    let reads = |plane: &str| {
        let events = events.iter().filter(|event| {
            let name = event["objectRef"]["name"].as_str().unwrap_or_default();
            plane_of(event) == plane && (name.starts_with('x') || name.starts_with('y'))
        });
        events.map(id).collect::<BTreeSet<_>>().len() as u64
    };
    let told_of = |plane: &str| -> u64 {
        let events = events.iter().filter(|event| plane_of(event) == plane);
        events.filter_map(lost).sum()
    };
    println!(
        "queue full: loud {} recorded and {} told as lost, quiet {} and {}",
        reads("loud"),
        told_of("loud"),
        reads("quiet"),
        told_of("quiet")
    );
    ensure!(reads("quiet") == 6 && told_of("quiet") == 0);
    ensure!(told_of("loud") > 300, "the queue was not full");
    ensure!(
        reads("loud") + told_of("loud") >= 600,
        "some were lost and not told"
    );
    ensure!(told_of("root") == 0);
    Ok(())
}

/// A server that stops sends what waits. One that is killed has written the events of every request that
/// it has answered, if requests wait, and no torn line.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_end_of_the_server_loses_no_event_that_requests_wait_for() -> Result<()> {
    let folder = tempfile::tempdir()?;
    let log = folder.path().join("audit.log");
    let receiver = Receiver::start(folder.path()).await?;
    let mut more = webhook(&receiver, &["batch-max-wait=1h"]);
    more.push(format!("--audit-log-path={}", log.display()));
    more.push("--audit-log-mode=blocking".to_owned());
    let flags = flags(folder.path(), &more)?;
    let up = start(folder.path(), &flags).await?;
    let plane = Client::open(&create_plane(&up.root()?, "a").await?).await?;
    let mut answered = Vec::new();
    for number in 0..40 {
        let ask = polyplane_tests::programs::ask(
            http::Method::POST,
            MAPS,
            &map(&format!("before-{number}")),
        );
        let answer = plane.raw(ask).await?;
        ensure!(answer.status == 201, "{answer:?}");
        let id = answer.headers.get("audit-id").context("no audit id")?;
        answered.push(id.to_str()?.to_owned());
    }
    // At once, so that what is only queued is lost.
    up.kill().await?;
    let stages = |lines: &[Value], wanted: &str| -> BTreeSet<String> {
        let of = lines.iter().map(id).filter(|(id, _)| id == wanted);
        of.map(|(_, stage)| stage).collect()
    };
    let both = BTreeSet::from(["RequestReceived".to_owned(), "ResponseComplete".to_owned()]);
    let lines = log_lines(&log)?;
    for id in &answered {
        ensure!(
            stages(&lines, id) == both,
            "{id} was answered, not recorded"
        );
    }
    ensure!(receiver.events()?.is_empty(), "the batch was not due");
    let up = start(folder.path(), &flags).await?;
    let plane = Client::open(&up.plane("a")?).await?;
    plane.post(MAPS, &map("after")).await?.expect(201)?;
    up.stop().await?;
    let lines = log_lines(&log)?;
    for id in &answered {
        ensure!(stages(&lines, id) == both, "{id} is recorded once more");
    }
    let is_after = |event: &&Value| event["requestObject"]["metadata"]["name"] == "after";
    ensure!(lines.iter().filter(is_after).count() == 1);
    ensure!(receiver.events()?.iter().filter(is_after).count() == 1);
    Ok(())
}

/// While a server that stops waits for a webhook that is away, a further signal ends it.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_further_signal_ends_the_wait_for_a_webhook() -> Result<()> {
    let folder = tempfile::tempdir()?;
    let receiver = Receiver::start(folder.path()).await?;
    let more = webhook(&receiver, &["batch-max-wait=1h"]);
    let mut up = start(folder.path(), &flags(folder.path(), &more)?).await?;
    create_plane(&up.root()?, "a").await?;
    receiver.goes(true);
    // By default the second try comes ten seconds after the first.
    for _ in 0..400 {
        up.terminate()?;
        tokio::time::sleep(Duration::from_millis(100)).await;
        if up.has_ended()? {
            let log = up.log()?;
            ensure!(log.contains("a further signal ended the server"), "{log}");
            return Ok(());
        }
    }
    anyhow::bail!("the server does not end: {}", up.log()?)
}

/// In the mode blocking-strict a request whose arrival cannot be recorded fails and does nothing; in the
/// mode blocking it goes on. Once the webhook is back, so are requests.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_strict_webhook_that_is_down_fails_requests_before_they_do_anything() -> Result<()> {
    for (mode, code) in [("blocking-strict", 500_u16), ("blocking", 201)] {
        let folder = tempfile::tempdir()?;
        let receiver = Receiver::start(folder.path()).await?;
        let mode = format!("mode={mode}");
        let more = webhook(&receiver, &[&mode, "initial-backoff=1ms"]);
        let up = start(folder.path(), &flags(folder.path(), &more)?).await?;
        let root = up.root()?;
        let plane = Client::open(&create_plane(&root, "a").await?).await?;
        receiver.goes(true);
        let ask = polyplane_tests::programs::ask(http::Method::POST, MAPS, &map("down"));
        let answer = plane.raw(ask).await?;
        let said = String::from_utf8_lossy(&answer.body).into_owned();
        ensure!(answer.status == code, "{mode}: {} {said}", answer.status);
        let rejected = metric(&root, "apiserver_audit_requests_rejected_total").await?;
        if code == 500 {
            let expected =
                format!("Internal Server Error: \"{MAPS}\": failed to store audit event\n");
            ensure!(said == expected, "{said}");
            ensure!(rejected >= 1, "it was not counted");
        } else {
            ensure!(rejected == 0);
        }
        let failed = metric(&root, "apiserver_audit_error_total{plugin=\"webhook\"}").await?;
        ensure!(failed >= 1, "{failed} events failed");
        receiver.goes(false);
        let wanted: u16 = if code == 500 { 404 } else { 200 };
        let found = plane.get(&format!("{MAPS}/down")).await?.status;
        ensure!(found == wanted, "{mode}: {found}");
        plane.post(MAPS, &map("up")).await?.expect(201)?;
        // The answer has waited for its events, and the losses are told beside them.
        let events = receiver.events()?;
        let is_up = |event: &&Value| event["requestObject"]["metadata"]["name"] == "up";
        ensure!(events.iter().filter(is_up).count() == 1);
        ensure!(events.iter().filter_map(lost).sum::<u64>() >= 1);
        delete_plane(&root, "a").await?;
        up.stop().await?;
    }
    Ok(())
}

/// The drop-in knows the real flags: a webhook with short events, and a log in the legacy format.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_drop_in_has_the_backends_of_the_real_one() -> Result<()> {
    let folder = tempfile::tempdir()?;
    let log = folder.path().join("audit.log");
    let receiver = Receiver::start(folder.path()).await?;
    let mut more = webhook(
        &receiver,
        &[
            "mode=blocking",
            "truncate-enabled",
            "truncate-max-event-size=3000",
            "version=audit.k8s.io/v1",
        ],
    );
    more.push(format!("--audit-log-path={}", log.display()));
    more.push("--audit-log-format=legacy".to_owned());
    more.push("--authorization-mode=RBAC".to_owned());
    let tokens = folder.path().join("tokens.csv");
    std::fs::write(&tokens, "secret-of-root,root,1,\"system:masters\"\n")?;
    more.push(format!("--token-auth-file={}", tokens.display()));
    let flags = flags(folder.path(), &more)?;
    let drop_in = DropIn::start(tempfile::tempdir()?, flags, None).await?;
    let client = Client::open(&drop_in.endpoint(&json!({"token": "secret-of-root"}))?).await?;
    let mut long = map("long");
    long["data"]["a"] = json!("x".repeat(4000));
    client.post(MAPS, &long).await?.expect(201)?;
    client.post(MAPS, &map("short")).await?.expect(201)?;
    let events = receiver.events()?;
    let of = |name: &str| {
        let found = events.iter().find(|event| {
            event["objectRef"]["name"] == name
                && event["verb"] == "create"
                && event["stage"] == "ResponseComplete"
        });
        found.with_context(|| format!("no creation of {name}"))
    };
    let (long, short) = (of("long")?, of("short")?);
    ensure!(
        long["annotations"]["audit.k8s.io/truncated"] == "true",
        "{long}"
    );
    ensure!(long.get("requestObject").is_none() && long.get("responseObject").is_none());
    ensure!(short["requestObject"]["data"]["a"] == "1", "{short}");
    let text = std::fs::read_to_string(&log)?;
    let id = format!(" AUDIT: id={}", short["auditID"]);
    let lines: Vec<&str> = text.lines().filter(|line| line.contains(&id)).collect();
    let agent = short["userAgent"].as_str().unwrap_or_default();
    let rest = format!(
        " ip=\"127.0.0.1\" method=\"create\" user=\"root\" \
         groups=\"\\\"system:masters\\\",\\\"system:authenticated\\\"\" as=\"<self>\" \
         asgroups=\"<lookup>\" user-agent=\"{agent}\" namespace=\"default\" uri=\"{MAPS}\" response="
    );
    ensure!(lines.len() == 2, "{lines:?}");
    ensure!(
        lines[0].contains(&format!("stage=\"RequestReceived\"{rest}\"<deferred>\"")),
        "{lines:?}"
    );
    ensure!(
        lines[1].contains(&format!("stage=\"ResponseComplete\"{rest}\"201\"")),
        "{lines:?}"
    );
    Ok(())
}

/// Flags that contradict each other end the start with their names.
#[tokio::test]
async fn wrong_flags_end_the_start() -> Result<()> {
    let folder = tempfile::tempdir()?;
    let receiver = Receiver::start(folder.path()).await?;
    let hook = format!("--audit-webhook-config-file={}", receiver.config.display());
    for (more, words) in [
        (
            vec![],
            "give --audit-log-path or --audit-webhook-config-file",
        ),
        (
            vec!["--audit-webhook-config-file=/nowhere".to_owned()],
            "--audit-webhook-config-file",
        ),
        (
            vec![
                hook.clone(),
                "--audit-webhook-batch-buffer-size=0".to_owned(),
            ],
            "--audit-webhook-batch-buffer-size: it must be a positive number",
        ),
        (
            vec![
                hook.clone(),
                "--audit-webhook-truncate-enabled".to_owned(),
                "--audit-webhook-truncate-max-batch-size=5".to_owned(),
            ],
            "--audit-webhook-truncate-max-batch-size",
        ),
        (
            vec![hook, "--audit-webhook-mode=sometimes".to_owned()],
            "blocking-strict",
        ),
    ] {
        let flags = flags(folder.path(), &more)?;
        let flags: Vec<&str> = flags.iter().map(String::as_str).collect();
        let ended = refused(&folder.path().join("data"), &flags).await?;
        let said = String::from_utf8_lossy(&ended.stderr).into_owned();
        ensure!(said.contains(words), "{words}: {said}");
    }
    Ok(())
}
