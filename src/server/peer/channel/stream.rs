//! One request and its answer on a connection between replicas.
//!
//! Both sides keep the same state: the bytes that have arrived and are not read yet, and the
//! credit, which is the number of bytes that the other side still accepts. A slow reader delays its
//! own stream only.

use std::collections::VecDeque;
use std::fmt;
use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, Waker, ready};

use bytes::Bytes;
use http::header::CONTENT_LENGTH;
use http::{HeaderMap, Response};
use http_body::{Body, Frame, SizeHint};
use parking_lot::Mutex;

use crate::peer::channel::Channel;
use crate::peer::channel::frame::{self, AnswerHead, Kind, Malformed, ResetReason};

/// Bytes that one side may send on a stream before the reader reads. More would cost memory for
/// each slow client; less would make a body wait for round trips.
pub(in crate::peer) const WINDOW_BYTES: usize = 256 * 1024;
/// Bytes after whose reading the reader sends new credit. Less would cost more frames; the whole
/// window would stall the sender.
const CREDIT_BYTES: usize = WINDOW_BYTES / 4;
/// Longest part of a body in one frame, in bytes. A longer one would delay the other streams of the
/// connection.
pub(in crate::peer) const CHUNK_BYTES: usize = 64 * 1024;

/// The reason why a connection or a stream cannot be used any more.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum Broken {
    /// One of the two sides closed the connection.
    #[error("the connection was closed")]
    Closed,
    /// The other side reset the stream.
    #[error("the peer reset the stream")]
    Reset,
    /// The other side did not answer a ping.
    #[error("the peer was silent for too long")]
    Silent,
    /// An error of the socket.
    #[error("the connection failed: {0}")]
    Socket(SharedIoError),
    /// The other side refused the certificate, or a record could not be decrypted.
    #[error("TLS failed: {0}")]
    Tls(SharedIoError),
    /// A frame that is not allowed at this point.
    #[error("the peer does not keep to the protocol: {0}")]
    Protocol(&'static str),
    /// Bytes that are not a frame.
    #[error("the peer does not keep to the protocol")]
    Malformed(#[from] Malformed),
}

/// An error of the system that all streams of a connection share. Equal to any error of the same
/// kind.
#[derive(Clone, Debug)]
pub(crate) struct SharedIoError(Arc<io::Error>);

impl From<io::Error> for SharedIoError {
    fn from(error: io::Error) -> Self {
        Self(Arc::new(error))
    }
}

impl fmt::Display for SharedIoError {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(formatter)
    }
}

impl PartialEq for SharedIoError {
    fn eq(&self, other: &Self) -> bool {
        self.0.kind() == other.0.kind()
    }
}

impl Eq for SharedIoError {}

impl From<io::Error> for Broken {
    fn from(error: io::Error) -> Self {
        match error.kind() {
            // rustls uses this kind for alerts and for records that it cannot decrypt.
            io::ErrorKind::InvalidData => Self::Tls(error.into()),
            _ => Self::Socket(error.into()),
        }
    }
}

impl Broken {
    /// Returns whether the other side merely closed the connection and sent nothing wrong. Only a
    /// new connection can find out whether the other process is alive.
    pub(crate) fn is_end(&self) -> bool {
        match self {
            Self::Closed | Self::Silent | Self::Socket(_) => true,
            Self::Reset | Self::Tls(_) | Self::Protocol(_) | Self::Malformed(_) => false,
        }
    }
}

/// One stream, as one of its sides sees it.
pub(in crate::peer) struct Stream {
    pub id: u32,
    /// The offset of the stream's first byte among all bytes that this side sends on the
    /// connection.
    pub begins_at: u64,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    head: Option<AnswerHead>,
    chunks: VecDeque<Bytes>,
    /// The number of bytes in `chunks`.
    unread: usize,
    /// The number of bytes read since the sender last got credit.
    uncredited: usize,
    end: Option<End>,
    reader: Option<Waker>,
    /// The number of bytes that the other side still accepts.
    credit: usize,
    writer: Option<Waker>,
}

/// The way in which the other side stopped sending.
#[derive(Clone, Debug)]
enum End {
    Whole(Option<HeaderMap>),
    /// The other side did nothing for the request.
    Refused,
    Broken(Broken),
}

/// The reason why a request has no answer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(in crate::peer) enum NoAnswer {
    /// The other side did nothing for the request.
    Refused,
    /// The connection broke; the request may have been carried out, or not.
    Broken(Broken),
}

impl Stream {
    pub(in crate::peer) fn new(id: u32, begins_at: u64) -> Arc<Self> {
        let state = State {
            credit: WINDOW_BYTES,
            ..State::default()
        };
        Arc::new(Self {
            id,
            begins_at,
            state: Mutex::new(state),
        })
    }

