//! Empties a deleted namespace, writes conditions that describe the remaining content, and removes
//! the namespace. This module does not know the queue.

use crate::client::{OwnClient, OwnRequest, metadata, tree};
use crate::work::Progress;
use polyplane_apimachinery::status::{ApiError, Reason};
use polyplane_apimachinery::time::Timestamp;
use polyplane_apimachinery::{Value, json};
use polyplane_batteries::polyplane::controllers::Controller;
use polyplane_plane::{Flags, Key, ObjectRef, Prefix, Start};
use polyplane_registry::{Kinds, Resource, Scope, Tenant, Verb};
use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::SystemTime;

const ACTOR: Controller = Controller::Namespace;
/// The finalizer that this controller removes.
const OWN_FINALIZER: &str = "kubernetes";
/// The conditions about what does not fail here: type, reason and message.
const NEVER_FAILS: [(&str, &str, &str); 2] = [
    (
        "NamespaceDeletionDiscoveryFailure",
        "ResourcesDiscovered",
        "All resources successfully discovered",
    ),
    (
        "NamespaceDeletionGroupVersionParsingFailure",
        "ParsedGroupVersions",
        "All legacy kube types successfully parsed",
    ),
];

/// Deletes the content of the namespace, then the namespace.
///
/// # Errors
/// Returns the first reason why some content could not be deleted, besides the errors of the plane: nothing but a
/// further try shows that it can be deleted.
pub(crate) async fn empty(
    client: &OwnClient,
    tenant: &Tenant,
    name: &str,
) -> Result<Progress, ApiError> {
    let Some(namespace) = terminating(tenant, name) else {
        return Ok(Progress::Done);
    };
    let kinds = tenant.kinds();
    let namespace = tree(&kinds, &namespace)?;
    // Pods first, so that nothing they use disappears before them: unlike upstream also if they cannot be deleted.
    let refused = delete_content(client, tenant, name, DeletionPhase::Pods).await?;
    let pods = pods(tenant, name);
    if !pods.is_empty() {
        let failures = match refused.is_empty() {
            true => Vec::from_iter(overdue_pods(&kinds, &namespace, &pods)?),
            false => texts(&refused),
        };
        // As upstream, which counts what remains, the pods too, only once the pods are gone.
        let uncounted = BTreeMap::new();
        report(client, tenant, namespace, &uncounted, &failures).await?;
        return wait_or_fail(refused);
    }
    let refused = delete_content(client, tenant, name, DeletionPhase::Rest).await?;
    let mut left = content(tenant, name);
    if !left.is_empty() {
        // As upstream, which counts nothing of a kind that it failed to delete.
        left.retain(|kind, _| !refused.contains_key(kind));
        report(client, tenant, namespace, &left, &texts(&refused)).await?;
        return wait_or_fail(refused);
    }
    // Somebody else's finalizer keeps the namespace, so its conditions must not speak of what is gone.
    if !foreign_finalizers(&namespace).is_empty() {
        report(client, tenant, namespace, &left, &[]).await?;
    }
    finalize(client, tenant, name).await
}

/// The kinds of which objects could not be deleted, with the reasons.
type Refused = BTreeMap<String, ApiError>;

/// Returns the reasons in upstream's order.
fn texts(refused: &Refused) -> Vec<String> {
    let mut texts: Vec<String> = refused.values().map(ToString::to_string).collect();
    texts.sort_unstable();
    texts
}

/// Waits for what remains. What could not be deleted is tried again after a pause.
fn wait_or_fail(refused: Refused) -> Result<Progress, ApiError> {
    match refused.into_values().next() {
        Some(first) => Err(first),
        None => Ok(Progress::Waiting),
    }
}

/// Returns the namespace if it is being deleted.
pub(crate) fn terminating(tenant: &Tenant, name: &str) -> Option<ObjectRef> {
    let namespace = tenant
        .plane
        .snapshot()
        .get(&Key::new("", "namespaces", None, name))?;
    namespace
        .flags()
        .has(Flags::TERMINATING)
        .then_some(namespace)
}

