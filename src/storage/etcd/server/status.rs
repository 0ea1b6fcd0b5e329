//! What says that this is a cluster of one healthy member.

use etcd_client::proto::{
    PbAlarmRequest, PbAlarmResponse, PbDefragmentRequest, PbDefragmentResponse, PbDowngradeRequest,
    PbDowngradeResponse, PbHashKvRequest, PbHashKvResponse, PbHashRequest, PbHashResponse,
    PbMaintenanceService, PbMoveLeaderRequest, PbMoveLeaderResponse, PbSnapshotRequest,
    PbSnapshotResponse, PbStatusRequest, PbStatusResponse,
};
use tonic::codegen::BoxStream;
use tonic::{Request, Response, Status};

use super::{ETCD_VERSION, Face, MEMBER_ID};

fn none_here<T>() -> Result<T, Status> {
    let text = "this etcd, which is Polyplane's, keeps its keys in memory and has one member";
    Err(Status::unimplemented(text))
}

#[tonic::async_trait]
impl PbMaintenanceService for Face {
    async fn alarm(
        &self,
        _request: Request<PbAlarmRequest>,
    ) -> Result<Response<PbAlarmResponse>, Status> {
        Ok(Response::new(PbAlarmResponse {
            header: Some(self.header(self.head().await?)),
            alarms: Vec::new(),
        }))
    }

    async fn status(
        &self,
        _request: Request<PbStatusRequest>,
    ) -> Result<Response<PbStatusResponse>, Status> {
        let head = self.head().await?;
        let used = i64::try_from(self.store().status().used_bytes).unwrap_or(i64::MAX);
        Ok(Response::new(PbStatusResponse {
            header: Some(self.header(head)),
            version: ETCD_VERSION.to_owned(),
            db_size: used,
            db_size_in_use: used,
            leader: MEMBER_ID,
            raft_index: head.0,
            raft_applied_index: head.0,
            raft_term: 1,
            ..PbStatusResponse::default()
        }))
    }

    /// Compaction has freed the memory already.
    async fn defragment(
        &self,
        _request: Request<PbDefragmentRequest>,
    ) -> Result<Response<PbDefragmentResponse>, Status> {
        let header = Some(self.header(self.head().await?));
        Ok(Response::new(PbDefragmentResponse { header }))
    }

    async fn hash(
        &self,
        _request: Request<PbHashRequest>,
    ) -> Result<Response<PbHashResponse>, Status> {
        none_here()
    }

    async fn hash_kv(
        &self,
        _request: Request<PbHashKvRequest>,
    ) -> Result<Response<PbHashKvResponse>, Status> {
        none_here()
    }

    type SnapshotStream = BoxStream<PbSnapshotResponse>;

    async fn snapshot(
        &self,
        _request: Request<PbSnapshotRequest>,
    ) -> Result<Response<Self::SnapshotStream>, Status> {
        none_here()
    }

    async fn move_leader(
        &self,
        _request: Request<PbMoveLeaderRequest>,
    ) -> Result<Response<PbMoveLeaderResponse>, Status> {
        none_here()
    }

    async fn downgrade(
        &self,
        _request: Request<PbDowngradeRequest>,
    ) -> Result<Response<PbDowngradeResponse>, Status> {
        none_here()
    }
}
