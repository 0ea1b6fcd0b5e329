//! The server's own CA with its certificates, and the certificates by which replicas know each
//! other.
//!
//! This crate owns the files in the certificate folder, the certificates made or read from them,
//! and their renewal:
//!
//! | file | holds | if it is absent |
//! |---|---|---|
//! | `ca.crt`, `ca.key` | the CA of serving and administrator certificates | both made; one alone is an error |
//! | `admin.token` | the administrator's bearer token | made |
//! | `root.secret` | the secret from which the keys of control planes derive | made together with the CA, or by [`make_root_secret`] |
//! | `serving.crt`, `serving.key` | a given serving certificate, chain first to last | issued in memory |
//! | `peer-ca.crt`, `peer-ca.key` | the CA of replicas among each other | made when the replica has peers |
//! | `peer.crt`, `peer.key` | a given peer certificate, whose common name is the replica's id or [`SHARED_NAME`]; only `peer-ca.crt` is needed beside it | issued in memory |
//!
//! Serving, peer and administrator certificates are issued from their CA at each start and kept in
//! memory, so a changed host name or an old certificate needs no procedure. Given certificates are
//! read again when their files change (`pair`), and the server asks for the administrator's token again
//! ([`read_admin_token`]). A complete folder may be read-only.
//!
//! It knows nothing of requests and connections: callers get TLS configurations and resolvers.
//!
//! Invariant: a file with a secret is created readable by its owner only and replaced as a whole.
//! Files that the operator put into the folder are only read (`files`).

mod chain;
mod expiry;
mod files;
pub mod kubeconfig;
mod leaf;
mod named;
mod pair;
mod peer;
mod peer_cas;
mod plane_ca;
mod role;
mod root_secret;
mod serving;
mod signing_request;
mod trouble;

use std::fs;
use std::io;
use std::net::IpAddr;
use std::ops::RangeInclusive;
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use polyplane_auth::RootSecret;
use rcgen::{
    BasicConstraints, CertificateParams, DistinguishedName, DnType, ExtendedKeyUsagePurpose, IsCa,
    Issuer, KeyPair, KeyUsagePurpose, PKCS_ECDSA_P256_SHA256, SanType,
};
use rustls_pki_types::pem::PemObject;
use rustls_pki_types::{CertificateDer, PrivateKeyDer, PrivatePkcs8KeyDer};
use x509_parser::certificate::X509Certificate;
use x509_parser::prelude::FromDer;

use files::{lock, read, read_secret, sync_folder_of, write_private_together};
use pair::{PairFiles, certificates};

pub use chain::check_short;
pub use expiry::{CertificateEnds, CertificateUse, Expiries};
pub use files::write_private;
pub use leaf::{AlternativeName, Usages};
pub use named::NamedPair;
pub use peer::{ALPN_PEER, PeerConfigs, PeerTls, SHARED_NAME};
pub use peer_cas::PeerCas;
pub use plane_ca::{CREDENTIAL_BACKDATING, ClientCertificate, IssueError, PlaneCa, pem_of};
pub use role::{RoleError, Unmarked};
pub use root_secret::{ROOT_SECRET_FILE, make_root_secret, read_root_secret};
pub use serving::{RenewingCertificate, TlsError};
pub use signing_request::SigningRequest;

/// Lengths of a bearer token of a server, in bytes. A shorter one can be guessed, and a longer file holds
/// something else.
pub const TOKEN_BYTES: RangeInclusive<usize> = 16..=4096;
const DAY: Duration = Duration::from_secs(86_400);
/// How long a CA is valid. This program never replaces a CA, because clients have copies of it.
const CA_LIFETIME: Duration = Duration::from_secs(3650 * 86_400);
/// How long an issued certificate is valid. It is replaced well before that, see
/// [`leaf_renewal_age`].
const LEAF_LIFETIME: Duration = Duration::from_secs(365 * 86_400);
/// How long before its issue a certificate becomes valid. Without it, clients whose clocks are slow
/// would refuse a new certificate.
const BACKDATING: Duration = Duration::from_secs(3600);

