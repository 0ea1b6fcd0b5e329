//! The committer of one store: it packs the queued writes of all planes into transactions.
//!
//! Planes take turns by bytes. If they have queued more writes than the free slots take, each gets equally
//! many of them, or all that it has; so a plane with ten times the writers gets no more of a slow store
//! than another. While several planes write to a store that commits one transaction after the other, a
//! plane has few writes in each of them, so that a plane with many writers is not what the others wait for.
//! There is no timer: a free slot commits what is queued, and while all
//! slots are busy the queues grow into larger transactions. Tasks exist only while there is work, and
//! none is needed for the write of a client that is alone.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Waker};
use std::time::Instant;

use bytes::Bytes;
use futures_util::future::join_all;
use parking_lot::Mutex;
use polyplane_storage::{
    CommitError, Compare, KeyValue, Limits, Op, Rejection, Revision, Store, Txn,
};
use prometheus::proto::MetricFamily;
use tokio::sync::Notify;

use crate::end_with_panic::EndWithPanic;
use crate::guard::NotDone;
use crate::layers::template_values::RenderCache;
use crate::memory::Memory;
use crate::metrics::CommitMetrics;
use crate::plane::Plane;
use crate::record::{
    EventHeader, encode_head, encode_marker, encode_object, encode_packed, encode_steps,
    encode_tombstone,
};
use crate::sealing::Sealing;
use crate::sealing::plane_keys::{PartKeys, PlaneKeys};
use crate::state::entry::Entry;
use crate::state::intern::Interner;
use crate::version::Version;
use crate::write::prober::Prober;
use crate::write::ready::{Ready, Takes};
use crate::write::sequencer::{Budget, NextPart, QueuedChange, QueuedWrite};

/// Approximate bytes of one transaction. A larger one delays every write in it.
const TXN_BYTES_MAX: usize = 1 << 20;
/// Bytes of a write beyond which it gets a transaction of its own, so that small writes of other planes
/// do not wait for it.
const ALONE_BYTES: usize = 256 << 10;
/// Number of version indexes in one transaction.
const INDEXES_MAX: usize = Version::END as usize;
/// Bytes that a plane may commit per round while other planes wait. Bytes that it does not use are
/// added to its next round. Without this limit a busy plane would delay the others.
const TURN_BYTES: usize = 64 << 10;

/// Commits the writes of all planes of one store.
pub struct Committer {
    store: Arc<dyn Store>,
    limits: Limits,
    ready: Mutex<Ready>,
    /// True if the newest transaction had more than one write.
    is_in_company: AtomicBool,
    rendered: Arc<RenderCache>,
    interner: Arc<Interner>,
    memory: Arc<Memory>,
    metrics: CommitMetrics,
    prober: Arc<Prober>,
    /// True once large bodies are packed.
    packs: AtomicBool,
    /// What seals records; `None` if encryption at rest is off.
    sealing: Option<Arc<Sealing>>,
}

/// The task that polls a worker.
#[derive(Clone, Copy, PartialEq, Eq)]
enum RunsOn {
    /// The task of the caller whose write started the worker.
    CallersTask,
    OwnTask,
}

/// The operations of one plane in one transaction.
pub(crate) struct CommitPart {
    pub(crate) plane: Arc<Plane>,
    pub(crate) writes: Vec<QueuedWrite>,
    /// The compares that its permit requires: of the plane's fence and of the replica's member key.
    compares: Vec<Compare>,
    /// The index of the part's first event.
    pub(crate) index: u8,
    /// The keys that its records are sealed with, fixed until its outcome is known.
    pub(crate) keys: Option<PartKeys>,
    /// True if the accepted state lacks the part, because its outcome is unknown and cannot be settled
    /// yet.
    pub(crate) is_withheld: bool,
}

impl CommitPart {
    fn new(plane: Arc<Plane>, writes: Vec<QueuedWrite>, compares: Vec<Compare>) -> Self {
        Self {
            plane,
            writes,
            compares,
            index: 0,
            keys: None,
            is_withheld: false,
        }
    }
}

