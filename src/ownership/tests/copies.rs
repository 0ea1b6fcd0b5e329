//! A copied store: same versions, same history, whatever interrupts the copy; and what is refused.

use super::*;
use crate::copy::record::{COPY_KEY, COPY_LEVEL, CopyRecord};
use crate::copy::sizes;
use crate::copy::source::Source;
use crate::membership::member_record::member_key;
use crate::records::candidate_key;
use polyplane_plane::{Ended, Event, ExpiredCause, Next, Start, WatchError, WatchFrom, WatchScope};
use polyplane_storage::{Disk, FjallOptions, FjallStore, SystemDisk};
use std::io;
use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering};
use tokio_util::sync::CancellationToken;

const NAMES: [&str; 3] = ["a", "b", "c"];

fn member_of_level(name: &str) -> ReplicaOptions {
    ReplicaOptions {
        level: COPY_LEVEL,
        ..options(name)
    }
}

fn memory() -> Arc<dyn Store> {
    Arc::new(MemoryStore::new(MemoryOptions::default()))
}

fn copy_options() -> CopyOptions {
    CopyOptions {
        from: "the source".to_owned(),
        level: COPY_LEVEL,
        layer: Layer::empty(),
        rows: external::object_prefix(
            ROOT,
            &polyplane_plane::Prefix::resource("polyplane.dev", "planes"),
        ),
        stop: CancellationToken::new(),
        say_checking: || {},
    }
}

/// What a client sees in one plane.
#[derive(Debug, PartialEq, Eq)]
struct Sight {
    objects: Vec<(String, Version, Vec<u8>)>,
    /// The events after a version.
    events: Vec<Told>,
}

/// An event: its version and key, and the bytes before and after it.
type Told = (Version, String, Option<Vec<u8>>, Option<Vec<u8>>);

fn bytes(object: Option<&polyplane_plane::ObjectRef>) -> Option<Vec<u8>> {
    object.map(|object| object.body().to_vec())
}

fn scope() -> WatchScope {
    WatchScope::Prefix(polyplane_plane::Prefix::resource("", "configmaps"))
}

async fn look(town: &Town, birth: &Birth, after: Version) -> Sight {
    let plane = town.find(birth).await;
    let cut = plane.snapshot();
    let prefix = polyplane_plane::Prefix::resource("", "configmaps");
    let objects = cut.range(&prefix, Start::First);
    let objects = objects.map(|object| {
        let version = object.version().expect("it is durable");
        let key = object.key().to_string();
        (key, version, object.body().to_vec())
    });
    let objects = objects.collect();
    let mut watcher = plane
        .watch(scope(), WatchFrom::After(after))
        .await
        .expect("inside the history");
    let mut events: Vec<Arc<Event>> = Vec::new();
    // The events are in the log, so they are there at the first poll.
    while let Ok(next) = tokio::time::timeout(Duration::from_millis(50), watcher.next()).await {
        match next {
            Next::Events(more) => events.extend(more),
            Next::Bookmark(_) => {}
            other => panic!("the watch ended: {other:?}"),
        }
    }
    let events = events.iter().map(|event| {
        let (before, now) = (bytes(event.previous()), bytes(event.current()));
        (event.version(), event.key().to_string(), before, now)
    });
    Sight {
        objects,
        events: events.collect(),
    }
}

/// Returns the birth of a plane as the directory of the store has it.
async fn birth(town: &Town, known: &Birth) -> Birth {
    let known = known.clone();
    let directory = known.directory.expect("it is not the root");
    let (_, found) = town.store.get(&directory.key).await.expect("it answers");
    let created = found.expect("its row is there").created;
    Birth {
        base: town.any().planes.numbering().base.0,
        directory: Some(DirectoryKey {
            created,
            ..directory
        }),
        ..known
    }
}

async fn delete(town: &Town, birth: &Birth, name: &str) {
    let plane = town.find(birth).await;
    let operations = vec![Operation::Delete { key: key(name) }, put("beside", "it")];
    let write = Write {
        operations,
        ..Write::default()
    };
    plane.submit(write).await.expect("it is deleted");
}

