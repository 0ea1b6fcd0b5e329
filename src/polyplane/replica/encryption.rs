//! Encryption at rest of one replica: its keys, whether they are those of the ring, and the tasks that
//! bring planes to the newest keys.
//!
//! The store has a record of each key-encryption key that wraps a data key: its id, which does not reveal
//! it, its name, and what a key management service made of it. A replica that lacks one of them does not
//! join, or is not ready, because it could not read some planes. Data is sealed only once the store's
//! level floor allows it, and the record is written before.

mod key_record;
pub mod report;
mod rewrapping;

use crate::replica::encryption::key_record::{KeyRecord, Provider, kms_key, records};
use crate::replica::plane_directory::PlaneDirectory;
use anyhow::bail;
use parking_lot::Mutex;
use polyplane_ownership::agreement::{self, AgreementError};
use polyplane_plane::{Plane, SEALED_LEVEL, Sealing};
use polyplane_sealing::{EncryptionConfig, KeyId, Keyring, WriteKey};
use polyplane_storage::Store;
use std::sync::Arc;
use std::time::Duration;
use tokio_util::sync::CancellationToken;

/// The beginning of the names of the records of key-encryption keys.
const RECORDS: &str = "sealing/";
/// Pause between two looks at these records. A replica notices this much later that it lacks a key.
const LOOK_EVERY: Duration = Duration::from_secs(5);
/// Pause between two sweeps of the awake planes.
const SWEEP_EVERY: Duration = Duration::from_secs(1);
/// Records of one plane that a sweep writes again, so that clients' writes do not wait behind it.
const RECORDS_MAX: usize = 64;

/// Encryption at rest of this replica.
pub struct Encryption {
    sealing: Option<Arc<Sealing>>,
    /// The record of the key that wraps, if it stands in the file.
    wraps_by: Option<KeyRecord>,
    /// What this replica lacks, for its readiness.
    lacking: Mutex<Option<String>>,
}

impl Encryption {
    /// Prepares the keys of a configuration, and checks that they are those of the store. Key
    /// management services are called here, and never again.
    ///
    /// # Errors
    /// Returns an error if the store or a service does not answer, or if a key is missing.
    pub async fn prepare(
        store: &Arc<dyn Store>,
        config: Option<&EncryptionConfig>,
    ) -> anyhow::Result<Arc<Self>> {
        let known = records(store).await?;
        let Some(config) = config else {
            if let Some(record) = known.first() {
                bail!(
                    "what is stored is encrypted by {record}, and this replica has no key: give it \
                     the same --encryption-provider-config as the others"
                );
            }
            return Ok(Arc::new(Self {
                sealing: None,
                wraps_by: None,
                lacking: Mutex::default(),
            }));
        };
        let mut keys: Vec<_> = config.keys.iter().map(|key| Arc::clone(&key.key)).collect();
        let mut wraps_by = None;
        if let Some(WriteKey::File(id)) = &config.writes_by {
            wraps_by = config.keys.iter().find(|key| key.key.id() == *id);
        }
        let record = wraps_by.map(|key| KeyRecord::of_file(key.key.id(), &key.name));
        let mut wraps_by = wraps_by.map(|key| Arc::clone(&key.key));
        for provider in &config.kms {
            let writes = config.writes_by == Some(WriteKey::Kms(provider.name.clone()));
            let Some(key) = kms_key(store, &known, provider, writes).await? else {
                continue;
            };
            if writes {
                wraps_by = Some(Arc::clone(&key));
            }
            keys.push(key);
        }
        let keyring = Keyring::new(keys, wraps_by);
        if let Some(why) = lacking(&keyring, &known) {
            bail!(why);
        }
        Ok(Arc::new(Self {
            sealing: Some(Sealing::new(keyring, config.policy.clone())),
            wraps_by: record,
            lacking: Mutex::default(),
        }))
    }

    /// Returns what seals the records of planes; `None` if there is no configuration.
    pub fn sealing(&self) -> Option<&Arc<Sealing>> {
        self.sealing.as_ref()
    }

    /// Returns why the replica should not serve, for its readiness.
    ///
    /// # Errors
    /// Returns an error if the replica lacks a key.
    pub fn check(&self) -> Result<(), String> {
        self.lacking.lock().clone().map_or(Ok(()), Err)
    }

