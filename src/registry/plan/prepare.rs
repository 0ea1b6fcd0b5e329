//! The server's changes to a tree before it is stored, and the checks that the tree must pass: the
//! part of a write that can be compared with the oracle, without planes and requests.
//!
//! First the rules of the kind's row are applied (status belongs to its subresource, fields of
//! features that are off are dropped, generation is counted), then the kind's strategy, then the
//! canonical form.

use crate::complaints;
use crate::kinds::table::Resource;
use crate::metadata;
use crate::strategy::Context;
use polyplane_apimachinery::Value;
use polyplane_apimachinery::complaints::Complaints;
use polyplane_apimachinery::field_error::{FieldError, FieldErrorKind};
use polyplane_apimachinery::names::NameRule;
use polyplane_apimachinery::schema::DefId;
use polyplane_apimachinery::schema::decode::{Beyond, DecodeError, Empties};
use polyplane_apimachinery::shape::defaults::TooLarge;
use polyplane_apimachinery::status::{ApiError, Reason};
use std::collections::{BTreeSet, HashSet};

/// Applies the defaults of `definition` and of the kind.
///
/// # Errors
/// Returns the error of an object that the store would not take if the defaults make it larger than that.
pub fn default(row: &Resource, definition: DefId, tree: &mut Value) -> Result<(), ApiError> {
    row.strategy.default_first(tree);
    match &row.custom {
        Some(custom) if definition == row.definition => {
            let set = custom.default(&row.schemas, tree);
            set.map_err(|TooLarge| too_large())?;
        }
        _ => row.schemas.apply_defaults(definition, tree),
    }
    row.strategy.default(tree);
    Ok(())
}

/// Returns the error of an object that is larger than the store takes.
pub fn too_large() -> ApiError {
    ApiError::new(Reason::Unknown, "etcdserver: request is too large")
}

/// Prepares a new object in the stored version.
pub fn create(row: &Resource, context: &Context<'_>, tree: &mut Value) {
    if row.rules.has_status && !row.strategy.keeps_status() {
        drop(tree.remove(&["status"]));
    }
    if row.rules.generation {
        tree.set(&["metadata", "generation"], 1i64);
    }
    drop_gated(row, tree, None);
    row.strategy.prepare_create(context, tree);
}

/// Prepares a changed object in the stored version, whole or through a subresource.
pub fn update(row: &Resource, context: &Context<'_>, tree: &mut Value, old: &Value) {
    copy(tree, old, &["metadata", "generation"]);
    if context.subresource.is_empty() {
        if row.rules.has_status {
            copy(tree, old, &["status"]);
        }
        let dropped_counts = drop_gated(row, tree, Some(old));
        row.strategy.prepare_update(context, tree, old);
        if row.rules.generation && (dropped_counts || counts(row, tree, old)) {
            let generation = old.int_at(&["metadata", "generation"]).unwrap_or(0);
            tree.set(&["metadata", "generation"], generation + 1);
        }
    } else {
        drop_gated(row, tree, Some(old));
        row.strategy.prepare_subresource(context, tree, old);
    }
    metadata::keep_system_fields(tree, old);
}

/// Drops the fields of features that are off, unless `old` used them. Returns whether that counts
/// as a change in `metadata.generation`.
fn drop_gated(row: &Resource, tree: &mut Value, old: Option<&Value>) -> bool {
    let fields = row.gated_fields.as_ref();
    fields.is_some_and(|fields| fields.drop_unused(tree, old))
}

/// Returns true if `metadata.generation` counts the change.
fn counts(row: &Resource, tree: &Value, old: &Value) -> bool {
    if let Some(answer) = row.strategy.counts_generation(tree, old) {
        return answer;
    }
    let definition = row.schemas.get(row.prepared_definition());
    let fields = definition.fields.iter();
    let mut counted = fields.filter(|field| !matches!(&*field.name, "metadata" | "status"));
    if row.strategy.counts_empties() {
        return counted.any(|field| tree.get(&field.name) != old.get(&field.name));
    }
    !counted.all(|field| row.schemas.alike_in(field, tree, old))
}

fn copy(tree: &mut Value, from: &Value, path: &[&str]) {
    match from.at(path) {
        Some(value) => tree.set(path, value.clone()),
        None => drop(tree.remove(path)),
    }
}

/// Brings a tree that strategies have changed back into the one canonical form, but for empty lists and
/// maps that say something to whoever validates it. Returns true if there are such:
/// [`without_said_empties`] drops them.
///
/// # Errors
/// Returns 500 if a strategy produced something that the schema does not allow.
pub fn canonical(row: &Resource, tree: &mut Value) -> Result<bool, ApiError> {
    decoded(row, tree, |row, tree| {
        let decoded =
            row.schemas
                .decode_again(row.prepared_definition(), tree, Empties::NullUnlessSaid);
        decoded.map(|decoded| decoded.beyond == Beyond::Said)
    })
}

