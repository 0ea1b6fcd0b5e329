//! Values that all replicas of a store must have in common, such as the check value of a secret.
//!
//! The first replica that has a value writes it; every other one compares its own. This module must
//! not know what the values mean.

use bytes::Bytes;
use polyplane_storage::{
    CommitError, Compare, KeyValue, Op, RangeRequest, ReadError, Revision, Store, Txn,
};
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

/// A value on which the replicas have agreed.
#[derive(Debug, Clone)]
pub struct Agreed {
    /// The name behind the prefix that was searched.
    pub name: String,
    /// The value.
    pub value: Bytes,
    /// The revision of its put.
    revision: Revision,
}

/// Returns all agreed values whose names begin with a prefix, in the order of their names.
///
/// # Errors
/// Returns an error if the store does not answer.
pub async fn all(store: &Arc<dyn Store>, prefix: &str) -> Result<Vec<Agreed>, AgreementError> {
    let start = key(prefix);
    let mut request = Some(RangeRequest::prefix(start.clone()));
    let mut all = Vec::new();
    while let Some(page) = request {
        let reply = store.range(page.clone()).await?;
        request = page.next_page(&reply);
        let agreed = |item: KeyValue| Agreed {
            name: String::from_utf8_lossy(&item.key[start.len()..]).into_owned(),
            value: item.value,
            revision: item.modified,
        };
        all.extend(reply.items.into_iter().map(agreed));
    }
    Ok(all)
}

/// Replaces a value that [`all`] has returned for this prefix, unless it was put again since.
///
/// # Errors
/// Returns an error if the store does not answer. The value may then be replaced or not.
pub async fn replace(
    store: &Arc<dyn Store>,
    prefix: &str,
    agreed: &Agreed,
    value: Bytes,
) -> Result<(), AgreementError> {
    let put = |key| Op::Put {
        key,
        value,
        lease: None,
    };
    change(store, prefix, agreed, put).await
}

/// Removes a value that [`all`] has returned for this prefix, unless it was put again since.
///
/// # Errors
/// Returns an error if the store does not answer. The value may then be removed or not.
pub async fn remove(
    store: &Arc<dyn Store>,
    prefix: &str,
    agreed: &Agreed,
) -> Result<(), AgreementError> {
    change(store, prefix, agreed, |key| Op::Delete { key }).await
}

async fn change(
    store: &Arc<dyn Store>,
    prefix: &str,
    agreed: &Agreed,
    op: impl FnOnce(Bytes) -> Op,
) -> Result<(), AgreementError> {
    let key = key(&format!("{prefix}{}", agreed.name));
    let txn = Txn {
        compares: vec![Compare::Unchanged {
            key: key.clone(),
            revision: agreed.revision,
        }],
        ops: vec![op(key)],
    };
    match store.commit(txn).await {
        Ok(_) | Err(CommitError::Refused { .. }) => Ok(()),
        Err(error) => Err(AgreementError::Commit(error)),
    }
}

fn key(name: &str) -> Bytes {
    format!("{AGREED}{name}").into()
}
