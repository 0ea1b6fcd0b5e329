//! Reads, writes and transactions.
//!
//! A transaction is one of the store. What it reads after a refusal is read as of the revision at
//! which it was refused, so the answer is of one state, as etcd's is.

use etcd_client::proto::{
    PbCompactionRequest, PbCompactionResponse, PbCompare, PbDeleteRequest, PbDeleteResponse,
    PbKvService, PbPutRequest, PbPutResponse, PbRangeRequest, PbRangeResponse,
    PbRangeStreamResponse, PbResponseOp, PbTargetUnion, PbTxnOpRequest, PbTxnOpResponse,
    PbTxnRequest, PbTxnRequestOp, PbTxnResponse,
};
use tonic::codegen::BoxStream;
use tonic::{Request, Response, Status};

use super::{Face, Named, commit_status, named_revision, read_status, shown};
use crate::error::CommitError;
use crate::etcd::wire::revision;
use crate::store::{
    Compare, Fields, KeyValue, LeaseId, Op, RangeReply, RangeRequest, Revision, Txn,
};

/// Keys that one request may delete: a transaction takes no more.
const DELETED_MAX: usize = 100;

#[tonic::async_trait]
impl PbKvService for Face {
    async fn range(
        &self,
        request: Request<PbRangeRequest>,
    ) -> Result<Response<PbRangeResponse>, Status> {
        Ok(Response::new(self.read(request.into_inner(), None).await?))
    }

    type RangeStreamStream = BoxStream<PbRangeStreamResponse>;

    async fn range_stream(
        &self,
        _request: Request<PbRangeRequest>,
    ) -> Result<Response<Self::RangeStreamStream>, Status> {
        Err(Status::unimplemented(
            "this etcd answers a range in one message",
        ))
    }

    async fn put(&self, request: Request<PbPutRequest>) -> Result<Response<PbPutResponse>, Status> {
        let request = request.into_inner();
        let key = request.key.clone();
        let wants_previous = request.prev_kv;
        let op = put(request)?;
        let previous = match wants_previous {
            true => {
                self.store()
                    .get(&key)
                    .await
                    .map_err(|error| read_status(&error))?
                    .1
            }
            false => None,
        };
        let at = self.write(vec![op]).await?;
        Ok(Response::new(PbPutResponse {
            header: Some(self.header(at)),
            prev_kv: previous.map(shown),
        }))
    }

    async fn delete_range(
        &self,
        request: Request<PbDeleteRequest>,
    ) -> Result<Response<PbDeleteResponse>, Status> {
        let request = request.into_inner();
        let wants_previous = request.prev_kv;
        let named = Named::of(request.key, request.range_end)?;
        let range = RangeRequest {
            limit: DELETED_MAX,
            ..RangeRequest::between(named.start, named.end)
        };
        let found = self.page(range).await?;
        if found.more {
            let text = format!("this etcd deletes at most {DELETED_MAX} keys by one request");
            return Err(Status::unimplemented(text));
        }
        let ops = found.items.iter().map(|item| Op::Delete {
            key: item.key.clone(),
        });
        let at = self.write(ops.collect()).await?;
        let deleted = i64::try_from(found.items.len()).unwrap_or(i64::MAX);
        let previous = found.items.into_iter().filter(|_| wants_previous);
        Ok(Response::new(PbDeleteResponse {
            header: Some(self.header(at)),
            deleted,
            prev_kvs: previous.map(shown).collect(),
        }))
    }

    async fn txn(&self, request: Request<PbTxnRequest>) -> Result<Response<PbTxnResponse>, Status> {
        let request = request.into_inner();
        let compares: Vec<Compare> = request
            .compare
            .into_iter()
            .map(compare)
            .collect::<Result<_, _>>()?;
        let success = Branch::of(request.success)?;
        let failure = Branch::of(request.failure)?;
        if !failure.ops.is_empty() {
            return Err(unimplemented("writes after a failed compare"));
        }
        let txn = Txn {
            compares,
            ops: success.ops,
        };
        let is_delete: Vec<bool> = txn
            .ops
            .iter()
            .map(|op| matches!(op, Op::Delete { .. }))
            .collect();
        match self.store().commit(txn).await {
            Ok(committed) => {
                let at = committed.revision;
                let mut responses: Vec<PbResponseOp> = is_delete
                    .into_iter()
                    .map(|delete| self.written(delete, at))
                    .collect();
                responses.extend(self.read_all(success.reads, at).await?);
                Ok(self.txn_response(true, at, responses))
            }
            Err(CommitError::Refused { at, .. }) => {
                let responses = self.read_all(failure.reads, at).await?;
                Ok(self.txn_response(false, at, responses))
            }
            Err(error) => Err(commit_status(&error)),
        }
    }

