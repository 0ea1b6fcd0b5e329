//! Files that are written into volumes: their paths, modes and owners, and their sources.

use super::env::{self, ResourceFieldTarget};
use super::{Leniency, PodOptions};
use crate::shared::validation::bad_value;
use crate::shared::validation::complaints::complain;
use crate::shared::validation::members::{has, texts};
use polyplane_apimachinery::Value;
use polyplane_apimachinery::complaints::Complaints;
use polyplane_apimachinery::field_error::{FieldError, Path};
use polyplane_apimachinery::labels;
use polyplane_apimachinery::names;
use std::collections::BTreeSet;

const MODE: &str = "must be a number between 0 and 0777 (octal), both inclusive";
const DUPLICATE: &str = "conflicting duplicate paths";
/// Most bytes of the annotations of a pod certificate, as upstream limits them.
const ANNOTATION_BYTES_MAX: usize = 256 * 1024;
const DAY_SECONDS: i64 = 24 * 60 * 60;

/// Checks that a path does not have `..` elements.
pub fn validate_no_backsteps(place: &str, path: &Path<'_>, errors: &mut Complaints) {
    if place.split('/').any(|step| step == "..") {
        errors.push(FieldError::invalid(path, place, "must not contain '..'"));
    }
}

/// Checks that a path is relative and does not have `..` elements.
pub fn validate_descending_path(place: &str, path: &Path<'_>, errors: &mut Complaints) {
    if place.starts_with('/') {
        errors.push(FieldError::invalid(path, place, "must be a relative path"));
    }
    validate_no_backsteps(place, path, errors);
}

/// Checks that a path is relative and does not collide with files that the node writes itself.
pub fn validate_local_path(place: &str, path: &Path<'_>, errors: &mut Complaints) {
    validate_descending_path(place, path, errors);
    if place.starts_with("..") && !place.starts_with("../") {
        errors.push(FieldError::invalid(path, place, "must not start with '..'"));
    }
}

fn mode(value: &Value, field: &str, path: &Path<'_>, errors: &mut Complaints) {
    if let Some(mode) = value
        .int_at(&[field])
        .filter(|mode| !(0..=0o777).contains(mode))
    {
        errors.push(FieldError::invalid(&path.child(field), mode, MODE));
    }
}

fn user(value: &Value, field: &str, path: &Path<'_>, errors: &mut Complaints) {
    if let Some(user) = value.int_at(&[field]) {
        complain(
            errors,
            &path.child(field),
            user,
            names::user_or_group_id(user),
        );
    }
}

/// Validates mode, owner and items of a volume that is filled from an object.
pub fn mode_and_items(value: &Value, path: &Path<'_>, errors: &mut Complaints) {
    mode(value, "defaultMode", path, errors);
    user(value, "defaultUser", path, errors);
    let items = path.child("items");
    for (at, item) in value.items_at(&["items"]).iter().enumerate() {
        if errors.is_full() {
            break;
        }
        key_to_path(item, &items.index(at), errors);
    }
}

fn key_to_path(item: &Value, path: &Path<'_>, errors: &mut Complaints) {
    super::volume_sources::require(item, &["key", "path"], path, errors);
    validate_local_path(item.str_at(&["path"]), &path.child("path"), errors);
    mode(item, "mode", path, errors);
    user(item, "user", path, errors);
}

/// Validates a volume that shows fields of the pod.
pub fn downward_api(value: &Value, path: &Path<'_>, errors: &mut Complaints) {
    mode(value, "defaultMode", path, errors);
    user(value, "defaultUser", path, errors);
    for file in value.items_at(&["items"]) {
        downward_file(file, path, errors);
    }
}

fn downward_file(file: &Value, path: &Path<'_>, errors: &mut Complaints) {
    super::volume_sources::require(file, &["path"], path, errors);
    validate_local_path(file.str_at(&["path"]), &path.child("path"), errors);
    let (field, resource) = (&file["fieldRef"], &file["resourceFieldRef"]);
    if !field.is_null() {
        env::validate_field(field, &env::VOLUME_FIELDS, &path.child("fieldRef"), errors);
        if !resource.is_null() {
            let detail = "fieldRef and resourceFieldRef can not be specified simultaneously";
            errors.push(FieldError::invalid(path, "resource", detail));
        }
    } else if resource.is_null() {
        errors.push(FieldError::required(
            path,
            "one of fieldRef and resourceFieldRef is required",
        ));
    } else {
        env::validate_resource(
            resource,
            ResourceFieldTarget::File,
            &path.child("resourceFieldRef"),
            errors,
        );
    }
    mode(file, "mode", path, errors);
    user(file, "user", path, errors);
}

