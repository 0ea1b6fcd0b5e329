//! Recreates objects that a client deleted although each namespace or plane must have them: the
//! config map `kube-root-ca.crt`, the default service account, objects of the layer. This module
//! does not decide when a reconciler runs.

use crate::client::{JSON_PATCH, OwnRequest, tree};
use crate::work::{Progress, ReconcilerContext};
use polyplane_apimachinery::status::{ApiError, Reason};
use polyplane_apimachinery::{Str, Value, json};
use polyplane_batteries::{CONTENT_MANAGER, root_ca};
use polyplane_plane::{Flags, Key, ObjectRef};
use polyplane_registry::{Tenant, Verb};

const ROOT_CA: &str = "kube-root-ca.crt";

/// Returns true for the objects that every namespace has.
pub(crate) fn is_namespace_content(key: &Key) -> bool {
    matches!(
        (key.resource(), key.name()),
        ("configmaps", ROOT_CA) | ("serviceaccounts", "default")
    )
}

/// Creates or corrects the objects that every namespace has, unless the namespace is being deleted.
pub(crate) async fn namespace_content(
    context: &ReconcilerContext,
    tenant: &Tenant,
    namespace: &str,
) -> Result<Progress, ApiError> {
    let holder = tenant
        .plane
        .snapshot()
        .get(&Key::new("", "namespaces", None, namespace));
    if holder.is_none_or(|holder| holder.flags().has(Flags::TERMINATING)) {
        return Ok(Progress::Done);
    }
    let account = json!({"metadata": {"name": "default"}});
    ensure(context, tenant, "serviceaccounts", namespace, &account).await?;
    let certificates = tenant.settings.serving_ca.clone();
    let mut wanted = root_ca(&certificates);
    wanted.set(&["metadata", "name"], ROOT_CA);
    ensure(context, tenant, "configmaps", namespace, &wanted).await?;
    let map = tenant
        .plane
        .snapshot()
        .get(&Key::new("", "configmaps", Some(namespace), ROOT_CA));
    let known = map.map(|map| tree(&tenant.kinds(), &map)).transpose()?;
    if known.is_some_and(|known| known["data"] != wanted["data"]) {
        let row = tenant.base.stored("", "configmaps");
        let row = row.ok_or_else(|| ApiError::internal("configmaps are not served"))?;
        let patch = json!([{"op": "add", "path": "/data", "value": (wanted["data"].clone())}]);
        let own = OwnRequest {
            content_type: JSON_PATCH,
            body: &patch,
            manager: CONTENT_MANAGER,
            ..OwnRequest::new(Verb::Patch, row, namespace, ROOT_CA)
        };
        own.send(&context.registry, tenant).await?;
    }
    Ok(Progress::Done)
}

async fn ensure(
    context: &ReconcilerContext,
    tenant: &Tenant,
    resource: &str,
    namespace: &str,
    object: &Value,
) -> Result<(), ApiError> {
    let name = object.str_at(&["metadata", "name"]);
    if tenant
        .plane
        .snapshot()
        .get(&Key::new("", resource, Some(namespace), name))
        .is_some()
    {
        return Ok(());
    }
    let row = tenant.base.stored("", resource);
    let row = row.ok_or_else(|| ApiError::internal("a core kind is not served"))?;
    create(
        context,
        tenant,
        OwnRequest {
            body: object,
            manager: CONTENT_MANAGER,
            ..OwnRequest::new(Verb::Create, row, namespace, "")
        },
    )
    .await
}

/// Creates an object. Succeeds also if the object exists already or its namespace does not.
async fn create(
    context: &ReconcilerContext,
    tenant: &Tenant,
    own: OwnRequest<'_>,
) -> Result<(), ApiError> {
    match own.send(&context.registry, tenant).await {
        Ok(_) => Ok(()),
        Err(error)
            if matches!(
                error.reason,
                Reason::AlreadyExists | Reason::NotFound | Reason::Forbidden
            ) =>
        {
            Ok(())
        }
        Err(error) => Err(error),
    }
}

/// Recreates an object of the layer, as a new object with a new uid.
pub(crate) async fn bootstrap(
    context: &ReconcilerContext,
    tenant: &Tenant,
    key: &Key,
) -> Result<Progress, ApiError> {
    if tenant.plane.snapshot().get(key).is_some() {
        return Ok(Progress::Done);
    }
    if let Some(object) = tenant.plane.layer_object(key) {
        recreate(context, tenant, &object).await?;
    }
    Ok(Progress::Done)
}

/// Creates a copy of a layer's object as the plane's own object. Its creator is the manager who owns
/// the fields of the layer's object, so that it has the same owners again.
pub(crate) async fn recreate(
    context: &ReconcilerContext,
    tenant: &Tenant,
    object: &ObjectRef,
) -> Result<(), ApiError> {
    let key = object.key();
    let kinds = tenant.kinds();
    let Some(row) = kinds.stored(key.group(), key.resource()) else {
        return Ok(());
    };
    let mut body = tree(&kinds, object)?;
    let creator = creator(&body);
    for given in [
        "uid",
        "resourceVersion",
        "creationTimestamp",
        "managedFields",
    ] {
        drop(body.remove(&["metadata", given]));
    }
    let namespace = key.namespace().unwrap_or("");
    let own = OwnRequest {
        body: &body,
        manager: &creator,
        ..OwnRequest::new(Verb::Create, row, namespace, "")
    };
    create(context, tenant, own).await
}

/// Returns the manager that has created a layer's object; empty if the object has no owners.
pub(crate) fn creator(object: &Value) -> Str {
    let entries = object.items_at(&["metadata", "managedFields"]).iter();
    let mut creators = entries.filter(|entry| {
        entry.str_at(&["operation"]) == "Update" && entry.str_at(&["subresource"]).is_empty()
    });
    let creator = creators.next();
    creator.map_or_else(Str::default, |entry| entry.str_at(&["manager"]).into())
}
