//! The conversion of a tree into the form that a plane stores, and the checks that every create and
//! update shares.

use crate::kinds::conversion;
use crate::kinds::conversion::KindVersion;
use crate::kinds::custom::CustomKind;
use crate::kinds::table::{Resource, Scope};
use crate::metadata;
use crate::plan::fields::{self, ManagedKind};
use crate::plan::{Interrupted, Run};
use crate::request::call::{Call, key_of};
use crate::settings::Lifetimes;
use crate::strategy::{Companion, CompanionChange};
use polyplane_apimachinery::Value;
use polyplane_apimachinery::field_error::{FieldError, Path};
use polyplane_apimachinery::schema::decode::Empties;
use polyplane_apimachinery::status::{ApiError, Cause, Qualified, Reason};
use polyplane_apimachinery::strconv;
use polyplane_plane::{Claim, Flags, Key, NewObject, ObjectRef, Operation, Snapshot, Write};

/// The message of a conflict, in upstream's words.
pub const STALE: &str =
    "the object has been modified; please apply your changes to the latest version and try again";

/// Converts a canonical tree in the stored version into the form that a plane stores, written at `now`,
/// in seconds since 1970.
///
/// # Panics
/// Panics if the tree has no metadata. Every tree here was checked by the schema, which requires
/// it.
pub fn new_object(row: &Resource, tree: &Value, (now, lifetimes): (i64, &Lifetimes)) -> NewObject {
    let custom = row.custom.as_ref();
    let lacks_defaults = custom.is_some_and(|custom| custom.lacks_defaults(row, tree));
    let encoded = row.schemas.encode_stored(row.stored_definition, tree);
    let slot = encoded
        .version
        .expect("an object that is stored has metadata");
    let mut flags = match lacks_defaults {
        true => Flags::LACKS_DEFAULTS,
        false => Flags::NONE,
    };
    if !tree.str_at(&["metadata", "deletionTimestamp"]).is_empty() {
        flags = flags.with(Flags::DELETING);
        let holds_others = matches!(
            (row.storage.group.as_str(), row.storage.resource.as_str()),
            ("", "namespaces") | ("apiextensions.k8s.io", "customresourcedefinitions")
        );
        if holds_others {
            flags = flags.with(Flags::TERMINATING);
        }
    }
    NewObject {
        body: encoded.bytes.into(),
        version_slot: slot.following(),
        labels: encoded.labels,
        storage_version: row.storage.version.clone(),
        expires: row
            .strategy
            .lifetime(lifetimes)
            .and_then(|seconds| u64::try_from(now + seconds).ok()),
        flags,
    }
}

/// Returns the operation that stores a tree, which is given in the version that objects are
/// prepared in.
///
/// # Errors
/// Returns 500 if the tree cannot be converted, or requests a reply that is needed first.
pub fn put(
    run: &mut Run<'_>,
    row: &Resource,
    key: Key,
    tree: &Value,
) -> Result<Operation, Interrupted> {
    let forms = (KindVersion::prepared(row), KindVersion::storage(row));
    let time = (run.now, &run.call.tenant.settings.lifetimes);
    let object = if let Some(custom) = &row.custom {
        let kept = custom.kept(row, tree)?;
        new_object(row, kept.as_ref().unwrap_or(tree), time)
    } else if conversion::is_same(row, forms.0, forms.1) {
        new_object(row, tree, time)
    } else {
        let mut stored = run.convert(row, tree.clone(), forms)?;
        let decoded = row
            .schemas
            .decode_again(row.stored_definition, &mut stored, Empties::Null);
        decoded.map_err(|error| {
            let (from, to) = forms;
            conversion::failed(row, from, to, &ApiError::internal(error.to_string()))
        })?;
        new_object(row, &stored, time)
    };
    Ok(Operation::Put { key, object })
}

