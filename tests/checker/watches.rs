//! Each watch delivers every change once, in order, without a gap, across all its sessions.
//!
//! This module compares a watch with itself and with the plane's log. It only distinguishes whether
//! a session ended with an error.

use std::collections::{BTreeMap, BTreeSet};

use crate::history::{Change, Event, ObjectName, Session, SessionEnd, Value, Version, Watch};

use super::facts::Facts;
use super::{Allowed, Fault, Kind};

/// The state of a watcher, and the events that it got.
struct Watcher<'a> {
    watch: &'a Watch,
    objects: BTreeMap<ObjectName, (Version, Value)>,
    told: BTreeSet<Version>,
    last: Version,
    faults: &'a mut Vec<Fault>,
}

/// Checks one watch and returns the number of its events.
pub(super) fn check(
    watch: &Watch,
    facts: &Facts<'_>,
    allowed: Allowed,
    faults: &mut Vec<Fault>,
) -> usize {
    let mut watcher = Watcher {
        watch,
        objects: watch.first.items.clone().into_iter().collect(),
        told: BTreeSet::new(),
        last: watch.first.version,
        faults,
    };
    let mut events = 0;
    for session in &watch.sessions {
        events += session.events.len();
        watcher.session(session, allowed);
    }
    watcher.gaps(facts, allowed);
    events
}

impl Watcher<'_> {
    fn fault(&mut self, kind: Kind, object: Option<&ObjectName>, evidence: String) {
        self.faults.push(Fault {
            kind,
            plane: self.watch.plane.clone(),
            object: object.cloned(),
            evidence: format!("watch of client {}: {evidence}", self.watch.client.0),
        });
    }

    fn session(&mut self, session: &Session, allowed: Allowed) {
        if session.from != self.last {
            let (from, last) = (session.from.0, self.last.0);
            let evidence = format!("it goes on from {from}, but {last} was told last");
            self.fault(Kind::WatchOrder, None, evidence);
        }
        for (_, event) in &session.events {
            match event {
                Event::Bookmark(version) => self.bookmark(*version),
                Event::Change {
                    change,
                    object,
                    version,
                    value,
                } => self.change(*change, object, *version, *value),
            }
        }
        let from = session.from.0;
        match session.end {
            SessionEnd::Expired if !allowed.expired => {
                let evidence = format!("from {from} on it is told 410");
                self.fault(Kind::WatchExpired, None, evidence);
            }
            SessionEnd::Error(code) if !allowed.watch_errors => {
                let evidence = format!("from {from} on it ends with error {code}");
                self.fault(Kind::WatchError, None, evidence);
            }
            _ => {}
        }
    }

    fn bookmark(&mut self, version: Version) {
        if version < self.last {
            let evidence = format!("a bookmark {} follows {}", version.0, self.last.0);
            self.fault(Kind::WatchOrder, None, evidence);
        }
        self.last = self.last.max(version);
    }

    fn change(&mut self, change: Change, object: &ObjectName, version: Version, value: Value) {
        if version <= self.last {
            let (kind, word) = if self.told.contains(&version) {
                (Kind::WatchRepeat, "comes again")
            } else {
                (Kind::WatchOrder, "comes late")
            };
            let evidence = format!("{} {word} after {}", version.0, self.last.0);
            return self.fault(kind, Some(object), evidence);
        }
        self.last = version;
        self.told.insert(version);
        let before = match change {
            Change::Added | Change::Modified => {
                self.objects.insert(object.clone(), (version, value))
            }
            Change::Deleted => self.objects.remove(object),
        };
        let fits = match change {
            Change::Added => before.is_none(),
            Change::Modified => before.is_some(),
            Change::Deleted => before.is_some_and(|(_, last)| last == value),
        };
        if !fits {
            let evidence = format!(
                "{change:?} of {} at {} follows {before:?}",
                value.0, version.0
            );
            self.fault(Kind::WatchType, Some(object), evidence);
        }
    }

    /// Compares the watch with all known changes of the plane.
    fn gaps(&mut self, facts: &Facts<'_>, allowed: Allowed) {
        let from = self.watch.first.version;
        for (version, object) in facts.changes() {
            if version <= from || self.told.contains(&version) {
                continue;
            }
            if version <= self.last {
                let evidence = format!("version {} was never told", version.0);
                self.fault(Kind::WatchGap, Some(object), evidence);
            } else if !allowed.behind {
                let evidence = format!("it stopped at {} before {}", self.last.0, version.0);
                self.fault(Kind::WatchBehind, Some(object), evidence);
            }
        }
    }
}
