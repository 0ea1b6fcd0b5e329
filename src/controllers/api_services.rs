//! Keeps the APIServices of custom kinds, as upstream's aggregator does: each version of a group that a definition
//! serves has one, which says that the server itself answers for that version. Those of the built-in groups are
//! objects of the layer. This module does not decide when a reconciler runs.
//!
//! Upstream also keeps one for a definition whose names were not accepted. Here there is none, because nothing
//! answers under its version.

use crate::client::{OwnClient, OwnRequest, tree};
use crate::definitions;
use crate::work::Progress;
use polyplane_apimachinery::json::scan;
use polyplane_apimachinery::status::{ApiError, Reason};
use polyplane_apimachinery::{Str, Value, json};
use polyplane_plane::{Flags, Key, ObjectRef, Prefix, Start, YieldBudget};
use polyplane_registry::{Resource, Tenant, Verb};
use std::collections::BTreeMap;

/// The API group of APIServices.
const GROUP: &str = "apiregistration.k8s.io";
/// Their resource.
const RESOURCE: &str = "apiservices";
/// The label of an APIService that a server keeps. Those of the layer have another value.
const MANAGED: &str = "kube-aggregator.kubernetes.io/automanaged";
/// The value of the label at an APIService that is kept for as long as its version is served.
const ALWAYS: &str = "true";
/// The priority of the groups of custom kinds, which is below that of all built-in groups.
const GROUP_PRIORITY: i64 = 1000;
/// The priority of all their versions, so that the names of the versions order them.
const VERSION_PRIORITY: i64 = 100;

/// Returns whether a write of this kind may leave an APIService missing, wrong or without a version.
pub(crate) fn is_source(group: &str, resource: &str) -> bool {
    matches!(
        (group, resource),
        (definitions::GROUP, definitions::RESOURCE) | (GROUP, RESOURCE)
    )
}

/// Returns whether an APIService is missing, wrong or without a version.
pub(crate) async fn has_work(tenant: &Tenant) -> bool {
    let changes = changes(tenant).await;
    changes.is_ok_and(|changes| !changes.is_empty())
}

/// Creates, corrects and deletes APIServices until they are those of the versions that are served. An APIService
/// whose write is refused does not keep the others from theirs; it is tried again.
pub(crate) async fn settle(client: &OwnClient, tenant: &Tenant) -> Result<Progress, ApiError> {
    let Some(row) = tenant.base.stored(GROUP, RESOURCE) else {
        return Ok(Progress::Done);
    };
    let mut refused = None;
    for change in changes(tenant).await? {
        match change.request(row).send(client, tenant).await {
            Ok(_) => {}
            // Somebody else was faster, and that write has queued this again.
            Err(error)
                if matches!(
                    error.reason,
                    Reason::AlreadyExists | Reason::NotFound | Reason::Conflict
                ) => {}
            Err(error) if error.is_moved() => return Err(error),
            Err(error) => refused = refused.or(Some(error)),
        }
    }
    refused.map_or(Ok(Progress::Done), Err)
}

/// What has to be done to one APIService.
struct Change {
    verb: Verb,
    name: Str,
    body: Value,
}

impl Change {
    fn request<'a>(&'a self, row: &'a Resource) -> OwnRequest<'a> {
        // A new object's name is in its body.
        let name = match self.verb == Verb::Create {
            true => "",
            false => &*self.name,
        };
        OwnRequest {
            body: &self.body,
            manager: "kube-apiserver",
            ..OwnRequest::new(self.verb, row, "", name)
        }
    }
}

/// Returns what has to be done. As upstream, an APIService without the label belongs to its users, whatever it says.
async fn changes(tenant: &Tenant) -> Result<Vec<Change>, ApiError> {
    let kinds = tenant.kinds();
    let cut = tenant.plane.snapshot();
    // A plane without definitions does not look at all built-in kinds.
    let are_defined = kinds.content_id().added.is_some();
    let served = are_defined.then(|| kinds.resources());
    let mut wanted: BTreeMap<String, &Resource> = served
        .into_iter()
        .flatten()
        .filter(|row| row.custom.is_some())
        .map(|row| (format!("{}.{}", row.version, row.group), &**row))
        .collect();
    let (mut changes, mut yield_budget) = (Vec::new(), YieldBudget::default());
    for present in cut.range(&Prefix::resource(GROUP, RESOURCE), Start::First) {
        yield_budget.spend(present.body_len()).await;
        let row = wanted.remove(present.key().name());
        if present.is_template() || present.flags().has(Flags::DELETING) || !is_managed(&present) {
            continue;
        }
        let name = Str::from(present.key().name());
        let Some(row) = row else {
            let (verb, body) = (Verb::Delete, deletion(&present));
            changes.push(Change { verb, name, body });
            continue;
        };
        let mut body = tree(&kinds, &present)?;
        if body["spec"] != spec(row) {
            body.set(&["spec"], spec(row));
            let verb = Verb::Update;
            changes.push(Change { verb, name, body });
        }
    }
    let missing = wanted.into_iter().filter(|(name, _)| {
        // One of the layer that was deleted comes back by itself.
        let key = Key::new(GROUP, RESOURCE, None, name);
        tenant.plane.layer_object(&key).is_none()
    });
    changes.extend(missing.map(|(name, row)| Change {
        verb: Verb::Create,
        body: service(&name, row),
        name: name.into(),
    }));
    Ok(changes)
}

fn is_managed(service: &ObjectRef) -> bool {
    scan::string_at(service.labels_json(), &[MANAGED]).is_some_and(|value| value == ALWAYS)
}

/// Returns the options that delete an APIService and none that has taken its name.
fn deletion(service: &ObjectRef) -> Value {
    let body = service.body();
    let uid = scan::string_at(&body, &["metadata", "uid"]).unwrap_or_default();
    json!({"kind": "DeleteOptions", "apiVersion": "v1", "preconditions": {"uid": (&*uid)}})
}

fn service(name: &str, row: &Resource) -> Value {
    let metadata = json!({"name": name, "labels": {MANAGED: ALWAYS}});
    json!({"metadata": metadata, "spec": (spec(row))})
}

fn spec(row: &Resource) -> Value {
    json!({
        "group": (row.group.clone()),
        "version": (row.version.clone()),
        "groupPriorityMinimum": GROUP_PRIORITY,
        "versionPriority": VERSION_PRIORITY
    })
}
