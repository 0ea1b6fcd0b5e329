//! Hand-off and deletion: stop accepting, settle, stream, end the tenure, send Released or Deleted.
//! Until that is sent, the hand-off can be called off; afterwards only by a write to the fence.

use alloc::vec;
use alloc::vec::Vec;

use polyplane_ring::ReplicaId;

use crate::plane::{
    Action, Batch, Goal, Held, Load, Phase, PlaneFence, RelinquishStage, Relinquishing,
    StreamStage, Streaming, TenureEnd, TenureMode,
};
use crate::record::{Fence, FenceState, Revision};
use crate::rules::Rule;
use crate::time::Time;
use crate::transaction::{Compare, Outcome, Refusal, Transaction, Write};

impl PlaneFence {
    pub(super) fn hand_off(
        &mut self,
        now: Time,
        successor: Option<ReplicaId>,
        streaming: Streaming,
    ) -> Vec<Action> {
        let stream = match streaming {
            Streaming::To(to) => StreamStage::Pending(to),
            Streaming::Nothing => StreamStage::Done,
        };
        self.leave(now, Goal::Release { successor }, stream)
    }

    pub(super) fn delete(&mut self, now: Time) -> Vec<Action> {
        self.leave(now, Goal::Delete, StreamStage::Done)
    }

    /// Pauses the plane: writes wait and nothing is sent, so the head no longer changes once the
    /// batch in flight has settled.
    pub(super) fn pause(&mut self) -> Vec<Action> {
        match &mut self.phase {
            Phase::Held(held) => {
                held.mode = TenureMode::Paused;
                vec![Action::StopAccepting]
            }
            Phase::Away
            | Phase::Taking(_)
            | Phase::Relinquishing(_)
            | Phase::Deleted
            | Phase::Lost => Vec::new(),
        }
    }

    fn leave(&mut self, now: Time, goal: Goal, stream: StreamStage) -> Vec<Action> {
        let keep_wait = self.rules.keep(Rule::ReleaseAfterWait);
        let held = match &mut self.phase {
            Phase::Held(held) => held,
            // A driver that is gone has sent Released or Deleted. Its outcome has to become final
            // first.
            Phase::Relinquishing(relinquishing) if relinquishing.stage == RelinquishStage::Sent => {
                let relinquishing = relinquishing.clone();
                return self.say_again(relinquishing);
            }
            Phase::Relinquishing(relinquishing) => {
                let relinquishing = relinquishing.clone();
                return self.reclaim(relinquishing);
            }
            Phase::Away | Phase::Taking(_) | Phase::Deleted | Phase::Lost => return Vec::new(),
        };
        let waiting = keep_wait && now < held.serve_from;
        if waiting || held.head.is_none() {
            return vec![Action::NotYet {
                serve_from: held.serve_from,
            }];
        }
        // Only one driver works on a plane at a time. This one restarts a release that an earlier
        // driver has not sent.
        held.mode = TenureMode::Leaving { goal, stream };
        let probing = matches!(held.batch, Batch::Probe { .. });
        let mut actions = vec![Action::StopAccepting];
        // A probe may have been sent by a driver that is gone; a further probe settles it too.
        actions.extend(match probing {
            true => self.probe(),
            false => self.go_on_leaving(),
        });
        actions
    }

    /// Returns the actions of the next step of a release or deletion, if one was begun and nothing
    /// is in flight.
    pub(super) fn go_on_leaving(&mut self) -> Vec<Action> {
        let Phase::Held(held) = &mut self.phase else {
            return Vec::new();
        };
        let (Batch::None, Some(head)) = (&held.batch, held.head) else {
            return Vec::new();
        };
        let TenureMode::Leaving { stream, .. } = &mut held.mode else {
            return Vec::new();
        };
        match stream {
            StreamStage::Pending(to) => {
                let to = to.clone();
                *stream = StreamStage::Running;
                vec![Action::Stream { to, head }]
            }
            StreamStage::Running => Vec::new(),
            StreamStage::Done => {
                let held = held.clone();
                self.part(held, head)
            }
        }
    }

