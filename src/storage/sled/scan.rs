//! Reading the tree by versions: pages, histories, the newest version of a key.
//!
//! Readers see only published versions: versions above the revision that they read at are skipped,
//! so a batch that is applied but not yet durable is never visible.

use bytes::Bytes;

use super::layout::{self, Damage, Header};
use crate::error::ReadError;
use crate::store::{
    Fields, History, KeyValue, LeaseId, RangeReply, RangeRequest, Revision, StoreEvent,
};

/// Number of keys in a page if the request leaves it to the engine.
const PAGE_KEYS_MAX: usize = 10_000;
/// Bytes beyond which a page ends.
const PAGE_BYTES_MAX: usize = 4 * 1024 * 1024;

/// The reason why a read of the tree stopped.
#[derive(Debug, thiserror::Error)]
pub(super) enum ScanError {
    #[error(transparent)]
    Damage(#[from] Damage),
    #[error("sled: {0}")]
    Engine(#[from] sled::Error),
}

impl From<ScanError> for ReadError {
    fn from(error: ScanError) -> Self {
        match error {
            ScanError::Damage(damage) => Self::Corrupt(damage.to_string()),
            ScanError::Engine(sled::Error::Corruption { at, .. }) => {
                Self::Corrupt(format!("sled cannot read its page at {at:?}"))
            }
            ScanError::Engine(error) => Self::Unavailable(error.to_string()),
        }
    }
}

/// One version as the tree has it.
pub(super) struct Version {
    pub(super) stem: Vec<u8>,
    pub(super) revision: u64,
    pub(super) index: u16,
    pub(super) header: Header,
    records: Vec<sled::IVec>,
}

impl Version {
    fn pieces(&self) -> Result<Vec<&[u8]>, Damage> {
        if self.records.len() != usize::from(self.header.chunks) {
            return Err(Damage::MissingRecords);
        }
        let mut pieces: Vec<&[u8]> = self.records.iter().map(|record| &record[..]).collect();
        pieces[0] = Header::parse(pieces[0])?.1;
        Ok(pieces)
    }

    /// Checks every byte of the version against its checksum.
    pub(super) fn verify(&self) -> Result<(), Damage> {
        let pieces = self.pieces()?;
        let named = (self.revision, self.index);
        let sum = layout::checksum(&self.stem, named, self.header, pieces.into_iter());
        if sum != self.header.checksum {
            return Err(Damage::Altered {
                key: self.key(),
                revision: self.revision,
            });
        }
        Ok(())
    }

    /// Returns the version's value after checking it; `None` for a tombstone.
    pub(super) fn value(&self) -> Result<Option<Bytes>, Damage> {
        self.verify()?;
        layout::decode(&self.header, &self.pieces()?)
    }

    /// Returns about how many bytes the version takes in the tree.
    pub(super) fn bytes(&self) -> usize {
        self.records
            .iter()
            .map(|record| record.len() + self.stem.len())
            .sum()
    }

    pub(super) fn key(&self) -> Bytes {
        layout::unescape(&self.stem)
    }

    pub(super) fn key_value(&self, value: Bytes) -> KeyValue {
        KeyValue {
            key: self.key(),
            value,
            created: Revision(self.header.created),
            modified: Revision(self.revision),
            lease: self.header.lease().map(LeaseId),
        }
    }
}

/// Calls `each` with all versions of a range, in record order, until it returns that the walk
/// should stop.
pub(super) fn versions(
    db: &sled::Db,
    start: Vec<u8>,
    end: Vec<u8>,
    mut each: impl FnMut(Version) -> Result<Walk, ScanError>,
) -> Result<(), ScanError> {
    if start >= end {
        return Ok(());
    }
    let mut open: Option<Version> = None;
    for record in db.range(start..end) {
        let (key, value) = record?;
        let name = layout::parse_record_key(&key)?;
        if let Some(version) = &mut open
            && version.stem == name.stem
            && version.revision == name.revision
            && usize::from(name.chunk) == version.records.len()
        {
            version.records.push(value);
            continue;
        }
        let (stem, revision, index) = (name.stem.to_vec(), name.revision, name.index);
        if name.chunk != 0 {
            return Err(Damage::NoFirstRecord.into());
        }
        let header = Header::parse(&value)?.0;
        let next = Version {
            stem,
            revision,
            index,
            header,
            records: vec![value],
        };
        if let Some(version) = open.replace(next)
            && each(version)? == Walk::Stop
        {
            return Ok(());
        }
    }
    if let Some(version) = open {
        each(version)?;
    }
    Ok(())
}

/// The choice whether to continue a walk.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Walk {
    On,
    Stop,
}

/// Returns the newest version of a key at a revision, tombstones included.
pub(super) fn newest(db: &sled::Db, key: &[u8], at: u64) -> Result<Option<Version>, ScanError> {
    let stem = layout::stem(key);
    let low = layout::record_key(&stem, 0, 0, 0);
    let high = layout::record_key(&stem, at, u16::MAX, u16::MAX);
    let Some(last) = db.range(low..=high).next_back() else {
        return Ok(None);
    };
    let (last_key, last_record) = last?;
    let name = layout::parse_record_key(&last_key)?;
    let (revision, index) = (name.revision, name.index);
    let mut records = Vec::with_capacity(usize::from(name.chunk) + 1);
    for chunk in 0..name.chunk {
        let found = db.get(layout::record_key(&stem, revision, index, chunk))?;
        records.push(found.ok_or(Damage::MissingRecords)?);
    }
    records.push(last_record);
    let header = Header::parse(&records[0])?.0;
    Ok(Some(Version {
        stem,
        revision,
        index,
        header,
        records,
    }))
}

/// Returns a page of a range at a revision.
pub(super) fn page(
    db: &sled::Db,
    request: &RangeRequest,
    at: u64,
) -> Result<RangeReply, ScanError> {
    let mut page = Page {
        request,
        limit: if request.limit == 0 {
            PAGE_KEYS_MAX
        } else {
            request.limit
        },
        bytes: 0,
        reply: RangeReply {
            revision: Revision(at),
            items: Vec::new(),
            more: false,
        },
    };
    let mut best: Option<Version> = None;
    let (start, end) = (
        layout::bound(&request.start),
        layout::end_bound(&request.end),
    );
    versions(db, start, end, |version| {
        if version.revision > at {
            return Ok(Walk::On);
        }
        let same_key = best.as_ref().is_some_and(|best| best.stem == version.stem);
        let finished = best.replace(version);
        match finished.filter(|_| !same_key) {
            Some(finished) => page.take(&finished),
            None => Ok(Walk::On),
        }
    })?;
    if let Some(last) = best.filter(|_| !page.reply.more) {
        page.take(&last)?;
    }
    Ok(page.reply)
}

struct Page<'a> {
    request: &'a RangeRequest,
    limit: usize,
    bytes: usize,
    reply: RangeReply,
}

