//! Client certificates.
//!
//! A handshake proves only that the client holds the key of the leaf that it showed, because the
//! plane, and with it the CA, is not known before the request. [`ClientCa`] judges the chain.

use std::fmt;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use aws_lc_rs::digest;
use polyplane_apimachinery::Str;
use rustls::server::WebPkiClientVerifier;
use rustls::server::danger::ClientCertVerifier;
use rustls::{DistinguishedName, RootCertStore};
use rustls_pki_types::{CertificateDer, UnixTime};
use x509_parser::certificate::X509Certificate;
use x509_parser::oid_registry::{Oid, asn1_rs::oid};
use x509_parser::prelude::FromDer;

use crate::authenticator::{Authentication, Authenticator, CertificateFault, Credentials, Denied};
use crate::digest::{digest_of, hex};
use crate::renewal::Renewal;
use crate::user::{CREDENTIAL_ID, UserInfo};
use crate::verdict::Verdict;

/// Largest number of certificates in a chain that a peer forwards. Replicas of the first release
/// accept and forward chains of this length.
const CHAIN_LENGTH_MAX: usize = 10;
/// The attribute of a subject that contains the user's uid.
const UID_ATTRIBUTE: Oid<'static> = oid!(1.3.6.1.4.1.57683.2);

/// The certificates that a client showed, leaf first. The client has proven that it holds the
/// leaf's key.
#[derive(Clone, Debug)]
pub struct ClientChain {
    certificates: Arc<[CertificateDer<'static>]>,
}

impl ClientChain {
    /// Largest number of certificates in a chain that a handshake accepts. A verifier tries every order
    /// of intermediates with the same name: with four that takes milliseconds, with nine a second.
    pub const SHOWN_LENGTH_MAX: usize = 5;
    /// Bytes of all certificates that a handshake accepts. A chain of five with RSA keys of 4096 bits
    /// has about 10 000. A chain of this length in base64 fits a slot of the channel between replicas,
    /// so a connection sends it only once.
    pub const SHOWN_BYTES_MAX: usize = 12_000;

    /// Creates a chain from the certificates of a handshake; returns `None` if there is no leaf.
    pub fn possessed(certificates: &[CertificateDer<'static>]) -> Option<Self> {
        if certificates.is_empty() || certificates.len() > CHAIN_LENGTH_MAX {
            return None;
        }
        Some(Self {
            certificates: certificates.into(),
        })
    }

    /// Returns whether a chain is short enough to be verified and forwarded. The handshake checks
    /// this before it verifies anything, because a long chain can take a second to verify.
    pub fn is_short(leaf: &CertificateDer<'_>, intermediates: &[CertificateDer<'_>]) -> bool {
        let bytes: usize = intermediates.iter().map(|one| one.len()).sum();
        intermediates.len() < Self::SHOWN_LENGTH_MAX && leaf.len() + bytes <= Self::SHOWN_BYTES_MAX
    }

    /// Returns the certificates, leaf first.
    pub fn certificates(&self) -> &[CertificateDer<'static>] {
        &self.certificates
    }

    /// Returns the first second in which the leaf is not valid any more; `None` if its dates cannot be read.
    pub fn leaf_ends(&self) -> Option<SystemTime> {
        let [_, ends] = dates_of(self.certificates.first()?)?;
        Some(ends)
    }

