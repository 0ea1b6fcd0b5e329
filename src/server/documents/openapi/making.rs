//! The making of documents: who makes one when, and the memory that it may take.
//!
//! A document is about as long as the schemas of all kinds in it. Those of planes with few small definitions are made at
//! once. A long one waits for its turn: a plane makes one at a time, and the process [`MAKINGS_MAX`]. While it is made, what
//! that takes counts in the share of answers; afterwards the compressed document does, for the plane that needed it,
//! as long as it is cached or sent. It is dropped from the cache once no plane has all of its definitions.

use std::collections::HashMap;
use std::sync::{Arc, Weak};

use parking_lot::Mutex;
use polyplane_apimachinery::status::ApiError;
use polyplane_fairness::PlaneMeter;
use polyplane_plane::Reservation;
use polyplane_registry::answer::held::full;
use polyplane_registry::kinds::custom::CustomSchema;
use polyplane_registry::{DocumentId, ServedVersion};
use tokio::sync::{OwnedMutexGuard, Semaphore, SemaphorePermit};

use super::OpenApiDocuments;
use super::packed::Document;
use crate::documents::Take;

/// Bytes of the longest document that is made, as [`Sources::bytes`] estimates them. Upstream has no limit; here a plane
/// with more definitions would take the memory and the time of all others.
const DOCUMENT_BYTES_MAX: usize = 256 << 20;
/// Bytes of a document from which on it waits for its turn and is refused if there is no memory. Those of most planes are
/// shorter, and are made while others wait.
const LONG_BYTES: usize = 1 << 20;
/// Bytes of a document beside the schema of a kind: its list, its paths and their operations.
const KIND_BYTES: usize = 16 << 10;
/// Number of times as much memory as its text that the tree of a schema takes.
const TREE_TIMES: usize = 8;
/// Long documents that are made at a time. With more, they would take the memory of answers from each other; with one, the
/// longest would hold up all others.
const MAKINGS_MAX: usize = 2;

/// What the kinds that objects define add to a document.
#[derive(Default)]
pub(super) struct Sources {
    schemas: Vec<Weak<dyn CustomSchema>>,
    /// About how many bytes of the document are about these kinds.
    pub bytes: usize,
    /// Bytes of the longest schema.
    longest: usize,
}

impl Sources {
    pub(super) fn of<'v>(versions: impl IntoIterator<Item = &'v ServedVersion>) -> Self {
        let mut sources = Self::default();
        let rows = versions.into_iter().flat_map(|version| &version.resources);
        for custom in rows.filter_map(|row| row.custom.as_ref()) {
            let length = custom.schema.source().len();
            sources.bytes += KIND_BYTES + length;
            sources.longest = sources.longest.max(length);
            sources.schemas.push(Arc::downgrade(&custom.schema));
        }
        sources
    }

    fn is_long(&self) -> bool {
        self.bytes >= LONG_BYTES
    }
}

/// What a document holds as long as it lives.
#[derive(Default)]
pub(super) struct Held {
    /// The memory that it takes; `None` if none of it is due to definitions, or there was no room for a short one.
    pub memory: Option<Reservation>,
    /// The schemas that it was made of. Planes with their definitions keep them alive.
    pub schemas: Vec<Weak<dyn CustomSchema>>,
}

/// What is needed to make documents for a plane.
#[derive(Clone, Copy)]
pub(crate) struct Making<'m> {
    pub documents: &'m OpenApiDocuments,
    /// Reserves memory of the share of answers for the plane.
    pub take: Take<'m>,
    /// The most memory that the plane can get.
    pub bytes_max: usize,
}

impl Making<'_> {
    /// Returns a document from the cache, or makes it if there is memory for it.
    ///
    /// # Errors
    /// Returns 413 if the document would be too long, and 429 if there is no memory for it now.
    pub(super) fn document(
        &self,
        id: DocumentId,
        sources: impl FnOnce() -> Sources,
        make: impl FnOnce(Held) -> Document,
    ) -> Result<Arc<Document>, ApiError> {
        let cache = &self.documents.cache;
        if let Some(found) = cache.find(id) {
            return Ok(found);
        }
        let held = self.hold(sources())?;
        Ok(cache.get(id, || make(held)))
    }

    /// Returns whether a document of so much would be too long.
    pub(super) fn is_too_long(&self, sources: &Sources) -> bool {
        sources.bytes > self.document_bytes_max()
    }

    fn document_bytes_max(&self) -> usize {
        DOCUMENT_BYTES_MAX.min(self.bytes_max)
    }

    /// Reserves the memory that the making takes.
    fn hold(&self, sources: Sources) -> Result<Held, ApiError> {
        if self.is_too_long(&sources) {
            let (bytes, bytes_max) = (sources.bytes, self.document_bytes_max());
            return Err(ApiError::request_entity_too_large(format_args!(
                "the definitions of this control plane make a document of about {bytes} bytes, and the server makes \
                 OpenAPI documents of at most {bytes_max}; those of single versions below /openapi/v3 are shorter"
            )));
        }
        let is_long = sources.is_long();
        let bytes = sources.bytes + TREE_TIMES * sources.longest;
        let memory = match sources.bytes {
            0 => None,
            _ => (self.take)(bytes.min(self.bytes_max)),
        };
        if is_long && memory.is_none() {
            return Err(full());
        }
        Ok(Held {
            memory,
            schemas: sources.schemas,
        })
    }
}

/// The turns in which long documents are made.
pub(super) struct MakingTurns {
    /// The planes that make one or wait to do so, by the address of their meter.
    planes: Mutex<HashMap<usize, Weak<tokio::sync::Mutex<()>>>>,
    places: Semaphore,
}

