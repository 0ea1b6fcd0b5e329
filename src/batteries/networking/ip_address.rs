//! IPAddresses, each of which is named like the address that it represents.

use crate::shared::object_metadata;
use crate::shared::table_cells::{age_cell, name_cell};
use crate::shared::validation::complaints::complain;
use crate::shared::validation::members::present;
use crate::shared::validation::object_names::own_name_rule;
use polyplane_apimachinery::Value;
use polyplane_apimachinery::complaints::Complaints;
use polyplane_apimachinery::field_error::{FieldError, Path};
use polyplane_apimachinery::names::{self, NameRule};
use polyplane_registry::Scope;
use polyplane_registry::strategy::{Context, Strategy};

/// Behaviour of IPAddresses.
#[derive(Debug)]
pub struct IpAddress;

impl Strategy for IpAddress {
    fn name_rule(&self) -> Option<NameRule> {
        Some(NameRule::Own)
    }

    fn validate_create(&self, _: &Context<'_>, object: &Value) -> Complaints {
        validate(object)
    }

    fn validate_update(&self, _: &Context<'_>, object: &Value, old: &Value) -> Complaints {
        let mut errors = object_metadata::validate(object, Scope::Cluster, NameRule::PathSegment);
        errors.extend(validate(object));
        errors.extend(object_metadata::validate_update(object, old));
        errors
    }

    fn cells(&self, object: &Value, now: i64) -> Vec<Value> {
        let parent = &object["spec"]["parentRef"];
        let mut text = "<none>".to_owned();
        if present(parent) {
            text = parent.str_at(&["resource"]).to_lowercase();
            let (group, namespace) = (parent.str_at(&["group"]), parent.str_at(&["namespace"]));
            if !group.is_empty() {
                text = format!("{text}.{}", group.to_lowercase());
            }
            if !namespace.is_empty() {
                text = format!("{text}/{namespace}");
            }
            text = format!("{text}/{}", parent.str_at(&["name"]));
        }
        vec![name_cell(object), text.into(), age_cell(object, now)]
    }
}

fn validate(object: &Value) -> Complaints {
    let mut errors = own_name_rule(object, |name, _| names::ip_complaints(name));
    errors.extend(object_metadata::validate_finalizers(object));
    let parent = &object["spec"]["parentRef"];
    if parent.is_null() {
        return errors;
    }
    let spec = Path::new("spec");
    let path = spec.child("parentRef");
    let group = parent.str_at(&["group"]);
    if !group.is_empty() {
        complain(
            &mut errors,
            &path.child("group"),
            group,
            names::dns1123_subdomain(group),
        );
    }
    for field in ["resource", "name", "namespace"] {
        let value = parent.str_at(&[field]);
        if value.is_empty() {
            if field != "namespace" {
                errors.push(FieldError::required(&path.child(field), "").covered());
            }
        } else {
            complain(
                &mut errors,
                &path.child(field),
                value,
                names::path_segment_name(value),
            );
        }
    }
    errors
}
