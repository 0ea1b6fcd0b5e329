//! The directory: a compact row for every plane but the root, on every replica. A watch on the
//! store keeps it up to date.
//!
//! The rows are read from one resource of the root plane, in the store and not through the root's
//! owner. Must not know the kind of these objects: a [`ReadRow`] reads their bytes. A request for
//! an unknown name waits until the directory has reached the revision of the next member read, and
//! is refused only then. So a miss makes no store read of its own (PROTOCOL 21).

pub(crate) mod birth;
pub(crate) mod freshness;

use std::collections::{HashMap, HashSet};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use bytes::Bytes;
use parking_lot::{Mutex, RwLock};
use polyplane_apimachinery::Str;
use polyplane_plane::{EndWithPanic, Flags, NewObject, Numbering, RecordError, Version, external};
use polyplane_ring::Pin;
use polyplane_storage::{
    RangeRequest, ReadError, Revision, Store, StoreEvent, StoreWatch, WatchEnd, prefix_end,
};
use tokio::sync::{broadcast, watch};
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

/// Pause between two attempts to follow a store that does not answer. A shorter one would load that
/// store.
const RETRY: Duration = Duration::from_millis(100);

/// Attempts to read all rows while the store drops the revisions that they are read at. With fewer, a replica could not
/// start beside deletions in a store that is nearly full.
const LOADS_MAX: u32 = 10;

/// Changes of one sort that wait for a slow receiver. One that lags further looks at all planes.
const CHANGES_MAX: usize = 256;
/// Number of different accesses up to which none are swept out. Fewer would sweep for nearly every
/// row of a small directory.
const SWEPT_MIN: usize = 64;

/// The data of a plane, as an object of the directory's resource has it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DirectoryRow {
    /// The plane's id.
    pub id: Str,
    /// The content hash of the layer that the plane was born with.
    pub layer: Str,
    /// The time at which the plane was born, RFC 3339.
    pub born_at: Str,
    /// The replica or zone where the plane's user wants it.
    pub pin: Pin,
    /// Bits of the embedder, which the directory only tells apart.
    pub switches: u32,
    /// True if nothing may wake the plane. [`Self::access`] differs then, too.
    pub suspended: bool,
    /// The generation of the data key that the plane is to have.
    pub data_key_generation: u32,
    /// What the object says about who may use the plane and how much, for the directory's reader to
    /// decode.
    pub access: Vec<u8>,
}

/// Reads a row out of an object's canonical bytes; returns `None` if the object is no plane's.
pub type ReadRow = fn(&[u8]) -> Option<DirectoryRow>;

/// One plane, as the directory knows it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DirectoryEntry {
    /// The plane's name. Another plane may get it once this one is deleted.
    pub name: Str,
    /// The plane's id.
    pub id: Str,
    /// The content hash of the layer that the plane was born with. All planes of a layer share the
    /// text.
    pub layer: Arc<str>,
    /// The time at which the plane was born, RFC 3339.
    pub born_at: Str,
    /// The replica or zone where the plane's user wants it.
    pub pin: Pin,
    /// Bits of the embedder, which the directory only tells apart.
    pub switches: u32,
    /// The generation of the data key that the plane is to have.
    pub data_key_generation: u32,
    /// What the plane's object says about who may use the plane and how much. Planes of which it says
    /// the same share the bytes.
    pub access: Arc<[u8]>,
    /// The version of the first put of the plane's object.
    pub born: Version,
    /// The revision of that put in this store. In a copied store it is not that of the version.
    created: Revision,
    /// True if the plane is being deleted.
    pub deleting: bool,
    /// True if nothing may wake the plane.
    pub suspended: bool,
}

impl DirectoryEntry {
    /// Returns the revision of the first put of the plane's object. A row of the same name with
    /// another revision is another plane's.
    #[must_use]
    pub fn created(&self) -> Revision {
        self.created
    }

