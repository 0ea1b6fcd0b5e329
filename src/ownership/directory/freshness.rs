//! Whether the directory of this replica may decide who somebody is.
//!
//! A plane's record says who may use the plane, and who changes it so that somebody may not any more
//! must be able to rely on that. So a replica authenticates by its directory only while the directory
//! has everything that a member read younger than the read lease has seen, and such a change is
//! acknowledged only after the read lease and its margin: by then no replica decides by an older
//! directory.
//!
//! Owns the time until which the directory may decide; must not know what rows say.

use crate::directory::Directory;
use crate::membership::ring::Ring;
use parking_lot::Mutex;
use polyplane_fencing::Rules;
use polyplane_storage::Revision;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;
use tokio::sync::Notify;
use tokio::time::{Instant, sleep, timeout_at};
use tokio_util::sync::CancellationToken;

/// Longest wait for one member read, and for the directory to catch up with it. After that the next
/// read is waited for, which asks the store's watch for its progress again.
const PATIENCE: Duration = Duration::from_secs(1);
/// Pause while this replica has no member key. Less would only spin.
const WITHOUT_LIFE: Duration = Duration::from_millis(50);

/// Knows how fresh a directory is.
pub struct Freshness {
    ring: Arc<Ring>,
    /// The time before which the directory may decide, in nanoseconds of the ring's clock.
    until: AtomicU64,
    changed: Notify,
    settled: Mutex<Settled>,
}

/// How much of the store no deciding replica lacks.
#[derive(Default)]
struct Settled {
    /// The newest revision that is known to be so old.
    revision: Revision,
    /// A revision that becomes it at a time of the ring's clock.
    next: Option<(u64, Revision)>,
}

impl Freshness {
    /// Follows the member reads of `ring` and the rows of `directory` until `stop` is cancelled.
    #[must_use]
    pub fn follow(
        ring: &Arc<Ring>,
        directory: &Arc<Directory>,
        stop: CancellationToken,
    ) -> Arc<Self> {
        let freshness = Arc::new(Self {
            ring: Arc::clone(ring),
            until: AtomicU64::new(0),
            changed: Notify::new(),
            settled: Mutex::default(),
        });
        let following = Arc::clone(&freshness);
        let directory = Arc::clone(directory);
        tokio::spawn(async move {
            tokio::select! {
                // Stop is polled first: a stopped replica authenticates nobody.
                biased;
                () = stop.cancelled() => {}
                () = following.run(&directory) => {}
            }
        });
        freshness
    }

    /// Returns whether the directory may decide now. Reads memory only.
    #[must_use]
    pub fn holds(&self) -> bool {
        self.ring.clock_nanos() < self.until.load(Ordering::Acquire)
    }

    /// Waits until the directory may decide. Returns whether it does before the deadline.
    ///
    /// # Cancel safety
    /// Dropping the future does no harm.
    pub async fn wait(&self, deadline: Instant) -> bool {
        loop {
            let changed = self.changed.notified();
            tokio::pin!(changed);
            changed.as_mut().enable();
            if self.holds() {
                return true;
            }
            if timeout_at(deadline, changed).await.is_err() {
                return self.holds();
            }
        }
    }

    /// Waits until no replica decides by a directory that lacks what is in the store now.
    pub async fn elsewhere(&self) {
        sleep(Duration::from_nanos(self.wait_nanos())).await;
    }

    /// Returns whether no replica decides by a directory that lacks what a revision put, as far as
    /// this replica knows.
    #[must_use]
    pub fn is_settled(&self, revision: Revision) -> bool {
        revision <= self.settled.lock().revision
    }

    /// Returns how long a replica may decide by a directory that lacks what is in the store.
    fn wait_nanos(&self) -> u64 {
        let wait = self.ring.terms().wait(Rules::default());
        wait.read_lease().as_nanos() + wait.margin().as_nanos()
    }

    /// Reports a revision of the store that was seen after `now`.
    fn settle(&self, now: u64, seen: Revision) {
        let mut settled = self.settled.lock();
        match settled.next {
            Some((from, revision)) if from <= now => {
                settled.revision = settled.revision.max(revision);
                settled.next = None;
            }
            Some(_) | None => {}
        }
        let from = now.saturating_add(self.wait_nanos());
        settled.next.get_or_insert((from, seen));
    }

    async fn run(&self, directory: &Directory) {
        let mut after = 0;
        loop {
            let deadline = Instant::now() + PATIENCE;
            let Some((sent, seen)) = self.ring.read_after(after, deadline).await else {
                sleep(WITHOUT_LIFE).await;
                continue;
            };
            after = sent;
            self.settle(self.ring.clock_nanos(), seen);
            if directory.reach(seen, deadline).await {
                self.ring.directory_proven(sent);
                let lease = self.ring.terms().read_lease(Rules::default());
                let until = sent.saturating_add(lease.as_nanos());
                self.until.fetch_max(until, Ordering::AcqRel);
                self.changed.notify_waiters();
            }
        }
    }
}
