//! A client's watch that continues when its plane moves to another replica.
//!
//! The replica to which the client is connected keeps the client's stream. The events come from a
//! *source*: a watch of this replica or one at another replica. If the source ends because the
//! plane moved, or because its connection broke, the relay opens the next source after the last
//! version that it sent to the client.
//!
//! Whole lines are passed on as they arrive. A part of an event whose connection broke is never
//! sent, so the client gets no event twice and no part of one. [`WatchReader`] knows up to which
//! version the client has events: from the records of the other replica, or from the lines
//! themselves if that replica is too old for records. If it cannot know, the watch ends as any
//! watch may, and the client resumes.

use std::collections::VecDeque;
use std::future::Future;
use std::pin::Pin;
use std::task::{Context, Poll};

use bytes::{Bytes, BytesMut};
use http::HeaderMap;
use http_body::Body as _;
use polyplane_apimachinery::json;
use polyplane_registry::WatchProgress;
use tokio_util::sync::WaitForCancellationFutureOwned;

use crate::answer::body::Watch;
use crate::peer::channel::stream::PeerStream;
use crate::peer::headers::{MOVED, MovedTo, SENT_UP_TO};
use crate::request::seat::Seat;
use crate::watch::position::{BookmarkFilter, ClientPosition, Visibility};
use crate::watch::record::{MalformedRecord, WatchForm, WatchRecords};

/// Longest line that is kept until its end arrives, in bytes. No event is longer; without the limit
/// a peer could use up the memory.
const LINE_BYTES_MAX: usize = 32 * 1024 * 1024;
/// Sources in a row that a watch opens without getting an event. Without the limit, two replicas
/// that disagree about the owner would keep a watch busy forever.
const REOPENED_WITHOUT_EVENTS_MAX: u32 = 16;

/// The outcome of opening the next source of a watch.
pub(crate) enum Reopened {
    /// The next source.
    Source(Source),
    /// The watch ends with this frame.
    Last(Bytes),
    /// The watch ends.
    Over,
}

type Opening = Pin<Box<dyn Future<Output = Reopened> + Send>>;

/// Opens the rest of a watch at the next source.
pub(crate) trait Reopen: Send + Sync {
    /// Opens a watch of the changes after version `sent_up_to`, at whichever replica serves the
    /// plane. `hint` names the replica to try first.
    fn reopen(&self, sent_up_to: u64, hint: Option<MovedTo>) -> Opening;
}

/// The place from which the events of a watch come.
pub(crate) enum Source {
    /// This replica.
    Here(Box<Watch>),
    /// Another replica.
    There(Box<RemoteWatch>),
    /// The next source is being opened.
    Opening(Opening),
    /// No source: the watch has ended.
    Over,
}

/// A watch at another replica.
pub(crate) struct RemoteWatch {
    pub stream: PeerStream,
    /// Resolves when that replica leaves the ring.
    pub gone: Pin<Box<WaitForCancellationFutureOwned>>,
    pub reader: WatchReader,
    /// Counts the watch among the forwarded ones.
    pub _seat: Option<Seat>,
}

/// The stream of events to one client.
pub(crate) struct Relay {
    source: Source,
    session: Box<dyn Reopen>,
    ending: Pin<Box<WaitForCancellationFutureOwned>>,
    reopened_without_events: u32,
}

impl Relay {
    pub(crate) fn new(
        source: Source,
        session: Box<dyn Reopen>,
        ending: WaitForCancellationFutureOwned,
    ) -> Self {
        Self {
            source,
            session,
            ending: Box::pin(ending),
            reopened_without_events: 0,
        }
    }

    pub(crate) fn into_source(self) -> Source {
        self.source
    }

    pub(crate) fn is_over(&self) -> bool {
        matches!(self.source, Source::Over)
    }

