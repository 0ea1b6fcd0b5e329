//! The embedded engine: one folder, one process, every acknowledged write on disk.
//!
//! * `layout`: the form of versions in sled's tree. `scan`: reading them.
//! * `folder`: lock, format, and the proof that nothing was lost. `space`: room on the disk.
//! * `engine`: the opened tree, and how its writes become durable. `writer` with `group` and
//!   `present`: the one thread that writes, group commit, trimming, leases, recovery. `readers`:
//!   threads for reads.
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
//!   transaction, which is unknown only if it cannot be determined.
//! * Leases live in memory. A key that was attached to a lease of an earlier process is removed
//!   when the store is opened.

mod engine;
mod folder;
#[cfg(test)]
mod frozen;
mod group;
mod layout;
mod present;
mod readers;
mod scan;
mod shared;
mod space;
mod writer;

use std::collections::{HashMap, VecDeque};
use std::io;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::mpsc::{Sender, channel};
use std::thread::JoinHandle;
use std::time::Duration;

use async_trait::async_trait;
use bytes::Bytes;
use parking_lot::{Mutex, RwLock};
use rustix::fs::statvfs;
use tokio::sync::{Semaphore, oneshot};

use self::engine::{Engine, EngineOptions};
use self::folder::Folder;
use self::readers::Readers;
use self::shared::StoreState;
use self::space::Space;
use self::writer::{Command, Job, Work, Writer};
use crate::error::{CommitError, LeaseError, OpenError, ReadError, Rejection};
use crate::lease::{Clock, LeaseTable, SystemClock, first_lease_id};
use crate::store::{
    Committed, Health, History, KeyValue, LeaseId, Limits, RangeReply, RangeRequest, Revision,
    Store, StoreStatus, Txn,
};
use crate::txn::{EMBEDDED_LIMITS, check, txn_bytes};
use crate::watch::{StoreWatch, batches};

/// KiB of queued transactions. Further callers wait until there is room in the queue.
const QUEUE_KIB_MAX: usize = 64 * 1024;

/// Number of times that a read waits for the tree to be opened again before it gives up.
const READ_MENDS_MAX: usize = 3;

/// The operations that the store requires of its disk besides reading and writing files.
/// [`SystemDisk`] is the real one; tests replace it by a disk that fails.
pub trait Disk: Send + Sync + 'static {
    /// Called after a group up to `head` was synced, before any of its transactions is
    /// acknowledged.
    ///
    /// # Errors
    /// Returns an error that the store treats as a failure of the sync.
    fn after_sync(&self, head: Revision) -> io::Result<()>;

    /// Returns the number of bytes that are free for the files of a folder.
    ///
    /// # Errors
    /// Returns an error if the system does not return them.
    fn free_bytes(&self, folder: &Path) -> io::Result<u64>;
}

/// The disk of the operating system.
#[derive(Debug, Clone, Copy, Default)]
pub struct SystemDisk;

impl Disk for SystemDisk {
    fn after_sync(&self, _head: Revision) -> io::Result<()> {
        Ok(())
    }

    fn free_bytes(&self, folder: &Path) -> io::Result<u64> {
        let stat = statvfs(folder)?;
        Ok(stat.f_bavail.saturating_mul(stat.f_frsize))
    }
}

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

    /// Returns options for opening the tree again: without the copy, because the disk is in trouble
    /// and the files were whole a moment ago.
    fn engine_again(&self) -> EngineOptions {
        EngineOptions {
            copy_bytes_max: 0,
            ..self.engine()
        }
    }
}

/// The embedded store. Dropping it without [`Store::close`] also finishes queued transactions, but
/// does not wait for them.
pub struct SledStore {
    shared: Arc<StoreState>,
    clock: Arc<dyn Clock>,
    commands: Sender<Command>,
    queue_room: Arc<Semaphore>,
    readers: Readers,
    opened_at: Revision,
    writer: Mutex<Option<JoinHandle<()>>>,
}

