//! Fuzzing of the protocol between replicas: frames, valid and mutated, in any order and cut
//! anywhere, against the decoder and against a whole connection.
//!
//! Without variables a fixed seed gives the same few hundred cases each time. With
//! `POLYPLANE_FUZZ_SECONDS` the cases go on for that time, from a seed that is printed; with
//! `POLYPLANE_FUZZ_SEED` from that one.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant, SystemTime};

use bytes::Bytes;
use http::{HeaderMap, HeaderValue, Method, Request, StatusCode};
use http_body_util::BodyExt as _;
use proptest::prelude::*;
use proptest::test_runner::{Config, RngAlgorithm, TestRng, TestRunner};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _, duplex};
use tokio::time::timeout;

use crate::peer::channel::driver::Driver;
use crate::peer::channel::frame::{
    self, FrameHead, HEAD_BYTES, Kind, PAYLOAD_BYTES_MAX, ReceivedValues, ResetReason, SentValues,
};
use crate::peer::channel::stream::{Broken, NoAnswer};
use crate::peer::channel::{Channel, QUEUE_BYTES_MAX};
use crate::peer::headers::CHAIN;
use crate::peer::pool::exchange;
use crate::peer::tests::Host;
use crate::peer::wire::PeerBody;

/// Cases of one seed. The long form goes from seed to seed.
const CASES: u32 = 128;
/// The budget of the channels under test: small, so that short scripts exceed it.
const RECEIVED_BYTES_MAX: usize = 600_000;
/// Bytes of memory that the longest frame of a script takes, about: above the budget by one frame a
/// channel ends streams.
const LONGEST_BYTES: usize = 400_000;
const PATIENCE: Duration = Duration::from_secs(3600);
const SECONDS: &str = "POLYPLANE_FUZZ_SECONDS";
const SEED: &str = "POLYPLANE_FUZZ_SEED";

/// One frame that the other side sends.
#[derive(Clone, Debug)]
enum Said {
    Request {
        path: &'static str,
        chain: Option<u8>,
        body: usize,
        is_last: bool,
    },
    Answer {
        headers: usize,
        body: usize,
        is_last: bool,
    },
    Data {
        body: usize,
        is_last: bool,
    },
    Trailers,
    Number(Kind, u32),
    Reset(ResetReason),
    Raw(Vec<u8>),
}

/// A frame and what is wrong with it.
#[derive(Clone, Debug)]
struct Act {
    stream: u32,
    said: Said,
    /// Places, counted from the frame's beginning, and what is added to the bytes there.
    faults: Vec<(usize, u8)>,
    /// How often the frame is sent.
    times: usize,
}

/// All that the other side does on one connection.
#[derive(Clone, Debug)]
struct Script {
    /// True if the side under test sends the requests.
    asks: bool,
    acts: Vec<Act>,
    cuts: Vec<usize>,
    /// True if the other side reads what it gets.
    reads: bool,
    pipe_bytes: usize,
}

fn said() -> impl Strategy<Value = Said> {
    let path = prop::sample::select(vec!["/echo", "/never", "/endless", "/100", "/200000"]);
    let body = || prop_oneof![4 => 0_usize..300, 1 => 0_usize..70_000, 1 => 200_000_usize..300_000];
    let last = || prop::bool::weighted(0.4);
    let number = prop::sample::select(vec![Kind::Credit, Kind::Ping, Kind::Pong, Kind::Closing]);
    let value = prop_oneof![0_u32..10, 60_000_u32..70_000, any::<u32>()];
    let reset = prop::sample::select(vec![
        ResetReason::Cancelled,
        ResetReason::Refused,
        ResetReason::Broken,
    ]);
    let chain = prop::option::of(any::<u8>());
    prop_oneof![
        8 => (path, chain, body(), last()).prop_map(|(path, chain, body, is_last)| {
            Said::Request { path, chain, body, is_last }
        }),
        8 => (0_usize..200, body(), last()).prop_map(|(headers, body, is_last)| {
            Said::Answer { headers, body, is_last }
        }),
        12 => (body(), last()).prop_map(|(body, is_last)| Said::Data { body, is_last }),
        1 => Just(Said::Trailers),
        4 => (number, value).prop_map(|(kind, value)| Said::Number(kind, value)),
        2 => reset.prop_map(Said::Reset),
        1 => prop::collection::vec(any::<u8>(), 0..60).prop_map(Said::Raw),
    ]
}

