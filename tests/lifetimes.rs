//! Flags that say how long things last: Events, tokens of service accounts, and at the drop-in pods on
//! nodes that are not ready.

use std::time::Duration;

use anyhow::{Context, Result, ensure};
use base64::Engine as _;
use base64::prelude::BASE64_URL_SAFE_NO_PAD;
use http::Method;
use polyplane_tests::client::Client;
use polyplane_tests::drop_in::DropIn;
use polyplane_tests::process::Up;
use polyplane_tests::programs::{ask, create_plane};
use serde_json::{Value, json};

/// Flags that each server has.
const FLAGS: [&str; 3] = [
    "--event-ttl=2s",
    "--service-account-max-token-expiration=2h",
    "--service-account-extend-token-expiration=false",
];
const EVENTS: &str = "/api/v1/namespaces/default/events";
const PODS: &str = "/api/v1/namespaces/default/pods";
const ACCOUNTS: &str = "/api/v1/namespaces/default/serviceaccounts";

fn pod(name: &str) -> Value {
    json!({"metadata": {"name": name}, "spec": {"serviceAccountName": "robot", "containers": [
        {"name": "one", "image": "one"}]}})
}

/// Requests a token of a pod, and returns the answer's object and its warnings.
async fn token(client: &Client, seconds: i64, pod: &str) -> Result<(Value, String)> {
    let bound = json!({"kind": "Pod", "apiVersion": "v1", "name": pod});
    let body = json!({"apiVersion": "authentication.k8s.io/v1", "kind": "TokenRequest",
        "spec": {"expirationSeconds": seconds, "boundObjectRef": bound}});
    let path = format!("{ACCOUNTS}/robot/token");
    let answer = client.raw(ask(Method::POST, &path, &body)).await?;
    let text = String::from_utf8_lossy(&answer.body).into_owned();
    ensure!(answer.status == 201, "{} {text}", answer.status);
    let warning = answer.headers.get("warning");
    let warning = warning.map_or("", |value| value.to_str().unwrap_or_default());
    Ok((serde_json::from_str(&text)?, warning.to_owned()))
}

/// Returns for how many seconds the token itself is valid.
fn lifetime(request: &Value) -> Result<i64> {
    let token = request["status"]["token"].as_str().context("no token")?;
    let claims = token.split('.').nth(1).context("no claims")?;
    let claims: Value = serde_json::from_slice(&BASE64_URL_SAFE_NO_PAD.decode(claims)?)?;
    let time = |name: &str| claims[name].as_i64().context("no time");
    Ok(time("exp")? - time("iat")?)
}

/// Creates an Event, an account, and a pod of it, which it returns.
async fn make(client: &Client) -> Result<Value> {
    let event = json!({"metadata": {"name": "short"}, "reason": "Tested",
        "involvedObject": {"kind": "Pod", "namespace": "default", "name": "one"}});
    client.post(EVENTS, &event).await?.expect(201)?;
    let robot = json!({"metadata": {"name": "robot"}});
    client.post(ACCOUNTS, &robot).await?.expect(201)?;
    client.post(PODS, &pod("one")).await?.expect(201)
}

/// Checks Events and tokens of a server with these [`FLAGS`].
async fn check(client: &Client) -> Result<()> {
    let (short, warning) = token(client, 3600, "one").await?;
    ensure!(lifetime(&short)? == 3600 && warning.is_empty(), "{warning}");
    let (long, warning) = token(client, 100_000, "one").await?;
    let words = "requested expiration of 100000 seconds shortened to 7200 seconds";
    ensure!(
        lifetime(&long)? == 7200 && warning.contains(words),
        "{warning}"
    );
    ensure!(long["spec"]["expirationSeconds"] == 7200, "{long}");
    // The one that kubelets ask for is not extended to a year.
    ensure!(lifetime(&token(client, 3607, "one").await?.0)? == 3607);
    for _ in 0..300 {
        if client.get(&format!("{EVENTS}/short")).await?.status == 404 {
            return Ok(());
        }
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
    anyhow::bail!("the Event stays")
}

#[tokio::test]
async fn what_flags_of_the_drop_in_say_lasts_as_long_as_they_say() -> Result<()> {
    let tolerations = [
        "--default-not-ready-toleration-seconds=7",
        "--default-unreachable-toleration-seconds=8",
    ];
    let flags = FLAGS.into_iter().chain(tolerations).map(str::to_owned);
    let (_drop_in, admin) = DropIn::start_for_admin(flags.collect()).await?;
    let client = Client::open(&admin).await?;
    let made = make(&client).await?;
    let tolerations = made["spec"]["tolerations"].as_array();
    let seconds = tolerations.into_iter().flatten();
    let seconds: Vec<_> = seconds.map(|one| &one["tolerationSeconds"]).collect();
    ensure!(seconds == [7, 8], "{made}");
    check(&client).await
}

/// Of the two planes at least one may belong to the replica to which the client is not connected.
#[tokio::test]
async fn what_flags_of_the_server_say_holds_in_all_planes() -> Result<()> {
    let folder = tempfile::tempdir()?;
    let options = [&FLAGS[..], &["--replicas=2"]].concat();
    let server = Up::start(&folder.path().join("data"), &options).await?;
    let root = server.root()?;
    for name in ["a", "b"] {
        create_plane(&root, name).await?;
        let plane = root.at_base_path(&format!("/clusters/{name}"));
        let client = Client::open(&plane).await?;
        make(&client).await?;
        check(&client).await?;
    }
    Ok(())
}

/// Without the flags the same things last as long as upstream's defaults say.
#[tokio::test]
async fn without_flags_things_last_as_upstream_says() -> Result<()> {
    let (_drop_in, admin) = DropIn::start_for_admin(Vec::new()).await?;
    let client = Client::open(&admin).await?;
    let made = make(&client).await?;
    ensure!(
        made["spec"]["tolerations"][1]["tolerationSeconds"] == 300,
        "{made}"
    );
    let (long, warning) = token(&client, 100_000, "one").await?;
    ensure!(
        lifetime(&long)? == 100_000 && warning.is_empty(),
        "{warning}"
    );
    ensure!(lifetime(&token(&client, 3607, "one").await?.0)? == 365 * 24 * 3600);
    Ok(())
}
