//! The [`CommitGuard`] of one tenure: how a plane's committer steps the fence's machine, and how an
//! answer checks without a lock whether it may be sent. Every decision is the machine's.

use super::{FenceDriver, Inner, NO_TENURE};
use crate::membership::own_life::OwnLife;
use crate::transactions::{guard_compares, refusal, revision, stored};
use async_trait::async_trait;
use parking_lot::MutexGuard;
use polyplane_fencing::{
    Action, CommitPermit, Compare, Event, LeaseStatus, Outcome, Rule, Tenure, TenureEnd, Time,
};
use polyplane_plane::{
    Answerable, BarrierError, CommitGuard, Intake, NotAnswerable, NotDone, SendPermit, first_change,
};
use polyplane_storage::{ReadError, Revision};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;
use tokio::time::{Instant, sleep_until};

/// The guard of one plane for one tenure.
///
/// It compares the fence's revision and the creation of this replica's member key. Each
/// acknowledged commit proves the read lease as of the time at which it was sent (PROTOCOL 9).
pub(crate) struct RingGuard {
    fence: Arc<FenceDriver>,
    tenure: Tenure,
    opening: u64,
    /// The time at which the part under way was sent, in nanoseconds of the clock.
    sent: AtomicU64,
}

/// The answer to whether an answer may be sent.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Right {
    /// It may be sent now.
    Open,
    /// Not before this time.
    NotBefore(Time),
    /// Not before the read lease is proven again.
    Unproven,
    /// Never under this tenure.
    Ended,
}

/// The task that sends the barrier, which is the put of the fence after a part of unknown outcome.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Barriers {
    /// The caller of this step, by [`CommitGuard::barrier`].
    Caller,
    /// The slot's task.
    SlotTask,
}

impl RingGuard {
    /// Returns the guard of a tenure that has just been opened.
    pub(crate) fn new(fence: Arc<FenceDriver>, tenure: Tenure) -> Self {
        let opening = fence.opening.load(Ordering::Acquire);
        Self {
            fence,
            tenure,
            opening,
            sent: AtomicU64::new(0),
        }
    }

    /// Returns whether the tenure is still open.
    pub(crate) fn holds(&self) -> bool {
        self.right() != Right::Ended
    }

    fn life(&self) -> &OwnLife {
        &self.fence.life
    }

    /// Returns whether an answer may be sent now. This is the lock-free form of
    /// [`PlaneFence::answer`](polyplane_fencing::PlaneFence::answer): the same tenure is open, its
    /// wait is over, and the replica's read lease runs. That the plane is loaded needs no check,
    /// because a guard is used only after that.
    fn right(&self) -> Right {
        let fence = &self.fence;
        let from = fence.answers_from.load(Ordering::Acquire);
        let same = fence.opening.load(Ordering::Acquire) == self.opening;
        if from == NO_TENURE || !same {
            return Right::Ended;
        }
        let now = fence.life.now();
        match fence.life.status(now) {
            LeaseStatus::Over => Right::Ended,
            LeaseStatus::Open | LeaseStatus::Lapsed if now.as_nanos() < from => {
                Right::NotBefore(Time::from_nanos(from))
            }
            LeaseStatus::Open => Right::Open,
            LeaseStatus::Lapsed => Right::Unproven,
        }
    }

    /// Returns [`Self::right`] for an answer of the plane. A test can take out the rule that an
    /// answer needs a tenure.
    fn right_to_answer(&self) -> Right {
        let right = self.right();
        let life = self.life();
        if right == Right::Ended
            && !life.rules().keep(Rule::AnswerNeedsTenure)
            && life.status(life.now()) == LeaseStatus::Open
        {
            return Right::Open;
        }
        right
    }

    /// Returns the answer of the machine itself, for the test that both are equal.
    #[cfg(test)]
    pub(crate) fn verdict(
        &self,
        lease: &polyplane_fencing::ReadLease,
    ) -> polyplane_fencing::Verdict {
        let inner = self.fence.inner.lock();
        inner.machine.answer(self.life().now(), lease, self.tenure)
    }

