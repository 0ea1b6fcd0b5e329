//! Which fields a write through a subresource may own.
//!
//! Upstream resets the others to what the object has, so nobody becomes their owner. The sets are
//! generated from upstream's strategies (`resetFields` in the rows).

use crate::kinds::generated_rows::ResourceRow;
use polyplane_apimachinery::Str;
use polyplane_managedfields::{FieldSet, Filter, PathElement};
use std::collections::BTreeMap;
use std::sync::Arc;

/// Fields by API version, in the notation of the rows: `.spec`, `.metadata.labels`.
pub type ResetFields = BTreeMap<Str, Vec<Str>>;

/// The subresources whose storage tells upstream's field management what it resets. The others reset
/// fields, too, but whoever sends such a field owns it.
const RESETTING: [&str; 3] = ["approval", "finalize", "status"];

/// The filters of a kind by subresource (empty for the object itself) and API version.
#[derive(Clone, Debug, Default)]
pub struct OwnedFields(BTreeMap<Str, Arc<BTreeMap<Str, Filter>>>);

impl OwnedFields {
    /// Creates the filters of a row.
    pub(super) fn of(row: &ResourceRow) -> Self {
        let mut all = BTreeMap::from([(Str::default(), filters(&row.strategy.reset_fields))]);
        for subresource in &row.subresources {
            if RESETTING.contains(&subresource.name.as_str()) {
                let name = subresource.name.clone();
                all.insert(name, filters(&subresource.reset_fields));
            }
        }
        all.retain(|_, filters| !filters.is_empty());
        Self::of_filters(
            all.into_iter()
                .map(|(name, filters)| (name, Arc::new(filters))),
        )
    }

    /// Creates them from the filters of subresources (empty for the object itself) by API version.
    /// Versions of a kind share what they have in common.
    pub fn of_filters(
        filters: impl IntoIterator<Item = (Str, Arc<BTreeMap<Str, Filter>>)>,
    ) -> Self {
        Self(filters.into_iter().collect())
    }

    /// Returns the filter of writes through a subresource; `None` if they may own everything.
    pub fn filter(&self, subresource: &str, api_version: &str) -> Option<&Filter> {
        self.0.get(subresource)?.get(api_version)
    }
}

fn filters(reset: &ResetFields) -> BTreeMap<Str, Filter> {
    let filters = reset.iter().map(|(version, paths)| {
        let mut set = FieldSet::EMPTY;
        for path in paths {
            let steps = path.split('.').skip(1).map(PathElement::field);
            set.insert(&steps.collect::<Vec<_>>());
        }
        (version.clone(), Filter::Exclude(set))
    });
    filters.collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fields_are_read_from_the_notation_of_the_rows() {
        let reset = ResetFields::from([("v1".into(), vec![".spec".into()])]);
        let filters = filters(&reset);
        let below = ["spec", "nodeName"].map(PathElement::field);
        let other = ["status", "phase"].map(PathElement::field);
        let set: FieldSet = [below.as_slice(), other.as_slice()].into_iter().collect();
        let kept = filters["v1"].apply(&set);
        assert!(!kept.has(&below) && kept.has(&other));
    }
}
