//! `RuntimeClass`: a pod takes over the overhead, the node selector and the tolerations of its
//! runtime class.

use crate::objects;
use crate::pod_resources::resources;
use polyplane_apimachinery::Value;
use polyplane_apimachinery::quote::quote;
use polyplane_apimachinery::status::ApiError;
use polyplane_plane::{Claim, Key};
use polyplane_registry::Admission;
use polyplane_registry::plan::{
    Attributes, CallOuts, Interest, Interrupted, Measured, Mutated, Operation,
};

/// See the module.
#[derive(Debug)]
pub(crate) struct RuntimeClass;

impl Admission for RuntimeClass {
    fn name(&self) -> &'static str {
        "RuntimeClass"
    }

    fn interest(&self) -> Interest {
        Interest::Resources(&["pods"])
    }

    fn measured(&self) -> Measured {
        Measured::both(&[Operation::Create])
    }

    fn mutate(
        &self,
        what: &Attributes<'_>,
        object: Option<&mut Value>,
        _: &mut CallOuts<'_>,
    ) -> Result<Mutated, Interrupted> {
        let (Operation::Create, "", Some(pod)) = (what.operation, what.call.subresource(), object)
        else {
            return Ok(Mutated::Unchanged);
        };
        let Some(class) = class_of(what, pod)? else {
            return Ok(Mutated::Unchanged);
        };
        if let Some(overhead) = class.at(&["overhead"]) {
            let fixed = &overhead["podFixed"];
            let given = resources(&pod["spec"]["overhead"]);
            if !given.is_empty() && given != resources(fixed) {
                let why =
                    "pod rejected: Pod's Overhead doesn't match RuntimeClass's defined Overhead";
                return Err(what.forbidden(Some(pod), why).into());
            }
            if fixed.is_null() {
                drop(pod.remove(&["spec", "overhead"]));
            } else {
                pod.set(&["spec", "overhead"], fixed.clone());
            }
        }
        if let Some(scheduling) = class.at(&["scheduling"]) {
            schedule(what, pod, scheduling)?;
        }
        Ok(Mutated::Completed)
    }

    fn validate(
        &self,
        what: &Attributes<'_>,
        object: Option<&Value>,
        _: &mut CallOuts<'_>,
    ) -> Result<Vec<Claim>, Interrupted> {
        let (Operation::Create, "", Some(pod)) = (what.operation, what.call.subresource(), object)
        else {
            return Ok(Vec::new());
        };
        let class = class_of(what, pod)?;
        let defined = class.as_ref().and_then(|class| class.at(&["overhead"]));
        let why = match defined {
            Some(overhead)
                if resources(&overhead["podFixed"]) != resources(&pod["spec"]["overhead"]) =>
            {
                "pod rejected: Pod's Overhead doesn't match RuntimeClass's defined Overhead"
            }
            None if pod.at(&["spec", "overhead"]).is_some() => {
                "pod rejected: Pod Overhead set without corresponding RuntimeClass defined Overhead"
            }
            Some(_) | None => return Ok(Vec::new()),
        };
        Err(what.forbidden(Some(pod), why).into())
    }
}

/// Returns the class that a pod names.
fn class_of(what: &Attributes<'_>, pod: &Value) -> Result<Option<Value>, ApiError> {
    let Some(name) = pod.at(&["spec", "runtimeClassName"]) else {
        return Ok(None);
    };
    let name = name.as_str().unwrap_or("");
    let class = objects::get(what, &Key::new("node.k8s.io", "runtimeclasses", None, name))?;
    if class.is_none() {
        let why = format!("pod rejected: RuntimeClass {} not found", quote(name));
        return Err(what.forbidden(Some(pod), why));
    }
    Ok(class)
}

