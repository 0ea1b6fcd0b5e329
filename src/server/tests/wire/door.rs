//! A client without a valid credential can neither use up what proven clients need, nor learn which
//! planes exist.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use bytes::Bytes;
use futures_util::stream;
use http::{Method, StatusCode};
use http_body_util::{BodyExt as _, StreamBody};
use polyplane_auth::SYSTEM_MASTERS;
use polyplane_pki::Pki;
use polyplane_server::PeerLimits;
use tokio::task::JoinHandle;

use crate::client::{Body, Client, PROTOCOLS, Protocol, Reply};
use crate::fake::{Running, start, start_with};
use crate::ring::Ring;

const PODS: &str = "/clusters/team-a/api/v1/namespaces/ns/pods";
const POD: &str = "/clusters/team-a/api/v1/namespaces/ns/pods/a";
const POD_JSON: &str = "{\"metadata\":{\"name\":\"a\"}}";
/// Longer than any answer needs here, even on a busy machine.
const PATIENCE: Duration = Duration::from_secs(20);

/// Returns a body that begins and never ends.
fn unfinished() -> Body {
    use futures_util::StreamExt as _;
    let first = stream::once(std::future::ready(Ok(hyper::body::Frame::data(
        Bytes::from_static(b"{"),
    ))));
    StreamBody::new(first.chain(stream::pending())).boxed_unsync()
}

#[tokio::test]
async fn a_stranger_is_refused_before_a_seat_is_taken_or_a_body_read() {
    let limits = PeerLimits {
        forwards_in_flight_max: 1,
        ..PeerLimits::default()
    };
    let ring = Ring::start_limited(2, &limits, |_| {}).await;
    let elsewhere = Pki::load_or_create(&ring.folder.path().join("elsewhere")).expect("made");
    let foreign = elsewhere.issue_client("eve", &[SYSTEM_MASTERS]);
    let foreign = foreign.expect("issued");
    for replica in [0, 1] {
        let address = ring.replicas[replica].address;
        for (token, identity) in [
            (None, None),
            (Some("nonsense"), None),
            (None, Some(&foreign)),
        ] {
            for protocol in PROTOCOLS {
                let mut stranger = Client::to(address, &ring.pki, protocol, token, identity).await;
                let sending = stranger.open_with(Method::POST, PODS, &[], unfinished());
                let answer = tokio::time::timeout(PATIENCE, sending).await;
                let answer = answer.expect("a stranger waits for nothing");
                assert_eq!(answer.status(), StatusCode::UNAUTHORIZED);
            }
        }
        let mut admin = ring.client(replica).await;
        let created = admin.send(Method::POST, PODS, &[], POD_JSON).await;
        assert_eq!(created.status, StatusCode::CREATED);
    }
    assert_eq!(ring.world.asked.load(Ordering::SeqCst), 2);
}

/// Returns all parts of a refusal that must not differ between two requests.
fn seen(reply: &Reply) -> (StatusCode, Vec<String>, String) {
    let names = reply.headers.keys().map(ToString::to_string);
    (reply.status, names.collect(), reply.text().to_owned())
}

#[tokio::test]
async fn a_stranger_cannot_tell_which_planes_there_are() {
    let server = start().await;
    let names = [
        "team-a",
        "team-b",
        "stuck",
        "root",
        "missing",
        "down",
        "leaving",
        "unheard",
        "team-a/control-plane",
        "missing/control-plane",
        "unheard/control-plane",
        "root/control-plane",
        "team-%61",
        "TEAM-A",
        "-",
        "",
    ];
    let foreign = server.other_ca.issue_client("bea", &[]).expect("issued");
    for protocol in PROTOCOLS {
        for (token, identity) in [
            (None, None),
            (Some(""), None),
            (Some("nonsense"), None),
            (None, Some(&foreign)),
        ] {
            let mut stranger = Client::with(&server, protocol, token, identity).await;
            for path in [
                "",
                "/api",
                "/api/v1/pods",
                "/version",
                "/readyz",
                "/nowhere",
            ] {
                let refusal = seen(&stranger.get("/api").await);
                assert_eq!(refusal.0, StatusCode::UNAUTHORIZED);
                for name in names {
                    let at_root = name == "root" && token.is_none_or(str::is_empty);
                    if (at_root && identity.is_none() && path.len() > 6)
                        || (identity.is_some() && name.starts_with("team-b"))
                    {
                        // Skipped: the root plane shows these paths to everybody, and the
                        // certificate is valid in team-b.
                        continue;
                    }
                    let reply = stranger.get(&format!("/clusters/{name}{path}")).await;
                    assert_eq!(seen(&reply), refusal, "{name}{path}");
                }
            }
        }
    }
    assert_eq!(server.waits.load(Ordering::SeqCst), 0, "a stranger waits");
    assert_eq!(server.woken.load(Ordering::SeqCst), 0);
    // A caller whom the root plane proves learns what is wrong with each name.
    let mut admin = Client::admin(&server, Protocol::Http2).await;
    for (name, status) in [
        ("missing", StatusCode::NOT_FOUND),
        ("leaving", StatusCode::NOT_FOUND),
        ("unheard", StatusCode::NOT_FOUND),
        ("missing/control-plane", StatusCode::NOT_FOUND),
        ("team-%61", StatusCode::NOT_FOUND),
        ("TEAM-A", StatusCode::NOT_FOUND),
        ("down", StatusCode::SERVICE_UNAVAILABLE),
        ("team-a", StatusCode::OK),
    ] {
        let reply = admin.get(&format!("/clusters/{name}/api")).await;
        assert_eq!(reply.status, status, "{name}");
    }
    assert_eq!(server.waits.load(Ordering::SeqCst), 1);
}

