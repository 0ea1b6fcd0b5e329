//! The writer: turns queued transactions into batches.
//!
//! Each transaction keeps its own revision, and is tested against the state after the ones before it in
//! the same group. Nothing of a group is answered, shown or sent to watchers before the group is
//! durable. That includes refusals, which may rest on earlier transactions of the group.
//!
//! `space` is what it does about a disk that fills, `recovery` what it does about an engine that fails.
//!
//! Runs on whatever thread `queue` runs it on; it is never run by two at once.

use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use tokio::sync::oneshot;

use super::FjallOptions;
use super::engine::{self, Engine, EngineError};
use super::group::{Compared, Group};
use super::record::Head;
use super::recovery::Failures;
use crate::embedded::jobs::{Command, Job, Work, reject};
use crate::embedded::space::{LastKnown, Space};
use crate::embedded::state::StoreState;
use crate::error::{ReadError, Rejection};
use crate::store::{Health, Revision};
use crate::watch::Hub;

/// Interval of attempts to recover a store that cannot write, and of those to make room.
pub(super) const RETRY: Duration = Duration::from_secs(1);
/// Pause before overdue work that has failed is tried again.
const OVERDUE: Duration = Duration::from_millis(20);
/// Parts of a log that was found when the store was opened, of which only the size is known.
const FOUND_PARTS: u64 = 16;
/// Parts of the log that fit into the window of history by bytes: it is trimmed by parts.
const WINDOW_PARTS: u64 = 64;
/// Longest time that one part of the log spans.
const PART_SPAN: Duration = Duration::from_secs(1);

/// A stretch of the log, trimmed as a whole.
#[derive(Debug, Clone, Copy)]
pub(super) struct LogPart {
    /// The times at which its first and its newest event were committed, or the store was opened.
    first: Duration,
    newest: Duration,
    /// Its newest revision.
    through: u64,
    bytes: u64,
}

/// The parts of a log that was found when the store was opened.
pub(super) fn found_parts(head: Head, now: Duration) -> VecDeque<LogPart> {
    let revisions = head.revision.saturating_sub(head.floor);
    let parts = revisions.clamp(1, FOUND_PARTS);
    let part = |number: u64| LogPart {
        first: now,
        newest: now,
        through: head.floor + revisions * (number + 1) / parts,
        bytes: head.log_bytes / parts,
    };
    match revisions {
        0 => VecDeque::new(),
        _ => (0..parts).map(part).collect(),
    }
}

/// The writer's state.
pub(super) struct Writer {
    pub(super) shared: Arc<StoreState<Engine>>,
    pub(super) options: FjallOptions,
    /// The durable counters.
    pub(super) head: Head,
    /// The log above the floor, oldest first.
    pub(super) parts: VecDeque<LogPart>,
    /// Approximate bytes of events below the floor that tables still hold.
    pub(super) dropped_bytes: u64,
    /// What is known of compared keys; empty after an opening.
    pub(super) compared: Compared,
    /// History below this was given up by a compaction.
    pub(super) wanted_floor: u64,
    pub(super) hub: Hub,
    pub(super) zstd: zstd::bulk::Compressor<'static>,
    pub(super) space: Space,
    /// The bytes that the journals take on the disk.
    pub(super) journal_bytes: LastKnown,
    /// The time at which a store that cannot write last failed or was tried.
    pub(super) tried: Option<Instant>,
    /// The failures of the engine that no write of a caller has caused.
    pub(super) failures: Failures,
    /// The time at which the database was last opened again for a reader that met an error.
    pub(super) reread: Option<Instant>,
    /// Bytes of rows that were replaced or deleted while the store was nearly full, of which no table says that.
    pub(super) dead_bytes: u64,
    /// The time at which the writer last tried to make room in vain.
    pub(super) no_room: Option<Instant>,
    /// The time at which the rows were last counted, and how long that took.
    pub(super) counted: Option<(Instant, Duration)>,
    /// Set by a command to close, and answered when the writer is closed.
    pub(super) closing: Option<oneshot::Sender<()>>,
}

impl Writer {
    /// Executes commands, transactions in groups.
    pub(super) fn run(&mut self, commands: Vec<Command>) {
        let mut jobs = Vec::new();
        for command in commands {
            match command {
                Command::Commit(job) => {
                    if matches!(job.work, Work::EndLease(_)) {
                        // Runs the queued transactions first, because this must see the keys that they attach to
                        // the lease.
                        self.run_group(std::mem::take(&mut jobs));
                    }
                    jobs.push(job);
                }
                other => {
                    self.run_group(std::mem::take(&mut jobs));
                    self.answer(other);
                }
            }
        }
        self.run_group(jobs);
    }

