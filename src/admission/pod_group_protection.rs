//! `PodGroupProtection`: a group of pods stays while pods name it. As upstream, the controller manager takes the
//! finalizer away when none does any more.

use crate::objects;
use polyplane_apimachinery::Value;
use polyplane_registry::Admission;
use polyplane_registry::plan::{
    Attributes, CallOuts, Interest, Interrupted, Measured, Mutated, Operation,
};

const FINALIZER: &str = "scheduling.k8s.io/podgroup-protection";

/// See the module.
#[derive(Debug)]
pub(crate) struct PodGroupProtection;

impl Admission for PodGroupProtection {
    fn name(&self) -> &'static str {
        "PodGroupProtection"
    }

    fn interest(&self) -> Interest {
        Interest::Resources(&["podgroups.scheduling.k8s.io"])
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
        let (Operation::Create, "", Some(group)) =
            (what.operation, what.call.subresource(), object)
        else {
            return Ok(Mutated::Unchanged);
        };
        let path = ["metadata", "finalizers"];
        let mut present = group.items_at(&path).iter();
        if present.any(|name| name.as_str() == Some(FINALIZER)) {
            return Ok(Mutated::Unchanged);
        }
        objects::append(group, &path, FINALIZER);
        Ok(Mutated::Completed)
    }
}
