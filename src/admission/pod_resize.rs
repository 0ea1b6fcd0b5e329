//! `PodResizeValidator`: a pod on a node may not grow beyond what the node has.

use crate::objects;
use crate::pod_resources::{Amount, add, of_pod, quantity, resources};
use polyplane_apimachinery::Value;
use polyplane_apimachinery::quote::quote;
use polyplane_apimachinery::status::{ApiError, Cause};
use polyplane_plane::Claim;
use polyplane_registry::Admission;
use polyplane_registry::plan::{Attributes, CallOuts, Interest, Interrupted, Measured, Operation};

/// See the module.
#[derive(Debug)]
pub(crate) struct PodResizeValidator;

impl Admission for PodResizeValidator {
    fn name(&self) -> &'static str {
        "PodResizeValidator"
    }

    fn interest(&self) -> Interest {
        Interest::Resources(&["pods"])
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
        let (Operation::Update, "resize", Some(pod), Some(old)) =
            (what.operation, what.call.subresource(), object, what.old)
        else {
            return Ok(Vec::new());
        };
        let Some(node) = objects::node_of_changed_pod(pod, old) else {
            return Ok(Vec::new());
        };
        let present = objects::node_of(what, pod, node)?;
        check(what, pod, &present)?;
        Ok(Vec::new())
    }
}

fn check(what: &Attributes<'_>, pod: &Value, node: &Value) -> Result<(), ApiError> {
    let refuse = |why: String, reason: &str| {
        let cause = Cause {
            reason: reason.into(),
            ..Cause::default()
        };
        Err(what.forbidden(Some(pod), why).with_cause(cause))
    };
    if let Some(why) = unsupported(node) {
        return refuse(why, "UnsupportedPlatform");
    }
    let mut requests = of_pod(pod, Amount::Requests);
    add(&mut requests, &resources(&pod["spec"]["overhead"]));
    let allocatable = |name| quantity(&node["status"]["allocatable"][name]);
    let mut lacking = Vec::new();
    if let Some(cpu) = requests.get("cpu")
        && *cpu > allocatable("cpu")
    {
        let (requested, room) = (cpu.milli_value(), allocatable("cpu").milli_value());
        lacking.push(format!("cpu, requested: {requested}, allocatable: {room}"));
    }
    if let Some(memory) = requests.get("memory")
        && *memory > allocatable("memory")
    {
        let (requested, room) = (memory.value(), allocatable("memory").value());
        lacking.push(format!(
            "memory, requested: {requested}, allocatable: {room}"
        ));
    }
    if lacking.is_empty() {
        return Ok(());
    }
    let why = format!(
        "node didn't have enough allocatable resources: {}",
        lacking.join("; ")
    );
    refuse(why, "NodeCapacity")
}

/// Returns why no pod of a node is resized, if the label of the node names another system than Linux.
fn unsupported(node: &Value) -> Option<String> {
    let system = node.at(&["metadata", "labels", "kubernetes.io/os"])?;
    let system = system.as_str().filter(|system| *system != "linux")?;
    let name = node.str_at(&["metadata", "name"]);
    Some(format!(
        "pod resize is only supported on linux nodes, node {} is {}",
        quote(name),
        quote(system)
    ))
}

#[cfg(test)]
mod tests {
    use super::*;
    use polyplane_apimachinery::json;

    #[test]
    fn pods_are_resized_on_nodes_of_linux_and_of_no_label() {
        let refusal = |labels: Value| {
            let node = json!({"metadata": {"name": "n", "labels": (labels)}});
            unsupported(&node)
        };
        assert_eq!(refusal(json!({})), None);
        assert_eq!(refusal(json!({"kubernetes.io/os": "linux"})), None);
        for system in ["windows", ""] {
            let text =
                format!("pod resize is only supported on linux nodes, node \"n\" is \"{system}\"");
            assert_eq!(refusal(json!({"kubernetes.io/os": (system)})), Some(text));
        }
    }
}
