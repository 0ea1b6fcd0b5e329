//! A replica that starts does not know its planes yet, and so cannot judge what proves their users.

use std::sync::atomic::Ordering;

use futures_util::{StreamExt as _, stream};
use http::{Method, StatusCode};
use http_body_util::{BodyExt as _, StreamBody};

use crate::client::{Body, Client, PROTOCOLS, Protocol, Reply};
use crate::fake::{Running, start, start_early};

const PODS: &str = "/api/v1/namespaces/ns/pods";
const OF_A: &str = "/clusters/team-a/api/v1/namespaces/ns/pods";
/// A token in the form of those that planes sign.
const SIGNED: &str = "eyJhbGciOiJFUzI1NiJ9.e30.c2ln";
/// Longer than any answer needs here, even on a busy machine.
const PATIENCE: std::time::Duration = std::time::Duration::from_secs(20);

/// Asserts that a reply tells the client to try again.
fn is_put_off(reply: &Reply) {
    assert_eq!(reply.status, StatusCode::SERVICE_UNAVAILABLE);
    assert_eq!(reply.header("retry-after"), "1");
    let status = reply.json();
    assert_eq!(status["reason"], "ServiceUnavailable");
    assert_eq!(status["details"]["retryAfterSeconds"], 1);
    let message = status["message"].as_str().unwrap_or_default();
    assert!(message.contains("is starting"), "{message}");
}

/// Returns the statuses that a caller gets at a plane, and at the root.
async fn statuses(client: &mut Client) -> [u16; 2] {
    let mut statuses = [0; 2];
    for (status, path) in statuses.iter_mut().zip([OF_A, PODS]) {
        *status = client.get(path).await.status.as_u16();
    }
    statuses
}

#[tokio::test]
async fn who_may_be_a_user_of_a_plane_is_put_off_while_a_replica_starts() {
    let server = start_early().await;
    let of_plane = server.other_ca.issue_client("bea", &[]).expect("issued");
    for protocol in PROTOCOLS {
        for (token, identity) in [
            (Some(SIGNED), None),
            (None, Some(&of_plane)),
            (Some("nonsense"), Some(&of_plane)),
            // A webhook of the operator may accept a token of any form.
            (Some("opaque"), None),
        ] {
            let mut user = Client::with(&server, protocol, token, identity).await;
            let mut bodies = Vec::new();
            // The same for each name, so that it shows a stranger nothing.
            for name in ["team-a", "team-b", "missing", "missing/control-plane"] {
                let reply = user.get(&format!("/clusters/{name}/api/v1/pods")).await;
                is_put_off(&reply);
                bodies.push(reply.body);
            }
            bodies.dedup();
            assert_eq!(bodies.len(), 1);
        }
    }
    assert_eq!(server.woken.load(Ordering::SeqCst), 0);
    assert_eq!(server.waits.load(Ordering::SeqCst), 0);
}

#[tokio::test]
async fn whom_a_replica_that_starts_can_judge_it_judges() {
    let (early, joined) = (start_early().await, start().await);
    for protocol in PROTOCOLS {
        for (server, of_signed) in [(&early, [503, 503]), (&joined, [401, 401])] {
            let of_plane = server.other_ca.issue_client("bea", &[]).expect("issued");
            let of_certificate = [of_signed[0], 401];
            let admin = server.pki.admin_token();
            let of_admin = match of_signed {
                // It is proven, and the plane is not there yet.
                [503, _] => [503, 200],
                _ => [200, 200],
            };
            for (token, identity, expected) in [
                (None, None, [401, 401]),
                (Some("nonsense"), None, of_signed),
                (Some(SIGNED), None, of_signed),
                (None, Some(&of_plane), of_certificate),
                (Some(admin), None, of_admin),
            ] {
                let mut client = Client::with(server, protocol, token, identity).await;
                assert_eq!(statuses(&mut client).await, expected, "{token:?}");
            }
        }
        let mut probe = Client::with(&early, protocol, None, None).await;
        for path in ["/livez", "/readyz", "/healthz", "/version"] {
            assert_eq!(probe.get(path).await.status, StatusCode::OK, "{path}");
        }
    }
}

/// Sends a request whose body never ends. Returns the status of its answer.
async fn unfinished(server: &Running, protocol: Protocol) -> StatusCode {
    let begun = hyper::body::Frame::data(bytes::Bytes::from_static(b"{"));
    let body = stream::once(std::future::ready(Ok(begun))).chain(stream::pending());
    let body: Body = StreamBody::new(body).boxed_unsync();
    let mut user = Client::with(server, protocol, Some(SIGNED), None).await;
    let sending = user.open_with(Method::POST, OF_A, &[], body);
    let answer = tokio::time::timeout(PATIENCE, sending).await;
    answer.expect("a stranger waits for nothing").status()
}

#[tokio::test]
async fn who_is_put_off_stays_a_stranger() {
    let server = start_early().await;
    for protocol in PROTOCOLS {
        let answered = unfinished(&server, protocol).await;
        assert_eq!(answered, StatusCode::SERVICE_UNAVAILABLE);
    }
    // Another server, at which no connection of before is still ending.
    let server = start_early().await;
    let mut user = Client::with(&server, Protocol::Http2, Some(SIGNED), None).await;
    is_put_off(&user.get(OF_A).await);
    assert_eq!(server.woken.load(Ordering::SeqCst), 0);
    let mut admin = Client::admin(&server, Protocol::Http2).await;
    let metrics = admin.get("/metrics").await;
    let unproven = "polyplane_unproven_connections 1\n";
    assert!(metrics.text().contains(unproven), "{}", metrics.text());
    is_put_off(&user.get(OF_A).await);
}
