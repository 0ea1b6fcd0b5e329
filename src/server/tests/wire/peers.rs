//! The connections between replicas: certificates, limits and failures.

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use polyplane_ownership::{Member, PeerError, PeerMessage, PeerReply, PeerRequest, Peers as _};
use polyplane_pki::{PeerTls, SHARED_NAME};
use polyplane_server::{Peer, PeerLimits, PeerTransport};
use rcgen::ExtendedKeyUsagePurpose::{self, ClientAuth, ServerAuth};
use rustls::RootCertStore;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, PrivatePkcs8KeyDer, ServerName};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;
use tokio_rustls::TlsConnector;

use crate::ring::Ring;

pub fn member(peer: &Peer) -> Member {
    Member {
        id: peer.replica.parse().expect("a replica id"),
        incarnation: polyplane_ring::Incarnation::new(5),
        address: peer.address.parse().expect("an address"),
        zone: None,
        weight: Default::default(),
        standing: polyplane_ring::Standing::Serving,
    }
}

/// Returns a certificate of the peer CA, with these usages and names, for polyplane-1.
fn issued(
    pki: &Path,
    usages: &[ExtendedKeyUsagePurpose],
    names: &[&str],
) -> (Vec<CertificateDer<'static>>, PrivateKeyDer<'static>) {
    let (certificate, key) = signed(pki, usages, "polyplane-1", names);
    let key = PrivatePkcs8KeyDer::from(key.serialize_der());
    (vec![certificate.der().clone()], key.into())
}

/// Gives all replicas of a folder of certificates one certificate.
fn share_one(pki: &Path) {
    drop(PeerTls::load_or_create(pki, "polyplane-0").expect("the CA is made"));
    let usages = [ServerAuth, ClientAuth];
    let (certificate, key) = signed(pki, &usages, SHARED_NAME, &["peer.polyplane"]);
    std::fs::write(pki.join("peer.crt"), certificate.pem()).expect("written");
    std::fs::write(pki.join("peer.key"), key.serialize_pem()).expect("written");
}

/// Lets the peer CA sign a certificate with this common name.
fn signed(
    pki: &Path,
    usages: &[ExtendedKeyUsagePurpose],
    common_name: &str,
    names: &[&str],
) -> (rcgen::Certificate, rcgen::KeyPair) {
    let read = |name: &str| std::fs::read_to_string(pki.join(name)).expect("made");
    let ca_key = rcgen::KeyPair::from_pem(&read("peer-ca.key")).expect("a key");
    let ca = rcgen::Issuer::from_ca_cert_pem(&read("peer-ca.crt"), ca_key).expect("a CA");
    let key = rcgen::KeyPair::generate().expect("made");
    let names: Vec<String> = names.iter().map(|name| (*name).to_owned()).collect();
    let mut params = rcgen::CertificateParams::new(names).expect("names");
    let name = rcgen::DnType::CommonName;
    params.distinguished_name.push(name, common_name);
    params.extended_key_usages = usages.to_vec();
    let certificate = params.signed_by(&key, &ca).expect("signed");
    (certificate, key)
}

#[tokio::test]
async fn messages_arrive_with_their_sender_and_payload() {
    let ring = Ring::start(2).await;
    let to = member(&ring.replicas[1].peer);
    let payload = Bytes::from(vec![b'p'; 20 << 20]);
    let message = PeerMessage::State {
        plane: "team-a".to_owned(),
        head: 9,
    };
    let request = PeerRequest {
        message: message.clone(),
        payload: payload.clone(),
    };
    let reply = ring.replicas[0].transport.call(&to, request).await;
    assert_eq!(reply, Ok(PeerReply::Pong { view: 7 }));
    let heard = ring.world.messages.lock().clone();
    assert_eq!(
        heard,
        [(1, "polyplane-0".to_owned(), message, payload.len())]
    );
}

