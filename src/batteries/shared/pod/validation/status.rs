//! Validation of the status that a node reports for a pod.

use super::{PodOptions, devices, security, update};
use crate::shared::network::addresses::{is_dual_stack, validate_ip};
use crate::shared::resource_names::is_huge_pages;
use crate::shared::validation::complaints::{complain, named};
use crate::shared::validation::{bad_value, complaints, numbers};
use polyplane_apimachinery::complaints::Complaints;
use polyplane_apimachinery::field_error::{FieldError, Path};
use polyplane_apimachinery::{Value, names};
use std::collections::BTreeSet;

const NEGATIVE: &str = "must be a non-negative integer";
/// Upstream's own conditions, whose types need no check.
const OWN_CONDITIONS: [&str; 3] = ["PodScheduled", "Ready", "Initialized"];

/// Validates a changed status, without the common rules of metadata.
pub fn validate(new: &Value, old: &Value, options: &PodOptions) -> Complaints {
    let mut errors = Complaints::default();
    update::validate_annotations(new, old, options, &mut errors);
    let path = Path::new("status");
    let (status, before, spec) = (&new["status"], &old["status"], &new["spec"]);
    validate_conditions(
        status.items_at(&["conditions"]),
        &path.child("conditions"),
        &mut errors,
    );
    validate_nomination(status, before, &old["spec"], &path, &mut errors);
    let class = status.str_at(&["qosClass"]);
    if class != before.str_at(&["qosClass"]) {
        errors.push(FieldError::invalid(
            &path.child("qosClass"),
            named(class),
            complaints::IMMUTABLE,
        ));
    }
    for (list, containers) in [
        ("containerStatuses", "containers"),
        ("initContainerStatuses", "initContainers"),
    ] {
        validate_transitions(
            status,
            before,
            list,
            Some(&old["spec"][containers]),
            &old["spec"],
            &path,
            &mut errors,
        );
    }
    validate_transitions(
        status,
        before,
        "ephemeralContainerStatuses",
        None,
        &old["spec"],
        &path,
        &mut errors,
    );
    validate_claims(status, spec, &path, &mut errors);
    validate_pod_ips(status, before, &path.child("podIPs"), &mut errors);
    validate_host_ips(status, before, &path.child("hostIPs"), &mut errors);
    for list in [
        "containerStatuses",
        "initContainerStatuses",
        "ephemeralContainerStatuses",
    ] {
        validate_users(
            status.items_at(&[list]),
            spec,
            &path.child(list),
            &mut errors,
        );
    }
    devices::validate(status, spec, &path, &mut errors);
    errors
}

fn validate_claims(status: &Value, spec: &Value, path: &Path<'_>, errors: &mut Complaints) {
    validate_claim_statuses(status, spec, &path.child("resourceClaimStatuses"), errors);
    let extended = path.child("extendedResourceClaimStatus");
    validate_extended_claim(status, spec, &extended, errors);
    let allocatable = path.child("nodeAllocatableResourceClaimStatuses");
    validate_node_allocatable(status, spec, &allocatable, errors);
}

fn validate_conditions(conditions: &[Value], path: &Path<'_>, errors: &mut Complaints) {
    for (at, condition) in conditions.iter().enumerate() {
        let path = path.index(at);
        generation(condition, &path, errors);
        let kind = condition.str_at(&["type"]);
        if !OWN_CONDITIONS.contains(&kind) {
            complain(
                errors,
                &path.child("Type"),
                kind,
                names::qualified_name(kind),
            );
        }
    }
}

fn generation(owner: &Value, path: &Path<'_>, errors: &mut Complaints) {
    let field = "observedGeneration";
    if let Some(number) = owner.int_at(&[field]).filter(|number| *number < 0) {
        errors.push(FieldError::invalid(&path.child(field), number, NEGATIVE));
    }
}

fn validate_nomination(
    status: &Value,
    before: &Value,
    old: &Value,
    path: &Path<'_>,
    errors: &mut Complaints,
) {
    let field = "nominatedNodeName";
    let name = status.str_at(&[field]);
    if !name.is_empty() && name != before.str_at(&[field]) {
        let path = path.child(field);
        complain(errors, &path, name, names::dns1123_subdomain(name));
        if !old.str_at(&["nodeName"]).is_empty() {
            let detail = "may not be set on pods that are already bound to a node";
            errors.push(FieldError::forbidden(&path, detail));
        }
    }
    generation(status, path, errors);
}

