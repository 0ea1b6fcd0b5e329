//! Publication of external writes: a plane reads the keys that other replicas write from the
//! store's watch, and publishes them and its own commits in revision order.
//!
//! Each commit of the plane also puts a marker key within the watched range. A durable part waits
//! until the watch has delivered everything before its revision, and events that the watch delivers
//! after a marker wait for the marker's part. A marker that this replica has not put was put by a
//! newer owner: nothing after it is published.
//!
//! The task that reads the watch sleeps while only markers come: whoever lands a part reads the watch
//! itself, so a write of a plane that follows costs no switch to another task. Only while a part
//! waits for the watch does its marker wake the task.
//!
//! Invariant: the published state always has everything up to one revision (PROTOCOL 12).

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Weak};
use std::time::Duration;

use bytes::{BufMut, Bytes, BytesMut};
use parking_lot::Mutex;
use polyplane_storage::{
    Backoff, KeyValue, RangeRequest, ReadError, Revision, Store, StoreWatch, WatchBatch, WatchEnd,
    prefix_end,
};
use tokio::sync::Notify;
use tokio::task::AbortHandle;
use tokio::time::{Instant, sleep_until};

use crate::end_with_panic::EndWithPanic;
use crate::history::event::Event;
use crate::history::from_store::external_versions;
use crate::key::{Key, Prefix};
use crate::plane::Plane;
use crate::record::{KeySpace, Record, decode};
use crate::state::entry::{Entry, NewObject, Versions};
use crate::state::overlay::Derive;
use crate::version::{Stamp, Version};
use crate::write::committer::CommitPart;

/// Interval of progress requests to the watch. Without them the bookmarks of idle watchers would fall
/// behind the store's compaction.
const ASK_EVERY: Duration = Duration::from_secs(30);
/// Number of revisions that may wait for a part to become durable. At this number reading the watch
/// stops, so that the queue cannot grow without bound.
const WAITING_MAX: usize = 4096;

/// The external keys of one plane, and the revision up to which they are published.
pub(crate) struct Follow {
    prefix: Prefix,
    /// The common beginning of the store keys of the external objects.
    stored: Bytes,
    /// The marker's store key, directly before all external objects: inside the watched range, but
    /// not an object's key.
    marker: Bytes,
    /// Locked before `state`.
    reader: Mutex<Reader>,
    state: Mutex<Waiting>,
    /// The revision up to which everything is published.
    through: AtomicU64,
    room: Arc<Notify>,
    task: Mutex<Option<AbortHandle>>,
}

/// Changes that the watch has delivered and that are not published yet.
pub(crate) struct Waiting {
    /// The revisions in order.
    queue: VecDeque<FollowedRevision>,
    /// A durable part that is not published yet.
    durable: Option<(CommitPart, Revision)>,
    /// The revision up to which the watch has delivered everything.
    read_through: Revision,
}

/// The changes of one revision of the watch.
struct FollowedRevision {
    revision: Revision,
    content: RevisionContent,
}

enum RevisionContent {
    /// A commit of this plane, recognised by its marker.
    Own,
    External(Vec<ExternalChange>),
}

/// An external change. `None` is a delete.
struct ExternalChange {
    version: Version,
    key: Key,
    object: Option<NewObject>,
    /// The version of the first put, known from a read because the watch has missed that put.
    created: Option<Version>,
}

impl Follow {
    pub(crate) fn new(keys: &KeySpace, prefix: Prefix, from: Revision) -> Arc<Self> {
        let stored = keys.prefix(&prefix);
        let mut marker = BytesMut::from(&stored[..stored.len() - 1]);
        marker.put_u8(b'/' - 1);
        Arc::new(Self {
            prefix,
            stored,
            marker: marker.freeze(),
            reader: Mutex::new(Reader {
                watch: None,
                known: BTreeMap::new(),
                read_through: from,
            }),
            state: Mutex::new(Waiting {
                queue: VecDeque::new(),
                durable: None,
                read_through: from,
            }),
            through: AtomicU64::new(from.0),
            room: Arc::default(),
            task: Mutex::new(None),
        })
    }

