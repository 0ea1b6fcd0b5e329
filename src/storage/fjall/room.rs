//! Room for merging tables: a merge waits until its output fits on the disk. Otherwise it would fill the disk,
//! the only worker of the database would end at its first write that fails, and the database with it.
//!
//! fjall cannot pause merges. But it calls a filter for each value that one keeps, on the worker's thread and
//! without a lock that writes or flushes need (lsm-tree's `compaction::worker`), so the filter waits. Meanwhile the
//! worker flushes nothing: the writer does that, see `space`.
//!
//! A merge that runs out of room midway waits too. What it has written is freed when the database is
//! opened again. A merge ends early if the database is to be closed, which waits for it. That takes an error,
//! which fjall logs as if something had failed: [`is_expected_record`].
//!
//! Only the merges of `state` wait. The tables of `log` are in the order of time: they are moved and dropped,
//! and hardly ever merged.

use std::cell::Cell;
use std::io;
use std::panic::AssertUnwindSafe;
use std::sync::Arc;
use std::time::{Duration, Instant};

use fjall::compaction::filter::{
    CompactionFilter, CompactionFilterResult, Context, Factory, ItemAccessor, Verdict,
};
use fjall::{AbstractTree, Keyspace, LsmError};
use parking_lot::{Condvar, Mutex};

use crate::embedded::space::Gauge;

/// Bytes of a level from which on parts of it are merged into the next one: four tables of fjall's size.
/// Deeper levels may have more.
const LEVEL_BYTES: u64 = 256 * 1024 * 1024;
/// Bytes of the first level that a merge of the newest tables rewrites, at most: the level may be half as
/// large again until parts of it have left.
const FIRST_LEVEL_BYTES: u64 = LEVEL_BYTES + LEVEL_BYTES / 2;
/// Bytes that a merge of two deeper levels rewrites, at most: a table and the ones that it overlaps, of
/// which there are ten and two at the edges.
const DEEP_MERGE_BYTES: u64 = 13 * 64 * 1024 * 1024;
/// Bytes that a merge writes between two looks at the disk. With more it could fill the reserve.
const LOOK_BYTES: u64 = 256 * 1024;
/// Interval of looks at the disk while a merge waits.
const WAIT: Duration = Duration::from_millis(100);
/// How long a merge waits for its database to be opened. The opening may have failed, and waits for the
/// worker.
const OPENING_MAX: Duration = Duration::from_secs(5);

/// The targets under which lsm-tree and fjall log the error of a merge and the end of its worker.
const MERGE_TARGETS: [&str; 3] = [
    "lsm_tree::compaction::worker",
    "fjall::compaction::worker",
    "fjall::worker_pool",
];

thread_local! {
    /// True on the thread of a worker whose merge was ended because its database is to be closed. The thread
    /// ends soon.
    static IS_CLOSING: Cell<bool> = const { Cell::new(false) };
}

/// Returns whether the calling thread logs under this target only what a store has caused on purpose: it has ended
/// a merge to close its database. Such a record is no error, whatever its level is.
#[must_use]
pub fn is_expected_record(target: &str) -> bool {
    IS_CLOSING.get() && MERGE_TARGETS.contains(&target)
}

/// Assigns the filter to a keyspace, by its name.
type Assigner = Arc<dyn Fn(&str) -> Option<Arc<dyn Factory>> + Send + Sync>;

/// The room for the merges of one opened database.
pub(super) struct Room {
    gauge: Gauge,
    state: Mutex<State>,
    changed: Condvar,
}

#[derive(Default)]
struct State {
    trees: Option<Trees>,
    /// True once the database is to be dropped, which waits for the worker.
    is_stopped: bool,
    /// The free bytes for which a merge waits.
    wanted_bytes: Option<u64>,
    /// True while a merge writes, or waits midway.
    is_merging: bool,
    /// True if a merge has ended while the store was nearly full.
    has_merged: bool,
    /// True while a merge waits that ran out of room midway.
    is_stuck: bool,
    dead: Dead,
    /// The bytes of all rows when they were counted, and of those that were put since: at least those of all rows
    /// there are. Memory may have had some of what deleted others.
    counted_bytes: Option<u64>,
}

/// What is known of the rows that a merge will not write.
#[derive(Debug, Clone, Copy)]
pub(super) struct Dead {
    /// Bytes of rows of which tables say that they were replaced or deleted.
    bytes: u64,
    /// False if a merge has found that there are fewer than the tombstones in tables say.
    counts_tombstones: bool,
    /// The bytes of all rows, or more. A merge writes no more than these. `None` if nobody has counted them.
    live_bytes: Option<u64>,
}

impl Default for Dead {
    fn default() -> Self {
        Self {
            bytes: 0,
            counts_tombstones: true,
            live_bytes: None,
        }
    }
}

