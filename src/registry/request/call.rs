//! One request inside the registry, with its plane, the row of its kind and the services that it
//! uses.

use crate::authority::{Authority, Pinned};
use crate::environment::Environment;
use crate::kinds::conversion;
use crate::kinds::conversion::{KindVersion, Wanted};
use crate::kinds::table::{KindTable, Resource, Scope};
use crate::kinds::{Kinds, Requester};
use crate::request::ResourceRequest;
use crate::request::trees::Trees;
use crate::request::wait;
use crate::request::warnings::Warnings;
use crate::services::Services;
use crate::settings::PlaneSettings;
use parking_lot::Mutex;
use polyplane_apimachinery::field_error::FieldError;
use polyplane_apimachinery::json::{self, JsonError, Limits, Parsed};
use polyplane_apimachinery::quote::quote;
use polyplane_apimachinery::status::{ApiError, Qualified, Reason};
use polyplane_apimachinery::value::Sharing;
use polyplane_apimachinery::{Str, Value, names};
use polyplane_plane::{Claim, Key, ObjectRef, Plane, Snapshot, Stamp, Version};
use std::borrow::Cow;
use std::collections::HashMap;
use std::sync::{Arc, OnceLock};
use tokio::time::Instant;

/// A plane, with the kinds it serves and the facts that its kinds need.
#[derive(Clone)]
pub struct Tenant {
    /// The name under which the plane is reached.
    pub name: Str,
    /// The plane itself.
    pub plane: Arc<Plane>,
    /// The kinds that it shares with other planes; [`Self::kinds`] has all of them.
    pub base: Arc<KindTable>,
    /// The facts that the plane's kinds need.
    pub settings: Arc<PlaneSettings>,
}

impl Tenant {
    /// Returns the kinds of the published state.
    pub fn kinds(&self) -> Kinds {
        Kinds::new(Arc::clone(&self.base), self.plane.overlay())
    }

    /// Returns the kinds of the newest accepted state, writes under way included. Requests are
    /// routed by them. That a kind is missing may be answered only after [`Self::settled_kind`].
    pub fn accepted_kinds(&self) -> Kinds {
        Kinds::new(Arc::clone(&self.base), self.plane.accepted_overlay())
    }

    /// Returns the kind of a group, version and plural name that objects of the plane define, once
    /// no write under way changes it. `None` is the answer of a consistent read.
    ///
    /// # Errors
    /// Returns 503 or 504 if the answer does not become certain before the deadline.
    pub async fn settled_kind(
        &self,
        wanted: (&str, &str, &str),
        deadline: Instant,
    ) -> Result<Option<Arc<Resource>>, ApiError> {
        self.settled_kind_for(Requester::Client, wanted, deadline)
            .await
    }

    /// Returns the kind as `requester` sees it, otherwise like [`Self::settled_kind`].
    ///
    /// # Errors
    /// See [`Self::settled_kind`].
    pub(crate) async fn settled_kind_for(
        &self,
        requester: Requester,
        wanted: (&str, &str, &str),
        deadline: Instant,
    ) -> Result<Option<Arc<Resource>>, ApiError> {
        if !self.plane.defines() {
            return Ok(None);
        }
        loop {
            // The accepted kinds are read last, so that a write that changes them in the meantime
            // is seen.
            let (published, accepted) = (self.kinds(), self.accepted_kinds());
            let found = published.resolve_for(requester, wanted).cloned();
            let view = |row: Option<&Arc<Resource>>| row.map(|row| row.view);
            if view(found.as_ref()) == view(accepted.resolve_for(requester, wanted)) {
                if found.is_none() {
                    wait::answerable_by(&self.plane, deadline).await?;
                }
                return Ok(found);
            }
            let cut = self.plane.accepted();
            let settled = tokio::time::timeout_at(deadline, self.plane.settled(&cut)).await;
            // Whatever the outcome is, the loop reads the kinds again.
            let _ = settled.map_err(|_| wait::out_of_time())?;
        }
    }
}

