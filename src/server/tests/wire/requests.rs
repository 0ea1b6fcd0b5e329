//! Requests with one complete answer each.

use std::time::Duration;

use http::{Method, StatusCode};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;

use crate::client::{Client, PROTOCOLS, Protocol, Reply};
use crate::fake::{start, start_with};

const PODS: &str = "/api/v1/namespaces/ns/pods";

async fn once(path: &str) -> Reply {
    let server = start().await;
    Client::admin(&server, Protocol::Http2)
        .await
        .get(path)
        .await
}

#[tokio::test]
async fn both_protocols_answer_alike() {
    let server = start().await;
    let mut bodies = Vec::new();
    for protocol in PROTOCOLS {
        let mut client = Client::admin(&server, protocol).await;
        let reply = client.get(&format!("{PODS}/a?x=1&x=2")).await;
        assert_eq!(reply.status, StatusCode::OK);
        assert_eq!(reply.header("content-type"), "application/json");
        assert_eq!(reply.header("cache-control"), "no-cache, private");
        assert_eq!(reply.header("audit-id").len(), 36);
        for uid in [
            "x-kubernetes-pf-flowschema-uid",
            "x-kubernetes-pf-prioritylevel-uid",
        ] {
            // The plane has no flow schemas.
            assert!(!reply.headers.contains_key(uid));
        }
        assert_eq!(reply.json()["query"], "x=1&x=2");
        bodies.push(reply.body);
    }
    assert_eq!(bodies[0], bodies[1]);
}

#[tokio::test]
async fn the_audit_id_of_a_client_is_echoed() {
    let server = start().await;
    let mut client = Client::admin(&server, Protocol::Http1).await;
    for path in ["/version", "/nowhere", "/api/v1/pods"] {
        let reply = client
            .send(Method::GET, path, &[("audit-id", "mine")], "")
            .await;
        assert_eq!(reply.header("audit-id"), "mine");
    }
}

#[tokio::test]
async fn planes_are_told_apart_by_path_alone() {
    let server = start().await;
    let mut client = Client::admin(&server, Protocol::Http2).await;
    for (path, plane, namespace) in [
        ("/api/v1/namespaces/ns/pods/a", "root", "ns"),
        ("/clusters/root/api/v1/namespaces/ns/pods/a", "root", "ns"),
        (
            "/clusters/team-a/api/v1/namespaces/ns/pods/a",
            "team-a",
            "ns",
        ),
        (
            "/clusters/team-a/control-plane/api/v1/namespaces/ns/pods/a",
            "team-a",
            "ns",
        ),
        (
            "/clusters/team-a/api/v1/namespaces/clusters/pods/a",
            "team-a",
            "clusters",
        ),
        (
            "/clusters/team-a/api/v1/namespaces/%2e%2e/pods/team-b",
            "team-a",
            "..",
        ),
    ] {
        let reply = client.get(path).await;
        assert_eq!(reply.status, StatusCode::OK, "{path}");
        assert_eq!(reply.json()["plane"], plane, "{path}");
        assert_eq!(reply.json()["namespace"], namespace, "{path}");
    }
    for path in [
        "/clusters/team-a/../team-b/api/v1/pods",
        "/clusters/team-a/%2e%2e/team-b/api/v1/pods",
        "/clusters/team-a%2F..%2Fteam-b/api/v1/pods",
        "/clusters/../clusters/team-b/api/v1/pods",
        "/clusters//api/v1/pods",
        "/clusters/team-a/clusters/team-b/api/v1/pods",
        "/%63lusters/team-b/api/v1/pods",
        "//clusters/team-b/api/v1/pods",
    ] {
        let reply = client.get(path).await;
        assert_eq!(reply.status, StatusCode::NOT_FOUND, "{path}");
        assert_eq!(reply.text(), "404 page not found\n", "{path}");
    }
    let unknown = client.get("/clusters/team-z/api/v1/pods").await;
    assert_eq!(unknown.status, StatusCode::NOT_FOUND);
    assert_eq!(unknown.json()["details"]["kind"], "controlplanes");
    let down = client.get("/clusters/down/api/v1/pods").await;
    assert_eq!(
        (down.status, down.header("retry-after")),
        (StatusCode::SERVICE_UNAVAILABLE, "1")
    );
}

