//! Strategic merge patches.
//!
//! Owns the directives and the order of merged lists, as upstream applies patches to live objects.
//! Which lists merge and by which key is read from [`crate::schema`]; what the result means to a
//! kind is the caller's.

mod lists;
#[cfg(test)]
mod tests;

use crate::schema::go;
use crate::schema::{DefId, Field, Schemas, Type};
use crate::value::{Map, Str, Value};

const DIRECTIVE: &str = "$patch";
const RETAIN_KEYS: &str = "$retainKeys";
const DELETE_FROM: &str = "$deleteFromPrimitiveList";
const SET_ORDER: &str = "$setElementOrder";

/// Why a patch does not apply.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum PatchError {
    /// A list of deletions is not named as it must be.
    #[error("invalid patch format of primitive list")]
    PrimitiveList,
    /// `$retainKeys` is no list, or the patch sets a member that it does not name.
    #[error("invalid patch format of retainKeys")]
    RetainKeys,
    /// `$setElementOrder` is no list.
    #[error("invalid patch format of setElementOrder list")]
    SetElementOrder,
    /// A merged list holds lists.
    #[error("lists of lists are not supported")]
    ListOfLists,
    /// Anything else, in upstream's words.
    #[error("{0}")]
    Other(String),
}

/// Which answer an error deserves.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Answer {
    /// The patch itself is malformed.
    BadRequest,
    /// The patch is well formed but cannot be applied.
    Unprocessable,
    /// Upstream answers an internal error.
    Internal,
}

impl PatchError {
    /// Which answer upstream gives.
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

/// The dynamic Go type of a value in an untyped tree.
fn type_of(value: &Value) -> &'static str {
    match value {
        Value::Null => "%!s(<nil>)",
        Value::Bool(_) => "bool",
        Value::Int(_) => "int64",
        Value::Float(_) => "float64",
        Value::String(_) => "string",
        Value::Array(_) => ANY_LIST,
        Value::Object(_) => ANY_MAP,
    }
}

/// What the schema says about the values below a point of the tree.
#[derive(Clone, Copy)]
enum Shape<'s> {
    Struct(DefId),
    /// Something that has no fields; the word is what Go calls it.
    Other(&'static str, Option<&'s Type>),
}

/// How the value of one member merges.
struct Meta<'s> {
    shape: Shape<'s>,
    strategy: &'s str,
    merge_key: &'s str,
}

/// Applies `patch` to `original`, both objects of `id`.
///
/// # Errors
/// If the patch does not fit the object or the schema.
pub fn apply(
    schemas: &Schemas,
    id: DefId,
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
    Merger { schemas }
        .maps(original, patch, Shape::Struct(id))
        .map(Value::Object)
}

struct Merger<'s> {
    schemas: &'s Schemas,
}

impl<'s> Merger<'s> {
    fn maps(&self, mut original: Map, mut patch: Map, shape: Shape<'s>) -> Result<Map, PatchError> {
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
        for (key, value) in patch {
            self.member(&mut original, key, value, shape)?;
        }
        Ok(original)
    }

