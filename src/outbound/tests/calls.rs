//! Calls to real servers with TLS.

use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use bytes::Bytes;
use http::{HeaderMap, Method, StatusCode};
use polyplane_outbound::{Call, CallError, Caller, Target, Trust};
use polyplane_tests::outside::Outside;
use serde_json::{Value, json};

fn call(path: &str) -> Call {
    Call {
        method: Method::GET,
        path: path.parse().ok(),
        headers: HeaderMap::new(),
        body: Bytes::new(),
        timeout: Duration::from_secs(20),
        answer_bytes_max: 1000,
    }
}

/// One connection serves calls one after the other; a redirect is an answer like others; an answer that
/// is too long is refused; without the server's CA there is no connection.
#[tokio::test]
async fn calls_reuse_connections_follow_no_redirect_and_bound_answers() -> Result<()> {
    let server = Outside::start(|request| match request.path.as_str() {
        "/redirect" => (StatusCode::FOUND, json!({"location": "/target"})),
        "/long" => (StatusCode::OK, json!("x".repeat(2000))),
        _ => (StatusCode::OK, json!("here")),
    })
    .await?;
    let caller = Caller::new(Vec::new());
    let plane = caller.of_operator();
    let trust = Trust::new(Some(server.ca_pem.as_bytes()), None)?;
    let target = Target::new(&plane, &server.url, &trust)?;
    for _ in 0..5 {
        let answer = target.call(call("/a?b=c")).await?;
        ensure!(answer.status == StatusCode::OK && &answer.body[..] == b"\"here\"");
    }
    ensure!(server.connections() == 1, "{}", server.connections());
    ensure!(target.call(call("/redirect")).await?.status == StatusCode::FOUND);
    ensure!(server.hits("/target") == 0);
    let long = target.call(call("/long")).await.err();
    ensure!(long == Some(CallError::TooLong(1000)), "{long:?}");
    let stranger = Target::new(&plane, &server.url, &Trust::new(None, None)?)?;
    let refused = stranger.call(call("/a")).await.err().context("refused")?;
    ensure!(matches!(refused, CallError::Transport(_)), "{refused}");
    let metrics = caller.metrics();
    ensure!(
        (metrics.answered, metrics.failed, metrics.in_flight) == (6, 2, 0),
        "{metrics:?}"
    );
    Ok(())
}

/// A plane's target on this machine is refused as an address and as a name, unless the operator allows
/// the range; nothing is connected.
#[tokio::test]
async fn a_plane_reaches_no_address_but_public_and_allowed_ones() -> Result<()> {
    let server = Outside::start(|_| (StatusCode::OK, Value::Null)).await?;
    let trust = Trust::new(Some(server.ca_pem.as_bytes()), None)?;
    let port = server.url.rsplit(':').next().context("a port")?;
    let closed = Caller::new(Vec::new());
    let plane = closed.of_plane();
    for host in ["127.0.0.1", "localhost", "[::ffff:127.0.0.1]"] {
        let target = Target::new(&plane, &format!("https://{host}:{port}"), &trust)?;
        // A refusal opens no circuit: it says nothing of the target.
        for _ in 0..10 {
            let refused = target.call(call("/")).await.err();
            let is_refused = matches!(refused, Some(CallError::Address(_)));
            ensure!(is_refused, "{host}: {refused:?}");
        }
    }
    // Spellings of the address that a system may look up, or not.
    for host in ["127.1", "0x7f000001", "2130706433"] {
        if let Ok(target) = Target::new(&plane, &format!("https://{host}:{port}"), &trust) {
            ensure!(target.call(call("/")).await.is_err(), "{host}");
        }
    }
    ensure!(server.connections() == 0);
    ensure!(Target::new(&plane, "http://example.com", &trust).is_err());
    ensure!(Target::new(&plane, "https://user:word@example.com", &trust).is_err());
    // The twin: the same names with a range that the operator allows.
    let open = Caller::new(vec!["127.0.0.0/8".parse()?, "::1/128".parse()?]);
    for host in ["127.0.0.1", "localhost"] {
        let url = format!("https://{host}:{port}");
        let target = Target::new(&open.of_plane(), &url, &trust)?;
        ensure!(target.call(call("/")).await?.status == StatusCode::OK);
    }
    Ok(())
}

/// A target that is not there is left alone after five calls, and the calls in between cost nothing.
#[tokio::test]
async fn a_target_that_fails_is_left_alone() -> Result<()> {
    let listener = std::net::TcpListener::bind("127.0.0.1:0")?;
    let url = format!("https://{}", listener.local_addr()?);
    drop(listener);
    let caller = Caller::new(Vec::new());
    let target = Target::new(&caller.of_operator(), &url, &Trust::new(None, None)?)?;
    for _ in 0..5 {
        let failed = target.call(call("/")).await.err();
        ensure!(
            matches!(failed, Some(CallError::Transport(_))),
            "{failed:?}"
        );
    }
    let left_alone = target.call(call("/")).await.err();
    ensure!(
        matches!(left_alone, Some(CallError::Open(_))),
        "{left_alone:?}"
    );
    Ok(())
}
