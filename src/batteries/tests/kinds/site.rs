//! A registry over a plane in memory that handles whole requests.

use crate::shared;
use crate::shared::plane::{self, Opening};
use bytes::Bytes;
use polyplane_apimachinery::schema::decode::Empties;
use polyplane_apimachinery::{Str, Value, json};
use polyplane_auth::{Masters, UserInfo};
use polyplane_batteries::kind_tables::tenant_kinds;
use polyplane_plane::{Flags, Key, NewObject, Operation};
use polyplane_registry::environment::{Environment, System};
use polyplane_registry::settings::PlaneSettings;
use polyplane_registry::{
    AnswerBody, Authority, GrantedAccess, Registry, Resource, ResourceRequest, Tenant, Verb,
};
use std::sync::Arc;
use std::time::Duration;
use tokio::time::Instant;

/// Settings with 14 service addresses and four node ports.
pub fn settings() -> PlaneSettings {
    shared::settings(28, (30000, 30003), "CERTIFICATE")
}

/// An answer, or code and message of a refusal.
pub type Reply = Result<Value, (u16, String)>;

/// A plane and its registry.
pub struct Site {
    pub registry: Registry,
    pub tenant: Tenant,
}

impl Site {
    /// Creates a plane without objects.
    pub async fn open() -> Self {
        Self::with(Arc::new(System), Opening::default()).await
    }

    /// Opens a site in this environment, on a store of its own.
    pub async fn with(environment: Arc<dyn Environment>, opening: Opening) -> Self {
        Self {
            registry: Registry::new(environment, Authority::fixed(Masters), Vec::new()),
            tenant: Tenant {
                name: "test".into(),
                plane: plane::open(opening).await,
                base: tenant_kinds(),
                settings: Arc::new(settings()),
            },
        }
    }

    /// Stores an object of the core group in the default namespace, without going through the
    /// registry.
    pub async fn put(&self, resource: &str, name: &str, mut tree: Value) {
        let row = self.tenant.base.stored("", resource);
        tree.set(&["metadata", "name"], name);
        tree.set(&["metadata", "namespace"], "default");
        tree.set(&["metadata", "uid"], name);
        self.put_whole(row.expect("the kind is stored"), tree).await;
    }

    /// Carries out a request whose answer is short.
    pub async fn send(&self, request: &ResourceRequest) -> Reply {
        let answer = self.registry.handle(&self.tenant, request).await;
        let answer = answer.map_err(|error| (error.code, error.message))?;
        let AnswerBody::Slices(slices) = answer.body else {
            panic!("the answer is short");
        };
        let parsed = json::parse(&slices.concat(), &json::Limits::default());
        Ok(parsed.expect("answers are JSON").value)
    }

    /// Stores an object exactly as given.
    pub async fn put_whole(&self, row: &Resource, tree: Value) {
        plane::submit(&self.tenant.plane, vec![put(row, tree)]).await;
    }
}

/// Returns the operation that stores an object without going through the registry.
pub fn put(row: &Resource, mut tree: Value) -> Operation {
    tree.set(&["metadata", "creationTimestamp"], "2024-05-06T07:08:09Z");
    let kinds = tenant_kinds();
    let schemas = kinds.schemas();
    let decoded = schemas.decode(row.stored_definition, &mut tree, Empties::Null);
    decoded.expect("it fits its schema");
    let encoded = schemas.encode_stored(row.stored_definition, &tree);
    let slot = encoded.version.expect("it has metadata");
    let deleted = !tree.str_at(&["metadata", "deletionTimestamp"]).is_empty();
    let (storage, meta) = (&row.storage, &tree["metadata"]);
    let namespace = Some(meta.str_at(&["namespace"])).filter(|name| !name.is_empty());
    let name = meta.str_at(&["name"]);
    Operation::Put {
        key: Key::new(&storage.group, &storage.resource, namespace, name),
        object: NewObject {
            body: encoded.bytes.into(),
            version_slot: slot.following(),
            labels: encoded.labels,
            storage_version: row.storage.version.clone(),
            expires: None,
            flags: if deleted {
                Flags::NONE.with(Flags::DELETING)
            } else {
                Flags::NONE
            },
        },
    }
}

/// Returns an administrator's request for a resource of the core group in the default namespace.
pub fn request(verb: Verb, resource: &str) -> ResourceRequest {
    ResourceRequest {
        verb,
        group: Str::default(),
        version: "v1".into(),
        resource: resource.into(),
        namespace: Some("default".into()),
        name: None,
        subresource: None,
        query: Vec::new(),
        accept: String::new(),
        content_type: None,
        user_agent: String::new(),
        body: Bytes::new(),
        user: Arc::new(UserInfo::new("admin", &["system:masters"])),
        granted: GrantedAccess::of_every_cut(),
        deadline: Instant::now() + Duration::from_secs(30),
        seats: None,
        write_rate: None,
        annotations: None,
        token_reviewer: None,
    }
}

/// Runs `work` with a clock that jumps to the next timer while all tasks wait.
pub fn on_paused_clock<T>(work: impl Future<Output = T>) -> T {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .start_paused(true)
        .build();
    runtime.expect("a runtime can be built").block_on(work)
}
