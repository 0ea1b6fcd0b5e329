//! The answer of `/polyplane/encryption/<name>`: by which key a plane is encrypted in the store, and
//! whether some record is still under an older one. It is read from the store, wherever the plane is.

use super::names;
use crate::replica::plane_directory::{LookupError, NameOrId, PlaneDirectory};
use polyplane_apimachinery::error_chain;
use polyplane_apimachinery::status::{ApiError, Qualified};
use polyplane_batteries::polyplane::control_plane::{GROUP, RESOURCE};
use polyplane_ownership::ROOT;
use serde::Serialize;

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct Report {
    /// The number of the data key; absent if nothing of the plane was ever sealed.
    #[serde(skip_serializing_if = "Option::is_none")]
    data_key: Option<u32>,
    /// The generation that was requested, and the one that the plane has.
    requested_generation: u32,
    generation: u32,
    /// The key-encryption key that wraps the data key.
    #[serde(skip_serializing_if = "Option::is_none")]
    wrapped_by: Option<String>,
    /// False if this replica has no key that wraps a new data key, because the first provider of its
    /// configuration is `identity`.
    encrypts: bool,
    /// All key-encryption keys that wrap a data key of some plane.
    keys: Vec<String>,
    /// True if every record is sealed, or in clear, as the policy of this replica says, under the newest
    /// data key.
    settled: bool,
}

/// Returns the report of a plane as JSON.
///
/// # Errors
/// Returns 404 if there is no such plane, 503 if the store does not answer.
pub async fn of(directory: &PlaneDirectory, name: &str) -> Result<Vec<u8>, ApiError> {
    let missing = |_: LookupError| ApiError::not_found(Qualified::new(GROUP, RESOURCE), name);
    let located = match name {
        ROOT => directory.root().cloned().ok_or(LookupError::NotFound),
        name => directory.seek(&NameOrId::Name(name.into())).await,
    };
    let id = located.map_err(missing)?.birth.id.clone();
    let unreadable =
        |error: &dyn std::error::Error| ApiError::service_unavailable(error_chain(error));
    let record = directory.planes.keys_record(&id).await;
    let record = record.map_err(|error| unreadable(&error))?;
    let names = names(directory.planes.store()).await;
    let names = names.map_err(|error| unreadable(&error))?;
    let newest = record.as_ref().map(|record| record.newest());
    let name = |wanted| {
        let found = names.iter().find(|(id, _)| *id == wanted);
        found.map_or_else(|| format!("the key {wanted}"), |(_, name)| name.clone())
    };
    let entry = directory.rows.by_id(&id);
    let sealing = directory.planes.sealing();
    // Without a configuration nobody can say it.
    let wanted = sealing.map_or(u64::MAX, |sealing| sealing.fingerprint());
    let report = Report {
        data_key: newest.map(|newest| newest.number),
        requested_generation: entry.map_or(0, |entry| entry.data_key_generation),
        generation: record.as_ref().map_or(0, |record| record.generation),
        wrapped_by: newest.map(|newest| name(newest.wrapped.by)),
        encrypts: sealing.is_some_and(|sealing| sealing.keyring().wraps_by().is_some()),
        keys: names.iter().map(|(_, name)| name.clone()).collect(),
        settled: record
            .as_ref()
            .is_some_and(|record| record.settled == wanted),
    };
    serde_json::to_vec(&report).map_err(|error| ApiError::internal(error.to_string()))
}
