//! Tests that fail when a byte of the protocol between replicas changes.

use anyhow::{Context as _, Result, ensure};
use bytes::Bytes;
use http::{HeaderMap, HeaderName, HeaderValue, Method, StatusCode};
use polyplane_auth::ClientChain;
use polyplane_ownership::{PeerMessage, PeerRequest};
use polyplane_pki::ALPN_PEER;
use polyplane_registry::WatchProgress;
use polyplane_tests::frozen::{Written, records, text};
use rustls::pki_types::CertificateDer;

use crate::backend::Peer;
use crate::peer::channel::frame::{
    FrameHead, HEAD_BYTES, Kind, ReceivedValues, ResetReason, SentValues, number, put_answer,
    put_data, put_number, put_request, put_reset, put_trailers, reset_reason, take_answer,
    take_request, take_trailers, usual_names,
};
use crate::peer::headers::{
    self, CHAIN, CONNECT_TO, CONNECTS, FORWARDED_BY, ForwardedClient, LIMITED, Limited, MEANT_FOR,
    MOVED, MovedTo, PROVES, SENT_UP_TO, WATCH_PROTOBUF, WATCH_RECORDS,
};
use crate::peer::transport::{MESSAGE_PATH, SENDER};
use crate::peer::wire;
use crate::watch::record;

fn frame(name: &str, write: impl FnOnce(&mut Vec<u8>)) -> Written {
    let mut bytes = Vec::new();
    write(&mut bytes);
    Written::new(name, bytes)
}

fn headers_of(pairs: &[(HeaderName, &str)]) -> HeaderMap {
    let mut headers = HeaderMap::new();
    for (name, value) in pairs {
        headers.append(name, HeaderValue::try_from(*value).expect("a value"));
    }
    headers
}

/// Returns a client's forwarded request, a message of a replica, and one frame of each other kind.
fn frames() -> Vec<Written> {
    let chain = HeaderValue::try_from("QUJD".repeat(20)).expect("a value");
    let mut forwarded = headers_of(&[
        (http::header::ACCEPT, "application/json"),
        (http::header::AUTHORIZATION, "Bearer x"),
        (HeaderName::from_static("impersonate-user"), "somebody"),
        (FORWARDED_BY, "polyplane-0"),
        (MEANT_FOR, "polyplane-1"),
    ]);
    let received = ForwardedClient {
        chain: Some(chain),
        remote: Some(HeaderValue::from_static("10.0.0.9:40000")),
        time_left: Some(std::time::Duration::from_millis(59_000)),
        ..ForwardedClient::default()
    };
    received.add(&mut forwarded);
    let sent_values = &mut SentValues::default();
    let path = "/clusters/a/api/v1/namespaces/default/configmaps?limit=5";
    let target = path.parse().expect("a path");
    let request = (&Method::GET, &target, &forwarded);
    let mut said = |name: &str, stream| {
        frame(name, |out| {
            put_request(out, stream, request, b"", true, sent_values).expect("short")
        })
    };
    let first = said("request, tells a chain", 1);
    let again = said("request, names the chain it has told", 2);
    let message_headers = headers_of(&[(MEANT_FOR, "polyplane-1"), (SENDER, "polyplane-0")]);
    let message_target = MESSAGE_PATH.parse().expect("a path");
    let message = (&Method::POST, &message_target, &message_headers);
    let ping = wire::encode(&PeerRequest::from(PeerMessage::Ping { view: 9 }));
    let ping = ping.expect("a small message").pieces().concat();
    let answer = headers_of(&[
        (http::header::CONTENT_TYPE, "application/json"),
        (HeaderName::from_static("x-other"), "y"),
    ]);
    let trailers = headers_of(&[(SENT_UP_TO, "1234")]);
    vec![
        first,
        again,
        frame("request, a replica's message", |out| {
            put_request(out, 3, message, &ping, true, &mut SentValues::default()).expect("short");
        }),
        frame("request, more follows", |out| {
            put_request(out, 3, message, b"be", false, &mut SentValues::default()).expect("short");
        }),
        frame("answer", |out| {
            put_answer(out, 1, (StatusCode::OK, &answer), b"{}", true).expect("short");
        }),
        frame("data", |out| put_data(out, 1, b"more", false)),
        frame("data, last", |out| put_data(out, 1, b"", true)),
        frame("trailers", |out| {
            put_trailers(out, 1, &trailers).expect("short")
        }),
        frame("credit", |out| put_number(out, Kind::Credit, 1, 65_536)),
        frame("reset, cancelled", |out| {
            put_reset(out, 1, ResetReason::Cancelled)
        }),
        frame("reset, refused", |out| {
            put_reset(out, 1, ResetReason::Refused)
        }),
        frame("reset, broken", |out| {
            put_reset(out, 1, ResetReason::Broken)
        }),
        frame("ping", |out| put_number(out, Kind::Ping, 0, 7)),
        frame("pong", |out| put_number(out, Kind::Pong, 0, 7)),
        frame("closing", |out| put_number(out, Kind::Closing, 0, 3)),
    ]
}

