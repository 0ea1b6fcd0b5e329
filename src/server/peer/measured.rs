//! Measures the memory of one connection while the other side does its worst: each attack runs in a
//! process of its own, whose peak is compared with the figure that `PROTOCOL.md` states.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use anyhow::{Context as _, Result, bail, ensure};
use http::{HeaderMap, HeaderValue, Method, Request, Response, StatusCode};
use http_body_util::BodyExt as _;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _, DuplexStream, duplex};
use tokio::task::JoinHandle;
use tokio::time::timeout;

use crate::peer::channel::Channel;
use crate::peer::channel::driver::Driver;
use crate::peer::channel::frame::{
    self, CHUNK_BYTES, HEAD_BYTES, Kind, PAYLOAD_BYTES_MAX, ResetReason, SentValues,
};
use crate::peer::channel::stream::{Broken, PeerStream, WINDOW_BYTES};
use crate::peer::pool::exchange;
use crate::peer::tests::Host;
use crate::peer::wire::PeerBody;

/// Bytes of memory that one connection takes at most, as `PROTOCOL.md` says.
const CONNECTION_BYTES_MAX: usize = 160 * 1024 * 1024;
const ATTACK: &str = "POLYPLANE_PEER_ATTACK";
/// The words before the figure that an attack prints.
const FIGURE: &str = "more than before: ";
const STREAMS: u32 = 4096;
const PATIENCE: Duration = Duration::from_secs(120);

/// Returns the greatest memory that this process has had, in bytes.
fn peak() -> Result<usize> {
    let status = std::fs::read_to_string("/proc/self/status")?;
    let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:"));
    let kib = line.and_then(|line| line.split_whitespace().next());
    Ok(kib.context("no VmHWM")?.parse::<usize>()? * 1024)
}

fn request(out: &mut Vec<u8>, stream: u32, path: &str, headers: &HeaderMap) {
    let target = path.parse().expect("a path");
    let head = (&Method::POST, &target, headers);
    let values = &mut SentValues::default();
    frame::put_request(out, stream, head, &[], false, values).expect("it fits a frame");
}

/// Returns headers that fill most of a frame.
fn long_headers() -> HeaderMap {
    let mut headers = HeaderMap::new();
    for at in 0..60 {
        let value = HeaderValue::try_from(format!("{at:0>15000}"));
        headers.append("x-own", value.expect("a value"));
    }
    headers
}

/// Returns many headers that take few bytes of a frame.
fn many_headers() -> HeaderMap {
    let mut headers = HeaderMap::new();
    for at in 0..4000 {
        let name: http::HeaderName = format!("x-{at}").parse().expect("a name");
        headers.append(name, HeaderValue::from_static(""));
    }
    headers
}

/// Fills what is left of a read buffer, so that the next frame begins in another one.
fn fill(out: &mut Vec<u8>) {
    for _ in 0..16 * 1024 / 13 {
        frame::put_number(out, Kind::Pong, 0, 0);
    }
}

type Sending = tokio::io::WriteHalf<DuplexStream>;

/// The attacks on the side that answers. Each ends when the connection does.
async fn attack_the_host(name: &str, sending: &mut Sending) -> std::io::Result<()> {
    let mut out = Vec::new();
    let plain = HeaderMap::new();
    match name {
        // Whole windows that no handler reads.
        "windows" => {
            for stream in 0..STREAMS / 4 {
                out.clear();
                request(&mut out, stream, "/never", &plain);
                for _ in 0..WINDOW_BYTES / CHUNK_BYTES {
                    frame::put_data(&mut out, stream, &[b'x'; CHUNK_BYTES], false);
                }
                sending.write_all(&out).await?;
            }
        }
        // A few bytes for each of many streams, each in a read buffer of its own.
        "crumbs" => {
            for stream in 0..STREAMS {
                out.clear();
                request(&mut out, stream, "/never", &plain);
                fill(&mut out);
                frame::put_data(&mut out, stream, b"x", false);
                fill(&mut out);
                sending.write_all(&out).await?;
            }
        }
        // Many bytes on few streams, each byte in a frame and a read buffer of its own.
        "grains" => {
            for stream in 0..8 {
                request(&mut out, stream, "/never", &plain);
            }
            for at in 0..20_000 {
                frame::put_data(&mut out, at % 8, b"x", false);
                fill(&mut out);
                sending.write_all(&out).await?;
                out.clear();
            }
        }
        "long heads" | "many headers" => {
            let headers = match name {
                "long heads" => long_headers(),
                _ => many_headers(),
            };
            for stream in 0..STREAMS / 4 {
                out.clear();
                request(&mut out, stream, "/never", &headers);
                sending.write_all(&out).await?;
            }
        }
        other => return flood_the_host(other, sending).await,
    }
    Ok(())
}

/// The attacks by frames that have to be answered, and by one that does not end.
async fn flood_the_host(name: &str, sending: &mut Sending) -> std::io::Result<()> {
    let mut out = Vec::new();
    let plain = HeaderMap::new();
    match name {
        // Frames that have to be answered, whose answers nobody reads.
        "pings" => {
            for _ in 0..10_000 {
                frame::put_number(&mut out, Kind::Ping, 0, 0);
            }
            for _ in 0..2000 {
                sending.write_all(&out).await?;
            }
        }
        // Requests that are cancelled while they wait for room in a queue that nobody reads.
        "cancels" => {
            for stream in 0..200_000 {
                out.clear();
                request(&mut out, stream, "/100000", &plain);
                sending.write_all(&out).await?;
                out.clear();
                frame::put_reset(&mut out, stream, ResetReason::Cancelled);
                sending.write_all(&out).await?;
            }
        }
        "unfinished" => {
            let mut head = [0; HEAD_BYTES];
            head[..4].copy_from_slice(&(PAYLOAD_BYTES_MAX as u32).to_be_bytes());
            sending.write_all(&head).await?;
            sending.write_all(&vec![0; PAYLOAD_BYTES_MAX - 1]).await?;
        }
        other => panic!("there is no attack called {other}"),
    }
    Ok(())
}

