//! Keeps the ServiceCIDR `kubernetes` as upstream's API server does: adds the secondary range of service
//! addresses if the plane was born with the primary one alone, and says in the status that the ranges can
//! be used. As upstream, this is the only change of ranges that an object follows.

use crate::client::{APPLY, OwnClient, OwnRequest, tree};
use crate::work::Progress;
use polyplane_apimachinery::status::ApiError;
use polyplane_apimachinery::time::Timestamp;
use polyplane_apimachinery::{Str, Value, json};
use polyplane_batteries::bootstrap::ranges;
use polyplane_plane::{Flags, Key};
use polyplane_registry::service_ranges::ServiceRanges;
use polyplane_registry::{Tenant, Verb};
use std::time::SystemTime;

/// The type of the condition that says whether ranges can be used.
const READY: &str = "Ready";
/// The manager of that condition.
const MANAGER: &str = "kubernetes-service-cidr-controller";

/// What the ServiceCIDR lacks.
enum Lack {
    /// The secondary range. Has the ServiceCIDR as it is.
    Range(Value),
    /// The condition that its ranges can be used.
    Condition,
}

/// Returns what the ServiceCIDR lacks.
fn lack(tenant: &Tenant) -> Result<Option<Lack>, ApiError> {
    let settings = &tenant.settings.service_ranges;
    let known = tenant.plane.snapshot().get(&ranges::service_cidr());
    let Some(known) = known else {
        return Ok(None);
    };
    let is_deleted = known.flags().has(Flags::DELETING);
    let known = tree(&tenant.kinds(), &known)?;
    let primary = ServiceRanges::from(settings.primary());
    if settings.are_dual() && ranges::shown(&known) == Some(primary) {
        return Ok(Some(Lack::Range(known)));
    }
    // One that is said not to be ready, or shows other ranges, is left to the administrator.
    let is_own = known.items_at(&["spec", "cidrs"]) == ranges::texts(settings);
    let lacks_condition = is_own && !is_deleted && !says_whether_ready(&known);
    Ok(lacks_condition.then_some(Lack::Condition))
}

fn says_whether_ready(cidr: &Value) -> bool {
    let mut conditions = cidr.items_at(&["status", "conditions"]).iter();
    conditions.any(|condition| {
        let (kind, status) = (condition.str_at(&["type"]), condition.str_at(&["status"]));
        kind == READY && status != "Unknown"
    })
}

/// Returns whether a key is that of the ServiceCIDR.
pub(crate) fn is_subject(key: &Key) -> bool {
    key.is_of("networking.k8s.io", "servicecidrs") && key.name() == "kubernetes"
}

/// Returns whether the ServiceCIDR may lack something.
pub(crate) fn has_work(tenant: &Tenant) -> bool {
    !matches!(lack(tenant), Ok(None))
}

/// Adds what the ServiceCIDR lacks.
pub(crate) async fn settle(client: &OwnClient, tenant: &Tenant) -> Result<Progress, ApiError> {
    let Some(lack) = lack(tenant)? else {
        return Ok(Progress::Done);
    };
    let key = ranges::service_cidr();
    let row = tenant.base.stored(key.group(), key.resource());
    let row = row.ok_or_else(|| ApiError::internal("ServiceCIDRs are not served"))?;
    let sent = match lack {
        Lack::Range(mut cidr) => {
            let all = ranges::texts(&tenant.settings.service_ranges);
            cidr.set(&["spec", "cidrs"], all);
            let update = OwnRequest {
                body: &cidr,
                manager: "kube-apiserver",
                ..OwnRequest::new(Verb::Update, row, "", key.name())
            };
            update.send(client, tenant).await
        }
        Lack::Condition => {
            let body = ready(&format!("{}/{}", key.group(), row.version), key.name());
            let apply = OwnRequest {
                subresource: "status",
                content_type: APPLY,
                body: &body,
                manager: MANAGER,
                ..OwnRequest::new(Verb::Patch, row, "", key.name())
            };
            apply.send(client, tenant).await
        }
    };
    match sent {
        // Somebody has deleted it, so it is created again.
        Err(error) if error.code == 404 => Ok(Progress::Done),
        sent => sent.map(|_| Progress::Done),
    }
}

/// Returns what is applied to say that the ranges can be used.
fn ready(api_version: &str, name: &str) -> Value {
    let condition = json!({
        "type": READY,
        "status": "True",
        "lastTransitionTime": (Timestamp::from(SystemTime::now()).to_rfc3339()),
        "message": "Kubernetes default Service CIDR is ready"
    });
    json!({"apiVersion": (Str::from(api_version)), "kind": "ServiceCIDR",
        "metadata": {"name": (Str::from(name))}, "status": {"conditions": [condition]}})
}
