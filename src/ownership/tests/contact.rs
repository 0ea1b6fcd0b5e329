//! Replicas that cannot speak with the other members: they do not join, or are evicted and say why,
//! and their planes go on elsewhere. Also a store that answers too late for the read lease.

use super::*;
use crate::membership::member_record::{decode_member, member_key};
use polyplane_storage::{CommitFault, ReadError, ReadFault, Rejection};
use tokio::task::JoinHandle;

/// Waits until a replica has a reason for being no useful member that has these words.
async fn says(ring: &Ring, words: &str) {
    let says = || ring.join_problem().is_some_and(|why| why.contains(words));
    until(words, says).await;
}

/// Waits until a replica has a plane awake.
async fn wakes(replica: &Replica, birth: &Birth) {
    let deadline = Instant::now() + PATIENCE;
    while let Err(error) = replica.planes.wake(birth).await {
        assert!(Instant::now() < deadline, "it is not available: {error:?}");
        sleep(Duration::from_millis(5)).await;
    }
}

/// Lets a replica join, and returns without waiting. It answers pings by the planes of another replica.
async fn joining(
    town: &Town,
    other: &Replica,
    name: &str,
) -> (Arc<Ring>, JoinHandle<Result<(), JoinError>>) {
    let wire = Wire {
        from: id(name),
        wires: Arc::clone(&town.wires),
    };
    let ring = Ring::newcomer(Arc::clone(&town.store), options(name), Arc::new(wire)).await;
    let ring = ring.expect("the store is for it");
    let answers = Arc::downgrade(&other.planes);
    town.wires.listening.lock().insert(id(name), answers);
    let joining = Arc::clone(&ring);
    let joining = tokio::spawn(async move { joining.join().await });
    (ring, joining)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_replica_that_no_member_trusts_does_not_join_before_one_does() {
    let town = Town::new();
    let a = town.join("a").await;
    let birth = town.plane_of("b", &["a", "b"]).await;
    town.write(&birth, "x", "1").await;
    town.wires.strangers.lock().push(id("b"));
    let (ring, joining) = joining(&town, &a, "b").await;
    says(&ring, "member a at a:1").await;
    says(&ring, "peer CA").await;
    assert_eq!((members(&a), ring.holder()), (vec!["a".to_owned()], None));
    town.write(&birth, "x", "2").await;
    assert_eq!(town.read(&birth, "x").await.as_deref(), Some("2"));
    town.wires.strangers.lock().clear();
    let joined = joining.await.expect("no panic");
    joined.expect("it may join");
    assert_eq!(ring.join_problem(), None);
    until("it is seen", || members(&a) == ["a", "b"]).await;
    ring.leave().await;
}

/// Returns the CAs that the member key of a replica names.
async fn named(town: &Town, name: &str) -> Option<PeerTrust> {
    let found = town.store.get(&member_key(&id(name))).await;
    let (_, found) = found.expect("it answers");
    decode_member(&found?.value, polyplane_ring::Incarnation::new(1))?.trust
}

fn trust(issuer: &str, trusted: &[&str]) -> PeerTrust {
    PeerTrust {
        issuer: Some(issuer.to_owned()),
        trusted: trusted.iter().map(|&name| name.to_owned()).collect(),
    }
}

/// No connection says whether the two trust each other, because each ends before its handshake.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_replica_with_another_ca_than_the_members_does_not_join_before_they_trust_it() {
    let town = Town::new();
    let says_it = |name: &str, says: PeerTrust| {
        town.wires.trusts.lock().insert(id(name), says);
    };
    says_it("a", trust("old", &["old"]));
    says_it("b", trust("new", &["old", "new"]));
    let a = town.join("a").await;
    assert_eq!(named(&town, "a").await, Some(trust("old", &["old"])));
    town.wires.ending.lock().push((id("b"), id("a")));
    let (ring, joining) = joining(&town, &a, "b").await;
    says(&ring, "issued by the CA new, and peer-ca.crt there has old").await;
    assert_eq!((members(&a), ring.holder()), (vec!["a".to_owned()], None));
    // The files of the member are replaced: its key says so at the next renewal.
    says_it("a", trust("old", &["old", "new"]));
    let joined = tokio::time::timeout(PATIENCE, joining).await;
    let joined = joined.expect("in time").expect("no panic");
    joined.expect("it may join");
    town.wires.ending.lock().clear();
    assert_eq!(named(&town, "a").await, Some(trust("old", &["old", "new"])));
    assert_eq!(a.ring.stats().lives_lost, 0);
    ring.leave().await;
}

