//! Long answers and watches.

use std::io::Read as _;
use std::sync::atomic::Ordering;
use std::time::Duration;

use http::{Method, Response, StatusCode};
use http_body_util::BodyExt as _;
use hyper::body::Incoming;

use crate::client::{Client, PROTOCOLS, Protocol};
use crate::fake::{LARGE_BYTES, Running, start, start_with};

const LARGE: &str = "/api/v1/namespaces/ns/pods/large";
/// Longer than anything needs here, even on a busy machine.
const PATIENCE: Duration = Duration::from_secs(20);

#[tokio::test]
async fn long_lists_arrive_whole_and_know_their_length() {
    let server = start().await;
    for protocol in PROTOCOLS {
        let mut client = Client::admin(&server, protocol).await;
        let sliced = client.get("/api/v1/pods?limit=3000").await;
        assert_eq!(
            sliced.header("content-length"),
            sliced.body.len().to_string()
        );
        assert_eq!(sliced.json()["items"].as_array().map(Vec::len), Some(3000));
        let streamed = client.get("/api/v1/pods?limit=3000&continue=stream").await;
        assert_eq!(streamed.header("content-length"), "");
        assert_eq!(streamed.body, sliced.body);
    }
}

#[tokio::test]
async fn large_answers_are_compressed_for_those_who_take_it() {
    let server = start().await;
    let mut client = Client::admin(&server, Protocol::Http2).await;
    let gzip = [("accept-encoding", "gzip")];
    let plain = client.get("/api/v1/pods?limit=200").await;
    for path in [
        "/api/v1/pods?limit=200",
        "/api/v1/pods?limit=200&continue=stream",
    ] {
        let packed = client.send(Method::GET, path, &gzip, "").await;
        assert_eq!(packed.header("content-encoding"), "gzip");
        assert_eq!(packed.header("vary"), "Accept-Encoding");
        let mut unpacked = Vec::new();
        flate2::read::GzDecoder::new(&packed.body[..])
            .read_to_end(&mut unpacked)
            .expect("gzip");
        assert_eq!(unpacked, plain.body);
    }
    let small = client
        .send(Method::GET, "/api/v1/pods?limit=100", &gzip, "")
        .await;
    assert_eq!(small.header("content-encoding"), "");
}

/// Each event can be read when it arrives.
#[tokio::test]
async fn a_watch_that_begins_with_a_list_is_compressed_for_those_who_take_it() {
    let server = start().await;
    let gzip = [("accept-encoding", "gzip")];
    let watch = "/api/v1/pods?watch=1&allowWatchBookmarks=true";
    let list = format!("{watch}&sendInitialEvents=true");
    for protocol in PROTOCOLS {
        let mut client = Client::admin(&server, protocol).await;
        let mut answer = client.open(Method::GET, &list, &gzip, "").await;
        let header = |name: &str| answer.headers()[name].to_str().expect("ASCII").to_owned();
        let seen = ["content-encoding", "vary"].map(header);
        assert_eq!(seen, ["gzip", "Accept-Encoding"]);
        let mut text = String::new();
        while text.matches('\n').count() < 3 {
            let frame = answer.frame().await.expect("a frame").expect("no error");
            let data = frame.into_data().expect("data");
            flate2::read::MultiGzDecoder::new(&data[..])
                .read_to_string(&mut text)
                .expect("gzip");
        }
        assert!(text.ends_with("{\"n\":3}\n"), "{text}");
        for (path, headers) in [(watch, &gzip[..]), (list.as_str(), &gzip[..0])] {
            let mut other = Client::admin(&server, protocol).await;
            let plain = other.open(Method::GET, path, headers, "").await;
            assert!(!plain.headers().contains_key("content-encoding"), "{path}");
        }
    }
}

