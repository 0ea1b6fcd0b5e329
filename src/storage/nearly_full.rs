//! Whether a store is nearly full, so that its users should write only what needs hardly any room.
//!
//! A full store refuses deletions too, because they put records of their own. So the code that writes
//! for clients stops adding data a little earlier. The store itself still takes every transaction.

use std::sync::atomic::{AtomicBool, Ordering};

/// A flag that is set when less than a limit is left, and cleared when at least twice the limit is.
#[derive(Debug, Default)]
pub(crate) struct NearlyFull(AtomicBool);

impl NearlyFull {
    pub(crate) fn get(&self) -> bool {
        self.0.load(Ordering::Relaxed)
    }

    /// Notes how many bytes are left until the store is full. Not called concurrently.
    pub(crate) fn note(&self, left_bytes: u64, limit_bytes: u64) {
        let before = self.get();
        let wanted_bytes = match before {
            true => limit_bytes.saturating_mul(2),
            false => limit_bytes,
        };
        let now = left_bytes < wanted_bytes;
        if now == before {
            return;
        }
        self.0.store(now, Ordering::Relaxed);
        match now {
            true => tracing::warn!(
                left_bytes,
                limit_bytes,
                "the store is nearly full: clients' writes that add data are refused, deletions are not; \
                 make room before it is full, because then deletions are refused too"
            ),
            false => tracing::info!(left_bytes, "the store is not nearly full any more"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_begins_below_the_limit_and_ends_at_twice_the_limit() {
        let flag = NearlyFull::default();
        let after = |left_bytes| {
            flag.note(left_bytes, 100);
            flag.get()
        };
        assert!(!after(150));
        assert!(!after(100));
        assert!(after(99));
        assert!(after(100));
        assert!(after(199));
        assert!(!after(200));
        assert!(!after(100));
        assert!(after(0));
    }
}
