//! `CertificateSubjectRestriction`: nobody gets a client certificate of the group
//! `system:masters` by a certificate signing request.

use super::{REQUESTS, request_of};
use polyplane_apimachinery::Value;
use polyplane_auth::SYSTEM_MASTERS;
use polyplane_plane::Claim;
use polyplane_registry::Admission;
use polyplane_registry::plan::{Attributes, CallOuts, Interest, Interrupted, Measured, Operation};

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

    fn measured(&self) -> Measured {
        Measured::validating(&[Operation::Create])
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
        let Some(parsed) = request_of(request) else {
            let why =
                "failed to parse CSR: the request is no PEM block of type CERTIFICATE REQUEST";
            return Err(what.forbidden(object, why).into());
        };
        if parsed.organizations().any(|group| group == SYSTEM_MASTERS) {
            let why =
                format!("use of {CLIENT_SIGNER} signer with system:masters group is not allowed");
            return Err(what.forbidden(object, why).into());
        }
        Ok(Vec::new())
    }
}
