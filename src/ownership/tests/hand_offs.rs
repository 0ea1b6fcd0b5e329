//! Planned moves of planes: no request fails, and no write is lost.

use super::*;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

/// A client that writes one value after the other and records the acknowledged ones.
struct Writer {
    stop: Arc<AtomicBool>,
    written: Arc<AtomicU64>,
    task: tokio::task::JoinHandle<Vec<Version>>,
}

impl Writer {
    fn start(town: &Arc<Town>, birth: &Birth) -> Self {
        let (stop, written) = (
            Arc::new(AtomicBool::new(false)),
            Arc::new(AtomicU64::new(0)),
        );
        let (town, birth) = (Arc::clone(town), birth.clone());
        let (ends, counts) = (Arc::clone(&stop), Arc::clone(&written));
        let task = tokio::spawn(async move {
            let mut versions = Vec::new();
            while !ends.load(Ordering::Acquire) {
                let n = versions.len();
                let committed = town.write(&birth, &format!("w-{n}"), &n.to_string()).await;
                versions.push(committed.version);
                counts.fetch_add(1, Ordering::AcqRel);
            }
            versions
        });
        Self {
            stop,
            written,
            task,
        }
    }

    async fn more(&self, count: u64) {
        let goal = self.written.load(Ordering::Acquire) + count;
        until("writes go on", || {
            self.written.load(Ordering::Acquire) >= goal
        })
        .await;
    }

