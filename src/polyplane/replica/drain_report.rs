//! What a replica that drains still holds, and why: the failure of a drain, and the answer of
//! `/polyplane/drain`, which `polyplane drain` reads if it has waited too long.

use crate::replica::plane_directory::PlaneDirectory;
use polyplane_storage::{Health, Store};
use serde::Serialize;

/// What a replica still holds.
#[derive(Debug, Serialize, PartialEq, Eq)]
pub struct DrainReport {
    /// Number of planes whose fence the replica holds.
    pub held: usize,
    /// What keeps them here, as a text for people; absent if that is not known.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cause: Option<String>,
}

impl DrainReport {
    /// Returns what a replica holds now.
    pub fn of(directory: &PlaneDirectory) -> Self {
        let planes = &directory.planes;
        Self::new(planes.stats().owned, &**planes.store())
    }

    fn new(held: usize, store: &dyn Store) -> Self {
        let cause = match store.health() {
            Health::Ok => None,
            Health::ReadOnly { reason } => {
                let remedy = store.remedy();
                let remedy = remedy.map_or_else(String::new, |remedy| format!("; {remedy}"));
                Some(format!(
                    "the store takes no writes, so no other replica can take them: {reason}{remedy}"
                ))
            }
            Health::Failed { reason } => Some(format!("the store does not answer: {reason}")),
        };
        Self { held, cause }
    }

    /// Returns the outcome of a drain that has ended.
    ///
    /// # Errors
    /// Returns the reason why the replica still holds planes.
    pub fn outcome(self) -> Result<(), String> {
        let Self { held, cause } = self;
        if held == 0 {
            return Ok(());
        }
        let cause = cause.map_or_else(String::new, |cause| format!(", because {cause}"));
        Err(format!(
            "{held} control planes could not be given away in time{cause}"
        ))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use polyplane_storage::{FaultyStore, MemoryOptions, MemoryStore};
    use std::sync::Arc;

    #[test]
    fn a_drain_that_a_full_store_keeps_from_ending_says_so_and_what_to_do() {
        let memory = MemoryStore::new(MemoryOptions::default());
        let store = FaultyStore::new(Arc::new(memory));
        let outcome = |held| DrainReport::new(held, &store).outcome();
        let plain = "3 control planes could not be given away in time";
        assert_eq!(outcome(3), Err(plain.to_owned()));
        store.plan().raise_alarm();
        assert_eq!(outcome(0), Ok(()));
        let why = outcome(3).expect_err("it holds planes");
        assert!(why.starts_with(plain), "{why}");
        for words in ["takes no writes", "no space", "; disarm the alarm by plan"] {
            assert!(why.contains(words), "{why}");
        }
    }
}
