//! The recent history of a plane, read back from the store: the events of the log with the versions
//! they had when they were first published.
//!
//! The plane's own writes carry their versions in their records. External writes carry none, so
//! reading begins with the external objects as they were before the first event.

use std::collections::{HashMap, VecDeque};
use std::sync::Arc;

use bytes::Bytes;
use polyplane_storage::{History, KeyValue, RangeRequest, ReadError, Revision, StoreEvent};
use tokio::sync::Semaphore;

use crate::history::event::Event;
use crate::history::expired_cause::ExpiredCause;
use crate::history::hub::Floor;
use crate::key::{Key, Prefix};
use crate::layers::chain::record::StepsRecord;
use crate::layers::layer_store::LayerStoreError;
use crate::layers::template_values::{TemplateValues, ValuesOverTime};
use crate::plane::Plane;
use crate::record::{Record, RecordError, Stored, copied_point, decode, decode_stored};
use crate::state::entry::{Entry, ObjectRef, Versions};
use crate::version::{Base, Point, Stamp, Version};
use crate::yielding::YieldBudget;

/// Bytes of the objects in the events that are rebuilt at a time. Older events are dropped, as the
/// log would drop them. Without this limit a packed history of a few MiB could fill the memory.
const REBUILT_BYTES_MAX: usize = 64 << 20;

/// Histories that are read at once. With more, planes that wake together after very many writes would fill
/// the memory; with fewer, resumed watches of many planes would wait longer.
const READS_MAX: usize = 8;
pub(crate) static READS: Semaphore = Semaphore::const_new(READS_MAX);

/// The store's history after the revision `after`.
struct Past {
    after: Revision,
    /// Why the events up to `after` are not there.
    cause: ExpiredCause,
    /// The number of the data key, which the plane has given up, of the newest event up to `after`.
    key_gone: Option<u32>,
    history: History,
    /// The external objects as they were at the revision `after`.
    external: Vec<KeyValue>,
}

impl Plane {
    /// Reads the events before the plane was opened, as far as the store still has them, into the
    /// log. A store that does not answer is an error, and the next caller retries. Records that
    /// cannot be decoded count as dropped.
    pub(crate) async fn load_history(&self) -> Result<(), ReadError> {
        // Read before the history: every layer step taken after this point shows in the history.
        let template_values = Arc::clone(&self.published().template_values);
        // The log needs no events from before the birth, so the read begins there.
        let mut after = self.revision_before_birth();
        let mut cause = match self.numbering().copied {
            // No compaction of this store: the copy has no more.
            Some(copied) if copied.begins_at == after => ExpiredCause::BeforeBirth,
            Some(_) | None => ExpiredCause::Compacted,
        };
        // The semaphore is never closed.
        let _read = READS.acquire().await;
        let past = loop {
            match self.read_past(after, cause).await {
                Ok(past) => break past,
                Err(ReadError::Compacted { floor }) if floor > after => {
                    cause = match floor > self.store().status().floor {
                        true => ExpiredCause::Bytes,
                        false => ExpiredCause::Compacted,
                    };
                    after = floor;
                }
                Err(error) => {
                    tracing::warn!(plane = self.id(), %error, "the history cannot be read");
                    return Err(error);
                }
            }
        };
        if let Some(data_key) = past.key_gone {
            let version = self.numbering().version_after(past.after);
            tracing::warn!(
                plane = self.id(),
                data_key,
                %version,
                "the history up to the version is sealed under a data key that was replaced twice \
                 since; watches resume from later versions only"
            );
        }
        let values_over_time = match self.values_over_time(template_values, &past).await {
            Ok(values_over_time) => values_over_time,
            Err(error) => {
                tracing::warn!(plane = self.id(), %error, "the layers of the history cannot be read");
                return match error {
                    LayerStoreError::Read(error) => Err(error),
                    LayerStoreError::Commit(_)
                    | LayerStoreError::Missing(_)
                    | LayerStoreError::Record(_)
                    | LayerStoreError::Layer(_) => Ok(()),
                };
            }
        };
        match self.rebuild(&past, values_over_time).await {
            Ok(Rebuilt { events, floor, .. }) => {
                let events = Vec::from(events);
                let defined = self.context().derive.defined(&events);
                let later = self.floor_of_external();
                self.log().prepend(events, &defined, floor, later);
            }
            Err(error) => {
                tracing::warn!(plane = self.id(), %error, "the history cannot be decoded");
            }
        }
        Ok(())
    }