    /// Ends the client, and checks that every acknowledged write is there, in order.
    async fn check(self, town: &Town, birth: &Birth) -> usize {
        self.stop.store(true, Ordering::Release);
        let versions = self.task.await.expect("no write failed");
        assert!(versions.is_sorted_by(|a, b| a < b), "versions go on");
        let plane = town.find(birth).await;
        let cut = plane.snapshot();
        for n in 0..versions.len() {
            let found = value(&cut, &format!("w-{n}"));
            assert_eq!(found, Some(n.to_string()), "an acknowledged write is lost");
        }
        versions.len()
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_plane_goes_to_the_newcomer_under_writes_and_comes_back() {
    let town = Town::new();
    let a = town.join("a").await;
    let birth = town.plane_of("b", &["a", "b"]).await;
    let writer = Writer::start(&town, &birth);
    writer.more(20).await;
    let b = town.join("b").await;
    until("b has it", || b.planes.awake(&birth.id).is_some()).await;
    writer.more(20).await;
    // The successor may have the plane before the predecessor has finished its part.
    until("a has let go", || a.planes.stats().hand_offs_done == 1).await;
    let there = PlaneLocation::There(b.ring.own_member().expect("it is in"));
    until("a knows where it is", || a.planes.location(&birth) == there).await;
    let deadline = Instant::now() + PATIENCE;
    assert!(b.planes.drain(deadline).await, "everything went in time");
    assert_eq!(b.planes.stats().owned, 0);
    until("a has it again", || a.planes.awake(&birth.id).is_some()).await;
    writer.more(20).await;
    b.planes.close().await;
    writer.more(20).await;
    let count = writer.check(&town, &birth).await;
    let stats = a.planes.stats();
    println!("{count} writes");
    assert_eq!(
        stats.taken_after_wait, 0,
        "a planned move waits for no lease"
    );
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_rolling_restart_of_three_loses_nothing() {
    let town = Town::new();
    for name in ["a", "b", "c"] {
        town.join(name).await;
    }
    let mut writers = Vec::new();
    for n in 0..6 {
        let birth = town.plane(&format!("p{n}")).await;
        writers.push((Writer::start(&town, &birth), birth));
    }
    for name in ["c", "b", "a"] {
        for (writer, _) in &writers {
            writer.more(3).await;
        }
        let old = Arc::clone(town.replicas.lock().get(name).expect("it runs"));
        assert!(old.planes.drain(Instant::now() + PATIENCE).await);
        town.replicas.lock().remove(name);
        old.planes.close().await;
        town.wires.listening.lock().remove(&id(name));
        town.join(name).await;
    }
    for (writer, birth) in writers {
        writer.more(3).await;
        writer.check(&town, &birth).await;
    }
    let replicas: Vec<_> = town.replicas.lock().values().cloned().collect();
    for replica in replicas {
        assert_eq!(replica.ring.stats().evictions, 0, "nobody was thought dead");
        assert_eq!(replica.planes.stats().taken_after_wait, 0);
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_plane_is_deleted_from_a_replica_that_does_not_hold_it() {
    let town = Town::new();
    let a = town.join("a").await;
    let b = town.join("b").await;
    until("a sees both", || members(&a) == ["a", "b"]).await;
    let birth = town.plane_of("a", &["a", "b"]).await;
    town.write(&birth, "x", "1").await;
    assert!(a.planes.awake(&birth.id).is_some());
    b.planes
        .delete(&birth)
        .await
        .expect("its holder deletes it");
    assert!(a.planes.awake(&birth.id).is_none());
    let left = polyplane_storage::RangeRequest::prefix(format!("p/{}/", birth.id));
    let left = town.store.range(left).await.expect("it answers");
    assert!(left.items.is_empty());
    for replica in [&a, &b] {
        let woken = replica.planes.wake(&birth).await;
        let gone = matches!(woken, Err(WakeError::Deleted | WakeError::Moved(_)));
        assert!(gone, "{woken:?}");
    }
}

/// A plane that is awake and being written to moves when its user pins it to another replica, and
/// back.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_plane_in_use_goes_where_its_user_wants_it() {
    let town = Town::new();
    let a = town.join("a").await;
    let b = town.join("b").await;
    for replica in [&a, &b] {
        follow_directory(&town, replica).await;
    }
    let birth = town.plane("p").await;
    let mut taken = [a.planes.taken(), b.planes.taken()];
    let writer = Writer::start(&town, &birth);
    for wish in ["a", "b", "a", "b"] {
        let key = birth.directory.as_ref().expect("it has a row").key.clone();
        let put = Op::Put {
            key,
            value: external::encode(&object("p", wish)),
            lease: None,
        };
        let txn = Txn {
            compares: Vec::new(),
            ops: vec![put],
        };
        town.store.commit(txn).await.expect("it is put");
        let (there, away) = if wish == "a" { (&a, &b) } else { (&b, &a) };
        until("it is where it is wanted", || {
            there.planes.awake(&birth.id).is_some() && away.planes.awake(&birth.id).is_none()
        })
        .await;
        writer.more(10).await;
    }
    writer.check(&town, &birth).await;
    assert!(b.planes.stats().hand_offs_done >= 1);
    assert_eq!(b.planes.stats().taken_after_wait, 0);
    // Whoever takes a plane at its predecessor's word can go on with its work, although no request names it.
    for taken in &mut taken {
        let id = tokio::time::timeout(PATIENCE, taken.recv()).await;
        assert_eq!(id.expect("it is told").expect("it listens"), birth.id);
    }
}

/// PROTOCOL 19: replicas that are all Draining continue to serve until the last one has left.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_last_one_lets_go_of_everything() {
    let town = Town::new();
    let a = town.join("a").await;
    let birth = town.plane("p").await;
    town.write(&birth, "x", "1").await;
    assert!(a.planes.drain(Instant::now() + PATIENCE).await);
    assert_eq!(a.planes.stats().owned, 0);
    // A Draining replica may take planes while no Serving one is left.
    assert_eq!(town.read(&birth, "x").await.as_deref(), Some("1"));
    a.planes.close().await;
}

/// The successor opens the plane from the stream: it does not read the range, and watches resume
/// from any version.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_plane_in_use_is_streamed_to_its_successor() {
    let town = Town::new();
    let a = town.join("a").await;
    let birth = town.plane_of("b", &["a", "b"]).await;
    let first = town.write(&birth, "x", "1").await.version;
    town.write(&birth, "y", "2").await;
    let b = town.join("b").await;
    until("b has it", || b.planes.awake(&birth.id).is_some()).await;
    let plane = b.planes.awake(&birth.id).expect("it is awake");
    assert!(plane.imported(), "the stream was used");
    let scope = polyplane_plane::WatchScope::Prefix(key("x").resource_prefix());
    let from = polyplane_plane::WatchFrom::After(first);
    let mut watcher = plane.watch(scope, from).await.expect("it goes on");
    match watcher.next().await {
        polyplane_plane::Next::Events(events) => {
            assert_eq!(events.len(), 1);
            assert_eq!(events[0].key(), &key("y"));
        }
        other => panic!("one event was missed, got {other:?}"),
    }
    until("a has let go", || a.planes.stats().hand_offs_done == 1).await;
}

/// The root is streamed too, although other replicas write member keys past its owner's commits at
/// the same time, and a watch at the successor gets everything once and in order (W1).
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_root_is_streamed_between_comings_and_goings() {
    let town = Town::new();
    let a = town.join("a").await;
    let root = || {
        let layer = town.layer.hash().clone();
        a.planes.root_birth(layer, BTreeMap::new())
    };
    let first = town.write(&root(), "x", "1").await.version;
    let guest = name_that(|name| owner_of_the_root(&["a", name]) == id("a"));
    let newcomer = name_that(|name| owner_of_the_root(&["a", name, &guest]) == id(name));
    // Member keys are written past the root's sequencer.
    let c = town.join(&guest).await;
    town.write(&root(), "y", "2").await;
    c.planes.close().await;
    town.replicas.lock().remove(&guest);
    let b = town.join(&newcomer).await;
    until("b has it", || b.planes.awake(ROOT).is_some()).await;
    let plane = b.planes.awake(ROOT).expect("it is awake");
    assert!(plane.imported(), "the stream was used");
    town.join(&guest).await;
    town.write(&root(), "z", "3").await;
    let from = || polyplane_plane::WatchFrom::After(first);
    let leases = polyplane_plane::WatchScope::Prefix(members_prefix());
    let mut leases = plane.watch(leases, from()).await.expect("it goes on");
    let maps = polyplane_plane::WatchScope::Prefix(key("x").resource_prefix());
    let mut maps = plane.watch(maps, from()).await.expect("it goes on");
    assert_eq!(told_by(&mut maps, 2).await, ["+y", "+z"]);
    let (came, went) = (format!("+{guest}"), format!("-{guest}"));
    let told = told_by(&mut leases, 4).await;
    assert_eq!(told, [came.clone(), went, format!("+{newcomer}"), came]);
    until("a has let go", || a.planes.stats().hand_offs_done == 1).await;
}

/// Returns the replica that is designated for the root in a ring of these members.
fn owner_of_the_root(names: &[&str]) -> ReplicaId {
    let root: PlaneId = ROOT.parse().expect("a plane id");
    let view = View::new(ViewNumber::new(1), names.iter().map(|name| member(name)));
    let designated = view.designated(&root, &Pin::Anywhere);
    designated.expect("somebody is").id.clone()
}

/// Returns a name for which the condition holds.
fn name_that(holds: impl Fn(&str) -> bool) -> String {
    let mut names = (0..1000).map(|n| format!("r-{n}"));
    names.find(|name| holds(name)).expect("one of a thousand")
}

/// Returns the first `count` names that a watch reports as added or removed, in order, without mere
/// changes.
async fn told_by(watcher: &mut polyplane_plane::Watcher, count: usize) -> Vec<String> {
    let mut told = Vec::new();
    let mut last = Version::ZERO;
    while told.len() < count {
        match watcher.next().await {
            polyplane_plane::Next::Events(events) => {
                for event in events {
                    assert!(event.version() > last, "in order, and none twice");
                    last = event.version();
                    let name = event.key().name();
                    match (event.previous(), event.current()) {
                        (None, Some(_)) => told.push(format!("+{name}")),
                        (Some(_), None) => told.push(format!("-{name}")),
                        (Some(_), Some(_)) | (None, None) => {}
                    }
                }
            }
            polyplane_plane::Next::Bookmark(_) => {}
            other => panic!("the watch ended: {other:?}"),
        }
    }
    told
}

/// PROTOCOL 6: a streamed state is used only at exactly the head that Released names.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_stream_from_before_a_further_write_is_thrown_away() {
    let town = Town::new();
    let a = town.join("a").await;
    let birth = town.plane_of("b", &["a", "b"]).await;
    town.write(&birth, "x", "1").await;
    let plane = a.planes.awake(&birth.id).expect("it is awake");
    let old = plane.export().await.expect("it is small");
    town.write(&birth, "x", "2").await;
    a.planes.put_to_sleep(a.planes.slots()).await;
    let b = town.join("b").await;
    let state = PeerMessage::State {
        plane: birth.id.clone(),
        head: old.head.0,
    };
    let request = PeerRequest {
        message: state,
        payload: old.bytes,
    };
    assert_eq!(b.planes.handle(&id("a"), request).await, PeerReply::Done);
    let plane = b.planes.wake(&birth).await.expect("b takes it");
    assert!(!plane.imported());
    assert_eq!(town.read(&birth, "x").await.as_deref(), Some("2"));
}

/// PROTOCOL 19: a successor that cannot be reached does not get the plane; the owner continues to
/// serve it.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_hand_off_to_nowhere_is_called_off() {
    let town = Town::new();
    let a = town.join("a").await;
    let birth = town.plane_of("b", &["a", "b"]).await;
    town.write(&birth, "x", "1").await;
    town.wires.cut.lock().push((id("a"), id("b")));
    let b = town.join("b").await;
    until("a gives up", || {
        a.planes.stats().hand_offs_failed > 0 || b.ring.stats().lives_lost > 0
    })
    .await;
    town.wires.cut.lock().clear();
    town.write(&birth, "x", "2").await;
    until("b has it", || b.planes.awake(&birth.id).is_some()).await;
    assert_eq!(town.read(&birth, "x").await.as_deref(), Some("2"));
}

