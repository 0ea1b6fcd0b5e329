//! The form of a watch between replicas: *records*. A record is lines, or frames of protobuf, after a
//! head; the head has the version up to which a client that has read the lines has all events. A forwarding replica
//! therefore parses no event.
//!
//! A replica that understands records says so in the head of its request, and one that sends them
//! says so in the head of its answer. An older replica says neither, so it gets and sends bare
//! lines. A watch in protobuf passes only through replicas that say that they know of it.

use std::collections::VecDeque;
use std::io::Write as _;
use std::task::{Context, Poll};

use bytes::{Buf as _, Bytes, BytesMut};
use http::{HeaderMap, HeaderValue};
use polyplane_registry::{StreamEnd, WatchChunk, WatchProgress, WatchStream};

use crate::answer::body::PASS_BYTES;
use crate::peer::headers::WATCH_RECORDS;
use crate::watch::position::{ClientPosition, Visibility};

/// The value that names this form of records. A form that is not compatible with it needs another
/// value.
const FORM: HeaderValue = HeaderValue::from_static("1");
/// Bytes of a head: one letter, then version and length as hexadecimal digits.
const HEAD_BYTES: usize = 1 + 2 * DIGITS;
const DIGITS: usize = 16;
/// Longest record, in bytes. No event and no chunk of events is longer; without the limit a peer
/// could use up the memory.
const RECORD_BYTES_MAX: usize = 33 * 1024 * 1024;
/// Bytes of a record for which memory is taken before they arrive. With more, the head of a record
/// alone would make a replica take the memory of the longest one.
const RESERVED_BYTES_MAX: usize = 1024 * 1024;

/// The form in which a watch is written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum WatchForm {
    /// Lines, as a client gets them.
    Lines,
    /// Records, for another replica.
    Records,
}

impl WatchForm {
    /// Returns the form that the head of a peer's request or answer names.
    pub(crate) fn of(headers: &HeaderMap) -> Self {
        match headers.get(WATCH_RECORDS) {
            Some(form) if form == FORM => Self::Records,
            Some(_) | None => Self::Lines,
        }
    }

    /// Names the form in the head of a request or an answer.
    pub(crate) fn announce(self, headers: &mut HeaderMap) {
        match self {
            Self::Lines => {}
            Self::Records => {
                headers.insert(WATCH_RECORDS, FORM);
            }
        }
    }
}

/// Writes the chunks of a watch in one form.
pub(crate) struct WatchWriter {
    stream: WatchStream,
    form: WatchForm,
    /// The lines of a record whose head has been returned already.
    behind_head: Option<Bytes>,
    /// The events of the chunks written since they were last taken.
    events: u64,
}

impl WatchWriter {
    pub(crate) fn new(stream: WatchStream, form: WatchForm) -> Self {
        Self {
            stream,
            form,
            behind_head: None,
            events: 0,
        }
    }

