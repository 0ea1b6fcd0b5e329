//! Sealed records: how the records of a plane are encrypted in the store.
//!
//! [`data_keys`] has the data keys of one plane, as the store has them wrapped, and seals and opens
//! single records. [`plane_keys`] is what an awake plane knows of them: the keys that the next commit
//! puts, and the records that are not sealed as they should be, which are *stale*. [`reseal`] writes
//! these again, a few at a time.
//!
//! Only records of objects are sealed: the body with labels and owners. Beside it stand in clear, but
//! bound to it: the key, versions, expiry, flags and positions, which the store's users need. In clear
//! and not bound are records without a body: tombstones, heads, layer steps, data keys (wrapped).
//!
//! Invariant: everything above records is unchanged. Values are sealed where a commit is encoded, and
//! opened where they come out of the store.

pub(crate) mod data_keys;
pub(crate) mod keys_record;
pub(crate) mod plane_keys;
pub(crate) mod reseal;

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use bytes::Bytes;
use polyplane_sealing::{Keyring, SealPolicy, UnwrapError};

use crate::key::Key;
use crate::record::{KeySpace, Record, RecordError, decode, encode_data_keys};
use crate::sealing::data_keys::DataKeys;
use crate::sealing::keys_record::KeysRecord;

/// The level from which on programs read sealed records. They are written once the store's floor has
/// reached it, because a program below it could not open the plane.
pub const SEALED_LEVEL: u32 = 7;

/// What seals the records of all planes of a store: the operator's keys, and which resources are
/// sealed.
#[derive(Debug)]
pub struct Sealing {
    keyring: Keyring,
    policy: SealPolicy,
    /// True once sealed records may be written.
    begun: AtomicBool,
}

/// The reason why a sealed plane cannot be opened here. Nothing of it is lost.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum SealedError {
    /// The replica has no keys at all.
    #[error("this replica has no --encryption-provider-config; give it that of the other replicas")]
    NotConfigured,
    /// The replica lacks the key, or the wrapped key is damaged.
    #[error(transparent)]
    Unwrap(#[from] UnwrapError),
}

impl Sealing {
    /// Creates it. Until [`Self::begin`] is called, records are opened and not sealed.
    #[must_use]
    pub fn new(keyring: Keyring, policy: SealPolicy) -> Arc<Self> {
        Arc::new(Self {
            keyring,
            policy,
            begun: AtomicBool::new(false),
        })
    }

    /// Follows the policy from now on: seals new records, and writes stale ones again. Call this once the store's floor has reached [`SEALED_LEVEL`] and
    /// all replicas are known to have the key that wraps.
    pub fn begin(&self) {
        self.begun.store(true, Ordering::Release);
    }

    /// Returns whether new records follow the policy.
    #[must_use]
    pub fn has_begun(&self) -> bool {
        self.begun.load(Ordering::Acquire)
    }

    /// Returns the operator's keys.
    #[must_use]
    pub fn keyring(&self) -> &Keyring {
        &self.keyring
    }

    /// Returns the fingerprint of the policy: planes whose records all follow it have it in the store.
    #[must_use]
    pub fn fingerprint(&self) -> u64 {
        self.policy.fingerprint()
    }

    /// Returns the record of the data keys of a plane that sleeps, wrapped by the key that wraps now;
    /// `None` if they are.
    ///
    /// # Errors
    /// Returns an error if the data keys cannot be unwrapped.
    pub fn rewrapped(
        &self,
        plane: &str,
        record: &KeysRecord,
    ) -> Result<Option<Bytes>, SealedError> {
        let Some(by) = self.keyring.wraps_by() else {
            return Ok(None);
        };
        let keys = DataKeys::unwrap(record, plane, self)?;
        let anew = || encode_data_keys(&keys.rewrapped(by).record());
        Ok((!keys.is_wrapped_by(by)).then(anew))
    }

    /// Returns whether the policy wants the object of this key sealed.
    pub(crate) fn seals(&self, key: &Key) -> bool {
        self.policy.seals(key.group(), key.resource())
    }
}

/// Returns the store key of a plane's data keys.
#[must_use]
pub fn data_keys_key(plane: &str) -> Bytes {
    KeySpace::new(plane).data_keys()
}

/// Reads the record of a plane's data keys.
///
/// # Errors
/// Returns an error if the value is damaged, or was written by a newer program.
pub fn read_data_keys(value: &Bytes) -> Result<KeysRecord, RecordError> {
    match decode(value)? {
        Record::DataKeys(record) => Ok(record),
        _ => Err(RecordError::Damaged),
    }
}
