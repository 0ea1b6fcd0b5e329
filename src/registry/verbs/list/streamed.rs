//! Lists that are too long to be built at once: written piece by piece from the cut that they show,
//! as the client reads.
//!
//! A long answer holds its cut until it ends, and with it the objects that were replaced since. The
//! bytes on their way to the client and those that the cut pins count in the share of answers. The
//! code that sends the answer limits its time.

use crate::answer::held::{HELD_BYTES_MIN, full, hold_until_sent, room};
use crate::answer::negotiate::{Encoding, Representation};
use crate::answer::representation::RowObject;
use crate::answer::{AnswerBody, StreamEnd};
use crate::kinds::conversion;
use crate::kinds::table::Resource;
use crate::request::ResourceRequest;
use crate::request::call::{Call, Tenant};
use crate::select::Selection;
use crate::services::Services;
use crate::verbs::list;
use crate::verbs::list::poll_budget::{self, PollBudget};
use crate::verbs::list::writer::{self, CHUNK_BYTES, ListWriter};
use crate::verbs::list::{Items, Page, whole};
use bytes::Bytes;
use futures_util::{StreamExt as _, stream};
use parking_lot::Mutex;
use polyplane_apimachinery::status::ApiError;
use polyplane_plane::{ObjectRef, Prefix, ReplacedMark, Reservation, Start};
use std::future;
use std::ops::ControlFlow;
use std::sync::Arc;
use std::time::Duration;
use tokio::task::AbortHandle;

/// Bytes of objects up to which a list is built at once. Its length is then known to the client,
/// and a stream would cost more than it saves.
pub const LONG_BYTES: usize = 256 << 10;
/// Bytes that a streamed answer may have in memory: the piece that is being written, and what the
/// connection buffers while the client does not read.
const STREAM_BYTES: usize = 640 << 10;

/// The memory of a streamed answer: the bytes on their way, and those that its cut keeps from being
/// freed.
pub struct Pin {
    hold: Reservation,
    taken: ReplacedMark,
}

impl Pin {
    /// Begins to count a streamed answer that shows the newest cut or an older one.
    ///
    /// # Errors
    /// Returns 429 if the answers on their way to clients fill their share.
    pub fn new(call: &Call<'_>) -> Result<Self, ApiError> {
        Ok(Self {
            hold: room(call, STREAM_BYTES)?,
            taken: call.tenant.plane.replaced_mark(),
        })
    }

    /// Updates the bytes that the cut pins. Returns false if they are too many, so that the answer
    /// has to end.
    pub fn may_continue(&mut self, tenant: &Tenant) -> bool {
        let pinned = tenant.plane.pinned_since(self.taken);
        self.hold.resize(STREAM_BYTES.saturating_add(pinned));
        pinned == 0 || !self.hold.is_over()
    }
}

/// A value that a stream needs for a limited time. It is dropped after that time even if the client
/// reads nothing, so that the stream is never polled.
pub struct Lent<T> {
    slot: Arc<Mutex<Option<T>>>,
    timer: AbortHandle,
}

impl<T: Send + 'static> Lent<T> {
    /// Starts the time. Must be called inside the runtime.
    pub fn new(thing: T, time: Duration) -> Self {
        let slot = Arc::new(Mutex::new(Some(thing)));
        let lent = Arc::clone(&slot);
        let timer = tokio::spawn(async move {
            tokio::time::sleep(time).await;
            let thing = lent.lock().take();
            drop(thing);
        });
        Self {
            slot,
            timer: timer.abort_handle(),
        }
    }

    /// Calls `work` with the value; returns `None` if its time is over.
    pub fn with<R>(&self, work: impl FnOnce(&mut T) -> R) -> Option<R> {
        self.slot.lock().as_mut().map(work)
    }
}

impl<T> Drop for Lent<T> {
    fn drop(&mut self) {
        // The task refers to the slot until it is dropped itself, which may be later, so the value
        // is removed from the slot now.
        let thing = self.slot.lock().take();
        drop(thing);
        self.timer.abort();
    }
}

/// A list that is about to be written, with its reserved memory.
pub struct Listed {
    wish: Representation,
    selection: Selection,
    prefix: Prefix,
    page: Page,
    size: Size,
}

enum Size {
    /// A list that is written at once. A very small one reserves no memory: the seats of requests
    /// limit these.
    Whole(Items, Option<Reservation>),
    /// A list that is written piece by piece. Its end is known already.
    Streamed(Pin, Items),
}

