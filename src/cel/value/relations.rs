//! Lists whose elements have no order: sets, and objects that differ in some of their fields.

use std::collections::BTreeMap;
use std::sync::Arc;

use crate::budget::{TooMuchWork, WorkBudget};

use super::{Fault, Key, List, Relation, Value};

/// What an element is found by: itself, or its fields. What cannot be a key is `None`.
type Place<'a> = Vec<Option<Key<'a>>>;

fn place<'a>(relation: &Relation, element: &Value<'a>) -> Place<'a> {
    match (relation, element) {
        (Relation::Keyed(names), Value::Map(fields)) => {
            let keys = names.iter().map(|name| Key::of(&fields.field(name)?));
            keys.collect()
        }
        (Relation::Keyed(names), _) => vec![None; names.len()],
        (Relation::Ordered | Relation::Set, element) => vec![Key::of(element)],
    }
}

fn places<'a>(list: &List<'a>, relation: &Relation) -> BTreeMap<Place<'a>, Value<'a>> {
    let places = list
        .iter()
        .map(|element| (place(relation, &element), element));
    places.collect()
}

/// Returns whether two lists are equal, in the way of the first one, or why their elements cannot be compared. What
/// takes too much work is not equal.
pub(super) fn equal(one: &List<'_>, two: &List<'_>, budget: &WorkBudget) -> Result<bool, Fault> {
    if one.len() != two.len() {
        return Ok(false);
    }
    match one.relation() {
        Relation::Ordered => equal_in_order(one, two, budget),
        relation => Ok(equal_without_order(one, two, &relation, budget)),
    }
}

/// As upstream's, a list that the expression has made counts elements that cannot be compared as equal, one of the
/// caller's does not, and one list behind another does not either unless other elements differ.
fn equal_in_order(one: &List<'_>, two: &List<'_>, budget: &WorkBudget) -> Result<bool, Fault> {
    let mut first_fault = None;
    for (left, right) in one.iter().zip(two.iter()) {
        match (left.equality(&right, budget), one) {
            (Ok(true), _) => {}
            (Err(fault), List::Owned(_)) if !fault.is_final() => {}
            (Err(fault), List::Related(_)) if !fault.is_final() => {
                first_fault = first_fault.or(Some(fault));
            }
            (answer, _) => return answer,
        }
    }
    first_fault.map_or(Ok(true), Err)
}

fn equal_without_order(
    one: &List<'_>,
    two: &List<'_>,
    relation: &Relation,
    budget: &WorkBudget,
) -> bool {
    if budget.parts(4 * one.len()).is_err() {
        return false;
    }
    let (places, others) = (places(one, relation), places(two, relation));
    let has_keys = |places: &BTreeMap<Place<'_>, Value<'_>>| {
        places.keys().all(|place| place.iter().all(Option::is_some))
    };
    if *relation == Relation::Set && !(has_keys(&places) && has_keys(&others)) {
        // Fractions, times and bytes are no keys.
        let within = |part: &List<'_>, whole: &List<'_>| {
            part.iter()
                .all(|one| whole.iter().any(|two| one.equals_within(&two, budget)))
        };
        return within(one, two) && within(two, one);
    }
    let mut pairs = places.iter().zip(others.iter());
    places.len() == others.len()
        && pairs
            .all(|((place, one), (other, two))| place == other && one.equals_within(two, budget))
}

/// Returns the elements of both lists. Of objects with equal keys the second list's is taken, in
/// the place of the first one's.
///
/// # Errors
/// Returns an error if that takes too much work.
pub(crate) fn joined<'a>(
    one: &List<'a>,
    two: &List<'a>,
    relation: Relation,
    budget: &WorkBudget,
) -> Result<List<'a>, TooMuchWork> {
    budget.elements(2 * (one.len() + two.len()))?;
    let mut elements: Vec<Value<'a>> = one.iter().collect();
    let known = elements.iter().enumerate();
    let mut known: BTreeMap<Place<'a>, usize> = known
        .map(|(at, element)| (place(&relation, element), at))
        .collect();
    for element in two.iter() {
        let place = place(&relation, &element);
        let is_key = place.iter().all(Option::is_some);
        let found = match is_key || relation != Relation::Set {
            true => known.get(&place).copied(),
            false => elements
                .iter()
                .position(|known| known.equals_within(&element, budget)),
        };
        match found {
            Some(at) if relation != Relation::Set => elements[at] = element,
            Some(_) => {}
            None => {
                known.insert(place, elements.len());
                elements.push(element);
            }
        }
    }
    Ok(List::Related(Arc::new((elements, relation))))
}
