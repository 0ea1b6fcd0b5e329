//! A replica that alone cannot reach the store: its peers' views show that its life is over, it
//! forwards requests by these views, and it joins again once the store answers.

use super::*;
use polyplane_plane::NotAnswerable;
use polyplane_storage::{CommitFault, ReadError, ReadFault};

/// More faults than a test can use up.
const ALWAYS: usize = 1_000_000;

/// Makes all communication between this replica and the store fail from now on.
fn cut_off(replica: &Replica) {
    let plan = replica.store.plan();
    let unavailable = ReadError::Unavailable("cut off by plan".to_owned());
    plan.next_reads(ReadFault::Fail(unavailable), ALWAYS);
    plan.next_keep_alives_fail(ALWAYS);
    plan.commits_matching(|_| true, CommitFault::UnknownNotApplied, ALWAYS);
    replica.store.cut_watches();
}

async fn three(town: &Arc<Town>) -> [Arc<Replica>; 3] {
    let all = [
        town.join("a").await,
        town.join("b").await,
        town.join("c").await,
    ];
    for replica in &all {
        until("all see all", || members(replica) == ["a", "b", "c"]).await;
    }
    all
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn whoever_is_cut_off_from_the_store_forwards_by_its_peers_view() {
    let town = Town::new();
    let [a, b, c] = three(&town).await;
    let birth = town.plane_of("a", &["a", "b", "c"]).await;
    town.write(&birth, "x", "1").await;
    let old = a.planes.awake(&birth.id).expect("it is awake");
    let (first, known) = (a.ring.holder().expect("it lives"), a.ring.view());
    let over = a.ring.over();
    let began = Instant::now();
    cut_off(&a);
    let told = tokio::time::timeout(PATIENCE, over.cancelled()).await;
    told.expect("its peers tell it that it is gone");
    let elsewhere = || match a.planes.location(&birth) {
        PlaneLocation::There(member) => Some(member),
        PlaneLocation::Here | PlaneLocation::Nobody => None,
    };
    until("it knows who serves instead", || elsewhere().is_some()).await;
    println!("from the cut to the first forward: {:?}", began.elapsed());
    let owner = elsewhere().expect("it was known just now");
    assert_ne!(owner.id, id("a"));
    let owner = if owner.id == id("b") { &b } else { &c };
    // It may have been the other peer that sent the view.
    until("the owner's view shows it", || members(owner) == ["b", "c"]).await;
    let plane = owner.planes.wake(&birth).await.expect("it takes the plane");
    let written = plane.submit(Write {
        operations: vec![put("y", "2")],
        ..Write::default()
    });
    written.await.expect("it serves");
    let soon = Instant::now() + Duration::from_secs(1);
    assert_eq!(old.answerable(soon).await, Err(NotAnswerable::Lost));
    assert_eq!(a.ring.view(), known, "the own view is the store's alone");
    assert_eq!(a.ring.holder(), None, "and so is a new life");
    a.store.plan().clear();
    until("it joins again", || a.ring.holder().is_some()).await;
    let second = a.ring.holder().expect("it lives");
    assert!(second.incarnation > first.incarnation);
    until("its own view shows it", || members(&a) == ["a", "b", "c"]).await;
    until("its planes come back", || {
        a.planes.location(&birth) == PlaneLocation::Here
    })
    .await;
    for (name, value) in [("x", "1"), ("y", "2")] {
        assert_eq!(town.read(&birth, name).await.as_deref(), Some(value));
    }
}

/// A view that changes while a replica is cut off reaches that replica too.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_replica_that_is_cut_off_follows_the_ring_by_a_peers_view() {
    let town = Town::new();
    let [a, _b, c] = three(&town).await;
    let births = [
        town.plane_of("b", &["b", "c"]).await,
        town.plane_of("c", &["b", "c"]).await,
    ];
    let over = a.ring.over();
    cut_off(&a);
    let told = tokio::time::timeout(PATIENCE, over.cancelled()).await;
    told.expect("its peers tell it that it is gone");
    let at = |birth: &Birth, name: &str| match a.planes.location(birth) {
        PlaneLocation::There(member) => member.id == id(name),
        PlaneLocation::Here | PlaneLocation::Nobody => false,
    };
    until("it goes by its peers", || at(&births[0], "b")).await;
    assert!(at(&births[1], "c"));
    town.crash("b");
    until("c is alone", || members(&c) == ["c"]).await;
    until("it hears of that", || at(&births[0], "c")).await;
    a.store.plan().clear();
    until("it joins again", || members(&a) == ["a", "c"]).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn figures_of_the_ring_name_the_members_that_do_not_answer() {
    let town = Town::new();
    let a = town.join("a").await;
    town.join("b").await;
    until("a sees b", || members(&a) == ["a", "b"]).await;
    assert!(a.planes.figures_of_ring().await.silent.is_empty());
    town.wires.ending.lock().push((id("a"), id("b")));
    assert_eq!(a.planes.figures_of_ring().await.silent, [id("b")]);
}

/// No replica reaches the store. No peer then has a newer view than a replica's own, so every
/// replica keeps its life until the store itself answers.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_store_that_is_away_for_all_ends_nobodys_life() {
    let town = Town::new();
    let all = three(&town).await;
    let lives: Vec<_> = all.iter().map(|one| one.ring.over()).collect();
    for replica in &all {
        cut_off(replica);
    }
    // Longer than any of them waits before it polls its peers.
    sleep(Duration::from_secs(2)).await;
    assert!(lives.iter().all(|life| !life.is_cancelled()));
}