    /// Returns a revision that is older than the plane's birth, as far as this store has it.
    fn revision_before_birth(&self) -> Revision {
        let numbering = self.numbering();
        let born = numbering.revision_before(self.birth());
        let born = born.min(numbering.revision_before(self.opened().head));
        match numbering.copied {
            Some(copied) if born <= copied.begins_at => copied.begins_at,
            Some(_) | None => Revision(born.0.saturating_sub(1)),
        }
    }

    /// Returns where the history of the external resource begins if the store is a copy: after the copy,
    /// because the replicas of the source, whose objects these were, are not in the copy.
    fn floor_of_external(&self) -> Option<(Prefix, Floor)> {
        let resource = self.follow()?.prefix().resource_prefix();
        let ends = self.numbering().copied?.ends.end();
        Some((resource, Floor::new(ends, ExpiredCause::BeforeBirth)))
    }

    async fn read_past(&self, after: Revision, cause: ExpiredCause) -> Result<Past, ReadError> {
        let (start, end) = self.keys().bounds();
        let mut history = self.store().history(start, end, after).await?;
        let (after, cause, key_gone) = match self.open_events(&mut history.events).await {
            None => (after, cause, None),
            Some((sealed, number)) => {
                history.events.retain(|event| event.revision > sealed);
                (sealed, ExpiredCause::KeyGone, Some(number))
            }
        };
        let mut past = Past {
            after,
            cause,
            key_gone,
            history,
            external: Vec::new(),
        };
        let Some(follow) = self.follow() else {
            return Ok(past);
        };
        if after == Revision(0) {
            return Ok(past);
        }
        let first = RangeRequest {
            at: Some(after),
            ..RangeRequest::prefix(self.keys().prefix(follow.prefix()))
        };
        let mut request = Some(first);
        while let Some(page) = request {
            let reply = self.store().range(page.clone()).await?;
            request = page.next_page(&reply);
            past.external.extend(reply.items);
        }
        Ok(past)
    }

    /// Opens the sealed values of events. Returns the revision of the last event that is sealed under a
    /// data key which the plane has given up, with the key's number. Another value that does not open
    /// stays as it is, and is found where it is decoded.
    async fn open_events(&self, events: &mut [StoreEvent]) -> Option<(Revision, u32)> {
        let keys = self.data_keys()?;
        let mut gone = None;
        let mut yield_budget = YieldBudget::default();
        for event in events {
            yield_budget.spend(event.bytes()).await;
            for value in event.value.iter_mut().chain(&mut event.previous) {
                match keys.open(&event.key, value) {
                    Ok(opened) => *value = opened,
                    Err(RecordError::KeyGone(number)) => gone = Some((event.revision, number)),
                    Err(_) => {}
                }
            }
        }
        gone
    }

    /// Returns the template values for the events of a history. The newest chain does not know the
    /// states before its fold. The step records in the history do: each covers the time since the
    /// record before it.
    async fn values_over_time(
        &self,
        newest: Arc<TemplateValues>,
        past: &Past,
    ) -> Result<ValuesOverTime, LayerStoreError> {
        let chain = Arc::clone(newest.chain());
        let mut values_over_time = ValuesOverTime::new(newest);
        let begins = self.numbering().version_after(past.after);
        if chain.fold().is_none_or(|fold| fold.newest() <= begins) {
            return Ok(values_over_time);
        }
        for event in &past.history.events {
            if let Some((version, steps)) = self.steps_of(event)? {
                let then = steps.landed(version);
                let then = then.resolve(chain.birth(), self.layers()).await?;
                values_over_time.push(version.end_of_revision(), then);
            }
        }
        Ok(values_over_time)
    }

