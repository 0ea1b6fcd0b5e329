//! Validation of an autoscaler in the stored version.

use crate::shared::validation::complaints::{complain, named};
use crate::shared::validation::members::has;
use crate::shared::validation::numbers::{non_negative, non_negative_quantity, sign};
use crate::shared::{object_metadata, resource_names};
use polyplane_apimachinery::complaints::Complaints;
use polyplane_apimachinery::field_error::{FieldError, Path};
use polyplane_apimachinery::{Value, names};

const PERIOD_SECONDS_MAX: i64 = 1800;
const WINDOW_SECONDS_MAX: i64 = 3600;
/// The kinds of metric: type and field, in the order in which they are checked.
const SOURCES: [(&str, &str); 5] = [
    ("Object", "object"),
    ("External", "external"),
    ("Pods", "pods"),
    ("Resource", "resource"),
    ("ContainerResource", "containerResource"),
];

/// The strictness with which the apiVersion of a reference is parsed.
#[derive(Clone, Copy, PartialEq, Eq)]
enum VersionRule {
    Any,
    WellFormed,
    WithGroup,
}

impl VersionRule {
    fn complaint(self, version: &str) -> Option<String> {
        let slashes = version.matches('/').count();
        match self {
            Self::Any => None,
            _ if version != "/" && slashes > 1 => {
                Some(format!("unexpected GroupVersion string: {version}"))
            }
            Self::WithGroup if version == "/" || slashes == 0 || version.starts_with('/') => {
                Some("apiVersion must specify API group".to_owned())
            }
            _ => None,
        }
    }
}

/// Validates a new or changed autoscaler.
pub fn autoscaler(object: &Value, old: Option<&Value>) -> Complaints {
    let mut errors = object_metadata::validate_finalizers(object);
    let (spec, path) = (&object["spec"], Path::new("spec"));
    let (target, before) = (&spec["scaleTargetRef"], old.map(|old| &old["spec"]));
    let same_target = before.is_some_and(|before| {
        let before = &before["scaleTargetRef"];
        ["apiVersion", "kind"]
            .iter()
            .all(|field| before.str_at(&[field]) == target.str_at(&[field]))
    });
    let target_rule = match target.str_at(&["kind"]) {
        _ if same_target => VersionRule::Any,
        "ReplicationController" => VersionRule::WellFormed,
        _ => VersionRule::WithGroup,
    };
    let was_bad = before.is_some_and(|before| {
        before.items_at(&["metrics"]).iter().any(|metric| {
            let version = metric.str_at(&["object", "describedObject", "apiVersion"]);
            metric.str_at(&["type"]) == "Object"
                && has(metric, "object")
                && VersionRule::WellFormed.complaint(version).is_some()
        })
    });
    let object_rule = if was_bad {
        VersionRule::Any
    } else {
        VersionRule::WellFormed
    };
    replicas(spec, &path, &mut errors);
    reference(
        target,
        target_rule,
        &path.child("scaleTargetRef"),
        &mut errors,
    );
    metrics(spec, object_rule, &path.child("metrics"), &mut errors);
    let place = path.child("behavior");
    for direction in ["scaleUp", "scaleDown"] {
        rules(
            &spec["behavior"][direction],
            &place.child(direction),
            &mut errors,
        );
    }
    errors
}

/// Validates a changed status.
pub fn status(object: &Value) -> Complaints {
    let mut errors = object_metadata::validate_finalizers(object);
    let (status, path) = (&object["status"], Path::new("status"));
    let conditions = path.child("conditions");
    for (at, condition) in status.items_at(&["conditions"]).iter().enumerate() {
        let place = conditions.index(at);
        non_negative(
            condition.int_at(&["observedGeneration"]),
            &place.child("observedGeneration"),
            &mut errors,
        );
    }
    for field in ["currentReplicas", "desiredReplicas"] {
        non_negative(status.int_at(&[field]), &path.child(field), &mut errors);
    }
    errors
}

fn replicas(spec: &Value, path: &Path<'_>, errors: &mut Complaints) {
    let least = spec.int_at(&["minReplicas"]);
    let most = spec.int_at(&["maxReplicas"]).unwrap_or(0);
    if let Some(least) = least.filter(|least| *least < 0) {
        let detail = "must be greater than or equal to 0";
        errors.push(FieldError::invalid(
            &path.child("minReplicas"),
            least,
            detail,
        ));
    }
    let place = path.child("maxReplicas");
    match most {
        0 => errors.push(FieldError::required(&place, "")),
        1.. => {}
        _ => errors.push(FieldError::invalid(
            &place,
            most,
            "must be greater than or equal to 1",
        )),
    }
    if least.is_some_and(|least| most < least) {
        errors.push(FieldError::invalid(
            &place,
            most,
            "must be greater than or equal to `minReplicas`",
        ));
    }
}

