//! The rules of aggregated ClusterRoles.
//!
//! Decisions read stored rules only. A reconciler writes what these functions return into the
//! roles, so that what a client reads of a role is what decides.
//!
//! A role takes no rules from an aggregated role that takes rules from it, through others too. Roles that select
//! each other would else exchange their rules for ever, and each exchange is a write.

use std::collections::{HashMap, HashSet};

use polyplane_apimachinery::Str;
use polyplane_apimachinery::labels::Selector;

use super::index::Index;
use super::policy_rule::PolicyRule;
use super::role::{Aggregation, OutOfBudget, Role};

/// Comparisons of one call of [`Aggregations::select_some`]: less than a millisecond unless a role has many labels.
const STEP_WORK: usize = 1 << 16;
/// Comparisons to find the roles that one role selects: some milliseconds. A tenant can write a hundred thousand
/// selectors into a role, and has thousands of roles to compare with each.
const ROLE_WORK_MAX: usize = 1 << 22;
/// Comparisons for all roles of a plane together: less than a second.
const ALL_WORK_MAX: usize = 1 << 26;
/// Roles that all roles of a plane select together. With more, they would take too much memory.
const SOURCES_MAX: usize = 1 << 18;
/// Bytes of the rules that are looked at for one role, repetitions included: about ten milliseconds.
const ROLE_READ_BYTES_MAX: usize = 8 << 20;
/// Bytes of the rules that are looked at for all roles of a plane together.
const ALL_READ_BYTES_MAX: usize = 256 << 20;
/// Bytes of the rules of one role: those of a request's body. The write of more would be refused.
const RULES_BYTES_MAX: usize = 3 << 20;

impl Index {
    /// Returns whether any ClusterRole takes its rules from others.
    #[must_use]
    pub fn has_aggregated_roles(&self) -> bool {
        let mut roles = self.cluster().roles();
        roles.any(|(_, role)| matches!(role.aggregation(), Aggregation::Selectors(_)))
    }

    /// Returns what finds out which ClusterRoles have other rules than those of the roles that they select.
    #[must_use]
    pub fn aggregations(&self) -> Aggregations<'_> {
        let mut all: Vec<_> = self.cluster().roles().collect();
        all.sort_unstable_by_key(|(name, _)| *name);
        let mut roles = Vec::new();
        for (number, &(_, role)) in all.iter().enumerate() {
            if let Aggregation::Selectors(selectors) = role.aggregation() {
                roles.push(AggregatedRole {
                    number,
                    selectors,
                    sources: Vec::new(),
                    is_left_out: false,
                });
            }
        }
        // If they are too many for the budget, it is those with very many selectors that are left out. The sort is
        // stable: by name otherwise.
        roles.sort_by_key(|role| role.selectors.len());
        Aggregations {
            all,
            roles,
            circles: HashMap::new(),
            selection: Selection::default(),
            read_bytes: 0,
            next: 0,
        }
    }

    /// Returns whether a ClusterRole takes rules from one that takes rules from it: there upstream writes others.
    #[must_use]
    pub fn aggregates_itself(&self, name: &str) -> bool {
        let mut all = self.aggregations();
        while all.select_some() {}
        let number = all
            .all
            .binary_search_by(|(known, _)| known.as_str().cmp(name));
        let own = number.ok().and_then(|number| all.circles.get(&number));
        own.is_some()
            && all
                .circles
                .values()
                .filter(|other| Some(*other) == own)
                .count()
                > 1
    }
}

/// The rules of an aggregated ClusterRole.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum AggregatedRules {
    /// The role has the rules of the roles that it selects.
    Current,
    /// The role has others: these are to be written into it. They are those of all other roles that its selectors
    /// select, each once: by selector, then by name.
    Stale(Vec<PolicyRule>),
    /// It selects too much to find out. Its rules stay as they are.
    LeftOut,
}

/// The aggregated ClusterRoles of an index, and the roles that they select.
///
/// The work is done in small parts, so that the caller can yield between them: call [`Self::select_some`] until it
/// returns false, then [`Self::next_role`] until there is none. The rules of one role at a time are in memory.
#[derive(Debug)]
pub struct Aggregations<'i> {
    /// All ClusterRoles, by name.
    all: Vec<(&'i Str, &'i Role)>,
    /// The aggregated ones, those with few selectors first.
    roles: Vec<AggregatedRole<'i>>,
    /// A number that roles have in common which take rules from each other, by their numbers in `all`. It is empty
    /// until the selection is complete.
    circles: HashMap<usize, usize>,
    selection: Selection,
    /// Bytes of the rules that were looked at.
    read_bytes: usize,
    /// The place in `roles` of the role that is reported next.
    next: usize,
}