/// A transaction, and the parts that need each of its compares.
struct Batch {
    txn: Txn,
    parts: Vec<CommitPart>,
    /// For each compare, the numbers of the parts that need it.
    parts_of_compare: Vec<Vec<usize>>,
}

impl Committer {
    /// Returns the committer of a store. A process must have only one for each store.
    #[must_use]
    pub fn new(store: Arc<dyn Store>) -> Arc<Self> {
        Self::with_memory(store, Arc::default())
    }

    /// Returns the committer of a store, with the memory budget of its planes.
    #[must_use]
    pub fn with_memory(store: Arc<dyn Store>, memory: Arc<Memory>) -> Arc<Self> {
        Self::with_sealing(store, memory, None)
    }

    /// Returns the committer of a store, with the memory budget of its planes and with what seals
    /// their records.
    #[must_use]
    pub fn with_sealing(
        store: Arc<dyn Store>,
        memory: Arc<Memory>,
        sealing: Option<Arc<Sealing>>,
    ) -> Arc<Self> {
        Arc::new(Self {
            limits: store.limits(),
            store,
            ready: Mutex::default(),
            is_in_company: AtomicBool::new(false),
            rendered: RenderCache::new(&memory),
            interner: Interner::new(&memory),
            memory,
            metrics: CommitMetrics::default(),
            prober: Arc::default(),
            packs: AtomicBool::new(false),
            sealing,
        })
    }

    /// Packs large bodies from now on. Call this once the store's floor has reached
    /// [`PACKED_LEVEL`](crate::PACKED_LEVEL): until then a program that cannot read them may open a
    /// plane.
    pub fn begin_packing(&self) {
        self.packs.store(true, Ordering::Relaxed);
    }

    pub(crate) fn packs(&self) -> bool {
        self.packs.load(Ordering::Relaxed)
    }

    /// Returns what seals the records of all planes; `None` if encryption at rest is off.
    #[must_use]
    pub fn sealing(&self) -> Option<&Arc<Sealing>> {
        self.sealing.as_ref()
    }

    /// Returns the store.
    #[must_use]
    pub fn store(&self) -> &Arc<dyn Store> {
        &self.store
    }

    /// Returns metrics of all commits so far.
    #[must_use]
    pub fn collect(&self) -> Vec<MetricFamily> {
        self.metrics.collect()
    }

    pub(crate) fn metrics(&self) -> &CommitMetrics {
        &self.metrics
    }

    pub(crate) fn prober(&self) -> &Arc<Prober> {
        &self.prober
    }

    pub(crate) fn limits(&self) -> &Limits {
        &self.limits
    }

    pub(crate) fn memory(&self) -> &Arc<Memory> {
        &self.memory
    }

    pub(crate) fn interner(&self) -> &Arc<Interner> {
        &self.interner
    }

    pub(crate) fn rendered(&self) -> &Arc<RenderCache> {
        &self.rendered
    }

    /// Reports that a plane has queued writes and none under way.
    pub(crate) fn ready(self: &Arc<Self>, plane: Arc<Plane>) {
        if self.needs_worker(plane) {
            // The worker ends by itself as soon as nothing is queued.
            tokio::spawn(Arc::clone(self).work(RunsOn::OwnTask));
        }
    }

    /// As [`Self::ready`], for a caller that waits for the outcome. While writers come one by one, the
    /// transaction is sent on the caller's own task: a store that commits without waiting, as an
    /// embedded one does while the disk is quick, has then answered, and no other task is woken.
    pub(crate) fn ready_here(self: &Arc<Self>, plane: Arc<Plane>) {
        if !self.needs_worker(plane) {
            return;
        }
        let mut work = Box::pin(Arc::clone(self).work(RunsOn::CallersTask));
        // A worker that waits is polled again by its own task, with that task's waker.
        let polled = work.as_mut().poll(&mut Context::from_waker(Waker::noop()));
        if polled.is_pending() {
            tokio::spawn(work);
        }
    }

    /// Adds a plane, and returns whether a worker has to be started. It is counted already.
    fn needs_worker(&self, plane: Arc<Plane>) -> bool {
        let mut ready = self.ready.lock();
        ready.planes.push_back(plane);
        ready.about_to_take == 0 && ready.add_worker(&self.limits)
    }

