//! Pause, hand-off and end: the successor is equal, and every caller gets a true answer.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use polyplane_storage::CommitFault;
use proptest::prelude::*;

use super::watches::{Change, apply, changes, watch_from};
use super::*;

fn soon() -> Instant {
    Instant::now() + Duration::from_secs(5)
}

/// Pauses a plane and opens it again from its own export.
async fn hand_over(site: &Site, plane: &Arc<Plane>, log: LogBounds) -> Arc<Plane> {
    let head = plane.pause(soon()).await.expect("nothing hangs");
    let export = plane.export().await.expect("it is small");
    assert_eq!(export.head, head);
    let import = Import {
        head,
        bytes: export.bytes,
    };
    plane.end(Ended::Moved);
    let test = Test {
        base: plane.base().0,
        import: Some(import),
        log,
        ..Test::default()
    };
    let successor = site.open_with(plane.id(), test).await;
    assert!(successor.imported());
    successor
}

/// Returns the events that a watch resumed after `from` delivers, or `None` if it cannot resume.
async fn rest(plane: &Arc<Plane>, from: Version, until: Version) -> Option<Vec<String>> {
    let scope = WatchScope::Prefix(configmaps());
    let mut watcher = plane.watch(scope, WatchFrom::After(from)).await.ok()?;
    let events = events_until(&mut watcher, until).await;
    Some(events.iter().map(|event| tell(event)).collect())
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(24))]

    /// The successor has the same objects, versions and previous versions, and a watch that resumes
    /// anywhere gets the same events; also after two hand-offs, and when older history has to be
    /// read from the store.
    #[test]
    fn what_is_handed_over_is_the_plane(
        first in changes(),
        second in prop_oneof![1 => Just(Vec::new()), 3 => changes()],
        reopened in any::<bool>(),
    ) {
        run(async {
            let site = Site::new();
            let mut plane = site.open("a").await;
            let born = plane.snapshot().version();
            let mut kept = vec![plane.snapshot()];
            apply(&plane, &first, |cut| kept.push(cut)).await;
            if reopened {
                plane = site.open("a").await;
            }
            let mut watcher = watch_from(&plane, WatchFrom::After(born)).await;
            apply(&plane, &second, |cut| kept.push(cut)).await;
            let last = kept.last().expect("the first is there").version();
            let events = events_until(&mut watcher, last).await;
            let one = hand_over(&site, &plane, LogBounds::default()).await;
            let two = hand_over(&site, &one, LogBounds::default()).await;
            let until = events.last().map_or(Version::ZERO, |event| event.version());
            let received: Vec<_> = events.iter().map(|event| tell(event)).collect();
            prop_assert!(two.snapshot().version() >= last);
            prop_assert_eq!(two.snapshot().version(), two.seen());
            prop_assert_eq!(dump(&two.snapshot()), dump(&plane.snapshot()));
            prop_assert_eq!(dump(&site.open("a").await.snapshot()), dump(&two.snapshot()));
            let label = |plane: &Plane| plane.snapshot().index_amount(LABELS, b"x");
            prop_assert_eq!(label(&two), label(&plane));
            for cut in &kept {
                let at = two.at(cut.version(), &configmaps()).await.expect("inside");
                prop_assert_eq!(dump(&at), dump(cut));
            }
            let froms = std::iter::once(born).chain(events.iter().map(|event| event.version()));
            for (at, from) in froms.enumerate() {
                let rest = rest(&two, from, until).await;
                prop_assert_eq!(rest.as_deref(), Some(&received[at..]));
            }
            Ok(())
        })?;
    }
}

#[tokio::test]
async fn a_successor_goes_on_writing_with_rising_versions() {
    let site = Site::new();
    let plane = site.open("a").await;
    let first = plane
        .submit(write(vec![put("m", "1"), delete("template-a")]))
        .await;
    let first = first.expect("fine").version;
    let next = hand_over(&site, &plane, LogBounds::default()).await;
    let object = next.snapshot().get(&configmap("m")).expect("there");
    let change = claimed(put("m", "2"), Claim::At(configmap("m"), object.stamp()));
    let second = next
        .submit(change)
        .await
        .expect("its stamp is the one it shows");
    assert!(second.version > first);
    let again = site.open("a").await;
    assert_eq!(dump(&again.snapshot()), dump(&next.snapshot()));
    let lost = plane.submit(write(vec![put("m", "3")])).await;
    assert_eq!(lost.expect_err("it has moved"), SubmitError::Lost);
}

