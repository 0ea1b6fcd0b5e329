//! The content of a plane at one moment.
//!
//! A root has all objects, and shares structure with the roots before and after it. A [`Snapshot`]
//! is a root as a reader holds it. [`entry`] is one object, [`tree`] the map, [`index`] has the
//! facts that a claim can test besides keys, [`overlay`] the definitions that follow from objects,
//! [`summary`] what follows from the bodies of some of them, [`room`] how much a plane may have.
//! [`intern`] shares large pieces of bodies, and [`selectable`] remembers the fields that objects
//! are selected by.

pub(crate) mod claim;
pub(crate) mod entry;
pub(crate) mod index;
pub(crate) mod intern;
pub(crate) mod overlay;
pub(crate) mod room;
pub(crate) mod selectable;
pub(crate) mod summary;
pub(crate) mod tree;

use std::sync::Arc;

use crate::key::{Key, Prefix, resource_len};
use crate::layers::template_values::TemplateValues;
use crate::state::claim::{Claim, Scope};
use crate::state::entry::{Entry, Flags, ObjectRef};
use crate::state::index::{Index, IndexId, IndexMap, IndexValues};
use crate::state::intern::Interner;
use crate::state::overlay::{ContentId, Derive, Overlay};
use crate::state::summary::{Summarizer, Summary, is_same};
use crate::state::tree::{Item, Tree, Weight};
use crate::version::Version;

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

/// One tree per resource, and one tree over these. A resource without objects has no tree.
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

    /// Returns all objects under a prefix.
    pub(crate) fn under<'a>(
        &'a self,
        prefix: &'a Prefix,
    ) -> impl Iterator<Item = &'a Arc<Entry>> + use<'a> {
        self.range(prefix, &[])
    }

    /// Returns the objects under a prefix, from the first key that is not below `start`.
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

    /// Returns all objects of the resources for which `wanted` returns true. It gets the key of a
    /// resource's first object.
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

/// The facts about a plane that no write changes.
#[derive(Clone)]
pub(crate) struct Context {
    pub(crate) indexes: Arc<[Arc<dyn Index>]>,
    pub(crate) derive: Derive,
    pub(crate) summarizer: Summarizer,
    pub(crate) interner: Arc<Interner>,
}

impl Context {
    /// Returns whether an object with this key can have rows in an index.
    fn is_indexed(&self, key: &Key) -> bool {
        self.indexes.iter().any(|index| index.covers(key))
    }
}

/// All objects of a plane at one point, with the indexes over them.
#[derive(Debug, Clone)]
pub(crate) struct Root {
    pub(crate) resources: Resources,
    /// The values that turn the templates in the root into objects.
    pub(crate) template_values: Arc<TemplateValues>,
    /// Shared with the roots before and after it, because few writes change an index.
    indexes: Arc<[IndexMap]>,
    /// The definitions that follow from the objects in the root; `None` in most planes.
    pub(crate) overlay: Option<Arc<Overlay>>,
    /// What is summarized of the objects in the root, if anything is.
    pub(crate) summary: Option<Summary>,
    /// The end of the last revision that changed the root; the birth if the plane was never
    /// written.
    pub(crate) head: Version,
}

impl Root {
    /// Returns the bytes of all of the plane's own objects.
    pub(crate) fn own_bytes(&self) -> u64 {
        self.resources.weight().bytes
    }

    /// Returns the root of a plane that has no objects of its own, which is the root of its layers.
    pub(crate) fn of_layers(template_values: Arc<TemplateValues>, context: &Context) -> Self {
        let mut root = Self {
            resources: template_values.chain().resources(),
            indexes: vec![IndexMap::default(); context.indexes.len()].into(),
            overlay: None,
            summary: context.summarizer.empty(),
            head: template_values.birth().end_of_revision(),
            template_values,
        };
        if context.indexes.is_empty() && context.summarizer.0.is_none() {
            return root;
        }
        let chain = Arc::clone(root.template_values.chain());
        if chain.unfinished().is_some() {
            // In the middle of a step no other plane has the same state, so no index can be shared:
            // all rows are computed.
            root.index_all(context);
            return root;
        }
        let layer = chain.newest();
        let shared = layer.indexed();
        let shared = shared.start(layer.resources(), context, &root.template_values);
        root.indexes = shared.maps;
        root.summary = shared.summary;
        for entry in &*shared.unsummarized {
            root.summarize(entry.key(), Some(entry), context);
        }
        for entry in &*shared.left {
            root.index(entry, context, IndexUpdate::Add);
        }
        root
    }

