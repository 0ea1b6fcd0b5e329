//! PersistentVolumeClaims: a request for storage, whose spec can hardly be changed.

pub mod update;

use super::config_map::members;
use super::persistent_volume::claim_fields as checks;
use crate::shared::object_metadata;
use crate::shared::pod::defaults::round_up;
use crate::shared::resource_names::{amount, is_native, validate_amount, validate_positive};
use polyplane_apimachinery::complaints::Complaints;
use polyplane_apimachinery::field_error::{Bad, FieldError, Path};
use polyplane_apimachinery::names::{self, NameRule};
use polyplane_apimachinery::{Value, labels};
use polyplane_registry::Scope;
use polyplane_registry::strategy::{Context, Strategy, age};

/// The annotation that named a class before there was a field.
pub const CLASS_ANNOTATION: &str = "volume.beta.kubernetes.io/storage-class";
const RESIZE_STATES: [&str; 5] = [
    "ControllerResizeInProgress",
    "ControllerResizeInfeasible",
    "NodeResizeInProgress",
    "NodeResizeInfeasible",
    "NodeResizePending",
];

/// Behaviour of PersistentVolumeClaims.
#[derive(Debug)]
pub struct PersistentVolumeClaim;

impl Strategy for PersistentVolumeClaim {
    fn default(&self, object: &mut Value) {
        let spec = ["limits", "requests"].map(|list| vec!["spec", "resources", list]);
        let status = ["capacity", "allocatedResources"].map(|list| vec!["status", list]);
        for path in spec.iter().chain(&status) {
            object.at_mut(path).into_iter().for_each(round_up);
        }
    }

    fn prepare_create(&self, _: &Context<'_>, object: &mut Value) {
        object.set(&["status", "phase"], "Pending");
        drop_foreign_source(object, &Value::Null);
        align_sources(object);
    }

    fn prepare_update(&self, _: &Context<'_>, object: &mut Value, old: &Value) {
        drop_foreign_source(object, old);
        align_sources(object);
    }

    fn prepare_subresource(&self, _: &Context<'_>, object: &mut Value, old: &Value) {
        object.set(&["spec"], old["spec"].clone());
    }

    fn validate_create(&self, _: &Context<'_>, object: &Value) -> Complaints {
        let mut errors = object_metadata::validate_finalizers(object);
        errors.extend(validate_spec(object, &Value::Null));
        errors
    }

    fn validate_update(&self, context: &Context<'_>, object: &Value, old: &Value) -> Complaints {
        let mut errors = object_metadata::validate_update(object, old);
        errors.extend(object_metadata::validate(
            object,
            Scope::Namespaced,
            NameRule::DnsSubdomain,
        ));
        errors.extend(validate_spec(object, old));
        errors.extend(self::update::validate(context.schemas, object, old));
        errors
    }

    fn validate_subresource(&self, _: &Context<'_>, object: &Value, old: &Value) -> Complaints {
        let mut errors = object_metadata::validate_update(object, old);
        errors.extend(validate_status(object));
        errors
    }

    fn warnings(&self, context: &Context<'_>, object: &Value, _: Option<&Value>) -> Vec<String> {
        let mut warnings = Vec::new();
        if !context.subresource.is_empty() {
            return warnings;
        }
        if object
            .at(&["metadata", "annotations", CLASS_ANNOTATION])
            .is_some()
        {
            warnings.push(format!(
                "metadata.annotations[{CLASS_ANNOTATION}]: deprecated since v1.8; use \"storageClassName\" attribute instead"
            ));
        }
        warnings.extend(fractions(&object["spec"], "spec"));
        warnings
    }

    fn cells(&self, object: &Value, now: i64) -> Vec<Value> {
        let spec = &object["spec"];
        let bound = !spec.str_at(&["volumeName"]).is_empty();
        let capacity = || amount(object.at(&["status", "capacity", "storage"])).to_string();
        let modes = || checks::short_modes(&object["status"]["accessModes"]);
        let class = object["metadata"]["annotations"][CLASS_ANNOTATION].as_str();
        let or_unset = |field: &str| spec[field].as_str().unwrap_or("<unset>").into();
        vec![
            object.str_at(&["metadata", "name"]).into(),
            checks::shown_phase(object).into(),
            spec.str_at(&["volumeName"]).into(),
            if bound { capacity() } else { String::new() }.into(),
            if bound { modes() } else { String::new() }.into(),
            class.unwrap_or(spec.str_at(&["storageClassName"])).into(),
            or_unset("volumeAttributesClassName"),
            age(object.str_at(&["metadata", "creationTimestamp"]), now),
            or_unset("volumeMode"),
        ]
    }
}

