//! One opened database: made whole or not at all, checked when it is opened, written by batches that
//! are durable on return.
//!
//! What fjall 3.1.13 does on Linux, from its source:
//!
//! * A batch is appended to the journal, synced with `fdatasync` if the batch asks for it, and only then
//!   put into the memtables and shown (module `batch`). A new journal is synced and its folder with
//!   it before anything is written to it, and the old one before that (`journal::writer`).
//! * Tables and manifests are synced with their folder before the manifest is named by `current`, which
//!   is replaced by a rename (lsm-tree's `table::writer` and `version::persist`), and a journal is
//!   deleted only after all of it lies in tables (`journal::manager`).
//! * A new database and new keyspaces are not synced with the folders above them, and a database that was
//!   begun cannot be opened. So it is made under another name, synced as a whole, and renamed.
//! * Tables, manifests and journals are opened and created by paths below the one that the database was opened
//!   with, also by the worker. So that one is fixed to the folder ([`Folder::fixed_path`]).
//! * After its first failed write, or when a worker thread fails, a database takes no more writes
//!   (module `poison`). The owner of this type then opens it again.
//! * A write waits, without end, while four memtables wait for a worker that may have failed
//!   (`Keyspace::local_backpressure`). [`Engine::write`] waits before that, and notices. It also waits while
//!   the newest level has thirty runs: [`Engine::wanted_bytes`] says when that is near and no merge has room.

use std::fs;
use std::io;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use fjall::compaction::Leveled;
use fjall::config::{CompressionPolicy, FilterPolicy};
use fjall::{
    AbstractTree, CompressionType, Database, Keyspace, KeyspaceCreateOptions, LsmError,
    OwnedWriteBatch, PersistMode,
};
use parking_lot::RwLock;

use super::record::{self, Damage, HEAD_KEY, Head, Row};
use super::room::{Dead, Room};
use super::scan::{ScanError, View};
use super::{FjallOptions, journal};
use crate::embedded::folder::{FJALL, Folder, io_at};
use crate::embedded::front::Reads;
use crate::embedded::panic_text;
use crate::error::{OpenError, ReadError};
use crate::store::{History, KeyValue, RangeReply, RangeRequest, Revision};

const STATE: &str = "state";
const LOG: &str = "log";
/// The name of a database in the making.
const FRESH: &str = "fjall.new";
/// Bytes of all journals from which on fjall flushes a keyspace that keeps the oldest of them. More
/// would lengthen the next opening.
const JOURNALS_BYTES_MAX: u64 = 96 * 1024 * 1024;
/// Bytes of a memtable, as a multiple of the size from which on it is to be flushed, at which a write
/// waits for the worker. Without it memory grows by what is written while a large compaction runs.
const LATE: u64 = 2;
/// Interval of checking that: fjall gives no notice.
const ROOM_POLL: Duration = Duration::from_millis(1);
/// Runs of the newest level from which on memory takes writes but no further run is made until they are merged.
/// From thirty on fjall would block the write without end.
const RUNS_MAX: usize = 24;
/// Open files of tables.
const FILES_MAX: usize = 256;

/// Why a batch is not known to be durable.
#[derive(Debug, thiserror::Error)]
pub(super) enum EngineError {
    /// fjall failed or panicked. It may or may not have written the batch.
    #[error("fjall: {0}")]
    Engine(String),
    /// The system refused to make the file durable.
    #[error("sync: {0}")]
    Sync(io::Error),
}

/// An opened database.
pub struct Engine {
    database: Database,
    pub(super) state: Keyspace,
    log: Keyspace,
    /// The newest cut that may be shown.
    view: RwLock<View>,
    room: Arc<Room>,
    memtable_bytes: u64,
}

impl Drop for Engine {
    fn drop(&mut self) {
        // The database waits for its worker, which may wait for room.
        self.room.stop();
    }
}

impl Reads for Engine {
    fn page(&self, request: &RangeRequest, _at: Revision) -> Result<RangeReply, ReadError> {
        let view = self.view();
        let at = request.at.map_or(view.revision, |at| at.0);
        Ok(view.page(request, at)?)
    }

