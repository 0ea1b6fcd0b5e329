//! A store that refuses or does not reply, and after that nothing happens to the plane but what its
//! replica does by itself: it falls asleep, moves, is deleted, and is requested again.

use super::*;
use crate::membership::member_record::member_key;
use crate::records::fence_key;
use polyplane_storage::{CommitFault, Rejection};
use std::task::Poll;

/// The fault with which a replica's store answers every commit.
#[derive(Debug, Clone, Copy)]
enum Trouble {
    Full,
    Silent,
}

const BOTH: [Trouble; 2] = [Trouble::Full, Trouble::Silent];

impl Trouble {
    /// Makes every commit of planes meet the fault from now on. Member keys are exempt, so the
    /// replica lives.
    fn begins(self, replica: &Replica) {
        let plan = replica.store.plan();
        let fault = match self {
            Self::Full => CommitFault::Reject(Rejection::NoSpace("by plan".into())),
            Self::Silent => CommitFault::UnknownNotApplied,
        };
        let of_planes = |txn: &Txn| {
            let planes = txn.ops.iter().filter(|op| {
                op.key().starts_with(b"p/plane-")
                    || String::from_utf8_lossy(op.key()).contains("plane-")
            });
            planes.count() > 0
        };
        plan.commits_matching(of_planes, fault, usize::MAX);
    }
}

/// Makes three writes that the store does not apply, so that the plane is read-only or unsettled.
async fn three_refused_writes(plane: &Arc<Plane>) {
    for _ in 0..3 {
        let write = Write {
            operations: vec![put("x", "refused")],
            deadline: Some(Instant::now() + Duration::from_millis(50)),
            ..Write::default()
        };
        plane.submit(write).await.expect_err("the store refuses it");
    }
}

