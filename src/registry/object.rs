//! From a tree to what a plane stores, and the rules every create and update shares.

use crate::call::{Call, key_of};
use crate::kind::{Resource, Scope};
use crate::metadata;
use crate::options::Persistence;
use crate::parameters;
use crate::prepare;
use crate::strategy::{Companion, CompanionChange};
use crate::write::{Plan, Unstored};
use polyplane_apimachinery::status::{ApiError, Cause, Qualified, Reason};
use polyplane_apimachinery::time::Timestamp;
use polyplane_apimachinery::{Str, Value};
use polyplane_plane::{Claim, Flags, Key, NewObject, ObjectRef, Operation, Snapshot, Write};

/// What a write of a stale object is told, in upstream's words.
pub const STALE: &str =
    "the object has been modified; please apply your changes to the latest version and try again";

/// Turns a canonical tree in the stored version into what a plane stores.
///
/// # Panics
/// If the tree has no metadata; every tree here went through the schema, which requires it.
pub fn new_object(call: &Call<'_>, row: &Resource, tree: &Value) -> NewObject {
    let encoded = row.schemas.encode_stored(row.stored_definition, tree);
    let slot = encoded
        .version
        .expect("an object that is stored has metadata");
    let mut flags = Flags::NONE;
    if !tree.str_at(&["metadata", "deletionTimestamp"]).is_empty() {
        flags = flags.with(Flags::DELETING);
        if row.storage.resource == "namespaces" && row.storage.group.is_empty() {
            flags = flags.with(Flags::TERMINATING);
        }
    }
    let now = call.environment.now();
    NewObject {
        body: encoded.bytes.into(),
        version_slot: slot.following(),
        labels: encoded.labels,
        storage_version: row.storage.version.clone(),
        expires: row
            .strategy
            .lifetime(tree)
            .and_then(|seconds| u64::try_from(now + seconds).ok()),
        flags,
    }
}

/// Fills, prepares and checks a new object and plans its creation.
///
/// # Errors
/// 404 or 403 for its namespace, 422 for its content, 409 if it is there.
pub fn plan_create(
    call: &Call<'_>,
    cut: &Snapshot,
    mut tree: Value,
    persistence: Persistence,
) -> Result<Plan, ApiError> {
    let mut claims = admit_namespace(call, cut, tree.str_at(&["metadata", "name"]))?;
    let context = call.context();
    let strategy = &call.row.strategy;
    prepare::create(call.row, &context, &mut tree);
    let allocation = strategy.allocate(&context, cut, &mut tree, None)?;
    prepare::canonical(call.row, &mut tree)?;
    let name = Str::from(tree.str_at(&["metadata", "name"]));
    let errors = prepare::validate_create(call.row, &context, &tree);
    if !errors.is_empty() {
        return Err(call.invalid(&name, &errors));
    }
    for text in strategy.warnings(&context, &tree, None) {
        call.warn(text);
    }
    let key = call.key(&name);
    if let Some(present) = cut.get(&key) {
        let what = Qualified::new(&call.row.group, &call.row.name);
        let mut error = if tree.str_at(&["metadata", "generateName"]).is_empty() {
            ApiError::already_exists(what, &name)
        } else {
            ApiError::generate_name_conflict(what, &name, 1)
        };
        if present.flags().has(Flags::DELETING) {
            error.message = format!("object is being deleted: {}", error.message);
        }
        return Err(error);
    }
    if persistence == Persistence::DryRun {
        return Ok(Plan::Answer(Unstored::Tree(tree)));
    }
    claims.push(Claim::Absent(key.clone()));
    claims.extend(allocation.claims);
    let mut operations = vec![Operation::Put {
        key,
        object: new_object(call, call.row, &tree),
    }];
    let mut companions = allocation.companions;
    companions.extend(strategy.companions(&context, &tree));
    add_companions(call, cut, companions, &mut operations, &mut claims)?;
    Ok(Plan::Commit(Write {
        operations,
        claims,
        deadline: Some(call.request.deadline),
    }))
}

