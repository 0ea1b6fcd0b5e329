//! Objects that occur in many documents: each is parsed once, and its members are shared.
//!
//! The sets of fields in `metadata.managedFields` are such objects. They are half of many a document,
//! all objects that one program writes have the same ones, and most writes leave them as they are.

use std::collections::HashMap;
use std::hash::{BuildHasher, RandomState};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use parking_lot::Mutex;

use super::{Map, Str, Value};
use crate::json::{self, Limits};

/// Bytes below which a text is not shared: parsing it costs no more than finding it.
const TEXT_BYTES_MIN: usize = 40;
/// Bytes beyond which a text is not shared, so that a few cannot take all the room.
const TEXT_BYTES_MAX: usize = 16 << 10;
/// Bytes of text that one table shares at most. A tree takes about ten times its text.
const TABLE_BYTES_MAX: usize = 64 << 10;
/// Number of tables. Each has a lock of its own.
const TABLES: usize = 16;
/// Number of hashes that a table remembers of texts that were seen once.
const ONCE: usize = 256;
/// Number of brackets that may be open at once in a shared text.
pub(crate) const DEPTH_MAX: usize = 64;
/// The member whose objects are shared.
pub(crate) const MEMBER: &str = "fieldsV1";

/// An object with its text.
pub(crate) struct SharedObject {
    members: Vec<(Str, Value)>,
    text: Box<str>,
    scope: u64,
    checked: AtomicU64,
}

impl SharedObject {
    pub(super) fn members(&self) -> &[(Str, Value)] {
        &self.members
    }

    /// Returns the text, which is what [`json::write`] makes of the members.
    pub(crate) fn text(&self) -> &str {
        &self.text
    }

    pub(super) fn checked(&self) -> u64 {
        self.checked.load(Ordering::Relaxed)
    }

    pub(super) fn note_checked(&self, number: u64) {
        self.checked.store(number, Ordering::Relaxed);
    }
}

/// Objects by their text. An object is shared once its text has been seen for the second time. The
/// number of objects is bounded: those that were not seen for a while are forgotten.
///
/// Objects are shared within a scope only, so that nobody learns from the time that a document takes
/// what is in the documents of another scope.
pub struct SharedObjects {
    tables: [Mutex<Table>; TABLES],
    hasher: RandomState,
}

/// The shared objects of one scope.
#[derive(Clone, Copy)]
pub struct Sharing<'o> {
    objects: &'o SharedObjects,
    scope: u64,
}

struct Table {
    /// The objects that were seen last, and those that were seen before them.
    halves: [Half; 2],
    /// The hash of a text that was seen once, for each remainder of hashes.
    once: [u64; ONCE],
}

#[derive(Default)]
struct Half {
    objects: HashMap<u64, Arc<SharedObject>>,
    text_bytes: usize,
}

impl Default for SharedObjects {
    fn default() -> Self {
        Self {
            tables: std::array::from_fn(|_| Mutex::new(Table::new())),
            hasher: RandomState::new(),
        }
    }
}

impl SharedObjects {
    /// Returns the shared objects of a scope.
    pub fn within(&self, scope: &str) -> Sharing<'_> {
        Sharing {
            objects: self,
            scope: self.hasher.hash_one(scope),
        }
    }
}

impl Sharing<'_> {
    /// Returns the object with this text, which may be any text; `None` if it is not shared.
    pub(crate) fn get(self, text: &str) -> Option<Map> {
        if !(TEXT_BYTES_MIN..=TEXT_BYTES_MAX).contains(&text.len()) {
            return None;
        }
        let hash = hash(self.scope, text.as_bytes());
        let table = &self.objects.tables[(hash >> 32) as usize % TABLES];
        let mut table = table.lock();
        let object = match table.find(hash) {
            Some(known) => {
                Some(known).filter(|known| known.scope == self.scope && *known.text == *text)
            }
            None if table.is_repeated(hash) => {
                let object = Arc::new(parse(self.scope, text)?);
                table.add(hash, Arc::clone(&object));
                Some(object)
            }
            None => None,
        };
        object.map(Map::from_shared)
    }
}

