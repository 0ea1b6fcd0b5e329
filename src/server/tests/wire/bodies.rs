//! Bodies and heads at their limits and beyond, and answers that come before a body has ended.

use std::error::Error as _;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Duration;

use bytes::Bytes;
use futures_util::stream::{self, StreamExt as _};
use http::{Method, StatusCode};
use http_body_util::{BodyExt as _, StreamBody};
use hyper::body::Frame;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::task::JoinHandle;

use crate::client::{Body, Client, PROTOCOLS, Protocol, connect};
use crate::fake::{UNDECIDED, start};

const PODS: &str = "/api/v1/namespaces/ns/pods";
/// Longer than any answer needs here, even on a busy machine.
const PATIENCE: Duration = Duration::from_secs(20);

#[tokio::test]
async fn a_body_above_the_limit_is_refused() {
    let server = start().await;
    let mut client = Client::admin(&server, Protocol::Http2).await;
    let reply = client
        .send(Method::POST, PODS, &[], vec![b' '; 3 * 1024 * 1024 + 1])
        .await;
    assert_eq!(reply.status, StatusCode::PAYLOAD_TOO_LARGE);
    assert_eq!(reply.json()["reason"], "RequestEntityTooLarge");
    assert_eq!(
        reply.json()["message"],
        "Request entity too large: limit is 3145728"
    );
    let fits = client
        .send(Method::POST, PODS, &[], vec![b' '; 3 * 1024 * 1024])
        .await;
    assert_eq!(fits.status, StatusCode::CREATED);
}

/// Some clients read no answer while they send, so they must get rid of the body first.
#[tokio::test]
async fn a_body_somewhat_above_the_limit_is_read_to_its_end_before_it_is_refused() {
    const PIECES: usize = 250;
    let server = start().await;
    let announced = [("content-length", "4000000")];
    for (protocol, headers) in [
        (Protocol::Http1, &announced[..]),
        (Protocol::Http1, &announced[..0]),
        (Protocol::Http2, &announced[..]),
        (Protocol::Http2, &announced[..0]),
    ] {
        let mut client = Client::admin(&server, protocol).await;
        // The second time shows that the connection can be used again.
        for _ in 0..2 {
            let sent = Arc::new(AtomicUsize::new(0));
            let taken = Arc::clone(&sent);
            let pieces = stream::iter(0..PIECES).map(move |_| {
                taken.fetch_add(1, Ordering::SeqCst);
                Ok(Frame::data(Bytes::from(vec![b' '; 16_000])))
            });
            let body = StreamBody::new(pieces).boxed_unsync();
            let reply = client.open_with(Method::POST, PODS, headers, body).await;
            let sent = sent.load(Ordering::SeqCst);
            let case = format!("{protocol:?} with {headers:?}");
            assert_eq!(
                (reply.status(), sent),
                (StatusCode::PAYLOAD_TOO_LARGE, PIECES),
                "{case}"
            );
            let whole = reply.into_body().collect().await;
            drop(whole.expect("a whole answer"));
        }
    }
}

#[tokio::test]
async fn a_body_far_above_the_limit_is_refused_without_a_wait_for_it() {
    let server = start().await;
    // With a wait the deadline would pass.
    let path = format!("{PODS}?timeout=5s");
    let announced = [("content-length", "5000000000")];
    for protocol in PROTOCOLS {
        let mut client = Client::admin(&server, protocol).await;
        let body = StreamBody::new(stream::pending()).boxed_unsync();
        let reply = client.open_with(Method::POST, &path, &announced, body);
        assert_eq!(reply.await.status(), StatusCode::PAYLOAD_TOO_LARGE);
    }
}

#[tokio::test]
async fn a_client_that_asks_before_it_sends_too_much_is_not_told_to_go_on() {
    let server = start().await;
    let head = format!(
        "POST {PODS} HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer {}\r\n\
         Content-Length: 4000000\r\nExpect: 100-continue\r\n\r\n",
        server.pki.admin_token()
    );
    let mut stream = connect(server.address, &server.pki, Protocol::Http1, None).await;
    let sent = stream.write_all(head.as_bytes()).await;
    sent.expect("sent");
    stream.flush().await.expect("flushed");
    let mut status = [0; 12];
    let read = stream.read_exact(&mut status).await;
    read.expect("an answer");
    assert_eq!(&status, b"HTTP/1.1 413");
}

/// A client that is refused while it still sends its body gets the refusal, not a broken stream.
#[tokio::test]
async fn a_refusal_does_not_overtake_the_rest_of_the_body() {
    let server = start().await;
    for protocol in PROTOCOLS {
        let mut stranger = Client::with(&server, protocol, Some("nonsense"), None).await;
        let sent = Arc::new(AtomicBool::new(false));
        let last = Arc::clone(&sent);
        let late = async move {
            tokio::time::sleep(Duration::from_millis(100)).await;
            last.store(true, Ordering::SeqCst);
            Ok(Frame::data(Bytes::from_static(b"}")))
        };
        let first = std::future::ready(Ok(Frame::data(Bytes::from_static(b"{"))));
        let parts = stream::once(first).chain(stream::once(late));
        let body = StreamBody::new(parts).boxed_unsync();
        let path = "/api/v1/namespaces/default/configmaps";
        let headers = [("content-type", "application/json")];
        let answer = stranger.open_with(Method::POST, path, &headers, body).await;
        assert_eq!(answer.status(), StatusCode::UNAUTHORIZED);
        assert!(sent.load(Ordering::SeqCst), "{protocol:?}");
        drop(answer);
        // The connection stays usable.
        let again = stranger.get("/version").await;
        assert_eq!(again.status, StatusCode::UNAUTHORIZED);
    }
}