    /// Compares the keys with those of the store, and begins to seal once the floor allows it.
    ///
    /// # Errors
    /// Returns an error if the store does not answer.
    pub async fn look(&self, directory: &PlaneDirectory) -> Result<(), AgreementError> {
        let store = directory.planes.store();
        let known = records(store).await?;
        let lacking = match &self.sealing {
            Some(sealing) => lacking(sealing.keyring(), &known),
            None => known.first().map(|record| {
                format!("what is stored is encrypted by {record}, and this replica has no key")
            }),
        };
        let was = std::mem::replace(&mut *self.lacking.lock(), lacking.clone());
        match lacking {
            Some(why) if was.as_ref() != Some(&why) => {
                tracing::error!("this replica is not ready: {why}");
            }
            Some(_) => {}
            None => self.begin(directory).await?,
        }
        Ok(())
    }

    async fn begin(&self, directory: &PlaneDirectory) -> Result<(), AgreementError> {
        let Some(sealing) = &self.sealing else {
            return Ok(());
        };
        if directory.planes.floor().level < SEALED_LEVEL {
            return Ok(());
        }
        // Written again if another replica has removed it while this one did not use the key yet.
        if let Some(record) = &self.wraps_by {
            let name = format!("{RECORDS}{}", record.name());
            agreement::agree(directory.planes.store(), &name, record.encode()).await?;
        }
        if !sealing.has_begun() {
            sealing.begin();
            if sealing.keyring().wraps_by().is_some() {
                tracing::info!("new records are encrypted at rest");
            }
        }
        Ok(())
    }

    /// Looks at the records until `stop` is cancelled.
    pub async fn follow(self: Arc<Self>, directory: Arc<PlaneDirectory>, stop: CancellationToken) {
        let mut floor = directory.planes.floor_changes();
        if self.waits_for_floor(&directory) {
            tracing::warn!(
                level = directory.planes.floor().level,
                "nothing is encrypted at rest before the store's level floor is {SEALED_LEVEL}; \
                 `kubectl plane ring --raise-floor` raises it"
            );
        }
        loop {
            if let Err(error) = self.look(&directory).await {
                let error = anyhow::Error::from(error);
                tracing::debug!("the records of keys cannot be read: {error:#}");
            }
            tokio::select! {
                // First: a stopped replica seals nothing.
                biased;
                () = stop.cancelled() => return,
                _ = floor.changed() => {}
                () = tokio::time::sleep(LOOK_EVERY) => {}
            }
        }
    }

    fn waits_for_floor(&self, directory: &PlaneDirectory) -> bool {
        let sealing = self.sealing.as_ref();
        sealing.is_some_and(|sealing| sealing.keyring().wraps_by().is_some())
            && directory.planes.floor().level < SEALED_LEVEL
    }

    /// Brings the awake planes to the data keys that they should have, and their records to these,
    /// until `stop` is cancelled.
    pub async fn sweep(self: Arc<Self>, directory: Arc<PlaneDirectory>, stop: CancellationToken) {
        while self.sealing.is_some() {
            tokio::select! {
                // First: a stopping replica writes nothing.
                biased;
                () = stop.cancelled() => return,
                () = tokio::time::sleep(SWEEP_EVERY) => {}
            }
            for plane in directory.planes.all_awake() {
                reseal(&directory, &plane).await;
            }
        }
    }
}

async fn reseal(directory: &PlaneDirectory, plane: &Arc<Plane>) {
    let generation = directory.planes.data_key_generation(plane.id());
    match plane.reseal(generation, RECORDS_MAX).await {
        Ok(resealed) if resealed.written > 0 && resealed.stale == 0 => {
            tracing::info!(
                plane = plane.id(),
                "all records are sealed as they should be"
            );
        }
        Ok(_) => {}
        Err(error) => {
            tracing::debug!(plane = plane.id(), %error, "cannot seal some records again");
        }
    }
}

/// Returns which key of the store a keyring lacks.
fn lacking(keyring: &Keyring, known: &[KeyRecord]) -> Option<String> {
    let missing = known.iter().find(|record| !keyring.has(record.id()))?;
    let what_to_do = match missing.provider() {
        Provider::File => {
            "add the key, behind the first provider if nothing new is to be encrypted by it"
        }
        Provider::Kms => {
            "add the provider, behind the first one if nothing new is to be encrypted by it"
        }
    };
    Some(format!(
        "some of what is stored is encrypted by {missing}, which --encryption-provider-config of this \
         replica does not have: {what_to_do}"
    ))
}

/// Returns the names of keys by id, as far as the store has them.
async fn names(store: &Arc<dyn Store>) -> Result<Vec<(KeyId, String)>, AgreementError> {
    let known = records(store).await?;
    let named = |record: &KeyRecord| (record.id(), record.to_string());
    Ok(known.iter().map(named).collect())
}
