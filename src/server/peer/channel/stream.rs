//! One request and its answer on a connection between replicas.
//!
//! Both sides keep the same state: the bytes that have arrived and are not read yet, and the
//! credit, which is the number of bytes that the other side still accepts. A slow reader delays its
//! own stream only.
//!
//! Invariant: a stream holds at most [`WINDOW_BYTES`] of a body that nobody has read, and memory in
//! proportion to them, however small the pieces are in which they arrive. All that a stream holds
//! counts against the budget of its connection ([`Received`]), and an answer's body in the memory
//! budget of the process ([`Account`]).

use std::collections::VecDeque;
use std::fmt;
use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};

use bytes::Bytes;
use http::header::CONTENT_LENGTH;
use http::{HeaderMap, Response};
use http_body::{Body, Frame, SizeHint};
use parking_lot::Mutex;

use crate::connection::unread::Sending;
use crate::peer::channel::Channel;
use crate::peer::channel::READ_BYTES;
use crate::peer::channel::answer_memory::{Account, HeldAnswer, Kept};
use crate::peer::channel::frame::{self, AnswerHead, CHUNK_BYTES, HeadTooLong, Kind};
use crate::peer::channel::frame::{Malformed, ResetReason, memory_of};
use crate::peer::channel::received::{Chunk, Received};

/// Bytes that one side may send on a stream before the reader reads. More would cost memory for
/// each slow client; less would make a body wait for round trips.
pub(in crate::peer) const WINDOW_BYTES: usize = 256 * 1024;
/// The same for the answers to clients while their memory is short, from the first credit on. More would fill that
/// memory; with less, streams would wait for round trips after each few events.
const SHORT_WINDOW_BYTES: usize = 16 * 1024;
/// The part of a window after whose reading the reader sends new credit. A smaller one would cost more
/// frames; the whole window would stall the sender.
const CREDIT_PART: usize = 4;

/// The reason why a connection or a stream cannot be used any more.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum Broken {
    /// One of the two sides closed the connection.
    #[error("the connection was closed")]
    Closed,
    /// The other side reset the stream.
    #[error("the peer reset the stream")]
    Reset,
    /// This side ended the stream, because its reader took too little of what had arrived.
    #[error("there was no memory for bytes that their readers did not take")]
    Unread,
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
pub(crate) struct SharedIoError(pub(in crate::peer) Arc<io::Error>);

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
            Self::Reset | Self::Unread | Self::Tls(_) | Self::Protocol(_) | Self::Malformed(_) => {
                false
            }
        }
    }
}

/// One stream, as one of its sides sees it.
pub(in crate::peer) struct Stream {
    pub id: u32,
    /// The offset of the stream's first byte among all bytes that this side sends on the
    /// connection.
    pub begins_at: u64,
    account: Account,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    head: Option<AnswerHead>,
    /// True once the head of the body has arrived.
    has_begun: bool,
    chunks: VecDeque<Chunk>,
    /// The number of bytes in `chunks`.
    unread: usize,
    /// The bytes of memory that the heads of this stream take. They count until the stream is
    /// dropped, because who reads its body mostly keeps them.
    head_bytes: usize,
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

/// The reason why an open stream has ended early.
#[derive(Clone, Debug)]
pub(in crate::peer) enum Lost {
    /// The other side did nothing for the request.
    Refused,
    /// The stream or the connection broke.
    Broken(Broken),
}

/// The reason why a request has no answer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(in crate::peer) enum NoAnswer {
    /// The other side did nothing for the request.
    Refused,
    /// The connection broke; the request may have been carried out, or not.
    Broken(Broken),
    /// Nothing was sent, because the head of the request does not fit a frame.
    TooLong(HeadTooLong),
}

impl Stream {
    /// Creates the stream of a request that this side sends from the offset `begins_at` on.
    pub(in crate::peer) fn requested(id: u32, begins_at: u64, account: Account) -> Self {
        Self {
            id,
            begins_at,
            account,
            state: Mutex::new(State {
                credit: WINDOW_BYTES,
                ..State::default()
            }),
        }
    }

