//! Documents derived from kinds, made when first asked for and shared by all planes in which the
//! kinds that they are derived from are the same.

pub(crate) mod discovery;
pub(crate) mod openapi;
pub(crate) mod paths;
pub(crate) mod version;

use std::collections::{BTreeMap, HashMap};
use std::sync::{Arc, OnceLock};

use parking_lot::Mutex;
use polyplane_registry::kind::{Group, GroupVersion};
use polyplane_registry::{DocumentId, KindTable};

use crate::documents::discovery::{Discovery, VersionPart};
use crate::documents::openapi::Document;

/// Bytes of discovery documents that are kept, of whole tables and of versions each. Those of the
/// built-in kinds take about half a megabyte.
const DISCOVERY_BYTES_MAX: usize = 16 << 20;
/// Bytes of OpenAPI documents that are kept. Those of the built-in kinds take about two megabytes.
const OPEN_API_BYTES_MAX: usize = 32 << 20;

/// The documents of all kinds in use.
pub(crate) struct Documents {
    address: String,
    versions: Shelf<VersionPart>,
    discovery: Shelf<Discovery>,
    open_api: Shelf<Document>,
}

impl Documents {
    /// `address` is host and port as discovery names them.
    pub(crate) fn new(address: String) -> Self {
        Self {
            address,
            versions: Shelf::new(DISCOVERY_BYTES_MAX),
            discovery: Shelf::new(DISCOVERY_BYTES_MAX),
            open_api: Shelf::new(OPEN_API_BYTES_MAX),
        }
    }

    /// What discovery says of all kinds.
    pub(crate) fn discovery(&self, table: &KindTable) -> Arc<Discovery> {
        self.discovery.get(table.content(), || {
            let part = |group: &Group, version: &GroupVersion| self.part(table, group, version);
            Discovery::new(table, &self.address, part)
        })
    }

    /// What discovery says of a group and version.
    pub(crate) fn version(
        &self,
        table: &KindTable,
        group: &str,
        version: &str,
    ) -> Option<Arc<VersionPart>> {
        let group = table.group(group)?;
        let mut versions = group.versions.iter();
        let version = versions.find(|known| known.version == version)?;
        Some(self.part(table, group, version))
    }

    fn part(&self, table: &KindTable, group: &Group, version: &GroupVersion) -> Arc<VersionPart> {
        let make = || VersionPart::new(table, group, version);
        self.versions.get(version.content, make)
    }

    /// The documents of OpenAPI.
    pub(crate) fn open_api(&self) -> &Shelf<Document> {
        &self.open_api
    }
}

/// What takes room on a [`Shelf`].
pub(crate) trait Weigh {
    /// Bytes on the heap, roughly.
    fn bytes(&self) -> usize;
}

/// Values by the content they are made of. Each is made once, also for callers who ask at the same
/// time. Above `bytes_max` those go that were asked for least recently.
pub(crate) struct Shelf<V> {
    inner: Mutex<Inner<V>>,
    bytes_max: usize,
}

type Cell<V> = Arc<OnceLock<Arc<V>>>;

struct Inner<V> {
    places: HashMap<DocumentId, Place<V>>,
    /// Who was asked for when, by [`Place::asked`].
    order: BTreeMap<u64, DocumentId>,
    asked: u64,
    bytes: usize,
}

struct Place<V> {
    cell: Cell<V>,
    asked: u64,
    /// Zero until the value is made.
    bytes: usize,
}

impl<V: Weigh> Shelf<V> {
    pub(crate) fn new(bytes_max: usize) -> Self {
        Self {
            inner: Mutex::new(Inner {
                places: HashMap::new(),
                order: BTreeMap::new(),
                asked: 0,
                bytes: 0,
            }),
            bytes_max,
        }
    }

    /// The value of this content, made by `make` if it is not there.
    pub(crate) fn get(&self, id: DocumentId, make: impl FnOnce() -> V) -> Arc<V> {
        let cell = self.inner.lock().ask(id);
        let mut is_new = false;
        // Whoever comes second waits here, without the lock of the shelf.
        let value = cell.get_or_init(|| {
            is_new = true;
            Arc::new(make())
        });
        if is_new {
            let bytes = value.bytes().max(1);
            self.inner.lock().weigh(id, &cell, bytes, self.bytes_max);
        }
        Arc::clone(value)
    }
}

impl<V> Inner<V> {
    fn ask(&mut self, id: DocumentId) -> Cell<V> {
        self.asked += 1;
        let asked = self.asked;
        let place = self.places.entry(id).or_insert_with(|| Place {
            cell: Cell::default(),
            asked,
            bytes: 0,
        });
        self.order.remove(&place.asked);
        place.asked = asked;
        self.order.insert(asked, id);
        Arc::clone(&place.cell)
    }

    /// Counts a value that was just made, and drops others if it is one too many.
    fn weigh(&mut self, id: DocumentId, cell: &Cell<V>, bytes: usize, bytes_max: usize) {
        match self.places.get_mut(&id) {
            Some(place) if Arc::ptr_eq(&place.cell, cell) => place.bytes = bytes,
            _ => return,
        }
        self.bytes += bytes;
        while self.bytes > bytes_max {
            // What is being made has no weight yet, and dropping it would have it made twice.
            let is_made = |id: &&DocumentId| self.places[*id].bytes > 0;
            let Some(id) = self.order.values().find(is_made).copied() else {
                break;
            };
            if let Some(place) = self.places.remove(&id) {
                self.order.remove(&place.asked);
                self.bytes -= place.bytes;
            }
        }
    }
}

#[cfg(test)]
mod tests;
