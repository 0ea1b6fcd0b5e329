//! GET of a collection: consistent pages in key order.
//!
//! A page token names a version, the key to continue from, and the time at which the first page was
//! made; the server keeps nothing for it. Pages of one list are cut from one version, by undoing
//! the log.

mod default_class;
pub mod poll_budget;
pub mod streamed;
pub mod token;
pub mod whole;
pub mod writer;

use crate::answer::negotiate;
use crate::answer::negotiate::{Conversions, Number, Representation, Shape};
use crate::answer::representation;
use crate::answer::representation::RowObject;
use crate::answer::{Answer, Outcome};
use crate::kinds::table::Resource;
use crate::request::call::Call;
use crate::request::options::{ListOptions, ListPurpose};
use crate::select::{self, Selection};
use crate::write::{answerable, within};
use poll_budget::PollBudget;
use polyplane_apimachinery::field_error::{FieldError, Path};
use polyplane_apimachinery::json;
use polyplane_apimachinery::status::{ApiError, Reason};
use polyplane_apimachinery::strconv;
use polyplane_plane::{AtError, ExpiredCause, ObjectRef, Prefix, Snapshot, Start, Version};
use std::ops::ControlFlow;
use std::time::Duration;
use streamed::Listed;
use tokio::time::Instant;

/// The longest time that a read waits for a version which is still in the future.
pub const FUTURE_WAIT: Duration = Duration::from_secs(3);

/// The beginning of a page and the state that it shows.
pub struct Page {
    /// The state.
    pub cut: Snapshot,
    /// The version that the list carries.
    pub version: Version,
    /// The first key, or empty for the beginning.
    pub start: Vec<u8>,
    /// The time at which the first page was made.
    pub since: i64,
    /// Most items; 0 means no limit.
    pub limit: usize,
}

/// Handles a list.
///
/// # Errors
/// Returns upstream's errors: 400 for bad selectors and tokens, 410 for versions that are no longer
/// kept, 504 for future ones.
pub async fn list(call: &Call<'_>) -> Result<Answer, ApiError> {
    let wish = negotiate::output(call, Conversions::Offered)?;
    let options = ListOptions::parse(call.request, ListPurpose::List)?;
    let selection = Selection::of(call, &options)?;
    let prefix = select::prefix(call);
    // With a page token upstream reads a range of keys, whatever the selection is.
    let of_one = options.continuation.is_empty() && selection.single(call).is_some();
    let page = match of_one {
        false => page(call, &options, &prefix).await?,
        true => page_of_one(call, options, &prefix).await?,
    };
    call.stands_in(&page.cut)?;
    let listed = Listed::new(call, wish, selection, prefix, page).await?;
    let body = listed.body(call).await?;
    Ok(Answer::finite(call, wish, Outcome::Ok, body))
}

/// Returns which part of its object a row of the list's table includes, if the list is a table.
///
/// # Errors
/// Returns 406 if the shape is that of one object, 422 for a bad table option.
pub fn included(call: &Call<'_>, wish: Representation) -> Result<RowObject, ApiError> {
    match wish.shape {
        Shape::Whole | Shape::Metadata(_, Number::Many) => Ok(RowObject::None),
        Shape::Table(_) => RowObject::parse(call),
        Shape::Metadata(_, Number::One) => {
            let list = representation::go_type(call.row, &call.row.list_kind);
            let message = format!(
                "you requested PartialObjectMetadata, but the requested object is a list ({list})"
            );
            Err(ApiError::new(Reason::NotAcceptable, message))
        }
    }
}

/// The items of a page, and where the next one begins.
#[derive(Default)]
pub struct Items {
    /// The selected objects.
    pub items: Vec<ObjectRef>,
    /// The last key of the page, if there are more behind it.
    pub next: Option<Vec<u8>>,
    /// The number of objects behind the page, if it is known without reading each.
    pub remaining: Option<usize>,
}

impl Items {
    /// Records that more objects follow this one. Their number is known if no selector has to test
    /// each.
    pub fn end_after(
        &mut self,
        last: Option<&ObjectRef>,
        selection: &Selection,
        prefix: &Prefix,
        page: &Page,
    ) {
        self.next = last.map(|object| object.key().as_bytes().to_vec());
        let behind = self.next.as_deref().map(Start::After);
        self.remaining = behind
            .filter(|_| selection.is_everything())
            .map(|start| page.cut.count_from(prefix, start));
    }
}

/// Collects the selected objects of a page.
pub async fn collect(
    call: &Call<'_>,
    selection: &Selection,
    prefix: &Prefix,
    page: &Page,
) -> Items {
    let all = collect_within(call, selection, prefix, page, usize::MAX).await;
    all.expect("no page has so many bytes").0
}

