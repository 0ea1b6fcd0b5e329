//! The digest by which tokens and questions are known, kept and compared.

use aws_lc_rs::digest::{SHA256, digest};

/// A SHA-256.
pub type Digest = [u8; 32];

/// Returns the SHA-256 of a text.
#[must_use]
pub fn digest_of(text: impl AsRef<[u8]>) -> Digest {
    let digest = digest(&SHA256, text.as_ref());
    digest.as_ref().try_into().expect("SHA-256 has 32 bytes")
}

/// Returns bytes as hexadecimal digits.
#[must_use]
pub fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}
