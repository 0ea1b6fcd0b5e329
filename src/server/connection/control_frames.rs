//! Limits the frames of HTTP/2 with which a client makes the server work although they carry nothing of a request:
//! settings, pings, priorities, resets, window updates, and frames of unknown types.
//!
//! The library bounds what it must keep, resets of streams that have not begun, continuations of a head, and small
//! pieces of bodies, of which it keeps thousands: while a connection has proven nobody, those are limited here too. The
//! library takes as many of the others as a client sends, and carries out settings once for each open stream. A
//! connection therefore has a budget of such frames. Requests, answers and time add to it, because clients need a few
//! frames for each request, acknowledge what they read, and try whether the server is still there. A client that has
//! used up the budget loses the connection, which counts as flooding. So does one that the library ends ([`is_flood`]).
//!
//! The library also keeps heads that it has read, and for each piece of a body the buffer that the piece was read into.
//! While a connection has proven nobody, their memory is bounded here as [`strange_heads`](super::strange_heads) says.

use std::error::Error as _;
use std::io::{self, IoSlice};
use std::mem;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::task::{Context, Poll, ready};

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::time::Instant;

use crate::connection::open_connections::OpenConnection;
use crate::connection::strange_heads::{HeldHead, UNFINISHED_BYTES};

/// The budget of a new connection, and the most that time adds to one that has none left. With less, a client could not
/// acknowledge at once what it has received over some time; with more, a new connection would cost the server more than
/// its handshake does.
const FRAMES_AT_ONCE_MAX: u64 = 10_000;
/// What a second adds to the budget. With more, a connection on which nothing else happens could cause much work.
const FRAMES_PER_SECOND: u64 = 1000;
/// What a request adds: clients update windows, set a priority and reset the stream.
const FRAMES_PER_REQUEST: u64 = 8;
/// The bytes sent that add one frame. Clients acknowledge a piece of a body at most twice, for its stream and for the
/// connection, and Go's only every 4 KiB; events of watches rarely have less than 128 bytes.
const SENT_BYTES_PER_FRAME: u64 = 64;
/// What a piece of a body of fewer than [`SMALL_DATA_BYTES`] takes while the connection has proven nobody. The library
/// keeps some hundred bytes for each piece until somebody reads it. With less, a stranger could fill the room for bodies
/// with single bytes, and megabytes with what is kept for them; with more, clients that begin with a thousand small
/// requests would lose their connection.
const SMALL_DATA_COST: u64 = 16;
/// The size of a piece that takes no more memory than twice its bytes.
const SMALL_DATA_BYTES: usize = 256;
/// The size of a piece that takes no more than twice its bytes together with its buffer.
const LARGE_DATA_BYTES: usize = BUFFER_BYTES / 2;
/// The library's buffer, which a smaller piece keeps until somebody reads it. What else is in it the client may fill with
/// what costs nothing.
const BUFFER_BYTES: usize = 16 * 1024;
/// What settings take from the budget, because they are carried out for each open stream. Clients send them when
/// they connect, and a few times while they adapt their windows.
const SETTINGS_COST: u64 = 64;

/// The length of what clients send before the first frame.
const PREFACE_BYTES: usize = 24;
/// The length of the head of a frame.
const HEAD_BYTES: usize = 9;

// The types of frames that are not counted one by one (RFC 9113, 6).
const DATA: u8 = 0;
const HEADERS: u8 = 1;
const SETTINGS: u8 = 4;
const CONTINUATION: u8 = 9;
/// The flag of a frame with which a head ends.
const END_HEADERS: u8 = 4;

/// The reason why a connection ends.
#[derive(Debug, thiserror::Error)]
#[error("the client sends too many frames that carry nothing of a request")]
struct TooManyFrames;

/// A client's connection whose frames are limited. It ends with an error once the client has sent too many.
pub(crate) struct LimitedFrames<S> {
    stream: S,
    budget: FrameBudget,
    open: Arc<OpenConnection>,
    /// The head that has begun and not ended.
    unfinished: Option<HeldHead>,
    /// The buffers that pieces of bodies may keep; none once no request is under way.
    buffers: Vec<HeldHead>,
    /// Counts the connection once its client has sent too many frames; `None` after that.
    flooding: Option<Arc<AtomicU64>>,
}