    /// Returns whether the same users may use this plane as that of `other`, which is the same one.
    fn admits_as(&self, other: &Self) -> bool {
        self.id == other.id && self.access == other.access && self.deleting == other.deleting
    }
}

/// The reason why the directory cannot be read.
#[derive(Debug, thiserror::Error)]
pub enum DirectoryError {
    /// The store could not be read.
    #[error("cannot read the directory of control planes")]
    Read(#[from] ReadError),
    /// A record was written by a newer program or is damaged.
    #[error("cannot read the directory's record {key:?}")]
    Record {
        /// The record's key.
        key: String,
        /// The error in the record.
        #[source]
        source: RecordError,
    },
}

#[derive(Default)]
struct Rows {
    by_name: HashMap<Str, Arc<DirectoryEntry>>,
    by_id: HashMap<Str, Arc<DirectoryEntry>>,
    /// The layers that rows name, of which there are only a few.
    layers: Vec<Arc<str>>,
    /// What rows say about who may use their planes. Most say the same.
    accesses: HashSet<Arc<[u8]>>,
    /// Number of accesses above which those that no row has any more are swept out.
    sweep_at: usize,
}

/// All planes but the root.
pub struct Directory {
    store: Arc<dyn Store>,
    /// The store's prefix of the rows.
    prefix: Bytes,
    read: ReadRow,
    numbering: Numbering,
    rows: RwLock<Rows>,
    /// The rows include every change up to this revision.
    reached: watch::Sender<Revision>,
    /// Increased at each change of a row.
    changes: watch::Sender<u64>,
    /// Increased whenever the pin of a known plane changes.
    pins: watch::Sender<u64>,
    /// The ids of known planes whose switches change.
    switches: broadcast::Sender<Str>,
    /// The ids of known planes that other users may use from now on, or nobody.
    accesses: broadcast::Sender<Str>,
    failure: Mutex<Option<String>>,
    /// True if some row was skipped because it could not be decoded.
    skipped: AtomicBool,
}

impl Directory {
    /// Reads the directory, and keeps it up to date until `stop` is cancelled. `prefix` is the
    /// store's prefix of the rows, `numbering` says how the store numbers their versions.
    ///
    /// # Errors
    /// See [`DirectoryError`].
    pub async fn follow(
        store: Arc<dyn Store>,
        prefix: Bytes,
        read: ReadRow,
        numbering: Numbering,
        stop: CancellationToken,
    ) -> Result<Arc<Self>, DirectoryError> {
        let directory = Arc::new(Self {
            store,
            prefix,
            read,
            numbering,
            rows: RwLock::default(),
            reached: watch::Sender::new(Revision(0)),
            changes: watch::Sender::new(0),
            pins: watch::Sender::new(0),
            switches: broadcast::Sender::new(CHANGES_MAX),
            accesses: broadcast::Sender::new(CHANGES_MAX),
            failure: Mutex::new(None),
            skipped: AtomicBool::new(false),
        });
        let at = directory.load().await?;
        let following = Arc::clone(&directory);
        tokio::spawn(async move {
            let _end_with_it = EndWithPanic("the follower of the directory");
            tokio::select! {
                // Stop is polled first: a stopped directory needs no changes.
                biased;
                () = stop.cancelled() => {}
                () = following.run(at) => {}
            }
        });
        Ok(directory)
    }

    /// Returns the plane of this name, from memory.
    #[must_use]
    pub fn named(&self, name: &str) -> Option<Arc<DirectoryEntry>> {
        self.rows.read().by_name.get(name).cloned()
    }

    /// Returns the plane of this id, from memory.
    #[must_use]
    pub fn by_id(&self, id: &str) -> Option<Arc<DirectoryEntry>> {
        self.rows.read().by_id.get(id).cloned()
    }

    /// Returns whether every record could be decoded.
    pub fn is_whole(&self) -> bool {
        self.failure.lock().is_none() && !self.skipped.load(Ordering::Acquire)
    }

    /// Returns the number of planes.
    #[must_use]
    pub fn len(&self) -> usize {
        self.rows.read().by_id.len()
    }

