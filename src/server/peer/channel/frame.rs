//! The frames of the protocol between replicas, as bytes.
//!
//! A frame is a head of nine bytes and a payload. A request or an answer sends its HTTP head and
//! the beginning of its body, mostly all of it, in one frame. Common header names are sent as a
//! number. A long value that many requests repeat (the client's chain of certificates) is sent once
//! per connection and named by its slot from then on.
//!
//! Numbers are big-endian. `peer/PROTOCOL.md` lists the frames and who may send which. This module
//! knows nothing of connections.
//!
//! Invariant: no frame that is written here is longer than what [`FrameHead::parse`] accepts. A head
//! that would be too long is refused before a byte of it is written, because the other side has to
//! end the connection, with all its streams, at such a frame.

use bytes::{Buf as _, Bytes};
use http::header::{
    ACCEPT, ACCEPT_ENCODING, AUTHORIZATION, CACHE_CONTROL, CONTENT_ENCODING, CONTENT_LENGTH,
    CONTENT_TYPE, DATE, ETAG, IF_NONE_MATCH, LAST_MODIFIED, ORIGIN, RETRY_AFTER, USER_AGENT, VARY,
    WARNING,
};
use http::uri::PathAndQuery;
use http::{HeaderMap, HeaderName, HeaderValue, Method, StatusCode, Uri};

use crate::answer::respond::AUDIT_ID;
use crate::peer::headers::{CHAIN, DEADLINE, FORWARDED_BY, MEANT_FOR, MOVED, REMOTE, SENT_UP_TO};
use crate::peer::transport::SENDER;

/// Bytes of a frame's head: length of the payload, kind, stream.
pub(in crate::peer) const HEAD_BYTES: usize = 9;
/// Longest payload in bytes. A longer one ends the connection, or a peer could use that much memory
/// before its frame is read.
pub(in crate::peer) const PAYLOAD_BYTES_MAX: usize = 1024 * 1024;
/// Longest part of a body in one frame, in bytes. A longer one would delay the other streams of the
/// connection.
pub(in crate::peer) const CHUNK_BYTES: usize = 64 * 1024;
/// Longest head of a request or an answer that is written, in bytes: with the longest beginning of a
/// body it fits one frame.
pub(in crate::peer) const HEAD_PART_BYTES_MAX: usize = PAYLOAD_BYTES_MAX - CHUNK_BYTES;
/// Header values of one head that is written. More could not be counted in two bytes, and the rest
/// of the head would be read as a body.
pub(in crate::peer) const HEADERS_MAX: usize = 16 * 1024;
/// Bytes of memory that one header takes beside its name and value, about. A frame of a megabyte
/// names 200 000 headers.
const HEADER_MEMORY_BYTES: usize = 128;
/// Bytes of the payload of a frame that is one number.
const NUMBER_BYTES: usize = 4;
/// The bit in a frame's kind that marks the last frame of one side on a stream.
const LAST: u8 = 0x80;

/// Header values that each side of a connection remembers. More would cost memory per connection;
/// further values are sent in full.
pub(in crate::peer) const SLOTS: usize = 128;
/// Lengths in bytes of a value that gets a slot: a slot saves too little for a shorter value, and a
/// longer one needs too much memory.
pub(in crate::peer) const REMEMBERED_BYTES: std::ops::RangeInclusive<usize> = 64..=16 * 1024;
/// Position of the two bits of a value's length that say whether the value follows, follows and
/// gets a slot, or is in a slot.
const HOW_SHIFT: u32 = 30;
const LENGTH_MASK: u32 = (1 << HOW_SHIFT) - 1;
const LITERAL: u32 = 0;
const REMEMBER: u32 = 1;
const REMEMBERED: u32 = 2;

/// The kind of a frame. The frame carries its number.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub(in crate::peer) enum Kind {
    /// The head of a request and the beginning of its body; opens a stream.
    Request,
    /// The head of an answer and the beginning of its body.
    Answer,
    /// A further part of a body.
    Data,
    /// The headers after a body; always the last frame of a side.
    Trailers,
    /// The number of bytes that the reader of a body has read since its last credit frame.
    Credit,
    /// The end of the stream, in both directions.
    Reset,
    /// A request for a pong.
    Ping,
    /// The answer to a ping.
    Pong,
    /// The lowest stream number that the sender has not accepted and never will.
    Closing,
}

