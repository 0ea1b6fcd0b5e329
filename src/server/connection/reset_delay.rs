//! The end of a connection of HTTP/1.1, or of a stream of HTTP/2, whose client still sends a body that nobody reads.
//!
//! To close a socket with unread bytes resets the connection, and a client that meets the reset while it sends may
//! never read its answer. So the answer says that it is the last, the connection is ended towards the client alone,
//! and the socket is closed a little later, as Go's servers do. Nothing more of the body is read meanwhile.
//!
//! With HTTP/2 the stream is reset, without an error, behind a complete answer. A client that reads the reset together
//! with the answer may show no answer either: curl 7.88 ends with error 92. So the reset follows a little later too.
//! h2 resets the stream once nothing refers to it, so its request is kept until then ([`StreamDelay`]). What arrives of
//! the body meanwhile is dropped. An answer takes none of the room for such streams before it has ended: a watch goes on
//! for hours, and watches whose bodies never end would take the room of all.

use std::io::{self, IoSlice};
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Poll, ready};
use std::time::Duration;

use http::HeaderValue;
use http::header::CONNECTION;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::time::{Sleep, sleep};

use crate::answer::respond::Reply;
use crate::request::body::BodyUnread;
use crate::request::seats::{Seat, Seats};

/// How long the socket of such a connection, or such a stream, is kept after its last answer. With less, clients would
/// lose answers on slow lines; more would let strangers hold connections and streams longer.
const DELAY: Duration = Duration::from_millis(500);
/// Streams of one connection that are kept at a time; others are reset together with their answers. Clients have few
/// bodies under way at a time. With more, one client could take the places of all connections.
const STREAMS_PER_CONNECTION_MAX: usize = 8;
/// Streams of all connections that are kept at a time; others are reset together with their answers. Each takes a KiB or
/// two, which no budget counts.
pub(crate) const STREAMS_MAX: usize = 1024;

/// Whether the last answer leaves a body unread.
#[derive(Clone, Debug, Default)]
pub(crate) struct ResetDelay(Arc<AtomicBool>);

impl ResetDelay {
    /// Notes the answer that is sent next. If it leaves a body unread, it says that it is the last.
    pub(crate) fn noted(&self, mut reply: Reply) -> Reply {
        let is_unread = leaves_body(&reply);
        if is_unread {
            let close = HeaderValue::from_static("close");
            reply.headers_mut().insert(CONNECTION, close);
        }
        self.0.store(is_unread, Ordering::Relaxed);
        reply
    }
}

/// Returns whether the client of a reply may still be sending a body that nobody reads.
pub(crate) fn leaves_body(reply: &Reply) -> bool {
    reply.extensions().get::<BodyUnread>().is_some()
}

/// The streams of one connection of HTTP/2 that are kept after their answers.
#[derive(Debug)]
pub(crate) struct KeptStreams {
    of_connection: Arc<Seats>,
    of_all: Arc<Seats>,
}

/// Keeps a stream of HTTP/2 for a while after its answer.
#[derive(Debug)]
pub(crate) struct StreamDelay {
    _of_connection: Seat,
    _of_all: Seat,
}

impl KeptStreams {
    /// Creates those of a connection, none so far, among those of all connections.
    pub(crate) fn new(of_all: &Arc<Seats>) -> Self {
        Self {
            of_connection: Seats::new(STREAMS_PER_CONNECTION_MAX),
            of_all: Arc::clone(of_all),
        }
    }

    /// Returns what keeps the stream of an answer that has ended, if there is room.
    pub(crate) fn delay(&self) -> Option<StreamDelay> {
        Some(StreamDelay {
            _of_connection: self.of_connection.take()?,
            _of_all: self.of_all.take()?,
        })
    }
}

impl StreamDelay {
    /// Waits until the stream may be reset.
    ///
    /// # Cancel safety
    /// Dropping the future ends the delay.
    pub(crate) async fn passed(self) {
        sleep(DELAY).await;
    }
}

