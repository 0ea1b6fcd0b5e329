//! Validation of affinity: the nodes on which pods want to run, and the pods beside which they want
//! to run.

use super::{Leniency, PodOptions};
use crate::shared::node_selector::{self, LabelValues};
use crate::shared::validation::complaints::complain;
use crate::shared::validation::members::texts;
use polyplane_apimachinery::Value;
use polyplane_apimachinery::complaints::Complaints;
use polyplane_apimachinery::field_error::{FieldError, Path};
use polyplane_apimachinery::labels;
use polyplane_apimachinery::names;
use std::collections::BTreeSet;

const REQUIRED: &str = "requiredDuringSchedulingIgnoredDuringExecution";
const PREFERRED: &str = "preferredDuringSchedulingIgnoredDuringExecution";

/// Validates an affinity.
pub fn validate(affinity: &Value, path: &Path<'_>, options: &PodOptions, errors: &mut Complaints) {
    let nodes = &affinity["nodeAffinity"];
    if !nodes.is_null() {
        validate_nodes(nodes, &path.child("nodeAffinity"), options, errors);
    }
    for field in ["podAffinity", "podAntiAffinity"] {
        let pods = &affinity[field];
        let path = path.child(field);
        let required = path.child(REQUIRED);
        for (at, term) in pods.items_at(&[REQUIRED]).iter().enumerate() {
            if errors.is_full() {
                break;
            }
            validate_term(term, &required.index(at), options, errors);
        }
        let preferred = path.child(PREFERRED);
        for (at, weighted) in pods.items_at(&[PREFERRED]).iter().enumerate() {
            if errors.is_full() {
                break;
            }
            let path = preferred.index(at);
            validate_weight(weighted, &path, errors);
            validate_term(
                &weighted["podAffinityTerm"],
                &path.child("podAffinityTerm"),
                options,
                errors,
            );
        }
    }
}

fn validate_weight(term: &Value, path: &Path<'_>, errors: &mut Complaints) {
    let weight = term.int_at(&["weight"]).unwrap_or(0);
    if !(1..=100).contains(&weight) {
        errors.push(FieldError::invalid(
            &path.child("weight"),
            weight,
            "must be in the range 1-100",
        ));
    }
}

fn validate_nodes(nodes: &Value, path: &Path<'_>, options: &PodOptions, errors: &mut Complaints) {
    let required = &nodes[REQUIRED];
    if !required.is_null() {
        let values = if options.allows(Leniency::NodeAffinity) {
            LabelValues::Any
        } else {
            LabelValues::Checked
        };
        errors.extend(node_selector::validate(
            required,
            values,
            &path.child(REQUIRED),
        ));
    }
    let preferred = path.child(PREFERRED);
    for (at, weighted) in nodes.items_at(&[PREFERRED]).iter().enumerate() {
        if errors.is_full() {
            break;
        }
        let path = preferred.index(at);
        validate_weight(weighted, &path, errors);
        let term = &weighted["preference"];
        errors.extend(node_selector::validate_term(
            term,
            LabelValues::Any,
            &path.child("preference"),
        ));
    }
}

fn validate_term(term: &Value, path: &Path<'_>, options: &PodOptions, errors: &mut Complaints) {
    for field in ["labelSelector", "namespaceSelector"] {
        let complaints = labels::validate_label_selector(term.get(field), &path.child(field));
        // Old objects may keep bad values of labels, but nothing else.
        let lenient = options.allows(Leniency::AffinitySelector);
        errors.extend(
            complaints
                .into_iter()
                .filter(|error| !(lenient && is_about_a_value(error))),
        );
    }
    for namespace in texts(&term["namespaces"]) {
        complain(
            errors,
            &path.child("namespace"),
            namespace,
            names::dns1123_label(namespace),
        );
    }
    validate_label_keys(term, path, errors);
    let key = term.str_at(&["topologyKey"]);
    if key.is_empty() {
        errors.push(FieldError::required(
            &path.child("topologyKey"),
            "can not be empty",
        ));
    }
    errors.extend(labels::validate_label_name(key, &path.child("topologyKey")));
}

fn is_about_a_value(error: &FieldError) -> bool {
    error.field.ends_with(']') && error.field.contains("].values[")
}

/// Validates the label keys whose values a selector takes from the pod, and those whose values must
/// differ.
pub fn validate_label_keys(owner: &Value, path: &Path<'_>, errors: &mut Complaints) {
    let selector = &owner["labelSelector"];
    for field in ["matchLabelKeys", "mismatchLabelKeys"] {
        let keys_path = path.child(field);
        let keys: Vec<&str> = texts(&owner[field]);
        if keys.is_empty() {
            continue;
        }
        if selector.is_null() {
            let detail = "must not be specified when labelSelector is not set";
            errors.push(FieldError::forbidden(&keys_path, detail));
            continue;
        }
        for (at, key) in keys.into_iter().enumerate() {
            errors.extend(labels::validate_label_name(key, &keys_path.index(at)));
        }
    }
    let keys: Vec<&str> = texts(&owner["matchLabelKeys"]);
    let mut selected: BTreeSet<&str> = selector["matchLabels"]
        .as_object()
        .into_iter()
        .flat_map(|labels| labels.keys())
        .collect();
    for expression in selector.items_at(&["matchExpressions"]) {
        let key = expression.str_at(&["key"]);
        if let Some(at) = keys.iter().rposition(|one| *one == key)
            && selected.contains(key)
        {
            let detail = "exists in both matchLabelKeys and labelSelector";
            errors.push(FieldError::invalid(&path.index(at), key, detail));
        }
        selected.insert(key);
    }
    let different: BTreeSet<&str> = texts(&owner["mismatchLabelKeys"]).into_iter().collect();
    let keys_path = path.child("matchLabelKeys");
    for (at, key) in keys
        .into_iter()
        .enumerate()
        .filter(|(_, key)| different.contains(key))
    {
        let detail = "exists in both matchLabelKeys and mismatchLabelKeys";
        errors.push(FieldError::invalid(&keys_path.index(at), key, detail));
    }
}

/// Returns the terms of affinity between pods, with or without a weight.
pub fn pod_terms(spec: &Value) -> impl Iterator<Item = &Value> {
    ["podAffinity", "podAntiAffinity"]
        .into_iter()
        .flat_map(move |field| {
            let pods = &spec["affinity"][field];
            let weighted = pods
                .items_at(&[PREFERRED])
                .iter()
                .map(|weighted| &weighted["podAffinityTerm"]);
            pods.items_at(&[REQUIRED]).iter().chain(weighted)
        })
}

/// Returns true if a selector in the affinity of a spec is invalid.
pub fn has_bad_selector(spec: &Value) -> bool {
    pod_terms(spec).any(|term| {
        ["labelSelector", "namespaceSelector"]
            .iter()
            .any(|field| !labels::validate_label_selector(term.get(field), &Path::NIL).is_empty())
    })
}
