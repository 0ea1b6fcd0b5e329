//! States that predecessors have streamed ahead of a release. Owns their limits: few at a time,
//! for a short time. What is not used at the very next acquire is thrown away.

use bytes::Bytes;
use parking_lot::Mutex;
use polyplane_storage::Revision;
use std::collections::HashMap;
use std::time::Duration;
use tokio::time::Instant;

/// Streamed states kept at once.
const STATES_MAX: usize = 16;
/// Bytes of them together.
const BYTES_MAX: usize = 512 << 20;
/// How long a state waits for its fence.
const KEPT: Duration = Duration::from_secs(10);

/// One streamed state.
pub(crate) struct State {
    /// The plane's last commit in it.
    pub(crate) head: Revision,
    /// The plane's export.
    pub(crate) export: Bytes,
    at: Instant,
}

/// The streamed states that wait for their fences, by plane.
#[derive(Default)]
pub(crate) struct Received(Mutex<HashMap<String, State>>);

impl Received {
    /// Takes a state in, in place of an earlier one of the same plane; false if there is no room.
    pub(crate) fn put(&self, plane: String, head: Revision, export: Bytes) -> bool {
        self.sweep();
        let mut states = self.0.lock();
        states.remove(&plane);
        let bytes: usize = states.values().map(|state| state.export.len()).sum();
        if states.len() >= STATES_MAX || bytes + export.len() > BYTES_MAX {
            return false;
        }
        let at = Instant::now();
        states.insert(plane, State { head, export, at });
        true
    }

    /// The head of a plane's state, if there is one.
    pub(crate) fn head(&self, plane: &str) -> Option<Revision> {
        self.0.lock().get(plane).map(|state| state.head)
    }

    /// Takes a plane's state out.
    pub(crate) fn take(&self, plane: &str) -> Option<State> {
        self.0.lock().remove(plane)
    }

    /// Throws away what nobody came for.
    pub(crate) fn sweep(&self) {
        let now = Instant::now();
        self.0.lock().retain(|_, state| now < state.at + KEPT);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn states_are_few_and_do_not_last() {
        let received = Received::default();
        for n in 0..STATES_MAX {
            assert!(received.put(format!("p{n}"), Revision(1), Bytes::new()));
        }
        assert!(!received.put("one-more".to_owned(), Revision(1), Bytes::new()));
        assert!(received.put("p0".to_owned(), Revision(2), Bytes::new()));
        assert_eq!(received.head("p0"), Some(Revision(2)), "the newer one");
        tokio::time::advance(KEPT).await;
        assert!(received.put("one-more".to_owned(), Revision(1), Bytes::new()));
        assert!(received.take("p0").is_none());
    }
}