    /// Returns whether there are no planes.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Returns the first `most` planes by name.
    #[must_use]
    pub fn first(&self, most: usize) -> Vec<Arc<DirectoryEntry>> {
        let mut entries: Vec<Arc<DirectoryEntry>> =
            self.rows.read().by_name.values().cloned().collect();
        entries.sort_unstable_by(|a, b| a.name.cmp(&b.name));
        entries.truncate(most);
        entries
    }

    /// Returns a receiver that is notified each time that rows are added, removed or changed.
    #[must_use]
    pub fn changes(&self) -> watch::Receiver<u64> {
        self.changes.subscribe()
    }

    /// Returns a receiver that is notified each time that the pin of a plane changes.
    #[must_use]
    pub fn pin_changes(&self) -> watch::Receiver<u64> {
        self.pins.subscribe()
    }

    /// Returns a receiver of the ids of planes whose switches change. A receiver that lags has to
    /// look at all planes.
    #[must_use]
    pub fn switch_changes(&self) -> broadcast::Receiver<Str> {
        self.switches.subscribe()
    }

    /// Returns a receiver of the ids of planes whose access changes, or that are deleted. A receiver
    /// that lags has to look at all planes.
    #[must_use]
    pub fn access_changes(&self) -> broadcast::Receiver<Str> {
        self.accesses.subscribe()
    }

    /// Returns the reason why the directory does not follow the store at the moment, if it does
    /// not.
    #[must_use]
    pub fn failure(&self) -> Option<String> {
        self.failure.lock().clone()
    }

    /// Waits until the directory has everything up to a revision of the store, at most until the
    /// deadline. Returns whether it has.
    ///
    /// # Cancel safety
    /// Dropping the future does no harm.
    pub async fn reach(&self, revision: Revision, deadline: Instant) -> bool {
        let mut reached = self.reached.subscribe();
        if *reached.borrow() >= revision {
            return true;
        }
        if let Err(error) = self.store.request_progress().await {
            tracing::debug!(%error, "progress could not be requested from the store");
        }
        let reached = reached.wait_for(|reached| *reached >= revision);
        matches!(tokio::time::timeout_at(deadline, reached).await, Ok(Ok(_)))
    }

    async fn run(&self, mut at: Revision) {
        loop {
            let opened = self
                .store
                .watch(self.prefix.clone(), prefix_end(&self.prefix), at)
                .await;
            let ended = match opened {
                Ok(watch) => {
                    *self.failure.lock() = None;
                    self.follow_watch(watch, &mut at).await
                }
                Err(ReadError::Compacted { floor }) => WatchEnd::Compacted { floor },
                Err(error) => WatchEnd::Lost(error.to_string()),
            };
            match ended {
                WatchEnd::Closed => return,
                WatchEnd::Compacted { .. } => match self.load().await {
                    Ok(loaded) => at = loaded,
                    Err(error) => *self.failure.lock() = Some(error.to_string()),
                },
                WatchEnd::Slow | WatchEnd::Lost(_) => {
                    *self.failure.lock() = Some(ended.to_string());
                }
            }
            tokio::time::sleep(RETRY).await;
        }
    }

    async fn follow_watch(&self, mut watch: StoreWatch, at: &mut Revision) -> WatchEnd {
        loop {
            match watch.next().await {
                Ok(batch) => {
                    for event in &batch.events {
                        self.apply(event);
                    }
                    *at = batch.revision;
                    self.advance(batch.revision);
                    if !batch.events.is_empty() {
                        self.notify();
                    }
                }
                Err(end) => return end,
            }
        }
    }

    fn advance(&self, revision: Revision) {
        self.reached.send_if_modified(|reached| {
            let forward = *reached < revision;
            *reached = revision.max(*reached);
            forward
        });
    }

    fn notify(&self) {
        self.changes.send_modify(|changes| *changes += 1);
    }

    fn notify_pins(&self) {
        self.pins.send_modify(|changes| *changes += 1);
    }

