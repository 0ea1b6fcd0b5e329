//! Entries: the immutable state of one object, as bytes with the version spliced in once.
//!
//! An entry is one of three: an object of the plane's own, a template of a layer that is the same
//! in every plane, or a write under way that has no version yet. Readers hold an [`ObjectRef`] and
//! need not know which.

use std::ops::Range;
use std::sync::{Arc, OnceLock};

use bytes::{BufMut, Bytes, BytesMut};
use polyplane_apimachinery::Str;

use crate::key::Key;
use crate::layers::layer::Template;
use crate::layers::template_values::TemplateValues;
use crate::state::intern::{Interner, Rope};
use crate::state::room::own_bytes;
use crate::state::selectable::Selectable;
use crate::state::tree::{Item, Weight};
use crate::version::{Stamp, Version};

/// The text before the digits of a version in a body.
const VERSION_HEAD: &[u8] = b"\"resourceVersion\":\"";
/// The text after the digits of a version in a body.
const VERSION_TAIL: &[u8] = b"\",";
/// Estimated bytes of an entry beside its key and body: its head and its position in the tree.
pub(crate) const ENTRY_BYTES: usize = 160;

/// An object as the code of its kind creates it: canonical JSON without TypeMeta and without
/// `metadata.resourceVersion`.
#[derive(Debug, Clone)]
pub struct NewObject {
    /// The canonical bytes, `{"metadata":{…`.
    pub body: Bytes,
    /// The offset at which `"resourceVersion":"…",` is inserted: before the quote of the member of
    /// `metadata` that follows it. There always is such a member.
    pub version_slot: usize,
    /// The position of the value of `metadata.labels` in `body`, braces included.
    pub labels: Option<Range<usize>>,
    /// The API version that the body is written in, for example `v1`.
    pub storage_version: Str,
    /// The time at which the object expires, in seconds since 1970.
    pub expires: Option<u64>,
    /// The facts about the object that a claim can test.
    pub flags: Flags,
}

/// Facts about an object that a claim can test, readable without decoding the object.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Flags(pub(crate) u8);

impl Flags {
    /// No flag.
    pub const NONE: Self = Self(0);
    /// The object is being deleted and accepts nothing new: a namespace, or the definition of a kind.
    pub const TERMINATING: Self = Self(1);
    /// The object has a deletion timestamp and waits for its finalizers.
    pub const DELETING: Self = Self(2);
    /// Readers see defaults that the bytes lack, because the write was made in another version of a
    /// custom kind, or took members away. A release that does not know this flag shows the bytes.
    pub const LACKS_DEFAULTS: Self = Self(4);

    /// Returns the flags of both.
    #[must_use]
    pub const fn with(self, other: Self) -> Self {
        Self(self.0 | other.0)
    }

    /// Returns whether all flags of `other` are set.
    #[must_use]
    pub const fn has(self, other: Self) -> bool {
        self.0 & other.0 == other.0
    }
}

/// One state of one object. It is immutable: writing the object again makes a new entry.
#[derive(Debug)]
pub struct Entry {
    key: Key,
    stamp: Stamp,
    state: State,
    pub(crate) selectable: OnceLock<Box<Selectable>>,
}

#[derive(Debug)]
enum State {
    Own(Own),
    Template(Template),
    InFlight(InFlight),
}

#[derive(Debug)]
struct Own {
    body: Body,
    digits: Span,
    version: Version,
    created: Version,
    storage_version: Str,
    expires: u64,
    flags: Flags,
}

#[derive(Debug)]
enum Body {
    Whole {
        bytes: Bytes,
        labels: Span,
    },
    /// A body whose large parts are shared with other objects. The labels are copied, to be one
    /// slice.
    Shared {
        rope: Rope,
        labels: Box<[u8]>,
    },
}

impl Body {
    fn whole(&self) -> Bytes {
        match self {
            Self::Whole { bytes, .. } => bytes.clone(),
            Self::Shared { rope, .. } => rope.whole(),
        }
    }

    fn labels(&self) -> &[u8] {
        match self {
            Self::Whole { bytes, labels } => &bytes[labels.range()],
            Self::Shared { labels, .. } => labels,
        }
    }