    /// Returns the next date at which one of the certificates becomes valid or expires. Until then
    /// the same CA judges the chain in the same way.
    pub(crate) fn next_date(&self, now: SystemTime) -> Option<SystemTime> {
        let dates = self.certificates.iter().filter_map(dates_of).flatten();
        dates.filter(|date| *date > now).min()
    }
}

/// The reason why a client CA cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum X509Error {
    /// The bytes are not a certificate that can be a root.
    #[error("the client CA is not a usable certificate")]
    Root(#[source] rustls::Error),
    /// No verifier can be built from the roots.
    #[error("the client CA cannot be used to verify certificates")]
    Verifier(#[source] rustls::server::VerifierBuilderError),
}

/// Judges the chains of clients for one plane.
pub trait ChainJudge: Send + Sync {
    /// Returns a digest of what the judge is made of. Judges with equal fingerprints judge equally,
    /// so caches use it as key.
    fn fingerprint(&self) -> &[u8; 32];

    /// Returns the user whom a chain proves at `now`, or the reason why it proves none, and until
    /// when that holds. The call may take some milliseconds, so callers cache the result and hold
    /// no lock.
    fn identify(&self, chain: &ClientChain, now: SystemTime) -> ChainIdentity;
}

/// The CA that signs the client certificates of the root plane's users.
#[derive(Clone)]
pub struct ClientCa {
    verifier: Arc<dyn ClientCertVerifier>,
    fingerprint: [u8; 32],
}

impl ClientCa {
    /// Creates a CA that accepts the chains that end in one of `roots`.
    ///
    /// # Errors
    /// Returns an error if a root is not a certificate.
    pub fn new(roots: &[CertificateDer<'_>]) -> Result<Self, X509Error> {
        let mut store = RootCertStore::empty();
        let mut hash = digest::Context::new(&digest::SHA256);
        for root in roots {
            hash.update(root);
            store
                .add(root.clone().into_owned())
                .map_err(X509Error::Root)?;
        }
        let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
        let verifier = WebPkiClientVerifier::builder_with_provider(Arc::new(store), provider)
            .build()
            .map_err(X509Error::Verifier)?;
        let mut fingerprint = [0; 32];
        fingerprint.copy_from_slice(hash.finish().as_ref());
        Ok(Self {
            verifier,
            fingerprint,
        })
    }

    /// Returns the names of the roots, which a server may tell clients.
    pub fn names(&self) -> &[DistinguishedName] {
        self.verifier.root_hint_subjects()
    }

    fn verify(&self, chain: &ClientChain, now: SystemTime) -> Result<Arc<UserInfo>, Denied> {
        let leaf = self.verified_leaf(chain, now)?;
        let (user, _) = user_of(leaf).map_err(Denied::Certificate)?;
        Ok(Arc::new(user))
    }

    /// Returns the leaf of a chain that ends in one of the roots.
    fn verified_leaf<'a>(
        &self,
        chain: &'a ClientChain,
        now: SystemTime,
    ) -> Result<&'a CertificateDer<'static>, Denied> {
        let (leaf, intermediates) = chain
            .certificates
            .split_first()
            .expect("a chain has a leaf by construction");
        let since_epoch = now
            .duration_since(SystemTime::UNIX_EPOCH)
            .unwrap_or(Duration::ZERO);
        self.verifier
            .verify_client_cert(leaf, intermediates, UnixTime::since_unix_epoch(since_epoch))
            .map_err(|error| Denied::Certificate(CertificateFault::Chain(error)))?;
        Ok(leaf)
    }
}

impl ChainJudge for ClientCa {
    fn fingerprint(&self) -> &[u8; 32] {
        &self.fingerprint
    }

    fn identify(&self, chain: &ClientChain, now: SystemTime) -> ChainIdentity {
        ChainIdentity {
            user: self.verify(chain, now),
            until: chain.next_date(now),
        }
    }
}

/// A CA of one plane's own client certificates, and how long it is accepted.
///
/// A trust anchor has no dates of its own for the TLS library, so the end of a CA that was rotated
/// away is checked here.
pub struct Anchor {
    ca: ClientCa,
    accepted_from: Option<SystemTime>,
    accepted_until: Option<SystemTime>,
}

impl Anchor {
    /// Creates an anchor. Without `accepted_until` it is accepted for ever.
    ///
    /// # Errors
    /// Returns an error if `root` is not a certificate that can be a root.
    pub fn new(
        root: &CertificateDer<'_>,
        accepted_until: Option<SystemTime>,
    ) -> Result<Self, X509Error> {
        Ok(Self {
            ca: ClientCa::new(std::slice::from_ref(root))?,
            accepted_from: None,
            accepted_until,
        })
    }

    /// Returns the anchor as one that is not accepted before `from`.
    #[must_use]
    pub fn accepted_from(self, from: SystemTime) -> Self {
        Self {
            accepted_from: Some(from),
            ..self
        }
    }

    /// Returns the next time after `now` at which the CA is accepted from then on, or is not any more.
    pub fn next_change(&self, now: SystemTime) -> Option<SystemTime> {
        let changes = [self.accepted_from, self.accepted_until];
        changes.into_iter().flatten().find(|change| now < *change)
    }

    /// Returns the time at which the CA is not accepted any more; `None` for never.
    pub fn accepted_until(&self) -> Option<SystemTime> {
        self.accepted_until
    }

    /// Returns whether the CA is accepted at `now`.
    pub fn is_accepted(&self, now: SystemTime) -> bool {
        self.accepted_until.is_none_or(|until| now < until)
            && self.accepted_from.is_none_or(|from| from <= now)
    }

    /// Returns a digest of the CA's certificate.
    pub fn fingerprint(&self) -> &[u8; 32] {
        &self.ca.fingerprint
    }

    /// Returns what a chain proves. The leaf must name the usage of a client: the TLS library accepts
    /// one without any usage.
    ///
    /// # Errors
    /// Returns the reason why the chain proves no user of this CA.
    pub fn verify(&self, chain: &ClientChain, now: SystemTime) -> Result<OwnCertificate, Denied> {
        let leaf = self.ca.verified_leaf(chain, now)?;
        let (user, _) = user_of(leaf).map_err(Denied::Certificate)?;
        let unreadable = |_| Denied::Certificate(CertificateFault::Unreadable);
        let (_, parsed) = X509Certificate::from_der(leaf).map_err(unreadable)?;
        let usage = parsed.extended_key_usage().ok().flatten();
        if !usage.is_some_and(|usage| usage.value.client_auth) {
            return Err(Denied::Certificate(CertificateFault::NotForClients));
        }
        Ok(OwnCertificate {
            user: Arc::new(user),
            begins: parsed.validity().not_before.timestamp(),
            renewal: Renewal::of(&parsed),
        })
    }
}

/// What a certificate of one of a plane's own users says.
#[derive(Clone, Debug, PartialEq)]
pub struct OwnCertificate {
    /// The user.
    pub user: Arc<UserInfo>,
    /// The second since 1970 from which it is valid.
    pub begins: i64,
    /// The right to replace it; `None` if its holder has none.
    pub renewal: Option<Renewal>,
}

/// The user that a CA finds in a chain, and how long that holds.
#[derive(Clone, Debug, PartialEq)]
pub struct ChainIdentity {
    /// The user, or the reason why the chain proves none.
    pub user: Result<Arc<UserInfo>, Denied>,
    /// The time from which the chain has to be judged again; `None` for never.
    pub until: Option<SystemTime>,
}

impl ChainIdentity {
    /// Returns whether the result still holds.
    pub fn holds_at(&self, now: SystemTime) -> bool {
        self.until.is_none_or(|until| now < until)
    }
}

/// Returns the time from which a certificate is valid, and the first second in which it is not any
/// more.
fn dates_of(certificate: &CertificateDer<'_>) -> Option<[SystemTime; 2]> {
    let (_, parsed) = X509Certificate::from_der(certificate).ok()?;
    let date = |seconds: i64| {
        let seconds = u64::try_from(seconds).ok()?;
        SystemTime::UNIX_EPOCH.checked_add(Duration::from_secs(seconds))
    };
    let validity = parsed.validity();
    let begins = date(validity.not_before.timestamp())?;
    let ends = date(validity.not_after.timestamp().checked_add(1)?)?;
    Some([begins, ends])
}

impl fmt::Debug for ClientCa {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str("ClientCa")
    }
}

/// Returns the name of a certificate as a credential, as upstream writes it.
fn credential_id(leaf: &CertificateDer<'_>) -> String {
    format!("X509SHA256={}", hex(&digest_of(leaf)))
}

/// Returns the user whom a leaf names: common name, organisations as groups, uid. The second value
/// says whether the certificate had any organisation.
fn user_of(leaf: &CertificateDer<'_>) -> Result<(UserInfo, bool), CertificateFault> {
    let (_, parsed) = X509Certificate::from_der(leaf).map_err(|_| CertificateFault::Unreadable)?;
    let subject = parsed.subject();
    let name = subject
        .iter_common_name()
        .last()
        .and_then(|attribute| attribute.as_str().ok())
        .unwrap_or("");
    if name.is_empty() {
        return Err(CertificateFault::NoCommonName);
    }
    let groups: Vec<Str> = subject
        .iter_organization()
        .filter_map(|attribute| attribute.as_str().ok())
        .map(Str::from)
        .collect();
    let mut uids = subject.iter_by_oid(&UID_ATTRIBUTE);
    let uid = match (uids.next(), uids.next()) {
        (None, _) => "",
        (Some(only), None) => only.as_str().map_err(|_| CertificateFault::UidNotText)?,
        (Some(_), Some(_)) => return Err(CertificateFault::SeveralUids),
    };
    let grouped = !groups.is_empty();
    let user = UserInfo {
        name: Str::from(name),
        uid: Str::from(uid),
        groups,
        extra: vec![(
            Str::from(CREDENTIAL_ID),
            vec![Str::from(credential_id(leaf))],
        )],
        is_foreign: false,
    };
    Ok((user.authenticated(), grouped))
}

impl Authenticator for ClientCa {
    fn authenticate<'a>(&'a self, credentials: &'a Credentials<'a>) -> Verdict<'a, Authentication> {
        let Some(chain) = credentials.chain else {
            return Verdict::now(Authentication::NoOpinion);
        };
        Verdict::now(match self.verify(chain, credentials.now) {
            Ok(user) => Authentication::User(user),
            Err(why) => Authentication::Denied(why),
        })
    }
}
