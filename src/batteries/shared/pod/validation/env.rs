//! Validation of environment variables and the sources of their values.

use crate::shared::resource_names::amount;
use crate::shared::validation::complaints::complain;
use crate::shared::validation::members::has;
use polyplane_apimachinery::Value;
use polyplane_apimachinery::complaints::Complaints;
use polyplane_apimachinery::field_error::{FieldError, Path};
use polyplane_apimachinery::names;

/// The fields of a pod that a variable can show.
const ENV_FIELDS: [&str; 9] = [
    "metadata.name",
    "metadata.namespace",
    "metadata.uid",
    "spec.nodeName",
    "spec.serviceAccountName",
    "status.hostIP",
    "status.hostIPs",
    "status.podIP",
    "status.podIPs",
];

/// The fields of a pod that a file can show.
pub const VOLUME_FIELDS: [&str; 5] = [
    "metadata.annotations",
    "metadata.labels",
    "metadata.name",
    "metadata.namespace",
    "metadata.uid",
];

/// All fields of a pod that the downward API knows.
const KNOWN_FIELDS: [&str; 14] = [
    "metadata.annotations",
    "metadata.labels",
    "metadata.name",
    "metadata.namespace",
    "metadata.uid",
    "spec.nodeName",
    "spec.restartPolicy",
    "spec.serviceAccountName",
    "spec.schedulerName",
    "status.phase",
    "status.hostIP",
    "status.hostIPs",
    "status.podIP",
    "status.podIPs",
];

const RESOURCE_FIELDS: [&str; 6] = [
    "limits.cpu",
    "limits.ephemeral-storage",
    "limits.memory",
    "requests.cpu",
    "requests.ephemeral-storage",
    "requests.memory",
];

const BYTE_DIVISORS: [&str; 13] = [
    "1", "1k", "1M", "1G", "1T", "1P", "1E", "1Ki", "1Mi", "1Gi", "1Ti", "1Pi", "1Ei",
];

/// Validates the variables of a container.
pub fn validate(variables: &[Value], path: &Path<'_>, errors: &mut Complaints) {
    for (at, variable) in variables.iter().enumerate() {
        if errors.is_full() {
            break;
        }
        let path = path.index(at);
        let name = variable.str_at(&["name"]);
        if name.is_empty() {
            errors.push(FieldError::required(&path.child("name"), ""));
        } else {
            complain(
                errors,
                &path.child("name"),
                name,
                names::relaxed_env_var_name(name),
            );
        }
        let source = &variable["valueFrom"];
        if !source.is_null() {
            validate_source(
                source,
                variable.str_at(&["value"]),
                &path.child("valueFrom"),
                errors,
            );
        }
    }
}

fn validate_source(source: &Value, value: &str, path: &Path<'_>, errors: &mut Complaints) {
    let mut sources = 0;
    for kind in [
        "fieldRef",
        "resourceFieldRef",
        "configMapKeyRef",
        "secretKeyRef",
        "fileKeyRef",
    ] {
        let given = &source[kind];
        if given.is_null() {
            continue;
        }
        sources += 1;
        let path = path.child(kind);
        match kind {
            "fieldRef" => validate_field(given, &ENV_FIELDS, &path, errors),
            "resourceFieldRef" => {
                validate_resource(given, ResourceFieldTarget::Variable, &path, errors)
            }
            "fileKeyRef" => validate_file_key(given, &path, errors),
            _ => validate_object_key(given, &path, errors),
        }
    }
    let detail = if sources == 0 {
        "must specify one of: `fieldRef`, `resourceFieldRef`, `configMapKeyRef`, `secretKeyRef` or `fileKeyRef`"
    } else if !value.is_empty() {
        "may not be specified when `value` is not empty"
    } else if sources > 1 {
        "may not have more than one field specified at a time"
    } else {
        return;
    };
    errors.push(FieldError::invalid(path, "", detail));
}

/// Returns the path and the subscript of `path['subscript']`.
fn split_subscript(path: &str) -> Option<(&str, &str)> {
    let (path, subscript) = path.strip_suffix("']")?.split_once("['")?;
    (!path.is_empty()).then_some((path, subscript))
}

/// Validates the reference to a field of a pod that is shown to its containers.
pub fn validate_field(selector: &Value, shown: &[&str], path: &Path<'_>, errors: &mut Complaints) {
    let version = selector.str_at(&["apiVersion"]);
    if version.is_empty() {
        errors.push(FieldError::required(&path.child("apiVersion"), ""));
        return;
    }
    let field = selector.str_at(&["fieldPath"]);
    let field_path = path.child("fieldPath");
    if field.is_empty() {
        errors.push(FieldError::required(&field_path, ""));
        return;
    }
    let mut cannot_convert = |why: String| {
        errors.push(FieldError::invalid(
            &field_path,
            field,
            format!("error converting fieldPath: {why}"),
        ));
    };
    if version != "v1" {
        cannot_convert(format!("unsupported pod version: {version}"));
        return;
    }
    if let Some((map, key)) = split_subscript(field) {
        match map {
            "metadata.annotations" => complain_of_key(&key.to_lowercase(), path, errors),
            "metadata.labels" => complain_of_key(key, path, errors),
            _ => cannot_convert(format!("field label does not support subscript: {field}")),
        }
        return;
    }
    let field = match field {
        "spec.host" => "spec.nodeName",
        field if KNOWN_FIELDS.contains(&field) => field,
        _ => {
            cannot_convert(format!("field label not supported: {field}"));
            return;
        }
    };
    if !shown.contains(&field) {
        errors.push(FieldError::not_supported_sorted(&field_path, field, shown));
    }
}

