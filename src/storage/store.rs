//! The `Store` trait and the types of its arguments and results.
//!
//! Invariant: a revision is the only clock here. This file does not know how an engine stores its
//! records: no chunks, segments or checksums.

use std::collections::VecDeque;
use std::fmt;
use std::time::Duration;

use async_trait::async_trait;
use bytes::Bytes;

use crate::error::{CommitError, LeaseError, ReadError};
use crate::watch::StoreWatch;

/// Number of operations that a committer may put into one transaction. Engines accept a few more,
/// so that fence and lease records always fit beside a full batch.
pub const TXN_OPS_MAX: usize = 120;

/// The store's commit counter. 0 is before the first commit. A transaction that changes something
/// gets the next number; one that changes nothing gets none.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Revision(pub u64);

impl fmt::Display for Revision {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// A store lease. Keys put under it are deleted when it ends, in one transaction with a revision of
/// its own.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct LeaseId(pub i64);

/// A condition on one key. All compares of a transaction must hold or it is refused.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Compare {
    /// The key is absent.
    Absent {
        /// The key.
        key: Bytes,
    },
    /// The key exists.
    Present {
        /// The key.
        key: Bytes,
    },
    /// The key exists and was last modified at exactly this revision.
    Unchanged {
        /// The key.
        key: Bytes,
        /// The revision of its last put.
        revision: Revision,
    },
    /// The key exists and was created at exactly this revision.
    CreatedAt {
        /// The key.
        key: Bytes,
        /// The revision of its first put since it was last absent.
        revision: Revision,
    },
    /// The key is absent or was created at another revision.
    NotCreatedAt {
        /// The key.
        key: Bytes,
        /// The revision at which it must not have been created.
        revision: Revision,
    },
}

impl Compare {
    /// Returns the key that is compared.
    #[must_use]
    pub fn key(&self) -> &Bytes {
        match self {
            Self::Absent { key }
            | Self::Present { key }
            | Self::Unchanged { key, .. }
            | Self::CreatedAt { key, .. }
            | Self::NotCreatedAt { key, .. } => key,
        }
    }
}

/// One change of one key.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Op {
    /// Sets the key.
    Put {
        /// The key, not empty.
        key: Bytes,
        /// The value, may be empty.
        value: Bytes,
        /// The lease whose end will delete the key; `None` detaches the key from its lease.
        lease: Option<LeaseId>,
    },
    /// Removes the key. If the key is absent, this does nothing and makes no event.
    Delete {
        /// The key, not empty.
        key: Bytes,
    },
}

impl Op {
    /// Returns the key that the operation changes.
    #[must_use]
    pub fn key(&self) -> &Bytes {
        match self {
            Self::Put { key, .. } | Self::Delete { key } => key,
        }
    }
}

/// A transaction: all compares are tested at one revision. If they hold, all operations are applied
/// in order, under one new revision. Two operations must not have the same key.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Txn {
    /// The conditions under which the operations are applied.
    pub compares: Vec<Compare>,
    /// The operations.
    pub ops: Vec<Op>,
}

/// The acknowledgement of a transaction: it is durable and every later read sees it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Committed {
    /// The transaction's revision. If it changed nothing, this is the newest revision when it was
    /// tested.
    pub revision: Revision,
}

/// A key with its value.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct KeyValue {
    /// The key.
    pub key: Bytes,
    /// The value; empty if the request was for [`Fields::KeysOnly`].
    pub value: Bytes,
    /// The revision of the first put since the key was last absent.
    pub created: Revision,
    /// The revision of the last put.
    pub modified: Revision,
    /// The lease that the key is attached to. When an embedded store is opened, it removes the keys
    /// of leases of an earlier process.
    pub lease: Option<LeaseId>,
}

/// The fields that a range read returns of each key.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum Fields {
    /// All fields.
    #[default]
    All,
    /// All fields but the value.
    KeysOnly,
}