    /// Creates the stream of a request that the other side has sent, with the bytes of memory that
    /// the head of the request takes.
    pub(in crate::peer) fn accepted(id: u32, head_bytes: usize, received: &Arc<Received>) -> Self {
        received.add(head_bytes);
        let account = Account {
            connection: Arc::clone(received),
            answer: None,
        };
        let mut stream = Self::requested(id, 0, account);
        let state = stream.state.get_mut();
        state.has_begun = true;
        state.head_bytes = head_bytes;
        stream
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
    ///
    /// # Errors
    /// Returns an error if the stream has had its answer, or if the body is longer than a window.
    pub(in crate::peer) fn answered(
        &self,
        head: AnswerHead,
        body: Bytes,
        is_last: bool,
    ) -> Result<(), Broken> {
        let mut taken = Ok(());
        self.update(|state| {
            if state.has_begun {
                taken = Err(Broken::Protocol("a request is answered twice"));
                return;
            }
            state.has_begun = true;
            state.keep_head(memory_of(&head.headers), &self.account);
            state.head = Some(head);
            taken = state.take(body, is_last, &self.account);
        });
        taken
    }

    /// Stores more of a body.
    ///
    /// # Errors
    /// Returns an error if the other side sends more than it has credit for, or if the body has not
    /// begun or has ended.
    pub(in crate::peer) fn came(&self, body: Bytes, is_last: bool) -> Result<(), Broken> {
        let mut taken = Ok(());
        self.update(|state| taken = state.take(body, is_last, &self.account));
        taken
    }

    /// Stores the trailers, which end a body.
    ///
    /// # Errors
    /// Returns an error if the body has not begun or has ended.
    pub(in crate::peer) fn ended(&self, trailers: HeaderMap) -> Result<(), Broken> {
        let mut taken = Ok(());
        self.update(|state| {
            taken = state.goes_on();
            if taken.is_ok() && state.end.is_none() {
                state.keep_head(memory_of(&trailers), &self.account);
                state.end = Some(End::Whole(Some(trailers)));
            }
        });
        taken
    }

    /// Returns the bytes of memory that the stream counts against its connection's budget.
    pub(in crate::peer) fn held_bytes(&self) -> usize {
        let state = self.state.lock();
        state.unread + state.head_bytes
    }

    /// Returns the memory that the answer to a client holds.
    pub(super) fn held_answer(&self) -> Option<&Arc<HeldAnswer>> {
        self.account.answer.as_ref()
    }

    /// Returns whether the reader has read all that has arrived, and waits for more.
    pub(super) fn is_read(&self) -> bool {
        self.state.lock().reader.is_some()
    }

    /// Ends the stream and drops what its reader has not taken.
    pub(in crate::peer) fn drop_unread(&self) {
        self.update(|state| {
            state.forget(&self.account);
            state.head = None;
            state.end = Some(End::Broken(Broken::Unread));
        });
    }

    pub(in crate::peer) fn credited(&self, bytes: u32) {
        self.update(|state| {
            state.credit = state.credit.saturating_add(bytes as usize);
        });
    }

    /// Ends the stream because the other side reset it or the connection broke. Bytes that arrived
    /// stay readable.
    pub(in crate::peer) fn broke(&self, why: &Lost) {
        self.update(|state| {
            if state.end.is_none() {
                state.end = Some(match why {
                    Lost::Refused => End::Refused,
                    Lost::Broken(why) => End::Broken(why.clone()),
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
    pub(super) fn poll_credit(
        &self,
        bytes: usize,
        context: &mut Context<'_>,
    ) -> Poll<Result<usize, Broken>> {
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

impl Drop for Stream {
    fn drop(&mut self) {
        self.state.get_mut().forget(&self.account);
    }
}

impl State {
    /// Checks that more of a body may come.
    fn goes_on(&self) -> Result<(), Broken> {
        match self.end {
            Some(End::Whole(_)) => Err(Broken::Protocol("a body goes on after its end")),
            None if !self.has_begun => Err(Broken::Protocol("a body came without a head")),
            Some(End::Refused | End::Broken(_)) | None => Ok(()),
        }
    }

    fn keep_head(&mut self, bytes: usize, account: &Account) {
        self.head_bytes += bytes;
        account.connection.add(bytes);
    }

    fn take(&mut self, body: Bytes, is_last: bool, account: &Account) -> Result<(), Broken> {
        self.goes_on()?;
        if self.end.is_some() {
            // Another task has ended the stream, and what was dropped must not be missing in the middle.
            return Ok(());
        }
        if self.unread + body.len() > WINDOW_BYTES {
            let why = "a stream has more under way than it may";
            return Err(Broken::Protocol(why));
        }
        if !body.is_empty() {
            self.unread += body.len();
            account.add_body(body.len());
            self.store(body, &account.connection);
        }
        if is_last {
            self.end = Some(End::Whole(None));
        }
        Ok(())
    }

    /// Stores a part of a body behind those that nobody has read. If the reader keeps up there are
    /// none, and nothing is copied. A small part behind another one is copied: as a slice it would
    /// keep a whole read buffer in memory, and an entry of the queue for perhaps a single byte.
    fn store(&mut self, body: Bytes, received: &Received) {
        let is_small = body.len() < READ_BYTES;
        match self.chunks.back_mut() {
            Some(Chunk::Copy(last)) if is_small && last.len() + body.len() <= CHUNK_BYTES => {
                last.extend_from_slice(&body);
            }
            Some(_) if is_small => self.chunks.push_back(Chunk::Copy(body[..].into())),
            None if is_small && !received.may_slice() => {
                self.chunks.push_back(Chunk::Copy(body[..].into()));
            }
            Some(_) | None => {
                received.add_slice();
                self.chunks.push_back(Chunk::Slice(body));
            }
        }
    }

    /// Removes the first part of the body that nobody has read.
    fn next_chunk(&mut self, account: &Account) -> Option<Bytes> {
        let chunk = self.chunks.pop_front()?;
        if matches!(chunk, Chunk::Slice(_)) {
            account.connection.remove_slice();
        }
        let bytes = chunk.into_bytes();
        self.unread -= bytes.len();
        account.remove_body(bytes.len());
        Some(bytes)
    }

    /// Drops all that nobody has read, and gives its bytes back.
    fn forget(&mut self, account: &Account) {
        while self.next_chunk(account).is_some() {}
        let head_bytes = std::mem::take(&mut self.head_bytes);
        account.connection.remove(head_bytes);
    }
}

fn wait(place: &mut Option<Waker>, context: &Context<'_>) {
    match place {
        Some(waker) => waker.clone_from(context.waker()),
        None => *place = Some(context.waker().clone()),
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
        self.stream.account.set_sending(None);
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
    /// Returns the count of what the reader of an answer keeps, empty at first.
    pub(crate) fn kept(&self) -> Kept {
        Kept::empty(&self.stream.account)
    }

    /// Notes how the answer is sent to its client.
    pub(crate) fn set_sending(&self, sending: &Arc<Sending>) {
        self.stream.account.set_sending(Some(Arc::clone(sending)));
    }

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
        let Some(chunk) = state.next_chunk(&self.stream.account) else {
            let state = &mut *state;
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
        state.uncredited += chunk.len();
        // Credit that is kept back is sent once there is memory again and the reader reads on.
        let window = match self.stream.account.is_short() {
            true => SHORT_WINDOW_BYTES,
            false => WINDOW_BYTES,
        };
        let kept_back = WINDOW_BYTES - window;
        let mut credit = 0;
        if state.uncredited >= kept_back + window / CREDIT_PART && state.end.is_none() {
            credit = (state.uncredited - kept_back) as u32;
            state.uncredited = kept_back;
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
