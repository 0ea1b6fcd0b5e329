//! Validation of the sources that volumes of pods and PersistentVolumes have in common.

use super::projected::validate_no_backsteps;
use crate::shared::validation::complaints::named;
use polyplane_apimachinery::Value;
use polyplane_apimachinery::complaints::Complaints;
use polyplane_apimachinery::field_error::{Bad, FieldError, Path};
use polyplane_apimachinery::names;
use regex::Regex;
use std::sync::LazyLock;

static IQN: LazyLock<Regex> = LazyLock::new(|| {
    pattern(r"iqn\.[0-9]{4}-[0-9]{2}\.([[:alnum:]\-.]+)(:[^,;*&$|\t\n\x0C\r ]+)$")
});
static EUI: LazyLock<Regex> = LazyLock::new(|| pattern(r"^eui.[[:alnum:]]{16}$"));
static NAA: LazyLock<Regex> = LazyLock::new(|| pattern(r"^naa.[[:alnum:]]{32}$"));

fn pattern(text: &str) -> Regex {
    Regex::new(text).expect("a pattern written here is sound")
}

/// Returns the complaint about the name of an iSCSI node, which has one of three forms.
pub fn iscsi_name(name: &str) -> Option<&'static str> {
    let sound = match name.get(..3) {
        Some("iqn") => IQN.is_match(name),
        Some("eui") => EUI.is_match(name),
        Some("naa") => NAA.is_match(name),
        _ => return Some("must be valid format starting with iqn, eui, or naa"),
    };
    (!sound).then_some("must be valid format")
}

/// Checks that these texts are present.
pub fn require(value: &Value, fields: &[&str], path: &Path<'_>, errors: &mut Complaints) {
    for field in fields {
        if value.str_at(&[field]).is_empty() {
            errors.push(FieldError::required(&path.child(field), ""));
        }
    }
}

/// The types of files on the host.
const HOST_PATH_TYPES: [&str; 8] = [
    "",
    "BlockDevice",
    "CharDevice",
    "Directory",
    "DirectoryOrCreate",
    "File",
    "FileOrCreate",
    "Socket",
];

/// Validates a file or folder of the host.
pub fn host_path(value: &Value, path: &Path<'_>, errors: &mut Complaints) {
    let place = value.str_at(&["path"]);
    if place.is_empty() {
        errors.push(FieldError::required(&path.child("path"), ""));
        return;
    }
    validate_no_backsteps(place, &path.child("path"), errors);
    if let Some(kind) = value
        .get("type")
        .and_then(Value::as_str)
        .filter(|kind| !HOST_PATH_TYPES.contains(kind))
    {
        errors.push(FieldError::not_supported(
            &path.child("type"),
            named(kind),
            &HOST_PATH_TYPES,
        ));
    }
}

/// Validates a disk of Google Compute Engine.
pub fn gce_disk(value: &Value, path: &Path<'_>, errors: &mut Complaints) {
    require(value, &["pdName"], path, errors);
    partition(value, path, errors);
}

/// Validates a volume of Elastic Block Store.
pub fn aws_disk(value: &Value, path: &Path<'_>, errors: &mut Complaints) {
    require(value, &["volumeID"], path, errors);
    partition(value, path, errors);
}

fn partition(value: &Value, path: &Path<'_>, errors: &mut Complaints) {
    let number = value.int_at(&["partition"]).unwrap_or(0);
    if !(0..=255).contains(&number) {
        errors.push(FieldError::invalid(
            &path.child("partition"),
            number,
            names::inclusive_range(1, 255),
        ));
    }
}

/// Validates a folder of an NFS server.
pub fn nfs(value: &Value, path: &Path<'_>, errors: &mut Complaints) {
    require(value, &["server", "path"], path, errors);
    let place = value.str_at(&["path"]);
    if !place.starts_with('/') {
        errors.push(FieldError::invalid(
            &path.child("path"),
            place,
            "must be an absolute path",
        ));
    }
}

/// Validates a dataset of Flocker.
pub fn flocker(value: &Value, path: &Path<'_>, errors: &mut Complaints) {
    let (name, uuid) = (
        value.str_at(&["datasetName"]),
        value.str_at(&["datasetUUID"]),
    );
    if name.is_empty() && uuid.is_empty() {
        errors.push(FieldError::required(
            path,
            "one of datasetName and datasetUUID is required",
        ));
    }
    if !name.is_empty() && !uuid.is_empty() {
        let detail = "datasetName and datasetUUID can not be specified simultaneously";
        errors.push(FieldError::invalid(path, "resource", detail));
    }
    if name.contains('/') {
        errors.push(FieldError::invalid(
            &path.child("datasetName"),
            name,
            "must not contain '/'",
        ));
    }
}

fn monitors(value: &Value, path: &Path<'_>, errors: &mut Complaints) {
    if value.items_at(&["monitors"]).is_empty() {
        errors.push(FieldError::required(&path.child("monitors"), ""));
    }
}

/// Validates a block device of Ceph.
pub fn rbd(value: &Value, path: &Path<'_>, errors: &mut Complaints) {
    monitors(value, path, errors);
    require(value, &["image"], path, errors);
}

/// Validates a file system of Ceph.
pub fn ceph_fs(value: &Value, path: &Path<'_>, errors: &mut Complaints) {
    monitors(value, path, errors);
}

