//! The form of versions in the tree: record keys, record headers, chunks, checksums, the head
//! record.
//!
//! A version of a key is one or more records under
//! `'r' ‖ escaped key ‖ 00 01 ‖ revision (be64) ‖ index (be16) ‖ chunk (be16)`, where every 00 of
//! the key is written 00 FF, so that record order is (key, revision, index, chunk) whatever bytes
//! the key has. The first record begins with a header; all records carry at most
//! [`CHUNK_BYTES`] of payload, and no key is longer than [`KEY_BYTES_MAX`], because sled moves large pages
//! into files it never syncs.
//!
//! A page of sled 0.34.7 stays in the log up to [`PAGE_BYTES_MAX`]. It is split at the next visit when it has
//! more than 16 records or, further up, more than 256 children with the keys that divide them. Before that
//! a merge may have added those of a neighbour with fewer than 4 records, or 64 children. A key of a page
//! may be a whole record key: the 255 bytes that sled leaves out of those with a common beginning do not
//! count, because the first and the last page have none. So with [`LEAF_RECORDS_MAX`] records the payload of
//! each shrinks as keys grow, and with 257 children no page is too large. Only a merge of full pages
//! of children with the longest keys would be: 320 of them.
//!
//! Every header has a checksum over key, revision, index, header and payload. The head record has
//! the number of all versions and the sum of their checksums, and is written in the same batch. So
//! a version that is missing, doubled or altered is detected, whatever sled's own recovery did.

use bytes::Bytes;
use twox_hash::XxHash3_64;

use crate::embedded::be64;
use crate::embedded::values::{compress, decompress};

/// Payload bytes of one record, at most; see the module.
pub(super) const CHUNK_BYTES: usize = 6 * 1024;
/// Payload bytes of a record with a key so long that only a delete may have it.
const CHUNK_BYTES_MIN: usize = 512;
/// Bytes of a key that may be put. An older program may have put longer ones, which can be read and deleted.
pub(super) const KEY_BYTES_MAX: usize = 480;
/// Bytes of a page that sled writes to its log: a quarter of a segment of 512 KiB, without the header of a
/// segment, that of a message and the page's own fields.
const PAGE_BYTES_MAX: usize = 128 * 1024 - 20 - 32 - 64;
/// Records of a page without children, at most.
const LEAF_RECORDS_MAX: usize = 20;
/// Bytes of a record in a page beside its key and payload: the header and two lengths.
const RECORD_FRAME_BYTES: usize = HEADER_BYTES + 6;
/// The key of the head record.
pub(super) const HEAD_KEY: &[u8] = b"m/head";
/// The first byte of every record key.
const RECORD: u8 = b'r';
/// Bytes of revision, index and chunk behind the stem in a record key.
const SUFFIX_BYTES: usize = 12;
const HEADER_BYTES: usize = 31;
const HEAD_BYTES: usize = 40;

const FLAG_TOMBSTONE: u8 = 1;
const FLAG_COMPRESSED: u8 = 2;
const FLAG_LEASE: u8 = 4;

/// The error that a record cannot be parsed, or that checksums do not match.
#[derive(Debug, thiserror::Error)]
pub(super) enum Damage {
    #[error("a record key does not parse")]
    RecordKey,
    #[error("a record is shorter than its header")]
    ShortRecord,
    #[error("a value does not decompress: {0}")]
    Compression(std::io::Error),
    #[error("a value has another length than its header says")]
    ValueLength,
    #[error("there are records but no head record")]
    NoHead,
    #[error("the head record is altered")]
    Head,
    #[error("a version is newer than the head")]
    BeyondHead,
    /// The counters in the head record differ from those of the versions that were found.
    #[error("{found} versions were found and {written} written, or one is not what was written")]
    Census { found: u64, written: u64 },
    #[error("a version lacks its first record")]
    NoFirstRecord,
    #[error("a version lacks records")]
    MissingRecords,
    /// The checksum of a version differs from the one in its header.
    #[error("{:?} at revision {revision} is altered", String::from_utf8_lossy(key))]
    Altered { key: Bytes, revision: u64 },
}

/// The key and the version that a record belongs to; sorts like the records.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct RecordName<'a> {
    /// The record key up to and including the terminator.
    pub(super) stem: &'a [u8],
    pub(super) revision: u64,
    pub(super) index: u16,
    pub(super) chunk: u16,
}

