//! Watches over a WebSocket. The client is the server's library in the role of a client; frames
//! that no client would write are written by hand.

use std::sync::atomic::Ordering;
use std::time::Duration;

use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use futures_util::{SinkExt as _, StreamExt as _};
use http::{Method, StatusCode};
use hyper::upgrade::Upgraded;
use hyper_util::rt::TokioIo;
use polyplane_server::Stopped;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio_tungstenite::WebSocketStream;
use tokio_tungstenite::tungstenite::Message;
use tokio_tungstenite::tungstenite::protocol::frame::coding::CloseCode;
use tokio_tungstenite::tungstenite::protocol::{CloseFrame, Role};

use crate::client::{Client, PROTOCOLS, Protocol, Reply};
use crate::fake::{Running, start};
use crate::ring::Ring;

const WATCH: &str = "/api/v1/pods?watch=1";
const RUNNING: &str = r#"apiserver_longrunning_requests{component="apiserver",group="",resource="pods",scope="cluster",subresource="",verb="WATCH",version="v1"} "#;

const KEY: (&str, &str) = ("sec-websocket-key", "dGhlIHNhbXBsZSBub25jZQ==");
const VERSION: (&str, &str) = ("sec-websocket-version", "13");
const ORIGIN: (&str, &str) = ("origin", "https://dashboard.example");
const UPGRADE: [(&str, &str); 2] = [
    ("connection", "keep-alive, Upgrade"),
    ("upgrade", "websocket"),
];

type Socket = WebSocketStream<TokioIo<Upgraded>>;

fn handshake<'a>(more: &[(&'a str, &'a str)]) -> Vec<(&'a str, &'a str)> {
    [&UPGRADE[..], &[KEY, VERSION, ORIGIN], more].concat()
}

/// Returns the connection after a handshake that must succeed.
async fn upgraded(client: &mut Client, path: &str) -> TokioIo<Upgraded> {
    let answer = client.open(Method::GET, path, &handshake(&[]), "").await;
    assert_eq!(answer.status(), StatusCode::SWITCHING_PROTOCOLS);
    TokioIo::new(hyper::upgrade::on(answer).await.expect("another protocol"))
}

async fn open(client: &mut Client, path: &str) -> Socket {
    let io = upgraded(client, path).await;
    WebSocketStream::from_raw_socket(io, Role::Client, None).await
}

async fn next_text(socket: &mut Socket) -> String {
    match socket.next().await {
        Some(Ok(Message::Text(text))) => text.to_string(),
        other => panic!("no text: {other:?}"),
    }
}

fn closed(code: CloseCode) -> Message {
    let reason = "".into();
    Message::Close(Some(CloseFrame { code, reason }))
}

/// Reads to the end and returns the last message, which must be the server's close.
async fn last_words(socket: &mut Socket) -> Message {
    let mut last = None;
    while let Some(message) = socket.next().await {
        last = Some(message.expect("a clean end"));
    }
    last.expect("a message")
}

async fn metrics(server: &Running) -> String {
    let mut client = Client::admin(server, Protocol::Http2).await;
    client.get("/metrics").await.text().to_owned()
}

/// Waits until no watch is open.
async fn all_over(server: &Running) {
    while !metrics(server).await.contains(&format!("{RUNNING}0\n")) {
        tokio::task::yield_now().await;
    }
}

#[tokio::test]
async fn each_event_is_a_message_of_its_own() {
    let server = start().await;
    let mut plain = Client::admin(&server, Protocol::Http1).await;
    let expected = plain.get("/api/v1/pods?watch=1&limit=broken").await;
    let mut client = Client::admin(&server, Protocol::Http1).await;
    let mut socket = open(&mut client, "/api/v1/pods?watch=1&limit=broken").await;
    for line in expected.text().split_inclusive('\n') {
        assert_eq!(next_text(&mut socket).await, line);
    }
    // The WebSocket ends with its watch.
    let end = socket.next().await.expect("an end").expect("a clean one");
    assert_eq!(end, closed(CloseCode::Normal));
    assert!(socket.next().await.is_none());
}