/// The reason why keys and certificates cannot be read or created.
#[derive(Debug, thiserror::Error)]
pub enum PkiError {
    /// A folder cannot be created.
    #[error("cannot create the folder {}", path.display())]
    Folder {
        /// The folder.
        path: PathBuf,
        /// The error of the system.
        #[source]
        source: io::Error,
    },
    /// A file cannot be read.
    #[error("cannot read {}", path.display())]
    Read {
        /// The file.
        path: PathBuf,
        /// The error of the system.
        #[source]
        source: io::Error,
    },
    /// A file cannot be written.
    #[error("cannot write {}", path.display())]
    Write {
        /// The file.
        path: PathBuf,
        /// The error of the system.
        #[source]
        source: io::Error,
    },
    /// A file exists and does not contain what it should.
    #[error("{} does not hold {holds}; restore it or remove the folder it is in", path.display())]
    Damaged {
        /// The file.
        path: PathBuf,
        /// A description of the expected content.
        holds: &'static str,
    },
    /// A certificate exists without its key, a key without its certificate, or a given peer
    /// certificate without its CA.
    #[error("{} is missing while its counterpart is there; restore it or remove both", path.display())]
    Half {
        /// The file that is missing.
        path: PathBuf,
    },
    /// The key is not that of the certificate, or neither can be used.
    #[error(
        "the certificate in {} and the key in {} cannot be used together; restore the two that \
         belong to each other",
        certificate.display(),
        key.display()
    )]
    Mismatch {
        /// The certificate's file.
        certificate: PathBuf,
        /// The key's file.
        key: PathBuf,
        /// The error of the TLS library.
        #[source]
        source: rustls::Error,
    },
    /// The given peer certificate is not that of a peer.
    #[error("{} cannot be used", path.display())]
    Role {
        /// The certificate's file.
        path: PathBuf,
        /// The property that the certificate lacks.
        #[source]
        source: RoleError,
    },
    /// The given peer certificate is that of another replica.
    #[error(
        "the common name of {} is {name:?}, but the peer certificate of this replica must have its id, \
         {replica:?}, or {SHARED_NAME}, which all replicas may share",
        path.display()
    )]
    OtherPeer {
        /// The certificate's file.
        path: PathBuf,
        /// The certificate's common name.
        name: String,
        /// The id of the replica.
        replica: String,
    },
    /// A certificate cannot be issued with the given names.
    #[error("cannot issue a certificate")]
    Issue(#[source] rcgen::Error),
}

/// A certificate with its key.
#[derive(Debug)]
pub struct Identity {
    /// The chain, leaf first.
    pub chain: Vec<CertificateDer<'static>>,
    /// The key of the leaf.
    pub key: PrivateKeyDer<'static>,
    /// The leaf as PEM text.
    pub certificate_pem: String,
    /// The key as PEM text.
    pub key_pem: String,
}

/// A new key pair of a client, which never leaves the client.
pub struct ClientKey {
    /// The public key, PEM.
    pub public: String,
    /// The private key, PEM.
    pub private: String,
}

impl ClientKey {
    /// Makes a key pair on P-256, which every client can use.
    ///
    /// # Errors
    /// Returns an error if the system gives no random bytes.
    pub fn generate() -> Result<Self, PkiError> {
        let key = new_key()?;
        Ok(Self {
            public: key.public_key_pem(),
            private: key.serialize_pem(),
        })
    }
}

/// The CA with its key, the administrator's token, and the root secret.
pub struct Pki {
    ca: Authority,
    admin_token: String,
    /// `None` if the token is in no file.
    admin_token_file: Option<PathBuf>,
    root_secret: Option<Arc<RootSecret>>,
    serving: Option<PairFiles>,
    named: Vec<NamedPair>,
    expiries: Arc<Expiries>,
}