    fn find(&self, key: &[u8], _at: Revision) -> Result<(Revision, Option<KeyValue>), ReadError> {
        let view = self.view();
        let row = view.row(key)?;
        let found = row.map(|row| {
            let value = row.value().map_err(ScanError::from)?;
            Ok::<_, ScanError>(row.key_value(Bytes::copy_from_slice(key), value))
        });
        Ok((Revision(view.revision), found.transpose()?))
    }

    fn history(
        &self,
        range: (&[u8], &[u8]),
        after: Revision,
        through: Revision,
        bytes_max: usize,
    ) -> Result<History, ReadError> {
        self.view().history(range, after.0, through.0, bytes_max)
    }
}

impl Engine {
    /// Opens the database of a folder, or makes it. Returns also the head and the keys that hang on
    /// leases.
    pub(super) fn open(
        folder: &Folder,
        options: &FjallOptions,
        room: Arc<Room>,
    ) -> Result<(Self, Head, Vec<Bytes>), OpenError> {
        let acked = folder.acked()?;
        let path = database_path(folder);
        if !path.exists() {
            if acked > 0 {
                let reason = format!("the folder {} is missing", path.display());
                return Err(OpenError::Damaged { reason });
            }
            create(folder, options, &room)?;
        }
        folder.sync()?;
        match journal::sync_folders(&path) {
            Err(OpenError::Io { path, error }) if error.kind() == io::ErrorKind::NotFound => {
                return damaged(format!("the folder {} is missing", path.display()));
            }
            synced => synced?,
        }
        let journals = journal::check(&path, acked)?;
        journal::check_manifests(&path)?;
        journal::cut(&journals)?;
        let opened = catch_unwind(AssertUnwindSafe(|| {
            Self::open_database(folder, options, room)
        }));
        let engine = opened.unwrap_or_else(|panic| damaged(panic_text(&*panic)))?;
        let checked = catch_unwind(AssertUnwindSafe(|| engine.verify(&path, acked)));
        match checked.unwrap_or_else(|panic| damaged(panic_text(&*panic))) {
            Ok((head, leased)) => {
                engine.show(head.revision);
                Ok((engine, head, leased))
            }
            Err(error) => {
                discard(Some(engine));
                Err(error)
            }
        }
    }

    fn open_database(
        folder: &Folder,
        options: &FjallOptions,
        room: Arc<Room>,
    ) -> Result<Self, OpenError> {
        let (database, state, log) = open_parts(folder, FJALL.data, options, &room)?;
        let view = View {
            revision: 0,
            snapshot: database.snapshot(),
            state: state.clone(),
            log: log.clone(),
        };
        room.open(state.clone(), log.clone());
        let engine = Self {
            database,
            state,
            log,
            view: RwLock::new(view),
            room,
            memtable_bytes: options.memtable_bytes,
        };
        match engine.state.id() {
            journal::STATE_ID => Ok(engine),
            _ => damaged("the keyspaces have other numbers".to_owned()),
        }
    }

    /// Compares what was found with what was acknowledged. Reads no more than it must: everything else is
    /// checked when it is read.
    fn verify(&self, path: &Path, acked: u64) -> Result<(Head, Vec<Bytes>), OpenError> {
        let read = || -> Result<(Head, Vec<Bytes>), ScanError> {
            let head = self.state.get(HEAD_KEY)?.ok_or(Damage::NoHead)?;
            let head = Head::parse(&head)?;
            if let Some(newest) = self.log.last_key_value() {
                let newest = record::event_revision(&newest.key()?)?;
                if newest > head.revision || newest < head.revision && newest > head.floor {
                    let (log, state) = (newest, head.revision);
                    return Err(Damage::LogEnd { log, state }.into());
                }
            }
            let mut leased = Vec::new();
            for pair in self.state.prefix([record::LEASED]) {
                leased.push(record::unprefixed(&pair.key()?));
            }
            Ok((head, leased))
        };
        let (head, leased) = read().map_err(|error| match error {
            ScanError::Engine(error) => open_error(path, error),
            error @ ScanError::Damage(_) => OpenError::Damaged {
                reason: error.to_string(),
            },
        })?;
        if head.revision < acked {
            return damaged(format!(
                "revision {acked} was acknowledged and the newest one found is {}",
                head.revision
            ));
        }
        Ok((head, leased))
    }

    fn view(&self) -> View {
        self.view.read().clone()
    }

