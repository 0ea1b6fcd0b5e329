//! The schemas of built-in kinds against those by which upstream merges them.

use std::collections::HashSet;

use polyplane_apimachinery::json;
use polyplane_apimachinery::schema::Schemas;
use polyplane_apimachinery::shape::{BuiltIn, Form, MapType, Shape, Values};

use crate::schema::{Position, Schema};
use crate::vectors::Vectors;

#[test]
fn built_in_kinds_have_the_relations_that_upstream_gives_them() {
    let path = concat!(
        env!("CARGO_MANIFEST_DIR"),
        "/../batteries/data/schemas.json"
    );
    let data = std::fs::read(path).expect("the generated data file is there");
    let schemas = Schemas::parse(&data).expect("generated data loads");
    let types = Vectors::read("built_in.jsonl.gz").types("built-in");
    let mut upstream = Schema::new(&types);
    // Definitions that upstream does not publish cannot be applied either.
    let mut published = Vec::new();
    for (id, definition) in schemas.iter() {
        if upstream.has(&definition.name) {
            published.push((id, definition, upstream.named(&definition.name)));
        }
    }
    let mut walk = Walk::default();
    for (id, definition, root) in &published {
        let before = walk.differences.len();
        let ours = BuiltIn::root(&schemas, *id);
        walk.node(&definition.name, ours, upstream.at(*root));
        walk.equal += usize::from(before == walk.differences.len());
    }
    println!(
        "definitions: {} of {}; positions: {}",
        walk.equal,
        schemas.len(),
        walk.positions
    );
    assert!(walk.positions > 3000, "{} positions", walk.positions);
    assert_eq!(walk.differences, Vec::<String>::new());
}

#[derive(Default)]
struct Walk {
    seen: HashSet<String>,
    positions: usize,
    equal: usize,
    differences: Vec<String>,
}

impl Walk {
    fn same(&mut self, path: &str, what: &str, ours: impl ToString, upstream: impl ToString) {
        let (ours, upstream) = (ours.to_string(), upstream.to_string());
        if ours != upstream {
            let text = format!("{path}: {what}: ours {ours}, upstream {upstream}");
            self.differences.push(text);
        }
    }

    fn node(&mut self, path: &str, ours: BuiltIn<'_>, upstream: Position<'_>) {
        self.positions += 1;
        let form = form(upstream);
        self.same(
            path,
            "form",
            format!("{:?}", ours.form()),
            format!("{form:?}"),
        );
        match form {
            Form::Object => {
                let relations = (format!("{:?}", ours.map()), format!("{:?}", upstream.map()));
                self.same(path, "map", relations.0, relations.1);
                self.members(path, ours, upstream);
            }
            Form::List => {
                let relations = (
                    format!("{:?}", ours.list()),
                    format!("{:?}", upstream.list()),
                );
                self.same(path, "list", relations.0, relations.1);
                if let (Some(ours), Some(upstream)) = (ours.item(), upstream.item()) {
                    self.below(&format!("{path}[]"), ours, upstream);
                }
            }
            _ => {}
        }
    }

    /// Compares what a position contains; each type only once, because types may contain themselves.
    fn below(&mut self, path: &str, ours: BuiltIn<'_>, upstream: Position<'_>) {
        let relations = format!("{:?}{:?}", upstream.map(), ours.map());
        let name = upstream.name();
        if name.is_empty() || self.seen.insert(format!("{name}{relations}")) {
            self.node(path, ours, upstream);
        }
    }

    fn members(&mut self, path: &str, ours: BuiltIn<'_>, upstream: Position<'_>) {
        for (name, theirs) in upstream.children() {
            let Some(own) = ours.child(name) else {
                if !(ours.has_kind() && matches!(name, "apiVersion" | "kind")) {
                    self.same(path, name, "absent", "present");
                }
                continue;
            };
            let path = format!("{path}.{name}");
            let defaults = (own.key_default(), theirs.key_default());
            let show = |default: Option<&_>| default.map(json::to_string).unwrap_or_default();
            let (own_default, default) = (show(defaults.0), show(defaults.1));
            // Only scalars can be keys.
            if !default.starts_with(['{', '[']) {
                self.same(&path, "default", own_default, default);
            }
            self.below(&path, own, theirs);
        }
        for (name, _) in ours.children() {
            if upstream.child(name).is_none() {
                self.same(path, name, "present", "absent");
            }
        }
        match (ours.values(), upstream.values()) {
            (Some(Values::Of(ours)), Some(Values::Of(upstream))) => {
                self.below(&format!("{path}[*]"), ours, upstream);
            }
            (own, theirs) => {
                // An object without fields may have any member.
                let is_free = own.is_some() || ours.children().next().is_none();
                self.same(path, "values", is_free, theirs.is_some());
            }
        }
    }
}

/// Returns the form of a position of upstream; those that allow everything are named differently
/// there.
fn form(upstream: Position<'_>) -> Form {
    let has_fields = upstream.children().next().is_some();
    match upstream.form() {
        Form::Any if upstream.map() == MapType::Atomic => Form::Opaque,
        Form::Any if !has_fields && matches!(upstream.values(), Some(Values::Untyped)) => {
            Form::Untyped
        }
        form => form,
    }
}
