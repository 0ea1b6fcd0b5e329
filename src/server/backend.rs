//! What the server needs of everything behind it.
//!
//! Three steps mirror the life of a request: a [`Backend`] locates a plane by memory alone, its
//! [`PlaneRecord`] holds what proves a caller, and only a proven caller gets a [`PlaneApi`], which
//! may have to wake the plane first. The binary implements these over ownership and registry;
//! tests implement them over nothing.

use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;

use polyplane_apimachinery::status::ApiError;
use polyplane_auth::{Authenticator, ClientCa, Verdict};
use polyplane_plane::Memory;
use polyplane_registry::{AccessCheck, Answer, Kinds, ResourceRequest};

use crate::operations::exposition::Exposition;
use crate::request::route::PlaneReference;

/// A future that a trait object returns.
pub type BoxFuture<'a, T> = Pin<Box<dyn Future<Output = T> + Send + 'a>>;

/// Another replica, as peers reach it.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Peer {
    /// Its id.
    pub replica: String,
    /// Host and port of its peer listener.
    pub address: String,
}

/// Which replica answers for a plane, as far as this replica knows.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Location {
    /// This one: it owns the plane, or is the one that should take it.
    Here,
    /// Another one.
    There(Peer),
    /// None at the moment; the ring changes that without a request.
    Nobody,
}

/// Why a plane cannot be served.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum LocateError {
    /// No plane has this name or id.
    #[error("no such control plane")]
    NotFound,
    /// The plane may not be reached this way.
    #[error("the control plane may not be reached")]
    Forbidden,
    /// The plane is there and cannot be served at the moment; try again.
    #[error("the control plane is not available")]
    Unavailable,
    /// The plane is being deleted.
    #[error("the control plane is being deleted")]
    Deleting,
    /// Another replica answers for the plane, named if it is known. Nothing was done here.
    #[error("the control plane is served by another replica")]
    Moved(Option<Peer>),
}

/// Everything behind the server.
pub trait Backend: Send + Sync {
    /// Finds a plane. Looks into memory only, except that a name this replica has not heard of yet
    /// may wait for the directory.
    fn locate<'a>(
        &'a self,
        plane: PlaneReference<'a>,
    ) -> Verdict<'a, Result<Arc<dyn PlaneRecord>, LocateError>>;

    /// The number of the newest view of the ring that this replica knows; 0 without a ring. It
    /// travels beside an answer that says where a plane went.
    fn view(&self) -> u64 {
        0
    }

    /// Waits a little until this replica knows a view that another one has spoken of: who has the
    /// older view catches up first.
    fn reach_view(&self, _view: u64) -> BoxFuture<'_, ()> {
        Box::pin(std::future::ready(()))
    }

    /// Whether a peer has lately answered what this replica asks it all the time. Nothing new is sent
    /// to one that has not: it waits until the peer answers again, or until another replica has what
    /// was the peer's. Called for each request that is sent on.
    fn answers(&self, _peer: &Peer) -> bool {
        true
    }

    /// What a path below `/polyplane/` shows, as JSON; `None` if there is no such path. Only
    /// masters are shown it.
    fn report<'a>(&'a self, _path: &'a str) -> Option<BoxFuture<'a, Result<Vec<u8>, ApiError>>> {
        None
    }

    /// Does what a POST to a path below `/polyplane/` asks for, and shows the outcome as JSON;
    /// `None` if there is no such path. Only masters may ask.
    fn command<'a>(&'a self, _path: &'a str) -> Option<BoxFuture<'a, Result<Vec<u8>, ApiError>>> {
        None
    }

    /// The memory budget of the process, which is told what requests take of it.
    fn memory(&self) -> Arc<Memory> {
        Arc::default()
    }

    /// The checks behind `/livez`, `/readyz` and `/healthz`, in the order in which they are shown.
    fn checks(&self) -> Vec<HealthCheck> {
        Vec::new()
    }

    /// Adds the measures of the layers behind the server. Called when somebody asks for metrics.
    fn expose_metrics(&self, _out: &mut Exposition) {}
}

/// A plane as its directory record knows it: enough to prove a caller, asleep or awake.
pub trait PlaneRecord: Send + Sync {
    /// The name, for messages and logs.
    fn name(&self) -> &str;

    /// The immutable id, by which replicas name the plane to each other.
    fn id(&self) -> &str;

    /// Which replica answers for the plane. Reads memory only.
    fn location(&self) -> Location;

    /// The CA of the plane's client certificates.
    fn client_ca(&self) -> &ClientCa;

    /// What proves bearer tokens without looking at any object.
    fn bearer(&self) -> &dyn Authenticator;

    /// The plane itself, loaded if it was asleep. Only called for proven callers.
    fn wake(&self) -> Verdict<'_, Result<Arc<dyn PlaneApi>, LocateError>>;
}

/// An awake plane.
pub trait PlaneApi: Send + Sync {
    /// The kinds it serves now.
    fn kinds(&self) -> Kinds;

    /// The kinds in which it is certain whether the plane serves this group, version and resource:
    /// no write under way changes it.
    fn settled_kinds<'a>(
        &'a self,
        wanted: (&'a str, &'a str, &'a str),
        deadline: tokio::time::Instant,
    ) -> BoxFuture<'a, Result<Kinds, ApiError>> {
        let _ = (wanted, deadline);
        Box::pin(std::future::ready(Ok(self.kinds())))
    }

    /// Its door for one request.
    fn access_check(
        &self,
        deadline: tokio::time::Instant,
    ) -> Verdict<'_, Result<AccessCheck<'_>, ApiError>>;

    /// Carries out an authorized request.
    fn handle(&self, request: ResourceRequest) -> BoxFuture<'_, Result<Answer, ApiError>>;
}

/// Which of the three health paths shows a check.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CheckScope {
    /// All three: what is wrong here is healed by a restart.
    Live,
    /// `/readyz` and `/healthz`: what is wrong here heals by itself.
    Ready,
}

/// A named check. Its failure text is logged and never shown.
#[derive(Clone)]
pub struct HealthCheck {
    /// The name in the path and the listing.
    pub name: &'static str,
    /// Where it is shown.
    pub scope: CheckScope,
    /// The check; looks at memory only.
    pub check: Arc<dyn Fn() -> Result<(), String> + Send + Sync>,
}
