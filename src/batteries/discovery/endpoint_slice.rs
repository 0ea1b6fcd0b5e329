//! EndpointSlices: addresses of one family with their ports.

use crate::shared::network::addresses::{ip_warnings, is_ipv6, validate_endpoint_ip, validate_ip};
use crate::shared::object_metadata;
use crate::shared::table_cells::{age_cell, name_cell, some_of};
use crate::shared::validation::complaints::{IMMUTABLE, complain, covered, named, one_of};
use crate::shared::validation::domain_names::domain_name;
use crate::shared::validation::members::{present, texts};
use polyplane_apimachinery::complaints::Complaints;
use polyplane_apimachinery::field_error::{FieldError, Path};
use polyplane_apimachinery::names::{self, NameRule};
use polyplane_apimachinery::{Value, labels};
use polyplane_registry::Scope;
use polyplane_registry::strategy::{Context, Strategy};

const ENDPOINTS_MAX: usize = 1000;
const ADDRESSES_MAX: usize = 100;
const PORTS_MAX: usize = 20_000;
const TOPOLOGY_MAX: usize = 16;
const HINTS_MAX: usize = 8;
const PROTOCOLS: [&str; 3] = ["SCTP", "TCP", "UDP"];
const FAMILIES: [&str; 3] = ["FQDN", "IPv4", "IPv6"];
const HOSTNAME_LABEL: &str = "kubernetes.io/hostname";
const ZONE_LABEL: &str = "topology.kubernetes.io/zone";
const MANAGED_BY: &str = "endpointslice.kubernetes.io/managed-by";
const CONTROLLERS: [&str; 2] = [
    "endpointslice-controller.k8s.io",
    "endpointslicemirroring-controller.k8s.io",
];

/// A check that returns the complaints about a name.
type NameCheck = fn(&str) -> Vec<String>;

/// Behaviour of EndpointSlices.
#[derive(Debug)]
pub struct EndpointSlice;

impl Strategy for EndpointSlice {
    fn prepare_create(&self, _: &Context<'_>, object: &mut Value) {
        drop_topology(object, None);
    }

    fn prepare_update(&self, _: &Context<'_>, object: &mut Value, old: &Value) {
        count_generation(object, old);
        drop_topology(object, Some(old));
    }

    fn counts_generation(&self, _: &Value, _: &Value) -> Option<bool> {
        // It has been counted before the topology was dropped, whose change counts.
        Some(false)
    }

    fn validate_create(&self, _: &Context<'_>, object: &Value) -> Complaints {
        let mut errors = object_metadata::validate_finalizers(object);
        validate_family(&mut errors, object);
        validate_ports(&mut errors, object.items_at(&["ports"]));
        validate_endpoints(&mut errors, object);
        errors
    }

    fn validate_update(&self, _: &Context<'_>, object: &Value, old: &Value) -> Complaints {
        let mut errors =
            object_metadata::validate(object, Scope::Namespaced, NameRule::DnsSubdomain);
        validate_family(&mut errors, object);
        validate_ports(&mut errors, object.items_at(&["ports"]));
        if object["endpoints"] != old["endpoints"] {
            validate_endpoints(&mut errors, object);
        }
        let family = object.str_at(&["addressType"]);
        if family != old.str_at(&["addressType"]) {
            let path = Path::new("addressType");
            errors.push(FieldError::invalid(&path, named(family), IMMUTABLE).covered());
        }
        errors
    }

    fn warnings(&self, _: &Context<'_>, object: &Value, old: Option<&Value>) -> Vec<String> {
        let mut warnings = Vec::new();
        if old.is_none() && object.str_at(&["addressType"]) == "FQDN" {
            warnings.push("spec.addressType: FQDN endpoints are deprecated".to_owned());
        }
        if CONTROLLERS.contains(&object.str_at(&["metadata", "labels", MANAGED_BY])) {
            return warnings;
        }
        let list = Path::new("endpoints");
        for (at, endpoint) in object.items_at(&["endpoints"]).iter().enumerate() {
            let path = list.index(at);
            for (at, address) in texts(&endpoint["addresses"]).into_iter().enumerate() {
                warnings.extend(ip_warnings(&path.child("addresses").index(at), address));
            }
        }
        warnings
    }

