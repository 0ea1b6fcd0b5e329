//! Values of the fields that objects are selected by, remembered with the entry they were read from.
//!
//! Which fields those are is the embedder's matter. A watch by a field asks them of each event, for
//! each watcher; the first who asks has them read, and the others find them.

use crate::state::entry::ObjectRef;

/// Values of more bytes are read again each time: they would weigh as much as the object.
const REMEMBERED_MAX: usize = 1024;

/// The values of one object.
#[derive(Debug)]
pub(crate) struct Selectable {
    /// Whose fields these are.
    of: u32,
    values: Box<[u8]>,
}

impl ObjectRef {
    /// Shows `look` the values of the object's selectable fields, in whatever form `read` has
    /// written them. `of` tells apart who reads: an entry keeps what the first has read, and is
    /// read again each time for another.
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
            // Who was faster has read the same, or is another.
            let _ = kept.set(Box::new(Selectable { of, values }));
        }
        answer
    }
}
