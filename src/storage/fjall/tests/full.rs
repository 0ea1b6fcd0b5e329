//! Disks that fill or fail, as the engine on fjall meets them.

use std::fs;
use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use bytes::Bytes;
use parking_lot::Mutex;

use super::{noise, options, put};
use crate::embedded::{Disk, SystemDisk};
use crate::{
    CommitError, Compare, FjallOptions, FjallStore, Health, Op, RangeRequest, Rejection, Revision,
    Store, Txn,
};

const MIB: u64 = 1024 * 1024;
/// The longest wait for something that the store does by itself, once a second.
const SOON: Duration = Duration::from_secs(60);

/// A disk of which a test says how much is free, and which fails as the test says.
#[derive(Default)]
struct TestDisk {
    /// Bytes that are free; 0 for those of the real disk.
    free: AtomicU64,
    /// Bytes of a disk on which there is nothing but the store; 0 for no such disk.
    capacity: AtomicU64,
    failing: AtomicBool,
    panicking: AtomicBool,
    /// A file and its content, which the next sync brings back before it fails.
    losing: Mutex<Option<(PathBuf, Vec<u8>)>>,
}

impl TestDisk {
    fn options(self: &Arc<Self>) -> FjallOptions {
        FjallOptions {
            disk: Arc::clone(self) as Arc<dyn Disk>,
            ..options()
        }
    }
}

impl Disk for TestDisk {
    fn after_sync(&self, _head: Revision) -> io::Result<()> {
        assert!(
            !self.panicking.swap(false, Ordering::SeqCst),
            "as the test wants it"
        );
        let losing = self.losing.lock().take();
        if let Some((path, content)) = &losing {
            fs::write(path, content)?;
        }
        match losing.is_some() || self.failing.swap(false, Ordering::SeqCst) {
            true => Err(io::Error::other("failed by the test")),
            false => Ok(()),
        }
    }

    fn free_bytes(&self, folder: &Path) -> io::Result<u64> {
        let free = self.free.load(Ordering::SeqCst);
        let capacity = self.capacity.load(Ordering::SeqCst);
        match (free, capacity) {
            (0, 0) => SystemDisk.free_bytes(folder),
            (0, capacity) => Ok(capacity.saturating_sub(used_bytes(folder))),
            (free, _) => Ok(free),
        }
    }
}

fn used_bytes(folder: &Path) -> u64 {
    let Ok(entries) = fs::read_dir(folder) else {
        return 0;
    };
    let sizes = entries.flatten().map(|entry| match entry.metadata() {
        Ok(file) if file.is_dir() => used_bytes(&entry.path()),
        Ok(file) => file.blocks() * 512,
        Err(_) => 0,
    });
    sizes.sum()
}

/// The number of tables with rows.
fn tables(folder: &Path) -> usize {
    let tables = fs::read_dir(folder.join("fjall/keyspaces/1/tables"));
    tables.map_or(0, Iterator::count)
}

fn delete(key: &str) -> Txn {
    let key = Bytes::copy_from_slice(key.as_bytes());
    Txn {
        compares: Vec::new(),
        ops: vec![Op::Delete { key }],
    }
}

fn is_refused_for_space(result: &Result<crate::Committed, CommitError>) -> bool {
    matches!(result, Err(CommitError::Rejected(Rejection::NoSpace(_))))
}

#[test]
fn a_start_without_room_says_how_much_is_free_and_how_much_is_needed() {
    let folder = tempfile::tempdir().expect("a folder");
    let disk = Arc::new(TestDisk::default());
    disk.free.store(3 * MIB, Ordering::SeqCst);
    let refused = FjallStore::open(folder.path(), disk.options());
    let refused = refused.err().expect("it keeps 5 MiB").to_string();
    let wanted = "3145728 bytes are free, at least 5242880 are needed";
    assert!(refused.contains(wanted), "{refused}");
}

/// Puts many rows, so that each table overlaps the others and merges would be due.
async fn put_rows(store: &FjallStore) {
    for number in 0..250 {
        let key = format!("{:03}", number * 97 % 250);
        let value = noise(10_000, number);
        store.commit(put(&key, value)).await.expect("committed");
    }
}

