//! The seats of a watch while its initial events are written.
//!
//! As upstream, a watch leaves its seats once its initial events are out. Upstream puts them into a buffer
//! without asking whether the client reads. Here they are made as the client reads them, and a connection
//! does not poll a body for which its client gives no room: such a watch would have its seats until it is
//! cut, if ever. So a watch that is not polled for a while leaves its seats too. It makes no events
//! meanwhile, and what it makes later is charged to its plane.
//!
//! This module does not know what a seat is.

use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::task::{Context, Poll};
use std::time::Duration;

use futures_util::Stream;
use parking_lot::Mutex;
use polyplane_registry::{StreamEnd, WatchChunk, WatchProgress, WatchStream};
use tokio::task::AbortHandle;
use tokio::time::sleep;

/// Longest time for which a watch keeps its seats without being polled. With more, a client that opens
/// watches and reads none of them would keep others of its priority level waiting; with much less, one on a
/// slow network would list a collection without seats.
const UNREAD_MAX: Duration = Duration::from_secs(1);

/// A watch that has the seats of its request until its initial events are written, or its client does not
/// read them.
pub(crate) struct Beginning<S> {
    stream: WatchStream,
    held: Option<Held<S>>,
}

/// Seats that end with this value, if not before.
struct Held<S> {
    seat: Arc<HeldSeat<S>>,
    watchdog: AbortHandle,
}

struct HeldSeat<S> {
    seat: Mutex<Option<S>>,
    /// The number of times that the watch was polled.
    polls: AtomicU64,
}

impl<S: Send + 'static> Beginning<S> {
    /// Lets a watch keep seats while it begins. Must be called inside the runtime.
    pub(crate) fn new(stream: WatchStream, seat: S) -> Self {
        let seat = Arc::new(HeldSeat {
            seat: Mutex::new(Some(seat)),
            polls: AtomicU64::new(0),
        });
        let watchdog = tokio::spawn(leave_unread(Arc::clone(&seat)));
        let watchdog = watchdog.abort_handle();
        Self {
            stream,
            held: Some(Held { seat, watchdog }),
        }
    }
}

impl<S> HeldSeat<S> {
    fn leave(&self) {
        let seat = self.seat.lock().take();
        // Outside the lock, because it wakes requests that wait.
        drop(seat);
    }
}

impl<S> Drop for Held<S> {
    fn drop(&mut self) {
        self.watchdog.abort();
        self.seat.leave();
    }
}

/// Leaves the seats once the watch is not polled for [`UNREAD_MAX`].
async fn leave_unread<S>(held: Arc<HeldSeat<S>>) {
    loop {
        let before = held.polls.load(Ordering::Relaxed);
        sleep(UNREAD_MAX).await;
        if held.polls.load(Ordering::Relaxed) == before {
            held.leave();
            return;
        }
    }
}

impl<S> Stream for Beginning<S> {
    type Item = Result<WatchChunk, StreamEnd>;

    fn poll_next(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        if let Some(held) = &self.held {
            held.seat.polls.fetch_add(1, Ordering::Relaxed);
        }
        let polled = self.stream.as_mut().poll_next(context);
        let begins = matches!(
            &polled,
            Poll::Ready(Some(Ok(chunk))) if chunk.progress == WatchProgress::Initial
        );
        if !begins {
            self.held = None;
        }
        polled
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    use bytes::Bytes;
    use futures_util::{StreamExt as _, stream};
    use tokio::time::advance;

    fn chunk(progress: WatchProgress) -> Result<WatchChunk, StreamEnd> {
        Ok(WatchChunk {
            bytes: Bytes::from_static(b"{}\n"),
            progress,
        })
    }

    /// Returns a watch with this number of initial chunks, and its seat.
    fn watch(initial: usize) -> (Beginning<Arc<()>>, Arc<()>) {
        let seat = Arc::new(());
        let chunks = (0..initial).map(|_| chunk(WatchProgress::Initial));
        let chunks: Vec<_> = chunks.chain([chunk(WatchProgress::Bookmark(7))]).collect();
        let stream = Box::pin(stream::iter(chunks).chain(stream::pending()));
        (Beginning::new(stream, Arc::clone(&seat)), seat)
    }

    fn is_taken(seat: &Arc<()>) -> bool {
        Arc::strong_count(seat) > 1
    }

    /// Lets the watchdog begin, and then a time pass.
    async fn pass(time: Duration) {
        tokio::task::yield_now().await;
        advance(time).await;
        tokio::task::yield_now().await;
    }

    #[tokio::test(start_paused = true)]
    async fn a_watch_leaves_its_seat_once_its_initial_events_are_written() {
        let (mut watch, seat) = watch(2);
        for _ in 0..2 {
            watch.next().await.expect("a chunk").expect("no end");
            assert!(is_taken(&seat));
        }
        watch.next().await.expect("a chunk").expect("no end");
        assert!(!is_taken(&seat));
    }

    #[tokio::test(start_paused = true)]
    async fn a_watch_that_nobody_reads_leaves_its_seat() {
        for read in [0, 1] {
            let (mut watch, seat) = watch(2);
            for _ in 0..read {
                watch.next().await.expect("a chunk").expect("no end");
            }
            pass(UNREAD_MAX / 2).await;
            assert!(is_taken(&seat));
            pass(2 * UNREAD_MAX).await;
            pass(2 * UNREAD_MAX).await;
            assert!(!is_taken(&seat), "after {read} chunks");
            // It goes on when its client reads.
            watch.next().await.expect("a chunk").expect("no end");
        }
    }

    #[tokio::test(start_paused = true)]
    async fn a_watch_that_is_read_slowly_keeps_its_seat_while_it_begins() {
        let (mut watch, seat) = watch(5);
        for _ in 0..5 {
            watch.next().await.expect("a chunk").expect("no end");
            pass(UNREAD_MAX / 2).await;
            assert!(is_taken(&seat));
        }
    }

    #[tokio::test(start_paused = true)]
    async fn a_watch_that_is_dropped_leaves_its_seat() {
        let (watch, seat) = watch(1);
        assert!(is_taken(&seat));
        drop(watch);
        assert!(!is_taken(&seat));
    }
}
