//! Owners that are in another namespace than an object which names them, and so do not keep it: an event of the object
//! says so. Events are hints, so one that cannot be written is left out.

use super::{ACTOR, Owner, owner_key, owners_in};
use crate::client::{OwnClient, OwnRequest, PlaneLimits};
use polyplane_apimachinery::json::scan;
use polyplane_apimachinery::time::Timestamp;
use polyplane_apimachinery::{Str, Value, json, names};
use polyplane_plane::{Key, ObjectRef, Prefix, Snapshot, Start};
use polyplane_registry::kinds::table::api_version;
use polyplane_registry::{Kinds, Tenant, Verb};
use std::time::{SystemTime, UNIX_EPOCH};

const REASON: &str = "OwnerRefInvalidNamespace";
/// The name by which the garbage collector reports.
const REPORTER: &str = "garbage-collector-controller";
/// Owners of an object that are looked for, and namespaces in which they are. With more, the end of an owner with very
/// many dependents would take long in a plane with very many namespaces.
const OWNERS_MAX: usize = 8;
const NAMESPACES_MAX: usize = 512;

/// Returns the events of an object about those of its owners that are in other namespaces.
pub(crate) fn events(kinds: &Kinds, cut: &Snapshot, dependent: &ObjectRef) -> Vec<Value> {
    let owners = owners_in(&dependent.body());
    let owners = owners.iter().take(OWNERS_MAX);
    let displaced = owners.filter(|owner| is_displaced(kinds, cut, dependent.key(), owner));
    displaced
        .filter_map(|owner| event(kinds, dependent, owner))
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
    let Some(here) = owner_key(kinds, dependent, owner) else {
        return false;
    };
    let Some(own_namespace) = here.namespace() else {
        return false;
    };
    let is_owner = |namespace: &str| {
        let key = Key::new(here.group(), here.resource(), Some(namespace), here.name());
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
        name != own_namespace && is_owner(name)
    })
}

/// Returns the event; `None` if the kind of the dependent is not served any more.
fn event(kinds: &Kinds, dependent: &ObjectRef, owner: &Owner) -> Option<Value> {
    let key = dependent.key();
    let (row, namespace) = (kinds.stored(key.group(), key.resource())?, key.namespace()?);
    let body = dependent.body();
    let uid = Str::from(scan::string_at(&body, &["metadata", "uid"]).unwrap_or_default());
    let message = format!(
        "ownerRef [{}/{}, namespace: {namespace}, name: {}, uid: {}] does not exist in namespace \"{namespace}\"",
        owner.api_version, owner.kind, owner.name, owner.uid
    );
    let now = SystemTime::now();
    let time = Timestamp::from(now).to_rfc3339();
    let nanos = now.duration_since(UNIX_EPOCH).unwrap_or_default();
    let nanos = nanos.as_nanos();
    let mut name = format!("{}.{nanos:x}", key.name());
    // Names of some kinds are none of events.
    if !names::dns1123_subdomain(&name).is_empty() {
        name = format!("{uid}.{nanos:x}");
    }
    Some(json!({
        "metadata": {"name": name, "namespace": namespace},
        "involvedObject": {"kind": (row.kind.clone()), "namespace": namespace, "name": (key.name()), "uid": uid,
            "apiVersion": (api_version(&row.group, &row.version))},
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
