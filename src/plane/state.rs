//! What a plane holds at one moment.
//!
//! A root has all objects, and shares structure with the roots before and after it. A [`Snapshot`] is
//! a root as a reader holds it. [`entry`] is one object, [`tree`] the map, [`index`] what claims ask
//! besides keys, [`overlay`] what objects define, [`intern`] shares large pieces of bodies, and
//! [`selectable`] remembers the fields that objects are selected by.

pub(crate) mod entry;
pub(crate) mod index;
pub(crate) mod intern;
pub(crate) mod overlay;
pub(crate) mod selectable;
pub(crate) mod tree;

use std::sync::Arc;

use crate::key::{Key, Prefix, resource_len};
use crate::layers::template_values::TemplateValues;
use crate::state::entry::{Entry, Flags, ObjectRef};
use crate::state::index::{Index, IndexId, IndexMap};
use crate::state::intern::Interner;
use crate::state::overlay::{ContentId, Derive, Overlay};
use crate::state::tree::{Item, Tree, Weight};
use crate::version::Version;
use crate::write::claim::{Claim, Scope};

/// The objects of one resource.
#[derive(Debug, Clone)]
struct Resource {
    prefix: Prefix,
    entries: Tree<Arc<Entry>>,
}

impl Item for Arc<Resource> {
    fn sort_key(&self) -> &Arc<[u8]> {
        self.prefix.shared()
    }

    fn weight(&self) -> Weight {
        self.entries.weight()
    }
}

/// One tree per resource, one tree over them. A resource without objects is not there.
#[derive(Debug, Clone, Default)]
pub(crate) struct Resources(Tree<Arc<Resource>>);

impl Resources {
    pub(crate) fn get(&self, key: &Key) -> Option<&Arc<Entry>> {
        let bytes = key.as_bytes();
        self.0
            .get(&bytes[..resource_len(bytes)])?
            .entries
            .get(bytes)
    }

    pub(crate) fn insert(&mut self, entry: Arc<Entry>) -> Option<Arc<Entry>> {
        let key = entry.key().clone();
        let bytes = key.as_bytes();
        let mut entry = Some(entry);
        let done = self.0.modify(&bytes[..resource_len(bytes)], |resource| {
            let entry = entry.take().expect("the closure runs once");
            Arc::make_mut(resource).entries.insert(entry)
        });
        if let Some(entry) = entry {
            let mut entries = Tree::default();
            entries.insert(entry);
            self.0.insert(Arc::new(Resource {
                prefix: key.resource_prefix(),
                entries,
            }));
        }
        done.flatten()
    }

    pub(crate) fn remove(&mut self, key: &Key) -> Option<Arc<Entry>> {
        self.get(key)?;
        let bytes = key.as_bytes();
        let resource = &bytes[..resource_len(bytes)];
        let (old, left) = self.0.modify(resource, |resource| {
            let entries = &mut Arc::make_mut(resource).entries;
            (entries.remove(bytes), entries.is_empty())
        })?;
        if left {
            self.0.remove(resource);
        }
        old
    }

    /// All objects under a prefix.
    pub(crate) fn under<'a>(
        &'a self,
        prefix: &'a Prefix,
    ) -> impl Iterator<Item = &'a Arc<Entry>> + use<'a> {
        self.range(prefix, &[])
    }

    /// Objects under a prefix, from the first key that is not below `start`.
    fn range<'a>(
        &'a self,
        prefix: &'a Prefix,
        start: &[u8],
    ) -> impl Iterator<Item = &'a Arc<Entry>> + use<'a> {
        let start = start.max(prefix.as_bytes());
        self.0
            .get(prefix.of_resource())
            .map(|resource| resource.entries.iter_from(start))
            .into_iter()
            .flatten()
            .take_while(|entry| prefix.contains(entry.key()))
    }

    fn weight_of(&self, prefix: &Prefix) -> Weight {
        let Some(resource) = self.0.get(prefix.of_resource()) else {
            return Weight::default();
        };
        if prefix.as_bytes().len() == resource.prefix.as_bytes().len() {
            return resource.entries.weight();
        }
        resource.entries.weight_of(prefix.as_bytes())
    }

    fn weight_before(&self, prefix: &Prefix, key: &[u8]) -> Weight {
        self.0
            .get(prefix.of_resource())
            .map_or(Weight::default(), |r| r.entries.weight_before(key))
    }

    fn prefixes(&self) -> impl Iterator<Item = &Prefix> {
        self.0.iter().map(|resource| &resource.prefix)
    }

    pub(crate) fn entries(&self) -> impl Iterator<Item = &Arc<Entry>> {
        self.0.iter().flat_map(|resource| resource.entries.iter())
    }

    /// All objects of the resources that are `wanted`. `wanted` gets the key of a resource's first
    /// object.
    pub(crate) fn of_resources<'a>(
        &'a self,
        wanted: impl Fn(&Key) -> bool + 'a,
    ) -> impl Iterator<Item = &'a Arc<Entry>> {
        let first_wanted = move |resource: &&Arc<Resource>| {
            let first = resource.entries.iter().next();
            first.is_some_and(|entry| wanted(entry.key()))
        };
        let resources = self.0.iter().filter(first_wanted);
        resources.flat_map(|resource| resource.entries.iter())
    }

    pub(crate) fn weight(&self) -> Weight {
        self.0.weight()
    }

    pub(crate) fn count(&self) -> usize {
        usize_of(self.weight().count)
    }
}

