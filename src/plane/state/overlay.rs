//! The definitions that follow from objects of a plane: an overlay of rows that each root carries,
//! as it carries its indexes.
//!
//! A custom resource definition, for one, defines a kind. The embedder knows what a row means: it
//! passes a [`Derivation`] to [`crate::Plane::open`]. Each root has the rows of its own objects,
//! whether they were added by an accepted write, a published or replayed commit, a load, an import
//! or a layer. A root of the past has the rows of the newest one.
//!
//! Invariant: a row is a pure function of one object, so an overlay is a pure function of
//! the objects in its root. Deriving it again from all objects gives the same overlay that the root
//! carries.

use std::any::Any;
use std::collections::HashMap;
use std::sync::{Arc, OnceLock, Weak};

use aws_lc_rs::digest;
use bytes::Bytes;
use parking_lot::Mutex;

use crate::history::event::Event;
use crate::key::{Key, Prefix};
use crate::state::Resources;
use crate::state::entry::{Entry, Flags};
use crate::state::tree::{Item, Tree, Weight};
use crate::version::Version;

/// Identifies content across planes: equal ids mean equal content. It is the first half of a SHA-256,
/// because a tenant who chooses the content must not be able to collide with another tenant's.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ContentId([u8; 16]);

impl ContentId {
    /// Returns the id of content that consists of parts. The boundaries of the parts count.
    pub fn of<'a>(parts: impl IntoIterator<Item = &'a [u8]>) -> Self {
        let mut context = digest::Context::new(&digest::SHA256);
        for part in parts {
            context.update(&(part.len() as u64).to_be_bytes());
            context.update(part);
        }
        let mut id = [0; 16];
        id.copy_from_slice(&context.finish().as_ref()[..16]);
        Self(id)
    }

    /// Returns the id's bytes.
    #[must_use]
    pub fn as_bytes(&self) -> &[u8] {
        &self.0
    }
}

/// The part of an object that a derivation gets.
#[derive(Debug, Clone, Copy)]
pub struct Source<'a> {
    /// The object's key.
    pub key: &'a Key,
    /// `metadata.labels` as JSON; `{}` if there are none.
    pub labels: &'a [u8],
    /// The facts about the object that a claim can test.
    pub flags: Flags,
    /// Data that the code of the object's kind puts into the header of the record for the
    /// derivation. It is always empty today, because the form of records has no room for it. A
    /// later form will have, once every replica of the store reads it; [`crate::NewObject`] will
    /// then carry the data from the preparation, where the parsed object is at hand, and records in
    /// today's form will be rewritten first.
    pub extra: &'a [u8],
    /// The canonical bytes, for derivations that need them while records have no room for
    /// [`Self::extra`]. Reading them costs time for each object when a plane wakes.
    pub body: SourceBody<'a>,
}

/// The body of an object, which is put together only if it is read.
#[derive(Debug, Clone, Copy)]
pub struct SourceBody<'a>(&'a Entry);

impl SourceBody<'_> {
    /// Returns the bytes without `resourceVersion`, or with it. Empty for an object of a layer.
    #[must_use]
    pub fn bytes(&self) -> Bytes {
        self.0.own_body()
    }
}

/// The definition that follows from one object.
#[derive(Debug, Clone)]
pub struct Row {
    /// The resource that the row defines. Watches of the resource end when its view changes.
    pub resource: Prefix,
    /// The id of what readers of the resource see. Writes claim it, see [`crate::Claim::View`].
    pub view: ContentId,
    /// The id of everything in the row.
    pub id: ContentId,
    /// The embedder's own form of the definition.
    pub content: Arc<dyn Any + Send + Sync>,
}

/// Derives rows from objects. One for all planes of a process.
pub trait Derivation: Send + Sync + 'static {
    /// Returns whether objects of the key's resource can define anything. If not, the plane never
    /// derives their rows.
    fn covers(&self, key: &Key) -> bool;

    /// Returns the definition that follows from an object, if it defines anything. Must be a pure
    /// function of the source. It runs inside the sequencer, so it must be quick, hold no lock for
    /// long and never panic.
    fn row(&self, source: &Source<'_>) -> Option<Row>;

    /// Returns the table through which planes with the same definitions share them once these are published.
    fn overlays(&self) -> &ByContent<Overlay>;
}

/// The rows of all objects of a root. It shares with the overlays before it what has not changed, because a plane
/// may have thousands of definitions and change them one by one.
#[derive(Debug, Default)]
pub struct Overlay {
    /// Computed when it is first needed, which takes as long as there are rows.
    id: OnceLock<ContentId>,
    /// Ordered by resource, then by the key of the object: only the first row of a resource counts.
    by_resource: Tree<ByResource>,
    by_object: Tree<ByObject>,
}

/// An object with the row that follows from it.
#[derive(Debug)]
struct Defining {
    object: Key,
    row: Row,
    /// The bytes of the resource, then those of the object's key. No resource is the beginning of another one.
    order: Arc<[u8]>,
}

