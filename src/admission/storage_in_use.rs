//! `StorageObjectInUseProtection`: a claim, a volume or an attributes class that is in use stays
//! when it is deleted. The finalizer goes when nothing uses the object any more.

use crate::objects;
use polyplane_apimachinery::Value;
use polyplane_registry::Admission;
use polyplane_registry::plan::{
    Attributes, CallOuts, Interest, Interrupted, Measured, Mutated, Operation,
};

/// See the module.
#[derive(Debug)]
pub(crate) struct StorageObjectInUseProtection;

impl Admission for StorageObjectInUseProtection {
    fn name(&self) -> &'static str {
        "StorageObjectInUseProtection"
    }

    fn interest(&self) -> Interest {
        Interest::Resources(&[
            "persistentvolumeclaims",
            "persistentvolumes",
            "volumeattributesclasses.storage.k8s.io",
        ])
    }

    fn measured(&self) -> Measured {
        Measured::mutating(&[Operation::Create])
    }

    fn mutate(
        &self,
        what: &Attributes<'_>,
        object: Option<&mut Value>,
        _: &mut CallOuts<'_>,
    ) -> Result<Mutated, Interrupted> {
        let (Operation::Create, "", Some(object)) =
            (what.operation, what.call.subresource(), object)
        else {
            return Ok(Mutated::Unchanged);
        };
        let finalizer = match what.call.row.name.as_str() {
            "persistentvolumeclaims" => "kubernetes.io/pvc-protection",
            "persistentvolumes" => "kubernetes.io/pv-protection",
            _ => "kubernetes.io/vac-protection",
        };
        let path = ["metadata", "finalizers"];
        let mut present = object.items_at(&path).iter();
        if present.any(|name| name.as_str() == Some(finalizer)) {
            return Ok(Mutated::Unchanged);
        }
        objects::append(object, &path, finalizer);
        Ok(Mutated::Completed)
    }
}
