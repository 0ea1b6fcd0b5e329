//! What the writer does about an engine that fails: it opens the database again, finds out what became of the
//! batch under way, and gives up if that does not help.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::Path;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use bytes::Bytes;

use super::engine::{self, Engine, EngineError};
use super::group::Group;
use super::journal;
use super::room::Room;
use super::writer::{RETRY, Writer, found_parts};
use crate::embedded::jobs::answer_failed;
use crate::embedded::panic_text;
use crate::error::OpenError;
use crate::lease::LeaseTable;
use crate::store::Health;

/// Failures in a row after which the database is not opened again at once: what fails is then a file or the
/// device, and each opening costs all readers their time.
const FAILURES_MAX: u32 = 3;
/// Time after an opening within which a failure continues the row. A merge that reads a damaged table may
/// take so long until it gets there.
const IN_A_ROW: Duration = Duration::from_secs(600);
/// Pause of a store that has given up until it opens the database again: the device may have been mended. Also the
/// least time between two openings for readers that met an error.
const REST: Duration = Duration::from_secs(60);

/// Failures of the engine in a row that no write of a caller has caused.
#[derive(Debug, Default)]
pub(super) struct Failures {
    count: u32,
    /// The time of the newest failure, or of the opening after it.
    newest: Option<Instant>,
    /// The time at which the store last gave up.
    gave_up: Option<Instant>,
}

impl Failures {
    fn add(&mut self) {
        let newest = self.newest.replace(Instant::now());
        let is_next = newest.is_some_and(|newest| newest.elapsed() < IN_A_ROW);
        self.count = if is_next { self.count + 1 } else { 1 };
    }

    /// Notes that the database was opened again: the row goes on if it fails soon.
    fn opened(&mut self) {
        self.newest = self.newest.map(|_| Instant::now());
    }

    fn give_up(&mut self) {
        self.gave_up = Some(Instant::now());
    }

    fn is_much(&self) -> bool {
        self.count >= FAILURES_MAX
    }
}

impl Writer {
    /// Returns whether the store's folder was removed or replaced, with which the store has failed for good. Then the
    /// database is closed, so that its worker does not go on either.
    pub(super) fn is_lost(&self) -> bool {
        let is_lost = self.shared.check_folder().is_err();
        if is_lost {
            engine::discard(self.shared.engine.write().take());
        }
        is_lost
    }

    /// Runs a part of the writer's work. The engine may panic anywhere; that must not end the writer, because
    /// every later caller would wait for ever.
    pub(super) fn guarded(&mut self, work: impl FnOnce(&mut Self)) {
        let Err(panic) = catch_unwind(AssertUnwindSafe(|| work(self))) else {
            return;
        };
        let why = panic_text(&*panic);
        tracing::error!(why, "the writer failed; opening the store again");
        if self.is_closed() {
            return;
        }
        // It may have been about to publish events.
        self.hub.cut("the writer failed");
        if let Err(panic) = catch_unwind(AssertUnwindSafe(|| self.mend(&why))) {
            let reason = format!("{why}; opening again: {}", panic_text(&*panic));
            self.shared.set_health(Health::Failed { reason });
        }
    }

