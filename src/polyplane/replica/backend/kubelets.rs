//! The certificates of planes for their own kubelets.
//!
//! A kubelet accepts the clients of the plane's client CA, and has a serving certificate of the plane's
//! CA for kubelets, which a plane signs for the signer `kubernetes.io/kubelet-serving`. So a plane whose
//! users name the kubelet of another plane as their own node's is refused by it, and refuses it.

use crate::replica::access::{Access, accepted_pem};
use crate::replica::plane_directory::PlaneDirectory;
use polyplane_auth::Purpose;
use polyplane_batteries::polyplane::access::PlaneAccessSpec;
use polyplane_ownership::ROOT;
use polyplane_pki::{CREDENTIAL_BACKDATING, ClientCertificate, ClientKey, PlaneCa};
use polyplane_server::{KubeletTls, KubeletTlsError};
use std::time::{Duration, SystemTime};

/// The user as whom a plane reaches its kubelets, with upstream's name.
const USER: &str = "kube-apiserver-kubelet-client";
/// The group of that user: a kubelet asks the plane whether it may do this, and the plane is its own
/// administrator.
const GROUP: &str = "system:masters";
/// How long a certificate is valid. Each connection gets a new one.
const LIFETIME: Duration = Duration::from_secs(10 * 60);

/// Makes the certificates for a connection of the plane with this id to a kubelet.
///
/// # Errors
/// Returns an error if the plane has no keys of its own.
pub fn kubelet_tls(
    access: &Access,
    directory: &PlaneDirectory,
    id: &str,
) -> Result<KubeletTls, KubeletTlsError> {
    let refused = |why: &str| KubeletTlsError(why.to_owned());
    if id == ROOT {
        return Err(refused("the root plane has no CA for kubelets"));
    }
    let secret = access.secret().to_issue();
    let secret = secret.ok_or_else(|| refused("the ring issues no certificates for kubelets"))?;
    let entry = directory.rows.by_id(id);
    let entry = entry.ok_or_else(|| refused("the control plane is gone"))?;
    let spec = PlaneAccessSpec::read(&entry.access);
    let key = ClientKey::generate().map_err(|error| KubeletTlsError(error.to_string()))?;
    let now = SystemTime::now();
    let ca = PlaneCa::derive(secret, Purpose::ClientCa, id, spec.generation);
    let issued = ca.issue_client(&ClientCertificate {
        public_key: &key.public,
        user: USER,
        uid: "",
        groups: vec![GROUP],
        renewal: None,
        begins: now - CREDENTIAL_BACKDATING,
        ends: now + LIFETIME,
    });
    let issued = issued.map_err(|error| KubeletTlsError(error.to_string()))?;
    let roots = accepted_pem(secret, Purpose::KubeletServingCa, id, &spec);
    let client = (issued.as_bytes(), key.private.as_bytes());
    KubeletTls::from_pem(Some(client), Some(roots.as_bytes()))
}