    /// Returns the step record that an event of the store puts, with the version of its first
    /// change.
    fn steps_of(&self, event: &StoreEvent) -> Result<Option<(Version, StepsRecord)>, RecordError> {
        let value = event.value.as_ref();
        let Some(value) = value.filter(|_| event.key == self.keys().steps()) else {
            return Ok(None);
        };
        let stored = decode_stored(value)?;
        let point = stored.point(self.base(), event.revision);
        match stored.record {
            Record::Steps { index, steps } => Ok(Some((point.version(index), steps))),
            _ => Err(RecordError::Damaged),
        }
    }

    /// Returns the events of a history with the versions they had when they were first published.
    async fn rebuild(
        &self,
        past: &Past,
        values_over_time: ValuesOverTime,
    ) -> Result<Rebuilt, RecordError> {
        let opened = self.opened();
        // A version from before the birth belongs to an earlier plane of the same name.
        let oldest = self.numbering().version_after(past.after);
        let floor = if oldest > self.birth() {
            Floor::new(oldest, past.cause)
        } else {
            Floor::new(self.birth(), ExpiredCause::BeforeBirth)
        };
        let mut rebuilt = Rebuilt {
            floor: Floor::new(floor.version.min(opened.head), floor.cause),
            events: VecDeque::new(),
            bytes: 0,
            newest: HashMap::new(),
            values_over_time,
        };
        let mut yield_budget = YieldBudget::default();
        for item in &past.external {
            yield_budget.spend(item.value.len()).await;
            let Some(key) = self.keys().key_of(&item.key)? else {
                continue;
            };
            let stored = decode_stored(&item.value)?;
            let point = stored.point(self.base(), item.modified);
            let (object, versions) = match stored.record {
                Record::External(object) => (object, external_versions(self.base(), item)),
                Record::Object { header, object } => {
                    (object, header.versions(point.version(header.index)))
                }
                Record::Marker => continue,
                Record::Tombstone { .. }
                | Record::Head { .. }
                | Record::Steps { .. }
                | Record::DataKeys(_) => return Err(RecordError::Damaged),
            };
            let entry = self.entry_of(&key, versions, &object);
            rebuilt.newest.insert(key, Some(entry));
        }
        for part in past.history.events.chunk_by(is_of_one_part) {
            let (revision, point) = (part[0].revision, self.point_of(part));
            let numbering = self.numbering();
            if revision > opened.revision || numbering.is_copied_after(opened.head, revision, point)
            {
                break;
            }
            yield_budget
                .spend(part.iter().map(StoreEvent::bytes).sum())
                .await;
            match self.layer_step_of(part)? {
                Some((version, silent)) => rebuilt.layer_step(version, &silent)?,
                None => self.rebuild_part(part, &mut rebuilt)?,
            }
        }
        Ok(rebuilt)
    }

    /// Returns the version and the silent changes of a part if it is the commit of a layer step. (A
    /// silent change made no event.) The part's other operations remove tombstones, which makes no
    /// event either.
    fn layer_step_of(
        &self,
        part: &[StoreEvent],
    ) -> Result<Option<(Version, Vec<u8>)>, RecordError> {
        for event in part {
            if let Some((version, steps)) = self.steps_of(event)? {
                return Ok(Some((version, steps.silent)));
            }
        }
        Ok(None)
    }