/// Other tasks on the worker thread of a large export run while it is made, renewals of leases
/// included.
#[tokio::test]
async fn an_export_lets_other_tasks_run() {
    let site = Site::new();
    let plane = site.open("a").await;
    let (objects, bytes) = (24, 512 << 10);
    for n in 0..objects {
        let text = n.to_string().repeat(bytes / n.to_string().len());
        let put = put(&format!("m-{n}"), &text);
        plane.submit(write(vec![put])).await.expect("fine");
    }
    plane.pause(soon()).await.expect("nothing hangs");
    let turns = Arc::new(AtomicUsize::new(0));
    let counted = Arc::clone(&turns);
    let other = tokio::spawn(async move {
        loop {
            counted.fetch_add(1, Ordering::Relaxed);
            tokio::task::yield_now().await;
        }
    });
    let export = plane.export().await.expect("it is small enough");
    other.abort();
    let turns = turns.load(Ordering::Relaxed);
    // Each object counts once when it is copied, and at least once when the digest reads it.
    assert!(export.bytes.len() >= objects * bytes / 2);
    assert!(turns >= 2 * objects, "others ran {turns} times");
}

#[tokio::test]
async fn what_does_not_fit_is_not_used() {
    let site = Site::new();
    let plane = site.open("a").await;
    plane
        .submit(write(vec![put("m", "1")]))
        .await
        .expect("fine");
    let head = plane.pause(soon()).await.expect("nothing hangs");
    let bytes = plane.export().await.expect("small").bytes;
    plane.resume();
    plane
        .submit(write(vec![put("m", "2")]))
        .await
        .expect("fine");
    let other = site.open("b").await.export().await.expect("small");
    let mut damaged: Vec<Import> = Vec::new();
    let of = |bytes: Vec<u8>| Import {
        head,
        bytes: bytes.into(),
    };
    for at in [0, 4, 5, 20, bytes.len() / 2, bytes.len() - 1] {
        let mut bad = bytes.to_vec();
        bad[at] ^= 1;
        damaged.push(of(bad));
    }
    damaged.extend([0, 3, 5, 40, bytes.len() - 1].map(|len| of(bytes[..len].to_vec())));
    damaged.push(Import {
        head: other.head,
        bytes: other.bytes,
    });
    // An undamaged export of an earlier time: a write has come after it.
    damaged.push(Import {
        head: plane.head(),
        bytes: bytes.clone(),
    });
    for import in damaged {
        let test = Test {
            import: Some(import),
            ..Test::default()
        };
        let opened = site.open_with("a", test).await;
        assert!(!opened.imported());
        let object = opened.snapshot().get(&configmap("m")).expect("there");
        assert_eq!(value(&object), "2");
    }
}

#[tokio::test]
async fn old_events_stay_behind_and_who_needs_them_is_told() {
    let site = Site::new();
    let plane = site.open("a").await;
    let mut versions = Vec::new();
    for round in 0..40 {
        let one = write(vec![put("m", &round.to_string())]);
        versions.push(plane.submit(one).await.expect("fine").version);
    }
    let log = LogBounds {
        bytes_max: 4000,
        ..LogBounds::default()
    };
    let next = hand_over(&site, &plane, log).await;
    assert!(next.stats().log_bytes <= 4000);
    let scope = || WatchScope::Prefix(configmaps());
    let old = next.watch(scope(), WatchFrom::After(versions[0])).await;
    assert_eq!(
        old.expect_err("left behind"),
        WatchError::Expired(ExpiredCause::Bytes)
    );
    let received = rest(&next, versions[37], versions[39]).await;
    assert_eq!(received.map(|received| received.len()), Some(2));
    let other = WatchScope::Prefix(Prefix::resource("", "secrets"));
    next.watch(other, WatchFrom::After(versions[0]))
        .await
        .expect("nothing of it was left behind");
}

