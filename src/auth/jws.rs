//! JSON Web Signatures in compact form (RFC 7515), as service account tokens use them: ES256 and
//! RS256.
//!
//! This module owns the form, the algorithms and the keys. It must not know claims.
//!
//! Invariant: a key verifies with its own algorithm only. The header of a token is compared with the
//! key and chooses nothing but the key's id.

use std::ops::RangeInclusive;

use aws_lc_rs::digest::{self, SHA256};
use aws_lc_rs::rand::SystemRandom;
use aws_lc_rs::signature::{
    ECDSA_P256_SHA256_FIXED, EcdsaKeyPair, KeyPair as _, ParsedPublicKey,
    RSA_PKCS1_2048_8192_SHA256, RSA_PKCS1_SHA256, RsaKeyPair,
};
use base64::Engine as _;
use base64::prelude::BASE64_URL_SAFE_NO_PAD;
use polyplane_apimachinery::json::{self, Limits};
use polyplane_apimachinery::{Str, Value};

/// Longest token, in bytes. Clients send a token with each request, and longer headers are refused
/// by proxies.
pub const TOKEN_BYTES_MAX: usize = 16 << 10;
/// Bytes of an ES256 signature: two numbers of 32 bytes each.
const ES256_BYTES: usize = 64;
/// Bytes of an RSA modulus: a shorter one can be factored, a longer one makes a verification slow.
const RSA_MODULUS_BYTES: RangeInclusive<usize> = 256..=1024;
/// Depth of brackets in a header or payload. Claims of service accounts need four.
const DEPTH_MAX: usize = 16;
/// The members that a header may have. Others, such as `jku`, `jwk`, `x5c` and `crit`, would let the
/// sender choose a key or a rule.
const HEADER_MEMBERS: [&str; 3] = ["alg", "kid", "typ"];

/// A signature algorithm.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Algorithm {
    /// ECDSA on P-256 with SHA-256.
    Es256,
    /// RSASSA-PKCS1-v1_5 with SHA-256.
    Rs256,
}

impl Algorithm {
    /// Returns the name in headers and key sets.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Es256 => "ES256",
            Self::Rs256 => "RS256",
        }
    }
}

/// The reason why a token was refused before its claims were read.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum JwsError {
    /// The text is longer than [`TOKEN_BYTES_MAX`].
    #[error("the token is too long")]
    TooLong,
    /// The text is not a JSON Web Signature in compact form.
    #[error("the token is no compact JSON Web Signature")]
    Form,
    /// The header is not an object with exactly the members that are allowed.
    #[error("the header of the token is refused")]
    Header,
    /// The header names an algorithm that is not the key's.
    #[error("the token names another algorithm than its key has")]
    Algorithm,
    /// The signature is not the key's.
    #[error("the signature is wrong")]
    Signature,
}

/// A token whose form and header were checked, and nothing else.
#[derive(Debug)]
pub struct CompactJws<'a> {
    signed: &'a str,
    payload: &'a str,
    signature: &'a str,
    algorithm: Str,
    key_id: Option<Str>,
}

impl<'a> CompactJws<'a> {
    /// Reads a token.
    ///
    /// # Errors
    /// Returns an error if the token is too long, has another form, or a header that is refused.
    pub fn parse(token: &'a str) -> Result<Self, JwsError> {
        if token.len() > TOKEN_BYTES_MAX {
            return Err(JwsError::TooLong);
        }
        let (signed, signature) = token.rsplit_once('.').ok_or(JwsError::Form)?;
        let (header, payload) = signed.split_once('.').ok_or(JwsError::Form)?;
        let is_sound = |part: &str| !part.is_empty() && !part.contains('.');
        if !is_sound(header) || !is_sound(payload) || !is_sound(signature) {
            return Err(JwsError::Form);
        }
        let header = object_of(header).ok_or(JwsError::Header)?;
        let members = header.as_object().ok_or(JwsError::Header)?;
        for (name, value) in members.iter() {
            if !HEADER_MEMBERS.contains(&name) || value.as_str().is_none() {
                return Err(JwsError::Header);
            }
        }
        let text = |name| members.get(name).and_then(Value::as_str).map(Str::from);
        Ok(Self {
            signed,
            payload,
            signature,
            algorithm: text("alg").ok_or(JwsError::Header)?,
            key_id: text("kid"),
        })
    }

    /// Returns the id of the key that is said to have signed the token.
    pub fn key_id(&self) -> Option<&str> {
        self.key_id.as_deref()
    }

