//! The verbs over a plane in memory whose store fails on request, with a clock that jumps to the
//! next timer whenever all tasks wait.

mod admission;
mod applied;
mod asking;
mod authority;
mod conversion;
mod delete_options;
mod dry_run;
mod eviction;
mod large_trees;
mod nearly_full;
mod patched;
mod pod_deletion;
mod watch;
mod write_rate;

use crate::environment::Environment;
use crate::plan::Admission;
use crate::service_ranges::ServiceRange;
use crate::settings::{BirthLayer, PlaneSettings};
use crate::strategy::{Plain, Strategy};
use crate::{
    AnswerBody, Authority, Features, GrantedAccess, KindTable, Registry, ResourceRequest, Seats,
    Tenant, Verb,
};
use async_trait::async_trait;
use polyplane_apimachinery::json::{Limits, parse};
use polyplane_apimachinery::schema::Schemas;
use polyplane_apimachinery::status::ApiError;
use polyplane_apimachinery::{Str, Value};
use polyplane_auth::{Masters, UserInfo};
use polyplane_plane::{Committer, Key, Layer, ObjectRef, Plane, Prefix, SoleHolder};
use polyplane_storage::{CommitFault, FaultyStore, MemoryOptions, MemoryStore, Rejection, Store};
use std::sync::{Arc, LazyLock};
use std::time::Duration;
use tokio::task::JoinHandle;
use tokio::time::{Instant, sleep};

/// The schemas of all built-in kinds, for the kinds of these tests.
static SCHEMAS: LazyLock<Arc<Schemas>> = LazyLock::new(|| {
    Arc::new(Schemas::parse(&generated("schemas.json")).expect("generated data loads"))
});

/// Upstream's feature gates.
static FEATURES: LazyLock<Arc<Features>> = LazyLock::new(|| {
    let features = Features::parse(&generated("gates.json"), b"[]");
    Arc::new(features.expect("generated data loads"))
});

fn generated(name: &str) -> Vec<u8> {
    let path = std::path::Path::new(env!("CARGO_MANIFEST_DIR"));
    let data = std::fs::read(path.join("../batteries/data").join(name));
    data.expect("the generated data file is there")
}

/// The longest time that a request may take.
const PATIENCE: Duration = Duration::from_secs(3600);
/// The time that a commit takes which precedes one that the store refuses.
const UNSETTLED: Duration = Duration::from_secs(5);

/// A clock that follows the runtime's, with randomness that is the same in each run.
struct Clock(Instant);

impl Environment for Clock {
    fn now(&self) -> i64 {
        1_700_000_000 + i64::try_from(self.0.elapsed().as_secs()).expect("tests are short")
    }

    fn uid(&self) -> Str {
        crate::environment::System.uid()
    }

    fn random(&self, bytes: &mut [u8]) {
        crate::environment::System.random(bytes);
    }
}

/// A registry with one plane that has the namespace `ns`.
#[derive(Clone)]
struct Site {
    registry: Arc<Registry>,
    tenant: Tenant,
    store: Arc<FaultyStore>,
}

impl Site {
    async fn open(admission: Vec<Arc<dyn Admission>>) -> Self {
        Self::with_kinds(kinds(), admission).await
    }

    async fn with_kinds(kinds: KindTable, admission: Vec<Arc<dyn Admission>>) -> Self {
        Self::with(kinds, admission, Authority::fixed(Masters)).await
    }

    async fn with(
        kinds: KindTable,
        admission: Vec<Arc<dyn Admission>>,
        authority: Authority,
    ) -> Self {
        Self::on_layer(&Layer::empty(), kinds, admission, authority).await
    }

    /// Opens a plane that is born with the objects of a layer.
    async fn on_layer(
        layer: &Arc<Layer>,
        kinds: KindTable,
        admission: Vec<Arc<dyn Admission>>,
        authority: Authority,
    ) -> Self {
        let inner: Arc<dyn Store> = Arc::new(MemoryStore::new(MemoryOptions::default()));
        let store = Arc::new(FaultyStore::new(Arc::clone(&inner)));
        let guard = SoleHolder::take(inner, "fence", "test").await;
        let guard = guard.expect("memory takes the fence");
        let mut params = guard.empty_plane(Committer::new(Arc::clone(&store) as _));
        if !layer.is_empty() {
            let brought = params.layers.bring(layer).await;
            brought.expect("memory takes the layer");
            params.record.layer = layer.hash().clone();
        }
        let plane = Plane::open(params);
        let clock = Arc::new(Clock(Instant::now()));
        let registry = Registry::new(clock, authority, Vec::new());
        let site = Self {
            registry: Arc::new(registry.admitting(admission)),
            tenant: Tenant {
                name: "test".into(),
                plane: plane.await.expect("an empty plane opens"),
                base: Arc::new(kinds),
                settings: Arc::new(settings()),
            },
            store,
        };
        let namespace = r#"{"metadata":{"name":"ns"}}"#;
        let made = site.send(Ask::create("namespaces", namespace)).await;
        made.expect("the namespace is new");
        site
    }

    /// Sends one request and returns the tree of the answer.
    async fn send(&self, ask: Ask) -> Result<Value, ApiError> {
        let answer = self.registry.handle(&self.tenant, &ask.request()).await?;
        let AnswerBody::Slices(slices) = answer.body else {
            panic!("the answer is a stream");
        };
        Ok(tree(&String::from_utf8(slices.concat()).expect("JSON")))
    }

    /// Sends one request in a task of its own.
    fn spawn(&self, ask: Ask) -> JoinHandle<Result<Value, ApiError>> {
        let site = self.clone();
        tokio::spawn(async move { site.send(ask).await })
    }

