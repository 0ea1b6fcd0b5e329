//! Decides whether a recorded run could have come from one correct store.
//!
//! This module defines what correct means: every object is linearizable, lists are consistent cuts,
//! versions of a plane grow in real time, and each watch delivers every change once, in order,
//! without a gap, across all its sessions. It is pure, and does not know how the run was made.
//!
//! Order of work: all answers and events are put together into one log per plane (`facts`), in
//! which the versions show the order. Lists and watches are compared with that log directly. A
//! search finds a legal order of each object's operations (`search`, `object`). The log leaves few
//! orders open; only operations without a version (deletes, lost answers) need a real search.

mod clock;
mod facts;
mod lists;
mod object;
pub mod search;
mod watches;

use std::fmt;

use crate::history::{History, ObjectName, PlaneName};
use facts::Facts;

/// The faults that a run may show and still pass.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Allowed {
    /// A watch may get 410, which makes it start again.
    pub expired: bool,
    /// A watch may end with another error than 410.
    pub watch_errors: bool,
    /// A watch may lack the newest changes when the run ends.
    pub behind: bool,
}

/// The kind of a fault.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Kind {
    /// One version belongs to two different changes.
    VersionNamesTwo,
    /// One write took effect at two versions.
    AppliedTwice,
    /// Content that nobody wrote, or that was written to another object.
    FromNowhere,
    /// A write that was refused took effect.
    EffectOfRefused,
    /// The answer to a write shows other content than the request had.
    WrongAnswer,
    /// A version is not above those that clients knew before the request began.
    VersionFell,
    /// A list differs from the plane's state at the list's version.
    WrongCut,
    /// No order of the operations explains the answers.
    NotLinearizable,
    /// The search for an order exceeded its limit, so the run is not proven right.
    Undecided,
    /// A watch left out a change.
    WatchGap,
    /// A watch delivered a change twice.
    WatchRepeat,
    /// A watch delivered a change after a newer one.
    WatchOrder,
    /// The type of a watch event does not follow from the events before it.
    WatchType,
    /// A watch never delivered the newest changes.
    WatchBehind,
    /// A watch could not continue from its last version.
    WatchExpired,
    /// A watch ended with an error.
    WatchError,
}

/// One observation that a correct store would not have allowed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Fault {
    /// The kind of the fault.
    pub kind: Kind,
    /// The plane.
    pub plane: PlaneName,
    /// The object, if the fault concerns one.
    pub object: Option<ObjectName>,
    /// The evidence, for a reader.
    pub evidence: String,
}

impl fmt::Display for Fault {
    fn fmt(&self, to: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(to, "{:?} in {}", self.kind, self.plane)?;
        if let Some(object) = &self.object {
            write!(to, "/{object}")?;
        }
        write!(to, ": {}", self.evidence)
    }
}

/// The verdict, and how much was checked.
#[derive(Clone, Debug, Default)]
pub struct Verdict {
    /// All faults, by plane.
    pub faults: Vec<Fault>,
    /// Operations that were checked.
    pub operations: usize,
    /// Objects that were checked.
    pub objects: usize,
    /// Lists that were checked.
    pub listings: usize,
    /// Events of watches that were checked.
    pub events: usize,
    /// The steps of all searches together.
    pub steps: u64,
}

impl Verdict {
    /// Returns whether there is no fault.
    pub fn is_right(&self) -> bool {
        self.faults.is_empty()
    }
}

impl fmt::Display for Verdict {
    fn fmt(&self, to: &mut fmt::Formatter<'_>) -> fmt::Result {
        let faults = self.faults.len();
        let (operations, objects, steps) = (self.operations, self.objects, self.steps);
        write!(
            to,
            "{operations} operations on {objects} objects, {} lists, {} events checked in {steps} steps: {faults} faults",
            self.listings, self.events,
        )?;
        for fault in self.faults.iter().take(SHOWN) {
            write!(to, "\n  {fault}")?;
        }
        if faults > SHOWN {
            write!(to, "\n  and {} more", faults - SHOWN)?;
        }
        Ok(())
    }
}

/// Faults that are shown one by one. More would make the report unreadable.
const SHOWN: usize = 20;

/// Checks a whole run.
pub fn check(history: &History, allowed: Allowed) -> Verdict {
    let (planes, faults) = Facts::collect(history);
    let mut verdict = Verdict {
        faults,
        operations: history.operations.len(),
        listings: history.listings.len(),
        ..Verdict::default()
    };
    for (plane, facts) in &planes {
        clock::check(plane, facts, &mut verdict.faults);
        lists::check(plane, facts, &mut verdict.faults);
        for watch in &facts.watches {
            verdict.events += watches::check(watch, facts, allowed, &mut verdict.faults);
        }
        for (object, log) in &facts.objects {
            verdict.objects += 1;
            verdict.steps += object::check(plane, object, log, facts, &mut verdict.faults);
        }
    }
    verdict
}
