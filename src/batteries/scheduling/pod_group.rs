//! PodGroups and CompositePodGroups: pods, and groups of them, that are scheduled together.

use crate::shared::object_metadata;
use crate::shared::table_cells::{age_cell, name_cell};
use crate::shared::validation::conditions::conditions;
use crate::shared::validation::members::present;
use polyplane_apimachinery::Value;
use polyplane_apimachinery::complaints::Complaints;
use polyplane_apimachinery::field_error::{FieldError, Path};
use polyplane_registry::strategy::{Context, Strategy};

/// Behaviour of both kinds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PodGroup {
    /// A group of pods.
    OfPods,
    /// A group of groups.
    OfGroups,
}

impl Strategy for PodGroup {
    fn validate_create(&self, _: &Context<'_>, object: &Value) -> Complaints {
        let mut errors = object_metadata::validate_finalizers(object);
        let spec = &object["spec"];
        let has_parent = spec["parentCompositePodGroupName"].as_str().is_some();
        if *self == Self::OfPods && has_parent && !present(&spec["workloadRef"]) {
            let path = Path::new("spec");
            let detail = "must be set when parentCompositePodGroupName is set";
            let place = path.child("workloadRef");
            errors.push(FieldError::required(&place, detail).covered());
        }
        errors
    }

    fn validate_update(&self, _: &Context<'_>, object: &Value, old: &Value) -> Complaints {
        object_metadata::validate_update(object, old)
    }

    fn validate_subresource(&self, _: &Context<'_>, object: &Value, old: &Value) -> Complaints {
        let mut errors = object_metadata::validate_update(object, old);
        let path = Path::new("status");
        let status = &object["status"];
        conditions(
            &mut errors,
            &path.child("conditions"),
            &status["conditions"],
        );
        let claims = object.items_at(&["spec", "resourceClaims"]);
        let list = path.child("resourceClaimStatuses");
        let statuses = status.items_at(&["resourceClaimStatuses"]);
        for (at, one) in statuses.iter().enumerate() {
            let name = one.str_at(&["name"]);
            if !claims.iter().any(|claim| claim.str_at(&["name"]) == name) {
                let detail = "must match the name of an entry in `spec.resourceClaims`";
                let place = list.index(at);
                errors.push(FieldError::invalid(&place.child("name"), name, detail));
            }
        }
        errors
    }

    fn cells(&self, object: &Value, now: i64) -> Vec<Value> {
        let spec = &object["spec"];
        let policy = match present(&spec["schedulingPolicy"]["gang"]) {
            true => "Gang",
            false => "Basic",
        };
        let workload = match present(&spec["workloadRef"]) {
            true => spec.str_at(&["workloadRef", "workloadName"]),
            false => "<none>",
        };
        let mut cells = vec![name_cell(object), policy.into(), workload.into()];
        if *self == Self::OfPods {
            cells.push(state(object).into());
        }
        cells.push(age_cell(object, now));
        cells
    }
}

/// Returns whether the pods of a group are scheduled.
fn state(object: &Value) -> &str {
    let conditions = object.items_at(&["status", "conditions"]);
    let last = |kind: &str| {
        let mut all = conditions.iter();
        all.rfind(|condition| condition.str_at(&["type"]) == kind)
    };
    if let Some(disrupted) = last("DisruptionTarget") {
        return disrupted.str_at(&["reason"]);
    }
    match last("PodGroupInitiallyScheduled") {
        Some(scheduled) if scheduled.str_at(&["status"]) == "True" => "Scheduled",
        Some(_) => "Unschedulable",
        None => "Pending",
    }
}
