//! Validation of a Node, and of a change of one.

use crate::core::config_map::members;
use crate::shared::network::addresses;
use crate::shared::object_metadata;
use crate::shared::resource_names::validate_amount;
use crate::shared::validation::bad_value;
use polyplane_apimachinery::complaints::Complaints;
use polyplane_apimachinery::field_error::{Bad, FieldError, Path};
use polyplane_apimachinery::names::{self, NameRule};
use polyplane_apimachinery::{Value, json, labels};
use polyplane_registry::Scope;
use polyplane_registry::metadata::strings;
use std::collections::BTreeSet;

/// A check that returns the complaints about a text.
type Rule = fn(&str) -> Vec<String>;

const TAINTS: &str = "scheduler.alpha.kubernetes.io/taints";
const AVOID: &str = "scheduler.alpha.kubernetes.io/preferAvoidPods";

/// Validates a Node, its metadata included.
pub fn validate_whole(object: &Value) -> Complaints {
    let mut errors =
        polyplane_registry::metadata::validate(object, Scope::Cluster, NameRule::DnsSubdomain);
    errors.extend(validate(object));
    errors
}

/// Validates a Node beyond the common rules of metadata.
pub fn validate(object: &Value) -> Complaints {
    let mut errors = object_metadata::validate_finalizers(object);
    validate_annotations(object, &mut errors);
    let metadata = Path::new("metadata");
    validate_taints(
        object.items_at(&["spec", "taints"]),
        &metadata.child("taints"),
        &mut errors,
    );
    validate_resources(object, &mut errors);
    let swap = object.int_at(&["status", "nodeInfo", "swap", "capacity"]);
    if let Some(capacity) = swap.filter(|capacity| *capacity <= 0) {
        let path = metadata.child("nodeSwapStatus");
        let detail = "must be greater than zero";
        errors.push(FieldError::invalid(
            &path.child("capacity"),
            capacity,
            detail,
        ));
    }
    validate_features(object, &mut errors);
    validate_ranges(object, &mut errors);
    errors
}

fn validate_annotations(object: &Value, errors: &mut Complaints) {
    let metadata = Path::new("metadata");
    let path = metadata.child("annotations");
    let annotation = |name: &str| object.str_at(&["metadata", "annotations", name]);
    let read = |name: &str| json::parse(annotation(name).as_bytes(), &json::Limits::default());
    if !annotation(TAINTS).is_empty() {
        match read(TAINTS) {
            Ok(taints) => {
                let taints = taints.value;
                validate_taints(
                    taints.as_array().unwrap_or(&[]),
                    &path.child(TAINTS),
                    errors,
                );
            }
            Err(error) => errors.push(FieldError::invalid(&path, TAINTS, error.to_string())),
        }
    }
    if !annotation(AVOID).is_empty() {
        match read(AVOID) {
            Ok(avoid) => validate_avoid(&avoid.value, &path.child(AVOID), errors),
            Err(error) => {
                errors.push(FieldError::invalid(
                    &path.child("AvoidPods"),
                    AVOID,
                    error.to_string(),
                ));
            }
        }
    }
}

fn validate_avoid(avoid: &Value, path: &Path<'_>, errors: &mut Complaints) {
    for (at, entry) in avoid.items_at(&["preferAvoidPods"]).iter().enumerate() {
        let place = path.index(at);
        let signature = place.child("PodSignature");
        match entry.at(&["podSignature", "podController"]) {
            None | Some(Value::Null) => errors.push(FieldError::required(&signature, "")),
            Some(controller) if !controller.bool_at(&["controller"]) => {
                let pod_controller = signature.child("PodController");
                let detail = "must point to a controller";
                errors.push(FieldError::invalid(
                    &pod_controller.child("Controller"),
                    false,
                    detail,
                ));
            }
            Some(_) => {}
        }
    }
}

