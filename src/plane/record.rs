//! The form of a plane in the store: its keys, and the header of each value.
//!
//! A value is a header and a body without `resourceVersion`. Every part of a transaction can be
//! read back as the same events with the same versions: a put carries its index and the version it
//! replaced; a part with a delete ends with the plane's head record, which carries the part's first
//! index and the versions of the deleted objects. An external write, which does not go through the
//! sequencer, is marked as such and carries no version: it has a transaction of its own, whose
//! revision is enough. In a copy of a store the revisions are others, so each value that the copy
//! wrote also has its event's point; a write after the copy needs none.

use bytes::{Buf, BufMut, Bytes, BytesMut};
use polyplane_apimachinery::Str;
use polyplane_sealing::{NONCE_BYTES, TAG_BYTES};
use polyplane_storage::{Revision, prefix_end};

use crate::key::{Key, Prefix};
use crate::layers::chain::record::StepsRecord;
use crate::packed::unpack;
use crate::sealing::keys_record::KeysRecord;
use crate::state::entry::{Flags, NewObject, Versions};
use crate::version::{Base, Point, Version};

/// The number of the form of all values but steps with a fold.
const FORMAT: u8 = 1;
/// The number of the form of steps of which the first are folded. An older program that does not
/// know this number refuses the value.
const FOLDED: u8 = 2;
/// The number of the form of an object whose body is packed.
const PACKED: u8 = 3;
/// The number of the form of an object whose body is sealed, and of the plane's data keys.
const SEALED: u8 = 4;
/// The number of the form of an object whose body is packed and sealed.
const SEALED_PACKED: u8 = 5;
/// The newest form that this program reads.
const NEWEST: u8 = SEALED_PACKED;
/// Added to the number of the form in a value that a copy of the store wrote: the event's point stands
/// behind the index, because the revision in the copy is another one. A program that does not know
/// copies takes the sum for a newer form.
const COPIED: u8 = 0x80;
const OBJECT: u8 = 0;
const TOMBSTONE: u8 = 1;
const HEAD: u8 = 2;
const EXTERNAL: u8 = 3;
const MARKER: u8 = 4;
const STEPS: u8 = 5;
const DATA_KEYS: u8 = 6;
/// Bytes of the format, the kind and the index, with which every value starts.
const START_LEN: usize = 3;
/// Bytes of the point in a copied value.
const POINT_LEN: usize = 8;
/// Bytes between the start of an object's value and its storage version: flags, two versions,
/// expiry, slot, labels.
const OBJECT_LEN: usize = 1 + 8 + 8 + 8 + 4 + 4 + 4 + 1;
/// Bytes of the body's length, which stands before a packed body.
const BODY_BYTES_LEN: usize = 4;

/// The store keys of one plane.
#[derive(Debug, Clone)]
pub(crate) struct KeySpace {
    objects: Bytes,
    head: Bytes,
    steps: Bytes,
    data_keys: Bytes,
    all: Bytes,
}

/// The meaning of a store key of a plane.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum StoredKey {
    /// An object, or a tombstone that hides a layer's object.
    Object(Key),
    /// The first index and the deletes of the newest part with a delete.
    Head,
    /// The layer steps that the plane has taken. The key sorts before all objects, so that a load
    /// sees it first.
    Steps,
    /// The plane's data keys. The key sorts before all sealed records, so that a load sees it first.
    DataKeys,
}

impl KeySpace {
    pub(crate) fn new(plane: &str) -> Self {
        Self {
            objects: format!("p/{plane}/o/").into(),
            head: format!("p/{plane}/h").into(),
            steps: format!("p/{plane}/l").into(),
            data_keys: format!("p/{plane}/k").into(),
            all: format!("p/{plane}/").into(),
        }
    }

    /// Returns the bounds of everything the plane has in the store.
    pub(crate) fn bounds(&self) -> (Bytes, Bytes) {
        (self.all.clone(), prefix_end(&self.all))
    }

    /// Returns the number of bytes that a store key has beside the object's key.
    pub(crate) fn overhead(&self) -> usize {
        self.objects.len()
    }

    pub(crate) fn head(&self) -> Bytes {
        self.head.clone()
    }

    pub(crate) fn steps(&self) -> Bytes {
        self.steps.clone()
    }

    pub(crate) fn data_keys(&self) -> Bytes {
        self.data_keys.clone()
    }

    pub(crate) fn object(&self, key: &Key) -> Bytes {
        self.below(key.as_bytes())
    }

