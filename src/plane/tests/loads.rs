//! Opening, layers, and cleaning up.

use polyplane_storage::{CommitError, Op, RangeRequest, ReadError, ReadFault};

use super::*;

#[tokio::test]
async fn a_plane_is_born_as_its_layer_and_costs_nothing_in_the_store() {
    let site = Site::new();
    let plane = site.open("a").await;
    let cut = plane.snapshot();
    assert_eq!(cut.objects(), 2);
    assert_eq!(cut.own_bytes(), 0);
    let object = cut.get(&configmap("template-b")).expect("from the layer");
    assert!(object.is_template());
    assert_eq!(value(&object), "of the ring");
    assert_eq!(
        object.version(),
        Some(Version::new(Base(0), Revision(1), 0))
    );
    let range = RangeRequest::prefix("p/a/");
    let stored = site.store.range(range).await.expect("it answers");
    assert_eq!(stored.items, []);
    assert_eq!(cut.index_amount(LABELS, b"layer"), 1);
}

#[tokio::test]
async fn a_deleted_layer_object_stays_away_until_it_is_made_anew() {
    let site = Site::new();
    let plane = site.open("a").await;
    let deleted = plane.submit(write(vec![delete("template-a")])).await;
    assert!(deleted.expect("fine").objects[0].object.is_template());
    let plane = site.open("a").await;
    assert!(plane.snapshot().get(&configmap("template-a")).is_none());
    assert_eq!(plane.snapshot().index_amount(LABELS, b"layer"), 0);
    let create = claimed(
        put("template-a", "own"),
        Claim::Absent(configmap("template-a")),
    );
    let created = plane.submit(create).await.expect("fine").version;
    let plane = site.open("a").await;
    let object = plane
        .snapshot()
        .get(&configmap("template-a"))
        .expect("there");
    assert_eq!(value(&object), "own");
    assert_eq!(object.created(), Some(created), "it is a new object");
    plane
        .submit(write(vec![put("template-a", "2")]))
        .await
        .expect("fine");
    plane
        .submit(write(vec![delete("template-a")]))
        .await
        .expect("fine");
    let plane = site.open("a").await;
    assert!(plane.snapshot().get(&configmap("template-a")).is_none());
}

#[tokio::test]
async fn two_planes_of_one_store_never_meet() {
    let site = Site::new();
    let (a, b) = (site.open("a").await, site.open("ab").await);
    a.submit(write(vec![put("m", "a")])).await.expect("fine");
    b.submit(write(vec![put("m", "b")])).await.expect("fine");
    let before = dump(&site.open("ab").await.snapshot());
    let compares = Vec::new();
    let store: Arc<dyn Store> = site.store.clone();
    close(&a, Ended::Deleted).await;
    delete_range(&store, "a", compares).await.expect("fine");
    let left = site.store.range(RangeRequest::prefix("p/a/")).await;
    assert_eq!(left.expect("it answers").items, []);
    assert_eq!(dump(&site.open("ab").await.snapshot()), before);
}

#[tokio::test]
async fn a_range_is_deleted_in_pieces_that_compare_the_fence() {
    let site = Site::new();
    let plane = site.open("a").await;
    for at in 0..3 {
        let puts = (0..100).map(|n| put(&format!("o-{at}-{n}"), "1")).collect();
        plane.submit(write(puts)).await.expect("fine");
    }
    close(&plane, Ended::Deleted).await;
    let store: Arc<dyn Store> = site.store.clone();
    let wrong = vec![polyplane_storage::Compare::Absent { key: "f/a".into() }];
    let refused = delete_range(&store, "a", wrong).await;
    assert!(matches!(
        refused,
        Err(DeleteError::Commit(CommitError::Refused { .. }))
    ));
    let right = vec![polyplane_storage::Compare::Present { key: "f/a".into() }];
    delete_range(&store, "a", right).await.expect("fine");
    let left = site.store.range(RangeRequest::prefix("p/")).await;
    assert_eq!(left.expect("it answers").items, []);
}

