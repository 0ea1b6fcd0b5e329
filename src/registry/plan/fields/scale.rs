//! The owners of a number of replicas, which an object shares with its scale.

use super::{managed_of, put_managed, take_managed};
use crate::plan::Run;
use polyplane_apimachinery::status::{ApiError, Reason};
use polyplane_apimachinery::{Value, error_chain};
use polyplane_managedfields::{Entries, Path, PathElement, ReplicasPaths};

/// The version of objects with scale in groups that have, or once had, others beside it: their
/// entries may name these.
const OLDER: [(&str, &[&str]); 1] = [("apps", &["apps/v1beta1", "apps/v1beta2"])];

/// Returns where the kind of the request has its number of replicas, in all versions.
fn paths(run: &Run<'_>) -> ReplicasPaths {
    let row = run.call.row;
    if let Some(custom) = &row.custom {
        let versions = custom.replicas.iter().map(|(version, path)| {
            let path = path.as_ref().map(|path| {
                let steps = path.split('.').map(PathElement::field);
                Path(steps.collect())
            });
            (version.clone(), path)
        });
        return versions.collect();
    }
    let path = || {
        Some(Path(vec![
            PathElement::field("spec"),
            PathElement::field("replicas"),
        ]))
    };
    let mut paths = ReplicasPaths::from([(row.api_version.clone(), path())]);
    let older = OLDER.iter().filter(|(group, _)| row.group == *group);
    for version in older.flat_map(|(_, versions)| *versions) {
        paths.insert((*version).into(), path());
    }
    paths
}

/// Returns a scale with the managed fields that it has according to its object.
pub(crate) fn live_scale(run: &Run<'_>, mut scale: Value, object: &Value) -> Value {
    if let Ok(entries) = Entries::decode(managed_of(object)) {
        let entries = entries.to_scale(&paths(run));
        put_managed(&mut scale, entries.encode().unwrap_or_default());
    }
    scale
}

/// Gives an object the managed fields that follow from those of its changed scale.
///
/// # Errors
/// Returns 500 if admission has made those of the scale invalid.
pub(crate) fn put_scale(run: &Run<'_>, scale: &Value, object: &mut Value) -> Result<(), ApiError> {
    let failed = |error: polyplane_managedfields::EntryError| {
        ApiError::new(Reason::Unknown, error_chain(&error))
    };
    let before = take_managed(object).unwrap_or_default();
    let before = Entries::decode(&before).map_err(failed)?;
    let scale = Entries::decode(managed_of(scale)).map_err(failed)?;
    let after = before.with_scale(scale, &paths(run), &run.call.row.api_version);
    put_managed(object, after.encode().unwrap_or_default());
    Ok(())
}
