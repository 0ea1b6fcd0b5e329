//! Key-encryption keys, and how data keys are wrapped by them.
//!
//! A key-encryption key is named by an id that derives from it: the store and messages show the id,
//! which reveals nothing, and the same key has it in every file, whatever it is called there.
//!
//! Invariant: the derivations and the form of wrapped keys never change, because stores have them.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;

use aws_lc_rs::aead::Aad;
use aws_lc_rs::hkdf::{HKDF_SHA256, Prk, Salt};
use zeroize::Zeroizing;

use crate::data_key::{DataKey, NONCE_BYTES, TAG_BYTES, aead_key, initialization_vector};
use crate::{KEY_BYTES, derive, random};

/// Bytes of an id.
pub const KEY_ID_BYTES: usize = 16;
/// Bytes of a wrapped data key behind its nonce.
pub const WRAPPED_BYTES: usize = KEY_BYTES + TAG_BYTES;
/// The salt of all key-encryption keys.
const KEYS: &[u8] = b"polyplane/key-encryption-key/1";

/// The name of a key-encryption key, which derives from it and does not reveal it.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct KeyId(pub [u8; KEY_ID_BYTES]);

impl fmt::Display for KeyId {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0
            .iter()
            .try_for_each(|byte| write!(formatter, "{byte:02x}"))
    }
}

impl fmt::Debug for KeyId {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, formatter)
    }
}

impl KeyId {
    /// Reads the text that `Display` writes.
    #[must_use]
    pub fn parse(text: &str) -> Option<Self> {
        let mut id = [0; KEY_ID_BYTES];
        if text.len() != 2 * KEY_ID_BYTES || !text.is_ascii() {
            return None;
        }
        for (at, byte) in id.iter_mut().enumerate() {
            *byte = u8::from_str_radix(&text[2 * at..2 * at + 2], 16).ok()?;
        }
        Some(Self(id))
    }
}

/// A key of the operator, which wraps data keys. It is overwritten when dropped and never shown.
pub struct KeyEncryptionKey {
    id: KeyId,
    expanding: Prk,
}

impl fmt::Debug for KeyEncryptionKey {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "KeyEncryptionKey({})", self.id)
    }
}

/// A data key as the store has it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct WrappedKey {
    /// The key that wraps it.
    pub by: KeyId,
    /// The random bytes from which the wrapping key derives.
    pub nonce: [u8; NONCE_BYTES],
    /// The data key, sealed.
    pub sealed: [u8; WRAPPED_BYTES],
}

/// The reason why a data key cannot be unwrapped.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum UnwrapError {
    /// This process does not have the key-encryption key.
    #[error(
        "its data key is wrapped by the key-encryption key {0}, which --encryption-provider-config of this replica does not have"
    )]
    Unknown(KeyId),
    /// The wrapped key was changed, or belongs to another control plane.
    #[error(
        "its data key, wrapped by the key-encryption key {0}, was changed or is another control plane's"
    )]
    Damaged(KeyId),
}

impl KeyEncryptionKey {
    /// Returns the key with this secret, which must be random.
    #[must_use]
    pub fn new(secret: &[u8]) -> Self {
        let expanding = Salt::new(HKDF_SHA256, KEYS).extract(secret);
        Self {
            id: KeyId(*derive(&expanding, &[b"id"])),
            expanding,
        }
    }

    /// Returns the name of the key.
    #[must_use]
    pub fn id(&self) -> KeyId {
        self.id
    }

    /// Wraps a data key. `context` says whose key it is, and must be given to unwrap it.
    #[must_use]
    pub fn wrap(&self, key: &DataKey, context: &[u8]) -> WrappedKey {
        let nonce = random::<NONCE_BYTES>();
        let mut text = Zeroizing::new(*key.bytes());
        let aead = self.wrapping_key(&nonce, context);
        let tag = aead.seal_in_place_separate_tag(
            initialization_vector(),
            Aad::from(context),
            &mut *text,
        );
        let tag = tag.expect("32 bytes are fewer than 64 GiB");
        let mut sealed = [0; WRAPPED_BYTES];
        sealed[..KEY_BYTES].copy_from_slice(&*text);
        sealed[KEY_BYTES..].copy_from_slice(tag.as_ref());
        WrappedKey {
            by: self.id,
            nonce,
            sealed,
        }
    }