/// With room for the rows but not for merging all of them, tables stay as they are until there is more.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_merge_waits_until_its_output_fits() {
    let folder = tempfile::tempdir().expect("a folder");
    let disk = Arc::new(TestDisk::default());
    // Of which 5 MiB are kept from merges.
    disk.free.store(6 * MIB, Ordering::SeqCst);
    let store = FjallStore::open(folder.path(), disk.options()).expect("the store opens");
    put_rows(&store).await;
    let waiting = tables(folder.path());
    assert!(waiting >= 12, "{waiting} tables: they were merged");
    assert_eq!(store.health(), Health::Ok, "writes go on");
    // It is closed and opened although a merge waits.
    store.close().await;
    let store = FjallStore::open(folder.path(), disk.options()).expect("the store opens");
    disk.free.store(1024 * MIB, Ordering::SeqCst);
    let since = Instant::now();
    // Old tables leave with later writes.
    for number in 0.. {
        let left = tables(folder.path());
        if left <= waiting / 2 {
            break;
        }
        assert!(since.elapsed() < SOON, "{left} tables are left");
        let value = noise(10_000, number);
        store.commit(put("more", value)).await.expect("committed");
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    let all = store.range(RangeRequest::between("", "")).await;
    assert_eq!(all.expect("read").items.len(), 251);
    store.close().await;
}

/// The worker flushes and merges while its folder is moved and another store begins there.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_worker_under_way_writes_nothing_to_a_store_in_the_place_of_its_own() {
    let root = tempfile::tempdir().expect("a folder");
    let (path, moved) = (root.path().join("store"), root.path().join("moved"));
    let old = FjallStore::open(&path, options()).expect("the store opens");
    put_rows(&old).await;
    fs::rename(&path, &moved).expect("moved");
    let new = FjallStore::open(&path, options()).expect("the store opens");
    new.commit(put("new", "x")).await.expect("committed");
    // Longer than merging the rows takes.
    tokio::time::sleep(Duration::from_secs(2)).await;
    let made = tables(&path);
    assert!(made <= 1, "{made} tables for one row");
    for number in 0..100 {
        let value = noise(10_000, number);
        let refused = old.commit(put("late", value)).await;
        let is_refused = matches!(refused, Err(CommitError::Rejected(Rejection::ReadOnly(_))));
        assert!(is_refused, "{refused:?}");
    }
    put_rows(&new).await;
    old.close().await;
    new.close().await;
    for (path, rows) in [(&path, 251), (&moved, 250)] {
        let store = FjallStore::open(path, options()).expect("it is whole");
        let all = store.range(RangeRequest::between("", "")).await;
        assert_eq!(all.expect("read").items.len(), rows);
        store.close().await;
    }
}