/// The fake's answer to a write has its body.
#[tokio::test]
async fn large_answers_to_writes_are_compressed_too() {
    let server = start().await;
    let mut client = Client::admin(&server, Protocol::Http2).await;
    let (pods, pod) = ("/api/v1/namespaces/ns/pods", "/api/v1/namespaces/ns/pods/a");
    let body = "x".repeat(200 << 10);
    for (method, path) in [
        (Method::POST, pods),
        (Method::PUT, pod),
        (Method::PATCH, pod),
        (Method::DELETE, pod),
    ] {
        for (accepted, coding) in [("gzip, deflate", "gzip"), ("gzip;q=1", ""), ("*", "")] {
            let headers = [("accept-encoding", accepted)];
            let reply = client.send(method.clone(), path, &headers, body.clone());
            let reply = reply.await;
            assert!(reply.status.is_success(), "{method}");
            assert_eq!(reply.header("content-encoding"), coding, "{method}");
            let mut plain = Vec::new();
            match coding {
                "gzip" => flate2::read::GzDecoder::new(&reply.body[..]).read_to_end(&mut plain),
                _ => (&reply.body[..]).read_to_end(&mut plain),
            }
            .expect("gzip");
            let seen: serde_json::Value = serde_json::from_slice(&plain).expect("JSON");
            assert_eq!(seen["body"], body, "{method}");
        }
    }
}

#[tokio::test]
async fn watches_bring_events_as_they_come_and_are_counted() {
    let server = start().await;
    for (round, protocol) in PROTOCOLS.into_iter().enumerate() {
        let mut client = Client::admin(&server, protocol).await;
        let path = "/api/v1/watch/namespaces/ns/pods/a?timeout=1ms";
        let mut answer = client.open(Method::GET, path, &[], "").await;
        assert_eq!(answer.status(), StatusCode::OK);
        let mut text = String::new();
        while text.matches('\n').count() < 3 {
            let frame = answer.frame().await.expect("a frame").expect("no error");
            let data = frame.into_data().expect("data");
            text.push_str(std::str::from_utf8(&data).expect("text"));
        }
        let first: serde_json::Value =
            serde_json::from_str(text.lines().next().expect("a line")).expect("JSON");
        assert_eq!(first["verb"], "watch");
        assert_eq!(first["name"], "a");
        assert_eq!(first["query"], "timeout=1ms&watch=false");
        let mut other = Client::admin(&server, Protocol::Http2).await;
        let metrics = other.get("/metrics").await;
        let running = r#"apiserver_longrunning_requests{component="apiserver",group="",resource="pods",scope="resource",subresource="",verb="WATCH",version="v1"} 1"#;
        assert!(metrics.text().contains(running), "{}", metrics.text());
        let events = format!(
            "apiserver_watch_events_total{{group=\"\",resource=\"pods\",version=\"v1\"}} {}\n",
            3 * (round + 1)
        );
        assert!(metrics.text().contains(&events), "{}", metrics.text());
        drop(answer);
        drop(client);
        // The connection task notices with a delay that the client left.
        while other.get("/metrics").await.text().contains(running) {
            tokio::task::yield_now().await;
        }
    }
}

/// A request is paid for before its answer is sent. What the connection does from then on has no request.
#[tokio::test]
async fn a_plane_pays_for_what_its_connections_do_beside_requests() {
    let server = start().await;
    let used = || server.root_meter.usage().cpu_nanos;
    for protocol in PROTOCOLS {
        let mut client = Client::admin(&server, protocol).await;
        let reply = client.get("/api/v1/pods?limit=3").await;
        assert_eq!(reply.status, StatusCode::OK);
        let before = used();
        assert!(before > 0);
        drop(client);
        let charged = async {
            while used() == before {
                tokio::task::yield_now().await;
            }
        };
        let waited = tokio::time::timeout(PATIENCE, charged).await;
        waited.expect("the end of the connection is charged");
    }
}

#[tokio::test]
async fn a_watch_has_a_deadline_until_it_has_begun() {
    let begin_max = Duration::from_millis(50);
    let server = start_with(|config| config.limits.request_time_max = begin_max).await;
    for protocol in PROTOCOLS {
        let mut client = Client::admin(&server, protocol).await;
        for late in [
            "/api/v1/pods?watch=1&limit=never",
            "/clusters/stuck/api/v1/pods?watch=1",
            "/clusters/stuck/api/v1/pods",
        ] {
            let reply = client.get(late).await;
            assert_eq!(reply.status, StatusCode::GATEWAY_TIMEOUT, "{late}");
            assert_eq!(reply.json()["reason"], "Timeout");
        }
        let path = "/api/v1/pods?watch=1";
        let mut answer = client.open(Method::GET, path, &[], "").await;
        assert_eq!(answer.status(), StatusCode::OK);
        let mut events = 0;
        while events < 3 {
            let frame = answer.frame().await.expect("a frame").expect("no error");
            let data = frame.into_data().expect("data");
            events += data.iter().filter(|byte| **byte == b'\n').count();
        }
        // Once the watch has begun, it lasts as long as its source.
        let more = tokio::time::timeout(begin_max * 3, answer.frame()).await;
        assert!(more.is_err(), "{more:?}");
    }
}