/// Adds the objects that come and go with another one.
///
/// # Errors
/// 500 if a companion is of a kind this plane does not serve.
pub fn add_companions(
    call: &Call<'_>,
    cut: &Snapshot,
    companions: Vec<Companion>,
    operations: &mut Vec<Operation>,
    claims: &mut Vec<Claim>,
) -> Result<(), ApiError> {
    for companion in companions {
        let row = call
            .tenant
            .base
            .stored(&companion.group, &companion.resource)
            .ok_or_else(|| {
                ApiError::internal(format!("{} is not served here", companion.resource))
            })?;
        let namespace = companion.namespace.as_deref().unwrap_or("");
        let key = key_of(row, namespace, &companion.name);
        let present = cut.get(&key).is_some();
        match companion.change {
            CompanionChange::Ensure(_) if present => {}
            CompanionChange::Remove if !present => {}
            CompanionChange::Remove => operations.push(Operation::Delete { key }),
            CompanionChange::Ensure(mut tree) | CompanionChange::Create(mut tree) => {
                fill_new(call, &mut tree, namespace, &companion.name);
                claims.push(Claim::Absent(key.clone()));
                let object = new_object(call, row, &tree);
                operations.push(Operation::Put { key, object });
            }
        }
    }
    Ok(())
}

fn fill_new(call: &Call<'_>, tree: &mut Value, namespace: &str, name: &str) {
    tree.set(&["metadata", "name"], name);
    if !namespace.is_empty() {
        tree.set(&["metadata", "namespace"], namespace);
    }
    let now = Timestamp::from_seconds(call.environment.now()).to_rfc3339();
    metadata::fill_system_fields(tree, call.environment.uid(), &now);
}

/// Checks that the namespace takes in new objects and claims that it stays so.
fn admit_namespace(call: &Call<'_>, cut: &Snapshot, name: &str) -> Result<Vec<Claim>, ApiError> {
    if call.row.scope == Scope::Cluster {
        return Ok(Vec::new());
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
    Ok(vec![Claim::Active(key)])
}

/// What the client said about the version it replaces.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum VersionWish {
    /// The object names a version, or need not.
    AsGiven,
    /// The object was made from the present one (a patch), so no version means any.
    Any,
}

/// Prepares and checks a changed object and plans its storage. `tree` is in the stored version.
///
/// # Errors
/// 409 if the client means another state, 422 for its content.
pub fn plan_update(
    call: &Call<'_>,
    cut: &Snapshot,
    existing: &ObjectRef,
    tree: Value,
    wish: VersionWish,
    persistence: Persistence,
) -> Result<Plan, ApiError> {
    let old = call.stored_tree(existing)?;
    plan_change(call, cut, (existing, old), tree, wish, persistence)
}

/// As [`plan_update`], where the present object's tree is at hand.
///
/// # Errors
/// As [`plan_update`].
pub fn plan_change(
    call: &Call<'_>,
    cut: &Snapshot,
    (existing, old): (&ObjectRef, Value),
    mut tree: Value,
    wish: VersionWish,
    persistence: Persistence,
) -> Result<Plan, ApiError> {
    if let Some(plan) = check_version(call, existing, &tree, wish)? {
        return Ok(plan);
    }
    let context = call.context();
    prepare::update(call.row, &context, &mut tree, &old);
    let version = existing
        .version()
        .map(|version| version.to_string())
        .unwrap_or_default();
    tree.set(&["metadata", "resourceVersion"], version);
    let strategy = &call.row.strategy;
    let main = call.request.subresource.is_none();
    let allocation = if main {
        strategy.allocate(&context, cut, &mut tree, Some(&old))?
    } else {
        strategy.admit_subresource(&context, cut, &tree, &old)?;
        Default::default()
    };
    prepare::canonical(call.row, &mut tree)?;
    check_change(call, &tree, &old)?;
    let mut unversioned_old = old;
    unversioned_old.remove(&["metadata", "resourceVersion"]);
    tree.remove(&["metadata", "resourceVersion"]);
    if goes_with_last_finalizer(call, &tree, &unversioned_old) {
        return plan_final_delete(call, cut, existing, tree, persistence);
    }
    if tree == unversioned_old {
        return Ok(Plan::Answer(Unstored::Unchanged(existing.clone())));
    }
    if persistence == Persistence::DryRun {
        if let Some(version) = existing.version() {
            tree.set(&["metadata", "resourceVersion"], version.to_string());
        }
        return Ok(Plan::Answer(Unstored::Tree(tree)));
    }
    let key = existing.key().clone();
    let mut claims = vec![Claim::At(key.clone(), existing.stamp())];
    claims.extend(allocation.claims);
    let mut operations = vec![Operation::Put {
        key,
        object: new_object(call, call.row, &tree),
    }];
    add_companions(
        call,
        cut,
        allocation.companions,
        &mut operations,
        &mut claims,
    )?;
    Ok(Plan::Commit(Write {
        operations,
        claims,
        deadline: Some(call.request.deadline),
    }))
}

