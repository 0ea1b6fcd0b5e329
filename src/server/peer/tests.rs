//! Tests of a channel whose two ends are joined by a pipe of limited width.

use std::collections::HashMap;
use std::convert::Infallible;
use std::future::poll_fn;
use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use bytes::Bytes;
use futures_util::StreamExt as _;
use http::{HeaderMap, Request, Response};
use http_body::Frame;
use http_body_util::{BodyExt as _, StreamBody};
use parking_lot::Mutex;
use polyplane_fairness::{PlaneMeter, Precision};
use proptest::prelude::*;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _, DuplexStream, duplex};
use tokio::task::{AbortHandle, JoinHandle};
use tokio::time::{sleep, timeout};
use tokio_util::sync::CancellationToken;

use crate::connection::cost::ConnectionCost;
use crate::peer::channel::Channel;
use crate::peer::channel::answer_sender::AnswerSender;
use crate::peer::channel::driver::{Driver, RequestHandler};
use crate::peer::channel::frame::{
    self, FrameHead, HEAD_BYTES, Kind, PAYLOAD_BYTES_MAX, RequestHead, SentValues,
};
use crate::peer::channel::stream::{Broken, NoAnswer, PeerStream, Stream, WINDOW_BYTES};
use crate::peer::pool::exchange;
use crate::peer::wire::PeerBody;

const PATIENCE: Duration = Duration::from_secs(20);

/// Answers by path: `/echo` the request's body, `/endless` a body without end, `/never` nothing,
/// `/<bytes>` a body of that length.
#[derive(Clone, Default)]
pub(super) struct Host {
    pub(super) answering: Arc<AtomicUsize>,
    /// The number of answers whose tasks have panicked.
    pub(super) panicked: Arc<AtomicUsize>,
    /// The number of bytes that endless answers have produced.
    pub(super) given: Arc<AtomicUsize>,
    pub(super) streams_max: usize,
}

/// Counts an answer while it is being made.
struct Counted(Host);

impl Drop for Counted {
    fn drop(&mut self) {
        self.0.answering.fetch_sub(1, Ordering::SeqCst);
        let panics = usize::from(std::thread::panicking());
        self.0.panicked.fetch_add(panics, Ordering::SeqCst);
    }
}

impl Host {
    fn count(&self) -> Counted {
        self.answering.fetch_add(1, Ordering::SeqCst);
        Counted(self.clone())
    }
}

impl RequestHandler for Host {
    fn streams_max(&self) -> usize {
        self.streams_max
    }

    fn answer(
        &self,
        channel: &Arc<Channel>,
        stream: &Arc<Stream>,
        head: RequestHead,
    ) -> AbortHandle {
        let body = PeerStream::new(channel, stream, &head.headers);
        let sender = AnswerSender::new(channel, stream);
        let counted = self.count();
        let given = Arc::clone(&self.given);
        let headers = head.headers;
        let path = head.target.path().trim_start_matches('/').to_owned();
        let work = async move {
            // The headers stay in memory as long as the request, as they do in the pipeline.
            let (_counted, _headers) = (counted, headers);
            let data = |data: Bytes| Ok::<_, Infallible>(Frame::data(data));
            match path.as_str() {
                "never" => std::future::pending().await,
                "endless" => {
                    let chunks = futures_util::stream::repeat_with(move || {
                        given.fetch_add(10_000, Ordering::SeqCst);
                        data(Bytes::from(vec![b'e'; 10_000]))
                    });
                    sender
                        .send_all(Response::new(StreamBody::new(chunks)))
                        .await;
                }
                "echo" => {
                    let end = futures_util::stream::once(async {
                        let mut trailers = HeaderMap::new();
                        trailers.insert("x-told", "9".parse().expect("a value"));
                        Ok(Frame::trailers(trailers))
                    });
                    let mut frames = body.into_data_stream();
                    let mut chunks = Vec::new();
                    while let Some(chunk) = frames.next().await {
                        let Ok(chunk) = chunk else { return };
                        chunks.push(data(chunk));
                    }
                    let chunks = futures_util::stream::iter(chunks);
                    let body = StreamBody::new(Box::pin(chunks.chain(end)));
                    sender.send_all(Response::new(body)).await;
                }
                bytes => {
                    let bytes: usize = bytes.parse().unwrap_or_default();
                    let body =
                        http_body_util::Full::new(Bytes::from(vec![b'x'; bytes.min(1 << 20)]));
                    sender.send_all(Response::new(body)).await;
                }
            }
        };
        tokio::spawn(work).abort_handle()
    }
}

