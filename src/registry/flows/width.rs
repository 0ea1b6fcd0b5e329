//! How many seats a list takes.

use crate::kinds::Kinds;
use crate::request::parameters::{LIMIT, Query};
use polyplane_auth::Subject;
use polyplane_plane::{ObjectRef, Prefix, Snapshot, Start};

/// Bytes of a list for each of its seats.
const BYTES_PER_SEAT: u64 = 100_000;
/// Lists are written piece by piece, so no list has more than this in memory.
const BYTES_AT_ONCE_MAX: u64 = 1_000_000;
/// Objects whose lengths are taken for those of all.
const SAMPLE: usize = 8;

/// Returns the seats of a list, or of a watch that begins with one, of what `subject` names. As upstream,
/// it is by the number of objects and their mean length; as the mean counts that of the first few.
pub fn seats_of_list(cut: &Snapshot, kinds: &Kinds, subject: Subject<'_>, query: &Query) -> u32 {
    let Subject::Resource {
        group,
        version,
        resource,
        namespace,
        name,
        ..
    } = subject
    else {
        return 1;
    };
    let Some(row) = kinds.resolve(group, version, resource) else {
        return 1;
    };
    if !name.is_empty() {
        return 1;
    }
    let storage = &row.storage;
    let prefix = match namespace {
        "" => Prefix::resource(&storage.group, &storage.resource),
        namespace => Prefix::namespaced(&storage.group, &storage.resource, namespace),
    };
    let count = u64::try_from(cut.count(&prefix)).unwrap_or(u64::MAX);
    let limit = u64::try_from(LIMIT.read(query).ok().flatten().unwrap_or(0)).unwrap_or(0);
    let shown = if limit > 0 { count.min(limit) } else { count };
    if shown <= 1 {
        return 1;
    }
    let sample = cut.range(&prefix, Start::First).take(SAMPLE);
    let lengths: Vec<usize> = sample.map(|object: ObjectRef| object.body_len()).collect();
    let sum = u64::try_from(lengths.iter().sum::<usize>()).unwrap_or(u64::MAX);
    let mean = sum / (lengths.len() as u64).max(1);
    let bytes = shown.saturating_mul(mean).min(BYTES_AT_ONCE_MAX);
    u32::try_from(bytes.div_ceil(BYTES_PER_SEAT).max(1)).unwrap_or(1)
}
