//! `TaintNodesByCondition`: a new node gets no pods until a controller has seen that it is ready.

use crate::objects;
use polyplane_apimachinery::{Value, json};
use polyplane_registry::Admission;
use polyplane_registry::plan::{
    Attributes, CallOuts, Interest, Interrupted, Measured, Mutated, Operation,
};

const NOT_READY: &str = "node.kubernetes.io/not-ready";
const EFFECT: &str = "NoSchedule";

/// See the module.
#[derive(Debug)]
pub(crate) struct TaintNodesByCondition;

impl Admission for TaintNodesByCondition {
    fn name(&self) -> &'static str {
        "TaintNodesByCondition"
    }

    fn interest(&self) -> Interest {
        Interest::Resources(&["nodes"])
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
        let (Operation::Create, "", Some(node)) = (what.operation, what.call.subresource(), object)
        else {
            return Ok(Mutated::Unchanged);
        };
        let is_wanted = |taint: &Value| {
            taint.str_at(&["key"]) == NOT_READY && taint.str_at(&["effect"]) == EFFECT
        };
        if node.items_at(&["spec", "taints"]).iter().any(is_wanted) {
            return Ok(Mutated::Unchanged);
        }
        let taint = json!({"key": NOT_READY, "effect": EFFECT});
        objects::append(node, &["spec", "taints"], taint);
        Ok(Mutated::Completed)
    }
}
