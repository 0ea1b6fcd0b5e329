//! The steps a plane has taken from the layer of its birth to its present one.
//!
//! A step applies the changes between two layers, in key order. A commit of the step covers a range of
//! these changes and takes one version index for each, even if the plane shows no change there because
//! it has an object of its own. So the version of every template follows from the layers and the
//! versions of the commits alone, and nothing is stored per object. The oldest steps of a long chain
//! are folded, see [`fold`].
//!
//! Must not know which commits are durable: a commit under way is one without a version.

pub(crate) mod fold;
pub(crate) mod record;

use std::collections::BTreeMap;
use std::sync::{Arc, OnceLock};

use polyplane_apimachinery::Str;

use crate::key::Key;
use crate::layers::Layers;
use crate::layers::chain::fold::Fold;
use crate::layers::layer::{Layer, LayerHash};
use crate::state::Resources;
use crate::state::entry::Entry;
use crate::version::Version;

/// The kind of change that a step makes at a key.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum ChangeKind {
    /// The new layer has an object at the key, the old one has none.
    Added,
    /// Both layers have an object at the key, with different content.
    Changed,
    /// The old layer has an object at the key, the new one has none.
    Removed,
}

/// One change between two layers.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct LayerChange {
    pub(crate) key: Key,
    pub(crate) kind: ChangeKind,
}

/// The changes between two layers, in key order. A recreated object has two: removed, then added.
#[derive(Debug)]
pub(crate) struct Difference {
    from: Arc<Layer>,
    to: Arc<Layer>,
    /// Keys of both layers whose object is deleted and created again by the step, in order.
    recreated: Vec<Key>,
    changes: Vec<LayerChange>,
}

/// The entries of a key in the old and in the new layer.
type Sides<'a> = (Option<&'a Arc<Entry>>, Option<&'a Arc<Entry>>);

impl Difference {
    pub(crate) fn new(from: Arc<Layer>, to: Arc<Layer>, recreated: Vec<Key>) -> Arc<Self> {
        let mut keys: BTreeMap<&Key, Sides<'_>> = BTreeMap::new();
        for entry in from.resources().entries() {
            keys.entry(entry.key()).or_default().0 = Some(entry);
        }
        for entry in to.resources().entries() {
            keys.entry(entry.key()).or_default().1 = Some(entry);
        }
        let mut changes = Vec::new();
        for (key, sides) in keys {
            let mut change = |kind| {
                let key = key.clone();
                changes.push(LayerChange { key, kind });
            };
            match sides {
                (None, Some(_)) => change(ChangeKind::Added),
                (Some(_), None) => change(ChangeKind::Removed),
                (Some(_), Some(_)) if recreated.binary_search(key).is_ok() => {
                    change(ChangeKind::Removed);
                    change(ChangeKind::Added);
                }
                (Some(old), Some(new)) => {
                    let template = new.as_template();
                    // The template's text is the same in both layers, but the uid that it names
                    // changes.
                    let names = template.is_some_and(|new| new.names_uid_of(&recreated));
                    if old.stamp() != new.stamp() || names {
                        change(ChangeKind::Changed);
                    }
                }
                (None, None) => {}
            }
        }
        Arc::new(Self {
            from,
            to,
            recreated,
            changes,
        })
    }

    pub(crate) fn from(&self) -> &Arc<Layer> {
        &self.from
    }

    pub(crate) fn to(&self) -> &Arc<Layer> {
        &self.to
    }

    pub(crate) fn recreated(&self) -> &[Key] {
        &self.recreated
    }

    pub(crate) fn changes(&self) -> &[LayerChange] {
        &self.changes
    }

    /// Returns the positions of a key's changes: none, one, or two adjacent ones.
    fn of_key(&self, key: &Key) -> std::ops::Range<usize> {
        let start = self.changes.partition_point(|change| change.key < *key);
        let same = |change: &&LayerChange| change.key == *key;
        let count = self.changes[start..].iter().take_while(same).count();
        start..start + count
    }
}

/// One commit of a step.
#[derive(Debug)]
pub(crate) struct StepCommit {
    /// The position of the commit's first change.
    pub(crate) first: usize,
    /// Number of changes that the commit covers, which is also its number of version indexes.
    pub(crate) count: usize,
    /// The version of the commit's first change, set once the commit is durable.
    version: OnceLock<Version>,
}

impl StepCommit {
    pub(crate) fn new(first: usize, count: usize, version: Option<Version>) -> Arc<Self> {
        Arc::new(Self {
            first,
            count,
            version: version.map(OnceLock::from).unwrap_or_default(),
        })
    }

    pub(crate) fn version(&self) -> Option<Version> {
        self.version.get().copied()
    }

    /// Records that the commit is durable. A commit lands once.
    pub(crate) fn lands(&self, version: Version) {
        let known = self.version.get_or_init(|| version);
        debug_assert_eq!(*known, version, "a commit lands once");
    }
}

/// One step with the commits made so far.
#[derive(Debug, Clone)]
pub(crate) struct LayerStep {
    difference: Arc<Difference>,
    time: Str,
    commits: Vec<Arc<StepCommit>>,
}