/// Returns the names of the replicas of which a member knows that they wait outside.
fn outside(member: &Replica) -> Vec<String> {
    let candidates = member.ring.candidates();
    candidates.iter().map(|one| one.id.to_string()).collect()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_member_names_who_waits_outside_until_it_joins() {
    let town = Town::new();
    for (name, ca) in [("a", "old"), ("b", "new")] {
        let says = trust(ca, &[ca]);
        town.wires.trusts.lock().insert(id(name), says);
    }
    let a = town.join("a").await;
    town.wires.strangers.lock().push(id("b"));
    let (ring, joining) = joining(&town, &a, "b").await;
    until("a names b", || outside(&a) == ["b"]).await;
    let candidate = a.ring.candidates().remove(0);
    assert_eq!(candidate.trust, Some(trust("new", &["new"])));
    let why = candidate.why.unwrap_or_default();
    assert!(
        why.contains("the CA new, and peer-ca.crt here has old"),
        "{why}"
    );
    assert!(candidate.since.ends_with('Z'), "{}", candidate.since);
    assert_eq!(a.ring.stats().candidates, 1);
    assert_eq!(a.ring.outvoted(), None, "one against one");
    assert_eq!((members(&a), ring.holder()), (vec!["a".to_owned()], None));
    town.wires.strangers.lock().clear();
    joining.await.expect("no panic").expect("it may join");
    until("nobody waits", || outside(&a).is_empty()).await;
    assert_eq!(ring.candidates(), Vec::new());
    ring.leave().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_member_that_is_alone_with_its_ca_says_so_until_fewer_wait_outside() {
    let town = Town::new();
    for (name, ca) in [("a", "wrong"), ("b", "right"), ("c", "right")] {
        let says = trust(ca, &[ca]);
        town.wires.trusts.lock().insert(id(name), says);
    }
    let a = town.join("a").await;
    town.wires.strangers.lock().push(id("a"));
    let (b, _b_joins) = joining(&town, &a, "b").await;
    let (c, _c_joins) = joining(&town, &a, "c").await;
    until("a names both", || outside(&a) == ["b", "c"]).await;
    let outvoted = || a.ring.outvoted().unwrap_or_default();
    until("two are against one", || {
        let why = outvoted();
        why.contains("member a") && why.contains("2 replicas")
    })
    .await;
    // It is only said: nobody joins, and the member goes on.
    assert_eq!(members(&a), ["a"]);
    assert_eq!((b.holder(), c.holder()), (None, None));
    assert_eq!(a.ring.join_problem(), None);
    // Its record ends with it.
    c.vanish();
    until("c is gone", || outside(&a) == ["b"]).await;
    until("one is against one", || outvoted().is_empty()).await;
    b.vanish();
}

/// A member of an older release names no CAs.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_member_that_names_no_cas_keeps_nobody_from_joining() {
    let town = Town::new();
    let a = town.join("a").await;
    let says = trust("new", &["new"]);
    town.wires.trusts.lock().insert(id("b"), says.clone());
    town.wires.ending.lock().push((id("b"), id("a")));
    let b = town.join("b").await;
    town.wires.ending.lock().clear();
    assert_eq!(
        (named(&town, "a").await, named(&town, "b").await),
        (None, Some(says))
    );
    assert_eq!(b.ring.join_problem(), None);
    drop(a);
}

/// A replica that waits for the others' trust ends as soon as it is to leave.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_replica_that_may_not_join_drains_and_leaves_at_once() {
    let town = Town::new();
    let _a = town.join("a").await;
    town.wires.strangers.lock().push(id("b"));
    let wire = Wire {
        from: id("b"),
        wires: Arc::clone(&town.wires),
    };
    let ring = Ring::newcomer(Arc::clone(&town.store), options("b"), Arc::new(wire)).await;
    let ring = ring.expect("the store is for it");
    let joining = Arc::clone(&ring);
    let joining = tokio::spawn(async move { joining.join().await });
    says(&ring, "member a").await;
    let left = async {
        ring.announce_drain().await;
        ring.leave().await;
    };
    let left = tokio::time::timeout(PATIENCE, left).await;
    left.expect("nothing keeps it");
    let joined = joining.await.expect("no panic");
    assert!(matches!(joined, Err(JoinError::Stopped)), "{joined:?}");
}

