//! Values that all replicas of a store must have in common, such as the check value of a secret.
//!
//! The first replica that has a value writes it; every other one compares its own. This module must
//! not know what the values mean.

use bytes::Bytes;
use polyplane_storage::{CommitError, Compare, Op, ReadError, Store, Txn};
use std::sync::Arc;

/// The beginning of the keys of agreed values.
const AGREED: &str = "agreed/";

/// The reason why it is not known whether a value is agreed.
#[derive(Debug, thiserror::Error)]
pub enum AgreementError {
    /// The store could not be read.
    #[error("the store's agreed values cannot be read")]
    Read(#[from] ReadError),
    /// The store did not take the value.
    #[error("the store's agreed values cannot be written")]
    Commit(#[source] CommitError),
}

/// Returns the value of this name on which the replicas have agreed, if they have.
///
/// # Errors
/// Returns an error if the store does not answer.
pub async fn agreed(store: &Arc<dyn Store>, name: &str) -> Result<Option<Bytes>, AgreementError> {
    let (_, found) = store.get(key(name).as_ref()).await?;
    Ok(found.map(|found| found.value))
}

/// Makes `value` the agreed one, unless there is one. Returns the agreed value.
///
/// # Errors
/// Returns an error if the store does not answer.
pub async fn agree(
    store: &Arc<dyn Store>,
    name: &str,
    value: Bytes,
) -> Result<Bytes, AgreementError> {
    if let Some(found) = agreed(store, name).await? {
        return Ok(found);
    }
    let put = Op::Put {
        key: key(name),
        value: value.clone(),
        lease: None,
    };
    let txn = Txn {
        compares: vec![Compare::Absent { key: key(name) }],
        ops: vec![put],
    };
    let written = store.commit(txn).await;
    // Another replica may have been first, or the outcome may be unknown: the store knows.
    match (agreed(store, name).await?, written) {
        (Some(found), _) => Ok(found),
        (None, Ok(_)) => Ok(value),
        (None, Err(error)) => Err(AgreementError::Commit(error)),
    }
}

fn key(name: &str) -> Bytes {
    format!("{AGREED}{name}").into()
}
