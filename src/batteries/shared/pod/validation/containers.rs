//! Validation of containers of all three kinds.

use super::handlers::{self, Surroundings};
use super::{Leniency, env, is_sidecar, mounts, resources, security};
use crate::shared::validation::complaints::{complain, named};
use crate::shared::validation::members::has;
use polyplane_apimachinery::Value;
use polyplane_apimachinery::complaints::Complaints;
use polyplane_apimachinery::field_error::{FieldError, Path};
use polyplane_apimachinery::names;
use std::collections::BTreeSet;

/// The values of the pull policy of an image.
const PULL_POLICIES: [&str; 3] = ["Always", "IfNotPresent", "Never"];
const RESTART_POLICIES: [&str; 3] = ["Always", "Never", "OnFailure"];
/// Number of restart rules of one container at most, as upstream limits it.
const RESTART_RULES_MAX: usize = 20;
/// Number of exit codes in one rule at most, as upstream limits it.
const EXIT_CODES_MAX: usize = 255;
const NOT_EPHEMERAL: &str = "cannot be set for an Ephemeral Container";

/// Checks a text that must be present and be one of the known ones.
pub fn one_of(text: &str, known: &[&str], path: &Path<'_>, errors: &mut Complaints) {
    if text.is_empty() {
        errors.push(FieldError::required(path, ""));
    } else if !known.contains(&text) {
        errors.push(FieldError::not_supported(path, named(text), known));
    }
}

/// Validates the pull policy of an image.
pub fn validate_pull_policy(policy: &str, path: &Path<'_>, errors: &mut Complaints) {
    one_of(policy, &PULL_POLICIES, path, errors);
}

/// Validates the regular containers.
pub fn validate_regular(
    spec: &Value,
    path: &Path<'_>,
    around: &Surroundings<'_>,
    errors: &mut Complaints,
) {
    let containers = spec.items_at(&["containers"]);
    if containers.is_empty() {
        errors.push(FieldError::required(path, ""));
        return;
    }
    let mut names_seen = BTreeSet::new();
    for (at, container) in containers.iter().enumerate() {
        if errors.is_full() {
            break;
        }
        let path = path.index(at);
        validate_common(container, &path, around, errors);
        let name = container.str_at(&["name"]);
        if !names_seen.insert(name) {
            errors.push(FieldError::duplicate(&path.child("name"), name));
        }
        handlers::validate_lifecycle_and_probes(container, &path, around, errors);
        validate_restart_policy(container, &path, errors);
    }
    let mut ports_seen = BTreeSet::new();
    for (at, container) in containers.iter().enumerate() {
        if errors.is_full() {
            break;
        }
        validate_host_ports(container, &path.index(at), &mut ports_seen, errors);
    }
}

/// Validates the containers that run before the regular ones.
pub fn validate_init(
    spec: &Value,
    path: &Path<'_>,
    around: &Surroundings<'_>,
    errors: &mut Complaints,
) {
    let containers = spec.items_at(&["initContainers"]);
    if containers.is_empty() {
        return;
    }
    let mut names_seen: BTreeSet<&str> = spec
        .items_at(&["containers"])
        .iter()
        .map(|one| one.str_at(&["name"]))
        .collect();
    for (at, container) in containers.iter().enumerate() {
        if errors.is_full() {
            break;
        }
        let list_path = path;
        let path = path.index(at);
        validate_common(container, &path, around, errors);
        validate_init_restart_policy(container, &path, errors);
        let name = container.str_at(&["name"]);
        if names_seen.contains(name) {
            errors.push(FieldError::duplicate(&path.child("name"), name));
        } else if !name.is_empty() {
            names_seen.insert(name);
        }
        // Each of them runs alone, so only its own ports can collide. Upstream's error names the
        // first of the list.
        validate_host_ports(container, &list_path.index(0), &mut BTreeSet::new(), errors);
        if is_sidecar(container) {
            handlers::validate_lifecycle_and_probes(container, &path, around, errors);
            continue;
        }
        for field in [
            "lifecycle",
            "livenessProbe",
            "readinessProbe",
            "startupProbe",
        ] {
            if has(container, field) {
                let detail = "may not be set for init containers without restartPolicy=Always";
                errors.push(FieldError::forbidden(&path.child(field), detail));
            }
        }
        if around.options.allows(Leniency::RestartOfInitContainers) {
            continue;
        }
        for (policy_at, policy) in container.items_at(&["resizePolicy"]).iter().enumerate() {
            if policy.str_at(&["restartPolicy"]) == "RestartContainer" {
                let detail = "must not be set to 'RestartContainer' for non-sidecar initContainers";
                let policies = path.child("resizePolicy");
                let place = policies.index(policy_at);
                errors.push(FieldError::invalid(
                    &place.child("restartPolicy"),
                    named("RestartContainer"),
                    detail,
                ));
            }
        }
    }
}

