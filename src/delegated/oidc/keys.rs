//! The keys of an issuer: a JSON Web Key Set (RFC 7517), and signatures by its keys.
//!
//! Invariant: a key verifies only with algorithms of its own kind, all of which are asymmetric. The header
//! of a token chooses among them and never brings a key.

use aws_lc_rs::signature::{
    self, ECDSA_P256_SHA256_FIXED, ECDSA_P384_SHA384_FIXED, ECDSA_P521_SHA512_FIXED,
    ParsedPublicKey, RsaParameters, RsaPublicKeyComponents,
};
use base64::Engine as _;
use base64::prelude::BASE64_URL_SAFE_NO_PAD;
use polyplane_apimachinery::json::{self, Limits};
use polyplane_apimachinery::{Str, Value};

/// Keys of one issuer. A token without a key's id is tried with each, so more would cost too much.
const KEYS_MAX: usize = 64;
/// Bytes of an RSA modulus: a shorter one can be factored, a longer one makes a verification slow.
const MODULUS_BYTES: std::ops::RangeInclusive<usize> = 256..=1024;
/// Depth of brackets in a key set.
const DEPTH_MAX: usize = 8;

/// The signature algorithms that tokens may name, as upstream.
const ALGORITHMS: [&str; 9] = [
    "RS256", "RS384", "RS512", "ES256", "ES384", "ES512", "PS256", "PS384", "PS512",
];

/// Returns whether tokens may name an algorithm.
pub(super) fn is_accepted(algorithm: &str) -> bool {
    ALGORITHMS.contains(&algorithm)
}

/// One public key.
pub struct IssuerKey {
    id: Str,
    /// The only algorithm that the set allows for the key; empty if it names none.
    algorithm: Str,
    material: Material,
}

enum Material {
    Rsa {
        modulus: Vec<u8>,
        exponent: Vec<u8>,
    },
    /// A key on a curve, with the one algorithm that goes with the curve.
    Curve(&'static str, Box<ParsedPublicKey>),
}

/// The keys of an issuer.
#[derive(Default)]
pub struct KeySet {
    keys: Vec<IssuerKey>,
}

impl KeySet {
    /// Reads a key set. Keys of other kinds, or for another use than signatures, are left out.
    ///
    /// # Errors
    /// Returns why the text is no key set.
    pub fn parse(text: &[u8]) -> Result<Self, String> {
        let limits = Limits {
            depth_max: DEPTH_MAX,
            ..Limits::default()
        };
        let parsed = json::parse(text, &limits).map_err(|error| error.to_string())?;
        let Some(Value::Array(keys)) = parsed.value.get("keys") else {
            return Err("it has no list of keys".to_owned());
        };
        if keys.len() > KEYS_MAX {
            return Err(format!("it has more than {KEYS_MAX} keys"));
        }
        let keys = keys.iter().filter_map(IssuerKey::read).collect();
        Ok(Self { keys })
    }

    /// Returns whether a key has this id. Any key may have signed a token that names none.
    pub(super) fn knows(&self, id: &str) -> bool {
        match id.is_empty() {
            true => !self.keys.is_empty(),
            false => self.keys.iter().any(|key| key.id == id),
        }
    }

    /// Returns whether one of the keys that may have signed made the signature.
    pub(super) fn verifies(&self, id: &str, algorithm: &str, signed: &[u8], by: &[u8]) -> bool {
        let meant = self.keys.iter().filter(|key| id.is_empty() || key.id == id);
        meant
            .into_iter()
            .any(|key| key.verifies(algorithm, signed, by))
    }
}

impl IssuerKey {
    fn read(jwk: &Value) -> Option<Self> {
        if !matches!(jwk.str_at(&["use"]), "" | "sig") {
            return None;
        }
        let part = |name: &str| {
            let text = jwk.str_at(&[name]).trim_end_matches('=');
            BASE64_URL_SAFE_NO_PAD
                .decode(text)
                .ok()
                .filter(|bytes| !bytes.is_empty())
        };
        let material = match jwk.str_at(&["kty"]) {
            "RSA" => {
                let modulus = without_zeros(part("n")?);
                let exponent = without_zeros(part("e")?);
                MODULUS_BYTES.contains(&modulus.len()).then_some(())?;
                Material::Rsa { modulus, exponent }
            }
            "EC" => {
                let (algorithm, verification, bytes) = match jwk.str_at(&["crv"]) {
                    "P-256" => ("ES256", &ECDSA_P256_SHA256_FIXED, 32),
                    "P-384" => ("ES384", &ECDSA_P384_SHA384_FIXED, 48),
                    "P-521" => ("ES512", &ECDSA_P521_SHA512_FIXED, 66),
                    _ => return None,
                };
                let (x, y) = (padded(&part("x")?, bytes)?, padded(&part("y")?, bytes)?);
                let point = [&[4][..], &x, &y].concat();
                let parsed = ParsedPublicKey::new(verification, point).ok()?;
                Material::Curve(algorithm, Box::new(parsed))
            }
            _ => return None,
        };
        Some(Self {
            id: jwk.str_at(&["kid"]).into(),
            algorithm: jwk.str_at(&["alg"]).into(),
            material,
        })
    }

    fn verifies(&self, algorithm: &str, signed: &[u8], by: &[u8]) -> bool {
        if !self.algorithm.is_empty() && self.algorithm != algorithm {
            return false;
        }
        match &self.material {
            Material::Curve(own, key) => *own == algorithm && key.verify_sig(signed, by).is_ok(),
            Material::Rsa { modulus, exponent } => {
                let key = RsaPublicKeyComponents {
                    n: modulus,
                    e: exponent,
                };
                rsa(algorithm).is_some_and(|rsa| key.verify(rsa, signed, by).is_ok())
            }
        }
    }
}

fn rsa(algorithm: &str) -> Option<&'static RsaParameters> {
    Some(match algorithm {
        "RS256" => &signature::RSA_PKCS1_2048_8192_SHA256,
        "RS384" => &signature::RSA_PKCS1_2048_8192_SHA384,
        "RS512" => &signature::RSA_PKCS1_2048_8192_SHA512,
        "PS256" => &signature::RSA_PSS_2048_8192_SHA256,
        "PS384" => &signature::RSA_PSS_2048_8192_SHA384,
        "PS512" => &signature::RSA_PSS_2048_8192_SHA512,
        _ => return None,
    })
}

fn without_zeros(mut number: Vec<u8>) -> Vec<u8> {
    let zeros = number.iter().take_while(|byte| **byte == 0).count();
    number.drain(..zeros);
    number
}

/// Returns a coordinate with the length that its curve wants: some issuers leave zeros out.
fn padded(number: &[u8], bytes: usize) -> Option<Vec<u8>> {
    let missing = bytes.checked_sub(number.len())?;
    let mut padded = vec![0; missing];
    padded.extend_from_slice(number);
    Some(padded)
}
