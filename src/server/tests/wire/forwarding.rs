//! Requests that arrive at a replica that does not own their plane.

use std::sync::atomic::Ordering;
use std::time::Duration;

use bytes::Bytes;
use http::{Method, Response, StatusCode};
use http_body_util::BodyExt as _;
use hyper::body::Incoming;
use polyplane_server::{DrainRequested, Location, Peer, PeerLimits};
use tokio::net::TcpListener;

use crate::client::{Client, PROTOCOLS, Reply};
use crate::ring::Ring;

const POD: &str = "/clusters/team-a/api/v1/namespaces/ns/pods/a";
const PODS: &str = "/clusters/team-a/api/v1/namespaces/ns/pods";
const WATCH: &str = "/clusters/team-a/api/v1/namespaces/ns/pods?watch=1";
const POD_JSON: &str = "{\"metadata\":{\"name\":\"a\"}}";

async fn until(what: impl Fn() -> bool) {
    while !what() {
        tokio::task::yield_now().await;
    }
}

/// The events of a watch as lines `TYPE version`.
pub struct Events {
    body: Incoming,
    rest: String,
}

impl Events {
    pub fn of(answer: Response<Incoming>) -> Self {
        assert_eq!(answer.status(), StatusCode::OK);
        Self {
            body: answer.into_body(),
            rest: String::new(),
        }
    }

    pub async fn next(&mut self) -> Option<String> {
        while !self.rest.contains('\n') {
            let frame = self.body.frame().await?.expect("the stream is whole");
            let data = frame.into_data().expect("a client sees no trailers");
            self.rest
                .push_str(std::str::from_utf8(&data).expect("text"));
        }
        let (line, rest) = self.rest.split_once('\n').expect("a line");
        let event: serde_json::Value = serde_json::from_str(line).expect("an event");
        let kind = event["type"].as_str().expect("a type").to_owned();
        let version = event["object"]["metadata"]["resourceVersion"].as_str();
        let text = format!("{kind} {}", version.unwrap_or(""));
        self.rest = rest.to_owned();
        Some(text)
    }

    pub async fn take(&mut self, count: usize) -> Vec<String> {
        let mut taken = Vec::new();
        for _ in 0..count {
            taken.push(self.next().await.expect("an event"));
        }
        taken
    }
}

#[tokio::test]
async fn a_request_is_answered_by_the_owner_as_if_it_had_come_there() {
    let ring = Ring::start(2).await;
    for protocol in PROTOCOLS {
        let (token, address) = (ring.pki.admin_token(), ring.replicas[1].address);
        let mut client = Client::to(address, &ring.pki, protocol, Some(token), None).await;
        let reply = client
            .send(Method::GET, POD, &[("audit-id", "once")], "")
            .await;
        assert_eq!(reply.status, StatusCode::OK);
        assert_eq!(
            (&reply.json()["replica"], &reply.json()["user"]),
            (&0.into(), &"admin".into())
        );
        let ids: Vec<_> = reply.headers.get_all("audit-id").iter().collect();
        assert_eq!(ids, ["once"], "one audit id, the receiver's");
        let created = client.send(Method::POST, PODS, &[], POD_JSON).await;
        assert_eq!(created.status, StatusCode::CREATED);
        assert_eq!(created.json()["body"], POD_JSON);
        let short = client.get(&format!("{POD}?timeout=9s")).await;
        assert!(short.json()["secondsLeft"].as_u64().expect("a number") < 9);
        let head = client.send(Method::HEAD, POD, &[], "").await;
        let direct = ring.client(0).await.send(Method::HEAD, POD, &[], "").await;
        let length = |reply: &Reply| reply.header("content-length").to_owned();
        assert_eq!(
            (head.status, length(&head)),
            (direct.status, length(&direct))
        );
        assert_ne!(length(&head), "0");
        let missing = client.get("/clusters/team-a/apis/nothing/v1/things").await;
        assert_eq!(missing.status, StatusCode::NOT_FOUND);
    }
}

#[tokio::test]
async fn a_forwarded_read_is_answered_in_the_form_that_was_wanted_whatever_it_names() {
    const ACCEPT: &str = "application/vnd.kubernetes.protobuf,application/json";
    let ring = Ring::start(2).await;
    let mut client = ring.client(1).await;
    for path in [
        POD,
        "/clusters/team-a/api/v1/namespaces/watchers/pods/a",
        "/clusters/team-a/api/v1/namespaces/ns/pods/watch",
        "/clusters/team-a/api/v1/namespaces/ns/pods/a?comment=watch",
    ] {
        let reply = client.get_as(path, ACCEPT).await;
        let seen = reply.json();
        assert_eq!(
            (&seen["replica"], &seen["accept"]),
            (&0.into(), &ACCEPT.into()),
            "{path}"
        );
    }
}