/// Wakes two planes, makes a commit of the second one hang, and returns their slots.
async fn one_of_which_is_stuck(
    town: &Town,
    replica: &Replica,
    names: [&str; 2],
) -> [Arc<crate::planes::plane_slot::PlaneSlot>; 2] {
    for name in names {
        let birth = town.plane(name).await;
        town.write(&birth, "x", "1").await;
    }
    let (of_last, sent) = (format!("p/{}/", names[1]), Arc::new(AtomicBool::new(false)));
    let sees = Arc::clone(&sent);
    let writes = move |txn: &Txn| {
        let mut keys = txn.ops.iter().map(Op::key);
        let is_it = keys.any(|key| key.starts_with(of_last.as_bytes()));
        sees.fetch_or(is_it, Ordering::AcqRel);
        is_it
    };
    let hangs = polyplane_storage::CommitFault::HangApplied;
    replica.store.plan().commits_matching(writes, hangs, 1);
    let stuck = replica.planes.awake(names[1]).expect("it is awake");
    tokio::spawn(async move {
        let write = Write {
            operations: vec![put("x", "2")],
            ..Write::default()
        };
        stuck.submit(write).await
    });
    until("the write is sent", || sent.load(Ordering::Acquire)).await;
    names.map(|name| replica.planes.known(name).expect("it has a slot"))
}