    pub(crate) fn prefix(&self) -> &Prefix {
        &self.prefix
    }

    pub(crate) fn marker(&self) -> &Bytes {
        &self.marker
    }

    /// Returns whether a store key is one of the followed keys.
    pub(crate) fn follows(&self, stored: &[u8]) -> bool {
        stored.starts_with(&self.stored)
    }

    /// Returns the revision up to which everything is published.
    pub(crate) fn through(&self) -> Revision {
        Revision(self.through.load(Ordering::Acquire))
    }

    /// Stops following. Returns a durable part that was not published.
    pub(crate) fn stop(&self) -> Option<(CommitPart, Revision)> {
        if let Some(task) = self.task.lock().take() {
            task.abort();
        }
        self.reader.lock().watch = None;
        let mut state = self.state.lock();
        state.queue.clear();
        state.durable.take()
    }

    /// Waits for a publication that began before the pause to finish.
    pub(crate) fn wait_for_publisher(&self) {
        drop(self.state.lock());
    }

    fn bounds(&self) -> (Bytes, Bytes) {
        (self.marker.clone(), prefix_end(&self.stored))
    }
}

impl Drop for Follow {
    fn drop(&mut self) {
        if let Some(task) = self.task.get_mut().take() {
            task.abort();
        }
    }
}

impl Plane {
    /// Begins to follow the external keys, from the state that was loaded.
    pub(crate) fn start_following(self: &Arc<Self>) {
        let Some(follow) = self.follow() else {
            return;
        };
        let published = self.published();
        let known = published.resources.under(follow.prefix());
        let known = known.filter_map(|entry| {
            let version = published.object(entry).version()?;
            Some((entry.key().clone(), version.revision(self.base())))
        });
        follow.reader.lock().known = known.collect();
        let follower = Follower {
            plane: Arc::downgrade(self),
            store: Arc::clone(self.store()),
            follow: Arc::downgrade(follow),
            room: Arc::clone(&follow.room),
            bounds: follow.bounds(),
        };
        // The task ends with the plane's tenure, or when the plane is dropped.
        let task = tokio::spawn(follower.run());
        *follow.task.lock() = Some(task.abort_handle());
    }

    /// Publishes a durable part of this plane once the watch has delivered everything before it.
    pub(crate) fn durable(self: &Arc<Self>, follow: &Follow, part: CommitPart, revision: Revision) {
        let mut reader = follow.reader.lock();
        follow.state.lock().durable = Some((part, revision));
        // An embedded store has delivered the part's marker before it acknowledged the part.
        let _ = reader.read(self, follow);
        drop(reader);
        let has_ended = self.sequencer().lock().ended().is_some();
        // Following was stopped before the part was there, so nothing will publish it.
        let left = follow.state.lock().durable.take_if(|_| has_ended);
        if let Some((part, revision)) = left {
            self.acknowledge(part, revision);
        }
    }

    /// Publishes, after a pause, everything that may be published.
    pub(crate) fn resume_following(self: &Arc<Self>) {
        if let Some(follow) = self.follow() {
            self.advance(follow, &mut follow.state.lock());
        }
    }

