//! `DefaultTolerationSeconds`: a pod stays for five minutes on a node that is not ready or cannot be
//! reached, unless the pod says otherwise.

use crate::objects;
use polyplane_apimachinery::{Value, json};
use polyplane_registry::Admission;
use polyplane_registry::plan::{
    Attributes, CallOuts, Interest, Interrupted, Measured, Mutated, Operation,
};

const TAINTS: [&str; 2] = [
    "node.kubernetes.io/not-ready",
    "node.kubernetes.io/unreachable",
];

/// See the module.
#[derive(Debug)]
pub(crate) struct DefaultTolerationSeconds(pub(crate) TolerationSeconds);

/// The seconds for which a pod that says nothing else stays on a node.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TolerationSeconds {
    /// On a node that is not ready.
    pub not_ready: i64,
    /// On a node that cannot be reached.
    pub unreachable: i64,
}

impl Default for TolerationSeconds {
    /// Returns upstream's defaults.
    fn default() -> Self {
        Self {
            not_ready: 300,
            unreachable: 300,
        }
    }
}

impl Admission for DefaultTolerationSeconds {
    fn name(&self) -> &'static str {
        "DefaultTolerationSeconds"
    }

    fn interest(&self) -> Interest {
        Interest::Resources(&["pods"])
    }

    fn measured(&self) -> Measured {
        Measured::mutating(&[Operation::Create, Operation::Update])
    }

    fn mutate(
        &self,
        what: &Attributes<'_>,
        object: Option<&mut Value>,
        _: &mut CallOuts<'_>,
    ) -> Result<Mutated, Interrupted> {
        let (Operation::Create | Operation::Update, "", Some(pod)) =
            (what.operation, what.call.subresource(), object)
        else {
            return Ok(Mutated::Unchanged);
        };
        let given = pod.items_at(&["spec", "tolerations"]);
        let missing = TAINTS.map(|taint| !given.iter().any(|given| tolerates(given, taint)));
        let seconds = [self.0.not_ready, self.0.unreachable];
        let defaults = TAINTS.into_iter().zip(seconds);
        for ((taint, seconds), is_missing) in defaults.zip(missing) {
            if is_missing {
                let toleration = json!({
                    "key": taint,
                    "operator": "Exists",
                    "effect": "NoExecute",
                    "tolerationSeconds": seconds
                });
                objects::append(pod, &["spec", "tolerations"], toleration);
            }
        }
        Ok(if missing.contains(&true) {
            Mutated::Completed
        } else {
            Mutated::Unchanged
        })
    }
}

fn tolerates(toleration: &Value, taint: &str) -> bool {
    let (key, effect) = (toleration.str_at(&["key"]), toleration.str_at(&["effect"]));
    (key.is_empty() || key == taint) && (effect.is_empty() || effect == "NoExecute")
}