/// Returns true if a rule of the pod may restart every container.
fn all_may_restart(spec: &Value) -> bool {
    let containers = ["initContainers", "containers"]
        .into_iter()
        .flat_map(|list| spec.items_at(&[list]));
    let mut rules = containers.flat_map(|container| container.items_at(&["restartPolicyRules"]));
    rules.any(|rule| rule.str_at(&["action"]) == "RestartAllContainers")
}

/// Returns true if a container is restarted after it has ended with this exit code.
fn restarts(container: &Value, spec: &Value, code: i64) -> bool {
    if let Some(policy) = container.get("restartPolicy").and_then(Value::as_str) {
        let matching = container
            .items_at(&["restartPolicyRules"])
            .iter()
            .find(|rule| {
                let codes = &rule["exitCodes"];
                let listed = codes
                    .items_at(&["values"])
                    .iter()
                    .any(|value| value.as_int() == Some(code));
                match codes.str_at(&["operator"]) {
                    "In" => listed,
                    "NotIn" => !listed,
                    _ => false,
                }
            });
        if matching.is_some_and(|rule| {
            ["Restart", "RestartAllContainers"].contains(&rule.str_at(&["action"]))
        }) {
            return true;
        }
        match policy {
            "Always" => return true,
            "OnFailure" => return code != 0,
            "Never" => return false,
            _ => {}
        }
    }
    match spec.str_at(&["restartPolicy"]) {
        "OnFailure" => code != 0,
        "Never" => false,
        _ => true,
    }
}

/// Checks that an ended container stays ended, unless it is restarted. Ephemeral containers, which
/// are passed without a list, are never restarted.
fn validate_transitions(
    status: &Value,
    before: &Value,
    list: &str,
    containers: Option<&Value>,
    spec: &Value,
    path: &Path<'_>,
    errors: &mut Complaints,
) {
    if containers.is_some() && all_may_restart(spec) {
        return;
    }
    let path = path.child(list);
    for (at, then) in before.items_at(&[list]).iter().enumerate() {
        let Some(terminated) = then
            .at(&["state", "terminated"])
            .filter(|one| !one.is_null())
        else {
            continue;
        };
        let name = then.str_at(&["name"]);
        let mut revived = status
            .items_at(&[list])
            .iter()
            .filter(|now| now.str_at(&["name"]) == name && now["state"]["terminated"].is_null());
        let code = terminated.int_at(&["exitCode"]).unwrap_or(0);
        let own = containers.and_then(Value::as_array).unwrap_or(&[]);
        let own = own
            .iter()
            .find(|container| container.str_at(&["name"]) == name);
        if revived.next().is_some() && !own.is_some_and(|container| restarts(container, spec, code))
        {
            let detail = "may not be transitioned to non-terminated state";
            errors.push(FieldError::forbidden(
                &path.index(at).child("state"),
                detail,
            ));
        }
    }
}

fn validate_claim_statuses(status: &Value, spec: &Value, path: &Path<'_>, errors: &mut Complaints) {
    let mut seen = BTreeSet::new();
    for (at, claim) in status
        .items_at(&["resourceClaimStatuses"])
        .iter()
        .enumerate()
    {
        let path = path.index(at);
        let name = claim.str_at(&["name"]);
        if !spec
            .items_at(&["resourceClaims"])
            .iter()
            .any(|one| one.str_at(&["name"]) == name)
        {
            let detail = "must match the name of an entry in `spec.resourceClaims`";
            errors.push(FieldError::invalid(&path.child("name"), name, detail));
        }
        if !seen.insert(name) {
            errors.push(FieldError::duplicate(&path.child("name"), name));
        }
        if let Some(name) = claim.get("resourceClaimName").and_then(Value::as_str) {
            complain(
                errors,
                &path.child("resourceClaimName"),
                name,
                names::dns1123_subdomain(name),
            );
        }
    }
}