    pub(super) fn stream_ended(&mut self) -> Vec<Action> {
        if let Phase::Held(held) = &mut self.phase
            && let TenureMode::Leaving { stream, .. } = &mut held.mode
            && *stream == StreamStage::Running
        {
            *stream = StreamStage::Done;
        }
        self.go_on_leaving()
    }

    fn part(&mut self, held: Held, head: Revision) -> Vec<Action> {
        let TenureMode::Leaving { goal, .. } = held.mode else {
            return Vec::new();
        };
        let ends = self.rules.keep(Rule::TenureEndsBeforeReleased);
        let attempt = self.next_attempt();
        let relinquishing = Relinquishing {
            attempt,
            stage: RelinquishStage::Sent,
            goal,
            suspended: held.tenure,
            fence: held.fence,
            head,
            rejections: held.rejections,
            unsettled: false,
            tenure: (!ends).then_some(held.tenure),
        };
        let transaction = self.last_word(&relinquishing);
        self.phase = Phase::Relinquishing(relinquishing);
        assert!(
            !ends || self.tenure().is_none(),
            "F7: a tenure ends before its Released is sent"
        );
        let end = TenureEnd::Relinquished;
        vec![
            Action::EndTenure {
                tenure: held.tenure,
                end,
            },
            Action::Transact {
                attempt,
                transaction,
            },
        ]
    }

    fn last_word(&self, relinquishing: &Relinquishing) -> Transaction {
        let state = match &relinquishing.goal {
            Goal::Release { successor } => FenceState::Released {
                head: relinquishing.head,
                successor: successor.clone(),
            },
            Goal::Delete => FenceState::Deleted,
        };
        let record = Fence {
            holder: self.me.clone(),
            epoch: relinquishing.suspended.epoch,
            state,
        };
        Transaction {
            compares: vec![
                Compare::FenceAt(relinquishing.fence),
                Compare::MemberIs(self.me.clone()),
            ],
            writes: vec![Write::PutFence(record)],
        }
    }

    pub(super) fn call_off(&mut self) -> Vec<Action> {
        match &mut self.phase {
            Phase::Held(held) => match &held.mode {
                TenureMode::Paused | TenureMode::Leaving { .. } => {
                    held.mode = TenureMode::Serving;
                    vec![Action::ResumeAccepting]
                }
                TenureMode::Serving => Vec::new(),
            },
            Phase::Relinquishing(relinquishing) => match (relinquishing.stage, &relinquishing.goal)
            {
                (RelinquishStage::Sent, Goal::Release { .. }) => {
                    let relinquishing = relinquishing.clone();
                    self.reclaim(relinquishing)
                }
                (RelinquishStage::Sent, Goal::Delete) | (RelinquishStage::Reclaiming, _) => {
                    Vec::new()
                }
            },
            Phase::Away | Phase::Taking(_) | Phase::Deleted | Phase::Lost => Vec::new(),
        }
    }

    /// Sends the same record again; an earlier sending of it may still be applied.
    pub(super) fn say_again(&mut self, relinquishing: Relinquishing) -> Vec<Action> {
        let attempt = self.next_attempt();
        let transaction = self.last_word(&relinquishing);
        self.phase = Phase::Relinquishing(Relinquishing {
            attempt,
            unsettled: true,
            ..relinquishing
        });
        vec![Action::Transact {
            attempt,
            transaction,
        }]
    }

    /// Continues the tenure that ended for Released or Deleted, because the store did not apply
    /// that record and never will. The state in memory is current, because this holder has held the
    /// fence all the time.
    fn resume_tenure(
        &mut self,
        relinquishing: &Relinquishing,
        fence: Revision,
        now: Time,
    ) -> Vec<Action> {
        self.phase = Phase::Held(Held {
            tenure: relinquishing.suspended,
            fence,
            serve_from: now,
            head: Some(relinquishing.head),
            batch: Batch::None,
            mode: TenureMode::Serving,
            rejections: relinquishing.rejections,
        });
        vec![
            Action::OpenTenure {
                tenure: relinquishing.suspended,
                serve_from: now,
                load: Load::Kept {
                    head: relinquishing.head,
                },
            },
            Action::ResumeAccepting,
        ]
    }

