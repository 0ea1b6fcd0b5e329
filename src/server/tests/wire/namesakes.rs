//! A plane that is deleted and made anew under its name, as replicas get to know it one after the other.

use std::sync::atomic::Ordering;

use http::{Method, StatusCode};

use crate::forwarding::Events;
use crate::ring::Ring;

const POD: &str = "/clusters/team-a/api/v1/namespaces/ns/pods/a";
const PODS: &str = "/clusters/team-a/api/v1/namespaces/ns/pods";
const WATCH: &str = "/clusters/team-a/api/v1/namespaces/ns/pods?watch=1";
const POD_JSON: &str = "{\"metadata\":{\"name\":\"a\"}}";

/// Whichever of the two replicas knows of the new plane first: a request that one of them has proven
/// for one plane is not carried out in the other one.
#[tokio::test]
async fn a_forwarded_request_reaches_no_namesake() {
    let ring = Ring::start(2).await;
    let mut client = ring.client(1).await;
    for (at_owner, at_receiver) in [("p-2", "p-1"), ("p-2", "p-3")] {
        *ring.world.ids.lock() = vec![at_owner, at_receiver];
        for method in [Method::POST, Method::GET, Method::DELETE] {
            let path = if method == Method::POST { PODS } else { POD };
            let path = format!("{path}?timeout=300ms");
            let lost = client.send(method, &path, &[], POD_JSON).await;
            assert_eq!(lost.status, StatusCode::SERVICE_UNAVAILABLE);
        }
        assert_eq!(ring.world.asked.load(Ordering::SeqCst), 0);
    }
    // Once both know the same plane, requests arrive.
    *ring.world.ids.lock() = vec!["p-3"; 2];
    let made = client.send(Method::POST, PODS, &[], POD_JSON).await;
    assert_eq!(made.status, StatusCode::CREATED);
    assert_eq!(*ring.world.created.lock(), [(0, POD_JSON.to_owned())]);
}

#[tokio::test]
async fn a_watch_does_not_go_on_in_a_namesake() {
    let ring = Ring::start(3).await;
    for is_other in [false, true] {
        ring.world.move_to(0);
        *ring.world.ids.lock() = vec!["p-1"; 3];
        let mut watches = Vec::new();
        for replica in 0..3 {
            let mut client = ring.client(replica).await;
            let answer = client.open(Method::GET, WATCH, &[], "").await;
            let mut events = Events::of(answer);
            let head = ring.world.truth.borrow().head;
            events.take(usize::try_from(head).expect("small")).await;
            watches.push((client, events));
        }
        if is_other {
            *ring.world.ids.lock() = vec!["p-2"; 3];
        }
        ring.world.move_to(1);
        ring.world.tell(1);
        for (_, events) in &mut watches {
            assert_eq!(events.next().await.is_none(), is_other);
        }
    }
}
