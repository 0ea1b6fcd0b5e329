//! The traits through which the server reaches planes.
//!
//! A request uses them in this order: the [`Backend`] locates a plane in memory, its
//! [`PlaneRecord`] has the CA and the tokens that prove a caller, and only a proven caller gets a
//! [`PlaneApi`], for which the plane may have to wake. The binary implements these traits with
//! ownership and registry, tests with fakes.

use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;

use polyplane_apimachinery::schema::Schemas;
use polyplane_apimachinery::status::ApiError;
use polyplane_auth::service_account::issuer::TokenIssuer;
use polyplane_auth::{
    Authenticator, BootstrapToken, ChainJudge, ClientChain, Credentials, UserInfo, Verdict,
};
use polyplane_fairness::{PlaneMeter, VirtualTime};
use polyplane_plane::{Memory, Reservation, Share, Snapshot};
use polyplane_registry::{AccessCheck, Answer, Kinds, ResourceRequest};

use crate::nodes::{KubeletTls, KubeletTlsError};
use crate::operations::exposition::Exposition;
use crate::request::route::PlaneReference;

/// A future that a trait object returns.
pub type BoxFuture<'a, T> = Pin<Box<dyn Future<Output = T> + Send + 'a>>;

/// Another replica, as this one reaches it.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Peer {
    /// The replica's id.
    pub replica: String,
    /// Host and port of the replica's peer listener.
    pub address: String,
}

/// The replica that answers for a plane, as far as this replica knows.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Location {
    /// This replica: it owns the plane, or is the one that should take it.
    Here,
    /// Another replica.
    There(Peer),
    /// No replica at the moment; the ring finds one without a request.
    Nobody,
}

/// The reason why a plane cannot be served.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum LocateError {
    /// No plane has this name or id.
    #[error("no such control plane")]
    NotFound,
    /// The plane may not be reached by this name or id.
    #[error("the control plane may not be reached")]
    Forbidden,
    /// The plane exists and cannot be served at the moment; the client may retry.
    #[error("the control plane is not available")]
    Unavailable,
    /// Neither this plane nor another one can be served, because the store does not answer.
    #[error(
        "the control plane is not available, because the server's store does not answer; /readyz/etcd \
         says why"
    )]
    StoreAway,
    /// The plane is encrypted at rest, and this replica cannot unwrap its key.
    #[error(
        "the control plane is encrypted at rest, and this server does not have the key; the log of \
         the server says which"
    )]
    Sealed,
    /// The plane is at no replica, because it sleeps or its replica has died, and taking it is a write,
    /// which the store refuses for this reason.
    #[error(
        "the control plane is not available, because no replica can take it while the store takes no \
         writes: {0}"
    )]
    StoreReadOnly(String),
    /// This replica has not joined its ring, for this reason, and does not know which planes there are.
    #[error("the control plane is not available here: {0}")]
    NotJoined(String),
    /// The plane is being deleted.
    #[error("the control plane is being deleted")]
    Deleting,
    /// The plane is suspended.
    #[error(
        "the control plane is suspended; an administrator of the server can resume it with \
         `kubectl plane resume`"
    )]
    Suspended,
    /// Another replica answers for the plane, named if it is known. This replica did nothing.
    #[error("the control plane is served by another replica")]
    Moved(Option<Peer>),
}

/// The reason why it cannot be said whom a bootstrap token proves.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum NotJudged {
    /// The plane sleeps, and was, or others were, woken too often for callers who are not proven.
    TooManyWakes,
    /// The plane cannot be read here.
    Plane(LocateError),
}

