//! One object as a sequential object: absent, or present with a version and content.
//!
//! This module defines the effect of each verb and which answers fit. The log of known changes
//! shows the order: a state is left only for the change that the log has next, so acknowledged
//! writes need no search. A write without an answer that nobody ever saw may have happened, unless
//! the log is complete.

use crate::history::{
    Listing, Moment, ObjectName, Operation, Outcome, PlaneName, Refusal, Value, Verb, Version,
};

use super::facts::{Facts, Known, ObjectLog, Step};
use super::search::{Call, Found, Model, search};
use super::{Fault, Kind};

/// The longest search for one object, in calls of the model. Without the limit a hard history would
/// never end.
const STEPS_MAX: u64 = 3_000_000;

/// The content of the object.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum Content {
    Absent,
    There(Value),
    /// Written by a request without an answer, which nobody ever saw.
    Unseen,
}

/// The object between two changes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
struct State {
    /// The version of the last change. If not `exact`, the last change came after this version.
    version: Version,
    exact: bool,
    content: Content,
}

/// A call: an operation on the object, or a list that covers it.
#[derive(Clone, Copy, Debug)]
enum Asked<'a> {
    Operation(&'a Operation),
    Listed(&'a Listing, Option<(Version, Value)>),
}

struct Object<'a> {
    log: &'a ObjectLog<'a>,
    facts: &'a Facts<'a>,
    asked: Vec<Asked<'a>>,
    /// For each entry of the log, in order: the moment before which it had happened.
    left_by: Vec<(Version, Moment)>,
}

/// Checks one object and returns the number of steps of the search.
pub(super) fn check(
    plane: &PlaneName,
    name: &ObjectName,
    log: &ObjectLog<'_>,
    facts: &Facts<'_>,
    faults: &mut Vec<Fault>,
) -> u64 {
    let mut fault = |kind, evidence| {
        faults.push(Fault {
            kind,
            plane: plane.clone(),
            object: Some(name.clone()),
            evidence,
        });
    };
    for operation in &log.operations {
        if let (Some(sent), Outcome::Object { value, .. }) =
            (operation.verb.writes(), &operation.outcome)
            && sent != *value
        {
            fault(Kind::WrongAnswer, format!("{operation:?}"));
        }
    }
    let (object, calls) = Object::new(name, log, facts);
    let initial = State {
        version: Version(0),
        exact: true,
        content: Content::Absent,
    };
    let (found, steps) = search(&object, &calls, initial, STEPS_MAX);
    match found {
        Found::Order(_) => {}
        Found::GaveUp => fault(
            Kind::Undecided,
            format!("no order in {STEPS_MAX} steps for {} calls", calls.len()),
        ),
        Found::None {
            placed,
            state,
            open,
        } => fault(
            Kind::NotLinearizable,
            object.story(placed, calls.len(), &state, &open),
        ),
    }
    steps
}

impl<'a> Object<'a> {
    fn new(name: &ObjectName, log: &'a ObjectLog<'a>, facts: &'a Facts<'a>) -> (Self, Vec<Call>) {
        let mut asked = Vec::new();
        let mut calls = Vec::new();
        let unseen_from = unseen_from(log, facts);
        for operation in &log.operations {
            if let Some(call) = call_of(operation, log, facts, unseen_from) {
                calls.push(call);
                asked.push(Asked::Operation(operation));
            }
        }
        for listing in &facts.listings {
            if let Ok(cut) = &listing.outcome {
                calls.push(Call {
                    start: listing.start,
                    end: Some(listing.end),
                    reads: true,
                    alike: None,
                });
                asked.push(Asked::Listed(listing, cut.items.get(name).copied()));
            }
        }
        let mut left_by: Vec<(Version, Moment)> = Vec::new();
        let mut earliest = Moment(u64::MAX);
        for (version, known) in log.known.iter().rev() {
            earliest = earliest.min(known.seen);
            left_by.push((*version, earliest));
        }
        left_by.reverse();
        let object = Self {
            log,
            facts,
            asked,
            left_by,
        };
        (object, calls)
    }

    /// Returns the next change after a state that certainly happened.
    fn next(&self, state: &State) -> Option<(Version, Known)> {
        use std::ops::Bound::{Excluded, Unbounded};
        let mut after = self.log.known.range((Excluded(state.version), Unbounded));
        after.next().map(|(version, known)| (*version, *known))
    }

    fn put(&self, state: &State, value: Value, told: Option<Version>) -> Option<State> {
        if let Some((version, known)) = self.next(state)
            && known.step == Step::Put(value)
        {
            return Some(State {
                version,
                exact: true,
                content: Content::There(value),
            });
        }
        // The change was seen elsewhere in the log, or acknowledged, so its place is not here.
        if told.is_some() || self.facts.versions.contains_key(&value) {
            return None;
        }
        self.unseen(state, Content::Unseen)
    }

    fn delete(&self, state: &State) -> Option<State> {
        match self.next(state) {
            Some((version, known)) if known.step == Step::Deleted => Some(State {
                version,
                exact: true,
                content: Content::Absent,
            }),
            _ => self.unseen(state, Content::Absent),
        }
    }

    /// Returns the state after a change that the log does not have; `None` if the log is complete
    /// there.
    fn unseen(&self, state: &State, content: Content) -> Option<State> {
        let version = match self.facts.complete_through {
            None => state.version,
            Some(_) if self.next(state).is_some() => return None,
            Some(through) => state.version.max(through),
        };
        Some(State {
            version,
            exact: false,
            content,
        })
    }

