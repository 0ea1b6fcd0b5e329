//! Encryption at rest: which keys there are, what is sealed, and what sealed bytes look like.
//!
//! Three layers of keys. A *key-encryption key* comes from the operator: it stands in a file, or a
//! key management service wraps it. It is in memory from the start of the process on. Each control
//! plane has *data keys* of its own, random and 256 bits long, which the store has wrapped by a
//! key-encryption key. Each record has a *record key*, which derives from a data key, from a nonce of
//! 256 random bits, and from the record's context, so that no key ever seals two things.
//!
//! | question | file |
//! |---|---|
//! | How is a data key wrapped, and how is a key-encryption key named? | `key_encryption_key` |
//! | How is one record sealed? | `data_key` |
//! | Which resources are sealed, and what does the file say? | `policy`, `config` |
//! | How is a key management service called? | `kms` |
//!
//! Invariants: no key has a `Debug` or `Display` that shows it, and all are overwritten when they are
//! dropped. This crate knows no store and no records: callers say what bytes belong together.

mod config;
mod data_key;
mod key_encryption_key;
mod kms;
mod policy;

pub use config::{EncryptionConfig, FileKey, KmsProvider, WriteKey};
pub use data_key::{DataKey, NONCE_BYTES, Nonce, SealError, TAG_BYTES};
pub use key_encryption_key::{
    KEY_ID_BYTES, KeyEncryptionKey, KeyId, Keyring, UnwrapError, WRAPPED_BYTES, WrappedKey,
};
pub use kms::{KmsClient, KmsError, WrappedByKms};
pub use policy::SealPolicy;

use aws_lc_rs::hkdf;
use zeroize::Zeroizing;

/// Bytes of every key of this crate.
pub const KEY_BYTES: usize = 32;

/// The length of a derived key, for the library.
struct KeyLength(usize);

impl hkdf::KeyType for KeyLength {
    fn len(&self) -> usize {
        self.0
    }
}

/// Derives `N` bytes from a key and a list of fields. Each field stands behind its length, so that
/// different lists never give one key.
fn derive<const N: usize>(from: &hkdf::Prk, fields: &[&[u8]]) -> Zeroizing<[u8; N]> {
    let mut info = Vec::with_capacity(fields.iter().map(|field| 4 + field.len()).sum());
    for field in fields {
        let length = u32::try_from(field.len()).expect("fields are bounded far below 4 GiB");
        info.extend_from_slice(&length.to_be_bytes());
        info.extend_from_slice(field);
    }
    let mut out = Zeroizing::new([0; N]);
    let info = [&info[..]];
    let expanded = from.expand(&info, KeyLength(N));
    expanded
        .and_then(|okm| okm.fill(&mut *out))
        .expect("these lengths are fewer than HKDF can give");
    out
}

/// Fills bytes from the system's generator.
fn random<const N: usize>() -> [u8; N] {
    let mut bytes = [0; N];
    aws_lc_rs::rand::fill(&mut bytes).expect("the system has random bytes");
    bytes
}
