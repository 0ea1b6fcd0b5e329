//! Reads of the past: exact versions, watches that resume, and the newest version a client may name.
//!
//! Lists and bookmarks of an idle plane name versions after its newest record. An owner that opens the
//! plane later cannot tell these from versions that the store gave out before it was restored from a
//! backup: the records of those are gone. So such a version must be one that the store can still read.
//! A restore marks all revisions before it as compacted.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use polyplane_storage::{Fields, RangeRequest, ReadError};
use tokio::time::{Instant, timeout_at};

use crate::guard::Answerable;
use crate::history::expired_cause::ExpiredCause;
use crate::history::from_store::READS;
use crate::history::watch::{AtError, WatchError, WatchFrom, WatchScope, Watcher};
use crate::key::Prefix;
use crate::plane::{LOOK_EVERY, Plane};
use crate::state::Snapshot;
use crate::version::Version;

/// Time for which reading the history is retried while the store is unavailable. After it the
/// client gets an error that it may retry, not a 410: the events may still be there.
const HISTORY_PATIENCE: Duration = Duration::from_secs(10);
/// Longest pause between two attempts to read the history.
const HISTORY_RETRY_MAX: Duration = Duration::from_secs(1);

impl Plane {
    /// Returns the objects under `prefix` exactly as they were at a version.
    ///
    /// # Errors
    /// See [`AtError`].
    pub async fn at(
        self: &Arc<Self>,
        version: Version,
        prefix: &Prefix,
    ) -> Result<Snapshot, AtError> {
        let current = self.seen_for(version);
        if version > current {
            return Err(AtError::Future { current });
        }
        match self.prove_past(version).await {
            Ok(()) => {}
            Err(PastError::Lost(cause)) => return Err(AtError::Expired(cause)),
            Err(PastError::Unavailable) => return Err(AtError::Unavailable),
        }
        let read = || {
            let published = || self.published();
            self.log().undo_list(prefix, version, published)
        };
        let (mut newest, mut later) = read();
        if later.is_err() && self.log().hub_is_whole(&self.log().hub(prefix)) {
            let loaded = self.load_history_once().await;
            loaded.map_err(|_| AtError::Unavailable)?;
            (newest, later) = read();
        }
        let later = later.map_err(|cause| AtError::Expired(self.report_expired(cause, version)))?;
        let mut root = (*newest).clone();
        for event in later {
            // The newest chain may have folded steps that this version needs; the chain at the
            // event has not.
            let known = event.previous().or(event.current());
            root.template_values = known.map_or(root.template_values, |object| {
                Arc::clone(object.template_values())
            });
            match event.previous() {
                Some(previous) => root.replace(Arc::clone(previous.entry())),
                None => {
                    root.resources.remove(event.key());
                }
            }
        }
        Ok(Snapshot::at(root, version))
    }

    /// Begins a watch. A watch that resumes from before the plane was opened waits until the
    /// history is read.
    ///
    /// # Errors
    /// See [`WatchError`].
    pub async fn watch(
        self: &Arc<Self>,
        scope: WatchScope,
        from: WatchFrom,
    ) -> Result<Watcher, WatchError> {
        if let Some(ended) = self.sequencer().lock().ended() {
            return Err(WatchError::Ended(ended));
        }
        let after = match from {
            WatchFrom::Now => self.log().appended(),
            WatchFrom::After(version) => version,
        };
        let current = self.seen_for(after);
        if after > current {
            return Err(WatchError::Future { current });
        }
        match self.prove_past(after).await {
            Ok(()) => {}
            Err(PastError::Lost(cause)) => return Err(WatchError::Expired(cause)),
            Err(PastError::Unavailable) => return Err(self.why_unavailable()),
        }
        let hub = self.log().hub(&scope.resource());
        if hub.cursor_after(after).is_err() && self.log().hub_is_whole(&hub) {
            let loaded = self.load_history_once().await;
            if loaded.is_err() {
                return Err(self.why_unavailable());
            }
        }
        Watcher::new(Arc::clone(self), scope, hub, after)
            .map_err(|cause| WatchError::Expired(self.report_expired(cause, after)))
    }

