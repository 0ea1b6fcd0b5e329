//! `CertificateApproval`: who approves a certificate signing request may do so for its signer.

use super::{REQUESTS, may_act_for};
use polyplane_apimachinery::Value;
use polyplane_apimachinery::quote::quote;
use polyplane_plane::Claim;
use polyplane_registry::Admission;
use polyplane_registry::plan::{Attributes, CallOuts, Interest, Interrupted, Measured, Operation};

/// See the module.
#[derive(Debug)]
pub(crate) struct CertificateApproval;

impl Admission for CertificateApproval {
    fn name(&self) -> &'static str {
        "CertificateApproval"
    }

    fn interest(&self) -> Interest {
        Interest::Resources(&[REQUESTS])
    }

    fn measured(&self) -> Measured {
        Measured::validating(&[Operation::Update])
    }

    fn validate(
        &self,
        what: &Attributes<'_>,
        object: Option<&Value>,
        call_outs: &mut CallOuts<'_>,
    ) -> Result<Vec<Claim>, Interrupted> {
        let (Operation::Update, "approval", Some(old)) =
            (what.operation, what.call.subresource(), what.old)
        else {
            return Ok(Vec::new());
        };
        let signer = old.str_at(&["spec", "signerName"]);
        if !may_act_for(what, call_outs, "approve", signer)? {
            let why = format!(
                "user not permitted to approve requests with signerName {}",
                quote(signer)
            );
            return Err(what.forbidden(object, why).into());
        }
        Ok(Vec::new())
    }
}
