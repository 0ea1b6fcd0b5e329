//! Finishes what a definition of a kind began: deletes the objects of a deleted kind and then the
//! definition, and looks again at definitions whose names were taken. This module does not know the
//! queue.

use crate::client::{OwnClient, OwnRequest, tree};
use crate::work::Progress;
use polyplane_apimachinery::status::{ApiError, Reason};
use polyplane_apimachinery::time::Timestamp;
use polyplane_apimachinery::{Str, Value};
use polyplane_batteries::definition_status::{CLEANUP, begin_cleanup, pending_in};
use polyplane_plane::{Flags, Key, ObjectRef, Prefix, Start};
use polyplane_registry::{Resource, Tenant, Verb};
use std::sync::Arc;
use std::time::SystemTime;

/// The API group of definitions.
pub(crate) const GROUP: &str = "apiextensions.k8s.io";
/// Their resource.
pub(crate) const RESOURCE: &str = "customresourcedefinitions";
/// The type of the condition about the deletion of a kind's objects.
const TERMINATING: &str = "Terminating";

/// Returns the definitions of a plane that need work: those that are being deleted, and those whose
/// names were not accepted.
pub(crate) fn pending(tenant: &Tenant) -> Vec<Str> {
    let cut = tenant.plane.snapshot();
    let prefix = Prefix::resource(GROUP, RESOURCE);
    let all = cut.range(&prefix, Start::First);
    let deleted = all.filter(|object| object.flags().has(Flags::DELETING));
    let deleted = deleted.map(|object| Str::from(object.key().name()));
    let mut names: Vec<Str> = deleted.collect();
    names.extend(pending_in(&cut, ""));
    names
}

/// Returns the definitions that a write may have given work: the written one if it is being deleted,
/// that of the last object of a deleted kind, and those that waited for names.
pub(crate) fn touched(tenant: &Tenant, row: &Resource, object: &ObjectRef, gone: bool) -> Vec<Str> {
    let cut = || tenant.plane.snapshot();
    if let Some(custom) = row.custom.as_ref().filter(|_| gone) {
        let definition = cut().get(&custom.definition);
        let deleted = definition.filter(|definition| definition.flags().has(Flags::DELETING));
        return deleted
            .map(|definition| definition.key().name().into())
            .into_iter()
            .collect();
    }
    if row.name != RESOURCE || row.group != GROUP {
        return Vec::new();
    }
    let name = object.key().name();
    let is_deleted = !gone && object.flags().has(Flags::DELETING);
    let group = name.split_once('.').map_or("", |(_, group)| group);
    let waiting = pending_in(&cut(), group).into_iter();
    let waiting = waiting.filter(|other| gone || other != name);
    let itself = is_deleted.then(|| Str::from(name));
    itself.into_iter().chain(waiting).collect()
}

/// Deletes the objects of a deleted kind, and the definition once none is left. Looks again whether
/// the names of another definition are free.
pub(crate) async fn settle(
    client: &OwnClient,
    tenant: &Tenant,
    name: &str,
) -> Result<Progress, ApiError> {
    let key = Key::new(GROUP, RESOURCE, None, name);
    let Some(definition) = tenant.plane.snapshot().get(&key) else {
        return Ok(Progress::Done);
    };
    let own = definition_row(tenant)?;
    if !definition.flags().has(Flags::DELETING) {
        // A write that changes nothing but what the server decides.
        let nothing = Value::object();
        let again = OwnRequest {
            content_type: "application/merge-patch+json",
            body: &nothing,
            ..OwnRequest::new(Verb::Patch, own, "", name)
        };
        again.send(client, tenant).await?;
        return Ok(Progress::Done);
    }
    announce(client, tenant, own, &definition).await?;
    let kind = kind_of(tenant, &key);
    let is_left = || {
        let cut = tenant.plane.snapshot();
        kind.as_ref()
            .is_some_and(|kind| cut.count(&kind.stored_prefix()) > 0)
    };
    if let Some(kind) = kind.as_ref().filter(|_| is_left()) {
        let delete = OwnRequest::new(Verb::DeleteCollection, kind, "", "");
        if let Err(error) = delete.send(client, tenant).await {
            report_failure(client, tenant, own, &key, &error).await;
            return Err(error);
        }
    }
    if is_left() {
        return Ok(Progress::Waiting);
    }
    release(client, tenant, own, &key).await
}

/// Writes into the status of a deleted definition that the objects of its kind are being deleted.
async fn announce(
    client: &OwnClient,
    tenant: &Tenant,
    row: &Resource,
    definition: &ObjectRef,
) -> Result<(), ApiError> {
    let mut known = tree(&tenant.kinds(), definition)?;
    if !begin_cleanup(&mut known, &now()) {
        return Ok(());
    }
    update_status(client, tenant, row, &known).await
}

/// Writes into the status of a deleted definition why the objects of its kind could not be deleted. An
/// error of this write is dropped: the caller tries everything again.
async fn report_failure(
    client: &OwnClient,
    tenant: &Tenant,
    row: &Resource,
    key: &Key,
    error: &ApiError,
) {
    // These say nothing about the objects, and the next attempt follows at once.
    if error.reason == Reason::Conflict || error.is_moved() || error.is_kind_changed() {
        return;
    }
    let Ok(Some(mut known)) = deleted(tenant, key) else {
        return;
    };
    set_terminating(&mut known, Cleanup::Failed(error), &now());
    drop(update_status(client, tenant, row, &known).await);
}

