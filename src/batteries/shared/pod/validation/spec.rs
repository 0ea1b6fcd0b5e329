//! Validation of the spec of a pod as a whole, and of its fields that need no file of their own.

use super::containers::{self, one_of};
use super::handlers::Surroundings;
use super::{
    PodOptions, Subject, affinity, os, projected, resources, security, spread, tolerations,
    volumes, windows,
};
use crate::shared::network::addresses::validate_ip;
use crate::shared::validation::bad_value;
use crate::shared::validation::complaints::complain;
use crate::shared::validation::members::{has, texts};
use polyplane_apimachinery::complaints::Complaints;
use polyplane_apimachinery::field_error::{Bad, FieldError, Path};
use polyplane_apimachinery::{Value, labels, names};
use std::collections::BTreeSet;

/// Number of name servers at most, as upstream limits it.
const NAME_SERVERS_MAX: usize = 3;
const SEARCH_PATHS_MAX: usize = 32;
const SEARCH_BYTES_MAX: usize = 2048;
const HOSTNAME_BYTES_MAX: usize = 64;

/// Validates a spec. `metadata` is that of the pod, if the spec is a pod's.
pub fn validate(
    spec: &Value,
    metadata: Option<&Value>,
    path: &Path<'_>,
    options: &PodOptions,
    errors: &mut Complaints,
) {
    let grace = spec.int_at(&["terminationGracePeriodSeconds"]);
    if grace.is_none() {
        errors.push(FieldError::required(
            &path.child("terminationGracePeriodSeconds"),
            "",
        ));
    }
    let sound = volumes::validate(
        spec.items_at(&["volumes"]),
        metadata,
        &path.child("volumes"),
        options,
        errors,
    );
    let claim_list = spec.items_at(&["resourceClaims"]);
    let claim_names = claim_list.iter().map(|claim| claim.str_at(&["name"]));
    let claims = resources::ClaimNames::new(claim_names.filter(|name| !name.is_empty()));
    validate_claims(claim_list, metadata, &path.child("resourceClaims"), errors);
    let around = Surroundings {
        volumes: &sound,
        claims: &claims,
        restart_policy: spec.str_at(&["restartPolicy"]),
        grace,
        os: &spec["os"],
        host_users: spec.get("hostUsers").and_then(Value::as_bool) != Some(false),
        options,
    };
    containers::validate_regular(spec, &path.child("containers"), &around, errors);
    containers::validate_init(spec, &path.child("initContainers"), &around, errors);
    containers::validate_ephemeral(spec, &path.child("ephemeralContainers"), &around, errors);
    resources::validate_of_pod(spec, &claims, &path.child("resources"), options, errors);
    validate_host_network(spec, path, options, errors);
    validate_placement(spec, path, options, errors);
    validate_host_aliases(
        spec.items_at(&["hostAliases"]),
        &path.child("hostAliases"),
        errors,
    );
    validate_priority(spec, path, options, errors);
    os::validate(spec, path, errors);
    validate_group(spec, &path.child("schedulingGroup"), errors);
    projected::validate_file_variables(spec, path, errors);
}

