//! Garbage collection: deletes objects whose owners are gone, and carries out foreground and
//! orphaning deletions of owners. This module does not know the queue; `index` knows the dependents, and
//! `displaced` reports those whose owners cannot own them because of a namespace.

pub(crate) mod displaced;
mod index;

use crate::client::{OwnClient, OwnRequest, metadata};
use crate::dependents::index::Index;
use crate::work::Progress;
use futures_util::future::{self, BoxFuture};
use polyplane_apimachinery::json::{self, scan};
use polyplane_apimachinery::status::{ApiError, Reason};
use polyplane_apimachinery::{Str, Value};
use polyplane_batteries::polyplane::controllers::Controller;
use polyplane_plane::{Flags, Key, ObjectRef, Prefix, Snapshot, Start, YieldBudget};
use polyplane_registry::services::Removal;
use polyplane_registry::{Kinds, Resource, Scope, Tenant, Verb};
use std::collections::BTreeSet;

const ACTOR: Controller = Controller::GarbageCollector;
const ORPHAN: &str = "orphan";
const FOREGROUND: &str = "foregroundDeletion";
/// Owners that wait for an owner that waits, and so on, at most. Without the limit each end in a long chain of owners
/// would look at the whole chain.
const WAITING_OWNERS_MAX: usize = 256;
/// Dependents of one owner that are deleted or orphaned at once. One after the other, each would wait for
/// a commit of its own; with more, the work of one owner would delay clients' writes.
const AT_ONCE_MAX: usize = 16;
/// Owners of one object that are looked up while the committer waits. With more, an object that names thousands would
/// hold up the writes of all planes.
const OWNERS_AT_COMMIT_MAX: usize = 16;
/// Dependents that are found at a time, while writes of all planes wait for the index.
const FOUND_MAX: usize = 256;

/// What is known of the dependents of all awake planes.
#[derive(Default)]
pub(crate) struct Dependents {
    index: Index,
}

impl Dependents {
    /// Updates the index of dependents after a write of `object`. Returns the work that the write
    /// causes: dependents to check, and owners that wait.
    pub(crate) fn written(
        &self,
        tenant: &Tenant,
        object: &ObjectRef,
        removal: Removal,
    ) -> Vec<DependentWork> {
        let (key, body) = (object.key(), object.body());
        let owners = match is_event(key) {
            true => Vec::new(),
            false => owners_in(&body),
        };
        let deleting = object.flags().has(Flags::DELETING);
        // An owner may have waited for this object, which does not block it any more.
        let waiting = self.index.waiting_for(&tenant.plane, key);
        let mut work: Vec<DependentWork> = waiting.into_iter().map(DependentWork::Owner).collect();
        if removal == Removal::Pending && owners.is_empty() && !deleting {
            // Most writes end here: the object has no owners and is not being deleted. A removal
            // that has happened comes as `Removal::Gone`.
            return work;
        }
        let cut = tenant.plane.snapshot();
        if cut.get(key).is_none() {
            return self.gone(tenant, &cut, key, &body, &owners);
        }
        if !owners.is_empty() {
            let uids = owners.iter().map(|owner| owner.uid.clone());
            self.index.remember(&tenant.plane, object, uids.collect());
            // Cut behind that: an owner that is gone by now may have looked for its dependents before.
            let cut = tenant.plane.snapshot();
            let kinds = tenant.kinds();
            let keeps = |owner: &Owner| {
                let state = owner_state(&kinds, &cut, key, owner);
                matches!(state, OwnerState::Solid | OwnerState::Unknown)
            };
            if owners.len() > OWNERS_AT_COMMIT_MAX || !owners.iter().all(keeps) {
                work.push(DependentWork::Dependent(key.clone()));
            }
        }
        if deleting && has_one_of(&body, &[ORPHAN, FOREGROUND]) {
            let uid = scan::string_at(&body, &["metadata", "uid"]).unwrap_or_default();
            self.index.wait(&tenant.plane, key, &uid);
            work.push(DependentWork::Owner(key.clone()));
        }
        work
    }