    fn len(&self) -> usize {
        match self {
            Self::Whole { bytes, .. } => bytes.len(),
            Self::Shared { rope, .. } => rope.len(),
        }
    }
}

#[derive(Debug)]
struct InFlight {
    object: NewObject,
    durable: OnceLock<Arc<Entry>>,
}

/// A range of a body; an empty range means that the body has no such part.
#[derive(Debug, Clone, Copy, Default)]
struct Span {
    start: u32,
    end: u32,
}

impl Span {
    fn new(range: Range<usize>) -> Self {
        let bound = |at: usize| u32::try_from(at).expect("bodies are bounded far below 4 GiB");
        Self {
            start: bound(range.start),
            end: bound(range.end),
        }
    }

    fn range(self) -> Range<usize> {
        self.start as usize..self.end as usize
    }
}

/// Versions of an object: its own, and that of its first write since it was last absent.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Versions {
    pub(crate) version: Version,
    pub(crate) created: Version,
}

impl Entry {
    fn with(key: Key, stamp: Stamp, state: State) -> Arc<Self> {
        Arc::new(Self {
            key,
            stamp,
            state,
            selectable: OnceLock::new(),
        })
    }

    pub(crate) fn in_flight(key: Key, stamp: Stamp, object: NewObject) -> Arc<Self> {
        let state = State::InFlight(InFlight {
            object,
            durable: OnceLock::new(),
        });
        Self::with(key, stamp, state)
    }

    pub(crate) fn template(key: Key, stamp: Stamp, template: Template) -> Arc<Self> {
        let state = State::Template(template);
        Self::with(key, stamp, state)
    }

    /// Creates the entry of a durable object: splices its version in and shares its large parts.
    pub(crate) fn own(
        key: Key,
        stamp: Stamp,
        object: &NewObject,
        versions: Versions,
        interner: &Interner,
    ) -> Arc<Self> {
        let (body, digits) = splice(&object.body, object.version_slot, versions.version);
        let grown = body.len() - object.body.len();
        let labels = object.labels.clone().map_or(Span::default(), |labels| {
            let shift = if labels.start >= object.version_slot {
                grown
            } else {
                0
            };
            Span::new(labels.start + shift..labels.end + shift)
        });
        let body = match interner.rope(&body) {
            Some(rope) => Body::Shared {
                labels: body[labels.range()].into(),
                rope,
            },
            None => Body::Whole {
                bytes: body,
                labels,
            },
        };
        let state = State::Own(Own {
            body,
            digits: Span::new(digits),
            version: versions.version,
            created: versions.created,
            storage_version: object.storage_version.clone(),
            expires: object.expires.unwrap_or_default(),
            flags: object.flags,
        });
        Self::with(key, stamp, state)
    }

    /// Returns the durable entry of a write under way, made at the first call.
    pub(crate) fn made_durable(self: &Arc<Self>, at: Versions, interner: &Interner) -> Arc<Self> {
        let State::InFlight(in_flight) = &self.state else {
            return Arc::clone(self);
        };
        Arc::clone(in_flight.durable.get_or_init(|| {
            Self::own(
                self.key.clone(),
                self.stamp,
                &in_flight.object,
                at,
                interner,
            )
        }))
    }

    /// Returns the object of a write under way; `None` once the entry is durable.
    pub(crate) fn object(&self) -> Option<&NewObject> {
        match &self.state {
            State::InFlight(in_flight) => Some(&in_flight.object),
            State::Own(_) | State::Template(_) => None,
        }
    }

    pub(crate) fn as_template(&self) -> Option<&Template> {
        match &self.state {
            State::Template(template) => Some(template),
            State::Own(_) | State::InFlight(_) => None,
        }
    }

    /// Returns the object's key.
    #[must_use]
    pub fn key(&self) -> &Key {
        &self.key
    }

    /// Returns the stamp that identifies this state of the key.
    #[must_use]
    pub fn stamp(&self) -> Stamp {
        self.stamp
    }

    /// Returns the facts about the object that a claim can test.
    #[must_use]
    pub fn flags(&self) -> Flags {
        match &self.state {
            State::Own(own) => own.flags,
            State::Template(_) => Flags::NONE,
            State::InFlight(in_flight) => in_flight.object.flags,
        }
    }

