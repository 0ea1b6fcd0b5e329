//! A request to the registry: one verb on one resource. Of HTTP it has only media types and query
//! parameters, which are part of the Kubernetes API.

pub mod body;
pub mod call;
pub mod options;
pub mod parameters;
pub(crate) mod trees;
pub mod wait;
pub mod warnings;

use crate::authority::GrantedAccess;
use bytes::Bytes;
use parking_lot::Mutex;
use polyplane_apimachinery::Str;
use polyplane_apimachinery::status::ApiError;
use polyplane_auth::{Authenticator, UserInfo};
use std::fmt::{self, Debug};
use std::sync::Arc;
use tokio::time::Instant;

/// The verb of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Verb {
    /// Read one object.
    Get,
    /// Read many objects.
    List,
    /// Follow changes.
    Watch,
    /// Create an object.
    Create,
    /// Replace an object.
    Update,
    /// Change parts of an object.
    Patch,
    /// Remove one object.
    Delete,
    /// Remove many objects.
    DeleteCollection,
    /// Open a stream to a pod, node or service.
    Connect,
}

impl Verb {
    /// Returns the verb's name in discovery, authorization, audit and metrics.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Get => "get",
            Self::List => "list",
            Self::Watch => "watch",
            Self::Create => "create",
            Self::Update => "update",
            Self::Patch => "patch",
            Self::Delete => "delete",
            Self::DeleteCollection => "deletecollection",
            Self::Connect => "connect",
        }
    }
}

/// One request for a resource, already routed, authenticated and authorized.
#[derive(Clone, Debug)]
pub struct ResourceRequest {
    /// The verb.
    pub verb: Verb,
    /// The API group, empty for core.
    pub group: Str,
    /// API version.
    pub version: Str,
    /// Plural name of the resource.
    pub resource: Str,
    /// The namespace of the path, if it has one.
    pub namespace: Option<Str>,
    /// The name of the path, if it has one.
    pub name: Option<Str>,
    /// The subresource of the path, if it has one.
    pub subresource: Option<Str>,
    /// Query parameters, decoded, in the order of the request.
    pub query: Vec<(String, String)>,
    /// The Accept header, empty if absent.
    pub accept: String,
    /// The Content-Type header.
    pub content_type: Option<String>,
    /// The User-Agent header, empty if absent.
    pub user_agent: String,
    /// The body. Its length has been checked against the limit.
    pub body: Bytes,
    /// The authenticated user.
    pub user: Arc<UserInfo>,
    /// The accesses that the request was granted, which are checked again in each state that it
    /// reads or writes.
    pub granted: GrantedAccess,
    /// The time after which the answer is of no use any more.
    pub deadline: Instant,
    /// The seats of which the request holds one; `None` if it needs none.
    pub seats: Option<Arc<dyn Seats>>,
    /// The plane's rate of writes, if one request may make many; `None` if it is not limited.
    pub write_rate: Option<Arc<dyn WriteRate>>,
    /// Where stages say what its audit should tell; `None` if it is not recorded.
    pub annotations: Option<Arc<Annotations>>,
    /// Judges the tokens in reviews that the plane has not issued; `None` if nobody does.
    pub token_reviewer: Option<TokenReviewer>,
}

impl ResourceRequest {
    /// Returns the request for a stream that outlives the call: without body, query, headers and seats,
    /// which the stream does not need and which may be long, and with the deadline `ends`. The request's own
    /// deadline bounds only the time until a watch begins.
    pub(crate) fn for_stream(&self, ends: Instant) -> Self {
        Self {
            verb: self.verb,
            group: self.group.clone(),
            version: self.version.clone(),
            resource: self.resource.clone(),
            namespace: self.namespace.clone(),
            name: self.name.clone(),
            subresource: self.subresource.clone(),
            query: Vec::new(),
            accept: String::new(),
            content_type: None,
            user_agent: String::new(),
            body: Bytes::new(),
            user: Arc::clone(&self.user),
            granted: self.granted.clone(),
            deadline: ends,
            // The seat covered only the request until its answer began.
            seats: None,
            write_rate: None,
            annotations: None,
            token_reviewer: None,
        }
    }
}

/// Judges tokens of others than the plane, which prove users of the plane.
#[derive(Clone)]
pub struct TokenReviewer(pub Arc<dyn Authenticator>);

impl Debug for TokenReviewer {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str("TokenReviewer")
    }
}

/// What stages of a request say about it in its audit, by keys with a domain.
#[derive(Debug, Default)]
pub struct Annotations(Mutex<Vec<(&'static str, String)>>);

impl Annotations {
    /// Adds one. Of several with the same key the last one counts, because stages may run again.
    pub fn add(&self, key: &'static str, value: String) {
        self.0.lock().push((key, value));
    }

    /// Removes and returns all, in the order in which they were added.
    pub fn take(&self) -> Vec<(&'static str, String)> {
        std::mem::take(&mut self.0.lock())
    }
}

/// The seats of requests in flight at a server. A request that waits for the answer of a webhook
/// returns its seat, because the webhook may make requests of its own, which need one.
pub trait Seats: Debug + Send + Sync {
    /// Returns a seat for the time that its request waits.
    ///
    /// # Errors
    /// Returns 429 if too many requests wait already; the seat is kept.
    fn leave(&self) -> Result<(), ApiError>;

    /// Takes a seat again after the wait, even if none is free.
    fn return_to(&self);
}

/// The rate of writes that a plane has. A request that deletes many objects counts each of them.
pub trait WriteRate: Debug + Send + Sync {
    /// Counts one more write.
    ///
    /// # Errors
    /// Returns 429 if it is beyond the rate.
    fn take(&self) -> Result<(), ApiError>;
}
