//! Lists of strategic merge patches: which items are merged, and the order of the result.

use std::collections::HashMap;

use super::{ANY_MAP, DIRECTIVE, PatchError, SET_ORDER};
use crate::schema::go;
use crate::value::Value;

/// The kind of items in a list.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    Scalars,
    Objects,
}

/// Returns the kind of the items in these lists, all of which must have one type.
pub(super) fn item_kind(lists: &[&[Value]]) -> Result<Kind, PatchError> {
    let mut first: Option<&Value> = None;
    for item in lists.iter().copied().flatten() {
        match (first, item) {
            (None, Value::Array(_)) => return Err(PatchError::ListOfLists),
            (None, item) => first = Some(item),
            (Some(first), item) if super::type_of(first) == super::type_of(item) => {}
            (Some(_), _) => return Err(mixed(lists)),
        }
    }
    match first {
        None => Err(PatchError::Other(
            "no elements in any of the given slices".to_owned(),
        )),
        Some(Value::Object(_)) => Ok(Kind::Objects),
        Some(_) => Ok(Kind::Scalars),
    }
}

fn mixed(lists: &[&[Value]]) -> PatchError {
    let mut text = "list element types are not identical: [".to_owned();
    for (at, list) in lists.iter().enumerate() {
        if at > 0 {
            text.push(' ');
        }
        go::print_list(list, &mut text);
    }
    text.push(']');
    PatchError::Other(text)
}

/// Returns whether two values are equal as Go's interfaces are: of the same dynamic type and the
/// same scalar.
fn same(left: &Value, right: &Value) -> bool {
    !matches!(left, Value::Array(_) | Value::Object(_)) && left == right
}

/// A scalar as a key of a hash table.
#[derive(PartialEq, Eq, Hash)]
enum Scalar<'v> {
    Null,
    Bool(bool),
    Int(i64),
    Float(u64),
    Text(&'v str),
}

fn scalar(value: &Value) -> Option<Scalar<'_>> {
    match value {
        Value::Null => Some(Scalar::Null),
        Value::Bool(truth) => Some(Scalar::Bool(*truth)),
        Value::Int(number) => Some(Scalar::Int(*number)),
        Value::Float(number) => Some(Scalar::Float(number.to_bits())),
        Value::String(text) => Some(Scalar::Text(text)),
        Value::Array(_) | Value::Object(_) => None,
    }
}

/// Returns the values, each once.
pub(super) fn distinct<'v>(values: impl Iterator<Item = &'v Value>) -> Vec<Value> {
    let mut seen = HashMap::new();
    values
        .filter(|value| scalar(value).is_none_or(|key| seen.insert(key, ()).is_none()))
        .cloned()
        .collect()
}

/// Returns the value that identifies an item: its merge key, or the item itself.
fn identity<'v>(item: &'v Value, merge_key: &str, kind: Kind) -> &'v Value {
    const NULL: &Value = &Value::Null;
    match kind {
        Kind::Scalars => item,
        Kind::Objects => item.get(merge_key).unwrap_or(NULL),
    }
}

/// Returns the position of the first item whose merge key has this value.
pub(super) fn find(
    items: &[Value],
    merge_key: &str,
    name: &Value,
) -> Result<Option<usize>, PatchError> {
    for (at, item) in items.iter().enumerate() {
        let Value::Object(members) = item else {
            return Err(PatchError::Other(format!(
                "value for key {at} is not a map"
            )));
        };
        if members
            .get(merge_key)
            .is_some_and(|value| same(value, name))
        {
            return Ok(Some(at));
        }
    }
    Ok(None)
}

