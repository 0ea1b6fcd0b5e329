//! The rules of aggregated ClusterRoles.
//!
//! Decisions read stored rules only. A reconciler writes what these functions return into the
//! roles, so that what a client reads of a role is what decides.
//!
//! A role takes no rules from an aggregated role that takes rules from it, through others too. Roles that select
//! each other would else exchange their rules for ever, and each exchange is a write.

use std::collections::{HashMap, HashSet};

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
        Aggregated::of(self).stale_rules(name)
    }

    /// Returns whether a ClusterRole takes rules from one that takes rules from it: there upstream writes others.
    #[must_use]
    pub fn aggregates_itself(&self, name: &str) -> bool {
        let circles = Aggregated::of(self).circles;
        let own = circles.get(name);
        own.is_some() && circles.values().filter(|other| Some(*other) == own).count() > 1
    }

    /// Returns the ClusterRoles whose rules are not those of the roles that they select, with the
    /// rules to write, by name. Writing them can make others stale that select these.
    #[must_use]
    pub fn stale_aggregations(&self) -> Vec<(Str, Vec<PolicyRule>)> {
        let aggregated = Aggregated::of(self);
        let stale = aggregated.roles.iter().filter_map(|(name, _)| {
            let rules = aggregated.stale_rules(name)?;
            Some(((*name).clone(), rules))
        });
        stale.collect()
    }
}

/// The aggregated ClusterRoles, and those that they select.
struct Aggregated<'i> {
    /// By name.
    roles: Vec<(&'i Str, &'i Role)>,
    /// The roles that each selects, in the order in which their rules are taken.
    selected: Vec<Vec<(&'i Str, &'i Role)>>,
    /// A number that roles have in common which take rules from each other.
    circles: HashMap<&'i str, usize>,
}

impl<'i> Aggregated<'i> {
    fn of(index: &'i Index) -> Self {
        let mut all: Vec<_> = index.cluster().roles().collect();
        all.sort_by_key(|(name, _)| *name);
        let is_aggregated =
            |(_, role): &(&Str, &Role)| matches!(role.aggregation(), Aggregation::Selectors(_));
        let roles: Vec<_> = all.iter().copied().filter(is_aggregated).collect();
        let selected = |(name, role): &(&'i Str, &'i Role)| {
            let Aggregation::Selectors(selectors) = role.aggregation() else {
                return Vec::new();
            };
            let of = |selector| {
                let others = all.iter().filter(move |(other, _)| other != name);
                others.filter(move |(_, role)| role.is_selected_by(selector))
            };
            selectors.iter().flat_map(of).copied().collect()
        };
        let selected: Vec<Vec<_>> = roles.iter().map(selected).collect();
        let places = roles.iter().enumerate();
        let places: HashMap<&str, usize> =
            places.map(|(at, (name, _))| (name.as_str(), at)).collect();
        let edges = selected.iter().map(|others| {
            let places = others
                .iter()
                .filter_map(|(name, _)| places.get(name.as_str()));
            places.copied().collect()
        });
        let circles = circles(&edges.collect::<Vec<_>>());
        let names = roles.iter().map(|(name, _)| name.as_str());
        Self {
            circles: names.zip(circles).collect(),
            selected,
            roles,
        }
    }

    fn stale_rules(&self, name: &str) -> Option<Vec<PolicyRule>> {
        let at = self
            .roles
            .binary_search_by(|(known, _)| known.as_str().cmp(name));
        let at = at.ok()?;
        let circle = self.circles.get(name);
        let mut known = HashSet::new();
        let sources = self.selected[at].iter();
        let sources = sources.filter(|(other, _)| self.circles.get(other.as_str()) != circle);
        let rules = sources.flat_map(|(_, role)| role.rules());
        let rules: Vec<_> = rules.filter(|rule| known.insert(*rule)).collect();
        let is_stale = !rules.iter().copied().eq(self.roles[at].1.rules());
        is_stale.then(|| rules.into_iter().cloned().collect())
    }
}

