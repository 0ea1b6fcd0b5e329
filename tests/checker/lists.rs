//! Lists are consistent cuts: they contain exactly the newest state up to their version.
//!
//! This module compares a list with the log. The search and the clock check whether a list is fresh
//! enough.

use crate::history::{Cut, ObjectName, PlaneName};

use super::facts::{Facts, Step};
use super::{Fault, Kind};

/// Checks all lists of one plane, also those with which a watch began.
pub(super) fn check(plane: &PlaneName, facts: &Facts<'_>, faults: &mut Vec<Fault>) {
    let listed = facts
        .listings
        .iter()
        .filter_map(|listing| listing.outcome.as_ref().ok());
    let first = facts.watches.iter().map(|watch| &watch.first);
    for cut in listed.chain(first) {
        for (object, log) in &facts.objects {
            let newest = log.known.range(..=cut.version).next_back();
            let expected = newest.and_then(|(version, known)| match known.step {
                Step::Put(value) => Some((*version, value)),
                Step::Deleted => None,
            });
            let found = cut.items.get(object).copied();
            // Deletions are known only up to the version to which the log is complete.
            let unseen = found.is_none() && facts.complete_through < Some(cut.version);
            if found != expected && !unseen {
                let evidence = format!(
                    "the list at version {} shows {found:?} where {expected:?} was the newest",
                    cut.version.0
                );
                faults.push(fault(plane, object, evidence));
            }
        }
        newer(plane, cut, faults);
    }
}

/// Finds items whose version is above that of the list.
fn newer(plane: &PlaneName, cut: &Cut, faults: &mut Vec<Fault>) {
    for (object, (version, _)) in &cut.items {
        if *version > cut.version {
            let evidence = format!(
                "the list at version {} holds version {}",
                cut.version.0, version.0
            );
            faults.push(fault(plane, object, evidence));
        }
    }
}

fn fault(plane: &PlaneName, object: &ObjectName, evidence: String) -> Fault {
    Fault {
        kind: Kind::WrongCut,
        plane: plane.clone(),
        object: Some(object.clone()),
        evidence,
    }
}
