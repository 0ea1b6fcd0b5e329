//! The writer: one thread that turns queued transactions into batches.
//!
//! The transactions that were queued while the last batch became durable form the next one; there is no
//! timer. Each transaction keeps its own revision, and is tested against the state after the ones
//! before it in the same group. Nothing of a group is answered, published or sent to watchers before
//! the group is durable. That includes refusals, which may rest on earlier transactions of the group.

use std::collections::{HashMap, VecDeque};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::sync::mpsc::{Receiver, RecvTimeoutError};
use std::time::{Duration, Instant};

use bytes::Bytes;

use super::engine::{Engine, EngineError, Garbage};
use super::group::{Group, Live};
use super::layout::Head;
use super::present::Present;
use super::{SledOptions, engine};
use crate::embedded::jobs::{Command, Job, Work, answer_failed, reject};
use crate::embedded::space::Space;
use crate::embedded::state::StoreState;
use crate::error::{OpenError, ReadError, Rejection};
use crate::store::{Health, LeaseId, Revision};
use crate::txn::txn_bytes;
use crate::watch::Hub;

/// Bytes of one group, beyond which the rest of the queue waits for the next group.
const GROUP_BYTES_MAX: usize = 4 * 1024 * 1024;
/// Number of transactions in one group. More would delay the first of them.
const GROUP_TXNS_MAX: usize = 1024;
/// Number of keys whose newest version the writer keeps in memory.
const KNOWN_KEYS_MAX: usize = 16_384;
/// Number of old versions that are dropped with a group, in addition to four for each of its
/// operations. With fewer the history would outgrow its bounds under load.
const TRIM_EXTRA: usize = 64;
/// Number of old versions that are dropped in one batch while the writer is idle. More would delay
/// a transaction that arrives in the meantime.
const TRIM_IDLE: usize = 2_000;
/// Interval of attempts to recover a store that cannot write.
const RETRY: Duration = Duration::from_secs(1);
/// Pause before overdue work that has failed is tried again.
const OVERDUE: Duration = Duration::from_millis(20);

/// The writer's state.
pub(super) struct Writer {
    pub(super) shared: Arc<StoreState<Engine>>,
    pub(super) options: SledOptions,
    pub(super) commands: Receiver<Command>,
    /// The durable counters.
    pub(super) head: Head,
    /// The newest version of recently used keys; `None` if the key is known to be absent.
    pub(super) known: HashMap<Bytes, Option<Live>>,
    /// The filter of keys that may be in the tree.
    pub(super) present: Present,
    /// Versions that another one has replaced, and tombstones, oldest first. Each has the time at
    /// which its age begins: when its group was committed, or when the tree was opened.
    pub(super) garbage: VecDeque<(Duration, Garbage)>,
    pub(super) garbage_bytes: usize,
    /// The floor to which a compaction has allowed dropping history.
    pub(super) wanted_floor: u64,
    pub(super) hub: Hub,
    pub(super) zstd: zstd::bulk::Compressor<'static>,
    pub(super) space: Space,
    /// The time at which a store that cannot write last failed or was tried.
    pub(super) tried: Option<Instant>,
}

impl Writer {
    /// Runs until the store is closed or dropped.
    pub(super) fn run(mut self) {
        loop {
            self.tick();
            let first = match self.wait() {
                Ok(command) => command,
                Err(RecvTimeoutError::Timeout) => continue,
                Err(RecvTimeoutError::Disconnected) => return self.close(),
            };
            let mut jobs = Vec::new();
            let mut bytes = 0;
            let mut next = Some(first);
            while let Some(command) = next {
                match command {
                    Command::Commit(job) => {
                        if let Work::Txn(txn) = &job.work {
                            bytes += txn_bytes(txn);
                        } else {
                            // Runs the queued transactions first, because this must see the keys
                            // that they attach to the lease.
                            self.run_group(std::mem::take(&mut jobs));
                        }
                        jobs.push(job);
                    }
                    Command::Close(reply) => {
                        self.run_group(jobs);
                        self.close();
                        let _ = reply.send(());
                        return;
                    }
                    other => {
                        self.run_group(std::mem::take(&mut jobs));
                        self.answer(other);
                    }
                }
                let full = bytes >= GROUP_BYTES_MAX || jobs.len() >= GROUP_TXNS_MAX;
                next = if full {
                    None
                } else {
                    self.commands.try_recv().ok()
                };
            }
            self.run_group(jobs);
        }
    }

