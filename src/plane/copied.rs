//! A store that is a copy of another: which of its revisions the copy wrote, and which points of
//! planes these stand for.
//!
//! The copy writes each plane's state as of one moment, and repeats what was committed after that
//! moment. Its revisions are other ones than those of the source, so each value that it writes has its
//! event's [`Point`]. Events after the copy get their points from the revision and the base, as in
//! every store; the base makes them later than all points of the source.
//!
//! Must not know which planes there are, nor how a copy is made.

use bytes::Bytes;
use polyplane_storage::Revision;

use crate::record::{RecordError, encode_copied};
use crate::version::{Base, Point, Version};

/// The part of a store's revisions that a copy wrote.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Copied {
    /// The revision at which this store had the state of the source at [`Self::begins`]. The events
    /// up to it are no events of the planes.
    pub begins_at: Revision,
    /// The point at which the history begins. Older versions have expired.
    pub begins: Point,
    /// The newest revision of the copy.
    pub ends_at: Revision,
    /// The newest point of the source. Every version that was given out before the copy belongs to
    /// it or to an older one.
    pub ends: Point,
}

impl Copied {
    /// Returns the smallest base with which all points after the copy are later than those before.
    #[must_use]
    pub fn base(&self) -> Base {
        Base(self.ends.number().saturating_sub(self.ends_at.0))
    }
}

/// How a store numbers the history of its planes.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Numbering {
    /// The number that is added to revisions.
    pub base: Base,
    /// The copy that filled the store, if it is one.
    pub copied: Option<Copied>,
}

impl Numbering {
    /// Returns the numbering of a store with this content.
    #[must_use]
    pub fn new(copied: Option<Copied>) -> Self {
        let base = copied.map(|copied| copied.base()).unwrap_or_default();
        Self { base, copied }
    }

    /// Returns a version that is not older than any event up to a revision, and older than every
    /// event after it. Within the copy it may also be as new as the copy's last event.
    #[must_use]
    pub fn version_after(&self, revision: Revision) -> Version {
        match self.copied {
            Some(copied) if revision <= copied.begins_at => copied.begins.end(),
            Some(copied) if revision < copied.ends_at => copied.ends.end(),
            Some(_) | None => Version::after(self.base, revision),
        }
    }

    /// Returns a revision that is older than every event after a version, as far as this store has
    /// these.
    #[must_use]
    pub fn revision_before(&self, version: Version) -> Revision {
        match self.copied {
            Some(copied) if version <= copied.ends.end() => copied.begins_at,
            Some(_) | None => version.revision(self.base),
        }
    }

    /// Returns a revision that is not older than any event up to a version.
    #[must_use]
    pub fn revision_through(&self, version: Version) -> Revision {
        match self.copied {
            Some(copied) if version <= copied.ends.end() => copied.ends_at,
            Some(_) | None => version.revision(self.base),
        }
    }

    /// Returns whether a copy made an event of this store, and the event is newer than a version. The
    /// revision of such an event does not tell, see [`Self::revision_through`].
    #[must_use]
    pub(crate) fn is_copied_after(&self, version: Version, revision: Revision, of: Point) -> bool {
        let copied = self.copied.is_some_and(|copied| revision <= copied.ends_at);
        copied && of.version(0) > version
    }

    /// Returns the revision of a version that this store gave out: `None` if its source did.
    #[must_use]
    pub fn own_revision(&self, version: Version) -> Option<Revision> {
        let of_source = self
            .copied
            .is_some_and(|copied| version <= copied.ends.end());
        (!of_source).then(|| version.revision(self.base))
    }
}

/// Returns a value of a plane's range as a copy of its store has it. `modified` is the revision of
/// the value in a store with this base. Returns `None` if a copy does not have the value, because it
/// only distinguishes the commits of the plane's owner.
///
/// # Errors
/// Returns an error if the value is damaged, or was written by a newer program.
pub fn copied_value(
    base: Base,
    modified: Revision,
    value: &Bytes,
) -> Result<Option<Bytes>, RecordError> {
    encode_copied(base, modified, value)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn numbering(ends_at: u64, ends: u64) -> Numbering {
        let point = |number| Point::from_number(number).expect("it is small");
        Numbering::new(Some(Copied {
            begins_at: Revision(ends_at - 10),
            begins: point(ends - 40),
            ends_at: Revision(ends_at),
            ends: point(ends),
        }))
    }

    #[test]
    fn versions_grow_over_a_copy_whichever_store_is_ahead() {
        for (ends_at, ends) in [(20, 900), (900, 100), (100, 100)] {
            let numbering = numbering(ends_at, ends);
            let last = Point::from_number(ends).expect("it is small").end();
            let next = Version::new(numbering.base, Revision(ends_at + 1), 0);
            assert!(next > last, "{ends_at} {ends}");
            assert_eq!(numbering.own_revision(next), Some(Revision(ends_at + 1)));
            assert_eq!(numbering.own_revision(last), None);
        }
    }

    #[test]
    fn a_floor_never_hides_an_event() {
        let numbering = numbering(20, 900);
        let floor = |revision| numbering.version_after(Revision(revision)).raw() >> 8;
        // The events between the revisions 10 and 20 have points between 860 and 900.
        assert_eq!((floor(3), floor(10), floor(11)), (860, 860, 900));
        assert_eq!((floor(20), floor(25)), (900, 905));
        let before = |number| {
            let point = Point::from_number(number).expect("it is small");
            numbering.revision_before(point.end()).0
        };
        assert_eq!((before(870), before(900), before(905)), (10, 10, 25));
    }
}
