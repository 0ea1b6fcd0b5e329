//! Finite answers that are let go when their client does not fetch them.
//!
//! HTTP/2 does not even ask a body for data while the client's window is closed, so a task of its
//! own watches over each such body. Knows nothing of what a body is made of, or where.

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

/// How long a finite answer may take and may lie still.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Patience {
    pub total_max: Duration,
    pub stall_max: Duration,
}

/// What may be watched over.
pub(crate) trait Finite: Send + 'static {
    fn poll_next(
        &mut self,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, BodyEnd>>>;

    fn size(&self) -> SizeHint;
}

/// A finite body that is let go when the client does not fetch it.
pub(crate) struct Guarded {
    slot: Arc<Slot>,
    watchdog: AbortHandle,
    size: SizeHint,
}

struct Slot {
    body: Mutex<Option<Box<dyn Finite>>>,
    /// How often the client's connection has asked for more.
    asked: AtomicU64,
    /// It has, and waits for the source.
    is_waiting: AtomicBool,
}

impl Guarded {
    /// Watches over `body` from now on. Must be called inside the runtime.
    pub(crate) fn new(
        body: impl Finite,
        patience: Patience,
        abandoned: Arc<AtomicCounter>,
    ) -> Self {
        let size = body.size();
        let slot = Arc::new(Slot {
            body: Mutex::new(Some(Box::new(body))),
            asked: AtomicU64::new(0),
            is_waiting: AtomicBool::new(false),
        });
        let watchdog = tokio::spawn(watch_over(Arc::clone(&slot), patience, abandoned));
        Self {
            slot,
            watchdog: watchdog.abort_handle(),
            size,
        }
    }

    pub(crate) fn poll(
        &self,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, BodyEnd>>> {
        self.slot.asked.fetch_add(1, Ordering::Relaxed);
        let polled = match &mut *self.slot.body.lock() {
            Some(body) => body.poll_next(context),
            None => Poll::Ready(Some(Err(BodyEnd::Abandoned))),
        };
        let is_waiting = polled.is_pending();
        self.slot.is_waiting.store(is_waiting, Ordering::Relaxed);
        polled
    }

    /// The size it had at first.
    pub(crate) fn size(&self) -> SizeHint {
        self.size
    }
}

impl Drop for Guarded {
    fn drop(&mut self) {
        self.watchdog.abort();
    }
}

/// Drops the body, and with it everything it pins, when time is up or the client has asked for
/// nothing for too long. A client that waits for the source does not count as slow.
async fn watch_over(slot: Arc<Slot>, patience: Patience, abandoned: Arc<AtomicCounter>) {
    let end = Instant::now() + patience.total_max;
    loop {
        let before = slot.asked.load(Ordering::Relaxed);
        let next = Instant::now() + patience.stall_max;
        tokio::time::sleep_until(next.min(end)).await;
        let asked_again = slot.asked.load(Ordering::Relaxed) != before;
        let is_stalled = !asked_again && !slot.is_waiting.load(Ordering::Relaxed);
        if is_stalled || Instant::now() >= end {
            let body = slot.body.lock().take();
            drop(body);
            abandoned.fetch_add(1, Ordering::Relaxed);
            return;
        }
    }
}
