//! Watches: the present objects, then every change, in the form that the client has requested.
//!
//! A watch is a cursor into the plane's log with a filter. The frame of an event is built once
//! for each form and shared by all its watchers.

mod initial;
pub mod selectors;

use crate::answer::negotiate;
use crate::answer::negotiate::{Conversions, MetaVersion, Number, Shape};
use crate::answer::representation;
use crate::answer::representation::{Columns, RowObject, TableWriter};
use crate::answer::watch_frame::{Form, event_frame, kind_for};
use crate::answer::{Answer, AnswerBody, Outcome, StreamEnd, WatchChunk, WatchProgress};
use crate::kinds::conversion;
use crate::kinds::table::Resource;
use crate::request::ResourceRequest;
use crate::request::call::{Call, Tenant};
use crate::request::options::{Bookmarks, InitialEvents, ListOptions, ListPurpose};
use crate::request::parameters::DURATION_SECONDS_MAX;
use crate::select::{self, Selection};
use crate::services::Services;
use crate::verbs::list::streamed::Lent;
use crate::verbs::list::{FUTURE_WAIT, number_of_version};
use crate::write::{answerable, within};
use bytes::Bytes;
use futures_util::stream;
use initial::Initial;
use polyplane_apimachinery::status::ApiError;
use polyplane_plane::{Ended, Event, Next, Version, WatchError, WatchFrom, WatchScope, Watcher};
use selectors::HeldSelectors;
use std::borrow::Cow;
use std::collections::VecDeque;
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;
use tokio::time::{Instant, Sleep, sleep_until};

/// Bytes of frames that are collected before they are sent as one chunk.
const BATCH_BYTES: usize = 64 * 1024;
/// The time of a watch above which a bookmark ends it. Upstream sends the last one as long before the end,
/// so that a shorter watch has none.
const LAST_BOOKMARK_BEFORE_END: Duration = Duration::from_secs(2);

/// Handles a watch.
///
/// # Errors
/// Returns upstream's errors as long as no byte of the stream was sent. Later errors are frames of
/// the stream.
pub async fn watch(call: &Call<'_>) -> Result<Answer, ApiError> {
    let wish = negotiate::output(call, Conversions::Offered)?;
    let options = ListOptions::parse(call.request, ListPurpose::of_watch(call.request))?;
    let mut selection = Selection::of(call, &options)?;
    answerable(call).await?;
    let asked = number_of_version(&options.resource_version)?;
    let include = match wish.shape {
        Shape::Table(_) => RowObject::parse(call)?,
        Shape::Whole | Shape::Metadata(..) => RowObject::None,
    };
    negotiate::streamed(wish)?;
    let held = selectors::hold(call, &mut selection)?;
    let form = Form {
        wish,
        include,
        number: call.row.number,
    };
    let time = timeout(&options, call);
    let ends = Instant::now() + time;
    let mut feed = Feed {
        tenant: call.tenant.clone(),
        request: Arc::new(call.request.for_stream(ends)),
        services: Arc::clone(call.services),
        row: Arc::clone(call.row),
        form,
        selection,
        _held: held,
        bookmarks: options.bookmarks,
        ends_with_bookmark: time > LAST_BOOKMARK_BEFORE_END,
        columns: Columns::Shown,
        ready: VecDeque::new(),
        watcher: None,
        initial: None,
        awaited: None,
        ends: Box::pin(sleep_until(ends)),
    };
    let begin = Begin {
        asked,
        initial_events: options.initial_events,
    };
    if call
        .tenant
        .plane
        .reached(Version::from_raw(asked), Instant::now())
        .await
    {
        feed.start(call, begin).await?;
    } else {
        feed.awaited = Some(begin);
    }
    let body = stream::unfold(feed, |mut feed| async move {
        let item = feed.next().await?;
        Some((item, feed))
    });
    Ok(Answer {
        outcome: Outcome::Ok,
        content_type: Cow::Borrowed(wish.stream_content_type()),
        warnings: call.take_warnings(),
        body: AnswerBody::Watch(Box::pin(body)),
    })
}