#[tokio::test]
async fn a_websocket_counts_as_a_watch_and_as_a_connection() {
    let server = start().await;
    let mut client = Client::admin(&server, Protocol::Http1).await;
    let mut socket = open(&mut client, WATCH).await;
    for _ in 0..3 {
        next_text(&mut socket).await;
    }
    let counted = metrics(&server).await;
    assert!(counted.contains(&format!("{RUNNING}1\n")), "{counted}");
    let events = "apiserver_watch_events_total{group=\"\",resource=\"pods\",version=\"v1\"} 3\n";
    assert!(counted.contains(events), "{counted}");
    // The other connection is the one that reads the metrics.
    assert!(counted.contains("polyplane_connections 2\n"), "{counted}");
    drop(socket);
    all_over(&server).await;
}

#[tokio::test]
async fn what_a_client_says_is_ignored_but_for_pings_and_its_leave() {
    let server = start().await;
    let mut client = Client::admin(&server, Protocol::Http1).await;
    let mut socket = open(&mut client, WATCH).await;
    for _ in 0..3 {
        next_text(&mut socket).await;
    }
    for said in [
        Message::text("hello"),
        Message::binary(vec![0_u8; 60_000]),
        Message::Pong("unasked".into()),
        Message::Ping("are you there?".into()),
    ] {
        socket.send(said).await.expect("sent");
    }
    let pong = socket.next().await.expect("an answer").expect("a message");
    assert_eq!(pong, Message::Pong("are you there?".into()));
    socket.send(closed(CloseCode::Away)).await.expect("sent");
    let answer = socket.next().await.expect("an answer").expect("a message");
    assert_eq!(answer, closed(CloseCode::Away));
    assert!(socket.next().await.is_none());
    all_over(&server).await;
}

#[tokio::test]
async fn what_no_client_may_say_ends_the_watch() {
    let server = start().await;
    let mask = [0_u8; 4];
    let frame = |head: &[u8], body: &[u8]| [head, &mask, body].concat();
    let long = frame(&[0x81, 0xff, 0, 0, 0, 0, 0, 1, 0, 1], &[b'x'; 65_537]);
    let part = frame(&[0x01, 0xff, 0, 0, 0, 0, 0, 0, 0xff, 0xff], &[b'x'; 65_535]);
    let rest = frame(&[0x80, 0x82], b"xx");
    for (said, code) in [
        (b"\x81\x01x".to_vec(), 1002),
        (frame(&[0xc1, 0x81], b"x"), 1002),
        (frame(&[0x83, 0x81], b"x"), 1002),
        (frame(&[0x80, 0x81], b"x"), 1002),
        (frame(&[0x81, 0x82], b"\xff\xfe"), 1007),
        (long, 1009),
        ([part, rest].concat(), 1009),
    ] {
        let mut client = Client::admin(&server, Protocol::Http1).await;
        let mut io = upgraded(&mut client, WATCH).await;
        io.write_all(&said).await.expect("sent");
        let mut heard = Vec::new();
        io.read_to_end(&mut heard).await.expect("a clean end");
        let close = [0x88, 2, (code >> 8) as u8, (code & 0xff) as u8];
        assert!(heard.ends_with(&close), "{code} {heard:?}");
        drop(io);
        all_over(&server).await;
    }
}

#[tokio::test]
async fn what_is_no_watch_is_answered_as_if_nobody_had_asked_for_a_websocket() {
    let server = start().await;
    let mut plain = Client::admin(&server, Protocol::Http1).await;
    let mut client = Client::admin(&server, Protocol::Http1).await;
    for path in [
        "/api/v1/pods",
        "/api/v1/namespaces/ns/pods/a",
        "/api/v1/nonsense?watch=1",
        "/clusters/none/api/v1/pods?watch=1",
        "/version",
    ] {
        let expected = plain.get(path).await;
        let reply = client.send(Method::GET, path, &handshake(&[]), "").await;
        assert_eq!(
            (reply.status, &reply.body),
            (expected.status, &expected.body),
            "{path}"
        );
    }
    // A request that resembles a WebSocket handshake only in part is an ordinary watch too.
    for (connection, upgrade) in [("keep-alive", "websocket"), ("upgrade", "h2c")] {
        let headers = [
            ("connection", connection),
            ("upgrade", upgrade),
            KEY,
            VERSION,
            ORIGIN,
        ];
        let path = "/api/v1/pods?watch=1&limit=broken";
        let reply = client.send(Method::GET, path, &headers, "").await;
        assert_eq!(
            (reply.status, reply.text().lines().count()),
            (StatusCode::OK, 3)
        );
    }
    for (token, status) in [
        (None, StatusCode::UNAUTHORIZED),
        (Some("member"), StatusCode::FORBIDDEN),
        (Some("nonsense"), StatusCode::UNAUTHORIZED),
    ] {
        let mut client = Client::with(&server, Protocol::Http1, token, None).await;
        let reply = client.send(Method::GET, WATCH, &handshake(&[]), "").await;
        assert_eq!(
            (reply.status, &reply.json()["kind"]),
            (status, &"Status".into())
        );
    }
}