pub(super) struct Pair {
    host: Host,
    pub(super) asking: Arc<Channel>,
    hosting: Arc<Channel>,
    asks: JoinHandle<Result<(), Broken>>,
    hosts: JoinHandle<Result<(), Broken>>,
}

fn run(mut driver: Driver<DuplexStream>) -> JoinHandle<Result<(), Broken>> {
    tokio::spawn(async move { driver.run().await })
}

fn pair(pipe_bytes: usize) -> Pair {
    pair_of(pipe_bytes, Channel::new())
}

/// Joins a channel to one of a host.
pub(super) fn pair_of(pipe_bytes: usize, asking: Arc<Channel>) -> Pair {
    let (near, far) = duplex(pipe_bytes);
    let host = Host {
        streams_max: 100,
        ..Host::default()
    };
    let hosting = Channel::new();
    Pair {
        asks: run(Driver::new(&asking, near, None)),
        hosts: run(Driver::new(&hosting, far, Some(Box::new(host.clone())))),
        host,
        asking,
        hosting,
    }
}

fn request(path: &str, pieces: Vec<Bytes>) -> Request<PeerBody> {
    let request = Request::post(path).header("x-own", "1");
    request.body(PeerBody::new(pieces)).expect("a request")
}

async fn ask(
    channel: &Arc<Channel>,
    path: &str,
    pieces: Vec<Bytes>,
) -> Result<Response<PeerStream>, NoAnswer> {
    timeout(PATIENCE, exchange(channel, &request(path, pieces)))
        .await
        .expect("an answer in time")
}

/// Sends a request for which a plane pays.
pub(super) async fn ask_for(
    channel: &Arc<Channel>,
    plane: &Arc<PlaneMeter>,
    path: &str,
) -> Result<Response<PeerStream>, NoAnswer> {
    let mut asked = request(path, vec![]);
    *asked.body_mut() = PeerBody::default().paid_by(plane);
    timeout(PATIENCE, exchange(channel, &asked))
        .await
        .expect("an answer in time")
}

/// Reads the body of an answer, which must arrive whole.
async fn body_of(answer: Response<PeerStream>) -> Bytes {
    let body = answer.into_body().collect().await.expect("whole");
    body.to_bytes()
}

pub(super) async fn until(what: impl Fn() -> bool) {
    let waiting = async {
        while !what() {
            sleep(Duration::from_millis(1)).await;
        }
    };
    timeout(PATIENCE, waiting).await.expect("in time");
}

/// Works for a while as a connection's task, and returns what is to be paid for that.
fn work_of(connection: &Arc<Channel>) -> u64 {
    let mut context = Context::from_waker(Waker::noop());
    let work = poll_fn(|_| {
        let began = std::time::Instant::now();
        while began.elapsed() < Duration::from_micros(100) {}
        Poll::Ready(())
    });
    let mut cost = ConnectionCost::between_replicas(connection.shares());
    let (polled, nanos) = cost.poll(Precision::Rough, pin!(work), &mut context);
    assert!(polled.is_ready());
    nanos
}