    fn gone(
        &self,
        tenant: &Tenant,
        cut: &Snapshot,
        key: &Key,
        body: &[u8],
        owners: &[Owner],
    ) -> Vec<DependentWork> {
        let uid = scan::string_at(body, &["metadata", "uid"]).unwrap_or_default();
        let mut work = Vec::new();
        let first = self.index.some_of(&tenant.plane, &uid, None, 1);
        if !first.is_empty() {
            work.push(DependentWork::DependentsOf(Str::from(&*uid)));
        }
        self.index.forget(&tenant.plane, key);
        if owners.len() > OWNERS_AT_COMMIT_MAX {
            work.push(DependentWork::All);
            return work;
        }
        let kinds = tenant.kinds();
        for owner in owners {
            if let Some(owner) = owner_key(&kinds, key, owner)
                && cut
                    .get(&owner)
                    .is_some_and(|object| object.flags().has(Flags::DELETING))
            {
                work.push(DependentWork::Owner(owner));
            }
        }
        work
    }

    /// Returns the next objects that may name the owner with this uid, behind the key `after`; none at the end.
    pub(crate) fn of(&self, tenant: &Tenant, uid: &str, after: Option<&Key>) -> Vec<Key> {
        self.index.some_of(&tenant.plane, uid, after, FOUND_MAX)
    }

    /// Searches a plane for pending work.
    pub(crate) async fn survey(&self, tenant: &Tenant) -> Vec<DependentWork> {
        let cut = tenant.plane.snapshot();
        if cut.own_bytes() == 0 {
            return Vec::new();
        }
        let mut work = Vec::new();
        let mut yield_budget = YieldBudget::default();
        let kinds = tenant.kinds();
        for row in kinds.stored_resources() {
            let prefix = Prefix::resource(&row.storage.group, &row.storage.resource);
            for object in cut.range(&prefix, Start::First) {
                yield_budget.spend(object.body_len()).await;
                work.extend(self.written(tenant, &object, Removal::Pending));
            }
        }
        work
    }
}

/// Pending work on owners and dependents.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) enum DependentWork {
    /// The object may have lost some of its owners.
    Dependent(Key),
    /// The object is being deleted and waits for its dependents.
    Owner(Key),
    /// The object with this uid is gone, and others have named it as an owner.
    DependentsOf(Str),
    /// An object is gone that named so many owners that the plane is searched for those that wait.
    All,
}

/// An owner as a reference describes it.
#[derive(Clone, Debug)]
struct Owner {
    api_version: Str,
    kind: Str,
    name: Str,
    uid: Str,
    /// Whether the owner, when it is deleted in the foreground, waits for the object.
    is_blocked: bool,
}

impl Owner {
    fn group(&self) -> &str {
        let parts = self.api_version.split_once('/');
        parts.map_or("", |(group, _)| group)
    }
}

/// Returns whether an object is an event: as upstream, events outlive their owners.
fn is_event(key: &Key) -> bool {
    key.resource() == "events" && matches!(key.group(), "" | "events.k8s.io")
}

fn owners_in(body: &[u8]) -> Vec<Owner> {
    let Some(range) = scan::find(body, &["metadata", "ownerReferences"]) else {
        return Vec::new();
    };
    let parsed = json::parse(&body[range], &json::Limits::default());
    let list = parsed.map(|parsed| parsed.value).unwrap_or_default();
    list.as_array()
        .unwrap_or(&[])
        .iter()
        .map(owner_of)
        .collect()
}

fn owner_of(reference: &Value) -> Owner {
    let text = |field: &str| Str::from(reference.str_at(&[field]));
    Owner {
        api_version: text("apiVersion"),
        kind: text("kind"),
        name: text("name"),
        uid: text("uid"),
        is_blocked: reference.bool_at(&["blockOwnerDeletion"]),
    }
}

/// Returns whether an object has one of these finalizers.
fn has_one_of(body: &[u8], finalizers: &[&str]) -> bool {
    let Some(range) = scan::find(body, &["metadata", "finalizers"]) else {
        return false;
    };
    let list = &body[range];
    scan::items(list)
        .any(|item| scan::string(&list[item]).is_some_and(|name| finalizers.contains(&&*name)))
}

/// Returns whether an object is being deleted in the foreground, so that it waits for its dependents.
fn is_waiting(object: &ObjectRef) -> bool {
    object.flags().has(Flags::DELETING) && has_one_of(&object.body(), &[FOREGROUND])
}

/// Whether an owner keeps its dependents.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum OwnerState {
    /// The owner exists and stays.
    Solid,
    /// The kind of the owner is unknown. As upstream, nothing is done to a dependent of such an owner.
    Unknown,
    /// The kind of the owner has a namespace, and the object has none. As upstream, nothing is done to the object, but
    /// an event says so if there is such an owner.
    Misplaced,
    /// The owner is being deleted and waits for its dependents.
    Waiting,
    /// The owner does not exist.
    Absent,
}

