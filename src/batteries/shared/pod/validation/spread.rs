//! Validation of topology spread: how pods are distributed over the parts of a cluster.

use super::{Leniency, PodOptions, affinity};
use crate::shared::validation::complaints::named;
use crate::shared::validation::members::texts;
use polyplane_apimachinery::Value;
use polyplane_apimachinery::complaints::Complaints;
use polyplane_apimachinery::field_error::{FieldError, Path};
use polyplane_apimachinery::labels;
use std::collections::{BTreeSet, HashMap};

const POLICIES: [&str; 2] = ["Honor", "Ignore"];
const ACTIONS: [&str; 2] = ["DoNotSchedule", "ScheduleAnyway"];
const NOT_POSITIVE: &str = "must be greater than zero";
/// Constraints up to which each is compared with all behind it, which is faster for few.
const FEW: usize = 16;

/// Validates the constraints.
pub fn validate(
    constraints: &[Value],
    path: &Path<'_>,
    options: &PodOptions,
    errors: &mut Complaints,
) {
    let repeats = Repeats::of(constraints);
    for (at, constraint) in constraints.iter().enumerate() {
        if errors.is_full() {
            break;
        }
        let path = path.index(at);
        let skew = constraint.int_at(&["maxSkew"]).unwrap_or(0);
        if skew <= 0 {
            errors.push(FieldError::invalid(
                &path.child("maxSkew"),
                skew,
                NOT_POSITIVE,
            ));
        }
        let key = constraint.str_at(&["topologyKey"]);
        if key.is_empty() {
            errors.push(FieldError::required(
                &path.child("topologyKey"),
                "can not be empty",
            ));
        }
        let action = constraint.str_at(&["whenUnsatisfiable"]);
        if !ACTIONS.contains(&action) {
            errors.push(FieldError::not_supported(
                &path.child("whenUnsatisfiable"),
                named(action),
                &ACTIONS,
            ));
        }
        if repeats.occurs_again(at) {
            let place = path.child("{topologyKey, whenUnsatisfiable}");
            errors.push(FieldError::duplicate(
                &place,
                format!("{{{key}, {action}}}"),
            ));
        }
        validate_domains(constraint, action, &path, errors);
        for field in ["nodeAffinityPolicy", "nodeTaintsPolicy"] {
            if let Some(policy) = constraint.get(field).and_then(Value::as_str)
                && !POLICIES.contains(&policy)
            {
                errors.push(FieldError::not_supported(
                    &path.child(field),
                    named(policy),
                    &POLICIES,
                ));
            }
        }
        if options.allows(Leniency::SpreadKeys) {
            validate_keys_as_before(constraint, &path.child("matchLabelKeys"), errors);
        } else {
            affinity::validate_label_keys(constraint, &path, errors);
        }
        if !options.allows(Leniency::SpreadSelector) {
            let selector = constraint.get("labelSelector");
            errors.extend(labels::validate_label_selector(
                selector,
                &path.child("labelSelector"),
            ));
        }
    }
}

/// The constraints by their keys and actions, of which no two may have the same.
struct Repeats<'v> {
    constraints: &'v [Value],
    /// The place of the last one of each; empty for few constraints.
    last: HashMap<(&'v str, &'v str), usize>,
}

impl<'v> Repeats<'v> {
    fn of(constraints: &'v [Value]) -> Self {
        let mut last: HashMap<(&str, &str), usize> = HashMap::new();
        if constraints.len() > FEW {
            let all = constraints.iter().enumerate();
            last.extend(all.map(|(at, constraint)| (key_and_action(constraint), at)));
        }
        Self { constraints, last }
    }

    /// Returns true if one behind the constraint at this place has its key and action.
    fn occurs_again(&self, at: usize) -> bool {
        let own = key_and_action(&self.constraints[at]);
        if self.constraints.len() > FEW {
            return self.last.get(&own).is_some_and(|last| *last > at);
        }
        let mut behind = self.constraints[at + 1..].iter();
        behind.any(|other| key_and_action(other) == own)
    }
}

fn key_and_action(constraint: &Value) -> (&str, &str) {
    (
        constraint.str_at(&["topologyKey"]),
        constraint.str_at(&["whenUnsatisfiable"]),
    )
}

fn validate_domains(constraint: &Value, action: &str, path: &Path<'_>, errors: &mut Complaints) {
    let Some(domains) = constraint.int_at(&["minDomains"]) else {
        return;
    };
    let path = path.child("minDomains");
    if domains <= 0 {
        errors.push(FieldError::invalid(&path, domains, NOT_POSITIVE));
    }
    if action != "DoNotSchedule" {
        let detail =
            format!("can only use minDomains if whenUnsatisfiable=DoNotSchedule, not {action}");
        errors.push(FieldError::invalid(&path, domains, detail));
    }
}

/// Validates label keys by the rules of older servers.
fn validate_keys_as_before(constraint: &Value, path: &Path<'_>, errors: &mut Complaints) {
    let keys: Vec<&str> = texts(&constraint["matchLabelKeys"]);
    if keys.is_empty() {
        return;
    }
    let selector = &constraint["labelSelector"];
    if selector.is_null() {
        errors.push(FieldError::forbidden(
            path,
            "must not be specified when labelSelector is not set",
        ));
    }
    let plain = selector["matchLabels"]
        .as_object()
        .into_iter()
        .flat_map(|labels| labels.keys());
    let expressions = selector
        .items_at(&["matchExpressions"])
        .iter()
        .map(|one| one.str_at(&["key"]));
    let selected: BTreeSet<&str> = plain.chain(expressions).collect();
    for (at, key) in keys.into_iter().enumerate() {
        let path = path.index(at);
        errors.extend(labels::validate_label_name(key, &path));
        if selected.contains(key) {
            let detail = "exists in both matchLabelKeys and labelSelector";
            errors.push(FieldError::invalid(&path, key, detail));
        }
    }
}

/// Returns true if a selector among the constraints is invalid.
pub fn has_bad_selector(spec: &Value) -> bool {
    spec.items_at(&["topologySpreadConstraints"])
        .iter()
        .any(|one| {
            !labels::validate_label_selector(one.get("labelSelector"), &Path::NIL).is_empty()
        })
}

/// Returns true if the label keys of a constraint are invalid by today's rules.
pub fn has_bad_keys(spec: &Value) -> bool {
    spec.items_at(&["topologySpreadConstraints"])
        .iter()
        .any(|constraint| {
            let mut errors = Complaints::default();
            let mut spread = Value::object();
            for field in ["matchLabelKeys", "labelSelector"] {
                if let Some(value) = constraint.get(field) {
                    spread.set(&[field], value.clone());
                }
            }
            affinity::validate_label_keys(&spread, &Path::NIL, &mut errors);
            !errors.is_empty()
        })
}

#[cfg(test)]
mod tests {
    use super::*;
    use polyplane_apimachinery::json;

    #[test]
    fn repeated_constraints_are_found_among_few_and_among_many() {
        let constraint = |at: usize| {
            let (key, action) = (format!("k{}", at % 7), ACTIONS[at % 2]);
            json!({"topologyKey": key, "whenUnsatisfiable": action})
        };
        for count in [1, FEW, FEW + 1, 40] {
            let constraints: Vec<Value> = (0..count).map(constraint).collect();
            let repeats = Repeats::of(&constraints);
            let found = (0..count).filter(|at| repeats.occurs_again(*at));
            // Keys and actions repeat after 14.
            let wanted = (0..count).filter(|at| at + 14 < count);
            assert_eq!(found.collect::<Vec<_>>(), wanted.collect::<Vec<_>>());
        }
    }
}
