//! One opened tree: opened and verified as a whole, written in batches that are durable when the
//! write returns.
//!
//! The behaviour of sled 0.34.7 on Linux, from its source: `flush` returns when the log up to the
//! flushed point was written with `pwrite` and pushed out with `sync_file_range`. That does not
//! order metadata (a grown file keeps its old length after power loss) and does not empty the
//! disk's cache. This file makes up for it in two ways:
//!
//! * After each `flush`, it calls `fdatasync` on its own handle of the same file `db`. That covers
//!   the whole inode, sled's writes included, and comes before any acknowledgement.
//! * sled re-uses a segment once its content has a copy elsewhere that is "stable", by sled's own
//!   weak notion. So that the copy is durable before the original is overwritten, `db` carries the
//!   inode flag S (`chattr +S`) if the file system supports it: each `pwrite` of sled is then
//!   durable when it returns, and the order of writes is the order on disk. Without the flag, a
//!   power cut within a batch of several segments may leave a log that sled cannot read.
//!
//! Pages above about 128 KiB would be written to files in `blobs/` that sled never syncs; the chunks and
//! keys of `layout` keep every page below that. `db` is synced before it is opened, and the
//! folder once sled has created its files. A lost `conf` does no harm, because sled writes it again;
//! of snapshots, `files` says how they are kept, and [`Engine::open_durably`] when.
//!
//! After its first I/O error a tree refuses every call, so the owner of this type opens it again.
//! sled also panics where it should return an error; both become an [`EngineError`].
//!
//! If the kernel could not write something, it takes it for clean nevertheless: no later sync writes it,
//! and opening the tree again would show as durable what is in memory only. So `db` is first written over
//! itself ([`rewrite`]). That is known from the error itself ([`EngineError::is_of_disk`]), or from the old
//! handle of this file: the kernel reports each failure once to every handle that was open before it,
//! whoever else has seen it, so [`discard`] returns that handle to be asked. Of some failures sled does not
//! tell the flush that waits for them: see `watchdog`.

use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::Path;
use std::time::{Duration, Instant};

use rustix::fs::{FlockOperation, IFlags, flock, ioctl_getflags, ioctl_setflags};

use super::files;
use super::layout::{self, Damage, HEAD_KEY, Head};
use super::present::{KeyHash, Present};
use super::scan::{self, ScanError, Version, Walk};
use super::watchdog::Watchdog;
use crate::embedded::folder::{Folder, io_at};
use crate::embedded::front::Reads;
use crate::embedded::panic_text;
use crate::error::{OpenError, ReadError};
use crate::store::{History, KeyValue, RangeReply, RangeRequest, Revision};

/// Bytes that are rewritten at a time after a failed sync.
const REWRITE_BYTES: usize = 1024 * 1024;

/// Longest wait for a dropped tree to release its file: it may still write one buffer of the log, and
/// truncate and sync the file.
const RELEASE_WAIT_MAX: Duration = Duration::from_secs(5);
/// Interval of checking whether the file is released, because file locks have no time-out.
const RELEASE_POLL: Duration = Duration::from_millis(2);

/// The reason why a batch is not known to be durable.
#[derive(Debug, thiserror::Error)]
pub(super) enum EngineError {
    /// sled failed. It may or may not have written the batch.
    #[error("sled: {0}")]
    Engine(sled::Error),
    /// sled panicked with this text. It may or may not have written the batch.
    #[error("sled: {0}")]
    Panicked(String),
    /// The tree is not open, so nothing was written.
    #[error("sled: not open")]
    NotOpen,
    /// The system refused to make the file durable.
    #[error("fdatasync: {0}")]
    Sync(io::Error),
}

impl EngineError {
    /// Returns whether data that the system takes for written may be in its memory only. sled reports failures
    /// of the disk and refusals of the file system alike; those leave nothing behind.
    pub(super) fn is_of_disk(&self) -> bool {
        match self {
            Self::Sync(_) => true,
            Self::Engine(sled::Error::Io(error)) => !matches!(
                error.kind(),
                io::ErrorKind::StorageFull
                    | io::ErrorKind::QuotaExceeded
                    | io::ErrorKind::FileTooLarge
            ),
            Self::Engine(_) | Self::Panicked(_) | Self::NotOpen => false,
        }
    }
}

