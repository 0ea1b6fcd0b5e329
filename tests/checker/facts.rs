//! Builds one log per plane from all answers, lists and events.
//!
//! This module decides which version belongs to which change, and who made the change. A change is
//! in the log if an acknowledgement, a read, a list or a watch showed it. It does not judge the
//! order.

use std::collections::BTreeMap;

use crate::history::{
    Change, Cut, Event, History, Listing, Moment, ObjectName, Operation, Outcome, PlaneName,
    Session, SessionEnd, Value, Verb, Version, Watch,
};

use super::{Fault, Kind};

/// The change of an object at a version.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Step {
    /// The object was written with this content.
    Put(Value),
    /// The object was deleted.
    Deleted,
}

/// One change that certainly happened.
#[derive(Clone, Copy, Debug)]
pub(super) struct Known {
    pub(super) step: Step,
    /// The first moment at which a client knew of the change. The change happened before.
    pub(super) seen: Moment,
}

/// One object's changes and requests.
#[derive(Debug, Default)]
pub(super) struct ObjectLog<'a> {
    pub(super) known: BTreeMap<Version, Known>,
    pub(super) operations: Vec<&'a Operation>,
}

/// All facts about one plane.
#[derive(Debug, Default)]
pub(super) struct Facts<'a> {
    pub(super) objects: BTreeMap<ObjectName, ObjectLog<'a>>,
    pub(super) listings: Vec<&'a Listing>,
    pub(super) watches: Vec<&'a Watch>,
    /// The version at which a write took effect, by its content.
    pub(super) versions: BTreeMap<Value, Version>,
    /// Up to this version every change of the plane is in the log, because one watch delivered all
    /// of them.
    pub(super) complete_through: Option<Version>,
    /// The object to which a version belongs.
    of_version: BTreeMap<Version, ObjectName>,
}

/// One observation of a version by a client.
struct Told<'a> {
    plane: &'a PlaneName,
    object: &'a ObjectName,
    version: Version,
    step: Step,
    seen: Moment,
}

impl<'a> Facts<'a> {
    /// Groups a run by planes. Returns the contradictions that this already shows.
    pub(super) fn collect(history: &'a History) -> (BTreeMap<PlaneName, Self>, Vec<Fault>) {
        let mut planes: BTreeMap<PlaneName, Self> = BTreeMap::new();
        let mut faults = Vec::new();
        for operation in &history.operations {
            let facts = planes.entry(operation.plane.clone()).or_default();
            let log = facts.objects.entry(operation.object.clone()).or_default();
            log.operations.push(operation);
            if let Outcome::Object { version, value } = &operation.outcome {
                facts.learn(&told_by_answer(operation, *version, *value), &mut faults);
            }
        }
        for listing in &history.listings {
            let facts = planes.entry(listing.plane.clone()).or_default();
            facts.listings.push(listing);
            if let Ok(cut) = &listing.outcome {
                facts.learn_cut(&listing.plane, cut, listing.end, &mut faults);
            }
        }
        for watch in &history.watches {
            let facts = planes.entry(watch.plane.clone()).or_default();
            facts.watches.push(watch);
            facts.learn_watch(watch, &mut faults);
        }
        for (plane, facts) in &mut planes {
            facts.complete_through = facts.find_complete();
            if facts.complete_through.is_none() {
                // Unless the log is complete, a deletion cannot be distinguished from others that
                // nobody saw.
                for log in facts.objects.values_mut() {
                    log.known.retain(|_, known| known.step != Step::Deleted);
                }
            }
            facts.check_writers(plane, &mut faults);
        }
        (planes, faults)
    }

    /// Returns every known change of the plane, in order.
    pub(super) fn changes(&self) -> impl Iterator<Item = (Version, &ObjectName)> {
        self.of_version
            .iter()
            .map(|(version, object)| (*version, object))
    }

    fn learn_watch(&mut self, watch: &'a Watch, faults: &mut Vec<Fault>) {
        self.learn_cut(&watch.plane, &watch.first, watch.since, faults);
        let events = watch.sessions.iter().flat_map(|session| &session.events);
        for (seen, event) in events {
            let Event::Change {
                change,
                object,
                version,
                value,
            } = event
            else {
                continue;
            };
            let step = match change {
                Change::Added | Change::Modified => Step::Put(*value),
                Change::Deleted => Step::Deleted,
            };
            let told = Told {
                plane: &watch.plane,
                object,
                version: *version,
                step,
                seen: *seen,
            };
            self.learn(&told, faults);
        }
    }

