//! The traits through which the server reaches planes.
//!
//! A request goes through them in this order: the [`Backend`] locates a plane in memory, its
//! [`PlaneRecord`] has the CA and the tokens that prove a caller, and only a proven caller gets a
//! [`PlaneApi`], for which the plane may have to wake. The binary implements these traits with
//! ownership and registry, tests with fakes.

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

/// The planes behind the server, and what else it reports.
pub trait Backend: Send + Sync {
    /// Finds a plane in memory. A name that is not there may wait for the directory to catch up.
    fn locate<'a>(
        &'a self,
        plane: PlaneReference<'a>,
    ) -> Verdict<'a, Result<Arc<dyn PlaneRecord>, LocateError>>;

    /// Returns the number of the newest view of the ring that this replica knows; 0 without a ring.
    /// It is sent with each answer that names the new owner of a plane.
    fn view(&self) -> u64 {
        0
    }

    /// Waits a little until this replica has a view that a peer named: the replica with the older
    /// view catches up first.
    fn reach_view(&self, _view: u64) -> BoxFuture<'_, ()> {
        Box::pin(std::future::ready(()))
    }

    /// Returns whether a peer has answered the latest pings. Requests to one that has not wait
    /// until it answers again, or until another replica owns its planes. Called for each request
    /// that is forwarded.
    fn answers(&self, _peer: &Peer) -> bool {
        true
    }

    /// Returns the report at a path below `/polyplane/`, as JSON; `None` if there is no such path.
    /// Only called for members of `system:masters`.
    fn report<'a>(&'a self, _path: &'a str) -> Option<BoxFuture<'a, Result<Vec<u8>, ApiError>>> {
        None
    }

    /// Carries out a POST to a path below `/polyplane/` and returns the outcome as JSON; `None` if
    /// there is no such path. Only called for members of `system:masters`.
    fn command<'a>(&'a self, _path: &'a str) -> Option<BoxFuture<'a, Result<Vec<u8>, ApiError>>> {
        None
    }

    /// Returns the memory budget of the process, in which requests and answers are counted.
    fn memory(&self) -> Arc<Memory> {
        Arc::default()
    }

    /// Returns the checks behind `/livez`, `/readyz` and `/healthz`, in the order in which they are
    /// shown.
    fn checks(&self) -> Vec<HealthCheck> {
        Vec::new()
    }

    /// Adds the metrics of the layers behind the server. Called for each request for `/metrics`.
    fn expose_metrics(&self, _out: &mut Exposition) {}
}

/// The directory record of a plane, asleep or awake: enough to prove a caller.
pub trait PlaneRecord: Send + Sync {
    /// Returns the name, for messages and logs.
    fn name(&self) -> &str;

    /// Returns the immutable id, by which replicas name the plane.
    fn id(&self) -> &str;

    /// Which replica answers for the plane. Reads memory only.
    fn location(&self) -> Location;

    /// Returns the CA of the plane's client certificates.
    fn client_ca(&self) -> &ClientCa;

    /// Returns the authenticator of bearer tokens that needs no object of the plane.
    fn bearer(&self) -> &dyn Authenticator;

    /// Returns the plane itself, which is loaded if it was asleep. Only called for proven callers.
    fn wake(&self) -> Verdict<'_, Result<Arc<dyn PlaneApi>, LocateError>>;
}

/// An awake plane.
pub trait PlaneApi: Send + Sync {
    /// Returns the kinds that the plane serves now.
    fn kinds(&self) -> Kinds;

    /// Returns the kinds in which it is certain whether the plane serves this group, version and
    /// resource: no write under way changes it.
    fn settled_kinds<'a>(
        &'a self,
        wanted: (&'a str, &'a str, &'a str),
        deadline: tokio::time::Instant,
    ) -> BoxFuture<'a, Result<Kinds, ApiError>> {
        let _ = (wanted, deadline);
        Box::pin(std::future::ready(Ok(self.kinds())))
    }

    /// Decides for one request who may do what.
    fn access_check(
        &self,
        deadline: tokio::time::Instant,
    ) -> Verdict<'_, Result<AccessCheck<'_>, ApiError>>;

    /// Carries out an authorized request.
    fn handle(&self, request: ResourceRequest) -> BoxFuture<'_, Result<Answer, ApiError>>;
}

/// Which of the three health paths run a check.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CheckScope {
    /// All three: a restart would heal its failure.
    Live,
    /// `/readyz` and `/healthz`: its failure heals without a restart.
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
