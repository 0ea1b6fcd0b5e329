//! Validation of the source of a PersistentVolume: one function for each kind of source, and a
//! table of all.

use polyplane_apimachinery::complaints::Complaints;
use polyplane_apimachinery::field_error::{Bad, FieldError, Path};
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
    /// Checks the content, given the volume's name.
    pub check: fn(&Value, &str, &Path<'_>, &mut Complaints),
}

const fn source(
    field: &'static str,
    check: fn(&Value, &str, &Path<'_>, &mut Complaints),
) -> Source {
    Source {
        field,
        place: field,
        second: Some(field),
        check,
    }
}

/// All kinds of sources in the order in which they are checked.
pub const SOURCES: [Source; 22] = [
    source("hostPath", host_path),
    Source {
        place: "persistentDisk",
        ..source("gcePersistentDisk", gce_disk)
    },
    source("awsElasticBlockStore", aws_disk),
    source("glusterfs", glusterfs),
    source("flocker", flocker),
    source("nfs", nfs),
    source("rbd", rbd),
    source("quobyte", quobyte),
    Source {
        second: Some("cephFS"),
        ..source("cephfs", cephfs)
    },
    source("iscsi", iscsi),
    source("cinder", cinder),
    source("fc", fibre_channel),
    Source {
        second: None,
        ..source("flexVolume", flex)
    },
    source("azureFile", azure_file),
    source("vsphereVolume", |value, _, path, errors| {
        require(value, &["volumePath"], path, errors)
    }),
    source("photonPersistentDisk", |value, _, path, errors| {
        require(value, &["pdID"], path, errors)
    }),
    source("portworxVolume", |value, _, path, errors| {
        require(value, &["volumeID"], path, errors)
    }),
    source("azureDisk", azure_disk),
    source("scaleIO", |value, _, path, errors| {
        require(value, &["gateway", "system", "volumeName"], path, errors);
    }),
    source("local", local),
    source("storageos", storage_os),
    source("csi", csi),
];

fn require(value: &Value, fields: &[&str], path: &Path<'_>, errors: &mut Complaints) {
    for field in fields {
        if value.str_at(&[field]).is_empty() {
            errors.push(FieldError::required(&path.child(field), ""));
        }
    }
}

fn require_items(value: &Value, field: &str, path: &Path<'_>, errors: &mut Complaints) {
    if value.items_at(&[field]).is_empty() {
        errors.push(FieldError::required(&path.child(field), ""));
    }
}

fn by_rule(value: &Value, field: &str, rule: Rule, path: &Path<'_>, errors: &mut Complaints) {
    let text = value.str_at(&[field]);
    for detail in rule(text) {
        errors.push(FieldError::invalid(&path.child(field), text, detail));
    }
}

fn in_range(
    value: i64,
    range: (i64, i64),
    words: (i64, i64),
    path: &Path<'_>,
    errors: &mut Complaints,
) {
    if value < range.0 || value > range.1 {
        let detail = names::inclusive_range(words.0, words.1);
        errors.push(FieldError::invalid(path, value, detail));
    }
}

/// Checks that a path does not lead upwards.
pub fn no_backsteps(text: &str, path: &Path<'_>, errors: &mut Complaints) {
    if text.split('/').any(|part| part == "..") {
        errors.push(FieldError::invalid(path, text, "must not contain '..'"));
    }
}

fn host_path(value: &Value, _: &str, path: &Path<'_>, errors: &mut Complaints) {
    let text = value.str_at(&["path"]);
    if text.is_empty() {
        errors.push(FieldError::required(&path.child("path"), ""));
        return;
    }
    no_backsteps(text, &path.child("path"), errors);
    let kinds = [
        "",
        "BlockDevice",
        "CharDevice",
        "Directory",
        "DirectoryOrCreate",
        "File",
        "FileOrCreate",
        "Socket",
    ];
    if let Some(kind) = value["type"].as_str().filter(|kind| !kinds.contains(kind)) {
        errors.push(FieldError::not_supported(
            &path.child("type"),
            Bad::Json(kind.into()),
            &kinds,
        ));
    }
}

fn partition(value: &Value, path: &Path<'_>, errors: &mut Complaints) {
    let partition = value.int_at(&["partition"]).unwrap_or(0);
    in_range(
        partition,
        (0, 255),
        (1, 255),
        &path.child("partition"),
        errors,
    );
}

fn gce_disk(value: &Value, _: &str, path: &Path<'_>, errors: &mut Complaints) {
    require(value, &["pdName"], path, errors);
    partition(value, path, errors);
}

fn aws_disk(value: &Value, _: &str, path: &Path<'_>, errors: &mut Complaints) {
    require(value, &["volumeID"], path, errors);
    partition(value, path, errors);
}

fn glusterfs(value: &Value, _: &str, path: &Path<'_>, errors: &mut Complaints) {
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

fn flocker(value: &Value, _: &str, path: &Path<'_>, errors: &mut Complaints) {
    let name = value.str_at(&["datasetName"]);
    match (name.is_empty(), value.str_at(&["datasetUUID"]).is_empty()) {
        (true, true) => {
            errors.push(FieldError::required(
                path,
                "one of datasetName and datasetUUID is required",
            ));
        }
        (false, false) => {
            let detail = "datasetName and datasetUUID can not be specified simultaneously";
            errors.push(FieldError::invalid(path, "resource", detail));
        }
        _ => {}
    }
    if name.contains('/') {
        errors.push(FieldError::invalid(
            &path.child("datasetName"),
            name,
            "must not contain '/'",
        ));
    }
}

fn nfs(value: &Value, _: &str, path: &Path<'_>, errors: &mut Complaints) {
    require(value, &["server", "path"], path, errors);
    let text = value.str_at(&["path"]);
    if !text.starts_with('/') {
        errors.push(FieldError::invalid(
            &path.child("path"),
            text,
            "must be an absolute path",
        ));
    }
}

fn rbd(value: &Value, _: &str, path: &Path<'_>, errors: &mut Complaints) {
    require_items(value, "monitors", path, errors);
    require(value, &["image"], path, errors);
}

fn quobyte(value: &Value, _: &str, path: &Path<'_>, errors: &mut Complaints) {
    let registry = value.str_at(&["registry"]);
    let pairs = "must be a host:port pair or multiple pairs separated by commas";
    if registry.is_empty() {
        errors.push(FieldError::required(&path.child("registry"), pairs));
    } else if value.str_at(&["tenant"]).len() >= 65 {
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

/// Returns true for `host:port` and `[address]:port`, as Go splits them.
fn is_host_port(pair: &str) -> bool {
    let Some((host, port)) = pair.rsplit_once(':') else {
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

fn cephfs(value: &Value, _: &str, path: &Path<'_>, errors: &mut Complaints) {
    require_items(value, "monitors", path, errors);
}

/// Returns true for a name of an iSCSI node in one of its three forms.
fn is_iscsi_name(name: &str) -> bool {
    let numbered = |prefix: &str, length: usize| {
        let digits = name.strip_prefix(prefix).and_then(|rest| {
            let mut chars = rest.chars();
            chars
                .next()
                .filter(|separator| *separator != '\n')
                .map(|_| chars.as_str())
        });
        digits.is_some_and(|rest| {
            rest.len() == length && rest.bytes().all(|byte| byte.is_ascii_alphanumeric())
        })
    };
    if name.starts_with("iqn") {
        return is_qualified_name(name);
    }
    numbered("eui", 16) || numbered("naa", 32)
}

/// Returns true for `iqn.2001-04.com.example:unit`.
fn is_qualified_name(name: &str) -> bool {
    let parsed = name
        .strip_prefix("iqn.")
        .and_then(|rest| rest.split_at_checked(7));
    let Some((date, rest)) = parsed else {
        return false;
    };
    let date_fits = date.bytes().enumerate().all(|(at, byte)| match at {
        4 => byte == b'-',
        _ => byte.is_ascii_digit(),
    });
    let Some((authority, unit)) = rest.strip_prefix('.').and_then(|rest| rest.split_once(':'))
    else {
        return false;
    };
    date_fits
        && !authority.is_empty()
        && authority
            .bytes()
            .all(|byte| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'.'))
        && !unit.is_empty()
        && !unit.contains(|char: char| {
            matches!(char, ',' | ';' | '*' | '&' | '$' | '|') || char.is_ascii_whitespace()
        })
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
    } else if !is_iscsi_name(iqn) {
        errors.push(FieldError::invalid(
            &path.child("iqn"),
            iqn,
            "must be valid format",
        ));
    }
    let lun = value.int_at(&["lun"]).unwrap_or(0);
    in_range(lun, (0, 255), (0, 255), &path.child("lun"), errors);
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
    let prefixed = ["iqn", "eui", "naa"]
        .iter()
        .any(|prefix| initiator.starts_with(prefix));
    if !prefixed || !is_iscsi_name(initiator) {
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

fn cinder(value: &Value, _: &str, path: &Path<'_>, errors: &mut Complaints) {
    require(value, &["volumeID"], path, errors);
    secret_with_namespace(value, path, errors);
}

fn fibre_channel(value: &Value, _: &str, path: &Path<'_>, errors: &mut Complaints) {
    let targets = value.items_at(&["targetWWNs"]);
    let place = path.child("targetWWNs");
    match (targets.is_empty(), value.items_at(&["wwids"]).is_empty()) {
        (true, true) => {
            let detail = "must specify either targetWWNs or wwids, but not both";
            errors.push(FieldError::required(&place, detail));
        }
        (false, false) => {
            let detail = "targetWWNs and wwids can not be specified simultaneously";
            errors.push(FieldError::invalid(
                &place,
                Bad::Json(value["targetWWNs"].clone()),
                detail,
            ));
        }
        _ => {}
    }
    if targets.is_empty() {
        return;
    }
    match value.int_at(&["lun"]) {
        None => {
            let detail = "lun is required if targetWWNs is specified";
            errors.push(FieldError::required(&path.child("lun"), detail));
        }
        Some(lun) => in_range(lun, (0, 255), (0, 255), &path.child("lun"), errors),
    }
}

fn flex(value: &Value, _: &str, path: &Path<'_>, errors: &mut Complaints) {
    require(value, &["driver"], path, errors);
    for (key, _) in crate::core::config_map::members(&value["options"]) {
        let domain = format!(".{}", key.split('/').next().unwrap_or("").to_lowercase());
        if domain.ends_with(".kubernetes.io") || domain.ends_with(".k8s.io") {
            let detail = "kubernetes.io and k8s.io namespaces are reserved";
            errors.push(FieldError::invalid(
                &path.child("options").key(key),
                key,
                detail,
            ));
        }
    }
}

fn azure_file(value: &Value, _: &str, path: &Path<'_>, errors: &mut Complaints) {
    require(value, &["secretName", "shareName"], path, errors);
    if value["secretNamespace"].as_str() == Some("") {
        errors.push(FieldError::required(&path.child("secretNamespace"), ""));
    }
}

fn azure_disk(value: &Value, _: &str, path: &Path<'_>, errors: &mut Complaints) {
    require(value, &["diskName", "diskURI"], path, errors);
    for (field, valid) in [
        ("cachingMode", ["None", "ReadOnly", "ReadWrite"]),
        ("kind", ["Dedicated", "Managed", "Shared"]),
    ] {
        if let Some(given) = value[field].as_str().filter(|given| !valid.contains(given)) {
            errors.push(FieldError::not_supported(
                &path.child(field),
                Bad::Json(given.into()),
                &valid,
            ));
        }
    }
    let Some(kind) = value["kind"].as_str() else {
        return;
    };
    let uri = value.str_at(&["diskURI"]);
    let (prefix, form) = if kind == "Managed" {
        let form = "/subscriptions/{sub-id}/resourcegroups/{group-name}/providers/microsoft.compute/disks/{disk-id}";
        ("/subscriptions/", form)
    } else {
        (
            "https://",
            "https://{account-name}.blob.core.windows.net/{container-name}/{disk-name}.vhd",
        )
    };
    if !uri.starts_with(prefix) {
        errors.push(FieldError::not_supported(
            &path.child("diskURI"),
            uri,
            &[form],
        ));
    }
}

fn local(value: &Value, _: &str, path: &Path<'_>, errors: &mut Complaints) {
    require(value, &["path"], path, errors);
    no_backsteps(value.str_at(&["path"]), &path.child("path"), errors);
}

fn storage_os(value: &Value, _: &str, path: &Path<'_>, errors: &mut Complaints) {
    require(value, &["volumeName"], path, errors);
    for field in ["volumeName", "volumeNamespace"] {
        if !value.str_at(&[field]).is_empty() {
            by_rule(value, field, names::dns1123_label, path, errors);
        }
    }
    secret_with_namespace(value, path, errors);
}

/// Checks the name of a CSI driver.
pub fn csi_driver(name: &str, path: &Path<'_>, errors: &mut Complaints) {
    if name.is_empty() {
        errors.push(FieldError::required(path, ""));
        return;
    }
    if name.len() > 63 {
        errors.push(FieldError::too_long(path, 63));
    }
    for detail in names::dns1123_subdomain(&name.to_lowercase()) {
        errors.push(FieldError::invalid(path, name, detail));
    }
}

fn csi(value: &Value, _: &str, path: &Path<'_>, errors: &mut Complaints) {
    csi_driver(value.str_at(&["driver"]), &path.child("driver"), errors);
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
    fn names_of_iscsi_nodes_have_three_forms() {
        for good in [
            "iqn.2001-04.com.example:storage.disk1",
            "eui.0123456789ABCDEF",
        ] {
            assert!(is_iscsi_name(good), "{good}");
        }
        for bad in [
            "iqn.2001-04.com.example",
            "iqn.2001-4.x:y",
            "eui.01",
            "naa.1",
            "x",
            "iqn.2001-04.a:b c",
        ] {
            assert!(!is_iscsi_name(bad), "{bad}");
        }
    }

    #[test]
    fn the_root_has_many_spellings() {
        assert!(is_root("/") && is_root("/a/..") && is_root("//./"));
        assert!(!is_root("/a") && !is_root("a") && !is_root(""));
    }
}
