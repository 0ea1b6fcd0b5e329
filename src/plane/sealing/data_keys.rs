//! The data keys of one plane, and single records under them.
//!
//! A key is wrapped with the plane's id and its number as context, and a record is sealed with its
//! store key, which has the plane's id, its clear header and the number of its data key. So neither
//! opens in another place. What a copy of the store adds to a value is not bound: it names the event's
//! point, and the versions in the header are bound.

use std::sync::Arc;

use bytes::{BufMut, Bytes, BytesMut};
use polyplane_sealing::{DataKey, KeyEncryptionKey, NONCE_BYTES, Nonce, TAG_BYTES, WrappedKey};

use crate::record::{RecordError, SealedParts, split_sealed, with_sealed_form};
use crate::sealing::keys_record::{KeyVersionRecord, KeysRecord, VERSIONS_MAX};
use crate::sealing::{SealedError, Sealing};

/// Bytes by which a sealed value is longer than the same value in clear.
pub(crate) const OVERHEAD: usize = 4 + NONCE_BYTES + TAG_BYTES;

/// The data keys of a plane.
#[derive(Clone)]
pub(crate) struct DataKeys {
    plane: Arc<str>,
    settled: u64,
    generation: u32,
    /// The oldest first; never empty.
    versions: Vec<KeyVersion>,
}

#[derive(Clone)]
struct KeyVersion {
    number: u32,
    key: Arc<DataKey>,
    wrapped: WrappedKey,
}

impl KeyVersion {
    fn new(number: u32, key: Arc<DataKey>, by: &KeyEncryptionKey, plane: &str) -> Self {
        Self {
            wrapped: by.wrap(&key, &wrap_context(plane, number)),
            number,
            key,
        }
    }
}

impl DataKeys {
    /// Makes the first key of a plane.
    pub(crate) fn first(plane: &str, by: &KeyEncryptionKey, generation: u32) -> Self {
        Self {
            plane: plane.into(),
            settled: 0,
            generation,
            versions: vec![KeyVersion::new(1, DataKey::random().into(), by, plane)],
        }
    }

    /// Returns keys of which all bytes are fixed, for the frozen records.
    #[cfg(test)]
    pub(crate) fn fixed(plane: &str, number: u32, key: DataKey, wrapped: &WrappedKey) -> Self {
        Self {
            plane: plane.into(),
            settled: 0,
            generation: 0,
            versions: vec![KeyVersion {
                number,
                key: key.into(),
                wrapped: wrapped.clone(),
            }],
        }
    }

    /// Unwraps the keys of a record.
    ///
    /// # Errors
    /// Returns an error if a key cannot be unwrapped here.
    pub(crate) fn unwrap(
        record: &KeysRecord,
        plane: &str,
        sealing: &Sealing,
    ) -> Result<Self, SealedError> {
        let unwrap = |KeyVersionRecord { number, wrapped }: &KeyVersionRecord| {
            let context = wrap_context(plane, *number);
            let key = sealing.keyring().unwrap(wrapped, &context)?;
            Ok(KeyVersion {
                number: *number,
                key: Arc::new(key),
                wrapped: wrapped.clone(),
            })
        };
        let versions: Result<Vec<KeyVersion>, SealedError> =
            record.versions.iter().map(unwrap).collect();
        Ok(Self {
            plane: plane.into(),
            settled: record.settled,
            generation: record.generation,
            versions: versions?,
        })
    }

    /// Returns the record of the keys.
    pub(crate) fn record(&self) -> KeysRecord {
        let version = |version: &KeyVersion| KeyVersionRecord {
            number: version.number,
            wrapped: version.wrapped.clone(),
        };
        KeysRecord {
            settled: self.settled,
            generation: self.generation,
            versions: self.versions.iter().map(version).collect(),
        }
    }

    fn newest(&self) -> &KeyVersion {
        self.versions.last().expect("there is always a key")
    }

    /// Returns the number of the key that seals.
    pub(crate) fn number(&self) -> u32 {
        self.newest().number
    }

    /// Returns the fingerprint of the policy that all records follow; zero if some may not.
    pub(crate) fn settled(&self) -> u64 {
        self.settled
    }

