//! What a store reads of a history that another client has compacted.

use bytes::Bytes;
use polyplane_storage::{RangeRequest, ReadError, Revision, Store as _};

use crate::cluster::Cluster;
use crate::{done, put};

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn revision_one_reads_whole_in_a_store_that_did_not_compact_it_itself() {
    let cluster = Cluster::one();
    let store = cluster.connect().await;
    assert_eq!(
        store.revision().await,
        Ok(Revision(1)),
        "a fresh etcd is at 1"
    );
    let revisions = [
        done(&store, vec![put("a", "first")]).await,
        done(&store, vec![put("a", "second")]).await,
    ];
    store.compact(Revision(2)).await.expect("compacted");
    let other = cluster.connect().await;
    let history = other
        .history(Bytes::new(), Bytes::new(), Revision(1))
        .await
        .expect("nothing of it is gone");
    let found: Vec<Revision> = history.events.iter().map(|e| e.revision).collect();
    assert_eq!(found, revisions);
    let request = RangeRequest {
        at: Some(Revision(1)),
        ..RangeRequest::between(Bytes::new(), Bytes::new())
    };
    let range = other.range(request).await.expect("nothing of it is gone");
    assert_eq!(range.items, []);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn history_below_anothers_compaction_is_refused_with_the_floor() {
    let cluster = Cluster::one();
    let store = cluster.connect().await;
    let mut revisions = Vec::new();
    for number in 0..20 {
        revisions.push(done(&store, vec![put("k", number.to_string())]).await);
    }
    let compacted = revisions[10];
    cluster.ctl(&["compact", &compacted.to_string()]);
    let floor = Revision(compacted.0 + 1);
    let everything = || (Bytes::new(), Bytes::new());
    for after in [revisions[3], compacted] {
        let (start, end) = everything();
        let refused = store.history(start, end, after).await;
        assert_eq!(
            refused,
            Err(ReadError::Compacted { floor }),
            "after {after}"
        );
        let (start, end) = everything();
        let refused = store.watch(start, end, after).await.map(|_| ());
        assert_eq!(
            refused,
            Err(ReadError::Compacted { floor }),
            "after {after}"
        );
    }
    assert_eq!(store.status().floor, floor);
    let (start, end) = everything();
    let history = store.history(start, end, floor).await.expect("above");
    assert_eq!(history.events.len(), 8);
    assert_eq!(history.events[0].previous, Some("11".into()));
}
