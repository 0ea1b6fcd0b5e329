//! Tests of what only the embedded engine has: the folder, damage, disks that fill up and fail,
//! history across openings.

use std::fs;
use std::io;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use bytes::Bytes;

use super::{Disk, SledOptions, SledStore, SystemDisk};
use crate::{
    CommitError, Compare, Health, LeaseId, ManualClock, Op, OpenError, RangeRequest, ReadError,
    Rejection, Revision, Store, Txn, WatchEnd,
};

const STORES_AT_ONCE: u64 = 8;
const OPENINGS: u64 = 20;

fn options() -> SledOptions {
    SledOptions {
        ballast_bytes: 64 * 1024,
        ..SledOptions::default()
    }
}

fn open(path: &Path) -> SledStore {
    SledStore::open(path, options()).expect("the store opens")
}

fn put(key: &str, value: impl Into<Bytes>) -> Txn {
    put_leased(key, value, None)
}

fn put_leased(key: &str, value: impl Into<Bytes>, lease: Option<LeaseId>) -> Txn {
    let key = Bytes::copy_from_slice(key.as_bytes());
    Txn {
        compares: Vec::new(),
        ops: vec![Op::Put {
            key,
            value: value.into(),
            lease,
        }],
    }
}

fn noise(bytes: usize, seed: u64) -> Bytes {
    let mut state = seed | 1;
    let next = || {
        state = state
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(99);
        (state >> 56).to_le_bytes()[0]
    };
    std::iter::repeat_with(next).take(bytes).collect()
}

async fn get(store: &SledStore, key: &str) -> Option<Bytes> {
    store
        .get(key.as_bytes())
        .await
        .expect("read")
        .1
        .map(|found| found.value)
}

/// A disk that fails its next syncs, reports that it is full, and records what was synced.
#[derive(Default)]
struct FailingDisk {
    failing: AtomicU64,
    full: AtomicBool,
    synced: AtomicU64,
}

impl Disk for FailingDisk {
    fn after_sync(&self, head: Revision) -> io::Result<()> {
        let fewer = |left: u64| left.checked_sub(1);
        if self
            .failing
            .fetch_update(Ordering::SeqCst, Ordering::SeqCst, fewer)
            .is_ok()
        {
            return Err(io::Error::other("failed by the test"));
        }
        self.synced.fetch_max(head.0, Ordering::SeqCst);
        Ok(())
    }

    fn free_bytes(&self, folder: &Path) -> io::Result<u64> {
        match self.full.load(Ordering::SeqCst) {
            true => Ok(0),
            false => SystemDisk.free_bytes(folder),
        }
    }
}

fn open_on(disk: &Arc<FailingDisk>, path: &Path) -> SledStore {
    let disk = Arc::clone(disk) as Arc<dyn Disk>;
    SledStore::open(path, SledOptions { disk, ..options() }).expect("the store opens")
}

#[tokio::test]
async fn state_and_history_outlive_the_opening() {
    let folder = tempfile::tempdir().expect("a folder");
    let store = open(folder.path());
    assert_eq!(store.opened_at(), Some(Revision(0)));
    for number in 0..20 {
        store
            .commit(put("k", format!("{number}")))
            .await
            .expect("committed");
        store
            .commit(put(&format!("{number}"), noise(20_000, number)))
            .await
            .expect("committed");
    }
    store.compact(Revision(10)).await.expect("compacted");
    let range = RangeRequest::between("", "");
    let everything = store.range(range.clone()).await.expect("read");
    let history = store
        .history("".into(), "".into(), Revision(10))
        .await
        .expect("read");
    store.close().await;
    let store = open(folder.path());
    assert_eq!(store.opened_at(), Some(Revision(40)));
    assert_eq!(store.range(range).await.expect("read"), everything);
    assert_eq!(
        store
            .history("".into(), "".into(), Revision(10))
            .await
            .expect("read"),
        history
    );
    let floor = Revision(10);
    let below = store.history("".into(), "".into(), Revision(9)).await;
    assert_eq!(
        below,
        Err(ReadError::Compacted { floor }),
        "the floor outlives the opening, too"
    );
    let next = store.commit(put("k", "next")).await.expect("committed");
    assert_eq!(next.revision, Revision(41), "no revision twice");
    store.close().await;
}

