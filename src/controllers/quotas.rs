//! Writes what the objects of a namespace take into the status of its quotas. Admission enforces
//! the quotas without it. If another program runs the controller, the status is only raised, as
//! upstream's API server does in admission: that controller counts anew when something is deleted or
//! some minutes have passed, and relies on the server in between. This module does not decide when a
//! reconciler runs.

use crate::client::{OwnRequest, tree};
use crate::work::{Progress, ReconcilerContext};
use polyplane_admission::quota_status;
use polyplane_apimachinery::quantity::Quantity;
use polyplane_apimachinery::status::ApiError;
use polyplane_apimachinery::time::Timestamp;
use polyplane_apimachinery::{Str, Value};
use polyplane_batteries::polyplane::controllers::{Controller, Controllers};
use polyplane_plane::{Key, Prefix, Start};
use polyplane_registry::{Tenant, Verb};
use std::sync::LazyLock;
use std::time::SystemTime;

const ACTOR: Controller = Controller::ResourceQuota;
const RESOURCE: &str = "resourcequotas";
/// The manager of fields that upstream's API server writes on its own account.
const SERVER: &str = "kube-apiserver";

static QUOTAS: LazyLock<Prefix> = LazyLock::new(|| Prefix::resource("", RESOURCE));

/// Returns the namespace whose quotas a write may have changed.
pub(crate) fn touched<'k>(tenant: &Tenant, key: &'k Key) -> Option<&'k str> {
    let namespace = key.namespace()?;
    let cut = tenant.plane.snapshot();
    // Most planes have no quota at all, which takes no prefix of the namespace to see.
    let has_quotas = cut.count(&QUOTAS) > 0 && cut.count(&QUOTAS.namespace(namespace)) > 0;
    has_quotas.then_some(namespace)
}

/// Returns the namespaces of a plane that have quotas.
pub(crate) fn namespaces(tenant: &Tenant) -> Vec<Str> {
    let cut = tenant.plane.snapshot();
    let mut namespaces: Vec<Str> = cut
        .range(&QUOTAS, Start::First)
        .filter_map(|quota| Some(quota.key().namespace()?.into()))
        .collect();
    namespaces.dedup();
    namespaces
}

/// Brings the status of all quotas of a namespace up to date, or only raises what they show as used
/// if the controller does not run here.
pub(crate) async fn count(
    context: &ReconcilerContext,
    tenant: &Tenant,
    namespace: &str,
    controllers: Controllers,
) -> Result<Progress, ApiError> {
    let runs_here = controllers.has(ACTOR);
    let now = Timestamp::from(SystemTime::now()).seconds;
    let cut = tenant.plane.snapshot();
    let kinds = tenant.kinds();
    let row = tenant.base.stored("", RESOURCE);
    let row = row.ok_or_else(|| ApiError::internal("quotas are not served"))?;
    for quota in cut.range(&QUOTAS.namespace(namespace), Start::First) {
        let mut present = tree(&kinds, &quota)?;
        let mut status = quota_status(&cut, &kinds, &present, now);
        if !runs_here {
            status = raised(&present["status"], &status);
        }
        if is_same(&present["status"], &status) {
            continue;
        }
        present.set(&["status"], status);
        let name = quota.key().name();
        let request = match runs_here {
            true => OwnRequest::of(ACTOR, Verb::Update, row, namespace, name),
            false => OwnRequest {
                manager: SERVER,
                ..OwnRequest::new(Verb::Update, row, namespace, name)
            },
        };
        let own = OwnRequest {
            subresource: "status",
            body: &present,
            ..request
        };
        match own.send(&context.client, tenant).await {
            // Somebody deletes the quota.
            Err(error) if error.code == 404 => {}
            sent => drop(sent?),
        }
    }
    Ok(Progress::Done)
}

/// Returns a status with the larger of two usages of each resource that it has a limit and a usage for.
/// Resources without them wait for the controller.
fn raised(present: &Value, counted: &Value) -> Value {
    let quantity = |value: &Value| Quantity::parse(value.as_str().unwrap_or("")).ok();
    let mut raised = present.clone();
    let limits = present["hard"].as_object().into_iter();
    for (name, _) in limits.flat_map(|limits| limits.iter()) {
        let name: &str = name;
        let (shown, is) = (&present["used"][name], &counted["used"][name]);
        if let (Some(before), Some(now)) = (quantity(shown), quantity(is))
            && before < now
        {
            raised.set(&["used", name], is.clone());
        }
    }
    raised
}

/// Returns whether two statuses have equal quantities, however these are written.
fn is_same(one: &Value, other: &Value) -> bool {
    let quantities = |status: &Value, list: &str| -> Vec<(Str, Option<Quantity>)> {
        let members = status[list].as_object().into_iter();
        members
            .flat_map(|members| members.iter())
            .map(|(name, value)| {
                (
                    name.into(),
                    Quantity::parse(value.as_str().unwrap_or("")).ok(),
                )
            })
            .collect()
    };
    let is_same = |list| quantities(one, list) == quantities(other, list);
    is_same("hard") && is_same("used")
}

#[cfg(test)]
mod tests {
    use super::*;
    use polyplane_apimachinery::json;

    #[test]
    fn usage_that_another_program_counts_is_raised_and_never_lowered() {
        let present = json!({"hard": {"pods": "10", "secrets": "1k", "services": "5", "cpu": "1"},
            "used": {"pods": "3", "secrets": "900", "cpu": "500m"}});
        let counted = json!({"hard": {"pods": "20", "secrets": "1k", "services": "5", "cpu": "1"},
            "used": {"pods": "4", "secrets": "2", "services": "1", "cpu": "0.5"}});
        let wanted = json!({"hard": {"pods": "10", "secrets": "1k", "services": "5", "cpu": "1"},
            "used": {"pods": "4", "secrets": "900", "cpu": "500m"}});
        assert_eq!(raised(&present, &counted), wanted);
        assert_eq!(raised(&Value::Null, &counted), Value::Null);
    }
}
