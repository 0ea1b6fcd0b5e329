//! Sealed records, as an owner writes them and the next one reads them.

use polyplane_sealing::{KeyEncryptionKey, Keyring, SealPolicy};

use super::*;
use crate::record::{KeySpace, decode};
use crate::sealing::data_keys::DataKeys;

const WORD: &str = "a word that is nowhere else";

fn key(byte: u8) -> Arc<KeyEncryptionKey> {
    Arc::new(KeyEncryptionKey::new(&[byte; 32]))
}

/// What seals everything, by the first key; the others only unwrap.
fn sealing(keys: &[u8]) -> Arc<Sealing> {
    let sealing = sealing_later(keys);
    sealing.begin();
    sealing
}

/// What seals everything once it has begun.
fn sealing_later(keys: &[u8]) -> Arc<Sealing> {
    let all = keys.iter().map(|byte| key(*byte));
    let keyring = Keyring::new(all, keys.first().map(|byte| key(*byte)));
    Sealing::new(keyring, SealPolicy::everything())
}

fn site(store: &Arc<dyn Store>, sealing: Option<Arc<Sealing>>) -> Site {
    let mut site = Site::over(Arc::clone(store));
    let faulty: Arc<dyn Store> = site.store.clone();
    site.committer = Committer::with_sealing(faulty, Arc::default(), sealing);
    site
}

fn named(name: &str) -> Key {
    Key::new("", "configmaps", Some("ns"), name)
}

async fn put(plane: &Arc<Plane>, name: &str, value: &str) {
    let put = Operation::Put {
        key: named(name),
        object: object(name, "label", value),
    };
    let write = Write {
        operations: vec![put],
        ..Write::default()
    };
    plane.submit(write).await.expect("it is written");
}

fn body(plane: &Plane, name: &str) -> String {
    let object = plane.snapshot().get(&named(name)).expect("it is there");
    String::from_utf8_lossy(&object.body()).into_owned()
}

async fn value(store: &Arc<dyn Store>, stored: &Bytes) -> Bytes {
    let (_, found) = store.get(stored).await.expect("it answers");
    found.expect("it is there").value
}

/// Sweeps until nothing is stale and the store says so.
async fn reseal_all(plane: &Arc<Plane>, generation: u32) {
    for _ in 0..10 {
        plane.reseal(generation, 2).await.expect("it is written");
    }
    assert_eq!(plane.stale_at_rest(), 0);
}

#[tokio::test]
async fn a_plane_comes_back_for_those_with_the_key_alone() {
    let store: Arc<dyn Store> = Arc::new(MemoryStore::new(MemoryOptions::default()));
    let plane = site(&store, Some(sealing(&[1]))).open("a").await;
    let large = WORD.repeat(400);
    put(&plane, "small", WORD).await;
    put(&plane, "large", &large).await;
    let (start, end) = KeySpace::new("a").bounds();
    let range = polyplane_storage::RangeRequest::between(start, end);
    let all = store.range(range).await.expect("it answers").items;
    let has = |bytes: &[u8]| {
        bytes
            .windows(WORD.len())
            .any(|part| part == WORD.as_bytes())
    };
    assert!(
        all.len() == 3 && !all.iter().any(|item| has(&item.value)),
        "{all:?}"
    );

    let other = site(&store, Some(sealing(&[2, 1]))).open("a").await;
    assert!(body(&other, "small").contains(WORD) && body(&other, "large").contains(&large));
    for without in [None, Some(sealing(&[2]))] {
        let is_off = without.is_none();
        let site = site(&store, without);
        let params = site.params("a", Layer::empty().hash().clone(), Test::default());
        let refused = Plane::open(params.await).await.expect_err("it is sealed");
        let unknown = |error: &SealedError| matches!(error, SealedError::Unwrap(_));
        match refused {
            OpenError::Sealed(SealedError::NotConfigured) => assert!(is_off),
            OpenError::Sealed(error) => assert!(!is_off && unknown(&error), "{error}"),
            other => panic!("{other}"),
        }
    }
}

/// Each part has four operations then: two of its write, its head record and its data keys.
#[tokio::test]
async fn the_first_data_keys_of_many_planes_fit_into_the_transactions_that_they_share() {
    let store: Arc<dyn Store> = Arc::new(MemoryStore::new(MemoryOptions::default()));
    let sealing = sealing_later(&[1]);
    let site = site(&store, Some(Arc::clone(&sealing)));
    let mut planes = Vec::new();
    for n in 0..100 {
        let plane = site.open(&format!("p{n}")).await;
        put(&plane, "in-clear", WORD).await;
        planes.push(plane);
    }
    sealing.begin();
    let writes = planes.iter().map(|plane| {
        let put = Operation::Put {
            key: named("sealed"),
            object: object("sealed", "label", WORD),
        };
        let delete = Operation::Delete {
            key: named("in-clear"),
        };
        plane.submit(write(vec![put, delete]))
    });
    for written in futures_util::future::join_all(writes).await {
        written.expect("the store takes the transaction");
    }
}