fn reference(target: &Value, rule: VersionRule, path: &Path<'_>, errors: &mut Complaints) {
    for field in ["kind", "name"] {
        segment(target.str_at(&[field]), "", &path.child(field), errors);
    }
    let version = target.str_at(&["apiVersion"]);
    if let Some(detail) = rule.complaint(version) {
        errors.push(FieldError::invalid(
            &path.child("apiVersion"),
            version,
            detail,
        ));
    }
}

/// Checks a text that must be present and be usable as a segment of a path.
fn segment(text: &str, absent: &str, path: &Path<'_>, errors: &mut Complaints) {
    if text.is_empty() {
        errors.push(FieldError::required(path, absent));
    } else {
        complain(errors, path, text, names::path_segment_name(text));
    }
}

fn metrics(spec: &Value, rule: VersionRule, path: &Path<'_>, errors: &mut Complaints) {
    let metrics = spec.items_at(&["metrics"]);
    for (at, spec) in metrics.iter().enumerate() {
        metric(spec, rule, &path.index(at), errors);
    }
    let wakes = |metric: &Value| matches!(metric.str_at(&["type"]), "Object" | "External");
    if spec.int_at(&["minReplicas"]) == Some(0) && !metrics.iter().any(wakes) {
        let detail = "must specify at least one Object or External metric to support scaling to zero replicas";
        errors.push(FieldError::forbidden(path, detail));
    }
}

fn metric(spec: &Value, rule: VersionRule, path: &Path<'_>, errors: &mut Complaints) {
    let kind = spec.str_at(&["type"]);
    let place = path.child("type");
    if kind.is_empty() {
        errors.push(FieldError::required(
            &place,
            "must specify a metric source type",
        ));
    }
    let known = SOURCES.iter().find(|(name, _)| *name == kind);
    let unknown =
        || FieldError::not_supported_sorted(&place, named(kind), &SOURCES.map(|(name, _)| name));
    if known.is_none() {
        errors.push(unknown());
    }
    let given: Vec<&str> = SOURCES
        .iter()
        .map(|(_, field)| *field)
        .filter(|field| has(spec, field))
        .collect();
    if let Some(first) = given.first() {
        source(first, &spec[*first], rule, &path.child(first), errors);
    }
    match known {
        Some((_, field)) if !has(spec, field) => {
            let detail = "must populate information for the given metric source";
            errors.push(FieldError::required(&path.child(field), detail));
        }
        Some(_) => {}
        None => errors.push(unknown()),
    }
    if given.len() > 1 {
        for field in given
            .iter()
            .filter(|field| known.is_none_or(|(_, wanted)| wanted != *field))
        {
            errors.push(FieldError::forbidden(
                &path.child(field),
                "must populate the given metric source only",
            ));
        }
    }
}

fn source(
    field: &str,
    source: &Value,
    rule: VersionRule,
    path: &Path<'_>,
    errors: &mut Complaints,
) {
    let (target, place) = (&source["target"], path.child("target"));
    match field {
        "object" => reference(
            &source["describedObject"],
            rule,
            &path.child("describedObject"),
            errors,
        ),
        "containerResource" => container(source, path, errors),
        "resource" if source.str_at(&["name"]).is_empty() => {
            errors.push(FieldError::required(
                &path.child("name"),
                "must specify a resource name",
            ));
        }
        _ => {}
    }
    if matches!(field, "object" | "external" | "pods") {
        let name = source.str_at(&["metric", "name"]);
        segment(
            name,
            "must specify a metric name",
            &path.child("metric").child("name"),
            errors,
        );
    }
    metric_target(target, &place, errors);
    let (value, average) = (has(target, "value"), has(target, "averageValue"));
    let share = has(target, "averageUtilization");
    match field {
        "object" if !value && !average => {
            let detail = "must set either a target value or averageValue";
            errors.push(FieldError::required(&place.child("averageValue"), detail));
        }
        "external" if !value && !average => {
            let detail = "must set either a target value for metric or a per-pod target";
            errors.push(FieldError::required(&place.child("averageValue"), detail));
        }
        "external" if value && average => {
            let detail = "may not set both a target value for metric and a per-pod target";
            errors.push(FieldError::forbidden(&place.child("value"), detail));
        }
        "pods" if !average => {
            let detail = "must specify a positive target averageValue";
            errors.push(FieldError::required(&place.child("averageValue"), detail));
        }
        "resource" | "containerResource" if !share && !average => {
            let detail = "must set either a target raw value or a target utilization";
            errors.push(FieldError::required(
                &place.child("averageUtilization"),
                detail,
            ));
        }
        "resource" | "containerResource" if share && average => {
            let detail = "may not set both a target raw value and a target utilization";
            errors.push(FieldError::forbidden(&place.child("averageValue"), detail));
        }
        _ => {}
    }
}