impl Listed {
    /// Reserves the memory.
    ///
    /// # Errors
    /// Returns 429 if the answers on their way to clients fill their share.
    pub async fn new(
        call: &Call<'_>,
        wish: Representation,
        selection: Selection,
        prefix: Prefix,
        page: Page,
    ) -> Result<Self, ApiError> {
        let most = whole::built_bytes_max(call, wish);
        let short = list::collect_within(call, &selection, &prefix, &page, most).await;
        let size = match short {
            Ok((items, bytes)) if bytes < HELD_BYTES_MIN => Size::Whole(items, None),
            Ok((items, bytes)) => Size::Whole(items, Some(room(call, bytes)?)),
            Err(first) => {
                let pin = Pin::new(call)?;
                let ends = end_of(call, &selection, &prefix, &page, &first).await;
                Size::Streamed(pin, ends)
            }
        };
        Ok(Self {
            wish,
            selection,
            prefix,
            page,
            size,
        })
    }

    /// Writes the list, or its first piece.
    ///
    /// # Errors
    /// Returns 406 if the shape is that of one object, 422 for a bad table option, 500 if stored
    /// bytes are damaged.
    pub async fn body(self, call: &Call<'_>) -> Result<AnswerBody, ApiError> {
        let (pin, ends) = match self.size {
            Size::Whole(items, hold) => {
                conversion::ahead(call, items.items.iter()).await?;
                let body = whole::write(call, self.wish, &items, &self.page).await?;
                return Ok(hold_until_sent(body, hold));
            }
            Size::Streamed(pin, ends) => (pin, ends),
        };
        let include = list::included(call, self.wish)?;
        let mut list = LongList {
            tenant: call.tenant.clone(),
            request: Arc::new(call.request.for_stream(call.request.deadline)),
            services: Arc::clone(call.services),
            row: Arc::clone(call.row),
            wish: self.wish,
            include,
            meta: list::list_meta(call, &self.page, &ends),
            extent: Extent {
                selection: self.selection,
                prefix: self.prefix,
                page: self.page,
                last: ends.next,
            },
            pin,
            at: At::Head,
        };
        // Protobuf has the length in front.
        let head = match list.wish.encoding {
            Encoding::Protobuf => {
                let written = list.measured().await?;
                writer::envelope_head(call, list.wish.shape, written)
            }
            Encoding::Json | Encoding::Yaml => Vec::new(),
        };
        // An error in the first piece can still be returned as a Status.
        let mut first = list.piece().await?;
        if !head.is_empty() {
            first = [&head[..], &first].concat().into();
        }
        let others = stream::unfold(list, |mut list| async move {
            let next = list.next().await;
            next.map(|piece| (piece, list))
        });
        let pieces = stream::once(future::ready(Ok(first))).chain(others);
        Ok(AnswerBody::Stream(Box::pin(pieces)))
    }
}

/// Returns the last key of a page and the number of objects behind it, without its items. `first`
/// are the first of these.
async fn end_of(
    call: &Call<'_>,
    selection: &Selection,
    prefix: &Prefix,
    page: &Page,
    first: &[ObjectRef],
) -> Items {
    let mut items = Items::default();
    if page.limit == 0 {
        return items;
    }
    let start = match first.last() {
        Some(known) => Start::After(known.key().as_bytes()),
        None => list::start_of(page),
    };
    let (mut last, mut count) = (first.last().cloned(), first.len());
    let row: &Resource = call.row;
    let look = |object: ObjectRef, budget: &mut PollBudget| {
        budget.spend_on_test(selection, row, &object);
        if !selection.matches(row, &object) {
            return ControlFlow::Continue(());
        }
        if count == page.limit {
            return ControlFlow::Break(());
        }
        count += 1;
        last = Some(object);
        ControlFlow::Continue(())
    };
    let more = poll_budget::walk(&page.cut, prefix, start, look).await;
    if more.is_some() {
        items.end_after(last.as_ref(), selection, prefix, page);
    }
    items
}

/// A list that is being streamed.
struct LongList {
    tenant: Tenant,
    request: Arc<ResourceRequest>,
    services: Arc<Services>,
    row: Arc<Resource>,
    extent: Extent,
    pin: Pin,
    wish: Representation,
    include: RowObject,
    /// The list's metadata, for the head.
    meta: String,
    at: At,
}

/// The objects that a list shows.
struct Extent {
    selection: Selection,
    prefix: Prefix,
    page: Page,
    /// The last key of the page, if there are more behind it.
    last: Option<Vec<u8>>,
}

/// The position up to which a list is written.
enum At {
    Head,
    /// Everything up to this key is written.
    Behind(Vec<u8>),
    End,
}

