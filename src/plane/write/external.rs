//! External records: keys in a plane's range that other replicas write, without its sequencer. The
//! ring's member keys are such records; the root plane shows them as objects.
//!
//! Each key has one writer, which makes every change in a transaction of its own. The plane's owner
//! reads the changes from the store's watch and publishes them in revision order.
//!
//! Invariant: this module does not know what the objects mean.

use std::sync::Arc;

use bytes::Bytes;
use polyplane_storage::Revision;

use crate::key::{Key, Prefix};
use crate::plane::Plane;
use crate::record::{self, KeySpace, Record, RecordError, encode_external};
use crate::state::entry::{Entry, NewObject, ObjectRef, Versions};
use crate::version::{Base, Stamp, Version};

/// Returns the store key of one object.
#[must_use]
pub fn object_key(plane: &str, key: &Key) -> Bytes {
    KeySpace::new(plane).object(key)
}

/// Returns the common beginning of the store keys of a plane's objects under a prefix. No other key
/// has it.
#[must_use]
pub fn object_prefix(plane: &str, prefix: &Prefix) -> Bytes {
    KeySpace::new(plane).prefix(prefix)
}

/// Returns the value of an external put. It must be the first operation of its transaction and the
/// only put; deletes may follow it.
#[must_use]
pub fn encode(object: &NewObject) -> Bytes {
    encode_external(object)
}

/// Decodes the value of an external put.
///
/// # Errors
/// Returns an error if the value is not an object's, is damaged, or was written by a newer program.
pub fn decode(value: &Bytes) -> Result<NewObject, RecordError> {
    match record::decode(value)? {
        Record::External(object) | Record::Object { object, .. } => Ok(object),
        Record::Tombstone { .. }
        | Record::Head { .. }
        | Record::Marker
        | Record::Steps { .. }
        | Record::DataKeys(_) => Err(RecordError::Damaged),
    }
}

/// Reads an object of a plane without the plane, and the version of its first put. `modified` is
/// the revision of the value. Returns `None` for the tombstone of a layer object.
///
/// # Errors
/// Returns an error if the value is not an object's record, is damaged, or was written by a newer
/// program.
pub fn read(
    base: Base,
    modified: Revision,
    value: &Bytes,
) -> Result<Option<(NewObject, Version)>, RecordError> {
    let stored = record::decode_stored(value)?;
    let point = stored.point(base, modified);
    match stored.record {
        Record::Object { header, object } => {
            let version = point.version(header.index);
            Ok(Some((object, header.versions(version).created)))
        }
        Record::External(object) => Ok(Some((object, point.version(0)))),
        Record::Tombstone { .. } => Ok(None),
        Record::Head { .. } | Record::Marker | Record::Steps { .. } | Record::DataKeys(_) => {
            Err(RecordError::Damaged)
        }
    }
}

impl Plane {
    /// Returns an object that is kept outside the plane in the form of the plane's own objects:
    /// first put at the revision `created`, last put at `modified`.
    #[must_use]
    pub fn unstored_object(
        &self,
        key: Key,
        object: &NewObject,
        created: Revision,
        modified: Revision,
    ) -> ObjectRef {
        let versions = Versions {
            version: Version::new(self.base(), modified, 0),
            created: Version::new(self.base(), created, 0),
        };
        let stamp = Stamp::loaded(versions.version);
        let interner = &self.context().interner;
        let entry = Entry::own(key, stamp, object, versions, interner);
        ObjectRef::new(entry, Arc::clone(&self.published().template_values))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::object;

    #[test]
    fn an_external_value_reads_back_and_stands_where_the_plane_looks() {
        let wanted = object("a", "x", "1");
        let read = decode(&encode(&wanted)).expect("an object was written");
        assert_eq!(read.body, wanted.body);
        assert_eq!(read.version_slot, wanted.version_slot);
        assert_eq!(read.labels, wanted.labels);
        let key = Key::new("g", "leases", Some("ns"), "a");
        let prefix = object_prefix("root", &Prefix::namespaced("g", "leases", "ns"));
        assert!(object_key("root", &key).starts_with(&prefix));
        let other = Key::new("g", "leases", Some("ns-a"), "a");
        assert!(!object_key("root", &other).starts_with(&prefix));
        assert_eq!(
            decode(&record::encode_marker()).err(),
            Some(RecordError::Damaged)
        );
    }
}
