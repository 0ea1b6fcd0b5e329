//! Proves callers by bootstrap tokens, which only the owner of their plane can judge.
//!
//! A replica that does not own the plane asks the owner before it counts the caller as proven, reads a body,
//! takes a seat or forwards: it sends the head of the request as a GET without a body, marked with [`PROVES`],
//! and gets 204 or a refusal. What the owner says is used for this request alone. It proves the caller again
//! when the request itself arrives, in the state that the request reads.
//!
//! All of this is unproven work: it takes its turns in the doorway, at both replicas, and what waits is
//! bounded (`request::proofs`). If there is no room, or the plane has been woken too often for such callers,
//! the answer is 429 with `Retry-After`: clients of upstream repeat that, while a 401 would end a kubelet that
//! has a good token.

use std::pin::pin;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use bytes::Bytes;
use http::{HeaderValue, Method, StatusCode};
use polyplane_apimachinery::status::ApiError;
use polyplane_auth::{BootstrapToken, UserInfo};
use tokio::time::Instant;

use crate::answer::body::ResponseBody;
use crate::answer::respond::{Refusal, Reply, bare};
use crate::backend::{LocateError, NotJudged, Peer, PlaneRecord};
use crate::peer::forward::{Destination, OwnerSearch, Sent};
use crate::peer::headers::{MOVED, MovedTo, PROVES};
use crate::peer::wire::PeerBody;
use crate::pipeline::Pipeline;
use crate::request::doorway::Source;
use crate::request::prove::{Located, Proven, unavailable};
use crate::request::seats::too_many;

/// The longest time that a proof may wait for the owner, or for the plane to wake. With more, strangers would
/// hold places of others for longer; with less, a plane of many objects could not wake in time.
pub(crate) const PROOF_TIME_MAX: Duration = Duration::from_secs(5);

/// What the owner of a plane says of a bootstrap token.
enum Judged {
    /// It proves this user.
    User(Arc<UserInfo>),
    /// It proves nobody.
    Nobody,
    /// Another replica owns the plane by now.
    Moved,
}

/// Returns the reply to a peer that asks for a proof of a caller who is proven.
pub(crate) fn proven_reply() -> Reply {
    bare(StatusCode::NO_CONTENT, ResponseBody::empty())
}