/// One page of keys in byte order.
///
/// To read a large range as one consistent cut, read the first page with `at: None`, and each
/// further one with [`RangeRequest::next_page`].
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct RangeRequest {
    /// First key.
    pub start: Bytes,
    /// First key beyond the range; empty means no bound.
    pub end: Bytes,
    /// The revision as of which to read; `None` means now.
    pub at: Option<Revision>,
    /// Only keys last modified after this revision.
    pub modified_after: Option<Revision>,
    /// The fields to return of each key.
    pub fields: Fields,
    /// Number of keys in a page at most; 0 leaves it to the engine. To limit the bytes of a page,
    /// an engine may return fewer and set [`RangeReply::more`].
    pub limit: usize,
}

impl RangeRequest {
    /// Returns a request for all keys in `[start, end)`, as of now.
    #[must_use]
    pub fn between(start: impl Into<Bytes>, end: impl Into<Bytes>) -> Self {
        Self {
            start: start.into(),
            end: end.into(),
            ..Self::default()
        }
    }

    /// Returns a request for all keys that begin with `prefix`, as of now.
    #[must_use]
    pub fn prefix(prefix: impl Into<Bytes>) -> Self {
        let start = prefix.into();
        let end = prefix_end(&start);
        Self::between(start, end)
    }

    /// Returns the request for the page after `reply`, of the same cut; `None` after the last page.
    #[must_use]
    pub fn next_page(&self, reply: &RangeReply) -> Option<Self> {
        let last = reply.items.last().filter(|_| reply.more)?;
        let mut start = Vec::with_capacity(last.key.len() + 1);
        start.extend_from_slice(&last.key);
        start.push(0);
        Some(Self {
            start: start.into(),
            at: Some(reply.revision),
            ..self.clone()
        })
    }
}

/// Returns the first key beyond all keys that begin with `prefix`. It is empty, meaning no bound,
/// if there is no such key.
#[must_use]
pub fn prefix_end(prefix: &[u8]) -> Bytes {
    let kept = prefix
        .iter()
        .rposition(|byte| *byte != 0xFF)
        .map_or(0, |last| last + 1);
    let mut end = prefix[..kept].to_vec();
    if let Some(last) = end.last_mut() {
        *last += 1;
    }
    end.into()
}

/// The answer to a [`RangeRequest`].
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RangeReply {
    /// The revision the page was read at.
    pub revision: Revision,
    /// The keys in byte order.
    pub items: Vec<KeyValue>,
    /// True if there are more keys behind the last one. A page with more is never empty.
    pub more: bool,
}

/// One change of one key, as watches and histories return it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct StoreEvent {
    /// The revision of the transaction that made this change. Events of one revision are in the
    /// order of the transaction's operations.
    pub revision: Revision,
    /// The key.
    pub key: Bytes,
    /// The value after the change; `None` if the key was deleted.
    pub value: Option<Bytes>,
    /// The value before the change; `None` if the key was absent.
    pub previous: Option<Bytes>,
}

/// All changes of a range after a revision.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct History {
    /// The newest revision that the events cover.
    pub revision: Revision,
    /// The events in revision order, then in the order of operations.
    pub events: Vec<StoreEvent>,
}

/// Bytes of the keys and values of one history, at most. With more, the histories of a few planes that very
/// much was written to would fill the memory; with less, their watches could be resumed from less long ago.
pub const HISTORY_BYTES_MAX: usize = 64 << 20;

impl History {
    /// Returns the history, unless it has more than so many bytes.
    ///
    /// # Errors
    /// Returns [`ReadError::Compacted`] with the revision after which it has no more than that.
    pub(crate) fn within(self, bytes_max: usize) -> Result<Self, ReadError> {
        let mut newest = NewestEvents::new(bytes_max);
        for event in self.events {
            newest.push(event);
        }
        let events = newest.all()?;
        Ok(Self { events, ..self })
    }
}

/// Those of the events of a history that fit a number of bytes: the newest.
pub(crate) struct NewestEvents {
    events: VecDeque<StoreEvent>,
    bytes: usize,
    bytes_max: usize,
    /// The revision of the newest event that does not fit.
    floor: Option<Revision>,
}

impl NewestEvents {
    pub(crate) fn new(bytes_max: usize) -> Self {
        Self {
            events: VecDeque::new(),
            bytes: 0,
            bytes_max,
            floor: None,
        }
    }

