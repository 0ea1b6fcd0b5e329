//! Validation of changes to a pod's spec through its subresources: other resources for its
//! containers, and more ephemeral containers.

use super::update::SPEC;
use super::{PodOptions, Subject, annotations, is_sidecar, update};
use crate::feature_gates::Gate;
use crate::shared::pod::{defaults, qos};
use crate::shared::validation::equality::{alike, alike_in};
use crate::shared::validation::text_diff;
use polyplane_apimachinery::Value;
use polyplane_apimachinery::complaints::Complaints;
use polyplane_apimachinery::field_error::{FieldError, Path};
use polyplane_apimachinery::schema::Schemas;
use polyplane_registry::Features;

/// The resources that can change while the pod runs.
const RESIZABLE: [&str; 2] = ["cpu", "memory"];
const CONTAINER: &str = "io.k8s.api.core.v1.Container";
const EPHEMERAL: &str = "io.k8s.api.core.v1.EphemeralContainer";
const ONLY_RESIZABLE: &str = "only cpu and memory resources are mutable";

/// Validates a pod whose ephemeral containers have changed.
pub fn validate_ephemeral(
    schemas: &Schemas,
    new: &Value,
    old: &Value,
    options: &PodOptions,
) -> Complaints {
    if annotations::is_mirror(old) {
        return Complaints::from([FieldError::forbidden(
            &Path::new(""),
            "static pods do not support ephemeral containers",
        )]);
    }
    let mut errors = Complaints::default();
    super::validate_pod(new, options, &mut errors);
    update::validate_annotations(new, old, options, &mut errors);
    let path = Path::new("spec.ephemeralContainers");
    let list = new.items_at(&["spec", "ephemeralContainers"]);
    let mut work = text_diff::DiffWork::default();
    for container in old.items_at(&["spec", "ephemeralContainers"]) {
        let name = container.str_at(&["name"]);
        let quoted = polyplane_apimachinery::quote::quote(name);
        let detail = match list.iter().rev().find(|one| one.str_at(&["name"]) == name) {
            None => format!("existing ephemeral containers {quoted} may not be removed\n"),
            Some(one) if !alike(schemas, EPHEMERAL, one, container) => {
                let (before, after) = (
                    schemas.internal_text(EPHEMERAL, container),
                    schemas.internal_text(EPHEMERAL, one),
                );
                let difference = text_diff::texts_within(&before, &after, &mut work);
                format!("existing ephemeral containers {quoted} may not be changed\n{difference}")
            }
            Some(_) => continue,
        };
        errors.push(FieldError::forbidden(&path, detail));
    }
    errors
}

/// Validates a pod whose resources have changed.
pub fn validate(
    schemas: &Schemas,
    features: &Features,
    new: &Value,
    old: &Value,
    options: &PodOptions,
) -> Complaints {
    debug_assert_eq!(options.subject, Subject::Pod);
    let refused = if annotations::is_mirror(old) {
        Some("static pods cannot be resized")
    } else if old.str_at(&["spec", "os", "name"]) == "windows" {
        Some("windows pods cannot be resized")
    } else {
        None
    };
    if let Some(detail) = refused {
        return Complaints::from([FieldError::forbidden(&Path::new(""), detail)]);
    }
    let mut errors = Complaints::default();
    super::validate_pod(new, options, &mut errors);
    let path = Path::new("spec");
    if qos::class(old) != qos::computed_class(new) {
        let class =
            crate::shared::validation::complaints::named(new.str_at(&["status", "qosClass"]));
        let detail = "Pod QOS Class may not change as a result of resizing";
        errors.push(FieldError::invalid(&path, class, detail));
    }
    let statuses = old.items_at(&["status", "containerStatuses"]);
    let running = statuses
        .iter()
        .find(|status| status.at(&["state", "running"]).is_some());
    if running.is_some_and(|status| status["resources"].is_null()) {
        errors.push(FieldError::forbidden(
            &path,
            "Pod running on node without support for resize",
        ));
    }
    let (new, old) = (&new["spec"], &old["spec"]);
    let mut rest = new.clone();
    validate_pod_level(schemas, &mut rest, old, &path, &mut errors);
    if !validate_order(new, old, &path, &mut errors) {
        return errors;
    }
    validate_removals(new, old, &path, &mut errors);
    validate_containers(schemas, &mut rest, old, &path, &mut errors);
    let volumes_change = Gate::InPlacePodVerticalScalingMemoryBackedVolumes.is_on(features);
    if !volumes_change && !alike_in(schemas, SPEC, "volumes", new, old) {
        let detail = "volumes are immutable on resize when InPlacePodVerticalScalingMemoryBackedVolumes feature gate is disabled";
        errors.push(FieldError::forbidden(&path.child("volumes"), detail));
    }
    if errors.is_empty() && !alike(schemas, SPEC, &rest, old) {
        errors.push(FieldError::forbidden(&path, ONLY_RESIZABLE));
    }
    errors
}

