//! The keys of control planes, which derive from one root secret.
//!
//! Every replica holds the root secret and computes a plane's keys from it and the plane's id, so
//! nothing secret is stored. A key has one [`Purpose`], so no key of one purpose is of use for
//! another. This module owns the derivation; it must not know where the secret comes from, nor what
//! is signed.
//!
//! Invariant: the derivation never changes, because stored objects and issued credentials rest on
//! it. A new one would be a new [`Purpose`].

use std::fmt;

use aws_lc_rs::agreement::{self, PrivateKey};
use aws_lc_rs::constant_time;
use aws_lc_rs::hkdf::{self, HKDF_SHA256, KeyType, Salt};
use aws_lc_rs::signature::{ECDSA_P256_SHA256_FIXED_SIGNING, EcdsaKeyPair, Ed25519KeyPair};
use zeroize::Zeroizing;

/// Bytes of a root secret, and of every key that derives from one.
pub const SECRET_BYTES: usize = 32;
/// Bytes of a public key on P-256 as an uncompressed point.
pub const P256_POINT_BYTES: usize = 65;
/// The first field of every derivation.
const SCHEME: &[u8] = b"polyplane/1";
/// What RFC 9180 calls the suite of DHKEM(P-256, HKDF-SHA256).
const P256_SUITE: &[u8] = b"KEM\x00\x10";
/// The number of points of P-256, the smallest number that is no private key.
const P256_ORDER: [u8; SECRET_BYTES] = [
    0xff, 0xff, 0xff, 0xff, 0x00, 0x00, 0x00, 0x00, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff,
    0xbc, 0xe6, 0xfa, 0xad, 0xa7, 0x17, 0x9e, 0x84, 0xf3, 0xb9, 0xca, 0xc2, 0xfc, 0x63, 0x25, 0x51,
];

/// The number of a root secret. A ring that replaces its root secret has two for a while.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct SecretEpoch(pub u32);

/// The number of a plane's keys under one root secret. It grows when the plane's keys are rotated.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct KeyGeneration(pub u32);

/// The purpose of a derived key.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Purpose {
    /// Signs a plane's client certificates.
    ClientCa,
    /// Signs the certificate by which a plane's front proxy proves itself to extension servers.
    FrontProxyCa,
    /// Signs the serving certificates of a plane's kubelets.
    KubeletServingCa,
    /// Signs a plane's service account tokens.
    Token,
}

impl Purpose {
    const fn name(self) -> &'static [u8] {
        match self {
            Self::ClientCa => b"client-ca",
            Self::FrontProxyCa => b"front-proxy-ca",
            Self::KubeletServingCa => b"kubelet-serving-ca",
            Self::Token => b"token",
        }
    }
}

/// The secret from which the keys of all planes derive. It is overwritten when dropped and never
/// shown.
pub struct RootSecret {
    epoch: SecretEpoch,
    extracted: hkdf::Prk,
}

impl RootSecret {
    /// Creates the secret of an epoch. `secret` must be random.
    pub fn new(epoch: SecretEpoch, secret: &[u8; SECRET_BYTES]) -> Self {
        Self {
            epoch,
            extracted: Salt::none(HKDF_SHA256).extract(secret),
        }
    }

    /// Returns the number of the secret.
    pub fn epoch(&self) -> SecretEpoch {
        self.epoch
    }

    /// Returns the key of a plane for a purpose. The call takes some microseconds.
    pub fn derive(&self, purpose: Purpose, plane: &str, generation: KeyGeneration) -> DerivedKey {
        self.expand(purpose.name(), plane, generation)
    }

    /// Returns a value that tells two secrets apart and reveals nothing about either. The store
    /// keeps it, so that no replica runs with another secret than the others.
    pub fn check_value(&self) -> CheckValue {
        CheckValue(*self.expand(b"check", "", KeyGeneration(0)).0)
    }

