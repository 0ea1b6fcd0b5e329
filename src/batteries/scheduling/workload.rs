//! Workloads: templates of the pod groups of an application.

use crate::feature_gates::Gate;
use crate::shared::object_metadata;
use crate::shared::table_cells::{age_cell, name_cell};
use crate::shared::validation::bad_value;
use crate::shared::validation::members::present;
use polyplane_apimachinery::Value;
use polyplane_apimachinery::complaints::Complaints;
use polyplane_apimachinery::field_error::{Bad, FieldError, Path};
use polyplane_registry::Features;
use polyplane_registry::strategy::{Context, Strategy};
use std::collections::BTreeSet;

/// The greatest depth of templates within templates.
const DEPTH_MAX: usize = 4;
const TEMPLATE: &str = "io.k8s.api.scheduling.v1beta1.CompositePodGroupTemplate";
/// The field with templates of groups of pods.
const PODS: &str = "podGroupTemplates";
/// The field with templates of groups of groups.
const GROUPS: &str = "compositePodGroupTemplates";

/// Behaviour of Workloads.
#[derive(Debug)]
pub struct Workload;

impl Strategy for Workload {
    fn prepare_create(&self, context: &Context<'_>, object: &mut Value) {
        drop_disabled(context.features, &mut object["spec"], &Value::Null);
    }

    fn prepare_update(&self, context: &Context<'_>, object: &mut Value, old: &Value) {
        drop_disabled(context.features, &mut object["spec"], &old["spec"]);
    }

    fn validate_create(&self, _: &Context<'_>, object: &Value) -> Complaints {
        let mut errors = object_metadata::validate_finalizers(object);
        validate(&mut errors, &object["spec"]);
        errors
    }

    fn validate_update(&self, _: &Context<'_>, object: &Value, old: &Value) -> Complaints {
        let mut errors = object_metadata::validate_update(object, old);
        validate(&mut errors, &object["spec"]);
        errors
    }

    fn cells(&self, object: &Value, now: i64) -> Vec<Value> {
        vec![name_cell(object), age_cell(object, now)]
    }
}

/// Drops the fields of disabled features from all templates, unless the old template had them. Templates of
/// pods are compared by their place, those of groups by name. The generated data cannot say this, because
/// templates are in templates.
fn drop_disabled(features: &Features, of: &mut Value, old: &Value) {
    let off = |gate: Gate, field| (!gate.is_on(features)).then_some(field);
    let of_groups = off(Gate::PodGroupPreemptionPolicy, "preemptionPolicy");
    let of_pods = [
        of_groups,
        off(
            Gate::TopologyAwareWorkloadScheduling,
            "schedulingConstraints",
        ),
        off(Gate::DRAWorkloadResourceClaims, "resourceClaims"),
    ];
    let drop_fields = |fields: &[Option<&str>], template: &mut Value, old: &Value| {
        for field in fields.iter().flatten() {
            let was_there = present(&old[*field]);
            if !was_there {
                drop(template.remove(&[field]));
            }
        }
    };
    let before = old.items_at(&[PODS]);
    for (at, template) in items_mut(of, PODS).enumerate() {
        drop_fields(&of_pods, template, before.get(at).unwrap_or(&Value::Null));
    }
    let before = old.items_at(&[GROUPS]);
    for template in items_mut(of, GROUPS) {
        let mut known = before.iter();
        let known = known.rfind(|known| known["name"] == template["name"]);
        let known = known.unwrap_or(&Value::Null);
        drop_fields(&[of_groups], template, known);
        drop_disabled(features, template, known);
    }
}

fn items_mut<'a>(of: &'a mut Value, field: &str) -> impl Iterator<Item = &'a mut Value> {
    let list = of.get_mut(field).and_then(Value::as_array_mut);
    list.into_iter().flatten()
}

