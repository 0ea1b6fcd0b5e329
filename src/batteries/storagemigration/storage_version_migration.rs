//! StorageVersionMigrations: a request to rewrite all objects of a resource.

use crate::shared::object_metadata;
use crate::shared::table_cells::name_cell;
use crate::shared::validation::bad_value;
use crate::shared::validation::complaints::IMMUTABLE;
use crate::shared::validation::conditions::conditions;
use polyplane_apimachinery::Value;
use polyplane_apimachinery::complaints::Complaints;
use polyplane_apimachinery::field_error::{FieldError, Path};
use polyplane_apimachinery::names::{self, NameRule};
use polyplane_registry::Scope;
use polyplane_registry::strategy::{Context, Strategy};

const SPEC: &str = "io.k8s.api.storagemigration.v1.StorageVersionMigrationSpec";
const CONDITION: &str = "io.k8s.apimachinery.pkg.apis.meta.v1.Condition";

/// Behaviour of StorageVersionMigrations.
#[derive(Debug)]
pub struct StorageVersionMigration;

impl Strategy for StorageVersionMigration {
    fn validate_create(&self, _: &Context<'_>, object: &Value) -> Complaints {
        let mut errors = object_metadata::validate_finalizers(object);
        validate_spec(&mut errors, &object["spec"]);
        errors
    }

    fn validate_update(&self, _: &Context<'_>, object: &Value, old: &Value) -> Complaints {
        let mut errors = object_metadata::validate(object, Scope::Cluster, NameRule::DnsSubdomain);
        validate_spec(&mut errors, &object["spec"]);
        errors.extend(object_metadata::validate_update(object, old));
        let resource =
            |object: &Value, field: &str| object.str_at(&["spec", "resource", field]).to_owned();
        if ["group", "resource"]
            .iter()
            .any(|field| resource(object, field) != resource(old, field))
        {
            let bad = bad_value::typed(SPEC, &object["spec"]);
            errors.push(FieldError::invalid(&Path::new("spec"), bad, IMMUTABLE));
        }
        errors
    }

    fn validate_subresource(&self, _: &Context<'_>, object: &Value, old: &Value) -> Complaints {
        let mut errors = object_metadata::validate_update(object, old);
        validate_status(&mut errors, &object["status"], &old["status"]);
        errors
    }

    fn cells(&self, object: &Value, _: i64) -> Vec<Value> {
        let text = |field: &str| object.str_at(&["spec", "resource", field]);
        let resource = match (text("group"), text("resource")) {
            ("", resource) => resource.to_owned(),
            (group, resource) => format!("{resource}.{group}"),
        };
        let states = object.items_at(&["status", "conditions"]).iter();
        let states = states.filter(|condition| condition.str_at(&["status"]) == "True");
        let mut states = states.map(|condition| condition.str_at(&["type"]));
        let state = states.rfind(|state| ["Running", "Failed", "Succeeded"].contains(state));
        vec![
            name_cell(object),
            resource.into(),
            state.unwrap_or("Unknown").into(),
        ]
    }
}

fn validate_spec(errors: &mut Complaints, spec: &Value) {
    let path = Path::new("spec");
    let path = path.child("resource");
    let (group, resource) = (
        spec.str_at(&["resource", "group"]),
        spec.str_at(&["resource", "resource"]),
    );
    if resource.is_empty() {
        errors.push(FieldError::required(
            &path.child("resource"),
            "resource is required to be set",
        ));
    }
    let rules = [
        ("resource", resource, names::dns1035_label as fn(&str) -> _),
        ("group", group, names::dns1123_subdomain),
    ];
    for (field, text, rule) in rules.iter().filter(|(_, text, _)| !text.is_empty()) {
        let complaints: Vec<String> = rule(text);
        if !complaints.is_empty() {
            errors.push(FieldError::invalid(
                &path.child(field),
                *text,
                complaints.join(","),
            ));
        }
    }
}

fn validate_status(errors: &mut Complaints, status: &Value, old: &Value) {
    let path = Path::new("status");
    let (version, before) = (
        status.str_at(&["resourceVersion"]),
        old.str_at(&["resourceVersion"]),
    );
    let place = path.child("resourceVersion");
    if let Some(detail) = version_complaint(version) {
        errors.push(FieldError::invalid(&place, version, detail));
    }
    let conditions_path = path.child("conditions");
    conditions(errors, &conditions_path, &status["conditions"]);
    if !before.is_empty() && version != before {
        errors.push(FieldError::invalid(&place, version, IMMUTABLE));
    }
    let [succeeded, failed] = ["Succeeded", "Failed"].map(|state| holds(status, state));
    let rules = [
        (
            succeeded && failed,
            "Both success and failed conditions cannot be true at the same time",
        ),
        (
            holds(old, "Succeeded") && !succeeded,
            "Success condition cannot be set to false once it is true",
        ),
        (
            holds(old, "Failed") && !failed,
            "Failed condition cannot be set to false once it is true",
        ),
    ];
    for (_, detail) in rules.iter().filter(|(broken, _)| *broken) {
        let bad = bad_value::list(CONDITION, status.items_at(&["conditions"]));
        errors.push(FieldError::invalid(&conditions_path, bad, *detail));
    }
}

/// Returns true if the first condition of this type is true.
fn holds(status: &Value, state: &str) -> bool {
    let mut conditions = status.items_at(&["conditions"]).iter();
    let found = conditions.find(|condition| condition.str_at(&["type"]) == state);
    found.is_some_and(|condition| condition.str_at(&["status"]) == "True")
}

/// Returns the complaint about a version that is not a number; an unset one is accepted.
fn version_complaint(version: &str) -> Option<String> {
    let bad = version.bytes().any(|byte| !byte.is_ascii_digit()) || version.starts_with('0');
    bad.then(|| format!("resource version is not well formed: {version}"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use polyplane_apimachinery::json;

    #[test]
    fn what_has_succeeded_stays_so() {
        let done = json!({"conditions": [{"type": "Succeeded", "status": "True", "reason": "Done", "lastTransitionTime": "2024-05-06T07:08:09Z"}]});
        let mut errors = Complaints::default();
        validate_status(&mut errors, &done, &json!({}));
        assert!(errors.is_empty(), "{errors:?}");
        validate_status(&mut errors, &json!({}), &done);
        assert_eq!(errors.len(), 1);
    }

    #[test]
    fn versions_are_numbers() {
        assert_eq!(
            ["", "7", "x", "-1", "07"].map(|version| version_complaint(version).is_some()),
            [false, false, true, true, true]
        );
    }
}
