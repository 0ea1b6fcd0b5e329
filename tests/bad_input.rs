//! Bodies, headers and connections that no honest client sends: each gets upstream's Status, none
//! uses more memory than its limit, and the server continues to serve others.

#[path = "bad_input/custom_kinds.rs"]
mod custom_kinds;

use std::sync::Arc;

use anyhow::{Context, Result, ensure};
use bytes::Bytes;
use http::Method;
use polyplane_tests::client::{Client, Reply};
use polyplane_tests::connection::{Ask, connect};
use polyplane_tests::kubeconfig::{Caller, Endpoint, Protocol};
use polyplane_tests::process::Up;
use polyplane_tests::programs::create_plane;
use serde_json::json;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::task::JoinSet;

const CONFIG_MAPS: &str = "/api/v1/namespaces/default/configmaps";
const JSON: &str = "application/json";
const YAML: &str = "application/yaml";
/// Memory that a storm of bad input may add to the server, at its peak or lastingly, in bytes.
const MEMORY_BYTES_MAX: u64 = 400 << 20;

struct Target {
    server: Up,
    endpoint: Endpoint,
    client: Client,
    _folder: tempfile::TempDir,
}

async fn target() -> Result<Target> {
    let folder = tempfile::tempdir()?;
    let server = Up::start(&folder.path().join("data"), &[]).await?;
    let endpoint = create_plane(&server.root()?, "a").await?;
    let client = Client::open(&endpoint).await?;
    Ok(Target {
        server,
        endpoint,
        client,
        _folder: folder,
    })
}

impl Target {
    async fn post(&self, kind: &str, body: impl Into<Bytes>) -> Result<Reply> {
        self.client
            .typed(Method::POST, CONFIG_MAPS, kind, body)
            .await
    }

    /// Checks that the server is alive, logged no error, is within its memory, and contains no new
    /// object.
    async fn is_well(&self) -> Result<()> {
        let fresh = Client::open(&self.endpoint).await?;
        let list = fresh.get(CONFIG_MAPS).await?.expect(200)?;
        ensure!(
            list["items"]
                .as_array()
                .is_some_and(|items| items.len() == 1),
            "something was written: {list}"
        );
        fresh
            .post(CONFIG_MAPS, &json!({"metadata": {"name": "well"}}))
            .await?
            .expect(201)?;
        fresh
            .delete(&format!("{CONFIG_MAPS}/well"))
            .await?
            .expect(200)?;
        let log = self.server.log()?;
        ensure!(
            !log.contains("panicked") && !log.contains("overflow"),
            "{log}"
        );
        let memory = self.server.memory_bytes()?;
        ensure!(memory < MEMORY_BYTES_MAX, "{} MiB in use", memory >> 20);
        Ok(())
    }
}

#[tokio::test]
async fn broken_json_and_yaml_get_a_status() -> Result<()> {
    let target = target().await?;
    let whole = json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "x", "labels": {"a": "b"}}, "data": {"k": "\u{e9}"}}).to_string();
    let whole = whole.as_bytes();
    // Truncated at every byte, even within a character.
    for end in 0..whole.len() {
        let reply = target.post(JSON, whole[..end].to_vec()).await?;
        ensure!(
            reply.status == 400 || reply.status == 422,
            "cut at {end}: {} {}",
            reply.status,
            reply.body
        );
        ensure!(
            reply.body["kind"] == "Status",
            "cut at {end}: {}",
            reply.body
        );
    }
    for body in [
        "null",
        "[]",
        "1",
        "\"text\"",
        "{}{}",
        "{\"a\":1}x",
        "{'a':1}",
        "\u{feff}{}",
        "{\"metadata\":NaN}",
        "\u{0}",
    ] {
        let reply = target.post(JSON, body.as_bytes().to_vec()).await?;
        ensure!(
            reply.status.is_client_error() && reply.body["kind"] == "Status",
            "{body}: {} {}",
            reply.status,
            reply.body
        );
    }
    for body in [
        "a: [",
        "a: *b",
        "\t- x",
        "a: &a [*a]",
        "? ?",
        "%YAML 9.9\n---\n",
        "a: !!binary x",
        "--- a\n--- b",
        "a: b\na: c: d",
    ] {
        let reply = target.post(YAML, body.as_bytes().to_vec()).await?;
        ensure!(
            reply.status.is_client_error() && reply.body["kind"] == "Status",
            "{body}: {} {}",
            reply.status,
            reply.body
        );
    }
    target.is_well().await
}

