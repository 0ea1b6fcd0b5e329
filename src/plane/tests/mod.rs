//! The plane as its callers see it, over a store in memory that fails on request.

mod beside;
mod chaos;
mod frozen;
mod handoff;
mod loads;
mod outcomes;
mod overlay;
mod packing;
mod parts;
mod sealed;
mod steps;
mod watches;
mod weights;
mod writes;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::time::Duration;

use bytes::Bytes;
use parking_lot::Mutex;
use polyplane_storage::{CommitFault, FaultyStore, MemoryOptions, MemoryStore, Revision, Store};
use proptest::prelude::*;
use tokio::runtime::Builder;
use tokio::time::Instant;

use crate::testing::object;
use crate::*;

/// A fault of a commit: the store applies it, leaves its outcome unknown, or is late.
fn fault() -> impl Strategy<Value = Option<CommitFault>> {
    prop_oneof![
        6 => Just(None),
        1 => Just(Some(CommitFault::UnknownApplied)),
        1 => Just(Some(CommitFault::UnknownNotApplied)),
        1 => Just(Some(CommitFault::UnknownLate)),
        1 => Just(Some(CommitFault::Delay(Duration::from_millis(3)))),
    ]
}

/// A store with its committer.
struct Site {
    /// The same store without the faults.
    inner: Arc<dyn Store>,
    store: Arc<FaultyStore>,
    committer: Arc<Committer>,
    layers: Arc<Layers>,
}

impl Site {
    fn new() -> Self {
        Self::over(Arc::new(MemoryStore::new(MemoryOptions::default())))
    }

    fn over(inner: Arc<dyn Store>) -> Self {
        let store = Arc::new(FaultyStore::new(Arc::clone(&inner)));
        Self {
            layers: Layers::new(inner.clone()),
            committer: Committer::new(store.clone()),
            inner,
            store,
        }
    }

    async fn layers_with(&self, layer: &Arc<Layer>) -> Arc<Layers> {
        self.layers.bring(layer).await.expect("the store takes it");
        Arc::clone(&self.layers)
    }

    /// Opens a plane as a new holder of the fence.
    async fn open(&self, id: &str) -> Arc<Plane> {
        self.open_with(id, Test::default()).await
    }

    /// Opens a plane whose birth layer this process does not have.
    async fn open_left(&self, id: &str, birth: &LayerHash) -> Arc<Plane> {
        let params = self.params(id, birth.clone(), Test::default()).await;
        Plane::open(params).await.expect("the store answers")
    }

    async fn open_with(&self, id: &str, test: Test) -> Arc<Plane> {
        let birth = test.layer.hash().clone();
        let params = self.params(id, birth, test).await;
        Plane::open(params).await.expect("the store answers")
    }

    async fn params(&self, id: &str, layer: LayerHash, test: Test) -> PlaneParams {
        let guard = TestGuard::take(self.store.clone(), id, &test).await;
        let acquired = guard.inner.fence();
        let layers = match layer == *test.layer.hash() {
            true => self.layers_with(&test.layer).await,
            false => Arc::clone(&self.layers),
        };
        let record = PlaneRecord {
            id: id.to_owned(),
            base: test.base,
            birth: None,
            layer,
            params: BTreeMap::from([("CA".to_owned(), "of the ring".to_owned())]),
        };
        PlaneParams {
            record,
            born: Version::new(Base(test.base), Revision(1), 0),
            born_at: "2026-01-01T00:00:00Z".to_owned(),
            layers,
            uid_seed: [7; 32],
            indexes: vec![Arc::new(ByLabel)],
            derivation: test.derivation,
            summarize: Some(Arc::new(Lengths)),
            committer: Arc::clone(&self.committer),
            guard,
            acquired,
            log: test.log,
            external: test.external,
            import: test.import,
            copied: None,
        }
    }
}

/// Summarizes config maps by the length of their labels.
struct Lengths;

type LengthsByKey = BTreeMap<Key, usize>;

impl Summarize for Lengths {
    fn covers(&self, key: &Key) -> bool {
        key.resource() == "configmaps"
    }

    fn empty(&self) -> Summary {
        Arc::new(LengthsByKey::new())
    }

    fn next(&self, summary: &Summary, key: &Key, body: Option<&[u8]>) -> Summary {
        let known = summary.downcast_ref::<LengthsByKey>();
        let mut lengths = known.expect("it is made here").clone();
        lengths.remove(key);
        if let Some(body) = body {
            let object: serde_json::Value = serde_json::from_slice(body).expect("bodies are JSON");
            let labels = object["metadata"]["labels"].to_string();
            lengths.insert(key.clone(), labels.len());
        }
        Arc::new(lengths)
    }
}

