//! Writes that change values and no owners, which nearly all writes are: a manager writes fields that
//! it owns already and that nobody else owns.
//!
//! Such a write is found on the trees of `fieldsV1` as they are stored. No set is read and none is
//! written; only the time of the writer's entry changes. The first write of an object has one entry,
//! which is made without the others' machinery. All other writes go through
//! [`super::Entries::update`], which does the same to these.

use std::cell::OnceCell;

use polyplane_apimachinery::shape::Shape;
use polyplane_apimachinery::value::{Map, Value};

use super::cap::UPDATES_MAX;
use super::identity::Operation;
use super::update::{UNKNOWN, UNOWNED};
use super::{FIELDS_TYPE, SortKey, Writer, repeats};
use crate::conversion::Versions;
use crate::element::PathElement;
use crate::filter::Filter;
use crate::position::{Atom, Position};
use crate::set::{FieldSet, Node};
use crate::walk::compare::compare_filtered;
use crate::walk::first::{MEMBER, first_fields};
use crate::walk::validate::{Duplicates, validate};

/// Elements of one level of a stored set up to which they are looked through one by one, which is
/// faster for few.
const FEW: usize = 16;

/// Brings `list`, the value of `metadata.managedFields` of the live object, up to date with a write
/// that stores `new` instead of `live`, both in `version`, if the write changes no owners. Returns
/// whether it does not; otherwise `list` is as it was.
pub fn update_values<'s, V: Versions<'s>>(
    versions: &V,
    version: &str,
    writer: Writer<'_>,
    (live, new): (&Value, &Value),
    list: &mut Value,
) -> bool {
    if repeats(list) {
        return false;
    }
    let Value::Array(entries) = list else {
        return false;
    };
    let Some(position) = versions.position(version) else {
        return false;
    };
    let Some(own) = find_own(entries, version, writer) else {
        return false;
    };
    let number = versions.number(version);
    let stays =
        |entry: &Value| fields_of(entry).is_some_and(|fields| stays(position, number, fields));
    let fits = |object| fits((versions, version), position, object);
    if !fits(new) || !fits(live) || !entries.iter().all(stays) {
        return false;
    }
    let filter = versions.filter(version);
    let Ok(changes) = compare_filtered(position, live, new, filter) else {
        return false;
    };
    let set = changes.modified.union(&changes.added);
    let (unowned, owned) = match set.intersects(&UNOWNED) {
        false => (FieldSet::EMPTY, set.clone()),
        true => (set.intersection(&UNOWNED), set.difference(&UNOWNED)),
    };
    for (at, entry) in entries.iter().enumerate() {
        let Some(fields) = fields_of(entry) else {
            return false;
        };
        let keeps = !intersects(&changes.removed, fields)
            && match at == own {
                true => contains(fields, &owned) && !intersects(&unowned, fields),
                false => !intersects(&set, fields),
            };
        if !keeps {
            return false;
        }
    }
    if !owned.is_empty() {
        entries[own].set(&["time"], writer.now);
        sort(entries);
    }
    true
}

/// Returns the value of `metadata.managedFields` of an object that is created with `new` as its
/// content, in `version`, of which `empty` is the object without content. The outer `None` means that
/// [`Entries::update`](super::Entries::update) has to decide, the inner one that the writer owns
/// nothing.
pub fn first_entry<'s, V: Versions<'s>>(
    versions: &V,
    version: &str,
    writer: Writer<'_>,
    (empty, new): (&Value, &Value),
) -> Option<Option<Value>> {
    let position = versions.position(version)?;
    let fits = |object| fits((versions, version), position, object);
    if !fits(new) || !fits(empty) {
        return None;
    }
    let mut fields = first_fields(position, empty, new)?;
    match versions.filter(version) {
        None => {}
        Some(Filter::Exclude(excluded)) => remove(&mut fields, excluded, Reach::Below),
        Some(Filter::Include(_)) => return None,
    }
    remove(&mut fields, &UNOWNED, Reach::Path);
    if fields.is_empty() {
        return Some(None);
    }
    let manager = match writer.name {
        "" => UNKNOWN,
        name => name,
    };
    let key = SortKey {
        operation: Operation::Update.name(),
        seconds: 0,
        manager: manager.into(),
        version: version.into(),
        subresource: writer.subresource.into(),
    };
    let entry = key.into_entry(Value::Object(fields), Some(writer.now.into()));
    Some(Some(Value::Array(vec![entry])))
}