#[tokio::test]
async fn a_record_opens_in_its_own_place_alone() {
    let store: Arc<dyn Store> = Arc::new(MemoryStore::new(MemoryOptions::default()));
    let sealing = sealing(&[1]);
    for id in ["a", "b"] {
        let plane = site(&store, Some(Arc::clone(&sealing))).open(id).await;
        put(&plane, "x", WORD).await;
        put(&plane, "y", WORD).await;
    }
    let of = async |id: &str| {
        let record = value(&store, &data_keys_key(id)).await;
        let record = read_data_keys(&record).expect("keys");
        DataKeys::unwrap(&record, id, &sealing).expect("ours")
    };
    let (a, b) = (of("a").await, of("b").await);
    let stored = |id: &str, name: &str| KeySpace::new(id).object(&named(name));
    let (x, y) = (stored("a", "x"), stored("a", "y"));
    let sealed = value(&store, &x).await;
    let (clear, number) = a.open(&x, &sealed).expect("its own");
    assert!(number == Some(1) && decode(&clear).is_ok());
    let unopened = Some(RecordError::Unopened);
    assert_eq!(a.open(&y, &sealed).err(), unopened, "another name");
    assert_eq!(
        b.open(&stored("b", "x"), &sealed).err(),
        unopened,
        "another plane"
    );
    assert_eq!(decode(&sealed).err(), Some(RecordError::Sealed));
    let later = a.rotated(sealing.keyring().wraps_by().expect("it wraps"), 1);
    assert!(later.open(&x, &sealed).is_ok(), "the key before it stays");
    let later = later.rotated(sealing.keyring().wraps_by().expect("it wraps"), 2);
    assert_eq!(later.open(&x, &sealed).err(), Some(RecordError::KeyGone(1)));
    for bit in 0..8 * sealed.len() {
        let mut damaged = sealed.to_vec();
        damaged[bit / 8] ^= 1 << (bit % 8);
        // A bit of the form or the kind makes it another value, which is refused where it is decoded.
        let opened = a.open(&x, &damaged.into());
        let opened = opened.and_then(|(value, _)| decode(&value));
        assert!(opened.is_err(), "bit {bit}");
    }
    let foreign = value(&store, &data_keys_key("b")).await;
    let foreign = read_data_keys(&foreign).expect("keys");
    assert!(
        DataKeys::unwrap(&foreign, "a", &sealing).is_err(),
        "keys of another plane"
    );
}

#[tokio::test]
async fn keys_change_until_nothing_is_stale() {
    let store: Arc<dyn Store> = Arc::new(MemoryStore::new(MemoryOptions::default()));
    let plane = site(&store, None).open("a").await;
    for name in ["x", "y", "z"] {
        put(&plane, name, WORD).await;
    }
    // Switched on.
    let one = sealing(&[1]);
    let plane = site(&store, Some(Arc::clone(&one))).open("a").await;
    assert_eq!(plane.stale_at_rest(), 3);
    assert!(plane.is_stale_at_rest(&named("x")));
    put(&plane, "x", "another").await;
    assert_eq!(plane.stale_at_rest(), 2);
    reseal_all(&plane, 0).await;
    let keys = async || read_data_keys(&value(&store, &data_keys_key("a")).await).expect("keys");
    let first = keys().await;
    assert_eq!(
        (first.settled, first.newest().number),
        (one.fingerprint(), 1)
    );
    // Another data key.
    reseal_all(&plane, 1).await;
    let second = keys().await;
    assert_eq!(
        (second.settled, second.newest().number),
        (one.fingerprint(), 2)
    );
    assert_eq!(second.versions.len(), 2);
    let sealed = value(&store, &KeySpace::new("a").object(&named("y"))).await;
    let data_keys = DataKeys::unwrap(&second, "a", &one).expect("ours");
    let stored = KeySpace::new("a").object(&named("y"));
    assert_eq!(data_keys.open(&stored, &sealed).expect("ours").1, Some(2));
    // Another key-encryption key: the data keys stay.
    let two = sealing(&[2, 1]);
    let plane = site(&store, Some(Arc::clone(&two))).open("a").await;
    assert_eq!(plane.stale_at_rest(), 0);
    reseal_all(&plane, 1).await;
    let third = keys().await;
    assert_eq!(third.newest().number, 2);
    assert!(
        third
            .versions
            .iter()
            .all(|version| version.wrapped.by == key(2).id())
    );
    assert_eq!(two.rewrapped("a", &third).expect("ours"), None);
    let plane = site(&store, Some(sealing(&[2]))).open("a").await;
    assert!(body(&plane, "z").contains(WORD) && body(&plane, "x").contains("another"));
}

