//! The registry's entry: passes a request to the verb that answers it.

use crate::answer::negotiate;
use crate::answer::negotiate::{Conversions, Encoding, Representation, Shape};
use crate::answer::representation;
use crate::answer::representation::Shown;
use crate::answer::{Answer, AnswerBody, Outcome, scale};
use crate::authority::{AccessCheck, Authority};
use crate::deprecated::{DeprecatedRequests, removed_in};
use crate::environment::Environment;
use crate::kinds::Requester;
use crate::kinds::conversion;
use crate::kinds::conversion::Wanted;
use crate::kinds::table::Resource;
use crate::metrics::Family;
use crate::plan::{Admission, AdmissionChain};
use crate::request::call::{Call, Tenant};
use crate::request::parameters::{DRY_RUN, EXPORT, RESOURCE_VERSION};
use crate::request::{ResourceRequest, Verb};
use crate::select;
use crate::services::Removal;
use crate::services::{Observer, PlaneObserver, Services};
use crate::tokens::TokenIssuers;
use crate::verbs::components;
use crate::verbs::components::Components;
use crate::verbs::connect::Connection;
use crate::verbs::credential;
use crate::verbs::credential::IssueCredential;
use crate::verbs::delete;
use crate::verbs::external;
use crate::verbs::external::ExternalObjects;
use crate::verbs::list::{reached, version_of_get};
use crate::verbs::{
    connect, create, evict, list, patch, review, scale_and_binding, token_request, update, watch,
};
use crate::write::{Unstored, Written, answerable};
use polyplane_apimachinery::Value;
use polyplane_apimachinery::json::scan;
use polyplane_apimachinery::status::{ApiError, Qualified, Success};
use polyplane_auth::service_account::issuer::TokenIssuer;
use polyplane_plane::ObjectRef;
use std::sync::Arc;
use tokio::time::Instant;

/// The registry: answers requests for resources of any plane.
pub struct Registry {
    services: Arc<Services>,
    deprecated: DeprecatedRequests,
}

impl Registry {
    /// Creates a registry. It takes the time and random bytes from `environment`, `authority`
    /// decides on accesses, and `observers` are notified of writes.
    pub fn new(
        environment: Arc<dyn Environment>,
        authority: Authority,
        observers: Vec<Arc<dyn Observer>>,
    ) -> Self {
        Self {
            services: Arc::new(Services {
                environment,
                authority,
                observers,
                admission: AdmissionChain::default(),
                external: Vec::new(),
                components: None,
                tokens: None,
                credentials: None,
                field_sets: Default::default(),
                selectors: Default::default(),
            }),
            deprecated: DeprecatedRequests::default(),
        }
    }

    /// Replaces the admission plug-ins by these, in their order.
    #[must_use]
    pub fn admitting(self, admission: Vec<Arc<dyn Admission>>) -> Self {
        self.with(|services| services.admission = AdmissionChain::new(admission))
    }

    /// Sets the issuers of tokens.
    #[must_use]
    pub fn with_tokens(self, tokens: Arc<dyn TokenIssuers>) -> Self {
        self.with(|services| services.tokens = Some(tokens))
    }

    /// Adds objects that are kept elsewhere than in a plane.
    #[must_use]
    pub fn with_external(self, objects: Arc<dyn ExternalObjects>) -> Self {
        self.with(|services| services.external.push(objects))
    }

    /// Sets what planes run on.
    #[must_use]
    pub fn with_components(self, components: Arc<dyn Components>) -> Self {
        self.with(|services| services.components = Some(components))
    }

    /// Adds the issuer of credentials for users of planes.
    #[must_use]
    pub fn with_credentials(self, issuer: Arc<dyn IssueCredential>) -> Self {
        self.with(|services| services.credentials = Some(issuer))
    }

    fn with(mut self, change: impl FnOnce(&mut Services)) -> Self {
        change(Arc::make_mut(&mut self.services));
        self
    }

    /// Returns the issuer of a plane's tokens, if it has one.
    pub fn token_issuer(&self, tenant: &Tenant) -> Option<Arc<TokenIssuer>> {
        self.services.tokens.as_ref()?.issuer(tenant.plane.id())
    }