/// Validates where and under which rules the pod runs.
fn validate_placement(
    spec: &Value,
    path: &Path<'_>,
    options: &PodOptions,
    errors: &mut Complaints,
) {
    let restart_policies = ["Always", "OnFailure", "Never"];
    one_of(
        spec.str_at(&["restartPolicy"]),
        &restart_policies,
        &path.child("restartPolicy"),
        errors,
    );
    let dns_policies = ["ClusterFirstWithHostNet", "ClusterFirst", "Default", "None"];
    one_of(
        spec.str_at(&["dnsPolicy"]),
        &dns_policies,
        &path.child("dnsPolicy"),
        errors,
    );
    errors.extend(labels::validate_labels(
        spec.get("nodeSelector"),
        &path.child("nodeSelector"),
    ));
    security::validate_pod(spec, &path.child("securityContext"), options, errors);
    if spec.bool_at(&["shareProcessNamespace"]) && spec.bool_at(&["hostPID"]) {
        let detail = "ShareProcessNamespace and HostPID cannot both be enabled";
        errors.push(FieldError::invalid(
            &path.child("shareProcessNamespace"),
            true,
            detail,
        ));
    }
    affinity::validate(&spec["affinity"], &path.child("affinity"), options, errors);
    validate_dns(spec, &path.child("dnsConfig"), errors);
    validate_gates(spec, path, errors);
    let constraints = spec.items_at(&["topologySpreadConstraints"]);
    spread::validate(
        constraints,
        &path.child("topologySpreadConstraints"),
        options,
        errors,
    );
    windows::validate_host_processes(spec, path, options.privileged, errors);
    security::validate_host_users(spec, path, options, errors);
    validate_hostname(spec, path, errors);
    validate_names(spec, path, errors);
    let list = spec.items_at(&["tolerations"]);
    tolerations::validate(list, &path.child("tolerations"), options, errors);
}

fn validate_claims(
    claims: &[Value],
    metadata: Option<&Value>,
    path: &Path<'_>,
    errors: &mut Complaints,
) {
    let mirrored = metadata.is_some_and(|one| {
        one.at(&["annotations", "kubernetes.io/config.mirror"])
            .is_some()
    });
    let mut seen = BTreeSet::new();
    for (at, claim) in claims.iter().enumerate() {
        if errors.is_full() {
            break;
        }
        if mirrored {
            errors.push(FieldError::forbidden(
                &Path::new(""),
                "static pods do not support resource claims",
            ));
            continue;
        }
        let path = path.index(at);
        let name = claim.str_at(&["name"]);
        let name_path = path.child("name");
        if name.is_empty() {
            errors.push(FieldError::required(&name_path, ""));
        } else if seen.contains(name) {
            errors.push(FieldError::duplicate(&name_path, name));
        } else {
            complain(errors, &name_path, name, names::dns1123_label(name));
            seen.insert(name);
        }
        let sources = ["resourceClaimName", "resourceClaimTemplateName"];
        let detail = match sources.iter().filter(|source| has(claim, source)).count() {
            0 => "must specify one of: `resourceClaimName`, `resourceClaimTemplateName`",
            2 => {
                "at most one of `resourceClaimName` or `resourceClaimTemplateName` may be specified"
            }
            _ => "",
        };
        if !detail.is_empty() {
            let whole = bad_value::typed("io.k8s.api.core.v1.PodResourceClaim", claim);
            errors.push(FieldError::invalid(&path, whole, detail));
        }
        for source in sources {
            if let Some(name) = claim.get(source).and_then(Value::as_str) {
                complain(
                    errors,
                    &path.child(source),
                    name,
                    names::dns1123_subdomain(name),
                );
            }
        }
    }
}

fn validate_host_network(
    spec: &Value,
    path: &Path<'_>,
    options: &PodOptions,
    errors: &mut Complaints,
) {
    if !spec.bool_at(&["hostNetwork"]) {
        return;
    }
    let containers = path.child("containers");
    for (at, container) in spec.items_at(&["containers"]).iter().enumerate() {
        let container_path = containers.index(at);
        let ports = container_path.child("ports");
        for (port_at, port) in container.items_at(&["ports"]).iter().enumerate() {
            let host = port.int_at(&["hostPort"]).unwrap_or(0);
            let own = port.int_at(&["containerPort"]).unwrap_or(0);
            // A template may leave it out: it is set when a pod is made from the template.
            if host != own && (host != 0 || options.subject == Subject::Pod) {
                let detail = "must match `containerPort` when `hostNetwork` is true";
                errors.push(FieldError::invalid(
                    &ports.index(port_at).child("hostPort"),
                    host,
                    detail,
                ));
            }
        }
    }
}

