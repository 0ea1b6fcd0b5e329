//! Brings the bootstrap roles and bindings of a plane that was loaded up to date, as upstream's start hook does at each
//! start of a server: those that are missing are created, and missing rules, subjects, labels and annotations are added,
//! unless the object opts out by `rbac.authorization.kubernetes.io/autoupdate: "false"`. So who took away rights that
//! components of the system need gets them back. This module does not decide when a reconciler runs.

use crate::client::OwnClient;
use crate::layers;
use crate::work::Progress;
use polyplane_apimachinery::status::{ApiError, Reason};
use polyplane_auth::rbac::index::GROUP;
use polyplane_batteries::bootstrap::{self, Release, Restore};
use polyplane_plane::{Key, ObjectRef, Prefix, Shadowed};
use polyplane_registry::Tenant;
use std::sync::OnceLock;

/// The kinds in the order of upstream's hook: a role is there before it is bound.
const RESOURCES: [&str; 4] = [
    "clusterroles",
    "clusterrolebindings",
    "roles",
    "rolebindings",
];
/// Requests for one object at most: a binding of another role is deleted and created, and each time somebody else may
/// come between.
const ROUNDS_MAX: u32 = 5;

/// Brings the objects up to date that differ from those of the layer. A plane that has none of its own costs nothing.
pub(crate) async fn bring_up_to_date(
    client: &OwnClient,
    release: &Release,
    tenant: &Tenant,
) -> Result<Progress, ApiError> {
    let mut failed = None;
    for key in changed(release, tenant) {
        match bring_object(client, release, tenant, &key).await {
            Ok(()) => {}
            Err(error) if error.is_moved() => return Err(error),
            // One that is refused does not stop the others, as upstream. The next load tries it again.
            Err(error) => {
                tracing::warn!(plane = tenant.plane.id(), %key, %error, "cannot update a bootstrap role");
                if matches!(error.code, 429 | 503 | 504) {
                    failed = failed.or(Some(error));
                }
            }
        }
    }
    failed.map_or(Ok(Progress::Done), Err)
}

/// The objects of the layer of one kind.
pub(crate) struct OfKind {
    /// The prefix of the kind.
    pub(crate) prefix: Prefix,
    /// The number of objects.
    count: usize,
    /// The keys of those that are created again after their deletion.
    restored: Vec<&'static Key>,
}

impl OfKind {
    fn new(resource: &str) -> Self {
        let of_kind = |key: &Key| key.group() == GROUP && key.resource() == resource;
        let all = bootstrap::objects().iter();
        let all: Vec<_> = all.filter(|object| of_kind(&object.key)).collect();
        let restored = all.iter().filter(|object| object.restore != Restore::Never);
        Self {
            prefix: Prefix::resource(GROUP, resource),
            count: all.len(),
            restored: restored.map(|object| &object.key).collect(),
        }
    }
}

/// Returns the objects of the layer by kind, in the order of [`RESOURCES`].
fn of_layer() -> &'static [OfKind] {
    static SHARED: OnceLock<[OfKind; 4]> = OnceLock::new();
    SHARED.get_or_init(|| RESOURCES.map(OfKind::new))
}

/// Returns the kinds of which the plane may have other objects than its layer. The counts of its own objects and of all
/// objects tell that without a look at any of them, as long as the layer is that of this program.
pub(crate) fn own_kinds(release: &Release, tenant: &Tenant) -> Vec<&'static OfKind> {
    // First, so that the cut is not older: its layer is then the same one.
    let is_counted = tenant.plane.stands_on(release.layer().hash());
    let cut = tenant.plane.snapshot();
    let is_own = |kind: &OfKind| {
        cut.own_objects_under(&kind.prefix) > 0 || cut.count(&kind.prefix) != kind.count
    };
    let kinds = of_layer().iter();
    kinds.filter(|kind| !is_counted || is_own(kind)).collect()
}

/// Returns the keys at which the plane has an object of its own, or has deleted the layer's.
fn changed(release: &Release, tenant: &Tenant) -> Vec<Key> {
    let kinds = own_kinds(release, tenant).into_iter();
    let cut = tenant.plane.snapshot();
    let is_changed = |key: &Key| match cut.get(key) {
        Some(object) => !object.is_template(),
        None => tenant.plane.layer_object(key).is_some(),
    };
    kinds
        .flat_map(|kind| kind.restored.iter().copied())
        .filter(|key| is_changed(key))
        .cloned()
        .collect()
}

async fn bring_object(
    client: &OwnClient,
    release: &Release,
    tenant: &Tenant,
    key: &Key,
) -> Result<(), ApiError> {
    for _ in 0..ROUNDS_MAX {
        let own = tenant.plane.snapshot().get(key);
        let layered = tenant.plane.layer_object(key);
        if layered.is_none() || own.as_ref().is_some_and(ObjectRef::is_template) {
            return Ok(());
        }
        let shadowed = Shadowed {
            key: key.clone(),
            old: None,
            new: layered,
            own,
        };
        match layers::bring_object_up_to_date(client, release, tenant, shadowed).await {
            Ok(false) => return Ok(()),
            Ok(true) => {}
            // A client changed the object meanwhile: the next round reads it again.
            Err(error) if error.reason == Reason::Conflict => {}
            Err(error) => return Err(error),
        }
    }
    Ok(())
}
