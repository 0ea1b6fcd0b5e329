//! TLS between replicas: a CA of their own, and a certificate for each replica.
//!
//! A peer certificate names its replica in the common name, is used for both ends of a connection,
//! and has the role of a peer ([`role`]). Addresses are not checked, because those of pods change.
//! If all replicas share one certificate, it has the name [`SHARED_NAME`], and each message names
//! its sender. A replica does not use a certificate with another name than these two: its peers would take it
//! for another replica.
//!
//! Invariant: no handshake succeeds, in either direction, unless the peer CA signed the other
//! side's certificate as that of a peer.

use std::fmt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime};

use arc_swap::ArcSwap;
use polyplane_ring::ReplicaId;
use rcgen::{ExtendedKeyUsagePurpose, SanType};
use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::client::verify_server_cert_signed_by_trust_anchor;
use rustls::crypto::{CryptoProvider, verify_tls13_signature};
use rustls::pki_types::{CertificateDer, ServerName, UnixTime};
use rustls::server::danger::{ClientCertVerified, ClientCertVerifier};
use rustls::server::{ParsedCertificate, WebPkiClientVerifier};
use rustls::sign::{CertifiedKey, SingleCertAndKey};
use rustls::{
    CertificateError, ClientConfig, DigitallySignedStruct, DistinguishedName, RootCertStore,
    ServerConfig, SignatureScheme, version,
};

use crate::chain::check_short;
use crate::expiry::{CertificateUse, Expiries, ExpiryLog, invalidity};
use crate::files::lock;
use crate::pair::{Lookout, PairFiles, certificates};
use crate::peer_cas::PeerCas;
use crate::role::{self, PEER_ROLE, Unmarked};
use crate::trouble::Trouble;
use crate::{Authority, Identity, PkiError, leaf, leaf_renewal_age, make_folder};

/// The name and version of the protocol between replicas, on which a handshake agrees.
pub const ALPN_PEER: &[u8] = b"polyplane-peer/1";

/// The name of a certificate that all replicas share.
pub const SHARED_NAME: &str = "polyplane-peer";

/// The TLS settings of a replica for its peers, always with the newest certificates of the folder.
pub struct PeerTls {
    replica: String,
    roots: PathBuf,
    source: Source,
    unmarked: Unmarked,
    provider: Arc<CryptoProvider>,
    lookout: Lookout,
    trouble: Trouble,
    current: ArcSwap<PeerConfigs>,
    expiry: ExpiryLog,
    expiries: Arc<Expiries>,
}

enum Source {
    Given(PairFiles),
    /// The replica issues its certificate from the CA in this folder.
    Issued(PathBuf),
}

/// The configurations for both ends of a connection, made from one state of the files.
pub struct PeerConfigs {
    /// The configuration of listeners.
    pub server: Arc<ServerConfig>,
    /// The configuration of connections to other replicas.
    pub client: Arc<ClientConfig>,
    /// The replica's own certificate and those that complete it.
    chain: Vec<CertificateDer<'static>>,
    /// The CAs by which the certificates of other replicas are verified.
    roots: Vec<CertificateDer<'static>>,
    cas: Option<PeerCas>,
    unmarked: Unmarked,
    made: Instant,
}

impl PeerTls {
    /// Reads the peer files of `folder` for the replica called `replica`; creates the CA if neither
    /// it nor a certificate exists.
    ///
    /// # Errors
    /// Returns an error if only some of the files exist, files are damaged or cannot be created, or a given
    /// certificate is that of another replica.
    pub fn load_or_create(folder: &Path, replica: &str) -> Result<Arc<Self>, PkiError> {
        Self::load_or_create_with(folder, replica, Unmarked::Refused)
    }