    /// Changes the state and wakes the reader and the writer if the change concerns them.
    fn update(&self, change: impl FnOnce(&mut State)) {
        let (reader, writer) = {
            let mut state = self.state.lock();
            change(&mut state);
            let reader = state.reader.take();
            let is_over = !matches!(state.end, None | Some(End::Whole(_)));
            let writes = state.credit > 0 || is_over;
            (reader, if writes { state.writer.take() } else { None })
        };
        for waker in [reader, writer].into_iter().flatten() {
            waker.wake();
        }
    }

    /// Stores the head of the answer and the beginning of its body.
    pub(in crate::peer) fn answered(&self, head: AnswerHead, body: Bytes, is_last: bool) {
        self.update(|state| {
            state.head = Some(head);
            state.take(body, is_last);
        });
    }

    /// Stores more of a body.
    ///
    /// # Errors
    /// Returns an error if the other side sends more than it has credit for.
    pub(in crate::peer) fn came(&self, body: Bytes, is_last: bool) -> Result<(), Broken> {
        let mut fits = true;
        self.update(|state| {
            fits = state.unread + body.len() <= WINDOW_BYTES;
            if fits {
                state.take(body, is_last);
            }
        });
        let why = "a stream has more under way than it may";
        fits.then_some(()).ok_or(Broken::Protocol(why))
    }

    /// Stores the trailers, which end a body.
    pub(in crate::peer) fn ended(&self, trailers: HeaderMap) {
        self.update(|state| state.end = Some(End::Whole(Some(trailers))));
    }

    pub(in crate::peer) fn credited(&self, bytes: u32) {
        self.update(|state| {
            state.credit = state.credit.saturating_add(bytes as usize);
        });
    }

    /// Ends the stream because the other side reset it or the connection broke. Bytes that arrived
    /// stay readable.
    pub(in crate::peer) fn broke(&self, why: &NoAnswer) {
        self.update(|state| {
            if state.end.is_none() {
                state.end = Some(match why {
                    NoAnswer::Refused => End::Refused,
                    NoAnswer::Broken(why) => End::Broken(why.clone()),
                });
            }
        });
    }

    /// Returns the head of the answer.
    fn poll_head(&self, context: &mut Context<'_>) -> Poll<Result<AnswerHead, NoAnswer>> {
        let mut state = self.state.lock();
        if let Some(head) = state.head.take() {
            return Poll::Ready(Ok(head));
        }
        match &state.end {
            Some(End::Refused) => Poll::Ready(Err(NoAnswer::Refused)),
            Some(End::Broken(why)) => Poll::Ready(Err(NoAnswer::Broken(why.clone()))),
            Some(End::Whole(_)) => {
                let why = Broken::Protocol("a body came without a head");
                Poll::Ready(Err(NoAnswer::Broken(why)))
            }
            None => {
                wait(&mut state.reader, context);
                Poll::Pending
            }
        }
    }

    /// Reserves credit for up to `bytes` bytes; waits while there is none.
    fn poll_credit(&self, bytes: usize, context: &mut Context<'_>) -> Poll<Result<usize, Broken>> {
        let mut state = self.state.lock();
        match &state.end {
            Some(End::Broken(why)) => return Poll::Ready(Err(why.clone())),
            Some(End::Refused) => return Poll::Ready(Err(Broken::Reset)),
            Some(End::Whole(_)) | None => {}
        }
        if state.credit == 0 && bytes > 0 {
            wait(&mut state.writer, context);
            return Poll::Pending;
        }
        let granted = bytes.min(state.credit).min(CHUNK_BYTES);
        state.credit -= granted;
        Poll::Ready(Ok(granted))
    }

    /// Uses up credit for the beginning of a body, which is sent with its head without waiting.
    pub(in crate::peer) fn spend(&self, bytes: usize) {
        let mut state = self.state.lock();
        state.credit = state.credit.saturating_sub(bytes);
    }
}

impl State {
    fn take(&mut self, body: Bytes, is_last: bool) {
        if !body.is_empty() {
            self.unread += body.len();
            self.chunks.push_back(body);
        }
        if is_last {
            self.end = Some(End::Whole(None));
        }
    }
}

fn wait(place: &mut Option<Waker>, context: &Context<'_>) {
    match place {
        Some(waker) => waker.clone_from(context.waker()),
        None => *place = Some(context.waker().clone()),
    }
}