    async fn work(self: Arc<Self>, mut runs_on: RunsOn) {
        let _end_with_it = EndWithPanic("the committer");
        let mut takes = Takes::Started;
        loop {
            if self.is_in_company.load(Ordering::Relaxed) {
                // Requests that are ready to run queue their writes first: they share the transaction.
                tokio::task::yield_now().await;
            }
            let mut lost = Vec::new();
            let parts = self.next_parts(takes, &mut lost);
            for plane in lost {
                plane.end_lost();
            }
            let Some(parts) = parts else {
                return;
            };
            takes = self.commit(build(parts)).await;
            if runs_on == RunsOn::CallersTask && !self.ready.lock().planes.is_empty() {
                // The caller has its answer by now: the transactions of others must not delay it.
                tokio::task::yield_now().await;
            }
            runs_on = RunsOn::OwnTask;
        }
    }

    /// Returns the parts of the next transaction; `None` means that nothing is queued and the
    /// worker's slot was released. Planes whose tenure has ended are added to `lost`.
    fn next_parts(
        self: &Arc<Self>,
        takes: Takes,
        lost: &mut Vec<Arc<Plane>>,
    ) -> Option<Vec<CommitPart>> {
        let mut ready = self.ready.lock();
        ready.comes(takes);
        let ops_max = polyplane_storage::TXN_OPS_MAX.min(self.limits.ops_max);
        let bytes_max = TXN_BYTES_MAX.min(self.limits.txn_bytes_max);
        let alone_bytes = ALONE_BYTES.min(bytes_max);
        let writes_each = ready.writes_each(&self.limits, ops_max);
        let (mut ops, mut indexes, mut bytes) = (0, 0, 0);
        let mut parts: Vec<CommitPart> = Vec::new();
        // Number of planes in a row without a write that fits.
        let mut passed_over = 0;
        while passed_over <= ready.planes.len() {
            let Some(plane) = ready.planes.pop_front() else {
                break;
            };
            // The head record, and the data keys.
            let beside = 1 + plane.data_keys().map_or(0, PlaneKeys::ops_of_part);
            // The largest write alone fits with both: stores take a few more operations.
            let kept_free = if parts.is_empty() { 1 } else { beside };
            let taken = plane.take(Budget {
                writes: writes_each,
                ops: ops_max.saturating_sub(ops + kept_free),
                indexes: INDEXES_MAX - indexes,
                bytes: bytes_max.saturating_sub(bytes),
                alone_bytes,
                fresh: parts.is_empty(),
                share: (!ready.planes.is_empty()).then_some(TURN_BYTES),
            });
            match taken {
                NextPart::Nothing => passed_over = 0,
                NextPart::Lost => {
                    passed_over = 0;
                    lost.push(plane);
                }
                NextPart::Later => {
                    ready.planes.push_back(plane);
                    // While the transaction is empty, the planes' shares grow each round until one
                    // write fits.
                    passed_over = if parts.is_empty() { 0 } else { passed_over + 1 };
                }
                NextPart::Part(writes, compares) => {
                    passed_over = 0;
                    ops += beside + writes.iter().map(QueuedWrite::ops).sum::<usize>();
                    indexes += writes.iter().map(QueuedWrite::indexes).sum::<usize>();
                    let part_bytes = writes.iter().map(|write| write.bytes).sum::<usize>();
                    bytes += part_bytes;
                    parts.push(CommitPart::new(plane, writes, compares));
                    if part_bytes > alone_bytes && parts.len() == 1 || ops + 2 > ops_max {
                        break;
                    }
                }
            }
        }
        if parts.is_empty() {
            ready.workers -= 1;
            return None;
        }
        ready.sends(parts.iter().map(|part| &part.plane));
        let writes: usize = parts.iter().map(|part| part.writes.len()).sum();
        self.is_in_company.store(writes > 1, Ordering::Relaxed);
        // Planes that became ready while this worker was about to take have started no other.
        if !ready.planes.is_empty() && ready.about_to_take == 0 && ready.add_worker(&self.limits) {
            tokio::spawn(Arc::clone(self).work(RunsOn::OwnTask));
        }
        Some(parts)
    }

