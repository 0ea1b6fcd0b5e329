//! Cases about history, compaction, watches, leases and closing.

use std::sync::Arc;
use std::time::{Duration, Instant};

use bytes::Bytes;

use super::{all, delete, done, key, put, put_leased, txn};
use crate::{
    CommitError, HISTORY_BYTES_MAX, LeaseError, RangeRequest, ReadError, Rejection, Revision,
    Store, StoreEvent, StoreWatch, WatchEnd,
};

fn everything() -> (Bytes, Bytes) {
    (Bytes::new(), Bytes::new())
}

async fn events(store: &Arc<dyn Store>, after: Revision) -> Vec<StoreEvent> {
    let (start, end) = everything();
    store.history(start, end, after).await.expect("read").events
}

fn event(revision: Revision, k: &str, value: Option<&str>, previous: Option<&str>) -> StoreEvent {
    StoreEvent {
        revision,
        key: key(k),
        value: value.map(key),
        previous: previous.map(key),
    }
}

/// Reads a watch until it has delivered everything up to a revision.
async fn events_through(watch: &mut StoreWatch, through: Revision) -> Vec<StoreEvent> {
    let mut events = Vec::new();
    let mut last = Revision(0);
    while last < through {
        let batch = watch.next().await.expect("the watch goes on");
        assert!(batch.revision >= last, "progress never falls");
        last = batch.revision;
        events.extend(batch.events);
    }
    events
}

pub(super) async fn history_tells_operations_in_order_with_previous_values(store: Arc<dyn Store>) {
    let start = store.revision().await.expect("read");
    let first = done(&store, vec![put("a", "1"), put("b", "1")]).await;
    // These operations are neither in the order of keys, nor are the puts first.
    let second = done(
        &store,
        vec![put("z", "2"), delete("b"), put("c", "2"), put("aa", "2")],
    )
    .await;
    let third = done(&store, vec![delete("a"), delete("absent"), put("b", "3")]).await;
    let wanted = vec![
        event(first, "a", Some("1"), None),
        event(first, "b", Some("1"), None),
        event(second, "z", Some("2"), None),
        event(second, "b", None, Some("1")),
        event(second, "c", Some("2"), None),
        event(second, "aa", Some("2"), None),
        event(third, "a", None, Some("1")),
        event(third, "b", Some("3"), None),
    ];
    assert_eq!(events(&store, start).await, wanted);
    assert_eq!(events(&store, second).await, wanted[6..]);
    assert_eq!(events(&store, third).await, []);
}

pub(super) async fn history_is_cut_by_range_and_revision(store: Arc<dyn Store>) {
    let start = done(&store, vec![put("p/a", "1")]).await;
    done(&store, vec![put("o", "1"), put("p/b", "1"), put("q", "1")]).await;
    let last = done(&store, vec![put("p/b", "2"), put("p0", "2")]).await;
    let history = store
        .history(key("p/"), key("p0"), start)
        .await
        .expect("read");
    assert_eq!(history.revision, last);
    let keys: Vec<Bytes> = history.events.into_iter().map(|event| event.key).collect();
    assert_eq!(keys, ["p/b", "p/b"]);
    let future = store
        .history(key("p/"), key("p0"), Revision(last.0 + 1))
        .await;
    assert_eq!(future, Err(ReadError::Future { head: last }));
}

pub(super) async fn history_that_is_too_long_tells_where_to_begin(store: Arc<dyn Store>) {
    const VALUE_BYTES: usize = 1 << 20;
    let first = done(&store, vec![put("k", "small")]).await;
    let mut last = first;
    // Each event has the value that it puts and the one that it replaces.
    for number in 0..HISTORY_BYTES_MAX / VALUE_BYTES / 2 + 8 {
        let byte = u8::try_from(number).expect("few writes");
        last = done(&store, vec![put("k", vec![byte; VALUE_BYTES])]).await;
    }
    let (start, end) = everything();
    let error = store.history(start.clone(), end, first).await;
    let Err(ReadError::Compacted { floor }) = error else {
        panic!("too long: {error:?}");
    };
    assert!(first < floor && floor < last, "{first} < {floor} < {last}");
    let newest = events(&store, floor).await;
    let revisions: Vec<u64> = newest.iter().map(|event| event.revision.0).collect();
    assert_eq!(revisions, Vec::from_iter(floor.0 + 1..=last.0));
    let bytes: usize = newest.iter().map(StoreEvent::bytes).sum();
    assert!(
        bytes <= HISTORY_BYTES_MAX && bytes > HISTORY_BYTES_MAX / 2,
        "{bytes}"
    );
    // A history of other keys is not too long.
    let none = store.history("l".into(), start, first).await;
    assert_eq!(none.map(|history| history.events), Ok(Vec::new()));
}