    /// Returns the next bytes for the client; `None` at the end of the watch.
    pub(crate) fn poll(&mut self, context: &mut Context<'_>) -> Poll<Option<Bytes>> {
        loop {
            let gone = match &mut self.source {
                Source::Over => return Poll::Ready(None),
                Source::Here(watch) => match watch.poll(context) {
                    Poll::Pending => return Poll::Pending,
                    Poll::Ready(Some(Ok(bytes))) => {
                        self.reopened_without_events = 0;
                        return Poll::Ready(Some(bytes));
                    }
                    Poll::Ready(Some(Err(_)) | None) => SourceEnd {
                        sent_up_to: watch.moved().flatten(),
                        hint: None,
                    },
                },
                Source::There(there) => match there.poll(context) {
                    Poll::Pending => {
                        std::task::ready!(self.ending.as_mut().poll(context));
                        self.source = Source::Over;
                        return Poll::Ready(None);
                    }
                    Poll::Ready(Ok(bytes)) => {
                        self.reopened_without_events = 0;
                        return Poll::Ready(Some(bytes));
                    }
                    Poll::Ready(Err(gone)) => gone,
                },
                Source::Opening(opening) => match opening.as_mut().poll(context) {
                    Poll::Ready(Reopened::Source(source)) => {
                        self.source = source;
                        continue;
                    }
                    Poll::Ready(Reopened::Last(frame)) => {
                        self.source = Source::Over;
                        return Poll::Ready(Some(frame));
                    }
                    Poll::Ready(Reopened::Over) => SourceEnd::for_good(),
                    Poll::Pending => {
                        std::task::ready!(self.ending.as_mut().poll(context));
                        self.source = Source::Over;
                        return Poll::Ready(None);
                    }
                },
            };
            self.reopened_without_events += 1;
            self.source = match gone.sent_up_to {
                Some(sent_up_to) if self.reopened_without_events <= REOPENED_WITHOUT_EVENTS_MAX => {
                    Source::Opening(self.session.reopen(sent_up_to, gone.hint))
                }
                _ => Source::Over,
            };
        }
    }
}

/// The end of a source, and the version at which the next one begins.
struct SourceEnd {
    /// The version to resume after; `None` if the watch ends.
    sent_up_to: Option<u64>,
    hint: Option<MovedTo>,
}

impl SourceEnd {
    fn for_good() -> Self {
        Self {
            sent_up_to: None,
            hint: None,
        }
    }
}

impl RemoteWatch {
    fn poll(&mut self, context: &mut Context<'_>) -> Poll<Result<Bytes, SourceEnd>> {
        loop {
            if let Some(bytes) = self.reader.next() {
                return Poll::Ready(Ok(bytes));
            }
            match Pin::new(&mut self.stream).poll_frame(context) {
                Poll::Ready(Some(Ok(frame))) => match frame.into_data() {
                    Ok(data) => {
                        if let Err(error) = self.reader.feed(data) {
                            tracing::debug!(%error, "a watch cannot be resumed");
                            return Poll::Ready(Err(SourceEnd::for_good()));
                        }
                    }
                    Err(frame) => {
                        let trailers = frame.into_trailers().unwrap_or_default();
                        return Poll::Ready(Err(self.end_of(&trailers)));
                    }
                },
                // The other replica ended the watch in good order: its time was up.
                Poll::Ready(None) => return Poll::Ready(Err(SourceEnd::for_good())),
                Poll::Ready(Some(Err(error))) => {
                    tracing::debug!(%error, "the connection to the replica that sends a watch broke");
                    return Poll::Ready(Err(self.broken()));
                }
                Poll::Pending => {
                    std::task::ready!(self.gone.as_mut().poll(context));
                    return Poll::Ready(Err(self.broken()));
                }
            }
        }
    }

    fn broken(&self) -> SourceEnd {
        SourceEnd {
            sent_up_to: self.reader.sent_up_to(),
            hint: None,
        }
    }

    fn end_of(&self, trailers: &HeaderMap) -> SourceEnd {
        let Some(moved) = trailers.get(MOVED) else {
            return SourceEnd::for_good();
        };
        let text = trailers
            .get(SENT_UP_TO)
            .and_then(|value| value.to_str().ok());
        let sent_up_to = text.and_then(|text| text.parse().ok());
        SourceEnd {
            sent_up_to: sent_up_to.or_else(|| self.reader.sent_up_to()),
            hint: Some(MovedTo::parse(moved)),
        }
    }
}

/// Reads the form in which another replica sends a watch.
#[derive(Debug)]
pub(crate) enum WatchReader {
    /// The other replica is too old for records.
    Lines(WatchLines),
    Records(WatchRecords),
}

impl WatchReader {
    /// Creates a reader for a watch in `form`, whose client begins at `position`.
    pub(crate) fn new(form: WatchForm, position: ClientPosition) -> Self {
        match form {
            WatchForm::Lines => Self::Lines(WatchLines::new(position)),
            WatchForm::Records => Self::Records(WatchRecords::new(position)),
        }
    }

    pub(super) fn feed(&mut self, data: Bytes) -> Result<(), MalformedRecord> {
        match self {
            Self::Lines(lines) => {
                lines.feed(data);
                Ok(())
            }
            Self::Records(records) => records.feed(data),
        }
    }

