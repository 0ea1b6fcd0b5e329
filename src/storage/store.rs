//! The `Store` trait and the values that cross it.
//!
//! Invariant: a revision is the only clock here. Nothing in this file knows how an engine keeps
//! its records: no chunks, segments or checksums.

use std::fmt;
use std::time::Duration;

use async_trait::async_trait;
use bytes::Bytes;

use crate::error::{CommitError, LeaseError, ReadError};
use crate::watch::StoreWatch;

/// Operations a committer may put into one transaction. Engines take a few more, so that fence
/// and lease records always find room beside a full batch.
pub const TXN_OPS_MAX: usize = 120;

/// The store's commit counter. 0 is before the first commit. A transaction that changes something
/// takes the next one; one that changes nothing takes none.
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
    /// There is no such key.
    Absent {
        /// The key.
        key: Bytes,
    },
    /// There is such a key.
    Present {
        /// The key.
        key: Bytes,
    },
    /// The key is there and was last modified at exactly this revision.
    Unchanged {
        /// The key.
        key: Bytes,
        /// The revision of its last put.
        revision: Revision,
    },
    /// The key is there and was created at exactly this revision.
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
        /// The revision it must not have been created at.
        revision: Revision,
    },
}

impl Compare {
    /// The key this compare looks at.
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
    /// Removes the key. Of an absent key: does nothing and makes no event.
    Delete {
        /// The key, not empty.
        key: Bytes,
    },
}

impl Op {
    /// The key this operation changes.
    #[must_use]
    pub fn key(&self) -> &Bytes {
        match self {
            Self::Put { key, .. } | Self::Delete { key } => key,
        }
    }
}

/// A transaction: all compares are tested at one point, then all operations are done at it, in
/// order, under one revision. Two operations must not have the same key.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Txn {
    /// What must hold.
    pub compares: Vec<Compare>,
    /// What is then done.
    pub ops: Vec<Op>,
}

/// The acknowledgement of a transaction: it is durable and every later read sees it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Committed {
    /// The transaction's revision; if it changed nothing, the newest revision at its place.
    pub revision: Revision,
}

/// A key with what it holds.
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
    /// The lease the key hangs on. An embedded store removes, when it opens, the keys of leases of an
    /// earlier process.
    pub lease: Option<LeaseId>,
}

/// What a range read returns of each key.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum Fields {
    /// Everything.
    #[default]
    All,
    /// Everything but the value.
    KeysOnly,
}

/// One page of keys in byte order.
///
/// To read a large range as one consistent cut, take the first page with `at: None`, and each
/// further one with [`RangeRequest::next_page`].
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct RangeRequest {
    /// First key.
    pub start: Bytes,
    /// First key beyond the range; empty means no bound.
    pub end: Bytes,
    /// Read as of this revision; `None` is now.
    pub at: Option<Revision>,
    /// Only keys last modified after this revision.
    pub modified_after: Option<Revision>,
    /// What to return of each key.
    pub fields: Fields,
    /// Keys of a page, at most; 0 leaves it to the engine. To bound the bytes of a page, an engine may
    /// return fewer and set [`RangeReply::more`].
    pub limit: usize,
}

impl RangeRequest {
    /// All keys in `[start, end)`, as of now.
    #[must_use]
    pub fn between(start: impl Into<Bytes>, end: impl Into<Bytes>) -> Self {
        Self {
            start: start.into(),
            end: end.into(),
            ..Self::default()
        }
    }

    /// All keys that begin with `prefix`, as of now.
    #[must_use]
    pub fn prefix(prefix: impl Into<Bytes>) -> Self {
        let start = prefix.into();
        let end = prefix_end(&start);
        Self::between(start, end)
    }

    /// The request for the page after `reply`, of the same cut; `None` after the last page.
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

/// The first key beyond all keys that begin with `prefix`; empty, meaning no bound, if there is
/// none.
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
    /// Keys in byte order.
    pub items: Vec<KeyValue>,
    /// There are more keys behind the last one. A page with more is never empty.
    pub more: bool,
}

/// One change of one key, as watches and histories return it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct StoreEvent {
    /// The revision of the transaction that made this change. Events of one revision come in the
    /// order of the transaction's operations.
    pub revision: Revision,
    /// The key.
    pub key: Bytes,
    /// What it holds now; `None` says that it was deleted.
    pub value: Option<Bytes>,
    /// What it held before; `None` says that it was absent.
    pub previous: Option<Bytes>,
}

/// All changes of a range after a revision.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct History {
    /// The newest revision that the events cover.
    pub revision: Revision,
    /// In revision order, then in the order of operations.
    pub events: Vec<StoreEvent>,
}

/// What an engine takes in one transaction.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Limits {
    /// Operations per transaction.
    pub ops_max: usize,
    /// Compares per transaction.
    pub compares_max: usize,
    /// Bytes of keys and values per transaction.
    pub txn_bytes_max: usize,
    /// Bytes of one value.
    pub value_bytes_max: usize,
    /// Bytes of one key.
    pub key_bytes_max: usize,
    /// Transactions in flight up to which throughput grows. Further ones only wait.
    pub transactions_max: usize,
}