#[tokio::test]
async fn a_plane_says_that_it_is_resealed_until_nothing_is_left_or_nothing_can_be_written() {
    let store: Arc<dyn Store> = Arc::new(MemoryStore::new(MemoryOptions::default()));
    let site = site(&store, Some(sealing(&[1])));
    let plane = site.open("a").await;
    assert!(!plane.is_resealing(0), "nothing is stored");
    for name in ["x", "y", "z"] {
        put(&plane, name, WORD).await;
    }
    reseal_all(&plane, 0).await;
    assert!(!plane.is_resealing(0));

    // From the moment that a new key is wanted.
    assert!(plane.is_resealing(1));
    plane.reseal(1, 2).await.expect("a new key");
    assert!(plane.is_resealing(1));
    let rejected = CommitFault::Reject(polyplane_storage::Rejection::TooLarge("it".to_owned()));
    site.store.plan().next_commit(rejected);
    plane.reseal(1, 2).await.expect_err("it is rejected");
    assert!(!plane.is_resealing(1), "it would be awake for ever");
    assert!(plane.stale_at_rest() > 0);
    reseal_all(&plane, 1).await;
    assert!(!plane.is_resealing(1));

    // From another key-encryption key, when it wakes.
    let store: Arc<dyn Store> = site.store.clone();
    let plane = self::site(&store, Some(sealing(&[2, 1]))).open("a").await;
    assert!(plane.is_resealing(1));
    reseal_all(&plane, 1).await;
    assert!(!plane.is_resealing(1));
}

#[tokio::test]
async fn an_unknown_outcome_is_settled_although_it_is_sealed() {
    let store: Arc<dyn Store> = Arc::new(MemoryStore::new(MemoryOptions::default()));
    let site = site(&store, Some(sealing(&[1])));
    let plane = site.open("a").await;
    for (at, fault) in [CommitFault::UnknownApplied, CommitFault::UnknownNotApplied]
        .into_iter()
        .enumerate()
    {
        site.store.plan().next_commit(fault);
        put(&plane, &format!("x{at}"), WORD).await;
    }
    let plane = site.open("a").await;
    assert!(body(&plane, "x0").contains(WORD) && body(&plane, "x1").contains(WORD));
}

#[tokio::test]
async fn a_hand_off_and_the_history_read_as_before() {
    let store: Arc<dyn Store> = Arc::new(MemoryStore::new(MemoryOptions::default()));
    let sealing = sealing(&[1]);
    let site = site(&store, Some(Arc::clone(&sealing)));
    let plane = site.open("a").await;
    let begins = plane.snapshot().version();
    for value in ["1", "2", "3"] {
        put(&plane, "x", value).await;
    }
    let handed = async |plane: &Arc<Plane>| {
        let export = plane.export().await.expect("it is small");
        let import = Import {
            head: export.head,
            bytes: export.bytes,
        };
        let test = Test {
            import: Some(import),
            ..Test::default()
        };
        site.open_with("a", test).await
    };
    let next = handed(&plane).await;
    assert!(!next.imported(), "nobody has said that nothing is stale");
    reseal_all(&next, 0).await;
    let next = handed(&next).await;
    assert!(next.imported() && next.stale_at_rest() == 0);
    assert!(body(&next, "x").contains("\"3\""));
    let next = site.open("a").await;
    let scope = WatchScope::Prefix(Prefix::resource("", "configmaps"));
    let mut watcher = next
        .watch(scope, WatchFrom::After(begins))
        .await
        .expect("kept");
    let mut values = Vec::new();
    while values.len() < 3 {
        match watcher.next().await {
            Next::Events(events) => values.extend(events),
            _ => panic!("the history is kept"),
        }
    }
}

#[tokio::test]
async fn two_rotations_take_the_history_under_the_first_key_alone() {
    let store: Arc<dyn Store> = Arc::new(MemoryStore::new(MemoryOptions::default()));
    let sealing = sealing(&[1]);
    let plane = site(&store, Some(Arc::clone(&sealing))).open("a").await;
    put(&plane, "x", "1").await;
    let first = plane.snapshot().version();
    reseal_all(&plane, 0).await;
    reseal_all(&plane, 1).await;
    put(&plane, "y", "1").await;
    let second = plane.snapshot().version();
    reseal_all(&plane, 2).await;
    put(&plane, "x", "2").await;
    let plane = site(&store, Some(sealing)).open("a").await;
    let scope = || WatchScope::Prefix(Prefix::resource("", "configmaps"));
    let gone = plane.watch(scope(), WatchFrom::After(first)).await;
    assert_eq!(
        gone.expect_err("its key is gone"),
        WatchError::Expired(ExpiredCause::KeyGone)
    );
    let watcher = plane.watch(scope(), WatchFrom::After(second)).await;
    let mut watcher = watcher.expect("its key is kept");
    let events = events_until(&mut watcher, plane.snapshot().version()).await;
    // Both objects under the third key, and the last write.
    assert_eq!(events.len(), 3);
}