pub(super) async fn compaction_ends_history_exactly_at_its_floor(store: Arc<dyn Store>) {
    for number in 0..20 {
        done(
            &store,
            vec![put("k", format!("{number}")), put(format!("{number}"), "")],
        )
        .await;
    }
    let head = store.revision().await.expect("read");
    let floor = Revision(head.0 - 5);
    store.compact(floor).await.expect("compacted");
    let (start, end) = everything();
    let below = Revision(floor.0 - 1);
    let compacted = Err(ReadError::Compacted { floor });
    assert_eq!(
        store.history(start.clone(), end.clone(), below).await,
        compacted
    );
    let request = RangeRequest {
        at: Some(below),
        ..RangeRequest::between(start, end)
    };
    assert!(matches!(
        store.range(request.clone()).await,
        Err(ReadError::Compacted { .. })
    ));
    assert_eq!(store.status().floor, floor);
    let kept = events(&store, floor).await;
    assert_eq!(kept.len(), 10, "five revisions of two events");
    assert_eq!(
        kept[0].previous.as_deref(),
        Some(&b"14"[..]),
        "the floor's own value is kept"
    );
    let at_floor = RangeRequest {
        at: Some(floor),
        ..request
    };
    let reply = store.range(at_floor).await.expect("read");
    let k = reply
        .items
        .iter()
        .find(|item| item.key == "k")
        .expect("there");
    assert_eq!(k.value, "14");
    store
        .compact(below)
        .await
        .expect("an older compaction is one already done");
    assert_eq!(store.status().floor, floor);
    let future = Revision(head.0 + 1);
    assert_eq!(store.compact(future).await, Err(ReadError::Future { head }));
}

pub(super) async fn compaction_keeps_what_is_there(store: Arc<dyn Store>) {
    for round in 0..5 {
        for k in ["a", "b", "c"] {
            done(&store, vec![put(k, format!("{round}"))]).await;
        }
        done(&store, vec![delete("b"), put("large", vec![b'x'; 50_000])]).await;
    }
    let before = all(&store).await;
    let head = store.revision().await.expect("read");
    store.compact(head).await.expect("compacted");
    assert_eq!(all(&store).await, before);
    assert_eq!(
        store.revision().await.expect("read"),
        head,
        "compaction takes no revision"
    );
    assert_eq!(events(&store, head).await, []);
    done(&store, vec![put("b", "again")]).await;
    assert_eq!(events(&store, head).await.len(), 1);
    assert_eq!(events(&store, head).await[0].previous, None);
}

pub(super) async fn watch_resumes_where_it_ended(store: Arc<dyn Store>) {
    let start = store.revision().await.expect("read");
    let mut revisions = Vec::new();
    for number in 0..10 {
        revisions.push(
            done(
                &store,
                vec![put("k", format!("{number}")), put("other", "")],
            )
            .await,
        );
    }
    for after in [start, revisions[3], revisions[9]] {
        let mut watch = store
            .watch(key("k"), key("l"), after)
            .await
            .expect("a watch");
        let next = done(&store, vec![put("k", "live"), delete("other")]).await;
        done(&store, vec![put("other", "")]).await;
        let found = events_through(&mut watch, next).await;
        let (from, to) = (key("k"), key("l"));
        let history = store.history(from, to, after).await.expect("read").events;
        assert_eq!(
            found, history,
            "a watch after {after} tells what history tells"
        );
        assert_eq!(found.last().map(|event| event.revision), Some(next));
    }
}

pub(super) async fn watch_tells_progress_without_events(store: Arc<dyn Store>) {
    let after = done(&store, vec![put("a", "1")]).await;
    let mut watch = store
        .watch(key("q"), key("r"), after)
        .await
        .expect("a watch");
    let last = done(&store, vec![put("b", "1")]).await;
    store.request_progress().await.expect("asked");
    assert_eq!(
        events_through(&mut watch, last).await,
        [],
        "nothing happened in its range"
    );
}

pub(super) async fn watch_misses_nothing_under_load(store: Arc<dyn Store>) {
    let start = store.revision().await.expect("read");
    let mut writers = Vec::new();
    for writer in 0..8 {
        let store = Arc::clone(&store);
        writers.push(tokio::spawn(async move {
            for write in 0..40 {
                let value = put(format!("w{writer}"), format!("{write}"));
                done(
                    &store,
                    vec![value, put("shared", format!("{writer}/{write}"))],
                )
                .await;
            }
        }));
    }
    let mut watchers = Vec::new();
    for _ in 0..8 {
        let (from, to) = everything();
        watchers.push(store.watch(from, to, start).await.expect("a watch"));
        tokio::task::yield_now().await;
    }
    for writer in writers {
        writer.await.expect("the writer ends");
    }
    let head = store.revision().await.expect("read");
    let history = events(&store, start).await;
    assert_eq!(history.len(), 8 * 40 * 2);
    for mut watch in watchers {
        assert!(
            events_through(&mut watch, head).await == history,
            "the watch is the history"
        );
    }
}