    fn cells(&self, object: &Value, now: i64) -> Vec<Value> {
        let ports: Vec<String> = object.items_at(&["ports"]).iter().map(port_text).collect();
        let endpoints = object.items_at(&["endpoints"]).iter();
        let addresses: Vec<String> = endpoints
            .flat_map(|endpoint| texts(&endpoint["addresses"]))
            .map(str::to_owned)
            .collect();
        vec![
            name_cell(object),
            object.str_at(&["addressType"]).into(),
            some_of(&ports, "<unset>").into(),
            some_of(&addresses, "<unset>").into(),
            age_cell(object, now),
        ]
    }
}

fn port_text(port: &Value) -> String {
    match port.int_at(&["port"]) {
        Some(number) => number.to_string(),
        None => port["name"].as_str().unwrap_or("*").to_owned(),
    }
}

/// Increases the generation if the object has changed.
fn count_generation(object: &mut Value, old: &Value) {
    let fields = ["addressType", "endpoints", "ports"];
    let labels = object["metadata"]["labels"] != old["metadata"]["labels"];
    if labels || fields.iter().any(|field| object[*field] != old[*field]) {
        let generation = old.int_at(&["metadata", "generation"]).unwrap_or(0);
        object.set(&["metadata", "generation"], generation.saturating_add(1));
    }
}

/// Removes the deprecated topology of endpoints that changed. Its node becomes the endpoint's
/// `nodeName`.
fn drop_topology(object: &mut Value, old: Option<&Value>) {
    if old.is_some_and(|old| old["endpoints"] == object["endpoints"]) {
        return;
    }
    let endpoints = old
        .map(|old| old.items_at(&["endpoints"]))
        .unwrap_or_default()
        .iter();
    let nodes: Vec<&str> = endpoints
        .map(|endpoint| endpoint.str_at(&["deprecatedTopology", HOSTNAME_LABEL]))
        .filter(|name| !name.is_empty())
        .collect();
    for endpoint in object
        .at_mut(&["endpoints"])
        .and_then(Value::as_array_mut)
        .into_iter()
        .flatten()
    {
        let node = endpoint
            .str_at(&["deprecatedTopology", HOSTNAME_LABEL])
            .to_owned();
        let known = nodes.contains(&node.as_str()) && names::dns1123_subdomain(&node).is_empty();
        if endpoint["nodeName"].is_null() && known {
            endpoint.set(&["nodeName"], node);
        }
        drop(endpoint.remove(&["deprecatedTopology"]));
    }
}

fn validate_family(errors: &mut Complaints, object: &Value) {
    let path = Path::new("addressType");
    match object.str_at(&["addressType"]) {
        "" => errors.push(FieldError::required(&path, "").covered()),
        family => covered(errors, |errors| one_of(errors, &path, family, &FAMILIES)),
    }
}

fn validate_ports(errors: &mut Complaints, ports: &[Value]) {
    let list = Path::new("ports");
    if ports.len() > PORTS_MAX {
        errors.push(FieldError::too_many(&list, ports.len(), PORTS_MAX));
        return;
    }
    let mut seen = Vec::new();
    for (at, port) in ports.iter().enumerate() {
        let path = list.index(at);
        let name = port.str_at(&["name"]);
        if !name.is_empty() {
            complain(
                errors,
                &path.child("name"),
                name,
                names::dns1123_label(name),
            );
        }
        if seen.contains(&name) {
            errors.push(FieldError::duplicate(&path.child("name"), name));
        } else {
            seen.push(name);
        }
        match port["protocol"].as_str() {
            None => errors.push(FieldError::required(&path.child("protocol"), "")),
            Some(protocol) if !PROTOCOLS.contains(&protocol) => {
                let bad = named(protocol);
                errors.push(FieldError::not_supported(
                    &path.child("protocol"),
                    bad,
                    &PROTOCOLS,
                ));
            }
            Some(_) => {}
        }
        if let Some(protocol) = port["appProtocol"].as_str() {
            complain(
                errors,
                &path.child("appProtocol"),
                protocol,
                names::qualified_name(protocol),
            );
        }
    }
}

