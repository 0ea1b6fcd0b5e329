//! The running server: it accepts connections, serves them, and drains them when it stops.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use polyplane_outbound::LogPause;
use rustls::ServerConfig;
use tokio::net::TcpListener;
use tokio::time::Instant;
use tokio_rustls::TlsAcceptor;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use crate::connection;
use crate::operations::drain::Drain;
use crate::options::StopPolicy;
use crate::peer::listener;
use crate::request::doorway::Source;
use crate::server_state::ServerState;
use crate::watch::open_watches::WatchGuard;

/// Pause of a listener after a failed accept. Without it, a process that is out of file descriptors
/// would spin.
const ACCEPT_REST: Duration = Duration::from_millis(50);
/// How long requests of peers may take to finish while this replica stops. Less would break writes
/// that clients sent to other replicas.
const PEERS_GRACE: Duration = Duration::from_secs(2);
/// How long a stopping replica waits for peers to close their connections. Less would break
/// requests of peers that have not yet noticed that this replica has left.
const PEERS_NOTICE: Duration = Duration::from_millis(500);
/// Interval at which a stopping server checks whether requests are in flight. A longer one would
/// delay the stop.
const DRAIN_TICK: Duration = Duration::from_millis(5);

/// A server that is ready to run.
pub struct Server {
    state: Arc<ServerState>,
    acceptor: TlsAcceptor,
    policy: StopPolicy,
    listeners: Vec<TcpListener>,
    peer_listeners: Vec<TcpListener>,
    stop: StopHandle,
}

/// Stops a server, even before it runs.
#[derive(Clone, Debug)]
pub struct StopHandle {
    requested: CancellationToken,
    drain: Arc<Drain>,
}

impl StopHandle {
    /// Makes `/readyz` fail while the server still serves everything, so that load balancers use
    /// other replicas while this one hands over its planes.
    pub fn unready(&self) {
        self.drain.unready();
    }

    /// Stops the server once all requests in flight are answered. Further calls have no effect.
    pub fn stop(&self) {
        self.requested.cancel();
    }

    /// Stops the server at once.
    pub fn abort(&self) {
        self.requested.cancel();
        self.drain.abort();
    }

    /// Waits until [`Self::stop`] or [`Self::abort`] is called.
    pub async fn requested(&self) {
        self.requested.cancelled().await;
    }
}

/// The way in which a server ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stopped {
    /// All requests in flight were answered.
    Drained,
    /// The server aborted some connections.
    CutOff,
}

impl Server {
    pub(crate) fn new(
        state: Arc<ServerState>,
        tls: Arc<ServerConfig>,
        policy: StopPolicy,
        listeners: Vec<TcpListener>,
        peer_listeners: Vec<TcpListener>,
    ) -> Self {
        let stop = StopHandle {
            requested: CancellationToken::new(),
            drain: Arc::clone(&state.drain),
        };
        Self {
            state,
            acceptor: TlsAcceptor::from(tls),
            policy,
            listeners,
            peer_listeners,
            stop,
        }
    }

    /// Returns a handle that stops this server.
    pub fn stop_handle(&self) -> StopHandle {
        self.stop.clone()
    }

    /// Returns what ends the watches of clients that may not use their plane any more.
    pub fn watch_guard(&self) -> WatchGuard {
        WatchGuard::new(&self.state)
    }

    /// Returns the addresses on which the server listens.
    pub fn addresses(&self) -> Vec<SocketAddr> {
        let listeners = self.listeners.iter();
        listeners
            .filter_map(|listener| listener.local_addr().ok())
            .collect()
    }

    /// Starts to serve the other replicas. Callers call this once, and close the service after
    /// [`Self::run`] has ended, because peers answer some requests of clients of this replica, and
    /// this replica answers some of theirs.
    pub fn serve_peers(&mut self) -> PeerService {
        let (tasks, closing) = (TaskTracker::new(), CancellationToken::new());
        for listener in std::mem::take(&mut self.peer_listeners) {
            tasks.spawn(accept_peers(
                Arc::clone(&self.state),
                listener,
                tasks.clone(),
                closing.clone(),
            ));
        }
        PeerService {
            state: Arc::clone(&self.state),
            tasks,
            closing,
        }
    }

    /// Serves clients until the server is stopped.
    pub async fn run(self) -> Stopped {
        let (acceptors, connections) = (TaskTracker::new(), TaskTracker::new());
        for listener in self.listeners {
            acceptors.spawn(accept(
                Arc::clone(&self.state),
                self.acceptor.clone(),
                listener,
                connections.clone(),
            ));
        }
        acceptors.close();
        self.stop.requested().await;
        drain(&self.state, &self.policy, &acceptors, &connections).await
    }
}