/// The state of one change of a step.
enum Progress {
    /// No commit covers the change.
    Ahead,
    /// A commit covers the change: at this version, or `None` while the commit is under way.
    Taken(Option<Version>),
}

impl LayerStep {
    pub(crate) fn new(difference: Arc<Difference>, time: Str) -> Self {
        Self {
            difference,
            time,
            commits: Vec::new(),
        }
    }

    pub(crate) fn difference(&self) -> &Arc<Difference> {
        &self.difference
    }

    /// Returns the time at which the step began, RFC 3339: the creation time of the objects it
    /// adds.
    pub(crate) fn time(&self) -> &Str {
        &self.time
    }

    pub(crate) fn commits(&self) -> &[Arc<StepCommit>] {
        &self.commits
    }

    pub(crate) fn push(&mut self, commit: Arc<StepCommit>) {
        self.commits.push(commit);
    }

    /// Returns the number of the step's changes that are committed or under way.
    pub(crate) fn taken(&self) -> usize {
        self.commits
            .last()
            .map_or(0, |last| last.first + last.count)
    }

    pub(crate) fn is_whole(&self) -> bool {
        self.taken() == self.difference.changes.len()
    }

    fn progress(&self, place: usize, until: Option<Version>) -> Progress {
        let after = self.commits.partition_point(|commit| commit.first <= place);
        let commit = after.checked_sub(1).and_then(|at| self.commits.get(at));
        let Some(commit) = commit.filter(|commit| place < commit.first + commit.count) else {
            return Progress::Ahead;
        };
        let version = commit
            .version()
            .map(|first| first.plus(place - commit.first));
        match (version, until) {
            (None, Some(_)) => Progress::Ahead,
            (Some(version), Some(until)) if version > until => Progress::Ahead,
            (version, _) => Progress::Taken(version),
        }
    }

    /// Returns the changes of a key that are committed or under way, newest first.
    fn taken_of(
        &self,
        key: &Key,
        until: Option<Version>,
    ) -> impl Iterator<Item = (ChangeKind, Option<Version>)> {
        self.difference
            .of_key(key)
            .rev()
            .filter_map(move |at| match self.progress(at, until) {
                Progress::Ahead => None,
                Progress::Taken(version) => Some((self.difference.changes[at].kind, version)),
            })
    }
}

/// The last change of a template by a step.
pub(crate) struct LastChange {
    /// The version of the change; `None` while its commit is under way.
    pub(crate) version: Option<Version>,
    /// The number of the step, counted from one. For a folded change, the number of the last folded
    /// step.
    pub(crate) number: u32,
}

/// The step that added a template.
pub(crate) struct Introduction<'a> {
    /// The version of the addition; `None` while its commit is under way.
    pub(crate) version: Option<Version>,
    /// The number of the step, counted from one.
    pub(crate) number: u32,
    /// When the step began, RFC 3339.
    pub(crate) time: &'a Str,
}

/// The layers of a plane: that of its birth, and the steps since, the oldest of them folded.
#[derive(Debug, Clone)]
pub(crate) struct Chain {
    birth: LayerHash,
    /// The layer before the first step: that of the birth, or that of the fold.
    start: Arc<Layer>,
    fold: Option<Arc<Fold>>,
    steps: Vec<LayerStep>,
}

impl Chain {
    pub(crate) fn new(birth: Arc<Layer>, steps: Vec<LayerStep>) -> Arc<Self> {
        Arc::new(Self {
            birth: birth.hash().clone(),
            start: birth,
            fold: None,
            steps,
        })
    }

    /// Creates a chain that begins with folded steps.
    pub(crate) fn behind(birth: LayerHash, fold: Arc<Fold>, steps: Vec<LayerStep>) -> Arc<Self> {
        Arc::new(Self {
            birth,
            start: Arc::clone(fold.layer()),
            fold: Some(fold),
            steps,
        })
    }

    /// Returns a chain with the same birth and fold and with other steps.
    pub(crate) fn with(&self, steps: Vec<LayerStep>) -> Arc<Self> {
        Arc::new(Self {
            steps,
            ..self.clone()
        })
    }

    /// Returns the same chain with all steps folded that were complete before `oldest`, the version
    /// of the oldest event in memory (`None` if there is no event). Returns `None` if there is
    /// nothing to fold.
    pub(crate) fn folded(&self, oldest: Option<Version>, layers: &Layers) -> Option<Arc<Self>> {
        let is_past = |step: &&LayerStep| {
            let last = step.commits.last().and_then(|last| last.version());
            let past = last
                .is_some_and(|last| oldest.is_none_or(|oldest| last.end_of_revision() < oldest));
            step.is_whole() && past
        };
        let count = self.steps.iter().take_while(is_past).count();
        let (past, rest) = self.steps.split_at(count);
        let fold = Fold::of(self.fold.as_deref(), past, layers)?;
        let birth = self.birth.clone();
        Some(Self::behind(birth, Arc::new(fold), rest.to_vec()))
    }

