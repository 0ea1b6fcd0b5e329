//! The part of a patch that is left when it has been merged: upstream takes directives and nulls out of it
//! meanwhile, and shows this if the result is not an object of the kind.

use std::collections::{HashMap, HashSet};
use std::marker::PhantomData;

use super::{
    DELETE_FROM, DIRECTIVE, Merger, RETAIN_KEYS, SET_ORDER, directive_target, discard_nulls,
    type_of,
};
use crate::json;
use crate::schema::{DefId, Schemas};
use crate::shape::{BuiltIn, Shape};
use crate::value::{Map, Str, Value};

/// Returns what is left of `patch` when it has been merged into `original`, both of `id`, without an error.
pub fn remainder(schemas: &Schemas, id: DefId, original: &Value, mut patch: Value) -> Value {
    if let (Value::Object(old), Value::Object(new)) = (original, &mut patch) {
        Merger(PhantomData).spend(old, new, BuiltIn::root(schemas, id));
    }
    patch
}

impl<'s, S: Shape<'s>> Merger<'s, S> {
    /// Takes out of a patch what the merge with `original` takes out of it.
    fn spend(&self, original: &Map, patch: &mut Map, shape: S) {
        if let Some(directive) = patch.get(DIRECTIVE) {
            if directive.as_str() == Some("replace") {
                patch.remove(DIRECTIVE);
            }
            return;
        }
        let retained = patch.remove(RETAIN_KEYS);
        let retained: Option<HashSet<&str>> = retained
            .as_ref()
            .and_then(Value::as_array)
            .map(|keys| keys.iter().filter_map(Value::as_str).collect());
        let present = |key: &str| {
            let is_kept = retained.as_ref().is_none_or(|keys| keys.contains(key));
            original.get(key).filter(|_| is_kept)
        };
        let orders = patch.keys().filter(|key| key.starts_with(SET_ORDER));
        let orders: Vec<Str> = orders.map(Str::from).collect();
        for order in orders {
            patch.remove(&order);
            // A list that is ordered has been merged as a whole.
            if let Some(list) = directive_target(&order, SET_ORDER) {
                patch.remove(list);
            }
        }
        for (key, value) in patch.iter_mut() {
            if !key.starts_with(DELETE_FROM) && !value.is_null() {
                self.spend_member(present(key), key, value, shape);
            }
        }
    }

    fn spend_member(&self, old: Option<&Value>, key: &str, patch: &mut Value, shape: S) {
        match (old, patch) {
            (Some(Value::Object(old)), Value::Object(new)) => {
                if let Ok(meta) = self.meta(shape, key)
                    && meta.strategy != "replace"
                {
                    self.spend(old, new, meta.shape);
                }
            }
            (Some(Value::Array(old)), Value::Array(new)) => {
                if let Ok(meta) = self.list_meta(shape, key)
                    && meta.strategy == "merge"
                {
                    self.spend_items(old, new, meta.merge_key, meta.shape);
                }
            }
            (Some(old), new) if type_of(old) == type_of(&*new) => {}
            (_, new) => {
                discard_nulls(new);
                strip(new);
            }
        }
    }

    fn spend_items(&self, old: &[Value], patch: &mut [Value], merge_key: &str, shape: S) {
        if patch.iter().any(|item| directive_of(item) == "replace") {
            return;
        }
        let mut known: HashMap<String, &Map> = HashMap::new();
        for item in old {
            if let (Some(name), Some(members)) = (name_of(item, merge_key), item.as_object()) {
                known.entry(name).or_insert(members);
            }
        }
        for item in patch.iter() {
            if let ("delete", Some(name)) = (directive_of(item), name_of(item, merge_key)) {
                known.remove(&name);
            }
        }
        for item in patch.iter_mut().filter(|item| !is_directive(item)) {
            let before = name_of(item, merge_key).and_then(|name| known.get(&name));
            if let (Some(before), Some(members)) = (before, item.as_object_mut()) {
                self.spend(before, members, shape);
            }
        }
    }
}

/// Returns the text of an item's key. Items are found by it, so that a long list is not searched for each.
fn name_of(item: &Value, merge_key: &str) -> Option<String> {
    item.get(merge_key).map(json::to_string)
}

fn directive_of(item: &Value) -> &str {
    item.str_at(&[DIRECTIVE])
}

fn is_directive(value: &Value) -> bool {
    value.get(DIRECTIVE).is_some()
}

/// Takes objects that are directives out of what a value has, at any depth. If the value is a list, it keeps its own:
/// upstream makes a new list of it.
fn strip(value: &mut Value) {
    match value {
        Value::Object(members) if !members.contains_key(DIRECTIVE) => {
            members.retain(|_, member| {
                if let Value::Array(items) = member {
                    items.retain(|item| !is_directive(item));
                }
                !is_directive(member)
            });
            members.iter_mut().for_each(|(_, member)| strip(member));
        }
        Value::Array(items) => items.iter_mut().for_each(strip),
        _ => {}
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::schema::fixture::{SCHEMAS, kind, tree};

    /// Returns what is left of a patch of a Pod.
    fn left(original: &str, patch: &str) -> String {
        let pod = kind("/v1/Pod").expect("pods are built in");
        json::to_string(&remainder(&SCHEMAS, pod, &tree(original), tree(patch)))
    }

    /// Upstream deletes from the patch in `mergePatchIntoOriginal`, `applyRetainKeysDirective` and
    /// `handleDirectiveInMergeMap` (pkg/util/strategicpatch/patch.go of apimachinery).
    #[test]
    fn directives_and_ordered_lists_are_gone_from_a_merged_patch() {
        let pod = r#"{"metadata":{"labels":{"a":"b"}},"spec":{"nodeName":"n","containers":[{"name":"c"}],"volumes":[{"name":"v"}]}}"#;
        let ordered = r#"{"spec":{"$setElementOrder/containers":[{"name":"c"}],"containers":[{"name":"c"}],"nodeName":5}}"#;
        assert_eq!(left(pod, ordered), r#"{"spec":{"nodeName":5}}"#);
        let retained = r#"{"spec":{"volumes":[{"$retainKeys":["name"],"name":"v"}]}}"#;
        assert_eq!(
            left(pod, retained),
            r#"{"spec":{"volumes":[{"name":"v"}]}}"#
        );
        let replaced = r#"{"metadata":{"labels":{"$patch":"replace","c":"d"}}}"#;
        assert_eq!(left(pod, replaced), r#"{"metadata":{"labels":{"c":"d"}}}"#);
    }

    #[test]
    fn nulls_are_gone_only_from_what_the_object_does_not_have() {
        let pod = r#"{"metadata":{"labels":{"a":"b"}}}"#;
        let patch = r#"{"metadata":{"annotations":{"c":null},"labels":{"a":null,"c":null}},"spec":{"nodeName":null,"x":[{"$patch":"delete"},{"y":null}]}}"#;
        let gone =
            r#"{"metadata":{"annotations":{},"labels":{"a":null,"c":null}},"spec":{"x":[{}]}}"#;
        assert_eq!(left(pod, patch), gone);
    }
}