/// Copies a store. With `steps` the copy is stopped after each transaction and opened again.
async fn copy(source: &Arc<dyn Store>, target: &Arc<dyn Store>, steps: bool) -> usize {
    let mut runs = 0;
    loop {
        runs += 1;
        let opened = StoreCopy::open(Arc::clone(source), Arc::clone(target), copy_options()).await;
        let mut copy = opened.expect("it begins or goes on");
        assert_eq!(copy.is_resumed(), runs > 1);
        let stop = CancellationToken::new();
        let report = |_| {
            if steps {
                stop.cancel();
            }
        };
        match copy
            .run(&stop, report)
            .await
            .expect("nothing is in its way")
        {
            CopyEnd::Complete => return runs,
            CopyEnd::Stopped => assert!(steps),
        }
        assert!(runs < 500, "the copy makes no progress");
    }
}

/// Ends the only replica of a store as SIGTERM does.
async fn leave(town: &Town, name: &str) {
    let replica = town.replicas.lock().remove(name).expect("it runs");
    replica.planes.close().await;
    replica.ring.leave().await;
}

/// Makes a store with three planes, whose history begins in the middle of their changes. Returns a
/// version after that for each plane.
async fn filled() -> (Arc<Town>, Vec<(Birth, Version)>) {
    let town = Town::over(memory());
    town.join_as(member_of_level("solo")).await;
    let mut planes = Vec::new();
    for name in NAMES {
        let birth = town.plane(name).await;
        for n in 0..5 {
            town.write(&birth, &format!("old-{n}"), "1").await;
        }
        planes.push(birth);
    }
    delete(&town, &planes[0], "old-0").await;
    let begins = revision(&town).await;
    town.store.compact(begins).await.expect("it is compacted");
    let mut since = Vec::new();
    for birth in planes {
        let after = town.write(&birth, "first", "1").await.version;
        since.push((birth, after));
    }
    for n in 0..10 {
        for (birth, _) in &since {
            town.write(birth, &format!("old-{}", 1 + n % 4), &n.to_string())
                .await;
            town.write(birth, &format!("new-{n}"), "1").await;
        }
    }
    // A plane that lives shorter than the history, and deletes of what is older.
    delete(&town, &since[0].0, "old-1").await;
    delete(&town, &since[1].0, "new-3").await;
    let late = town.plane("late").await;
    let after = town.write(&late, "x", "1").await.version;
    town.write(&late, "y", "1").await;
    since.push((late, after));
    (town, since)
}

async fn looks_at(town: &Town, planes: &[(Birth, Version)]) -> Vec<Sight> {
    let mut sights = Vec::new();
    for (known, after) in planes {
        let birth = birth(town, known).await;
        sights.push(look(town, &birth, *after).await);
    }
    sights
}

