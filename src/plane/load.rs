//! Opening a plane: its state from the store, and later, if somebody asks, its history.

use std::collections::{BTreeSet, HashMap};
use std::sync::Arc;

use bytes::Bytes;
use polyplane_storage::{History, RangeRequest, ReadError, Revision, StoreEvent};

use crate::entry::{Entry, Versions};
use crate::key::Key;
use crate::layer::{Fills, FillsOf, LayerHash};
use crate::log::Event;
use crate::params::PlaneParams;
use crate::plane::{Opened, Parts, Plane};
use crate::record::{KeySpace, Record, RecordError, decode};
use crate::state::{Context, Root};
use crate::version::{Base, Stamp, Version};

/// Why a plane cannot be opened.
#[derive(Debug, thiserror::Error)]
pub enum OpenError {
    /// The store did not answer.
    #[error("cannot read the control plane's range")]
    Read(#[from] ReadError),
    /// What it holds cannot be understood.
    #[error("cannot read {key}")]
    Record {
        /// The key in the store.
        key: String,
        /// What is wrong with its value.
        #[source]
        source: RecordError,
    },
    /// The layer that was handed over is not the one the record names.
    #[error("the record names layer {wanted:?}, given was {given:?}")]
    Layer {
        /// The layer in the record.
        wanted: LayerHash,
        /// The layer that was given.
        given: LayerHash,
    },
    /// The layer has a placeholder that the record does not fill.
    #[error("the record does not fill {0:?}")]
    Unfilled(String),
}

impl Plane {
    /// Loads a plane. The fence must be held.
    ///
    /// # Errors
    /// See [`OpenError`]; nothing was changed.
    pub async fn open(params: PlaneParams) -> Result<Arc<Self>, OpenError> {
        check_layer(&params)?;
        let fills = Fills::new(FillsOf {
            birth: params.record.birth.unwrap_or(params.born),
            birth_time: params.born_at.as_str().into(),
            uid_seed: &params.uid_seed,
            params: &params.record.params,
            layer: &params.layer,
            cache: params.committer.rendered(),
        });
        let context = Context {
            fills,
            indexes: params.indexes.clone().into(),
            interner: Arc::clone(params.committer.interner()),
        };
        let mut root = Root::born(params.layer.resources().clone(), &context);
        let keys = KeySpace::new(&params.record.id);
        let base = Base(params.record.base);
        let mut expiries = BTreeSet::new();
        let mut newest = Revision(0);
        let mut read_at = None;
        let (start, end) = keys.bounds();
        let mut request = Some(RangeRequest::between(start, end));
        while let Some(page) = request {
            let reply = params.committer.store().range(page.clone()).await?;
            request = page.next_page(&reply);
            read_at.get_or_insert(reply.revision);
            for item in reply.items {
                newest = newest.max(item.modified);
                let record = |source| unreadable(&item.key, source);
                let decoded = decode(&item.value).map_err(record)?;
                if matches!(decoded, Record::Marker) {
                    continue;
                }
                let Some(key) = keys.key_of(&item.key).map_err(record)? else {
                    continue;
                };
                match decoded {
                    Record::Object { place, object } => {
                        let version = Version::new(base, item.modified, place.index);
                        let stamp = Stamp::loaded(version);
                        expiries.extend(object.expires.map(|at| (at, key.clone())));
                        let versions = place.versions(version);
                        let entry = Entry::own(key, stamp, &object, versions, &context.interner);
                        root.put(entry, &context);
                    }
                    Record::Foreign(object) => {
                        let version = Version::new(base, item.modified, 0);
                        let created = Version::new(base, item.created, 0);
                        let stamp = Stamp::loaded(version);
                        let versions = Versions { version, created };
                        let entry = Entry::own(key, stamp, &object, versions, &context.interner);
                        root.put(entry, &context);
                    }
                    Record::Tombstone { .. } => {
                        root.remove(&key, &context);
                    }
                    Record::Head { .. } | Record::Marker => {
                        return Err(record(RecordError::Damaged));
                    }
                }
            }
        }
        if newest > Revision(0) {
            root.head = root.head.max(Version::after(base, newest));
        }
        let opened = Opened {
            revision: read_at.unwrap_or_default(),
            head: root.head,
        };
        Ok(Self::assemble(Parts {
            params,
            context,
            keys,
            root,
            opened,
            expiries,
        }))
    }

    /// Reads what the store still knows of the time before the plane was opened into the log. A
    /// store that does not answer is asked again by whoever comes next; what cannot be understood
    /// is as if it had been dropped.
    pub(crate) async fn load_history(&self) -> Result<(), ReadError> {
        let (start, end) = self.keys().bounds();
        let mut after = Revision(0);
        let history = loop {
            match self
                .store()
                .history(start.clone(), end.clone(), after)
                .await
            {
                Ok(history) => break history,
                Err(ReadError::Compacted { floor }) if floor > after => after = floor,
                Err(error) => {
                    tracing::warn!(plane = self.id(), %error, "the history cannot be read");
                    return Err(error);
                }
            }
        };
        match self.rebuild(&history, after) {
            Ok(rebuilt) => self.log().prepend(rebuilt.events, rebuilt.floor),
            Err(error) => {
                tracing::warn!(plane = self.id(), %error, "the history cannot be understood");
            }
        }
        Ok(())
    }