    /// Returns the time at which the object expires, in seconds since 1970.
    #[must_use]
    pub fn expires(&self) -> Option<u64> {
        match &self.state {
            State::Own(own) => (own.expires != 0).then_some(own.expires),
            State::Template(_) => None,
            State::InFlight(in_flight) => in_flight.object.expires,
        }
    }

    /// Returns the value of `metadata.labels` as JSON; `{}` if there are none.
    pub(crate) fn labels(&self) -> &[u8] {
        let labels = match &self.state {
            State::Own(own) => own.body.labels(),
            State::Template(template) => template.labels(),
            State::InFlight(InFlight { object, .. }) => match object.labels.clone() {
                Some(labels) => &object.body[labels],
                None => &[],
            },
        };
        if labels.is_empty() { b"{}" } else { labels }
    }

    /// Returns the canonical bytes of an object that is no template.
    pub(crate) fn own_body(&self) -> Bytes {
        match &self.state {
            State::Own(own) => own.body.whole(),
            State::Template(_) => Bytes::new(),
            State::InFlight(it) => it.object.body.clone(),
        }
    }

    pub(crate) fn body_len(&self) -> usize {
        match &self.state {
            State::Own(own) => own.body.len(),
            State::Template(template) => template.len(),
            State::InFlight(in_flight) => in_flight.object.body.len(),
        }
    }
}

impl Item for Arc<Entry> {
    fn sort_key(&self) -> &Arc<[u8]> {
        self.key.shared()
    }

    fn weight(&self) -> Weight {
        match &self.state {
            State::Template(_) => Weight::of_layer(),
            State::Own(_) | State::InFlight(_) => {
                Weight::own(own_bytes(&self.key, self.body_len()))
            }
        }
    }
}

/// An object as a reader holds it: one state, in one plane.
#[derive(Debug, Clone)]
pub struct ObjectRef {
    entry: Arc<Entry>,
    template_values: Arc<TemplateValues>,
}

impl ObjectRef {
    pub(crate) fn new(entry: Arc<Entry>, template_values: Arc<TemplateValues>) -> Self {
        Self {
            entry,
            template_values,
        }
    }

    /// Returns the values that made the entry an object of its plane.
    pub(crate) fn template_values(&self) -> &Arc<TemplateValues> {
        &self.template_values
    }

    /// Returns the object's key.
    #[must_use]
    pub fn key(&self) -> &Key {
        &self.entry.key
    }

    /// Returns the stamp that identifies this state of the key, for [`crate::Claim::At`].
    #[must_use]
    pub fn stamp(&self) -> Stamp {
        self.entry.stamp
    }

    /// Returns the object's version; `None` while the write that made it is not durable. Once
    /// [`crate::Plane::settled`] has returned [`crate::Settled::Durable`] for the cut, there is a
    /// version.
    #[must_use]
    pub fn version(&self) -> Option<Version> {
        match &self.durable().state {
            State::Own(own) => Some(own.version),
            State::Template(_) => self.template_values.version(&self.entry.key),
            State::InFlight(_) => None,
        }
    }

    /// Returns the version of the first write since the key was last absent; `None` while that
    /// write is under way.
    #[must_use]
    pub fn created(&self) -> Option<Version> {
        match &self.durable().state {
            State::Own(own) => Some(own.created),
            State::Template(_) => self.template_values.created(&self.entry.key),
            State::InFlight(_) => None,
        }
    }

    /// Returns the canonical bytes without TypeMeta. They include `resourceVersion`, unless the
    /// write is under way. Cheap.
    #[must_use]
    pub fn body(&self) -> Bytes {
        match &self.durable().state {
            State::Own(own) => own.body.whole(),
            State::Template(template) => self.template_values.render(&self.entry, template),
            State::InFlight(in_flight) => in_flight.object.body.clone(),
        }
    }

    /// Appends [`Self::body`] to a buffer. This copies once, whatever parts the body is made of.
    pub fn append_to(&self, out: &mut impl BufMut) {
        match &self.durable().state {
            State::Own(own) => match &own.body {
                Body::Whole { bytes, .. } => out.put_slice(bytes),
                Body::Shared { rope, .. } => rope.append_to(out),
            },
            State::Template(_) | State::InFlight(_) => out.put_slice(&self.body()),
        }
    }

