//! A group that is being built: the batch, the counters, and the events and replies that wait for
//! it.

use std::collections::HashMap;

use bytes::Bytes;

use super::engine::Garbage;
use super::layout::{self, HEAD_KEY, Head, NewVersion};
use super::present::KeyHash;
use super::scan::{self, ScanError, Version};
use super::writer::Writer;
use crate::embedded::jobs::{Answers, Work};
use crate::embedded::panic_text;
use crate::error::{CommitError, Rejection};
use crate::store::{Committed, KeyValue, LeaseId, Op, Revision, StoreEvent, Txn};
use crate::txn::{Stamp, holds};

/// The newest version of a key that exists.
#[derive(Debug, Clone)]
pub(super) struct Live {
    stamp: Stamp,
    index: u16,
    chunks: u16,
    checksum: u64,
    bytes: u32,
}

impl Live {
    fn of(version: &Version) -> Self {
        Self {
            stamp: Stamp {
                created: Revision(version.header.created),
                modified: Revision(version.revision),
            },
            index: version.index,
            chunks: version.header.chunks,
            checksum: version.header.checksum,
            bytes: u32::try_from(version.bytes()).unwrap_or(u32::MAX),
        }
    }

    fn garbage(&self, stem: &[u8], at: u64) -> Garbage {
        Garbage {
            at,
            stem: stem.into(),
            revision: self.stamp.modified.0,
            index: self.index,
            chunks: self.chunks,
            checksum: self.checksum,
            bytes: self.bytes,
        }
    }
}

impl Garbage {
    /// Returns the bytes that the version counts in the history window.
    pub(super) fn bytes_held(&self) -> usize {
        usize::try_from(self.bytes).unwrap_or(usize::MAX) + self.stem.len()
    }
}

/// A group of transactions that are written in one batch.
pub(super) struct Group {
    batch: sled::Batch,
    /// The counters once the group is durable.
    pub(super) head: Head,
    before: Head,
    /// About the number of bytes of the batch.
    pub(super) bytes: usize,
    pub(super) operations: usize,
    /// The versions that the group supersedes.
    pub(super) garbage: Vec<Garbage>,
    /// The keys of the versions that the group adds; the next field has those of dropped versions.
    pub(super) added: Vec<KeyHash>,
    pub(super) dropped: Vec<KeyHash>,
    /// The events for watchers, by revision.
    pub(super) events: Vec<(Revision, Vec<StoreEvent>)>,
    /// The values that this group puts, which the tree does not have yet, with their leases.
    /// Watchers get them as previous values, and refusals contain them.
    values: HashMap<Bytes, (Bytes, Option<LeaseId>)>,
    pub(super) attached: Vec<(Bytes, Option<LeaseId>)>,
    pub(super) ended: Vec<LeaseId>,
    pub(super) answers: Answers,
}

impl Group {
    pub(super) fn new(head: Head) -> Self {
        Self {
            batch: sled::Batch::default(),
            head,
            before: head,
            bytes: 0,
            operations: 0,
            garbage: Vec::new(),
            added: Vec::new(),
            dropped: Vec::new(),
            events: Vec::new(),
            values: HashMap::new(),
            attached: Vec::new(),
            ended: Vec::new(),
            answers: Answers::default(),
        }
    }

    /// Returns whether there is nothing to write.
    pub(super) fn is_unchanged(&self) -> bool {
        self.head == self.before && self.ended.is_empty()
    }

    /// Removes and returns the batch, with the head record.
    pub(super) fn take_batch(&mut self) -> sled::Batch {
        self.batch.insert(HEAD_KEY, self.head.to_bytes().to_vec());
        std::mem::take(&mut self.batch)
    }

    /// Adds the removal of a superseded version.
    pub(super) fn drop_version(&mut self, old: &Garbage) {
        for chunk in 0..old.chunks {
            let key = layout::record_key(&old.stem, old.revision, old.index, chunk);
            self.batch.remove(key);
        }
        self.dropped.push(KeyHash::of(&old.stem));
        self.head.subtract(old.checksum);
        self.head.floor = self.head.floor.max(old.at);
    }
}

