//! The answer of `/polyplane/top`: what the planes in use have taken of their owners since they woke.
//! Each owner answers from its memory; a replica that does not answer in time is named, and its planes are
//! missing.

use crate::replica::plane_directory::PlaneDirectory;
use polyplane_apimachinery::status::ApiError;
use polyplane_ownership::ROOT;
use serde::Serialize;
use std::cmp::Reverse;

/// Planes in one report, at most: those with the most CPU time. More would make an answer of
/// megabytes that nobody reads.
const PLANES_MAX: usize = 10_000;

#[derive(Serialize)]
struct Report {
    planes: Vec<PlaneUsage>,
    /// The number of planes in use that the report leaves out.
    more: usize,
    /// The members that did not answer. Their planes are missing.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    silent: Vec<String>,
}

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct PlaneUsage {
    name: String,
    id: String,
    cpu_millis: u64,
    requests: u64,
    writes: u64,
    refused: u64,
    watches: u64,
    /// The plane's own objects.
    objects: u64,
    bytes: u64,
}

/// Returns the report as JSON.
pub async fn of_ring(directory: &PlaneDirectory) -> Result<Vec<u8>, ApiError> {
    let figures = directory.planes.figures_of_ring().await;
    let name = |id: &str| match id {
        ROOT => Some(ROOT.to_owned()),
        id => Some(directory.rows.by_id(id)?.name.as_str().to_owned()),
    };
    let silent = figures.silent.iter().map(ToString::to_string).collect();
    let mut planes: Vec<PlaneUsage> = figures
        .planes
        .iter()
        .filter_map(|figures| {
            Some(PlaneUsage {
                name: name(&figures.plane)?,
                id: figures.plane.clone(),
                cpu_millis: figures.used.cpu_millis,
                requests: figures.used.requests,
                writes: figures.used.writes,
                refused: figures.used.refused,
                watches: figures.used.watches,
                objects: figures.used.own_objects,
                bytes: figures.bytes,
            })
        })
        .collect();
    planes.sort_by_key(|plane| Reverse((plane.cpu_millis, plane.requests)));
    let more = planes.len().saturating_sub(PLANES_MAX);
    planes.truncate(PLANES_MAX);
    let report = Report {
        planes,
        more,
        silent,
    };
    serde_json::to_vec(&report).map_err(|error| ApiError::internal(error.to_string()))
}
