//! Large bodies in the store: packed once every program that may open the plane reads them.

use polyplane_storage::{FjallOptions, FjallStore, Op, RangeRequest, Txn};

use super::*;

/// Bytes of the store's largest value in these tests and more, all of which can be packed.
const LARGE: usize = 2 << 20;

fn words(bytes: usize) -> String {
    "some words. ".repeat(bytes / 12)
}

/// Returns text that cannot be packed well.
fn noise(bytes: usize) -> String {
    let mut state = 1_u64;
    let letters = std::iter::repeat_with(|| {
        state = state
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1);
        char::from(b'#' + (state >> 56).to_le_bytes()[0] % 56)
    });
    letters.take(bytes).collect()
}

/// Returns what the store has under the name of a config map.
async fn stored(site: &Site, name: &str) -> (Bytes, Bytes) {
    let range = RangeRequest::prefix("p/a/o/");
    let found = site.inner.range(range).await.expect("it answers").items;
    let of_name = |item: &&polyplane_storage::KeyValue| item.key.ends_with(name.as_bytes());
    let found = found.iter().find(of_name).expect("it is stored");
    (found.key.clone(), found.value.clone())
}

async fn large_bodies_are_packed_when_allowed(site: &Site) {
    let plane = site.open("a").await;
    let (plain, packed) = (words(20_000), words(21_000));
    let before = plane.submit(write(vec![put("plain", &plain)])).await;
    let before = before.expect("fine").version;
    assert!(stored(site, "plain").await.1.len() > plain.len());
    site.committer.begin_packing();
    let operations = vec![put("packed", &packed), put("small", "1")];
    plane.submit(write(operations)).await.expect("fine");
    assert!(stored(site, "packed").await.1.len() < packed.len() / 10);
    assert!(stored(site, "small").await.1.ends_with(b"}}"));
    let again = put("packed", &words(22_000));
    plane.submit(write(vec![again])).await.expect("fine");
    let whole = dump(&plane.snapshot());
    // A later owner reads state and history from the store.
    let plane = site.open("a").await;
    assert_eq!(dump(&plane.snapshot()), whole);
    let scope = WatchScope::Prefix(configmaps());
    let watch = plane.watch(scope, WatchFrom::After(before)).await;
    let mut watch = watch.expect("the store has its history");
    let mut seen = Vec::new();
    while seen.len() < 3 {
        let Next::Events(events) = watch.next().await else {
            panic!("nothing ends it");
        };
        seen.extend(events.iter().filter_map(|event| event.current().map(value)));
    }
    assert_eq!(seen, [packed, "1".to_owned(), words(22_000)]);
}

#[tokio::test]
async fn large_bodies_are_packed_in_memory() {
    large_bodies_are_packed_when_allowed(&Site::new()).await;
}

#[tokio::test]
async fn large_bodies_are_packed_on_disk() {
    let folder = tempfile::tempdir().expect("a folder");
    let store = FjallStore::open(folder.path(), FjallOptions::default()).expect("it opens");
    large_bodies_are_packed_when_allowed(&Site::over(Arc::new(store))).await;
}

#[tokio::test]
async fn the_size_that_the_store_takes_is_limited_and_so_is_the_body() {
    let site = Site::new();
    let plane = site.open("a").await;
    let limit = site.committer.limits().value_bytes_max;
    let submit = async |value: &str| plane.submit(write(vec![put("large", value)])).await;
    let too_large = |answer| matches!(answer, Err(SubmitError::TooLarge { .. }));
    assert!(limit < LARGE);
    assert!(too_large(submit(&words(LARGE)).await), "it is not packed");
    site.committer.begin_packing();
    submit(&words(LARGE)).await.expect("it is packed");
    let reopened = site.open("a").await.snapshot();
    let read = reopened.get(&configmap("large")).expect("it is there");
    assert_eq!(value(&read), words(LARGE));
    assert!(too_large(submit(&noise(LARGE + LARGE / 4)).await));
    assert!(too_large(submit(&words(3 << 20)).await), "a larger body");
}

#[tokio::test]
async fn a_damaged_packed_value_is_reported_and_not_served() {
    let site = Site::new();
    site.committer.begin_packing();
    let plane = site.open("a").await;
    let large = write(vec![put("large", &words(20_000))]);
    plane.submit(large).await.expect("fine");
    let (key, value) = stored(&site, "large").await;
    let mut damaged = value.to_vec();
    let last = damaged.len() - 20;
    damaged[last] ^= 0x10;
    for value in [damaged.into(), value.slice(..value.len() - 1)] {
        let put = Op::Put {
            key: key.clone(),
            value,
            lease: None,
        };
        let txn = Txn {
            compares: Vec::new(),
            ops: vec![put],
        };
        site.inner.commit(txn).await.expect("fine");
        let test = Test::default();
        let birth = test.layer.hash().clone();
        let opened = Plane::open(site.params("a", birth, test).await).await;
        let source = match opened.err() {
            Some(OpenError::Record { source, .. }) => source,
            other => panic!("{other:?}"),
        };
        assert_eq!(source, RecordError::Damaged);
    }
}
