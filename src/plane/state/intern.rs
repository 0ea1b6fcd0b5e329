//! Large parts of bodies, shared by content: the schema of a repeated CRD, the data of a repeated
//! config map, and the copy of either inside an annotation.
//!
//! A part is shared when it is seen for the second time, so that an object like no other stays in
//! one piece.
//!
//! Knows the outline of canonical JSON, metadata first, and nothing of its meaning.

use std::collections::{HashMap, HashSet};
use std::hash::{BuildHasher, RandomState};
use std::ops::Range;
use std::sync::{Arc, Weak};

use bytes::{BufMut, Bytes, BytesMut};
use parking_lot::Mutex;

use crate::memory::{Memory, Share};

/// Parts smaller than this are not shared: an entry of the table would cost as much as sharing
/// saves.
pub(crate) const PART_BYTES_MIN: usize = 1 << 10;
/// Number of hashes that are remembered of parts seen once. Beyond this number the older half is
/// forgotten, which bounds the memory for parts that never repeat.
const ONCE_MAX: usize = 1 << 16;
/// Estimated bytes of an entry of the table: the part's counts, the reference, the hash, and room
/// to grow.
const PLACE_BYTES: usize = 128;
/// Number of entries at which the table is swept for the first time.
const SWEEP_FIRST: usize = 1 << 10;

/// The parts that bodies share.
#[derive(Debug, Default)]
pub(crate) struct Interner {
    hasher: RandomState,
    table: Mutex<Table>,
    memory: Arc<Memory>,
}

#[derive(Debug, Default)]
struct Table {
    parts: HashMap<u64, Vec<Weak<Part>>>,
    /// Hashes of parts seen once, the newer and the older half.
    once: [HashSet<u64>; 2],
    /// Number of entries at which unused parts are swept out of the table.
    sweep_at: usize,
    /// Number of parts that were not added since the last sweep because the table was full.
    refused: usize,
    /// Bytes that are counted in the memory budget.
    counted_bytes: usize,
}

/// A body whose large parts are shared.
#[derive(Debug)]
pub(crate) struct Rope {
    slices: Box<[Slice]>,
    len: usize,
}

#[derive(Debug)]
enum Slice {
    Own(Box<[u8]>),
    Shared(Arc<Part>),
}

/// A part that bodies share. The bytes have an allocation of their own, because the table's weak
/// reference keeps this struct's memory from being freed, and the bytes must not be part of that.
#[derive(Debug)]
struct Part(Box<[u8]>);

impl Interner {
    pub(crate) fn new(memory: &Arc<Memory>) -> Arc<Self> {
        Arc::new(Self {
            memory: Arc::clone(memory),
            ..Self::default()
        })
    }

    /// Returns the body with its large parts shared; `None` if it has no large parts.
    pub(crate) fn rope(&self, body: &[u8]) -> Option<Rope> {
        if body.len() < PART_BYTES_MIN {
            return None;
        }
        let mut slices = Vec::new();
        let mut at = 0;
        for span in large_parts(body) {
            let Some(part) = self.share(&body[span.clone()]) else {
                continue;
            };
            if at < span.start {
                slices.push(Slice::Own(body[at..span.start].into()));
            }
            at = span.end;
            slices.push(Slice::Shared(part));
        }
        if slices.is_empty() {
            return None;
        }
        slices.push(Slice::Own(body[at..].into()));
        Some(Rope {
            slices: slices.into(),
            len: body.len(),
        })
    }

    fn share(&self, part: &[u8]) -> Option<Arc<Part>> {
        let hash = self.hasher.hash_one(part);
        let mut table = self.table.lock();
        let known = table.parts.get(&hash).into_iter().flatten();
        if let Some(known) = known
            .filter_map(Weak::upgrade)
            .find(|known| *known.0 == *part)
        {
            return Some(known);
        }
        if !table.seen_before(hash) {
            return None;
        }
        if !table.has_room(self.memory.limit(Share::Interner) / PLACE_BYTES) {
            self.memory.was_full(Share::Interner);
            return None;
        }
        let new = Arc::new(Part(part.into()));
        let weak = Arc::downgrade(&new);
        table.parts.entry(hash).or_default().push(weak);
        let bytes = table.parts.len() * PLACE_BYTES;
        self.memory
            .correct(Share::Interner, &mut table.counted_bytes, bytes);
        Some(new)
    }
}

