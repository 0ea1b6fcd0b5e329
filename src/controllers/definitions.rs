//! Finishes what a definition of a kind began: deletes the objects of a deleted kind and then the
//! definition, and looks again at definitions whose names were taken. This module does not know the
//! queue.

use crate::client::{OwnClient, OwnRequest, metadata, tree};
use crate::work::Progress;
use polyplane_apimachinery::status::ApiError;
use polyplane_apimachinery::time::Timestamp;
use polyplane_apimachinery::{Str, Value, json};
use polyplane_batteries::definition_status::{CLEANUP, begin_cleanup, pending_in};
use polyplane_plane::{Flags, Key, ObjectRef, Prefix, Start};
use polyplane_registry::{Resource, Tenant, Verb};
use std::sync::Arc;
use std::time::SystemTime;

/// The API group of definitions.
pub(crate) const GROUP: &str = "apiextensions.k8s.io";
/// Their resource.
pub(crate) const RESOURCE: &str = "customresourcedefinitions";

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
    if let Some(row) = kind_of(tenant, &key) {
        let all = row.stored_prefix();
        if tenant.plane.snapshot().count(&all) > 0 {
            let delete = OwnRequest::new(Verb::DeleteCollection, &row, "", "");
            drop(delete.send(client, tenant).await?);
        }
        if tenant.plane.snapshot().count(&all) > 0 {
            return Ok(Progress::Waiting);
        }
    }
    let kept = metadata(&definition)?;
    let kept = kept.items_at(&["metadata", "finalizers"]).iter();
    let Some(at) = kept.clone().position(|name| name.as_str() == Some(CLEANUP)) else {
        return Ok(Progress::Waiting);
    };
    let place = format!("/metadata/finalizers/{at}");
    let patch = json!([
        {"op": "test", "path": (place.as_str()), "value": (CLEANUP)},
        {"op": "remove", "path": (place.as_str())}
    ]);
    let own = OwnRequest {
        content_type: "application/json-patch+json",
        body: &patch,
        ..OwnRequest::new(Verb::Patch, own, "", name)
    };
    own.send(client, tenant).await?;
    Ok(Progress::Done)
}

/// Writes into the status of a deleted definition that the objects of its kind are being deleted.
async fn announce(
    client: &OwnClient,
    tenant: &Tenant,
    row: &Resource,
    definition: &ObjectRef,
) -> Result<(), ApiError> {
    let mut known = tree(&tenant.kinds(), definition)?;
    let now = Timestamp::from(SystemTime::now()).to_rfc3339();
    if !begin_cleanup(&mut known, &now) {
        return Ok(());
    }
    let update = OwnRequest {
        subresource: "status",
        body: &known,
        manager: "kube-apiserver",
        ..OwnRequest::new(Verb::Update, row, "", definition.key().name())
    };
    match update.send(client, tenant).await {
        // It is gone already.
        Err(error) if error.code != 404 => Err(error),
        _ => Ok(()),
    }
}

/// Returns the kind that a definition defines, if it is served.
fn kind_of(tenant: &Tenant, definition: &Key) -> Option<Arc<Resource>> {
    let (plural, group) = definition.name().split_once('.')?;
    let kinds = tenant.kinds();
    let row = kinds.stored_resources().find(|row| {
        let custom = row.custom.as_ref();
        row.name == plural
            && row.group == group
            && custom.is_some_and(|custom| custom.definition == *definition)
    });
    row.cloned()
}

fn definition_row(tenant: &Tenant) -> Result<&Arc<Resource>, ApiError> {
    tenant
        .base
        .stored(GROUP, RESOURCE)
        .ok_or_else(|| ApiError::internal("definitions of kinds are not served"))
}