/// Two replicas that start at once both find an empty ring.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn of_two_members_that_do_not_trust_each_other_one_stays_and_serves() {
    let town = Town::new();
    let (a, b) = (town.join("a").await, town.join("b").await);
    until("both are seen", || members(&a) == ["a", "b"]).await;
    let births = [
        town.plane_of("a", &["a", "b"]).await,
        town.plane_of("b", &["a", "b"]).await,
    ];
    town.wires.strangers.lock().push(id("b"));
    let is_out = |one: &Replica| one.ring.join_problem().is_some();
    until("one does not get in again", || is_out(&a) || is_out(&b)).await;
    let stays = if is_out(&a) { &b } else { &a };
    until("the other is alone", || members(stays).len() == 1).await;
    assert!(!is_out(stays));
    for birth in &births {
        wakes(stays, birth).await;
    }
    town.wires.strangers.lock().clear();
    for one in [&a, &b] {
        until("both are back", || members(one) == ["a", "b"]).await;
        until("nothing is wrong", || !is_out(one)).await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_ring_evicts_the_one_member_that_the_others_do_not_trust() {
    let town = Town::new();
    let (a, b) = (town.join("a").await, town.join("b").await);
    let c = town.join("c").await;
    for one in [&a, &b, &c] {
        until("all are seen", || members(one) == ["a", "b", "c"]).await;
    }
    let birth = town.plane_of("c", &["a", "b", "c"]).await;
    town.wires.strangers.lock().push(id("c"));
    until("c is counted", || a.ring.stats().unreachable == 1).await;
    says(&c.ring, "peer CA").await;
    until("c is gone", || members(&a) == ["a", "b"]).await;
    town.write(&birth, "x", "1").await;
    for one in [&a, &b] {
        assert_eq!(one.ring.stats().lives_lost, 0);
        assert_eq!(one.ring.join_problem(), None);
    }
}

/// As with a wrong `--advertise`, or after another replica was given the address of one that died.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_ring_evicts_a_member_at_whose_address_another_replica_answers() {
    let town = Town::new();
    let (a, b) = (town.join("a").await, town.join("b").await);
    let c = town.join("c").await;
    for one in [&a, &b, &c] {
        until("all are seen", || members(one) == ["a", "b", "c"]).await;
    }
    let birth = town.plane_of("c", &["a", "b", "c"]).await;
    town.wires.misplaced.lock().push(id("c"));
    until("c is counted", || a.ring.stats().unreachable == 1).await;
    says(&c.ring, "--advertise address: c:1: this is replica x").await;
    until("c is gone", || members(&a) == ["a", "b"]).await;
    town.write(&birth, "x", "1").await;
    for one in [&a, &b] {
        assert_eq!(one.ring.stats().lives_lost, 0);
        assert_eq!(one.ring.join_problem(), None);
    }
    town.wires.misplaced.lock().clear();
    until("c is back", || members(&a) == ["a", "b", "c"]).await;
    until("nothing is wrong", || c.ring.join_problem().is_none()).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_replica_with_the_address_of_another_one_does_not_join_where_others_are_members() {
    let town = Town::new();
    town.wires.misplaced.lock().push(id("a"));
    let a = town.join("a").await;
    town.wires.misplaced.lock().clear();
    town.wires.misplaced.lock().push(id("b"));
    let (ring, joining) = joining(&town, &a, "b").await;
    says(&ring, "--advertise address: b:1: this is replica x").await;
    until("a names b", || outside(&a) == ["b"]).await;
    let candidate = a.ring.candidates().remove(0);
    let why = candidate.why.unwrap_or_default();
    assert!(why.contains("b:1: this is replica x"), "{why}");
    assert_eq!((members(&a), ring.holder()), (vec!["a".to_owned()], None));
    town.wires.misplaced.lock().clear();
    joining.await.expect("no panic").expect("it may join");
    until("nobody waits", || outside(&a).is_empty()).await;
    assert_eq!(ring.join_problem(), None);
    ring.leave().await;
}

/// No connection says that the certificate is not accepted, because each ends before its handshake.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_replica_whose_certificate_has_expired_joins_only_where_nobody_is_or_somebody_answers() {
    let town = Town::new();
    town.wires.expired.lock().extend(["a", "b"].map(id));
    let a = town.join("a").await;
    town.wires.ending.lock().push((id("b"), id("a")));
    let (ring, joining) = joining(&town, &a, "b").await;
    says(&ring, "its own peer certificate is not valid: it expired").await;
    let named = || a.ring.candidates().pop().and_then(|one| one.why);
    let is_named = || named().is_some_and(|why| why.contains("not valid: it expired"));
    until("a names its reason", is_named).await;
    assert_eq!((members(&a), ring.holder()), (vec!["a".to_owned()], None));
    // A member accepts it: the clock of the replica is wrong.
    town.wires.ending.lock().clear();
    joining.await.expect("no panic").expect("it may join");
    assert_eq!(ring.join_problem(), None);
    ring.leave().await;
}