#[tokio::test]
async fn what_is_not_there_is_refused_as_upstream_refuses_it() {
    let server = start().await;
    let mut client = Client::admin(&server, Protocol::Http2).await;
    let unknown = "the server could not find the requested resource";
    let not_allowed = "the server does not allow this method on the requested resource";
    let text = "404 page not found\n";
    for (method, path, code, message) in [
        ("GET", "/nowhere", 404, text),
        ("GET", "//api/v1", 404, text),
        ("GET", "//api/v1/namespaces/ns/pods/a", 404, text),
        ("POST", "//api/v1/namespaces/ns/pods", 404, text),
        ("GET", "/apis/nowhere.io/v1/things", 404, text),
        ("GET", "/api/v1/things", 404, unknown),
        ("GET", "/api/v9/pods", 404, unknown),
        ("GET", "/apis/apps/v9/deployments", 404, unknown),
        ("GET", "/api/v1/pods/a", 404, unknown),
        ("GET", "/api/v1/namespaces/ns/nodes", 404, unknown),
        ("GET", "/api/v1/namespaces/ns/pods/a/nothing", 404, unknown),
        ("GET", "/api/v1/namespaces/ns/pods/a/log/more", 404, unknown),
        ("GET", "/api/v1/namespaces/ns/bindings", 405, not_allowed),
        ("GET", "/api/v1/bindings", 404, unknown),
        ("POST", "/api/v1/bindings", 404, unknown),
        ("GET", "/api/v1/watch/namespaces/ns/bindings", 404, unknown),
        ("POST", "/api/v1/pods", 405, not_allowed),
        ("PUT", "/api/v1/namespaces/ns/pods", 405, not_allowed),
        ("POST", "/api/v1/namespaces/ns/pods/a", 405, not_allowed),
        ("DELETE", "/api/v1/namespaces", 405, not_allowed),
        (
            "POST",
            "/api/v1/namespaces/ns/pods/a/status",
            405,
            not_allowed,
        ),
        ("OPTIONS", "/api/v1/pods", 405, not_allowed),
        ("OPTIONS", "/api/v1/namespaces/ns/pods/a", 405, not_allowed),
        (
            "OPTIONS",
            "/api/v1/namespaces/ns/pods/a/nothing",
            404,
            unknown,
        ),
        ("LOCK", "/api/v1/namespaces/ns/pods/a/nothing", 404, unknown),
        ("OPTIONS", "/api/v1/namespaces/ns/bindings/a", 404, unknown),
        ("POST", "/apis/apps/v1", 405, not_allowed),
        ("GET", "/apis/apps/v9", 404, unknown),
        ("GET", "/apis/nowhere.io", 404, text),
        ("GET", "/version/more", 404, unknown),
        ("GET", "/elsewhere/apps", 404, text),
    ] {
        let reply = client
            .send(method.parse().expect("a method"), path, &[], "")
            .await;
        assert_eq!(
            reply.status.as_u16(),
            code,
            "{method} {path}: {}",
            reply.text()
        );
        let sniffing = if message == text { "nosniff" } else { "" };
        assert_eq!(reply.header("x-content-type-options"), sniffing, "{path}");
        if message == text {
            assert_eq!(reply.text(), text, "{path}");
            assert_eq!(reply.header("content-type"), "text/plain; charset=utf-8");
        } else {
            assert_eq!(reply.json()["message"], message, "{method} {path}");
            assert_eq!(reply.json()["details"], serde_json::json!({}), "{path}");
        }
    }
}

