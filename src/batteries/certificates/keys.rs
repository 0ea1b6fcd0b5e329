//! Public keys, certificate requests and certificates: whether they are well formed, and whether a
//! signature was made with a key.

use aws_lc_rs::signature::{
    self, EcdsaKeyPair, Ed25519KeyPair, KeyPair, RsaKeyPair, UnparsedPublicKey,
    VerificationAlgorithm,
};
use x509_parser::certification_request::X509CertificationRequest;
use x509_parser::prelude::{FromDer, SubjectPublicKeyInfo, X509Certificate};
use x509_parser::public_key::PublicKey;

/// The kind of a public key.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum KeyKind {
    /// Ed25519.
    Ed25519,
    /// ECDSA on this curve.
    Ecdsa(Curve),
    /// RSA with this number of bits.
    Rsa(usize),
    /// Any other kind.
    Other,
}

/// A curve of ECDSA.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Curve {
    /// P-224, which requests may not use.
    P224,
    /// P-256.
    P256,
    /// P-384.
    P384,
    /// P-521.
    P521,
}

impl Curve {
    /// Returns the curve's name.
    pub fn name(self) -> &'static str {
        match self {
            Self::P224 => "P-224",
            Self::P256 => "P-256",
            Self::P384 => "P-384",
            Self::P521 => "P-521",
        }
    }
}

/// A public key.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Key {
    /// The kind of the key.
    pub kind: KeyKind,
    bytes: Vec<u8>,
}

/// A request for a certificate.
#[derive(Debug)]
pub struct Request {
    /// The key that is to be certified.
    pub key: Key,
    algorithm: String,
    signed: Vec<u8>,
    signature: Vec<u8>,
}

/// The parts of a certificate that are checked.
#[derive(Debug)]
pub struct Certificate {
    /// The key that is certified.
    pub key: Key,
    /// The time from which the certificate is valid, in seconds since 1970.
    pub not_before: i64,
    /// The time until which the certificate is valid, in seconds since 1970.
    pub not_after: i64,
    /// The certificate's DNS names.
    pub dns_names: Vec<String>,
    /// The certificate's email addresses.
    pub mail_addresses: Vec<String>,
    /// True if the certificate says that it may sign others, false if it says that it may not;
    /// `None` if it says neither.
    pub authority: Option<bool>,
}

/// The error that a signature was not made with the key.
#[derive(Debug, thiserror::Error)]
#[error("the signature was not made with this key")]
pub struct BadSignature;

impl Key {
    /// Parses a key in PKIX form; returns `None` if it is not one.
    pub fn read(der: &[u8]) -> Option<Self> {
        let (rest, info) = SubjectPublicKeyInfo::from_der(der).ok()?;
        rest.is_empty().then(|| Self::of(&info))?
    }

    /// Returns the public key of a private one in the form PKCS #1, PKCS #8 or SEC 1; `None` if it is not one
    /// of a kind and size that servers commonly have.
    pub fn of_private(der: &[u8]) -> Option<Self> {
        if let Ok(pair) = RsaKeyPair::from_der(der).or_else(|_| RsaKeyPair::from_pkcs8(der)) {
            let kind = KeyKind::Rsa(8 * pair.public_modulus_len());
            return Some(Self::of_pair(kind, &pair));
        }
        let algorithms = [
            (Curve::P256, &signature::ECDSA_P256_SHA256_ASN1_SIGNING),
            (Curve::P384, &signature::ECDSA_P384_SHA384_ASN1_SIGNING),
            (Curve::P521, &signature::ECDSA_P521_SHA512_ASN1_SIGNING),
        ];
        for (curve, algorithm) in algorithms {
            if let Ok(pair) = EcdsaKeyPair::from_private_key_der(algorithm, der) {
                return Some(Self::of_pair(KeyKind::Ecdsa(curve), &pair));
            }
        }
        let pair = Ed25519KeyPair::from_pkcs8_maybe_unchecked(der).ok()?;
        Some(Self::of_pair(KeyKind::Ed25519, &pair))
    }

    fn of_pair(kind: KeyKind, pair: &impl KeyPair) -> Self {
        let bytes = pair.public_key().as_ref().to_vec();
        Self { kind, bytes }
    }

