//! Writers race while the store misbehaves at random: every answer must be true.

use polyplane_storage::{Rejection, SledOptions, SledStore};

use super::*;

/// The answer to one write.
#[derive(Debug, Clone, PartialEq, Eq)]
enum Answer {
    Done(Version),
    NotDone,
}

fn faults() -> impl Strategy<Value = Vec<Option<CommitFault>>> {
    let fault = prop_oneof![
        10 => fault(),
        1 => Just(Some(CommitFault::Reject(Rejection::TooLarge("by plan".into())))),
    ];
    prop::collection::vec(fault, 60)
}

/// Runs one of several writers of a few keys. Each write carries a value of its own.
async fn write_values(plane: Arc<Plane>, writer: usize, rounds: usize) -> Vec<(String, Answer)> {
    let mut received = Vec::new();
    for round in 0..rounds {
        let key = configmap(&format!("o-{}", (writer + round) % 3));
        let mine = format!("{writer}-{round}");
        loop {
            let cut = plane.accepted();
            let claim = match cut.get(&key) {
                Some(object) => Claim::At(key.clone(), object.stamp()),
                None => Claim::Absent(key.clone()),
            };
            let answer = plane.submit(claimed(put(key.name(), &mine), claim)).await;
            match answer {
                Ok(done) => received.push((mine, Answer::Done(done.version))),
                Err(SubmitError::Withdrawn | SubmitError::ClaimFailed(_)) => {
                    tokio::task::yield_now().await;
                    continue;
                }
                Err(
                    SubmitError::Unavailable(_)
                    | SubmitError::Refused(_)
                    | SubmitError::ReadOnly(_),
                ) => received.push((mine, Answer::NotDone)),
                Err(error) => panic!("{error}"),
            }
            break;
        }
    }
    received
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(32))]

    #[test]
    fn every_answer_is_the_truth_and_watchers_see_exactly_what_was_done(plan in faults()) {
        run_paused(async {
            let site = Site::new();
            let plane = site.open("a").await;
            let scope = WatchScope::Prefix(configmaps());
            let mut watcher = plane.watch(scope, WatchFrom::Now).await.expect("fine");
            // Each transaction of the plane gets the next fault; puts of the fence are always
            // answered.
            let plan = Mutex::new(plan.into_iter());
            let faulty = site.store.plan();
            for fault in std::iter::from_fn(|| plan.lock().next()) {
                let fault = fault.unwrap_or(CommitFault::Delay(Duration::from_micros(10)));
                let of_plane = |txn: &polyplane_storage::Txn| {
                    txn.ops.iter().any(|op| op.key().starts_with(b"p/a/"))
                };
                faulty.commits_matching(of_plane, fault, 1);
            }
            let tasks: Vec<_> = (0..6)
                .map(|writer| tokio::spawn(write_values(Arc::clone(&plane), writer, 12)))
                .collect();
            let mut received = BTreeMap::new();
            for task in tasks {
                for (value, answer) in task.await.expect("no writer fails") {
                    prop_assert_eq!(received.insert(value, answer), None);
                }
            }
            site.store.apply_late().await;

            let head = plane.snapshot().version();
            let mut seen = BTreeMap::new();
            for event in events_until(&mut watcher, head).await {
                let object = event.current().expect("only puts");
                prop_assert_eq!(seen.insert(value(object), event.version()), None);
            }
            let done: BTreeMap<_, _> = received
                .iter()
                .filter_map(|(value, received)| match received {
                    Answer::Done(version) => Some((value.clone(), *version)),
                    Answer::NotDone => None,
                })
                .collect();
            prop_assert_eq!(&seen, &done);
            let again = site.open("a").await;
            prop_assert_eq!(dump(&again.snapshot()), dump(&plane.snapshot()));
            Ok(())
        })?;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn on_disk_a_plane_is_after_a_restart_what_it_was() {
    let folder = tempfile::tempdir().expect("a folder");
    let open = || {
        let store = SledStore::open(folder.path(), SledOptions::default());
        Site::over(Arc::new(store.expect("it is ours alone")))
    };
    let site = open();
    let plane = site.open("a").await;
    let start = plane.snapshot().version();
    let tasks: Vec<_> = (0..8)
        .map(|writer| tokio::spawn(write_values(Arc::clone(&plane), writer, 10)))
        .collect();
    for task in tasks {
        let received = task.await.expect("no writer fails");
        assert!(
            received
                .iter()
                .all(|(_, received)| matches!(received, Answer::Done(_)))
        );
    }
    plane
        .submit(write(vec![delete("o-1"), delete("template-a")]))
        .await
        .expect("fine");
    let scope = || WatchScope::Prefix(configmaps());
    let from = WatchFrom::After(start);
    let mut watcher = plane.watch(scope(), from).await.expect("inside");
    let head = plane.snapshot().version();
    let received = take_all(&mut watcher, head).await;
    assert_eq!(received.len(), 82);
    let state = dump(&plane.snapshot());
    close(&plane, Ended::Closed).await;
    site.store.close().await;
    drop((site, plane, watcher));

    let site = open();
    let plane = site.open("a").await;
    assert_eq!(dump(&plane.snapshot()), state);
    assert!(plane.snapshot().version() >= head);
    assert_eq!(plane.snapshot().version(), plane.seen());
    let mut watcher = plane.watch(scope(), from).await.expect("history survives");
    assert_eq!(take_all(&mut watcher, head).await, received);
    site.store.close().await;
}

/// Reads all events up to the version of a list, as text.
async fn take_all(watcher: &mut Watcher, head: Version) -> Vec<String> {
    let events = events_until(watcher, head).await;
    events.iter().map(|event| tell(event)).collect()
}
