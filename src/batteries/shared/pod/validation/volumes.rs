//! Validation of the volumes of a pod and their sources.

use super::volume_sources::{self, require};
use super::{Leniency, PodOptions, claim_template, containers, projected};
use crate::shared::validation::complaints::complain;
use crate::shared::validation::domain_names::csi_driver_name;
use crate::shared::validation::members::has;
use crate::shared::validation::numbers::sign;
use polyplane_apimachinery::Value;
use polyplane_apimachinery::complaints::Complaints;
use polyplane_apimachinery::field_error::{FieldError, Path};
use polyplane_apimachinery::names;
use std::collections::{BTreeMap, BTreeSet};

/// A check of the content of a source.
enum Check {
    Plain(fn(&Value, &Path<'_>, &mut Complaints)),
    /// What is allowed depends on the pod that the volume belongs to.
    ByOptions(fn(&Value, &Path<'_>, &PodOptions, &mut Complaints)),
}

/// A source: its field, the name of its path in complaints about a second source, the name of its
/// path in complaints about itself (upstream mixes some of them up), and its check.
struct Source {
    field: &'static str,
    second: &'static str,
    place: &'static str,
    check: Check,
}

const fn source(field: &'static str, check: fn(&Value, &Path<'_>, &mut Complaints)) -> Source {
    checked(field, Check::Plain(check))
}

const fn checked(field: &'static str, check: Check) -> Source {
    Source {
        field,
        second: field,
        place: field,
        check,
    }
}

/// The sources in upstream's order.
const SOURCES: [Source; 29] = [
    source("hostPath", volume_sources::host_path),
    source("gitRepo", git_repo),
    Source {
        place: "persistentDisk",
        ..source("gcePersistentDisk", volume_sources::gce_disk)
    },
    source("awsElasticBlockStore", volume_sources::aws_disk),
    source("secret", secret),
    source("nfs", volume_sources::nfs),
    source("iscsi", iscsi),
    source("glusterfs", |value, path, errors| {
        require(value, &["endpoints", "path"], path, errors)
    }),
    source("flocker", volume_sources::flocker),
    source("persistentVolumeClaim", |value, path, errors| {
        require(value, &["claimName"], path, errors)
    }),
    source("rbd", volume_sources::rbd),
    source("cinder", cinder),
    Source {
        second: "cephFS",
        ..source("cephfs", volume_sources::ceph_fs)
    },
    source("quobyte", volume_sources::quobyte),
    Source {
        second: "downwarAPI",
        ..source("downwardAPI", projected::downward_api)
    },
    source("fc", volume_sources::fibre_channel),
    source("flexVolume", volume_sources::flex),
    source("configMap", config_map),
    source("azureFile", |value, path, errors| {
        require(value, &["secretName", "shareName"], path, errors)
    }),
    source("vsphereVolume", |value, path, errors| {
        require(value, &["volumePath"], path, errors)
    }),
    source("photonPersistentDisk", |value, path, errors| {
        require(value, &["pdID"], path, errors)
    }),
    source("portworxVolume", |value, path, errors| {
        require(value, &["volumeID"], path, errors)
    }),
    source("azureDisk", volume_sources::azure_disk),
    source("storageos", storage_os),
    checked("projected", Check::ByOptions(projected::validate)),
    source("scaleIO", |value, path, errors| {
        require(value, &["gateway", "system", "volumeName"], path, errors)
    }),
    source("csi", csi),
    source("ephemeral", ephemeral),
    checked("image", Check::ByOptions(image)),
];

/// Validates the volumes of a pod. Returns the valid ones by name.
pub fn validate<'a>(
    volumes: &'a [Value],
    metadata: Option<&Value>,
    path: &Path<'_>,
    options: &PodOptions,
    errors: &mut Complaints,
) -> BTreeMap<&'a str, &'a Value> {
    let pod = metadata.map_or("", |metadata| metadata.str_at(&["name"]));
    let created: BTreeSet<String> = volumes
        .iter()
        .filter(|volume| !pod.is_empty() && has(volume, "ephemeral"))
        .map(|volume| format!("{pod}-{}", volume.str_at(&["name"])))
        .collect();
    let mut sound = BTreeMap::new();
    for (at, volume) in volumes.iter().enumerate() {
        if errors.is_full() {
            break;
        }
        let path = path.index(at);
        let name = volume.str_at(&["name"]);
        let name_path = path.child("name");
        let mut own = Complaints::default();
        validate_source(volume, pod, &path, options, &mut own);
        if name.is_empty() {
            own.push(FieldError::required(&name_path, ""));
        } else {
            complain(&mut own, &name_path, name, names::dns1123_label(name));
        }
        if sound.contains_key(name) {
            own.push(FieldError::duplicate(&name_path, name));
        }
        if own.is_empty() {
            sound.insert(name, volume);
        } else {
            errors.extend(own);
        }
        let claim = volume.str_at(&["persistentVolumeClaim", "claimName"]);
        if created.contains(claim) {
            let detail = "must not reference a PVC that gets created for an ephemeral volume";
            let claim_path = path.child("persistentVolumeClaim");
            errors.push(FieldError::invalid(
                &claim_path.child("claimName"),
                claim,
                detail,
            ));
        }
    }
    sound
}

fn validate_source(
    volume: &Value,
    pod: &str,
    path: &Path<'_>,
    options: &PodOptions,
    errors: &mut Complaints,
) {
    let mut found = has(volume, "emptyDir");
    if found {
        empty_dir(&volume["emptyDir"], &path.child("emptyDir"), errors);
    }
    let name = volume.str_at(&["name"]);
    for source in &SOURCES {
        let value = &volume[source.field];
        if value.is_null() {
            continue;
        }
        if found {
            let detail = "may not specify more than 1 volume type";
            errors.push(FieldError::forbidden(&path.child(source.second), detail));
        } else {
            let place = path.child(source.place);
            match source.check {
                Check::Plain(check) => check(value, &place, errors),
                Check::ByOptions(check) => check(value, &place, options, errors),
            }
            if source.field == "ephemeral" && !pod.is_empty() && !name.is_empty() {
                let claim = format!("{pod}-{name}");
                for complaint in names::dns1123_subdomain(&claim) {
                    let detail = format!("PVC name {claim:?}: {complaint}");
                    errors.push(FieldError::invalid(&path.child("name"), name, detail));
                }
            }
        }
        if source.field == "iscsi" && has(value, "initiatorName") {
            let length = name.len() + 1 + value.str_at(&["targetPortal"]).len();
            if length > 64 {
                let detail = "Total length of <volume name>:<iscsi.targetPortal> must be under 64 characters if iscsi.initiatorName is specified.";
                errors.push(FieldError::invalid(&path.child("name"), name, detail));
            }
        }
        found = true;
    }
    if !found {
        errors.push(FieldError::required(path, "must specify a volume type"));
    }
}

fn empty_dir(value: &Value, path: &Path<'_>, errors: &mut Complaints) {
    if sign(&value["sizeLimit"]) == Some(-1) {
        let detail = "SizeLimit field must be a valid resource quantity";
        errors.push(FieldError::forbidden(&path.child("sizeLimit"), detail));
    }
    if let Some(mode) = value
        .int_at(&["mode"])
        .filter(|mode| !(0..=0o1777).contains(mode))
    {
        let detail = "must be a number between 0 and 01777 (octal), both inclusive";
        errors.push(FieldError::invalid(&path.child("mode"), mode, detail));
    }
}

fn git_repo(value: &Value, path: &Path<'_>, errors: &mut Complaints) {
    require(value, &["repository"], path, errors);
    projected::validate_descending_path(
        value.str_at(&["directory"]),
        &path.child("directory"),
        errors,
    );
}

fn secret(value: &Value, path: &Path<'_>, errors: &mut Complaints) {
    require(value, &["secretName"], path, errors);
    projected::mode_and_items(value, path, errors);
}

fn config_map(value: &Value, path: &Path<'_>, errors: &mut Complaints) {
    require(value, &["name"], path, errors);
    projected::mode_and_items(value, path, errors);
}

fn iscsi(value: &Value, path: &Path<'_>, errors: &mut Complaints) {
    require(value, &["targetPortal"], path, errors);
    let target = value.str_at(&["iqn"]);
    if target.is_empty() {
        errors.push(FieldError::required(&path.child("iqn"), ""));
    } else if let Some(detail) = volume_sources::iscsi_name(target) {
        errors.push(FieldError::invalid(&path.child("iqn"), target, detail));
    }
    volume_sources::lun(value.int_at(&["lun"]).unwrap_or(0), path, errors);
    let chap = value.bool_at(&["chapAuthDiscovery"]) || value.bool_at(&["chapAuthSession"]);
    if chap && !has(value, "secretRef") {
        errors.push(FieldError::required(&path.child("secretRef"), ""));
    }
    if let Some(initiator) = value.get("initiatorName").and_then(Value::as_str)
        && let Some(detail) = volume_sources::iscsi_name(initiator)
    {
        errors.push(FieldError::invalid(
            &path.child("initiatorname"),
            initiator,
            detail,
        ));
    }
}

fn secret_ref(value: &Value, path: &Path<'_>, errors: &mut Complaints) {
    if has(value, "secretRef") {
        require(
            &value["secretRef"],
            &["name"],
            &path.child("secretRef"),
            errors,
        );
    }
}

fn cinder(value: &Value, path: &Path<'_>, errors: &mut Complaints) {
    require(value, &["volumeID"], path, errors);
    secret_ref(value, path, errors);
}

fn storage_os(value: &Value, path: &Path<'_>, errors: &mut Complaints) {
    let name = value.str_at(&["volumeName"]);
    if name.is_empty() {
        errors.push(FieldError::required(&path.child("volumeName"), ""));
    } else {
        complain(
            errors,
            &path.child("volumeName"),
            name,
            names::dns1123_label(name),
        );
    }
    let namespace = value.str_at(&["volumeNamespace"]);
    if !namespace.is_empty() {
        complain(
            errors,
            &path.child("volumeNamespace"),
            namespace,
            names::dns1123_label(namespace),
        );
    }
    secret_ref(value, path, errors);
}

fn csi(value: &Value, path: &Path<'_>, errors: &mut Complaints) {
    csi_driver_name(value.str_at(&["driver"]), &path.child("driver"), errors);
    let secret = &value["nodePublishSecretRef"];
    if secret.is_null() {
        return;
    }
    let name = secret.str_at(&["name"]);
    if name.is_empty() {
        errors.push(FieldError::required(
            &path.child("nodePublishSecretRef").child("name"),
            "",
        ));
    } else {
        complain(
            errors,
            &path.child("name"),
            name,
            names::dns1123_subdomain(name),
        );
    }
}

fn ephemeral(value: &Value, path: &Path<'_>, errors: &mut Complaints) {
    let template = &value["volumeClaimTemplate"];
    let path = path.child("volumeClaimTemplate");
    if template.is_null() {
        errors.push(FieldError::required(&path, ""));
    } else {
        claim_template::validate(template, &path, errors);
    }
}

fn image(value: &Value, path: &Path<'_>, options: &PodOptions, errors: &mut Complaints) {
    if value.str_at(&["reference"]).is_empty() && !options.allows(Leniency::EmptyImageReference) {
        errors.push(FieldError::required(&path.child("reference"), ""));
    }
    containers::validate_pull_policy(
        value.str_at(&["pullPolicy"]),
        &path.child("pullPolicy"),
        errors,
    );
}
