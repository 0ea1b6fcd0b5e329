//! The queue of what has to be done, and who is told of writes.

use crate::dependents::{self, DependentWork, Dependents};
use crate::{control_planes, layers, namespaces, restore};
use parking_lot::Mutex;
use polyplane_apimachinery::Str;
use polyplane_apimachinery::status::ApiError;
use polyplane_batteries::bootstrap::{Release, Restore};
use polyplane_ownership::{Birth, Planes};
use polyplane_plane::{Flags, Key, ObjectRef, Prefix, Start};
use polyplane_registry::verbs::delete::Removal;
use polyplane_registry::{Observer, Registry, Resource, Tenant};
use std::collections::HashMap;
use std::sync::{Arc, OnceLock};
use std::time::Duration;
use tokio::sync::Semaphore;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

/// Reconcilers that run at once.
const RUNNING_MAX: usize = 32;
/// Planes that come to a newer layer at once.
const STEPPING_MAX: usize = 4;
/// How long a plane that woke answers before its layer is looked at.
const ANSWERS_FIRST: Duration = Duration::from_secs(1);
/// The first pause after a failure; it doubles up to the last.
const PAUSE_FIRST: Duration = Duration::from_millis(100);
const PAUSE_LAST: Duration = Duration::from_secs(30);

/// One thing that may need doing. Doing it twice is doing it once.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) enum WorkItem {
    /// A namespace that is deleted is emptied and goes.
    Namespace(Str),
    /// What every namespace has comes back.
    NamespaceContent(Str),
    /// An object of the layer comes back.
    Bootstrap(Key),
    /// A plane that is deleted is removed.
    ControlPlane(Str),
    /// The plane comes to this program's layer.
    Layer,
    /// A plane that woke is looked through for owners and dependents.
    Survey,
    /// Owners and dependents follow each other.
    Belonging(DependentWork),
}

/// What reconcilers need to know of a plane beside its tenant.
pub trait PlaneInfo: Send + Sync {
    /// All that deleting the plane of this name needs; `None` once it is gone.
    fn birth(&self, name: &str) -> Option<Birth>;
}

/// Everything reconcilers work with.
pub(crate) struct ReconcilerContext {
    pub(crate) registry: Arc<Registry>,
    pub(crate) planes: Arc<Planes>,
    pub(crate) info: Arc<dyn PlaneInfo>,
    pub(crate) release: Arc<Release>,
}

struct RunningItem {
    /// True if it has to run once more when it is done.
    again: bool,
}

/// Whether an item is done.
pub(crate) enum Progress {
    /// It is.
    Done,
    /// It waits for a write that will wake it.
    Waiting,
}

/// The reconcilers of all planes.
pub struct Reconcilers {
    context: OnceLock<ReconcilerContext>,
    jobs: Mutex<HashMap<(Str, WorkItem), RunningItem>>,
    dependents: Dependents,
    running: Arc<Semaphore>,
    stepping: Arc<Semaphore>,
    tasks: TaskTracker,
    stop: CancellationToken,
}

impl Default for Reconcilers {
    fn default() -> Self {
        Self {
            context: OnceLock::new(),
            jobs: Mutex::new(HashMap::new()),
            dependents: Dependents::default(),
            running: Arc::new(Semaphore::new(RUNNING_MAX)),
            stepping: Arc::new(Semaphore::new(STEPPING_MAX)),
            tasks: TaskTracker::new(),
            stop: CancellationToken::new(),
        }
    }
}

impl Reconcilers {
    /// Hands over what the reconcilers work with; until then nothing is done.
    pub fn attach(
        &self,
        registry: Arc<Registry>,
        planes: Arc<Planes>,
        info: Arc<dyn PlaneInfo>,
        release: Arc<Release>,
    ) {
        drop(self.context.set(ReconcilerContext {
            registry,
            planes,
            info,
            release,
        }));
    }

    /// Looks whether a plane is to come to this program's layer: when it woke, and when the
    /// store's floor has risen. One that is there costs nothing.
    pub fn check_layer(self: &Arc<Self>, tenant: &Tenant) {
        let Some(context) = self.context.get() else {
            return;
        };
        if layers::is_behind(context, tenant) {
            self.add(tenant, WorkItem::Layer);
        }
    }

    /// True for objects of the layer that come back at once.
    fn is_restored(&self, key: &Key) -> bool {
        let release = self.context.get().map(|context| &context.release);
        release.is_some_and(|release| release.restore(key) == Some(Restore::Now))
    }

    /// Looks through a plane that was just loaded for work that was left.
    pub fn plane_woke(self: &Arc<Self>, tenant: &Tenant) {
        self.add(tenant, WorkItem::Survey);
        self.check_layer(tenant);
        let cut = tenant.plane.snapshot();
        let namespaces = Prefix::resource("", "namespaces");
        for namespace in cut.range(&namespaces, Start::First) {
            if namespace.flags().has(Flags::TERMINATING) {
                self.add(tenant, WorkItem::Namespace(namespace.key().name().into()));
            }
        }
        let planes = Prefix::resource(control_planes::GROUP, control_planes::RESOURCE);
        for plane in cut.range(&planes, Start::First) {
            if plane.flags().has(Flags::DELETING) {
                self.add(tenant, WorkItem::ControlPlane(plane.key().name().into()));
            }
        }
    }

    /// Stops all reconcilers and waits for them.
    pub async fn stop(&self) {
        self.stop.cancel();
        self.tasks.close();
        self.tasks.wait().await;
    }