/// A request with the row of its kind.
pub struct Call<'a> {
    /// The plane.
    pub tenant: &'a Tenant,
    /// The request.
    pub request: &'a ResourceRequest,
    /// The row.
    pub row: &'a Arc<Resource>,
    /// The clock and the randomness.
    pub environment: &'a dyn Environment,
    /// The services that all requests share.
    pub services: &'a Arc<Services>,
    /// The authorizers, from the beginning of the request to its end.
    authority: Pinned<'a>,
    warnings: Warnings,
    whole: Option<&'a Call<'a>>,
    /// The objects that [`conversion::ahead`] has converted.
    pub(crate) converted: Mutex<HashMap<(Key, Stamp, Wanted), Value>>,
    /// The version of the newest durable write of the definition of a custom kind; `None` inside if
    /// one is under way. Objects that are newer are shown as they are stored.
    defined: OnceLock<Option<Version>>,
    /// Number of parts of the request that wait for a webhook. It is kept at the whole request.
    waiting: Mutex<usize>,
    /// The memory of what the request is prepared from.
    pub(super) trees: Trees,
}

/// A request that has returned its seat. Dropping this takes the seat again.
pub(crate) struct SeatReturn<'a> {
    whole: &'a Call<'a>,
}

impl Drop for SeatReturn<'_> {
    fn drop(&mut self) {
        let mut waiting = self.whole.waiting.lock();
        *waiting -= 1;
        if *waiting == 0
            && let Some(seats) = &self.whole.request.seats
        {
            seats.return_to();
        }
    }
}

impl<'a> Call<'a> {
    /// Creates a call from a request and the row of its kind.
    pub fn new(
        tenant: &'a Tenant,
        request: &'a ResourceRequest,
        row: &'a Arc<Resource>,
        services: &'a Arc<Services>,
    ) -> Self {
        let environment = services.environment.as_ref();
        Self {
            tenant,
            request,
            row,
            environment,
            services,
            authority: services.authority.of(tenant),
            warnings: Warnings::default(),
            converted: Mutex::default(),
            defined: OnceLock::new(),
            whole: None,
            waiting: Mutex::new(0),
            trees: Trees::default(),
        }
    }

    /// Creates a part of this request that is handled like a request of its own, such as one
    /// deletion of a collection. The whole request and its parts have one seat.
    pub fn part(&'a self, request: &'a ResourceRequest) -> Self {
        Self {
            whole: Some(self.whole.unwrap_or(self)),
            authority: self.authority.clone(),
            ..Self::new(self.tenant, request, self.row, self.services)
        }
    }

    /// Returns the authorizers of the plane.
    pub(crate) fn authority(&self) -> &Authority {
        &self.authority
    }

