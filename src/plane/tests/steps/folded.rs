//! Chains whose first steps are folded: no reader sees a difference, except that the record is
//! short.

use super::*;
use crate::record::{Record, decode};

/// One of two planes with the same history, of which one folds its steps.
struct Twin {
    site: Site,
    plane: Arc<Plane>,
    birth: Arc<Layer>,
    before: Before,
}

impl Twin {
    async fn born(birth: &Arc<Layer>, before: Before, log: LogBounds) -> Self {
        let site = Site::new();
        let test = Test {
            layer: Arc::clone(birth),
            log,
            ..Test::default()
        };
        let plane = site.open_with("a", test).await;
        let birth = Arc::clone(birth);
        Self {
            site,
            plane,
            birth,
            before,
        }
    }

    async fn steps(&self, to: &Arc<Layer>, commits: usize, changes_max: usize) -> bool {
        steps_after(self.before, &self.plane, to, commits, changes_max).await
    }

    /// Continues in another process, with the export of this one or without.
    async fn goes_on(&mut self, handed_over: bool, log: LogBounds) {
        let import = match handed_over {
            true => {
                let head = self.plane.pause(soon()).await.expect("nothing hangs");
                let bytes = self.plane.export().await.expect("it is small").bytes;
                self.plane.end(Ended::Moved);
                Some(Import { head, bytes })
            }
            false => None,
        };
        self.site = Site::over(Arc::clone(&self.site.inner));
        let test = Test {
            layer: Arc::clone(&self.birth),
            import,
            log,
            ..Test::default()
        };
        self.plane = self.site.open_with("a", test).await;
        assert_eq!(self.plane.imported(), handed_over);
    }

    async fn compact(&self) {
        let newest = self.site.inner.revision().await.expect("it answers");
        self.site.inner.compact(newest).await.expect("it answers");
    }

    /// Returns the record of the plane's steps in the store.
    async fn record(&self) -> Option<Bytes> {
        let found = self.site.inner.get(b"p/a/l").await.expect("it answers").1;
        found.map(|found| found.value)
    }

    /// Returns the number of steps that the record lists, and the number that it has folded.
    async fn seen_and_folded(&self) -> (usize, u32) {
        let Some(value) = self.record().await else {
            return (0, 0);
        };
        let Ok(Record::Steps { steps, .. }) = decode(&value) else {
            panic!("steps were written");
        };
        let folded = steps.fold.map_or(0, |fold| fold.steps);
        (steps.steps.len(), folded)
    }

    /// Returns everything that a reader can get of a version and of the time since.
    async fn since(&self, version: Version) -> Vec<String> {
        let seen = events_after(&self.plane, version).await;
        let seen = seen.map_or(vec!["gone".to_owned()], |events| {
            events.iter().map(|event| tell(event)).collect()
        });
        let mut all = seen;
        for resource in resources() {
            match self.plane.at(version, &resource).await {
                Ok(cut) => all.extend(dump_of(&cut, &resource)),
                Err(error) => all.push(format!("{error:?}")),
            }
        }
        all
    }
}

fn dump_of(cut: &Snapshot, resource: &Prefix) -> Vec<String> {
    let objects = cut.range(resource, Start::First);
    let text = |object: ObjectRef| {
        let (version, created) = (object.version(), object.created());
        format!("{} {version:?} {created:?} {}", object.key(), body(&object))
    };
    objects.map(text).collect()
}

#[derive(Debug, Clone)]
enum Life {
    Act(Act),
    /// A reader requests an older version.
    Ask,
    Compact,
}

fn lives() -> impl Strategy<Value = Vec<Life>> {
    let own = prop_oneof![
        (0..KEYS, 0..5u8).prop_map(|(key, value)| Act::Put(key, value)),
        (0..KEYS).prop_map(Act::Delete),
    ];
    let step = (1..4usize, 2..12usize).prop_map(|(commits, changes_max)| Act::Step {
        commits,
        changes_max,
    });
    let one = prop_oneof![
        4 => own.prop_map(Life::Act),
        6 => step.prop_map(Life::Act),
        2 => Just(Life::Act(Act::Crash)),
        2 => Just(Life::Act(Act::HandOver)),
        1 => Just(Life::Ask),
        1 => Just(Life::Compact),
    ];
    prop::collection::vec(one, 1..50)
}

/// Returns a log that keeps every event or almost none, because folding waits for the log.
fn logs() -> impl Strategy<Value = LogBounds> {
    let bounds = |bytes_max| LogBounds {
        bytes_max,
        ..LogBounds::default()
    };
    prop_oneof![
        Just(LogBounds::default()),
        Just(bounds(0)),
        Just(bounds(3_000))
    ]
}