    fn advance(self: &Arc<Self>, follow: &Follow, state: &mut Waiting) {
        loop {
            let next = state
                .queue
                .front()
                .map_or(state.read_through, |followed| followed.revision);
            let durable = state.durable.as_ref().map(|(_, revision)| *revision);
            if durable.is_some_and(|durable| durable <= next) {
                if let Some((part, revision)) = state.durable.take() {
                    self.publish_in_order(part, revision);
                }
                let own = |followed: &mut FollowedRevision| {
                    matches!(followed.content, RevisionContent::Own)
                        && Some(followed.revision) == durable
                };
                state.queue.pop_front_if(own);
                continue;
            }
            match state.queue.front().map(|followed| &followed.content) {
                None if self.is_held() => return,
                None => {
                    follow
                        .through
                        .fetch_max(state.read_through.0, Ordering::AcqRel);
                    return;
                }
                Some(RevisionContent::Own) => return,
                Some(RevisionContent::External(_)) if self.is_held() => return,
                Some(RevisionContent::External(_)) => {}
            }
            let Some(FollowedRevision { revision, content }) = state.queue.pop_front() else {
                return;
            };
            if let RevisionContent::External(changes) = content {
                self.publish_external(changes, revision);
            }
            follow.through.fetch_max(revision.0, Ordering::AcqRel);
            follow.room.notify_one();
        }
    }

    fn publish_in_order(self: &Arc<Self>, part: CommitPart, revision: Revision) {
        if self.published().head < Version::new(self.base(), revision, 0) {
            Arc::clone(self).publish_part(part, revision);
        } else {
            // Only a newer owner's commits can have hidden the marker of this one. The tenure has
            // ended or is about to end; the write is durable.
            tracing::error!(
                plane = self.id(),
                "a newer owner's commit hid the marker of this one"
            );
            self.acknowledge(part, revision);
        }
    }

    fn publish_external(&self, changes: Vec<ExternalChange>, revision: Revision) {
        let context = self.context();
        let mut root = (*self.published()).clone();
        let mut events = Vec::with_capacity(changes.len());
        let mut defined = Vec::new();
        let mut done = Vec::with_capacity(changes.len());
        for ExternalChange {
            version,
            key,
            object,
            created,
        } in changes
        {
            let previous = root.resources.get(&key).map(|entry| root.object(entry));
            let created = created.or_else(|| previous.as_ref().and_then(|object| object.created()));
            let current = object.map(|object| {
                let created = created.unwrap_or(version);
                let versions = Versions { version, created };
                let stamp = Stamp::loaded(version);
                Entry::own(key.clone(), stamp, &object, versions, &context.interner)
            });
            if previous.is_none() && current.is_none() {
                continue;
            }
            let known = root.overlay.clone();
            match &current {
                Some(entry) => root.put(Arc::clone(entry), context),
                None => root.remove(&key, context),
            };
            let overlays = [known.as_ref(), root.overlay.as_ref()];
            defined.extend(Derive::changed(overlays, &key, version));
            let object = current.as_ref().map(|entry| root.object(entry));
            events.push(Event::new(version, key.clone(), previous, object));
            done.push((key, current));
        }
        root.head = root.head.max(Version::after(self.base(), revision));
        let head = root.head;
        self.set_revision(revision);
        let publish = || self.publish(root);
        self.log().append(&events, &defined, head, publish);
        self.sequencer().lock().apply_external(&done, head, context);
        self.changed();
    }

    fn queue_followed(
        self: &Arc<Self>,
        follow: &Follow,
        followed: Vec<FollowedRevision>,
        revision: Revision,
    ) {
        let mut state = follow.state.lock();
        state.queue.extend(followed);
        state.read_through = state.read_through.max(revision);
        self.advance(follow, &mut state);
    }
}

/// The reading end of the watch on the external keys.
struct Reader {
    /// `None` while no watch is open.
    watch: Option<StoreWatch>,
    /// The external objects that the watch has delivered, with the revisions of their puts.
    known: BTreeMap<Key, Revision>,
    read_through: Revision,
}

