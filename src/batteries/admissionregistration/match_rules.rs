//! Fields that the kinds of admission share: the requests they match, and the source of parameters.

use super::expressions::{Compiler, Makes, Uses};
use crate::shared::validation::complaints::{complain, lone_wildcard, named, one_of_if_set};
use crate::shared::validation::members::{present, texts};
use crate::shared::validation::selectors::{SelectorValues, selector};
use polyplane_apimachinery::complaints::Complaints;
use polyplane_apimachinery::field_error::{Bad, FieldError, Path};
use polyplane_apimachinery::{Map, Value, names};
use std::collections::BTreeSet;

/// The values for what happens if a check cannot be made.
pub const FAILURE_POLICIES: [&str; 2] = ["Fail", "Ignore"];
/// The values for how closely a request has to match.
pub const MATCH_POLICIES: [&str; 2] = ["Equivalent", "Exact"];
/// The values for when a mutation runs again.
pub const REINVOCATION_POLICIES: [&str; 2] = ["IfNeeded", "Never"];

const OPERATIONS: [&str; 5] = ["*", "CONNECT", "CREATE", "DELETE", "UPDATE"];
const MUTATING_OPERATIONS: [&str; 4] = ["*", "CONNECT", "CREATE", "UPDATE"];
const SCOPES: [&str; 3] = ["*", "Cluster", "Namespaced"];
const CONDITIONS_MAX: usize = 64;

/// Refuses a new object whose name is reserved for objects from a manifest of the server.
pub fn validate_name(errors: &mut Complaints, object: &Value) {
    if let Some(detail) = reserved(object) {
        let name = object.str_at(&["metadata", "name"]);
        let path = Path::new("metadata.name");
        errors.push(FieldError::invalid(&path, name, detail));
    }
}

/// Returns the warning about an object whose name is reserved, which was stored before it was.
pub fn name_warnings(object: &Value) -> Vec<String> {
    let detail = reserved(object).into_iter();
    detail
        .map(|detail| format!("metadata.name: {detail}"))
        .collect()
}

fn reserved(object: &Value) -> Option<String> {
    const RESERVED: &str = ".static.k8s.io";
    let is_reserved = object.str_at(&["metadata", "name"]).ends_with(RESERVED);
    is_reserved.then(|| {
        format!(
            "names ending with {RESERVED:?} are reserved for static manifest-based configurations and cannot be managed via the API"
        )
    })
}

/// Checks a rule: operations on resources.
pub fn validate_rule(errors: &mut Complaints, rule: &Value, path: &Path<'_>) {
    let list = path.child("operations");
    let operations = texts(&rule["operations"]);
    if operations.is_empty() {
        errors.push(FieldError::required(&list, ""));
    }
    lone_wildcard(errors, rule, "operations", "operations", path);
    for (at, operation) in operations.into_iter().enumerate() {
        if !OPERATIONS.contains(&operation) {
            errors.push(FieldError::not_supported(
                &list.index(at),
                named(operation),
                &OPERATIONS,
            ));
        }
    }
    for (field, words) in [("apiGroups", "API groups"), ("apiVersions", "API versions")] {
        if rule.items_at(&[field]).is_empty() {
            errors.push(FieldError::required(&path.child(field), ""));
        }
        lone_wildcard(errors, rule, field, words, path);
    }
    for (at, version) in texts(&rule["apiVersions"]).into_iter().enumerate() {
        if version.is_empty() {
            errors.push(FieldError::required(
                &path.child("apiVersions").index(at),
                "",
            ));
        }
    }
    validate_resources(errors, &rule["resources"], &path.child("resources"));
    one_of_if_set(errors, &path.child("scope"), &rule["scope"], &SCOPES);
}

