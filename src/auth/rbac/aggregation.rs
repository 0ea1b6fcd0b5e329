//! The rules of aggregated ClusterRoles.
//!
//! Decisions read stored rules only. A reconciler writes what these functions return into the
//! roles, so that what a client reads of a role is what decides.

use std::collections::HashSet;

use polyplane_apimachinery::Str;

use super::index::Index;
use super::policy_rule::PolicyRule;
use super::role::{Aggregation, Role};

impl Index {
    /// Returns the rules to write into a ClusterRole; `None` if it does not exist, does not
    /// aggregate, or has them already.
    ///
    /// They are those of all other roles that its selectors select, each once: by selector, then by
    /// name.
    #[must_use]
    pub fn aggregated(&self, name: &str) -> Option<Vec<PolicyRule>> {
        self.stale_rules(name, self.cluster().role(name)?)
    }

    /// Returns the ClusterRoles whose rules are not those of the roles that they select, with the
    /// rules to write, by name. Writing them can make others stale that select these.
    #[must_use]
    pub fn stale_aggregations(&self) -> Vec<(Str, Vec<PolicyRule>)> {
        let stale = self.cluster().roles().filter_map(|(name, role)| {
            let rules = self.stale_rules(name, role)?;
            Some((name.clone(), rules))
        });
        let mut stale: Vec<_> = stale.collect();
        stale.sort_by(|(a, _), (b, _)| a.cmp(b));
        stale
    }

    fn stale_rules(&self, name: &str, role: &Role) -> Option<Vec<PolicyRule>> {
        let Aggregation::Selectors(selectors) = role.aggregation() else {
            return None;
        };
        let (mut known, mut rules) = (HashSet::new(), Vec::new());
        for selector in selectors {
            let others = self.cluster().roles();
            let selected = |(other, role): &(&Str, &Role)| {
                other.as_str() != name && role.is_selected_by(selector)
            };
            let mut selected: Vec<_> = others.filter(selected).collect();
            selected.sort_by_key(|(name, _)| *name);
            let found = selected.into_iter().flat_map(|(_, role)| role.rules());
            rules.extend(found.filter(|rule| known.insert(*rule)));
        }
        let is_stale = !rules.iter().copied().eq(role.rules());
        is_stale.then(|| rules.into_iter().cloned().collect())
    }
}
