//! `CertificateSigning`: who puts a certificate into a request may sign for its signer.

use super::{REQUESTS, may_act_for};
use polyplane_apimachinery::Value;
use polyplane_apimachinery::quote::quote;
use polyplane_plane::Claim;
use polyplane_registry::Admission;
use polyplane_registry::plan::{Attributes, CallOuts, Interest, Interrupted, Measured, Operation};

/// See the module.
#[derive(Debug)]
pub(crate) struct CertificateSigning;

impl Admission for CertificateSigning {
    fn name(&self) -> &'static str {
        "CertificateSigning"
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
        let (Operation::Update, "status", Some(old), Some(new)) =
            (what.operation, what.call.subresource(), what.old, object)
        else {
            return Ok(Vec::new());
        };
        let is_same = |field: &str| old["status"][field] == new["status"][field];
        if is_same("certificate") && is_same("conditions") {
            return Ok(Vec::new());
        }
        let signer = old.str_at(&["spec", "signerName"]);
        if !may_act_for(what, call_outs, "sign", signer)? {
            let why = format!(
                "user not permitted to sign requests with signerName {}",
                quote(signer)
            );
            return Err(what.forbidden(object, why).into());
        }
        Ok(Vec::new())
    }
}
