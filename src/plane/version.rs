//! Versions, which clients know as `resourceVersion`, and stamps, which replace versions while a
//! write is under way.
//!
//! Invariant: versions are compared within one plane only; `base` keeps them growing over a restore
//! or a change of store.

use std::fmt;

use polyplane_storage::Revision;

/// The number that is added to a store's revision so that versions keep growing over a restore or a
/// move.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Base(pub u64);

/// The place of a transaction in a plane's history, from which the versions of its events are made:
/// the revision in the store where it was committed, plus that store's base. A copy of the store
/// keeps it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Point(u64);

impl Point {
    /// Returns the point of a transaction of this store.
    #[must_use]
    pub fn of(base: Base, revision: Revision) -> Self {
        Self(base.0 + revision.0)
    }

    /// Returns the point with this number; `None` if it is too large for a version.
    #[must_use]
    pub fn from_number(number: u64) -> Option<Self> {
        (number <= u64::MAX >> 8).then_some(Self(number))
    }

    /// Returns the point as a number.
    #[must_use]
    pub fn number(self) -> u64 {
        self.0
    }

    /// Returns the version of one event.
    #[must_use]
    pub fn version(self, index: u8) -> Version {
        Version(self.0 << 8 | u64::from(index))
    }

    /// Returns the version after all events of the transaction.
    #[must_use]
    pub fn end(self) -> Version {
        self.version(Version::END)
    }
}

/// A moment in a plane's history: `(base + revision) << 8 | index`.
///
/// Indexes 0 to 254 number the events of one transaction, 255 means after all of it.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Version(u64);

impl Version {
    /// The index that means after all events of a revision.
    pub const END: u8 = 255;
    /// Before everything. No object and no list ever carries it.
    pub const ZERO: Self = Self(0);

    /// Returns the version of one event.
    #[must_use]
    pub fn new(base: Base, revision: Revision, index: u8) -> Self {
        Point::of(base, revision).version(index)
    }

    /// Returns the version after all events of a revision, as lists and bookmarks carry it.
    #[must_use]
    pub fn after(base: Base, revision: Revision) -> Self {
        Self::new(base, revision, Self::END)
    }

    /// Returns the version with this number.
    #[must_use]
    pub const fn from_raw(raw: u64) -> Self {
        Self(raw)
    }

    /// Returns the version as a number.
    #[must_use]
    pub const fn raw(self) -> u64 {
        self.0
    }

    /// Returns the index of the event in its transaction; 255 means the end of the transaction.
    #[must_use]
    pub const fn index(self) -> u8 {
        (self.0 & 0xFF) as u8
    }

    /// Returns the store's revision, given the plane's base.
    #[must_use]
    pub fn revision(self, base: Base) -> Revision {
        Revision((self.0 >> 8).saturating_sub(base.0))
    }

    /// Returns the version that is `events` events later in the same transaction.
    #[must_use]
    pub(crate) const fn plus(self, events: usize) -> Self {
        debug_assert!(self.index() as usize + events < Self::END as usize);
        Self(self.0 + events as u64)
    }

    /// Returns the version directly before this one.
    #[must_use]
    pub(crate) const fn before(self) -> Self {
        Self(self.0.saturating_sub(1))
    }

    /// Returns the version after all events of the same revision.
    #[must_use]
    pub const fn end_of_revision(self) -> Self {
        Self(self.0 | 0xFF)
    }

    /// Parses the decimal form, which has digits only.
    #[must_use]
    pub fn parse(text: &str) -> Option<Self> {
        if text.is_empty() || !text.bytes().all(|byte| byte.is_ascii_digit()) {
            return None;
        }
        text.parse().ok().map(Self)
    }
}

impl fmt::Display for Version {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

impl serde::Serialize for Version {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl<'de> serde::Deserialize<'de> for Version {
    fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let text = <std::borrow::Cow<'de, str>>::deserialize(deserializer)?;
        Self::parse(&text).ok_or_else(|| serde::de::Error::custom("a version has digits only"))
    }
}

/// One state of one key. Two entries of a key have equal stamps only if they are the same state.
/// Unlike a version it exists before the write is durable.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Stamp(pub(crate) u64);

impl Stamp {
    /// The bit that is set in stamps that a sequencer of this process has made. The stamp of a
    /// loaded entry is its version.
    const SEQUENCED: u64 = 1 << 63;
    /// The bit that is set, without `SEQUENCED`, in the stamps of layer objects.
    const TEMPLATE: u64 = 1 << 62;

    pub(crate) const fn sequenced(number: u64) -> Self {
        Self(number | Self::SEQUENCED)
    }

    pub(crate) const fn loaded(version: Version) -> Self {
        Self(version.0 & !(Self::SEQUENCED | Self::TEMPLATE))
    }

    pub(crate) const fn template(content: u64) -> Self {
        Self((content | Self::TEMPLATE) & !Self::SEQUENCED)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_version_takes_its_parts_apart() {
        let version = Version::new(Base(1000), Revision(7), 3);
        assert_eq!(version.raw(), 1007 << 8 | 3);
        assert_eq!(version.index(), 3);
        assert_eq!(version.revision(Base(1000)), Revision(7));
        assert_eq!(
            version.end_of_revision(),
            Version::after(Base(1000), Revision(7))
        );
        assert_eq!(Version::parse(&version.to_string()), Some(version));
    }

    #[test]
    fn only_digits_are_a_version() {
        for text in ["", "+1", "-1", "1 ", "0x1", "18446744073709551616", "١"] {
            assert_eq!(Version::parse(text), None, "{text:?}");
        }
        assert_eq!(Version::parse("007"), Some(Version::from_raw(7)));
    }
}