    /// Returns whether the chain has no steps other than folded ones.
    pub(crate) fn has_no_steps(&self) -> bool {
        self.steps.is_empty()
    }

    /// Returns the layer of the plane's birth.
    pub(crate) fn birth(&self) -> &LayerHash {
        &self.birth
    }

    /// Returns the layer from which the first step that is not folded starts.
    pub(crate) fn start(&self) -> &Arc<Layer> {
        &self.start
    }

    pub(crate) fn fold(&self) -> Option<&Arc<Fold>> {
        self.fold.as_ref()
    }

    /// Returns the steps that are not folded.
    pub(crate) fn steps(&self) -> &[LayerStep] {
        &self.steps
    }

    /// Returns the newest layer: that of the last step, complete or not.
    pub(crate) fn newest(&self) -> &Arc<Layer> {
        let last = self.steps.last();
        last.map_or(&self.start, |step| step.difference.to())
    }

    /// Returns the last step, if it is not complete.
    pub(crate) fn unfinished(&self) -> Option<&LayerStep> {
        self.steps.last().filter(|step| !step.is_whole())
    }

    /// Returns the templates after all steps, without the plane's own objects.
    pub(crate) fn resources(&self) -> Resources {
        let Some(step) = self.unfinished() else {
            return self.newest().resources().clone();
        };
        let mut resources = step.difference.from.resources().clone();
        for change in &step.difference.changes[..step.taken()] {
            match change.kind {
                ChangeKind::Removed => drop(resources.remove(&change.key)),
                ChangeKind::Added | ChangeKind::Changed => {
                    let entry = step.difference.to.resources().get(&change.key);
                    let entry = entry.expect("the difference was made of this layer");
                    resources.insert(Arc::clone(entry));
                }
            }
        }
        resources
    }

    /// Returns the commit whose first change has this version.
    pub(crate) fn commit_at(&self, version: Version) -> Option<(&LayerStep, &StepCommit)> {
        self.steps.iter().rev().find_map(|step| {
            let commits = step.commits.iter();
            let mut commits = commits.filter(|commit| commit.version() == Some(version));
            commits.next().map(|commit| (step, &**commit))
        })
    }

    /// Returns the template that the layers have for a key.
    pub(crate) fn template(&self, key: &Key, until: Option<Version>) -> Option<&Arc<Entry>> {
        for step in self.steps.iter().rev() {
            match step.taken_of(key, until).next() {
                Some((ChangeKind::Removed, _)) => return None,
                Some((ChangeKind::Added | ChangeKind::Changed, _)) => {
                    return step.difference.to.resources().get(key);
                }
                None => {}
            }
        }
        self.start.resources().get(key)
    }

    /// Returns the last change of a key's template; `None` if it has not changed since the plane's
    /// birth.
    pub(crate) fn last_change(&self, key: &Key, until: Option<Version>) -> Option<LastChange> {
        let changed = self.taken(key, until, |_| true);
        let changed = changed.map(|(_, number, version)| LastChange { version, number });
        changed.or_else(|| self.fold.as_ref()?.last_change(key))
    }

    /// Returns the step that added a key's template; `None` if the plane was born with it.
    pub(crate) fn introduction(
        &self,
        key: &Key,
        until: Option<Version>,
    ) -> Option<Introduction<'_>> {
        let came = self.taken(key, until, |kind| kind == ChangeKind::Added);
        let came = came.map(|(step, number, version)| Introduction {
            version,
            number,
            time: &step.time,
        });
        came.or_else(|| self.fold.as_ref()?.introduction(key))
    }

    /// Returns the number of the newest step, at most `until`, that adds a key, committed or not;
    /// zero if the plane was born with it.
    pub(crate) fn introducing_step(&self, key: &Key, until: u32) -> u32 {
        let steps = self.steps.iter().zip(self.steps_folded() + 1..=until);
        let brings = |step: &LayerStep| {
            let changes = &step.difference.changes[step.difference.of_key(key)];
            changes
                .iter()
                .any(|change| change.kind == ChangeKind::Added)
        };
        let brought = steps.filter(|(step, _)| brings(step));
        let folded = || self.fold.as_ref()?.introduction(key);
        brought
            .last()
            .map(|(_, number)| number)
            .or_else(|| folded().map(|came| came.number))
            .unwrap_or(0)
    }

    fn steps_folded(&self) -> u32 {
        self.fold.as_ref().map_or(0, |fold| fold.steps())
    }

    /// Returns the newest committed change of a key for which `counts` holds, with its step and the
    /// step's number.
    fn taken(
        &self,
        key: &Key,
        until: Option<Version>,
        counts: impl Fn(ChangeKind) -> bool,
    ) -> Option<(&LayerStep, u32, Option<Version>)> {
        for (at, step) in self.steps.iter().enumerate().rev() {
            let mut taken = step.taken_of(key, until);
            if let Some((_, version)) = taken.find(|(kind, _)| counts(*kind)) {
                let number = u32::try_from(at).map_or(u32::MAX, |at| at + 1);
                let number = number.saturating_add(self.steps_folded());
                return Some((step, number, version));
            }
        }
        None
    }
}