fn layer_after_layer() -> impl Strategy<Value = Vec<Vec<Option<u8>>>> {
    let value = prop_oneof![1 => Just(None), 4 => (0..4u8).prop_map(Some), 1 => Just(Some(9))];
    prop::collection::vec(prop::collection::vec(value, KEYS), 9)
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(200))]

    /// Two planes have the same history, and one of them folds. After each act they have the same
    /// objects with the same versions, times and uids, and every earlier version and every watch
    /// from there on is the same. Only the chain is shorter.
    #[test]
    fn a_fold_changes_nothing(
        layers in layer_after_layer(),
        lives in lives(),
        log in logs(),
    ) {
        run(async {
            let layers: Vec<_> = layers.iter().map(|values| layer_of(values)).collect();
            let mut folds = Twin::born(&layers[0], Before::Folds, log).await;
            let mut stays = Twin::born(&layers[0], Before::Stays, log).await;
            let mut kept = vec![folds.plane.snapshot().version()];
            let mut target = 1;
            for life in &lives {
                match life {
                    Life::Act(Act::Step { commits, changes_max }) => {
                        let Some(to) = layers.get(target) else {
                            continue;
                        };
                        let there = folds.steps(to, *commits, *changes_max).await;
                        prop_assert_eq!(stays.steps(to, *commits, *changes_max).await, there);
                        target += usize::from(there);
                    }
                    Life::Act(Act::Crash) => {
                        folds.goes_on(false, log).await;
                        stays.goes_on(false, log).await;
                    }
                    Life::Act(Act::HandOver) => {
                        folds.goes_on(true, log).await;
                        stays.goes_on(true, log).await;
                    }
                    Life::Act(own) => {
                        act(&folds.plane, own).await;
                        act(&stays.plane, own).await;
                    }
                    Life::Compact => {
                        folds.compact().await;
                        stays.compact().await;
                    }
                    Life::Ask => {
                        for version in &kept {
                            let was = folds.since(*version).await;
                            prop_assert_eq!(was, stays.since(*version).await);
                        }
                    }
                }
                let (cut, other) = (folds.plane.snapshot(), stays.plane.snapshot());
                prop_assert_eq!(dump(&cut), dump(&other));
                prop_assert_eq!(cut.version(), other.version());
                let label = |cut: &Snapshot| cut.index_amount(LABELS, b"layer");
                prop_assert_eq!(label(&cut), label(&other));
                kept.push(cut.version());
                let (seen, folded) = folds.seen_and_folded().await;
                let (all, none) = stays.seen_and_folded().await;
                let folded = usize::try_from(folded).expect("few");
                prop_assert_eq!((seen + folded, none), (all, 0));
            }
            for handed_over in [false, true] {
                for version in &kept {
                    let was = folds.since(*version).await;
                    prop_assert_eq!(was, stays.since(*version).await);
                }
                folds.goes_on(handed_over, log).await;
                stays.goes_on(handed_over, log).await;
            }
            Ok(())
        })?;
    }
}

/// Returns `count` layers of many objects, each of which changes some objects of the one before: a
/// chain of any length.
fn releases(objects: usize, changes: usize, count: usize) -> Vec<Arc<Layer>> {
    let of = |release: usize| {
        let value = |at: usize| {
            // The last release that changed the object, if each release changes the objects that
            // follow those of the release before.
            let turns = (release * changes + objects - 1 - at) / objects;
            Some(if turns.is_multiple_of(2) { 0 } else { 2 })
        };
        layer_of(&(0..objects).map(value).collect::<Vec<_>>())
    };
    (0..=count).map(of).collect()
}

/// Returns a plane that stepped through all layers, each in a process of its own.
async fn lived_through(layers: &[Arc<Layer>], before: Before) -> Twin {
    let log = LogBounds::default();
    let mut twin = Twin::born(&layers[0], before, log).await;
    for to in &layers[1..] {
        assert!(twin.steps(to, 9, 255).await);
        twin.goes_on(false, log).await;
    }
    twin
}

#[tokio::test]
async fn a_chain_has_one_step_and_a_fold_that_no_release_makes_longer() {
    const OBJECTS: usize = 250;
    const CHANGES: usize = 20;
    let layers = releases(OBJECTS, CHANGES, 40);
    let mut bytes = Vec::new();
    for count in [1, 2, 5, 15, 30, 40] {
        let folds = lived_through(&layers[..=count], Before::Folds).await;
        let stays = lived_through(&layers[..=count], Before::Stays).await;
        let before = u32::try_from(count - 1).expect("few");
        assert_eq!(folds.seen_and_folded().await, (1, before));
        assert_eq!(stays.seen_and_folded().await, (count, 0));
        assert_eq!(dump(&folds.plane.snapshot()), dump(&stays.plane.snapshot()));
        let len = |record: Option<Bytes>| record.map_or(0, |record| record.len());
        bytes.push((len(folds.record().await), len(stays.record().await)));
    }
    // The first fifteen releases change every object, so the record grows no further after them.
    let [.., fifteen, thirty, forty] = bytes[..] else {
        panic!("six lives were led");
    };
    assert!(forty.0 <= fifteen.0 + 8, "{bytes:?}");
    assert!(fifteen.0 < OBJECTS * 4 + 15 * 12 + 150, "{bytes:?}");
    assert!(3 * thirty.0 < thirty.1, "{bytes:?}");
}