#[tokio::test]
async fn a_hop_waits_for_no_timer() {
    const REQUESTS: u32 = 25;
    let ring = Ring::start(2).await;
    let mut client = ring.client(1).await;
    assert_eq!(client.get(POD).await.status, StatusCode::OK);
    let mut fastest = Duration::MAX;
    for _ in 0..REQUESTS {
        let begun = std::time::Instant::now();
        assert_eq!(client.get(POD).await.status, StatusCode::OK);
        fastest = fastest.min(begun.elapsed());
    }
    // If a frame were sent only when something else wakes the connection, every answer would take
    // 40 ms or more. A busy machine delays only some answers, so the fastest one tells.
    assert!(fastest < Duration::from_millis(40), "{fastest:?}");
}

#[tokio::test]
async fn a_client_certificate_is_proven_to_the_owner_and_cannot_be_forged() {
    let ring = Ring::start(2).await;
    let address = ring.replicas[1].address;
    for protocol in PROTOCOLS {
        let mut client = Client::to(address, &ring.pki, protocol, None, Some(&ring.admin)).await;
        for _ in 0..2 {
            let reply = client.get(POD).await;
            assert_eq!(reply.json()["user"], "carla");
        }
        // Another client's chain, in the header that peers use.
        use base64::Engine as _;
        let chain = base64::engine::general_purpose::STANDARD_NO_PAD.encode(&ring.admin.chain[0]);
        let forged = [
            ("x-polyplane-chain", chain.as_str()),
            ("x-polyplane-forwarded-by", "polyplane-0"),
            ("x-polyplane-meant-for", "polyplane-1"),
        ];
        for replica in 0..2 {
            let address = ring.replicas[replica].address;
            let mut stranger = Client::to(address, &ring.pki, protocol, None, None).await;
            let reply = stranger.send(Method::GET, POD, &forged, "").await;
            assert_eq!(reply.status, StatusCode::UNAUTHORIZED, "replica {replica}");
        }
    }
    let mut jane = Client::to(address, &ring.pki, PROTOCOLS[0], Some("member"), None).await;
    assert_eq!(jane.get(POD).await.status, StatusCode::FORBIDDEN);
}

#[tokio::test]
async fn a_clients_path_is_never_a_message() {
    let ring = Ring::start(2).await;
    let mut client = ring.client(1).await;
    let reply = client
        .send(Method::POST, "/peer/v1/message", &[], "\0\0\0\0")
        .await;
    assert_eq!(reply.status, StatusCode::NOT_FOUND);
    assert!(ring.world.messages.lock().is_empty());
}

#[tokio::test]
async fn nobody_forwards_what_was_forwarded() {
    let ring = Ring::start(3).await;
    // Replica 2 believes in 1, and 1 in 0, which owns the plane. Because a peer's request is never
    // forwarded again, 2 gets there only by the hint in the answer of 1.
    let peers = ring.world.peers.lock().clone();
    ring.world.beliefs.lock()[2] = Some(Location::There(peers[1].clone()));
    ring.world.beliefs.lock()[1] = Some(Location::There(peers[0].clone()));
    let mut client = ring.client(2).await;
    let reply = client.get(POD).await;
    assert_eq!(reply.json()["replica"], 0);
    // 1 and 2 now believe in each other: every attempt of 2 ends at 1, and the number of attempts
    // is limited.
    ring.world.beliefs.lock()[1] = Some(Location::There(peers[2].clone()));
    let lost = client.get(&format!("{POD}?timeout=400ms")).await;
    assert_eq!(lost.status, StatusCode::SERVICE_UNAVAILABLE);
    assert_eq!(lost.header("retry-after"), "1");
    let metrics = ring.client(1).await.get("/metrics").await;
    let told = "polyplane_moved_answers_total ";
    assert!(metrics.text().contains(told) && !metrics.text().contains(&format!("{told}0\n")));
}