/// Returns the stem of a key: the part of its record keys that is the same for all versions.
pub(super) fn stem(key: &[u8]) -> Vec<u8> {
    let mut stem = bound(key);
    stem.extend_from_slice(&[0, 1]);
    stem
}

/// Returns the lowest record key of all keys from `key` on.
pub(super) fn bound(key: &[u8]) -> Vec<u8> {
    let mut out = Vec::with_capacity(key.len() + 3 + SUFFIX_BYTES);
    out.push(RECORD);
    for byte in key {
        out.push(*byte);
        if *byte == 0 {
            out.push(0xFF);
        }
    }
    out
}

/// Returns the first tree key behind the records of `[.., end)`; an empty end means no bound.
pub(super) fn end_bound(end: &[u8]) -> Vec<u8> {
    if end.is_empty() {
        vec![RECORD + 1]
    } else {
        bound(end)
    }
}

/// Returns whether records of a stem fit into the pages of the log.
pub(super) fn has_room(stem: &[u8]) -> bool {
    // The first byte and the terminator.
    stem.len() <= KEY_BYTES_MAX + 3
}

/// Returns the payload bytes of a record with this stem. A page has two more keys: those at which it begins
/// and ends.
fn chunk_bytes(stem: &[u8]) -> usize {
    let key_bytes = stem.len() + SUFFIX_BYTES;
    let records_bytes = PAGE_BYTES_MAX.saturating_sub(2 * key_bytes);
    let room = (records_bytes / LEAF_RECORDS_MAX).saturating_sub(key_bytes + RECORD_FRAME_BYTES);
    room.clamp(CHUNK_BYTES_MIN, CHUNK_BYTES)
}

/// Returns the record key of one chunk.
pub(super) fn record_key(stem: &[u8], revision: u64, index: u16, chunk: u16) -> Vec<u8> {
    let mut out = Vec::with_capacity(stem.len() + SUFFIX_BYTES);
    out.extend_from_slice(stem);
    out.extend_from_slice(&revision.to_be_bytes());
    out.extend_from_slice(&index.to_be_bytes());
    out.extend_from_slice(&chunk.to_be_bytes());
    out
}

/// Parses a record key.
pub(super) fn parse_record_key(key: &[u8]) -> Result<RecordName<'_>, Damage> {
    let split = key
        .len()
        .checked_sub(SUFFIX_BYTES)
        .ok_or(Damage::RecordKey)?;
    let (stem, suffix) = key.split_at(split);
    if stem.len() < 3 || stem[0] != RECORD || stem[split - 2..] != [0, 1] {
        return Err(Damage::RecordKey);
    }
    Ok(RecordName {
        stem,
        revision: be64(suffix, 0),
        index: u16::from_be_bytes([suffix[8], suffix[9]]),
        chunk: u16::from_be_bytes([suffix[10], suffix[11]]),
    })
}

/// Returns the key from which a stem was made.
pub(super) fn unescape(stem: &[u8]) -> Bytes {
    let body = &stem[1..stem.len().saturating_sub(2).max(1)];
    let mut key = Vec::with_capacity(body.len());
    let mut bytes = body.iter();
    while let Some(byte) = bytes.next() {
        key.push(*byte);
        if *byte == 0 {
            bytes.next();
        }
    }
    key.into()
}

/// The facts about a version that its first record has.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Header {
    flags: u8,
    pub(super) chunks: u16,
    pub(super) created: u64,
    lease: i64,
    raw_bytes: u32,
    pub(super) checksum: u64,
}

impl Header {
    pub(super) fn is_tombstone(&self) -> bool {
        self.flags & FLAG_TOMBSTONE != 0
    }

    pub(super) fn lease(&self) -> Option<i64> {
        (self.flags & FLAG_LEASE != 0).then_some(self.lease)
    }

    /// Parses a header. Returns it with the bytes behind it.
    pub(super) fn parse(record: &[u8]) -> Result<(Self, &[u8]), Damage> {
        if record.len() < HEADER_BYTES {
            return Err(Damage::ShortRecord);
        }
        let (head, payload) = record.split_at(HEADER_BYTES);
        let header = Self {
            flags: head[0],
            chunks: u16::from_be_bytes([head[1], head[2]]),
            created: be64(head, 3),
            lease: i64::from_be_bytes(be64(head, 11).to_be_bytes()),
            raw_bytes: u32::from_be_bytes([head[19], head[20], head[21], head[22]]),
            checksum: be64(head, 23),
        };
        Ok((header, payload))
    }

