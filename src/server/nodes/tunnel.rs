//! Connections that last: a tunnel that passes bytes on in both directions, and the body of an answer
//! that a node or pod sends.

use std::pin::{Pin, pin};
use std::sync::atomic::{AtomicU64, Ordering};
use std::task::{Context, Poll};
use std::time::Duration;

use bytes::Bytes;
use futures_util::FutureExt as _;
use http_body::{Body as _, Frame, SizeHint};
use hyper::body::Incoming;
use hyper::upgrade::{OnUpgrade, Upgraded};
use hyper_util::rt::TokioIo;
use tokio::io::{AsyncRead, AsyncReadExt as _, AsyncWrite, AsyncWriteExt as _};
use tokio::time::{Instant, Sleep, sleep, timeout};
use tokio_util::sync::WaitForCancellationFutureOwned;
use tokio_util::task::AbortOnDropHandle;

use crate::answer::body::BodyEnd;
use crate::answer::guard::{Finite, ReadLimits};
use crate::nodes::seats::NodeSeat;
use crate::nodes::{IDLE_MAX, TOTAL_MAX};
use crate::watch::open_watches::OpenWatchEntry;

/// Bytes that a tunnel holds for one direction. More would cost memory per tunnel; less would cost more
/// system calls.
const BUFFER_BYTES: usize = 16 * 1024;
/// How long the client's connection may take to change its protocol. Without the limit, one that hangs
/// would keep the connection to the node.
const CHANGE_TIME_MAX: Duration = Duration::from_secs(10);
/// Longest time for which a client may read nothing of what a node has sent. A person may stop the
/// output of a log for a while.
const STALL_MAX: Duration = Duration::from_secs(15 * 60);

/// The times for an answer of a node or pod.
pub(super) const READ_LIMITS: ReadLimits = ReadLimits {
    total_max: TOTAL_MAX,
    stall_max: STALL_MAX,
};

/// What a connection holds as long as it lasts.
pub(super) struct Held {
    pub _seat: NodeSeat,
    /// Ends the connection if its caller may not use the plane any more, or the server drains.
    pub entry: OpenWatchEntry,
    /// The task that drives HTTP on the connection to the server.
    pub _driver: AbortOnDropHandle<()>,
}

/// An upgraded connection to a node or pod, which waits for that of the client.
pub(crate) struct Tunnel {
    pub(super) server: Upgraded,
    pub(super) held: Held,
}

impl Tunnel {
    /// Passes bytes on until one side closes, or the tunnel has to end.
    pub(super) async fn serve(self, client: OnUpgrade) {
        let Ok(Ok(client)) = timeout(CHANGE_TIME_MAX, client).await else {
            return;
        };
        let (from_client, to_client) = tokio::io::split(TokioIo::new(client));
        let (from_server, to_server) = tokio::io::split(TokioIo::new(self.server));
        let passed = AtomicU64::new(0);
        let up = pin!(pass(from_client, to_server, &passed));
        let down = pin!(pass(from_server, to_client, &passed));
        tokio::select! {
            // The end first, so that a busy tunnel ends too.
            biased;
            () = self.held.entry.ending().cancelled_owned() => {}
            () = quiet(&passed) => {}
            () = sleep(TOTAL_MAX) => {}
            // As upstream: when one direction ends, the other is of no use to the protocols.
            () = down => {}
            () = up => {}
        }
        // Until here: the seat is held as long as the tunnel lasts.
        drop(self.held);
    }
}

/// Copies from one side to the other until one of them ends, and closes the other.
async fn pass(
    mut from: impl AsyncRead + Unpin,
    mut to: impl AsyncWrite + Unpin,
    passed: &AtomicU64,
) {
    let mut buffer = vec![0; BUFFER_BYTES];
    loop {
        let read = match from.read(&mut buffer).await {
            Ok(0) | Err(_) => break,
            Ok(read) => read,
        };
        passed.fetch_add(read as u64, Ordering::Relaxed);
        if to.write_all(&buffer[..read]).await.is_err() || to.flush().await.is_err() {
            return;
        }
    }
    let _closed = to.shutdown().await;
}

/// Waits until no byte has passed for a time between [`IDLE_MAX`] and twice this time.
async fn quiet(passed: &AtomicU64) {
    loop {
        let before = passed.load(Ordering::Relaxed);
        sleep(IDLE_MAX).await;
        if passed.load(Ordering::Relaxed) == before {
            return;
        }
    }
}

/// The body of an answer of a node or pod.
pub(super) struct NodeBody {
    body: Incoming,
    _held: Held,
    ending: Pin<Box<WaitForCancellationFutureOwned>>,
    quiet: Pin<Box<Sleep>>,
}

impl NodeBody {
    pub(super) fn new(body: Incoming, held: Held) -> Self {
        Self {
            body,
            ending: Box::pin(held.entry.ending().cancelled_owned()),
            quiet: Box::pin(sleep(IDLE_MAX)),
            _held: held,
        }
    }
}

impl Finite for NodeBody {
    fn poll_next(
        &mut self,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, BodyEnd>>> {
        if let Poll::Ready(frame) = Pin::new(&mut self.body).poll_frame(context) {
            self.quiet.as_mut().reset(Instant::now() + IDLE_MAX);
            return Poll::Ready(frame.map(|frame| frame.map_err(BodyEnd::Node)));
        }
        let is_over =
            self.ending.poll_unpin(context).is_ready() || self.quiet.poll_unpin(context).is_ready();
        match is_over {
            true => Poll::Ready(None),
            false => Poll::Pending,
        }
    }

    fn size(&self) -> SizeHint {
        self.body.size_hint()
    }
}
