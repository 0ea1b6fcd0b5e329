//! Services: an address and ports for a set of endpoints.

pub mod allocation;
mod cluster_ips;
pub mod ip_families;
pub mod update;
pub mod validation;

use super::config_map::members;
use crate::shared::network::addresses;
use crate::shared::object_metadata;
use allocation as allocate;
use ip_families as families;
use polyplane_apimachinery::Value;
use polyplane_apimachinery::complaints::Complaints;
use polyplane_apimachinery::field_error::Path;
use polyplane_apimachinery::status::ApiError;
use polyplane_plane::Snapshot;
use polyplane_registry::metadata::strings;
use polyplane_registry::strategy::{Allocation, Context, Strategy, age};
use std::collections::BTreeSet;
use update as change;
use validation as checks;

/// Seconds for which a client stays with an endpoint, if affinity is on.
const AFFINITY_SECONDS: i64 = 10_800;
const HINTS: &str = "service.kubernetes.io/topology-aware-hints";
const TOPOLOGY: &str = "service.kubernetes.io/topology-mode";

/// Behaviour of Services.
#[derive(Debug)]
pub struct Service;

impl Strategy for Service {
    fn default(&self, object: &mut Value) {
        default_spec(object);
        let spec = &object["spec"];
        let kind = spec.str_at(&["type"]).to_owned();
        if families::is_reachable_from_outside(spec)
            && spec.str_at(&["externalTrafficPolicy"]).is_empty()
        {
            object.set(&["spec", "externalTrafficPolicy"], "Cluster");
        }
        let internal = matches!(kind.as_str(), "NodePort" | "LoadBalancer" | "ClusterIP");
        if internal && object["spec"]["internalTrafficPolicy"].is_null() {
            object.set(&["spec", "internalTrafficPolicy"], "Cluster");
        }
        if kind != "LoadBalancer" {
            return;
        }
        if object["spec"]["allocateLoadBalancerNodePorts"].is_null() {
            object.set(&["spec", "allocateLoadBalancerNodePorts"], true);
        }
        let ingress = object.at_mut(&["status", "loadBalancer", "ingress"]);
        for point in ingress.and_then(Value::as_array_mut).into_iter().flatten() {
            if !point.str_at(&["ip"]).is_empty() && point["ipMode"].is_null() {
                point.set(&["ipMode"], "VIP");
            }
        }
    }

    fn prepare_subresource(&self, _: &Context<'_>, object: &mut Value, old: &Value) {
        object.set(&["spec"], old["spec"].clone());
    }

    fn validate_create(&self, _: &Context<'_>, object: &Value) -> Complaints {
        let mut errors = object_metadata::validate_finalizers(object);
        errors.extend(checks::validate(object, &Value::Null));
        errors
    }

    fn validate_update(&self, context: &Context<'_>, object: &Value, old: &Value) -> Complaints {
        let old = families::filled_in(old, &context.settings.service_ranges);
        let mut errors = object_metadata::validate_update(object, &old);
        errors.extend(change::validate(object, &old));
        errors.extend(checks::validate(object, &old));
        errors
    }

    fn validate_subresource(&self, _: &Context<'_>, object: &Value, old: &Value) -> Complaints {
        let mut errors = object_metadata::validate_update(object, old);
        errors.extend(change::validate_balancer(object, old));
        errors
    }

    fn warnings(&self, context: &Context<'_>, object: &Value, _: Option<&Value>) -> Vec<String> {
        if !context.subresource.is_empty() {
            return ingress_warnings(object);
        }
        warnings(object)
    }

    fn cells(&self, object: &Value, now: i64) -> Vec<Value> {
        let spec = &object["spec"];
        let address = strings(&spec["clusterIPs"])
            .first()
            .copied()
            .unwrap_or("<none>");
        let labels: BTreeSet<String> = members(&spec["selector"])
            .map(|(key, value)| format!("{key}={}", value.as_str().unwrap_or("")))
            .collect();
        let labels: Vec<String> = labels.into_iter().collect();
        let selector = if labels.is_empty() {
            "<none>".to_owned()
        } else {
            labels.join(",")
        };
        vec![
            object.str_at(&["metadata", "name"]).into(),
            spec.str_at(&["type"]).into(),
            address.into(),
            external(object).into(),
            ports(spec).into(),
            age(object.str_at(&["metadata", "creationTimestamp"]), now),
            selector.into(),
        ]
    }

    fn allocate(
        &self,
        context: &Context<'_>,
        cut: &Snapshot,
        object: &mut Value,
        old: Option<&Value>,
    ) -> Result<Allocation, ApiError> {
        // Accepted, and shown to nobody. Validation, which is next, refuses other values.
        let spec = &object["spec"];
        let is_known = matches!(spec.str_at(&["internalTrafficPolicy"]), "Cluster" | "Local");
        if spec.str_at(&["type"]) == "ExternalName" && is_known {
            drop(object.remove(&["spec", "internalTrafficPolicy"]));
        }
        allocate::allocate(context, cut, object, old)
    }
}

