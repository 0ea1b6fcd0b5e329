//! Joining, leaving, and losing the member key.

use super::*;
use crate::membership::member_record::member_key;
use crate::records::{FLOOR_KEY, Floor, encode_floor};
use polyplane_plane::Answerable;
use polyplane_plane::{LayerHash, PACKED_LEVEL};
use polyplane_storage::{CommitFault, KeyValue, RangeRequest, ReadFault, Rejection};

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn members_see_each_other_come_and_go() {
    let town = Town::new();
    let a = town.join("a").await;
    assert_eq!(members(&a), ["a"]);
    let b = town.join("b").await;
    assert_eq!(members(&b), ["a", "b"]);
    until("a sees b", || members(&a) == ["a", "b"]).await;
    assert_eq!(a.ring.view().number(), b.ring.view().number());
    b.planes.close().await;
    until("a sees b go", || members(&a) == ["a"]).await;
    assert!(b.ring.over().is_cancelled());
}

/// PROTOCOL 5: a newcomer of a known name ends its predecessor's life.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn of_two_incarnations_the_newer_lives() {
    let town = Town::new();
    let old = town.join("a").await;
    let birth = town.plane("p").await;
    town.write(&birth, "x", "1").await;
    let over = old.ring.over();
    let plane = old.planes.awake("p").expect("it is awake");
    let first = old.ring.holder().expect("it lives");
    // The old process does not end: it only learns of the newcomer late.
    old.store.plan().next_reads(ReadFault::Hang, 1000);
    let new = town.join("a").await;
    let second = new.ring.holder().expect("it lives");
    assert!(second.incarnation > first.incarnation);
    assert_eq!(town.read(&birth, "x").await.as_deref(), Some("1"));
    let written = plane.submit(Write {
        operations: vec![put("x", "old")],
        ..Write::default()
    });
    let answer = tokio::time::timeout(PATIENCE, written)
        .await
        .expect("it answers");
    assert!(matches!(answer, Err(SubmitError::Lost)), "{answer:?}");
    // A refused compare proves the loss (PROTOCOL 9).
    tokio::time::timeout(PATIENCE, over.cancelled())
        .await
        .expect("the old life is over");
    assert_eq!(town.read(&birth, "x").await.as_deref(), Some("1"));
    old.ring.vanish();
}

/// PROTOCOL 5: two processes of one name do not remove each other's keys in turn.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_replica_whose_name_was_taken_joins_again_only_once_the_other_process_has_left() {
    let town = Town::new();
    let old = town.join("a").await;
    let new = town.join("a").await;
    let second = new.ring.holder().expect("it lives");
    until("the old process says why it waits", || {
        let why = old.ring.join_problem();
        why.is_some_and(|why| why.contains("another process at a:1 has joined under its name a:"))
    })
    .await;
    assert_eq!(new.ring.holder(), Some(second.clone()), "it is left alone");
    assert_eq!(old.ring.holder(), None);
    new.planes.close().await;
    until("the old process is a member again", || {
        let holder = old.ring.holder();
        holder.is_some_and(|holder| holder.incarnation > second.incarnation)
    })
    .await;
    assert_eq!(old.ring.join_problem(), None);
    assert_eq!(old.ring.stats().lives_lost, 1);
}

/// PROTOCOL 5: a process that waits for its name knows whose the planes are.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_process_whose_name_was_taken_places_planes_at_the_other_one() {
    let town = Town::new();
    let old = town.join("a").await;
    let new = town.join("a").await;
    let birth = town.plane("p").await;
    town.write(&birth, "x", "1").await;
    let there = PlaneLocation::There(new.ring.own_member().expect("it is in"));
    until("the old process knows where it is", || {
        old.planes.location(&birth) == there
    })
    .await;
    assert_eq!(new.planes.location(&birth), PlaneLocation::Here);
    let figures = old.planes.figures_of_ring().await;
    let sized: Vec<&str> = figures.planes.iter().map(|of| of.plane.as_str()).collect();
    assert_eq!((sized, figures.silent), (vec!["p"], Vec::new()));
    old.ring.vanish();
}

