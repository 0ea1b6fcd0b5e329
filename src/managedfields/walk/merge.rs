//! Merges an applied object into a live one.

use polyplane_apimachinery::shape::Shape;
use polyplane_apimachinery::value::{Map, Value};

use super::{Sorted, list_of, map_of};
use crate::element::Borrowed;
use crate::fault::Faults;
use crate::position::{Atom, Items, Members, Position};

/// Returns the live object with everything that is applied. Nothing is removed. Items of a merged
/// list stand in the order of the applied list; those that are only in the live one keep their
/// places among them.
///
/// # Errors
/// Returns the faults of parts that fit the schema in neither object, or that have no identity.
pub fn merge<'s, S: Shape<'s>>(
    position: Position<S>,
    live: &Value,
    applied: &Value,
) -> Result<Value, Faults> {
    let mut faults = Faults::default();
    let merged = node(position, Some(live), Some(applied), &mut faults);
    faults.check()?;
    Ok(merged.unwrap_or_default())
}

/// Returns the merged value, or none if nothing is left.
fn node<'s, S: Shape<'s>>(
    at: Position<S>,
    live: Option<&Value>,
    applied: Option<&Value>,
    faults: &mut Faults,
) -> Option<Value> {
    let atom = at.atom(applied.or(live));
    if let (Some(_), Some(_)) = (live, applied) {
        let before = at.atom(live);
        if !before.is_like(&atom) {
            // The value changes its form: the applied one replaces it, faults are those of both.
            visit(before, live, applied, faults);
        }
    }
    visit(atom, live, applied, faults)
}

fn visit<'s, S: Shape<'s>>(
    atom: Atom<'s, S>,
    live: Option<&Value>,
    applied: Option<&Value>,
    faults: &mut Faults,
) -> Option<Value> {
    let leaf = || applied.or(live).cloned();
    match atom {
        Atom::Scalar(allowed) => {
            let mut both = Faults::default();
            let mut fits = |value: Option<&Value>, side| {
                value.is_none_or(|value| allowed.check(value, side, &mut both))
            };
            let (left, right) = (fits(live, "lhs: "), fits(applied, "rhs: "));
            if !left && !right {
                faults.append(both);
                return None;
            }
            leaf()
        }
        Atom::Object(members) => {
            let (live, applied) = (map_of(live), map_of(applied));
            if members.is_atomic || (live.is_empty() && applied.is_empty()) {
                return leaf();
            }
            object(&members, live, applied, faults)
        }
        Atom::List(items) => {
            let (live, applied) = (list_of(live), list_of(applied));
            if items.are_atomic() || (live.is_empty() && applied.is_empty()) {
                return leaf();
            }
            list(&items, live, applied, faults)
        }
        Atom::Invalid => {
            faults.push("schema error: invalid atom: inlined");
            None
        }
    }
}

fn object<'s, S: Shape<'s>>(
    members: &Members<S>,
    live: &Map,
    applied: &Map,
    faults: &mut Faults,
) -> Option<Value> {
    let mut out = Vec::with_capacity(live.len().max(applied.len()));
    let (mut live, mut applied) = (live.iter().peekable(), applied.iter().peekable());
    loop {
        let name = match (live.peek(), applied.peek()) {
            (None, None) => break,
            (Some((a, _)), Some((b, _))) => (*a).min(*b),
            (Some((name, _)), None) | (None, Some((name, _))) => *name,
        };
        let old = live
            .next_if(|(own, _)| *own == name)
            .map(|(_, value)| value);
        let new = applied
            .next_if(|(own, _)| *own == name)
            .map(|(_, value)| value);
        let mark = faults.len();
        // What only the live object has stays as it is.
        let merged = match (old, new) {
            (Some(old), None) => Some(old.clone()),
            _ => node(members.member(name).position, old, new, faults),
        };
        faults.prefix(mark, &Borrowed::Field(name));
        out.extend(merged.map(|value| (name.into(), value)));
    }
    (!out.is_empty()).then(|| Value::Object(Map::from_sorted(out)))
}

/// The item of the live list that an applied item is merged into.
#[derive(Clone, Copy)]
enum Partner {
    None,
    One(usize),
    /// There are several, so the applied item replaces them.
    Repeated,
}

