//! The CAs of one control plane, one for each purpose.
//!
//! A CA is computed from the root secret and the plane's id, and is stored nowhere. Its signature is
//! of Ed25519, which has no randomness, so each replica computes the same bytes. No certificate
//! stands above it: what one plane's CA signs is worth nothing in another plane.

use std::fmt;
use std::ops::Range;
use std::time::{Duration, SystemTime};

use aws_lc_rs::digest::{SHA256, digest};
use aws_lc_rs::signature::{Ed25519KeyPair, KeyPair as _};
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use polyplane_auth::{ClientChain, KeyGeneration, Purpose, Renewal, RootSecret};
use rcgen::{
    BasicConstraints, Certificate, CertificateParams, DistinguishedName, DnType, IsCa,
    KeyUsagePurpose, PKCS_ED25519, PublicKeyData, SerialNumber, SignatureAlgorithm, SigningKey,
    date_time_ymd,
};
use rustls_pki_types::pem::PemObject as _;
use rustls_pki_types::{CertificateDer, SubjectPublicKeyInfoDer};
use x509_parser::oid_registry::{OID_EC_P256, OID_NIST_EC_P384, OID_SIG_ED25519};
use x509_parser::prelude::FromDer;
use x509_parser::public_key::PublicKey;
use x509_parser::x509::AlgorithmIdentifier;

use crate::leaf::{COMMON_NAME, IssuerName, Leaf, ORGANIZATION, UID, Usages};
use crate::signing_request::SigningRequest;

/// How long before its issue a certificate becomes valid. Without it, clients and replicas whose
/// clocks are slow would refuse a new certificate.
pub const CREDENTIAL_BACKDATING: Duration = Duration::from_secs(5 * 60);
/// Bytes of a serial number. The highest bit is not used, because the number is signed.
const SERIAL_BYTES: usize = 16;
/// Letters in a line of PEM text, which RFC 7468 fixes.
const PEM_LINE_BYTES: usize = 64;
/// The least bits of an RSA key that is certified. Shorter keys can be factored.
const RSA_BITS_MIN: usize = 2048;
/// The most bits of an RSA key that is certified. Longer keys make each handshake slow.
const RSA_BITS_MAX: usize = 8192;

/// The reason why no certificate was issued.
#[derive(Debug, thiserror::Error)]
pub enum IssueError {
    /// The text is not a public key in PEM form.
    #[error("it is not a public key in PEM form (\"-----BEGIN PUBLIC KEY-----\")")]
    NotAKey,
    /// The key is of another algorithm or length.
    #[error("the key must be ECDSA on P-256 or P-384, Ed25519, or RSA of 2048 to 8192 bits")]
    KeyAlgorithm,
    /// The certificate of a client is longer than any that a handshake accepts.
    #[error(
        "the certificate would have {0} bytes, and the server accepts at most {max} from a client: \
         request fewer groups, or shorter names",
        max = ClientChain::SHOWN_BYTES_MAX
    )]
    TooLong(usize),
    /// The system gives no random bytes.
    #[error("the system gives no random bytes")]
    Random,
}

/// The content of a client certificate.
#[derive(Clone, Debug)]
pub struct ClientCertificate<'a> {
    /// The client's public key, PEM.
    pub public_key: &'a str,
    /// The user's name.
    pub user: &'a str,
    /// The user's uid, or an empty text.
    pub uid: &'a str,
    /// The user's groups.
    pub groups: Vec<&'a str>,
    /// How the client may replace the certificate; `None` for not at all.
    pub renewal: Option<Renewal>,
    /// The second at which the certificate becomes valid.
    pub begins: SystemTime,
    /// The last second in which the certificate is valid.
    pub ends: SystemTime,
}

/// A CA of one plane for one purpose.
pub struct PlaneCa {
    key: DerivedSigner,
    name: IssuerName,
    certificate: Certificate,
}

