//! The rules of a transaction that are the same for every embedded engine: its limits, and the
//! meaning of a compare.

use std::collections::HashSet;

use crate::error::Rejection;
use crate::store::{Compare, Limits, Op, Revision, TXN_OPS_MAX, Txn};

/// The limits of the embedded engines. They are those of etcd: 128 operations and 128 compares, and
/// 1.5 MiB per value, with room for keys and fence records beside the largest value.
pub(crate) const EMBEDDED_LIMITS: Limits = Limits {
    ops_max: TXN_OPS_MAX + 8,
    compares_max: TXN_OPS_MAX + 8,
    txn_bytes_max: 2 * 1024 * 1024,
    value_bytes_max: 1536 * 1024,
    key_bytes_max: 8 * 1024,
    transactions_max: 1,
    is_serial: true,
};

/// The revisions at which an existing key was created and last modified.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Stamp {
    pub(crate) created: Revision,
    pub(crate) modified: Revision,
}

/// Returns whether a compare holds for a key that is absent (`None`) or has this stamp.
pub(crate) fn holds(compare: &Compare, found: Option<Stamp>) -> bool {
    match (compare, found) {
        (Compare::Absent { .. }, found) => found.is_none(),
        (Compare::Present { .. }, found) => found.is_some(),
        (Compare::Unchanged { revision, .. }, Some(stamp)) => stamp.modified == *revision,
        (Compare::CreatedAt { revision, .. }, Some(stamp)) => stamp.created == *revision,
        (Compare::NotCreatedAt { revision, .. }, Some(stamp)) => stamp.created != *revision,
        (Compare::NotCreatedAt { .. }, None) => true,
        (Compare::Unchanged { .. } | Compare::CreatedAt { .. }, None) => false,
    }
}

/// Refuses a transaction that no state of the store could make acceptable.
pub(crate) fn check(txn: &Txn, limits: &Limits) -> Result<(), Rejection> {
    if txn.ops.len() > limits.ops_max {
        let text = format!("{} operations, at most {}", txn.ops.len(), limits.ops_max);
        return Err(Rejection::TooManyOps(text));
    }
    if txn.compares.len() > limits.compares_max {
        let text = format!(
            "{} compares, at most {}",
            txn.compares.len(),
            limits.compares_max
        );
        return Err(Rejection::TooManyOps(text));
    }
    let mut seen = HashSet::with_capacity(txn.ops.len());
    for op in &txn.ops {
        check_key(op.key())?;
        if !seen.insert(op.key()) {
            return Err(Rejection::Malformed(
                "two operations have the same key".to_owned(),
            ));
        }
        let Op::Put { key, value, .. } = op else {
            continue;
        };
        // Only those that are put: a store may have longer ones from an older program, to be deleted.
        check_length("a key", key.len(), limits.key_bytes_max)?;
        check_length("a value", value.len(), limits.value_bytes_max)?;
    }
    for compare in &txn.compares {
        check_key(compare.key())?;
    }
    check_length("a transaction", txn_bytes(txn), limits.txn_bytes_max)
}

fn check_length(what: &str, bytes: usize, most: usize) -> Result<(), Rejection> {
    if bytes <= most {
        return Ok(());
    }
    let text = format!("{what} has {bytes} bytes, the store takes at most {most}");
    Err(Rejection::TooLarge(text))
}

/// Returns the number of bytes that count for a transaction.
pub(crate) fn txn_bytes(txn: &Txn) -> usize {
    let ops = txn.ops.iter().map(|op| match op {
        Op::Put { key, value, .. } => key.len() + value.len(),
        Op::Delete { key } => key.len(),
    });
    ops.sum()
}

fn check_key(key: &[u8]) -> Result<(), Rejection> {
    if key.is_empty() {
        return Err(Rejection::Malformed("an empty key".to_owned()));
    }
    Ok(())
}