    /// Derives from length-prefixed fields. Without the lengths two different lists of fields could
    /// give one key.
    fn expand(&self, purpose: &[u8], plane: &str, generation: KeyGeneration) -> DerivedKey {
        let generation = generation.0.to_be_bytes();
        let fields = [SCHEME, purpose, plane.as_bytes(), &generation];
        let mut info = Vec::with_capacity(fields.iter().map(|field| 2 + field.len()).sum());
        for field in fields {
            let length = u16::try_from(field.len()).expect("the id of a plane is short");
            info.extend_from_slice(&length.to_be_bytes());
            info.extend_from_slice(field);
        }
        DerivedKey(expand(&self.extracted, &[&info]))
    }
}

/// Tells root secrets apart without revealing them.
#[derive(Clone, Copy)]
pub struct CheckValue([u8; SECRET_BYTES]);

impl CheckValue {
    /// Reads a value that [`Self::as_bytes`] returned.
    pub fn from_bytes(bytes: [u8; SECRET_BYTES]) -> Self {
        Self(bytes)
    }

    /// Returns the value for the store.
    pub fn as_bytes(&self) -> &[u8; SECRET_BYTES] {
        &self.0
    }
}

impl PartialEq for CheckValue {
    fn eq(&self, other: &Self) -> bool {
        constant_time::verify_slices_are_equal(&self.0, &other.0).is_ok()
    }
}

impl Eq for CheckValue {}

impl fmt::Debug for CheckValue {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str("CheckValue")
    }
}

/// A key that derives from a root secret; overwritten when dropped.
pub struct DerivedKey(Zeroizing<[u8; SECRET_BYTES]>);

impl DerivedKey {
    /// Returns the key pair on Ed25519 whose seed is this key.
    pub fn ed25519(&self) -> Ed25519KeyPair {
        Ed25519KeyPair::from_seed_unchecked(&*self.0).expect("any 32 bytes are a seed")
    }

    /// Returns the key pair on P-256 that derives from this key as in section 7.1.3 of RFC 9180.
    /// The call takes about 50 microseconds, so callers keep the result.
    pub fn p256(&self) -> P256Key {
        P256Key::derived(&*self.0)
    }
}

/// A private key on P-256 with its public key.
pub struct P256Key {
    scalar: Zeroizing<[u8; SECRET_BYTES]>,
    point: [u8; P256_POINT_BYTES],
}

impl P256Key {
    fn derived(material: &[u8]) -> Self {
        let label = [b"HPKE-v1", P256_SUITE, b"dkp_prk", material].concat();
        let label = Zeroizing::new(label);
        let extracted = Salt::none(HKDF_SHA256).extract(&label);
        for counter in 0..=u8::MAX {
            let length = u16::try_from(SECRET_BYTES).expect("32 fits");
            let length = length.to_be_bytes();
            let label = [b"HPKE-v1", P256_SUITE, b"candidate", &[counter][..]].concat();
            let scalar = expand(&extracted, &[&length, &label]);
            if let Some(key) = Self::from_scalar(scalar) {
                return key;
            }
        }
        unreachable!("one candidate in four billion is refused, not 256 in a row")
    }

    /// Returns the key with this private number, unless it is out of range.
    fn from_scalar(scalar: Zeroizing<[u8; SECRET_BYTES]>) -> Option<Self> {
        if *scalar == [0; SECRET_BYTES] || *scalar >= P256_ORDER {
            return None;
        }
        let private = PrivateKey::from_private_key(&agreement::ECDH_P256, &*scalar).ok()?;
        let public = private.compute_public_key().ok()?;
        let point = public.as_ref().try_into().ok()?;
        Some(Self { scalar, point })
    }

    /// Returns the public key as an uncompressed point: the byte 4 and both coordinates.
    pub fn point(&self) -> &[u8; P256_POINT_BYTES] {
        &self.point
    }

    /// Returns the key pair for signatures by ECDSA with SHA-256, of 64 bytes each.
    pub fn signer(&self) -> EcdsaKeyPair {
        let algorithm = &ECDSA_P256_SHA256_FIXED_SIGNING;
        EcdsaKeyPair::from_private_key_and_public_key(algorithm, &*self.scalar, &self.point)
            .expect("the public key was computed from the private one")
    }
}

/// The length of a derived key, for the library.
struct SecretLength;

impl KeyType for SecretLength {
    fn len(&self) -> usize {
        SECRET_BYTES
    }
}

