//! The older form of a watch between replicas, for one that is too old for records: bare lines, as
//! a client gets them. A forwarding replica has to parse the version of each event, and to remove
//! bookmarks that the client did not request. `record` has the present form.

use std::collections::VecDeque;

use bytes::{Bytes, BytesMut};
use polyplane_apimachinery::json;
use polyplane_registry::WatchProgress;

use crate::watch::position::{BookmarkFilter, ClientPosition, Visibility};

/// Longest line that is kept until its end arrives, in bytes. No event is longer; without the limit
/// a peer could use up the memory.
const LINE_BYTES_MAX: usize = 32 * 1024 * 1024;

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
    pub(super) fn new(position: ClientPosition) -> Self {
        Self {
            position,
            begun: BytesMut::new(),
            ready: VecDeque::new(),
        }
    }

    pub(super) fn feed(&mut self, data: Bytes) {
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

    /// Returns the next bytes for the client, which are whole lines.
    pub(super) fn next(&mut self) -> Option<Bytes> {
        self.ready.pop_front()
    }

    pub(super) fn begun_bytes(&self) -> usize {
        self.begun.len()
    }

    pub(super) fn position(&self) -> &ClientPosition {
        &self.position
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
