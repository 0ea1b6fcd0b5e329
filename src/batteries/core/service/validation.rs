//! Validation of a Service, and of a change of one.

use super::ip_families::{is_headless, is_reachable_from_outside, needs_health_check};
use crate::shared::network::addresses;
use crate::shared::validation::bad_value;
use polyplane_apimachinery::complaints::Complaints;
use polyplane_apimachinery::field_error::{Bad, FieldError, Path};
use polyplane_apimachinery::names;
use polyplane_apimachinery::{Value, json, labels};
use polyplane_registry::metadata::strings;
use std::collections::BTreeSet;

const HINTS: &str = "service.kubernetes.io/topology-aware-hints";
const TOPOLOGY: &str = "service.kubernetes.io/topology-mode";
const RANGES: &str = "service.beta.kubernetes.io/load-balancer-source-ranges";
const ONLY_BALANCERS: &str = "may only be used when `type` is 'LoadBalancer'";

/// Validates a Service; `old` is null for a new one.
pub fn validate(object: &Value, old: &Value) -> Complaints {
    let mut errors = Complaints::default();
    let spec = &object["spec"];
    let path = Path::new("spec");
    let kind = spec.str_at(&["type"]);
    validate_hints(object, &mut errors);
    if spec.items_at(&["ports"]).is_empty() && !is_headless(spec) && kind != "ExternalName" {
        errors.push(FieldError::required(&path.child("ports"), ""));
    }
    validate_by_type(spec, &path, &mut errors);
    validate_ports(spec, &path, &mut errors);
    if let Some(selector) = spec.get("selector").filter(|selector| !selector.is_null()) {
        errors.extend(labels::validate_labels(
            Some(selector),
            &path.child("selector"),
        ));
    }
    validate_affinity(spec, &path, &mut errors);
    errors.extend(validate_addresses(object, old));
    let before = strings(&old["spec"]["externalIPs"]);
    for (at, ip) in strings(&spec["externalIPs"]).iter().enumerate() {
        let list = path.child("externalIPs");
        let complaints = addresses::validate_ip(&list.index(at), ip, &before);
        if complaints.is_empty() {
            errors.extend(addresses::validate_endpoint_ip(&list.index(at), ip));
        }
        errors.extend(complaints);
    }
    let kinds = ["ClusterIP", "ExternalName", "LoadBalancer", "NodePort"];
    one_of(kind, &kinds, &path.child("type"), &mut errors);
    validate_port_numbers(spec, &path, &mut errors);
    validate_source_ranges(object, old, &mut errors);
    let allocates = !spec["allocateLoadBalancerNodePorts"].is_null();
    if allocates && kind != "LoadBalancer" {
        let place = path.child("allocateLoadBalancerNodePorts");
        errors.push(FieldError::forbidden(&place, ONLY_BALANCERS));
    }
    if !allocates && kind == "LoadBalancer" {
        errors.push(FieldError::required(
            &Path::new("allocateLoadBalancerNodePorts"),
            "",
        ));
    }
    validate_balancer_class(spec, &Value::Null, &mut errors);
    validate_traffic(spec, &path, &mut errors);
    errors
}

/// Checks a text that must be present and be one of several.
fn one_of(given: &str, valid: &[&str], path: &Path<'_>, errors: &mut Complaints) {
    if given.is_empty() {
        errors.push(FieldError::required(path, ""));
    } else if !valid.contains(&given) {
        errors.push(FieldError::not_supported(
            path,
            Bad::Json(given.into()),
            valid,
        ));
    }
}

fn validate_hints(object: &Value, errors: &mut Complaints) {
    let annotation = |name: &str| object["metadata"]["annotations"][name].as_str();
    if let (Some(mode), Some(hints)) = (annotation(TOPOLOGY), annotation(HINTS))
        && mode != hints
    {
        let metadata = Path::new("metadata");
        let annotations = metadata.child("annotations");
        let detail = format!("must match annotations[{HINTS}] when both are specified");
        errors.push(FieldError::invalid(
            &annotations.key(TOPOLOGY),
            mode,
            detail,
        ));
    }
}