    /// Returns the body with another version in place of its own, as a DELETED event carries it.
    #[must_use]
    pub fn body_at(&self, version: Version) -> Bytes {
        match &self.durable().state {
            State::Own(own) => {
                let digits = own.digits.range();
                let whole = own.body.whole();
                let mut body = BytesMut::with_capacity(whole.len() + 4);
                body.put_slice(&whole[..digits.start]);
                body.put_slice(version.to_string().as_bytes());
                body.put_slice(&whole[digits.end..]);
                body.freeze()
            }
            State::Template(template) => {
                self.template_values
                    .render_at(&self.entry.key, template, version)
            }
            State::InFlight(in_flight) => {
                splice(
                    &in_flight.object.body,
                    in_flight.object.version_slot,
                    version,
                )
                .0
            }
        }
    }

    /// Returns the value of `metadata.labels` as JSON; `{}` if there are none.
    #[must_use]
    pub fn labels_json(&self) -> &[u8] {
        self.entry.labels()
    }

    /// Returns the API version the body is written in.
    #[must_use]
    pub fn storage_version(&self) -> &Str {
        match &self.entry.state {
            State::Own(own) => &own.storage_version,
            State::Template(template) => template.storage_version(),
            State::InFlight(in_flight) => &in_flight.object.storage_version,
        }
    }

    /// Returns the facts about the object that a claim can test.
    #[must_use]
    pub fn flags(&self) -> Flags {
        self.entry.flags()
    }

    /// Returns the time at which the object expires, in seconds since 1970.
    #[must_use]
    pub fn expires(&self) -> Option<u64> {
        self.entry.expires()
    }

    /// Returns whether this is a layer's object that this plane never wrote.
    #[must_use]
    pub fn is_template(&self) -> bool {
        matches!(self.entry.state, State::Template(_))
    }

    /// Returns whether both are the same state of the same object of the same plane.
    #[must_use]
    pub fn same(&self, other: &Self) -> bool {
        self.entry.stamp == other.entry.stamp
            && self.entry.key == other.entry.key
            && self.version() == other.version()
            && self.template_values.of_same_plane(&other.template_values)
    }

    /// Returns the bytes of memory that this state alone uses, without parts that are shared by
    /// content.
    #[must_use]
    pub fn unshared_len(&self) -> usize {
        match &self.durable().state {
            State::Own(Own {
                body: Body::Shared { rope, labels },
                ..
            }) => rope.own_len() + labels.len(),
            State::Own(own) => own.body.len(),
            State::Template(_) => 0,
            State::InFlight(in_flight) => in_flight.object.body.len(),
        }
    }

    /// Returns the bytes that the last reference to this state keeps in memory, apart from shared
    /// parts.
    pub(crate) fn pinned_len(&self) -> usize {
        match self.is_template() {
            true => 0,
            false => ENTRY_BYTES + self.unshared_len(),
        }
    }

    /// Returns the address and length of each part that this state shares with others by content.
    pub(crate) fn shared_parts(&self) -> impl Iterator<Item = (usize, usize)> {
        let rope = match &self.durable().state {
            State::Own(Own {
                body: Body::Shared { rope, .. },
                ..
            }) => Some(rope),
            State::Own(_) | State::Template(_) | State::InFlight(_) => None,
        };
        rope.into_iter().flat_map(Rope::shared_parts)
    }

    /// Returns the bytes of the object's body; an estimate for a template.
    #[must_use]
    pub fn body_len(&self) -> usize {
        self.durable().body_len()
    }

    pub(crate) fn entry(&self) -> &Arc<Entry> {
        &self.entry
    }