/// A value with the lease that its key is attached to.
type Held = (Bytes, Option<LeaseId>);

/// The part of a transaction in its group, prepared completely before the group is changed.
#[derive(Default)]
struct Prepared {
    records: Vec<(Vec<u8>, Vec<u8>)>,
    known: Vec<(Bytes, Option<Live>)>,
    garbage: Vec<Garbage>,
    checksums: Vec<u64>,
    added: Vec<KeyHash>,
    events: Vec<StoreEvent>,
    values: Vec<(Bytes, Option<Held>)>,
    attached: Vec<(Bytes, Option<LeaseId>)>,
}

impl Writer {
    /// Tests a transaction against the group so far and adds it to the group.
    pub(super) fn prepare(
        &mut self,
        db: &sled::Db,
        group: &mut Group,
        work: &Work,
    ) -> Result<Committed, CommitError> {
        match work {
            Work::Txn(txn) => {
                self.test(db, group, txn)?;
                self.shared.leases.lock().check(txn, &group.ended)?;
                self.add(db, group, &txn.ops)?;
            }
            Work::EndLease(lease) => {
                let keys = self.shared.leases.lock().keys(*lease).unwrap_or_default();
                let ops: Vec<Op> = keys.into_iter().map(|key| Op::Delete { key }).collect();
                self.add(db, group, &ops)?;
                group.ended.push(*lease);
            }
        }
        Ok(Committed {
            revision: Revision(group.head.revision),
        })
    }

    fn test(&mut self, db: &sled::Db, group: &Group, txn: &Txn) -> Result<(), CommitError> {
        let mut failed = Vec::new();
        for (index, compare) in txn.compares.iter().enumerate() {
            let found = self.newest(db, compare.key())?.map(|live| live.stamp);
            if !holds(compare, found) {
                failed.push(index);
            }
        }
        if failed.is_empty() {
            return Ok(());
        }
        let mut found = Vec::with_capacity(txn.compares.len());
        for compare in &txn.compares {
            found.push(self.find(db, group, compare.key())?);
        }
        Err(CommitError::Refused {
            failed,
            at: Revision(group.head.revision),
            found,
        })
    }

    /// Returns the value of a key, including the group's own puts.
    fn find(
        &mut self,
        db: &sled::Db,
        group: &Group,
        key: &Bytes,
    ) -> Result<Option<KeyValue>, CommitError> {
        let Some(Live { stamp, .. }) = self.newest(db, key)? else {
            return Ok(None);
        };
        if let Some((value, lease)) = group.values.get(key) {
            return Ok(Some(KeyValue {
                key: key.clone(),
                value: value.clone(),
                created: stamp.created,
                modified: stamp.modified,
                lease: *lease,
            }));
        }
        guarded(|| match scan::newest(db, key, stamp.modified.0)? {
            Some(version) => Ok(version.value()?.map(|value| version.key_value(value))),
            None => Ok(None),
        })
    }

    fn add(&mut self, db: &sled::Db, group: &mut Group, ops: &[Op]) -> Result<(), CommitError> {
        let revision = group.head.revision + 1;
        let mut prepared = Prepared::default();
        for (index, op) in ops.iter().enumerate() {
            let index = u16::try_from(index).map_err(|_| {
                let text = "more than 65535 keys hang on one lease".to_owned();
                CommitError::Rejected(Rejection::TooManyOps(text))
            })?;
            self.add_op(db, group, &mut prepared, (revision, index, op))?;
        }
        if prepared.records.is_empty() {
            return Ok(());
        }
        group.head.revision = revision;
        group.operations += prepared.checksums.len();
        for checksum in prepared.checksums {
            group.head.add(checksum);
        }
        for (key, value) in prepared.records {
            group.bytes += key.len() + value.len();
            group.batch.insert(key, value);
        }
        group.garbage.extend(prepared.garbage);
        group.added.extend(prepared.added);
        group.events.push((Revision(revision), prepared.events));
        for (key, value) in prepared.values {
            match value {
                Some(value) => group.values.insert(key, value),
                None => group.values.remove(&key),
            };
        }
        group.attached.extend(prepared.attached);
        self.known.extend(prepared.known);
        Ok(())
    }