/// Access to planes, and everything else that the server reports.
pub trait Backend: Send + Sync {
    /// Finds a plane in memory. For an unknown name, the call may wait for the directory to catch
    /// up.
    fn locate<'a>(
        &'a self,
        plane: PlaneReference<'a>,
    ) -> Verdict<'a, Result<Arc<dyn PlaneRecord>, LocateError>>;

    /// Returns whether the records of planes may decide now who somebody is, once they may: a replica
    /// that has lost touch with the store does not know who may not use a plane any more.
    fn is_fresh(&self) -> Verdict<'_, bool> {
        Verdict::now(true)
    }

    /// Returns whether this replica may answer from memory now: it may not while it has lost touch with the
    /// store.
    fn may_answer(&self) -> bool {
        true
    }

    /// Returns whether this replica knows which planes there are, and by that who could prove a caller. One
    /// that has not joined its ring does not.
    fn knows_planes(&self) -> bool {
        true
    }

    /// Returns why records are not known to be current, as a text for clients, if the reason is known.
    fn stale_reason(&self) -> Option<&'static str> {
        None
    }

    /// Returns the schemas of the built-in types, by which answers are written in protobuf.
    fn schemas(&self) -> Arc<Schemas>;

    /// Returns the number of the newest view of the ring that this replica knows; 0 without a ring.
    /// It is sent with each answer that names the new owner of a plane.
    fn view(&self) -> u64 {
        0
    }

    /// Waits a short time until this replica has a view that a peer named, so that of two replicas
    /// the one with the older view catches up first.
    fn reach_view(&self, _view: u64) -> BoxFuture<'_, ()> {
        Box::pin(std::future::ready(()))
    }

    /// Returns whether a peer has answered the latest pings. Requests to a peer that has not
    /// answered wait until it does, or until another replica owns its planes. The server calls this
    /// for each request that it forwards.
    fn answers(&self, _peer: &Peer) -> bool {
        true
    }

    /// Returns the report at a path below `/polyplane/`, as JSON, or `None` if there is no such
    /// path. The server calls this only for members of `system:masters`.
    fn report<'a>(&'a self, _path: &'a str) -> Option<BoxFuture<'a, Result<Vec<u8>, ApiError>>> {
        None
    }

    /// Carries out a POST to a path below `/polyplane/` and returns the outcome as JSON, or `None`
    /// if there is no such path. The server calls this only for members of `system:masters`.
    fn command<'a>(&'a self, _path: &'a str) -> Option<BoxFuture<'a, Result<Vec<u8>, ApiError>>> {
        None
    }

    /// Returns the virtual time in which planes have their turns.
    fn virtual_time(&self) -> Arc<VirtualTime> {
        Arc::default()
    }

    /// Returns the memory budget of the process, in which the server counts requests and answers.
    fn memory(&self) -> Arc<Memory> {
        Arc::default()
    }

    /// Returns the checks behind `/livez`, `/readyz` and `/healthz`, in the order in which they are
    /// shown.
    fn checks(&self) -> Vec<HealthCheck> {
        Vec::new()
    }

    /// Adds the metrics of the layers behind the server. The server calls this for each request for
    /// `/metrics`.
    fn expose_metrics(&self, _out: &mut Exposition) {}
}

/// The directory record of a plane, asleep or awake: enough to prove a caller.
pub trait PlaneRecord: Send + Sync {
    /// Returns the plane's name, for messages and logs.
    fn name(&self) -> &str;

    /// Returns the immutable id, by which replicas name the plane to each other.
    fn id(&self) -> &str;

    /// Returns whether this is still what the directory says about who may use the plane. Reads memory
    /// only.
    fn is_current(&self) -> bool {
        true
    }

    /// Returns whether the plane is suspended: every request of a proven caller is refused.
    fn is_suspended(&self) -> bool {
        false
    }

    /// Returns which replica answers for the plane. Reads memory only.
    fn location(&self) -> Location;

    /// Returns what counts the plane's requests at this replica, and has the plane's limits.
    fn meter(&self) -> &Arc<PlaneMeter>;

    /// Returns the judge of clients' certificates.
    fn clients(&self) -> &dyn ChainJudge;

    /// Returns the authenticator of bearer tokens. It needs no object of the plane: whether what a
    /// token rests on still exists is decided in the state that the request reads.
    fn bearer(&self) -> &dyn Authenticator;

    /// Returns whether bootstrap tokens prove users of the plane. Reads memory only.
    fn takes_bootstrap_tokens(&self) -> bool {
        false
    }