#[tokio::test]
async fn keys_of_older_leases_are_gone_after_opening() {
    let folder = tempfile::tempdir().expect("a folder");
    let store = open(folder.path());
    let lease = store
        .lease_grant(Duration::from_secs(3_600))
        .await
        .expect("a lease");
    store
        .commit(put_leased("member", "x", Some(lease)))
        .await
        .expect("committed");
    store.commit(put("other", "x")).await.expect("committed");
    store.close().await;
    let store = open(folder.path());
    assert_eq!(get(&store, "member").await, None);
    assert!(get(&store, "other").await.is_some());
    let history = store
        .history("".into(), "".into(), Revision(2))
        .await
        .expect("read");
    assert_eq!(
        (history.events.len(), &history.events[0].value),
        (1, &None),
        "as a transaction"
    );
    assert_eq!(store.opened_at(), Some(Revision(3)));
    let new = store
        .lease_grant(Duration::from_secs(3_600))
        .await
        .expect("a lease");
    assert!(new.0 > lease.0, "no lease twice");
    store.close().await;
}

#[tokio::test]
async fn second_opener_is_told_who_has_it() {
    let folder = tempfile::tempdir().expect("a folder");
    let store = open(folder.path());
    match SledStore::open(folder.path(), options()) {
        Err(OpenError::Locked { pid, .. }) => assert_eq!(pid, Some(std::process::id())),
        other => panic!("not locked: {:?}", other.err()),
    }
    store.close().await;
    open(folder.path()).close().await;
}

#[tokio::test]
async fn newer_and_unreadable_formats_are_refused() {
    let folder = tempfile::tempdir().expect("a folder");
    open(folder.path()).close().await;
    let format = folder.path().join("format");
    fs::write(&format, "polyplane-store sled 7\n").expect("written");
    let error = SledStore::open(folder.path(), options())
        .err()
        .expect("refused");
    assert!(
        matches!(
            error,
            OpenError::Newer {
                found: 7,
                supported: 1
            }
        ),
        "{error}"
    );
    fs::write(&format, "something else\n").expect("written");
    let error = SledStore::open(folder.path(), options())
        .err()
        .expect("refused");
    assert!(matches!(error, OpenError::Damaged { .. }), "{error}");
    fs::remove_file(&format).expect("removed");
    let error = SledStore::open(folder.path(), options())
        .err()
        .expect("refused");
    assert!(matches!(error, OpenError::Damaged { .. }), "{error}");
    fs::remove_file(folder.path().join("db")).expect("removed");
    let path = folder.path().join("format/inside/a/file");
    fs::write(&format, "a file").expect("written");
    let error = SledStore::open(&path, options()).err().expect("refused");
    assert!(matches!(error, OpenError::Io { .. }), "{error}");
}

/// Returns the files of sled, with their bytes.
fn files(path: &Path) -> Vec<(String, Vec<u8>)> {
    let entries = fs::read_dir(path)
        .expect("listed")
        .map(|entry| entry.expect("an entry").path());
    let mut files: Vec<_> = entries
        .filter(|path| path.is_file() && !path.ends_with("lock"))
        .map(|path| (path.display().to_string(), fs::read(&path).expect("read")))
        .collect();
    files.sort();
    files
}

/// Alters one byte in each of many places of the data file, one place at a time. Whatever sled does
/// with it, the store must open completely or be refused as damaged and left unchanged.
#[tokio::test]
async fn damage_anywhere_is_refused_or_harmless_and_never_dropped() {
    let folder = tempfile::tempdir().expect("a folder");
    let origin = folder.path().join("origin");
    let store = open(&origin);
    for number in 0..60 {
        let key = format!("{}", number % 25);
        store
            .commit(put(&key, noise(10_000, number)))
            .await
            .expect("committed");
        store
            .commit(put("small", format!("{number}")))
            .await
            .expect("committed");
    }
    let range = RangeRequest::between("", "");
    let whole = store.range(range.clone()).await.expect("read");
    let history = store
        .history("".into(), "".into(), Revision(0))
        .await
        .expect("read");
    store.close().await;
    let bytes = fs::read(origin.join("db")).expect("read").len();
    let mut refused = 0;
    let places = 40;
    for place in 0..places {
        let copy = folder.path().join(format!("copy-{place}"));
        fs::create_dir(&copy).expect("made");
        for (name, content) in files(&origin) {
            let name = Path::new(&name).file_name().expect("a name");
            fs::write(copy.join(name), content).expect("written");
        }
        let mut db = fs::read(copy.join("db")).expect("read");
        let at = (bytes - 1) / places * place + place * 7;
        db[at] ^= 0x5A;
        fs::write(copy.join("db"), &db).expect("written");
        let before = files(&copy);
        match SledStore::open(&copy, options()) {
            Ok(store) => {
                let found = store.range(range.clone()).await.expect("read");
                assert!(found == whole, "altered at {at}: opened with other content");
                let found = store
                    .history("".into(), "".into(), Revision(0))
                    .await
                    .expect("read");
                assert!(
                    found == history,
                    "altered at {at}: opened with another history"
                );
                store.close().await;
            }
            Err(OpenError::Damaged { .. }) => {
                refused += 1;
                let after = files(&copy);
                assert!(
                    before == after,
                    "altered at {at}: refused, but not left as it was"
                );
            }
            Err(error) => panic!("altered at {at}: {error}"),
        }
        fs::remove_dir_all(&copy).expect("removed");
    }
    assert!(
        refused > places / 4,
        "only {refused} of {places} were noticed"
    );
}

