//! NetworkPolicies: which peers may connect to which pods.

use crate::shared::network::addresses::{cidr_warnings, validate_cidr};
use crate::shared::object_metadata;
use crate::shared::table_cells::{age_cell, name_cell};
use crate::shared::validation::complaints::{complain, named};
use crate::shared::validation::members::{present, texts};
use crate::shared::validation::selectors::{SelectorValues, selector, selector_values};
use polyplane_apimachinery::Value;
use polyplane_apimachinery::complaints::Complaints;
use polyplane_apimachinery::field_error::{Bad, FieldError, Path};
use polyplane_apimachinery::labels::Selector;
use polyplane_apimachinery::names;
use polyplane_registry::strategy::{Context, Strategy};
use std::net::IpAddr;

/// The lists of rules and the names of their peers.
const DIRECTIONS: [(&str, &str); 2] = [("ingress", "from"), ("egress", "to")];
const PROTOCOLS: [&str; 3] = ["TCP", "UDP", "SCTP"];
const TYPES: [&str; 2] = ["Ingress", "Egress"];

/// Behaviour of NetworkPolicies.
#[derive(Debug)]
pub struct NetworkPolicy;

/// Invalid values that were stored before and stay allowed.
struct Before<'v> {
    values: SelectorValues,
    ranges: Vec<&'v str>,
}

impl Strategy for NetworkPolicy {
    fn default(&self, object: &mut Value) {
        let spec = &object["spec"];
        if spec.items_at(&["policyTypes"]).is_empty() {
            let egress = !spec.items_at(&["egress"]).is_empty();
            let types = if egress { &TYPES[..] } else { &TYPES[..1] };
            let types: Vec<Value> = types.iter().map(|name| Value::string(*name)).collect();
            object.set(&["spec", "policyTypes"], types);
        }
    }

    fn counts_empties(&self) -> bool {
        true
    }

    fn validate_create(&self, _: &Context<'_>, object: &Value) -> Complaints {
        let mut errors = object_metadata::validate_finalizers(object);
        let before = Before {
            values: SelectorValues::Checked,
            ranges: Vec::new(),
        };
        validate_spec(&mut errors, &object["spec"], &before);
        errors
    }

    fn validate_update(&self, _: &Context<'_>, object: &Value, old: &Value) -> Complaints {
        let mut errors = object_metadata::validate_update(object, old);
        let mut ranges = Vec::new();
        each_block(&old["spec"], |block, _| {
            ranges.push(block.str_at(&["cidr"]));
            ranges.extend(texts(&block["except"]));
        });
        let before = Before {
            values: selector_values(&old["spec"]["podSelector"]),
            ranges,
        };
        validate_spec(&mut errors, &object["spec"], &before);
        errors
    }

    fn warnings(&self, _: &Context<'_>, object: &Value, _: Option<&Value>) -> Vec<String> {
        let mut warnings = Vec::new();
        each_block(&object["spec"], |block, path| {
            warnings.extend(cidr_warnings(&path.child("cidr"), block.str_at(&["cidr"])));
            for (at, except) in texts(&block["except"]).into_iter().enumerate() {
                warnings.extend(cidr_warnings(&path.child("except").index(at), except));
            }
        });
        warnings
    }

    fn cells(&self, object: &Value, now: i64) -> Vec<Value> {
        let selector = match Selector::from_label_selector(Some(&object["spec"]["podSelector"])) {
            Err(_) => "<error>".to_owned(),
            Ok(selector) => match selector.to_string() {
                text if text.is_empty() => "<none>".to_owned(),
                text => text,
            },
        };
        vec![name_cell(object), selector.into(), age_cell(object, now)]
    }
}

/// Visits every block of addresses.
fn each_block<'v>(spec: &'v Value, mut visit: impl FnMut(&'v Value, &Path<'_>)) {
    let path = Path::new("spec");
    for (direction, peers) in DIRECTIONS {
        let list = path.child(direction);
        for (at, rule) in spec.items_at(&[direction]).iter().enumerate() {
            let rule_path = list.index(at);
            let peers_path = rule_path.child(peers);
            for (at, peer) in rule.items_at(&[peers]).iter().enumerate() {
                if present(&peer["ipBlock"]) {
                    visit(&peer["ipBlock"], &peers_path.index(at).child("ipBlock"));
                }
            }
        }
    }
}

fn validate_spec(errors: &mut Complaints, spec: &Value, before: &Before<'_>) {
    let path = Path::new("spec");
    selector(
        errors,
        &path.child("podSelector"),
        &spec["podSelector"],
        before.values,
    );
    for (direction, peers) in DIRECTIONS {
        let list = path.child(direction);
        for (at, rule) in spec.items_at(&[direction]).iter().enumerate() {
            let path = list.index(at);
            for (at, port) in rule.items_at(&["ports"]).iter().enumerate() {
                validate_port(errors, port, &path.child("ports").index(at));
            }
            for (at, peer) in rule.items_at(&[peers]).iter().enumerate() {
                validate_peer(errors, peer, &path.child(peers).index(at), before);
            }
        }
    }
    let place = path.child("policyTypes");
    let types = texts(&spec["policyTypes"]);
    if types.len() > TYPES.len() {
        let bad = Bad::Json(spec["policyTypes"].clone());
        errors.push(FieldError::invalid(
            &place,
            bad,
            "may not specify more than two policyTypes",
        ));
        return;
    }
    for (at, name) in types
        .into_iter()
        .enumerate()
        .filter(|(_, name)| !TYPES.contains(name))
    {
        errors.push(FieldError::not_supported(
            &place.index(at),
            named(name),
            &TYPES,
        ));
    }
}