impl Kind {
    const ALL: [Self; 9] = [
        Self::Request,
        Self::Answer,
        Self::Data,
        Self::Trailers,
        Self::Credit,
        Self::Reset,
        Self::Ping,
        Self::Pong,
        Self::Closing,
    ];
}

/// The reason why one side reset a stream. The frame carries its number.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::peer) enum ResetReason {
    /// The requesting side does not need the answer any more.
    Cancelled,
    /// The answering side did nothing for the request.
    Refused,
    /// The answer broke off.
    Broken,
}

impl ResetReason {
    const ALL: [Self; 3] = [Self::Cancelled, Self::Refused, Self::Broken];
}

/// An error: the bytes are not of this protocol, so the connection cannot be used any more.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub(crate) struct Malformed(&'static str);

/// The head of a frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::peer) struct FrameHead {
    pub kind: Kind,
    pub is_last: bool,
    pub stream: u32,
    /// Bytes of the payload.
    pub length: usize,
}

impl FrameHead {
    /// Reads the head of a frame; `None` if it has not arrived yet.
    ///
    /// # Errors
    /// Returns an error if the bytes are not the head of a frame.
    pub(in crate::peer) fn parse(input: &[u8]) -> Result<Option<Self>, Malformed> {
        let Some(head) = input.first_chunk::<HEAD_BYTES>() else {
            return Ok(None);
        };
        let [a, b, c, d, kind, stream @ ..] = *head;
        let length = u32::from_be_bytes([a, b, c, d]) as usize;
        let known = Kind::ALL.get(usize::from(kind & !LAST));
        let head = Self {
            kind: *known.ok_or(Malformed("a frame is of no known kind"))?,
            is_last: kind & LAST != 0,
            stream: u32::from_be_bytes(stream),
            length,
        };
        head.check()?;
        Ok(Some(head))
    }

    /// Checks length, stream and end against the kind, before the payload takes memory.
    fn check(self) -> Result<(), Malformed> {
        let length_max = match self.kind {
            Kind::Request | Kind::Answer | Kind::Data | Kind::Trailers => PAYLOAD_BYTES_MAX,
            Kind::Credit | Kind::Ping | Kind::Pong | Kind::Closing => NUMBER_BYTES,
            Kind::Reset => 1,
        };
        if self.length > length_max {
            return Err(Malformed("a frame is too long"));
        }
        let may_end = match self.kind {
            Kind::Request | Kind::Answer | Kind::Data => true,
            Kind::Trailers | Kind::Reset => self.is_last,
            Kind::Credit | Kind::Ping | Kind::Pong | Kind::Closing => !self.is_last,
        };
        if !may_end {
            return Err(Malformed("a frame has the mark of the end wrong"));
        }
        let is_of_connection = matches!(self.kind, Kind::Ping | Kind::Pong | Kind::Closing);
        if is_of_connection && self.stream != 0 {
            return Err(Malformed("a frame of the connection names a stream"));
        }
        Ok(())
    }
}

/// An error: the head of a request or an answer does not fit a frame. Nothing of it was written.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the headers have {bytes} bytes in {count} values, more than a peer accepts")]
pub(crate) struct HeadTooLong {
    bytes: usize,
    count: usize,
}

/// Checks that a head fits a frame: `start` bytes and the headers.
fn check_head(start: usize, headers: &HeaderMap) -> Result<(), HeadTooLong> {
    // The name with its length and its place, the value with its length and its slot.
    let header = |(name, value): (&HeaderName, &HeaderValue)| {
        name.as_str().len() + value.as_bytes().len() + 8
    };
    let (bytes, count) = (
        start + headers.iter().map(header).sum::<usize>(),
        headers.len(),
    );
    if bytes > HEAD_PART_BYTES_MAX || count > HEADERS_MAX {
        return Err(HeadTooLong { bytes, count });
    }
    Ok(())
}

/// Returns the bytes of memory that headers take, about.
pub(in crate::peer) fn memory_of(headers: &HeaderMap) -> usize {
    let header = |(name, value): (&HeaderName, &HeaderValue)| {
        name.as_str().len() + value.as_bytes().len() + HEADER_MEMORY_BYTES
    };
    headers.iter().map(header).sum()
}

