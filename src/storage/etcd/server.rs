//! The part of etcd's API that [`EtcdStore`](super::EtcdStore) and test harnesses use, over any
//! other store: the `etcd` of the test drop-in, which keeps its state in memory.
//!
//! * `kv`: reads, writes and transactions. `watch`: change feeds. `lease`: leases. `status`: what
//!   says that this is a cluster of one healthy member.
//! * `gateway`: the paths over plain HTTP that harnesses poll.
//!
//! What the store cannot express is refused as unimplemented, and never half done: compares of
//! values, transactions that mix reads with writes, users, further members. The store does not know
//! how often a key was written, so the field `version` of keys is 1; for changes of a key that was
//! there before, events leave out its create revision.
//!
//! Invariant: a lease that a replica of Polyplane was granted ends with the connection that it was
//! granted on. So nobody waits for the lease of an API server that was killed. Other clients' leases
//! end by time alone.

mod gateway;
mod kv;
mod lease;
mod status;
mod watch;

use std::collections::HashMap;
use std::convert::Infallible;
use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use etcd_client::proto::{
    PbKeyValue, PbKvServer, PbLeaseServer, PbMaintenanceServer, PbResponseHeader, PbWatchServer,
};
use http::{Request, Response};
use hyper::body::Incoming;
use hyper::service::service_fn;
use hyper_util::rt::{TokioExecutor, TokioIo};
use hyper_util::server::conn::auto;
use parking_lot::Mutex;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::Semaphore;
use tokio::task::JoinSet;
use tokio::time::Instant;
use tonic::Status;
use tonic::body::Body;
use tonic::codegen::Service as _;
use tonic::service::Routes;

use super::wire::{number, revision};
use crate::error::{CommitError, LeaseError, ReadError, Rejection};
use crate::store::{KeyValue, LeaseId, Op, Revision, Store, Txn};

/// The version of etcd whose API this is.
pub const ETCD_VERSION: &str = "3.7.3";
/// The id of the only member.
const MEMBER_ID: u64 = 0x706f_6c79;
/// Bytes of one message; larger than any transaction that a store of etcd accepts.
const MESSAGE_BYTES_MAX: usize = 16 * 1024 * 1024;
/// Connections at a time. More wait in the system's queue.
const CONNECTIONS_MAX: usize = 1_000;
/// Pause of a listener after a failed accept, as of the API server's listeners. Without it, a process that
/// is out of file descriptors would spin.
const ACCEPT_REST: Duration = Duration::from_millis(50);
/// Pause between two warnings of failed accepts, as of the API server's listeners. Without it they would fill
/// the log.
const ACCEPT_LOG_PAUSE: Duration = Duration::from_secs(60);
/// The text by which a connection of Polyplane's own is known, in the header `user-agent`.
pub(super) const OWN_AGENT: &str = "polyplane-store";

/// Serves a store to etcd's clients.
pub struct EtcdServer {
    state: Arc<ServerState>,
}

struct ServerState {
    store: Arc<dyn Store>,
    cluster_id: u64,
    /// The seconds that each lease was granted for.
    leases: Mutex<HashMap<i64, i64>>,
}

/// The server as one connection sees it.
#[derive(Clone)]
struct Face {
    state: Arc<ServerState>,
    /// The leases that end with the connection.
    own_leases: Arc<Mutex<Vec<LeaseId>>>,
}

impl EtcdServer {
    /// Creates a server of `store`, which has to be empty or one that was served before.
    ///
    /// # Errors
    /// Returns an error if the store does not accept a write.
    pub async fn new(store: Arc<dyn Store>) -> Result<Self, CommitError> {
        // A new etcd is at revision 1, and clients read as of that one.
        let key = Bytes::from_static(b"\0");
        let value = Bytes::new();
        let put = Op::Put {
            key: key.clone(),
            value,
            lease: None,
        };
        for op in [put, Op::Delete { key }] {
            let txn = Txn {
                compares: Vec::new(),
                ops: vec![op],
            };
            store.commit(txn).await?;
        }
        let cluster_id = u64::from(std::process::id()) << 32 | MEMBER_ID;
        Ok(Self {
            state: Arc::new(ServerState {
                store,
                cluster_id,
                leases: Mutex::default(),
            }),
        })
    }