    /// Adds an event that is newer than those before.
    pub(crate) fn push(&mut self, event: StoreEvent) {
        self.bytes += event.bytes();
        self.events.push_back(event);
        while self.bytes > self.bytes_max
            && let Some(oldest) = self.events.pop_front()
        {
            self.bytes -= oldest.bytes();
            self.floor = Some(oldest.revision);
        }
    }

    /// Returns the events, if all fit.
    ///
    /// # Errors
    /// Returns [`ReadError::Compacted`] with the revision after which they do.
    pub(crate) fn all(self) -> Result<Vec<StoreEvent>, ReadError> {
        match self.floor {
            Some(floor) => Err(ReadError::Compacted { floor }),
            None => Ok(self.events.into()),
        }
    }
}

impl StoreEvent {
    /// Returns the number of bytes of the key and the values.
    #[must_use]
    pub fn bytes(&self) -> usize {
        let length = |bytes: &Option<Bytes>| bytes.as_ref().map_or(0, Bytes::len);
        self.key.len() + length(&self.value) + length(&self.previous)
    }
}

/// The limits of an engine for one transaction.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Limits {
    /// Number of operations in a transaction.
    pub ops_max: usize,
    /// Number of compares in a transaction.
    pub compares_max: usize,
    /// Bytes of the keys and values of a transaction.
    pub txn_bytes_max: usize,
    /// Bytes of one value.
    pub value_bytes_max: usize,
    /// Bytes of one key.
    pub key_bytes_max: usize,
    /// Number of transactions in flight up to which throughput grows. Further ones only wait.
    pub transactions_max: usize,
    /// Whether a transaction waits for those before it, so that all writers wait longer if it has more writes.
    pub is_serial: bool,
}

/// The answer to whether the store accepts writes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Health {
    /// Reads and writes work.
    Ok,
    /// Reads work, writes are rejected until the cause is gone.
    ReadOnly {
        /// The cause, as a text for people.
        reason: String,
    },
    /// Neither reads nor writes work.
    Failed {
        /// The cause, as a text for people.
        reason: String,
    },
}

/// The state of a store.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct StoreStatus {
    /// The health, which says whether the store accepts writes.
    pub health: Health,
    /// The bytes that the store uses on disk, or in memory if it has no disk.
    pub used_bytes: u64,
    /// The oldest revision that `history` and `range` can still read.
    pub floor: Revision,
}

