//! Turns: who may prepare next a write of a key that several writers want.

use std::collections::HashMap;
use std::sync::Arc;

use parking_lot::Mutex;
use tokio::sync::OwnedMutexGuard;

use crate::key::Key;

/// Who waits for which key.
#[derive(Debug, Default)]
pub(crate) struct Turns {
    waiting: Mutex<HashMap<Key, Arc<tokio::sync::Mutex<()>>>>,
}

impl Turns {
    /// Waits in the key's queue.
    pub(crate) async fn take(turns: &Arc<Self>, key: &Key) -> TurnGuard {
        // Made before the wait: dropped early, it takes the place out of the queue again.
        let mut guard = TurnGuard {
            held: None,
            turns: Arc::clone(turns),
            key: key.clone(),
        };
        let place = Arc::clone(turns.waiting.lock().entry(key.clone()).or_default());
        guard.held = Some(place.lock_owned().await);
        guard
    }

    #[cfg(test)]
    pub(crate) fn queues(&self) -> usize {
        self.waiting.lock().len()
    }
}

/// The head of a key's queue. Prepare and submit while it is held.
#[derive(Debug)]
pub struct TurnGuard {
    held: Option<OwnedMutexGuard<()>>,
    turns: Arc<Turns>,
    key: Key,
}

impl Drop for TurnGuard {
    fn drop(&mut self) {
        let mut waiting = self.turns.waiting.lock();
        self.held = None;
        // Whoever waits holds the place too.
        if waiting
            .get(&self.key)
            .is_some_and(|place| Arc::strong_count(place) == 1)
        {
            waiting.remove(&self.key);
        }
    }
}