/// The objects of a namespace that are deleted in one phase.
#[derive(Clone, Copy, PartialEq, Eq)]
enum DeletionPhase {
    Pods,
    Rest,
}

fn namespaced(kinds: &Kinds) -> impl Iterator<Item = &Arc<Resource>> {
    kinds
        .stored_resources()
        .filter(|row| row.scope == Scope::Namespaced)
}

fn prefix(row: &Resource, namespace: &str) -> Prefix {
    Prefix::namespaced(&row.storage.group, &row.storage.resource, namespace)
}

/// Deletes the objects of one phase. Those that others keep remain. Returns the kinds of which some could not be
/// deleted: those of others are deleted all the same, as upstream.
///
/// # Errors
/// Returns an error if the plane has another owner now, or cannot be written to.
async fn delete_content(
    client: &OwnClient,
    tenant: &Tenant,
    namespace: &str,
    phase: DeletionPhase,
) -> Result<Refused, ApiError> {
    // The policy is explicit, because the default of some kinds orphans their dependents, which
    // would then remain.
    let options =
        json!({"kind": "DeleteOptions", "apiVersion": "v1", "propagationPolicy": "Background"});
    let kinds = tenant.kinds();
    let mut refused = Refused::new();
    for row in namespaced(&kinds) {
        let pods = row.group.is_empty() && row.name == "pods";
        if pods != (phase == DeletionPhase::Pods) {
            continue;
        }
        let prefix = prefix(row, namespace);
        if tenant.plane.snapshot().count(&prefix) == 0 {
            continue;
        }
        let all = OwnRequest {
            body: &options,
            ..OwnRequest::of(ACTOR, Verb::DeleteCollection, row, namespace, "")
        };
        if let Err(why) = all.send(client, tenant).await {
            // Each further kind would fail too, perhaps after a long wait.
            let is_of_plane = matches!(
                why.reason,
                Reason::Moved
                    | Reason::KindChanged
                    | Reason::ServiceUnavailable
                    | Reason::ServerTimeout
                    | Reason::Timeout
            );
            if is_of_plane {
                return Err(why);
            }
            refused.insert(shown_name(row), why);
        }
    }
    Ok(refused)
}

/// Returns the name of a kind in conditions: with the dot also where the group is empty, as upstream writes it.
fn shown_name(row: &Resource) -> String {
    format!("{}.{}", row.name, row.group)
}

/// Returns the pods that remain.
fn pods(tenant: &Tenant, namespace: &str) -> Vec<ObjectRef> {
    let prefix = Prefix::namespaced("", "pods", namespace);
    let cut = tenant.plane.snapshot();
    cut.range(&prefix, Start::First).collect()
}

/// Returns the objects that remain, by resource.
fn content(tenant: &Tenant, namespace: &str) -> BTreeMap<String, Vec<ObjectRef>> {
    let kinds = tenant.kinds();
    let cut = tenant.plane.snapshot();
    let mut left = BTreeMap::new();
    for row in namespaced(&kinds) {
        let prefix = prefix(row, namespace);
        let objects: Vec<ObjectRef> = cut.range(&prefix, Start::First).collect();
        if !objects.is_empty() {
            left.insert(shown_name(row), objects);
        }
    }
    left
}

/// Writes the conditions that say why the namespace still exists. `failures` say why objects remain that should be
/// gone.
async fn report(
    client: &OwnClient,
    tenant: &Tenant,
    mut namespace: Value,
    left: &BTreeMap<String, Vec<ObjectRef>>,
    failures: &[String],
) -> Result<(), ApiError> {
    let before = namespace.items_at(&["status", "conditions"]).to_vec();
    let merged = merged(before.clone(), conditions_of(left, failures)?);
    if merged == before {
        return Ok(());
    }
    namespace.set(&["status", "conditions"], merged);
    let name = namespace.str_at(&["metadata", "name"]);
    let own = OwnRequest {
        subresource: "status",
        body: &namespace,
        ..OwnRequest::of(ACTOR, Verb::Update, row(tenant)?, "", name)
    };
    own.send(client, tenant).await.map(drop)
}