    /// Serves until the future is dropped, which closes all connections.
    ///
    /// # Errors
    /// Returns an error if a listener fails.
    pub async fn run(self, listeners: Vec<TcpListener>) -> io::Result<()> {
        let mut accepting = JoinSet::new();
        let open = Arc::new(Semaphore::new(CONNECTIONS_MAX));
        for listener in listeners {
            let (state, open) = (Arc::clone(&self.state), Arc::clone(&open));
            accepting.spawn(accept(listener, state, open));
        }
        match accepting.join_next().await {
            Some(Ok(Err(error))) => Err(error),
            Some(Err(error)) => Err(io::Error::other(error)),
            Some(Ok(Ok(()))) | None => Ok(()),
        }
    }
}

async fn accept(
    listener: TcpListener,
    state: Arc<ServerState>,
    open: Arc<Semaphore>,
) -> io::Result<()> {
    let (mut connections, mut warned) = (JoinSet::new(), None);
    loop {
        let Ok(place) = Arc::clone(&open).acquire_owned().await else {
            return Ok(());
        };
        let stream = accepted(|| listener.accept(), &mut warned).await;
        while connections.try_join_next().is_some() {}
        let state = Arc::clone(&state);
        connections.spawn(async move {
            serve(stream, state).await;
            drop(place);
        });
    }
}

/// Returns the next connection, however often `accept` fails before: the client may have gone again, or the
/// process has too many files open. `warned` is the time of the last warning about that.
async fn accepted<F>(mut accept: impl FnMut() -> F, warned: &mut Option<Instant>) -> TcpStream
where
    F: Future<Output = io::Result<(TcpStream, SocketAddr)>>,
{
    loop {
        match accept().await {
            Ok((stream, _)) => return stream,
            Err(error) => {
                let now = Instant::now();
                if warned.is_none_or(|last| now.duration_since(last) >= ACCEPT_LOG_PAUSE) {
                    *warned = Some(now);
                    tracing::warn!(%error, "a connection was not accepted");
                }
                tokio::time::sleep(ACCEPT_REST).await;
            }
        }
    }
}

/// Serves one connection, HTTP/1 or HTTP/2, and then ends the leases that hang on it.
async fn serve(stream: TcpStream, state: Arc<ServerState>) {
    // Without it a small answer could wait for the acknowledgement of the one before.
    let _ = stream.set_nodelay(true);
    let face = Face {
        state,
        own_leases: Arc::default(),
    };
    let routes = face.routes();
    let answer = {
        let face = face.clone();
        service_fn(move |request| answer(face.clone(), routes.clone(), request))
    };
    let served = auto::Builder::new(TokioExecutor::new())
        .serve_connection(TokioIo::new(stream), answer)
        .await;
    if let Err(error) = served {
        tracing::debug!(%error, "a connection ended");
    }
    face.end_leases().await;
}

async fn answer(
    face: Face,
    mut routes: Routes,
    request: Request<Incoming>,
) -> Result<Response<Body>, Infallible> {
    let is_call = request
        .headers()
        .get(http::header::CONTENT_TYPE)
        .is_some_and(|kind| kind.as_bytes().starts_with(b"application/grpc"));
    match is_call {
        true => routes.call(request).await,
        false => Ok(gateway::answer(&face, request).await),
    }
}

impl Face {
    fn routes(&self) -> Routes {
        let kv = PbKvServer::new(self.clone()).max_decoding_message_size(MESSAGE_BYTES_MAX);
        Routes::new(kv.max_encoding_message_size(usize::MAX))
            .add_service(PbWatchServer::new(self.clone()).max_encoding_message_size(usize::MAX))
            .add_service(PbLeaseServer::new(self.clone()))
            .add_service(PbMaintenanceServer::new(self.clone()))
    }

    fn store(&self) -> &dyn Store {
        &*self.state.store
    }

    fn header(&self, at: Revision) -> PbResponseHeader {
        PbResponseHeader {
            cluster_id: self.state.cluster_id,
            member_id: MEMBER_ID,
            revision: number(at),
            raft_term: 1,
        }
    }