/// PROTOCOL 5: also one that joins while this process tries to.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_process_that_joins_under_the_name_of_a_waiting_one_is_left_alone() {
    let town = Town::new();
    let old = town.join("a").await;
    let over = old.ring.over();
    // The old process has found its name free, and is kept in the middle of its join.
    let full = CommitFault::Reject(Rejection::NoSpace("by plan".into()));
    let plan = old.store.plan();
    plan.commits_matching(puts_the_member, full, usize::MAX);
    let remove = Op::Delete {
        key: member_key(&id("a")),
    };
    let txn = Txn {
        compares: Vec::new(),
        ops: vec![remove],
    };
    town.store.commit(txn).await.expect("it is removed");
    over.cancelled().await;
    let why = || old.ring.join_problem().unwrap_or_default();
    until("the store keeps it from joining", || {
        why().contains("because its store")
    })
    .await;
    let new = town.join("a").await;
    let second = new.ring.holder().expect("it lives");
    until("the old process says why it waits", || {
        why().contains("another process at a:1 has joined under its name a:")
    })
    .await;
    assert_eq!(new.ring.holder(), Some(second.clone()), "it is left alone");
    assert_eq!(new.ring.stats().lives_lost, 0);
    old.store.plan().clear();
    new.planes.close().await;
    until("the old process is a member again", || {
        let holder = old.ring.holder();
        holder.is_some_and(|holder| holder.incarnation > second.incarnation)
    })
    .await;
}

/// Returns whether a transaction puts the member key of the replica a.
fn puts_the_member(txn: &Txn) -> bool {
    let own = member_key(&id("a"));
    let puts = |op: &Op| matches!(op, Op::Put { key, .. } if *key == own);
    txn.ops.iter().any(puts)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_replica_below_the_floor_does_not_join() {
    let town = Town::new();
    let put = Op::Put {
        key: FLOOR_KEY.into(),
        value: encode_floor(&Floor {
            level: ReplicaOptions::FIRST_LEVEL + 1,
            ..Floor::default()
        }),
        lease: None,
    };
    let txn = Txn {
        compares: Vec::new(),
        ops: vec![put],
    };
    town.store.commit(txn).await.expect("it is put");
    let joined = joined(&town.store, options("a")).await;
    assert!(matches!(joined.err(), Some(JoinError::Floor { .. })));
    let newer = ReplicaOptions {
        level: ReplicaOptions::FIRST_LEVEL + 1,
        ..options("a")
    };
    town.join_as(newer).await;
}

/// PROTOCOL 16: a replica whose read lease has run out keeps its planes.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_lapsed_read_lease_holds_answers_and_keeps_planes() {
    let town = Town::new();
    let replica = town
        .join_as(ReplicaOptions {
            member_ttl: Duration::from_secs(30),
            ..options("a")
        })
        .await;
    let birth = town.plane("p").await;
    town.write(&birth, "x", "1").await;
    let plane = town.find(&birth).await;
    let unavailable = || polyplane_storage::ReadError::Unavailable("by plan".to_owned());
    replica
        .store
        .plan()
        .next_reads(ReadFault::Fail(unavailable()), 100_000);
    until("the lease runs out", || {
        replica.ring.stats().read_lease_margin == Duration::ZERO
    })
    .await;
    let soon = Instant::now() + Duration::from_millis(50);
    assert!(plane.answerable(soon).await.is_err(), "the answer is held");
    replica.store.plan().clear();
    let deadline = Instant::now() + PATIENCE;
    plane
        .answerable(deadline)
        .await
        .expect("the next proof resumes it");
    let taken = replica.planes.stats().taken;
    assert_eq!(taken, 1, "the plane was kept");
    // An acknowledged commit is a proof too (PROTOCOL 9).
    replica
        .store
        .plan()
        .next_reads(ReadFault::Fail(unavailable()), 100_000);
    until("the lease runs out", || {
        replica.ring.stats().read_lease_margin == Duration::ZERO
    })
    .await;
    town.write(&birth, "x", "2").await;
    assert!(replica.ring.stats().read_lease_margin > Duration::ZERO);
    replica.store.plan().clear();
}

/// A replica that lost its member key has lost its planes and starts again as a newcomer.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_removed_member_key_ends_a_life_and_begins_another() {
    let town = Town::new();
    let replica = town.join("a").await;
    let birth = town.plane("p").await;
    town.write(&birth, "x", "1").await;
    let plane = town.find(&birth).await;
    let first = replica.ring.holder().expect("it lives");
    let over = replica.ring.over();
    let txn = Txn {
        compares: Vec::new(),
        ops: vec![Op::Delete {
            key: member_key(&id("a")),
        }],
    };
    town.store.commit(txn).await.expect("it is removed");
    over.cancelled().await;
    let now = Instant::now() + PATIENCE;
    assert!(plane.answerable(now).await.is_err(), "its planes are over");
    until("it is a member again", || {
        let holder = replica.ring.holder();
        holder.is_some_and(|holder| holder.incarnation > first.incarnation)
    })
    .await;
    assert_eq!(replica.ring.stats().lives_lost, 1);
    town.write(&birth, "x", "2").await;
    assert_eq!(town.read(&birth, "x").await.as_deref(), Some("2"));
}