#[tokio::test]
async fn lost_tail_is_refused() {
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("store");
    let store = open(&path);
    store.commit(put("early", "x")).await.expect("committed");
    store.close().await;
    let early = files(&path);
    let store = open(&path);
    store.commit(put("late", "x")).await.expect("committed");
    store.close().await;
    // An older but complete tree, as a torn tail leaves it: none of its records is wrong.
    let acked = fs::read(path.join("acked")).expect("read");
    for (name, _) in files(&path) {
        fs::remove_file(name).expect("removed");
    }
    for (name, content) in early {
        fs::write(name, content).expect("written");
    }
    fs::write(path.join("acked"), acked).expect("written");
    let error = SledStore::open(&path, options()).err().expect("refused");
    assert!(
        error.to_string().contains("revision 2 was acknowledged"),
        "{error}"
    );
}

#[tokio::test]
async fn full_disk_rejects_writes_answers_reads_and_recovers() {
    let folder = tempfile::tempdir().expect("a folder");
    let disk = Arc::new(FailingDisk::default());
    let store = open_on(&disk, folder.path());
    store.commit(put("k", "1")).await.expect("committed");
    disk.full.store(true, Ordering::SeqCst);
    let result = store.commit(put("k", "2")).await;
    assert!(
        matches!(&result, Err(CommitError::Rejected(Rejection::NoSpace(_)))),
        "{result:?}"
    );
    assert!(matches!(store.health(), Health::ReadOnly { .. }));
    assert_eq!(get(&store, "k").await, Some("1".into()), "reads go on");
    let compare = Compare::Absent { key: "k".into() };
    let refused = store
        .commit(Txn {
            compares: vec![compare],
            ops: vec![],
        })
        .await;
    assert!(
        matches!(&refused, Err(CommitError::Refused { failed, .. }) if *failed == [0]),
        "tests go on: {refused:?}"
    );
    disk.full.store(false, Ordering::SeqCst);
    let next = store.commit(put("k", "3")).await.expect("committed");
    assert_eq!(
        next.revision,
        Revision(2),
        "the rejected one took no revision"
    );
    assert_eq!(store.health(), Health::Ok);
    store.close().await;
}

