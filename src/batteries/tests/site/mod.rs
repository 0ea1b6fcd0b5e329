//! One plane in memory behind a registry.

use polyplane_apimachinery::schema::decode::Empties;
use polyplane_apimachinery::{Str, Value};
use polyplane_auth::Masters;
use polyplane_batteries::catalog::tenant_kinds;
use polyplane_plane::{
    Committer, Flags, Key, Layer, Layers, LogBounds, Memory, NewObject, Operation, Plane,
    PlaneParams, PlaneRecord, SoleHolder, Version, Write,
};
use polyplane_registry::environment::{Environment, System};
use polyplane_registry::strategy::{BirthLayer, PlaneSettings, ServiceRange};
use polyplane_registry::{Authority, Registry, Tenant};
use polyplane_storage::{MemoryOptions, MemoryStore, Revision};
use std::sync::Arc;

/// An environment where no time passes, so that equal questions have equal answers.
pub struct Still;

impl Environment for Still {
    fn now(&self) -> i64 {
        1_715_000_000
    }

    fn uid(&self) -> Str {
        System.uid()
    }

    fn random(&self, bytes: &mut [u8]) {
        System.random(bytes);
    }
}

/// A plane and its registry.
pub struct Site {
    pub registry: Registry,
    pub tenant: Tenant,
}

impl Site {
    /// A plane without objects.
    pub async fn open() -> Self {
        Self::with(Arc::default(), LogBounds::default()).await
    }

    /// The same with bounds of its own.
    pub async fn with(memory: Arc<Memory>, log: LogBounds) -> Self {
        let store: Arc<dyn polyplane_storage::Store> =
            Arc::new(MemoryStore::new(MemoryOptions::default()));
        let guard = SoleHolder::take(Arc::clone(&store), "fence", "test").await;
        let plane = Plane::open(PlaneParams {
            record: PlaneRecord {
                id: "test".into(),
                base: 0,
                birth: None,
                layer: Layer::empty().hash().clone(),
                params: Default::default(),
            },
            born: Version::from_raw(256),
            born_at: "2024-05-06T07:08:09Z".into(),
            layers: Layers::new(Arc::clone(&store)),
            uid_seed: [0; 32],
            indexes: polyplane_batteries::core::indexes(),
            derivation: None,
            committer: Committer::with_memory(store, Arc::clone(&memory)),
            guard: guard.expect("memory takes the fence"),
            acquired: Revision(1),
            log,
            foreign: None,
            import: None,
        });
        let settings = PlaneSettings {
            service_range: ServiceRange {
                base: [10, 0, 0, 0].into(),
                bits: 28,
            },
            node_ports: (30000, 30003),
            serving_ca: "CERTIFICATE".into(),
            endpoint: Str::default(),
            birth_layer: BirthLayer::fixed(""),
        };
        Self {
            registry: Registry::new(Arc::new(Still), Authority::fixed(Masters), Vec::new()),
            tenant: Tenant {
                name: "test".into(),
                plane: plane.await.expect("an empty plane opens"),
                base: tenant_kinds(),
                settings: Arc::new(settings),
            },
        }
    }

    /// Puts an object as if it had been stored.
    pub async fn put(&self, resource: &str, name: &str, mut tree: Value) {
        let kinds = &self.tenant.base;
        let row = kinds.stored("", resource).expect("the kind is stored");
        tree.set(&["metadata", "name"], name);
        tree.set(&["metadata", "namespace"], "default");
        tree.set(&["metadata", "uid"], name);
        tree.set(&["metadata", "creationTimestamp"], "2024-05-06T07:08:09Z");
        let schemas = kinds.schemas();
        let decoded = schemas.decode(row.stored_definition, &mut tree, Empties::Null);
        decoded.expect("it fits its schema");
        let encoded = schemas.encode_stored(row.stored_definition, &tree);
        let slot = encoded.version.expect("it has metadata");
        let object = NewObject {
            body: encoded.bytes.into(),
            version_slot: slot.following(),
            labels: encoded.labels,
            storage_version: row.storage.version.clone(),
            expires: None,
            flags: Flags::NONE,
        };
        let write = Write {
            operations: vec![Operation::Put {
                key: Key::new("", resource, Some("default"), name),
                object,
            }],
            claims: Vec::new(),
            deadline: None,
        };
        let written = self.tenant.plane.submit(write).await;
        written.expect("memory takes what is put");
    }
}

/// Runs on a clock that jumps to the next timer.
pub fn on_paused_clock<T>(work: impl Future<Output = T>) -> T {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .start_paused(true)
        .build();
    runtime.expect("a runtime can be built").block_on(work)
}