/// With HTTP/2 the stream alone is reset (`resets.rs`).
#[tokio::test]
async fn a_client_of_http1_reads_its_refusal_before_the_connection_is_reset() {
    let server = start().await;
    for (token, status) in [("nonsense", "401"), (server.pki.admin_token(), "413")] {
        let head = format!(
            "POST {PODS} HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer {token}\r\n\
             Content-Length: 1000000000\r\n\r\n"
        );
        let stream = connect(server.address, &server.pki, Protocol::Http1, None).await;
        let (mut reader, mut writer) = tokio::io::split(stream);
        writer.write_all(head.as_bytes()).await.expect("sent");
        let piece = vec![b' '; 16 << 10];
        // It ends when the connection is reset; before that, it waits for room.
        let sending = async { while writer.write_all(&piece).await.is_ok() {} };
        let mut answer = Vec::new();
        let reading = async {
            while !answer.ends_with(b"}\n") {
                let read = reader.read_buf(&mut answer).await.expect("an answer");
                assert_ne!(read, 0, "a whole answer");
            }
            tokio::time::sleep(Duration::from_millis(100)).await;
        };
        tokio::select! {
            () = sending => panic!("the connection is reset although there is an answer to read"),
            () = reading => {}
        }
        let answer = String::from_utf8(answer).expect("text");
        assert!(
            answer.starts_with(&format!("HTTP/1.1 {status} ")),
            "{answer}"
        );
        assert!(answer.contains("connection: close\r\n"), "{answer}");
    }
}

/// The server does not wait without limit for a body that no stage needs.
#[tokio::test]
async fn a_refusal_does_not_wait_for_a_body_that_never_ends() {
    let server = start().await;
    for protocol in PROTOCOLS {
        let mut stranger = Client::with(&server, protocol, Some("nonsense"), None).await;
        let body = StreamBody::new(stream::pending()).boxed_unsync();
        let answer = stranger.open_with(Method::POST, "/api", &[], body).await;
        assert_eq!(answer.status(), StatusCode::UNAUTHORIZED);
        let mut stranger = Client::with(&server, protocol, Some("nonsense"), None).await;
        let endless = stream::repeat_with(|| Ok(Frame::data(Bytes::from_static(&[0; 4096]))));
        let body = StreamBody::new(endless).boxed_unsync();
        let answer = stranger.open_with(Method::POST, "/api", &[], body).await;
        assert_eq!(answer.status(), StatusCode::UNAUTHORIZED);
    }
}

/// The only worker thread of the runtime carries a large body's request out, which ends when another
/// request has been answered.
#[tokio::test(flavor = "multi_thread", worker_threads = 1)]
async fn a_large_body_does_not_hold_up_others() {
    let server = start().await;
    let mut large = Client::admin(&server, Protocol::Http2).await;
    let mut small = Client::admin(&server, Protocol::Http2).await;
    let body = "x".repeat(512 << 10);
    let (held, release) = (format!("{PODS}/held"), format!("{PODS}/release"));
    let (large, small) = tokio::join!(
        large.send(Method::PUT, &held, &[], body),
        small.get(&release)
    );
    assert_eq!(small.status, StatusCode::OK);
    assert_eq!(large.status, StatusCode::OK, "{}", large.text());
}

/// Clients without a credential send heads too.
#[tokio::test]
async fn a_head_beyond_the_limit_of_its_protocol_gets_431() {
    let server = start().await;
    let (short, long) = ("x".repeat(8), "x".repeat(1024));
    let (taken, refused) = (StatusCode::OK, StatusCode::REQUEST_HEADER_FIELDS_TOO_LARGE);
    for (protocol, count, value, status) in [
        (Protocol::Http1, 1000, &short, taken),
        (Protocol::Http1, 1100, &short, refused),
        (Protocol::Http1, 60, &long, taken),
        (Protocol::Http1, 200, &long, refused),
        (Protocol::Http2, 1100, &short, taken),
        (Protocol::Http2, 200, &long, taken),
        (Protocol::Http2, 300, &long, refused),
    ] {
        let headers = vec![("x-padding-of-the-head", value.as_str()); count];
        let mut stranger = Client::with(&server, protocol, None, None).await;
        let answer = stranger.open(Method::GET, "/version", &headers, "").await;
        let sent = format!("{count} of {} bytes with {protocol:?}", value.len());
        assert_eq!(answer.status(), status, "{sent}");
    }
}

