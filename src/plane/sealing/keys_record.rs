//! The record of a plane's data keys. It lies in the plane's own range, so it goes with the plane.

use bytes::{Buf, BufMut, Bytes, BytesMut};
use polyplane_sealing::{KEY_ID_BYTES, KeyId, NONCE_BYTES, WRAPPED_BYTES, WrappedKey};

/// Data keys in one record, at most: the current one and those that stale records may still have.
pub(crate) const VERSIONS_MAX: usize = 8;
/// Bytes of one data key in the record.
const VERSION_BYTES: usize = 4 + KEY_ID_BYTES + NONCE_BYTES + WRAPPED_BYTES;

/// The data keys of a plane, wrapped.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct KeysRecord {
    /// The fingerprint of the policy that all records follow, under the newest key; zero if some may
    /// not.
    pub settled: u64,
    /// The generation that the plane's owner was last requested to have.
    pub generation: u32,
    /// The keys by number, the oldest first. The last one seals; there is at least one.
    pub versions: Vec<KeyVersionRecord>,
}

/// One data key, wrapped.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct KeyVersionRecord {
    /// The number of the key, which sealed records have.
    pub number: u32,
    /// The key.
    pub wrapped: WrappedKey,
}

impl KeysRecord {
    /// Returns the key that seals new records.
    #[must_use]
    pub fn newest(&self) -> &KeyVersionRecord {
        self.versions.last().expect("a record has a key")
    }

    pub(crate) fn write(&self, out: &mut BytesMut) {
        out.put_u64(self.settled);
        out.put_u32(self.generation);
        out.put_u8(u8::try_from(self.versions.len()).expect("there are at most 8"));
        for version in &self.versions {
            out.put_u32(version.number);
            out.put_slice(&version.wrapped.by.0);
            out.put_slice(&version.wrapped.nonce);
            out.put_slice(&version.wrapped.sealed);
        }
    }

    pub(crate) fn read(mut bytes: Bytes) -> Option<Self> {
        if bytes.len() < 8 + 4 + 1 {
            return None;
        }
        let (settled, generation) = (bytes.get_u64(), bytes.get_u32());
        let count = usize::from(bytes.get_u8());
        if !(1..=VERSIONS_MAX).contains(&count) || bytes.len() != count * VERSION_BYTES {
            return None;
        }
        let versions = (0..count).map(|_| KeyVersionRecord {
            number: bytes.get_u32(),
            wrapped: WrappedKey {
                by: KeyId(array(&mut bytes)),
                nonce: array(&mut bytes),
                sealed: array(&mut bytes),
            },
        });
        let versions: Vec<KeyVersionRecord> = versions.collect();
        let grows = versions.is_sorted_by(|a, b| a.number < b.number);
        grows.then_some(Self {
            settled,
            generation,
            versions,
        })
    }
}

fn array<const N: usize>(bytes: &mut Bytes) -> [u8; N] {
    let mut out = [0; N];
    bytes.copy_to_slice(&mut out);
    out
}