#[tokio::test]
async fn what_was_told_moved_is_repeated_with_its_body() {
    let ring = Ring::start(3).await;
    let peers = ring.world.peers.lock().clone();
    ring.world.move_to(2);
    // 1 forwards to 0, which believes that it owns the plane until it looks.
    ring.world.beliefs.lock()[0] = Some(Location::Here);
    ring.world.beliefs.lock()[1] = Some(Location::There(peers[0].clone()));
    let mut client = ring.client(1).await;
    let correct = async {
        until(|| ring.world.asked.load(Ordering::SeqCst) > 0).await;
        ring.world.beliefs.lock()[0] = None;
    };
    let (reply, ()) = tokio::join!(client.send(Method::POST, PODS, &[], POD_JSON), correct);
    assert_eq!(reply.status, StatusCode::CREATED);
    assert_eq!(*ring.world.created.lock(), [(2, POD_JSON.to_owned())]);
    // The same happens to a client that is connected to the old owner itself.
    ring.world.beliefs.lock()[0] = Some(Location::Here);
    let asked = ring.world.asked.load(Ordering::SeqCst);
    let mut direct = ring.client(0).await;
    let correct = async {
        until(|| ring.world.asked.load(Ordering::SeqCst) > asked).await;
        ring.world.beliefs.lock()[0] = None;
    };
    let (reply, ()) = tokio::join!(direct.send(Method::POST, PODS, &[], POD_JSON), correct);
    assert_eq!(reply.json()["replica"], 2);
    assert_eq!(ring.world.created.lock().len(), 2);
}

#[tokio::test]
async fn a_plane_without_an_owner_is_waited_for() {
    let ring = Ring::start(2).await;
    ring.world.truth.send_modify(|truth| truth.owner = None);
    let mut client = ring.client(1).await;
    let found = async {
        tokio::time::sleep(Duration::from_millis(30)).await;
        ring.world.move_to(0);
    };
    let (reply, ()) = tokio::join!(client.get(POD), found);
    assert_eq!(reply.json()["replica"], 0);
}

#[tokio::test]
async fn a_change_whose_connection_broke_is_never_repeated_but_by_its_client() {
    let mut ring = Ring::start(3).await;
    let mut client = ring.client(1).await;
    assert_eq!(client.get(POD).await.status, StatusCode::OK);
    let path = format!("{PODS}?fieldManager=broken");
    let sending =
        tokio::spawn(async move { client.send(Method::POST, &path, &[], POD_JSON).await });
    until(|| !ring.world.created.lock().is_empty()).await;
    ring.kill(0).await;
    ring.world.move_to(2);
    let reply = sending.await.expect("answered");
    // The answer of upstream to a write of unknown outcome, which clients may repeat.
    assert_eq!(reply.status, StatusCode::GATEWAY_TIMEOUT);
    assert_eq!(reply.json()["reason"], "Timeout");
    assert_eq!(ring.world.created.lock().len(), 1);
    // A read is repeated: it waits for the next owner's answer.
    let again = ring.client(1).await.get(POD).await;
    assert_eq!(again.json()["replica"], 2);
}

#[tokio::test]
async fn a_read_whose_owner_dies_is_answered_by_the_next() {
    let mut ring = Ring::start(3).await;
    let mut client = ring.client(1).await;
    let reading = tokio::spawn(async move {
        client
            .get("/clusters/team-a/api/v1/namespaces/ns/pods/forever?timeout=5s")
            .await
    });
    until(|| ring.world.asked.load(Ordering::SeqCst) == 1).await;
    ring.kill(0).await;
    ring.world.move_to(2);
    until(|| ring.world.asked.load(Ordering::SeqCst) == 2).await;
    reading.abort();
}

#[tokio::test]
async fn a_client_that_leaves_cancels_its_request_at_the_owner() {
    let ring = Ring::start(2).await;
    let mut client = ring.client(1).await;
    let path = "/clusters/team-a/api/v1/namespaces/ns/pods/forever";
    let waiting = tokio::spawn(async move { client.get(path).await });
    until(|| ring.world.asked.load(Ordering::SeqCst) == 1).await;
    assert_eq!(ring.world.dropped.load(Ordering::SeqCst), 0);
    waiting.abort();
    until(|| ring.world.dropped.load(Ordering::SeqCst) == 1).await;
    // The connection between the replicas stays usable.
    let mut other = ring.client(1).await;
    assert_eq!(other.get(POD).await.status, StatusCode::OK);
    let metrics = other.get("/metrics").await;
    assert!(
        metrics
            .text()
            .contains("polyplane_peer_connections_opened_total 1\n")
    );
}