    fn wait(&self) -> Result<Command, RecvTimeoutError> {
        match self.idle_for() {
            Some(wait) => self.commands.recv_timeout(wait),
            None => self
                .commands
                .recv()
                .map_err(|_| RecvTimeoutError::Disconnected),
        }
    }

    /// Returns how long the writer need not do anything by itself; `None` for ever.
    fn idle_for(&self) -> Option<Duration> {
        if *self.shared.health.lock() != Health::Ok {
            return Some(RETRY);
        }
        let now = self.options.clock.now();
        let lease = self.shared.leases.lock().next_deadline();
        let oldest = self
            .garbage
            .front()
            .map(|(since, _)| *since + self.options.history_window);
        // Dropping may be a little late, so that more versions are dropped in one batch.
        let oldest = oldest.map(|due| due + RETRY);
        let due = lease.into_iter().chain(oldest).min();
        // Overdue work was just tried and failed, so it is retried after a pause.
        let work = due.map(|due| {
            due.checked_sub(now)
                .map_or(OVERDUE, |wait| wait.max(Duration::from_millis(1)))
        });
        let check = self.shared.nearly_full.is_watched().then_some(RETRY);
        work.into_iter().chain(check).min()
    }

    /// Does the work that is due without a request: ended leases, old versions, a store that
    /// failed.
    fn tick(&mut self) {
        if self.is_lost() {
            return;
        }
        if *self.shared.health.lock() != Health::Ok {
            self.try_recover();
        } else if self.shared.nearly_full.is_watched() {
            self.check_idle();
        }
        self.end_leases();
        let due = self
            .options
            .clock
            .now()
            .saturating_sub(self.options.history_window);
        if self
            .garbage
            .front()
            .is_some_and(|(since, _)| *since + RETRY <= due)
        {
            self.trim_now();
        }
    }

    /// Returns whether the store's folder was removed or replaced, with which the store has failed for good. Then the
    /// tree is closed.
    fn is_lost(&self) -> bool {
        let is_lost = self.shared.check_folder().is_err();
        if is_lost {
            drop(engine::discard(self.shared.engine.write().take()));
        }
        is_lost
    }

    /// Checks the space of a store that is nearly full, or was a moment ago. Few clients write to it, so
    /// otherwise nothing might notice that there is more room, or none.
    fn check_idle(&mut self) {
        if let Err(shortage) = self.space.check(0) {
            let reason = format!("no space: {shortage}");
            self.shared.set_health(Health::ReadOnly { reason });
        }
    }

    /// Deletes the keys that are attached to ended leases.
    pub(super) fn end_leases(&mut self) {
        let ended = self.shared.leases.lock().expired(self.options.clock.now());
        for lease in ended {
            self.run_group(vec![Job {
                work: Work::EndLease(lease),
                reply: None,
                permit: None,
            }]);
        }
    }

    fn answer(&mut self, command: Command) {
        match command {
            Command::Compact { below, reply } => {
                let _ = reply.send(self.compact(below));
            }
            Command::Watch {
                start,
                end,
                after,
                reply,
            } => {
                let head = self.shared.head();
                let opened = self.hub.open((start, end), after, head);
                let _ = reply.send(opened.map(|(watch, sender)| (watch, sender, head)));
            }
            Command::Broken {
                opening,
                why,
                reply,
            } => {
                self.mend(opening, why);
                let _ = reply.send(Ok(()));
            }
            Command::Progress => self.hub.report_progress(Revision(self.head.revision)),
            Command::Wake | Command::Commit(_) | Command::Close(_) => {}
        }
    }

    fn compact(&mut self, below: Revision) -> Result<(), ReadError> {
        if below.0 > self.head.revision {
            return Err(ReadError::Future {
                head: Revision(self.head.revision),
            });
        }
        self.wanted_floor = self.wanted_floor.max(below.0);
        while self.head.floor < self.wanted_floor || self.next_is_due() {
            if !self.trim_now() {
                let text = "the store accepts no writes now".to_owned();
                return Err(ReadError::Unavailable(text));
            }
        }
        Ok(())
    }

    /// Drops old versions in a batch of their own. Returns false if that failed.
    fn trim_now(&mut self) -> bool {
        let mut group = Group::new(self.head);
        if self.is_lost() || self.shared.engine.read().is_none() {
            return false;
        }
        if let Err(shortage) = self.space.check(TRIM_IDLE * 64) {
            self.shared.set_health(Health::ReadOnly {
                reason: format!("no space: {shortage}"),
            });
            return false;
        }
        self.trim(&mut group, TRIM_IDLE);
        self.write(group)
    }