    /// Returns how long the writer need not run unless a command comes; `None` for ever.
    pub(super) fn idle_for(&self) -> Option<Duration> {
        if *self.shared.health.lock() != Health::Ok {
            return Some(RETRY);
        }
        let now = self.options.clock.now();
        let lease = self.shared.leases.lock().next_deadline();
        let oldest = self.parts.front();
        // Trimming may be a little late, so that one batch drops more.
        let oldest = oldest.map(|part| part.newest + self.options.history_window + RETRY);
        let due = lease.into_iter().chain(oldest).min();
        // Overdue work was just tried and failed, so it is retried after a pause.
        let work = due.map(|due| {
            due.checked_sub(now)
                .map_or(OVERDUE, |wait| wait.max(Duration::from_millis(1)))
        });
        let check = self.shared.nearly_full.is_watched().then_some(RETRY);
        work.into_iter().chain(check).min()
    }

    /// Does the work that is due by time: leases that ended, old history, a store that failed.
    pub(super) fn tick(&mut self) {
        if self.is_closed() || self.is_lost() {
            return;
        }
        if *self.shared.health.lock() != Health::Ok {
            self.try_recover();
        } else if self.shared.nearly_full.is_watched() {
            self.check_idle();
        }
        self.count_live();
        self.make_room();
        self.end_leases();
        let now = self.options.clock.now();
        let due = now.saturating_sub(self.options.history_window + RETRY);
        if self.parts.front().is_some_and(|part| part.newest <= due) {
            self.trim_now();
        }
        self.drop_log_if_due();
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
                let is_current = self.shared.openings.load(Ordering::SeqCst) == opening;
                if is_current && !self.is_closed() {
                    self.mend_for_reader(&why);
                }
                let _ = reply.send(Ok(()));
            }
            Command::Close(reply) => self.close(reply),
            Command::Progress => self.hub.report_progress(Revision(self.head.revision)),
            Command::Wake | Command::Commit(_) => {}
        }
    }

    fn compact(&mut self, below: Revision) -> Result<(), ReadError> {
        if below.0 > self.head.revision {
            return Err(ReadError::Future {
                head: Revision(self.head.revision),
            });
        }
        self.wanted_floor = self.wanted_floor.max(below.0);
        if self.head.floor < self.wanted_floor && !self.trim_now() {
            let text = "the store takes no writes now".to_owned();
            return Err(ReadError::Unavailable(text));
        }
        Ok(())
    }

    /// Raises the floor in a batch of its own. Returns false if that failed.
    pub(super) fn trim_now(&mut self) -> bool {
        if self.rests() || self.is_lost() {
            return false;
        }
        match self.check_space(0) {
            Ok(()) => self.write_head(),
            Err(shortage) => {
                self.note_shortage(&shortage);
                false
            }
        }
    }

    /// Writes the head record, and raises the floor with it if that is due. Returns false if that failed.
    pub(super) fn write_head(&mut self) -> bool {
        let shared = Arc::clone(&self.shared);
        let opened = shared.engine.read();
        let Some(engine) = opened.as_ref() else {
            return false;
        };
        let mut group = Group::new(engine, self.head, std::mem::take(&mut self.compared));
        self.trim(&mut group);
        drop(opened);
        self.write(group)
    }

    /// Raises the floor of a group over what is too old, or too much.
    fn trim(&mut self, group: &mut Group) {
        let now = self.options.clock.now();
        while let Some(oldest) = self.parts.front() {
            let is_old = now.saturating_sub(oldest.newest) > self.options.history_window;
            let is_much = self.is_too_much_history(group.head.log_bytes);
            let floor = group.head.floor.max(self.wanted_floor);
            if !is_old && oldest.through > floor && !is_much {
                break;
            }
            group.head.floor = group.head.floor.max(oldest.through);
            group.head.log_bytes = group.head.log_bytes.saturating_sub(oldest.bytes);
            self.dropped_bytes += oldest.bytes;
            self.parts.pop_front();
        }
        group.head.floor = group.head.floor.max(self.wanted_floor);
        // Before a reader can miss any of it. Never beyond what is published: if the group fails, readers need
        // the newest revision.
        let shown = self.shared.published.load(Ordering::SeqCst);
        let floor = group.head.floor.min(shown);
        self.shared.floor.fetch_max(floor, Ordering::SeqCst);
    }

    /// Deletes tables of the log once there is enough in them that is below the floor.
    fn drop_log_if_due(&mut self) {
        if self.dropped_bytes >= 2 * self.options.memtable_bytes {
            self.drop_log();
        }
    }

    /// Deletes the tables of the log that are below the floor.
    pub(super) fn drop_log(&mut self) {
        self.dropped_bytes = 0;
        let opened = self.shared.engine.read();
        let dropped = opened
            .as_ref()
            .map(|engine| engine.drop_log(self.head.floor));
        if let Some(Err(error)) = dropped {
            // They are dropped with later ones. If the disk is in trouble the next write shows it.
            tracing::warn!(%error, "old history was not deleted");
        }
    }

    /// Tests, writes, publishes and answers a group of transactions.
    fn run_group(&mut self, jobs: Vec<Job>) {
        if jobs.is_empty() {
            return;
        }
        if self.is_closed() {
            return reject(jobs, &Rejection::Closed);
        }
        if self.is_lost() {
            let why = self.shared.refusal();
            return reject(jobs, &Rejection::ReadOnly(why));
        }
        if !self.rests() {
            let broken = self.shared.engine.read().as_ref().map(Engine::is_broken);
            match broken {
                None => self.try_recover(),
                Some(true) => self.mend("a worker thread of the engine failed"),
                Some(false) => self.make_room(),
            }
        }
        if self.rests() {
            let why = self.shared.refusal();
            return reject(jobs, &Rejection::ReadOnly(why));
        }
        let shared = Arc::clone(&self.shared);
        let opened = shared.engine.read();
        let Some(engine) = opened.as_ref() else {
            drop(opened);
            let why = self.shared.refusal();
            return reject(jobs, &Rejection::ReadOnly(why));
        };
        let mut group = Group::new(engine, self.head, std::mem::take(&mut self.compared));
        for job in jobs {
            let result = self.prepare(engine, &mut group, &job.work);
            group.answers.push(job, result);
        }
        drop(opened);
        if group.is_unchanged() {
            self.compared = group.compared;
            return group.answers.send();
        }
        if self.forgets(&group) {
            group.forget_history();
        }
        if let Err(shortage) = self.check_space(group.bytes) {
            self.note_shortage(&shortage);
            return group
                .answers
                .reject(&Rejection::NoSpace(shortage.to_string()));
        }
        self.log(&mut group);
        self.trim(&mut group);
        self.write(group);
    }

    /// Counts what a group adds to the log.
    fn log(&mut self, group: &mut Group) {
        let now = self.options.clock.now();
        let most = self.options.history_bytes_max / usize::try_from(WINDOW_PARTS).unwrap_or(1);
        let most = u64::try_from(most).unwrap_or(u64::MAX);
        group.head.log_bytes += group.log_bytes;
        let (through, bytes) = (group.head.revision, group.log_bytes);
        match self.parts.back_mut() {
            Some(part) if part.bytes + bytes <= most && now <= part.first + PART_SPAN => {
                part.newest = now;
                part.through = through;
                part.bytes += bytes;
            }
            _ => self.parts.push_back(LogPart {
                first: now,
                newest: now,
                through,
                bytes,
            }),
        }
    }

    /// Makes a group durable, publishes it and answers its callers. On failure it finds out what happened to
    /// the group.
    pub(super) fn write(&mut self, mut group: Group) -> bool {
        let head = Revision(group.head.revision);
        let result = match self.shared.engine.read().as_ref() {
            Some(engine) => engine.write(group.finish(engine)),
            None => Err(EngineError::Engine("not open".to_owned())),
        };
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

    pub(super) fn publish(&mut self, mut group: Group) {
        self.head = group.head;
        self.compared = group.compared;
        self.shared.folder.acknowledge(self.head.revision);
        let mut leases = self.shared.leases.lock();
        leases.apply(group.attached, group.ended);
        drop(leases);
        self.shared
            .floor
            .fetch_max(self.head.floor, Ordering::SeqCst);
        if let Some(engine) = self.shared.engine.read().as_ref() {
            engine.show(self.head.revision);
        }
        if self.shared.nearly_full.get() {
            self.dead_bytes = self.dead_bytes.saturating_add(group.dead_bytes);
        }
        self.shared
            .published
            .store(self.head.revision, Ordering::SeqCst);
        for (revision, events) in group.events.drain(..) {
            self.hub.publish(revision, &events);
        }
        self.shared.set_health(Health::Ok);
        group.answers.send();
    }

    /// Returns whether no more than the queued transactions is to be done: no room to be made, nothing to be opened.
    pub(super) fn is_calm(&self) -> bool {
        let is_usable = |engine: &Engine| !engine.is_broken() && !engine.wants_opening();
        *self.shared.health.lock() == Health::Ok
            && !self.shared.nearly_full.get()
            && self.shared.engine.read().as_ref().is_some_and(is_usable)
    }

    /// Returns whether a command has closed the store.
    pub(super) fn is_closed(&self) -> bool {
        self.closing.is_some()
    }

    fn close(&mut self, reply: oneshot::Sender<()>) {
        self.shared.closed.store(true, Ordering::SeqCst);
        self.hub.close();
        engine::discard(self.shared.engine.write().take());
        let _ = self.shared.folder.sync_acked();
        self.shared.folder.unlock();
        let reason = "the store is closed".to_owned();
        *self.shared.health.lock() = Health::Failed { reason };
        self.closing = Some(reply);
    }

    /// Answers the command to close, after every other caller has its answer.
    pub(super) fn closed(mut self) {
        if let Some(reply) = self.closing.take() {
            let _ = reply.send(());
        }
    }
}
