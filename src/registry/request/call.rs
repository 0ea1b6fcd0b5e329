//! One request on its way through the registry, with the plane and the row that it is about and the
//! services that it uses.

use crate::environment::Environment;
use crate::kinds::Kinds;
use crate::kinds::conversion;
use crate::kinds::conversion::{KindVersion, Wanted};
use crate::kinds::table::{KindTable, Resource, Scope};
use crate::request::ResourceRequest;
use crate::services::Services;
use crate::strategy::PlaneSettings;
use crate::write;
use parking_lot::Mutex;
use polyplane_apimachinery::field_error::FieldError;
use polyplane_apimachinery::status::{ApiError, Qualified};
use polyplane_apimachinery::{Str, Value};
use polyplane_plane::{Claim, Key, ObjectRef, Plane, Snapshot, Stamp};
use std::collections::HashMap;
use std::sync::Arc;
use tokio::time::Instant;

/// A plane with the kinds it serves and the facts its kinds need.
#[derive(Clone)]
pub struct Tenant {
    /// Name under which the plane is reached.
    pub name: Str,
    /// The state.
    pub plane: Arc<Plane>,
    /// The kinds that it shares with other planes; [`Self::kinds`] has all of them.
    pub base: Arc<KindTable>,
    /// Facts of the plane.
    pub settings: Arc<PlaneSettings>,
}

impl Tenant {
    /// The kinds of the published state.
    pub fn kinds(&self) -> Kinds {
        Kinds::new(Arc::clone(&self.base), self.plane.overlay())
    }

    /// The kinds of the newest accepted state, writes under way included: what requests are routed
    /// by. That a kind is not among them is an answer only after [`Self::settled_kind`].
    pub fn accepted_kinds(&self) -> Kinds {
        Kinds::new(Arc::clone(&self.base), self.plane.accepted_overlay())
    }

    /// The kind of a group, version and plural name that objects of the plane define, once no write
    /// under way changes it. That there is none is a consistent read.
    ///
    /// # Errors
    /// 503 or 504 if that does not become certain before the deadline.
    pub async fn settled_kind(
        &self,
        wanted: (&str, &str, &str),
        deadline: Instant,
    ) -> Result<Option<Arc<Resource>>, ApiError> {
        if !self.plane.defines() {
            return Ok(None);
        }
        let (group, version, resource) = wanted;
        loop {
            // What is accepted is looked at last: a write that changes it meanwhile is seen.
            let (published, accepted) = (self.kinds(), self.accepted_kinds());
            let found = published.resolve(group, version, resource).cloned();
            let view = |row: Option<&Arc<Resource>>| row.map(|row| row.view);
            if view(found.as_ref()) == view(accepted.resolve(group, version, resource)) {
                if found.is_none() {
                    write::answerable_by(&self.plane, deadline).await?;
                }
                return Ok(found);
            }
            let cut = self.plane.accepted();
            let settled = tokio::time::timeout_at(deadline, self.plane.settled(&cut)).await;
            // Whatever came of it is looked at again.
            let _ = settled.map_err(|_| write::out_of_time())?;
        }
    }
}

/// A request with the row it is about.
pub struct Call<'a> {
    /// The plane.
    pub tenant: &'a Tenant,
    /// The request.
    pub request: &'a ResourceRequest,
    /// The row.
    pub row: &'a Arc<Resource>,
    /// Time and chance.
    pub environment: &'a dyn Environment,
    /// What all requests share.
    pub services: &'a Arc<Services>,
    warnings: Mutex<Vec<String>>,
    whole: Option<&'a Call<'a>>,
    /// What [`conversion::ahead`] has converted.
    pub(crate) converted: Mutex<HashMap<(Key, Stamp, Wanted), Value>>,
    /// Parts of the request that wait for a webhook. Counted at the whole request.
    waiting: Mutex<usize>,
}