/// How far a merge that waits has come.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Phase {
    Beginning,
    Midway,
}

/// Keyspaces keep the room alive, so the room must not keep them for ever: [`Room::stop`].
struct Trees {
    state: Keyspace,
    log: Keyspace,
}

impl Room {
    /// The room of a database that is about to be opened.
    pub(super) fn new(gauge: Gauge, dead: Dead) -> Arc<Self> {
        let state = State {
            dead,
            ..State::default()
        };
        Arc::new(Self {
            gauge,
            state: Mutex::new(state),
            changed: Condvar::new(),
        })
    }

    /// Returns what makes the merges of a keyspace wait.
    pub(super) fn assigner(self: &Arc<Self>, waiting: &'static str) -> Assigner {
        let room = Arc::clone(self);
        Arc::new(move |name: &str| {
            let factory: Arc<dyn Factory> = Arc::new(Merges(AssertUnwindSafe(Arc::clone(&room))));
            (name == waiting).then_some(factory)
        })
    }

    /// Lets merges begin: the database is open.
    pub(super) fn open(&self, state: Keyspace, log: Keyspace) {
        self.state.lock().trees = Some(Trees { state, log });
        self.changed.notify_all();
    }

    /// Ends the merge that waits. The worker ends with it.
    pub(super) fn stop(&self) {
        let mut state = self.state.lock();
        state.is_stopped = true;
        let trees = state.trees.take();
        drop(state);
        self.changed.notify_all();
        drop(trees);
    }

    /// Returns the free bytes for which a merge waits.
    pub(super) fn wanted_bytes(&self) -> Option<u64> {
        self.state.lock().wanted_bytes
    }

    /// Returns whether a merge waits whose output takes room in vain.
    pub(super) fn is_stuck(&self) -> bool {
        self.state.lock().is_stuck
    }

    /// Returns whether a merge has ended that was wanted for its room. fjall keeps the files that it replaced
    /// until later writes, or until the database is opened again.
    pub(super) fn has_merged(&self) -> bool {
        self.state.lock().has_merged
    }

    /// Returns whether a merge makes progress.
    pub(super) fn is_merging(&self) -> bool {
        let state = self.state.lock();
        state.is_merging && state.wanted_bytes.is_none()
    }

    /// Counts bytes of rows that a merge will not write.
    pub(super) fn add_dead(&self, bytes: u64) {
        let mut state = self.state.lock();
        state.dead.bytes = state.dead.bytes.saturating_add(bytes);
    }

    /// Returns what the next opening is to know of dead rows. Nothing after a merge found that there are fewer.
    pub(super) fn dead(&self) -> Dead {
        let state = self.state.lock();
        match state.is_stuck {
            true => Dead {
                bytes: 0,
                counts_tombstones: false,
                live_bytes: None,
            },
            false => Dead {
                live_bytes: state.counted_bytes.or(state.dead.live_bytes),
                ..state.dead
            },
        }
    }

    /// Notes the bytes of all rows. They count for merges from the next opening on, before which all that is in
    /// memory is written to tables.
    pub(super) fn note_live(&self, bytes: u64) {
        self.state.lock().counted_bytes = Some(bytes);
    }

    /// Counts bytes of rows that are put. Without them a merge could begin that does not fit, because a count is
    /// kept for as long as the database is open.
    pub(super) fn add_rows(&self, bytes: u64) {
        let mut state = self.state.lock();
        let state = &mut *state;
        let counts = [&mut state.counted_bytes, &mut state.dead.live_bytes];
        for count in counts.into_iter().flatten() {
            *count = count.saturating_add(bytes);
        }
    }

    /// Returns whether a merge of all rows that were counted fits.
    pub(super) fn live_fits(&self) -> bool {
        let state = self.state.lock();
        let (Some(live), Some(trees)) = (state.counted_bytes, &state.trees) else {
            return false;
        };
        let wanted = self.gauge.kept_bytes + trees.unflushed_bytes() + output_of(live);
        state.wanted_bytes.is_some() && wanted <= self.gauge.free_bytes()
    }

    /// Waits until as many bytes are free as `wanted` says; it says nothing before the database is open.
    fn wait(&self, phase: Phase, wanted: impl Fn(&State, &Trees) -> u64) -> Result<(), LsmError> {
        let since = Instant::now();
        let mut state = self.state.lock();
        loop {
            if state.is_stopped {
                return Err(closing());
            }
            let bytes = state.trees.as_ref().map(|trees| wanted(&state, trees));
            match bytes {
                Some(bytes) if self.gauge.free_bytes() >= bytes => {
                    state.wanted_bytes = None;
                    state.is_stuck = false;
                    return Ok(());
                }
                None if since.elapsed() > OPENING_MAX => {
                    return Err(ended("the database was not opened"));
                }
                Some(bytes) => {
                    state.wanted_bytes = Some(bytes);
                    state.is_stuck = phase == Phase::Midway;
                }
                None => {}
            }
            let _ = self.changed.wait_for(&mut state, WAIT);
        }
    }