#[tokio::test]
async fn a_plane_shows_its_version_to_those_it_knows() {
    let server = start().await;
    for protocol in PROTOCOLS {
        let mut nobody = Client::with(&server, protocol, None, None).await;
        let mut admin = Client::admin(&server, protocol).await;
        for path in ["/version", "/healthz", "/livez", "/readyz"] {
            let inside = format!("/clusters/team-a{path}");
            for here in [path, &format!("/clusters/root{path}")] {
                assert_eq!(nobody.get(here).await.status, StatusCode::OK, "{here}");
            }
            let refused = nobody.get(&inside).await.status;
            assert_eq!(refused, StatusCode::UNAUTHORIZED, "{inside}");
            assert_eq!(admin.get(&inside).await.status, StatusCode::OK, "{inside}");
        }
    }
}

#[tokio::test]
async fn a_path_ends_at_its_deadline() {
    let server = start().await;
    let mut client = Client::admin(&server, Protocol::Http2).await;
    for path in ["/api", "/version", "/openapi/v3", "/readyz", ""] {
        let asked = format!("/clusters/stuck{path}?timeout=50ms");
        let asking = client.get(&asked);
        let late = tokio::time::timeout(PATIENCE, asking).await;
        let late = late.expect("every path has a deadline");
        assert_eq!(late.status, StatusCode::GATEWAY_TIMEOUT, "{path}");
    }
    let unfinished = client.open_with(
        Method::POST,
        "/api/v1/namespaces/ns/pods?timeout=50ms",
        &[],
        unfinished(),
    );
    let late = tokio::time::timeout(PATIENCE, unfinished).await;
    let late = late.expect("a body has a deadline");
    assert_eq!(late.status(), StatusCode::GATEWAY_TIMEOUT);
}

/// A header that decides about the request reaches the owner even if `Connection` names it. A proxy
/// in front adds such headers, and the proxy's client must not be able to have them removed.
#[tokio::test]
async fn a_header_that_decides_survives_a_hop_whatever_connection_names() {
    let ring = Ring::start(2).await;
    let token = Some(ring.pki.admin_token());
    for named in [
        "impersonate-user",
        "Impersonate-User, impersonate-group",
        "close, authorization, impersonate-uid",
        "impersonate-extra-scopes",
        "x-polyplane-forwarded-by, accept, content-type, content-length",
    ] {
        let headers = [
            ("connection", named),
            ("impersonate-user", "joe"),
            ("impersonate-group", SYSTEM_MASTERS),
            ("impersonate-group", "ops"),
            ("impersonate-extra-scopes", "view"),
            ("content-type", "application/json"),
        ];
        let mut answers = Vec::new();
        for replica in [0, 1] {
            let address = ring.replicas[replica].address;
            let mut client = Client::to(address, &ring.pki, Protocol::Http1, token, None).await;
            let reply = client.send(Method::POST, PODS, &headers, POD_JSON).await;
            assert_eq!(reply.status, StatusCode::CREATED, "{named} at {replica}");
            answers.push(reply.json());
        }
        assert_eq!(answers[0], answers[1], "{named}");
        assert_eq!(answers[0]["user"], "joe");
        assert_eq!(answers[0]["body"], POD_JSON);
    }
}

