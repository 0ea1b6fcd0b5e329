//! Layer steps: how a plane moves from its layer to a newer one.
//!
//! A step is one or more commits. Each covers at most 255 changes between the layers, in key order, and
//! writes the plane's step record, fenced as every commit is. This record alone changes the layer
//! objects that the plane shows. The plane's own objects stay as they are: the caller looks at
//! [`Ahead::shadowed`] first, and changes them by ordinary writes as their kinds need. The commit then
//! claims that everything is still as the caller saw it. When the newer layer no longer has a key, the
//! plane's tombstone of it is removed as well.
//!
//! Invariant: nothing here knows a kind, and a step changes layer objects only.

use std::collections::BTreeSet;
use std::sync::Arc;

use polyplane_apimachinery::Str;
use tokio::sync::oneshot;
use tokio::time::Instant;

use crate::history::event::Event;
use crate::key::Key;
use crate::layers::chain::record::StepsRecord;
use crate::layers::chain::{Chain, ChangeKind, Difference, LayerChange, LayerStep, StepCommit};
use crate::layers::layer::{Layer, LayerHash};
use crate::layers::template_values::TemplateValues;
use crate::plane::Plane;
use crate::record::encode_steps;
use crate::state::entry::{Entry, ObjectRef};
use crate::state::{Context, Root, Snapshot};
use crate::version::{Stamp, Version};
use crate::write::prepared_write::SubmitError;
use crate::write::sequencer::QueuedWrite;

/// Number of changes that one commit covers at most: the number of version indexes in a
/// transaction.
const CHANGES_MAX: usize = 255;
/// Number of tombstones that one commit removes at most. With more, the commit would exceed the
/// store's limit of operations in a transaction.
const DROPS_MAX: usize = 100;

/// The result of one commit of a step.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Stepped {
    /// The commit is durable and published. Call [`Plane::ahead`] for the next one.
    Done,
    /// Another write changed something that the commit rested on, and nothing was applied. Call
    /// [`Plane::ahead`] again.
    Again,
}

/// The changes between a plane and a layer, as one cut shows them.
#[derive(Debug)]
pub struct Ahead {
    cut: Snapshot,
    difference: Arc<Difference>,
    time: Str,
    /// The position of the first change that no commit covers.
    next: usize,
    /// True if the commit folds earlier steps.
    folds: bool,
    /// The template values after the step.
    after: Arc<TemplateValues>,
}

/// A key of a layer at which the plane has an object of its own, or has deleted the layer's.
#[derive(Debug, Clone)]
pub struct Shadowed {
    /// The key.
    pub key: Key,
    /// The object of the present layer; `None` if the step adds it.
    pub old: Option<ObjectRef>,
    /// The object of the newer layer; `None` if the step removes it.
    pub new: Option<ObjectRef>,
    /// The plane's own object; `None` if the plane has deleted the layer's.
    pub own: Option<ObjectRef>,
}

/// A layer has a placeholder that the plane's record has no parameter for.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("the control plane's record has no parameter {0:?}, which its layer needs")]
pub struct MissingParameter(pub Str);

impl Plane {
    /// Returns the changes between this plane and a layer; `None` if the plane has the layer. An
    /// unfinished step comes first, whatever its layer. `recreates` decides for an old and a new
    /// object whether the step deletes the old one and creates the new one, rather than updating
    /// it. `now` is the creation time, RFC 3339, of objects that the step adds.
    ///
    /// # Errors
    /// Returns an error if the plane's record lacks a parameter of the layer.
    pub fn ahead(
        &self,
        to: &Arc<Layer>,
        now: &str,
        recreates: &dyn Fn(&ObjectRef, &ObjectRef) -> bool,
    ) -> Result<Option<Ahead>, MissingParameter> {
        let cut = self.accepted();
        let template_values = Arc::clone(&cut.root().template_values);
        let chain = template_values.chain();
        if let Some(step) = chain.unfinished() {
            let difference = Arc::clone(step.difference());
            let (time, next) = (step.time().clone(), step.taken());
            return Ok(Some(Ahead::new(cut, difference, time, next)));
        }
        let from = chain.newest();
        if from.hash() == to.hash() {
            return Ok(None);
        }
        if let Some(name) = to.params().find(|name| !template_values.has_param(name)) {
            return Err(MissingParameter(name.clone()));
        }
        let plain = self.layers().difference(from, to, Vec::new());
        let plain = Ahead::new(cut, plain, now.into(), 0);
        let anew = plain.difference.changes().iter().filter(|change| {
            let sides = (plain.old(&change.key), plain.new_object(&change.key));
            matches!(sides, (Some(old), Some(new)) if recreates(&old, &new))
        });
        let anew: BTreeSet<Key> = anew.map(|change| change.key.clone()).collect();
        if anew.is_empty() {
            return Ok(Some(plain));
        }
        let anew = anew.into_iter().collect();
        let difference = self.layers().difference(from, to, anew);
        Ok(Some(Ahead::new(plain.cut, difference, plain.time, 0)))
    }

