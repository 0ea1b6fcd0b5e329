//! A fold: the effect of many steps, without the steps.
//!
//! A fold replaces the first steps of a chain. For each object that one of them changed it names
//! the commit that gave the object its version; for each that one of them added, the commit that
//! gave it its uid and its time. So objects keep these values, and neither the steps nor the layers
//! between are needed any more.
//!
//! A fold does not know the state before its newest commit. The chain of that time does: the events
//! of that time refer to it, and the store's history has it.

use std::collections::BTreeMap;
use std::sync::Arc;

use polyplane_apimachinery::Str;

use super::{ChangeKind, Introduction, LastChange, LayerStep};
use crate::key::Key;
use crate::layers::Layers;
use crate::layers::layer::Layer;
use crate::version::Version;

/// The first steps of a plane, folded.
#[derive(Debug, Clone)]
pub(crate) struct Fold {
    /// The layer after the folded steps.
    pub(super) layer: Arc<Layer>,
    /// Number of steps that the fold replaces.
    pub(super) steps: u32,
    /// The end of the newest folded commit.
    pub(super) newest: Version,
    /// The commits that a row names, in the order of their versions.
    pub(super) commits: Vec<FoldedCommit>,
    pub(super) rows: Arc<FoldRows>,
}

/// A folded commit that gave an object its version, uid or time.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct FoldedCommit {
    /// The version of the commit's first change.
    pub(crate) version: Version,
    /// The number and the time of the commit's step, which determine the uids and times of the
    /// objects that the commit added. `None` if none of these is in the fold's layer.
    pub(crate) brought: Option<(u32, Str)>,
}

/// The objects that folded steps have changed. Planes that took the same steps in the same commits
/// share them.
#[derive(Debug)]
pub(crate) struct FoldRows {
    /// The rows in key order.
    rows: Box<[(Key, FoldRow)]>,
}

/// The effect of folded steps on one object.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) struct FoldRow {
    /// The commit that changed the object last.
    pub(crate) changed: CommitOffset,
    /// The commit that added the object; `None` if the plane was born with it.
    pub(crate) came: Option<CommitOffset>,
}

/// One change of a folded commit.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) struct CommitOffset {
    /// The number of the commit in the fold.
    pub(crate) commit: u16,
    /// The number of the change in the commit.
    pub(crate) offset: u8,
}

impl FoldRows {
    /// Returns the rows by key, given the rows by the numbers that their objects have in the layer;
    /// `None` if the layer lacks one of these objects.
    pub(crate) fn of_layer(layer: &Layer, rows: &[(u32, FoldRow)]) -> Option<Self> {
        let mut rows = rows.iter().peekable();
        let mut known = Vec::with_capacity(rows.len());
        for (number, entry) in (0..).zip(layer.resources().entries()) {
            if let Some((_, row)) = rows.next_if(|(wanted, _)| *wanted == number) {
                known.push((entry.key().clone(), *row));
            }
        }
        rows.peek().is_none().then(|| Self { rows: known.into() })
    }

    /// Returns the rows with the numbers that their objects have in the layer.
    pub(super) fn numbered(&self, layer: &Layer) -> Vec<(u32, FoldRow)> {
        let mut rows = self.rows.iter().peekable();
        let entries = (0..).zip(layer.resources().entries());
        let row = |(number, entry): (u32, &Arc<crate::Entry>)| {
            let (_, row) = rows.next_if(|(key, _)| key == entry.key())?;
            Some((number, *row))
        };
        entries.filter_map(row).collect()
    }

    fn get(&self, key: &Key) -> Option<FoldRow> {
        let at = self.rows.binary_search_by(|(known, _)| known.cmp(key));
        at.ok().map(|at| self.rows[at].1)
    }
}