fn validate_extended_claim(status: &Value, spec: &Value, path: &Path<'_>, errors: &mut Complaints) {
    let claim = &status["extendedResourceClaimStatus"];
    if claim.is_null() {
        return;
    }
    let mappings = path.child("requestMappings");
    let list = claim.items_at(&["requestMappings"]);
    if list.is_empty() {
        errors.push(FieldError::required(
            &mappings,
            "at least one request mapping is required",
        ));
    }
    let mut seen = BTreeSet::new();
    for (at, mapping) in list.iter().enumerate() {
        let own = mappings.index(at);
        let fields = ["containerName", "resourceName", "requestName"];
        let key = fields.map(|field| mapping.str_at(&[field]));
        let [name, resource, request] = key;
        validate_mapped_request(spec, name, resource, &own, errors);
        complain(
            errors,
            &path.child("requestName"),
            request,
            names::dns1123_label(request),
        );
        if !seen.insert(key) {
            for (field, value) in fields.into_iter().zip(key) {
                errors.push(FieldError::duplicate(&own.child(field), value));
            }
        }
    }
    let name = claim.str_at(&["resourceClaimName"]);
    if name.is_empty() {
        errors.push(FieldError::required(&path.child("resourceClaimName"), ""));
    } else {
        complain(
            errors,
            &path.child("resourceClaimName"),
            name,
            names::dns1123_subdomain(name),
        );
    }
}

/// Checks that the container exists and requests the resource.
fn validate_mapped_request(
    spec: &Value,
    name: &str,
    resource: &str,
    path: &Path<'_>,
    errors: &mut Complaints,
) {
    let lists = ["containers", "initContainers"];
    let container = lists
        .iter()
        .flat_map(|list| spec.items_at(&[list]).iter().rev())
        .find(|container| container.str_at(&["name"]) == name);
    let (field, bad, detail) = match container {
        Some(container) if container["resources"]["requests"].get(resource).is_none() => (
            "resourceName",
            resource,
            "must match the extended resource name of an entry in spec.initContainers.resources.requests or spec.containers.resources.requests",
        ),
        None => (
            "containerName",
            name,
            "must match the name of an entry in spec.initContainers.name or spec.containers.name",
        ),
        Some(_) => return,
    };
    errors.push(FieldError::invalid(&path.child(field), bad, detail));
}

fn validate_node_allocatable(
    status: &Value,
    spec: &Value,
    path: &Path<'_>,
    errors: &mut Complaints,
) {
    let claims = spec
        .items_at(&["resourceClaims"])
        .iter()
        .chain(status.items_at(&["resourceClaimStatuses"]));
    let known: BTreeSet<&str> = claims
        .filter_map(|claim| claim.get("resourceClaimName").and_then(Value::as_str))
        .collect();
    for (at, claim) in status
        .items_at(&["nodeAllocatableResourceClaimStatuses"])
        .iter()
        .enumerate()
    {
        let path = path.index(at);
        let name = claim.str_at(&["resourceClaimName"]);
        if name.is_empty() {
            continue;
        }
        if !known.contains(name) {
            let detail = "no mapping found in pod reference";
            errors.push(FieldError::invalid(
                &path.child("resourceClaimName"),
                name,
                detail,
            ));
        }
        for list in ["mapping", "overhead"] {
            let list_path = path.child(list);
            for (at, item) in claim.items_at(&[list]).iter().enumerate() {
                validate_allocation(item, list, &list_path.index(at), errors);
            }
        }
    }
}

fn validate_allocation(item: &Value, list: &str, path: &Path<'_>, errors: &mut Complaints) {
    let name = item.str_at(&["name"]);
    if !matches!(name, "cpu" | "memory") && !is_huge_pages(name) {
        let detail = "must be a node allocatable resource name";
        errors.push(FieldError::invalid(
            &path.child("name"),
            named(name),
            detail,
        ));
    }
    let fields: &[&str] = if list == "mapping" {
        &["quantity"]
    } else {
        &["perPod", "perContainer"]
    };
    if list == "overhead" && fields.iter().all(|field| item[*field].is_null()) {
        errors.push(FieldError::invalid(
            path,
            "",
            "at least one of perPod or perContainer must be set",
        ));
    }
    for field in fields {
        if numbers::sign(&item[*field]) == Some(-1) {
            errors.push(FieldError::invalid(
                &path.child(field),
                item[*field].clone(),
                "must be non-negative",
            ));
        }
    }
}

