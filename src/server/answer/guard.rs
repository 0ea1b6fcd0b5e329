//! Drops finite answers whose client does not read them.
//!
//! HTTP/2 does not poll a body while the client's window is closed, so a watchdog task observes
//! each such body. This module does not know what a body is made of.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::task::{Context, Poll};
use std::time::Duration;

use bytes::Bytes;
use http_body::{Frame, SizeHint};
use parking_lot::Mutex;
use tokio::task::AbortHandle;
use tokio::time::Instant;

use crate::answer::body::{AtomicCounter, BodyEnd};

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
}

/// A finite body that is dropped if the client does not read it.
pub(crate) struct Guarded {
    guarded: Arc<GuardedBody>,
    watchdog: AbortHandle,
    size: SizeHint,
}

struct GuardedBody {
    body: Mutex<Option<Box<dyn Finite>>>,
    /// The number of times that the client's connection has polled the body.
    polls: AtomicU64,
    /// True while the last poll waits for the source of the body, not for the client.
    is_waiting: AtomicBool,
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
        });
        let watchdog = tokio::spawn(drop_unread(Arc::clone(&guarded), limits, abandoned));
        Self {
            guarded,
            watchdog: watchdog.abort_handle(),
            size,
        }
    }

    pub(crate) fn poll(
        &self,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, BodyEnd>>> {
        self.guarded.polls.fetch_add(1, Ordering::Relaxed);
        let polled = match &mut *self.guarded.body.lock() {
            Some(body) => body.poll_next(context),
            None => Poll::Ready(Some(Err(BodyEnd::Abandoned))),
        };
        let is_waiting = polled.is_pending();
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
    }
}

/// Drops the body, and with it all memory that it pins, if the client takes too long for the whole
/// body or reads nothing for too long. Time in which the client waits for the source does not
/// count.
async fn drop_unread(guarded: Arc<GuardedBody>, limits: ReadLimits, abandoned: Arc<AtomicCounter>) {
    let end = Instant::now() + limits.total_max;
    loop {
        let before = guarded.polls.load(Ordering::Relaxed);
        let next = Instant::now() + limits.stall_max;
        tokio::time::sleep_until(next.min(end)).await;
        let polled_again = guarded.polls.load(Ordering::Relaxed) != before;
        let is_stalled = !polled_again && !guarded.is_waiting.load(Ordering::Relaxed);
        if is_stalled || Instant::now() >= end {
            let body = guarded.body.lock().take();
            drop(body);
            abandoned.fetch_add(1, Ordering::Relaxed);
            return;
        }
    }
}
