//! Strangers at the peer port cannot harm peers.

use std::sync::Arc;
use std::time::Duration;

use polyplane_ownership::{PeerError, PeerMessage, PeerReply, PeerRequest, Peers as _};
use polyplane_pki::{Identity, PeerTls, Pki};
use polyplane_server::{Peer, PeerLimits, PeerTransport};
use rustls::RootCertStore;
use rustls::pki_types::{CertificateDer, ServerName};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpListener, TcpStream};
use tokio::task::JoinSet;
use tokio::time::{Instant, timeout};
use tokio_rustls::TlsConnector;

use crate::peers::member;
use crate::ring::Ring;

const PATIENCE: Duration = Duration::from_secs(20);

fn ping() -> PeerRequest {
    PeerMessage::Ping { view: 1 }.into()
}

/// Returns a transport of replica 0 that has no connections yet.
fn fresh(ring: &Ring, limits: &PeerLimits) -> Arc<PeerTransport> {
    let tls = PeerTls::load_or_create(&ring.folder.path().join("pki"), "polyplane-0");
    PeerTransport::new(tls.expect("made"), limits.clone())
}

/// Opens a connection and sends nothing; returns when the other side closes it.
async fn hold(address: String) {
    if let Ok(mut socket) = TcpStream::connect(&address).await {
        // The end of the stream and a reset mean the same here.
        let _ = socket.read(&mut [0; 16]).await;
    }
}

#[tokio::test]
async fn strangers_who_fill_the_peer_port_shut_no_peer_out() {
    let limits = PeerLimits {
        connections_max: 64,
        ..PeerLimits::default()
    };
    let ring = Ring::start_limited(2, &limits, |_| {}).await;
    let address = ring.replicas[1].peer.address.clone();
    let mut strangers = JoinSet::new();
    for _ in 0..100 {
        strangers.spawn(hold(address.clone()));
    }
    let until = Instant::now() + Duration::from_secs(3);
    let to = member(&ring.replicas[1].peer);
    let mut calls = 0;
    while Instant::now() < until {
        // Each call needs a new connection, while strangers connect again as soon as the listener
        // drops them.
        let transport = fresh(&ring, &limits);
        let reply = transport.call(&to, ping()).await;
        assert_eq!(reply, Ok(PeerReply::Pong { view: 7 }), "call {calls}");
        transport.retain(|_| false);
        calls += 1;
        while strangers.try_join_next().is_some() {
            strangers.spawn(hold(address.clone()));
        }
    }
    // The strangers are gone; after some quiet time, peers still reach each other.
    strangers.shutdown().await;
    tokio::time::sleep(Duration::from_millis(1500)).await;
    let reply = ring.replicas[0].transport.call(&to, ping()).await;
    assert_eq!(reply, Ok(PeerReply::Pong { view: 7 }));
}

#[tokio::test]
async fn a_stranger_who_says_nothing_is_put_out_after_a_second() {
    let ring = Ring::start(1).await;
    let began = Instant::now();
    let held = timeout(PATIENCE, hold(ring.replicas[0].peer.address.clone()));
    held.await.expect("put out");
    let took = began.elapsed();
    assert!(took < Duration::from_secs(5), "{took:?}");
}

/// A peer above the limit of connections gets a refusal, and does not treat the other replica as
/// dead.
#[tokio::test]
async fn a_peer_for_whom_there_is_no_room_is_told_so() {
    let limits = PeerLimits {
        connections_max: 1,
        ..PeerLimits::default()
    };
    let ring = Ring::start_limited(2, &limits, |_| {}).await;
    let to = member(&ring.replicas[1].peer);
    let first = &ring.replicas[0].transport;
    let reply = first.call(&to, ping()).await;
    assert_eq!(reply, Ok(PeerReply::Pong { view: 7 }));
    let failed = fresh(&ring, &limits).call(&to, ping()).await;
    assert!(
        matches!(&failed, Err(PeerError::Failed(why)) if why.contains("takes no more")),
        "{failed:?}"
    );
    let reply = first.call(&to, ping()).await;
    assert_eq!(reply, Ok(PeerReply::Pong { view: 7 }));
}

/// What a listener does with a new connection.
#[derive(Clone, Copy, Debug)]
enum Treatment {
    Closes,
    Resets,
}