/// An aggregated ClusterRole.
#[derive(Debug)]
struct AggregatedRole<'i> {
    /// Its place among all roles.
    number: usize,
    selectors: &'i [Selector],
    /// The roles that it selects: the place of the first selector that selects each, and its number. Sorted, this is
    /// the order in which their rules are taken.
    sources: Vec<(usize, usize)>,
    /// True if it selects too much. It takes no rules then, so it is on no circle either.
    is_left_out: bool,
}

/// How far the search for the selected roles has come.
#[derive(Debug, Default)]
struct Selection {
    /// The place of the aggregated role in `roles`, and the number of the role with which it is compared next.
    at: (usize, usize),
    /// Comparisons for this role.
    role_work: usize,
    /// Comparisons so far.
    work: usize,
    /// Selected roles so far.
    sources: usize,
    is_complete: bool,
}

impl<'i> Aggregations<'i> {
    /// Continues to look for the roles that each selects. Returns false once all are known.
    pub fn select_some(&mut self) -> bool {
        let end = self.selection.work + STEP_WORK;
        while self.selection.work < end {
            if self.selection.at.0 == self.roles.len() {
                if !self.selection.is_complete {
                    self.selection.is_complete = true;
                    self.find_circles();
                }
                return false;
            }
            self.compare();
        }
        true
    }

    /// Compares one aggregated role with one other role.
    fn compare(&mut self) {
        let selection = &mut self.selection;
        let role = &mut self.roles[selection.at.0];
        let number = selection.at.1;
        let source = self.all.get(number);
        let Some((_, source)) = source.filter(|_| !role.selectors.is_empty()) else {
            role.sources.sort_unstable();
            selection.work += 1;
            selection.begin_next();
            return;
        };
        selection.at.1 += 1;
        if number == role.number {
            return;
        }
        let left_of_role = ROLE_WORK_MAX.saturating_sub(selection.role_work);
        let left = left_of_role.min(ALL_WORK_MAX.saturating_sub(selection.work));
        let mut budget = left;
        let first = source.first_selector(role.selectors, &mut budget);
        // One more, so that a role without budget counts too.
        let work = 1 + left - budget;
        selection.role_work += work;
        selection.work += work;
        match first {
            Ok(None) => {}
            Ok(Some(first)) if selection.sources < SOURCES_MAX => {
                selection.sources += 1;
                role.sources.push((first, number));
            }
            Ok(Some(_)) | Err(OutOfBudget) => {
                selection.sources -= role.sources.len();
                role.sources = Vec::new();
                role.is_left_out = true;
                selection.begin_next();
            }
        }
    }

    fn find_circles(&mut self) {
        let places = self.roles.iter().enumerate();
        let places: HashMap<usize, usize> = places.map(|(at, role)| (role.number, at)).collect();
        let edges = self.roles.iter().map(|role| {
            let numbers = role.sources.iter().map(|(_, number)| number);
            let aggregated = numbers.filter_map(|number| places.get(number));
            aggregated.copied().collect()
        });
        let circles = circles(&edges.collect::<Vec<_>>());
        let numbers = self.roles.iter().map(|role| role.number);
        self.circles = numbers.zip(circles).collect();
    }

    /// Returns the next aggregated role and its rules; `None` after the last one. Writing them can make others stale
    /// that select it.
    pub fn next_role(&mut self) -> Option<(&'i Str, AggregatedRules)> {
        // Circles are not known before.
        while self.select_some() {}
        let number = self.roles.get(self.next)?.number;
        let rules = match self.rules() {
            None => AggregatedRules::LeftOut,
            Some(rules) if rules.iter().copied().eq(self.all[number].1.rules()) => {
                AggregatedRules::Current
            }
            Some(rules) => AggregatedRules::Stale(rules.into_iter().cloned().collect()),
        };
        self.next += 1;
        Some((self.all[number].0, rules))
    }

    /// Returns the rules of the roles from which the next role takes them; `None` if it is left out.
    fn rules(&mut self) -> Option<Vec<&'i PolicyRule>> {
        let role = &self.roles[self.next];
        if role.is_left_out {
            return None;
        }
        let circle = self.circles.get(&role.number);
        let sources = role.sources.iter().map(|(_, number)| *number);
        let sources = sources.filter(|number| self.circles.get(number) != circle);
        let sources: Vec<&'i Role> = sources.map(|number| self.all[number].1).collect();
        let bytes: usize = sources.iter().map(|source| source.rules_bytes()).sum();
        if bytes > ROLE_READ_BYTES_MAX.min(ALL_READ_BYTES_MAX - self.read_bytes) {
            return None;
        }
        self.read_bytes += bytes;
        let (mut known, mut rules, mut bytes) = (HashSet::new(), Vec::new(), 0);
        for rule in sources.into_iter().flat_map(|source| source.rules()) {
            if known.insert(rule) {
                bytes += rule.bytes();
                rules.push(rule);
            }
        }
        (bytes <= RULES_BYTES_MAX).then_some(rules)
    }
}