/// Compares uid and version of the wished object with the present one. A plan means that the
/// present version has to be known first.
fn check_version(
    call: &Call<'_>,
    existing: &ObjectRef,
    tree: &Value,
    wish: VersionWish,
) -> Result<Option<Plan>, ApiError> {
    let name = existing.key().name();
    let given = tree.str_at(&["metadata", "resourceVersion"]);
    if !given.is_empty()
        && given != "0"
        && let Err(why) = parameters::parse_version(given)
    {
        return Err(ApiError::new(Reason::Unknown, why));
    }
    if given.is_empty() || given == "0" {
        let required = wish == VersionWish::AsGiven && !call.row.rules.unconditional_update;
        if required {
            let path = polyplane_apimachinery::field_error::Path::new("metadata");
            let path = path.child("resourceVersion");
            let error = polyplane_apimachinery::field_error::FieldError::invalid(
                &path,
                0i64,
                "must be specified for an update",
            );
            let kind = Qualified::new(&call.row.group, &call.row.name);
            return Err(ApiError::invalid(kind, name, &[error]));
        }
        return Ok(None);
    }
    match existing.version() {
        None => Ok(Some(Plan::Settle)),
        Some(version) if version.to_string() == given => Ok(None),
        Some(_) => Err(call.conflict(name, STALE)),
    }
}

/// The part of an update that may refuse.
fn check_change(call: &Call<'_>, tree: &Value, old: &Value) -> Result<(), ApiError> {
    let context = call.context();
    let errors = prepare::validate_update(call.row, &context, tree, old);
    if !errors.is_empty() {
        return Err(call.invalid(tree.str_at(&["metadata", "name"]), &errors));
    }
    for text in call.row.strategy.warnings(&context, tree, Some(old)) {
        call.warn(text);
    }
    Ok(())
}

/// True if the change takes away what kept a deleted object alive.
fn goes_with_last_finalizer(call: &Call<'_>, tree: &Value, old: &Value) -> bool {
    !call.row.strategy.awaits(tree)
        && tree.items_at(&["metadata", "finalizers"]).is_empty()
        && !old.str_at(&["metadata", "deletionTimestamp"]).is_empty()
        && old
            .int_at(&["metadata", "deletionGracePeriodSeconds"])
            .unwrap_or(0)
            == 0
}

/// Plans the removal that a change brings about; the client gets the changed object with the
/// version it had.
fn plan_final_delete(
    call: &Call<'_>,
    cut: &Snapshot,
    existing: &ObjectRef,
    mut tree: Value,
    persistence: Persistence,
) -> Result<Plan, ApiError> {
    let Some(version) = existing.version() else {
        return Ok(Plan::Settle);
    };
    tree.set(&["metadata", "resourceVersion"], version.to_string());
    if persistence == Persistence::DryRun {
        return Ok(Plan::Answer(Unstored::Tree(tree)));
    }
    Ok(Plan::CommitAs(plan_removal(call, cut, existing)?, tree))
}

/// The write that removes an object and what goes with it.
///
/// # Errors
/// 500 if the stored object cannot be read.
pub fn plan_removal(
    call: &Call<'_>,
    cut: &Snapshot,
    existing: &ObjectRef,
) -> Result<Write, ApiError> {
    let key = existing.key().clone();
    let mut claims = vec![Claim::At(key.clone(), existing.stamp())];
    let mut operations = vec![Operation::Delete { key }];
    let old = call.stored_tree(existing)?;
    let mut nothing = Value::Null;
    let allocation = call
        .row
        .strategy
        .allocate(&call.context(), cut, &mut nothing, Some(&old))?;
    claims.extend(allocation.claims);
    add_companions(
        call,
        cut,
        allocation.companions,
        &mut operations,
        &mut claims,
    )?;
    Ok(Write {
        operations,
        claims,
        deadline: Some(call.request.deadline),
    })
}
