//! The plane's side of its fence: the [`CommitGuard`] over the fence protocol. Owns nothing but one
//! tenure's seat; every decision is the machine's.

use crate::custody::{Right, Seat};
use crate::translate::{refusal, revision};
use async_trait::async_trait;
use polyplane_fencing::{Event, Outcome, Time};
use polyplane_plane::{
    Answerable, BarrierError, CommitGuard, Intake, NotAnswerable, NotDone, Permit,
};
use polyplane_storage::{ReadError, Revision};
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;
use tokio::time::{Instant, sleep_until};

/// The guard of one plane for one tenure.
///
/// What it compares is the fence's revision and the own member key's creation; each acknowledged
/// commit proves the read lease from when it was sent (PROTOCOL 9).
pub(crate) struct RingGuard {
    seat: Seat,
    /// When the part under way was sent, in nanoseconds of the clock.
    sent: AtomicU64,
}

impl RingGuard {
    /// The guard of the tenure a seat is for.
    pub(crate) fn new(seat: Seat) -> Self {
        let sent = AtomicU64::new(0);
        Self { seat, sent }
    }

    /// Whether the tenure is still open.
    pub(crate) fn holds(&self) -> bool {
        self.seat.right() != Right::Ended
    }

    /// The seat, for a test.
    #[cfg(test)]
    pub(crate) fn seat(&self) -> &Seat {
        &self.seat
    }

    /// Waits for something that may change the answer, at most until `latest`.
    async fn changed(&self, right: Right, latest: Option<Instant>) {
        let custody = self.seat.custody().changed().notified();
        let life = self.seat.life().changed().notified();
        tokio::pin!(custody, life);
        custody.as_mut().enable();
        life.as_mut().enable();
        // What changed before the waits began is seen here.
        let still = self.seat.right();
        if std::mem::discriminant(&still) != std::mem::discriminant(&right) {
            return;
        }
        let wait = match right {
            Right::NotBefore(from) => {
                let left = from.since(self.seat.life().now()).as_nanos();
                Some(Instant::now() + Duration::from_nanos(left))
            }
            Right::Open | Right::Unproven | Right::Ended => None,
        };
        let until = match (wait, latest) {
            (Some(wait), Some(latest)) => Some(wait.min(latest)),
            (wait, latest) => wait.or(latest),
        };
        let timer = async {
            match until {
                Some(until) => sleep_until(until).await,
                None => std::future::pending().await,
            }
        };
        tokio::select! {
            // Whatever changed first; all are looked at again.
            biased;
            () = custody => {}
            () = life => {}
            () = self.seat.life().over().cancelled() => {}
            () = timer => {}
        }
    }
}

#[async_trait]
impl CommitGuard for RingGuard {
    fn intake(&self) -> Intake {
        self.seat.intake()
    }

    fn permit(&self) -> Permit {
        let (permit, now) = self.seat.permit();
        if let Permit::Granted(_) = permit {
            self.sent.store(now.as_nanos(), Ordering::Release);
        }
        permit
    }

    fn acknowledged(&self) {
        let sent = self.sent.load(Ordering::Acquire);
        self.seat.life().proven(Time::from_nanos(sent));
    }

    fn landed(&self, at: Revision) {
        let at = revision(at);
        self.seat.step(Event::Landed { at }, false);
    }

    fn not_done(&self, outcome: NotDone) {
        self.seat.not_done(match outcome {
            NotDone::Refused { at, found } => {
                let keys = self.seat.custody().keys();
                Outcome::Refused(refusal(at, &found, keys))
            }
            NotDone::Rejected => Outcome::Rejected,
            NotDone::Unknown => Outcome::Unknown,
        });
    }

    fn never_done(&self) {
        self.seat.never_done();
    }

    fn pause(&self) {
        self.seat.step(Event::Pause, false);
    }

    fn resume(&self) {
        self.seat.step(Event::CallOff, false);
    }

    fn stands_still(&self) -> bool {
        self.seat.stands_still()
    }

    fn store_writable(&self) {
        self.seat.step(Event::StoreWritable, false);
    }

    fn answerable(&self) -> Answerable {
        match self.seat.right_to_answer() {
            Right::Open => Answerable::Yes,
            Right::NotBefore(_) | Right::Unproven => Answerable::Wait,
            Right::Ended => Answerable::Lost,
        }
    }

    async fn until_answerable(&self, deadline: Instant) -> Result<(), NotAnswerable> {
        loop {
            let right = self.seat.right_to_answer();
            match right {
                Right::Open => return Ok(()),
                Right::Ended => return Err(NotAnswerable::Lost),
                Right::NotBefore(_) | Right::Unproven => {}
            }
            if Instant::now() >= deadline {
                return Err(NotAnswerable::Deadline);
            }
            self.changed(right, Some(deadline)).await;
        }
    }

    async fn barrier(&self) -> Result<Revision, BarrierError> {
        self.seat.barrier().await
    }

    async fn superseded(&self) -> Result<Option<Revision>, ReadError> {
        self.seat.superseded().await
    }

    async fn probe(&self) -> Result<(), BarrierError> {
        self.seat.probe().await
    }

    fn observed(&self) -> Revision {
        self.seat.life().observed()
    }

    fn lost(&self) {
        self.seat.lost();
    }
}
