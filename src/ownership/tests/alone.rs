//! One replica that has the store to itself runs the same code and waits for no other replica.

use super::*;
use polyplane_storage::{SledOptions, SledStore};

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_sole_replica_serves_and_finds_everything_again() {
    let town = Town::new();
    let birth = town.plane("a").await;
    {
        let replica = town.join_as(ReplicaOptions::alone(
            id("solo"),
            "h:1".parse().expect("ok"),
        ));
        let replica = replica.await;
        assert_eq!(replica.planes.location(&birth), PlaneLocation::Here);
        town.write(&birth, "x", "1").await;
        assert_eq!(replica.planes.stats().owned, 1);
        replica.planes.close().await;
        assert_eq!(replica.planes.stats().owned, 0, "everything is released");
    }
    let replica = town.join("solo").await;
    let began = Instant::now();
    assert_eq!(town.read(&birth, "x").await.as_deref(), Some("1"));
    // The predecessor released the fence, so rule 1 requires no wait.
    assert!(began.elapsed() < wait_of(replica.ring.options().terms));
    assert_eq!(replica.planes.stats().taken_after_wait, 0);
}

/// PROTOCOL 22: opening the file proves every earlier incarnation dead.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn after_a_crash_an_embedded_store_makes_nobody_wait() {
    let folder = tempfile::tempdir().expect("a folder");
    let open = || {
        let store = SledStore::open(folder.path(), SledOptions::default());
        Arc::new(store.expect("it opens"))
    };
    let store = open();
    let town = Town::over(store.clone());
    town.join("solo").await;
    let birth = town.plane("a").await;
    town.write(&birth, "x", "1").await;
    let crashed = town.crash("solo");
    // Nothing is sent to the store: the fence stays Held by the dead incarnation.
    crashed.planes.closing().cancel();
    store.close().await;
    drop((crashed, town, store));
    let town = Town::over(open());
    let began = Instant::now();
    let replica = town.join("solo").await;
    assert_eq!(town.read(&birth, "x").await.as_deref(), Some("1"));
    let took = began.elapsed();
    assert!(took < wait_of(replica.ring.options().terms), "{took:?}");
    assert_eq!(replica.planes.stats().taken_after_wait, 0);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_plane_that_sleeps_has_a_released_fence() {
    let town = Town::new();
    let replica = town.join("solo").await;
    let births = [
        town.plane("a").await,
        town.plane("b").await,
        town.plane("c").await,
    ];
    for birth in &births {
        town.write(birth, "x", "1").await;
    }
    let before = revision(&town).await;
    replica.planes.put_to_sleep(replica.planes.slots()).await;
    assert_eq!(
        revision(&town).await.0,
        before.0 + 1,
        "one transaction for all"
    );
    assert_eq!(replica.planes.stats().owned, 0);
    assert_eq!(replica.planes.stats().released_asleep, 3);
    assert!(replica.planes.slots().is_empty(), "nothing is left of them");
    let began = Instant::now();
    assert_eq!(town.read(&births[0], "x").await.as_deref(), Some("1"));
    assert!(began.elapsed() < wait_of(replica.ring.options().terms));
}

/// PROTOCOL 17: a fence in the store counts; and adopting it waits (7).
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_acquire_of_unknown_outcome_is_adopted_with_the_wait() {
    let town = Town::new();
    let replica = town.join("solo").await;
    let birth = town.plane("a").await;
    let fence = crate::records::fence_key(&birth.id);
    let puts = move |txn: &Txn| txn.ops.iter().any(|op| *op.key() == fence);
    let fault = polyplane_storage::CommitFault::UnknownApplied;
    replica.store.plan().commits_matching(puts, fault, 1);
    let began = Instant::now();
    town.write(&birth, "x", "1").await;
    assert!(began.elapsed() >= wait_of(replica.ring.options().terms));
    assert_eq!(replica.planes.stats().taken_after_wait, 1);
}

/// PROTOCOL 1: an unknown commit is settled by putting the fence again.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_commit_of_unknown_outcome_is_settled_by_a_write() {
    let town = Town::new();
    let replica = town.join("solo").await;
    let birth = town.plane("a").await;
    town.write(&birth, "x", "1").await;
    for fault in [
        polyplane_storage::CommitFault::UnknownApplied,
        polyplane_storage::CommitFault::UnknownNotApplied,
        polyplane_storage::CommitFault::UnknownLate,
    ] {
        let of_plane = |txn: &Txn| txn.ops.iter().any(|op| op.key().starts_with(b"p/a/"));
        replica.store.plan().commits_matching(of_plane, fault, 1);
        let plane = town.find(&birth).await;
        let written = plane.submit(Write {
            operations: vec![put("y", "2")],
            ..Write::default()
        });
        // The write was applied, or it was proven not to be and sent again.
        written.await.expect("an answer to an unknown outcome");
        for late in replica.store.apply_late().await {
            late.expect_err("the barrier stands before it");
        }
        // The tenure continues.
        town.write(&birth, "z", "3").await;
        assert_eq!(town.read(&birth, "z").await.as_deref(), Some("3"));
    }
    assert_eq!(replica.planes.stats().taken, 1, "one tenure all the while");
}