/// A version that may be dropped once the floor has passed `at`.
#[derive(Debug, Clone)]
pub(super) struct Garbage {
    /// The revision that replaced the version; for a tombstone its own revision.
    pub(super) at: u64,
    pub(super) stem: Box<[u8]>,
    pub(super) revision: u64,
    pub(super) index: u16,
    pub(super) chunks: u16,
    pub(super) checksum: u64,
    pub(super) bytes: u32,
}

impl Garbage {
    pub(super) fn new(version: &Version, at: u64) -> Self {
        Self {
            at,
            stem: version.stem.clone().into(),
            revision: version.revision,
            index: version.index,
            chunks: version.header.chunks,
            checksum: version.header.checksum,
            bytes: u32::try_from(version.bytes()).unwrap_or(u32::MAX),
        }
    }
}

/// The result of reading a whole tree.
#[derive(Default)]
pub(super) struct Census {
    /// The versions that may be dropped, in order of `at`.
    pub(super) garbage: Vec<Garbage>,
    /// Live keys that are attached to a lease.
    pub(super) leased: Vec<(bytes::Bytes, i64)>,
    /// The filter of all keys that have versions.
    pub(super) present: Present,
}

/// The options for opening the tree.
#[derive(Debug, Clone, Copy)]
pub(super) struct EngineOptions {
    pub(super) cache_bytes: u64,
    pub(super) copy_bytes_max: u64,
}

/// An opened tree.
pub struct Engine {
    pub(super) db: sled::Db,
    file: File,
    watchdog: Watchdog,
}

impl Reads for Engine {
    const KEY_BYTES_MAX: usize = layout::KEY_BYTES_MAX;

    fn page(&self, request: &RangeRequest, at: Revision) -> Result<RangeReply, ReadError> {
        Ok(scan::page(&self.db, request, at.0)?)
    }

    fn find(&self, key: &[u8], at: Revision) -> Result<(Revision, Option<KeyValue>), ReadError> {
        let Some(version) = scan::newest(&self.db, key, at.0).map_err(ReadError::from)? else {
            return Ok((at, None));
        };
        let value = version.value().map_err(ScanError::from)?;
        Ok((at, value.map(|value| version.key_value(value))))
    }

    fn history(
        &self,
        range: (&[u8], &[u8]),
        after: Revision,
        through: Revision,
        bytes_max: usize,
    ) -> Result<History, ReadError> {
        scan::history(&self.db, range, after.0, through.0)?.within(bytes_max)
    }
}

impl Engine {
    /// Opens the tree of a folder and checks every record of it.
    pub(super) fn open(
        folder: &Folder,
        options: EngineOptions,
    ) -> Result<(Self, Head, Census), OpenError> {
        let acked = folder.acked()?;
        // A predecessor may have been killed between a write and its sync. Readers will see that
        // write, and sled will write a snapshot that refers to it.
        folder.sync_data()?;
        Self::try_copy(folder, options, acked)?;
        folder.restore_snapshot()?;
        let engine = Self::open_durably(folder, options)?;
        write_through(&engine.file);
        let verified = folder
            .sync()
            .and_then(|()| folder.drop_kept())
            .and_then(|()| engine.verify(&folder.path, acked));
        match verified {
            Ok((head, census)) => Ok((engine, head, census)),
            Err(error) => {
                discard(Some(engine));
                Err(error)
            }
        }
    }

    /// Opens the tree in two steps: sled is stopped once it has written a snapshot, and goes on when
    /// that is durable. The log is read in the first step, and what the snapshot does not cover,
    /// nothing, in the second.
    fn open_durably(folder: &Folder, options: EngineOptions) -> Result<Self, OpenError> {
        if folder.has_blobs()? {
            tracing::warn!("the store has pages in files of their own: it is opened in one step");
            return Self::open_tree(&folder.path, options);
        }
        folder.block_blobs()?;
        let kept = folder.keep_snapshot();
        let stopped = kept.and_then(|()| Self::open_tree(&folder.path, options));
        folder.unblock_blobs()?;
        match stopped {
            // A new tree has no snapshot.
            Ok(engine) => return Ok(engine),
            Err(OpenError::Io { error, .. }) if error.kind() == io::ErrorKind::NotADirectory => {}
            Err(error) => return Err(error),
        }
        folder.sync_snapshots()?;
        let path = folder.db_path();
        wait_for_release(&File::open(&path).map_err(io_at(&path))?);
        Self::open_tree(&folder.path, options)
    }

