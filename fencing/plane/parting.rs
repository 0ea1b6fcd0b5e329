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

    fn leave(&mut self, now: Time, goal: Goal, stream: StreamStage) -> Vec<Action> {
        let keep_wait = self.rules.keep(Rule::ReleaseAfterWait);
        let Phase::Held(held) = &mut self.phase else {
            return Vec::new();
        };
        let waiting = keep_wait && now < held.serve_from;
        if waiting || held.head.is_none() {
            return vec![Action::NotYet {
                serve_from: held.serve_from,
            }];
        }
        match (&held.course, &goal) {
            (
                Course::Leaving {
                    goal: Goal::Release { .. },
                    ..
                },
                Goal::Delete,
            )
            | (Course::Serving, _) => {}
            (Course::Leaving { .. }, _) => return Vec::new(),
        }
        held.course = Course::Leaving { goal, stream };
        let mut actions = vec![Action::StopAccepting];
        actions.extend(self.go_on_leaving());
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
            epoch: held.tenure.epoch,
            fence: held.fence,
            head,
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
            epoch: parted.epoch,
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
                Course::Leaving {
                    goal: Goal::Release { .. },
                    ..
                } => {
                    held.course = Course::Serving;
                    vec![Action::ResumeAccepting]
                }
                Course::Leaving {
                    goal: Goal::Delete, ..
                }
                | Course::Serving => Vec::new(),
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

    /// Puts Held over the record that Released was to replace: one of the two wins.
    fn reclaim(&mut self, parted: Parted) -> Vec<Action> {
        let attempt = self.next_attempt();
        let transaction = self.put_again(parted.epoch, parted.fence);
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
                    Write::PutMember { .. } | Write::DeleteMember(_) | Write::PutLeaseTerms(_) => {
                        None
                    }
                });
                let fence = fence.map(|value| crate::Observed { value, revision });
                self.gone_from(&parted.goal, fence, revision)
            }
            (Outcome::Applied(revision), PartedStage::Reclaiming) => {
                self.phase = Phase::Away;
                self.open(
                    parted.epoch,
                    revision,
                    now,
                    Load::Kept { head: parted.head },
                )
            }
            (Outcome::Refused(refusal), stage) => self.parted_refused(now, parted, stage, &refusal),
            (Outcome::Unknown, PartedStage::Sent)
                if !self.rules.keep(Rule::ReleaseSettledByWrite) =>
            {
                self.phase = Phase::Away;
                self.open(
                    parted.epoch,
                    parted.fence,
                    now,
                    Load::Kept { head: parted.head },
                )
            }
            // The same words again, until the store's reply is final: no tenure is open meanwhile.
            (Outcome::Unknown | Outcome::Rejected, PartedStage::Sent) => {
                let attempt = self.next_attempt();
                let transaction = self.last_word(&parted);
                self.phase = Phase::Parted(Parted { attempt, ..parted });
                vec![Action::Transact {
                    attempt,
                    transaction,
                }]
            }
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
            let own = fence.holder == self.me && fence.epoch == parted.epoch;
            own && fence.state != FenceState::Held
        });
        if let Some(observed) = landed {
            let observed = observed.clone();
            let revision = observed.revision;
            return self.gone_from(&parted.goal, Some(observed), revision);
        }
        match (self.own_record(refusal, parted.epoch), stage) {
            // An earlier reclaim landed: Released is dead.
            (Some(revision), PartedStage::Reclaiming) => {
                self.phase = Phase::Away;
                self.open(
                    parted.epoch,
                    revision,
                    now,
                    Load::Kept { head: parted.head },
                )
            }
            // Released landed, and somebody took the plane since; or its record is removed.
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
