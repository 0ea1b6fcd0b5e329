//! StorageVersions: the versions in which the servers of a cluster store a resource.

use crate::shared::object_metadata;
use crate::shared::table_cells::{age_cell, name_cell, some_of};
use crate::shared::validation::complaints::complain;
use crate::shared::validation::members::texts;
use crate::shared::validation::object_names::own_name_rule;
use polyplane_apimachinery::Value;
use polyplane_apimachinery::complaints::Complaints;
use polyplane_apimachinery::field_error::{Bad, FieldError, Path};
use polyplane_apimachinery::labels;
use polyplane_apimachinery::names::{self, NameRule};
use polyplane_registry::strategy::{Context, Strategy};
use std::collections::{BTreeMap, BTreeSet};

/// Behaviour of StorageVersions.
#[derive(Debug)]
pub struct StorageVersion;

impl Strategy for StorageVersion {
    fn name_rule(&self) -> Option<NameRule> {
        Some(NameRule::Own)
    }

    fn validate_create(&self, _: &Context<'_>, object: &Value) -> Complaints {
        let mut errors = own_name_rule(object, |name, _| name_complaints(name));
        errors.extend(object_metadata::validate_finalizers(object));
        validate_status(&mut errors, &object["status"]);
        errors
    }

    /// As upstream, which checks nothing here.
    fn validate_update(&self, _: &Context<'_>, _: &Value, _: &Value) -> Complaints {
        Complaints::default()
    }

    fn validate_subresource(&self, _: &Context<'_>, object: &Value, _: &Value) -> Complaints {
        let mut errors = Complaints::default();
        validate_status(&mut errors, &object["status"]);
        errors
    }

    fn cells(&self, object: &Value, now: i64) -> Vec<Value> {
        let common = object["status"]["commonEncodingVersion"].as_str();
        let servers = object.items_at(&["status", "storageVersions"]).iter();
        let servers = servers.map(|server| {
            let text = |field: &str| server.str_at(&[field]);
            format!("{}={}", text("apiServerID"), text("encodingVersion"))
        });
        let servers: Vec<String> = servers.collect();
        vec![
            name_cell(object),
            common.unwrap_or("<unset>").into(),
            some_of(&servers, "<unset>").into(),
            age_cell(object, now),
        ]
    }
}

fn name_complaints(name: &str) -> Vec<String> {
    let Some((group, resource)) = name.rsplit_once('.') else {
        return vec!["name must be in the form of <group>.<resource>".to_owned()];
    };
    let group = names::dns1123_subdomain(group);
    let group = group
        .into_iter()
        .map(|text| format!("the group segment {text}"));
    let resource = names::dns1035_label(resource);
    let resource = resource
        .into_iter()
        .map(|text| format!("the resource segment {text}"));
    group.chain(resource).collect()
}

fn validate_status(errors: &mut Complaints, status: &Value) {
    let path = Path::new("status");
    let servers = status.items_at(&["storageVersions"]);
    let mut seen = BTreeSet::new();
    let list = path.child("storageVersions");
    for (at, server) in servers.iter().enumerate() {
        let place = list.index(at);
        let id = server.str_at(&["apiServerID"]);
        if !seen.insert(id) {
            errors.push(FieldError::duplicate(&place.child("apiServerID"), id));
        }
        validate_server(errors, &place, server);
    }
    validate_common(errors, &path, status, servers);
    validate_conditions(errors, &path, status.items_at(&["conditions"]));
}

fn validate_server(errors: &mut Complaints, path: &Path<'_>, server: &Value) {
    let id = server.str_at(&["apiServerID"]);
    let place = path.child("apiServerID");
    complain(errors, &place, id, names::dns1123_subdomain(id));
    let encoding = server.str_at(&["encodingVersion"]);
    version(errors, &path.child("encodingVersion"), encoding);
    let decodable = texts(&server["decodableVersions"]);
    let place = path.child("decodableVersions");
    for (at, one) in decodable.iter().enumerate() {
        version(errors, &place.index(at), one);
    }
    if !decodable.contains(&encoding) {
        let detail = format!("decodableVersions must include encodingVersion {encoding}");
        let bad = Bad::Json(server["decodableVersions"].clone());
        errors.push(FieldError::invalid(&place, bad, detail));
    }
    let place = path.child("servedVersions");
    for (at, one) in texts(&server["servedVersions"]).iter().enumerate() {
        version(errors, &place.index(at), one);
        if !decodable.contains(one) {
            let detail = format!(
                "individual served version : {one} must be included in decodableVersions : [{}]",
                decodable.join(" ")
            );
            errors.push(FieldError::invalid(&place.index(at), *one, detail));
        }
    }
}