    /// Returns whether both keys are of the same kind, whatever their size or curve.
    pub fn is_of_type(&self, other: &Self) -> bool {
        std::mem::discriminant(&self.kind) == std::mem::discriminant(&other.kind)
    }

    /// Returns whether two keys of the same kind are the same key.
    pub fn has_content_of(&self, other: &Self) -> bool {
        self.bytes == other.bytes
    }

    fn of(info: &SubjectPublicKeyInfo<'_>) -> Option<Self> {
        let bytes = info.subject_public_key.data.to_vec();
        let kind = match info.algorithm.algorithm.to_id_string().as_str() {
            "1.3.101.112" if bytes.len() == 32 => KeyKind::Ed25519,
            "1.3.101.112" => return None,
            "1.2.840.10045.2.1" => {
                let curve = info
                    .algorithm
                    .parameters
                    .as_ref()?
                    .as_oid()
                    .ok()?
                    .to_id_string();
                KeyKind::Ecdsa(match curve.as_str() {
                    "1.3.132.0.33" => Curve::P224,
                    "1.2.840.10045.3.1.7" => Curve::P256,
                    "1.3.132.0.34" => Curve::P384,
                    "1.3.132.0.35" => Curve::P521,
                    _ => return None,
                })
            }
            "1.2.840.113549.1.1.1" => match info.parsed().ok()? {
                PublicKey::RSA(key) => KeyKind::Rsa(key.key_size()),
                _ => return None,
            },
            _ => KeyKind::Other,
        };
        Some(Self { kind, bytes })
    }

    /// Checks that the holder of the key signed `message` as a proof of possession.
    ///
    /// # Errors
    /// Returns an error if the signature is not one of this key.
    pub fn verify_possession(&self, message: &[u8], proof: &[u8]) -> Result<(), BadSignature> {
        let algorithm: &'static dyn VerificationAlgorithm = match self.kind {
            KeyKind::Ed25519 => &signature::ED25519,
            KeyKind::Ecdsa(Curve::P256) => &signature::ECDSA_P256_SHA256_ASN1,
            KeyKind::Ecdsa(Curve::P384) => &signature::ECDSA_P384_SHA256_ASN1,
            KeyKind::Ecdsa(Curve::P521) => &signature::ECDSA_P521_SHA256_ASN1,
            KeyKind::Rsa(_) => &signature::RSA_PSS_2048_8192_SHA256,
            KeyKind::Ecdsa(Curve::P224) | KeyKind::Other => return Err(BadSignature),
        };
        self.verify(algorithm, message, proof)
    }

    fn verify(
        &self,
        algorithm: &'static dyn VerificationAlgorithm,
        message: &[u8],
        proof: &[u8],
    ) -> Result<(), BadSignature> {
        UnparsedPublicKey::new(algorithm, &self.bytes)
            .verify(message, proof)
            .map_err(|_| BadSignature)
    }
}

impl Request {
    /// Parses a certificate request; returns `None` if it is not one.
    pub fn read(der: &[u8]) -> Option<Self> {
        let (rest, request) = X509CertificationRequest::from_der(der).ok()?;
        if !rest.is_empty() {
            return None;
        }
        let info = &request.certification_request_info;
        Some(Self {
            key: Key::of(&info.subject_pki)?,
            algorithm: request.signature_algorithm.algorithm.to_id_string(),
            signed: info.raw.to_vec(),
            signature: request.signature_value.data.to_vec(),
        })
    }

    /// Checks that the request is signed with its own key.
    ///
    /// # Errors
    /// Returns an error if it is signed with another key.
    pub fn verify(&self) -> Result<(), BadSignature> {
        let candidates = algorithms(self.key.kind, &self.algorithm);
        let fits = |algorithm: &&'static dyn VerificationAlgorithm| {
            self.key
                .verify(*algorithm, &self.signed, &self.signature)
                .is_ok()
        };
        candidates
            .iter()
            .any(fits)
            .then_some(())
            .ok_or(BadSignature)
    }
}

