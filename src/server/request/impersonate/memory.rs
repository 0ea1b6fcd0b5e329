//! The mode by which each caller last became somebody else.

use std::collections::HashMap;
use std::hash::{BuildHasher as _, RandomState};

use parking_lot::Mutex;

use super::modes::Mode;

/// Most callers in each of the two generations. More would be memory for callers who are gone; a
/// caller who is not found pays for one refused check.
const CALLERS_MAX: usize = 5_000;

/// The last successful mode of callers. It decides in which order modes are tried, and nothing else,
/// so it is enough to keep hashes, and two callers with one hash lose nothing.
#[derive(Debug, Default)]
pub(crate) struct ModeMemory {
    hasher: RandomState,
    generations: Mutex<Generations>,
}

/// Callers move to `recent` when they are remembered. When that is full, it replaces `older`.
#[derive(Debug, Default)]
struct Generations {
    recent: HashMap<u64, Mode>,
    older: HashMap<u64, Mode>,
}

impl ModeMemory {
    /// Returns the mode that last let a user of a plane through.
    pub(super) fn last(&self, plane: &str, user: &str) -> Option<Mode> {
        let key = self.key(plane, user);
        let generations = self.generations.lock();
        let found = generations.recent.get(&key);
        found.or_else(|| generations.older.get(&key)).copied()
    }

    /// Remembers the mode that let a user of a plane through.
    pub(super) fn remember(&self, plane: &str, user: &str, mode: Mode) {
        let key = self.key(plane, user);
        let mut generations = self.generations.lock();
        if generations.recent.get(&key) == Some(&mode) {
            return;
        }
        if generations.recent.len() >= CALLERS_MAX {
            generations.older = std::mem::take(&mut generations.recent);
        }
        generations.recent.insert(key, mode);
    }

    fn key(&self, plane: &str, user: &str) -> u64 {
        self.hasher.hash_one((plane, user))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn callers_are_remembered_by_plane_and_up_to_a_bound() {
        let memory = ModeMemory::default();
        memory.remember("a", "jane", Mode::Legacy);
        assert_eq!(memory.last("a", "jane"), Some(Mode::Legacy));
        assert_eq!(memory.last("b", "jane"), None);
        memory.remember("a", "jane", Mode::UserInfo);
        assert_eq!(memory.last("a", "jane"), Some(Mode::UserInfo));
        for user in 0..3 * CALLERS_MAX {
            memory.remember("a", &user.to_string(), Mode::Legacy);
        }
        let generations = memory.generations.lock();
        assert!(generations.recent.len() + generations.older.len() <= 2 * CALLERS_MAX);
        drop(generations);
        assert_eq!(memory.last("a", "jane"), None);
    }
}