/// Returns true if a list has lost a resource.
fn removed(new: &Value, old: &Value) -> bool {
    let before = old.as_object().into_iter().flat_map(|list| list.keys());
    before.into_iter().any(|name| new.get(name).is_none())
}

/// Sets the resources that can change to their old values.
fn restore(resources: &mut Value, old: &Value) {
    for list in ["limits", "requests"] {
        for name in RESIZABLE {
            match old[list].get(name) {
                Some(value) => resources.set(&[list, name], value.clone()),
                None => drop(resources.remove(&[list, name])),
            }
        }
        if resources[list]
            .as_object()
            .is_some_and(|list| list.is_empty())
        {
            drop(resources.remove(&[list]));
        }
    }
}

fn validate_pod_level(
    schemas: &Schemas,
    rest: &mut Value,
    old: &Value,
    path: &Path<'_>,
    errors: &mut Complaints,
) {
    let before = &old["resources"];
    let resources_path = path.child("resources");
    let given =
        |resources: &Value| !resources["requests"].is_null() || !resources["limits"].is_null();
    if !given(before) && !given(&rest["resources"]) {
        return;
    }
    if !before.is_null() {
        if rest["resources"].is_null() {
            let detail = "pod-level resources cannot be removed";
            errors.push(FieldError::forbidden(&resources_path, detail));
            return;
        }
        for (list, what) in [("requests", "requests"), ("limits", "limits")] {
            if removed(&rest["resources"][list], &before[list]) {
                let detail = format!("pod-level resource {what} cannot be removed");
                errors.push(FieldError::forbidden(&resources_path.child(list), detail));
            }
        }
    }
    if let Some(resources) = rest.get_mut("resources") {
        restore(resources, before);
    }
    if before.is_null()
        && rest["resources"]
            .as_object()
            .is_some_and(|members| members.is_empty())
    {
        drop(rest.remove(&["resources"]));
    }
    if !alike_in(schemas, SPEC, "resources", rest, old) {
        let detail = "only cpu and memory resources are mutable at pod-level";
        errors.push(FieldError::forbidden(path, detail));
    }
}

/// Checks that no containers were added, removed or reordered. Returns false if the checks must
/// end.
fn validate_order(new: &Value, old: &Value, path: &Path<'_>, errors: &mut Complaints) -> bool {
    let mut is_same = true;
    for list in ["containers", "initContainers"] {
        let (now, then) = (new.items_at(&[list]), old.items_at(&[list]));
        let path = path.child(list);
        if now.len() != then.len() {
            is_same = false;
            errors.push(FieldError::forbidden(
                &path,
                format!("{list} may not be added or removed on resize"),
            ));
            continue;
        }
        for (at, (now, then)) in now.iter().zip(then).enumerate() {
            if now["name"] != then["name"] {
                is_same = false;
                let detail = format!("{list} may not be renamed or reordered on resize");
                errors.push(FieldError::forbidden(&path.index(at).child("name"), detail));
            }
        }
    }
    is_same
}

fn validate_removals(new: &Value, old: &Value, path: &Path<'_>, errors: &mut Complaints) {
    for list in ["initContainers", "containers"] {
        let list_path = path.child(list);
        for (at, (now, then)) in new
            .items_at(&[list])
            .iter()
            .zip(old.items_at(&[list]))
            .enumerate()
        {
            let container = list_path.index(at);
            let path = container.child("resources");
            for kind in ["requests", "limits"] {
                if removed(&now["resources"][kind], &then["resources"][kind]) {
                    let detail = format!("resource {kind} cannot be removed");
                    errors.push(FieldError::forbidden(&path.child(kind), detail));
                }
            }
        }
    }
}