/// The paths of the files in one volume.
struct Places<'a> {
    path: &'a Path<'a>,
    seen: BTreeSet<String>,
}

impl Places<'_> {
    /// Adds a path; complains, showing `bad`, if a file has it already.
    fn take(&mut self, place: &str, bad: &str, errors: &mut Complaints) {
        if !self.seen.insert(place.to_owned()) {
            errors.push(FieldError::invalid(self.path, bad, DUPLICATE));
        }
    }
}

/// Validates a volume with several sources.
pub fn validate(value: &Value, path: &Path<'_>, options: &PodOptions, errors: &mut Complaints) {
    mode(value, "defaultMode", path, errors);
    user(value, "defaultUser", path, errors);
    let mut places = Places {
        path,
        seen: BTreeSet::new(),
    };
    let sources = path.child("sources");
    for (at, source) in value.items_at(&["sources"]).iter().enumerate() {
        if errors.is_full() {
            break;
        }
        let source_path = sources.index(at);
        let mut found = 0;
        for kind in [
            "secret",
            "configMap",
            "downwardAPI",
            "serviceAccountToken",
            "clusterTrustBundle",
            "podCertificate",
        ] {
            let given = &source[kind];
            if given.is_null() {
                continue;
            }
            found += 1;
            let own = source_path.child(kind);
            match kind {
                "secret" | "configMap" => object_items(given, &own, &mut places, errors),
                "downwardAPI" => {
                    for file in given.items_at(&["items"]) {
                        downward_file(file, &own, errors);
                        let place = file.str_at(&["path"]);
                        if !place.is_empty() {
                            places.take(place, place, errors);
                        }
                    }
                }
                "serviceAccountToken" => token(given, path, &own, options, errors),
                "clusterTrustBundle" => trust_bundle(given, &own, &mut places, errors),
                _ => certificate(given, &own, &mut places, errors),
            }
        }
        if found > 1 {
            let detail = "may not specify more than 1 volume type per source";
            errors.push(FieldError::forbidden(&source_path, detail));
        }
    }
}

fn object_items(value: &Value, path: &Path<'_>, places: &mut Places<'_>, errors: &mut Complaints) {
    let name = value.str_at(&["name"]);
    if name.is_empty() {
        errors.push(FieldError::required(&path.child("name"), ""));
    }
    let items = path.child("items");
    for (at, item) in value.items_at(&["items"]).iter().enumerate() {
        if errors.is_full() {
            break;
        }
        key_to_path(item, &items.index(at), errors);
        let place = item.str_at(&["path"]);
        if !place.is_empty() {
            places.take(place, name, errors);
        }
    }
}

fn token(
    value: &Value,
    volume_path: &Path<'_>,
    path: &Path<'_>,
    options: &PodOptions,
    errors: &mut Complaints,
) {
    let expiry = path.child("expirationSeconds");
    match value.int_at(&["expirationSeconds"]) {
        None => errors.push(FieldError::required(&expiry, "")),
        Some(seconds) if seconds < 600 => {
            let detail = "may not specify a duration less than 10 minutes";
            errors.push(FieldError::invalid(&expiry, seconds, detail));
        }
        Some(seconds) if seconds > 1 << 32 => {
            let detail = "may not specify a duration larger than 2^32 seconds";
            errors.push(FieldError::invalid(&expiry, seconds, detail));
        }
        Some(_) => {}
    }
    let place = value.str_at(&["path"]);
    let place_path = volume_path.child("path");
    if place.is_empty() {
        errors.push(FieldError::required(&place_path, ""));
    } else if !options.allows(Leniency::TokenPath) {
        validate_local_path(place, &place_path, errors);
    }
    user(value, "user", path, errors);
}

