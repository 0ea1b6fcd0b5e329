//! PersistentVolumes: storage whose source cannot change.

pub mod claim_fields;
pub mod sources;

use super::config_map::members;
use super::persistent_volume_claim::CLASS_ANNOTATION;
use super::persistent_volume_claim::update::validate_volume_mode;
use crate::shared::node_selector::{self, LabelValues};
use crate::shared::object_metadata;
use crate::shared::pod::defaults::round_up;
use crate::shared::resource_names::{amount, validate_positive};
use crate::shared::validation::equality::alike;
use crate::shared::validation::{bad_value, text_diff};
use claim_fields as checks;
use polyplane_apimachinery::complaints::Complaints;
use polyplane_apimachinery::field_error::{Bad, FieldError, Path};
use polyplane_apimachinery::names::NameRule;
use polyplane_apimachinery::schema::Schemas;
use polyplane_apimachinery::time::Timestamp;
use polyplane_apimachinery::{Value, json};
use polyplane_registry::Scope;
use polyplane_registry::strategy::{Context, Strategy, age};
use sources::{Check, SOURCES, is_root, takes_mount_options};

const SPEC: &str = "io.k8s.api.core.v1.PersistentVolumeSpec";
const AFFINITY: &str = "io.k8s.api.core.v1.VolumeNodeAffinity";
const MOUNT_ANNOTATION: &str = "volume.beta.kubernetes.io/mount-options";
/// Sources whose plugins are deprecated: the field, its name in warnings, and the version of the
/// deprecation.
const OLD_SOURCES: [(&str, &str, &str); 6] = [
    ("cephfs", "cephfs", "v1.28, non-functional in v1.31+"),
    (
        "photonPersistentDisk",
        "photonPersistentDisk",
        "v1.11, non-functional in v1.16+",
    ),
    ("scaleIO", "scaleIO", "v1.16, non-functional in v1.22+"),
    ("storageos", "storageOS", "v1.22, non-functional in v1.25+"),
    ("glusterfs", "glusterfs", "v1.25, non-functional in v1.26+"),
    ("rbd", "rbd", "v1.28, non-functional in v1.31+"),
];
/// Labels of nodes that may be replaced by their successors.
const SUCCESSORS: [(&str, &str); 5] = [
    (
        "failure-domain.beta.kubernetes.io/zone",
        "topology.kubernetes.io/zone",
    ),
    (
        "failure-domain.beta.kubernetes.io/region",
        "topology.kubernetes.io/region",
    ),
    ("beta.kubernetes.io/os", "kubernetes.io/os"),
    ("beta.kubernetes.io/arch", "kubernetes.io/arch"),
    (
        "beta.kubernetes.io/instance-type",
        "node.kubernetes.io/instance-type",
    ),
];

/// Behaviour of PersistentVolumes.
#[derive(Debug)]
pub struct PersistentVolume;

impl Strategy for PersistentVolume {
    fn default(&self, object: &mut Value) {
        if object
            .str_at(&["spec", "persistentVolumeReclaimPolicy"])
            .is_empty()
        {
            object.set(&["spec", "persistentVolumeReclaimPolicy"], "Retain");
        }
        if object["spec"]["volumeMode"].is_null() {
            object.set(&["spec", "volumeMode"], "Filesystem");
        }
        object
            .at_mut(&["spec", "capacity"])
            .into_iter()
            .for_each(round_up);
    }

    fn prepare_create(&self, context: &Context<'_>, object: &mut Value) {
        let now = Timestamp::from_seconds(context.now).to_rfc3339();
        object.set(
            &["status"],
            json!({"phase": "Pending", "lastPhaseTransitionTime": now}),
        );
    }

    fn prepare_subresource(&self, context: &Context<'_>, object: &mut Value, old: &Value) {
        object.set(&["spec"], old["spec"].clone());
        let time = ["status", "lastPhaseTransitionTime"];
        let same_phase = object["status"]["phase"] == old["status"]["phase"];
        let (given, before) = (object.at(&time).cloned(), old.at(&time).cloned());
        if same_phase && given.is_none() {
            if let Some(before) = before {
                object.set(&time, before);
            }
        } else if !same_phase && (given.is_none() || given == before) {
            object.set(&time, Timestamp::from_seconds(context.now).to_rfc3339());
        }
    }

