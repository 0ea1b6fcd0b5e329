//! Validation of users, profiles and privileges of containers and pods.

use super::handlers::Surroundings;
use super::{Leniency, PodOptions, projected, windows};
use crate::shared::validation::bad_value;
use crate::shared::validation::complaints::{complain, named};
use crate::shared::validation::members::{has, texts};
use polyplane_apimachinery::Value;
use polyplane_apimachinery::complaints::Complaints;
use polyplane_apimachinery::field_error::{FieldError, Path};
use polyplane_apimachinery::names;
use polyplane_registry::settings::Privileged;
use regex::Regex;
use std::collections::BTreeSet;
use std::sync::LazyLock;

/// Most bytes of the path of a profile on the host, as upstream limits it.
const PROFILE_BYTES_MAX: usize = 4095;
const SYSCTL_BYTES_MAX: usize = 253;
const SYSCTL: &str = r"^([a-z0-9]([-_a-z0-9]*[a-z0-9])?[\./])*[a-z0-9]([-_a-z0-9]*[a-z0-9])?$";

fn ids(context: &Value, fields: &[&str], path: &Path<'_>, errors: &mut Complaints) {
    for field in fields {
        if let Some(id) = context.int_at(&[field]) {
            complain(errors, &path.child(field), id, names::user_or_group_id(id));
        }
    }
}

/// Returns true if a container requests the capability to administer the system.
pub fn adds_sys_admin(context: &Value) -> bool {
    texts(&context["capabilities"]["add"])
        .into_iter()
        .any(|capability| capability == "CAP_SYS_ADMIN")
}

/// Validates the security context of a container.
pub fn validate_container(
    context: &Value,
    path: &Path<'_>,
    around: &Surroundings<'_>,
    errors: &mut Complaints,
) {
    if context.is_null() {
        return;
    }
    if around.options.privileged == Privileged::Forbidden && context.bool_at(&["privileged"]) {
        let detail = "disallowed by cluster policy";
        errors.push(FieldError::forbidden(&path.child("privileged"), detail));
    }
    ids(context, &["runAsUser", "runAsGroup"], path, errors);
    if let Some(mount) = context.get("procMount").and_then(Value::as_str) {
        let path = path.child("procMount");
        let known = ["Default", "Unmasked"];
        if !known.contains(&mount) {
            errors.push(FieldError::not_supported(&path, named(mount), &known));
        }
        if around.host_users && mount == "Unmasked" {
            let detail = "`hostUsers` must be false to use `Unmasked`";
            errors.push(FieldError::invalid(&path, named(mount), detail));
        }
    }
    validate_seccomp(
        &context["seccompProfile"],
        &path.child("seccompProfile"),
        errors,
    );
    if context
        .get("allowPrivilegeEscalation")
        .and_then(Value::as_bool)
        == Some(false)
    {
        let whole = || bad_value::typed("io.k8s.api.core.v1.SecurityContext", context);
        if context.bool_at(&["privileged"]) {
            let detail = "cannot set `allowPrivilegeEscalation` to false and `privileged` to true";
            errors.push(FieldError::invalid(path, whole(), detail));
        }
        if !around.options.allows(Leniency::SysAdminWithoutEscalation) && adds_sys_admin(context) {
            let detail = "cannot set `allowPrivilegeEscalation` to false and `capabilities.Add` CAP_SYS_ADMIN";
            errors.push(FieldError::invalid(path, whole(), detail));
        }
    }
    windows::validate_options(
        &context["windowsOptions"],
        &path.child("windowsOptions"),
        errors,
    );
    validate_app_armor(
        &context["appArmorProfile"],
        &path.child("appArmorProfile"),
        errors,
    );
}

/// Validates the numbers of further groups, a field of the owner at `path`.
pub fn validate_supplemental_groups(owner: &Value, path: &Path<'_>, errors: &mut Complaints) {
    let groups = path.child("supplementalGroups");
    for (at, group) in owner.items_at(&["supplementalGroups"]).iter().enumerate() {
        let group = group.as_int().unwrap_or(0);
        complain(
            errors,
            &groups.index(at),
            group,
            names::user_or_group_id(group),
        );
    }
}

