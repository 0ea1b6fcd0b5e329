//! The file `AuthorizationConfiguration`: authorizers of the root plane in their order, for the server and
//! for the drop-in.

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use anyhow::{Result, bail, ensure};
use base64::Engine as _;
use base64::prelude::BASE64_STANDARD;
use bytes::Bytes;
use http::{Method, StatusCode};
use polyplane_tests::client::Client;
use polyplane_tests::connection::{Answer, Ask};
use polyplane_tests::drop_in::DropIn;
use polyplane_tests::kubeconfig::Endpoint;
use polyplane_tests::outside::Outside;
use polyplane_tests::process::{Up, refused};
use polyplane_tests::programs::{ask, create_plane};
use serde_json::{Value, json};

const CONFIG_MAPS: &str = "/api/v1/namespaces/default/configmaps";
const SECRETS: &str = "/api/v1/namespaces/default/secrets";
const BINDINGS: &str = "/apis/rbac.authorization.k8s.io/v1/clusterrolebindings";

/// A webhook, and whether it answers.
struct Webhook {
    server: Outside,
    answers: Arc<AtomicBool>,
}

/// A webhook that allows one user everything, denies another one everything, and leaves the rest open.
async fn webhook(allows: &'static str, denies: &'static str) -> Result<Webhook> {
    let answers = Arc::new(AtomicBool::new(true));
    let does = Arc::clone(&answers);
    let server = Outside::start(move |request| {
        let asked: Value = serde_json::from_slice(&request.body).unwrap_or_default();
        let user = asked["spec"]["user"].as_str().unwrap_or_default();
        let status = json!({"allowed": user == allows, "denied": user == denies,
            "reason": format!("not {denies}")});
        let answer =
            json!({"kind": asked["kind"], "apiVersion": asked["apiVersion"], "status": status});
        match does.load(Ordering::Relaxed) {
            true => (StatusCode::OK, answer),
            false => (StatusCode::NOT_FOUND, Value::Null),
        }
    });
    Ok(Webhook {
        server: server.await?,
        answers,
    })
}

/// Writes a kubeconfig for a webhook, and returns its entry in the file.
fn entry(folder: &Path, name: &str, server: &Webhook, more: &Value) -> Result<Value> {
    let config = json!({"apiVersion": "v1", "kind": "Config", "current-context": "w",
        "contexts": [{"name": "w", "context": {"cluster": "w"}}],
        "clusters": [{"name": "w", "cluster": {"server": server.server.url,
            "certificate-authority-data": BASE64_STANDARD.encode(&server.server.ca_pem)}}]});
    let path = folder.join(format!("{name}.kubeconfig"));
    std::fs::write(&path, config.to_string())?;
    let mut webhook = json!({"timeout": "5s", "subjectAccessReviewVersion": "v1",
        "cacheAuthorizedRequests": false, "cacheUnauthorizedRequests": false,
        "connectionInfo": {"type": "KubeConfigFile", "kubeConfigFile": path.display().to_string()}});
    for (field, value) in more.as_object().into_iter().flatten() {
        webhook[field] = value.clone();
    }
    Ok(json!({"type": "Webhook", "name": name, "webhook": webhook}))
}

fn written(folder: &Path, name: &str, authorizers: &Value) -> Result<String> {
    let config = json!({"apiVersion": "apiserver.config.k8s.io/v1", "kind": "AuthorizationConfiguration",
        "authorizers": authorizers});
    let path = folder.join(name);
    std::fs::write(&path, config.to_string())?;
    Ok(path.display().to_string())
}

/// The strict webhook first, for secrets alone; then nodes and roles; then one that may be away.
fn chain(folder: &Path, strict: &Webhook, last: &Webhook) -> Result<String> {
    let secrets =
        "has(request.resourceAttributes) && request.resourceAttributes.resource == 'secrets'";
    let of_secrets = json!({"failurePolicy": "Deny", "matchConditionSubjectAccessReviewVersion": "v1",
        "matchConditions": [{"expression": secrets}]});
    let open = json!({"failurePolicy": "NoOpinion"});
    let authorizers = json!([
        entry(folder, "strict", strict, &of_secrets)?,
        {"type": "Node", "name": "node"},
        {"type": "RBAC", "name": "rbac"},
        entry(folder, "last", last, &open)?,
    ]);
    written(folder, "authorization.yaml", &authorizers)
}

async fn get_as(server: &Endpoint, user: &str, path: &str) -> Result<Answer> {
    let ask = Ask {
        method: Method::GET,
        path: path.to_owned(),
        headers: vec![("impersonate-user".to_owned(), user.to_owned())],
        body: Bytes::new(),
    };
    Client::open(server).await?.raw(ask).await
}

