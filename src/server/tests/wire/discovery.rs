//! Discovery and OpenAPI, as clients read them.

use std::collections::BTreeSet;
use std::io::Read as _;

use http::{Method, StatusCode};
use polyplane_fairness::{Moment, Spent};
use serde_json::Value;

use crate::client::{Client, Protocol};
use crate::door::metric;
use crate::fake::{Running, start};

const AGGREGATED: &str = "application/json;g=apidiscovery.k8s.io;v=v2;as=APIGroupDiscoveryList";

async fn connected() -> (Running, Client) {
    let server = start().await;
    let client = Client::admin(&server, Protocol::Http2).await;
    (server, client)
}

#[tokio::test]
async fn the_old_documents_name_groups_versions_and_resources() {
    let (server, mut client) = connected().await;
    let api = client.get("/api").await;
    let address = server.address.to_string();
    assert_eq!(
        api.text(),
        format!(
            "{{\"kind\":\"APIVersions\",\"versions\":[\"v1\"],\"serverAddressByClientCIDRs\":\
             [{{\"clientCIDR\":\"0.0.0.0/0\",\"serverAddress\":\"{address}\"}}]}}\n"
        )
    );
    let apis = client.get("/apis/").await.json();
    assert_eq!(apis["kind"], "APIGroupList");
    assert_eq!(apis["groups"][0]["name"], "apiregistration.k8s.io");
    let autoscaling = client.get("/apis/autoscaling").await.json();
    assert_eq!(
        autoscaling["preferredVersion"]["groupVersion"],
        "autoscaling/v2"
    );
    let core = client.get("/api/v1").await;
    assert!(core.text().starts_with("{\"kind\":\"APIResourceList\",\"groupVersion\":\"v1\",\"resources\":[{\"name\":\"bindings\""));
    let apps = client.get("/apis/apps/v1").await.json();
    assert_eq!(apps["apiVersion"], "v1");
    let resources = apps["resources"].as_array().expect("a list");
    let scale = resources
        .iter()
        .find(|row| row["name"] == "deployments/scale")
        .expect("scale");
    assert_eq!(
        (&scale["group"], &scale["kind"]),
        (&"autoscaling".into(), &"Scale".into())
    );
    let deployments = resources
        .iter()
        .find(|row| row["name"] == "deployments")
        .expect("there");
    assert_eq!(deployments["storageVersionHash"], "8aSe+NMegvE=");
    assert_eq!(deployments["shortNames"][0], "deploy");
}

#[tokio::test]
async fn one_document_holds_everything_and_is_tagged() {
    let (_server, mut client) = connected().await;
    let accept = format!("{AGGREGATED},application/json");
    for (path, first) in [("/api", None), ("/apis", Some("apiregistration.k8s.io"))] {
        let whole = client.get_as(path, &accept).await;
        assert_eq!(whole.header("content-type"), AGGREGATED);
        assert_eq!(whole.header("vary"), "Accept");
        assert_eq!(whole.header("cache-control"), "public");
        assert_eq!(whole.header("etag").len(), 130);
        assert_eq!(whole.json()["apiVersion"], "apidiscovery.k8s.io/v2");
        let name = &whole.json()["items"][0]["metadata"]["name"];
        assert_eq!(name.as_str(), first);
        let headers = [
            ("accept", accept.as_str()),
            ("if-none-match", whole.header("etag")),
        ];
        let again = client.send(Method::GET, path, &headers, "").await;
        assert_eq!(
            (again.status, again.body.len()),
            (StatusCode::NOT_MODIFIED, 0)
        );
    }
    let old = client
        .get_as("/apis", &accept.replace("v=v2", "v=v2beta1"))
        .await;
    assert_eq!(old.json()["apiVersion"], "apidiscovery.k8s.io/v2beta1");
    let nopeer = client
        .get_as("/apis", &format!("{AGGREGATED};profile=nopeer"))
        .await;
    assert_eq!(nopeer.header("content-type"), AGGREGATED);
    let packed = "application/vnd.kubernetes.protobuf;g=apidiscovery.k8s.io;v=v2;\
                  as=APIGroupDiscoveryList";
    for path in ["/api", "/apis"] {
        let json = client.get_as(path, AGGREGATED).await;
        let accept = format!("{packed},{AGGREGATED}");
        let whole = client.get_as(path, &accept).await;
        assert_eq!(whole.header("content-type"), packed);
        assert!(whole.body.starts_with(b"k8s\0"));
        assert!(whole.body.len() < json.body.len());
        for name in ["etag", "vary", "cache-control"] {
            assert_eq!(whole.header(name), json.header(name), "{name}");
        }
        let headers = [
            ("accept", accept.as_str()),
            ("if-none-match", whole.header("etag")),
        ];
        let again = client.send(Method::GET, path, &headers, "").await;
        assert_eq!(again.status, StatusCode::NOT_MODIFIED);
    }
    let old = client
        .get_as("/apis", &packed.replace("v=v2", "v=v2beta1"))
        .await;
    assert!(old.header("content-type").contains("v=v2beta1"));
    assert_ne!(
        client.get_as("/apis", packed).await.body,
        old.body,
        "the envelope names the version"
    );
    let newer = client
        .get_as("/apis", &accept.replace("v=v2", "v=v9"))
        .await;
    assert_eq!(newer.json()["kind"], "APIGroupList");
}