    /// Notifies the observers of everything that a plane publishes from now on. Called once each
    /// time the plane wakes, before its objects are searched for unfinished work.
    pub fn observe(&self, tenant: &Tenant) {
        tenant.plane.observe(Arc::new(PlaneObserver {
            name: tenant.name.clone(),
            base: Arc::clone(&tenant.base),
            settings: Arc::clone(&tenant.settings),
            services: Arc::clone(&self.services),
        }));
    }

    /// Starts the authorization of one request to a plane.
    pub fn access_check<'a>(&'a self, tenant: &'a Tenant, deadline: Instant) -> AccessCheck<'a> {
        self.services.authority.access_check(tenant, deadline)
    }

    /// Returns the metrics of authorization and admission, for all planes together.
    pub fn metrics(&self) -> Vec<Family> {
        let mut families = vec![self.services.authority.decisions()];
        families.extend(self.services.admission.families());
        families.push(self.deprecated.family());
        families
    }

    /// Answers one request of a client.
    ///
    /// # Errors
    /// Returns the error for the client, as a Status.
    ///
    /// # Cancel safety
    /// Dropping the future does not undo a write that has been sequenced.
    pub async fn handle(
        &self,
        tenant: &Tenant,
        request: &ResourceRequest,
    ) -> Result<Answer, ApiError> {
        self.handle_for(Requester::Client, tenant, request).await
    }

    /// Answers one request of `requester`.
    ///
    /// # Errors
    /// See [`Self::handle`].
    ///
    /// # Cancel safety
    /// See [`Self::handle`].
    pub async fn handle_for(
        &self,
        requester: Requester,
        tenant: &Tenant,
        request: &ResourceRequest,
    ) -> Result<Answer, ApiError> {
        let (group, version, resource) = (&request.group, &request.version, &request.resource);
        if let Some(row) = tenant.base.resolve(group, version, resource) {
            return self.handle_kind(tenant, request, row).await;
        }
        loop {
            let wanted = (group.as_str(), version.as_str(), resource.as_str());
            let settled = tenant.settled_kind_for(requester, wanted, request.deadline);
            let row = settled.await?.ok_or_else(unknown)?;
            if let Some(custom) = &row.custom {
                custom.prepared(tenant.plane.meter()).await?;
            }
            match self.handle_kind(tenant, request, &row).await {
                Err(error) if error.is_kind_changed() && Instant::now() < request.deadline => {}
                answer => return answer,
            }
        }
    }

    async fn handle_kind(
        &self,
        tenant: &Tenant,
        request: &ResourceRequest,
        row: &Arc<Resource>,
    ) -> Result<Answer, ApiError> {
        check_verb(row, request)?;
        // Custom kinds have no such paths upstream.
        if row.custom.is_none() {
            negotiate::routed(request)?;
        }
        let call = Call::new(tenant, request, row, &self.services);
        check_writer(&call)?;
        if let Some(text) = &row.deprecation {
            call.warn(text.as_str());
            if row.custom.is_none() {
                self.deprecated.note(row, call.subresource(), text);
                call.annotate("k8s.io/deprecated", || "true".to_owned());
                if let Some(release) = removed_in(text) {
                    call.annotate("k8s.io/removed-release", || release.to_owned());
                }
            }
        }
        // After the warning, because upstream's store finds this.
        if request.verb != Verb::Create
            && let Err(error) = call.check_namespace()
        {
            return Err(error.with_warnings(call.take_warnings()));
        }
        let answer = match request.subresource.as_deref() {
            None => self.object(&call).await,
            Some(sub) => self.subresource(&call, sub).await,
        };
        answer.map_err(|error| error.with_warnings(call.take_warnings()))
    }

    async fn object(&self, call: &Call<'_>) -> Result<Answer, ApiError> {
        if call.row.is_virtual() {
            return self.virtual_create(call).await;
        }
        if call.row.external {
            return external::answer(call).await;
        }
        if call.row.qualified == components::RESOURCE {
            return match call.request.verb {
                Verb::Get => components::get(call),
                _ => components::list(call),
            };
        }
        match call.request.verb {
            Verb::Get => get(call).await,
            Verb::List => list::list(call).await,
            Verb::Watch => watch::watch(call).await,
            Verb::Create => {
                let wish = negotiate::output(call, Conversions::Offered)?;
                let written = create::create(call).await?;
                self.answer(call, wish, written, Outcome::Created).await
            }
            Verb::Update => {
                let wish = negotiate::output(call, Conversions::Offered)?;
                let written = update::update(call).await?;
                self.answer_change(call, wish, written).await
            }
            Verb::Patch => {
                let wish = negotiate::output(call, Conversions::Offered)?;
                let written = patch::patch(call).await?;
                self.answer_change(call, wish, written).await
            }
            Verb::Delete => self.delete(call).await,
            Verb::DeleteCollection => delete_collection(call).await,
            Verb::Connect => Err(unknown()),
        }
    }

