//! Steps planes of an older layer to this program's layer, once every binary that may still join
//! the ring knows it. This module does not decide when the floor rises.
//!
//! Ordinary requests first bring the plane's own objects up to date: objects that the user deleted
//! and upstream's start hooks would create again are created, and objects that the user changed are
//! merged by the rule of their kind. Then the plane takes the next commit of the step, which claims
//! that these objects have not changed since. After a crash the next wake continues from there.

use crate::client::{OwnClient, OwnRequest, tree};
use crate::restore;
use crate::work::{Progress, ReconcilerContext};
use polyplane_apimachinery::status::{ApiError, Reason};
use polyplane_apimachinery::time::Timestamp;
use polyplane_apimachinery::{Value, json};
use polyplane_batteries::bootstrap::upgrade::Merge;
use polyplane_batteries::bootstrap::{FOLDS_LEVEL, Release, ranges, upgrade};
use polyplane_plane::{Ahead, Layer, ObjectRef, Settled, Shadowed, Stepped, SubmitError};
use polyplane_registry::{Tenant, Verb};
use std::sync::Arc;
use std::time::{Duration, SystemTime};
use tokio::time::Instant;

/// How long one commit may take. Without the limit a store that does not answer would hold the
/// reconciler forever.
const PATIENCE: Duration = Duration::from_secs(30);
/// Rounds in which the plane's own objects are brought up to date before a commit is tried without
/// a further round. A user who changes them all the time must not keep the plane from stepping.
const ROUNDS_MAX: u32 = 5;

/// Returns whether a plane may step to this program's layer and has not done so yet.
pub(crate) fn is_behind(context: &ReconcilerContext, tenant: &Tenant) -> bool {
    context.planes.may_step()
        && target(context, tenant).is_ok_and(|layer| !tenant.plane.stands_on(layer.hash()))
}

/// Returns the layer of this program for the plane.
fn target(context: &ReconcilerContext, tenant: &Tenant) -> Result<Arc<Layer>, ApiError> {
    let release = &context.release;
    if !release.has_ranges() {
        return Ok(Arc::clone(release.layer()));
    }
    let shown = tenant.plane.layer_object(&ranges::service_cidr());
    let shown = shown.map(|object| tree(&tenant.kinds(), &object));
    let layer = release.layer_after(shown.transpose()?.as_ref());
    layer.map_err(|error| ApiError::internal(error.to_string()))
}

/// Takes all commits of the step to this program's layer.
pub(crate) async fn take_steps(
    context: &ReconcilerContext,
    tenant: &Tenant,
) -> Result<Progress, ApiError> {
    let plane = &tenant.plane;
    let layer = &target(context, tenant)?;
    let (mut rounds, mut commits, began) = (0, 0, Instant::now());
    while is_behind(context, tenant) {
        let kinds = tenant.kinds();
        let recreates =
            |old: &ObjectRef, new: &ObjectRef| match (tree(&kinds, old), tree(&kinds, new)) {
                (Ok(old_tree), Ok(new_tree)) => upgrade::recreates(old.key(), &old_tree, &new_tree),
                // An object that cannot be read is updated, not recreated.
                (Err(_), _) | (_, Err(_)) => false,
            };
        let now = Timestamp::from(SystemTime::now()).to_rfc3339();
        let ahead = plane.ahead(layer, &now, &recreates);
        let ahead = ahead.map_err(|missing| ApiError::internal(missing.to_string()))?;
        let Some(ahead) = ahead else {
            break;
        };
        // A program below that level may still join the ring, and could not read a folded record.
        let ahead = match context.planes.floor().level >= FOLDS_LEVEL {
            true => ahead.folding(),
            false => ahead,
        };
        if plane.settled(ahead.cut()).await == Settled::Recompute {
            continue;
        }
        if rounds < ROUNDS_MAX && bring_up_to_date(context, tenant, &ahead).await? {
            rounds += 1;
            continue;
        }
        match plane.step(&ahead, Instant::now() + PATIENCE).await {
            Ok(Stepped::Done) => (rounds, commits) = (0, commits + 1),
            Ok(Stepped::Again) => {}
            // The plane has another owner now, which takes the remaining commits.
            Err(SubmitError::Lost) => return Err(ApiError::moved()),
            Err(error) => return Err(ApiError::internal(error.to_string())),
        }
    }
    let millis = began.elapsed().as_millis();
    tracing::info!(
        plane = plane.id(),
        commits,
        millis,
        "came to this program's layer"
    );
    Ok(Progress::Done)
}

/// Brings the plane's own objects up to date with a newer layer. Returns whether it sent a request.
async fn bring_up_to_date(
    context: &ReconcilerContext,
    tenant: &Tenant,
    ahead: &Ahead,
) -> Result<bool, ApiError> {
    let mut tried = false;
    let (client, release) = (&context.client, &context.release);
    for shadowed in ahead.shadowed() {
        let key = shadowed.key.clone();
        match bring_object_up_to_date(client, release, tenant, shadowed).await {
            Ok(one) => tried |= one,
            Err(error) if error.is_moved() => return Err(error),
            // A client changed the object meanwhile: the next round reads it again.
            Err(error) if error.reason == Reason::Conflict => tried = true,
            // An object that cannot be brought up to date does not stop the others, as in
            // upstream's start hooks.
            Err(error) => {
                tracing::warn!(plane = tenant.plane.id(), %key, %error, "cannot update an object");
            }
        }
    }
    Ok(tried)
}

/// Applies the rule of its kind to one object. Returns whether it sent a request.
pub(crate) async fn bring_object_up_to_date(
    client: &OwnClient,
    release: &Release,
    tenant: &Tenant,
    shadowed: Shadowed,
) -> Result<bool, ApiError> {
    let Shadowed { key, new, own, .. } = shadowed;
    let Some(own) = own else {
        return match new {
            // The reconciler `restore` may create the object at the same time; the later of the two
            // requests has no effect.
            Some(new) if release.restore(&key).is_some() => {
                restore::recreate(client, tenant, &new).await?;
                Ok(true)
            }
            Some(_) | None => Ok(false),
        };
    };
    let kinds = tenant.kinds();
    let own = tree(&kinds, &own)?;
    let new = new.as_ref().map(|new| tree(&kinds, new)).transpose()?;
    let (verb, body) = match upgrade::merge(&key, &own, new.as_ref()) {
        Merge::Keep => return Ok(false),
        Merge::Update(merged) => (Verb::Update, merged),
        // The next round finds that the object is missing, and creates it.
        Merge::Recreate | Merge::Delete => (Verb::Delete, only_this(&own)),
    };
    let Some(row) = kinds.stored(key.group(), key.resource()) else {
        return Ok(false);
    };
    // Whoever has created the layer's object also owns what a newer layer changes.
    let creator = restore::creator(new.as_ref().unwrap_or(&own));
    let request = OwnRequest {
        body: &body,
        manager: &creator,
        ..OwnRequest::new(verb, row, key.namespace().unwrap_or(""), key.name())
    };
    request.send(client, tenant).await?;
    Ok(true)
}

/// Returns options of a delete that fails if the object has changed since `own` was read.
fn only_this(own: &Value) -> Value {
    let text = |field: &str| own.str_at(&["metadata", field]).to_owned();
    json!({
        "kind": "DeleteOptions",
        "apiVersion": "v1",
        "preconditions": {
            "uid": (text("uid")),
            "resourceVersion": (text("resourceVersion"))
        }
    })
}
