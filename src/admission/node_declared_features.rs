//! `NodeDeclaredFeatureValidator`: a pod on a node is changed only in ways that the node declares to support.

use crate::objects;
use crate::pod_resources::quantity;
use polyplane_apimachinery::Value;
use polyplane_apimachinery::quote::quote;
use polyplane_plane::Claim;
use polyplane_registry::Admission;
use polyplane_registry::plan::{Attributes, CallOuts, Interest, Interrupted, Measured, Operation};

/// See the module.
#[derive(Debug)]
pub(crate) struct NodeDeclaredFeatureValidator;

/// Whether an update needs a feature of the node.
type Needs = fn(&Value, &Value) -> bool;

/// The features that updates can need, in upstream's order.
const FEATURES: [(&str, Needs); 3] = [
    ("InPlacePodLevelResourcesVerticalScaling", resizes_pod),
    (
        "InPlacePodVerticalScalingInitContainers",
        resizes_init_container,
    ),
    (
        "InPlacePodVerticalScalingMemoryBackedVolumes",
        resizes_memory_volume,
    ),
];

impl Admission for NodeDeclaredFeatureValidator {
    fn name(&self) -> &'static str {
        "NodeDeclaredFeatureValidator"
    }

    fn interest(&self) -> Interest {
        Interest::Resources(&["pods"])
    }

    fn measured(&self) -> Measured {
        Measured::validating(&[Operation::Create, Operation::Update])
    }

    fn validate(
        &self,
        what: &Attributes<'_>,
        object: Option<&Value>,
        _: &mut CallOuts<'_>,
    ) -> Result<Vec<Claim>, Interrupted> {
        let (Operation::Update, "" | "resize", Some(pod), Some(old)) =
            (what.operation, what.call.subresource(), object, what.old)
        else {
            return Ok(Vec::new());
        };
        let Some(node) = objects::node_of_changed_pod(pod, old) else {
            return Ok(Vec::new());
        };
        let needed = FEATURES.iter().filter(|(_, needs)| needs(old, pod));
        let needed: Vec<&str> = needed.map(|(name, _)| *name).collect();
        if needed.is_empty() {
            return Ok(Vec::new());
        }
        let present = objects::node_of(what, pod, node)?;
        let declared = present.items_at(&["status", "declaredFeatures"]);
        let is_declared = |name: &str| declared.iter().any(|one| one.as_str() == Some(name));
        let missing: Vec<&str> = needed
            .into_iter()
            .filter(|name| !is_declared(name))
            .collect();
        if missing.is_empty() {
            return Ok(Vec::new());
        }
        let why = format!(
            "pod update requires features {} which are not available on node {}",
            missing.join(", "),
            quote(node)
        );
        Err(what.forbidden(Some(pod), why).into())
    }
}

fn resizes_pod(old: &Value, pod: &Value) -> bool {
    old["spec"]["resources"] != pod["spec"]["resources"]
}

/// Returns whether a container that runs to its end before the others changes its resources.
fn resizes_init_container(old: &Value, pod: &Value) -> bool {
    let containers = |pod| Value::items_at(pod, &["spec", "initContainers"]);
    let mut pairs = containers(old).iter().zip(containers(pod));
    pairs.any(|(old, new)| {
        old.str_at(&["restartPolicy"]) != "Always" && old["resources"] != new["resources"]
    })
}

/// Returns whether a volume in memory changes its size. A volume that comes or goes is refused elsewhere.
fn resizes_memory_volume(old: &Value, pod: &Value) -> bool {
    let volumes = |pod| Value::items_at(pod, &["spec", "volumes"]);
    let (old, new) = (volumes(old), volumes(pod));
    old.len() == new.len()
        && old.iter().zip(new).any(|(old, new)| {
            let (before, after) = (&old["emptyDir"]["sizeLimit"], &new["emptyDir"]["sizeLimit"]);
            old["name"] == new["name"]
                && new.str_at(&["emptyDir", "medium"]) == "Memory"
                && !before.is_null()
                && !after.is_null()
                && quantity(before) != quantity(after)
        })
}
