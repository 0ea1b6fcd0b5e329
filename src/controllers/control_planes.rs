//! Removes a deleted plane with all its objects, then its ControlPlane object. This module does not
//! know how a fence is set to Deleted.

use crate::client::{OwnRequest, tree};
use crate::work::{Progress, ReconcilerContext};
use polyplane_apimachinery::status::ApiError;
use polyplane_apimachinery::{Value, error_chain};
use polyplane_batteries::polyplane::control_plane;
use polyplane_plane::{Flags, Key};
use polyplane_registry::{Tenant, Verb};

pub(crate) use polyplane_batteries::polyplane::control_plane::{GROUP, RESOURCE};

/// Deletes the plane and its objects, then removes the finalizer of its ControlPlane object, and
/// with the last finalizer also the Deleted fence.
pub(crate) async fn remove(
    context: &ReconcilerContext,
    root: &Tenant,
    name: &str,
) -> Result<Progress, ApiError> {
    let Some(object) = root
        .plane
        .snapshot()
        .get(&Key::new(GROUP, RESOURCE, None, name))
    else {
        return Ok(Progress::Done);
    };
    if !object.flags().has(Flags::DELETING) {
        return Ok(Progress::Done);
    }
    let mut object = tree(&root.kinds(), &object)?;
    let id = object.str_at(&["status", "id"]).to_owned();
    let finalizers = object.items_at(&["metadata", "finalizers"]);
    if !finalizers.contains(&Value::string(control_plane::FINALIZER)) {
        return Ok(Progress::Waiting);
    }
    // The directory may not have a plane yet that was deleted right after its creation: fail, to
    // try again.
    let birth = context.info.birth(name).filter(|birth| birth.id == id);
    let birth = birth.ok_or_else(|| ApiError::service_unavailable("the directory lags behind"))?;
    let removed = context.planes.delete(&birth).await;
    removed.map_err(|error| ApiError::service_unavailable(error_chain(&error)))?;
    let kept: Vec<Value> = finalizers
        .iter()
        .filter(|finalizer| finalizer.as_str() != Some(control_plane::FINALIZER))
        .cloned()
        .collect();
    let last = kept.is_empty();
    object.set(&["metadata", "finalizers"], kept);
    let row = root.base.stored(GROUP, RESOURCE);
    let row = row.ok_or_else(|| ApiError::internal("control planes are not served"))?;
    let own = OwnRequest {
        body: &object,
        ..OwnRequest::new(Verb::Update, row, "", name)
    };
    own.send(&context.client, root).await?;
    if last {
        let forgotten = context.planes.remove_deleted_fence(&birth).await;
        forgotten.map_err(|error| ApiError::service_unavailable(error.to_string()))?;
    }
    Ok(Progress::Done)
}