/// Checks that a cut has the summary of its objects.
fn check_summary(cut: &Snapshot) -> Result<(), TestCaseError> {
    let config_maps = Prefix::resource("", "configmaps");
    let objects = cut.range(&config_maps, Start::First);
    let anew = objects.fold(Lengths.empty(), |summary, object| {
        Lengths.next(&summary, object.key(), Some(&object.body()))
    });
    let lengths = |summary: &Summary| summary.downcast_ref::<LengthsByKey>().cloned();
    prop_assert_eq!(cut.summary().and_then(lengths), lengths(&anew));
    Ok(())
}

struct Test {
    layer: Arc<Layer>,
    base: u64,
    log: LogBounds,
    observed: Arc<Mutex<u64>>,
    hooks: Arc<Hooks>,
    external: Option<Prefix>,
    import: Option<Import>,
    derivation: Option<Arc<dyn Derivation>>,
}

/// Events that a test makes happen at an awkward moment.
#[derive(Default)]
struct Hooks {
    /// The member key is lost: every barrier is refused.
    member_lost: AtomicBool,
    /// The revision that member reads return after the next check of whether the plane may answer;
    /// 0 for no new one.
    observed_after_answerable: AtomicU64,
}

impl Test {
    /// A plane whose log has at most so many bytes.
    fn with_log_of(bytes_max: usize) -> Self {
        let log = LogBounds {
            bytes_max,
            ..LogBounds::default()
        };
        Self {
            log,
            ..Self::default()
        }
    }
}

impl Default for Test {
    fn default() -> Self {
        Self {
            layer: layer(),
            base: 0,
            log: LogBounds::default(),
            observed: Arc::default(),
            hooks: Arc::default(),
            external: None,
            import: None,
            derivation: None,
        }
    }
}

/// A guard as [`SoleHolder`], with member reads that the test makes up.
struct TestGuard {
    inner: Arc<SoleHolder>,
    observed: Arc<Mutex<u64>>,
    hooks: Arc<Hooks>,
}

impl TestGuard {
    async fn take(store: Arc<dyn Store>, id: &str, test: &Test) -> Arc<Self> {
        let fence = format!("f/{id}");
        let inner = SoleHolder::take(store, fence, "me").await;
        Arc::new(Self {
            inner: inner.expect("the store takes it"),
            observed: Arc::clone(&test.observed),
            hooks: Arc::clone(&test.hooks),
        })
    }
}

#[async_trait::async_trait]
impl CommitGuard for TestGuard {
    fn intake(&self) -> Intake {
        self.inner.intake()
    }

    fn permit(&self) -> SendPermit {
        self.inner.permit()
    }

    fn acknowledged(&self) {
        self.inner.acknowledged();
    }

    fn landed(&self, at: Revision) {
        self.inner.landed(at);
    }

    fn not_done(&self, outcome: NotDone) {
        self.inner.not_done(outcome);
    }

    async fn superseded(&self) -> Result<Option<Revision>, polyplane_storage::ReadError> {
        self.inner.superseded().await
    }

    fn never_done(&self) {
        self.inner.never_done();
    }

    fn pause(&self) {
        self.inner.pause();
    }

    fn resume(&self) {
        self.inner.resume();
    }

    fn is_quiescent(&self) -> bool {
        self.inner.is_quiescent()
    }

    async fn probe(&self) -> Result<(), BarrierError> {
        self.inner.probe().await
    }

    fn store_writable(&self) {
        self.inner.store_writable();
    }

    fn answerable(&self) -> Answerable {
        let answerable = self.inner.answerable();
        let after = &self.hooks.observed_after_answerable;
        match after.load(Ordering::Relaxed) {
            0 => {}
            observed => *self.observed.lock() = observed,
        }
        answerable
    }

    async fn until_answerable(&self, deadline: Instant) -> Result<(), NotAnswerable> {
        self.inner.until_answerable(deadline).await
    }

    async fn barrier(&self) -> Result<Revision, BarrierError> {
        if self.hooks.member_lost.load(Ordering::Relaxed) {
            self.inner.lost();
            return Err(BarrierError::Lost);
        }
        self.inner.barrier().await
    }

    fn observed(&self) -> Revision {
        Revision(*self.observed.lock())
    }

    fn lost(&self) {
        self.inner.lost();
    }
}

/// An index whose value is the object's label, with the number in its data as the amount.
struct ByLabel;

impl Index for ByLabel {
    fn covers(&self, key: &Key) -> bool {
        configmaps().contains(key)
    }

