//! What a replica answers about itself while the root plane cannot wake.

use std::sync::atomic::Ordering;

use http::StatusCode;

use crate::client::{Client, PROTOCOLS};
use crate::ring::Ring;

const POD: &str = "/clusters/team-a/api/v1/namespaces/ns/pods/a";

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
