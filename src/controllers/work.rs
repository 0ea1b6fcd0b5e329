//! The queue of reconcilers. This module decides when and how often a reconciler runs; it does not know what a
//! reconciler does, and [`crate::observer`] knows which writes cause work.

use crate::charged::charged;
use crate::client::OwnClient;
use crate::dependents::{self, DependentWork, Dependents};
use crate::protection::ProtectedSet;
use crate::token_secrets::DeletedSecret;
use crate::{
    api_services, authentication_cas, bootstrap_roles, certificates, control_planes, definitions,
    flow_schemas, layers, namespaces, protection, quotas, restore, roles, service_ranges,
    token_secrets,
};
use futures_util::FutureExt;
use futures_util::future::BoxFuture;
use parking_lot::Mutex;
use polyplane_apimachinery::Str;
use polyplane_apimachinery::status::{ApiError, Reason};
use polyplane_apimachinery::time::Timestamp;
use polyplane_auth::Purpose;
use polyplane_batteries::bootstrap::{Release, Restore};
use polyplane_batteries::polyplane::controllers::{Controller, Controllers};
use polyplane_fairness::{Places, PlaneMeter, VirtualTime};
use polyplane_ownership::{Birth, Planes};
use polyplane_pki::PlaneCa;
use polyplane_plane::{Flags, Key, Plane, Prefix, Start};
use polyplane_registry::Tenant;
use std::collections::HashMap;
use std::panic::AssertUnwindSafe;
use std::sync::{Arc, OnceLock};
use std::time::{Duration, SystemTime};
use tokio::sync::Semaphore;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

/// Reconcilers that run at once, without those that run because their plane has none and has waited. More would use
/// memory and the store at the expense of clients.
const RUNNING: usize = 32;
/// How many times as many may run with those. With more, reconcilers that wait for the store would pile up; with fewer,
/// a plane would wait for the slow webhooks of others.
const RUNNING_TIMES_MAX: usize = 2;
/// Planes that step to a newer layer at once. More would delay clients' writes.
const STEPPING_MAX: usize = 4;
/// How long a plane that woke only serves requests before its layer is checked. A step would slow
/// the requests that woke it.
const ANSWERS_FIRST: Duration = Duration::from_secs(1);
/// The first pause after a failure. Each further pause is twice as long, up to `PAUSE_LAST`.
const PAUSE_FIRST: Duration = Duration::from_millis(100);
/// The longest pause after failures. A reconciler notices at most this much later that its problem
/// has gone.
const PAUSE_LAST: Duration = Duration::from_secs(30);

/// One item of work. Doing it twice has the same effect as doing it once.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) enum WorkItem {
    /// Empty a deleted namespace and remove it.
    Namespace(Str),
    /// Recreate the objects that every namespace has.
    NamespaceContent(Str),
    /// Recreate an object of the layer.
    Bootstrap(Key),
    /// Finish the deletion of the definition of a kind, or look again at its names.
    Definition(Str),
    /// Write the rules of aggregated roles.
    Aggregation,
    /// Bring the bootstrap roles of a plane that was loaded up to date.
    BootstrapRoles,
    /// Remove a deleted plane.
    ControlPlane(Str),
    /// Show the secondary range of service addresses, and that the ranges can be used.
    ServiceRanges,
    /// Keep the APIServices of custom kinds.
    ApiServices,
    /// Step the plane to this program's layer.
    Layer,
    /// Search a plane that woke for pending work of all objects that can have any.
    Survey,
    /// Count what the objects of a namespace take of its quotas.
    Quotas(Str),
    /// Write whether the priority levels of flow schemas exist.
    FlowSchemas,
    /// Show the CAs that the plane accepts now.
    AuthenticationCas,
    /// Let a deleted storage object go that is not in use any more, or protect one that is not. Let a claim show
    /// whether it is in use.
    Protected(Key),
    /// Look at all storage objects that a write may have freed, or taken into use.
    ProtectedOf(ProtectedSet),
    /// Fill a Secret for a token, or delete it.
    TokenSecret(Key),
    /// Remove a deleted Secret for a token from its account's list.
    DeletedSecret(DeletedSecret),
    /// Write down that the token of a Secret was used.
    TokenUse(Key),
    /// Write down since when that is done.
    TokenTracking,
    /// Approve a kubelet's certificate signing request.
    ApproveCertificate(Str),
    /// Sign a certificate signing request.
    SignCertificate(Str),
    /// Look again at the certificate signing requests that nobody decided on.
    Certificates,
    /// Delete the certificate signing requests that are done with.
    CleanCertificates,
    /// Delete a dependent, or finish the deletion of an owner.
    Belonging(DependentWork),
}