/// A successor that asks for a plane waits for that plane alone.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_plane_of_a_bulk_release_waits_for_no_other_planes_commits() {
    let town = Town::new();
    let a = town.join("a").await;
    let [free, stuck] = one_of_which_is_stuck(&town, &a, ["p0", "p1"]).await;
    let (planes, all) = (Arc::clone(&a.planes), vec![Arc::clone(&free), stuck]);
    let began = Instant::now();
    let sleeping = tokio::spawn(async move { planes.put_to_sleep(all).await });
    until("it is released", || a.planes.known("p0").is_none()).await;
    assert!(began.elapsed() < Duration::from_secs(1));
    let fence = free.fence.read_fence().await.expect("the store answers");
    let state = fence.expect("it was acquired").value.state;
    assert!(
        matches!(state, polyplane_fencing::FenceState::Released { .. }),
        "{state:?}"
    );
    assert!(a.planes.awake("p1").is_some(), "it cannot be released yet");
    sleeping.abort();
}

/// A stop has little time: neither a plane whose commit hangs nor one that a task works on keeps the
/// others, or the member key.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_stop_releases_what_it_can_and_leaves() {
    let town = Town::new();
    let a = town.join("a").await;
    let birth = town.plane("p2").await;
    town.write(&birth, "x", "1").await;
    let [_free, _stuck] = one_of_which_is_stuck(&town, &a, ["p0", "p1"]).await;
    let worked_on = a.planes.known("p2").expect("it has a slot");
    let busy = worked_on.busy().await;
    let patience = Duration::from_millis(500);
    assert!(
        !a.planes.drain(Instant::now() + patience).await,
        "a drain ends at its deadline"
    );
    assert!(a.planes.known("p0").is_none(), "it is released");
    let closing = tokio::time::timeout(PATIENCE / 4, a.planes.close_within(patience));
    closing.await.expect("it does not wait for the others");
    let member = crate::membership::member_record::member_key(&id("a"));
    let (_, found) = town.store.get(&member).await.expect("it answers");
    assert_eq!(found, None, "the member key is removed");
    drop(busy);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_watches_of_a_lost_plane_end_with_its_slot() {
    let town = Town::new();
    let a = town.join("a").await;
    let birth = town.plane("p").await;
    town.write(&birth, "x", "1").await;
    let plane = a.planes.awake("p").expect("it is awake");
    let scope = polyplane_plane::WatchScope::Prefix(key("x").resource_prefix());
    let from = polyplane_plane::WatchFrom::Now;
    let mut watcher = plane.watch(scope, from).await.expect("it begins");
    let slot = a.planes.known("p").expect("it has a slot");
    slot.fence.step(polyplane_fencing::Event::MemberLost);
    a.planes.drop_if_idle(&slot);
    until("its slot is dropped", || a.planes.known("p").is_none()).await;
    let ended = async {
        loop {
            match watcher.next().await {
                polyplane_plane::Next::Bookmark(_) => {}
                other => return other,
            }
        }
    };
    let ended = tokio::time::timeout(PATIENCE, ended).await;
    let ended = ended.expect("it does not stay open");
    let lost = polyplane_plane::Ended::Lost;
    assert!(
        matches!(ended, polyplane_plane::Next::Closed(why) if why == lost),
        "{ended:?}"
    );
}