    async fn subresource(&self, call: &Call<'_>, sub: &str) -> Result<Answer, ApiError> {
        if matches!(sub, "exec" | "attach" | "portforward" | "proxy") {
            return connected(call, sub).await;
        }
        let conversions = match sub {
            "token" => Conversions::Partial,
            _ => Conversions::Offered,
        };
        let wish = negotiate::output(call, conversions)?;
        match (sub, call.request.verb) {
            ("scale", Verb::Get) => {
                let object = read(call).await?;
                let json = scale_and_binding::read_scale(call, &object_tree(call, &object).await?)?;
                let body = scale::scale(call, wish, json)?;
                Ok(Answer::finite(call, wish, Outcome::Ok, body))
            }
            ("scale", Verb::Update | Verb::Patch) => {
                let written = scale_and_binding::write_scale(call).await?;
                let json = scale_and_binding::scale_json(call, &tree(call, &written).await?)?;
                let body = scale::scale(call, wish, json)?;
                Ok(Answer::finite(call, wish, Outcome::Ok, body))
            }
            ("binding", Verb::Create) => {
                drop(scale_and_binding::bind(call).await?);
                success(call, wish)
            }
            ("token", Verb::Create) => {
                let json = token_request::request(call).await?;
                let body = representation::unstored(call, wish, token_request::GO_TYPE, json)?;
                Ok(Answer::finite(call, wish, Outcome::Created, body))
            }
            ("eviction", Verb::Create) => {
                evict::evict(call).await?;
                success(call, wish)
            }
            ("credentials", Verb::Create) => {
                let plane = read(call).await?;
                let plane = object_tree(call, &plane).await?;
                let json = credential::create(call, &plane).await?;
                of_json(call, wish, Outcome::Created, json)
            }
            ("log", _) => reach(call, sub, wish).await,
            (_, Verb::Get) => get(call).await,
            (_, Verb::Update) => {
                let written = update::update(call).await?;
                self.answer_change(call, wish, written).await
            }
            (_, Verb::Patch) => {
                let written = patch::patch(call).await?;
                self.answer_change(call, wish, written).await
            }
            _ => Err(unknown()),
        }
    }

    async fn virtual_create(&self, call: &Call<'_>) -> Result<Answer, ApiError> {
        let wish = negotiate::output(call, Conversions::Partial)?;
        if call.row.name == "bindings" {
            drop(scale_and_binding::bind(call).await?);
            return success(call, wish);
        }
        let authority = call.authority();
        let as_of = authority.newest(call.tenant, call.request.deadline).await?;
        call.request.granted.check(&as_of).await?;
        let json = review::review(call, &as_of).await?;
        let go_type = representation::go_type(call.row, &call.row.kind);
        let body = representation::unstored(call, wish, &go_type, json)?;
        Ok(Answer::finite(call, wish, Outcome::Created, body))
    }

    async fn delete(&self, call: &Call<'_>) -> Result<Answer, ApiError> {
        let wish = negotiate::output(call, Conversions::Offered)?;
        let deleted = delete::delete(call).await?;
        let object = match &deleted.written {
            Written::Committed(committed) => {
                committed.objects.first().map(|written| &written.object)
            }
            Written::Unstored(Unstored::Unchanged(object) | Unstored::Removed(object)) => {
                Some(object)
            }
            Written::Unstored(Unstored::Tree(_) | Unstored::Created(_)) => None,
        };
        if deleted.gone == Removal::Pending || call.row.returns_deleted() {
            conversion::ahead(call, object.into_iter()).await?;
            let shown = match (&deleted.written, object) {
                (Written::Unstored(Unstored::Tree(tree) | Unstored::Created(tree)), _) => {
                    Shown::Tree(tree.clone())
                }
                (written, Some(object)) if deleted.gone == Removal::Gone => {
                    let shown = match written {
                        Written::Committed(committed) => {
                            Shown::At(object, committed.version_of_first())
                        }
                        Written::Unstored(_) => Shown::Stored(object),
                    };
                    if call.row.rules.graceful_delete {
                        let now = call.services.environment.now();
                        Shown::Tree(delete::last_state(shown.tree(call)?, now))
                    } else {
                        shown
                    }
                }
                (_, Some(object)) => Shown::Stored(object),
                (_, None) => return Err(ApiError::internal("a deletion without an object")),
            };
            let body = representation::object(call, wish, &shown)?;
            return Ok(Answer::finite(call, wish, deleted.outcome, body));
        }
        let body = object.map(ObjectRef::body).unwrap_or_default();
        let uid = scan::string_at(&body, &["metadata", "uid"]).unwrap_or_default();
        let what = Qualified::new(&call.row.group, &call.row.name);
        let mut json = Vec::new();
        Success::deleted(what, call.name()?, &uid).write(&mut json);
        of_json(call, wish, deleted.outcome, json)
    }