impl Pipeline<'_> {
    /// Proves the bearer of a bootstrap token; returns `None` if the token proves nobody.
    ///
    /// # Errors
    /// Returns 429 or 503 if that cannot be told now, and *moved* to a peer if another replica owns the plane.
    pub(crate) async fn prove_bootstrapper(
        &self,
        located: &Located,
        token: BootstrapToken,
        now: SystemTime,
    ) -> Result<Option<Proven>, Refusal> {
        let source = Source::of(self.caller.connection.address());
        let proof = pin!(self.prove_by_owner(located, token, now));
        let waiting = self.state.proofs.wait(located.record().id(), source, proof);
        let judged = waiting.await;
        judged.unwrap_or_else(|| Err(Refusal::unsettled(too_many())))
    }

    /// Has the owner of the plane judge the token, wherever that is.
    async fn prove_by_owner(
        &self,
        located: &Located,
        token: BootstrapToken,
        now: SystemTime,
    ) -> Result<Option<Proven>, Refusal> {
        let record = &**located.record();
        let deadline = Instant::now() + PROOF_TIME_MAX;
        let mut search = OwnerSearch::new(&*self.state.backend, deadline);
        loop {
            let destination = self.destination(record, &mut search).await;
            match destination.map_err(unsettled)? {
                Destination::Moved => return Err(ApiError::moved().into()),
                Destination::Unknown => {}
                Destination::Peer(peer) => {
                    let asked = self.ask_owner((&peer, located), deadline, &mut search);
                    match asked.await.map_err(unsettled)? {
                        None => {}
                        Some(true) => {
                            let user = Arc::new(token.user());
                            return Ok(Some(Proven::by_bootstrap_token(user, token)));
                        }
                        Some(false) => return Ok(None),
                    }
                }
                Destination::Here => match self.judged_here(record, &token, now, deadline).await? {
                    Judged::User(user) => {
                        return Ok(Some(Proven::by_bootstrap_token(user, token)));
                    }
                    Judged::Nobody => return Ok(None),
                    Judged::Moved => search.pause().await.map_err(unsettled)?,
                },
            }
        }
    }

    /// Judges the token as the owner of the plane.
    async fn judged_here(
        &self,
        record: &dyn PlaneRecord,
        token: &BootstrapToken,
        now: SystemTime,
        deadline: Instant,
    ) -> Result<Judged, Refusal> {
        let credentials = self.credentials(now);
        match record.bootstrapper(token, &credentials, deadline).await {
            Ok(Some(user)) => Ok(Judged::User(user)),
            Ok(None) => Ok(Judged::Nobody),
            Err(NotJudged::TooManyWakes) => Err(Refusal::unsettled(too_many())),
            Err(NotJudged::Plane(why)) => match why {
                LocateError::Moved(_) if self.is_direct() => Ok(Judged::Moved),
                LocateError::Moved(_) => Err(ApiError::moved().into()),
                // As for a plane that does not exist.
                LocateError::NotFound
                | LocateError::Deleting
                | LocateError::Forbidden
                | LocateError::Suspended => Ok(Judged::Nobody),
                LocateError::Unavailable
                | LocateError::StoreAway
                | LocateError::Sealed
                | LocateError::StoreReadOnly(_)
                | LocateError::NotJoined(_) => Err(Refusal::unsettled(unavailable(&why))),
            },
        }
    }

    /// Asks the owner whether it can prove the caller; returns `None` if the owner has to be found anew.
    ///
    /// # Errors
    /// Returns the refusal of a caller whom the owner cannot judge now.
    async fn ask_owner(
        &self,
        (peer, located): (&Peer, &Located),
        deadline: Instant,
        search: &mut OwnerSearch<'_>,
    ) -> Result<Option<bool>, Refusal> {
        let Some(side) = self.state.peers.as_ref() else {
            return Err(ApiError::internal("there is no way to other replicas").into());
        };
        if !self.state.backend.answers(peer) {
            search.pause().await?;
            return Ok(None);
        }
        let mut request = self.peer_request((peer, located), Bytes::new(), deadline, None)?;
        *request.method_mut() = Method::GET;
        let marked = HeaderValue::from_static("1");
        request.headers_mut().insert(PROVES, marked);
        // Not the plane, which may know nothing of the caller.
        *request.body_mut() = PeerBody::new([Bytes::new()]).paid_by(&self.state.unproven);
        let link = side.transport.pool().link(peer);
        match self.send(&side.transport, &link, &request, deadline).await {
            Sent::Answer(response) => match response.status() {
                StatusCode::NO_CONTENT => Ok(Some(true)),
                StatusCode::UNAUTHORIZED => Ok(Some(false)),
                StatusCode::TOO_MANY_REQUESTS => Err(too_many().into()),
                StatusCode::MISDIRECTED_REQUEST => {
                    let moved = response.headers().get(MOVED).map(MovedTo::parse);
                    if let Some(moved) = &moved {
                        self.state.backend.reach_view(moved.view).await;
                    }
                    search.moved(moved).await?;
                    Ok(None)
                }
                _ => Err(unavailable(&LocateError::Unavailable).into()),
            },
            // A proof does no harm if it is made twice.
            Sent::Nothing | Sent::Broken(_) => {
                search.pause().await?;
                Ok(None)
            }
            Sent::TooLong(why) => Err(ApiError::request_entity_too_large(why).into()),
            Sent::TimedOut => Err(unavailable(&LocateError::Unavailable).into()),
        }
    }
}

/// Returns a refusal as that of a caller who stays a stranger.
fn unsettled(refusal: Refusal) -> Refusal {
    match refusal {
        Refusal::Status(error) => Refusal::Unsettled(error),
        other => other,
    }
}