    /// Does the same as [`Self::load_or_create`]. `unmarked` decides about peers whose certificates
    /// lack the DNS name of peers.
    ///
    /// # Errors
    /// Returns the errors of [`Self::load_or_create`].
    pub fn load_or_create_with(
        folder: &Path,
        replica: &str,
        unmarked: Unmarked,
    ) -> Result<Arc<Self>, PkiError> {
        make_folder(folder)?;
        let _alone = lock(folder);
        let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
        let roots = folder.join("peer-ca.crt");
        let source = match PairFiles::find(folder, "peer")? {
            Some(_) if !roots.exists() => return Err(PkiError::Half { path: roots }),
            Some(pair) => Source::Given(pair),
            None => {
                // Created here, so that the files exist before their first check, and only here: if
                // the operator replaces files and they are absent for a moment, new ones must not
                // be created.
                Authority::load_or_create(folder, "peer-ca", "polyplane-peer-ca")?;
                Source::Issued(folder.to_owned())
            }
        };
        let mut paths = vec![roots.clone()];
        match &source {
            Source::Given(pair) => paths.extend(pair.paths()),
            Source::Issued(folder) => paths.push(folder.join("peer-ca.key")),
        }
        let lookout = Lookout::new(paths);
        let first = source.configs(&roots, replica, unmarked, &provider)?;
        if !source.is_signed_by(&roots, &provider)? {
            // Not an error: while a CA is replaced, the others may trust both and this replica only one.
            tracing::warn!(
                "peer.crt is not signed by a CA in {}: replicas that have the same file will not \
                 accept this one",
                roots.display()
            );
        }
        let expiries = Arc::<Expiries>::default();
        let expiry = ExpiryLog::new(CertificateUse::Peer, 0, &expiries);
        expiry.look_anew(&first.chain);
        expiries.record(CertificateUse::PeerCa, &first.roots);
        Ok(Arc::new(Self {
            replica: replica.to_owned(),
            roots,
            source,
            unmarked,
            provider,
            lookout,
            trouble: Trouble::default(),
            current: ArcSwap::from_pointee(first),
            expiry,
            expiries,
        }))
    }

    /// Checks the peer files of `folder` for replicas of any name; creates the CA if neither it nor a
    /// certificate exists.
    ///
    /// # Errors
    /// Returns the errors of [`Self::load_or_create`].
    pub fn prepare(folder: &Path) -> Result<(), PkiError> {
        let provider = rustls::crypto::aws_lc_rs::default_provider();
        let name = match PairFiles::find(folder, "peer")? {
            Some(pair) => pair.load_peer(Unmarked::Refused, &provider)?.1.to_string(),
            // The issued certificate is discarded, so any name will do.
            None => "certs".to_owned(),
        };
        Self::load_or_create(folder, &name).map(drop)
    }

    /// Returns the replica that owns this certificate.
    pub fn replica(&self) -> &str {
        &self.replica
    }

    /// Returns the ends of the certificates for other replicas and of their CAs.
    pub fn expiries(&self) -> &Arc<Expiries> {
        &self.expiries
    }

    /// Returns the configurations for a new connection. Reads the files again if they changed;
    /// keeps the old configurations if the new files cannot be used.
    pub fn current(&self) -> Arc<PeerConfigs> {
        let current = self.current.load_full();
        self.expiry.look(&current.chain);
        let sight = self.lookout.changed();
        if sight.is_none() && current.made.elapsed() < self.source.age_max() {
            return current;
        }
        let (source, roots) = (&self.source, &self.roots);
        match source.configs(roots, &self.replica, self.unmarked, &self.provider) {
            Ok(fresh) => {
                self.trouble.end();
                self.expiry.look_anew(&fresh.chain);
                self.expiries.record(CertificateUse::PeerCa, &fresh.roots);
                let fresh = Arc::new(fresh);
                self.current.store(Arc::clone(&fresh));
                if let Some(sight) = sight {
                    tracing::info!("the peer certificates were read again");
                    self.lookout.taken(sight);
                }
                fresh
            }
            Err(error) => {
                let error = &error as &dyn std::error::Error;
                if self.trouble.is_news(error) {
                    tracing::error!(error, "the changed peer certificates cannot be used");
                }
                current
            }
        }
    }
}

impl Source {
    /// Returns the age at which the certificate is issued again.
    fn age_max(&self) -> Duration {
        match self {
            Self::Given(_) => Duration::MAX,
            Self::Issued(_) => leaf_renewal_age(),
        }
    }

    /// Returns whether the certificate is one that the CA of the folder has signed.
    ///
    /// # Errors
    /// Returns an error if a file cannot be used.
    fn is_signed_by(&self, roots: &Path, provider: &CryptoProvider) -> Result<bool, PkiError> {
        match self {
            Self::Given(pair) => {
                let chain = pair.load(provider)?.cert;
                let anchors = role::anchors(&certificates(roots)?);
                Ok(is_signed_by(&chain, anchors, provider))
            }
            Self::Issued(_) => Ok(true),
        }
    }