/// What a plane knows that no write changes.
#[derive(Clone)]
pub(crate) struct Context {
    pub(crate) indexes: Arc<[Arc<dyn Index>]>,
    pub(crate) derive: Derive,
    pub(crate) interner: Arc<Interner>,
}

impl Context {
    /// Whether an object of this key can have rows in an index.
    fn is_indexed(&self, key: &Key) -> bool {
        if self.indexes.is_empty() {
            return false;
        }
        let resource = key.resource_prefix();
        self.indexes.iter().any(|index| index.covers(&resource))
    }
}

/// All objects of a plane at one point, with the indexes over them.
#[derive(Debug, Clone)]
pub(crate) struct Root {
    pub(crate) resources: Resources,
    /// What makes the templates in it objects.
    pub(crate) template_values: Arc<TemplateValues>,
    indexes: Vec<IndexMap>,
    /// What the objects in it define; nothing in most planes.
    pub(crate) overlay: Option<Arc<Overlay>>,
    /// After the last revision that changed it; the birth of a plane that was never written.
    pub(crate) head: Version,
}

impl Root {
    /// The root of a plane that has nothing of its own: its layers'.
    pub(crate) fn of_layers(template_values: Arc<TemplateValues>, context: &Context) -> Self {
        let mut root = Self {
            resources: template_values.chain().resources(),
            indexes: vec![IndexMap::default(); context.indexes.len()],
            overlay: None,
            head: template_values.birth().end_of_revision(),
            template_values,
        };
        if context.indexes.is_empty() {
            return root;
        }
        let chain = Arc::clone(root.template_values.chain());
        if chain.unfinished().is_some() {
            // No other plane shares the state in the middle of a step.
            root.index_all(context);
            return root;
        }
        let layer = chain.newest();
        let shared = layer.indexed();
        let shared = shared.start(layer.resources(), &context.indexes, &root.template_values);
        root.indexes = shared.maps;
        for entry in &*shared.left {
            root.index(entry, context, IndexUpdate::Add);
        }
        root
    }

    /// Computes all index rows from scratch.
    pub(crate) fn index_all(&mut self, context: &Context) {
        self.indexes = vec![IndexMap::default(); context.indexes.len()];
        let shared = self.resources.clone();
        for entry in shared.entries() {
            self.index(entry, context, IndexUpdate::Add);
        }
    }

    /// All that one index knows.
    #[cfg(test)]
    pub(crate) fn index_cells(
        &self,
        index: usize,
    ) -> impl Iterator<Item = (&[u8], &crate::state::index::Cell)> {
        self.indexes[index].from(&[])
    }

    /// An entry as an object of this moment.
    pub(crate) fn object(&self, entry: &Arc<Entry>) -> ObjectRef {
        ObjectRef::new(Arc::clone(entry), Arc::clone(&self.template_values))
    }

    pub(crate) fn put(&mut self, entry: Arc<Entry>, context: &Context) -> Option<Arc<Entry>> {
        if context.is_indexed(entry.key()) {
            // The old rows go first, so that an index never sees two holders of an update.
            if let Some(old) = self.resources.get(entry.key()).cloned() {
                self.index(&old, context, IndexUpdate::Subtract);
            }
            self.index(&entry, context, IndexUpdate::Add);
        }
        self.overlay = context
            .derive
            .next(self.overlay.as_ref(), entry.key(), Some(&entry));
        self.resources.insert(entry)
    }