/// The reason why a list ends before it is complete.
enum Broken {
    /// Its cut pins too much memory.
    Full,
    /// An object cannot be shown.
    Failed(ApiError),
}

impl From<ApiError> for Broken {
    fn from(error: ApiError) -> Self {
        Self::Failed(error)
    }
}

impl From<Broken> for ApiError {
    fn from(broken: Broken) -> Self {
        match broken {
            Broken::Full => full(),
            Broken::Failed(error) => error,
        }
    }
}

impl At {
    /// Returns the beginning of what is still to be written; `None` at the end.
    fn start<'a>(&'a self, page: &'a Page) -> Option<Start<'a>> {
        match self {
            Self::Head => Some(list::start_of(page)),
            Self::Behind(key) => Some(Start::After(key)),
            Self::End => None,
        }
    }
}

impl Extent {
    /// Writes objects from `start` until a piece is full, or the object with the key `until` is written, or the
    /// budget is over. Returns the last key that was looked at; `None` if all is written.
    fn write_some(
        &self,
        (row, wish): (&Resource, Representation),
        writer: &mut ListWriter<'_>,
        (start, until): (Start<'_>, Option<&[u8]>),
        budget: &mut PollBudget,
    ) -> Result<Option<Vec<u8>>, ApiError> {
        for object in self.page.cut.range(&self.prefix, start) {
            let key = object.key().as_bytes();
            budget.spend_on_test(&self.selection, row, &object);
            if self.selection.matches(row, &object) {
                writer.write(&object)?;
                budget.spend_on_writing(wish, &object);
            }
            if self.last.as_deref() == Some(key) {
                break;
            }
            if writer.pending() >= CHUNK_BYTES || until == Some(key) || budget.is_over() {
                return Ok(Some(key.to_vec()));
            }
        }
        Ok(None)
    }
}

impl LongList {
    /// Returns the next piece for the stream; `None` at the end.
    async fn next(&mut self) -> Option<Result<Bytes, StreamEnd>> {
        if matches!(self.at, At::End) {
            return None;
        }
        let piece = self.piece().await;
        Some(piece.map_err(|broken| {
            self.at = At::End;
            match broken {
                Broken::Full => StreamEnd::Full,
                Broken::Failed(error) => {
                    tracing::error!(%error, "a list ended before it was complete");
                    StreamEnd::Damaged
                }
            }
        }))
    }

    /// Returns the number of bytes of all pieces, by writing each without keeping it: the cut does
    /// not change, so that the pieces are the same when they are sent.
    async fn measured(&mut self) -> Result<usize, ApiError> {
        let mut written = 0;
        while !matches!(self.at, At::End) {
            written += self.piece().await?.len();
            // Other requests have their turn between the pieces.
            tokio::task::yield_now().await;
        }
        self.at = At::Head;
        Ok(written)
    }

    /// Writes objects until a piece is full or the list ends. A piece is never empty: other tasks have their turn
    /// while it is written.
    async fn piece(&mut self) -> Result<Bytes, Broken> {
        let call = Call::new(&self.tenant, &self.request, &self.row, &self.services);
        let mut writer = match &self.at {
            At::Head => ListWriter::begin(&call, self.wish, self.include, &self.meta),
            At::Behind(_) | At::End => {
                ListWriter::resume(&call, self.wish, self.include, &self.meta)
            }
        }?;
        // Objects behind this key are not converted yet.
        let mut until: Option<Vec<u8>> = None;
        let mut is_converted = false;
        let mut budget = PollBudget::default();
        while let Some(start) = self.at.start(&self.extent.page) {
            if !self.pin.may_continue(&self.tenant) {
                return Err(Broken::Full);
            }
            if !is_converted {
                let cut = &self.extent.page.cut;
                let objects = cut.range(&self.extent.prefix, start);
                until = match conversion::upcoming(&self.row, objects, CHUNK_BYTES) {
                    None => None,
                    Some(upcoming) => upcoming.convert(&call).await?,
                };
            }
            let of = (&*self.row, self.wish);
            let range = (start, until.as_deref());
            let extent = &self.extent;
            let Some(behind) = extent.write_some(of, &mut writer, range, &mut budget)? else {
                self.at = At::End;
                return Ok(writer.finish().into());
            };
            is_converted = until.as_ref() != Some(&behind);
            self.at = At::Behind(behind);
            if writer.pending() >= CHUNK_BYTES {
                return Ok(writer.take().into());
            }
            if budget.is_over() {
                budget.yield_now().await;
            }
        }
        Ok(Bytes::new())
    }
}