    fn rebuild_part(&self, part: &[StoreEvent], rebuilt: &mut Rebuilt) -> Result<(), RecordError> {
        let point = self.point_of(part);
        let mut steps = Vec::with_capacity(part.len());
        let mut external = Vec::new();
        let mut first = None;
        let mut deleted = Vec::new().into_iter();
        for event in part {
            let record = event.value.as_ref().map(decode_stored).transpose()?;
            let record = record.map(|Stored { record, .. }| record);
            if matches!(record, Some(Record::Marker)) {
                continue;
            }
            let Some(key) = self.keys().key_of(&event.key)? else {
                if let Some(Record::Head { index, deleted: of }) = record {
                    first = Some(index);
                    deleted = of.into_iter();
                }
                continue;
            };
            if self
                .follow()
                .is_some_and(|follow| follow.prefix().contains(&key))
            {
                external.push((key, record));
                continue;
            }
            if let Some(Record::Object { header, .. }) = &record {
                first = first.or(header.index.checked_sub(index_of(steps.len())?));
            } else if let Some(Record::Tombstone { index, .. }) = &record {
                first = first.or(index.checked_sub(index_of(steps.len())?));
            }
            steps.push((key, record, event.previous.as_ref()));
        }
        for (at, (key, record)) in external.into_iter().enumerate() {
            let version = point.version(index_of(at)?);
            rebuilt.external_step(self, version, key, record)?;
        }
        let Some(first) = first else {
            // This delete is part of the deletion of the plane's whole range, which no watcher was
            // sent.
            return Ok(());
        };
        for (at, (key, record, before)) in steps.into_iter().enumerate() {
            let index = first
                .checked_add(index_of(at)?)
                .ok_or(RecordError::Damaged)?;
            let version = point.version(index);
            let replaced = match &record {
                Some(Record::Object { header, .. }) => header.previous,
                Some(Record::Tombstone { previous, .. }) => *previous,
                Some(
                    Record::Head { .. }
                    | Record::External(_)
                    | Record::Marker
                    | Record::Steps { .. }
                    | Record::DataKeys(_),
                ) => return Err(RecordError::Damaged),
                None => deleted.next().ok_or(RecordError::Damaged)?,
            };
            let current = match record {
                Some(Record::Object { header, object }) => {
                    let versions = header.versions(version);
                    Some(self.entry_of(&key, versions, &object))
                }
                _ => None,
            };
            rebuilt.step(self, version, key, before, replaced, current)?;
        }
        Ok(())
    }

    /// Returns the point of a part. Values that a copy of the store wrote name it.
    fn point_of(&self, part: &[StoreEvent]) -> Point {
        let values = part.iter().filter_map(|event| event.value.as_ref());
        let copied = values.filter_map(|value| copied_point(value)).next();
        copied.unwrap_or(Point::of(self.base(), part[0].revision))
    }

    /// Returns an entry as it was at these versions; the published entry itself, to share its
    /// memory, if that has not changed since.
    fn entry_of(&self, key: &Key, versions: Versions, object: &crate::NewObject) -> Arc<Entry> {
        let stamp = Stamp::loaded(versions.version);
        let published = self.published();
        match published.resources.get(key) {
            Some(entry) if entry.stamp() == stamp => Arc::clone(entry),
            _ => Entry::own(
                key.clone(),
                stamp,
                object,
                versions,
                &self.context().interner,
            ),
        }
    }
}

/// A log that is being rebuilt from the store's history.
struct Rebuilt {
    floor: Floor,
    events: VecDeque<Arc<Event>>,
    /// Bytes of the objects in `events`.
    bytes: usize,
    /// The newest entry of each key up to the event that is being read; `None` if the entry was
    /// deleted.
    newest: HashMap<Key, Option<Arc<Entry>>>,
    values_over_time: ValuesOverTime,
}

impl Rebuilt {
    fn step(
        &mut self,
        plane: &Plane,
        version: Version,
        key: Key,
        before: Option<&Bytes>,
        replaced: Version,
        current: Option<Arc<Entry>>,
    ) -> Result<(), RecordError> {
        let previous = match self.newest.get(&key) {
            Some(known) => known.clone(),
            None => match before.map(decode).transpose()? {
                Some(Record::Object { header, object }) => {
                    Some(plane.entry_of(&key, header.versions(replaced), &object))
                }
                Some(Record::Tombstone { .. }) => None,
                Some(
                    Record::Head { .. }
                    | Record::External(_)
                    | Record::Marker
                    | Record::Steps { .. }
                    | Record::DataKeys(_),
                ) => return Err(RecordError::Damaged),
                None => self
                    .values_over_time
                    .around(version)
                    .0
                    .template(&key)
                    .cloned(),
            },
        };
        self.newest.insert(key.clone(), current.clone());
        if previous.is_none() && replaced != Version::ZERO && before.is_none() {
            self.forgotten(version);
            return Ok(());
        }
        self.push(version, key, previous, current);
        Ok(())
    }