    /// Returns the machine, if the tenure is still open in it.
    fn machine(&self) -> Option<MutexGuard<'_, Inner>> {
        let inner = self.fence.inner.lock();
        (inner.machine.tenure() == Some(self.tenure)).then_some(inner)
    }

    /// Steps the machine for the committer, if the tenure is still open. Actions for the slot's
    /// task are deferred.
    fn step(&self, event: Event, barriers: Barriers) {
        let Some(mut inner) = self.machine() else {
            return;
        };
        if let Event::Landed { at } = &event {
            inner.head = inner.head.max(stored(*at));
        }
        let actions = inner.machine.step(self.life().now(), event);
        self.absorb(&mut inner, actions, barriers);
        drop(inner);
        self.fence.changed.notify_waiters();
    }

    /// Distributes the actions of a step: a barrier to its sender, the others to the slot's task.
    fn absorb(&self, inner: &mut Inner, actions: Vec<Action>, barriers: Barriers) {
        self.fence.note(inner, &actions);
        for action in actions {
            match action {
                Action::Transact {
                    attempt,
                    transaction,
                } if barriers == Barriers::Caller => inner.barrier = Some((attempt, transaction)),
                Action::EndTenure {
                    end: TenureEnd::Lost { .. },
                    ..
                }
                | Action::Settle { .. } => {}
                action @ (Action::Transact { .. }
                | Action::ReadFence
                | Action::OpenTenure { .. }
                | Action::EndTenure { .. }
                | Action::StopAccepting
                | Action::ResumeAccepting
                | Action::Stream { .. }
                | Action::Released { .. }
                | Action::RemoveRange { .. }
                | Action::AskHolder(_)
                | Action::NotTaken(_)
                | Action::NotYet { .. }) => inner.deferred.push(action),
            }
        }
    }

    /// Waits for a change that may change the answer, at most until `latest`.
    async fn changed(&self, right: Right, latest: Instant) {
        let fence = self.fence.changed.notified();
        let life = self.life().changed().notified();
        tokio::pin!(fence, life);
        fence.as_mut().enable();
        life.as_mut().enable();
        // Checked again once the waits are enabled, so that no earlier change is missed.
        let still = self.right();
        if std::mem::discriminant(&still) != std::mem::discriminant(&right) {
            return;
        }
        let until = match right {
            Right::NotBefore(from) => {
                let left = from.since(self.life().now()).as_nanos();
                latest.min(Instant::now() + Duration::from_nanos(left))
            }
            Right::Open | Right::Unproven | Right::Ended => latest,
        };
        tokio::select! {
            // The caller checks everything again, so the order does not matter.
            biased;
            () = fence => {}
            () = life => {}
            () = self.life().over().cancelled() => {}
            () = sleep_until(until) => {}
        }
    }
}

#[async_trait]
impl CommitGuard for RingGuard {
    fn intake(&self) -> Intake {
        if self.life().over().is_cancelled() {
            return Intake::Ended;
        }
        self.fence.inner.lock().machine.intake(self.tenure)
    }

    fn permit(&self) -> SendPermit {
        let mut inner = self.fence.inner.lock();
        let now = self.life().now();
        if self.life().over().is_cancelled() {
            return SendPermit::Lost;
        }
        match inner.machine.commit_permit(now, self.tenure) {
            CommitPermit::Granted(guard) => {
                inner.machine.step(now, Event::CommitSent);
                if let Some(Compare::FenceAt(at)) = guard.fence() {
                    inner.compared = stored(at);
                }
                self.sent.store(now.as_nanos(), Ordering::Release);
                SendPermit::Granted(guard_compares(&guard, &self.fence.keys))
            }
            CommitPermit::Wait => SendPermit::Wait,
            CommitPermit::Moved => SendPermit::Lost,
        }
    }

    fn acknowledged(&self) {
        let sent = self.sent.load(Ordering::Acquire);
        self.life().proven(Time::from_nanos(sent));
    }

    fn landed(&self, at: Revision) {
        let at = revision(at);
        self.step(Event::Landed { at }, Barriers::SlotTask);
    }

    fn not_done(&self, outcome: NotDone) {
        let (outcome, barriers) = match outcome {
            NotDone::Refused { at, found } => {
                let refusal = refusal(at, &found, &self.fence.keys);
                (Outcome::Refused(refusal), Barriers::SlotTask)
            }
            NotDone::Rejected => (Outcome::Rejected, Barriers::SlotTask),
            NotDone::Unknown => (Outcome::Unknown, Barriers::Caller),
        };
        self.fence.watch_for_loss(&outcome);
        self.step(Event::CommitDone(outcome), barriers);
    }