/// Checks the version in which all servers encode, which there is if they agree.
fn validate_common(errors: &mut Complaints, path: &Path<'_>, status: &Value, servers: &[Value]) {
    let encodings: BTreeSet<&str> = servers
        .iter()
        .map(|server| server.str_at(&["encodingVersion"]))
        .collect();
    let agreed = encodings.first().filter(|_| encodings.len() == 1);
    let given = status["commonEncodingVersion"].as_str();
    let (bad, detail) = match (agreed, given) {
        (None, Some(given)) => (
            Bad::from(given),
            "should be nil if servers do not agree on the same encoding version, or if there is no server reporting the supported versions yet".to_owned(),
        ),
        (Some(agreed), None) => (
            Bad::Json(Value::Null),
            format!("the common encoding version is {agreed}"),
        ),
        (Some(agreed), Some(given)) if *agreed != given => (
            Bad::from(given),
            format!("the actual common encoding version is {agreed}"),
        ),
        _ => return,
    };
    let place = path.child("commonEncodingVersion");
    errors.push(FieldError::invalid(&place, bad, detail));
}

/// Checks the conditions. As upstream, errors name them as items of the status.
fn validate_conditions(errors: &mut Complaints, path: &Path<'_>, conditions: &[Value]) {
    let mut seen = BTreeMap::new();
    for (at, condition) in conditions.iter().enumerate() {
        let place = path.index(at);
        let text = |field: &str| condition.str_at(&[field]);
        if let Some(before) = seen.insert(text("type"), at) {
            let detail = format!(
                "the type of the condition is not unique, it also appears in conditions[{before}]"
            );
            errors.push(FieldError::invalid(
                &place.child("type"),
                text("type"),
                detail,
            ));
        }
        for field in ["type", "status"] {
            errors.extend(labels::validate_label_name(
                text(field),
                &place.child(field),
            ));
        }
        for field in ["reason", "message"] {
            if text(field).is_empty() {
                errors.push(FieldError::required(&place.child(field), ""));
            }
        }
    }
}

fn version(errors: &mut Complaints, path: &Path<'_>, text: &str) {
    let complaints = version_complaints(text);
    if !complaints.is_empty() {
        errors.push(FieldError::invalid(path, text, complaints.join(",")));
    }
}

/// Returns the complaints about an API version: a DNS label, with a group and a slash in front if it
/// has one.
fn version_complaints(text: &str) -> Vec<String> {
    const WORDS: &str = "a DNS-1035 label, which must consist of lower case alphanumeric characters or '-', start with an alphabetic character, and end with an alphanumeric character";
    const PATTERN: &str = "[a-z]([-a-z0-9]*[a-z0-9])?";
    let (group, version) = match text.split('/').collect::<Vec<_>>()[..] {
        [version] => (None, version),
        [group, version] => (Some(group), version),
        _ => {
            let complaint = names::regex_complaint(WORDS, PATTERN, &["my-name", "abc-123"]);
            return vec![format!(
                "an apiVersion is {complaint} with an optional DNS subdomain prefix and '/' (e.g. 'example.com/MyVersion')"
            )];
        }
    };
    let of_part = |part: &str, text: &str, rule: fn(&str) -> Vec<String>| match text {
        "" => vec![format!("{part} part: must be non-empty")],
        _ => {
            let complaints = rule(text).into_iter();
            complaints
                .map(|complaint| format!("{part} part: {complaint}"))
                .collect()
        }
    };
    let mut complaints = group.map_or_else(Vec::new, |group| {
        of_part("group", group, names::dns1123_subdomain)
    });
    complaints.extend(of_part("version", version, names::dns1035_label));
    complaints
}