    async fn answer_change(
        &self,
        call: &Call<'_>,
        wish: Representation,
        written: Written,
    ) -> Result<Answer, ApiError> {
        let created = match &written {
            Written::Committed(committed) => committed
                .objects
                .first()
                .is_some_and(|written| written.object.created() == written.object.version()),
            Written::Unstored(Unstored::Created(_)) => true,
            Written::Unstored(
                Unstored::Tree(_) | Unstored::Unchanged(_) | Unstored::Removed(_),
            ) => false,
        };
        self.answer(
            call,
            wish,
            written,
            if created {
                Outcome::Created
            } else {
                Outcome::Ok
            },
        )
        .await
    }

    async fn answer(
        &self,
        call: &Call<'_>,
        wish: Representation,
        written: Written,
        outcome: Outcome,
    ) -> Result<Answer, ApiError> {
        let shown = match &written {
            Written::Committed(committed) => {
                let first = committed.objects.first();
                let first =
                    first.ok_or_else(|| ApiError::internal("a commit without an object"))?;
                Shown::Stored(&first.object)
            }
            Written::Unstored(Unstored::Unchanged(object) | Unstored::Removed(object)) => {
                Shown::Stored(object)
            }
            Written::Unstored(Unstored::Tree(tree) | Unstored::Created(tree)) => {
                Shown::Tree(tree.clone())
            }
        };
        if let Shown::Stored(object) = shown {
            conversion::ahead(call, std::iter::once(object)).await?;
        }
        let body = representation::object(call, wish, &shown)?;
        Ok(Answer::finite(call, wish, outcome, body))
    }
}

/// Passes a request on to a pod, a node or a service. Nothing is negotiated, because they answer it.
async fn connected(call: &Call<'_>, sub: &str) -> Result<Answer, ApiError> {
    if DRY_RUN.read(&call.request.query).next().is_some() {
        return Err(ApiError::bad_request("dryRun is not supported"));
    }
    let wish = Representation {
        encoding: Encoding::Json,
        shape: Shape::Whole,
    };
    reach(call, sub, wish).await
}

/// Finds the server that a subresource connects to.
async fn reach(call: &Call<'_>, sub: &str, wish: Representation) -> Result<Answer, ApiError> {
    answerable(call).await?;
    let (outcome, body) = match connect::connect(call, sub).await? {
        Connection::EmptyLog => (Outcome::NoContent, AnswerBody::Slices(Vec::new())),
        Connection::To(target) => (Outcome::Ok, AnswerBody::Connect(target)),
    };
    Ok(Answer::finite(call, wish, outcome, body))
}

/// Returns upstream's answer for a resource that it does not know.
pub fn unknown() -> ApiError {
    ApiError::generic(404, "", Qualified::default(), "", "")
}

fn check_verb(row: &Resource, request: &ResourceRequest) -> Result<(), ApiError> {
    let allowed = match request.subresource.as_deref() {
        None => row.allows(request.verb.name()),
        Some(name) => {
            let sub = row.subresource(name).ok_or_else(unknown)?;
            request.verb == Verb::Connect
                || sub.verbs.iter().any(|verb| verb == request.verb.name())
        }
    };
    if allowed {
        return Ok(());
    }
    if request.verb == Verb::Watch && row.allows("list") {
        let what = Qualified::new(&row.group, &row.name);
        let warnings = row.deprecation.iter().map(|text| text.to_string());
        let refused = ApiError::method_not_supported(what, "watch");
        return Err(refused.with_warnings(warnings.collect()));
    }
    Err(row.without_verb(request.verb.name()))
}

