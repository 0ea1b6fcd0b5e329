//! Owners that are in another namespace than an object which names them, and so do not keep it, or in a namespace while
//! the object has none: an event of the object says so. Events are hints, so one that cannot be written is left out.

use super::{ACTOR, Owner, owner_kind, owners_in};
use crate::client::{OwnClient, OwnRequest, PlaneLimits};
use polyplane_apimachinery::json::scan;
use polyplane_apimachinery::time::Timestamp;
use polyplane_apimachinery::{Str, Value, json};
use polyplane_plane::{Key, ObjectRef, Prefix, Snapshot, Start};
use polyplane_registry::kinds::table::api_version;
use polyplane_registry::{Kinds, Scope, Tenant, Verb};
use std::time::SystemTime;

const REASON: &str = "OwnerRefInvalidNamespace";
/// The name by which the garbage collector reports.
const REPORTER: &str = "garbage-collector-controller";
/// The namespace of events about objects without one.
const NAMESPACE: &str = "default";
/// Owners of an object that are looked for, and namespaces in which they are. With more, the end of an owner with very
/// many dependents would take long in a plane with very many namespaces.
const OWNERS_MAX: usize = 8;
const NAMESPACES_MAX: usize = 512;

/// Returns the events of an object about those of its owners that are in other namespaces, and of which no event is
/// left: an object without a namespace keeps such owners, and is looked at after each write.
pub(crate) fn events(kinds: &Kinds, cut: &Snapshot, dependent: &ObjectRef) -> Vec<Value> {
    let owners = owners_in(&dependent.body());
    let owners = owners.iter().take(OWNERS_MAX);
    let displaced = owners.filter(|owner| is_displaced(kinds, cut, dependent.key(), owner));
    displaced
        .filter_map(|owner| event(kinds, dependent, owner))
        .filter(|event| {
            let [namespace, name] = ["namespace", "name"].map(|f| event.str_at(&["metadata", f]));
            let key = Key::new("", "events", Some(namespace), name);
            cut.get(&key).is_none()
        })
        .collect()
}

/// Writes events.
pub(crate) async fn write(client: &OwnClient, tenant: &Tenant, events: &[Value]) {
    let kinds = tenant.kinds();
    let Some(row) = kinds.stored("", "events") else {
        return;
    };
    for event in events {
        let namespace = event.str_at(&["metadata", "namespace"]);
        let own = OwnRequest {
            body: event,
            limits: PlaneLimits::AsOfClients,
            ..OwnRequest::of(ACTOR, Verb::Create, row, namespace, "")
        };
        if let Err(error) = own.send(client, tenant).await {
            tracing::debug!(plane = tenant.plane.id(), %error, "an event was not written");
        }
    }
}

/// Returns whether an owner exists in another namespace.
fn is_displaced(kinds: &Kinds, cut: &Snapshot, dependent: &Key, owner: &Owner) -> bool {
    let row = owner_kind(kinds, owner).filter(|row| row.scope == Scope::Namespaced);
    let Some(row) = row else {
        return false;
    };
    let (group, resource) = (&row.storage.group, &row.storage.resource);
    let is_owner = |namespace: &str| {
        let key = Key::new(group, resource, Some(namespace), &owner.name);
        cut.get(&key).is_some_and(|object| {
            let body = object.body();
            let uid = scan::string_at(&body, &["metadata", "uid"]).unwrap_or_default();
            uid == owner.uid.as_str()
        })
    };
    let namespaces = Prefix::resource("", "namespaces");
    let mut namespaces = cut.range(&namespaces, Start::First).take(NAMESPACES_MAX);
    namespaces.any(|namespace| {
        let name = namespace.key().name();
        dependent.namespace() != Some(name) && is_owner(name)
    })
}

/// Returns the event; `None` if the kind of the dependent is not served any more.
fn event(kinds: &Kinds, dependent: &ObjectRef, owner: &Owner) -> Option<Value> {
    let key = dependent.key();
    let row = kinds.stored(key.group(), key.resource())?;
    let body = dependent.body();
    let uid = Str::from(scan::string_at(&body, &["metadata", "uid"]).unwrap_or_default());
    let namespace = key.namespace().unwrap_or("");
    let message = format!(
        "ownerRef [{}/{}, namespace: {namespace}, name: {}, uid: {}] does not exist in namespace \"{namespace}\"",
        owner.api_version, owner.kind, owner.name, owner.uid
    );
    let time = Timestamp::from(SystemTime::now()).to_rfc3339();
    // The same each time, so that there is one event for each owner.
    let name = format!("{uid}.{}", owner.uid);
    let mut about = json!({"kind": (row.kind.clone()), "name": (key.name()), "uid": uid,
        "apiVersion": (api_version(&row.group, &row.version))});
    if let Some(namespace) = key.namespace() {
        about.set(&["namespace"], namespace);
    }
    Some(json!({
        "metadata": {"name": name, "namespace": (key.namespace().unwrap_or(NAMESPACE))},
        "involvedObject": about,
        "reason": REASON,
        "message": message,
        "source": {"component": REPORTER},
        "firstTimestamp": (time.clone()),
        "lastTimestamp": time,
        "count": 1i64,
        "type": "Warning",
        "reportingComponent": REPORTER,
        "reportingInstance": ""
    }))
}
