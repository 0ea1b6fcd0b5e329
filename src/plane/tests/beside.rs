//! External writes, which go past the sequencer: every observer sees one order, whatever arrives
//! first.

use std::time::Duration;

use polyplane_storage::{CommitFault, Op, Txn};
use proptest::prelude::*;

use super::*;

fn leases() -> Prefix {
    Prefix::namespaced("g", "leases", "ring")
}

fn lease(name: &str) -> Key {
    Key::new("g", "leases", Some("ring"), name)
}

fn following() -> Test {
    seeing(Arc::default())
}

/// Returns a plane's test set-up that follows external keys, with member reads that the test makes
/// up.
fn seeing(observed: Arc<Mutex<u64>>) -> Test {
    Test {
        external: Some(leases()),
        observed,
        ..Test::default()
    }
}

/// Writes as another replica does: not through the plane, and without the faults of the owner's
/// store.
async fn external(site: &Site, name: &str, value: Option<&str>) -> Revision {
    let key = external::object_key("a", &lease(name));
    let op = match value {
        Some(value) => Op::Put {
            key,
            value: external::encode(&object(name, "l", value)),
            lease: None,
        },
        None => Op::Delete { key },
    };
    let txn = Txn {
        compares: Vec::new(),
        ops: vec![op],
    };
    site.inner.commit(txn).await.expect("it is taken").revision
}

/// Reads all events of two resources after a version, merged by version.
struct Both {
    maps: Watcher,
    leases: Watcher,
    seen: Vec<(Version, String)>,
}

impl Both {
    async fn after(plane: &Arc<Plane>, from: Version) -> Self {
        let watch = |prefix| plane.watch(WatchScope::Prefix(prefix), WatchFrom::After(from));
        Self {
            maps: watch(configmaps()).await.expect("inside"),
            leases: watch(leases()).await.expect("inside"),
            seen: Vec::new(),
        }
    }

    /// Reads everything up to a version, and asserts that each watcher's versions grow strictly.
    async fn until(&mut self, version: Version) {
        for watcher in [&mut self.maps, &mut self.leases] {
            let mut last = Version::ZERO;
            for event in events_until(watcher, version).await {
                assert!(event.version() > last, "{} after {last}", event.version());
                last = event.version();
                self.seen.push((event.version(), tell(&event)));
            }
        }
        self.seen.sort();
    }
}

async fn reach(plane: &Arc<Plane>, revision: Revision) -> Version {
    let version = Version::after(plane.base(), revision);
    let soon = Instant::now() + Duration::from_secs(600);
    assert!(plane.reached(version, soon).await, "{version}");
    version
}

#[derive(Debug, Clone)]
enum Act {
    Own(u8, CommitFault),
    Remove(u8),
    Put(u8, u8),
    Gone(u8),
    Cut,
    Forget,
    Yield,
}

fn acts() -> impl Strategy<Value = Vec<Act>> {
    let fault = prop_oneof![
        4 => Just(CommitFault::Delay(Duration::from_micros(1))),
        1 => Just(CommitFault::UnknownApplied),
        1 => Just(CommitFault::UnknownNotApplied),
        1 => Just(CommitFault::UnknownLate),
        1 => Just(CommitFault::Delay(Duration::from_millis(5))),
        2 => Just(CommitFault::DelayAnswer(Duration::from_millis(5))),
    ];
    let act = prop_oneof![
        4 => (0..4u8, fault).prop_map(|(name, fault)| Act::Own(name, fault)),
        1 => (0..4u8).prop_map(Act::Remove),
        4 => (0..4u8, any::<u8>()).prop_map(|(name, value)| Act::Put(name, value)),
        2 => (0..4u8).prop_map(Act::Gone),
        1 => Just(Act::Cut),
        1 => Just(Act::Forget),
        2 => Just(Act::Yield),
    ];
    prop::collection::vec(act, 1..60)
}

