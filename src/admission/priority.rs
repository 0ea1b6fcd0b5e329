//! `Priority`: resolves the priority class of a pod, or of a group of pods, into its number, and keeps the
//! one default class the only one.

use crate::objects;
use polyplane_apimachinery::Value;
use polyplane_apimachinery::status::ApiError;
use polyplane_plane::{Claim, Key, Prefix};
use polyplane_registry::Admission;
use polyplane_registry::plan::{
    Attributes, CallOuts, Interest, Interrupted, Measured, Mutated, Operation,
};

const GROUP: &str = "scheduling.k8s.io";
const RESOURCE: &str = "priorityclasses";
const PODS: &str = "pods";
const CLASSES: &str = "priorityclasses.scheduling.k8s.io";
const POD_GROUPS: &str = "podgroups.scheduling.k8s.io";
const COMPOSITE_POD_GROUPS: &str = "compositepodgroups.scheduling.k8s.io";

/// See the module.
#[derive(Debug)]
pub(crate) struct Priority;

impl Admission for Priority {
    fn name(&self) -> &'static str {
        "Priority"
    }

    fn interest(&self) -> Interest {
        Interest::Resources(&[PODS, CLASSES, POD_GROUPS, COMPOSITE_POD_GROUPS])
    }

    fn measured(&self) -> Measured {
        Measured::both(&[Operation::Create, Operation::Update, Operation::Delete])
    }

    fn mutate(
        &self,
        what: &Attributes<'_>,
        object: Option<&mut Value>,
        _: &mut CallOuts<'_>,
    ) -> Result<Mutated, Interrupted> {
        let ("", Some(object)) = (what.call.subresource(), object) else {
            return Ok(Mutated::Unchanged);
        };
        match (what.call.row.qualified.as_str(), what.operation) {
            (PODS, Operation::Create) => resolve(what, object)?,
            (PODS, Operation::Update) => keep(what, object),
            (POD_GROUPS, Operation::Create) => resolve_group(what, object, "pod group")?,
            (COMPOSITE_POD_GROUPS, Operation::Create) => {
                resolve_group(what, object, "composite pod group")?;
            }
            _ => return Ok(Mutated::Unchanged),
        }
        Ok(Mutated::Completed)
    }

    fn validate(
        &self,
        what: &Attributes<'_>,
        object: Option<&Value>,
        _: &mut CallOuts<'_>,
    ) -> Result<Vec<Claim>, Interrupted> {
        match object {
            Some(class)
                if what.call.row.qualified == CLASSES
                    && what.call.subresource().is_empty()
                    && class.bool_at(&["globalDefault"]) =>
            {
                Ok(only_default(what, class)?)
            }
            _ => Ok(Vec::new()),
        }
    }
}

/// Returns the class of a new object: the one that it names, or the default one, if there is one.
fn class_of(what: &Attributes<'_>, object: &Value) -> Result<Option<Value>, ApiError> {
    let name = object.str_at(&["spec", "priorityClassName"]);
    if name.is_empty() {
        return default_class(what);
    }
    let key = Key::new(GROUP, RESOURCE, None, name);
    let class = objects::get(what, &key)?;
    let missing = || {
        let why = format!("no PriorityClass with name {name} was found");
        what.forbidden(Some(object), why)
    };
    class.ok_or_else(missing).map(Some)
}

/// Sets the priority of a new group of pods, which `kind` names. What the class says of preemption does not
/// count for groups while upstream's feature for that is off.
fn resolve_group(what: &Attributes<'_>, group: &mut Value, kind: &str) -> Result<(), ApiError> {
    let class = class_of(what, group)?;
    let class = class.as_ref();
    let priority = class
        .and_then(|class| class.int_at(&["value"]))
        .unwrap_or(0);
    if let Some(given) = group.int_at(&["spec", "priority"])
        && given != priority
    {
        let why = format!(
            "priority set in the {kind} ({given}) must match the priority computed ({priority}) based on the priority class set in the spec"
        );
        return Err(what.forbidden(Some(group), why));
    }
    if let Some(class) = class {
        let name = class.str_at(&["metadata", "name"]);
        group.set(&["spec", "priorityClassName"], name);
    }
    group.set(&["spec", "priority"], priority);
    Ok(())
}

/// Sets the priority of a new pod.
fn resolve(what: &Attributes<'_>, pod: &mut Value) -> Result<(), ApiError> {
    let class = class_of(what, pod)?;
    let (priority, policy) = match &class {
        Some(class) => (
            class.int_at(&["value"]).unwrap_or(0),
            class.str_at(&["preemptionPolicy"]),
        ),
        None => (0, "PreemptLowerPriority"),
    };
    if let Some(given) = pod.int_at(&["spec", "priority"])
        && given != priority
    {
        let why = format!(
            "the integer value of priority ({given}) must not be provided in pod spec; priority admission controller computed {priority} from the given PriorityClass name"
        );
        return Err(what.forbidden(Some(pod), why));
    }
    let given = pod.str_at(&["spec", "preemptionPolicy"]);
    if !policy.is_empty() && !given.is_empty() && given != policy {
        let why = format!(
            "the string value of PreemptionPolicy ({given}) must not be provided in pod spec; priority admission controller computed {policy} from the given PriorityClass name"
        );
        return Err(what.forbidden(Some(pod), why));
    }
    if let Some(class) = &class {
        let name = class.str_at(&["metadata", "name"]);
        pod.set(&["spec", "priorityClassName"], name);
    }
    pod.set(&["spec", "priority"], priority);
    if !policy.is_empty() {
        pod.set(&["spec", "preemptionPolicy"], policy);
    }
    Ok(())
}

/// Keeps the priority of a pod whose update leaves it out.
fn keep(what: &Attributes<'_>, pod: &mut Value) {
    for field in ["priority", "preemptionPolicy"] {
        let old = what.old.and_then(|old| old.at(&["spec", field]));
        if let (None, Some(old)) = (pod.at(&["spec", field]), old) {
            pod.set(&["spec", field], old.clone());
        }
    }
}

/// Returns the class of pods that name none. Of several it is the one with the lowest value.
fn default_class(what: &Attributes<'_>) -> Result<Option<Value>, ApiError> {
    let classes = objects::list(what, &Prefix::resource(GROUP, RESOURCE))?;
    let defaults = classes
        .into_iter()
        .filter(|class| class.bool_at(&["globalDefault"]));
    Ok(defaults.min_by_key(|class| class.int_at(&["value"])))
}

/// Checks that no other class is the default one, and claims that this stays so.
fn only_default(what: &Attributes<'_>, class: &Value) -> Result<Vec<Claim>, ApiError> {
    if let Some(present) = default_class(what)? {
        let present = present.str_at(&["metadata", "name"]);
        if what.operation == Operation::Create || present != class.str_at(&["metadata", "name"]) {
            let why = format!(
                "PriorityClass {present} is already marked as default. Only one default can exist"
            );
            return Err(what.forbidden(Some(class), why));
        }
    }
    let classes = Prefix::resource(GROUP, RESOURCE);
    Ok(objects::unchanged(what.cut, &classes))
}
