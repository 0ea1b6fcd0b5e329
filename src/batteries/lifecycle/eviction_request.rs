//! EvictionRequests: the wish of one requester that a pod is evicted.

use super::{progress, target, validate_create, validate_status, validate_update};
use crate::shared::table_cells::{age_cell, name_cell};
use polyplane_apimachinery::Value;
use polyplane_apimachinery::complaints::Complaints;
use polyplane_apimachinery::names::NameRule;
use polyplane_registry::strategy::{Context, Strategy};

/// Behaviour of EvictionRequests.
#[derive(Debug)]
pub struct EvictionRequest;

impl Strategy for EvictionRequest {
    fn name_rule(&self) -> Option<NameRule> {
        Some(NameRule::GeneratedSubdomain)
    }

    fn validate_create(&self, _: &Context<'_>, object: &Value) -> Complaints {
        validate_create(object)
    }

    fn validate_update(&self, _: &Context<'_>, object: &Value, old: &Value) -> Complaints {
        validate_update(object, old)
    }

    fn validate_subresource(&self, _: &Context<'_>, object: &Value, old: &Value) -> Complaints {
        validate_status(object, old)
    }

    fn cells(&self, object: &Value, now: i64) -> Vec<Value> {
        let [name, kind] = target(object);
        let text = |field: &str| object.str_at(&["spec", field]).into();
        vec![
            name_cell(object),
            name,
            kind,
            progress(object).into(),
            text("requester"),
            text("intent"),
            age_cell(object, now),
        ]
    }
}