fn validate_by_type(spec: &Value, path: &Path<'_>, errors: &mut Complaints) {
    match spec.str_at(&["type"]) {
        kind @ ("LoadBalancer" | "NodePort") if is_headless(spec) => {
            let list = path.child("clusterIPs");
            let detail = format!("may not be set to 'None' for {kind} services");
            errors.push(FieldError::invalid(&list.index(0), "None", detail));
        }
        "ExternalName" => {
            let set = [
                ("clusterIPs", !spec.items_at(&["clusterIPs"]).is_empty()),
                ("ipFamilies", !spec.items_at(&["ipFamilies"]).is_empty()),
                ("ipFamilyPolicy", !spec["ipFamilyPolicy"].is_null()),
            ];
            for (field, _) in set.iter().filter(|(_, set)| *set) {
                let detail = "may not be set for ExternalName services";
                errors.push(FieldError::forbidden(&path.child(field), detail));
            }
            let given = spec.str_at(&["externalName"]);
            let name = given.strip_suffix('.').unwrap_or(given);
            if name.is_empty() {
                errors.push(FieldError::required(&path.child("externalName"), ""));
            } else {
                for detail in names::dns1123_subdomain(name) {
                    errors.push(FieldError::invalid(
                        &path.child("externalName"),
                        name,
                        detail,
                    ));
                }
            }
        }
        _ => {}
    }
}

fn validate_ports(spec: &Value, path: &Path<'_>, errors: &mut Complaints) {
    let ports = spec.items_at(&["ports"]);
    let mut port_names = BTreeSet::new();
    let list = path.child("ports");
    for (at, port) in ports.iter().enumerate() {
        let place = list.index(at);
        let name = port.str_at(&["name"]);
        if name.is_empty() {
            if ports.len() > 1 {
                errors.push(FieldError::required(&place.child("name"), ""));
            }
        } else {
            for detail in names::dns1123_label(name) {
                errors.push(FieldError::invalid(&place.child("name"), name, detail));
            }
            if !port_names.insert(name) {
                errors.push(FieldError::duplicate(&place.child("name"), name));
            }
        }
        validate_port(port, &place, errors);
    }
}

fn validate_port(port: &Value, path: &Path<'_>, errors: &mut Complaints) {
    let number = port.int_at(&["port"]).unwrap_or(0);
    for detail in names::port_number(number) {
        errors.push(FieldError::invalid(&path.child("port"), number, detail));
    }
    let protocol = port.str_at(&["protocol"]);
    one_of(
        protocol,
        &["SCTP", "TCP", "UDP"],
        &path.child("protocol"),
        errors,
    );
    let (target, place) = (&port["targetPort"], path.child("targetPort"));
    let complaints = match target {
        Value::String(name) => names::port_name(name),
        other => names::port_number(other.as_int().unwrap_or(0)),
    };
    let shown = || {
        if target.is_null() {
            Value::Int(0)
        } else {
            target.clone()
        }
    };
    for detail in complaints {
        errors.push(FieldError::invalid(&place, shown(), detail));
    }
    if let Some(application) = port["appProtocol"].as_str() {
        for detail in names::qualified_name(application) {
            errors.push(FieldError::invalid(
                &path.child("appProtocol"),
                application,
                detail,
            ));
        }
    }
}

fn validate_port_numbers(spec: &Value, path: &Path<'_>, errors: &mut Complaints) {
    let ports = spec.items_at(&["ports"]);
    let list = path.child("ports");
    let node = |port: &Value| port.int_at(&["nodePort"]).unwrap_or(0);
    for (at, port) in ports.iter().enumerate() {
        if spec.str_at(&["type"]) == "ClusterIP" && node(port) != 0 {
            let detail = "may not be used when `type` is 'ClusterIP'";
            errors.push(FieldError::forbidden(
                &list.index(at).child("nodePort"),
                detail,
            ));
        }
    }
    let mut known = BTreeSet::new();
    for (at, port) in ports.iter().enumerate().filter(|(_, port)| node(port) != 0) {
        if !known.insert((port.str_at(&["protocol"]), node(port))) {
            errors.push(FieldError::duplicate(
                &list.index(at).child("nodePort"),
                node(port),
            ));
        }
    }
    let mut known = BTreeSet::new();
    for (at, port) in ports.iter().enumerate() {
        let (protocol, number) = (
            port.str_at(&["protocol"]),
            port.int_at(&["port"]).unwrap_or(0),
        );
        if !known.insert((protocol, number)) {
            let shown = json!({"protocol": protocol, "port": number});
            errors.push(FieldError::duplicate(
                &list.index(at),
                bad_value::typed("io.k8s.api.core.v1.ServicePort", &shown),
            ));
        }
    }
}