/// A wake under way ends as soon as its replica does.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_replica_that_closes_acquires_nothing() {
    let town = Town::new();
    let a = town.join("a").await;
    let birth = town.plane("p").await;
    let fence = crate::records::fence_key(&birth.id);
    let puts = move |txn: &Txn| txn.ops.iter().any(|op| *op.key() == fence);
    let fault = polyplane_storage::CommitFault::UnknownNotApplied;
    a.store.plan().commits_matching(puts, fault, usize::MAX);
    let planes = Arc::clone(&a.planes);
    let waking = tokio::spawn(async move { planes.wake(&birth).await });
    until("it is tried", || a.planes.known("p").is_some()).await;
    tokio::time::timeout(PATIENCE / 4, a.planes.close())
        .await
        .expect("it waits for no wake");
    let woken = waking.await.expect("no panic");
    assert!(matches!(woken, Err(WakeError::Moved(_))), "{woken:?}");
}

/// Two replicas that drain at once release everything, and the next replica finds it.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn all_may_leave_at_once() {
    let town = Town::new();
    let a = town.join("a").await;
    let b = town.join("b").await;
    let mut births = Vec::new();
    for n in 0..8 {
        births.push(town.plane(&format!("p{n}")).await);
    }
    for birth in &births {
        town.write(birth, "x", &birth.id).await;
    }
    let deadline = Instant::now() + PATIENCE;
    let (left, right) = tokio::join!(a.planes.drain(deadline), b.planes.drain(deadline));
    assert!(left && right);
    tokio::join!(a.planes.close(), b.planes.close());
    for name in ["a", "b"] {
        town.replicas.lock().remove(name);
        town.wires.listening.lock().remove(&id(name));
    }
    let c = town.join("c").await;
    for birth in &births {
        assert_eq!(
            town.read(birth, "x").await.as_deref(),
            Some(birth.id.as_str())
        );
    }
    assert_eq!(c.planes.stats().taken_after_wait, 0);
}
