//! A group in the making: the batch, the counters, the events and answers that wait for it.

use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::panic::{AssertUnwindSafe, catch_unwind};

use bytes::Bytes;

use super::engine::{Batch, Engine};
use super::record::{self, Head, Row};
use super::scan::ScanError;
use super::writer::Writer;
use crate::embedded::jobs::{Answers, Work};
use crate::embedded::panic_text;
use crate::error::{CommitError, Rejection};
use crate::store::{Committed, KeyValue, LeaseId, Op, Revision, StoreEvent, Txn};
use crate::txn::{Stamp, holds};

/// The stamps of keys that transactions have compared; `None` for an absent key. Nearly all compare the
/// same few: the fence of their plane, and the key of their member.
pub(super) type Compared = HashMap<Bytes, Option<Stamp>>;

/// Keys whose stamps are remembered. There may be a hundred thousand fences. With more of them in use, all
/// keys are forgotten each time: for so many reads of fences, the key of the member is read once.
const COMPARED_MAX: usize = 1024;
/// Bytes that an event takes beside its key and row.
const EVENT_BYTES: usize = 16;

/// See the module.
pub(super) struct Group {
    /// `None` once it is written: it would keep the database from being closed.
    batch: Option<Batch>,
    /// The counters once this is durable.
    pub(super) head: Head,
    before: Head,
    /// Approximate bytes of the batch.
    pub(super) bytes: usize,
    /// Approximate bytes of the events that the group logs.
    pub(super) log_bytes: u64,
    /// The events that it logs: revision, index in its transaction, and the record.
    logged: Vec<(u64, u16, Vec<u8>)>,
    /// Bytes of the rows that it replaces or deletes.
    pub(super) dead_bytes: u64,
    /// The rows that the group puts and removes, which the engine does not have yet. Only the last of a key's
    /// rows is written: all writes of a batch have one number, so two of one key have no order.
    rows: HashMap<Bytes, Touched>,
    /// Of the state before the group, without the keys that it touches once it is finished. Goes back to the
    /// writer when the group is durable, and is lost with a group that fails.
    pub(super) compared: Compared,
    /// The events for watchers, by revision.
    pub(super) events: Vec<(Revision, Vec<StoreEvent>)>,
    pub(super) attached: Vec<(Bytes, Option<LeaseId>)>,
    pub(super) ended: Vec<LeaseId>,
    pub(super) answers: Answers,
}

impl Group {
    pub(super) fn new(engine: &Engine, head: Head, compared: Compared) -> Self {
        Self {
            batch: Some(engine.batch()),
            head,
            before: head,
            bytes: 0,
            log_bytes: 0,
            logged: Vec::new(),
            dead_bytes: 0,
            rows: HashMap::new(),
            compared,
            events: Vec::new(),
            attached: Vec::new(),
            ended: Vec::new(),
            answers: Answers::default(),
        }
    }

    /// Returns whether there is nothing to write.
    pub(super) fn is_unchanged(&self) -> bool {
        self.head == self.before && self.ended.is_empty()
    }

    /// Gives up the history up to this group, and with it the events that it would log: they have the rows that
    /// it replaces once more.
    pub(super) fn forget_history(&mut self) {
        self.logged.clear();
        let log_bytes = usize::try_from(self.log_bytes).unwrap_or(usize::MAX);
        self.bytes = self.bytes.saturating_sub(log_bytes);
        self.log_bytes = 0;
        self.head.floor = self.head.revision;
    }

    /// Completes the batch and returns it.
    pub(super) fn finish(&mut self, engine: &Engine) -> Batch {
        let mut batch = self.batch.take().unwrap_or_else(|| engine.batch());
        for (key, touched) in self.rows.drain() {
            self.compared.remove(&key);
            let is_leased = touched.row.as_ref().is_some_and(|row| row.lease.is_some());
            if is_leased != touched.was_leased {
                batch.lease(&key, is_leased);
            }
            match touched.row {
                Some(row) => batch.put(&key, row),
                None => batch.remove(&key),
            }
        }
        for (revision, index, event) in self.logged.drain(..) {
            batch.log(revision, index, event);
        }
        batch.set_head(self.head);
        batch
    }
}

/// A key that a group puts or removes.
struct Touched {
    /// The row after the group; `None` if the key is removed.
    row: Option<Row>,
    /// True if the key was attached to a lease before the group.
    was_leased: bool,
}

/// The effect of one operation, prepared before the group is changed: a later operation of the transaction may
/// fail to read.
struct Prepared {
    key: Bytes,
    index: u16,
    row: Option<Row>,
    replaced: Option<Row>,
}

impl Writer {
    /// Tests a transaction against the group so far and adds it.
    pub(super) fn prepare(
        &mut self,
        engine: &Engine,
        group: &mut Group,
        work: &Work,
    ) -> Result<Committed, CommitError> {
        match work {
            Work::Txn(txn) => {
                test(engine, group, txn)?;
                self.shared.leases.lock().check(txn, &group.ended)?;
                self.add(engine, group, &txn.ops)?;
            }
            Work::EndLease(lease) => {
                let keys = self.shared.leases.lock().keys(*lease).unwrap_or_default();
                let ops: Vec<Op> = keys.into_iter().map(|key| Op::Delete { key }).collect();
                self.add(engine, group, &ops)?;
                group.ended.push(*lease);
            }
        }
        Ok(Committed {
            revision: Revision(group.head.revision),
        })
    }