    /// Returns the seat while a webhook is called. A request returns its one seat when the first of
    /// its parts waits.
    ///
    /// # Errors
    /// Returns 429 if too many requests wait already.
    pub(crate) fn leave_seat(&'a self) -> Result<SeatReturn<'a>, ApiError> {
        let whole = self.whole.unwrap_or(self);
        let mut waiting = whole.waiting.lock();
        if *waiting == 0
            && let Some(seats) = &whole.request.seats
        {
            seats.leave()?;
        }
        *waiting += 1;
        drop(waiting);
        Ok(SeatReturn { whole })
    }

    /// Checks that a cut defines the kind as it is here. For a cut of the past the current
    /// definition counts.
    ///
    /// # Errors
    /// Returns [`ApiError::kind_changed`], after which the request is handled again.
    pub fn stands_in(&self, cut: &Snapshot) -> Result<(), ApiError> {
        let holds = self.kind_claim().is_none_or(|claim| cut.holds(&claim));
        holds.then_some(()).ok_or_else(ApiError::kind_changed)
    }

    /// Returns the published state, if all accesses that the request was granted are still allowed
    /// there.
    ///
    /// # Errors
    /// Returns 403 if an access is not allowed there, 401 if the caller is not proven any more.
    pub async fn newest(&self) -> Result<Snapshot, ApiError> {
        let cut = self.tenant.plane.snapshot();
        let granted = &self.request.granted;
        if !granted.holds_in_every_cut() {
            let as_of = self.authority().as_of(self.tenant, cut.clone());
            granted.check(&as_of).await?;
        }
        Ok(cut)
    }

    /// Returns the claim of a write about its kind; `None` for a kind of the base, which does not
    /// change.
    pub fn kind_claim(&self) -> Option<Claim> {
        Some(Claim::View {
            view: Some(self.row.view?),
            resource: self.row.stored_prefix(),
        })
    }

    /// Returns whether an object has the form in which the request's version shows it. If not, the
    /// form is made by [`conversion::tree`].
    pub fn shows_as_stored(&self, object: &ObjectRef) -> bool {
        let Some(custom) = &self.row.custom else {
            let served = KindVersion::served(self.row);
            return conversion::is_same(self.row, KindVersion::of(self.row, object), served);
        };
        custom.is_fresh(self.row, object, self.defined())
    }

    /// Returns the version above which objects of a custom kind are shown as they are stored.
    pub(crate) fn defined(&self) -> Option<Version> {
        *self.defined.get_or_init(|| {
            let custom = self.row.custom.as_ref()?;
            let definition = self.tenant.plane.accepted().get(&custom.definition)?;
            definition.version()
        })
    }

    /// Adds a warning for the client, unless it was added before.
    pub fn warn(&self, text: impl Into<String>) {
        self.warnings.add(text.into());
    }

    /// Says something about the request in its audit, if it is recorded. Of several values under one key the
    /// last one counts.
    pub fn annotate(&self, key: &'static str, value: impl FnOnce() -> String) {
        if let Some(annotations) = &self.request.annotations {
            annotations.add(key, value());
        }
    }

    /// Returns where warnings for the client are added.
    pub fn warnings(&self) -> &Warnings {
        &self.warnings
    }

    /// Removes and returns the warnings so far.
    pub fn take_warnings(&self) -> Vec<String> {
        self.warnings.take()
    }

    /// Returns the subresource of the path; empty for the object itself.
    pub fn subresource(&self) -> &str {
        self.request.subresource.as_deref().unwrap_or("")
    }

    /// Returns the name of the path.
    ///
    /// # Errors
    /// Returns 400 if the path has none.
    pub fn name(&self) -> Result<&Str, ApiError> {
        self.request
            .name
            .as_ref()
            .ok_or_else(|| ApiError::bad_request("name must be provided"))
    }

    /// Returns the namespace of the path; empty for cluster-scoped kinds.
    pub fn namespace(&self) -> &str {
        match self.row.scope {
            Scope::Namespaced => self.request.namespace.as_deref().unwrap_or(""),
            Scope::Cluster => "",
        }
    }

    /// Returns the key of an object of this kind.
    pub fn key(&self, name: &str) -> Key {
        key_of(self.row, self.namespace(), name)
    }

    /// Returns the resource with its subresource, as errors name it: `deployments/scale`.
    pub fn qualified(&self) -> (Str, Str) {
        let resource = match &self.request.subresource {
            Some(sub) => format!("{}/{sub}", self.row.name).into(),
            None => self.row.name.clone(),
        };
        (self.row.group.clone(), resource)
    }

    /// Reports that the object does not exist, or that no object can have its name.
    pub fn not_found(&self, name: &str) -> ApiError {
        missing(Qualified::new(&self.row.group, &self.row.name), name)
    }

    /// Returns an error if upstream's store takes no key in the namespace of the path.
    ///
    /// # Errors
    /// Returns upstream's error, a 500 without a reason.
    pub fn check_namespace(&self) -> Result<(), ApiError> {
        let namespace = self.namespace();
        if !matches!(namespace, "." | "..") {
            return Ok(());
        }
        let mut place = format!("/{}/{namespace}", self.row.storage.upstream_prefix);
        if let Some(name) = &self.request.name {
            check_key_name(name)?;
            place.push('/');
            place.push_str(name);
        }
        let message = format!("invalid key: {}", quote(&place));
        Err(ApiError::new(Reason::Unknown, message))
    }

    /// Reports that another write came first, or that the client's precondition names another
    /// object.
    pub fn conflict(&self, name: &str, detail: &str) -> ApiError {
        ApiError::conflict(
            Qualified::new(&self.row.group, &self.row.name),
            name,
            detail,
        )
    }

    /// Reports that the object breaks the kind's rules, which are those of the group it is stored
    /// under.
    pub fn invalid(&self, name: &str, errors: &[FieldError]) -> ApiError {
        ApiError::invalid(
            Qualified::new(&self.row.storage.group, &self.row.kind),
            name,
            errors,
        )
    }

    /// Returns the tree of a stored object of any kind, in the version that it is stored in today.
    ///
    /// # Errors
    /// See [`conversion::stored_tree`].
    pub fn stored_tree(&self, object: &ObjectRef) -> Result<Value, ApiError> {
        conversion::stored_tree(&self.tenant.kinds(), object)
    }

    /// Returns the sets of fields that the plane's objects have in common.
    pub(crate) fn sharing(&self) -> Sharing<'_> {
        self.services.field_sets.within(self.tenant.plane.id())
    }

