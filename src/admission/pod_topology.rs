//! `PodTopologyLabels`: a pod gets the labels that say in which zone and region its node is.

use crate::objects;
use polyplane_apimachinery::{Str, Value};
use polyplane_plane::Key;
use polyplane_registry::Admission;
use polyplane_registry::plan::{
    Attributes, CallOuts, Interest, Interrupted, Measured, Mutated, Operation,
};

const LABELS: [&str; 2] = [
    "topology.kubernetes.io/region",
    "topology.kubernetes.io/zone",
];
/// The feature gate of the plug-in.
const GATE: &str = "PodTopologyLabelsAdmission";

/// See the module.
#[derive(Debug)]
pub(crate) struct PodTopologyLabels;

impl Admission for PodTopologyLabels {
    fn name(&self) -> &'static str {
        "PodTopologyLabels"
    }

    fn interest(&self) -> Interest {
        Interest::Resources(&["pods"])
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
        let (Operation::Create, Some(object)) = (what.operation, object) else {
            return Ok(Mutated::Unchanged);
        };
        let node = match what.call.subresource() {
            "" => object.str_at(&["spec", "nodeName"]),
            "binding" if object.str_at(&["target", "kind"]) == "Node" => {
                object.str_at(&["target", "name"])
            }
            _ => "",
        };
        if node.is_empty() || !what.call.row.features.enabled(GATE) {
            return Ok(Mutated::Unchanged);
        }
        let Some(node) = objects::get(what, &Key::new("", "nodes", None, node))? else {
            return Ok(Mutated::Unchanged);
        };
        let mut mutated = Mutated::Unchanged;
        for label in LABELS {
            if let Some(value) = node.at(&["metadata", "labels", label]) {
                let value = Str::from(value.as_str().unwrap_or(""));
                object.set(&["metadata", "labels", label], value);
                mutated = Mutated::Completed;
            }
        }
        Ok(mutated)
    }
}
