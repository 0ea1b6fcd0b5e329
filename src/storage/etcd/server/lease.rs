//! Leases. Those of Polyplane's replicas end with their connection.

use std::time::Duration;

use etcd_client::proto::{
    PbLeaseGrantRequest, PbLeaseGrantResponse, PbLeaseKeepAliveRequest, PbLeaseKeepAliveResponse,
    PbLeaseLeasesRequest, PbLeaseLeasesResponse, PbLeaseRevokeRequest, PbLeaseRevokeResponse,
    PbLeaseService, PbLeaseStatus, PbLeaseTimeToLiveRequest, PbLeaseTimeToLiveResponse,
};
use futures_util::stream;
use http::header::USER_AGENT;
use tonic::codegen::BoxStream;
use tonic::{Request, Response, Status, Streaming};

use super::{Face, OWN_AGENT, lease_status};
use crate::error::LeaseError;
use crate::store::LeaseId;

/// The longest lease, in seconds: etcd's own limit.
const SECONDS_MAX: i64 = 9_000_000_000;
/// Leases at a time. Without the limit a client could fill the memory.
const LEASES_MAX: usize = 10_000;

#[tonic::async_trait]
impl PbLeaseService for Face {
    async fn lease_grant(
        &self,
        request: Request<PbLeaseGrantRequest>,
    ) -> Result<Response<PbLeaseGrantResponse>, Status> {
        let agent = request.metadata().get(USER_AGENT.as_str());
        let agent = agent.and_then(|agent| agent.to_str().ok());
        let is_own = agent.is_some_and(|agent| agent.starts_with(OWN_AGENT));
        let PbLeaseGrantRequest { ttl, id } = request.into_inner();
        if id != 0 {
            return Err(Status::unimplemented(
                "this etcd chooses the ids of leases itself",
            ));
        }
        if ttl > SECONDS_MAX {
            return Err(Status::out_of_range("etcdserver: too large lease TTL"));
        }
        if self.state.leases.lock().len() >= LEASES_MAX {
            return Err(Status::resource_exhausted("etcdserver: too many leases"));
        }
        let ttl = ttl.max(1);
        let granted = self.store().lease_grant(seconds(ttl)).await;
        let lease = granted.map_err(|error| lease_status(&error))?;
        self.state.leases.lock().insert(lease.0, ttl);
        if is_own {
            self.own_leases.lock().push(lease);
        }
        Ok(Response::new(PbLeaseGrantResponse {
            header: Some(self.header(self.head().await?)),
            id: lease.0,
            ttl,
            error: String::new(),
        }))
    }

    async fn lease_revoke(
        &self,
        request: Request<PbLeaseRevokeRequest>,
    ) -> Result<Response<PbLeaseRevokeResponse>, Status> {
        let id = request.into_inner().id;
        self.state.leases.lock().remove(&id);
        self.own_leases.lock().retain(|own| own.0 != id);
        let revoked = self.store().lease_revoke(LeaseId(id)).await;
        revoked.map_err(|error| lease_status(&error))?;
        Ok(Response::new(PbLeaseRevokeResponse {
            header: Some(self.header(self.head().await?)),
        }))
    }

    type LeaseKeepAliveStream = BoxStream<PbLeaseKeepAliveResponse>;

    async fn lease_keep_alive(
        &self,
        request: Request<Streaming<PbLeaseKeepAliveRequest>>,
    ) -> Result<Response<Self::LeaseKeepAliveStream>, Status> {
        let state = (self.clone(), request.into_inner());
        let answers = stream::try_unfold(state, |(face, mut requests)| async move {
            let Some(request) = requests.message().await? else {
                return Ok(None);
            };
            let answer = face.keep_alive(request.id).await?;
            Ok(Some((answer, (face, requests))))
        });
        Ok(Response::new(Box::pin(answers)))
    }

    async fn lease_time_to_live(
        &self,
        request: Request<PbLeaseTimeToLiveRequest>,
    ) -> Result<Response<PbLeaseTimeToLiveResponse>, Status> {
        let id = request.into_inner().id;
        // The store does not say how much is left.
        let ttl = self.state.leases.lock().get(&id).copied();
        Ok(Response::new(PbLeaseTimeToLiveResponse {
            header: Some(self.header(self.head().await?)),
            id,
            ttl: ttl.unwrap_or(-1),
            granted_ttl: ttl.unwrap_or(0),
            keys: Vec::new(),
        }))
    }

    async fn lease_leases(
        &self,
        _request: Request<PbLeaseLeasesRequest>,
    ) -> Result<Response<PbLeaseLeasesResponse>, Status> {
        let mut ids: Vec<i64> = self.state.leases.lock().keys().copied().collect();
        ids.sort_unstable();
        let leases = ids.into_iter().map(|id| PbLeaseStatus { id }).collect();
        let header = Some(self.header(self.head().await?));
        Ok(Response::new(PbLeaseLeasesResponse { header, leases }))
    }
}

impl Face {
    /// Renews a lease. As in etcd, an ended one has 0 seconds left.
    async fn keep_alive(&self, id: i64) -> Result<PbLeaseKeepAliveResponse, Status> {
        let granted = self.state.leases.lock().get(&id).copied();
        let ttl = match self.store().lease_keep_alive(LeaseId(id)).await {
            Ok(()) => granted.unwrap_or(1),
            Err(LeaseError::NotFound) => {
                self.state.leases.lock().remove(&id);
                0
            }
            Err(error) => return Err(lease_status(&error)),
        };
        let header = Some(self.header(self.head().await?));
        Ok(PbLeaseKeepAliveResponse { header, id, ttl })
    }

    /// Ends the leases that hang on the connection.
    pub(super) async fn end_leases(&self) {
        let ended = std::mem::take(&mut *self.own_leases.lock());
        for lease in ended {
            self.state.leases.lock().remove(&lease.0);
            // One that has ended already is no error.
            let _ = self.store().lease_revoke(lease).await;
        }
    }
}

fn seconds(ttl: i64) -> Duration {
    Duration::from_secs(u64::try_from(ttl).unwrap_or(1))
}