fn validate_port(errors: &mut Complaints, port: &Value, path: &Path<'_>) {
    if let Some(protocol) = port["protocol"]
        .as_str()
        .filter(|name| !PROTOCOLS.contains(name))
    {
        errors.push(FieldError::not_supported(
            &path.child("protocol"),
            named(protocol),
            &PROTOCOLS,
        ));
    }
    let (place, end_place) = (path.child("port"), path.child("endPort"));
    let end = port.int_at(&["endPort"]);
    match (&port["port"], end) {
        (Value::Int(first), end) => {
            for detail in names::port_number(*first) {
                errors.push(FieldError::invalid(&place, *first, detail));
            }
            let Some(end) = end else { return };
            if end < *first {
                let detail = "must be greater than or equal to `port`";
                errors.push(FieldError::invalid(&end_place, end, detail));
            }
            for detail in names::port_number(end) {
                errors.push(FieldError::invalid(&end_place, end, detail));
            }
        }
        (Value::String(name), end) => {
            if let Some(end) = end {
                let detail = "may not be specified when `port` is non-numeric";
                errors.push(FieldError::invalid(&end_place, end, detail));
            }
            complain(errors, &place, name.as_str(), names::port_name(name));
        }
        (_, Some(end)) => {
            let detail = "may not be specified when `port` is not specified";
            errors.push(FieldError::invalid(&end_place, end, detail));
        }
        (_, None) => {}
    }
}

fn validate_peer(errors: &mut Complaints, peer: &Value, path: &Path<'_>, before: &Before<'_>) {
    let mut peers = 0;
    for field in ["podSelector", "namespaceSelector"] {
        if present(&peer[field]) {
            peers += 1;
            selector(errors, &path.child(field), &peer[field], before.values);
        }
    }
    if present(&peer["ipBlock"]) {
        peers += 1;
        validate_block(errors, &peer["ipBlock"], &path.child("ipBlock"), before);
    }
    if peers == 0 {
        errors.push(FieldError::required(path, "must specify a peer"));
    } else if peers > 1 && present(&peer["ipBlock"]) {
        errors.push(FieldError::forbidden(
            path,
            "may not specify both ipBlock and another peer",
        ));
    }
}

fn validate_block(errors: &mut Complaints, block: &Value, path: &Path<'_>, before: &Before<'_>) {
    let range = block.str_at(&["cidr"]);
    if range.is_empty() {
        errors.push(FieldError::required(&path.child("cidr"), "").covered());
        return;
    }
    errors.extend(validate_cidr(&path.child("cidr"), range, &before.ranges));
    let Some((network, bits)) = names::cidr_sloppy(range) else {
        return;
    };
    for (at, text) in texts(&block["except"]).into_iter().enumerate() {
        let list = path.child("except");
        let place = list.index(at);
        errors.extend(validate_cidr(&place, text, &before.ranges));
        let Some((inner, inner_bits)) = names::cidr_sloppy(text) else {
            continue;
        };
        if bits >= inner_bits || !same_network(network, inner, bits) {
            errors.push(FieldError::invalid(
                &place,
                text,
                "must be a strict subset of `cidr`",
            ));
        }
    }
}

/// Returns true if two addresses of one family begin with the same bits.
fn same_network(left: IpAddr, right: IpAddr, bits: u8) -> bool {
    let shared = |difference: u128, width: u32| {
        let kept = width - u32::from(bits).min(width);
        difference.checked_shr(kept).unwrap_or(0) == 0
    };
    match (left, right) {
        (IpAddr::V4(left), IpAddr::V4(right)) => {
            shared(u128::from(left.to_bits() ^ right.to_bits()), 32)
        }
        (IpAddr::V6(left), IpAddr::V6(right)) => shared(left.to_bits() ^ right.to_bits(), 128),
        _ => false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn networks_are_compared_by_their_leading_bits() {
        let same = |left: &str, right: &str, bits| {
            let parse = |text: &str| text.parse::<IpAddr>().expect("an address");
            same_network(parse(left), parse(right), bits)
        };
        assert!(same("10.0.0.0", "10.255.0.1", 8));
        assert!(!same("10.0.0.0", "11.0.0.1", 8));
        assert!(same("0.0.0.0", "255.0.0.1", 0));
        assert!(same("2001:db8::", "2001:db8::5", 64));
        assert!(same("::", "2001:db8::5", 0));
        assert!(!same("10.0.0.0", "::", 0));
    }
}