    /// Derives the overlay from all that is there, after a load that put objects without it.
    pub(crate) fn derive(&mut self, context: &Context) {
        self.overlay = context.derive.anew(&self.resources);
    }

    /// Replaces an entry without updating the indexes, for roots of the past, which no claim reads.
    pub(crate) fn replace(&mut self, entry: Arc<Entry>) {
        self.resources.insert(entry);
    }

    pub(crate) fn remove(&mut self, key: &Key, context: &Context) -> Option<Arc<Entry>> {
        let old = self.resources.remove(key)?;
        self.index(&old, context, IndexUpdate::Subtract);
        self.overlay = context.derive.next(self.overlay.as_ref(), key, None);
        Some(old)
    }

    /// Whether a claim holds in this root.
    pub(crate) fn holds(&self, claim: &Claim) -> bool {
        match claim {
            Claim::Absent(key) => self.resources.get(key).is_none(),
            Claim::At(key, stamp) => self
                .resources
                .get(key)
                .is_some_and(|entry| entry.stamp() == *stamp),
            Claim::Active(key) => self
                .resources
                .get(key)
                .is_some_and(|entry| !entry.flags().has(Flags::TERMINATING)),
            Claim::Empty(Scope::Prefix(prefix)) => self.resources.weight_of(prefix).count == 0,
            Claim::Empty(Scope::Namespace(namespace)) => self
                .resources
                .prefixes()
                .all(|prefix| self.resources.weight_of(&prefix.namespace(namespace)).count == 0),
            Claim::Free {
                index,
                value,
                owner,
            } => self.indexes[index.0]
                .get(value)
                .is_none_or(|cell| cell.holders == 1 && cell.owner.as_ref() == Some(owner)),
            Claim::Room {
                index,
                value,
                add,
                max,
            } => {
                let used = self.indexes[index.0]
                    .get(value)
                    .map_or(0, |cell| cell.amount);
                used.saturating_add(*add) <= *max
            }
            Claim::View { resource, view } => self.view(resource) == *view,
        }
    }

    /// What readers of a resource see, if an object defines it.
    pub(crate) fn view(&self, resource: &Prefix) -> Option<ContentId> {
        let overlay = self.overlay.as_ref()?;
        overlay.row(resource).map(|row| row.view)
    }

    fn index(&mut self, entry: &Arc<Entry>, context: &Context, change: IndexUpdate) {
        if context.indexes.is_empty() {
            return;
        }
        let resource = entry.key().resource_prefix();
        let object = self.object(entry);
        for (map, index) in self.indexes.iter_mut().zip(&*context.indexes) {
            if !index.covers(&resource) {
                continue;
            }
            let rows = index.rows(entry.key(), &object.body());
            match change {
                IndexUpdate::Add => map.add(entry.key(), rows),
                IndexUpdate::Subtract => map.subtract(rows),
            }
        }
    }
}

#[derive(Debug, Clone, Copy)]
enum IndexUpdate {
    Add,
    Subtract,
}

/// Where a range begins.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum Start<'a> {
    /// At the first key of the prefix.
    #[default]
    First,
    /// At a key, if it is there, else at the next one.
    At(&'a [u8]),
    /// Behind a key.
    After(&'a [u8]),
}

/// Which writes an accepted cut has looked at.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Cut {
    pub(crate) position: u64,
    pub(crate) generation: u64,
}

/// A consistent cut of a plane. Cheap to take and to clone; never changes.
#[derive(Debug, Clone)]
pub struct Snapshot {
    root: Arc<Root>,
    version: Version,
    cut: Option<Cut>,
}

impl Snapshot {
    pub(crate) fn published(root: Arc<Root>) -> Self {
        Self {
            version: root.head,
            root,
            cut: None,
        }
    }

    /// The same cut, which is known to show everything up to a version.
    pub(crate) fn not_below(self, version: Version) -> Self {
        Self {
            version: self.version.max(version),
            ..self
        }
    }

    pub(crate) fn accepted(root: Arc<Root>, cut: Cut) -> Self {
        Self {
            cut: Some(cut),
            ..Self::published(root)
        }
    }

