//! Drops finite answers whose client does not read them.
//!
//! A connection does not poll a body before the client's window has room for the last frame, so a watchdog task
//! observes each such body. It frees the body and what that pins. The frames that the connection has taken are not
//! freed by that: the connection drops them when it cuts the answer (`connection::unread`). This module does not
//! know what a body is made of.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};
use std::task::{Context, Poll};
use std::time::Duration;

use bytes::Bytes;
use futures_util::task::AtomicWaker;
use http_body::{Frame, SizeHint};
use parking_lot::Mutex;
use tokio::task::AbortHandle;
use tokio::time::Instant;

use crate::answer::body::{AtomicCounter, BodyEnd};
use crate::connection::unread::{Patience, Sending};

/// The time that a client may take to read a finite answer.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ReadLimits {
    /// The longest time for the whole answer.
    pub total_max: Duration,
    /// The longest time without reading any of it.
    pub stall_max: Duration,
}

/// A body that a watchdog can observe.
pub(crate) trait Finite: Send + 'static {
    fn poll_next(
        &mut self,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, BodyEnd>>>;

    fn size(&self) -> SizeHint;

    /// Notes how the body is sent to its client.
    fn send_by(&self, _sending: &Arc<Sending>) {}
}

/// A finite body that is dropped if the client does not read it.
pub(crate) struct Guarded {
    guarded: Arc<GuardedBody>,
    watchdog: AbortHandle,
    size: SizeHint,
    stall_max: Duration,
}

struct GuardedBody {
    body: Mutex<Option<Box<dyn Finite>>>,
    /// The number of times that the client's connection has polled the body.
    polls: AtomicU64,
    /// True while the last poll waits for the source of the body, not for the client.
    is_waiting: AtomicBool,
    /// The task that waits for the source of the body.
    waiting: AtomicWaker,
    /// Where the frames go; not set if the body is sent to a peer.
    sending: OnceLock<Arc<Sending>>,
}

impl GuardedBody {
    /// Returns a number that grows whenever the client reads, be it a part of a frame.
    fn progress(&self) -> u64 {
        let written = self.sending.get().map_or(0, |sending| sending.progress());
        self.polls.load(Ordering::Relaxed).wrapping_add(written)
    }

    /// Drops the body, and with it all memory that it pins, and runs `end` before. Does neither, and returns false, if
    /// the answer has ended.
    fn abandon(&self, end: impl FnOnce()) -> bool {
        let mut locked = self.body.lock();
        let Some(body) = locked.take() else {
            return false;
        };
        // With the body locked: a connection begins its next answer only after `Guarded` has taken this one's body.
        end();
        drop(locked);
        drop(body);
        // The next poll is an error. The source would have woken the task, and is gone.
        self.waiting.wake();
        true
    }
}

impl Guarded {
    /// Starts the watchdog of `body`. Must be called inside the runtime.
    pub(crate) fn new(
        body: impl Finite,
        limits: ReadLimits,
        abandoned: Arc<AtomicCounter>,
    ) -> Self {
        let size = body.size();
        let guarded = Arc::new(GuardedBody {
            body: Mutex::new(Some(Box::new(body))),
            polls: AtomicU64::new(0),
            is_waiting: AtomicBool::new(false),
            waiting: AtomicWaker::new(),
            sending: OnceLock::new(),
        });
        let watchdog = tokio::spawn(drop_unread(Arc::clone(&guarded), limits, abandoned));
        Self {
            guarded,
            watchdog: watchdog.abort_handle(),
            size,
            stall_max: limits.stall_max,
        }
    }

    /// Notes how the body is sent to its client, and sets how long the client may leave it unread.
    pub(crate) fn send_by(&self, sending: &Arc<Sending>) {
        sending.begin(Patience::AtLeast(self.stall_max));
        if let Some(body) = &*self.guarded.body.lock() {
            body.send_by(sending);
        }
        // A body is sent once.
        drop(self.guarded.sending.set(Arc::clone(sending)));
    }

    pub(crate) fn poll(
        &self,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, BodyEnd>>> {
        self.guarded.polls.fetch_add(1, Ordering::Relaxed);
        let mut body = self.guarded.body.lock();
        let polled = match &mut *body {
            Some(body) => body.poll_next(context),
            None => Poll::Ready(Some(Err(BodyEnd::Abandoned))),
        };
        let is_waiting = polled.is_pending();
        if is_waiting {
            // While the body is locked, so that it is not dropped before.
            self.guarded.waiting.register(context.waker());
        }
        self.guarded.is_waiting.store(is_waiting, Ordering::Relaxed);
        polled
    }

    /// Returns the size of the whole body.
    pub(crate) fn size(&self) -> SizeHint {
        self.size
    }
}

impl Drop for Guarded {
    fn drop(&mut self) {
        self.watchdog.abort();
        // That does not stop a watchdog that runs at this moment on another thread: it finds no body.
        let body = self.guarded.body.lock().take();
        drop(body);
    }
}

/// Drops the body if the client takes too long for the whole body or reads nothing for too long. Time in which
/// the client waits for the source does not count as time without reading.
async fn drop_unread(guarded: Arc<GuardedBody>, limits: ReadLimits, abandoned: Arc<AtomicCounter>) {
    let end = Instant::now() + limits.total_max;
    loop {
        let before = guarded.progress();
        let next = Instant::now() + limits.stall_max;
        tokio::time::sleep_until(next.min(end)).await;
        let is_late = Instant::now() >= end;
        let has_read = guarded.progress() != before;
        let is_stalled = !has_read && !guarded.is_waiting.load(Ordering::Relaxed);
        if !is_stalled && !is_late {
            continue;
        }
        let has_abandoned = guarded.abandon(|| {
            if let Some(sending) = guarded.sending.get().filter(|_| is_late) {
                // A client that reads a byte now and then would keep what the connection has.
                sending.cut();
            }
        });
        if has_abandoned {
            abandoned.fetch_add(1, Ordering::Relaxed);
        }
        return;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LIMITS: ReadLimits = ReadLimits {
        total_max: Duration::from_secs(3600),
        stall_max: Duration::from_secs(3600),
    };

    /// A body whose source brings nothing.
    struct Silent;

    impl Finite for Silent {
        fn poll_next(
            &mut self,
            _context: &mut Context<'_>,
        ) -> Poll<Option<Result<Frame<Bytes>, BodyEnd>>> {
            Poll::Pending
        }

        fn size(&self) -> SizeHint {
            SizeHint::default()
        }
    }

    fn sent_by(sending: &Arc<Sending>) -> Guarded {
        let body = Guarded::new(Silent, LIMITS, Arc::default());
        body.send_by(sending);
        body
    }

    #[tokio::test]
    async fn a_watchdog_that_is_late_does_not_cut_the_next_answer_of_the_connection() {
        let sending = Arc::<Sending>::default();
        let first = sent_by(&sending);
        let watched = Arc::clone(&first.guarded);
        drop(first);
        let _next = sent_by(&sending);
        assert!(!watched.abandon(|| sending.cut()));
        assert!(!sending.is_cut());
    }

    #[tokio::test]
    async fn an_answer_that_is_cut_at_its_end_does_not_cut_the_next_one() {
        let sending = Arc::<Sending>::default();
        let first = sent_by(&sending);
        assert!(first.guarded.abandon(|| sending.cut()));
        assert!(sending.is_cut());
        drop(first);
        let _next = sent_by(&sending);
        assert!(!sending.is_cut());
    }
}
