//! Says whether a recorded run could have come from one correct store.
//!
//! Owns what correct means: every object is linearizable, lists are consistent cuts, versions of a
//! plane grow in real time, and each watch tells every change once, in order, without a gap,
//! across all its sessions. Pure. Must not know how the run was made.
//!
//! Order of work: what was told is put together into one log per plane (`facts`), in which the
//! versions are the witness of the order. Lists and watches are compared with that log directly.
//! Each object's operations go through a search for a legal order (`search`, `object`), which the
//! log makes nearly straight; only what carries no version (deletes, lost answers) is searched for.

mod clock;
mod facts;
mod lists;
mod object;
pub mod search;
mod watches;

use std::fmt;

use crate::history::{History, ObjectName, PlaneName};
use facts::Facts;

/// What a run may show without being faulty.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Allowed {
    /// A watch that was told to begin anew (410).
    pub expired: bool,
    /// A watch that ended with another error than 410.
    pub watch_errors: bool,
    /// A watch that had not told everything when the run ended.
    pub behind: bool,
}

/// What is wrong.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Kind {
    /// One version stands for two different things.
    VersionNamesTwo,
    /// One write took effect at two versions.
    AppliedTwice,
    /// Content that nobody wrote, or that was written to another object.
    FromNowhere,
    /// A write took effect that was refused.
    EffectOfRefused,
    /// The answer to a write shows other content than was sent.
    WrongAnswer,
    /// A version is not above what had been told before the request began.
    VersionFell,
    /// A list lacks or holds what its version says otherwise.
    WrongCut,
    /// No order of the operations explains the answers.
    NotLinearizable,
    /// The search for an order was given up; the run is not proven right.
    Undecided,
    /// A watch did not tell a change.
    WatchGap,
    /// A watch told a change twice.
    WatchRepeat,
    /// A watch told a change after a newer one.
    WatchOrder,
    /// A watch's event does not follow from those before it.
    WatchType,
    /// A watch never told the newest changes.
    WatchBehind,
    /// A watch could not go on from its last version.
    WatchExpired,
    /// A watch ended with an error.
    WatchError,
}

/// One thing that a correct store would not have shown.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Fault {
    /// What is wrong.
    pub kind: Kind,
    /// Where.
    pub plane: PlaneName,
    /// With which object, if with one.
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

/// The verdict with what it rests on.
#[derive(Clone, Debug, Default)]
pub struct Verdict {
    /// Everything that is wrong, by plane.
    pub faults: Vec<Fault>,
    /// Operations that were checked.
    pub operations: usize,
    /// Objects that were checked.
    pub objects: usize,
    /// Lists that were checked.
    pub listings: usize,
    /// Events of watches that were checked.
    pub events: usize,
    /// Steps of the searches, all objects together.
    pub steps: u64,
}

impl Verdict {
    /// Returns whether nothing is wrong.
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

/// Faults that are shown one by one.
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