#[tokio::test]
async fn a_bad_handshake_is_refused_as_upstream_refuses_it() {
    let server = start().await;
    let null = ("origin", "null");
    let two = ("sec-websocket-protocol", "a, b");
    let old = ("sec-websocket-version", "8");
    let bad = StatusCode::BAD_REQUEST;
    for (headers, status, text) in [
        (vec![VERSION, ORIGIN], bad, "mismatch challenge/response"),
        (
            vec![KEY, old, ORIGIN],
            bad,
            "missing or bad WebSocket Version",
        ),
        (vec![KEY, VERSION], StatusCode::FORBIDDEN, ""),
        (vec![KEY, VERSION, null], StatusCode::FORBIDDEN, ""),
        (vec![KEY, VERSION, ORIGIN, two], bad, ""),
    ] {
        let mut client = Client::admin(&server, Protocol::Http1).await;
        let headers = [&UPGRADE[..], &headers].concat();
        let reply = client.send(Method::GET, WATCH, &headers, "").await;
        assert_eq!((reply.status, reply.text()), (status, text));
        assert_eq!(reply.header("connection"), "close");
        let is_about_version = text.ends_with("Version");
        assert_eq!(
            reply.header("sec-websocket-version") == "13",
            is_about_version
        );
    }
    all_over(&server).await;
}

/// Returns the answer to a handshake with these sub-protocols and no other credential.
async fn with_protocols(server: &Running, protocols: &str) -> Reply {
    let mut client = Client::with(server, Protocol::Http1, None, None).await;
    let headers = handshake(&[("sec-websocket-protocol", protocols)]);
    let answer = client.open(Method::GET, WATCH, &headers, "").await;
    Reply {
        status: answer.status(),
        headers: answer.headers().clone(),
        body: Default::default(),
    }
}

#[tokio::test]
async fn a_token_may_come_as_a_sub_protocol_and_is_not_told_back() {
    let server = start().await;
    let protocol = |token: &str| {
        let encoded = URL_SAFE_NO_PAD.encode(token);
        format!("base64url.bearer.authorization.k8s.io.{encoded}")
    };
    let admin = protocol(server.pki.admin_token());
    for order in [
        format!("{admin}, base64.binary.k8s.io"),
        format!("base64.binary.k8s.io,{admin}"),
    ] {
        let reply = with_protocols(&server, &order).await;
        assert_eq!(reply.status, StatusCode::SWITCHING_PROTOCOLS);
        assert_eq!(
            reply.header("sec-websocket-protocol"),
            "base64.binary.k8s.io"
        );
        assert_eq!(
            reply.header("sec-websocket-accept"),
            "s3pPLMBiTxaQ9kYGzzhZRbK+xOo="
        );
    }
    for (protocols, status) in [
        (admin.clone(), StatusCode::UNAUTHORIZED),
        (format!("a,{admin},{admin}"), StatusCode::UNAUTHORIZED),
        (format!("a,{}", protocol("wrong")), StatusCode::UNAUTHORIZED),
        (format!("a,{}", protocol("member")), StatusCode::FORBIDDEN),
        (format!("a,{admin},b"), StatusCode::BAD_REQUEST),
        ("a".to_owned(), StatusCode::UNAUTHORIZED),
    ] {
        let reply = with_protocols(&server, &protocols).await;
        assert_eq!(reply.status, status, "{protocols}");
    }
    // A sub-protocol is a token only in a WebSocket handshake.
    let mut client = Client::with(&server, Protocol::Http1, None, None).await;
    let token = ("sec-websocket-protocol", format!("a,{admin}"));
    let token = (token.0, token.1.as_str());
    let listed = client
        .send(Method::GET, "/api/v1/pods", &handshake(&[token]), "")
        .await;
    assert_eq!(listed.status, StatusCode::OK);
    for protocol in PROTOCOLS {
        let mut client = Client::with(&server, protocol, None, None).await;
        let refused = client.send(Method::GET, "/api/v1/pods", &[token], "").await;
        assert_eq!(refused.status, StatusCode::UNAUTHORIZED);
    }
}