pub(super) async fn watch_of_the_future_or_the_compacted_is_refused(store: Arc<dyn Store>) {
    for number in 0..5 {
        done(&store, vec![put("k", format!("{number}"))]).await;
    }
    let head = store.revision().await.expect("read");
    store
        .compact(Revision(head.0 - 1))
        .await
        .expect("compacted");
    let watch = async |after| {
        let (from, to) = everything();
        store.watch(from, to, after).await.map(|_| ())
    };
    let floor = Revision(head.0 - 1);
    assert_eq!(
        watch(Revision(head.0 - 2)).await,
        Err(ReadError::Compacted { floor })
    );
    assert_eq!(watch(floor).await, Ok(()));
    assert_eq!(
        watch(Revision(head.0 + 1)).await,
        Err(ReadError::Future { head })
    );
}

pub(super) async fn lease_takes_its_keys_with_it(store: Arc<dyn Store>) {
    let short = store
        .lease_grant(Duration::from_millis(700))
        .await
        .expect("a lease");
    let long = store
        .lease_grant(Duration::from_secs(600))
        .await
        .expect("a lease");
    assert_ne!(short, long);
    let ops = vec![
        put_leased("a", short),
        put_leased("b", short),
        put_leased("c", long),
    ];
    let after = done(&store, ops).await;
    let mut watch = store
        .watch(key("a"), key("d"), after)
        .await
        .expect("a watch");
    let batch = watch.next().await.expect("the lease ends");
    let wanted = [
        event(batch.revision, "a", None, Some("leased")),
        event(batch.revision, "b", None, Some("leased")),
    ];
    assert_eq!(batch.events, wanted, "in one ordinary transaction");
    assert_eq!(
        store.lease_keep_alive(short).await,
        Err(LeaseError::NotFound)
    );
    let late = store
        .commit(txn(vec![], vec![put_leased("late", short)]))
        .await;
    assert!(
        matches!(late, Err(CommitError::Rejected(Rejection::NoLease(_)))),
        "{late:?}"
    );
    assert_eq!(
        store.get(b"c").await.expect("read").1.expect("there").lease,
        Some(long)
    );
    store.lease_revoke(long).await.expect("revoked");
    assert_eq!(
        all(&store).await,
        [],
        "when it is revoked, its keys are gone"
    );
    assert_eq!(store.lease_revoke(long).await, Err(LeaseError::NotFound));
}

/// Waits until a short lease has ended.
async fn outlive_a_lease(store: &Arc<dyn Store>) {
    let timer = store
        .lease_grant(Duration::from_millis(500))
        .await
        .expect("a lease");
    let before = done(store, vec![put_leased("timer", timer)]).await;
    let mut watch = store
        .watch(key("timer"), key("times"), before)
        .await
        .expect("a watch");
    while watch.next().await.expect("goes on").events.is_empty() {}
}

pub(super) async fn lease_kept_alive_stays(store: Arc<dyn Store>) {
    // The duration of a short lease depends on the store, so the test measures it.
    let began = Instant::now();
    outlive_a_lease(&store).await;
    let kept = store
        .lease_grant(began.elapsed() * 3)
        .await
        .expect("a lease");
    let after = done(&store, vec![put_leased("kept", kept)]).await;
    // Each of these leases ends after the one before; together they last longer than the first term
    // of the kept lease.
    for _ in 0..6 {
        outlive_a_lease(&store).await;
        store.lease_keep_alive(kept).await.expect("still alive");
    }
    let found = store.get(b"kept").await.expect("read").1.expect("there");
    assert_eq!(found.modified, after);
}

pub(super) async fn lease_lets_go_of_keys_put_without_it(store: Arc<dyn Store>) {
    let first = store
        .lease_grant(Duration::from_secs(600))
        .await
        .expect("a lease");
    let second = store
        .lease_grant(Duration::from_secs(600))
        .await
        .expect("a lease");
    let ops = ["moved", "freed", "deleted", "left"].map(|key| put_leased(key, first));
    done(&store, ops.to_vec()).await;
    done(
        &store,
        vec![
            put_leased("moved", second),
            put("freed", "x"),
            delete("deleted"),
        ],
    )
    .await;
    done(&store, vec![put("deleted", "new")]).await;
    store.lease_revoke(first).await.expect("revoked");
    let keys: Vec<String> = all(&store).await.into_iter().map(|(key, _)| key).collect();
    assert_eq!(keys, ["deleted", "freed", "moved"]);
    store.lease_revoke(second).await.expect("revoked");
    let keys: Vec<String> = all(&store).await.into_iter().map(|(key, _)| key).collect();
    assert_eq!(keys, ["deleted", "freed"]);
}

pub(super) async fn closed_store_says_so(store: Arc<dyn Store>) {
    done(&store, vec![put("a", "1")]).await;
    let (from, to) = everything();
    let after = store.revision().await.expect("read");
    let mut watch = store.watch(from, to, after).await.expect("a watch");
    store.close().await;
    assert_eq!(watch.next().await, Err(WatchEnd::Closed));
    let late = store.commit(txn(vec![], vec![put("a", "2")])).await;
    assert_eq!(late, Err(CommitError::Rejected(Rejection::Closed)));
    assert_eq!(store.get(b"a").await, Err(ReadError::Closed));
    assert_eq!(store.revision().await, Err(ReadError::Closed));
    assert_eq!(
        store.lease_grant(Duration::from_secs(1)).await,
        Err(LeaseError::Closed)
    );
}