    fn member(
        &self,
        original: &mut Map,
        mut key: Str,
        mut patch: Value,
        shape: Shape<'s>,
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

    /// Merges and orders the lists that a `$setElementOrder` names, and takes them off the patch.
    fn ordered_lists(
        &self,
        original: &mut Map,
        patch: &mut Map,
        shape: Shape<'s>,
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
        meta: &Meta<'s>,
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
                return Ok(old
                    .into_iter()
                    .filter(|value| !new.contains(value))
                    .collect());
            }
            let merged = lists::distinct(old.iter().chain(&new));
            let (wanted, rest) = lists::partition(merged, &new, meta.merge_key)?;
            return lists::arrange(wanted, rest, &new, &old, meta.merge_key, kind);
        }
        if meta.merge_key.is_empty() {
            let name = self.shape_name(meta.shape);
            return Err(PatchError::Other(format!(
                "cannot merge lists without merge key for {name}"
            )));
        }
        let (old, new) = lists::apply_directives(old, new, meta.merge_key)?;
        let live = old.clone();
        let mut merged = old;
        for item in new.iter() {
            let Value::Object(fields) = item else {
                continue;
            };
            let name = fields
                .get(meta.merge_key)
                .ok_or_else(|| PatchError::no_merge_key(fields, meta.merge_key))?;
            match lists::find(&merged, meta.merge_key, name)? {
                Some(at) => {
                    let before = match merged[at].take() {
                        Value::Object(before) => before,
                        _ => Map::new(),
                    };
                    merged[at] = Value::Object(self.maps(before, fields.clone(), meta.shape)?);
                }
                None => merged.push(item.clone()),
            }
        }
        let (wanted, rest) = lists::partition(merged, &new, meta.merge_key)?;
        lists::arrange(wanted, rest, &new, &live, meta.merge_key, kind)
    }

    fn meta(&self, shape: Shape<'s>, key: &str) -> Result<Meta<'s>, PatchError> {
        let field = self.lookup(shape, key)?;
        let strategies: Vec<&str> = field.patch.strategies.iter().map(Str::as_str).collect();
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
            shape: shape_of(&field.ty),
            strategy,
            merge_key: &field.patch.merge_key,
        })
    }

    fn list_meta(&self, shape: Shape<'s>, key: &str) -> Result<Meta<'s>, PatchError> {
        let mut meta = self.meta(shape, key)?;
        meta.shape = match meta.shape {
            Shape::Other("slice", Some(Type::List(item)))
                if matches!(item.as_ref(), Type::List(_)) =>
            {
                return Err(PatchError::Other("unexpected slice of slice".to_owned()));
            }
            Shape::Other("slice", Some(Type::List(item))) => shape_of(item),
            Shape::Other("slice", _) => Shape::Other("uint8", None),
            _ => {
                let holder = self.shape_name(shape);
                return Err(PatchError::Other(format!(
                    "expected slice or array type, but got: {holder}"
                )));
            }
        };
        Ok(meta)
    }

    fn lookup(&self, shape: Shape<'s>, key: &str) -> Result<&'s Field, PatchError> {
        let id = match shape {
            Shape::Struct(id) => id,
            Shape::Other(word, _) => {
                let text = format!(
                    "merging an object in json but data type is not struct, instead is: {word}"
                );
                return Err(PatchError::Other(text));
            }
        };
        let definition = self.schemas.get(id);
        let folded = || {
            definition
                .fields
                .iter()
                .find(|field| field.name.eq_ignore_ascii_case(key))
        };
        definition.field(key).or_else(folded).ok_or_else(|| {
            let holder = go::struct_name(definition);
            let quoted = crate::quote::quote(key);
            PatchError::Other(format!(
                "unable to find api field in struct {holder} for the json field {quoted}"
            ))
        })
    }

    fn shape_name(&self, shape: Shape<'_>) -> &'static str {
        match shape {
            Shape::Struct(_) => "struct",
            Shape::Other(word, _) => word,
        }
    }
}

/// The kind of a type in Go's reflection.
fn shape_of(ty: &Type) -> Shape<'_> {
    match ty {
        Type::Ref(id)
        | Type::SchemaOrBool(id)
        | Type::SchemaOrArray(id)
        | Type::SchemaOrStrings(id) => Shape::Struct(*id),
        Type::Nullable(inner) => shape_of(inner),
        Type::List(_) | Type::Bytes => Shape::Other("slice", Some(ty)),
        Type::Map(_) => Shape::Other("map", Some(ty)),
        Type::String => Shape::Other("string", None),
        Type::Bool => Shape::Other("bool", None),
        Type::Int32 => Shape::Other("int32", None),
        Type::Int64 => Shape::Other("int64", None),
        Type::Float64 => Shape::Other("float64", None),
        _ => Shape::Other("struct", None),
    }
}

/// What stands behind the slash of a directive's name.
fn directive_target<'k>(key: &'k str, prefix: &str) -> Option<&'k str> {
    key.split_once('/')
        .filter(|(before, _)| *before == prefix)
        .map(|(_, target)| target)
}

/// The list `key`, if it is there.
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

/// Drops what `$retainKeys` does not name.
fn retain_keys(original: &mut Map, patch: &mut Map) -> Result<(), PatchError> {
    let Some(keys) = patch.remove(RETAIN_KEYS) else {
        return Ok(());
    };
    let Value::Array(keys) = keys else {
        return Err(PatchError::RetainKeys);
    };
    let named = |key: &str| keys.iter().any(|named| named.as_str() == Some(key));
    for (key, value) in patch.iter() {
        let directive = key.starts_with(DELETE_FROM) || key.starts_with(SET_ORDER);
        if !value.is_null() && !directive && !named(key) {
            return Err(PatchError::RetainKeys);
        }
    }
    original.retain(|key, _| named(key));
    Ok(())
}

/// The value without objects that are directives.
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