#[tokio::test]
async fn whoever_accepts_the_aggregated_document_gets_it_in_whatever_place() {
    let (_server, mut client) = connected().await;
    let last = format!("application/json,application/yaml,{AGGREGATED};q=0.1");
    for path in ["/api", "/apis"] {
        let whole = client.get_as(path, &last).await;
        assert_eq!(whole.header("content-type"), AGGREGATED, "{path}");
    }
}

#[tokio::test]
async fn only_paths_behind_upstreams_router_compare_types_as_text() {
    let (_server, mut client) = connected().await;
    for (path, status) in [
        ("/api", StatusCode::NOT_ACCEPTABLE),
        ("/api/v1", StatusCode::NOT_ACCEPTABLE),
        ("/apis/apps/v1", StatusCode::NOT_ACCEPTABLE),
        ("/apis", StatusCode::OK),
        ("/apis/apps", StatusCode::OK),
    ] {
        let reply = client.get_as(path, "application/*").await;
        assert_eq!(reply.status, status, "{path}");
        assert_eq!(reply.header("content-type"), "application/json", "{path}");
    }
}

/// The router compares what a request says to have sent before it compares what the client accepts.
#[tokio::test]
async fn paths_behind_upstreams_router_refuse_a_foreign_content_type() {
    let (_server, mut client) = connected().await;
    let form = "application/x-www-form-urlencoded";
    for (path, content_type, accept, status) in [
        ("/api", form, "text/html", 415),
        ("/api/v1", form, "*/*", 415),
        ("/apis/apps/v1", form, "*/*", 415),
        ("/apis/apps/v1", "application/yaml", "*/*", 200),
        ("/apis", form, "*/*", 200),
        ("/apis/apps", form, "*/*", 200),
        ("/openapi/v3", form, "*/*", 200),
        ("/version", form, "*/*", 415),
        ("/version", "application/yaml", "*/*", 415),
        ("/version", "application/json; charset=utf-8", "*/*", 200),
        ("/version", "", "text/plain", 406),
        ("/version", "", "text/html, */*;q=0.1", 200),
    ] {
        let headers = [("content-type", content_type), ("accept", accept)];
        let reply = client.send(Method::GET, path, &headers, "").await;
        let what = format!("{path} {content_type} {accept}");
        assert_eq!(reply.status.as_u16(), status, "{what}");
        match status {
            415 => assert_eq!(reply.json()["message"], "415: Unsupported Media Type"),
            406 => assert_eq!(
                reply.json()["message"],
                "406: Not Acceptable\n\nAvailable representations: application/json"
            ),
            _ => {}
        }
    }
}

