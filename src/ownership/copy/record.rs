//! The record that a copy keeps in its target: what it copies, how far it is and, once it is
//! complete, how the store numbers the history of its planes. Owns the record's key and form; must
//! not know how a copy is made.
//!
//! A store with this record has a level floor of at least [`COPY_LEVEL`], so that no program that
//! does not know it serves the store.

use crate::records::{Damaged, json};
use bytes::Bytes;
use polyplane_plane::{Copied, Numbering, Point, Version};
use polyplane_storage::{ReadError, Revision, Store};
use serde::{Deserialize, Serialize};
use std::sync::Arc;

/// The key of the record.
pub(crate) const COPY_KEY: &[u8] = b"copy";
/// The level from which on programs read copied values and this record.
pub(crate) const COPY_LEVEL: u32 = 3;

/// The source of a copy, so that a copy which continues notices another one. It has no name: the same
/// store may be reached under several.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct SourceId {
    /// The revision that created the root plane's record in the source.
    pub(crate) root_created: u64,
    /// The revision of the copy record in the source; zero if the source is no copy.
    pub(crate) copied_at: u64,
    /// The revision after which the history is copied.
    pub(crate) begins: u64,
    /// The newest revision that is copied.
    pub(crate) ends: u64,
}

/// What has been copied.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct CopyFigures {
    /// Control planes, the root plane not included.
    pub planes: u64,
    /// Objects and other records.
    pub objects: u64,
    /// Bytes of keys and values.
    pub bytes: u64,
    /// Revisions of the history.
    pub revisions: u64,
}

/// How far a copy is.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", rename_all_fields = "camelCase")]
pub(crate) enum CopyProgress {
    /// The records up to this key are there, as they were when the history begins.
    State {
        /// The last copied key; empty before the first.
        after: String,
    },
    /// All records are there, with the changes up to a revision of the source.
    History {
        /// The revision of the target at which it had all records without the changes. `None` in the
        /// record that is put at that revision.
        begins_at: Option<u64>,
        /// The revision of the source.
        through: u64,
    },
    /// Everything is there.
    Complete {
        /// As in `History`.
        begins_at: u64,
        /// The revision of the target's last change before this one.
        ends_at: u64,
    },
}

/// The record of a copy.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct CopyRecord {
    pub(crate) source: SourceId,
    /// The source as the user named it, for messages.
    pub(crate) from: String,
    /// The version of the root plane's birth.
    pub(crate) root_born: Version,
    /// The point at which the history begins.
    pub(crate) begins: u64,
    /// The newest point of the source.
    pub(crate) ends: u64,
    /// The planes and objects of the source. Parts of them come with the history only.
    pub(crate) content: CopyFigures,
    /// What `done` becomes, without bytes, which are not known before.
    pub(crate) total: CopyFigures,
    pub(crate) done: CopyFigures,
    pub(crate) progress: CopyProgress,
}

/// How a store that may be a copy numbers its history.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct StoreNumbering {
    pub(crate) planes: Numbering,
    /// The version of the root plane's birth; `None` if the store's own revision says it.
    pub(crate) root_born: Option<Version>,
}

/// Why a store with a copy record cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum CopyRecordError {
    /// The copy is not complete.
    #[error("the copy from {0} is not complete")]
    Unfinished(String),
    /// This program did not write the record.
    #[error(transparent)]
    Damaged(#[from] Damaged),
}

impl CopyRecord {
    pub(crate) fn encode(&self) -> Bytes {
        json(self)
    }

    pub(crate) fn decode(value: &[u8]) -> Result<Self, Damaged> {
        serde_json::from_slice(value).map_err(|_| Damaged("copy".to_owned()))
    }

    pub(crate) fn is_complete(&self) -> bool {
        matches!(self.progress, CopyProgress::Complete { .. })
    }

    /// Returns how the copy numbers its history.
    pub(crate) fn numbering(&self) -> Result<StoreNumbering, CopyRecordError> {
        let CopyProgress::Complete { begins_at, ends_at } = self.progress else {
            return Err(CopyRecordError::Unfinished(self.from.clone()));
        };
        let point = |number| Point::from_number(number).ok_or_else(|| Damaged("copy".to_owned()));
        Ok(StoreNumbering {
            planes: Numbering::new(Some(Copied {
                begins_at: Revision(begins_at),
                begins: point(self.begins)?,
                ends_at: Revision(ends_at),
                ends: point(self.ends)?,
            })),
            root_born: Some(self.root_born),
        })
    }
}

/// Returns whether a store is the target of a copy that is not complete. No replica serves such a store.
///
/// # Errors
/// Returns an error if the store does not answer.
pub async fn is_unfinished_copy(store: &Arc<dyn Store>) -> Result<bool, ReadError> {
    let numbering = read_numbering(store).await?;
    Ok(matches!(numbering, Err(CopyRecordError::Unfinished(_))))
}

/// Reads how a store numbers its history, and the revision of its copy record; zero if it has none.
pub(crate) async fn read_numbering(
    store: &Arc<dyn Store>,
) -> Result<Result<(StoreNumbering, Revision), CopyRecordError>, ReadError> {
    let (_, found) = store.get(COPY_KEY).await?;
    let Some(found) = found else {
        return Ok(Ok((StoreNumbering::default(), Revision(0))));
    };
    let record = CopyRecord::decode(&found.value);
    let numbering = record
        .map_err(CopyRecordError::from)
        .and_then(|record| record.numbering());
    Ok(numbering.map(|numbering| (numbering, found.modified)))
}