#[tokio::test]
async fn a_long_list_is_streamed_and_a_slow_client_holds_up_only_itself() {
    let ring = Ring::start(2).await;
    let mut client = ring.client(1).await;
    let slow = client
        .open(Method::GET, &format!("{PODS}?limit=1000"), &[], "")
        .await;
    // Nobody reads the answer: the owner produces as many chunks as windows and buffers hold, then
    // stops.
    let taken = || ring.world.chunks.load(Ordering::SeqCst);
    let mut before = usize::MAX;
    while before != taken() {
        before = taken();
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
    assert!(
        before < 200,
        "{before} chunks of 64 KiB were taken for nobody"
    );
    let mut other = ring.client(1).await;
    assert_eq!(other.get(POD).await.status, StatusCode::OK);
    let whole = slow
        .into_body()
        .collect()
        .await
        .expect("the rest")
        .to_bytes();
    assert_eq!(whole.len(), 1000 * 65_536);
    assert!(whole.ends_with(b"x\n") && whole.starts_with(b"0000000x"));
    let begun = other
        .open(Method::GET, &format!("{PODS}?limit=300"), &[], "")
        .await;
    // A list that has begun is finished by the old owner although the plane moves.
    ring.world.move_to(1);
    let whole = begun.into_body().collect().await.expect("whole").to_bytes();
    assert_eq!(whole.len(), 300 * 65_536);
}

#[tokio::test]
async fn a_watch_is_one_stream_however_often_its_plane_moves() {
    let ring = Ring::start(3).await;
    let mut clients = Vec::new();
    for replica in 0..3 {
        let mut client = ring.client(replica).await;
        let answer = client.open(Method::GET, WATCH, &[], "").await;
        let mut events = Events::of(answer);
        let initial = events.take(3).await;
        assert_eq!(initial, ["ADDED 3", "ADDED 2", "ADDED 1"]);
        clients.push((client, events));
    }
    let mut next = 4;
    // Every replica owns the plane twice, so each client sees it come to its own replica and leave.
    for owner in [0, 1, 2, 0, 2, 1] {
        ring.world.move_to(owner);
        ring.world.tell(2);
        for (_, events) in &mut clients {
            let expected = [format!("ADDED {next}"), format!("ADDED {}", next + 1)];
            assert_eq!(events.take(2).await, expected);
        }
        next += 2;
    }
}

#[tokio::test]
async fn a_watch_outlives_its_owner() {
    let mut ring = Ring::start(3).await;
    let mut client = ring.client(1).await;
    let mut from_all = Events::of(client.open(Method::GET, WATCH, &[], "").await);
    let path = format!("{WATCH}&resourceVersion=2&allowWatchBookmarks=true&timeoutSeconds=100");
    let mut from_two = Events::of(client.open(Method::GET, &path, &[], "").await);
    assert_eq!(from_all.take(3).await.len(), 3);
    assert_eq!(from_two.take(1).await, ["ADDED 3"]);
    ring.kill(0).await;
    ring.world.move_to(2);
    ring.world.tell(1);
    assert_eq!(from_two.take(1).await, ["ADDED 4"]);
    assert_eq!(from_all.take(1).await, ["ADDED 4"]);
    let metrics = ring.client(1).await.get("/metrics").await;
    assert!(
        metrics
            .text()
            .contains("polyplane_resumed_watches_total 2\n")
    );
    assert!(metrics.text().contains("polyplane_forwarded_watches 2\n"));
}

#[tokio::test]
async fn nobody_waits_for_a_replica_that_is_no_member_any_more() {
    let ring = Ring::start(3).await;
    let mut client = ring.client(1).await;
    let mut events = Events::of(client.open(Method::GET, WATCH, &[], "").await);
    assert_eq!(events.take(3).await.len(), 3);
    let forever = "/clusters/team-a/api/v1/namespaces/ns/pods/forever";
    let reading = tokio::spawn(async move { client.get(forever).await });
    until(|| ring.world.asked.load(Ordering::SeqCst) == 2).await;
    ring.world.is_first_frozen.store(true, Ordering::SeqCst);
    ring.world.move_to(2);
    ring.world.tell(1);
    assert_eq!(ring.world.asked.load(Ordering::SeqCst), 2);
    ring.replicas[1]
        .transport
        .retain(|peer| peer.replica != "polyplane-0");
    assert_eq!(events.take(1).await, ["ADDED 4"]);
    // The owner before got the watch and the read once; the next one gets both again.
    until(|| ring.world.asked.load(Ordering::SeqCst) == 4).await;
    reading.abort();
}

/// A request that is sent to an owner that answers no pings may be lost, and a write could not be
/// sent again. So it waits until the owner answers or another replica owns the plane.
#[tokio::test]
async fn nothing_is_sent_to_an_owner_that_is_silent() {
    let ring = Ring::start(3).await;
    let asked = || ring.world.asked.load(Ordering::SeqCst);
    for next in [0, 2] {
        ring.world.is_first_silent.store(true, Ordering::SeqCst);
        let (before, created) = (asked(), ring.world.created.lock().len());
        let mut client = ring.client(1).await;
        let writing =
            tokio::spawn(async move { client.send(Method::POST, PODS, &[], POD_JSON).await });
        let mut client = ring.client(1).await;
        let reading = tokio::spawn(async move { client.get(POD).await });
        let held = || ring.world.held.load(Ordering::SeqCst);
        let from = held();
        until(|| held() > from + 4).await;
        assert_eq!(asked(), before);
        match next {
            0 => ring.world.is_first_silent.store(false, Ordering::SeqCst),
            _ => ring.world.move_to(next),
        }
        let written = writing.await.expect("no panic");
        assert_eq!(written.status, StatusCode::CREATED);
        assert_eq!(written.json()["replica"], next);
        assert_eq!(reading.await.expect("no panic").json()["replica"], next);
        assert_eq!(ring.world.created.lock().len(), created + 1);
        assert_eq!(asked(), before + 2);
    }
}

/// The peer accepts connections and sends nothing, like a process that hangs.
#[tokio::test]
async fn a_write_that_waits_for_a_connection_goes_elsewhere_when_the_peer_leaves() {
    let limits = PeerLimits {
        // Far longer than this test runs.
        connect_time_max: Duration::from_secs(3600),
        ..PeerLimits::default()
    };
    let ring = Ring::start_limited(3, &limits, |_| {}).await;
    let mute = TcpListener::bind("127.0.0.1:0").await.expect("a free port");
    let peer = Peer {
        replica: "polyplane-0".to_owned(),
        address: mute.local_addr().expect("bound").to_string(),
    };
    ring.world.beliefs.lock()[1] = Some(Location::There(peer.clone()));
    let mut client = ring.client(1).await;
    let writing = tokio::spawn(async move { client.send(Method::POST, PODS, &[], POD_JSON).await });
    let _connected = mute.accept().await.expect("a connection");
    ring.world.beliefs.lock()[1] = None;
    ring.world.move_to(2);
    ring.replicas[1].transport.retain(|member| *member != peer);
    let written = tokio::time::timeout(Duration::from_secs(20), writing);
    let written = written.await.expect("in time").expect("no panic");
    assert_eq!(written.status, StatusCode::CREATED);
    assert_eq!(written.json()["replica"], 2);
    assert_eq!(ring.world.created.lock().len(), 1);
}

#[tokio::test]
async fn a_replica_answers_for_itself_wherever_the_root_is() {
    let ring = Ring::start_with(2, |config| {
        let drain: DrainRequested = Box::new(|| Box::pin(async { Ok(()) }));
        config.drain_requested = Some(drain);
    })
    .await;
    let asked = || ring.world.asked.load(Ordering::SeqCst);
    for replica in [0, 1] {
        let address = ring.replicas[replica].address;
        let mut anyone = Client::to(address, &ring.pki, PROTOCOLS[1], None, None).await;
        assert_eq!(anyone.get("/readyz").await.text(), "ok");
        let refused = anyone.send(Method::POST, "/drain", &[], "").await;
        assert_eq!(refused.status, StatusCode::UNAUTHORIZED);
        let mut jane = Client::to(address, &ring.pki, PROTOCOLS[1], Some("member"), None).await;
        let refused = jane.send(Method::POST, "/drain", &[], "").await;
        assert_eq!(refused.status, StatusCode::FORBIDDEN);
        assert_eq!(jane.get("/metrics").await.status, StatusCode::FORBIDDEN);
        let mut admin = ring.client(replica).await;
        let wrong = admin.get("/drain").await;
        assert_eq!(wrong.status, StatusCode::METHOD_NOT_ALLOWED);
        assert_eq!(anyone.get("/readyz").await.status, StatusCode::OK);
        let drained = admin.send(Method::POST, "/drain", &[], Bytes::new()).await;
        assert_eq!(
            (drained.status, drained.text()),
            (StatusCode::OK, "drained\n")
        );
        let unready = anyone.get("/readyz").await;
        assert_eq!(unready.status, StatusCode::INTERNAL_SERVER_ERROR);
        assert_eq!(anyone.get("/livez").await.status, StatusCode::OK);
        assert_eq!(
            admin.get(POD).await.status,
            StatusCode::OK,
            "everything is served on"
        );
    }
    assert_eq!(asked(), 2);
}

/// Returns the initial list as a client that follows a collection collects it: it opens its watch
/// again whenever that ends, and treats the list as complete at the bookmark after it.
/// `first_broken` runs after two events.
async fn initial_list(
    client: &mut Client,
    path: &str,
    first_broken: impl AsyncFnOnce(),
) -> Vec<String> {
    let mut events = Events::of(client.open(Method::GET, path, &[], "").await);
    let mut seen = events.take(2).await;
    first_broken().await;
    loop {
        let next = tokio::time::timeout(Duration::from_secs(20), events.next());
        match next.await.expect("an event or the end of the watch") {
            Some(event) if event.starts_with("BOOKMARK") => return seen,
            Some(event) => seen.push(event),
            None => {
                seen.clear();
                events = Events::of(client.open(Method::GET, path, &[], "").await);
            }
        }
    }
}

#[tokio::test]
async fn initial_events_arrive_whole_though_the_owner_breaks_off_in_their_midst() {
    for spelling in ["true", "yes", "t", "1", ""] {
        for bookmarks in ["true", "yes", ""] {
            let mut ring = Ring::start(3).await;
            ring.world.first_stops_after.store(2, Ordering::SeqCst);
            ring.world.tell(2);
            let mut client = ring.client(1).await;
            let path = format!(
                "{WATCH}&resourceVersionMatch=NotOlderThan&resourceVersion=2\
                 &sendInitialEvents={spelling}&allowWatchBookmarks={bookmarks}"
            );
            let broken = async || {
                ring.kill(0).await;
                ring.world.move_to(2);
                ring.world.tell(1);
            };
            let seen = initial_list(&mut client, &path, broken).await;
            let expected: Vec<_> = (1..=6).rev().map(|n| format!("ADDED {n}")).collect();
            assert_eq!(seen, expected, "{spelling:?} {bookmarks:?}");
        }
    }
}

/// Returns the sum of a metric's samples over all replicas.
async fn fleet_sum(ring: &Ring, sample: &str) -> u64 {
    let mut sum = 0;
    for replica in 0..ring.replicas.len() {
        let metrics = ring.client(replica).await.get("/metrics").await;
        let text = metrics.text().to_owned();
        let found = text.lines().filter(|line| line.starts_with(sample));
        let values = found.filter_map(|line| line.rsplit(' ').next()?.parse::<u64>().ok());
        sum += values.sum::<u64>();
    }
    sum
}

#[tokio::test]
async fn a_forwarded_request_counts_once_in_the_sum_of_all_replicas() {
    const TOTAL: &str = "apiserver_request_total{code=\"20";
    let ring = Ring::start(3).await;
    let mut client = ring.client(1).await;
    // Reading the metrics also counts as a request, of each replica to itself.
    let before = fleet_sum(&ring, TOTAL).await;
    let own = fleet_sum(&ring, TOTAL).await - before;
    for _ in 0..5 {
        assert_eq!(client.get(POD).await.status, StatusCode::OK);
    }
    let created = client.send(Method::POST, PODS, &[], POD_JSON).await;
    assert_eq!(created.status, StatusCode::CREATED);
    let mut events = Events::of(client.open(Method::GET, WATCH, &[], "").await);
    assert_eq!(events.take(3).await.len(), 3);
    let after = fleet_sum(&ring, TOTAL).await;
    assert_eq!(after - before - 2 * own, 7);
    let took = "polyplane_forwarded_request_duration_seconds_count";
    assert_eq!(fleet_sum(&ring, took).await, 7);
    assert_eq!(fleet_sum(&ring, "apiserver_longrunning_requests{").await, 1);
    // A request that is sent first to a replica which lost the plane is counted only where it is
    // answered.
    let peers = ring.world.peers.lock().clone();
    ring.world.beliefs.lock()[2] = Some(Location::There(peers[1].clone()));
    let before = fleet_sum(&ring, "apiserver_request_total").await;
    let mut lost = ring.client(2).await;
    assert_eq!(lost.get(POD).await.json()["replica"], 0);
    let after = fleet_sum(&ring, "apiserver_request_total").await;
    assert_eq!(after - before - own, 1);
}