#[tokio::test]
async fn documents_of_openapi_are_served_to_each_method() {
    let (_server, mut client) = connected().await;
    for path in ["/openapi/v2", "/openapi/v3", "/openapi/v3/apis/apps/v1"] {
        for method in [Method::POST, Method::HEAD] {
            let reply = client.send(method.clone(), path, &[], "").await;
            assert_eq!(reply.status, StatusCode::OK, "{method} {path}");
        }
    }
}

/// A download that broke off goes on where it ended, unless the document is another one by then.
#[tokio::test]
async fn documents_of_openapi_are_served_in_parts() {
    let (_server, mut client) = connected().await;
    for path in ["/openapi/v2", "/openapi/v3", "/openapi/v3/apis/apps/v1"] {
        let whole = client.get(path).await;
        let (tag, length) = (whole.header("etag"), whole.body.len());
        assert_eq!(whole.header("accept-ranges"), "bytes", "{path}");
        let middle = format!("bytes=100000-{}", length + 7);
        let start = if path == "/openapi/v3" { 0 } else { 100_000 };
        let wanted = if start == 0 {
            "bytes=0-"
        } else {
            middle.as_str()
        };
        let gzip = ("accept-encoding", "gzip");
        let headers = [("range", wanted), ("if-range", tag), gzip];
        let rest = client.send(Method::GET, path, &headers, "").await;
        assert_eq!(rest.status, StatusCode::PARTIAL_CONTENT, "{path}");
        assert_eq!(rest.body, whole.body.slice(start..), "{path}");
        let shown = format!("bytes {start}-{}/{length}", length - 1);
        assert_eq!(rest.header("content-range"), shown, "{path}");
        assert_eq!(rest.header("content-length"), (length - start).to_string());
        let same = ["etag", "content-type", "last-modified"].map(|name| rest.header(name));
        let known = ["etag", "content-type", "last-modified"].map(|name| whole.header(name));
        assert_eq!(same, known, "{path}");

        let headers = [("range", "bytes=0-0")];
        let head = client.send(Method::HEAD, path, &headers, "").await;
        let seen = (head.status, head.header("content-length"), head.body.len());
        assert_eq!(seen, (StatusCode::PARTIAL_CONTENT, "1", 0), "{path}");
        let headers = [("range", "bytes=0-0"), ("if-range", "\"another\"")];
        let another = client.send(Method::GET, path, &headers, "").await;
        assert_eq!(another.status, StatusCode::OK, "{path}");
        assert_eq!(another.body, whole.body, "{path}");

        let behind = format!("bytes={length}-");
        for (range, shown) in [
            (behind.as_str(), format!("bytes */{length}")),
            ("bytes=x", String::new()),
        ] {
            let refused = client
                .send(Method::GET, path, &[("range", range)], "")
                .await;
            assert_eq!(refused.status, StatusCode::RANGE_NOT_SATISFIABLE, "{path}");
            assert_eq!(refused.header("content-range"), shown, "{path}");
            let absent = ["etag", "last-modified"].map(|name| refused.header(name));
            assert_eq!(absent, ["", ""], "{path}");
        }
    }
}

#[tokio::test]
async fn the_nameless_group_is_not_below_apis() {
    let (_server, mut client) = connected().await;
    let reply = client.get("/apis//v1").await;
    assert_eq!(reply.status, StatusCode::NOT_FOUND);
    assert_eq!(reply.text(), "404 page not found\n");
}

#[tokio::test]
async fn every_path_in_the_list_of_paths_is_served() {
    let (_server, mut client) = connected().await;
    let index = client.get("/").await;
    let paths = index.json()["paths"].clone();
    let paths = paths.as_array().expect("a list");
    assert!(paths.len() > 50);
    assert_eq!(client.get("/index.html").await.body, index.body);
    for path in paths {
        let path = path.as_str().expect("text");
        // Upstream lists the folder of the documents, and has nothing there.
        let expected = match path {
            "/openapi/v3/" => StatusCode::NOT_FOUND,
            _ => StatusCode::OK,
        };
        assert_eq!(client.get(path).await.status, expected, "{path}");
    }
}

