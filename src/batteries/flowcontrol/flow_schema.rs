//! FlowSchemas: the assignment of requests to priority levels.

use crate::bootstrap;
use crate::shared::object_metadata;
use crate::shared::table_cells::{age_cell, name_cell};
use crate::shared::validation::bad_value;
use crate::shared::validation::complaints::{complain, lone_wildcard, named};
use crate::shared::validation::members::{present, texts};
use polyplane_apimachinery::Value;
use polyplane_apimachinery::complaints::Complaints;
use polyplane_apimachinery::field_error::{Bad, FieldError, Path};
use polyplane_apimachinery::json::scan::Scanned;
use polyplane_apimachinery::names::{self, NameRule};
use polyplane_registry::Scope;
use polyplane_registry::strategy::{Context, Strategy};
use std::collections::BTreeSet;

const PRECEDENCE_MAX: i64 = 10_000;
const DEFINITION: &str = "io.k8s.api.flowcontrol.v1.FlowSchemaSpec";
const VERBS: [&str; 9] = [
    "create",
    "delete",
    "deletecollection",
    "get",
    "list",
    "patch",
    "proxy",
    "update",
    "watch",
];
const METHODS: [&str; 2] = ["ByNamespace", "ByUser"];
const SUBJECT_KINDS: [&str; 3] = ["Group", "ServiceAccount", "User"];

/// Behaviour of FlowSchemas.
#[derive(Debug)]
pub struct FlowSchema;

impl Strategy for FlowSchema {
    fn validate_create(&self, _: &Context<'_>, object: &Value) -> Complaints {
        let mut errors = object_metadata::validate_finalizers(object);
        validate(&mut errors, object);
        errors
    }

    fn validate_update(&self, _: &Context<'_>, object: &Value, _: &Value) -> Complaints {
        let mut errors = object_metadata::validate(object, Scope::Cluster, NameRule::DnsSubdomain);
        validate(&mut errors, object);
        errors
    }

    fn validate_subresource(&self, _: &Context<'_>, object: &Value, _: &Value) -> Complaints {
        let mut errors = Complaints::default();
        validate_status(&mut errors, object);
        errors
    }

    fn cells(&self, object: &Value, now: i64) -> Vec<Value> {
        let spec = &object["spec"];
        let method = match &spec["distinguisherMethod"] {
            Value::Null => "<none>",
            method => method.str_at(&["type"]),
        };
        let mut conditions = object.items_at(&["status", "conditions"]).iter();
        let dangling = conditions.find(|condition| condition.str_at(&["type"]) == "Dangling");
        vec![
            name_cell(object),
            spec.str_at(&["priorityLevelConfiguration", "name"]).into(),
            spec.int_at(&["matchingPrecedence"]).unwrap_or(0).into(),
            method.into(),
            age_cell(object, now),
            dangling
                .map_or("?", |condition| condition.str_at(&["status"]))
                .into(),
        ]
    }

    fn row_order(&self) -> Option<fn(Scanned<'_>) -> i64> {
        Some(|object| object.int_at(&["spec", "matchingPrecedence"]).unwrap_or(0))
    }
}

/// Returns the spec that the server requires of an object with this name, if it requires one.
pub fn mandatory_spec(resource: &str, name: &str) -> Option<&'static Value> {
    let mut objects = bootstrap::objects().iter();
    let wanted = objects.find(|object| {
        let key = &object.key;
        key.group() == "flowcontrol.apiserver.k8s.io"
            && key.resource() == resource
            && key.name() == name
    })?;
    matches!(name, "exempt" | "catch-all").then(|| &wanted.tree["spec"])
}

/// Validates the conditions: types must be present and different.
pub fn validate_status(errors: &mut Complaints, object: &Value) {
    let (status, mut seen) = (Path::new("status"), BTreeSet::new());
    let list = status.child("conditions");
    for (at, condition) in object
        .items_at(&["status", "conditions"])
        .iter()
        .enumerate()
    {
        let path = list.index(at);
        let name = condition.str_at(&["type"]);
        if !seen.insert(name) {
            errors.push(FieldError::duplicate(&path.child("type"), named(name)));
        }
        if name.is_empty() {
            errors.push(FieldError::required(&path.child("type"), ""));
        }
    }
}

fn validate(errors: &mut Complaints, object: &Value) {
    let (path, spec) = (Path::new("spec"), &object["spec"]);
    let name = object.str_at(&["metadata", "name"]);
    validate_spec(errors, name, spec, &path);
    if mandatory_spec("flowschemas", name).is_some_and(|wanted| !same(wanted, spec)) {
        let detail = format!("spec of '{name}' must equal the fixed value");
        errors.push(FieldError::invalid(
            &path,
            bad_value::typed(DEFINITION, spec),
            detail,
        ));
    }
    validate_status(errors, object);
}