/// Returns the algorithms that an identifier may mean for a kind of key.
fn algorithms(kind: KeyKind, identifier: &str) -> Vec<&'static dyn VerificationAlgorithm> {
    match (kind, identifier) {
        (KeyKind::Ed25519, "1.3.101.112") => vec![&signature::ED25519],
        (KeyKind::Ecdsa(Curve::P256), "1.2.840.10045.4.3.2") => {
            vec![&signature::ECDSA_P256_SHA256_ASN1]
        }
        (KeyKind::Ecdsa(Curve::P256), "1.2.840.10045.4.3.3") => {
            vec![&signature::ECDSA_P256_SHA384_ASN1]
        }
        (KeyKind::Ecdsa(Curve::P256), "1.2.840.10045.4.3.4") => {
            vec![&signature::ECDSA_P256_SHA512_ASN1]
        }
        (KeyKind::Ecdsa(Curve::P384), "1.2.840.10045.4.3.2") => {
            vec![&signature::ECDSA_P384_SHA256_ASN1]
        }
        (KeyKind::Ecdsa(Curve::P384), "1.2.840.10045.4.3.3") => {
            vec![&signature::ECDSA_P384_SHA384_ASN1]
        }
        (KeyKind::Ecdsa(Curve::P384), "1.2.840.10045.4.3.4") => {
            vec![&signature::ECDSA_P384_SHA512_ASN1]
        }
        (KeyKind::Ecdsa(Curve::P521), "1.2.840.10045.4.3.2") => {
            vec![&signature::ECDSA_P521_SHA256_ASN1]
        }
        (KeyKind::Ecdsa(Curve::P521), "1.2.840.10045.4.3.3") => {
            vec![&signature::ECDSA_P521_SHA384_ASN1]
        }
        (KeyKind::Ecdsa(Curve::P521), "1.2.840.10045.4.3.4") => {
            vec![&signature::ECDSA_P521_SHA512_ASN1]
        }
        (KeyKind::Rsa(_), "1.2.840.113549.1.1.5") => {
            vec![&signature::RSA_PKCS1_1024_8192_SHA1_FOR_LEGACY_USE_ONLY]
        }
        (KeyKind::Rsa(_), "1.2.840.113549.1.1.11") => {
            vec![&signature::RSA_PKCS1_1024_8192_SHA256_FOR_LEGACY_USE_ONLY]
        }
        (KeyKind::Rsa(_), "1.2.840.113549.1.1.12") => vec![&signature::RSA_PKCS1_2048_8192_SHA384],
        (KeyKind::Rsa(_), "1.2.840.113549.1.1.13") => {
            vec![&signature::RSA_PKCS1_1024_8192_SHA512_FOR_LEGACY_USE_ONLY]
        }
        (KeyKind::Rsa(_), "1.2.840.113549.1.1.10") => vec![
            &signature::RSA_PSS_2048_8192_SHA256,
            &signature::RSA_PSS_2048_8192_SHA384,
            &signature::RSA_PSS_2048_8192_SHA512,
        ],
        _ => Vec::new(),
    }
}

impl Certificate {
    /// Parses a certificate; returns `None` if it is not one.
    pub fn read(der: &[u8]) -> Option<Self> {
        use x509_parser::extensions::GeneralName;
        let (rest, certificate) = X509Certificate::from_der(der).ok()?;
        if !rest.is_empty() {
            return None;
        }
        let (mut dns_names, mut mail_addresses) = (Vec::new(), Vec::new());
        if let Some(names) = certificate.subject_alternative_name().ok()? {
            for name in &names.value.general_names {
                match name {
                    GeneralName::DNSName(name) => dns_names.push((*name).to_owned()),
                    GeneralName::RFC822Name(name) => mail_addresses.push((*name).to_owned()),
                    _ => {}
                }
            }
        }
        let constraints = certificate.basic_constraints().ok()?;
        Some(Self {
            key: Key::of(certificate.public_key())?,
            not_before: certificate.validity().not_before.timestamp(),
            not_after: certificate.validity().not_after.timestamp(),
            dns_names,
            mail_addresses,
            authority: constraints.map(|constraints| constraints.value.ca),
        })
    }
}
