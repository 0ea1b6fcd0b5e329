//! Objects of custom kinds, as upstream's own tests of their strategies have them: what is prepared,
//! what is complained about, and the fields by which lists are filtered.

use crate::definition_tables::{complaints, difference, folder, theirs};
use crate::shared::plane::{self, Opening};
use crate::shared::recorded;
use crate::site::{self, settings};
use polyplane_apimachinery::json::scan::Scanned;
use polyplane_apimachinery::{Value, json};
use polyplane_auth::UserInfo;
use polyplane_batteries::kind_tables::{custom_kinds, features, tenant_kinds};
use polyplane_registry::plan::prepare;
use polyplane_registry::request::options::Persistence;
use polyplane_registry::request::warnings::Warnings;
use polyplane_registry::strategy::Context;
use polyplane_registry::{Kinds, Resource};
use std::sync::Arc;

/// Returns the kind whose definition has this version.
fn served(version: Value) -> Arc<Resource> {
    let base = tenant_kinds();
    let definitions = base.stored("apiextensions.k8s.io", "customresourcedefinitions");
    let names = json!({"plural": "foos", "singular": "foo", "kind": "Foo", "listKind": "FooList"});
    let definition = json!({
        "metadata": {"name": "foos.test"},
        "spec": {"group": "test", "names": (names.clone()), "scope": "Cluster", "versions": [(version)]},
        "status": {
            "acceptedNames": (names),
            "conditions": [{"type": "Established", "status": "True"}],
            "storedVersions": ["v1"]
        }
    });
    let put = site::put(definitions.expect("it is built in"), definition);
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build();
    let overlay = runtime.expect("a runtime can be built").block_on(async {
        let derivation: Arc<dyn polyplane_plane::Derivation> = custom_kinds();
        let opening = Opening {
            derivation: Some(derivation),
            ..Opening::default()
        };
        let plane = plane::open(opening).await;
        plane::submit(&plane, vec![put]).await;
        plane.overlay()
    });
    let kinds = Kinds::new(base, overlay);
    let row = kinds.resolve("test", "v1", "foos");
    Arc::clone(row.expect("the definition is established"))
}

fn version(case: &Value) -> Value {
    let schema = match case.get("schema") {
        Some(schema) => schema.clone(),
        None => json!({"type": "object", "x-kubernetes-preserve-unknown-fields": true}),
    };
    let names = case.items_at(&["names"]).iter();
    let paths =
        names.filter_map(|name| Some(json!({"jsonPath": (format!(".{}", name.as_str()?))})));
    let mut version = json!({
        "name": "v1", "served": true, "storage": true,
        "schema": {"openAPIV3Schema": (schema)},
        "selectableFields": (paths.collect::<Vec<Value>>())
    });
    if case.bool_at(&["status"]) {
        version.set(&["subresources", "status"], Value::object());
    }
    version
}

/// Returns an object as strategies have it: without kind and version.
fn bare(object: &Value) -> Value {
    let mut bare = object.clone();
    drop(bare.remove(&["kind"]));
    drop(bare.remove(&["apiVersion"]));
    // A request names its object, unlike a test of one function.
    if bare.str_at(&["metadata", "name"]).is_empty() {
        bare.set(&["metadata", "name"], "unnamed");
    }
    bare
}

fn with_context<T>(case: &Value, row: &Resource, run: impl FnOnce(&Context<'_>) -> T) -> T {
    let kinds = tenant_kinds();
    run(&Context {
        now: 1_715_000_000,
        user: &UserInfo::new("admin", &["system:masters"]),
        subresource: case.str_at(&["subresource"]),
        persistence: Persistence::Store,
        lacks_labels: false,
        metadata_blocks_rules: false,
        plane: "p",
        settings: &settings(),
        schemas: &row.schemas,
        features: &features(),
        kinds: &kinds,
        warnings: &Warnings::default(),
    })
}

/// Compares what is prepared: all but metadata, and the generation.
fn prepared(case: &Value, row: &Resource, context: &Context<'_>) -> Option<String> {
    let (mut object, old) = (bare(&case["object"]), bare(&case["old"]));
    prepare::update(row, context, &mut object, &old);
    let shown = |object: &Value| {
        let mut object = bare(object);
        let generation = object.int_at(&["metadata", "generation"]).unwrap_or(0);
        drop(object.remove(&["metadata"]));
        format!("{generation} {}", json::to_string(&object))
    };
    difference(&shown(&object), &shown(&case["out"]))
}

fn validated(case: &Value, row: &Resource, context: &Context<'_>) -> Option<String> {
    let object = bare(&case["object"]);
    let errors = match case.get("old") {
        None => prepare::validate_create(row, context, &object),
        Some(old) => prepare::validate_update(row, context, &object, &bare(old)),
    };
    difference(&complaints(&errors), &theirs(case).0)
}

fn selected(case: &Value, row: &Resource) -> Option<String> {
    let body = json::to_vec(&case["object"]);
    let fields = case.items_at(&["names"]).iter().filter_map(Value::as_str);
    let ours: Vec<_> = fields
        .clone()
        .map(|name| row.strategy.field(Scanned(&body), name).unwrap_or_default())
        .collect();
    let theirs: Vec<_> = fields.map(|name| case["set"].str_at(&[name])).collect();
    difference(&ours, &theirs)
}

#[test]
fn custom_object_tables_agree() {
    let (mut total, mut different) = (0, Vec::new());
    for case in recorded::cases(&folder().join("objects.jsonl.gz")) {
        total += 1;
        let row = served(version(&case));
        let difference = with_context(&case, &row, |context| match case.str_at(&["op"]) {
            "prepare" => prepared(&case, &row, context),
            "validate" => validated(&case, &row, context),
            _ => selected(&case, &row),
        });
        if let Some(difference) = difference {
            let (from, name) = (case.str_at(&["from"]), case.str_at(&["case"]));
            different.push(format!("{from} {name}: {difference}"));
        }
    }
    println!("objects: {} of {total} agree", total - different.len());
    assert!(total > 20, "only {total} cases were found");
    assert!(different.is_empty(), "{different:#?}");
}
