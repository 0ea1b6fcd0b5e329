//! Counts requests and watches with upstream's labels.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::task::{Context, Poll};

use http::header::CONTENT_TYPE;
use http::{HeaderMap, HeaderValue, Method};
use parking_lot::Mutex;
use polyplane_fairness::CountedWatch;
use polyplane_registry::Verb;
use polyplane_registry::request::parameters::{DRY_RUN, Query};

use crate::answer::body::{WatchCounter, WatchGauge};
use crate::operations::metrics::{EventCounter, Labels};
use crate::request::audited::Audited;
use crate::request::charge::PieceTurn;
use crate::request::request_info::{CONNECTED, RequestInfo};
use crate::request::turn::Queued;
use crate::server_state::ServerState;
use crate::watch::open_watches::OpenWatchEntry;

/// Who has named a kind.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum KindOrigin {
    BuiltIn,
    /// An object of the root plane, or of the only plane that the server has.
    CustomOfRoot,
    /// An object of another plane.
    CustomOfPlane,
}

impl Labels<'_> {
    /// Returns the labels under which a request is counted whose kind exists. Users of planes name custom kinds,
    /// and could add any number of series or show their names to the operator.
    pub(crate) fn of_kind(self, origin: KindOrigin) -> Self {
        match origin {
            KindOrigin::BuiltIn => self,
            KindOrigin::CustomOfRoot => Self {
                is_custom: true,
                ..self
            },
            KindOrigin::CustomOfPlane => self.other(),
        }
    }

    /// Returns the labels under which a request is counted whose kind does not exist. Clients could invent any
    /// number of such kinds.
    pub(crate) fn without_kind(self) -> Self {
        Self {
            verb: self.verb,
            ..Self::default()
        }
    }
}

/// Returns the labels that a request has by its head.
pub(crate) fn labels_of<'a>(
    method: &Method,
    headers: &HeaderMap,
    info: &'a RequestInfo<'a>,
    query: &Query,
) -> Labels<'a> {
    let by_method = match *method {
        Method::GET => "GET",
        Method::HEAD => "HEAD",
        Method::POST => "POST",
        Method::PUT => "PUT",
        Method::DELETE => "DELETE",
        Method::PATCH => "PATCH",
        _ => "other",
    };
    let RequestInfo::Resource(info) = info else {
        return Labels {
            verb: by_method,
            ..Labels::default()
        };
    };
    let applies = || {
        let content_type = headers.get(CONTENT_TYPE).map(HeaderValue::as_bytes);
        content_type.is_some_and(|text| text.starts_with(b"application/apply-patch"))
    };
    let verb = match info.verb {
        _ if CONNECTED.contains(&info.subresource) => "CONNECT",
        Some(Verb::List) => "LIST",
        Some(Verb::Watch) => "WATCH",
        Some(Verb::DeleteCollection) => "DELETECOLLECTION",
        Some(Verb::Connect) => "CONNECT",
        Some(Verb::Patch) if applies() => "APPLY",
        _ => by_method,
    };
    let wishes = DRY_RUN.read(query).try_fold("", |_, text| match text {
        "All" => Some("All"),
        _ => None,
    });
    let dry_run = wishes.unwrap_or("invalid");
    let scope = if !info.name.is_empty() || info.verb == Some(Verb::Create) {
        "resource"
    } else if info.namespace.is_empty() {
        "cluster"
    } else {
        "namespace"
    };
    Labels {
        verb,
        group: info.group,
        version: info.version,
        resource: info.resource,
        subresource: info.subresource,
        scope,
        dry_run,
        is_custom: false,
    }
}

/// An open watch, as the metrics count it.
pub(crate) struct OpenWatch {
    state: Arc<ServerState>,
    events: EventCounter,
    group: String,
    version: String,
    resource: String,
    scope: &'static str,
    is_custom: bool,
    /// The plane's own count; `None` if another replica answers the watch.
    counted: Option<CountedWatch>,
    /// The watch's place in the queue for its next turn.
    place: Option<Queued>,
    /// The record of the request.
    audited: Mutex<Option<Audited>>,
    /// The entry among the watches that end with their callers' access.
    _entry: OpenWatchEntry,
}

impl OpenWatch {
    /// Counts a watch from now until the gauge is dropped.
    pub(crate) fn count(
        state: &Arc<ServerState>,
        labels: Labels<'_>,
        counted: Option<CountedWatch>,
        audited: Option<Audited>,
        entry: OpenWatchEntry,
    ) -> WatchGauge {
        let watch = Self {
            state: Arc::clone(state),
            events: state.metrics.watch_events(labels),
            group: labels.group.to_owned(),
            version: labels.version.to_owned(),
            resource: labels.resource.to_owned(),
            scope: labels.scope,
            is_custom: labels.is_custom,
            counted,
            place: None,
            audited: Mutex::new(audited),
            _entry: entry,
        };
        state.metrics.running(watch.labels(), 1);
        WatchGauge(Box::new(watch))
    }

    fn labels(&self) -> Labels<'_> {
        Labels {
            verb: "WATCH",
            group: &self.group,
            version: &self.version,
            resource: &self.resource,
            subresource: "",
            scope: self.scope,
            dry_run: "",
            is_custom: self.is_custom,
        }
    }
}

impl WatchCounter for OpenWatch {
    fn poll_turn(&mut self, context: &mut Context<'_>) -> Poll<Option<PieceTurn>> {
        let Some(counted) = &self.counted else {
            return Poll::Ready(None);
        };
        let (gate, now) = (&self.state.gate, self.state.now());
        let turn = PieceTurn::poll(gate, counted.meter(), &mut self.place, context, now);
        turn.map(Some)
    }

    fn sent(&self, count: u64) {
        self.events.fetch_add(count, Ordering::Relaxed);
    }

    fn moved(&self) {
        if let Some(audited) = self.audited.lock().take() {
            audited.forget();
        }
    }

    fn over(&self) {
        self.state.metrics.running(self.labels(), -1);
        if let Some(audited) = self.audited.lock().take() {
            // The stream has ended, so nobody is left who could wait.
            drop(audited.complete(200));
        }
    }
}
