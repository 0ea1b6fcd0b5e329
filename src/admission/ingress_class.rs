//! `DefaultIngressClass`: an Ingress that names no class gets the default one.

use crate::objects;
use polyplane_apimachinery::Value;
use polyplane_registry::Admission;
use polyplane_registry::plan::{Attributes, CallOuts, Interest, Interrupted, Mutated, Operation};

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

    fn mutate(
        &self,
        what: &Attributes<'_>,
        object: Option<&mut Value>,
        _: &mut CallOuts<'_>,
    ) -> Result<Mutated, Interrupted> {
        let (Operation::Create, "", Some(ingress)) =
            (what.operation, what.call.subresource(), object)
        else {
            return Ok(Mutated::Unchanged);
        };
        let has_class = ingress.at(&["spec", "ingressClassName"]).is_some()
            || objects::has_annotation(ingress, CLASS_ANNOTATION);
        if has_class {
            return Ok(Mutated::Unchanged);
        }
        let kind = ("networking.k8s.io", "ingressclasses");
        let Some(class) = objects::default_class(what, kind, &[MARK])? else {
            return Ok(Mutated::Unchanged);
        };
        let name = class.str_at(&["metadata", "name"]);
        ingress.set(&["spec", "ingressClassName"], name);
        Ok(Mutated::Completed)
    }
}