#[tokio::test]
async fn the_parts_of_version_three_are_named_by_their_hash() {
    let (_server, mut client) = connected().await;
    let index = client.get("/openapi/v3").await;
    assert!(index.header("etag").len() > 100);
    let index = index.json();
    let url = index["paths"]["apis/apps/v1"]["serverRelativeURL"]
        .as_str()
        .expect("a URL");
    assert!(url.starts_with("/openapi/v3/apis/apps/v1?hash="));
    let part = client.get(url).await;
    assert_eq!(part.header("cache-control"), "public, immutable");
    assert!(part.header("expires").ends_with(" GMT"));
    let etag = part.header("etag").to_owned();
    let moved = client.get("/openapi/v3/apis/apps/v1?hash=STALE").await;
    assert_eq!(
        (moved.status, moved.header("location")),
        (StatusCode::MOVED_PERMANENTLY, url)
    );
    let headers = [("if-none-match", etag.as_str())];
    let same = client
        .send(Method::GET, "/openapi/v3/apis/apps/v1", &headers, "")
        .await;
    assert_eq!(same.status, StatusCode::NOT_MODIFIED);
    // As Go does, an answer without the document does not say what it is.
    let shown = ["etag", "content-type", "last-modified"].map(|name| same.header(name));
    assert_eq!(shown, [etag.as_str(), "", ""]);
    let date = part.header("last-modified").to_owned();
    let since = [("if-modified-since", date.as_str())];
    let same = client.send(Method::GET, url, &since, "").await;
    assert_eq!(same.status, StatusCode::NOT_MODIFIED);
    let gzip = [("accept-encoding", "gzip")];
    let packed = client.send(Method::GET, url, &gzip, "").await;
    let mut plain = Vec::new();
    flate2::read::GzDecoder::new(&packed.body[..])
        .read_to_end(&mut plain)
        .expect("gzip");
    assert_eq!(plain, part.body);
    let answered = "application/com.github.proto-openapi.spec.v3.v1.0+protobuf";
    let asked = "application/com.github.proto-openapi.spec.v3@v1.0+protobuf";
    for accept in [answered, asked, &format!("application/json;q=0.5, {asked}")] {
        let binary = client.get_as(url, accept).await;
        assert_eq!(binary.header("content-type"), answered, "{accept}");
        assert_eq!(binary.header("etag"), etag);
        assert_eq!(binary.header("cache-control"), "public, immutable");
        assert!(binary.header("vary").contains("Accept"));
        assert_ne!(binary.body, part.body);
        let headers = [("accept", accept), ("if-none-match", etag.as_str())];
        let same = client.send(Method::GET, url, &headers, "").await;
        assert_eq!(same.status, StatusCode::NOT_MODIFIED);
        let headers = [("accept", accept), ("accept-encoding", "gzip")];
        let packed = client.send(Method::GET, url, &headers, "").await;
        let mut plain = Vec::new();
        flate2::read::GzDecoder::new(&packed.body[..])
            .read_to_end(&mut plain)
            .expect("gzip");
        assert_eq!(plain, binary.body);
        let moved = client
            .get_as("/openapi/v3/apis/apps/v1?hash=STALE", accept)
            .await;
        assert_eq!(moved.header("location"), url);
    }
    let unknown = client.get_as(url, "application/xml").await;
    assert_eq!(unknown.status, StatusCode::NOT_ACCEPTABLE);
    // The index has one form, whatever the client accepts, and upstream's type.
    let index = client.get_as("/openapi/v3", answered).await;
    assert_eq!(index.header("content-type"), "text/plain; charset=utf-8");
    assert_eq!(index.header("vary"), "Accept-Encoding");
    assert!(index.json()["paths"].is_object());
    assert_eq!(
        client.get("/openapi/v3/apis/no/v1").await.status,
        StatusCode::NOT_FOUND
    );
}

