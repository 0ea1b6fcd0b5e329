//! Validation of volume sources whose drivers have rules of their own.

use super::PodOptions;
use super::volumes::require;
use crate::shared::validation::complaints::named;
use crate::shared::validation::members::has;
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

fn iscsi_name(name: &str) -> Option<&'static str> {
    let sound = match name.get(..3) {
        Some("iqn") => IQN.is_match(name),
        Some("eui") => EUI.is_match(name),
        Some("naa") => NAA.is_match(name),
        _ => return Some("must be valid format starting with iqn, eui, or naa"),
    };
    (!sound).then_some("must be valid format")
}

/// Validates a volume of an iSCSI target.
pub fn iscsi(value: &Value, path: &Path<'_>, _: &PodOptions, errors: &mut Complaints) {
    require(value, &["targetPortal"], path, errors);
    let target = value.str_at(&["iqn"]);
    if target.is_empty() {
        errors.push(FieldError::required(&path.child("iqn"), ""));
    } else if let Some(detail) = iscsi_name(target) {
        errors.push(FieldError::invalid(&path.child("iqn"), target, detail));
    }
    let lun = value.int_at(&["lun"]).unwrap_or(0);
    if !(0..=255).contains(&lun) {
        errors.push(FieldError::invalid(
            &path.child("lun"),
            lun,
            names::inclusive_range(0, 255),
        ));
    }
    let chap = value.bool_at(&["chapAuthDiscovery"]) || value.bool_at(&["chapAuthSession"]);
    if chap && !has(value, "secretRef") {
        errors.push(FieldError::required(&path.child("secretRef"), ""));
    }
    if let Some(initiator) = value.get("initiatorName").and_then(Value::as_str)
        && let Some(detail) = iscsi_name(initiator)
    {
        errors.push(FieldError::invalid(
            &path.child("initiatorname"),
            initiator,
            detail,
        ));
    }
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
pub fn quobyte(value: &Value, path: &Path<'_>, _: &PodOptions, errors: &mut Complaints) {
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

/// Validates a volume behind fibre channel.
pub fn fibre_channel(value: &Value, path: &Path<'_>, _: &PodOptions, errors: &mut Complaints) {
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
        Some(lun) if !(0..=255).contains(&lun) => {
            errors.push(FieldError::invalid(
                &path.child("lun"),
                lun,
                names::inclusive_range(0, 255),
            ));
        }
        Some(_) => {}
    }
}

/// Validates a volume whose driver is a program on the node.
pub fn flex(value: &Value, path: &Path<'_>, _: &PodOptions, errors: &mut Complaints) {
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
pub fn azure_disk(value: &Value, path: &Path<'_>, _: &PodOptions, errors: &mut Complaints) {
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
