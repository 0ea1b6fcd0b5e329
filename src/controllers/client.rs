//! Requests of the reconcilers to the registry. A reconciler that does what one of upstream's
//! controllers does acts as that controller's service account, and the plane's roles decide whether
//! it may; the others act as `system:apiserver`. This module does not know the purpose of a request.

use crate::audited::Audited;
use bytes::Bytes;
use polyplane_apimachinery::status::ApiError;
use polyplane_apimachinery::{Str, Value, json};
use polyplane_audit::Auditor;
use polyplane_auth::{Subject, UserInfo};
use polyplane_batteries::polyplane::controllers::Controller;
use polyplane_plane::ObjectRef;
use polyplane_registry::kinds::conversion;
use polyplane_registry::request::call::tree_of;
use polyplane_registry::{
    Answer, CheckedAccess, GrantedAccess, Kinds, Registry, Requester, Resource, ResourceRequest,
    Seats, Tenant, Verb,
};
use std::sync::Arc;
use std::time::Duration;
use tokio::time::Instant;

/// How long one request of a reconciler may take. Without the limit a store that does not answer
/// would hold reconcilers forever.
const PATIENCE: Duration = Duration::from_secs(30);

/// The media type of server-side apply. What a reconciler applies is its own, so it takes the fields
/// from other managers.
pub(crate) const APPLY: &str = "application/apply-patch+yaml";

/// The name that the server has for itself as a client.
pub(crate) const USER_AGENT: &str = "polyplane";

/// What carries out and records the requests of reconcilers.
#[derive(Clone)]
pub struct OwnClient {
    /// Carries them out.
    pub registry: Arc<Registry>,
    /// Records them; `None` to record nothing.
    pub auditor: Option<Arc<Auditor>>,
}

impl OwnClient {
    /// Creates a client.
    #[must_use]
    pub fn new(registry: &Arc<Registry>, auditor: Option<&Arc<Auditor>>) -> Self {
        Self {
            registry: Arc::clone(registry),
            auditor: auditor.cloned(),
        }
    }
}

/// Whether the limits of a plane's objects and bytes apply to a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum PlaneLimits {
    /// They do not: what the request adds is bounded by what clients have added.
    Exempt,
    /// They do, as to the requests of clients.
    AsOfClients,
}

/// The seat of a request to which the limits apply. There are as many as are needed: the queue of reconcilers bounds
/// how many requests are in flight.
#[derive(Debug)]
struct OwnSeat;

impl Seats for OwnSeat {
    fn leave(&self) -> Result<(), ApiError> {
        Ok(())
    }

    fn return_to(&self) {}
}

impl PlaneLimits {
    fn seats(self) -> Option<Arc<dyn Seats>> {
        match self {
            Self::Exempt => None,
            Self::AsOfClients => Some(Arc::new(OwnSeat)),
        }
    }
}

/// One request of a reconciler.
pub(crate) struct OwnRequest<'a> {
    /// The verb.
    pub(crate) verb: Verb,
    /// The kind.
    pub(crate) row: &'a Resource,
    /// The namespace; empty if the kind has none.
    pub(crate) namespace: &'a str,
    /// The name; empty for collections.
    pub(crate) name: &'a str,
    /// The subresource; empty for the object itself.
    pub(crate) subresource: &'a str,
    /// The media type of the body.
    pub(crate) content_type: &'a str,
    /// The body; null for none.
    pub(crate) body: &'a Value,
    /// The manager that owns the fields that the request changes; empty for that of the actor.
    pub(crate) manager: &'a str,
    /// The controller that acts; `None` for the server itself.
    pub(crate) actor: Option<Controller>,
    /// Whether the plane's limits apply.
    pub(crate) limits: PlaneLimits,
}

impl<'a> OwnRequest<'a> {
    pub(crate) fn new(verb: Verb, row: &'a Resource, namespace: &'a str, name: &'a str) -> Self {
        let body = &Value::Null;
        Self {
            verb,
            row,
            namespace,
            name,
            subresource: "",
            content_type: "application/json",
            body,
            manager: "",
            actor: None,
            limits: PlaneLimits::Exempt,
        }
    }

    /// Returns a request of a controller.
    pub(crate) fn of(
        actor: Controller,
        verb: Verb,
        row: &'a Resource,
        namespace: &'a str,
        name: &'a str,
    ) -> Self {
        Self {
            manager: actor.manager(),
            actor: Some(actor),
            ..Self::new(verb, row, namespace, name)
        }
    }

