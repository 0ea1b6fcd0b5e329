//! `DefaultIngressClass`: an Ingress that names no class gets the default one.

use crate::objects::{self, DefaultClass};
use polyplane_apimachinery::Value;
use polyplane_registry::Admission;
use polyplane_registry::plan::{
    Attributes, CallOuts, Interest, Interrupted, Measured, Mutated, Operation,
};

/// The annotation that marks the default class.
const MARK: &str = "ingressclass.kubernetes.io/is-default-class";
/// The annotation that named an Ingress's class before there was a field.
const CLASS_ANNOTATION: &str = "kubernetes.io/ingress.class";

/// See the module.
#[derive(Debug)]
pub(crate) struct DefaultIngressClass;

impl Admission for DefaultIngressClass {
    fn name(&self) -> &'static str {
        "DefaultIngressClass"
    }

    fn interest(&self) -> Interest {
        Interest::Resources(&["ingresses.networking.k8s.io"])
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
            resource: ("networking.k8s.io", "ingressclasses"),
            marks: &[MARK],
            member: "ingressClassName",
            annotation: CLASS_ANNOTATION,
        };
        Ok(objects::take_default_class(what, object, &kind)?)
    }
}
