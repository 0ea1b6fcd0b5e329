//! The end of a connection of HTTP/1.1 whose client still sends a body that nobody reads.
//!
//! To close a socket with unread bytes resets the connection, and a client that meets the reset while it sends may
//! never read its answer. So the answer says that it is the last, the connection is ended towards the client alone,
//! and the socket is closed a little later, as Go's servers do. Nothing more of the body is read meanwhile.

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

/// How long the socket of such a connection is kept after its last answer. With less, clients would lose answers on
/// slow lines; more would let strangers hold connections longer.
const DELAY: Duration = Duration::from_millis(500);

/// Whether the last answer leaves a body unread.
#[derive(Clone, Debug, Default)]
pub(crate) struct ResetDelay(Arc<AtomicBool>);

impl ResetDelay {
    /// Notes the answer that is sent next. If it leaves a body unread, it says that it is the last.
    pub(crate) fn noted(&self, mut reply: Reply) -> Reply {
        let is_unread = reply.extensions().get::<BodyUnread>().is_some();
        if is_unread {
            let close = HeaderValue::from_static("close");
            reply.headers_mut().insert(CONNECTION, close);
        }
        self.0.store(is_unread, Ordering::Relaxed);
        reply
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
