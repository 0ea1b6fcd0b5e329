//! The clock and the randomness, which are injected so that behaviour that depends on them can be
//! tested.

use polyplane_apimachinery::Str;
use polyplane_apimachinery::names::{generated_name, generated_suffix};
use std::cell::RefCell;
use std::time::{SystemTime, UNIX_EPOCH};

/// The source of wall-clock time and random bytes for the registry.
pub trait Environment: Send + Sync {
    /// Returns the time in seconds since 1970.
    fn now(&self) -> i64;

    /// Returns a random (version 4) uid.
    fn uid(&self) -> Str;

    /// Fills `bytes` with random ones.
    fn random(&self, bytes: &mut [u8]);
}

/// The machine's clock and random number generator.
#[derive(Debug, Default)]
pub struct System;

impl Environment for System {
    fn now(&self) -> i64 {
        let since = SystemTime::now()
            .duration_since(UNIX_EPOCH)
            .unwrap_or_default();
        i64::try_from(since.as_secs()).unwrap_or(i64::MAX)
    }

    fn uid(&self) -> Str {
        let mut buffer = [0; uuid::fmt::Hyphenated::LENGTH];
        Str::from(&*random_uuid().hyphenated().encode_lower(&mut buffer))
    }

    fn random(&self, bytes: &mut [u8]) {
        for part in bytes.chunks_mut(16) {
            part.copy_from_slice(&drawn()[..part.len()]);
        }
    }
}

/// Number of parts of 16 random bytes that are drawn from the system's generator at a time. A system
/// call for each would make requests measurably slower.
const DRAWN: usize = 64;

struct Pool {
    bytes: [u8; 16 * DRAWN],
    used: usize,
}

thread_local! {
    static POOL: RefCell<Pool> = const { RefCell::new(Pool { bytes: [0; 16 * DRAWN], used: DRAWN }) };
}

/// Returns random bytes, which were drawn together with others, to save system calls. No bytes are
/// returned twice.
fn drawn() -> [u8; 16] {
    POOL.with_borrow_mut(|pool| {
        if pool.used == DRAWN {
            aws_lc_rs::rand::fill(&mut pool.bytes)
                .expect("the generator was seeded before the first handshake");
            pool.used = 0;
        }
        let at = pool.used * 16;
        pool.used += 1;
        let mut bytes = [0; 16];
        bytes.copy_from_slice(&pool.bytes[at..at + 16]);
        bytes
    })
}

/// Returns a random (version 4) uuid.
pub fn random_uuid() -> uuid::Uuid {
    uuid::Builder::from_random_bytes(drawn()).into_uuid()
}

/// Number of random bytes drawn for a suffix. Some bytes are skipped; with this many it practically
/// never happens that too few remain.
const RANDOM_BYTES: usize = 32;

/// Returns a name that begins with `base` and ends in five letters drawn from `environment`.
pub fn generate_name(base: &str, environment: &dyn Environment) -> String {
    loop {
        let mut random = [0; RANDOM_BYTES];
        environment.random(&mut random);
        if let Some(suffix) = generated_suffix(&random) {
            return generated_name(base, &suffix);
        }
    }
}

#[cfg(test)]
mod tests {
    #[test]
    fn uuids_are_distinct_and_of_version_4() {
        let drawn: std::collections::BTreeSet<uuid::Uuid> =
            (0..200).map(|_| super::random_uuid()).collect();
        assert_eq!(drawn.len(), 200);
        assert!(drawn.iter().all(|uuid| uuid.get_version_num() == 4));
    }
}
