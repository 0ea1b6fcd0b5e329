//! Decides when one side of a connection pings the other, and when it treats a silent peer as gone.
//!
//! A silent peer that is a member of the ring gets several seconds, because the ring finds out by
//! itself whether the peer is alive (`ownership::membership::suspicion`). Once the ring has removed
//! the peer, its planes have another owner, and a client whose write was sent to the peer waits
//! until this module reports that no answer will come. Reads need not wait: they are repeated
//! elsewhere at once.

use std::pin::Pin;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use tokio::time::{Instant, Sleep};
use tokio_util::sync::WaitForCancellationFutureOwned;

use crate::peer::channel::stream::Broken;

/// How long a peer may be silent before it gets a ping. A shorter time would load idle connections.
const PING_INTERVAL: Duration = Duration::from_secs(2);
/// How long a member of the ring may take to answer a ping before the connection ends. Less would
/// break connections to a peer that only pauses.
const PING_TIMEOUT: Duration = Duration::from_secs(3);
/// Turns of [`LEFT_TURN`] in which a peer that has left the ring may be silent: half a second, and
/// more when this replica itself is short of CPU, because a turn counts once however late it ends.
/// A peer that left in good order has settled every write, and its answers are on their way.
/// Without this limit, writes sent to a peer that hangs would wait for [`PING_INTERVAL`] and
/// [`PING_TIMEOUT`] together.
const LEFT_TURNS: u32 = 10;
/// Length of one turn of silence of a peer that has left the ring. Shorter turns would count time
/// in which this replica itself does not run.
const LEFT_TURN: Duration = Duration::from_millis(50);

/// The action that is due on a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum KeepaliveAction {
    /// Send a ping.
    Ping,
    /// Begin no new stream, because the peer has left the ring. Answers that are arriving are still
    /// read.
    Close,
}

/// The time since one side of a connection last received bytes, and the pings that it has sent.
pub(super) struct Keepalive {
    received_at: Instant,
    pinged_at: Option<Instant>,
    alarm: Pin<Box<Sleep>>,
    /// Resolves when the peer leaves the ring; `None` if it has left, or if nobody reports that.
    gone: Option<Pin<Box<WaitForCancellationFutureOwned>>>,
    /// The silent turns that remain for a peer that has left the ring; `None` while it is a member.
    turns_left: Option<u32>,
}

impl Keepalive {
    pub(super) fn new() -> Self {
        let now = Instant::now();
        Self {
            received_at: now,
            pinged_at: None,
            alarm: Box::pin(tokio::time::sleep_until(now + PING_INTERVAL)),
            gone: None,
            turns_left: None,
        }
    }

    /// Treats the peer as a member of the ring until `gone` resolves.
    pub(super) fn of_member_until(&mut self, gone: WaitForCancellationFutureOwned) {
        self.gone = Some(Box::pin(gone));
    }

    /// Restarts the measurement of silence, because bytes have arrived.
    pub(super) fn received(&mut self) {
        self.received_at = Instant::now();
        self.pinged_at = None;
        if let Some(turns_left) = &mut self.turns_left {
            *turns_left = LEFT_TURNS;
        }
    }

    /// Waits for the next action. The caller reads the socket first and reports bytes by
    /// [`Self::received`], so that bytes that wait in the socket count.
    ///
    /// # Errors
    /// Returns [`Broken::Silent`] if the peer was silent for too long.
    pub(super) fn poll(
        &mut self,
        context: &mut Context<'_>,
    ) -> Poll<Result<KeepaliveAction, Broken>> {
        if let Some(gone) = &mut self.gone
            && gone.as_mut().poll(context).is_ready()
        {
            self.gone = None;
            self.turns_left = Some(LEFT_TURNS);
            self.alarm.as_mut().reset(Instant::now());
            return Poll::Ready(Ok(KeepaliveAction::Close));
        }
        loop {
            ready!(self.alarm.as_mut().poll(context));
            let pings = match self.turns_left {
                Some(turns_left) => self.on_turn_after_leaving(turns_left)?,
                None => self.on_alarm()?,
            };
            if pings {
                return Poll::Ready(Ok(KeepaliveAction::Ping));
            }
        }
    }

    /// Ends a turn of a peer that has left the ring. Returns whether to ping the peer.
    fn on_turn_after_leaving(&mut self, turns_left: u32) -> Result<bool, Broken> {
        let left = turns_left.checked_sub(1).ok_or(Broken::Silent)?;
        self.turns_left = Some(left);
        self.alarm.as_mut().reset(Instant::now() + LEFT_TURN);
        Ok(turns_left == LEFT_TURNS)
    }

    /// Handles the alarm for a peer that is a member. Returns whether to ping the peer.
    fn on_alarm(&mut self) -> Result<bool, Broken> {
        let now = Instant::now();
        let (pings, next) = match self.pinged_at {
            Some(pinged_at) if now >= pinged_at + PING_TIMEOUT => return Err(Broken::Silent),
            Some(pinged_at) => (false, pinged_at + PING_TIMEOUT),
            None if now >= self.received_at + PING_INTERVAL => {
                self.pinged_at = Some(now);
                (true, now + PING_TIMEOUT)
            }
            None => (false, self.received_at + PING_INTERVAL),
        };
        self.alarm.as_mut().reset(next);
        Ok(pings)
    }
}