/// PROTOCOL 10: a deleted plane never comes back, and its fence is removed after its directory
/// record.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_deleted_plane_stays_deleted() {
    let town = Town::new();
    let replica = town.join("solo").await;
    let birth = town.plane("a").await;
    town.write(&birth, "x", "1").await;
    replica.planes.delete(&birth).await.expect("it goes");
    let left = polyplane_storage::RangeRequest::prefix("p/a/");
    let left = town.store.range(left).await.expect("it answers");
    assert!(left.items.is_empty(), "{:?}", left.items);
    let woken = replica.planes.wake(&birth).await;
    assert!(matches!(woken, Err(WakeError::Deleted)), "{woken:?}");
    replica.planes.delete(&birth).await.expect("again is fine");
    replica
        .planes
        .remove_deleted_fence(&birth)
        .await
        .expect("it answers");
    let fence = crate::records::fence_key(&birth.id);
    let kept = town.store.get(&fence).await.expect("it answers").1;
    assert!(kept.is_some(), "the directory record is still there");
    let directory = birth.directory.clone().expect("a tenant has one");
    let txn = Txn {
        compares: Vec::new(),
        ops: vec![Op::Delete { key: directory.key }],
    };
    town.store.commit(txn).await.expect("it is removed");
    replica
        .planes
        .remove_deleted_fence(&birth)
        .await
        .expect("it answers");
    assert!(
        town.store
            .get(&fence)
            .await
            .expect("it answers")
            .1
            .is_none()
    );
    // An old directory does not restore the plane.
    let woken = replica.planes.wake(&birth).await;
    assert!(matches!(woken, Err(WakeError::Deleted)), "{woken:?}");
    assert!(
        town.store
            .get(&fence)
            .await
            .expect("it answers")
            .1
            .is_none()
    );
}

/// The root's owner died between the removal of a plane's record and the removal of its fence.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_deleted_planes_fence_that_was_left_behind_goes() {
    let town = Town::new();
    let replica = town.join("solo").await;
    let (gone, going) = (town.plane("gone").await, town.plane("going").await);
    for birth in [&gone, &going] {
        town.write(birth, "x", "1").await;
        replica.planes.delete(birth).await.expect("it goes");
    }
    let held = town.plane("held").await;
    town.write(&held, "x", "1").await;
    let directory = gone.directory.clone().expect("a tenant has one");
    let txn = Txn {
        compares: Vec::new(),
        ops: vec![Op::Delete { key: directory.key }],
    };
    town.store.commit(txn).await.expect("it is removed");
    let swept = replica.planes.sweep_fences().await;
    assert_eq!(swept.expect("it answers"), 0, "no directory is followed");
    follow_directory(&town, &replica).await;
    let swept = replica.planes.sweep_fences().await;
    assert_eq!(swept.expect("it answers"), 1);
    let fence = |birth: &Birth| {
        let (store, key) = (
            Arc::clone(&town.store),
            crate::records::fence_key(&birth.id),
        );
        async move { store.get(&key).await.expect("it answers").1 }
    };
    assert!(fence(&gone).await.is_none());
    assert!(fence(&going).await.is_some(), "its record is still there");
    assert!(fence(&held).await.is_some());
}

