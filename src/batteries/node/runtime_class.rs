//! RuntimeClasses: the way in which containers are run, and its overhead.

use crate::shared::node_selector::deprecated_label;
use crate::shared::object_metadata;
use crate::shared::pod::validation::options::PodOptions;
use crate::shared::pod::validation::resources::{self, Names};
use crate::shared::table_cells::{age_cell, name_cell};
use crate::shared::validation::bad_value;
use crate::shared::validation::complaints::{IMMUTABLE, complain, covered, named};
use polyplane_apimachinery::complaints::Complaints;
use polyplane_apimachinery::field_error::{FieldError, Path};
use polyplane_apimachinery::names::{self, NameRule};
use polyplane_apimachinery::{Map, Value, json, labels};
use polyplane_registry::Scope;
use polyplane_registry::strategy::{Context, Strategy};

const EFFECTS: [&str; 3] = ["NoSchedule", "PreferNoSchedule", "NoExecute"];

/// Behaviour of RuntimeClasses.
#[derive(Debug)]
pub struct RuntimeClass;

impl Strategy for RuntimeClass {
    fn validate_create(&self, _: &Context<'_>, object: &Value) -> Complaints {
        let mut errors = object_metadata::validate_finalizers(object);
        validate(&mut errors, object);
        errors
    }

    fn validate_update(&self, _: &Context<'_>, object: &Value, old: &Value) -> Complaints {
        let mut errors = object_metadata::validate(object, Scope::Cluster, NameRule::DnsSubdomain);
        validate(&mut errors, object);
        errors.extend(object_metadata::validate_update(object, old));
        if object["handler"] != old["handler"] {
            let path = Path::new("handler");
            errors.push(FieldError::invalid(&path, Value::Null, IMMUTABLE).covered());
        }
        errors
    }

    fn warnings(&self, _: &Context<'_>, object: &Value, _: Option<&Value>) -> Vec<String> {
        let labels = object["scheduling"]["nodeSelector"].as_object();
        let deprecated = labels
            .into_iter()
            .flat_map(Map::keys)
            .filter_map(deprecated_label);
        deprecated
            .map(|text| format!("scheduling.nodeSelector: {text}"))
            .collect()
    }

    fn cells(&self, object: &Value, now: i64) -> Vec<Value> {
        vec![
            name_cell(object),
            object.str_at(&["handler"]).into(),
            age_cell(object, now),
        ]
    }
}

fn validate(errors: &mut Complaints, object: &Value) {
    let handler = object.str_at(&["handler"]);
    if handler.is_empty() {
        errors.push(FieldError::required(&Path::new("handler"), "").covered());
    } else {
        let (path, complaints) = (Path::new("handler"), names::dns1123_label(handler));
        covered(errors, |errors| {
            complain(errors, &path, handler, complaints)
        });
    }
    let overhead = Path::new("overhead");
    validate_overhead(errors, &object["overhead"]["podFixed"], &overhead);
    let path = Path::new("scheduling");
    let scheduling = &object["scheduling"];
    let selector = Some(&scheduling["nodeSelector"]);
    errors.extend(labels::validate_labels(
        selector,
        &path.child("nodeSelector"),
    ));
    validate_tolerations(
        errors,
        scheduling.items_at(&["tolerations"]),
        &path.child("tolerations"),
    );
}

/// Checks the overhead of a sandbox like the limits of a container.
fn validate_overhead(errors: &mut Complaints, amounts: &Value, path: &Path<'_>) {
    let limits = json!({"limits": (amounts.clone())});
    let options = PodOptions::for_template(None);
    resources::validate(&limits, Names::Container, None, path, &options, errors);
}

fn validate_tolerations(errors: &mut Complaints, tolerations: &[Value], list: &Path<'_>) {
    for (at, toleration) in tolerations.iter().enumerate() {
        validate_toleration(errors, toleration, &list.index(at));
    }
    let key = |toleration: &Value| {
        ["key", "operator", "value", "effect"].map(|field| toleration.str_at(&[field]).to_owned())
    };
    let mut seen = Vec::new();
    for (at, toleration) in tolerations.iter().enumerate() {
        if seen.contains(&key(toleration)) {
            errors.push(FieldError::duplicate(
                &list.index(at),
                bad_value::typed("io.k8s.api.core.v1.Toleration", toleration),
            ));
        } else {
            seen.push(key(toleration));
        }
    }
}

fn validate_toleration(errors: &mut Complaints, toleration: &Value, path: &Path<'_>) {
    let text = |field: &str| toleration.str_at(&[field]);
    if !text("key").is_empty() {
        let found = labels::validate_label_name(text("key"), &path.child("key"));
        errors.extend(found.into_iter().map(FieldError::covered));
    }
    let (operator, place) = (text("operator"), path.child("operator"));
    if text("key").is_empty() && operator != "Exists" {
        let detail = "operator must be Exists when `key` is empty, which means \"match all values and all keys\"";
        errors.push(FieldError::invalid(&place, named(operator), detail));
    }
    if !toleration["tolerationSeconds"].is_null() && text("effect") != "NoExecute" {
        let detail = "effect must be 'NoExecute' when `tolerationSeconds` is set";
        errors.push(FieldError::invalid(
            &path.child("effect"),
            named(text("effect")),
            detail,
        ));
    }
    match operator {
        "" | "Equal" => {
            let complaints = names::label_value(text("value"));
            if !complaints.is_empty() {
                errors.push(FieldError::invalid(
                    &place,
                    text("value"),
                    complaints.join(";"),
                ));
            }
        }
        "Exists" if text("value").is_empty() => {}
        "Exists" => {
            let detail = "value must be empty when `operator` is 'Exists'";
            errors.push(FieldError::invalid(&place, text("value"), detail));
        }
        "Lt" | "Gt" => {
            let known = ["Equal", "Exists", "Lt", "Gt"];
            errors.push(FieldError::not_supported(&place, named(operator), &known));
        }
        other => errors.push(FieldError::not_supported(
            &place,
            named(other),
            &["Equal", "Exists"],
        )),
    }
    let effect = text("effect");
    if !effect.is_empty() && !EFFECTS.contains(&effect) {
        errors.push(FieldError::not_supported(
            &path.child("effect"),
            named(effect),
            &EFFECTS,
        ));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_overhead_has_whole_huge_pages_as_the_limits_of_containers_have() {
        let refused = |amounts: Value| {
            let mut errors = Complaints::default();
            validate_overhead(&mut errors, &amounts, &Path::new("overhead"));
            let texts = errors.iter().map(FieldError::to_string);
            texts.collect::<Vec<_>>().join(", ")
        };
        let none = "";
        for (amounts, wanted) in [
            (Value::Null, none),
            (json!({"cpu": "250m", "hugepages-2Mi": "4Mi"}), none),
            (
                json!({"cpu": "250m", "hugepages-2Mi": "1"}),
                "overhead.limits[hugepages-2Mi]: Invalid value: \"1\": 1 is not positive integer multiple of hugepages-2Mi",
            ),
            (
                json!({"hugepages-2Mi": "4Mi"}),
                "overhead: Forbidden: HugePages require cpu or memory",
            ),
        ] {
            assert_eq!(refused(amounts), wanted);
        }
    }
}