/// Validates the security context of a pod.
pub fn validate_pod(spec: &Value, path: &Path<'_>, options: &PodOptions, errors: &mut Complaints) {
    let context = &spec["securityContext"];
    if context.is_null() {
        return;
    }
    ids(
        context,
        &["fsGroup", "runAsUser", "runAsGroup"],
        path,
        errors,
    );
    validate_supplemental_groups(context, path, errors);
    validate_sysctls(spec, &path.child("sysctls"), options, errors);
    choice(
        context,
        "fsGroupChangePolicy",
        &["Always", "OnRootMismatch"],
        path,
        errors,
    );
    validate_seccomp(
        &context["seccompProfile"],
        &path.child("seccompProfile"),
        errors,
    );
    windows::validate_options(
        &context["windowsOptions"],
        &path.child("windowsOptions"),
        errors,
    );
    validate_app_armor(
        &context["appArmorProfile"],
        &path.child("appArmorProfile"),
        errors,
    );
    choice(
        context,
        "supplementalGroupsPolicy",
        &["Merge", "Strict"],
        path,
        errors,
    );
    choice(
        context,
        "seLinuxChangePolicy",
        &["MountOption", "Recursive"],
        path,
        errors,
    );
}

/// Checks a field that may be absent or one of a few texts.
fn choice(object: &Value, field: &str, known: &[&str], path: &Path<'_>, errors: &mut Complaints) {
    if let Some(text) = object
        .get(field)
        .and_then(Value::as_str)
        .filter(|text| !known.contains(text))
    {
        errors.push(FieldError::not_supported(
            &path.child(field),
            named(text),
            known,
        ));
    }
}

fn validate_seccomp(profile: &Value, path: &Path<'_>, errors: &mut Complaints) {
    if profile.is_null() {
        return;
    }
    let kind = profile.str_at(&["type"]);
    let known = ["Localhost", "RuntimeDefault", "Unconfined"];
    if kind.is_empty() {
        errors.push(FieldError::required(
            &path.child("type"),
            "type is required when seccompProfile is set",
        ));
    } else if !known.contains(&kind) {
        errors.push(FieldError::not_supported(
            &path.child("type"),
            named(kind),
            &known,
        ));
    }
    let file = profile.get("localhostProfile").and_then(Value::as_str);
    let file_path = path.child("localhostProfile");
    match file {
        None if kind == "Localhost" => {
            errors.push(FieldError::required(
                &file_path,
                "must be set when seccomp type is Localhost",
            ));
        }
        Some(file) if kind == "Localhost" => {
            projected::validate_descending_path(file, &file_path, errors)
        }
        Some(_) => {
            let whole = bad_value::typed("io.k8s.api.core.v1.SeccompProfile", profile);
            let detail = "can only be set when seccomp type is Localhost";
            errors.push(FieldError::invalid(&file_path, whole, detail));
        }
        None => {}
    }
}

/// Validates an AppArmor profile.
pub fn validate_app_armor(profile: &Value, path: &Path<'_>, errors: &mut Complaints) {
    if profile.is_null() {
        return;
    }
    let file = profile.get("localhostProfile").and_then(Value::as_str);
    let file_path = path.child("localhostProfile");
    let missing = "must be set when AppArmor type is Localhost";
    match profile.str_at(&["type"]) {
        "Localhost" => match file {
            None => errors.push(FieldError::required(&file_path, missing)),
            Some(file) => {
                if file.trim() != file {
                    let detail = "must not be padded with whitespace";
                    errors.push(FieldError::invalid(&file_path, file, detail));
                } else if file.is_empty() {
                    errors.push(FieldError::required(&file_path, missing));
                }
                if file.len() > PROFILE_BYTES_MAX {
                    errors.push(FieldError::too_long(&file_path, PROFILE_BYTES_MAX));
                }
            }
        },
        "RuntimeDefault" | "Unconfined" => {
            if let Some(file) = file {
                let detail = "can only be set when AppArmor type is Localhost";
                errors.push(FieldError::invalid(&file_path, file, detail));
            }
        }
        "" => errors.push(FieldError::required(
            &path.child("type"),
            "type is required when appArmorProfile is set",
        )),
        other => {
            let known = ["Localhost", "RuntimeDefault", "Unconfined"];
            errors.push(FieldError::not_supported(
                &path.child("type"),
                named(other),
                &known,
            ));
        }
    }
}