impl PlaneCa {
    /// Computes the CA of a plane. The call takes about 100 microseconds.
    ///
    /// # Panics
    /// Panics if `purpose` is that of tokens, which no CA signs.
    pub fn derive(
        secret: &RootSecret,
        purpose: Purpose,
        plane: &str,
        generation: KeyGeneration,
    ) -> Self {
        let kind = match purpose {
            Purpose::ClientCa => "client-ca",
            Purpose::FrontProxyCa => "front-proxy-ca",
            Purpose::KubeletServingCa => "kubelet-serving-ca",
            Purpose::Token => panic!("no CA signs tokens"),
        };
        let key = DerivedSigner(secret.derive(purpose, plane, generation).ed25519());
        let number = format!("{}.{}", secret.epoch().0, generation.0);
        let params = params_of(&format!("polyplane {kind} of {plane} {number}"), &key);
        let certificate = params
            .self_signed(&key)
            .expect("a certificate of fixed form can be encoded");
        let name = IssuerName::of(certificate.der());
        Self {
            key,
            name: name.expect("the CA has a name and a key id"),
            certificate,
        }
    }

    /// Returns the CA's certificate.
    pub fn certificate(&self) -> &CertificateDer<'static> {
        self.certificate.der()
    }

    /// Returns the CA's certificate, PEM.
    pub fn pem(&self) -> String {
        self.certificate.pem()
    }

    /// Issues a client certificate. It says that it is for clients and signs nothing itself.
    ///
    /// # Errors
    /// Returns an error if the public key is not acceptable.
    pub fn issue_client(&self, wanted: &ClientCertificate<'_>) -> Result<String, IssueError> {
        let der = SubjectPublicKeyInfoDer::from_pem_slice(wanted.public_key.as_bytes());
        let public_key = der.map_err(|_| IssueError::NotAKey)?;
        check_key(&public_key)?;
        let groups = wanted.groups.iter().map(|group| (ORGANIZATION, *group));
        let mut subject: Vec<_> = groups.collect();
        if !wanted.uid.is_empty() {
            subject.push((UID, wanted.uid));
        }
        subject.push((COMMON_NAME, wanted.user));
        self.issue(&Leaf {
            issuer: &self.name,
            serial: &random_serial()?,
            public_key: &public_key,
            subject: &subject,
            names: &[],
            usages: Usages::CLIENT,
            renewal: wanted.renewal,
            begins: wanted.begins,
            ends: wanted.ends,
        })
    }

    /// Issues what a signing request asks for, with these usages. Of the request's extensions only
    /// the alternative names are taken over, and of its subject what names a user or a host.
    ///
    /// # Errors
    /// Returns an error if the public key is not acceptable.
    pub fn sign(
        &self,
        request: &SigningRequest,
        usages: Usages,
        valid: Range<SystemTime>,
    ) -> Result<String, IssueError> {
        check_key(request.public_key())?;
        self.issue(&Leaf {
            issuer: &self.name,
            serial: &random_serial()?,
            public_key: request.public_key(),
            subject: &request.subject(),
            names: request.names(),
            usages,
            renewal: None,
            begins: valid.start,
            ends: valid.end,
        })
    }

    fn issue(&self, leaf: &Leaf<'_>) -> Result<String, IssueError> {
        let der = leaf.signed(|content| self.key.0.sign(content).as_ref().to_vec());
        let der = CertificateDer::from(der);
        if leaf.usages.client_auth && !ClientChain::is_short(&der, &[]) {
            return Err(IssueError::TooLong(der.len()));
        }
        Ok(pem_of(&der))
    }
}

impl fmt::Debug for PlaneCa {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str("PlaneCa")
    }
}