#[tokio::test]
async fn what_cannot_be_read_is_refused_by_name() {
    let site = Site::new();
    let store: Arc<dyn Store> = site.store.clone();
    let damaged = Op::Put {
        key: "p/a/o//configmaps/ns/m".into(),
        value: "nonsense".into(),
        lease: None,
    };
    let txn = polyplane_storage::Txn {
        compares: Vec::new(),
        ops: vec![damaged],
    };
    store.commit(txn).await.expect("fine");
    let guard = TestGuard::take(site.store.clone(), "a", &Test::default()).await;
    let record = |layer: &Layer| PlaneRecord {
        id: "a".into(),
        base: 0,
        birth: None,
        layer: layer.hash().clone(),
        params: BTreeMap::from([("CA".to_owned(), "x".to_owned())]),
    };
    let layers = site.layers_with(&layer()).await;
    let params = |record| PlaneParams {
        record,
        born: Version::from_raw(1 << 8),
        born_at: "2026-01-01T00:00:00Z".into(),
        layers: Arc::clone(&layers),
        uid_seed: [0; 32],
        indexes: Vec::new(),
        derivation: None,
        summarize: None,
        committer: Arc::clone(&site.committer),
        guard: guard.clone(),
        acquired: Revision(1),
        log: LogBounds::default(),
        external: None,
        import: None,
        copied: None,
    };
    let error = Plane::open(params(record(&layer()))).await;
    let Err(OpenError::Record { key, source }) = error else {
        panic!("the value is damaged");
    };
    assert_eq!(key, "p/a/o//configmaps/ns/m");
    assert!(matches!(
        source,
        RecordError::Newer(_) | RecordError::Damaged
    ));

    let mut unknown = record(&layer());
    unknown.id = "b".into();
    unknown.layer = LayerHash("none".into());
    let error = Plane::open(params(unknown)).await;
    assert!(matches!(error, Err(OpenError::Layer(_))));
    let mut unfilled = record(&layer());
    unfilled.id = "b".into();
    unfilled.params.clear();
    let error = Plane::open(params(unfilled)).await;
    assert!(matches!(error, Err(OpenError::Parameter(MissingParameter(name))) if name == "CA"));
}