fn validate_resources(errors: &mut Complaints, list: &Value, path: &Path<'_>) {
    let resources = texts(list);
    if resources.is_empty() {
        errors.push(FieldError::required(path, ""));
    }
    let (mut every_subresource, mut every_resource) = (BTreeSet::new(), BTreeSet::new());
    let mut last_plain = false;
    for (at, text) in resources.iter().enumerate() {
        let place = path.index(at);
        if text.is_empty() {
            errors.push(FieldError::required(&place, ""));
            continue;
        }
        let Some((resource, subresource)) = text.split_once('/') else {
            last_plain = *text != "*";
            continue;
        };
        if every_subresource.contains(resource) {
            let detail = format!("if '{resource}/*' is present, must not specify {text}");
            errors.push(FieldError::invalid(&place, *text, detail));
        }
        if every_resource.contains(subresource) {
            let detail = format!("if '*/{subresource}' is present, must not specify {text}");
            errors.push(FieldError::invalid(&place, *text, detail));
        }
        if subresource == "*" {
            every_subresource.insert(resource);
        }
        if resource == "*" {
            every_resource.insert(subresource);
        }
    }
    let bad = || Bad::Json(list.clone());
    if resources.len() > 1 && resources.contains(&"*/*") {
        let detail = "if '*/*' is present, must not specify other resources";
        errors.push(FieldError::invalid(path, bad(), detail));
    }
    if resources.contains(&"*") && last_plain {
        let detail = "if '*' is present, must not specify other resources without subresources";
        errors.push(FieldError::invalid(path, bad(), detail));
    }
}

/// Checks which objects a policy matches.
pub fn validate_match_resources(errors: &mut Complaints, resources: &Value, path: &Path<'_>) {
    if resources.is_null() {
        return;
    }
    let place = path.child("matchPolicy");
    if resources["matchPolicy"].is_null() {
        errors.push(FieldError::required(&place, ""));
    }
    one_of_if_set(errors, &place, &resources["matchPolicy"], &MATCH_POLICIES);
    for field in ["namespaceSelector", "objectSelector"] {
        if resources[field].is_null() {
            errors.push(FieldError::required(&path.child(field), ""));
        } else {
            selector(
                errors,
                &path.child(field),
                &resources[field],
                SelectorValues::Checked,
            );
        }
    }
    for field in ["resourceRules", "excludeResourceRules"] {
        let list = path.child(field);
        for (at, rule) in resources.items_at(&[field]).iter().enumerate() {
            let place = list.index(at);
            validate_resource_names(errors, rule, &place.child("resourceNames"));
            validate_rule(errors, rule, &place);
        }
    }
}

fn validate_resource_names(errors: &mut Complaints, rule: &Value, list: &Path<'_>) {
    let mut seen = BTreeSet::new();
    for (at, name) in texts(&rule["resourceNames"]).into_iter().enumerate() {
        complain(
            errors,
            &list.index(at),
            name,
            names::path_segment_name(name),
        );
        if !seen.insert(name) {
            errors.push(FieldError::duplicate(&list.index(at), name));
        }
    }
}

/// Checks that a mutating policy names only operations whose objects can be mutated.
pub fn validate_mutating_operations(errors: &mut Complaints, resources: &Value, path: &Path<'_>) {
    let rules = path.child("resourceRules");
    let place = rules.child("operations");
    for rule in resources.items_at(&["resourceRules"]) {
        for operation in texts(&rule["operations"]) {
            if !MUTATING_OPERATIONS.contains(&operation) {
                errors.push(FieldError::not_supported(
                    &place,
                    named(operation),
                    &MUTATING_OPERATIONS,
                ));
            }
        }
    }
}

/// Checks the conditions of a match, which may use the parameters of a policy that has some.
pub fn validate_match_conditions(
    errors: &mut Complaints,
    conditions: &[Value],
    list: &Path<'_>,
    params: bool,
) {
    if conditions.len() > CONDITIONS_MAX {
        errors.push(FieldError::too_many(list, conditions.len(), CONDITIONS_MAX));
    }
    let (mut seen, mut compiler) = (BTreeSet::new(), Compiler::default());
    for (at, condition) in conditions.iter().enumerate() {
        let path = list.index(at);
        let (text, place) = (
            condition.str_at(&["expression"]).trim(),
            path.child("expression"),
        );
        if text.is_empty() {
            errors.push(FieldError::required(&place, ""));
        } else if let Err(why) = compiler.compile(text, Uses::with_params(params), Makes::Bool) {
            errors.push(why.complaint(&place, text));
        }
        let (name, place) = (condition.str_at(&["name"]), path.child("name"));
        if name.is_empty() {
            errors.push(FieldError::required(&place, ""));
            continue;
        }
        complain(errors, &place, name, names::qualified_name(name));
        if !seen.insert(name) {
            errors.push(FieldError::duplicate(&place, name));
        }
    }
}

