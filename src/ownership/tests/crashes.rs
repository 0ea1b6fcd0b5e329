//! Owners that die or are cut off.

use super::*;
use polyplane_storage::{CommitFault, ReadFault};

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_dead_process_is_evicted_and_its_planes_are_taken() {
    let town = Town::new();
    let long = |name| ReplicaOptions {
        member_ttl: Duration::from_secs(600),
        ..options(name)
    };
    town.join_as(long("a")).await;
    let b = town.join_as(long("b")).await;
    until("b sees both", || members(&b) == ["a", "b"]).await;
    let birth = town.plane_of("a", &["a", "b"]).await;
    town.write(&birth, "x", "1").await;
    let began = Instant::now();
    let dead = town.crash("a");
    town.write(&birth, "y", "2").await;
    let took = began.elapsed();
    assert!(
        took >= wait_of(b.ring.options().terms),
        "the wait was cut short"
    );
    assert!(took < Duration::from_secs(5), "{took:?}");
    println!("from the crash to the first write: {took:?}");
    assert_eq!(town.read(&birth, "x").await.as_deref(), Some("1"));
    assert_eq!(b.ring.stats().evictions, 1);
    assert_eq!(members(&b), ["b"]);
    drop(dead);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_machine_that_vanished_is_replaced_once_its_lease_ends() {
    let town = Town::new();
    town.join("a").await;
    let b = town.join("b").await;
    until("b sees both", || members(&b) == ["a", "b"]).await;
    let birth = town.plane_of("a", &["a", "b"]).await;
    town.write(&birth, "x", "1").await;
    // No connection is refused and no call answers. In a ring of two one complaint would be half of
    // the members, so c is a member without such trouble.
    for (from, to) in [("a", "b"), ("b", "a")] {
        town.wires.cut.lock().push((id(from), id(to)));
    }
    let began = Instant::now();
    let dead = town.replicas.lock().remove("a").expect("it runs");
    dead.ring.vanish();
    town.write(&birth, "y", "2").await;
    let ttl = dead.ring.options().member_ttl;
    println!("from the loss to the first write: {:?}", began.elapsed());
    assert!(began.elapsed() < ttl + Duration::from_secs(5));
    assert_eq!(town.read(&birth, "x").await.as_deref(), Some("1"));
}

/// PROTOCOL 9 and F4: an owner that cannot reach the store commits nothing and answers nothing once
/// another replica has taken its plane.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_owner_without_the_store_answers_nothing() {
    let town = Town::new();
    let a = town.join("a").await;
    let b = town.join("b").await;
    until("b sees both", || members(&b) == ["a", "b"]).await;
    let birth = town.plane_of("a", &["a", "b"]).await;
    town.write(&birth, "x", "1").await;
    let old = a.planes.awake(&birth.id).expect("it is awake");
    // Its renewals and reads fail from now on; its process and its connections to peers continue.
    let unavailable = polyplane_storage::ReadError::Unavailable("by plan".to_owned());
    a.store
        .plan()
        .next_reads(ReadFault::Fail(unavailable), 1_000_000);
    a.store.plan().next_keep_alives_fail(1_000_000);
    until("its lease ends", || members(&b) == ["b"]).await;
    let taken = b.planes.wake(&birth).await.expect("b takes it");
    let deadline = Instant::now() + PATIENCE;
    taken.answerable(deadline).await.expect("b answers");
    let soon = Instant::now() + Duration::from_millis(100);
    assert!(old.answerable(soon).await.is_err(), "a answers beside b");
    let late = old.submit(Write {
        operations: vec![put("x", "late")],
        ..Write::default()
    });
    let late = tokio::time::timeout(PATIENCE, late)
        .await
        .expect("it is refused");
    assert!(matches!(late, Err(SubmitError::Lost)), "{late:?}");
    assert_eq!(value(&taken.snapshot(), "x").as_deref(), Some("1"));
    a.ring.vanish();
}

/// PROTOCOL 17, with two replicas: the holder does not know that it holds the fence.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_forgotten_fence_is_handed_over_when_asked_for() {
    let town = Town::new();
    let a = town.join("a").await;
    let birth = town.plane_of("b", &["a", "b"]).await;
    let fence = crate::records::fence_key(&birth.id);
    let puts = move |txn: &Txn| txn.ops.iter().any(|op| *op.key() == fence);
    a.store
        .plan()
        .commits_matching(puts, CommitFault::UnknownLate, 1);
    let planes = Arc::clone(&a.planes);
    let of_a = birth.clone();
    // The acquire gets no reply, and replica a gives up before it reads the fence again.
    let slot = planes.slot_of(&of_a).await.expect("it lives");
    let sighting = a.ring.sighting(None);
    let actions = slot.fence.step(polyplane_fencing::Event::Acquire(sighting));
    let [
        polyplane_fencing::Action::Transact {
            attempt,
            transaction,
        },
    ] = &actions[..]
    else {
        panic!("it takes what nobody has: {actions:?}");
    };
    slot.fence.send(*attempt, transaction).await;
    planes.drop_if_idle(&slot);
    a.store.apply_late().await;
    let b = town.join("b").await;
    until("a sees both", || members(&a) == ["a", "b"]).await;
    let plane = tokio::time::timeout(PATIENCE, b.planes.wake(&birth)).await;
    plane.expect("in time").expect("b gets it");
    town.write(&birth, "x", "1").await;
}

