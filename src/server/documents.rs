//! Discovery and OpenAPI: documents derived from the kinds of a plane, and the paths that show
//! them.
//!
//! A document is made at the first request for it and shared by all planes with the same kinds, as
//! far as the document shows them. This module knows nothing of single objects.

pub(crate) mod discovery;
pub(crate) mod openapi;
pub(crate) mod openid;
pub(crate) mod paths;
pub(crate) mod version;

use std::collections::{BTreeMap, HashMap};
use std::sync::{Arc, OnceLock};

use bytes::Bytes;
use parking_lot::Mutex;
use polyplane_apimachinery::status::ApiError;
use polyplane_plane::{Memory, Reservation, Share};
use polyplane_registry::answer::held::full;
use polyplane_registry::{DocumentId, ServedGroup, ServedGroups, ServedVersion};

use crate::documents::discovery::{Discovery, VersionPart};
use crate::documents::openapi::OpenApiDocuments;
use crate::operations::exposition::{Exposition, Kind};

/// Bytes of discovery documents in each of the two caches, that of whole tables and that of
/// versions. The built-in kinds need about half a megabyte; a cache below that would make documents
/// again for each request.
const DISCOVERY_BYTES_MAX: usize = 16 << 20;
/// Bytes of the longest document of discovery that is made, as [`listed_bytes`] estimates them. Each version of a
/// definition lists all its short names and categories, so one definition could make gigabytes.
const DISCOVERED_BYTES_MAX: usize = 16 << 20;
/// Bytes of a document of discovery from which on it counts in the share of answers. Those of most planes are shorter.
const COUNTED_BYTES_MIN: usize = 1 << 20;
/// Bytes that a document of discovery has about a kind beside its short names and categories, as an estimate.
const LISTED_BYTES: usize = 1 << 10;
/// Number of times that a kind is in memory while the documents of a table are made: in the two lists of its version, and
/// in the two versions of the aggregated document.
const LISTED_TIMES: usize = 4;
/// Bytes of OpenAPI documents in the cache. The built-in kinds need about two megabytes; a cache
/// below that would make documents again for each request.
const OPEN_API_BYTES_MAX: usize = 32 << 20;
/// As [`OPEN_API_BYTES_MAX`], however small the memory budget is.
const OPEN_API_BYTES_MIN: usize = 4 << 20;
/// The part of what one plane may have of the share of answers that cached OpenAPI documents may have. With more, they
/// would leave little to answers.
const OPEN_API_PART: usize = 4;
/// Bytes of the hashes of OpenAPI documents: about 40 000 hashes. If those of one plane did not fit, a
/// change of one definition would make all documents of the plane again.
const OPEN_API_HASHES_BYTES_MAX: usize = 16 << 20;

/// The documents of all kinds that any plane serves.
pub(crate) struct Documents {
    address: String,
    /// The most memory of answers that a plane can get.
    room_max: usize,
    versions: DocumentCache<VersionPart>,
    discovery: DocumentCache<Discovery>,
    open_api: OpenApiDocuments,
}

impl Documents {
    /// Creates empty caches. `address` is the host and port that discovery shows. OpenAPI documents of kinds that objects
    /// define count in the share of answers.
    pub(crate) fn new(address: String, memory: &Memory) -> Self {
        let room_max = memory.most_for_one(Share::Answers);
        let open_api_bytes = room_max / OPEN_API_PART;
        let open_api_bytes = open_api_bytes.clamp(OPEN_API_BYTES_MIN, OPEN_API_BYTES_MAX);
        Self {
            address,
            room_max,
            versions: DocumentCache::new(DISCOVERY_BYTES_MAX),
            discovery: DocumentCache::new(DISCOVERY_BYTES_MAX),
            open_api: OpenApiDocuments::new(open_api_bytes),
        }
    }

    /// Returns the discovery documents of all kinds in `table`.
    ///
    /// # Errors
    /// Returns 413 if they would be too long, and 429 if there is no memory for them now.
    pub(crate) fn discovery(
        &self,
        table: &ServedGroups,
        take: Take<'_>,
    ) -> Result<Arc<Discovery>, ApiError> {
        if let Some(found) = self.discovery.find(table.content) {
            return Ok(found);
        }
        let versions = table.groups.iter().flat_map(|group| &group.versions);
        let room = self.listing_room(versions, take)?;
        Ok(self.discovery.get(table.content, || {
            let part =
                |group: &ServedGroup, version: &ServedVersion| self.part(group, version, take);
            let mut made = Discovery::new(table, &self.address, part);
            drop(room);
            made.count(|document| counted(document, take));
            made
        }))
    }