/// Collects every `$ref` in `value`.
fn references<'v>(value: &'v Value, out: &mut BTreeSet<&'v str>) {
    match value {
        Value::Object(members) => {
            if let Some(reference) = members.get("$ref").and_then(Value::as_str) {
                out.insert(reference);
            }
            members.values().for_each(|member| references(member, out));
        }
        Value::Array(items) => items.iter().for_each(|item| references(item, out)),
        _ => {}
    }
}

#[tokio::test]
async fn documents_are_closed_and_name_each_operation_once() {
    let (_server, mut client) = connected().await;
    let index = client.get("/openapi/v3").await.json();
    let mut documents = vec![client.get("/openapi/v2").await.json()];
    for path in index["paths"].as_object().expect("an object").values() {
        let url = path["serverRelativeURL"].as_str().expect("a URL");
        documents.push(client.get(url).await.json());
    }
    assert!(documents.len() > 40);
    for document in &documents {
        let mut all = BTreeSet::new();
        references(document, &mut all);
        for reference in all {
            let pointer = reference.strip_prefix('#').expect("inside the document");
            assert!(document.pointer(pointer).is_some(), "{reference}");
        }
        let mut ids = BTreeSet::new();
        for item in document["paths"].as_object().expect("an object").values() {
            for (method, operation) in item.as_object().expect("an object") {
                if method != "parameters" {
                    let id = operation["operationId"].as_str().expect("an id");
                    assert!(ids.insert(id), "{id} twice");
                }
            }
        }
    }
}

#[tokio::test]
async fn definitions_and_fields_are_described() {
    let (_server, mut client) = connected().await;
    let second = client.get("/openapi/v2").await.json();
    let third = client.get("/openapi/v3/api/v1").await.json();
    for definitions in [&second["definitions"], &third["components"]["schemas"]] {
        let text = |pointer: &str| {
            let text = definitions.pointer(pointer).and_then(Value::as_str);
            text.unwrap_or_else(|| panic!("no text at {pointer}"))
        };
        let pod = "/io.k8s.api.core.v1.Pod";
        assert!(text(&format!("{pod}/description")).contains("containers"));
        let spec = text(&format!("{pod}/properties/spec/description"));
        assert!(spec.contains("desired behavior"));
        for field in ["apiVersion", "kind", "metadata"] {
            let of = |kind| text(&format!("{kind}/properties/{field}/description"));
            assert_eq!(
                of(pod) == of("/io.k8s.api.core.v1.PodList"),
                field != "metadata"
            );
        }
    }
}

#[tokio::test]
async fn version_two_is_had_as_protobuf() {
    let (_server, mut client) = connected().await;
    let plain = client.get("/openapi/v2").await;
    assert_eq!(plain.header("content-type"), "application/json");
    let answered = "application/com.github.proto-openapi.spec.v2.v1.0+protobuf";
    let asked = "application/com.github.proto-openapi.spec.v2@v1.0+protobuf";
    for accept in [answered, asked, &format!("application/json;q=0.5, {asked}")] {
        let binary = client.get_as("/openapi/v2", accept).await;
        assert_eq!(binary.header("content-type"), answered, "{accept}");
        assert_ne!(binary.header("etag"), plain.header("etag"));
        let text = String::from_utf8_lossy(&binary.body);
        for part in ["definitions", "paths"] {
            for name in plain.json()[part].as_object().expect("an object").keys() {
                assert!(text.contains(name.as_str()), "{name}");
            }
        }
    }
    assert_eq!(
        client.get_as("/openapi/v2", "text/html").await.status,
        StatusCode::NOT_ACCEPTABLE
    );
}