/// Serves the other replicas. Dropping this does not wait for requests in flight.
pub struct PeerService {
    state: Arc<ServerState>,
    tasks: TaskTracker,
    closing: CancellationToken,
}

impl PeerService {
    /// Closes the connections to peers, accepts no new ones, and waits a short time for requests in
    /// flight. Peers close their connections as soon as they know that this replica has left; until
    /// then, but not for long, this replica still answers them.
    pub async fn close(self) {
        if let Some(side) = &self.state.peers {
            side.transport.retain(|_| false);
            let until = Instant::now() + PEERS_NOTICE;
            while side.connections.taken() > 0 && Instant::now() < until {
                tokio::time::sleep(DRAIN_TICK).await;
            }
        }
        self.closing.cancel();
        self.tasks.close();
        let finished = tokio::time::timeout(PEERS_GRACE, self.tasks.wait());
        if finished.await.is_err() {
            self.state.drain.abort();
            self.tasks.wait().await;
        }
    }
}

impl Drop for PeerService {
    fn drop(&mut self) {
        self.closing.cancel();
    }
}

/// Takes the steps of [`Drain`], each for at most the time that the policy sets.
async fn drain(
    state: &ServerState,
    policy: &StopPolicy,
    acceptors: &TaskTracker,
    connections: &TaskTracker,
) -> Stopped {
    let drain = &state.drain;
    drain.unready();
    tokio::select! {
        // First, because a second signal ends the wait.
        biased;
        () = drain.aborting().cancelled() => {}
        () = tokio::time::sleep(policy.ready_delay) => {}
    }
    drain.close();
    acceptors.wait().await;
    connections.close();
    let end = Instant::now() + policy.grace;
    let idle = async {
        while state.metrics.reads.taken() + state.metrics.writes.taken() > 0 {
            tokio::time::sleep(DRAIN_TICK).await;
        }
    };
    tokio::select! {
        // First, because a second signal ends this wait too.
        biased;
        () = drain.aborting().cancelled() => {}
        _ = tokio::time::timeout_at(end, idle) => {}
    }
    drain.end_watches();
    let finished = tokio::select! {
        // First, because a second signal ends this wait too.
        biased;
        () = drain.aborting().cancelled() => false,
        waited = tokio::time::timeout_at(end, connections.wait()) => waited.is_ok(),
    };
    if finished {
        return Stopped::Drained;
    }
    drain.abort();
    connections.wait().await;
    Stopped::CutOff
}

async fn accept(
    state: Arc<ServerState>,
    acceptor: TlsAcceptor,
    listener: TcpListener,
    connections: TaskTracker,
) {
    let mut logged = LogPause::default();
    loop {
        let accepted = tokio::select! {
            // First: a closing server accepts no connection, however many wait.
            biased;
            () = state.drain.closing().cancelled() => return,
            accepted = listener.accept() => accepted,
        };
        match accepted {
            Ok((socket, address)) => {
                let source = Source::of(Some(address.ip()));
                let open = state.metrics.connections.accept(source);
                let number = open.number();
                let task = connections.spawn(connection::serve(
                    Arc::clone(&state),
                    acceptor.clone(),
                    socket,
                    open,
                ));
                state
                    .metrics
                    .connections
                    .attach(number, task.abort_handle());
            }
            Err(error) => {
                if logged.is_due(Instant::now()) {
                    tracing::warn!(%error, "a connection was not accepted");
                }
                tokio::time::sleep(ACCEPT_REST).await;
            }
        }
    }
}

async fn accept_peers(
    state: Arc<ServerState>,
    listener: TcpListener,
    connections: TaskTracker,
    closing: CancellationToken,
) {
    let Some(side) = state.peers.clone() else {
        return;
    };
    let mut logged = LogPause::default();
    loop {
        let accepted = tokio::select! {
            // First: a closing service accepts no connection, however many wait.
            biased;
            () = closing.cancelled() => return,
            accepted = listener.accept() => accepted,
        };
        match accepted {
            Ok(accepted) => {
                connections.spawn(listener::serve(
                    Arc::clone(&state),
                    Arc::clone(&side),
                    accepted,
                    closing.clone(),
                ));
            }
            Err(error) => {
                if logged.is_due(Instant::now()) {
                    tracing::warn!(%error, "a peer's connection was not accepted");
                }
                tokio::time::sleep(ACCEPT_REST).await;
            }
        }
    }
}
