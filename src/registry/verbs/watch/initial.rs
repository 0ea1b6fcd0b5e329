//! The objects that existed when a watch began, shown as added before any event.

use super::{BATCH_BYTES, Feed, InitialEnd};
use crate::answer::representation::{Columns, Shown};
use crate::answer::watch_frame::{Kind, frame};
use crate::answer::{WatchChunk, WatchProgress};
use crate::kinds::conversion;
use crate::request::call::Call;
use crate::select;
use crate::verbs::list::poll_budget::PollBudget;
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

/// Initial events that are sent together.
#[derive(Default)]
struct Piece {
    frames: Vec<u8>,
    budget: PollBudget,
}

impl Piece {
    fn is_full(&self) -> bool {
        self.frames.len() >= BATCH_BYTES
    }
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
        let mut piece = Piece::default();
        let mut behind: Option<Vec<u8>> = None;
        loop {
            let range = Range {
                prefix: &prefix,
                start: behind.as_deref().map_or(Start::First, Start::After),
                until: until.as_deref(),
            };
            behind = self.present_some(call, &cut, range, &mut piece)?;
            if behind.is_none() || behind == until || piece.is_full() {
                break;
            }
            piece.budget.yield_now().await;
        }
        self.show_piece(piece);
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

    /// Adds initial objects to a piece until it is full or its budget is over. Returns the last key that was
    /// looked at if there may be more.
    fn present_some(
        &mut self,
        call: &Call<'_>,
        cut: &Snapshot,
        range: Range<'_>,
        piece: &mut Piece,
    ) -> Result<Option<Vec<u8>>, ApiError> {
        for object in cut.range(range.prefix, range.start) {
            let key = object.key().as_bytes();
            let budget = &mut piece.budget;
            budget.spend_on_test(&self.selection, call.row, &object);
            if self.selection.matches(call.row, &object) {
                budget.spend_on_writing(self.form.wish, &object);
                piece.frames.extend_from_slice(&self.added(call, &object)?);
            }
            if piece.is_full() || range.until == Some(key) || piece.budget.is_over() {
                return Ok(Some(key.to_vec()));
            }
        }
        Ok(None)
    }

    /// Queues a piece, if any of the objects were selected.
    fn show_piece(&mut self, piece: Piece) {
        if !piece.frames.is_empty() {
            self.show(piece.frames.into());
        }
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
        let (mut piece, mut is_full) = (Piece::default(), false);
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
            let behind = self.present_some(&call, &initial.cut, range, &mut piece)?;
            is_full = piece.is_full();
            self.show_piece(piece);
            let is_over = behind.is_none();
            match behind {
                Some(behind) => initial.behind = behind,
                None => self.end_initial(initial.cut.version(), initial.marked),
            }
            Ok(is_over)
        });
        match shown {
            Some(Ok(true)) => {}
            Some(Ok(false)) => {
                self.initial = Some(initial);
                // The watch goes on at once if its client gets little or nothing of this piece.
                if !is_full {
                    tokio::task::yield_now().await;
                }
            }
            Some(Err(error)) => self.break_off(&error),
            None => self.break_off(&ApiError::expired(READ_TOO_SLOWLY)),
        }
    }

    fn break_off(&mut self, error: &ApiError) {
        self.fail(error);
        self.watcher = None;
    }
}
