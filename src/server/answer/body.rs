//! The bodies of answers, which are streamed as the client reads them.
//!
//! Slices of stored objects are coalesced into chunks of up to 64 KiB, because one frame per small slice costs more
//! than the copy; large slices are passed on without a copy. A watch sends all events since its last write as one
//! chunk. The answer of another replica is passed on frame by frame. A finite answer that its client does not read
//! is dropped (`guard`), and what its connection has of it is too (`connection::unread`).

use std::io::Write as _;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::AtomicU64;
use std::task::{Context, Poll};

use crate::answer::forwarded::poll_forwarded;
use crate::answer::guard::{Finite, Guarded, ReadLimits};
use crate::connection::unread::{Patience, Sending};
use crate::peer::channel::stream::{Broken, PeerStream};
use crate::request::charge::PieceTurn;
use crate::watch::record::WatchWriter;
use crate::watch::relay::{Relay, Source as RelaySource};
use bytes::{Bytes, BytesMut};
use flate2::Compression;
use flate2::write::GzEncoder;
use futures_util::Stream;
use http::HeaderMap;
use http_body::{Body, Frame, SizeHint};
use polyplane_registry::StreamEnd;
use tokio_util::sync::{CancellationToken, WaitForCancellationFutureOwned};

/// Bytes up to which small slices are coalesced into one chunk. Larger chunks would use more memory
/// per answer; much smaller ones cost one HTTP/2 frame each.
const CHUNK_BYTES: usize = 64 * 1024;
/// Length in bytes from which a slice is passed on without a copy. Below it, the copy is cheaper
/// than a frame of its own.
pub(crate) const PASS_BYTES: usize = 16 * 1024;
/// Length in bytes below which a complete answer needs no watchdog beside its connection's.
const GUARDED_BYTES: u64 = 512 * 1024;

pub(crate) type SliceStream = Pin<Box<dyn Stream<Item = Result<Bytes, StreamEnd>> + Send>>;