/// Validates the containers that are added to a running pod.
pub fn validate_ephemeral(
    spec: &Value,
    path: &Path<'_>,
    around: &Surroundings<'_>,
    errors: &mut Complaints,
) {
    let containers = spec.items_at(&["ephemeralContainers"]);
    if containers.is_empty() {
        return;
    }
    let others: BTreeSet<&str> = ["containers", "initContainers"]
        .iter()
        .flat_map(|list| spec.items_at(&[list]))
        .map(|container| container.str_at(&["name"]))
        .collect();
    let mut names_seen = others.clone();
    for (at, container) in containers.iter().enumerate() {
        if errors.is_full() {
            break;
        }
        let path = path.index(at);
        validate_common(container, &path, around, errors);
        validate_image_of_pod(container, &path, errors);
        let name = container.str_at(&["name"]);
        if !names_seen.insert(name) {
            errors.push(FieldError::duplicate(&path.child("name"), name));
        }
        let target = container.str_at(&["targetContainerName"]);
        if !target.is_empty() && !others.contains(target) {
            errors.push(FieldError::not_found(
                &path.child("targetContainerName"),
                target,
            ));
        }
        forbid_for_ephemeral(container, &path, errors);
    }
}

/// Fields of upstream's structure that ephemeral containers must not have, in its order.
const FORBIDDEN_FOR_EPHEMERAL: [&str; 9] = [
    "ports",
    "resources",
    "resizePolicy",
    "restartPolicy",
    "restartPolicyRules",
    "livenessProbe",
    "readinessProbe",
    "startupProbe",
    "lifecycle",
];

fn forbid_for_ephemeral(container: &Value, path: &Path<'_>, errors: &mut Complaints) {
    for field in FORBIDDEN_FOR_EPHEMERAL {
        let value = &container[field];
        let empty = match value {
            Value::Null => true,
            Value::Array(items) => items.is_empty(),
            Value::Object(members) => field == "resources" && members.values().all(Value::is_null),
            _ => false,
        };
        if !empty {
            errors.push(FieldError::forbidden(&path.child(field), NOT_EPHEMERAL));
        }
    }
    let mounts = path.child("volumeMounts");
    for (at, mount) in container.items_at(&["volumeMounts"]).iter().enumerate() {
        for field in ["subPath", "subPathExpr"] {
            if !mount.str_at(&[field]).is_empty() {
                errors.push(FieldError::forbidden(
                    &mounts.index(at).child(field),
                    NOT_EPHEMERAL,
                ));
            }
        }
    }
}

/// Validates the image of a container of a pod. Templates may have other texts.
pub fn validate_image_of_pod(container: &Value, path: &Path<'_>, errors: &mut Complaints) {
    let image = container.str_at(&["image"]);
    if image.trim().len() != image.len() {
        let detail = "must not have leading or trailing whitespace";
        errors.push(FieldError::invalid(&path.child("image"), image, detail));
    }
}

fn validate_common(
    container: &Value,
    path: &Path<'_>,
    around: &Surroundings<'_>,
    errors: &mut Complaints,
) {
    let name = container.str_at(&["name"]);
    let name_path = path.child("name");
    if name.is_empty() {
        errors.push(FieldError::required(&name_path, ""));
    } else {
        complain(errors, &name_path, name, names::dns1123_label(name));
    }
    if container.str_at(&["image"]).is_empty() {
        errors.push(FieldError::required(&path.child("image"), ""));
    }
    let policy = "terminationMessagePolicy";
    one_of(
        container.str_at(&[policy]),
        &["File", "FallbackToLogsOnError"],
        &path.child(policy),
        errors,
    );
    validate_ports(container.items_at(&["ports"]), &path.child("ports"), errors);
    env::validate(container.items_at(&["env"]), &path.child("env"), errors);
    env::validate_from(
        container.items_at(&["envFrom"]),
        &path.child("envFrom"),
        errors,
    );
    mounts::validate(
        container,
        around.volumes,
        &path.child("volumeMounts"),
        errors,
    );
    mounts::validate_devices(
        container,
        around.volumes,
        &path.child("volumeDevices"),
        errors,
    );
    validate_pull_policy(
        container.str_at(&["imagePullPolicy"]),
        &path.child("imagePullPolicy"),
        errors,
    );
    let limits = resources::Names::Container;
    let claims = Some(around.claims);
    resources::validate(
        &container["resources"],
        limits,
        claims,
        &path.child("resources"),
        around.options,
        errors,
    );
    validate_resize_policy(
        container,
        around.restart_policy,
        &path.child("resizePolicy"),
        errors,
    );
    security::validate_container(
        &container["securityContext"],
        &path.child("securityContext"),
        around,
        errors,
    );
}

