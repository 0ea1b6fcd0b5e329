//! Validation of a pod spec, in a pod or in the template of another kind.
//!
//! Works on trees in `core/v1` that are decoded and filled with defaults. Every function adds its
//! complaints to a list, in upstream's order and with its texts. Whether an update may change one
//! pod into another is decided in [`update`]; here every pod is validated on its own.

pub mod affinity;
pub mod annotations;
pub mod claim_template;
pub mod containers;
pub mod devices;
pub mod env;
pub mod handlers;
pub mod mounts;
pub mod options;
pub mod os;
pub mod projected;
pub mod resize;
pub mod resources;
pub mod security;
pub mod spec;
pub mod spread;
pub mod status;
pub mod tolerations;
pub mod update;
pub mod volume_sources;
pub mod volumes;
pub mod windows;

pub use options::{Leniency, PodOptions, Subject};

use crate::shared::validation::numbers::non_negative;
use polyplane_apimachinery::Value;
use polyplane_apimachinery::complaints::Complaints;
use polyplane_apimachinery::field_error::{FieldError, Path};
use polyplane_apimachinery::labels;
use polyplane_registry::metadata;

/// Validates a pod template, its metadata included.
pub fn validate_pod_template_spec(
    template: &Value,
    path: &Path<'_>,
    options: &PodOptions,
) -> Complaints {
    let mut errors = validate_template_metadata(template, path, options);
    let given = &template["metadata"]["annotations"];
    let spec = &template["spec"];
    let spec_path = path.child("spec");
    spec::validate(spec, None, &spec_path, options, &mut errors);
    annotations::seccomp_matches_fields(given, spec, &spec_path, &mut errors);
    annotations::app_armor_matches_fields(given, spec, &spec_path, &mut errors);
    if !spec.items_at(&["ephemeralContainers"]).is_empty() {
        let detail = "ephemeral containers not allowed in pod template";
        errors.push(FieldError::forbidden(
            &spec_path.child("ephemeralContainers"),
            detail,
        ));
    }
    errors
}

/// Validates the labels and annotations of a template.
pub fn validate_template_metadata(
    template: &Value,
    path: &Path<'_>,
    options: &PodOptions,
) -> Complaints {
    let mut errors =
        labels::validate_labels(template.at(&["metadata", "labels"]), &path.child("labels"));
    let (given, path) = (
        &template["metadata"]["annotations"],
        path.child("annotations"),
    );
    metadata::validate_annotations(given, &path, &mut errors);
    annotations::validate(given, &template["spec"], &path, options, &mut errors);
    errors
}

/// Validates a new pod, without the common rules of metadata.
pub fn validate_pod_create(pod: &Value, options: &PodOptions) -> Complaints {
    let mut errors = Complaints::default();
    validate_pod(pod, options, &mut errors);
    let spec = &pod["spec"];
    let path = Path::new("spec");
    if !spec.items_at(&["ephemeralContainers"]).is_empty() {
        errors.push(FieldError::forbidden(
            &path.child("ephemeralContainers"),
            "cannot be set on create",
        ));
    }
    if !spec.str_at(&["nodeName"]).is_empty() && !spec.items_at(&["schedulingGates"]).is_empty() {
        let detail = "cannot be set until all schedulingGates have been cleared";
        errors.push(FieldError::forbidden(&path.child("nodeName"), detail));
    }
    let given = &pod["metadata"]["annotations"];
    annotations::seccomp_matches_fields(given, spec, &path, &mut errors);
    annotations::app_armor_matches_fields(given, spec, &path, &mut errors);
    errors
}

/// Validates a whole pod, new or changed, without the common rules of metadata.
pub fn validate_pod(pod: &Value, options: &PodOptions, errors: &mut Complaints) {
    let (metadata, spec) = (&pod["metadata"], &pod["spec"]);
    let (metadata_path, path) = (Path::new("metadata"), Path::new("spec"));
    let annotations_path = metadata_path.child("annotations");
    annotations::validate(
        &metadata["annotations"],
        spec,
        &annotations_path,
        options,
        errors,
    );
    spec::validate(spec, Some(metadata), &path, options, errors);
    if spec.str_at(&["serviceAccountName"]).is_empty() {
        forbid_tokens(spec, &path, errors);
    }
    let grace = "terminationGracePeriodSeconds";
    non_negative(spec.int_at(&[grace]), &path.child(grace), errors);
    for list in ["containers", "initContainers"] {
        for (at, container) in spec.items_at(&[list]).iter().enumerate() {
            containers::validate_image_of_pod(container, &path.child(list).index(at), errors);
        }
    }
}

