//! The embedded engine: one folder, one process, every acknowledged write on disk.
//!
//! * `layout`: the form of versions in sled's tree. `scan`: reading them.
//! * `files`: the files that sled creates in the store's folder.
//! * `engine` with `watchdog`: the opened tree, and how its writes become durable. `writer` with `group`
//!   and `present`: the one thread that writes, group commit, trimming, leases, recovery.
//!
//! # Guarantees
//! * A transaction is acknowledged after `fdatasync` of the file that holds it (see `engine`).
//! * History, previous values and revisions survive kill −9 and power loss with the state itself:
//!   they are the same records. A replaced version is kept for [`SledOptions::history_window`], as
//!   long as it fits [`SledOptions::history_bytes_max`].
//! * A folder whose records are incomplete or altered is refused ([`OpenError::Damaged`]) and left
//!   as it was found, up to [`SledOptions::copy_bytes_max`].
//! * With a full disk writes are rejected and reads continue; writes are accepted again once there
//!   is room. After an I/O error the tree is opened again and every caller gets the outcome of its
//!   transaction, which is unknown only if it cannot be determined. What a failed sync may have left in the
//!   system's memory is written again first, and is read from the disk by a process that opens the store
//!   later (see `engine` and `embedded/folder.rs`).
//! * A key has at most 480 bytes ([`crate::Limits::key_bytes_max`]): see `layout`.
//! * Leases live in memory. A key that was attached to a lease of an earlier process is removed
//!   when the store is opened.

mod engine;
mod files;
#[cfg(test)]
mod frozen;
mod group;
mod layout;
mod present;
mod scan;
mod watchdog;
mod writer;

use std::collections::{HashMap, VecDeque};
use std::path::Path;
use std::sync::Arc;
use std::sync::mpsc::channel;
use std::time::Duration;

use self::engine::{Engine, EngineOptions};
use self::writer::Writer;
use crate::embedded::folder::{self, Folder};
use crate::embedded::front::{Commands, EmbeddedStore};
use crate::embedded::readers::Readers;
use crate::embedded::space::{Space, SpaceOptions};
use crate::embedded::state::StoreState;
use crate::embedded::{Disk, SystemDisk};
use crate::error::OpenError;
use crate::lease::{Clock, LeaseTable, SystemClock, first_lease_id};

/// Bytes by which sled grows its file at once, at most: two segments of 512 KiB.
const GROWTH_BYTES: u64 = 1024 * 1024;

/// The options of a [`SledStore`].
#[derive(Clone)]
pub struct SledOptions {
    /// Bytes of memory for pages of the tree.
    pub cache_bytes: u64,
    /// Replaced versions are kept for at least this time, unless they exceed `history_bytes_max`.
    pub history_window: Duration,
    /// Bytes of replaced versions beyond which the oldest are dropped.
    pub history_bytes_max: usize,
    /// Size of a file that is deleted when the disk is full, so that the store can be opened again.
    pub ballast_bytes: u64,
    /// Free bytes below which writes are rejected.
    pub reserve_bytes: u64,
    /// Size of the files up to which a copy of them is opened first, so that a damaged store is
    /// left as it was found.
    pub copy_bytes_max: u64,
    /// Number of threads for reads.
    pub reader_threads: usize,
    /// Whether a copy opens the store to write it. If it creates the store, nobody else can open it before
    /// [`crate::copy_has_begun`].
    pub is_copy_target: bool,
    /// The clock of leases and the history window.
    pub clock: Arc<dyn Clock>,
    /// The disk of the folder.
    pub disk: Arc<dyn Disk>,
}

impl Default for SledOptions {
    fn default() -> Self {
        Self {
            cache_bytes: 128 * 1024 * 1024,
            history_window: Duration::from_secs(300),
            history_bytes_max: 64 * 1024 * 1024,
            ballast_bytes: 4 * 1024 * 1024,
            reserve_bytes: 4 * 1024 * 1024,
            copy_bytes_max: 64 * 1024 * 1024,
            reader_threads: 2,
            is_copy_target: false,
            clock: Arc::new(SystemClock),
            disk: Arc::new(SystemDisk),
        }
    }
}

impl SledOptions {
    fn engine(&self) -> EngineOptions {
        EngineOptions {
            cache_bytes: self.cache_bytes,
            copy_bytes_max: self.copy_bytes_max,
        }
    }

    fn space(&self) -> SpaceOptions {
        SpaceOptions {
            ballast_bytes: self.ballast_bytes,
            reserve_bytes: self.reserve_bytes,
            growth_bytes: GROWTH_BYTES,
            disk: Arc::clone(&self.disk),
        }
    }

    /// Returns options for opening the tree again: without the copy, because the disk is in trouble
    /// and the files were whole a moment ago.
    fn engine_again(&self) -> EngineOptions {
        EngineOptions {
            copy_bytes_max: 0,
            ..self.engine()
        }
    }
}

/// The embedded store on sled.
pub type SledStore = EmbeddedStore<Engine>;

impl SledStore {
    /// Opens the store in a folder, which is created if it does not exist. Blocks while it reads
    /// and checks everything, which takes about a second per million versions.
    ///
    /// # Errors
    /// See [`OpenError`]. Each message says what to do.
    pub fn open(path: &Path, options: SledOptions) -> Result<Self, OpenError> {
        let space = options.space();
        Self::open_folder(path, options).map_err(|error| space.measured(path, error))
    }

    fn open_folder(path: &Path, options: SledOptions) -> Result<Self, OpenError> {
        let folder = Folder::open(path, folder::SLED, options.is_copy_target)?;
        let space = Space::new(path, options.space());
        let (engine, head, census) = Engine::open(&folder, options.engine())?;
        let now = options.clock.now();
        let mut leases = LeaseTable::new(first_lease_id());
        if !census.leased.is_empty() {
            // The leases of these keys ended with the process that granted them. They are attached
            // to a new lease that has already ended, and the writer's first act is to end it.
            let dead = leases.grant(Duration::ZERO, now);
            for (key, _) in &census.leased {
                leases.attach(key, Some(dead));
            }
        }
        let state = (head.revision, head.floor);
        let nearly_full = space.nearly_full();
        let shared = StoreState::new(folder, engine, state, leases, nearly_full);
        let shared = Arc::new(shared);
        let (commands, received) = channel();
        let garbage: VecDeque<_> = census.garbage.into_iter().map(|old| (now, old)).collect();
        let io = folder::io_at(path);
        let mut writer = Writer {
            shared: Arc::clone(&shared),
            garbage_bytes: garbage.iter().map(|(_, old)| old.bytes_held()).sum(),
            garbage,
            commands: received,
            head,
            known: HashMap::new(),
            present: census.present,
            wanted_floor: 0,
            hub: crate::watch::Hub::default(),
            zstd: zstd::bulk::Compressor::new(1).map_err(&io)?,
            space,
            tried: None,
            options: options.clone(),
        };
        writer.end_leases();
        let opened_at = shared.head();
        let readers = Readers::start(options.reader_threads).map_err(&io)?;
        let thread = std::thread::Builder::new().name("store-write".to_owned());
        let writer = thread.spawn(move || writer.run()).map_err(&io)?;
        let writer: (Box<dyn Commands>, _) = (Box::new(commands), writer);
        let clock = options.clock;
        Ok(Self::start(shared, opened_at, clock, readers, writer))
    }
}

#[cfg(test)]
mod tests;