    /// Parses the body of a stored object. What other objects of the plane have too of the sets of
    /// fields in it is parsed once.
    ///
    /// # Errors
    /// Returns 500 if it is damaged.
    pub(crate) fn stored_tree_of(&self, body: &[u8]) -> Result<Value, ApiError> {
        parsed(json::parse_sharing(
            body,
            &Limits::default(),
            Some(self.sharing()),
        ))
    }

    /// Converts a tree from the version that objects are prepared in into the version of the
    /// request.
    pub fn to_served(&self, tree: Value) -> Value {
        if KindVersion::prepared(self.row) == KindVersion::served(self.row) || !self.row.converts()
        {
            tree
        } else {
            self.row.strategy.to_served(&self.row.version, tree)
        }
    }

    /// Returns a tree of the version that objects are prepared in as one of the version of the
    /// request.
    pub fn as_served<'v>(&self, tree: &'v Value) -> Cow<'v, Value> {
        if KindVersion::prepared(self.row) == KindVersion::served(self.row) || !self.row.converts()
        {
            Cow::Borrowed(tree)
        } else {
            Cow::Owned(self.to_served(tree.clone()))
        }
    }

    /// Converts a tree from the version of the request into the version that objects are prepared
    /// in.
    pub fn to_prepared(&self, tree: Value) -> Value {
        if KindVersion::prepared(self.row) == KindVersion::served(self.row) || !self.row.converts()
        {
            tree
        } else {
            self.row.strategy.to_stored(&self.row.version, tree)
        }
    }
}

/// Reports that there is no object of this name. Upstream makes no key of some names, and answers
/// that the name is wrong.
pub(crate) fn missing(what: Qualified<'_>, name: &str) -> ApiError {
    let wrong = check_key_name(name).err();
    wrong.unwrap_or_else(|| ApiError::not_found(what, name))
}

/// Returns an error if upstream makes no key of a name.
///
/// # Errors
/// Returns 400.
pub(crate) fn check_key_name(name: &str) -> Result<(), ApiError> {
    if name.is_empty() {
        return Err(ApiError::bad_request("Name parameter required."));
    }
    let complaints = names::path_segment_name(name);
    if complaints.is_empty() {
        return Ok(());
    }
    let complaints = complaints.join(";");
    let message = format!("Name parameter invalid: {}: {complaints}", quote(name));
    Err(ApiError::bad_request(message))
}

/// Returns the key of an object.
pub fn key_of(row: &Resource, namespace: &str, name: &str) -> Key {
    let namespace = (row.scope == Scope::Namespaced).then_some(namespace);
    Key::new(&row.storage.group, &row.storage.resource, namespace, name)
}

/// Parses a body that the server has written itself.
///
/// # Errors
/// Returns 500 if it is damaged.
pub fn tree_of(body: &[u8]) -> Result<Value, ApiError> {
    parsed(json::parse(body, &Limits::default()))
}

fn parsed(parsed: Result<Parsed, JsonError>) -> Result<Value, ApiError> {
    match parsed {
        Ok(parsed) => Ok(parsed.value),
        Err(error) => Err(ApiError::internal(format!(
            "a stored object cannot be read: {error}"
        ))),
    }
}
