//! ResourcePoolStatusRequests: a question about the devices of a driver, which a controller answers once.

use crate::shared::object_metadata;
use crate::shared::table_cells::name_cell;
use crate::shared::validation::bad_value;
use crate::shared::validation::complaints::IMMUTABLE;
use crate::shared::validation::conditions::conditions;
use crate::shared::validation::members::present;
use polyplane_apimachinery::Value;
use polyplane_apimachinery::complaints::Complaints;
use polyplane_apimachinery::field_error::{FieldError, Path};
use polyplane_registry::strategy::{Context, Strategy, age};

const STATUS: &str = "io.k8s.api.resource.v1alpha3.ResourcePoolStatusRequestStatus";

/// Behaviour of ResourcePoolStatusRequests.
#[derive(Debug)]
pub struct PoolStatusRequest;

impl Strategy for PoolStatusRequest {
    fn validate_create(&self, _: &Context<'_>, object: &Value) -> Complaints {
        object_metadata::validate_finalizers(object)
    }

    fn validate_update(&self, _: &Context<'_>, object: &Value, old: &Value) -> Complaints {
        object_metadata::validate_update(object, old)
    }

    fn validate_subresource(&self, _: &Context<'_>, object: &Value, old: &Value) -> Complaints {
        let mut errors = object_metadata::validate_update(object, old);
        let path = Path::new("status");
        let (status, before) = (&object["status"], &old["status"]);
        if !present(before) {
            conditions(
                &mut errors,
                &path.child("conditions"),
                &status["conditions"],
            );
        } else if status != before {
            let bad = bad_value::typed(STATUS, status);
            errors.push(FieldError::invalid(&path, bad, IMMUTABLE));
        }
        errors
    }

    fn cells(&self, object: &Value, now: i64) -> Vec<Value> {
        let status = &object["status"];
        let pools = status.items_at(&["pools"]);
        let count = status.int_at(&["poolCount"]).unwrap_or(0);
        let outcome = status.items_at(&["conditions"]).iter().find(|condition| {
            let is_outcome = ["Complete", "Failed"].contains(&condition.str_at(&["type"]));
            is_outcome && condition.str_at(&["status"]) == "True"
        });
        let (state, completed) = match outcome {
            None => ("Pending".to_owned(), "<none>".into()),
            Some(condition) if condition.str_at(&["type"]) == "Failed" => {
                ("Failed".to_owned(), "<none>".into())
            }
            Some(condition) => {
                let state = match usize::try_from(count) {
                    Ok(all) if all > pools.len() => {
                        format!("Complete ({}/{all} pools)", pools.len())
                    }
                    _ => "Complete".to_owned(),
                };
                let time = condition.str_at(&["lastTransitionTime"]);
                (state, age(time, now))
            }
        };
        let is_counted = present(status) && state != "Failed";
        let shown = |number: i64| match is_counted {
            true => Value::string(number.to_string()),
            false => "-".into(),
        };
        let sum = |field: &str| {
            let numbers = pools.iter().map(|pool| pool.int_at(&[field]).unwrap_or(0));
            shown(numbers.sum())
        };
        let wrong = pools.iter();
        let wrong = wrong.filter(|pool| pool["validationError"].as_str().is_some());
        vec![
            name_cell(object),
            object.str_at(&["spec", "driver"]).into(),
            sum("totalDevices"),
            sum("availableDevices"),
            sum("allocatedDevices"),
            sum("unavailableDevices"),
            shown(wrong.count() as i64),
            count.into(),
            state.into(),
            completed,
        ]
    }
}