fn validate(errors: &mut Complaints, spec: &Value) {
    let path = Path::new("spec");
    let mut names: BTreeSet<&str> = names_in(spec, PODS).collect();
    validate_names(errors, &path, spec, &mut names);
    let groups = spec.items_at(&[GROUPS]);
    let list = path.child(GROUPS);
    for (at, group) in groups.iter().enumerate() {
        if depth(group) >= DEPTH_MAX {
            let detail = format!("maximum template hierarchy depth is {DEPTH_MAX}");
            let bad = bad_value::list(TEMPLATE, group.items_at(&[GROUPS]));
            errors.push(FieldError::invalid(&list.index(at), bad, detail));
        }
    }
    validate_priorities(errors, &path, spec);
    for (at, group) in groups.iter().enumerate() {
        validate_children(errors, &list.index(at), group);
    }
}

fn names_in<'a>(of: &'a Value, field: &str) -> impl Iterator<Item = &'a str> {
    let templates = of.items_at(&[field]).iter();
    templates.map(|template| template.str_at(&["name"]))
}

/// Checks that the names of templates are unique beyond their list. That they are unique in it, the schema
/// declares.
fn validate_names<'a>(
    errors: &mut Complaints,
    path: &Path<'_>,
    of: &'a Value,
    names: &mut BTreeSet<&'a str>,
) {
    let list = path.child(GROUPS);
    let groups = of.items_at(&[GROUPS]);
    duplicates(errors, &list, of, GROUPS, names);
    for (at, group) in groups.iter().enumerate() {
        let place = list.index(at);
        duplicates(errors, &place.child(PODS), group, PODS, names);
        validate_names(errors, &place, group, names);
    }
}

fn duplicates<'a>(
    errors: &mut Complaints,
    list: &Path<'_>,
    of: &'a Value,
    field: &str,
    names: &mut BTreeSet<&'a str>,
) {
    for (at, name) in names_in(of, field).enumerate() {
        if names.contains(name) {
            let place = list.index(at);
            errors.push(FieldError::duplicate(&place.child("name"), name));
        }
    }
    names.extend(names_in(of, field));
}

/// Returns the number of levels of templates of a template, itself included.
fn depth(group: &Value) -> usize {
    let below = group.items_at(&[GROUPS]).iter().map(depth);
    1 + below.max().unwrap_or(0)
}

/// Checks that all templates have the same priority.
fn validate_priorities(errors: &mut Complaints, path: &Path<'_>, spec: &Value) {
    type Priority<'a> = (&'a str, Option<i64>);
    fn collect<'a>(group: &'a Value, into: &mut Vec<Priority<'a>>) {
        into.push(priority(group));
        let groups = group.items_at(&[GROUPS]).iter();
        groups.for_each(|group| collect(group, into));
        into.extend(group.items_at(&[PODS]).iter().map(priority));
    }
    fn priority(of: &Value) -> Priority<'_> {
        (of.str_at(&["priorityClassName"]), of.int_at(&["priority"]))
    }
    let differ = |all: &[Priority<'_>]| all.windows(2).any(|pair| pair[0] != pair[1]);
    let mut all: Vec<Priority<'_>> = spec.items_at(&[PODS]).iter().map(priority).collect();
    let detail = if differ(&all) {
        "detected multiple priority configurations"
    } else {
        let groups = spec.items_at(&[GROUPS]).iter();
        groups.for_each(|group| collect(group, &mut all));
        match differ(&all) {
            true => {
                "all priority and priorityClassName values must be identical, detected multiple values"
            }
            false => return,
        }
    };
    errors.push(FieldError::invalid(path, Bad::Json(Value::Null), detail));
}

fn validate_children(errors: &mut Complaints, path: &Path<'_>, group: &Value) {
    let groups = group.items_at(&[GROUPS]);
    if groups.is_empty() && group.items_at(&[PODS]).is_empty() {
        let detail = "must have at least one child PodGroupTemplate or CompositePodGroupTemplate";
        let name = group.str_at(&["name"]);
        errors.push(FieldError::invalid(path, name, detail));
    }
    let list = path.child(GROUPS);
    for (at, child) in groups.iter().enumerate() {
        validate_children(errors, &list.index(at), child);
    }
}