/// Returns the finalizers of a namespace that others remove.
fn foreign_finalizers(namespace: &Value) -> Vec<Value> {
    let all = namespace.items_at(&["spec", "finalizers"]).iter();
    all.filter(|finalizer| finalizer.as_str() != Some(OWN_FINALIZER))
        .cloned()
        .collect()
}

/// Puts new conditions in the place of those of their types. Those of other types stay, and a time stays where the
/// status does.
fn merged(mut conditions: Vec<Value>, new: Vec<Value>) -> Vec<Value> {
    for mut condition in new {
        let kind = condition.str_at(&["type"]);
        let known = conditions
            .iter_mut()
            .find(|known| known.str_at(&["type"]) == kind);
        match known {
            Some(known) => {
                if known["status"] == condition["status"] {
                    condition.set(&["lastTransitionTime"], known["lastTransitionTime"].clone());
                }
                *known = condition;
            }
            None => conditions.push(condition),
        }
    }
    conditions
}

/// Returns what failed if pods remain after their grace, although no finalizer keeps them. The grace counts from the
/// deletion of the namespace, as for upstream.
pub(crate) fn overdue_pods(
    kinds: &Kinds,
    namespace: &Value,
    pods: &[ObjectRef],
) -> Result<Option<String>, ApiError> {
    let mut grace = 0;
    for pod in pods {
        let pod = tree(kinds, pod)?;
        if !pod.items_at(&["metadata", "finalizers"]).is_empty() {
            return Ok(None);
        }
        if !matches!(pod.str_at(&["status", "phase"]), "Succeeded" | "Failed") {
            let own = pod.int_at(&["spec", "terminationGracePeriodSeconds"]);
            grace = grace.max(own.unwrap_or(0));
        }
    }
    let deleted = Timestamp::parse(namespace.str_at(&["metadata", "deletionTimestamp"]));
    let now = Timestamp::from(SystemTime::now()).seconds;
    let is_over = deleted.is_ok_and(|deleted| now.saturating_sub(deleted.seconds) >= grace);
    let name = namespace.str_at(&["metadata", "name"]);
    Ok(is_over.then(|| {
        format!("unexpected items still remain in namespace: {name} for gvr: /v1, Resource=pods")
    }))
}

/// Returns the conditions of a namespace in which these objects remain. `failures` say why some do that should be
/// gone.
fn conditions_of(
    left: &BTreeMap<String, Vec<ObjectRef>>,
    failures: &[String],
) -> Result<Vec<Value>, ApiError> {
    let mut finalizers: BTreeMap<String, usize> = BTreeMap::new();
    for object in left.values().flatten() {
        for finalizer in metadata(object)?.items_at(&["metadata", "finalizers"]) {
            *finalizers
                .entry(finalizer.as_str().unwrap_or("").to_owned())
                .or_default() += 1;
        }
    }
    let counts = |parts: Vec<String>| parts.join(", ");
    let resources = counts(
        left.iter()
            .map(|(name, objects)| format!("{name} has {} resource instances", objects.len()))
            .collect(),
    );
    let waiting = counts(
        finalizers
            .iter()
            .map(|(name, count)| format!("{name} in {count} resource instances"))
            .collect(),
    );
    let now = Timestamp::from(SystemTime::now()).to_rfc3339();
    let plain =
        |kind: &str, reason: &str, message: &str| condition(kind, "False", reason, message, &now);
    let mut conditions: Vec<Value> = NEVER_FAILS
        .iter()
        .map(|(kind, reason, message)| plain(kind, reason, message))
        .collect();
    let kind = "NamespaceDeletionContentFailure";
    conditions.push(match failures {
        [] => {
            let message = "All content successfully deleted, may be waiting on finalization";
            plain(kind, "ContentDeleted", message)
        }
        some => {
            let (count, why) = (some.len(), some.join(", "));
            let message = format!("Failed to delete all resource types, {count} remaining: {why}");
            condition(kind, "True", "ContentDeletionFailed", &message, &now)
        }
    });
    let kind = "NamespaceContentRemaining";
    conditions.push(match resources.as_str() {
        "" => plain(kind, "ContentRemoved", "All content successfully removed"),
        some => {
            let message = format!("Some resources are remaining: {some}");
            condition(kind, "True", "SomeResourcesRemain", &message, &now)
        }
    });
    let kind = "NamespaceFinalizersRemaining";
    conditions.push(match waiting.as_str() {
        "" => {
            let message = "All content-preserving finalizers finished";
            plain(kind, "ContentHasNoFinalizers", message)
        }
        some => {
            let message = format!("Some content in the namespace has finalizers remaining: {some}");
            condition(kind, "True", "SomeFinalizersRemain", &message, &now)
        }
    });
    Ok(conditions)
}

