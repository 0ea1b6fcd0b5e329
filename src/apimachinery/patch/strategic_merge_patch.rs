//! Strategic merge patches.
//!
//! Owns the directives and the order of merged lists, as upstream applies patches to live objects.
//! Which lists are merged, and by which key, is read from a [`Shape`]. Must not know what the
//! result means to a kind.

mod lists;
pub mod remainder;
#[cfg(test)]
mod tests;

use std::collections::HashSet;
use std::marker::PhantomData;

use crate::schema::go;
use crate::schema::{DefId, Schemas};
use crate::shape::{BuiltIn, Kind, Shape};
use crate::value::{Map, Str, Value};

const DIRECTIVE: &str = "$patch";
const RETAIN_KEYS: &str = "$retainKeys";
const DELETE_FROM: &str = "$deleteFromPrimitiveList";
const SET_ORDER: &str = "$setElementOrder";

/// The reason why a patch does not apply.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum PatchError {
    /// A directive that deletes items of a list of scalars has the wrong name.
    #[error("invalid patch format of primitive list")]
    PrimitiveList,
    /// `$retainKeys` is not a list, or the patch sets a member that it does not name.
    #[error("invalid patch format of retainKeys")]
    RetainKeys,
    /// `$setElementOrder` is not a list.
    #[error("invalid patch format of setElementOrder list")]
    SetElementOrder,
    /// A merged list contains lists.
    #[error("lists of lists are not supported")]
    ListOfLists,
    /// Any other reason, with upstream's text.
    #[error("{0}")]
    Other(String),
}

/// The type of answer that an error gets.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Answer {
    /// The patch itself is malformed.
    BadRequest,
    /// The patch is well formed but cannot be applied.
    Unprocessable,
    /// Upstream answers with an internal error.
    Internal,
}

impl PatchError {
    /// Returns the type of answer that upstream gives.
    pub fn answer(&self) -> Answer {
        match self {
            Self::PrimitiveList | Self::RetainKeys | Self::SetElementOrder => Answer::BadRequest,
            Self::ListOfLists => Answer::Unprocessable,
            Self::Other(_) => Answer::Internal,
        }
    }

    fn no_merge_key(item: &Map, key: &str) -> Self {
        let mut text = "map: ".to_owned();
        go::print(&Value::Object(item.clone()), &mut text);
        Self::Other(format!("{text} does not contain declared merge key: {key}"))
    }

    fn argument(expected: &str, found: &Value) -> Self {
        Self::Other(format!(
            "expected a {expected}, but received a {}",
            type_of(found)
        ))
    }

    fn patch_type(directive: &Value, patch: &Map) -> Self {
        let mut text = "unknown patch type: ".to_owned();
        go::print_as(go::Verb::Text, directive, &mut text);
        text.push_str(" in map: ");
        go::print(&Value::Object(patch.clone()), &mut text);
        Self::Other(text)
    }
}

const ANY_MAP: &str = "map[string]interface {}";
const ANY_LIST: &str = "[]interface {}";

/// Returns the dynamic Go type of a value in an untyped tree.
fn type_of(value: &Value) -> &'static str {
    match value {
        Value::Null => "%!s(<nil>)",
        other => other.go_type(),
    }
}

/// The shape of one member's value, with its strategy and merge key.
struct Meta<'s, S> {
    shape: S,
    strategy: &'s str,
    merge_key: &'s str,
}

/// Applies `patch` to `original`, both objects of `id`.
///
/// # Errors
/// Returns an error if the patch does not fit the object or the schema.
pub fn apply(
    schemas: &Schemas,
    id: DefId,
    original: Value,
    patch: Value,
) -> Result<Value, PatchError> {
    merge(BuiltIn::root(schemas, id), original, patch)
}

/// Applies `patch` to `original`, both objects of a shape.
///
/// # Errors
/// Returns an error if the patch does not fit the object or the shape.
pub fn merge<'s, S: Shape<'s>>(
    shape: S,
    original: Value,
    patch: Value,
) -> Result<Value, PatchError> {
    let Value::Object(patch) = patch else {
        return Err(PatchError::Other("invalid JSON document".to_owned()));
    };
    let original = match original {
        Value::Object(members) => members,
        _ => Map::new(),
    };
    Merger(PhantomData)
        .maps(original, patch, shape)
        .map(Value::Object)
}