/// Writes into the status of a deleted definition that no object of its kind is left, and removes the
/// finalizer that has kept the definition for them.
async fn release(
    client: &OwnClient,
    tenant: &Tenant,
    row: &Resource,
    key: &Key,
) -> Result<Progress, ApiError> {
    let Some(mut known) = deleted(tenant, key)? else {
        return Ok(Progress::Waiting);
    };
    set_terminating(&mut known, Cleanup::Completed, &now());
    let finalizers = known.at_mut(&["metadata", "finalizers"]);
    if let Some(finalizers) = finalizers.and_then(Value::as_array_mut) {
        finalizers.retain(|name| name.as_str() != Some(CLEANUP));
    }
    update_status(client, tenant, row, &known).await?;
    Ok(Progress::Done)
}

/// Returns the present tree of a definition if it is deleted and waits for the objects of its kind.
///
/// # Errors
/// Returns 500 if its bytes are damaged.
fn deleted(tenant: &Tenant, key: &Key) -> Result<Option<Value>, ApiError> {
    let definition = tenant.plane.snapshot().get(key);
    let definition = definition.filter(|definition| definition.flags().has(Flags::DELETING));
    let known = definition.map(|definition| tree(&tenant.kinds(), &definition));
    let known = known.transpose()?;
    Ok(known.filter(|known| {
        let mut finalizers = known.items_at(&["metadata", "finalizers"]).iter();
        finalizers.any(|name| name.as_str() == Some(CLEANUP))
    }))
}

/// Replaces the status of a definition, and the metadata that its strategy leaves to this subresource.
/// Succeeds also if the definition is gone.
async fn update_status(
    client: &OwnClient,
    tenant: &Tenant,
    row: &Resource,
    definition: &Value,
) -> Result<(), ApiError> {
    let name = definition.str_at(&["metadata", "name"]);
    let update = OwnRequest {
        subresource: "status",
        body: definition,
        manager: "kube-apiserver",
        ..OwnRequest::new(Verb::Update, row, "", name)
    };
    match update.send(client, tenant).await {
        Err(error) if error.code != 404 => Err(error),
        _ => Ok(()),
    }
}

/// The outcome of the deletion of a kind's objects.
#[derive(Clone, Copy)]
enum Cleanup<'a> {
    /// It failed with this error.
    Failed(&'a ApiError),
    /// No object is left.
    Completed,
}

/// Sets the condition about the deletion of a kind's objects. `definition` waits for them.
fn set_terminating(definition: &mut Value, cleanup: Cleanup<'_>, now: &str) {
    let (status, reason, message) = match cleanup {
        Cleanup::Failed(error) => {
            let message = format!("could not issue all deletes: {}", error.message);
            ("True", "InstanceDeletionFailed", Str::from(message))
        }
        Cleanup::Completed if has_condition(definition, "Established", "True") => {
            let message = "removed all instances";
            ("False", "InstanceDeletionCompleted", message.into())
        }
        Cleanup::Completed => {
            let message = "resource was never established";
            ("False", "NeverEstablished", message.into())
        }
    };
    // Adds the condition if somebody has removed it.
    begin_cleanup(definition, now);
    let is_new = !has_condition(definition, TERMINATING, status);
    let conditions = definition.at_mut(&["status", "conditions"]);
    let conditions = conditions.and_then(Value::as_array_mut);
    let mut conditions = conditions.into_iter().flatten();
    let known = conditions.find(|known| known.str_at(&["type"]) == TERMINATING);
    if let Some(known) = known {
        if is_new {
            known.set(&["lastTransitionTime"], now);
        }
        known.set(&["status"], status);
        known.set(&["reason"], reason);
        known.set(&["message"], message);
    }
}

fn has_condition(definition: &Value, kind: &str, status: &str) -> bool {
    let mut conditions = definition.items_at(&["status", "conditions"]).iter();
    conditions.any(|known| known.str_at(&["type"]) == kind && known.str_at(&["status"]) == status)
}

fn now() -> String {
    Timestamp::from(SystemTime::now()).to_rfc3339()
}

/// Returns the kind that a definition defines, if it is established. It may serve no version: its objects
/// are deleted all the same.
fn kind_of(tenant: &Tenant, definition: &Key) -> Option<Arc<Resource>> {
    let (plural, group) = definition.name().split_once('.')?;
    let kinds = tenant.kinds();
    kinds.defined_by(definition, (group, plural)).cloned()
}

fn definition_row(tenant: &Tenant) -> Result<&Arc<Resource>, ApiError> {
    tenant
        .base
        .stored(GROUP, RESOURCE)
        .ok_or_else(|| ApiError::internal("definitions of kinds are not served"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use polyplane_apimachinery::json;

    #[test]
    fn the_time_of_a_transition_stays_until_the_deletion_of_objects_is_over() {
        let (began, later) = ("2026-01-01T00:00:00Z", "2026-01-01T00:01:00Z");
        let mut known = json!({"metadata": {"finalizers": [CLEANUP]},
            "status": {"conditions": [{"type": "Established", "status": "True"}]}});
        assert!(begin_cleanup(&mut known, began));
        let refused = ApiError::new(Reason::Forbidden, "no");
        for (cleanup, wanted) in [
            (
                Cleanup::Failed(&refused),
                [
                    "True",
                    began,
                    "InstanceDeletionFailed",
                    "could not issue all deletes: no",
                ],
            ),
            (
                Cleanup::Completed,
                [
                    "False",
                    later,
                    "InstanceDeletionCompleted",
                    "removed all instances",
                ],
            ),
        ] {
            set_terminating(&mut known, cleanup, later);
            let conditions = known.items_at(&["status", "conditions"]);
            assert_eq!(conditions.len(), 2);
            let fields = ["status", "lastTransitionTime", "reason", "message"];
            assert_eq!(fields.map(|field| conditions[1].str_at(&[field])), wanted);
        }
    }
}