/// PROTOCOL 18: a time-out between one pair of four members does not evict.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn one_complaint_of_many_evicts_nobody_and_half_of_them_do() {
    let town = Town::new();
    let long = |name| ReplicaOptions {
        member_ttl: Duration::from_secs(600),
        ..options(name)
    };
    let mut replicas = Vec::new();
    for name in ["a", "b", "c", "d", "e", "f"] {
        replicas.push(town.join_as(long(name)).await);
    }
    for replica in &replicas {
        until("all are there", || members(replica).len() == 6).await;
    }
    town.wires.cut.lock().push((id("a"), id("b")));
    let complaint = crate::records::complaint_key(&id("a"), &id("b"));
    let deadline = Instant::now() + PATIENCE;
    while town
        .store
        .get(&complaint)
        .await
        .expect("it answers")
        .1
        .is_none()
    {
        assert!(Instant::now() < deadline, "nobody complains");
        sleep(Duration::from_millis(20)).await;
    }
    sleep(Duration::from_millis(1500)).await;
    assert_eq!(
        members(&replicas[2]).len(),
        6,
        "one complaint of five is not half"
    );
    for from in ["c", "d", "e", "f"] {
        town.wires.cut.lock().push((id(from), id("b")));
    }
    let first = replicas[1].ring.holder();
    until("b is evicted", || replicas[1].ring.stats().lives_lost > 0).await;
    until("somebody did it", || {
        let mut stats = replicas.iter().map(|replica| replica.ring.stats());
        stats.any(|stats| stats.evictions > 0)
    })
    .await;
    assert_ne!(replicas[1].ring.holder(), first);
}

/// PROTOCOL 1 across owners: a write of the next owner is not taken for one that this owner sent.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_unsettled_write_is_not_confused_with_the_next_owners() {
    let town = Town::new();
    let a = town.join("a").await;
    let b = town.join("b").await;
    until("b sees both", || members(&b) == ["a", "b"]).await;
    let birth = town.plane_of("a", &["a", "b"]).await;
    town.write(&birth, "x", "1").await;
    let old = a.planes.awake(&birth.id).expect("it is awake");
    // From now on no commit of `a` is applied, and `a` gets no reply.
    a.store
        .plan()
        .commits_matching(|_| true, CommitFault::UnknownNotApplied, 1_000_000);
    let sent = tokio::spawn(async move {
        old.submit(Write {
            operations: vec![put("y", "2")],
            ..Write::default()
        })
        .await
    });
    let unavailable = polyplane_storage::ReadError::Unavailable("by plan".to_owned());
    a.store
        .plan()
        .next_reads(ReadFault::Fail(unavailable), 1_000_000);
    a.store.plan().next_keep_alives_fail(1_000_000);
    until("its lease ends", || members(&b) == ["b"]).await;
    let taken = b.planes.wake(&birth).await.expect("b takes it");
    let same = taken.submit(Write {
        operations: vec![put("y", "2")],
        ..Write::default()
    });
    same.await.expect("b writes the same");
    // The store answers again.
    a.store.plan().clear();
    let answer = tokio::time::timeout(PATIENCE, sent)
        .await
        .expect("it is settled");
    let answer = answer.expect("no panic");
    assert!(
        matches!(
            answer,
            Err(SubmitError::Lost | SubmitError::Unavailable(_) | SubmitError::Deadline)
        ),
        "a claims what b has done: {answer:?}"
    );
    a.ring.vanish();
}

/// Connections also end if someone fills the listener, or a proxy in front of it. Unlike a refused
/// connection this does not prove that the peer is dead: one neighbour's complaint does not evict,
/// and a short trouble evicts no member.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn connections_that_end_evict_nobody_unless_for_half_of_the_ring() {
    let town = Town::new();
    let names = ["a", "b", "c", "d", "e"];
    let mut replicas = Vec::new();
    for name in names {
        replicas.push(town.join(name).await);
    }
    for replica in &replicas {
        until("all see all", || members(replica) == names).await;
    }
    // The trouble ends before a ping times out, so that no member is evicted although all complain.
    let all_to_b = ["a", "c", "d", "e"].map(|from| (id(from), id("b")));
    town.wires.ending.lock().extend(all_to_b);
    sleep(Duration::from_millis(300)).await;
    town.wires.ending.lock().clear();
    // The trouble lasts longer, but for one neighbour only.
    town.wires.ending.lock().push((id("a"), id("b")));
    sleep(Duration::from_millis(2500)).await;
    for replica in &replicas {
        assert_eq!(replica.ring.stats().evictions, 0);
        assert_eq!(members(replica), names);
    }
    town.wires.ending.lock().clear();
    // The trouble lasts for all members: the replica can serve no request, so it is evicted like
    // one that hangs.
    let all_to_b = ["a", "c", "d", "e"].map(|from| (id(from), id("b")));
    town.wires.ending.lock().extend(all_to_b);
    until("b is evicted", || replicas[1].ring.stats().lives_lost > 0).await;
}