#[derive(Debug, Clone)]
struct ByResource(Arc<Defining>);

#[derive(Debug, Clone)]
struct ByObject(Arc<Defining>);

impl Item for ByResource {
    fn sort_key(&self) -> &Arc<[u8]> {
        &self.0.order
    }

    fn weight(&self) -> Weight {
        Weight::of_layer()
    }
}

impl Item for ByObject {
    fn sort_key(&self) -> &Arc<[u8]> {
        self.0.object.shared()
    }

    fn weight(&self) -> Weight {
        Weight::of_layer()
    }
}

impl Overlay {
    /// Returns the id of the whole content.
    #[must_use]
    pub fn id(&self) -> ContentId {
        *self.id.get_or_init(|| {
            let parts = self.by_resource.iter().flat_map(|ByResource(defining)| {
                let (object, row) = (&defining.object, &defining.row);
                let (resource, view) = (row.resource.as_bytes(), row.view.as_bytes());
                [object.as_bytes(), resource, view, row.id.as_bytes()]
            });
            ContentId::of(parts)
        })
    }

    /// Returns the row of a resource.
    #[must_use]
    pub fn row(&self, resource: &Prefix) -> Option<&Row> {
        let ByResource(first) = self.by_resource.iter_from(resource.as_bytes()).next()?;
        (first.row.resource == *resource).then_some(&first.row)
    }

    /// Returns the rows that count, in order of their resources.
    pub fn rows(&self) -> impl Iterator<Item = &Row> {
        let mut last: Option<&Prefix> = None;
        self.by_resource
            .iter()
            .filter_map(move |ByResource(defining)| {
                let row = &defining.row;
                let first = last != Some(&row.resource);
                last = Some(&row.resource);
                first.then_some(row)
            })
    }

    fn row_of_object(&self, object: &Key) -> Option<&Row> {
        let ByObject(defining) = self.by_object.get(object.as_bytes())?;
        Some(&defining.row)
    }

    /// Returns an overlay with the same rows, to be changed.
    fn to_be_changed(&self) -> Self {
        Self {
            id: OnceLock::new(),
            by_resource: self.by_resource.clone(),
            by_object: self.by_object.clone(),
        }
    }

    /// Sets or removes the row of an object. Nobody has asked for the id yet.
    fn set(&mut self, object: &Key, row: Option<Row>) {
        if let Some(ByObject(old)) = self.by_object.remove(object.as_bytes()) {
            self.by_resource.remove(&old.order);
        }
        let Some(row) = row else {
            return;
        };
        let order = [row.resource.as_bytes(), object.as_bytes()].concat();
        let defining = Arc::new(Defining {
            object: object.clone(),
            row,
            order: order.into(),
        });
        self.by_resource.insert(ByResource(Arc::clone(&defining)));
        self.by_object.insert(ByObject(defining));
    }

    /// Returns the overlay, unless it has no rows.
    fn unless_empty(self) -> Option<Arc<Self>> {
        (!self.by_object.is_empty()).then(|| Arc::new(self))
    }
}

/// The living contents of one type, by their ids. Keeps none of them alive itself.
#[derive(Debug)]
pub struct ByContent<T>(Mutex<Alive<T>>);

#[derive(Debug)]
struct Alive<T> {
    known: HashMap<ContentId, Weak<T>>,
    /// The number of entries in `known` at which entries of dead contents are removed.
    sweep_at: usize,
}

/// Number of entries below which dead ones are not removed.
const SWEEP_MIN: usize = 64;

impl<T> Default for ByContent<T> {
    fn default() -> Self {
        Self(Mutex::new(Alive {
            known: HashMap::new(),
            sweep_at: SWEEP_MIN,
        }))
    }
}

impl<T> ByContent<T> {
    /// Returns the content with this id: the living one if there is one, else the result of `make`.
    pub fn share(&self, id: ContentId, make: impl FnOnce() -> T) -> Arc<T> {
        if let Some(known) = self.0.lock().known.get(&id).and_then(Weak::upgrade) {
            return known;
        }
        // Made outside the lock. If another task was faster, its content is used.
        self.share_made(id, Arc::new(make()))
    }

    /// Returns the living content with this id if there is one, else `made`, which has the id.
    pub(crate) fn share_made(&self, id: ContentId, made: Arc<T>) -> Arc<T> {
        let mut alive = self.0.lock();
        if let Some(known) = alive.known.get(&id).and_then(Weak::upgrade) {
            return known;
        }
        alive.known.insert(id, Arc::downgrade(&made));
        if alive.known.len() >= alive.sweep_at {
            alive.known.retain(|_, weak| weak.strong_count() > 0);
            alive.sweep_at = (alive.known.len() * 2).max(SWEEP_MIN);
        }
        made
    }

    /// Returns the number of known contents, some of which may be dead.
    #[must_use]
    pub fn len(&self) -> usize {
        self.0.lock().known.len()
    }