    /// Returns the discovery documents of a group and version; `None` if there is no such version.
    ///
    /// # Errors
    /// As [`Self::discovery`].
    pub(crate) fn version(
        &self,
        table: &ServedGroups,
        (group, version): (&str, &str),
        take: Take<'_>,
    ) -> Result<Option<Arc<VersionPart>>, ApiError> {
        let Some(group) = table.group(group) else {
            return Ok(None);
        };
        let mut versions = group.versions.iter();
        let Some(version) = versions.find(|known| known.version == version) else {
            return Ok(None);
        };
        if let Some(found) = self.versions.find(version.content) {
            return Ok(Some(found));
        }
        let _room = self.listing_room([version], take)?;
        Ok(Some(self.part(group, version, take)))
    }

    /// Reserves memory in which documents of discovery are made; `None` if they are short.
    fn listing_room<'v>(
        &self,
        versions: impl IntoIterator<Item = &'v ServedVersion>,
        take: Take<'_>,
    ) -> Result<Option<Reservation>, ApiError> {
        let bytes = listed_bytes(versions);
        if bytes > DISCOVERED_BYTES_MAX {
            return Err(ApiError::request_entity_too_large(format_args!(
                "the definitions of this control plane make a document of about {bytes} bytes, and the server makes \
                 documents of discovery of at most {DISCOVERED_BYTES_MAX}; each version of a definition lists its \
                 short names and categories"
            )));
        }
        if bytes < COUNTED_BYTES_MIN {
            return Ok(None);
        }
        let room = take(self.room_max.min(LISTED_TIMES * bytes));
        room.map(Some).ok_or_else(full)
    }

    fn part(
        &self,
        group: &ServedGroup,
        version: &ServedVersion,
        take: Take<'_>,
    ) -> Arc<VersionPart> {
        self.versions.get(version.content, || {
            let mut made = VersionPart::new(group, version);
            made.count(|document| counted(document, take));
            made
        })
    }

    /// Writes how many documents were made, and drops those that no plane needs any more.
    pub(crate) fn expose(&self, out: &mut Exposition) {
        self.open_api.drop_outdated();
        let name = "polyplane_documents_made_total";
        let help = "Documents about kinds that were made, because no control plane with the same kinds had needed them.";
        out.family(name, Kind::Counter, help);
        let discovery = self.versions.made() + self.discovery.made();
        for (document, made) in [("discovery", discovery), ("openapi", self.open_api.made())] {
            out.sample(name, &[("document", document)], made);
        }
    }

    /// Returns the OpenAPI documents.
    pub(crate) fn open_api(&self) -> &OpenApiDocuments {
        &self.open_api
    }
}

/// Reserves memory of the share of answers for the plane that needs a document.
pub(crate) type Take<'t> = &'t dyn Fn(usize) -> Option<Reservation>;

/// Returns about how many bytes the kinds that objects define take in a document of discovery.
fn listed_bytes<'v>(versions: impl IntoIterator<Item = &'v ServedVersion>) -> usize {
    let rows = versions
        .into_iter()
        .flat_map(|version| &version.resources)
        .filter(|row| row.custom.is_some());
    let bytes = rows.map(|row| {
        let names = row.short_names.iter().chain(&row.categories);
        LISTED_BYTES + names.map(|name| name.len()).sum::<usize>()
    });
    bytes.sum()
}

/// Counts a long document of discovery as long as it is cached or sent.
fn counted(document: Bytes, take: Take<'_>) -> Bytes {
    if document.len() < COUNTED_BYTES_MIN {
        return document;
    }
    match take(document.len()) {
        Some(room) => room.keep(document),
        None => document,
    }
}

/// A value that a [`DocumentCache`] can hold.
pub(crate) trait HeapSize {
    /// Returns the approximate number of bytes on the heap.
    fn bytes(&self) -> usize;

    /// Returns whether nobody has the content any more from which the value is derived.
    fn is_outdated(&self) -> bool {
        false
    }
}

/// Values by the content from which they are derived. Each is made once, even if several callers
/// need it at the same time. Above `bytes_max` the least recently used values are dropped. A value
/// that is larger than that is returned and not kept.
pub(crate) struct DocumentCache<V> {
    state: Mutex<CacheState<V>>,
    bytes_max: usize,
}

type Cell<V> = Arc<OnceLock<Arc<V>>>;

struct CacheState<V> {
    entries: HashMap<DocumentId, CachedDocument<V>>,
    /// The entries by [`CachedDocument::used_at`], least recently used first.
    order: BTreeMap<u64, DocumentId>,
    /// The number of uses, which is the clock of `order`.
    uses: u64,
    /// The number of values that were made.
    made: u64,
    /// The value of `made` at which outdated values are dropped.
    drops_at: u64,
    bytes: usize,
}