/// The attacks on the side that asks: answers that nobody reads.
async fn attack_who_asks(name: &str, sending: &mut Sending) -> std::io::Result<()> {
    let mut out = Vec::new();
    let plain = HeaderMap::new();
    let headers = long_headers();
    for stream in 0..STREAMS / 4 {
        out.clear();
        let (headers, is_last) = match name {
            "long answers" => (&headers, false),
            "ended answers" => (&plain, true),
            _ => (&plain, false),
        };
        let head = (StatusCode::OK, headers);
        frame::put_answer(&mut out, stream, head, b"", false).expect("it fits a frame");
        let chunks = match name {
            "long answers" => 0,
            _ => WINDOW_BYTES / CHUNK_BYTES,
        };
        for at in 1..=chunks {
            let is_last = is_last && at == chunks;
            frame::put_data(&mut out, stream, &[b'x'; CHUNK_BYTES], is_last);
        }
        sending.write_all(&out).await?;
    }
    Ok(())
}

/// Opens many streams. Who waits for a body keeps the head of its answer; the others keep the answer
/// and read nothing of it.
async fn ask(channel: &Arc<Channel>, waits: bool) -> Vec<JoinHandle<Option<Response<PeerStream>>>> {
    let ask = |channel: Arc<Channel>| async move {
        let request = Request::post("/any").body(PeerBody::default());
        let response = exchange(&channel, &request.expect("a request")).await;
        if !waits {
            return response.ok();
        }
        let (_head, body) = response.ok()?.into_parts();
        drop(body.collect().await);
        None
    };
    let asking = (0..STREAMS / 4).map(|_| tokio::spawn(ask(Arc::clone(channel))));
    let asking = asking.collect();
    while channel.open_streams() < STREAMS as usize / 4 {
        tokio::task::yield_now().await;
    }
    asking
}

/// Carries out one attack in this process and prints its peak.
async fn carry_out(name: &str) -> Result<()> {
    let (near, far) = duplex(64 * 1024);
    let (mut receiving, mut sending) = tokio::io::split(near);
    let channel = Channel::new();
    let asks = name.ends_with("answers");
    let host = Host {
        streams_max: STREAMS as usize,
        ..Host::default()
    };
    let handler = (!asks).then(|| Box::new(host.clone()) as Box<_>);
    let mut driver = Driver::new(&channel, far, handler);
    let runs = tokio::spawn(async move { driver.run().await });
    let before = peak()?;
    let (attacked, mut asking) = if asks {
        let asking = ask(&channel, name == "long answers").await;
        // Reads what it gets, or the requests would not all be sent.
        tokio::spawn(async move {
            let mut buffer = vec![0; 10_000];
            while matches!(receiving.read(&mut buffer).await, Ok(1..)) {}
        });
        (attack_who_asks(name, &mut sending).await, asking)
    } else {
        (attack_the_host(name, &mut sending).await, Vec::new())
    };
    let ended = runs.is_finished();
    println!("{FIGURE}{} bytes", peak()? - before);
    // Pings and requests whose answers nobody reads end the connection; nothing else does.
    ensure!(
        attacked.is_err() == (name == "pings"),
        "{name}: {attacked:?}, the connection has ended: {ended}"
    );
    drop(sending.shutdown().await);
    drop(sending);
    let outcome = timeout(PATIENCE, runs).await??;
    let closed = matches!(outcome, Err(Broken::Closed | Broken::Protocol(_)));
    ensure!(closed, "{outcome:?}");
    for one in asking.drain(..) {
        drop(one.await?);
    }
    while host.answering.load(Ordering::SeqCst) > 0 {
        tokio::task::yield_now().await;
    }
    ensure!(
        channel.received_bytes() == 0,
        "some bytes are not given back"
    );
    Ok(())
}

/// Runs one attack in a process of its own, and returns by how much the process grew.
fn measure(test: &str, name: &str) -> Result<usize> {
    let output = std::process::Command::new(std::env::current_exe()?)
        .args(["--exact", test, "--nocapture", "--test-threads=1"])
        .env(ATTACK, name)
        .output()?;
    let text = String::from_utf8_lossy(&output.stdout);
    if !output.status.success() {
        let errors = String::from_utf8_lossy(&output.stderr);
        bail!("the attack {name:?} failed:\n{text}{errors}");
    }
    let (_, figure) = text.split_once(FIGURE).context("no figure")?;
    let number = figure.split_whitespace().next().context("no number")?;
    Ok(number.parse()?)
}

/// No attack makes a connection take more memory than the protocol's document states.
#[test]
fn a_connection_has_bounded_memory() -> Result<()> {
    if let Ok(name) = std::env::var(ATTACK) {
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build()?;
        return runtime.block_on(carry_out(&name));
    }
    let mut faults = Vec::new();
    for name in [
        "windows",
        "crumbs",
        "grains",
        "long heads",
        "many headers",
        "pings",
        "cancels",
        "unfinished",
        "answers",
        "long answers",
        "ended answers",
    ] {
        let test = "peer::measured::a_connection_has_bounded_memory";
        let bytes = measure(test, name)?;
        println!("{name}: {} KiB", bytes / 1024);
        if bytes > CONNECTION_BYTES_MAX {
            faults.push(format!("{name}: {} MiB", bytes >> 20));
        }
    }
    ensure!(faults.is_empty(), "above the limit: {faults:?}");
    Ok(())
}
