//! A watch that goes on when its plane changes hands.
//!
//! The first replica, the one the client is connected to, holds the client's stream. Behind it is
//! a watch of its own or one of another replica; when that one ends because the plane moved, or
//! because its connection broke, the next one begins where the last one stopped being told.
//!
//! Whole lines are passed on as they came: an event that is cut off by a broken connection is never
//! begun, so nothing is sent twice and nothing half. [`Lines`] knows up to which version the client
//! was told; where it cannot know, the watch ends as any watch may, and the client resumes.

use std::collections::VecDeque;
use std::future::Future;
use std::pin::Pin;
use std::task::{Context, Poll};

use bytes::{Bytes, BytesMut};
use http::HeaderMap;
use http_body::Body as _;
use polyplane_apimachinery::json;
use tokio_util::sync::WaitForCancellationFutureOwned;

use crate::answer::body::Watch;
use crate::peer::channel::stream::PeerStream;
use crate::peer::headers::{MOVED, MovedTo, TOLD};
use crate::request::limits::Seat;

/// Longest line that is held back until its end is there. No event is longer.
const LINE_BYTES_MAX: usize = 32 * 1024 * 1024;
/// Times a watch may be opened anew without anything having come of it.
const FRUITLESS_MAX: u32 = 16;

/// What is opened when a source of a watch is gone.
pub(crate) enum Reopened {
    /// The watch goes on.
    Source(Source),
    /// The watch ends with this last frame.
    Last(Bytes),
    /// The watch ends.
    Over,
}

type Opening = Pin<Box<dyn Future<Output = Reopened> + Send>>;

/// Opens the rest of a watch.
pub(crate) trait Reopen: Send + Sync {
    /// Opens what comes after version `told`, wherever the plane is; `hint` is who may know.
    fn reopen(&self, told: u64, hint: Option<MovedTo>) -> Opening;
}

/// Where the events of a watch come from.
pub(crate) enum Source {
    /// This replica.
    Here(Box<Watch>),
    /// Another replica.
    There(Box<There>),
    /// Somebody, soon.
    Opening(Opening),
    /// Nobody any more.
    Over,
}

/// A watch at another replica.
pub(crate) struct There {
    pub stream: PeerStream,
    /// Comes when that replica is no member any more.
    pub gone: Pin<Box<WaitForCancellationFutureOwned>>,
    pub lines: Lines,
    /// Counts it among the forwarded watches.
    pub _seat: Option<Seat>,
}

/// The stream of one client.
pub(crate) struct Relay {
    source: Source,
    session: Box<dyn Reopen>,
    ending: Pin<Box<WaitForCancellationFutureOwned>>,
    fruitless: u32,
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
            fruitless: 0,
        }
    }

    pub(crate) fn into_source(self) -> Source {
        self.source
    }

    pub(crate) fn is_over(&self) -> bool {
        matches!(self.source, Source::Over)
    }

    /// The next bytes for the client; none at the end.
    pub(crate) fn poll(&mut self, context: &mut Context<'_>) -> Poll<Option<Bytes>> {
        loop {
            let gone = match &mut self.source {
                Source::Over => return Poll::Ready(None),
                Source::Here(watch) => match watch.poll(context) {
                    Poll::Pending => return Poll::Pending,
                    Poll::Ready(Some(Ok(bytes))) => {
                        self.fruitless = 0;
                        return Poll::Ready(Some(bytes));
                    }
                    Poll::Ready(Some(Err(_)) | None) => Gone {
                        told: watch.moved().flatten(),
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
                        self.fruitless = 0;
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
                    Poll::Ready(Reopened::Over) => Gone::for_good(),
                    Poll::Pending => {
                        std::task::ready!(self.ending.as_mut().poll(context));
                        self.source = Source::Over;
                        return Poll::Ready(None);
                    }
                },
            };
            self.fruitless += 1;
            self.source = match gone.told {
                Some(told) if self.fruitless <= FRUITLESS_MAX => {
                    Source::Opening(self.session.reopen(told, gone.hint))
                }
                _ => Source::Over,
            };
        }
    }
}

