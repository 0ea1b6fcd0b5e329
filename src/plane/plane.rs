//! One control plane in memory: the methods that readers, writers and watchers call.
//!
//! Knows keys, bytes, versions and claims. Knows no kinds and no HTTP.

use std::collections::BTreeSet;
use std::fmt;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use arc_swap::{ArcSwap, ArcSwapOption};
use parking_lot::Mutex;
use polyplane_fairness::PlaneMeter;
use polyplane_storage::{Health, Revision, Store};
use tokio::sync::futures::Notified;
use tokio::sync::{Notify, OnceCell, oneshot};
use tokio::time::{Instant, timeout, timeout_at};

use crate::copied::Numbering;
use crate::guard::{Answerable, CommitGuard, Intake, NotAnswerable};
use crate::history::log::Log;
use crate::history::past::ProvenPast;
use crate::key::{Key, Prefix};
use crate::layers::Layers;
use crate::lifecycle::load::Loaded;
use crate::lifecycle::params::PlaneParams;
use crate::memory::{Memory, PlaneBytes, Reservation, Share};
use crate::observer::Observer;
use crate::record::KeySpace;
use crate::sealing::plane_keys::PlaneKeys;
use crate::state::claim::Claim;
use crate::state::overlay::Overlay;
use crate::state::{Context, Root, Snapshot};
use crate::version::{Base, Version};
use crate::write::committer::Committer;
use crate::write::follow::Follow;
use crate::write::key_queue::{KeyQueueGuard, KeyQueues};
use crate::write::prepared_write::{Committed, SubmitError, Write};
use crate::write::sequencer::{
    Budget, CutStatus, NextPart, NotAccepted, QueuedWrite, Sequencer, Wakeup,
};

/// Poll interval for events that have no notification, such as a member read. Longer would delay
/// every request that waits for one.
pub(crate) const LOOK_EVERY: Duration = Duration::from_millis(50);

/// The answer to whether everything that an accepted cut showed has become durable.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Settled {
    /// Everything in the cut is durable: the answer may be sent.
    Durable,
    /// The store refused a write that the cut shows: compute the answer again.
    Recompute,
}

/// Sizes and counts of one plane.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PlaneStats {
    /// Number of objects, those of layers included.
    pub objects: usize,
    /// Number of the plane's own objects.
    pub own_objects: u64,
    /// Bytes of the plane's own objects.
    pub own_bytes: u64,
    /// Number of open watches.
    pub watchers: usize,
    /// Bytes of the log.
    pub log_bytes: usize,
    /// Number of writes that wait for a transaction.
    pub queued: usize,
}

/// One control plane in its owner's memory. Opened with [`Plane::open`].
pub struct Plane {
    id: String,
    numbering: Numbering,
    context: Context,
    layers: Arc<Layers>,
    keys: KeySpace,
    pub(crate) committer: Arc<Committer>,
    guard: Arc<dyn CommitGuard>,
    published: ArcSwap<Root>,
    log: Log,
    sequencer: Mutex<Sequencer>,
    /// Shared with the sequencer, so that readers need not take its lock.
    accepted_overlay: Arc<ArcSwapOption<Overlay>>,
    /// Notified whenever a part is settled, or the fence's machine may allow more than before.
    changed: Notify,
    key_queues: Arc<KeyQueues>,
    outside_call_queues: Arc<KeyQueues>,
    expiries: Mutex<BTreeSet<(u64, Key)>>,
    watchers: AtomicUsize,
    /// The newest revision that has landed here or was loaded.
    revision: AtomicU64,
    /// Every part that was sent before the part under way has this revision or an older one.
    sent_after: AtomicU64,
    follow: Option<Arc<Follow>>,
    /// The plane's data keys; `None` if encryption at rest is off here.
    data_keys: Option<PlaneKeys>,
    imported: bool,
    pub(crate) acquired: Revision,
    /// The newest version of any bookmark, here or at an earlier owner. Everything up to it is
    /// published.
    pub(crate) newest_bookmark: AtomicU64,
    /// The state of the plane when it was opened.
    opened: Opened,
    pub(crate) past: ProvenPast,
    pub(crate) history: OnceCell<()>,
    observer: OnceLock<Arc<dyn Observer>>,
    meter: OnceLock<Arc<PlaneMeter>>,
    /// The bytes that the plane holds of shares of the memory budget.
    held: Arc<PlaneBytes>,
}