    fn validate_create(&self, _: &Context<'_>, object: &Value) -> Complaints {
        let mut errors = object_metadata::validate_finalizers(object);
        errors.extend(validate_spec(object, LabelValues::Checked));
        errors.extend(validate_mount_options(object));
        errors
    }

    fn validate_update(&self, context: &Context<'_>, object: &Value, old: &Value) -> Complaints {
        let mut errors = object_metadata::validate(object, Scope::Cluster, NameRule::DnsSubdomain);
        let stale = node_selector::has_bad_label_values(&old["spec"]["nodeAffinity"]["required"]);
        let values = if stale {
            LabelValues::Any
        } else {
            LabelValues::Checked
        };
        errors.extend(validate_spec(object, values));
        errors.extend(validate_mount_options(object));
        errors.extend(validate_change(context.schemas, object, old));
        errors
    }

    fn validate_subresource(&self, _: &Context<'_>, object: &Value, old: &Value) -> Complaints {
        object_metadata::validate_update(object, old)
    }

    fn warnings(&self, context: &Context<'_>, object: &Value, _: Option<&Value>) -> Vec<String> {
        if context.subresource.is_empty() {
            warnings(object)
        } else {
            Vec::new()
        }
    }

    fn cells(&self, object: &Value, now: i64) -> Vec<Value> {
        let spec = &object["spec"];
        let claim = match &spec["claimRef"] {
            Value::Null => String::new(),
            claim => format!(
                "{}/{}",
                claim.str_at(&["namespace"]),
                claim.str_at(&["name"])
            ),
        };
        let class = object["metadata"]["annotations"][CLASS_ANNOTATION].as_str();
        let or_unset = |field: &str| spec[field].as_str().unwrap_or("<unset>").into();
        vec![
            object.str_at(&["metadata", "name"]).into(),
            amount(spec.at(&["capacity", "storage"])).to_string().into(),
            checks::short_modes(&spec["accessModes"]).into(),
            spec.str_at(&["persistentVolumeReclaimPolicy"]).into(),
            checks::shown_phase(object).into(),
            claim.into(),
            class.unwrap_or(spec.str_at(&["storageClassName"])).into(),
            or_unset("volumeAttributesClassName"),
            object.str_at(&["status", "reason"]).into(),
            age(object.str_at(&["metadata", "creationTimestamp"]), now),
            or_unset("volumeMode"),
        ]
    }
}

fn warnings(object: &Value) -> Vec<String> {
    let mut warnings = Vec::new();
    let annotations = [
        (
            CLASS_ANNOTATION,
            "deprecated since v1.8; use \"storageClassName\" attribute instead",
        ),
        (
            MOUNT_ANNOTATION,
            "deprecated since v1.31; use \"mountOptions\" attribute instead",
        ),
    ];
    for (key, text) in annotations {
        if object.at(&["metadata", "annotations", key]).is_some() {
            warnings.push(format!("metadata.annotations[{key}]: {text}"));
        }
    }
    let spec = &object["spec"];
    if spec.str_at(&["persistentVolumeReclaimPolicy"]) == "Recycle" {
        let text = "spec.persistentVolumeReclaimPolicy: The Recycle reclaim policy is deprecated. Instead, the recommended approach is to use dynamic provisioning.";
        warnings.push(text.to_owned());
    }
    let terms_path = Path::new("spec.nodeAffinity.required.nodeSelectorTerms");
    let terms = spec.items_at(&["nodeAffinity", "required", "nodeSelectorTerms"]);
    for (at, term) in terms.iter().enumerate() {
        warnings.extend(node_selector::term_warnings(term, &terms_path.index(at)));
    }
    for (field, named, since) in OLD_SOURCES {
        if !spec[field].is_null() {
            warnings.push(format!("spec.{named}: deprecated in {since}"));
        }
    }
    warnings
}

