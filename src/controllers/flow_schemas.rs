//! Writes into the status of FlowSchemas whether their priority level exists. This module does not
//! decide when a reconciler runs.

use crate::client::{APPLY, OwnRequest, tree};
use crate::work::{Progress, ReconcilerContext};
use polyplane_apimachinery::status::ApiError;
use polyplane_apimachinery::time::Timestamp;
use polyplane_apimachinery::{Str, Value, json};
use polyplane_batteries::bootstrap;
use polyplane_plane::{Key, Prefix, Start};
use polyplane_registry::{Tenant, Verb};
use std::time::SystemTime;

const GROUP: &str = "flowcontrol.apiserver.k8s.io";
const SCHEMAS: &str = "flowschemas";
const LEVELS: &str = "prioritylevelconfigurations";
/// The type of the condition.
const DANGLING: &str = "Dangling";
/// The manager of the condition: that of upstream's API server.
const MANAGER: &str = "api-priority-and-fairness-config-consumer-v1";

/// Returns whether a write of this kind can make a condition wrong.
pub(crate) fn is_source(group: &str, resource: &str) -> bool {
    group == GROUP && matches!(resource, SCHEMAS | LEVELS)
}

/// Returns whether a plane has other schemas or levels than its layer, whose conditions are right.
pub(crate) fn are_own(tenant: &Tenant) -> bool {
    let cut = tenant.plane.snapshot();
    let mut of_layer = 0;
    for key in bootstrap::objects().iter().map(|object| &object.key) {
        if !is_source(key.group(), key.resource()) {
            continue;
        }
        let layered = tenant.plane.layer_object(key).map(|object| object.stamp());
        if cut.get(key).map(|object| object.stamp()) != layered {
            return true;
        }
        of_layer += usize::from(layered.is_some());
    }
    let count = |resource| cut.count(&Prefix::resource(GROUP, resource));
    count(SCHEMAS) + count(LEVELS) != of_layer
}

/// Brings the condition of all schemas up to date.
pub(crate) async fn report(
    context: &ReconcilerContext,
    tenant: &Tenant,
) -> Result<Progress, ApiError> {
    let cut = tenant.plane.snapshot();
    let kinds = tenant.kinds();
    let row = tenant.base.stored(GROUP, SCHEMAS);
    let row = row.ok_or_else(|| ApiError::internal("flow schemas are not served"))?;
    for schema in cut.range(&Prefix::resource(GROUP, SCHEMAS), Start::First) {
        // The layer's own levels exist unless the plane has removed them, which no layer's schema
        // survives: its step brings both back. To write these would be a change without a cause.
        let layered = tenant.plane.layer_object(schema.key());
        if layered.is_some_and(|layered| layered.stamp() == schema.stamp()) {
            continue;
        }
        let present = tree(&kinds, &schema)?;
        let level = present.str_at(&["spec", "priorityLevelConfiguration", "name"]);
        let exists = cut.get(&Key::new(GROUP, LEVELS, None, level)).is_some();
        let mut wanted = condition(level, exists);
        if holds(&present, &wanted) {
            continue;
        }
        let now = Timestamp::from(SystemTime::now()).to_rfc3339();
        wanted.set(&["lastTransitionTime"], now);
        let name = schema.key().name();
        let api_version = format!("{GROUP}/{}", row.version);
        let body = json!({"apiVersion": api_version, "kind": "FlowSchema",
            "metadata": {"name": (Str::from(name))}, "status": {"conditions": [wanted]}});
        let apply = OwnRequest {
            subresource: "status",
            content_type: APPLY,
            body: &body,
            manager: MANAGER,
            ..OwnRequest::new(Verb::Patch, row, "", name)
        };
        match apply.send(&context.client, tenant).await {
            // Somebody has deleted the schema.
            Err(error) if error.code == 404 => {}
            sent => drop(sent?),
        }
    }
    Ok(Progress::Done)
}

/// Returns the condition of a schema, without its time.
fn condition(level: &str, exists: bool) -> Value {
    let (status, reason, fact) = match exists {
        true => ("False", "Found", "and it exists"),
        false => ("True", "NotFound", "but there is no such object"),
    };
    let message = format!(
        "This FlowSchema references the PriorityLevelConfiguration object named {level:?} {fact}"
    );
    json!({"type": DANGLING, "status": status, "reason": reason, "message": message})
}

/// Returns whether a schema has a condition, at whatever time it came to it.
fn holds(schema: &Value, wanted: &Value) -> bool {
    let mut conditions = schema.items_at(&["status", "conditions"]).iter();
    conditions.any(|present| {
        let is_same = |field: &&str| present.str_at(&[field]) == wanted.str_at(&[field]);
        ["type", "status", "reason", "message"].iter().all(is_same)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_condition_holds_at_any_time_and_says_which_level_there_is_not() {
        let mut found = condition("a", true);
        found.set(&["lastTransitionTime"], "2026-01-01T00:00:00Z");
        let schema = json!({"status": {"conditions": [found]}});
        assert!(holds(&schema, &condition("a", true)));
        assert!(!holds(&schema, &condition("a", false)));
        assert!(!holds(&schema, &condition("b", true)));
        assert!(!holds(&json!({"status": {}}), &condition("a", true)));
        let missing = condition("a", false);
        assert!(
            missing
                .str_at(&["message"])
                .ends_with("\"a\" but there is no such object")
        );
    }
}