impl WorkItem {
    /// Returns the controller whose work it is; `None` if it is the server's own, or of several.
    fn controller(&self) -> Option<Controller> {
        match self {
            Self::Namespace(_) => Some(Controller::Namespace),
            Self::Aggregation => Some(Controller::ClusterRoleAggregation),
            Self::Protected(key) => protection::controller(key),
            Self::TokenSecret(_) | Self::DeletedSecret(_) => Some(Controller::ServiceAccountToken),
            Self::Belonging(_) => Some(Controller::GarbageCollector),
            Self::ApproveCertificate(_) => Some(Controller::CertificateApproving),
            Self::SignCertificate(_) => Some(Controller::CertificateSigning),
            Self::CleanCertificates => Some(Controller::CertificateCleaner),
            // The server has a part in quotas without the controller.
            Self::Quotas(_)
            | Self::NamespaceContent(_)
            | Self::Bootstrap(_)
            | Self::BootstrapRoles
            | Self::ProtectedOf(_)
            | Self::FlowSchemas
            | Self::AuthenticationCas
            | Self::TokenUse(_)
            | Self::TokenTracking
            | Self::Definition(_)
            | Self::ControlPlane(_)
            | Self::ServiceRanges
            | Self::ApiServices
            | Self::Layer
            | Self::Certificates
            | Self::Survey => None,
        }
    }
}

/// Facts about a plane that reconcilers need and that are not in the plane itself.
pub trait PlaneInfo: Send + Sync {
    /// Returns what is needed to delete the plane of this name; `None` once the plane is gone.
    fn birth(&self, name: &str) -> Option<Birth>;

    /// Returns the controllers that the owner of the plane with this id runs.
    fn controllers(&self, id: &str) -> Controllers;

    /// Returns the CA with which the plane with this id signs for a purpose now; `None` if it never
    /// signs anything.
    ///
    /// # Errors
    /// Returns an error if the plane cannot sign yet.
    fn signing_ca(&self, id: &str, purpose: Purpose) -> Result<Option<PlaneCa>, ApiError>;

    /// Returns the time before which the credentials of a user of the plane with this id ended;
    /// `None` if none did.
    fn revoked_before(&self, id: &str, user: &str) -> Option<SystemTime>;
}

/// Everything that reconcilers use.
pub(crate) struct ReconcilerContext {
    pub(crate) client: OwnClient,
    pub(crate) planes: Arc<Planes>,
    pub(crate) info: Arc<dyn PlaneInfo>,
    pub(crate) release: Arc<Release>,
}

/// A plane as it woke once, by its address, which no other has while its work holds it. A plane that has woken again
/// has jobs of its own: those of its earlier instance end at the first write.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
struct PlaneInstance(usize);

impl PlaneInstance {
    fn of(plane: &Arc<Plane>) -> Self {
        Self(Arc::as_ptr(plane).addr())
    }
}

struct RunningItem {
    /// True if the item was queued again while it ran, so that it has to run once more.
    again: bool,
}

/// Whether an item needs no further run.
pub(crate) enum Progress {
    /// The item needs no further run.
    Done,
    /// The item waits for a write, which will queue it again.
    Waiting,
}

/// The reconcilers of all planes.
pub struct Reconcilers {
    context: OnceLock<ReconcilerContext>,
    jobs: Mutex<HashMap<PlaneInstance, HashMap<WorkItem, RunningItem>>>,
    pub(crate) dependents: Dependents,
    places: Arc<Places>,
    /// Charged for what is done for a plane that has no meter.
    unmetered: Arc<PlaneMeter>,
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
            places: Places::new(Arc::default(), RUNNING_TIMES_MAX),
            unmetered: Arc::default(),
            stepping: Arc::new(Semaphore::new(STEPPING_MAX)),
            tasks: TaskTracker::new(),
            stop: CancellationToken::new(),
        }
    }
}

impl Reconcilers {
    /// Returns the virtual time of all planes, in which requests must have their turns too: what
    /// reconcilers do for a plane counts as its own work.
    #[must_use]
    pub fn virtual_time(&self) -> Arc<VirtualTime> {
        Arc::clone(self.places.time())
    }

