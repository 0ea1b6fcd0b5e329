//! Behaviour of the kinds of `networking.k8s.io`.

pub mod ingress;
pub mod ingress_class;
pub mod ip_address;
pub mod network_policy;
pub mod service_cidr;

use crate::battery::{Battery, Kind};
use std::sync::Arc;

/// The row of this group.
pub(crate) const BATTERY: Battery = Battery {
    group: "networking.k8s.io",
    kinds: &[
        Kind::new("ingressclasses", || Arc::new(ingress_class::IngressClass)),
        Kind::new("ingresses", || Arc::new(ingress::Ingress)),
        Kind::new("ipaddresses", || Arc::new(ip_address::IpAddress)),
        Kind::new("networkpolicies", || {
            Arc::new(network_policy::NetworkPolicy)
        }),
        Kind::new("servicecidrs", || Arc::new(service_cidr::ServiceCidr)),
    ],
    indexes: &[],
};