/// Returns the kind of an owner; `None` if it is not known.
fn owner_kind<'k>(kinds: &'k Kinds, owner: &Owner) -> Option<&'k Resource> {
    let mut rows = kinds.resources();
    let found = rows.find(|row| {
        row.group.as_str() == owner.group() && row.kind == owner.kind && !row.is_virtual()
    });
    found.map(|row| &**row)
}

/// Returns the key that an owner has; `None` if its kind is not known or cannot own the object.
fn owner_key(kinds: &Kinds, dependent: &Key, owner: &Owner) -> Option<Key> {
    let row = owner_kind(kinds, owner)?;
    let namespace = match row.scope {
        Scope::Cluster => None,
        Scope::Namespaced => Some(dependent.namespace()?),
    };
    Some(Key::new(
        &row.storage.group,
        &row.storage.resource,
        namespace,
        &owner.name,
    ))
}

fn owner_state(kinds: &Kinds, cut: &Snapshot, dependent: &Key, owner: &Owner) -> OwnerState {
    let Some(key) = owner_key(kinds, dependent, owner) else {
        return match owner_kind(kinds, owner) {
            Some(_) => OwnerState::Misplaced,
            None => OwnerState::Unknown,
        };
    };
    let Some(object) = cut.get(&key) else {
        return OwnerState::Absent;
    };
    let body = object.body();
    if scan::string_at(&body, &["metadata", "uid"]).unwrap_or_default() != owner.uid.as_str() {
        return OwnerState::Absent;
    }
    if is_waiting(&object) {
        OwnerState::Waiting
    } else {
        OwnerState::Solid
    }
}

fn has_finalizer(object: &Value, name: &str) -> bool {
    object
        .items_at(&["metadata", "finalizers"])
        .iter()
        .any(|item| item.as_str() == Some(name))
}

/// Deletes an object whose owners are all gone or wait for it. If another one keeps it, removes the references to
/// those: the object would else be taken for one without owners as soon as that one lets it go.
pub(crate) async fn dependent(
    client: &OwnClient,
    tenant: &Tenant,
    known: &Dependents,
    key: &Key,
) -> Result<Progress, ApiError> {
    let cut = tenant.plane.snapshot();
    let Some(object) = cut.get(key) else {
        return Ok(Progress::Done);
    };
    // First, because it is cheap: an owner that waits looks at all its dependents again and again.
    if object.flags().has(Flags::DELETING) {
        return Ok(Progress::Done);
    }
    let owners = owners_in(&object.body());
    let kinds = tenant.kinds();
    let states: Vec<OwnerState> = owners
        .iter()
        .map(|owner| owner_state(&kinds, &cut, key, owner))
        .collect();
    let has_one_in = |state: OwnerState| states.contains(&state);
    let events = match has_one_in(OwnerState::Absent) || has_one_in(OwnerState::Misplaced) {
        true => displaced::events(&kinds, &cut, &object),
        false => Vec::new(),
    };
    if has_one_in(OwnerState::Unknown) || has_one_in(OwnerState::Misplaced) {
        displaced::write(client, tenant, &events).await;
        return Ok(Progress::Done);
    }
    let object = metadata(&object)?;
    if owners.is_empty() || states.contains(&OwnerState::Solid) {
        let lost = owners.iter().zip(&states);
        let lost = lost.filter(|(_, state)| **state != OwnerState::Solid);
        let lost: BTreeSet<&str> = lost.map(|(owner, _)| owner.uid.as_str()).collect();
        remove_references(client, tenant, key, &object, &lost).await?;
        displaced::write(client, tenant, &events).await;
        return Ok(Progress::Done);
    }
    let uid = object.str_at(&["metadata", "uid"]);
    // Only an owner that waits makes them matter.
    let dependents = match has_one_in(OwnerState::Waiting) {
        true => known.index.of(&tenant.plane, uid),
        false => Vec::new(),
    };
    let policy = if !dependents.is_empty() {
        // Such an owner waits also for what depends on this object. If some of that waits in turn, the owners of this
        // object no longer wait for it, as upstream.
        let mut all = dependents.iter();
        if all.any(|dependent| is_waiting_for(&cut, dependent, uid)) {
            unblock_owners(client, tenant, key, &object).await?;
        }
        "Foreground"
    } else if has_finalizer(&object, ORPHAN) {
        "Orphan"
    } else if has_finalizer(&object, FOREGROUND) {
        "Foreground"
    } else {
        // One commit deletes it.
        "Background"
    };
    let options = polyplane_apimachinery::json!({
        "kind": "DeleteOptions",
        "apiVersion": "v1",
        "propagationPolicy": policy,
        "preconditions": {"uid": (object["metadata"]["uid"].clone())}
    });
    send(client, tenant, Verb::Delete, key, &options).await?;
    displaced::write(client, tenant, &events).await;
    Ok(Progress::Done)
}

