//! Behaviour of the kinds of `certificates.k8s.io`.

pub mod certificate_signing_request;
pub mod cluster_trust_bundle;
pub mod keys;
pub mod pem;
pub mod pod_certificate_request;

use polyplane_registry::Strategy;
use std::sync::Arc;

/// The behaviour of a resource of this group; `None` if it is none of these kinds.
pub fn strategy(resource: &str) -> Option<Arc<dyn Strategy>> {
    let strategy: Arc<dyn Strategy> = match resource {
        "certificatesigningrequests" => Arc::new(certificate_signing_request::SigningRequest),
        "clustertrustbundles" => Arc::new(cluster_trust_bundle::TrustBundle),
        "podcertificaterequests" => Arc::new(pod_certificate_request::PodCertificate),
        _ => return None,
    };
    Some(strategy)
}
