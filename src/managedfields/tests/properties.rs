//! Sets of paths against sets of lists, and their stored form.

use std::collections::BTreeSet;

use polyplane_apimachinery::value::{Str, Value};
use polyplane_managedfields::{FieldSet, Path, PathElement};
use proptest::prelude::*;

/// Elements that often are equal and often follow each other.
fn element() -> impl Strategy<Value = PathElement> {
    let scalar = prop_oneof![
        Just(Value::Int(1)),
        Just(Value::Float(1.0)),
        Just(Value::Float(1.5)),
        Just(Value::Bool(true)),
        "[ab<\"\\\\\u{1}\u{8}\u{2028}é]{0,2}".prop_map(Value::from),
    ];
    let name = "[ab.:\"\n]{0,2}".prop_map(Str::from);
    let field = (name.clone(), scalar.clone());
    prop_oneof![
        name.prop_map(PathElement::Field),
        prop::collection::vec(field, 0..3).prop_map(|mut fields| {
            fields.sort_by(|a, b| a.0.cmp(&b.0));
            fields.dedup_by(|a, b| a.0 == b.0);
            PathElement::key(fields)
        }),
        scalar.prop_map(PathElement::value),
        (-1i64..3).prop_map(PathElement::Index),
    ]
}

fn paths() -> impl Strategy<Value = BTreeSet<Path>> {
    let path = prop::collection::vec(element(), 1..4).prop_map(Path);
    prop::collection::btree_set(path, 0..12)
}

fn set(paths: &BTreeSet<Path>) -> FieldSet {
    paths.iter().map(|path| path.0.as_slice()).collect()
}

fn model(set: &FieldSet) -> BTreeSet<Path> {
    let paths = set.paths();
    let model: BTreeSet<Path> = paths.iter().cloned().collect();
    assert_eq!(paths.len(), model.len(), "no path is in a set twice");
    assert_eq!(set.len(), model.len());
    assert_eq!(set.is_empty(), model.is_empty());
    model
}

fn begins(path: &Path, with: &Path) -> bool {
    path.0.starts_with(&with.0)
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(2000))]

    #[test]
    fn sets_are_sets_of_paths(a in paths(), b in paths()) {
        let (left, right) = (set(&a), set(&b));
        prop_assert_eq!(model(&left), a.clone());
        let union: BTreeSet<Path> = a.union(&b).cloned().collect();
        prop_assert_eq!(model(&left.union(&right)), union);
        let both: BTreeSet<Path> = a.intersection(&b).cloned().collect();
        prop_assert_eq!(left.intersects(&right), !both.is_empty());
        prop_assert_eq!(model(&left.intersection(&right)), both);
        let rest: BTreeSet<Path> = a.difference(&b).cloned().collect();
        prop_assert_eq!(left.is_subset(&right), rest.is_empty());
        prop_assert_eq!(model(&left.difference(&right)), rest);
        let outside = a.iter().filter(|path| !b.iter().any(|other| begins(path, other)));
        prop_assert_eq!(model(&left.recursive_difference(&right)), outside.cloned().collect());
        let leaf = |path: &&Path| !a.iter().any(|other| other != *path && begins(other, path));
        prop_assert_eq!(model(&left.leaves()), a.iter().filter(leaf).cloned().collect());
        for path in &b {
            prop_assert_eq!(left.has(&path.0), a.contains(path));
        }
        prop_assert_eq!(left == right, a == b);
    }

    #[test]
    fn a_stored_set_is_read_as_it_was(paths in paths()) {
        let set = set(&paths);
        let json = set.to_json();
        let read = FieldSet::from_json(&json).expect("a set is written as a set");
        prop_assert_eq!(&read, &set);
        prop_assert_eq!(read.to_json(), json);
        prop_assert_eq!(FieldSet::from_value(&set.to_value()).expect("a tree of a set"), set);
    }

    #[test]
    fn any_text_is_read_or_refused(text in "[\\[\\]{}\",:.fkvi0-9a \\\\]{0,40}") {
        if let Ok(set) = FieldSet::from_json(text.as_bytes()) {
            let again = FieldSet::from_json(&set.to_json()).expect("what was read is written");
            prop_assert_eq!(again, set);
        }
    }
}

#[test]
fn a_set_that_is_too_deep_is_refused() {
    let deep = |levels: usize| {
        let open = "{\"f:a\":".repeat(levels);
        format!("{open}{{}}{}", "}".repeat(levels))
    };
    assert!(FieldSet::from_json(deep(500).as_bytes()).is_ok());
    assert!(FieldSet::from_json(deep(100_000).as_bytes()).is_err());
}