fn validate_affinity(spec: &Value, path: &Path<'_>, errors: &mut Complaints) {
    let affinity = spec.str_at(&["sessionAffinity"]);
    one_of(
        affinity,
        &["ClientIP", "None"],
        &path.child("sessionAffinity"),
        errors,
    );
    let place = path.child("sessionAffinityConfig");
    let config = &spec["sessionAffinityConfig"];
    if affinity == "None" && !config.is_null() {
        let detail = "must not be set when session affinity is None";
        errors.push(FieldError::forbidden(&place, detail));
    }
    if affinity != "ClientIP" {
        return;
    }
    let detail = "when session affinity type is ClientIP";
    let client = place.child("clientIP");
    let timeout = client.child("timeoutSeconds");
    if config.is_null() {
        errors.push(FieldError::required(&place, detail));
    } else if config["clientIP"].is_null() {
        errors.push(FieldError::required(&client, detail));
    } else {
        match config.int_at(&["clientIP", "timeoutSeconds"]) {
            None => errors.push(FieldError::required(&timeout, detail)),
            Some(seconds) if !(1..=86_400).contains(&seconds) => {
                let detail = "must be greater than 0 and less than 86400";
                errors.push(FieldError::invalid(&timeout, seconds, detail));
            }
            Some(_) => {}
        }
    }
}

/// Checks that addresses, families and policy are consistent.
pub fn validate_addresses(object: &Value, old: &Value) -> Complaints {
    let mut errors = Complaints::default();
    let spec = &object["spec"];
    if spec.str_at(&["type"]) == "ExternalName" {
        return errors;
    }
    let path = Path::new("spec");
    let place = path.child("clusterIPs");
    let shown = || Bad::Json(spec["clusterIPs"].clone());
    let single = spec.str_at(&["clusterIP"]);
    let several = strings(&spec["clusterIPs"]);
    match several.first() {
        None if !single.is_empty() => errors.push(FieldError::required(&place, "")),
        Some(_) if single.is_empty() => {
            let detail = "must be empty when `clusterIP` is not specified";
            errors.push(FieldError::invalid(&place, shown(), detail));
        }
        Some(first) if *first != single => {
            let detail = "first value must match `clusterIP`";
            errors.push(FieldError::invalid(&place, shown(), detail));
        }
        _ => {}
    }
    validate_families(spec, &path, &mut errors);
    let before = strings(&old["spec"]["clusterIPs"]);
    let mut bad_addresses = false;
    for (at, address) in several.iter().enumerate() {
        if at == 0 && *address == "None" {
            if several.len() > 1 {
                bad_addresses = true;
                let detail = "'None' must be the first and only value";
                errors.push(FieldError::invalid(&place, shown(), detail));
            }
            continue;
        }
        let complaints = addresses::validate_ip(&place.index(at), address, &before);
        bad_addresses |= !complaints.is_empty();
        errors.extend(complaints);
    }
    if several.len() > 2 {
        errors.push(FieldError::invalid(
            &place,
            shown(),
            "may only hold up to 2 values",
        ));
    }
    if bad_addresses {
        return errors;
    }
    if several.len() > 1 && addresses::is_dual_stack(&several) != Some(true) {
        let detail = "may specify no more than one IP for each IP family";
        errors.push(FieldError::invalid(&place, shown(), detail));
    }
    if !is_headless(spec) {
        for (at, (address, family)) in several.iter().zip(strings(&spec["ipFamilies"])).enumerate()
        {
            if matches!(family, "IPv4" | "IPv6")
                && (family == "IPv6") != addresses::is_ipv6(address)
            {
                let detail =
                    format!("expected an {family} value as indicated by `ipFamilies[{at}]`");
                errors.push(FieldError::invalid(&place.index(at), *address, detail));
            }
        }
    }
    errors
}

fn validate_families(spec: &Value, path: &Path<'_>, errors: &mut Complaints) {
    let mut seen = BTreeSet::new();
    let list = path.child("ipFamilies");
    for (at, family) in strings(&spec["ipFamilies"]).into_iter().enumerate() {
        if !["IPv4", "IPv6"].contains(&family) {
            let bad = Bad::Json(family.into());
            errors.push(FieldError::not_supported(
                &list.index(at),
                bad,
                &["IPv4", "IPv6"],
            ));
        }
        if !seen.insert(family) {
            errors.push(FieldError::duplicate(
                &list.index(at),
                Bad::Json(family.into()),
            ));
        }
    }
    let policies = ["PreferDualStack", "RequireDualStack", "SingleStack"];
    if let Some(policy) = spec["ipFamilyPolicy"]
        .as_str()
        .filter(|policy| !policies.contains(policy))
    {
        let bad = Bad::Json(policy.into());
        errors.push(FieldError::not_supported(
            &path.child("ipFamilyPolicy"),
            bad,
            &policies,
        ));
    }
}