fn validate_spec(object: &Value, values: LabelValues) -> Complaints {
    let mut errors = Complaints::default();
    let path = Path::new("spec");
    let spec = &object["spec"];
    if spec.items_at(&["accessModes"]).is_empty() {
        errors.push(FieldError::required(&path.child("accessModes"), ""));
    }
    checks::validate_modes(spec, &path, &mut errors);
    validate_capacity(spec, &path, &mut errors);
    let policy = spec.str_at(&["persistentVolumeReclaimPolicy"]);
    let policies = ["Delete", "Recycle", "Retain"];
    let policy_path = path.child("persistentVolumeReclaimPolicy");
    if !policy.is_empty() && !policies.contains(&policy) {
        errors.push(FieldError::not_supported(
            &policy_path,
            Bad::Json(policy.into()),
            &policies,
        ));
    }
    let affinity = &spec["nodeAffinity"];
    if !affinity.is_null() {
        let place = path.child("nodeAffinity");
        let required = place.child("required");
        match &affinity["required"] {
            Value::Null => {
                errors.push(FieldError::required(
                    &required,
                    "must specify required node constraints",
                ));
            }
            selector => errors.extend(node_selector::validate(selector, values, &required)),
        }
    }
    validate_sources(object, &path, &mut errors);
    if is_root(spec.str_at(&["hostPath", "path"])) && policy == "Recycle" {
        let detail = "may not be 'recycle' for a hostPath mount of '/'";
        errors.push(FieldError::forbidden(&policy_path, detail));
    }
    checks::validate_class(spec, "storageClassName", &path, &mut errors);
    checks::validate_mode(spec, &path, &mut errors);
    if let Some(class) = spec["volumeAttributesClassName"].as_str() {
        if class.is_empty() {
            let place = path.child("volumeAttributesClassName");
            errors.push(FieldError::required(
                &place,
                "an empty string is disallowed",
            ));
        }
        checks::validate_class(spec, "volumeAttributesClassName", &path, &mut errors);
        if spec["csi"].is_null() {
            let detail = "has to be specified when using volumeAttributesClassName";
            errors.push(FieldError::required(&path.child("csi"), detail));
        }
    }
    errors
}

fn validate_capacity(spec: &Value, path: &Path<'_>, errors: &mut Complaints) {
    let place = path.child("capacity");
    let capacity = &spec["capacity"];
    let count = members(capacity).count();
    if count == 0 {
        errors.push(FieldError::required(&place, ""));
    }
    if capacity.get("storage").is_none() || count > 1 {
        let bad = if capacity.is_null() {
            Bad::Plain(Value::Null)
        } else {
            Bad::Json(capacity.clone())
        };
        errors.push(FieldError::not_supported(&place, bad, &["storage"]));
    }
    for (name, value) in members(capacity) {
        errors.extend(checks::validate_basic(value, &place.key(name)));
        errors.extend(validate_positive(value, &place.key(name)));
    }
}

/// Validates the sources, which say where a volume's data is.
pub fn validate_sources(object: &Value, path: &Path<'_>, errors: &mut Complaints) {
    let (name, spec) = (object.str_at(&["metadata", "name"]), &object["spec"]);
    let mut sources = 0;
    for source in SOURCES
        .iter()
        .filter(|source| !spec[source.field].is_null())
    {
        match source.second {
            Some(named) if sources > 0 => {
                let detail = "may not specify more than 1 volume type";
                errors.push(FieldError::forbidden(&path.child(named), detail));
                continue;
            }
            _ => sources += 1,
        }
        let (content, place) = (&spec[source.field], path.child(source.place));
        match source.check {
            Check::Plain(check) => check(content, &place, errors),
            Check::WithName(check) => check(content, name, &place, errors),
        }
        if source.field == "local" && spec["nodeAffinity"].is_null() {
            let detail = "Local volume requires node affinity";
            errors.push(FieldError::required(&path.child("nodeAffinity"), detail));
        }
    }
    if sources == 0 {
        errors.push(FieldError::required(path, "must specify a volume type"));
    }
}

fn validate_mount_options(object: &Value) -> Option<FieldError> {
    let annotation = object.at(&["metadata", "annotations", MOUNT_ANNOTATION]);
    if annotation.is_none() || takes_mount_options(&object["spec"]) {
        return None;
    }
    let metadata = Path::new("metadata");
    let annotations = metadata.child("annotations");
    let detail = "may not specify mount options for this volume type";
    Some(FieldError::forbidden(
        &annotations.child(MOUNT_ANNOTATION),
        detail,
    ))
}

