//! Time and chance, handed in so that behaviour that depends on them can be tested.

use polyplane_apimachinery::Str;
use polyplane_apimachinery::names::{generated_name, generated_suffix};
use std::time::{SystemTime, UNIX_EPOCH};

/// Where the registry takes wall-clock time and random bytes from.
pub trait Environment: Send + Sync {
    /// Seconds since 1970.
    fn now(&self) -> i64;

    /// A random (version 4) uid.
    fn uid(&self) -> Str;

    /// Fills `bytes` with random ones.
    fn random(&self, bytes: &mut [u8]);
}

/// The machine's clock and generator.
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
        Str::from(&*uuid::Uuid::new_v4().hyphenated().encode_lower(&mut buffer))
    }

    fn random(&self, bytes: &mut [u8]) {
        for part in bytes.chunks_mut(16) {
            part.copy_from_slice(&uuid::Uuid::new_v4().as_bytes()[..part.len()]);
        }
    }
}

/// Random bytes drawn for a suffix; enough that running short is out of the question.
const RANDOM_BYTES: usize = 32;

/// A name that begins with `base` and ends in five letters drawn from `environment`.
pub fn generate_name(base: &str, environment: &dyn Environment) -> String {
    loop {
        let mut random = [0; RANDOM_BYTES];
        environment.random(&mut random);
        if let Some(suffix) = generated_suffix(&random) {
            return generated_name(base, &suffix);
        }
    }
}