/// Sends a request about an object. Succeeds also if the object is gone or has been replaced.
async fn send(
    client: &OwnClient,
    tenant: &Tenant,
    verb: Verb,
    key: &Key,
    body: &Value,
) -> Result<(), ApiError> {
    let kinds = tenant.kinds();
    let Some(row) = kinds.stored(key.group(), key.resource()) else {
        return Ok(());
    };
    let content_type = match verb {
        Verb::Patch => "application/merge-patch+json",
        _ => "application/json",
    };
    let own = OwnRequest {
        content_type,
        body,
        ..OwnRequest::of(ACTOR, verb, row, key.namespace().unwrap_or(""), key.name())
    };
    match own.send(client, tenant).await {
        Ok(_) => Ok(()),
        Err(error) if error.reason == Reason::NotFound => Ok(()),
        Err(error) if error.reason == Reason::Conflict && verb == Verb::Delete => Ok(()),
        Err(error) => Err(error),
    }
}

/// Orphans or deletes the dependents of a deleted object, and then removes the finalizer that
/// waited for this.
pub(crate) async fn owner(
    client: &OwnClient,
    tenant: &Tenant,
    known: &Dependents,
    key: &Key,
) -> Result<Progress, ApiError> {
    let Some(stored) = tenant.plane.snapshot().get(key) else {
        return Ok(Progress::Done);
    };
    if !stored.flags().has(Flags::DELETING) {
        return Ok(Progress::Done);
    }
    let object = metadata(&stored)?;
    let uid = object.str_at(&["metadata", "uid"]);
    let dependents = || known.index.of(&tenant.plane, uid);
    if has_finalizer(&object, ORPHAN) {
        for keys in dependents().chunks(AT_ONCE_MAX) {
            let mut works = Vec::new();
            for key in keys {
                works.push(boxed_orphan(client, tenant, key, uid));
            }
            future::try_join_all(works).await?;
        }
        return remove_finalizer(client, tenant, key, &object, ORPHAN).await;
    }
    if !has_finalizer(&object, FOREGROUND) {
        return Ok(Progress::Done);
    }
    let mut failed = None;
    for keys in dependents().chunks(AT_ONCE_MAX) {
        let mut works = Vec::new();
        for key in keys {
            works.push(boxed_dependent(client, tenant, known, key));
        }
        // One that cannot be deleted must not keep the others, nor the owner unless it blocks it.
        for done in future::join_all(works).await {
            failed = failed.or(done.err());
        }
    }
    let cut = tenant.plane.snapshot();
    let mut blocking = dependents();
    blocking.retain(|dependent| blocks(&cut, dependent, uid));
    if !blocking.is_empty() {
        let waiting = waiting_owners(tenant, &cut, key);
        if !blocking.iter().all(|dependent| waiting.contains(dependent)) {
            return failed.map_or(Ok(Progress::Waiting), Err);
        }
    }
    remove_finalizer(client, tenant, key, &object, FOREGROUND).await
}

/// Boxes [`dependent`], so that several can be done at once.
fn boxed_dependent<'a>(
    client: &'a OwnClient,
    tenant: &'a Tenant,
    known: &'a Dependents,
    key: &'a Key,
) -> BoxFuture<'a, Result<Progress, ApiError>> {
    Box::pin(dependent(client, tenant, known, key))
}

/// Boxes [`orphan`], so that several can be done at once.
fn boxed_orphan<'a>(
    client: &'a OwnClient,
    tenant: &'a Tenant,
    key: &'a Key,
    uid: &'a str,
) -> BoxFuture<'a, Result<(), ApiError>> {
    Box::pin(orphan(client, tenant, key, uid))
}