    /// Computes all index rows and the summary from scratch.
    pub(crate) fn index_all(&mut self, context: &Context) {
        self.indexes = vec![IndexMap::default(); context.indexes.len()].into();
        self.summary = context.summarizer.empty();
        let shared = self.resources.clone();
        for entry in shared.entries() {
            self.index(entry, context, IndexUpdate::Add);
            self.summarize(entry.key(), Some(entry), context);
        }
    }

    /// Returns all values of one index.
    #[cfg(test)]
    pub(crate) fn index_cells(
        &self,
        index: usize,
    ) -> impl Iterator<Item = (&[u8], &crate::state::index::Cell)> {
        self.indexes[index].from(&[])
    }

    /// Returns an entry as an object at the moment of this root.
    pub(crate) fn object(&self, entry: &Arc<Entry>) -> ObjectRef {
        ObjectRef::new(Arc::clone(entry), Arc::clone(&self.template_values))
    }

    pub(crate) fn put(&mut self, entry: Arc<Entry>, context: &Context) -> Option<Arc<Entry>> {
        if context.is_indexed(entry.key()) {
            // The old rows are removed first, so that an index never sees two holders of an update.
            if let Some(old) = self.resources.get(entry.key()).cloned() {
                self.index(&old, context, IndexUpdate::Subtract);
            }
            self.index(&entry, context, IndexUpdate::Add);
        }
        self.overlay = context
            .derive
            .next(self.overlay.as_ref(), entry.key(), Some(&entry));
        self.summarize(entry.key(), Some(&entry), context);
        self.resources.insert(entry)
    }

    /// Derives the overlay from all objects, after a load that put them without deriving it.
    pub(crate) fn derive(&mut self, context: &Context) {
        self.overlay = context.derive.anew(&self.resources);
    }

    /// Replaces an entry without updating the indexes, for roots of the past, against which no
    /// claim is tested.
    pub(crate) fn replace(&mut self, entry: Arc<Entry>) {
        self.resources.insert(entry);
    }

    pub(crate) fn remove(&mut self, key: &Key, context: &Context) -> Option<Arc<Entry>> {
        let old = self.resources.remove(key)?;
        self.index(&old, context, IndexUpdate::Subtract);
        self.overlay = context.derive.next(self.overlay.as_ref(), key, None);
        self.summarize(key, None, context);
        Some(old)
    }

