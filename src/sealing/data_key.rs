//! Data keys, and how one record is sealed under them.
//!
//! Invariant: the derivation and the form of sealed bytes never change, because stores have them. A
//! new one would have another label and another number of the record's format.

use std::fmt;

use aws_lc_rs::aead::{AES_256_GCM, Aad, LessSafeKey, NONCE_LEN, UnboundKey};
use aws_lc_rs::hkdf::{HKDF_SHA256, Prk};
use zeroize::Zeroizing;

use crate::{KEY_BYTES, derive, random};

/// Bytes of a record's nonce.
pub const NONCE_BYTES: usize = 32;
/// Bytes by which sealed bytes are longer than what they hold.
pub const TAG_BYTES: usize = 16;
/// The first field of the derivation of a record's key.
const RECORD: &[u8] = b"polyplane/sealed-record/1";

/// The random bytes from which the key of one record derives. A nonce belongs to one text: the
/// same text may be sealed again with it, also in another context.
#[derive(Clone, PartialEq, Eq)]
pub struct Nonce(pub [u8; NONCE_BYTES]);

impl Nonce {
    /// Returns a new nonce.
    #[must_use]
    pub fn random() -> Self {
        Self(random())
    }
}

impl fmt::Debug for Nonce {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str("Nonce")
    }
}

/// Sealed bytes do not open: they were changed, were sealed with another key, or belong to another
/// context.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("the sealed bytes were changed, or belong to another place or key")]
pub struct SealError;

/// A key that seals the records of one control plane. It is overwritten when dropped and never
/// shown.
pub struct DataKey {
    /// The key as it is wrapped.
    bytes: Zeroizing<[u8; KEY_BYTES]>,
    expanding: Prk,
}

impl DataKey {
    /// Returns a new key.
    #[must_use]
    pub fn random() -> Self {
        Self::from_bytes(Zeroizing::new(random()))
    }

    /// Returns the key of these bytes, which must be random.
    #[must_use]
    pub fn from_bytes(bytes: Zeroizing<[u8; KEY_BYTES]>) -> Self {
        Self {
            expanding: Prk::new_less_safe(HKDF_SHA256, &*bytes),
            bytes,
        }
    }

    pub(crate) fn bytes(&self) -> &[u8; KEY_BYTES] {
        &self.bytes
    }

    /// Seals `text` in place and returns the tag that belongs behind it. `context` says where the
    /// record stands and what is beside it in clear; it is bound and not stored.
    #[must_use]
    pub fn seal(&self, nonce: &Nonce, context: &[u8], text: &mut [u8]) -> [u8; TAG_BYTES] {
        let (key, iv) = self.record_key(nonce, context);
        let tag = key.seal_in_place_separate_tag(iv, Aad::from(context), text);
        let tag = tag.expect("records are bounded far below 64 GiB");
        tag.as_ref().try_into().expect("a tag of GCM has 16 bytes")
    }

    /// Opens sealed bytes and their tag in place and returns the text.
    ///
    /// # Errors
    /// Returns an error if a bit of them, of the nonce or of the context is another one. The bytes are
    /// then overwritten.
    pub fn open<'a>(
        &self,
        nonce: &Nonce,
        context: &[u8],
        sealed: &'a mut [u8],
    ) -> Result<&'a mut [u8], SealError> {
        let (key, iv) = self.record_key(nonce, context);
        key.open_in_place(iv, Aad::from(context), sealed)
            .map_err(|_| SealError)
    }

    /// Returns the key of one record. A part that is sent again may have another context with the
    /// same nonce: the context is derived from too, so that each key seals one text in one context,
    /// and the constant initialization vector is never used twice.
    fn record_key(&self, nonce: &Nonce, context: &[u8]) -> (LessSafeKey, aws_lc_rs::aead::Nonce) {
        let key = derive::<KEY_BYTES>(&self.expanding, &[RECORD, &nonce.0, context]);
        (aead_key(&key), initialization_vector())
    }
}

/// Returns the key of AES-256-GCM with these bytes.
pub(crate) fn aead_key(bytes: &[u8; KEY_BYTES]) -> LessSafeKey {
    let key = UnboundKey::new(&AES_256_GCM, bytes).expect("AES-256 takes keys of 32 bytes");
    LessSafeKey::new(key)
}

/// The constant vector of a key that is used once.
pub(crate) fn initialization_vector() -> aws_lc_rs::aead::Nonce {
    aws_lc_rs::aead::Nonce::assume_unique_for_key([0; NONCE_LEN])
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn key(byte: u8) -> DataKey {
        DataKey::from_bytes(Zeroizing::new([byte; KEY_BYTES]))
    }

    fn sealed(key: &DataKey, nonce: &Nonce, context: &[u8], text: &[u8]) -> Vec<u8> {
        let mut bytes = text.to_vec();
        let tag = key.seal(nonce, context, &mut bytes);
        bytes.extend_from_slice(&tag);
        bytes
    }

    /// Computed with another implementation of HMAC and AES-GCM (Python's `hmac`, OpenSSL): stores have such bytes.
    #[test]
    fn the_form_of_sealed_bytes_is_frozen() {
        let nonce = Nonce([2; NONCE_BYTES]);
        let bytes = sealed(&key(1), &nonce, b"context", b"a secret text");
        let hex: String = bytes.iter().map(|byte| format!("{byte:02x}")).collect();
        assert_eq!(
            hex,
            "631fde92f1b103bf6ef005b17892b6f19468d4570cd0df58bfa86a18de"
        );
    }

    proptest! {
        #[test]
        fn what_was_sealed_opens_and_nothing_else_does(
            text in proptest::collection::vec(any::<u8>(), 0..200),
            context in proptest::collection::vec(any::<u8>(), 0..60),
            at in any::<usize>(), bit in 0_u8..8,
        ) {
            let nonce = Nonce::random();
            let bytes = sealed(&key(1), &nonce, &context, &text);
            prop_assert_eq!(bytes.len(), text.len() + TAG_BYTES);
            let opens = |key: &DataKey, nonce: &Nonce, context: &[u8], bytes: &[u8]| {
                let mut bytes = bytes.to_vec();
                key.open(nonce, context, &mut bytes).map(|text| text.to_vec()).ok()
            };
            prop_assert_eq!(opens(&key(1), &nonce, &context, &bytes), Some(text));
            let mut damaged = bytes.clone();
            let place = at % damaged.len();
            damaged[place] ^= 1 << bit;
            prop_assert_eq!(opens(&key(1), &nonce, &context, &damaged), None);
            prop_assert_eq!(opens(&key(2), &nonce, &context, &bytes), None);
            let mut other = nonce.clone();
            other.0[at % NONCE_BYTES] ^= 1 << bit;
            prop_assert_eq!(opens(&key(1), &other, &context, &bytes), None);
            let mut longer = context.clone();
            longer.push(0);
            prop_assert_eq!(opens(&key(1), &nonce, &longer, &bytes), None);
            prop_assert_eq!(opens(&key(1), &nonce, &context, &bytes[..place]), None);
        }
    }

    #[test]
    fn one_nonce_in_two_contexts_makes_two_keys() {
        let nonce = Nonce([7; NONCE_BYTES]);
        let text = [0; 32];
        let [one, two] = [&b"a"[..], b"b"].map(|context| sealed(&key(1), &nonce, context, &text));
        assert_ne!(one[..32], two[..32]);
        assert_eq!(format!("{nonce:?}"), "Nonce");
    }
}