/// Adds the node selector and the tolerations of a class to those of a pod.
fn schedule(what: &Attributes<'_>, pod: &mut Value, scheduling: &Value) -> Result<(), ApiError> {
    let selector = scheduling["nodeSelector"].as_object();
    for (key, value) in selector.into_iter().flat_map(|selector| selector.iter()) {
        let wanted = value.as_str().unwrap_or("");
        let given = pod.at(&["spec", "nodeSelector", key]);
        if let Some(given) = given.and_then(Value::as_str)
            && given != wanted
        {
            let why = format!(
                "conflict: runtimeClass.scheduling.nodeSelector[{key}] = {wanted}; pod.spec.nodeSelector[{key}] = {given}"
            );
            return Err(what.forbidden(Some(pod), why));
        }
        pod.set(&["spec", "nodeSelector", key], value.clone());
    }
    tolerate(pod, scheduling.items_at(&["tolerations"]));
    Ok(())
}

/// Adds the tolerations of a class to those of a pod. Of the pod's own, those that others cover are left out
/// even if the class has none.
fn tolerate(pod: &mut Value, of_class: &[Value]) {
    let of_pod = pod.items_at(&["spec", "tolerations"]);
    let all: Vec<Value> = of_pod.iter().chain(of_class).cloned().collect();
    if !all.is_empty() {
        pod.set(&["spec", "tolerations"], without_redundant(&all));
    }
}

/// Leaves out each toleration that another one covers; of equal ones the first stays.
fn without_redundant(all: &[Value]) -> Vec<Value> {
    let mut kept: Vec<Value> = Vec::new();
    for (at, toleration) in all.iter().enumerate() {
        let covered_before = kept.iter().any(|other| covers(other, toleration));
        let mut later = all[at + 1..].iter();
        if !covered_before && !later.any(|other| other != toleration && covers(other, toleration)) {
            kept.push(toleration.clone());
        }
    }
    kept
}

/// Returns whether `wide` tolerates all taints that `narrow` does, for as long.
fn covers(wide: &Value, narrow: &Value) -> bool {
    let text = |toleration: &'_ Value, field: &str| toleration.str_at(&[field]).to_owned();
    if wide == narrow {
        return true;
    }
    let any_key = text(wide, "key").is_empty() && text(wide, "operator") == "Exists";
    let effect = text(wide, "effect");
    if (text(narrow, "key") != text(wide, "key") && !any_key)
        || (text(narrow, "effect") != effect && !effect.is_empty())
    {
        return false;
    }
    if effect == "NoExecute"
        && let Some(seconds) = wide.int_at(&["tolerationSeconds"])
        && narrow
            .int_at(&["tolerationSeconds"])
            .is_none_or(|longer| longer > seconds)
    {
        return false;
    }
    match text(wide, "operator").as_str() {
        "Equal" | "" => {
            text(narrow, "operator") == "Equal" && text(narrow, "value") == text(wide, "value")
        }
        "Exists" => true,
        _ => false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use polyplane_apimachinery::json;

    #[test]
    fn a_toleration_that_another_covers_is_left_out() {
        let all = [
            json!({"key": "a", "operator": "Equal", "value": "1"}),
            json!({"key": "a", "operator": "Equal", "value": "1"}),
            json!({"key": "b", "operator": "Equal", "value": "1", "effect": "NoSchedule"}),
            json!({"key": "b", "operator": "Exists"}),
            json!({"key": "c", "operator": "Exists", "effect": "NoExecute", "tolerationSeconds": 5}),
            json!({"key": "c", "operator": "Exists", "effect": "NoExecute", "tolerationSeconds": 9}),
        ];
        assert_eq!(
            without_redundant(&all),
            [&all[0], &all[3], &all[5]].map(Clone::clone)
        );
        let everything = json!({"operator": "Exists"});
        let with = [&all[..], std::slice::from_ref(&everything)].concat();
        assert_eq!(without_redundant(&with), [everything]);
    }

    #[test]
    fn a_class_without_tolerations_leaves_out_what_those_of_a_pod_cover() {
        let any = json!({"key": "a", "operator": "Exists"});
        let one = json!({"key": "a", "operator": "Equal", "value": "1"});
        let mut pod = json!({"spec": {"tolerations": [(any.clone()), (one)]}});
        tolerate(&mut pod, &[]);
        assert_eq!(pod, json!({"spec": {"tolerations": [(any)]}}));
        let mut plain = json!({"spec": {}});
        tolerate(&mut plain, &[]);
        assert_eq!(plain, json!({"spec": {}}));
    }
}