/// Checks the field that says where a binding finds its parameters.
pub fn validate_param_ref(errors: &mut Complaints, reference: &Value, path: &Path<'_>) {
    if reference.is_null() {
        return;
    }
    let exclusive = "name and selector are mutually exclusive";
    let name = reference.str_at(&["name"]);
    let by_selector = present(&reference["selector"]);
    if !name.is_empty() {
        complain(
            errors,
            &path.child("name"),
            name,
            names::path_segment_name(name),
        );
        if by_selector {
            errors.push(FieldError::forbidden(&path.child("name"), exclusive));
        }
    }
    if by_selector {
        selector(
            errors,
            &path.child("selector"),
            &reference["selector"],
            SelectorValues::Checked,
        );
        if !name.is_empty() {
            errors.push(FieldError::forbidden(&path.child("selector"), exclusive));
        }
    } else if name.is_empty() {
        errors.push(FieldError::required(
            path,
            "one of name or selector must be specified",
        ));
    }
    let place = path.child("parameterNotFoundAction");
    match reference.str_at(&["parameterNotFoundAction"]) {
        "" => errors.push(FieldError::required(&place, "")),
        "Deny" | "Allow" => {}
        other => errors.push(FieldError::not_supported(
            &place,
            named(other),
            &["Deny", "Allow"],
        )),
    }
}

/// Checks the kind of a policy's parameters.
pub fn validate_param_kind(errors: &mut Complaints, kind: &Value, path: &Path<'_>) {
    let (text, place) = (kind.str_at(&["apiVersion"]), path.child("apiVersion"));
    if text.is_empty() {
        errors.push(FieldError::required(&place, ""));
    } else if text != "/" && text.matches('/').count() > 1 {
        let detail = format!("unexpected GroupVersion string: {text}");
        errors.push(FieldError::invalid(&place, text, detail));
    } else {
        let (group, version) = text.split_once('/').unwrap_or(("", text));
        let complaints = names::dns1123_subdomain(group);
        if !group.is_empty() && !complaints.is_empty() {
            errors.push(FieldError::invalid(&place, group, complaints.join(",")));
        }
        let complaints = names::dns1035_label(version);
        if version.is_empty() {
            errors.push(FieldError::invalid(
                &place,
                text,
                "version must be specified",
            ));
        } else if !complaints.is_empty() {
            errors.push(FieldError::invalid(&place, version, complaints.join(",")));
        }
    }
    let (name, place) = (kind.str_at(&["kind"]), path.child("kind"));
    let complaints = names::dns1035_label(&name.to_lowercase());
    if name.is_empty() {
        errors.push(FieldError::required(&place, ""));
    } else if !complaints.is_empty() {
        let detail = format!(
            "may have mixed case, but should otherwise match: {}",
            complaints.join(",")
        );
        errors.push(FieldError::invalid(&place, name, detail));
    }
}

/// Returns the parameters of a binding, for a table cell.
pub fn param_ref_cell(reference: &Value) -> Value {
    let (name, namespace) = (
        reference.str_at(&["name"]),
        reference.str_at(&["namespace"]),
    );
    let text = match (name, namespace) {
        ("", _) if present(&reference["selector"]) => selector_text(&reference["selector"]),
        ("", _) => "<unset>".to_owned(),
        (name, "") => format!("*/{name}"),
        (name, namespace) => format!("{namespace}/{name}"),
    };
    text.into()
}

/// Returns the kind of a policy's parameters, for a table cell.
pub fn param_kind_cell(kind: &Value) -> Value {
    match kind {
        Value::Null => "<unset>".into(),
        kind => format!(
            "{}/{}",
            kind.str_at(&["apiVersion"]),
            kind.str_at(&["kind"])
        )
        .into(),
    }
}

/// Returns a selector as Go prints the structure.
fn selector_text(selector: &Value) -> String {
    let labels = selector["matchLabels"]
        .as_object()
        .into_iter()
        .flat_map(Map::iter);
    let labels: String = labels
        .map(|(key, value)| format!("{key}: {},", value.as_str().unwrap_or("")))
        .collect();
    let expressions: String = selector
        .items_at(&["matchExpressions"])
        .iter()
        .map(|expression| {
            let (key, operator) = (
                expression.str_at(&["key"]),
                expression.str_at(&["operator"]),
            );
            let values = texts(&expression["values"]).join(" ");
            format!("LabelSelectorRequirement{{Key:{key},Operator:{operator},Values:[{values}],}},")
        })
        .collect();
    format!(
        "&LabelSelector{{MatchLabels:map[string]string{{{labels}}},MatchExpressions:[]LabelSelectorRequirement{{{expressions}}},}}"
    )
}