    fn to_bytes(self) -> [u8; HEADER_BYTES] {
        let mut out = [0; HEADER_BYTES];
        out[0] = self.flags;
        out[1..3].copy_from_slice(&self.chunks.to_be_bytes());
        out[3..11].copy_from_slice(&self.created.to_be_bytes());
        out[11..19].copy_from_slice(&self.lease.to_be_bytes());
        out[19..23].copy_from_slice(&self.raw_bytes.to_be_bytes());
        out[23..31].copy_from_slice(&self.checksum.to_be_bytes());
        out
    }
}

/// A version to be written.
pub(super) struct NewVersion<'a> {
    pub(super) stem: &'a [u8],
    pub(super) revision: u64,
    pub(super) index: u16,
    pub(super) created: u64,
    pub(super) lease: Option<i64>,
    /// The value; `None` for a tombstone.
    pub(super) value: Option<&'a [u8]>,
}

/// The records and the header of a version.
pub(super) struct Encoded {
    pub(super) header: Header,
    pub(super) records: Vec<(Vec<u8>, Vec<u8>)>,
}

/// Creates the records of a version.
pub(super) fn encode(version: &NewVersion<'_>, zstd: &mut zstd::bulk::Compressor<'_>) -> Encoded {
    let raw = version.value.unwrap_or_default();
    let mut flags = 0;
    let compressed = compress(raw, zstd);
    if compressed.is_some() {
        flags |= FLAG_COMPRESSED;
    }
    let payload = compressed.as_deref().unwrap_or(raw);
    if version.value.is_none() {
        flags |= FLAG_TOMBSTONE;
    }
    if version.lease.is_some() {
        flags |= FLAG_LEASE;
    }
    let chunk_bytes = chunk_bytes(version.stem);
    let chunks = payload.len().div_ceil(chunk_bytes).max(1);
    let mut header = Header {
        flags,
        chunks: u16::try_from(chunks).expect("the value limit keeps chunks below 65536"),
        created: version.created,
        lease: version.lease.unwrap_or_default(),
        raw_bytes: u32::try_from(raw.len()).expect("the value limit is below 4 GiB"),
        checksum: 0,
    };
    let pieces = payload.chunks(chunk_bytes);
    let named = (version.revision, version.index);
    header.checksum = checksum(version.stem, named, header, pieces.clone());
    let mut records = Vec::with_capacity(chunks);
    let mut pieces = pieces;
    for chunk in 0..header.chunks {
        let piece = pieces.next().unwrap_or_default();
        let key = record_key(version.stem, version.revision, version.index, chunk);
        let mut value = Vec::with_capacity(piece.len() + HEADER_BYTES);
        if chunk == 0 {
            value.extend_from_slice(&header.to_bytes());
        }
        value.extend_from_slice(piece);
        records.push((key, value));
    }
    Encoded { header, records }
}

/// Returns the checksum of a version that was read; it equals the one in the header if nothing was
/// altered.
pub(super) fn checksum<'a>(
    stem: &[u8],
    (revision, index): (u64, u16),
    mut header: Header,
    pieces: impl Iterator<Item = &'a [u8]>,
) -> u64 {
    header.checksum = 0;
    let mut name = Vec::with_capacity(stem.len() + 10 + HEADER_BYTES);
    name.extend_from_slice(stem);
    name.extend_from_slice(&revision.to_be_bytes());
    name.extend_from_slice(&index.to_be_bytes());
    name.extend_from_slice(&header.to_bytes());
    let pieces = pieces.filter(|piece| !piece.is_empty());
    pieces.fold(XxHash3_64::oneshot(&name), |seed, piece| {
        XxHash3_64::oneshot_with_seed(seed, piece)
    })
}

/// Returns the value of a version from its payload pieces; `None` for a tombstone.
pub(super) fn decode(header: &Header, pieces: &[&[u8]]) -> Result<Option<Bytes>, Damage> {
    if header.is_tombstone() {
        return Ok(None);
    }
    let mut payload = Vec::with_capacity(pieces.iter().map(|piece| piece.len()).sum());
    for piece in pieces {
        payload.extend_from_slice(piece);
    }
    let raw_bytes = usize::try_from(header.raw_bytes).expect("a usize has 32 bits or more");
    if header.flags & FLAG_COMPRESSED != 0 {
        payload = decompress(&payload, raw_bytes).map_err(Damage::Compression)?;
    }
    if payload.len() != raw_bytes {
        return Err(Damage::ValueLength);
    }
    Ok(Some(payload.into()))
}