#[tokio::test]
async fn planes_pay_for_a_connection_to_another_replica_by_what_it_moves_for_them() {
    let pair = pair(100_000);
    let planes: [Arc<PlaneMeter>; 2] = std::array::from_fn(|_| Arc::default());
    for (plane, path) in planes.iter().zip(["/0", "/200000"]) {
        let answer = ask_for(&pair.asking, plane, path).await;
        body_of(answer.expect("an answer")).await;
    }
    let all = work_of(&pair.asking);
    let [small, large] = planes.each_ref().map(|plane| plane.usage().cpu_nanos);
    assert!(small > 0 && small * 10 < large, "{small} and {large}");
    // The rest is lost in divisions.
    assert!(small + large + 2 >= all, "{small} and {large} of {all}");
    // What replicas tell each other is no plane's.
    let answer = ask(&pair.asking, "/200000", vec![]).await;
    body_of(answer.expect("an answer")).await;
    work_of(&pair.asking);
    let later = planes.each_ref().map(|plane| plane.usage().cpu_nanos);
    assert_eq!(later, [small, large]);
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(24))]
    /// Bodies of any size arrive whole in both directions, over a pipe of any width.
    #[test]
    fn bodies_arrive_whole_beside_each_other(
        pipe_bytes in prop_oneof![20_usize..200, 1000_usize..200_000],
        // Bodies longer than a window go only over a wide pipe, because a narrow one would be slow.
        sizes in proptest::collection::vec(proptest::collection::vec(0_usize..2000, 0..4), 1..12),
        scale in prop_oneof![Just(1_usize), Just(300)],
    ) {
        let scale = if pipe_bytes < 1000 { 1 } else { scale };
        let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build();
        runtime.expect("a runtime").block_on(async {
            let pair = pair(pipe_bytes);
            let asking = sizes.iter().enumerate().map(|(at, sizes)| {
                let channel = Arc::clone(&pair.asking);
                let piece = |size: &usize| Bytes::from(vec![at as u8; size * scale]);
                let pieces: Vec<Bytes> = sizes.iter().map(piece).collect();
                tokio::spawn(async move {
                    let whole: Vec<u8> = pieces.concat();
                    let response = ask(&channel, "/echo", pieces).await.expect("an answer");
                    let body = timeout(PATIENCE, response.into_body().collect()).await;
                    let body = body.expect("in time").expect("whole");
                    assert_eq!(body.trailers().expect("some")["x-told"], "9");
                    assert!(body.to_bytes() == whole, "another body");
                })
            });
            let asking: Vec<_> = asking.collect();
            for one in asking {
                one.await.expect("whole");
            }
            until(|| pair.hosting.open_streams() + pair.asking.open_streams() == 0).await;
            // A task ends just after its stream does.
            until(|| pair.host.answering.load(Ordering::SeqCst) == 0).await;
        });
    }

    /// Bytes that are not of the protocol end a connection with a reason, on either side, without a
    /// panic.
    #[test]
    fn nonsense_ends_a_connection(bytes in proptest::collection::vec(any::<u8>(), 9..300), asks in any::<bool>()) {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
        runtime.expect("a runtime").block_on(async {
            let (mut near, far) = duplex(1000);
            let host = (!asks).then(|| Box::new(Host::default()) as Box<dyn RequestHandler>);
            let mut driver = Driver::new(&Channel::new(), far, host);
            near.write_all(&bytes).await.expect("written");
            near.shutdown().await.expect("shut");
            driver.run().await.expect_err("no peer says this");
        });
    }
}

#[tokio::test]
async fn an_answer_that_is_not_read_holds_up_only_itself() {
    let pair = pair(100_000);
    let unread = ask(&pair.asking, "/endless", vec![])
        .await
        .expect("an answer");
    for _ in 0..20 {
        let answer = ask(&pair.asking, "/300000", vec![])
            .await
            .expect("an answer");
        assert_eq!(body_of(answer).await.len(), 300_000);
    }
    let given = pair.host.given.load(Ordering::SeqCst);
    assert!(
        (WINDOW_BYTES..WINDOW_BYTES + 20_000).contains(&given),
        "{given}"
    );
    drop(unread);
    until(|| pair.host.answering.load(Ordering::SeqCst) == 0).await;
    assert_eq!(pair.hosting.open_streams(), 0);
}

#[tokio::test]
async fn a_request_that_nobody_waits_for_is_not_worked_on() {
    let pair = pair(10_000);
    let asked = request("/never", vec![]);
    {
        let asking = std::pin::pin!(exchange(&pair.asking, &asked));
        let one_more = until(|| pair.host.answering.load(Ordering::SeqCst) == 1);
        tokio::select! {
            _ = asking => unreachable!("nobody answers"),
            () = one_more => {}
        }
    }
    until(|| pair.host.answering.load(Ordering::SeqCst) == 0).await;
    assert!(pair.asking.is_open());
}

#[tokio::test]
async fn a_closing_channel_finishes_what_it_took_and_refuses_the_rest() {
    let pair = pair(10_000);
    let mut answer = ask(&pair.asking, "/endless", vec![])
        .await
        .expect("an answer");
    pair.hosting.close();
    until(|| !pair.asking.is_open()).await;
    let refused = ask(&pair.asking, "/1", vec![]).await;
    assert_eq!(refused.map(drop), Err(NoAnswer::Refused));
    for _ in 0..100 {
        let frame = answer.body_mut().frame().await.expect("more");
        assert!(!frame.expect("whole").into_data().expect("data").is_empty());
    }
    assert!(!pair.hosts.is_finished());
    drop(answer);
    let ended = timeout(PATIENCE, pair.hosts).await.expect("in time");
    assert_eq!(ended.expect("no panic"), Ok(()));
    let ended = timeout(PATIENCE, pair.asks).await.expect("in time");
    assert_eq!(ended.expect("no panic"), Ok(()));
}

