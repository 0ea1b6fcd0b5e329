//! Who may approve, sign and attest for a signer, and what a client may request from it.

pub(crate) mod approval;
pub(crate) mod attest;
pub(crate) mod pod_signing;
pub(crate) mod signing;
pub(crate) mod subject;

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use polyplane_apimachinery::Value;
use polyplane_auth::{Attributes as Access, Decision, Subject};
use polyplane_batteries::pem::blocks;
use polyplane_pki::SigningRequest;
use polyplane_registry::plan::{Attributes, CallOuts, Interrupted};

/// Returns the request that a certificate signing request carries, if it can be read.
pub(crate) fn request_of(object: &Value) -> Option<SigningRequest> {
    let pem = STANDARD.decode(object.str_at(&["spec", "request"])).ok()?;
    let block = blocks(&String::from_utf8_lossy(&pem)).into_iter().next()?;
    SigningRequest::read(&block.bytes)
}

/// The resource of certificate signing requests.
const REQUESTS: &str = "certificatesigningrequests.certificates.k8s.io";

/// Returns whether the user may act for a signer: by its name, or for all signers of its domain.
///
/// # Errors
/// Requests the reply of an authorizer that is needed first.
fn may_act_for(
    what: &Attributes<'_>,
    call_outs: &mut CallOuts<'_>,
    verb: &str,
    signer: &str,
) -> Result<bool, Interrupted> {
    let domain = signer.split('/').next().unwrap_or("");
    for name in [signer, &format!("{domain}/*")] {
        let access = Access {
            user: &what.call.request.user,
            verb,
            subject: Subject::Resource {
                group: "certificates.k8s.io",
                version: "*",
                resource: "signers",
                subresource: "",
                namespace: "",
                name,
                field_selector: "",
            },
        };
        if call_outs.authorize(&access)? == Decision::Allow {
            return Ok(true);
        }
    }
    Ok(false)
}
