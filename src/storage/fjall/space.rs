//! What the writer does about a disk that fills.
//!
//! Each write stays in the journal and in memory, and later in tables as well. What it replaces or deletes lies in
//! the log once more, so that a deletion takes about as much room as its object had. So while the store is nearly
//! full, it keeps little history, and none of a group that replaces or deletes much ([`Writer::forgets`]); and
//! the journals are emptied early ([`Writer::make_room`]). So deletions need room for their keys only, and that comes
//! back.
//!
//! The rows of deleted objects leave the disk when tables are merged. `room` holds merges back that do not
//! fit; then the writer writes memtables to tables itself, because the worker waits.

use std::time::Instant;

use super::engine::{self, Engine};
use super::group::Group;
use super::journal;
use super::writer::{RETRY, Writer};
use crate::embedded::space::{Pending, Shortage};
use crate::store::Health;

/// Part of the reserve that history may take while the store is nearly full, and that journals may take
/// before they are emptied. With a larger one, deletions could use up the reserve in between.
const KEPT_PART: u64 = 4;

/// Bytes of events beyond which a nearly full store logs none of a group. Reads of older revisions, also those
/// of a plane that is being loaded in pages, then fail and are begun again, so small changes are logged.
const LOGGED_BYTES_MAX: u64 = 8 * 1024;

impl Writer {
    /// Checks that a batch fits, beside what is in memory.
    pub(super) fn check_space(&mut self, batch_bytes: usize) -> Result<(), Shortage> {
        let (pending, wanted) = match self.shared.engine.read().as_ref() {
            Some(engine) => (engine.unflushed_bytes(), engine.wanted_bytes()),
            None => (0, None),
        };
        self.space.check_beside(batch_bytes, Pending(pending))?;
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

    /// Checks the space of a store that is nearly full. Few clients write to it, so otherwise nothing
    /// might notice that there is more room, or none.
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
        if pauses || !self.can_make_room() {
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
        let (head, parts) = (self.head, std::mem::take(&mut self.parts));
        if let Err(error) = self.reopen(journal::clear) {
            self.tried = Some(Instant::now());
            let reason = format!("opening again, to make room: {error}");
            return self.shared.set_health(Health::Failed { reason });
        }
        if self.head == head {
            // Nothing was lost, so the ages of the log's parts are still known.
            self.parts = parts;
        }
        if !self.has_large_journals() {
            self.no_room = None;
        }
    }

    fn has_large_journals(&self) -> bool {
        let path = engine::database_path(&self.shared.folder);
        journal::used_bytes(&path) > self.options.reserve_bytes / KEPT_PART
    }

    fn can_make_room(&self) -> bool {
        let opened = self.shared.engine.read();
        let Some(engine) = opened.as_ref() else {
            return false;
        };
        let is_worth_it =
            || self.dead_bytes >= self.options.reserve_bytes || self.has_large_journals();
        let is_due = engine.wants_opening() || self.shared.nearly_full.get() && is_worth_it();
        if !is_due || engine.is_merging() {
            // Opening the database would end the merge, which frees room itself.
            return false;
        }
        let gauge = self.space.gauge();
        let growth = gauge.kept_bytes - gauge.reserve_bytes;
        gauge.free_bytes() >= engine.unflushed_bytes() + growth && !engine.is_broken()
    }
}