    fn add_op(
        &mut self,
        db: &sled::Db,
        group: &Group,
        out: &mut Prepared,
        (revision, index, op): (u64, u16, &Op),
    ) -> Result<(), CommitError> {
        let old = self.newest(db, op.key())?;
        let (key, value, lease) = match op {
            Op::Put { key, value, lease } => (key, Some(value), *lease),
            Op::Delete { key } if old.is_some() => (key, None, None),
            Op::Delete { .. } => return Ok(()),
        };
        let created = old.as_ref().map_or(revision, |live| live.stamp.created.0);
        let stem = layout::stem(key);
        value.map_or(Ok(()), |_| check_stem(&stem))?;
        let version = NewVersion {
            stem: &stem,
            revision,
            index,
            created,
            lease: lease.map(|lease| lease.0),
            value: value.map(|value| &value[..]),
        };
        let encoded = layout::encode(&version, &mut self.zstd);
        let bytes: usize = encoded
            .records
            .iter()
            .map(|(key, value)| key.len() + value.len())
            .sum();
        let live = Live {
            stamp: Stamp {
                created: Revision(created),
                modified: Revision(revision),
            },
            index,
            chunks: encoded.header.chunks,
            checksum: encoded.header.checksum,
            bytes: u32::try_from(bytes).unwrap_or(u32::MAX),
        };
        if self.hub.wants(key) {
            let previous = match (&old, group.values.get(key)) {
                (None, _) => None,
                (Some(_), Some((value, _))) => Some(value.clone()),
                (Some(live), None) => read_value(db, key, live.stamp.modified.0)?,
            };
            out.events.push(StoreEvent {
                revision: Revision(revision),
                key: key.clone(),
                value: value.cloned(),
                previous,
            });
        }
        let put = value.map(|value| (value.clone(), lease));
        out.values.push((key.clone(), put));
        if let Some(old) = &old {
            out.garbage.push(old.garbage(&stem, revision));
        }
        if value.is_none() {
            out.garbage.push(live.garbage(&stem, revision));
        }
        out.checksums.push(encoded.header.checksum);
        out.added.push(KeyHash::of(&stem));
        out.records.extend(encoded.records);
        out.attached.push((key.clone(), lease));
        out.known.push((key.clone(), value.map(|_| live)));
        Ok(())
    }

    /// Returns the newest version of a key, the group's own included; `None` if it is absent.
    fn newest(&mut self, db: &sled::Db, key: &Bytes) -> Result<Option<Live>, CommitError> {
        if let Some(known) = self.known.get(key) {
            return Ok(known.clone());
        }
        if !self.present.may_have(KeyHash::of(&layout::stem(key))) {
            return Ok(None);
        }
        let found = guarded(|| scan::newest(db, key, u64::MAX))?;
        let live = found.filter(|version| !version.header.is_tombstone());
        let live = live.as_ref().map(Live::of);
        self.known.insert(key.clone(), live.clone());
        Ok(live)
    }
}

/// Refuses a key whose records would make a page too large. The length of the key was checked before, but
/// a 00 in it takes two bytes.
fn check_stem(stem: &[u8]) -> Result<(), CommitError> {
    if layout::has_room(stem) {
        return Ok(());
    }
    let text = "a key is too long for a page of the store".to_owned();
    Err(CommitError::Rejected(Rejection::TooLarge(text)))
}

fn read_value(db: &sled::Db, key: &[u8], at: u64) -> Result<Option<Bytes>, CommitError> {
    guarded(|| match scan::newest(db, key, at)? {
        Some(version) => Ok(version.value()?),
        None => Ok(None),
    })
}

/// Runs a read that the writer needs. If it fails, the transaction is not applied.
fn guarded<T>(read: impl FnOnce() -> Result<T, ScanError>) -> Result<T, CommitError> {
    let result = std::panic::catch_unwind(std::panic::AssertUnwindSafe(read));
    let text = match result {
        Ok(Ok(found)) => return Ok(found),
        Ok(Err(error)) => error.to_string(),
        Err(panic) => panic_text(&*panic),
    };
    Err(CommitError::Rejected(Rejection::Corrupt(text)))
}