/// Describes a frame as its reader sees it. Frames must come in the order of their connection,
/// because a frame may name a value that an earlier one sent.
fn read(received_values: &mut ReceivedValues, bytes: &[u8]) -> Result<String> {
    let head = FrameHead::parse(bytes)?.context("no whole head")?;
    let mut payload = Bytes::copy_from_slice(&bytes[HEAD_BYTES..]);
    ensure!(payload.len() == head.length, "another length than it says");
    let said = match head.kind {
        Kind::Request => format!(
            "{:?} {payload:?}",
            take_request(&mut payload, received_values)?
        ),
        Kind::Answer => format!("{:?} {payload:?}", take_answer(&mut payload)?),
        Kind::Trailers => format!("{:?}", take_trailers(&mut payload)?),
        Kind::Data => format!("{payload:?}"),
        Kind::Reset => format!("{:?}", reset_reason(&payload)?),
        Kind::Credit | Kind::Ping | Kind::Pong | Kind::Closing => format!("{}", number(&payload)?),
    };
    Ok(format!("{head:?} {said}"))
}

#[test]
fn frozen_frames() {
    let received_values = std::cell::RefCell::new(ReceivedValues::default());
    let read = |name: &str, bytes: &[u8]| {
        // A new connection begins: slots are valid only on the connection that sent the chain.
        if name == "request, tells a chain" {
            *received_values.borrow_mut() = ReceivedValues::default();
        }
        read(&mut received_values.borrow_mut(), bytes)
    };
    records("peer-frames", &frames(), read).expect("as they were");
}

#[test]
fn frozen_watch_records() {
    let written = |name, progress| Written::new(name, record::head(progress, 71_000));
    let written = [
        written("initial events", WatchProgress::Initial),
        written("events", WatchProgress::Events(1234)),
        written("bookmark", WatchProgress::Bookmark(u64::MAX)),
        written("error", WatchProgress::Failed),
    ];
    let read = |_: &str, bytes: &[u8]| Ok(format!("{:?}", record::parse_head(bytes)?));
    records("peer-watch-records", &written, read).expect("as they were");
}

/// The order of the usual names is part of the protocol, because frames contain their places in the
/// list.
#[test]
fn frozen_words_of_peers() {
    let mut words = format!(
        "protocol {}\nmessages {MESSAGE_PATH}\n",
        String::from_utf8_lossy(ALPN_PEER)
    );
    for name in [
        CHAIN,
        CONNECT_TO,
        CONNECTS,
        FORWARDED_BY,
        MEANT_FOR,
        LIMITED,
        MOVED,
        PROVES,
        SENDER,
        SENT_UP_TO,
        WATCH_RECORDS,
        WATCH_PROTOBUF,
    ] {
        words.push_str(&format!("header {name}\n"));
    }
    for (place, name) in usual_names().iter().enumerate() {
        words.push_str(&format!("name {} {name}\n", place + 1));
    }
    text("peer-words", &words).expect("as they were");
}

#[test]
fn frozen_header_values() {
    let certificates = [vec![1, 2, 3], vec![4, 5]].map(CertificateDer::from);
    let chain = ClientChain::possessed(&certificates).expect("two certificates");
    let moved = |peer: Option<(&str, &str)>| MovedTo {
        peer: peer.map(|(replica, address)| Peer {
            replica: replica.to_owned(),
            address: address.to_owned(),
        }),
        view: 9,
    };
    let limited = |writes_only| Limited {
        writes_only,
        wait_millis: 20,
    };
    let known = moved(Some(("polyplane-1", "10.0.0.2:7443")));
    let written = [
        Written::new("chain", headers::encode_chain(&chain).as_bytes()),
        Written::new("moved", known.to_value().as_bytes()),
        Written::new("moved, not known where", moved(None).to_value().as_bytes()),
        Written::new("limited", limited(false).to_value().as_bytes()),
        Written::new("limited, writes only", limited(true).to_value().as_bytes()),
    ];
    let read = |name: &str, bytes: &[u8]| {
        let value = HeaderValue::from_bytes(bytes)?;
        if name == "chain" {
            let chain = headers::decode_chain(&value).context("no chain")?;
            let certificates: Vec<&[u8]> = chain.certificates().iter().map(AsRef::as_ref).collect();
            return Ok(format!("{certificates:?}"));
        }
        if name.starts_with("limited") {
            return Ok(format!("{:?}", Limited::parse(&value).context("no limit")?));
        }
        Ok(format!("{:?}", MovedTo::parse(&value)))
    };
    records("peer-header-values", &written, read).expect("as they were");
}