/// A request that has left its seat; it goes back when this is dropped.
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
    /// Puts a request together with its row.
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
            warnings: Mutex::new(Vec::new()),
            converted: Mutex::default(),
            whole: None,
            waiting: Mutex::new(0),
        }
    }

    /// A part of this request that is handled like a request of its own, such as one deletion of a
    /// collection. Both have one seat.
    pub fn part(&'a self, request: &'a ResourceRequest) -> Self {
        Self {
            whole: Some(self.whole.unwrap_or(self)),
            ..Self::new(self.tenant, request, self.row, self.services)
        }
    }

    /// Returns the seat while a webhook is called. A request returns its one seat when the first of
    /// its parts waits.
    ///
    /// # Errors
    /// 429 if too many requests wait already.
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

    /// Fails unless the kind is defined in a cut as it is here. Of a cut of the past that is how it
    /// is defined now.
    ///
    /// # Errors
    /// The request is then worked on again, see [`ApiError::kind_changed`].
    pub fn stands_in(&self, cut: &Snapshot) -> Result<(), ApiError> {
        let holds = self.kind_claim().is_none_or(|claim| cut.holds(&claim));
        holds.then_some(()).ok_or_else(ApiError::kind_changed)
    }

    /// The published state, if all accesses that the request was granted are still allowed there.
    ///
    /// # Errors
    /// 403 if it is not.
    pub async fn newest(&self) -> Result<Snapshot, ApiError> {
        let cut = self.tenant.plane.snapshot();
        let granted = &self.request.granted;
        if !granted.accesses().is_empty() {
            let as_of = self.services.authority.as_of(cut.clone());
            granted.check(&as_of).await?;
        }
        Ok(cut)
    }

    /// What a write claims of its kind; nothing of a kind of the base, which does not change.
    pub fn kind_claim(&self) -> Option<Claim> {
        Some(Claim::View {
            view: Some(self.row.view?),
            resource: self.row.stored_prefix(),
        })
    }

    /// Adds a text for the client, once.
    pub fn warn(&self, text: impl Into<String>) {
        let text = text.into();
        let mut warnings = self.warnings.lock();
        if !warnings.contains(&text) {
            warnings.push(text);
        }
    }

    /// The texts so far, leaving none.
    pub fn take_warnings(&self) -> Vec<String> {
        std::mem::take(&mut self.warnings.lock())
    }

    /// The subresource of the path; empty for the object itself.
    pub fn subresource(&self) -> &str {
        self.request.subresource.as_deref().unwrap_or("")
    }

    /// The name of the path.
    ///
    /// # Errors
    /// 400 if the path has none.
    pub fn name(&self) -> Result<&Str, ApiError> {
        self.request
            .name
            .as_ref()
            .ok_or_else(|| ApiError::bad_request("name must be provided"))
    }

    /// The namespace of the path; empty for cluster-scoped kinds.
    pub fn namespace(&self) -> &str {
        match self.row.scope {
            Scope::Namespaced => self.request.namespace.as_deref().unwrap_or(""),
            Scope::Cluster => "",
        }
    }

    /// The key of an object of this kind.
    pub fn key(&self, name: &str) -> Key {
        key_of(self.row, self.namespace(), name)
    }

    /// `deployments/scale`: the resource with its subresource, as errors name it.
    pub fn qualified(&self) -> (Str, Str) {
        let resource = match &self.request.subresource {
            Some(sub) => format!("{}/{sub}", self.row.name).into(),
            None => self.row.name.clone(),
        };
        (self.row.group.clone(), resource)
    }

    /// The object is not there.
    pub fn not_found(&self, name: &str) -> ApiError {
        ApiError::not_found(Qualified::new(&self.row.group, &self.row.name), name)
    }

    /// Another write came first, or the client means another object.
    pub fn conflict(&self, name: &str, detail: &str) -> ApiError {
        ApiError::conflict(
            Qualified::new(&self.row.group, &self.row.name),
            name,
            detail,
        )
    }

    /// The object breaks the kind's rules, which are those of the group it is stored under.
    pub fn invalid(&self, name: &str, errors: &[FieldError]) -> ApiError {
        ApiError::invalid(
            Qualified::new(&self.row.storage.group, &self.row.kind),
            name,
            errors,
        )
    }

    /// The tree of a stored object of any kind, in the version that it is stored in today.
    ///
    /// # Errors
    /// See [`conversion::stored_tree`].
    pub fn stored_tree(&self, object: &ObjectRef) -> Result<Value, ApiError> {
        conversion::stored_tree(&self.tenant.kinds(), object)
    }

    /// Turns a tree of the version that objects are prepared in into one of the request's.
    pub fn to_served(&self, tree: Value) -> Value {
        if KindVersion::prepared(self.row) == KindVersion::served(self.row) || !self.row.converts()
        {
            tree
        } else {
            self.row.strategy.to_served(&self.row.version, tree)
        }
    }

    /// Turns a tree of the request's version into one of that which objects are prepared in.
    pub fn to_prepared(&self, tree: Value) -> Value {
        if KindVersion::prepared(self.row) == KindVersion::served(self.row) || !self.row.converts()
        {
            tree
        } else {
            self.row.strategy.to_stored(&self.row.version, tree)
        }
    }
}

/// The key of an object.
pub fn key_of(row: &Resource, namespace: &str, name: &str) -> Key {
    let namespace = (row.scope == Scope::Namespaced).then_some(namespace);
    Key::new(&row.storage.group, &row.storage.resource, namespace, name)
}

/// Parses a body the server has written itself.
///
/// # Errors
/// 500 if it is damaged.
pub fn tree_of(body: &[u8]) -> Result<Value, ApiError> {
    let limits = polyplane_apimachinery::json::Limits::default();
    match polyplane_apimachinery::json::parse(body, &limits) {
        Ok(parsed) => Ok(parsed.value),
        Err(error) => Err(ApiError::internal(format!(
            "a stored object cannot be read: {error}"
        ))),
    }
}
