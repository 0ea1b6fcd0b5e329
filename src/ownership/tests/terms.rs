//! Lease terms that change on a store in use (PROTOCOL 8).

use std::sync::atomic::{AtomicBool, Ordering};

use polyplane_fencing::Duration as Length;
use polyplane_storage::CommitFault;

use super::*;
use crate::membership::lease_terms::CHANGE_LEVEL;
use crate::records::{TERMS_KEY, adoption_key, decode_terms};

fn terms(read_lease: u64, margin: u64) -> LeaseTerms {
    let length = Length::from_millis;
    LeaseTerms::new(length(read_lease), length(margin)).expect("neither is zero")
}

fn changeable(name: &str) -> ReplicaOptions {
    ReplicaOptions {
        level: CHANGE_LEVEL,
        ..options(name)
    }
}

/// Starts replicas of a store whose floor lets terms change.
async fn ring(town: &Arc<Town>, names: &[&str]) -> Vec<Arc<Replica>> {
    let mut replicas = Vec::new();
    for name in names {
        replicas.push(town.join_as(changeable(name)).await);
    }
    for replica in &replicas {
        until("all are seen", || members(replica).len() == names.len()).await;
    }
    let raised = replicas[0].planes.raise_floor().await;
    assert_eq!(raised.expect("all have it").level, CHANGE_LEVEL);
    replicas
}

async fn stored(town: &Town) -> (Terms, Revision) {
    let (_, found) = town.store.get(TERMS_KEY).await.expect("it answers");
    let found = found.expect("somebody joined");
    (decode_terms(&found.value).expect("ours"), found.modified)
}

