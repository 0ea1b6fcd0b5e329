//! Validation of the source of a PersistentVolume: one function for each kind of source, and a
//! table of all.

use crate::shared::pod::validation::projected::validate_no_backsteps;
use crate::shared::pod::validation::volume_sources::{self as shared, iscsi_name, require};
use crate::shared::validation::domain_names::csi_driver_name;
use polyplane_apimachinery::complaints::Complaints;
use polyplane_apimachinery::field_error::{FieldError, Path};
use polyplane_apimachinery::{Value, names};

/// A check that returns the complaints about a text.
type Rule = fn(&str) -> Vec<String>;

/// One kind of source.
pub struct Source {
    /// The field of the source.
    pub field: &'static str,
    /// The path of the source in errors about its content.
    pub place: &'static str,
    /// The name of the source in the error about a second source.
    pub second: Option<&'static str>,
    /// The check of the content.
    pub check: Check,
}

/// A check of the content of a source.
pub enum Check {
    /// It needs the content alone.
    Plain(fn(&Value, &Path<'_>, &mut Complaints)),
    /// It needs the volume's name too.
    WithName(fn(&Value, &str, &Path<'_>, &mut Complaints)),
}

const fn source(field: &'static str, check: fn(&Value, &Path<'_>, &mut Complaints)) -> Source {
    checked(field, Check::Plain(check))
}

const fn checked(field: &'static str, check: Check) -> Source {
    Source {
        field,
        place: field,
        second: Some(field),
        check,
    }
}

/// All kinds of sources in the order in which they are checked.
pub const SOURCES: [Source; 22] = [
    source("hostPath", shared::host_path),
    Source {
        place: "persistentDisk",
        ..source("gcePersistentDisk", shared::gce_disk)
    },
    source("awsElasticBlockStore", shared::aws_disk),
    source("glusterfs", glusterfs),
    source("flocker", shared::flocker),
    source("nfs", shared::nfs),
    source("rbd", shared::rbd),
    source("quobyte", shared::quobyte),
    Source {
        second: Some("cephFS"),
        ..source("cephfs", shared::ceph_fs)
    },
    checked("iscsi", Check::WithName(iscsi)),
    source("cinder", cinder),
    source("fc", shared::fibre_channel),
    Source {
        second: None,
        ..source("flexVolume", shared::flex)
    },
    source("azureFile", azure_file),
    source("vsphereVolume", |value, path, errors| {
        require(value, &["volumePath"], path, errors)
    }),
    source("photonPersistentDisk", |value, path, errors| {
        require(value, &["pdID"], path, errors)
    }),
    source("portworxVolume", |value, path, errors| {
        require(value, &["volumeID"], path, errors)
    }),
    source("azureDisk", shared::azure_disk),
    source("scaleIO", |value, path, errors| {
        require(value, &["gateway", "system", "volumeName"], path, errors);
    }),
    source("local", local),
    source("storageos", storage_os),
    source("csi", csi),
];

fn by_rule(value: &Value, field: &str, rule: Rule, path: &Path<'_>, errors: &mut Complaints) {
    let text = value.str_at(&[field]);
    for detail in rule(text) {
        errors.push(FieldError::invalid(&path.child(field), text, detail));
    }
}

fn glusterfs(value: &Value, path: &Path<'_>, errors: &mut Complaints) {
    require(value, &["endpoints", "path"], path, errors);
    match value["endpointsNamespace"].as_str() {
        None => {}
        Some("") => {
            let detail = "if the endpointnamespace is set, it must be a valid namespace name";
            errors.push(FieldError::invalid(
                &path.child("endpointsNamespace"),
                "",
                detail,
            ));
        }
        Some(_) => by_rule(
            value,
            "endpointsNamespace",
            names::dns1123_label,
            path,
            errors,
        ),
    }
}

fn iscsi(value: &Value, volume: &str, path: &Path<'_>, errors: &mut Complaints) {
    require(value, &["targetPortal"], path, errors);
    let portal = value.str_at(&["targetPortal"]);
    let initiator = value["initiatorName"].as_str();
    if initiator.is_some() && volume.len() + 1 + portal.len() > 64 {
        let detail = "Total length of <volume name>:<iscsi.targetPortal> must be under 64 characters if iscsi.initiatorName is specified.";
        errors.push(FieldError::invalid(
            &path.child("targetportal"),
            portal,
            detail,
        ));
    }
    let iqn = value.str_at(&["iqn"]);
    if iqn.is_empty() {
        errors.push(FieldError::required(&path.child("iqn"), ""));
    } else if iscsi_name(iqn).is_some() {
        errors.push(FieldError::invalid(
            &path.child("iqn"),
            iqn,
            "must be valid format",
        ));
    }
    shared::lun(value.int_at(&["lun"]).unwrap_or(0), path, errors);
    let secret = &value["secretRef"];
    let secret_path = path.child("secretRef");
    let authenticates =
        value.bool_at(&["chapAuthDiscovery"]) || value.bool_at(&["chapAuthSession"]);
    if authenticates && secret.is_null() {
        errors.push(FieldError::required(&secret_path, ""));
    }
    if !secret.is_null() {
        require(secret, &["name"], &secret_path, errors);
    }
    let Some(initiator) = initiator else { return };
    if iscsi_name(initiator).is_some() {
        let detail = "must be valid format";
        errors.push(FieldError::invalid(
            &path.child("initiatorname"),
            initiator,
            detail,
        ));
    }
}

fn secret_with_namespace(value: &Value, path: &Path<'_>, errors: &mut Complaints) {
    let secret = &value["secretRef"];
    if !secret.is_null() {
        require(
            secret,
            &["name", "namespace"],
            &path.child("secretRef"),
            errors,
        );
    }
}

fn cinder(value: &Value, path: &Path<'_>, errors: &mut Complaints) {
    require(value, &["volumeID"], path, errors);
    secret_with_namespace(value, path, errors);
}

fn azure_file(value: &Value, path: &Path<'_>, errors: &mut Complaints) {
    require(value, &["secretName", "shareName"], path, errors);
    if value["secretNamespace"].as_str() == Some("") {
        errors.push(FieldError::required(&path.child("secretNamespace"), ""));
    }
}

fn local(value: &Value, path: &Path<'_>, errors: &mut Complaints) {
    require(value, &["path"], path, errors);
    validate_no_backsteps(value.str_at(&["path"]), &path.child("path"), errors);
}

fn storage_os(value: &Value, path: &Path<'_>, errors: &mut Complaints) {
    require(value, &["volumeName"], path, errors);
    for field in ["volumeName", "volumeNamespace"] {
        if !value.str_at(&[field]).is_empty() {
            by_rule(value, field, names::dns1123_label, path, errors);
        }
    }
    secret_with_namespace(value, path, errors);
}

fn csi(value: &Value, path: &Path<'_>, errors: &mut Complaints) {
    csi_driver_name(value.str_at(&["driver"]), &path.child("driver"), errors);
    require(value, &["volumeHandle"], path, errors);
    let secrets = [
        "controllerPublishSecretRef",
        "controllerExpandSecretRef",
        "nodePublishSecretRef",
        "nodeExpandSecretRef",
    ];
    for field in secrets.iter().filter(|field| !value[**field].is_null()) {
        let (secret, place) = (&value[*field], path.child(field));
        let rules: [(&str, Rule); 2] = [
            ("name", names::dns1123_subdomain),
            ("namespace", names::dns1123_label),
        ];
        for (part, rule) in rules {
            if secret.str_at(&[part]).is_empty() {
                errors.push(FieldError::required(&place.child(part), ""));
            } else {
                by_rule(secret, part, rule, &place, errors);
            }
        }
    }
}

/// Returns true for a volume whose kind of source supports mount options.
pub fn takes_mount_options(spec: &Value) -> bool {
    const TAKING: [&str; 13] = [
        "gcePersistentDisk",
        "awsElasticBlockStore",
        "glusterfs",
        "nfs",
        "rbd",
        "quobyte",
        "iscsi",
        "cinder",
        "cephfs",
        "azureFile",
        "vsphereVolume",
        "azureDisk",
        "photonPersistentDisk",
    ];
    TAKING.iter().any(|field| !spec[*field].is_null())
}

/// Returns true for a path that is the root, however it is written.
pub fn is_root(text: &str) -> bool {
    text.starts_with('/') && {
        let mut depth = 0usize;
        for part in text.split('/') {
            match part {
                "" | "." => {}
                ".." => depth = depth.saturating_sub(1),
                _ => depth += 1,
            }
        }
        depth == 0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_root_has_many_spellings() {
        assert!(is_root("/") && is_root("/a/..") && is_root("//./"));
        assert!(!is_root("/a") && !is_root("a") && !is_root(""));
    }
}