    /// Returns the user that acts.
    fn user(&self) -> UserInfo {
        match self.actor {
            Some(actor) => user_of(actor),
            None => UserInfo::new("system:apiserver", &["system:masters"]),
        }
    }

    /// Returns what the request means, for access and audit.
    pub(crate) fn subject(&self) -> Subject<'_> {
        Subject::Resource {
            group: &self.row.group,
            version: &self.row.version,
            resource: &self.row.name,
            subresource: self.subresource,
            namespace: self.namespace,
            name: self.name,
            field_selector: "",
        }
    }

    /// Returns what the plane grants to the user.
    ///
    /// # Errors
    /// Returns 403 if the plane's roles do not allow this to the controller.
    async fn authorize(
        &self,
        registry: &Registry,
        tenant: &Tenant,
        user: &Arc<UserInfo>,
        deadline: Instant,
        audited: Option<&mut Audited>,
    ) -> Result<GrantedAccess, ApiError> {
        if self.actor.is_none() {
            if let Some(audited) = audited {
                audited.decided(CheckedAccess::Allowed, String::new());
            }
            return Ok(GrantedAccess::of_every_cut());
        }
        let mut check = registry.access_check(tenant, deadline);
        if audited.is_some() {
            check.explain();
        }
        let passed = check.pass(user, self.verb.name(), self.subject()).await;
        if let Some(audited) = audited {
            audited.decided(check.last(), check.take_reason());
        }
        passed?;
        Ok(check.granted())
    }

    /// Returns the parameters of the request.
    pub(crate) fn query(&self) -> Vec<(String, String)> {
        let mut query = Vec::new();
        if !self.manager.is_empty() {
            query.push(("fieldManager".to_owned(), self.manager.to_owned()));
        }
        if self.content_type == APPLY {
            query.push(("force".to_owned(), "true".to_owned()));
        }
        query
    }

    /// Carries the request out, and records it if the audit's policy says so.
    ///
    /// # Errors
    /// Returns the error of the request; 500 if its arrival must be recorded and could not be.
    pub(crate) async fn send(
        self,
        client: &OwnClient,
        tenant: &Tenant,
    ) -> Result<Answer, ApiError> {
        let user = Arc::new(self.user());
        let audited = client.auditor.as_ref();
        let audited = audited.and_then(|auditor| Audited::begin(auditor, tenant, &self, &user));
        let Some(mut audited) = audited else {
            return self.carry_out(&client.registry, tenant, user, None).await;
        };
        audited.arrive().await?;
        let answer = self.carry_out(&client.registry, tenant, user, Some(&mut audited));
        let answer = answer.await;
        // What was done is done.
        drop(audited.end(&answer).wait().await);
        answer
    }

    /// Carries the request out.
    async fn carry_out(
        &self,
        registry: &Registry,
        tenant: &Tenant,
        user: Arc<UserInfo>,
        mut audited: Option<&mut Audited>,
    ) -> Result<Answer, ApiError> {
        let some = |text: &str| (!text.is_empty()).then(|| Str::from(text));
        let body = if self.body.is_null() {
            Bytes::new()
        } else {
            Bytes::from(json::to_vec(self.body))
        };
        let deadline = Instant::now() + PATIENCE;
        let granted = self.authorize(registry, tenant, &user, deadline, audited.as_deref_mut());
        let granted = granted.await?;
        let request = ResourceRequest {
            verb: self.verb,
            group: self.row.group.clone(),
            version: self.row.version.clone(),
            resource: self.row.name.clone(),
            namespace: some(self.namespace),
            name: some(self.name),
            subresource: some(self.subresource),
            query: self.query(),
            accept: "application/json".to_owned(),
            content_type: (!body.is_empty()).then(|| self.content_type.to_owned()),
            user_agent: USER_AGENT.to_owned(),
            body,
            user,
            granted,
            deadline,
            seats: self.limits.seats(),
            write_rate: None,
            annotations: audited.map(|audited| audited.annotations()),
            token_reviewer: None,
        };
        registry
            .handle_for(Requester::Server, tenant, &request)
            .await
    }
}

/// Returns the user that a controller acts as.
fn user_of(actor: Controller) -> UserInfo {
    if actor.is_manager() {
        return UserInfo::new(actor.account(), &[]).authenticated();
    }
    let name = format!("system:serviceaccount:kube-system:{}", actor.account());
    let groups = [
        "system:serviceaccounts",
        "system:serviceaccounts:kube-system",
    ];
    UserInfo::new(name, &groups).authenticated()
}