    /// Returns a stored object of the namespace `ns`.
    fn stored(&self, resource: &str, name: &str) -> Option<ObjectRef> {
        let key = Key::new("", resource, Some("ns"), name);
        self.tenant.plane.snapshot().get(&key)
    }

    /// Returns the stored tree of a config map.
    fn config_map(&self, name: &str) -> Value {
        let object = self.stored("configmaps", name).expect("it is stored");
        tree(std::str::from_utf8(&object.body()).expect("JSON"))
    }

    async fn make(&self, name: &str, value: &str) {
        let body = format!(r#"{{"metadata":{{"name":"{name}"}},"data":{{"k":"{value}"}}}}"#);
        let made = self.send(Ask::create("configmaps", &body)).await;
        made.expect("it is new");
    }

    /// Makes the store withdraw everything that is written during the next [`UNSETTLED`]: one
    /// commit takes that long, and the store refuses the one behind it. `refused` is the patch that
    /// is refused.
    async fn unsettle(&self, refused: Ask) -> JoinHandle<Result<Value, ApiError>> {
        let plan = self.store.plan();
        plan.next_commit(CommitFault::Delay(UNSETTLED));
        plan.next_commit(CommitFault::Reject(Rejection::NoSpace("full".into())));
        let labelled = |label: &str| Ask {
            body: format!(r#"{{"metadata":{{"labels":{{"{label}":"1"}}}}}}"#),
            ..refused.clone()
        };
        let behind = labelled("behind");
        drop(self.spawn(labelled("before")));
        settle_down().await;
        let refused = self.spawn(refused);
        settle_down().await;
        // This patches the same object once more, so that later writes are in a commit of their
        // own.
        drop(self.spawn(behind));
        settle_down().await;
        refused
    }
}

/// Lets all tasks run until they wait for a timer.
async fn settle_down() {
    sleep(Duration::from_millis(1)).await;
}

fn kinds() -> KindTable {
    let plain = |_: &str, _: &str, _: &str| Some(Arc::new(Plain) as Arc<dyn Strategy>);
    let rows = include_bytes!("rows.json");
    let features = Arc::clone(&FEATURES);
    let table = KindTable::build(&[rows], Arc::clone(&SCHEMAS), features, &plain, 1);
    table.expect("the rows are sound")
}

fn settings() -> PlaneSettings {
    PlaneSettings {
        service_ranges: ServiceRange::new([10, 0, 0, 0], 28).into(),
        node_ports: (30000, 30003),
        serving_ca: Str::default(),
        endpoint: Str::default(),
        birth_layer: BirthLayer::fixed(""),
        records_say_access: crate::Shared::fixed(true),
        records_say_issuers: crate::Shared::fixed(true),
        records_say_suspension: crate::Shared::fixed(true),
        records_say_client_cas: crate::Shared::fixed(true),
        switched_off: crate::SwitchedOff::none(),
        watch_seconds_min: 1800,
        lifetimes: crate::settings::Lifetimes::default(),
        privileged: crate::settings::Privileged::Allowed,
    }
}

fn tree(text: &str) -> Value {
    parse(text.as_bytes(), &Limits::default())
        .expect("JSON")
        .value
}

/// A request in the namespace `ns`.
#[derive(Clone)]
struct Ask {
    verb: Verb,
    group: &'static str,
    version: &'static str,
    resource: &'static str,
    name: Option<Str>,
    subresource: Option<Str>,
    content_type: Option<&'static str>,
    body: String,
    query: Vec<(String, String)>,
    user: &'static str,
    patience: Duration,
    seats: Option<Arc<dyn Seats>>,
}

impl Ask {
    fn new(verb: Verb, resource: &'static str, name: Option<&str>) -> Self {
        Self {
            verb,
            group: "",
            version: "v1",
            resource,
            name: name.map(Str::from),
            subresource: None,
            content_type: None,
            body: String::new(),
            query: Vec::new(),
            user: "fast",
            patience: PATIENCE,
            seats: None,
        }
    }

    fn create(resource: &'static str, body: &str) -> Self {
        let mut ask = Self::new(Verb::Create, resource, None);
        ask.body = body.to_owned();
        ask
    }

    /// Creates a merge patch of a config map.
    fn patch(name: &str, body: &str) -> Self {
        Self::patch_of("configmaps", name, body)
    }

    fn patch_of(resource: &'static str, name: &str, body: &str) -> Self {
        let mut ask = Self::new(Verb::Patch, resource, Some(name));
        ask.content_type = Some("application/merge-patch+json");
        ask.body = body.to_owned();
        ask
    }

    /// Makes the request one of the user `slow`, about whose writes admission makes calls.
    fn slowly(mut self) -> Self {
        self.user = "slow";
        self
    }

    fn within(mut self, patience: Duration) -> Self {
        self.patience = patience;
        self
    }

    fn dry(mut self) -> Self {
        self.query.push(("dryRun".to_owned(), "All".to_owned()));
        self
    }

    fn request(&self) -> ResourceRequest {
        ResourceRequest {
            verb: self.verb,
            group: self.group.into(),
            version: self.version.into(),
            resource: self.resource.into(),
            namespace: (self.resource != "namespaces").then(|| "ns".into()),
            name: self.name.clone(),
            subresource: self.subresource.clone(),
            query: self.query.clone(),
            accept: String::new(),
            content_type: self.content_type.map(str::to_owned),
            user_agent: String::new(),
            body: self.body.clone().into(),
            user: Arc::new(UserInfo::new(self.user, &["system:masters"])),
            granted: GrantedAccess::of_every_cut(),
            deadline: Instant::now() + self.patience,
            seats: self.seats.clone(),
            write_rate: None,
            annotations: None,
            token_reviewer: None,
        }
    }
}