fn default_spec(object: &mut Value) {
    let spec = &mut object["spec"];
    for (field, value) in [("sessionAffinity", "None"), ("type", "ClusterIP")] {
        if spec.str_at(&[field]).is_empty() {
            spec.set(&[field], value);
        }
    }
    match spec.str_at(&["sessionAffinity"]) {
        "None" => drop(spec.remove(&["sessionAffinityConfig"])),
        "ClientIP" => {
            let path = ["sessionAffinityConfig", "clientIP", "timeoutSeconds"];
            if spec.int_at(&path).is_none() {
                spec.set(&path, AFFINITY_SECONDS);
            }
        }
        _ => {}
    }
    for port in spec
        .get_mut("ports")
        .and_then(Value::as_array_mut)
        .into_iter()
        .flatten()
    {
        if port.str_at(&["protocol"]).is_empty() {
            port.set(&["protocol"], "TCP");
        }
        let unset = match &port["targetPort"] {
            Value::Null | Value::Int(0) => true,
            Value::String(name) => name.is_empty(),
            _ => false,
        };
        if unset {
            let number = port.int_at(&["port"]).unwrap_or(0);
            port.set(&["targetPort"], number);
        }
    }
}

fn ports(spec: &Value) -> String {
    let shown = spec.items_at(&["ports"]).iter().map(|port| {
        let (number, protocol) = (
            port.int_at(&["port"]).unwrap_or(0),
            port.str_at(&["protocol"]),
        );
        match port.int_at(&["nodePort"]).unwrap_or(0) {
            node if node > 0 => format!("{number}:{node}/{protocol}"),
            _ => format!("{number}/{protocol}"),
        }
    });
    let shown: Vec<String> = shown.collect();
    if shown.is_empty() {
        "<none>".to_owned()
    } else {
        shown.join(",")
    }
}

fn external(object: &Value) -> String {
    let spec = &object["spec"];
    let external = strings(&spec["externalIPs"]);
    let or = |list: Vec<&str>, none: &str| {
        if list.is_empty() {
            none.to_owned()
        } else {
            list.join(",")
        }
    };
    match spec.str_at(&["type"]) {
        "ClusterIP" | "NodePort" => or(external, "<none>"),
        "LoadBalancer" => {
            let ingress = object
                .items_at(&["status", "loadBalancer", "ingress"])
                .iter();
            let points: BTreeSet<&str> = ingress
                .map(|point| match point.str_at(&["ip"]) {
                    "" => point.str_at(&["hostname"]),
                    ip => ip,
                })
                .filter(|point| !point.is_empty())
                .collect();
            or(points.into_iter().chain(external).collect(), "<pending>")
        }
        "ExternalName" => spec.str_at(&["externalName"]).to_owned(),
        _ => "<unknown>".to_owned(),
    }
}

fn ingress_warnings(object: &Value) -> Vec<String> {
    let path = Path::new("status.loadBalancer.ingress");
    let ingress = object
        .items_at(&["status", "loadBalancer", "ingress"])
        .iter()
        .enumerate();
    let given = ingress.filter(|(_, point)| !point.str_at(&["ip"]).is_empty());
    given
        .flat_map(|(at, point)| addresses::ip_warnings(&path.index(at), point.str_at(&["ip"])))
        .collect()
}

fn warnings(object: &Value) -> Vec<String> {
    let mut warnings = Vec::new();
    let spec = &object["spec"];
    let path = Path::new("spec");
    if object.at(&["metadata", "annotations", HINTS]).is_some() {
        warnings.push(format!(
            "annotation {HINTS} is deprecated, please use {TOPOLOGY} instead"
        ));
    }
    let address = spec.str_at(&["clusterIP"]);
    let about = |field: &str, warnings: &mut Vec<String>| {
        for (at, ip) in strings(&spec[field]).iter().enumerate() {
            warnings.extend(addresses::ip_warnings(&path.child(field).index(at), ip));
        }
    };
    if !matches!(address, "" | "None") {
        about("clusterIPs", &mut warnings);
    }
    let kind = spec.str_at(&["type"]);
    let headless = kind == "ClusterIP" && address == "None";
    let external = !strings(&spec["externalIPs"]).is_empty();
    let balancer = spec.str_at(&["loadBalancerIP"]);
    let sticky = spec.str_at(&["sessionAffinity"]) != "None";
    let ignored = [
        (!balancer.is_empty(), "loadBalancerIP"),
        (external, "externalIPs"),
        (sticky, "SessionAffinity"),
    ];
    for (_, field) in ignored.iter().filter(|(set, _)| headless && *set) {
        warnings.push(format!("spec.{field} is ignored for headless services"));
    }
    about("externalIPs", &mut warnings);
    if external && !headless && kind != "ExternalName" {
        let text =
            "spec.externalIPs is deprecated and may no longer be implemented in some clusters";
        warnings.push(text.to_owned());
    }
    if !balancer.is_empty() {
        warnings.extend(addresses::ip_warnings(
            &path.child("loadBalancerIP"),
            balancer,
        ));
    }
    let ranges = path.child("loadBalancerSourceRanges");
    for (at, range) in strings(&spec["loadBalancerSourceRanges"])
        .iter()
        .enumerate()
    {
        warnings.extend(addresses::cidr_warnings(&ranges.index(at), range));
    }
    if kind == "ExternalName" && external {
        warnings.push("spec.externalIPs is ignored when spec.type is \"ExternalName\"".to_owned());
    }
    if kind != "ExternalName" && !spec.str_at(&["externalName"]).is_empty() {
        warnings
            .push("spec.externalName is ignored when spec.type is not \"ExternalName\"".to_owned());
    }
    if spec.str_at(&["trafficDistribution"]) == "PreferClose" {
        let text =
            "spec.trafficDistribution: \"PreferClose\" is deprecated; use \"PreferSameZone\"";
        warnings.push(text.to_owned());
    }
    warnings
}
