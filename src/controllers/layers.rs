//! Planes of an older layer come to this program's, once every binary that may still join knows it.
//!
//! What a plane has of its own is brought up to date first, by requests like anybody's: what the
//! user deleted and upstream's start hooks would make again is created, what he changed is merged by
//! its kind's rule. Then the plane takes the next commit of the step, which claims that all this is
//! still so. A crash anywhere leaves a plane that the next wake takes further.

use crate::client::{OwnRequest, tree};
use crate::restore;
use crate::work::{Progress, ReconcilerContext};
use polyplane_apimachinery::status::{ApiError, Reason};
use polyplane_apimachinery::time::Timestamp;
use polyplane_apimachinery::{Value, json};
use polyplane_batteries::bootstrap::FOLDS_LEVEL;
use polyplane_batteries::bootstrap::upgrade;
use polyplane_batteries::bootstrap::upgrade::Merge;
use polyplane_plane::{Ahead, ObjectRef, Settled, Shadowed, Stepped, SubmitError};
use polyplane_registry::{Tenant, Verb};
use std::time::{Duration, SystemTime};
use tokio::time::Instant;

/// How long one commit may take.
const PATIENCE: Duration = Duration::from_secs(30);
/// So often objects of the plane's own are brought up to date before a commit goes on without.
const ROUNDS_MAX: u32 = 5;

/// Whether a plane is to take a step.
pub(crate) fn is_behind(context: &ReconcilerContext, tenant: &Tenant) -> bool {
    let layer = context.release.layer().hash();
    context.planes.may_step() && !tenant.plane.stands_on(layer)
}

/// Takes all steps that are to be taken.
pub(crate) async fn take_steps(
    context: &ReconcilerContext,
    tenant: &Tenant,
) -> Result<Progress, ApiError> {
    let plane = &tenant.plane;
    let layer = context.release.layer();
    let (mut rounds, mut commits, began) = (0, 0, Instant::now());
    while is_behind(context, tenant) {
        let kinds = tenant.kinds();
        let recreates =
            |old: &ObjectRef, new: &ObjectRef| match (tree(&kinds, old), tree(&kinds, new)) {
                (Ok(old_tree), Ok(new_tree)) => upgrade::recreates(old.key(), &old_tree, &new_tree),
                // What cannot be read stays until it is brought up to date.
                (Err(_), _) | (_, Err(_)) => false,
            };
        let now = Timestamp::from(SystemTime::now()).to_rfc3339();
        let ahead = plane.ahead(layer, &now, &recreates);
        let ahead = ahead.map_err(|name| {
            ApiError::internal(format!("nothing fills {name} of this program's layer"))
        })?;
        let Some(ahead) = ahead else {
            break;
        };
        // A program below that level may still join, and could not read the form.
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
            // Whoever has the plane now takes it further.
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

/// Brings what the plane has of its own up to date with a newer layer; whether anything was tried.
async fn bring_up_to_date(
    context: &ReconcilerContext,
    tenant: &Tenant,
    ahead: &Ahead,
) -> Result<bool, ApiError> {
    let mut tried = false;
    for shadowed in ahead.shadowed() {
        let key = shadowed.key.clone();
        match bring_object_up_to_date(context, tenant, shadowed).await {
            Ok(one) => tried |= one,
            Err(error) if error.is_moved() => return Err(error),
            // Somebody else was faster; the next look tells.
            Err(error) if error.reason == Reason::Conflict => tried = true,
            // One that cannot be mended keeps no other from it, as at upstream's start.
            Err(error) => {
                tracing::warn!(plane = tenant.plane.id(), %key, %error, "not brought up to date");
            }
        }
    }
    Ok(tried)
}

/// Does to one object what its kind's rule says; whether that was anything.
async fn bring_object_up_to_date(
    context: &ReconcilerContext,
    tenant: &Tenant,
    shadowed: Shadowed,
) -> Result<bool, ApiError> {
    let Shadowed { key, new, own, .. } = shadowed;
    let Some(own) = own else {
        return match new {
            // What comes back at once may be on its way; whoever is later does nothing.
            Some(new) if context.release.restore(&key).is_some() => {
                restore::recreate(context, tenant, &new).await?;
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
        // The next look finds its place empty, and fills it.
        Merge::Recreate | Merge::Delete => (Verb::Delete, only_this(&own)),
    };
    let Some(row) = kinds.stored(key.group(), key.resource()) else {
        return Ok(false);
    };
    let request = OwnRequest {
        body: &body,
        ..OwnRequest::new(verb, row, key.namespace().unwrap_or(""), key.name())
    };
    request.send(&context.registry, tenant).await?;
    Ok(true)
}

/// Options that delete this very state of an object.
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
