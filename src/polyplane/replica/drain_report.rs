//! What a replica that drains still holds, and why: the failure of a drain, and the answer of
//! `/polyplane/drain`, which `polyplane drain` reads if it has waited too long.

use crate::replica::plane_directory::PlaneDirectory;
use polyplane_storage::{Health, Store};
use serde::Serialize;

/// Why a replica that is alone, or drains with all others, keeps its planes.
const NO_SUCCESSOR: &str = "no other serving replica is left in the ring to take them; this one goes on answering \
                            for them until it ends";

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
        let report = Self::new(planes.stats().owned, &**planes.store());
        match planes.is_last() {
            true => report.of_the_last(),
            false => report,
        }
    }

    /// Says that no other replica takes planes, unless it is the store that keeps them here.
    fn of_the_last(mut self) -> Self {
        self.cause.get_or_insert_with(|| NO_SUCCESSOR.to_owned());
        self
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
    fn a_drain_of_the_last_replica_says_that_nobody_takes_its_planes_and_that_it_goes_on() {
        let memory = MemoryStore::new(MemoryOptions::default());
        let store = FaultyStore::new(Arc::new(memory));
        let last = |held| DrainReport::new(held, &store).of_the_last();
        assert_eq!(last(0).outcome(), Ok(()));
        let why = last(9).outcome().expect_err("it holds planes");
        for words in [
            "because no other serving replica is left",
            "goes on answering",
        ] {
            assert!(why.contains(words), "{why}");
        }
        // What has to be done about the store comes first.
        store.plan().raise_alarm();
        let why = last(9).outcome().expect_err("it holds planes");
        assert!(why.contains("disarm") && !why.contains("is left"), "{why}");
    }

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