#[tokio::test]
async fn a_certificate_proves_who_opens_a_websocket() {
    let server = start().await;
    let mut client = Client::with(&server, Protocol::Http1, None, Some(&server.admin)).await;
    let mut socket = open(&mut client, WATCH).await;
    let first: serde_json::Value =
        serde_json::from_str(&next_text(&mut socket).await).expect("JSON");
    assert_eq!(
        (&first["verb"], &first["user"]),
        (&"watch".into(), &"admin".into())
    );
}

#[tokio::test]
async fn a_server_that_stops_takes_leave() {
    let server = start().await;
    let mut client = Client::admin(&server, Protocol::Http1).await;
    let mut socket = open(&mut client, WATCH).await;
    next_text(&mut socket).await;
    server.stop.stop();
    assert_eq!(last_words(&mut socket).await, closed(CloseCode::Normal));
    drop(socket);
    assert_eq!(server.served.await.expect("stopped"), Stopped::Drained);
}

#[tokio::test]
async fn a_client_that_reads_nothing_holds_up_only_itself() {
    let server = start().await;
    let mut client = Client::admin(&server, Protocol::Http1).await;
    let mut socket = open(&mut client, "/api/v1/pods?watch=1&limit=flood").await;
    let told = || async {
        let text = metrics(&server).await;
        let name = "apiserver_watch_events_total{group=\"\",resource=\"pods\",version=\"v1\"} ";
        let line = text.lines().find_map(|line| line.strip_prefix(name));
        line.map_or(0, |count| count.parse::<u64>().expect("a number"))
    };
    // Nobody reads: the server sends as many events as the system's buffers hold, then stops.
    let mut before = u64::MAX;
    loop {
        let now = told().await;
        if now == before && now > 0 {
            break;
        }
        before = now;
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
    assert!(
        before < 16 * 1024,
        "{before} events of 1 KiB were taken for nobody"
    );
    // Events continue once the client reads.
    for _ in 0..before + 1000 {
        next_text(&mut socket).await;
    }
    server.stop.stop();
    server.stop.abort();
    server.served.await.expect("stopped");
    while let Some(Ok(_)) = socket.next().await {}
}

#[tokio::test]
async fn a_websocket_is_one_stream_however_often_its_plane_moves() {
    let mut ring = Ring::start(3).await;
    let mut sockets = Vec::new();
    for replica in 0..3 {
        let token = Some(ring.pki.admin_token());
        let address = ring.replicas[replica].address;
        let mut client = Client::to(address, &ring.pki, Protocol::Http1, token, None).await;
        let path = "/clusters/team-a/api/v1/namespaces/ns/pods?watch=1";
        let mut socket = open(&mut client, path).await;
        for version in [3, 2, 1] {
            let event = next_text(&mut socket).await;
            assert!(event.contains(&format!("\"p{version}\"")), "{event}");
        }
        sockets.push(socket);
    }
    let mut version = 3;
    for owner in [0, 1, 2, 0, 2, 1] {
        ring.world.move_to(owner);
        ring.world.tell(1);
        version += 1;
        for socket in &mut sockets {
            let event = next_text(socket).await;
            assert!(event.contains(&format!("\"p{version}\"")), "{event}");
            assert!(
                event.starts_with("{\"type\":\"ADDED\"") && event.ends_with("}\n"),
                "{event}"
            );
        }
    }
    assert!(ring.world.asked.load(Ordering::SeqCst) > 3);
    // The owner dies, and the other watches continue.
    ring.kill(1).await;
    ring.world.move_to(2);
    ring.world.tell(1);
    for (replica, socket) in sockets
        .iter_mut()
        .enumerate()
        .filter(|(replica, _)| *replica != 1)
    {
        let event = next_text(socket).await;
        assert!(
            event.contains(&format!("\"p{}\"", version + 1)),
            "{replica} {event}"
        );
    }
}