async fn expect(server: &Endpoint, user: &str, path: &str, code: u16, words: &str) -> Result<()> {
    let answer = get_as(server, user, path).await?;
    let text = String::from_utf8_lossy(&answer.body);
    ensure!(
        answer.status == code && text.contains(words),
        "{user} {path}: {} {text:.300}",
        answer.status
    );
    Ok(())
}

/// Gives both users a role by which they read secrets.
async fn bind(server: &Endpoint) -> Result<()> {
    let binding = json!({"metadata": {"name": "readers"},
        "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": "admin"},
        "subjects": [{"kind": "User", "name": "jane"}, {"kind": "User", "name": "joe"}]});
    let masters = Client::open(server).await?;
    masters
        .post(BINDINGS, &binding)
        .await?
        .expect(201)
        .map(drop)
}

/// What the order decides, at any server whose root has the chain.
async fn decides_in_order(root: &Endpoint, strict: Webhook, last: Webhook) -> Result<()> {
    bind(root).await?;
    // The first webhook denies what a role would allow, and leaves to the role what it does not deny.
    expect(root, "jane", SECRETS, 403, "not jane").await?;
    expect(root, "joe", SECRETS, 200, "").await?;
    // It is asked about secrets alone.
    let asked = strict.server.received().len();
    ensure!(asked >= 2, "{asked}");
    expect(root, "jane", CONFIG_MAPS, 200, "").await?;
    ensure!(
        strict.server.received().len() == asked,
        "it is asked about config maps"
    );
    // The last one decides on what roles leave open.
    expect(root, "ann", CONFIG_MAPS, 200, "").await?;
    expect(root, "eve", CONFIG_MAPS, 403, "not nobody").await?;
    ensure!(last.server.received().len() >= 2, "it is never asked");
    // Each fails as its policy says.
    for webhook in [&strict, &last] {
        webhook.answers.store(false, Ordering::Relaxed);
    }
    expect(root, "joe", SECRETS, 403, "gave no answer").await?;
    expect(root, "joe", CONFIG_MAPS, 200, "").await?;
    expect(root, "ann", CONFIG_MAPS, 403, "cannot list resource").await?;
    // Masters are not decided on.
    let masters = Client::open(root).await?;
    masters.get(SECRETS).await?.expect(200).map(drop)
}

#[tokio::test]
async fn authorizers_of_the_root_decide_in_the_order_of_the_file() -> Result<()> {
    let folder = tempfile::tempdir()?;
    let (strict, last) = (
        webhook("nobody", "jane").await?,
        webhook("ann", "nobody").await?,
    );
    let file = chain(folder.path(), &strict, &last)?;
    let options = ["--authorization-config", &file];
    let server = Up::start(&folder.path().join("data"), &options).await?;
    let root = server.root()?;
    let a = create_plane(&root, "a").await?;
    bind(&a).await?;
    // In another plane roles decide, and nobody is asked.
    expect(&a, "jane", SECRETS, 200, "").await?;
    expect(&a, "ann", CONFIG_MAPS, 403, "cannot list resource").await?;
    ensure!(strict.server.received().is_empty() && last.server.received().is_empty());
    decides_in_order(&root, strict, last).await
}

#[tokio::test]
async fn the_drop_in_reads_the_same_file() -> Result<()> {
    let folder = tempfile::tempdir()?;
    let (strict, last) = (
        webhook("nobody", "jane").await?,
        webhook("ann", "nobody").await?,
    );
    let file = chain(folder.path(), &strict, &last)?;
    let tokens = folder.path().join("tokens.csv");
    std::fs::write(&tokens, "the-token,admin,1,system:masters\n")?;
    let flags = vec![
        format!("--authorization-config={file}"),
        format!("--token-auth-file={}", tokens.display()),
    ];
    let drop_in = DropIn::start(tempfile::tempdir()?, flags, None).await?;
    let root = drop_in.endpoint(&json!({"token": "the-token"}))?;
    decides_in_order(&root, strict, last).await
}

