//! Bootstrap tokens, which only the owner of the plane can judge.

use std::sync::atomic::Ordering;

use http::{Method, StatusCode};

use crate::client::{Client, Protocol, Reply};
use crate::ring::{GOOD_TOKEN, Ring, SLEEPY_TOKEN};

const PODS: &str = "/clusters/team-a/api/v1/namespaces/ns/pods";
const WRONG_TOKEN: &str = "abcdef.0123456789abcdeg";

async fn create(ring: &Ring, replica: usize, token: &str, path: &str) -> Reply {
    let address = ring.replicas[replica].address;
    let mut client = Client::to(address, &ring.pki, Protocol::Http2, Some(token), None).await;
    let pod = "{\"metadata\":{\"name\":\"a\"}}";
    client.send(Method::POST, path, &[], pod).await
}

/// At the owner, and through a replica that asks it before it forwards anything.
#[tokio::test]
async fn the_owner_judges_a_bootstrap_token_before_anything_is_forwarded() {
    let ring = Ring::start(2).await;
    let judged = || std::mem::take(&mut *ring.world.judged.lock());
    for replica in [0, 1] {
        let wrong = create(&ring, replica, WRONG_TOKEN, PODS).await;
        assert_eq!(wrong.status, StatusCode::UNAUTHORIZED);
        assert_eq!(judged(), [0], "one proof, and no request after it");
        let busy = create(&ring, replica, SLEEPY_TOKEN, PODS).await;
        assert_eq!(busy.status, StatusCode::TOO_MANY_REQUESTS);
        assert_eq!(busy.header("retry-after"), "1");
        assert_eq!(judged(), [0]);
        // The fake has no state in which the Secret could be read again.
        let good = create(&ring, replica, GOOD_TOKEN, PODS).await;
        assert_eq!(good.status, StatusCode::SERVICE_UNAVAILABLE);
        assert!(good.text().contains("roles"), "{}", good.text());
        assert_eq!(judged(), vec![0; replica + 1]);
    }
    assert_eq!(ring.world.asked.load(Ordering::SeqCst), 0);
}

#[tokio::test]
async fn a_caller_who_is_not_judged_for_lack_of_room_counts_once_in_the_sum_of_all_replicas() {
    let ring = Ring::start(2).await;
    for replica in [0, 1] {
        let busy = create(&ring, replica, SLEEPY_TOKEN, PODS).await;
        assert_eq!(busy.status, StatusCode::TOO_MANY_REQUESTS);
    }
    for replica in [0, 1] {
        let metrics = ring.client(replica).await.get("/metrics").await;
        let counted = "\npolyplane_rejected_requests_total 1\n";
        assert!(metrics.text().contains(counted), "{}", metrics.text());
    }
}

#[tokio::test]
async fn a_token_of_another_form_is_nobodys_and_asks_no_owner() {
    let ring = Ring::start(2).await;
    for token in [
        "nonsense",
        "abcdef.0123456789ABCDEF",
        "abcdef.0123456789abcdef0",
    ] {
        let refused = create(&ring, 1, token, PODS).await;
        assert_eq!(refused.status, StatusCode::UNAUTHORIZED, "{token}");
    }
    assert_eq!(*ring.world.judged.lock(), [0; 0]);
}
