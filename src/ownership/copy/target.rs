//! The store that a copy writes. Owns that each transaction says how far the copy is, and that only one
//! copy writes the store: every transaction compares the record that the last one put.

use crate::copy::record::{COPY_KEY, CopyRecord};
use crate::copy::sizes::too_large;
use crate::copy::source::Source;
use crate::copy::{CopyError, patiently};
use crate::planes::{ROOT_KEY, SECRET_KEY};
use crate::records::{FLOOR_KEY, Floor, encode_floor};
use bytes::Bytes;
use polyplane_storage::{
    Backoff, CommitError, Compare, Fields, KeyValue, Limits, Op, RangeRequest, Rejection, Revision,
    Store, TXN_OPS_MAX, Txn,
};
use std::collections::HashSet;
use std::sync::Arc;

/// Attempts at a transaction whose outcome is unknown. More would hide a store that has failed.
const ATTEMPTS_MAX: usize = 8;
/// Bytes of one transaction of a copy. Larger ones would not make it faster, and each is in memory
/// several times.
const BATCH_BYTES_MAX: usize = 1 << 20;

/// The target of a copy.
pub(crate) struct Target {
    store: Arc<dyn Store>,
    limits: Limits,
    pub(crate) record: CopyRecord,
    /// The revision of the record's last put.
    at: Revision,
}

/// The operations of one transaction of a copy.
#[derive(Default)]
pub(crate) struct Batch {
    ops: Vec<Op>,
    keys: HashSet<Bytes>,
    bytes: usize,
}

impl Batch {
    /// Returns whether these operations may be added: there is room, and no key is there twice.
    pub(crate) fn has_room_for(&self, ops: &[Op]) -> bool {
        let bytes: usize = ops.iter().map(bytes_of).sum();
        self.ops.len() + ops.len() <= TXN_OPS_MAX
            && self.bytes + bytes <= BATCH_BYTES_MAX
            && !ops.iter().any(|op| self.keys.contains(op.key()))
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.ops.is_empty()
    }

    pub(crate) fn bytes(&self) -> usize {
        self.bytes
    }

    pub(crate) fn add(&mut self, ops: Vec<Op>) {
        self.bytes += ops.iter().map(bytes_of).sum::<usize>();
        self.keys.extend(ops.iter().map(|op| op.key().clone()));
        self.ops.extend(ops);
    }
}

impl Target {
    /// Returns the record of the copy that a store holds.
    pub(crate) async fn found(store: &Arc<dyn Store>) -> Result<Option<KeyValue>, CopyError> {
        Ok(patiently(|| store.get(COPY_KEY)).await?.1)
    }

    /// Returns the secret that a store holds, which tells stores apart.
    pub(crate) async fn secret(store: &Arc<dyn Store>) -> Result<Option<Bytes>, CopyError> {
        let found = patiently(|| store.get(SECRET_KEY.as_bytes())).await?.1;
        Ok(found.map(|found| found.value))
    }

    /// Checks that a store has no key.
    pub(crate) async fn check_empty(store: &Arc<dyn Store>) -> Result<(), CopyError> {
        match Self::other_key(store, &[]).await? {
            Some(key) => Err(CopyError::TargetUsed(key)),
            None => Ok(()),
        }
    }

    /// Returns a key of a store, not one of these.
    async fn other_key(store: &Arc<dyn Store>, own: &[&[u8]]) -> Result<Option<String>, CopyError> {
        let request = RangeRequest {
            fields: Fields::KeysOnly,
            limit: own.len() + 1,
            ..RangeRequest::default()
        };
        let reply = patiently(|| store.range(request.clone())).await?;
        let mut keys = reply.items.iter().map(|item| &*item.key);
        let other = keys.find(|key| !own.contains(key));
        Ok(other.map(|key| String::from_utf8_lossy(key).into_owned()))
    }