    /// Reads all rows and replaces the known ones. Returns the revision that they were read at.
    async fn load(&self) -> Result<Revision, DirectoryError> {
        let (rows, at) = self.read_rows().await?;
        let earlier = std::mem::replace(&mut *self.rows.write(), rows);
        self.advance(at);
        self.notify();
        self.notify_pins();
        // Without a receiver nobody has to know.
        for earlier in earlier.by_id.values() {
            let now = self.by_id(&earlier.id);
            if now.as_ref().is_none_or(|now| !now.admits_as(earlier)) {
                drop(self.accesses.send(earlier.id.clone()));
            }
            if now.is_some_and(|now| now.switches != earlier.switches) {
                drop(self.switches.send(earlier.id.clone()));
            }
        }
        Ok(at)
    }

    /// Reads all rows; again if the store dropped the revision that the read was at. A store that is nearly full keeps
    /// hardly any history.
    async fn read_rows(&self) -> Result<(Rows, Revision), DirectoryError> {
        for _ in 1..LOADS_MAX {
            match self.read_rows_once().await {
                Err(DirectoryError::Read(ReadError::Compacted { .. })) => {}
                done => return done,
            }
        }
        self.read_rows_once().await
    }

    /// Reads all rows at one revision, which is returned with them.
    async fn read_rows_once(&self) -> Result<(Rows, Revision), DirectoryError> {
        let mut rows = Rows::default();
        let mut request = Some(RangeRequest::prefix(self.prefix.clone()));
        let mut at = Revision(0);
        while let Some(page) = request {
            let reply = self.store.range(page.clone()).await?;
            for item in &reply.items {
                let entry = self
                    .entry(&item.key, &item.value, item.modified, Some(item.created))
                    .map_err(|source| DirectoryError::Record {
                        key: String::from_utf8_lossy(&item.key).into_owned(),
                        source,
                    })?;
                match entry {
                    Some((entry, layer)) => drop(rows.put(entry, &layer)),
                    None => self.skipped.store(true, Ordering::Release),
                }
            }
            at = reply.revision;
            request = page.next_page(&reply);
        }
        Ok((rows, at))
    }

    fn apply(&self, event: &StoreEvent) {
        let Some(value) = &event.value else {
            let removed = self.rows.write().remove(name_of(&event.key));
            if let Some(removed) = removed {
                drop(self.accesses.send(removed.id.clone()));
            }
            return;
        };
        match self.entry(&event.key, value, event.revision, None) {
            Ok(Some((entry, layer))) => {
                let id = entry.id.clone();
                let changed = self.rows.write().put(entry, &layer);
                if changed.pin {
                    self.notify_pins();
                }
                // Without a receiver nobody has to know.
                if changed.switches {
                    drop(self.switches.send(id));
                }
                if let Some(id) = changed.access_of {
                    drop(self.accesses.send(id));
                }
            }
            Ok(None) => self.skipped.store(true, Ordering::Release),
            Err(error) => {
                self.skipped.store(true, Ordering::Release);
                tracing::error!(%error, key = ?event.key, "a row of the directory cannot be read");
            }
        }
    }