fn validate_containers(
    schemas: &Schemas,
    rest: &mut Value,
    old: &Value,
    path: &Path<'_>,
    errors: &mut Complaints,
) {
    for list in ["containers", "initContainers"] {
        let list_path = path.child(list);
        let before = old.items_at(&[list]);
        for (at, (container, before)) in defaults::items_mut(rest, list).zip(before).enumerate() {
            let changed = !alike(schemas, CONTAINER, container, before);
            if let Some(resources) = container.get_mut("resources") {
                restore(resources, &before["resources"]);
            } else if changed && !before["resources"].is_null() {
                container.set(&["resources"], before["resources"].clone());
            }
            let equal = alike(schemas, CONTAINER, container, before);
            if list == "containers" {
                if !equal {
                    errors.push(FieldError::forbidden(path, ONLY_RESIZABLE));
                }
                continue;
            }
            let path = list_path.index(at);
            if !equal {
                let detail =
                    "only cpu and memory resources for init or sidecar containers are mutable";
                errors.push(FieldError::forbidden(&path, detail));
            }
            if changed && !is_sidecar(container) {
                let policies = container.items_at(&["resizePolicy"]).iter();
                for _ in policies
                    .filter(|policy| policy.str_at(&["restartPolicy"]) == "RestartContainer")
                {
                    let detail = "non-sidecar init containers with a resize policy of RestartContainer cannot be resized";
                    errors.push(FieldError::forbidden(&path, detail));
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::kind_tables;
    use crate::shared::pod::defaults::default_pod;
    use polyplane_apimachinery::json;

    fn pod(resources: Value) -> Value {
        let mut pod = json!({
            "metadata": {"name": "a", "namespace": "default"},
            "spec": {
                "restartPolicy": "Always",
                "dnsPolicy": "ClusterFirst",
                "terminationGracePeriodSeconds": 30i64,
                "containers": [{
                    "name": "main",
                    "image": "nginx",
                    "terminationMessagePolicy": "File",
                    "resources": (resources),
                }],
            },
            "status": {"qosClass": "Burstable"},
        });
        default_pod(&mut pod);
        pod
    }

    fn complaints(new: &Value, old: &Value) -> Vec<String> {
        let errors = validate(
            &kind_tables::schemas(),
            &kind_tables::features(),
            new,
            old,
            &PodOptions::for_pod(Some(old)),
        );
        errors.iter().map(ToString::to_string).collect()
    }

    #[test]
    fn cpu_and_memory_may_change() {
        let old = pod(json!({"requests": {"cpu": "1", "memory": "1Gi"}}));
        assert_eq!(complaints(&old, &old), [""; 0]);
        let new = pod(json!({"requests": {"cpu": "2", "memory": "512Mi"}}));
        assert_eq!(complaints(&new, &old), [""; 0]);
        let added =
            pod(json!({"requests": {"cpu": "1", "memory": "1Gi"}, "limits": {"memory": "2Gi"}}));
        assert_eq!(complaints(&added, &old), [""; 0]);
    }

    #[test]
    fn amounts_may_be_written_in_another_way() {
        let with = |size: &str, storage: &str| {
            let requests = json!({"cpu": "1", "ephemeral-storage": storage});
            let mut pod = pod(json!({"requests": requests}));
            let volume = json!({"name": "scratch", "emptyDir": {"sizeLimit": size}});
            pod.set(&["spec", "volumes"], Value::Array(vec![volume]));
            pod
        };
        let old = with("1Gi", "1Mi");
        assert_eq!(complaints(&with("1073741824", "1048576"), &old), [""; 0]);
        let volumes = complaints(&with("2Gi", "1Mi"), &old);
        assert!(volumes[0].starts_with("spec.volumes: Forbidden: "));
        let containers = complaints(&with("1Gi", "2Mi"), &old);
        assert_eq!(
            containers,
            ["spec: Forbidden: only cpu and memory resources are mutable"]
        );
    }

    #[test]
    fn what_else_changes_is_refused() {
        let old = pod(json!({"requests": {"cpu": "1", "memory": "1Gi"}}));
        let lost = pod(json!({"requests": {"cpu": "1"}}));
        assert_eq!(
            complaints(&lost, &old),
            [
                "spec.containers[0].resources.requests: Forbidden: resource requests cannot be removed"
            ]
        );
        let other =
            pod(json!({"requests": {"cpu": "1", "memory": "1Gi", "ephemeral-storage": "1Gi"}}));
        assert_eq!(
            complaints(&other, &old),
            ["spec: Forbidden: only cpu and memory resources are mutable"]
        );
        let equal = json!({"cpu": "1", "memory": "1Gi"});
        let guaranteed = pod(json!({"requests": (equal.clone()), "limits": (equal)}));
        assert_eq!(
            complaints(&guaranteed, &old),
            [
                "spec: Invalid value: \"Burstable\": Pod QOS Class may not change as a result of resizing"
            ]
        );
        let mut renamed = old.clone();
        for container in defaults::items_mut(&mut renamed["spec"], "containers") {
            container.set(&["name"], "other");
        }
        assert_eq!(
            complaints(&renamed, &old),
            [
                "spec.containers[0].name: Forbidden: containers may not be renamed or reordered on resize"
            ]
        );
    }

    #[test]
    fn ephemeral_containers_only_come() {
        let old = pod(json!({}));
        let mut new = old.clone();
        let debug = json!({
            "name": "debug", "image": "busybox", "imagePullPolicy": "Always", "terminationMessagePolicy": "File",
        });
        new.set(&["spec", "ephemeralContainers"], Value::Array(vec![debug]));
        let options = PodOptions::for_pod(Some(&old));
        assert_eq!(
            validate_ephemeral(&kind_tables::schemas(), &new, &old, &options),
            Complaints::default()
        );
        let errors = validate_ephemeral(&kind_tables::schemas(), &old, &new, &options);
        let texts: Vec<String> = errors.iter().map(ToString::to_string).collect();
        assert_eq!(
            texts,
            [
                "spec.ephemeralContainers: Forbidden: existing ephemeral containers \"debug\" may not be removed\n"
            ]
        );
    }
}
