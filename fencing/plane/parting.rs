//! Hand-off and deletion: stop accepting, settle, stream, end the tenure, send the last word.
//! Until that word is sent the hand-off may be called off; afterwards only by a write to the fence.

use alloc::vec;
use alloc::vec::Vec;

use polyplane_ring::ReplicaId;

use crate::plane::{
    Action, Batch, Course, Goal, Held, Load, Parted, PartedStage, Phase, PlaneFence, StreamStage,
    Streaming, TenureEnd,
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

    /// Nothing is sent and writes wait: the head stays as it is once what is in flight has settled.
    pub(super) fn pause(&mut self) -> Vec<Action> {
        match &mut self.phase {
            Phase::Held(held) => {
                held.course = Course::Paused;
                vec![Action::StopAccepting]
            }
            Phase::Away | Phase::Taking(_) | Phase::Parted(_) | Phase::Deleted | Phase::Lost => {
                Vec::new()
            }
        }
    }

    fn leave(&mut self, now: Time, goal: Goal, stream: StreamStage) -> Vec<Action> {
        let keep_wait = self.rules.keep(Rule::ReleaseAfterWait);
        let held = match &mut self.phase {
            Phase::Held(held) => held,
            // The word was sent by a driver that is gone. It has to become final first.
            Phase::Parted(parted) if parted.stage == PartedStage::Sent => {
                let parted = parted.clone();
                return self.say_again(parted);
            }
            Phase::Parted(parted) => {
                let parted = parted.clone();
                return self.reclaim(parted);
            }
            Phase::Away | Phase::Taking(_) | Phase::Deleted | Phase::Lost => return Vec::new(),
        };
        let waiting = keep_wait && now < held.serve_from;
        if waiting || held.head.is_none() {
            return vec![Action::NotYet {
                serve_from: held.serve_from,
            }];
        }
        // There is one driver at a time. It restarts a release that an earlier driver has not sent.
        held.course = Course::Leaving { goal, stream };
        let probing = matches!(held.batch, Batch::Probe { .. });
        let mut actions = vec![Action::StopAccepting];
        // A probe may be the last one's of a driver that is gone; a further one settles it too.
        actions.extend(match probing {
            true => self.probe(),
            false => self.go_on_leaving(),
        });
        actions
    }

    /// The next step of leaving, if the plane is leaving and nothing is in flight.
    pub(super) fn go_on_leaving(&mut self) -> Vec<Action> {
        let Phase::Held(held) = &mut self.phase else {
            return Vec::new();
        };
        let (Batch::None, Some(head)) = (&held.batch, held.head) else {
            return Vec::new();
        };
        let Course::Leaving { stream, .. } = &mut held.course else {
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
            && let Course::Leaving { stream, .. } = &mut held.course
            && *stream == StreamStage::Running
        {
            *stream = StreamStage::Done;
        }
        self.go_on_leaving()
    }

    fn part(&mut self, held: Held, head: Revision) -> Vec<Action> {
        let Course::Leaving { goal, .. } = held.course else {
            return Vec::new();
        };
        let ends = self.rules.keep(Rule::TenureEndsBeforeReleased);
        let attempt = self.next_attempt();
        let parted = Parted {
            attempt,
            stage: PartedStage::Sent,
            goal,
            suspended: held.tenure,
            fence: held.fence,
            head,
            rejections: held.rejections,
            unsettled: false,
            tenure: (!ends).then_some(held.tenure),
        };
        let transaction = self.last_word(&parted);
        self.phase = Phase::Parted(parted);
        assert!(
            !ends || self.tenure().is_none(),
            "F7: a tenure ends before its Released is sent"
        );
        let end = TenureEnd::Parting;
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

    fn last_word(&self, parted: &Parted) -> Transaction {
        let state = match &parted.goal {
            Goal::Release { successor } => FenceState::Released {
                head: parted.head,
                successor: successor.clone(),
            },
            Goal::Delete => FenceState::Deleted,
        };
        let record = Fence {
            holder: self.me.clone(),
            epoch: parted.suspended.epoch,
            state,
        };
        Transaction {
            compares: vec![
                Compare::FenceAt(parted.fence),
                Compare::MemberIs(self.me.clone()),
            ],
            writes: vec![Write::PutFence(record)],
        }
    }

    pub(super) fn call_off(&mut self) -> Vec<Action> {
        match &mut self.phase {
            Phase::Held(held) => match &held.course {
                Course::Paused | Course::Leaving { .. } => {
                    held.course = Course::Serving;
                    vec![Action::ResumeAccepting]
                }
                Course::Serving => Vec::new(),
            },
            Phase::Parted(parted) => match (parted.stage, &parted.goal) {
                (PartedStage::Sent, Goal::Release { .. }) => {
                    let parted = parted.clone();
                    self.reclaim(parted)
                }
                (PartedStage::Sent, Goal::Delete) | (PartedStage::Reclaiming, _) => Vec::new(),
            },
            Phase::Away | Phase::Taking(_) | Phase::Deleted | Phase::Lost => Vec::new(),
        }
    }

    /// The same word once more; an earlier sending of it may still land.
    pub(super) fn say_again(&mut self, parted: Parted) -> Vec<Action> {
        let attempt = self.next_attempt();
        let transaction = self.last_word(&parted);
        self.phase = Phase::Parted(Parted {
            attempt,
            unsettled: true,
            ..parted
        });
        vec![Action::Transact {
            attempt,
            transaction,
        }]
    }

    /// The last word was not applied and never will be: the tenure that it ended continues, with the state in
    /// memory, for the fence was this holder's all the while.
    fn go_on(&mut self, parted: &Parted, fence: Revision, now: Time) -> Vec<Action> {
        self.phase = Phase::Held(Held {
            tenure: parted.suspended,
            fence,
            serve_from: now,
            head: Some(parted.head),
            batch: Batch::None,
            course: Course::Serving,
            rejections: parted.rejections,
        });
        vec![
            Action::OpenTenure {
                tenure: parted.suspended,
                serve_from: now,
                load: Load::Kept { head: parted.head },
            },
            Action::ResumeAccepting,
        ]
    }

    /// Puts Held over the record that Released was to replace: one of the two wins.
    pub(super) fn reclaim(&mut self, parted: Parted) -> Vec<Action> {
        let attempt = self.next_attempt();
        let transaction = self.put_again(parted.suspended.epoch, parted.fence);
        let stage = PartedStage::Reclaiming;
        self.phase = Phase::Parted(Parted {
            attempt,
            stage,
            ..parted
        });
        vec![Action::Transact {
            attempt,
            transaction,
        }]
    }

    pub(super) fn parted_done(
        &mut self,
        now: Time,
        parted: Parted,
        outcome: Outcome,
    ) -> Vec<Action> {
        match (outcome, parted.stage) {
            (Outcome::Applied(revision), PartedStage::Sent) => {
                let record = self.last_word(&parted).writes.pop();
                let fence = record.and_then(|write| match write {
                    Write::PutFence(value) => Some(value),
                    Write::PutMember { .. }
                    | Write::DeleteMember(_)
                    | Write::PutTerms(_)
                    | Write::PutAdoption { .. } => None,
                });
                let fence = fence.map(|value| crate::Observed { value, revision });
                self.gone_from(&parted.goal, fence, revision)
            }
            (Outcome::Applied(revision), PartedStage::Reclaiming) => {
                self.go_on(&parted, revision, now)
            }
            (Outcome::Refused(refusal), stage) => self.parted_refused(now, parted, stage, &refusal),
            (Outcome::Unknown, PartedStage::Sent)
                if !self.rules.keep(Rule::ReleaseSettledByWrite) =>
            {
                let fence = parted.fence;
                self.go_on(&parted, fence, now)
            }
            // Final, and so were all before it: nothing was said. A store that is full refuses the
            // last word like every other write, and the plane goes on as it was.
            (Outcome::Rejected, PartedStage::Sent) if !parted.unsettled => {
                let fence = parted.fence;
                let actions = self.go_on(&parted, fence, now);
                self.count_rejection();
                actions
            }
            // The same words again, until the store's reply is final: no tenure is open meanwhile.
            (Outcome::Unknown | Outcome::Rejected, PartedStage::Sent) => self.say_again(parted),
            (Outcome::Unknown | Outcome::Rejected, PartedStage::Reclaiming) => self.reclaim(parted),
        }
    }

    fn parted_refused(
        &mut self,
        now: Time,
        parted: Parted,
        stage: PartedStage,
        refusal: &Refusal,
    ) -> Vec<Action> {
        if !self.lives(refusal) {
            return self.lose(Some(refusal));
        }
        // An earlier sending of the same word landed.
        let landed = refusal.fence.as_ref().filter(|observed| {
            let fence = &observed.value;
            let own = fence.holder == self.me && fence.epoch == parted.suspended.epoch;
            own && fence.state != FenceState::Held
        });
        if let Some(observed) = landed {
            let observed = observed.clone();
            let revision = observed.revision;
            return self.gone_from(&parted.goal, Some(observed), revision);
        }
        match (self.own_record(refusal, parted.suspended.epoch), stage) {
            // An earlier reclaim landed: Released is dead.
            (Some(revision), PartedStage::Reclaiming) => self.go_on(&parted, revision, now),
            // Released landed, and another replica took the plane since; or its record is removed.
            (Some(_), PartedStage::Sent) | (None, _) => {
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