/// Writes a frame whose payload `fill` writes.
fn put(out: &mut Vec<u8>, kind: Kind, is_last: bool, stream: u32, fill: impl FnOnce(&mut Vec<u8>)) {
    let start = out.len();
    out.extend_from_slice(&[0; 4]);
    out.push(kind as u8 | if is_last { LAST } else { 0 });
    out.extend_from_slice(&stream.to_be_bytes());
    fill(out);
    let length = out.len() - start - HEAD_BYTES;
    assert!(length <= PAYLOAD_BYTES_MAX, "the writer checked the length");
    out[start..start + 4].copy_from_slice(&(length as u32).to_be_bytes());
}

/// Writes a frame whose payload is one number.
pub(in crate::peer) fn put_number(out: &mut Vec<u8>, kind: Kind, stream: u32, number: u32) {
    put(out, kind, false, stream, |out| {
        out.extend_from_slice(&number.to_be_bytes());
    });
}

/// Reads the payload of a frame that [`put_number`] wrote.
///
/// # Errors
/// Returns an error if the payload is not a number.
pub(in crate::peer) fn number(payload: &[u8]) -> Result<u32, Malformed> {
    let bytes = payload.try_into();
    bytes
        .map(u32::from_be_bytes)
        .map_err(|_| Malformed("a number has four bytes"))
}

pub(in crate::peer) fn put_reset(out: &mut Vec<u8>, stream: u32, why: ResetReason) {
    put(out, Kind::Reset, true, stream, |out| out.push(why as u8));
}

/// Reads the reason of a reset.
///
/// # Errors
/// Returns an error if the payload is not a reason.
pub(in crate::peer) fn reset_reason(payload: &[u8]) -> Result<ResetReason, Malformed> {
    let code = payload.first().map(|code| usize::from(*code));
    let why = code.and_then(|code| ResetReason::ALL.get(code));
    why.copied().ok_or(Malformed("a reset has a known reason"))
}

pub(in crate::peer) fn put_data(out: &mut Vec<u8>, stream: u32, data: &[u8], is_last: bool) {
    put(out, Kind::Data, is_last, stream, |out| {
        out.extend_from_slice(data);
    });
}

/// The header values that this side has sent on a connection, by slot.
#[derive(Debug, Default)]
pub(in crate::peer) struct SentValues {
    slots: Vec<HeaderValue>,
    next: usize,
}

impl SentValues {
    /// Returns the slot of a value, and whether the slot is new. Values are compared by address,
    /// which cannot be reused while the slot holds the value.
    fn slot(&mut self, value: &HeaderValue) -> (usize, bool) {
        let same = |known: &HeaderValue| std::ptr::eq(known.as_bytes(), value.as_bytes());
        if let Some(slot) = self.slots.iter().position(same) {
            return (slot, false);
        }
        let slot = self.next;
        self.next = (slot + 1) % SLOTS;
        match self.slots.get_mut(slot) {
            Some(known) => *known = value.clone(),
            None => self.slots.push(value.clone()),
        }
        (slot, true)
    }
}

/// The header values that the other side has sent on a connection, by slot.
#[derive(Debug, Default)]
pub(in crate::peer) struct ReceivedValues {
    slots: Vec<HeaderValue>,
}

impl ReceivedValues {
    fn learn(&mut self, slot: usize, value: &HeaderValue) -> Result<(), Malformed> {
        if slot < self.slots.len() {
            self.slots[slot] = value.clone();
        } else if slot == self.slots.len() && slot < SLOTS {
            self.slots.push(value.clone());
        } else {
            return Err(Malformed("a slot is out of turn"));
        }
        Ok(())
    }
}

/// Returns the header names that are sent as a number: their index here plus one. Sorted. The list
/// is part of the protocol.
pub(in crate::peer) fn usual_names() -> &'static [HeaderName] {
    static NAMES: [HeaderName; 27] = [
        ACCEPT,
        ACCEPT_ENCODING,
        AUDIT_ID,
        AUTHORIZATION,
        CACHE_CONTROL,
        CONTENT_ENCODING,
        CONTENT_LENGTH,
        CONTENT_TYPE,
        DATE,
        ETAG,
        IF_NONE_MATCH,
        LAST_MODIFIED,
        ORIGIN,
        RETRY_AFTER,
        USER_AGENT,
        VARY,
        WARNING,
        HeaderName::from_static("x-kubernetes-pf-flowschema-uid"),
        HeaderName::from_static("x-kubernetes-pf-prioritylevel-uid"),
        CHAIN,
        DEADLINE,
        FORWARDED_BY,
        MEANT_FOR,
        MOVED,
        REMOTE,
        SENDER,
        SENT_UP_TO,
    ];
    &NAMES
}

