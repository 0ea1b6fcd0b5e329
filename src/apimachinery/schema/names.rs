//! Finds a field by its name, usually with one comparison.

/// A hash table that is half empty. Its slots hold the positions of names; names with equal hashes
/// are in adjacent slots.
#[derive(Clone, Debug, Default)]
pub(super) struct Index {
    slots: Box<[u16]>,
}

const EMPTY: u16 = u16::MAX;

impl Index {
    /// Returns the index of names in order. Of equal names the first one is found.
    pub(super) fn of<'n>(names: impl ExactSizeIterator<Item = &'n str>) -> Self {
        debug_assert!(names.len() < usize::from(EMPTY), "places fit 16 bits");
        let mut slots = vec![EMPTY; (names.len() * 2).next_power_of_two()];
        let mask = slots.len() - 1;
        for (place, name) in names.enumerate() {
            let mut at = hash(name) & mask;
            while slots[at] != EMPTY {
                at = (at + 1) & mask;
            }
            slots[at] = place as u16;
        }
        Self {
            slots: slots.into_boxed_slice(),
        }
    }

    /// Returns the position of `name`; `name_at` returns the name at a position.
    #[inline]
    pub(super) fn find<'n>(&self, name: &str, name_at: impl Fn(usize) -> &'n str) -> Option<usize> {
        let mask = self.slots.len().checked_sub(1)?;
        let mut at = hash(name) & mask;
        loop {
            let place = self.slots[at];
            if place == EMPTY {
                return None;
            }
            if name_at(usize::from(place)) == name {
                return Some(usize::from(place));
            }
            at = (at + 1) & mask;
        }
    }
}

/// Returns a hash of length, first and last bytes. Few field names agree in all of these, and the
/// data that has such names is known when it is generated.
#[inline]
fn hash(name: &str) -> usize {
    let bytes = name.as_bytes();
    let (head, tail) = if let (Some(head), Some(tail)) =
        (bytes.first_chunk::<8>(), bytes.last_chunk::<8>())
    {
        (u64::from_le_bytes(*head), u64::from_le_bytes(*tail))
    } else if let (Some(head), Some(tail)) = (bytes.first_chunk::<4>(), bytes.last_chunk::<4>()) {
        (
            u64::from(u32::from_le_bytes(*head)),
            u64::from(u32::from_le_bytes(*tail)),
        )
    } else {
        let byte = |at: usize| u64::from(bytes.get(at).copied().unwrap_or_default());
        (byte(0) | byte(1) << 8, byte(2))
    };
    let mixed =
        (head ^ tail.rotate_left(29) ^ bytes.len() as u64).wrapping_mul(0x9E37_79B9_7F4A_7C15);
    (mixed >> 40) as usize
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_name_is_found_and_no_other() {
        let names: Vec<String> = (0..300)
            .map(|at| format!("{}name{at}", "x".repeat(at % 17)))
            .collect();
        let index = Index::of(names.iter().map(String::as_str));
        for (at, name) in names.iter().enumerate() {
            assert_eq!(index.find(name, |at| &names[at]), Some(at));
            assert_eq!(index.find(&format!("{name}?"), |at| &names[at]), None);
        }
        assert_eq!(Index::default().find("a", |_| ""), None);
        assert_eq!(Index::of([].into_iter()).find("", |_| ""), None);
    }
}