    /// Opens a copy of the files, and refuses the store if the copy is damaged, so that the files
    /// themselves are not touched.
    fn try_copy(folder: &Folder, options: EngineOptions, acked: u64) -> Result<(), OpenError> {
        let Some(copy) = folder.copy(options.copy_bytes_max)? else {
            return Ok(());
        };
        let result = Self::open_tree(&copy, options).and_then(|engine| {
            let verified = engine.verify(&copy, acked);
            discard(Some(engine));
            verified
        });
        // On a full disk sled may panic, which would be reported as damage.
        let has_room = folder.has_copy_room();
        folder.drop_copy()?;
        match result {
            Ok(_) => Ok(()),
            Err(error @ OpenError::Damaged { .. }) if has_room => Err(error),
            Err(error) => {
                tracing::warn!(%error, "a copy of the store could not be opened; opening the store");
                Ok(())
            }
        }
    }

    /// Reads everything, and checks that no acknowledged revision is missing.
    fn verify(&self, path: &Path, acked: u64) -> Result<(Head, Census), OpenError> {
        let damaged = |reason| Err(OpenError::Damaged { reason });
        let found = match catch_unwind(AssertUnwindSafe(|| census(&self.db))) {
            Ok(Ok(found)) => found,
            Ok(Err(ScanError::Engine(sled::Error::Io(error)))) => {
                return Err(io_at(path)(error));
            }
            Ok(Err(error)) => return damaged(error.to_string()),
            Err(panic) => return damaged(panic_text(&*panic)),
        };
        let newest = found.0.revision;
        if newest < acked {
            return damaged(format!(
                "revision {acked} was acknowledged and the newest one found is {newest}"
            ));
        }
        Ok(found)
    }

    fn open_tree(path: &Path, options: EngineOptions) -> Result<Self, OpenError> {
        files::drop_unfinished(path)?;
        let config = sled::Config::new()
            .path(path)
            .cache_capacity(options.cache_bytes)
            .flush_every_ms(None)
            .mode(sled::Mode::HighThroughput)
            .use_compression(false)
            .print_profile_on_drop(false);
        let db_path = path.join("db");
        let db = match catch_unwind(AssertUnwindSafe(|| config.open())) {
            Ok(Ok(db)) => db,
            Ok(Err(sled::Error::Io(error))) => return Err(io_at(&db_path)(error)),
            Ok(Err(error)) => {
                return Err(OpenError::Damaged {
                    reason: error.to_string(),
                });
            }
            Err(panic) => {
                return Err(OpenError::Damaged {
                    reason: panic_text(&*panic),
                });
            }
        };
        let file = File::options()
            .read(true)
            .write(true)
            .open(&db_path)
            .map_err(io_at(&db_path))?;
        let watchdog = Watchdog::start(&db).map_err(io_at(path))?;
        Ok(Self { db, file, watchdog })
    }

    /// Writes a batch and makes it durable.
    pub(super) fn write(&self, batch: sled::Batch) -> Result<(), EngineError> {
        let write = || {
            self.db.apply_batch(batch)?;
            self.db.flush()
        };
        let written = self
            .watchdog
            .during(|| catch_unwind(AssertUnwindSafe(write)));
        match written {
            Ok(Ok(_)) => self.sync(),
            Ok(Err(error)) => Err(EngineError::Engine(error)),
            Err(panic) => Err(EngineError::Panicked(panic_text(&*panic))),
        }
    }

    /// Makes sled's writes durable.
    pub(super) fn sync(&self) -> Result<(), EngineError> {
        self.file.sync_data().map_err(EngineError::Sync)
    }
}