/// Repeated headers have the same meaning at the owner and one hop away.
#[tokio::test]
async fn repeated_headers_mean_the_same_one_hop_away() {
    let ring = Ring::start(2).await;
    let good = format!("Bearer {}", ring.pki.admin_token());
    for headers in [
        [
            ("authorization", good.as_str()),
            ("authorization", "Bearer nonsense"),
        ],
        [
            ("authorization", "Bearer nonsense"),
            ("authorization", good.as_str()),
        ],
        [
            ("authorization", "Basic YTpi"),
            ("authorization", good.as_str()),
        ],
        [("authorization", good.as_str()), ("impersonate-user", "")],
        [
            ("authorization", good.as_str()),
            ("impersonate-nothing", "x"),
        ],
    ] {
        let mut statuses = Vec::new();
        for replica in [0, 1] {
            let address = ring.replicas[replica].address;
            let mut client = Client::to(address, &ring.pki, Protocol::Http1, None, None).await;
            statuses.push(client.send(Method::GET, POD, &headers, "").await.status);
        }
        assert_eq!(statuses[0], statuses[1], "{headers:?}");
    }
}

#[tokio::test]
async fn headers_that_name_nobody_impersonate_nobody() {
    let server = start().await;
    let mut client = Client::admin(&server, Protocol::Http2).await;
    for header in [("impersonate-user", ""), ("impersonate-nothing", "x")] {
        let reply = client
            .send(Method::GET, "/api/v1/pods", &[header], "")
            .await;
        assert_eq!(reply.json()["user"], "admin", "{header:?}");
    }
}

#[tokio::test]
async fn a_forwarded_answer_nobody_fetches_is_given_up() {
    let ring = Ring::start_with(2, |config| {
        config.limits.answer_stall_max = Duration::from_millis(50);
    })
    .await;
    let mut client = ring.client(1).await;
    let list = format!("{PODS}?limit=1000");
    let slow = client.open(Method::GET, &list, &[], "").await;
    let mut other = ring.client(1).await;
    let given_up = async {
        loop {
            let metrics = other.get("/metrics").await;
            if metrics
                .text()
                .contains("polyplane_abandoned_answers_total 1\n")
            {
                return;
            }
            tokio::task::yield_now().await;
        }
    };
    let in_time = tokio::time::timeout(PATIENCE, given_up).await;
    in_time.expect("a slow reader is cut off");
    assert!(slow.into_body().collect().await.is_err());
    // A client that reads gets the whole answer.
    let whole = other.get(&list).await;
    assert_eq!(whole.body.len(), 1000 * 65_536);
}

/// Returns the value of a metric without labels, or with these.
pub async fn metric(client: &mut Client, name: &str) -> u64 {
    let metrics = client.get("/metrics").await;
    assert_eq!(metrics.status, StatusCode::OK);
    let line = metrics.text().lines().find_map(|line| {
        let value = line.strip_prefix(name)?.strip_prefix(' ')?;
        value.parse().ok()
    });
    line.unwrap_or_else(|| panic!("no {name}"))
}

/// Waits until a metric has a value.
async fn until(client: &mut Client, name: &str, value: u64) {
    let reached = async {
        while metric(client, name).await != value {
            tokio::task::yield_now().await;
        }
    };
    let reached = tokio::time::timeout(PATIENCE, reached).await;
    reached.unwrap_or_else(|_| panic!("{name} does not become {value}"));
}

/// Sends a request whose body has begun and does not end.
fn sending(server: &Running, path: &'static str, bytes: usize) -> JoinHandle<StatusCode> {
    use futures_util::StreamExt as _;
    let (address, pki) = (server.address, Arc::clone(&server.pki));
    tokio::spawn(async move {
        let token = Some(pki.admin_token());
        let mut client = Client::to(address, &pki, Protocol::Http2, token, None).await;
        let begun = hyper::body::Frame::data(Bytes::from(vec![b' '; bytes]));
        let body = stream::once(std::future::ready(Ok(begun))).chain(stream::pending());
        let body = StreamBody::new(body).boxed_unsync();
        client
            .open_with(Method::POST, path, &[], body)
            .await
            .status()
    })
}