#[tokio::test]
async fn a_path_that_ends_with_a_verb_is_answered_with_upstreams_page() {
    let page = once("/api/v1/watch").await;
    assert_eq!(page.status, StatusCode::INTERNAL_SERVER_ERROR);
    assert_eq!(page.header("content-type"), "text/plain; charset=utf-8");
    assert_eq!(page.header("x-content-type-options"), "nosniff");
    assert_eq!(
        page.text(),
        "Internal Server Error: \"/api/v1/watch\": failed to create RequestInfo: \
         unable to determine kind and namespace from url, /api/v1/watch\n"
    );
}

#[tokio::test]
async fn errors_of_the_registry_carry_status_and_retry() {
    let missing = once(&format!("{PODS}/missing")).await;
    assert_eq!(missing.status, StatusCode::NOT_FOUND);
    assert_eq!(missing.json()["message"], "pods \"missing\" not found");
    assert!(
        missing
            .text()
            .starts_with("{\"kind\":\"Status\",\"apiVersion\":\"v1\",\"metadata\":{}")
    );
    assert!(missing.text().ends_with("}\n"));
    let busy = once(&format!("{PODS}/busy")).await;
    assert_eq!(
        (busy.status.as_u16(), busy.header("retry-after")),
        (429, "7")
    );
}

#[tokio::test]
async fn errors_come_in_the_form_that_is_wanted() {
    let server = start().await;
    let mut client = Client::admin(&server, Protocol::Http2).await;
    let path = format!("{PODS}/missing");
    let yaml = client.get_as(&path, "application/yaml").await;
    assert_eq!(yaml.header("content-type"), "application/yaml");
    assert!(yaml.text().contains("\nkind: Status\n"), "{}", yaml.text());
    let none = client
        .get_as(&path, "application/vnd.kubernetes.protobuf")
        .await;
    assert_eq!(
        none.header("content-type"),
        "application/vnd.kubernetes.protobuf"
    );
    assert!(none.body.starts_with(b"k8s\0"), "{}", none.text());
    let unknown = client.get_as(&path, "text/html").await;
    assert_eq!(unknown.header("content-type"), "application/json");
    assert!(unknown.text().starts_with("{\n  \"kind\": \"Status\""));
    let refused = client.get_as("/apis", "text/html").await;
    assert_eq!(refused.status, StatusCode::NOT_ACCEPTABLE);
}

#[tokio::test]
async fn people_get_indented_answers() {
    let server = start().await;
    let mut client = Client::admin(&server, Protocol::Http1).await;
    let agent = [("user-agent", "curl/8.0")];
    let path = format!("{PODS}/a");
    let curl = client.send(Method::GET, &path, &agent, "").await;
    assert!(curl.text().starts_with("{\n  \"") && curl.text().ends_with("\n}"));
    let compact = client
        .send(Method::GET, &format!("{path}?pretty=0"), &agent, "")
        .await;
    assert!(compact.text().ends_with("}\n") && !compact.text().contains("\n  "));
    let asked = client.get(&format!("{path}?pretty=true")).await;
    assert!(asked.text().starts_with("{\n  \""));
}

#[tokio::test]
async fn bodies_reach_the_registry_and_warnings_come_back() {
    let server = start().await;
    for protocol in PROTOCOLS {
        let mut client = Client::admin(&server, protocol).await;
        let body = "x".repeat(1024 * 1024);
        let headers = [("content-type", "application/json")];
        let reply = client
            .send(Method::POST, PODS, &headers, body.clone())
            .await;
        assert_eq!(reply.status, StatusCode::CREATED);
        assert_eq!(reply.json()["body"], body);
        assert_eq!(reply.json()["type"], "application/json");
        assert_eq!(
            reply.header("warning"),
            "299 - \"unknown field \\\"spec.x\\\"\""
        );
    }
}