fn timeout(options: &ListOptions, call: &Call<'_>) -> Duration {
    match options.timeout_seconds.filter(|seconds| *seconds != 0) {
        // A watch with a negative time ends at once.
        Some(seconds) => {
            let seconds = seconds.clamp(0, DURATION_SECONDS_MAX);
            Duration::from_secs(seconds.unsigned_abs())
        }
        None => match call.tenant.settings.watch_seconds_min {
            0 => Duration::from_secs(DURATION_SECONDS_MAX.unsigned_abs()),
            least => {
                let mut random = [0; 4];
                call.environment.random(&mut random);
                let least = Duration::from_secs(least.into());
                least + least.mul_f64(f64::from(u32::from_le_bytes(random)) / f64::from(u32::MAX))
            }
        },
    }
}

/// The state of one watch.
struct Feed {
    tenant: Tenant,
    request: Arc<ResourceRequest>,
    services: Arc<Services>,
    /// The kind as it was when the watch began. The watch ends when the kind changes.
    row: Arc<Resource>,
    form: Form,
    selection: Selection,
    /// The memory of the selectors.
    _held: HeldSelectors,
    bookmarks: Bookmarks,
    /// True if a bookmark ends the watch of a client that wants bookmarks.
    ends_with_bookmark: bool,
    columns: Columns,
    ready: VecDeque<WatchChunk>,
    watcher: Option<Watcher>,
    /// The initial objects that are still to be shown.
    initial: Option<Lent<Initial>>,
    /// The point at which the watch begins once the plane has reached that version.
    awaited: Option<Begin>,
    /// The timer of the watch's end. It is kept from event to event, because setting a timer costs
    /// more than checking one.
    ends: Pin<Box<Sleep>>,
}

/// The point at which a watch begins.
#[derive(Clone, Copy)]
struct Begin {
    /// The version that the client knows; 0 if none.
    asked: u64,
    initial_events: Option<InitialEvents>,
}

impl Feed {
    /// Begins with the present objects, or at a version of the past.
    async fn start(&mut self, call: &Call<'_>, begin: Begin) -> Result<(), ApiError> {
        let Begin {
            asked,
            initial_events,
        } = begin;
        let synthetic = match initial_events {
            Some(InitialEvents::Send) => true,
            Some(InitialEvents::Skip) => false,
            None => asked == 0,
        };
        let plane = &call.tenant.plane;
        let scope = match self.selection.single(call) {
            Some(key) => WatchScope::Object(key),
            None => WatchScope::Prefix(select::prefix(call)),
        };
        let from = if synthetic {
            let cut = call.newest().await?;
            call.stands_in(&cut)?;
            let marked = initial_events.is_some() && self.bookmarks == Bookmarks::Welcome;
            let version = cut.version();
            self.present(call, cut, marked).await?;
            WatchFrom::After(version)
        } else if asked == 0 {
            WatchFrom::Now
        } else {
            WatchFrom::After(Version::from_raw(asked))
        };
        match within(call, plane.watch(scope, from)).await? {
            // Checked after the watch has begun: a later change of the kind ends it.
            Ok(watcher) => {
                call.stands_in(&call.newest().await?)?;
                self.watcher = Some(watcher);
            }
            Err(WatchError::Expired(cause)) => {
                let oldest = plane.resumable_from(&select::prefix(call));
                let text = format!("too old resource version: {asked} ({oldest}): {cause}");
                self.initial = None;
                self.fail(&ApiError::expired(text));
            }
            Err(WatchError::Future { current }) => {
                return Err(ApiError::too_large_resource_version(
                    asked,
                    current.raw(),
                    1,
                ));
            }
            Err(WatchError::Ended(Ended::Lost | Ended::Moved)) => return Err(ApiError::moved()),
            Err(error @ (WatchError::Unavailable | WatchError::Ended(_))) => {
                let error = ApiError::service_unavailable(error.to_string());
                return Err(error.with_retry_after(1));
            }
        }
        Ok(())
    }

    /// Waits for a version of the future and begins there. The stream has begun already, so an
    /// error is a frame of it.
    async fn start_late(&mut self, begin: Begin) {
        let tenant = self.tenant.clone();
        let version = Version::from_raw(begin.asked);
        let patience = Instant::now() + FUTURE_WAIT;
        let ends = self.ends.deadline();
        if tenant.plane.reached(version, patience.min(ends)).await {
            let (request, services) = (Arc::clone(&self.request), Arc::clone(&self.services));
            let row = Arc::clone(&self.row);
            let call = Call::new(&tenant, &request, &row, &services);
            if let Err(error) = self.start(&call, begin).await {
                self.fail(&error);
            }
        } else if patience < ends {
            let current = tenant.plane.seen().raw();
            let error = ApiError::too_large_resource_version(begin.asked, current, 1);
            self.fail(&error);
        }
    }