#[tokio::test]
async fn kubectl_finds_what_it_probes_for() {
    let (_server, mut client) = connected().await;
    let apps = client.get("/openapi/v3/apis/apps/v1").await.json();
    let patch = &apps["paths"]["/apis/apps/v1/namespaces/{namespace}/deployments/{name}"]["patch"];
    assert_eq!(patch["operationId"], "patchAppsV1NamespacedDeployment");
    assert_eq!(patch["x-kubernetes-action"], "patch");
    let kind = serde_json::json!({"group": "apps", "kind": "Deployment", "version": "v1"});
    assert_eq!(patch["x-kubernetes-group-version-kind"], kind);
    let names: Vec<_> = patch["parameters"]
        .as_array()
        .expect("a list")
        .iter()
        .map(|p| &p["name"])
        .collect();
    assert_eq!(
        names,
        ["dryRun", "fieldManager", "fieldValidation", "force"]
    );
    let schemas = &apps["components"]["schemas"];
    let containers = &schemas["io.k8s.api.core.v1.PodSpec"]["properties"]["containers"];
    assert_eq!(containers["x-kubernetes-patch-merge-key"], "name");
    assert_eq!(
        schemas["io.k8s.api.apps.v1.Deployment"]["x-kubernetes-group-version-kind"][0],
        kind
    );
}

#[tokio::test]
async fn operations_are_those_upstream_publishes() {
    let (_server, mut client) = connected().await;
    let core = client.get("/openapi/v3/api/v1").await.json();
    let paths = core["paths"].as_object().expect("an object");
    for (path, method, id) in [
        ("/api/v1/", "get", "getCoreV1APIResources"),
        ("/api/v1/pods", "get", "listCoreV1PodForAllNamespaces"),
        (
            "/api/v1/namespaces/{namespace}/pods",
            "delete",
            "deleteCoreV1CollectionNamespacedPod",
        ),
        (
            "/api/v1/namespaces/{namespace}/pods/{name}/exec",
            "post",
            "connectCoreV1PostNamespacedPodExec",
        ),
        (
            "/api/v1/namespaces/{namespace}/pods/{name}/binding",
            "post",
            "createCoreV1NamespacedPodBinding",
        ),
        (
            "/api/v1/namespaces/{namespace}/pods/{name}/log",
            "get",
            "readCoreV1NamespacedPodLog",
        ),
        (
            "/api/v1/namespaces/{name}/finalize",
            "put",
            "replaceCoreV1NamespaceFinalize",
        ),
        ("/api/v1/nodes/{name}", "get", "readCoreV1Node"),
        (
            "/api/v1/watch/namespaces/{namespace}/pods/{name}",
            "get",
            "watchCoreV1NamespacedPod",
        ),
        (
            "/api/v1/watch/pods",
            "get",
            "watchCoreV1PodListForAllNamespaces",
        ),
        ("/api/v1/watch/nodes", "get", "watchCoreV1NodeList"),
    ] {
        assert_eq!(paths[path][method]["operationId"], id, "{method} {path}");
    }
    assert!(!paths.contains_key("/api/v1/watch/namespaces/{namespace}/bindings"));
}

/// Documents are made anew once a definition has changed, and a plane may have thousands of definitions.
#[tokio::test]
async fn documents_take_a_turn_and_are_made_aside_if_work_of_their_plane_takes_long() {
    const HOUR_NANOS: u64 = 3_600_000_000_000;
    let (server, mut client) = connected().await;
    let meter = &server.root_meter;
    let at_first = meter.flow().expected_of_turn();
    // It is made now, which takes longer than what is expected of a first turn.
    client.get("/apis").await;
    assert!(meter.flow().expected_of_turn() > at_first);
    let aside = "polyplane_heavy_work_total";
    assert_eq!(metric(&mut client, aside).await, 0);
    let long = Spent {
        wall_nanos: HOUR_NANOS,
        cpu_nanos: HOUR_NANOS,
        is_exact: true,
    };
    meter.note_stretch(long, Moment(0));
    for (count, path) in (1..).zip(["/", "/api", "/apis", "/apis/apps", "/apis/apps/v1"]) {
        assert_eq!(client.get(path).await.status, StatusCode::OK, "{path}");
        assert_eq!(metric(&mut client, aside).await, count, "{path}");
    }
    // What is about the server waits for no work of the plane.
    assert_eq!(client.get("/version").await.status, StatusCode::OK);
    assert_eq!(metric(&mut client, aside).await, 5);
}