/// Returns true for `host:port`, with an IPv6 host in brackets.
fn is_host_port(text: &str) -> bool {
    let Some((host, port)) = text.rsplit_once(':') else {
        return false;
    };
    if port.contains(['[', ']']) {
        return false;
    }
    match host.strip_prefix('[') {
        Some(inner) => inner
            .strip_suffix(']')
            .is_some_and(|inner| !inner.contains(['[', ']'])),
        None => !host.contains([':', '[', ']']),
    }
}

/// Validates a volume of Quobyte.
pub fn quobyte(value: &Value, path: &Path<'_>, errors: &mut Complaints) {
    let registry = value.str_at(&["registry"]);
    let pairs = "must be a host:port pair or multiple pairs separated by commas";
    if registry.is_empty() {
        errors.push(FieldError::required(&path.child("registry"), pairs));
    } else if value.str_at(&["tenant"]).len() > 64 {
        let detail = "must be a UUID and may not exceed a length of 64 characters";
        errors.push(FieldError::required(&path.child("tenant"), detail));
    } else {
        for _ in registry.split(',').filter(|pair| !is_host_port(pair)) {
            errors.push(FieldError::invalid(
                &path.child("registry"),
                registry,
                pairs,
            ));
        }
    }
    require(value, &["volume"], path, errors);
}

/// Checks the number of a logical unit, a field of the source at `path`.
pub fn lun(number: i64, path: &Path<'_>, errors: &mut Complaints) {
    if !(0..=255).contains(&number) {
        errors.push(FieldError::invalid(
            &path.child("lun"),
            number,
            names::inclusive_range(0, 255),
        ));
    }
}

/// Validates a volume behind fibre channel.
pub fn fibre_channel(value: &Value, path: &Path<'_>, errors: &mut Complaints) {
    let (targets, ids) = (value.items_at(&["targetWWNs"]), value.items_at(&["wwids"]));
    let targets_path = path.child("targetWWNs");
    if targets.is_empty() && ids.is_empty() {
        errors.push(FieldError::required(
            &targets_path,
            "must specify either targetWWNs or wwids, but not both",
        ));
    }
    if targets.is_empty() {
        return;
    }
    if !ids.is_empty() {
        let detail = "targetWWNs and wwids can not be specified simultaneously";
        errors.push(FieldError::invalid(
            &targets_path,
            Bad::Json(value["targetWWNs"].clone()),
            detail,
        ));
    }
    match value.int_at(&["lun"]) {
        None => errors.push(FieldError::required(
            &path.child("lun"),
            "lun is required if targetWWNs is specified",
        )),
        Some(number) => lun(number, path, errors),
    }
}

/// Validates a volume whose driver is a program on the node.
pub fn flex(value: &Value, path: &Path<'_>, errors: &mut Complaints) {
    require(value, &["driver"], path, errors);
    let options_path = path.child("options");
    for key in value["options"]
        .as_object()
        .into_iter()
        .flat_map(|options| options.keys())
    {
        let domain = key.split_once('/').map_or(key, |(domain, _)| domain);
        let domain = format!(".{}", domain.to_lowercase());
        if domain.ends_with(".kubernetes.io") || domain.ends_with(".k8s.io") {
            let detail = "kubernetes.io and k8s.io namespaces are reserved";
            errors.push(FieldError::invalid(&options_path.key(key), key, detail));
        }
    }
}

/// Validates a disk of Azure.
pub fn azure_disk(value: &Value, path: &Path<'_>, errors: &mut Complaints) {
    require(value, &["diskName", "diskURI"], path, errors);
    let modes = ["None", "ReadOnly", "ReadWrite"];
    if let Some(mode) = value
        .get("cachingMode")
        .and_then(Value::as_str)
        .filter(|mode| !modes.contains(mode))
    {
        errors.push(FieldError::not_supported(
            &path.child("cachingMode"),
            named(mode),
            &modes,
        ));
    }
    let Some(kind) = value.get("kind").and_then(Value::as_str) else {
        return;
    };
    let kinds = ["Dedicated", "Managed", "Shared"];
    if !kinds.contains(&kind) {
        errors.push(FieldError::not_supported(
            &path.child("kind"),
            named(kind),
            &kinds,
        ));
    }
    let uri = value.str_at(&["diskURI"]);
    let (start, form) = if kind == "Managed" {
        (
            "/subscriptions/",
            "/subscriptions/{sub-id}/resourcegroups/{group-name}/providers/microsoft.compute/disks/{disk-id}",
        )
    } else {
        (
            "https://",
            "https://{account-name}.blob.core.windows.net/{container-name}/{disk-name}.vhd",
        )
    };
    if !uri.starts_with(start) {
        errors.push(FieldError::not_supported(
            &path.child("diskURI"),
            uri,
            &[form],
        ));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_of_iscsi_nodes_have_three_forms() {
        for good in [
            "iqn.2001-04.com.example:storage.disk1",
            "iqn:iqn.2001-04.com.example:x",
            "eui.0123456789ABCDEF",
            "naa.0123456789ABCDEF0123456789ABCDEF",
        ] {
            assert_eq!(iscsi_name(good), None, "{good}");
        }
        for bad in [
            "iqn.2001-04.com.example",
            "iqn.2001-4.x:y",
            "eui.01",
            "naa.1",
            "x",
            "iqn.2001-04.a:b c",
        ] {
            assert!(iscsi_name(bad).is_some(), "{bad}");
        }
    }
}