    pub(crate) fn poll_next(
        &mut self,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Bytes, StreamEnd>>> {
        if let Some(lines) = self.behind_head.take() {
            return Poll::Ready(Some(Ok(lines)));
        }
        let chunk = self.stream.as_mut().poll_next(context);
        chunk.map(|chunk| chunk.map(|chunk| chunk.and_then(|chunk| self.write(chunk))))
    }

    /// Removes and returns the number of events that were written.
    pub(crate) fn take_events(&mut self) -> u64 {
        std::mem::take(&mut self.events)
    }

    fn write(&mut self, chunk: WatchChunk) -> Result<Bytes, StreamEnd> {
        self.events += events_in(&chunk.bytes);
        if self.form == WatchForm::Lines {
            return Ok(chunk.bytes);
        }
        if chunk.bytes.len() > RECORD_BYTES_MAX {
            let bytes = chunk.bytes.len();
            tracing::error!(
                bytes,
                "events are longer than a peer accepts; their watch ends"
            );
            return Err(StreamEnd::Full);
        }
        let head = head(chunk.progress, chunk.bytes.len());
        // From this length on, a body passes lines on without a copy. Shorter ones are copied after
        // their head, because a separate chunk for each head would cost more.
        if chunk.bytes.len() >= PASS_BYTES {
            self.behind_head = Some(chunk.bytes);
            return Ok(Bytes::copy_from_slice(&head));
        }
        let mut record = BytesMut::with_capacity(HEAD_BYTES + chunk.bytes.len());
        record.extend_from_slice(&head);
        record.extend_from_slice(&chunk.bytes);
        Ok(record.freeze())
    }
}

/// Counts the events in whole lines, or in whole frames of protobuf, which begin with their length.
pub(crate) fn events_in(chunk: &[u8]) -> u64 {
    if chunk.first() == Some(&b'{') {
        return newlines(chunk);
    }
    let (mut events, mut rest) = (0, chunk);
    while let Some((length, frame)) = rest.split_first_chunk() {
        events += 1;
        let length = usize::try_from(u32::from_be_bytes(*length)).unwrap_or(usize::MAX);
        rest = frame.get(length..).unwrap_or_default();
    }
    events
}

/// Counts newlines. Each part is short enough for its sum to fit a `u8`, so that the compiler
/// vectorizes the sum.
fn newlines(chunk: &[u8]) -> u64 {
    let sum = |part: &[u8]| -> u8 { part.iter().map(|byte| u8::from(*byte == b'\n')).sum() };
    chunk.chunks(192).map(|part| u64::from(sum(part))).sum()
}

pub(crate) fn head(progress: WatchProgress, length: usize) -> [u8; HEAD_BYTES] {
    let (letter, version) = match progress {
        WatchProgress::Initial => ('I', 0),
        WatchProgress::Events(version) => ('E', version),
        WatchProgress::Bookmark(version) => ('B', version),
        WatchProgress::Failed => ('F', 0),
    };
    let mut head = [0; HEAD_BYTES];
    write!(
        &mut head[..],
        "{letter}{version:0DIGITS$x}{length:0DIGITS$x}"
    )
    .expect("no number of 64 bits has more digits");
    head
}

/// Parses a head. Returns progress and length of its record.
pub(crate) fn parse_head(head: &[u8]) -> Result<(WatchProgress, usize), MalformedRecord> {
    let number = |digits: &[u8]| {
        let digits = std::str::from_utf8(digits).map_err(|_| MalformedRecord)?;
        u64::from_str_radix(digits, 16).map_err(|_| MalformedRecord)
    };
    let (letter, digits) = head.split_first().ok_or(MalformedRecord)?;
    let (version, length) = digits.split_at_checked(DIGITS).ok_or(MalformedRecord)?;
    let version = number(version)?;
    let progress = match letter {
        b'I' => WatchProgress::Initial,
        b'E' => WatchProgress::Events(version),
        b'B' => WatchProgress::Bookmark(version),
        b'F' => WatchProgress::Failed,
        _ => return Err(MalformedRecord),
    };
    let length = usize::try_from(number(length)?).map_err(|_| MalformedRecord)?;
    if length > RECORD_BYTES_MAX {
        return Err(MalformedRecord);
    }
    Ok((progress, length))
}

/// An error: bytes are not a record. No replica that uses this form writes such bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("a peer's watch contains a malformed record")]
pub(crate) struct MalformedRecord;

/// Reads the records of a forwarded watch, removes bookmarks that the client did not request, and
/// keeps the version up to which the client has all events.
#[derive(Debug)]
pub(crate) struct WatchRecords {
    position: ClientPosition,
    /// The beginning of a record whose end has not arrived.
    begun: BytesMut,
    ready: VecDeque<Bytes>,
}

impl WatchRecords {
    pub(crate) fn new(position: ClientPosition) -> Self {
        Self {
            position,
            begun: BytesMut::new(),
            ready: VecDeque::new(),
        }
    }

    pub(super) fn begun_bytes(&self) -> usize {
        self.begun.len()
    }

    pub(super) fn position(&self) -> &ClientPosition {
        &self.position
    }

    /// Returns the next lines for the client, if any are ready.
    pub(super) fn next(&mut self) -> Option<Bytes> {
        self.ready.pop_front()
    }