    fn add(&mut self, engine: &Engine, group: &mut Group, ops: &[Op]) -> Result<(), CommitError> {
        let revision = Revision(group.head.revision + 1);
        let mut prepared = Vec::with_capacity(ops.len());
        let mut events = Vec::new();
        for (index, op) in ops.iter().enumerate() {
            let index = u16::try_from(index).map_err(|_| {
                let text = "more than 65535 keys hang on one lease".to_owned();
                CommitError::Rejected(Rejection::TooManyOps(text))
            })?;
            let replaced = newest(engine, group, op.key())?;
            if replaced.is_none() && matches!(op, Op::Delete { .. }) {
                continue;
            }
            let key = op.key().clone();
            let row = self.row(op, replaced.as_ref(), revision);
            if self.hub.wants(&key) {
                let previous = replaced.as_ref().map(Row::value).transpose();
                let value = match op {
                    Op::Put { value, .. } => Some(value.clone()),
                    Op::Delete { .. } => None,
                };
                events.push(StoreEvent {
                    revision,
                    key: key.clone(),
                    value,
                    previous: previous.map_err(|damage| corrupt(damage.to_string()))?,
                });
            }
            prepared.push(Prepared {
                key,
                index,
                row,
                replaced,
            });
        }
        if prepared.is_empty() {
            return Ok(());
        }
        group.head.revision = revision.0;
        group.events.push((revision, events));
        for prepared in prepared {
            group.take(prepared, revision);
        }
        Ok(())
    }

    /// Returns the row that an operation puts; `None` for a delete.
    fn row(&mut self, op: &Op, replaced: Option<&Row>, revision: Revision) -> Option<Row> {
        let Op::Put { value, lease, .. } = op else {
            return None;
        };
        let created = replaced.map_or(revision, |row| row.stamp.created);
        let modified = revision;
        let stamp = Stamp { created, modified };
        Some(Row::new(stamp, *lease, value, &mut self.zstd))
    }
}

impl Group {
    fn take(&mut self, prepared: Prepared, revision: Revision) {
        let Prepared {
            key,
            index,
            row,
            replaced,
        } = prepared;
        let event = record::event_bytes(&key, row.is_some(), replaced.as_ref());
        let dead_bytes = replaced.as_ref().map_or(0, |row| row.bytes.len());
        self.dead_bytes += u64::try_from(dead_bytes).unwrap_or_default();
        let log_bytes = event.len() + EVENT_BYTES;
        self.log_bytes += u64::try_from(log_bytes).unwrap_or_default();
        self.bytes += log_bytes + key.len() + row.as_ref().map_or(0, |row| row.bytes.len());
        self.logged.push((revision.0, index, event));
        let lease = row.as_ref().and_then(|row| row.lease);
        self.attached.push((key.clone(), lease));
        match self.rows.entry(key) {
            Entry::Occupied(mut touched) => touched.get_mut().row = row,
            Entry::Vacant(vacant) => {
                let was_leased = replaced.is_some_and(|row| row.lease.is_some());
                vacant.insert(Touched { row, was_leased });
            }
        }
    }
}

fn test(engine: &Engine, group: &mut Group, txn: &Txn) -> Result<(), CommitError> {
    let mut failed = Vec::new();
    for (index, compare) in txn.compares.iter().enumerate() {
        if !holds(compare, newest_stamp(engine, group, compare.key())?) {
            failed.push(index);
        }
    }
    if failed.is_empty() {
        return Ok(());
    }
    let found = txn.compares.iter().map(|compare| {
        let key = compare.key();
        let Some(row) = newest(engine, group, key)? else {
            return Ok(None);
        };
        let value = row.value().map_err(|damage| corrupt(damage.to_string()))?;
        Ok(Some(row.key_value(key.clone(), value)))
    });
    Err(CommitError::Refused {
        failed,
        at: Revision(group.head.revision),
        found: found.collect::<Result<Vec<Option<KeyValue>>, CommitError>>()?,
    })
}

/// Returns the stamp of a key after the group's operations so far; `None` if the key is absent.
fn newest_stamp(
    engine: &Engine,
    group: &mut Group,
    key: &Bytes,
) -> Result<Option<Stamp>, CommitError> {
    if let Some(touched) = group.rows.get(key) {
        return Ok(touched.row.as_ref().map(|row| row.stamp));
    }
    if let Some(stamp) = group.compared.get(key) {
        return Ok(*stamp);
    }
    let stamp = newest(engine, group, key)?.map(|row| row.stamp);
    if group.compared.len() >= COMPARED_MAX {
        group.compared.clear();
    }
    // Copied, because the bytes may be a part of larger ones.
    group.compared.insert(Bytes::copy_from_slice(key), stamp);
    Ok(stamp)
}

/// Returns the row of a key after the group's operations so far.
fn newest(engine: &Engine, group: &Group, key: &Bytes) -> Result<Option<Row>, CommitError> {
    if let Some(touched) = group.rows.get(key) {
        return Ok(touched.row.clone());
    }
    let read = catch_unwind(AssertUnwindSafe(|| engine.row(key)));
    let text = match read {
        Ok(Ok(row)) => return Ok(row),
        Ok(Err(ScanError::Damage(damage))) => damage.to_string(),
        Ok(Err(error)) => error.to_string(),
        Err(panic) => panic_text(&*panic),
    };
    Err(corrupt(text))
}

fn corrupt(text: String) -> CommitError {
    CommitError::Rejected(Rejection::Corrupt(text))
}