/// Brings a tree into the form that is stored, which has no empty list or map but where the field is
/// always written.
///
/// # Errors
/// See [`canonical`].
pub fn without_said_empties(row: &Resource, tree: &mut Value) -> Result<(), ApiError> {
    decoded(row, tree, |row, tree| {
        let decoded = row
            .schemas
            .decode_again(row.prepared_definition(), tree, Empties::Null);
        decoded.map(drop)
    })
}

/// Decodes a tree without its managed fields: field management has made them, or a decoder has.
fn decoded<T>(
    row: &Resource,
    tree: &mut Value,
    decode: impl FnOnce(&Resource, &mut Value) -> Result<T, DecodeError>,
) -> Result<T, ApiError> {
    let managed = tree.remove(&["metadata", "managedFields"]);
    let decoded = decode(row, tree);
    if let Some(managed) = managed {
        tree.set(&["metadata", "managedFields"], managed);
    }
    decoded.map_err(|error| {
        ApiError::internal(format!("a prepared {} is malformed: {error}", row.kind))
    })
}

/// Validates a new object.
pub fn validate_create(row: &Resource, context: &Context<'_>, tree: &Value) -> Complaints {
    let rule = row.strategy.name_rule().unwrap_or(row.name_rule);
    let mut errors = Complaints::default();
    if !row.strategy.validates_metadata_last() {
        errors.extend(metadata::validate(tree, row.scope, rule));
    }
    let context = Context {
        metadata_blocks_rules: errors.block_rules(),
        ..*context
    };
    errors.extend(row.strategy.validate_create(&context, tree));
    if row.strategy.validates_metadata_last() && errors.is_empty() {
        errors.extend(metadata::validate(tree, row.scope, rule));
    }
    with_declared(row, errors, tree, None)
}

/// Validates a changed object.
pub fn validate_update(
    row: &Resource,
    context: &Context<'_>,
    tree: &Value,
    old: &Value,
) -> Complaints {
    let mut errors = metadata::validate(tree, row.scope, NameRule::PathSegment);
    errors.extend(metadata::validate_update(tree, old));
    let context = Context {
        metadata_blocks_rules: errors.block_rules(),
        ..*context
    };
    errors.extend(if context.subresource.is_empty() {
        row.strategy.validate_update(&context, tree, old)
    } else {
        row.strategy.validate_subresource(&context, tree, old)
    });
    with_declared(row, errors, tree, Some(old))
}

/// Completes the complaints of the kind: fills in the refused values, and adds the complaints of
/// the schema's declarations that the kind has not made.
fn with_declared(
    row: &Resource,
    errors: Complaints,
    tree: &Value,
    old: Option<&Value>,
) -> Complaints {
    // Done first, because the rest compares messages.
    let mut errors = complaints::bound(errors, |error| row.schemas.show(&mut error.bad));
    if row.rules.declarative_validation {
        let mut seen = BTreeSet::new();
        let each = errors.into_iter();
        errors = each
            .filter(|error| seen.insert(error.to_string()))
            .collect();
    }
    let enabled = |gate: &str| row.features.enabled(gate);
    let declared = row
        .schemas
        .validate(row.prepared_definition(), tree, old, &enabled);
    if errors.is_empty() && declared.is_empty() {
        return declared;
    }
    // Upstream drops a complaint of the kind if a declaration makes the same one, and declarations
    // come last.
    let texts: BTreeSet<String> = declared.iter().map(FieldError::to_string).collect();
    let said: HashSet<_> = declared.iter().map(Said::of).collect();
    let (doubled, mut errors): (Complaints, Complaints) = errors.into_iter().partition(|error| {
        error.covered && said.contains(&Said::of(error)) || texts.contains(&error.to_string())
    });
    drop(said);
    let doubled: HashSet<_> = doubled.iter().map(Said::of).collect();
    let known: HashSet<_> = errors.iter().map(Said::of).collect();
    let declared = declared.into_iter().filter(|error| {
        let said = Said::of(error);
        doubled.contains(&said) || !known.contains(&said)
    });
    let declared: Vec<FieldError> = declared.collect();
    drop(known);
    // Upstream finds these in the version of the request, the others in the stored form.
    errors.extend(declared.into_iter().map(|mut error| {
        if let Some(served) = row.strategy.declared_field(&error.field) {
            error.field = served;
        }
        error
    }));
    complaints::bound(errors, |_| {})
}

/// What a complaint of a kind and one of a declaration have in common if they say the same: the field and the type. A
/// complaint that a field may not change does not equal one about its value.
#[derive(PartialEq, Eq, Hash)]
struct Said<'e> {
    kind: FieldErrorKind,
    field: &'e str,
    is_immutable: bool,
}

impl<'e> Said<'e> {
    fn of(error: &'e FieldError) -> Self {
        Self {
            kind: error.kind,
            field: &error.field,
            is_immutable: error.detail == "field is immutable",
        }
    }
}