fn act() -> impl Strategy<Value = Act> {
    let stream = prop_oneof![20 => 0_u32..12, 1 => any::<u32>()];
    let fault = (0_usize..60, 1_u8..=255);
    let faults = prop_oneof![30 => Just(Vec::new()), 1 => prop::collection::vec(fault, 1..4)];
    let times = prop_oneof![10 => Just(1_usize), 1 => 1_usize..40];
    (stream, said(), faults, times).prop_map(|(stream, said, faults, times)| Act {
        stream,
        said,
        faults,
        times,
    })
}

/// Generates scripts. Most keep to the side that may send a frame, or nothing would live long.
fn script() -> impl Strategy<Value = Script> {
    let cut = prop_oneof![1_usize..40, 1_usize..5000, Just(100_000_usize)];
    let (acts, cuts) = (
        prop::collection::vec(act(), 1..60),
        prop::collection::vec(cut, 1..20),
    );
    let pipe_bytes = prop_oneof![50_usize..500, Just(100_000_usize)];
    let keeps_to_its_side = prop::bool::weighted(0.95);
    (
        any::<bool>(),
        keeps_to_its_side,
        acts,
        cuts,
        any::<bool>(),
        pipe_bytes,
    )
        .prop_map(|(asks, keeps, mut acts, cuts, reads, pipe_bytes)| {
            let may_say = |act: &Act| match &act.said {
                Said::Request { .. } => !asks,
                Said::Answer { .. } | Said::Trailers | Said::Number(Kind::Closing, _) => asks,
                _ => true,
            };
            if keeps {
                acts.retain(may_say);
                // Numbers of streams rise; those of other frames name a stream that may be open.
                let mut next = 0;
                for act in &mut acts {
                    match act.said {
                        Said::Request { .. } => {
                            act.times = 1;
                            act.stream = next;
                            next += 1;
                        }
                        Said::Answer { .. } => act.times = 1,
                        _ => {}
                    }
                }
            }
            Script {
                asks,
                acts,
                cuts,
                reads,
                pipe_bytes,
            }
        })
}

impl Act {
    fn write(&self, out: &mut Vec<u8>, sent_values: &mut SentValues) {
        let begins = out.len();
        let bytes = |count: usize| vec![b'b'; count];
        match &self.said {
            Said::Request {
                path,
                chain,
                body,
                is_last,
            } => {
                let mut headers = HeaderMap::new();
                if let Some(chain) = chain {
                    let value = HeaderValue::try_from(format!("{chain:0>100}"));
                    headers.insert(CHAIN, value.expect("a value"));
                }
                let target = path.parse().expect("a path");
                let head = (&Method::POST, &target, &headers);
                let body = bytes(*body);
                frame::put_request(out, self.stream, head, &body, *is_last, sent_values)
                    .expect("a short head");
            }
            Said::Answer {
                headers,
                body,
                is_last,
            } => {
                let mut map = HeaderMap::new();
                for _ in 0..*headers {
                    map.append("warning", HeaderValue::from_static("w"));
                }
                let head = (StatusCode::OK, &map);
                frame::put_answer(out, self.stream, head, &bytes(*body), *is_last)
                    .expect("a short head");
            }
            Said::Data { body, is_last } => {
                frame::put_data(out, self.stream, &bytes(*body), *is_last);
            }
            Said::Trailers => {
                let mut map = HeaderMap::new();
                map.insert("x-told", HeaderValue::from_static("7"));
                frame::put_trailers(out, self.stream, &map).expect("short");
            }
            Said::Number(Kind::Credit, value) => {
                frame::put_number(out, Kind::Credit, self.stream, *value);
            }
            Said::Number(kind, value) => frame::put_number(out, *kind, 0, *value),
            Said::Reset(why) => frame::put_reset(out, self.stream, *why),
            Said::Raw(raw) => out.extend_from_slice(raw),
        }
        for (place, more) in &self.faults {
            if let Some(byte) = out.get_mut(begins + place) {
                *byte = byte.wrapping_add(*more);
            }
        }
    }
}

