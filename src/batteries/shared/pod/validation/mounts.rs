//! Validation of volumes in the file system of a container, and as block devices.

use super::projected::validate_descending_path;
use crate::shared::validation::complaints::named;
use crate::shared::validation::members::{has, texts};
use polyplane_apimachinery::Value;
use polyplane_apimachinery::complaints::Complaints;
use polyplane_apimachinery::field_error::{Bad, FieldError, Path};
use std::collections::{BTreeMap, BTreeSet};

fn place_by_name<'a>(items: &'a [Value], place: &str) -> BTreeMap<&'a str, &'a str> {
    items
        .iter()
        .map(|item| (item.str_at(&["name"]), item.str_at(&[place])))
        .collect()
}

/// Validates the mounts of a container.
pub fn validate(
    container: &Value,
    volumes: &BTreeMap<&str, &Value>,
    path: &Path<'_>,
    errors: &mut Complaints,
) {
    let devices = place_by_name(container.items_at(&["volumeDevices"]), "devicePath");
    let mut seen = BTreeSet::new();
    for (at, mount) in container.items_at(&["volumeMounts"]).iter().enumerate() {
        if errors.is_full() {
            break;
        }
        let list_path = path;
        let path = path.index(at);
        let (name, place) = (mount.str_at(&["name"]), mount.str_at(&["mountPath"]));
        let (name_path, place_path) = (path.child("name"), path.child("mountPath"));
        if name.is_empty() {
            errors.push(FieldError::required(&name_path, ""));
        }
        if !volumes.contains_key(name) {
            errors.push(FieldError::not_found(&name_path, name));
        }
        if place.is_empty() {
            errors.push(FieldError::required(&place_path, ""));
        }
        if !seen.insert(place) {
            errors.push(FieldError::invalid(&place_path, place, "must be unique"));
        }
        if devices.contains_key(name) {
            errors.push(FieldError::invalid(
                &name_path,
                name,
                "must not already exist in volumeDevices",
            ));
        }
        if devices.values().any(|device| *device == place) {
            let detail = "must not already exist as a path in volumeDevices";
            errors.push(FieldError::invalid(&place_path, place, detail));
        }
        validate_sub_paths(mount, list_path, &path, errors);
        validate_modes(mount, container, list_path, errors);
        validate_options(
            mount,
            volumes.get(name).copied(),
            &path.child("bindMountOptions"),
            errors,
        );
    }
}

fn validate_sub_paths(
    mount: &Value,
    list_path: &Path<'_>,
    path: &Path<'_>,
    errors: &mut Complaints,
) {
    let (plain, expression) = (mount.str_at(&["subPath"]), mount.str_at(&["subPathExpr"]));
    if !plain.is_empty() {
        validate_descending_path(plain, &list_path.child("subPath"), errors);
    }
    if !expression.is_empty() {
        if !plain.is_empty() {
            let detail = "subPathExpr and subPath are mutually exclusive";
            errors.push(FieldError::invalid(
                &path.child("subPathExpr"),
                expression,
                detail,
            ));
        }
        validate_descending_path(expression, &list_path.child("subPathExpr"), errors);
    }
}

fn validate_modes(mount: &Value, container: &Value, path: &Path<'_>, errors: &mut Complaints) {
    let propagation = mount.get("mountPropagation").and_then(Value::as_str);
    if let Some(mode) = propagation {
        let path = path.child("mountPropagation");
        let known = ["Bidirectional", "HostToContainer", "None"];
        if !known.contains(&mode) {
            errors.push(FieldError::not_supported(&path, named(mode), &known));
        }
        if mode == "Bidirectional" && !container.bool_at(&["securityContext", "privileged"]) {
            let detail =
                "Bidirectional mount propagation is available only to privileged containers";
            errors.push(FieldError::forbidden(&path, detail));
        }
    }
    let Some(mode) = mount.get("recursiveReadOnly").and_then(Value::as_str) else {
        return;
    };
    let path = path.child("recursiveReadOnly");
    match mode {
        "Disabled" => {}
        "Enabled" | "IfPossible" => {
            if !mount.bool_at(&["readOnly"]) {
                errors.push(FieldError::forbidden(
                    &path,
                    "may only be specified when readOnly is true",
                ));
            }
            if propagation.is_some_and(|mode| mode != "None") {
                let detail = "may only be specified when mountPropagation is None or not specified";
                errors.push(FieldError::forbidden(&path, detail));
            }
        }
        _ => {
            let known = ["Disabled", "Enabled", "IfPossible"];
            errors.push(FieldError::not_supported(&path, named(mode), &known));
        }
    }
}

fn validate_options(
    mount: &Value,
    volume: Option<&Value>,
    path: &Path<'_>,
    errors: &mut Complaints,
) {
    let known = ["nodev", "noexec", "nosuid"];
    let mut seen = BTreeSet::new();
    for (at, option) in texts(&mount["bindMountOptions"]).into_iter().enumerate() {
        if !known.contains(&option) {
            errors.push(FieldError::not_supported(&path.index(at), option, &known));
        }
        if !seen.insert(option) {
            errors.push(FieldError::duplicate(&path.index(at), option));
        }
    }
    if !seen.is_empty() && volume.is_some_and(|volume| has(volume, "image")) {
        let bad = Bad::Json(mount["bindMountOptions"].clone());
        errors.push(FieldError::invalid(
            path,
            bad,
            "bindMountOptions may not be used with image volumes",
        ));
    }
}

/// Validates the block devices of a container.
pub fn validate_devices(
    container: &Value,
    volumes: &BTreeMap<&str, &Value>,
    path: &Path<'_>,
    errors: &mut Complaints,
) {
    let mounts = place_by_name(container.items_at(&["volumeMounts"]), "mountPath");
    let (mut places, mut names) = (BTreeSet::new(), BTreeSet::new());
    for (at, device) in container.items_at(&["volumeDevices"]).iter().enumerate() {
        if errors.is_full() {
            break;
        }
        let path = path.index(at);
        let (name, place) = (device.str_at(&["name"]), device.str_at(&["devicePath"]));
        let (name_path, place_path) = (path.child("name"), path.child("devicePath"));
        let volume = volumes.get(name);
        let claimed = volume
            .is_some_and(|volume| has(volume, "persistentVolumeClaim") || has(volume, "ephemeral"));
        if name.is_empty() {
            errors.push(FieldError::required(&name_path, ""));
        }
        if names.contains(name) {
            errors.push(FieldError::invalid(&name_path, name, "must be unique"));
        }
        if volume.is_none() {
            errors.push(FieldError::not_found(&name_path, name));
        } else if !claimed {
            let detail = "can only use volume source type of PersistentVolumeClaim or Ephemeral for block mode";
            errors.push(FieldError::invalid(&name_path, name, detail));
        }
        if place.is_empty() {
            errors.push(FieldError::required(&place_path, ""));
        }
        if places.contains(place) {
            errors.push(FieldError::invalid(&place_path, place, "must be unique"));
        }
        if place.split('/').any(|step| step == "..") {
            errors.push(FieldError::invalid(
                &place_path,
                place,
                "can not contain backsteps ('..')",
            ));
        } else {
            places.insert(place);
        }
        if mounts.contains_key(name) {
            errors.push(FieldError::invalid(
                &name_path,
                name,
                "must not already exist in volumeMounts",
            ));
        }
        if mounts.values().any(|mount| *mount == place) {
            let detail = "must not already exist as a path in volumeMounts";
            errors.push(FieldError::invalid(&place_path, place, detail));
        }
        if !name.is_empty() {
            names.insert(name);
        }
    }
}