async fn settled(town: &Town, wanted: LeaseTerms) {
    until("all go by the new terms", || {
        let replicas = town.replicas.lock();
        let mut running = replicas.values();
        running.all(|replica| replica.ring.terms() == Terms::settled(wanted))
    })
    .await;
    assert_eq!(stored(town).await.0, Terms::settled(wanted));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_replica_goes_by_the_stores_terms() {
    let town = Town::new();
    town.join("a").await;
    let other = ReplicaOptions {
        terms: terms(250, 100),
        member_ttl: Duration::from_secs(2),
        ..options("b")
    };
    let b = town.join_as(other).await;
    assert_eq!(b.ring.terms(), Terms::settled(LeaseTerms::default()));
    assert_eq!(stored(&town).await.0, Terms::settled(LeaseTerms::default()));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_no_ring_can_go_by_is_refused() {
    let town = Town::new();
    let a = town.join("a").await;
    until("it is seen", || members(&a) == ["a"]).await;
    let before = stored(&town).await;
    let refused = a.ring.change_terms(terms(500, 150)).await;
    let Err(ChangeError::Floor { floor: 0 }) = refused else {
        panic!("older programs may join: {refused:?}");
    };
    a.planes.raise_floor().await.expect("the level of all");
    let refused = a.ring.change_terms(terms(500, 150)).await;
    assert!(matches!(refused, Err(ChangeError::Floor { floor: 1 })));
    for (read_lease, margin) in [(199, 100), (60_001, 7000), (1000, 99), (1000, 60_001)] {
        let refused = a.ring.change_terms(terms(read_lease, margin)).await;
        assert!(
            matches!(
                refused,
                Err(ChangeError::ReadLease { .. } | ChangeError::Margin { .. })
            ),
            "{read_lease}"
        );
    }
    assert_eq!(stored(&town).await, before);
}

/// Returns whether a transaction is a member's confirmation of a change, or the end of the change.
fn goes_on(txn: &Txn) -> bool {
    txn.ops.iter().any(|op| match op {
        Op::Put { key, value, .. } => {
            let begins = value.windows(6).any(|text| text == b"\"next\"");
            key.starts_with(TERMS_KEY) && !begins
        }
        Op::Delete { .. } => false,
    })
}

/// The terms become longer and shorter, each time with another fault in the middle: a join, the end
/// of the replica that would finish the change, or the loss of every reply to its transactions.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn terms_change_under_load_while_replicas_come_and_go() {
    let town = Town::new();
    let replicas = ring(&town, &["a", "b", "c"]).await;
    let stop = Arc::new(AtomicBool::new(false));
    let mut clients = Vec::new();
    for n in 0..3 {
        let birth = town.plane(&format!("p{n}")).await;
        let task = chaos::client(Arc::clone(&town), birth.clone(), Arc::clone(&stop));
        clients.push((birth, tokio::spawn(task)));
    }
    drop(replicas);
    let misfortunes = ["none", "join", "end of the first", "lost replies", "none"];
    let up_and_down = [(500, 150), (250, 80), (700, 100), (200, 50), (300, 100)];
    for (misfortune, (read_lease, margin)) in misfortunes.into_iter().zip(up_and_down) {
        let wanted = terms(read_lease, margin);
        if misfortune == "lost replies" {
            for replica in town.replicas.lock().values() {
                let plan = replica.store.plan();
                plan.commits_matching(goes_on, CommitFault::UnknownNotApplied, 1);
                plan.commits_matching(goes_on, CommitFault::UnknownApplied, 1);
            }
        }
        let begun = town.any().ring.change_terms(wanted).await;
        begun.expect("no other is under way");
        match misfortune {
            "join" => drop(town.join_as(changeable("d")).await),
            "end of the first" => drop(town.crash("a")),
            _ => {}
        }
        settled(&town, wanted).await;
        for replica in town.replicas.lock().values() {
            replica.store.plan().clear();
        }
        println!("{misfortune}: {wanted}");
    }
    stop.store(true, Ordering::Release);
    for (birth, client) in clients {
        let told = client.await.expect("every write was answered");
        chaos::judge(&town, &birth, &told, "terms").await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_change_waits_for_each_member_and_outwaits_the_dead() {
    let town = Town::new();
    let replicas = ring(&town, &["a", "b"]).await;
    let [a, b] = &replicas[..] else {
        panic!("two joined");
    };
    let word = adoption_key(&id("b"));
    let speaks = move |txn: &Txn| txn.ops.iter().any(|op| *op.key() == word);
    let plan = b.store.plan();
    plan.commits_matching(speaks, CommitFault::UnknownNotApplied, 1_000_000);
    let wanted = terms(200, 50);
    a.ring.change_terms(wanted).await.expect("it begins");
    until("only b is awaited", || a.ring.terms_awaited() == [id("b")]).await;
    let changing = Terms {
        current: LeaseTerms::default(),
        next: Some(wanted),
    };
    let (seen, begun) = stored(&town).await;
    assert_eq!(seen, changing);
    // In the meantime both terms are in force: answers use the shorter, waits use the longer.
    until("b goes by both, unheard", || b.ring.terms() == changing).await;
    assert!(b.ring.stats().read_lease_margin <= Duration::from_millis(200));
    let again = a.ring.change_terms(wanted).await;
    assert_eq!(again.expect("it is under way"), changing);
    let other = a.ring.change_terms(terms(600, 100)).await;
    assert!(matches!(other, Err(ChangeError::UnderWay { .. })));
    assert_eq!(
        stored(&town).await,
        (changing, begun),
        "nothing was written"
    );

    let ended = Instant::now();
    drop(town.crash("b"));
    settled(&town, wanted).await;
    assert!(
        ended.elapsed() >= wait_of(LeaseTerms::default()),
        "cut short"
    );
    assert_eq!(a.ring.terms_awaited(), []);
    // A second request for the same terms changes nothing.
    let done = stored(&town).await;
    let again = a.ring.change_terms(wanted).await;
    assert_eq!(again.expect("they are so"), Terms::settled(wanted));
    let plane = town.plane("p").await;
    town.write(&plane, "x", "1").await;
    assert_eq!(stored(&town).await, done);
}

/// Replicas use the read lease and the wait of the new terms.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn replicas_answer_and_wait_by_the_new_terms() {
    let town = Town::new();
    let replicas = ring(&town, &["a", "b"]).await;
    let (a, b) = (&replicas[0], &replicas[1]);
    let long = terms(1500, 300);
    a.ring.change_terms(long).await.expect("it begins");
    settled(&town, long).await;
    let lasts = |replica: &Replica| replica.ring.stats().read_lease_margin;
    until("the read lease is longer", || {
        lasts(a) > Duration::from_millis(1000)
    })
    .await;
    let birth = town.plane_of("a", &["a", "b"]).await;
    town.write(&birth, "x", "1").await;
    let began = Instant::now();
    let dead = town.crash("a");
    town.write(&birth, "y", "2").await;
    assert!(began.elapsed() >= wait_of(long), "the wait was cut short");
    drop(dead);

    let short = terms(200, 50);
    b.ring.change_terms(short).await.expect("it begins");
    settled(&town, short).await;
    assert!(lasts(b) <= Duration::from_millis(200));
    let soon = Instant::now() + Duration::from_millis(500);
    while Instant::now() < soon {
        assert!(lasts(b) <= Duration::from_millis(200));
        sleep(Duration::from_millis(10)).await;
    }
    assert_eq!(town.read(&birth, "y").await.as_deref(), Some("2"));
}
