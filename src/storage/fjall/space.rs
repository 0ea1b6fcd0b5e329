//! What the writer does about a disk that fills.
//!
//! Each write stays in the journal and in memory, and later in tables as well. What it replaces or deletes lies in
//! the log once more, so that a deletion takes about as much room as its object had. So while the store is nearly
//! full, it keeps little history, and none of a group that replaces or deletes much ([`Writer::forgets`]); and
//! the journals are emptied early ([`Writer::make_room`]). So deletions need room for their keys only, and that comes
//! back.
//!
//! The rows of deleted objects leave the disk when tables are merged. `room` holds merges back that do not
//! fit; then the writer writes memtables to tables itself, because the worker waits. Each time that adds a run of
//! tables. With half as many as there may be the store counts as nearly full, whatever is free, so that the
//! other half is left to deletions.

use std::path::Path;
use std::time::{Duration, Instant};

use super::engine::{self, Engine};
use super::group::Group;
use super::journal;
use super::writer::{RETRY, Writer};
use crate::embedded::space::{Pending, Shortage};
use crate::error::OpenError;
use crate::store::Health;

/// Part of the reserve that history may take while the store is nearly full, and that journals may take
/// before they are emptied. With a larger one, deletions could use up the reserve in between.
const KEPT_PART: u64 = 4;

/// Bytes of events beyond which a nearly full store logs none of a group. Reads of older revisions, also those
/// of a plane that is being loaded in pages, then fail and are begun again, so small changes are logged.
const LOGGED_BYTES_MAX: u64 = 8 * 1024;

/// Bytes of tables up to which rows are counted. Writes wait for that, and the larger a store is, the sooner
/// what is known of its dead rows is enough.
const COUNTED_BYTES_MAX: u64 = 2 * 1024 * 1024 * 1024;
/// Interval of counting rows, at least.
const COUNT_EVERY: Duration = Duration::from_secs(10);

impl Writer {
    /// Checks that a batch fits, beside what is in memory.
    pub(super) fn check_space(&mut self, batch_bytes: usize) -> Result<(), Shortage> {
        let (pending, wanted) = match self.shared.engine.read().as_ref() {
            Some(engine) => {
                let pending = Pending {
                    bytes: engine.unflushed_bytes(),
                    merge_bytes: engine.due_merge(),
                };
                (pending, engine.wanted_bytes())
            }
            None => (Pending::default(), None),
        };
        self.space.check_beside(batch_bytes, pending)?;
        match wanted {
            Some(needed) => Err(Shortage::Merge {
                available: self.space.gauge().free_bytes(),
                needed,
            }),
            None => Ok(()),
        }
    }

    /// Notes that a batch was refused. That a large one does not fit says nothing about others.
    pub(super) fn note_shortage(&self, shortage: &Shortage) {
        if matches!(shortage, Shortage::TooLittle { .. }) && !self.space.is_full() {
            return;
        }
        let reason = format!("no space: {shortage}");
        self.shared.set_health(Health::ReadOnly { reason });
    }

    /// Checks the space of a store that is nearly full, or was a moment ago. Few clients write to it, so
    /// otherwise nothing might notice that there is more room, or none.
    pub(super) fn check_idle(&mut self) {
        if let Err(shortage) = self.check_space(0) {
            self.note_shortage(&shortage);
        }
    }

    /// Returns whether a group is to be written without its history, because there is no room for it.
    pub(super) fn forgets(&self, group: &Group) -> bool {
        if !self.shared.nearly_full.get() || group.dead_bytes == 0 {
            return false;
        }
        let opened = self.shared.engine.read();
        group.log_bytes > LOGGED_BYTES_MAX || opened.as_ref().is_some_and(Engine::is_crowded)
    }

    /// Returns whether the log is to be trimmed for its size, of which a group under way makes so many bytes.
    /// The newest part stays: it may be what an owner reads to learn whether its write was applied.
    pub(super) fn is_too_much_history(&self, log_bytes: u64) -> bool {
        let most = u64::try_from(self.options.history_bytes_max).unwrap_or(u64::MAX);
        let kept = self.options.reserve_bytes / KEPT_PART;
        let is_cramped = self.shared.nearly_full.get() && self.parts.len() > 1;
        log_bytes > most || is_cramped && log_bytes > kept
    }

