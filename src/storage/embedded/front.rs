//! The callers' side of every embedded engine: a [`Store`] in front of a writer, reader
//! threads and the state they share.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::thread::JoinHandle;
use std::time::Duration;

use async_trait::async_trait;
use bytes::Bytes;
use parking_lot::Mutex;
use tokio::sync::{Semaphore, oneshot};

use super::jobs::{Command, Job, Work};
use super::readers::Readers;
use super::state::StoreState;
use crate::error::{CommitError, LeaseError, ReadError, Rejection};
use crate::lease::Clock;
use crate::store::{
    Committed, HISTORY_BYTES_MAX, Health, History, KeyValue, LeaseId, Limits, RangeReply,
    RangeRequest, Revision, Store, StoreStatus, Txn,
};
use crate::txn::{EMBEDDED_LIMITS, check, txn_bytes};
use crate::watch::{StoreWatch, batches};

/// KiB of queued transactions. Beyond it callers wait to enter the queue.
const QUEUE_KIB_MAX: usize = 64 * 1024;
/// Times that a read lets the engine be opened again before it gives up.
const READ_MENDS_MAX: usize = 3;
/// Transactions in flight up to which throughput grows.
const TRANSACTIONS_MAX: usize = 8;

/// The reads of an opened engine. Each may wait for the disk.
pub trait Reads: Send + Sync + 'static {
    /// Bytes of a key that may be put.
    const KEY_BYTES_MAX: usize = EMBEDDED_LIMITS.key_bytes_max;

    /// A page of a range as of a revision, or as of a newer one if the request names none.
    ///
    /// # Errors
    /// As [`Store::range`].
    fn page(&self, request: &RangeRequest, at: Revision) -> Result<RangeReply, ReadError>;

    /// One key as of a revision or a newer one, which is returned.
    ///
    /// # Errors
    /// As [`Store::get`].
    fn find(&self, key: &[u8], at: Revision) -> Result<(Revision, Option<KeyValue>), ReadError>;

    /// The events of `[start, end)` in `(after, through]`.
    ///
    /// # Errors
    /// As [`Store::history`].
    fn history(
        &self,
        range: (&[u8], &[u8]),
        after: Revision,
        through: Revision,
        bytes_max: usize,
    ) -> Result<History, ReadError>;
}

/// The writer has ended.
#[derive(Debug)]
pub(crate) struct Ended;

/// The way to the writer. When it is dropped, the writer finishes what it has and closes the store.
pub(crate) trait Commands: Send + Sync + 'static {
    /// Gives the writer a command. Every command is answered, or its channel dropped.
    fn send(&self, command: Command) -> Result<(), Ended>;
}

impl Commands for std::sync::mpsc::Sender<Command> {
    fn send(&self, command: Command) -> Result<(), Ended> {
        std::sync::mpsc::Sender::send(self, command).map_err(|_| Ended)
    }
}

/// The embedded store of an engine. Dropping it without [`Store::close`] also finishes what was queued,
/// but does not wait for it.
pub struct EmbeddedStore<E> {
    shared: Arc<StoreState<E>>,
    clock: Arc<dyn Clock>,
    commands: Box<dyn Commands>,
    queue_room: Arc<Semaphore>,
    readers: Readers,
    opened_at: Revision,
    writer: Mutex<Option<JoinHandle<()>>>,
}

impl<E: Reads> EmbeddedStore<E> {
    /// The store of an engine that is open, and whose writer runs.
    pub(crate) fn start(
        shared: Arc<StoreState<E>>,
        opened_at: Revision,
        clock: Arc<dyn Clock>,
        readers: Readers,
        (commands, writer): (Box<dyn Commands>, JoinHandle<()>),
    ) -> Self {
        Self {
            shared,
            clock,
            commands,
            queue_room: Arc::new(Semaphore::new(QUEUE_KIB_MAX)),
            readers,
            opened_at,
            writer: Mutex::new(Some(writer)),
        }
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
                "the writer of the store has failed or ended".to_owned(),
            )),
        }
    }

    /// Runs a read. An engine may break under a read, as sled does on a full disk, because it moves
    /// pages while it reads; the writer then opens it again, and the read is done once more.
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

    /// Reports a read that met an error of the disk, as [`EmbeddedStore::read`] does.
    #[cfg(test)]
    pub(crate) async fn report_failed_read(&self, why: &str) -> Result<(), ReadError> {
        let opening = self.shared.openings.load(Ordering::SeqCst);
        let why = why.to_owned();
        self.request(|reply| Command::Broken {
            opening,
            why,
            reply,
        })
        .await
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
impl<E: Reads> Store for EmbeddedStore<E> {
    async fn commit(&self, txn: Txn) -> Result<Committed, CommitError> {
        check(&txn, &self.limits()).map_err(CommitError::Rejected)?;
        let bytes = txn_bytes(&txn);
        self.submit(Work::Txn(txn), bytes).await
    }

    async fn range(&self, request: RangeRequest) -> Result<RangeReply, ReadError> {
        let shared = Arc::clone(&self.shared);
        let read = move || shared.read(request.at, |engine, at| engine.page(&request, at));
        self.read(read).await
    }

    async fn get(&self, key: &[u8]) -> Result<(Revision, Option<KeyValue>), ReadError> {
        let shared = Arc::clone(&self.shared);
        let key = Bytes::copy_from_slice(key);
        let read = move || shared.read(None, |engine, at| engine.find(&key, at));
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
            shared.read(Some(after), |engine, after| {
                let through = through.max(after);
                engine.history((&start, &end), after, through, HISTORY_BYTES_MAX)
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
                shared.read(Some(after), |engine, after| {
                    engine.history((&start, &end), after, through, usize::MAX)
                })
            };
            let missed = self.read(read).await?;
            sender.put_in_front(batches(missed.events));
        }
        // A watch that was registered at the head misses nothing, although the floor may have passed the head since.
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
            transactions_max: TRANSACTIONS_MAX,
            key_bytes_max: E::KEY_BYTES_MAX,
            ..EMBEDDED_LIMITS
        }
    }

    fn status(&self) -> StoreStatus {
        StoreStatus {
            health: self.health(),
            used_bytes: self.shared.folder.used_bytes(),
            floor: self.shared.floor(),
        }
    }

    fn health(&self) -> Health {
        // The writer looks at the folder only when there is something to write.
        let _ = self.shared.check_folder();
        self.shared.health.lock().clone()
    }

    fn is_nearly_full(&self) -> bool {
        self.shared.nearly_full.get()
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
