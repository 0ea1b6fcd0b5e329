//! Who changes the status of a PodCertificateRequest may sign for its signer.
//!
//! Upstream checks this where such requests are stored, once the new status is valid.

use super::may_act_for;
use polyplane_apimachinery::Value;
use polyplane_apimachinery::field_error::{FieldError, Path};
use polyplane_apimachinery::quote::quote;
use polyplane_plane::Claim;
use polyplane_registry::Admission;
use polyplane_registry::plan::{Attributes, CallOuts, Interest, Interrupted, Operation};

/// See the module.
#[derive(Debug)]
pub(crate) struct PodCertificateSigning;

impl Admission for PodCertificateSigning {
    fn name(&self) -> &'static str {
        "PodCertificateSigning"
    }

    fn interest(&self) -> Interest {
        Interest::Resources(&["podcertificaterequests.certificates.k8s.io"])
    }

    fn validate(
        &self,
        what: &Attributes<'_>,
        object: Option<&Value>,
        call_outs: &mut CallOuts<'_>,
    ) -> Result<Vec<Claim>, Interrupted> {
        let (Operation::Update, "status", Some(old), Some(new)) =
            (what.operation, what.call.subresource(), what.old, object)
        else {
            return Ok(Vec::new());
        };
        let signer = old.str_at(&["spec", "signerName"]);
        if old["status"] == new["status"] || may_act_for(what, call_outs, "sign", signer)? {
            return Ok(Vec::new());
        }
        let detail = format!(
            "User {} is not permitted to \"sign\" for signer {}",
            quote(&what.call.request.user.name),
            quote(signer)
        );
        let spec = Path::new("spec");
        let error = FieldError::forbidden(&spec.child("signerName"), detail);
        Err(what.call.invalid(what.name, &[error]).into())
    }
}