#[tokio::test]
async fn a_request_ends_at_its_deadline() {
    let server = start().await;
    let mut client = Client::admin(&server, Protocol::Http2).await;
    let late = client.get(&format!("{PODS}/forever?timeout=20ms")).await;
    assert_eq!(late.status, StatusCode::GATEWAY_TIMEOUT);
    assert_eq!(late.json()["reason"], "Timeout");
    let message = "Timeout: request did not complete within the allotted timeout";
    assert_eq!(late.json()["message"], message);
    let bad = client.get(&format!("{PODS}/a?timeout=5x")).await;
    assert_eq!(bad.status, StatusCode::BAD_REQUEST);
    let message = "invalid timeout specified in the request URL - time: unknown unit \"x\" in duration \"5x\"";
    assert_eq!(bad.json()["message"], message);
    let server =
        start_with(|config| config.limits.request_time_max = Duration::from_millis(20)).await;
    let mut client = Client::admin(&server, Protocol::Http1).await;
    let late = client.get(&format!("{PODS}/forever?timeout=1h")).await;
    assert_eq!(late.status, StatusCode::GATEWAY_TIMEOUT);
}

#[tokio::test]
async fn too_many_requests_in_flight_are_told_to_come_later() {
    let server = start_with(|config| config.limits.reads_in_flight_max = 1).await;
    let mut first = Client::admin(&server, Protocol::Http2).await;
    let mut second = Client::admin(&server, Protocol::Http2).await;
    let gate = std::sync::Arc::clone(&server.gate);
    let path = format!("{PODS}/gate");
    let waiting = tokio::spawn(async move { first.get(&path).await });
    // The second client is served until the first one's request holds the only seat.
    let refused = loop {
        let reply = second.get(&format!("{PODS}/a")).await;
        if reply.status != StatusCode::OK {
            break reply;
        }
        tokio::task::yield_now().await;
    };
    assert_eq!(
        (refused.status.as_u16(), refused.header("retry-after")),
        (429, "1")
    );
    assert_eq!(
        refused.json()["message"],
        "Too many requests, please try again later."
    );
    gate.notify_one();
    assert_eq!(waiting.await.expect("answered").status, StatusCode::OK);
    assert_eq!(
        second.get(&format!("{PODS}/a")).await.status,
        StatusCode::OK
    );
}

#[tokio::test]
async fn a_panic_costs_its_request_only() {
    let server = start().await;
    for protocol in PROTOCOLS {
        let mut client = Client::admin(&server, protocol).await;
        let reply = client.get(&format!("{PODS}/panic")).await;
        assert_eq!(reply.status, StatusCode::INTERNAL_SERVER_ERROR);
        assert_eq!(
            client.get(&format!("{PODS}/a")).await.status,
            StatusCode::OK
        );
    }
}

#[tokio::test]
async fn head_is_answered_where_upstream_answers_it() {
    let server = start().await;
    for protocol in PROTOCOLS {
        let mut client = Client::admin(&server, protocol).await;
        let healthy = client.send(Method::HEAD, "/healthz", &[], "").await;
        assert_eq!(
            (healthy.status, healthy.header("content-length")),
            (StatusCode::OK, "2")
        );
        assert!(healthy.body.is_empty());
        let refused = client.send(Method::HEAD, PODS, &[], "").await;
        assert_eq!(refused.status, StatusCode::METHOD_NOT_ALLOWED);
    }
}

/// Upstream's library replies to it before any handler, and to nothing else.
#[tokio::test]
async fn options_of_the_server_itself_are_answered_without_a_handler() {
    let server = start().await;
    let mut stranger = Client::with(&server, Protocol::Http1, None, None).await;
    let reply = stranger.send(Method::OPTIONS, "*", &[], "").await;
    assert_eq!(
        (reply.status, reply.header("content-length")),
        (StatusCode::OK, "0")
    );
    for name in ["audit-id", "cache-control", "content-type"] {
        assert!(!reply.headers.contains_key(name), "{name}");
    }
    let path = stranger.send(Method::OPTIONS, "/", &[], "").await;
    assert_eq!(path.status, StatusCode::UNAUTHORIZED);
    let mut admin = Client::admin(&server, Protocol::Http1).await;
    let other = admin.send(Method::GET, "*", &[], "").await;
    assert_eq!(other.status, StatusCode::NOT_FOUND);
    assert_eq!(other.text(), "404 page not found\n");
    let absolute = admin.get("https://localhost/version").await;
    assert_eq!(absolute.status, StatusCode::OK);
}

