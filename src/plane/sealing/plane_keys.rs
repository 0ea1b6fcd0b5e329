//! What an awake plane knows of its data keys: those that the store has, those that the next commit
//! puts, and the stale records.
//!
//! Changed keys are *pending* until a commit has put their record. A commit seals with the pending
//! keys, so the record of a key is never later in the store than what is sealed under it. The commit
//! under way keeps the keys that it was encoded with, because its bytes must not change until its
//! outcome is known.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use bytes::Bytes;
use parking_lot::Mutex;
use polyplane_sealing::Nonce;

use crate::key::Key;
use crate::record::{RecordError, encode_data_keys};
use crate::sealing::Sealing;
use crate::sealing::data_keys::DataKeys;
use crate::state::Root;
use crate::write::committer::CommitPart;
use crate::write::sequencer::QueuedChange;

/// The data keys of an awake plane.
pub(crate) struct PlaneKeys {
    sealing: Arc<Sealing>,
    plane: Arc<str>,
    state: Mutex<KeysState>,
    /// The number of stale records, to be read without the lock.
    stale: AtomicUsize,
    /// True if the last sweep could not write.
    is_stuck: AtomicBool,
}

struct KeysState {
    /// The keys as the store has them; `None` if it has none.
    stored: Option<Arc<DataKeys>>,
    /// The keys that the next commit puts, if they differ.
    pending: Option<Arc<DataKeys>>,
    /// The objects whose records are not as they would be written now.
    stale: BTreeSet<Key>,
}

/// The keys of one commit.
#[derive(Clone)]
pub(crate) struct PartKeys {
    keys: Arc<DataKeys>,
    /// True if the commit puts the record of the keys.
    puts: bool,
}

impl PartKeys {
    /// Returns the record of the keys if the commit puts it.
    pub(crate) fn record(&self) -> Option<Bytes> {
        self.puts.then(|| encode_data_keys(&self.keys.record()))
    }

    /// Seals the value of an object, whose key in the store is `stored`.
    pub(crate) fn seal(&self, stored: &[u8], value: &Bytes, nonce: &Nonce) -> Bytes {
        self.keys.seal(stored, value, nonce)
    }
}

impl KeysState {
    /// Returns the keys that seal new records.
    fn newest(&self) -> Option<&Arc<DataKeys>> {
        self.pending.as_ref().or(self.stored.as_ref())
    }
}

impl PlaneKeys {
    /// Creates it from what a load found.
    pub(crate) fn new(
        sealing: &Arc<Sealing>,
        plane: &str,
        stored: Option<DataKeys>,
        stale: BTreeSet<Key>,
    ) -> Self {
        // The statement of replicas with another policy, or from before a change, does not hold for
        // what is written from now on.
        let changed = |keys: &&DataKeys| {
            let is_true = keys.settled() == sealing.fingerprint() && stale.is_empty();
            keys.settled() != 0 && !is_true
        };
        let pending = stored.as_ref().filter(changed);
        let pending = pending.map(|keys| Arc::new(keys.with_settled(0)));
        Self {
            sealing: Arc::clone(sealing),
            plane: plane.into(),
            stale: AtomicUsize::new(stale.len()),
            is_stuck: AtomicBool::new(false),
            state: Mutex::new(KeysState {
                stored: stored.map(Arc::new),
                pending,
                stale,
            }),
        }
    }

    pub(crate) fn sealing(&self) -> &Arc<Sealing> {
        &self.sealing
    }

    /// Returns whether the plane has a data key.
    pub(crate) fn has_keys(&self) -> bool {
        self.state.lock().newest().is_some()
    }

    /// Returns what the record of an object is to be sealed with; `None` if it stays in clear. The
    /// plane gets its first data key when the first record needs one.
    pub(crate) fn nonce_for(&self, key: &Key) -> Option<Nonce> {
        if !self.sealing.has_begun() || !self.sealing.seals(key) {
            return None;
        }
        let mut state = self.state.lock();
        if state.newest().is_none() {
            let by = self.sealing.keyring().wraps_by()?;
            state.pending = Some(Arc::new(DataKeys::first(&self.plane, by, 0)));
        }
        Some(Nonce::random())
    }

    /// Returns the keys of the next commit; `None` if there are none.
    pub(crate) fn for_part(&self) -> Option<PartKeys> {
        let state = self.state.lock();
        state.newest().map(|keys| PartKeys {
            keys: Arc::clone(keys),
            puts: state.pending.is_some(),
        })
    }

    /// Returns the number of operations that the next commit has for the keys.
    pub(crate) fn ops_of_part(&self) -> usize {
        usize::from(self.state.lock().pending.is_some())
    }

    /// Notes what a commit has put. It is durable and published.
    pub(crate) fn landed(&self, part: &CommitPart) {
        let mut state = self.state.lock();
        let keys = part.keys.as_ref().map(|part| &part.keys);
        if let Some(part) = part.keys.as_ref().filter(|part| part.puts) {
            let same = |pending: &mut Arc<DataKeys>| Arc::ptr_eq(pending, &part.keys);
            state.pending.take_if(same);
            state.stored = Some(Arc::clone(&part.keys));
        }
        let newest = state.newest().map(|keys| keys.number());
        for operation in part.writes.iter().flat_map(|write| &write.operations) {
            let key = operation.key();
            let is_stale = match &operation.change {
                QueuedChange::Delete(_) => false,
                QueuedChange::Put { nonce, .. } => {
                    let number = nonce.as_ref().and(keys).map(|keys| keys.number());
                    self.is_stale(key, number, newest)
                }
            };
            match is_stale {
                true => drop(state.stale.insert(key.clone())),
                false if state.stale.is_empty() => {}
                false => drop(state.stale.remove(key)),
            }
        }
        self.changed(&mut state);
    }