#[test]
fn the_record_reads_back_as_written() {
    let record = PlaneRecord {
        id: "a".into(),
        base: 5,
        birth: Some(Version::from_raw(u64::MAX >> 1)),
        layer: layer().hash().clone(),
        params: BTreeMap::from([("CA".to_owned(), "x".to_owned())]),
    };
    let text = serde_json::to_string(&record).expect("plain data");
    assert!(text.contains(r#""birth":"9223372036854775807""#), "{text}");
    let back: PlaneRecord = serde_json::from_str(&text).expect("what was written");
    assert_eq!(back, record);
    let small: PlaneRecord =
        serde_json::from_str(r#"{"id":"a","layer":"x"}"#).expect("the rest has defaults");
    assert_eq!((small.base, small.birth), (0, None));
}

#[tokio::test]
async fn history_begins_where_the_store_still_knows_it() {
    let site = Site::new();
    let plane = site.open("a").await;
    let mut versions = Vec::new();
    for round in 0..6 {
        let one = write(vec![put("m", &round.to_string())]);
        versions.push(plane.submit(one).await.expect("fine").version);
    }
    let floor = versions[2].revision(Base(0));
    site.store.compact(floor).await.expect("fine");
    let plane = site.open("a").await;
    let scope = || WatchScope::Prefix(configmaps());
    let old = plane.watch(scope(), WatchFrom::After(versions[1])).await;
    assert_eq!(
        old.expect_err("forgotten"),
        WatchError::Expired(ExpiredCause::Compacted)
    );
    let from = WatchFrom::After(versions[2]);
    let from = match plane.watch(scope(), from).await {
        // The log begins at the end of that revision.
        Err(WatchError::Expired(_)) => WatchFrom::After(versions[2].end_of_revision()),
        Ok(_) => from,
        Err(error) => panic!("{error}"),
    };
    let mut watcher = plane.watch(scope(), from).await.expect("still known");
    let events = events_until(&mut watcher, versions[5]).await;
    let seen: Vec<_> = events.iter().map(|event| event.version()).collect();
    assert_eq!(seen, versions[3..]);
    assert_eq!(value(events[0].previous().expect("it was there")), "2");
}

/// Events that the store cannot return for now may still be there, so no client gets the error that
/// they are gone.
#[tokio::test(start_paused = true)]
async fn a_history_that_cannot_be_read_for_now_is_not_called_gone() {
    let site = Site::new();
    let plane = site.open("a").await;
    let first = plane.submit(write(vec![put("m", "1")])).await;
    let first = first.expect("fine").version;
    let last = plane.submit(write(vec![put("m", "2")])).await;
    let last = last.expect("fine").version;
    let plane = site.open("a").await;
    let (scope, from) = (|| WatchScope::Prefix(configmaps()), WatchFrom::After(first));
    let plan = site.store.plan();
    let fails = |times| {
        let unavailable = ReadError::Unavailable("no leader".into());
        plan.next_reads(ReadFault::Fail(unavailable), times);
    };
    fails(1000);
    let watch = plane.watch(scope(), from).await;
    assert_eq!(watch.expect_err("for now"), WatchError::Unavailable);
    let cut = plane.at(first, &configmaps()).await;
    assert_eq!(cut.expect_err("for now"), AtError::Unavailable);
    plan.clear();
    fails(5);
    let mut watcher = plane.watch(scope(), from).await.expect("it waits");
    let events = events_until(&mut watcher, last).await;
    assert_eq!(events.len(), 1);
    let cut = plane.at(first, &configmaps()).await.expect("it is read");
    assert_eq!(value(&cut.get(&configmap("m")).expect("there")), "1");
    // A watch whose plane ends in the meantime can resume at the next owner.
    let plane = site.open("a").await;
    fails(1000);
    let (watch, ()) = tokio::join!(plane.watch(scope(), from), async {
        tokio::time::sleep(Duration::from_secs(1)).await;
        plane.end(Ended::Lost);
    });
    let ended = WatchError::Ended(Ended::Lost);
    assert_eq!(watch.expect_err("it is over"), ended);
}

/// The objects can be decoded, a record of the history cannot: the history is refused, with that
/// cause.
#[tokio::test]
async fn a_history_that_cannot_be_understood_is_called_unreadable() {
    let site = Site::new();
    let plane = site.open("a").await;
    let first = plane.submit(write(vec![put("m", "1")])).await;
    let first = first.expect("fine").version;
    let key = bytes::Bytes::from("p/a/o//configmaps/ns/damaged");
    let damage = Op::Put {
        key: key.clone(),
        value: "nonsense".into(),
        lease: None,
    };
    for op in [damage, Op::Delete { key }] {
        let txn = polyplane_storage::Txn {
            compares: Vec::new(),
            ops: vec![op],
        };
        site.inner.commit(txn).await.expect("fine");
    }
    let plane = site.open("a").await;
    let since = plane.snapshot().version();
    let scope = || WatchScope::Prefix(configmaps());
    for _ in ["read", "known"] {
        let gone = ExpiredCause::Unreadable;
        let old = plane.watch(scope(), WatchFrom::After(first)).await;
        assert_eq!(old.expect_err("unread"), WatchError::Expired(gone));
        let old = plane.at(first, &configmaps()).await;
        assert_eq!(old.expect_err("unread"), AtError::Expired(gone));
    }
    let mut watcher = plane.watch(scope(), WatchFrom::After(since)).await;
    let watcher = watcher.as_mut().expect("nothing of it is needed");
    let last = plane.submit(write(vec![put("m", "2")])).await;
    let last = last.expect("fine").version;
    assert_eq!(events_until(watcher, last).await.len(), 1);
}

#[tokio::test]
async fn nothing_goes_on_from_before_the_birth() {
    let site = Site::new();
    let before = Version::from_raw((1 << 8) - 1);
    let scope = || WatchScope::Prefix(configmaps());
    for _ in ["new", "written to"] {
        let plane = site.open("a").await;
        let old = plane.watch(scope(), WatchFrom::After(before)).await;
        let gone = ExpiredCause::BeforeBirth;
        assert_eq!(
            old.expect_err("of another plane"),
            WatchError::Expired(gone)
        );
        let old = plane.at(before, &configmaps()).await;
        assert_eq!(old.expect_err("of another plane"), AtError::Expired(gone));
        let birth = WatchFrom::After(Version::new(Base(0), Revision(1), 0));
        plane
            .watch(scope(), birth)
            .await
            .expect("all is known since");
        plane
            .submit(write(vec![put("m", "1")]))
            .await
            .expect("fine");
    }
}
