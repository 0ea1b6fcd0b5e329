//! Behaviour of the kinds of networking.

pub mod endpoint_slice;
pub mod ingress;
pub mod ingress_class;
pub mod ip_address;
pub mod network_policy;
pub mod service_cidr;

use polyplane_registry::Strategy;
use std::sync::Arc;

/// The behaviour of a resource of these groups; `None` if it is none of these kinds.
pub fn strategy(group: &str, resource: &str) -> Option<Arc<dyn Strategy>> {
    Some(match (group, resource) {
        ("networking.k8s.io", "ingresses") => Arc::new(ingress::Ingress),
        ("networking.k8s.io", "ingressclasses") => Arc::new(ingress_class::IngressClass),
        ("networking.k8s.io", "networkpolicies") => Arc::new(network_policy::NetworkPolicy),
        ("networking.k8s.io", "ipaddresses") => Arc::new(ip_address::IpAddress),
        ("networking.k8s.io", "servicecidrs") => Arc::new(service_cidr::ServiceCidr),
        ("discovery.k8s.io", "endpointslices") => Arc::new(endpoint_slice::EndpointSlice),
        _ => return None,
    })
}
