//! Tolerations: the taints of nodes that a pod tolerates.

use super::{Leniency, PodOptions};
use crate::shared::validation::complaints::{complain, named};
use polyplane_apimachinery::complaints::Complaints;
use polyplane_apimachinery::field_error::{FieldError, Path};
use polyplane_apimachinery::names;
use polyplane_apimachinery::{Value, labels, strconv};

const EFFECTS: [&str; 3] = ["NoSchedule", "PreferNoSchedule", "NoExecute"];

/// Validates tolerations.
pub fn validate(
    tolerations: &[Value],
    path: &Path<'_>,
    options: &PodOptions,
    errors: &mut Complaints,
) {
    for (at, toleration) in tolerations.iter().enumerate() {
        if errors.is_full() {
            break;
        }
        let path = path.index(at);
        let (key, operator) = (
            toleration.str_at(&["key"]),
            toleration.str_at(&["operator"]),
        );
        let effect = toleration.str_at(&["effect"]);
        if !key.is_empty() {
            errors.extend(labels::validate_label_name(key, &path.child("key")));
        } else if operator != "Exists" {
            let detail = "operator must be Exists when `key` is empty, which means \"match all values and all keys\"";
            errors.push(FieldError::invalid(
                &path.child("operator"),
                named(operator),
                detail,
            ));
        }
        if toleration.int_at(&["tolerationSeconds"]).is_some() && effect != "NoExecute" {
            let detail = "effect must be 'NoExecute' when `tolerationSeconds` is set";
            errors.push(FieldError::invalid(
                &path.child("effect"),
                named(effect),
                detail,
            ));
        }
        validate_operator(toleration, operator, &path, options, errors);
        if !effect.is_empty() && !EFFECTS.contains(&effect) {
            errors.push(FieldError::not_supported(
                &path.child("effect"),
                named(effect),
                &EFFECTS,
            ));
        }
    }
}

fn validate_operator(
    toleration: &Value,
    operator: &str,
    path: &Path<'_>,
    options: &PodOptions,
    errors: &mut Complaints,
) {
    let value = toleration.str_at(&["value"]);
    let operator_path = path.child("operator");
    match operator {
        "Equal" | "" => {
            let complaints = names::label_value(value);
            if !complaints.is_empty() {
                errors.push(FieldError::invalid(
                    &operator_path,
                    value,
                    complaints.join(";"),
                ));
            }
        }
        "Exists" => {
            if !value.is_empty() {
                let detail = "value must be empty when `operator` is 'Exists'";
                errors.push(FieldError::invalid(&operator_path, value, detail));
            }
        }
        "Lt" | "Gt" if options.allows(Leniency::ComparingTolerations) => {
            let path = path.child("value");
            complain(errors, &path, value, names::decimal_integer(value));
            if let Err(error) = strconv::parse_int(value) {
                errors.push(FieldError::invalid(&path, value, error.to_string()));
            }
        }
        "Lt" | "Gt" => {
            let known = ["Equal", "Exists", "Lt", "Gt"];
            errors.push(FieldError::not_supported(
                &operator_path,
                named(operator),
                &known,
            ));
        }
        _ => {
            let known = ["Equal", "Exists"];
            errors.push(FieldError::not_supported(
                &operator_path,
                named(operator),
                &known,
            ));
        }
    }
}

/// Checks that tolerations of a pod are only added, or get another number of seconds.
pub fn validate_update(
    new: &[Value],
    old: &[Value],
    path: &Path<'_>,
    options: &PodOptions,
    errors: &mut Complaints,
) {
    let timeless = |toleration: &Value| {
        let mut toleration = toleration.clone();
        drop(toleration.remove(&["tolerationSeconds"]));
        toleration
    };
    let kept: Vec<Value> = new.iter().map(timeless).collect();
    if old
        .iter()
        .any(|toleration| !kept.contains(&timeless(toleration)))
    {
        let detail = "existing toleration can not be modified except its tolerationSeconds";
        errors.push(FieldError::forbidden(path, detail));
        return;
    }
    validate(new, path, options, errors);
}