    /// Lets readers see everything that was written up to this revision.
    pub(super) fn show(&self, revision: u64) {
        let snapshot = self.database.snapshot();
        let mut view = self.view.write();
        view.revision = revision;
        let old = std::mem::replace(&mut view.snapshot, snapshot);
        drop(view);
        drop(old);
    }

    /// Returns the row that a key has now, whether readers may see it yet or not.
    pub(super) fn row(&self, key: &[u8]) -> Result<Option<Row>, ScanError> {
        let found = self.state.get(record::row_key(key))?;
        Ok(found.map(Row::parse).transpose()?)
    }

    /// Returns an empty batch, which is durable once [`Self::write`] returns.
    pub(super) fn batch(&self) -> Batch {
        Batch {
            writes: self
                .database
                .batch()
                .durability(Some(PersistMode::SyncData)),
            state: self.state.clone(),
            log: self.log.clone(),
            row_bytes: 0,
        }
    }

    /// Writes a batch and makes it durable.
    pub(super) fn write(&self, batch: Batch) -> Result<(), EngineError> {
        guarded(|| {
            self.wait_for_room()?;
            // Before a merge can meet them.
            self.room.add_rows(batch.row_bytes);
            Ok(batch.writes.commit()?)
        })
    }

    /// Returns whether the database rejects all writes because a worker thread failed.
    pub(super) fn is_broken(&self) -> bool {
        self.database.persist(PersistMode::Buffer).is_err()
    }