#[tokio::test]
async fn deep_huge_and_exploding_bodies_are_bounded() -> Result<()> {
    let target = target().await?;
    let before = target.server.memory_bytes()?;
    let object = |inner: &str| format!(r#"{{"metadata":{{"name":"x"}},"data":{{}},"x":{inner}}}"#);
    for deep in [10_100_usize, 100_000, 1_000_000] {
        let reply = target
            .post(
                JSON,
                object(&format!("{}{}", "[".repeat(deep), "]".repeat(deep))),
            )
            .await?;
        ensure!(
            reply.status == 400,
            "{deep} deep: {} {}",
            reply.status,
            reply.body
        );
        let reply = target
            .post(JSON, object(&"{\"a\":".repeat(deep.min(500_000))))
            .await?;
        ensure!(
            reply.status == 400,
            "{deep} deep: {} {}",
            reply.status,
            reply.body
        );
        let reply = target.post(YAML, "[".repeat(deep)).await?;
        ensure!(
            reply.status == 400,
            "{deep} deep YAML: {} {}",
            reply.status,
            reply.body
        );
    }
    // Larger than a request may be: once with a `Content-Length`, once chunked.
    let huge = format!(
        r#"{{"metadata":{{"name":"x"}},"data":{{"k":"{}"}}}}"#,
        "x".repeat(4 << 20)
    );
    target
        .post(JSON, huge.clone())
        .await?
        .refuses(413, "Request entity too large: limit is 3145728")?;
    let mut many = JoinSet::new();
    for _ in 0..32 {
        let client = Client::open(&target.endpoint).await?;
        let body = Bytes::from(huge.clone());
        many.spawn(async move { client.typed(Method::POST, CONFIG_MAPS, JSON, body).await });
    }
    // If the server closes the connection while a body that is too large arrives, that counts as a
    // refusal as well.
    for reply in many.join_all().await.into_iter().flatten() {
        ensure!(reply.status == 413, "{} {}", reply.status, reply.body);
    }
    // Small enough for a request, but too large for an object.
    let large = format!(
        r#"{{"metadata":{{"name":"x"}},"data":{{"k":"{}"}}}}"#,
        "x".repeat(2 << 20)
    );
    target.post(JSON, large).await?.refuses(422, "Too long")?;
    // Aliases that would expand to a thousand million characters.
    let mut bomb = String::from("a0: &a0 [x,x,x,x,x,x,x,x,x,x]\n");
    for level in 1..10 {
        let list = vec![format!("*a{}", level - 1); 10].join(",");
        bomb.push_str(&format!("a{level}: &a{level} [{list}]\n"));
    }
    let mut many = JoinSet::new();
    for _ in 0..16 {
        let client = Client::open(&target.endpoint).await?;
        let body = bomb.clone();
        many.spawn(async move { client.typed(Method::POST, CONFIG_MAPS, YAML, body).await });
    }
    for reply in many.join_all().await {
        let reply = reply?;
        ensure!(
            reply.status == 400 && reply.body["kind"] == "Status",
            "{} {}",
            reply.status,
            reply.body
        );
    }
    // Very many unknown fields: the answer must stay small.
    let fields: Vec<String> = (0..100_000).map(|at| format!("\"f{at}\":{at}")).collect();
    let body = format!(r#"{{"metadata":{{"name":"x"}},{}}}"#, fields.join(","));
    let path = format!("{CONFIG_MAPS}?fieldValidation=Strict&dryRun=All");
    let reply = target.client.typed(Method::POST, &path, JSON, body).await?;
    ensure!(
        reply.status == 400 && reply.body.to_string().len() < 64 << 10,
        "{} {} bytes",
        reply.status,
        reply.body.to_string().len()
    );
    let after = target.server.memory_bytes()?;
    println!(
        "memory: {} MiB before, {} MiB after",
        before >> 20,
        after >> 20
    );
    target.is_well().await
}

#[tokio::test]
async fn wrong_types_and_duplicates_are_named() -> Result<()> {
    let target = target().await?;
    let strict = format!("{CONFIG_MAPS}?fieldValidation=Strict");
    let twice = r#"{"metadata":{"name":"x"},"data":{"a":"1","a":"2"}}"#;
    target
        .client
        .typed(Method::POST, &strict, JSON, twice)
        .await?
        .refuses(400, "duplicate field \"data.a\"")?;
    let twice = "metadata: {name: x}\ndata: {a: b}\ndata: {c: d}\n";
    target
        .client
        .typed(Method::POST, &strict, YAML, twice)
        .await?
        .refuses(400, "already set in map")?;
    for (body, words) in [
        (
            r#"{"metadata":{"name":1}}"#,
            "cannot unmarshal number into Go struct field ObjectMeta.metadata.name of type string",
        ),
        (
            r#"{"metadata":{"name":"x"},"data":[]}"#,
            "cannot unmarshal array into Go struct field ConfigMap.data of type map[string]string",
        ),
        (
            r#"{"metadata":{"name":"x"},"data":{"a":1}}"#,
            "cannot unmarshal number into Go struct field ConfigMap.data of type string",
        ),
        (
            r#"{"metadata":{"name":"x"},"immutable":"yes"}"#,
            "of type bool",
        ),
        (
            r#"{"metadata":"x"}"#,
            "cannot unmarshal string into Go struct field ConfigMap.metadata of type",
        ),
        (
            r#"{"metadata":{"name":"x","generation":1.5}}"#,
            "of type int64",
        ),
        (
            r#"{"metadata":{"name":"x","creationTimestamp":"yesterday"}}"#,
            "parsing time",
        ),
        (
            r#"{"kind":"Secret","apiVersion":"v1","metadata":{"name":"x"}}"#,
            "Secret",
        ),
        (
            r#"{"kind":"ConfigMap","apiVersion":"v2","metadata":{"name":"x"}}"#,
            "v2",
        ),
    ] {
        target
            .post(JSON, body)
            .await?
            .refuses(400, words)
            .with_context(|| body.to_owned())?;
    }
    for (body, words) in [
        (r#"{"metadata":{"name":"A b"}}"#, "lowercase RFC 1123"),
        (r#"{"metadata":{"name":".."}}"#, "Invalid value"),
        (r#"{"metadata":{}}"#, "name or generateName is required"),
        (
            r#"{"metadata":{"name":"x","labels":{"a b":"c"}}}"#,
            "metadata.labels",
        ),
        (
            r#"{"metadata":{"name":"x"},"data":{"a/b":"c"}}"#,
            "data[a/b]",
        ),
    ] {
        target
            .post(JSON, body)
            .await?
            .refuses(422, words)
            .with_context(|| body.to_owned())?;
    }
    target.is_well().await
}

#[tokio::test]
async fn wrong_content_types_selectors_and_options_are_refused() -> Result<()> {
    let target = target().await?;
    for kind in [
        "text/plain",
        "application/xml",
        "application/jsonx",
        "*/*",
        "nonsense",
        "application/vnd.kubernetes.other",
    ] {
        target
            .post(kind, r#"{"metadata":{"name":"x"}}"#)
            .await?
            .refuses(415, "unknown format")
            .with_context(|| kind.to_owned())?;
    }
    let patch = target
        .client
        .typed(Method::PATCH, &format!("{CONFIG_MAPS}/x"), JSON, "{}")
        .await?;
    patch.refuses(415, "Unsupported Media Type")?;
    for accept in [
        "text/html",
        "image/png",
        "application/json;as=Nonsense;g=x;v=y",
    ] {
        let headers = vec![("accept".to_owned(), accept.to_owned())];
        let ask = Ask {
            method: Method::GET,
            path: CONFIG_MAPS.to_owned(),
            headers,
            body: Bytes::new(),
        };
        let answer = target.client.raw(ask).await?;
        ensure!(
            answer.status == 406,
            "{accept}: {} {}",
            answer.status,
            String::from_utf8_lossy(&answer.body)
        );
    }
    for query in [
        "labelSelector=a%20b",
        "labelSelector=a%20in%20%28",
        "labelSelector=%3D%3D",
        "labelSelector=a%3D%3D%3Db",
        "fieldSelector=metadata.nothing%3Dx",
        "fieldSelector=a",
        "limit=x",
        "continue=nonsense",
        "continue=e30%3D%3D%3D",
        "resourceVersionMatch=Exact",
        "resourceVersion=1&resourceVersionMatch=Other",
        "watch=1&resourceVersionMatch=Exact",
        "watch=1&sendInitialEvents=true",
    ] {
        let reply = target.client.get(&format!("{CONFIG_MAPS}?{query}")).await?;
        ensure!(
            reply.status == 400 || reply.status == 422,
            "{query}: {} {}",
            reply.status,
            reply.body
        );
        ensure!(reply.body["kind"] == "Status", "{query}: {}", reply.body);
    }
    for query in [
        "dryRun=Some",
        "fieldValidation=Sometimes",
        "fieldManager=%00",
    ] {
        let reply = target
            .client
            .typed(
                Method::POST,
                &format!("{CONFIG_MAPS}?{query}"),
                JSON,
                r#"{"metadata":{"name":"x"}}"#,
            )
            .await?;
        ensure!(
            reply.status == 400 || reply.status == 422,
            "{query}: {} {}",
            reply.status,
            reply.body
        );
    }
    let long = format!("{CONFIG_MAPS}?labelSelector={}", "a,".repeat(20_000));
    let answer = target.client.get(&long).await?;
    ensure!(
        answer.status.is_client_error() || answer.status == 200,
        "{}",
        answer.status
    );
    target.is_well().await
}

/// Sends raw bytes on a connection of its own and returns the answer.
async fn converse(endpoint: &Endpoint, request: &[u8]) -> Result<String> {
    let mut stream = connect(endpoint, Caller::Admin, Protocol::Http1).await?;
    // A failure is ignored, because the server may refuse and close before it has read everything.
    drop(stream.write_all(request).await);
    let mut answer = Vec::new();
    drop(stream.read_to_end(&mut answer).await);
    Ok(String::from_utf8_lossy(&answer).into_owned())
}

#[tokio::test]
async fn floods_of_headers_and_nonsense_cost_only_their_connection() -> Result<()> {
    let target = target().await?;
    let head = format!(
        "GET /clusters/a{CONFIG_MAPS} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n"
    );
    let mut many = head.clone();
    for at in 0..5000 {
        many.push_str(&format!("X-Flood-{at}: {at}\r\n"));
    }
    many.push_str("\r\n");
    let answer = converse(&target.endpoint, many.as_bytes()).await?;
    ensure!(
        answer.is_empty() || answer.starts_with("HTTP/1.1 4"),
        "many headers: {:.200}",
        answer
    );
    let large = format!("{head}X-Large: {}\r\n\r\n", "x".repeat(4 << 20));
    let answer = converse(&target.endpoint, large.as_bytes()).await?;
    ensure!(
        answer.is_empty() || answer.starts_with("HTTP/1.1 4"),
        "a large header: {:.200}",
        answer
    );
    let long = format!("GET /{} HTTP/1.1\r\nHost: x\r\n\r\n", "x".repeat(1 << 20));
    let answer = converse(&target.endpoint, long.as_bytes()).await?;
    ensure!(
        answer.is_empty() || answer.starts_with("HTTP/1.1 4"),
        "a long path: {:.200}",
        answer
    );
    for (headers, code, text) in [
        ("", 400, "400 Bad Request: missing required Host header"),
        (
            "Host: a\r\nHost: b\r\n",
            400,
            "400 Bad Request: too many Host headers",
        ),
        ("Host: a\r\nExpect: foo\r\n", 417, ""),
    ] {
        // It ends the connection, so the second request is not read.
        let request = format!("GET /livez HTTP/1.1\r\n{headers}\r\n").repeat(2);
        let answer = converse(&target.endpoint, request.as_bytes()).await?;
        ensure!(
            answer.starts_with(&format!("HTTP/1.1 {code} "))
                && answer.ends_with(&format!("\r\n\r\n{text}"))
                && answer.matches("HTTP/1.1").count() == 1,
            "{headers:?}: {answer}"
        );
    }
    for nonsense in [
        "\r\n\r\n\r\n\r\n",
        "GET\r\n\r\n",
        "\u{0}\u{1}\u{2}\r\n\r\n",
        "GET / HTTP/9.9\r\n\r\n",
        "GET / HTTP/1.1\r\nContent-Length: -1\r\n\r\n",
    ] {
        let mut request = nonsense.as_bytes().to_vec();
        request.extend_from_slice(b"GET / HTTP/1.1\r\nbad header\r\n\r\n");
        let answer = converse(&target.endpoint, &request).await?;
        ensure!(
            !answer.starts_with("HTTP/1.1 5"),
            "{nonsense:?}: {:.200}",
            answer
        );
    }
    // Two lengths, or a length and chunks: no proxy and server may understand different requests.
    let body = r#"{"metadata":{"name":"x"}}"#;
    let smuggled = format!(
        "POST /clusters/a{CONFIG_MAPS} HTTP/1.1\r\nHost: x\r\nContent-Type: {JSON}\r\nContent-Length: 5\r\nContent-Length: {}\r\n\r\n{body}",
        body.len()
    );
    let answer = converse(&target.endpoint, smuggled.as_bytes()).await?;
    ensure!(
        answer.is_empty() || answer.starts_with("HTTP/1.1 400"),
        "two lengths: {:.200}",
        answer
    );
    target.is_well().await
}

#[tokio::test]
async fn slow_bodies_end_at_the_deadline_and_hold_nobody_up() -> Result<()> {
    let target = target().await?;
    let endpoint = Arc::new(target.endpoint.clone());
    let mut slow = JoinSet::new();
    for _ in 0..50 {
        let endpoint = Arc::clone(&endpoint);
        slow.spawn(async move {
            let head = format!(
                "POST /clusters/a{CONFIG_MAPS}?timeout=2s HTTP/1.1\r\nHost: x\r\nContent-Type: {JSON}\r\nContent-Length: 1000\r\nConnection: close\r\n\r\n{{"
            );
            converse(&endpoint, head.as_bytes()).await
        });
    }
    // While these connections hang, the server serves others.
    for _ in 0..20 {
        target.client.get(CONFIG_MAPS).await?.expect(200)?;
    }
    for answer in slow.join_all().await {
        let answer = answer?;
        ensure!(
            answer.is_empty()
                || answer.starts_with("HTTP/1.1 504")
                || answer.starts_with("HTTP/1.1 408"),
            "{:.300}",
            answer
        );
    }
    target.is_well().await
}