    /// Bytes that must be free for a merge to begin or to go on, if its output still to come has so many.
    fn wanted(&self, state: &State, trees: &Trees, output_bytes: u64) -> u64 {
        let kept = self.gauge.kept_bytes + trees.unflushed_bytes();
        match self.gauge.is_nearly_full() {
            // A merge is then the only way to free the room of what was deleted.
            true => {
                let most = state.dead.live_bytes.map_or(u64::MAX, output_of);
                kept + most.min(output_bytes.saturating_sub(trees.dead_bytes(state.dead)))
            }
            false => kept + self.gauge.reserve_bytes + output_bytes,
        }
    }
}

/// Bytes that a merge writes for rows of so many: with their blocks, filters and tombstones.
fn output_of(live_bytes: u64) -> u64 {
    live_bytes + live_bytes / 8 + 64 * 1024
}

/// Returns the error with which a merge ends because its database is to be closed. Called on its thread.
fn closing() -> LsmError {
    IS_CLOSING.set(true);
    tracing::debug!("a merge ends early, because its database is to be closed");
    ended("the database is closed")
}

fn ended(why: &str) -> LsmError {
    LsmError::Io(io::Error::other(why.to_owned()))
}

impl Trees {
    fn unflushed_bytes(&self) -> u64 {
        let size = |keyspace: &Keyspace| keyspace.tree.active_memtable().size();
        size(&self.state) + size(&self.log)
    }

    /// Bytes of rows that a merge will not write. Each tombstone in a table stands for a row of the mean size.
    fn dead_bytes(&self, dead: Dead) -> u64 {
        let tree = &self.state.tree;
        let tombstones = match dead.counts_tombstones {
            true => tree.tombstone_count(),
            false => 0,
        };
        let items = u64::try_from(tree.approximate_len()).unwrap_or(u64::MAX);
        let rows = items.saturating_sub(tombstones).max(1);
        let buried = tombstones
            .min(rows)
            .saturating_mul(tree.disk_space() / rows);
        dead.bytes.max(buried)
    }

    /// Bytes that the next merge of `state` reads, at most. That is also the most that it writes.
    fn merge_bytes(&self) -> u64 {
        let version = self.state.tree.current_version();
        let levels: Vec<u64> = version.iter_levels().map(|level| level.size()).collect();
        merge_bytes(&levels)
    }
}

/// Bytes that the next merge reads, at most, in a tree with levels of these sizes.
fn merge_bytes(levels: &[u64]) -> u64 {
    let Some((newest, levels)) = levels.split_first() else {
        return 0;
    };
    let first = levels.iter().copied().find(|bytes| *bytes > 0);
    let newest = newest + first.unwrap_or(0).min(FIRST_LEVEL_BYTES);
    let pairs = levels.windows(2);
    let deep = pairs.filter(|pair| pair[0] > LEVEL_BYTES && pair[1] > 0);
    let deep = deep.map(|pair| (pair[0] + pair[1]).min(DEEP_MERGE_BYTES));
    deep.max().unwrap_or(0).max(newest)
}

/// Makes the filter of each merge.
struct Merges(AssertUnwindSafe<Arc<Room>>);

impl Factory for Merges {
    fn name(&self) -> &str {
        "room"
    }

    fn make_filter(&self, _: &Context) -> Box<dyn CompactionFilter> {
        Box::new(Merge {
            room: Arc::clone(&self.0.0),
            input_bytes: None,
            written_bytes: 0,
            looked_bytes: 0,
        })
    }
}

/// One merge.
struct Merge {
    room: Arc<Room>,
    /// `None` before it began.
    input_bytes: Option<u64>,
    written_bytes: u64,
    /// Those of them after which it last looked at the disk.
    looked_bytes: u64,
}

impl Merge {
    /// Waits until the whole output fits.
    fn begin(&mut self) -> Result<(), LsmError> {
        let room = &self.room;
        let input = std::cell::Cell::new(0);
        room.wait(Phase::Beginning, |state, trees| {
            input.set(trees.merge_bytes());
            room.wanted(state, trees, input.get())
        })?;
        self.input_bytes = Some(input.get());
        room.state.lock().is_merging = true;
        Ok(())
    }

