//! Tests of the order of writes, of claims and of transactions.

use super::*;

/// Adds one to a counter, as a client that prepares again until its claim holds.
async fn add_one(plane: &Arc<Plane>, name: &str) -> Committed {
    let key = configmap(name);
    let mut turn = None;
    loop {
        let cut = plane.accepted();
        let (claim, next) = match cut.get(&key) {
            Some(object) => {
                let next: u64 = value(&object).parse().expect("a number");
                (Claim::At(key.clone(), object.stamp()), next + 1)
            }
            None => (Claim::Absent(key.clone()), 1),
        };
        let write = claimed(put(name, &next.to_string()), claim);
        match plane.submit(write).await {
            Ok(committed) => return committed,
            Err(SubmitError::ClaimFailed(Broken::Claim(0))) => {
                if turn.is_none() {
                    turn = Some(plane.enter_key_queue(&key).await);
                }
            }
            Err(error) => panic!("{error}"),
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn concurrent_writers_lose_nothing_and_no_version_repeats() {
    let site = Site::new();
    let planes = [site.open("a").await, site.open("b").await];
    let mut tasks = Vec::new();
    for number in 0..24 {
        let plane = Arc::clone(&planes[number % 2]);
        tasks.push(tokio::spawn(async move {
            let mut versions = Vec::new();
            for _ in 0..40 {
                let name = format!("counter-{}", number % 3);
                let committed = add_one(&plane, &name).await;
                let own = committed.objects[0].object.version();
                assert_eq!(own, Some(committed.version));
                versions.push(committed.version);
            }
            versions
        }));
    }
    let mut all = BTreeSet::new();
    for task in tasks {
        let versions = task.await.expect("no writer fails");
        assert!(versions.is_sorted(), "one client sees versions grow");
        for version in versions {
            assert!(all.insert(version), "{version} is there twice");
        }
    }
    assert_eq!(all.len(), 24 * 40);
    for plane in &planes {
        let cut = plane.snapshot();
        let sum: u64 = (0..3)
            .filter_map(|n| cut.get(&configmap(&format!("counter-{n}"))))
            .map(|object| value(&object).parse::<u64>().expect("a number"))
            .sum();
        assert_eq!(sum, 12 * 40);
        assert_eq!(dump(&cut), dump(&plane.accepted()));
    }
    assert_eq!(planes[0].key_queue_count(), 0);
}

/// Lets writers write, each one key again and again, until `total` writes are durable. Returns how many
/// are of each plane.
async fn writes_of(planes: &[(Arc<Plane>, usize)], total: usize) -> Vec<usize> {
    let counts: Arc<Vec<AtomicUsize>> =
        Arc::new(planes.iter().map(|_| AtomicUsize::new(0)).collect());
    let done = Arc::new(AtomicUsize::new(0));
    let mut writers = Vec::new();
    for (at, (plane, count)) in planes.iter().enumerate() {
        for writer in 0..*count {
            let (plane, counts, done) = (Arc::clone(plane), Arc::clone(&counts), Arc::clone(&done));
            writers.push(tokio::spawn(async move {
                while done.fetch_add(1, Ordering::Relaxed) < total {
                    let put = put(&format!("key-{writer}"), "1");
                    plane.submit(write(vec![put])).await.expect("fine");
                    counts[at].fetch_add(1, Ordering::Relaxed);
                }
            }));
        }
    }
    for writer in writers {
        writer.await.expect("no writer fails");
    }
    counts
        .iter()
        .map(|count| count.load(Ordering::Relaxed))
        .collect()
}

#[tokio::test]
async fn a_plane_with_ten_times_the_writers_gets_its_share_of_full_transactions() {
    let site = Site::new();
    let mut planes = vec![(site.open("greedy").await, 20)];
    for number in 0..80 {
        planes.push((site.open(&format!("plane-{number}")).await, 2));
    }
    let counts = writes_of(&planes, 81 * 200).await;
    let greedy = counts[0];
    assert!((180..=220).contains(&greedy), "{greedy} of 200: {counts:?}");
    for (plane, _) in &planes {
        assert_eq!(plane.stats().queued, 0);
    }
}

#[tokio::test]
async fn a_plane_with_more_writers_uses_what_the_others_leave() {
    let site = Site::new();
    let planes = [
        (site.open("greedy").await, 60),
        (site.open("modest").await, 2),
    ];
    let asked = site.store.plan().commits_asked();
    let counts = writes_of(&planes, 6200).await;
    let transactions = site.store.plan().commits_asked() - asked;
    // It has as many of a transaction's writes as a shared one may have of a plane. The modest plane waits
    // for no more than these.
    let most = crate::write::ready::SHARED_WRITES_MIN;
    assert!(counts[0] > 5000, "{counts:?}");
    assert!(counts[0] <= most * transactions + 60, "{transactions}");
    assert!(transactions < 6200 / 12, "{transactions}");
}

#[tokio::test]
async fn a_plane_that_writes_alone_fills_transactions() {
    let site = Site::new();
    let planes = [(site.open("greedy").await, 60)];
    let asked = site.store.plan().commits_asked();
    writes_of(&planes, 6000).await;
    let transactions = site.store.plan().commits_asked() - asked;
    assert!(transactions < 6000 / 25, "{transactions}");
}

#[tokio::test]
async fn readers_see_what_was_acknowledged_and_old_cuts_never_change() {
    let site = Site::new();
    let plane = site.open("a").await;
    let before = plane.snapshot();
    let old = dump(&before);
    let committed = plane
        .submit(write(vec![put("m", "1"), put("n", "2")]))
        .await
        .expect("fine");
    assert_eq!(committed.objects.len(), 2);
    let cut = plane.snapshot();
    assert_eq!(cut.version(), committed.version.end_of_revision());
    assert_eq!(cut.count(&configmaps()), 4);
    assert_eq!(value(&cut.get(&configmap("m")).expect("there")), "1");
    assert_eq!(dump(&before), old);

    let gone = plane.submit(write(vec![delete("m")])).await.expect("fine");
    let received = &gone.objects[0];
    assert_eq!(value(&received.object), "1");
    assert!(received.object.version() < Some(received.version));
    let body = received.object.body_at(received.version);
    let text = format!(r#""resourceVersion":"{}""#, received.version);
    assert!(String::from_utf8_lossy(&body).contains(&text));
    assert!(plane.snapshot().get(&configmap("m")).is_none());
}

#[tokio::test]
async fn pages_and_counts_follow_key_order() {
    let site = Site::new();
    let plane = site.open("a").await;
    for at in 0..5 {
        let batch = (0..100).map(|n| put(&format!("o-{:03}", at * 100 + n), "1"));
        plane.submit(write(batch.collect())).await.expect("fine");
    }
    let cut = plane.snapshot();
    let prefix = configmaps().namespace("ns");
    let mut names = Vec::new();
    let mut last: Option<Key> = None;
    loop {
        let start = last
            .as_ref()
            .map_or(Start::First, |key| Start::After(key.as_bytes()));
        let page: Vec<_> = cut.range(&prefix, start).take(64).collect();
        assert_eq!(
            cut.count_from(&prefix, start),
            cut.count(&prefix) - names.len()
        );
        let Some(end) = page.last() else { break };
        last = Some(end.key().clone());
        names.extend(page.iter().map(|object| object.key().name().to_owned()));
    }
    assert_eq!(names.len(), 502);
    assert!(names.is_sorted());
    assert_eq!(cut.count(&configmaps().namespace("other")), 0);
    let start = configmap("o-250");
    assert_eq!(cut.count_from(&prefix, Start::At(start.as_bytes())), 252);
}

#[tokio::test]
async fn claims_are_checked_against_writes_under_way() {
    let site = Site::new();
    let plane = site.open("a").await;
    let namespace = Key::new("", "namespaces", None, "ns");
    let namespace_put = |flags| Operation::Put {
        key: namespace.clone(),
        object: NewObject {
            flags,
            ..object("ns", "x", "1")
        },
    };
    let first = plane.submit(write(vec![namespace_put(Flags::NONE)]));
    first.await.expect("fine");

    let create = || claimed(put("new", "1"), Claim::Active(namespace.clone()));
    let terminate = write(vec![namespace_put(Flags::TERMINATING)]);
    let (terminated, refused) = tokio::join!(plane.submit(terminate), plane.submit(create()));
    terminated.expect("nothing against it");
    assert_eq!(
        refused.expect_err("the namespace is on its way out"),
        SubmitError::ClaimFailed(Broken::Claim(0))
    );

    let empty = || Claim::Empty(Scope::Namespace("other".into()));
    let elsewhere = Operation::Put {
        key: Key::new("apps", "deployments", Some("other"), "d"),
        object: object("d", "x", "1"),
    };
    let finalize = claimed(delete("template-a"), empty());
    let (created, refused) =
        tokio::join!(plane.submit(write(vec![elsewhere])), plane.submit(finalize));
    created.expect("fine");
    refused.expect_err("the create under way is in the accepted state");

    let twice = || claimed(put("only", "1"), Claim::Absent(configmap("only")));
    let (one, other) = tokio::join!(plane.submit(twice()), plane.submit(twice()));
    assert!(one.is_ok() && other.is_err());
    let missing = plane.submit(write(vec![delete("nobody")])).await;
    assert_eq!(
        missing.expect_err("not there"),
        SubmitError::ClaimFailed(Broken::Operation(0))
    );
}

/// A write that rests on a summary is refused once any summarized object has changed, and no other
/// write disturbs it.
#[tokio::test]
async fn a_summary_is_claimed_as_a_whole() {
    let site = Site::new();
    let plane = site.open("a").await;
    let seen = || Claim::Summary(plane.snapshot().summary().expect("there is one").clone());
    let elsewhere = Operation::Put {
        key: Key::new("apps", "deployments", Some("ns"), "d"),
        object: object("d", "x", "1"),
    };
    let first = claimed(put("mine", "1"), seen());
    let (other, mine) = tokio::join!(plane.submit(write(vec![elsewhere])), plane.submit(first));
    assert!(other.is_ok() && mine.is_ok());
    let stale = claimed(put("mine", "2"), seen());
    let (other, mine) = tokio::join!(
        plane.submit(write(vec![put("theirs", "1")])),
        plane.submit(stale)
    );
    other.expect("nothing against it");
    assert_eq!(
        mine.expect_err("another object came"),
        SubmitError::ClaimFailed(Broken::Claim(0))
    );
    let stale = claimed(put("mine", "2"), seen());
    plane
        .submit(write(vec![delete("theirs")]))
        .await
        .expect("it is there");
    plane.submit(stale).await.expect_err("another object went");
}

#[tokio::test]
async fn values_are_free_once_and_room_runs_out() {
    let site = Site::new();
    let plane = site.open("a").await;
    let take = |name: &str, label: &'static str| {
        let claim = Claim::Free {
            index: LABELS,
            value: Bytes::from(label),
            owner: configmap(name),
        };
        claimed(put_labelled(name, label, "5"), claim)
    };
    plane.submit(take("one", "port")).await.expect("free");
    plane.submit(take("one", "port")).await.expect("its own");
    plane.submit(take("two", "port")).await.expect_err("taken");
    assert_eq!(
        plane.snapshot().index_owner(LABELS, b"port"),
        Some(&configmap("one"))
    );
    plane.submit(take("one", "other")).await.expect("it moves");
    plane.submit(take("two", "port")).await.expect("free again");

    let room = |name: &str| {
        let claim = Claim::Room {
            index: LABELS,
            values: IndexValues::beginning_with("quot"),
            add: 5,
            max: 12,
        };
        claimed(put_labelled(name, "quota", "5"), claim)
    };
    let (a, b, c) = tokio::join!(
        plane.submit(room("qa")),
        plane.submit(room("qb")),
        plane.submit(room("qc"))
    );
    assert!(a.is_ok() && b.is_ok() && c.is_err());
    assert_eq!(plane.snapshot().index_amount(LABELS, b"quota"), 10);
    plane.submit(write(vec![delete("qa")])).await.expect("fine");
    plane.submit(room("qc")).await.expect("there is room");
    let taken: Vec<_> = plane
        .snapshot()
        .index_values(LABELS, b"q")
        .map(|(value, amount)| (value.to_vec(), amount))
        .collect();
    assert_eq!(taken, [(b"quota".to_vec(), 10)]);
}

#[tokio::test]
async fn a_write_can_rest_on_a_value_that_an_object_takes() {
    let site = Site::new();
    let plane = site.open("a").await;
    let taken = |name: &str| {
        let claim = Claim::Taken {
            index: LABELS,
            values: IndexValues::beginning_with("quota"),
        };
        claimed(put_labelled(name, "rest", "1"), claim)
    };
    plane.submit(taken("a")).await.expect_err("there is none");
    for name in ["qa", "qb"] {
        let put = write(vec![put_labelled(name, "quota", "5")]);
        plane.submit(put).await.expect("it is new");
    }
    plane.submit(taken("a")).await.expect("two are there");
    plane.submit(write(vec![delete("qa")])).await.expect("fine");
    plane.submit(taken("b")).await.expect("one is there");
    let (gone, refused) = tokio::join!(
        plane.submit(write(vec![delete("qb")])),
        plane.submit(taken("c"))
    );
    assert!(gone.is_ok() && refused.is_err());
}

#[tokio::test]
async fn many_writes_share_transactions_and_one_key_never_stands_twice_in_one() {
    let site = Site::new();
    let plane = site.open("a").await;
    let before = site.store.revision().await.expect("it answers");
    let mut tasks = Vec::new();
    for at in 0..400 {
        let plane = Arc::clone(&plane);
        let name = format!("o-{}", at % 200);
        tasks.push(tokio::spawn(async move {
            plane.submit(write(vec![put(&name, "1")])).await
        }));
    }
    for task in tasks {
        task.await.expect("no panic").expect("fine");
    }
    let after = site.store.revision().await.expect("it answers");
    // 400 puts of 200 keys: four full transactions at best, some more for the key that repeats.
    let used = after.0 - before.0;
    assert!((4..=12).contains(&used), "{used} transactions");
}

#[tokio::test]
async fn large_writes_pass_and_too_large_ones_say_so() {
    let site = Site::new();
    let planes = [site.open("a").await, site.open("b").await];
    let big = "x".repeat(1 << 20);
    let mut tasks = Vec::new();
    for at in 0..6 {
        let plane = Arc::clone(&planes[at % 2]);
        let big = big.clone();
        tasks.push(tokio::spawn(async move {
            let large = plane.submit(write(vec![put(&format!("big-{at}"), &big)]));
            large.await.expect("it fits a transaction of its own");
            let small = plane.submit(write(vec![put(&format!("small-{at}"), "1")]));
            small.await.expect("fine");
        }));
    }
    for task in tasks {
        task.await.expect("all pass");
    }
    let huge = planes[0].submit(write(vec![put("huge", &"x".repeat(2 << 20))]));
    let error = huge.await.expect_err("beyond the store's limit");
    assert!(matches!(error, SubmitError::TooLarge { bytes_max, .. } if bytes_max < 2 << 20));
    let twice = planes[0].submit(write(vec![put("t", "1"), delete("t")]));
    assert!(matches!(twice.await, Err(SubmitError::Malformed(_))));
}

#[tokio::test]
async fn turns_are_first_come_first_served_and_leave_nothing_behind() {
    let site = Site::new();
    let plane = site.open("a").await;
    let key = configmap("m");
    let first = plane.enter_key_queue(&key).await;
    let order = Arc::new(Mutex::new(Vec::new()));
    let mut tasks = Vec::new();
    for number in 0..4 {
        let (plane, key, order) = (Arc::clone(&plane), key.clone(), Arc::clone(&order));
        tasks.push(tokio::spawn(async move {
            let _turn = plane.enter_key_queue(&key).await;
            order.lock().push(number);
        }));
        tokio::task::yield_now().await;
    }
    tasks.remove(1).abort();
    drop(first);
    for task in tasks {
        task.await.expect("it gets its turn");
    }
    assert_eq!(*order.lock(), [0, 2, 3]);
    assert_eq!(plane.key_queue_count(), 0);
}

#[tokio::test]
async fn what_expires_is_known_in_order() {
    let site = Site::new();
    let plane = site.open("a").await;
    let expiring = |name: &str, expires| Operation::Put {
        key: configmap(name),
        object: NewObject {
            expires,
            ..object(name, "x", "1")
        },
    };
    let puts = vec![
        expiring("later", Some(20)),
        expiring("soon", Some(10)),
        expiring("never", None),
    ];
    plane.submit(write(puts)).await.expect("fine");
    assert_eq!(plane.expired(9, 10), []);
    assert_eq!(
        plane.expired(20, 10),
        [configmap("soon"), configmap("later")]
    );
    let again = site.open("a").await;
    assert_eq!(again.expired(20, 1), [configmap("soon")]);
    again
        .submit(write(vec![expiring("soon", Some(30)), delete("later")]))
        .await
        .expect("fine");
    assert_eq!(again.expired(29, 10), []);
}

#[tokio::test]
async fn a_plane_with_little_to_say_is_not_held_up_by_one_with_much() {
    let site = Site::new();
    let (loud, quiet) = (site.open("loud").await, site.open("quiet").await);
    let large = "x".repeat(100_000);
    let mut tasks = Vec::new();
    for at in 0..100 {
        let (plane, large) = (Arc::clone(&loud), large.clone());
        tasks.push(tokio::spawn(async move {
            let put = put(&format!("large-{at}"), &large);
            plane.submit(write(vec![put])).await
        }));
    }
    for round in 0..5 {
        while loud.stats().queued < 20 && !tasks.iter().all(|task| task.is_finished()) {
            tokio::task::yield_now().await;
        }
        let before = site.store.revision().await.expect("it answers");
        let done = quiet
            .submit(write(vec![put("m", &round.to_string())]))
            .await;
        let revision = done.expect("fine").version.revision(Base(0));
        // One transaction may be under way; all other writes fit into the next one.
        assert!(revision.0 <= before.0 + 2, "{revision:?} after {before:?}");
    }
    for task in tasks {
        task.await.expect("no panic").expect("fine");
    }
}

#[tokio::test]
async fn what_repeats_in_many_planes_is_in_memory_once() {
    let site = Site::new();
    let (a, b) = (site.open("a").await, site.open("b").await);
    let large = "x\\n".repeat(2000);
    for (at, plane) in [&a, &a, &b, &b].into_iter().enumerate() {
        let done = plane
            .submit(write(vec![put_labelled("m", "y", &large)]))
            .await;
        let object = &done.expect("fine").objects[0].object;
        assert!(object.body_len() > large.len());
        // A part that was seen once stays in one piece.
        assert_eq!(object.unshared_len() < 512, at > 0);
        let mut copy = Vec::new();
        object.append_to(&mut copy);
        assert_eq!(object.body(), copy);
        assert_eq!(object.labels_json(), br#"{"l":"y"}"#);
        assert_eq!(value(object), large.replace("\\n", "\n"));
    }
    let before = dump(&b.snapshot());
    let again = site.open("b").await;
    assert_eq!(dump(&again.snapshot()), before);
    let object = again.snapshot().get(&configmap("m")).expect("there");
    assert!(object.unshared_len() < 512);
    let moved = object.body_at(Version::from_raw(u64::MAX));
    assert!(String::from_utf8_lossy(&moved).contains(r#""18446744073709551615","#));
}