impl Page<'_> {
    fn take(&mut self, version: &Version) -> Result<Walk, ScanError> {
        let unwanted = self
            .request
            .modified_after
            .is_some_and(|r| version.revision <= r.0);
        if version.header.is_tombstone() || unwanted {
            return Ok(Walk::On);
        }
        if self.reply.items.len() >= self.limit || self.bytes > PAGE_BYTES_MAX {
            self.reply.more = true;
            return Ok(Walk::Stop);
        }
        let value = match self.request.fields {
            Fields::All => version.value()?.unwrap_or_default(),
            Fields::KeysOnly => Bytes::new(),
        };
        self.bytes += version.stem.len() + value.len();
        self.reply.items.push(version.key_value(value));
        Ok(Walk::On)
    }
}

/// Returns the events of a range in `(after, through]`.
pub(super) fn history(
    db: &sled::Db,
    (start, end): (&[u8], &[u8]),
    after: u64,
    through: u64,
) -> Result<History, ScanError> {
    let mut found: Vec<(u16, StoreEvent)> = Vec::new();
    let mut before: Option<Version> = None;
    versions(
        db,
        layout::bound(start),
        layout::end_bound(end),
        |version| {
            if version.revision > through {
                return Ok(Walk::On);
            }
            if version.revision > after {
                let before = before.as_ref().filter(|before| before.stem == version.stem);
                let event = StoreEvent {
                    revision: Revision(version.revision),
                    key: version.key(),
                    value: version.value()?,
                    previous: before.map_or(Ok(None), Version::value)?,
                };
                found.push((version.index, event));
            }
            before = Some(version);
            Ok(Walk::On)
        },
    )?;
    found.sort_by_key(|(index, event)| (event.revision, *index));
    let events = found.into_iter().map(|(_, event)| event).collect();
    Ok(History {
        revision: Revision(through),
        events,
    })
}
