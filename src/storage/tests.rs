//! The conformance suite over the engines that need no server; `tests/etcd.rs` has the other.

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use crate::{
    Clock, CommitError, CommitFault, Committed, FaultyStore, FjallOptions, FjallStore, Health,
    ManualClock, MemoryOptions, MemoryStore, Op, ReadError, ReadFault, Rejection, Revision,
    SledOptions, SledStore, Store, Txn, WatchEnd, conformance,
};

fn sled(path: &Path) -> Arc<dyn Store> {
    let options = SledOptions {
        ballast_bytes: 64 * 1024,
        ..SledOptions::default()
    };
    Arc::new(SledStore::open(path, options).expect("the store opens"))
}

fn fjall(path: &Path) -> Arc<dyn Store> {
    let options = FjallOptions {
        ballast_bytes: 64 * 1024,
        ..FjallOptions::default()
    };
    Arc::new(FjallStore::open(path, options).expect("the store opens"))
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn memory_conforms() {
    conformance::run(async || Arc::new(MemoryStore::default()) as Arc<dyn Store>).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn faulty_without_faults_conforms() {
    conformance::run(async || {
        Arc::new(FaultyStore::new(Arc::new(MemoryStore::default()))) as Arc<dyn Store>
    })
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn sled_conforms() {
    let folder = tempfile::tempdir().expect("a folder");
    let mut number = 0;
    conformance::run(|| {
        number += 1;
        let path = folder.path().join(number.to_string());
        async move { sled(&path) }
    })
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn fjall_conforms() {
    let folder = tempfile::tempdir().expect("a folder");
    let mut number = 0;
    conformance::run(|| {
        number += 1;
        let path = folder.path().join(number.to_string());
        async move { fjall(&path) }
    })
    .await;
}

#[test]
fn memory_follows_the_model() {
    conformance::model(96, async |again| {
        again.unwrap_or_else(|| Arc::new(MemoryStore::default()))
    });
}

#[test]
fn sled_follows_the_model_over_openings() {
    let folder = tempfile::tempdir().expect("a folder");
    let number = std::cell::Cell::new(0);
    conformance::model(24, |again| {
        number.set(number.get() + u32::from(again.is_none()));
        let path = folder.path().join(number.get().to_string());
        async move {
            if let Some(store) = again {
                store.close().await;
            }
            sled(&path)
        }
    });
}

#[test]
fn fjall_follows_the_model_over_openings() {
    let folder = tempfile::tempdir().expect("a folder");
    let number = std::cell::Cell::new(0);
    conformance::model(24, |again| {
        number.set(number.get() + u32::from(again.is_none()));
        let path = folder.path().join(number.get().to_string());
        async move {
            if let Some(store) = again {
                store.close().await;
            }
            fjall(&path)
        }
    });
}

fn put(value: &'static str) -> Txn {
    let op = Op::Put {
        key: "k".into(),
        value: value.into(),
        lease: None,
    };
    Txn {
        compares: Vec::new(),
        ops: vec![op],
    }
}

async fn value(store: &dyn Store) -> Option<bytes::Bytes> {
    store
        .get(b"k")
        .await
        .expect("read")
        .1
        .map(|found| found.value)
}

#[tokio::test]
async fn faults_do_what_they_say() {
    let store = FaultyStore::new(Arc::new(MemoryStore::default()));
    let plan = Arc::clone(store.plan());
    plan.next_commit(CommitFault::UnknownApplied);
    plan.next_commit(CommitFault::UnknownNotApplied);
    plan.next_commit(CommitFault::UnknownLate);
    plan.next_commit(CommitFault::Refuse(vec![3]));
    assert!(matches!(
        store.commit(put("1")).await,
        Err(CommitError::Unknown(_))
    ));
    assert_eq!(value(&store).await, Some("1".into()));
    assert!(matches!(
        store.commit(put("2")).await,
        Err(CommitError::Unknown(_))
    ));
    assert_eq!(value(&store).await, Some("1".into()));
    assert!(matches!(
        store.commit(put("3")).await,
        Err(CommitError::Unknown(_))
    ));
    assert_eq!(value(&store).await, Some("1".into()), "not yet");
    let refused = store.commit(put("4")).await;
    let at = Revision(1);
    assert_eq!(
        refused,
        Err(CommitError::Refused {
            failed: vec![3],
            at,
            found: vec![],
        })
    );
    store.commit(put("5")).await.expect("no fault is left");
    assert_eq!(
        store.apply_late().await,
        [Ok(Committed {
            revision: Revision(3)
        })]
    );
    assert_eq!(value(&store).await, Some("3".into()), "it landed late");
    plan.fill();
    let full = store.commit(put("6")).await;
    assert!(matches!(
        full,
        Err(CommitError::Rejected(Rejection::NoSpace(_)))
    ));
    assert!(matches!(store.health(), Health::ReadOnly { .. }));
    plan.free();
    store.commit(put("7")).await.expect("there is space again");
}

#[tokio::test]
async fn while_its_alarm_is_raised_a_store_deletes_and_names_a_remedy() {
    let store = FaultyStore::new(Arc::new(MemoryStore::default()));
    let plan = store.plan();
    store.commit(put("1")).await.expect("there is space");
    assert_eq!(store.remedy(), None);
    plan.raise_alarm();
    let full = store.commit(put("2")).await;
    assert!(matches!(
        full,
        Err(CommitError::Rejected(Rejection::NoSpace(_)))
    ));
    let granted = store.lease_grant(Duration::from_secs(1)).await;
    assert!(granted.is_err(), "{granted:?}");
    assert!(matches!(store.health(), Health::ReadOnly { .. }));
    assert!(store.remedy().is_some());
    let deletion = Txn {
        compares: Vec::new(),
        ops: vec![Op::Delete { key: "k".into() }],
    };
    store.commit(deletion).await.expect("it needs no space");
    assert_eq!(value(&store).await, None);
    plan.free();
    store.commit(put("3")).await.expect("there is space again");
    assert_eq!(store.remedy(), None);
}

#[tokio::test]
async fn an_undisclosed_reply_is_the_same_whether_the_commit_was_applied_or_not() {
    let store = FaultyStore::new(Arc::new(MemoryStore::default()));
    let full = || Rejection::NoSpace("by plan".to_owned());
    let plan = store.plan();
    plan.next_commit(CommitFault::UndisclosedApplied(full()));
    plan.next_commit(CommitFault::UndisclosedNotApplied(full()));
    for number in ["1", "2"] {
        let reply = store.commit(put(number)).await;
        assert!(matches!(&reply, Err(CommitError::Undisclosed(why, _)) if *why == full()));
        assert_eq!(value(&store).await, Some("1".into()));
    }
}

#[tokio::test]
async fn faults_hit_what_they_match_and_no_more() {
    let store = FaultyStore::new(Arc::new(MemoryStore::default()));
    let plan = store.plan();
    let is_two = |txn: &Txn| matches!(&txn.ops[0], Op::Put { value, .. } if value == "2");
    plan.commits_matching(is_two, CommitFault::Reject(Rejection::Closed), 2);
    store.commit(put("1")).await.expect("does not match");
    for _ in 0..2 {
        let rejected = store.commit(put("2")).await;
        assert_eq!(rejected, Err(CommitError::Rejected(Rejection::Closed)));
    }
    store.commit(put("2")).await.expect("twice only");
    let error = ReadError::Unavailable("by plan".to_owned());
    plan.next_reads(ReadFault::Fail(error.clone()), 1);
    assert_eq!(store.get(b"k").await, Err(error));
    assert_eq!(value(&store).await, Some("2".into()));
    let mut watch = store
        .watch("".into(), "".into(), Revision(0))
        .await
        .expect("a watch");
    store.cut_watches();
    assert_eq!(
        watch.next().await.expect("told before").revision,
        Revision(1)
    );
    assert_eq!(
        watch.next().await.expect("told before").revision,
        Revision(2)
    );
    assert!(matches!(watch.next().await, Err(WatchEnd::Lost(_))));
}

#[tokio::test]
async fn slow_watcher_is_cut_off() {
    let store = MemoryStore::default();
    let mut watch = store
        .watch("".into(), "".into(), Revision(0))
        .await
        .expect("a watch");
    let large = bytes::Bytes::from(vec![b'x'; 1024 * 1024]);
    for number in 0..80 {
        let op = Op::Put {
            key: format!("{number}").into(),
            value: large.clone(),
            lease: None,
        };
        store
            .commit(Txn {
                compares: Vec::new(),
                ops: vec![op],
            })
            .await
            .expect("committed");
    }
    let mut told = 0;
    let end = loop {
        match watch.next().await {
            Ok(batch) => told += batch.events.len(),
            Err(end) => break end,
        }
    };
    assert_eq!(end, WatchEnd::Slow);
    assert!((60..70).contains(&told), "the bound is in bytes: {told}");
}

#[tokio::test]
async fn leases_end_by_the_clock_given() {
    let clock = Arc::new(ManualClock::default());
    let options = MemoryOptions {
        clock: Arc::clone(&clock) as Arc<dyn Clock>,
        ..Default::default()
    };
    let store = MemoryStore::new(options);
    let lease = store
        .lease_grant(Duration::from_secs(3))
        .await
        .expect("a lease");
    let op = Op::Put {
        key: "k".into(),
        value: "x".into(),
        lease: Some(lease),
    };
    store
        .commit(Txn {
            compares: Vec::new(),
            ops: vec![op],
        })
        .await
        .expect("committed");
    clock.advance(Duration::from_millis(2_999));
    assert!(value(&store).await.is_some());
    store.lease_keep_alive(lease).await.expect("in time");
    clock.advance(Duration::from_millis(2_999));
    assert!(value(&store).await.is_some());
    clock.advance(Duration::from_millis(1));
    assert!(value(&store).await.is_none());
    assert!(store.lease_keep_alive(lease).await.is_err(), "too late");
}
