//! Key queues: one queue for each key that several writers want. The head of a queue may prepare
//! and submit its write.

use std::collections::HashMap;
use std::sync::Arc;

use parking_lot::Mutex;
use tokio::sync::OwnedMutexGuard;

use crate::key::Key;

/// The queues of all keys that callers wait for.
#[derive(Debug, Default)]
pub(crate) struct KeyQueues {
    waiting: Mutex<HashMap<Key, Arc<tokio::sync::Mutex<()>>>>,
}

impl KeyQueues {
    /// Waits until the caller is at the head of the key's queue.
    pub(crate) async fn enter(key_queues: &Arc<Self>, key: &Key) -> KeyQueueGuard {
        // Made before the wait: a caller that gives up drops the guard, and the last caller removes
        // the queue.
        let mut guard = KeyQueueGuard {
            held: None,
            key_queues: Arc::clone(key_queues),
            key: key.clone(),
        };
        let place = Arc::clone(key_queues.waiting.lock().entry(key.clone()).or_default());
        guard.held = Some(place.lock_owned().await);
        guard
    }

    #[cfg(test)]
    pub(crate) fn queues(&self) -> usize {
        self.waiting.lock().len()
    }
}

/// Proof that the caller is at the head of a key's queue. The caller prepares and submits its write
/// while it holds the guard.
#[derive(Debug)]
pub struct KeyQueueGuard {
    held: Option<OwnedMutexGuard<()>>,
    key_queues: Arc<KeyQueues>,
    key: Key,
}

impl Drop for KeyQueueGuard {
    fn drop(&mut self) {
        let mut waiting = self.key_queues.waiting.lock();
        self.held = None;
        // Each waiting caller holds a reference to the queue.
        if waiting
            .get(&self.key)
            .is_some_and(|place| Arc::strong_count(place) == 1)
        {
            waiting.remove(&self.key);
        }
    }
}
