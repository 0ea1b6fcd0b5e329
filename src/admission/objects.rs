//! Other objects that a plug-in reads, in the state that the write is prepared against.

use polyplane_apimachinery::Value;
use polyplane_apimachinery::quote::quote;
use polyplane_apimachinery::status::ApiError;
use polyplane_plane::{Claim, Key, Prefix, Snapshot, Start};
use polyplane_registry::plan::{Attributes, Mutated, Operation};
use std::cmp::Reverse;

/// Returns an object, if it exists.
///
/// # Errors
/// Returns 500 if it cannot be read.
pub(crate) fn get(what: &Attributes<'_>, key: &Key) -> Result<Option<Value>, ApiError> {
    let object = what.cut.get(key);
    object
        .map(|found| what.call.stored_tree(&found))
        .transpose()
}

/// Returns the name of the node of a pod whose spec an update changes; `None` if it changes none, or the pod
/// is on no node.
pub(crate) fn node_of_changed_pod<'a>(pod: &'a Value, old: &Value) -> Option<&'a str> {
    let generation = |pod: &Value| pod.int_at(&["metadata", "generation"]);
    let node = pod.str_at(&["spec", "nodeName"]);
    (!node.is_empty() && generation(pod) != generation(old)).then_some(node)
}

/// Returns the node of a pod.
///
/// # Errors
/// Returns 403 if there is no node of that name, 500 if it cannot be read.
pub(crate) fn node_of(what: &Attributes<'_>, pod: &Value, node: &str) -> Result<Value, ApiError> {
    let found = get(what, &Key::new("", "nodes", None, node))?;
    found.ok_or_else(|| what.forbidden(Some(pod), format!("node {} not found", quote(node))))
}

/// Returns all objects under a prefix, in the order of their keys.
///
/// # Errors
/// Returns 500 if one cannot be read.
pub(crate) fn list(what: &Attributes<'_>, prefix: &Prefix) -> Result<Vec<Value>, ApiError> {
    let objects = what.cut.range(prefix, Start::First);
    objects.map(|found| what.call.stored_tree(&found)).collect()
}

/// Claims that the objects under a prefix are still those of the cut when the write is sequenced.
pub(crate) fn unchanged(cut: &Snapshot, prefix: &Prefix) -> Vec<Claim> {
    let objects = cut.range(prefix, Start::First);
    let mut claims: Vec<Claim> = objects
        .map(|object| Claim::At(object.key().clone(), object.stamp()))
        .collect();
    claims.push(Claim::Count {
        prefix: prefix.clone(),
        count: claims.len(),
    });
    claims
}

/// Returns the class that an annotation marks as the default one: the newest if several are
/// marked, of equally old ones the first by name.
///
/// # Errors
/// Returns 500 if a class cannot be read.
fn default_class(
    what: &Attributes<'_>,
    (group, resource): (&str, &str),
    marks: &[&str],
) -> Result<Option<Value>, ApiError> {
    let is_marked = |class: &Value| {
        let annotations = &class["metadata"]["annotations"];
        marks
            .iter()
            .any(|mark| annotations.str_at(&[mark]) == "true")
    };
    let classes = list(what, &Prefix::resource(group, resource))?;
    let marked = classes.into_iter().filter(is_marked);
    Ok(marked.min_by_key(|class| {
        let created = class.str_at(&["metadata", "creationTimestamp"]).to_owned();
        let name = class.str_at(&["metadata", "name"]).to_owned();
        (Reverse(created), name)
    }))
}

/// Gives a new object that names no class the default one, if there is one.
///
/// # Errors
/// Returns 500 if a class cannot be read.
pub(crate) fn take_default_class(
    what: &Attributes<'_>,
    object: Option<&mut Value>,
    kind: &DefaultClass<'_>,
) -> Result<Mutated, ApiError> {
    let (Operation::Create, "", Some(object)) = (what.operation, what.call.subresource(), object)
    else {
        return Ok(Mutated::Unchanged);
    };
    let path = ["spec", kind.member];
    if object.at(&path).is_some() || has_annotation(object, kind.annotation) {
        return Ok(Mutated::Unchanged);
    }
    let Some(class) = default_class(what, kind.resource, kind.marks)? else {
        return Ok(Mutated::Unchanged);
    };
    object.set(&path, class.str_at(&["metadata", "name"]));
    Ok(Mutated::Completed)
}

/// Classes of which one can be the default.
pub(crate) struct DefaultClass<'a> {
    /// Group and resource of the classes.
    pub(crate) resource: (&'a str, &'a str),
    /// The annotations that mark the default class.
    pub(crate) marks: &'a [&'a str],
    /// The member of an object's `spec` that names its class.
    pub(crate) member: &'a str,
    /// The annotation that named an object's class before there was the member.
    pub(crate) annotation: &'a str,
}

/// Returns an object without the members that change when its owners and finalizers do.
pub(crate) fn without_owners(object: &Value) -> Value {
    let mut rest = object.clone();
    for member in ["ownerReferences", "finalizers", "managedFields"] {
        drop(rest.remove(&["metadata", member]));
    }
    rest
}

/// Returns true if an object has this annotation, whatever its value.
pub(crate) fn has_annotation(object: &Value, annotation: &str) -> bool {
    object["metadata"]["annotations"].get(annotation).is_some()
}

/// Appends an item to the list at a path, which is made if there is none.
pub(crate) fn append(object: &mut Value, path: &[&str], item: impl Into<Value>) {
    match object.at_mut(path).and_then(Value::as_array_mut) {
        Some(items) => items.push(item.into()),
        None => object.set(path, vec![item.into()]),
    }
}

/// Returns the reference to the owner that controls an object.
pub(crate) fn controller(object: &Value) -> Option<&Value> {
    let owners = object.items_at(&["metadata", "ownerReferences"]);
    owners.iter().find(|owner| owner.bool_at(&["controller"]))
}