/// Starts a listener in front of a peer that treats the first `turned_away` connections in the
/// given way and passes on later ones.
async fn doorman(behind: String, treatment: Treatment, turned_away: usize) -> Peer {
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("a free port");
    let address = listener.local_addr().expect("bound").to_string();
    tokio::spawn(async move {
        let mut seen = 0;
        while let Ok((mut socket, _)) = listener.accept().await {
            seen += 1;
            if seen <= turned_away {
                if matches!(treatment, Treatment::Resets) {
                    socket.set_zero_linger().expect("a socket");
                }
                continue;
            }
            let mut peer = TcpStream::connect(&behind).await.expect("it listens");
            tokio::spawn(
                async move { tokio::io::copy_bidirectional(&mut socket, &mut peer).await },
            );
        }
    });
    Peer {
        replica: "polyplane-1".to_owned(),
        address,
    }
}

#[tokio::test]
async fn an_end_or_a_reset_means_connect_again() {
    let ring = Ring::start(2).await;
    let behind = &ring.replicas[1].peer.address;
    for treatment in [Treatment::Closes, Treatment::Resets] {
        let front = doorman(behind.clone(), treatment, 3).await;
        let transport = fresh(&ring, &PeerLimits::default());
        let reply = transport.call(&member(&front), ping()).await;
        assert_eq!(reply, Ok(PeerReply::Pong { view: 7 }), "{treatment:?}");
    }
}

/// A proxy in front of a dead process ends or resets every connection, and so does a listener under
/// attack. To the caller both are a time-out.
#[tokio::test]
async fn ends_and_resets_for_ever_count_like_a_time_out() {
    let ring = Ring::start(2).await;
    let behind = &ring.replicas[1].peer.address;
    let limits = PeerLimits {
        connect_time_max: Duration::from_millis(200),
        ..PeerLimits::default()
    };
    for treatment in [Treatment::Closes, Treatment::Resets] {
        let front = doorman(behind.clone(), treatment, usize::MAX).await;
        let failed = fresh(&ring, &limits).call(&member(&front), ping()).await;
        assert_eq!(failed, Err(PeerError::TimedOut), "{treatment:?}");
    }
}

/// Returns the first line of a replica's answer to a client that shows these certificates; `None`
/// if the handshake fails.
async fn answered(
    ring: &Ring,
    identity: &Identity,
    above: &[CertificateDer<'static>],
) -> Option<String> {
    let mut roots = RootCertStore::empty();
    roots.add(ring.pki.root().clone()).expect("a root");
    let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
    let chain = [&identity.chain[..], above].concat();
    let config = rustls::ClientConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .expect("known versions")
        .with_root_certificates(roots)
        .with_client_auth_cert(chain, identity.key.clone_key())
        .expect("a certificate");
    let socket = TcpStream::connect(ring.replicas[0].address).await;
    let name = ServerName::try_from("localhost").expect("a name");
    let connector = TlsConnector::from(Arc::new(config));
    let mut stream = connector
        .connect(name, socket.expect("connected"))
        .await
        .ok()?;
    let request = b"GET /version HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n\r\n";
    stream.write_all(request).await.ok()?;
    let mut bytes = Vec::new();
    // A replica may close without the closing alert of TLS.
    let _ = timeout(PATIENCE, stream.read_to_end(&mut bytes))
        .await
        .expect("in time");
    let text = String::from_utf8(bytes).expect("text");
    text.lines().next().map(str::to_owned)
}

/// A chain with more than four intermediates ends in the handshake: a verifier tries intermediates
/// of one name in every order.
#[tokio::test]
async fn a_chain_that_is_much_work_ends_in_the_handshake() {
    let ring = Ring::start(1).await;
    let of = |count: usize| vec![ring.pki.root().clone(); count];
    let ok = Some("HTTP/1.1 200 OK".to_owned());
    assert_eq!(answered(&ring, &ring.admin, &of(0)).await, ok);
    assert_eq!(answered(&ring, &ring.admin, &of(4)).await, ok);
    assert_eq!(answered(&ring, &ring.admin, &of(5)).await, None);
    assert_eq!(answered(&ring, &ring.admin, &of(20)).await, None);
    let long = CertificateDer::from(vec![0; 12_000]);
    assert_eq!(answered(&ring, &ring.admin, &[long]).await, None);
    // A stranger's chain that is short enough passes the handshake, and its user is then denied.
    let folder = tempfile::tempdir().expect("a folder");
    let other = Pki::load_or_create(folder.path()).expect("made");
    let stranger = other.issue_client("carla", &[]).expect("issued");
    let denied = Some("HTTP/1.1 401 Unauthorized".to_owned());
    assert_eq!(answered(&ring, &stranger, &of(4)).await, denied);
    assert_eq!(answered(&ring, &ring.admin, &of(0)).await, ok);
}