#[tokio::test]
async fn layers_that_were_left_behind_are_not_needed() {
    let layers = releases(9, 2, 4);
    let mut twin = lived_through(&layers, Before::Folds).await;
    let (seen, folded) = twin.seen_and_folded().await;
    assert_eq!((seen, folded), (1, 3));
    let before = dump(&twin.plane.snapshot());
    let born = twin.plane.birth();
    let with_history = twin.since(born).await;
    assert!(with_history.len() > 9, "{with_history:?}");

    // The layers before and after the only step that is not folded.
    let needed = [&layers[3], &layers[4]].map(|layer| format!("l/{}", layer.hash().0));
    let all = polyplane_storage::RangeRequest::prefix(Bytes::from_static(b"l/"));
    let all = twin.site.inner.range(all).await.expect("it answers");
    for item in all.items {
        if needed
            .iter()
            .any(|needed| item.key.starts_with(needed.as_bytes()))
        {
            continue;
        }
        let txn = polyplane_storage::Txn {
            compares: Vec::new(),
            ops: vec![polyplane_storage::Op::Delete { key: item.key }],
        };
        twin.site.inner.commit(txn).await.expect("it answers");
    }
    // The next process has no layers but those in the store.
    twin.site = Site::over(Arc::clone(&twin.site.inner));
    let plane = twin.site.open_left("a", layers[0].hash()).await;
    assert_eq!(dump(&plane.snapshot()), before);
    let scope = WatchScope::Prefix(configmaps());
    let old = plane.watch(scope, WatchFrom::After(born)).await;
    assert_eq!(
        old.expect_err("nobody knows the layers of then"),
        WatchError::Expired(ExpiredCause::Unreadable)
    );
}

#[tokio::test]
async fn a_fold_waits_for_the_log() {
    let layers = releases(6, 1, 3);
    let mut twin = Twin::born(&layers[0], Before::Folds, LogBounds::default()).await;
    let born = twin.plane.snapshot().version();
    for to in &layers[1..3] {
        assert!(twin.steps(to, 9, 255).await);
    }
    assert_eq!(
        twin.seen_and_folded().await,
        (2, 0),
        "the log tells of both"
    );
    let seen = events_after(&twin.plane, born).await;
    assert_eq!(seen.map(|seen| seen.len()), Some(2));
    twin.goes_on(true, LogBounds::default()).await;
    assert!(twin.steps(&layers[3], 9, 255).await);
    assert_eq!(
        twin.seen_and_folded().await,
        (3, 0),
        "also behind a hand-off"
    );
    twin.goes_on(false, LogBounds::default()).await;
    let again = events_after(&twin.plane, born).await;
    assert_eq!(again.map(|seen| seen.len()), Some(3));
}

/// A commit that folds and is not applied leaves the chain as it was. One whose outcome was unknown
/// is recognised in the history by its bytes.
#[tokio::test(start_paused = true)]
async fn a_fold_is_as_durable_as_its_commit() {
    let layers = releases(6, 2, 3);
    for fault in [
        CommitFault::UnknownApplied,
        CommitFault::UnknownNotApplied,
        CommitFault::UnknownLate,
    ] {
        let mut twin = lived_through(&layers[..3], Before::Folds).await;
        assert_eq!(twin.seen_and_folded().await, (1, 1));
        let of_plane =
            |txn: &polyplane_storage::Txn| txn.ops.iter().any(|op| op.key().starts_with(b"p/a/"));
        twin.site
            .store
            .plan()
            .commits_matching(of_plane, fault.clone(), 1);
        while !twin.plane.stands_on(layers[3].hash()) {
            let ahead = twin
                .plane
                .ahead(&layers[3], "2027-07-07T00:00:00Z", &recreates);
            let ahead = ahead.expect("nothing to fill").expect("there is a way");
            drop(twin.plane.step(&ahead.folding(), soon()).await);
        }
        twin.site.store.apply_late().await;
        assert_eq!(twin.seen_and_folded().await, (1, 2), "{fault:?}");
        let before = dump(&twin.plane.snapshot());
        for handed_over in [true, false] {
            twin.goes_on(handed_over, LogBounds::default()).await;
            assert_eq!(dump(&twin.plane.snapshot()), before, "{fault:?}");
        }
        // The plane has reached the layer, so a further step writes nothing.
        let revision = twin.site.inner.revision().await;
        assert!(twin.steps(&layers[3], 9, 255).await);
        assert_eq!(twin.site.inner.revision().await, revision);
    }
}
