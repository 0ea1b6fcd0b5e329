//! DeviceClasses: the devices that a request gets, and their configuration.

use super::resource_claim::spec::within;
use super::validation;
use super::validation::Origin;
use crate::shared::object_metadata;
use crate::shared::table_cells::{age_cell, name_cell};
use polyplane_apimachinery::Value;
use polyplane_apimachinery::complaints::Complaints;
use polyplane_apimachinery::field_error::Path;
use polyplane_apimachinery::names::NameRule;
use polyplane_registry::Scope;
use polyplane_registry::strategy::{Context, Strategy};

const CONFIGS_MAX: usize = 32;
const NAME_RULE: NameRule = NameRule::GeneratedSubdomain;

/// Behaviour of DeviceClasses.
#[derive(Debug)]
pub struct DeviceClass;

impl Strategy for DeviceClass {
    fn name_rule(&self) -> Option<NameRule> {
        Some(NAME_RULE)
    }

    fn validate_create(&self, _: &Context<'_>, object: &Value) -> Complaints {
        let mut errors = object_metadata::validate_finalizers(object);
        validate_spec(&mut errors, &object["spec"], None);
        errors
    }

    fn validate_update(&self, _: &Context<'_>, object: &Value, old: &Value) -> Complaints {
        let mut errors = object_metadata::validate(object, Scope::Cluster, NAME_RULE);
        errors.extend(object_metadata::validate_update(object, old));
        validate_spec(&mut errors, &object["spec"], Some(&old["spec"]));
        errors
    }

    fn cells(&self, object: &Value, now: i64) -> Vec<Value> {
        vec![name_cell(object), age_cell(object, now)]
    }
}

fn validate_spec(errors: &mut Complaints, spec: &Value, old: Option<&Value>) {
    let path = Path::new("spec");
    let origin = |field: &str| match old {
        Some(old) if old.items_at(&[field]) == spec.items_at(&[field]) => Origin::Stored,
        _ => Origin::Given,
    };
    let selectors = spec.items_at(&["selectors"]);
    validation::selectors(
        errors,
        &path.child("selectors"),
        selectors,
        origin("selectors"),
    );
    let configs = spec.items_at(&["config"]);
    let place = path.child("config");
    if within(errors, &place, configs, CONFIGS_MAX) {
        for (at, config) in configs.iter().enumerate() {
            validation::configuration(errors, &place.index(at), config, origin("config"));
        }
    }
}
