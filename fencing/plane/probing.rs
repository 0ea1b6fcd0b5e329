//! The handling of a store that refuses writes: the plane is read-only until the store accepts one
//! again. To find that out, the machine puts its fence again. No batch is in flight in the
//! meantime, so a refusal of the probe is final; only a probe without a reply must be settled.

use alloc::vec;
use alloc::vec::Vec;

use crate::plane::{Action, Batch, Phase, PlaneFence, TenureMode};
use crate::record::Revision;
use crate::transaction::Outcome;

impl PlaneFence {
    /// Counts a final refusal. Enough of them in a row make the plane read-only.
    pub(super) fn count_rejection(&mut self) {
        if let Phase::Held(held) = &mut self.phase {
            held.rejections = held.rejections.saturating_add(1);
        }
    }

    pub(super) fn probe(&mut self) -> Vec<Action> {
        let Phase::Held(held) = &self.phase else {
            return Vec::new();
        };
        match held.batch {
            Batch::None if self.read_only(held) => self.put_probe(false),
            // The outcome of the last probe was not reported: the store may still apply it.
            Batch::Probe { .. } => self.put_probe(true),
            Batch::None | Batch::InFlight | Batch::Barrier(_) | Batch::Replaying => Vec::new(),
        }
    }

    fn put_probe(&mut self, unsettled: bool) -> Vec<Action> {
        let attempt = self.next_attempt();
        let Phase::Held(held) = &mut self.phase else {
            return Vec::new();
        };
        held.batch = Batch::Probe { attempt, unsettled };
        let (epoch, fence) = (held.tenure.epoch, held.fence);
        let transaction = self.put_again(epoch, fence);
        vec![Action::Transact {
            attempt,
            transaction,
        }]
    }

    pub(super) fn probe_done(&mut self, outcome: Outcome, unsettled: bool) -> Vec<Action> {
        let Phase::Held(held) = &mut self.phase else {
            return Vec::new();
        };
        match outcome {
            Outcome::Applied(revision) => self.probe_landed(revision),
            Outcome::Refused(refusal) => {
                let epoch = held.tenure.epoch;
                match (self.lives(&refusal), self.own_record(&refusal, epoch)) {
                    // An earlier probe of this tenure was applied.
                    (true, Some(revision)) => self.probe_landed(revision),
                    (true, None) | (false, _) => self.lose(Some(&refusal)),
                }
            }
            Outcome::Rejected if !unsettled => {
                held.batch = Batch::None;
                self.go_on_leaving()
            }
            Outcome::Rejected | Outcome::Unknown => {
                if let Batch::Probe { unsettled, .. } = &mut held.batch {
                    *unsettled = true;
                }
                // A release must not wait for the next probe.
                match held.mode {
                    TenureMode::Leaving { .. } => self.put_probe(true),
                    TenureMode::Serving | TenureMode::Paused => Vec::new(),
                }
            }
        }
    }

    fn probe_landed(&mut self, revision: Revision) -> Vec<Action> {
        if let Phase::Held(held) = &mut self.phase {
            assert!(revision > held.fence, "F6: a probe moves the fence forward");
            held.fence = revision;
            held.batch = Batch::None;
        }
        self.store_writable()
    }

    /// Resumes a plane because the store accepts writes again. A plane whose own probe is still
    /// unsettled must put another one first: until then it does not know its fence's revision.
    pub(super) fn store_writable(&mut self) -> Vec<Action> {
        let rejections_max = self.rejections_max;
        let Phase::Held(held) = &mut self.phase else {
            return Vec::new();
        };
        if matches!(held.batch, Batch::Probe { .. }) {
            return Vec::new();
        }
        let was_read_only = held.rejections >= rejections_max;
        held.rejections = 0;
        let mut actions = match (was_read_only, &held.mode) {
            (true, TenureMode::Serving) => vec![Action::ResumeAccepting],
            (true, TenureMode::Paused | TenureMode::Leaving { .. }) | (false, _) => Vec::new(),
        };
        actions.extend(self.go_on_leaving());
        actions
    }
}