    /// Commits the next part of a step.
    ///
    /// # Errors
    /// See [`SubmitError`]; each variant says what is known to have happened.
    ///
    /// # Cancel safety
    /// Dropping the future does not withdraw the commit.
    pub async fn step(
        self: &Arc<Self>,
        ahead: &Ahead,
        deadline: Instant,
    ) -> Result<Stepped, SubmitError> {
        self.step_by(ahead, CHANGES_MAX, deadline).await
    }

    /// Works as [`Self::step`], with another limit of changes. For tests.
    pub(crate) async fn step_by(
        self: &Arc<Self>,
        ahead: &Ahead,
        changes_max: usize,
        deadline: Instant,
    ) -> Result<Stepped, SubmitError> {
        if ahead.next == 0 {
            // Stored before the commit: a plane must never name a layer that the store does not have.
            let stored = self.layers().bring(ahead.difference.to()).await;
            stored.map_err(|error| SubmitError::Unavailable(error.to_string()))?;
        }
        let commit = Arc::new(ahead.commit(changes_max, &ahead.folded(self)));
        let (reply, answer) = oneshot::channel();
        let drops = commit.drops.iter().map(|key| key.as_bytes().len());
        let bytes = encode_steps(0, commit.record()).len() + drops.sum::<usize>();
        let queued = QueuedWrite::layers(commit, bytes, reply);
        match self.enqueue(queued, &[], answer, Some(deadline)).await {
            Ok(_) => Ok(Stepped::Done),
            Err(SubmitError::Withdrawn | SubmitError::ClaimFailed(_)) => Ok(Stepped::Again),
            Err(error) => Err(error),
        }
    }

    /// Returns the newest layer that the plane has, or is moving to.
    #[must_use]
    pub fn layer_hash(&self) -> LayerHash {
        self.published()
            .template_values
            .chain()
            .newest()
            .hash()
            .clone()
    }

    /// Returns whether the plane has completed its step to a layer.
    #[must_use]
    pub fn stands_on(&self, layer: &LayerHash) -> bool {
        let published = self.published();
        let chain = published.template_values.chain();
        chain.newest().hash() == layer && chain.unfinished().is_none()
    }

    /// Returns the layer's object at a key, as this plane would show it.
    #[must_use]
    pub fn layer_object(&self, key: &Key) -> Option<ObjectRef> {
        let template_values = Arc::clone(&self.published().template_values);
        let entry = Arc::clone(template_values.template(key)?);
        Some(ObjectRef::new(entry, template_values))
    }
}

impl Ahead {
    fn new(cut: Snapshot, difference: Arc<Difference>, time: Str, next: usize) -> Self {
        let changes = difference.changes().len();
        let rest = StepCommit::new(next, changes - next, None);
        let template_values = &cut.root().template_values;
        let chain = with_commit(template_values.chain(), &difference, &time, rest);
        Self {
            after: template_values.with(chain),
            cut,
            difference,
            time,
            next,
            folds: false,
        }
    }

    /// Folds the plane's earlier steps with the commit that begins this one. Requires that every program
    /// that may open the plane reads that form, which the store's floor guarantees.
    #[must_use]
    pub fn folding(self) -> Self {
        Self {
            folds: true,
            ..self
        }
    }