/// Returns whether a transaction removes a member of the ring a, b, c.
fn evicts(txn: &Txn) -> bool {
    let members = ["a", "b", "c"].map(|name| member_key(&id(name)));
    let removes = |op: &Op| matches!(op, Op::Delete { key } if members.contains(key));
    txn.ops.iter().any(removes)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_member_that_the_others_do_not_trust_is_given_no_plane_until_they_do() {
    let town = Town::new();
    let (a, b) = (town.join("a").await, town.join("b").await);
    let c = town.join("c").await;
    for one in [&a, &b, &c] {
        until("all are seen", || members(one) == ["a", "b", "c"]).await;
        // Nobody is evicted, as while a further life of a replica is given more time.
        let full = CommitFault::Reject(Rejection::NoSpace("by plan".into()));
        one.store.plan().commits_matching(evicts, full, usize::MAX);
    }
    let birth = town.plane_of("c", &["a", "b", "c"]).await;
    let designated = |one: &Replica| one.planes.designated(&birth).map(|member| member.id);
    town.wires.strangers.lock().push(id("c"));
    let agree = || {
        let (at_a, at_b) = (designated(&a), designated(&b));
        at_a == at_b && at_a != Some(id("c"))
    };
    until("another one is designated", agree).await;
    let is_a = designated(&a) == Some(id("a"));
    let owner = if is_a { &a } else { &b };
    wakes(owner, &birth).await;
    for one in [&a, &b] {
        assert_eq!(members(one), ["a", "b", "c"]);
    }
    town.wires.strangers.lock().clear();
    until("c has it", || c.planes.awake(&birth.id).is_some()).await;
    for one in [&a, &b] {
        until("c is trusted", || designated(one) == Some(id("c"))).await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_replica_that_nobody_reaches_says_so_until_somebody_does() {
    let town = Town::new();
    let (a, b) = (town.join("a").await, town.join("b").await);
    until("both are seen", || members(&a) == ["a", "b"]).await;
    assert_eq!(b.ring.join_problem(), None);
    let listener = town.wires.listening.lock().remove(&id("b"));
    says(&b.ring, "no other member reached it before").await;
    // The address, and what the replica itself finds there.
    says(&b.ring, "b:1 (this replica itself: the peer refuses").await;
    assert_eq!(a.ring.join_problem(), None);
    let listener = listener.expect("it was there");
    town.wires.listening.lock().insert(id("b"), listener);
    until("it is reached", || b.ring.join_problem().is_none()).await;
    until("it stays", || members(&a) == ["a", "b"]).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_store_that_answers_later_than_the_read_lease_lasts_is_reported() {
    let town = Town::new();
    let a = town.join("a").await;
    assert_eq!(a.ring.read_lease_problem(), None);
    let late = ReadFault::Delay(Duration::from_millis(350));
    a.store.plan().next_reads(late, 100_000);
    until("it is reported", || a.ring.read_lease_problem().is_some()).await;
    let why = a.ring.read_lease_problem().unwrap_or_default();
    assert!(why.contains("kubectl plane terms --read-lease"), "{why}");
    let stats = a.ring.stats();
    assert!(stats.late_reads >= 3, "{stats:?}");
    assert!(stats.member_read >= Duration::from_millis(300), "{stats:?}");
    a.store.plan().clear();
    until("it is over", || a.ring.read_lease_problem().is_none()).await;
    assert_eq!(a.ring.stats().lives_lost, 0);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_read_lease_is_not_held_while_the_store_is_away_and_a_moment_is_no_failure() {
    let town = Town::new();
    let a = town.join("a").await;
    until("it holds", || a.ring.holds_read_lease()).await;
    let away = ReadFault::Fail(ReadError::Unavailable("away".into()));
    a.store.plan().next_reads(away, 100_000);
    until("it ends", || !a.ring.holds_read_lease()).await;
    assert_eq!(a.ring.read_lease_failure(), None);
    a.store.plan().clear();
    until("it holds again", || a.ring.holds_read_lease()).await;
}

/// Of three members, one later time-out that another one sees would evict a member whose complaint was
/// left behind.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_withdrawn_complaint_is_removed_however_late_the_store_applies_it() {
    let town = Town::new();
    let a = town.join("a").await;
    for name in ["b", "c"] {
        town.join(name).await;
    }
    until("a sees all", || members(&a) == ["a", "b", "c"]).await;
    let key = crate::records::complaint_key(&id("a"), &id("b"));
    let late = Duration::from_millis(300);
    for (is_put, fault) in [
        (true, CommitFault::Delay(late)),
        (true, CommitFault::UnknownLate),
        (false, CommitFault::UnknownNotApplied),
    ] {
        let of_it = key.clone();
        let plan = a.store.plan();
        let matches = move |txn: &Txn| {
            let mut ops = txn.ops.iter();
            ops.any(|op| *op.key() == of_it && matches!(op, Op::Put { .. }) == is_put)
        };
        plan.commits_matching(matches, fault.clone(), 1);
        let view = a.ring.view();
        let accused = view.member(&id("b")).expect("it is a member");
        a.ring.report(accused, Err(&PeerError::TimedOut));
        // The next answer to a ping, which arrives sooner, withdraws the complaint.
        sleep(late * 2).await;
        a.store.apply_late().await;
        sleep(late).await;
        let deadline = Instant::now() + PATIENCE;
        while town.store.get(&key).await.expect("it answers").1.is_some() {
            assert!(Instant::now() < deadline, "{fault:?}: it is left behind");
            sleep(Duration::from_millis(5)).await;
        }
    }
    assert_eq!(a.ring.stats().evictions, 0);
}
