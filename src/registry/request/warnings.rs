//! The warnings that a client gets with the answer to its request.

use parking_lot::Mutex;
use std::collections::HashSet;

/// Warnings for a client, each once.
#[derive(Debug, Default)]
pub struct Warnings(Mutex<Distinct>);

/// Texts in the order in which they came.
#[derive(Debug, Default)]
struct Distinct {
    texts: Vec<String>,
    /// The same texts. An object may have as many as items, so that none is compared with all.
    known: HashSet<String>,
}

impl Warnings {
    /// Adds a warning.
    pub fn add(&self, text: String) {
        let mut warnings = self.0.lock();
        if warnings.known.insert(text.clone()) {
            warnings.texts.push(text);
        }
    }

    /// Removes and returns the warnings so far.
    pub fn take(&self) -> Vec<String> {
        std::mem::take(&mut *self.0.lock()).texts
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn warnings_are_kept_once_and_in_order() {
        let warnings = Warnings::default();
        for text in ["b", "a", "b", "c", "a"] {
            warnings.add(text.to_owned());
        }
        assert_eq!(warnings.take(), ["b", "a", "c"]);
        warnings.add("a".to_owned());
        assert_eq!(warnings.take(), ["a"]);
    }
}
