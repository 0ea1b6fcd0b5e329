//! What every embedded engine must do beyond the conformance suite: the folder, disks that fill and
//! fail, history over openings.

mod formats;
mod lost;

use std::fs;
use std::io;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use bytes::Bytes;

use super::folder::{FJALL, Format, SLED, check_unlocked};
use super::{Disk, SystemDisk};
use crate::{
    Clock, CommitError, Compare, FjallOptions, FjallStore, Health, LeaseId, ManualClock, Op,
    OpenError, RangeRequest, ReadError, Rejection, Revision, SledOptions, SledStore, Store,
    SystemClock, Txn, WatchEnd,
};
use formats::{
    newer_and_unreadable_formats_are_refused,
    only_a_copy_opens_the_store_that_it_has_created_and_not_begun,
};
use lost::{
    a_removed_folder_ends_its_store_for_good,
    a_replaced_folder_is_left_alone_by_the_stores_that_had_it,
};

const STORES_AT_ONCE: u64 = 8;
const OPENINGS: u64 = 20;

/// How a store is opened here.
#[derive(Clone)]
struct Options {
    history_bytes_max: usize,
    clock: Arc<dyn Clock>,
    disk: Arc<dyn Disk>,
    is_copy_target: bool,
}

impl Default for Options {
    fn default() -> Self {
        Self {
            history_bytes_max: usize::MAX,
            clock: Arc::new(SystemClock),
            disk: Arc::new(SystemDisk),
            is_copy_target: false,
        }
    }
}

/// An engine under test.
trait Engine: 'static {
    const FORMAT: Format;

    fn try_open(path: &Path, options: Options) -> Result<Arc<dyn Store>, OpenError>;

    fn open(path: &Path) -> Arc<dyn Store> {
        Self::try_open(path, Options::default()).expect("the store opens")
    }

    fn open_on(disk: &Arc<FailingDisk>, path: &Path) -> Arc<dyn Store> {
        let options = Options {
            disk: Arc::clone(disk) as Arc<dyn Disk>,
            ..Options::default()
        };
        Self::try_open(path, options).expect("the store opens")
    }
}

struct OnSled;

impl Engine for OnSled {
    const FORMAT: Format = SLED;

    fn try_open(path: &Path, options: Options) -> Result<Arc<dyn Store>, OpenError> {
        let options = SledOptions {
            ballast_bytes: 64 * 1024,
            history_bytes_max: options.history_bytes_max,
            clock: options.clock,
            disk: options.disk,
            is_copy_target: options.is_copy_target,
            ..SledOptions::default()
        };
        Ok(Arc::new(SledStore::open(path, options)?))
    }
}

struct OnFjall;

impl Engine for OnFjall {
    const FORMAT: Format = FJALL;

    fn try_open(path: &Path, options: Options) -> Result<Arc<dyn Store>, OpenError> {
        let options = FjallOptions {
            ballast_bytes: 64 * 1024,
            history_bytes_max: options.history_bytes_max,
            clock: options.clock,
            disk: options.disk,
            is_copy_target: options.is_copy_target,
            ..FjallOptions::default()
        };
        Ok(Arc::new(FjallStore::open(path, options)?))
    }
}

macro_rules! on_each_engine {
    ($($name:ident),+ $(,)?) => {
        mod on_sled {
            $(#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
            async fn $name() {
                super::$name::<super::OnSled>().await;
            })+
        }
        mod on_fjall {
            $(#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
            async fn $name() {
                super::$name::<super::OnFjall>().await;
            })+
        }
    };
}

on_each_engine! {
    state_and_history_outlive_the_opening,
    keys_of_older_leases_are_gone_after_opening,
    second_opener_is_told_who_has_it,
    newer_and_unreadable_formats_are_refused,
    only_a_copy_opens_the_store_that_it_has_created_and_not_begun,
    lost_tail_is_refused,
    full_disk_rejects_writes_answers_reads_and_recovers,
    nearly_full_disk_is_told_and_watched_without_writes,
    failed_sync_is_settled_by_opening_again,
    nothing_is_acknowledged_or_shown_before_it_is_synced,
    history_ends_by_age_and_by_bytes,
    a_removed_folder_ends_its_store_for_good,
    a_replaced_folder_is_left_alone_by_the_stores_that_had_it,
    a_closed_store_can_be_opened_at_once,
    a_dropped_store_can_be_opened_again,
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

async fn get(store: &dyn Store, key: &str) -> Option<Bytes> {
    store
        .get(key.as_bytes())
        .await
        .expect("read")
        .1
        .map(|found| found.value)
}

/// A disk that fails its next syncs, claims to be full, and knows what was synced.
#[derive(Default)]
struct FailingDisk {
    failing: AtomicU64,
    full: AtomicBool,
    /// Bytes that are free; 0 for those of the real disk.
    free: AtomicU64,
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
        let free = self.free.load(Ordering::SeqCst);
        match (self.full.load(Ordering::SeqCst), free) {
            (true, _) => Ok(0),
            (false, 0) => SystemDisk.free_bytes(folder),
            (false, free) => Ok(free),
        }
    }
}

