//! `DefaultStorageClass`: a volume claim that names no class gets the default one.

use crate::objects;
use polyplane_apimachinery::Value;
use polyplane_registry::Admission;
use polyplane_registry::plan::{Attributes, CallOuts, Interest, Interrupted, Mutated, Operation};

/// The annotations, today's and an older one, that mark the default class.
const MARKS: [&str; 2] = [
    "storageclass.kubernetes.io/is-default-class",
    "storageclass.beta.kubernetes.io/is-default-class",
];
/// The annotation that named a claim's class before there was a field.
pub(crate) const CLASS_ANNOTATION: &str = "volume.beta.kubernetes.io/storage-class";

/// See the module.
#[derive(Debug)]
pub(crate) struct DefaultStorageClass;

impl Admission for DefaultStorageClass {
    fn name(&self) -> &'static str {
        "DefaultStorageClass"
    }

    fn interest(&self) -> Interest {
        Interest::Resources(&["persistentvolumeclaims"])
    }

    fn mutate(
        &self,
        what: &Attributes<'_>,
        object: Option<&mut Value>,
        _: &mut CallOuts<'_>,
    ) -> Result<Mutated, Interrupted> {
        let (Operation::Create, "", Some(claim)) =
            (what.operation, what.call.subresource(), object)
        else {
            return Ok(Mutated::Unchanged);
        };
        let has_class = claim.at(&["spec", "storageClassName"]).is_some()
            || objects::has_annotation(claim, CLASS_ANNOTATION);
        if has_class {
            return Ok(Mutated::Unchanged);
        }
        let kind = ("storage.k8s.io", "storageclasses");
        let Some(class) = objects::default_class(what, kind, &MARKS)? else {
            return Ok(Mutated::Unchanged);
        };
        let name = class.str_at(&["metadata", "name"]);
        claim.set(&["spec", "storageClassName"], name);
        Ok(Mutated::Completed)
    }
}
