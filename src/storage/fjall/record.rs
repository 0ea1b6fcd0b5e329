//! How keys, events and counters lie in fjall's two keyspaces.
//!
//! `state` has what is there now:
//! * `h`: the [`Head`].
//! * `v ‖ key`: a [`Row`], the value of a key with its revisions.
//! * `l ‖ key`: empty; the key hangs on a lease. Saves an opening from reading everything to find them.
//!
//! `log` has what happened since the floor, in commit order:
//! * `revision (be64) ‖ index (be16)`: an [`Event`], the operation of a transaction at that index. It
//!   has the row that it replaced, and not the one that it put: that one is the row that the key's next
//!   event replaced, or the one in `state`.
//!
//! There are no checksums here: fjall keeps one for every batch of its journal and every block of its
//! tables, and checks it at each read.

use bytes::Bytes;
use fjall::Slice;

use crate::embedded::be64;
use crate::embedded::values::{compress, decompress};
use crate::store::{KeyValue, LeaseId, Revision};
use crate::txn::Stamp;

/// The key of the head record in `state`.
pub(super) const HEAD_KEY: &[u8] = b"h";
/// First byte of the keys of rows in `state`.
const ROW: u8 = b'v';
/// First byte in `state` of the keys that hang on a lease.
pub(super) const LEASED: u8 = b'l';
/// Bytes of a key of `log`.
const EVENT_KEY_BYTES: usize = 10;
const HEAD_BYTES: usize = 24;

const FLAG_COMPRESSED: u8 = 1;
const FLAG_LEASE: u8 = 2;

const EVENT_PUT: u8 = 1;
const EVENT_REPLACES: u8 = 2;

/// A record that does not parse, or contradicts another one.
#[derive(Debug, thiserror::Error)]
pub(super) enum Damage {
    #[error("a row does not parse")]
    Row,
    #[error("a value does not decompress: {0}")]
    Compression(std::io::Error),
    #[error("a value has another length than its row says")]
    ValueLength,
    #[error("a key of the log does not parse")]
    EventKey,
    #[error("an event of the log does not parse")]
    Event,
    #[error("an event of revision {revision} contradicts the next event of its key")]
    Contradiction { revision: u64 },
    #[error("the log lacks revision {revision}")]
    MissingRevision { revision: u64 },
    #[error("the log ends at revision {log}, the state is of revision {state}")]
    LogEnd { log: u64, state: u64 },
    #[error("there is no head record")]
    NoHead,
    #[error("the head record does not parse")]
    Head,
}

/// The key of a row.
pub(super) fn row_key(key: &[u8]) -> Vec<u8> {
    prefixed(ROW, key)
}

/// The key in `state` that says that a key hangs on a lease.
pub(super) fn leased_key(key: &[u8]) -> Vec<u8> {
    prefixed(LEASED, key)
}

/// The first key of `state` behind the rows of `[.., end)`; an empty end is no bound.
pub(super) fn row_bound(end: &[u8]) -> Vec<u8> {
    if end.is_empty() {
        vec![ROW + 1]
    } else {
        row_key(end)
    }
}

fn prefixed(prefix: u8, key: &[u8]) -> Vec<u8> {
    let mut out = Vec::with_capacity(key.len() + 1);
    out.push(prefix);
    out.extend_from_slice(key);
    out
}

/// The key behind a prefix.
pub(super) fn unprefixed(key: &[u8]) -> Bytes {
    Bytes::copy_from_slice(key.get(1..).unwrap_or_default())
}

/// The key of an event.
pub(super) fn event_key(revision: u64, index: u16) -> [u8; EVENT_KEY_BYTES] {
    let mut out = [0; EVENT_KEY_BYTES];
    out[..8].copy_from_slice(&revision.to_be_bytes());
    out[8..].copy_from_slice(&index.to_be_bytes());
    out
}

/// The revision of an event's key.
pub(super) fn event_revision(key: &[u8]) -> Result<u64, Damage> {
    if key.len() != EVENT_KEY_BYTES {
        return Err(Damage::EventKey);
    }
    Ok(be64(key, 0))
}

/// The row of a key: `flags ‖ created (be64) ‖ modified (be64) ‖ [lease (be64)] ‖ [size (be32)] ‖ value`.
/// The size is there if the value is compressed, and is the one it had before.
#[derive(Debug, Clone)]
pub(super) struct Row {
    /// The revisions at which the key was created and modified.
    pub(super) stamp: Stamp,
    /// The lease it hangs on.
    pub(super) lease: Option<LeaseId>,
    raw_bytes: Option<u32>,
    value_at: usize,
    /// All of it, as it is stored.
    pub(super) bytes: Slice,
}

impl Row {
    /// A row to be stored.
    pub(super) fn new(
        stamp: Stamp,
        lease: Option<LeaseId>,
        raw: &[u8],
        zstd: &mut zstd::bulk::Compressor<'_>,
    ) -> Self {
        let compressed = compress(raw, zstd);
        let value = compressed.as_deref().unwrap_or(raw);
        let mut flags = 0;
        let mut out = Vec::with_capacity(29 + value.len());
        out.push(flags);
        out.extend_from_slice(&stamp.created.0.to_be_bytes());
        out.extend_from_slice(&stamp.modified.0.to_be_bytes());
        if let Some(lease) = lease {
            flags |= FLAG_LEASE;
            out.extend_from_slice(&lease.0.to_be_bytes());
        }
        let raw_bytes = compressed.as_ref().map(|_| {
            flags |= FLAG_COMPRESSED;
            u32::try_from(raw.len()).expect("the value limit is below 4 GiB")
        });
        if let Some(raw_bytes) = raw_bytes {
            out.extend_from_slice(&raw_bytes.to_be_bytes());
        }
        out[0] = flags;
        let value_at = out.len();
        out.extend_from_slice(value);
        Self {
            stamp,
            lease,
            raw_bytes,
            value_at,
            bytes: out.into(),
        }
    }

