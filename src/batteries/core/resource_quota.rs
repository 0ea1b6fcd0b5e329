//! ResourceQuotas: the amounts of each resource that a namespace may use, and by which objects.

use super::config_map::members;
use crate::shared::object_metadata;
use crate::shared::pod::defaults::round_up;
use crate::shared::resource_names::{
    amount, is_standard_quota, validate_amount, validate_quota_name,
};
use crate::shared::validation::bad_value;
use polyplane_apimachinery::Value;
use polyplane_apimachinery::complaints::Complaints;
use polyplane_apimachinery::field_error::{Bad, FieldError, Path};
use polyplane_registry::metadata::strings;
use polyplane_registry::strategy::{Context, Strategy, age};
use std::collections::BTreeSet;

const SCOPES: [&str; 7] = [
    "Terminating",
    "NotTerminating",
    "BestEffort",
    "NotBestEffort",
    "PriorityClass",
    "VolumeAttributesClass",
    "CrossNamespacePodAffinity",
];
/// Pairs of scopes that no object can have both.
const CONFLICTS: [[&str; 2]; 2] = [
    ["BestEffort", "NotBestEffort"],
    ["NotTerminating", "Terminating"],
];
/// Scopes that a selector can only require to exist.
const EXISTING: [&str; 5] = [
    "BestEffort",
    "NotBestEffort",
    "Terminating",
    "NotTerminating",
    "CrossNamespacePodAffinity",
];
const COMPUTE: [&str; 6] = [
    "cpu",
    "memory",
    "limits.cpu",
    "limits.memory",
    "requests.cpu",
    "requests.memory",
];

/// Behaviour of ResourceQuotas.
#[derive(Debug)]
pub struct ResourceQuota;

impl Strategy for ResourceQuota {
    fn default(&self, object: &mut Value) {
        for path in [["spec", "hard"], ["status", "hard"], ["status", "used"]] {
            object.at_mut(&path).into_iter().for_each(round_up);
        }
    }

    fn prepare_subresource(&self, _: &Context<'_>, object: &mut Value, old: &Value) {
        object.set(&["spec"], old["spec"].clone());
    }

    fn validate_create(&self, _: &Context<'_>, object: &Value) -> Complaints {
        let mut errors = object_metadata::validate_finalizers(object);
        errors.extend(validate_spec(object));
        errors
    }

    fn validate_update(&self, _: &Context<'_>, object: &Value, old: &Value) -> Complaints {
        let mut errors = object_metadata::validate_update(object, old);
        errors.extend(validate_spec(object));
        let scopes = |object: &Value| -> BTreeSet<String> {
            strings(&object["spec"]["scopes"])
                .into_iter()
                .map(str::to_owned)
                .collect()
        };
        if scopes(object) != scopes(old) {
            let spec = Path::new("spec");
            let bad = Bad::Json(object["spec"]["scopes"].clone());
            errors.push(FieldError::invalid(
                &spec.child("scopes"),
                bad,
                "field is immutable",
            ));
        }
        errors
    }

    fn validate_subresource(&self, _: &Context<'_>, object: &Value, old: &Value) -> Complaints {
        let mut errors = object_metadata::validate_update(object, old);
        let status = Path::new("status");
        for list in ["hard", "used"] {
            validate_amounts(&object["status"][list], &status.child(list), &mut errors);
        }
        errors
    }

    fn warnings(&self, _: &Context<'_>, object: &Value, old: Option<&Value>) -> Vec<String> {
        if old.is_some() {
            return Vec::new();
        }
        let hard = &object["spec"]["hard"];
        let mut warnings = Vec::new();
        for resource in ["cpu", "memory", "storage", "ephemeral-storage"] {
            let mut request = format!("requests.{resource}");
            if hard.get(&request).is_none() && matches!(resource, "cpu" | "memory") {
                request = resource.to_owned();
            }
            let limit = format!("limits.{resource}");
            if let (Some(asked), Some(most)) = (hard.get(&request), hard.get(&limit)) {
                let (asked, most) = (amount(Some(asked)), amount(Some(most)));
                if asked > most {
                    warnings.push(format!(
                        "ResourceQuota {request} ({asked}) should be less than {limit} ({most})"
                    ));
                }
            }
        }
        warnings
    }

    fn cells(&self, object: &Value, now: i64) -> Vec<Value> {
        let (mut requests, mut limits) = (Vec::new(), Vec::new());
        for (name, hard) in members(&object["status"]["hard"]) {
            let used = amount(object.at(&["status", "used", name]));
            let text = format!("{name}: {used}/{}", amount(Some(hard)));
            if name.starts_with("limits.") {
                limits.push(text)
            } else {
                requests.push(text)
            }
        }
        vec![
            object.str_at(&["metadata", "name"]).into(),
            requests.join(", ").into(),
            limits.join(", ").into(),
            age(object.str_at(&["metadata", "creationTimestamp"]), now),
        ]
    }
}

