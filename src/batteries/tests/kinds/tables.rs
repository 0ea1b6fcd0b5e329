//! Which paths offer a table, and what tables have that no single row shows.

use crate::shared::recorded::parse;
use crate::site::{Site, on_paused_clock, request};
use bytes::Bytes;
use futures_util::StreamExt as _;
use polyplane_apimachinery::json;
use polyplane_apimachinery::status::ApiError;
use polyplane_registry::{AnswerBody, ResourceRequest, Verb};

const TABLE: &str = "application/json;as=Table;g=meta.k8s.io;v=v1";
const YAML_TABLE: &str = "application/yaml;as=Table;g=meta.k8s.io;v=v1";
const NOT_ACCEPTABLE: &str = "only the following media types are accepted: application/json, application/yaml, application/vnd.kubernetes.protobuf";

/// Returns a request for a resource of a group.
fn of(verb: Verb, (group, resource): (&str, &str), accept: &str) -> ResourceRequest {
    ResourceRequest {
        group: group.into(),
        accept: accept.to_owned(),
        ..request(verb, resource)
    }
}

/// Returns the text of an answer.
async fn ask(site: &Site, request: &ResourceRequest) -> Result<String, ApiError> {
    let answer = site.registry.handle(&site.tenant, request).await?;
    let AnswerBody::Slices(slices) = answer.body else {
        panic!("no answer is long");
    };
    Ok(String::from_utf8(slices.concat()).expect("text is UTF-8"))
}

/// Returns the first cells of a table's rows.
fn names(table: &str) -> Vec<String> {
    let table = parse(table);
    let rows = table.items_at(&["rows"]).iter();
    let cells = rows.filter_map(|row| row["cells"][0].as_str());
    cells.map(str::to_owned).collect()
}

