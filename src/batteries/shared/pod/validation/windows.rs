//! Validation of options of containers that run on Windows.

use super::each_container;
use crate::shared::validation::complaints::complain;
use polyplane_apimachinery::Value;
use polyplane_apimachinery::complaints::Complaints;
use polyplane_apimachinery::field_error::{FieldError, Path};
use polyplane_apimachinery::names;
use polyplane_registry::settings::Privileged;
use regex::Regex;
use std::sync::LazyLock;

const CREDENTIAL_BYTES_MAX: usize = 64 * 1024;
const DOMAIN_BYTES_MAX: usize = 255;
const USER_BYTES_MAX: usize = 104;

static NET_BIOS: LazyLock<Regex> =
    LazyLock::new(|| pattern(r#"^[^\\/:\*\?"<>|\.][^\\/:\*\?"<>|]{0,14}$"#));
static DNS: LazyLock<Regex> = LazyLock::new(|| {
    let label = "[a-zA-Z0-9](?:[a-zA-Z0-9-]{0,61}[a-zA-Z0-9])?";
    pattern(&format!(r"^{label}(?:\.{label})*$"))
});

fn pattern(text: &str) -> Regex {
    Regex::new(text).expect("a pattern written here is sound")
}

/// Validates the options of a container or a pod.
pub fn validate_options(options: &Value, path: &Path<'_>, errors: &mut Complaints) {
    if let Some(name) = options
        .get("gmsaCredentialSpecName")
        .and_then(Value::as_str)
    {
        complain(
            errors,
            &path.child("gmsaCredentialSpecName"),
            name,
            names::dns1123_subdomain(name),
        );
    }
    if let Some(spec) = options.get("gmsaCredentialSpec").and_then(Value::as_str) {
        let path = path.child("gmsaCredentialSpec");
        if spec.is_empty() {
            errors.push(FieldError::invalid(
                &path,
                spec,
                "gmsaCredentialSpec cannot be an empty string",
            ));
        } else if spec.len() > CREDENTIAL_BYTES_MAX {
            let detail = format!(
                "gmsaCredentialSpec size must be under {} KiB",
                CREDENTIAL_BYTES_MAX / 1024
            );
            errors.push(FieldError::invalid(&path, spec, detail));
        }
    }
    if let Some(name) = options.get("runAsUserName").and_then(Value::as_str) {
        let path = path.child("runAsUserName");
        for detail in user_complaints(name) {
            errors.push(FieldError::invalid(&path, name, detail));
        }
    }
}

fn user_complaints(name: &str) -> Vec<String> {
    if name.is_empty() {
        return vec!["runAsUserName cannot be an empty string".to_owned()];
    }
    if name.bytes().any(|byte| byte.is_ascii_control()) {
        return vec!["runAsUserName cannot contain control characters".to_owned()];
    }
    let parts: Vec<&str> = name.split('\\').collect();
    let (domain, user) = match parts.as_slice() {
        [user] => (None, *user),
        [domain, user] => (Some(*domain), *user),
        _ => return vec!["runAsUserName cannot contain more than one backslash".to_owned()],
    };
    let mut complaints = Vec::new();
    if let Some(domain) = domain {
        if domain.len() > DOMAIN_BYTES_MAX {
            let most = DOMAIN_BYTES_MAX + 1;
            complaints.push(format!(
                "runAsUserName's Domain length must be under {most} characters"
            ));
        }
        if !NET_BIOS.is_match(domain) && !DNS.is_match(domain) {
            complaints.push(
                "runAsUserName's Domain doesn't match the NetBios nor the DNS format".to_owned(),
            );
        }
    }
    if user.is_empty() {
        complaints.push("runAsUserName's User cannot be empty".to_owned());
    } else if user.len() > USER_BYTES_MAX {
        complaints.push(format!(
            "runAsUserName's User length must not be longer than {USER_BYTES_MAX} characters"
        ));
    }
    if !user.is_empty() && user.chars().all(|letter| letter == '.' || letter == ' ') {
        complaints.push("runAsUserName's User cannot contain only periods or spaces".to_owned());
    }
    if user.contains([
        '"', '/', '\\', ':', ';', '|', '=', ',', '+', '*', '?', '<', '>', '@', '[', ']',
    ]) {
        let detail =
            r#"runAsUserName's User cannot contain the following characters: "/\:;|=,+*?<>@[]"#;
        complaints.push(detail.to_owned());
    }
    complaints
}

/// Checks that all containers of a pod, or none, are processes of the host.
pub fn validate_host_processes(
    spec: &Value,
    path: &Path<'_>,
    privileged: Privileged,
    errors: &mut Complaints,
) {
    let of = |owner: &Value| {
        owner
            .at(&["securityContext", "windowsOptions", "hostProcess"])
            .and_then(Value::as_bool)
    };
    let pod = of(spec);
    let (mut all, mut on_host) = (0, 0);
    each_container(spec, path, |container, path| {
        all += 1;
        let own = of(container);
        if let (Some(pod), Some(own)) = (pod, own)
            && pod != own
        {
            let context = path.child("securityContext");
            let options = context.child("windowsOptions");
            let detail =
                format!("pod hostProcess value must be identical if both are specified, was {pod}");
            errors.push(FieldError::invalid(
                &options.child("hostProcess"),
                own,
                detail,
            ));
        }
        if own.or(pod) == Some(true) {
            on_host += 1;
        }
    });
    if on_host == 0 {
        return;
    }
    if on_host != all {
        let detail = "If pod contains any hostProcess containers then all containers must be HostProcess containers";
        errors.push(FieldError::invalid(path, "", detail));
    }
    if !spec.bool_at(&["hostNetwork"]) {
        let detail = "hostNetwork must be true if pod contains any hostProcess containers";
        errors.push(FieldError::invalid(
            &path.child("hostNetwork"),
            false,
            detail,
        ));
    }
    if privileged == Privileged::Forbidden {
        let detail = "hostProcess containers are disallowed by cluster policy";
        errors.push(FieldError::forbidden(path, detail));
    }
}
