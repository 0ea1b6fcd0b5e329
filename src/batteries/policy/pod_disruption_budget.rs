//! PodDisruptionBudgets: the number of pods that must stay available.

use crate::networking::ingress::keep_spec;
use crate::shared::table_cells::{age_cell, name_cell};
use crate::shared::validation::bad_value;
use crate::shared::validation::complaints::one_of_if_set;
use crate::shared::validation::conditions::conditions;
use crate::shared::validation::members::present;
use crate::shared::validation::numbers::count_or_percent;
use crate::shared::validation::selectors::{SelectorValues, selector, selector_values};
use polyplane_apimachinery::Value;
use polyplane_apimachinery::complaints::Complaints;
use polyplane_apimachinery::field_error::{FieldError, Path};
use polyplane_apimachinery::int_or_string::IntOrString;
use polyplane_registry::strategy::{Context, Strategy};

/// Behaviour of PodDisruptionBudgets.
#[derive(Debug)]
pub struct PodDisruptionBudget;

impl Strategy for PodDisruptionBudget {
    fn validates_metadata_last(&self) -> bool {
        true
    }

    fn validate_create(&self, _: &Context<'_>, object: &Value) -> Complaints {
        validate(object, SelectorValues::Checked)
    }

    fn validate_update(&self, _: &Context<'_>, object: &Value, old: &Value) -> Complaints {
        validate(object, selector_values(&old["spec"]["selector"]))
    }

    fn prepare_subresource(&self, _: &Context<'_>, object: &mut Value, old: &Value) {
        keep_spec(object, old);
    }

    fn validate_subresource(&self, _: &Context<'_>, object: &Value, _: &Value) -> Complaints {
        let mut errors = Complaints::default();
        let (path, status) = (Path::new("status"), &object["status"]);
        conditions(
            &mut errors,
            &path.child("conditions"),
            &status["conditions"],
        );
        for field in [
            "disruptionsAllowed",
            "currentHealthy",
            "desiredHealthy",
            "expectedPods",
        ] {
            let number = status.int_at(&[field]).unwrap_or(0);
            if number < 0 {
                let detail = "must be greater than or equal to 0";
                errors.push(FieldError::invalid(&path.child(field), number, detail));
            }
        }
        errors
    }

    fn cells(&self, object: &Value, now: i64) -> Vec<Value> {
        let amount = |field: &str| match IntOrString::from_value(&object["spec"][field]) {
            Some(amount) => amount.to_string().into(),
            None => Value::string("N/A"),
        };
        vec![
            name_cell(object),
            amount("minAvailable"),
            amount("maxUnavailable"),
            object
                .int_at(&["status", "disruptionsAllowed"])
                .unwrap_or(0)
                .into(),
            age_cell(object, now),
        ]
    }
}

fn validate(object: &Value, values: SelectorValues) -> Complaints {
    let mut errors = Complaints::default();
    let (path, spec) = (Path::new("spec"), &object["spec"]);
    if present(&spec["minAvailable"]) && present(&spec["maxUnavailable"]) {
        let detail = "minAvailable and maxUnavailable cannot be both set";
        let bad = bad_value::typed("io.k8s.api.policy.v1.PodDisruptionBudgetSpec", spec);
        errors.push(FieldError::invalid(&path, bad, detail));
    }
    for field in ["minAvailable", "maxUnavailable"] {
        count_or_percent(&mut errors, &path.child(field), &spec[field]);
    }
    selector(
        &mut errors,
        &path.child("selector"),
        &spec["selector"],
        values,
    );
    let known = ["AlwaysAllow", "IfHealthyBudget"];
    let place = path.child("unhealthyPodEvictionPolicy");
    one_of_if_set(
        &mut errors,
        &place,
        &spec["unhealthyPodEvictionPolicy"],
        &known,
    );
    errors
}