/// Returns the warnings about amounts of storage that are no whole bytes; `path` is that of the spec.
pub fn fractions(spec: &Value, path: &str) -> Vec<String> {
    let of = |list: &str| {
        let storage = amount(spec.at(&["resources", list, "storage"]));
        (storage.milli_value() % 1000 != 0).then(|| {
            format!(
                "{path}.resources.{list}[storage]: fractional byte value \"{storage}\" is invalid, must be an integer"
            )
        })
    };
    ["requests", "limits"].into_iter().filter_map(of).collect()
}

/// Drops sources of kinds that no controller populates, unless the claim had a source before.
fn drop_foreign_source(object: &mut Value, old: &Value) {
    let had = |field: &str| !old["spec"][field].is_null();
    if had("dataSource") || had("dataSourceRef") || !object["spec"]["dataSourceRef"].is_null() {
        return;
    }
    let source = &object["spec"]["dataSource"];
    let known = matches!(
        (source.str_at(&["kind"]), source.str_at(&["apiGroup"])),
        ("PersistentVolumeClaim", "") | ("VolumeSnapshot", "snapshot.storage.k8s.io")
    );
    if !known {
        drop(object.remove(&["spec", "dataSource"]));
    }
}

/// Fills one of `dataSource` and `dataSourceRef` from the other.
pub fn align_sources(object: &mut Value) {
    let spec = &object["spec"];
    let (from, to) = match (
        spec["dataSource"].is_null(),
        spec["dataSourceRef"].is_null(),
    ) {
        (false, true) => ("dataSource", "dataSourceRef"),
        (true, false) if spec.str_at(&["dataSourceRef", "namespace"]).is_empty() => {
            ("dataSourceRef", "dataSource")
        }
        _ => return,
    };
    let mut source = spec[from].clone();
    drop(source.remove(&["namespace"]));
    object.set(&["spec", to], source);
}

fn validate_spec(object: &Value, old: &Value) -> Complaints {
    let mut errors = Complaints::default();
    let path = Path::new("spec");
    let spec = &object["spec"];
    if spec.items_at(&["accessModes"]).is_empty() {
        let detail = "at least 1 access mode is required";
        errors.push(FieldError::required(&path.child("accessModes"), detail));
    }
    let selector = labels::validate_label_selector(spec.get("selector"), &path.child("selector"));
    let stale = !labels::validate_label_selector(old["spec"].get("selector"), &path).is_empty();
    // Invalid values that were stored once are allowed to stay, unless their complaints have left no room for
    // others.
    let is_excused = stale && !selector.is_full();
    let is_shown = |error: &FieldError| !(is_excused && error.field.contains("values["));
    errors.extend(selector.into_iter().filter(is_shown));
    checks::validate_modes(spec, &path, &mut errors);
    let resources = path.child("resources");
    let storage_path = resources.key("storage");
    match spec.at(&["resources", "requests", "storage"]) {
        None => errors.push(FieldError::required(&storage_path, "")),
        Some(storage) => {
            let complaints = validate_positive(storage, &storage_path);
            if complaints.is_empty() {
                errors.extend(validate_amount("storage", storage, &storage_path));
            }
            errors.extend(complaints);
        }
    }
    checks::validate_class(spec, "storageClassName", &path, &mut errors);
    checks::validate_mode(spec, &path, &mut errors);
    validate_sources(spec, old, &path, &mut errors);
    checks::validate_class(spec, "volumeAttributesClassName", &path, &mut errors);
    errors
}