/// Returns the tree of a stored object, in the version that its kind is stored in today.
///
/// # Errors
/// Returns the errors of [`conversion::stored_tree`].
pub(crate) fn tree(kinds: &Kinds, object: &ObjectRef) -> Result<Value, ApiError> {
    conversion::stored_tree(kinds, object)
}

/// Returns the `metadata` of a stored object. Conversions change only its labels and annotations,
/// so it can be read even if this program cannot convert the object.
///
/// # Errors
/// Returns 500 if the object's bytes are damaged.
pub(crate) fn metadata(object: &ObjectRef) -> Result<Value, ApiError> {
    let mut tree = tree_of(&object.body())?;
    let mut only = Value::object();
    if let Some(metadata) = tree.remove(&["metadata"]) {
        only.set(&["metadata"], metadata);
    }
    Ok(only)
}

#[cfg(test)]
mod tests {
    use super::*;
    use polyplane_batteries::kind_tables::{features, schemas};
    use polyplane_plane::{Committer, Flags, Key, NewObject, Plane, SoleHolder};
    use polyplane_registry::strategy::Plain;
    use polyplane_registry::{KindTable, Strategy};
    use polyplane_storage::{MemoryOptions, MemoryStore, Revision, Store};

    /// A kind of config maps whose version v0 has the data in a field `values`.
    #[derive(Debug)]
    struct Values;

    impl Strategy for Values {
        fn to_stored(&self, _: &str, mut map: Value) -> Value {
            let values = map.remove(&["values"]).unwrap_or_default();
            map.set(&["data"], values);
            map
        }
    }

    const ROWS: &str = r#"{"groups": [{"name": "", "versions": [
      {"version": "v1", "resources": [{"name": "configmaps", "singular": "configmap",
        "kind": "ConfigMap", "namespaced": true, "definition": "io.k8s.api.core.v1.ConfigMap",
        "verbs": ["get", "list"]}]},
      {"version": "v0", "resources": [{"name": "configmaps", "singular": "configmap",
        "kind": "ConfigMap", "namespaced": true, "definition": "io.k8s.api.core.v1.ConfigMap",
        "storage": {"group": "", "resource": "configmaps", "version": "v1"},
        "verbs": ["get", "list"]}]}
    ]}]}"#;

    fn kinds() -> Kinds {
        let strategy = |_: &str, version: &str, _: &str| {
            Some(match version {
                "v0" => Arc::new(Values) as Arc<dyn Strategy>,
                _ => Arc::new(Plain),
            })
        };
        let table = KindTable::build(&[ROWS.as_bytes()], schemas(), features(), &strategy, 1);
        Kinds::new(Arc::new(table.expect("the rows are sound")), None)
    }

    async fn plane() -> Arc<Plane> {
        let store: Arc<dyn Store> = Arc::new(MemoryStore::new(MemoryOptions::default()));
        let guard = SoleHolder::take(Arc::clone(&store), "fence", "test").await;
        let guard = guard.expect("memory takes the fence");
        let plane = Plane::open(guard.empty_plane(Committer::new(store)));
        plane.await.expect("an empty plane opens")
    }

    #[tokio::test]
    async fn an_object_is_read_in_the_version_its_bytes_are_in() {
        let (kinds, plane) = (kinds(), plane().await);
        let stored = |version: &str| {
            let head = r#"{"metadata":{"name":"m","#;
            let object = NewObject {
                body: format!(r#"{head}"finalizers":["f"]}},"values":{{"k":"v"}}}}"#).into(),
                version_slot: head.len(),
                labels: None,
                storage_version: version.into(),
                expires: None,
                flags: Flags::NONE,
            };
            let key = Key::new("", "configmaps", Some("default"), "m");
            plane.unstored_object(key, &object, Revision(2), Revision(2))
        };
        let map = tree(&kinds, &stored("v0")).expect("it is converted");
        assert_eq!(map.str_at(&["data", "k"]), "v");
        // This program does not know the version, but `metadata` is the same in every version.
        tree(&kinds, &stored("v7")).expect_err("nobody can read it");
        let known = metadata(&stored("v7")).expect("it is the same in all");
        assert_eq!(known.items_at(&["metadata", "finalizers"]).len(), 1);
        assert!(known.get("values").is_none());
    }
}
