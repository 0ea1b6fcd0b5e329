//! The values of the fields by which objects are selected, kept with the entry they were read from.
//!
//! The embedder decides which fields these are. Every watcher with a field selector needs them of every
//! event: the first one parses the body, the others find the values here.

use crate::state::entry::ObjectRef;

/// Most bytes of values that are kept. Larger values would weigh as much as the object, so they are
/// parsed each time.
const REMEMBERED_MAX: usize = 1024;

/// The values of one object.
#[derive(Debug)]
pub(crate) struct Selectable {
    /// The number of the reader that the values are for.
    of: u32,
    values: Box<[u8]>,
}

impl ObjectRef {
    /// Calls `look` with the values of the object's selectable fields, in the form that `read`
    /// returns. `of` identifies the reader. The entry keeps the values of its first reader only;
    /// for other readers the body is parsed each time.
    pub fn with_selectable<R>(
        &self,
        of: u32,
        read: impl FnOnce(&[u8]) -> Vec<u8>,
        look: impl FnOnce(&[u8]) -> R,
    ) -> R {
        let kept = &self.entry().selectable;
        if let Some(known) = kept.get().filter(|known| known.of == of) {
            return look(&known.values);
        }
        let values = read(&self.body());
        let answer = look(&values);
        if values.len() <= REMEMBERED_MAX {
            let values = values.into_boxed_slice();
            // If the values are set already, another task has read the same ones, or another reader
            // was first.
            let _ = kept.set(Box::new(Selectable { of, values }));
        }
        answer
    }

    /// Returns true if [`Self::with_selectable`] finds the values of this reader without parsing the body.
    #[must_use]
    pub fn remembers_selectable(&self, of: u32) -> bool {
        let kept = self.entry().selectable.get();
        kept.is_some_and(|known| known.of == of)
    }
}
