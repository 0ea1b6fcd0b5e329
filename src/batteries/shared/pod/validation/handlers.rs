//! Validation of probes and lifecycle hooks, and of their handlers.

use super::PodOptions;
use super::resources::ClaimNames;
use crate::shared::validation::complaints::{complain, named};
use crate::shared::validation::members::has;
use crate::shared::validation::numbers::non_negative_members;
use polyplane_apimachinery::Value;
use polyplane_apimachinery::complaints::Complaints;
use polyplane_apimachinery::field_error::{FieldError, Path};
use polyplane_apimachinery::int_or_string::IntOrString;
use polyplane_apimachinery::names;
use std::collections::BTreeMap;

/// The facts about its pod that the checks of a container need.
#[derive(Debug)]
pub struct Surroundings<'a> {
    /// The valid volumes, by name.
    pub volumes: &'a BTreeMap<&'a str, &'a Value>,
    /// The names of the resource claims.
    pub claims: &'a ClaimNames<'a>,
    /// The restart policy of the pod.
    pub restart_policy: &'a str,
    /// The termination grace period of the pod, in seconds.
    pub grace: Option<i64>,
    /// `spec.os`, or null.
    pub os: &'a Value,
    /// True if the users of the pod are those of the host.
    pub host_users: bool,
    /// The options of the validation.
    pub options: &'a PodOptions,
}

/// Validates hooks and probes of a container that may have them.
pub fn validate_lifecycle_and_probes(
    container: &Value,
    path: &Path<'_>,
    around: &Surroundings<'_>,
    errors: &mut Complaints,
) {
    let lifecycle = &container["lifecycle"];
    if !lifecycle.is_null() {
        validate_lifecycle(lifecycle, &path.child("lifecycle"), around, errors);
    }
    for field in ["livenessProbe", "readinessProbe", "startupProbe"] {
        let probe = &container[field];
        if probe.is_null() {
            continue;
        }
        let path = path.child(field);
        validate_probe(probe, &path, around, errors);
        if field == "readinessProbe" {
            let grace = "terminationGracePeriodSeconds";
            if let Some(seconds) = probe.int_at(&[grace]) {
                let detail = "must not be set for readinessProbes";
                errors.push(FieldError::invalid(&path.child(grace), seconds, detail));
            }
        } else {
            let threshold = probe.int_at(&["successThreshold"]).unwrap_or(0);
            if threshold != 1 {
                errors.push(FieldError::invalid(
                    &path.child("successThreshold"),
                    threshold,
                    "must be 1",
                ));
            }
        }
    }
}

fn validate_lifecycle(
    lifecycle: &Value,
    path: &Path<'_>,
    around: &Surroundings<'_>,
    errors: &mut Complaints,
) {
    for hook in ["postStart", "preStop"] {
        if has(lifecycle, hook) {
            let kinds = ["exec", "httpGet", "tcpSocket", "sleep"];
            validate_handler(
                &lifecycle[hook],
                &kinds,
                around.grace,
                &path.child(hook),
                errors,
            );
        }
    }
    if let Some(signal) = lifecycle.get("stopSignal").and_then(Value::as_str) {
        validate_stop_signal(signal, around.os, &path.child("stopSignal"), errors);
    }
}

/// The signals of Linux that can stop a container, besides the numbered ones.
const LINUX_SIGNALS: [&str; 35] = [
    "SIGABRT",
    "SIGALRM",
    "SIGBUS",
    "SIGCHLD",
    "SIGCLD",
    "SIGCONT",
    "SIGFPE",
    "SIGHUP",
    "SIGILL",
    "SIGINT",
    "SIGIO",
    "SIGIOT",
    "SIGKILL",
    "SIGPIPE",
    "SIGPOLL",
    "SIGPROF",
    "SIGPWR",
    "SIGQUIT",
    "SIGSEGV",
    "SIGSTKFLT",
    "SIGSTOP",
    "SIGSYS",
    "SIGTERM",
    "SIGTRAP",
    "SIGTSTP",
    "SIGTTIN",
    "SIGTTOU",
    "SIGURG",
    "SIGUSR1",
    "SIGUSR2",
    "SIGVTALRM",
    "SIGWINCH",
    "SIGXCPU",
    "SIGXFSZ",
    "SIGRTMIN",
];

fn validate_stop_signal(signal: &str, os: &Value, path: &Path<'_>, errors: &mut Complaints) {
    if os.is_null() {
        let detail = "may not be set for containers with empty `spec.os.name`";
        errors.push(FieldError::forbidden(path, detail));
        return;
    }
    let known: Vec<String> = match os.str_at(&["name"]) {
        "windows" => vec!["SIGKILL".to_owned(), "SIGTERM".to_owned()],
        "linux" => {
            let named = LINUX_SIGNALS.iter().map(|signal| (*signal).to_owned());
            let above = (1..=15).map(|offset| format!("SIGRTMIN+{offset}"));
            let below = (1..=14).map(|offset| format!("SIGRTMAX-{offset}"));
            named
                .chain(above)
                .chain(below)
                .chain(["SIGRTMAX".to_owned()])
                .collect()
        }
        _ => return,
    };
    if !known.iter().any(|one| one == signal) {
        errors.push(FieldError::not_supported_sorted(
            path,
            named(signal),
            &known,
        ));
    }
}

