//! Writes the rules of aggregated ClusterRoles: those of the roles that they select.
//!
//! The rules are applied by upstream's manager of them, so that this reconciler and the one of a
//! controller manager agree and neither undoes the other's write.
//!
//! What a role takes from others is not bounded by what a client wrote into it. So the plane's limits apply to these
//! writes, and the rules of one role at a time are in memory.

use crate::client::{APPLY, OwnRequest, PlaneLimits};
use crate::work::{Progress, ReconcilerContext};
use polyplane_apimachinery::status::{ApiError, Reason};
use polyplane_apimachinery::{Value, json};
use polyplane_auth::rbac::aggregation::AggregatedRules;
use polyplane_auth::rbac::index::{GROUP, Index};
use polyplane_auth::rbac::policy_rule::PolicyRule;
use polyplane_batteries::polyplane::controllers::Controller;
use polyplane_registry::{Resource, Tenant, Verb, roles};

const ACTOR: Controller = Controller::ClusterRoleAggregation;
/// The resource of aggregated roles.
const RESOURCE: &str = "clusterroles";

/// Returns whether a write of this kind can make rules stale.
pub(crate) fn is_source(group: &str, resource: &str) -> bool {
    group == GROUP && resource == RESOURCE
}

/// Returns whether a plane has aggregated roles.
pub(crate) fn are_aggregated(tenant: &Tenant) -> bool {
    let cut = tenant.plane.snapshot();
    roles::index_of(&cut).is_some_and(Index::has_aggregated_roles)
}

/// Writes the rules that are stale. A write that makes others stale queues this again.
///
/// A role whose write is refused keeps its rules, and the others get theirs all the same; this is tried again then.
pub(crate) async fn aggregate(
    context: &ReconcilerContext,
    tenant: &Tenant,
) -> Result<Progress, ApiError> {
    let row = tenant.base.stored(GROUP, RESOURCE);
    let row = row.ok_or_else(|| ApiError::internal("cluster roles are not served"))?;
    let cut = tenant.plane.snapshot();
    let Some(index) = roles::index_of(&cut) else {
        return Ok(Progress::Done);
    };
    let mut all = index.aggregations();
    while all.select_some() {
        tokio::task::yield_now().await;
    }
    let (mut left_out, mut refused) = (0_usize, None);
    while let Some((name, rules)) = all.next_role() {
        let written = match rules {
            AggregatedRules::Current => Ok(()),
            AggregatedRules::LeftOut => {
                left_out += 1;
                Ok(())
            }
            AggregatedRules::Stale(rules) => write(context, tenant, row, name, &rules).await,
        };
        match written {
            Err(error) if is_of_one_role(&error) => refused = refused.or(Some(error)),
            written => written?,
        }
        tokio::task::yield_now().await;
    }
    if left_out > 0 {
        let plane = tenant.plane.id();
        tracing::warn!(
            plane,
            roles = left_out,
            "aggregated roles select too much; their rules stay as they are"
        );
    }
    refused.map_or(Ok(Progress::Done), Err)
}

async fn write(
    context: &ReconcilerContext,
    tenant: &Tenant,
    row: &Resource,
    name: &str,
    rules: &[PolicyRule],
) -> Result<(), ApiError> {
    let rules = Value::Array(rules.iter().map(PolicyRule::to_value).collect());
    let body = json!({"apiVersion": "rbac.authorization.k8s.io/v1", "kind": "ClusterRole",
        "metadata": {"name": (name)}, "rules": rules});
    let apply = OwnRequest {
        content_type: APPLY,
        body: &body,
        limits: PlaneLimits::AsOfClients,
        ..OwnRequest::of(ACTOR, Verb::Patch, row, "", name)
    };
    apply.send(&context.client, tenant).await.map(drop)
}

/// Returns whether the writes of other roles may succeed all the same. A full plane refuses those that add bytes, and
/// no others.
fn is_of_one_role(error: &ApiError) -> bool {
    // Of these, `Unknown` is the refusal of an object that is too large.
    matches!(
        error.reason,
        Reason::Forbidden | Reason::Invalid | Reason::RequestEntityTooLarge | Reason::Unknown
    )
}