    /// Returns the common beginning of the store keys of all objects under a prefix.
    pub(crate) fn prefix(&self, prefix: &Prefix) -> Bytes {
        self.below(prefix.as_bytes())
    }

    fn below(&self, key: &[u8]) -> Bytes {
        let mut bytes = BytesMut::with_capacity(self.objects.len() + key.len());
        bytes.put_slice(&self.objects);
        bytes.put_slice(key);
        bytes.freeze()
    }

    /// Returns the meaning of a store key.
    pub(crate) fn classify(&self, stored: &[u8]) -> Result<StoredKey, RecordError> {
        if stored == &*self.head {
            return Ok(StoredKey::Head);
        }
        if stored == &*self.steps {
            return Ok(StoredKey::Steps);
        }
        if stored == &*self.data_keys {
            return Ok(StoredKey::DataKeys);
        }
        stored
            .strip_prefix(&*self.objects)
            .and_then(Key::from_bytes)
            .map(StoredKey::Object)
            .ok_or(RecordError::Key)
    }

    /// Returns the key of the object that a store key belongs to; `None` if the store key is not an
    /// object's.
    pub(crate) fn key_of(&self, stored: &[u8]) -> Result<Option<Key>, RecordError> {
        match self.classify(stored)? {
            StoredKey::Object(key) => Ok(Some(key)),
            StoredKey::Head | StoredKey::Steps | StoredKey::DataKeys => Ok(None),
        }
    }
}

/// The reason why a value cannot be read.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum RecordError {
    /// A newer program wrote the value.
    #[error("a value has format {0}, this program reads up to {NEWEST}")]
    Newer(u8),
    /// The value is not one that this program could have written.
    #[error("a value is damaged")]
    Damaged,
    /// A key of the plane's range has no meaning.
    #[error("a key in the range of the control plane has no meaning")]
    Key,
    /// The value is sealed, and the plane's data keys are not known.
    #[error("a value is sealed, and the control plane has no data key")]
    Sealed,
    /// The value is sealed and does not open.
    #[error("a sealed value was changed, or belongs to another place")]
    Unopened,
    /// The value is sealed under a key that the plane does not have any more.
    #[error("a value is sealed under data key {0}, which the control plane does not have any more")]
    KeyGone(u32),
}

/// The header of a stored object: the versions before its event, and the event's index in the
/// transaction.
#[derive(Debug, Clone, Copy)]
pub(crate) struct EventHeader {
    pub(crate) index: u8,
    /// The version of the object that was replaced; zero if there was none.
    pub(crate) previous: Version,
    /// The version of the object's first write; zero if this event is the first write.
    pub(crate) created: Version,
}

/// The decoded value of a store key.
#[derive(Debug)]
pub(crate) enum Record {
    Object {
        header: EventHeader,
        object: NewObject,
    },
    Tombstone {
        index: u8,
        previous: Version,
    },
    Head {
        index: u8,
        deleted: Vec<Version>,
    },
    /// An object that another replica wrote, past the sequencer.
    External(NewObject),
    /// A plane with external writers puts this with each commit, to distinguish its own commits
    /// from theirs in the store's watch.
    Marker,
    /// The layer steps that a plane has taken. This put is the newest commit of them.
    Steps {
        index: u8,
        steps: StepsRecord,
    },
    /// The plane's data keys, wrapped.
    DataKeys(KeysRecord),
}

impl EventHeader {
    /// Returns the versions of the object, given the version of its event.
    pub(crate) fn versions(&self, version: Version) -> Versions {
        let created = if self.created == Version::ZERO {
            version
        } else {
            self.created
        };
        Versions { version, created }
    }
}

/// Returns the number of bytes of an object's value, given the packed form of its body if it has
/// one.
pub(crate) fn value_len(object: &NewObject, packed: Option<&Bytes>) -> usize {
    let header = START_LEN + OBJECT_LEN + object.storage_version.len();
    header + packed.map_or(object.body.len(), |packed| BODY_BYTES_LEN + packed.len())
}

/// Returns the record of an object, with its body as it is.
pub(crate) fn encode_object(header: EventHeader, object: &NewObject) -> Bytes {
    encode_body(OBJECT, header, object, None)
}

/// Returns the record of an object with the packed form of its body. A program below the level
/// [`PACKED_LEVEL`](crate::PACKED_LEVEL) refuses it.
pub(crate) fn encode_packed(header: EventHeader, object: &NewObject, packed: &Bytes) -> Bytes {
    encode_body(OBJECT, header, object, Some(packed))
}

