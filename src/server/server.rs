//! The running server: listeners, connections, and how it all ends.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

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
use crate::server_state::ServerState;

/// How long a listener rests when the system gives it no more sockets.
const ACCEPT_REST: Duration = Duration::from_millis(50);
/// How long requests of peers may take to finish once they are served no more.
const PEERS_GRACE: Duration = Duration::from_secs(2);
/// How long peers may take to learn that this replica has left.
const PEERS_NOTICE: Duration = Duration::from_millis(500);
/// How often a stopping server looks whether requests are still in flight.
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

/// Asks a server to stop. The server notices whenever it gets to it.
#[derive(Clone, Debug)]
pub struct StopHandle {
    requested: CancellationToken,
    drain: Arc<Drain>,
}

impl StopHandle {
    /// Fail `/readyz` and serve on, so that load balancers look elsewhere while planes are handed
    /// over.
    pub fn unready(&self) {
        self.drain.unready();
    }

    /// Stop when everything in flight is done. Asking again changes nothing.
    pub fn stop(&self) {
        self.requested.cancel();
    }

    /// Stop now.
    pub fn abort(&self) {
        self.requested.cancel();
        self.drain.abort();
    }

    /// Waits until somebody asked the server to stop.
    pub async fn requested(&self) {
        self.requested.cancelled().await;
    }
}

/// How a server ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stopped {
    /// Everything in flight was finished.
    Drained,
    /// Something was cut off.
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

    /// The handle that stops this server.
    pub fn stop_handle(&self) -> StopHandle {
        self.stop.clone()
    }

    /// The addresses it listens on.
    pub fn addresses(&self) -> Vec<SocketAddr> {
        let listeners = self.listeners.iter();
        listeners
            .filter_map(|listener| listener.local_addr().ok())
            .collect()
    }

    /// Serves the other replicas from now on, once; clients are served by [`Self::run`]. Close it
    /// after that has ended: some requests of clients are answered by peers, and some of peers' here.
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

    /// Serves clients until somebody stops it.
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

/// Serves the other replicas. Dropping it does not wait for what they are being answered.
pub struct PeerService {
    state: Arc<ServerState>,
    tasks: TaskTracker,
    closing: CancellationToken,
}

impl PeerService {
    /// Closes the connections to peers, takes no more from them, and waits a little for requests
    /// that are being answered. Peers close theirs as soon as they know that this replica has left;
    /// until then, or for a little while, it is there for them.
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

/// The steps of [`Drain`], each as long as the policy lets it.
async fn drain(
    state: &ServerState,
    policy: &StopPolicy,
    acceptors: &TaskTracker,
    connections: &TaskTracker,
) -> Stopped {
    let drain = &state.drain;
    drain.unready();
    tokio::select! {
        // A second signal ends the wait.
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
        // As above.
        biased;
        () = drain.aborting().cancelled() => {}
        _ = tokio::time::timeout_at(end, idle) => {}
    }
    drain.end_watches();
    let finished = tokio::select! {
        // As above.
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
    loop {
        let accepted = tokio::select! {
            // A closing server takes nobody, however many wait.
            biased;
            () = state.drain.closing().cancelled() => return,
            accepted = listener.accept() => accepted,
        };
        match accepted {
            Ok((socket, _)) => {
                let open = state.metrics.connections.accept();
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
                tracing::warn!(%error, "a connection was not accepted");
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
    loop {
        let accepted = tokio::select! {
            // As above.
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
                tracing::warn!(%error, "a peer's connection was not accepted");
                tokio::time::sleep(ACCEPT_REST).await;
            }
        }
    }
}