/// PROTOCOL 21: the returned revision is that of a read which was sent after the call.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_next_member_read_knows_what_was_committed_before() {
    let town = Town::new();
    let replica = town.join("a").await;
    let birth = town.plane("p").await;
    let created = birth.directory.expect("a tenant has one").created;
    let deadline = Instant::now() + PATIENCE;
    let seen = replica.ring.next_observed(deadline).await;
    assert!(seen.expect("it comes") >= created);
}

/// The check without a lock returns the same as the machine.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn guard_and_machine_agree() {
    let town = Town::new();
    let replica = town.join("a").await;
    let birth = town.plane("p").await;
    town.write(&birth, "x", "1").await;
    let slot = replica.planes.known("p").expect("it is awake");
    let guard = slot.awake().expect("it is awake").guard;
    use polyplane_plane::CommitGuard;
    assert_eq!(guard.answerable(), Answerable::Yes);
    assert_eq!(
        guard.verdict(&replica.ring.read_lease()),
        polyplane_fencing::Verdict::Answer
    );
    replica.planes.put_to_sleep(vec![slot]).await;
    assert_eq!(guard.answerable(), Answerable::Lost);
    assert_eq!(
        guard.verdict(&replica.ring.read_lease()),
        polyplane_fencing::Verdict::Moved
    );
    town.write(&birth, "x", "2").await;
    // The old guard does not answer for a later tenure.
    assert_eq!(guard.answerable(), Answerable::Lost);
    assert_eq!(
        guard.verdict(&replica.ring.read_lease()),
        polyplane_fencing::Verdict::Moved
    );
}

/// PROTOCOL 14: the root's owner compacts up to the history that must be kept, and raises the floor
/// once all members have had a level for long enough.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_roots_owner_keeps_the_house() {
    let town = Town::new();
    let housekeeping = |name, level| ReplicaOptions {
        history: Duration::from_millis(1500),
        raise_floor_after: Duration::from_millis(500),
        level,
        ..options(name)
    };
    let level = ReplicaOptions::FIRST_LEVEL;
    let a = town.join_as(housekeeping("a", level + 1)).await;
    let b = town.join_as(housekeeping("b", level)).await;
    until("a sees both", || members(&a) == ["a", "b"]).await;
    let root = a
        .planes
        .root_birth(town.layer.hash().clone(), BTreeMap::new());
    town.find(&root).await;
    let before = town.store.status().floor;
    until("it is compacted", || town.store.status().floor > before).await;
    let floor = || async {
        let found = town.store.get(FLOOR_KEY).await.expect("it answers").1;
        let floor = found.map(|found| crate::records::decode_floor(&found.value));
        floor.map(|floor| floor.expect("ours").level)
    };
    assert_eq!(floor().await, Some(level), "the level that all have");
    b.planes.close().await;
    town.replicas.lock().remove("b");
    let deadline = Instant::now() + PATIENCE;
    while floor().await != Some(level + 1) {
        assert!(Instant::now() < deadline, "the floor stays");
        town.find(&root).await;
        sleep(Duration::from_millis(50)).await;
    }
    let joined = joined(&town.store, options("c")).await;
    assert!(matches!(joined.err(), Some(JoinError::Floor { .. })));
}

/// The floor (DESIGN.md, Layers) names the layer of its level. Planes are born with the older layer
/// and step to the newer one only once the floor has risen, which every replica learns.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_floor_says_which_layer_planes_have() {
    let town = Town::new();
    let of_level = |name, level: u32| ReplicaOptions {
        level,
        layer: LayerHash(format!("layer of {level}")),
        ..options(name)
    };
    let old = town.join_as(of_level("a", 1)).await;
    let new = town.join_as(of_level("b", 2)).await;
    until("both are seen", || {
        members(&old) == ["a", "b"] && members(&new) == ["a", "b"]
    })
    .await;
    let first = town.layer.hash();
    assert_eq!(
        (new.planes.birth_layer(), new.planes.may_step()),
        (first.clone(), false)
    );
    let floor = new.planes.raise_floor().await.expect("it is raised");
    assert_eq!(
        (floor.level, floor.raising),
        (1, None),
        "the level that all have"
    );
    assert_eq!(floor.layer, Some(LayerHash("layer of 1".to_owned())));
    until("all are told", || old.planes.may_step()).await;
    assert!(
        !new.planes.may_step(),
        "its own layer is still unknown to others"
    );
    old.planes.close().await;
    until("it has left", || members(&new) == ["b"]).await;
    new.planes.raise_floor().await.expect("it is raised");
    until("it is told", || new.planes.may_step()).await;
    assert_eq!(new.planes.birth_layer(), LayerHash("layer of 2".to_owned()));
}