#[tokio::test]
async fn failed_sync_is_settled_by_opening_again() {
    let folder = tempfile::tempdir().expect("a folder");
    let disk = Arc::new(FailingDisk::default());
    let store = open_on(&disk, folder.path());
    let lease = store
        .lease_grant(Duration::from_secs(3_600))
        .await
        .expect("a lease");
    store
        .commit(put_leased("leased", "1", Some(lease)))
        .await
        .expect("committed");
    let mut watch = store
        .watch("".into(), "".into(), Revision(1))
        .await
        .expect("a watch");
    disk.failing.store(1, Ordering::SeqCst);
    let result = store.commit(put("k", "2")).await;
    // The batch is in the file, and opening again synced the file, so the transaction is applied.
    assert_eq!(result.map(|committed| committed.revision), Ok(Revision(2)));
    assert!(
        matches!(watch.next().await, Err(WatchEnd::Lost(_))),
        "to be resumed"
    );
    assert_eq!(get(&store, "k").await, Some("2".into()));
    assert_eq!(store.health(), Health::Ok);
    let next = store.commit(put("k", "3")).await.expect("committed");
    assert_eq!(next.revision, Revision(3));
    store.lease_revoke(lease).await.expect("revoked");
    assert_eq!(get(&store, "leased").await, None, "leases outlive it");
    store.close().await;
    open(folder.path()).close().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn nothing_is_acknowledged_or_shown_before_it_is_synced() {
    let folder = tempfile::tempdir().expect("a folder");
    let disk = Arc::new(FailingDisk::default());
    let store = Arc::new(open_on(&disk, folder.path()));
    let mut tasks = Vec::new();
    for writer in 0..16_u64 {
        let (store, disk) = (Arc::clone(&store), Arc::clone(&disk));
        tasks.push(tokio::spawn(async move {
            for write in 0..20 {
                let value = noise(500, writer * 100 + write);
                let done = store
                    .commit(put(&format!("{writer}"), value))
                    .await
                    .expect("committed");
                assert!(disk.synced.load(Ordering::SeqCst) >= done.revision.0);
                let (seen, _) = store.get(b"0").await.expect("read");
                assert!(disk.synced.load(Ordering::SeqCst) >= seen.0);
            }
        }));
    }
    for task in tasks {
        task.await.expect("the writer ends");
    }
    store.close().await;
}

#[tokio::test]
async fn no_value_makes_a_blob_file() {
    let folder = tempfile::tempdir().expect("a folder");
    let store = open(folder.path());
    let largest = store.limits().value_bytes_max;
    for (number, size) in [
        6_143, 6_144, 7_500, 8_192, 60_000, 131_072, 500_000, largest,
    ]
    .into_iter()
    .cycle()
    .take(48)
    .enumerate()
    {
        let seed = u64::try_from(number).expect("small");
        let key = format!("{}", number % 20);
        store
            .commit(put(&key, noise(size, seed)))
            .await
            .expect("committed");
    }
    store.close().await;
    let blobs = fs::read_dir(folder.path().join("blobs"))
        .expect("listed")
        .count();
    assert_eq!(blobs, 0, "blob files are never synced");
}

#[tokio::test]
async fn history_ends_by_age_and_by_bytes() {
    let folder = tempfile::tempdir().expect("a folder");
    let clock = Arc::new(ManualClock::default());
    let with = |history_bytes_max| SledOptions {
        clock: Arc::clone(&clock) as Arc<dyn crate::Clock>,
        history_window: Duration::from_secs(300),
        history_bytes_max,
        ..options()
    };
    let store = SledStore::open(folder.path(), with(usize::MAX)).expect("the store opens");
    for number in 0..10 {
        store
            .commit(put("k", noise(1_000, number)))
            .await
            .expect("committed");
    }
    clock.advance(Duration::from_secs(299));
    store.commit(put("k", "young")).await.expect("committed");
    assert_eq!(store.status().floor, Revision(0), "inside the window");
    clock.advance(Duration::from_secs(2));
    store.commit(put("other", "x")).await.expect("committed");
    assert_eq!(
        store.status().floor,
        Revision(10),
        "the tenth replaced the ninth too long ago"
    );
    let history = store
        .history("".into(), "".into(), Revision(10))
        .await
        .expect("read");
    assert_eq!(history.events.len(), 2);
    assert_eq!(history.events[0].previous, Some(noise(1_000, 9)));
    store.close().await;
    let store = SledStore::open(folder.path(), with(10_000)).expect("the store opens");
    for number in 0..40 {
        store
            .commit(put("k", noise(1_000, number)))
            .await
            .expect("committed");
    }
    let floor = store.status().floor;
    assert!(
        floor > Revision(35) && floor < Revision(52),
        "about ten fit: {floor}"
    );
    assert_eq!(get(&store, "k").await, Some(noise(1_000, 39)));
    store.close().await;
}

#[tokio::test]
async fn a_snapshot_that_was_only_begun_is_no_damage() {
    let folder = tempfile::tempdir().expect("a folder");
    let store = open(folder.path());
    store.commit(put("k", "v")).await.expect("committed");
    store.close().await;
    drop(store);
    for name in ["snap.00000000000FFFFF", "snap.00000000000FFFFF.generating"] {
        fs::write(folder.path().join(name), b"").expect("written");
    }
    let store = open(folder.path());
    assert_eq!(get(&store, "k").await, Some(Bytes::from("v")));
    store.close().await;
}

/// Many busy stores are closed and opened at once, so that sled's pool of threads has work left
/// when its trees are dropped.
#[test]
fn a_closed_store_can_be_opened_at_once() {
    let folder = tempfile::tempdir().expect("a folder");
    let again_and_again = &|number: u64| {
        let path = folder.path().join(number.to_string());
        let runtime = tokio::runtime::Builder::new_current_thread().build();
        runtime.expect("a runtime").block_on(async {
            for round in 0..OPENINGS {
                let store = open(&path);
                let value = noise(100_000, number * OPENINGS + round);
                store.commit(put("k", value)).await.expect("committed");
                store.close().await;
            }
        });
    };
    std::thread::scope(|scope| {
        for number in 0..STORES_AT_ONCE {
            scope.spawn(move || again_and_again(number));
        }
    });
}