/// A type that carries the lifetime and type of shapes through the recursion.
struct Merger<'s, S>(PhantomData<(&'s (), S)>);

impl<'s, S: Shape<'s>> Merger<'s, S> {
    fn maps(&self, mut original: Map, mut patch: Map, shape: S) -> Result<Map, PatchError> {
        if let Some(directive) = patch.remove(DIRECTIVE) {
            return match directive.as_str() {
                Some("replace") => Ok(patch),
                Some("delete") => Ok(Map::new()),
                _ => {
                    patch.insert(DIRECTIVE, directive.clone());
                    Err(PatchError::patch_type(&directive, &patch))
                }
            };
        }
        retain_keys(&mut original, &mut patch)?;
        self.ordered_lists(&mut original, &mut patch, shape)?;
        // Members that a directive is about, too, are changed at once: both must be done in order.
        let targets = patch
            .keys()
            .filter_map(|key| directive_target(key, DELETE_FROM));
        let targets: HashSet<Str> = targets.map(Str::from).collect();
        let (mut added, mut removed) = (Vec::new(), Vec::new());
        for (key, mut value) in patch {
            let has_directive = key.starts_with(DELETE_FROM) || targets.contains(key.as_str());
            let is_merged = !value.is_null() && original.contains_key(&key);
            if has_directive || is_merged {
                self.member(&mut original, key, value, shape)?;
            } else if value.is_null() {
                removed.push(key);
            } else {
                discard_nulls(&mut value);
                let value = without_directives(value);
                added.extend(value.map(|value| (key, value)));
            }
        }
        // The members of a patch are in order.
        original.remove_all(&removed);
        original.add_all(added);
        Ok(original)
    }

    fn member(
        &self,
        original: &mut Map,
        mut key: Str,
        mut patch: Value,
        shape: S,
    ) -> Result<(), PatchError> {
        let deletion = key.starts_with(DELETE_FROM);
        if deletion {
            key = directive_target(&key, DELETE_FROM)
                .ok_or(PatchError::PrimitiveList)?
                .into();
        }
        if patch.is_null() {
            original.remove(&key);
            return Ok(());
        }
        let same_type = original
            .get(&key)
            .map(|value| type_of(value) == type_of(&patch));
        match (same_type, deletion) {
            (None | Some(false), true) => return Ok(()),
            (None | Some(false), false) => {
                discard_nulls(&mut patch);
                replace(original, key, patch);
                return Ok(());
            }
            (Some(true), _) => {}
        }
        match (original.get_mut(&key).map(Value::take), patch) {
            (Some(Value::Object(old)), Value::Object(new)) => {
                let meta = self.meta(shape, &key)?;
                let merged = if meta.strategy == "replace" {
                    new
                } else {
                    self.maps(old, new, meta.shape)?
                };
                original.insert(key, merged);
            }
            (Some(Value::Array(old)), Value::Array(new)) => {
                let meta = self.list_meta(shape, &key)?;
                let merged = self.lists(old, new, &meta, deletion)?;
                original.insert(key, merged);
            }
            (_, patch) => replace(original, key, patch),
        }
        Ok(())
    }

    /// Merges and orders the lists that a `$setElementOrder` names, and removes them from the
    /// patch.
    fn ordered_lists(
        &self,
        original: &mut Map,
        patch: &mut Map,
        shape: S,
    ) -> Result<(), PatchError> {
        let directives: Vec<Str> = patch
            .keys()
            .filter(|key| key.starts_with(SET_ORDER))
            .map(Str::from)
            .collect();
        for directive in directives {
            let order = match patch.remove(&directive).unwrap_or_default() {
                Value::Array(order) => order,
                other => return Err(PatchError::argument(ANY_LIST, &other)),
            };
            let key = directive_target(&directive, SET_ORDER).ok_or(PatchError::SetElementOrder)?;
            let old = list_member(original, key)?;
            let new = list_member(patch, key)?;
            let meta = self.list_meta(shape, key)?;
            lists::check_order(new.as_deref().unwrap_or_default(), &order, meta.merge_key)?;
            let live = old.clone().unwrap_or_default();
            let sample = new.clone().unwrap_or_default();
            let merged = match (old, new) {
                (None, None) => continue,
                (Some(old), None) => old,
                (None, Some(new)) => new.into_iter().filter_map(without_directives).collect(),
                (Some(old), Some(new)) => self.lists(old, new, &meta, false)?,
            };
            let (wanted, rest) = lists::partition(merged, &order, meta.merge_key)?;
            let kind = lists::item_kind(&[&live, &sample])?;
            let sorted = lists::arrange(wanted, rest, &order, &live, meta.merge_key, kind)?;
            original.insert(key, sorted);
            patch.remove(key);
        }
        Ok(())
    }

    fn lists(
        &self,
        old: Vec<Value>,
        new: Vec<Value>,
        meta: &Meta<'s, S>,
        deletion: bool,
    ) -> Result<Vec<Value>, PatchError> {
        if meta.strategy != "merge" && !deletion {
            return Ok(new);
        }
        if old.is_empty() && new.is_empty() {
            return Ok(old);
        }
        let kind = lists::item_kind(&[&old, &new])?;
        if kind == lists::Kind::Scalars {
            if deletion {
                return Ok(lists::without(old, &new));
            }
            let merged = lists::distinct(old.iter().chain(&new));
            let (wanted, rest) = lists::partition(merged, &new, meta.merge_key)?;
            return lists::arrange(wanted, rest, &new, &old, meta.merge_key, kind);
        }
        if meta.merge_key.is_empty() {
            let name = word(meta.shape.kind());
            return Err(PatchError::Other(format!(
                "cannot merge lists without merge key for {name}"
            )));
        }
        let (old, new) = lists::apply_directives(old, new, meta.merge_key)?;
        let live = old.clone();
        let mut merged = old;
        let mut places = lists::Places::new(&live, new.len(), meta.merge_key);
        for item in &new {
            let Value::Object(fields) = item else {
                continue;
            };
            let name = fields
                .get(meta.merge_key)
                .ok_or_else(|| PatchError::no_merge_key(fields, meta.merge_key))?;
            match places.find(&merged, name)? {
                Some(at) => {
                    let before = match merged[at].take() {
                        Value::Object(before) => before,
                        _ => Map::new(),
                    };
                    merged[at] = Value::Object(self.maps(before, fields.clone(), meta.shape)?);
                    places.merged(&merged, at, name);
                }
                None => {
                    places.added(merged.len(), name);
                    merged.push(item.clone());
                }
            }
        }
        let (wanted, rest) = lists::partition(merged, &new, meta.merge_key)?;
        lists::arrange(wanted, rest, &new, &live, meta.merge_key, kind)
    }

    fn meta(&self, shape: S, key: &str) -> Result<Meta<'s, S>, PatchError> {
        let child = child(shape, key)?;
        let patch = child.patch();
        let strategies: Vec<&str> = patch.strategies.iter().map(Str::as_str).collect();
        let strategy = match strategies.as_slice() {
            [] | ["retainKeys"] => "",
            [only] => only,
            ["retainKeys", other] | [other, "retainKeys"] => other,
            _ => {
                return Err(PatchError::Other(format!(
                    "unexpected patch strategy: [{}]",
                    strategies.join(" ")
                )));
            }
        };
        Ok(Meta {
            shape: child,
            strategy,
            merge_key: &patch.merge_key,
        })
    }

    fn list_meta(&self, shape: S, key: &str) -> Result<Meta<'s, S>, PatchError> {
        let meta = self.meta(shape, key)?;
        let item = match meta.shape.kind() {
            Kind::List | Kind::Bytes => meta.shape.item(),
            _ => None,
        };
        match item {
            Some(item) if item.kind() == Kind::List && !item.nullable() => {
                Err(PatchError::Other("unexpected slice of slice".to_owned()))
            }
            Some(item) => Ok(Meta {
                shape: item,
                ..meta
            }),
            None => {
                let holder = word(shape.kind());
                Err(PatchError::Other(format!(
                    "expected slice or array type, but got: {holder}"
                )))
            }
        }
    }
}

