//! Another key-encryption key: the replica with the root plane lets the data keys of sleeping planes be
//! wrapped by it, and removes the record of a key once it wraps nothing any more. Then the key may be
//! taken out of the file.

use super::Encryption;
use super::key_record::{KeyRecord, records};
use crate::replica::plane_directory::PlaneDirectory;
use polyplane_ownership::ROOT;
use polyplane_sealing::KeyId;
use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;
use tokio_util::sync::CancellationToken;

/// Pause between two passes over all planes while there is more than one key.
const PASS_EVERY: Duration = Duration::from_secs(10);

impl Encryption {
    /// Makes passes until `stop` is cancelled.
    pub async fn rewrap(self: Arc<Self>, directory: Arc<PlaneDirectory>, stop: CancellationToken) {
        while self.sealing.is_some() {
            tokio::select! {
                // First: a stopping replica writes nothing.
                biased;
                () = stop.cancelled() => return,
                () = tokio::time::sleep(PASS_EVERY) => {}
            }
            if let Err(error) = self.pass(&directory).await {
                tracing::warn!("cannot wrap all data keys anew: {error:#}");
            }
        }
    }

    /// Makes one pass, if a key other than the one that wraps has a record.
    async fn pass(&self, directory: &PlaneDirectory) -> anyhow::Result<()> {
        let Some(sealing) = self.sealing.as_ref().filter(|sealing| sealing.has_begun()) else {
            return Ok(());
        };
        let Some(wraps_by) = sealing.keyring().wraps_by().map(|key| key.id()) else {
            return Ok(());
        };
        if directory.root_here().is_none() || !directory.rows.is_whole() {
            return Ok(());
        }
        let known = records(directory.planes.store()).await?;
        let older: Vec<&KeyRecord> = known.iter().filter(|key| key.id() != wraps_by).collect();
        if older.is_empty() {
            return Ok(());
        }
        let in_use = self.wrapping_keys(directory).await?;
        for record in older.iter().filter(|key| !in_use.contains(&key.id())) {
            record.remove(directory.planes.store()).await?;
            tracing::info!(
                "no data key is wrapped by {record} any more: it may be taken out of \
                 --encryption-provider-config"
            );
        }
        Ok(())
    }

    /// Wraps the data keys of all planes that sleep, and returns the keys that wrap one afterwards.
    async fn wrapping_keys(&self, directory: &PlaneDirectory) -> anyhow::Result<BTreeSet<KeyId>> {
        let mut in_use = BTreeSet::new();
        let rows = directory.rows.first(usize::MAX).into_iter();
        let ids = rows.map(|row| row.id.to_string());
        for id in ids.chain([ROOT.to_owned()]) {
            let record = directory.planes.rewrap_asleep(&id).await?;
            let versions = record.iter().flat_map(|record| &record.versions);
            in_use.extend(versions.map(|version| version.wrapped.by));
        }
        Ok(in_use)
    }
}