    /// A cut of the past: a root of now with what came later undone.
    pub(crate) fn at(mut root: Root, version: Version) -> Self {
        root.template_values = root.template_values.until(version);
        Self {
            version,
            ..Self::published(Arc::new(root))
        }
    }

    pub(crate) fn root(&self) -> &Root {
        &self.root
    }

    pub(crate) fn cut(&self) -> Option<Cut> {
        self.cut
    }

    /// What a list of this cut carries. Of an accepted cut: of the newest durable state in it.
    #[must_use]
    pub fn version(&self) -> Version {
        self.version
    }

    /// One object.
    #[must_use]
    pub fn get(&self, key: &Key) -> Option<ObjectRef> {
        self.root.resources.get(key).map(|entry| self.object(entry))
    }

    /// Objects under a prefix in key order. Take as many as the page holds.
    pub fn range<'a>(
        &'a self,
        prefix: &'a Prefix,
        start: Start<'_>,
    ) -> impl Iterator<Item = ObjectRef> + use<'a> {
        self.root
            .resources
            .range(prefix, &start.bytes())
            .map(|entry| self.object(entry))
    }

    /// Number of objects under a prefix.
    #[must_use]
    pub fn count(&self, prefix: &Prefix) -> usize {
        usize_of(self.root.resources.weight_of(prefix).count)
    }

    /// How many objects under a prefix a range from `start` would give.
    #[must_use]
    pub fn count_from(&self, prefix: &Prefix, start: Start<'_>) -> usize {
        let bytes = start.bytes();
        let first = bytes.as_slice().max(prefix.as_bytes());
        let resources = &self.root.resources;
        let before = resources.weight_before(prefix, first).count;
        let skipped = before - resources.weight_before(prefix, prefix.as_bytes()).count;
        self.count(prefix).saturating_sub(usize_of(skipped))
    }

    /// Bytes of the plane's own objects under a prefix.
    #[must_use]
    pub fn bytes(&self, prefix: &Prefix) -> u64 {
        self.root.resources.weight_of(prefix).bytes
    }

    /// Number of all objects, layer included.
    #[must_use]
    pub fn objects(&self) -> usize {
        self.root.resources.count()
    }

    /// Bytes of all objects of the plane's own.
    #[must_use]
    pub fn own_bytes(&self) -> u64 {
        self.root.resources.weight().bytes
    }

    /// The resources that have objects, in order.
    pub fn resources(&self) -> impl Iterator<Item = &Prefix> {
        self.root.resources.prefixes()
    }

    /// Whether a claim holds in this cut.
    #[must_use]
    pub fn holds(&self, claim: &Claim) -> bool {
        self.root.holds(claim)
    }

    /// The object that holds a value of an index, if exactly one does.
    #[must_use]
    pub fn index_owner(&self, index: IndexId, value: &[u8]) -> Option<&Key> {
        self.root.indexes[index.0].get(value)?.owner.as_ref()
    }

    /// How much is taken of a value of an index.
    #[must_use]
    pub fn index_amount(&self, index: IndexId, value: &[u8]) -> i64 {
        self.root.indexes[index.0]
            .get(value)
            .map_or(0, |cell| cell.amount)
    }

    /// The values of an index that are taken, with the amounts, from `value` on.
    pub fn index_values(&self, index: IndexId, value: &[u8]) -> impl Iterator<Item = (&[u8], i64)> {
        self.root.indexes[index.0]
            .from(value)
            .map(|(value, cell)| (value, cell.amount))
    }

    /// What the objects in it define. A cut of the past has what those of now do.
    #[must_use]
    pub fn overlay(&self) -> Option<&Arc<Overlay>> {
        self.root.overlay.as_ref()
    }

    fn object(&self, entry: &Arc<Entry>) -> ObjectRef {
        self.root.object(entry)
    }
}

impl Start<'_> {
    fn bytes(self) -> Vec<u8> {
        match self {
            Self::First => Vec::new(),
            Self::At(key) => key.to_vec(),
            Self::After(key) => {
                let mut bytes = Vec::with_capacity(key.len() + 1);
                bytes.extend_from_slice(key);
                bytes.push(0);
                bytes
            }
        }
    }
}

fn usize_of(count: u64) -> usize {
    usize::try_from(count).expect("objects in memory are counted by usize")
}