/// Puts the target's revision beyond that of the source.
async fn age(store: &Arc<dyn Store>) {
    for n in 0..600 {
        let key = bytes::Bytes::from_static(b"x");
        let put = Op::Put {
            key: key.clone(),
            value: "x".into(),
            lease: None,
        };
        let op = if n % 2 == 0 { put } else { Op::Delete { key } };
        let txn = Txn {
            compares: Vec::new(),
            ops: vec![op],
        };
        store.commit(txn).await.expect("it is put");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn copies_of_copies_have_the_versions_and_the_history_of_the_first_store() {
    let (town, planes) = filled().await;
    let before = looks_at(&town, &planes).await;
    assert!(before.iter().all(|sight| !sight.events.is_empty()));
    leave(&town, "solo").await;
    let mut source = Arc::clone(&town.store);
    let (mut planes, mut before) = (planes, before);
    for (at, steps) in [true, false, true].into_iter().enumerate() {
        let target = memory();
        if at == 1 {
            age(&target).await;
        }
        let runs = copy(&source, &target, steps).await;
        assert!(!steps || runs > 4, "{runs} runs");
        let town = Town::over(Arc::clone(&target));
        town.join_as(member_of_level("solo")).await;
        assert_eq!(looks_at(&town, &planes).await, before, "copy {at}");
        for (known, _) in &mut planes {
            let birth = birth(&town, known).await;
            let last = town.find(&birth).await.snapshot().version();
            let written = town.write(&birth, "old-2", "after the copy").await;
            assert!(written.version > last, "versions grow");
            delete(&town, &birth, "old-2").await;
            *known = birth;
        }
        before = looks_at(&town, &planes).await;
        leave(&town, "solo").await;
        source = target;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_copied_plane_keeps_its_history_when_it_is_handed_off() {
    let (town, planes) = filled().await;
    let before = looks_at(&town, &planes).await;
    leave(&town, "solo").await;
    let target = memory();
    copy(&town.store, &target, false).await;
    let town = Town::over(target);
    let first = town.join_as(member_of_level("first")).await;
    let mut watchers = Vec::new();
    for (known, _) in &planes {
        // Only the state is loaded, so the history is read by the next owner. A plane that nobody
        // watches might be released asleep instead of being handed off.
        let plane = town.find(&birth(&town, known).await).await;
        let watcher = plane.watch(scope(), WatchFrom::Now).await;
        watchers.push(watcher.expect("it is open"));
    }
    town.join_as(member_of_level("second")).await;
    let soon = Instant::now() + PATIENCE;
    assert!(first.planes.drain(soon).await, "everything is handed off");
    let (known, _) = &planes[0];
    assert!(town.find(&birth(&town, known).await).await.imported());
    assert_eq!(looks_at(&town, &planes).await, before);
    let (known, after) = &planes[1];
    let of_second = birth(&town, known).await;
    let written = town.write(&of_second, "later", "1").await;
    assert!(written.version > *after);
    let sight = look(&town, &of_second, *after).await;
    assert_eq!(sight.events.len(), before[1].events.len() + 1);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_watch_from_before_the_copied_history_has_expired() {
    let (town, planes) = filled().await;
    leave(&town, "solo").await;
    let target = memory();
    copy(&town.store, &target, false).await;
    let town = Town::over(target);
    town.join_as(member_of_level("solo")).await;
    let birth = birth(&town, &planes[0].0).await;
    let plane = town.find(&birth).await;
    let born = Version::from_raw(birth.born.raw() + 256);
    let old = plane.watch(scope(), WatchFrom::After(born)).await;
    let error = old.expect_err("the copy has no such history");
    assert_eq!(error, WatchError::Expired(ExpiredCause::BeforeBirth));
    plane.end(Ended::Lost);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_served_source_and_a_used_target_are_refused() {
    let (town, _) = filled().await;
    let open = async |target: &Arc<dyn Store>| {
        StoreCopy::open(Arc::clone(&town.store), Arc::clone(target), copy_options()).await
    };
    let served = open(&memory()).await.err().expect("it is served");
    assert!(
        matches!(&served, CopyError::Served(name) if name == "solo"),
        "{served}"
    );
    leave(&town, "solo").await;
    let used = open(&Town::over(filled().await.0.store.clone()).store).await;
    assert!(matches!(used.err(), Some(CopyError::TargetUsed(_))));
    let none = StoreCopy::open(memory(), memory(), copy_options()).await;
    assert!(matches!(none.err(), Some(CopyError::NoStore)));
    let target = memory();
    copy(&town.store, &target, false).await;
    assert!(matches!(
        open(&target).await.err(),
        Some(CopyError::TargetComplete(_))
    ));
    let same = StoreCopy::open(Arc::clone(&target), target, copy_options()).await;
    assert!(matches!(same.err(), Some(CopyError::TargetComplete(_))));
}

/// Copies a part of the store and stops.
async fn begun(source: &Arc<dyn Store>, target: &Arc<dyn Store>) {
    let opened = StoreCopy::open(Arc::clone(source), Arc::clone(target), copy_options()).await;
    let stop = CancellationToken::new();
    let ended = opened
        .expect("it begins")
        .run(&stop, |_| stop.cancel())
        .await;
    assert_eq!(ended.expect("it is stopped"), CopyEnd::Stopped);
}

/// A disk of which the test says how much is free; 0 for what the real one has.
#[derive(Default)]
struct TightDisk(AtomicU64);

impl Disk for TightDisk {
    fn after_sync(&self, _head: Revision) -> io::Result<()> {
        Ok(())
    }

    fn free_bytes(&self, folder: &Path) -> io::Result<u64> {
        match self.0.load(Ordering::SeqCst) {
            0 => SystemDisk.free_bytes(folder),
            bytes => Ok(bytes),
        }
    }
}

/// Opening the file proves every earlier replica dead, but their member keys are deleted by a write.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_embedded_store_on_a_full_disk_is_copied_after_its_replica_was_killed() {
    let folder = tempfile::tempdir().expect("a folder");
    let disk = Arc::new(TightDisk::default());
    let open = || -> Arc<dyn Store> {
        let options = FjallOptions {
            ballast_bytes: 0,
            disk: Arc::clone(&disk) as Arc<dyn Disk>,
            ..FjallOptions::default()
        };
        Arc::new(FjallStore::open(folder.path(), options).expect("it opens"))
    };
    let town = Town::over(open());
    town.join_as(member_of_level("solo")).await;
    let known = town.plane("a").await;
    town.write(&known, "x", "1").await;
    let crashed = town.crash("solo");
    crashed.planes.closing().cancel();
    town.store.close().await;
    drop((crashed, town));
    // Enough for opening it, and too little for a write.
    disk.0.store(5 << 20, Ordering::SeqCst);
    let source = open();
    let member = member_key(&id("solo"));
    let has_member = async || source.get(&member).await.expect("it is read").1.is_some();
    assert!(has_member().await, "it cannot be deleted");
    let target = memory();
    begun(&source, &target).await;
    // With room the store deletes the key, which is no change of what is copied.
    disk.0.store(0, Ordering::SeqCst);
    let soon = Instant::now() + PATIENCE;
    while has_member().await {
        assert!(Instant::now() < soon, "{:?}", source.status());
        sleep(Duration::from_millis(10)).await;
    }
    let copy = StoreCopy::open(Arc::clone(&source), Arc::clone(&target), copy_options()).await;
    let mut copy = copy.expect("it goes on");
    let ended = copy.run(&CancellationToken::new(), |_| {}).await;
    assert_eq!(ended.expect("nothing is in its way"), CopyEnd::Complete);
    source.close().await;
    let town = Town::over(target);
    town.join_as(member_of_level("solo")).await;
    let copied = birth(&town, &known).await;
    assert_eq!(town.read(&copied, "x").await.as_deref(), Some("1"));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn records_that_are_too_large_are_named_with_their_objects_before_a_copy_begins() {
    let (town, planes) = filled().await;
    let birth = &planes[0].0;
    let large = "x".repeat(3000);
    for name in ["kept", "shrunk", "deleted"] {
        town.write(birth, name, &large).await;
    }
    town.write(birth, "shrunk", "x").await;
    delete(&town, birth, "deleted").await;
    leave(&town, "solo").await;
    let source = Source::open(Arc::clone(&town.store), None).await;
    let source = source.expect("it opens");
    let stop = CancellationToken::new();
    let said = sizes::check(&source, 2000, &stop).await;
    let said = said.expect_err("they are too large").to_string();
    for (name, is_now) in [("kept", true), ("shrunk", false), ("deleted", false)] {
        let named = format!(
            "configmaps {name} in namespace ns of the control plane with ID {} (",
            birth.id
        );
        let rest = said.split(&named).nth(1).expect("it is named");
        let (size, _) = rest.split_once(')').expect("its size");
        let is_past = size.ends_with(" bytes, in the history only");
        assert_eq!(is_past, !is_now, "{said}");
    }
    let fits = sizes::check(&source, 4000, &stop).await;
    fits.expect("all fit");
    stop.cancel();
    let stopped = sizes::check(&source, 4000, &stop).await;
    assert!(matches!(stopped, Err(CopyError::Stopped)), "{stopped:?}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_unfinished_copy_is_not_served_nor_copied() {
    let (town, _) = filled().await;
    leave(&town, "solo").await;
    let target = memory();
    begun(&town.store, &target).await;
    let refused = joined(&target, member_of_level("solo")).await;
    let refused = refused.err().expect("it is not complete");
    assert!(matches!(&refused, JoinError::Unfinished(from) if from == "the source"));
    let old = joined(&target, options("old")).await.err();
    assert!(matches!(old, Some(JoinError::Floor { .. })), "{old:?}");
    let further = StoreCopy::open(Arc::clone(&target), memory(), copy_options()).await;
    assert!(matches!(
        further.err(),
        Some(CopyError::SourceUnfinished(_))
    ));
    // Another store than the one that the copy began with.
    let (other, _) = filled().await;
    leave(&other, "solo").await;
    let other = StoreCopy::open(Arc::clone(&other.store), target, copy_options()).await;
    let other = other.err().expect("it is another store");
    assert!(
        matches!(other, CopyError::OtherCopy(_) | CopyError::SourceWritten),
        "{other}"
    );
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_source_that_is_written_meanwhile_ends_the_copy() {
    let (town, planes) = filled().await;
    leave(&town, "solo").await;
    let target = memory();
    begun(&town.store, &target).await;
    let open = async || {
        StoreCopy::open(Arc::clone(&town.store), Arc::clone(&target), copy_options()).await
    };
    let mut running = open().await.expect("it goes on");
    town.join_as(member_of_level("solo")).await;
    town.write(&planes[0].0, "more", "1").await;
    leave(&town, "solo").await;
    let ended = running.run(&CancellationToken::new(), |_| {}).await;
    assert!(matches!(ended, Err(CopyError::SourceWritten)), "{ended:?}");
    assert!(matches!(open().await.err(), Some(CopyError::SourceWritten)));
    let (_, found) = target.get(COPY_KEY).await.expect("it answers");
    let record = CopyRecord::decode(&found.expect("it is there").value).expect("a record");
    assert!(!record.is_complete());
}

/// A replica that waited outside the ring ends, and its record with its lease, while the store is copied.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_end_of_a_candidates_record_ends_no_copy_and_no_copy_has_one() {
    let (town, _) = filled().await;
    leave(&town, "solo").await;
    let lease = town.store.lease_grant(Duration::from_secs(3600)).await;
    let lease = lease.expect("a lease");
    let key = candidate_key(&id("outside"));
    let txn = Txn {
        compares: Vec::new(),
        ops: vec![Op::Put {
            key: key.clone(),
            value: key.clone(),
            lease: Some(lease),
        }],
    };
    town.store.commit(txn).await.expect("it is put");
    let target = memory();
    begun(&town.store, &target).await;
    let source = Arc::clone(&town.store);
    let copy = StoreCopy::open(source, Arc::clone(&target), copy_options()).await;
    let mut copy = copy.expect("it goes on");
    town.store.lease_revoke(lease).await.expect("it ends");
    let end = copy.run(&CancellationToken::new(), |_| {}).await;
    assert_eq!(end.expect("nothing was written"), CopyEnd::Complete);
    let (_, found) = target.get(&key).await.expect("it answers");
    assert_eq!(found, None);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn two_processes_do_not_make_one_copy() {
    let (town, _) = filled().await;
    leave(&town, "solo").await;
    let target = memory();
    begun(&town.store, &target).await;
    let open = async || {
        let opened = StoreCopy::open(Arc::clone(&town.store), Arc::clone(&target), copy_options());
        opened.await.expect("it goes on")
    };
    let (mut first, mut second) = (open().await, open().await);
    let never = CancellationToken::new();
    assert_eq!(
        first.run(&never, |_| {}).await.expect("it wins"),
        CopyEnd::Complete
    );
    let late = second.run(&never, |_| {}).await;
    assert!(matches!(late, Err(CopyError::TargetWritten)), "{late:?}");
}