    /// Returns the user whom the bootstrap token of some credentials proves in the newest state of the plane;
    /// `None` if it proves nobody. The server calls this at the owner, for callers who are not proven, so a
    /// plane that sleeps is woken for it at a bounded rate, of which one source has a part, and the wait ends
    /// at the deadline.
    fn bootstrapper<'a>(
        &'a self,
        _token: &'a BootstrapToken,
        _credentials: &'a Credentials<'a>,
        _deadline: tokio::time::Instant,
    ) -> BoxFuture<'a, Result<Option<Arc<UserInfo>>, NotJudged>> {
        Box::pin(std::future::ready(Ok(None)))
    }

    /// Returns what judges tokens of others whom the plane believes, for reviews; `None` if it believes nobody.
    fn token_reviewer(&self) -> Option<Arc<dyn Authenticator>> {
        None
    }

    /// Returns the issuer of the plane's tokens; `None` if it issues none. Reads memory only.
    fn token_issuer(&self) -> Option<Arc<TokenIssuer>> {
        None
    }

    /// Replaces the certificate of one of the plane's own users by another for the same user, with the
    /// public key that the body names. Returns the JSON of a Credential. Reads memory only.
    ///
    /// # Errors
    /// Returns the error for the client if the certificate may not be replaced.
    fn renew(&self, _chain: &ClientChain, _body: &[u8]) -> Result<Vec<u8>, ApiError> {
        let why = "the control plane issues no certificates";
        Err(ApiError::bad_request(why))
    }

    /// Returns the certificates of the plane for its own kubelets.
    ///
    /// # Errors
    /// Returns an error if the plane has no keys of its own.
    fn kubelet_tls(&self) -> Result<KubeletTls, KubeletTlsError> {
        let why = "the control plane has no keys of its own";
        Err(KubeletTlsError(why.to_owned()))
    }

    /// Returns the plane itself, and loads it if it is asleep. The server calls this only for
    /// proven callers.
    fn wake(&self) -> Verdict<'_, Result<Arc<dyn PlaneApi>, LocateError>>;
}

/// An awake plane.
pub trait PlaneApi: Send + Sync {
    /// Returns the kinds that the plane serves now.
    fn kinds(&self) -> Kinds;

    /// Returns a version of the kinds in which no write under way can change whether the plane
    /// serves this group, version and resource.
    fn settled_kinds<'a>(
        &'a self,
        wanted: (&'a str, &'a str, &'a str),
        deadline: tokio::time::Instant,
    ) -> BoxFuture<'a, Result<Kinds, ApiError>> {
        let _ = (wanted, deadline);
        Box::pin(std::future::ready(Ok(self.kinds())))
    }

    /// Returns the newest acknowledged state, which has the plane's flow schemas and priority levels;
    /// `None` for a plane without objects, whose requests are not classified.
    fn state(&self) -> Option<Snapshot> {
        None
    }

    /// Returns the check that decides for one request who may do what.
    fn access_check(&self, deadline: tokio::time::Instant) -> AccessCheck<'_>;

    /// Notes that a request was proven by a token that lives as long as the Secret that holds it.
    fn held_token_used(&self, _namespace: &str, _secret: &str) {}

    /// Returns the length of the stored object that a request names, or of the plane's own objects of the
    /// collection that it is for. Reads memory only.
    fn object_bytes(&self, _request: &ResourceRequest) -> usize {
        0
    }

    /// Reserves memory of a share for the plane; `None` if there is too little left, or if the plane would leave too little
    /// to others. A plane without objects has a budget of its own.
    fn take_memory(&self, share: Share, bytes: usize) -> Option<Reservation> {
        Arc::<Memory>::default().take(share, bytes)
    }

    /// Carries out an authorized request.
    fn handle(&self, request: ResourceRequest) -> BoxFuture<'_, Result<Answer, ApiError>>;
}

/// The health paths that show a check.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CheckScope {
    /// All three paths, because a restart would heal a failure.
    Live,
    /// All three paths, but it passes on `/livez` in any case, as in upstream's grace period: a
    /// restart would only begin the start anew.
    Start,
    /// `/readyz` and `/healthz`, because a failure heals without a restart.
    Ready,
    /// `/readyz` alone, as upstream's check of this name.
    ReadyOnly,
}

/// A named check. The text of a failure is logged and never shown to a client.
#[derive(Clone)]
pub struct HealthCheck {
    /// The name in the path and the listing.
    pub name: &'static str,
    /// The paths that show the check.
    pub scope: CheckScope,
    /// The check itself, which reads memory only.
    pub check: Arc<dyn Fn() -> Result<(), String> + Send + Sync>,
}