/// Returns the shape of the field `key`, whose name may be written in other case.
fn child<'s, S: Shape<'s>>(shape: S, key: &str) -> Result<S, PatchError> {
    let word = word(shape.kind());
    if word != "struct" {
        return Err(PatchError::Other(format!(
            "merging an object in json but data type is not struct, instead is: {word}"
        )));
    }
    let folded = || {
        let mut children = shape.children();
        children.find(|(name, _)| name.eq_ignore_ascii_case(key))
    };
    let child = shape.child(key);
    child.or_else(|| Some(folded()?.1)).ok_or_else(|| {
        let holder = shape.name();
        let quoted = crate::quote::quote(key);
        PatchError::Other(format!(
            "unable to find api field in struct {holder} for the json field {quoted}"
        ))
    })
}

/// Returns Go's name for values of a kind.
fn word(kind: Kind) -> &'static str {
    match kind {
        Kind::List | Kind::Bytes => "slice",
        Kind::Byte => "uint8",
        Kind::Map => "map",
        Kind::String => "string",
        Kind::Bool => "bool",
        Kind::Int32 => "int32",
        Kind::Int64 => "int64",
        Kind::Float64 => "float64",
        Kind::Object | Kind::IntOrString | Kind::Scalar | Kind::Any => "struct",
    }
}

