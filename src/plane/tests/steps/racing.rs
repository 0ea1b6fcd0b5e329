//! Layer steps while other writers race and the store misbehaves.

use super::*;

#[tokio::test]
async fn a_write_between_the_look_and_the_commit_is_seen() {
    let site = Site::new();
    let old = layer_of(&[Some(0), Some(0)]);
    let new = layer_of(&[Some(2), Some(2)]);
    let test = Test {
        layer: Arc::clone(&old),
        ..Test::default()
    };
    let plane = site.open_with("a", test).await;
    let look = || {
        let ahead = plane.ahead(&new, "2027-07-07T00:00:00Z", &recreates);
        ahead.expect("nothing to fill").expect("there is a way")
    };
    let ahead = look();
    act(&plane, &Act::Put(1, 8)).await;
    assert_eq!(plane.step(&ahead, soon()).await, Ok(Stepped::Again));
    let (one, other) = (look(), look());
    assert_eq!(plane.step(&one, soon()).await, Ok(Stepped::Done));
    assert_eq!(plane.step(&other, soon()).await, Ok(Stepped::Again));
    assert_eq!(
        plane.snapshot().get(&key_of(1)).map(|own| value(&own)),
        Some("8".into())
    );
}

/// Planes that step at the same time share transactions; of the 255 versions of a transaction each
/// plane gets its own.
#[tokio::test]
async fn the_versions_of_a_transaction_are_divided_among_planes() {
    const PLACES: usize = 100;
    let site = Site::new();
    let old = layer_of(&[Some(0); PLACES]);
    let new = layer_of(&[Some(2); PLACES]);
    let mut planes = Vec::new();
    for at in 0..9 {
        let test = Test {
            layer: Arc::clone(&old),
            ..Test::default()
        };
        planes.push(site.open_with(&format!("p{at}"), test).await);
    }
    // The layer is stored first, so that no plane waits for that.
    site.layers_with(&new).await;
    let born = planes[0].snapshot().version();
    let all = planes.iter().map(|plane| async {
        let stepped = steps(plane, &new, 1, 255);
        let written = plane.submit(write(vec![put("own", "1")]));
        let (there, written) = tokio::join!(stepped, written);
        assert!(there && written.is_ok());
    });
    futures_util::future::join_all(all).await;
    let mut seen = BTreeMap::new();
    for plane in &planes {
        for event in events_after(plane, born).await.expect("inside") {
            let revision = event.version().revision(Base(0));
            let planes: &mut BTreeMap<u8, &str> = seen.entry(revision).or_default();
            let other = planes.insert(event.version().index(), plane.id());
            assert_eq!(other, None, "{} of two planes", event.version());
        }
    }
    let events: usize = seen.values().map(BTreeMap::len).sum();
    assert_eq!(events, planes.len() * (PLACES + 1));
    let shared = seen.values().any(|events| {
        let planes: BTreeSet<&&str> = events.values().collect();
        planes.len() > 1
    });
    assert!(shared, "each had a transaction of its own");
}

/// Puts and deletes objects at keys of layers, whatever is there at the moment.
async fn disturb(plane: Arc<Plane>, writer: usize, rounds: usize) {
    for round in 0..rounds {
        let at = (writer * 3 + round * 7) % KEYS;
        let there = plane.accepted().get(&key_of(at)).is_some();
        let operation = if there && (writer + round).is_multiple_of(3) {
            Operation::Delete { key: key_of(at) }
        } else {
            let text = format!("{writer}-{round}");
            Operation::Put {
                key: key_of(at),
                object: object(key_of(at).name(), "own", &text),
            }
        };
        // The write may be refused, lost or applied: the checker looks at the events.
        drop(plane.submit(write(vec![operation])).await);
        tokio::time::sleep(Duration::from_micros(50)).await;
    }
}

async fn step_through(plane: Arc<Plane>, layers: Vec<Arc<Layer>>, before: Before) {
    for to in &layers {
        loop {
            let ahead = plane.ahead(to, "2027-07-07T00:00:00Z", &recreates);
            let Some(ahead) = ahead.expect("nothing to fill") else {
                break;
            };
            let ahead = before.of(ahead);
            // Whatever the outcome is, the next call of `ahead` shows it.
            drop(plane.step_by(&ahead, 3, soon()).await);
            tokio::time::sleep(Duration::from_micros(30)).await;
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(48))]

    /// Writers and steps race while outcomes are unknown and commits are late or never applied. The
    /// events that watchers get lead to the final state, and the store's history has the same.
    #[test]
    fn steps_race_with_writers_and_faults(
        layers in layers(),
        plan in prop::collection::vec(fault(), 60),
        before in prop_oneof![Just(Before::Stays), Just(Before::Folds)],
    ) {
        run_paused(async {
            let layers: Vec<_> = layers.iter().map(|values| layer_of(values)).collect();
            let birth = &layers[0];
            let site = Site::new();
            let test = Test { layer: Arc::clone(birth), ..Test::default() };
            let plane = site.open_with("a", test).await;
            // The first step in the race folds the steps that the plane has when it is opened.
            steps(&plane, &layers[1], 9, 3).await;
            let (site, plane) = reopen(&site, birth).await;
            let born = plane.snapshot();
            for fault in plan {
                let fault = fault.unwrap_or(CommitFault::Delay(Duration::from_micros(10)));
                let of_plane = |txn: &polyplane_storage::Txn| {
                    txn.ops.iter().any(|op| op.key().starts_with(b"p/a/"))
                };
                site.store.plan().commits_matching(of_plane, fault, 1);
            }
            let mut tasks: Vec<_> = (0..3)
                .map(|writer| tokio::spawn(disturb(Arc::clone(&plane), writer, 14)))
                .collect();
            tasks.push(tokio::spawn(step_through(Arc::clone(&plane), layers[2..].to_vec(), before)));
            for task in tasks {
                task.await.expect("nobody fails");
            }
            site.store.apply_late().await;
            let last = layers.last().expect("there are four");
            prop_assert_eq!(plane.layer_hash(), last.hash().clone());
            let events = events_after(&plane, born.version()).await.expect("inside");
            prop_assert_eq!(follow(state(&born), &events)?, state(&plane.snapshot()));
            let (_, again) = reopen(&site, birth).await;
            prop_assert_eq!(dump(&again.snapshot()), dump(&plane.snapshot()));
            let received = events_after(&again, born.version()).await.expect("from the store");
            prop_assert_eq!(first_difference(&received, &events), None);
            Ok(())
        })?;
    }
}
