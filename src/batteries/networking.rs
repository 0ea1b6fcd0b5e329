//! Behaviour of the kinds of `networking.k8s.io`.

pub mod ingress;
pub mod ingress_class;
pub mod ip_address;
pub mod network_policy;
pub mod service_cidr;

use polyplane_registry::Strategy;
use std::sync::Arc;

/// The behaviour of a resource of this group; `None` if it is none of these kinds.
pub fn strategy(resource: &str) -> Option<Arc<dyn Strategy>> {
    let strategy: Arc<dyn Strategy> = match resource {
        "ingressclasses" => Arc::new(ingress_class::IngressClass),
        "ingresses" => Arc::new(ingress::Ingress),
        "ipaddresses" => Arc::new(ip_address::IpAddress),
        "networkpolicies" => Arc::new(network_policy::NetworkPolicy),
        "servicecidrs" => Arc::new(service_cidr::ServiceCidr),
        _ => return None,
    };
    Some(strategy)
}