    /// Checks the signature with `key`, and returns the payload's bytes.
    ///
    /// # Errors
    /// Returns an error if the header names another algorithm, or `key` did not sign the token.
    pub fn verify(&self, key: &VerifyingKey) -> Result<Vec<u8>, JwsError> {
        if self.algorithm != key.algorithm.name() {
            return Err(JwsError::Algorithm);
        }
        // One signature has one form: padding, spaces and leftover bits are errors.
        let signature = decode(self.signature).ok_or(JwsError::Form)?;
        if key.algorithm == Algorithm::Es256 && signature.len() != ES256_BYTES {
            return Err(JwsError::Signature);
        }
        let verified = key.parsed.verify_sig(self.signed.as_bytes(), &signature);
        verified.map_err(|_| JwsError::Signature)?;
        decode(self.payload).ok_or(JwsError::Form)
    }
}

fn decode(part: &str) -> Option<Vec<u8>> {
    BASE64_URL_SAFE_NO_PAD.decode(part).ok()
}

fn object_of(part: &str) -> Option<Value> {
    object(&decode(part)?)
}

/// Reads a JSON object in which no key is repeated: two readers could take different values.
pub(crate) fn object(bytes: &[u8]) -> Option<Value> {
    let limits = Limits {
        depth_max: DEPTH_MAX,
        bytes_max: TOKEN_BYTES_MAX,
        ..Limits::default()
    };
    std::str::from_utf8(bytes).ok()?;
    let parsed = json::parse(bytes, &limits).ok()?;
    let is_sound = parsed.duplicates.is_empty() && parsed.value.as_object().is_some();
    is_sound.then_some(parsed.value)
}

/// A public key.
pub struct VerifyingKey {
    id: Str,
    algorithm: Algorithm,
    parsed: ParsedPublicKey,
    /// The members of the key in a key set that depend on the algorithm, in upstream's order.
    jwk: Vec<(&'static str, String)>,
}

/// The bytes given are no public key that is accepted.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("these bytes are no public key")]
pub struct KeyRejected;

impl VerifyingKey {
    /// Creates a key for ES256 from an uncompressed point: the byte 4 and both coordinates.
    ///
    /// # Errors
    /// Returns an error if `point` is not on the curve.
    pub fn es256(point: &[u8]) -> Result<Self, KeyRejected> {
        let parsed = ParsedPublicKey::new(&ECDSA_P256_SHA256_FIXED, point);
        let parsed = parsed.map_err(|_| KeyRejected)?;
        let (Some(4), Some(x), Some(y)) = (point.first(), point.get(1..33), point.get(33..65))
        else {
            return Err(KeyRejected);
        };
        let jwk = vec![
            ("crv", "P-256".to_owned()),
            ("alg", Algorithm::Es256.name().to_owned()),
            ("x", BASE64_URL_SAFE_NO_PAD.encode(x)),
            ("y", BASE64_URL_SAFE_NO_PAD.encode(y)),
        ];
        Ok(Self {
            id: key_id(&[P256_INFO, point].concat()),
            algorithm: Algorithm::Es256,
            parsed,
            jwk,
        })
    }

    /// Creates a key for RS256 from modulus and exponent, as big-endian bytes.
    ///
    /// # Errors
    /// Returns an error if the modulus has fewer than 2048 bits or more than 8192.
    pub fn rs256(modulus: &[u8], exponent: &[u8]) -> Result<Self, KeyRejected> {
        if !RSA_MODULUS_BYTES.contains(&without_zeros(modulus).len()) {
            return Err(KeyRejected);
        }
        let key = der(
            0x30,
            &[der_integer(modulus), der_integer(exponent)].concat(),
        );
        let parsed = ParsedPublicKey::new(&RSA_PKCS1_2048_8192_SHA256, &key[..]);
        let parsed = parsed.map_err(|_| KeyRejected)?;
        let info = der(
            0x30,
            &[RSA_ALGORITHM, &der(3, &[&[0], &key[..]].concat())].concat(),
        );
        let jwk = vec![
            ("alg", Algorithm::Rs256.name().to_owned()),
            ("n", BASE64_URL_SAFE_NO_PAD.encode(modulus)),
            ("e", BASE64_URL_SAFE_NO_PAD.encode(exponent)),
        ];
        Ok(Self {
            id: key_id(&info),
            algorithm: Algorithm::Rs256,
            parsed,
            jwk,
        })
    }

    /// Returns the key's id, as upstream computes it: a digest of the key.
    pub fn id(&self) -> &str {
        &self.id
    }

    /// Returns the algorithm.
    pub fn algorithm(&self) -> Algorithm {
        self.algorithm
    }