impl Table {
    fn new() -> Self {
        Self {
            halves: Default::default(),
            once: [0; ONCE],
        }
    }

    fn find(&mut self, hash: u64) -> Option<Arc<SharedObject>> {
        let [newer, older] = &mut self.halves;
        if let Some(known) = newer.objects.get(&hash) {
            return Some(Arc::clone(known));
        }
        let known = older.objects.remove(&hash)?;
        self.add(hash, Arc::clone(&known));
        Some(known)
    }

    /// Returns true if a text with this hash was seen before, and remembers that it is seen now.
    fn is_repeated(&mut self, hash: u64) -> bool {
        let seen = &mut self.once[hash as usize % ONCE];
        std::mem::replace(seen, hash) == hash
    }

    fn add(&mut self, hash: u64, object: Arc<SharedObject>) {
        let bytes = object.text.len();
        if self.halves[0].text_bytes + bytes > TABLE_BYTES_MAX / 2 {
            self.halves[1] = std::mem::take(&mut self.halves[0]);
        }
        let newer = &mut self.halves[0];
        newer.text_bytes += bytes;
        newer.objects.insert(hash, object);
    }
}

/// Returns the object of a text; `None` if the text is not one as [`json::write`] makes it.
fn parse(scope: u64, text: &str) -> Option<SharedObject> {
    let limits = Limits {
        depth_max: DEPTH_MAX,
        ..Limits::default()
    };
    let Ok(Value::Object(object)) = json::parse(text.as_bytes(), &limits).map(|it| it.value) else {
        return None;
    };
    let object = Value::Object(object);
    if json::to_vec(&object) != text.as_bytes() {
        return None;
    }
    let Value::Object(object) = object else {
        return None;
    };
    Some(SharedObject {
        members: object.into_iter().collect(),
        text: text.into(),
        scope,
        checked: AtomicU64::new(0),
    })
}