    /// Returns the oldest version from which a watch of the resource of `prefix` may resume, for the
    /// refusal of an older one.
    #[must_use]
    pub fn resumable_from(&self, prefix: &Prefix) -> Version {
        self.log().hub(prefix).resumable_from()
    }

    /// Counts a request for an expired version, and logs it at most every ten minutes per cause.
    pub fn report_expired(&self, cause: ExpiredCause, version: Version) -> ExpiredCause {
        self.committer.metrics().expired(cause);
        if self.log().logs(cause) {
            let (plane, cause) = (self.id(), cause.name());
            let appended = self.log().appended();
            tracing::info!(plane, cause, %version, newest = %appended, "a version is no longer kept");
        }
        cause
    }

    /// Returns the version of the objects that the plane was born with.
    pub(crate) fn birth(&self) -> Version {
        self.published().template_values.birth()
    }

    /// Returns the newest version that a client can have from this plane, here or from an earlier
    /// owner. A later version is in the future.
    #[must_use]
    pub fn seen(&self) -> Version {
        let observed = match self.follow() {
            // Other replicas write to this plane too, and a read of this replica's member key says
            // nothing about their writes.
            Some(follow) => follow.through(),
            None => self.guard().observed(),
        };
        let observed = observed.max(self.acquired);
        self.log()
            .appended()
            .max(Version::after(self.base(), observed))
    }

    /// Returns [`Self::seen`] for a client that names a version. A root is published an instant
    /// before its events are in the log; a client that has just read that root must not get the
    /// error for future versions.
    fn seen_for(&self, version: Version) -> Version {
        let seen = self.seen();
        if version <= seen {
            return seen;
        }
        self.log().appended_all();
        self.seen()
    }

    /// Waits until a version is no longer in the future, at most until the deadline. Returns
    /// whether the wait succeeded.
    pub async fn reached(&self, version: Version, deadline: Instant) -> bool {
        loop {
            let changed = self.change();
            if self.seen() >= version {
                return true;
            }
            let now = Instant::now();
            if now >= deadline {
                return false;
            }
            // A member read notifies no waiter, so this loop polls.
            let _ = timeout_at(deadline.min(now + LOOK_EVERY), changed).await;
        }
    }

    /// Returns the version that a bookmark may name: the published head, the version of an earlier
    /// bookmark, or the newest member read while no part is under way or unsettled. A part that is
    /// sent later gets a newer revision than that read. Lists that begin afterwards carry no older
    /// version (PROTOCOL 14).
    pub(crate) fn bookmark_version(&self) -> Version {
        // Read before the tenure is checked: a member read under an open tenure is older than every
        // commit of a later owner. In the other order the read may be from after a hand-off.
        let observed = self.guard().observed();
        let sequencer = self.sequencer().lock();
        let version = match self.follow() {
            // The store's watch delivers every commit, also those of other replicas, so nothing up
            // to this revision is missing.
            Some(follow) => Version::after(self.base(), follow.through()),
            None if sequencer.is_settled() && self.guard().answerable() != Answerable::Lost => {
                Version::after(self.base(), observed)
            }
            None => Version::ZERO,
        };
        let version = version.max(self.log().appended());
        let bookmark = self
            .newest_bookmark
            .fetch_max(version.raw(), Ordering::AcqRel);
        version.max(Version::from_raw(bookmark))
    }

    fn why_unavailable(&self) -> WatchError {
        match self.sequencer().lock().ended() {
            Some(ended) => WatchError::Ended(ended),
            None => WatchError::Unavailable,
        }
    }