/// Returns the record of an external write.
pub(crate) fn encode_external(object: &NewObject) -> Bytes {
    let header = EventHeader {
        index: 0,
        previous: Version::ZERO,
        created: Version::ZERO,
    };
    encode_body(EXTERNAL, header, object, None)
}

pub(crate) fn encode_marker() -> Bytes {
    Bytes::from_static(&[FORMAT, MARKER, 0])
}

fn encode_body(kind: u8, header: EventHeader, object: &NewObject, packed: Option<&Bytes>) -> Bytes {
    let offset = |at: usize| u32::try_from(at).expect("bodies are bounded far below 4 GiB");
    let mut out = BytesMut::with_capacity(value_len(object, packed));
    out.put_u8(packed.map_or(FORMAT, |_| PACKED));
    out.put_u8(kind);
    out.put_u8(header.index);
    out.put_u8(object.flags.0);
    out.put_u64(header.previous.raw());
    out.put_u64(header.created.raw());
    out.put_u64(object.expires.unwrap_or_default());
    out.put_u32(offset(object.version_slot));
    let labels = object.labels.clone().unwrap_or_default();
    out.put_u32(offset(labels.start));
    out.put_u32(offset(labels.len()));
    out.put_u8(u8::try_from(object.storage_version.len()).expect("API versions are short"));
    out.put_slice(object.storage_version.as_bytes());
    match packed {
        Some(packed) => {
            out.put_u32(offset(object.body.len()));
            out.put_slice(packed);
        }
        None => out.put_slice(&object.body),
    }
    out.freeze()
}

pub(crate) fn encode_tombstone(index: u8, previous: Version) -> Bytes {
    let mut out = BytesMut::with_capacity(START_LEN + 8);
    start(&mut out, TOMBSTONE, index);
    out.put_u64(previous.raw());
    out.freeze()
}

pub(crate) fn encode_head(index: u8, deleted: &[Version]) -> Bytes {
    let mut out = BytesMut::with_capacity(START_LEN + 8 * deleted.len());
    start(&mut out, HEAD, index);
    for version in deleted {
        out.put_u64(version.raw());
    }
    out.freeze()
}

/// Returns the record of a plane's steps. The newest commit in it is the one that puts the record;
/// its version indexes begin at `index`.
pub(crate) fn encode_steps(index: u8, steps: &StepsRecord) -> Bytes {
    let mut out = BytesMut::new();
    out.put_u8(match steps.fold {
        Some(_) => FOLDED,
        None => FORMAT,
    });
    out.put_u8(STEPS);
    out.put_u8(index);
    steps.write(&mut out);
    out.freeze()
}

/// Returns the record of a plane's data keys.
pub(crate) fn encode_data_keys(keys: &KeysRecord) -> Bytes {
    let mut out = BytesMut::new();
    out.put_u8(SEALED);
    out.put_u8(DATA_KEYS);
    out.put_u8(0);
    keys.write(&mut out);
    out.freeze()
}

/// Returns the clear head of an object's value, with the number of the sealed form, and the rest, which
/// is to be sealed.
///
/// # Panics
/// Panics if the value is not that of a plane's own object, as [`encode_object`] returns it.
pub(crate) fn with_sealed_form(value: &Bytes) -> (Bytes, &[u8]) {
    let head_len = head_len(value).expect("it is an object's value");
    let mut head = BytesMut::from(&value[..head_len]);
    head[0] = match value[0] {
        FORMAT => SEALED,
        _ => SEALED_PACKED,
    };
    (head.freeze(), &value[head_len..])
}

/// The parts of a sealed value.
pub(crate) struct SealedParts<'a> {
    /// What stands before the body in the same value in clear.
    pub(crate) clear_start: Bytes,
    /// The head that the body is bound to.
    pub(crate) head: Bytes,
    /// The number of the data key.
    pub(crate) number: u32,
    pub(crate) nonce: [u8; NONCE_BYTES],
    /// The sealed body and its tag.
    pub(crate) sealed: &'a [u8],
}

