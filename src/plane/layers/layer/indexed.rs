//! The index rows of a layer's templates and their summary, computed once for all planes.
//!
//! Every plane shows its layer's objects, so most of what its indexes hold is the same in all of
//! them. A plane's root starts from the maps that are kept here, which share their structure, and
//! adds and subtracts only what is its own. Rows may depend on template values:
//!
//! - on parameters of the plane's record, such as an address: the maps are kept for each
//!   combination of these parameters' values, which most planes have in common;
//! - on uids or times: each plane computes the rows of these templates itself.
//!
//! A summary is kept of the templates without parameters; it must not depend on uids and times.
//!
//! Invariant: a kept map equals the map that a walk over the layer would compute in any plane with
//! these values.

use std::sync::Arc;

use parking_lot::Mutex;
use polyplane_apimachinery::Str;

use super::Template;
use crate::key::Key;
use crate::layers::template_values::TemplateValues;
use crate::state::entry::Entry;
use crate::state::index::{Index, IndexMap, IndexRow};
use crate::state::summary::{Summarizer, Summary};
use crate::state::{Context, Resources};

/// Number of lists of indexes that are kept per layer. A process opens its planes with one list;
/// without the limit, maps of lists that are no longer used would stay in memory.
const SETS_MAX: usize = 4;
/// Number of combinations of parameter values that are kept per list of indexes. The planes of one
/// store mostly have the same combination; without the limit every address would keep maps in
/// memory.
const VALUES_MAX: usize = 16;

/// Two sets of values that no plane has. A template whose rows differ between them depends on its values.
const SAMPLES: [Sample; 2] = [
    Sample {
        uid: "00000000-0000-4000-8000-000000000000",
        time: "1970-01-01T00:00:00Z",
    },
    Sample {
        uid: "ffffffff-ffff-4fff-bfff-ffffffffffff",
        time: "2099-12-31T23:59:59Z",
    },
];

struct Sample {
    uid: &'static str,
    time: &'static str,
}

/// The shared part of a new plane's root.
pub(crate) struct Start {
    /// The shared rows, by index.
    pub(crate) maps: Arc<[IndexMap]>,
    /// The templates whose rows are not in the shared maps.
    pub(crate) left: Arc<[Arc<Entry>]>,
    /// The shared summary, and the templates that it lacks.
    pub(crate) summary: Option<Summary>,
    pub(crate) unsummarized: Arc<[Arc<Entry>]>,
}

/// The kept maps of one layer.
#[derive(Default)]
pub(crate) struct Indexed(Mutex<Vec<Set>>);

impl std::fmt::Debug for Indexed {
    fn fmt(&self, out: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let sets = self.0.lock().len();
        out.debug_struct("Indexed").field("sets", &sets).finish()
    }
}

/// The maps that are kept for one list of indexes.
struct Set {
    /// Held so that no other index can get the address of one of these indexes, which identifies
    /// the list.
    indexes: Arc<[Arc<dyn Index>]>,
    /// Held for the same reason.
    summarizer: Summarizer,
    summary: Option<Summary>,
    unsummarized: Arc<[Arc<Entry>]>,
    /// The rows that are the same in every plane.
    shared: Vec<IndexMap>,
    /// The templates whose rows may depend on parameters, and the names of these parameters.
    filled: Vec<Arc<Entry>>,
    names: Vec<Str>,
    /// The maps of planes with these values of the parameters, newest last.
    by_values: Vec<(Vec<Vec<u8>>, StoredMaps)>,
    /// The templates whose rows depend on the plane.
    left: Vec<Arc<Entry>>,
}

#[derive(Clone)]
struct StoredMaps {
    maps: Arc<[IndexMap]>,
    left: Arc<[Arc<Entry>]>,
}

impl Indexed {
    /// Returns the shared part of the root of a plane with these template values. The first plane
    /// with such values computes it while others with the same wait.
    pub(crate) fn start(
        &self,
        resources: &Resources,
        context: &Context,
        template_values: &TemplateValues,
    ) -> Start {
        let mut sets = self.0.lock();
        let place = sets.iter().position(|set| set.is_of(context));
        let place = place.unwrap_or_else(|| {
            if sets.len() >= SETS_MAX {
                sets.remove(0);
            }
            sets.push(Set::new(resources, context));
            sets.len() - 1
        });
        let set = &mut sets[place];
        let StoredMaps { maps, left } = set.with(template_values);
        Start {
            maps,
            left,
            summary: set.summary.clone(),
            unsummarized: Arc::clone(&set.unsummarized),
        }
    }
}