impl Pki {
    /// Reads the folder, and creates the files that are missing.
    ///
    /// # Errors
    /// Returns an error if the folder cannot be used, or if a file has other content than it
    /// should.
    pub fn load_or_create(folder: &Path) -> Result<Self, PkiError> {
        make_folder(folder)?;
        let _alone = lock(folder);
        // A folder of an earlier release gets none here: the replicas of a ring that have a folder
        // each would all make another.
        if !folder.join("ca.crt").exists() && !folder.join("ca.key").exists() {
            root_secret::make_in(folder)?;
        }
        let ca = Authority::load_or_create(folder, "ca", "polyplane-ca")?;
        let admin_token_file = folder.join("admin.token");
        Ok(Self {
            expiries: expiries_of(&ca),
            ca,
            admin_token: load_or_create_token(&admin_token_file)?,
            admin_token_file: Some(admin_token_file),
            root_secret: read_root_secret(&folder.join(ROOT_SECRET_FILE))?.map(Arc::new),
            serving: PairFiles::find(folder, "serving")?,
            named: Vec::new(),
        })
    }

    /// Creates a CA and a token for this process alone, of which nothing is written. The server shows
    /// the certificate and key in the files `serving` if they are given, and reads them again when they
    /// change.
    ///
    /// # Errors
    /// Returns an error if the system gives no random bytes.
    pub fn in_memory(serving: Option<(PathBuf, PathBuf)>) -> Result<Self, PkiError> {
        let (root_pem, key_pem) = new_ca("polyplane-ca")?;
        let key = KeyPair::from_pem(&key_pem).map_err(PkiError::Issue)?;
        let damaged = |_| PkiError::Issue(rcgen::Error::CouldNotParseCertificate);
        let ca = Authority {
            issuer: Issuer::from_ca_cert_pem(&root_pem, key).map_err(PkiError::Issue)?,
            root: CertificateDer::from_pem_slice(root_pem.as_bytes()).map_err(damaged)?,
            root_pem,
        };
        Ok(Self {
            expiries: expiries_of(&ca),
            ca,
            admin_token: new_token().ok_or(PkiError::Issue(rcgen::Error::RingUnspecified))?,
            admin_token_file: None,
            root_secret: None,
            serving: serving.map(|(certificate, key)| PairFiles::given(certificate, key)),
            named: Vec::new(),
        })
    }

    /// Adds serving certificates for some names.
    #[must_use]
    pub fn with_named(self, named: Vec<NamedPair>) -> Self {
        Self { named, ..self }
    }

    /// Returns the CA certificate.
    pub fn root(&self) -> &CertificateDer<'static> {
        &self.ca.root
    }

    /// Returns the CA certificate as PEM text, for kubeconfigs and `kube-root-ca.crt`.
    pub fn root_pem(&self) -> &str {
        &self.ca.root_pem
    }

    /// Returns the token that proved the administrator when the folder was read.
    pub fn admin_token(&self) -> &str {
        &self.admin_token
    }

    /// Returns the file with the administrator's token, for [`read_admin_token`]; `None` if the token is
    /// in no file.
    pub fn admin_token_file(&self) -> Option<&Path> {
        self.admin_token_file.as_deref()
    }

    /// Returns the secret from which the keys of control planes derive, if the folder has one.
    pub fn root_secret(&self) -> Option<&Arc<RootSecret>> {
        self.root_secret.as_ref()
    }

    /// Returns the ends of the CA and of the serving certificates, beside others that are recorded there.
    pub fn expiries(&self) -> &Arc<Expiries> {
        &self.expiries
    }

    /// Returns the serving certificate that the operator put into the folder, if there is one.
    pub(crate) fn given_serving(&self) -> Option<&PairFiles> {
        self.serving.as_ref()
    }

    /// Returns the serving certificates for some names.
    pub(crate) fn named_serving(&self) -> &[NamedPair] {
        &self.named
    }

    /// Issues a serving certificate for `names`, which are host names and addresses.
    ///
    /// # Errors
    /// Returns an error if a certificate cannot contain one of the names.
    pub fn issue_serving(&self, names: &[String]) -> Result<Identity, PkiError> {
        let mut params = leaf("polyplane", &[ExtendedKeyUsagePurpose::ServerAuth]);
        for name in names {
            params.subject_alt_names.push(match name.parse::<IpAddr>() {
                Ok(address) => SanType::IpAddress(address),
                Err(_) => SanType::DnsName(name.as_str().try_into().map_err(PkiError::Issue)?),
            });
        }
        self.ca.issue(params)
    }

    /// Issues a client certificate for `name` in `groups`.
    ///
    /// # Errors
    /// Returns an error if a certificate cannot contain the name or a group.
    pub fn issue_client(&self, name: &str, groups: &[&str]) -> Result<Identity, PkiError> {
        let mut params = leaf(name, &[ExtendedKeyUsagePurpose::ClientAuth]);
        for group in groups {
            params
                .distinguished_name
                .push(DnType::OrganizationName, *group);
        }
        self.ca.issue(params)
    }
}