/// Returns true if two trees are equivalent: a member that is absent in one may be null, empty,
/// zero or false in the other.
pub fn same(left: &Value, right: &Value) -> bool {
    let empty = |value: &Value| match value {
        Value::Null | Value::Bool(false) | Value::Int(0) => true,
        Value::String(text) => text.is_empty(),
        Value::Array(items) => items.is_empty(),
        _ => false,
    };
    match (left, right) {
        (Value::Object(left_members), Value::Object(right_members)) => {
            let keys = left_members.keys().chain(right_members.keys());
            keys.into_iter().all(|key| same(&left[key], &right[key]))
        }
        (Value::Array(left), Value::Array(right)) if left.len() == right.len() => left
            .iter()
            .zip(right)
            .all(|(left, right)| same(left, right)),
        (left, right) => left == right || empty(left) && empty(right),
    }
}

fn validate_spec(errors: &mut Complaints, name: &str, spec: &Value, path: &Path<'_>) {
    let precedence = spec.int_at(&["matchingPrecedence"]).unwrap_or(0);
    let place = path.child("matchingPrecedence");
    if precedence <= 0 {
        errors.push(FieldError::invalid(
            &place,
            precedence,
            "must be a positive value",
        ));
    }
    if precedence > PRECEDENCE_MAX {
        let detail = format!("must not be greater than {PRECEDENCE_MAX}");
        errors.push(FieldError::invalid(&place, precedence, detail));
    }
    if precedence == 1 && name != "exempt" {
        let detail = "only the schema named 'exempt' may have matchingPrecedence 1";
        errors.push(FieldError::invalid(&place, precedence, detail));
    }
    let method = &spec["distinguisherMethod"];
    let kind = method.str_at(&["type"]);
    if present(method) && !METHODS.contains(&kind) {
        let place = path.child("distinguisherMethod");
        let bad = Bad::Shown(format!("{{\"Type\":{}}}", named(kind)).into());
        errors.push(FieldError::not_supported(
            &place.child("type"),
            bad,
            &METHODS,
        ));
    }
    let level = spec.str_at(&["priorityLevelConfiguration", "name"]);
    let place = path.child("priorityLevelConfiguration");
    if level.is_empty() {
        errors.push(FieldError::required(
            &place.child("name"),
            "must reference a priority level",
        ));
    } else {
        complain(
            errors,
            &place.child("name"),
            level,
            names::dns1123_subdomain(level),
        );
    }
    let list = path.child("rules");
    for (at, rule) in spec.items_at(&["rules"]).iter().enumerate() {
        validate_rules(errors, rule, &list.index(at));
    }
}

fn validate_rules(errors: &mut Complaints, rule: &Value, path: &Path<'_>) {
    let subjects = rule.items_at(&["subjects"]);
    let list = path.child("subjects");
    if subjects.is_empty() {
        errors.push(FieldError::required(
            &list,
            "subjects must contain at least one value",
        ));
    }
    for (at, subject) in subjects.iter().enumerate() {
        validate_subject(errors, subject, &list.index(at));
    }
    let (resources, others) = (
        rule.items_at(&["resourceRules"]),
        rule.items_at(&["nonResourceRules"]),
    );
    if resources.is_empty() && others.is_empty() {
        let detail = "at least one of resourceRules and nonResourceRules has to be non-empty";
        errors.push(FieldError::required(path, detail));
    }
    for (at, rule) in resources.iter().enumerate() {
        validate_resource_rule(errors, rule, &path.child("resourceRules").index(at));
    }
    for (at, rule) in others.iter().enumerate() {
        validate_other_rule(errors, rule, &path.child("nonResourceRules").index(at));
    }
}

fn validate_subject(errors: &mut Complaints, subject: &Value, path: &Path<'_>) {
    let kind = subject.str_at(&["kind"]);
    let members = [
        ("ServiceAccount", "serviceAccount"),
        ("User", "user"),
        ("Group", "group"),
    ];
    let Some((_, own)) = members.iter().find(|(name, _)| *name == kind) else {
        errors.push(FieldError::not_supported(
            &path.child("kind"),
            named(kind),
            &SUBJECT_KINDS,
        ));
        return;
    };
    let (place, member) = (path.child(own), &subject[*own]);
    if member.is_null() {
        let detail = format!("{own} is required when subject kind is '{kind}'");
        errors.push(FieldError::required(&place, detail));
    } else {
        validate_member(errors, kind, member, &place);
    }
    for (name, field) in members
        .iter()
        .filter(|(_, field)| field != own && present(&subject[*field]))
    {
        let detail = format!("{field} is forbidden when subject kind is not '{name}'");
        errors.push(FieldError::forbidden(&path.child(field), detail));
    }
}