impl Reader {
    /// Queues what the watch has delivered, and publishes what may be published. Stops early while
    /// too much is queued. Returns the reason if the watch has ended.
    fn read(&mut self, plane: &Arc<Plane>, follow: &Follow) -> Result<(), WatchEnd> {
        plane.advance(follow, &mut follow.state.lock());
        loop {
            let Some(watch) = &mut self.watch else {
                return Ok(());
            };
            let (is_full, is_awaited) = {
                let state = follow.state.lock();
                (state.queue.len() >= WAITING_MAX, state.durable.is_some())
            };
            if is_full {
                return Ok(());
            }
            // Set before the last look at the watch: a part that waits misses no marker.
            watch.set_quiet((!is_awaited).then(|| follow.marker.clone()));
            let Some(batch) = watch.try_next() else {
                return Ok(());
            };
            let batch = batch?;
            self.read_through = self.read_through.max(batch.revision);
            let followed = self.parse(plane, follow, batch);
            plane.queue_followed(follow, followed, self.read_through);
        }
    }

    fn parse(
        &mut self,
        plane: &Plane,
        follow: &Follow,
        batch: WatchBatch,
    ) -> Vec<FollowedRevision> {
        let revision = batch.revision;
        let mut followed = Vec::with_capacity(1);
        let mut changes = Vec::new();
        for event in batch.events {
            if event.key == follow.marker {
                followed.push(FollowedRevision {
                    revision,
                    content: RevisionContent::Own,
                });
                continue;
            }
            let object = event.value.map(|value| decode(&value)).transpose();
            let (Ok(Some(key)), Ok(object)) = (plane.keys().key_of(&event.key), object) else {
                tracing::error!(key = ?event.key, "an external value cannot be decoded and is left out");
                continue;
            };
            let object = match object {
                Some(Record::External(object)) => Some(object),
                None => None,
                // The plane itself wrote this key before it began to follow external keys.
                Some(_) => continue,
            };
            match &object {
                Some(_) => self.known.insert(key.clone(), revision),
                None => self.known.remove(&key),
            };
            let index = u8::try_from(changes.len()).unwrap_or(Version::END);
            changes.push(ExternalChange {
                version: Version::new(plane.base(), revision, index),
                key,
                object,
                created: None,
            });
        }
        if !changes.is_empty() {
            followed.push(FollowedRevision {
                revision,
                content: RevisionContent::External(changes),
            });
        }
        followed
    }

    /// Returns the difference between what the watch has delivered and these keys, the external ones
    /// and the marker at one revision, and takes it as delivered. The revisions of deletes that the
    /// watch has missed are unknown, except that each delete had a revision of its own: they get the
    /// earliest revisions that no other change has.
    fn difference(
        &mut self,
        plane: &Plane,
        follow: &Follow,
        (read_at, items): (Revision, Vec<KeyValue>),
    ) -> Vec<FollowedRevision> {
        let mut followed = Vec::new();
        let mut gone = std::mem::take(&mut self.known);
        for item in items {
            if item.key == follow.marker {
                if item.modified > self.read_through {
                    followed.push(FollowedRevision {
                        revision: item.modified,
                        content: RevisionContent::Own,
                    });
                }
                continue;
            }
            let object = decode(&item.value);
            let (Ok(Some(key)), Ok(Record::External(object))) =
                (plane.keys().key_of(&item.key), object)
            else {
                tracing::error!(key = ?item.key, "an external value cannot be decoded and is left out");
                continue;
            };
            gone.remove(&key);
            self.known.insert(key.clone(), item.modified);
            if item.modified > self.read_through {
                let versions = external_versions(plane.base(), &item);
                let change = ExternalChange {
                    version: versions.version,
                    key,
                    object: Some(object),
                    created: Some(versions.created),
                };
                followed.push(FollowedRevision {
                    revision: item.modified,
                    content: RevisionContent::External(vec![change]),
                });
            }
        }
        let used: BTreeSet<u64> = followed
            .iter()
            .map(|followed| followed.revision.0)
            .collect();
        let free =
            (self.read_through.0 + 1..=read_at.0).filter(|revision| !used.contains(revision));
        for (revision, key) in free.zip(gone.into_keys()) {
            let revision = Revision(revision);
            let change = ExternalChange {
                version: Version::new(plane.base(), revision, 0),
                key,
                object: None,
                created: None,
            };
            followed.push(FollowedRevision {
                revision,
                content: RevisionContent::External(vec![change]),
            });
        }
        followed.sort_by_key(|followed| followed.revision);
        self.read_through = self.read_through.max(read_at);
        followed
    }
}

