//! Versions of a plane grow in real time: a write that begins later gets a higher one.
//!
//! This module sweeps once over all observations of a plane. It does not look at the contents of
//! single objects.

use crate::history::{Event, Moment, ObjectName, Outcome, PlaneName, Version};

use super::facts::{Facts, Step};
use super::{Fault, Kind};

/// One moment of the sweep. At equal moments observations come last, because they overlap with the
/// requests.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Mark {
    /// A request began whose version must exceed all that were known before.
    Exceeds(Version, ObjectName),
    /// A list began whose version must not be below those that were known before.
    Reaches(Version),
    /// A client learned of this version.
    Told(Version),
}

/// Checks one plane.
pub(super) fn check(plane: &PlaneName, facts: &Facts<'_>, faults: &mut Vec<Fault>) {
    let mut marks = marks(facts);
    marks.sort();
    let mut told = Version(0);
    for (_, mark) in marks {
        match mark {
            Mark::Told(version) => told = told.max(version),
            Mark::Exceeds(version, object) if version <= told => faults.push(Fault {
                kind: Kind::VersionFell,
                plane: plane.clone(),
                object: Some(object),
                evidence: format!(
                    "a write got version {} although {} had been told before it began",
                    version.0, told.0
                ),
            }),
            Mark::Reaches(version) if version < told => faults.push(Fault {
                kind: Kind::VersionFell,
                plane: plane.clone(),
                object: None,
                evidence: format!(
                    "a list has version {} although {} had been told before it began",
                    version.0, told.0
                ),
            }),
            Mark::Exceeds(..) | Mark::Reaches(_) => {}
        }
    }
}

fn marks(facts: &Facts<'_>) -> Vec<(Moment, Mark)> {
    let mut marks = Vec::new();
    for (object, log) in &facts.objects {
        let known = log.known.iter();
        marks.extend(known.map(|(version, known)| (known.seen, Mark::Told(*version))));
        for operation in &log.operations {
            let Some(value) = operation.verb.writes() else {
                continue;
            };
            let version = match operation.outcome {
                Outcome::Object { version, .. } => Some(version),
                Outcome::Unknown(_) => facts.versions.get(&value).copied(),
                Outcome::Deleted | Outcome::Refused(_) | Outcome::Failed(_) => None,
            };
            let put = version.filter(|version| {
                let known = log.known.get(version);
                known.is_some_and(|known| known.step == Step::Put(value))
            });
            marks.extend(
                put.map(|version| (operation.start, Mark::Exceeds(version, object.clone()))),
            );
        }
    }
    for listing in &facts.listings {
        if let Ok(cut) = &listing.outcome {
            marks.push((listing.start, Mark::Reaches(cut.version)));
            marks.push((listing.end, Mark::Told(cut.version)));
        }
    }
    for watch in &facts.watches {
        let events = watch.sessions.iter().flat_map(|session| &session.events);
        for (seen, event) in events {
            if let Event::Bookmark(version) = event {
                marks.push((*seen, Mark::Told(*version)));
            }
        }
    }
    marks
}
