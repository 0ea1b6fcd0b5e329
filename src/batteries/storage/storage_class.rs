//! StorageClasses: the provisioner of volumes, its parameters and where the volumes may be.

use super::provisioner::{Parameters, validate_driver, validate_parameters};
use crate::shared::node_selector::deprecated_label;
use crate::shared::object_metadata;
use crate::shared::table_cells::{age_cell, name_cell};
use crate::shared::validation::complaints::one_of;
use polyplane_apimachinery::complaints::Complaints;
use polyplane_apimachinery::field_error::{FieldError, Path};
use polyplane_apimachinery::names::NameRule;
use polyplane_apimachinery::{Value, labels};
use polyplane_registry::Scope;
use polyplane_registry::strategy::{Context, Strategy};
use std::collections::{BTreeMap, BTreeSet};

/// Behaviour of StorageClasses.
#[derive(Debug)]
pub struct StorageClass;

impl Strategy for StorageClass {
    fn validate_create(&self, _: &Context<'_>, object: &Value) -> Complaints {
        let mut errors = object_metadata::validate_finalizers(object);
        validate(&mut errors, object);
        errors
    }

    fn validate_update(&self, _: &Context<'_>, object: &Value, old: &Value) -> Complaints {
        let mut errors = object_metadata::validate(object, Scope::Cluster, NameRule::DnsSubdomain);
        validate(&mut errors, object);
        errors.extend(object_metadata::validate_update(object, old));
        errors
    }

    fn warnings(&self, _: &Context<'_>, object: &Value, _: Option<&Value>) -> Vec<String> {
        let path = Path::new("allowedTopologies");
        let mut warnings = Vec::new();
        for (at, term) in object.items_at(&["allowedTopologies"]).iter().enumerate() {
            let term_path = path.index(at);
            let place = term_path.child("matchLabelExpressions");
            for (at, expression) in term.items_at(&["matchLabelExpressions"]).iter().enumerate() {
                if let Some(text) = deprecated_label(expression.str_at(&["key"])) {
                    warnings.push(format!("{}: {text}", place.index(at).child("key")));
                }
            }
        }
        warnings
    }

    fn cells(&self, object: &Value, now: i64) -> Vec<Value> {
        let text = |field: &str, unset: &str| object[field].as_str().unwrap_or(unset).into();
        vec![
            name_cell(object),
            object.str_at(&["provisioner"]).into(),
            text("reclaimPolicy", "Delete"),
            text("volumeBindingMode", "Immediate"),
            object.bool_at(&["allowVolumeExpansion"]).into(),
            age_cell(object, now),
        ]
    }
}

fn validate(errors: &mut Complaints, object: &Value) {
    validate_driver(
        errors,
        object.str_at(&["provisioner"]),
        &Path::new("provisioner"),
    );
    validate_parameters(
        errors,
        &object["parameters"],
        Parameters::Optional,
        &Path::new("parameters"),
    );
    let policy = object.str_at(&["reclaimPolicy"]);
    if !policy.is_empty() {
        one_of(
            errors,
            &Path::new("reclaimPolicy"),
            policy,
            &["Delete", "Retain"],
        );
    }
    let mode_path = Path::new("volumeBindingMode");
    match object["volumeBindingMode"].as_str() {
        Some(mode) => one_of(
            errors,
            &mode_path,
            mode,
            &["Immediate", "WaitForFirstConsumer"],
        ),
        None => errors.push(FieldError::required(&mode_path, "")),
    }
    validate_topologies(errors, object.items_at(&["allowedTopologies"]));
}

/// The values of a term, by key.
type Requirements<'a> = BTreeMap<&'a str, BTreeSet<&'a str>>;

fn validate_topologies(errors: &mut Complaints, terms: &[Value]) {
    let path = Path::new("allowedTopologies");
    let mut seen: Vec<Requirements<'_>> = Vec::new();
    for (at, term) in terms.iter().enumerate() {
        let place = path.index(at);
        let requirements = validate_term(errors, term, &place);
        // A term without requirements counts as a duplicate.
        if requirements.is_empty() || seen.contains(&requirements) {
            errors.push(FieldError::duplicate(
                &place.child("matchLabelExpressions"),
                "",
            ));
        }
        seen.push(requirements);
    }
}

fn validate_term<'a>(
    errors: &mut Complaints,
    term: &'a Value,
    path: &Path<'_>,
) -> Requirements<'a> {
    let path = path.child("matchLabelExpressions");
    let mut requirements = Requirements::new();
    for (at, expression) in term.items_at(&["matchLabelExpressions"]).iter().enumerate() {
        let path = path.index(at);
        let values_path = path.child("values");
        let mut values = BTreeSet::new();
        let given = expression.items_at(&["values"]);
        if given.is_empty() {
            errors.push(FieldError::required(&values_path, ""));
        }
        for (at, value) in given.iter().enumerate() {
            let value = value.as_str().unwrap_or("");
            if !values.insert(value) {
                errors.push(FieldError::duplicate(&values_path.index(at), value));
            }
        }
        let key = expression.str_at(&["key"]);
        errors.extend(labels::validate_label_name(key, &path.child("key")));
        if requirements.insert(key, values).is_some() {
            errors.push(FieldError::duplicate(&path.child("key"), key));
        }
    }
    requirements
}

#[cfg(test)]
mod tests {
    use super::*;
    use polyplane_apimachinery::json;

    fn texts(terms: Value) -> Vec<String> {
        let mut errors = Complaints::default();
        validate_topologies(&mut errors, terms.as_array().unwrap_or(&[]));
        errors.iter().map(ToString::to_string).collect()
    }

    #[test]
    fn equal_terms_are_found_whatever_their_order() {
        let term = json!({"matchLabelExpressions": [{"key": "a", "values": ["x", "y"]}]});
        let turned = json!({"matchLabelExpressions": [{"key": "a", "values": ["y", "x"]}]});
        assert!(texts(json!([(term.clone())])).is_empty());
        let complaint = r#"allowedTopologies[1].matchLabelExpressions: Duplicate value: """#;
        assert_eq!(texts(json!([term, turned])), [complaint]);
    }

    #[test]
    fn keys_and_values_are_given_once() {
        let twice = json!([{"matchLabelExpressions": [{"key": "a", "values": ["x", "x"]}, {"key": "a", "values": ["y"]}]}]);
        let place = "allowedTopologies[0].matchLabelExpressions";
        assert_eq!(
            texts(twice),
            [
                format!(r#"{place}[0].values[1]: Duplicate value: "x""#),
                format!(r#"{place}[1].key: Duplicate value: "a""#)
            ]
        );
    }
}
