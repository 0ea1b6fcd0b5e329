//! `CertificateSubjectRestriction`: nobody gets a client certificate of the group
//! `system:masters` by a certificate signing request.

use super::REQUESTS;
use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use polyplane_apimachinery::Value;
use polyplane_auth::SYSTEM_MASTERS;
use polyplane_plane::Claim;
use polyplane_registry::Admission;
use polyplane_registry::plan::{Attributes, CallOuts, Interest, Interrupted, Operation};
use x509_parser::certification_request::X509CertificationRequest;
use x509_parser::pem::parse_x509_pem;
use x509_parser::prelude::FromDer;

const CLIENT_SIGNER: &str = "kubernetes.io/kube-apiserver-client";

/// See the module.
#[derive(Debug)]
pub(crate) struct CertificateSubjectRestriction;

impl Admission for CertificateSubjectRestriction {
    fn name(&self) -> &'static str {
        "CertificateSubjectRestriction"
    }

    fn interest(&self) -> Interest {
        Interest::Resources(&[REQUESTS])
    }

    fn validate(
        &self,
        what: &Attributes<'_>,
        object: Option<&Value>,
        _: &mut CallOuts<'_>,
    ) -> Result<Vec<Claim>, Interrupted> {
        let (Operation::Create, "", Some(request)) =
            (what.operation, what.call.subresource(), object)
        else {
            return Ok(Vec::new());
        };
        if request.str_at(&["spec", "signerName"]) != CLIENT_SIGNER {
            return Ok(Vec::new());
        }
        let Some(organizations) = organizations(request.str_at(&["spec", "request"])) else {
            let why =
                "failed to parse CSR: the request is no PEM block of type CERTIFICATE REQUEST";
            return Err(what.forbidden(object, why).into());
        };
        if organizations.iter().any(|group| group == SYSTEM_MASTERS) {
            let why =
                format!("use of {CLIENT_SIGNER} signer with system:masters group is not allowed");
            return Err(what.forbidden(object, why).into());
        }
        Ok(Vec::new())
    }
}

/// Returns the organizations of a request's subject, which become the groups of the user.
fn organizations(request: &str) -> Option<Vec<String>> {
    let pem = STANDARD.decode(request).ok()?;
    let (_, block) = parse_x509_pem(&pem).ok()?;
    let (_, parsed) = X509CertificationRequest::from_der(&block.contents).ok()?;
    let subject = parsed.certification_request_info.subject;
    let organizations = subject.iter_organization();
    let texts = organizations.map(|name| name.as_str().map(str::to_owned));
    texts.collect::<Result<_, _>>().ok()
}
