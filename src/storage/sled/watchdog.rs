//! A thread that wakes a flush for which sled has no news any more.
//!
//! In sled 0.34.7 a flush waits, without a limit, until threads of sled have written the log up to its end.
//! The thread whose write fails notes the error, but if the write was of a part of the log that a batch has
//! filled, it wakes nobody (`Log::exit_reservation`). The flush then sleeps for ever if the other writes
//! of the batch were done before. A further flush looks for a noted error first, and wakes all others if
//! there is one (`iobuf::make_stable_inner`).
//!
//! The thread looks every few seconds while there are flushes, and sleeps without a time-out once there are
//! none, so that an idle process is not woken. A flush wakes it only from that sleep.

use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread::{Builder, JoinHandle, Thread, park, park_timeout};
use std::time::{Duration, Instant};

/// Interval of checking whether a flush is late, while there are flushes. With a shorter one, a slow disk
/// would get further flushes sooner.
const CHECK: Duration = Duration::from_secs(5);
/// Further flushes for one that is late. Each takes a thread until the disk has written, if it is only slow.
const FLUSHES_MAX: u64 = 100;

/// The watchdog of one opened tree. Dropping it ends its thread.
pub(super) struct Watchdog {
    flushes: Arc<Flushes>,
    thread: Option<JoinHandle<()>>,
}

#[derive(Default)]
struct Flushes {
    begun: AtomicU64,
    ended: AtomicU64,
    /// True while the thread sleeps until a flush begins.
    is_resting: AtomicBool,
    is_over: AtomicBool,
}

impl Watchdog {
    pub(super) fn start(db: &sled::Db) -> io::Result<Self> {
        let flushes = Arc::new(Flushes::default());
        let (db, watched) = (db.clone(), Arc::clone(&flushes));
        let thread = Builder::new().name("store-watchdog".to_owned());
        let thread = thread.spawn(move || watch(&db, &watched))?;
        Ok(Self {
            flushes,
            thread: Some(thread),
        })
    }

    /// Runs a flush, which must not panic.
    pub(super) fn during<T>(&self, flush: impl FnOnce() -> T) -> T {
        if let Some(thread) = &self.thread {
            self.flushes.begin(thread.thread());
        }
        let flushed = flush();
        self.flushes.ended.fetch_add(1, Ordering::SeqCst);
        flushed
    }
}

impl Drop for Watchdog {
    fn drop(&mut self) {
        self.flushes.is_over.store(true, Ordering::SeqCst);
        if let Some(thread) = self.thread.take() {
            thread.thread().unpark();
            let _ = thread.join();
        }
    }
}

impl Flushes {
    /// Counts a flush that is about to begin, and wakes the thread if it rests.
    fn begin(&self, watching: &Thread) {
        self.begun.fetch_add(1, Ordering::SeqCst);
        // After the count, which the thread reads after it has said that it rests: one of the two sees the other.
        if self.is_resting.load(Ordering::SeqCst) {
            self.is_resting.store(false, Ordering::SeqCst);
            watching.unpark();
        }
    }

    fn is_over(&self) -> bool {
        self.is_over.load(Ordering::SeqCst)
    }

    /// Sleeps until there are more than `seen` flushes, or the watchdog is dropped.
    fn rest(&self, seen: u64) {
        loop {
            self.is_resting.store(true, Ordering::SeqCst);
            if self.begun.load(Ordering::SeqCst) != seen || self.is_over() {
                break;
            }
            park();
        }
        self.is_resting.store(false, Ordering::SeqCst);
    }

    /// Sleeps for [`CHECK`], or until the watchdog is dropped.
    fn wait(&self) {
        let until = Instant::now() + CHECK;
        while !self.is_over() {
            let left = until.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return;
            }
            park_timeout(left);
        }
    }
}

/// What the thread does after a look at the flushes.
#[derive(Debug, PartialEq, Eq)]
enum Next {
    /// Rest: there is no flush, and there was none since the last look.
    Rest,
    /// Look again later.
    Wait,
    /// Flush once more: the newest flush is late.
    Flush,
}

/// What the thread knows from its last look.
#[derive(Default)]
struct Looks {
    /// The flushes that had begun.
    seen: u64,
    /// The further flushes since another one began.
    tried: u64,
}

impl Looks {
    fn next(&mut self, begun: u64, ended: u64) -> Next {
        if begun != self.seen {
            (self.seen, self.tried) = (begun, 0);
            Next::Wait
        } else if begun == ended {
            Next::Rest
        } else if self.tried < FLUSHES_MAX {
            self.tried += 1;
            Next::Flush
        } else {
            Next::Wait
        }
    }
}

fn watch(db: &sled::Db, flushes: &Flushes) {
    let mut looks = Looks::default();
    while !flushes.is_over() {
        // In this order: equal numbers then mean that there was none under way.
        let ended = flushes.ended.load(Ordering::SeqCst);
        let begun = flushes.begun.load(Ordering::SeqCst);
        match looks.next(begun, ended) {
            Next::Rest => flushes.rest(begun),
            Next::Wait => flushes.wait(),
            Next::Flush => {
                flush_once_more(db.clone());
                flushes.wait();
            }
        }
    }
}

/// Flushes on a thread of its own, which ends with the flush that is late or before.
fn flush_once_more(db: sled::Db) {
    let thread = Builder::new().name("store-flush".to_owned());
    if let Err(error) = thread.spawn(move || db.flush().map(drop)) {
        tracing::warn!(%error, "a flush is late and cannot be looked after");
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_late_flush_is_followed_by_others_and_no_flush_by_rest() {
        let mut looks = Looks::default();
        assert_eq!(looks.next(0, 0), Next::Rest);
        assert_eq!(looks.next(1, 0), Next::Wait, "it has just begun");
        assert_eq!(looks.next(3, 2), Next::Wait, "another one");
        for _ in 0..FLUSHES_MAX {
            assert_eq!(looks.next(3, 2), Next::Flush);
        }
        assert_eq!(looks.next(3, 2), Next::Wait, "no more help");
        assert_eq!(looks.next(4, 3), Next::Wait);
        assert_eq!(looks.next(4, 3), Next::Flush);
        assert_eq!(looks.next(5, 5), Next::Wait, "there are flushes");
        assert_eq!(looks.next(5, 5), Next::Rest);
    }

    #[test]
    fn a_flush_and_the_end_wake_the_thread_from_its_rest() {
        let flushes = Arc::new(Flushes::default());
        for seen in 0..100 {
            let watched = Arc::clone(&flushes);
            let resting = std::thread::spawn(move || watched.rest(seen));
            // In some of the rounds it rests already, in others it is about to.
            flushes.begin(resting.thread());
            resting.join().expect("it ends");
        }
        let watched = Arc::clone(&flushes);
        let resting = std::thread::spawn(move || watched.rest(100));
        flushes.is_over.store(true, Ordering::SeqCst);
        resting.thread().unpark();
        resting.join().expect("it ends");
    }
}