#[tokio::test]
async fn somebody_without_a_peer_certificate_says_nothing() {
    let ring = Ring::start(1).await;
    let address = &ring.replicas[0].peer.address;
    let roots = std::fs::read(ring.folder.path().join("pki/peer-ca.crt")).expect("made");
    let mut trusted = RootCertStore::empty();
    let root = rustls_pki_types::pem::PemObject::from_pem_slice(&roots).expect("a certificate");
    trusted.add(root).expect("a root");
    let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
    let builder = || {
        rustls::ClientConfig::builder_with_provider(Arc::clone(&provider))
            .with_safe_default_protocol_versions()
            .expect("known versions")
            .with_root_certificates(trusted.clone())
    };
    // No certificate, and one of the CA that signs client certificates.
    let mut without = builder().with_no_client_auth();
    let (chain, key) = (ring.admin.chain.clone(), ring.admin.key.clone_key());
    let mut with_other = builder()
        .with_client_auth_cert(chain, key)
        .expect("a certificate");
    // Three certificates of the peer CA: one for clients only, one without the mark of a peer, and,
    // for comparison, a real peer's, which must be accepted.
    let of_peer_ca = |usages: &[ExtendedKeyUsagePurpose], names: &[&str]| {
        let (chain, key) = issued(&ring.folder.path().join("pki"), usages, names);
        let config = builder().with_client_auth_cert(chain, key);
        config.expect("a certificate")
    };
    let role = ["polyplane-1", "peer.polyplane"];
    let mut for_clients = of_peer_ca(&[ClientAuth], &role);
    let mut unmarked = of_peer_ca(&[ServerAuth, ClientAuth], &role[..1]);
    let mut with_own = of_peer_ca(&[ServerAuth, ClientAuth], &role);
    for (config, is_peer) in [
        (&mut without, false),
        (&mut with_other, false),
        (&mut for_clients, false),
        (&mut unmarked, false),
        (&mut with_own, true),
    ] {
        config.alpn_protocols = vec![b"polyplane-peer/1".to_vec()];
        let socket = TcpStream::connect(address).await.expect("connected");
        let name = ServerName::try_from("peer.polyplane").expect("a name");
        let connector = TlsConnector::from(Arc::new(config.clone()));
        let refused = match connector.connect(name, socket).await {
            Err(_) => true,
            // In TLS 1.3 a client learns of a refused certificate only when it reads.
            Ok(mut stream) => {
                // A ping frame, which only a peer's connection answers.
                let _ = stream.write_all(b"\0\0\0\x04\x06\0\0\0\0\0\0\0\0").await;
                !matches!(stream.read(&mut [0; 64]).await, Ok(1..))
            }
        };
        assert_eq!(refused, !is_peer);
    }
    let other = tempfile::tempdir().expect("a folder");
    let tls = PeerTls::load_or_create(other.path(), "polyplane-9").expect("made");
    let stranger = PeerTransport::new(tls, PeerLimits::default());
    let to = member(&ring.replicas[0].peer);
    let failed = stranger.call(&to, PeerMessage::Load.into()).await;
    assert!(matches!(failed, Err(PeerError::Untrusted(_))), "{failed:?}");
    assert!(ring.world.messages.lock().is_empty());
}

#[tokio::test]
async fn nobody_there_is_told_from_somebody_who_does_not_answer() {
    let mut ring = Ring::start(2).await;
    let to = member(&ring.replicas[1].peer);
    let transport = Arc::clone(&ring.replicas[0].transport);
    let ping = || PeerRequest::from(PeerMessage::Ping { view: 1 });
    assert!(transport.call(&to, ping()).await.is_ok());
    ring.kill(1).await;
    // A call in flight when the connection broke cannot know whether it was handled.
    let refused = loop {
        match transport.call(&to, ping()).await {
            Err(PeerError::Ended(_)) => {}
            other => break other,
        }
    };
    assert_eq!(refused, Err(PeerError::Refused));
    // A listener that accepts and never answers behaves like a process that hangs.
    let silent = TcpListener::bind("127.0.0.1:0").await.expect("a free port");
    let peer = Peer {
        replica: "polyplane-1".to_owned(),
        address: silent.local_addr().expect("bound").to_string(),
    };
    let tls = PeerTls::load_or_create(&ring.folder.path().join("pki"), "polyplane-0");
    let limits = PeerLimits {
        connect_time_max: Duration::from_millis(50),
        ..PeerLimits::default()
    };
    let hasty = PeerTransport::new(tls.expect("made"), limits);
    let timed_out = hasty.call(&member(&peer), ping()).await;
    assert_eq!(timed_out, Err(PeerError::TimedOut));
}