    /// Waits while a keyspace has a memtable to be flushed and has filled the next one. fjall asks for
    /// flushes itself, but only after writes, so not for what an opening has read from the journals.
    fn wait_for_room(&self) -> Result<(), EngineError> {
        for keyspace in [&self.state, &self.log] {
            let tree = &keyspace.tree;
            if tree.active_memtable().size() <= LATE * self.memtable_bytes {
                continue;
            }
            while tree.sealed_memtable_count() > 0 {
                if self.is_broken() {
                    return Err(EngineError::Engine("a worker thread failed".to_owned()));
                }
                if self.room.wanted_bytes().is_some() {
                    break;
                }
                #[expect(
                    clippy::disallowed_methods,
                    reason = "a writer has to wait for its engine"
                )]
                std::thread::sleep(ROOM_POLL);
            }
            match self.room.wanted_bytes() {
                None => _ = keyspace.rotate_memtable()?,
                // The worker waits itself, and a flush that it is asked for waits with it.
                Some(_) => tree.flush_active_memtable(0)?,
            }
        }
        Ok(())
    }

    /// Bytes in memory that are to be written to tables, at most.
    pub(super) fn unflushed_bytes(&self) -> u64 {
        let trees = [&self.state, &self.log].map(|keyspace| &keyspace.tree);
        let bytes = trees.map(|tree| {
            let sealed = u64::try_from(tree.sealed_memtable_count()).unwrap_or(u64::MAX);
            tree.active_memtable().size() + sealed.saturating_mul(LATE * self.memtable_bytes)
        });
        // fjall counts too much after a flush that was not its worker's, and the sealed ones are often small.
        let most = self.database.write_buffer_size();
        bytes.iter().sum::<u64>().min(most)
    }

    /// Returns the free bytes for which a merge waits that has to be done before anything else is written:
    /// memory takes no more, and there may be no further run.
    pub(super) fn wanted_bytes(&self) -> Option<u64> {
        let wanted = self.room.wanted_bytes()?;
        let tree = &self.state.tree;
        let fills_memory = tree.sealed_memtable_count() > 0
            || tree.active_memtable().size() > self.memtable_bytes / 2;
        (self.has_all_runs() && fills_memory).then_some(wanted)
    }

    /// Returns whether there are so many runs that nothing may be written to tables before a merge.
    pub(super) fn has_all_runs(&self) -> bool {
        self.state.tree.l0_run_count() >= RUNS_MAX
    }

    /// Returns the free bytes for which a merge waits that has to be done soon.
    pub(super) fn due_merge(&self) -> Option<u64> {
        let is_due = self.state.tree.l0_run_count() >= RUNS_MAX / 2;
        self.room.wanted_bytes().filter(|_| is_due)
    }

    /// Returns whether a merge waits that has to be done soon.
    pub(super) fn is_crowded(&self) -> bool {
        self.due_merge().is_some()
    }

    /// Returns the free bytes for which a merge waits.
    pub(super) fn merge_wants(&self) -> Option<u64> {
        self.room.wanted_bytes()
    }

    /// Returns whether a merge waits that has run out of room midway.
    pub(super) fn is_stuck(&self) -> bool {
        self.room.is_stuck()
    }

    /// Returns whether opening the database again frees room, or does work that is due while the worker waits
    /// for room.
    pub(super) fn wants_opening(&self) -> bool {
        if self.room.has_merged() {
            return true;
        }
        if self.room.wanted_bytes().is_none() {
            return false;
        }
        let trees = [&self.state, &self.log].map(|keyspace| &keyspace.tree);
        let is_late = trees.map(|tree| tree.active_memtable().size() > self.memtable_bytes);
        self.room.is_stuck() || is_late.contains(&true)
    }

    /// Counts the bytes of all rows, which bounds what a merge writes. Reads the whole state.
    pub(super) fn count_live(&self) -> Result<(), EngineError> {
        guarded(|| {
            let mut bytes = 0;
            for row in self.state.iter() {
                let (key, value) = row.into_inner()?;
                bytes += u64::try_from(key.len() + value.len()).unwrap_or_default();
            }
            self.room.note_live(bytes);
            Ok(())
        })
    }

    /// Returns whether a merge of all rows that were counted fits, once memory is written to tables.
    pub(super) fn live_fits(&self) -> bool {
        self.room.live_fits()
    }

    /// Returns the bytes of the tables of the state.
    pub(super) fn table_bytes(&self) -> u64 {
        self.state.tree.disk_space()
    }

    /// Returns whether the worker merges tables.
    pub(super) fn is_merging(&self) -> bool {
        self.room.is_merging()
    }

    /// Counts bytes of rows of which tables say that they were replaced or deleted.
    pub(super) fn add_dead(&self, bytes: u64) {
        self.room.add_dead(bytes);
    }

    /// Returns what is known of rows that a merge would drop, for the next opening.
    pub(super) fn dead(&self) -> Dead {
        self.room.dead()
    }

    /// Writes everything to tables, on this thread. Until the next write the journals have nothing that tables
    /// lack.
    pub(super) fn flush(&self) -> Result<(), EngineError> {
        guarded(|| {
            for keyspace in [&self.state, &self.log] {
                let tree = &keyspace.tree;
                // Versions that readers may need are kept: how old those are is known to fjall only.
                tree.flush_active_memtable(0)?;
                if tree.active_memtable().size() > 0 || tree.sealed_memtable_count() > 0 {
                    let text = "a memtable was not written to a table".to_owned();
                    return Err(EngineError::Engine(text));
                }
            }
            Ok(())
        })
    }

    /// Deletes those tables of the log of which every event is at or below a floor.
    pub(super) fn drop_log(&self, floor: u64) -> Result<(), EngineError> {
        let end = record::event_key(floor, u16::MAX);
        guarded(|| Ok(self.log.tree.drop_range(..=&end[..])?))
    }
}

impl From<fjall::Error> for EngineError {
    fn from(error: fjall::Error) -> Self {
        Self::Engine(error.to_string())
    }
}

impl From<LsmError> for EngineError {
    fn from(error: LsmError) -> Self {
        fjall::Error::from(error).into()
    }
}

/// Runs an operation of the engine. A panic inside it is an error of the engine.
fn guarded<T>(work: impl FnOnce() -> Result<T, EngineError>) -> Result<T, EngineError> {
    catch_unwind(AssertUnwindSafe(work))
        .unwrap_or_else(|panic| Err(EngineError::Engine(panic_text(&*panic))))
}

/// Writes to both keyspaces that are done together. No key may be written twice.
pub(super) struct Batch {
    writes: OwnedWriteBatch,
    state: Keyspace,
    log: Keyspace,
    /// Bytes of the rows that it puts.
    row_bytes: u64,
}

impl Batch {
    pub(super) fn set_head(&mut self, head: Head) {
        let bytes = head.to_bytes();
        self.writes.insert(&self.state, HEAD_KEY, &bytes[..]);
    }