/// Returns a hash of a text in a scope. Two texts with one hash are not shared both, and nothing worse.
fn hash(scope: u64, text: &[u8]) -> u64 {
    const FACTOR: u64 = 0x9E37_79B9_7F4A_7C15;
    let (words, rest) = text.as_chunks::<8>();
    let mix = |state: u64, word: u64| {
        let product = u128::from(state ^ word) * u128::from(FACTOR);
        (product as u64) ^ (product >> 64) as u64
    };
    let mut state = scope ^ text.len() as u64;
    for word in words {
        state = mix(state, u64::from_le_bytes(*word));
    }
    let mut last = [0; 8];
    last[..rest.len()].copy_from_slice(rest);
    mix(mix(state, u64::from_le_bytes(last)), FACTOR)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::json;

    const TEXT: &str = r#"{"f:metadata":{"f:labels":{"f:app":{}}},"f:spec":{"f:replicas":{}}}"#;

    /// Returns the object of a text that has been seen often enough.
    fn shared(sharing: Sharing<'_>, text: &str) -> Option<Map> {
        (0..3).find_map(|_| sharing.get(text))
    }

    #[test]
    fn an_object_is_shared_from_its_second_time_on_and_is_what_the_parser_makes_of_it() {
        let objects = SharedObjects::default();
        let sharing = objects.within("a");
        assert_eq!(sharing.get(TEXT), None);
        let first = sharing.get(TEXT).expect("it is shared");
        let second = sharing.get(TEXT).expect("it is shared");
        let parsed = json::parse(TEXT.as_bytes(), &Limits::default()).expect("it is JSON");
        assert_eq!(Value::Object(first.clone()), parsed.value);
        assert_eq!(json::to_string(&Value::Object(second.clone())), TEXT);
        first.note_checked(7);
        assert!(second.is_checked(7) && !second.is_checked(8));
    }

    #[test]
    fn a_change_of_one_does_not_reach_the_others() {
        let objects = SharedObjects::default();
        let sharing = objects.within("a");
        let mut first = shared(sharing, TEXT).expect("it is shared");
        first.note_checked(7);
        first.insert("f:status", Value::object());
        assert!(!first.is_checked(7));
        assert_eq!(first.len(), 3);
        let second = sharing.get(TEXT).expect("it is shared");
        assert_eq!(second.len(), 2);
        assert_ne!(first, second);
        first.remove("f:status");
        assert_eq!(first, second);
    }

    #[test]
    fn a_text_that_is_not_as_it_would_be_written_is_not_shared() {
        let objects = SharedObjects::default();
        let sharing = objects.within("a");
        for text in [
            r#"{"f:spec":{"f:replicas":{}},"f:metadata":{"f:labels":{"f:app":{}}}}"#,
            r#"{"f:metadata": {"f:labels":{"f:app":{}}},"f:spec":{"f:replicas":{}}}"#,
            r#"{"f:metadata":{"f:labels":{"f:app":{}}},"f:metadata":{"f:replicas":{}}}"#,
            r#"{"f:metadata":{"f:labels":{"f:app":{}}},"f:spec":{"f:replicas":{}}"#,
            r#"["f:metadata","f:labels","f:app","f:spec","f:replicas","f:template"]"#,
            r#"{"f:metadata":{"f:labels":{"f:app":1.0,"f:part":{},"f:whole":{}}}}"#,
        ] {
            assert_eq!(shared(sharing, text), None, "{text}");
        }
        let deep = format!(
            "{}{}",
            r#"{"f:x":"#.repeat(99),
            "{".to_owned() + &"}".repeat(100)
        );
        assert_eq!(shared(sharing, &deep), None);
    }

    #[test]
    fn a_document_is_read_as_without_sharing_whole_cut_or_damaged() {
        let document = format!(
            r#"{{"metadata":{{"managedFields":[{{"fieldsV1":{TEXT},"manager":"a"}},{{"fieldsV1":{TEXT}}}]}},"data":{{"fieldsV1":"x","k":[{TEXT}]}}}}"#
        );
        let objects = SharedObjects::default();
        let sharing = objects.within("a");
        let limits = Limits::default();
        let read = |bytes: &[u8]| {
            let shared = json::parse_sharing(bytes, &limits, Some(sharing));
            assert_eq!(shared, json::parse(bytes, &limits), "{bytes:?}");
            shared
        };
        let parsed = read(document.as_bytes()).and_then(|_| read(document.as_bytes()));
        let entries = parsed.expect("it is JSON").value;
        let entries = entries.items_at(&["metadata", "managedFields"]).iter();
        assert!(entries.clone().count() == 2);
        for entry in entries {
            let set = entry["fieldsV1"].as_object().expect("it is an object");
            assert!(set.shared().is_some());
        }
        for at in 0..document.len() {
            let _ = read(&document.as_bytes()[..at]);
            for byte in b"\"{}[],:\\x0 \n" {
                let mut damaged = document.clone().into_bytes();
                damaged[at] = *byte;
                let _ = read(&damaged);
            }
        }
    }

    #[test]
    fn scopes_do_not_share() {
        let objects = SharedObjects::default();
        let one = shared(objects.within("a"), TEXT).expect("it is shared");
        one.note_checked(7);
        assert_eq!(objects.within("b").get(TEXT), None);
        let other = shared(objects.within("b"), TEXT).expect("it is shared");
        assert!(!other.is_checked(7));
        assert_eq!(one, other);
    }

    #[test]
    fn what_is_kept_is_bounded_and_what_is_used_stays() {
        let objects = SharedObjects::default();
        let sharing = objects.within("a");
        let filler = "x".repeat(1000);
        for at in 0..4000 {
            assert!(shared(sharing, TEXT).is_some());
            assert!(shared(sharing, &format!(r#"{{"f:{filler}{at}":{{}}}}"#)).is_some());
        }
        assert!(sharing.get(TEXT).is_some());
        for table in &objects.tables {
            let table = table.lock();
            let bytes = table.halves.iter().flat_map(|half| half.objects.values());
            assert!(bytes.map(|object| object.text.len()).sum::<usize>() <= TABLE_BYTES_MAX);
        }
    }
}