/// The head of a request.
#[derive(Clone, Debug, PartialEq)]
pub(in crate::peer) struct RequestHead {
    pub method: Method,
    pub target: Uri,
    pub headers: HeaderMap,
}

/// The head of an answer.
#[derive(Clone, Debug, PartialEq)]
pub(in crate::peer) struct AnswerHead {
    pub status: StatusCode,
    pub headers: HeaderMap,
}

/// Writes a request with the beginning of its body, which has at most [`CHUNK_BYTES`].
///
/// # Errors
/// Returns an error if the head is too long.
pub(in crate::peer) fn put_request(
    out: &mut Vec<u8>,
    stream: u32,
    (method, target, headers): (&Method, &Uri, &HeaderMap),
    body: &[u8],
    is_last: bool,
    sent_values: &mut SentValues,
) -> Result<(), HeadTooLong> {
    let target = target.path_and_query().map_or("/", PathAndQuery::as_str);
    // Before the values get slots, of which the other side would never hear.
    check_head(10 + method.as_str().len() + target.len(), headers)?;
    put(out, Kind::Request, is_last, stream, |out| {
        put_text(out, method.as_str());
        put_text(out, target);
        put_headers(out, headers, sent_values);
        out.extend_from_slice(body);
    });
    Ok(())
}

/// Reads the head of a request; the rest of the payload is the beginning of its body.
///
/// # Errors
/// Returns an error if the payload does not begin with the head of a request.
pub(in crate::peer) fn take_request(
    payload: &mut Bytes,
    received_values: &mut ReceivedValues,
) -> Result<RequestHead, Malformed> {
    let method = Method::from_bytes(&take_text(payload)?);
    let method = method.map_err(|_| Malformed("a method is none"))?;
    let target = take_text(payload)?;
    // The parser takes these for an empty path, which no request has.
    if matches!(target.first(), None | Some(b'#')) {
        return Err(Malformed("a target is no path"));
    }
    let target = PathAndQuery::from_maybe_shared(target);
    let target = target.map_err(|_| Malformed("a target is no path"))?;
    Ok(RequestHead {
        method,
        target: Uri::from(target),
        headers: take_headers(payload, received_values)?,
    })
}

/// Writes an answer with the beginning of its body, which has at most [`CHUNK_BYTES`].
///
/// # Errors
/// Returns an error if the head is too long.
pub(in crate::peer) fn put_answer(
    out: &mut Vec<u8>,
    stream: u32,
    (status, headers): (StatusCode, &HeaderMap),
    body: &[u8],
    is_last: bool,
) -> Result<(), HeadTooLong> {
    check_head(4, headers)?;
    put(out, Kind::Answer, is_last, stream, |out| {
        out.extend_from_slice(&status.as_u16().to_be_bytes());
        put_headers(out, headers, &mut SentValues::default());
        out.extend_from_slice(body);
    });
    Ok(())
}

/// Reads the head of an answer; the rest of the payload is the beginning of its body.
///
/// # Errors
/// Returns an error if the payload does not begin with the head of an answer.
pub(in crate::peer) fn take_answer(payload: &mut Bytes) -> Result<AnswerHead, Malformed> {
    let status = StatusCode::from_u16(take_u16(payload)?);
    Ok(AnswerHead {
        status: status.map_err(|_| Malformed("a status is none"))?,
        headers: take_headers(payload, &mut ReceivedValues::default())?,
    })
}

/// Writes the trailers of an answer.
///
/// # Errors
/// Returns an error if they are too long.
pub(in crate::peer) fn put_trailers(
    out: &mut Vec<u8>,
    stream: u32,
    trailers: &HeaderMap,
) -> Result<(), HeadTooLong> {
    check_head(2, trailers)?;
    put(out, Kind::Trailers, true, stream, |out| {
        put_headers(out, trailers, &mut SentValues::default());
    });
    Ok(())
}

