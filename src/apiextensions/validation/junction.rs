//! The check of a value by alternatives: `anyOf`, `oneOf`, `allOf` and `not`.
//!
//! A valid object loses to most alternatives of its schema, and may have thousands of values with some each. So an
//! alternative is first asked for its verdict, and for complaints only if the client gets them.

use super::check::{Found, Old, Place, plain};
use super::schema::{Junctors, Schema};
use polyplane_apimachinery::Value;
use polyplane_apimachinery::quote::quote;

/// Checks a value by alternatives.
pub(super) fn junction(
    junctors: &Junctors,
    value: &Value,
    old: Old<'_>,
    place: Place<'_>,
    found: &mut Found,
) {
    let of = |schema: &Schema, place: Place<'_>| {
        let mut found = Found::default();
        plain(schema, value, old, place, &mut found);
        found
    };
    let verdict = |schema: &Schema| of(schema, place.for_verdict());
    let whole = |schema: &Schema| of(schema, place);
    let shown = || quote(place.path);
    found.matches += 1;
    if !junctors.any.is_empty() {
        let (mut best, valid) = alternatives(junctors.any.iter().map(verdict), Stop::AtFirst);
        if valid == 0 {
            found.refuse(place, || {
                let text = format!("{} must validate at least one schema (anyOf)", shown());
                place.general(text)
            });
            if place.has_complaints() {
                (best, _) = alternatives(junctors.any.iter().map(whole), Stop::AtFirst);
            }
        }
        found.merge(best);
    }
    if !junctors.one.is_empty() {
        let (mut best, valid) = alternatives(junctors.one.iter().map(verdict), Stop::Never);
        if valid != 1 {
            found.refuse(place, || {
                let found_text = match valid {
                    0 => "Found none valid".to_owned(),
                    count => format!("Found {count} valid alternatives"),
                };
                let shown = shown();
                place.general(format!(
                    "{shown} must validate one and only one schema (oneOf). {found_text}"
                ))
            });
        }
        if valid == 0 && place.has_complaints() {
            (best, _) = alternatives(junctors.one.iter().map(whole), Stop::Never);
        }
        if valid <= 1 {
            found.merge(best);
        }
    }
    every(junctors, &whole, old, place, found);
    if junctors
        .not
        .as_ref()
        .is_some_and(|not| verdict(not).is_valid())
    {
        found.refuse(place, || {
            place.general(format!("{} must not validate the schema (not)", shown()))
        });
    }
}

/// Checks a value by the schemas that all have to hold.
fn every(
    junctors: &Junctors,
    whole: &dyn Fn(&Schema) -> Found,
    old: Old<'_>,
    place: Place<'_>,
    found: &mut Found,
) {
    if junctors.all.is_empty() {
        return;
    }
    let mut valid = 0;
    for schema in &junctors.all {
        if place.is_decided(found, old) {
            return;
        }
        let own = whole(schema);
        valid += usize::from(own.is_valid());
        found.merge(own);
    }
    if valid != junctors.all.len() {
        found.refuse(place, || {
            let none = if valid == 0 { ". None validated" } else { "" };
            let shown = quote(place.path);
            place.general(format!(
                "{shown} must validate all the schemas (allOf){none}"
            ))
        });
    }
}

/// Says when the search through alternatives ends.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Stop {
    AtFirst,
    Never,
}

/// Returns the first valid alternative, else the one of which most checks were made, and the number
/// of valid ones.
fn alternatives(all: impl Iterator<Item = Found>, stop: Stop) -> (Found, usize) {
    let (mut best, mut valid): (Option<Found>, usize) = (None, 0);
    for found in all {
        if found.is_valid() {
            valid += 1;
            if valid == 1 {
                best = Some(found);
            }
            if stop == Stop::AtFirst {
                break;
            }
        } else if valid == 0
            && best
                .as_ref()
                .is_none_or(|best| found.matches > best.matches)
        {
            best = Some(found);
        }
    }
    (best.unwrap_or_default(), valid)
}
