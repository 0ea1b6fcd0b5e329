//! Takes the finalizers of storage objects away that are deleted and not in use any more: volume
//! claims that no pod uses, volumes that are not bound, attributes classes that nothing names.
//! Admission adds these finalizers to new objects; this module adds them again if a client removed
//! them. `unused` shows in the status of claims whether a pod names them. Nothing here decides when a
//! reconciler runs.

mod unused;

use crate::client::{OwnClient, OwnRequest, tree};
use crate::work::Progress;
use polyplane_apimachinery::json::scan::{self, Scanned};
use polyplane_apimachinery::json::{self, Limits};
use polyplane_apimachinery::status::ApiError;
use polyplane_apimachinery::{Str, Value};
use polyplane_batteries::polyplane::controllers::Controller;
use polyplane_plane::{Flags, Key, ObjectRef, Prefix, Snapshot, Start, YieldBudget};
use polyplane_registry::{Kinds, Tenant, Verb};

/// Volumes of a pod whose claims are looked up while the committer waits. With more, a pod that names thousands would
/// hold up the writes of all planes.
const VOLUMES_AT_COMMIT_MAX: usize = 64;

/// Objects of which a write may have freed some.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) enum ProtectedSet {
    /// The claims of a namespace.
    Claims(Str),
    /// All attributes classes.
    AttributesClasses,
}

/// The kinds that are protected.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Protected {
    Claim,
    Volume,
    AttributesClass,
}

impl Protected {
    const ALL: [Self; 3] = [Self::Claim, Self::Volume, Self::AttributesClass];

    fn group(self) -> &'static str {
        match self {
            Self::Claim | Self::Volume => "",
            Self::AttributesClass => "storage.k8s.io",
        }
    }

    fn resource(self) -> &'static str {
        match self {
            Self::Claim => "persistentvolumeclaims",
            Self::Volume => "persistentvolumes",
            Self::AttributesClass => "volumeattributesclasses",
        }
    }

    fn finalizer(self) -> &'static str {
        match self {
            Self::Claim => "kubernetes.io/pvc-protection",
            Self::Volume => "kubernetes.io/pv-protection",
            Self::AttributesClass => "kubernetes.io/vac-protection",
        }
    }

    fn controller(self) -> Controller {
        match self {
            Self::Claim => Controller::PersistentVolumeClaimProtection,
            Self::Volume => Controller::PersistentVolumeProtection,
            Self::AttributesClass => Controller::VolumeAttributesClassProtection,
        }
    }

    fn of(key: &Key) -> Option<Self> {
        let mut all = Self::ALL.into_iter();
        all.find(|kind| key.is_of(kind.group(), kind.resource()))
    }

    fn objects(self) -> Prefix {
        Prefix::resource(self.group(), self.resource())
    }

    /// Returns whether an object may go, or lacks its finalizer.
    fn has_work(self, object: &ObjectRef) -> bool {
        object.flags().has(Flags::DELETING) || !self.protects(object)
    }

    /// Returns whether an object has the finalizer. Reads it without a tree, because this is asked
    /// after each write.
    fn protects(self, object: &ObjectRef) -> bool {
        let body = object.body();
        let finalizers = Scanned(&body).at(&["metadata", "finalizers"]);
        let finalizers = finalizers.map_or(&[][..], |list| list.0);
        scan::items(finalizers).any(|range| {
            let name = scan::string(&finalizers[range]);
            name.is_some_and(|name| name == self.finalizer())
        })
    }
}

/// Returns the controller that protects an object.
pub(crate) fn controller(key: &Key) -> Option<Controller> {
    Protected::of(key).map(Protected::controller)
}

/// Returns the objects that a write may have freed, or has left without their finalizer, beside those of [`freed`].
pub(crate) fn touched(tenant: &Tenant, object: &ObjectRef, gone: bool) -> Vec<Key> {
    let key = object.key();
    if key.is_of("", "pods") {
        return claims_of_pod(tenant, object, gone);
    }
    let Some(kind) = Protected::of(key) else {
        return Vec::new();
    };
    let shows_nothing = || kind == Protected::Claim && unused::is_missing(tenant, object);
    let has_work = !gone && (kind.has_work(object) || shows_nothing());
    has_work.then(|| key.clone()).into_iter().collect()
}

