//! Records of a source that are larger than the target takes. They are found before anything is written: a
//! copy that has begun cannot go on after they were changed in the source.
//!
//! Must not know what objects mean; only their keys are shown.

use crate::copy::families::copied;
use crate::copy::source::Source;
use crate::copy::{CopyError, undecodable};
use bytes::Bytes;
use polyplane_plane::Key;
use polyplane_storage::Revision;
use std::collections::BTreeMap;
use tokio_util::sync::CancellationToken;

/// Records that a message names. More would hide what it says about them.
const NAMED_MAX: usize = 8;

/// A record that is too large.
#[derive(Debug, Clone, Copy)]
struct Large {
    /// Bytes of its largest value.
    bytes: usize,
    /// Whether its newest value is too large, and not only values in the history.
    is_now: bool,
}

/// The records that were found, by key.
struct Found {
    bytes_max: usize,
    records: BTreeMap<Bytes, Large>,
}

/// Checks that a target takes each value that a copy has, until `stop` is cancelled.
pub(crate) async fn check(
    source: &Source,
    bytes_max: usize,
    stop: &CancellationToken,
) -> Result<(), CopyError> {
    tokio::select! {
        // The stop first: a store that does not answer must not hide it.
        biased;
        () = stop.cancelled() => Err(CopyError::Stopped),
        checked = check_all(source, bytes_max) => checked,
    }
}

async fn check_all(source: &Source, bytes_max: usize) -> Result<(), CopyError> {
    let mut found = Found {
        bytes_max,
        records: BTreeMap::new(),
    };
    let mut request = Some(source.all_from(Bytes::new()));
    while let Some(page) = request {
        let reply = source.page(&page).await?;
        for item in &reply.items {
            found.note(source, &item.key, item.modified, Some(&item.value))?;
        }
        request = page.next_page(&reply);
    }
    let mut changes = source.changes_after(Revision(source.id.begins));
    while let Some(next) = changes.next().await? {
        for event in &next.events {
            found.note(source, &event.key, event.revision, event.value.as_ref())?;
        }
    }
    match found.records.is_empty() {
        true => Ok(()),
        false => Err(found.error()),
    }
}

/// Returns the error for a record that the target does not take.
pub(crate) fn too_large(key: &[u8], bytes: usize, bytes_max: usize) -> CopyError {
    let named = format!("{} ({bytes} bytes)", name_of(key));
    CopyError::TooLarge { named, bytes_max }
}

impl Found {
    /// Notes the next value of a key; `None` if it was deleted.
    fn note(
        &mut self,
        source: &Source,
        key: &Bytes,
        modified: Revision,
        value: Option<&Bytes>,
    ) -> Result<(), CopyError> {
        let bytes = match value {
            // A copied value is a few bytes longer, so the copy of a short one need not be made.
            Some(value) if value.len() > self.bytes_max / 2 => {
                let base = source.numbering.planes.base;
                let copied = copied(base, key, modified, value);
                let copied = copied.map_err(|error| undecodable(key, error))?;
                copied.map_or(0, |value| value.len())
            }
            Some(_) | None => 0,
        };
        if bytes > self.bytes_max {
            let large = Large {
                bytes,
                is_now: true,
            };
            let known = self.records.entry(key.clone()).or_insert(large);
            known.bytes = known.bytes.max(bytes);
            known.is_now = true;
        } else if let Some(known) = self.records.get_mut(key) {
            known.is_now = false;
        }
        Ok(())
    }

    fn error(&self) -> CopyError {
        let named = self.records.iter().take(NAMED_MAX).map(|(key, large)| {
            let Large { bytes, is_now } = *large;
            let only = if is_now { "" } else { ", in the history only" };
            format!("{} ({bytes} bytes{only})", name_of(key))
        });
        let mut named: Vec<String> = named.collect();
        if let Some(more) = self.records.len().checked_sub(NAMED_MAX + 1) {
            named.push(format!("{} more", more + 1));
        }
        CopyError::TooLarge {
            named: named.join(", "),
            bytes_max: self.bytes_max,
        }
    }
}

/// Returns how a message names a record.
fn name_of(key: &[u8]) -> String {
    let Some((plane, key)) = object_of(key) else {
        return format!("the record {:?}", String::from_utf8_lossy(key));
    };
    let group = match key.group() {
        "" => String::new(),
        group => format!(".{group}"),
    };
    let namespace = key.namespace();
    let namespace = namespace.map_or_else(String::new, |name| format!(" in namespace {name}"));
    format!(
        "{}{group} {}{namespace} of the control plane with ID {plane}",
        key.resource(),
        key.name()
    )
}

/// Returns the id of the plane and the key in it, if a record is that of an object.
fn object_of(key: &[u8]) -> Option<(&str, Key)> {
    let (plane, rest) = std::str::from_utf8(key)
        .ok()?
        .strip_prefix("p/")?
        .split_once('/')?;
    Some((plane, Key::from_bytes(rest.strip_prefix("o/")?.as_bytes())?))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_message_names_objects_as_their_users_do() {
        for (key, name) in [
            (
                "p/p1a2b/o/ex.com/bigs/default/b",
                "bigs.ex.com b in namespace default of the control plane with ID p1a2b",
            ),
            (
                "p/root/o//namespaces/b",
                "namespaces b of the control plane with ID root",
            ),
            ("agreed/x", "the record \"agreed/x\""),
        ] {
            assert_eq!(name_of(key.as_bytes()), name);
        }
    }
}
