//! A folder that somebody removes or replaces while a store has it open.

use std::fs;
use std::sync::Arc;
use std::time::Duration;

use super::{Engine, get, noise, put};
use crate::{CommitError, Health, ReadError, Rejection, Store};

const WHY: &str = "removed or replaced";
/// Longer than the interval at which a store that takes no writes looks whether it can.
const TICK: Duration = Duration::from_millis(1_500);

/// Checks that a store takes no write of so many bytes, and says why.
async fn takes_nothing(store: &dyn Store, bytes: usize) {
    let result = store.commit(put("late", noise(bytes, 1))).await;
    assert!(
        matches!(&result, Err(CommitError::Rejected(Rejection::ReadOnly(why))) if why.contains(WHY)),
        "{result:?}"
    );
    has_failed(store);
}

fn has_failed(store: &dyn Store) {
    let health = store.health();
    assert!(
        matches!(&health, Health::Failed { reason } if reason.contains(WHY)),
        "{health:?}"
    );
}

pub(super) async fn a_removed_folder_ends_its_store_for_good<E: Engine>() {
    let root = tempfile::tempdir().expect("a folder");
    let path = root.path().join("store");
    let old = E::open(&path);
    old.commit(put("k", "old")).await.expect("committed");
    fs::remove_dir_all(&path).expect("removed");
    has_failed(&*old);
    takes_nothing(&*old, 10).await;
    let read = old.get(b"k").await;
    assert!(
        matches!(&read, Err(ReadError::Unavailable(why)) if why.contains(WHY)),
        "{read:?}"
    );
    assert!(!path.exists(), "it makes nothing there");
    fs::create_dir(&path).expect("made");
    takes_nothing(&*old, 10).await;
    let new = E::open(&path);
    new.commit(put("k", "new")).await.expect("committed");
    tokio::time::sleep(TICK).await;
    takes_nothing(&*old, 10).await;
    old.close().await;
    new.commit(put("next", "new")).await.expect("committed");
    new.close().await;
    let new = E::open(&path);
    assert_eq!(get(&*new, "k").await, Some("new".into()));
    assert_eq!(get(&*new, "late").await, None);
    new.close().await;
}

/// A second time, too, and without a write that would have told the first store that its folder is another's.
pub(super) async fn a_replaced_folder_is_left_alone_by_the_stores_that_had_it<E: Engine>() {
    let root = tempfile::tempdir().expect("a folder");
    let path = root.path().join("store");
    let lost = |round: u64| root.path().join(format!("lost-{round}"));
    let mut stores: Vec<Arc<dyn Store>> = Vec::new();
    for round in 0..3 {
        let store = E::open(&path);
        for number in 0..50 {
            let value = noise(20_000, round * 100 + number);
            let key = number.to_string();
            store.commit(put(&key, value)).await.expect("committed");
        }
        for old in &stores {
            for _ in 0..20 {
                takes_nothing(&**old, 100_000).await;
            }
        }
        stores.push(store);
        if round < 2 {
            fs::rename(&path, lost(round)).expect("moved");
        }
    }
    tokio::time::sleep(TICK).await;
    for store in stores {
        store.close().await;
    }
    // All have what they acknowledged, wherever their folders are by now.
    for (round, path) in [(0, lost(0)), (1, lost(1)), (2, path)] {
        let store = E::open(&path);
        for number in 0..50 {
            let found = get(&*store, &number.to_string()).await;
            let value = noise(20_000, round * 100 + number);
            assert!(found == Some(value), "{number} of {round}");
        }
        assert_eq!(get(&*store, "late").await, None);
        store.close().await;
    }
}