/// Returns the refusal of a new object whose name is taken.
pub fn exists(call: &Call<'_>, tree: &Value, present: &ObjectRef) -> ApiError {
    let what = Qualified::new(&call.row.group, &call.row.name);
    let name = present.key().name();
    let mut error = if tree.str_at(&["metadata", "generateName"]).is_empty() {
        ApiError::already_exists(what, name)
    } else {
        ApiError::generate_name_conflict(what, name, 1)
    };
    if present.flags().has(Flags::DELETING) {
        error.message = format!("object is being deleted: {}", error.message);
    }
    error
}

/// Adds the objects that are created and removed together with another one.
///
/// # Errors
/// Returns 500 if a companion is of a kind this plane does not serve.
pub fn add_companions(
    run: &mut Run<'_>,
    companions: Vec<Companion>,
    write: &mut Write,
) -> Result<(), Interrupted> {
    for companion in companions {
        let base = &run.call.tenant.base;
        let row = base
            .stored(&companion.group, &companion.resource)
            .ok_or_else(|| {
                ApiError::internal(format!("{} is not served here", companion.resource))
            })?;
        let namespace = companion.namespace.as_deref().unwrap_or("");
        let key = key_of(row, namespace, &companion.name);
        let present = run.cut.get(&key);
        match companion.change {
            CompanionChange::Ensure(_) if present.is_some() => {}
            CompanionChange::Remove | CompanionChange::Replace(_) if present.is_none() => {}
            CompanionChange::Replace(mut tree) => {
                drop(tree.remove(&["metadata", "resourceVersion"]));
                if let Some(live) = present {
                    let live = run.call.stored_tree(&live)?;
                    // Companions are replaced to count something in their status.
                    let mut kind = ManagedKind::of(run.call, row, "status");
                    fields::update(run, &mut kind, companion.manager, Some(&live), &mut tree)?;
                }
                let put = put(run, row, key, &tree)?;
                write.operations.push(put);
            }
            CompanionChange::Remove => write.operations.push(Operation::Delete { key }),
            CompanionChange::Ensure(mut tree) | CompanionChange::Create(mut tree) => {
                fill_new(run, &mut tree, namespace, &companion.name);
                let mut kind = ManagedKind::of(run.call, row, "");
                fields::update(run, &mut kind, companion.manager, None, &mut tree)?;
                write.claims.push(Claim::Absent(key.clone()));
                let put = put(run, row, key, &tree)?;
                write.operations.push(put);
            }
        }
    }
    Ok(())
}

fn fill_new(run: &Run<'_>, tree: &mut Value, namespace: &str, name: &str) {
    tree.set(&["metadata", "name"], name);
    if !namespace.is_empty() {
        tree.set(&["metadata", "namespace"], namespace);
    }
    let now = run.time();
    metadata::fill_system_fields(tree, run.call.environment.uid(), &now);
}

/// Checks that the namespace accepts new objects, and claims that this stays so.
///
/// # Errors
/// Returns 404 if the namespace does not exist, 403 if it is being deleted.
pub fn admit_namespace(
    call: &Call<'_>,
    cut: &Snapshot,
    name: &str,
) -> Result<Option<Claim>, ApiError> {
    if call.row.scope == Scope::Cluster {
        return Ok(None);
    }
    let namespace = call.namespace();
    let key = Key::new("", "namespaces", None, namespace);
    let Some(object) = cut.get(&key) else {
        return Err(ApiError::not_found(
            Qualified::new("", "namespaces"),
            namespace,
        ));
    };
    if object.flags().has(Flags::TERMINATING) {
        let why = format!(
            "unable to create new content in namespace {namespace} because it is being terminated"
        );
        let what = Qualified::new(&call.row.group, &call.row.name);
        return Err(ApiError::forbidden(what, name, why).with_cause(Cause {
            reason: "NamespaceTerminating".into(),
            message: format!("namespace {namespace} is being terminated"),
            field: "metadata.namespace".into(),
        }));
    }
    Ok(Some(Claim::Active(key)))
}

