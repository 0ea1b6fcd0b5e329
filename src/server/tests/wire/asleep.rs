//! What a replica answers while the root plane cannot wake, or cannot be read.

use std::sync::atomic::Ordering;

use http::{Method, StatusCode};

use crate::client::{Client, PROTOCOLS};
use crate::forwarding::Events;
use crate::ring::Ring;

const POD: &str = "/clusters/team-a/api/v1/namespaces/ns/pods/a";
const ROOT_POD: &str = "/api/v1/namespaces/ns/pods/a";

#[tokio::test]
async fn a_replica_answers_for_itself_also_while_the_root_cannot_wake() {
    let ring = Ring::start(2).await;
    ring.world.cannot_wake.store(true, Ordering::SeqCst);
    for replica in [0, 1] {
        let mut admin = ring.client(replica).await;
        for path in ["/readyz", "/livez", "/readyz/ping"] {
            let health = admin.get(path).await;
            assert_eq!(
                (health.status, health.text()),
                (StatusCode::OK, "ok"),
                "{path} of {replica}"
            );
        }
        let listing = admin.get("/readyz?verbose").await;
        let listing = listing.text();
        assert!(listing.ends_with("readyz check passed\n"), "{listing}");
        assert_eq!(admin.get("/metrics").await.status, StatusCode::OK);
        let address = ring.replicas[replica].address;
        let mut jane = Client::to(address, &ring.pki, PROTOCOLS[1], Some("member"), None).await;
        assert_eq!(jane.get("/readyz").await.text(), "ok");
        // At the owner her roles are awaited; elsewhere nobody knows them.
        let (owner, other) = (StatusCode::SERVICE_UNAVAILABLE, StatusCode::FORBIDDEN);
        let expected = if replica == 0 { owner } else { other };
        assert_eq!(jane.get("/metrics").await.status, expected);
        // What needs the plane says why it is not there.
        let refused = admin.get(POD).await;
        assert_eq!(refused.status, StatusCode::SERVICE_UNAVAILABLE);
        let refused = refused.json();
        let message = refused["message"].as_str().unwrap_or_default();
        assert!(message.contains("takes no writes: no space"), "{message}");
    }
}

#[tokio::test]
async fn the_root_is_refused_before_the_deadline_while_its_owner_has_no_read_lease() {
    let ring = Ring::start(2).await;
    let set_away = |is_away| ring.world.is_store_away.store(is_away, Ordering::SeqCst);
    for replica in [0, 1] {
        set_away(true);
        let mut admin = ring.client(replica).await;
        // The server gives up after half of the time, so that the client reads the reason.
        let refused = admin.get(&format!("{ROOT_POD}?timeout=1s")).await;
        assert_eq!(
            (refused.status, refused.header("retry-after")),
            (StatusCode::SERVICE_UNAVAILABLE, "1"),
            "of {replica}"
        );
        assert_eq!(refused.json()["message"], "the store is away");
        // What is about the replica, and watches, do not depend on it.
        assert_eq!(admin.get("/readyz").await.text(), "ok");
        assert_eq!(admin.get("/metrics").await.status, StatusCode::OK);
        let path = "/api/v1/namespaces/ns/pods?watch=1";
        let watch = admin.open(Method::GET, path, &[], "").await;
        assert_eq!(Events::of(watch).take(1).await.len(), 1);
        // A request that waits is answered once the store is back.
        let mut waiting = ring.client(replica).await;
        let before = ring.world.kept_waiting.load(Ordering::SeqCst);
        let back = async {
            while ring.world.kept_waiting.load(Ordering::SeqCst) == before {
                tokio::task::yield_now().await;
            }
            set_away(false);
        };
        let (answered, ()) = tokio::join!(waiting.get(ROOT_POD), back);
        assert_eq!(answered.status, StatusCode::OK);
    }
}
