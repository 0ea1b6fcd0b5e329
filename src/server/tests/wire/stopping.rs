//! The ways in which a server stops.

use std::time::Duration;

use http::{Method, StatusCode};
use http_body_util::BodyExt as _;
use polyplane_server::{StopPolicy, Stopped};
use tokio::net::TcpStream;

use crate::client::{Client, Protocol};
use crate::fake::{start, start_with};

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