/// Returns the parts of a value if it is sealed.
pub(crate) fn split_sealed(value: &Bytes) -> Result<Option<SealedParts<'_>>, RecordError> {
    let [format, OBJECT, _, ..] = value[..] else {
        return Ok(None);
    };
    let clear = match format & !COPIED {
        SEALED => FORMAT,
        SEALED_PACKED => PACKED,
        _ => return Ok(None),
    };
    let copied_len = if format & COPIED != 0 { POINT_LEN } else { 0 };
    let mut head = BytesMut::from(&value[..START_LEN]);
    head[0] = format & !COPIED;
    let rest = value.get(START_LEN + copied_len..);
    head.put_slice(rest.ok_or(RecordError::Damaged)?);
    let head = head.freeze();
    let head = head.slice(..head_len(&head)?);
    let start_len = head.len() + copied_len;
    let mut clear_start = BytesMut::from(&value[..start_len]);
    clear_start[0] = clear | format & COPIED;
    let mut rest = &value[start_len..];
    if rest.len() < 4 + NONCE_BYTES + TAG_BYTES {
        return Err(RecordError::Damaged);
    }
    let number = rest.get_u32();
    let mut nonce = [0; NONCE_BYTES];
    rest.copy_to_slice(&mut nonce);
    Ok(Some(SealedParts {
        clear_start: clear_start.freeze(),
        head,
        number,
        nonce,
        sealed: rest,
    }))
}

/// Returns the bytes before the body in an object's value that no copy wrote.
fn head_len(value: &[u8]) -> Result<usize, RecordError> {
    let version_len = value.get(START_LEN + OBJECT_LEN - 1);
    let head_len = START_LEN + OBJECT_LEN + usize::from(*version_len.ok_or(RecordError::Damaged)?);
    match value.len() >= head_len {
        true => Ok(head_len),
        false => Err(RecordError::Damaged),
    }
}

fn start(out: &mut BytesMut, kind: u8, index: u8) {
    out.put_u8(FORMAT);
    out.put_u8(kind);
    out.put_u8(index);
}

/// A decoded value, and its event's point if the value was copied from another store.
#[derive(Debug)]
pub(crate) struct Stored {
    pub(crate) record: Record,
    copied: Option<Point>,
}

impl Stored {
    /// Returns the point of the event that put the value at a revision.
    pub(crate) fn point(&self, base: Base, modified: Revision) -> Point {
        self.copied.unwrap_or(Point::of(base, modified))
    }
}

/// Returns the point that a value names if it was copied from another store, without decoding the
/// rest.
pub(crate) fn copied_point(value: &[u8]) -> Option<Point> {
    let copied = value.first().is_some_and(|format| format & COPIED != 0);
    let point = value.get(START_LEN..START_LEN + POINT_LEN)?;
    let point = u64::from_be_bytes(point.try_into().ok()?);
    copied.then(|| Point::from_number(point)).flatten()
}

/// Returns a value as a copy of its store has it, with the event's point: `None` for a marker, which
/// only distinguishes the commits of an owner. The rest of the value is not looked at.
pub(crate) fn encode_copied(
    base: Base,
    modified: Revision,
    value: &Bytes,
) -> Result<Option<Bytes>, RecordError> {
    let [format, kind, _, ..] = value[..] else {
        return Err(RecordError::Damaged);
    };
    match (format & !COPIED, kind) {
        (0, _) => return Err(RecordError::Damaged),
        (form, _) if form > NEWEST => return Err(RecordError::Newer(format)),
        (_, MARKER) => return Ok(None),
        _ => {}
    }
    if format & COPIED != 0 {
        return Ok(Some(value.clone()));
    }
    let mut out = BytesMut::with_capacity(value.len() + POINT_LEN);
    out.put_u8(format | COPIED);
    out.put_slice(&value[1..START_LEN]);
    out.put_u64(Point::of(base, modified).number());
    out.put_slice(&value[START_LEN..]);
    Ok(Some(out.freeze()))
}

pub(crate) fn decode(value: &Bytes) -> Result<Record, RecordError> {
    decode_stored(value).map(|stored| stored.record)
}

pub(crate) fn decode_stored(value: &Bytes) -> Result<Stored, RecordError> {
    let mut rest = value.clone();
    if rest.len() < START_LEN {
        return Err(RecordError::Damaged);
    }
    let format = rest.get_u8();
    if format & !COPIED > NEWEST {
        return Err(RecordError::Newer(format));
    }
    let start = (rest.get_u8(), rest.get_u8());
    let mut copied = None;
    if format & COPIED != 0 {
        copied = Some(copied_point(value).ok_or(RecordError::Damaged)?);
        rest.advance(POINT_LEN);
    }
    let record = decode_record(format & !COPIED, start, rest)?;
    Ok(Stored { record, copied })
}

