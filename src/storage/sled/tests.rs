//! What only the engine on sled has: damage, blob files, snapshots.

use std::fs;
use std::io;
use std::path::Path;

use bytes::Bytes;

use super::engine::EngineError;
use super::{SledOptions, SledStore};
use crate::{CommitError, Op, OpenError, RangeRequest, Rejection, Revision, Store, Txn};

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
    let key = Bytes::copy_from_slice(key.as_bytes());
    Txn {
        compares: Vec::new(),
        ops: vec![Op::Put {
            key,
            value: value.into(),
            lease: None,
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

/// The files of sled, with their bytes.
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

/// Alters one byte in each of many places of the data file, one place at a time. Whatever sled
/// makes of it, the store must come up whole or be refused as damaged and left alone.
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

/// With so many records that a page with children is full of the longest keys.
#[tokio::test]
async fn no_key_makes_a_blob_file() {
    let folder = tempfile::tempdir().expect("a folder");
    let store = open(folder.path());
    let longest = store.limits().key_bytes_max;
    let long = |number: u64| format!("{number:0>longest$}");
    for part in 0..30 {
        let ops = (part * 100..part * 100 + 100).map(|number| Op::Put {
            key: long(number).into(),
            value: noise(if number.is_multiple_of(8) { 6_200 } else { 20 }, number),
            lease: None,
        });
        let txn = Txn {
            compares: Vec::new(),
            ops: ops.collect(),
        };
        store.commit(txn).await.expect("committed");
    }
    let longer = format!("{}x", long(0));
    let refused = store.commit(put(&longer, "")).await;
    let is_too_large =
        |error: CommitError| matches!(error, CommitError::Rejected(Rejection::TooLarge(_)));
    assert!(refused.is_err_and(is_too_large));
    // An older program may have put it.
    let key = longer.into();
    let delete = Txn {
        compares: Vec::new(),
        ops: vec![Op::Delete { key }],
    };
    store.commit(delete).await.expect("it is not there");
    store.close().await;
    let blobs = fs::read_dir(folder.path().join("blobs"))
        .expect("listed")
        .count();
    assert_eq!(blobs, 0, "blob files are never synced");
}

#[test]
fn what_a_failed_disk_may_have_lost_is_told_from_what_a_full_one_has_refused() {
    let failed = |kind: io::ErrorKind| {
        let error = io::Error::from(kind);
        EngineError::Engine(sled::Error::Io(error)).is_of_disk()
    };
    assert!(failed(io::ErrorKind::Other), "as EIO, which has no kind");
    assert!(!failed(io::ErrorKind::StorageFull));
    assert!(!failed(io::ErrorKind::FileTooLarge));
    assert!(EngineError::Sync(io::ErrorKind::StorageFull.into()).is_of_disk());
    assert!(!EngineError::NotOpen.is_of_disk());
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