/// Until then the server keeps what has arrived of the head.
#[tokio::test]
async fn a_head_over_http1_that_does_not_end_gets_431_after_64_kib() {
    let server = start().await;
    let mut stream = connect(server.address, &server.pki, Protocol::Http1, None).await;
    let mut head = b"GET /version HTTP/1.1\r\nHost: localhost\r\nX-Padding: ".to_vec();
    // No more than that: bytes that the server does not read would reset the connection before its answer is read.
    head.resize(64 << 10, b'x');
    stream.write_all(&head).await.expect("sent");
    stream.flush().await.expect("flushed");
    let mut status = [0; 12];
    let reading = stream.read_exact(&mut status);
    let read = tokio::time::timeout(PATIENCE, reading).await;
    let read = read.expect("the server does not wait for the rest");
    read.expect("an answer");
    assert_eq!(&status, b"HTTP/1.1 431");
}

/// Each head is some KiB for the client, and several hundred for the server.
#[tokio::test]
async fn heads_of_strangers_of_one_address_take_64_mib_and_no_room_of_proven_clients() {
    const COUNT: usize = 100;
    let server = start().await;
    let headers = vec![("x-short", ""); 4000];
    let mut proven = Client::admin(&server, Protocol::Http2).await;
    assert_eq!(proven.get(PODS).await.status, StatusCode::OK);
    // They wait for the judgement of their token.
    let mut stranger = Client::with(&server, Protocol::Http2, Some(UNDECIDED), None).await;
    let mut waiting = Vec::new();
    for _ in 0..COUNT {
        waiting.push(stranger.begin_with(PODS, &headers).await);
    }
    // Each head takes more than 800 KiB.
    let refused_min = COUNT - (64 << 20) / (800 << 10);
    let some_refused = async {
        while waiting.iter().filter(|one| one.is_finished()).count() < refused_min {
            tokio::task::yield_now().await;
        }
    };
    let in_time = tokio::time::timeout(PATIENCE, some_refused).await;
    in_time.expect("there is no room for all");
    let (refused, _waiting): (Vec<_>, Vec<_>) =
        waiting.into_iter().partition(JoinHandle::is_finished);
    for one in refused {
        let error = one.await.expect("no panic").expect_err("a refusal");
        let cause = error
            .source()
            .and_then(|cause| cause.downcast_ref::<h2::Error>());
        // Which says that the request was not begun, so that clients send it again.
        let code = cause.and_then(h2::Error::reason);
        assert_eq!(code, Some(h2::Reason::REFUSED_STREAM));
    }
    let mut answered = Vec::new();
    for _ in 0..COUNT {
        answered.push(proven.begin_with(PODS, &headers).await);
    }
    for one in answered {
        let answer = one.await.expect("no panic").expect("an answer");
        assert_eq!(answer.status(), StatusCode::OK);
    }
}

/// Returns a body of pieces of 16 KiB, and how many of them the client has taken to send them.
fn counted_pieces(pieces: usize) -> (Body, Arc<AtomicUsize>) {
    let sent = Arc::new(AtomicUsize::new(0));
    let taken = Arc::clone(&sent);
    let pieces = stream::iter(0..pieces).map(move |_| {
        taken.fetch_add(1, Ordering::SeqCst);
        Ok(Frame::data(Bytes::from(vec![b' '; 16 << 10])))
    });
    (StreamBody::new(pieces).boxed_unsync(), sent)
}

/// No budget counts what arrives of a body before its request is proven.
#[tokio::test]
async fn a_client_of_http2_sends_64_kib_of_bodies_before_it_is_proven() {
    const PIECES: usize = 64;
    let server = start().await;
    let mut client = Client::with(&server, Protocol::Http2, Some(UNDECIDED), None).await;
    let (body, sent) = counted_pieces(PIECES);
    let answering = tokio::spawn(async move {
        let answer = client.open_with(Method::POST, PODS, &[], body).await;
        answer.status()
    });
    while sent.load(Ordering::SeqCst) < 4 {
        tokio::task::yield_now().await;
    }
    tokio::time::sleep(Duration::from_millis(300)).await;
    // The client takes one piece more than it has room for.
    let before = sent.load(Ordering::SeqCst);
    assert!(before <= 5, "{before} pieces");
    server.gate.notify_one();
    let status = tokio::time::timeout(PATIENCE, answering).await;
    let status = status.expect("a proven client has more room");
    assert_eq!(status.expect("no panic"), StatusCode::CREATED);
    assert_eq!(sent.load(Ordering::SeqCst), PIECES);
}

/// Beyond the room that a stranger has at a time.
#[tokio::test]
async fn a_body_of_a_stranger_is_read_to_its_end_before_it_is_refused() {
    const PIECES: usize = 12;
    let server = start().await;
    let mut stranger = Client::with(&server, Protocol::Http2, Some("nonsense"), None).await;
    for _ in 0..3 {
        let (body, sent) = counted_pieces(PIECES);
        let answer = stranger.open_with(Method::POST, PODS, &[], body).await;
        assert_eq!(answer.status(), StatusCode::UNAUTHORIZED);
        assert_eq!(sent.load(Ordering::SeqCst), PIECES);
    }
}