impl Set {
    fn new(resources: &Resources, context: &Context) -> Self {
        let indexes = &context.indexes;
        let (summary, unsummarized) = summarized(resources, &context.summarizer);
        let mut set = Self {
            indexes: Arc::clone(indexes),
            summarizer: context.summarizer.clone(),
            summary,
            unsummarized,
            shared: vec![IndexMap::default(); indexes.len()],
            filled: Vec::new(),
            names: Vec::new(),
            by_values: Vec::new(),
            left: Vec::new(),
        };
        for entry in resources.entries() {
            let Some(template) = entry.as_template() else {
                continue;
            };
            if !indexes.iter().any(|index| index.covers(entry.key())) {
                continue;
            }
            let mut names = template.param_names().peekable();
            if names.peek().is_none() {
                match rows(entry.key(), template, indexes, &[]) {
                    Some(rows) => add(&mut set.shared, entry.key(), rows),
                    None => set.left.push(Arc::clone(entry)),
                }
            } else {
                set.names.extend(names.cloned());
                set.filled.push(Arc::clone(entry));
            }
        }
        set.names.sort_unstable();
        set.names.dedup();
        set
    }

    fn is_of(&self, context: &Context) -> bool {
        let indexes = &context.indexes;
        let same = |(one, other): (&Arc<dyn Index>, &Arc<dyn Index>)| {
            std::ptr::addr_eq(Arc::as_ptr(one), Arc::as_ptr(other))
        };
        self.indexes.len() == indexes.len()
            && self.indexes.iter().zip(&**indexes).all(same)
            && self.summarizer.is(&context.summarizer)
    }

    fn with(&mut self, template_values: &TemplateValues) -> StoredMaps {
        let values = self.names.iter();
        let values = values.map(|name| template_values.param(name).unwrap_or_default().to_vec());
        let values: Vec<Vec<u8>> = values.collect();
        let known = self.by_values.iter().find(|(known, _)| *known == values);
        if let Some((_, kept)) = known {
            return kept.clone();
        }
        let params: Vec<(&Str, &[u8])> = self
            .names
            .iter()
            .zip(values.iter().map(Vec::as_slice))
            .collect();
        let (mut maps, mut left) = (self.shared.clone(), self.left.clone());
        for entry in &self.filled {
            let template = entry.as_template().expect("only templates are filled");
            match rows(entry.key(), template, &self.indexes, &params) {
                Some(rows) => add(&mut maps, entry.key(), rows),
                None => left.push(Arc::clone(entry)),
            }
        }
        let kept = StoredMaps {
            maps: maps.into(),
            left: left.into(),
        };
        if self.by_values.len() >= VALUES_MAX {
            self.by_values.remove(0);
        }
        self.by_values.push((values, kept.clone()));
        kept
    }
}

/// Returns the summary of the templates that are the same in every plane but for uids and times, and
/// the summarized templates that are not.
fn summarized(
    resources: &Resources,
    summarizer: &Summarizer,
) -> (Option<Summary>, Arc<[Arc<Entry>]>) {
    let (mut summary, mut left) = (summarizer.empty(), Vec::new());
    for entry in resources.entries() {
        let Some(summarize) = summarizer.of(entry.key()) else {
            continue;
        };
        let template = entry.as_template();
        let template = template.filter(|template| template.param_names().next().is_none());
        let sample = &SAMPLES[0];
        let body = template.and_then(|template| template.sample(sample.uid, sample.time, &[]));
        match (body, &summary) {
            (Some(body), Some(known)) => {
                summary = Some(summarize.next(known, entry.key(), Some(&body)));
            }
            _ => left.push(Arc::clone(entry)),
        }
    }
    (summary, left.into())
}

/// Returns the rows of a template by index, if they are the same for every uid and time.
fn rows(
    key: &Key,
    template: &Template,
    indexes: &[Arc<dyn Index>],
    params: &[(&Str, &[u8])],
) -> Option<Vec<Vec<IndexRow>>> {
    let of = |sample: &Sample| -> Option<Vec<Vec<IndexRow>>> {
        let body = template.sample(sample.uid, sample.time, params)?;
        let rows = |index: &Arc<dyn Index>| {
            if index.covers(key) {
                index.rows(key, &body)
            } else {
                Vec::new()
            }
        };
        Some(indexes.iter().map(rows).collect())
    };
    let first = of(&SAMPLES[0])?;
    (of(&SAMPLES[1])? == first).then_some(first)
}

fn add(maps: &mut [IndexMap], key: &Key, rows: Vec<Vec<IndexRow>>) {
    for (map, rows) in maps.iter_mut().zip(rows) {
        map.add(key, rows);
    }
}

#[cfg(test)]
mod tests;
