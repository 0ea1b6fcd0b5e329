//! Lists are consistent cuts: all of the newest state up to their version, nothing else.
//!
//! Owns the comparison of a list with the log. Whether a list is fresh enough is for the search
//! and the clock.

use crate::history::{Cut, ObjectName, PlaneName};

use super::facts::{Facts, Step};
use super::{Fault, Kind};

/// Checks all lists of one plane, those that began a watch included.
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
            // Deletions are known only as far as the log is complete.
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

/// Items above the list's own version.
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