    /// Sets the client and planes that the reconcilers use. Before that, nothing is queued.
    pub fn attach(
        &self,
        client: OwnClient,
        planes: Arc<Planes>,
        info: Arc<dyn PlaneInfo>,
        release: Arc<Release>,
    ) {
        drop(self.context.set(ReconcilerContext {
            client,
            planes,
            info,
            release,
        }));
    }

    /// Queues the step to this program's layer if the plane is behind it. Called when the plane
    /// wakes and when the store's floor rises.
    pub fn check_layer(self: &Arc<Self>, tenant: &Tenant) {
        let Some(context) = self.context.get() else {
            return;
        };
        if layers::is_behind(context, tenant) {
            self.add(tenant, WorkItem::Layer);
        }
    }

    /// Returns true for objects of the layer that are recreated at once, but not for those that
    /// every namespace has.
    pub(crate) fn is_restored(&self, key: &Key) -> bool {
        if restore::is_namespace_content(key) {
            return false;
        }
        let release = self.context.get().map(|context| &context.release);
        release.is_some_and(|release| release.restore(key) == Some(Restore::Now))
    }

    /// Queues the deletion of certificate signing requests that are done with. Called at intervals
    /// for planes that are awake; one that wakes is searched when it wakes.
    pub fn clean(self: &Arc<Self>, tenant: &Tenant) {
        if certificates::exist(tenant) {
            self.add(tenant, WorkItem::CleanCertificates);
        }
    }

    pub(crate) fn add_certificate(self: &Arc<Self>, tenant: &Tenant, name: Str) {
        self.add(tenant, WorkItem::ApproveCertificate(name.clone()));
        self.add(tenant, WorkItem::SignCertificate(name));
    }

    /// Searches a plane for the work of controllers that may have been switched on.
    pub fn controllers_changed(self: &Arc<Self>, tenant: &Tenant) {
        self.search(tenant);
        for namespace in restore::incomplete(tenant) {
            self.add(tenant, WorkItem::NamespaceContent(namespace));
        }
    }

    /// Queues the work of all certificate signing requests that may have any.
    async fn add_certificates(self: &Arc<Self>, tenant: &Tenant) {
        for name in certificates::pending(tenant).await {
            self.add_certificate(tenant, name);
        }
    }

    /// Lets a plane that is awake show its new keys. A plane that wakes later shows them by itself.
    pub fn keys_changed(self: &Arc<Self>, tenant: &Tenant) {
        self.add(tenant, WorkItem::AuthenticationCas);
    }

    /// Writes down, once a day, that the token of a Secret was used.
    pub fn token_used(self: &Arc<Self>, tenant: &Tenant, secret: &Key) {
        let now = Timestamp::from(SystemTime::now()).seconds;
        let found = tenant.plane.snapshot().get(secret);
        if found.is_some_and(|secret| token_secrets::is_use_unknown(&secret, now)) {
            self.add(tenant, WorkItem::TokenUse(secret.clone()));
        }
    }

    /// Brings the roles of a plane that was just loaded up to date, and searches it for pending work.
    pub fn plane_woke(self: &Arc<Self>, tenant: &Tenant) {
        self.add(tenant, WorkItem::BootstrapRoles);
        self.search(tenant);
    }