fn container(source: &Value, path: &Path<'_>, errors: &mut Complaints) {
    match source.str_at(&["name"]) {
        "" => errors.push(FieldError::required(
            &path.child("name"),
            "must specify a resource name",
        )),
        name => errors.extend(resource_names::validate_container_name(
            name,
            &path.child("name"),
        )),
    }
    let place = path.child("container");
    match source.str_at(&["container"]) {
        "" => errors.push(FieldError::required(&place, "must specify a container")),
        name => complain(errors, &place, name, names::dns1123_label(name)),
    }
}

fn metric_target(target: &Value, path: &Path<'_>, errors: &mut Complaints) {
    let kind = target.str_at(&["type"]);
    if kind.is_empty() {
        errors.push(FieldError::required(
            &path.child("type"),
            "must specify a metric target type",
        ));
    }
    if !matches!(kind, "Utilization" | "Value" | "AverageValue") {
        let detail = "must be either Utilization, Value, or AverageValue";
        errors.push(FieldError::invalid(
            &path.child("type"),
            named(kind),
            detail,
        ));
    }
    for field in ["value", "averageValue"] {
        if sign(&target[field]).is_some_and(|sign| sign != 1) {
            errors.push(FieldError::invalid(
                &path.child(field),
                target[field].clone(),
                "must be positive",
            ));
        }
    }
    if let Some(share) = target
        .int_at(&["averageUtilization"])
        .filter(|share| *share < 1)
    {
        errors.push(FieldError::invalid(
            &path.child("averageUtilization"),
            share,
            "must be greater than 0",
        ));
    }
}

fn rules(rules: &Value, path: &Path<'_>, errors: &mut Complaints) {
    if rules.is_null() {
        return;
    }
    if let Some(window) = rules.int_at(&["stabilizationWindowSeconds"]) {
        let place = path.child("stabilizationWindowSeconds");
        if window < 0 {
            errors.push(FieldError::invalid(
                &place,
                window,
                "must be greater than or equal to zero",
            ));
        }
        if window > WINDOW_SECONDS_MAX {
            let detail = format!("must be less than or equal to {WINDOW_SECONDS_MAX}");
            errors.push(FieldError::invalid(&place, window, detail));
        }
    }
    if let Some(choice) = rules["selectPolicy"].as_str() {
        let known = ["Disabled", "Max", "Min"];
        if !known.contains(&choice) {
            errors.push(FieldError::not_supported(
                &path.child("selectPolicy"),
                named(choice),
                &known,
            ));
        }
    }
    let (policies, place) = (rules.items_at(&["policies"]), path.child("policies"));
    if policies.is_empty() {
        errors.push(FieldError::required(
            &place,
            "must specify at least one Policy",
        ));
    }
    for (at, one) in policies.iter().enumerate() {
        policy(one, &place.index(at), errors);
    }
    if has(rules, "tolerance") {
        non_negative_quantity(&rules["tolerance"], &path.child("tolerance"), errors);
    }
}

fn policy(policy: &Value, path: &Path<'_>, errors: &mut Complaints) {
    let kind = policy.str_at(&["type"]);
    let known = ["Percent", "Pods"];
    if !known.contains(&kind) {
        errors.push(FieldError::not_supported(
            &path.child("type"),
            named(kind),
            &known,
        ));
    }
    for field in ["value", "periodSeconds"] {
        let number = policy.int_at(&[field]).unwrap_or(0);
        if number <= 0 {
            errors.push(FieldError::invalid(
                &path.child(field),
                number,
                "must be greater than zero",
            ));
        }
        if field == "periodSeconds" && number > PERIOD_SECONDS_MAX {
            let detail = format!("must be less than or equal to {PERIOD_SECONDS_MAX}");
            errors.push(FieldError::invalid(&path.child(field), number, detail));
        }
    }
}