/// A suspended plane sleeps although it is watched and used, wakes for nobody, and can be deleted.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_suspended_plane_sleeps_until_it_is_resumed() {
    let town = Town::new();
    let replica = town.join("solo").await;
    follow_directory(&town, &replica).await;
    let birth = town.plane("p").await;
    town.write(&birth, "x", "1").await;
    let wish = async |value: &str| {
        let key = birth.directory.as_ref().expect("it has a row").key.clone();
        let put = Op::Put {
            key,
            value: external::encode(&object("p", value)),
            lease: None,
        };
        let txn = Txn {
            compares: Vec::new(),
            ops: vec![put],
        };
        town.store.commit(txn).await.expect("it is put");
        let suspended = value == SUSPENDED;
        until("the wish is known", || {
            replica.planes.is_suspended("p") == suspended
        })
        .await;
    };
    replica.planes.suspend("p").await;
    assert!(
        replica.planes.awake("p").is_some(),
        "nobody wants it suspended"
    );
    for _ in 0..2 {
        let plane = replica.planes.awake("p").expect("it is in use");
        let scope = polyplane_plane::WatchScope::Prefix(key("x").resource_prefix());
        let from = polyplane_plane::WatchFrom::Now;
        let _watcher = plane.watch(scope, from).await.expect("it begins");
        wish(SUSPENDED).await;
        replica.planes.suspend("p").await;
        assert!(replica.planes.awake("p").is_none());
        assert_eq!(replica.planes.stats().owned, 0);
        let woken = replica.planes.wake(&birth).await;
        assert!(matches!(woken, Err(WakeError::Suspended)), "{woken:?}");
        wish("").await;
        town.write(&birth, "y", "2").await;
        assert_eq!(town.read(&birth, "x").await.as_deref(), Some("1"));
    }
    // The sweep finds a plane that was woken before its row arrived.
    wish(SUSPENDED).await;
    replica.planes.sweep(&|_| true).await;
    assert!(replica.planes.awake("p").is_none());
    replica.planes.delete(&birth).await.expect("it goes");
}

/// A plane whose load fails after its fence was acquired is left by the sweep, like one that is awake.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_fence_whose_plane_could_not_be_loaded_is_released() {
    let town = Town::new();
    let replica = town.join("solo").await;
    let mut birth = town.plane("p").await;
    birth.layer = polyplane_plane::LayerHash("unknown".to_owned());
    let woken = replica.planes.wake(&birth).await;
    assert!(matches!(woken, Err(WakeError::Open(_))), "{woken:?}");
    replica.planes.sweep(&|_| false).await;
    assert_eq!(replica.planes.stats().owned, 1, "it may be tried again");
    let row = birth.directory.as_ref().expect("it has a row").key.clone();
    let put = Op::Put {
        key: row,
        value: external::encode(&object("p", SUSPENDED)),
        lease: None,
    };
    let txn = Txn {
        compares: Vec::new(),
        ops: vec![put],
    };
    town.store.commit(txn).await.expect("it is put");
    follow_directory(&town, &replica).await;
    until("the row is known", || replica.planes.is_suspended("p")).await;
    replica.planes.sweep(&|_| false).await;
    assert_eq!(replica.planes.stats().owned, 0);
    assert!(replica.planes.known("p").is_none(), "nothing is left of it");
}

/// An operator can read all fences: each as the store has it, page by page, at one revision.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn fences_are_read_in_pages_of_one_revision() {
    let town = Town::new();
    let replica = town.join("a").await;
    let mut births = Vec::new();
    for name in ["p1", "p2", "p3", "p4"] {
        births.push(town.plane(name).await);
    }
    // The last plane is never used.
    for birth in &births[..3] {
        town.write(birth, "x", "1").await;
    }
    let slept = replica.planes.slots().into_iter();
    let slept = slept.filter(|slot| slot.birth.id == "p1").collect();
    replica.planes.put_to_sleep(slept).await;
    replica.planes.delete(&births[1]).await.expect("it goes");
    let damaged = Op::Put {
        key: crate::records::fence_key("p5"),
        value: "{".into(),
        lease: None,
    };
    let txn = Txn {
        ops: vec![damaged],
        ..Txn::default()
    };
    town.store.commit(txn).await.expect("it is put");
    let first = replica.planes.fences(b"", None, 2).await.expect("fine");
    assert!(first.more);
    let at = Some(first.revision);
    // A change between two pages is in none of them.
    town.write(&births[3], "x", "1").await;
    let behind = b"p2\0";
    let rest = replica.planes.fences(behind, at, 10).await.expect("fine");
    assert!(!rest.more && rest.revision == first.revision);
    let shown: Vec<(String, Option<&str>, Option<u64>)> = [&first, &rest]
        .into_iter()
        .flat_map(|page| &page.fences)
        .map(|row| {
            let fence = row.fence.as_ref().ok();
            let state = fence.map(|fence| fence.state);
            let epoch = fence.map(|fence| fence.epoch);
            (row.plane.clone(), state, epoch)
        })
        .collect();
    let row = |plane: &str, state, epoch| (plane.to_owned(), state, epoch);
    let wanted = [
        row("p1", Some("Released"), Some(1)),
        row("p2", Some("Deleted"), Some(1)),
        row("p3", Some("Held"), Some(1)),
        row("p5", None, None),
    ];
    assert_eq!(shown, wanted);
    let released = first.fences[0].fence.as_ref().expect("it was written here");
    assert!(released.head > Some(0));
    assert!(first.fences[0].created < first.fences[0].modified);
    let one = replica.planes.fences(b"p4", None, 1).await.expect("fine");
    assert_eq!(one.fences[0].plane, "p4");
}