    /// Returns the next chunk of the stream; `None` at its end.
    async fn next(&mut self) -> Option<Result<WatchChunk, StreamEnd>> {
        loop {
            if let Some(chunk) = self.ready.pop_front() {
                // As upstream, which finds out at the first event that no event is a list.
                let is_unshown = matches!(self.form.wish.shape, Shape::Metadata(_, Number::Many));
                if is_unshown && chunk.progress != WatchProgress::Failed {
                    return None;
                }
                return Some(Ok(chunk));
            }
            if let Some(initial) = self.initial.take() {
                self.present_more(initial).await;
                continue;
            }
            if let Some(begin) = self.awaited.take() {
                self.start_late(begin).await;
                if !self.ready.is_empty() {
                    continue;
                }
            }
            let next = match self.watcher.as_mut() {
                Some(watcher) => tokio::select! {
                    // Changes from before the end are sent before the watch ends. Of later ones at most one
                    // batch is, see below.
                    biased;
                    next = watcher.next() => Some(next),
                    () = self.ends.as_mut() => None,
                },
                None => return None,
            };
            match next {
                None => self.finish(),
                Some(Next::Events(events)) => {
                    // Looked at here, because the timer is not polled while events are ready.
                    let is_late = Instant::now() >= self.ends.deadline();
                    self.events(&events).await;
                    if is_late {
                        self.finish();
                    }
                }
                Some(Next::Bookmark(version)) if self.bookmarks == Bookmarks::Welcome => {
                    self.bookmark(version, InitialEnd::No);
                }
                Some(Next::Bookmark(_)) => {}
                Some(Next::Closed(Ended::Lost | Ended::Moved)) => {
                    let watcher = self.watcher.take();
                    let sent_up_to = watcher.map(|watcher| watcher.sent_up_to().raw());
                    return Some(Err(StreamEnd::Moved { sent_up_to }));
                }
                Some(Next::Lagged | Next::Closed(_)) => {
                    self.watcher = None;
                }
            }
        }
    }

    /// Ends the watch when its time is over, with a bookmark if the client wants bookmarks and the watch was
    /// not short.
    fn finish(&mut self) {
        let Some(mut watcher) = self.watcher.take() else {
            return;
        };
        if self.bookmarks == Bookmarks::Welcome
            && self.ends_with_bookmark
            && let Some(version) = watcher.bookmark()
        {
            self.bookmark(version, InitialEnd::No);
        }
    }

    /// Queues an error as the last frame of the watch.
    fn fail(&mut self, error: &ApiError) {
        let (tenant, row) = (self.tenant.clone(), &self.row);
        let call = Call::new(&tenant, &self.request, row, &self.services);
        self.ready.push_back(failure(&call, self.form, error));
    }

    /// Queues the frames of the events that concern this watcher.
    async fn events(&mut self, events: &[Arc<Event>]) {
        // Borrowed, not cloned: all watchers of a plane would count the same references.
        let row = &self.row;
        let call = Call::new(&self.tenant, &self.request, row, &self.services);
        if row.strategy.converter().is_some() {
            let objects = events.iter().flat_map(|event| {
                let objects = [event.previous(), event.current()];
                objects.into_iter().flatten()
            });
            // Boxed, because the futures of watches of other kinds are much smaller.
            let converted = Box::pin(conversion::ahead(&call, objects)).await;
            if let Err(error) = converted {
                self.ready.push_back(failure(&call, self.form, &error));
                self.watcher = None;
                return;
            }
        }
        let (mut frames, mut gathered) = (Vec::new(), 0);
        let mut progress = WatchProgress::Initial;
        for event in events {
            let Some(kind) = kind_for(&self.selection, row, event) else {
                continue;
            };
            let columns = std::mem::replace(&mut self.columns, Columns::Known);
            match event_frame(&call, self.form, columns, event, kind) {
                Ok(frame) => {
                    gathered += frame.len();
                    frames.push(frame);
                    progress = WatchProgress::Events(event.version().raw());
                }
                Err(error) => {
                    frames.push(self.form.error(&call, &error));
                    progress = WatchProgress::Failed;
                    self.watcher = None;
                    break;
                }
            }
            // A replica between owner and client buffers each chunk completely, so chunks are
            // limited.
            if gathered >= BATCH_BYTES {
                self.ready.extend(chunk_of(&mut frames, progress));
                gathered = 0;
            }
        }
        self.ready.extend(chunk_of(&mut frames, progress));
    }

