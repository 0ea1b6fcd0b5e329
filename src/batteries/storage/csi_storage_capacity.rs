//! CSIStorageCapacities: the room that a storage class has on some nodes.

use crate::shared::node_selector::deprecated_label;
use crate::shared::object_metadata;
use crate::shared::table_cells::{created_cell, name_cell};
use crate::shared::validation::bad_value;
use crate::shared::validation::complaints::{IMMUTABLE, complain};
use crate::shared::validation::members::present;
use crate::shared::validation::numbers::non_negative_quantity;
use crate::shared::validation::selectors::{SelectorValues, selector, selector_values};
use polyplane_apimachinery::complaints::Complaints;
use polyplane_apimachinery::field_error::{FieldError, Path};
use polyplane_apimachinery::names::{self, NameRule};
use polyplane_apimachinery::{Map, Value};
use polyplane_registry::Scope;
use polyplane_registry::strategy::{Context, Strategy};

/// Behaviour of CSIStorageCapacities.
#[derive(Debug)]
pub struct CsiStorageCapacity;

impl Strategy for CsiStorageCapacity {
    fn validate_create(&self, _: &Context<'_>, object: &Value) -> Complaints {
        let mut errors = object_metadata::validate_finalizers(object);
        validate(&mut errors, object, SelectorValues::Checked);
        errors
    }

    fn validate_update(&self, _: &Context<'_>, object: &Value, old: &Value) -> Complaints {
        let mut errors =
            object_metadata::validate(object, Scope::Namespaced, NameRule::DnsSubdomain);
        validate(&mut errors, object, selector_values(&old["nodeTopology"]));
        errors.extend(object_metadata::validate_update(object, old));
        if object["nodeTopology"] != old["nodeTopology"] {
            let bad = bad_value::selector(&object["nodeTopology"]);
            errors.push(FieldError::invalid(
                &Path::new("nodeTopology"),
                bad,
                IMMUTABLE,
            ));
        }
        let class = object.str_at(&["storageClassName"]);
        if class != old.str_at(&["storageClassName"]) {
            errors.push(FieldError::invalid(
                &Path::new("storageClassName"),
                class,
                IMMUTABLE,
            ));
        }
        errors
    }

    fn warnings(&self, _: &Context<'_>, object: &Value, _: Option<&Value>) -> Vec<String> {
        let path = Path::new("nodeTopology");
        let topology = &object["nodeTopology"];
        let mut warnings = Vec::new();
        let place = path.child("matchExpressions");
        for (at, expression) in topology.items_at(&["matchExpressions"]).iter().enumerate() {
            let key = expression.str_at(&["key"]);
            if let Some(text) = deprecated_label(key) {
                warnings.push(format!("{}: {key} is {text}", place.index(at).child("key")));
            }
        }
        let place = path.child("matchLabels");
        for (key, _) in topology["matchLabels"]
            .as_object()
            .into_iter()
            .flat_map(Map::iter)
        {
            if let Some(text) = deprecated_label(key) {
                warnings.push(format!("{}: {text}", place.child(key)));
            }
        }
        warnings
    }

    fn cells(&self, object: &Value, _: i64) -> Vec<Value> {
        vec![name_cell(object), created_cell(object)]
    }
}

fn validate(errors: &mut Complaints, object: &Value, values: SelectorValues) {
    let topology = &object["nodeTopology"];
    if present(topology) {
        selector(errors, &Path::new("nodeTopology"), topology, values);
    }
    let class = object.str_at(&["storageClassName"]);
    complain(
        errors,
        &Path::new("storageClassName"),
        class,
        names::dns1123_subdomain(class),
    );
    non_negative_quantity(&object["capacity"], &Path::new("capacity"), errors);
}