    /// Puts Held over the record that Released was to replace: only one of the two puts can be
    /// applied.
    pub(super) fn reclaim(&mut self, relinquishing: Relinquishing) -> Vec<Action> {
        let attempt = self.next_attempt();
        let transaction = self.put_again(relinquishing.suspended.epoch, relinquishing.fence);
        let stage = RelinquishStage::Reclaiming;
        self.phase = Phase::Relinquishing(Relinquishing {
            attempt,
            stage,
            ..relinquishing
        });
        vec![Action::Transact {
            attempt,
            transaction,
        }]
    }

    pub(super) fn parted_done(
        &mut self,
        now: Time,
        relinquishing: Relinquishing,
        outcome: Outcome,
    ) -> Vec<Action> {
        match (outcome, relinquishing.stage) {
            (Outcome::Applied(revision), RelinquishStage::Sent) => {
                let record = self.last_word(&relinquishing).writes.pop();
                let fence = record.and_then(|write| match write {
                    Write::PutFence(value) => Some(value),
                    Write::PutMember { .. }
                    | Write::DeleteMember(_)
                    | Write::PutTerms(_)
                    | Write::PutAdoption { .. } => None,
                });
                let fence = fence.map(|value| crate::Observed { value, revision });
                self.gone_from(&relinquishing.goal, fence, revision)
            }
            (Outcome::Applied(revision), RelinquishStage::Reclaiming) => {
                self.resume_tenure(&relinquishing, revision, now)
            }
            (Outcome::Refused(refusal), stage) => {
                self.parted_refused(now, relinquishing, stage, &refusal)
            }
            (Outcome::Unknown, RelinquishStage::Sent)
                if !self.rules.keep(Rule::ReleaseSettledByWrite) =>
            {
                let fence = relinquishing.fence;
                self.resume_tenure(&relinquishing, fence, now)
            }
            // This reply is final, and so were all earlier ones: the record was not applied. A
            // store that is full refuses it like every other write, and the plane continues as
            // before.
            (Outcome::Rejected, RelinquishStage::Sent) if !relinquishing.unsettled => {
                let fence = relinquishing.fence;
                let actions = self.resume_tenure(&relinquishing, fence, now);
                self.count_rejection();
                actions
            }
            // Sends the same record again until the store's reply is final. No tenure is open in
            // the meantime.
            (Outcome::Unknown | Outcome::Rejected, RelinquishStage::Sent) => {
                self.say_again(relinquishing)
            }
            (Outcome::Unknown | Outcome::Rejected, RelinquishStage::Reclaiming) => {
                self.reclaim(relinquishing)
            }
        }
    }

    fn parted_refused(
        &mut self,
        now: Time,
        relinquishing: Relinquishing,
        stage: RelinquishStage,
        refusal: &Refusal,
    ) -> Vec<Action> {
        if !self.lives(refusal) {
            return self.lose(Some(refusal));
        }
        // An earlier sending of the same record was applied.
        let landed = refusal.fence.as_ref().filter(|observed| {
            let fence = &observed.value;
            let own = fence.holder == self.me && fence.epoch == relinquishing.suspended.epoch;
            own && fence.state != FenceState::Held
        });
        if let Some(observed) = landed {
            let observed = observed.clone();
            let revision = observed.revision;
            return self.gone_from(&relinquishing.goal, Some(observed), revision);
        }
        match (
            self.own_record(refusal, relinquishing.suspended.epoch),
            stage,
        ) {
            // An earlier reclaim was applied, so Released can no longer be.
            (Some(revision), RelinquishStage::Reclaiming) => {
                self.resume_tenure(&relinquishing, revision, now)
            }
            // Released was applied, and another replica has taken the plane since; or its fence
            // record was removed.
            (Some(_), RelinquishStage::Sent) | (None, _) => {
                self.phase = Phase::Away;
                vec![Action::Released {
                    fence: refusal.fence.clone(),
                }]
            }
        }
    }

    fn gone_from(
        &mut self,
        goal: &Goal,
        fence: Option<crate::Observed<Fence>>,
        revision: Revision,
    ) -> Vec<Action> {
        match goal {
            Goal::Release { .. } => {
                self.phase = Phase::Away;
                vec![Action::Released { fence }]
            }
            Goal::Delete => {
                self.phase = Phase::Deleted;
                vec![Action::RemoveRange { fence: revision }]
            }
        }
    }
}