#[tokio::test]
async fn a_watch_whose_source_gives_up_ends_like_any_other() {
    let server = start().await;
    let mut client = Client::admin(&server, Protocol::Http2).await;
    let reply = client.get("/api/v1/pods?watch=1&limit=broken").await;
    assert_eq!(
        (reply.status, reply.text().matches('\n').count()),
        (StatusCode::OK, 3)
    );
}

#[tokio::test]
async fn an_answer_nobody_fetches_is_given_up() {
    let server =
        start_with(|config| config.limits.answer_stall_max = Duration::from_millis(50)).await;
    let mut client = Client::admin(&server, Protocol::Http2).await;
    // The client's window is far smaller than the answer, and nobody reads it.
    let answer = client
        .open(Method::GET, "/api/v1/pods?limit=20000", &[], "")
        .await;
    let mut other = Client::admin(&server, Protocol::Http2).await;
    while !other
        .get("/metrics")
        .await
        .text()
        .contains("polyplane_abandoned_answers_total 1\n")
    {
        tokio::task::yield_now().await;
    }
    assert!(answer.into_body().collect().await.is_err());
}

/// Reads the three events that every watch of the fake begins with.
async fn read_events(watch: &mut Response<Incoming>) {
    let mut events = 0;
    while events < 3 {
        let frame = watch.frame().await.expect("a frame").expect("no error");
        let data = frame.into_data().expect("data");
        events += data.iter().filter(|byte| **byte == b'\n').count();
    }
}

/// Checks that a watch goes on, without events.
async fn goes_on(watch: &mut Response<Incoming>) {
    let more = tokio::time::timeout(Duration::from_millis(300), watch.frame()).await;
    assert!(more.is_err(), "{more:?}");
}

/// Waits until the server has answered for `large` and has nothing of these answers in memory.
async fn nothing_large(server: &Running) {
    let given_back = async {
        while server.large.load(Ordering::SeqCst) > 0 {
            tokio::task::yield_now().await;
        }
    };
    let in_time = tokio::time::timeout(PATIENCE, given_back).await;
    in_time.expect("all memory is given back");
}

/// Waits until as many answers were cut.
async fn until_cut(client: &mut Client, answers: usize) {
    until_counted(client, "polyplane_cut_answers_total", answers).await;
}

/// Waits until a counter is at `count`.
async fn until_counted(client: &mut Client, name: &str, count: usize) {
    let shown = format!("\n{name} {count}\n");
    let all_counted = async {
        while !client.get("/metrics").await.text().contains(&shown) {
            tokio::task::yield_now().await;
        }
    };
    let in_time = tokio::time::timeout(PATIENCE, all_counted).await;
    in_time.expect("all of them are counted");
}

#[tokio::test]
async fn unread_answers_are_cut_and_other_streams_of_their_connection_go_on() {
    let stall_max = Duration::from_millis(20);
    let server = start_with(|config| config.limits.answer_stall_max = stall_max).await;
    let mut client = Client::with_room(&server, Some(server.pki.admin_token()), 1000).await;
    let path = "/api/v1/pods?watch=1";
    let mut idle = client.open(Method::GET, path, &[], "").await;
    read_events(&mut idle).await;
    let mut unread = Vec::new();
    for _ in 0..20 {
        unread.push(client.open(Method::GET, LARGE, &[], "").await);
    }
    nothing_large(&server).await;
    let mut other = Client::admin(&server, Protocol::Http2).await;
    until_cut(&mut other, unread.len()).await;
    for answer in unread {
        assert!(answer.into_body().collect().await.is_err());
    }
    let read = client.get("/api/v1/pods?limit=20").await;
    assert_eq!(read.json()["items"].as_array().map(Vec::len), Some(20));
    goes_on(&mut idle).await;
}

