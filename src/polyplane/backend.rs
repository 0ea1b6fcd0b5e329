//! What stands behind the server: planes found by name, woken when somebody proven asks, and
//! answered by the registry.

use crate::directory::{Located, Missing, World};
use polyplane_apimachinery::status::ApiError;
use polyplane_auth::{
    Authenticator, Authorizer, ClientCa, Masters, PublicRules, StaticToken, StaticTokens,
    UnionAuthorizer, UserInfo, Verdict,
};
use polyplane_batteries::control_plane::{GROUP, RESOURCE};
use polyplane_controllers::Reconcilers;
use polyplane_plane::{Plane, Prefix};
use polyplane_registry::{Answer, KindTable, Registry, ResourceRequest, Tenant};
use polyplane_server::{
    Backend, BoxFuture, CheckScope, Exposition, HealthCheck, Kind, LocateError, Pki, Place,
    PlaneApi, PlaneRecord, PlaneReference,
};
use polyplane_storage::Health;
use std::collections::BTreeMap;
use std::sync::Arc;

/// The planes of one process, as the server sees them.
pub struct Planes {
    shared: Arc<Shared>,
}

/// What all planes of the process have in common.
pub struct Shared {
    /// Where planes are found.
    pub world: Arc<World>,
    /// What answers.
    pub registry: Arc<Registry>,
    /// Who is told that a plane woke.
    pub reconcilers: Arc<Reconcilers>,
    client_ca: ClientCa,
    tokens: StaticTokens,
    authorizer: Arc<dyn Authorizer>,
}

/// Who may do what, until roles are obeyed: masters everything, everybody health and version.
pub fn authorizer() -> Arc<dyn Authorizer> {
    Arc::new(UnionAuthorizer::new(vec![
        Arc::new(Masters),
        Arc::new(PublicRules),
    ]))
}

impl Planes {
    /// Puts the parts together.
    ///
    /// # Errors
    /// If the CA certificate cannot be used.
    pub fn new(
        world: Arc<World>,
        registry: Arc<Registry>,
        reconcilers: Arc<Reconcilers>,
        authorizer: Arc<dyn Authorizer>,
        pki: &Pki,
    ) -> anyhow::Result<Self> {
        let admin = UserInfo::new("admin", &["system:masters"]);
        let shared = Shared {
            world,
            registry,
            reconcilers,
            client_ca: ClientCa::new(std::slice::from_ref(pki.root()))?,
            tokens: StaticTokens::new(vec![StaticToken::new(pki.admin_token(), admin)]),
            authorizer,
        };
        Ok(Self {
            shared: Arc::new(shared),
        })
    }
}

impl Backend for Planes {
    fn locate<'a>(
        &'a self,
        plane: PlaneReference<'a>,
    ) -> Verdict<'a, Result<Arc<dyn PlaneRecord>, LocateError>> {
        let found = match plane {
            PlaneReference::Root => Ok(Target::Root),
            PlaneReference::Named(name) => self.shared.world.named(name).map(Target::Plane),
            PlaneReference::Id("root") => Ok(Target::Root),
            PlaneReference::Id(id) => self.shared.world.by_id(id).map(Target::Plane),
        };
        let shared = Arc::clone(&self.shared);
        Verdict::now(match found {
            Ok(target) => Ok(Arc::new(Record { shared, target }) as Arc<dyn PlaneRecord>),
            Err(Missing::NotFound) => Err(LocateError::NotFound),
            Err(Missing::Deleting) => Err(LocateError::Deleting),
        })
    }

    fn checks(&self) -> Vec<HealthCheck> {
        let store = Arc::clone(self.shared.world.planes.store());
        let world = Arc::clone(&self.shared.world);
        vec![
            HealthCheck {
                name: "etcd",
                scope: CheckScope::Ready,
                check: Arc::new(move || match store.health() {
                    Health::Ok => Ok(()),
                    Health::ReadOnly { reason } | Health::Failed { reason } => Err(reason),
                }),
            },
            HealthCheck {
                name: "root-plane",
                scope: CheckScope::Ready,
                check: Arc::new(move || match world.root.get() {
                    Some(_) => Ok(()),
                    None => Err("the root plane is not loaded yet".to_owned()),
                }),
            },
        ]
    }

    fn measure(&self, out: &mut Exposition) {
        let world = &self.shared.world;
        let awake = world.planes.all_awake();
        out.family(
            "polyplane_planes_awake",
            Kind::Gauge,
            "Control planes whose state is in memory.",
        );
        out.sample("polyplane_planes_awake", &[], awake.len());
        if let Some(root) = world.root.get() {
            let planes = root
                .plane
                .snapshot()
                .count(&Prefix::resource(GROUP, RESOURCE));
            out.family(
                "polyplane_planes",
                Kind::Gauge,
                "Control planes, the root aside.",
            );
            out.sample("polyplane_planes", &[], planes);
        }
        let status = world.planes.store().status();
        out.family(
            "polyplane_store_used_bytes",
            Kind::Gauge,
            "Bytes the store holds on disk, or in memory if it has none.",
        );
        out.sample("polyplane_store_used_bytes", &[], status.used_bytes);
        let writable = i32::from(status.health == Health::Ok);
        out.family(
            "polyplane_store_writable",
            Kind::Gauge,
            "1 if the store takes writes, else 0.",
        );
        out.sample("polyplane_store_writable", &[], writable);
        measure_planes(&awake, out);
    }
}