/// The task that keeps the watch open, and reads it while nobody else does.
struct Follower {
    plane: Weak<Plane>,
    store: Arc<dyn Store>,
    follow: Weak<Follow>,
    room: Arc<Notify>,
    bounds: (Bytes, Bytes),
}

impl Follower {
    async fn run(self) {
        let _end_with_it = EndWithPanic("the follower of a plane's records");
        let mut backoff = Backoff::default();
        loop {
            let Some(before) = self.read_through() else {
                return;
            };
            let (start, end) = self.bounds.clone();
            let error = match self.store.watch(start, end, before).await {
                Ok(watch) => match self.read(watch).await {
                    Some(end) => end.to_string(),
                    None => return,
                },
                Err(ReadError::Compacted { .. }) => match self.reread().await {
                    Some(Ok(())) => continue,
                    Some(Err(error)) => error.to_string(),
                    None => return,
                },
                Err(error) => error.to_string(),
            };
            if self.read_through().is_some_and(|through| through > before) {
                backoff = Backoff::default();
            }
            tracing::debug!(
                error,
                "the watch on external keys ended and is opened again"
            );
            backoff.wait().await;
        }
    }

    fn read_through(&self) -> Option<Revision> {
        let follow = self.follow.upgrade()?;
        let reader = follow.reader.lock();
        Some(reader.read_through)
    }

    /// Reads a watch to its end. Returns `None` if the plane was dropped.
    async fn read(&self, watch: StoreWatch) -> Option<WatchEnd> {
        let arrivals = watch.arrivals();
        self.follow.upgrade()?.reader.lock().watch = Some(watch);
        let mut ask_at = Instant::now() + ASK_EVERY;
        loop {
            {
                let (plane, follow) = (self.plane.upgrade()?, self.follow.upgrade()?);
                let mut reader = follow.reader.lock();
                if let Err(end) = reader.read(&plane, &follow) {
                    reader.watch = None;
                    return Some(end);
                }
            }
            tokio::select! {
                () = arrivals.wait() => {}
                () = self.room.notified() => {}
                () = sleep_until(ask_at) => {
                    // Progress keeps the bookmarks of idle watchers ahead of compaction.
                    let asked = self.store.request_progress().await;
                    tracing::trace!(?asked, "requested progress of the watch on external keys");
                    ask_at = Instant::now() + ASK_EVERY;
                }
            }
        }
    }

    /// Returns the external keys and the marker, at one revision.
    async fn read_keys(&self) -> Result<(Revision, Vec<KeyValue>), ReadError> {
        let (start, end) = self.bounds.clone();
        let mut request = Some(RangeRequest::between(start, end));
        let mut items = Vec::new();
        let mut read_at = None;
        while let Some(page) = request {
            let reply = self.store.range(page.clone()).await?;
            request = page.next_page(&reply);
            read_at.get_or_insert(reply.revision);
            items.extend(reply.items);
        }
        Ok((read_at.unwrap_or_default(), items))
    }

    /// Reads the external keys and queues the difference, because the store has compacted changes
    /// that the watch missed. Returns `None` if the plane was dropped.
    async fn reread(&self) -> Option<Result<(), ReadError>> {
        let read = match self.read_keys().await {
            Ok(read) => read,
            Err(error) => return Some(Err(error)),
        };
        loop {
            {
                let (plane, follow) = (self.plane.upgrade()?, self.follow.upgrade()?);
                let mut reader = follow.reader.lock();
                if follow.state.lock().queue.len() < WAITING_MAX {
                    let followed = reader.difference(&plane, &follow, read);
                    plane.queue_followed(&follow, followed, reader.read_through);
                    return Some(Ok(()));
                }
            }
            self.room.notified().await;
        }
    }
}
