//! A log weighs what it keeps in memory: replaced bodies and frames included.

use super::watches::watch_from;
use super::*;
use crate::history::expired_cause::ExpiredCause;

const MIB: usize = 1 << 20;

/// Returns a put of an object with a value of this length that no other object has.
fn large(name: &str, round: usize, len: usize) -> Operation {
    put(name, &format!("{round}{}", "v".repeat(len)))
}

/// Returns all events that the log still has. Finds them by trying the versions from the oldest on.
async fn events_kept(plane: &Arc<Plane>, versions: &[Version]) -> Vec<Arc<Event>> {
    let scope = || WatchScope::Prefix(configmaps());
    for version in versions {
        if let Ok(mut watcher) = plane.watch(scope(), WatchFrom::After(*version)).await {
            let last = *versions.last().expect("something was written");
            if *version == last {
                return Vec::new();
            }
            return events_until(&mut watcher, last).await;
        }
    }
    Vec::new()
}

fn previous_bytes(events: &[Arc<Event>]) -> usize {
    let previous = events.iter().filter_map(|event| event.previous());
    previous.map(ObjectRef::body_len).sum()
}

#[tokio::test]
async fn replaced_bodies_are_within_the_bound() {
    let site = Site::new();
    let plane = site.open_with("a", Test::with_log_of(MIB)).await;
    let names: Vec<String> = (0..40).map(|at| format!("m{at}")).collect();
    for (at, name) in names.iter().enumerate() {
        let one = write(vec![large(name, at, 100_000)]);
        plane.submit(one).await.expect("fine");
    }
    // Each small write pins the large body that it replaces.
    let mut versions = vec![plane.snapshot().version()];
    for name in &names {
        let done = plane.submit(write(vec![put(name, "small")])).await;
        versions.push(done.expect("fine").version);
    }
    let events = events_kept(&plane, &versions).await;
    assert!(!events.is_empty());
    let held = previous_bytes(&events);
    assert!(held <= MIB, "{held} bytes are pinned");
    let weighed = plane.stats().log_bytes;
    assert!((held..=MIB).contains(&weighed), "{weighed} for {held}");
}

#[tokio::test(start_paused = true)]
async fn frames_are_within_the_bound_and_the_newest_is_kept() {
    let site = Site::new();
    let plane = site.open_with("a", Test::with_log_of(MIB)).await;
    let mut watcher = watch_from(&plane, WatchFrom::Now).await;
    let mut versions = Vec::new();
    let mut frames: Vec<Bytes> = Vec::new();
    for round in 0..100 {
        let done = plane.submit(write(vec![large("m", round, 10_000)])).await;
        let version = done.expect("fine").version;
        versions.push(version);
        for event in events_until(&mut watcher, version).await {
            for view in 0..3 {
                let build = |_: &Event| Bytes::from(vec![b'f'; 10_000]);
                frames.push(event.frame(view, build));
            }
            // The next watcher shares the frame that was just built.
            let shared = event.frame(2, |_| panic!("it was just built"));
            assert_eq!(shared.as_ptr(), frames[frames.len() - 1].as_ptr());
        }
        let kept = frames.iter_mut().filter(|frame| !frame.is_unique());
        let kept: usize = kept.map(|frame| frame.len()).sum();
        let weighed = plane.stats().log_bytes;
        assert!(kept <= weighed && weighed <= MIB, "{weighed} for {kept}");
    }
    let events = events_kept(&plane, &versions).await;
    let weighed = plane.stats().log_bytes;
    let kept = frames.iter_mut().filter(|frame| !frame.is_unique());
    let held = previous_bytes(&events) + kept.map(|frame| frame.len()).sum::<usize>();
    assert!((held..=MIB).contains(&weighed), "{weighed} for {held}");
    drop((events, watcher));
    tokio::time::advance(LogBounds::default().age_max + Duration::from_secs(1)).await;
    plane.sweep_log();
    assert_eq!(plane.stats().log_bytes, 0, "frames go with their events");
    assert!(frames.iter().all(Bytes::is_unique));
}

/// Parts that repeat in a chain of writes are counted once: a large object whose status changes
/// often keeps its history.
#[tokio::test]
async fn shared_parts_of_replaced_bodies_weigh_once() {
    let site = Site::new();
    let plane = site.open_with("a", Test::with_log_of(MIB)).await;
    let data = "d".repeat(200_000);
    let mut versions = Vec::new();
    for round in 0..50 {
        let one = write(vec![put_labelled("m", &round.to_string(), &data)]);
        versions.push(plane.submit(one).await.expect("fine").version);
    }
    let weighed = plane.stats().log_bytes;
    assert!(weighed >= data.len(), "the part is pinned: {weighed}");
    let events = events_kept(&plane, &versions[2..]).await;
    assert!(events.len() >= 47, "{}", events.len());
}

/// The largest log drops events first, and a watcher that falls behind because of it gets that
/// cause.
#[tokio::test]
async fn all_logs_together_are_within_their_share() {
    let memory = Memory::with_limits(|_| MIB);
    let mut site = Site::new();
    site.committer = Committer::with_memory(site.store.clone(), Arc::clone(&memory));
    let (small, large_one) = (site.open("small").await, site.open("large").await);
    let before = small.snapshot().version();
    let large_before = large_one.snapshot().version();
    for round in 0..10 {
        let one = write(vec![large("m", round, 1000)]);
        small.submit(one).await.expect("fine");
    }
    for round in 0..200 {
        let one = write(vec![large("m", round, 20_000)]);
        large_one.submit(one).await.expect("fine");
        let used = memory.used(Share::Logs);
        let weighed = small.stats().log_bytes + large_one.stats().log_bytes;
        assert!(used <= MIB && used == weighed, "{used}, {weighed}");
    }
    assert!(memory.used(Share::Logs) > MIB * 3 / 4, "it is used");
    assert!(memory.times_full(Share::Logs) > 0);
    let scope = || WatchScope::Prefix(configmaps());
    let kept = small.watch(scope(), WatchFrom::After(before)).await;
    assert!(kept.is_ok(), "a small log keeps what it has");
    let gone = large_one
        .watch(scope(), WatchFrom::After(large_before))
        .await;
    let gone = gone.expect_err("shed");
    assert_eq!(gone, WatchError::Expired(ExpiredCause::Memory));
    drop(kept);
    close(&large_one, Ended::Closed).await;
    close(&small, Ended::Closed).await;
    drop((small, large_one));
    // The tasks of the commits may keep references to a plane for a moment longer.
    while memory.used(Share::Logs) > 0 {
        tokio::task::yield_now().await;
    }
}

/// One plane's unread answers never fill the share of all.
#[tokio::test]
async fn answers_of_a_plane_leave_room_for_those_of_others() {
    let memory = Memory::with_limits(|_| MIB);
    let mut site = Site::new();
    site.committer = Committer::with_memory(site.store.clone(), Arc::clone(&memory));
    let (greedy, modest) = (site.open("greedy").await, site.open("modest").await);
    let take = || greedy.take_memory(Share::Answers, MIB / 90);
    let held: Vec<_> = std::iter::from_fn(take).collect();
    assert_eq!(held.len(), 80);
    assert_eq!(memory.times_full(Share::Answers), 1);
    assert!(modest.take_memory(Share::Answers, MIB / 90).is_some());
    drop(held);
    assert_eq!(memory.used(Share::Answers), 0);
    assert!(greedy.take_memory(Share::Answers, MIB / 2).is_some());
    close(&greedy, Ended::Closed).await;
    close(&modest, Ended::Closed).await;
}