fn addresses<'a>(status: &'a Value, list: &str) -> Vec<&'a str> {
    status
        .items_at(&[list])
        .iter()
        .map(|item| item.str_at(&["ip"]))
        .collect()
}

fn validate_families(
    list: &[&str],
    shown: &Value,
    definition: &'static str,
    path: &Path<'_>,
    errors: &mut Complaints,
) {
    if list.len() < 2 {
        return;
    }
    let dual = is_dual_stack(list);
    if dual.is_none() {
        let bad = list
            .iter()
            .find(|value| is_dual_stack(&[value]).is_none())
            .copied()
            .unwrap_or("");
        let detail = format!(
            "failed to check for dual stack with error:failed to parse IP string \"{bad}\""
        );
        errors.push(FieldError::internal(path, detail));
    }
    if dual != Some(true) || list.len() > 2 {
        let bad = bad_value::list(definition, shown.as_array().unwrap_or(&[]));
        errors.push(FieldError::invalid(
            path,
            bad,
            "may specify no more than one IP for each IP family",
        ));
    }
}

fn validate_pod_ips(status: &Value, before: &Value, path: &Path<'_>, errors: &mut Complaints) {
    const TYPE: &str = "io.k8s.api.core.v1.PodIP";
    let (list, old) = (addresses(status, "podIPs"), addresses(before, "podIPs"));
    for (at, address) in list.iter().enumerate() {
        errors.extend(validate_ip(&path.index(at), address, &old));
    }
    validate_families(&list, &status["podIPs"], TYPE, path, errors);
    let single = status.str_at(&["podIP"]);
    match list.first() {
        Some(first) if !single.is_empty() && *first != single => {
            errors.push(FieldError::invalid(
                &path.index(0).child("ip"),
                *first,
                "must be equal to `podIP`",
            ));
        }
        first if first.is_some() == single.is_empty() => {
            let bad = bad_value::list(TYPE, status.items_at(&["podIPs"]));
            let detail = "podIP and podIPs must either both be set or both be unset";
            errors.push(FieldError::invalid(path, bad, detail));
        }
        _ => {}
    }
}

fn validate_host_ips(status: &Value, before: &Value, path: &Path<'_>, errors: &mut Complaints) {
    let (list, old) = (addresses(status, "hostIPs"), addresses(before, "hostIPs"));
    let Some(first) = list.first() else { return };
    if *first != status.str_at(&["hostIP"]) {
        errors.push(FieldError::invalid(
            &path.index(0).child("ip"),
            *first,
            "must be equal to `hostIP`",
        ));
    }
    for (at, address) in list.iter().enumerate() {
        errors.extend(validate_ip(&path.index(at), address, &old));
    }
    validate_families(
        &list,
        &status["hostIPs"],
        "io.k8s.api.core.v1.HostIP",
        path,
        errors,
    );
}

fn validate_users(statuses: &[Value], spec: &Value, path: &Path<'_>, errors: &mut Complaints) {
    let os = spec.get("os").map_or("linux", |os| os.str_at(&["name"]));
    for (at, status) in statuses.iter().enumerate() {
        let user = &status["user"]["linux"];
        if user.is_null() {
            continue;
        }
        let status_path = path.index(at);
        let user_path = status_path.child("user");
        let path = user_path.child("linux");
        if os == "windows" {
            errors.push(FieldError::forbidden(
                &path,
                "cannot be set for a windows pod",
            ));
        }
        if os != "linux" {
            continue;
        }
        let id = user.int_at(&["uid"]).unwrap_or(0);
        if !(0..=i64::from(u32::MAX)).contains(&id) {
            let detail = format!("must be between 0 and {}, inclusive", u32::MAX);
            errors.push(FieldError::invalid(&path.child("uid"), id, detail));
        }
        let group = user.int_at(&["gid"]).unwrap_or(0);
        complain(
            errors,
            &path.child("gid"),
            group,
            names::user_or_group_id(group),
        );
        security::validate_supplemental_groups(user, &path, errors);
    }
}