    /// Queues a bookmark.
    fn bookmark(&mut self, version: Version, end: InitialEnd) {
        let bytes = self.bookmark_frame(version, end);
        self.ready.push_back(WatchChunk {
            bytes,
            progress: WatchProgress::Bookmark(version.raw()),
        });
    }

    fn bookmark_frame(&mut self, version: Version, end: InitialEnd) -> Bytes {
        let row = &self.row;
        let version = version.to_string();
        let tenant = self.tenant.clone();
        let call = Call::new(&tenant, &self.request, row, &self.services);
        let object: Vec<u8> = match self.form.wish.shape {
            Shape::Whole => whole_bookmark(row, &version, end),
            Shape::Metadata(api, _) => partial_bookmark(api, &version, end),
            Shape::Table(api) => {
                let included = match (self.form.include, end) {
                    (RowObject::Whole, _) => whole_bookmark(row, &version, end),
                    (RowObject::None, InitialEnd::No) => b"null".to_vec(),
                    // The row that ends the initial events always says so.
                    (RowObject::Metadata, _) | (RowObject::None, InitialEnd::Here) => {
                        partial_bookmark(api, &version, end)
                    }
                };
                let mut table = TableWriter::new(&call, api, self.form.include);
                let list_meta = representation::json_object(&[("resourceVersion", &version)]);
                table.begin(list_meta.as_bytes(), self.columns);
                table.bookmark_row(&included);
                self.columns = Columns::Known;
                table.finish()
            }
        };
        let frame = self.form.wrap(&call, "BOOKMARK", &[object.into()]);
        frame.unwrap_or_else(|error| self.form.error(&call, &error))
    }
}

/// Returns a bookmark as an object of its kind.
fn whole_bookmark(row: &Resource, version: &str, end: InitialEnd) -> Vec<u8> {
    let schemas = &row.schemas;
    let mut tree = schemas.get(row.definition).zero().clone();
    row.strategy.fill_empty(&mut tree);
    tree.set(&["metadata", "resourceVersion"], version);
    if end == InitialEnd::Here {
        tree.set(
            &["metadata", "annotations", "k8s.io/initial-events-end"],
            "true",
        );
    }
    let body = schemas.to_vec(row.definition, &tree);
    representation::whole(row, body.into()).concat()
}

/// Returns a bookmark as metadata alone.
fn partial_bookmark(api: MetaVersion, version: &str, end: InitialEnd) -> Vec<u8> {
    let mut meta = representation::json_object(&[("resourceVersion", version)]);
    if end == InitialEnd::Here {
        meta.pop();
        meta.push_str(",\"annotations\":{\"k8s.io/initial-events-end\":\"true\"}}");
    }
    let api = api.api_version();
    format!("{{\"kind\":\"PartialObjectMetadata\",\"apiVersion\":\"{api}\",\"metadata\":{meta}}}")
        .into_bytes()
}

/// Returns the last chunk of a watch that fails.
fn failure(call: &Call<'_>, form: Form, error: &ApiError) -> WatchChunk {
    WatchChunk {
        bytes: form.error(call, error),
        progress: WatchProgress::Failed,
    }
}

/// Removes the frames and returns them as one chunk; `None` if there are none.
fn chunk_of(frames: &mut Vec<Bytes>, progress: WatchProgress) -> Option<WatchChunk> {
    let bytes = match frames.len() {
        0 | 1 => frames.pop()?,
        _ => std::mem::take(frames).concat().into(),
    };
    Some(WatchChunk { bytes, progress })
}

/// The choice whether a bookmark marks the end of the initial events.
#[derive(Clone, Copy, PartialEq, Eq)]
enum InitialEnd {
    Here,
    No,
}