/// Returns objects of which a write may have freed some, where to find them would take longer than the committer may
/// wait.
pub(crate) fn freed(tenant: &Tenant, object: &ObjectRef, gone: bool) -> Option<ProtectedSet> {
    let key = object.key();
    if key.is_of("", "pods") {
        let ends = gone || object.flags().has(Flags::DELETING);
        let namespace = key.namespace()?;
        let may_free = ends || (has_claims(tenant, namespace) && unused::is_on(tenant));
        let is_long = may_free && {
            let body = object.body();
            let volumes = raw_volumes(&body);
            scan::items(volumes).nth(VOLUMES_AT_COMMIT_MAX).is_some()
        };
        return is_long.then(|| ProtectedSet::Claims(namespace.into()));
    }
    let names_classes = matches!(
        Protected::of(key),
        Some(Protected::Claim | Protected::Volume)
    );
    let classes = Protected::AttributesClass;
    let may_free = names_classes && tenant.plane.snapshot().count(&classes.objects()) > 0;
    may_free.then_some(ProtectedSet::AttributesClasses)
}

fn has_claims(tenant: &Tenant, namespace: &str) -> bool {
    let claims = Prefix::namespaced("", Protected::Claim.resource(), namespace);
    tenant.plane.snapshot().count(&claims) > 0
}

/// Returns the deleted objects of a set, and the claims that show otherwise than is so.
pub(crate) async fn pending_of(tenant: &Tenant, set: &ProtectedSet) -> Vec<Key> {
    let prefix = match set {
        ProtectedSet::Claims(namespace) => {
            Prefix::namespaced("", Protected::Claim.resource(), namespace)
        }
        ProtectedSet::AttributesClasses => Protected::AttributesClass.objects(),
    };
    let cut = tenant.plane.snapshot();
    let (mut found, mut yield_budget) = (Vec::new(), YieldBudget::default());
    for object in cut.range(&prefix, Start::First) {
        yield_budget.spend(0).await;
        if object.flags().has(Flags::DELETING) {
            found.push(object.key().clone());
        }
    }
    if let ProtectedSet::Claims(_) = set {
        found.extend(unused::wrong(tenant, &cut, &prefix).await);
    }
    found
}

/// Returns all protected objects of a plane that are deleted, and the claims that show otherwise than is so. Those
/// without their finalizer wait for their next write.
pub(crate) async fn pending(tenant: &Tenant) -> Vec<Key> {
    let cut = tenant.plane.snapshot();
    let kinds = Protected::ALL.into_iter();
    let mut found: Vec<Key> = kinds.flat_map(|kind| deleted(&cut, kind)).collect();
    let claims = Protected::Claim.objects();
    found.extend(unused::wrong(tenant, &cut, &claims).await);
    found
}

fn deleted(cut: &Snapshot, kind: Protected) -> Vec<Key> {
    let prefix = kind.objects();
    let objects = cut.range(&prefix, Start::First);
    objects
        .filter(|object| object.flags().has(Flags::DELETING))
        .map(|object| object.key().clone())
        .collect()
}

/// Returns the claims that a pod names for which its write may be work: those that are deleted if it ends, and those
/// that may show otherwise than is so.
fn claims_of_pod(tenant: &Tenant, pod: &ObjectRef, gone: bool) -> Vec<Key> {
    let ends = gone || pod.flags().has(Flags::DELETING);
    let Some(namespace) = pod.key().namespace() else {
        return Vec::new();
    };
    if !has_claims(tenant, namespace) {
        return Vec::new();
    }
    let is_shown = unused::is_on(tenant);
    if !ends && !is_shown {
        return Vec::new();
    }
    let body = pod.body();
    if scan::items(raw_volumes(&body))
        .nth(VOLUMES_AT_COMMIT_MAX)
        .is_some()
    {
        return Vec::new();
    }
    let (cut, resource) = (tenant.plane.snapshot(), Protected::Claim.resource());
    let volumes = parsed_volumes(&body);
    let volumes = volumes.as_array().unwrap_or_default().iter();
    let keys = volumes.map(|volume| {
        let name = claim_name(pod.key().name(), volume).unwrap_or_default();
        Key::new("", resource, Some(namespace), &name)
    });
    let keeps = unused::keeps_claims(pod, gone);
    let has_work = |claim: &ObjectRef| {
        (ends && claim.flags().has(Flags::DELETING))
            || (is_shown && unused::may_be_wrong(claim, keeps))
    };
    let has_work = |key: &Key| cut.get(key).is_some_and(|claim| has_work(&claim));
    keys.filter(has_work).collect()
}

/// Returns the list of a stored pod's volumes. Pods have one version, so that it is the same in each.
fn raw_volumes(pod: &[u8]) -> &[u8] {
    Scanned(pod)
        .at(&["spec", "volumes"])
        .map_or(&[][..], |list| list.0)
}

/// Returns the list of a stored pod's volumes as a tree. A pod that cannot be read has nothing that could be found.
fn parsed_volumes(pod: &[u8]) -> Value {
    let parsed = json::parse(raw_volumes(pod), &Limits::default());
    parsed.map(|parsed| parsed.value).unwrap_or_default()
}