impl Table {
    /// Returns whether one more part may be added to at most `parts_max`. Removes unused parts when
    /// the table has doubled. A full table is swept only after a number of refusals, because a
    /// sweep at each would be slow.
    fn has_room(&mut self, parts_max: usize) -> bool {
        let places = self.parts.len();
        if places >= parts_max {
            self.refused += 1;
            if self.refused * 16 < places {
                return false;
            }
        } else if places < self.sweep_at.max(SWEEP_FIRST) {
            return true;
        }
        self.parts.retain(|_, parts| {
            parts.retain(|part| part.strong_count() > 0);
            !parts.is_empty()
        });
        self.sweep_at = 2 * self.parts.len();
        self.refused = 0;
        self.parts.len() < parts_max
    }

    fn seen_before(&mut self, hash: u64) -> bool {
        if self.once.iter().any(|half| half.contains(&hash)) {
            return true;
        }
        if self.once[0].len() >= ONCE_MAX / 2 {
            self.once.swap(0, 1);
            self.once[0].clear();
        }
        self.once[0].insert(hash);
        false
    }
}

impl Rope {
    pub(crate) fn len(&self) -> usize {
        self.len
    }

    /// Returns the number of bytes that only this rope has.
    pub(crate) fn own_len(&self) -> usize {
        let own = |slice: &Slice| match slice {
            Slice::Own(bytes) => bytes.len(),
            Slice::Shared(_) => size_of::<Slice>(),
        };
        self.slices.iter().map(own).sum()
    }

    /// Returns the address and length of each shared part.
    pub(crate) fn shared_parts(&self) -> impl Iterator<Item = (usize, usize)> {
        self.slices.iter().filter_map(|slice| match slice {
            Slice::Shared(part) => Some((Arc::as_ptr(part) as usize, part.0.len())),
            Slice::Own(_) => None,
        })
    }

    /// Returns the body in one piece.
    pub(crate) fn whole(&self) -> Bytes {
        let mut out = BytesMut::with_capacity(self.len);
        self.append_to(&mut out);
        out.freeze()
    }

    pub(crate) fn append_to(&self, out: &mut impl BufMut) {
        for slice in &self.slices {
            match slice {
                Slice::Own(bytes) => out.put_slice(bytes),
                Slice::Shared(part) => out.put_slice(&part.0),
            }
        }
    }
}

/// Returns the parts of a body that are worth sharing: its members other than metadata, and strings
/// inside metadata.
fn large_parts(body: &[u8]) -> Vec<Range<usize>> {
    let mut spans = Vec::new();
    let mut keep = |span: Range<usize>| {
        if span.len() >= PART_BYTES_MIN {
            spans.push(span);
        }
    };
    let (mut at, mut depth) = (0, 0_usize);
    let mut in_metadata = true;
    let mut value = None;
    while let Some(&byte) = body.get(at) {
        match byte {
            b'"' => {
                let end = string_end(body, at);
                if in_metadata {
                    keep(at..end);
                }
                // What follows a name or a value below the members of the object begins or ends
                // nothing.
                at = match body.get(end) {
                    Some(b':' | b',') if depth > 1 => end + 1,
                    _ => end,
                };
                continue;
            }
            b'{' | b'[' => depth += 1,
            b'}' | b']' => depth = depth.saturating_sub(1),
            b':' if depth == 1 => value = Some(at + 1),
            b',' => {}
            _ => {
                at += 1;
                continue;
            }
        }
        let ends = (depth == 1 && byte == b',') || depth == 0;
        if ends && let Some(start) = value.take() {
            if !in_metadata {
                keep(start..at);
            }
            in_metadata = false;
        }
        at += 1;
    }
    spans
}

