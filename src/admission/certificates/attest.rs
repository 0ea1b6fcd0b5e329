//! `ClusterTrustBundleAttest`: who writes a trust bundle of a signer may attest for it.

use super::may_act_for;
use crate::objects;
use polyplane_apimachinery::Value;
use polyplane_apimachinery::quote::quote;
use polyplane_plane::Claim;
use polyplane_registry::Admission;
use polyplane_registry::plan::{Attributes, CallOuts, Interest, Interrupted, Measured, Operation};

/// The feature gate of trust bundles.
const GATE: &str = "ClusterTrustBundle";

/// See the module.
#[derive(Debug)]
pub(crate) struct ClusterTrustBundleAttest;

impl Admission for ClusterTrustBundleAttest {
    fn name(&self) -> &'static str {
        "ClusterTrustBundleAttest"
    }

    fn interest(&self) -> Interest {
        Interest::Resources(&["clustertrustbundles.certificates.k8s.io"])
    }

    fn measured(&self) -> Measured {
        Measured::validating(&[Operation::Create, Operation::Update])
    }

    fn validate(
        &self,
        what: &Attributes<'_>,
        object: Option<&Value>,
        call_outs: &mut CallOuts<'_>,
    ) -> Result<Vec<Claim>, Interrupted> {
        let (Operation::Create | Operation::Update, Some(bundle)) = (what.operation, object) else {
            return Ok(Vec::new());
        };
        let signer = bundle.str_at(&["spec", "signerName"]);
        let changes_nothing = what
            .old
            .is_some_and(|old| without_owners(old) == without_owners(bundle));
        if signer.is_empty() || changes_nothing || !what.call.row.features.enabled(GATE) {
            return Ok(Vec::new());
        }
        if !may_act_for(what, call_outs, "attest", signer)? {
            let why = format!(
                "user not permitted to attest for signerName {}",
                quote(signer)
            );
            return Err(what.forbidden(object, why).into());
        }
        Ok(Vec::new())
    }
}

/// Returns what a bundle says, apart from what garbage collection and storage change.
fn without_owners(bundle: &Value) -> Value {
    let mut rest = objects::without_owners(bundle);
    drop(rest.remove(&["metadata", "resourceVersion"]));
    rest
}