async fn one_with_a_plane() -> (Arc<Town>, Arc<Replica>, Birth, Arc<Plane>) {
    let town = Town::new();
    let a = town.join("a").await;
    let birth = town.plane_of("a", &["a"]).await;
    town.write(&birth, "x", "1").await;
    let plane = a.planes.awake(&birth.id).expect("it was just written to");
    (town, a, birth, plane)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_plane_that_would_sleep_while_its_store_refuses_serves_on_and_writes_afterwards() {
    for store in BOTH {
        let (town, a, birth, plane) = one_with_a_plane().await;
        store.begins(&a);
        three_refused_writes(&plane).await;
        let all = a.planes.slots();
        let (planes, deadline) = (Arc::clone(&a.planes), Duration::from_millis(300));
        // The release continues even if its caller stops waiting.
        let sleeping = tokio::spawn(async move { planes.put_to_sleep(all).await });
        let _ = tokio::time::timeout(deadline, sleeping).await;
        if let Trouble::Full = store {
            assert_eq!(town.read(&birth, "x").await.as_deref(), Some("1"));
        }
        a.store.plan().clear();
        // No request arrives for a while; then one does.
        sleep(Duration::from_millis(1500)).await;
        assert_eq!(town.read(&birth, "x").await.as_deref(), Some("1"));
        town.write(&birth, "x", "2").await;
        a.planes.put_to_sleep(a.planes.slots()).await;
        assert!(a.planes.awake(&birth.id).is_none(), "{store:?}: it sleeps");
        assert_eq!(town.read(&birth, "x").await.as_deref(), Some("2"));
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_plane_that_is_read_only_because_it_could_not_sleep_says_why() {
    let (_town, a, _birth, plane) = one_with_a_plane().await;
    Trouble::Full.begins(&a);
    let planes = Arc::clone(&a.planes);
    let sleeping = tokio::spawn(async move {
        loop {
            planes.put_to_sleep(planes.slots()).await;
            tokio::task::yield_now().await;
        }
    });
    // Kept when it is seen: a release that is tried again pauses the plane.
    let seen = Mutex::new(None);
    until("it is read-only", || {
        let why = plane.read_only();
        let is_read_only = why.is_some();
        *seen.lock() = why;
        is_read_only
    })
    .await;
    sleeping.abort();
    let why = seen.into_inner().expect("it was seen");
    assert!(why.contains("release"), "{why}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_plane_whose_store_is_full_before_a_commit_is_settled_refuses_writes_and_goes_on() {
    for unknown in [CommitFault::UnknownApplied, CommitFault::UnknownNotApplied] {
        let is_applied = unknown == CommitFault::UnknownApplied;
        let (town, a, birth, plane) = one_with_a_plane().await;
        let of_objects = |txn: &Txn| txn.ops.iter().any(|op| op.key().starts_with(b"p/plane-"));
        a.store.plan().commits_matching(of_objects, unknown, 1);
        Trouble::Full.begins(&a);
        let write = |value: &str| Write {
            operations: vec![put("x", value)],
            ..Write::default()
        };
        let (writer, unsettled) = (Arc::clone(&plane), write("2"));
        let unsettled = tokio::spawn(async move { writer.submit(unsettled).await });
        until("the store has refused the fence", || {
            plane.read_only().is_some()
        })
        .await;
        let refused = plane.submit(write("refused")).await;
        assert!(
            matches!(refused, Err(SubmitError::ReadOnly(_))),
            "{refused:?}"
        );
        assert_eq!(town.read(&birth, "x").await.as_deref(), Some("1"));
        assert!(!unsettled.is_finished(), "nobody knows yet");
        a.store.plan().clear();
        let answer = unsettled.await.expect("it does not panic");
        assert_eq!(answer.is_ok(), is_applied, "{answer:?}");
        let kept = if is_applied { "2" } else { "1" };
        assert_eq!(town.read(&birth, "x").await.as_deref(), Some(kept));
        town.write(&birth, "x", "3").await;
        assert_eq!(town.read(&birth, "x").await.as_deref(), Some("3"));
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_plane_moves_and_is_deleted_once_its_store_takes_writes_again() {
    for store in BOTH {
        let town = Town::new();
        let a = town.join("a").await;
        let birth = town.plane_of("b", &["a", "b"]).await;
        town.write(&birth, "x", "1").await;
        let plane = a.planes.awake(&birth.id).expect("it was just written to");
        store.begins(&a);
        three_refused_writes(&plane).await;
        let b = town.join("b").await;
        // The hand-off is attempted, and the store refuses it or does not reply.
        sleep(Duration::from_millis(700)).await;
        assert!(b.planes.awake(&birth.id).is_none());
        a.store.plan().clear();
        until("b has it", || b.planes.awake(&birth.id).is_some()).await;
        assert_eq!(town.read(&birth, "x").await.as_deref(), Some("1"));
        town.write(&birth, "x", "2").await;
        let at_b = b.planes.awake(&birth.id).expect("it is there");
        store.begins(&b);
        three_refused_writes(&at_b).await;
        let (planes, gone) = (Arc::clone(&b.planes), birth.clone());
        let refused = tokio::spawn(async move { planes.delete(&gone).await });
        let _ = tokio::time::timeout(Duration::from_millis(300), refused).await;
        b.store.plan().clear();
        let deadline = Instant::now() + PATIENCE;
        while let Err(error) = b.planes.delete(&birth).await {
            assert!(
                Instant::now() < deadline,
                "{store:?}: its deletion loops: {error:?}"
            );
            sleep(Duration::from_millis(20)).await;
        }
        assert!(b.planes.awake(&birth.id).is_none());
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_wake_that_fails_leaves_nothing_behind() {
    let (town, a, birth, _) = one_with_a_plane().await;
    a.planes.put_to_sleep(a.planes.slots()).await;
    let unreadable = polyplane_storage::ReadError::Corrupt("by plan".into());
    // The fence is read and acquired, but loading the plane fails.
    for reads in [1, 2, 3] {
        let plan = a.store.plan();
        plan.next_reads(polyplane_storage::ReadFault::Delay(Duration::ZERO), reads);
        plan.next_reads(polyplane_storage::ReadFault::Fail(unreadable.clone()), 8);
        let _ = tokio::time::timeout(Duration::from_millis(400), a.planes.wake(&birth)).await;
        plan.clear();
        assert_eq!(town.read(&birth, "x").await.as_deref(), Some("1"));
        town.write(&birth, "x", "1").await;
        a.planes.put_to_sleep(a.planes.slots()).await;
        assert!(a.planes.awake(&birth.id).is_none(), "it sleeps");
    }
}

/// A plane whose hand-off task died after it had sent the release: the plane in memory is paused
/// and has no tenure. A write and a watch wait for it.
struct Orphan {
    town: Arc<Town>,
    a: Arc<Replica>,
    birth: Birth,
    write: tokio::task::JoinHandle<Result<Committed, SubmitError>>,
    watcher: polyplane_plane::Watcher,
}

async fn dead_hand_off() -> Orphan {
    let (town, a, birth, plane) = one_with_a_plane().await;
    let scope = polyplane_plane::WatchScope::Prefix(key("x").resource_prefix());
    let from = polyplane_plane::WatchFrom::After(plane.snapshot().version());
    let watcher = plane.watch(scope, from).await.expect("it waits for events");
    // The write arrives while the plane is paused, before its tenure ends.
    let paused = plane.pause(Instant::now() + PATIENCE).await;
    paused.expect("nothing is in flight");
    let write = waiting_write(&plane).await;
    Trouble::Silent.begins(&a);
    let slot = slot_of(&a, &birth);
    let (planes, leaving) = (Arc::clone(&a.planes), Arc::clone(&slot));
    let dying = tokio::spawn(async move { planes.hand_off(&leaving, None).await });
    until("its last word is sent", || slot.fence.is_relinquishing()).await;
    dying.abort();
    dying.await.expect_err("it was aborted");
    a.store.plan().clear();
    Orphan {
        town,
        a,
        birth,
        write,
        watcher,
    }
}

fn slot_of(replica: &Replica, birth: &Birth) -> Arc<crate::planes::plane_slot::PlaneSlot> {
    let slots = replica.planes.slots().into_iter();
    let mut slots = slots.filter(|slot| slot.birth.id == birth.id);
    slots.next().expect("the plane has a slot")
}

/// Returns a write that waits because the plane is paused.
async fn waiting_write(
    plane: &Arc<Plane>,
) -> tokio::task::JoinHandle<Result<Committed, SubmitError>> {
    let write = Write {
        operations: vec![put("x", "2")],
        deadline: Some(Instant::now() + Duration::from_secs(5)),
        ..Write::default()
    };
    let (writer, (tell, told)) = (Arc::clone(plane), tokio::sync::oneshot::channel());
    let waits = tokio::spawn(async move {
        let mut answer = std::pin::pin!(writer.submit(write));
        let first = std::future::poll_fn(|context| Poll::Ready(answer.as_mut().poll(context)));
        assert!(first.await.is_pending(), "a paused plane takes no write");
        tell.send(()).expect("the test waits");
        answer.await
    });
    told.await.expect("the write waits");
    waits
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_hand_off_that_finds_a_word_that_was_not_said_resumes_the_plane() {
    let Orphan {
        town,
        a,
        birth,
        write,
        watcher: _watcher,
    } = dead_hand_off().await;
    let slot = slot_of(&a, &birth);
    // Another task began to call the release off, and died too.
    drop(slot.fence.step(polyplane_fencing::Event::CallOff));
    assert!(!slot.fence.holds(), "nothing is held until it is settled");
    let parted = a.planes.hand_off(&slot, None).await;
    let kept = matches!(parted, crate::planes::release::HandOffOutcome::Kept(_));
    assert!(kept && slot.fence.holds(), "{parted:?}");
    let written = write.await.expect("it does not panic");
    written.expect("what waited is written, without a further request");
    // Nothing of this remains: the plane falls asleep and wakes like any other.
    a.planes.put_to_sleep(a.planes.slots()).await;
    assert!(a.planes.awake(&birth.id).is_none(), "it sleeps");
    assert_eq!(town.read(&birth, "x").await.as_deref(), Some("2"));
}

/// The next task that finds the unfinished release of the dead one.
#[derive(Debug, Clone, Copy)]
enum Finder {
    HandOff,
    Delete,
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn whoever_drives_a_dead_tasks_word_on_ends_the_plane_in_memory() {
    for finder in [Finder::HandOff, Finder::Delete] {
        let Orphan {
            town,
            a,
            birth,
            write,
            mut watcher,
        } = dead_hand_off().await;
        match finder {
            Finder::HandOff => {
                let parted = a.planes.hand_off(&slot_of(&a, &birth), None).await;
                assert_eq!(parted, crate::planes::release::HandOffOutcome::Released);
            }
            Finder::Delete => a.planes.delete(&birth).await.expect("it is deleted"),
        }
        // If the plane were only dropped from the map, the write and the watch would wait for ever.
        let lost = write.await.expect("it does not panic");
        assert!(
            matches!(lost, Err(SubmitError::Lost)),
            "{finder:?}: {lost:?}"
        );
        let told = tokio::time::timeout(PATIENCE, watcher.next()).await;
        let closed = matches!(told, Ok(polyplane_plane::Next::Closed(_)));
        assert!(closed, "{finder:?}: {told:?}");
        match finder {
            Finder::HandOff => assert_eq!(town.read(&birth, "x").await.as_deref(), Some("1")),
            Finder::Delete => assert!(a.planes.wake(&birth).await.is_err()),
        }
    }
}

/// Makes the store refuse every change of a replica's member key, and starts a drain, which announces itself in it.
fn drain_that_is_refused(a: &Arc<Replica>) -> tokio::task::JoinHandle<()> {
    let key = member_key(a.ring.id());
    let is_of_member = move |txn: &Txn| txn.ops.iter().any(|op| op.key() == &*key);
    let full = CommitFault::Reject(Rejection::NoSpace("by plan".into()));
    let plan = a.store.plan();
    plan.commits_matching(is_of_member, full, usize::MAX);
    let ring = Arc::clone(&a.ring);
    tokio::spawn(async move { ring.announce_drain().await })
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_replica_whose_drain_is_refused_keeps_its_lease_and_its_planes() {
    let (town, a, birth, _plane) = one_with_a_plane().await;
    let announced = drain_that_is_refused(&a);
    // Far longer than its member key lasts without renewal.
    sleep(3 * options("a").member_ttl).await;
    assert!(!announced.is_finished());
    assert_eq!(a.ring.stats().lives_lost, 0);
    assert_eq!(town.read(&birth, "x").await.as_deref(), Some("1"));
    a.store.plan().clear();
    announced.await.expect("it does not panic");
    let is_draining = || a.ring.stats().draining == 1;
    until("it is draining", is_draining).await;
}

/// On a full store no replica can acquire a plane, so one with planes serves them to the end.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn on_a_full_store_only_a_replica_with_planes_waits_for_its_drain() {
    let town = Town::new();
    let (a, b) = (town.join("a").await, town.join("b").await);
    for one in [&a, &b] {
        until("both are seen", || members(one) == ["a", "b"]).await;
    }
    let birth = town.plane_of("a", &["a", "b"]).await;
    town.write(&birth, "x", "1").await;
    for one in [&a, &b] {
        one.store.plan().fill();
    }
    let deadline = Instant::now() + PATIENCE;
    assert!(
        b.planes.drain(deadline).await,
        "it has nothing to hand over"
    );
    let soon = Instant::now() + Duration::from_secs(1);
    assert!(!a.planes.drain(soon).await);
    assert_eq!(a.ring.stats().draining, 0);
    assert_eq!(town.read(&birth, "x").await.as_deref(), Some("1"));
    let closed = tokio::time::timeout(PATIENCE, b.planes.close()).await;
    closed.expect("a full store removes its member key");
    until("b is gone", || members(&a) == ["a"]).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_drain_ends_with_the_life_in_which_it_was_refused() {
    let (town, a, _birth, _plane) = one_with_a_plane().await;
    let announced = drain_that_is_refused(&a);
    let txn = Txn {
        compares: Vec::new(),
        ops: vec![Op::Delete {
            key: member_key(a.ring.id()),
        }],
    };
    town.store.commit(txn).await.expect("it is removed");
    let ended = tokio::time::timeout(PATIENCE, announced).await;
    ended
        .expect("nobody waits for it")
        .expect("it does not panic");
    until("its life is over", || a.ring.stats().lives_lost == 1).await;
    assert!(members(&a).is_empty(), "it joins no more");
    let again = tokio::time::timeout(PATIENCE, a.ring.announce_drain()).await;
    again.expect("it has drained");
}

/// Makes the next put of a plane's fence get a reply that does not say whether it was applied, and the
/// store refuse every later commit of planes.
fn fills_up_at_the_fence(replica: &Replica, birth: &Birth, is_applied: bool) {
    let full = Rejection::NoSpace("by plan".into());
    let undisclosed = match is_applied {
        true => CommitFault::UndisclosedApplied(full),
        false => CommitFault::UndisclosedNotApplied(full),
    };
    let fence = fence_key(&birth.id);
    let of_fence = move |txn: &Txn| txn.ops.iter().any(|op| *op.key() == fence);
    let plan = replica.store.plan();
    plan.commits_matching(of_fence, undisclosed, 1);
    Trouble::Full.begins(replica);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_release_that_a_full_store_does_not_disclose_is_settled_by_a_read() {
    for (is_bulk, is_applied) in [(false, false), (false, true), (true, false), (true, true)] {
        let case = format!("in bulk: {is_bulk}, applied: {is_applied}");
        let (town, a, birth, _plane) = one_with_a_plane().await;
        fills_up_at_the_fence(&a, &birth, is_applied);
        let slot = slot_of(&a, &birth);
        let release = async {
            match is_bulk {
                true => a.planes.put_to_sleep(vec![Arc::clone(&slot)]).await,
                false => {
                    let _ = a.planes.hand_off(&slot, None).await;
                }
            }
        };
        let released = tokio::time::timeout(PATIENCE / 4, release).await;
        assert!(released.is_ok(), "{case}: it does not wait for space");
        assert_eq!(slot.fence.holds(), !is_applied, "{case}");
        assert_eq!(
            a.planes.awake(&birth.id).is_some(),
            !is_applied,
            "{case}: what was not applied never will be, so the plane goes on"
        );
        if !is_applied {
            let read = town.read(&birth, "x").await;
            assert_eq!(read.as_deref(), Some("1"), "{case}");
        }
        a.store.plan().clear();
        town.write(&birth, "x", "2").await;
        assert_eq!(town.read(&birth, "x").await.as_deref(), Some("2"), "{case}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_acquire_that_a_full_store_does_not_disclose_is_settled_by_a_read() {
    for is_applied in [false, true] {
        let (town, a, birth, _plane) = one_with_a_plane().await;
        a.planes.put_to_sleep(a.planes.slots()).await;
        fills_up_at_the_fence(&a, &birth, is_applied);
        let woken = tokio::time::timeout(PATIENCE / 4, a.planes.wake(&birth)).await;
        match (woken.expect("it does not wait for space"), is_applied) {
            (Ok(plane), true) => {
                assert_eq!(value(&plane.snapshot(), "x").as_deref(), Some("1"));
            }
            (Err(WakeError::Unavailable(Unavailable::StoreReadOnly)), false) => {}
            (woken, _) => panic!("applied: {is_applied}, and {:?}", woken.err()),
        }
        a.store.plan().clear();
        town.write(&birth, "x", "2").await;
        assert_eq!(town.read(&birth, "x").await.as_deref(), Some("2"));
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_plane_of_a_replica_that_died_says_that_the_store_is_full_until_there_is_space() {
    let town = Town::new();
    let (a, _b) = (town.join("a").await, town.join("b").await);
    until("both are seen", || members(&a) == ["a", "b"]).await;
    let birth = town.plane_of("b", &["a", "b"]).await;
    town.write(&birth, "x", "1").await;
    a.store.plan().raise_alarm();
    town.crash("b");
    until("b is gone", || members(&a) == ["a"]).await;
    let refused = a.planes.wake(&birth).await.err();
    assert!(
        matches!(
            refused,
            Some(WakeError::Unavailable(Unavailable::StoreReadOnly))
        ),
        "{refused:?}"
    );
    a.store.plan().free();
    assert_eq!(town.read(&birth, "x").await.as_deref(), Some("1"));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn while_a_store_is_full_no_plane_pauses_for_a_hand_off_that_it_would_refuse() {
    let town = Town::new();
    let a = town.join("a").await;
    let birth = town.plane_of("b", &["a", "b"]).await;
    town.write(&birth, "x", "1").await;
    a.store.plan().raise_alarm();
    let b = town.join("b").await;
    until("a sees b", || members(&a) == ["a", "b"]).await;
    // Longer than the pause between two searches for planes that belong elsewhere.
    sleep(Duration::from_millis(1200)).await;
    assert_eq!(a.planes.stats().hand_offs_failed, 0);
    assert!(a.planes.awake(&birth.id).is_some());
    a.store.plan().free();
    until("b has it", || b.planes.awake(&birth.id).is_some()).await;
    assert_eq!(town.read(&birth, "x").await.as_deref(), Some("1"));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_replica_that_starts_on_a_full_store_says_why_and_joins_once_there_is_space() {
    for grants_leases in [false, true] {
        let memory = MemoryStore::new(MemoryOptions::default());
        let store = Arc::new(FaultyStore::new(Arc::new(memory)));
        let words: &[&str] = match grants_leases {
            true => &["takes no writes: no space"],
            false => &["takes no writes: no space", "disarm the alarm"],
        };
        match grants_leases {
            true => store.plan().fill(),
            false => store.plan().raise_alarm(),
        }
        let ring = Ring::newcomer(store.clone(), options("a"), Arc::new(NoPeers)).await;
        let ring = ring.expect("the store is for it");
        let joining = Arc::clone(&ring);
        let joining = tokio::spawn(async move { joining.join().await });
        for words in words.iter().copied() {
            let says = || ring.join_problem().is_some_and(|why| why.contains(words));
            until(words, says).await;
        }
        assert!(!joining.is_finished() && ring.holder().is_none());
        store.plan().free();
        let joined = joining.await.expect("no panic");
        joined.expect("there is space");
        assert_eq!(ring.join_problem(), None);
        ring.leave().await;
    }
}