/// A source that gives no more.
struct Gone {
    /// Where to go on; none if the watch is over.
    told: Option<u64>,
    hint: Option<MovedTo>,
}

impl Gone {
    fn for_good() -> Self {
        Self {
            told: None,
            hint: None,
        }
    }
}

impl There {
    fn poll(&mut self, context: &mut Context<'_>) -> Poll<Result<Bytes, Gone>> {
        loop {
            if let Some(bytes) = self.lines.ready.pop_front() {
                return Poll::Ready(Ok(bytes));
            }
            match Pin::new(&mut self.stream).poll_frame(context) {
                Poll::Ready(Some(Ok(frame))) => match frame.into_data() {
                    Ok(data) => self.lines.feed(data),
                    Err(frame) => {
                        let trailers = frame.into_trailers().unwrap_or_default();
                        return Poll::Ready(Err(self.farewell(&trailers)));
                    }
                },
                // It ended in peace: its time was up.
                Poll::Ready(None) => return Poll::Ready(Err(Gone::for_good())),
                Poll::Ready(Some(Err(error))) => {
                    tracing::debug!(%error, "the replica behind a watch is gone");
                    return Poll::Ready(Err(self.broken()));
                }
                Poll::Pending => {
                    std::task::ready!(self.gone.as_mut().poll(context));
                    return Poll::Ready(Err(self.broken()));
                }
            }
        }
    }

    fn broken(&self) -> Gone {
        Gone {
            told: self.lines.told(),
            hint: None,
        }
    }

    fn farewell(&self, trailers: &HeaderMap) -> Gone {
        let Some(moved) = trailers.get(MOVED) else {
            return Gone::for_good();
        };
        let text = trailers.get(TOLD).and_then(|value| value.to_str().ok());
        let told = text.and_then(|text| text.parse().ok());
        Gone {
            told: told.or_else(|| self.lines.told()),
            hint: Some(MovedTo::parse(moved)),
        }
    }
}

/// What a client wants of the bookmarks that its replica always asks for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Wish {
    /// None.
    None,
    /// All but the one that ends the initial events, which it did not ask for.
    AfterInitial,
    /// All.
    All,
}

/// Reads what passes by: splits at lines, hides bookmarks nobody asked for, and keeps the version
/// up to which everything was told.
#[derive(Debug)]
pub(crate) struct Lines {
    wish: Wish,
    /// Everything up to here was told; none while the initial events are under way.
    told: Option<u64>,
    /// The stream said that it failed; the client knows, and there is nothing to resume.
    failed: bool,
    /// The beginning of a line whose end has not come.
    begun: BytesMut,
    ready: VecDeque<Bytes>,
}

impl Lines {
    /// `told` is where the watch begins, if it begins at a version.
    pub(crate) fn new(wish: Wish, told: Option<u64>) -> Self {
        Self {
            wish,
            told,
            failed: false,
            begun: BytesMut::new(),
            ready: VecDeque::new(),
        }
    }

    /// What the client is shown of the bookmarks.
    #[cfg(test)]
    pub(crate) fn wish(&self) -> Wish {
        self.wish
    }

    /// Where another watch goes on, should this one break now.
    pub(crate) fn told(&self) -> Option<u64> {
        self.told.filter(|_| !self.failed)
    }

    fn feed(&mut self, data: Bytes) {
        let Some(last) = data.iter().rposition(|byte| *byte == b'\n') else {
            self.begin(&data);
            return;
        };
        let mut whole = data;
        let rest = whole.split_off(last + 1);
        if !self.begun.is_empty() {
            // The line that began before ends with the first newline there is now.
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
            // No event is this long. It passes as it is, and nothing is resumed after it.
            self.failed = true;
            self.ready
                .push_back(std::mem::take(&mut self.begun).freeze());
        }
    }

