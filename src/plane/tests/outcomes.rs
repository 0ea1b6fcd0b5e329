//! The answers to callers when the store refuses, fails, or does not reply.

use std::time::Duration;

use polyplane_storage::{CommitFault, Op, RangeRequest, Rejection, Txn};
use std::sync::atomic::Ordering;

use super::*;

/// Number of times that a write that never gets a reply is sent.
const SENT_MAX: usize = 4;

fn of_plane(id: &'static str) -> impl Fn(&Txn) -> bool + Send + Sync + 'static {
    let prefix = format!("p/{id}/");
    move |txn| {
        txn.ops
            .iter()
            .any(|op| op.key().starts_with(prefix.as_bytes()))
    }
}

#[tokio::test]
async fn an_unknown_outcome_that_was_done_is_acknowledged_with_its_version() {
    let site = Site::new();
    let plane = site.open("a").await;
    let mut watcher = plane
        .watch(WatchScope::Prefix(configmaps()), WatchFrom::Now)
        .await
        .expect("fine");
    site.store
        .plan()
        .commits_matching(of_plane("a"), CommitFault::UnknownApplied, 1);
    let both = write(vec![put("m", "1"), delete("template-a")]);
    let done = plane.submit(both).await.expect("it was done");
    let events = events_until(&mut watcher, done.version).await;
    assert_eq!(events.len(), 2);
    let again = site.open("a").await;
    assert_eq!(dump(&again.snapshot()), dump(&plane.snapshot()));
    let held = again
        .snapshot()
        .get(&configmap("m"))
        .and_then(|o| o.version());
    assert_eq!(held, done.objects[0].object.version());
}

#[tokio::test]
async fn an_unknown_outcome_that_was_not_done_is_done_once_and_cannot_land_later() {
    let site = Site::new();
    let plane = site.open("a").await;
    let mut watcher = plane
        .watch(WatchScope::Prefix(configmaps()), WatchFrom::Now)
        .await
        .expect("fine");
    let plan = site.store.plan();
    plan.commits_matching(of_plane("a"), CommitFault::UnknownLate, 1);
    let create = claimed(put("m", "1"), Claim::Absent(configmap("m")));
    let done = plane.submit(create).await.expect("it is sent again");
    let late = site.store.apply_late().await;
    assert_eq!(late.len(), 1);
    late[0].as_ref().expect_err("the barrier stands before it");
    let next = plane.submit(write(vec![put("m", "2")])).await;
    let next = next.expect("the plane goes on");
    let events = events_until(&mut watcher, next.version).await;
    assert_eq!(events.len(), 2, "each is shown once");
    assert_eq!(events[0].version(), done.version);
    let again = site.open("a").await;
    assert_eq!(dump(&again.snapshot()), dump(&plane.snapshot()));
}

#[tokio::test]
async fn a_write_that_is_never_answered_is_said_not_to_be_done() {
    let site = Site::new();
    let plane = site.open("a").await;
    let plan = site.store.plan();
    plan.commits_matching(of_plane("a"), CommitFault::UnknownLate, SENT_MAX);
    let lost = plane.submit(write(vec![put("m", "1")])).await;
    assert!(matches!(lost, Err(SubmitError::Unavailable(_))));
    for late in site.store.apply_late().await {
        late.expect_err("a barrier stands before each");
    }
    assert!(plane.snapshot().get(&configmap("m")).is_none());
    let create = claimed(put("m", "2"), Claim::Absent(configmap("m")));
    plane.submit(create).await.expect("the plane goes on");
}

#[tokio::test(start_paused = true)]
async fn a_barrier_without_an_answer_is_tried_until_it_has_one() {
    let site = Site::new();
    let plane = site.open("a").await;
    let plan = site.store.plan();
    plan.commits_matching(of_plane("a"), CommitFault::UnknownApplied, 1);
    plan.commits_matching(puts_fence, CommitFault::UnknownApplied, 1);
    plan.commits_matching(puts_fence, CommitFault::UnknownNotApplied, 2);
    plan.next_reads(
        polyplane_storage::ReadFault::Fail(polyplane_storage::ReadError::Unavailable("no".into())),
        2,
    );
    plane
        .submit(write(vec![put("m", "1")]))
        .await
        .expect("it was done, and in the end that is known");
    let next = plane
        .submit(write(vec![put("m", "2")]))
        .await
        .expect("fine");
    assert_eq!(value(&next.objects[0].object), "2");
}

fn puts_fence(txn: &Txn) -> bool {
    txn.ops.iter().any(|op| op.key().starts_with(b"f/"))
}

#[tokio::test(start_paused = true)]
async fn writes_wait_while_an_outcome_is_unknown_and_cuts_are_recomputed() {
    let site = Site::new();
    let plane = site.open("a").await;
    let plan = site.store.plan();
    plan.commits_matching(of_plane("a"), CommitFault::UnknownNotApplied, SENT_MAX);
    plan.commits_matching(puts_fence, CommitFault::Delay(Duration::from_secs(1)), 1);
    let submit = |write: Write| {
        let plane = Arc::clone(&plane);
        tokio::spawn(async move { plane.submit(write).await })
    };
    let first = submit(write(vec![put("m", "1")]));
    let behind = submit(write(vec![put("m", "behind")]));
    tokio::task::yield_now().await;
    let cut = plane.accepted();
    let seen = cut.get(&configmap("m")).expect("it is under way");
    assert_eq!(seen.version(), None);
    while plane.is_settled() {
        tokio::task::yield_now().await;
    }
    let late = submit(claimed(
        put("m", "2"),
        Claim::At(configmap("m"), seen.stamp()),
    ));
    tokio::task::yield_now().await;
    assert!(!late.is_finished(), "the plane takes no writes meanwhile");
    assert_eq!(plane.settled(&cut).await, Settled::Recompute);
    let unavailable = first.await.expect("no panic");
    assert!(matches!(unavailable, Err(SubmitError::Unavailable(_))));
    let withdrawn = behind.await.expect("no panic").expect_err("it was behind");
    assert_eq!(withdrawn, SubmitError::Withdrawn);
    let broken = late
        .await
        .expect("no panic")
        .expect_err("what it saw is gone");
    // Between two attempts to send the part again it may have been accepted behind it.
    let is_told = matches!(
        broken,
        SubmitError::ClaimFailed(Broken::Claim(0)) | SubmitError::Withdrawn
    );
    assert!(is_told, "{broken}");
    assert_eq!(plane.settled(&plane.accepted()).await, Settled::Durable);
    assert_eq!(plane.settled(&plane.snapshot()).await, Settled::Durable);
}

#[tokio::test(start_paused = true)]
async fn a_cut_stands_once_what_it_saw_is_durable() {
    let site = Site::new();
    let plane = site.open("a").await;
    let plan = site.store.plan();
    plan.next_commit(CommitFault::Delay(Duration::from_secs(1)));
    let first = {
        let plane = Arc::clone(&plane);
        tokio::spawn(async move { plane.submit(write(vec![put("m", "1")])).await })
    };
    tokio::task::yield_now().await;
    let cut = plane.accepted();
    let seen = cut.get(&configmap("m")).expect("it is under way");
    assert_eq!(seen.version(), None);
    assert!(plane.snapshot().get(&configmap("m")).is_none());
    assert_eq!(plane.settled(&cut).await, Settled::Durable);
    let done = first.await.expect("no panic").expect("fine");
    assert_eq!(seen.version(), Some(done.version));
    assert_eq!(seen.body(), done.objects[0].object.body());
    // A later withdrawal does not affect cuts from before it.
    plan.next_commit(CommitFault::Reject(Rejection::TooLarge("by plan".into())));
    let refused = plane.submit(write(vec![put("n", "1")])).await;
    assert!(matches!(refused, Err(SubmitError::Refused(_))));
    assert_eq!(plane.settled(&cut).await, Settled::Durable);
}

#[tokio::test(start_paused = true)]
async fn a_full_disk_refuses_writes_serves_reads_and_heals() {
    let site = Site::new();
    let plane = site.open("a").await;
    plane
        .submit(write(vec![put("m", "1")]))
        .await
        .expect("fine");
    site.store.plan().fill();
    for _ in 0..3 {
        let refused = plane.submit(write(vec![put("m", "2")])).await;
        let Err(SubmitError::Refused(Rejection::NoSpace(_))) = refused else {
            panic!("not {refused:?}");
        };
    }
    assert!(plane.read_only().is_some());
    let refused = plane.submit(write(vec![put("m", "2")])).await;
    assert!(matches!(refused, Err(SubmitError::ReadOnly(_))));
    assert_eq!(
        value(&plane.snapshot().get(&configmap("m")).expect("there")),
        "1"
    );
    site.store.plan().free();
    // No write follows: the plane finds out by itself that the store accepts writes again.
    tokio::time::sleep(Duration::from_secs(2)).await;
    assert_eq!(plane.read_only(), None);
    let done = plane.submit(write(vec![put("m", "3")])).await;
    assert_eq!(value(&done.expect("fine").objects[0].object), "3");
}

#[tokio::test(start_paused = true)]
async fn a_store_that_is_full_before_an_outcome_is_settled_refuses_writes_and_loses_none() {
    for unknown in [CommitFault::UnknownApplied, CommitFault::UnknownLate] {
        let is_applied = unknown == CommitFault::UnknownApplied;
        let site = Site::new();
        let (plane, other) = (site.open("a").await, site.open("b").await);
        let kept = plane.submit(write(vec![put("kept", "1")])).await;
        kept.expect("fine");
        let from = WatchFrom::Now;
        let watcher = plane.watch(WatchScope::Prefix(configmaps()), from).await;
        let mut watcher = watcher.expect("fine");
        let plan = site.store.plan();
        plan.commits_matching(of_plane("a"), unknown, 1);
        let full = CommitFault::Reject(Rejection::NoSpace("by plan".into()));
        plan.commits_matching(|_| true, full, usize::MAX);
        let submit = |write: Write| {
            let plane = Arc::clone(&plane);
            tokio::spawn(async move { plane.submit(write).await })
        };
        let unsettled = submit(write(vec![put("new", "1")]));
        let behind = submit(write(vec![put("kept", "behind")]));
        let behind = behind.await.expect("no panic");
        let why = SubmitError::ReadOnly("no space: by plan".into());
        assert_eq!(behind.expect_err("the store is full"), why);
        let later = plane.submit(write(vec![put("kept", "later")])).await;
        assert_eq!(later.expect_err("the store is full"), why);
        assert_eq!(plane.read_only().as_deref(), Some("no space: by plan"));
        // Neither the only slot for transactions nor a reader waits for it.
        let elsewhere = other.submit(write(vec![put("m", "1")])).await;
        assert!(matches!(elsewhere, Err(SubmitError::Refused(_))));
        let (durable, cut) = (plane.snapshot(), plane.accepted());
        assert_eq!(plane.settled(&cut).await, Settled::Durable);
        assert_eq!(dump(&cut), dump(&durable));
        assert_eq!(value(&cut.get(&configmap("kept")).expect("there")), "1");
        let before = plan.commits_asked();
        tokio::time::sleep(Duration::from_secs(60)).await;
        let tries = plan.commits_asked() - before;
        assert!((50..=70).contains(&tries), "{tries} tries in a minute");
        assert!(!unsettled.is_finished(), "nobody knows yet");
        plan.clear();
        let answer = unsettled.await.expect("no panic");
        match is_applied {
            true => drop(answer.expect("it was applied")),
            false => assert!(matches!(answer, Err(SubmitError::Unavailable(_)))),
        }
        for late in site.store.apply_late().await {
            late.expect_err("the barrier stands before it");
        }
        assert_eq!(plane.read_only(), None);
        let create = claimed(put("new", "2"), Claim::Absent(configmap("new")));
        let created = plane.submit(create).await;
        assert_eq!(created.is_err(), is_applied, "{created:?}");
        let next = plane.submit(write(vec![put("kept", "2")])).await;
        let next = next.expect("the plane goes on");
        let events = events_until(&mut watcher, next.version).await;
        assert_eq!(events.len(), 2, "each write is shown once");
        let again = site.open("a").await;
        assert_eq!(dump(&again.snapshot()), dump(&plane.snapshot()));
    }
}

#[tokio::test(start_paused = true)]
async fn a_final_reply_that_does_not_say_what_was_done_is_settled_by_a_read() {
    let full = || Rejection::NoSpace("by plan".into());
    for is_applied in [true, false] {
        let site = Site::new();
        let plane = site.open("a").await;
        let plan = site.store.plan();
        let undisclosed = match is_applied {
            true => CommitFault::UndisclosedApplied(full()),
            false => CommitFault::UndisclosedNotApplied(full()),
        };
        plan.commits_matching(of_plane("a"), undisclosed, 1);
        // No later write is accepted, so none can settle it.
        plan.commits_matching(|_| true, CommitFault::Reject(full()), usize::MAX);
        plan.next_reads(
            polyplane_storage::ReadFault::Fail(polyplane_storage::ReadError::Unavailable(
                "no".into(),
            )),
            1,
        );
        let answer = plane.submit(write(vec![put("m", "1")])).await;
        match is_applied {
            true => drop(answer.expect("it was applied")),
            false => assert_eq!(
                answer.expect_err("the store is full"),
                SubmitError::Refused(full())
            ),
        }
        let there = plane.snapshot().get(&configmap("m")).is_some();
        assert_eq!(there, is_applied);
        plan.clear();
        plane
            .submit(write(vec![put("m", "2")]))
            .await
            .expect("the plane goes on");
        let again = site.open("a").await;
        assert_eq!(dump(&again.snapshot()), dump(&plane.snapshot()));
    }
}

#[tokio::test(start_paused = true)]
async fn one_probe_finds_out_for_every_read_only_plane_of_a_store() {
    let site = Site::new();
    let mut planes = Vec::new();
    for id in ["a", "b", "c"] {
        planes.push(site.open(id).await);
    }
    site.store.plan().fill();
    for plane in &planes {
        for _ in 0..3 {
            let refused = plane.submit(write(vec![put("m", "2")])).await;
            assert!(matches!(refused, Err(SubmitError::Refused(_))));
        }
    }
    let before = site.store.plan().commits_asked();
    tokio::time::sleep(Duration::from_secs(60)).await;
    let probes = site.store.plan().commits_asked() - before;
    assert!(
        (50..=70).contains(&probes),
        "{probes} probes of three planes in a minute"
    );
    site.store.plan().free();
    tokio::time::sleep(Duration::from_secs(2)).await;
    for plane in &planes {
        assert_eq!(plane.read_only(), None);
        plane
            .submit(write(vec![put("m", "3")]))
            .await
            .expect("it takes writes");
    }
    let quiet = site.store.plan().commits_asked();
    tokio::time::sleep(Duration::from_secs(3600)).await;
    assert_eq!(site.store.plan().commits_asked(), quiet, "nothing goes on");
}

#[tokio::test(start_paused = true)]
async fn a_read_only_plane_that_is_paused_and_resumed_still_heals() {
    for unanswered in [false, true] {
        let site = Site::new();
        let plane = site.open("a").await;
        let plan = site.store.plan();
        if unanswered {
            // The first probe is applied but gets no reply.
            plan.commits_matching(puts_fence, CommitFault::UnknownApplied, 1);
        }
        let full = || CommitFault::Reject(Rejection::NoSpace("by plan".into()));
        plan.commits_matching(|_| true, full(), 100);
        for _ in 0..3 {
            let refused = plane.submit(write(vec![put("m", "2")])).await;
            assert!(matches!(refused, Err(SubmitError::Refused(_))));
        }
        tokio::time::sleep(Duration::from_secs(1)).await;
        let soon = Instant::now() + Duration::from_secs(1);
        plane.pause(soon).await.expect("nothing is under way");
        plan.clear();
        tokio::time::sleep(Duration::from_secs(5)).await;
        plane.resume();
        tokio::time::sleep(Duration::from_secs(5)).await;
        assert_eq!(plane.read_only(), None);
        plane
            .submit(write(vec![put("m", "3")]))
            .await
            .expect("it takes writes");
    }
}

#[tokio::test]
async fn a_plane_that_has_lost_its_fence_writes_nothing_and_others_continue() {
    let site = Site::new();
    let old = site.open("a").await;
    let other = site.open("b").await;
    let mut watcher = old
        .watch(WatchScope::Prefix(configmaps()), WatchFrom::Now)
        .await
        .expect("fine");
    let new = site.open("a").await;
    // The two planes share a transaction, because an earlier write keeps the only slot busy until
    // both have queued theirs.
    let (_, lost, fine) = tokio::join!(
        other.submit(write(vec![put("busy", "1")])),
        old.submit(write(vec![put("m", "old")])),
        other.submit(write(vec![put("m", "other")])),
    );
    assert_eq!(
        lost.expect_err("another replica holds the fence"),
        SubmitError::Lost
    );
    fine.expect("its fence is unmoved");
    assert!(matches!(watcher.next().await, Next::Closed(Ended::Lost)));
    let soon = Instant::now() + Duration::from_secs(1);
    assert_eq!(old.answerable(soon).await, Err(NotAnswerable::Lost));
    new.submit(write(vec![put("m", "new")]))
        .await
        .expect("fine");
    assert_eq!(
        value(&new.snapshot().get(&configmap("m")).expect("there")),
        "new"
    );
}

#[tokio::test]
async fn a_deadline_ends_the_wait_and_nothing_that_was_queued_is_lost() {
    let site = Site::new();
    let plane = site.open("a").await;
    let plan = site.store.plan();
    plan.next_commit(CommitFault::Delay(Duration::from_millis(200)));
    let impatient = Write {
        deadline: Some(Instant::now() + Duration::from_millis(10)),
        ..write(vec![put("m", "1")])
    };
    let error = plane.submit(impatient).await.expect_err("too slow");
    assert_eq!(error, SubmitError::Deadline);
    let queued = {
        let plane = Arc::clone(&plane);
        tokio::spawn(async move { plane.submit(write(vec![put("n", "1")])).await })
    };
    tokio::task::yield_now().await;
    close(&plane, Ended::Closed).await;
    queued
        .await
        .expect("no panic")
        .expect("it was queued before");
    let again = site.open("a").await;
    assert!(again.snapshot().get(&configmap("m")).is_some());
    assert!(again.snapshot().get(&configmap("n")).is_some());
}

#[tokio::test]
async fn an_unknown_outcome_is_settled_though_the_last_write_is_forgotten() {
    let site = Site::new();
    let observed = Arc::new(Mutex::new(0));
    let test = Test {
        observed: Arc::clone(&observed),
        ..Test::default()
    };
    let plane = site.open_with("a", test).await;
    plane
        .submit(write(vec![put("m", "1")]))
        .await
        .expect("fine");
    let other = site.open("b").await;
    other
        .submit(write(vec![put("m", "1")]))
        .await
        .expect("fine");
    let newest = site.store.revision().await.expect("it answers");
    site.store.compact(newest).await.expect("it answers");
    *observed.lock() = newest.0;
    for fault in [CommitFault::UnknownNotApplied, CommitFault::UnknownApplied] {
        let plan = site.store.plan();
        plan.commits_matching(of_plane("a"), fault, 1);
        let received = plane.submit(write(vec![put("m", "2")])).await;
        assert!(matches!(received, Ok(_) | Err(SubmitError::Unavailable(_))));
    }
    let object = plane.snapshot().get(&configmap("m")).expect("there");
    assert_eq!(value(&object), "2");
}

#[tokio::test(start_paused = true)]
async fn what_the_next_owner_did_is_not_taken_for_ones_own() {
    let site = Site::new();
    let old = site.open("a").await;
    old.submit(write(vec![put("m", "0")])).await.expect("fine");
    let stored = site.inner.range(RangeRequest::prefix("p/a/o/")).await;
    let stored = stored.expect("fine").items.remove(0);
    let unknown = CommitFault::UnknownNotApplied;
    site.store
        .plan()
        .commits_matching(of_plane("a"), unknown, 1);
    // The barrier arrives after the next owner has written.
    let late = CommitFault::Delay(Duration::from_secs(5));
    site.store.plan().commits_matching(|_| true, late, 1);
    let next_owner = async {
        tokio::time::sleep(Duration::from_secs(1)).await;
        let taken = SoleHolder::take(Arc::clone(&site.inner), "f/a", "another").await;
        taken.expect("it is taken");
        let put = Op::Put {
            key: stored.key,
            value: stored.value,
            lease: None,
        };
        let txn = Txn {
            compares: Vec::new(),
            ops: vec![put],
        };
        site.inner
            .commit(txn)
            .await
            .expect("it writes the same key");
    };
    let (answer, ()) = tokio::join!(old.submit(write(vec![put("m", "1")])), next_owner);
    assert_eq!(answer.expect_err("it was never done"), SubmitError::Lost);
}

#[tokio::test(start_paused = true)]
async fn what_another_wrote_while_the_history_was_read_is_not_taken_for_ones_own() {
    let site = Site::new();
    let hooks = Arc::new(Hooks::default());
    let test = Test {
        hooks: Arc::clone(&hooks),
        ..Test::default()
    };
    let old = site.open_with("a", test).await;
    old.submit(write(vec![put("m", "0")])).await.expect("fine");
    let stored = site.inner.range(RangeRequest::prefix("p/a/o/")).await;
    let stored = stored.expect("fine").items.remove(0);
    let plan = site.store.plan();
    plan.commits_matching(of_plane("a"), CommitFault::UnknownNotApplied, 1);
    // The member key is gone, so the barrier is refused, and no other replica has the fence yet.
    hooks.member_lost.store(true, Ordering::Relaxed);
    plan.next_reads(
        polyplane_storage::ReadFault::Delay(Duration::from_secs(1)),
        2,
    );
    let lost = async {
        // Between the two reads that settle the outcome, the next owner takes the fence and writes.
        tokio::time::sleep(Duration::from_millis(1500)).await;
        let taken = SoleHolder::take(Arc::clone(&site.inner), "f/a", "another").await;
        taken.expect("it is taken");
        let put = Op::Put {
            key: stored.key,
            value: stored.value,
            lease: None,
        };
        let txn = Txn {
            compares: Vec::new(),
            ops: vec![put],
        };
        let written = site.inner.commit(txn).await;
        written.expect("it writes the same key");
    };
    let (answer, ()) = tokio::join!(old.submit(write(vec![put("m", "1")])), lost);
    assert_eq!(answer.expect_err("it was never done"), SubmitError::Lost);
}