fn validate_taints(taints: &[Value], path: &Path<'_>, errors: &mut Complaints) {
    let mut known = BTreeSet::new();
    for (at, taint) in taints.iter().enumerate() {
        let place = path.index(at);
        let (key, value) = (taint.str_at(&["key"]), taint.str_at(&["value"]));
        errors.extend(labels::validate_label_name(key, &place.child("key")));
        let complaints = names::label_value(value);
        if !complaints.is_empty() {
            errors.push(FieldError::invalid(
                &place.child("value"),
                value,
                complaints.join(";"),
            ));
        }
        let effect = taint.str_at(&["effect"]);
        let effects = ["NoSchedule", "PreferNoSchedule", "NoExecute"];
        if effect.is_empty() {
            errors.push(FieldError::required(&place.child("effect"), ""));
        } else if !effects.contains(&effect) {
            let bad = Bad::Json(effect.into());
            errors.push(FieldError::not_supported(
                &place.child("effect"),
                bad,
                &effects,
            ));
        }
        if !known.insert((effect, key)) {
            let mut error =
                FieldError::duplicate(&place, bad_value::typed("io.k8s.api.core.v1.Taint", taint));
            error.detail = "taints must be unique by key and effect pair".to_owned();
            errors.push(error);
        }
    }
}

fn validate_resources(object: &Value, errors: &mut Complaints) {
    let status = Path::new("status");
    for list in ["capacity", "allocatable"] {
        for (name, value) in members(&object["status"][list]) {
            let path = status.child(list);
            errors.extend(validate_amount(name, value, &path.child(name)));
        }
    }
}

/// Returns true for words such as `MyFeature/part`.
fn is_feature(name: &str) -> bool {
    let word = |word: &str| {
        word.starts_with(|first: char| first.is_ascii_alphabetic())
            && word.bytes().all(|byte| byte.is_ascii_alphanumeric())
    };
    name.starts_with(|first: char| first.is_ascii_uppercase()) && name.split('/').all(word)
}

fn validate_features(object: &Value, errors: &mut Complaints) {
    let status = Path::new("status");
    let path = status.child("declaredFeatures");
    let features = strings(&object["status"]["declaredFeatures"]);
    for (at, feature) in features.iter().enumerate() {
        if feature.len() > names::DNS_SUBDOMAIN_BYTES_MAX {
            let most = names::DNS_SUBDOMAIN_BYTES_MAX;
            let detail =
                format!("invalid feature name {feature:?}: must be no more than {most} characters");
            errors.push(FieldError::invalid(&path.index(at), *feature, detail));
        } else if !is_feature(feature) {
            let detail = format!(
                "invalid feature name {feature:?}: must start with an UpperCamelCase segment, with subsequent segments separated by '/' (e.g., MyFeature or MyFeature/mySubFeature), and contain only alphanumeric characters and slashes"
            );
            errors.push(FieldError::invalid(&path.index(at), *feature, detail));
        }
        let Some(next) = features.get(at + 1) else {
            continue;
        };
        if feature == next {
            errors.push(FieldError::duplicate(&path.index(at + 1), *next));
        } else if feature > next {
            let detail = "list must be sorted alphabetically";
            errors.push(FieldError::invalid(&path.index(at + 1), *next, detail));
        }
    }
}

fn validate_ranges(object: &Value, errors: &mut Complaints) {
    let spec = Path::new("spec");
    let path = spec.child("podCIDRs");
    let ranges = strings(&object["spec"]["podCIDRs"]);
    for (at, range) in ranges.iter().enumerate() {
        errors.extend(addresses::validate_cidr(&path.index(at), range, &[]));
    }
    if ranges.len() < 2 {
        return;
    }
    let bases: Vec<&str> = ranges
        .iter()
        .map(|range| range.split('/').next().unwrap_or(""))
        .collect();
    let unreadable = ranges
        .iter()
        .enumerate()
        .find(|(_, range)| names::cidr_sloppy(range).is_none());
    if let Some((at, range)) = unreadable {
        let detail = format!(
            "invalid PodCIDRs. failed to check with dual stack with error:invalid CIDR[{at}]: <nil> (invalid CIDR address: {range})"
        );
        errors.push(FieldError::internal(&path, detail));
    }
    let dual = unreadable.is_none() && addresses::is_dual_stack(&bases).unwrap_or(false);
    if !dual || ranges.len() > 2 {
        let detail = "may specify no more than one CIDR for each IP family";
        errors.push(FieldError::invalid(
            &path,
            Bad::Json(object["spec"]["podCIDRs"].clone()),
            detail,
        ));
    }
}