    /// Returns the next bytes for the client, which are whole lines.
    pub(super) fn next(&mut self) -> Option<Bytes> {
        match self {
            Self::Lines(lines) => lines.ready.pop_front(),
            Self::Records(records) => records.next(),
        }
    }

    /// Returns the version to resume after if the source breaks now, or `None` if the watch cannot
    /// be resumed.
    pub(super) fn sent_up_to(&self) -> Option<u64> {
        match self {
            Self::Lines(lines) => lines.position.sent_up_to(),
            Self::Records(records) => records.position().sent_up_to(),
        }
    }
}

/// Reads the lines of a watch from a replica that is too old for records: parses the version of
/// each event, and removes bookmarks that the client did not request.
#[derive(Debug)]
pub(crate) struct WatchLines {
    position: ClientPosition,
    /// The beginning of a line whose end has not arrived.
    begun: BytesMut,
    ready: VecDeque<Bytes>,
}

impl WatchLines {
    fn new(position: ClientPosition) -> Self {
        Self {
            position,
            begun: BytesMut::new(),
            ready: VecDeque::new(),
        }
    }

    fn feed(&mut self, data: Bytes) {
        let Some(last) = data.iter().rposition(|byte| *byte == b'\n') else {
            self.begin(&data);
            return;
        };
        let mut whole = data;
        let rest = whole.split_off(last + 1);
        if !self.begun.is_empty() {
            // The line in progress ends with the first newline in these bytes.
            let first = whole.iter().position(|byte| *byte == b'\n').unwrap_or(last);
            let end = whole.split_to(first + 1);
            self.begun.extend_from_slice(&end);
            let line = std::mem::take(&mut self.begun).freeze();
            self.take(line);
        }
        if !whole.is_empty() {
            self.take(whole);
        }
        if !rest.is_empty() {
            self.begin(&rest);
        }
    }

    fn begin(&mut self, part: &[u8]) {
        self.begun.extend_from_slice(part);
        if self.begun.len() > LINE_BYTES_MAX {
            // Longer than any event. Pass it on as it is; the watch cannot be resumed after it.
            self.position.advance(WatchProgress::Failed);
            self.ready
                .push_back(std::mem::take(&mut self.begun).freeze());
        }
    }

    /// Adds complete lines to those that are ready for the client.
    fn take(&mut self, lines: Bytes) {
        let hides_no_more = self.position.bookmarks_shown() != BookmarkFilter::None;
        if hides_no_more && !self.position.is_initial() {
            // No line is removed any more, and versions rise, so only the last line has to be
            // parsed.
            let before = &lines[..lines.len() - 1];
            let start = before
                .iter()
                .rposition(|byte| *byte == b'\n')
                .map_or(0, |newline| newline + 1);
            self.advance(&lines[start..]);
            self.ready.push_back(lines);
            return;
        }
        let mut rest = lines;
        let mut kept = 0;
        while kept < rest.len() {
            let length = rest[kept..]
                .iter()
                .position(|byte| *byte == b'\n')
                .map_or(rest.len() - kept, |newline| newline + 1);
            if self.advance(&rest[kept..kept + length]) == Visibility::Hidden {
                let shown = rest.split_to(kept);
                let _ = rest.split_to(length);
                if !shown.is_empty() {
                    self.ready.push_back(shown);
                }
                kept = 0;
            } else {
                kept += length;
            }
        }
        if !rest.is_empty() {
            self.ready.push_back(rest);
        }
    }

    fn advance(&mut self, line: &[u8]) -> Visibility {
        let progress = progress_of(line, self.position.is_initial());
        self.position.advance(progress)
    }
}

