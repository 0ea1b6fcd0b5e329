//! The conversion between this crate's transactions, ranges and keys and etcd's messages.
//!
//! Owns the key prefix: outside of this file no key carries it. Does no I/O.

use bytes::Bytes;
use etcd_client::proto::{PbEvent, PbKeyValue, PbTxnOpResponse};
use etcd_client::{
    Compare as EtcdCompare, CompareOp, GetOptions, PutOptions, ResponseHeader, Txn as EtcdTxn,
    TxnOp, TxnResponse,
};

use crate::error::CommitError;
use crate::store::{
    Committed, Compare, Fields, KeyValue, LeaseId, Op, RangeRequest, Revision, StoreEvent, Txn,
    prefix_end,
};
use crate::txn::{Stamp, holds};

/// The prefix that keeps this store's keys apart from others in the same etcd.
#[derive(Debug, Clone)]
pub(super) struct Keys {
    prefix: Bytes,
}

/// A range `[key, end)` in etcd's form.
#[derive(Debug, Clone)]
pub(super) struct EtcdRange {
    pub(super) key: Vec<u8>,
    pub(super) end: Vec<u8>,
}

impl Keys {
    pub(super) fn new(prefix: Bytes) -> Self {
        Self { prefix }
    }

    /// Returns the key in etcd's form.
    pub(super) fn outer(&self, key: &[u8]) -> Vec<u8> {
        let mut outer = Vec::with_capacity(self.prefix.len() + key.len());
        outer.extend_from_slice(&self.prefix);
        outer.extend_from_slice(key);
        outer
    }

    /// Returns the range in etcd's form; an empty `end` is the end of the store's prefix.
    pub(super) fn outer_range(&self, start: &[u8], end: &[u8]) -> EtcdRange {
        let mut key = self.outer(start);
        if key.is_empty() {
            // This is etcd's smallest key.
            key.push(0);
        }
        let mut end = match end {
            [] => prefix_end(&self.prefix).to_vec(),
            end => self.outer(end),
        };
        if end.is_empty() {
            // This is etcd's form of a range without a bound.
            end.push(0);
        }
        EtcdRange { key, end }
    }

    fn inner(&self, key: Vec<u8>) -> Bytes {
        let key = Bytes::from(key);
        debug_assert!(key.starts_with(&self.prefix), "only our keys are asked for");
        key.slice(self.prefix.len().min(key.len())..)
    }

    /// Returns a key and its value in the store's form, without copying bytes.
    pub(super) fn key_value(&self, found: PbKeyValue) -> KeyValue {
        KeyValue {
            key: self.inner(found.key),
            value: found.value.into(),
            created: revision(found.create_revision),
            modified: revision(found.mod_revision),
            lease: (found.lease != 0).then_some(LeaseId(found.lease)),
        }
    }

    /// Returns an event, or, if etcd no longer has the key's previous value, the event's revision:
    /// compaction has overtaken the watch.
    pub(super) fn event(&self, event: PbEvent) -> Result<StoreEvent, Revision> {
        let Some(kv) = event.kv else {
            return Err(Revision(0));
        };
        let at = revision(kv.mod_revision);
        // In etcd's enum of event types 1 is DELETE and 0 is PUT.
        let deleted = event.r#type == 1;
        let created = !deleted && kv.create_revision == kv.mod_revision;
        let previous = event.prev_kv.map(|previous| Bytes::from(previous.value));
        if !created && previous.is_none() {
            return Err(at);
        }
        Ok(StoreEvent {
            revision: at,
            key: self.inner(kv.key),
            value: (!deleted).then(|| kv.value.into()),
            previous: previous.filter(|_| !created),
        })
    }

    /// Returns the transaction in etcd's form. If it is refused, etcd reads the compared keys at
    /// the same revision.
    pub(super) fn txn(&self, txn: &Txn) -> EtcdTxn {
        let compares = txn.compares.iter().map(|compare| self.compare(compare));
        let reads = txn.compares.iter();
        let reads = reads.map(|compare| TxnOp::get(self.outer(compare.key()), None));
        let ops = txn.ops.iter().map(|op| self.op(op));
        EtcdTxn::new()
            .when(compares.collect::<Vec<_>>())
            .and_then(ops.collect::<Vec<_>>())
            .or_else(reads.collect::<Vec<_>>())
    }

