//! Writes the rules of aggregated ClusterRoles: those of the roles that they select.
//!
//! The rules are applied by upstream's manager of them, so that this reconciler and the one of a
//! controller manager agree and neither undoes the other's write.

use crate::client::{APPLY, OwnRequest};
use crate::work::{Progress, ReconcilerContext};
use polyplane_apimachinery::status::ApiError;
use polyplane_apimachinery::{Value, json};
use polyplane_auth::rbac::index::GROUP;
use polyplane_auth::rbac::policy_rule::PolicyRule;
use polyplane_batteries::polyplane::controllers::Controller;
use polyplane_registry::{Tenant, Verb, roles};

const ACTOR: Controller = Controller::ClusterRoleAggregation;
/// The resource of aggregated roles.
const RESOURCE: &str = "clusterroles";

/// Returns whether a write of this kind can make rules stale.
pub(crate) fn is_source(group: &str, resource: &str) -> bool {
    group == GROUP && resource == RESOURCE
}

/// Returns whether any rules are stale.
pub(crate) fn are_stale(tenant: &Tenant) -> bool {
    let cut = tenant.plane.snapshot();
    roles::index_of(&cut).is_some_and(|index| !index.stale_aggregations().is_empty())
}

/// Writes the rules that are stale. A write that makes others stale queues this again.
pub(crate) async fn aggregate(
    context: &ReconcilerContext,
    tenant: &Tenant,
) -> Result<Progress, ApiError> {
    let stale = roles::index_of(&tenant.plane.snapshot())
        .map(|index| index.stale_aggregations())
        .unwrap_or_default();
    let row = tenant.base.stored(GROUP, RESOURCE);
    let row = row.ok_or_else(|| ApiError::internal("cluster roles are not served"))?;
    for (name, rules) in stale {
        let rules = Value::Array(rules.iter().map(PolicyRule::to_value).collect());
        let body = json!({"apiVersion": "rbac.authorization.k8s.io/v1", "kind": "ClusterRole",
            "metadata": {"name": (name.clone())}, "rules": rules});
        let apply = OwnRequest {
            content_type: APPLY,
            body: &body,
            ..OwnRequest::of(ACTOR, Verb::Patch, row, "", &name)
        };
        apply.send(&context.client, tenant).await?;
    }
    Ok(Progress::Done)
}