/// Refuses requests that change the objects that only the ring's replicas write, and requests that
/// delete the namespace of these objects.
fn check_writer(call: &Call<'_>) -> Result<(), ApiError> {
    let Some(external) = call.tenant.plane.external() else {
        return Ok(());
    };
    match call.request.verb {
        Verb::Get | Verb::List | Verb::Watch => return Ok(()),
        Verb::Create
        | Verb::Update
        | Verb::Patch
        | Verb::Delete
        | Verb::DeleteCollection
        | Verb::Connect => {}
    }
    let forbidden = |name: &str, why: &str| {
        let (group, resource) = call.qualified();
        ApiError::forbidden(Qualified::new(&group, &resource), name, why)
    };
    if select::is_about(call, external) {
        let name = call.request.name.as_deref().unwrap_or_default();
        let why = "only the replicas of the ring write these objects";
        return Err(forbidden(name, why));
    }
    let deletes = matches!(call.request.verb, Verb::Delete);
    if deletes && call.row.storage.group.is_empty() && call.row.storage.resource == "namespaces" {
        let name = call.name()?;
        let namespace = format!("/{name}/");
        if external.as_bytes().ends_with(namespace.as_bytes()) {
            let why = "the replicas of the ring write objects in this namespace";
            return Err(forbidden(name, why));
        }
    }
    Ok(())
}

async fn get(call: &Call<'_>) -> Result<Answer, ApiError> {
    let wish = negotiate::output(call, Conversions::Offered)?;
    let object = read(call).await?;
    conversion::ahead(call, std::iter::once(&object)).await?;
    let body = representation::object(call, wish, &Shown::Stored(&object))?;
    Ok(Answer::finite(call, wish, Outcome::Ok, body))
}

/// Reads one object in its newest state.
async fn read(call: &Call<'_>) -> Result<ObjectRef, ApiError> {
    let query = &call.request.query;
    if EXPORT.read(query) == Some(true) {
        let gone = "the export parameter, deprecated since v1.14, is no longer supported";
        return Err(ApiError::bad_request(gone));
    }
    let asked = version_of_get(call, RESOURCE_VERSION.read(query))?;
    answerable(call).await?;
    if asked != 0 {
        reached(call, asked).await?;
    }
    let name = call.name()?;
    let cut = call.newest().await?;
    call.stands_in(&cut)?;
    let object = cut.get(&call.key(name));
    object.ok_or_else(|| call.not_found(name))
}

async fn delete_collection(call: &Call<'_>) -> Result<Answer, ApiError> {
    let wish = negotiate::output(call, Conversions::Offered)?;
    let listed = delete::delete_collection(call, wish).await?;
    let body = listed.body(call).await?;
    Ok(Answer::finite(call, wish, Outcome::Ok, body))
}

/// Returns the tree of the written object, in the version that objects are prepared in.
async fn tree(call: &Call<'_>, written: &Written) -> Result<Value, ApiError> {
    match written {
        Written::Committed(committed) => match committed.objects.first() {
            Some(first) => object_tree(call, &first.object).await,
            None => Err(ApiError::internal("a commit without an object")),
        },
        Written::Unstored(Unstored::Unchanged(object) | Unstored::Removed(object)) => {
            object_tree(call, object).await
        }
        Written::Unstored(Unstored::Tree(tree) | Unstored::Created(tree)) => Ok(tree.clone()),
    }
}

async fn object_tree(call: &Call<'_>, object: &ObjectRef) -> Result<Value, ApiError> {
    conversion::ahead(call, std::iter::once(object)).await?;
    conversion::tree(call, object, Wanted::Prepared)
}

/// Returns the answer with this JSON as its body.
fn of_json(
    call: &Call<'_>,
    wish: Representation,
    outcome: Outcome,
    json: Vec<u8>,
) -> Result<Answer, ApiError> {
    let body = representation::value(call, wish.encoding, json)?;
    Ok(Answer::finite(call, wish, outcome, body))
}

fn success(call: &Call<'_>, wish: Representation) -> Result<Answer, ApiError> {
    let mut json = Vec::new();
    Success {
        details: None,
        code: Some(201),
    }
    .write(&mut json);
    of_json(call, wish, Outcome::Created, json)
}