/// Figures over all awake planes together: none has series of its own.
fn measure_planes(awake: &[Arc<Plane>], out: &mut Exposition) {
    let mut objects: BTreeMap<String, usize> = BTreeMap::new();
    let (mut watchers, mut log_bytes, mut queued) = (0, 0, 0);
    for plane in awake {
        let stats = plane.stats();
        watchers += stats.watchers;
        log_bytes += stats.log_bytes;
        queued += stats.queued;
        let cut = plane.snapshot();
        for prefix in cut.resources() {
            *objects.entry(resource_of(prefix)).or_default() += cut.count(prefix);
        }
    }
    for (name, help, value) in [
        ("polyplane_watchers", "Open watches.", watchers),
        (
            "polyplane_log_bytes",
            "Bytes of the logs that watches read.",
            log_bytes,
        ),
        (
            "polyplane_writes_queued",
            "Writes that wait for a transaction.",
            queued,
        ),
    ] {
        out.family(name, Kind::Gauge, help);
        out.sample(name, &[], value);
    }
    let name = "apiserver_resource_objects";
    out.family(
        name,
        Kind::Gauge,
        "Objects of awake control planes, by resource.",
    );
    for (resource, count) in &objects {
        out.sample(name, &[("resource", resource)], count);
    }
}

/// `deployments.apps`, as the metric names a resource.
fn resource_of(prefix: &Prefix) -> String {
    let text = String::from_utf8_lossy(prefix.as_bytes());
    let mut parts = text.trim_end_matches('/').splitn(2, '/');
    match (parts.next(), parts.next()) {
        (Some(""), Some(resource)) => resource.to_owned(),
        (Some(group), Some(resource)) => format!("{resource}.{group}"),
        _ => text.into_owned(),
    }
}

enum Target {
    Root,
    Plane(Arc<Located>),
}

/// A plane that was found.
struct Record {
    shared: Arc<Shared>,
    target: Target,
}

impl PlaneRecord for Record {
    fn name(&self) -> &str {
        match &self.target {
            Target::Root => "root",
            Target::Plane(located) => &located.name,
        }
    }

    fn id(&self) -> &str {
        match &self.target {
            Target::Root => "root",
            Target::Plane(located) => located.id(),
        }
    }

    fn place(&self) -> Place {
        Place::Here
    }

    fn client_ca(&self) -> &ClientCa {
        &self.shared.client_ca
    }

    fn bearer(&self) -> &dyn Authenticator {
        &self.shared.tokens
    }

    fn wake(&self) -> Verdict<'_, Result<Arc<dyn PlaneApi>, LocateError>> {
        let located = match &self.target {
            Target::Root => {
                let root = self.shared.world.root.get().cloned();
                let api = root.map(|tenant| Api {
                    shared: Arc::clone(&self.shared),
                    tenant,
                });
                return Verdict::now(match api {
                    Some(api) => Ok(Arc::new(api) as Arc<dyn PlaneApi>),
                    None => Err(LocateError::Unavailable),
                });
            }
            Target::Plane(located) => located,
        };
        if let Some(api) = located.awake(&self.shared.world) {
            return Verdict::now(Ok(api as Arc<dyn PlaneApi>));
        }
        Verdict::later(async move {
            let shared = Arc::clone(&self.shared);
            let woken = located.wake(&self.shared.world, |tenant| {
                shared.reconcilers.woke(&tenant);
                Api { shared, tenant }
            });
            match woken.await {
                Ok(api) => Ok(api as Arc<dyn PlaneApi>),
                Err(polyplane_ownership::WakeError::Deleted) => Err(LocateError::Deleting),
                Err(error) => {
                    let error = anyhow::Error::from(error);
                    tracing::error!(plane = %located.name, "cannot wake: {error:#}");
                    Err(LocateError::Unavailable)
                }
            }
        })
    }
}

/// An awake plane.
pub struct Api {
    shared: Arc<Shared>,
    /// The plane with its kinds.
    pub tenant: Tenant,
}

impl PlaneApi for Api {
    fn kinds(&self) -> Arc<KindTable> {
        Arc::clone(&self.tenant.kinds)
    }

    fn authorizer(&self) -> &dyn Authorizer {
        self.shared.authorizer.as_ref()
    }

    fn handle(&self, request: ResourceRequest) -> BoxFuture<'_, Result<Answer, ApiError>> {
        Box::pin(async move { self.shared.registry.handle(&self.tenant, &request).await })
    }
}