    /// Frees room if that is worth it: writes everything to tables, drops history, and empties the journals.
    pub(super) fn make_room(&mut self) {
        let pauses = self.no_room.is_some_and(|tried| tried.elapsed() < RETRY);
        if pauses {
            return;
        }
        if !self.can_make_room() {
            if self.is_stuck() {
                self.no_room = Some(Instant::now());
                self.open_again(journal::rewrite);
            }
            return;
        }
        self.no_room = Some(Instant::now());
        if self.shared.nearly_full.get() {
            self.trim_now();
        }
        let flushed = self.shared.engine.read().as_ref().map(Engine::flush);
        match flushed {
            None => return,
            // What it has written of a table is deleted when the database is opened.
            Some(Err(error)) => return self.mend(&error.to_string()),
            Some(Ok(())) => self.drop_log(),
        }
        if let Some(engine) = self.shared.engine.read().as_ref() {
            engine.add_dead(std::mem::take(&mut self.dead_bytes));
        }
        if self.open_again(journal::clear) && !self.has_large_journals() {
            self.no_room = None;
        }
    }

    /// Opens the database again, which frees the room of files that nothing needs. Returns false if that failed.
    fn open_again(&mut self, journals: fn(&Path) -> Result<(), OpenError>) -> bool {
        let (head, parts) = (self.head, std::mem::take(&mut self.parts));
        if let Err(error) = self.reopen(journals) {
            self.tried = Some(Instant::now());
            let reason = format!("opening again, to make room: {error}");
            self.shared.set_health(Health::Failed { reason });
            return false;
        }
        if self.head == head {
            // Nothing was lost, so the ages of the log's parts are still known.
            self.parts = parts;
        }
        true
    }

    /// Returns whether what a merge has written takes room in vain. The journals have what is in memory, so the
    /// database can be opened again although there is no room to write that to tables.
    fn is_stuck(&self) -> bool {
        let opened = self.shared.engine.read();
        opened.as_ref().is_some_and(Engine::is_stuck)
    }

    fn has_large_journals(&self) -> bool {
        let path = engine::database_path(&self.shared.folder);
        let found = journal::used_bytes(&path);
        let bytes = self
            .journal_bytes
            .note("the bytes of the store's journals", found);
        bytes > self.options.reserve_bytes / KEPT_PART
    }

    /// Returns whether so many bytes were replaced or deleted that a merge of them is worth writing all to tables.
    /// That adds a run, and there may be only so many of them before a merge: so not if that could not begin
    /// even then.
    fn has_many_dead(&self, engine: &Engine) -> bool {
        self.dead_bytes >= self.options.reserve_bytes && self.lets_merge(engine)
            || engine.live_fits()
    }

    /// Returns whether a merge fits once the rows that were replaced or deleted are known to be dead.
    fn lets_merge(&self, engine: &Engine) -> bool {
        let wanted = engine.merge_wants().unwrap_or(0);
        let free = self.space.gauge().free_bytes();
        wanted.saturating_sub(self.dead_bytes) <= free || engine.live_fits()
    }

    /// Counts the rows that are left, if a merge waits and the store is nearly full: rows that were replaced before
    /// that are dead too, and nothing else tells. Writes wait meanwhile.
    pub(super) fn count_live(&mut self) {
        let is_due = |(at, took): (Instant, Duration)| at.elapsed() > COUNT_EVERY.max(took * 20);
        if !self.shared.nearly_full.get() || !self.counted.is_none_or(is_due) {
            return;
        }
        let opened = self.shared.engine.read();
        let Some(engine) = opened.as_ref() else {
            return;
        };
        let waits = engine.merge_wants().is_some() && !engine.is_merging();
        if !waits || engine.live_fits() || engine.table_bytes() > COUNTED_BYTES_MAX {
            return;
        }
        let began = Instant::now();
        if let Err(error) = engine.count_live() {
            tracing::warn!(%error, "the rows of the store cannot be counted");
        }
        self.counted = Some((began, began.elapsed()));
    }

    fn can_make_room(&self) -> bool {
        let opened = self.shared.engine.read();
        let Some(engine) = opened.as_ref() else {
            return false;
        };
        let is_worth_it = || self.has_many_dead(engine) || self.has_large_journals();
        let is_due = engine.wants_opening() || self.shared.nearly_full.get() && is_worth_it();
        if !is_due || engine.is_merging() {
            // Opening the database would end the merge, which frees room itself.
            return false;
        }
        if engine.has_all_runs() && !self.lets_merge(engine) {
            return false;
        }
        let gauge = self.space.gauge();
        let growth = gauge.kept_bytes - gauge.reserve_bytes;
        gauge.free_bytes() >= engine.unflushed_bytes() + growth && !engine.is_broken()
    }
}