    /// Appends the key in the form of a key set (RFC 7517).
    pub fn write_jwk(&self, out: &mut Vec<u8>) {
        let kind = match self.algorithm {
            Algorithm::Es256 => "EC",
            Algorithm::Rs256 => "RSA",
        };
        out.extend_from_slice(b"{\"use\":\"sig\",\"kty\":");
        json::write_string(kind, out);
        out.extend_from_slice(b",\"kid\":");
        json::write_string(&self.id, out);
        for (name, value) in &self.jwk {
            out.push(b',');
            json::write_string(name, out);
            out.push(b':');
            json::write_string(value, out);
        }
        out.push(b'}');
    }
}

/// The beginning of a public key on P-256 in the form of X.509; the point follows.
const P256_INFO: &[u8] = &[
    0x30, 0x59, 0x30, 0x13, 0x06, 0x07, 0x2a, 0x86, 0x48, 0xce, 0x3d, 0x02, 0x01, 0x06, 0x08, 0x2a,
    0x86, 0x48, 0xce, 0x3d, 0x03, 0x01, 0x07, 0x03, 0x42, 0x00,
];
/// The name of RSA keys in the form of X.509.
const RSA_ALGORITHM: &[u8] = &[
    0x30, 0x0d, 0x06, 0x09, 0x2a, 0x86, 0x48, 0x86, 0xf7, 0x0d, 0x01, 0x01, 0x01, 0x05, 0x00,
];

fn key_id(info: &[u8]) -> Str {
    BASE64_URL_SAFE_NO_PAD
        .encode(digest::digest(&SHA256, info))
        .into()
}

fn without_zeros(number: &[u8]) -> &[u8] {
    &number[number.iter().take_while(|byte| **byte == 0).count()..]
}

fn der(tag: u8, content: &[u8]) -> Vec<u8> {
    let length = content.len().to_be_bytes();
    let length = without_zeros(&length);
    let mut out = vec![tag];
    if content.len() >= 0x80 {
        out.push(0x80 | u8::try_from(length.len()).expect("at most the bytes of a length"));
    }
    out.extend_from_slice(if content.is_empty() { &[0] } else { length });
    out.extend_from_slice(content);
    out
}

fn der_integer(bytes: &[u8]) -> Vec<u8> {
    let digits = without_zeros(bytes);
    // A leading bit would make the number negative.
    let sign: &[u8] = match digits.first() {
        Some(first) if *first < 0x80 => &[],
        Some(_) | None => &[0],
    };
    der(2, &[sign, digits].concat())
}

/// A private key with its public key.
pub struct SigningKey {
    pair: PrivateKey,
    public: VerifyingKey,
}

enum PrivateKey {
    Es256(EcdsaKeyPair),
    Rs256(Box<RsaKeyPair>),
}

/// The system's source of random numbers failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the signature could not be made")]
pub struct SigningError;

impl SigningKey {
    /// Creates a key from a pair for signatures of fixed length, and its public point.
    ///
    /// # Errors
    /// Returns an error if `point` is not on the curve.
    pub fn new(pair: EcdsaKeyPair, point: &[u8]) -> Result<Self, KeyRejected> {
        let public = VerifyingKey::es256(point)?;
        let pair = PrivateKey::Es256(pair);
        Ok(Self { pair, public })
    }

    /// Creates a key for RS256.
    ///
    /// # Errors
    /// Returns an error if the modulus has fewer than 2048 bits or more than 8192.
    pub fn rs256(pair: RsaKeyPair) -> Result<Self, KeyRejected> {
        let key = pair.public_key();
        let modulus = key.modulus().big_endian_without_leading_zero();
        let exponent = key.exponent().big_endian_without_leading_zero();
        let public = VerifyingKey::rs256(modulus, exponent)?;
        let pair = PrivateKey::Rs256(Box::new(pair));
        Ok(Self { pair, public })
    }

    /// Returns the public key.
    pub fn public(&self) -> &VerifyingKey {
        &self.public
    }

    /// Returns the public key, and forgets the private one.
    pub fn into_public(self) -> VerifyingKey {
        self.public
    }

    /// Signs a payload, and returns the token.
    ///
    /// # Errors
    /// Returns an error if the system gives no random numbers.
    pub fn sign(&self, payload: &[u8]) -> Result<String, SigningError> {
        let mut header = Value::object();
        header.set(&["alg"], self.public.algorithm().name());
        header.set(&["kid"], self.public.id());
        let mut token = BASE64_URL_SAFE_NO_PAD.encode(json::to_vec(&header));
        token.push('.');
        BASE64_URL_SAFE_NO_PAD.encode_string(payload, &mut token);
        let (random, signed) = (SystemRandom::new(), token.as_bytes());
        let signature = match &self.pair {
            PrivateKey::Es256(pair) => {
                let signature = pair.sign(&random, signed);
                signature.map_err(|_| SigningError)?.as_ref().to_vec()
            }
            PrivateKey::Rs256(pair) => {
                let mut signature = vec![0; pair.public_modulus_len()];
                let made = pair.sign(&RSA_PKCS1_SHA256, &random, signed, &mut signature);
                made.map_err(|_| SigningError)?;
                signature
            }
        };
        token.push('.');
        BASE64_URL_SAFE_NO_PAD.encode_string(signature, &mut token);
        Ok(token)
    }
}
