//! The step from a prepared write to the queue: operations that the store would refuse are refused,
//! and large bodies are packed. It takes no lock.

use std::collections::BTreeSet;
use std::sync::atomic::{AtomicU64, Ordering};

use crate::packed::{BODY_BYTES_MAX, pack};
use crate::plane::Plane;
use crate::record::value_len;
use crate::sealing::data_keys::OVERHEAD;
use crate::state::entry::Entry;
use crate::version::Stamp;
use crate::write::prepared_write::{Operation, SubmitError, Write};
use crate::write::sequencer::{QueuedChange, QueuedOperation};

impl Plane {
    /// Returns the operations in the form of the queue, with their size in bytes in the store.
    pub(crate) fn queued_operations(
        &self,
        operations: Vec<Operation>,
    ) -> Result<(Vec<QueuedOperation>, usize), SubmitError> {
        self.check_operations(&operations)?;
        let limits = self.committer().limits();
        let mut total = 0;
        let mut queued = Vec::with_capacity(operations.len());
        for operation in operations {
            let key_bytes = operation.key().as_bytes().len() + self.keys().overhead();
            total += key_bytes;
            let change = match operation {
                Operation::Put { key, object } => {
                    // A store may have longer keys from an older program, to be deleted.
                    check_size(key_bytes, limits.key_bytes_max)?;
                    check_size(object.body.len(), BODY_BYTES_MAX)?;
                    let packs = self.committer().packs();
                    let packed = packs.then(|| pack(&object.body)).flatten();
                    let nonce = self.data_keys().and_then(|keys| keys.nonce_for(&key));
                    let sealed_bytes = nonce.as_ref().map_or(0, |_| OVERHEAD);
                    let value_bytes = value_len(&object, packed.as_ref()) + sealed_bytes;
                    check_size(value_bytes, limits.value_bytes_max)?;
                    total += value_bytes;
                    let entry = Entry::in_flight(key, next_stamp(), object);
                    QueuedChange::Put {
                        entry,
                        packed,
                        nonce,
                    }
                }
                Operation::Delete { key } => QueuedChange::Delete(key),
            };
            queued.push(QueuedOperation::new(change));
        }
        check_size(total, limits.txn_bytes_max)?;
        Ok((queued, total))
    }

    fn check_operations(&self, operations: &[Operation]) -> Result<(), SubmitError> {
        if operations.is_empty() {
            return Err(SubmitError::Malformed("no operation"));
        }
        if operations.len() > Write::OPERATIONS_MAX {
            return Err(SubmitError::Malformed("more operations than a transaction"));
        }
        // Stays empty, and takes no memory, for the one operation of nearly all writes.
        let mut keys = BTreeSet::new();
        for operation in operations {
            if operations.len() > 1 && !keys.insert(operation.key()) {
                return Err(SubmitError::Malformed("two operations have the same key"));
            }
            let is_external = |external: &crate::Prefix| external.contains(operation.key());
            if self.external().is_some_and(is_external) {
                return Err(SubmitError::Malformed("only the ring writes this object"));
            }
        }
        Ok(())
    }
}

fn next_stamp() -> Stamp {
    static STAMPS: AtomicU64 = AtomicU64::new(1);
    Stamp::sequenced(STAMPS.fetch_add(1, Ordering::Relaxed))
}

fn check_size(bytes: usize, bytes_max: usize) -> Result<(), SubmitError> {
    if bytes > bytes_max {
        return Err(SubmitError::TooLarge { bytes, bytes_max });
    }
    Ok(())
}
