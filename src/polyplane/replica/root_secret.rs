//! Whether the keys that derive from this replica's root secret are those of the whole ring.
//!
//! The store has a check value of the secret. A replica with another secret would issue what the
//! others refuse, so it does not join; and none issues anything before the store has the value, which
//! is written once no program of an earlier release may join.

use crate::replica::plane_directory::PlaneDirectory;
use anyhow::bail;
use bytes::Bytes;
use polyplane_auth::{CheckValue, RootSecret, SECRET_BYTES};
use polyplane_batteries::bootstrap::ACCESS_LEVEL;
use polyplane_ownership::agreement::{self, AgreementError};
use polyplane_storage::Store;
use std::sync::Arc;
use std::sync::atomic::{AtomicU8, Ordering};
use std::time::Duration;
use tokio_util::sync::CancellationToken;

/// The name of the check value in the store. It has the number of the secret, of which a later
/// release may have several.
const NAME: &str = "root-secret/1";
/// Pause between two looks at the check value while the store's floor is low or another replica may
/// write the value. Replicas notice a raised floor at once.
const LOOK_EVERY: Duration = Duration::from_secs(60);
/// Pause after a failed look. Less would load a store that fails.
const RETRY: Duration = Duration::from_secs(1);

const UNPROVEN: u8 = 0;
const PROVEN: u8 = 1;
const WRONG: u8 = 2;

/// Returns whether the keys in a store derive from a root secret that the store knows.
///
/// # Errors
/// Returns an error if the store does not answer.
pub async fn is_agreed(store: &Arc<dyn Store>) -> Result<bool, AgreementError> {
    Ok(agreement::agreed(store, NAME).await?.is_some())
}

/// The root secret of this replica, and what is known about it.
pub struct SharedSecret {
    secret: Option<Arc<RootSecret>>,
    state: AtomicU8,
}

impl SharedSecret {
    /// Creates it from the replica's secret, if it has one.
    pub fn new(secret: Option<Arc<RootSecret>>) -> Arc<Self> {
        Arc::new(Self {
            secret,
            state: AtomicU8::new(UNPROVEN),
        })
    }

    /// Returns the secret, for verifying what was issued.
    pub fn secret(&self) -> Option<&Arc<RootSecret>> {
        self.secret.as_ref()
    }

    /// Returns the secret, for issuing something; `None` unless all replicas are known to have it.
    pub fn to_issue(&self) -> Option<&Arc<RootSecret>> {
        let proven = self.state.load(Ordering::Acquire) == PROVEN;
        self.secret.as_ref().filter(|_| proven)
    }

    /// Returns why the replica should not serve, for its readiness.
    ///
    /// # Errors
    /// Returns an error if the ring has another secret, or this replica has none and the ring has
    /// one.
    pub fn check(&self) -> Result<(), String> {
        match (self.state.load(Ordering::Acquire), &self.secret) {
            (WRONG, Some(_)) => {
                Err("the root secret of this replica is not that of the ring".to_owned())
            }
            (WRONG, None) => Err("the ring has a root secret and this replica has none".to_owned()),
            _ => Ok(()),
        }
    }

    /// Compares the secret with the store's check value. Once no program of an earlier release may
    /// join the ring, the first replica writes the value.
    ///
    /// # Errors
    /// Returns an error if the store does not answer.
    pub async fn compare(&self, directory: &PlaneDirectory) -> Result<(), AgreementError> {
        let store = directory.planes.store();
        let may_write = directory.planes.floor().level >= ACCESS_LEVEL;
        let own = self.secret.as_ref().map(|secret| secret.check_value());
        let agreed = match own {
            Some(own) if may_write => {
                let value = Bytes::copy_from_slice(own.as_bytes());
                Some(agreement::agree(store, NAME, value).await?)
            }
            _ => agreement::agreed(store, NAME).await?,
        };
        let read = |value: Bytes| <[u8; SECRET_BYTES]>::try_from(&value[..]);
        let agreed = agreed.map(|value| read(value).map(CheckValue::from_bytes));
        let state = match (own, agreed) {
            (_, None) => UNPROVEN,
            (Some(own), Some(Ok(agreed))) if own == agreed => PROVEN,
            (_, Some(_)) => WRONG,
        };
        self.state.store(state, Ordering::Release);
        Ok(())
    }

    /// Returns whether the replica may join the ring, as the last comparison says.
    ///
    /// # Errors
    /// Returns an error if the ring has another secret.
    pub fn admit(&self) -> anyhow::Result<()> {
        if let Err(why) = self.check() {
            bail!(
                "{why}: give it the file from which the keys in the store derive, from another replica or a \
                 backup (root.secret in the folder of --certs, or --root-secret-file; of `up`, \
                 pki/root.secret in the folder of --dir). If the file was missing, a new one was made, which \
                 has to be replaced"
            );
        }
        Ok(())
    }

    /// Compares again until the outcome is final or `stop` is cancelled.
    pub async fn follow(self: Arc<Self>, directory: Arc<PlaneDirectory>, stop: CancellationToken) {
        let mut floor = directory.planes.floor_changes();
        while self.state.load(Ordering::Acquire) == UNPROVEN {
            let pause = match self.compare(&directory).await {
                Ok(()) if self.state.load(Ordering::Acquire) != UNPROVEN => break,
                Ok(()) => LOOK_EVERY,
                Err(_) => RETRY,
            };
            tokio::select! {
                // First: a stopped replica issues nothing.
                biased;
                () = stop.cancelled() => return,
                _ = floor.changed() => {}
                () = tokio::time::sleep(pause) => {}
            }
        }
        if let Err(why) = self.check() {
            tracing::error!(
                "this replica is not ready: {why}; give it the same file as the others"
            );
        }
    }
}
