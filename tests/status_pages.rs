//! `/statusz`, `/flagz` and `/metrics/slis`: what a process says of itself, in each form that a client may
//! ask for, as the reference says it. `RECORD=1` records the reference.

use anyhow::{Result, ensure};
use http::Method;
use polyplane_tests::client::Client;
use polyplane_tests::connection::{Answer, Ask};
use polyplane_tests::process::Up;
use polyplane_tests::programs::create_plane;
use polyplane_tests::recorded::{PlainServer, compare, records};
use serde_json::{Map, Value, json};

/// The flag whose value is compared; the others differ between any two servers.
const FLAG: &str = "v";

async fn ask(client: &Client, path: &str, accept: &str) -> Result<Answer> {
    let header = |name: &str, value: &str| (name.to_owned(), value.to_owned());
    let mut headers = vec![header("user-agent", "pages-test/1")];
    if !accept.is_empty() {
        headers.push(header("accept", accept));
    }
    let ask = Ask {
        method: Method::GET,
        path: path.to_owned(),
        headers,
        body: Default::default(),
    };
    client.raw(ask).await
}

/// Returns what is compared of an answer.
fn shown(answer: &Answer) -> Value {
    let text = |name: &str| {
        let value = answer.headers.get(name);
        value.map(|value| String::from_utf8_lossy(value.as_bytes()).into_owned())
    };
    let body = String::from_utf8_lossy(&answer.body).into_owned();
    let body = match serde_json::from_str::<Value>(&body) {
        Ok(mut object) => {
            if object["startTime"].is_string() {
                object["startTime"] = "<time>".into();
                object["uptimeSeconds"] = (object["uptimeSeconds"].as_i64() < Some(600)).into();
                object["goVersion"] = "<version>".into();
            }
            if let Some(flags) = object["flags"].as_object_mut() {
                flags.retain(|name, _| name == FLAG);
            }
            object
        }
        Err(_) => lines(&body),
    };
    json!({"code": answer.status.as_u16(), "type": text("content-type"), "warning": text("warning"),
        "sniffing": text("x-content-type-options"), "body": body})
}

/// Returns the lines of a text. What stands between a name and its value is another sign each time.
fn lines(body: &str) -> Value {
    const NAMES: [&str; 6] = [
        "Started",
        "Up",
        "Go version",
        "Binary version",
        "Emulation version",
        "Paths",
    ];
    let mut lines = Vec::new();
    for line in body
        .lines()
        .take_while(|line| !line.starts_with("admission-control"))
    {
        let named = NAMES.into_iter().find(|name| line.starts_with(name));
        lines.push(match named {
            Some(name @ ("Binary version" | "Emulation version" | "Paths")) => {
                let value = line[name.len()..].trim_start_matches([':', '=', ' ']);
                format!("{name}: {value}")
            }
            Some(name) => name.to_owned(),
            // Flags follow.
            None if line.contains('=') => break,
            None => line.to_owned(),
        });
    }
    json!(lines)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn pages_are_those_of_the_reference() -> Result<()> {
    let site = PlainServer::start(vec![format!("--{FLAG}=2")]).await?;
    let mut steps = Map::new();
    for (path, kind) in [("/statusz", "Statusz"), ("/flagz", "Flagz")] {
        let object = |form: &str, version: &str| {
            format!("application/{form};v={version};g=config.k8s.io;as={kind}")
        };
        for accept in [
            String::new(),
            "*/*".to_owned(),
            "text/plain".to_owned(),
            "application/json".to_owned(),
            "application/xml".to_owned(),
            "application/json;v=v1beta1;g=config.k8s.io".to_owned(),
            object("json", "v1beta1"),
            object("json", "v1alpha1"),
            object("json", "v1"),
            format!("{},*/*", object("json", "foo")),
            object("json", "v1beta1").replace(kind, "Pod"),
        ] {
            let answer = ask(&site.client, path, &accept).await?;
            steps.insert(format!("{path} {accept}"), shown(&answer));
        }
        let yaml = ask(&site.client, path, &object("yaml", "v1beta1")).await?;
        let body = String::from_utf8_lossy(&yaml.body);
        ensure!(
            yaml.status == 200 && body.contains(&format!("kind: {kind}\n")),
            "{body}"
        );
    }
    compare(records(), "status-pages", &steps)
}

/// Health is counted by check and endpoint, in each plane. The pages are about the process, so no plane but
/// the root has them, and who is no administrator may not see the flags.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_replica_shows_itself_to_its_operator_alone() -> Result<()> {
    let folder = tempfile::tempdir()?;
    let server = Up::start(&folder.path().join("data"), &["--sleep-after=77"]).await?;
    let root = Client::open(&server.root()?).await?;
    let plane = Client::open(&create_plane(&server.root()?, "team").await?).await?;
    ensure!(root.get("/readyz").await?.status == 200);
    for (path, status) in [
        ("/readyz/poststarthook/rbac/bootstrap-roles", 200),
        ("/livez/poststarthook/crd-informer-synced", 200),
        ("/healthz/autoregister-completion", 200),
        ("/readyz/etcd-readiness", 200),
        ("/readyz/informer-sync", 200),
        ("/healthz/etcd-readiness", 404),
        ("/readyz/poststarthook/start-kube-aggregator-informers", 404),
    ] {
        for client in [&root, &plane] {
            let told = client.get(path).await?;
            ensure!(told.status == status, "{path}: {told:?}");
        }
    }
    let slis = ask(&root, "/metrics/slis", "").await?;
    let slis = String::from_utf8(slis.body.to_vec())?;
    let passes = "kubernetes_healthcheck{name=\"ping\",type=\"readyz\"} 1\n";
    ensure!(slis.contains(passes), "{slis}");
    let flags = ask(&root, "/flagz", "text/plain").await?;
    let flags = String::from_utf8(flags.body.to_vec())?;
    ensure!(
        flags.contains("\nsleep-after=77\n") && flags.contains("\nstore=fjall\n"),
        "{flags}"
    );
    for path in ["/statusz", "/flagz", "/metrics/slis", "/metrics"] {
        let of_plane = ask(&plane, path, "").await?;
        let told = String::from_utf8(of_plane.body.to_vec())?;
        match path {
            // What a plane tells of itself has nothing of its replica.
            "/metrics" => ensure!(
                of_plane.status == 200 && !told.contains("process_"),
                "{told}"
            ),
            "/metrics/slis" => ensure!(of_plane.status == 200 && told.contains(passes), "{told}"),
            _ => ensure!(of_plane.status == 404, "{path}: {told}"),
        }
        let mut asked = polyplane_tests::programs::ask(Method::GET, path, &Value::Null);
        asked.headers = vec![("impersonate-user".to_owned(), "jane".to_owned())];
        ensure!(root.raw(asked).await?.status == 403, "{path}");
    }
    Ok(())
}
