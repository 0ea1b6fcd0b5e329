//! Lists that are built at once, before any of them is sent. It takes several polls to build a long one.

use crate::answer::AnswerBody;
use crate::answer::negotiate::{Encoding, Representation, Shape};
use crate::answer::representation::Shown;
use crate::request::call::Call;
use crate::verbs::list::poll_budget::PollBudget;
use crate::verbs::list::writer::{self, CHUNK_BYTES, ListWriter};
use crate::verbs::list::{Items, Page, default_class, included, list_meta, streamed};
use bytes::Bytes;
use polyplane_apimachinery::Str;
use polyplane_apimachinery::json::scan::Scanned;
use polyplane_apimachinery::status::ApiError;
use polyplane_plane::ObjectRef;

/// Writes a page in the requested representation.
///
/// # Errors
/// Returns 406 if the shape is that of one object, 422 for a bad table option, 500 if stored bytes
/// are damaged.
pub async fn write(
    call: &Call<'_>,
    wish: Representation,
    items: &Items,
    page: &Page,
) -> Result<AnswerBody, ApiError> {
    let meta = list_meta(call, page, items);
    let mut budget = PollBudget::default();
    let default = default_class::of(call, wish, &items.items, &mut budget).await;
    let rows: Vec<&ObjectRef> = match row_order(call, wish) {
        None => items.items.iter().collect(),
        Some(order) => sorted(&items.items, order, &mut budget).await,
    };
    let mut list = WholeList::begin(call, wish, &meta, default)?;
    for object in rows {
        if budget.is_over() {
            budget.yield_now().await;
        }
        list.show(&Shown::Stored(object))?;
        budget.spend_on_writing(wish, object);
    }
    Ok(list.finish())
}

/// Returns the objects sorted by a number, and those with equal numbers in the order of their keys.
async fn sorted<'o>(
    objects: &'o [ObjectRef],
    order: fn(Scanned<'_>) -> i64,
    budget: &mut PollBudget,
) -> Vec<&'o ObjectRef> {
    let mut numbered = Vec::with_capacity(objects.len());
    for object in objects {
        if budget.is_over() {
            budget.yield_now().await;
        }
        let body = object.body();
        budget.spend(body.len());
        numbered.push((order(Scanned(&body)), object));
    }
    numbered.sort_by_key(|(number, _)| *number);
    numbered.into_iter().map(|(_, object)| object).collect()
}

/// Returns the number by which the rows of a list are sorted; `None` if they stay in the order of their
/// keys.
fn row_order(call: &Call<'_>, wish: Representation) -> Option<fn(Scanned<'_>) -> i64> {
    match wish.shape {
        Shape::Table(_) => call.row.strategy.row_order(),
        Shape::Whole | Shape::Metadata(..) => None,
    }
}

/// Returns the bytes of objects up to which a list is built at once. One that is sorted has to be, and one in
/// which a row depends on the others.
pub(super) fn built_bytes_max(call: &Call<'_>, wish: Representation) -> usize {
    match row_order(call, wish) {
        None if !default_class::is_shown(call, wish) => streamed::LONG_BYTES,
        Some(_) | None => usize::MAX,
    }
}

/// Writes a list of a few objects; `meta` is the JSON of its metadata.
///
/// # Errors
/// See [`write()`].
pub fn write_shown<'a>(
    call: &Call<'_>,
    wish: Representation,
    meta: &str,
    objects: impl Iterator<Item = Shown<'a>>,
) -> Result<AnswerBody, ApiError> {
    let mut list = WholeList::begin(call, wish, meta, None)?;
    for object in objects {
        list.show(&object)?;
    }
    Ok(list.finish())
}

/// A list that is written at once.
struct WholeList<'a> {
    call: &'a Call<'a>,
    wish: Representation,
    writer: ListWriter<'a>,
    chunks: Vec<Bytes>,
}

impl<'a> WholeList<'a> {
    /// Writes the beginning. In a table the row of the object `default` says that it is the default one.
    fn begin(
        call: &'a Call<'a>,
        wish: Representation,
        meta: &str,
        default: Option<Str>,
    ) -> Result<Self, ApiError> {
        let include = included(call, wish)?;
        let mut writer = ListWriter::begin(call, wish, include, meta)?;
        if let Some(name) = default {
            writer.mark_default(name);
        }
        Ok(Self {
            call,
            wish,
            writer,
            chunks: Vec::new(),
        })
    }

    fn show(&mut self, object: &Shown<'_>) -> Result<(), ApiError> {
        self.writer.show(object)?;
        if self.writer.pending() >= CHUNK_BYTES {
            self.chunks.push(self.writer.take().into());
        }
        Ok(())
    }

    fn finish(self) -> AnswerBody {
        let mut chunks = self.chunks;
        chunks.push(self.writer.finish().into());
        if self.wish.encoding == Encoding::Protobuf {
            let written = chunks.iter().map(Bytes::len).sum();
            let head = writer::envelope_head(self.call, self.wish.shape, written);
            chunks.insert(0, head.into());
        }
        AnswerBody::Slices(chunks)
    }
}