    fn configs(
        &self,
        roots: &Path,
        replica: &str,
        unmarked: Unmarked,
        provider: &Arc<CryptoProvider>,
    ) -> Result<PeerConfigs, PkiError> {
        let key = match self {
            Self::Given(pair) => {
                let (key, name) = pair.load_peer(unmarked, provider)?;
                if name.as_str() != replica && name.as_str() != SHARED_NAME {
                    return Err(PkiError::OtherPeer {
                        path: pair.certificate().to_owned(),
                        name: name.to_string(),
                        replica: replica.to_owned(),
                    });
                }
                key
            }
            Self::Issued(folder) => {
                let ca = Authority::load(folder, "peer-ca")?;
                let Identity { chain, key, .. } = issue(&ca, replica)?;
                CertifiedKey::from_der(chain, key, provider).map_err(|source| {
                    PkiError::Mismatch {
                        certificate: roots.to_owned(),
                        key: folder.join("peer-ca.key"),
                        source,
                    }
                })?
            }
        };
        let anchors = role::anchors(&certificates(roots)?);
        configs(key, &anchors, unmarked, provider).ok_or_else(|| PkiError::Damaged {
            path: roots.to_owned(),
            holds: "a CA certificate",
        })
    }
}

pub(crate) fn issue(ca: &Authority, replica: &str) -> Result<Identity, PkiError> {
    let usages = [
        ExtendedKeyUsagePurpose::ServerAuth,
        ExtendedKeyUsagePurpose::ClientAuth,
    ];
    let mut params = leaf(replica, &usages);
    for name in [replica, PEER_ROLE] {
        let name = name.try_into().map_err(PkiError::Issue)?;
        params.subject_alt_names.push(SanType::DnsName(name));
    }
    ca.issue(params)
}