    fn unwrap(&self, wrapped: &WrappedKey, context: &[u8]) -> Result<DataKey, UnwrapError> {
        let mut sealed = Zeroizing::new(wrapped.sealed);
        let aead = self.wrapping_key(&wrapped.nonce, context);
        let opened = aead.open_in_place(initialization_vector(), Aad::from(context), &mut *sealed);
        let opened = opened.map_err(|_| UnwrapError::Damaged(self.id))?;
        let mut bytes = Zeroizing::new([0; KEY_BYTES]);
        bytes.copy_from_slice(opened);
        Ok(DataKey::from_bytes(bytes))
    }

    fn wrapping_key(
        &self,
        nonce: &[u8; NONCE_BYTES],
        context: &[u8],
    ) -> aws_lc_rs::aead::LessSafeKey {
        aead_key(&derive(&self.expanding, &[b"wrap", nonce, context]))
    }
}

/// The key-encryption keys of a process: all of them unwrap, one of them wraps.
#[derive(Debug)]
pub struct Keyring {
    keys: BTreeMap<KeyId, Arc<KeyEncryptionKey>>,
    wraps_by: Option<Arc<KeyEncryptionKey>>,
}

impl Keyring {
    /// Creates a ring of keys. Without `wraps_by` nothing new is sealed.
    #[must_use]
    pub fn new(
        keys: impl IntoIterator<Item = Arc<KeyEncryptionKey>>,
        wraps_by: Option<Arc<KeyEncryptionKey>>,
    ) -> Self {
        let keys = keys.into_iter().chain(wraps_by.clone());
        Self {
            keys: keys.map(|key| (key.id(), key)).collect(),
            wraps_by,
        }
    }

    /// Returns the key that wraps new data keys; `None` if nothing new is sealed.
    #[must_use]
    pub fn wraps_by(&self) -> Option<&KeyEncryptionKey> {
        self.wraps_by.as_deref()
    }

    /// Returns whether a data key that this key has wrapped can be unwrapped.
    #[must_use]
    pub fn has(&self, id: KeyId) -> bool {
        self.keys.contains_key(&id)
    }

    /// Unwraps a data key.
    ///
    /// # Errors
    /// See [`UnwrapError`].
    pub fn unwrap(&self, wrapped: &WrappedKey, context: &[u8]) -> Result<DataKey, UnwrapError> {
        let key = self.keys.get(&wrapped.by);
        let key = key.ok_or(UnwrapError::Unknown(wrapped.by))?;
        key.unwrap(wrapped, context)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_wrapped_key_opens_for_its_owner_alone() {
        let key = |byte| Arc::new(KeyEncryptionKey::new(&[byte; KEY_BYTES]));
        let ring = Keyring::new([key(1)], Some(key(2)));
        let data = DataKey::random();
        for by in [key(1), key(2)] {
            let wrapped = by.wrap(&data, b"plane a");
            let opened = ring.unwrap(&wrapped, b"plane a").expect("it is its");
            assert_eq!(opened.bytes(), data.bytes());
            let other = ring.unwrap(&wrapped, b"plane b").err();
            assert_eq!(other, Some(UnwrapError::Damaged(by.id())));
            for bit in 0..8 * WRAPPED_BYTES {
                let mut damaged = wrapped.clone();
                damaged.sealed[bit / 8] ^= 1 << (bit % 8);
                assert!(ring.unwrap(&damaged, b"plane a").is_err());
            }
            let mut another = wrapped.clone();
            another.nonce[0] ^= 1;
            assert!(ring.unwrap(&another, b"plane a").is_err());
        }
        let unknown = key(3);
        let wrapped = unknown.wrap(&data, b"plane a");
        let refused = ring.unwrap(&wrapped, b"plane a").err();
        assert_eq!(refused, Some(UnwrapError::Unknown(unknown.id())));
    }

    #[test]
    fn an_id_names_one_key_and_shows_none() {
        let key = KeyEncryptionKey::new(&[5; KEY_BYTES]);
        let shown = format!("{} {key:?}", key.id());
        assert_eq!(KeyId::parse(&key.id().to_string()), Some(key.id()));
        assert_ne!(key.id(), KeyEncryptionKey::new(&[6; KEY_BYTES]).id());
        assert_ne!(key.id(), KeyEncryptionKey::new(&[5; 16]).id());
        assert!(!shown.contains("0505"), "{shown}");
        for text in ["", "zz", &"0".repeat(31), &"é".repeat(16)] {
            assert_eq!(KeyId::parse(text), None);
        }
    }
}