    /// Waits if there is less room than was found at the beginning: others write to the disk, too.
    fn go_on(&mut self, input_bytes: u64) -> Result<(), LsmError> {
        let room = &self.room;
        self.looked_bytes = self.written_bytes;
        let rest = input_bytes.saturating_sub(self.written_bytes);
        let is_short = {
            let state = room.state.lock();
            if state.is_stopped {
                return Err(closing());
            }
            let unflushed = state.trees.as_ref().map_or(0, Trees::unflushed_bytes);
            let least = room.gauge.kept_bytes - room.gauge.reserve_bytes / 2;
            room.gauge.free_bytes() < least + unflushed
        };
        match is_short {
            true => room.wait(Phase::Midway, |state, trees| {
                let wanted = room.wanted(state, trees, rest);
                // Without what it counted as dead, which has proved to be too much.
                wanted.max(room.gauge.kept_bytes + rest)
            }),
            false => Ok(()),
        }
    }
}

impl CompactionFilter for Merge {
    fn filter_item(&mut self, item: ItemAccessor<'_>, _: &Context) -> CompactionFilterResult {
        let Some(input_bytes) = self.input_bytes else {
            self.begin()?;
            return Ok(Verdict::Keep);
        };
        let value_bytes = match item.is_indirection() {
            true => 0,
            false => item.value()?.len(),
        };
        let bytes = item.key().len() + value_bytes;
        self.written_bytes += u64::try_from(bytes).unwrap_or(u64::MAX / 2);
        if self.written_bytes - self.looked_bytes >= LOOK_BYTES {
            self.go_on(input_bytes)?;
        }
        Ok(Verdict::Keep)
    }

    fn finish(self: Box<Self>) {
        let mut state = self.room.state.lock();
        // A merge of a part frees a part only, so this says less than there is.
        state.dead = Dead::default();
        state.has_merged = self.room.gauge.is_nearly_full();
    }
}

impl Drop for Merge {
    fn drop(&mut self) {
        self.room.state.lock().is_merging = false;
    }
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::*;
    use crate::embedded::SystemDisk;
    use crate::embedded::space::{Space, SpaceOptions};

    const MIB: u64 = 1024 * 1024;

    #[test]
    fn what_the_thread_of_a_merge_logs_is_expected_once_the_database_is_to_be_closed() {
        let options = SpaceOptions {
            ballast_bytes: 0,
            reserve_bytes: MIB,
            growth_bytes: MIB,
            disk: Arc::new(SystemDisk),
        };
        let gauge = Space::new(Path::new("/nowhere"), options).gauge();
        let room = Room::new(gauge, Dead::default());
        let is_expected = || MERGE_TARGETS.map(is_expected_record);
        room.stop();
        let merge = std::thread::spawn(move || {
            assert_eq!(is_expected(), [false; 3]);
            let ended = room.wait(Phase::Beginning, |_, _| 0);
            assert!(ended.is_err(), "the database is to be closed");
            assert_eq!(is_expected(), [true; 3]);
            assert!(!is_expected_record("fjall::journal::writer"));
        });
        merge.join().expect("it ends");
        assert_eq!(is_expected(), [false; 3], "another thread");
    }

    #[test]
    fn rows_that_are_put_after_a_count_belong_to_it() {
        let gauge = || {
            let options = SpaceOptions {
                ballast_bytes: 0,
                reserve_bytes: MIB,
                growth_bytes: MIB,
                disk: Arc::new(SystemDisk),
            };
            Space::new(Path::new("/nowhere"), options).gauge()
        };
        let room = Room::new(gauge(), Dead::default());
        room.add_rows(1);
        assert_eq!(room.dead().live_bytes, None, "nobody has counted");
        room.note_live(100);
        room.add_rows(20);
        assert_eq!(room.dead().live_bytes, Some(120));
        let next = Room::new(gauge(), room.dead());
        next.add_rows(3);
        assert_eq!(next.dead().live_bytes, Some(123));
        next.note_live(50);
        assert_eq!(next.dead().live_bytes, Some(50), "some were deleted");
    }

    #[test]
    fn a_merge_needs_no_more_than_the_levels_that_it_reads() {
        let needs = |levels: &[u64]| merge_bytes(levels) / MIB;
        let mib = |levels: [u64; 7]| levels.map(|bytes| bytes * MIB);
        assert_eq!(needs(&[]), 0);
        assert_eq!(needs(&mib([64, 0, 0, 0, 0, 0, 0])), 64);
        assert_eq!(needs(&mib([64, 0, 0, 0, 0, 0, 100])), 164);
        assert_eq!(needs(&mib([64, 0, 0, 0, 0, 0, 9_000])), 64 + 384);
        assert_eq!(needs(&mib([64, 0, 0, 0, 0, 200, 9_000])), 264);
        assert_eq!(needs(&mib([64, 0, 0, 0, 0, 300, 9_000])), 13 * 64);
        assert_eq!(needs(&mib([64, 0, 0, 0, 0, 300, 200])), 500);
    }
}
