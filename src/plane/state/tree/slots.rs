//! Elements in the order of their keys, with a part of each key beside them.
//!
//! The keys of a node begin alike, and lie behind one or two pointers each. A search in `Slots`
//! compares the eight bytes behind that common beginning, which lie beside the elements, and reads a
//! whole key only where they do not decide. Knows nothing of nodes.

use std::cmp::Ordering;

/// An element that has a key.
pub(super) trait Keyed {
    fn key(&self) -> &[u8];
}

/// Elements in ascending order of their keys, but for the first: it may have any key if no search
/// includes it.
#[derive(Debug, Clone)]
pub(super) struct Slots<E> {
    /// All keys have the same first bytes, at least this many.
    common: usize,
    slots: Vec<Slot<E>>,
}

#[derive(Debug, Clone)]
pub(super) struct Slot<E> {
    /// The bytes of the key behind the common ones, as a number; zeros behind the key's end.
    head: u64,
    pub(super) element: E,
}

impl<E> Default for Slots<E> {
    fn default() -> Self {
        Self {
            common: 0,
            slots: Vec::new(),
        }
    }
}

impl<E> Slots<E> {
    pub(super) fn len(&self) -> usize {
        self.slots.len()
    }

    pub(super) fn as_slice(&self) -> &[Slot<E>] {
        &self.slots
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = &E> {
        self.slots.iter().map(|slot| &slot.element)
    }

    pub(super) fn at(&self, index: usize) -> &E {
        &self.slots[index].element
    }

    /// Returns an element to change. Its key must not change.
    pub(super) fn at_mut(&mut self, index: usize) -> &mut E {
        &mut self.slots[index].element
    }

    pub(super) fn remove(&mut self, index: usize) -> E {
        self.slots.remove(index).element
    }

    pub(super) fn reserve_exact(&mut self, additional: usize) {
        self.slots.reserve_exact(additional);
    }
}

impl<E: Keyed> Slots<E> {
    pub(super) fn new(elements: Vec<E>) -> Self {
        let slots = elements
            .into_iter()
            .map(|element| Slot { head: 0, element });
        let mut slots = Self {
            common: 0,
            slots: slots.collect(),
        };
        slots.set_heads();
        slots
    }

    /// Returns the index of the element with a key.
    pub(super) fn find(&self, key: &[u8]) -> Option<usize> {
        let head = head(key.get(self.common..)?);
        // Without a look at the common bytes: if the key has others, no element has the key.
        let at = self.slots.partition_point(|slot| slot.is_below(head, key));
        let found = self.slots.get(at)?;
        (found.element.key() == key).then_some(at)
    }

    /// Returns the number of elements, from an index on, whose keys are below a key. The first element is
    /// included only if it stands in order.
    pub(super) fn below(&self, from: usize, key: &[u8]) -> usize {
        self.rank(from, key, Slot::is_below)
    }

    /// Returns the number of elements, from an index on, whose keys are not above a key.
    pub(super) fn not_above(&self, from: usize, key: &[u8]) -> usize {
        self.rank(from, key, |slot, head, key| !slot.is_above(head, key))
    }

    fn rank(
        &self,
        from: usize,
        key: &[u8],
        before: impl Fn(&Slot<E>, u64, &[u8]) -> bool,
    ) -> usize {
        let slots = &self.slots[from..];
        let (start, rest) = key.split_at(self.common.min(key.len()));
        let head = head(rest);
        let rank = slots.partition_point(|slot| before(slot, head, key));
        // All keys have the common bytes, so any key will do. In an inner node this is the key of the
        // child where the search goes on, unless that is the first child.
        let Some(near) = slots.get(rank.saturating_sub(1)) else {
            return 0;
        };
        match start.cmp(&near.element.key()[..self.common]) {
            Ordering::Less => 0,
            Ordering::Greater => slots.len(),
            Ordering::Equal => rank,
        }
    }

    /// Inserts an element where the order puts it.
    pub(super) fn insert(&mut self, at: usize, element: E) {
        let key = element.key();
        let common = self
            .slots
            .first()
            .map(|first| &first.element.key()[..self.common]);
        if common.is_none_or(|common| !key.starts_with(common)) {
            self.slots.insert(at, Slot { head: 0, element });
            self.set_heads();
            return;
        }
        let head = head(&key[self.common..]);
        let ties = |slot: Option<&Slot<E>>| slot.is_some_and(|slot| slot.head == head);
        let is_tied =
            ties(self.slots.get(at)) || ties(at.checked_sub(1).and_then(|at| self.slots.get(at)));
        self.slots.insert(at, Slot { head, element });
        // The keys may have more in common by now than when the heads were set.
        if is_tied && self.common_of_all() > self.common {
            self.set_heads();
        }
    }

    /// Moves all elements of another, whose keys are above those of this one, to its end.
    pub(super) fn append(&mut self, other: Self) {
        self.slots.extend(other.slots);
        self.set_heads();
    }

    /// Removes the elements from an index on and returns them.
    pub(super) fn split_off(&mut self, at: usize) -> Self {
        let mut split = Self {
            common: 0,
            slots: self.slots.split_off(at),
        };
        self.slots.shrink_to_fit();
        split.set_heads();
        self.set_heads();
        split
    }

    /// Returns how many first bytes all keys have in common: as many as the last has with the second,
    /// and with the first, which may stand out of order.
    fn common_of_all(&self) -> usize {
        let Some(last) = self.slots.last() else {
            return 0;
        };
        let common = |slot: &Slot<E>| {
            let pairs = slot.element.key().iter().zip(last.element.key());
            pairs.take_while(|(left, right)| left == right).count()
        };
        self.slots.iter().take(2).map(common).min().unwrap_or(0)
    }

    fn set_heads(&mut self) {
        self.common = self.common_of_all();
        for slot in &mut self.slots {
            slot.head = head(&slot.element.key()[self.common..]);
        }
    }
}

impl<E: Keyed> Slot<E> {
    fn is_below(&self, head: u64, key: &[u8]) -> bool {
        self.head < head || self.head == head && self.element.key() < key
    }

    fn is_above(&self, head: u64, key: &[u8]) -> bool {
        self.head > head || self.head == head && self.element.key() > key
    }
}

/// Returns the first eight bytes as a number that orders as they do.
fn head(bytes: &[u8]) -> u64 {
    match bytes.first_chunk() {
        Some(first) => u64::from_be_bytes(*first),
        None => {
            let mut first = [0; 8];
            first[..bytes.len()].copy_from_slice(bytes);
            u64::from_be_bytes(first)
        }
    }
}
