//! `PersistentVolumeClaimResize`: only a bound claim of a class that allows it may grow.

use crate::objects;
use crate::pod_resources::quantity;
use crate::storage_class::CLASS_ANNOTATION;
use polyplane_apimachinery::Value;
use polyplane_plane::{Claim, Key};
use polyplane_registry::Admission;
use polyplane_registry::plan::{Attributes, CallOuts, Interest, Interrupted, Measured, Operation};

/// See the module.
#[derive(Debug)]
pub(crate) struct PersistentVolumeClaimResize;

impl Admission for PersistentVolumeClaimResize {
    fn name(&self) -> &'static str {
        "PersistentVolumeClaimResize"
    }

    fn interest(&self) -> Interest {
        Interest::Resources(&["persistentvolumeclaims"])
    }

    fn measured(&self) -> Measured {
        Measured::validating(&[Operation::Update])
    }

    fn validate(
        &self,
        what: &Attributes<'_>,
        object: Option<&Value>,
        _: &mut CallOuts<'_>,
    ) -> Result<Vec<Claim>, Interrupted> {
        let (Operation::Update, "", Some(claim), Some(old)) =
            (what.operation, what.call.subresource(), object, what.old)
        else {
            return Ok(Vec::new());
        };
        let size = |claim: &Value| quantity(&claim["spec"]["resources"]["requests"]["storage"]);
        if size(claim) <= size(old) {
            return Ok(Vec::new());
        }
        if old.str_at(&["status", "phase"]) != "Bound" {
            let why = "Only bound persistent volume claims can be expanded";
            return Err(what.forbidden(Some(claim), why).into());
        }
        let class = class_of(claim);
        let key = Key::new("storage.k8s.io", "storageclasses", None, class);
        let allows = !class.is_empty()
            && class == class_of(old)
            && objects::get(what, &key)?
                .is_some_and(|class| class.bool_at(&["allowVolumeExpansion"]));
        if !allows {
            let why = "only dynamically provisioned pvc can be resized and the storageclass that provisions the pvc must support resize";
            return Err(what.forbidden(Some(claim), why).into());
        }
        Ok(Vec::new())
    }
}

fn class_of(claim: &Value) -> &str {
    match claim.at(&["metadata", "annotations", CLASS_ANNOTATION]) {
        Some(class) => class.as_str().unwrap_or(""),
        None => claim.str_at(&["spec", "storageClassName"]),
    }
}