/// The revision and head that a load found.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Opened {
    /// The revision up to which everything was read.
    pub(crate) revision: Revision,
    /// The version after which the log begins until the history is read.
    pub(crate) head: Version,
}

/// The parts of a plane, as the load returns them.
pub(crate) struct Parts {
    pub(crate) params: PlaneParams,
    pub(crate) context: Context,
    pub(crate) keys: KeySpace,
    pub(crate) loaded: Loaded,
    pub(crate) follow: Option<Arc<Follow>>,
}

impl Plane {
    pub(crate) fn assemble(parts: Parts) -> Arc<Self> {
        let Parts {
            params,
            context,
            keys,
            loaded,
            follow,
        } = parts;
        let Loaded {
            root,
            opened,
            expiries,
            log,
            revision,
            followed_from: _,
            imported,
            data_keys,
        } = loaded;
        let sequencer = Sequencer::new(root.clone());
        let numbering = params.numbering();
        Arc::new(Self {
            id: params.record.id,
            numbering,
            context,
            layers: params.layers,
            keys,
            committer: params.committer,
            guard: params.guard,
            log,
            accepted_overlay: sequencer.overlay(),
            sequencer: Mutex::new(sequencer),
            published: ArcSwap::from_pointee(root),
            changed: Notify::new(),
            key_queues: Arc::default(),
            outside_call_queues: Arc::default(),
            expiries: Mutex::new(expiries),
            watchers: AtomicUsize::new(0),
            revision: AtomicU64::new(revision.0),
            sent_after: AtomicU64::new(0),
            follow,
            data_keys,
            imported,
            acquired: params.acquired,
            // No bookmark of an earlier owner is newer than the acquire, and everything up to the
            // acquire is loaded.
            newest_bookmark: AtomicU64::new(Version::after(numbering.base, params.acquired).raw()),
            opened,
            past: ProvenPast::default(),
            history: OnceCell::new(),
            observer: OnceLock::new(),
            meter: OnceLock::new(),
            held: Arc::default(),
        })
    }

    /// Returns the plane's id.
    #[must_use]
    pub fn id(&self) -> &str {
        &self.id
    }

    /// Returns the memory budget that the plane counts against.
    #[must_use]
    pub fn memory(&self) -> &Arc<Memory> {
        self.committer.memory()
    }

    /// Reserves memory of a share for the plane; `None` if there is too little left, or if the plane would
    /// leave too little to others.
    #[must_use]
    pub fn take_memory(&self, share: Share, bytes: usize) -> Option<Reservation> {
        self.memory().take_for(share, bytes, &self.held)
    }

    /// Notifies an observer of every later commit. A plane has one observer: later calls do nothing.
    pub fn observe(&self, observer: Arc<dyn Observer>) {
        drop(self.observer.set(observer));
    }

    /// Sets the meter that counts what the plane uses here and has its limits. A plane has one:
    /// later calls do nothing.
    pub fn attach_meter(&self, meter: Arc<PlaneMeter>) {
        drop(self.meter.set(meter));
    }

    /// Returns the plane's meter, if it has one.
    #[must_use]
    pub fn meter(&self) -> Option<&Arc<PlaneMeter>> {
        self.meter.get()
    }

    /// Returns whether the plane's store is nearly full, so that clients should add no data.
    #[must_use]
    pub fn store_is_nearly_full(&self) -> bool {
        self.store().is_nearly_full()
    }