/// Returns whether the owner with this uid has to wait for this dependent.
fn blocks(cut: &Snapshot, dependent: &Key, uid: &str) -> bool {
    cut.get(dependent).is_some_and(|object| {
        let owners = owners_in(&object.body());
        let mut owners = owners.iter();
        owners.any(|owner| owner.is_blocked && owner.uid.as_str() == uid)
    })
}

/// Returns whether an object names the owner with this uid and waits for dependents itself.
fn is_waiting_for(cut: &Snapshot, dependent: &Key, uid: &str) -> bool {
    cut.get(dependent).is_some_and(|object| {
        let names_owner = || {
            let owners = owners_in(&object.body());
            owners.iter().any(|owner| owner.uid.as_str() == uid)
        };
        is_waiting(&object) && names_owner()
    })
}

/// Returns the owners that wait for an object, those that wait for them, and so on. A dependent of the object that is
/// among them waits for the object itself: neither would ever go. This happens if all of a circle are deleted at
/// once, when none is left that could still let its owners go.
fn waiting_owners(tenant: &Tenant, cut: &Snapshot, key: &Key) -> BTreeSet<Key> {
    let kinds = tenant.kinds();
    let mut found = BTreeSet::new();
    let mut open = vec![key.clone()];
    while let Some(key) = open.pop() {
        let Some(object) = cut.get(&key) else {
            continue;
        };
        for owner in owners_in(&object.body()) {
            if owner.is_blocked
                && found.len() < WAITING_OWNERS_MAX
                && owner_state(&kinds, cut, &key, &owner) == OwnerState::Waiting
                && let Some(owner) = owner_key(&kinds, &key, &owner)
                && found.insert(owner.clone())
            {
                open.push(owner);
            }
        }
    }
    found
}

/// Lets the owners of an object no longer wait for it.
async fn unblock_owners(
    client: &OwnClient,
    tenant: &Tenant,
    key: &Key,
    object: &Value,
) -> Result<(), ApiError> {
    let mut references = object.items_at(&["metadata", "ownerReferences"]).to_vec();
    for reference in &mut references {
        if reference.bool_at(&["blockOwnerDeletion"]) {
            reference.set(&["blockOwnerDeletion"], false);
        }
    }
    let patch = metadata_patch(object, "ownerReferences", references);
    send(client, tenant, Verb::Patch, key, &patch).await
}

/// Removes the reference to an owner from a dependent.
async fn orphan(client: &OwnClient, tenant: &Tenant, key: &Key, uid: &str) -> Result<(), ApiError> {
    let Some(object) = tenant.plane.snapshot().get(key) else {
        return Ok(());
    };
    let object = metadata(&object)?;
    remove_references(client, tenant, key, &object, &BTreeSet::from([uid])).await
}

/// Removes the references to owners with these uids from an object, if there are any.
async fn remove_references(
    client: &OwnClient,
    tenant: &Tenant,
    key: &Key,
    object: &Value,
    uids: &BTreeSet<&str>,
) -> Result<(), ApiError> {
    let references = object.items_at(&["metadata", "ownerReferences"]);
    let kept: Vec<Value> = references
        .iter()
        .filter(|reference| !uids.contains(reference.str_at(&["uid"])))
        .cloned()
        .collect();
    if kept.len() == references.len() {
        return Ok(());
    }
    let patch = metadata_patch(object, "ownerReferences", kept);
    send(client, tenant, Verb::Patch, key, &patch).await
}

async fn remove_finalizer(
    client: &OwnClient,
    tenant: &Tenant,
    key: &Key,
    object: &Value,
    finalizer: &str,
) -> Result<Progress, ApiError> {
    let all = object.items_at(&["metadata", "finalizers"]).iter();
    let kept: Vec<Value> = all
        .filter(|item| item.as_str() != Some(finalizer))
        .cloned()
        .collect();
    let patch = metadata_patch(object, "finalizers", kept);
    send(client, tenant, Verb::Patch, key, &patch).await?;
    Ok(Progress::Done)
}

/// Returns a merge patch that sets one list of the metadata, and fails if the object has changed.
fn metadata_patch(object: &Value, field: &str, items: Vec<Value>) -> Value {
    let meta = &object["metadata"];
    let mut patch = Value::object();
    patch.set(
        &["metadata", field],
        if items.is_empty() {
            Value::Null
        } else {
            Value::Array(items)
        },
    );
    for same in ["uid", "resourceVersion"] {
        patch.set(&["metadata", same], meta[same].clone());
    }
    patch
}
