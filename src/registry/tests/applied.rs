//! Custom objects that an apply has made, as they are stored.

use super::*;
use crate::kinds::custom::{CompileTurn, ConversionStrategy, CustomKind, CustomSchema};
use bytes::Bytes;
use polyplane_apimachinery::json;
use polyplane_apimachinery::structural::Structural;
use polyplane_plane::ContentId;

/// A schema that is always compiled.
#[derive(Debug)]
struct Compiled {
    source: Bytes,
    structural: Arc<Structural>,
    turn: CompileTurn,
}

impl CustomSchema for Compiled {
    fn id(&self) -> ContentId {
        ContentId::of([&self.source[..]])
    }

    fn is_compiled(&self) -> bool {
        true
    }

    fn source(&self) -> &Bytes {
        &self.source
    }

    fn structural(&self) -> Arc<Structural> {
        Arc::clone(&self.structural)
    }

    fn compile_turn(&self) -> &CompileTurn {
        &self.turn
    }
}

fn kind(schema: &'static str) -> CustomKind {
    let metadata = SCHEMAS.find("io.k8s.apimachinery.pkg.apis.meta.v1.ObjectMeta");
    let structural = Structural::parse(&tree(schema)).expect("it is structural");
    CustomKind {
        definition: Key::new("", "definitions", None, "a.b"),
        discovered_verbs: Vec::new().into(),
        metadata: metadata.expect("all kinds have metadata"),
        schema: Arc::new(Compiled {
            source: Bytes::from_static(schema.as_bytes()),
            structural: Arc::new(structural),
            turn: CompileTurn::default(),
        }),
        versions: Vec::new().into(),
        conversion: ConversionStrategy::None,
        scale: None,
        replicas: Vec::new().into(),
    }
}

#[test]
fn an_applied_null_is_stored_only_where_the_schema_allows_it() {
    let kind = kind(
        r#"{"type": "object", "properties": {"spec": {"type": "object", "properties": {
            "any": {"x-kubernetes-preserve-unknown-fields": true},
            "kept": {"x-kubernetes-preserve-unknown-fields": true, "nullable": true},
            "list": {"type": "array", "items": {"x-kubernetes-preserve-unknown-fields": true}},
            "template": {"type": "object", "x-kubernetes-embedded-resource": true,
                "x-kubernetes-preserve-unknown-fields": true}}}}}"#,
    );
    let mut object = json!({
        "metadata": {"name": "a", "resourceVersion": "7"},
        "spec": {
            "any": null,
            "kept": null,
            "list": [null],
            "template": {"apiVersion": "v1", "kind": "X", "metadata": null, "data": {"k": null}}
        }
    });
    kind.complete_apply(&SCHEMAS, &mut object)
        .expect("it is valid");
    let embedded = object.remove(&["spec", "template", "metadata"]);
    let embedded = embedded.expect("it is there");
    assert!(embedded.as_object().is_some(), "{embedded:?}");
    let stored = json!({
        "metadata": {"name": "a", "resourceVersion": "7"},
        "spec": {
            "kept": null,
            "list": [null],
            "template": {"apiVersion": "v1", "kind": "X", "data": {"k": null}}
        }
    });
    assert_eq!(object, stored);
}