/// The turn of a plane.
pub(super) struct MakingTurn<'t> {
    _place: Option<SemaphorePermit<'t>>,
    _plane: OwnedMutexGuard<()>,
}

impl MakingTurns {
    pub(super) fn new() -> Self {
        Self {
            planes: Mutex::default(),
            places: Semaphore::new(MAKINGS_MAX),
        }
    }

    /// Waits until the plane may make a document of so much; returns `None` at once if it is short.
    ///
    /// # Cancel safety
    /// Dropping the future leaves the turn to the next one.
    pub(super) async fn enter(
        &self,
        meter: &Arc<PlaneMeter>,
        sources: &Sources,
    ) -> Option<MakingTurn<'_>> {
        if !sources.is_long() {
            return None;
        }
        // The plane's turn first: one with many requests waits for a place only once.
        let plane = self.of_plane(meter).lock_owned().await;
        Some(MakingTurn {
            _place: self.places.acquire().await.ok(),
            _plane: plane,
        })
    }

    fn of_plane(&self, meter: &Arc<PlaneMeter>) -> Arc<tokio::sync::Mutex<()>> {
        let key = Arc::as_ptr(meter).addr();
        let mut planes = self.planes.lock();
        if let Some(turn) = planes.get(&key).and_then(Weak::upgrade) {
            return turn;
        }
        planes.retain(|_, turn| turn.strong_count() > 0);
        let turn = Arc::default();
        planes.insert(key, Arc::downgrade(&turn));
        turn
    }
}

#[cfg(test)]
mod tests {
    use futures_util::FutureExt as _;
    use polyplane_apimachinery::json;
    use polyplane_apimachinery::status::Reason;
    use polyplane_plane::{Memory, Share};

    use super::super::node::Node;
    use super::super::packed::Packer;
    use super::*;
    use crate::documents::tests::custom_schema;

    /// Returns what a document of so many bytes is made of.
    fn sources(schema: &Arc<dyn CustomSchema>, bytes: usize) -> Sources {
        Sources {
            schemas: vec![Arc::downgrade(schema)],
            bytes,
            longest: 0,
        }
    }

    fn packed(held: Held) -> Document {
        Packer::json(Node::Value(json!({"a": "b"}))).finish("application/json", held)
    }

    #[test]
    fn a_document_counts_while_it_is_made_and_until_nobody_has_its_definitions() {
        const LONG: usize = 4 * LONG_BYTES;
        let (memory, documents) = (Memory::default(), OpenApiDocuments::new(1 << 20));
        let (memory, schema, id) = (Arc::new(memory), custom_schema(), DocumentId::of(&"a"));
        let used = || memory.used(Share::Answers);
        let making = Making {
            documents: &documents,
            take: &|bytes| memory.take(Share::Answers, bytes),
            bytes_max: memory.most_for_one(Share::Answers),
        };
        let make = |held| {
            assert_eq!(used(), LONG, "it counts while it is made");
            packed(held)
        };
        let made = making.document(id, || sources(&schema, LONG), make);
        let made = made.expect("there is room");
        assert_eq!(used(), made.gzip.len(), "what is kept counts");
        let again = making.document(id, || sources(&schema, LONG), packed);
        assert!(Arc::ptr_eq(&made, &again.expect("it is cached")));
        let sent = made.gzip.clone();
        drop(made);
        documents.drop_outdated();
        assert!(documents.cache.find(id).is_some(), "a plane has it");
        drop(schema);
        documents.drop_outdated();
        assert!(documents.cache.find(id).is_none());
        assert_eq!(used(), sent.len(), "it is on its way to a client");
        drop(sent);
        assert_eq!(used(), 0);
    }

    #[test]
    fn a_document_that_has_no_room_is_refused_unless_it_is_short() {
        let (documents, schema) = (OpenApiDocuments::new(1 << 20), custom_schema());
        let making = Making {
            documents: &documents,
            take: &|_| None,
            bytes_max: 8 * LONG_BYTES,
        };
        for (bytes, refused) in [
            (0, None),
            (LONG_BYTES - 1, None),
            (LONG_BYTES, Some(Reason::TooManyRequests)),
            (8 * LONG_BYTES, Some(Reason::TooManyRequests)),
            (8 * LONG_BYTES + 1, Some(Reason::RequestEntityTooLarge)),
        ] {
            let id = DocumentId::of(&bytes);
            let made = making.document(id, || sources(&schema, bytes), packed);
            assert_eq!(made.err().map(|error| error.reason), refused, "{bytes}");
        }
    }

    /// A hostile plane requests its longest document again and again.
    #[test]
    fn a_plane_makes_one_long_document_at_a_time_and_all_planes_a_few() {
        let (turns, schema) = (MakingTurns::new(), custom_schema());
        let planes: [Arc<PlaneMeter>; 3] = Default::default();
        let enter = |plane: usize| {
            let sources = sources(&schema, LONG_BYTES);
            let turn = turns.enter(&planes[plane], &sources);
            turn.now_or_never().flatten()
        };
        let first = enter(0);
        assert!(first.is_some());
        assert!(enter(0).is_none(), "the plane makes one");
        let second = enter(1);
        assert!(second.is_some());
        assert!(enter(2).is_none(), "all places are taken");
        drop(first);
        assert!(enter(2).is_some());
        drop(second);
        let none = Sources::default();
        let short = turns.enter(&planes[0], &none);
        assert!(
            matches!(short.now_or_never(), Some(None)),
            "it does not wait"
        );
    }
}