/// Returns the text behind the slash of a directive's name.
fn directive_target<'k>(key: &'k str, prefix: &str) -> Option<&'k str> {
    key.split_once('/')
        .filter(|(before, _)| *before == prefix)
        .map(|(_, target)| target)
}

/// Returns the list at `key`, if there is one.
fn list_member(map: &Map, key: &str) -> Result<Option<Vec<Value>>, PatchError> {
    match map.get(key) {
        None => Ok(None),
        Some(Value::Array(items)) => Ok(Some(items.clone())),
        Some(other) => Err(PatchError::argument(ANY_LIST, other)),
    }
}

fn replace(original: &mut Map, key: Str, patch: Value) {
    match without_directives(patch) {
        Some(value) => {
            original.insert(key, value);
        }
        None => {
            original.remove(&key);
        }
    }
}

/// Drops the members that `$retainKeys` does not name.
fn retain_keys(original: &mut Map, patch: &mut Map) -> Result<(), PatchError> {
    let Some(keys) = patch.remove(RETAIN_KEYS) else {
        return Ok(());
    };
    let Value::Array(keys) = keys else {
        return Err(PatchError::RetainKeys);
    };
    let keys: HashSet<&str> = keys.iter().filter_map(Value::as_str).collect();
    let named = |key: &str| keys.contains(key);
    for (key, value) in patch.iter() {
        let directive = key.starts_with(DELETE_FROM) || key.starts_with(SET_ORDER);
        if !value.is_null() && !directive && !named(key) {
            return Err(PatchError::RetainKeys);
        }
    }
    original.retain(|key, _| named(key));
    Ok(())
}

/// Returns the value without objects that are directives.
fn without_directives(value: Value) -> Option<Value> {
    match value {
        Value::Object(members) if members.contains_key(DIRECTIVE) => None,
        Value::Object(members) => {
            let kept = members
                .into_iter()
                .filter_map(|(key, value)| Some((key, without_directives(value)?)));
            Some(Value::Object(kept.collect()))
        }
        Value::Array(items) => Some(Value::Array(
            items.into_iter().filter_map(without_directives).collect(),
        )),
        other => Some(other),
    }
}

/// Drops members that are null, at any depth.
fn discard_nulls(value: &mut Value) {
    match value {
        Value::Object(members) => members.retain(|_, value| {
            discard_nulls(value);
            !value.is_null()
        }),
        Value::Array(items) => items.iter_mut().for_each(discard_nulls),
        _ => {}
    }
}