    pub(crate) fn generation(&self) -> u32 {
        self.generation
    }

    /// Returns the keys with another statement about the plane's records.
    pub(crate) fn with_settled(&self, settled: u64) -> Self {
        Self {
            settled,
            ..self.clone()
        }
    }

    /// Returns the keys with a new one, for a generation. No record is sealed under it yet. Only the key
    /// before it stays: the caller knows that no record is under an older one.
    pub(crate) fn rotated(&self, by: &KeyEncryptionKey, generation: u32) -> Self {
        let newest = self.newest();
        let number = newest.number.saturating_add(1);
        let new = KeyVersion::new(number, DataKey::random().into(), by, &self.plane);
        Self {
            plane: Arc::clone(&self.plane),
            settled: 0,
            generation,
            versions: vec![newest.clone(), new],
        }
    }

    /// Returns whether each key is wrapped by this one.
    pub(crate) fn is_wrapped_by(&self, by: &KeyEncryptionKey) -> bool {
        let mut versions = self.versions.iter();
        versions.all(|version| version.wrapped.by == by.id())
    }

    /// Returns the same keys, wrapped by another key-encryption key.
    pub(crate) fn rewrapped(&self, by: &KeyEncryptionKey) -> Self {
        let anew = |version: &KeyVersion| {
            KeyVersion::new(version.number, Arc::clone(&version.key), by, &self.plane)
        };
        Self {
            versions: self.versions.iter().map(anew).collect(),
            ..self.clone()
        }
    }

    /// Seals the value of an object. `stored` is its key in the store.
    pub(crate) fn seal(&self, stored: &[u8], value: &Bytes, nonce: &Nonce) -> Bytes {
        let newest = self.newest();
        let (head, body) = with_sealed_form(value);
        let mut out = BytesMut::with_capacity(value.len() + OVERHEAD);
        out.put_slice(&head);
        out.put_u32(newest.number);
        out.put_slice(&nonce.0);
        let at = out.len();
        out.put_slice(body);
        let context = context(stored, &head, newest.number);
        let tag = newest.key.seal(nonce, &context, &mut out[at..]);
        out.put_slice(&tag);
        out.freeze()
    }

    /// Opens a value if it is sealed; returns it in clear, with the number of the key.
    ///
    /// # Errors
    /// Returns an error if the value was changed, belongs elsewhere, or is under a key that the plane
    /// does not have any more.
    pub(crate) fn open(
        &self,
        stored: &[u8],
        value: &Bytes,
    ) -> Result<(Bytes, Option<u32>), RecordError> {
        let Some(parts) = split_sealed(value)? else {
            return Ok((value.clone(), None));
        };
        let SealedParts {
            clear_start,
            head,
            number,
            nonce,
            sealed,
        } = parts;
        let version = self.versions.iter().find(|known| known.number == number);
        let version = version.ok_or(RecordError::KeyGone(number))?;
        let mut out = BytesMut::with_capacity(clear_start.len() + sealed.len());
        out.put_slice(&clear_start);
        out.put_slice(sealed);
        let context = context(stored, &head, number);
        let text = &mut out[clear_start.len()..];
        let opened = version.key.open(&Nonce(nonce), &context, text);
        opened.map_err(|_| RecordError::Unopened)?;
        out.truncate(out.len() - TAG_BYTES);
        Ok((out.freeze(), Some(number)))
    }
}

/// Returns what a record is bound to: its key in the store, what stands in clear before the body, and
/// the number of its data key.
fn context(stored: &[u8], head: &[u8], number: u32) -> Vec<u8> {
    let length = u32::try_from(stored.len()).expect("keys are short");
    let number = number.to_be_bytes();
    [&length.to_be_bytes(), stored, &number, head].concat()
}

/// Returns what a wrapped key is bound to.
fn wrap_context(plane: &str, number: u32) -> Vec<u8> {
    [&number.to_be_bytes(), plane.as_bytes()].concat()
}

const _: () = assert!(VERSIONS_MAX >= 2, "a rotation keeps two keys");