/// A peer that refuses connections is removed from the ring as dead, so a living peer must never be
/// reported as [`PeerError::Refused`], even if it accepts no streams.
#[tokio::test]
async fn a_peer_that_takes_no_more_is_not_taken_for_one_that_is_gone() {
    let limits = PeerLimits {
        streams_per_connection_max: 0,
        ..PeerLimits::default()
    };
    let ring = Ring::start_limited(2, &limits, |_| {}).await;
    let to = member(&ring.replicas[1].peer);
    let ping = PeerMessage::Ping { view: 1 }.into();
    let failed = ring.replicas[0].transport.call(&to, ping).await;
    assert!(
        matches!(&failed, Err(PeerError::Failed(why)) if why.contains("takes no more")),
        "{failed:?}"
    );
    assert!(ring.world.messages.lock().is_empty());
}

#[tokio::test]
async fn an_address_that_belongs_to_another_replica_is_not_mistaken() {
    let ring = Ring::start(2).await;
    let mistaken = Peer {
        replica: "polyplane-7".to_owned(),
        address: ring.replicas[1].peer.address.clone(),
    };
    let transport = &ring.replicas[0].transport;
    let failed = transport
        .call(&member(&mistaken), PeerMessage::Load.into())
        .await;
    assert!(
        matches!(&failed, Err(PeerError::OtherReplica(why)) if why.contains("polyplane-1")),
        "{failed:?}"
    );
    assert!(ring.world.messages.lock().is_empty());
}

/// Returns an address that leads each connection to the process at the newest value of `to`, as the name of
/// a Service does.
async fn leading(to: watch::Receiver<String>) -> String {
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("a free port");
    let address = listener.local_addr().expect("bound").to_string();
    tokio::spawn(async move {
        while let Ok((mut socket, _)) = listener.accept().await {
            let process = to.borrow().clone();
            tokio::spawn(async move {
                let mut process = TcpStream::connect(process).await.expect("it listens");
                let _ = tokio::io::copy_bidirectional(&mut socket, &mut process).await;
            });
        }
    });
    address
}

/// If all replicas share one certificate, no handshake shows that an address leads to another one.
#[tokio::test]
async fn a_connection_over_which_another_replica_answers_is_not_used_again() {
    let limits = PeerLimits::default();
    let ring = Ring::start_prepared(3, &limits, share_one, |_| {}).await;
    let to = watch::Sender::new(ring.replicas[2].peer.address.clone());
    let peer = member(&Peer {
        replica: "polyplane-1".to_owned(),
        address: leading(to.subscribe()).await,
    });
    let transport = &ring.replicas[0].transport;
    let ping = || transport.call(&peer, PeerMessage::Ping { view: 1 }.into());
    let failed = ping().await;
    assert!(
        matches!(&failed, Err(PeerError::OtherReplica(why)) if why.contains("polyplane-2")),
        "{failed:?}"
    );
    to.send_replace(ring.replicas[1].peer.address.clone());
    assert_eq!(ping().await, Ok(PeerReply::Pong { view: 7 }));
    let heard = ring.world.messages.lock().clone();
    let ping = PeerMessage::Ping { view: 1 };
    assert_eq!(heard, [(1, "polyplane-0".to_owned(), ping, 0)]);
}

#[tokio::test]
async fn a_payload_beyond_the_bound_is_not_sent() {
    let ring = Ring::start(2).await;
    let tls = PeerTls::load_or_create(&ring.folder.path().join("pki"), "polyplane-0");
    let limits = PeerLimits {
        payload_bytes_max: 1000,
        ..PeerLimits::default()
    };
    let small = PeerTransport::new(tls.expect("made"), limits);
    let request = PeerRequest {
        message: PeerMessage::Load,
        payload: Bytes::from(vec![0; 1001]),
    };
    let to = member(&ring.replicas[1].peer);
    let failed = small.call(&to, request).await;
    assert!(matches!(failed, Err(PeerError::Failed(_))), "{failed:?}");
    assert!(ring.world.messages.lock().is_empty());
}
