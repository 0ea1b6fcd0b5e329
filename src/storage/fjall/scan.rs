//! Reading: one cut of both keyspaces at a revision, and what it says of older revisions.

use std::collections::{BTreeMap, HashMap};

use bytes::Bytes;
use fjall::{Keyspace, Readable, Slice, Snapshot};

use super::record::{self, Damage, Event, Row};
use crate::error::ReadError;
use crate::store::{Fields, History, RangeReply, RangeRequest, Revision, StoreEvent};
use crate::watch::in_range;

/// Keys of a page if the request leaves it to the engine.
const PAGE_KEYS_MAX: usize = 10_000;
/// Bytes of a page beyond which it is closed.
const PAGE_BYTES_MAX: usize = 4 * 1024 * 1024;

/// Why a read failed.
#[derive(Debug, thiserror::Error)]
pub(super) enum ScanError {
    #[error(transparent)]
    Damage(#[from] Damage),
    #[error("fjall: {0}")]
    Engine(#[from] fjall::Error),
}

impl ScanError {
    /// Returns whether the system failed, which opening again may mend. Anything else that fjall says of a read
    /// is damage.
    fn is_io(&self) -> bool {
        matches!(
            self,
            Self::Engine(
                fjall::Error::Io(_)
                    | fjall::Error::Storage(fjall::LsmError::Io(_))
                    | fjall::Error::Poisoned
            )
        )
    }
}

impl From<ScanError> for ReadError {
    fn from(error: ScanError) -> Self {
        match error.is_io() {
            true => Self::Unavailable(error.to_string()),
            false => Self::Corrupt(error.to_string()),
        }
    }
}

/// Both keyspaces as of a revision.
#[derive(Clone)]
pub(super) struct View {
    pub(super) revision: u64,
    pub(super) snapshot: Snapshot,
    pub(super) state: Keyspace,
    pub(super) log: Keyspace,
}

impl View {
    /// Returns the row of a key.
    pub(super) fn row(&self, key: &[u8]) -> Result<Option<Row>, ScanError> {
        let found = self.snapshot.get(&self.state, record::row_key(key))?;
        Ok(found.map(Row::parse).transpose()?)
    }

    /// Calls `each` with all events after a revision, in commit order, and makes sure that none is
    /// missing.
    fn events(
        &self,
        after: u64,
        mut each: impl FnMut(u64, Event) -> Result<(), ScanError>,
    ) -> Result<(), ScanError> {
        let mut last = after;
        let first = record::event_key(after.saturating_add(1), 0);
        let end = record::event_key(self.revision, u16::MAX);
        if first > end {
            return Ok(());
        }
        for pair in self.snapshot.range(&self.log, first..=end) {
            let (key, value) = pair.into_inner()?;
            let revision = record::event_revision(&key)?;
            if revision > last + 1 {
                break;
            }
            last = revision;
            each(revision, record::parse_event(&value)?)?;
        }
        if last != self.revision {
            let revision = last + 1;
            return Err(Damage::MissingRevision { revision }.into());
        }
        Ok(())
    }

    /// Returns the rows that the keys of a range had at a revision, of those that changed since.
    fn undo(
        &self,
        (start, end): (&[u8], &[u8]),
        at: u64,
    ) -> Result<BTreeMap<Bytes, Option<Row>>, ScanError> {
        let mut undo = BTreeMap::new();
        self.events(at, |_, event| {
            if in_range(&event.key, start, end) {
                undo.entry(event.key).or_insert(event.replaced);
            }
            Ok(())
        })?;
        Ok(undo)
    }

    /// Returns a page of a range at a revision.
    pub(super) fn page(&self, request: &RangeRequest, at: u64) -> Result<RangeReply, ScanError> {
        let (start, end) = (&request.start[..], &request.end[..]);
        let mut page = Page::new(request, at);
        let (first, bound) = (record::row_key(start), record::row_bound(end));
        if first >= bound {
            return Ok(page.reply);
        }
        let undo = self.undo((start, end), at)?;
        let mut undo = undo.into_iter().peekable();
        for pair in self.snapshot.range(&self.state, first..bound) {
            let (key, value) = pair.into_inner()?;
            while let Some((gone, row)) = undo.next_if(|(undone, _)| undone[..] < key[1..]) {
                page.take(gone, row)?;
            }
            match undo.next_if(|(undone, _)| undone[..] == key[1..]) {
                Some((key, row)) => page.take(key, row)?,
                None => page.take_stored(&key, value)?,
            }
            if page.reply.more {
                return Ok(page.reply);
            }
        }
        for (gone, row) in undo {
            page.take(gone, row)?;
            if page.reply.more {
                break;
            }
        }
        Ok(page.reply)
    }

    /// Returns the events of a range in `(after, through]`, if they have no more than so many bytes.
    pub(super) fn history(
        &self,
        (start, end): (&[u8], &[u8]),
        after: u64,
        through: u64,
        bytes_max: usize,
    ) -> Result<History, ReadError> {
        let mut bytes = 0;
        let mut found: Vec<(u64, Event)> = Vec::new();
        self.events(after, |revision, event| {
            if in_range(&event.key, start, end) {
                found.push((revision, event));
            }
            Ok(())
        })?;
        // From the newest on, because an event's value is what the key's next event replaced.
        let mut next: HashMap<Bytes, Option<Row>> = HashMap::new();
        let mut events = Vec::with_capacity(found.len());
        for (revision, event) in found.into_iter().rev() {
            let value = match next.remove(&event.key) {
                Some(row) => row,
                None => self.row(&event.key)?,
            };
            if value.is_some() != event.is_put {
                return Err(ScanError::from(Damage::Contradiction { revision }).into());
            }
            if revision <= through {
                let value_of = |row: Option<&Row>| row.map(Row::value).transpose();
                let value = value_of(value.as_ref()).map_err(ScanError::from)?;
                let previous = value_of(event.replaced.as_ref()).map_err(ScanError::from)?;
                let event = StoreEvent {
                    revision: Revision(revision),
                    key: event.key.clone(),
                    value,
                    previous,
                };
                bytes += event.bytes();
                if bytes > bytes_max {
                    let floor = Revision(revision);
                    return Err(ReadError::Compacted { floor });
                }
                events.push(event);
            }
            next.insert(event.key, event.replaced);
        }
        events.reverse();
        Ok(History {
            revision: Revision(through),
            events,
        })
    }
}

struct Page<'a> {
    request: &'a RangeRequest,
    limit: usize,
    bytes: usize,
    reply: RangeReply,
}

impl<'a> Page<'a> {
    fn new(request: &'a RangeRequest, at: u64) -> Self {
        let limit = match request.limit {
            0 => PAGE_KEYS_MAX,
            limit => limit,
        };
        Self {
            request,
            limit,
            bytes: 0,
            reply: RangeReply {
                revision: Revision(at),
                items: Vec::new(),
                more: false,
            },
        }
    }

    fn take_stored(&mut self, key: &[u8], value: Slice) -> Result<(), ScanError> {
        let row = Row::parse(value)?;
        self.take(record::unprefixed(key), Some(row))
    }

    /// Adds a key's row; `None` if it was absent. If the page is full, sets `more` instead.
    fn take(&mut self, key: Bytes, row: Option<Row>) -> Result<(), ScanError> {
        let after = self.request.modified_after;
        let wanted = row.filter(|row| after.is_none_or(|after| row.stamp.modified > after));
        let Some(row) = wanted.filter(|_| !self.reply.more) else {
            return Ok(());
        };
        if self.reply.items.len() >= self.limit || self.bytes > PAGE_BYTES_MAX {
            self.reply.more = true;
            return Ok(());
        }
        let value = match self.request.fields {
            Fields::All => row.value()?,
            Fields::KeysOnly => Bytes::new(),
        };
        self.bytes += key.len() + value.len();
        self.reply.items.push(row.key_value(key, value));
        Ok(())
    }
}