    /// Reads an entry. `created` is the revision of the key's first put, if the caller knows it.
    fn entry(
        &self,
        key: &Bytes,
        value: &Bytes,
        modified: Revision,
        created: Option<Revision>,
    ) -> Result<Option<(DirectoryEntry, Str)>, RecordError> {
        let Some((object, born)) = external::read(self.numbering.base, modified, value)? else {
            return Ok(None);
        };
        let created = created.or_else(|| {
            let known = self.named(name_of(key));
            let known = known.filter(|known| known.born == born);
            known.map(|known| known.created)
        });
        // A row that was copied is known from the first read on.
        let created = created.unwrap_or_else(|| born.revision(self.numbering.base));
        let NewObject { body, flags, .. } = object;
        Ok((self.read)(&body).map(|row| {
            let entry = DirectoryEntry {
                name: name_of(key).into(),
                id: row.id,
                layer: Arc::default(),
                born_at: row.born_at,
                pin: row.pin,
                switches: row.switches,
                data_key_generation: row.data_key_generation,
                access: row.access.into(),
                born,
                created,
                deleting: flags.has(Flags::DELETING),
                suspended: row.suspended,
            };
            (entry, row.layer)
        }))
    }
}

/// What a put has changed of a known plane.
struct Changed {
    pin: bool,
    switches: bool,
    /// The plane that the name meant before, if other users may use it now.
    access_of: Option<Str>,
}

impl Rows {
    /// Adds or replaces a row.
    fn put(&mut self, mut entry: DirectoryEntry, layer: &str) -> Changed {
        let known = self.layers.iter().find(|known| ***known == *layer);
        entry.layer = known.cloned().unwrap_or_else(|| {
            let fresh: Arc<str> = layer.into();
            self.layers.push(Arc::clone(&fresh));
            fresh
        });
        match self.accesses.get(&entry.access) {
            Some(known) => entry.access = Arc::clone(known),
            None => self.keep_access(&entry.access),
        }
        let known = self.by_id.get(&entry.id);
        let changed = Changed {
            pin: known.is_some_and(|known| known.pin != entry.pin),
            switches: known.is_some_and(|known| known.switches != entry.switches),
            access_of: None,
        };
        let earlier = self.remove(&entry.name);
        let entry = Arc::new(entry);
        let changed = Changed {
            access_of: earlier
                .filter(|earlier| !entry.admits_as(earlier))
                .map(|earlier| earlier.id.clone()),
            ..changed
        };
        self.by_id.insert(entry.id.clone(), Arc::clone(&entry));
        self.by_name.insert(entry.name.clone(), entry);
        changed
    }

    fn keep_access(&mut self, access: &Arc<[u8]>) {
        if self.accesses.len() >= self.sweep_at.max(SWEPT_MIN) {
            self.accesses.retain(|known| Arc::strong_count(known) > 1);
            // Doubled, so that the cost of sweeps per row stays constant on average.
            self.sweep_at = self.accesses.len() * 2;
        }
        self.accesses.insert(Arc::clone(access));
    }

    fn remove(&mut self, name: &str) -> Option<Arc<DirectoryEntry>> {
        let earlier = self.by_name.remove(name)?;
        self.by_id.remove(&earlier.id);
        Some(earlier)
    }
}

/// Returns the last segment of a row's key.
fn name_of(key: &[u8]) -> &str {
    let last = key.rsplit(|byte| *byte == b'/').next();
    last.and_then(|name| std::str::from_utf8(name).ok())
        .unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use polyplane_storage::{FaultyStore, MemoryOptions, MemoryStore, ReadFault};

    use super::*;

    /// Follows an empty directory in a store of which the first reads find that their revision was dropped.
    async fn follow(dropped: usize) -> Result<Arc<Directory>, DirectoryError> {
        let memory = MemoryStore::new(MemoryOptions::default());
        let store = Arc::new(FaultyStore::new(Arc::new(memory)));
        let floor = Revision(7);
        let fault = ReadFault::Fail(ReadError::Compacted { floor });
        store.plan().next_reads(fault, dropped);
        let stop = CancellationToken::new();
        // It is followed no further.
        stop.cancel();
        let (prefix, numbering) = (Bytes::from_static(b"rows/"), Numbering::default());
        Directory::follow(store, prefix, |_| None, numbering, stop).await
    }

    #[tokio::test]
    async fn it_is_read_again_if_the_store_drops_the_revision_that_it_was_read_at() {
        assert!(follow(3).await.is_ok());
        let most = usize::try_from(LOADS_MAX).expect("a few");
        let refused = follow(most).await.err();
        assert!(
            matches!(
                refused,
                Some(DirectoryError::Read(ReadError::Compacted { .. }))
            ),
            "{refused:?}"
        );
    }
}