/// Returns whether an object fits its schema as far as ownership needs it.
fn fits<'s, V: Versions<'s>>(
    (versions, version): (&V, &str),
    position: Position<V::Shape>,
    object: &Value,
) -> bool {
    !versions.may_not_fit(version, object)
        || validate(position, object, Duplicates::Allowed).is_ok()
}

/// Returns the place of the writer's entry, if all entries are in `version` and as field management
/// writes them.
fn find_own(entries: &[Value], version: &str, writer: Writer<'_>) -> Option<usize> {
    let mut own = None;
    let mut updates = 0;
    let name = match writer.name {
        "" => UNKNOWN,
        name => name,
    };
    for (at, entry) in entries.iter().enumerate() {
        let operation = entry.str_at(&["operation"]);
        let is_update = operation == Operation::Update.name();
        let is_sound = (is_update || operation == Operation::Apply.name())
            && entry.str_at(&["apiVersion"]) == version
            && entry.str_at(&["fieldsType"]) == FIELDS_TYPE
            && fields_of(entry).is_some_and(|fields| !fields.is_empty());
        if !is_sound {
            return None;
        }
        updates += usize::from(is_update);
        if is_update
            && entry.str_at(&["manager"]) == name
            && entry.str_at(&["subresource"]) == writer.subresource
        {
            own = Some(at);
        }
    }
    own.filter(|_| updates <= UPDATES_MAX)
}

fn fields_of(entry: &Value) -> Option<&Map> {
    entry.get("fieldsV1").and_then(Value::as_object)
}

/// Brings entries into the order of [`super::Entries::encode`].
fn sort(entries: &mut [Value]) {
    let key = |entry: &Value| {
        let operation = match entry.str_at(&["operation"]) == Operation::Apply.name() {
            true => Operation::Apply,
            false => Operation::Update,
        };
        SortKey {
            operation: operation.name(),
            seconds: super::seconds(entry.get("time").and_then(Value::as_str)),
            manager: entry.str_at(&["manager"]).into(),
            version: entry.str_at(&["apiVersion"]).into(),
            subresource: entry.str_at(&["subresource"]).into(),
        }
    };
    if entries.len() > 1 {
        entries.sort_by_cached_key(key);
    }
}

/// Returns true if a set has the form that a set read from it and written again has, and if the
/// schema of now does not change it: see [`crate::reconcile`]. `number` is that of the schema.
fn stays<'s, S: Shape<'s>>(at: Position<S>, number: Option<u64>, fields: &Map) -> bool {
    if number.is_some_and(|number| fields.is_checked(number)) {
        return true;
    }
    let stays = stays_below(&at.atom(None), fields);
    if let (true, Some(number)) = (stays, number) {
        fields.note_checked(number);
    }
    stays
}

fn stays_below<'s, S: Shape<'s>>(atom: &Atom<'s, S>, fields: &Map) -> bool {
    fields.iter().all(|(name, below)| {
        let Value::Object(below) = below else {
            return false;
        };
        let element = match name.as_bytes() {
            [b'f', b':', ..] => Some(&name[2..]),
            [b'k' | b'v' | b'i', b':', ..] => None,
            // The mark means nothing if nothing else is there.
            _ => return name == MEMBER && below.is_empty() && fields.len() > 1,
        };
        if below.is_empty() {
            return true;
        }
        let position = match (atom, element) {
            (Atom::Object(members), Some(name)) => members.member(name).position,
            (Atom::Object(members), None) => members.undeclared(),
            (Atom::List(items), _) => items.item,
            // Nothing changes there, but the form is still checked.
            (Atom::Scalar(_) | Atom::Invalid, _) => Position::UNTYPED,
        };
        let inner = position.atom(None);
        let becomes_whole = match &inner {
            Atom::Object(members) => members.is_atomic && !members.are_untyped(),
            Atom::List(items) => items.are_atomic(),
            Atom::Scalar(_) | Atom::Invalid => false,
        };
        !becomes_whole && stays_below(&inner, below)
    })
}