#[tokio::test]
async fn a_token_that_does_not_count_because_of_a_space_is_warned_about() {
    let server = start().await;
    for protocol in PROTOCOLS {
        let mut client = Client::with(&server, protocol, None, None).await;
        let header = [("authorization", "Bearer  abc")];
        let warning = r#"299 - "the provided Authorization header contains extra space before the bearer token, and is ignored""#;
        // Everybody may see the version.
        for (method, path, status) in [
            (Method::GET, PODS, StatusCode::UNAUTHORIZED),
            (Method::GET, "/version", StatusCode::OK),
            (Method::POST, "/version", StatusCode::FORBIDDEN),
        ] {
            let reply = client.send(method, path, &header, "").await;
            let warnings = reply.headers.get_all("warning").iter();
            let warnings: Vec<_> = warnings.filter_map(|one| one.to_str().ok()).collect();
            assert_eq!((reply.status, warnings), (status, vec![warning]), "{path}");
        }
        let mut proven = Client::with(&server, protocol, None, Some(&server.admin)).await;
        let reply = proven.send(Method::GET, "/version", &header, "").await;
        assert_eq!(
            (reply.status, reply.header("warning")),
            (StatusCode::OK, "")
        );
    }
}

#[tokio::test]
async fn metrics_count_what_was_served() {
    let server = start().await;
    let mut client = Client::admin(&server, Protocol::Http2).await;
    client.get(&format!("{PODS}/a")).await;
    client.get(&format!("{PODS}/missing")).await;
    client.get("/api/v1/strange").await;
    let metrics = client.get("/metrics").await;
    let text = metrics.text();
    let labels = r#"component="apiserver",dry_run="",group="",resource="pods",scope="resource",subresource="",verb="GET",version="v1""#;
    for code in [200, 404] {
        let line = format!("apiserver_request_total{{code=\"{code}\",{labels}}} 1\n");
        assert!(text.contains(&line), "{line}\n{text}");
    }
    assert!(!text.contains("strange") && !text.contains("root\""));
    for name in [
        "process_cpu_seconds_total",
        "kubernetes_build_info{",
        "apiserver_response_sizes_bucket",
    ] {
        assert!(text.contains(name), "{name}");
    }
    let of_plane = client.get("/clusters/team-a/metrics").await;
    let told = of_plane.text();
    assert!(
        told.contains("polyplane_plane_requests_total 1\n"),
        "{told}"
    );
    assert!(!told.contains("apiserver_request_total"), "{told}");
    client.get("/clusters/team-a/readyz").await;
    let of_plane = client.get("/clusters/team-a/metrics/slis").await;
    let told = of_plane.text();
    for line in [
        r#"kubernetes_healthcheck{name="store",type="readyz"} 1"#,
        r#"kubernetes_healthchecks_total{name="ping",status="success",type="readyz"} "#,
    ] {
        assert!(told.contains(line), "{line}\n{told}");
    }
    assert!(!told.contains("process_"), "{told}");
}

#[tokio::test]
async fn a_client_of_plain_http_is_told_that_the_port_speaks_tls() {
    let server = start().await;
    for request in [
        "GET /healthz HTTP/1.1\r\nHost: a\r\n\r\n",
        "POST /api HTTP/1.0\r\n\r\n",
    ] {
        let mut socket = TcpStream::connect(server.address).await.expect("connected");
        let sent = socket.write_all(request.as_bytes()).await;
        sent.expect("sent");
        let mut answer = String::new();
        let read = socket.read_to_string(&mut answer).await;
        read.expect("the connection ends without a reset");
        assert_eq!(
            answer,
            "HTTP/1.0 400 Bad Request\r\n\r\nClient sent an HTTP request to an HTTPS server.\n"
        );
    }
}