    fn learn_cut(
        &mut self,
        plane: &'a PlaneName,
        cut: &'a Cut,
        seen: Moment,
        faults: &mut Vec<Fault>,
    ) {
        for (object, (version, value)) in &cut.items {
            let told = Told {
                plane,
                object,
                version: *version,
                step: Step::Put(*value),
                seen,
            };
            self.learn(&told, faults);
        }
    }

    fn learn(&mut self, told: &Told<'_>, faults: &mut Vec<Fault>) {
        let Told {
            plane,
            object,
            version,
            step,
            seen,
        } = told;
        let mut fault = |kind, evidence| {
            faults.push(Fault {
                kind,
                plane: (*plane).clone(),
                object: Some((*object).clone()),
                evidence,
            });
        };
        let owner = self
            .of_version
            .entry(*version)
            .or_insert_with(|| (*object).clone());
        if owner != *object {
            let evidence = format!("version {} is also one of {owner}", version.0);
            return fault(Kind::VersionNamesTwo, evidence);
        }
        let log = self.objects.entry((*object).clone()).or_default();
        let known = log.known.entry(*version).or_insert(Known {
            step: *step,
            seen: *seen,
        });
        if known.step != *step {
            let evidence = format!("version {} is {:?} and {step:?}", version.0, known.step);
            return fault(Kind::VersionNamesTwo, evidence);
        }
        known.seen = known.seen.min(*seen);
        if let Step::Put(value) = step {
            let first = *self.versions.entry(*value).or_insert(*version);
            if first != *version {
                let evidence = format!(
                    "write {} is there at version {} and at version {}",
                    value.0, first.0, version.0
                );
                fault(Kind::AppliedTwice, evidence);
            }
        }
    }

    /// Returns the newest version up to which one watch, begun before anything existed, delivered
    /// every change.
    fn find_complete(&self) -> Option<Version> {
        let operations = self.objects.values().flat_map(|log| &log.operations);
        let writes = operations.filter(|operation| operation.verb != Verb::Get);
        let first_write = writes.map(|operation| operation.start).min();
        let from_the_beginning = |watch: &&&Watch| {
            let unbroken = |session: &Session| !matches!(session.end, SessionEnd::Expired);
            watch.first.items.is_empty()
                && first_write.is_none_or(|first| watch.since <= first)
                && watch.sessions.iter().all(unbroken)
        };
        let complete = self.watches.iter().filter(from_the_beginning);
        complete.map(|watch| watch.reached()).max()
    }

    /// Checks that an operation that may have written it exists for all content, on the same
    /// object.
    fn check_writers(&self, plane: &PlaneName, faults: &mut Vec<Fault>) {
        let mut writers: BTreeMap<Value, &Operation> = BTreeMap::new();
        for operation in self.objects.values().flat_map(|log| &log.operations) {
            if let Some(value) = operation.verb.writes() {
                writers.insert(value, operation);
            }
        }
        for (object, log) in &self.objects {
            for (version, known) in &log.known {
                let Step::Put(value) = known.step else {
                    continue;
                };
                let (kind, evidence) = match writers.get(&value) {
                    Some(writer) if writer.object != *object => (
                        Kind::FromNowhere,
                        format!("content {} was written to {}", value.0, writer.object),
                    ),
                    Some(writer) => match &writer.outcome {
                        Outcome::Refused(_) | Outcome::Failed(_) => (
                            Kind::EffectOfRefused,
                            format!("version {} is of {writer:?}", version.0),
                        ),
                        _ => continue,
                    },
                    None => (
                        Kind::FromNowhere,
                        format!("nobody wrote {} at version {}", value.0, version.0),
                    ),
                };
                faults.push(Fault {
                    kind,
                    plane: plane.clone(),
                    object: Some(object.clone()),
                    evidence,
                });
            }
        }
    }
}

fn told_by_answer(operation: &Operation, version: Version, value: Value) -> Told<'_> {
    Told {
        plane: &operation.plane,
        object: &operation.object,
        version,
        step: Step::Put(value),
        seen: operation.end,
    }
}