fn list<'s, S: Shape<'s>>(
    items: &Items<'s, S>,
    live: &[Value],
    applied: &[Value],
    faults: &mut Faults,
) -> Option<Value> {
    let mark = faults.len();
    let new = elements(items, applied, faults);
    let new_sorted = Sorted::new(new.clone());
    for group in new_sorted.groups().filter(|group| group.len() > 1) {
        let mut text = String::from("duplicate entries for key ");
        group[0].0.show(&mut text);
        group[1..].iter().for_each(|_| faults.push(text.clone()));
    }
    let old = elements(items, live, faults);
    // A full list of faults does not grow, but elements with faults are left out.
    if faults.len() > mark || new.len() < applied.len() || old.len() < live.len() {
        return None;
    }
    let old_sorted = Sorted::new(old.clone());
    let partners = new
        .iter()
        .map(|(element, _)| match old_sorted.group(element) {
            [] => Partner::None,
            [(_, at)] => Partner::One(*at),
            [_, _, ..] => Partner::Repeated,
        });
    let order = Order {
        applied_of: old
            .iter()
            .map(|(element, _)| new_sorted.group(element).first().map(|(_, at)| *at))
            .collect(),
        partners: partners.collect(),
    };
    let out: Vec<Value> = order
        .places()
        .into_iter()
        .filter_map(|place| match place {
            Place::Live(at) => Some(live[at].clone()),
            Place::Applied(at) => {
                let old = match order.partners[at] {
                    Partner::None => None,
                    Partner::One(at) => Some(&live[at]),
                    Partner::Repeated => Some(&Value::Null),
                };
                // Upstream drops the faults of items: the applied object was checked before.
                let mut ignored = Faults::default();
                node(items.item, old, Some(&applied[at]), &mut ignored)
            }
        })
        .collect();
    (!out.is_empty()).then_some(Value::Array(out))
}

fn elements<'v, 's: 'v, S: Shape<'s>>(
    items: &Items<'s, S>,
    list: &'v [Value],
    faults: &mut Faults,
) -> Vec<(Borrowed<'v>, usize)> {
    let mut out = Vec::with_capacity(list.len());
    for (at, item) in list.iter().enumerate() {
        match items.element(item) {
            Ok(element) => out.push((element, at)),
            Err(error) => faults.push(format!("element {at}: {error}")),
        }
    }
    out
}

/// Where an item of a merged list comes from.
#[derive(Clone, Copy)]
enum Place {
    Live(usize),
    Applied(usize),
}

/// The relation of the items of two lists.
struct Order {
    /// For each live item the applied one with its element.
    applied_of: Vec<Option<usize>>,
    /// For each applied item the live one with its element.
    partners: Vec<Partner>,
}

impl Order {
    /// Returns the items of the merged list in order. Both lists are walked side by side: a live
    /// item that is not applied comes before the applied item that the walk has reached; a live item
    /// that is applied later is left to that later place.
    fn places(&self) -> Vec<Place> {
        let (live_len, applied_len) = (self.applied_of.len(), self.partners.len());
        let mut out = Vec::with_capacity(live_len + applied_len);
        let mut shared = (0..applied_len)
            .filter(|at| !matches!(self.partners[*at], Partner::None))
            .peekable();
        let mut is_merged = vec![false; applied_len];
        let (mut l, mut r) = (0, 0);
        while l < live_len || r < applied_len {
            if l < live_len && r < applied_len {
                let applied = self.applied_of[l];
                if applied == Some(r) {
                    is_merged[r] = true;
                    out.push(Place::Applied(r));
                    (l, r) = (l + 1, r + 1);
                    shared.next();
                    continue;
                }
                if applied.is_some() && shared.peek().is_some_and(|next| Some(*next) != applied) {
                    l += 1;
                    continue;
                }
            }
            if l < live_len {
                match self.applied_of[l] {
                    None => {
                        out.push(Place::Live(l));
                        l += 1;
                        continue;
                    }
                    Some(applied) => l += usize::from(is_merged[applied]),
                }
            }
            if r < applied_len {
                is_merged[r] = true;
                out.push(Place::Applied(r));
                if shared.peek() == Some(&r) {
                    shared.next();
                }
                r += 1;
            }
        }
        out
    }
}