fn expand(extracted: &hkdf::Prk, info: &[&[u8]]) -> Zeroizing<[u8; SECRET_BYTES]> {
    let mut out = Zeroizing::new([0; SECRET_BYTES]);
    let expanded = extracted.expand(info, SecretLength);
    expanded
        .and_then(|okm| okm.fill(&mut *out))
        .expect("32 bytes are fewer than HKDF can give");
    out
}

#[cfg(test)]
mod tests {
    use super::*;
    use aws_lc_rs::rand::SystemRandom;
    use aws_lc_rs::signature::{ECDSA_P256_SHA256_FIXED, ED25519, KeyPair as _, UnparsedPublicKey};
    use std::collections::HashSet;

    fn bytes(hex: &str) -> Vec<u8> {
        let digits = hex.as_bytes().chunks(2);
        let byte = |pair| u8::from_str_radix(std::str::from_utf8(pair).expect("text"), 16);
        digits.map(|pair| byte(pair).expect("hex")).collect()
    }

    /// The vectors with SHA-256 of appendix A of RFC 5869. Each output is longer than a derived key,
    /// and the beginning of a longer output is the shorter one.
    #[test]
    fn expansion_is_that_of_rfc_5869() {
        let sequence = |from: u8, to: u8| (from..=to).collect::<Vec<u8>>();
        let vectors = [
            (
                vec![0x0b; 22],
                sequence(0x00, 0x0c),
                sequence(0xf0, 0xf9),
                "3cb25f25faacd57a90434f64d0362f2a2d2d0a90cf1a5a4c5db02d56ecc4c5bf",
            ),
            (
                sequence(0x00, 0x4f),
                sequence(0x60, 0xaf),
                sequence(0xb0, 0xff),
                "b11e398dc80327a1c8e7f78c596a49344f012eda2d4efad8a050cc4c19afa97c",
            ),
            (
                vec![0x0b; 22],
                Vec::new(),
                Vec::new(),
                "8da4e775a563c18f715f802a063c5a31b8a11f5c5ee1879ec3454e5f3c738d2d",
            ),
        ];
        for (secret, salt, info, wanted) in vectors {
            let extracted = Salt::new(HKDF_SHA256, &salt).extract(&secret);
            assert_eq!(expand(&extracted, &[&info]).to_vec(), bytes(wanted));
        }
    }

    /// The keys of both parties in appendix A.3.1 of RFC 9180.
    #[test]
    fn keys_on_p256_are_those_of_rfc_9180() {
        for (material, scalar, point) in [
            (
                "4270e54ffd08d79d5928020af4686d8f6b7d35dbe470265f1f5aa22816ce860e",
                "4995788ef4b9d6132b249ce59a77281493eb39af373d236a1fe415cb0c2d7beb",
                "04a92719c6195d5085104f469a8b9814d5838ff72b60501e2c4466e5e67b325ac9\
                 8536d7b61a1af4b78e5b7f951c0900be863c403ce65c9bfcb9382657222d18c4",
            ),
            (
                "668b37171f1072f3cf12ea8a236a45df23fc13b82af3609ad1e354f6ef817550",
                "f3ce7fdae57e1a310d87f1ebbde6f328be0a99cdbcadf4d6589cf29de4b8ffd2",
                "04fe8c19ce0905191ebc298a9245792531f26f0cece2460639e8bc39cb7f706a82\
                 6a779b4cf969b8a0e539c7f62fb3d30ad6aa8f80e30f1d128aafd68a2ce72ea0",
            ),
        ] {
            let key = P256Key::derived(&bytes(material));
            assert_eq!(key.scalar.to_vec(), bytes(scalar));
            assert_eq!(key.point.to_vec(), bytes(point));
        }
    }