/// Collects the selected objects of a page, with the sum of their bytes.
///
/// # Errors
/// Returns the objects collected so far, if they have more than `bytes_max` bytes.
pub async fn collect_within(
    call: &Call<'_>,
    selection: &Selection,
    prefix: &Prefix,
    page: &Page,
    bytes_max: usize,
) -> Result<(Items, usize), Vec<ObjectRef>> {
    let mut items = Items::default();
    if let Some(key) = selection.single(call) {
        let object = page.cut.get(&key);
        let object = object.filter(|object| selection.matches(call.row, object));
        items.items.extend(object);
        return Ok((items, 0));
    }
    let mut bytes = 0;
    let row: &Resource = call.row;
    let collect = |object: ObjectRef, budget: &mut PollBudget| {
        if page.limit > 0 && items.items.len() == page.limit {
            return ControlFlow::Break(CollectEnd::Full);
        }
        budget.spend_on_test(selection, row, &object);
        if !selection.is_everything() && !selection.matches(row, &object) {
            return ControlFlow::Continue(());
        }
        bytes += object.body_len();
        if bytes > bytes_max {
            return ControlFlow::Break(CollectEnd::TooLong);
        }
        items.items.push(object);
        ControlFlow::Continue(())
    };
    let end = poll_budget::walk(&page.cut, prefix, start_of(page), collect).await;
    match end {
        None => {}
        Some(CollectEnd::Full) => {
            let last = items.items.last().cloned();
            items.end_after(last.as_ref(), selection, prefix, page);
        }
        Some(CollectEnd::TooLong) => return Err(items.items),
    }
    Ok((items, bytes))
}

/// The reason why a page ends before its range.
enum CollectEnd {
    /// It has as many items as it may have, and there are more objects.
    Full,
    /// Its items have too many bytes.
    TooLong,
}

/// Returns the beginning of a page as the plane's type.
pub fn start_of(page: &Page) -> Start<'_> {
    if page.start.is_empty() {
        Start::First
    } else {
        Start::At(&page.start)
    }
}

/// Chooses the state that a list shows.
///
/// # Errors
/// See [`list`].
pub async fn page(
    call: &Call<'_>,
    options: &ListOptions,
    prefix: &Prefix,
) -> Result<Page, ApiError> {
    if !options.continuation.is_empty() {
        return continued(call, options, prefix).await;
    }
    let asked = parse_version(&options.resource_version)?;
    let exact = options.is_exact(asked);
    answerable(call).await?;
    let cut = if exact {
        let cut = cut_at(call, Version::from_raw(asked), prefix).await?;
        drop(call.newest().await?);
        cut.map_err(too_old)?
    } else {
        if asked != 0 {
            reached(call, asked).await?;
        }
        call.newest().await?
    };
    let version = if exact {
        Version::from_raw(asked)
    } else {
        cut.version()
    };
    Ok(Page {
        version,
        cut,
        start: Vec::new(),
        since: call.environment.now(),
        limit: options.first_limit(),
    })
}

/// Chooses the state in which a list shows one object.
async fn page_of_one(
    call: &Call<'_>,
    options: ListOptions,
    prefix: &Prefix,
) -> Result<Page, ApiError> {
    let by_store = options.reads_one_from_store();
    let page = page(call, &options.of_one(), prefix).await;
    page.map_err(|error| match by_store && error.reason == Reason::Timeout {
        true => error.with_retry_after(0),
        false => error,
    })
}

/// Parses the version that a list starts from; an empty text is 0.
///
/// # Errors
/// Returns 400 if it is not a number.
pub fn parse_version(text: &str) -> Result<u64, ApiError> {
    number_of_version(text).map_err(|error| {
        ApiError::bad_request(format!("invalid resource version: {}", error.message))
    })
}

/// Parses the version that a get or watch starts from; an empty text is 0.
///
/// # Errors
/// Returns 500 if it is not a number, as upstream does.
pub fn number_of_version(text: &str) -> Result<u64, ApiError> {
    if text.is_empty() {
        return Ok(0);
    }
    strconv::parse_uint(text).map_err(|error| {
        let path = Path::new("resourceVersion");
        let error = FieldError::invalid(&path, text, error.to_string());
        ApiError::new(Reason::Unknown, error.to_string())
    })
}

/// Reports whether upstream answers from its store, because its watch cache does not hold the kind.
fn answered_by_store(call: &Call<'_>) -> bool {
    let storage = &call.row.storage;
    storage.group.is_empty() && storage.resource == "events"
}

/// Returns the seconds after which a client may try again to read a version of the future: upstream's store names
/// none.
fn retry_after_seconds(call: &Call<'_>) -> u32 {
    u32::from(!answered_by_store(call))
}

/// Parses the version that the get of an object starts from; an empty text is 0.
///
/// # Errors
/// Returns 500 if it is not a number, as upstream's watch cache does, and 400 as its store does.
pub fn version_of_get(call: &Call<'_>, text: &str) -> Result<u64, ApiError> {
    if answered_by_store(call) {
        parse_version(text)
    } else {
        number_of_version(text)
    }
}