    /// Returns whether no content is known.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }
}

/// The derivation of a plane, if it has one.
#[derive(Clone, Default)]
pub(crate) struct Derive(pub(crate) Option<Arc<dyn Derivation>>);

impl Derive {
    /// Returns the overlay of a root in which one object was put or removed. It is not shared with other planes, see
    /// [`Self::shared`].
    pub(crate) fn next(
        &self,
        overlay: Option<&Arc<Overlay>>,
        key: &Key,
        entry: Option<&Entry>,
    ) -> Option<Arc<Overlay>> {
        let unchanged = || overlay.map(Arc::clone);
        let Some(derivation) = self.of(key) else {
            return unchanged();
        };
        let row = entry.and_then(|entry| row_of(derivation, entry));
        let known = overlay.and_then(|overlay| overlay.row_of_object(key));
        if same(known, row.as_ref()) {
            return unchanged();
        }
        let mut next = overlay.map_or_else(Overlay::default, |overlay| overlay.to_be_changed());
        next.set(key, row);
        next.unless_empty()
    }

    /// Returns the overlay that all planes with the same definitions share; `known` is shared already. It takes as long
    /// as there are rows, so it is called once for many changes.
    pub(crate) fn shared(
        &self,
        overlay: Option<Arc<Overlay>>,
        known: Option<&Arc<Overlay>>,
    ) -> Option<Arc<Overlay>> {
        let overlay = overlay?;
        match &self.0 {
            Some(derivation) if !known.is_some_and(|known| Arc::ptr_eq(known, &overlay)) => {
                let id = overlay.id();
                Some(derivation.overlays().share_made(id, overlay))
            }
            Some(_) | None => Some(overlay),
        }
    }

    /// Derives the overlay of a root from all its objects.
    pub(crate) fn anew(&self, resources: &Resources) -> Option<Arc<Overlay>> {
        let derivation = self.0.as_ref()?;
        let mut all = Overlay::default();
        for entry in resources.of_resources(|first| derivation.covers(first)) {
            all.set(entry.key(), row_of(derivation, entry));
        }
        self.shared(all.unless_empty(), None)
    }

    /// Returns the resources whose definitions these events change, each with the version of the
    /// change.
    pub(crate) fn defined(&self, events: &[Arc<Event>]) -> Vec<(Prefix, Version)> {
        if self.0.is_none() {
            return Vec::new();
        }
        let of = |event: &Arc<Event>| {
            let resources = self.defined_by(event).into_iter();
            let version = event.version();
            resources.map(move |resource| (resource, version))
        };
        events.iter().flat_map(of).collect()
    }

    fn defined_by(&self, event: &Event) -> Vec<Prefix> {
        let Some(derivation) = self.of(event.key()) else {
            return Vec::new();
        };
        let row = |object: Option<&crate::ObjectRef>| row_of(derivation, object?.entry());
        let (before, after) = (row(event.previous()), row(event.current()));
        redefined(before.as_ref(), after.as_ref())
    }

    /// Like [`Self::defined`], for one change between two overlays. They have the rows of the object, which may have
    /// megabytes, so nothing is derived.
    pub(crate) fn changed(
        [before, after]: [Option<&Arc<Overlay>>; 2],
        key: &Key,
        version: Version,
    ) -> Vec<(Prefix, Version)> {
        if before.map(Arc::as_ptr) == after.map(Arc::as_ptr) {
            return Vec::new();
        }
        let before = before.and_then(|overlay| overlay.row_of_object(key));
        let after = after.and_then(|overlay| overlay.row_of_object(key));
        let resources = redefined(before, after).into_iter();
        resources.map(|resource| (resource, version)).collect()
    }

    fn of(&self, key: &Key) -> Option<&Arc<dyn Derivation>> {
        self.0.as_ref().filter(|derivation| derivation.covers(key))
    }
}

fn row_of(derivation: &Arc<dyn Derivation>, entry: &Entry) -> Option<Row> {
    derivation.row(&Source {
        key: entry.key(),
        labels: entry.labels(),
        flags: entry.flags(),
        extra: &[],
        body: SourceBody(entry),
    })
}

/// Returns the resources that the rows of an object before and after a change define differently.
fn redefined(before: Option<&Row>, after: Option<&Row>) -> Vec<Prefix> {
    fn view(row: &Row) -> (&Prefix, ContentId) {
        (&row.resource, row.view)
    }
    if before.map(view) == after.map(view) {
        return Vec::new();
    }
    let both = before.into_iter().chain(after);
    both.map(|row| row.resource.clone()).collect()
}

/// Returns whether two rows are equal in everything that can be seen.
fn same(left: Option<&Row>, right: Option<&Row>) -> bool {
    match (left, right) {
        (None, None) => true,
        (Some(left), Some(right)) => {
            (&left.resource, left.view, left.id) == (&right.resource, right.view, right.id)
        }
        _ => false,
    }
}