/// Returns the content of a CA's certificate. It has no dates of its own that anybody should rely
/// on: how long a plane accepts the CA is a matter of the plane's record.
fn params_of(name: &str, key: &DerivedSigner) -> CertificateParams {
    let mut serial = [0; SERIAL_BYTES];
    serial.copy_from_slice(&digest(&SHA256, key.der_bytes()).as_ref()[..SERIAL_BYTES]);
    let mut params = CertificateParams::default();
    params.not_before = date_time_ymd(2000, 1, 1);
    params.not_after = date_time_ymd(9999, 12, 31);
    params.serial_number = Some(SerialNumber::from_slice(&positive(serial)));
    params.distinguished_name = DistinguishedName::new();
    params.distinguished_name.push(DnType::CommonName, name);
    params.is_ca = IsCa::Ca(BasicConstraints::Constrained(0));
    params.key_usages = vec![
        KeyUsagePurpose::DigitalSignature,
        KeyUsagePurpose::KeyCertSign,
    ];
    params
}

/// Returns a positive number that keeps its length: DER forbids leading zero bytes.
fn positive(mut bytes: [u8; SERIAL_BYTES]) -> [u8; SERIAL_BYTES] {
    bytes[0] = bytes[0] & 0x7f | 0x40;
    bytes
}

/// Returns a certificate in PEM form.
pub fn pem_of(der: &[u8]) -> String {
    let mut text = String::from("-----BEGIN CERTIFICATE-----\n");
    let encoded = STANDARD.encode(der);
    for line in encoded.as_bytes().chunks(PEM_LINE_BYTES) {
        text.push_str(std::str::from_utf8(line).expect("base64 is ASCII"));
        text.push('\n');
    }
    text.push_str("-----END CERTIFICATE-----\n");
    text
}

fn random_serial() -> Result<[u8; SERIAL_BYTES], IssueError> {
    let mut serial = [0; SERIAL_BYTES];
    aws_lc_rs::rand::fill(&mut serial).map_err(|_| IssueError::Random)?;
    Ok(positive(serial))
}

/// Refuses a public key that is weak or that no client could use.
fn check_key(der: &[u8]) -> Result<(), IssueError> {
    let parsed = x509_parser::x509::SubjectPublicKeyInfo::from_der(der);
    let (rest, parsed) = parsed.map_err(|_| IssueError::NotAKey)?;
    let is_ed25519 = parsed.algorithm.algorithm == OID_SIG_ED25519;
    let is_strong = match parsed.parsed().map_err(|_| IssueError::NotAKey)? {
        PublicKey::RSA(key) => (RSA_BITS_MIN..=RSA_BITS_MAX).contains(&key.key_size()),
        PublicKey::EC(_) => is_nist_curve(&parsed.algorithm),
        PublicKey::Unknown(bytes) => is_ed25519 && bytes.len() == 32,
        _ => false,
    };
    match is_strong && rest.is_empty() {
        true => Ok(()),
        false => Err(IssueError::KeyAlgorithm),
    }
}

fn is_nist_curve(algorithm: &AlgorithmIdentifier<'_>) -> bool {
    let curve = algorithm.parameters.as_ref();
    let curve = curve.and_then(|parameters| parameters.as_oid().ok());
    curve.is_some_and(|curve| curve == OID_EC_P256 || curve == OID_NIST_EC_P384)
}

/// A key on Ed25519 as the library for certificates needs it.
struct DerivedSigner(Ed25519KeyPair);

impl PublicKeyData for DerivedSigner {
    fn der_bytes(&self) -> &[u8] {
        self.0.public_key().as_ref()
    }

    fn algorithm(&self) -> &'static SignatureAlgorithm {
        &PKCS_ED25519
    }
}