/// A request that crosses the other side's `Closing` is either answered or refused, so the client
/// always knows whether it may send it elsewhere.
#[tokio::test]
async fn a_request_that_meets_a_closing_channel_may_be_sent_elsewhere() {
    for early in 0..30 {
        let pair = pair(300);
        let asking: Vec<_> = (0..30)
            .map(|_| {
                let channel = Arc::clone(&pair.asking);
                tokio::spawn(async move { ask(&channel, "/5000", vec![]).await })
            })
            .collect();
        for _ in 0..early {
            tokio::task::yield_now().await;
        }
        pair.hosting.close();
        for one in asking {
            match one.await.expect("no panic") {
                Ok(answer) => {
                    assert_eq!(body_of(answer).await.len(), 5000);
                }
                Err(why) => assert_eq!(why, NoAnswer::Refused),
            }
        }
    }
}

#[tokio::test]
async fn a_full_channel_refuses_one_stream_more() {
    let pair = pair(10_000);
    let mut held = Vec::new();
    for _ in 0..pair.host.streams_max {
        held.push(
            ask(&pair.asking, "/endless", vec![])
                .await
                .expect("an answer"),
        );
    }
    let refused = ask(&pair.asking, "/1", vec![]).await;
    assert_eq!(refused.map(drop), Err(NoAnswer::Refused));
    held.pop();
    until(|| pair.hosting.open_streams() < pair.host.streams_max).await;
    ask(&pair.asking, "/1", vec![]).await.expect("an answer");
}

/// A request of which the socket accepted no byte has not arrived, and may be sent elsewhere.
#[tokio::test]
async fn a_broken_connection_says_what_may_have_arrived() {
    let (near, mut far) = duplex(2000);
    let channel = Channel::new();
    let asks = run(Driver::new(&channel, near, None));
    let asking: Vec<_> = (0..4)
        .map(|_| {
            let channel = Arc::clone(&channel);
            let body = Bytes::from(vec![b'x'; 1500]);
            tokio::spawn(async move { ask(&channel, "/1", vec![body]).await })
        })
        .collect();
    until(|| channel.open_streams() == 4).await;
    sleep(Duration::from_millis(20)).await;
    // By now the pipe has accepted the first request whole and the second one in part.
    let mut seen = [0; HEAD_BYTES];
    far.read_exact(&mut seen).await.expect("a frame");
    assert_eq!(
        FrameHead::parse(&seen).expect("one").expect("whole").kind,
        Kind::Request
    );
    drop(far);
    let mut outcomes = HashMap::<bool, usize>::new();
    for one in asking {
        let failed = one
            .await
            .expect("no panic")
            .map(drop)
            .expect_err("nobody is there");
        *outcomes.entry(failed == NoAnswer::Refused).or_default() += 1;
    }
    assert_eq!(outcomes, HashMap::from([(false, 2), (true, 2)]));
    asks.await.expect("no panic").expect_err("broken");
    let late = ask(&channel, "/1", vec![]).await;
    assert_eq!(late.map(drop), Err(NoAnswer::Refused));
}

#[tokio::test(start_paused = true)]
async fn a_silent_peer_is_probed_and_then_given_up() {
    let pair = pair(1000);
    sleep(Duration::from_secs(60)).await;
    assert!(pair.asking.is_open(), "signs of life came");
    let (near, far) = duplex(1000);
    let begun = tokio::time::Instant::now();
    let ended = run(Driver::new(&Channel::new(), near, None)).await;
    assert_eq!(ended.expect("no panic"), Err(Broken::Silent));
    let took = begun.elapsed().as_secs_f64();
    assert!((4.9..5.2).contains(&took), "{took}");
    drop(far);
}

/// A peer that hangs and has left the ring delays nobody: within a second, requests that may have
/// arrived there fail with an unknown outcome, and the others may be sent elsewhere.
#[tokio::test(start_paused = true)]
async fn a_silent_peer_that_left_the_ring_is_given_up_soon() {
    let (near, far) = duplex(2000);
    let (channel, gone) = (Channel::new(), CancellationToken::new());
    let driver = Driver::new(&channel, near, None).until(gone.clone().cancelled_owned());
    let asks = run(driver);
    let asking: Vec<_> = (0..4)
        .map(|_| {
            let channel = Arc::clone(&channel);
            let body = Bytes::from(vec![b'x'; 1500]);
            tokio::spawn(async move { ask(&channel, "/1", vec![body]).await })
        })
        .collect();
    until(|| channel.open_streams() == 4).await;
    // A peer that is a member may be silent for longer than this.
    sleep(Duration::from_secs(1)).await;
    assert_eq!(channel.open_streams(), 4);
    let left = tokio::time::Instant::now();
    gone.cancel();
    let ended = asks.await.expect("no panic");
    assert_eq!(ended, Err(Broken::Silent));
    assert!(
        left.elapsed() < Duration::from_secs(1),
        "{:?}",
        left.elapsed()
    );
    let mut refused = 0;
    for one in asking {
        match one.await.expect("no panic").map(drop) {
            Err(NoAnswer::Refused) => refused += 1,
            other => assert_eq!(other, Err(NoAnswer::Broken(Broken::Silent))),
        }
    }
    // The pipe accepted the first two requests, in whole and in part; the other two were refused.
    assert_eq!(refused, 2);
    drop(far);
}