    pub(crate) fn add(self: &Arc<Self>, tenant: &Tenant, item: WorkItem) {
        if self.context.get().is_none() || self.stop.is_cancelled() {
            return;
        }
        let name = (Str::from(tenant.plane.id()), item.clone());
        {
            let mut jobs = self.jobs.lock();
            if let Some(job) = jobs.get_mut(&name) {
                job.again = true;
                return;
            }
            jobs.insert(name, RunningItem { again: false });
        }
        let (this, tenant) = (Arc::clone(self), tenant.clone());
        self.tasks
            .spawn(async move { this.run(tenant, item).await });
    }

    async fn run(self: Arc<Self>, tenant: Tenant, item: WorkItem) {
        let name = (Str::from(tenant.plane.id()), item.clone());
        let mut pause = PAUSE_FIRST;
        let mut _stepping = None;
        if item == WorkItem::Layer {
            tokio::select! {
                // A stopping server steps no further.
                biased;
                () = self.stop.cancelled() => return,
                () = tokio::time::sleep(ANSWERS_FIRST) => {}
            }
            _stepping = self.stepping.acquire().await.ok();
        }
        loop {
            let result = {
                let Ok(_place) = self.running.acquire().await else {
                    return;
                };
                self.reconcile(&tenant, &item).await
            };
            let retry = match result {
                Ok(Progress::Done | Progress::Waiting) => None,
                // Whoever owns the plane now looks through it recreate.
                Err(error) if error.is_moved() => None,
                Err(error) => {
                    tracing::warn!(plane = tenant.plane.id(), ?item, %error, "a reconciler failed");
                    Some(pause)
                }
            };
            {
                let mut jobs = self.jobs.lock();
                match jobs.get_mut(&name) {
                    Some(job) if job.again => job.again = false,
                    _ if retry.is_some() => {}
                    _ => {
                        jobs.remove(&name);
                        return;
                    }
                }
            }
            let Some(wait) = retry else { continue };
            tokio::select! {
                // A stopping server waits for nothing.
                biased;
                () = self.stop.cancelled() => return,
                () = tokio::time::sleep(wait) => {}
            }
            pause = (pause * 2).min(PAUSE_LAST);
        }
    }

    async fn reconcile(
        self: &Arc<Self>,
        tenant: &Tenant,
        item: &WorkItem,
    ) -> Result<Progress, ApiError> {
        let Some(context) = self.context.get() else {
            return Ok(Progress::Done);
        };
        match item {
            WorkItem::Namespace(name) => namespaces::empty(context, tenant, name).await,
            WorkItem::NamespaceContent(name) => {
                restore::namespace_content(context, tenant, name).await
            }
            WorkItem::Bootstrap(key) => restore::bootstrap(context, tenant, key).await,
            WorkItem::ControlPlane(name) => control_planes::remove(context, tenant, name).await,
            WorkItem::Layer => layers::take_steps(context, tenant).await,
            WorkItem::Survey => {
                for work in self.dependents.survey(tenant).await {
                    self.add(tenant, WorkItem::Belonging(work));
                }
                Ok(Progress::Done)
            }
            WorkItem::Belonging(DependentWork::Dependent(key)) => {
                dependents::dependent(context, tenant, key).await
            }
            WorkItem::Belonging(DependentWork::Owner(key)) => {
                dependents::owner(context, tenant, &self.dependents, key).await
            }
        }
    }
}

/// Told of every write by the registry.
pub struct WriteObserver(pub Arc<Reconcilers>);

impl Observer for WriteObserver {
    fn written(&self, tenant: &Tenant, row: &Resource, object: &ObjectRef, removal: Removal) {
        let key = object.key();
        let name = || Str::from(key.name());
        let gone = removal == Removal::Gone;
        match (row.group.as_str(), row.name.as_str()) {
            ("", "namespaces") if object.flags().has(Flags::TERMINATING) && !gone => {
                self.0.add(tenant, WorkItem::Namespace(name()));
            }
            (control_planes::GROUP, control_planes::RESOURCE)
                if object.flags().has(Flags::DELETING) && !gone =>
            {
                self.0.add(tenant, WorkItem::ControlPlane(name()));
            }
            _ => {}
        }
        for work in self.0.dependents.written(tenant, object, removal) {
            self.0.add(tenant, WorkItem::Belonging(work));
        }
        match key.namespace() {
            Some(namespace) if gone => self.0.gone_from_namespace(tenant, key, namespace),
            // Somebody may have changed it.
            Some(namespace) if row.group.is_empty() && restore::is_namespace_content(key) => {
                self.0
                    .add(tenant, WorkItem::NamespaceContent(namespace.into()));
            }
            Some(_) | None => {}
        }
        let absent = || tenant.plane.snapshot().get(key).is_none();
        if self.0.is_restored(key) && absent() {
            self.0.add(tenant, WorkItem::Bootstrap(key.clone()));
        }
    }
}

impl Reconcilers {
    fn gone_from_namespace(self: &Arc<Self>, tenant: &Tenant, key: &Key, namespace: &str) {
        let cut = tenant.plane.snapshot();
        if cut.get(key).is_some() {
            return;
        }
        let holder = cut.get(&Key::new("", "namespaces", None, namespace));
        match holder {
            Some(holder) if holder.flags().has(Flags::TERMINATING) => {
                self.add(tenant, WorkItem::Namespace(namespace.into()));
            }
            Some(_) if restore::is_namespace_content(key) => {
                self.add(tenant, WorkItem::NamespaceContent(namespace.into()));
            }
            _ => {}
        }
    }
}