    fn never_done(&self) {
        let head = revision(self.fence.inner.lock().head);
        self.step(Event::Replayed { head }, Barriers::SlotTask);
    }

    fn pause(&self) {
        self.step(Event::Pause, Barriers::SlotTask);
    }

    fn resume(&self) {
        self.step(Event::CallOff, Barriers::SlotTask);
    }

    fn is_quiescent(&self) -> bool {
        let inner = self.fence.inner.lock();
        inner.machine.is_quiescent(self.tenure)
    }

    fn store_writable(&self) {
        self.step(Event::StoreWritable, Barriers::SlotTask);
    }

    fn answerable(&self) -> Answerable {
        match self.right_to_answer() {
            Right::Open => Answerable::Yes,
            Right::NotBefore(_) | Right::Unproven => Answerable::Wait,
            Right::Ended => Answerable::Lost,
        }
    }

    async fn until_answerable(&self, deadline: Instant) -> Result<(), NotAnswerable> {
        loop {
            let right = self.right_to_answer();
            match right {
                Right::Open => return Ok(()),
                Right::Ended => return Err(NotAnswerable::Lost),
                Right::NotBefore(_) | Right::Unproven => {}
            }
            if Instant::now() >= deadline {
                return Err(NotAnswerable::Deadline);
            }
            self.changed(right, deadline).await;
        }
    }

    async fn barrier(&self) -> Result<Revision, BarrierError> {
        let (attempt, transaction) = {
            let inner = self.machine().ok_or(BarrierError::Lost)?;
            match inner.barrier.clone() {
                Some(barrier) => barrier,
                None if !self.life().rules().keep(Rule::CommitSettledByWrite) => {
                    return Ok(inner.put_at);
                }
                None => return Err(unavailable("nothing is unsettled")),
            }
        };
        let (outcome, words) = self.fence.commit(&transaction).await;
        let is_rejected = outcome == Outcome::Rejected;
        let mut inner = self.machine().ok_or(BarrierError::Lost)?;
        let done = Event::Done { attempt, outcome };
        let actions = inner.machine.step(self.life().now(), done);
        let settled = actions.iter().find_map(|action| match action {
            Action::Settle { through } => Some(*through),
            _ => None,
        });
        if settled.is_some() {
            inner.barrier = None;
        }
        let barriers = match settled {
            Some(_) => Barriers::SlotTask,
            None => Barriers::Caller,
        };
        self.absorb(&mut inner, actions, barriers);
        let lost = inner.machine.tenure() != Some(self.tenure);
        drop(inner);
        self.fence.changed.notify_waiters();
        match settled {
            Some(through) => Ok(stored(through)),
            None if lost => Err(BarrierError::Lost),
            None if is_rejected => Err(BarrierError::Rejected(words.unwrap_or_default())),
            None => Err(unavailable("the barrier got no reply")),
        }
    }

    async fn superseded(&self) -> Result<Option<Revision>, ReadError> {
        // A barrier whose reply was lost may have moved the fence too. No later part of this tenure
        // exists then.
        let compared = self.fence.inner.lock().compared;
        first_change(&self.fence.store, &self.fence.keys.fence, compared).await
    }

    async fn probe(&self) -> Result<(), BarrierError> {
        let asked = {
            let mut inner = self.machine().ok_or(BarrierError::Lost)?;
            inner.machine.step(self.life().now(), Event::Probe)
        };
        let Some(Action::Transact {
            attempt,
            transaction,
        }) = asked.into_iter().next()
        else {
            return Err(unavailable("the plane is busy"));
        };
        let (outcome, words) = self.fence.commit(&transaction).await;
        let is_final = matches!(outcome, Outcome::Applied(_) | Outcome::Refused(_));
        self.step(Event::Done { attempt, outcome }, Barriers::SlotTask);
        match (self.intake(), is_final) {
            (Intake::Ended, _) => Err(BarrierError::Lost),
            (_, true) => Ok(()),
            (_, false) => Err(unavailable(words.as_deref().unwrap_or("no reply"))),
        }
    }

    fn observed(&self) -> Revision {
        self.life().observed()
    }

    fn lost(&self) {
        if self.holds() {
            self.fence.abandon();
        }
    }
}

fn unavailable(why: &str) -> BarrierError {
    BarrierError::Unavailable(why.to_owned())
}