fn validate_dns(spec: &Value, path: &Path<'_>, errors: &mut Complaints) {
    let config = &spec["dnsConfig"];
    let servers: Vec<&str> = texts(&config["nameservers"]);
    let servers_path = path.child("nameservers");
    if spec.str_at(&["dnsPolicy"]) == "None" {
        if config.is_null() {
            let detail = "must provide `dnsConfig` when `dnsPolicy` is None";
            errors.push(FieldError::required(path, detail));
            return;
        }
        if servers.is_empty() {
            let detail = "must provide at least one DNS nameserver when `dnsPolicy` is None";
            errors.push(FieldError::required(&servers_path, detail));
            return;
        }
    }
    if servers.len() > NAME_SERVERS_MAX {
        let detail = format!("must not have more than {NAME_SERVERS_MAX} nameservers");
        errors.push(FieldError::invalid(
            &servers_path,
            Bad::Json(config["nameservers"].clone()),
            detail,
        ));
    }
    for (at, server) in servers.into_iter().enumerate() {
        errors.extend(validate_ip(&servers_path.index(at), server, &[]));
    }
    let searches = path.child("searches");
    let whole = || Bad::Json(config["searches"].clone());
    if config.items_at(&["searches"]).len() > SEARCH_PATHS_MAX {
        let detail = format!("must not have more than {SEARCH_PATHS_MAX} search paths");
        errors.push(FieldError::invalid(&searches, whole(), detail));
    }
    if projected::joined_length(config, "searches") > SEARCH_BYTES_MAX {
        let detail = format!(
            "must not have more than {SEARCH_BYTES_MAX} characters (including spaces) in the search list"
        );
        errors.push(FieldError::invalid(&searches, whole(), detail));
    }
    for (at, search) in texts(&config["searches"])
        .into_iter()
        .enumerate()
        .filter(|(_, search)| *search != ".")
    {
        let search = search.strip_suffix('.').unwrap_or(search);
        complain(
            errors,
            &searches.index(at),
            search,
            names::dns1123_subdomain_with_underscore(search),
        );
    }
    let option_path = path.child("options");
    for (at, option) in config.items_at(&["options"]).iter().enumerate() {
        if option.str_at(&["name"]).is_empty() {
            errors.push(FieldError::required(
                &option_path.index(at),
                "must not be empty",
            ));
        }
    }
}

fn validate_gates(spec: &Value, path: &Path<'_>, errors: &mut Complaints) {
    let readiness = path.child("readinessGates");
    for (at, gate) in spec.items_at(&["readinessGates"]).iter().enumerate() {
        if errors.is_full() {
            break;
        }
        let kind = gate.str_at(&["conditionType"]);
        complain(
            errors,
            &readiness.index(at).child("conditionType"),
            kind,
            names::qualified_name(kind),
        );
    }
    let scheduling = path.child("schedulingGates");
    let mut seen = BTreeSet::new();
    for (at, gate) in spec.items_at(&["schedulingGates"]).iter().enumerate() {
        if errors.is_full() {
            break;
        }
        let name = gate.str_at(&["name"]);
        let path = scheduling.index(at);
        complain(errors, &path, name, names::qualified_name(name));
        if !seen.insert(name) {
            errors.push(FieldError::duplicate(&path, name));
        }
    }
}

fn validate_hostname(spec: &Value, path: &Path<'_>, errors: &mut Complaints) {
    let Some(name) = spec.get("hostnameOverride").and_then(Value::as_str) else {
        return;
    };
    let path = path.child("hostnameOverride");
    for (field, what) in [
        ("setHostnameAsFQDN", "setHostnameAsFQDN"),
        ("hostNetwork", "hostNetwork"),
    ] {
        if spec.bool_at(&[field]) {
            errors.push(FieldError::forbidden(
                &path,
                format!("may not be specified when {what} is true"),
            ));
        }
    }
    if name.len() > HOSTNAME_BYTES_MAX {
        errors.push(FieldError::too_long(&path, HOSTNAME_BYTES_MAX));
    }
    complain(errors, &path, name, names::dns1123_subdomain(name));
}