    /// Sends a transaction and handles the answer.
    async fn commit(self: &Arc<Self>, batch: Batch) -> Takes {
        let Batch {
            txn,
            parts,
            parts_of_compare,
        } = batch;
        let keys: Vec<Bytes> = txn.compares.iter().map(|c| c.key().clone()).collect();
        self.metrics.sends(
            parts.len(),
            parts.iter().map(|part| part.writes.len()).sum(),
        );
        let sent = Instant::now();
        let answer = self.store.commit(txn).await;
        let took = sent.elapsed();
        self.metrics.answered(took, &answer);
        let mut takes = Takes::Again;
        match answer {
            Ok(committed) => {
                let mut ready = self.ready.lock();
                ready.note_took(took);
                // With many parts the first planes would wait until the last one has landed.
                if parts.len() == 1 {
                    ready.about_to_take += 1;
                    takes = Takes::Next;
                }
                drop(ready);
                for part in parts {
                    part.plane.guard().acknowledged();
                    part.plane.clone().land(part, committed.revision);
                }
            }
            Err(CommitError::Refused { failed, at, found }) => {
                let found: Vec<_> = keys.into_iter().zip(found).collect();
                refuse(parts, &parts_of_compare, &failed, at, &found);
            }
            Err(CommitError::Rejected(rejection)) => {
                for part in parts {
                    part.plane.clone().reject(part, &rejection);
                }
            }
            Err(CommitError::Undisclosed(rejection, before)) => {
                let settled = parts.into_iter().map(|part| {
                    let plane = Arc::clone(&part.plane);
                    plane.settle_by_read(part, rejection.clone(), before)
                });
                join_all(settled).await;
            }
            Err(CommitError::Unknown(reason)) => settle(parts, &reason).await,
        }
        takes
    }
}

/// Settles the parts of a transaction of unknown outcome. Returns early if the store refuses to settle
/// one: it may do so for long, and the other planes need the worker.
async fn settle(parts: Vec<CommitPart>, reason: &str) {
    let refused = Arc::new(Notify::new());
    let settled = parts.into_iter().map(|part| {
        let plane = Arc::clone(&part.plane);
        plane.settle(part, reason.to_owned(), Arc::clone(&refused))
    });
    let mut settled = Box::pin(join_all(settled));
    tokio::select! {
        // Polled first: parts that are settled need no task.
        biased;
        _ = &mut settled => {}
        () = refused.notified() => {
            // The task ends once the store accepts a write, or with the planes.
            tokio::spawn(async move {
                let _end_with_it = EndWithPanic("the committer");
                settled.await;
            });
        }
    }
}

/// Handles a refused transaction: the planes whose compares failed are lost, and the parts of the
/// others are sent again.
fn refuse(
    parts: Vec<CommitPart>,
    parts_of_compare: &[Vec<usize>],
    failed: &[usize],
    at: Revision,
    found: &[(Bytes, Option<KeyValue>)],
) {
    let lost: Vec<usize> = failed
        .iter()
        .filter_map(|compare| parts_of_compare.get(*compare))
        .flatten()
        .copied()
        .collect();
    for (number, part) in parts.into_iter().enumerate() {
        let plane = Arc::clone(&part.plane);
        let asked = parts_of_compare.iter().zip(found);
        let own = asked.filter(|(parts_of_compare, _)| parts_of_compare.contains(&number));
        plane.guard().not_done(NotDone::Refused {
            at,
            found: own.map(|(_, found)| found.clone()).collect(),
        });
        if lost.contains(&number) {
            plane.lose(part);
        } else if lost.is_empty() {
            let reason =
                Rejection::Malformed("the store refused a compare that no part needs".into());
            plane.withdraw(part, &reason);
        } else {
            plane.requeue(part);
        }
    }
}

/// Encodes the parts into one transaction.
fn build(parts: Vec<CommitPart>) -> Batch {
    let mut batch = Batch {
        txn: Txn::default(),
        parts: Vec::with_capacity(parts.len()),
        parts_of_compare: Vec::new(),
    };
    let mut index: usize = 0;
    for mut part in parts {
        let number = batch.parts.len();
        for compare in std::mem::take(&mut part.compares) {
            add_compare(&mut batch, compare, number);
        }
        part.index = u8::try_from(index).expect("a transaction has at most 255 events");
        part.keys = part.plane.data_keys().and_then(PlaneKeys::for_part);
        encode(&part, &mut batch.txn.ops);
        index += part.writes.iter().map(QueuedWrite::indexes).sum::<usize>();
        batch.parts.push(part);
    }
    batch
}