/// Returns the offset behind the quote that closes the string that opens at `start`.
fn string_end(body: &[u8], start: usize) -> usize {
    let mut at = start + 1;
    while at < body.len() {
        at += polyplane_apimachinery::json::plain_len(&body[at..]);
        match body.get(at) {
            Some(b'"') => return at + 1,
            Some(b'\\') => at += 2,
            Some(_) => at += 1,
            None => {}
        }
    }
    body.len()
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn body(name: &str, annotation: &str, data: &str) -> String {
        let text = |text: &str| serde_json::Value::from(text).to_string();
        format!(
            r#"{{"metadata":{{"name":{},"annotations":{{"a":{}}}}},"spec":{{"x":[1,{{"y":{}}}]}},"status":{{}}}}"#,
            text(name),
            text(annotation),
            text(data)
        )
    }

    #[test]
    fn what_repeats_is_there_once() {
        let interner = Interner::default();
        let (annotation, data) = ("a\"\\".repeat(1000), "{[,:".repeat(1000));
        let first = body("one", &annotation, &data);
        let second = body("another", &annotation, &data);
        assert!(interner.rope(first.as_bytes()).is_none(), "seen once");
        let ropes = [&first, &second].map(|body| interner.rope(body.as_bytes()));
        let [Some(one), Some(two)] = ropes else {
            panic!("both have large parts");
        };
        assert_eq!(one.whole(), first);
        assert_eq!(two.whole(), second);
        assert_eq!(one.len(), first.len());
        assert!(one.own_len() < 256, "{}", one.own_len());
        let shared = |rope: &Rope| rope.shared_parts().collect::<Vec<_>>();
        assert_eq!(shared(&one).len(), 2);
        assert_eq!(shared(&one), shared(&two));
        assert!(interner.rope(body("small", "a", "b").as_bytes()).is_none());
    }

    #[test]
    fn what_nobody_holds_is_forgotten() {
        let interner = Interner::default();
        for at in 0..10 * SWEEP_FIRST {
            let text = body("one", "", &format!("{at:02000}"));
            assert!(interner.rope(text.as_bytes()).is_none());
            assert!(interner.rope(text.as_bytes()).is_some());
        }
        assert!(interner.table.lock().parts.len() <= SWEEP_FIRST);
    }

    #[test]
    fn a_full_table_shares_what_it_knows_and_takes_new_parts_when_others_go() {
        let memory = Memory::with_limits(|_| 4 * PLACE_BYTES);
        let interner = Interner::new(&memory);
        let text = |at: usize| body("one", "", &format!("{at:02000}"));
        let seen_twice = |at| {
            interner.rope(text(at).as_bytes());
            interner.rope(text(at).as_bytes())
        };
        let held: Vec<_> = (0..4).map(seen_twice).collect();
        assert!(held.iter().all(Option::is_some));
        assert_eq!(memory.used(Share::Interner), memory.limit(Share::Interner));
        assert!(seen_twice(4).is_none());
        assert!(memory.times_full(Share::Interner) > 0);
        assert!(interner.rope(text(0).as_bytes()).is_some(), "it is known");
        drop(held);
        assert!(seen_twice(5).is_some());
    }

    proptest! {
        #[test]
        fn any_bytes_come_back_whole(
            parts in prop::collection::vec(prop_oneof![
                Just("\"".to_owned()), Just("\\".to_owned()), Just("{".to_owned()),
                Just("}".to_owned()), Just(":".to_owned()), Just(",".to_owned()),
                Just("x".repeat(1100)),
            ], 0..20),
        ) {
            let text = parts.concat();
            let interner = Interner::default();
            interner.rope(text.as_bytes());
            if let Some(rope) = interner.rope(text.as_bytes()) {
                prop_assert_eq!(rope.whole(), text);
            }
        }
    }
}
