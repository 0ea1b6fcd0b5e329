//! A request to the registry: one verb on one resource, with nothing of HTTP left in it but
//! media types and query parameters, which are part of the Kubernetes API.

pub mod body;
pub mod call;
pub mod options;
pub mod parameters;

use crate::authority::GrantedAccess;
use bytes::Bytes;
use polyplane_apimachinery::Str;
use polyplane_apimachinery::status::ApiError;
use polyplane_auth::UserInfo;
use std::fmt::Debug;
use std::sync::Arc;
use tokio::time::Instant;

/// What a request wants done.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Verb {
    /// Read one object.
    Get,
    /// Read many.
    List,
    /// Follow changes.
    Watch,
    /// Make an object.
    Create,
    /// Replace an object.
    Update,
    /// Change parts of an object.
    Patch,
    /// Remove one object.
    Delete,
    /// Remove many.
    DeleteCollection,
    /// Talk through to a pod, node or service.
    Connect,
}

impl Verb {
    /// The verb's name in discovery, authorization, audit and metrics.
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
    /// What to do.
    pub verb: Verb,
    /// API group, empty for core.
    pub group: Str,
    /// API version.
    pub version: Str,
    /// Plural name of the resource.
    pub resource: Str,
    /// Namespace of the path, if it has one.
    pub namespace: Option<Str>,
    /// Name of the path, if it has one.
    pub name: Option<Str>,
    /// Subresource of the path, if it has one.
    pub subresource: Option<Str>,
    /// Query parameters, decoded, in the order of the request.
    pub query: Vec<(String, String)>,
    /// The Accept header, empty if absent.
    pub accept: String,
    /// The Content-Type header.
    pub content_type: Option<String>,
    /// The User-Agent header, empty if absent.
    pub user_agent: String,
    /// The body; its length has been checked against the limit.
    pub body: Bytes,
    /// Who asks.
    pub user: Arc<UserInfo>,
    /// The accesses that it was granted, checked again in each state that it reads or writes.
    pub granted: GrantedAccess,
    /// When the answer is of no use any more.
    pub deadline: Instant,
    /// The seats of which it holds one; `None` if it needs none.
    pub seats: Option<Arc<dyn Seats>>,
}

/// The seats of requests in flight at a server. A request that waits for others to answer gives its
/// seat back: those others may have requests of their own, which need one.
pub trait Seats: Debug + Send + Sync {
    /// Gives a seat back for as long as its request waits.
    ///
    /// # Errors
    /// 429 if too many wait already; the seat is kept.
    fn leave(&self) -> Result<(), ApiError>;

    /// Takes a seat again after the wait, free or not.
    fn return_to(&self);
}
