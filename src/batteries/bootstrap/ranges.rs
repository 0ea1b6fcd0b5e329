//! The ranges of service addresses in the bootstrap objects: the service `kubernetes`, the IPAddress of
//! its address and the ServiceCIDR `kubernetes` show them.
//!
//! All planes have one range, [`SERVICE_RANGE`](super::SERVICE_RANGE), which is part of the layer. A server
//! whose ranges come from flags has a layer of its own for them. As upstream, it leaves the three objects
//! as they are if it starts with other ranges later.

use super::BootstrapObject;
use polyplane_apimachinery::Value;
use polyplane_plane::Key;
use polyplane_registry::service_ranges::{ServiceRange, ServiceRanges};
use std::net::IpAddr;

/// Returns the key of the ServiceCIDR that shows a plane's ranges.
pub fn service_cidr() -> Key {
    Key::new("networking.k8s.io", "servicecidrs", None, "kubernetes")
}

/// Returns the address of the service `kubernetes`: the first of the primary range.
pub fn kubernetes_address(ranges: &ServiceRanges) -> IpAddr {
    ranges.primary().address(1)
}

/// Returns the ranges that a ServiceCIDR shows; `None` if there are none of two families.
pub fn shown(service_cidr: &Value) -> Option<ServiceRanges> {
    let texts = service_cidr.items_at(&["spec", "cidrs"]).iter();
    let mut ranges = texts.map(|text| text.as_str().and_then(ServiceRange::parse));
    let primary = ranges.next()??;
    let secondary = match ranges.next() {
        None => None,
        Some(other) => Some(other?),
    };
    ServiceRanges::new(primary, secondary)
}

/// Returns the texts of ranges, as a ServiceCIDR has them.
pub fn texts(ranges: &ServiceRanges) -> Vec<Value> {
    let texts = ranges.iter().map(|range| Value::from(range.to_string()));
    texts.collect()
}

/// Returns a bootstrap object with the addresses of other ranges.
#[must_use]
pub fn moved(object: &BootstrapObject, ranges: &ServiceRanges) -> BootstrapObject {
    let mut object = object.clone();
    show(&object.key, &mut object.tree, ranges);
    if object.key.resource() == "ipaddresses" {
        let (key, address) = (&object.key, kubernetes_address(ranges).to_string());
        object.tree.set(&["metadata", "name"], address.as_str());
        object.key = Key::new(key.group(), key.resource(), None, &address);
    }
    object
}

/// Writes the addresses of ranges into a bootstrap object, if it shows any.
pub fn show(key: &Key, tree: &mut Value, ranges: &ServiceRanges) {
    let family = ranges.primary().family().name();
    match (key.group(), key.resource()) {
        ("", "services") => {
            let address = Value::from(kubernetes_address(ranges).to_string());
            tree.set(&["spec", "clusterIP"], address.clone());
            tree.set(&["spec", "clusterIPs"], vec![address]);
            tree.set(&["spec", "ipFamilies"], vec![Value::from(family)]);
        }
        ("networking.k8s.io", "ipaddresses") => {
            let label = ["metadata", "labels", "ipaddress.kubernetes.io/ip-family"];
            tree.set(&label, family);
        }
        ("networking.k8s.io", "servicecidrs") => tree.set(&["spec", "cidrs"], texts(ranges)),
        _ => {}
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::bootstrap::{KUBERNETES_ADDRESS, SERVICE_RANGE, objects};
    use polyplane_apimachinery::json;

    #[test]
    fn the_ranges_of_all_planes_change_nothing() {
        let (base, bits) = SERVICE_RANGE;
        let ranges = ServiceRange::new(base, bits).into();
        assert_eq!(kubernetes_address(&ranges).to_string(), KUBERNETES_ADDRESS);
        for object in objects() {
            let same = moved(object, &ranges);
            assert_eq!(same.key, object.key);
            assert_eq!(json::to_string(&same.tree), json::to_string(&object.tree));
        }
    }

    #[test]
    fn two_ranges_are_shown_and_the_service_has_an_address_of_the_first() {
        let of = |text| ServiceRange::parse(text).expect("a range");
        let (six, four) = (of("2001:db8:1::/108"), of("10.0.0.0/16"));
        let ranges = ServiceRanges::new(six, Some(four)).expect("two families");
        let moved: Vec<BootstrapObject> = objects().iter().map(|one| moved(one, &ranges)).collect();
        let of = |resource: &str| {
            let mut found = moved.iter().filter(|one| one.key.resource() == resource);
            found.next().expect("it is there")
        };
        let spec = &of("services").tree["spec"];
        assert_eq!(spec["clusterIPs"], json!(["2001:db8:1::1"]));
        assert_eq!(spec["ipFamilies"], json!(["IPv6"]));
        assert_eq!(of("ipaddresses").key.name(), "2001:db8:1::1");
        let cidr = &of("servicecidrs").tree;
        assert_eq!(
            cidr["spec"]["cidrs"],
            json!(["2001:db8:1::/108", "10.0.0.0/16"])
        );
        assert_eq!(shown(cidr), Some(ranges));
    }
}