    /// Takes complete lines.
    fn take(&mut self, lines: Bytes) {
        if self.wish != Wish::None && self.told.is_some() {
            // Nothing is hidden any more. Only the last line matters: versions rise.
            let before = &lines[..lines.len() - 1];
            let start = before
                .iter()
                .rposition(|byte| *byte == b'\n')
                .map_or(0, |newline| newline + 1);
            self.note(&lines[start..]);
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
            let is_hidden = self.note(&rest[kept..kept + length]);
            if is_hidden {
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

    /// Notes what a line tells; true if the client is not to see it.
    fn note(&mut self, line: &[u8]) -> bool {
        if line.starts_with(b"{\"type\":\"ERROR\"") {
            self.failed = true;
            return false;
        }
        let is_bookmark = line.starts_with(b"{\"type\":\"BOOKMARK\"");
        if !is_bookmark && self.told.is_none() {
            // One of the initial events: they come by key, not by version.
            return false;
        }
        let path = ["object", "metadata", "resourceVersion"];
        let version = json::scan::string_at(line, &path).and_then(|text| text.parse::<u64>().ok());
        let is_first = self.told.is_none();
        match version {
            Some(version) => self.told = Some(self.told.unwrap_or(0).max(version)),
            // Nothing of our own making; better to end than to guess.
            None => self.failed = true,
        }
        is_bookmark
            && match self.wish {
                Wish::None => true,
                Wish::AfterInitial => is_first,
                Wish::All => false,
            }
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

    fn shown(lines: &mut Lines) -> String {
        let bytes: Vec<u8> = lines.ready.drain(..).flatten().collect();
        String::from_utf8(bytes).expect("text")
    }

    #[test]
    fn initial_events_are_told_only_when_a_bookmark_says_so() {
        let mut lines = Lines::new(Wish::None, None);
        lines.feed((event("ADDED", 90) + &event("ADDED", 20)).into());
        assert_eq!(lines.told(), None);
        lines.feed((event("BOOKMARK", 95) + &event("ADDED", 96)).into());
        assert_eq!(lines.told(), Some(96));
        let all = event("ADDED", 90) + &event("ADDED", 20) + &event("ADDED", 96);
        assert_eq!(shown(&mut lines), all);
    }

    #[test]
    fn a_client_gets_the_bookmarks_it_asked_for() {
        let text = event("ADDED", 5) + &event("BOOKMARK", 7) + &event("BOOKMARK", 9);
        for (wish, count) in [(Wish::None, 0), (Wish::AfterInitial, 1), (Wish::All, 2)] {
            let mut lines = Lines::new(wish, None);
            lines.feed(text.clone().into());
            assert_eq!(lines.told(), Some(9));
            assert_eq!(
                shown(&mut lines).matches("BOOKMARK").count(),
                count,
                "{wish:?}"
            );
        }
    }

    #[test]
    fn nothing_goes_on_after_a_failure() {
        let mut lines = Lines::new(Wish::All, Some(3));
        lines.feed(
            "{\"type\":\"ERROR\",\"object\":{\"kind\":\"Status\",\"metadata\":{},\"code\":410}}\n"
                .into(),
        );
        assert_eq!(lines.told(), None);
        assert!(shown(&mut lines).contains("410"));
    }

    #[test]
    fn an_event_is_passed_on_whole_or_not_at_all() {
        let mut lines = Lines::new(Wish::All, Some(3));
        let text = event("ADDED", 4);
        lines.feed(Bytes::from(text[..20].to_owned()));
        assert_eq!((shown(&mut lines).as_str(), lines.told()), ("", Some(3)));
        lines.feed(Bytes::from(text[20..].to_owned()));
        assert_eq!((shown(&mut lines), lines.told()), (text, Some(4)));
    }

    proptest! {
        /// However the network cuts the stream, the client sees the same, and always whole lines.
        #[test]
        fn cuts_change_nothing(
            cuts in proptest::collection::vec(1_usize..200, 1..40),
            bookmarks in proptest::collection::vec(any::<bool>(), 1..12),
            wish in prop_oneof![Just(Wish::None), Just(Wish::AfterInitial), Just(Wish::All)],
        ) {
            let text: String = bookmarks
                .iter()
                .enumerate()
                .map(|(at, is)| event(if *is { "BOOKMARK" } else { "ADDED" }, at as u64 + 10))
                .collect();
            let mut at_once = Lines::new(wish, Some(1));
            at_once.feed(text.clone().into());
            let mut cut = Lines::new(wish, Some(1));
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
            prop_assert_eq!(cut.told(), at_once.told());
        }
    }
}