    /// Reads a row.
    pub(super) fn parse(bytes: Slice) -> Result<Self, Damage> {
        let flags = *bytes.first().ok_or(Damage::Row)?;
        let has_lease = flags & FLAG_LEASE != 0;
        let is_compressed = flags & FLAG_COMPRESSED != 0;
        let size_at = 17 + if has_lease { 8 } else { 0 };
        let value_at = size_at + if is_compressed { 4 } else { 0 };
        if flags > (FLAG_LEASE | FLAG_COMPRESSED) || bytes.len() < value_at {
            return Err(Damage::Row);
        }
        let lease = i64::from_be_bytes(be64(&bytes, size_at - 8).to_be_bytes());
        let size = bytes[size_at..value_at].first_chunk();
        Ok(Self {
            stamp: Stamp {
                created: Revision(be64(&bytes, 1)),
                modified: Revision(be64(&bytes, 9)),
            },
            lease: has_lease.then_some(LeaseId(lease)),
            raw_bytes: size.map(|size| u32::from_be_bytes(*size)),
            value_at,
            bytes,
        })
    }

    /// The value.
    pub(super) fn value(&self) -> Result<Bytes, Damage> {
        let value = &self.bytes[self.value_at..];
        let Some(raw_bytes) = self.raw_bytes else {
            // Copied, because the bytes would keep all of the block in memory that they lie in.
            return Ok(Bytes::copy_from_slice(value));
        };
        let raw_bytes = usize::try_from(raw_bytes).expect("a usize has 32 bits or more");
        let value = decompress(value, raw_bytes).map_err(Damage::Compression)?;
        if value.len() != raw_bytes {
            return Err(Damage::ValueLength);
        }
        Ok(value.into())
    }

    /// The answer to a read of it.
    pub(super) fn key_value(&self, key: Bytes, value: Bytes) -> KeyValue {
        KeyValue {
            key,
            value,
            created: self.stamp.created,
            modified: self.stamp.modified,
            lease: self.lease,
        }
    }
}

/// An event of a key: `flags ‖ length of the key (be16) ‖ key ‖ row that was replaced`.
#[derive(Debug, Clone)]
pub(super) struct Event {
    /// The key.
    pub(super) key: Bytes,
    /// True if the event is a put.
    pub(super) is_put: bool,
    /// The row that the event replaced; `None` if the key was absent.
    pub(super) replaced: Option<Row>,
}

/// Makes an event to be stored.
pub(super) fn event_bytes(key: &[u8], is_put: bool, replaced: Option<&Row>) -> Vec<u8> {
    let row = replaced.map_or(&[][..], |row| &row.bytes);
    let mut out = Vec::with_capacity(3 + key.len() + row.len());
    let put = if is_put { EVENT_PUT } else { 0 };
    let replaces = if replaced.is_some() {
        EVENT_REPLACES
    } else {
        0
    };
    out.push(put | replaces);
    let length = u16::try_from(key.len()).expect("the key limit is below 64 KiB");
    out.extend_from_slice(&length.to_be_bytes());
    out.extend_from_slice(key);
    out.extend_from_slice(row);
    out
}

/// Reads an event.
pub(super) fn parse_event(bytes: &[u8]) -> Result<Event, Damage> {
    let (head, rest) = bytes.split_at_checked(3).ok_or(Damage::Event)?;
    let length = usize::from(u16::from_be_bytes([head[1], head[2]]));
    let (key, row) = rest.split_at_checked(length).ok_or(Damage::Event)?;
    let replaced = match head[0] & EVENT_REPLACES {
        0 => None,
        _ => Some(Row::parse(row.into())?),
    };
    Ok(Event {
        key: Bytes::copy_from_slice(key),
        is_put: head[0] & EVENT_PUT != 0,
        replaced,
    })
}

/// The store's counters, written with every batch.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) struct Head {
    /// Newest revision.
    pub(super) revision: u64,
    /// Oldest revision that history and range can answer for.
    pub(super) floor: u64,
    /// Approximate bytes of the events above the floor.
    pub(super) log_bytes: u64,
}

impl Head {
    pub(super) fn to_bytes(self) -> [u8; HEAD_BYTES] {
        let mut out = [0; HEAD_BYTES];
        let fields = [self.revision, self.floor, self.log_bytes];
        for (slot, field) in out.chunks_exact_mut(8).zip(fields) {
            slot.copy_from_slice(&field.to_be_bytes());
        }
        out
    }

    pub(super) fn parse(bytes: &[u8]) -> Result<Self, Damage> {
        if bytes.len() != HEAD_BYTES {
            return Err(Damage::Head);
        }
        Ok(Self {
            revision: be64(bytes, 0),
            floor: be64(bytes, 8),
            log_bytes: be64(bytes, 16),
        })
    }
}