/// Reads trailers.
///
/// # Errors
/// Returns an error if the payload is not trailers.
pub(in crate::peer) fn take_trailers(payload: &mut Bytes) -> Result<HeaderMap, Malformed> {
    take_headers(payload, &mut ReceivedValues::default())
}

fn put_headers(out: &mut Vec<u8>, headers: &HeaderMap, sent_values: &mut SentValues) {
    // At most `HEADERS_MAX`: `check_head` refused more.
    out.extend_from_slice(&(headers.len() as u16).to_be_bytes());
    for (name, value) in headers {
        match usual_names().binary_search_by(|usual| usual.as_str().cmp(name.as_str())) {
            Ok(place) => out.push(place as u8 + 1),
            Err(_) => {
                out.push(0);
                out.extend_from_slice(&(name.as_str().len() as u16).to_be_bytes());
                out.extend_from_slice(name.as_str().as_bytes());
            }
        }
        put_value(out, name, value, sent_values);
    }
}

fn put_value(
    out: &mut Vec<u8>,
    name: &HeaderName,
    value: &HeaderValue,
    sent_values: &mut SentValues,
) {
    let bytes = value.as_bytes();
    let length = bytes.len() as u32 & LENGTH_MASK;
    let mut how = LITERAL;
    if *name == CHAIN && REMEMBERED_BYTES.contains(&bytes.len()) {
        let (slot, is_new) = sent_values.slot(value);
        if !is_new {
            let word = REMEMBERED << HOW_SHIFT | slot as u32;
            out.extend_from_slice(&word.to_be_bytes());
            return;
        }
        how = REMEMBER;
        out.extend_from_slice(&(how << HOW_SHIFT | length).to_be_bytes());
        out.push(slot as u8);
    } else {
        out.extend_from_slice(&(how << HOW_SHIFT | length).to_be_bytes());
    }
    out.extend_from_slice(bytes);
}

fn take_headers(
    payload: &mut Bytes,
    received_values: &mut ReceivedValues,
) -> Result<HeaderMap, Malformed> {
    let count = usize::from(take_u16(payload)?);
    // Each header needs at least a byte of name and four of length. A wrong count must not reserve
    // memory.
    let mut headers = HeaderMap::with_capacity(count.min(payload.len() / 5).min(64));
    for _ in 0..count {
        let name = match usize::from(take(payload, 1)?[0]) {
            0 => {
                let length = usize::from(take_u16(payload)?);
                let name = HeaderName::from_bytes(&take(payload, length)?);
                name.map_err(|_| Malformed("a header has no name"))?
            }
            place => {
                let name = usual_names().get(place - 1).cloned();
                name.ok_or(Malformed("a header has an unknown name"))?
            }
        };
        let value = take_value(payload, received_values)?;
        let added = headers.try_append(name, value);
        added.map_err(|_| Malformed("there are too many headers"))?;
    }
    Ok(headers)
}

fn take_value(
    payload: &mut Bytes,
    received_values: &mut ReceivedValues,
) -> Result<HeaderValue, Malformed> {
    let word = take_u32(payload)?;
    let number = (word & LENGTH_MASK) as usize;
    let how = word >> HOW_SHIFT;
    if how == REMEMBERED {
        let known = received_values.slots.get(number).cloned();
        return known.ok_or(Malformed("a slot holds no value"));
    }
    let slot = match how {
        REMEMBER if !REMEMBERED_BYTES.contains(&number) => {
            return Err(Malformed("a value is too long for a slot, or too short"));
        }
        REMEMBER => Some(usize::from(take(payload, 1)?[0])),
        LITERAL => None,
        _ => return Err(Malformed("a value is told in no known way")),
    };
    let bytes = take(payload, number)?;
    let Some(slot) = slot else {
        let value = HeaderValue::from_maybe_shared(bytes);
        return value.map_err(|_| Malformed("a header has no value"));
    };
    // A copy, so that the slot does not keep the whole read buffer in memory.
    let value = HeaderValue::from_bytes(&bytes);
    let value = value.map_err(|_| Malformed("a header has no value"))?;
    received_values.learn(slot, &value)?;
    Ok(value)
}

fn put_text(out: &mut Vec<u8>, text: &str) {
    out.extend_from_slice(&(text.len() as u32).to_be_bytes());
    out.extend_from_slice(text.as_bytes());
}

fn take_text(payload: &mut Bytes) -> Result<Bytes, Malformed> {
    let length = take_u32(payload)? as usize;
    take(payload, length)
}

