//! Finishes what a definition of a kind began: deletes the objects of a deleted kind and then the
//! definition, and looks again at definitions whose names were taken. This module does not know the
//! queue.

use crate::client::{OwnRequest, metadata};
use crate::work::{Progress, ReconcilerContext};
use polyplane_apimachinery::status::ApiError;
use polyplane_apimachinery::{Str, Value, json};
use polyplane_batteries::definition_status::{CLEANUP, pending_in};
use polyplane_plane::{Flags, Key, ObjectRef, Prefix, Start};
use polyplane_registry::{Resource, Tenant, Verb};
use std::sync::Arc;

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
    if !gone && object.flags().has(Flags::DELETING) {
        return vec![name.into()];
    }
    let group = name.split_once('.').map_or("", |(_, group)| group);
    pending_in(&cut(), group)
        .into_iter()
        .filter(|other| gone || other != name)
        .collect()
}

/// Deletes the objects of a deleted kind, and the definition once none is left. Looks again whether
/// the names of another definition are free.
pub(crate) async fn settle(
    context: &ReconcilerContext,
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
        again.send(&context.client, tenant).await?;
        return Ok(Progress::Done);
    }
    if let Some(row) = kind_of(tenant, &key) {
        let all = row.stored_prefix();
        if tenant.plane.snapshot().count(&all) > 0 {
            let delete = OwnRequest::new(Verb::DeleteCollection, &row, "", "");
            drop(delete.send(&context.client, tenant).await?);
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
    own.send(&context.client, tenant).await?;
    Ok(Progress::Done)
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