/// Returns up to where a client that has read this line has all events.
fn progress_of(line: &[u8], is_initial: bool) -> WatchProgress {
    if line.starts_with(b"{\"type\":\"ERROR\"") {
        return WatchProgress::Failed;
    }
    let is_bookmark = line.starts_with(b"{\"type\":\"BOOKMARK\"");
    if is_initial && !is_bookmark {
        // Initial events are ordered by key, so their versions do not tell yet.
        return WatchProgress::Initial;
    }
    let path = ["object", "metadata", "resourceVersion"];
    match json::scan::string_at(line, &path).and_then(|text| text.parse().ok()) {
        Some(version) if is_bookmark => WatchProgress::Bookmark(version),
        Some(version) => WatchProgress::Events(version),
        // No replica writes such a line. End the watch rather than resume at a wrong version.
        None => WatchProgress::Failed,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn event(kind: &str, version: u64) -> String {
        format!(
            "{{\"type\":\"{kind}\",\"object\":{{\"kind\":\"Pod\",\"metadata\":{{\"name\":\"a\",\
             \"annotations\":{{\"resourceVersion\":\"1\"}},\"resourceVersion\":\"{version}\"}}}}}}\n"
        )
    }

    fn shown(lines: &mut WatchLines) -> String {
        let bytes: Vec<u8> = lines.ready.drain(..).flatten().collect();
        String::from_utf8(bytes).expect("text")
    }

    #[test]
    fn initial_events_are_complete_only_at_their_bookmark() {
        let mut lines = WatchLines::new(ClientPosition::new(BookmarkFilter::None, None));
        lines.feed((event("ADDED", 90) + &event("ADDED", 20)).into());
        assert_eq!(lines.position.sent_up_to(), None);
        lines.feed((event("BOOKMARK", 95) + &event("ADDED", 96)).into());
        assert_eq!(lines.position.sent_up_to(), Some(96));
        let all = event("ADDED", 90) + &event("ADDED", 20) + &event("ADDED", 96);
        assert_eq!(shown(&mut lines), all);
    }

    #[test]
    fn a_client_gets_the_bookmarks_it_requested() {
        let text = event("ADDED", 5) + &event("BOOKMARK", 7) + &event("BOOKMARK", 9);
        for (bookmarks_shown, count) in [
            (BookmarkFilter::None, 0),
            (BookmarkFilter::AfterInitial, 1),
            (BookmarkFilter::All, 2),
        ] {
            let mut lines = WatchLines::new(ClientPosition::new(bookmarks_shown, None));
            lines.feed(text.clone().into());
            assert_eq!(lines.position.sent_up_to(), Some(9));
            assert_eq!(
                shown(&mut lines).matches("BOOKMARK").count(),
                count,
                "{bookmarks_shown:?}"
            );
        }
    }

    #[test]
    fn nothing_goes_on_after_a_failure() {
        let mut lines = WatchLines::new(ClientPosition::new(BookmarkFilter::All, Some(3)));
        lines.feed(
            "{\"type\":\"ERROR\",\"object\":{\"kind\":\"Status\",\"metadata\":{},\"code\":410}}\n"
                .into(),
        );
        assert_eq!(lines.position.sent_up_to(), None);
        assert!(shown(&mut lines).contains("410"));
    }

    #[test]
    fn an_event_is_passed_on_whole_or_not_at_all() {
        let mut lines = WatchLines::new(ClientPosition::new(BookmarkFilter::All, Some(3)));
        let text = event("ADDED", 4);
        lines.feed(Bytes::from(text[..20].to_owned()));
        assert_eq!(
            (shown(&mut lines).as_str(), lines.position.sent_up_to()),
            ("", Some(3))
        );
        lines.feed(Bytes::from(text[20..].to_owned()));
        assert_eq!(
            (shown(&mut lines), lines.position.sent_up_to()),
            (text, Some(4))
        );
    }

    proptest! {
        /// However the network divides the stream, the client gets the same bytes, and always whole
        /// lines.
        #[test]
        fn cuts_change_nothing(
            cuts in proptest::collection::vec(1_usize..200, 1..40),
            bookmarks in proptest::collection::vec(any::<bool>(), 1..12),
            bookmarks_shown in prop_oneof![Just(BookmarkFilter::None), Just(BookmarkFilter::AfterInitial), Just(BookmarkFilter::All)],
        ) {
            let text: String = bookmarks
                .iter()
                .enumerate()
                .map(|(at, is)| event(if *is { "BOOKMARK" } else { "ADDED" }, at as u64 + 10))
                .collect();
            let mut at_once = WatchLines::new(ClientPosition::new(bookmarks_shown, Some(1)));
            at_once.feed(text.clone().into());
            let mut cut = WatchLines::new(ClientPosition::new(bookmarks_shown, Some(1)));
            let mut rest = Bytes::from(text);
            let mut seen = String::new();
            for length in cuts.iter().cycle() {
                if rest.is_empty() {
                    break;
                }
                cut.feed(rest.split_to((*length).min(rest.len())));
                let more = shown(&mut cut);
                prop_assert!(more.is_empty() || more.ends_with('\n'));
                seen.push_str(&more);
            }
            prop_assert_eq!(seen, shown(&mut at_once));
            prop_assert_eq!(cut.position.sent_up_to(), at_once.position.sent_up_to());
        }
    }
}