fn trust_bundle(value: &Value, path: &Path<'_>, places: &mut Places<'_>, errors: &mut Complaints) {
    let name = value.get("name").and_then(Value::as_str);
    let signer = value.get("signerName").and_then(Value::as_str);
    let selector = &value["labelSelector"];
    let selector_path = path.child("labelSelector");
    match (name, signer) {
        (Some(_), Some(_)) => {
            let bad = bad_value::typed("io.k8s.api.core.v1.ClusterTrustBundleProjection", value);
            errors.push(FieldError::invalid(
                path,
                bad,
                "only one of name and signerName may be used",
            ));
        }
        (Some(name), None) => {
            let name_path = path.child("name");
            if name.is_empty() {
                errors.push(FieldError::required(
                    &name_path,
                    "must be a valid object name",
                ));
            }
            for complaint in bundle_name_complaints(name) {
                let detail = format!("not a valid clustertrustbundlename: {complaint}");
                errors.push(FieldError::invalid(&name_path, name, detail));
            }
            if !selector.is_null() {
                let detail = "labelSelector must be unset if name is specified";
                errors.push(FieldError::invalid(
                    &selector_path,
                    bad_value::selector(selector),
                    detail,
                ));
            }
        }
        (None, Some(signer)) => {
            let signer_path = path.child("signerName");
            if signer.is_empty() {
                errors.push(FieldError::required(
                    &signer_path,
                    "must be a valid signer name",
                ));
            }
            validate_signer(signer, &signer_path, errors);
            errors.extend(labels::validate_label_selector(
                Some(selector),
                &selector_path,
            ));
        }
        (None, None) => errors.push(FieldError::required(
            path,
            "either name or signerName must be specified",
        )),
    }
    let place = value.str_at(&["path"]);
    if place.is_empty() {
        errors.push(FieldError::required(&path.child("path"), ""));
    }
    user(value, "user", path, errors);
    validate_local_path(place, &path.child("path"), errors);
    places.take(place, place, errors);
}

/// Returns complaints about the name of a trust bundle, which must begin with its signer, with
/// slashes as colons, if it has one.
fn bundle_name_complaints(name: &str) -> Vec<String> {
    let Some((signer, rest)) = name.rsplit_once(':') else {
        return names::dns1123_subdomain(name);
    };
    if signer.is_empty() {
        return vec![
            "ClusterTrustBundle without signer name must not have \":\" in its name".to_owned(),
        ];
    }
    if signer.contains('/') {
        let (signer, prefix) = (signer.replace(':', "/"), signer.replace('/', ":"));
        return vec![format!(
            "ClusterTrustBundle for signerName {signer} must be named with prefix {prefix}:"
        )];
    }
    names::dns1123_subdomain(rest)
}

/// The algorithms for keys of pods.
const KEY_TYPES: [&str; 6] = [
    "RSA3072",
    "RSA4096",
    "ECDSAP256",
    "ECDSAP384",
    "ECDSAP521",
    "ED25519",
];

fn certificate(value: &Value, path: &Path<'_>, places: &mut Places<'_>, errors: &mut Complaints) {
    let signer = value.str_at(&["signerName"]);
    validate_signer(signer, &path.child("signerName"), errors);
    user_annotations(
        &value["userAnnotations"],
        &path.child("userAnnotations"),
        errors,
    );
    user(value, "user", path, errors);
    let key = value.str_at(&["keyType"]);
    if !KEY_TYPES.contains(&key) {
        errors.push(FieldError::not_supported(
            &path.child("keyType"),
            key,
            &KEY_TYPES,
        ));
    }
    if let Some(seconds) = value.int_at(&["maxExpirationSeconds"]) {
        let expiry = path.child("maxExpirationSeconds");
        if seconds < 3600 {
            let detail = "if provided, maxExpirationSeconds must be >= 3600";
            errors.push(FieldError::invalid(&expiry, seconds, detail));
        }
        let domain = signer.split('/').next().unwrap_or("");
        let own = domain == "kubernetes.io" || domain.ends_with(".kubernetes.io");
        let most = if own { DAY_SECONDS } else { 91 * DAY_SECONDS };
        if seconds > most {
            let detail = format!("if provided, maxExpirationSeconds must be <= {most}");
            errors.push(FieldError::invalid(&expiry, seconds, detail));
        }
    }
    let mut found = false;
    for field in ["credentialBundlePath", "keyPath", "certificateChainPath"] {
        let place = value.str_at(&[field]);
        if !place.is_empty() {
            found = true;
            validate_local_path(place, &path.child(field), errors);
            places.take(place, place, errors);
        }
    }
    if !found {
        let detail =
            "specify at least one of credentialBundlePath, keyPath, and certificateChainPath";
        errors.push(FieldError::required(path, detail));
    }
}