fn validate_names(spec: &Value, path: &Path<'_>, errors: &mut Complaints) {
    let (account, older) = (
        spec.str_at(&["serviceAccountName"]),
        spec.str_at(&["serviceAccount"]),
    );
    if !account.is_empty() {
        complain(
            errors,
            &path.child("serviceAccountName"),
            account,
            names::dns1123_subdomain(account),
        );
    }
    if older != account {
        let quoted = polyplane_apimachinery::quote::quote(account);
        let detail = format!("must be the same as serviceAccountName: {quoted}");
        errors.push(FieldError::invalid(
            &path.child("deprecatedServiceAccount"),
            older,
            detail,
        ));
    }
    let node = spec.str_at(&["nodeName"]);
    if !node.is_empty() {
        complain(
            errors,
            &path.child("nodeName"),
            node,
            names::dns1123_subdomain(node),
        );
    }
    if let Some(seconds) = spec.int_at(&["activeDeadlineSeconds"]) {
        let most = i64::from(i32::MAX);
        if !(1..=most).contains(&seconds) {
            let detail = names::inclusive_range(1, most);
            errors.push(FieldError::invalid(
                &path.child("activeDeadlineSeconds"),
                seconds,
                detail,
            ));
        }
    }
    for field in ["hostname", "subdomain"] {
        let name = spec.str_at(&[field]);
        if !name.is_empty() {
            complain(errors, &path.child(field), name, names::dns1123_label(name));
        }
    }
}

fn validate_host_aliases(aliases: &[Value], path: &Path<'_>, errors: &mut Complaints) {
    for (at, alias) in aliases.iter().enumerate() {
        if errors.is_full() {
            break;
        }
        let path = path.index(at);
        errors.extend(validate_ip(&path.child("ip"), alias.str_at(&["ip"]), &[]));
        let hostnames = path.child("hostnames");
        for (name_at, name) in texts(&alias["hostnames"]).into_iter().enumerate() {
            complain(
                errors,
                &hostnames.index(name_at),
                name,
                names::dns1123_subdomain(name),
            );
        }
    }
}

fn validate_priority(spec: &Value, path: &Path<'_>, options: &PodOptions, errors: &mut Complaints) {
    let class = spec.str_at(&["priorityClassName"]);
    if !class.is_empty() {
        complain(
            errors,
            &path.child("priorityClassName"),
            class,
            names::dns1123_subdomain(class),
        );
    }
    if let Some(class) = spec.get("runtimeClassName").and_then(Value::as_str) {
        complain(
            errors,
            &path.child("runtimeClassName"),
            class,
            names::dns1123_subdomain(class),
        );
    }
    if let Some(policy) = spec.get("preemptionPolicy").and_then(Value::as_str) {
        one_of(
            policy,
            &["PreemptLowerPriority", "Never"],
            &path.child("preemptionPolicy"),
            errors,
        );
    }
    if has(spec, "overhead") {
        let mut limits = Value::object();
        limits.set(&["limits"], spec["overhead"].clone());
        resources::validate(
            &limits,
            resources::Names::Container,
            None,
            &path.child("overhead"),
            options,
            errors,
        );
    }
}

fn validate_group(spec: &Value, path: &Path<'_>, errors: &mut Complaints) {
    let group = &spec["schedulingGroup"];
    if group.is_null() {
        return;
    }
    let name_path = path.child("podGroupName");
    match group.get("podGroupName").and_then(Value::as_str) {
        None => {
            let detail = "must specify one of: `podGroupName`";
            errors.push(FieldError::invalid(&name_path, Value::Null, detail));
        }
        Some(name) => complain(errors, &name_path, name, names::dns1123_subdomain(name)),
    }
    if !spec.items_at(&["evictionResponders"]).is_empty() {
        errors.push(FieldError::forbidden(
            path,
            "may not be set when evictionResponders is set",
        ));
    }
}