impl Script {
    fn bytes(&self) -> Vec<u8> {
        let (mut out, mut sent_values) = (Vec::new(), SentValues::default());
        for act in &self.acts {
            for _ in 0..act.times {
                act.write(&mut out, &mut sent_values);
            }
        }
        out
    }
}

/// What the side under test does with an answer that it gets.
async fn use_answer(at: usize, channel: Arc<Channel>) -> Result<(), NoAnswer> {
    let body = PeerBody::new([Bytes::from(vec![b'q'; at * 20_000])]);
    let request = Request::post("/any").body(body).expect("a request");
    let response = exchange(&channel, &request).await?;
    match at % 3 {
        0 => drop(response),
        1 => drop(response.into_body().collect().await),
        // Nobody reads until the connection is over.
        _ => {
            while channel.is_open() {
                tokio::time::sleep(Duration::from_millis(50)).await;
            }
            drop(response.into_body().collect().await);
        }
    }
    Ok(())
}

/// Plays a script against a driver, and checks what must hold for every one of them.
async fn play(script: &Script) {
    let (near, far) = duplex(script.pipe_bytes);
    let channel = Channel::limited(RECEIVED_BYTES_MAX);
    let host = Host {
        streams_max: 8,
        ..Host::default()
    };
    let handler = (!script.asks).then(|| Box::new(host.clone()) as Box<_>);
    let mut driver = Driver::new(&channel, far, handler);
    let runs = tokio::spawn(async move { driver.run().await });
    let asked = if script.asks { 10 } else { 0 };
    let asking: Vec<_> = (0..asked)
        .map(|at| tokio::spawn(use_answer(at, Arc::clone(&channel))))
        .collect();
    let (mut reading, mut writing) = tokio::io::split(near);
    let reads = script.reads;
    let reader = tokio::spawn(async move {
        let mut buffer = vec![0; 10_000];
        while reads && matches!(reading.read(&mut buffer).await, Ok(1..)) {}
        // Keeps the pipe open: who does not read need not have gone.
        reading
    });
    let bytes = script.bytes();
    let (mut rest, mut cuts) = (&bytes[..], script.cuts.iter().cycle());
    while !rest.is_empty() {
        let cut = cuts.next().map_or(1, |cut| (*cut).min(rest.len()));
        let (piece, more) = rest.split_at(cut);
        if writing.write_all(piece).await.is_err() {
            break;
        }
        rest = more;
        tokio::task::yield_now().await;
        assert!(channel.waiting_bytes() <= QUEUE_BYTES_MAX + HEAD_BYTES + PAYLOAD_BYTES_MAX);
        assert!(channel.received_bytes() <= RECEIVED_BYTES_MAX + LONGEST_BYTES);
    }
    drop(writing.shutdown().await);
    let ended = timeout(PATIENCE, runs).await.expect("the connection ends");
    let ended = ended.expect("the connection does not panic");
    let is_clean = matches!(
        ended,
        Ok(()) | Err(Broken::Closed | Broken::Silent | Broken::Protocol(_) | Broken::Malformed(_))
    );
    assert!(is_clean, "{ended:?}");
    for one in asking {
        let done = timeout(PATIENCE, one).await.expect("a stream ends");
        drop(done.expect("a stream does not panic"));
    }
    drop(reader.await.expect("the reader does not panic"));
    for _ in 0..20 {
        tokio::task::yield_now().await;
    }
    assert_eq!(channel.open_streams(), 0);
    assert_eq!(host.answering.load(Ordering::SeqCst), 0);
    assert_eq!(host.panicked.load(Ordering::SeqCst), 0);
    assert_eq!(channel.received_bytes(), 0, "each byte is given back");
}