/// Writes sled's files over themselves. A failed sync may leave data in memory only, which the kernel
/// has marked as clean; rewriting makes the kernel write and sync it again. The tree must not be
/// open.
pub(super) fn rewrite(folder: &Folder) -> Result<(), OpenError> {
    for path in folder.sled_paths()? {
        rewrite_file(&path).map_err(io_at(&path))?;
    }
    Ok(())
}

fn rewrite_file(path: &Path) -> io::Result<()> {
    let file = File::options().read(true).write(true).open(path)?;
    let mut block = vec![0; REWRITE_BYTES];
    let mut at = 0;
    loop {
        let read = file.read_at(&mut block, at)?;
        if read == 0 {
            return file.sync_data();
        }
        file.write_all_at(&block[..read], at)?;
        at += u64::try_from(read).expect("a block is small");
    }
}

/// Drops a tree, which may panic if it has failed, and waits until it has released its file. Returns the
/// handle of that file, which holds its lock until it is dropped.
///
/// sled writes and truncates on pool threads that do not report when they are done. Until then they
/// hold the lock on the file, so it cannot be opened, and must not be written or copied. If they
/// hold it for longer than [`RELEASE_WAIT_MAX`], the next attempt to open reports that.
pub(super) fn discard(engine: Option<Engine>) -> Option<File> {
    let Engine { db, file, watchdog } = engine?;
    drop(watchdog);
    if let Err(panic) = catch_unwind(AssertUnwindSafe(|| drop(db))) {
        let text = panic_text(&*panic);
        tracing::warn!(text, "the old tree was not dropped cleanly");
    }
    wait_for_release(&file);
    Some(file)
}

/// Waits until no other handle holds the lock on a file.
fn wait_for_release(file: &File) {
    let until = Instant::now() + RELEASE_WAIT_MAX;
    while flock(file, FlockOperation::NonBlockingLockExclusive).is_err() {
        if Instant::now() >= until {
            return tracing::warn!("the old tree still has its file locked");
        }
        #[expect(clippy::disallowed_methods, reason = "this thread is no runtime's")]
        std::thread::sleep(RELEASE_POLL);
    }
}

fn write_through(file: &File) {
    let set = ioctl_getflags(file).and_then(|flags| ioctl_setflags(file, flags | IFlags::SYNC));
    if let Err(error) = set {
        tracing::debug!(%error, "the file system does not support the write-through flag");
    }
}

/// Reads the whole tree: checks each version and the sum of all, and collects superseded versions.
fn census(db: &sled::Db) -> Result<(Head, Census), ScanError> {
    let Some(head) = db.get(HEAD_KEY)? else {
        if db.is_empty() {
            return Ok((Head::default(), Census::default()));
        }
        return Err(Damage::NoHead.into());
    };
    let head = Head::parse(&head)?;
    let mut counted = Head {
        versions: 0,
        sum: 0,
        ..head
    };
    let mut found = Census::default();
    let mut before: Option<Version> = None;
    scan::versions(db, layout::bound(b""), layout::end_bound(b""), |version| {
        version.verify()?;
        if version.revision > head.revision {
            return Err(Damage::BeyondHead.into());
        }
        counted.add(version.header.checksum);
        found.present.add(KeyHash::of(&version.stem));
        if let Some(before) = before.as_ref() {
            note_older(before, &version, &mut found);
        }
        if version.header.is_tombstone() {
            found.garbage.push(Garbage::new(&version, version.revision));
        }
        before = Some(version);
        Ok(Walk::On)
    })?;
    if let Some(last) = &before {
        note_newest(last, &mut found);
    }
    if counted != head {
        let (found, written) = (counted.versions, head.versions);
        return Err(Damage::Census { found, written }.into());
    }
    found.garbage.sort_by_key(|garbage| garbage.at);
    Ok((head, found))
}

fn note_older(before: &Version, version: &Version, found: &mut Census) {
    if before.stem != version.stem {
        note_newest(before, found);
    } else if !before.header.is_tombstone() {
        found.garbage.push(Garbage::new(before, version.revision));
    }
}

fn note_newest(version: &Version, found: &mut Census) {
    if version.header.is_tombstone() {
        return;
    }
    if let Some(lease) = version.header.lease() {
        found.leased.push((version.key(), lease));
    }
}