/// An ordered store of bytes with one commit order.
///
/// An engine must guarantee:
/// * Transactions are atomic, isolated, and durable once acknowledged. Their revisions grow in the
///   order in which they take effect.
/// * Reads without a revision are linearizable: they see every transaction that was acknowledged before
///   they began.
/// * Watches and histories return whole transactions in revision order, without gap or repetition.
/// * An error that is not [`CommitError::Unknown`] is final: the transaction will not take effect after it.
///   Only after [`CommitError::Undisclosed`] it may have taken effect before.
///
/// The crate's module `conformance` (feature `testing`) tests an engine for all of this.
///
/// # Cancel safety
/// Dropping the future of a read has no effect. A transaction, compaction or lease operation whose future
/// is dropped may still take effect, as if its outcome were [`CommitError::Unknown`].
#[async_trait]
pub trait Store: Send + Sync + 'static {
    /// Tests all compares of the transaction and, if they hold, applies all its operations durably.
    ///
    /// # Errors
    /// Returns [`CommitError::Refused`] if a compare does not hold, and [`CommitError::Rejected`]
    /// if the store does not accept the transaction: both are final. After
    /// [`CommitError::Undisclosed`] the transaction may have taken effect; a read settles whether it
    /// has. After [`CommitError::Unknown`] it may have taken effect, or may still; only a later write
    /// that compares can settle which.
    async fn commit(&self, txn: Txn) -> Result<Committed, CommitError>;

    /// Returns one page of keys. With `at: None` the read is linearizable.
    ///
    /// # Errors
    /// Returns [`ReadError::Compacted`] or [`ReadError::Future`] for a revision outside the kept
    /// history, and [`ReadError::Unavailable`] if trying again later may help.
    async fn range(&self, request: RangeRequest) -> Result<RangeReply, ReadError>;

    /// Returns one key, by a linearizable read, and the revision at which it was read.
    ///
    /// # Errors
    /// Returns [`ReadError::Unavailable`] if trying again later may help.
    async fn get(&self, key: &[u8]) -> Result<(Revision, Option<KeyValue>), ReadError>;

    /// Returns the events of `[start, end)` after a revision, up to now. An empty `end` means no
    /// bound.
    ///
    /// # Errors
    /// Returns the errors of [`Self::range`] with a revision. Events of more than [`HISTORY_BYTES_MAX`]
    /// bytes count as compacted but for the newest of them: the error then names the revision after which
    /// one history has them all.
    async fn history(
        &self,
        start: Bytes,
        end: Bytes,
        after: Revision,
    ) -> Result<History, ReadError>;

    /// Opens a watch of the events of `[start, end)` after a revision, past ones included.
    ///
    /// # Errors
    /// Returns the errors of [`Self::range`] with a revision; [`ReadError::Future`] if `after` is
    /// beyond the newest revision.
    async fn watch(
        &self,
        start: Bytes,
        end: Bytes,
        after: Revision,
    ) -> Result<StoreWatch, ReadError>;

    /// Requests that every open watch reports its progress soon, by a batch, perhaps without
    /// events, whose revision is at least every revision that this store has returned before the
    /// call. Without such a request an engine need not report revisions that have no events in a
    /// watch's range.
    ///
    /// # Errors
    /// Returns [`ReadError::Closed`] after [`Self::close`].
    async fn request_progress(&self) -> Result<(), ReadError>;

    /// Returns the newest revision by a linearizable read.
    ///
    /// # Errors
    /// Returns [`ReadError::Unavailable`] if trying again later may help.
    async fn revision(&self) -> Result<Revision, ReadError>;

    /// Drops the history below a revision. Does nothing if a longer part of it has been dropped
    /// already.
    ///
    /// # Errors
    /// Returns [`ReadError::Future`] for a revision beyond the newest one, and
    /// [`ReadError::Unavailable`] if trying again later may help.
    async fn compact(&self, below: Revision) -> Result<(), ReadError>;

    /// Grants a lease that ends `ttl` after its last renewal, by the store's clock. A store may round
    /// `ttl` up to whole seconds and to a minimum.
    ///
    /// # Errors
    /// Returns [`LeaseError::Unavailable`] if trying again later may help. If only the reply was
    /// lost, the lease ends by itself.
    async fn lease_grant(&self, ttl: Duration) -> Result<LeaseId, LeaseError>;

    /// Renews a lease for its `ttl` from now.
    ///
    /// # Errors
    /// Returns [`LeaseError::NotFound`] if it has ended.
    async fn lease_keep_alive(&self, lease: LeaseId) -> Result<(), LeaseError>;

    /// Ends a lease now. When this returns, its keys are deleted.
    ///
    /// # Errors
    /// Returns [`LeaseError::NotFound`] if it has ended.
    async fn lease_revoke(&self, lease: LeaseId) -> Result<(), LeaseError>;

    /// Returns, for a store that only one process can have open, the newest revision when it was
    /// opened. That proves every incarnation up to it dead. Returns `None` for a store that
    /// processes share.
    fn opened_at(&self) -> Option<Revision>;

    /// Returns the limits of one transaction.
    fn limits(&self) -> Limits;

    /// Returns the last known state. Does no I/O.
    fn status(&self) -> StoreStatus;

    /// Returns the last known health. Does no I/O.
    fn health(&self) -> Health {
        self.status().health
    }

    /// Returns whether so little room is left that callers should send only writes that need hardly
    /// any, deletions above all. The store itself refuses nothing for this reason. Does no I/O.
    fn is_nearly_full(&self) -> bool {
        false
    }

    /// Returns what the operator can do so that the store accepts writes again; `None` if it accepts
    /// them, or if the engine does not know. Does no I/O.
    fn remedy(&self) -> Option<&'static str> {
        None
    }

    /// Ends all watches, finishes accepted transactions, and releases the folder, if the engine has one.
    /// Later calls fail with the `Closed` variant of their error.
    async fn close(&self);
}