    /// Returns the chain before the step, folded if that was requested by [`Self::folding`].
    fn folded(&self, plane: &Plane) -> Arc<Chain> {
        let before = self.cut.root().template_values.chain();
        // Only steps before the oldest event of the log are folded, because that event needs the
        // chain to show layer objects. History that is read from the store later brings chains of
        // its own.
        let fold = || before.folded(plane.log().oldest(), plane.layers());
        let begins = self.next == 0 && self.folds;
        let folded = begins.then(fold).flatten();
        folded.unwrap_or_else(|| Arc::clone(before))
    }

    /// Returns the cut that the changes were computed from. Act on it only once it is durable.
    #[must_use]
    pub fn cut(&self) -> &Snapshot {
        &self.cut
    }

    /// Returns the keys of the old or the new layer at which the plane has its own object, or a
    /// tombstone.
    pub fn shadowed(&self) -> impl Iterator<Item = Shadowed> {
        let (from, to) = (self.difference.from(), self.difference.to());
        let layers = [from, to]
            .into_iter()
            .flat_map(|layer| layer.resources().entries());
        let keys: BTreeSet<&Key> = layers.map(|entry| entry.key()).collect();
        keys.into_iter().filter_map(|key| {
            let root = self.cut.root();
            let own = root.resources.get(key);
            if own.is_some_and(|own| own.as_template().is_some()) {
                return None;
            }
            let old = self.old(key);
            if own.is_none() && old.is_none() {
                return None;
            }
            Some(Shadowed {
                key: key.clone(),
                old,
                new: self.new_object(key),
                own: own.map(|own| root.object(own)),
            })
        })
    }

    fn old(&self, key: &Key) -> Option<ObjectRef> {
        let template_values = &self.cut.root().template_values;
        let entry = template_values.template(key)?;
        Some(ObjectRef::new(
            Arc::clone(entry),
            Arc::clone(template_values),
        ))
    }

    fn new_object(&self, key: &Key) -> Option<ObjectRef> {
        let entry = self.after.template(key)?;
        Some(ObjectRef::new(Arc::clone(entry), Arc::clone(&self.after)))
    }

    /// Returns the next commit, on top of the chain `onto`. Both changes of a recreated object are
    /// in one commit.
    fn commit(&self, changes_max: usize, onto: &Chain) -> LayerCommit {
        let root = self.cut.root();
        let mut building = Building::default();
        let changes = &self.difference.changes()[self.next..];
        for group in changes.chunk_by(|a, b| a.key == b.key) {
            let full = building.count + group.len() > changes_max;
            if building.count > 0 && full || building.drops.len() == DROPS_MAX {
                break;
            }
            building.take(group, root, &self.difference);
        }
        let Building {
            count,
            moves,
            drops,
            claims,
            silent,
        } = building;
        let commit = StepCommit::new(self.next, count, None);
        let before = Arc::clone(root.template_values.chain());
        let chain = with_commit(onto, &self.difference, &self.time, Arc::clone(&commit));
        LayerCommit {
            record: StepsRecord::of(&chain, silent),
            template_values: root.template_values.with(chain),
            before,
            commit,
            moves,
            drops,
            claims,
        }
    }
}

/// Returns a chain with one more commit, of its unfinished step or of a new one.
fn with_commit(
    chain: &Chain,
    difference: &Arc<Difference>,
    time: &Str,
    commit: Arc<StepCommit>,
) -> Arc<Chain> {
    let mut steps = chain.steps().to_vec();
    let begun = chain.unfinished().is_some();
    let mut step = match steps.pop_if(|_| begun) {
        Some(step) => step,
        None => LayerStep::new(Arc::clone(difference), time.clone()),
    };
    step.push(commit);
    steps.push(step);
    chain.with(steps)
}

#[derive(Default)]
struct Building {
    count: usize,
    moves: Vec<Move>,
    drops: Vec<Key>,
    claims: Vec<(Key, Option<Stamp>)>,
    silent: Vec<u8>,
}