    fn next_is_due(&self) -> bool {
        let Some((since, oldest)) = self.garbage.front() else {
            return false;
        };
        let age = self.options.clock.now().saturating_sub(*since);
        oldest.at <= self.wanted_floor
            || oldest.at <= self.head.floor
            || age > self.options.history_window
            || self.garbage_bytes > self.options.history_bytes_max
    }

    /// Adds the removal of at most `most` old versions to a group and raises the floor accordingly.
    fn trim(&mut self, group: &mut Group, most: usize) {
        for _ in 0..most {
            if !self.next_is_due() {
                break;
            }
            let Some((_, oldest)) = self.garbage.pop_front() else {
                break;
            };
            self.garbage_bytes -= oldest.bytes_held();
            group.drop_version(&oldest);
        }
        let wanted = self.wanted_floor.max(self.head.floor);
        group.head.floor = group.head.floor.max(wanted);
        // Raised before any reader can miss one of these versions.
        self.shared
            .floor
            .fetch_max(group.head.floor, Ordering::SeqCst);
    }

    /// Tests, writes, publishes and answers a group of transactions.
    fn run_group(&mut self, jobs: Vec<Job>) {
        if jobs.is_empty() {
            return;
        }
        if self.is_lost() {
            let why = self.shared.refusal();
            return reject(jobs, &Rejection::ReadOnly(why));
        }
        if self.shared.engine.read().is_none() {
            self.try_recover();
        }
        if self.known.len() > KNOWN_KEYS_MAX {
            self.known.clear();
        }
        let mut group = Group::new(self.head);
        let shared = Arc::clone(&self.shared);
        let tree = shared.engine.read();
        let Some(db) = tree.as_ref().map(|engine| &engine.db) else {
            drop(tree);
            let why = self.shared.refusal();
            return reject(jobs, &Rejection::ReadOnly(why));
        };
        for job in jobs {
            let result = self.prepare(db, &mut group, &job.work);
            group.answers.push(job, result);
        }
        drop(tree);
        if group.is_unchanged() {
            return group.answers.send();
        }
        if let Err(shortage) = self.space.check(group.bytes) {
            self.known.clear();
            self.shared.set_health(Health::ReadOnly {
                reason: format!("no space: {shortage}"),
            });
            return group
                .answers
                .reject(&Rejection::NoSpace(shortage.to_string()));
        }
        let most = TRIM_EXTRA + 4 * group.operations;
        self.trim(&mut group, most);
        self.write(group);
    }

    /// Makes a group durable, publishes it and answers its callers. On failure it finds out what
    /// happened to the group.
    fn write(&mut self, mut group: Group) -> bool {
        let batch = group.take_batch();
        let result = match self.shared.engine.read().as_ref() {
            Some(engine) => engine.write(batch),
            None => Err(EngineError::NotOpen),
        };
        let head = Revision(group.head.revision);
        let result = result.and_then(|()| {
            let synced = self.options.disk.after_sync(head);
            synced.map_err(EngineError::Sync)
        });
        if self.is_lost() {
            // The group went with the folder, so no later opening of the path finds it.
            group.answers.unknown(&self.shared.refusal());
            return false;
        }
        match result {
            Ok(()) => {
                self.publish(group);
                true
            }
            Err(error) => self.settle(group, &error),
        }
    }

    fn publish(&mut self, mut group: Group) {
        self.head = group.head;
        self.shared.folder.acknowledge(self.head.revision);
        group
            .added
            .drain(..)
            .for_each(|mark| self.present.add(mark));
        let dropped = group.dropped.drain(..);
        dropped.for_each(|mark| self.present.subtract(mark));
        let now = self.options.clock.now();
        for garbage in group.garbage.drain(..) {
            self.garbage_bytes += garbage.bytes_held();
            self.garbage.push_back((now, garbage));
        }
        let mut leases = self.shared.leases.lock();
        leases.apply(group.attached, group.ended);
        drop(leases);
        self.shared
            .published
            .store(self.head.revision, Ordering::SeqCst);
        for (revision, events) in group.events.drain(..) {
            self.hub.publish(revision, &events);
        }
        self.shared.set_health(Health::Ok);
        group.answers.send();
    }