/// A CA with its key.
struct Authority {
    issuer: Issuer<'static, KeyPair>,
    root: CertificateDer<'static>,
    root_pem: String,
}

impl Authority {
    /// Reads `<stem>.crt` and `<stem>.key`, or creates both for a CA called `name`.
    fn load_or_create(folder: &Path, stem: &str, name: &str) -> Result<Self, PkiError> {
        let is_there = |ending: &str| folder.join(format!("{stem}.{ending}")).exists();
        if !is_there("crt") && !is_there("key") {
            create_ca(folder, stem, name)?;
        }
        Self::load(folder, stem)
    }

    /// Reads `<stem>.crt` and `<stem>.key`.
    fn load(folder: &Path, stem: &str) -> Result<Self, PkiError> {
        let certificate_path = folder.join(format!("{stem}.crt"));
        let key_path = folder.join(format!("{stem}.key"));
        let (root_pem, key_pem) = match (read(&certificate_path)?, read_secret(&key_path)?) {
            (Some(certificate), Some(key)) => (certificate, key),
            (Some(_), None) => return Err(PkiError::Half { path: key_path }),
            (None, _) => {
                return Err(PkiError::Half {
                    path: certificate_path,
                });
            }
        };
        let key = KeyPair::from_pem(&key_pem).map_err(|_| PkiError::Damaged {
            path: key_path.clone(),
            holds: "a private key",
        })?;
        // What another key signs, no client and no peer would accept.
        if !certificates(&certificate_path)?
            .iter()
            .any(|one| is_of(one, &key))
        {
            return Err(PkiError::Mismatch {
                certificate: certificate_path,
                key: key_path,
                source: rustls::InconsistentKeys::KeyMismatch.into(),
            });
        }
        let not_a_certificate = || PkiError::Damaged {
            path: certificate_path.clone(),
            holds: "a CA certificate",
        };
        let root =
            CertificateDer::from_pem_slice(root_pem.as_bytes()).map_err(|_| not_a_certificate())?;
        let issuer = Issuer::from_ca_cert_pem(&root_pem, key).map_err(|_| not_a_certificate())?;
        Ok(Self {
            issuer,
            root,
            root_pem,
        })
    }

    fn issue(&self, params: CertificateParams) -> Result<Identity, PkiError> {
        let key = new_key()?;
        let certificate = params
            .signed_by(&key, &self.issuer)
            .map_err(PkiError::Issue)?;
        Ok(Identity {
            chain: vec![certificate.der().clone()],
            key: PrivateKeyDer::Pkcs8(PrivatePkcs8KeyDer::from(key.serialize_der())),
            certificate_pem: certificate.pem(),
            key_pem: key.serialize_pem(),
        })
    }
}

/// Returns whether a certificate is that of a key.
fn is_of(certificate: &CertificateDer<'_>, key: &KeyPair) -> bool {
    X509Certificate::from_der(certificate).is_ok_and(|(_, parsed)| {
        parsed.public_key().subject_public_key.data.as_ref() == key.public_key_raw()
    })
}

/// Returns the ends of the server's certificates, so far of its CA alone.
fn expiries_of(ca: &Authority) -> Arc<Expiries> {
    let expiries = Arc::<Expiries>::default();
    expiries.record(CertificateUse::Ca, std::slice::from_ref(&ca.root));
    expiries
}

fn make_folder(folder: &Path) -> Result<(), PkiError> {
    if folder.is_dir() {
        return Ok(());
    }
    let made = fs::DirBuilder::new()
        .recursive(true)
        .mode(0o700)
        .create(folder);
    // Without the sync a power cut could remove the CA, and the certificates that it signed would
    // be worthless.
    made.and_then(|()| sync_folder_of(folder))
        .map_err(|source| PkiError::Folder {
            path: folder.to_owned(),
            source,
        })
}