/// Decodes what stands behind the start, which has this kind and index.
fn decode_record(
    format: u8,
    (kind, index): (u8, u8),
    mut rest: Bytes,
) -> Result<Record, RecordError> {
    match kind {
        OBJECT if format == FORMAT || format == PACKED => {
            let (header, object) = decode_object(index, rest, format == PACKED)?;
            Ok(Record::Object { header, object })
        }
        OBJECT if format == SEALED || format == SEALED_PACKED => Err(RecordError::Sealed),
        DATA_KEYS if format == SEALED => KeysRecord::read(rest)
            .map(Record::DataKeys)
            .ok_or(RecordError::Damaged),
        EXTERNAL if format == FORMAT => {
            let (_, object) = decode_object(index, rest, false)?;
            Ok(Record::External(object))
        }
        MARKER if format == FORMAT && rest.is_empty() => Ok(Record::Marker),
        STEPS if format == FORMAT || format == FOLDED => {
            let steps = match format {
                FOLDED => StepsRecord::read_folded(&mut rest),
                _ => StepsRecord::read(&mut rest),
            };
            let steps = steps.ok_or(RecordError::Damaged)?;
            if rest.has_remaining() {
                return Err(RecordError::Damaged);
            }
            Ok(Record::Steps { index, steps })
        }
        TOMBSTONE if format == FORMAT && rest.len() == 8 => Ok(Record::Tombstone {
            index,
            previous: Version::from_raw(rest.get_u64()),
        }),
        HEAD if format == FORMAT && rest.len().is_multiple_of(8) => {
            let mut deleted = Vec::with_capacity(rest.len() / 8);
            while rest.has_remaining() {
                deleted.push(Version::from_raw(rest.get_u64()));
            }
            Ok(Record::Head { index, deleted })
        }
        _ => Err(RecordError::Damaged),
    }
}

fn decode_object(
    index: u8,
    mut rest: Bytes,
    is_packed: bool,
) -> Result<(EventHeader, NewObject), RecordError> {
    if rest.len() < OBJECT_LEN {
        return Err(RecordError::Damaged);
    }
    let flags = Flags(rest.get_u8());
    let previous = Version::from_raw(rest.get_u64());
    let created = Version::from_raw(rest.get_u64());
    let expires = rest.get_u64();
    let version_slot = rest.get_u32() as usize;
    let labels_start = rest.get_u32() as usize;
    let labels_len = rest.get_u32() as usize;
    let version_len = rest.get_u8() as usize;
    if rest.len() < version_len {
        return Err(RecordError::Damaged);
    }
    let version_text = rest.split_to(version_len);
    let storage_version = std::str::from_utf8(&version_text).map_err(|_| RecordError::Damaged)?;
    let body = match is_packed {
        true => unpacked(rest)?,
        false => rest,
    };
    if version_slot > body.len() || labels_start + labels_len > body.len() {
        return Err(RecordError::Damaged);
    }
    let object = NewObject {
        version_slot,
        labels: (labels_len > 0).then(|| labels_start..labels_start + labels_len),
        storage_version: Str::from(storage_version),
        expires: (expires != 0).then_some(expires),
        flags,
        body,
    };
    let header = EventHeader {
        index,
        previous,
        created,
    };
    Ok((header, object))
}