    /// After a failed write: opens the database again and answers each caller with the outcome of its
    /// transaction, as far as that can be determined. Returns true if the group is durable after all.
    pub(super) fn settle(&mut self, mut group: Group, error: &EngineError) -> bool {
        tracing::error!(%error, "a batch failed; opening the store again");
        self.tried = Some(Instant::now());
        // Before asking for space: it keeps that of deleted files.
        engine::discard(self.shared.engine.write().take());
        let full = self.check_space(group.bytes).err();
        if full.is_some() {
            self.space.release_ballast();
        }
        let before = self.head.revision;
        match self.reopen_failed() {
            Ok(()) if self.head.revision == group.head.revision && before != self.head.revision => {
                // Opening synced the journal, so the batch that was found in it is durable.
                group.head = self.head;
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

    /// Opens a database again that broke while nothing was written. After too many failures in a row it stays
    /// open for readers, and the store takes no writes for a while.
    pub(super) fn mend(&mut self, why: &str) {
        self.reopen_after(why, true);
    }

    /// Does what helps a reader that met an error. A file that cannot be read breaks nothing else, so it is not
    /// counted as a failure: else a client that reads it again and again would end the writes of all planes.
    pub(super) fn mend_for_reader(&mut self, why: &str) {
        let broken = self.shared.engine.read().as_ref().map(Engine::is_broken);
        match broken {
            None => self.try_recover(),
            Some(true) if self.rests() => {}
            Some(true) => self.mend(why),
            Some(false) => {
                let pauses = self.reread.is_some_and(|at| at.elapsed() < REST);
                if !pauses {
                    self.reread = Some(Instant::now());
                    tracing::warn!(why, "a read failed; opening the store again");
                    self.reopen_after(why, false);
                }
            }
        }
    }

    /// Opens the database again. What led to it `counts` as one more failure or not; on a full disk it never does,
    /// because that ends by itself. What does not count never makes the store rest.
    fn reopen_after(&mut self, why: &str, counts: bool) {
        if self.is_lost() {
            return;
        }
        self.tried = Some(Instant::now());
        engine::discard(self.shared.engine.write().take());
        if self.check_space(0).is_err() {
            self.space.release_ballast();
        } else if counts {
            self.failures.add();
        }
        let health = match self.reopen_failed() {
            Ok(()) => Health::ReadOnly {
                reason: match counts {
                    true => self.reason_to_rest(why),
                    false => why.to_owned(),
                },
            },
            Err(error) => {
                self.note_failed_opening(&error);
                Health::Failed {
                    reason: format!("{why}; opening again: {error}"),
                }
            }
        };
        self.shared.set_health(health);
    }

    /// Gives up for now if there were too many failures. Returns why no writes are taken.
    fn reason_to_rest(&mut self, why: &str) -> String {
        if !self.failures.is_much() {
            return why.to_owned();
        }
        self.failures.give_up();
        format!(
            "the engine has failed {} times in a row, so its disk or a file of the store is damaged: {why}; check the \
             disk, and restore a backup if this does not end",
            self.failures.count
        )
    }

    /// A damaged database stays as it is however often it is opened. For other reasons an opening may fail for a
    /// moment, in which nobody can read: those do not make the store rest.
    fn note_failed_opening(&mut self, error: &OpenError) {
        if matches!(error, OpenError::Damaged { .. }) {
            self.failures.add();
            if self.failures.is_much() {
                self.failures.give_up();
            }
        }
    }

    /// Returns whether the store has given up for now.
    pub(super) fn rests(&self) -> bool {
        let gave_up = self.failures.gave_up;
        gave_up.is_some_and(|at| at.elapsed() < REST)
    }

    /// While the store does not take writes: opens it if it is not open, and looks for space.
    pub(super) fn try_recover(&mut self) {
        let pauses = self.tried.is_some_and(|tried| tried.elapsed() < RETRY);
        if self.is_closed() || pauses || self.rests() || self.is_lost() {
            return;
        }
        self.tried = Some(Instant::now());
        let opened = self.shared.engine.read();
        let is_usable = opened.as_ref().is_some_and(|engine| !engine.is_broken());
        drop(opened);
        if !is_usable && let Err(error) = self.reopen_failed() {
            self.note_failed_opening(&error);
            let reason = format!("opening again: {error}");
            return self.shared.set_health(Health::Failed { reason });
        }
        match self.check_space(0) {
            // Only a write that came through shows that writes go: the head record, as it is.
            Ok(()) => _ = self.write_head(),
            Err(shortage) => self.note_shortage(&shortage),
        }
    }

    /// Opens a database again that has failed: the row of failures goes on if it fails soon.
    fn reopen_failed(&mut self) -> Result<(), OpenError> {
        self.reopen(journal::rewrite)?;
        self.failures.opened();
        Ok(())
    }

    /// Closes and opens the database, and takes over what it finds. Nothing that the system has in
    /// memory is taken to be on disk: `journals` prepares them for that in between.
    pub(super) fn reopen(
        &mut self,
        journals: fn(&Path) -> Result<(), OpenError>,
    ) -> Result<(), OpenError> {
        let checked = self.shared.check_folder();
        checked.map_err(|lost| lost.at_opening(&self.shared.folder.path))?;
        let mut slot = self.shared.engine.write();
        let dead = slot.as_ref().map(Engine::dead).unwrap_or_default();
        engine::discard(slot.take());
        journals(&engine::database_path(&self.shared.folder))?;
        let room = Room::new(self.space.gauge(), dead);
        let (opened, head, leased) = Engine::open(&self.shared.folder, &self.options, room)?;
        let is_ahead = head.revision > self.head.revision;
        if is_ahead {
            self.hub.cut("the store was opened again");
        }
        let now = self.options.clock.now();
        self.parts = found_parts(head, now);
        self.head = head;
        self.compared.clear();
        attach_again(&mut self.shared.leases.lock(), &opened, leased, now);
        self.shared.floor.fetch_max(head.floor, Ordering::SeqCst);
        self.shared
            .published
            .fetch_max(head.revision, Ordering::SeqCst);
        *slot = Some(opened);
        self.shared.openings.fetch_add(1, Ordering::SeqCst);
        Ok(())
    }
}

/// Attaches to their leases the keys that a database was found to have on one.
fn attach_again(leases: &mut LeaseTable, engine: &Engine, leased: Vec<Bytes>, now: Duration) {
    leases.detach_all();
    let mut dead = None;
    for key in leased {
        // A key that cannot be read is reported to whoever reads it.
        let row = engine.row(&key).ok().flatten();
        let Some(lease) = row.and_then(|row| row.lease) else {
            continue;
        };
        let lease = match leases.has(lease) {
            true => lease,
            // One of an earlier process, which was not ended yet.
            false => *dead.get_or_insert_with(|| leases.grant(Duration::ZERO, now)),
        };
        leases.attach(&key, Some(lease));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_failures_in_a_row_are_too_many() {
        let mut failures = Failures::default();
        failures.add();
        failures.add();
        assert!(!failures.is_much());
        // As if the database had been open for long.
        failures.newest = Instant::now().checked_sub(IN_A_ROW);
        failures.add();
        assert!(!failures.is_much(), "the row began again");
        failures.add();
        failures.add();
        assert!(failures.is_much());
    }
}
