//! Lists of strategic merge patches: which items are merged, and the order of the result.

use std::collections::{BTreeMap, HashMap, HashSet};

use super::{ANY_MAP, DIRECTIVE, PatchError, SET_ORDER};
use crate::schema::go;
use crate::value::Value;

/// Items up to which a list is looked through one by one, which is faster for few.
const FEW: usize = 16;

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

/// Returns the key under which equal scalars are found, as [`same`] compares them: zero has one
/// sign.
fn key(value: &Value) -> Option<Scalar<'_>> {
    match value {
        Value::Float(number) => Some(Scalar::Float((number + 0.0).to_bits())),
        other => scalar(other),
    }
}

/// Returns the scalars of a list that are not in another one.
pub(super) fn without(items: Vec<Value>, unwanted: &[Value]) -> Vec<Value> {
    let unwanted: HashSet<_> = unwanted.iter().filter_map(key).collect();
    let stays = |item: &Value| key(item).is_none_or(|key| !unwanted.contains(&key));
    items.into_iter().filter(stays).collect()
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
fn find(items: &[Value], merge_key: &str, name: &Value) -> Result<Option<usize>, PatchError> {
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

/// The places of a list's items by their merge keys, while a patch is merged into the list.
pub(super) struct Places<'v> {
    merge_key: &'v str,
    /// The first place of each merge key; `None` if all items together are few.
    first: Option<HashMap<Scalar<'v>, usize>>,
}

impl<'v> Places<'v> {
    /// Creates the places of the live items, to which at most `added` will be added.
    pub(super) fn new(live: &'v [Value], added: usize, merge_key: &'v str) -> Self {
        let is_long = live.len() + added > FEW;
        let first = is_long.then(|| {
            let mut first = HashMap::with_capacity(live.len());
            for (at, item) in live.iter().enumerate() {
                if let Some(key) = item.get(merge_key).and_then(key) {
                    first.entry(key).or_insert(at);
                }
            }
            first
        });
        Self { merge_key, first }
    }

    /// Returns what [`find`] returns for the list as it is now.
    pub(super) fn find(&self, items: &[Value], name: &Value) -> Result<Option<usize>, PatchError> {
        match &self.first {
            None => find(items, self.merge_key, name),
            Some(first) => Ok(key(name).and_then(|key| first.get(&key).copied())),
        }
    }

    /// Notes that an item with a name was added at the end.
    pub(super) fn added(&mut self, at: usize, name: &'v Value) {
        if let (Some(first), Some(key)) = (&mut self.first, key(name)) {
            first.entry(key).or_insert(at);
        }
    }

    /// Notes that something was merged into the item with a name. A name that is null is removed by
    /// that, so that another item may be the first one with it.
    pub(super) fn merged(&mut self, items: &[Value], at: usize, name: &'v Value) {
        let merge_key = self.merge_key;
        let has_name = |item: &Value| {
            let own = item.get(merge_key);
            own.is_some_and(|own| same(own, name))
        };
        let (Some(first), Some(key)) = (&mut self.first, key(name)) else {
            return;
        };
        if has_name(&items[at]) {
            return;
        }
        if let Some(behind) = items[at..].iter().position(has_name) {
            first.insert(key, at + behind);
        } else {
            first.remove(&key);
        }
    }
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
    let odd = by.iter().position(|other| other.as_object().is_none());
    let (mut wanted, mut rest) = (Vec::new(), Vec::new());
    for item in items {
        if kind == Kind::Objects {
            let Value::Object(members) = &item else {
                return Err(PatchError::argument(ANY_MAP, &item));
            };
            if !members.contains_key(merge_key) {
                return Err(PatchError::no_merge_key(members, merge_key));
            }
            if let Some(at) = odd {
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
    let mut out: Vec<Value> = if ranked.iter().all(|(rank, _)| rank.is_some()) {
        ranked.sort_by_key(|(rank, _)| *rank);
        ranked.into_iter().map(|(_, item)| item).collect()
    } else {
        insertion_sort(ranked)
    };
    out.append(&mut deletions);
    Ok(out)
}

/// Sorts like upstream, whose comparison is not an order if an item has no rank; so only the same
/// steps give the same result. They insert each item in turn among those before it: from their end
/// it moves forward past all that it is smaller than. An item without rank on either side counts as
/// smaller. So one without rank comes to the front, and another one behind the last one whose rank
/// is not larger, or to the front.
fn insertion_sort<T>(items: Vec<(Option<usize>, T)>) -> Vec<T> {
    // For each item that was inserted, the one behind it.
    let mut behind: Vec<Option<usize>> = Vec::with_capacity(items.len());
    let mut front = None;
    // The last item of each rank.
    let mut last: BTreeMap<usize, usize> = BTreeMap::new();
    for (at, (rank, _)) in items.iter().enumerate() {
        let smaller = rank.and_then(|rank| last.range(..=rank).next_back());
        let place = match smaller {
            Some((_, before)) => &mut behind[*before],
            None => &mut front,
        };
        let next = place.replace(at);
        behind.push(next);
        if let Some(rank) = rank {
            last.insert(*rank, at);
        }
    }
    let mut items: Vec<Option<T>> = items.into_iter().map(|(_, item)| Some(item)).collect();
    let order = std::iter::successors(front, |at| behind[*at]);
    order.filter_map(|at| items[at].take()).collect()
}

/// Applies the directives among the items of a patch and removes them.
pub(super) fn apply_directives(
    mut old: Vec<Value>,
    new: Vec<Value>,
    merge_key: &str,
) -> Result<(Vec<Value>, Vec<Value>), PatchError> {
    let mut plain = Vec::with_capacity(new.len());
    let mut deleted = Vec::new();
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
                if !members.contains_key(merge_key) {
                    return Err(PatchError::no_merge_key(members, merge_key));
                }
                deleted.push(item);
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
    if !deleted.is_empty() {
        let names: HashSet<_> = deleted
            .iter()
            .filter_map(|item| key(item.get(merge_key)?))
            .collect();
        old.retain(|item| {
            let name = item.get(merge_key).and_then(key);
            name.is_none_or(|name| !names.contains(&name))
        });
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::json;

    /// The steps that [`insertion_sort`] stands for.
    fn step_by_step(mut items: Vec<(Option<usize>, usize)>) -> Vec<usize> {
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
        items.into_iter().map(|(_, item)| item).collect()
    }

    #[test]
    fn the_order_of_items_without_rank_is_that_of_the_steps() {
        const RANKS: [Option<usize>; 4] = [None, Some(0), Some(1), Some(2)];
        for number in 0..RANKS.len().pow(6) {
            let digit = |place: u32| number / RANKS.len().pow(place) % RANKS.len();
            let items = (0..6u32).map(|place| RANKS[digit(place)]);
            let items: Vec<_> = items.zip(0..).collect();
            assert_eq!(insertion_sort(items.clone()), step_by_step(items));
        }
    }

    #[test]
    fn places_are_those_that_a_scan_finds() {
        let names = [
            json!("a"),
            json!(null),
            json!(0.0),
            json!(-0.0),
            json!(0i64),
            json!("b"),
            json!([]),
        ];
        let item = |name: &Value| {
            let mut item = Value::object();
            item.set(&["name"], name.clone());
            item
        };
        let live: Vec<Value> = names
            .iter()
            .take(4)
            .cycle()
            .take(FEW + 1)
            .map(item)
            .collect();
        let mut merged = live.clone();
        let mut places = Places::new(&live, 0, "name");
        for name in names.iter().cycle().take(60) {
            let found = places.find(&merged, name).expect("all items are objects");
            let wanted = find(&merged, "name", name).expect("all items are objects");
            assert_eq!(found, wanted);
            match found {
                Some(at) => {
                    if name.is_null() {
                        drop(merged[at].remove(&["name"]));
                    }
                    places.merged(&merged, at, name);
                }
                None => {
                    places.added(merged.len(), name);
                    merged.push(item(name));
                }
            }
        }
    }

    #[test]
    fn items_are_deleted_by_equal_names() {
        let old = vec![json!({"n": "a"}), json!({"n": 0.0}), json!({"m": "a"})];
        let new = vec![
            json!({"n": (-0.0), "$patch": "delete"}),
            json!({"n": "b"}),
            json!({"n": "a", "$patch": "delete"}),
        ];
        let (left, plain) = apply_directives(old, new, "n").expect("the directives are known");
        assert_eq!(left, [json!({"m": "a"})]);
        assert_eq!(plain, [json!({"n": "b"})]);
        let left = without(vec![json!("a"), json!("b"), json!("a")], &[json!("a")]);
        assert_eq!(left, [json!("b")]);
    }
}
