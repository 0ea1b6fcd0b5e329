//! Watches: no gap and no repeat, whatever version they resume from.

use std::time::Duration;

use polyplane_storage::{Op, ReadFault, Txn};
use proptest::prelude::*;

use super::*;

pub(super) async fn watch_from(plane: &Arc<Plane>, from: WatchFrom) -> Watcher {
    plane
        .watch(WatchScope::Prefix(configmaps()), from)
        .await
        .expect("inside the log")
}

#[derive(Debug, Clone)]
pub(super) enum Change {
    Put(u8, u8),
    Delete(u8),
}

pub(super) fn changes() -> impl Strategy<Value = Vec<Vec<Change>>> {
    let change = prop_oneof![
        3 => (0..12u8, any::<u8>()).prop_map(|(key, value)| Change::Put(key, value)),
        2 => (0..12u8).prop_map(Change::Delete),
    ];
    prop::collection::vec(prop::collection::vec(change, 1..5), 1..40)
}

fn name_of(key: u8) -> String {
    match key {
        0 => "template-a".to_owned(),
        1 => "template-b".to_owned(),
        _ => format!("o-{key}"),
    }
}

/// Applies the changes that are possible, each list as one write.
pub(super) async fn apply(
    plane: &Arc<Plane>,
    lists: &[Vec<Change>],
    mut after: impl FnMut(Snapshot),
) {
    for list in lists {
        let cut = plane.snapshot();
        let mut names = BTreeSet::new();
        let mut operations = Vec::new();
        for change in list {
            let (Change::Put(key, _) | Change::Delete(key)) = change;
            let name = name_of(*key);
            let known = cut.get(&configmap(&name)).is_some();
            if !names.insert(name.clone()) {
                continue;
            }
            match change {
                Change::Put(_, value) => operations.push(put(&name, &value.to_string())),
                Change::Delete(_) if known => operations.push(delete(&name)),
                Change::Delete(_) => {}
            }
        }
        if !operations.is_empty() {
            plane.submit(write(operations)).await.expect("fine");
            after(plane.snapshot());
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(24))]

    /// Undoing events gives the same as the roots that the test has kept, a watch that resumes
    /// anywhere gets exactly the later events, and after a restart the state, the history and every
    /// old version are the same.
    #[test]
    fn history_is_exact_before_and_after_a_restart(lists in changes()) {
        run(async {
            let site = Site::new();
            let plane = site.open_with("a", Test { base: 1000, ..Test::default() }).await;
            let mut watcher = watch_from(&plane, WatchFrom::Now).await;
            let born = plane.snapshot();
            let mut kept = vec![born.clone()];
            apply(&plane, &lists, |cut| kept.push(cut)).await;
            let last = kept.last().expect("the first is there").version();
            let events = events_until(&mut watcher, last).await;
            prop_assert!(events.windows(2).all(|pair| pair[0].version() < pair[1].version()));

            let reopened = site.open_with("a", Test { base: 1000, ..Test::default() }).await;
            prop_assert_eq!(dump(&reopened.snapshot()), dump(&plane.snapshot()));
            prop_assert!(reopened.snapshot().version() >= last);
            prop_assert_eq!(reopened.snapshot().version(), reopened.seen());
            for plane in [&plane, &reopened] {
                for cut in &kept {
                    let at = plane.at(cut.version(), &configmaps()).await.expect("inside");
                    prop_assert_eq!(dump(&at), dump(cut));
                    prop_assert_eq!(at.version(), cut.version());
                }
                let received: Vec<_> = events.iter().map(|event| tell(event)).collect();
                for (at, from) in std::iter::once(born.version())
                    .chain(events.iter().map(|event| event.version()))
                    .enumerate()
                {
                    let mut resumed = watch_from(plane, WatchFrom::After(from)).await;
                    let until = events.last().map_or(Version::ZERO, |event| event.version());
                    let rest = events_until(&mut resumed, until).await;
                    let rest: Vec<_> = rest.iter().map(|event| tell(event)).collect();
                    prop_assert_eq!(&rest, &received[at..]);
                }
            }
            Ok(())
        })?;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn watchers_see_every_event_once_while_writers_race() {
    let site = Site::new();
    let plane = site.open("a").await;
    let mut tasks = Vec::new();
    for number in 0..8 {
        let plane = Arc::clone(&plane);
        tasks.push(tokio::spawn(async move {
            let mut last = Version::ZERO;
            for round in 0..50 {
                let name = format!("o-{number}");
                let one = write(vec![put(&name, &round.to_string())]);
                last = plane.submit(one).await.expect("fine").version;
            }
            last
        }));
    }
    let mut watches = Vec::new();
    for number in 0..8 {
        let plane = Arc::clone(&plane);
        watches.push(tokio::spawn(async move {
            // List, then watch from the list's version, as every client does.
            let cut = plane.snapshot();
            let scope = WatchScope::Object(configmap(&format!("o-{number}")));
            let from = WatchFrom::After(cut.version());
            let mut watcher = plane.watch(scope, from).await.expect("just listed");
            let key = configmap(&format!("o-{number}"));
            let mut next = cut.get(&key).map_or(0, |object| {
                value(&object).parse::<u64>().expect("a number") + 1
            });
            while next < 50 {
                match watcher.next().await {
                    Next::Events(events) => {
                        for event in events {
                            let object = event.current().expect("only puts");
                            assert_eq!(value(object), next.to_string());
                            next += 1;
                        }
                    }
                    Next::Bookmark(_) => {}
                    other => panic!("{other:?}"),
                }
            }
        }));
    }
    for task in tasks {
        task.await.expect("no writer fails");
    }
    for watch in watches {
        watch.await.expect("no gap, no repeat");
    }
    assert_eq!(plane.stats().watchers, 0);
}

#[tokio::test]
async fn the_log_of_a_large_plane_may_have_a_part_of_its_bytes() {
    let site = Site::new();
    let plane = site.open_with("a", Test::with_log_of(4000)).await;
    let before = plane.snapshot().version();
    let long = "x".repeat(100_000);
    for number in 0..4 {
        let one = write(vec![put(&format!("large-{number}"), &long)]);
        plane.submit(one).await.expect("fine");
    }
    for round in 0..50 {
        let one = write(vec![put("m", &round.to_string())]);
        plane.submit(one).await.expect("fine");
    }
    let stats = plane.stats();
    let most = usize::try_from(plane.snapshot().own_bytes() / 8).expect("small");
    assert!(
        stats.log_bytes > 4000 && stats.log_bytes <= most,
        "{stats:?}"
    );
    assert!(plane.at(before, &configmaps()).await.is_ok());
    // A plane that was large is bounded as others are.
    let gone = (0..4).map(|number| delete(&format!("large-{number}")));
    plane.submit(write(gone.collect())).await.expect("fine");
    assert!(plane.stats().log_bytes <= 4000);
}

#[tokio::test]
async fn versions_outside_the_log_are_expired_or_in_the_future() {
    let site = Site::new();
    let plane = site.open_with("a", Test::with_log_of(4000)).await;
    let before = plane.snapshot().version();
    let mut slow = watch_from(&plane, WatchFrom::Now).await;
    for round in 0..50 {
        let one = write(vec![put("m", &round.to_string())]);
        plane.submit(one).await.expect("fine");
    }
    assert!(plane.stats().log_bytes <= 4000);
    assert!(matches!(slow.next().await, Next::Lagged));
    // The store is not read for them: what it has would leave a gap.
    site.store.plan().next_reads(ReadFault::Hang, usize::MAX);
    let scope = || WatchScope::Prefix(configmaps());
    let old = plane.watch(scope(), WatchFrom::After(before)).await;
    assert_eq!(
        old.expect_err("gone"),
        WatchError::Expired(ExpiredCause::Bytes)
    );
    let old = plane.at(before, &configmaps()).await;
    assert_eq!(
        old.expect_err("gone"),
        AtError::Expired(ExpiredCause::Bytes)
    );
    site.store.plan().clear();
    // Another resource had no event, so its watchers have missed nothing.
    let other = WatchScope::Prefix(Prefix::resource("", "secrets"));
    plane
        .watch(other, WatchFrom::After(before))
        .await
        .expect("nothing was missed");

    let head = plane.snapshot().version();
    let ahead = Version::from_raw(head.raw() + (1 << 8));
    let future = plane.watch(scope(), WatchFrom::After(ahead)).await;
    assert_eq!(
        future.expect_err("not yet"),
        WatchError::Future { current: head }
    );
    assert!(!plane.reached(ahead, Instant::now()).await);
    let soon = Instant::now() + Duration::from_secs(5);
    let (reached, _) = tokio::join!(
        plane.reached(ahead, soon),
        plane.submit(write(vec![put("m", "x")]))
    );
    assert!(reached);
}

#[tokio::test(start_paused = true)]
async fn an_idle_watcher_gets_a_bookmark_each_minute_never_past_a_part_under_way() {
    let site = Site::new();
    let observed = Arc::new(Mutex::new(0));
    let test = Test {
        observed: Arc::clone(&observed),
        ..Test::default()
    };
    let plane = site.open_with("a", test).await;
    let mut watcher = watch_from(&plane, WatchFrom::Now).await;
    let head = plane.snapshot().version();
    *observed.lock() = 500;
    let start = Instant::now();
    let Next::Bookmark(version) = watcher.next().await else {
        panic!("nothing else happens");
    };
    assert_eq!(start.elapsed(), Duration::from_secs(60));
    assert_eq!(version, Version::after(Base(0), Revision(500)));
    assert!(plane.seen() >= version);
    assert_eq!(
        plane.snapshot().version(),
        version,
        "a list that begins later is not older"
    );

    site.store
        .plan()
        .next_commit(polyplane_storage::CommitFault::HangNotApplied);
    let stuck = Arc::clone(&plane);
    let stuck = tokio::spawn(async move { stuck.submit(write(vec![put("m", "1")])).await });
    tokio::task::yield_now().await;
    *observed.lock() = 900;
    let mut other = watch_from(&plane, WatchFrom::After(head)).await;
    assert!(
        other.bookmark() == Some(version),
        "a part is under way: only what was told before may be named"
    );
    stuck.abort();
}

#[tokio::test]
async fn a_busy_watcher_gets_a_bookmark_each_quarter_of_the_log() {
    let site = Site::new();
    let plane = site.open_with("a", Test::with_log_of(40_000)).await;
    let scope = WatchScope::Object(configmap("never written"));
    let mut watcher = plane.watch(scope, WatchFrom::Now).await.expect("fine");
    let writer = {
        let plane = Arc::clone(&plane);
        tokio::spawn(async move {
            for round in 0..400 {
                let one = write(vec![put("m", &round.to_string())]);
                plane.submit(one).await.expect("fine");
            }
        })
    };
    for _ in 0..3 {
        let next = watcher.next().await;
        let Next::Bookmark(version) = next else {
            panic!("not {next:?}: nothing it watches has changed");
        };
        let scope = WatchScope::Prefix(configmaps());
        plane
            .watch(scope, WatchFrom::After(version))
            .await
            .expect("a bookmark is inside the log");
    }
    writer.await.expect("it finishes");
}

#[tokio::test]
async fn a_closed_plane_ends_all_watches() {
    let site = Site::new();
    let plane = site.open("a").await;
    let secrets = || WatchScope::Prefix(Prefix::resource("", "secrets"));
    let mut others = plane.watch(secrets(), WatchFrom::Now).await.expect("fine");
    let mut maps = watch_from(&plane, WatchFrom::Now).await;
    close(&plane, Ended::Closed).await;
    assert!(matches!(maps.next().await, Next::Closed(Ended::Closed)));
    assert!(matches!(others.next().await, Next::Closed(Ended::Closed)));
    let late = plane.watch(secrets(), WatchFrom::Now).await;
    assert_eq!(late.expect_err("over"), WatchError::Ended(Ended::Closed));
    let late = plane.submit(write(vec![put("m", "1")])).await;
    assert_eq!(late.expect_err("over"), SubmitError::Lost);
    let soon = Instant::now() + Duration::from_secs(1);
    assert_eq!(plane.answerable(soon).await, Err(NotAnswerable::Lost));
}

#[tokio::test]
async fn a_frame_is_built_once_per_event_and_view() {
    let site = Site::new();
    let plane = site.open("a").await;
    let mut watcher = watch_from(&plane, WatchFrom::Now).await;
    let done = plane
        .submit(write(vec![put("m", "1")]))
        .await
        .expect("fine");
    let events = events_until(&mut watcher, done.version).await;
    let built = Mutex::new(0);
    let frame = |view| {
        events[0].frame(view, |event| {
            *built.lock() += 1;
            Bytes::from(event.version().to_string())
        })
    };
    assert_eq!(frame(1), frame(1));
    assert_eq!(frame(2), frame(1));
    assert_eq!(*built.lock(), 2);
}

#[tokio::test(start_paused = true)]
async fn a_version_that_is_gone_has_a_cause_that_is_counted() {
    let site = Site::new();
    let plane = site.open("a").await;
    let before = plane.snapshot().version();
    let one = write(vec![put("m", "1")]);
    plane.submit(one).await.expect("fine");
    let since = plane.snapshot().version();
    tokio::time::advance(LogBounds::default().age_max + Duration::from_secs(1)).await;
    plane.sweep_log();
    let scope = || WatchScope::Prefix(configmaps());
    for _ in 0..3 {
        let old = plane.watch(scope(), WatchFrom::After(before)).await;
        let gone = ExpiredCause::Age;
        assert_eq!(old.expect_err("dropped"), WatchError::Expired(gone));
    }
    let kept = plane.watch(scope(), WatchFrom::After(since)).await;
    assert!(kept.is_ok());
    // What the refusal names is the oldest version that is not refused.
    let oldest = plane.resumable_from(&configmaps());
    assert!(before < oldest && oldest <= since);
    let kept = plane.watch(scope(), WatchFrom::After(oldest)).await;
    assert!(kept.is_ok());
    let families = site.committer.collect();
    let family = families
        .iter()
        .find(|family| family.name() == "polyplane_expired_versions_total");
    let counts: Vec<_> = family
        .expect("it is shown")
        .get_metric()
        .iter()
        .map(|metric| {
            (
                metric.get_label()[0].value(),
                metric.get_counter().get_value(),
            )
        })
        .collect();
    assert_eq!(counts.len(), ExpiredCause::ALL.len());
    for (cause, count) in counts {
        let expected = if cause == "age" { 3.0 } else { 0.0 };
        assert_eq!(count, expected, "{cause}");
    }
}

#[tokio::test]
async fn a_bookmark_names_no_member_read_that_came_after_the_tenure_was_looked_at() {
    let site = Site::new();
    let (observed, hooks) = (Arc::new(Mutex::new(100)), Arc::new(Hooks::default()));
    let test = Test {
        observed: Arc::clone(&observed),
        hooks: Arc::clone(&hooks),
        ..Test::default()
    };
    let plane = site.open_with("a", test).await;
    let seen = plane.bookmark_version();
    assert_eq!(seen, Version::after(Base(0), Revision(100)));
    // Between the check of the tenure and the next step, the plane is released, another replica
    // writes to it, and a member read of this replica returns.
    let later = std::sync::atomic::Ordering::Relaxed;
    hooks.observed_after_answerable.store(5000, later);
    assert_eq!(plane.bookmark_version(), seen);
}

/// A store that was restored from a backup has given out versions whose records it does not have any
/// more. It marks them as compacted, and a plane cannot tell them from those of its idle time.
#[tokio::test]
async fn an_idle_version_is_resumed_only_as_long_as_the_store_can_read_it() {
    let site = Site::new();
    let plane = site.open("a").await;
    let one = write(vec![put("o", "1")]);
    let head = plane.submit(one).await.expect("fine").version;
    close(&plane, Ended::Deleted).await;
    for number in 0..10 {
        let other = Op::Put {
            key: "other".into(),
            value: format!("{number}").into(),
            lease: None,
        };
        let txn = Txn {
            compares: vec![],
            ops: vec![other],
        };
        site.inner.commit(txn).await.expect("committed");
    }
    let idle = head.revision(Base(0)).0 + 5;
    let idle_version = Version::after(Base(0), Revision(idle));
    let watch = async |plane: &Arc<Plane>, after| {
        let scope = WatchScope::Prefix(configmaps());
        let watcher = plane.watch(scope, WatchFrom::After(after)).await;
        watcher.map(drop)
    };

    let reopened = site.open("a").await;
    assert_eq!(watch(&reopened, idle_version).await, Ok(()));
    site.inner.compact(Revision(idle + 1)).await.expect("done");
    assert_eq!(watch(&reopened, idle_version).await, Ok(()), "it is known");
    close(&reopened, Ended::Deleted).await;

    let again = site.open("a").await;
    let lost = Err(WatchError::Expired(ExpiredCause::Compacted));
    assert_eq!(watch(&again, idle_version).await, lost);
    let at = again.at(idle_version, &configmaps()).await;
    assert!(matches!(at, Err(AtError::Expired(ExpiredCause::Compacted))));
    let readable = Version::after(Base(0), Revision(idle + 1));
    assert_eq!(watch(&again, readable).await, Ok(()));
    assert_eq!(watch(&again, again.snapshot().version()).await, Ok(()));
    assert_eq!(watch(&again, again.seen()).await, Ok(()));
}
