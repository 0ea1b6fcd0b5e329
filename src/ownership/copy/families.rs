//! Which records of a store a copy has, and in which form. Owns the list of the keys that belong to
//! the replicas of a store and not to its content.

use crate::copy::record::COPY_KEY;
use crate::membership::member_record::members_store_prefix;
use crate::planes::{ROOT_KEY, SECRET_KEY};
use crate::records::{CANDIDATES, COMPLAINTS, FENCES, FLOOR_KEY, is_adoption};
use bytes::Bytes;
use polyplane_plane::{Base, RecordError, copied_value};
use polyplane_storage::Revision;

/// The beginning of the keys of planes.
const PLANES: &[u8] = b"p/";

/// What becomes of a key in a copy.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Family {
    /// The copy does not have it: fences, member keys, complaints, adoptions and candidates' records of
    /// replicas that are not in the copy, and the records with which a copy begins.
    Left,
    /// The copy has the same bytes.
    Same,
    /// The copy has a plane's record with its point.
    OfPlane,
}

fn family(key: &[u8]) -> Family {
    let begins_copy = [
        COPY_KEY,
        FLOOR_KEY,
        ROOT_KEY.as_bytes(),
        SECRET_KEY.as_bytes(),
    ];
    if begins_copy.contains(&key)
        || key.starts_with(FENCES.as_bytes())
        || key.starts_with(COMPLAINTS)
        || key.starts_with(CANDIDATES)
        || is_adoption(key)
        || key.starts_with(&members_store_prefix())
    {
        return Family::Left;
    }
    match key.starts_with(PLANES) {
        true => Family::OfPlane,
        false => Family::Same,
    }
}

/// Returns the value that a copy has for a value of the source with this base: `None` if it has none.
pub(crate) fn copied(
    base: Base,
    key: &[u8],
    modified: Revision,
    value: &Bytes,
) -> Result<Option<Bytes>, RecordError> {
    match family(key) {
        Family::Left => Ok(None),
        Family::Same => Ok(Some(value.clone())),
        Family::OfPlane => copied_value(base, modified, value),
    }
}

/// Returns whether a copy has the key and repeats its deletes.
pub(crate) fn is_copied(key: &[u8]) -> bool {
    family(key) != Family::Left
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::records::{adoption_key, candidate_key, complaint_key, fence_key};
    use polyplane_ring::ReplicaId;

    #[test]
    fn a_copy_has_nothing_that_replicas_say_about_themselves() {
        let replica: ReplicaId = "polyplane-0".parse().expect("a replica id");
        let keys = [
            fence_key("p1a2b"),
            complaint_key(&replica, &replica),
            adoption_key(&replica),
            candidate_key(&replica),
        ];
        for key in &keys {
            assert!(!is_copied(key), "{key:?}");
        }
        assert!(is_copied(b"p/p1a2b/o/x") && is_copied(b"agreed/x"));
    }
}