impl<S> LimitedFrames<S> {
    /// Limits the frames of a new connection.
    pub(crate) fn new(stream: S, open: &Arc<OpenConnection>) -> Self {
        Self {
            stream,
            budget: FrameBudget::new(),
            open: Arc::clone(open),
            unfinished: None,
            buffers: Vec::new(),
            flooding: Some(open.flooding()),
        }
    }

    /// Takes room for a head that has begun and not ended.
    fn hold_unfinished(&mut self) -> io::Result<()> {
        if !self.budget.in_head {
            self.unfinished = None;
        } else if self.unfinished.is_none() {
            let head = self.open.heads().hold(UNFINISHED_BYTES);
            self.unfinished = Some(head.map_err(io::Error::other)?);
        }
        Ok(())
    }

    /// Gives back the room of buffers that nothing keeps any more.
    fn release_buffers(&mut self) {
        if !self.buffers.is_empty() && (self.open.is_proven() || self.open.is_idle()) {
            self.buffers = Vec::new();
        }
    }

    /// Takes room for the buffers that pieces of bodies keep.
    fn hold_buffers(&mut self) -> io::Result<()> {
        self.release_buffers();
        let pieces = mem::take(&mut self.budget.small_pieces);
        if pieces > 0 {
            let buffers = self.open.heads().hold(pieces * BUFFER_BYTES);
            self.buffers.push(buffers.map_err(io::Error::other)?);
        }
        Ok(())
    }
}

/// Returns whether the library has ended a connection because its client sends too many frames of a kind that the
/// library bounds: resets of streams that have not begun, faults, continuations of a head, small pieces of bodies.
pub(crate) fn is_flood(error: &hyper::Error) -> bool {
    let cause = error.source();
    let cause = cause.and_then(|cause| cause.downcast_ref::<h2::Error>());
    cause.is_some_and(|cause| {
        cause.is_library() && cause.reason() == Some(h2::Reason::ENHANCE_YOUR_CALM)
    })
}

/// The frames that a client may send, and its place in the stream of frames.
struct FrameBudget {
    left: u64,
    /// True while the connection has proven nobody.
    is_strange: bool,
    /// The pieces of a stranger's bodies whose buffers have no room yet.
    small_pieces: usize,
    /// True while a head has begun and not ended.
    in_head: bool,
    /// The newest stream.
    newest: u32,
    /// The bytes sent that have not added a frame yet.
    sent_bytes: u64,
    /// The time up to which time has been added.
    refilled: Instant,
    /// The bytes that come before the head of the next frame.
    skipped: usize,
    head: [u8; HEAD_BYTES],
    /// The number of bytes of the head that have come.
    head_len: usize,
}

impl FrameBudget {
    fn new() -> Self {
        Self {
            left: FRAMES_AT_ONCE_MAX,
            is_strange: false,
            small_pieces: 0,
            in_head: false,
            newest: 0,
            sent_bytes: 0,
            refilled: Instant::now(),
            skipped: PREFACE_BYTES,
            head: [0; HEAD_BYTES],
            head_len: 0,
        }
    }

    /// Takes what bytes from the client cost.
    fn received(&mut self, mut bytes: &[u8]) -> Result<(), TooManyFrames> {
        let mut taken = Ok(());
        while !bytes.is_empty() {
            let skipped = self.skipped.min(bytes.len());
            self.skipped -= skipped;
            bytes = &bytes[skipped..];
            let known = self.head_len;
            let (more, rest) = bytes.split_at(bytes.len().min(HEAD_BYTES - known));
            self.head[known..known + more.len()].copy_from_slice(more);
            self.head_len += more.len();
            bytes = rest;
            if self.head_len == HEAD_BYTES {
                let [high, middle, low, kind, flags, stream @ ..] = self.head;
                let length = [high, middle, low].map(usize::from);
                self.skipped = length.iter().fold(0, |length, byte| (length << 8) | byte);
                self.head_len = 0;
                taken = taken.and(self.take(kind, self.skipped));
                if matches!(kind, HEADERS | CONTINUATION) {
                    self.in_head = flags & END_HEADERS == 0;
                }
                if kind == HEADERS {
                    // Without the reserved bit.
                    let stream = u32::from_be_bytes(stream) & (u32::MAX >> 1);
                    taken = taken.and(self.begin_stream(stream));
                }
            }
        }
        taken
    }