impl Fold {
    /// Folds an earlier fold, if there is one, and the steps after it, all of which are complete
    /// and durable. Returns `None` if that is not possible.
    pub(super) fn of(before: Option<&Self>, steps: &[LayerStep], layers: &Layers) -> Option<Self> {
        let last = steps.last()?;
        let layer = Arc::clone(last.difference().to());
        let folded = before.map_or(0, |before| before.steps);
        let finding = Finding {
            before,
            steps,
            folded,
        };
        let found: Vec<_> = layer
            .resources()
            .entries()
            .zip(0..)
            .filter_map(|(entry, number)| Some((number, finding.of_key(entry.key())?)))
            .collect();
        let mut named: BTreeMap<Version, Option<(u32, Str)>> = BTreeMap::new();
        for (_, (changed, came)) in &found {
            named.entry(changed.commit).or_default();
            if let Some(came) = came {
                let brought = came.step.map(|(number, time)| (number, time.clone()));
                named.insert(came.commit, brought);
            }
        }
        let commit = |(version, brought)| FoldedCommit { version, brought };
        let commits: Vec<FoldedCommit> = named.into_iter().map(commit).collect();
        let mark = |found: &Found<'_>| {
            let at = commits.partition_point(|commit| commit.version < found.commit);
            CommitOffset {
                commit: u16::try_from(at).expect("a layer in memory has few objects to name them"),
                offset: found.offset,
            }
        };
        let rows: Vec<(u32, FoldRow)> = found
            .iter()
            .map(|(number, (changed, came))| {
                let changed = mark(changed);
                let came = came.as_ref().map(mark);
                (*number, FoldRow { changed, came })
            })
            .collect();
        let newest = last.commits().last().and_then(|last| last.version());
        Some(Self {
            steps: folded + u32::try_from(steps.len()).expect("a chain in memory has few steps"),
            newest: newest?.end_of_revision(),
            rows: layers.rows(&layer, &rows)?,
            commits,
            layer,
        })
    }

    pub(crate) fn layer(&self) -> &Arc<Layer> {
        &self.layer
    }

    /// Returns the number of steps that the fold replaces.
    pub(crate) fn steps(&self) -> u32 {
        self.steps
    }

    /// Returns the end of the newest folded commit. The fold does not know earlier states.
    pub(crate) fn newest(&self) -> Version {
        self.newest
    }

    fn commit(&self, mark: CommitOffset) -> &FoldedCommit {
        &self.commits[usize::from(mark.commit)]
    }

    fn version(&self, mark: CommitOffset) -> Version {
        self.commit(mark).version.plus(usize::from(mark.offset))
    }

    /// Returns the last change of an object; `None` if it has not changed since the plane's birth.
    pub(super) fn last_change(&self, key: &Key) -> Option<LastChange> {
        let row = self.rows.get(key)?;
        Some(LastChange {
            version: Some(self.version(row.changed)),
            // Every object that the fold names was added by its last step at the latest, or it
            // would have changed later.
            number: self.steps,
        })
    }

    /// Returns the step that added an object; `None` if the plane was born with it.
    pub(super) fn introduction(&self, key: &Key) -> Option<Introduction<'_>> {
        let came = self.rows.get(key)?.came?;
        let (number, time) = self.commit(came).brought.as_ref()?;
        Some(Introduction {
            version: Some(self.version(came)),
            number: *number,
            time,
        })
    }
}

/// The commit that changed or added an object.
struct Found<'a> {
    /// The version of the commit's first change.
    commit: Version,
    offset: u8,
    /// The number and the time of the commit's step. Unknown for commits of an earlier fold that
    /// added nothing.
    step: Option<(u32, &'a Str)>,
}

/// The search for the commits of objects.
struct Finding<'a> {
    before: Option<&'a Fold>,
    steps: &'a [LayerStep],
    folded: u32,
}

impl<'a> Finding<'a> {
    /// Returns the commits that changed an object last and that added it; `None` if there are none.
    fn of_key(&self, key: &Key) -> Option<(Found<'a>, Option<Found<'a>>)> {
        let row = self.before.and_then(|before| before.rows.get(key));
        let changed = self.in_steps(key, |_| true);
        let changed = changed.or_else(|| self.folded(row?.changed))?;
        let came = self.in_steps(key, |kind| kind == ChangeKind::Added);
        let came = came.or_else(|| self.folded(row?.came?));
        Some((changed, came))
    }

    fn in_steps(&self, key: &Key, counts: impl Fn(ChangeKind) -> bool) -> Option<Found<'a>> {
        self.steps.iter().enumerate().rev().find_map(|(at, step)| {
            let number = self.folded + 1 + u32::try_from(at).ok()?;
            let mut changes = step.difference.of_key(key).rev();
            let at = changes.find(|at| counts(step.difference.changes[*at].kind))?;
            let after = step.commits.partition_point(|commit| commit.first <= at);
            let commit = step.commits.get(after.checked_sub(1)?)?;
            Some(Found {
                commit: commit.version()?,
                offset: u8::try_from(at - commit.first).ok()?,
                step: Some((number, &step.time)),
            })
        })
    }

    fn folded(&self, mark: CommitOffset) -> Option<Found<'a>> {
        let commit = self.before?.commit(mark);
        let step = commit.brought.as_ref();
        Some(Found {
            commit: commit.version,
            offset: mark.offset,
            step: step.map(|(number, time)| (*number, time)),
        })
    }
}