fn validate_change(schemas: &Schemas, object: &Value, old: &Value) -> Complaints {
    let mut errors = Complaints::default();
    let spec = Path::new("spec");
    let (mut new_sources, old_sources) = (sources_of(object), sources_of(old));
    // The way in which a driver expands volumes may be set later.
    if old_sources
        .get("csi")
        .is_some_and(|csi| csi["controllerExpandSecretRef"].is_null())
    {
        drop(new_sources.remove(&["csi", "controllerExpandSecretRef"]));
    }
    if !alike(schemas, SPEC, &new_sources, &old_sources) {
        let text = |sources| schemas.internal_part_text(SPEC, "PersistentVolumeSource", sources);
        let diff = text_diff::texts(&text(&old_sources), &text(&new_sources));
        let detail = format!("spec.persistentvolumesource is immutable after creation\n{diff}");
        errors.push(FieldError::forbidden(
            &spec.child("persistentvolumesource"),
            detail,
        ));
    }
    validate_volume_mode(object, old, &mut errors);
    let (affinity, before) = (
        &object["spec"]["nodeAffinity"],
        &old["spec"]["nodeAffinity"],
    );
    if !before.is_null() {
        let mut renamed = before.clone();
        rename_labels(&mut renamed, affinity);
        if affinity.is_null() || !alike(schemas, AFFINITY, affinity, &renamed) {
            let detail = "field is immutable, except for updating from beta label to GA";
            let bad = bad_value::typed("io.k8s.api.core.v1.VolumeNodeAffinity", affinity);
            errors.push(FieldError::invalid(&Path::new("nodeAffinity"), bad, detail));
        }
    }
    let class = |object: &Value| object["spec"]["volumeAttributesClassName"].is_null();
    if class(object) && !class(old) {
        let detail = "update from non-nil value to nil is forbidden";
        errors.push(FieldError::forbidden(
            &spec.child("volumeAttributesClassName"),
            detail,
        ));
    }
    errors
}

/// Returns the part of the spec with the sources.
fn sources_of(object: &Value) -> Value {
    let mut sources = Value::object();
    for source in &SOURCES {
        if let Some(value) = object["spec"]
            .get(source.field)
            .filter(|value| !value.is_null())
        {
            sources.set(&[source.field], value.clone());
        }
    }
    sources
}

/// Renames labels in node requirements to those of `new`, if these are their successors.
/// Upstream looks successors up in a map, so that an empty key succeeds every other label.
fn rename_labels(old: &mut Value, new: &Value) {
    let path = ["required", "nodeSelectorTerms"];
    let Some(terms) = old.at_mut(&path).and_then(Value::as_array_mut) else {
        return;
    };
    for (term, new_term) in terms.iter_mut().zip(new.items_at(&path)) {
        let Some(list) = term
            .get_mut("matchExpressions")
            .and_then(Value::as_array_mut)
        else {
            continue;
        };
        for (requirement, new_one) in list
            .iter_mut()
            .zip(new_term.items_at(&["matchExpressions"]))
        {
            let (key, new_key) = (requirement.str_at(&["key"]), new_one.str_at(&["key"]));
            let ends = new_key.is_empty() && !SUCCESSORS.iter().any(|(beta, _)| *beta == key);
            if ends || SUCCESSORS.contains(&(key, new_key)) {
                requirement.set(&["key"], new_key);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_empty_label_succeeds_all_labels_but_beta_ones() {
        let affinity = |key: &str| {
            let mut requirement = Value::object();
            requirement.set(&["key"], key);
            let mut term = Value::object();
            term.set(&["matchExpressions"], Value::Array(vec![requirement]));
            let mut affinity = Value::object();
            let path = ["required", "nodeSelectorTerms"];
            affinity.set(&path, Value::Array(vec![term]));
            affinity
        };
        for (old, new, is_renamed) in [
            ("topology.kubernetes.io/zone", "", true),
            ("beta.kubernetes.io/os", "kubernetes.io/os", true),
            ("beta.kubernetes.io/os", "", false),
            ("topology.kubernetes.io/zone", "a", false),
        ] {
            let mut renamed = affinity(old);
            rename_labels(&mut renamed, &affinity(new));
            let expected = affinity(if is_renamed { new } else { old });
            assert_eq!(renamed, expected, "{old} to {new:?}");
        }
    }
}
