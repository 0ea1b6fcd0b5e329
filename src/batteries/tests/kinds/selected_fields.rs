//! Lists and watches by fields: they select the same objects as a selection by their trees, and
//! nothing is parsed.

use crate::shared::plane;
use crate::site::{self, Site};
use futures_util::StreamExt as _;
use polyplane_apimachinery::json::{self, Limits};
use polyplane_apimachinery::schema::decode::Empties;
use polyplane_apimachinery::{Map, Str, Value};
use polyplane_batteries::kind_tables::tenant_kinds;
use polyplane_plane::{Flags, Key, NewObject, Operation, Version};
use polyplane_registry::select::field_value;
use polyplane_registry::{AnswerBody, Resource, ResourceRequest, Verb};
use proptest::prelude::*;
use std::time::Duration;

const EVENTS: usize = 10_000;
const BATCH: usize = 100;

/// Returns upstream's value of a field, from the tree of an object.
fn by_tree(row: &Resource, tree: &Value, field: &str) -> String {
    let of_events = |name: &str| -> Vec<String> {
        let name = match row.group.as_str() {
            "" => name.to_owned(),
            _ => name
                .replace("regarding", "involvedObject")
                .replace("reportingController", "reportingComponent"),
        };
        name.split('.').map(str::to_owned).collect()
    };
    match (row.kind.as_str(), field) {
        ("Pod", "spec.hostNetwork") => tree.bool_at(&["spec", "hostNetwork"]).to_string(),
        ("Pod", "status.podIP") => {
            let first = tree.items_at(&["status", "podIPs"]).first();
            first.map_or("", |item| item.str_at(&["ip"])).to_owned()
        }
        ("Pod", "status.podIPs") => String::new(),
        ("ReplicaSet" | "ReplicationController", "status.replicas") => {
            let replicas = tree.int_at(&["status", "replicas"]);
            replicas.unwrap_or(0).to_string()
        }
        ("Job", "status.successful") => {
            let succeeded = tree.int_at(&["status", "succeeded"]);
            succeeded.unwrap_or(0).to_string()
        }
        ("Node", "spec.unschedulable") => tree.bool_at(&["spec", "unschedulable"]).to_string(),
        ("Event", "source") => match tree.str_at(&["source", "component"]) {
            "" => tree.str_at(&["reportingComponent"]).to_owned(),
            component => component.to_owned(),
        },
        ("Event", field) => {
            let path = of_events(field);
            let path: Vec<&str> = path.iter().map(String::as_str).collect();
            tree.str_at(&path).to_owned()
        }
        (_, field) => {
            let path: Vec<&str> = field.split('.').collect();
            match tree.at(&path) {
                Some(Value::String(text)) => text.to_string(),
                Some(Value::Int(number)) => number.to_string(),
                Some(Value::Bool(truth)) => truth.to_string(),
                _ => String::new(),
            }
        }
    }
}

/// Generates values of every type, among them texts with characters that JSON has to escape.
fn value() -> impl Strategy<Value = Value> {
    let text = prop_oneof![
        Just("\"\\\n\u{0}\u{1f600}é".to_owned()),
        "[a-z{}\\[\\],:\"\\\\]{0,12}",
    ];
    let leaf = prop_oneof![
        4 => text.prop_map(Value::from),
        2 => any::<i64>().prop_map(Value::from),
        2 => any::<bool>().prop_map(Value::from),
        1 => Just(Value::Null),
    ];
    let ips = prop::collection::vec("[0-9.]{1,9}", 0..3).prop_map(|ips| {
        let item = |ip: String| {
            let mut item = Value::object();
            item.set(&["ip"], ip);
            item
        };
        Value::Array(ips.into_iter().map(item).collect())
    });
    prop_oneof![6 => leaf, 1 => ips]
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(256))]

    /// Whatever the fields contain, also values of the wrong type, both ways agree for all kinds.
    #[test]
    fn a_field_read_from_bytes_is_that_of_the_tree(
        values in prop::collection::vec((any::<bool>(), value()), 24),
    ) {
        let kinds = tenant_kinds();
        for row in kinds.resources() {
            let mut tree = Value::Object(Map::default());
            tree.set(&["metadata", "name"], "x");
            let more = [
                "status.podIPs",
                "status.succeeded",
                "involvedObject.kind",
                "source.component",
            ];
            let paths = row.selectable_fields.iter().map(Str::as_str).chain(more);
            for (path, (there, value)) in paths.zip(values.iter().cycle()) {
                let path: Vec<&str> = path.split('.').collect();
                if *there && tree.at(&path[..1]).is_none_or(|head| head.as_object().is_some()) {
                    tree.set(&path, value.clone());
                }
            }
            let body = json::to_string(&tree);
            for field in &row.selectable_fields {
                if field.starts_with("metadata.") {
                    continue;
                }
                let found = field_value(row, body.as_bytes(), field);
                prop_assert_eq!(found.as_str(), by_tree(row, &tree, field), "{} {}", row.kind, body);
            }
        }
    }
}