fn row(tenant: &Tenant) -> Result<&Arc<Resource>, ApiError> {
    tenant
        .base
        .stored("", "namespaces")
        .ok_or_else(|| ApiError::internal("namespaces are not served"))
}

/// Removes the finalizer of the namespace; the registry then removes the namespace.
async fn finalize(client: &OwnClient, tenant: &Tenant, name: &str) -> Result<Progress, ApiError> {
    let Some(namespace) = terminating(tenant, name) else {
        return Ok(Progress::Done);
    };
    let mut object = tree(&tenant.kinds(), &namespace)?;
    let kept = foreign_finalizers(&object);
    object.set(&["spec", "finalizers"], kept);
    let own = OwnRequest {
        subresource: "finalize",
        body: &object,
        ..OwnRequest::of(ACTOR, Verb::Update, row(tenant)?, "", name)
    };
    own.send(client, tenant).await?;
    Ok(Progress::Done)
}

fn condition(kind: &str, status: &str, reason: &str, message: &str, now: &str) -> Value {
    json!({
        "type": kind,
        "status": status,
        "lastTransitionTime": now,
        "reason": reason,
        "message": message
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn conditions_keep_their_times_and_those_of_others_and_end_when_nothing_is_left() {
        let foreign = json!({"type": "Mine", "status": "True"});
        let old = |kind: &str, status: &str| condition(kind, status, "Old", "old", "then");
        let before = vec![
            old("NamespaceContentRemaining", "True"),
            foreign.clone(),
            old("NamespaceDeletionContentFailure", "False"),
        ];
        let new = conditions_of(&BTreeMap::new(), &[]).expect("there is nothing to read");
        assert!(new.iter().all(|new| new.str_at(&["status"]) == "False"));
        let merged = merged(before, new.clone());
        assert_eq!(merged.len(), 6);
        assert_eq!(merged[1], foreign);
        assert_eq!(merged[0].str_at(&["reason"]), "ContentRemoved");
        assert_ne!(merged[0].str_at(&["lastTransitionTime"]), "then");
        assert_eq!(merged[2].str_at(&["reason"]), "ContentDeleted");
        assert_eq!(merged[2].str_at(&["lastTransitionTime"]), "then");
        assert_eq!(super::merged(merged.clone(), new), merged);
    }

    #[test]
    fn content_that_should_be_gone_is_a_failure() {
        let failures = ["why", "why else"].map(str::to_owned);
        let conditions = conditions_of(&BTreeMap::new(), &failures);
        let conditions = conditions.expect("there is nothing to read");
        let failure = &conditions[2];
        assert_eq!(failure.str_at(&["type"]), "NamespaceDeletionContentFailure");
        assert_eq!(failure.str_at(&["status"]), "True");
        let message = "Failed to delete all resource types, 2 remaining: why, why else";
        assert_eq!(failure.str_at(&["message"]), message);
    }
}