/// Validates a change of a Node or its status.
pub fn validate_change(object: &Value, old: &Value) -> Complaints {
    let mut errors = object_metadata::validate_update(object, old);
    validate_annotations(object, &mut errors);
    validate_resources(object, &mut errors);
    validate_features(object, &mut errors);
    let (spec, status) = (Path::new("spec"), Path::new("status"));
    let addresses = object.items_at(&["status", "addresses"]);
    for (at, address) in addresses.iter().enumerate() {
        if addresses[..at].contains(address) {
            let path = status.child("addresses");
            errors.push(FieldError::duplicate(
                &path.index(at),
                bad_value::typed("io.k8s.api.core.v1.NodeAddress", address),
            ));
        }
    }
    validate_range_change(object, old, &mut errors);
    let provider = |object: &Value| object.str_at(&["spec", "providerID"]).to_owned();
    let (new_provider, old_provider) = (provider(object), provider(old));
    if !old_provider.is_empty() && new_provider != old_provider {
        let done = if new_provider.is_empty() {
            "cleared"
        } else {
            "modified"
        };
        let detail = format!("field cannot be {done} once set");
        errors.push(FieldError::invalid(
            &spec.child("providerID"),
            Value::Null,
            detail,
        ));
    }
    if !object["spec"]["configSource"].is_null() {
        let path = spec.child("configSource");
        validate_config_source(
            &object["spec"]["configSource"],
            ConfigSourceField::Spec,
            &path,
            &mut errors,
        );
    }
    for part in ["assigned", "active", "lastKnownGood"] {
        let source = &object["status"]["config"][part];
        if !source.is_null() {
            let path = status.child("config");
            validate_config_source(
                source,
                ConfigSourceField::Status,
                &path.child(part),
                &mut errors,
            );
        }
    }
    let metadata = Path::new("metadata");
    validate_taints(
        object.items_at(&["spec", "taints"]),
        &metadata.child("taints"),
        &mut errors,
    );
    if object.str_at(&["spec", "externalID"]) != old.str_at(&["spec", "externalID"]) {
        errors.push(FieldError::forbidden(
            &spec.child("externalID"),
            "may not be updated",
        ));
    }
    errors
}

fn validate_range_change(object: &Value, old: &Value, errors: &mut Complaints) {
    let spec = Path::new("spec");
    let (now, then) = (
        strings(&object["spec"]["podCIDRs"]),
        strings(&old["spec"]["podCIDRs"]),
    );
    let changes = match then.len() {
        0 => 0,
        length if length != now.len() => 1,
        _ => now
            .iter()
            .zip(&then)
            .filter(|(now, then)| now != then)
            .count(),
    };
    for _ in 0..changes {
        let detail = "node updates may not change podCIDR except from \"\" to valid";
        errors.push(FieldError::forbidden(&spec.child("podCIDRs"), detail));
    }
}

/// The field in which a source of configuration is named.
#[derive(Clone, Copy, PartialEq, Eq)]
enum ConfigSourceField {
    Spec,
    Status,
}

fn validate_config_source(
    source: &Value,
    place: ConfigSourceField,
    path: &Path<'_>,
    errors: &mut Complaints,
) {
    let map = &source["configMap"];
    if map.is_null() {
        let detail = "exactly one reference subfield must be non-nil";
        errors.push(FieldError::invalid(
            path,
            bad_value::typed("io.k8s.api.core.v1.NodeConfigSource", source),
            detail,
        ));
        return;
    }
    let map_path = path.child("configMap");
    for field in ["uid", "resourceVersion"] {
        let given = !map.str_at(&[field]).is_empty();
        match place {
            ConfigSourceField::Spec if given => {
                let detail = format!("{field} must not be set in spec");
                errors.push(FieldError::forbidden(&map_path.child(field), detail));
            }
            ConfigSourceField::Status if !given => {
                errors.push(FieldError::required(&map_path.child(field), ""))
            }
            ConfigSourceField::Spec | ConfigSourceField::Status => {}
        }
    }
    let rules: [(&str, Rule); 3] = [
        ("namespace", names::dns1123_label),
        ("name", names::dns1123_subdomain),
        ("kubeletConfigKey", names::config_map_key),
    ];
    for (field, rule) in rules {
        let value = map.str_at(&[field]);
        if value.is_empty() {
            errors.push(FieldError::required(&map_path.child(field), ""));
            continue;
        }
        for detail in rule(value) {
            errors.push(FieldError::invalid(&map_path.child(field), value, detail));
        }
    }
}