/// Does the acts. The plane's own writes run concurrently.
async fn act(site: &Site, plane: &Arc<Plane>, observed: &Mutex<u64>, acts: &[Act]) {
    let mut own: Vec<tokio::task::JoinHandle<()>> = Vec::new();
    for act in acts {
        match act {
            Act::Own(name, fault) => {
                let of_plane = |txn: &Txn| txn.ops.iter().any(|op| op.key().starts_with(b"p/a/"));
                site.store
                    .plan()
                    .commits_matching(of_plane, fault.clone(), 1);
                let plane = Arc::clone(plane);
                let one = write(vec![put(&format!("o-{name}"), "1")]);
                own.push(tokio::spawn(async move { drop(plane.submit(one).await) }));
            }
            Act::Remove(name) => {
                let plane = Arc::clone(plane);
                let one = write(vec![delete(&format!("o-{name}"))]);
                own.push(tokio::spawn(async move { drop(plane.submit(one).await) }));
            }
            Act::Put(name, value) => {
                let (name, value) = (format!("m-{name}"), value.to_string());
                external(site, &name, Some(&value)).await;
            }
            Act::Gone(name) => drop(external(site, &format!("m-{name}"), None).await),
            Act::Cut => site.store.cut_watches(),
            Act::Forget => {
                for own in own.drain(..) {
                    own.await.expect("no panic");
                }
                // The watch misses two changes, and the store compacts them.
                site.store.cut_watches();
                external(site, "m-0", Some("9")).await;
                external(site, "m-1", None).await;
                let newest = site.inner.revision().await.expect("it answers");
                site.inner.compact(newest).await.expect("it answers");
                // Compacted revisions are minutes old, so member reads are newer.
                *observed.lock() = newest.0;
            }
            Act::Yield => tokio::time::sleep(Duration::from_millis(1)).await,
        }
    }
    for own in own {
        own.await.expect("no panic");
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(48))]

    /// External writes and own commits interleave, commits are answered late or not at all, and the
    /// watch is cut. Every watcher still sees each event once and in order, and a plane that is
    /// loaded again, with the store's history, has the same events.
    #[test]
    fn external_writes_and_own_ones_are_one_history(acts in acts()) {
        run_paused(async {
            let site = Site::new();
            let observed = Arc::default();
            let plane = site.open_with("a", seeing(Arc::clone(&observed))).await;
            let born = plane.snapshot().version();
            let mut live = Both::after(&plane, born).await;
            act(&site, &plane, &observed, &acts).await;
            let newest = external(&site, "last", Some("1")).await;
            let until = reach(&plane, newest).await;
            live.until(until).await;

            let again = site.open_with("a", following()).await;
            let mut state = dump(&again.snapshot());
            prop_assert_eq!(&state, &dump(&plane.snapshot()));
            prop_assert!(again.snapshot().version() >= until);
            let forgets = acts.iter().any(|act| matches!(act, Act::Forget));
            if !forgets {
                let mut reread = Both::after(&again, born).await;
                reread.until(until).await;
                prop_assert_eq!(&reread.seen, &live.seen);
                let past = again.at(born, &leases()).await.expect("inside");
                prop_assert_eq!(past.count(&leases()), 0);
            }
            // The events that were delivered add up to the objects that exist.
            let added: BTreeMap<&str, &str> = live.seen.iter().fold(BTreeMap::new(), |mut all, (_, seen)| {
                let mut parts = seen.splitn(3, ' ');
                let (_, key, rest) = (parts.next(), parts.next(), parts.next());
                match rest.unwrap_or_default().rsplit_once(" -> ") {
                    Some((_, "None")) => all.remove(key.unwrap_or_default()),
                    Some((_, body)) => all.insert(key.unwrap_or_default(), body),
                    None => None,
                };
                all
            });
            state.retain(|object| !object.contains("/template-"));
            prop_assert_eq!(added.len(), state.len());
            Ok(())
        })?;
    }

    /// A root plane that is handed over between external writes continues where it was.
    #[test]
    fn a_hand_over_loses_no_external_write(first in acts(), between in acts(), then in acts()) {
        run_paused(async {
            let site = Site::new();
            let plane = site.open_with("a", following()).await;
            let born = plane.snapshot().version();
            let keep = |acts: Vec<Act>| -> Vec<Act> {
                acts.into_iter().filter(|act| !matches!(act, Act::Forget)).collect()
            };
            act(&site, &plane, &Mutex::default(), &keep(first)).await;
            let head = plane.pause(Instant::now() + Duration::from_secs(60)).await.expect("settles");
            let bytes = plane.export().await.expect("small").bytes;
            for one in keep(between) {
                if let Act::Put(..) | Act::Gone(_) = one {
                    act(&site, &plane, &Mutex::default(), &[one]).await;
                }
            }
            prop_assert_eq!(plane.head(), head, "what Released will name stays");
            plane.end(Ended::Moved);
            let import = Some(Import { head, bytes });
            let next = site.open_with("a", Test { import, ..following() }).await;
            prop_assert!(next.imported());
            act(&site, &next, &Mutex::default(), &keep(then)).await;
            let newest = external(&site, "last", Some("1")).await;
            let until = reach(&next, newest).await;
            let mut seen = Both::after(&next, born).await;
            seen.until(until).await;
            let again = site.open_with("a", following()).await;
            prop_assert_eq!(dump(&again.snapshot()), dump(&next.snapshot()));
            let mut reread = Both::after(&again, born).await;
            reread.until(until).await;
            prop_assert_eq!(reread.seen, seen.seen);
            Ok(())
        })?;
    }
}

