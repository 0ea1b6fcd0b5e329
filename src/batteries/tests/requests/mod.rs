//! A registry over a plane in memory, which takes whole requests.

use bytes::Bytes;
use polyplane_apimachinery::schema::decode::Empties;
use polyplane_apimachinery::status::ApiError;
use polyplane_apimachinery::{Str, Value};
use polyplane_auth::{Masters, UserInfo};
use polyplane_batteries::catalog::tenant_kinds;
use polyplane_plane::{Flags, Key, NewObject, Operation, Plane, Write};
use polyplane_registry::environment::System;
use polyplane_registry::strategy::{BirthLayer, PlaneSettings, ServiceRange};
use polyplane_registry::{
    AnswerBody, Authority, KindTable, Permit, Registry, Resource, ResourceRequest, Tenant, Verb,
};
use std::sync::Arc;
use std::time::Duration;
use tokio::time::Instant;

/// A registry and the plane it serves.
pub struct Site {
    registry: Registry,
    tenant: Tenant,
}

impl Site {
    /// An empty plane.
    pub async fn open() -> Self {
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
            registry: Registry::new(Arc::new(System), Authority::fixed(Masters), Vec::new()),
            tenant: Tenant {
                name: "test".into(),
                plane: crate::plane::open().await,
                base: tenant_kinds(),
                settings: Arc::new(settings),
            },
        }
    }

    /// The kinds that the plane serves.
    pub fn kinds(&self) -> &Arc<KindTable> {
        &self.tenant.base
    }

    /// Its state.
    pub fn plane(&self) -> &Arc<Plane> {
        &self.tenant.plane
    }

    /// Stores an object as it is.
    pub async fn put(&self, row: &Resource, mut tree: Value) {
        tree.set(&["metadata", "creationTimestamp"], "2024-05-06T07:08:09Z");
        let schemas = self.kinds().schemas();
        let decoded = schemas.decode(row.stored_definition, &mut tree, Empties::Null);
        decoded.expect("it fits its schema");
        let encoded = schemas.encode_stored(row.stored_definition, &tree);
        let slot = encoded.version.expect("it has metadata");
        let deleted = !tree.str_at(&["metadata", "deletionTimestamp"]).is_empty();
        let object = NewObject {
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
        };
        let (storage, meta) = (&row.storage, &tree["metadata"]);
        let (namespace, name) = (meta.str_at(&["namespace"]), meta.str_at(&["name"]));
        let write = Write {
            operations: vec![Operation::Put {
                key: Key::new(&storage.group, &storage.resource, Some(namespace), name),
                object,
            }],
            claims: Vec::new(),
            deadline: None,
        };
        let written = self.tenant.plane.submit(write).await;
        written.expect("memory takes what is put");
    }

    /// Asks a subresource of an object in the default namespace.
    pub async fn ask_of(
        &self,
        verb: Verb,
        row: &Resource,
        name: &str,
        subresource: &str,
        body: String,
    ) -> Result<Vec<u8>, ApiError> {
        let request = ResourceRequest {
            group: row.group.clone(),
            version: row.version.clone(),
            resource: row.name.clone(),
            name: Some(name.into()),
            subresource: Some(subresource.into()),
            verb,
            namespace: Some("default".into()),
            query: Vec::new(),
            accept: String::new(),
            content_type: None,
            user_agent: String::new(),
            body: Bytes::from(body),
            user: Arc::new(UserInfo::new("admin", &["system:masters"])),
            permit: Permit::in_all_cuts(),
            deadline: Instant::now() + Duration::from_secs(30),
            seats: None,
        };
        let answer = self.registry.handle(&self.tenant, &request).await?;
        match answer.body {
            AnswerBody::Slices(slices) => Ok(slices.concat()),
            AnswerBody::Stream(_) => panic!("a subresource does not stream"),
        }
    }
}

/// Runs on a clock that moves on by itself while everything waits.
pub fn on_paused_clock<T>(work: impl Future<Output = T>) -> T {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .start_paused(true)
        .build();
    runtime.expect("a runtime can be built").block_on(work)
}