    /// Adds bytes that have arrived.
    ///
    /// # Errors
    /// Returns an error if the bytes are not records; later bytes cannot be read then.
    pub(super) fn feed(&mut self, mut data: Bytes) -> Result<(), MalformedRecord> {
        while !self.begun.is_empty() && !data.is_empty() {
            self.complete(&mut data)?;
        }
        while let Some((head, rest)) = data.split_at_checked(HEAD_BYTES) {
            let (progress, length) = parse_head(head)?;
            if rest.len() < length {
                // For the whole record at once, so that it is copied only once.
                self.begun
                    .reserve((HEAD_BYTES + length).min(RESERVED_BYTES_MAX));
                break;
            }
            let mut record = data.split_to(HEAD_BYTES + length);
            record.advance(HEAD_BYTES);
            self.take(progress, record);
        }
        self.begun.extend_from_slice(&data);
        Ok(())
    }

    /// Adds the missing part of the record in progress: first of its head, then of its lines.
    fn complete(&mut self, data: &mut Bytes) -> Result<(), MalformedRecord> {
        let begun = self.begun.len();
        if begun < HEAD_BYTES {
            let more = data.split_to(data.len().min(HEAD_BYTES - begun));
            self.begun.extend_from_slice(&more);
            if self.begun.len() < HEAD_BYTES {
                return Ok(());
            }
        }
        let (progress, length) = parse_head(&self.begun[..HEAD_BYTES])?;
        let lacking = HEAD_BYTES + length - self.begun.len();
        self.begun.reserve(lacking.min(RESERVED_BYTES_MAX));
        self.begun
            .extend_from_slice(&data.split_to(data.len().min(lacking)));
        if self.begun.len() == HEAD_BYTES + length {
            let mut record = std::mem::take(&mut self.begun).freeze();
            record.advance(HEAD_BYTES);
            self.take(progress, record);
        }
        Ok(())
    }