/// Waits until a user gets this status for config maps.
async fn until(server: &Endpoint, user: &str, status: u16) -> Result<()> {
    for _ in 0..300 {
        if get_as(server, user, CONFIG_MAPS).await?.status == status {
            return Ok(());
        }
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
    bail!("{user} does not get {status} within half a minute")
}

/// Waits until the log has these words, and has them once.
async fn once(log: impl Fn() -> Result<String>, words: &str) -> Result<()> {
    let mut said = String::new();
    for _ in 0..300 {
        said = log()?;
        if said.contains(words) {
            break;
        }
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
    ensure!(said.matches(words).count() == 1, "{words}: {said}");
    Ok(())
}

/// The file changes: webhooks come and go, and nothing changes while it is wrong or away, at any server
/// whose root has the file with roles alone. `log` returns the server's log.
async fn follows_the_file(
    root: &Endpoint,
    folder: &Path,
    log: impl Fn() -> Result<String>,
) -> Result<()> {
    let allowing = webhook("ann", "nobody").await?;
    let roles = json!({"type": "RBAC", "name": "rbac"});
    let hook = entry(
        folder,
        "hook",
        &allowing,
        &json!({"failurePolicy": "NoOpinion"}),
    )?;
    until(root, "ann", 403).await?;
    written(folder, "authorization.yaml", &json!([roles, hook]))?;
    until(root, "ann", 200).await?;
    for (wrong, words) in [
        (json!([hook]), "missing required types: [RBAC]"),
        (
            json!([roles, {"type": "Node", "name": "node"}]),
            "authorizer type Node is not allowed if it was not enabled at initial server startup",
        ),
        (
            json!([{"type": "RBAC", "name": "roles"}]),
            "expected name rbac",
        ),
    ] {
        written(folder, "authorization.yaml", &wrong)?;
        once(&log, words).await?;
        expect(root, "ann", CONFIG_MAPS, 200, "").await?;
    }
    std::fs::remove_file(folder.join("authorization.yaml"))?;
    once(&log, "No such file or directory").await?;
    expect(root, "ann", CONFIG_MAPS, 200, "").await?;
    written(folder, "authorization.yaml", &json!([roles]))?;
    until(root, "ann", 403).await?;
    let metrics = Client::open(root).await?;
    let metrics = metrics.raw(ask(Method::GET, "/metrics", &Value::Null));
    let metrics = String::from_utf8(metrics.await?.body.to_vec())?;
    let has = |name: &str, end: &str| {
        let mut lines = metrics.lines();
        lines.any(|line| line.starts_with(name) && line.ends_with(end))
    };
    let reloads = "apiserver_authorization_config_controller_automatic_reloads_total";
    ensure!(
        has(reloads, "status=\"failure\"} 4") && has(reloads, "status=\"success\"} 2"),
        "{metrics}"
    );
    ensure!(has(
        "apiserver_authorization_config_controller_last_config_info",
        "} 1"
    ));
    // What the webhook has decided stays counted.
    let decided = "apiserver_authorization_decisions_total{decision=\"allowed\",name=\"hook\"";
    ensure!(has(decided, ""), "{metrics}");
    Ok(())
}

#[tokio::test]
async fn a_changed_file_is_read_again_by_the_server() -> Result<()> {
    let folder = tempfile::tempdir()?;
    let roles = json!([{"type": "RBAC", "name": "rbac"}]);
    let file = written(folder.path(), "authorization.yaml", &roles)?;
    let options = ["--authorization-config", &file, "--replicas=2"];
    let server = Up::start(&folder.path().join("data"), &options).await?;
    follows_the_file(&server.root()?, folder.path(), || server.log()).await
}

#[tokio::test]
async fn a_changed_file_is_read_again_by_the_drop_in() -> Result<()> {
    let folder = tempfile::tempdir()?;
    let roles = json!([{"type": "RBAC", "name": "rbac"}]);
    let file = written(folder.path(), "authorization.yaml", &roles)?;
    let tokens = folder.path().join("tokens.csv");
    std::fs::write(&tokens, "the-token,admin,1,system:masters\n")?;
    let flags = vec![
        format!("--authorization-config={file}"),
        format!("--token-auth-file={}", tokens.display()),
    ];
    let drop_in = DropIn::start(tempfile::tempdir()?, flags, None).await?;
    let root = drop_in.endpoint(&json!({"token": "the-token"}))?;
    let log = drop_in.folder.path().join("server.log");
    follows_the_file(&root, folder.path(), || Ok(std::fs::read_to_string(&log)?)).await
}

#[tokio::test]
async fn a_wrong_file_is_refused_at_the_start() -> Result<()> {
    let folder = tempfile::tempdir()?;
    let wrong = [
        (json!([]), "at least one authorization mode must be defined"),
        (
            json!([{"type": "RBAC", "name": "roles"}]),
            "expected name rbac",
        ),
        (
            json!([{"type": "Webhook", "name": "w", "webhook": {}}]),
            "authorizers[0].timeout: Required value",
        ),
    ];
    for (number, (authorizers, words)) in wrong.iter().enumerate() {
        let file = written(folder.path(), &format!("{number}.yaml"), authorizers)?;
        let data = folder.path().join(format!("data-{number}"));
        let said = refused(&data, &["--authorization-config", &file]).await?;
        let text = String::from_utf8_lossy(&said.stderr).into_owned();
        ensure!(
            !said.status.success() && text.contains(words) && text.contains(&file),
            "{text}"
        );
    }
    let good = written(
        folder.path(),
        "good.yaml",
        &json!([{"type": "RBAC", "name": "rbac"}]),
    )?;
    let both = [
        "--authorization-config",
        &good,
        "--authorization-webhook-version=v1",
    ];
    let said = refused(&folder.path().join("data"), &both).await?;
    let text = String::from_utf8_lossy(&said.stderr).into_owned();
    ensure!(text.contains("cannot be used with"), "{text}");
    Ok(())
}