    /// Returns why the plane's store takes no writes at all, deletions included, if that is known.
    #[must_use]
    pub fn store_read_only(&self) -> Option<String> {
        match self.store().health() {
            Health::ReadOnly { reason } => Some(reason),
            Health::Ok | Health::Failed { .. } => None,
        }
    }

    /// Returns whether the plane was opened from its former owner's export.
    #[must_use]
    pub fn imported(&self) -> bool {
        self.imported
    }

    /// Returns the objects that other replicas write past the sequencer, see [`crate::external`].
    #[must_use]
    pub fn external(&self) -> Option<&Prefix> {
        self.follow.as_ref().map(|follow| follow.prefix())
    }

    /// Returns the number that is added to the store's revisions to make versions.
    #[must_use]
    pub fn base(&self) -> Base {
        self.numbering.base
    }

    /// Returns how the store numbers the plane's history.
    #[must_use]
    pub fn numbering(&self) -> Numbering {
        self.numbering
    }

    /// Returns the published state: everything in it is durable. Its version is not below that of
    /// any bookmark.
    #[must_use]
    pub fn snapshot(&self) -> Snapshot {
        // Read before the root: everything up to the bookmark is in any root that is read after it.
        let bookmark = Version::from_raw(self.newest_bookmark.load(Ordering::Acquire));
        Snapshot::published(self.published.load_full()).not_below(bookmark)
    }

    /// Returns the newest accepted state, writes under way included. Writes are prepared against
    /// it. An answer computed from it needs [`Self::settled`].
    #[must_use]
    pub fn accepted(&self) -> Snapshot {
        let (root, cut) = self.sequencer.lock().accepted();
        Snapshot::accepted(Arc::new(root), cut)
    }

    /// Returns the definitions that follow from the published objects.
    #[must_use]
    pub fn overlay(&self) -> Option<Arc<Overlay>> {
        self.published.load().overlay.clone()
    }

    /// Returns whether the plane's objects can define anything.
    #[must_use]
    pub fn defines(&self) -> bool {
        self.context.derive.0.is_some()
    }

    /// Returns the definitions that follow from the objects of the newest accepted state, cheaper
    /// than [`Self::accepted`]. If they differ from [`Self::overlay`], an answer that rests on them
    /// needs [`Self::settled`].
    #[must_use]
    pub fn accepted_overlay(&self) -> Option<Arc<Overlay>> {
        self.accepted_overlay.load_full()
    }

    /// Checks the claims, queues the write, and waits until it is durable.
    ///
    /// # Errors
    /// See [`SubmitError`]; each variant says what is known to have happened.
    ///
    /// # Cancel safety
    /// Dropping the future does not withdraw the write.
    pub async fn submit(self: &Arc<Self>, write: Write) -> Result<Committed, SubmitError> {
        let Write {
            operations,
            claims,
            deadline,
        } = write;
        let (operations, bytes) = self.queued_operations(operations)?;
        let (reply, answer) = oneshot::channel();
        let queued = QueuedWrite::new(operations, bytes, reply);
        self.enqueue(queued, &claims, answer, deadline).await
    }

    /// Queues a write and waits for its answer.
    pub(crate) async fn enqueue(
        self: &Arc<Self>,
        mut queued: QueuedWrite,
        claims: &[Claim],
        answer: oneshot::Receiver<Result<Committed, SubmitError>>,
        deadline: Option<Instant>,
    ) -> Result<Committed, SubmitError> {
        loop {
            let changed = self.change();
            let accepted = {
                let mut sequencer = self.sequencer.lock();
                let intake = self.guard.intake();
                sequencer.accept(queued, claims, &self.context, intake)
            };
            match accepted {
                Ok(Wakeup::Committer) => {
                    self.committer.ready_here(Arc::clone(self));
                    break;
                }
                Ok(Wakeup::None) => break,
                Err(NotAccepted::Wait(write)) => {
                    queued = write;
                    until(deadline, changed).await?;
                }
                Err(NotAccepted::Answer(error)) => return Err(error),
            }
        }
        let answer = until(deadline, answer).await?;
        answer.unwrap_or(Err(SubmitError::Deadline))
    }