/// Returns a number for each node of a graph; two have the same if each leads to the other.
fn circles(edges: &[Vec<usize>]) -> Vec<usize> {
    // Kosaraju's way: what is reached backwards from the last one that was left.
    let mut backwards = vec![Vec::new(); edges.len()];
    for (from, to) in edges.iter().enumerate() {
        to.iter().for_each(|to| backwards[*to].push(from));
    }
    let (mut left, mut seen) = (Vec::new(), vec![false; edges.len()]);
    for start in 0..edges.len() {
        walk(edges, start, &mut seen, &mut |node| left.push(node));
    }
    let (mut circles, mut seen) = (vec![0; edges.len()], vec![false; edges.len()]);
    for (number, start) in left.into_iter().rev().enumerate() {
        walk(&backwards, start, &mut seen, &mut |node| {
            circles[node] = number
        });
    }
    circles
}

/// Calls `leave` with each node that is reached for the first time, after those to which it leads.
fn walk(edges: &[Vec<usize>], start: usize, seen: &mut [bool], leave: &mut dyn FnMut(usize)) {
    if std::mem::replace(&mut seen[start], true) {
        return;
    }
    // A stack of its own, because a tenant says how long the ways are.
    let mut way = vec![(start, 0)];
    while let Some((node, next)) = way.last_mut() {
        match edges[*node].get(*next) {
            Some(to) => {
                *next += 1;
                if !std::mem::replace(&mut seen[*to], true) {
                    way.push((*to, 0));
                }
            }
            None => {
                leave(*node);
                way.pop();
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use polyplane_apimachinery::{Value, json};

    use super::*;
    use crate::rbac::binding::ObjectName;

    /// A role that selects those with a label, and has labels by which others select it.
    fn role(selects: Option<&str>, labels: &[&str]) -> Role {
        let mut object = json!({"rules": [], "metadata": {"labels": {}}});
        for label in labels {
            object.set(&["metadata", "labels", label], "true");
        }
        match selects {
            Some(label) => {
                let mut selector = Value::object();
                selector.set(&["matchLabels", label], "true");
                object.set(
                    &["aggregationRule", "clusterRoleSelectors"],
                    Value::Array([selector].into()),
                );
            }
            None => object.set(
                &["rules"],
                json!([{"verbs": ["get"], "apiGroups": [""], "resources": [(labels[0])]}]),
            ),
        }
        Role::from_value(&object)
    }

    #[test]
    fn roles_that_select_each_other_come_to_rest() {
        let mut index = Index::default();
        fn name(name: &str) -> ObjectName<'_> {
            ObjectName {
                namespace: "",
                name,
            }
        }
        // A chain, a circle of three, and one that selects the circle.
        for (role_name, of) in [
            ("a", role(Some("to-a"), &[])),
            ("b", role(Some("to-b"), &["to-a", "to-d"])),
            ("c", role(None, &["to-b"])),
            ("d", role(Some("to-d"), &["to-e"])),
            ("e", role(Some("to-e"), &["to-f"])),
            ("f", role(Some("to-f"), &["to-d", "to-a"])),
        ] {
            index.put_role(name(role_name), of);
        }
        let mut passes = 0;
        loop {
            let stale = index.stale_aggregations();
            if stale.is_empty() {
                break;
            }
            passes += 1;
            assert!(passes < 6, "{stale:?}");
            for (stale_name, rules) in stale {
                let old = index.role(name(&stale_name)).expect("it is there").clone();
                let rules = Value::Array(rules.iter().map(PolicyRule::to_value).collect());
                index.put_role(name(&stale_name), old.with_rules(&rules));
            }
        }
        let rules = |role_name| index.role(name(role_name)).map(|role| role.rules().len());
        assert_eq!(
            ["a", "b", "d", "e", "f"].map(rules),
            [Some(1), Some(1), Some(1), Some(0), Some(0)]
        );
    }
}