    async fn compact(
        &self,
        request: Request<PbCompactionRequest>,
    ) -> Result<Response<PbCompactionResponse>, Status> {
        let at = revision(request.into_inner().revision);
        if at <= self.store().status().floor {
            let text = "etcdserver: mvcc: required revision has been compacted";
            return Err(Status::out_of_range(text));
        }
        let compacted = self.store().compact(at).await;
        compacted.map_err(|error| read_status(&error))?;
        let header = Some(self.header(self.head().await?));
        Ok(Response::new(PbCompactionResponse { header }))
    }
}

impl Face {
    async fn write(&self, ops: Vec<Op>) -> Result<Revision, Status> {
        let compares = Vec::new();
        let committed = self.store().commit(Txn { compares, ops }).await;
        let committed = committed.map_err(|error| commit_status(&error))?;
        Ok(committed.revision)
    }

    /// Sets a key, for the gateway.
    pub(super) async fn put_key(&self, key: Vec<u8>, value: Vec<u8>) -> Result<Revision, Status> {
        let request = PbPutRequest {
            key,
            value,
            ..PbPutRequest::default()
        };
        self.write(vec![put(request)?]).await
    }

    async fn page(&self, request: RangeRequest) -> Result<RangeReply, Status> {
        let page = self.store().range(request).await;
        page.map_err(|error| read_status(&error))
    }

    /// Reads a range, as of `at` if the request does not name a revision itself.
    async fn read(
        &self,
        request: PbRangeRequest,
        at: Option<Revision>,
    ) -> Result<PbRangeResponse, Status> {
        if request.sort_order != 0 && request.sort_target != 0 {
            return Err(unimplemented(
                "ranges that are sorted by something else than the key",
            ));
        }
        if request.max_mod_revision > 0
            || request.min_create_revision > 0
            || request.max_create_revision > 0
        {
            return Err(unimplemented(
                "ranges by other revisions than the lowest of change",
            ));
        }
        let descends = request.sort_order == 2;
        let named = Named::of(request.key, request.range_end)?;
        let limit = usize::try_from(request.limit).unwrap_or(0);
        let first = RangeRequest {
            at: named_revision(request.revision).or(at),
            modified_after: named_revision(request.min_mod_revision - 1),
            fields: match request.keys_only || request.count_only {
                true => Fields::KeysOnly,
                false => Fields::All,
            },
            limit: if descends || request.count_only {
                0
            } else {
                limit
            },
            ..RangeRequest::between(named.start, named.end)
        };
        // A range may be empty by its bounds, which the store takes for no bound at all.
        let is_void = !first.end.is_empty() && first.start >= first.end;
        let mut wanted = (!is_void).then_some(first);
        let mut items: Vec<KeyValue> = Vec::new();
        let mut more = false;
        while let Some(pages) = wanted.take() {
            let mut page = self.page(pages.clone()).await?;
            let next = pages.next_page(&page);
            items.append(&mut page.items);
            let is_limited = pages.limit > 0;
            more = next.is_some() && is_limited && items.len() >= limit;
            wanted = next.filter(|_| !more).map(|next| RangeRequest {
                limit: if is_limited { limit - items.len() } else { 0 },
                ..next
            });
        }
        let count = i64::try_from(items.len()).unwrap_or(i64::MAX);
        if descends {
            items.reverse();
            more = limit > 0 && items.len() > limit;
            items.truncate(if limit > 0 { limit } else { usize::MAX });
        }
        if request.count_only {
            (items, more) = (Vec::new(), false);
        }
        Ok(PbRangeResponse {
            header: Some(self.header(self.head().await?)),
            kvs: items.into_iter().map(shown).collect(),
            more,
            count,
        })
    }

    async fn read_all(
        &self,
        reads: Vec<PbRangeRequest>,
        at: Revision,
    ) -> Result<Vec<PbResponseOp>, Status> {
        let mut responses = Vec::with_capacity(reads.len());
        for read in reads {
            let range = self.read(read, Some(at)).await?;
            responses.push(PbResponseOp {
                response: Some(PbTxnOpResponse::ResponseRange(range)),
            });
        }
        Ok(responses)
    }

