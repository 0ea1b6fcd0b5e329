//! Endpoints: the addresses and ports of a Service's pods, in subsets.

use crate::shared::network::addresses;
use crate::shared::object_metadata;
use polyplane_apimachinery::Value;
use polyplane_apimachinery::complaints::Complaints;
use polyplane_apimachinery::field_error::{Bad, FieldError, Path};
use polyplane_apimachinery::names::{self, NameRule};
use polyplane_registry::Scope;
use polyplane_registry::strategy::{Context, Strategy, age};

/// Number of addresses that a table shows.
const SHOWN_MAX: usize = 3;

/// Behaviour of Endpoints.
#[derive(Debug)]
pub struct Endpoints;

impl Strategy for Endpoints {
    fn validate_create(&self, _: &Context<'_>, object: &Value) -> Complaints {
        let mut errors = object_metadata::validate_finalizers(object);
        errors.extend(validate_subsets(object));
        errors
    }

    fn validate_update(&self, _: &Context<'_>, object: &Value, old: &Value) -> Complaints {
        let mut errors = object_metadata::validate_update(object, old);
        errors.extend(object_metadata::validate(
            object,
            Scope::Namespaced,
            NameRule::DnsSubdomain,
        ));
        if object["subsets"] != old["subsets"] {
            errors.extend(validate_subsets(object));
        }
        errors
    }

    fn warnings(&self, _: &Context<'_>, object: &Value, _: Option<&Value>) -> Vec<String> {
        let manager = ["metadata", "labels", "endpoints.kubernetes.io/managed-by"];
        if object.str_at(&manager) == "endpoint-controller" {
            return Vec::new();
        }
        let mut warnings = Vec::new();
        let path = Path::new("subsets");
        for (at, subset) in object.items_at(&["subsets"]).iter().enumerate() {
            for list in ["addresses", "notReadyAddresses"] {
                for (place, address) in subset.items_at(&[list]).iter().enumerate() {
                    let subset_path = path.index(at);
                    let list_path = subset_path.child(list);
                    let address_path = list_path.index(place);
                    let ip = address.str_at(&["ip"]);
                    warnings.extend(addresses::ip_warnings(&address_path.child("ip"), ip));
                }
            }
        }
        warnings
    }

    fn cells(&self, object: &Value, now: i64) -> Vec<Value> {
        vec![
            object.str_at(&["metadata", "name"]).into(),
            shown(object).into(),
            age(object.str_at(&["metadata", "creationTimestamp"]), now),
        ]
    }
}

/// Returns the first addresses, and the number of further ones.
fn shown(object: &Value) -> String {
    let subsets = object.items_at(&["subsets"]);
    if subsets.is_empty() {
        return "<none>".to_owned();
    }
    let mut list = Vec::new();
    for subset in subsets {
        let ips = || {
            subset
                .items_at(&["addresses"])
                .iter()
                .map(|address| address.str_at(&["ip"]))
        };
        let ports = subset.items_at(&["ports"]);
        if ports.is_empty() {
            list.extend(ips().map(str::to_owned));
        }
        for port in ports {
            let port = port.int_at(&["port"]).unwrap_or(0);
            list.extend(ips().map(|ip| match ip.contains(':') {
                true => format!("[{ip}]:{port}"),
                false => format!("{ip}:{port}"),
            }));
        }
    }
    let more = list.len().saturating_sub(SHOWN_MAX);
    list.truncate(SHOWN_MAX);
    let list = list.join(",");
    if more > 0 {
        format!("{list} + {more} more...")
    } else {
        list
    }
}

fn validate_subsets(object: &Value) -> Complaints {
    let mut errors = Complaints::default();
    let subsets = Path::new("subsets");
    for (at, subset) in object.items_at(&["subsets"]).iter().enumerate() {
        let path = subsets.index(at);
        let lists = ["addresses", "notReadyAddresses"];
        if lists.iter().all(|list| subset.items_at(&[list]).is_empty()) {
            let detail = "must specify `addresses` or `notReadyAddresses`";
            errors.push(FieldError::required(&path, detail));
        }
        for list in lists {
            for (place, address) in subset.items_at(&[list]).iter().enumerate() {
                let list_path = path.child(list);
                validate_address(address, &list_path.index(place), &mut errors);
            }
        }
        let ports = subset.items_at(&["ports"]);
        let names = if ports.len() > 1 {
            PortNames::Required
        } else {
            PortNames::Optional
        };
        for (place, port) in ports.iter().enumerate() {
            let list_path = path.child("ports");
            validate_port(port, names, &list_path.index(place), &mut errors);
        }
    }
    errors
}

fn validate_address(address: &Value, path: &Path<'_>, errors: &mut Complaints) {
    let ip = address.str_at(&["ip"]);
    errors.extend(addresses::validate_ip(&path.child("ip"), ip, &[]));
    let hostname = address.str_at(&["hostname"]);
    if !hostname.is_empty() {
        for detail in names::dns1123_label(hostname) {
            errors.push(FieldError::invalid(
                &path.child("hostname"),
                hostname,
                detail,
            ));
        }
    }
    if let Some(node) = address["nodeName"].as_str() {
        for detail in names::dns1123_subdomain(node) {
            errors.push(FieldError::invalid(&path.child("nodeName"), node, detail));
        }
    }
    errors.extend(addresses::validate_endpoint_ip(&path.child("ip"), ip));
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum PortNames {
    Required,
    Optional,
}

fn validate_port(port: &Value, port_names: PortNames, path: &Path<'_>, errors: &mut Complaints) {
    let name = port.str_at(&["name"]);
    if name.is_empty() && port_names == PortNames::Required {
        errors.push(FieldError::required(&path.child("name"), ""));
    } else if !name.is_empty() {
        for detail in names::dns1123_label(name) {
            errors.push(FieldError::invalid(&path.child("name"), name, detail));
        }
    }
    let number = port.int_at(&["port"]).unwrap_or(0);
    for detail in names::port_number(number) {
        errors.push(FieldError::invalid(&path.child("port"), number, detail));
    }
    let protocol = port.str_at(&["protocol"]);
    if protocol.is_empty() {
        errors.push(FieldError::required(&path.child("protocol"), ""));
    } else if !["SCTP", "TCP", "UDP"].contains(&protocol) {
        let bad = Bad::Json(protocol.into());
        let valid = ["SCTP", "TCP", "UDP"];
        errors.push(FieldError::not_supported(
            &path.child("protocol"),
            bad,
            &valid,
        ));
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

#[cfg(test)]
mod tests {
    use super::*;
    use polyplane_apimachinery::complaints::COUNT_MAX;
    use polyplane_apimachinery::json;

    /// No loop of this kind asks whether there are enough.
    #[test]
    fn complaints_about_many_addresses_are_bounded() {
        let addresses = vec![json!({"ip": "x"}); 4 * COUNT_MAX];
        let object = json!({"subsets": [{"addresses": addresses}]});
        let errors = validate_subsets(&object);
        assert!(errors.is_full() && errors.len() <= COUNT_MAX);
    }
}
