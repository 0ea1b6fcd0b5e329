//! `DefaultStorageClass`: a volume claim that names no class gets the default one.

use crate::objects::{self, DefaultClass};
use polyplane_apimachinery::Value;
use polyplane_registry::Admission;
use polyplane_registry::plan::{
    Attributes, CallOuts, Interest, Interrupted, Measured, Mutated, Operation,
};

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

    fn measured(&self) -> Measured {
        Measured::mutating(&[Operation::Create])
    }

    fn mutate(
        &self,
        what: &Attributes<'_>,
        object: Option<&mut Value>,
        _: &mut CallOuts<'_>,
    ) -> Result<Mutated, Interrupted> {
        let kind = DefaultClass {
            resource: ("storage.k8s.io", "storageclasses"),
            marks: &MARKS,
            member: "storageClassName",
            annotation: CLASS_ANNOTATION,
        };
        Ok(objects::take_default_class(what, object, &kind)?)
    }
}