    fn operate(&self, state: &State, operation: &Operation) -> Option<State> {
        let there = state.content != Content::Absent;
        let met =
            |over: Option<Version>| over.is_none_or(|over| state.exact && state.version == over);
        let told = match operation.outcome {
            Outcome::Object { version, .. } => Some(version),
            _ => None,
        };
        match (&operation.outcome, operation.verb) {
            (Outcome::Refused(Refusal::AlreadyExists), Verb::Create(_)) => there.then_some(*state),
            (Outcome::Refused(_), Verb::Create(_)) => None,
            (Outcome::Refused(Refusal::NotFound), _) => (!there).then_some(*state),
            (
                Outcome::Refused(Refusal::Conflict),
                Verb::Update { over, .. } | Verb::Delete { over },
            ) => (there && !met(over)).then_some(*state),
            (Outcome::Refused(_) | Outcome::Failed(_), _) => None,
            (Outcome::Object { version, value }, Verb::Get) => {
                let same = state.exact
                    && state.version == *version
                    && state.content == Content::There(*value);
                same.then_some(*state)
            }
            (_, Verb::Get) => None,
            (_, Verb::Create(value)) if !there => self.put(state, value, told),
            (_, Verb::Update { value, over }) if there && met(over) => self.put(state, value, told),
            (_, Verb::Patch(value)) if there => self.put(state, value, told),
            (_, Verb::Delete { over }) if there && met(over) => self.delete(state),
            (_, Verb::Create(_) | Verb::Update { .. } | Verb::Patch(_) | Verb::Delete { .. }) => {
                None
            }
        }
    }

    fn listed(
        &self,
        state: &State,
        listing: &Listing,
        item: Option<(Version, Value)>,
    ) -> Option<State> {
        let cut = listing.outcome.as_ref().ok()?.version;
        let shown = match (state.content, item) {
            (Content::Absent, None) => true,
            (Content::There(value), Some(item)) => state.exact && item == (state.version, value),
            _ => false,
        };
        let reached = if state.exact {
            state.version <= cut
        } else {
            state.version < cut
        };
        let newest = self.next(state).is_none_or(|(version, _)| version > cut);
        (shown && reached && newest).then_some(*state)
    }

    fn story(&self, placed: usize, calls: usize, state: &State, open: &[usize]) -> String {
        use std::fmt::Write as _;
        let mut text = format!("{placed} of {calls} calls fit, up to {state:?}");
        if let Some((version, known)) = self.next(state) {
            let step = known.step;
            let _ = write!(text, "; then comes {step:?} at {}", version.0);
        }
        for call in open.iter().take(6) {
            let _ = match &self.asked[*call] {
                Asked::Operation(operation) => write!(
                    text,
                    "\n    open: client {} {:?} {}..{} -> {:?}",
                    operation.client.0,
                    operation.verb,
                    operation.start.0,
                    operation.end.0,
                    operation.outcome
                ),
                Asked::Listed(listing, item) => write!(
                    text,
                    "\n    open: client {} lists {}..{} -> {item:?}",
                    listing.client.0, listing.start.0, listing.end.0
                ),
            };
        }
        text
    }
}

impl Model for Object<'_> {
    type State = State;

    fn step(&self, state: &State, call: usize) -> Option<State> {
        match self.asked[call] {
            Asked::Operation(operation) => self.operate(state, operation),
            Asked::Listed(listing, item) => self.listed(state, listing, item),
        }
    }

    fn left_by(&self, state: &State) -> Option<Moment> {
        let next = self
            .left_by
            .partition_point(|(version, _)| *version <= state.version);
        self.left_by.get(next).map(|(_, moment)| *moment)
    }

    fn may_end(&self, state: &State) -> bool {
        self.next(state).is_none()
    }
}

/// Returns the call of an operation; `None` if the operation says nothing about the object and had
/// no effect. A write that nobody saw counts from `unseen_from` on.
fn call_of(
    operation: &Operation,
    log: &ObjectLog<'_>,
    facts: &Facts<'_>,
    unseen_from: Moment,
) -> Option<Call> {
    let mut start = operation.start;
    let alike = match operation.verb {
        Verb::Delete { over: None } => Some(0),
        _ => None,
    };
    let (end, reads) = match &operation.outcome {
        Outcome::Failed(_) => return None,
        Outcome::Refused(_) => (Some(operation.end), true),
        Outcome::Object { .. } => (Some(operation.end), operation.verb == Verb::Get),
        Outcome::Deleted => (Some(operation.end), false),
        Outcome::Unknown(_) => match operation.verb {
            Verb::Get => return None,
            Verb::Delete { .. } => (None, false),
            Verb::Create(value) | Verb::Update { value, .. } | Verb::Patch(value) => {
                let version = facts.versions.get(&value);
                match version.and_then(|version| log.known.get(version)) {
                    // The write happened, and before somebody saw it.
                    Some(known) => (Some(known.seen.max(operation.start)), false),
                    None => {
                        start = start.max(unseen_from);
                        (None, false)
                    }
                }
            }
        },
    };
    Some(Call {
        start,
        end,
        reads,
        alike,
    })
}

/// Returns the moment after which a write that nobody saw happened. In a complete log, that is
/// after the newest known write, and so after the beginning of that write's request.
fn unseen_from(log: &ObjectLog<'_>, facts: &Facts<'_>) -> Moment {
    let newest = log.known.values().next_back();
    let (Some(known), Some(_)) = (newest, facts.complete_through) else {
        return Moment(0);
    };
    let Step::Put(value) = known.step else {
        return Moment(0);
    };
    let writer = |operation: &&&Operation| operation.verb.writes() == Some(value);
    let writer = log.operations.iter().find(writer);
    writer.map_or(Moment(0), |operation| operation.start)
}
