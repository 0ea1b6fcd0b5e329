//! Removing a deleted plane's whole range from the store.

use std::sync::Arc;

use polyplane_storage::{
    CommitError, Compare, Fields, KeyValue, Op, RangeRequest, ReadError, Revision, Store,
    TXN_OPS_MAX, Txn,
};

use crate::record::KeySpace;

/// Removes everything that a plane has in the store, in pieces, each of which tests `compares`. The
/// first piece has the data keys, without which the rest cannot be read. The plane must not be served
/// any more.
///
/// # Errors
/// Returns the store's error. A further call continues where this one stopped.
pub async fn delete_range(
    store: &Arc<dyn Store>,
    plane: &str,
    compares: Vec<Compare>,
) -> Result<Revision, DeleteError> {
    let (start, end) = KeySpace::new(plane).bounds();
    loop {
        let request = RangeRequest {
            fields: Fields::KeysOnly,
            limit: TXN_OPS_MAX,
            ..RangeRequest::between(start.clone(), end.clone())
        };
        let reply = store.range(request).await?;
        if reply.items.is_empty() {
            return Ok(reply.revision);
        }
        let delete = |item: KeyValue| Op::Delete { key: item.key };
        let txn = Txn {
            compares: compares.clone(),
            ops: reply.items.into_iter().map(delete).collect(),
        };
        store.commit(txn).await?;
    }
}

/// The reason why a plane's range could not be removed.
#[derive(Debug, thiserror::Error)]
pub enum DeleteError {
    /// The range could not be read.
    #[error("cannot read the control plane's range")]
    Read(#[from] ReadError),
    /// A piece could not be removed.
    #[error("cannot remove a piece of the control plane's range")]
    Commit(#[from] CommitError),
}