/// Sends a part of a body, as fast as the other side's credit and the send queue allow.
///
/// # Errors
/// Returns the reason if the stream or its connection is broken.
///
/// # Cancel safety
/// If the future is dropped, any number of the bytes may have been sent.
pub(in crate::peer) async fn send_data(
    channel: &Channel,
    stream: &Stream,
    mut data: Bytes,
    is_last: bool,
) -> Result<(), Broken> {
    loop {
        let bytes = std::future::poll_fn(|context| {
            ready!(channel.poll_room(context))?;
            stream.poll_credit(data.len(), context)
        });
        let piece = data.split_to(bytes.await?);
        let ends = is_last && data.is_empty();
        channel.push(|out| frame::put_data(out, stream.id, &piece, ends));
        if data.is_empty() {
            return Ok(());
        }
    }
}

/// A stream that this side has opened. If this is dropped before the end of the answer, the other
/// side gets a reset.
pub(in crate::peer) struct RequestedStream {
    pub channel: Arc<Channel>,
    pub stream: Arc<Stream>,
}

impl RequestedStream {
    /// Waits for the head of the answer.
    ///
    /// # Errors
    /// Returns the reason why there is no answer, and with it whether the request may have been
    /// carried out.
    pub(in crate::peer) async fn head(&self) -> Result<AnswerHead, NoAnswer> {
        std::future::poll_fn(|context| self.stream.poll_head(context)).await
    }

    /// Returns the answer with its body.
    pub(in crate::peer) fn into_response(self, head: AnswerHead) -> Response<PeerStream> {
        let mut body = PeerStream::new(&self.channel, &self.stream, &head.headers);
        body._opened = Some(self);
        let mut response = Response::new(body);
        *response.status_mut() = head.status;
        *response.headers_mut() = head.headers;
        response
    }
}

impl Drop for RequestedStream {
    fn drop(&mut self) {
        if self.channel.forget(self.stream.id) {
            let id = self.stream.id;
            self.channel
                .push(|out| frame::put_reset(out, id, ResetReason::Cancelled));
        }
    }
}

/// The body that the other side sends.
pub(crate) struct PeerStream {
    channel: Arc<Channel>,
    stream: Arc<Stream>,
    /// The number of bytes that are still to come, if the sender announced a length.
    announced: Option<u64>,
    _opened: Option<RequestedStream>,
}

impl PeerStream {
    /// Returns the body that follows a head with these headers.
    pub(in crate::peer) fn new(
        channel: &Arc<Channel>,
        stream: &Arc<Stream>,
        headers: &HeaderMap,
    ) -> Self {
        let length = headers.get(CONTENT_LENGTH);
        Self {
            channel: Arc::clone(channel),
            stream: Arc::clone(stream),
            announced: length.and_then(|value| value.to_str().ok()?.parse().ok()),
            _opened: None,
        }
    }
}

impl PeerStream {
    /// Returns whether the whole body has arrived, read or not.
    pub(crate) fn is_whole(&self) -> bool {
        let state = self.stream.state.lock();
        matches!(state.end, Some(End::Whole(_)))
    }
}

impl Body for PeerStream {
    type Data = Bytes;
    type Error = Broken;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Broken>>> {
        let mut state = self.stream.state.lock();
        let Some(chunk) = state.chunks.pop_front() else {
            return match &mut state.end {
                Some(End::Whole(trailers)) => {
                    let trailers = trailers.take();
                    Poll::Ready(trailers.map(|trailers| Ok(Frame::trailers(trailers))))
                }
                Some(End::Broken(why)) => Poll::Ready(Some(Err(why.clone()))),
                Some(End::Refused) => Poll::Ready(Some(Err(Broken::Reset))),
                None => {
                    wait(&mut state.reader, context);
                    Poll::Pending
                }
            };
        };
        state.unread -= chunk.len();
        state.uncredited += chunk.len();
        let mut credit = 0;
        if state.uncredited >= CREDIT_BYTES && state.end.is_none() {
            credit = std::mem::take(&mut state.uncredited) as u32;
        }
        drop(state);
        if credit > 0 {
            let id = self.stream.id;
            self.channel
                .push(|out| frame::put_number(out, Kind::Credit, id, credit));
        }
        let left = self
            .announced
            .map(|left| left.saturating_sub(chunk.len() as u64));
        self.announced = left;
        Poll::Ready(Some(Ok(Frame::data(chunk))))
    }

    fn is_end_stream(&self) -> bool {
        let state = self.stream.state.lock();
        state.chunks.is_empty() && matches!(state.end, Some(End::Whole(None)))
    }

    fn size_hint(&self) -> SizeHint {
        let state = self.stream.state.lock();
        match (&state.end, self.announced) {
            (Some(End::Whole(_)), _) => SizeHint::with_exact(state.unread as u64),
            (_, Some(left)) => SizeHint::with_exact(left),
            (_, None) => SizeHint::default(),
        }
    }
}