fn validate_ports(ports: &[Value], path: &Path<'_>, errors: &mut Complaints) {
    let mut names_seen = BTreeSet::new();
    for (at, port) in ports.iter().enumerate() {
        if errors.is_full() {
            break;
        }
        let path = path.index(at);
        let name = port.str_at(&["name"]);
        if !name.is_empty() {
            let complaints = names::port_name(name);
            if complaints.is_empty() {
                if !names_seen.insert(name) {
                    errors.push(FieldError::duplicate(&path.child("name"), name));
                }
            } else {
                complain(errors, &path.child("name"), name, complaints);
            }
        }
        let number = port.int_at(&["containerPort"]).unwrap_or(0);
        if number == 0 {
            errors.push(FieldError::required(&path.child("containerPort"), ""));
        } else {
            complain(
                errors,
                &path.child("containerPort"),
                number,
                names::port_number(number),
            );
        }
        let host = port.int_at(&["hostPort"]).unwrap_or(0);
        if host != 0 {
            complain(
                errors,
                &path.child("hostPort"),
                host,
                names::port_number(host),
            );
        }
        one_of(
            port.str_at(&["protocol"]),
            &["SCTP", "TCP", "UDP"],
            &path.child("protocol"),
            errors,
        );
    }
}

fn validate_host_ports(
    container: &Value,
    path: &Path<'_>,
    seen: &mut BTreeSet<String>,
    errors: &mut Complaints,
) {
    let path = path.child("ports");
    for (at, port) in container.items_at(&["ports"]).iter().enumerate() {
        let number = port.int_at(&["hostPort"]).unwrap_or(0);
        if number == 0 {
            continue;
        }
        let text = format!(
            "{}/{}/{number}",
            port.str_at(&["protocol"]),
            port.str_at(&["hostIP"])
        );
        if seen.contains(&text) {
            errors.push(FieldError::duplicate(
                &path.index(at).child("hostPort"),
                text,
            ));
        } else {
            seen.insert(text);
        }
    }
}

fn validate_resize_policy(
    container: &Value,
    pod_policy: &str,
    path: &Path<'_>,
    errors: &mut Complaints,
) {
    let mut seen = BTreeSet::new();
    for (at, policy) in container.items_at(&["resizePolicy"]).iter().enumerate() {
        if errors.is_full() {
            break;
        }
        let resource = policy.str_at(&["resourceName"]);
        if !seen.insert(resource) {
            errors.push(FieldError::duplicate(&path.index(at), named(resource)));
        }
        one_of(resource, &["cpu", "memory"], path, errors);
        let restart = policy.str_at(&["restartPolicy"]);
        one_of(restart, &["NotRequired", "RestartContainer"], path, errors);
        if pod_policy == "Never" && restart != "NotRequired" {
            let detail = "must be 'NotRequired' when pod `restartPolicy` is 'Never'";
            errors.push(FieldError::invalid(path, named(restart), detail));
        }
    }
}

fn validate_init_restart_policy(container: &Value, path: &Path<'_>, errors: &mut Complaints) {
    if has(container, "restartPolicy") {
        validate_restart_policy(container, path, errors);
    } else if !container.items_at(&["restartPolicyRules"]).is_empty() {
        let detail = "must specify restartPolicy when restart rules are used";
        errors.push(FieldError::required(&path.child("restartPolicy"), detail));
    }
}

fn validate_restart_policy(container: &Value, path: &Path<'_>, errors: &mut Complaints) {
    let rules = container.items_at(&["restartPolicyRules"]);
    let policy_path = path.child("restartPolicy");
    match container.get("restartPolicy").and_then(Value::as_str) {
        None if rules.is_empty() => return,
        None => {
            let detail = "must specify restartPolicy when restart rules are used";
            errors.push(FieldError::required(&policy_path, detail));
        }
        Some(policy) if !RESTART_POLICIES.contains(&policy) => {
            errors.push(FieldError::not_supported(
                &policy_path,
                named(policy),
                &RESTART_POLICIES,
            ));
        }
        Some(_) => {}
    }
    let rules_path = path.child("restartPolicyRules");
    if rules.len() > RESTART_RULES_MAX {
        errors.push(FieldError::too_many(
            &rules_path,
            rules.len(),
            RESTART_RULES_MAX,
        ));
    }
    for (at, rule) in rules.iter().enumerate() {
        validate_restart_rule(rule, &rules_path.index(at), errors);
    }
}

fn validate_restart_rule(rule: &Value, path: &Path<'_>, errors: &mut Complaints) {
    let actions = ["Restart", "RestartAllContainers"];
    let action = rule.str_at(&["action"]);
    if !actions.contains(&action) {
        errors.push(FieldError::not_supported(
            &path.child("action"),
            named(action),
            &actions,
        ));
    }
    let codes = &rule["exitCodes"];
    let codes_path = path.child("exitCodes");
    if codes.is_null() {
        errors.push(FieldError::required(&codes_path, "must be specified"));
        return;
    }
    let operator = codes.str_at(&["operator"]);
    if !["In", "NotIn"].contains(&operator) {
        errors.push(FieldError::not_supported(
            &codes_path.child("operator"),
            named(operator),
            &["In", "NotIn"],
        ));
    }
    let values = codes.items_at(&["values"]).len();
    if values > EXIT_CODES_MAX {
        errors.push(FieldError::too_many(
            &codes_path.child("values"),
            values,
            EXIT_CODES_MAX,
        ));
    }
}
