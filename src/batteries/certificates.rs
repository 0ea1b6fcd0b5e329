//! Behaviour of the kinds of `certificates.k8s.io`.

pub mod certificate_signing_request;
pub mod cluster_trust_bundle;
pub mod keys;
pub mod pem;
pub mod pod_certificate_request;

use crate::battery::{Battery, Kind};
use std::sync::Arc;

/// The row of this group.
pub(crate) const BATTERY: Battery = Battery {
    group: "certificates.k8s.io",
    kinds: &[
        Kind::new("certificatesigningrequests", || {
            Arc::new(certificate_signing_request::SigningRequest)
        }),
        Kind::new("clustertrustbundles", || {
            Arc::new(cluster_trust_bundle::TrustBundle)
        }),
        Kind::new("podcertificaterequests", || {
            Arc::new(pod_certificate_request::PodCertificate)
        }),
    ],
    indexes: &[],
};