/// Waits until the plane has seen a version.
///
/// # Errors
/// Returns 504 if the version is still in the future after the time that upstream waits.
pub async fn reached(call: &Call<'_>, asked: u64) -> Result<(), ApiError> {
    let plane = &call.tenant.plane;
    let deadline = call.request.deadline.min(Instant::now() + FUTURE_WAIT);
    if plane.reached(Version::from_raw(asked), deadline).await {
        Ok(())
    } else {
        Err(ApiError::too_large_resource_version(
            asked,
            plane.seen().raw(),
            retry_after_seconds(call),
        ))
    }
}

/// Returns the refusal of a list of a version that is no longer kept.
pub(crate) fn too_old(cause: ExpiredCause) -> ApiError {
    expired(
        "The resourceVersion for the provided list is too old.",
        cause,
    )
}

/// Returns the refusal of a version that is no longer kept, with upstream's `text` and the cause.
fn expired(text: &str, cause: ExpiredCause) -> ApiError {
    ApiError::expired(format!("{text} Cause: {cause}."))
}

/// Returns the state at a version, or the cause if it is no longer kept. A version from before the
/// definition of a custom kind came into being is of another kind, which may have had the name.
async fn cut_at(
    call: &Call<'_>,
    version: Version,
    prefix: &Prefix,
) -> Result<Result<Snapshot, ExpiredCause>, ApiError> {
    if let Some(custom) = &call.row.custom {
        let plane = &call.tenant.plane;
        let definition = plane.snapshot().get(&custom.definition);
        // A write that is under way has no version yet, and is newer than all.
        let is_newer = |definition: &ObjectRef| definition.version().is_none_or(|at| at > version);
        if let Some(definition) = definition.filter(is_newer) {
            let then = match past(call, version, &custom.definition.resource_prefix()).await? {
                Ok(cut) => cut.get(&custom.definition),
                Err(cause) => return Ok(Err(cause)),
            };
            let uid = |object: &ObjectRef| {
                let body = object.body();
                json::scan::string_at(&body, &["metadata", "uid"]).map(|uid| uid.into_owned())
            };
            if then.as_ref().and_then(uid) != uid(&definition) {
                let cause = ExpiredCause::KindChanged;
                return Ok(Err(plane.report_expired(cause, version)));
            }
        }
    }
    past(call, version, prefix).await
}

async fn past(
    call: &Call<'_>,
    version: Version,
    prefix: &Prefix,
) -> Result<Result<Snapshot, ExpiredCause>, ApiError> {
    match within(call, call.tenant.plane.at(version, prefix)).await? {
        Ok(cut) => Ok(Ok(cut)),
        Err(AtError::Expired(cause)) => Ok(Err(cause)),
        Err(error @ AtError::Unavailable) => {
            Err(ApiError::service_unavailable(error.to_string()).with_retry_after(1))
        }
        Err(AtError::Future { current }) => Err(ApiError::too_large_resource_version(
            version.raw(),
            current.raw(),
            retry_after_seconds(call),
        )),
    }
}

async fn continued(
    call: &Call<'_>,
    options: &ListOptions,
    prefix: &Prefix,
) -> Result<Page, ApiError> {
    let token = token::continuation(options)?;
    let mut start = prefix.as_bytes().to_vec();
    start.extend_from_slice(token.start().as_bytes());
    answerable(call).await?;
    let now = call.environment.now();
    let limit = options.limit;
    let Some(version) = token.version() else {
        let cut = call.newest().await?;
        return Ok(Page {
            version: cut.version(),
            cut,
            start,
            since: now,
            limit,
        });
    };
    let cut = if token.is_fresh(now) {
        cut_at(call, version, prefix).await?
    } else {
        Err(call
            .tenant
            .plane
            .report_expired(ExpiredCause::TokenAge, version))
    };
    drop(call.newest().await?);
    match cut {
        Ok(cut) => Ok(Page {
            cut,
            version,
            start,
            since: token.since(),
            limit,
        }),
        Err(cause) => Err(token.expired(now, cause)),
    }
}

/// Returns the JSON of the list's metadata.
pub fn list_meta(call: &Call<'_>, page: &Page, items: &Items) -> String {
    let version = page.version.to_string();
    let Some(last) = &items.next else {
        return representation::json_object(&[("resourceVersion", &version)]);
    };
    let prefix = select::prefix(call);
    let behind = String::from_utf8_lossy(&last[prefix.as_bytes().len()..]);
    // A list within a namespace uses the name alone, with a slash in front, as upstream does.
    let slash = if call.namespace().is_empty() { "" } else { "/" };
    let start = format!("{slash}{behind}\0");
    let token = token::write(
        i64::try_from(page.version.raw()).unwrap_or(i64::MAX),
        &start,
        page.since,
    );
    let mut meta =
        representation::json_object(&[("resourceVersion", &version), ("continue", &token)]);
    if let Some(remaining) = items.remaining {
        meta.pop();
        meta.push_str(&format!(",\"remainingItemCount\":{remaining}}}"));
    }
    meta
}