    fn rows(&self, _key: &Key, body: &[u8]) -> Vec<IndexRow> {
        let object: serde_json::Value = serde_json::from_slice(body).expect("bodies are JSON");
        let label = object["metadata"]["labels"]["l"].as_str().unwrap_or("");
        let amount = object["data"]["k"].as_str().and_then(|k| k.parse().ok());
        vec![IndexRow {
            value: Bytes::copy_from_slice(label.as_bytes()),
            amount: amount.unwrap_or(0),
        }]
    }
}

const LABELS: IndexId = IndexId(0);

/// Two config maps, `template-a` and `template-b`, the second with a placeholder.
fn layer() -> Arc<Layer> {
    let of = |name: &str, value: &str| LayerObject {
        key: configmap(name),
        object: object(name, "layer", value),
    };
    Layer::build(vec![of("template-a", "1"), of("template-b", "${CA}")]).expect("a fine layer")
}

fn configmaps() -> Prefix {
    Prefix::resource("", "configmaps")
}

fn configmap(name: &str) -> Key {
    Key::new("", "configmaps", Some("ns"), name)
}

fn put(name: &str, value: &str) -> Operation {
    put_labelled(name, "x", value)
}

fn put_labelled(name: &str, label: &str, value: &str) -> Operation {
    Operation::Put {
        key: configmap(name),
        object: object(name, label, value),
    }
}

fn delete(name: &str) -> Operation {
    Operation::Delete {
        key: configmap(name),
    }
}

fn write(operations: Vec<Operation>) -> Write {
    Write {
        operations,
        ..Write::default()
    }
}

fn claimed(operation: Operation, claim: Claim) -> Write {
    Write {
        operations: vec![operation],
        claims: vec![claim],
        deadline: None,
    }
}

/// Returns the value that an object carries.
fn value(object: &ObjectRef) -> String {
    let body: serde_json::Value = serde_json::from_slice(&object.body()).expect("JSON");
    body["data"]["k"].as_str().unwrap_or_default().to_owned()
}

/// Returns everything in a cut as text, versions included.
fn dump(cut: &Snapshot) -> Vec<String> {
    cut.resources()
        .flat_map(|prefix| cut.range(prefix, Start::First).collect::<Vec<_>>())
        .map(|object| {
            let body = String::from_utf8(object.body().to_vec()).expect("bodies are text");
            format!("{} {:?} {body}", object.key(), object.created())
        })
        .collect()
}

/// Returns an event as text.
fn tell(event: &Event) -> String {
    let body = |object: Option<&ObjectRef>| {
        object.map(|object| String::from_utf8(object.body().to_vec()).expect("text"))
    };
    format!(
        "{} {} {:?} -> {:?}",
        event.version(),
        event.key(),
        body(event.previous()),
        body(event.current())
    )
}

/// Reads events until all up to a version were delivered.
async fn events_until(watcher: &mut Watcher, version: Version) -> Vec<Arc<Event>> {
    let mut all = Vec::new();
    // A bookmark may be beyond the version, as after a move of the plane.
    while watcher.bookmark() < Some(version) {
        match watcher.next().await {
            Next::Events(events) => all.extend(events),
            Next::Bookmark(_) => {}
            other => panic!("the watch ended: {other:?}"),
        }
    }
    all
}

/// Ends a plane once all queued writes are done.
async fn close(plane: &Arc<Plane>, ended: Ended) {
    while plane.stats().queued > 0 {
        tokio::task::yield_now().await;
    }
    let soon = Instant::now() + Duration::from_secs(10);
    plane.pause(soon).await.expect("the store answers");
    plane.end(ended);
}

/// Runs a case of a property. A case that waits for something that never happens fails.
fn run(future: impl Future<Output = Result<(), TestCaseError>>) -> Result<(), TestCaseError> {
    run_on(
        &mut Builder::new_current_thread(),
        Duration::from_secs(60),
        future,
    )
}

/// Runs a test with a clock that jumps to the next timer whenever every task waits.
fn run_paused(
    future: impl Future<Output = Result<(), TestCaseError>>,
) -> Result<(), TestCaseError> {
    let mut builder = Builder::new_current_thread();
    run_on(
        builder.start_paused(true),
        Duration::from_secs(24 * 3600),
        future,
    )
}

fn run_on(
    builder: &mut Builder,
    limit: Duration,
    future: impl Future<Output = Result<(), TestCaseError>>,
) -> Result<(), TestCaseError> {
    let runtime = builder
        .enable_time()
        .build()
        .expect("a runtime needs nothing");
    runtime.block_on(async {
        let done = tokio::time::timeout(limit, future).await;
        done.unwrap_or_else(|_| Err(TestCaseError::fail(format!("not done after {limit:?}"))))
    })
}