/// The bytes of what is deleted are many times the room that a nearly full disk has for the deletions.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn all_of_a_nearly_full_disk_can_be_deleted_and_its_room_comes_back() {
    let folder = tempfile::tempdir().expect("a folder");
    let disk = Arc::new(TestDisk::default());
    disk.capacity.store(30 * MIB, Ordering::SeqCst);
    let options = FjallOptions {
        memtable_bytes: MIB,
        ..disk.options()
    };
    let store = FjallStore::open(folder.path(), options.clone()).expect("the store opens");
    let mut rows = 0;
    loop {
        while !store.is_nearly_full() {
            let key = format!("{:04}", rows * 997 % 10_000);
            let done = store.commit(put(&key, noise(20_000, rows))).await;
            match is_refused_for_space(&done) {
                true => tokio::time::sleep(Duration::from_millis(10)).await,
                false => {
                    done.expect("committed");
                    rows += 1;
                }
            }
        }
        // The store frees what it can.
        tokio::time::sleep(Duration::from_millis(2500)).await;
        if store.is_nearly_full() {
            break;
        }
    }
    assert!(rows * 20_000 > 8 * MIB, "{rows} rows fit");
    store.close().await;
    // That is no hindrance to opening it.
    let store = FjallStore::open(folder.path(), options).expect("the store opens");
    let since = Instant::now();
    for row in 0..rows {
        let key = format!("{:04}", row * 997 % 10_000);
        loop {
            let done = store.commit(delete(&key)).await;
            if !is_refused_for_space(&done) {
                done.expect("committed");
                break;
            }
            let status = store.status();
            assert!(since.elapsed() < SOON, "row {row} of {rows}: {status:?}");
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    }
    let all = store.range(RangeRequest::between("", "")).await;
    assert!(all.expect("read").items.is_empty());
    let since = Instant::now();
    while store.is_nearly_full() || store.health() != Health::Ok {
        let status = store.status();
        assert!(since.elapsed() < SOON, "still nearly full: {status:?}");
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    store.commit(put("k", "v")).await.expect("committed");
    store.close().await;
}

/// Room is made by opening the database again, with empty journals; nothing may be missing then.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn making_room_loses_nothing() {
    let folder = tempfile::tempdir().expect("a folder");
    let disk = Arc::new(TestDisk::default());
    let options = FjallOptions {
        memtable_bytes: 16 * MIB,
        ..disk.options()
    };
    let store = FjallStore::open(folder.path(), options.clone()).expect("the store opens");
    put_rows(&store).await;
    let before = store.range(RangeRequest::between("", "")).await;
    let before = before.expect("read");
    let journal = folder.path().join("fjall/0.jnl");
    let bytes = || fs::metadata(&journal).map_or(0, |file| file.blocks() * 512);
    assert!(bytes() > 2 * MIB, "the rows are in the journal");
    // More than 9 MiB, but room for writing the rows to tables is kept.
    disk.free.store(10 * MIB, Ordering::SeqCst);
    store.commit(put("k", "v")).await.expect("committed");
    let since = Instant::now();
    while bytes() > MIB {
        assert!(since.elapsed() < SOON, "the journal keeps what tables have");
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    let after = store.range(RangeRequest::between("", "j")).await;
    assert_eq!(after.expect("read").items, before.items);
    let history = store.history("".into(), "".into(), Revision(200)).await;
    assert_eq!(history.expect("it is small").events.len(), 51);
    store.close().await;
    let store = FjallStore::open(folder.path(), options).expect("the store opens");
    assert_eq!(store.opened_at(), Some(Revision(251)));
    let after = store.range(RangeRequest::between("", "j")).await;
    assert_eq!(after.expect("read").items, before.items);
    store.close().await;
}

/// A block of a table that cannot be read ends each merge, and with it the worker.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_damaged_table_ends_in_a_store_that_only_reads() {
    let folder = tempfile::tempdir().expect("a folder");
    let disk = Arc::new(TestDisk::default());
    disk.free.store(10 * MIB, Ordering::SeqCst);
    let store = FjallStore::open(folder.path(), disk.options()).expect("the store opens");
    put_rows(&store).await;
    store.commit(put("small", "x")).await.expect("committed");
    store.close().await;
    let found = fs::read_dir(folder.path().join("fjall/keyspaces/1/tables")).expect("listed");
    for table in found.flatten() {
        let mut bytes = fs::read(table.path()).expect("read");
        let middle = bytes.len() / 2;
        // Closing ends a merge, which leaves what it had begun.
        if let Some(byte) = bytes.get_mut(middle) {
            *byte ^= 0x5A;
        }
        fs::write(table.path(), bytes).expect("written");
    }
    disk.free.store(0, Ordering::SeqCst);
    let store = FjallStore::open(folder.path(), disk.options()).expect("the store opens");
    let since = Instant::now();
    let reason = loop {
        let _ = store.commit(put("small", "y")).await;
        match store.health() {
            Health::ReadOnly { reason } if reason.contains("in a row") => break reason,
            _ => assert!(since.elapsed() < SOON, "it is opened again and again"),
        }
        tokio::time::sleep(Duration::from_millis(10)).await;
    };
    assert!(reason.contains("3 times in a row"), "{reason}");
    let refused = store.commit(put("small", "z")).await;
    assert!(
        matches!(&refused, Err(CommitError::Rejected(Rejection::ReadOnly(why))) if *why == reason),
        "{refused:?}"
    );
    let small = store.get(b"small").await.expect("it reads").1;
    assert!(small.is_some());
    store.close().await;
}