fn complain_of_key(key: &str, path: &Path<'_>, errors: &mut Complaints) {
    complain(errors, path, key, names::qualified_name(key));
}

/// The place where an amount of a resource is shown.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ResourceFieldTarget {
    /// In a variable of the container itself.
    Variable,
    /// In a file, which has to name the container.
    File,
}

/// Validates the reference to an amount of a resource that is shown to containers.
pub fn validate_resource(
    selector: &Value,
    target: ResourceFieldTarget,
    path: &Path<'_>,
    errors: &mut Complaints,
) {
    let resource = selector.str_at(&["resource"]);
    let huge_pages = ["limits.hugepages-", "requests.hugepages-"]
        .iter()
        .any(|prefix| resource.starts_with(prefix));
    if target == ResourceFieldTarget::File && selector.str_at(&["containerName"]).is_empty() {
        errors.push(FieldError::required(&path.child("containerName"), ""));
    } else if resource.is_empty() {
        errors.push(FieldError::required(&path.child("resource"), ""));
    } else if !RESOURCE_FIELDS.contains(&resource) && !huge_pages {
        errors.push(FieldError::not_supported(
            &path.child("resource"),
            resource,
            &RESOURCE_FIELDS,
        ));
    }
    let divisor = amount(selector.get("divisor"));
    if divisor.is_zero() {
        return;
    }
    let text = divisor.to_string();
    let bytes = BYTE_DIVISORS.contains(&text.as_str());
    let what = match resource {
        "limits.cpu" | "requests.cpu" if !["1m", "1"].contains(&text.as_str()) => {
            "1m and 1 are supported with the cpu resource".to_owned()
        }
        "limits.memory" | "requests.memory" if !bytes => with_bytes("memory"),
        "limits.ephemeral-storage" | "requests.ephemeral-storage" if !bytes => {
            with_bytes("local ephemeral storage")
        }
        _ if huge_pages && !bytes => with_bytes("hugepages"),
        _ => return,
    };
    let detail = format!("only divisor's values {what}");
    errors.push(FieldError::invalid(
        &path.child("divisor"),
        resource,
        detail,
    ));
}

fn with_bytes(resource: &str) -> String {
    format!(
        "{} are supported with the {resource} resource",
        BYTE_DIVISORS.join(", ")
    )
}

fn validate_object_key(selector: &Value, path: &Path<'_>, errors: &mut Complaints) {
    let name = selector.str_at(&["name"]);
    complain(
        errors,
        &path.child("name"),
        name,
        names::dns1123_subdomain(name),
    );
    let key = selector.str_at(&["key"]);
    if key.is_empty() {
        errors.push(FieldError::required(&path.child("key"), ""));
    } else {
        complain(errors, &path.child("key"), key, names::config_map_key(key));
    }
}

fn validate_file_key(selector: &Value, path: &Path<'_>, errors: &mut Complaints) {
    let key = selector.str_at(&["key"]);
    if key.is_empty() {
        errors.push(FieldError::required(&path.child("key"), ""));
    } else {
        complain(
            errors,
            &path.child("key"),
            key,
            names::relaxed_env_var_name(key),
        );
    }
    let volume = selector.str_at(&["volumeName"]);
    if volume.is_empty() {
        errors.push(FieldError::required(&path.child("volumeName"), ""));
    } else {
        complain(
            errors,
            &path.child("volumeName"),
            volume,
            names::dns1123_label(volume),
        );
    }
    let file = selector.str_at(&["path"]);
    if file.is_empty() {
        errors.push(FieldError::required(&path.child("path"), ""));
    } else {
        super::projected::validate_no_backsteps(file, &path.child("path"), errors);
    }
}

/// Validates references to objects that each define many variables.
pub fn validate_from(sources: &[Value], path: &Path<'_>, errors: &mut Complaints) {
    let list_path = path;
    for (at, source) in sources.iter().enumerate() {
        if errors.is_full() {
            break;
        }
        let path = path.index(at);
        let prefix = source.str_at(&["prefix"]);
        if !prefix.is_empty() {
            complain(
                errors,
                &path.child("prefix"),
                prefix,
                names::relaxed_env_var_name(prefix),
            );
        }
        let mut found = 0;
        for kind in ["configMapRef", "secretRef"] {
            if has(source, kind) {
                found += 1;
                validate_object(
                    source[kind].str_at(&["name"]),
                    &path.child(kind).child("name"),
                    errors,
                );
            }
        }
        if found == 0 {
            let detail = "must specify one of: `configMapRef` or `secretRef`";
            errors.push(FieldError::invalid(list_path, "", detail));
        } else if found > 1 {
            let detail = "may not have more than one field specified at a time";
            errors.push(FieldError::invalid(list_path, "", detail));
        }
    }
}

fn validate_object(name: &str, path: &Path<'_>, errors: &mut Complaints) {
    if name.is_empty() {
        errors.push(FieldError::required(path, ""));
    } else {
        // Names are checked like prefixes, as if more text followed.
        complain(
            errors,
            path,
            name,
            names::NameRule::DnsSubdomain.prefix(name),
        );
    }
}