    /// Continues a copy whose record was found.
    pub(crate) fn resume(store: Arc<dyn Store>, record: CopyRecord, at: Revision) -> Self {
        let limits = store.limits();
        Self {
            store,
            limits,
            record,
            at,
        }
    }

    /// Begins a copy in an empty store. From the first transaction on, replicas refuse to join: those of
    /// older programs because of the floor, others because of the record.
    pub(crate) async fn begin(
        store: Arc<dyn Store>,
        record: CopyRecord,
        source: &Source,
        floor: &Floor,
    ) -> Result<Self, CopyError> {
        let key = Bytes::from_static;
        let (root, secret) = (key(ROOT_KEY.as_bytes()), key(SECRET_KEY.as_bytes()));
        let keys = [key(COPY_KEY), key(FLOOR_KEY), root, secret];
        let values = [
            record.encode(),
            encode_floor(floor),
            source.root.value.clone(),
            source.secret.value.clone(),
        ];
        let compares = keys.iter().map(|key| Compare::Absent { key: key.clone() });
        let compares = compares.collect();
        let ops = keys.iter().zip(values).map(|(key, value)| put(key, value));
        let ops = ops.collect();
        let limits = store.limits();
        let mut target = Self {
            store,
            limits,
            record,
            at: Revision(0),
        };
        target.send(Txn { compares, ops }).await?;
        // A replica may have written between the check and the transaction. None joins any more.
        let own: Vec<&[u8]> = keys.iter().map(|key| &**key).collect();
        match Self::other_key(&target.store, &own).await? {
            Some(key) => Err(CopyError::TargetUsed(key)),
            None => Ok(target),
        }
    }

    /// Returns the revision of the newest transaction.
    pub(crate) fn at(&self) -> Revision {
        self.at
    }

    /// Applies a batch and puts the record.
    pub(crate) async fn write(&mut self, batch: Batch) -> Result<(), CopyError> {
        let largest = self.limits.value_bytes_max;
        for op in &batch.ops {
            if let Op::Put { key, value, .. } = op
                && value.len() > largest
            {
                return Err(too_large(key, value.len(), largest));
            }
        }
        let key = Bytes::from_static(COPY_KEY);
        let mut ops = batch.ops;
        ops.push(put(&key, self.record.encode()));
        let compares = vec![Compare::Unchanged {
            key,
            revision: self.at,
        }];
        self.send(Txn { compares, ops }).await
    }

    /// Sends a transaction, again while its outcome is unknown. All attempts compare the same record, so
    /// at most one of them takes effect, however late.
    async fn send(&mut self, txn: Txn) -> Result<(), CopyError> {
        let mut backoff = Backoff::default();
        let mut left = ATTEMPTS_MAX;
        loop {
            left -= 1;
            match self.store.commit(txn.clone()).await {
                Ok(committed) => {
                    self.at = committed.revision;
                    return Ok(());
                }
                Err(CommitError::Refused { .. }) => {
                    let found = Self::found(&self.store).await?;
                    let own = found.filter(|found| found.value == self.record.encode());
                    self.at = own.ok_or(CopyError::TargetWritten)?.modified;
                    return Ok(());
                }
                Err(CommitError::Undisclosed(..) | CommitError::Unknown(_)) if left > 0 => {
                    backoff.wait().await;
                }
                Err(CommitError::Rejected(Rejection::ReadOnly(_))) if left > 0 => {
                    backoff.wait().await;
                }
                Err(error) => return Err(CopyError::Commit(error)),
            }
        }
    }
}

/// Returns the operation that puts a value without a lease.
pub(crate) fn put(key: &Bytes, value: Bytes) -> Op {
    Op::Put {
        key: key.clone(),
        value,
        lease: None,
    }
}

fn bytes_of(op: &Op) -> usize {
    match op {
        Op::Put { key, value, .. } => key.len() + value.len(),
        Op::Delete { key } => key.len(),
    }
}