    /// The events of a history with the versions they had when they were first told.
    fn rebuild(&self, history: &History, after: Revision) -> Result<Rebuilt, RecordError> {
        let opened = self.opened();
        // What somebody saw before the plane was born he saw of another one: nothing of it goes on.
        let known = Version::after(self.base(), after).max(self.birth());
        let mut rebuilt = Rebuilt {
            floor: known.min(opened.head),
            events: Vec::new(),
            newest: HashMap::new(),
        };
        let of_revision = |a: &StoreEvent, b: &StoreEvent| a.revision == b.revision;
        for part in history.events.chunk_by(of_revision) {
            if part[0].revision > opened.revision {
                break;
            }
            self.rebuild_part(part, &mut rebuilt)?;
        }
        Ok(rebuilt)
    }

    fn rebuild_part(&self, part: &[StoreEvent], rebuilt: &mut Rebuilt) -> Result<(), RecordError> {
        let mut steps = Vec::with_capacity(part.len());
        let mut first = None;
        let mut deleted = Vec::new().into_iter();
        for event in part {
            let record = event.value.as_ref().map(decode).transpose()?;
            let Some(key) = self.keys().key_of(&event.key)? else {
                if let Some(Record::Head { index, deleted: of }) = record {
                    first = Some(index);
                    deleted = of.into_iter();
                }
                continue;
            };
            if let Some(Record::Object { place, .. }) = &record {
                first = first.or(place.index.checked_sub(index_of(steps.len())?));
            } else if let Some(Record::Tombstone { index, .. }) = &record {
                first = first.or(index.checked_sub(index_of(steps.len())?));
            }
            steps.push((key, record, event.previous.as_ref()));
        }
        let Some(first) = first else {
            // A range that is being deleted: nothing that anybody was told.
            return Ok(());
        };
        let revision = part[0].revision;
        for (at, (key, record, before)) in steps.into_iter().enumerate() {
            let index = first
                .checked_add(index_of(at)?)
                .ok_or(RecordError::Damaged)?;
            let version = Version::new(self.base(), revision, index);
            let replaced = match &record {
                Some(Record::Object { place, .. }) => place.previous,
                Some(Record::Tombstone { previous, .. }) => *previous,
                Some(Record::Head { .. } | Record::Foreign(_) | Record::Marker) => {
                    return Err(RecordError::Damaged);
                }
                None => deleted.next().ok_or(RecordError::Damaged)?,
            };
            let current = match record {
                Some(Record::Object { place, object }) => {
                    let versions = place.versions(version);
                    Some(self.entry_of(&key, versions, &object))
                }
                _ => None,
            };
            rebuilt.step(self, version, key, before, replaced, current)?;
        }
        Ok(())
    }

    /// An entry as it was; the very one that is published, if that has not changed since.
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

/// A log in the making.
struct Rebuilt {
    floor: Version,
    events: Vec<Arc<Event>>,
    /// The newest entry of each key so far; `None` if it was deleted.
    newest: HashMap<Key, Option<Arc<Entry>>>,
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
                Some(Record::Object { place, object }) => {
                    Some(plane.entry_of(&key, place.versions(replaced), &object))
                }
                Some(Record::Tombstone { .. }) => None,
                Some(Record::Head { .. } | Record::Foreign(_) | Record::Marker) => {
                    return Err(RecordError::Damaged);
                }
                None => plane.layer().resources().get(&key).cloned(),
            },
        };
        self.newest.insert(key.clone(), current.clone());
        if previous.is_none() && replaced != Version::ZERO && before.is_none() {
            // The store has forgotten what stood there: the log begins after this event.
            self.events.clear();
            self.floor = version;
            return Ok(());
        }
        let context = plane.context();
        let object = |entry: Arc<Entry>| context.object(&entry);
        self.events.push(Event::new(
            version,
            key,
            previous.map(object),
            current.map(object),
        ));
        Ok(())
    }
}

fn index_of(at: usize) -> Result<u8, RecordError> {
    u8::try_from(at).map_err(|_| RecordError::Damaged)
}

fn check_layer(params: &PlaneParams) -> Result<(), OpenError> {
    let given = params.layer.hash();
    if let Some(link) = params.record.layers.last()
        && link.hash != *given
    {
        return Err(OpenError::Layer {
            wanted: link.hash.clone(),
            given: given.clone(),
        });
    }
    let unfilled =
        |name: &&polyplane_apimachinery::Str| !params.record.params.contains_key(name.as_str());
    match params.layer.params().find(unfilled) {
        Some(name) => Err(OpenError::Unfilled(name.to_string())),
        None => Ok(()),
    }
}

fn unreadable(key: &[u8], source: RecordError) -> OpenError {
    OpenError::Record {
        key: String::from_utf8_lossy(key).into_owned(),
        source,
    }
}