fn validate_probe(
    probe: &Value,
    path: &Path<'_>,
    around: &Surroundings<'_>,
    errors: &mut Complaints,
) {
    validate_handler(
        probe,
        &["exec", "httpGet", "tcpSocket", "grpc"],
        around.grace,
        path,
        errors,
    );
    let numbers = [
        "initialDelaySeconds",
        "timeoutSeconds",
        "periodSeconds",
        "successThreshold",
        "failureThreshold",
    ];
    non_negative_members(probe, &numbers, path, errors);
    let grace = "terminationGracePeriodSeconds";
    if let Some(seconds) = probe.int_at(&[grace]).filter(|seconds| *seconds <= 0) {
        errors.push(FieldError::invalid(
            &path.child(grace),
            seconds,
            "must be greater than 0",
        ));
    }
}

fn validate_handler(
    handler: &Value,
    kinds: &[&str],
    grace: Option<i64>,
    path: &Path<'_>,
    errors: &mut Complaints,
) {
    let mut found = false;
    for kind in kinds {
        let action = &handler[*kind];
        if action.is_null() {
            continue;
        }
        let path = path.child(kind);
        if found {
            errors.push(FieldError::forbidden(
                &path,
                "may not specify more than 1 handler type",
            ));
            continue;
        }
        found = true;
        match *kind {
            "exec" => {
                if action.items_at(&["command"]).is_empty() {
                    errors.push(FieldError::required(&path.child("command"), ""));
                }
            }
            "httpGet" => validate_http_get(action, &path, errors),
            "tcpSocket" => validate_port(&action["port"], &path.child("port"), errors),
            "grpc" => validate_grpc(action, &path, errors),
            _ => validate_sleep(action, grace, &path, errors),
        }
    }
    if !found {
        errors.push(FieldError::required(path, "must specify a handler type"));
    }
}

fn validate_http_get(action: &Value, path: &Path<'_>, errors: &mut Complaints) {
    if action.str_at(&["path"]).is_empty() {
        errors.push(FieldError::required(&path.child("path"), ""));
    }
    validate_port(&action["port"], &path.child("port"), errors);
    let scheme = action.str_at(&["scheme"]);
    if !["HTTP", "HTTPS"].contains(&scheme) {
        errors.push(FieldError::not_supported(
            &path.child("scheme"),
            named(scheme),
            &["HTTP", "HTTPS"],
        ));
    }
    for header in action.items_at(&["httpHeaders"]) {
        let name = header.str_at(&["name"]);
        complain(
            errors,
            &path.child("httpHeaders"),
            name,
            names::http_header_name(name),
        );
    }
    let Some(protocol) = action.get("protocol").and_then(Value::as_str) else {
        return;
    };
    let host = action.str_at(&["host"]);
    let known = ["HTTP1", "HTTP2"];
    if !known.contains(&protocol) {
        errors.push(FieldError::not_supported(
            &path.child("protocol"),
            named(protocol),
            &known,
        ));
    } else if protocol == "HTTP2" && scheme != "HTTP" {
        let detail = "is only supported with HTTP (H2C)";
        errors.push(FieldError::invalid(
            &path.child("protocol"),
            named(protocol),
            detail,
        ));
    } else if protocol == "HTTP2" && !host.is_empty() {
        let detail = "must be empty when `protocol` is \"HTTP2\"";
        errors.push(FieldError::invalid(&path.child("host"), host, detail));
    }
}

/// Validates a port by number or by name.
pub fn validate_port(port: &Value, path: &Path<'_>, errors: &mut Complaints) {
    match IntOrString::from_value(port) {
        Some(IntOrString::Text(name)) => {
            complain(errors, path, name.as_str(), names::port_name(&name))
        }
        Some(IntOrString::Int(number)) => {
            let number = i64::from(number);
            complain(errors, path, number, names::port_number(number));
        }
        None => complain(errors, path, 0i64, names::port_number(0)),
    }
}

fn validate_grpc(action: &Value, path: &Path<'_>, errors: &mut Complaints) {
    let number = action.int_at(&["port"]).unwrap_or(0);
    complain(
        errors,
        &path.child("port"),
        number,
        names::port_number(number),
    );
    if let Some(mode) = action.get("mode").and_then(Value::as_str) {
        let known = ["Plaintext", "TLS"];
        if !known.contains(&mode) {
            errors.push(FieldError::not_supported(
                &path.child("mode"),
                named(mode),
                &known,
            ));
        }
    }
}

fn validate_sleep(action: &Value, grace: Option<i64>, path: &Path<'_>, errors: &mut Complaints) {
    let seconds = action.int_at(&["seconds"]).unwrap_or(0);
    if let Some(grace) = grace
        && (seconds < 0 || seconds > grace)
    {
        let detail =
            format!("must be non-negative and less than terminationGracePeriodSeconds ({grace})");
        errors.push(FieldError::invalid(path, seconds, detail));
    }
}