fn take(payload: &mut Bytes, length: usize) -> Result<Bytes, Malformed> {
    if payload.len() < length {
        return Err(Malformed("a frame is cut short"));
    }
    Ok(payload.split_to(length))
}

fn take_u16(payload: &mut Bytes) -> Result<u16, Malformed> {
    Ok(take(payload, 2)?.get_u16())
}

fn take_u32(payload: &mut Bytes) -> Result<u32, Malformed> {
    Ok(take(payload, 4)?.get_u32())
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn usual_names_are_sorted() {
        assert!(usual_names().is_sorted_by(|a, b| a.as_str() < b.as_str()));
    }

    fn headers() -> impl Strategy<Value = HeaderMap> {
        let name = prop_oneof![
            (0..usual_names().len()).prop_map(|at| usual_names()[at].clone()),
            "[a-z][a-z0-9-]{0,30}".prop_map(|text| text.parse().expect("a name")),
        ];
        let value = "[ -~]{0,200}".prop_map(|text| HeaderValue::try_from(text).expect("a value"));
        proptest::collection::vec((name, value), 0..20).prop_map(|pairs| {
            let mut headers = HeaderMap::new();
            for (name, value) in pairs {
                headers.append(name, value);
            }
            headers
        })
    }

    fn one_frame(bytes: Vec<u8>) -> (FrameHead, Bytes) {
        let head = FrameHead::parse(&bytes).expect("its own").expect("whole");
        let payload = Bytes::from(bytes).slice(HEAD_BYTES..);
        assert_eq!(payload.len(), head.length);
        (head, payload)
    }

    proptest! {
        #[test]
        fn requests_survive_the_way(
            all in proptest::collection::vec((headers(), "/[a-z/?=&%0-9]{0,80}"), 1..6),
            body in proptest::collection::vec(any::<u8>(), 0..300),
            is_last in any::<bool>(),
        ) {
            let (mut sent_values, mut received_values) = (SentValues::default(), ReceivedValues::default());
            for (at, (headers, target)) in all.iter().enumerate() {
                let head = RequestHead {
                    method: Method::PATCH,
                    target: target.parse().expect("a path"),
                    headers: headers.clone(),
                };
                // Twice: the first frame has the values in full, the second one their slots.
                for again in 0..2 {
                    let stream = (at * 2 + again) as u32;
                    let mut bytes = Vec::new();
                    let parts = (&head.method, &head.target, &head.headers);
                    put_request(&mut bytes, stream, parts, &body, is_last, &mut sent_values).expect("short");
                    let (frame, mut payload) = one_frame(bytes);
                    prop_assert_eq!((frame.kind, frame.is_last), (Kind::Request, is_last));
                    prop_assert_eq!(frame.stream, stream);
                    let back = take_request(&mut payload, &mut received_values).expect("its own");
                    prop_assert_eq!(&back, &head);
                    prop_assert_eq!(&payload[..], &body[..]);
                }
            }
        }

        #[test]
        fn answers_and_trailers_survive_the_way(
            headers in headers(), status in 100_u16..600, body in proptest::collection::vec(any::<u8>(), 0..300),
        ) {
            let status = StatusCode::from_u16(status).expect("a status");
            let mut bytes = Vec::new();
            put_answer(&mut bytes, 7, (status, &headers), &body, true).expect("short");
            let (_, mut payload) = one_frame(bytes);
            let back = take_answer(&mut payload).expect("its own");
            prop_assert_eq!((back.status, &back.headers), (status, &headers));
            prop_assert_eq!(&payload[..], &body[..]);
            let mut bytes = Vec::new();
            put_trailers(&mut bytes, 7, &headers).expect("short");
            let (_, mut payload) = one_frame(bytes);
            prop_assert_eq!(take_trailers(&mut payload).expect("its own"), headers);
        }

        /// Parsing any bytes returns a value or an error: it never panics, and never reserves much
        /// memory.
        #[test]
        fn nonsense_is_refused(bytes in proptest::collection::vec(any::<u8>(), 0..400)) {
            let _ = FrameHead::parse(&bytes);
            let bytes = Bytes::from(bytes);
            let _ = take_request(&mut bytes.clone(), &mut ReceivedValues::default());
            let _ = take_answer(&mut bytes.clone());
            let _ = take_trailers(&mut bytes.clone());
            let _ = (number(&bytes), reset_reason(&bytes));
        }
    }

    /// The longest head that is written is read, and one byte or one value more is not written.
    #[test]
    fn a_head_that_a_peer_would_refuse_is_not_written() {
        let body = vec![b'x'; CHUNK_BYTES];
        let write = |headers: &HeaderMap| {
            let mut bytes = Vec::new();
            let mut sent_values = SentValues::default();
            let target = Uri::from_static("/");
            let head = (&Method::GET, &target, headers);
            let request = put_request(&mut bytes, 0, head, &body, true, &mut sent_values);
            let mut bytes_of_answer = Vec::new();
            let head = (StatusCode::OK, headers);
            let answer = put_answer(&mut bytes_of_answer, 0, head, &body, true);
            if request.is_err() {
                assert!(bytes.is_empty() && sent_values.slots.is_empty());
            }
            (request.map(|()| bytes), answer.map(|()| bytes_of_answer))
        };
        let long = |bytes: usize| {
            let mut headers = HeaderMap::new();
            let chain = HeaderValue::try_from("c".repeat(1000)).expect("a value");
            headers.insert(CHAIN, chain);
            let value = HeaderValue::try_from("v".repeat(bytes)).expect("a value");
            headers.insert("x-own", value);
            headers
        };
        let most = HEAD_PART_BYTES_MAX - 14 - CHAIN.as_str().len() - 1000 - 5 - 2 * 8;
        let (request, answer) = write(&long(most));
        let (frame, mut payload) = one_frame(request.expect("it fits"));
        assert!(frame.length <= PAYLOAD_BYTES_MAX);
        take_request(&mut payload, &mut ReceivedValues::default()).expect("its own");
        assert_eq!(payload, body);
        let (_, mut payload) = one_frame(answer.expect("it fits"));
        take_answer(&mut payload).expect("its own");
        assert!(write(&long(most + 1)).0.is_err());
        assert!(write(&long(most + 20)).1.is_err());
        let many = |count: usize| {
            let mut headers = HeaderMap::new();
            for _ in 0..count {
                headers.append("x", HeaderValue::from_static(""));
            }
            headers
        };
        let (request, _) = write(&many(HEADERS_MAX));
        let (_, mut payload) = one_frame(request.expect("it fits"));
        let back = take_request(&mut payload, &mut ReceivedValues::default()).expect("its own");
        assert_eq!(
            (back.headers.len(), payload.len()),
            (HEADERS_MAX, CHUNK_BYTES)
        );
        let (request, answer) = write(&many(HEADERS_MAX + 1));
        assert!(request.is_err() && answer.is_err());
    }

    /// Found by `fuzz.rs`: the parser of paths accepts both, and what it returns is no path.
    #[test]
    fn a_request_without_a_path_is_refused() {
        for target in ["", "#", "#/a"] {
            let mut payload = Vec::new();
            put_text(&mut payload, "GET");
            put_text(&mut payload, target);
            payload.extend_from_slice(&[0, 0]);
            let read = take_request(&mut payload.into(), &mut ReceivedValues::default());
            assert_eq!(read, Err(Malformed("a target is no path")), "{target}");
        }
    }

    #[test]
    fn a_chain_is_told_once_until_its_slot_is_needed() {
        let chain = |at: usize| HeaderValue::try_from(format!("{at:0>700}")).expect("a value");
        let chains: Vec<HeaderValue> = (0..SLOTS + 1).map(chain).collect();
        let (mut sent_values, mut received_values) =
            (SentValues::default(), ReceivedValues::default());
        let mut pass = |chain: &HeaderValue| {
            let mut headers = HeaderMap::new();
            headers.insert(CHAIN, chain.clone());
            let mut bytes = Vec::new();
            put_headers(&mut bytes, &headers, &mut sent_values);
            let length = bytes.len();
            let back =
                take_headers(&mut Bytes::from(bytes), &mut received_values).expect("its own");
            assert_eq!(back, headers);
            length > 700
        };
        for chain in &chains {
            assert!(pass(chain));
        }
        assert!(!pass(&chains[1]) && !pass(&chains[SLOTS]));
        assert!(pass(&chains[0]), "the last one has its slot now");
        assert!(!pass(&chains[0]));
    }
}