impl SigningKey for DerivedSigner {
    fn sign(&self, message: &[u8]) -> Result<Vec<u8>, rcgen::Error> {
        Ok(self.0.sign(message).as_ref().to_vec())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use polyplane_auth::{Anchor, SecretEpoch};

    fn secret() -> RootSecret {
        RootSecret::new(SecretEpoch(1), &[7; 32])
    }

    fn ca(plane: &str) -> PlaneCa {
        PlaneCa::derive(&secret(), Purpose::ClientCa, plane, KeyGeneration(0))
    }

    /// Replicas of different releases compute the same certificate, and clients have copies of it.
    #[test]
    fn the_certificate_of_a_ca_is_frozen() {
        let hash = |ca: &PlaneCa| {
            let hash = digest(&SHA256, ca.certificate());
            let digits = hash.as_ref().iter().take(8);
            digits.map(|byte| format!("{byte:02x}")).collect::<String>()
        };
        assert_eq!(hash(&ca("pabc")), "a90a4139c1043be4");
        let proxy = PlaneCa::derive(&secret(), Purpose::FrontProxyCa, "pabc", KeyGeneration(3));
        assert_eq!(hash(&proxy), "2eed24cfc1d8a75d");
        assert_ne!(ca("pabc").certificate(), ca("pabd").certificate());
    }

    fn certificate<'a>(key: &'a str) -> ClientCertificate<'a> {
        ClientCertificate {
            public_key: key,
            user: "jane",
            uid: "u-1",
            groups: vec!["dev", "ops"],
            renewal: Some(Renewal {
                lifetime: 3600,
                until: 1_900_000_000,
            }),
            begins: SystemTime::now() - CREDENTIAL_BACKDATING,
            ends: SystemTime::now() + Duration::from_secs(3600),
        }
    }

    #[test]
    fn what_a_plane_signs_proves_its_user_and_nobody_elsewhere() {
        for algorithm in [
            &rcgen::PKCS_ECDSA_P256_SHA256,
            &rcgen::PKCS_ECDSA_P384_SHA384,
            &rcgen::PKCS_ED25519,
        ] {
            let key = rcgen::KeyPair::generate_for(algorithm).expect("made");
            let pem = key.public_key_pem();
            let issued = ca("pabc").issue_client(&certificate(&pem)).expect("issued");
            let leaf = CertificateDer::from_pem_slice(issued.as_bytes()).expect("PEM");
            let chain = ClientChain::possessed(std::slice::from_ref(&leaf)).expect("a leaf");
            let anchor = |ca: PlaneCa| Anchor::new(ca.certificate(), None).expect("a root");
            let now = SystemTime::now();
            let own = anchor(ca("pabc")).verify(&chain, now).expect("its user");
            assert_eq!(own.renewal, certificate(&pem).renewal);
            let (user, begins) = (own.user, own.begins);
            assert_eq!((&*user.name, &*user.uid), ("jane", "u-1"));
            assert_eq!(user.groups, ["dev", "ops", "system:authenticated"]);
            let since = now
                .duration_since(SystemTime::UNIX_EPOCH)
                .expect("after 1970");
            assert!(
                (since.as_secs() as i64 - 301..=since.as_secs() as i64 - 299).contains(&begins)
            );
            let with_ca = [leaf, ca("pabc").certificate().clone()];
            let with_ca = ClientChain::possessed(&with_ca).expect("a leaf");
            let other_generation =
                PlaneCa::derive(&secret(), Purpose::ClientCa, "pabc", KeyGeneration(1));
            let other_purpose =
                PlaneCa::derive(&secret(), Purpose::FrontProxyCa, "pabc", KeyGeneration(0));
            for other in [ca("pabd"), other_generation, other_purpose] {
                let other = anchor(other);
                assert!(other.verify(&chain, now).is_err());
                assert!(other.verify(&with_ca, now).is_err());
            }
        }
    }

    #[test]
    fn what_no_handshake_accepts_is_not_issued() {
        let key = rcgen::KeyPair::generate().expect("made");
        let pem = key.public_key_pem();
        let groups: Vec<String> = (0..2000).map(|n| format!("group-{n}")).collect();
        let issue = |count: usize| {
            let groups = groups.iter().take(count).map(String::as_str).collect();
            ca("pabc").issue_client(&ClientCertificate {
                groups,
                ..certificate(&pem)
            })
        };
        issue(200).expect("issued");
        let refused = issue(2000).expect_err("too many groups");
        assert!(
            matches!(refused, IssueError::TooLong(bytes) if bytes > ClientChain::SHOWN_BYTES_MAX)
        );
        let mut params = rcgen::CertificateParams::default();
        let name = "x".repeat(30_000);
        params.distinguished_name.push(DnType::CommonName, name);
        let request = params.serialize_request(&key).expect("encoded");
        let request = SigningRequest::read(request.der()).expect("it is a request");
        let now = SystemTime::now();
        let sign = |usages: Usages| {
            let valid = now..now + Duration::from_secs(3600);
            ca("pabc").sign(&request, usages, valid)
        };
        assert!(matches!(
            sign(Usages::CLIENT),
            Err(IssueError::TooLong(30_000..))
        ));
        // Nobody shows it in a handshake with this server.
        let serving = Usages {
            server_auth: true,
            ..Usages::default()
        };
        sign(serving).expect("signed");
    }

    #[test]
    fn what_is_no_strong_public_key_is_refused() {
        let issue = |key: &str| ca("pabc").issue_client(&certificate(key)).map(|_| ());
        let key = rcgen::KeyPair::generate().expect("made");
        let private = key.serialize_pem();
        for text in ["", "nonsense", &private] {
            assert!(matches!(issue(text), Err(IssueError::NotAKey)), "{text}");
        }
        let truncated = key.public_key_pem().replace('A', "B");
        assert!(issue(&truncated).is_err());
        // RSA of 1024 bits, and the curve secp256k1.
        for der in [WEAK_RSA, OTHER_CURVE] {
            let pem = format!("-----BEGIN PUBLIC KEY-----\n{der}\n-----END PUBLIC KEY-----\n");
            assert!(
                matches!(issue(&pem), Err(IssueError::KeyAlgorithm)),
                "{der}"
            );
        }
        let strong =
            format!("-----BEGIN PUBLIC KEY-----\n{STRONG_RSA}\n-----END PUBLIC KEY-----\n");
        issue(&strong).expect("issued");
    }

    const WEAK_RSA: &str = "MIGfMA0GCSqGSIb3DQEBAQUAA4GNADCBiQKBgQCfoCP9vdz6r/nQq9/0vfEPjC/ZkCMk6vLaBtfVw+kVCepD\
        Ev/BgqbXdFnuGnBaGz2mP7gdkbtM/U+ssy9zmxj4WspBr4zuULzHqgu7pkQ5p++Gi02T692LgkPKHIGTNTJ3\
        u1AW3dq5EadcKEHNrgriuflL/B8B4SVUZYiGTRPKDQIDAQAB";
    const STRONG_RSA: &str = "MIIBIjANBgkqhkiG9w0BAQEFAAOCAQ8AMIIBCgKCAQEAj4l2WDpIhb0MjvgtktxRyzs31KoV+3CiQB0q9Dft\
        Fijm3rPIgfXYoKDy7bYrgUv90aRXawXzkjOWdlamj5OVjVY8auaV1gxRRNe41+9FiFRF/9jboJ3PCwIkPnm+\
        qEkJV9Ut1chLJySklMtSwIp1zNj0aHvoUh2wTyvEUlT8KwRMUt+d58fBmOQXxsToZr981mGa2/yqJyh+mKGf\
        uYE39FdneaKd4gC/LpdPgih+lAcl/+9j/eQWUw2WjvIkRHZcwLOCmBosDYdDssMs2oy16qdt6hq+SA0qIfiL\
        kYKt5Uo7kWypDwMyZ5kIonfvmGO4kcQBCGhL0wmQa1WSczzTeQIDAQAB";
    const OTHER_CURVE: &str = "MFYwEAYHKoZIzj0CAQYFK4EEAAoDQgAEBPh1OtzEDKPRQDQURTSiLvdrNPa5tmfRX4D9lO350mjWkWb+na3o\
        axyLwrappOxrvv27ZPxuigQRwGEsJz9Afw==";
}
