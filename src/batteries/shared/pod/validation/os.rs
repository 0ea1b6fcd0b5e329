//! The fields that pods for an operating system must not have.

use super::each_container;
use crate::shared::validation::complaints::named;
use polyplane_apimachinery::Value;
use polyplane_apimachinery::complaints::Complaints;
use polyplane_apimachinery::field_error::{FieldError, Path};

const NOT_ON_LINUX: &str = "windows options cannot be set for a linux pod";
const NOT_ON_WINDOWS: &str = "cannot be set for a windows pod";

/// The fields of a pod's security context that Windows does not have.
const POD_CONTEXT: [&str; 11] = [
    "appArmorProfile",
    "seLinuxOptions",
    "seccompProfile",
    "fsGroup",
    "fsGroupChangePolicy",
    "sysctls",
    "runAsUser",
    "runAsGroup",
    "supplementalGroups",
    "supplementalGroupsPolicy",
    "seLinuxChangePolicy",
];

/// The fields of a container's security context that Windows does not have.
const CONTAINER_CONTEXT: [&str; 10] = [
    "appArmorProfile",
    "seLinuxOptions",
    "seccompProfile",
    "capabilities",
    "readOnlyRootFilesystem",
    "privileged",
    "allowPrivilegeEscalation",
    "procMount",
    "runAsUser",
    "runAsGroup",
];

/// Validates the operating system and the fields that depend on it.
pub fn validate(spec: &Value, path: &Path<'_>, errors: &mut Complaints) {
    let os = &spec["os"];
    if os.is_null() {
        return;
    }
    let os_path = path.child("os");
    match os.str_at(&["name"]) {
        "" => errors.push(FieldError::required(&os_path.child("name"), "")),
        "linux" => forbid_contexts(
            spec,
            path,
            &["windowsOptions"],
            &["windowsOptions"],
            NOT_ON_LINUX,
            errors,
        ),
        "windows" => validate_windows(spec, path, errors),
        other => errors.push(FieldError::not_supported(
            &os_path,
            named(other),
            &["linux", "windows"],
        )),
    }
}

fn validate_windows(spec: &Value, path: &Path<'_>, errors: &mut Complaints) {
    let own = |errors: &mut Complaints| {
        let fields = [
            ("hostUsers", !spec["hostUsers"].is_null()),
            ("hostPID", spec.bool_at(&["hostPID"])),
            ("hostIPC", spec.bool_at(&["hostIPC"])),
            (
                "shareProcessNamespace",
                !spec["shareProcessNamespace"].is_null(),
            ),
        ];
        for (field, _) in fields.into_iter().filter(|(_, set)| *set) {
            errors.push(FieldError::forbidden(&path.child(field), NOT_ON_WINDOWS));
        }
    };
    forbid_context(
        &spec["securityContext"],
        path,
        &POD_CONTEXT,
        NOT_ON_WINDOWS,
        errors,
    );
    own(errors);
    each_container(spec, path, |container, path| {
        forbid_context(
            &container["securityContext"],
            path,
            &CONTAINER_CONTEXT,
            NOT_ON_WINDOWS,
            errors,
        );
    });
}

fn forbid_contexts(
    spec: &Value,
    path: &Path<'_>,
    of_pod: &[&str],
    of_container: &[&str],
    detail: &str,
    errors: &mut Complaints,
) {
    forbid_context(&spec["securityContext"], path, of_pod, detail, errors);
    each_container(spec, path, |container, path| {
        forbid_context(
            &container["securityContext"],
            path,
            of_container,
            detail,
            errors,
        );
    });
}

fn forbid_context(
    context: &Value,
    path: &Path<'_>,
    fields: &[&str],
    detail: &str,
    errors: &mut Complaints,
) {
    let path = path.child("securityContext");
    for field in fields.iter().filter(|field| !context[**field].is_null()) {
        errors.push(FieldError::forbidden(&path.child(field), detail));
    }
}