fn validate_member(errors: &mut Complaints, kind: &str, member: &Value, path: &Path<'_>) {
    let name = member.str_at(&["name"]);
    if name.is_empty() {
        errors.push(FieldError::required(&path.child("name"), ""));
    }
    if kind != "ServiceAccount" {
        return;
    }
    if !name.is_empty() && name != "*" {
        complain(
            errors,
            &path.child("name"),
            name,
            names::dns1123_subdomain(name),
        );
    }
    let namespace = member.str_at(&["namespace"]);
    if namespace.is_empty() {
        let detail = "must specify namespace for service account";
        errors.push(FieldError::required(&path.child("namespace"), detail));
    } else {
        complain(
            errors,
            &path.child("namespace"),
            namespace,
            names::dns1123_label(namespace),
        );
    }
}

fn validate_verbs(errors: &mut Complaints, rule: &Value, path: &Path<'_>) {
    let verbs = texts(&rule["verbs"]);
    let place = path.child("verbs");
    if verbs.is_empty() {
        errors.push(FieldError::required(
            &place,
            "verbs must contain at least one value",
        ));
    } else if !verbs.contains(&"*") && !verbs.iter().all(|verb| VERBS.contains(verb)) {
        errors.push(FieldError::not_supported(
            &place,
            Bad::Json(rule["verbs"].clone()),
            &VERBS,
        ));
    }
    lone_wildcard(errors, rule, "verbs", "verbs", path);
}

fn validate_resource_rule(errors: &mut Complaints, rule: &Value, path: &Path<'_>) {
    validate_verbs(errors, rule, path);
    for (field, required, words) in [
        (
            "apiGroups",
            "resource rules must supply at least one api group",
            "api groups",
        ),
        (
            "resources",
            "resource rules must supply at least one resource",
            "resources",
        ),
    ] {
        if rule.items_at(&[field]).is_empty() {
            errors.push(FieldError::required(&path.child(field), required));
        }
        lone_wildcard(errors, rule, field, words, path);
    }
    let list = path.child("namespaces");
    let namespaces = texts(&rule["namespaces"]);
    if namespaces.is_empty() && !rule.bool_at(&["clusterScope"]) {
        let detail =
            "resource rules that are not cluster scoped must supply at least one namespace";
        errors.push(FieldError::required(&list, detail));
    } else if namespaces.contains(&"*") {
        lone_wildcard(errors, rule, "namespaces", "namespaces", path);
    } else {
        for (at, namespace) in namespaces.into_iter().enumerate() {
            for detail in names::dns1123_label(namespace) {
                let detail =
                    format!("each member of this list must be '*' or a DNS-1123 label; {detail}");
                errors.push(FieldError::invalid(&list.index(at), namespace, detail));
            }
        }
    }
}

fn validate_other_rule(errors: &mut Complaints, rule: &Value, path: &Path<'_>) {
    validate_verbs(errors, rule, path);
    let list = path.child("nonResourceURLs");
    let urls = texts(&rule["nonResourceURLs"]);
    if urls.is_empty() {
        let detail = "nonResourceURLs must contain at least one value";
        errors.push(FieldError::required(&list, detail));
    } else if urls.contains(&"*") {
        lone_wildcard(errors, rule, "nonResourceURLs", "non-resource URLs", path);
    } else {
        for (at, url) in urls.into_iter().enumerate() {
            if let Some(detail) = url_complaint(url) {
                errors.push(FieldError::invalid(&list.index(at), url, detail));
            }
        }
    }
}

fn url_complaint(url: &str) -> Option<&'static str> {
    match url {
        "" => Some("must not be empty"),
        "/" => None,
        url if !url.starts_with('/') => Some("must start with slash"),
        url if url.contains(' ') => Some("must not contain white-space"),
        url if url.contains("//") => Some("must not contain double slash"),
        url => match url.matches('*').count() {
            0 => None,
            1 if url.ends_with("/*") => None,
            _ => Some("wildcard can only do suffix matching"),
        },
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn wildcards_in_urls_stand_at_the_end() {
        assert_eq!(url_complaint("/healthz/*"), None);
        assert_eq!(url_complaint("/"), None);
        for bad in ["", "x", "/a b", "//", "/a*", "/*/a/*", "/*a"] {
            assert!(url_complaint(bad).is_some(), "{bad}");
        }
    }

    #[test]
    fn the_mandatory_specs_are_known() {
        for name in ["exempt", "catch-all"] {
            for resource in ["flowschemas", "prioritylevelconfigurations"] {
                assert!(
                    mandatory_spec(resource, name).is_some_and(present),
                    "{resource} {name}"
                );
            }
        }
        assert!(mandatory_spec("flowschemas", "probes").is_none());
    }
}