    /// Adds the events of a layer step's commit. They follow from the two layers.
    fn layer_step(&mut self, version: Version, silent: &[u8]) -> Result<(), RecordError> {
        let template_values = Arc::clone(self.values_over_time.of(version));
        let commit = template_values.chain().commit_at(version);
        let (step, commit) = commit.ok_or(RecordError::Damaged)?;
        let changes = step.difference().changes();
        let changes = changes.get(commit.first..commit.first + commit.count);
        for (offset, change) in changes.ok_or(RecordError::Damaged)?.iter().enumerate() {
            if silent.iter().any(|silent| usize::from(*silent) == offset) {
                continue;
            }
            let version = version.plus(offset);
            let at = |version| {
                template_values
                    .until(version)
                    .template(&change.key)
                    .cloned()
            };
            let (previous, current) = (at(version.before()), at(version));
            self.newest.insert(change.key.clone(), current.clone());
            self.push(version, change.key.clone(), previous, current);
        }
        Ok(())
    }

    /// Adds the event of an external write. The object it replaced is known from the events before
    /// it.
    fn external_step(
        &mut self,
        plane: &Plane,
        version: Version,
        key: Key,
        record: Option<Record>,
    ) -> Result<(), RecordError> {
        let previous = self.newest.get(&key).cloned().flatten();
        let created = previous.as_ref().and_then(|old| {
            ObjectRef::new(Arc::clone(old), self.values_over_time.around(version).1).created()
        });
        let current = match record {
            Some(Record::External(object)) => {
                let created = created.unwrap_or(version);
                Some(plane.entry_of(&key, Versions { version, created }, &object))
            }
            None => None,
            Some(
                Record::Object { .. }
                | Record::Tombstone { .. }
                | Record::Head { .. }
                | Record::Marker
                | Record::Steps { .. }
                | Record::DataKeys(_),
            ) => return Err(RecordError::Damaged),
        };
        self.newest.insert(key.clone(), current.clone());
        if previous.is_none() && current.is_none() {
            self.forgotten(version);
            return Ok(());
        }
        self.push(version, key, previous, current);
        Ok(())
    }

    /// Begins the log after an event whose replaced object the store has compacted.
    fn forgotten(&mut self, version: Version) {
        self.events.clear();
        self.bytes = 0;
        self.floor = Floor::new(version, ExpiredCause::Compacted);
    }

    fn push(
        &mut self,
        version: Version,
        key: Key,
        previous: Option<Arc<Entry>>,
        current: Option<Arc<Entry>>,
    ) {
        let (was, is) = self.values_over_time.around(version);
        let event = Event::new(
            version,
            key,
            previous.map(|entry| ObjectRef::new(entry, was)),
            current.map(|entry| ObjectRef::new(entry, is)),
        );
        self.bytes += object_bytes(&event);
        self.events.push_back(event);
        while self.bytes > REBUILT_BYTES_MAX
            && let Some(oldest) = self.events.pop_front()
        {
            self.bytes -= object_bytes(&oldest);
            self.floor = Floor::new(oldest.version(), ExpiredCause::Bytes);
        }
    }
}

fn object_bytes(event: &Event) -> usize {
    let objects = event.previous().into_iter().chain(event.current());
    objects.map(|object| object.entry().body_len()).sum()
}

/// Returns the versions of an object that was written past the sequencer.
pub(crate) fn external_versions(base: Base, item: &KeyValue) -> Versions {
    Versions {
        version: Version::new(base, item.modified, 0),
        created: Version::new(base, item.created, 0),
    }
}