impl Building {
    /// Adds the changes of one key to the commit.
    fn take(&mut self, group: &[LayerChange], root: &Root, difference: &Difference) {
        let key = &group[0].key;
        let state = root.resources.get(key);
        self.claims
            .push((key.clone(), state.map(|state| state.stamp())));
        // The plane shows the change if it shows the template. A key that only the new layer has
        // shows it if the plane has nothing there.
        let follows = match state {
            Some(state) => state.as_template().is_some(),
            None => group[0].kind == ChangeKind::Added,
        };
        if state.is_none()
            && group
                .last()
                .is_some_and(|last| last.kind == ChangeKind::Removed)
        {
            self.drops.push(key.clone());
        }
        for change in group {
            let offset = u8::try_from(self.count).expect("a commit has at most 255 changes");
            self.count += 1;
            if !follows {
                self.silent.push(offset);
                continue;
            }
            let entry = match change.kind {
                ChangeKind::Removed => None,
                ChangeKind::Added | ChangeKind::Changed => {
                    difference.to().resources().get(key).cloned()
                }
            };
            self.moves.push(Move {
                offset,
                key: key.clone(),
                entry,
            });
        }
    }
}

/// One event of a step.
#[derive(Debug)]
struct Move {
    /// The position of the event's change, counted from the commit's first change.
    offset: u8,
    key: Key,
    /// The template that is added; `None` if it is removed.
    entry: Option<Arc<Entry>>,
}

/// A commit of a step in the queue.
#[derive(Debug)]
pub(crate) struct LayerCommit {
    /// The chain before the commit, which claims that it is still the plane's chain.
    before: Arc<Chain>,
    commit: Arc<StepCommit>,
    /// The plane's template values once the commit is done.
    template_values: Arc<TemplateValues>,
    moves: Vec<Move>,
    drops: Vec<Key>,
    claims: Vec<(Key, Option<Stamp>)>,
    record: StepsRecord,
}

impl LayerCommit {
    /// Returns the number of the commit's version indexes.
    pub(crate) fn changes(&self) -> usize {
        self.commit.count
    }

    /// Returns the keys of the tombstones that the commit removes.
    pub(crate) fn drops(&self) -> &[Key] {
        &self.drops
    }

    /// Returns the record that the commit writes.
    pub(crate) fn record(&self) -> &StepsRecord {
        &self.record
    }

    /// Returns whether everything is still as the caller of the step saw it.
    pub(crate) fn holds(&self, root: &Root) -> bool {
        let same = |(key, stamp): &(Key, Option<Stamp>)| {
            root.resources.get(key).map(|entry| entry.stamp()) == *stamp
        };
        Arc::ptr_eq(root.template_values.chain(), &self.before) && self.claims.iter().all(same)
    }

    /// Applies the commit to a root.
    pub(crate) fn apply(&self, root: &mut Root, context: &Context) {
        for Move { key, entry, .. } in &self.moves {
            match entry {
                Some(entry) => drop(root.put(Arc::clone(entry), context)),
                None => drop(root.remove(key, context)),
            }
        }
        root.template_values = Arc::clone(&self.template_values);
    }

    /// Applies the durable commit, whose first change has this version, to the published root and
    /// returns its events.
    pub(crate) fn land(
        &self,
        root: &mut Root,
        context: &Context,
        version: Version,
    ) -> Vec<Arc<Event>> {
        self.commit.lands(version);
        let mut events = Vec::with_capacity(self.moves.len());
        for Move { offset, key, entry } in &self.moves {
            let before = Arc::clone(&root.template_values);
            let previous = match entry {
                Some(entry) => root.put(Arc::clone(entry), context),
                None => root.remove(key, context),
            };
            let previous = previous.map(|entry| ObjectRef::new(entry, before));
            let current = entry.clone();
            let current =
                current.map(|entry| ObjectRef::new(entry, Arc::clone(&self.template_values)));
            let version = version.plus(usize::from(*offset));
            events.push(Event::new(version, key.clone(), previous, current));
        }
        root.template_values = Arc::clone(&self.template_values);
        events
    }
}