    fn op(&self, op: &Op) -> TxnOp {
        match op {
            Op::Put { key, value, lease } => {
                let lease = lease.map(|lease| PutOptions::new().with_lease(lease.0));
                TxnOp::put(self.outer(key), &value[..], lease)
            }
            Op::Delete { key } => TxnOp::delete(self.outer(key), None),
        }
    }

    /// Returns a compare in etcd's form. In etcd an absent key has the revision 0, which is
    /// compared like any other.
    fn compare(&self, compare: &Compare) -> EtcdCompare {
        let key = self.outer(compare.key());
        // No key was created or modified at revision 0, so a compare with 0 must be false for every
        // key.
        let exact = |revision: Revision| match number(revision) {
            0 => (CompareOp::Less, 0),
            revision => (CompareOp::Equal, revision),
        };
        match compare {
            Compare::Absent { .. } => EtcdCompare::create_revision(key, CompareOp::Equal, 0),
            Compare::Present { .. } => EtcdCompare::create_revision(key, CompareOp::Greater, 0),
            Compare::Unchanged { revision, .. } => {
                let (op, revision) = exact(*revision);
                EtcdCompare::mod_revision(key, op, revision)
            }
            Compare::CreatedAt { revision, .. } => {
                let (op, revision) = exact(*revision);
                EtcdCompare::create_revision(key, op, revision)
            }
            Compare::NotCreatedAt { revision, .. } => match number(*revision) {
                0 => EtcdCompare::create_revision(key, CompareOp::Greater, -1),
                revision => EtcdCompare::create_revision(key, CompareOp::NotEqual, revision),
            },
        }
    }

    /// Returns the outcome of the transaction from etcd's reply.
    pub(super) fn answer(&self, txn: &Txn, reply: TxnResponse) -> Result<Committed, CommitError> {
        let at = head(reply.header());
        if reply.succeeded() {
            return Ok(Committed { revision: at });
        }
        let responses = reply.0.responses.into_iter();
        let found: Vec<Option<KeyValue>> = responses
            .map(|response| match response.response {
                Some(PbTxnOpResponse::ResponseRange(range)) => {
                    let first = range.kvs.into_iter().next();
                    first.map(|found| self.key_value(found))
                }
                _ => None,
            })
            .collect();
        let tested = txn.compares.iter().zip(&found).enumerate();
        let failed: Vec<usize> = tested
            .filter(|(_, (compare, found))| {
                let stamp = found.as_ref().map(|found| Stamp {
                    created: found.created,
                    modified: found.modified,
                });
                !holds(compare, stamp)
            })
            .map(|(index, _)| index)
            .collect();
        if failed.is_empty() || found.len() != txn.compares.len() {
            let text = "etcd refused it and does not show why".to_owned();
            return Err(CommitError::Unknown(text));
        }
        Err(CommitError::Refused { failed, at, found })
    }
}

/// Returns the options of one page.
pub(super) fn page_options(request: &RangeRequest, end: Vec<u8>, keys: usize) -> GetOptions {
    let limit = i64::try_from(keys).unwrap_or(i64::MAX);
    let mut options = GetOptions::new().with_range(end).with_limit(limit);
    if let Some(at) = request.at {
        options = options.with_revision(number(at));
    }
    if let Some(after) = request.modified_after {
        options = options.with_min_mod_revision(number(after).saturating_add(1));
    }
    match request.fields {
        Fields::All => options,
        Fields::KeysOnly => options.with_keys_only(),
    }
}

/// Returns etcd's revision in the store's type.
pub(super) fn revision(number: i64) -> Revision {
    Revision(u64::try_from(number).unwrap_or(0))
}

/// Returns the store's revision in etcd's type, which is large enough for every revision.
pub(super) fn number(revision: Revision) -> i64 {
    i64::try_from(revision.0).unwrap_or(i64::MAX)
}

/// Returns the newest revision at the time of a reply.
pub(super) fn head(header: Option<&ResponseHeader>) -> Revision {
    header.map_or(Revision(0), |header| revision(header.revision()))
}