static SYSCTL_NAME: LazyLock<Regex> =
    LazyLock::new(|| Regex::new(SYSCTL).expect("a pattern written here is sound"));

fn validate_sysctls(spec: &Value, path: &Path<'_>, options: &PodOptions, errors: &mut Complaints) {
    let mut seen = BTreeSet::new();
    for (at, sysctl) in spec
        .items_at(&["securityContext", "sysctls"])
        .iter()
        .enumerate()
    {
        let path = path.index(at);
        let path = path.child("name");
        let name = sysctl.str_at(&["name"]);
        if name.is_empty() {
            errors.push(FieldError::required(&path, ""));
        } else if name.len() > SYSCTL_BYTES_MAX || !SYSCTL_NAME.is_match(name) {
            let detail =
                format!("must have at most {SYSCTL_BYTES_MAX} characters and match regex {SYSCTL}");
            errors.push(FieldError::invalid(&path, name, detail));
        } else if seen.contains(name) {
            errors.push(FieldError::duplicate(&path, name));
        }
        if !options.allows(Leniency::HostSysctls)
            && let Some(detail) = host_sysctl(name, spec)
        {
            errors.push(FieldError::invalid(&path, name, detail));
        }
        seen.insert(name);
    }
}

/// The sysctls of the namespace for inter-process communication.
const IPC_SYSCTLS: [&str; 10] = [
    "kernel.sem",
    "kernel.shmall",
    "kernel.shmmax",
    "kernel.shmmni",
    "kernel.shm_rmid_forced",
    "kernel.shm",
    "kernel.msgmax",
    "kernel.msgmnb",
    "kernel.msgmni",
    "kernel.msg",
];

/// Returns the reason why a sysctl cannot be set in a pod that shares a namespace with the host.
fn host_sysctl(name: &str, spec: &Value) -> Option<&'static str> {
    let swap = name
        .find(['.', '/'])
        .is_some_and(|at| name.as_bytes()[at] == b'/');
    let name: String = if swap {
        let other = |letter| match letter {
            '.' => '/',
            '/' => '.',
            letter => letter,
        };
        name.chars().map(other).collect()
    } else {
        name.to_owned()
    };
    let name = name.split('*').next().unwrap_or("");
    if name.starts_with("net.") {
        return spec
            .bool_at(&["hostNetwork"])
            .then_some("may not be specified when 'hostNetwork' is true");
    }
    let ipc = IPC_SYSCTLS.contains(&name) || name.starts_with("fs.mqueue.");
    (ipc && spec.bool_at(&["hostIPC"])).then_some("may not be specified when 'hostIPC' is true")
}

/// Returns true if a pod sets a sysctl of a namespace that it shares with the host.
pub fn has_host_sysctl(spec: &Value) -> bool {
    let sysctls = spec.items_at(&["securityContext", "sysctls"]).iter();
    sysctls
        .map(|sysctl| sysctl.str_at(&["name"]))
        .any(|name| host_sysctl(name, spec).is_some())
}

/// Complains if a pod with users of its own uses namespaces of the host that exclude this.
pub fn validate_host_users(
    spec: &Value,
    path: &Path<'_>,
    options: &PodOptions,
    errors: &mut Complaints,
) {
    if spec.get("hostUsers").and_then(Value::as_bool) != Some(false) {
        return;
    }
    let detail = "when `hostUsers` is false";
    let network = !options.allows(Leniency::UserNamespaceHostNetwork);
    for (field, shown) in [
        ("hostNetwork", "hostNetwork"),
        ("hostPID", "HostPID"),
        ("hostIPC", "HostIPC"),
    ] {
        if spec.bool_at(&[field]) && (network || field != "hostNetwork") {
            errors.push(FieldError::forbidden(&path.child(shown), detail));
        }
    }
    if options.allows(Leniency::UserNamespaceDevices) {
        return;
    }
    super::each_container(spec, path, |container, path| {
        if has(container, "volumeDevices") && !container.items_at(&["volumeDevices"]).is_empty() {
            errors.push(FieldError::forbidden(&path.child("volumeDevices"), detail));
        }
    });
}