    async fn head(&self) -> Result<Revision, Status> {
        self.store()
            .revision()
            .await
            .map_err(|error| read_status(&error))
    }
}

/// Returns a key as etcd shows it.
fn shown(found: KeyValue) -> PbKeyValue {
    PbKeyValue {
        key: found.key.into(),
        value: found.value.into(),
        create_revision: number(found.created),
        mod_revision: number(found.modified),
        version: 1,
        lease: found.lease.map_or(0, |lease| lease.0),
    }
}

/// The range of keys that a request names: `[start, end)`, without a bound if `end` is empty. One
/// key is the range up to its successor.
struct Named {
    start: Bytes,
    end: Bytes,
}

impl Named {
    fn of(key: Vec<u8>, range_end: Vec<u8>) -> Result<Self, Status> {
        if key.is_empty() {
            return Err(Status::invalid_argument("etcdserver: key is not provided"));
        }
        let end = match &range_end[..] {
            [] => [&key[..], &[0]].concat(),
            [0] => Vec::new(),
            _ => range_end,
        };
        // etcd's name of the smallest key.
        let start = if key == [0] { Vec::new() } else { key };
        Ok(Self {
            start: start.into(),
            end: end.into(),
        })
    }
}

/// Returns etcd's error for a failed read.
fn read_status(error: &ReadError) -> Status {
    match error {
        ReadError::Compacted { .. } => {
            Status::out_of_range("etcdserver: mvcc: required revision has been compacted")
        }
        ReadError::Future { .. } => {
            Status::out_of_range("etcdserver: mvcc: required revision is a future revision")
        }
        ReadError::Unavailable(_) | ReadError::Corrupt(_) | ReadError::Closed => {
            Status::unavailable(error.to_string())
        }
    }
}

/// Returns etcd's error for a transaction that was not carried out.
fn commit_status(error: &CommitError) -> Status {
    let CommitError::Rejected(rejection) = error else {
        return Status::unavailable(error.to_string());
    };
    match rejection {
        Rejection::TooManyOps(_) => {
            Status::invalid_argument("etcdserver: too many operations in txn request")
        }
        Rejection::TooLarge(_) => Status::invalid_argument("etcdserver: request is too large"),
        Rejection::Malformed(_) => {
            Status::invalid_argument("etcdserver: duplicate key given in txn request")
        }
        Rejection::NoLease(_) => Status::not_found("etcdserver: requested lease not found"),
        Rejection::NoSpace(_) => {
            Status::resource_exhausted("etcdserver: mvcc: database space exceeded")
        }
        Rejection::Corrupt(_) | Rejection::ReadOnly(_) | Rejection::Closed => {
            Status::unavailable(rejection.to_string())
        }
    }
}

fn lease_status(error: &LeaseError) -> Status {
    match error {
        LeaseError::NotFound => Status::not_found("etcdserver: requested lease not found"),
        LeaseError::Unavailable(_) | LeaseError::Closed => Status::unavailable(error.to_string()),
    }
}

/// Returns the revision that a request names, where 0 stands for the newest.
fn named_revision(number: i64) -> Option<Revision> {
    (number > 0).then(|| revision(number))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// As in a process that is out of file descriptors: the client that waits is served later, and the log says
    /// why it waits, once.
    #[tokio::test(start_paused = true)]
    async fn a_listener_pauses_after_each_failed_accept_and_goes_on() {
        const FAILURES: u32 = 20;
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a free port");
        let address = listener.local_addr().expect("bound");
        let client = TcpStream::connect(address).await.expect("it listens");
        let began = Instant::now();
        let (listener, mut attempts, mut warned) = (&listener, 0, None);
        let accept = || {
            attempts += 1;
            let fails = attempts <= FAILURES;
            async move {
                match fails {
                    true => Err(io::Error::other("too many open files")),
                    false => listener.accept().await,
                }
            }
        };
        let stream = accepted(accept, &mut warned).await;
        let served = stream.peer_addr().expect("connected");
        assert_eq!(served, client.local_addr().expect("connected"));
        assert!(began.elapsed() >= ACCEPT_REST * FAILURES);
        assert_eq!(warned, Some(began));
    }
}