    /// Returns whether a claim holds in this root.
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
            Claim::Count { prefix, count } => {
                usize_of(self.resources.weight_of(prefix).count) == *count
            }
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
                values,
                add,
                max,
            } => self.indexes[index.0].amount(values).saturating_add(*add) <= *max,
            Claim::Taken { index, values } => self.indexes[index.0].amount(values) > 0,
            Claim::Within { growth, room } => self.has_room(*growth, *room).is_ok(),
            Claim::Below { prefix, count } => self.resources.weight_of(prefix).count < *count,
            Claim::View { resource, view } => self.view(resource) == *view,
            Claim::Summary(summary) => is_same(self.summary.as_ref(), Some(summary)),
        }
    }

    /// Returns the id of what readers of a resource see, if an object defines the resource.
    pub(crate) fn view(&self, resource: &Prefix) -> Option<ContentId> {
        let overlay = self.overlay.as_ref()?;
        overlay.row(resource).map(|row| row.view)
    }

    fn summarize(&mut self, key: &Key, entry: Option<&Arc<Entry>>, context: &Context) {
        if let Some(summarize) = context.summarizer.of(key)
            && let Some(summary) = &self.summary
        {
            let object = entry.map(|entry| self.object(entry));
            let body = object.as_ref().map(ObjectRef::body);
            self.summary = Some(summarize.next(summary, key, body.as_deref()));
        }
    }

    fn index(&mut self, entry: &Arc<Entry>, context: &Context, change: IndexUpdate) {
        for (at, index) in context.indexes.iter().enumerate() {
            if !index.covers(entry.key()) {
                continue;
            }
            let rows = index.rows(entry.key(), &self.object(entry).body());
            if rows.is_empty() {
                continue;
            }
            let map = &mut Arc::make_mut(&mut self.indexes)[at];
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

/// The beginning of a range.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum Start<'a> {
    /// The first key of the prefix.
    #[default]
    First,
    /// This key if it exists, else the next one.
    At(&'a [u8]),
    /// The first key after this one.
    After(&'a [u8]),
}

/// The position of an accepted cut among the writes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Cut {
    pub(crate) position: u64,
    /// Number of withdrawals before the cut.
    pub(crate) withdrawal_count: u64,
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

    /// Returns the same cut, for a caller that knows that it shows everything up to a version.
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

    /// Returns a cut of the past, made of a current root whose later events were undone.
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

    /// Returns the version that a list of this cut carries. For an accepted cut it is that of the
    /// newest durable state in it.
    #[must_use]
    pub fn version(&self) -> Version {
        self.version
    }

    /// Returns a number that only this plane has in the process, since it was last loaded.
    #[must_use]
    pub fn plane_number(&self) -> u64 {
        self.root.template_values.number()
    }

    /// Returns one object.
    #[must_use]
    pub fn get(&self, key: &Key) -> Option<ObjectRef> {
        self.root.resources.get(key).map(|entry| self.object(entry))
    }

    /// Returns the objects under a prefix in key order, lazily: a page takes as many as it holds.
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

    /// Returns the number of objects under a prefix.
    #[must_use]
    pub fn count(&self, prefix: &Prefix) -> usize {
        usize_of(self.root.resources.weight_of(prefix).count)
    }

    /// Returns the number of objects that a range from `start` under a prefix has.
    #[must_use]
    pub fn count_from(&self, prefix: &Prefix, start: Start<'_>) -> usize {
        let bytes = start.bytes();
        let first = bytes.as_slice().max(prefix.as_bytes());
        let resources = &self.root.resources;
        let before = resources.weight_before(prefix, first).count;
        let skipped = before - resources.weight_before(prefix, prefix.as_bytes()).count;
        self.count(prefix).saturating_sub(usize_of(skipped))
    }

    /// Returns the bytes of the plane's own objects under a prefix.
    #[must_use]
    pub fn bytes(&self, prefix: &Prefix) -> u64 {
        self.root.resources.weight_of(prefix).bytes
    }

    /// Returns the number of all objects, those of layers included.
    #[must_use]
    pub fn objects(&self) -> usize {
        self.root.resources.count()
    }

    /// Returns the bytes of all of the plane's own objects.
    #[must_use]
    pub fn own_bytes(&self) -> u64 {
        self.root.own_bytes()
    }

    /// Returns the resources that have objects, in order.
    pub fn resources(&self) -> impl Iterator<Item = &Prefix> {
        self.root.resources.prefixes()
    }

    /// Returns whether a claim holds in this cut.
    #[must_use]
    pub fn holds(&self, claim: &Claim) -> bool {
        self.root.holds(claim)
    }

    /// Returns the key of the object that holds a value of an index, if exactly one object does.
    #[must_use]
    pub fn index_owner(&self, index: IndexId, value: &[u8]) -> Option<&Key> {
        self.root.indexes[index.0].get(value)?.owner.as_ref()
    }

    /// Returns the amount that objects take of a value of an index.
    #[must_use]
    pub fn index_amount(&self, index: IndexId, value: &[u8]) -> i128 {
        self.root.indexes[index.0]
            .get(value)
            .map_or(0, |cell| cell.amount)
    }

    /// Returns the amount that objects take of several values of an index.
    #[must_use]
    pub fn index_total(&self, index: IndexId, values: &IndexValues) -> i128 {
        self.root.indexes[index.0].amount(values)
    }

    /// Returns the values of an index that objects take, with the amounts, from `value` on.
    pub fn index_values(
        &self,
        index: IndexId,
        value: &[u8],
    ) -> impl Iterator<Item = (&[u8], i128)> {
        self.root.indexes[index.0]
            .from(value)
            .map(|(value, cell)| (value, cell.amount))
    }

    /// Returns the definitions that follow from the objects. A cut of the past has those of the
    /// newest state.
    #[must_use]
    pub fn overlay(&self) -> Option<&Arc<Overlay>> {
        self.root.overlay.as_ref()
    }

    /// Returns what is summarized of the objects, if anything is. A cut of the past has the summary
    /// of the newest state.
    #[must_use]
    pub fn summary(&self) -> Option<&Summary> {
        self.root.summary.as_ref()
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

#[cfg(test)]
mod tests;