/// Complains about projected tokens in a pod without a service account.
fn forbid_tokens(spec: &Value, path: &Path<'_>, errors: &mut Complaints) {
    for (at, volume) in spec.items_at(&["volumes"]).iter().enumerate() {
        for (source_at, source) in volume
            .items_at(&["projected", "sources"])
            .iter()
            .enumerate()
        {
            if !source["serviceAccountToken"].is_null() {
                let (volumes, source_path) = (path.child("volumes"), "projected");
                let (volume_path, sources) = (volumes.index(at), "sources");
                let (projected, token) = (volume_path.child(source_path), "serviceAccountToken");
                let sources = projected.child(sources);
                let detail = "must not be specified when serviceAccountName is not set";
                errors.push(FieldError::forbidden(
                    &sources.index(source_at).child(token),
                    detail,
                ));
            }
        }
    }
}

/// Calls `visit` for every container of a spec with its path: init containers, regular ones,
/// ephemeral ones.
pub fn each_container<'a>(
    spec: &'a Value,
    path: &Path<'_>,
    mut visit: impl FnMut(&'a Value, &Path<'_>),
) {
    for list in ["initContainers", "containers", "ephemeralContainers"] {
        let list_path = path.child(list);
        for (at, container) in spec.items_at(&[list]).iter().enumerate() {
            visit(container, &list_path.index(at));
        }
    }
}

/// Returns all containers of a spec.
pub fn containers_of(spec: &Value) -> impl Iterator<Item = &Value> {
    ["initContainers", "containers", "ephemeralContainers"]
        .into_iter()
        .flat_map(|list| spec.items_at(&[list]))
}

/// Returns true for a container that starts before the regular ones and continues beside them.
pub fn is_sidecar(container: &Value) -> bool {
    container.str_at(&["restartPolicy"]) == "Always"
}

#[cfg(test)]
mod tests {
    use super::*;
    use polyplane_apimachinery::complaints::COUNT_MAX;
    use polyplane_apimachinery::json;
    use polyplane_registry::settings::Privileged;

    /// A pod of 3 MB may have a million of them: the complaints took a gigabyte.
    #[test]
    fn complaints_about_empty_items_of_a_pod_are_bounded() {
        let empty = vec![Value::object(); 4 * COUNT_MAX];
        let pod = json!({"spec": {
            "containers": (empty.clone()),
            "initContainers": (empty.clone()),
            "tolerations": (empty.clone()),
            "volumes": (empty),
        }});
        let errors = validate_pod_create(&pod, &PodOptions::for_pod(None));
        assert!(errors.is_full() && errors.len() <= COUNT_MAX);
    }

    /// A plain kube-apiserver forbids them unless a flag allows them.
    #[test]
    fn privileged_containers_are_refused_where_they_are_forbidden() {
        let context = json!({"privileged": true, "windowsOptions": {"hostProcess": true}});
        let container = json!({"name": "c", "securityContext": context});
        let pod = json!({"spec": {"hostNetwork": true, "containers": [container]}});
        let complaints = |privileged: Privileged| {
            let options = PodOptions::for_pod(None).with(privileged);
            let errors = validate_pod_create(&pod, &options);
            let texts = errors.iter().map(ToString::to_string);
            let texts = texts.filter(|text| text.contains("cluster policy"));
            texts.collect::<Vec<_>>()
        };
        assert_eq!(complaints(Privileged::Allowed), [""; 0]);
        let refused = [
            "spec.containers[0].securityContext.privileged: Forbidden: disallowed by cluster policy",
            "spec: Forbidden: hostProcess containers are disallowed by cluster policy",
        ];
        assert_eq!(complaints(Privileged::Forbidden), refused);
    }
}
