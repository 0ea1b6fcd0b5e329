//! The embedded engine on fjall, a log-structured merge tree: one folder, one process, every acknowledged
//! write on disk.
//!
//! * `record`: how keys and events lie in fjall's keyspaces. `scan`: reading them.
//! * `journal`: what fjall does not check of its files. `engine`: the opened database.
//! * `queue`: who runs the writer. `writer` with `group`: group commit, trimming, leases. `recovery`: an
//!   engine that fails. `space` and `room`: a disk that fills.
//!
//! # Layout
//! One keyspace holds the present state, by key. Another holds the events in commit order, each with the row
//! that it replaced. So a read of a key is one look-up, which Bloom filters answer
//! for a key that is not there; a range is a scan of what is there and of nothing else; a commit appends
//! one batch; a history is a scan of its events, whatever else the store holds; an older revision is
//! the newest with later events undone. Replaced values are trimmed by deleting whole tables of the
//! log, which is sorted by time: no tombstones, and nothing is merged for it. The price: a replaced value
//! is written once more, into the log.
//!
//! Beside the engine on sled, with `examples/commit_cost` (1 KB values, by turns, on a busy machine): CPU of
//! a durable put of a lone writer 105–161 against 259–350 µs, of 64 writers 26–37 against 29–37, of
//! batches of 64 13–24 against 25–33; a lone put writes 6 KB against 17–19. With 1 000 000 keys: filled at
//! 18 against 69 µs of CPU a put, half of them replaced at 38 against 116, and 12 KB against 5 KB written for
//! that, because merging tables costs writes; 1.4 against 2.5 GB of disk; opened in 0.2 s and 7 MB against
//! 7 s and 320 MB, since tables are checked when they are read and not before.
//!
//! # Guarantees
//! * A transaction is acknowledged after `fdatasync` of the journal that holds it (see `engine`).
//! * History, previous values and revisions survive kill −9 and power loss: they are written in the
//!   same batch. What a newer value replaced is kept for [`FjallOptions::history_window`], as long as
//!   it fits [`FjallOptions::history_bytes_max`].
//! * A folder that lacks what was acknowledged, or whose journals or manifests are not what was written,
//!   is refused ([`OpenError::Damaged`]) and left as it was found. Tables are not read for that: each
//!   of their blocks has a checksum, and a read of an altered one fails ([`crate::ReadError::Corrupt`]).
//! * With a full disk writes are rejected, reads continue, and writes are accepted again once there is room.
//!   Merges of tables wait until their output fits. While the disk is nearly full, journals are emptied early
//!   and history is kept for the newest writes only, so that deletions pass.
//!   After an I/O error the database is opened again and every caller gets the outcome of its
//!   transaction, which is unknown only if it cannot be determined. If it fails again and again, without a
//!   write, the store has failed and is read only.
//! * Leases live in memory; a key that hung on one when the store was opened is removed then.

mod engine;
#[cfg(test)]
mod frozen;
mod group;
mod journal;
mod queue;
mod record;
mod recovery;
mod room;
mod scan;
mod space;
mod writer;

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

pub use self::room::is_expected_record;

use self::engine::Engine;
use self::group::Compared;
use self::queue::{Callers, Queue};
use self::recovery::Failures;
use self::room::{Dead, Room};
use self::writer::Writer;
use crate::embedded::folder::{FJALL, Folder, io_at};
use crate::embedded::front::{Commands, EmbeddedStore};
use crate::embedded::readers::Readers;
use crate::embedded::space::{LastKnown, Space, SpaceOptions};
use crate::embedded::state::StoreState;
use crate::embedded::{Disk, SystemDisk};
use crate::error::OpenError;
use crate::lease::{Clock, LeaseTable, SystemClock, first_lease_id};

/// Bytes that fjall takes at once beside a batch and its memtables: manifests, and the journal's
/// bookkeeping.
const GROWTH_BYTES: u64 = 1024 * 1024;