/// Clients may read a file that cannot be read as often as they like.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn failed_reads_end_no_writes() {
    let folder = tempfile::tempdir().expect("a folder");
    let disk = Arc::new(TestDisk::default());
    let store = FjallStore::open(folder.path(), disk.options()).expect("the store opens");
    for round in 0..10 {
        for _ in 0..3 {
            let reported = store.report_failed_read("a block cannot be read").await;
            reported.expect("answered");
            assert!(!matches!(store.health(), Health::Failed { .. }));
        }
        let text = round.to_string();
        store.commit(put("k", text)).await.expect("committed");
        assert_eq!(store.health(), Health::Ok);
    }
    assert!(store.get(b"k").await.expect("it reads").1.is_some());
    store.close().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_panic_of_the_writer_is_survived() {
    let folder = tempfile::tempdir().expect("a folder");
    let disk = Arc::new(TestDisk::default());
    let store = FjallStore::open(folder.path(), disk.options()).expect("the store opens");
    store.commit(put("k", "1")).await.expect("committed");
    disk.panicking.store(true, Ordering::SeqCst);
    let result = store.commit(put("k", "2")).await;
    assert!(matches!(result, Err(CommitError::Unknown(_))), "{result:?}");
    let next = store.commit(put("k", "3")).await.expect("committed");
    assert_eq!(next.revision, Revision(3), "the second one was synced");
    assert_eq!(store.health(), Health::Ok);
    disk.panicking.store(true, Ordering::SeqCst);
    let _ = store.commit(put("k", "4")).await;
    store.close().await;
}

/// The writer remembers what it has compared, and must not beyond a write that fails.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_compare_sees_what_became_of_a_failed_write() {
    let folder = tempfile::tempdir().expect("a folder");
    let disk = Arc::new(TestDisk::default());
    let store = FjallStore::open(folder.path(), disk.options()).expect("the store opens");
    let unchanged = |revision| Txn {
        compares: vec![Compare::Unchanged {
            key: "fence".into(),
            revision,
        }],
        ..put("other", "x")
    };
    for is_durable in [false, true] {
        let known = store.commit(put("fence", "1")).await.expect("committed");
        let before = store.commit(unchanged(known.revision)).await;
        let before = before.expect("nobody has put it again").revision;
        let failed_at = Revision(before.0 + 1);
        if is_durable {
            disk.failing.store(true, Ordering::SeqCst);
        } else {
            let path = folder.path().join("fjall/0.jnl");
            let content = fs::read(&path).expect("read");
            *disk.losing.lock() = Some((path, content));
        }
        let failed = store.commit(put("fence", "2")).await;
        let (newest, other) = if is_durable {
            let committed = failed.expect("the journal has it");
            assert_eq!(committed.revision, failed_at);
            (failed_at, known.revision)
        } else {
            let is_rejected = matches!(failed, Err(CommitError::Rejected(Rejection::ReadOnly(_))));
            assert!(is_rejected, "{failed:?}");
            (known.revision, failed_at)
        };
        let refused = store.commit(unchanged(other)).await;
        let is_refused = matches!(refused, Err(CommitError::Refused { .. }));
        assert!(is_refused, "{refused:?}");
        let committed = store.commit(unchanged(newest)).await;
        committed.expect("nobody has put it again");
    }
    store.close().await;
}

/// The keys could not be deleted when the store was opened, and then the database is opened again.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn keys_of_older_leases_end_although_the_engine_failed() {
    let folder = tempfile::tempdir().expect("a folder");
    let disk = Arc::new(TestDisk::default());
    let store = FjallStore::open(folder.path(), disk.options()).expect("the store opens");
    let lease = store.lease_grant(Duration::from_secs(3_600)).await;
    let mut leased = put("member", "x");
    if let Op::Put { lease: slot, .. } = &mut leased.ops[0] {
        *slot = Some(lease.expect("a lease"));
    }
    store.commit(leased).await.expect("committed");
    store.close().await;
    // It can be opened, and not write.
    disk.free.store(5 * MIB, Ordering::SeqCst);
    let store = FjallStore::open(folder.path(), disk.options()).expect("the store opens");
    assert!(matches!(store.health(), Health::ReadOnly { .. }));
    assert!(store.get(b"member").await.expect("read").1.is_some());
    disk.failing.store(true, Ordering::SeqCst);
    disk.free.store(0, Ordering::SeqCst);
    let since = Instant::now();
    while store.get(b"member").await.expect("read").1.is_some() {
        let status = store.status();
        assert!(since.elapsed() < SOON, "it is still there: {status:?}");
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    assert!(!disk.failing.load(Ordering::SeqCst), "the engine failed");
    store.close().await;
}