#[tokio::test]
async fn bodies_in_flight_have_room_for_so_many_bytes() {
    const HELD: &str = "polyplane_body_bytes";
    const PODS_B: &str = "/clusters/stuck/api/v1/namespaces/ns/pods";
    let server = start_with(|config| {
        config.limits.plane_body_bytes_max = 10_000;
        config.limits.bodies_bytes_max = 16_000;
    })
    .await;
    let mut client = Client::admin(&server, Protocol::Http2).await;
    let root_pods = "/api/v1/namespaces/ns/pods";
    let first = sending(&server, PODS, 8000);
    until(&mut client, HELD, 8000).await;
    // This plane has room for 2 000 more bytes, and another plane for as many as the process has.
    let refused = client.send(Method::POST, PODS, &[], vec![b' '; 3000]).await;
    assert_eq!(refused.status, StatusCode::TOO_MANY_REQUESTS);
    assert_eq!(refused.header("retry-after"), "1");
    assert_eq!(refused.json()["reason"], "TooManyRequests");
    let message = refused.json()["message"].to_string();
    assert!(message.contains("this control plane"), "{message}");
    let fits = client.send(Method::POST, PODS, &[], vec![b' '; 2000]).await;
    assert_eq!(fits.status, StatusCode::CREATED);
    let second = sending(&server, root_pods, 7000);
    until(&mut client, HELD, 15_000).await;
    let refused = client
        .send(Method::POST, root_pods, &[], vec![b' '; 2000])
        .await;
    assert_eq!(refused.status, StatusCode::TOO_MANY_REQUESTS);
    let message = refused.json()["message"].to_string();
    assert!(message.contains("this server"), "{message}");
    for (budget, count) in [("plane", 1), ("process", 1)] {
        let name = format!("polyplane_refused_bodies_total{{budget=\"{budget}\"}}");
        assert_eq!(metric(&mut client, &name).await, count, "{budget}");
    }
    // A request without a body needs no room.
    assert_eq!(client.get(POD).await.status, StatusCode::OK);
    // Bytes are released when a client disconnects, when a request ends at its deadline, and when
    // the plane does not wake.
    first.abort();
    until(&mut client, HELD, 7000).await;
    second.abort();
    until(&mut client, HELD, 0).await;
    let late = format!("{PODS_B}?timeout=50ms");
    let late = client
        .send(Method::POST, &late, &[], vec![b' '; 2000])
        .await;
    assert_eq!(late.status, StatusCode::GATEWAY_TIMEOUT);
    let late = "/clusters/team-a/api/v1/namespaces/ns/pods?timeout=300ms";
    let late = sending(&server, late, 5000);
    until(&mut client, HELD, 5000).await;
    assert_eq!(late.await.expect("answered"), StatusCode::GATEWAY_TIMEOUT);
    until(&mut client, HELD, 0).await;
}

#[tokio::test]
async fn a_forwarded_body_takes_room_and_a_slow_one_no_seat() {
    use futures_util::StreamExt as _;
    const HELD: &str = "polyplane_body_bytes";
    let limits = PeerLimits {
        forwards_in_flight_max: 1,
        ..PeerLimits::default()
    };
    let ring = Ring::start_limited(2, &limits, |_| {}).await;
    let mut client = ring.client(1).await;
    let mut slow = ring.client(1).await;
    let sending = tokio::spawn(async move {
        let begun = hyper::body::Frame::data(Bytes::from(vec![b' '; 6000]));
        let body = stream::once(std::future::ready(Ok(begun))).chain(stream::pending());
        let body = StreamBody::new(body).boxed_unsync();
        slow.open_with(Method::POST, PODS, &[], body).await.status()
    });
    until(&mut client, HELD, 6000).await;
    for _ in 0..2 {
        let created = client.send(Method::POST, PODS, &[], POD_JSON).await;
        assert_eq!(created.status, StatusCode::CREATED);
    }
    sending.abort();
    until(&mut client, HELD, 0).await;
    until(&mut ring.client(0).await, HELD, 0).await;
}

/// Asserts that the server closes a connection on which nobody sends a request.
async fn is_closed(client: &mut Client) {
    let closed = tokio::time::timeout(PATIENCE, client.closed()).await;
    closed.expect("the server closes the connection");
}