/// Reads all frames of a script. What is understood can be written and is understood again.
fn decode(script: &Script) -> Result<(), frame::Malformed> {
    let mut rest = Bytes::from(script.bytes());
    let mut received_values = ReceivedValues::default();
    while let Some(head) = FrameHead::parse(&rest)? {
        assert!(head.length <= PAYLOAD_BYTES_MAX);
        if rest.len() < HEAD_BYTES + head.length {
            break;
        }
        let mut payload = rest.split_to(HEAD_BYTES + head.length).slice(HEAD_BYTES..);
        let mut again = Vec::new();
        let stream = head.stream;
        match head.kind {
            Kind::Request => {
                let read = frame::take_request(&mut payload, &mut received_values)?;
                let parts = (&read.method, &read.target, &read.headers);
                let body = &payload[..payload.len().min(10)];
                let mut sent_values = SentValues::default();
                if frame::put_request(&mut again, stream, parts, body, true, &mut sent_values)
                    .is_ok()
                {
                    let mut again = Bytes::from(again).slice(HEAD_BYTES..);
                    let back = frame::take_request(&mut again, &mut ReceivedValues::default());
                    assert_eq!(back, Ok(read));
                    assert_eq!(again, body);
                }
            }
            Kind::Answer => {
                let read = frame::take_answer(&mut payload)?;
                let parts = (read.status, &read.headers);
                if frame::put_answer(&mut again, stream, parts, b"x", true).is_ok() {
                    let mut again = Bytes::from(again).slice(HEAD_BYTES..);
                    assert_eq!(frame::take_answer(&mut again), Ok(read));
                    assert_eq!(&again[..], b"x");
                }
            }
            Kind::Trailers => drop(frame::take_trailers(&mut payload)?),
            Kind::Reset => drop(frame::reset_reason(&payload)?),
            Kind::Credit | Kind::Ping | Kind::Pong | Kind::Closing => {
                frame::number(&payload)?;
            }
            Kind::Data => {}
        }
    }
    Ok(())
}

fn variable(name: &str) -> Option<u64> {
    std::env::var(name).ok()?.parse().ok()
}

/// Runs the cases of one seed, or those of as many seeds as the long form has time for.
fn fuzz(what: &str, check: impl Fn(&Script)) {
    let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH);
    let seconds = variable(SECONDS);
    let from_clock = || now.map_or(1, |now| now.as_millis() as u64);
    let first = variable(SEED).unwrap_or_else(|| seconds.map_or(1, |_| from_clock()));
    let until = Instant::now() + Duration::from_secs(seconds.unwrap_or(0));
    let mut seed = first;
    loop {
        let mut bytes = [0; 32];
        bytes[..8].copy_from_slice(&seed.to_be_bytes());
        let config = Config {
            cases: CASES,
            failure_persistence: None,
            ..Config::default()
        };
        let rng = TestRng::from_seed(RngAlgorithm::ChaCha, &bytes);
        let outcome = TestRunner::new_with_rng(config, rng).run(&script(), |script| {
            check(&script);
            Ok(())
        });
        if let Err(error) = outcome {
            panic!("{SEED}={seed}: {error}");
        }
        seed += 1;
        if Instant::now() >= until {
            break;
        }
    }
    let cases = (seed - first) * u64::from(CASES);
    println!("fuzz: {what}: {cases} cases from seed {first}, no fault");
}

#[test]
fn no_frames_break_the_decoder() {
    fuzz("decoder", |script| {
        let _ = decode(script);
    });
}

#[test]
fn no_frames_break_a_connection() {
    fuzz("connection", |script| {
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .start_paused(true)
            .build();
        runtime.expect("a runtime").block_on(play(script));
    });
}
