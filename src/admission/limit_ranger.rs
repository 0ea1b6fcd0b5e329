//! `LimitRanger`: the LimitRanges of a namespace say what containers request by default, and what
//! containers, pods and volume claims may request.

mod bounds;
mod defaults;

use crate::objects;
use polyplane_apimachinery::Value;
use polyplane_plane::{Claim, Prefix};
use polyplane_registry::Admission;
use polyplane_registry::plan::{
    Attributes, CallOuts, Interest, Interrupted, Measured, Mutated, Operation,
};

/// See the module.
#[derive(Debug)]
pub(crate) struct LimitRanger;

impl Admission for LimitRanger {
    fn name(&self) -> &'static str {
        "LimitRanger"
    }

    fn interest(&self) -> Interest {
        Interest::Resources(&["pods", "persistentvolumeclaims"])
    }

    fn measured(&self) -> Measured {
        Measured::both(&[Operation::Create, Operation::Update])
    }

    fn mutate(
        &self,
        what: &Attributes<'_>,
        object: Option<&mut Value>,
        _: &mut CallOuts<'_>,
    ) -> Result<Mutated, Interrupted> {
        let Some(pod) = object else {
            return Ok(Mutated::Unchanged);
        };
        let mut mutated = Mutated::Unchanged;
        if acts(what) && what.call.row.name == "pods" {
            for range in objects::list(what, &ranges(what))? {
                mutated = mutated.max(defaults::set(pod, &range));
            }
        }
        Ok(mutated)
    }

    fn validate(
        &self,
        what: &Attributes<'_>,
        object: Option<&Value>,
        _: &mut CallOuts<'_>,
    ) -> Result<Vec<Claim>, Interrupted> {
        let Some(object) = object.filter(|_| acts(what)) else {
            return Ok(Vec::new());
        };
        let ranges = ranges(what);
        for range in objects::list(what, &ranges)? {
            let errors = match what.call.row.name.as_str() {
                "pods" => bounds::of_pod(object, &range),
                _ => bounds::of_volume_claim(object, &range),
            };
            if !errors.is_empty() {
                return Err(what.forbidden(Some(object), together(errors)).into());
            }
        }
        Ok(objects::unchanged(what.cut, &ranges))
    }
}

/// Returns whether a write has to respect limits. An update of a pod changes its resources only
/// through `resize`.
fn acts(what: &Attributes<'_>) -> bool {
    let is_leaving = |old: &Value| old.at(&["metadata", "deletionTimestamp"]).is_some();
    let is_pod = what.call.row.name == "pods";
    let counts = match (what.call.subresource(), what.operation) {
        (_, Operation::Delete) => false,
        ("", Operation::Create) => true,
        ("", Operation::Update) => !is_pod,
        ("resize", Operation::Update) => is_pod,
        _ => false,
    };
    counts && !what.old.is_some_and(is_leaving)
}

fn ranges(what: &Attributes<'_>) -> Prefix {
    Prefix::namespaced("", "limitranges", what.call.namespace())
}

/// Returns several errors as one text, each once.
fn together(mut errors: Vec<String>) -> String {
    let mut seen = std::collections::BTreeSet::new();
    errors.retain(|error| seen.insert(error.clone()));
    match errors.as_slice() {
        [only] => only.clone(),
        all => format!("[{}]", all.join(", ")),
    }
}
