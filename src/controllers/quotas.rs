//! Writes what the objects of a namespace take into the status of its quotas. Admission enforces
//! the quotas without it. This module does not decide when a reconciler runs.

use crate::client::{OwnRequest, tree};
use crate::work::{Progress, ReconcilerContext};
use polyplane_admission::quota_status;
use polyplane_apimachinery::quantity::Quantity;
use polyplane_apimachinery::status::ApiError;
use polyplane_apimachinery::time::Timestamp;
use polyplane_apimachinery::{Str, Value};
use polyplane_batteries::polyplane::controllers::Controller;
use polyplane_plane::{Key, Prefix, Start};
use polyplane_registry::{Tenant, Verb};
use std::time::SystemTime;

const ACTOR: Controller = Controller::ResourceQuota;
const RESOURCE: &str = "resourcequotas";

/// Returns the namespace whose quotas a write may have changed.
pub(crate) fn touched<'k>(tenant: &Tenant, key: &'k Key) -> Option<&'k str> {
    let namespace = key.namespace()?;
    let quotas = Prefix::namespaced("", RESOURCE, namespace);
    (tenant.plane.snapshot().count(&quotas) > 0).then_some(namespace)
}

/// Returns the namespaces of a plane that have quotas.
pub(crate) fn namespaces(tenant: &Tenant) -> Vec<Str> {
    let cut = tenant.plane.snapshot();
    let mut namespaces: Vec<Str> = cut
        .range(&Prefix::resource("", RESOURCE), Start::First)
        .filter_map(|quota| Some(quota.key().namespace()?.into()))
        .collect();
    namespaces.dedup();
    namespaces
}

/// Brings the status of all quotas of a namespace up to date.
pub(crate) async fn count(
    context: &ReconcilerContext,
    tenant: &Tenant,
    namespace: &str,
) -> Result<Progress, ApiError> {
    let now = Timestamp::from(SystemTime::now()).seconds;
    let cut = tenant.plane.snapshot();
    let kinds = tenant.kinds();
    let row = tenant.base.stored("", RESOURCE);
    let row = row.ok_or_else(|| ApiError::internal("quotas are not served"))?;
    for quota in cut.range(&Prefix::namespaced("", RESOURCE, namespace), Start::First) {
        let mut present = tree(&kinds, &quota)?;
        let status = quota_status(&cut, &present, now);
        if is_same(&present["status"], &status) {
            continue;
        }
        present.set(&["status"], status);
        let own = OwnRequest {
            subresource: "status",
            body: &present,
            ..OwnRequest::of(ACTOR, Verb::Update, row, namespace, quota.key().name())
        };
        match own.send(&context.registry, tenant).await {
            // Somebody deletes the quota.
            Err(error) if error.code == 404 => {}
            sent => drop(sent?),
        }
    }
    Ok(Progress::Done)
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