/// A stream whose end waits, if a body is unread.
pub(crate) struct DelayedReset<S> {
    stream: S,
    delay: ResetDelay,
    /// Set once the stream has ended towards the client.
    ending: Option<Pin<Box<Sleep>>>,
}

impl<S> DelayedReset<S> {
    /// Creates the stream, and what decides on its end.
    pub(crate) fn new(stream: S) -> (Self, ResetDelay) {
        let delay = ResetDelay::default();
        let stream = Self {
            stream,
            delay: delay.clone(),
            ending: None,
        };
        (stream, delay)
    }
}

impl<S: AsyncRead + Unpin> AsyncRead for DelayedReset<S> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_read(context, buffer)
    }
}

impl<S: AsyncWrite + Unpin> AsyncWrite for DelayedReset<S> {
    fn poll_write(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.stream).poll_write(context, bytes)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        slices: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.stream).poll_write_vectored(context, slices)
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_flush(context)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        let this = &mut *self;
        if this.ending.is_none() {
            ready!(Pin::new(&mut this.stream).poll_shutdown(context))?;
            if !this.delay.0.load(Ordering::Relaxed) {
                return Poll::Ready(Ok(()));
            }
        }
        let ending = this.ending.get_or_insert_with(|| Box::pin(sleep(DELAY)));
        ending.as_mut().poll(context).map(Ok)
    }
}

#[cfg(test)]
mod tests {
    use http::StatusCode;

    use super::*;
    use crate::answer::body::ResponseBody;
    use crate::answer::respond::bare;
    use crate::connection::unread::Sending;

    fn reply() -> Reply {
        bare(StatusCode::UNAUTHORIZED, ResponseBody::empty())
    }

    fn reply_with_unread_body() -> Reply {
        let mut reply = reply();
        reply.extensions_mut().insert(BodyUnread);
        reply
    }

    #[test]
    fn a_connection_keeps_some_streams_and_never_takes_the_room_of_all() {
        let of_all = Seats::new(STREAMS_PER_CONNECTION_MAX + 1);
        let (one, other) = (KeptStreams::new(&of_all), KeptStreams::new(&of_all));
        let mut kept: Vec<StreamDelay> = std::iter::from_fn(|| one.delay()).collect();
        assert_eq!(kept.len(), STREAMS_PER_CONNECTION_MAX);
        let last = other.delay();
        assert!(last.is_some());
        assert!(other.delay().is_none(), "all have no more room");
        assert_eq!(other.of_connection.taken(), 1, "what found none takes none");
        kept.pop();
        assert!(other.delay().is_some());
    }

    #[test]
    fn an_answer_takes_the_room_of_a_kept_stream_only_once_it_has_ended() {
        assert!(leaves_body(&reply_with_unread_body()));
        assert!(!leaves_body(&reply()));
        let of_all = Seats::new(1);
        let streams = Arc::new(KeptStreams::new(&of_all));
        let (watch, cut) = (Sending::default(), Sending::default());
        watch.keep_stream(&streams);
        cut.keep_stream(&streams);
        assert_eq!(of_all.taken(), 0, "they go on");
        cut.cut();
        assert!(cut.take_delay().is_none(), "there is no end to read");
        let delay = watch.take_delay();
        assert_eq!((delay.is_some(), of_all.taken()), (true, 1));
        drop(delay);
        assert_eq!(of_all.taken(), 0);
        let read = Sending::default();
        assert!(read.take_delay().is_none(), "its body was read");
    }

    #[tokio::test(start_paused = true)]
    async fn a_stream_is_kept_for_half_a_second() {
        let of_all = Seats::new(1);
        let streams = KeptStreams::new(&of_all);
        let delay = streams.delay();
        let began = tokio::time::Instant::now();
        delay.expect("there is room").passed().await;
        assert!(began.elapsed() >= DELAY);
        assert_eq!(of_all.taken(), 0);
    }
}