struct CachedDocument<V> {
    cell: Cell<V>,
    used_at: u64,
    /// The value's bytes; 0 until the value is made.
    bytes: usize,
}

impl<V: HeapSize> CachedDocument<V> {
    /// Returns whether the value is outdated. One whose bytes are not counted yet is not.
    fn is_outdated(&self) -> bool {
        let value = self.cell.get();
        self.bytes > 0 && value.is_some_and(|value| value.is_outdated())
    }
}

impl<V: HeapSize> DocumentCache<V> {
    pub(crate) fn new(bytes_max: usize) -> Self {
        Self {
            state: Mutex::new(CacheState {
                entries: HashMap::new(),
                order: BTreeMap::new(),
                uses: 0,
                made: 0,
                drops_at: 0,
                bytes: 0,
            }),
            bytes_max,
        }
    }

    fn made(&self) -> u64 {
        self.state.lock().made
    }

    /// Drops the values that are outdated.
    pub(crate) fn drop_outdated(&self) {
        self.state.lock().drop_outdated();
    }

    /// Returns the value of this content if the cache has it.
    pub(crate) fn find(&self, id: DocumentId) -> Option<Arc<V>> {
        let mut state = self.state.lock();
        let found = Arc::clone(state.entries.get(&id)?.cell.get()?);
        state.touch(id);
        Some(found)
    }

    /// Returns the value of this content. If the cache does not have it, `make` makes it.
    ///
    /// A second caller blocks its thread until the first has made the value, for at most as long as it would need to
    /// make it. So it waits where the value is made: aside from the worker threads for OpenAPI documents, of which long
    /// ones have had their turn before (`MakingTurns`), and in a turn of the plane for discovery, which takes
    /// milliseconds (`Pipeline::path_of`).
    pub(crate) fn get(&self, id: DocumentId, make: impl FnOnce() -> V) -> Arc<V> {
        let cell = self.state.lock().touch(id);
        let mut is_new = false;
        // A second caller waits here for the first, without holding the lock of the cache.
        let value = cell.get_or_init(|| {
            is_new = true;
            Arc::new(make())
        });
        if is_new {
            let bytes = value.bytes().max(1);
            let mut state = self.state.lock();
            state.add_bytes(id, &cell, bytes, self.bytes_max);
            // As rarely as there are values, because it looks at all of them.
            if state.made >= state.drops_at {
                state.drop_outdated();
            }
        }
        Arc::clone(value)
    }
}

impl<V: HeapSize> CacheState<V> {
    fn drop_outdated(&mut self) {
        let entries = self.entries.iter();
        let outdated = entries.filter(|(_, entry)| entry.is_outdated());
        let outdated: Vec<DocumentId> = outdated.map(|(id, _)| *id).collect();
        for id in outdated {
            self.remove(id);
        }
        self.drops_at = self.made + self.entries.len() as u64;
    }
}

impl<V> CacheState<V> {
    fn touch(&mut self, id: DocumentId) -> Cell<V> {
        self.uses += 1;
        let used_at = self.uses;
        let entry = self.entries.entry(id).or_insert_with(|| CachedDocument {
            cell: Cell::default(),
            used_at,
            bytes: 0,
        });
        self.order.remove(&entry.used_at);
        entry.used_at = used_at;
        self.order.insert(used_at, id);
        Arc::clone(&entry.cell)
    }

    /// Counts the bytes of a new value, and drops the least recently used ones above the limit.
    fn add_bytes(&mut self, id: DocumentId, cell: &Cell<V>, bytes: usize, bytes_max: usize) {
        self.made += 1;
        match self.entries.get_mut(&id) {
            Some(entry) if Arc::ptr_eq(&entry.cell, cell) => entry.bytes = bytes,
            _ => return,
        }
        self.bytes += bytes;
        if bytes > bytes_max {
            // Dropping all others would make no room for it.
            self.remove(id);
            return;
        }
        // It may have been made of others in this cache, which would otherwise count as used after it.
        self.touch(id);
        while self.bytes > bytes_max {
            // A value that is still being made counts no bytes yet; dropping it would make it
            // twice.
            let is_made = |id: &&DocumentId| self.entries[*id].bytes > 0;
            let Some(id) = self.order.values().find(is_made).copied() else {
                break;
            };
            self.remove(id);
        }
    }

    fn remove(&mut self, id: DocumentId) {
        if let Some(entry) = self.entries.remove(&id) {
            self.order.remove(&entry.used_at);
            self.bytes -= entry.bytes;
        }
    }
}

#[cfg(test)]
mod tests;