    fn search(self: &Arc<Self>, tenant: &Tenant) {
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

    /// Stops all reconcilers and waits until they have ended.
    pub async fn stop(&self) {
        self.stop.cancel();
        self.tasks.close();
        self.tasks.wait().await;
    }

    pub(crate) fn add(self: &Arc<Self>, tenant: &Tenant, item: WorkItem) {
        if self.context.get().is_none() || self.stop.is_cancelled() {
            return;
        }
        {
            let mut jobs = self.jobs.lock();
            let of_plane = jobs.entry(PlaneInstance::of(&tenant.plane)).or_default();
            if let Some(job) = of_plane.get_mut(&item) {
                job.again = true;
                return;
            }
            of_plane.insert(item.clone(), RunningItem { again: false });
        }
        let (this, tenant) = (Arc::clone(self), tenant.clone());
        self.tasks
            .spawn(async move { this.run(tenant, item).await });
    }

    /// Returns whether a plane has work that runs, or runs again after it failed. It must not fall asleep meanwhile:
    /// nothing would wake it for the rest.
    #[must_use]
    pub fn has_work(&self, plane: &Arc<Plane>) -> bool {
        let jobs = self.jobs.lock();
        jobs.contains_key(&PlaneInstance::of(plane))
    }

    /// Ends a job, unless its item was queued again while it ran or has to be tried again. Returns whether it ended.
    fn end_job(&self, plane: PlaneInstance, item: &WorkItem, is_retried: bool) -> bool {
        let mut jobs = self.jobs.lock();
        let Some(of_plane) = jobs.get_mut(&plane) else {
            return true;
        };
        match of_plane.get_mut(item) {
            Some(job) if job.again => {
                job.again = false;
                return false;
            }
            _ if is_retried => return false,
            _ => {}
        }
        of_plane.remove(item);
        if of_plane.is_empty() {
            jobs.remove(&plane);
        }
        true
    }

    async fn run(self: Arc<Self>, tenant: Tenant, item: WorkItem) {
        let mut pause = PAUSE_FIRST;
        let mut _stepping = None;
        if item == WorkItem::Layer {
            tokio::select! {
                // First: a stopping server steps no plane.
                biased;
                () = self.stop.cancelled() => return,
                () = tokio::time::sleep(ANSWERS_FIRST) => {}
            }
            _stepping = self.stepping.acquire().await.ok();
        }
        loop {
            let result = {
                let meter = tenant.plane.meter().unwrap_or(&self.unmetered);
                // Its cost is charged as it arises, and says nothing of what a request will cost.
                let _place = self.places.enter(meter, RUNNING).await;
                charged(meter, self.boxed(&tenant, &item)).await
            };
            let retry = match result {
                Ok(Progress::Done | Progress::Waiting) => None,
                // The plane has another owner now, which searches the plane for this work.
                Err(error) if error.is_moved() => None,
                // Somebody else has changed the object meanwhile.
                Err(error) if error.reason == Reason::Conflict => Some(PAUSE_FIRST),
                Err(error) => {
                    tracing::warn!(plane = tenant.plane.id(), ?item, %error, "a reconciler failed");
                    Some(pause)
                }
            };
            let plane = PlaneInstance::of(&tenant.plane);
            if self.end_job(plane, &item, retry.is_some()) {
                return;
            }
            let Some(wait) = retry else { continue };
            tokio::select! {
                // First: a stopping server retries nothing.
                biased;
                () = self.stop.cancelled() => return,
                () = tokio::time::sleep(wait) => {}
            }
            pause = (pause * 2).min(PAUSE_LAST);
        }
    }

    /// Boxes a run, because its future is large and very many items may wait for a place. A panic is an error like
    /// others: it would leave the job behind, and its item would never run again.
    fn boxed<'a>(
        self: &'a Arc<Self>,
        tenant: &'a Tenant,
        item: &'a WorkItem,
    ) -> BoxFuture<'a, Result<Progress, ApiError>> {
        let run = AssertUnwindSafe(self.reconcile(tenant, item)).catch_unwind();
        Box::pin(run.map(|done| done.unwrap_or_else(|_| Err(ApiError::internal("it panicked")))))
    }

    async fn reconcile(
        self: &Arc<Self>,
        tenant: &Tenant,
        item: &WorkItem,
    ) -> Result<Progress, ApiError> {
        let Some(context) = self.context.get() else {
            return Ok(Progress::Done);
        };
        let controllers = context.info.controllers(tenant.plane.id());
        if item.controller().is_some_and(|one| !controllers.has(one)) {
            // Once it is switched on, the plane is searched for this work.
            return Ok(Progress::Done);
        }
        match item {
            WorkItem::Namespace(name) => namespaces::empty(&context.client, tenant, name).await,
            WorkItem::NamespaceContent(name) => {
                restore::namespace_content(context, tenant, name, controllers).await
            }
            WorkItem::Bootstrap(key) => restore::bootstrap(&context.client, tenant, key).await,
            WorkItem::Definition(name) => definitions::settle(&context.client, tenant, name).await,
            WorkItem::Aggregation => roles::aggregate(context, tenant).await,
            WorkItem::BootstrapRoles => {
                bootstrap_roles::bring_up_to_date(&context.client, &context.release, tenant).await
            }
            WorkItem::Quotas(namespace) => {
                quotas::count(context, tenant, namespace, controllers).await
            }
            WorkItem::FlowSchemas => flow_schemas::report(context, tenant).await,
            WorkItem::AuthenticationCas => authentication_cas::publish(context, tenant).await,
            WorkItem::Protected(key) => protection::settle(&context.client, tenant, key).await,
            WorkItem::ProtectedOf(set) => {
                for key in protection::pending_of(tenant, set).await {
                    self.add(tenant, WorkItem::Protected(key));
                }
                Ok(Progress::Done)
            }
            WorkItem::TokenSecret(key) => token_secrets::reconcile(context, tenant, key).await,
            WorkItem::DeletedSecret(deleted) => {
                token_secrets::unlist(&context.client, tenant, deleted).await
            }
            WorkItem::TokenUse(key) => token_secrets::note_use(context, tenant, key).await,
            WorkItem::TokenTracking => token_secrets::track(&context.client, tenant).await,
            WorkItem::ControlPlane(name) => control_planes::remove(context, tenant, name).await,
            WorkItem::ServiceRanges => service_ranges::settle(&context.client, tenant).await,
            WorkItem::ApiServices => api_services::settle(&context.client, tenant).await,
            WorkItem::Layer => layers::take_steps(context, tenant).await,
            WorkItem::ApproveCertificate(name) => {
                certificates::approve(context, tenant, name).await
            }
            WorkItem::SignCertificate(name) => certificates::sign(context, tenant, name).await,
            WorkItem::CleanCertificates => certificates::clean(context, tenant).await,
            WorkItem::Certificates => {
                self.add_certificates(tenant).await;
                Ok(Progress::Done)
            }
            WorkItem::Survey => {
                self.survey(tenant).await;
                Ok(Progress::Done)
            }
            WorkItem::Belonging(work) => self.settle_belonging(context, tenant, work).await,
        }
    }

    async fn settle_belonging(
        self: &Arc<Self>,
        context: &ReconcilerContext,
        tenant: &Tenant,
        work: &DependentWork,
    ) -> Result<Progress, ApiError> {
        match work {
            DependentWork::Dependent(key) => {
                dependents::dependent(&context.client, tenant, &self.dependents, key).await
            }
            DependentWork::Owner(key) => {
                dependents::owner(&context.client, tenant, &self.dependents, key).await
            }
            DependentWork::DependentsOf(uid) => {
                self.add_dependents(tenant, uid).await;
                Ok(Progress::Done)
            }
            DependentWork::All => {
                self.add_belonging(tenant).await;
                Ok(Progress::Done)
            }
        }
    }

    /// Queues the work of all objects that name an owner that is gone.
    async fn add_dependents(self: &Arc<Self>, tenant: &Tenant, uid: &str) {
        let mut after = None;
        loop {
            let some = self.dependents.of(tenant, uid, after.as_ref());
            for key in &some {
                let work = DependentWork::Dependent(key.clone());
                self.add(tenant, WorkItem::Belonging(work));
            }
            after = some.into_iter().next_back();
            if after.is_none() {
                return;
            }
            tokio::task::yield_now().await;
        }
    }

    /// Queues the work of all owners and dependents of a plane.
    async fn add_belonging(self: &Arc<Self>, tenant: &Tenant) {
        for work in self.dependents.survey(tenant).await {
            self.add(tenant, WorkItem::Belonging(work));
        }
    }

    /// Queues all work that the objects of a plane have.
    async fn survey(self: &Arc<Self>, tenant: &Tenant) {
        if authentication_cas::is_own(tenant) {
            self.add(tenant, WorkItem::AuthenticationCas);
        }
        if roles::are_aggregated(tenant) {
            self.add(tenant, WorkItem::Aggregation);
        }
        if flow_schemas::are_own(tenant) {
            self.add(tenant, WorkItem::FlowSchemas);
        }
        if service_ranges::has_work(tenant) {
            self.add(tenant, WorkItem::ServiceRanges);
        }
        if api_services::has_work(tenant).await {
            self.add(tenant, WorkItem::ApiServices);
        }
        for name in definitions::pending(tenant) {
            self.add(tenant, WorkItem::Definition(name));
        }
        for namespace in quotas::namespaces(tenant) {
            self.add(tenant, WorkItem::Quotas(namespace));
        }
        for key in protection::pending(tenant).await {
            self.add(tenant, WorkItem::Protected(key));
        }
        let pending = token_secrets::pending(tenant).await;
        for key in pending.secrets {
            self.add(tenant, WorkItem::TokenSecret(key));
        }
        if pending.lacks_tracking {
            self.add(tenant, WorkItem::TokenTracking);
        }
        self.add_belonging(tenant).await;
        self.add_certificates(tenant).await;
        self.clean(tenant);
    }
}