#[tokio::test]
async fn connections_that_nobody_uses_end() {
    let server = start_with(|config| {
        config.limits.idle_time_max = Duration::from_millis(100);
        config.limits.unproven_time_max = Duration::from_millis(100);
        config.limits.handshake_time_max = Duration::from_millis(100);
    })
    .await;
    for protocol in PROTOCOLS {
        let mut silent = Client::with(&server, protocol, None, None).await;
        let mut nobody = Client::with(&server, protocol, None, None).await;
        assert_eq!(nobody.get("/readyz").await.status, StatusCode::OK);
        let mut wrong = Client::with(&server, protocol, Some("nonsense"), None).await;
        assert_eq!(wrong.get(POD).await.status, StatusCode::UNAUTHORIZED);
        let mut idle = Client::admin(&server, protocol).await;
        assert_eq!(idle.get(POD).await.status, StatusCode::OK);
        let mut watching = Client::admin(&server, protocol).await;
        let watch = format!("{PODS}?watch=1");
        let answer = watching.open(Method::GET, &watch, &[], "").await;
        for client in [&mut silent, &mut nobody, &mut wrong, &mut idle] {
            is_closed(client).await;
        }
        // A silent watch does not make its connection idle.
        let ended = tokio::time::timeout(Duration::from_millis(500), watching.closed()).await;
        assert!(ended.is_err(), "{protocol:?}");
        drop(answer);
    }
}

#[tokio::test]
async fn health_checks_get_in_however_many_are_connected() {
    for protocol in PROTOCOLS {
        let server = start_with(|config| {
            config.limits.connections_max = 2;
            config.limits.unproven_connections_max = 3;
        })
        .await;
        let mut proven = Vec::new();
        for _ in 0..2 {
            let mut client = Client::admin(&server, protocol).await;
            assert_eq!(client.get(POD).await.status, StatusCode::OK);
            proven.push(client);
        }
        // A client above the limit is refused, and may still read health and metrics of the
        // replica.
        let mut more = Client::admin(&server, protocol).await;
        let refused = more.get(POD).await;
        assert_eq!(refused.status, StatusCode::TOO_MANY_REQUESTS);
        assert_eq!(refused.header("retry-after"), "1");
        // Strangers connect and stay; each new one makes the server abort the oldest.
        let mut strangers = Vec::new();
        for _ in 0..9 {
            let mut stranger = Client::with(&server, protocol, None, None).await;
            assert_eq!(stranger.get("/readyz").await.status, StatusCode::OK);
            strangers.push(stranger);
        }
        for stranger in &mut strangers[..6] {
            is_closed(stranger).await;
        }
        let probe = Client::with(&server, protocol, None, None).await;
        let probed = tokio::time::timeout(PATIENCE, async move {
            let mut probe = probe;
            probe.get("/livez").await.status
        });
        assert_eq!(probed.await.expect("in time"), StatusCode::OK);
        for client in &mut proven {
            assert_eq!(client.get(POD).await.status, StatusCode::OK);
        }
        let mut operator = Client::admin(&server, protocol).await;
        let evicted = metric(&mut operator, "polyplane_evicted_connections_total").await;
        assert!(evicted >= 6, "{evicted}");
        // The two proven clients, this one above their limit, and at most three strangers.
        let open = metric(&mut operator, "polyplane_connections").await;
        assert!((3..=6).contains(&open), "{open}");
        drop((proven, operator, strangers));
        let mut after = Client::admin(&server, protocol).await;
        until(&mut after, "polyplane_connections", 1).await;
    }
}

/// Sends requests and reads no answer, until `wanted` are answered or a stream is reset. Returns how many were
/// answered.
async fn answered_unread(client: &mut Client, wanted: usize) -> usize {
    let mut unread = Vec::new();
    while unread.len() < wanted {
        let body = http_body_util::Full::new(Bytes::new()).boxed_unsync();
        match client.try_open(Method::GET, POD, &[], body).await {
            Ok(answer) => unread.push(answer),
            Err(_) => break,
        }
    }
    unread.len()
}

#[tokio::test]
async fn a_stranger_who_reads_no_answer_gets_no_more_of_them() {
    let server = start().await;
    for token in [None, Some("nonsense")] {
        let mut stranger = Client::without_room(&server, token).await;
        assert_eq!(answered_unread(&mut stranger, 1000).await, 32);
    }
    let mut admin = Client::without_room(&server, Some(server.pki.admin_token())).await;
    assert_eq!(answered_unread(&mut admin, 100).await, 100);
    // Nor is a connection that others use too, whatever one of them shows.
    admin.token = Some("nonsense".to_owned());
    assert_eq!(answered_unread(&mut admin, 100).await, 100);
}