#[test]
fn subresources_have_tables_where_upstream_has_them() {
    on_paused_clock(async {
        let site = Site::open().await;
        let signing = ("certificates.k8s.io", "certificatesigningrequests");
        let definitions = ("apiextensions.k8s.io", "customresourcedefinitions");
        for (kind, subresource, verb, has_table) in [
            (("", "pods"), "status", Verb::Get, true),
            (("apps", "deployments"), "status", Verb::Get, true),
            (("apps", "deployments"), "scale", Verb::Get, true),
            (signing, "status", Verb::Get, true),
            (signing, "approval", Verb::Get, false),
            (definitions, "status", Verb::Get, false),
            (
                ("resource.k8s.io", "resourceclaims"),
                "status",
                Verb::Get,
                false,
            ),
            (("", "pods"), "resize", Verb::Get, false),
            (("", "pods"), "ephemeralcontainers", Verb::Get, false),
            (("", "pods"), "eviction", Verb::Create, false),
        ] {
            let ask = async |accept: &str| {
                let request = ResourceRequest {
                    name: Some("absent".into()),
                    subresource: Some(subresource.into()),
                    // Of an eviction. No other path reads it before the object.
                    body: Bytes::from_static(br#"{"metadata":{"name":"absent"}}"#),
                    ..of(verb, kind, accept)
                };
                ask(&site, &request).await.expect_err("it is absent")
            };
            // The media type is chosen before the object is looked for.
            let code = if has_table { 404 } else { 406 };
            let error = ask(TABLE).await;
            assert_eq!(error.code, code, "{kind:?} {subresource}: {error}");
            let error = ask(&format!("{TABLE},application/json")).await;
            assert_eq!(error.code, 404, "{kind:?} {subresource}: {error}");
        }
    });
}

#[test]
fn a_client_that_also_takes_objects_gets_one_where_there_is_no_table() {
    on_paused_clock(async {
        let site = Site::open().await;
        let container = json!({"name": "c", "image": "i"});
        let pod = json!({"spec": {"containers": [container]}});
        site.put("pods", "p", pod).await;
        for (subresource, kind) in [
            ("status", "Table"),
            ("resize", "Pod"),
            ("ephemeralcontainers", "Pod"),
        ] {
            let request = ResourceRequest {
                name: Some("p".into()),
                subresource: Some(subresource.into()),
                ..of(
                    Verb::Get,
                    ("", "pods"),
                    &format!("{TABLE},application/json"),
                )
            };
            let answer = parse(ask(&site, &request).await.expect("it is there"));
            assert_eq!(answer.str_at(&["kind"]), kind, "{subresource}");
        }
    });
}

#[test]
fn the_row_of_a_pod_says_that_it_has_ended() {
    on_paused_clock(async {
        let site = Site::open().await;
        let container = json!({"name": "c", "image": "i"});
        for (name, phase) in [("a", "Running"), ("b", "Succeeded"), ("c", "Failed")] {
            let mut pod = json!({"spec": {"containers": [(container.clone())]}});
            pod.set(&["status", "phase"], phase);
            site.put("pods", name, pod).await;
        }
        let table = ask(&site, &of(Verb::List, ("", "pods"), TABLE)).await;
        let table = table.expect("it is a list");
        for (reason, message) in [
            ("Succeeded", "The pod has completed successfully."),
            ("Failed", "The pod failed."),
        ] {
            let conditions = format!(
                r#"],"conditions":[{{"type":"Completed","status":"True","reason":"{reason}","message":"{message}"}}],"object":"#
            );
            assert!(table.contains(&conditions), "{table}");
        }
        assert_eq!(table.matches(r#""conditions":"#).count(), 2, "{table}");
    });
}

#[test]
fn a_table_without_rows_has_null_for_them_where_upstream_has() {
    on_paused_clock(async {
        let site = Site::open().await;
        let rbac = "rbac.authorization.k8s.io";
        for (kind, rows) in [
            (("", "limitranges"), "null"),
            ((rbac, "roles"), "null"),
            ((rbac, "clusterroles"), "null"),
            (("storage.k8s.io", "csistoragecapacities"), "null"),
            (
                ("apiextensions.k8s.io", "customresourcedefinitions"),
                "null",
            ),
            (("", "configmaps"), "[]"),
            (("apps", "deployments"), "[]"),
        ] {
            let table = ask(&site, &of(Verb::List, kind, TABLE)).await;
            let table = table.expect("it is a list");
            let end = format!("\"rows\":{rows}}}\n");
            assert!(table.ends_with(&end), "{kind:?}: {table}");
            let table = ask(&site, &of(Verb::List, kind, YAML_TABLE)).await;
            let table = table.expect("it is a list");
            let end = format!("rows: {rows}\n");
            assert!(table.ends_with(&end), "{kind:?}: {table}");
        }
        site.put("limitranges", "l", json!({"spec": {"limits": []}}))
            .await;
        let table = ask(&site, &of(Verb::List, ("", "limitranges"), TABLE)).await;
        assert_eq!(names(&table.expect("it is a list")), ["l"]);
    });
}

/// Checks the rows of the default class `z` outside lists.
async fn single_rows_name_it_alone(site: &Site, classes: (&str, &str)) {
    let get = ResourceRequest {
        name: Some("z".into()),
        ..of(Verb::Get, classes, TABLE)
    };
    assert_eq!(names(&ask(site, &get).await.expect("it is there")), ["z"]);
    let watch = of(Verb::Watch, classes, TABLE);
    let answer = site.registry.handle(&site.tenant, &watch).await;
    let AnswerBody::Watch(mut chunks) = answer.expect("it begins").body else {
        panic!("a watch");
    };
    let mut seen = String::new();
    while !seen.contains(r#"{"cells":["z","#) {
        let chunk = chunks.next().await.expect("z has come");
        let bytes = chunk.expect("it goes on").bytes;
        seen.push_str(std::str::from_utf8(&bytes).expect("text is UTF-8"));
    }
    assert!(!seen.contains("(default)"), "{seen}");
}

#[test]
fn only_a_list_shows_the_default_storage_class() {
    const CLASSES: (&str, &str) = ("storage.k8s.io", "storageclasses");
    const MARK: &str = "storageclass.kubernetes.io/is-default-class";
    const OLD_MARK: &str = "storageclass.beta.kubernetes.io/is-default-class";
    on_paused_clock(async {
        let site = Site::open().await;
        let row = site.tenant.base.stored(CLASSES.0, CLASSES.1);
        let row = row.expect("it is built in");
        let class = |name: &str, mark: &str, value: &str| {
            let mut class =
                json!({"provisioner": "example.com/p", "volumeBindingMode": "Immediate"});
            class.set(&["metadata", "name"], name);
            class.set(&["metadata", "annotations", mark], value);
            class
        };
        // All are made at one time.
        for (name, mark, value) in [
            ("a", "example.com/other", "true"),
            ("b", OLD_MARK, "true"),
            ("c", MARK, "true"),
            ("d", MARK, "false"),
        ] {
            let mut class = class(name, mark, value);
            class.set(&["metadata", "uid"], name);
            site.put_whole(row, class).await;
        }
        let list = async |query: &[(&str, &str)]| {
            let query = query.iter().map(|(name, value)| (*name, *value));
            let request = ResourceRequest {
                query: query.map(|(n, v)| (n.to_owned(), v.to_owned())).collect(),
                ..of(Verb::List, CLASSES, TABLE)
            };
            names(&ask(&site, &request).await.expect("it is a list"))
        };
        assert_eq!(list(&[]).await, ["a", "b (default)", "c", "d"]);

        let body = json::to_string(&class("z", MARK, "true"));
        let create = ResourceRequest {
            body: Bytes::from(body),
            ..of(Verb::Create, CLASSES, TABLE)
        };
        let created = ask(&site, &create).await.expect("it is new");
        assert_eq!(names(&created), ["z"]);
        assert_eq!(list(&[]).await, ["a", "b", "c", "d", "z (default)"]);
        // A list shows the default class of those that it has.
        assert_eq!(list(&[("limit", "2")]).await, ["a", "b (default)"]);
        let selected = [("fieldSelector", "metadata.name=c")];
        assert_eq!(list(&selected).await, ["c (default)"]);

        single_rows_name_it_alone(&site, CLASSES).await;
    });
}

#[test]
fn yaml_is_no_form_of_a_stream() {
    on_paused_clock(async {
        let site = Site::open().await;
        let stream = "application/yaml;stream=watch";
        for (verb, name) in [
            (Verb::Get, Some("absent")),
            (Verb::List, None),
            (Verb::Watch, None),
        ] {
            let request = ResourceRequest {
                name: name.map(Into::into),
                ..of(verb, ("", "configmaps"), stream)
            };
            let error = ask(&site, &request).await.expect_err("it is refused");
            let refusal = (error.code, error.message.as_str());
            assert_eq!(refusal, (406, NOT_ACCEPTABLE), "{verb:?}");
        }
        for accept in [
            "application/json;stream=watch".to_owned(),
            format!("{stream},application/json"),
        ] {
            let list = ask(&site, &of(Verb::List, ("", "configmaps"), &accept)).await;
            let list = parse(list.expect("it is a list"));
            assert_eq!(list.str_at(&["kind"]), "ConfigMapList", "{accept}");
        }
    });
}