impl Selection {
    fn begin_next(&mut self) {
        self.at = (self.at.0 + 1, 0);
        self.role_work = 0;
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

    fn name(name: &str) -> ObjectName<'_> {
        ObjectName {
            namespace: "",
            name,
        }
    }

    /// The roles whose rules are stale, by name.
    fn stale(index: &Index) -> Vec<(Str, Vec<PolicyRule>)> {
        let mut all = index.aggregations();
        let mut stale = Vec::new();
        while let Some((name, rules)) = all.next_role() {
            match rules {
                AggregatedRules::Current => {}
                AggregatedRules::Stale(rules) => stale.push((name.clone(), rules)),
                AggregatedRules::LeftOut => panic!("{name} selects little"),
            }
        }
        stale.sort_by(|(a, _), (b, _)| a.cmp(b));
        stale
    }

    /// A role with these selectors.
    fn selecting(selectors: impl Iterator<Item = Value>) -> Role {
        let mut object = Value::object();
        object.set(
            &["aggregationRule", "clusterRoleSelectors"],
            Value::Array(selectors.collect()),
        );
        Role::from_value(&object)
    }

    /// An index with 50 roles that are selected and the role `all`.
    fn index_with(all: Role) -> Index {
        let mut index = Index::default();
        for number in 0..50 {
            let label = format!("label-{number:02}");
            index.put_role(name(&label), role(None, &[&label]));
        }
        index.put_role(name("all"), all);
        index
    }

    #[test]
    fn equal_selectors_cost_no_more_than_one() {
        let measured = |count: usize| {
            let index = index_with(selecting((0..count).map(|_| Value::object())));
            let mut all = index.aggregations();
            while all.select_some() {}
            let Some((_, AggregatedRules::Stale(rules))) = all.next_role() else {
                panic!("it has no rules yet");
            };
            (all.selection.work, all.selection.sources, rules)
        };
        let one = measured(1);
        assert_eq!((one.1, one.2.len()), (50, 50));
        assert_eq!(measured(100_000), one);
    }

    #[test]
    fn a_role_that_selects_too_much_is_left_out_and_the_others_are_not() {
        let selector = |number: usize| {
            let mut selector = Value::object();
            selector.set(&["matchLabels", &format!("none-{number}")], "true");
            selector
        };
        let mut index = index_with(selecting((0..50_000).map(selector)));
        index.put_role(name("one"), role(Some("label-07"), &[]));
        let mut all = index.aggregations();
        let (mut calls, mut before) = (0, 0);
        while all.select_some() {
            calls += 1;
            assert!(all.selection.work - before <= STEP_WORK + 3 * 50_000);
            before = all.selection.work;
        }
        assert!(calls > 10 && all.selection.work <= ROLE_WORK_MAX + STEP_WORK);
        let found: Vec<_> = std::iter::from_fn(|| all.next_role()).collect();
        let names: Vec<&str> = found.iter().map(|(name, _)| name.as_str()).collect();
        assert_eq!(names, ["one", "all"], "those with few selectors come first");
        assert!(matches!(&found[0].1, AggregatedRules::Stale(rules) if rules.len() == 1));
        assert_eq!(found[1].1, AggregatedRules::LeftOut);
    }

    #[test]
    fn rules_are_read_when_their_role_is_next() {
        let mut index = index_with(selecting(std::iter::once(Value::object())));
        index.put_role(name("one"), role(Some("label-07"), &[]));
        let mut all = index.aggregations();
        while all.select_some() {}
        assert_eq!(all.read_bytes, 0);
        let mut read = Vec::new();
        while all.next_role().is_some() {
            read.push(all.read_bytes);
        }
        assert!(
            read.len() == 2 && 0 < read[0] && read[0] < read[1],
            "{read:?}"
        );
    }

    #[test]
    fn rules_that_no_body_has_room_for_are_not_written() {
        let mut index = Index::default();
        let many: Vec<String> = (0..40)
            .map(|at| format!("{at}{}", "x".repeat(50_000)))
            .collect();
        for (at, text) in many.iter().enumerate() {
            // Two roles have the same rules: what is read exceeds what is written.
            for twin in ["a", "b"] {
                let label = [text.as_str()];
                index.put_role(name(&format!("{twin}{at}")), role(None, &label));
            }
        }
        index.put_role(name("all"), selecting(std::iter::once(Value::object())));
        let rules = |index: &Index| index.aggregations().next_role().map(|(_, rules)| rules);
        assert!(matches!(rules(&index), Some(AggregatedRules::Stale(rules)) if rules.len() == 40));
        for at in 40..80 {
            let text = format!("{at}{}", "x".repeat(50_000));
            index.put_role(name(&format!("a{at}")), role(None, &[&text]));
        }
        assert_eq!(rules(&index), Some(AggregatedRules::LeftOut));
    }

    #[test]
    fn roles_that_select_each_other_come_to_rest() {
        let mut index = Index::default();
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
            let stale = stale(&index);
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