/// Returns the body, given its length and its packed form.
fn unpacked(mut rest: Bytes) -> Result<Bytes, RecordError> {
    if rest.len() < BODY_BYTES_LEN {
        return Err(RecordError::Damaged);
    }
    let body_bytes = rest.get_u32() as usize;
    unpack(&rest, body_bytes).ok_or(RecordError::Damaged)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::packed::pack;
    use crate::testing::object;

    #[test]
    fn values_read_back_as_written() {
        let mut wanted = object("a", "x", "1");
        wanted.expires = Some(99);
        wanted.flags = Flags::TERMINATING;
        let header = EventHeader {
            index: 7,
            previous: Version::from_raw(5),
            created: Version::from_raw(3),
        };
        let value = encode_object(header, &wanted);
        let Ok(Record::Object { header, object }) = decode(&value) else {
            panic!("an object was written");
        };
        assert_eq!(
            (header.index, header.previous.raw(), header.created.raw()),
            (7, 5, 3)
        );
        assert_eq!(object.body, wanted.body);
        assert_eq!(object.labels, wanted.labels);
        assert_eq!(object.version_slot, wanted.version_slot);
        assert_eq!(
            (object.expires, object.flags),
            (Some(99), Flags::TERMINATING)
        );
        for len in 0..START_LEN + OBJECT_LEN {
            assert!(decode(&value.slice(..len)).is_err(), "{len} bytes of it");
        }

        let copied = encode_copied(Base(100), Revision(9), &value).expect("it decodes");
        let copied = copied.expect("it is the plane's");
        assert_eq!(copied.len(), value.len() + POINT_LEN);
        let stored = decode_stored(&copied).expect("it decodes");
        let point = stored.point(Base(7), Revision(1));
        assert_eq!(point, Point::of(Base(100), Revision(9)));
        assert_eq!(copied_point(&copied), Some(point));
        let again = encode_copied(Base(5), Revision(5), &copied);
        assert_eq!(
            again,
            Ok(Some(copied)),
            "a copy of a copy has the first point"
        );
        assert_eq!(copied_point(&value), None);
        let none = encode_copied(Base(0), Revision(9), &encode_marker());
        assert_eq!(none, Ok(None));

        let head = encode_head(4, &[Version::from_raw(8), Version::from_raw(9)]);
        let Ok(Record::Head { index: 4, deleted }) = decode(&head) else {
            panic!("a head record was written");
        };
        assert_eq!(deleted, [Version::from_raw(8), Version::from_raw(9)]);
    }

    #[test]
    fn a_packed_body_reads_back_and_its_damage_is_reported() {
        let wanted = object("a", "x", &"value ".repeat(2000));
        let header = EventHeader {
            index: 7,
            previous: Version::from_raw(5),
            created: Version::from_raw(3),
        };
        let packed = pack(&wanted.body).expect("it shrinks");
        let value = encode_packed(header, &wanted, &packed);
        assert_eq!(value.len(), value_len(&wanted, Some(&packed)));
        assert!(value.len() < wanted.body.len() / 10);
        let Ok(Record::Object { header, object }) = decode(&value) else {
            panic!("an object was written");
        };
        assert_eq!((header.index, header.previous.raw()), (7, 5));
        assert_eq!(object.body, wanted.body);
        assert_eq!(object.labels, wanted.labels);
        assert_eq!(object.version_slot, wanted.version_slot);
        for len in 0..value.len() {
            let cut = decode(&value.slice(..len));
            assert_eq!(cut.err(), Some(RecordError::Damaged), "{len} bytes of it");
        }
        let body_bytes_at = value.len() - packed.len() - BODY_BYTES_LEN;
        for (at, bit) in
            (body_bytes_at..value.len()).flat_map(|at| (0..8).map(move |bit| (at, bit)))
        {
            let mut damaged = BytesMut::from(&value[..]);
            damaged[at] ^= 1 << bit;
            match decode(&damaged.freeze()) {
                Err(error) => assert_eq!(error, RecordError::Damaged),
                // A bit that means nothing to zstd.
                Ok(Record::Object { object, .. }) => assert_eq!(object.body, wanted.body),
                Ok(other) => panic!("{other:?}"),
            }
        }
    }

    #[test]
    fn a_newer_format_is_refused_by_name() {
        let mut value = BytesMut::from(&encode_tombstone(0, Version::ZERO)[..]);
        value[0] = NEWEST + 1;
        let newer = RecordError::Newer(NEWEST + 1);
        assert_eq!(decode(&value.freeze()).err(), Some(newer));
    }

    #[test]
    fn the_keys_of_two_planes_never_meet() {
        let a = KeySpace::new("a");
        let (start, end) = a.bounds();
        let key = Key::new("", "configmaps", Some("ns"), "x");
        let inside = |stored: &Bytes| start <= *stored && *stored < end;
        assert!(inside(&a.object(&key)) && inside(&a.head()));
        for other in ["a0", "A", "a-", "b"] {
            assert!(!inside(&KeySpace::new(other).object(&key)), "{other}");
        }
        assert_eq!(a.key_of(&a.object(&key)), Ok(Some(key)));
        assert_eq!(a.classify(&a.head()), Ok(StoredKey::Head));
        assert_eq!(a.classify(&a.steps()), Ok(StoredKey::Steps));
        assert!(inside(&a.steps()) && a.steps() < a.object(&Key::new("", "a", None, "a")));
    }
}