/// Returns whether two adjacent events belong to the same part. A copy of the store writes several
/// parts in one transaction if all of them consist of puts; a part with deletes has one of its own.
fn is_of_one_part(a: &StoreEvent, b: &StoreEvent) -> bool {
    let point = |event: &StoreEvent| event.value.as_deref().and_then(copied_point);
    let differ = point(a).zip(point(b)).is_some_and(|(a, b)| a != b);
    a.revision == b.revision && !differ
}

fn index_of(at: usize) -> Result<u8, RecordError> {
    u8::try_from(at).map_err(|_| RecordError::Damaged)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::object;
    use crate::{AtError, Committer, Operation, SoleHolder, Write};
    use polyplane_storage::{HISTORY_BYTES_MAX, MemoryOptions, MemoryStore, Store};

    const TEXT_BYTES: usize = 1 << 20;

    async fn open(store: &Arc<dyn Store>, is_packed: bool) -> Arc<Plane> {
        let committer = Committer::new(Arc::clone(store));
        if is_packed {
            committer.begin_packing();
        }
        let guard = SoleHolder::take(Arc::clone(store), "f/a", "me").await;
        let params = guard.expect("taken").empty_plane(committer);
        Plane::open(params).await.expect("it opens")
    }

    /// Writes one object so many times. Returns the versions.
    async fn fill(plane: &Arc<Plane>, writes: usize) -> Vec<Version> {
        let text = "x".repeat(TEXT_BYTES);
        let mut versions = Vec::new();
        for at in 0..writes {
            let put = Operation::Put {
                key: Key::new("", "configmaps", Some("ns"), "x"),
                object: object("x", &at.to_string(), &text),
            };
            let write = Write {
                operations: vec![put],
                ..Write::default()
            };
            plane.submit(write).await.expect("it is written");
            versions.push(plane.snapshot().version());
        }
        versions
    }

    #[tokio::test]
    async fn a_history_that_is_too_long_begins_later() {
        let options = MemoryOptions {
            history_bytes_max: usize::MAX,
            ..MemoryOptions::default()
        };
        let store: Arc<dyn Store> = Arc::new(MemoryStore::new(options));
        let plane = open(&store, false).await;
        // Each event has two objects.
        let versions = fill(&plane, HISTORY_BYTES_MAX / TEXT_BYTES).await;
        let plane = open(&store, false).await;
        let configmaps = Prefix::resource("", "configmaps");
        let old = plane.at(versions[0], &configmaps).await;
        let error = old.expect_err("too long ago");
        assert_eq!(error, AtError::Expired(ExpiredCause::Bytes));
        let [.., before, _] = versions[..] else {
            panic!("it was written")
        };
        let recent = plane.at(before, &configmaps).await;
        assert!(recent.is_ok(), "the newest are there");
    }

    #[tokio::test]
    async fn a_packed_history_takes_a_bounded_amount_of_memory() {
        let store: Arc<dyn Store> = Arc::new(MemoryStore::new(MemoryOptions::default()));
        let plane = open(&store, true).await;
        fill(&plane, 2 * REBUILT_BYTES_MAX / TEXT_BYTES).await;
        let plane = open(&store, true).await;
        let past = plane
            .read_past(Revision(0), ExpiredCause::Compacted)
            .await
            .expect("it answers");
        let values = ValuesOverTime::new(Arc::clone(&plane.published().template_values));
        let rebuilt = plane.rebuild(&past, values).await.expect("ours");
        assert!(rebuilt.bytes <= REBUILT_BYTES_MAX);
        let bytes: usize = rebuilt.events.iter().map(|event| object_bytes(event)).sum();
        assert_eq!(bytes, rebuilt.bytes);
        assert!(rebuilt.bytes > REBUILT_BYTES_MAX - 3 * TEXT_BYTES);
        assert_eq!(rebuilt.floor.cause, ExpiredCause::Bytes);
        let oldest = rebuilt.events.front().expect("the newest are kept");
        assert!(rebuilt.floor.version < oldest.version());
    }
}