    /// After a failed write: opens the tree again and answers each caller with the outcome of its
    /// transaction, as far as that can be determined. Returns true if the group is durable after all.
    fn settle(&mut self, group: Group, error: &EngineError) -> bool {
        tracing::error!(%error, "a batch failed; opening the store again");
        self.tried = Some(Instant::now());
        let full = self.space.check(group.bytes).err();
        if full.is_some() {
            self.space.release_ballast();
        }
        let before = self.head.revision;
        let opened = self.reopen(error.is_of_disk());
        match opened {
            Ok(()) if self.head.revision == group.head.revision && before != self.head.revision => {
                // What a failed sync may have left in memory was written again, and opening synced the
                // file, so the batch that was found in it is durable. The counters of the tree are those
                // of the group, and the state that opening has found is valid.
                let mut group = group;
                group.head = self.head;
                group.garbage.clear();
                group.added.clear();
                group.dropped.clear();
                self.publish(group);
                true
            }
            opened => {
                let opened = opened.map(|()| self.head.revision == before);
                let error = error.to_string();
                answer_failed(&self.shared, group.answers, &error, opened, full.as_ref());
                false
            }
        }
    }

    /// Opens a tree again that broke while no batch was being written.
    fn mend(&mut self, opening: u64, why: String) {
        if self.shared.openings.load(Ordering::SeqCst) != opening || self.is_lost() {
            return;
        }
        self.tried = Some(Instant::now());
        if self.space.check(0).is_err() {
            self.space.release_ballast();
        }
        let health = match self.reopen(false) {
            Ok(()) => Health::ReadOnly { reason: why },
            Err(error) => Health::Failed {
                reason: format!("{why}; opening again: {error}"),
            },
        };
        self.shared.set_health(health);
    }

    /// Tries to make a store that does not accept writes usable: opens it if it is not open, and
    /// checks the space.
    fn try_recover(&mut self) {
        if self.tried.is_some_and(|tried| tried.elapsed() < RETRY) || self.is_lost() {
            return;
        }
        self.tried = Some(Instant::now());
        let closed = self.shared.engine.read().is_none();
        let opened = if closed { self.reopen(true) } else { Ok(()) };
        if let Err(error) = opened {
            let reason = format!("opening again: {error}");
            return self.shared.set_health(Health::Failed { reason });
        }
        match self.space.check(0) {
            // Only a successful write shows that the store can write again. This one writes the
            // head record unchanged.
            Ok(()) => _ = self.write(Group::new(self.head)),
            Err(shortage) => {
                let reason = format!("no space: {shortage}");
                self.shared.set_health(Health::ReadOnly { reason });
            }
        }
    }

    /// Closes and opens the tree again, and uses the state that this finds. If `disk_failed`, or if the
    /// tree's own handle reports it, data in the system's memory does not count as written.
    fn reopen(&mut self, disk_failed: bool) -> Result<(), OpenError> {
        let checked = self.shared.check_folder();
        checked.map_err(|lost| lost.at_opening(&self.shared.folder.path))?;
        let mut slot = self.shared.engine.write();
        let old_file = engine::discard(slot.take());
        self.known.clear();
        if old_file.is_some_and(|file| file.sync_data().is_err()) || disk_failed {
            engine::rewrite(&self.shared.folder)?;
        }
        let (engine, head, census) =
            Engine::open(&self.shared.folder, self.options.engine_again())?;
        let now = self.options.clock.now();
        self.garbage = census
            .garbage
            .into_iter()
            .map(|garbage| (now, garbage))
            .collect();
        self.garbage_bytes = self
            .garbage
            .iter()
            .map(|(_, garbage)| garbage.bytes_held())
            .sum();
        self.present = census.present;
        let mut leases = self.shared.leases.lock();
        leases.detach_all();
        for (key, lease) in census.leased {
            leases.attach(&key, Some(LeaseId(lease)));
        }
        drop(leases);
        if head.revision > self.head.revision {
            self.hub.cut("the store was opened again");
        }
        self.head = head;
        self.shared.floor.fetch_max(head.floor, Ordering::SeqCst);
        self.shared
            .published
            .fetch_max(head.revision, Ordering::SeqCst);
        *slot = Some(engine);
        self.shared.openings.fetch_add(1, Ordering::SeqCst);
        Ok(())
    }

    fn close(&mut self) {
        self.shared.closed.store(true, Ordering::SeqCst);
        self.hub.close();
        // All answered transactions are durable; sled's remaining writes need not be.
        engine::discard(self.shared.engine.write().take());
        let _ = self.shared.folder.sync_acked();
        self.shared.folder.unlock();
        while let Ok(command) = self.commands.try_recv() {
            // The callers of other commands see that their reply channel is dropped; see
            // `SledStore`.
            if let Command::Commit(job) = command {
                reject([job], &Rejection::Closed);
            }
        }
        let reason = "the store is closed".to_owned();
        *self.shared.health.lock() = Health::Failed { reason };
    }
}