/// Returns whether a peer that trusts these roots would find the signer of a chain among them. Whether the
/// chain has expired is not asked.
pub(crate) fn is_signed_by(
    chain: &[CertificateDer<'static>],
    roots: Vec<CertificateDer<'static>>,
    provider: &CryptoProvider,
) -> bool {
    let mut store = RootCertStore::empty();
    store.add_parsable_certificates(roots);
    let Some((leaf, intermediates)) = chain.split_first() else {
        return false;
    };
    let verified = ParsedCertificate::try_from(leaf).and_then(|leaf| {
        let algorithms = provider.signature_verification_algorithms.all;
        let now = UnixTime::now();
        verify_server_cert_signed_by_trust_anchor(&leaf, &store, intermediates, now, algorithms)
    });
    !matches!(
        verified,
        Err(rustls::Error::InvalidCertificate(
            CertificateError::UnknownIssuer | CertificateError::BadSignature
        ))
    )
}

/// Builds both configurations; returns `None` if no verifier can be built from the roots.
fn configs(
    key: CertifiedKey,
    roots: &[CertificateDer<'static>],
    unmarked: Unmarked,
    provider: &Arc<CryptoProvider>,
) -> Option<PeerConfigs> {
    let chain = key.cert.clone();
    let cas = PeerCas::of(&chain, roots, provider);
    let mut store = RootCertStore::empty();
    for root in roots {
        store.add(root.clone()).ok()?;
    }
    let store = Arc::new(store);
    let resolver = Arc::new(SingleCertAndKey::from(key));
    let signed =
        WebPkiClientVerifier::builder_with_provider(Arc::clone(&store), Arc::clone(provider))
            .build()
            .ok()?;
    let demanding = Arc::new(PeersOnly { signed, unmarked });
    let mut server = ServerConfig::builder_with_provider(Arc::clone(provider))
        .with_protocol_versions(&[&version::TLS13])
        .ok()?
        .with_client_cert_verifier(demanding)
        .with_cert_resolver(Arc::clone(&resolver) as _);
    server.alpn_protocols = vec![ALPN_PEER.to_vec()];
    // No tickets, because a resumed session would outlive a change of the CA, and peers connect
    // rarely.
    server.send_tls13_tickets = 0;
    let mut client = ClientConfig::builder_with_provider(Arc::clone(provider))
        .with_protocol_versions(&[&version::TLS13])
        .ok()?
        .dangerous()
        .with_custom_certificate_verifier(Arc::new(AnyMember {
            roots: store,
            unmarked,
            provider: Arc::clone(provider),
        }))
        .with_client_cert_resolver(resolver);
    client.alpn_protocols = vec![ALPN_PEER.to_vec()];
    client.enable_sni = false;
    Some(PeerConfigs {
        server: Arc::new(server),
        client: Arc::new(client),
        chain,
        roots: roots.to_vec(),
        cas,
        unmarked,
        made: Instant::now(),
    })
}

impl PeerConfigs {
    /// Returns the CAs that these configurations go by; `None` if they cannot be named.
    pub fn cas(&self) -> Option<&PeerCas> {
        self.cas.as_ref()
    }

    /// Returns why the replica's own certificate, or one of its chain, is not valid now; `None` if all are.
    pub fn invalidity(&self) -> Option<String> {
        invalidity(&self.chain, SystemTime::now())
    }

    /// Returns the name in the certificate that the other end of a connection showed. The handshake
    /// has verified it.
    pub fn name_of(&self, chain: Option<&[CertificateDer<'static>]>) -> Option<ReplicaId> {
        role::replica_of(chain?.first()?, self.unmarked).ok()
    }
}

/// Checks the role of a certificate that the peer CA has signed.
fn check_role(leaf: &CertificateDer<'_>, unmarked: Unmarked) -> Result<(), rustls::Error> {
    match role::replica_of(leaf, unmarked) {
        Ok(_) => Ok(()),
        Err(why) => Err(rustls::Error::General(why.to_string())),
    }
}

/// Accepts connections only with peer certificates that the peer CA signed.
#[derive(Debug)]
struct PeersOnly {
    signed: Arc<dyn ClientCertVerifier>,
    unmarked: Unmarked,
}

impl ClientCertVerifier for PeersOnly {
    fn root_hint_subjects(&self) -> &[DistinguishedName] {
        self.signed.root_hint_subjects()
    }

    fn verify_client_cert(
        &self,
        end_entity: &CertificateDer<'_>,
        intermediates: &[CertificateDer<'_>],
        now: UnixTime,
    ) -> Result<ClientCertVerified, rustls::Error> {
        // The cheap checks come first, because anybody may have sent this certificate.
        check_short(end_entity, intermediates)?;
        check_role(end_entity, self.unmarked)?;
        self.signed
            .verify_client_cert(end_entity, intermediates, now)
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        self.signed
            .verify_tls12_signature(message, certificate, signature)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        self.signed
            .verify_tls13_signature(message, certificate, signature)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.signed.supported_verify_schemes()
    }
}

/// Trusts every holder of a peer certificate that the peer CA signed, whatever address was dialled.
struct AnyMember {
    roots: Arc<RootCertStore>,
    unmarked: Unmarked,
    provider: Arc<CryptoProvider>,
}

impl fmt::Debug for AnyMember {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str("AnyMember")
    }
}

impl ServerCertVerifier for AnyMember {
    fn verify_server_cert(
        &self,
        end_entity: &CertificateDer<'_>,
        intermediates: &[CertificateDer<'_>],
        _server_name: &ServerName<'_>,
        _ocsp_response: &[u8],
        now: UnixTime,
    ) -> Result<ServerCertVerified, rustls::Error> {
        check_short(end_entity, intermediates)?;
        check_role(end_entity, self.unmarked)?;
        let parsed = ParsedCertificate::try_from(end_entity)?;
        verify_server_cert_signed_by_trust_anchor(
            &parsed,
            &self.roots,
            intermediates,
            now,
            self.provider.signature_verification_algorithms.all,
        )?;
        Ok(ServerCertVerified::assertion())
    }

    fn verify_tls12_signature(
        &self,
        _message: &[u8],
        _certificate: &CertificateDer<'_>,
        _signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        Err(rustls::Error::General("peers speak TLS 1.3".to_owned()))
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        let algorithms = &self.provider.signature_verification_algorithms;
        verify_tls13_signature(message, certificate, signature, algorithms)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.provider
            .signature_verification_algorithms
            .supported_schemes()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::CertificateEnds;
    use std::fs;

    #[test]
    fn replicas_of_one_folder_share_the_ca_and_nothing_else() {
        let folder = tempfile::tempdir().expect("a folder");
        let first = PeerTls::load_or_create(folder.path(), "polyplane-0").expect("created");
        let ca = fs::read(folder.path().join("peer-ca.crt")).expect("made");
        let second = PeerTls::load_or_create(folder.path(), "polyplane-1").expect("loaded");
        assert_eq!(
            fs::read(folder.path().join("peer-ca.crt")).expect("there"),
            ca
        );
        assert_eq!(
            (first.replica(), second.replica()),
            ("polyplane-0", "polyplane-1")
        );
        assert!(!folder.path().join("peer.crt").exists());
    }

    #[test]
    fn the_ends_of_the_certificate_and_of_the_ca_are_recorded() {
        let folder = tempfile::tempdir().expect("a folder");
        let tls = PeerTls::load_or_create(folder.path(), "polyplane-0").expect("created");
        let mut ends = CertificateEnds::new();
        tls.expiries().add_to(&mut ends);
        let recorded: Vec<_> = ends.into_keys().collect();
        let wanted = [
            (CertificateUse::Peer, "polyplane-0".to_owned()),
            (CertificateUse::PeerCa, "polyplane-peer-ca".to_owned()),
        ];
        assert_eq!(recorded, wanted);
    }

    #[test]
    fn a_ca_that_is_gone_while_it_is_replaced_is_not_made_anew() {
        let folder = tempfile::tempdir().expect("a folder");
        let tls = PeerTls::load_or_create(folder.path(), "polyplane-0").expect("created");
        for name in ["peer-ca.crt", "peer-ca.key"] {
            fs::remove_file(folder.path().join(name)).expect("it was there");
        }
        let read = || {
            let (source, roots) = (&tls.source, &tls.roots);
            source.configs(roots, "polyplane-0", tls.unmarked, &tls.provider)
        };
        assert!(read().is_err());
        assert_eq!(fs::read_dir(folder.path()).expect("a folder").count(), 0);
    }

    #[test]
    fn a_given_certificate_of_another_ca_is_noticed() {
        let (own, other) = (
            tempfile::tempdir().expect("a folder"),
            tempfile::tempdir().expect("a folder"),
        );
        let provider = rustls::crypto::aws_lc_rs::default_provider();
        let [own, other] = [&own, &other].map(|folder| {
            Authority::load_or_create(folder.path(), "peer-ca", "polyplane-peer-ca").expect("made")
        });
        let issued = issue(&own, "polyplane-7").expect("issued");
        let signed_by = |roots: &[&Authority]| {
            let roots = roots.iter().map(|ca| ca.root.clone()).collect();
            is_signed_by(&issued.chain, roots, &provider)
        };
        assert!(signed_by(&[&own]));
        assert!(signed_by(&[&other, &own]));
        assert!(!signed_by(&[&other]));
        assert!(!signed_by(&[]));
    }

    #[test]
    fn a_given_certificate_names_its_replica_or_is_shared_by_all() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = |name: &str| folder.path().join(name);
        let ca = Authority::load_or_create(folder.path(), "peer-ca", "ca").expect("made");
        let give = |name: &str| {
            let given = issue(&ca, name).expect("issued");
            fs::write(path("peer.crt"), &given.certificate_pem).expect("written");
            fs::write(path("peer.key"), &given.key_pem).expect("written");
        };
        give("polyplane-8");
        let other = PeerTls::load_or_create(folder.path(), "polyplane-7").map(|_| ());
        let other = other.expect_err("it is another replica's").to_string();
        let file = path("peer.crt").display().to_string();
        for part in [&*file, "\"polyplane-8\"", "\"polyplane-7\"", SHARED_NAME] {
            assert!(other.contains(part), "{other}");
        }
        PeerTls::prepare(folder.path()).expect("it is for some replica");
        give(SHARED_NAME);
        assert!(PeerTls::load_or_create(folder.path(), "polyplane-7").is_ok());
        give("polyplane-7");
        let tls = PeerTls::load_or_create(folder.path(), "polyplane-7").expect("its own");
        assert_eq!(tls.current().invalidity(), None);
        // The same holds for a certificate that takes the place of a fitting one.
        give("polyplane-8");
        let (source, roots) = (&tls.source, &tls.roots);
        let read = source.configs(roots, tls.replica(), tls.unmarked, &tls.provider);
        let read = read.map(|_| ());
        assert!(matches!(read, Err(PkiError::OtherPeer { .. })), "{read:?}");
    }

    #[test]
    fn a_given_certificate_needs_the_ca_but_not_its_key() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = |name: &str| folder.path().join(name);
        let ca = Authority::load_or_create(folder.path(), "peer-ca", "ca").expect("made");
        let given = issue(&ca, "polyplane-7").expect("issued");
        fs::write(path("peer.crt"), &given.certificate_pem).expect("written");
        fs::write(path("peer.key"), &given.key_pem).expect("written");
        fs::remove_file(path("peer-ca.key")).expect("removed");
        let tls = PeerTls::load_or_create(folder.path(), "polyplane-7").expect("complete");
        let configs = tls.current();
        let name = configs.name_of(Some(&given.chain));
        assert_eq!(name.as_ref().map(ReplicaId::as_str), Some("polyplane-7"));
        fs::rename(path("peer-ca.crt"), path("elsewhere")).expect("moved");
        let half = PeerTls::load_or_create(folder.path(), "polyplane-7").map(|_| ());
        assert!(
            matches!(&half, Err(PkiError::Half { path }) if path.ends_with("peer-ca.crt")),
            "{half:?}"
        );
        fs::rename(path("elsewhere"), path("peer-ca.crt")).expect("moved");
        fs::remove_file(path("peer.key")).expect("removed");
        let half = PeerTls::load_or_create(folder.path(), "polyplane-7").map(|_| ());
        assert!(
            matches!(&half, Err(PkiError::Half { path }) if path.ends_with("peer.key")),
            "{half:?}"
        );
    }
}