/// How a [`FjallStore`] behaves.
#[derive(Clone)]
pub struct FjallOptions {
    /// Memory for blocks of tables.
    pub cache_bytes: u64,
    /// Bytes in memory from which on a keyspace is written to a table. There are two, and up to three
    /// times as much while a table is being written.
    pub memtable_bytes: u64,
    /// Replaced values are kept for at least this time, unless they exceed `history_bytes_max`.
    pub history_window: Duration,
    /// Bytes of replaced values beyond which the oldest go.
    pub history_bytes_max: usize,
    /// Size of a file that is deleted when the disk is full, so that the store can be opened again.
    pub ballast_bytes: u64,
    /// Writes are rejected if they would leave fewer free bytes than this.
    pub reserve_bytes: u64,
    /// Threads for reads.
    pub reader_threads: usize,
    /// Whether a copy opens the store to write it. If it creates the store, nobody else can open it before
    /// [`crate::copy_has_begun`].
    pub is_copy_target: bool,
    /// The clock of leases and of the history window.
    pub clock: Arc<dyn Clock>,
    /// The disk of the folder.
    pub disk: Arc<dyn Disk>,
}

impl Default for FjallOptions {
    fn default() -> Self {
        Self {
            cache_bytes: 64 * 1024 * 1024,
            memtable_bytes: 16 * 1024 * 1024,
            history_window: Duration::from_secs(300),
            history_bytes_max: 64 * 1024 * 1024,
            ballast_bytes: 4 * 1024 * 1024,
            reserve_bytes: 4 * 1024 * 1024,
            reader_threads: 2,
            is_copy_target: false,
            clock: Arc::new(SystemClock),
            disk: Arc::new(SystemDisk),
        }
    }
}

impl FjallOptions {
    fn space(&self) -> SpaceOptions {
        SpaceOptions {
            ballast_bytes: self.ballast_bytes,
            reserve_bytes: self.reserve_bytes,
            growth_bytes: GROWTH_BYTES,
            disk: Arc::clone(&self.disk),
        }
    }
}

/// The embedded store on fjall.
pub type FjallStore = EmbeddedStore<Engine>;

impl FjallStore {
    /// Opens the store in a folder, which is created if it does not exist. Blocks: it reads the journals,
    /// which is what was written since the newest tables.
    ///
    /// # Errors
    /// See [`OpenError`]; each says what to do.
    pub fn open(path: &Path, options: FjallOptions) -> Result<Self, OpenError> {
        let space = options.space();
        Self::open_folder(path, options).map_err(|error| space.measured(path, error))
    }

    fn open_folder(path: &Path, options: FjallOptions) -> Result<Self, OpenError> {
        let folder = Folder::open(path, FJALL, options.is_copy_target)?;
        let mut space = Space::new(path, options.space());
        space
            .check(0)
            .map_err(|shortage| shortage.at_opening(path))?;
        let room = Room::new(space.gauge(), Dead::default());
        let (engine, head, leased) = Engine::open(&folder, &options, room)?;
        let now = options.clock.now();
        let mut leases = LeaseTable::new(first_lease_id());
        if !leased.is_empty() {
            // Their leases ended with the process that granted them: one that has ended already
            // takes their place, and the writer's first act is to end it.
            let dead = leases.grant(Duration::ZERO, now);
            for key in &leased {
                leases.attach(key, Some(dead));
            }
        }
        let counters = (head.revision, head.floor);
        let nearly_full = space.nearly_full();
        let shared = StoreState::new(folder, engine, counters, leases, nearly_full);
        let shared = Arc::new(shared);
        let io = io_at(path);
        let mut writer = Writer {
            shared: Arc::clone(&shared),
            head,
            parts: writer::found_parts(head, now),
            dropped_bytes: 0,
            compared: Compared::default(),
            wanted_floor: 0,
            hub: crate::watch::Hub::default(),
            zstd: zstd::bulk::Compressor::new(1).map_err(&io)?,
            space,
            journal_bytes: LastKnown::default(),
            tried: None,
            failures: Failures::default(),
            reread: None,
            dead_bytes: 0,
            no_room: None,
            counted: None,
            closing: None,
            options: options.clone(),
        };
        writer.end_leases();
        let opened_at = shared.head();
        let readers = Readers::start(options.reader_threads).map_err(&io)?;
        let queue = Arc::new(Queue::new(writer));
        let callers: Box<dyn Commands> = Box::new(Callers(Arc::clone(&queue)));
        let thread = std::thread::Builder::new().name("store-write".to_owned());
        let thread = thread.spawn(move || queue.serve()).map_err(&io)?;
        let writer = (callers, thread);
        Ok(Self::start(
            shared,
            opened_at,
            options.clock,
            readers,
            writer,
        ))
    }
}

#[cfg(test)]
mod tests;