#[tokio::test]
async fn what_the_former_owner_had_dropped_is_gone_by_the_hand_over() {
    let site = Site::new();
    let mut plane = site.open_with("a", Test::with_log_of(4000)).await;
    let mut versions = Vec::new();
    for round in 0..40 {
        let one = write(vec![put("m", &round.to_string())]);
        versions.push(plane.submit(one).await.expect("fine").version);
    }
    let scope = || WatchScope::Prefix(configmaps());
    let from = WatchFrom::After(versions[0]);
    let old = plane.watch(scope(), from).await;
    let gone = WatchError::Expired(ExpiredCause::Bytes);
    assert_eq!(old.expect_err("dropped here"), gone);
    // The next owner has a larger log. It does not know which events the first one dropped, or why.
    for _ in ["first", "second"] {
        let next = hand_over(&site, &plane, LogBounds::default()).await;
        let gone = ExpiredCause::HandedOver;
        let old = next.watch(scope(), from).await;
        assert_eq!(old.expect_err("dropped there"), WatchError::Expired(gone));
        let old = next.at(versions[0], &configmaps()).await;
        assert_eq!(old.expect_err("dropped there"), AtError::Expired(gone));
        let received = rest(&next, versions[37], versions[39]).await;
        assert_eq!(received.map(|received| received.len()), Some(2));
        plane = next;
    }
}

#[tokio::test(start_paused = true)]
async fn a_pause_settles_what_was_sent_and_keeps_the_rest_waiting() {
    let site = Site::new();
    let plane = site.open("a").await;
    let plan = site.store.plan();
    plan.next_commit(CommitFault::Delay(Duration::from_secs(1)));
    let submit = |name: &'static str| {
        let plane = Arc::clone(&plane);
        tokio::spawn(async move { plane.submit(write(vec![put(name, "1")])).await })
    };
    let sent = submit("sent");
    tokio::task::yield_now().await;
    let queued = submit("queued");
    tokio::task::yield_now().await;
    let head = plane.pause(soon()).await.expect("a second is enough");
    let sent = sent.await.expect("no panic").expect("it was settled");
    assert_eq!(sent.version.revision(plane.base()), head);
    let late = submit("late");
    tokio::time::sleep(Duration::from_secs(3)).await;
    assert!(!queued.is_finished() && !late.is_finished());
    assert_eq!(plane.head(), head, "nothing is sent");
    assert!(plane.snapshot().get(&configmap("queued")).is_none());
    plane.resume();
    queued.await.expect("no panic").expect("it goes on");
    late.await.expect("no panic").expect("it goes on");

    plan.next_commit(CommitFault::Delay(Duration::from_secs(60)));
    let slow = submit("slow");
    tokio::task::yield_now().await;
    assert_eq!(plane.pause(soon()).await, Err(PauseError::Deadline));
    let after = submit("after");
    slow.await.expect("no panic").expect("fine");
    after.await.expect("no panic").expect("the pause is over");
}

#[tokio::test(start_paused = true)]
async fn an_end_tells_the_queued_lost_and_the_sent_what_is_true() {
    let site = Site::new();
    let plane = site.open("a").await;
    let mut watcher = watch_from(&plane, WatchFrom::Now).await;
    let first = plane
        .submit(write(vec![put("m", "1")]))
        .await
        .expect("fine");
    let plan = site.store.plan();
    plan.next_commit(CommitFault::Delay(Duration::from_secs(1)));
    let submit = |name: &'static str, wait: u64| {
        let plane = Arc::clone(&plane);
        let deadline = Some(Instant::now() + Duration::from_secs(wait));
        let write = Write {
            deadline,
            ..write(vec![put(name, "1")])
        };
        tokio::spawn(async move { plane.submit(write).await })
    };
    let sent = submit("sent", 60);
    tokio::task::yield_now().await;
    let queued = submit("queued", 60);
    tokio::task::yield_now().await;
    let before = Instant::now();
    plane.end(Ended::Moved);
    assert_eq!(before.elapsed(), Duration::ZERO);
    let queued = queued.await.expect("no panic");
    assert_eq!(queued.expect_err("it was never sent"), SubmitError::Lost);
    assert_eq!(before.elapsed(), Duration::ZERO);
    let Next::Events(events) = watcher.next().await else {
        panic!("what is published is told first");
    };
    assert_eq!(
        events.last().map(|event| event.version()),
        Some(first.version)
    );
    assert!(matches!(watcher.next().await, Next::Closed(Ended::Moved)));
    assert_eq!(watcher.sent_up_to(), first.version);
    sent.await
        .expect("no panic")
        .expect("the store has taken it");
    let again = site.open("a").await;
    assert!(again.snapshot().get(&configmap("sent")).is_some());
    assert!(again.snapshot().get(&configmap("queued")).is_none());
    plane.end(Ended::Deleted);
    let late = plane
        .watch(WatchScope::Prefix(configmaps()), WatchFrom::Now)
        .await;
    let ended = WatchError::Ended(Ended::Moved);
    assert_eq!(late.expect_err("the first end counts"), ended);
}

