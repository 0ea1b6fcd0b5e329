//! Commits and their outcomes. If the outcome of a batch is unknown, the machine puts its fence
//! again, comparing the revision that the batch compared. Once that put is applied, no older
//! transaction can be (PROTOCOL 1, F6).

use alloc::vec;
use alloc::vec::Vec;

use crate::plane::{Action, Batch, Phase, PlaneFence, TenureMode};
use crate::record::{Epoch, Fence, FenceState, Revision};
use crate::rules::Rule;
use crate::time::Time;
use crate::transaction::{Compare, Outcome, Refusal, Transaction, Write};

impl PlaneFence {
    pub(super) fn commit_sent(&mut self, now: Time) -> Vec<Action> {
        // The batch had a permit, so only the tenure may have been lost in between.
        if let Phase::Held(held) = &mut self.phase {
            assert!(
                held.ready(now),
                "F1: a batch was sent before the wait was over"
            );
            assert_eq!(
                held.batch,
                Batch::None,
                "F6: at most one batch is in flight"
            );
            assert_eq!(
                held.mode,
                TenureMode::Serving,
                "F7: a leaving plane accepts nothing"
            );
            held.batch = Batch::InFlight;
        }
        Vec::new()
    }

    pub(super) fn commit_done(&mut self, outcome: Outcome) -> Vec<Action> {
        let Phase::Held(held) = &mut self.phase else {
            return Vec::new();
        };
        if held.batch != Batch::InFlight {
            return Vec::new();
        }
        match outcome {
            Outcome::Applied(revision) => {
                held.head = Some(revision);
                held.batch = Batch::None;
                held.rejections = 0;
                self.go_on_leaving()
            }
            Outcome::Refused(refusal) => {
                let (fence, epoch) = (held.fence, held.tenure.epoch);
                if !self.lives(&refusal) || self.own_record(&refusal, epoch) != Some(fence) {
                    return self.lose(Some(&refusal));
                }
                // The transaction was refused because of another plane: this plane's part is sent
                // again.
                self.no_batch();
                self.go_on_leaving()
            }
            Outcome::Rejected => {
                held.batch = Batch::None;
                self.count_rejection();
                self.go_on_leaving()
            }
            Outcome::Unknown if !self.rules.keep(Rule::CommitSettledByWrite) => {
                let through = held.fence;
                held.batch = Batch::Replaying;
                vec![Action::Settle { through }]
            }
            Outcome::Unknown => self.barrier(),
        }
    }

    /// Records that the batch is published: nothing of it is under way any more.
    pub(super) fn landed(&mut self, at: Revision) -> Vec<Action> {
        let Phase::Held(held) = &mut self.phase else {
            return Vec::new();
        };
        match held.batch {
            Batch::InFlight => self.commit_done(Outcome::Applied(at)),
            Batch::Replaying => self.replayed(at),
            Batch::None | Batch::Barrier(_) | Batch::Probe { .. } => Vec::new(),
        }
    }

    /// Puts this plane's fence again.
    fn barrier(&mut self) -> Vec<Action> {
        let attempt = self.next_attempt();
        let Phase::Held(held) = &mut self.phase else {
            return Vec::new();
        };
        held.batch = Batch::Barrier(attempt);
        let (epoch, fence) = (held.tenure.epoch, held.fence);
        let transaction = self.put_again(epoch, fence);
        vec![Action::Transact {
            attempt,
            transaction,
        }]
    }

    /// Returns the transaction that puts this holder's Held record again, over the record of this
    /// revision.
    pub(super) fn put_again(&self, epoch: Epoch, fence: Revision) -> Transaction {
        let record = Fence {
            holder: self.me.clone(),
            epoch,
            state: FenceState::Held,
        };
        Transaction {
            compares: vec![Compare::FenceAt(fence), Compare::MemberIs(self.me.clone())],
            writes: vec![Write::PutFence(record)],
        }
    }

    pub(super) fn barrier_done(&mut self, outcome: Outcome) -> Vec<Action> {
        let Phase::Held(held) = &mut self.phase else {
            return Vec::new();
        };
        match outcome {
            Outcome::Applied(revision) => self.settled_at(revision),
            Outcome::Refused(refusal) => {
                let epoch = held.tenure.epoch;
                match (self.lives(&refusal), self.own_record(&refusal, epoch)) {
                    // An earlier barrier of this tenure was applied; it settles the batch as well
                    // as this one.
                    (true, Some(revision)) => self.settled_at(revision),
                    (true, None) | (false, _) => self.lose(Some(&refusal)),
                }
            }
            Outcome::Rejected | Outcome::Unknown => self.barrier(),
        }
    }

    fn settled_at(&mut self, revision: Revision) -> Vec<Action> {
        if let Phase::Held(held) = &mut self.phase {
            assert!(
                revision > held.fence,
                "F6: a barrier moves the fence forward"
            );
            held.fence = revision;
            held.rejections = 0;
            held.batch = Batch::Replaying;
        }
        vec![Action::Settle { through: revision }]
    }

    pub(super) fn replayed(&mut self, head: Revision) -> Vec<Action> {
        if let Phase::Held(held) = &mut self.phase
            && held.batch == Batch::Replaying
        {
            assert!(
                held.head <= Some(head),
                "F6: replaying never takes a commit back"
            );
            held.head = Some(head);
            held.batch = Batch::None;
            return self.go_on_leaving();
        }
        Vec::new()
    }

    fn no_batch(&mut self) {
        if let Phase::Held(held) = &mut self.phase {
            held.batch = Batch::None;
        }
    }

    /// Returns the revision of the fence that a refusal found, if that fence is Held by this
    /// incarnation under this epoch.
    pub(super) fn own_record(&self, refusal: &Refusal, epoch: Epoch) -> Option<Revision> {
        let observed = refusal.fence.as_ref()?;
        let fence = &observed.value;
        let own = fence.holder == self.me && fence.epoch == epoch;
        (own && fence.state == FenceState::Held).then_some(observed.revision)
    }
}
