//! Requests that the server makes of its own registry.

use bytes::Bytes;
use polyplane_apimachinery::status::ApiError;
use polyplane_apimachinery::{Str, Value, json};
use polyplane_auth::UserInfo;
use polyplane_registry::{Answer, Permit, Registry, Resource, ResourceRequest, Tenant, Verb};
use std::sync::Arc;
use std::time::Duration;
use tokio::time::Instant;

/// How long one of the server's own requests may take.
const PATIENCE: Duration = Duration::from_secs(30);

/// One request, addressed.
pub(crate) struct Own<'a> {
    /// What to do.
    pub(crate) verb: Verb,
    /// The kind.
    pub(crate) row: &'a Resource,
    /// Namespace, empty if the kind has none.
    pub(crate) namespace: &'a str,
    /// Name, empty for collections.
    pub(crate) name: &'a str,
    /// Subresource, empty for the object itself.
    pub(crate) subresource: &'a str,
    /// Media type of the body.
    pub(crate) content_type: &'a str,
    /// The body; null for none.
    pub(crate) body: &'a Value,
}

impl<'a> Own<'a> {
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
        }
    }

    pub(crate) async fn send(
        self,
        registry: &Registry,
        tenant: &Tenant,
    ) -> Result<Answer, ApiError> {
        let some = |text: &str| (!text.is_empty()).then(|| Str::from(text));
        let body = if self.body.is_null() {
            Bytes::new()
        } else {
            Bytes::from(json::to_vec(self.body))
        };
        let request = ResourceRequest {
            verb: self.verb,
            group: self.row.group.clone(),
            version: self.row.version.clone(),
            resource: self.row.name.clone(),
            namespace: some(self.namespace),
            name: some(self.name),
            subresource: some(self.subresource),
            query: Vec::new(),
            accept: "application/json".to_owned(),
            content_type: (!body.is_empty()).then(|| self.content_type.to_owned()),
            user_agent: "polyplane".to_owned(),
            body,
            user: Arc::new(UserInfo::new("system:apiserver", &["system:masters"])),
            permit: Permit::in_all_cuts(),
            deadline: Instant::now() + PATIENCE,
            seats: None,
        };
        registry.handle(tenant, &request).await
    }
}

/// The tree of a stored object.
pub(crate) fn tree(object: &polyplane_plane::ObjectRef) -> Value {
    let parsed = json::parse(&object.body(), &json::Limits::default());
    parsed.map(|parsed| parsed.value).unwrap_or_default()
}
