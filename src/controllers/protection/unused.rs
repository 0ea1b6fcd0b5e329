//! The condition `Unused` of volume claims that are bound: whether a pod names the claim, and since when. A pod that
//! has ended names nothing. This module does not decide when a reconciler runs.

use super::{Protected, claim_name, parsed_volumes};
use crate::client::{OwnClient, OwnRequest, tree};
use polyplane_apimachinery::json::scan::{self, Scanned};
use polyplane_apimachinery::status::ApiError;
use polyplane_apimachinery::time::Timestamp;
use polyplane_apimachinery::{Str, Value, json};
use polyplane_batteries::feature_gates::Gate;
use polyplane_plane::{Flags, Key, ObjectRef, Prefix, Snapshot, Start, YieldBudget};
use polyplane_registry::{Tenant, Verb};
use std::collections::HashSet;
use std::time::SystemTime;

const CONDITION: &str = "Unused";
/// Writes of one run of the reconciler. Each is due to a pod that came or went during the one before; without the
/// bound, a webhook that takes the condition away would keep it busy.
const WRITES_MAX: usize = 4;
/// The lists of the states of a pod's containers.
const CONTAINER_LISTS: [&str; 3] = [
    "initContainerStatuses",
    "containerStatuses",
    "ephemeralContainerStatuses",
];

/// Returns whether the claims of a plane show this.
pub(super) fn is_on(tenant: &Tenant) -> bool {
    let row = tenant.base.stored("", Protected::Claim.resource());
    row.is_some_and(|row| Gate::PersistentVolumeClaimUnusedSinceTime.is_on(&row.features))
}

/// Returns whether a claim lacks the condition and is one that has it.
pub(super) fn is_missing(tenant: &Tenant, claim: &ObjectRef) -> bool {
    is_bound(claim) && shown(claim).is_none() && is_on(tenant)
}

/// Returns whether a claim may show otherwise than is so after the write of a pod that names it. `keeps` says whether
/// the pod keeps the claim in use, as far as that can be told at a glance.
pub(super) fn may_be_wrong(claim: &ObjectRef, keeps: bool) -> bool {
    is_bound(claim) && is_wrong(shown(claim).as_deref(), keeps)
}

/// Returns whether a pod keeps its claims in use. One that is being deleted may not.
pub(super) fn keeps_claims(pod: &ObjectRef, gone: bool) -> bool {
    !gone && !pod.flags().has(Flags::DELETING) && !has_ended(pod)
}

/// Returns the claims under a prefix that seem to show otherwise than is so.
pub(super) async fn wrong(tenant: &Tenant, cut: &Snapshot, claims: &Prefix) -> Vec<Key> {
    let (mut found, mut yield_budget) = (Vec::new(), YieldBudget::default());
    if !is_on(tenant) {
        return found;
    }
    // The pods of a namespace are read once, and only if a claim of it is bound.
    let mut used: Option<(Str, HashSet<Str>)> = None;
    for claim in cut.range(claims, Start::First) {
        yield_budget.spend(0).await;
        let Some(namespace) = claim.key().namespace().filter(|_| is_bound(&claim)) else {
            continue;
        };
        if used
            .as_ref()
            .is_none_or(|(known, _)| known.as_str() != namespace)
        {
            used = Some((namespace.into(), used_names(cut, namespace).await));
        }
        let name = claim.key().name();
        let is_used = used.as_ref().is_some_and(|(_, names)| names.contains(name));
        if is_wrong(shown(&claim).as_deref(), is_used) {
            found.push(claim.key().clone());
        }
    }
    found
}

/// Returns the names of all claims that the pods of a namespace name.
async fn used_names(cut: &Snapshot, namespace: &str) -> HashSet<Str> {
    let (mut names, mut yield_budget) = (HashSet::new(), YieldBudget::default());
    for pod in cut.range(&Prefix::namespaced("", "pods", namespace), Start::First) {
        yield_budget.spend(pod.body_len()).await;
        if has_ended(&pod) {
            continue;
        }
        let volumes = parsed_volumes(&pod.body());
        let volumes = volumes.as_array().unwrap_or_default().iter();
        names.extend(volumes.filter_map(|volume| claim_name(pod.key().name(), volume)));
    }
    names
}