/// Checks that the definition of a custom kind accepts new objects, and claims that this stays so.
///
/// # Errors
/// Returns 403 if the definition is being deleted.
pub fn admit_kind(run: &Run<'_>, custom: &CustomKind, tree: &Value) -> Result<Claim, ApiError> {
    let claim = Claim::Active(custom.definition.clone());
    if run.cut.holds(&claim) {
        return Ok(claim);
    }
    let row = run.call.row;
    Err(ApiError::forbidden(
        Qualified::new(&row.group, &row.name),
        tree.str_at(&["metadata", "name"]),
        "create not allowed while custom resource definition is terminating",
    ))
}

/// The meaning of the version that an object names.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum VersionPrecondition {
    /// The object names the version it replaces, or may name none.
    AsGiven,
    /// The object was made from the present one, so naming no version means any version.
    Any,
}

/// Compares the version that the client names with the present one.
///
/// # Errors
/// Returns 409 if it is another one, 422 if the client must name one.
/// [`Interrupted::VersionUnsettled`] means that the present version is not known yet.
pub fn check_version(
    call: &Call<'_>,
    existing: &ObjectRef,
    tree: &Value,
    precondition: VersionPrecondition,
) -> Result<(), Interrupted> {
    let name = existing.key().name();
    let given = tree.str_at(&["metadata", "resourceVersion"]);
    if given.is_empty() || given == "0" {
        let required =
            precondition == VersionPrecondition::AsGiven && !call.row.rules.unconditional_update;
        if required {
            let path = Path::new("metadata");
            let path = path.child("resourceVersion");
            let error = FieldError::invalid(&path, 0i64, "must be specified for an update");
            let kind = Qualified::new(&call.row.group, &call.row.name);
            return Err(ApiError::invalid(kind, name, &[error]).into());
        }
        return Ok(());
    }
    check_number(given)?;
    match existing.version() {
        None => Err(Interrupted::VersionUnsettled),
        Some(version) if version.to_string() == given => Ok(()),
        Some(_) => Err(call.conflict(name, STALE).into()),
    }
}

/// Checks the version that an update or a patch names for an object which it creates. Upstream's registry reads it
/// after mutating admission, and drops it when it stores the object.
///
/// # Errors
/// Returns 500 if it is no number.
pub fn check_new_version(tree: &Value) -> Result<(), ApiError> {
    match tree.str_at(&["metadata", "resourceVersion"]) {
        "" => Ok(()),
        given => check_number(given),
    }
}

/// Checks that a version is a number, with upstream's error.
fn check_number(version: &str) -> Result<(), ApiError> {
    match strconv::parse_uint(version) {
        Ok(_) => Ok(()),
        Err(error) => Err(ApiError::new(Reason::Unknown, error.to_string())),
    }
}

/// Returns true if a change removes the last finalizer or other reason that kept a deleted object
/// alive.
pub fn goes_with_last_finalizer(row: &Resource, tree: &Value, old: &Value) -> bool {
    !row.strategy.awaits(tree)
        && tree.items_at(&["metadata", "finalizers"]).is_empty()
        && !old.str_at(&["metadata", "deletionTimestamp"]).is_empty()
        && old
            .int_at(&["metadata", "deletionGracePeriodSeconds"])
            .unwrap_or(0)
            == 0
}

/// Sets the version of an object in a tree, if that version is known.
pub fn set_version(tree: &mut Value, object: &ObjectRef) {
    if let Some(version) = object.version() {
        tree.set(&["metadata", "resourceVersion"], version.to_string());
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use polyplane_apimachinery::json;

    #[test]
    fn the_version_of_an_object_that_a_patch_creates_has_to_be_a_number() {
        let refusal = |version: Value| {
            let tree = json!({"metadata": {"name": "a", "resourceVersion": version}});
            check_new_version(&tree)
                .err()
                .map(|error| (error.code, error.message))
        };
        for version in [Value::Null, "".into(), "0".into(), "7".into()] {
            assert_eq!(refusal(version), None);
        }
        let text = "strconv.ParseUint: parsing \"abc\": invalid syntax";
        assert_eq!(refusal("abc".into()), Some((500, text.to_owned())));
    }
}
