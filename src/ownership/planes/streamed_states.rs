//! Plane states that the owners of planes have streamed here ahead of a release. Owns the limits of
//! their number, bytes and time. A state that the next acquire does not use is dropped.

use bytes::Bytes;
use parking_lot::Mutex;
use polyplane_plane::{Memory, Share};
use polyplane_storage::Revision;
use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;
use tokio::time::Instant;

/// Number of streamed states that are kept at once. A further one is refused, and the replica reads
/// that plane from the store.
const STATES_MAX: usize = 16;
/// The time for which a state waits until its fence is acquired. A longer time would hold memory
/// for hand-offs that were called off.
const KEPT: Duration = Duration::from_secs(10);

/// One streamed state.
pub(crate) struct StreamedState {
    /// The revision of the plane's last commit in the state.
    pub(crate) head: Revision,
    /// The plane's export. It counts against the memory budget until it is no longer used.
    pub(crate) export: Bytes,
    at: Instant,
}

/// The streamed states that wait until their fences are acquired, by plane.
pub(crate) struct StreamedStates {
    states: Mutex<HashMap<String, StreamedState>>,
    memory: Arc<Memory>,
}

impl StreamedStates {
    pub(crate) fn new(memory: Arc<Memory>) -> Self {
        Self {
            states: Mutex::default(),
            memory,
        }
    }

    /// Keeps a state, in place of an earlier one of the same plane. Returns false if there is no
    /// room.
    pub(crate) fn put(&self, plane: String, head: Revision, export: Bytes) -> bool {
        self.sweep();
        let mut states = self.states.lock();
        states.remove(&plane);
        if states.len() >= STATES_MAX {
            return false;
        }
        let Some(hold) = self.memory.take(Share::StreamedStates, export.len()) else {
            return false;
        };
        let state = StreamedState {
            head,
            export: hold.keep(export),
            at: Instant::now(),
        };
        states.insert(plane, state);
        true
    }

    /// Returns the head of a plane's streamed state, if there is one.
    pub(crate) fn head(&self, plane: &str) -> Option<Revision> {
        self.states.lock().get(plane).map(|state| state.head)
    }

    /// Removes and returns a plane's streamed state.
    pub(crate) fn take(&self, plane: &str) -> Option<StreamedState> {
        self.states.lock().remove(plane)
    }

    /// Drops states whose fence was not acquired in time.
    pub(crate) fn sweep(&self) {
        let now = Instant::now();
        self.states.lock().retain(|_, state| now < state.at + KEPT);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn states_are_few_and_do_not_last() {
        let received = StreamedStates::new(Arc::default());
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

    #[tokio::test(start_paused = true)]
    async fn states_keep_to_their_share() {
        let memory = Memory::with_limits(|_| 100);
        let received = StreamedStates::new(Arc::clone(&memory));
        let state = |len: usize| Bytes::from(vec![0; len]);
        assert!(received.put("a".to_owned(), Revision(1), state(60)));
        assert!(!received.put("b".to_owned(), Revision(1), state(41)));
        assert!(
            received.put("a".to_owned(), Revision(2), state(90)),
            "in its place"
        );
        assert_eq!(memory.used(Share::StreamedStates), 90);
        let taken = received.take("a");
        assert_eq!(memory.used(Share::StreamedStates), 90, "it is being opened");
        drop(taken);
        assert_eq!(memory.used(Share::StreamedStates), 0);
        assert!(received.put("b".to_owned(), Revision(1), state(100)));
        tokio::time::advance(KEPT).await;
        received.sweep();
        assert_eq!(memory.used(Share::StreamedStates), 0, "nobody came for it");
    }
}