#[test]
fn an_answered_commit_shows_every_external_write_before_it() {
    run(async {
        let site = Site::new();
        let plane = site.open_with("a", following()).await;
        for round in 0..20 {
            let value = round.to_string();
            external(&site, "m", Some(&value)).await;
            let done = plane
                .submit(write(vec![put("o", &value)]))
                .await
                .expect("fine");
            let cut = plane.snapshot();
            assert_eq!(super::value(&cut.get(&lease("m")).expect("there")), value);
            assert!(cut.version() >= done.version);
            assert!(plane.accepted().get(&lease("m")).is_some());
        }
        Ok(())
    })
    .expect("no case fails");
}

#[tokio::test]
async fn a_commit_that_the_store_answers_after_the_end_is_answered() {
    let site = Site::new();
    let plane = site.open_with("a", following()).await;
    let plan = site.store.plan();
    plan.next_commit(CommitFault::DelayAnswer(Duration::from_millis(50)));
    let asked = plan.commits_asked();
    let submitted = {
        let plane = Arc::clone(&plane);
        tokio::spawn(async move { plane.submit(write(vec![put("o", "1")])).await })
    };
    while plan.commits_asked() == asked {
        tokio::task::yield_now().await;
    }
    plane.end(Ended::Moved);
    let answer = tokio::time::timeout(Duration::from_secs(20), submitted).await;
    let answer = answer
        .expect("it does not wait for ever")
        .expect("no panic");
    answer.expect("the store has it");
}

#[tokio::test]
async fn nobody_writes_what_the_ring_writes() {
    let site = Site::new();
    let plane = site.open_with("a", following()).await;
    external(&site, "m", Some("1")).await;
    let put = Operation::Put {
        key: lease("m"),
        object: object("m", "x", "mine"),
    };
    for operation in [put, Operation::Delete { key: lease("m") }] {
        let refused = plane.submit(write(vec![operation])).await;
        assert!(matches!(refused, Err(SubmitError::Malformed(_))));
    }
    assert_eq!(plane.external(), Some(&leases()));
}

#[tokio::test]
async fn a_watcher_of_the_members_sees_no_marker() {
    let site = Site::new();
    let plane = site.open_with("a", following()).await;
    let prefix = external::object_prefix("a", &leases());
    let range = polyplane_storage::RangeRequest::prefix(prefix.clone());
    plane
        .submit(write(vec![put("o", "1")]))
        .await
        .expect("fine");
    external(&site, "m", Some("1")).await;
    let found = site.inner.range(range).await.expect("it answers").items;
    assert_eq!(found.len(), 1);
    external::decode(&found[0].value).expect("an object");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_head_of_a_pause_stays_while_others_write() {
    let site = Arc::new(Site::new());
    let plane = site.open_with("a", following()).await;
    let others = {
        let site = Arc::clone(&site);
        tokio::spawn(async move {
            loop {
                external(&site, "m", Some("1")).await;
                tokio::task::yield_now().await;
            }
        })
    };
    for _ in 0..1000 {
        let soon = Instant::now() + Duration::from_secs(60);
        let head = plane.pause(soon).await.expect("nothing is under way");
        let settled = Instant::now() + Duration::from_micros(50);
        while Instant::now() < settled {
            assert_eq!(plane.head(), head);
        }
        plane.resume();
        while plane.head() == head {
            assert!(Instant::now() < soon, "nothing is seen any more");
            tokio::task::yield_now().await;
        }
    }
    others.abort();
}