/// Returns the age at which a leaf should be replaced.
pub(crate) const fn leaf_renewal_age() -> Duration {
    Duration::from_secs(LEAF_LIFETIME.as_secs() - 90 * DAY.as_secs())
}

fn new_key() -> Result<KeyPair, PkiError> {
    KeyPair::generate_for(&PKCS_ECDSA_P256_SHA256).map_err(PkiError::Issue)
}

fn base_params(name: &str, lifetime: Duration) -> CertificateParams {
    let mut params = CertificateParams::default();
    let now = SystemTime::now();
    params.not_before = (now - BACKDATING).into();
    params.not_after = (now + lifetime).into();
    params.distinguished_name = DistinguishedName::new();
    params.distinguished_name.push(DnType::CommonName, name);
    params.subject_alt_names = Vec::new();
    params
}

fn leaf(name: &str, usages: &[ExtendedKeyUsagePurpose]) -> CertificateParams {
    let mut params = base_params(name, LEAF_LIFETIME);
    params.key_usages = vec![KeyUsagePurpose::DigitalSignature];
    params.extended_key_usages = usages.to_vec();
    params.use_authority_key_identifier_extension = true;
    params
}

fn create_ca(folder: &Path, stem: &str, name: &str) -> Result<(), PkiError> {
    let (certificate_pem, key_pem) = new_ca(name)?;
    let path = |ending: &str| folder.join(format!("{stem}.{ending}"));
    write_private_together([
        (&path("key"), key_pem.as_bytes()),
        (&path("crt"), certificate_pem.as_bytes()),
    ])
}

/// Makes a CA called `name`, and returns its certificate and its key as PEM text.
fn new_ca(name: &str) -> Result<(String, String), PkiError> {
    let mut params = base_params(name, CA_LIFETIME);
    params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    params.key_usages = vec![
        KeyUsagePurpose::DigitalSignature,
        KeyUsagePurpose::KeyCertSign,
        KeyUsagePurpose::CrlSign,
    ];
    let key = new_key()?;
    let certificate = params.self_signed(&key).map_err(PkiError::Issue)?;
    Ok((certificate.pem(), key.serialize_pem()))
}

/// Returns a random token; `None` if the system gives no random bytes.
fn new_token() -> Option<String> {
    let mut secret = [0_u8; 32];
    aws_lc_rs::rand::fill(&mut secret).ok()?;
    Some(URL_SAFE_NO_PAD.encode(secret))
}

fn load_or_create_token(path: &Path) -> Result<String, PkiError> {
    if let Some(token) = read_token(path)? {
        return Ok(token);
    }
    let token = new_token().ok_or_else(|| PkiError::Write {
        path: path.to_owned(),
        source: io::Error::other("the system gives no random bytes"),
    })?;
    write_private(path, token.as_bytes())?;
    Ok(token)
}

/// Reads the administrator's token again, and makes none if the file is gone.
///
/// # Errors
/// Returns an error if the file cannot be read or holds no token.
pub fn read_admin_token(path: &Path) -> Result<String, PkiError> {
    read_token(path)?.ok_or_else(|| PkiError::Read {
        path: path.to_owned(),
        source: io::ErrorKind::NotFound.into(),
    })
}