#[tokio::test(start_paused = true)]
async fn an_end_during_an_unknown_outcome_waits_for_no_store() {
    let site = Site::new();
    let plane = site.open("a").await;
    let plan = site.store.plan();
    plan.next_commit(CommitFault::UnknownLate);
    // No barrier ever succeeds.
    let fence = |txn: &polyplane_storage::Txn| txn.ops.iter().any(|op| op.key() == "f/a");
    plan.commits_matching(fence, CommitFault::UnknownNotApplied, 1000);
    let sent = {
        let plane = Arc::clone(&plane);
        tokio::spawn(async move { plane.submit(write(vec![put("m", "1")])).await })
    };
    tokio::time::sleep(Duration::from_secs(3)).await;
    assert!(!sent.is_finished());
    let before = Instant::now();
    plane.end(Ended::Lost);
    let sent = sent.await.expect("no panic");
    assert_eq!(sent.expect_err("nobody knows"), SubmitError::Deadline);
    assert_eq!(before.elapsed(), Duration::ZERO);
    assert_eq!(
        plane.pause(soon()).await,
        Err(PauseError::Ended(Ended::Lost))
    );
}

#[tokio::test]
async fn a_change_is_not_lost_between_a_handed_over_state_and_the_store() {
    // An import of a plane that had loaded no history reads older events from the store.
    let site = Site::new();
    let plane = site.open("a").await;
    let born = plane.snapshot().version();
    apply(
        &plane,
        &[vec![Change::Put(4, 1)], vec![Change::Delete(0)]],
        |_| {},
    )
    .await;
    let plane = site.open("a").await;
    apply(&plane, &[vec![Change::Put(4, 2)]], |_| {}).await;
    let next = hand_over(&site, &plane, LogBounds::default()).await;
    let until = next.snapshot().version();
    let mut watcher = watch_from(&next, WatchFrom::After(born)).await;
    assert_eq!(events_until(&mut watcher, until).await.len(), 3);
}

/// Counts how many times another task of the same thread ran while `work` was done.
async fn turns_of_others<T>(work: impl Future<Output = T>) -> (T, usize) {
    let turns = Arc::new(AtomicUsize::new(0));
    let counted = Arc::clone(&turns);
    let other = tokio::spawn(async move {
        loop {
            counted.fetch_add(1, Ordering::Relaxed);
            tokio::task::yield_now().await;
        }
    });
    let done = work.await;
    other.abort();
    (done, turns.load(Ordering::Relaxed))
}

#[tokio::test]
async fn others_run_while_a_large_plane_wakes() {
    const OBJECTS: usize = 120;
    const OBJECT_BYTES: usize = 100 << 10;
    // The export yields after each quarter of a mebibyte. Half as many yields are required, because
    // the pages of the state do not end exactly there.
    const TURNS_MIN: usize = OBJECTS * OBJECT_BYTES / (512 << 10);
    let site = Site::new();
    let plane = site.open("a").await;
    let first = plane.snapshot().version();
    let text = "x".repeat(OBJECT_BYTES);
    for number in 0..OBJECTS {
        let one = write(vec![put(
            &format!("m{number:05}"),
            &format!("{number}{text}"),
        )]);
        plane.submit(one).await.expect("fine");
    }
    let head = plane.snapshot().version();
    let (plane, turns) = turns_of_others(site.open("a")).await;
    assert!(turns >= TURNS_MIN, "loaded from the store: {turns}");
    let (cut, turns) = turns_of_others(plane.at(head, &configmaps())).await;
    assert!(cut.is_ok(), "{turns}");
    let old = WatchFrom::After(first);
    let scope = WatchScope::Prefix(configmaps());
    let (_, turns) = turns_of_others(plane.watch(scope, old)).await;
    assert!(turns >= TURNS_MIN, "history: {turns}");
    let log = LogBounds::default();
    let (next, turns) = turns_of_others(hand_over(&site, &plane, log)).await;
    assert!(turns >= TURNS_MIN, "handed over: {turns}");
    assert_eq!(next.stats().objects, plane.stats().objects);
}