    fn take(&mut self, progress: WatchProgress, lines: Bytes) {
        if self.position.advance(progress) == Visibility::Shown {
            self.ready.push_back(lines);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_events_of_lines_and_frames_are_counted() {
        for length in [0, 1, 190, 191, 192, 1000] {
            let lines = [&b"{"[..], &vec![b'\n'; length]].concat();
            assert_eq!(events_in(&lines), length as u64);
        }
        assert_eq!(events_in(b"{}\n{}\n"), 2);
        let frame = polyplane_apimachinery::schema::proto::watch_frame("ADDED", b"k8s\0\n\n");
        assert_eq!(events_in(&frame.repeat(3)), 3);
        assert_eq!(events_in(b""), 0);
    }
    use crate::watch::position::BookmarkFilter;
    use crate::watch::relay::WatchReader;
    use futures_util::stream;
    use proptest::prelude::*;
    use std::task::Waker;

    fn line(kind: &str, version: u64, padding: usize) -> String {
        let padding = "x".repeat(padding);
        format!(
            "{{\"type\":\"{kind}\",\"object\":{{\"kind\":\"Pod\",\"metadata\":{{\"name\":\"{padding}\",\
             \"resourceVersion\":\"{version}\"}}}}}}\n"
        )
    }

    fn chunk(progress: WatchProgress, lines: String) -> WatchChunk {
        WatchChunk {
            bytes: lines.into(),
            progress,
        }
    }

    /// Returns everything that a replica sends for `chunks`.
    fn written(chunks: &[WatchChunk], form: WatchForm) -> Vec<Bytes> {
        let chunks: Vec<_> = chunks.iter().cloned().map(Ok).collect();
        let mut writer = WatchWriter::new(Box::pin(stream::iter(chunks)), form);
        let mut context = Context::from_waker(Waker::noop());
        let mut written = Vec::new();
        while let Poll::Ready(Some(bytes)) = writer.poll_next(&mut context) {
            written.push(bytes.expect("it does not end early"));
        }
        written
    }

    fn reader(headers: &HeaderMap, bookmarks_shown: BookmarkFilter) -> WatchReader {
        let position = ClientPosition::new(bookmarks_shown, None);
        WatchReader::new(WatchForm::of(headers), position)
    }

    fn announced(form: WatchForm) -> HeaderMap {
        let mut headers = HeaderMap::new();
        form.announce(&mut headers);
        headers
    }

    /// Returns the text that the client gets if its bytes arrive in these pieces, and the last
    /// version after which it may resume.
    fn read(
        reader: &mut WatchReader,
        pieces: impl IntoIterator<Item = Bytes>,
    ) -> (String, Option<u64>) {
        let mut shown = Vec::new();
        for piece in pieces {
            reader.feed(piece).expect("sound");
            while let Some(lines) = reader.next() {
                assert!(lines.ends_with(b"\n"));
                shown.extend_from_slice(&lines);
            }
        }
        let shown = String::from_utf8(shown).expect("text");
        (shown, reader.sent_up_to())
    }

    fn three_chunks() -> [WatchChunk; 3] {
        [
            chunk(
                WatchProgress::Initial,
                line("ADDED", 9, 1) + &line("ADDED", 4, 1),
            ),
            chunk(WatchProgress::Bookmark(10), line("BOOKMARK", 10, 0)),
            chunk(
                WatchProgress::Events(12),
                line("ADDED", 11, PASS_BYTES) + &line("DELETED", 12, 1),
            ),
        ]
    }

    #[test]
    fn a_replica_that_is_older_than_records_gets_and_sends_lines() {
        // A replica that only knows lines announces nothing, as requester and as owner.
        assert_eq!(WatchForm::of(&HeaderMap::new()), WatchForm::Lines);
        assert_eq!(
            WatchForm::of(&announced(WatchForm::Lines)),
            WatchForm::Lines
        );
        let chunks = three_chunks();
        let lines: Vec<Bytes> = chunks.iter().map(|chunk| chunk.bytes.clone()).collect();
        assert_eq!(written(&chunks, WatchForm::Lines), lines);
        let mut reader = reader(&HeaderMap::new(), BookmarkFilter::None);
        let (shown, sent_up_to) = read(&mut reader, lines);
        assert_eq!(shown.matches("BOOKMARK").count(), 0);
        assert_eq!((shown.lines().count(), sent_up_to), (4, Some(12)));
    }

    #[test]
    fn replicas_that_know_records_agree_on_them() {
        let headers = announced(WatchForm::Records);
        assert_eq!(WatchForm::of(&headers), WatchForm::Records);
        let mut later = HeaderMap::new();
        later.insert(WATCH_RECORDS, HeaderValue::from_static("2"));
        assert_eq!(WatchForm::of(&later), WatchForm::Lines);
        let records = written(&three_chunks(), WatchForm::Records);
        let newlines = records
            .concat()
            .iter()
            .filter(|byte| **byte == b'\n')
            .count();
        assert_eq!(newlines, 5, "one for each event");
        let (shown, sent_up_to) = read(&mut reader(&headers, BookmarkFilter::None), records);
        assert_eq!(shown.matches("BOOKMARK").count(), 0);
        assert_eq!((shown.lines().count(), sent_up_to), (4, Some(12)));
    }

    #[test]
    fn no_line_is_parsed_between_replicas_that_know_records() {
        let chunks = [
            chunk(WatchProgress::Events(7), "no JSON\n".to_owned()),
            chunk(WatchProgress::Bookmark(8), "hidden\n".to_owned()),
        ];
        let records = written(&chunks, WatchForm::Records);
        let mut reader = reader(&announced(WatchForm::Records), BookmarkFilter::None);
        assert_eq!(
            read(&mut reader, records),
            ("no JSON\n".to_owned(), Some(8))
        );
    }

    #[test]
    fn a_watch_that_failed_is_not_resumed() {
        let chunks = [
            chunk(WatchProgress::Events(7), line("ADDED", 7, 1)),
            chunk(WatchProgress::Failed, "{\"type\":\"ERROR\"}\n".to_owned()),
        ];
        let records = written(&chunks, WatchForm::Records);
        let mut reader = reader(&announced(WatchForm::Records), BookmarkFilter::All);
        let (shown, sent_up_to) = read(&mut reader, records);
        assert_eq!((shown.lines().count(), sent_up_to), (2, None));
    }

    /// The longest record is read, and one that is longer is not written. The head of a record alone
    /// takes little memory.
    #[test]
    fn a_record_that_a_peer_would_refuse_is_not_written() {
        for (bytes, fits) in [(RECORD_BYTES_MAX, true), (RECORD_BYTES_MAX + 1, false)] {
            let lines = WatchChunk {
                bytes: vec![b'\n'; bytes].into(),
                progress: WatchProgress::Events(7),
            };
            let stream = Box::pin(stream::iter([Ok(lines)]));
            let mut writer = WatchWriter::new(stream, WatchForm::Records);
            let mut context = Context::from_waker(Waker::noop());
            let Poll::Ready(Some(Ok(head))) = writer.poll_next(&mut context) else {
                assert!(!fits, "nothing was written");
                continue;
            };
            assert!(fits, "a record that is too long was written");
            let mut records = WatchRecords::new(ClientPosition::new(BookmarkFilter::All, None));
            records.feed(head).expect("sound");
            assert!(records.begun.capacity() <= 2 * RESERVED_BYTES_MAX);
            let Poll::Ready(Some(Ok(mut lines))) = writer.poll_next(&mut context) else {
                unreachable!("the lines follow their head")
            };
            while !lines.is_empty() {
                let piece = lines.split_to(lines.len().min(60_000));
                records.feed(piece).expect("sound");
            }
            assert_eq!(records.next().map(|lines| lines.len()), Some(bytes));
        }
    }

    #[test]
    fn what_is_no_record_is_refused() {
        let long = head(WatchProgress::Events(1), RECORD_BYTES_MAX + 1);
        let mut unknown = head(WatchProgress::Events(1), 1);
        unknown[0] = b'X';
        let plain = Bytes::from(line("ADDED", 3, 1));
        for bytes in [
            Bytes::copy_from_slice(&long),
            Bytes::copy_from_slice(&unknown),
            plain,
        ] {
            let mut whole = reader(&announced(WatchForm::Records), BookmarkFilter::All);
            assert_eq!(whole.feed(bytes.clone()), Err(MalformedRecord));
            let mut cut = reader(&announced(WatchForm::Records), BookmarkFilter::All);
            assert_eq!(cut.feed(bytes.slice(..1)), Ok(()));
            assert_eq!(cut.feed(bytes.slice(1..)), Err(MalformedRecord));
        }
    }

    /// Generates initial events and their bookmark, then chunks of events and bookmarks of rising
    /// versions.
    fn chunks() -> impl Strategy<Value = Vec<WatchChunk>> {
        let padding = prop_oneof![9 => 0_usize..40, 1 => Just(PASS_BYTES)];
        let lines = prop::collection::vec(padding, 0..4);
        prop::collection::vec(lines, 1..12).prop_map(|batches| {
            let mut chunks = vec![
                chunk(
                    WatchProgress::Initial,
                    line("ADDED", 90, 1) + &line("ADDED", 20, 1),
                ),
                chunk(WatchProgress::Bookmark(95), line("BOOKMARK", 95, 0)),
            ];
            let mut version = 100;
            for batch in batches {
                let mut lines = String::new();
                for padding in &batch {
                    version += 3;
                    lines += &line("MODIFIED", version, *padding);
                }
                chunks.push(match batch.is_empty() {
                    true => chunk(
                        WatchProgress::Bookmark(version),
                        line("BOOKMARK", version, 0),
                    ),
                    false => chunk(WatchProgress::Events(version), lines),
                });
            }
            chunks
        })
    }

    proptest! {
        /// Records and lines lead to the same result, wherever the network divides the bytes.
        #[test]
        fn versions_beside_the_bytes_are_those_in_the_bytes(
            chunks in chunks(),
            cuts in prop::collection::vec(1_usize..200, 1..40),
            bookmarks_shown in prop_oneof![
                Just(BookmarkFilter::None),
                Just(BookmarkFilter::AfterInitial),
                Just(BookmarkFilter::All),
            ],
        ) {
            let lines = written(&chunks, WatchForm::Lines);
            let mut old = reader(&HeaderMap::new(), bookmarks_shown);
            let by_lines = read(&mut old, lines);
            let headers = announced(WatchForm::Records);
            let records = written(&chunks, WatchForm::Records);
            let mut new = reader(&headers, bookmarks_shown);
            prop_assert_eq!(&read(&mut new, records.clone()), &by_lines);
            let mut rest = Bytes::from(records.concat());
            let mut cut = reader(&headers, bookmarks_shown);
            let pieces = cuts.iter().cycle().map_while(|length| {
                (!rest.is_empty()).then(|| rest.split_to((*length).min(rest.len())))
            });
            prop_assert_eq!(&read(&mut cut, pieces), &by_lines);
        }
    }
}
