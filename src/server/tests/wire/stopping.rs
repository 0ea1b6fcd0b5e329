//! The ways in which a server stops.

use std::time::Duration;

use bytes::Bytes;
use http::{Method, StatusCode};
use http_body_util::BodyExt as _;
use polyplane_server::{DrainRequested, StopPolicy, Stopped};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;
use tokio_rustls::client::TlsStream;

use crate::client::{Client, Protocol, connect};
use crate::fake::{start, start_with};
use crate::ring::Ring;

/// Longer than any answer needs here, even on a busy machine.
const PATIENCE: Duration = Duration::from_secs(20);

#[tokio::test]
async fn requests_in_flight_finish_and_then_watches_end_cleanly() {
    let server = start().await;
    let mut watcher = Client::admin(&server, Protocol::Http2).await;
    let mut watch = watcher
        .open(Method::GET, "/api/v1/pods?watch=1", &[], "")
        .await;
    watch.frame().await.expect("a frame").expect("events");
    let mut slow = Client::admin(&server, Protocol::Http2).await;
    let waiting = tokio::spawn(async move { slow.get("/api/v1/namespaces/ns/pods/gate").await });
    let mut other = Client::admin(&server, Protocol::Http2).await;
    let inflight = "apiserver_current_inflight_requests{request_kind=\"readOnly\"} 1\n";
    while !other.get("/metrics").await.text().contains(inflight) {
        tokio::task::yield_now().await;
    }
    server.stop.stop();
    while TcpStream::connect(server.address).await.is_ok() {
        tokio::task::yield_now().await;
    }
    assert!(!waiting.is_finished());
    server.gate.notify_one();
    assert_eq!(waiting.await.expect("answered").status, StatusCode::OK);
    while let Some(frame) = watch.frame().await {
        frame.expect("the watch ends without an error");
    }
    assert_eq!(server.served.await.expect("stopped"), Stopped::Drained);
}

#[tokio::test]
async fn readiness_fails_before_anything_else_does() {
    let delay = Duration::from_secs(3600);
    let server = start_with(|config| {
        config.stop = StopPolicy {
            ready_delay: delay,
            ..StopPolicy::default()
        };
    })
    .await;
    server.stop.stop();
    let mut client = Client::admin(&server, Protocol::Http2).await;
    loop {
        let ready = client.get("/readyz").await;
        if ready.status == StatusCode::INTERNAL_SERVER_ERROR {
            assert!(
                ready
                    .text()
                    .contains("[-]shutdown failed: reason withheld\n")
            );
            break;
        }
        tokio::task::yield_now().await;
    }
    assert_eq!(client.get("/livez").await.status, StatusCode::OK);
    assert_eq!(client.get("/api/v1/pods").await.status, StatusCode::OK);
    server.stop.abort();
    server.served.await.expect("stopped");
}

/// A client that knows it opens another connection, at another replica. With HTTP/2 the connection itself says it.
#[tokio::test]
async fn answers_over_http1_say_that_the_connection_ends_once_the_server_is_to_stop() {
    let server = start().await;
    let mut first = Client::admin(&server, Protocol::Http1).await;
    let mut second = Client::admin(&server, Protocol::Http2).await;
    let said = async |client: &mut Client| {
        let reply = client.get("/api/v1/pods").await;
        assert_eq!(reply.status, StatusCode::OK);
        reply.header("connection").to_owned()
    };
    assert_eq!(said(&mut first).await, "");
    assert_eq!(said(&mut second).await, "");
    server.stop.unready();
    assert_eq!(said(&mut first).await, "close");
    let closed = tokio::time::timeout(PATIENCE, first.closed()).await;
    closed.expect("the server closes the connection");
    for _ in 0..2 {
        assert_eq!(said(&mut second).await, "");
    }
}

/// Reads until the answer to `/livez` is there, or the connection has ended.
async fn answer_of_probe(stream: &mut TlsStream<TcpStream>) -> String {
    let mut answer = Vec::new();
    while !answer.ends_with(b"ok") {
        match stream.read_buf(&mut answer).await {
            Ok(0) | Err(_) => break,
            Ok(_) => {}
        }
    }
    String::from_utf8(answer).expect("text")
}

/// The requests are sent before the server stops, and the server reads them after that.
#[tokio::test]
async fn requests_that_are_on_their_way_when_the_server_stops_are_answered() {
    const PROBE: &[u8] = b"GET /livez HTTP/1.1\r\nhost: localhost\r\n\r\n";
    let server = start().await;
    let connected = async || connect(server.address, &server.pki, Protocol::Http1, None).await;
    let (mut used, mut fresh) = (connected().await, connected().await);
    used.write_all(PROBE).await.expect("sent");
    let first = answer_of_probe(&mut used).await;
    assert!(first.starts_with("HTTP/1.1 200"), "{first}");
    assert!(!first.contains("connection: close"), "{first}");
    for stream in [&mut used, &mut fresh] {
        stream.write_all(PROBE).await.expect("sent");
        stream.flush().await.expect("sent");
    }
    server.stop.stop();
    for stream in [&mut used, &mut fresh] {
        let last = answer_of_probe(stream).await;
        assert!(last.starts_with("HTTP/1.1 200"), "{last}");
        assert!(last.contains("connection: close"), "{last}");
    }
    assert_eq!(server.served.await.expect("stopped"), Stopped::Drained);
}

#[tokio::test]
async fn a_second_signal_does_not_wait() {
    let server = start().await;
    let mut client = Client::admin(&server, Protocol::Http2).await;
    let waiting = tokio::spawn(async move {
        client
            .open(Method::GET, "/api/v1/namespaces/ns/pods/forever", &[], "")
            .await
    });
    let mut other = Client::admin(&server, Protocol::Http2).await;
    let inflight = "apiserver_current_inflight_requests{request_kind=\"readOnly\"} 1\n";
    while !other.get("/metrics").await.text().contains(inflight) {
        tokio::task::yield_now().await;
    }
    server.stop.stop();
    server.stop.abort();
    server.served.await.expect("stopped");
    assert!(
        waiting.await.is_err(),
        "the client's request must have been cut off"
    );
}

#[tokio::test]
async fn a_client_that_never_shakes_hands_is_let_go() {
    let server =
        start_with(|config| config.limits.handshake_time_max = Duration::from_millis(20)).await;
    let mut silent = TcpStream::connect(server.address).await.expect("connected");
    let mut byte = [0];
    let read = tokio::io::AsyncReadExt::read(&mut silent, &mut byte).await;
    assert!(matches!(read, Ok(0) | Err(_)), "{read:?}");
}

#[tokio::test]
async fn a_drain_that_leaves_planes_is_no_fault_of_the_server() {
    let ring = Ring::start_with(2, |config| {
        let drain: DrainRequested =
            Box::new(|| Box::pin(async { Err("nobody takes 9".to_owned()) }));
        config.drain_requested = Some(drain);
    })
    .await;
    let mut admin = ring.client(0).await;
    let pod = "/clusters/team-a/api/v1/namespaces/ns/pods/a";
    for _ in 0..2 {
        let kept = admin.send(Method::POST, "/drain", &[], Bytes::new()).await;
        assert_eq!(kept.status, StatusCode::SERVICE_UNAVAILABLE);
        assert_eq!(kept.json()["message"], "nobody takes 9");
    }
    assert_eq!(admin.get(pod).await.status, StatusCode::OK);
}