fn add_compare(batch: &mut Batch, compare: Compare, part: usize) {
    // All planes share the compare of the member key, which comes early, so the search is short.
    match batch
        .txn
        .compares
        .iter()
        .position(|known| *known == compare)
    {
        Some(at) => batch.parts_of_compare[at].push(part),
        None => {
            batch.txn.compares.push(compare);
            batch.parts_of_compare.push(vec![part]);
        }
    }
}

/// Appends the operations of a part, in the order of its events. Until the part is settled, each
/// call appends the same operations, because nothing else writes the part's keys.
pub(crate) fn encode(part: &CommitPart, ops: &mut Vec<Op>) {
    let plane = &part.plane;
    let published = plane.published();
    let mut deleted: Vec<Version> = Vec::new();
    encode_keys_and_layers(part, ops);
    let operations = part.writes.iter().flat_map(|write| &write.operations);
    for (index, operation) in (part.index..).zip(operations) {
        let previous = operation.previous.as_ref();
        let previous = previous.map(|entry| published.object(entry));
        let version = previous.as_ref().and_then(|object| object.version());
        let version = version.unwrap_or_default();
        let key = plane.keys().object(operation.key());
        let put = |key: Bytes, value: Bytes| Op::Put {
            key,
            value,
            lease: None,
        };
        match &operation.change {
            QueuedChange::Put {
                entry,
                packed,
                nonce,
            } => {
                let created = previous.as_ref().and_then(|object| object.created());
                let header = EventHeader {
                    index,
                    previous: version,
                    created: created.unwrap_or_default(),
                };
                let value = encode_entry(header, entry, packed.as_ref());
                let value = match nonce.as_ref().zip(part.keys.as_ref()) {
                    Some((nonce, keys)) => keys.seal(&key, &value, nonce),
                    None => value,
                };
                ops.push(put(key, value));
            }
            // A deleted layer object needs a tombstone: removing the key would show the layer's
            // object again.
            QueuedChange::Delete(object)
                if published.template_values.template(object).is_some() =>
            {
                ops.push(put(key, encode_tombstone(index, version)));
            }
            QueuedChange::Delete(_) => {
                deleted.push(version);
                ops.push(Op::Delete { key });
            }
        }
    }
    // A delete leaves no value that could carry its version (PROTOCOL 13).
    if !deleted.is_empty() {
        ops.push(Op::Put {
            key: plane.keys().head(),
            value: encode_head(part.index, &deleted),
            lease: None,
        });
    }
    if let Some(follow) = plane.follow() {
        ops.push(Op::Put {
            key: follow.marker().clone(),
            value: encode_marker(),
            lease: None,
        });
    }
}

/// Appends the operations of a part that change no object: its data keys, if they are new, and the
/// commit of a layer step.
fn encode_keys_and_layers(part: &CommitPart, ops: &mut Vec<Op>) {
    let keys = part.plane.keys();
    if let Some(record) = part.keys.as_ref().and_then(PartKeys::record) {
        ops.push(Op::Put {
            key: keys.data_keys(),
            value: record,
            lease: None,
        });
    }
    for commit in part.writes.iter().filter_map(|write| write.layers.as_ref()) {
        ops.push(Op::Put {
            key: keys.steps(),
            value: encode_steps(part.index, commit.record()),
            lease: None,
        });
        let tombstone = |key| Op::Delete {
            key: keys.object(key),
        };
        ops.extend(commit.drops().iter().map(tombstone));
    }
}

/// Returns the value of an entry that is under way, in clear.
fn encode_entry(header: EventHeader, entry: &Entry, packed: Option<&Bytes>) -> Bytes {
    let object = entry.object().expect("what is queued is under way");
    match packed {
        Some(packed) => encode_packed(header, object, packed),
        None => encode_object(header, object),
    }
}