    /// Checks that a version after the newest record of an earlier owner is of this store's past. Costs
    /// one read of the store in the plane's life here, or a few if many clients resume at once.
    async fn prove_past(&self, version: Version) -> Result<(), PastError> {
        let acquired = Version::after(self.base(), self.acquired);
        if version <= self.opened().head || version >= acquired {
            return Ok(());
        }
        loop {
            if let Some(is_proven) = self.past.knows(version) {
                let lost =
                    || PastError::Lost(self.report_expired(ExpiredCause::Compacted, version));
                return is_proven.then_some(()).ok_or_else(lost);
            }
            match self.patiently(|| self.read_at(version)).await {
                Ok(()) => self.past.proven(version),
                Err(ReadError::Compacted { .. }) => self.past.lost(version),
                Err(_) => return Err(PastError::Unavailable),
            }
        }
    }

    /// Reads as little as possible as of a version, unless another caller has done so meanwhile.
    async fn read_at(&self, version: Version) -> Result<(), ReadError> {
        // The semaphore is never closed. The permit is given back before a pause.
        let _read = READS.acquire().await;
        match self.past.knows(version) {
            Some(true) => return Ok(()),
            Some(false) => {
                let floor = self.numbering().revision_through(version);
                return Err(ReadError::Compacted { floor });
            }
            None => {}
        }
        let (start, end) = self.keys().bounds();
        let request = RangeRequest {
            at: Some(self.numbering().revision_through(version)),
            fields: Fields::KeysOnly,
            limit: 1,
            ..RangeRequest::between(start, end)
        };
        self.store().range(request).await.map(drop)
    }

    /// Reads the history unless an earlier call has done so.
    async fn load_history_once(&self) -> Result<(), HistoryUnavailable> {
        let load = || self.history.get_or_try_init(|| self.load_history());
        match self.patiently(load).await {
            // A failure was logged when it happened. Callers get the events that the log has.
            Ok(()) | Err(ReadError::Compacted { .. } | ReadError::Corrupt(_)) => Ok(()),
            Err(_) => Err(HistoryUnavailable),
        }
    }

    /// Repeats a read while the store is unavailable: the events may still be there, so an outage must
    /// not look like an expired version.
    async fn patiently<T, F>(&self, read: impl Fn() -> F) -> Result<T, ReadError>
    where
        F: Future<Output = Result<T, ReadError>>,
    {
        let patience = Instant::now() + HISTORY_PATIENCE;
        let mut wait = LOOK_EVERY;
        loop {
            let error = match read().await {
                Ok(done) => return Ok(done),
                Err(error @ (ReadError::Compacted { .. } | ReadError::Corrupt(_))) => {
                    return Err(error);
                }
                Err(error) => error,
            };
            if Instant::now() + wait >= patience || self.ends_within(wait).await {
                return Err(error);
            }
            wait = (wait * 2).min(HISTORY_RETRY_MAX);
        }
    }
}

/// The store was unavailable for longer than [`HISTORY_PATIENCE`].
struct HistoryUnavailable;

/// The reason why a version is not known to be of the store's past.
enum PastError {
    /// It is not, or nobody can tell any more.
    Lost(ExpiredCause),
    /// The store does not answer.
    Unavailable,
}

/// What is known of versions after the newest record that a plane was opened with.
pub(crate) struct ProvenPast {
    /// This version and later ones are of the store's past.
    proven_from: AtomicU64,
    /// This version and earlier ones are not known to be.
    lost_through: AtomicU64,
}

impl Default for ProvenPast {
    fn default() -> Self {
        Self {
            proven_from: AtomicU64::new(u64::MAX),
            lost_through: AtomicU64::new(0),
        }
    }
}

impl ProvenPast {
    fn knows(&self, version: Version) -> Option<bool> {
        if version.raw() >= self.proven_from.load(Ordering::Relaxed) {
            return Some(true);
        }
        (version.raw() <= self.lost_through.load(Ordering::Relaxed)).then_some(false)
    }

    fn proven(&self, version: Version) {
        self.proven_from.fetch_min(version.raw(), Ordering::Relaxed);
    }

    fn lost(&self, version: Version) {
        self.lost_through
            .fetch_max(version.raw(), Ordering::Relaxed);
    }
}