/// Lets a claim that is bound show whether a pod names it.
pub(super) async fn show(client: &OwnClient, tenant: &Tenant, key: &Key) -> Result<(), ApiError> {
    if !is_on(tenant) {
        return Ok(());
    }
    // Once more after each write: a pod that came or went meanwhile found the condition as it was before.
    for _ in 0..WRITES_MAX {
        let cut = tenant.plane.snapshot();
        let Some(claim) = cut.get(key).filter(is_bound) else {
            return Ok(());
        };
        let kinds = tenant.kinds();
        let mut tree = tree(&kinds, &claim)?;
        let is_used = is_used(&cut, key, &tree).await;
        if !is_wrong(shown(&claim).as_deref(), is_used) {
            return Ok(());
        }
        let Some(row) = kinds.stored(key.group(), key.resource()) else {
            return Ok(());
        };
        set(&mut tree, is_used, Timestamp::from(SystemTime::now()));
        let (actor, namespace) = (Protected::Claim.controller(), key.namespace().unwrap_or(""));
        let own = OwnRequest {
            subresource: "status",
            body: &tree,
            ..OwnRequest::of(actor, Verb::Update, row, namespace, key.name())
        };
        match own.send(client, tenant).await {
            // Somebody has removed it meanwhile.
            Err(error) if error.code == 404 => return Ok(()),
            sent => drop(sent?),
        }
    }
    Ok(())
}

/// Returns whether a pod names a claim, and has made it if it is that of an ephemeral volume.
async fn is_used(cut: &Snapshot, key: &Key, claim: &Value) -> bool {
    let owners = claim.items_at(&["metadata", "ownerReferences"]);
    let pods = Prefix::namespaced("", "pods", key.namespace().unwrap_or(""));
    let mut yield_budget = YieldBudget::default();
    for pod in cut.range(&pods, Start::First) {
        yield_budget.spend(pod.body_len()).await;
        let (name, body) = (pod.key().name(), pod.body());
        let uid = Scanned(&body).str_at(&["metadata", "uid"]);
        let has_made_it = || {
            let mut owners = owners.iter();
            owners.any(|owner| owner.bool_at(&["controller"]) && owner.str_at(&["uid"]) == uid)
        };
        let volumes = parsed_volumes(&body);
        let uses_it = volumes.as_array().unwrap_or_default().iter().any(|volume| {
            claim_name(name, volume).as_deref() == Some(key.name())
                && (volume.get("persistentVolumeClaim").is_some() || has_made_it())
        });
        if uses_it && !has_ended(&pod) {
            return true;
        }
    }
    false
}

/// Returns whether a claim is bound and stays. No other one has the condition: the controller that binds it writes to
/// its status then.
fn is_bound(claim: &ObjectRef) -> bool {
    let body = claim.body();
    !claim.flags().has(Flags::DELETING) && Scanned(&body).str_at(&["status", "phase"]) == "Bound"
}

/// Returns the status of a claim's condition; `None` if it has none.
fn shown(claim: &ObjectRef) -> Option<Str> {
    let body = claim.body();
    let conditions = Scanned(&body).at(&["status", "conditions"])?.0;
    let mut all = scan::items(conditions).map(|range| Scanned(&conditions[range]));
    let found = all.find(|condition| condition.str_at(&["type"]) == CONDITION)?;
    Some(Str::from(found.str_at(&["status"])))
}

/// Returns whether a condition of this status has to be written. A used claim may show something else than true or
/// false, as upstream's may.
fn is_wrong(shown: Option<&str>, is_used: bool) -> bool {
    match is_used {
        true => shown.is_none_or(|status| status == "True"),
        false => shown != Some("True"),
    }
}

fn set(claim: &mut Value, is_used: bool, now: Timestamp) {
    let (status, reason, message) = match is_used {
        true => (
            "False",
            "PodUsingPVC",
            "A pod is currently referencing this PVC",
        ),
        false => (
            "True",
            "NoPodsUsingPVC",
            "No pods are currently referencing this PVC",
        ),
    };
    let condition = json!({"type": CONDITION, "status": status, "lastTransitionTime": (now.to_rfc3339()),
        "reason": reason, "message": message});
    let mut conditions = claim.items_at(&["status", "conditions"]).to_vec();
    let mut known = conditions.iter();
    match known.position(|one| one.str_at(&["type"]) == CONDITION) {
        Some(at) => conditions[at] = condition,
        None => conditions.push(condition),
    }
    claim.set(&["status", "conditions"], conditions);
}

/// Returns whether a pod has ended: its phase says so, or it is being deleted and no container of it runs.
fn has_ended(pod: &ObjectRef) -> bool {
    let body = pod.body();
    let status = Scanned(&body).at(&["status"]).unwrap_or(Scanned(b"{}"));
    let runs = |container: Scanned<'_>| {
        let states = ["terminated", "waiting"];
        let has = |state: &str| container.at(&["state", state]).is_some();
        !states.into_iter().any(has)
    };
    let any_runs = |list: &str| {
        let containers = status.at(&[list]).map_or(&[][..], |found| found.0);
        scan::items(containers).any(|range| runs(Scanned(&containers[range])))
    };
    matches!(&*status.str_at(&["phase"]), "Succeeded" | "Failed")
        || (pod.flags().has(Flags::DELETING) && !CONTAINER_LISTS.into_iter().any(any_runs))
}