    fn written(&self, is_delete: bool, at: Revision) -> PbResponseOp {
        let header = Some(self.header(at));
        let response = match is_delete {
            true => PbTxnOpResponse::ResponseDeleteRange(PbDeleteResponse {
                header,
                deleted: 1,
                prev_kvs: Vec::new(),
            }),
            false => PbTxnOpResponse::ResponsePut(PbPutResponse {
                header,
                prev_kv: None,
            }),
        };
        PbResponseOp {
            response: Some(response),
        }
    }

    fn txn_response(
        &self,
        succeeded: bool,
        at: Revision,
        responses: Vec<PbResponseOp>,
    ) -> Response<PbTxnResponse> {
        Response::new(PbTxnResponse {
            header: Some(self.header(at)),
            succeeded,
            responses,
        })
    }
}

/// The operations of one branch of a transaction: writes or reads.
struct Branch {
    ops: Vec<Op>,
    reads: Vec<PbRangeRequest>,
}

impl Branch {
    fn of(requested: Vec<PbTxnRequestOp>) -> Result<Self, Status> {
        let (mut ops, mut reads) = (Vec::new(), Vec::new());
        for op in requested {
            match op.request {
                Some(PbTxnOpRequest::RequestRange(range)) => reads.push(range),
                Some(PbTxnOpRequest::RequestPut(request)) => ops.push(put(request)?),
                Some(PbTxnOpRequest::RequestDeleteRange(request)) => {
                    if !request.range_end.is_empty() {
                        return Err(unimplemented("deletions of ranges in transactions"));
                    }
                    ops.push(Op::Delete {
                        key: request.key.into(),
                    });
                }
                Some(PbTxnOpRequest::RequestTxn(_)) | None => {
                    return Err(unimplemented("transactions in transactions"));
                }
            }
        }
        if !ops.is_empty() && !reads.is_empty() {
            return Err(unimplemented("transactions that write and read"));
        }
        Ok(Self { ops, reads })
    }
}

fn unimplemented(what: &str) -> Status {
    Status::unimplemented(format!("this etcd, which is Polyplane's, has no {what}"))
}

fn put(request: PbPutRequest) -> Result<Op, Status> {
    if request.ignore_value || request.ignore_lease {
        return Err(unimplemented("puts that keep the value or the lease"));
    }
    if request.key.is_empty() {
        return Err(Status::invalid_argument("etcdserver: key is not provided"));
    }
    Ok(Op::Put {
        key: request.key.into(),
        value: request.value.into(),
        lease: (request.lease != 0).then_some(LeaseId(request.lease)),
    })
}

/// The comparisons of etcd, by their numbers.
const EQUAL: i32 = 0;
const GREATER: i32 = 1;
const LESS: i32 = 2;
const NOT_EQUAL: i32 = 3;

/// Returns etcd's compare in the store's form. Only those of revisions have one.
fn compare(requested: PbCompare) -> Result<Compare, Status> {
    if !requested.range_end.is_empty() {
        return Err(unimplemented("compares of ranges"));
    }
    let key = requested.key.into();
    // No key was created or changed at revision 0, so this never holds.
    let never = Revision(0);
    match (requested.target_union, requested.result) {
        (
            Some(
                PbTargetUnion::CreateRevision(0)
                | PbTargetUnion::ModRevision(0)
                | PbTargetUnion::Version(0),
            ),
            EQUAL,
        ) => Ok(Compare::Absent { key }),
        (
            Some(
                PbTargetUnion::CreateRevision(0)
                | PbTargetUnion::ModRevision(0)
                | PbTargetUnion::Version(0),
            ),
            GREATER | NOT_EQUAL,
        ) => Ok(Compare::Present { key }),
        (Some(PbTargetUnion::CreateRevision(0) | PbTargetUnion::ModRevision(0)), LESS) => {
            Ok(Compare::Unchanged {
                key,
                revision: never,
            })
        }
        (Some(PbTargetUnion::CreateRevision(-1)), GREATER) => Ok(Compare::NotCreatedAt {
            key,
            revision: never,
        }),
        (Some(PbTargetUnion::ModRevision(at)), EQUAL) => Ok(Compare::Unchanged {
            key,
            revision: revision(at),
        }),
        (Some(PbTargetUnion::CreateRevision(at)), EQUAL) => Ok(Compare::CreatedAt {
            key,
            revision: revision(at),
        }),
        (Some(PbTargetUnion::CreateRevision(at)), NOT_EQUAL) => Ok(Compare::NotCreatedAt {
            key,
            revision: revision(at),
        }),
        _ => Err(unimplemented(
            "other compares than those of a key's absence, its create revision and its revision",
        )),
    }
}