impl SledStore {
    /// Opens the store in a folder, which is created if it does not exist. Blocks while it reads
    /// and checks everything, which takes about a second per million versions.
    ///
    /// # Errors
    /// See [`OpenError`]. Each message says what to do.
    pub fn open(path: &Path, options: SledOptions) -> Result<Self, OpenError> {
        let folder = Folder::open(path)?;
        let space = Space::new(path, &options);
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
        let shared = Arc::new(StoreState {
            folder,
            engine: RwLock::new(Some(engine)),
            openings: AtomicU64::new(0),
            published: AtomicU64::new(head.revision),
            floor: AtomicU64::new(head.floor),
            health: Mutex::new(Health::Ok),
            leases: Mutex::new(leases),
            closed: AtomicBool::new(false),
        });
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
            groups: 0,
            tried: None,
            options: options.clone(),
        };
        writer.end_leases();
        let opened_at = shared.head();
        let readers = Readers::start(options.reader_threads).map_err(&io)?;
        let thread = std::thread::Builder::new().name("store-write".to_owned());
        let writer = thread.spawn(move || writer.run()).map_err(&io)?;
        let queue_room = Arc::new(Semaphore::new(QUEUE_KIB_MAX));
        let writer = Mutex::new(Some(writer));
        let clock = options.clock;
        Ok(Self {
            shared,
            clock,
            commands,
            queue_room,
            readers,
            opened_at,
            writer,
        })
    }

    async fn submit(&self, work: Work, bytes: usize) -> Result<Committed, CommitError> {
        let closed = || CommitError::Rejected(Rejection::Closed);
        let kib = u32::try_from(1 + bytes / 1024).expect("transactions are below 4 TiB");
        let room = Arc::clone(&self.queue_room).acquire_many_owned(kib);
        let permit = Some(room.await.map_err(|_| closed())?);
        let (reply, answer) = oneshot::channel();
        let job = Job {
            work,
            reply: Some(reply),
            permit,
        };
        self.commands
            .send(Command::Commit(job))
            .map_err(|_| closed())?;
        match answer.await {
            Ok(result) => result,
            // A closed writer has answered every transaction that it began.
            Err(_) if self.shared.is_closed() => Err(closed()),
            Err(_) => Err(CommitError::Unknown(
                "the writer thread of the store has ended".to_owned(),
            )),
        }
    }

    /// Runs a read. sled also moves pages while it reads, so a full disk may break its tree during
    /// a read. The writer then opens the tree again, and the read is repeated.
    async fn read<T: Send + 'static>(
        &self,
        read: impl Fn() -> Result<T, ReadError> + Clone + Send + 'static,
    ) -> Result<T, ReadError> {
        for _ in 0..READ_MENDS_MAX {
            let opening = self.shared.openings.load(Ordering::SeqCst);
            let result = self.readers.run(read.clone()).await;
            let Err(ReadError::Unavailable(why)) = result else {
                return result;
            };
            self.request(|reply| Command::Broken {
                opening,
                why,
                reply,
            })
            .await?;
        }
        self.readers.run(read).await
    }

    async fn request<T>(
        &self,
        command: impl FnOnce(oneshot::Sender<Result<T, ReadError>>) -> Command,
    ) -> Result<T, ReadError> {
        let (reply, answer) = oneshot::channel();
        self.commands
            .send(command(reply))
            .map_err(|_| ReadError::Closed)?;
        answer.await.map_err(|_| ReadError::Closed)?
    }
}

#[async_trait]
impl Store for SledStore {
    async fn commit(&self, txn: Txn) -> Result<Committed, CommitError> {
        check(&txn, &EMBEDDED_LIMITS).map_err(CommitError::Rejected)?;
        let bytes = txn_bytes(&txn);
        self.submit(Work::Txn(txn), bytes).await
    }

    async fn range(&self, request: RangeRequest) -> Result<RangeReply, ReadError> {
        let shared = Arc::clone(&self.shared);
        let read = move || shared.read(request.at, |db, at| scan::page(db, &request, at));
        self.read(read).await
    }

    async fn get(&self, key: &[u8]) -> Result<(Revision, Option<KeyValue>), ReadError> {
        let shared = Arc::clone(&self.shared);
        let key = Bytes::copy_from_slice(key);
        let read = move || {
            shared.read(None, |db, at| {
                let Some(version) = scan::newest(db, &key, at)? else {
                    return Ok((Revision(at), None));
                };
                let value = version.value()?;
                Ok((Revision(at), value.map(|value| version.key_value(value))))
            })
        };
        self.read(read).await
    }

