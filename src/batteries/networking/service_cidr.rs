//! ServiceCIDRs: one range of service addresses for each family.

use crate::shared::object_metadata;
use crate::shared::table_cells::{age_cell, name_cell};
use crate::shared::validation::complaints::{IMMUTABLE, complain};
use crate::shared::validation::members::texts;
use polyplane_apimachinery::Value;
use polyplane_apimachinery::complaints::Complaints;
use polyplane_apimachinery::field_error::{Bad, FieldError, Path};
use polyplane_apimachinery::{json, names};
use polyplane_registry::strategy::{Context, Strategy};

/// Behaviour of ServiceCIDRs.
#[derive(Debug)]
pub struct ServiceCidr;

impl Strategy for ServiceCidr {
    fn validate_create(&self, _: &Context<'_>, object: &Value) -> Complaints {
        let mut errors = object_metadata::validate_finalizers(object);
        validate_ranges(&mut errors, &object["spec"]["cidrs"]);
        errors
    }

    fn validate_update(&self, _: &Context<'_>, object: &Value, old: &Value) -> Complaints {
        let mut errors = object_metadata::validate_update(object, old);
        let list = &object["spec"]["cidrs"];
        let (now, then) = (texts(list), texts(&old["spec"]["cidrs"]));
        let spec = Path::new("spec");
        let path = spec.child("cidrs");
        match (then.len(), now.len()) {
            (before, after) if before == after || (before, after) == (1, 2) => {
                for (at, (now, then)) in now.iter().zip(&then).enumerate() {
                    if now != then {
                        errors.push(FieldError::invalid(&path.index(at), *now, IMMUTABLE));
                    }
                }
                if before != after {
                    validate_ranges(&mut errors, list);
                }
            }
            _ => errors.push(FieldError::invalid(
                &path,
                Bad::Json(list.clone()),
                IMMUTABLE,
            )),
        }
        errors
    }

    fn validate_subresource(&self, _: &Context<'_>, object: &Value, old: &Value) -> Complaints {
        object_metadata::validate_update(object, old)
    }

    fn cells(&self, object: &Value, now: i64) -> Vec<Value> {
        let ranges = texts(&object["spec"]["cidrs"]).join(",");
        vec![name_cell(object), ranges.into(), age_cell(object, now)]
    }
}

fn validate_ranges(errors: &mut Complaints, list: &Value) {
    let spec = Path::new("spec");
    let path = spec.child("cidrs");
    let ranges = texts(list);
    if ranges.is_empty() {
        errors.push(FieldError::required(&path, "at least one CIDR required"));
        return;
    }
    if ranges.len() > 2 {
        let shown = format!("{{\"CIDRs\":{}}}", json::to_string(list));
        let detail = "may only hold up to 2 values";
        errors.push(FieldError::invalid(&path, Bad::Shown(shown.into()), detail));
        return;
    }
    for (at, range) in ranges.iter().enumerate() {
        complain(
            errors,
            &path.index(at),
            *range,
            names::cidr_complaints(range),
        );
    }
    let families: Vec<Option<bool>> = ranges
        .iter()
        .map(|range| Some(names::cidr_sloppy(range)?.0.to_canonical().is_ipv6()))
        .collect();
    if families.len() == 2 && families[0].is_some() && families[0] == families[1] {
        let detail = "may specify no more than one IP for each IP family, i.e 192.168.0.0/24 and 2001:db8::/64";
        errors.push(FieldError::invalid(&path, Bad::Json(list.clone()), detail));
    }
}