/// None of them is longer than what the connection would queue, and the first is sent at once if there is room.
#[tokio::test]
async fn no_answer_is_kept_for_a_client_that_gives_it_no_room() {
    let stall_max = Duration::from_millis(20);
    let server = start_with(|config| config.limits.answer_stall_max = stall_max).await;
    let mut client = Client::without_room(&server, Some(server.pki.admin_token())).await;
    let mut unread = Vec::new();
    for path in [
        "/api/v1/namespaces/ns/pods/a",
        "/api/v1/pods?limit=100",
        "/api/v1/pods?limit=100&continue=stream",
        "/api/v1/pods?watch=1&limit=flood",
    ] {
        unread.push(client.open(Method::GET, path, &[], "").await);
    }
    let mut other = Client::admin(&server, Protocol::Http2).await;
    let path = "/api/v1/pods?watch=1";
    let mut idle = other.open(Method::GET, path, &[], "").await;
    read_events(&mut idle).await;
    until_cut(&mut other, unread.len()).await;
    until_counted(&mut other, "polyplane_unread_watches_total", 1).await;
    for answer in unread {
        assert!(answer.into_body().collect().await.is_err());
    }
    goes_on(&mut idle).await;
}

/// With HTTP/1.1, the answer is all that the connection sends.
#[tokio::test]
async fn an_unread_answer_of_http1_ends_its_connection() {
    let stall_max = Duration::from_millis(20);
    let server = start_with(|config| config.limits.answer_stall_max = stall_max).await;
    let mut client = Client::admin(&server, Protocol::Http1).await;
    // More than the sockets of both sides buffer.
    let path = "/api/v1/pods?limit=20000";
    let answer = client.open(Method::GET, path, &[], "").await;
    let mut other = Client::admin(&server, Protocol::Http2).await;
    until_cut(&mut other, 1).await;
    assert!(answer.into_body().collect().await.is_err());
}

#[tokio::test]
async fn a_client_that_reads_slowly_gets_the_whole_answer() {
    let stall_max = Duration::from_millis(400);
    let server = start_with(|config| config.limits.answer_stall_max = stall_max).await;
    let token = Some(server.pki.admin_token());
    let mut client = Client::with_room(&server, token, 32 << 10).await;
    let begun = tokio::time::Instant::now();
    let mut answer = client.open(Method::GET, LARGE, &[], "").await;
    let mut read = 0;
    while let Some(frame) = answer.frame().await {
        let data = frame.expect("no error").into_data().expect("data");
        read += data.len();
        tokio::time::sleep(stall_max / 16).await;
    }
    assert_eq!(read, LARGE_BYTES);
    assert!(begun.elapsed() > stall_max * 3, "it was slow");
    let mut other = Client::admin(&server, Protocol::Http2).await;
    let metrics = other.get("/metrics").await;
    for none in [
        "polyplane_cut_answers_total 0",
        "polyplane_abandoned_answers_total 0",
    ] {
        assert!(metrics.text().contains(none), "{none}");
    }
}

#[tokio::test]
async fn a_connection_whose_client_reads_nothing_from_the_socket_ends() {
    let stall_max = Duration::from_millis(20);
    let server = start_with(|config| config.limits.answer_stall_max = stall_max).await;
    let token = Some(server.pki.admin_token());
    let (mut client, reads) = Client::that_may_stop(&server, token, 1 << 30).await;
    let pod = client.get("/api/v1/namespaces/ns/pods/a").await;
    assert_eq!(pod.status, StatusCode::OK);
    reads.store(false, Ordering::SeqCst);
    // More than the sockets of both sides buffer.
    let mut unread = Vec::new();
    for _ in 0..40 {
        unread.push(client.begin(LARGE).await);
    }
    let answered = async {
        while server.large.load(Ordering::SeqCst) == 0 {
            tokio::task::yield_now().await;
        }
    };
    let in_time = tokio::time::timeout(PATIENCE, answered).await;
    in_time.expect("the server answers");
    nothing_large(&server).await;
}