/// Splits items into those that `by` names and the others.
pub(super) fn partition(
    items: Vec<Value>,
    by: &[Value],
    merge_key: &str,
) -> Result<(Vec<Value>, Vec<Value>), PatchError> {
    let kind = if merge_key.is_empty() {
        Kind::Scalars
    } else {
        Kind::Objects
    };
    let names: HashMap<_, _> = by
        .iter()
        .filter_map(|item| Some((scalar(identity(item, merge_key, kind))?, ())))
        .collect();
    let (mut wanted, mut rest) = (Vec::new(), Vec::new());
    for item in items {
        if kind == Kind::Objects {
            let Value::Object(members) = &item else {
                return Err(PatchError::argument(ANY_MAP, &item));
            };
            if !members.contains_key(merge_key) {
                return Err(PatchError::no_merge_key(members, merge_key));
            }
            if let Some(at) = by
                .iter()
                .position(|other| !matches!(other, Value::Object(_)))
            {
                return Err(PatchError::Other(format!(
                    "value for key {at} is not a map"
                )));
            }
        }
        let named =
            scalar(identity(&item, merge_key, kind)).is_some_and(|key| names.contains_key(&key));
        if named {
            wanted.push(item)
        } else {
            rest.push(item)
        }
    }
    Ok((wanted, rest))
}

/// The positions of identities in a list.
struct Ranks<'v>(HashMap<Scalar<'v>, usize>);

impl<'v> Ranks<'v> {
    fn new(order: &'v [Value], merge_key: &str, kind: Kind) -> Self {
        let mut ranks = HashMap::with_capacity(order.len());
        for (at, item) in order.iter().enumerate() {
            if let Some(key) = scalar(identity(item, merge_key, kind)) {
                ranks.entry(key).or_insert(at);
            }
        }
        Self(ranks)
    }

    fn of(&self, item: &Value, merge_key: &str, kind: Kind) -> Option<usize> {
        self.0
            .get(&scalar(identity(item, merge_key, kind))?)
            .copied()
    }
}

/// Sorts `wanted` by `order` and `rest` by `live`, then merges the two by `live`.
pub(super) fn arrange(
    wanted: Vec<Value>,
    rest: Vec<Value>,
    order: &[Value],
    live: &[Value],
    merge_key: &str,
    kind: Kind,
) -> Result<Vec<Value>, PatchError> {
    let wanted = sort(wanted, order, merge_key, kind)?;
    let rest = sort(rest, live, merge_key, kind)?;
    let ranks = Ranks::new(live, merge_key, kind);
    let mut out = Vec::with_capacity(wanted.len() + rest.len());
    let (mut wanted, mut rest) = (wanted.into_iter().peekable(), rest.into_iter().peekable());
    while let (Some(left), Some(right)) = (rest.peek(), wanted.peek()) {
        let places = (
            ranks.of(left, merge_key, kind),
            ranks.of(right, merge_key, kind),
        );
        let from_rest = matches!(places, (Some(left), Some(right)) if left < right);
        out.extend(if from_rest {
            rest.next()
        } else {
            wanted.next()
        });
    }
    out.extend(wanted);
    out.extend(rest);
    Ok(out)
}

fn sort(
    items: Vec<Value>,
    order: &[Value],
    merge_key: &str,
    kind: Kind,
) -> Result<Vec<Value>, PatchError> {
    let (mut kept, mut deletions) = (items, Vec::new());
    if kind == Kind::Objects {
        for item in kept.iter().chain(order) {
            let Value::Object(members) = item else {
                return Err(PatchError::argument(ANY_MAP, item));
            };
            if !members.contains_key(merge_key) {
                return Err(PatchError::no_merge_key(members, merge_key));
            }
        }
        (deletions, kept) = kept
            .into_iter()
            .partition(|item| item.str_at(&[DIRECTIVE]) == "delete");
    }
    let ranks = Ranks::new(order, merge_key, kind);
    let mut ranked: Vec<(Option<usize>, Value)> = kept
        .into_iter()
        .map(|item| (ranks.of(&item, merge_key, kind), item))
        .collect();
    if ranked.iter().all(|(rank, _)| rank.is_some()) {
        ranked.sort_by_key(|(rank, _)| *rank);
    } else {
        insertion_sort(&mut ranked);
    }
    let mut out: Vec<Value> = ranked.into_iter().map(|(_, item)| item).collect();
    out.append(&mut deletions);
    Ok(out)
}