/// Validates the annotations that a pod requests in its certificate: keys must have a domain as
/// prefix.
pub fn user_annotations(value: &Value, path: &Path<'_>, errors: &mut Complaints) {
    let Some(annotations) = value.as_object() else {
        return;
    };
    let mut bytes = 0;
    for (key, text) in annotations.iter() {
        bytes += key.len() + text.as_str().map_or(0, str::len);
        let key = key.to_lowercase();
        if key.is_empty() {
            errors.push(FieldError::required(path, ""));
            continue;
        }
        let complaints = names::qualified_name(&key);
        if complaints.is_empty() && !key.contains('/') {
            let detail = "must be a domain-prefixed key (such as \"acme.io/foo\")";
            errors.push(FieldError::invalid(path, key.as_str(), detail));
        }
        complain(errors, path, key.as_str(), complaints);
    }
    if bytes > ANNOTATION_BYTES_MAX {
        errors.push(FieldError::too_long(path, ANNOTATION_BYTES_MAX));
    }
}

/// Validates the name of a signer: a domain, a slash and a path.
pub fn validate_signer(name: &str, path: &Path<'_>, errors: &mut Complaints) {
    if name.is_empty() {
        errors.push(FieldError::required(path, ""));
        return;
    }
    let segments: Vec<&str> = name.split('/').collect();
    let [domain, rest] = segments.as_slice() else {
        let detail =
            "must be a fully qualified domain and path of the form 'example.com/signer-name'";
        errors.push(FieldError::invalid(path, name, detail));
        return;
    };
    if domain.len() > 253 {
        errors.push(FieldError::too_long(path, 253));
    }
    first_bad_label(domain, names::dns1123_label, path, errors);
    if !domain.contains('.') {
        let detail = "should be a domain with at least two segments separated by dots";
        errors.push(FieldError::invalid(path, *domain, detail));
    }
    first_bad_label(rest, names::dns1123_subdomain, path, errors);
    let most = 253 + 1 + 253 + 63 + 1;
    if name.len() > most {
        errors.push(FieldError::too_long(path, most));
    }
}

fn first_bad_label(
    text: &str,
    rule: fn(&str) -> Vec<String>,
    path: &Path<'_>,
    errors: &mut Complaints,
) {
    for label in text.split('.') {
        let complaints = rule(label);
        if !complaints.is_empty() {
            for complaint in complaints {
                let detail = format!("validating label {label:?}: {complaint}");
                errors.push(FieldError::invalid(path, text, detail));
            }
            return;
        }
    }
}

/// Validates variables that come from files: their volume must be an empty directory.
pub fn validate_file_variables(spec: &Value, path: &Path<'_>, errors: &mut Complaints) {
    super::each_container(spec, path, |container, path| {
        let variables = path.child("env");
        for (at, variable) in container.items_at(&["env"]).iter().enumerate() {
            let Some(key) = variable
                .at(&["valueFrom", "fileKeyRef"])
                .filter(|key| !key.is_null())
            else {
                continue;
            };
            let wanted = key.str_at(&["volumeName"]);
            // If several volumes have one name, the last one counts.
            let volumes = spec.items_at(&["volumes"]).iter().rev();
            let volume = volumes
                .into_iter()
                .find(|volume| volume.str_at(&["name"]) == wanted);
            let (variable_path, from, key) = (variables.index(at), "valueFrom", "fileKeyRef");
            let from = variable_path.child(from);
            let key = from.child(key);
            let place = key.child("volumeName");
            match volume {
                None => errors.push(FieldError::not_found(&place, wanted)),
                Some(volume) if !has(volume, "emptyDir") => {
                    let detail = "referenced volume must be of type emptyDir";
                    errors.push(FieldError::invalid(&place, wanted, detail));
                }
                Some(_) => {}
            }
        }
    });
}

/// Returns the length of a list's texts joined by spaces.
pub fn joined_length(object: &Value, list: &str) -> usize {
    let (count, bytes) = texts(&object[list])
        .into_iter()
        .fold((0usize, 0usize), |(count, bytes), text| {
            (count + 1, bytes + text.len())
        });
    bytes + count.saturating_sub(1)
}
