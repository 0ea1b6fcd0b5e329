//! Node selectors: terms of requirements on labels and fields of nodes.

use polyplane_apimachinery::Value;
use polyplane_apimachinery::complaints::Complaints;
use polyplane_apimachinery::field_error::{Bad, FieldError, Path};
use polyplane_apimachinery::labels::{UnknownOperators, validate_operator};
use polyplane_apimachinery::{labels, names};

/// The choice whether values of labels are checked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LabelValues {
    /// They must be valid label values.
    Checked,
    /// Any text is accepted, for selectors that were stored before the check existed.
    Any,
}

/// Validates a node selector.
pub fn validate(selector: &Value, values: LabelValues, path: &Path<'_>) -> Complaints {
    let terms_path = path.child("nodeSelectorTerms");
    let terms = selector.items_at(&["nodeSelectorTerms"]);
    if terms.is_empty() {
        return Complaints::from([FieldError::required(
            &terms_path,
            "must have at least one node selector term",
        )]);
    }
    let mut errors = Complaints::default();
    for (at, term) in terms.iter().enumerate() {
        errors.extend(validate_term(term, values, &terms_path.index(at)));
    }
    errors
}

/// Validates one term of a node selector.
pub fn validate_term(term: &Value, values: LabelValues, path: &Path<'_>) -> Complaints {
    let mut errors = Complaints::default();
    let expressions = path.child("matchExpressions");
    for (at, requirement) in term.items_at(&["matchExpressions"]).iter().enumerate() {
        errors.extend(validate_requirement(
            requirement,
            values,
            &expressions.index(at),
        ));
    }
    let fields = path.child("matchFields");
    for (at, requirement) in term.items_at(&["matchFields"]).iter().enumerate() {
        errors.extend(validate_field_requirement(requirement, &fields.index(at)));
    }
    errors
}

fn not_an_operator(requirement: &Value, path: &Path<'_>) -> FieldError {
    let bad = Bad::Json(requirement.str_at(&["operator"]).into());
    FieldError::invalid(
        &path.child("operator"),
        bad,
        "not a valid selector operator",
    )
}

fn validate_requirement(
    requirement: &Value,
    label_values: LabelValues,
    path: &Path<'_>,
) -> Complaints {
    let mut errors = Complaints::default();
    let values = requirement.items_at(&["values"]);
    let values_path = path.child("values");
    match requirement.str_at(&["operator"]) {
        "Gt" | "Lt" => {
            if values.len() != 1 {
                let detail = "must be specified single value when `operator` is 'Lt' or 'Gt'";
                errors.push(FieldError::required(&values_path, detail));
            }
        }
        _ => validate_operator(requirement, path, UnknownOperators::Refused, &mut errors),
    }
    errors.extend(labels::validate_label_name(
        requirement.str_at(&["key"]),
        &path.child("key"),
    ));
    if label_values == LabelValues::Checked {
        for (at, value) in values.iter().enumerate() {
            let value = value.as_str().unwrap_or("");
            for detail in names::label_value(value) {
                errors.push(FieldError::invalid(&values_path.index(at), value, detail));
            }
        }
    }
    errors
}

fn validate_field_requirement(requirement: &Value, path: &Path<'_>) -> Complaints {
    let mut errors = Complaints::default();
    let values = requirement.items_at(&["values"]);
    let values_path = path.child("values");
    match requirement.str_at(&["operator"]) {
        "In" | "NotIn" => {
            if values.len() != 1 {
                let detail = "must be only one value when `operator` is 'In' or 'NotIn' for node field selector";
                errors.push(FieldError::required(&values_path, detail));
            }
        }
        _ => errors.push(not_an_operator(requirement, path)),
    }
    let key = requirement.str_at(&["key"]);
    if key != "metadata.name" {
        let detail = "not a valid field selector key";
        errors.push(FieldError::invalid(&path.child("key"), key, detail));
        return errors;
    }
    for (at, value) in values.iter().enumerate() {
        let value = value.as_str().unwrap_or("");
        for detail in names::dns1123_subdomain(value) {
            errors.push(FieldError::invalid(&values_path.index(at), value, detail));
        }
    }
    errors
}

/// Returns true if a value in the requirements on labels is not a valid label value.
pub fn has_bad_label_values(selector: &Value) -> bool {
    let terms = selector.items_at(&["nodeSelectorTerms"]).iter();
    let requirements = terms.flat_map(|term| term.items_at(&["matchExpressions"]));
    requirements
        .flat_map(|requirement| requirement.items_at(&["values"]))
        .any(|value| !names::label_value(value.as_str().unwrap_or("")).is_empty())
}

/// Deprecated labels of nodes, and the warnings about them.
const DEPRECATED_LABELS: [(&str, &str); 8] = [
    (
        "beta.kubernetes.io/arch",
        r#"deprecated since v1.14; use "kubernetes.io/arch" instead"#,
    ),
    (
        "beta.kubernetes.io/os",
        r#"deprecated since v1.14; use "kubernetes.io/os" instead"#,
    ),
    (
        "failure-domain.beta.kubernetes.io/region",
        r#"deprecated since v1.17; use "topology.kubernetes.io/region" instead"#,
    ),
    (
        "failure-domain.beta.kubernetes.io/zone",
        r#"deprecated since v1.17; use "topology.kubernetes.io/zone" instead"#,
    ),
    (
        "beta.kubernetes.io/instance-type",
        r#"deprecated since v1.17; use "node.kubernetes.io/instance-type" instead"#,
    ),
    ("app.kubernetes.io/created-by", "deprecated since v1.9"),
    (
        "scheduler.alpha.kubernetes.io/preferAvoidPods",
        "deprecated since v1.22; use Taints and Tolerations instead",
    ),
    (
        "node-role.kubernetes.io/master",
        r#"use "node-role.kubernetes.io/control-plane" instead"#,
    ),
];

/// Returns the warning about a deprecated label of nodes.
pub fn deprecated_label(key: &str) -> Option<&'static str> {
    DEPRECATED_LABELS
        .iter()
        .find(|(label, _)| *label == key)
        .map(|(_, text)| *text)
}

/// Returns warnings for the client about the labels that a term names.
pub fn term_warnings(term: &Value, path: &Path<'_>) -> Vec<String> {
    let expressions = path.child("matchExpressions");
    let requirements = term.items_at(&["matchExpressions"]).iter().enumerate();
    requirements
        .filter_map(|(at, requirement)| {
            let key = requirement.str_at(&["key"]);
            let text = deprecated_label(key)?;
            Some(format!(
                "{}: {key} is {text}",
                expressions.index(at).child("key")
            ))
        })
        .collect()
}