    /// Waits until every write that a cut shows is settled (PROTOCOL 4).
    pub async fn settled(&self, cut: &Snapshot) -> Settled {
        let Some(cut) = cut.cut() else {
            return Settled::Durable;
        };
        loop {
            let changed = self.change();
            match self.sequencer.lock().cut_status(cut) {
                CutStatus::Durable => return Settled::Durable,
                CutStatus::Withdrawn => return Settled::Recompute,
                CutStatus::Pending => {}
            }
            changed.await;
        }
    }

    /// Waits in the queue of the writers whose claims on a key have failed: first come, first served.
    pub async fn enter_key_queue(&self, key: &Key) -> KeyQueueGuard {
        KeyQueues::enter(&self.key_queues, key).await
    }

    /// Enters the key's queue of writers that call out before they write, such as to a webhook. It
    /// is a queue of its own, so that no other writer waits for their calls.
    pub async fn enter_outside_call_queue(&self, key: &Key) -> KeyQueueGuard {
        KeyQueues::enter(&self.outside_call_queues, key).await
    }

    /// Waits for the right to answer from memory: tenure and read lease.
    ///
    /// # Errors
    /// Returns an error if the tenure has ended or the deadline has passed.
    pub async fn answerable(&self, deadline: Instant) -> Result<(), NotAnswerable> {
        if self.sequencer.lock().ended().is_some() {
            return Err(NotAnswerable::Lost);
        }
        match self.guard.answerable() {
            Answerable::Yes => Ok(()),
            Answerable::Wait => self.guard.until_answerable(deadline).await,
            Answerable::Lost => Err(NotAnswerable::Lost),
        }
    }

    /// Returns the keys of objects that have expired, oldest first.
    #[must_use]
    pub fn expired(&self, now: u64, limit: usize) -> Vec<Key> {
        let expiries = self.expiries.lock();
        expiries
            .iter()
            .take_while(|(at, _)| *at <= now)
            .take(limit)
            .map(|(_, key)| key.clone())
            .collect()
    }

    /// Drops log events that are too old. One periodic task of the process calls it for all planes.
    pub fn sweep_log(&self) {
        self.log.sweep(Instant::now());
    }

    /// Returns sizes and counts of the plane.
    #[must_use]
    pub fn stats(&self) -> PlaneStats {
        let snapshot = self.snapshot();
        PlaneStats {
            objects: snapshot.objects(),
            own_objects: snapshot.own_objects(),
            own_bytes: snapshot.own_bytes(),
            watchers: self.watchers.load(Ordering::Relaxed),
            log_bytes: self.log.bytes(),
            queued: self.sequencer.lock().queued(),
        }
    }

    /// Returns why the plane is read-only, if the store refuses writes.
    #[must_use]
    pub fn read_only(&self) -> Option<String> {
        match self.guard.intake() {
            Intake::ReadOnly => Some(self.sequencer.lock().refusal().to_owned()),
            Intake::Wait => self.sequencer.lock().withheld().map(ToOwned::to_owned),
            Intake::Open | Intake::Ended => None,
        }
    }

    #[cfg(test)]
    pub(crate) fn is_settled(&self) -> bool {
        self.guard.intake() != Intake::Wait
    }

    #[cfg(test)]
    pub(crate) fn key_queue_count(&self) -> usize {
        self.key_queues.queues()
    }
}

/// Methods for the other modules of this crate.
impl Plane {
    /// Wakes the committer if the sequencer has said that it must be.
    pub(crate) fn wake_committer(self: &Arc<Self>, wakeup: Wakeup) {
        match wakeup {
            Wakeup::Committer => self.committer.ready(Arc::clone(self)),
            Wakeup::None => {}
        }
    }

    /// Returns the number of writes in the plane's queue.
    pub(crate) fn queued(&self) -> usize {
        self.sequencer.lock().queued()
    }

