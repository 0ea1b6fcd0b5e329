//! The body of an answer on its way to a client's connection, as the connection sees it.
//!
//! The connection gets the body in pieces of at most 64 KiB, because what it has taken of a body it keeps until the
//! client reads. With HTTP/2, the body ends only once the connection keeps little of it: a stream that has ended
//! has no request any more whose end would free what is queued. Small answers end at once.
//!
//! Invariant: a request counts as in flight until its body is dropped.

use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};

use bytes::Bytes;
use http::HeaderMap;
use http_body::{Body, Frame, SizeHint};

use crate::answer::body::{BodyEnd, ResponseBody};
use crate::connection::open_connections::Unread;
use crate::connection::unread::{Piece, Sending, UnreadAnswers};
use crate::watch::packed;

/// Longest piece in bytes. With more, h2 would queue more for a client that has given room for a byte; with less, a
/// large answer would cost more frames.
const PIECE_BYTES_MAX: usize = 64 * 1024;

/// How an answer is sent to its client.
pub(crate) enum Sent {
    /// On a stream of its own, whose request ends when the answer is cut.
    InStream(Arc<Sending>),
    /// As the only answer that the connection sends, which is listed there while it is unread.
    Alone(Arc<Sending>, Arc<UnreadAnswers>),
}

impl Sent {
    fn sending(&self) -> &Arc<Sending> {
        match self {
            Self::InStream(sending) | Self::Alone(sending, _) => sending,
        }
    }
}

/// The body of an answer, whose request counts as in flight until this is dropped.
pub(crate) struct CountedBody {
    body: ResponseBody,
    /// What is left of the body's last chunk.
    rest: Bytes,
    /// True once the body has no more chunks.
    has_ended: bool,
    trailers: Option<Box<HeaderMap>>,
    /// True if each chunk is compressed.
    packs: bool,
    sent: Sent,
    _unread: Unread,
}

impl CountedBody {
    pub(crate) fn new(body: ResponseBody, packs: bool, sent: Sent, unread: Unread) -> Self {
        body.send_by(sent.sending());
        Self {
            body,
            rest: Bytes::new(),
            has_ended: false,
            trailers: None,
            packs,
            sent,
            _unread: unread,
        }
    }

    /// Polls the body for its next chunk, if there is nothing left of the last one.
    fn poll_rest(&mut self, context: &mut Context<'_>) -> Poll<Result<(), BodyEnd>> {
        while self.rest.is_empty() && !self.has_ended {
            if self.body.is_end_stream() {
                self.has_ended = true;
                break;
            }
            match ready!(Pin::new(&mut self.body).poll_frame(context)) {
                Some(frame) => match frame?.into_data() {
                    Ok(chunk) if self.packs => self.rest = packed::member(&chunk),
                    Ok(chunk) => self.rest = chunk,
                    Err(frame) => {
                        self.has_ended = true;
                        self.trailers = frame.into_trailers().ok().map(Box::new);
                    }
                },
                None => self.has_ended = true,
            }
        }
        Poll::Ready(Ok(()))
    }

    /// Returns the next piece of what is left of the chunk.
    fn next_piece(&mut self) -> Piece {
        let length = self.rest.len().min(PIECE_BYTES_MAX);
        let bytes = self.rest.split_to(length);
        let is_last = self.is_over();
        let sending = self.sent.sending();
        let piece = match is_last {
            true => sending.give_last(bytes),
            false => sending.give(bytes),
        };
        if let Sent::Alone(sending, unread) = &self.sent
            && sending.keeps_much()
        {
            unread.list(sending);
        }
        piece
    }

    /// Returns whether all of the body is handed over.
    fn is_over(&self) -> bool {
        let has_ended = self.has_ended || self.body.is_end_stream();
        has_ended && self.rest.is_empty() && self.trailers.is_none()
    }
}

impl Drop for CountedBody {
    fn drop(&mut self) {
        self.sent.sending().passed_on();
    }
}

impl Body for CountedBody {
    type Data = Piece;
    type Error = BodyEnd;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Piece>, BodyEnd>>> {
        let this = &mut *self;
        this.sent.sending().passed_on();
        if let Err(end) = ready!(this.poll_rest(context)) {
            return Poll::Ready(Some(Err(end)));
        }
        if !this.rest.is_empty() {
            return Poll::Ready(Some(Ok(Frame::data(this.next_piece()))));
        }
        if let Sent::InStream(sending) = &this.sent {
            ready!(sending.poll_end(context));
        }
        let trailers = this.trailers.take();
        Poll::Ready(trailers.map(|trailers| Ok(Frame::trailers(*trailers))))
    }

    fn is_end_stream(&self) -> bool {
        let delays_end = match &self.sent {
            Sent::InStream(sending) => sending.keeps_much(),
            Sent::Alone(..) => false,
        };
        !delays_end && self.is_over()
    }

    fn size_hint(&self) -> SizeHint {
        let left = self.body.size_hint();
        match left.exact() {
            Some(bytes) => SizeHint::with_exact(bytes + self.rest.len() as u64),
            None => left,
        }
    }
}
