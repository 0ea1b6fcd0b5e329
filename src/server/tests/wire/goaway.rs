//! Clients that are made to open new connections.

use std::time::Duration;

use http::StatusCode;

use crate::client::{Client, Protocol};
use crate::fake::start_with;

#[tokio::test]
async fn a_client_with_http2_is_answered_and_sent_away() {
    let server = start_with(|config| config.goaway_chance = 1.0).await;
    let mut client = Client::admin(&server, Protocol::Http2).await;
    assert_eq!(client.get("/api/v1").await.status, StatusCode::OK);
    let closed = tokio::time::timeout(Duration::from_secs(20), client.closed()).await;
    closed.expect("the server closes the connection");
}

#[tokio::test]
async fn a_client_without_http2_stays() {
    let server = start_with(|config| config.goaway_chance = 1.0).await;
    let mut client = Client::admin(&server, Protocol::Http1).await;
    for _ in 0..3 {
        assert_eq!(client.get("/api/v1").await.status, StatusCode::OK);
    }
}