    pub(super) fn put(&mut self, key: &[u8], row: Row) {
        let key = record::row_key(key);
        self.count(key.len() + row.bytes.len());
        self.writes.insert(&self.state, key, row.bytes);
    }

    pub(super) fn remove(&mut self, key: &[u8]) {
        self.writes.remove(&self.state, record::row_key(key));
    }

    pub(super) fn lease(&mut self, key: &[u8], is_leased: bool) {
        let key = record::leased_key(key);
        match is_leased {
            true => {
                self.count(key.len());
                self.writes.insert(&self.state, key, &[][..]);
            }
            false => self.writes.remove(&self.state, key),
        }
    }

    fn count(&mut self, bytes: usize) {
        self.row_bytes += u64::try_from(bytes).unwrap_or_default();
    }

    pub(super) fn log(&mut self, revision: u64, index: u16, event: Vec<u8>) {
        let key = record::event_key(revision, index);
        self.writes.insert(&self.log, &key[..], event);
    }
}

/// Drops a database, which waits for its worker.
pub(super) fn discard(engine: Option<Engine>) {
    if let Err(panic) = catch_unwind(AssertUnwindSafe(|| drop(engine))) {
        let text = panic_text(&*panic);
        tracing::warn!(text, "the old database was not dropped cleanly");
    }
}

/// Returns the path of the database.
pub(super) fn database_path(folder: &Folder) -> PathBuf {
    folder.path.join(FJALL.data)
}

/// Makes an empty database. It has its name only once it is durable.
fn create(folder: &Folder, options: &FjallOptions, room: &Arc<Room>) -> Result<(), OpenError> {
    let path = database_path(folder);
    let fresh = folder.path.join(FRESH);
    match fs::remove_dir_all(&fresh) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => {
            return Err(io_at(&fresh)(error));
        }
        _ => {}
    }
    let made = catch_unwind(AssertUnwindSafe(|| {
        let (database, state, _log) = open_parts(folder, FRESH, options, room)?;
        let mut batch = database.batch().durability(Some(PersistMode::SyncAll));
        batch.insert(&state, HEAD_KEY, &Head::default().to_bytes()[..]);
        batch.commit().map_err(|error| open_error(&fresh, error))
    }));
    made.unwrap_or_else(|panic| damaged(panic_text(&*panic)))?;
    journal::sync_new(&fresh)?;
    fs::rename(&fresh, &path).map_err(io_at(&path))
}

fn open_parts(
    folder: &Folder,
    name: &str,
    options: &FjallOptions,
    room: &Arc<Room>,
) -> Result<(Database, Keyspace, Keyspace), OpenError> {
    let open = || -> fjall::Result<(Database, Keyspace, Keyspace)> {
        let database = Database::builder(folder.fixed_path().join(name))
            .cache_size(options.cache_bytes)
            .journal_compression(CompressionType::None)
            .max_journaling_size(JOURNALS_BYTES_MAX)
            .max_cached_files(Some(FILES_MAX))
            .worker_threads(1)
            .with_compaction_filter_factories(room.assigner(STATE))
            .open()?;
        let state = database.keyspace(STATE, || tree_options(options))?;
        // A table of the log is dropped as a whole, and is never searched for a key that it lacks.
        let log = database.keyspace(LOG, || {
            tree_options(options)
                .filter_policy(FilterPolicy::disabled())
                .compaction_strategy(std::sync::Arc::new(
                    Leveled::default().with_table_target_size(options.memtable_bytes),
                ))
        })?;
        Ok((database, state, log))
    };
    open().map_err(|error| open_error(&folder.path.join(name), error))
}

fn tree_options(options: &FjallOptions) -> KeyspaceCreateOptions {
    KeyspaceCreateOptions::default()
        .max_memtable_size(options.memtable_bytes)
        .data_block_compression_policy(CompressionPolicy::disabled())
}

fn open_error(path: &Path, error: fjall::Error) -> OpenError {
    match error {
        fjall::Error::Io(error) | fjall::Error::Storage(LsmError::Io(error)) => io_at(path)(error),
        fjall::Error::Locked => OpenError::Locked {
            path: path.to_owned(),
            pid: None,
        },
        error => OpenError::Damaged {
            reason: error.to_string(),
        },
    }
}

fn damaged<T>(reason: String) -> Result<T, OpenError> {
    Err(OpenError::Damaged { reason })
}