fn validate_sources(spec: &Value, old: &Value, path: &Path<'_>, errors: &mut Complaints) {
    let fields = ["dataSource", "dataSourceRef"];
    let any_group = fields
        .iter()
        .any(|field| !old["spec"][*field]["apiGroup"].is_null());
    for field in fields {
        let source = &spec[field];
        if source.is_null() {
            continue;
        }
        let place = path.child(field);
        for required in ["name", "kind"] {
            if source.str_at(&[required]).is_empty() {
                errors.push(FieldError::required(&place.child(required), ""));
            }
        }
        let (group, kind) = (source.str_at(&["apiGroup"]), source.str_at(&["kind"]));
        if group.is_empty() && kind != "PersistentVolumeClaim" {
            let detail = "must be 'PersistentVolumeClaim' when referencing the default apiGroup";
            errors.push(FieldError::invalid(&place, kind, detail));
        }
        if !group.is_empty() && !any_group {
            for detail in names::dns1123_subdomain(group) {
                errors.push(FieldError::invalid(&place.child("apiGroup"), group, detail));
            }
        }
        let namespace = source.str_at(&["namespace"]);
        if !namespace.is_empty() {
            for detail in names::dns1123_label(namespace) {
                errors.push(FieldError::invalid(
                    &place.child("namespace"),
                    namespace,
                    detail,
                ));
            }
        }
    }
    let [source, reference] = fields.map(|field| &spec[field]);
    if source.is_null() || reference.is_null() {
        return;
    }
    let differ = ["apiGroup", "kind", "name"]
        .iter()
        .any(|field| source[*field] != reference[*field]);
    // Upstream shows the path instead of the value here, which as JSON is an empty object.
    let bad = || Bad::Shown("{}".into());
    if !reference.str_at(&["namespace"]).is_empty() {
        let detail = "may not be specified when dataSourceRef.namespace is specified";
        errors.push(FieldError::invalid(path, bad(), detail));
    } else if differ {
        errors.push(FieldError::invalid(path, bad(), "must match dataSourceRef"));
    }
}

fn validate_status(object: &Value) -> Complaints {
    let mut errors = Complaints::default();
    if object.items_at(&["spec", "accessModes"]).is_empty() {
        let spec = Path::new("Spec");
        errors.push(FieldError::required(&spec.child("accessModes"), ""));
    }
    let path = Path::new("status");
    let status = &object["status"];
    for (name, value) in members(&status["capacity"]) {
        let list = path.child("capacity");
        errors.extend(checks::validate_basic(value, &list.key(name)));
    }
    let health = path.child("healthStatus");
    let conditions = health.child("healthConditions");
    for (at, condition) in status
        .items_at(&["healthStatus", "healthConditions"])
        .iter()
        .enumerate()
    {
        let reason = condition.str_at(&["reason"]);
        if !reason.is_empty() {
            for detail in names::condition_reason(reason) {
                errors.push(FieldError::invalid(
                    &conditions.index(at).child("reason"),
                    reason,
                    detail,
                ));
            }
        }
    }
    let states = path.child("allocatedResourceStatuses");
    for (name, state) in members(&status["allocatedResourceStatuses"]) {
        errors.extend(validate_resource_key(name, &states));
        if !RESIZE_STATES.contains(&state.as_str().unwrap_or("")) {
            let bad = Bad::Json(name.into());
            errors.push(FieldError::not_supported(&states, bad, &RESIZE_STATES));
        }
    }
    let allocated = path.child("allocatedResources");
    for (name, value) in members(&status["allocatedResources"]) {
        let complaints = validate_resource_key(name, &allocated);
        if !complaints.is_empty() {
            errors.extend(complaints);
            continue;
        }
        let basic = checks::validate_basic(value, &allocated.key(name));
        if basic.is_none() {
            errors.extend(validate_amount("storage", value, &allocated.key(name)));
        }
        errors.extend(basic);
    }
    errors
}

fn validate_resource_key(name: &str, path: &Path<'_>) -> Complaints {
    let complaints = names::qualified_name(name);
    if complaints.is_empty() && is_native(name) && name != "storage" {
        return Complaints::from([FieldError::not_supported(path, name, &["storage"])]);
    }
    complaints
        .into_iter()
        .map(|detail| FieldError::invalid(path, name, detail))
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use polyplane_apimachinery::complaints::COUNT_MAX;
    use polyplane_apimachinery::json;

    #[test]
    fn excused_values_of_a_selector_do_not_hide_another_fault() {
        let claim = |values: usize, operator: &str| {
            let mut wrong = json!({"key": "k", "operator": "In"});
            wrong.set(&["values"], Value::Array(vec!["-".into(); values]));
            let mut claim = Value::object();
            let other = json!({"key": "k", "operator": (operator)});
            let expressions = Value::Array(vec![wrong, other]);
            claim.set(&["spec", "selector", "matchExpressions"], expressions);
            claim
        };
        let is_refused = |object: &Value| {
            let found = validate_spec(object, &claim(1, "Exists"));
            found
                .iter()
                .any(|error| error.field.starts_with("spec.selector"))
        };
        assert!(!is_refused(&claim(2, "Exists")));
        assert!(is_refused(&claim(2, "Like")));
        assert!(is_refused(&claim(COUNT_MAX, "Like")));
    }
}