/// Whether the store takes writes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Health {
    /// Reads and writes work.
    Ok,
    /// Reads work, writes are rejected until the cause is gone.
    ReadOnly {
        /// The cause, for people.
        reason: String,
    },
    /// Neither reads nor writes work.
    Failed {
        /// The cause, for people.
        reason: String,
    },
}

/// The state of a store.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct StoreStatus {
    /// Whether it takes writes.
    pub health: Health,
    /// Bytes it holds on disk, or in memory if it has no disk.
    pub used_bytes: u64,
    /// The oldest revision that `history` and `range` can still answer for.
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
/// * An error that is not [`CommitError::Unknown`] is final: the transaction will never take effect.
///
/// The crate's module `conformance` (feature `testing`) tests an engine for all of this.
///
/// # Cancel safety
/// Dropping the future of a read has no effect. A transaction, compaction or lease operation whose future
/// is dropped may still take effect, as if its outcome were [`CommitError::Unknown`].
#[async_trait]
pub trait Store: Send + Sync + 'static {
    /// Tests all compares of the transaction and, if they hold, does all its operations, durably.
    ///
    /// # Errors
    /// [`CommitError::Refused`] if a compare does not hold, [`CommitError::Rejected`] if the store does
    /// not take the transaction: both are final. After [`CommitError::Unknown`] the transaction may have
    /// taken effect, or may still; only a later write that compares can settle which.
    async fn commit(&self, txn: Txn) -> Result<Committed, CommitError>;

    /// Returns one page of keys. With `at: None` it is linearizable.
    ///
    /// # Errors
    /// [`ReadError::Compacted`] and [`ReadError::Future`] for a revision outside the kept history;
    /// [`ReadError::Unavailable`] if trying again later may help.
    async fn range(&self, request: RangeRequest) -> Result<RangeReply, ReadError>;

    /// Returns one key, linearizable, and the revision at which it was read.
    ///
    /// # Errors
    /// [`ReadError::Unavailable`] if trying again later may help.
    async fn get(&self, key: &[u8]) -> Result<(Revision, Option<KeyValue>), ReadError>;

    /// Returns the events of `[start, end)` after a revision, up to now. An empty `end` is no bound.
    ///
    /// # Errors
    /// Those of [`Self::range`] with a revision.
    async fn history(
        &self,
        start: Bytes,
        end: Bytes,
        after: Revision,
    ) -> Result<History, ReadError>;

    /// Opens a watch of the events of `[start, end)` after a revision, past ones included.
    ///
    /// # Errors
    /// Those of [`Self::range`] with a revision. An `after` beyond the newest revision is
    /// [`ReadError::Future`].
    async fn watch(
        &self,
        start: Bytes,
        end: Bytes,
        after: Revision,
    ) -> Result<StoreWatch, ReadError>;

    /// Requests that every open watch reports its progress soon, by a batch, perhaps without events,
    /// whose revision is at least every revision that this store has returned before the call. Unless
    /// requested, no engine has to report revisions without events in a watch's range.
    ///
    /// # Errors
    /// [`ReadError::Closed`] after [`Self::close`].
    async fn request_progress(&self) -> Result<(), ReadError>;

    /// Returns the newest revision, linearizable.
    ///
    /// # Errors
    /// [`ReadError::Unavailable`] if trying again later may help.
    async fn revision(&self) -> Result<Revision, ReadError>;

    /// Drops the history below a revision. Does nothing if a longer part of it is dropped already.
    ///
    /// # Errors
    /// [`ReadError::Future`] for a revision beyond the newest one; [`ReadError::Unavailable`] if trying
    /// again later may help.
    async fn compact(&self, below: Revision) -> Result<(), ReadError>;

    /// Grants a lease that ends `ttl` after its last renewal, by the store's clock. A store may round
    /// `ttl` up to whole seconds and to a minimum.
    ///
    /// # Errors
    /// [`LeaseError::Unavailable`] if trying again later may help. If only the answer was lost, the lease
    /// ends by itself.
    async fn lease_grant(&self, ttl: Duration) -> Result<LeaseId, LeaseError>;

    /// Renews a lease for its `ttl` from now.
    ///
    /// # Errors
    /// [`LeaseError::NotFound`] if it has ended.
    async fn lease_keep_alive(&self, lease: LeaseId) -> Result<(), LeaseError>;

    /// Ends a lease now. When this returns, its keys are deleted.
    ///
    /// # Errors
    /// [`LeaseError::NotFound`] if it has ended.
    async fn lease_revoke(&self, lease: LeaseId) -> Result<(), LeaseError>;

    /// For a store that only one process can have open: the newest revision when it was opened, which
    /// proves every incarnation up to it dead. `None` for a store that processes share.
    fn opened_at(&self) -> Option<Revision>;

    /// The limits of one transaction.
    fn limits(&self) -> Limits;

    /// The last known state. Does no I/O.
    fn status(&self) -> StoreStatus;

    /// The last known health. Does no I/O.
    fn health(&self) -> Health {
        self.status().health
    }

    /// Ends all watches, finishes accepted transactions, and releases the folder, if the engine has one.
    /// Later calls fail with the `Closed` variant of their error.
    async fn close(&self);
}
