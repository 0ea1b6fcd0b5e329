//! What only the engine on fjall has: damage of journals, manifests and tables, torn tails, its log.

mod full;

use std::fs;
use std::path::{Path, PathBuf};
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use bytes::Bytes;

use super::{FjallOptions, FjallStore};
use crate::{
    CommitError, Compare, History, KeyValue, Op, OpenError, RangeRequest, ReadError, Revision,
    Store, Txn,
};

fn options() -> FjallOptions {
    FjallOptions {
        ballast_bytes: 0,
        memtable_bytes: 128 * 1024,
        ..FjallOptions::default()
    }
}

fn open(path: &Path) -> FjallStore {
    FjallStore::open(path, options()).expect("the store opens")
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

async fn everything(store: &FjallStore) -> Result<(Vec<KeyValue>, History), ReadError> {
    let range = store.range(RangeRequest::between("", "")).await?;
    let history = store.history("".into(), "".into(), Revision(0)).await?;
    Ok((range.items, history))
}

/// The files of a store, without those that every opening writes.
fn files(folder: &Path) -> Vec<(PathBuf, Vec<u8>)> {
    let mut found = Vec::new();
    let mut folders = vec![folder.to_owned()];
    while let Some(folder) = folders.pop() {
        for entry in fs::read_dir(folder).expect("listed") {
            let path = entry.expect("an entry").path();
            if path.is_dir() {
                folders.push(path);
            } else if !path.ends_with("lock") {
                let bytes = fs::read(&path).expect("read");
                found.push((path, bytes));
            }
        }
    }
    found.sort();
    found
}

fn copy(files: &[(PathBuf, Vec<u8>)], from: &Path, to: &Path) {
    for (path, bytes) in files {
        let path = to.join(path.strip_prefix(from).expect("below"));
        fs::create_dir_all(path.parent().expect("one")).expect("made");
        fs::write(path, bytes).expect("written");
    }
    fs::write(to.join("fjall/lock"), b"").expect("written");
}

/// A store with tables, and with batches that lie in the journal alone.
async fn filled(path: &Path) -> (Vec<KeyValue>, History) {
    let store = open(path);
    for number in 0..60 {
        let key = format!("{}", number % 25);
        let value = noise(10_000, number);
        store.commit(put(&key, value)).await.expect("committed");
        let value = format!("{number}");
        store.commit(put("small", value)).await.expect("committed");
    }
    let whole = everything(&store).await.expect("read");
    store.close().await;
    whole
}

/// Alters one byte in each of many places of every file, one place at a time. The store must come up
/// whole, or be refused as damaged and left alone, or report what it cannot read.
#[tokio::test]
async fn damage_anywhere_is_refused_or_reported_and_never_shown() {
    let folder = tempfile::tempdir().expect("a folder");
    let origin = folder.path().join("origin");
    let whole = filled(&origin).await;
    let before = files(&origin);
    let tables = before
        .iter()
        .filter(|(path, _)| path.parent().is_some_and(|p| p.ends_with("tables")));
    assert!(tables.count() > 3, "there are tables");
    let (mut refused, mut reported, mut tried) = (0, 0, 0);
    for (path, bytes) in &before {
        let name = path.strip_prefix(&origin).expect("below");
        if !name.starts_with("fjall") || bytes.is_empty() {
            continue;
        }
        for place in 0..6 {
            tried += 1;
            let copied = folder.path().join(format!("copy-{tried}"));
            copy(&before, &origin, &copied);
            let mut altered = bytes.clone();
            let at = (bytes.len() - 1) * place / 5;
            altered[at] ^= 0x5A;
            fs::write(copied.join(name), &altered).expect("written");
            let found = files(&copied);
            match FjallStore::open(&copied, options()) {
                Ok(store) => {
                    match everything(&store).await {
                        Ok(found) => assert!(found == whole, "{name:?} at {at}: other content"),
                        Err(ReadError::Corrupt(_)) => reported += 1,
                        Err(error) => panic!("{name:?} at {at}: {error}"),
                    }
                    store.close().await;
                }
                Err(OpenError::Damaged { .. }) => {
                    refused += 1;
                    let after = files(&copied);
                    let is_same = found == after;
                    assert!(
                        is_same || name.to_string_lossy().contains("tables"),
                        "{name:?} at {at}: refused, and not left as it was"
                    );
                }
                Err(error) => panic!("{name:?} at {at}: {error}"),
            }
            fs::remove_dir_all(&copied).expect("removed");
        }
    }
    assert!(
        refused > 10 && reported > 3,
        "{refused} refused, {reported} reported of {tried}"
    );
}

/// Cuts a journal off behind its last batch, which it returns.
fn last_batch(bytes: &mut Vec<u8>) -> Vec<u8> {
    let end = bytes.iter().rposition(|byte| *byte != 0).expect("some") + 1;
    bytes.truncate(end);
    let last = bytes
        .windows(5)
        .rposition(|window| window[0] == 1 && window[1..] == 3_u32.to_le_bytes())
        .expect("a batch of three items");
    bytes[last..].to_vec()
}

/// A tail that was torn within its values, as a power cut tears it, is no damage.
#[tokio::test]
async fn a_torn_tail_of_any_form_is_cut_off() {
    let folder = tempfile::tempdir().expect("a folder");
    let origin = folder.path().join("origin");
    let whole = filled(&origin).await;
    let journal = origin.join("fjall/0.jnl");
    let mut bytes = fs::read(&journal).expect("read");
    // One more batch, never acknowledged: the last one again, cut short or with holes in it.
    let batch = last_batch(&mut bytes);
    let before = files(&origin);
    let mut hollow = batch.clone();
    hollow[40..60].fill(0);
    let forms = [
        batch[..batch.len() - 1].to_vec(),
        batch[..20].to_vec(),
        hollow,
        [&batch[..30], &[0; 100][..]].concat(),
        vec![1],
        vec![7; 40],
    ];
    for (number, form) in forms.iter().enumerate() {
        let copied = folder.path().join(number.to_string());
        copy(&before, &origin, &copied);
        fs::write(copied.join("fjall/0.jnl"), [&bytes[..], form].concat()).expect("written");
        let store = FjallStore::open(&copied, options());
        let store = store.unwrap_or_else(|error| panic!("form {number}: {error}"));
        let found = everything(&store).await.expect("read");
        assert!(found == whole, "form {number}");
        let next = store.commit(put("next", "x")).await.expect("committed");
        assert_eq!(next.revision, Revision(121));
        store.close().await;
        open(&copied).close().await;
    }
}

/// What is below the floor leaves the disk without a scan of it.
#[tokio::test]
async fn history_below_the_floor_leaves_the_disk() {
    let folder = tempfile::tempdir().expect("a folder");
    let store = open(folder.path());
    for number in 0..200 {
        let key = format!("{}", number % 5);
        let value = noise(20_000, number);
        store.commit(put(&key, value)).await.expect("committed");
        if number % 20 == 19 {
            store.compact(Revision(number)).await.expect("compacted");
        }
    }
    let newest = store.get(b"4").await.expect("read").1.expect("there");
    assert_eq!(newest.value, noise(20_000, 199));
    store.close().await;
    let log = files(&folder.path().join("fjall/keyspaces/2/tables"));
    let bytes: usize = log.iter().map(|(_, bytes)| bytes.len()).sum();
    assert!(bytes < 2_000_000, "{bytes} bytes of 4 000 000 are left");
}

/// A worker that does not know of the failed write seals its journal and begins the next one.
#[tokio::test]
async fn a_torn_journal_with_an_empty_one_behind_it_is_cut_off() {
    let folder = tempfile::tempdir().expect("a folder");
    let origin = folder.path().join("origin");
    let whole = filled(&origin).await;
    let mut bytes = fs::read(origin.join("fjall/0.jnl")).expect("read");
    let batch = last_batch(&mut bytes);
    let torn = [&bytes[..], &batch[..20]].concat();
    let before = files(&origin);
    for (number, newer) in [vec![], vec![0; 4096], batch].into_iter().enumerate() {
        let copied = folder.path().join(number.to_string());
        copy(&before, &origin, &copied);
        fs::write(copied.join("fjall/0.jnl"), &torn).expect("written");
        fs::write(copied.join("fjall/1.jnl"), &newer).expect("written");
        let rewritten = super::journal::rewrite(&copied.join("fjall"));
        assert_eq!(rewritten.is_ok(), number < 2, "{number}: {rewritten:?}");
        match FjallStore::open(&copied, options()) {
            Ok(store) => {
                assert!(number < 2, "the newer one proves a loss");
                let found = everything(&store).await.expect("read");
                assert!(found == whole, "{number}");
                let next = store.commit(put("next", "x")).await.expect("committed");
                assert_eq!(next.revision, Revision(121));
                store.close().await;
                open(&copied).close().await;
            }
            Err(error) => {
                assert!(matches!(error, OpenError::Damaged { .. }), "{error}");
                assert!(number == 2, "{number}: {error}");
            }
        }
    }
}

/// The writer registers a watch before its caller's task goes on, and may give up history in between.
#[tokio::test]
async fn a_watch_from_the_head_on_opens_although_the_floor_passes_it_meanwhile() {
    let folder = tempfile::tempdir().expect("a folder");
    let store = open(folder.path());
    let first = store.commit(put("k", "1")).await.expect("committed");
    let mut opening = store.watch("".into(), "".into(), first.revision);
    // Sends the request to the writer, which takes it before the commit.
    let polled = opening
        .as_mut()
        .poll(&mut Context::from_waker(Waker::noop()));
    let next = store.commit(put("k", "2")).await.expect("committed");
    store.compact(next.revision).await.expect("compacted");
    assert!(store.status().floor > first.revision);
    let opened = match polled {
        Poll::Ready(opened) => opened,
        Poll::Pending => opening.await,
    };
    let mut watch = opened.expect("it misses nothing");
    let batch = watch.next().await.expect("an event");
    assert_eq!((batch.revision, batch.events.len()), (next.revision, 1));
    store.close().await;
}

/// The writer remembers what it has compared.
#[tokio::test]
async fn a_compare_sees_every_change_since_the_one_before() {
    let folder = tempfile::tempdir().expect("a folder");
    let store = open(folder.path());
    let unchanged = |revision| Txn {
        compares: vec![Compare::Unchanged {
            key: "fence".into(),
            revision,
        }],
        ..put("other", "x")
    };
    let lease = store.lease_grant(Duration::from_secs(3_600)).await;
    let lease = lease.expect("a lease");
    let mut known = Revision(0);
    for leased in [None, None, Some(lease)] {
        let mut txn = put("fence", "x");
        if let Op::Put { lease, .. } = &mut txn.ops[0] {
            *lease = leased;
        }
        let newer = store.commit(txn).await.expect("committed").revision;
        let refused = store.commit(unchanged(known)).await;
        let is_refused = matches!(refused, Err(CommitError::Refused { .. }));
        assert!(is_refused, "{refused:?}");
        known = newer;
        for _ in 0..2 {
            let committed = store.commit(unchanged(known)).await;
            committed.expect("nobody has put it again");
        }
    }
    store.lease_revoke(lease).await.expect("revoked");
    let refused = store.commit(unchanged(known)).await;
    let is_refused = matches!(refused, Err(CommitError::Refused { .. }));
    assert!(is_refused, "{refused:?}");
    store.close().await;
}