/// Returns a pod that no parser can read: one of its texts has an escape that JSON does not know.
fn damaged_pod(name: &str, node: &str) -> Operation {
    let kinds = tenant_kinds();
    let row = kinds.stored("", "pods").expect("it is built in");
    let mut tree = Value::object();
    tree.set(&["metadata", "name"], name);
    tree.set(&["metadata", "namespace"], "default");
    tree.set(&["metadata", "uid"], name);
    tree.set(&["metadata", "creationTimestamp"], "2024-05-06T07:08:09Z");
    tree.set(&["spec", "nodeName"], node);
    tree.set(&["spec", "subdomain"], "QQ");
    let decoded = kinds
        .schemas()
        .decode(row.stored_definition, &mut tree, Empties::Null);
    decoded.expect("it fits its schema");
    let encoded = kinds.schemas().encode_stored(row.stored_definition, &tree);
    let text = String::from_utf8(encoded.bytes).expect("text");
    let body = text.replace("\"QQ\"", "\"\\q\"");
    assert!(json::parse(body.as_bytes(), &Limits::default()).is_err());
    let found = field_value(row, body.as_bytes(), "spec.nodeName");
    assert_eq!(found.as_str(), node, "{body}");
    Operation::Put {
        key: Key::new("", "pods", Some("default"), name),
        object: NewObject {
            body: body.into(),
            version_slot: encoded.version.expect("it has metadata").following(),
            labels: None,
            storage_version: row.storage.version.clone(),
            expires: None,
            flags: Flags::NONE,
        },
    }
}

fn request(verb: Verb, version: Version) -> ResourceRequest {
    let query = [
        ("fieldSelector", "spec.nodeName=mine".to_owned()),
        ("resourceVersion", version.to_string()),
    ];
    let query = query.map(|(key, value)| (key.to_owned(), value));
    ResourceRequest {
        query: query.to_vec(),
        ..site::request(verb, "pods")
    }
}

#[tokio::test]
async fn a_watch_by_a_field_parses_nothing() {
    let Site { registry, tenant } = Site::open().await;
    let start = tenant.plane.snapshot().version();
    let watch = request(Verb::Watch, start);
    let answer = registry.handle(&tenant, &watch).await.expect("a watch");
    let AnswerBody::Watch(mut frames) = answer.body else {
        panic!("a watch is a stream");
    };
    let mut seen = String::new();
    for batch in 0..EVENTS / BATCH {
        let pod = |n: usize| {
            // Each batch changes the same pods, half of which are moved to the node or away from
            // it.
            let mine = n.is_multiple_of(2) == batch.is_multiple_of(2);
            damaged_pod(&format!("p-{n}"), if mine { "mine" } else { "other" })
        };
        plane::submit(&tenant.plane, (0..BATCH).map(pod).collect()).await;
        let due = if batch == 0 { BATCH / 2 } else { BATCH };
        let mut found = 0;
        while found < due {
            let frame = tokio::time::timeout(Duration::from_secs(10), frames.next()).await;
            let frame =
                frame.unwrap_or_else(|_| panic!("{found} of {due} in batch {batch}: {seen}"));
            let frame = frame.expect("it goes on").expect("here");
            let text = String::from_utf8(frame.bytes.to_vec()).expect("text");
            found += text.matches("{\"type\":").count();
            seen.push_str(&text);
        }
        assert_eq!(found, due);
    }
    let count = |kind: &str| seen.matches(&format!("{{\"type\":\"{kind}\"")).count();
    assert_eq!(count("ERROR"), 0);
    assert_eq!(count("ADDED"), EVENTS / 2);
    assert_eq!(count("DELETED"), EVENTS / 2 - BATCH / 2);

    let list = request(Verb::List, start);
    let answer = registry.handle(&tenant, &list).await.expect("a list");
    let bytes = match answer.body {
        AnswerBody::Slices(slices) => slices.concat(),
        AnswerBody::Stream(parts) => {
            let parts: Vec<_> = parts.map(|part| part.expect("all of it")).collect().await;
            parts.concat()
        }
        AnswerBody::Watch(_) | AnswerBody::Connect(_) => panic!("a list"),
    };
    let text = String::from_utf8(bytes).expect("text");
    assert_eq!(text.matches("\"nodeName\":\"mine\"").count(), BATCH / 2);
    assert_eq!(text.matches("\"nodeName\":\"other\"").count(), 0);
}

#[tokio::test]
async fn a_watch_of_one_object_selects_it_by_its_name_alone() {
    let Site { registry, tenant } = Site::open().await;
    for (selector, code) in [
        ("", None),
        ("metadata.name=p", None),
        ("metadata.name=p,status.phase=Running", None),
        ("metadata.name!=p", Some(400)),
        ("metadata.name=q", Some(400)),
        ("status.phase=Running", Some(400)),
        ("unknown=x", Some(400)),
    ] {
        let watch = ResourceRequest {
            query: vec![("fieldSelector".to_owned(), selector.to_owned())],
            name: Some("p".into()),
            ..site::request(Verb::Watch, "pods")
        };
        let answer = registry.handle(&tenant, &watch).await;
        let refused = answer.err().map(|error| error.code);
        assert_eq!(refused, code, "{selector}");
    }
}
