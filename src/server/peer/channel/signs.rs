//! Signs of life of the other side of a connection: when it is asked for one, and when it is given
//! up because none came.
//!
//! A silent peer that is a member of the ring has time, for the ring itself finds out whether it is
//! there (`ownership::membership::suspicion`). Once the ring has removed it, its planes have another
//! owner, and a write that was sent to it holds up its client until somebody says that no answer
//! comes: that is here. Reads need not wait for it, they are repeated elsewhere at once.

use std::pin::Pin;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use tokio::time::{Instant, Sleep};
use tokio_util::sync::WaitForCancellationFutureOwned;

use crate::peer::channel::stream::Broken;

/// A silent peer is asked for a sign of life after this, and has this long to give it.
const PING_INTERVAL: Duration = Duration::from_secs(2);
const PING_TIMEOUT: Duration = Duration::from_secs(3);
/// A peer that has left the ring has so many turns of [`LEFT_TURN`] for a sign of life: half a
/// second, and more when this replica itself is short of CPU, for a turn counts once however late it
/// ends. One that left in good order has settled every write before, and its answers are on their
/// way; without this limit one that stands still holds up writes for [`PING_INTERVAL`] and
/// [`PING_TIMEOUT`] together.
const LEFT_TURNS: u32 = 10;
/// One turn of waiting for a peer that has left the ring.
const LEFT_TURN: Duration = Duration::from_millis(50);

/// What is to be done now.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Due {
    /// The other side is to be asked for a sign of life.
    Ask,
    /// It has left the ring: nothing new is sent to it, and what it still answers is read.
    Close,
}

/// What one side of a connection knows of the other's life.
pub(super) struct Signs {
    heard_at: Instant,
    asked_at: Option<Instant>,
    alarm: Pin<Box<Sleep>>,
    /// Comes when the other side leaves the ring; none for who may not, or has.
    gone: Option<Pin<Box<WaitForCancellationFutureOwned>>>,
    /// Turns without a sign of life that it has left since it left the ring; none while it is a
    /// member.
    turns_left: Option<u32>,
}

impl Signs {
    pub(super) fn new() -> Self {
        let now = Instant::now();
        Self {
            heard_at: now,
            asked_at: None,
            alarm: Box::pin(tokio::time::sleep_until(now + PING_INTERVAL)),
            gone: None,
            turns_left: None,
        }
    }

    /// The other side is a member of the ring until `gone` comes.
    pub(super) fn of_member_until(&mut self, gone: WaitForCancellationFutureOwned) {
        self.gone = Some(Box::pin(gone));
    }

    /// Something came.
    pub(super) fn heard(&mut self) {
        self.heard_at = Instant::now();
        self.asked_at = None;
        if let Some(turns_left) = &mut self.turns_left {
            *turns_left = LEFT_TURNS;
        }
    }

    /// Waits until something is to be done. What has come is to be [heard](Self::heard) before.
    ///
    /// # Errors
    /// When it was silent for too long.
    pub(super) fn poll(&mut self, context: &mut Context<'_>) -> Poll<Result<Due, Broken>> {
        if let Some(gone) = &mut self.gone
            && gone.as_mut().poll(context).is_ready()
        {
            self.gone = None;
            self.turns_left = Some(LEFT_TURNS);
            self.alarm.as_mut().reset(Instant::now());
            return Poll::Ready(Ok(Due::Close));
        }
        loop {
            ready!(self.alarm.as_mut().poll(context));
            let asks = match self.turns_left {
                Some(turns_left) => self.turn(turns_left)?,
                None => self.look()?,
            };
            if asks {
                return Poll::Ready(Ok(Due::Ask));
            }
        }
    }

    /// One turn is over of those that a peer has which left; whether it is to be asked.
    fn turn(&mut self, turns_left: u32) -> Result<bool, Broken> {
        let left = turns_left.checked_sub(1).ok_or(Broken::Silent)?;
        self.turns_left = Some(left);
        self.alarm.as_mut().reset(Instant::now() + LEFT_TURN);
        Ok(turns_left == LEFT_TURNS)
    }

    /// The alarm went off for a member; whether it is to be asked.
    fn look(&mut self) -> Result<bool, Broken> {
        let now = Instant::now();
        let (asks, next) = match self.asked_at {
            Some(asked_at) if now >= asked_at + PING_TIMEOUT => return Err(Broken::Silent),
            Some(asked_at) => (false, asked_at + PING_TIMEOUT),
            None if now >= self.heard_at + PING_INTERVAL => {
                self.asked_at = Some(now);
                (true, now + PING_TIMEOUT)
            }
            None => (false, self.heard_at + PING_INTERVAL),
        };
        self.alarm.as_mut().reset(next);
        Ok(asks)
    }
}
