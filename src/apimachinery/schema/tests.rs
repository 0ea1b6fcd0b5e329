//! The engine compared with Go: the vectors have the results of a strict decode and an encode of
//! random objects.

use super::Type;
use super::decode::{Empties, Problem, strict_error};
use super::fixture::{SCHEMAS, kind, tree, vectors};
use crate::json::to_string;
use crate::value::{Value, Weight};

/// Returns the text without names of embedded structs, which the data may not have.
fn without_embedded(text: &str) -> String {
    let Some((head, tail)) = text.split_once(" into Go struct field ") else {
        return text.to_owned();
    };
    let names = tail.split('.').enumerate();
    let kept = names.filter(|(at, name)| {
        *at == 0 || !name.starts_with(|first: char| first.is_ascii_uppercase())
    });
    let tail: Vec<&str> = kept.map(|(_, name)| name).collect();
    format!("{head} into Go struct field {}", tail.join("."))
}

#[test]
fn decode_and_encode_agree_with_go() {
    let (mut agreed, mut total) = (0, 0);
    let mut differences = Vec::new();
    for row in vectors("schema_decode.jsonl.gz") {
        let id = kind(row.str_at(&["k"])).expect("vectors are of served kinds");
        total += 1;
        let mut value = row["in"].clone();
        let got = match SCHEMAS.decode(id, &mut value, Empties::Keep) {
            Err(error) => format!("error {}", without_embedded(&error.0)),
            Ok(problems) => {
                let problems: Vec<String> = problems.iter().map(Problem::to_string).collect();
                format!("{problems:?} {}", to_string(&value))
            }
        };
        let wanted = match row.str_at(&["err"]) {
            "" => {
                let problems: Vec<&str> = row
                    .items_at(&["strict"])
                    .iter()
                    .filter_map(Value::as_str)
                    .collect();
                format!("{problems:?} {}", to_string(&row["out"]))
            }
            error => format!("error {}", without_embedded(error)),
        };
        if got == wanted {
            agreed += 1;
        } else if differences.len() < 3 {
            differences.push(format!(
                "{}\n  got  {got}\n  want {wanted}",
                to_string(&row["in"])
            ));
        }
    }
    println!("decode: {agreed} of {total} agree");
    assert!(
        total > 500 && agreed == total,
        "{agreed} of {total} agree\n{}",
        differences.join("\n")
    );
}