/// A peer that leaves the ring in good order finishes the answers that it has begun.
#[tokio::test(start_paused = true)]
async fn a_peer_that_left_the_ring_and_still_answers_is_heard_to_the_end() {
    let (near, far) = duplex(1000);
    let host = Host {
        streams_max: 100,
        ..Host::default()
    };
    let (asking, hosting) = (Channel::new(), Channel::new());
    let gone = CancellationToken::new();
    let asks = run(Driver::new(&asking, near, None).until(gone.clone().cancelled_owned()));
    let _hosts = run(Driver::new(&hosting, far, Some(Box::new(host))));
    let mut answer = ask(&asking, "/endless", vec![]).await.expect("an answer");
    gone.cancel();
    until(|| !asking.is_open()).await;
    let refused = ask(&asking, "/1", vec![]).await;
    assert_eq!(refused.map(drop), Err(NoAnswer::Refused));
    for _ in 0..20 {
        // Longer than the time after which a silent peer is treated as gone.
        sleep(Duration::from_secs(1)).await;
        let frame = answer.body_mut().frame().await.expect("more");
        assert!(!frame.expect("whole").into_data().expect("data").is_empty());
    }
    drop(answer);
    assert_eq!(asks.await.expect("no panic"), Ok(()));
}

#[tokio::test]
async fn a_peer_that_sends_more_than_it_may_is_cut_off() {
    async fn meet(bytes: Vec<u8>) -> Result<(), Broken> {
        let (mut near, far) = duplex(4 << 20);
        near.write_all(&bytes).await.expect("room");
        let host = Host {
            streams_max: 10,
            ..Host::default()
        };
        let mut driver = Driver::new(&Channel::new(), far, Some(Box::new(host)));
        timeout(PATIENCE, driver.run()).await.expect("in time")
    }
    fn asked(out: &mut Vec<u8>, stream: u32) {
        let (parts, ()) = Request::get("/never").body(()).expect("one").into_parts();
        let head = (&parts.method, &parts.uri, &parts.headers);
        let values = &mut SentValues::default();
        frame::put_request(out, stream, head, &[], false, values).expect("short");
    }
    let mut beyond = Vec::new();
    asked(&mut beyond, 0);
    for _ in 0..5 {
        frame::put_data(&mut beyond, 0, &[b'x'; WINDOW_BYTES / 4], false);
    }
    let mut twice = Vec::new();
    asked(&mut twice, 3);
    asked(&mut twice, 3);
    let mut long = vec![0; HEAD_BYTES];
    long[..4].copy_from_slice(&(PAYLOAD_BYTES_MAX as u32 + 1).to_be_bytes());
    for (bytes, what) in [(beyond, "beyond"), (twice, "twice"), (long, "long")] {
        let ended = meet(bytes).await;
        let is_protocol = matches!(ended, Err(Broken::Protocol(_) | Broken::Malformed(_)));
        assert!(is_protocol, "{what}: {ended:?}");
    }
}

/// Many small requests at one moment share writes, because the task waits for other ready tasks.
#[tokio::test]
async fn requests_of_one_moment_travel_together() {
    let (near, mut far) = duplex(1 << 20);
    let channel = Channel::new();
    let asks = run(Driver::new(&channel, near, None));
    let sizes = Arc::new(Mutex::new(Vec::new()));
    let reading = {
        let sizes = Arc::clone(&sizes);
        tokio::spawn(async move {
            let mut buffer = vec![0; 1 << 20];
            while let Ok(count @ 1..) = far.read(&mut buffer).await {
                sizes.lock().push(count);
            }
        })
    };
    let asking: Vec<_> = (0..50)
        .map(|_| {
            let channel = Arc::clone(&channel);
            tokio::spawn(async move { exchange(&channel, &request("/1", vec![])).await })
        })
        .collect();
    until(|| channel.open_streams() == 50 && !sizes.lock().is_empty()).await;
    assert!(sizes.lock().len() < 5, "{:?}", sizes.lock());
    for one in asking {
        one.abort();
    }
    asks.abort();
    reading.abort();
}
