//! The forms in which objects are read beside their JSON: heads alone, tables, and watches by their paths. Requests go
//! to three replicas in turn, so that most are forwarded.

use anyhow::{Context, Result, ensure};
use bytes::Bytes;
use http::Method;
use polyplane_tests::client::Client;
use polyplane_tests::connection::{Answer, Ask};
use polyplane_tests::process::Up;
use polyplane_tests::programs::create_plane;
use serde_json::{Value, json};

const DEFINITIONS: &str = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions";
const WIDGETS: &str = "/apis/example.com/v1/namespaces/default/widgets";
const MAPS: &str = "/api/v1/namespaces/default/configmaps";
/// Each replica gets a request of each kind.
const ROUNDS: usize = 3;

struct Site {
    plane: Client,
    _server: Up,
    _folder: tempfile::TempDir,
}

impl Site {
    /// Starts a plane with an object of a custom kind.
    async fn start() -> Result<Self> {
        let folder = tempfile::tempdir()?;
        let server = Up::start(&folder.path().join("data"), &["--replicas=3"]).await?;
        let endpoint = create_plane(&server.root()?, "forms").await?;
        let plane = Client::open(&endpoint).await?;
        let definition = json!({"apiVersion": "apiextensions.k8s.io/v1",
            "kind": "CustomResourceDefinition", "metadata": {"name": "widgets.example.com"},
            "spec": {"group": "example.com", "scope": "Namespaced",
                "names": {"plural": "widgets", "kind": "Widget"},
                "versions": [{"name": "v1", "served": true, "storage": true,
                    "subresources": {"status": {}},
                    "schema": {"openAPIV3Schema": {"type": "object"}}}]}});
        plane.post(DEFINITIONS, &definition).await?.expect(201)?;
        let widget = json!({"apiVersion": "example.com/v1", "kind": "Widget",
            "metadata": {"name": "a"}});
        plane.post(WIDGETS, &widget).await?.expect(201)?;
        Ok(Self {
            plane,
            _server: server,
            _folder: folder,
        })
    }

    async fn read(&self, method: Method, path: &str, accept: &str) -> Result<Answer> {
        let ask = Ask {
            method,
            path: path.to_owned(),
            headers: vec![("accept".to_owned(), accept.to_owned())],
            body: Bytes::new(),
        };
        self.plane.raw(ask).await
    }

    async fn columns(&self, path: &str) -> Result<Vec<Value>> {
        let accept = "application/json;as=Table;v=v1;g=meta.k8s.io";
        let answer = self.read(Method::GET, path, accept).await?;
        let table: Value = serde_json::from_slice(&answer.body)?;
        let columns = table["columnDefinitions"].as_array();
        columns
            .cloned()
            .with_context(|| format!("no table at {path}: {table}"))
    }
}

/// As upstream, whose server of custom kinds does not look at the method, and whose routes of built-in kinds have
/// none for it.
#[tokio::test]
async fn head_of_custom_kinds_is_answered_as_get_and_of_built_in_ones_is_refused() -> Result<()> {
    const JSON: &str = "application/json";
    let site = Site::start().await?;
    for _ in 0..ROUNDS {
        for (path, status) in [
            ("/a", 200),
            ("/a/status", 200),
            ("", 200),
            ("?watch=1", 200),
            ("/none", 404),
            ("/a/scale", 404),
        ] {
            let path = format!("{WIDGETS}{path}");
            // This waits for the end of the answer, which of a watch is far away.
            let head = site.read(Method::HEAD, &path, JSON).await?;
            ensure!(head.status == status, "{path}: {}", head.status);
            ensure!(head.body.is_empty(), "{path} has a body");
            ensure!(head.headers["content-type"] == JSON, "{path}");
        }
        let object = format!("{WIDGETS}/a");
        let (head, get) = (
            site.read(Method::HEAD, &object, JSON).await?,
            site.read(Method::GET, &object, JSON).await?,
        );
        let length = get.body.len().to_string();
        ensure!(head.headers["content-length"] == *length, "{head:?}");
        for path in [MAPS, "/api/v1/namespaces/default"] {
            let refused = site.read(Method::HEAD, path, JSON).await?;
            ensure!(refused.status == 405, "{path}: {}", refused.status);
        }
    }
    Ok(())
}

/// Other columns of built-in kinds have no description, and those of custom kinds the one of their definition.
#[tokio::test]
async fn columns_of_names_and_ages_have_upstreams_descriptions() -> Result<()> {
    const METADATA: &str = "io.k8s.apimachinery.pkg.apis.meta.v1.ObjectMeta";
    let site = Site::start().await?;
    let document = site.plane.get("/openapi/v3/api/v1").await?.expect(200)?;
    let fields = &document["components"]["schemas"][METADATA]["properties"];
    let text = |field: &str| fields[field]["description"].clone();
    let (name, age) = (text("name"), text("creationTimestamp"));
    ensure!(name.is_string() && age.is_string(), "{fields}");
    for path in [WIDGETS, MAPS, DEFINITIONS] {
        let columns = site.columns(path).await?;
        let described = |headings: &[&str], text: &Value| {
            columns.iter().any(|column| {
                let heading = column["name"].as_str().unwrap_or_default();
                headings.contains(&heading) && column["description"] == *text
            })
        };
        ensure!(described(&["Name"], &name), "{path}: {columns:?}");
        ensure!(
            described(&["Age", "Created At"], &age),
            "{path}: {columns:?}"
        );
    }
    Ok(())
}

/// As upstream, whose server of custom kinds takes the verb from the path and does not look at the method.
#[tokio::test]
async fn a_path_of_a_custom_kind_that_names_its_verb_is_watched_with_every_method() -> Result<()> {
    const JSON: &str = "application/json";
    let site = Site::start().await?;
    let path = "/apis/example.com/v1/watch/namespaces/default/widgets?timeoutSeconds=1";
    for method in [Method::GET, Method::POST, Method::PUT, Method::DELETE] {
        let watched = site.read(method.clone(), path, JSON).await?;
        ensure!(watched.status == 200, "{method}: {}", watched.status);
        let events = String::from_utf8_lossy(&watched.body);
        ensure!(
            events.starts_with(r#"{"type":"ADDED""#),
            "{method}: {events}"
        );
        let built_in = "/api/v1/watch/namespaces/default/configmaps?timeoutSeconds=1";
        let status = site.read(method.clone(), built_in, JSON).await?.status;
        let expected = if method == Method::GET { 200 } else { 405 };
        ensure!(status == expected, "{method}: {status}");
    }
    site.plane
        .get(&format!("{WIDGETS}/a"))
        .await?
        .expect(200)
        .map(drop)
}