    /// Returns whether a record that is sealed under this key, or in clear, is not as it would be
    /// written now.
    fn is_stale(&self, key: &Key, number: Option<u32>, newest: Option<u32>) -> bool {
        match (self.sealing.seals(key), number) {
            (true, None) | (false, Some(_)) => true,
            (true, Some(number)) => Some(number) != newest,
            (false, None) => false,
        }
    }

    /// Counts the stale records, and takes back that there are none.
    fn changed(&self, state: &mut KeysState) {
        self.stale.store(state.stale.len(), Ordering::Relaxed);
        let says = state.newest().filter(|keys| keys.settled() != 0);
        if let Some(keys) = says.filter(|_| !state.stale.is_empty()) {
            state.pending = Some(Arc::new(keys.with_settled(0)));
        }
    }

    /// Opens a value of the store if it is sealed.
    pub(crate) fn open(&self, stored: &[u8], value: &Bytes) -> Result<Bytes, RecordError> {
        let newest = self.state.lock().newest().cloned();
        match newest {
            Some(keys) => keys.open(stored, value).map(|(value, _)| value),
            None => Ok(value.clone()),
        }
    }

    /// Returns whether the record of an object is not as it would be written now.
    pub(crate) fn has_stale(&self, key: &Key) -> bool {
        self.stale_records() > 0
            && self.sealing.has_begun()
            && self.state.lock().stale.contains(key)
    }

    pub(crate) fn stale_records(&self) -> usize {
        self.stale.load(Ordering::Relaxed)
    }

    /// Returns the keys of some stale objects.
    pub(crate) fn some_stale(&self, limit: usize) -> Vec<Key> {
        let state = self.state.lock();
        state.stale.iter().take(limit).cloned().collect()
    }

    /// Takes an object from the stale ones, because it has no record of its own any more.
    pub(crate) fn forget_stale(&self, key: &Key) {
        let mut state = self.state.lock();
        state.stale.remove(key);
        self.changed(&mut state);
    }

    /// Returns whether sweeps have work left here and are able to do it.
    pub(crate) fn is_resealing(&self, generation: u32) -> bool {
        if !self.sealing.has_begun() || self.is_stuck.load(Ordering::Relaxed) {
            return false;
        }
        let state = self.state.lock();
        if !state.stale.is_empty() || state.pending.is_some() {
            return true;
        }
        let wraps_by = self.sealing.keyring().wraps_by();
        state.newest().is_some_and(|newest| {
            let is_old = |by| generation > newest.generation() || !newest.is_wrapped_by(by);
            newest.settled() != self.sealing.fingerprint() || wraps_by.is_some_and(is_old)
        })
    }

    /// Notes whether the last sweep could not write.
    pub(crate) fn note_stuck(&self, is_stuck: bool) {
        self.is_stuck.store(is_stuck, Ordering::Relaxed);
    }

    /// Changes the keys as they should be now: a new data key for a higher generation, once no record
    /// is stale; another wrap for another key-encryption key; and the statement that all records
    /// follow the policy. Returns whether a commit should put them.
    pub(crate) fn refresh(&self, generation: u32, published: &Root) -> bool {
        let mut state = self.state.lock();
        let Some(newest) = state.newest().cloned() else {
            return false;
        };
        if let Some(by) = self.sealing.keyring().wraps_by() {
            if generation > newest.generation() && state.stale.is_empty() {
                state.pending = Some(Arc::new(newest.rotated(by, generation)));
                let own = published.resources.entries();
                let own = own.filter(|entry| entry.as_template().is_none());
                let sealed = own.filter(|entry| self.sealing.seals(entry.key()));
                state.stale = sealed.map(|entry| entry.key().clone()).collect();
                self.stale.store(state.stale.len(), Ordering::Relaxed);
            } else if !newest.is_wrapped_by(by) {
                state.pending = Some(Arc::new(newest.rewrapped(by)));
            }
        }
        let fingerprint = self.sealing.fingerprint();
        if let Some(newest) = state.newest().cloned()
            && state.stale.is_empty()
            && newest.settled() != fingerprint
        {
            state.pending = Some(Arc::new(newest.with_settled(fingerprint)));
        }
        state.pending.is_some()
    }
}

/// What a load has found about a plane's keys, record by record.
pub(crate) struct LoadedKeys {
    sealing: Arc<Sealing>,
    pub(crate) keys: Option<DataKeys>,
    stale: BTreeSet<Key>,
}

impl LoadedKeys {
    pub(crate) fn new(sealing: &Arc<Sealing>, keys: Option<DataKeys>) -> Self {
        Self {
            sealing: Arc::clone(sealing),
            keys,
            stale: BTreeSet::new(),
        }
    }

    /// Notes a record of an object, under the key of this number or in clear.
    pub(crate) fn note(&mut self, key: &Key, number: Option<u32>) {
        let newest = self.keys.as_ref().map(DataKeys::number);
        let is_stale = match (self.sealing.seals(key), number) {
            (true, None) | (false, Some(_)) => true,
            (true, Some(_)) => number != newest,
            (false, None) => false,
        };
        if is_stale {
            self.stale.insert(key.clone());
        }
    }

    pub(crate) fn finish(self, plane: &str) -> PlaneKeys {
        PlaneKeys::new(&self.sealing, plane, self.keys, self.stale)
    }
}