/// Sorts like upstream, whose comparison is not an order if an item has no rank; so only the same
/// steps give the same result. An item without rank on either side counts as smaller and moves
/// forward.
fn insertion_sort(items: &mut [(Option<usize>, Value)]) {
    for end in 1..items.len() {
        let mut at = end;
        while at > 0 {
            let smaller = match (items[at].0, items[at - 1].0) {
                (Some(this), Some(before)) => this < before,
                _ => true,
            };
            if !smaller {
                break;
            }
            items.swap(at, at - 1);
            at -= 1;
        }
    }
}

/// Applies the directives among the items of a patch and removes them.
pub(super) fn apply_directives(
    mut old: Vec<Value>,
    new: Vec<Value>,
    merge_key: &str,
) -> Result<(Vec<Value>, Vec<Value>), PatchError> {
    let mut plain = Vec::with_capacity(new.len());
    let mut replace = false;
    for item in new {
        let Value::Object(members) = &item else {
            continue;
        };
        let Some(directive) = members.get(DIRECTIVE) else {
            plain.push(item);
            continue;
        };
        match directive.as_str() {
            Some("delete") => {
                let name = members
                    .get(merge_key)
                    .ok_or_else(|| PatchError::no_merge_key(members, merge_key))?;
                while let Some(at) = find(&old, merge_key, name)? {
                    old.remove(at);
                }
            }
            Some("replace") => replace = true,
            Some("merge") => {
                return Err(PatchError::Other(
                    "merging lists cannot yet be specified in the patch".to_owned(),
                ));
            }
            _ => return Err(PatchError::patch_type(directive, members)),
        }
    }
    Ok(if replace {
        (plain, Vec::new())
    } else {
        (old, plain)
    })
}

/// Refuses a patch whose items are in another order than its `$setElementOrder`, or are missing in
/// it.
pub(super) fn check_order(
    patch: &[Value],
    order: &[Value],
    merge_key: &str,
) -> Result<(), PatchError> {
    if order.is_empty() || patch.is_empty() {
        return Ok(());
    }
    let mut items: Vec<&Value> = Vec::with_capacity(patch.len());
    for item in patch {
        if !merge_key.is_empty() {
            let Value::Object(members) = item else {
                return Err(PatchError::argument(ANY_MAP, item));
            };
            if members.get(DIRECTIVE).and_then(Value::as_str) == Some("delete") {
                continue;
            }
        }
        items.push(item);
    }
    let (mut at, mut order_at) = (0, 0);
    while at < items.len() && order_at < order.len() {
        if items[at]
            .as_object()
            .is_some_and(|members| members.contains_key(DIRECTIVE))
        {
            at += 1;
            continue;
        }
        if one(items[at], &order[order_at], merge_key)? {
            at += 1;
        }
        order_at += 1;
    }
    if at < items.len() && order_at >= order.len() {
        let mut text = "The order in patch list:\n".to_owned();
        go::print_list(patch, &mut text);
        text.push_str(&format!("\n doesn't match {SET_ORDER} list:\n"));
        go::print_list(order, &mut text);
        text.push('\n');
        return Err(PatchError::Other(text));
    }
    Ok(())
}

fn one(left: &Value, right: &Value, merge_key: &str) -> Result<bool, PatchError> {
    if merge_key.is_empty() {
        return Ok(same(left, right));
    }
    let name = |item: &Value| match item {
        Value::Object(members) => members
            .get(merge_key)
            .cloned()
            .ok_or_else(|| PatchError::no_merge_key(members, merge_key)),
        other => Err(PatchError::argument(ANY_MAP, other)),
    };
    match (left, right) {
        (Value::Object(_), Value::Object(_)) => Ok(same(&name(left)?, &name(right)?)),
        (Value::Object(_), other) | (other, _) => Err(PatchError::argument(ANY_MAP, other)),
    }
}