fn validate_source_ranges(object: &Value, old: &Value, errors: &mut Complaints) {
    let balanced = object.str_at(&["spec", "type"]) == "LoadBalancer";
    let ranges = strings(&object["spec"]["loadBalancerSourceRanges"]);
    if !ranges.is_empty() {
        let spec = Path::new("spec");
        let path = spec.child("LoadBalancerSourceRanges");
        if !balanced {
            errors.push(FieldError::forbidden(&path, ONLY_BALANCERS));
        }
        let before = strings(&old["spec"]["loadBalancerSourceRanges"]);
        let before: Vec<&str> = before.into_iter().map(str::trim).collect();
        for (at, range) in ranges.iter().enumerate() {
            errors.extend(addresses::validate_cidr(
                &path.index(at),
                range.trim(),
                &before,
            ));
        }
        return;
    }
    let annotation = ["metadata", "annotations", RANGES];
    let Some(text) = object.at(&annotation).and_then(Value::as_str) else {
        return;
    };
    let metadata = Path::new("metadata");
    let annotations = metadata.child("annotations");
    let path = annotations.key(RANGES);
    if !balanced {
        errors.push(FieldError::forbidden(&path, ONLY_BALANCERS));
    }
    let changed = old.is_null() || old.str_at(&annotation) != text;
    if changed && !text.trim().is_empty() {
        for range in text.trim().split(',') {
            errors.extend(addresses::validate_cidr(&path, range.trim(), &[]));
        }
    }
}

/// Checks the class of a load balancer; `old` is null for a new Service.
pub fn validate_balancer_class(spec: &Value, old: &Value, errors: &mut Complaints) {
    let path = Path::new("spec");
    let place = path.child("loadBalancerClass");
    let balanced = |spec: &Value| spec.str_at(&["type"]) == "LoadBalancer";
    let class = &spec["loadBalancerClass"];
    if balanced(old) && balanced(spec) && *class != old["loadBalancerClass"] {
        errors.push(FieldError::invalid(
            &place,
            class.clone(),
            "may not change once set",
        ));
    }
    let Some(class) = class.as_str() else { return };
    if !balanced(spec) {
        errors.push(FieldError::forbidden(&place, ONLY_BALANCERS));
        return;
    }
    for detail in names::qualified_name(class) {
        errors.push(FieldError::invalid(&place, class, detail));
    }
}

fn validate_traffic(spec: &Value, path: &Path<'_>, errors: &mut Complaints) {
    let policy = spec.str_at(&["externalTrafficPolicy"]);
    let place = path.child("externalTrafficPolicy");
    if is_reachable_from_outside(spec) {
        one_of(policy, &["Cluster", "Local"], &place, errors);
    } else if !policy.is_empty() {
        let detail = "may only be set for externally-accessible services";
        errors.push(FieldError::invalid(
            &place,
            Bad::Json(policy.into()),
            detail,
        ));
    }
    let port = spec.int_at(&["healthCheckNodePort"]).unwrap_or(0);
    let place = path.child("healthCheckNodePort");
    match (needs_health_check(spec), port) {
        (false, 0) => {}
        (false, _) => {
            let detail = "may only be set when `type` is 'LoadBalancer' and `externalTrafficPolicy` is 'Local'";
            errors.push(FieldError::invalid(&place, port, detail));
        }
        (true, 0) => errors.push(FieldError::required(&place, "")),
        (true, _) => {
            for detail in names::port_number(port) {
                errors.push(FieldError::invalid(&place, port, detail));
            }
        }
    }
    let place = path.child("internalTrafficPolicy");
    match spec["internalTrafficPolicy"].as_str() {
        None => {
            if matches!(
                spec.str_at(&["type"]),
                "NodePort" | "LoadBalancer" | "ClusterIP"
            ) {
                errors.push(FieldError::required(&place, ""));
            }
        }
        Some(policy) => {
            let valid = ["Cluster", "Local"];
            if !valid.contains(&policy) {
                errors.push(FieldError::not_supported(
                    &place,
                    Bad::Json(policy.into()),
                    &valid,
                ));
            }
        }
    }
    let valid = ["PreferClose", "PreferSameZone", "PreferSameNode"];
    let given = spec["trafficDistribution"].as_str();
    if let Some(given) = given.filter(|given| !valid.contains(given)) {
        errors.push(FieldError::not_supported(
            &path.child("trafficDistribution"),
            given,
            &valid,
        ));
    }
}