/// The store's counters, written in every batch.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) struct Head {
    /// The newest revision.
    pub(super) revision: u64,
    /// The oldest revision that `history` and `range` can read.
    pub(super) floor: u64,
    /// The number of versions, tombstones included.
    pub(super) versions: u64,
    /// The wrapping sum of the versions' checksums.
    pub(super) sum: u64,
}

impl Head {
    /// Counts a version that was written.
    pub(super) fn add(&mut self, checksum: u64) {
        self.versions += 1;
        self.sum = self.sum.wrapping_add(checksum);
    }

    /// Counts a version that was dropped.
    pub(super) fn subtract(&mut self, checksum: u64) {
        self.versions = self.versions.saturating_sub(1);
        self.sum = self.sum.wrapping_sub(checksum);
    }

    pub(super) fn to_bytes(self) -> [u8; HEAD_BYTES] {
        let mut out = [0; HEAD_BYTES];
        let fields = [self.revision, self.floor, self.versions, self.sum];
        for (slot, field) in out.chunks_exact_mut(8).zip(fields) {
            slot.copy_from_slice(&field.to_be_bytes());
        }
        let own = XxHash3_64::oneshot(&out[..32]);
        out[32..].copy_from_slice(&own.to_be_bytes());
        out
    }

    pub(super) fn parse(bytes: &[u8]) -> Result<Self, Damage> {
        if bytes.len() != HEAD_BYTES || XxHash3_64::oneshot(&bytes[..32]) != be64(bytes, 32) {
            return Err(Damage::Head);
        }
        Ok(Self {
            revision: be64(bytes, 0),
            floor: be64(bytes, 8),
            versions: be64(bytes, 16),
            sum: be64(bytes, 24),
        })
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn a_page_with_the_longest_keys_stays_in_the_log() {
        for bytes in [1, 100, 336, KEY_BYTES_MAX] {
            let stem = stem(&vec![b'k'; bytes]);
            assert!(has_room(&stem));
            let key_bytes = stem.len() + SUFFIX_BYTES;
            let record_bytes = key_bytes + RECORD_FRAME_BYTES + chunk_bytes(&stem);
            assert!(LEAF_RECORDS_MAX * record_bytes + 2 * key_bytes <= PAGE_BYTES_MAX);
            // The key, its length and the number of a page.
            assert!(257 * (key_bytes + 2 + 5) + 2 * key_bytes <= PAGE_BYTES_MAX);
        }
        assert!(!has_room(&stem(&[b'k'; KEY_BYTES_MAX + 1])));
        assert_eq!(chunk_bytes(&stem(&[b'k'; 100])), CHUNK_BYTES);
    }

    proptest! {
        #[test]
        fn record_order_is_key_order(a: Vec<u8>, b: Vec<u8>) {
            prop_assert_eq!(stem(&a).cmp(&stem(&b)), a.cmp(&b));
            prop_assert_eq!(unescape(&stem(&a)), a.clone());
            prop_assert_eq!(bound(&a) <= stem(&b), a <= b);
        }

        #[test]
        fn versions_come_back(key: Vec<u8>, value in proptest::collection::vec(0u8..4, 0..40_000)) {
            let mut zstd = zstd::bulk::Compressor::new(1).expect("zstd starts");
            let stem = stem(&key);
            let version = NewVersion {
                stem: &stem, revision: 7, index: 3, created: 5, lease: Some(-9), value: Some(&value),
            };
            let encoded = encode(&version, &mut zstd);
            let (header, first) = Header::parse(&encoded.records[0].1).expect("a header");
            prop_assert_eq!(header, encoded.header);
            let mut pieces = vec![first];
            pieces.extend(encoded.records[1..].iter().map(|(_, value)| &value[..]));
            let sum = checksum(&stem, (7, 3), header, pieces.iter().copied());
            prop_assert_eq!(sum, header.checksum);
            prop_assert_eq!(decode(&header, &pieces).expect("whole"), Some(value.into()));
            prop_assert!(encoded.records.iter().all(|(_, v)| v.len() <= CHUNK_BYTES + HEADER_BYTES));
        }
    }
}