fn read_token(path: &Path) -> Result<Option<String>, PkiError> {
    let Some(text) = read_secret(path)? else {
        return Ok(None);
    };
    let token = text.trim();
    if !TOKEN_BYTES.contains(&token.len()) || !token.bytes().all(|byte| byte.is_ascii_graphic()) {
        return Err(PkiError::Damaged {
            path: path.to_owned(),
            holds: "a token",
        });
    }
    Ok(Some(token.to_owned()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::PermissionsExt as _;

    #[test]
    fn a_second_start_finds_the_same_ca_and_token() {
        let folder = tempfile::tempdir().expect("a folder");
        let first = Pki::load_or_create(&folder.path().join("pki")).expect("created");
        let second = Pki::load_or_create(&folder.path().join("pki")).expect("loaded");
        assert_eq!(first.root(), second.root());
        assert_eq!(first.admin_token(), second.admin_token());
        assert_eq!(first.admin_token().len(), 43);
        for name in ["ca.crt", "ca.key", "admin.token"] {
            let path = folder.path().join("pki").join(name);
            fs::set_permissions(&path, fs::Permissions::from_mode(0o644)).expect("it is ours");
        }
        Pki::load_or_create(&folder.path().join("pki")).expect("loaded");
        for (name, mode) in [("ca.crt", 0o644), ("ca.key", 0o600), ("admin.token", 0o600)] {
            let metadata = fs::metadata(folder.path().join("pki").join(name)).expect("is there");
            assert_eq!(metadata.permissions().mode() & 0o777, mode, "{name}");
        }
    }

    #[test]
    fn a_token_has_neither_too_few_characters_nor_too_many() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("admin.token");
        for (bytes, is_token) in [(15, false), (16, true), (4096, true), (4097, false)] {
            fs::write(&path, "x".repeat(bytes)).expect("written");
            assert_eq!(read_admin_token(&path).is_ok(), is_token, "{bytes}");
        }
    }

    /// For example the three replicas of a ring, started at once with one folder.
    #[test]
    fn those_who_start_together_share_what_one_of_them_made() {
        for _ in 0..20 {
            let folder = tempfile::tempdir().expect("a folder");
            let path = folder.path().join("pki");
            let starting = [(); 4].map(|()| {
                let path = path.clone();
                std::thread::spawn(move || {
                    let pki = Pki::load_or_create(&path).expect("made or found");
                    let secret = pki.root_secret().expect("made").check_value();
                    (pki.root().clone(), pki.admin_token().to_owned(), secret)
                })
            });
            let started = starting.map(|one| one.join().expect("no panic"));
            assert!(started.iter().all(|one| *one == started[0]));
            assert_eq!(fs::read_dir(&path).expect("made").count(), 4);
        }
    }

    #[test]
    fn damage_is_named_and_never_repaired() {
        let folder = tempfile::tempdir().expect("a folder");
        Pki::load_or_create(folder.path()).expect("created");
        fs::write(folder.path().join("ca.key"), "nonsense").expect("written");
        let damaged = Pki::load_or_create(folder.path()).map(|_| ());
        assert!(
            matches!(damaged, Err(PkiError::Damaged { .. })),
            "{damaged:?}"
        );
        fs::remove_file(folder.path().join("ca.key")).expect("removed");
        let half = Pki::load_or_create(folder.path()).map(|_| ());
        assert!(matches!(half, Err(PkiError::Half { .. })), "{half:?}");
    }

    /// For example after a restore of one file of the two.
    #[test]
    fn a_ca_with_the_key_of_another_one_is_refused_by_the_names_of_both_files() {
        for stem in ["ca", "peer-ca"] {
            let (own, other) = (
                tempfile::tempdir().expect("a folder"),
                tempfile::tempdir().expect("a folder"),
            );
            let file = |folder: &tempfile::TempDir, ending: &str| {
                folder.path().join(format!("{stem}.{ending}"))
            };
            let load = || Authority::load_or_create(own.path(), stem, "one").map(|_| ());
            load().expect("made");
            Authority::load_or_create(other.path(), stem, "one").expect("made");
            let certificate = fs::read_to_string(file(&own, "crt")).expect("made");
            fs::copy(file(&other, "key"), file(&own, "key")).expect("copied");
            let refused = load().expect_err("the key is another one's").to_string();
            for ending in ["crt", "key"] {
                let named = file(&own, ending).display().to_string();
                assert!(refused.contains(&named), "{refused}");
            }
            // While a CA is replaced, its file has the certificates of both.
            let next = fs::read_to_string(file(&other, "crt")).expect("made");
            fs::write(file(&own, "crt"), certificate + &next).expect("written");
            load().expect("the key is that of one of them");
        }
    }

    #[test]
    fn names_that_cannot_be_served_are_refused() {
        let folder = tempfile::tempdir().expect("a folder");
        let pki = Pki::load_or_create(folder.path()).expect("created");
        assert!(pki.issue_serving(&["ünicode".to_owned()]).is_err());
        pki.issue_serving(&["localhost".to_owned(), "::1".to_owned()])
            .expect("ordinary names");
    }
}