    #[test]
    fn a_number_out_of_range_is_no_key() {
        let mut above = P256_ORDER;
        above[SECRET_BYTES - 1] += 1;
        for refused in [[0; SECRET_BYTES], P256_ORDER, above, [0xff; SECRET_BYTES]] {
            assert!(P256Key::from_scalar(Zeroizing::new(refused)).is_none());
        }
        let mut largest = P256_ORDER;
        largest[SECRET_BYTES - 1] -= 1;
        let mut smallest = [0; SECRET_BYTES];
        smallest[SECRET_BYTES - 1] = 1;
        for accepted in [smallest, largest] {
            let key = P256Key::from_scalar(Zeroizing::new(accepted)).expect("in range");
            let signature = key.signer().sign(&SystemRandom::new(), b"text");
            let public = UnparsedPublicKey::new(&ECDSA_P256_SHA256_FIXED, key.point());
            public
                .verify(b"text", signature.expect("signed").as_ref())
                .expect("its signature");
        }
    }

    fn secret(epoch: u32, byte: u8) -> RootSecret {
        RootSecret::new(SecretEpoch(epoch), &[byte; SECRET_BYTES])
    }

    /// Computed with another implementation of HMAC: the derivation may never change.
    #[test]
    fn the_derivation_is_frozen() {
        let secret = RootSecret::new(SecretEpoch(1), &std::array::from_fn(|at| at as u8));
        let plane = "b7k2m9q4x1";
        for (purpose, generation, wanted) in [
            (
                Purpose::ClientCa,
                0,
                "46181c8ade3ab68b7ff4b987e9ed3aeb4a396217a2077f4ac056e1e3b08ce1a2",
            ),
            (
                Purpose::ClientCa,
                1,
                "5d79fb355e8e6ff1f82d52008fb23e383698e3ce00909b09cbdcdc04b3f2df76",
            ),
            (
                Purpose::FrontProxyCa,
                0,
                "4f339912c95127768421cc634d64766069012cbda36f08a0b1c824c101044c53",
            ),
            (
                Purpose::KubeletServingCa,
                0,
                "ca3f8edb04db389d3402cfe666862c93e2258b9cb7930c7b7f29736c9ade3b3a",
            ),
            (
                Purpose::Token,
                7,
                "4489438f780f3f2d8261f35f3f168f254436a2266a8be9eaecbb0fae1ba9e99d",
            ),
        ] {
            let key = secret.derive(purpose, plane, KeyGeneration(generation));
            assert_eq!(key.0.to_vec(), bytes(wanted), "{purpose:?} {generation}");
        }
        let check = secret.check_value();
        assert_eq!(
            check.as_bytes().to_vec(),
            bytes("0cd2556ac90b81f1099edabc529317effdccaf1e30f89391d6288c9615f79705")
        );
    }

    #[test]
    fn every_field_changes_the_key() {
        let purposes = [
            Purpose::ClientCa,
            Purpose::FrontProxyCa,
            Purpose::KubeletServingCa,
            Purpose::Token,
        ];
        let mut keys = HashSet::new();
        let mut count = 0;
        for byte in [1, 2] {
            let secret = secret(1, byte);
            keys.insert(*secret.check_value().as_bytes());
            count += 1;
            for purpose in purposes {
                for plane in ["", "a", "a\0", "b", "ab", "root"] {
                    for generation in [0, 1, 256, u32::MAX] {
                        let key = secret.derive(purpose, plane, KeyGeneration(generation));
                        keys.insert(*key.0);
                        count += 1;
                    }
                }
            }
        }
        assert_eq!(keys.len(), count);
    }

    #[test]
    fn equal_fields_give_equal_keys_that_sign() {
        let key = |_| secret(3, 9).derive(Purpose::Token, "a", KeyGeneration(2));
        let [one, two] = [0, 1].map(key);
        assert_eq!(
            one.ed25519().public_key().as_ref(),
            two.ed25519().public_key().as_ref()
        );
        assert_eq!(one.p256().point(), two.p256().point());
        let public = UnparsedPublicKey::new(&ED25519, one.ed25519().public_key().as_ref().to_vec());
        let signature = two.ed25519().sign(b"text");
        public
            .verify(b"text", signature.as_ref())
            .expect("its signature");
        let mut other = secret(3, 9).check_value();
        assert_eq!(other, secret(4, 9).check_value());
        assert_ne!(other, secret(3, 8).check_value());
        other = CheckValue::from_bytes(*other.as_bytes());
        assert_eq!(format!("{other:?}"), "CheckValue");
    }
}
