//! APIServices: the servers that answer for a group and version.

use crate::shared::table_cells::{age_cell, name_cell};
use crate::shared::validation::complaints::named;
use crate::shared::validation::object_names::own_name_rule;
use polyplane_apimachinery::complaints::Complaints;
use polyplane_apimachinery::field_error::{FieldError, Path};
use polyplane_apimachinery::names::{self, NameRule};
use polyplane_apimachinery::time::Timestamp;
use polyplane_apimachinery::{Value, json};
use polyplane_registry::strategy::{Context, Strategy};
use polyplane_registry::{Scope, metadata};

/// Behaviour of APIServices.
#[derive(Debug)]
pub struct ApiService;

impl Strategy for ApiService {
    fn prepare_create(&self, context: &Context<'_>, object: &mut Value) {
        if object["spec"]["service"].is_null() {
            let now = Timestamp::from_seconds(context.now).to_rfc3339();
            let available = json!({
                "type": "Available",
                "status": "True",
                "lastTransitionTime": now,
                "reason": "Local",
                "message": "Local APIServices are always available"
            });
            object.set(&["status", "conditions"], vec![available]);
        }
    }

    fn prepare_subresource(&self, _: &Context<'_>, object: &mut Value, old: &Value) {
        let kept: [&[&str]; 5] = [
            &["spec"],
            &["metadata", "labels"],
            &["metadata", "annotations"],
            &["metadata", "finalizers"],
            &["metadata", "ownerReferences"],
        ];
        for path in kept {
            match old.at(path) {
                Some(value) => object.set(path, value.clone()),
                None => drop(object.remove(path)),
            }
        }
    }

    fn validate_create(&self, _: &Context<'_>, object: &Value) -> Complaints {
        let mut errors = own_name(object);
        validate(&mut errors, &object["spec"]);
        errors
    }

    fn validate_update(&self, _: &Context<'_>, object: &Value, old: &Value) -> Complaints {
        let mut errors = metadata::validate_update(object, old);
        errors.extend(metadata::validate(
            object,
            Scope::Cluster,
            NameRule::PathSegment,
        ));
        errors.extend(own_name(object));
        validate(&mut errors, &object["spec"]);
        errors
    }

    fn validate_subresource(&self, _: &Context<'_>, object: &Value, old: &Value) -> Complaints {
        let mut errors = metadata::validate_update(object, old);
        let status = Path::new("status");
        let list = status.child("conditions");
        for (at, condition) in object
            .items_at(&["status", "conditions"])
            .iter()
            .enumerate()
        {
            let known = ["True", "False", "Unknown"];
            let text = condition.str_at(&["status"]);
            if !known.contains(&text) {
                errors.push(FieldError::not_supported(
                    &list.index(at).child("status"),
                    named(text),
                    &known,
                ));
            }
        }
        errors
    }

    fn cells(&self, object: &Value, now: i64) -> Vec<Value> {
        let service = match &object["spec"]["service"] {
            Value::Null => "Local".to_owned(),
            service => format!(
                "{}/{}",
                service.str_at(&["namespace"]),
                service.str_at(&["name"])
            ),
        };
        let mut conditions = object.items_at(&["status", "conditions"]).iter();
        let available = conditions.find(|condition| condition.str_at(&["type"]) == "Available");
        let available = match available {
            None => "Unknown".to_owned(),
            Some(condition) => match (condition.str_at(&["status"]), condition.str_at(&["reason"]))
            {
                ("True", _) => "True".to_owned(),
                (status, "") => status.to_owned(),
                (status, reason) => format!("{status} ({reason})"),
            },
        };
        vec![
            name_cell(object),
            service.into(),
            available.into(),
            age_cell(object, now),
        ]
    }
}

fn own_name(object: &Value) -> Complaints {
    let spec = &object["spec"];
    let wanted = format!("{}.{}", spec.str_at(&["version"]), spec.str_at(&["group"]));
    own_name_rule(object, |name, _| {
        if name == wanted || !names::path_segment_name(name).is_empty() {
            return Vec::new();
        }
        vec![format!(
            "must be `spec.version+\".\"+spec.group`: {wanted:?}"
        )]
    })
}

fn validate(errors: &mut Complaints, spec: &Value) {
    let path = Path::new("spec");
    let (group, version) = (spec.str_at(&["group"]), spec.str_at(&["version"]));
    if group.is_empty() {
        if version != "v1" {
            let detail = "only v1 may have an empty group and it better be legacy kube";
            errors.push(FieldError::required(&path.child("group"), detail));
        }
    } else {
        let complaints = names::dns1123_subdomain(group).into_iter();
        errors.extend(
            complaints.map(|detail| FieldError::invalid(&path.child("group"), group, detail)),
        );
    }
    for detail in names::dns1035_label(version) {
        errors.push(FieldError::invalid(&path.child("version"), version, detail));
    }
    for (field, most) in [("groupPriorityMinimum", 20_000), ("versionPriority", 1000)] {
        let number = spec.int_at(&[field]).unwrap_or(0);
        if !(1..=most).contains(&number) {
            let detail = format!("must be positive and less than {most}");
            errors.push(FieldError::invalid(&path.child(field), number, detail));
        }
    }
    validate_service(errors, spec, &path);
}

fn validate_service(errors: &mut Complaints, spec: &Value, path: &Path<'_>) {
    let bundle = decoded_len(spec.str_at(&["caBundle"]));
    let skip = spec.bool_at(&["insecureSkipTLSVerify"]);
    let service = &spec["service"];
    if service.is_null() {
        if bundle > 0 {
            let detail = "local APIServices may not have a caBundle";
            errors.push(FieldError::invalid(
                &path.child("caBundle"),
                format!("{bundle} bytes"),
                detail,
            ));
        }
        if skip {
            let detail = "local APIServices may not have insecureSkipTLSVerify";
            errors.push(FieldError::invalid(
                &path.child("insecureSkipTLSVerify"),
                true,
                detail,
            ));
        }
        return;
    }
    let place = path.child("service");
    for field in ["namespace", "name"] {
        if service.str_at(&[field]).is_empty() {
            errors.push(FieldError::required(&place.child(field), ""));
        }
    }
    let port = service.int_at(&["port"]).unwrap_or(0);
    let complaints = names::port_number(port);
    if !complaints.is_empty() {
        let detail = format!("port is not valid: {}", complaints.join(", "));
        errors.push(FieldError::invalid(&place.child("port"), port, detail));
    }
    if skip && bundle > 0 {
        let detail = "may not be true if caBundle is present";
        errors.push(FieldError::invalid(
            &path.child("insecureSkipTLSVerify"),
            true,
            detail,
        ));
    }
}

/// Returns the number of bytes that a base64 text represents.
fn decoded_len(text: &str) -> usize {
    let padding = text.bytes().rev().take_while(|byte| *byte == b'=').count();
    (text.len() / 4 * 3).saturating_sub(padding)
}