/// The reason why a body ended early. The client sees a broken stream.
#[derive(Debug, thiserror::Error)]
pub(crate) enum BodyEnd {
    /// The source of the body failed.
    #[error("the answer broke off")]
    Source(#[source] StreamEnd),
    /// The client read too slowly.
    #[error("the client did not read the answer in time")]
    Abandoned,
    /// The connection to the replica that answers broke.
    #[error("the answer of another replica broke off")]
    Peer(#[source] Broken),
    /// The connection to a node or pod broke.
    #[error("the answer of a node or pod broke off")]
    Node(#[source] hyper::Error),
    /// Compression failed.
    #[error("the answer could not be compressed")]
    Compression(#[source] std::io::Error),
}

/// The body of an answer.
pub(crate) struct ResponseBody(Inner);

enum Inner {
    Empty,
    Whole(Option<Bytes>),
    Chunked(Chunked),
    Guarded(Guarded),
    Watch(Box<Watch>),
    Relay(Box<Relay>),
    Forwarded(Box<PeerStream>),
}

/// The coding of a body: as it is, or compressed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Coding {
    Identity,
    Gzip,
}

/// Returns bytes compressed, at once.
pub(crate) fn compressed(plain: &[u8]) -> Bytes {
    let mut encoder = GzEncoder::new(Vec::with_capacity(plain.len() / 8), Compression::fast());
    encoder
        .write_all(plain)
        .expect("writing into memory does not fail");
    let packed = encoder.finish().expect("writing into memory does not fail");
    packed.into()
}

impl ResponseBody {
    pub(crate) fn empty() -> Self {
        Self(Inner::Empty)
    }

    pub(crate) fn whole(bytes: impl Into<Bytes>) -> Self {
        Self(Inner::Whole(Some(bytes.into())))
    }

    /// Creates a body whose slices are all in memory. Must be called inside the runtime, because a
    /// long body gets a watchdog task.
    pub(crate) fn slices(
        mut slices: Vec<Bytes>,
        coding: Coding,
        limits: ReadLimits,
        abandoned: &Arc<AtomicCounter>,
    ) -> Self {
        if slices.len() == 1
            && coding == Coding::Identity
            && slices[0].len() < GUARDED_BYTES as usize
        {
            return Self(Inner::Whole(slices.pop()));
        }
        let length = slices.iter().map(|slice| slice.len() as u64).sum();
        let chunked = Chunked::new(Source::Slices(slices.into_iter()), Some(length), coding);
        Self(if length < GUARDED_BYTES {
            Inner::Chunked(chunked)
        } else {
            Inner::Guarded(Guarded::new(chunked, limits, Arc::clone(abandoned)))
        })
    }

    /// Creates a finite body of unknown length. Must be called inside the runtime.
    pub(crate) fn stream(
        stream: SliceStream,
        coding: Coding,
        limits: ReadLimits,
        abandoned: &Arc<AtomicCounter>,
    ) -> Self {
        let chunked = Chunked::new(Source::Stream(stream), None, coding);
        Self::guarded(chunked, limits, abandoned)
    }

    /// Creates a body of known length, which a stream brings piece by piece. Must be called inside the
    /// runtime.
    pub(crate) fn sized(
        stream: SliceStream,
        length: u64,
        limits: ReadLimits,
        abandoned: &Arc<AtomicCounter>,
    ) -> Self {
        let chunked = Chunked::new(Source::Stream(stream), Some(length), Coding::Identity);
        Self::guarded(chunked, limits, abandoned)
    }

    /// Creates a body that lasts until the client cancels, the source ends or `ending` resolves.
    pub(crate) fn watch(watch: Watch) -> Self {
        Self(Inner::Watch(Box::new(watch)))
    }

    /// Creates a watch for another replica. If the plane moves, `moved_trailers` makes its
    /// trailers.
    pub(crate) fn watch_of_peer(mut watch: Watch, moved_trailers: MovedTrailers) -> Self {
        watch.moved_trailers = Some(moved_trailers);
        Self(Inner::Watch(Box::new(watch)))
    }

    /// Creates a watch that is resumed at another replica when its plane moves.
    pub(crate) fn relay(relay: Relay) -> Self {
        Self(Inner::Relay(Box::new(relay)))
    }

    /// Returns the answer of another replica. Must be called inside the runtime.
    pub(crate) fn forwarded(
        stream: PeerStream,
        limits: ReadLimits,
        abandoned: &Arc<AtomicCounter>,
    ) -> Self {
        // A complete body holds no resources; an incomplete one would keep its owner waiting for
        // this client, so it needs the watchdog.
        Self(if stream.is_whole() {
            Inner::Forwarded(Box::new(stream))
        } else {
            Inner::Guarded(Guarded::new(stream, limits, Arc::clone(abandoned)))
        })
    }

    /// Creates a body that is dropped if its client does not read it. Must be called inside the
    /// runtime.
    pub(crate) fn guarded(
        body: impl Finite,
        limits: ReadLimits,
        abandoned: &Arc<AtomicCounter>,
    ) -> Self {
        Self(Inner::Guarded(Guarded::new(
            body,
            limits,
            Arc::clone(abandoned),
        )))
    }

    /// Notes how the body is sent to its client, and sets how long the client may leave it unread.
    pub(crate) fn send_by(&self, sending: &Arc<Sending>) {
        match &self.0 {
            Inner::Guarded(body) => body.send_by(sending),
            Inner::Watch(_) => sending.begin(Patience::Watch),
            Inner::Relay(body) => {
                sending.begin(Patience::Watch);
                body.send_by(sending);
            }
            Inner::Forwarded(stream) => {
                sending.begin(Patience::Finite);
                stream.set_sending(sending);
            }
            Inner::Empty | Inner::Whole(_) | Inner::Chunked(_) => {
                sending.begin(Patience::Finite);
            }
        }
    }

    /// Returns whether this is a watch whose client or peer is connected to this replica.
    pub(crate) fn is_watch(&self) -> bool {
        matches!(self.0, Inner::Watch(_) | Inner::Relay(_))
    }

    /// Returns the source of a relayed watch, or `None` for any other body.
    pub(crate) fn into_source(self) -> Option<RelaySource> {
        match self.0 {
            Inner::Relay(relay) => Some(relay.into_source()),
            Inner::Empty
            | Inner::Whole(_)
            | Inner::Chunked(_)
            | Inner::Guarded(_)
            | Inner::Watch(_)
            | Inner::Forwarded(_) => None,
        }
    }
}

/// A counter that bodies share with the metrics.
pub(crate) type AtomicCounter = AtomicU64;

enum Source {
    Slices(std::vec::IntoIter<Bytes>),
    Stream(SliceStream),
    /// Boxed, because the bodies of all other answers would grow with it.
    Watch(Box<WatchWriter>),
    Done,
}

impl Source {
    fn next(&mut self, context: &mut Context<'_>) -> Poll<Option<Result<Bytes, StreamEnd>>> {
        match self {
            Self::Slices(slices) => Poll::Ready(slices.next().map(Ok)),
            Self::Stream(stream) => stream.as_mut().poll_next(context),
            Self::Watch(events) => events.poll_next(context),
            Self::Done => Poll::Ready(None),
        }
    }

    /// Removes and returns the number of events of a watch since the last call.
    fn take_events(&mut self) -> u64 {
        match self {
            Self::Watch(events) => events.take_events(),
            Self::Slices(_) | Self::Stream(_) | Self::Done => 0,
        }
    }
}

/// Coalesces small slices, passes on large ones, and compresses if the client accepts that.
struct Chunked {
    source: Source,
    /// A large slice that arrived while small ones were being coalesced.
    waiting: Option<Bytes>,
    /// The number of bytes still to come, if it is known and they are not compressed.
    left: Option<u64>,
    gzip: Option<GzEncoder<Vec<u8>>>,
    failed: Option<StreamEnd>,
    /// The events of a watch whose source is gone.
    events: u64,
}

impl Chunked {
    fn new(source: Source, length: Option<u64>, coding: Coding) -> Self {
        let gzip = (coding == Coding::Gzip)
            .then(|| GzEncoder::new(Vec::with_capacity(CHUNK_BYTES / 2), Compression::fast()));
        Self {
            source,
            waiting: None,
            left: if gzip.is_some() { None } else { length },
            gzip,
            failed: None,
            events: 0,
        }
    }

    /// Removes and returns the number of events of a watch since the last call.
    fn take_events(&mut self) -> u64 {
        std::mem::take(&mut self.events) + self.source.take_events()
    }

    fn poll_chunk(&mut self, context: &mut Context<'_>) -> Poll<Option<Result<Bytes, BodyEnd>>> {
        loop {
            match std::task::ready!(self.poll_plain(context)) {
                Some(Err(end)) => {
                    self.source = Source::Done;
                    self.gzip = None;
                    return Poll::Ready(Some(Err(BodyEnd::Source(end))));
                }
                Some(Ok(plain)) => match self.compress(plain) {
                    Ok(chunk) if chunk.is_empty() => {}
                    Ok(chunk) => return Poll::Ready(Some(Ok(chunk))),
                    Err(error) => return Poll::Ready(Some(Err(BodyEnd::Compression(error)))),
                },
                None => {
                    let Some(gzip) = self.gzip.take() else {
                        return Poll::Ready(None);
                    };
                    let tail = gzip.finish().map(Bytes::from).map_err(BodyEnd::Compression);
                    return Poll::Ready(Some(tail));
                }
            }
        }
    }

    fn compress(&mut self, plain: Bytes) -> std::io::Result<Bytes> {
        let Some(gzip) = &mut self.gzip else {
            if let Some(left) = &mut self.left {
                *left -= plain.len() as u64;
            }
            return Ok(plain);
        };
        gzip.write_all(&plain)?;
        Ok(Bytes::from(std::mem::take(gzip.get_mut())))
    }

    fn poll_plain(&mut self, context: &mut Context<'_>) -> Poll<Option<Result<Bytes, StreamEnd>>> {
        if let Some(end) = self.failed.take() {
            return Poll::Ready(Some(Err(end)));
        }
        let mut first = match self.waiting.take() {
            Some(slice) if slice.len() >= PASS_BYTES => return Poll::Ready(Some(Ok(slice))),
            other => other,
        };
        let mut coalesced = BytesMut::new();
        loop {
            let held = coalesced.len() + first.as_ref().map_or(0, Bytes::len);
            if held >= CHUNK_BYTES {
                break;
            }
            match self.source.next(context) {
                Poll::Ready(Some(Ok(slice))) if slice.is_empty() => {}
                Poll::Ready(Some(Ok(slice))) if slice.len() >= PASS_BYTES && held == 0 => {
                    return Poll::Ready(Some(Ok(slice)));
                }
                Poll::Ready(Some(Ok(slice))) if slice.len() >= PASS_BYTES => {
                    self.waiting = Some(slice);
                    break;
                }
                Poll::Ready(Some(Ok(slice))) if held == 0 => first = Some(slice),
                Poll::Ready(Some(Ok(slice))) => {
                    if let Some(first) = first.take() {
                        coalesced.reserve(self.capacity_for(held + slice.len()));
                        coalesced.extend_from_slice(&first);
                    }
                    coalesced.extend_from_slice(&slice);
                }
                Poll::Ready(Some(Err(end))) if held == 0 => return Poll::Ready(Some(Err(end))),
                Poll::Ready(Some(Err(end))) => {
                    // Send what arrived before the error first.
                    self.failed = Some(end);
                    break;
                }
                Poll::Ready(None) => {
                    // A stream that has ended must not be polled again, and what is compressed is asked
                    // once more, after its tail.
                    self.events += self.source.take_events();
                    self.source = Source::Done;
                    if held == 0 {
                        return Poll::Ready(None);
                    }
                    break;
                }
                Poll::Pending if held == 0 => return Poll::Pending,
                Poll::Pending => break,
            }
        }
        Poll::Ready(Some(Ok(first.unwrap_or_else(|| coalesced.freeze()))))
    }

    /// Returns the capacity for the bytes that are known to come, so that a chunk is allocated
    /// once.
    fn capacity_for(&self, held: usize) -> usize {
        let left = self.left.and_then(|left| usize::try_from(left).ok());
        left.unwrap_or(held * 2)
            .min(CHUNK_BYTES + PASS_BYTES)
            .max(held)
    }

    fn size_hint(&self) -> SizeHint {
        self.left
            .map_or_else(SizeHint::default, SizeHint::with_exact)
    }
}

impl Finite for Chunked {
    fn poll_next(
        &mut self,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, BodyEnd>>> {
        let chunk = self.poll_chunk(context);
        chunk.map(|chunk| chunk.map(|result| result.map(Frame::data)))
    }

    fn size(&self) -> SizeHint {
        self.size_hint()
    }
}

/// Counts the events of one watch, and gives the watch its turns.
pub(crate) trait WatchCounter: Send + Sync {
    /// Waits for the turn of the watch's plane, if it takes turns: what is due to the watches of a busy
    /// plane would else hold up the requests of others.
    fn poll_turn(&mut self, _context: &mut Context<'_>) -> Poll<Option<PieceTurn>> {
        Poll::Ready(None)
    }
    /// Counts `count` events that were sent.
    fn sent(&self, count: u64);
    /// Notes that the watch goes on at another replica.
    fn moved(&self) {}
    /// Counts the end of the watch.
    fn over(&self);
}

/// Counts one watch while it is open.
pub(crate) struct WatchGauge(pub(crate) Box<dyn WatchCounter>);

impl Drop for WatchGauge {
    fn drop(&mut self) {
        self.0.over();
    }
}

/// Makes the trailers of a watch whose plane moved. The argument is the version up to which events
/// were sent, if known.
pub(crate) type MovedTrailers = Box<dyn Fn(Option<u64>) -> HeaderMap + Send + Sync>;

/// A watch that this replica answers.
pub(crate) struct Watch {
    source: Chunked,
    /// Cancelled when the watch has to end: its caller was revoked, or the server stops.
    revocation: CancellationToken,
    ending: Pin<Box<WaitForCancellationFutureOwned>>,
    gauge: WatchGauge,
    ended: bool,
    /// Set if the watch ended because its plane moved: the version up to which events were sent, if
    /// known.
    moved: Option<Option<u64>>,
    moved_trailers: Option<MovedTrailers>,
}

impl Watch {
    pub(crate) fn new(events: WatchWriter, ending: CancellationToken, gauge: WatchGauge) -> Self {
        Self {
            source: Chunked::new(Source::Watch(Box::new(events)), None, Coding::Identity),
            ending: Box::pin(ending.clone().cancelled_owned()),
            revocation: ending,
            gauge,
            ended: false,
            moved: None,
            moved_trailers: None,
        }
    }

    /// Returns `Some` if the watch ended because its plane moved: the version up to which events
    /// were sent, if known.
    pub(crate) fn moved(&self) -> Option<Option<u64>> {
        self.moved
    }

    pub(crate) fn poll(
        &mut self,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Bytes, BodyEnd>>> {
        // Before the source, which may have events for as long as the client reads them.
        if self.ended || self.revocation.is_cancelled() {
            self.ended = true;
            return Poll::Ready(None);
        }
        let Poll::Ready(turn) = self.gauge.0.poll_turn(context) else {
            return self.poll_ending(context);
        };
        let polled = self.source.poll_chunk(context);
        if let Some(turn) = turn {
            turn.end_of_watch(&polled);
        }
        match polled {
            Poll::Ready(Some(Ok(chunk))) => {
                self.gauge.0.sent(self.source.take_events());
                Poll::Ready(Some(Ok(chunk)))
            }
            Poll::Ready(end) => {
                self.ended = true;
                // Whatever the error, end the watch without one: the client then resumes.
                if let Some(Err(error)) = &end {
                    tracing::debug!(%error, "a watch ended early");
                    if let BodyEnd::Source(StreamEnd::Moved { sent_up_to }) = error {
                        self.moved = Some(*sent_up_to);
                        self.gauge.0.moved();
                    }
                }
                Poll::Ready(None)
            }
            Poll::Pending => self.poll_ending(context),
        }
    }

    /// Returns the end of the watch, if it has to end.
    fn poll_ending(&mut self, context: &mut Context<'_>) -> Poll<Option<Result<Bytes, BodyEnd>>> {
        std::task::ready!(self.ending.as_mut().poll(context));
        self.ended = true;
        Poll::Ready(None)
    }

    /// Removes and returns the trailers, because they are sent once.
    fn take_trailers(&mut self) -> Option<HeaderMap> {
        let sent_up_to = self.moved?;
        self.moved_trailers
            .take()
            .map(|moved_trailers| moved_trailers(sent_up_to))
    }
}

impl Body for ResponseBody {
    type Data = Bytes;
    type Error = BodyEnd;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, BodyEnd>>> {
        let chunk = match &mut self.0 {
            Inner::Empty => Poll::Ready(None),
            Inner::Whole(bytes) => Poll::Ready(bytes.take().map(Ok)),
            Inner::Chunked(body) => body.poll_chunk(context),
            Inner::Guarded(body) => return body.poll(context),
            Inner::Watch(body) => match std::task::ready!(body.poll(context)) {
                None => {
                    let trailers = body.take_trailers();
                    return Poll::Ready(trailers.map(|trailers| Ok(Frame::trailers(trailers))));
                }
                some => Poll::Ready(some),
            },
            Inner::Relay(body) => body.poll(context).map(|chunk| chunk.map(Ok)),
            Inner::Forwarded(stream) => return poll_forwarded(stream, context),
        };
        chunk.map(|chunk| chunk.map(|result| result.map(Frame::data)))
    }

    fn is_end_stream(&self) -> bool {
        match &self.0 {
            Inner::Empty | Inner::Whole(None) => true,
            Inner::Whole(Some(bytes)) => bytes.is_empty(),
            Inner::Chunked(body) => body.left == Some(0) && body.failed.is_none(),
            Inner::Guarded(_) => false,
            Inner::Watch(body) => {
                body.ended && (body.moved_trailers.is_none() || body.moved.is_none())
            }
            Inner::Relay(body) => body.is_over(),
            Inner::Forwarded(stream) => stream.is_end_stream(),
        }
    }

    fn size_hint(&self) -> SizeHint {
        match &self.0 {
            Inner::Empty | Inner::Whole(None) => SizeHint::with_exact(0),
            Inner::Whole(Some(bytes)) => SizeHint::with_exact(bytes.len() as u64),
            Inner::Chunked(body) => body.size_hint(),
            Inner::Guarded(body) => body.size(),
            Inner::Watch(_) | Inner::Relay(_) => SizeHint::default(),
            Inner::Forwarded(stream) => stream.size_hint(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::Ordering;
    use std::time::Duration;

    use crate::request::turn::{Gate, Queued};
    use crate::watch::record::WatchForm;
    use futures_util::stream;
    use http_body_util::BodyExt as _;
    use polyplane_fairness::{Moment, PlaneMeter};
    use polyplane_registry::{WatchChunk, WatchProgress};
    use std::io::Read as _;

    const PATIENT: ReadLimits = ReadLimits {
        total_max: Duration::from_secs(60),
        stall_max: Duration::from_secs(10),
    };

    fn slices(count: usize, length: usize) -> (Vec<Bytes>, Vec<u8>) {
        let slices: Vec<Bytes> = (0..count)
            .map(|number| {
                Bytes::from(vec![
                    b'a' + u8::try_from(number % 26).expect("small");
                    length
                ])
            })
            .collect();
        let whole = slices.concat();
        (slices, whole)
    }

    async fn frames(mut body: ResponseBody) -> Vec<Bytes> {
        let mut frames = Vec::new();
        while let Some(frame) = body.frame().await {
            frames.push(frame.expect("no error").into_data().expect("data"));
        }
        frames
    }

    #[tokio::test]
    async fn small_slices_are_coalesced_and_large_ones_pass() {
        let (mut parts, _) = slices(200, 1000);
        let large = Bytes::from(vec![b'L'; 100_000]);
        parts.insert(100, large.clone());
        let whole = parts.concat();
        let body = ResponseBody::slices(parts, Coding::Identity, PATIENT, &Arc::default());
        assert_eq!(body.size_hint().exact(), Some(whole.len() as u64));
        let frames = frames(body).await;
        assert_eq!(frames.concat(), whole);
        assert!(frames.len() <= 6, "{}", frames.len());
        assert!(frames.iter().any(|frame| frame.as_ptr() == large.as_ptr()));
    }

    #[tokio::test]
    async fn compressed_bodies_are_what_they_were() {
        let (parts, whole) = slices(300, 1000);
        let body = ResponseBody::slices(parts, Coding::Gzip, PATIENT, &Arc::default());
        assert_eq!(body.size_hint().exact(), None);
        let packed = frames(body).await.concat();
        assert!(packed.len() < whole.len() / 10);
        let mut plain = Vec::new();
        flate2::read::GzDecoder::new(&packed[..])
            .read_to_end(&mut plain)
            .expect("gzip");
        assert_eq!(plain, whole);
    }

    #[tokio::test]
    async fn a_stream_that_has_ended_is_not_polled_again() {
        for (last, coding) in [
            (PASS_BYTES, Coding::Gzip),
            (10, Coding::Gzip),
            (0, Coding::Gzip),
            (PASS_BYTES, Coding::Identity),
        ] {
            let left = vec![last, PASS_BYTES, 10];
            // It panics if it is polled after its end.
            let stream = stream::unfold(left, async |mut left| {
                let length = left.pop()?;
                Some((Ok(Bytes::from(vec![b'x'; length])), left))
            });
            let body = ResponseBody::stream(Box::pin(stream), coding, PATIENT, &Arc::default());
            assert!(!frames(body).await.is_empty());
        }
    }

    #[tokio::test]
    async fn what_came_before_a_break_is_sent() {
        let items = vec![Ok(Bytes::from("ab")), Err(StreamEnd::Closed)];
        let stream = Box::pin(stream::iter(items));
        let mut body = ResponseBody::stream(stream, Coding::Identity, PATIENT, &Arc::default());
        let first = body.frame().await.expect("a frame").expect("data");
        assert_eq!(first.into_data().expect("data"), "ab");
        let broken = body.frame().await.expect("an end");
        assert!(matches!(broken, Err(BodyEnd::Source(StreamEnd::Closed))));
    }

    #[tokio::test(start_paused = true)]
    async fn an_answer_nobody_fetches_lets_go_of_what_it_holds() {
        let (held, probe) = (Arc::new(()), Arc::new(()));
        let weak = Arc::downgrade(&held);
        let endless = stream::unfold(held, |held| async { Some((Ok(Bytes::from("x")), held)) });
        let abandoned = Arc::default();
        let stream = Box::pin(endless);
        let mut body = ResponseBody::stream(stream, Coding::Identity, PATIENT, &abandoned);
        assert!(body.frame().await.expect("a frame").is_ok());
        tokio::time::sleep(Duration::from_secs(21)).await;
        assert!(weak.upgrade().is_none());
        assert_eq!(abandoned.load(Ordering::Relaxed), 1);
        let after = body.frame().await.expect("an end");
        assert!(matches!(after, Err(BodyEnd::Abandoned)));
        drop(probe);
    }

    struct Count(Arc<AtomicU64>);

    impl WatchCounter for Count {
        fn sent(&self, count: u64) {
            self.0.fetch_add(count, Ordering::Relaxed);
        }

        fn over(&self) {
            self.0.fetch_add(1000, Ordering::Relaxed);
        }
    }

    /// A watch of a plane that takes turns.
    struct TakesTurns {
        gate: Arc<Gate>,
        meter: Arc<PlaneMeter>,
        place: Option<Queued>,
    }

    impl WatchCounter for TakesTurns {
        fn poll_turn(&mut self, context: &mut Context<'_>) -> Poll<Option<PieceTurn>> {
            let (gate, now) = (&self.gate, Moment(1));
            let turn = PieceTurn::poll(gate, &self.meter, &mut self.place, context, now);
            turn.map(Some)
        }

        fn sent(&self, _count: u64) {}

        fn over(&self) {}
    }

    #[tokio::test]
    async fn a_watch_waits_for_the_turn_of_its_plane_and_may_end_meanwhile() {
        use futures_util::FutureExt as _;
        let (plane, other) = (Arc::<PlaneMeter>::default(), Arc::<PlaneMeter>::default());
        let gate = Gate::new(1, Arc::default());
        let open = || {
            let chunk = WatchChunk {
                bytes: Bytes::from_static(b"{a}\n"),
                progress: WatchProgress::Initial,
            };
            let events = WatchWriter::new(Box::pin(stream::iter([Ok(chunk)])), WatchForm::Lines);
            let gauge = WatchGauge(Box::new(TakesTurns {
                gate: Arc::clone(&gate),
                meter: Arc::clone(&plane),
                place: None,
            }));
            let token = tokio_util::sync::CancellationToken::new();
            let watch = Watch::new(events, token.clone(), gauge);
            (ResponseBody::watch(watch), token)
        };
        // Two planes compete, and the gate is closed until this task waits.
        gate.enter(&other, Moment(1)).await.end(1);
        gate.enter(&plane, Moment(1)).await.end(10_000_000);
        let ((mut goes_on, _token), (mut ends, ending)) = (open(), open());
        assert!(goes_on.frame().now_or_never().is_none(), "it has no turn");
        assert!(ends.frame().now_or_never().is_none(), "nor has this one");
        ending.cancel();
        assert!(matches!(ends.frame().now_or_never(), Some(None)));
        let frame = goes_on.frame().await.expect("its turn").expect("data");
        assert_eq!(frame.into_data().expect("data"), "{a}\n");
    }

    #[tokio::test]
    async fn a_watch_costs_its_plane_what_it_looks_at_in_vain() {
        use futures_util::FutureExt as _;
        let (plane, gate) = (Arc::<PlaneMeter>::default(), Gate::new(1, Arc::default()));
        // Looks at events until the clock has moved, and shows none of them.
        let looks = stream::poll_fn(|_| -> Poll<Option<Result<WatchChunk, StreamEnd>>> {
            let began = std::time::Instant::now();
            while began.elapsed().is_zero() {}
            Poll::Pending
        });
        let events = WatchWriter::new(Box::pin(looks), WatchForm::Lines);
        let gauge = WatchGauge(Box::new(TakesTurns {
            gate,
            meter: Arc::clone(&plane),
            place: None,
        }));
        let watch = Watch::new(events, CancellationToken::new(), gauge);
        let mut body = ResponseBody::watch(watch);
        assert!(body.frame().now_or_never().is_none());
        assert!(plane.usage().cpu_nanos > 0);
    }

    #[tokio::test]
    async fn a_watch_that_has_to_end_does_so_although_there_are_events() {
        let chunk = || WatchChunk {
            bytes: Bytes::from_static(b"{a}\n"),
            progress: WatchProgress::Initial,
        };
        let flood = Box::pin(stream::repeat_with(move || Ok(chunk())));
        let events = WatchWriter::new(flood, WatchForm::Lines);
        let token = tokio_util::sync::CancellationToken::new();
        let gauge = WatchGauge(Box::new(Count(Arc::default())));
        let watch = Watch::new(events, token.clone(), gauge);
        let mut body = ResponseBody::watch(watch);
        assert!(body.frame().await.expect("a frame").is_ok());
        token.cancel();
        assert!(body.frame().await.is_none());
    }

    #[tokio::test]
    async fn a_watch_joins_what_is_there_and_ends_cleanly() {
        use futures_util::StreamExt as _;
        let chunk = |text| WatchChunk {
            bytes: Bytes::from_static(text),
            progress: WatchProgress::Initial,
        };
        let ready = stream::iter([b"{a}\n", b"{b}\n", b"{c}\n"].map(|text| Ok(chunk(text))));
        let stream = Box::pin(ready.chain(stream::pending()));
        let events = WatchWriter::new(stream, WatchForm::Lines);
        let token = tokio_util::sync::CancellationToken::new();
        let counted = Arc::new(AtomicU64::new(0));
        let gauge = WatchGauge(Box::new(Count(Arc::clone(&counted))));
        let mut body = ResponseBody::watch(Watch::new(events, token.clone(), gauge));
        let first = body.frame().await.expect("a frame").expect("data");
        assert_eq!(first.into_data().expect("data"), "{a}\n{b}\n{c}\n");
        assert_eq!(counted.load(Ordering::Relaxed), 3);
        token.cancel();
        assert!(body.frame().await.is_none());
        drop(body);
        assert_eq!(counted.load(Ordering::Relaxed), 1003);
    }
}