fn volumes(pod: &Value) -> std::slice::Iter<'_, Value> {
    pod.items_at(&["spec", "volumes"]).iter()
}

/// Returns the name of the claim that the volume of the pod of this name uses.
fn claim_name(pod: &str, volume: &Value) -> Option<Str> {
    if let Some(claim) = volume.get("persistentVolumeClaim") {
        return Some(claim.str_at(&["claimName"]).into());
    }
    volume.get("ephemeral")?;
    Some(format!("{pod}-{}", volume.str_at(&["name"])).into())
}

/// Takes the finalizer of a deleted object away, unless the object is in use. Adds the finalizer to an
/// object that lacks it and is not deleted. Lets a claim show whether it is in use.
pub(crate) async fn settle(
    client: &OwnClient,
    tenant: &Tenant,
    key: &Key,
) -> Result<Progress, ApiError> {
    if Protected::of(key) == Some(Protected::Claim) {
        unused::show(client, tenant, key).await?;
    }
    let cut = tenant.plane.snapshot();
    let (Some(kind), Some(object)) = (Protected::of(key), cut.get(key)) else {
        return Ok(Progress::Done);
    };
    let is_deleted = object.flags().has(Flags::DELETING);
    if is_deleted != kind.protects(&object) {
        return Ok(Progress::Done);
    }
    let kinds = tenant.kinds();
    let mut tree = tree(&kinds, &object)?;
    let mut finalizers = tree.items_at(&["metadata", "finalizers"]).to_vec();
    if is_deleted {
        let is_used = match kind {
            Protected::Claim => is_used_by_pods(&kinds, &cut, key, &tree)?,
            Protected::Volume => tree.str_at(&["status", "phase"]) == "Bound",
            Protected::AttributesClass => is_named(&kinds, &cut, key.name())?,
        };
        if is_used {
            return Ok(Progress::Waiting);
        }
        finalizers.retain(|name| name.as_str() != Some(kind.finalizer()));
    } else {
        finalizers.push(Value::string(kind.finalizer()));
    }
    let Some(row) = kinds.stored(key.group(), key.resource()) else {
        return Ok(Progress::Done);
    };
    tree.set(&["metadata", "finalizers"], finalizers);
    let namespace = key.namespace().unwrap_or("");
    let own = OwnRequest {
        body: &tree,
        ..OwnRequest::of(kind.controller(), Verb::Update, row, namespace, key.name())
    };
    match own.send(client, tenant).await {
        // Somebody has removed it meanwhile.
        Err(error) if error.code != 404 => Err(error),
        _ => Ok(Progress::Done),
    }
}

/// Returns whether a pod that has a node uses a claim. Kubelets start no pod with a deleted claim.
fn is_used_by_pods(
    kinds: &Kinds,
    cut: &Snapshot,
    key: &Key,
    claim: &Value,
) -> Result<bool, ApiError> {
    let namespace = key.namespace().unwrap_or("");
    let owners = claim.items_at(&["metadata", "ownerReferences"]);
    let is_owner = |pod: &Value| {
        let uid = pod.str_at(&["metadata", "uid"]);
        owners
            .iter()
            .any(|owner| owner.bool_at(&["controller"]) && owner.str_at(&["uid"]) == uid)
    };
    for pod in cut.range(&Prefix::namespaced("", "pods", namespace), Start::First) {
        let pod = tree(kinds, &pod)?;
        if pod.str_at(&["spec", "nodeName"]).is_empty() {
            continue;
        }
        let is_shut_down = pod.int_at(&["metadata", "deletionGracePeriodSeconds"]) == Some(0);
        let uses_it = volumes(&pod).any(|volume| {
            let counts = volume.get("ephemeral").is_none() || (!is_shut_down && is_owner(&pod));
            let pod = pod.str_at(&["metadata", "name"]);
            counts && claim_name(pod, volume).as_deref() == Some(key.name())
        });
        if uses_it {
            return Ok(true);
        }
    }
    Ok(false)
}

/// Returns whether a claim or a volume names an attributes class.
fn is_named(kinds: &Kinds, cut: &Snapshot, class: &str) -> Result<bool, ApiError> {
    const PATHS: [&[&str]; 3] = [
        &["spec", "volumeAttributesClassName"],
        &["status", "currentVolumeAttributesClassName"],
        &[
            "status",
            "modifyVolumeStatus",
            "targetVolumeAttributesClassName",
        ],
    ];
    for kind in [Protected::Claim, Protected::Volume] {
        for object in cut.range(&kind.objects(), Start::First) {
            let tree = tree(kinds, &object)?;
            if PATHS.iter().any(|path| tree.str_at(path) == class) {
                return Ok(true);
            }
        }
    }
    Ok(false)
}