/// Large bodies are packed (DESIGN.md, Opening) only once no program may join that cannot read them,
/// also by a replica that starts later.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn bodies_are_packed_from_the_rise_of_the_floor_on() {
    let town = Town::new();
    let of_level = |name| ReplicaOptions {
        level: PACKED_LEVEL,
        ..options(name)
    };
    let a = town.join_as(of_level("a")).await;
    until("it is seen", || members(&a) == ["a"]).await;
    let birth = town.plane("p").await;
    let large = "word ".repeat(4000);
    let stored_bytes = async |name: &str| {
        town.write(&birth, name, &large).await;
        let range = RangeRequest::prefix(format!("p/{}/o/", birth.id));
        let found = town.store.range(range).await.expect("it answers").items;
        let of_name = |item: &&KeyValue| item.key.ends_with(name.as_bytes());
        found.iter().find(of_name).expect("stored").value.len()
    };
    assert!(stored_bytes("before").await > large.len());
    a.planes.raise_floor().await.expect("it is raised");
    until("it is seen", || a.planes.floor().level == PACKED_LEVEL).await;
    assert!(stored_bytes("after").await < large.len() / 10);
    a.planes.close().await;
    town.replicas.lock().remove("a");
    town.join_as(of_level("b")).await;
    assert!(stored_bytes("later").await < large.len() / 10);
}

/// A replica that joins while the floor is being raised either is seen by the replica that raises
/// it or is refused.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_member_never_stands_below_the_floor() {
    for round in 0..12_u64 {
        let town = Town::new();
        let at_level = |name, level| ReplicaOptions {
            level,
            ..options(name)
        };
        let new = town.join_as(at_level("b", 2)).await;
        until("it is seen", || members(&new) == ["b"]).await;
        let planes = Arc::clone(&new.planes);
        let raising = tokio::spawn(async move { planes.raise_floor().await });
        sleep(Duration::from_micros(round * 400)).await;
        let joined = joined(&town.store, at_level("a", 1)).await;
        let raised = raising.await.expect("no panic");
        let floor = new
            .planes
            .store()
            .get(FLOOR_KEY)
            .await
            .expect("it answers")
            .1;
        let floor = floor.map(|floor| crate::records::decode_floor(&floor.value).expect("ours"));
        let floor = floor.map_or(0, |floor| floor.level);
        match joined {
            Ok(_) => assert_ne!(floor, 2, "round {round}: {raised:?}"),
            Err(JoinError::Floor { .. }) => assert_eq!(floor, 2, "round {round}: {raised:?}"),
            Err(error) => panic!("{error}"),
        }
    }
}

/// A peer that has not answered a ping for too long counts as silent, but only at the replica that
/// sent the ping. It does so until it answers another ping, or until that replica no longer pings
/// it. So no request waits for ever for a peer that is not pinged.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_peer_is_silent_while_it_owes_an_answer() {
    let town = Town::new();
    let a = town.join("a").await;
    let mut others = Vec::new();
    for name in ["e", "f", "g", "h"] {
        others.push(town.join(name).await);
    }
    until("it sees all", || members(&a).len() == 5).await;
    let cut = || town.wires.cut.lock().push((id("a"), id("e")));
    assert!(!a.ring.is_silent("e"));
    cut();
    until("it is silent", || a.ring.is_silent("e")).await;
    assert!(!a.ring.is_silent("f"));
    assert!(others.iter().all(|one| !one.ring.is_silent("e")));
    town.wires.cut.lock().clear();
    until("it answers again", || !a.ring.is_silent("e")).await;
    cut();
    until("it is silent again", || a.ring.is_silent("e")).await;
    // These names sort between the two, so that the one no longer pings the other.
    let _between = [town.join("b").await, town.join("c").await];
    until("it is not asked", || !a.ring.is_silent("e")).await;
    assert_eq!(members(&a).len(), 7, "one complaint evicts nobody");
}