/// The elements of one level of a stored set.
struct Level<'f> {
    fields: &'f Map,
    /// All but fields, in order; made when one is not found by its name and there are many.
    in_order: OnceCell<Vec<(PathElement, &'f Value)>>,
}

impl<'f> Level<'f> {
    fn new(fields: &'f Map) -> Self {
        Self {
            fields,
            in_order: OnceCell::new(),
        }
    }

    /// Returns what follows an element, if the set has it.
    fn find(&self, element: &PathElement) -> Option<&'f Map> {
        let known = self.fields.get(&element.name());
        if known.is_some() || matches!(element, PathElement::Field(_)) {
            return known.and_then(Value::as_object);
        }
        // A client may have spelled it in another way.
        let below = if self.fields.len() > FEW {
            let read = self.in_order.get_or_init(|| {
                let mut read: Vec<_> = self.read().collect();
                read.sort_by(|a, b| a.0.cmp(&b.0));
                read
            });
            let at = read.partition_point(|(own, _)| own < element);
            let (_, below) = read.get(at).filter(|(own, _)| own == element)?;
            *below
        } else {
            let (_, below) = self.read().find(|(own, _)| own == element)?;
            below
        };
        below.as_object()
    }

    /// Returns the elements that are no fields, each with what follows it.
    fn read(&self) -> impl Iterator<Item = (PathElement, &'f Value)> + use<'f> {
        let named = self.fields.iter();
        let others = named.filter(|(name, _)| !name.starts_with("f:") && *name != MEMBER);
        others.filter_map(|(name, below)| Some((PathElement::read(name).ok()??, below)))
    }
}

/// What is removed with a path.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Reach {
    /// Nothing else: see [`FieldSet::difference`].
    Path,
    /// Everything below it: see [`FieldSet::recursive_difference`].
    Below,
}

/// Removes the paths of a set from a stored one.
fn remove(fields: &mut Map, set: &FieldSet, reach: Reach) {
    for node in set.nodes() {
        let name = node.element.name();
        let Some(Value::Object(below)) = fields.get_mut(&name) else {
            continue;
        };
        if node.member && reach == Reach::Below {
            fields.remove(&name);
            continue;
        }
        let stays = is_member(below) && !node.member;
        below.remove(MEMBER);
        remove(below, &node.children, reach);
        match (below.is_empty(), stays) {
            (true, false) => drop(fields.remove(&name)),
            (false, true) => drop(below.insert(MEMBER, Value::object())),
            (true, true) | (false, false) => {}
        }
    }
}

fn is_member(below: &Map) -> bool {
    below.is_empty() || below.contains_key(MEMBER)
}

/// Returns true if a stored set has all paths of a set.
fn contains(fields: &Map, set: &FieldSet) -> bool {
    let level = Level::new(fields);
    set.nodes().iter().all(|node| {
        level.find(&node.element).is_some_and(|below| {
            (!node.member || is_member(below)) && contains(below, &node.children)
        })
    })
}

/// Returns true if a set and a stored one have a path in common.
fn intersects(set: &FieldSet, fields: &Map) -> bool {
    let level = Level::new(fields);
    let is_common = |node: &Node| {
        level.find(&node.element).is_some_and(|below| {
            node.member && is_member(below) || intersects(&node.children, below)
        })
    };
    set.nodes().iter().any(is_common)
}

#[cfg(test)]
mod tests {
    use super::*;
    use polyplane_apimachinery::json::{Limits, parse};

    #[test]
    fn elements_are_found_however_they_are_spelled_among_few_and_among_many() {
        for count in [3i64, 40] {
            let spelled = (0..count).map(|at| format!("\"v:{at}.0\":{{\"f:n{at}\":{{}}}}"));
            let text = format!("{{{}}}", spelled.collect::<Vec<_>>().join(","));
            let tree = parse(text.as_bytes(), &Limits::default()).expect("the text is JSON");
            let fields = tree.value.as_object().expect("the text is an object");
            let level = Level::new(fields);
            assert!(level.find(&PathElement::value(count)).is_none());
            for at in 0..count {
                let below = level.find(&PathElement::value(at)).expect("it is there");
                assert!(below.contains_key(&format!("f:n{at}")));
            }
        }
    }
}
