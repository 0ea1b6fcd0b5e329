//! Equality of parts of objects, as rules about changes see it: see [`Schemas::alike`].

use polyplane_apimachinery::Value;
use polyplane_apimachinery::schema::{DefId, Schemas};

/// Returns true if two values of the type `definition` are equivalent.
pub fn alike(schemas: &Schemas, definition: &str, left: &Value, right: &Value) -> bool {
    schemas.alike(find(schemas, definition), left, right)
}

/// Returns true if a field of two values of the type `definition` is equivalent.
pub fn alike_in(
    schemas: &Schemas,
    definition: &str,
    field: &str,
    left: &Value,
    right: &Value,
) -> bool {
    schemas.alike_at(find(schemas, definition), &[field], left, right)
}

fn find(schemas: &Schemas, definition: &str) -> DefId {
    let id = schemas.find(definition);
    id.expect("the schemas of a kind define its parts")
}
