//! A thread that wakes a flush for which sled has no news any more.
//!
//! In sled 0.34.7 a flush waits, without a limit, until threads of sled have written the log up to its end.
//! The thread whose write fails notes the error, but if the write was of a part of the log that a batch has
//! filled, it wakes nobody (`Log::exit_reservation`). The flush then sleeps for ever if the other writes
//! of the batch were done before. A further flush looks for a noted error first, and wakes all others if
//! there is one (`iobuf::make_stable_inner`).

use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread::{Builder, JoinHandle, park_timeout};
use std::time::Duration;

/// Interval of checking whether a flush is late. A shorter one would wake an idle process more often.
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
        self.flushes.begun.fetch_add(1, Ordering::SeqCst);
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

fn watch(db: &sled::Db, flushes: &Flushes) {
    let (mut seen, mut tried) = (0, 0);
    loop {
        park_timeout(CHECK);
        if flushes.is_over.load(Ordering::SeqCst) {
            return;
        }
        let ended = flushes.ended.load(Ordering::SeqCst);
        let begun = flushes.begun.load(Ordering::SeqCst);
        if begun != seen {
            (seen, tried) = (begun, 0);
        } else if begun != ended && tried < FLUSHES_MAX {
            tried += 1;
            flush_once_more(db.clone());
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