fn validate_amounts(amounts: &Value, path: &Path<'_>, errors: &mut Complaints) {
    for (name, value) in members(amounts) {
        errors.extend(validate_quota_name(name, &path.key(name)));
        errors.extend(validate_amount(name, value, &path.key(name)));
    }
}

fn validate_spec(object: &Value) -> Complaints {
    let mut errors = Complaints::default();
    let path = Path::new("spec");
    let spec = &object["spec"];
    validate_amounts(&spec["hard"], &path.child("hard"), &mut errors);
    validate_scopes(spec, &path.child("scopes"), &mut errors);
    if !spec["scopeSelector"].is_null() {
        let selector = path.child("scopeSelector");
        validate_selector(spec, &selector.child("matchExpressions"), &mut errors);
    }
    errors
}

/// Returns the number of resources in a quota that cannot be combined with a scope.
fn misfits(spec: &Value, scope: &str) -> usize {
    let fits = |resource: &str| match scope {
        "Terminating"
        | "NotTerminating"
        | "NotBestEffort"
        | "PriorityClass"
        | "CrossNamespacePodAffinity" => resource == "pods" || COMPUTE.contains(&resource),
        "BestEffort" => resource == "pods",
        "VolumeAttributesClass" => {
            matches!(resource, "persistentvolumeclaims" | "requests.storage")
        }
        _ => true,
    };
    members(&spec["hard"])
        .filter(|(name, _)| is_standard_quota(name) && !fits(name))
        .count()
}

fn validate_scopes(spec: &Value, path: &Path<'_>, errors: &mut Complaints) {
    let shown = || Bad::Json(spec["scopes"].clone());
    let scopes = strings(&spec["scopes"]);
    for scope in &scopes {
        if !SCOPES.contains(scope) {
            errors.push(FieldError::invalid(path, shown(), "unsupported scope"));
        }
        for _ in 0..misfits(spec, scope) {
            errors.push(FieldError::invalid(
                path,
                shown(),
                "unsupported scope applied to resource",
            ));
        }
    }
    for pair in CONFLICTS {
        if pair.iter().all(|scope| scopes.contains(scope)) {
            errors.push(FieldError::invalid(path, shown(), "conflicting scopes"));
        }
    }
}

fn validate_selector(spec: &Value, path: &Path<'_>, errors: &mut Complaints) {
    let selector = &spec["scopeSelector"];
    let mut scopes = BTreeSet::new();
    for requirement in selector.items_at(&["matchExpressions"]) {
        let scope = requirement.str_at(&["scopeName"]);
        if !SCOPES.contains(&scope) {
            let bad = Bad::Json(scope.into());
            errors.push(FieldError::invalid(
                &path.child("scopeName"),
                bad,
                "unsupported scope",
            ));
        }
        for _ in 0..misfits(spec, scope) {
            let detail = "unsupported scope applied to resource";
            errors.push(FieldError::invalid(
                path,
                bad_value::typed("io.k8s.api.core.v1.ScopeSelector", selector),
                detail,
            ));
        }
        validate_requirement(requirement, scope, path, errors);
        scopes.insert(scope);
    }
    for pair in CONFLICTS {
        if pair.iter().all(|scope| scopes.contains(scope)) {
            let bad = Bad::Json(spec["scopes"].clone());
            errors.push(FieldError::invalid(path, bad, "conflicting scopes"));
        }
    }
}

fn validate_requirement(
    requirement: &Value,
    scope: &str,
    path: &Path<'_>,
    errors: &mut Complaints,
) {
    let operator = requirement.str_at(&["operator"]);
    let bad = || Bad::Json(operator.into());
    if EXISTING.contains(&scope) && operator != "Exists" {
        let detail = "must be 'Exists' when scope is any of ResourceQuotaScopeTerminating, ResourceQuotaScopeNotTerminating, ResourceQuotaScopeBestEffort, ResourceQuotaScopeNotBestEffort or ResourceQuotaScopeCrossNamespacePodAffinity";
        errors.push(FieldError::invalid(&path.child("operator"), bad(), detail));
    }
    let values = requirement.items_at(&["values"]);
    match operator {
        "In" | "NotIn" if values.is_empty() => {
            let detail =
                "must be at least one value when `operator` is 'In' or 'NotIn' for scope selector";
            errors.push(FieldError::required(&path.child("values"), detail));
        }
        "Exists" | "DoesNotExist" if !values.is_empty() => {
            let detail =
                "must be no value when `operator` is 'Exist' or 'DoesNotExist' for scope selector";
            let bad = Bad::Json(requirement["values"].clone());
            errors.push(FieldError::invalid(&path.child("values"), bad, detail));
        }
        "In" | "NotIn" | "Exists" | "DoesNotExist" => {}
        _ => {
            let detail = "not a valid selector operator";
            errors.push(FieldError::invalid(&path.child("operator"), bad(), detail));
        }
    }
}