    async fn history(
        &self,
        start: Bytes,
        end: Bytes,
        after: Revision,
    ) -> Result<History, ReadError> {
        let shared = Arc::clone(&self.shared);
        let read = move || {
            let through = shared.head();
            shared.read(Some(after), |db, after| {
                scan::history(db, (&start, &end), after, through.0.max(after))
            })
        };
        self.read(read).await
    }

    async fn watch(
        &self,
        start: Bytes,
        end: Bytes,
        after: Revision,
    ) -> Result<StoreWatch, ReadError> {
        let (first, last) = (start.clone(), end.clone());
        let registered = self.request(|reply| Command::Watch {
            start: first,
            end: last,
            after,
            reply,
        });
        let (watch, sender, through) = registered.await?;
        if after < through {
            let shared = Arc::clone(&self.shared);
            let read = move || {
                shared.read(Some(after), |db, after| {
                    scan::history(db, (&start, &end), after, through.0)
                })
            };
            let missed = self.read(read).await?;
            sender.put_in_front(batches(missed.events));
        } else if after < self.shared.floor() {
            return Err(ReadError::Compacted {
                floor: self.shared.floor(),
            });
        }
        Ok(watch)
    }

    async fn request_progress(&self) -> Result<(), ReadError> {
        let sent = self.commands.send(Command::Progress);
        sent.map_err(|_| ReadError::Closed)
    }

    async fn revision(&self) -> Result<Revision, ReadError> {
        if self.shared.is_closed() {
            return Err(ReadError::Closed);
        }
        Ok(self.shared.head())
    }

    async fn compact(&self, below: Revision) -> Result<(), ReadError> {
        self.request(|reply| Command::Compact { below, reply })
            .await
    }

    async fn lease_grant(&self, ttl: Duration) -> Result<LeaseId, LeaseError> {
        if self.shared.is_closed() {
            return Err(LeaseError::Closed);
        }
        let lease = self.shared.leases.lock().grant(ttl, self.clock.now());
        self.commands
            .send(Command::Wake)
            .map_err(|_| LeaseError::Closed)?;
        Ok(lease)
    }

    async fn lease_keep_alive(&self, lease: LeaseId) -> Result<(), LeaseError> {
        if self.shared.is_closed() {
            return Err(LeaseError::Closed);
        }
        let kept = self
            .shared
            .leases
            .lock()
            .keep_alive(lease, self.clock.now());
        if kept {
            Ok(())
        } else {
            Err(LeaseError::NotFound)
        }
    }

    async fn lease_revoke(&self, lease: LeaseId) -> Result<(), LeaseError> {
        if self.shared.is_closed() {
            return Err(LeaseError::Closed);
        }
        if !self.shared.leases.lock().has(lease) {
            return Err(LeaseError::NotFound);
        }
        match self.submit(Work::EndLease(lease), 0).await {
            Ok(_) => Ok(()),
            Err(CommitError::Rejected(Rejection::Closed)) => Err(LeaseError::Closed),
            Err(error) => Err(LeaseError::Unavailable(error.to_string())),
        }
    }

    fn opened_at(&self) -> Option<Revision> {
        Some(self.opened_at)
    }

    fn limits(&self) -> Limits {
        Limits {
            transactions_max: 8,
            ..EMBEDDED_LIMITS
        }
    }

    fn status(&self) -> StoreStatus {
        StoreStatus {
            health: self.shared.health.lock().clone(),
            used_bytes: self.shared.folder.used_bytes(),
            floor: self.shared.floor(),
        }
    }

    fn health(&self) -> Health {
        self.shared.health.lock().clone()
    }

    async fn close(&self) {
        let (reply, closed) = oneshot::channel();
        if self.commands.send(Command::Close(reply)).is_ok() {
            // An error means that another call has closed the writer.
            let _ = closed.await;
        }
        let writer = self.writer.lock().take();
        if let Some(writer) = writer {
            // The writer replied as its last action, so joining it does not block.
            let _ = writer.join();
        }
    }
}

#[cfg(test)]
mod tests;