fn validate_endpoints(errors: &mut Complaints, object: &Value) {
    let list = Path::new("endpoints");
    let endpoints = object.items_at(&["endpoints"]);
    if endpoints.len() > ENDPOINTS_MAX {
        errors.push(FieldError::too_many(&list, endpoints.len(), ENDPOINTS_MAX));
        return;
    }
    for (at, endpoint) in endpoints.iter().enumerate() {
        let path = list.index(at);
        let place = path.child("addresses");
        let addresses = endpoint.items_at(&["addresses"]).len();
        if addresses == 0 {
            errors.push(FieldError::required(&place, "must contain at least 1 address").covered());
        } else if addresses > ADDRESSES_MAX {
            errors.push(FieldError::too_many(&place, addresses, ADDRESSES_MAX).covered());
        }
        for (at, address) in texts(&endpoint["addresses"]).into_iter().enumerate() {
            validate_address(errors, object.str_at(&["addressType"]), address, &place, at);
        }
        if let Some(node) = endpoint["nodeName"].as_str() {
            complain(
                errors,
                &path.child("nodeName"),
                node,
                names::dns1123_subdomain(node),
            );
        }
        let place = path.child("deprecatedTopology");
        let topology = &endpoint["deprecatedTopology"];
        let count = topology.as_object().map_or(0, |map| map.len());
        if count > TOPOLOGY_MAX {
            errors.push(FieldError::too_many(&place, count, TOPOLOGY_MAX));
        }
        errors.extend(labels::validate_labels(Some(topology), &place));
        if present(&topology[ZONE_LABEL]) {
            let detail = "reserved key was not removed in conversion";
            errors.push(FieldError::internal(&place.key(ZONE_LABEL), detail));
        }
        if let Some(host) = endpoint["hostname"].as_str() {
            complain(
                errors,
                &path.child("hostname"),
                host,
                names::dns1123_label(host),
            );
        }
        validate_hints(errors, &endpoint["hints"], &path.child("hints"));
    }
}

fn validate_address(
    errors: &mut Complaints,
    family: &str,
    address: &str,
    list: &Path<'_>,
    at: usize,
) {
    let path = list.index(at);
    let (found, six) = match family {
        "IPv4" => (validate_ip(&path, address, &[]), false),
        "IPv6" => {
            let complaints = names::ip_complaints(address).into_iter();
            (
                complaints
                    .map(|detail| FieldError::invalid(&path, address, detail))
                    .collect(),
                true,
            )
        }
        "FQDN" => return domain_name(errors, &path, address),
        _ => return,
    };
    if !found.is_empty() {
        errors.extend(found);
        return;
    }
    if is_ipv6(address) != six {
        errors.push(FieldError::invalid(
            list,
            address,
            format!("must be an {family} address"),
        ));
    }
    errors.extend(validate_endpoint_ip(&path, address));
}

fn validate_hints(errors: &mut Complaints, hints: &Value, path: &Path<'_>) {
    let rules: [(&str, NameCheck); 2] = [
        ("forZones", names::label_value),
        ("forNodes", names::dns1123_subdomain),
    ];
    for (field, rule) in rules {
        let list = path.child(field);
        let items = hints.items_at(&[field]);
        if items.len() > HINTS_MAX {
            errors.push(FieldError::too_many(&list, items.len(), HINTS_MAX));
            return;
        }
        let mut seen = Vec::new();
        for (at, item) in items.iter().enumerate() {
            let place = list.index(at);
            let name = item.str_at(&["name"]);
            if seen.contains(&name) {
                errors.push(FieldError::duplicate(&place.child("name"), name));
            } else {
                seen.push(name);
            }
            complain(errors, &place.child("name"), name, rule(name));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::{count_generation, drop_topology};
    use polyplane_apimachinery::{Value, json};

    #[test]
    fn topology_that_is_dropped_counts_as_a_change() {
        let with = |endpoints: Value| {
            let metadata = json!({"generation": 1i64});
            json!({"metadata": metadata, "addressType": "IPv4", "endpoints": endpoints})
        };
        let plain = json!({"addresses": ["10.0.0.1"]});
        let placed = json!({"addresses": ["10.0.0.1"], "deprecatedTopology": {"/a": "x"}});
        let old = with(json!([(plain.clone())]));
        for (endpoints, generation) in [(json!([plain]), 1), (json!([placed]), 2)] {
            let mut new = with(endpoints);
            count_generation(&mut new, &old);
            drop_topology(&mut new, Some(&old));
            assert_eq!(new["endpoints"], old["endpoints"]);
            assert_eq!(new.int_at(&["metadata", "generation"]), Some(generation));
        }
    }
}
