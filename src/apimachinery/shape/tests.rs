//! Generated schemas through the view.

use super::prune::{Report, Root, prune};
use super::{BuiltIn, Kind, Shape};
use crate::schema::decode::{Empties, Problem};
use crate::schema::fixture::{SCHEMAS, kind, vectors};
use crate::value::Value;

/// The typed decode and the shared engine must find the same unknown members.
#[test]
fn pruning_by_shape_finds_what_decoding_finds() {
    let (mut total, mut unknown) = (0, 0);
    for row in vectors("schema_decode.jsonl.gz") {
        let Some(id) = kind(row.str_at(&["k"])) else {
            continue;
        };
        let mut object = row["in"].clone();
        if let Value::Object(members) = &mut object {
            members.remove("kind");
            members.remove("apiVersion");
        }
        let mut decoded = object.clone();
        let Ok(problems) = SCHEMAS.decode(id, &mut decoded, Empties::Keep) else {
            continue;
        };
        let mut expected: Vec<String> = problems
            .into_iter()
            .map(|problem| match problem {
                Problem::Unknown(path) | Problem::Duplicate(path) => path,
            })
            .collect();
        expected.sort();
        let shape = BuiltIn::root(&SCHEMAS, id);
        let found = prune(shape, &mut object, Root::Value, Report::Paths);
        assert_eq!(found, expected);
        let mut again = object.clone();
        SCHEMAS
            .decode(id, &mut again, Empties::Keep)
            .expect("a part of what can be decoded");
        assert_eq!(again, decoded);
        total += 1;
        unknown += usize::from(!found.is_empty());
    }
    assert!(
        total > 200 && unknown > 20,
        "{total} compared, {unknown} with unknown members"
    );
}

#[test]
fn a_field_says_its_type_relation_and_default() {
    let pod = kind("/v1/Pod").expect("pods are known");
    let root = BuiltIn::root(&SCHEMAS, pod);
    let at = |path: &[&str]| {
        path.iter().fold(root, |shape, name| match *name {
            "[]" => shape.item().expect("a list"),
            name => shape.member(name).expect("a member"),
        })
    };
    let containers = at(&["spec", "containers"]);
    assert_eq!(containers.kind(), Kind::List);
    assert_eq!(
        containers.list(),
        &crate::schema::ListType::Map(vec!["name".into()])
    );
    assert_eq!(containers.patch().merge_key, "name");
    assert_eq!(at(&["spec", "nodeSelector"]).map(), super::MapType::Atomic);
    assert_eq!(at(&["metadata", "labels", "any"]).kind(), Kind::String);
    let owners = at(&["metadata", "ownerReferences", "[]"]);
    assert_eq!(owners.map(), super::MapType::Atomic);
    let port = at(&["spec", "containers", "[]", "ports", "[]"]);
    let key_default = |name| port.child(name).and_then(Shape::key_default).cloned();
    assert_eq!(key_default("protocol"), Some(Value::string("TCP")));
    assert_eq!(key_default("containerPort"), Some(Value::Int(0)));
    assert_eq!(key_default("name"), None);
    assert_eq!(
        at(&["spec", "restartPolicy"]).default(),
        Some(&Value::string("Always"))
    );
    assert!(root.has_defaults() && !at(&["metadata"]).has_defaults());
}
