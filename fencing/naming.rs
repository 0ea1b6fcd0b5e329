//! Visits the attempts, tenure numbers, epochs, fence revisions and times in a machine's state, so
//! that the model checker can renumber them. It treats states that differ in nothing else as one.

use crate::member::Member;
use crate::read_lease::ReadLease;
use crate::record::{Epoch, Fence, Observed, Revision};
use crate::time::Time;
use crate::transaction::{Attempt, Compare, Outcome, Refusal, Transaction, Write};
use crate::witness::Witness;

/// One name. It matters only which names of a kind are equal, and which one is greater.
#[derive(Debug)]
pub enum Name<'a> {
    /// The number of an attempt, at one machine.
    Attempt(&'a mut Attempt),
    /// The number of a tenure, at one machine.
    Opening(&'a mut u32),
    /// A fence's epoch, the same everywhere.
    Epoch(&'a mut Epoch),
    /// The revision of the plane's fence record, the same everywhere.
    Fence(&'a mut Revision),
    /// A point on one replica's clock.
    Time(&'a mut Time),
}

/// A value that contains such names.
pub trait EachName {
    /// Visits each name in the value.
    fn each_name(&mut self, visit: &mut dyn FnMut(Name<'_>));
}

impl Attempt {
    /// Returns the attempt with this number.
    pub const fn numbered(number: u32) -> Self {
        Self(number)
    }
}

impl EachName for Observed<Fence> {
    fn each_name(&mut self, visit: &mut dyn FnMut(Name<'_>)) {
        visit(Name::Epoch(&mut self.value.epoch));
        visit(Name::Fence(&mut self.revision));
    }
}

impl EachName for Transaction {
    fn each_name(&mut self, visit: &mut dyn FnMut(Name<'_>)) {
        for compare in &mut self.compares {
            if let Compare::FenceAt(revision) = compare {
                visit(Name::Fence(revision));
            }
        }
        for write in &mut self.writes {
            if let Write::PutFence(fence) = write {
                visit(Name::Epoch(&mut fence.epoch));
            }
        }
    }
}

impl EachName for Refusal {
    fn each_name(&mut self, visit: &mut dyn FnMut(Name<'_>)) {
        if let Some(fence) = &mut self.fence {
            fence.each_name(visit);
        }
    }
}

/// The names in the outcome of a put of the fence. An applied commit names no revision of the
/// fence.
impl EachName for Outcome {
    fn each_name(&mut self, visit: &mut dyn FnMut(Name<'_>)) {
        match self {
            Self::Applied(revision) => visit(Name::Fence(revision)),
            Self::Refused(refusal) => refusal.each_name(visit),
            Self::Rejected | Self::Unknown => {}
        }
    }
}

impl EachName for ReadLease {
    fn each_name(&mut self, visit: &mut dyn FnMut(Name<'_>)) {
        if let Some(sent) = self.proven_mut() {
            visit(Name::Time(sent));
        }
    }
}

impl EachName for Member {
    fn each_name(&mut self, visit: &mut dyn FnMut(Name<'_>)) {
        for time in self.times_mut() {
            visit(Name::Time(time));
        }
        self.lease_mut().each_name(visit);
    }
}

impl EachName for Witness {
    fn each_name(&mut self, visit: &mut dyn FnMut(Name<'_>)) {
        for time in self.times_mut() {
            visit(Name::Time(time));
        }
    }
}
