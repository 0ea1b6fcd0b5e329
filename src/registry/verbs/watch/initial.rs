//! The objects that existed when a watch began, shown as added before any event.

use super::{BATCH_BYTES, Feed, InitialEnd};
use crate::answer::representation::{Columns, Shown};
use crate::answer::watch_frame::{Kind, frame};
use crate::answer::{WatchChunk, WatchProgress};
use crate::kinds::conversion;
use crate::request::call::Call;
use crate::select;
use crate::verbs::list::streamed::{Lent, Pin};
use bytes::Bytes;
use polyplane_apimachinery::status::ApiError;
use polyplane_plane::{ObjectRef, Prefix, Snapshot, Start, Version};
use std::sync::Arc;
use std::time::Duration;

/// The longest time that a client may take to read the initial objects. The cut they come from
/// keeps replaced objects from being freed.
const INITIAL_TIME_MAX: Duration = Duration::from_secs(60);
const READ_TOO_SLOWLY: &str = "the initial events were not read in time";
const MEMORY_SHORT: &str = "the server has no memory for the rest of the initial events";

/// The initial objects, which are shown as added before any event, piece by piece as the client
/// reads.
pub(super) struct Initial {
    cut: Snapshot,
    pinned: Pin,
    prefix: Prefix,
    /// The key up to which everything was shown.
    behind: Vec<u8>,
    /// True if a bookmark marks the end of the initial events.
    marked: bool,
}

/// The range of initial objects for the next piece.
struct Range<'a> {
    prefix: &'a Prefix,
    start: Start<'a>,
    /// The last key that was converted; objects behind it have to be converted first.
    until: Option<&'a [u8]>,
}

impl Feed {
    /// Queues the first of the present objects as added; the others follow as the client reads.
    pub(super) async fn present(
        &mut self,
        call: &Call<'_>,
        cut: Snapshot,
        marked: bool,
    ) -> Result<(), ApiError> {
        let prefix = select::prefix(call);
        if let Some(key) = self.selection.single(call) {
            let object = cut.get(&key);
            let object = object.filter(|object| self.selection.matches(call.row, object));
            if let Some(object) = object {
                conversion::ahead(call, std::iter::once(&object)).await?;
                let frame = self.added(call, &object)?;
                self.show(frame);
            }
            self.end_initial(cut.version(), marked);
            return Ok(());
        }
        let upcoming =
            conversion::upcoming(call.row, cut.range(&prefix, Start::First), BATCH_BYTES);
        let until = match upcoming {
            None => None,
            Some(upcoming) => upcoming.convert(call).await?,
        };
        let range = Range {
            prefix: &prefix,
            start: Start::First,
            until: until.as_deref(),
        };
        let behind = self.present_piece(call, &cut, range)?;
        match behind {
            Some(behind) => {
                let initial = Initial {
                    pinned: Pin::new(call)?,
                    cut,
                    prefix,
                    behind,
                    marked,
                };
                self.initial = Some(Lent::new(initial, INITIAL_TIME_MAX));
            }
            None => self.end_initial(cut.version(), marked),
        }
        Ok(())
    }

    /// Queues a piece of the initial objects. Returns the last key if there may be more.
    fn present_piece(
        &mut self,
        call: &Call<'_>,
        cut: &Snapshot,
        range: Range<'_>,
    ) -> Result<Option<Vec<u8>>, ApiError> {
        let mut batch = Vec::new();
        let mut behind = None;
        for object in cut.range(range.prefix, range.start) {
            if self.selection.matches(call.row, &object) {
                batch.extend_from_slice(&self.added(call, &object)?);
            }
            if batch.len() >= BATCH_BYTES || range.until == Some(object.key().as_bytes()) {
                behind = Some(object.key().as_bytes().to_vec());
                break;
            }
        }
        if !batch.is_empty() {
            self.show(batch.into());
        }
        Ok(behind)
    }

    /// Queues initial objects.
    fn show(&mut self, bytes: Bytes) {
        self.ready.push_back(WatchChunk {
            bytes,
            progress: WatchProgress::Initial,
        });
    }

    fn added(&mut self, call: &Call<'_>, object: &ObjectRef) -> Result<Bytes, ApiError> {
        let shown = Shown::Stored(object);
        let frame = frame(call, self.form, self.columns, Kind::Added, &shown)?;
        self.columns = Columns::Known;
        Ok(frame)
    }

    /// Ends the initial events, because all of them are queued.
    fn end_initial(&mut self, version: Version, marked: bool) {
        if marked {
            self.bookmark(version, InitialEnd::Here);
        }
    }

    /// Queues the next piece of the initial objects. If the client reads too slowly, or if memory
    /// is short, the watch ends with an error after which the client must begin again, because it
    /// has not got all objects.
    pub(super) async fn present_more(&mut self, initial: Lent<Initial>) {
        let (tenant, request) = (self.tenant.clone(), Arc::clone(&self.request));
        let (row, services) = (Arc::clone(&self.row), Arc::clone(&self.services));
        let call = Call::new(&tenant, &request, &row, &services);
        let upcoming = initial.with(|initial| {
            let start = Start::After(&initial.behind);
            let objects = initial.cut.range(&initial.prefix, start);
            conversion::upcoming(&row, objects, BATCH_BYTES)
        });
        let until = match upcoming.flatten() {
            None => Ok(None),
            Some(upcoming) => upcoming.convert(&call).await,
        };
        let shown = initial.with(|initial| {
            if !initial.pinned.may_continue(&self.tenant) {
                return Err(ApiError::expired(MEMORY_SHORT));
            }
            let until = until?;
            let range = Range {
                prefix: &initial.prefix,
                start: Start::After(&initial.behind),
                until: until.as_deref(),
            };
            let behind = self.present_piece(&call, &initial.cut, range)?;
            let is_over = behind.is_none();
            match behind {
                Some(behind) => initial.behind = behind,
                None => self.end_initial(initial.cut.version(), initial.marked),
            }
            Ok(is_over)
        });
        match shown {
            Some(Ok(true)) => {}
            Some(Ok(false)) => self.initial = Some(initial),
            Some(Err(error)) => self.break_off(&error),
            None => self.break_off(&ApiError::expired(READ_TOO_SLOWLY)),
        }
    }

    fn break_off(&mut self, error: &ApiError) {
        self.fail(error);
        self.watcher = None;
    }
}