async fn state_and_history_outlive_the_opening<E: Engine>() {
    let folder = tempfile::tempdir().expect("a folder");
    let store = E::open(folder.path());
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
    let store = E::open(folder.path());
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

async fn keys_of_older_leases_are_gone_after_opening<E: Engine>() {
    let folder = tempfile::tempdir().expect("a folder");
    let store = E::open(folder.path());
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
    let store = E::open(folder.path());
    assert_eq!(get(&*store, "member").await, None);
    assert!(get(&*store, "other").await.is_some());
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

async fn second_opener_is_told_who_has_it<E: Engine>() {
    let folder = tempfile::tempdir().expect("a folder");
    check_unlocked(folder.path()).expect("nobody has it open");
    let made = fs::read_dir(folder.path()).expect("listed").count();
    assert_eq!(made, 0, "who only looks creates nothing");
    let store = E::open(folder.path());
    let opened = E::try_open(folder.path(), Options::default()).map(drop);
    for refused in [opened, check_unlocked(folder.path())] {
        match refused {
            Err(OpenError::Locked { pid, .. }) => assert_eq!(pid, Some(std::process::id())),
            other => panic!("not locked: {other:?}"),
        }
    }
    store.close().await;
    check_unlocked(folder.path()).expect("it is closed");
    E::open(folder.path()).close().await;
}

async fn lost_tail_is_refused<E: Engine>() {
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("store");
    let store = E::open(&path);
    store.commit(put("early", "x")).await.expect("committed");
    store.close().await;
    let (early, data) = (folder.path().join("early"), path.join(E::FORMAT.data));
    copy(&path, &early);
    let store = E::open(&path);
    store.commit(put("late", "x")).await.expect("committed");
    store.close().await;
    // An older but whole state, as a torn tail leaves it: nothing in it is wrong.
    let acked = fs::read(path.join("acked")).expect("read");
    if data.is_dir() {
        fs::remove_dir_all(&path).expect("removed");
    }
    copy(&early, &path);
    fs::write(path.join("acked"), acked).expect("written");
    let error = E::try_open(&path, Options::default())
        .err()
        .expect("refused");
    assert!(
        error.to_string().contains("revision 2 was acknowledged"),
        "{error}"
    );
}

async fn full_disk_rejects_writes_answers_reads_and_recovers<E: Engine>() {
    let folder = tempfile::tempdir().expect("a folder");
    let disk = Arc::new(FailingDisk::default());
    let store = E::open_on(&disk, folder.path());
    store.commit(put("k", "1")).await.expect("committed");
    disk.full.store(true, Ordering::SeqCst);
    let result = store.commit(put("k", "2")).await;
    assert!(
        matches!(&result, Err(CommitError::Rejected(Rejection::NoSpace(_)))),
        "{result:?}"
    );
    assert!(matches!(store.health(), Health::ReadOnly { .. }));
    assert_eq!(get(&*store, "k").await, Some("1".into()), "reads go on");
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

async fn nearly_full_disk_is_told_and_watched_without_writes<E: Engine>() {
    let folder = tempfile::tempdir().expect("a folder");
    let disk = Arc::new(FailingDisk::default());
    let store = E::open_on(&disk, folder.path());
    store.commit(put("k", "1")).await.expect("committed");
    assert!(!store.is_nearly_full());
    // 5 MiB are kept free.
    disk.free.store(6 << 20, Ordering::SeqCst);
    store.commit(put("k", "2")).await.expect("it refuses none");
    assert_eq!((store.is_nearly_full(), store.health()), (true, Health::Ok));
    disk.full.store(true, Ordering::SeqCst);
    until(&*store, |store| store.health() != Health::Ok).await;
    assert!(store.is_nearly_full());
    disk.full.store(false, Ordering::SeqCst);
    disk.free.store(0, Ordering::SeqCst);
    until(&*store, |store| {
        store.health() == Health::Ok && !store.is_nearly_full()
    })
    .await;
    store.close().await;
}

/// Waits for a state of a store to which nobody writes.
async fn until(store: &dyn Store, holds: impl Fn(&dyn Store) -> bool) {
    let since = Instant::now();
    while !holds(store) {
        let status = store.status();
        assert!(since.elapsed() < Duration::from_secs(30), "{status:?}");
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
}

async fn failed_sync_is_settled_by_opening_again<E: Engine>() {
    let folder = tempfile::tempdir().expect("a folder");
    let disk = Arc::new(FailingDisk::default());
    let store = E::open_on(&disk, folder.path());
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
    // The batch is in the file, and opening again synced the file: it is done.
    assert_eq!(result.map(|committed| committed.revision), Ok(Revision(2)));
    assert!(
        matches!(watch.next().await, Err(WatchEnd::Lost(_))),
        "to be resumed"
    );
    assert_eq!(get(&*store, "k").await, Some("2".into()));
    assert_eq!(store.health(), Health::Ok);
    let next = store.commit(put("k", "3")).await.expect("committed");
    assert_eq!(next.revision, Revision(3));
    store.lease_revoke(lease).await.expect("revoked");
    assert_eq!(get(&*store, "leased").await, None, "leases outlive it");
    store.close().await;
    E::open(folder.path()).close().await;
}

async fn nothing_is_acknowledged_or_shown_before_it_is_synced<E: Engine>() {
    let folder = tempfile::tempdir().expect("a folder");
    let disk = Arc::new(FailingDisk::default());
    let store = E::open_on(&disk, folder.path());
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

async fn history_ends_by_age_and_by_bytes<E: Engine>() {
    let folder = tempfile::tempdir().expect("a folder");
    let clock = Arc::new(ManualClock::default());
    let with = |history_bytes_max| Options {
        clock: Arc::clone(&clock) as Arc<dyn Clock>,
        history_bytes_max,
        ..Options::default()
    };
    let store = E::try_open(folder.path(), with(usize::MAX)).expect("the store opens");
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
    let store = E::try_open(folder.path(), with(10_000)).expect("the store opens");
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
    assert_eq!(get(&*store, "k").await, Some(noise(1_000, 39)));
    store.close().await;
}

/// Of a store that is busy: many are closed and opened at once, so that an engine's threads have work
/// left when it is dropped.
async fn a_closed_store_can_be_opened_at_once<E: Engine>() {
    let folder = tempfile::tempdir().expect("a folder");
    let again_and_again = |number: u64| {
        let path = folder.path().join(number.to_string());
        async move {
            for round in 0..OPENINGS {
                let store = E::open(&path);
                let value = noise(100_000, number * OPENINGS + round);
                store.commit(put("k", value)).await.expect("committed");
                store.close().await;
            }
        }
    };
    let tasks: Vec<_> = (0..STORES_AT_ONCE)
        .map(|number| tokio::spawn(again_and_again(number)))
        .collect();
    for task in tasks {
        task.await.expect("no panic");
    }
}

/// A store that is dropped finishes by itself, a little later.
async fn a_dropped_store_can_be_opened_again<E: Engine>() {
    let folder = tempfile::tempdir().expect("a folder");
    let store = E::open(folder.path());
    store.commit(put("k", "v")).await.expect("committed");
    drop(store);
    let store = loop {
        match E::try_open(folder.path(), Options::default()) {
            Ok(store) => break store,
            Err(OpenError::Locked { .. }) => tokio::task::yield_now().await,
            Err(error) => panic!("{error}"),
        }
    };
    assert_eq!(get(&*store, "k").await, Some("v".into()));
    store.close().await;
}

fn copy(from: &Path, to: &Path) {
    fs::create_dir_all(to).expect("made");
    for entry in fs::read_dir(from).expect("listed") {
        let entry = entry.expect("an entry");
        let to = to.join(entry.file_name());
        match entry.path().is_dir() {
            true => copy(&entry.path(), &to),
            false => _ = fs::copy(entry.path(), &to).expect("copied"),
        }
    }
}