/// Go's bytes are the canonical bytes: the vectors keep the order in which Go wrote members.
#[test]
fn members_are_written_in_the_order_of_declaration() {
    let pod = kind("/v1/Pod").expect("pods are served");
    let mut value = tree(
        r#"{"status":{},"spec":{"nodeName":"n","containers":[{"image":"i","name":"c"}],"strange":1},"kind":"Pod","metadata":{"namespace":"s","name":"p","labels":{"b":"1","a":"<"},"resourceVersion":"7","uid":"u"}}"#,
    );
    let problems = SCHEMAS
        .decode(pod, &mut value, Empties::Keep)
        .expect("a pod");
    assert_eq!(
        strict_error(&problems).as_deref(),
        Some("strict decoding error: unknown field \"spec.strange\"")
    );
    let text = String::from_utf8(SCHEMAS.to_vec(pod, &value)).expect("JSON is UTF-8");
    assert_eq!(
        text,
        r#"{"metadata":{"name":"p","namespace":"s","uid":"u","resourceVersion":"7","labels":{"a":"\u003c","b":"1"}},"spec":{"containers":[{"name":"c","image":"i","resources":{}}],"nodeName":"n"},"status":{}}"#
    );
    let stored = SCHEMAS.encode_stored(pod, &value);
    assert_eq!(
        String::from_utf8(stored.with_version(7)).expect("JSON is UTF-8"),
        text
    );
    assert!(!String::from_utf8_lossy(&stored.bytes).contains("resourceVersion"));
    let labels = stored.labels.clone().expect("there are labels");
    assert_eq!(&stored.bytes[labels], br#"{"a":"\u003c","b":"1"}"#);
}

#[test]
fn the_slot_of_the_version_fits_any_metadata() {
    let map = kind("/v1/ConfigMap").expect("config maps are served");
    for (metadata, wanted) in [
        ("{}", r#"{"metadata":{"resourceVersion":"5"}}"#),
        (
            r#"{"labels":{"a":"b"}}"#,
            r#"{"metadata":{"resourceVersion":"5","labels":{"a":"b"}}}"#,
        ),
        (
            r#"{"name":"n"}"#,
            r#"{"metadata":{"name":"n","resourceVersion":"5"}}"#,
        ),
        (
            r#"{"name":"n","generation":1}"#,
            r#"{"metadata":{"name":"n","resourceVersion":"5","generation":1}}"#,
        ),
    ] {
        let value = tree(&format!("{{\"metadata\":{metadata}}}"));
        let stored = SCHEMAS.encode_stored(map, &value);
        assert_eq!(String::from_utf8_lossy(&stored.with_version(5)), wanted);
    }
}

#[test]
fn absent_null_and_empty_follow_the_field() {
    let role = kind("rbac.authorization.k8s.io/v1/ClusterRole").expect("cluster roles are served");
    let decoded = |text: &str, empties| {
        let mut value = tree(text);
        SCHEMAS.decode(role, &mut value, empties).expect("a role");
        String::from_utf8(SCHEMAS.to_vec(role, &value)).expect("JSON is UTF-8")
    };
    assert_eq!(
        decoded("{}", Empties::Keep),
        r#"{"metadata":{},"rules":null}"#
    );
    assert_eq!(
        decoded(r#"{"rules":[]}"#, Empties::Keep),
        r#"{"metadata":{},"rules":[]}"#
    );
    assert_eq!(
        decoded(r#"{"rules":[]}"#, Empties::Null),
        r#"{"metadata":{},"rules":null}"#
    );
    assert_eq!(
        decoded(r#"{"rules":[null]}"#, Empties::Keep),
        r#"{"metadata":{},"rules":[{"verbs":null}]}"#
    );
}

#[test]
fn paths_resolve_to_types() {
    let deployment = kind("apps/v1/Deployment").expect("deployments are served");
    let resolved = SCHEMAS.resolve(deployment, "spec.template.spec.containers[0].image");
    assert_eq!(resolved, Ok(Type::String));
    let annotation = SCHEMAS.resolve(deployment, "metadata.annotations[a.b/c]");
    assert_eq!(annotation, Ok(Type::String));
    assert!(SCHEMAS.resolve(deployment, "spec.nothing").is_err());
    assert!(SCHEMAS.resolve(deployment, "spec.paused.more").is_err());
    assert_eq!(
        SCHEMAS
            .field_at(deployment, &["spec", "template", "spec", "hostNetwork"])
            .map(|field| &field.ty),
        Some(&Type::Bool)
    );
}

#[test]
fn constant_defaults_are_applied_once() {
    let pod = kind("/v1/Pod").expect("pods are served");
    let mut value = tree(r#"{"spec":{"containers":[{"name":"c"}]}}"#);
    SCHEMAS
        .decode(pod, &mut value, Empties::Keep)
        .expect("a pod");
    SCHEMAS.apply_defaults(pod, &mut value);
    assert_eq!(
        value["spec"]["containers"][0].str_at(&["terminationMessagePolicy"]),
        "File"
    );
    let once = value.clone();
    SCHEMAS.apply_defaults(pod, &mut value);
    assert_eq!(value, once);
}

/// With all of them, a pod of 3 MB would take 600 MB before it is refused.
#[test]
fn defaults_of_a_million_items_are_not_all_set() {
    let pod = kind("/v1/Pod").expect("pods are served");
    let mut value = tree(r#"{"spec":{}}"#);
    let containers = vec![crate::value::Value::object(); 1_000_000];
    value.set(&["spec", "containers"], containers);
    SCHEMAS.apply_defaults(pod, &mut value);
    let has_default = |at: usize| {
        let container = &value["spec"]["containers"][at];
        !container.str_at(&["terminationMessagePolicy"]).is_empty()
    };
    assert!(has_default(0) && has_default(10_000));
    assert!(!has_default(999_999));
}

#[test]
fn canonical_form_is_a_fixed_point() {
    for row in vectors("schema_decode.jsonl.gz") {
        let (Some(id), true) = (kind(row.str_at(&["k"])), row.str_at(&["err"]).is_empty()) else {
            continue;
        };
        let mut value = row["in"].clone();
        SCHEMAS
            .decode(id, &mut value, Empties::Keep)
            .expect("Go decodes it too");
        let bytes = SCHEMAS.to_vec(id, &value);
        let mut again = tree(&String::from_utf8_lossy(&bytes));
        assert_eq!(again, value, "bytes hold the tree");
        let problems = SCHEMAS
            .decode(id, &mut again, Empties::Keep)
            .expect("canonical objects decode");
        assert_eq!((again, problems), (value, Vec::new()));
    }
}

#[test]
fn zero_values_of_a_million_empty_items_take_little() {
    let pod = kind("/v1/Pod").expect("pods are known");
    let decoded = |item: Value, count: usize| {
        let mut object = Value::object();
        object.set(&["spec", "containers"], Value::Array(vec![item; count]));
        let decoded = SCHEMAS.decode(pod, &mut object, Empties::Keep);
        decoded.expect("the types are right");
        object
    };
    for item in [Value::object(), Value::Null] {
        let many = decoded(item.clone(), 1_000_000);
        let containers = many.items_at(&["spec", "containers"]);
        assert_ne!(containers.first(), Some(&Value::object()));
        assert_eq!(containers.last(), Some(&Value::object()));
        let bytes = Weight::of(&many).memory_bytes;
        assert!(bytes < 100 << 20, "{bytes}");
        // Those that a store could take have all of theirs.
        let fewer = decoded(item, 100_000);
        let containers = fewer.items_at(&["spec", "containers"]);
        assert_eq!(containers.first(), containers.last());
    }
}