    /// Notes the stream that a head is of. A stranger sends no second head, the trailers, on a stream.
    fn begin_stream(&mut self, stream: u32) -> Result<(), TooManyFrames> {
        if self.is_strange && stream <= self.newest {
            return Err(TooManyFrames);
        }
        self.newest = self.newest.max(stream);
        Ok(())
    }

    /// Takes what a frame with a payload of `length` bytes costs.
    fn take(&mut self, kind: u8, length: usize) -> Result<(), TooManyFrames> {
        let cost = match kind {
            DATA if self.is_strange && (1..LARGE_DATA_BYTES).contains(&length) => {
                self.small_pieces += 1;
                u64::from(length < SMALL_DATA_BYTES) * SMALL_DATA_COST
            }
            DATA | CONTINUATION => 0,
            HEADERS => {
                self.left = self.left.saturating_add(FRAMES_PER_REQUEST);
                0
            }
            SETTINGS => SETTINGS_COST,
            _ => 1,
        };
        if cost > self.left {
            self.refill();
        }
        self.left = self.left.checked_sub(cost).ok_or(TooManyFrames)?;
        Ok(())
    }

    /// Adds what the time since the last call adds. Called only when the budget is used up, so that a frame costs no
    /// look at the clock.
    fn refill(&mut self) {
        let now = Instant::now();
        let passed = now.duration_since(self.refilled).as_millis();
        let passed = u64::try_from(passed).unwrap_or(u64::MAX);
        let added = passed.saturating_mul(FRAMES_PER_SECOND) / 1000;
        self.left = self.left.saturating_add(added).min(FRAMES_AT_ONCE_MAX);
        self.refilled = now;
    }

    /// Adds what bytes to the client add.
    fn sent(&mut self, bytes: usize) {
        self.sent_bytes += bytes as u64;
        let added = self.sent_bytes / SENT_BYTES_PER_FRAME;
        self.left = self.left.saturating_add(added);
        self.sent_bytes %= SENT_BYTES_PER_FRAME;
    }
}

impl<S: AsyncRead + Unpin> AsyncRead for LimitedFrames<S> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let before = buffer.filled().len();
        ready!(Pin::new(&mut self.stream).poll_read(context, buffer))?;
        self.budget.is_strange = !self.open.is_proven();
        let received = self.budget.received(&buffer.filled()[before..]);
        if received.is_err()
            && let Some(flooding) = self.flooding.take()
        {
            flooding.fetch_add(1, Ordering::Relaxed);
        }
        received.map_err(io::Error::other)?;
        self.hold_buffers()?;
        Poll::Ready(self.hold_unfinished())
    }
}

impl<S: AsyncWrite + Unpin> AsyncWrite for LimitedFrames<S> {
    fn poll_write(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        self.poll_write_vectored(context, &[IoSlice::new(bytes)])
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        slices: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let written = ready!(Pin::new(&mut self.stream).poll_write_vectored(context, slices))?;
        self.budget.sent(written);
        Poll::Ready(Ok(written))
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }

    /// The library flushes what it has written of an answer, after which a client may be silent.
    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.release_buffers();
        Pin::new(&mut self.stream).poll_flush(context)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(context)
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _, DuplexStream, duplex};
    use tokio::time::advance;

    use super::*;
    use crate::connection::open_connections::{OpenConnections, Requests};
    use crate::request::doorway::Source;

    const PING: u8 = 6;

    /// Returns a frame with a payload that looks like frames.
    fn frame(kind: u8, length: u16) -> Vec<u8> {
        let [high, low] = length.to_be_bytes();
        let mut frame = vec![0, high, low, kind, 0, 0, 0, 0, 0];
        frame.resize(HEAD_BYTES + usize::from(length), PING);
        frame
    }

    fn connected() -> FrameBudget {
        let mut budget = FrameBudget::new();
        let preface = budget.received(&[0; PREFACE_BYTES]);
        preface.expect("there is no frame in it");
        budget
    }

    /// Returns how many frames are taken, at most `max`.
    fn taken(budget: &mut FrameBudget, kind: u8, max: u64) -> u64 {
        let frame = frame(kind, 8);
        let refused = (0..max).find(|_| budget.received(&frame).is_err());
        refused.unwrap_or(max)
    }

    #[tokio::test(start_paused = true)]
    async fn frames_without_requests_are_taken_up_to_the_limit() {
        for (kind, cost) in [(PING, 1), (2, 1), (3, 1), (8, 1), (200, 1), (SETTINGS, 64)] {
            let limit = FRAMES_AT_ONCE_MAX / cost;
            assert_eq!(taken(&mut connected(), kind, u64::MAX), limit, "{kind}");
        }
        for kind in [DATA, HEADERS, CONTINUATION] {
            let many = FRAMES_AT_ONCE_MAX * 2;
            assert_eq!(taken(&mut connected(), kind, many), many, "{kind}");
        }
    }

    #[tokio::test(start_paused = true)]
    async fn frames_are_found_however_their_bytes_arrive() {
        let all: Vec<u8> = [frame(DATA, 700), frame(PING, 8), frame(CONTINUATION, 0)].concat();
        for length in 1..all.len() {
            let mut budget = connected();
            for part in all.chunks(length) {
                budget.received(part).expect("they are few");
            }
            assert_eq!(budget.left, FRAMES_AT_ONCE_MAX - 1, "{length}");
            assert_eq!((budget.skipped, budget.head_len), (0, 0), "{length}");
        }
    }

    #[tokio::test(start_paused = true)]
    async fn requests_answers_and_time_let_a_client_send_more() {
        let mut budget = connected();
        assert_eq!(taken(&mut budget, PING, u64::MAX), FRAMES_AT_ONCE_MAX);
        budget.received(&frame(HEADERS, 100)).expect("a request");
        assert_eq!(taken(&mut budget, PING, u64::MAX), FRAMES_PER_REQUEST);
        // Twice for each piece of an answer, in the smallest windows of Go's client.
        for _ in 0..FRAMES_AT_ONCE_MAX {
            budget.sent(4096);
            assert_eq!(taken(&mut budget, 8, 2), 2);
        }
        let mut budget = connected();
        assert_eq!(taken(&mut budget, PING, u64::MAX), FRAMES_AT_ONCE_MAX);
        advance(Duration::from_secs(2)).await;
        assert_eq!(taken(&mut budget, PING, u64::MAX), 2 * FRAMES_PER_SECOND);
        // An idle time does not count without limit.
        advance(Duration::from_secs(3600)).await;
        assert_eq!(taken(&mut budget, PING, u64::MAX), FRAMES_AT_ONCE_MAX);
    }

    #[tokio::test(start_paused = true)]
    async fn a_stranger_sends_few_small_pieces_of_bodies() {
        let mut strange = connected();
        strange.is_strange = true;
        let limit = FRAMES_AT_ONCE_MAX / SMALL_DATA_COST;
        assert_eq!(taken(&mut strange, DATA, u64::MAX), limit);
        let large = frame(DATA, 256);
        let all_taken = (0..FRAMES_AT_ONCE_MAX).all(|_| strange.received(&large).is_ok());
        assert!(all_taken, "larger pieces take room for bodies alone");
    }

    #[tokio::test(start_paused = true)]
    async fn a_connection_with_too_many_frames_is_counted_once() {
        let pings = frame(PING, 8).repeat(10);
        let (mut client, server) = tokio::io::duplex(pings.len());
        let open = Arc::new(OpenConnections::new(1, 1).accept(Source::of(None)));
        let flooding = open.flooding();
        let mut limited = LimitedFrames::new(server, &open);
        let mut buffer = vec![0; pings.len()];
        client
            .write_all(&[0; PREFACE_BYTES])
            .await
            .expect("there is room");
        let preface = limited.read_exact(&mut buffer[..PREFACE_BYTES]).await;
        preface.expect("there is no frame in it");
        let mut refused = 0;
        for sent in 1..=FRAMES_AT_ONCE_MAX / 10 + 2 {
            client.write_all(&pings).await.expect("there is room");
            let read = limited.read(&mut buffer).await;
            refused += u64::from(read.is_err());
            let is_over = sent > FRAMES_AT_ONCE_MAX / 10;
            assert_eq!(flooding.load(Ordering::Relaxed), u64::from(is_over));
        }
        assert_eq!(refused, 2);
    }

    #[tokio::test]
    async fn a_stranger_sends_no_trailers() {
        // The last one has the reserved bit too.
        for (stream, is_taken) in [
            ([0, 0, 0, 5], true),
            ([0, 0, 0, 3], false),
            ([128, 0, 0, 3], false),
        ] {
            for is_strange in [true, false] {
                let mut budget = connected();
                budget.is_strange = is_strange;
                for (number, stream) in [[0, 0, 0, 3], stream].into_iter().enumerate() {
                    let mut head = frame(HEADERS, 8);
                    head[4] = END_HEADERS;
                    head[5..HEAD_BYTES].copy_from_slice(&stream);
                    let taken = budget.received(&head).is_ok();
                    assert_eq!(taken, number == 0 || is_taken || !is_strange, "{stream:?}");
                }
            }
        }
    }

    type Connected = (DuplexStream, LimitedFrames<DuplexStream>);

    /// Returns a new connection whose client has sent these bytes after its preface. `None` if they end it.
    async fn sent(all: &Arc<OpenConnections>, bytes: &[u8]) -> Option<Connected> {
        let (mut client, server) = duplex(1 << 18);
        let open = Arc::new(all.accept(Source::of(None)));
        let mut limited = LimitedFrames::new(server, &open);
        let first = [&[0; PREFACE_BYTES][..], bytes].concat();
        client.write_all(&first).await.expect("there is room");
        let read = limited.read_exact(&mut vec![0; first.len()]).await;
        read.ok().map(|_| (client, limited))
    }

    #[tokio::test]
    async fn small_pieces_of_strangers_take_their_buffers_until_no_request_is_under_way() {
        let all = OpenConnections::new(100, 1000);
        let pieces = |length: u16| frame(DATA, length).repeat(16);
        let mut held = Vec::new();
        while let Some(one) = sent(&all, &pieces(300)).await {
            held.push((one.1.open.requests().begin(), one));
        }
        // Half of 128 MiB, beside what each connection has.
        let shared = 16 * BUFFER_BYTES - 64 * 1024;
        assert_eq!(held.len(), 64 * 1024 * 1024 / shared);
        assert!(sent(&all, &pieces(8 * 1024)).await.is_some(), "large ones");
        // The connection of a request that has ended, and one that is proven.
        for is_proven in [false, true] {
            let (request, (client, limited)) = &mut held[usize::from(is_proven)];
            match is_proven {
                true => assert!(limited.open.mark_proven(None)),
                false => *request = Arc::<Requests>::default().begin(),
            }
            let ping = frame(PING, 8);
            client.write_all(&ping).await.expect("there is room");
            let read = limited.read_exact(&mut vec![0; ping.len()]).await;
            read.expect("a ping");
            assert!(limited.buffers.is_empty());
            assert!(sent(&all, &pieces(300)).await.is_some(), "room again");
        }
        // A client that sends nothing more.
        let (request, (_, limited)) = &mut held[2];
        limited.flush().await.expect("there is nothing to write");
        assert!(!limited.buffers.is_empty(), "its request is under way");
        *request = Arc::<Requests>::default().begin();
        limited.flush().await.expect("there is nothing to write");
        assert!(limited.buffers.is_empty());
    }

    #[tokio::test]
    async fn strangers_have_few_heads_that_do_not_end() {
        let all = OpenConnections::new(1, 100);
        let mut head = frame(HEADERS, 8);
        head[8] = 1;
        let mut unfinished = Vec::new();
        while let Some(one) = sent(&all, &head).await {
            unfinished.push(one);
        }
        assert_eq!(
            unfinished.len(),
            33,
            "half of 128 MiB, and what each connection has"
        );
        let mut rest = frame(CONTINUATION, 8);
        (rest[4], rest[8]) = (END_HEADERS, 1);
        let (client, limited) = &mut unfinished[0];
        client.write_all(&rest).await.expect("there is room");
        let read = limited.read_exact(&mut vec![0; rest.len()]).await;
        read.expect("a whole head");
        let again = sent(&all, &head).await;
        assert!(again.is_some(), "there is room again");
        assert!(sent(&all, &head).await.is_none());
        head[4] = END_HEADERS;
        assert!(sent(&all, &head).await.is_some(), "a whole head");
    }
}