    /// Returns the object as it was written, with its versions; `None` for a template, and while
    /// the write is under way.
    pub(crate) fn source(&self) -> Option<(Versions, NewObject)> {
        let State::Own(own) = &self.durable().state else {
            return None;
        };
        let digits = own.digits.range();
        let whole = own.body.whole();
        let version_slot = digits.start - VERSION_HEAD.len();
        let mut body = BytesMut::with_capacity(whole.len());
        body.put_slice(&whole[..version_slot]);
        body.put_slice(&whole[digits.end + VERSION_TAIL.len()..]);
        let body = body.freeze();
        let object = NewObject {
            version_slot,
            // The labels are found again by their bytes: equal bytes at another position in the
            // metadata are equal labels.
            labels: find(&body, own.body.labels()),
            storage_version: own.storage_version.clone(),
            expires: (own.expires != 0).then_some(own.expires),
            flags: own.flags,
            body,
        };
        let versions = Versions {
            version: own.version,
            created: own.created,
        };
        Some((versions, object))
    }

    fn durable(&self) -> &Entry {
        match &self.entry.state {
            State::InFlight(in_flight) => in_flight.durable.get().unwrap_or(&self.entry),
            State::Own(_) | State::Template(_) => &self.entry,
        }
    }
}

/// Returns the position of a part in a body; `None` if it is empty.
fn find(body: &[u8], part: &[u8]) -> Option<Range<usize>> {
    if part.is_empty() {
        return None;
    }
    let at = body.windows(part.len()).position(|window| window == part)?;
    Some(at..at + part.len())
}

/// Returns a body with a version in its slot, and the position of the digits.
fn splice(body: &[u8], slot: usize, version: Version) -> (Bytes, Range<usize>) {
    let digits = version.to_string();
    let grown = VERSION_HEAD.len() + digits.len() + VERSION_TAIL.len();
    let mut out = BytesMut::with_capacity(body.len() + grown);
    out.put_slice(&body[..slot]);
    out.put_slice(VERSION_HEAD);
    let start = out.len();
    out.put_slice(digits.as_bytes());
    let end = out.len();
    out.put_slice(VERSION_TAIL);
    out.put_slice(&body[slot..]);
    (out.freeze(), start..end)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::{object, template_values};

    /// A plane of a million objects has as many entries. bench/RESULTS.md names the sum.
    #[test]
    fn an_entry_fits_the_memory_that_it_had() {
        assert!(size_of::<Entry>() <= 176, "{}", size_of::<Entry>());
    }

    #[test]
    fn the_version_is_spliced_in_and_replaced() {
        let key = Key::new("", "configmaps", Some("ns"), "a");
        let versions = Versions {
            version: Version::from_raw(1234),
            created: Version::from_raw(77),
        };
        let entry = Entry::own(
            key,
            Stamp::loaded(versions.version),
            &object("a", "x", "1"),
            versions,
            &Interner::default(),
        );
        let held = ObjectRef::new(entry, template_values());
        assert_eq!(
            held.body(),
            r#"{"metadata":{"name":"a","resourceVersion":"1234","creationTimestamp":"2026-01-01T00:00:00Z","labels":{"l":"x"}},"data":{"k":"1"}}"#
        );
        assert_eq!(held.labels_json(), br#"{"l":"x"}"#);
        assert_eq!(held.created(), Some(Version::from_raw(77)));
        let deleted = held.body_at(Version::from_raw(123_456));
        assert!(
            std::str::from_utf8(&deleted)
                .is_ok_and(|text| text.contains(r#""resourceVersion":"123456","#))
        );
        assert_eq!(deleted.len(), held.body().len() + 2);
    }

    #[test]
    fn a_write_under_way_gains_its_version_for_those_who_hold_it() {
        let key = Key::new("", "configmaps", Some("ns"), "a");
        let entry = Entry::in_flight(key, Stamp::sequenced(1), object("a", "x", "1"));
        let held = ObjectRef::new(Arc::clone(&entry), template_values());
        assert_eq!(held.version(), None);
        assert_eq!(held.labels_json(), br#"{"l":"x"}"#);
        let versions = Versions {
            version: Version::from_raw(9),
            created: Version::from_raw(9),
        };
        let durable = ObjectRef::new(
            entry.made_durable(versions, &Interner::default()),
            template_values(),
        );
        assert_eq!(held.version(), Some(Version::from_raw(9)));
        assert_eq!(held.body(), durable.body());
        assert_eq!(held.stamp(), durable.stamp());
    }
}