    pub(crate) fn take(&self, budget: Budget) -> NextPart {
        // A member read that was answered before the part is sent has an older revision than the
        // part.
        let known = self.guard.observed().max(self.acquired);
        let known = known.max(self.revision());
        let taken = self.sequencer.lock().take(budget, || self.guard.permit());
        if matches!(taken, NextPart::Part(..)) {
            self.sent_after.store(known.0, Ordering::Release);
        }
        taken
    }

    /// Returns a revision that is older than that of the part under way, and not older than that of
    /// any part that was sent before it.
    pub(crate) fn sent_after(&self) -> Revision {
        Revision(self.sent_after.load(Ordering::Acquire))
    }

    pub(crate) fn observer(&self) -> Option<&Arc<dyn Observer>> {
        self.observer.get()
    }

    pub(crate) fn follow(&self) -> Option<&Arc<Follow>> {
        self.follow.as_ref()
    }

    /// Returns a future that completes when a part is settled, or when the fence's machine may
    /// permit more than before. It misses no change after this call, also before it is polled.
    pub(crate) fn change(&self) -> Notified<'_> {
        self.changed.notified()
    }

    /// Waits until the plane has ended.
    pub(crate) async fn until_ended(&self) {
        loop {
            let changed = self.change();
            if self.sequencer.lock().ended().is_some() {
                return;
            }
            changed.await;
        }
    }

    /// Waits for at most `wait`. Returns whether the plane has ended.
    pub(crate) async fn ends_within(&self, wait: Duration) -> bool {
        timeout(wait, self.until_ended()).await.is_ok()
    }

    pub(crate) fn sequencer(&self) -> &Mutex<Sequencer> {
        &self.sequencer
    }

    /// Publishes a root, and fits the log's bounds to it.
    pub(crate) fn publish(&self, root: Root) {
        self.log.fit(root.own_bytes());
        self.published.store(Arc::new(root));
    }

    pub(crate) fn published(&self) -> Arc<Root> {
        self.published.load_full()
    }

    pub(crate) fn context(&self) -> &Context {
        &self.context
    }

    pub(crate) fn layers(&self) -> &Layers {
        &self.layers
    }

    pub(crate) fn data_keys(&self) -> Option<&PlaneKeys> {
        self.data_keys.as_ref()
    }

    pub(crate) fn keys(&self) -> &KeySpace {
        &self.keys
    }

    pub(crate) fn guard(&self) -> &Arc<dyn CommitGuard> {
        &self.guard
    }

    pub(crate) fn committer(&self) -> &Arc<Committer> {
        &self.committer
    }

    pub(crate) fn store(&self) -> &Arc<dyn Store> {
        self.committer.store()
    }

    pub(crate) fn log(&self) -> &Log {
        &self.log
    }

    pub(crate) fn opened(&self) -> Opened {
        self.opened
    }

    pub(crate) fn changed(&self) {
        self.changed.notify_waiters();
    }

    pub(crate) fn expiries(&self) -> &Mutex<BTreeSet<(u64, Key)>> {
        &self.expiries
    }

    /// Returns the newest revision that has landed here or was loaded.
    pub(crate) fn revision(&self) -> Revision {
        Revision(self.revision.load(Ordering::Acquire))
    }

    pub(crate) fn set_revision(&self, revision: Revision) {
        self.revision.fetch_max(revision.0, Ordering::AcqRel);
    }

    pub(crate) fn watcher_came(&self) {
        self.watchers.fetch_add(1, Ordering::Relaxed);
    }

    pub(crate) fn watcher_went(&self) {
        self.watchers.fetch_sub(1, Ordering::Relaxed);
    }
}

impl fmt::Debug for Plane {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Plane")
            .field("id", &self.id)
            .finish_non_exhaustive()
    }
}

async fn until<F: Future>(deadline: Option<Instant>, wait: F) -> Result<F::Output, SubmitError> {
    match deadline {
        Some(deadline) => timeout_at(deadline, wait)
            .await
            .map_err(|_| SubmitError::Deadline),
        None => Ok(wait.await),
    }
}
