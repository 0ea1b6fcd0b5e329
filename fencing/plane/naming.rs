//! The names within a plane's machine that are only compared with each other, for a model checker:
//! two states that differ only in such names have the same future, so it keeps one of them.

use crate::naming::{EachName, Name};
use crate::plane::{Batch, Phase, PlaneFence, Tenure};

impl EachName for Tenure {
    fn each_name(&mut self, visit: &mut dyn FnMut(Name<'_>)) {
        visit(Name::Epoch(&mut self.epoch));
        visit(Name::Opening(&mut self.opening));
    }
}

impl EachName for PlaneFence {
    fn each_name(&mut self, visit: &mut dyn FnMut(Name<'_>)) {
        match &mut self.phase {
            Phase::Taking(taking) => {
                visit(Name::Attempt(&mut taking.attempt));
                visit(Name::Epoch(&mut taking.epoch));
                visit(Name::Time(&mut taking.serve_from));
            }
            Phase::Held(held) => {
                held.tenure.each_name(visit);
                visit(Name::Fence(&mut held.fence));
                visit(Name::Time(&mut held.serve_from));
                match &mut held.batch {
                    Batch::Barrier(attempt) | Batch::Probe { attempt, .. } => {
                        visit(Name::Attempt(attempt));
                    }
                    Batch::None | Batch::InFlight | Batch::Replaying => {}
                }
            }
            Phase::Relinquishing(relinquishing) => {
                visit(Name::Attempt(&mut relinquishing.attempt));
                relinquishing.suspended.each_name(visit);
                visit(Name::Fence(&mut relinquishing.fence));
                if let Some(tenure) = &mut relinquishing.tenure {
                    tenure.each_name(visit);
                }
            }
            Phase::Away | Phase::Deleted | Phase::Lost => {}
        }
    }
}

impl PlaneFence {
    /// Sets the counters: the next attempt and the next opening get the numbers after these.
    pub fn count_from(&mut self, attempts: u32, openings: u32) {
        self.attempts = attempts;
        self.openings = openings;
    }
}
