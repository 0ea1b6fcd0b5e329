//! Which permissions of rules are not among those of other rules.
//!
//! Upstream breaks the rules that are asked for down into single permissions and looks for a held
//! rule that has each. Here each value that occurs (a verb, a group, a resource, a name, a path)
//! has a set of bits, one per held rule that has it; the held rules that have a permission are the
//! intersection of the sets of its values. That costs a few words per permission instead of a look
//! at all held rules.

use std::collections::HashMap;

use polyplane_apimachinery::Str;

use crate::rbac::policy_rule::{ALL, PolicyRule, path_matches};

/// Most permissions of the rules that are asked for. The lists of one rule multiply, so that a rule
/// of 1 MiB can have more permissions than could ever be compared; the largest role of upstream's
/// policy has about 1 500.
const PERMISSIONS_MAX: usize = 100_000;
/// Most words of 64 held rules that are intersected, and most comparisons of paths. Together they
/// take a few milliseconds, during which the thread does nothing else.
const STEPS_MAX: usize = 1 << 20;

/// One verb on one resource or path.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Permission<'a> {
    /// A verb on a resource.
    Resource {
        /// The API group, or `*`.
        group: &'a str,
        /// The resource, or a pattern.
        resource: &'a str,
        /// The verb, or `*`.
        verb: &'a str,
        /// The only object, if the rule names objects.
        name: Option<&'a str>,
    },
    /// A verb on a path.
    Path {
        /// The path, or a pattern.
        url: &'a str,
        /// The verb, or `*`.
        verb: &'a str,
    },
}

impl<'a> Permission<'a> {
    pub(super) fn verb(&self) -> &'a str {
        match self {
            Self::Resource { verb, .. } | Self::Path { verb, .. } => verb,
        }
    }

    pub(super) fn without_verb(mut self) -> Self {
        match &mut self {
            Self::Resource { verb, .. } | Self::Path { verb, .. } => *verb = "",
        }
        self
    }
}

/// The rules that are asked for are too many to be compared with those that are held.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "the rules have too many combinations of groups, resources, verbs and names to be compared \
     with those currently held (at most {PERMISSIONS_MAX}); split them into several roles"
)]
pub struct TooMany;

/// Returns the permissions of `asked` that no rule of `held` has, in the order of the rules' lists.
///
/// # Errors
/// Returns an error if there is too much to compare.
pub fn uncovered<'a>(
    held: &[&PolicyRule],
    asked: &'a [PolicyRule],
) -> Result<Vec<Permission<'a>>, TooMany> {
    check_size(held, asked)?;
    let holders = Holders::of(held, asked);
    let mut missing = Vec::new();
    for rule in asked {
        holders.add_missing_resources(rule, &mut missing);
        for url in rule.non_resource_urls() {
            let with_url = holders.set(&holders.urls, url);
            for verb in rule.verbs() {
                let of_verb = holders.set(&holders.verbs, verb);
                if !intersect(&[with_url, of_verb, &holders.without_names]) {
                    missing.push(Permission::Path { url, verb });
                }
            }
        }
    }
    Ok(missing)
}

fn check_size(held: &[&PolicyRule], asked: &[PolicyRule]) -> Result<(), TooMany> {
    let product = |lists: &[usize]| {
        lists
            .iter()
            .fold(1, |all: usize, one| all.saturating_mul(*one))
    };
    let sum = |counts: &mut dyn Iterator<Item = usize>| counts.fold(0, usize::saturating_add);
    let permissions = sum(&mut asked.iter().map(|rule| {
        let names = rule.resource_names().len().max(1);
        let (verbs, urls) = (rule.verbs().len(), rule.non_resource_urls().len());
        let resources = [
            rule.api_groups().len(),
            rule.resources().len(),
            verbs,
            names,
        ];
        product(&resources).saturating_add(product(&[urls, verbs]))
    }));
    let urls = |rule: &PolicyRule| rule.non_resource_urls().len();
    let asked_urls = sum(&mut asked.iter().map(urls));
    let held_urls = sum(&mut held.iter().map(|rule| urls(rule)));
    let steps =
        product(&[permissions, words(held)]).saturating_add(product(&[asked_urls, held_urls]));
    if permissions > PERMISSIONS_MAX || steps > STEPS_MAX {
        return Err(TooMany);
    }
    Ok(())
}

/// Returns the number of words of a set of held rules.
fn words(held: &[&PolicyRule]) -> usize {
    held.len().div_ceil(64).max(1)
}

/// A set of held rules, by their places.
type Set = Box<[u64]>;
type Sets<'a> = HashMap<&'a str, Set>;

/// For each value that the asked rules have, the held rules that have it too.
struct Holders<'a> {
    verbs: Sets<'a>,
    groups: Sets<'a>,
    resources: Sets<'a>,
    names: Sets<'a>,
    urls: Sets<'a>,
    /// The held rules that are not limited to objects of some names.
    without_names: Set,
    none: Set,
}

impl<'a> Holders<'a> {
    fn of(held: &[&PolicyRule], asked: &'a [PolicyRule]) -> Self {
        let none: Set = vec![0; words(held)].into();
        let values = |list: fn(&PolicyRule) -> &[Str]| -> Sets<'a> {
            let values = asked.iter().flat_map(list);
            values.map(|value| (value.as_str(), none.clone())).collect()
        };
        let mut holders = Self {
            verbs: values(PolicyRule::verbs),
            groups: values(PolicyRule::api_groups),
            resources: values(PolicyRule::resources),
            names: values(PolicyRule::resource_names),
            urls: values(PolicyRule::non_resource_urls),
            without_names: none.clone(),
            none,
        };
        let mut by_subresource: HashMap<&str, Vec<&str>> = HashMap::new();
        for resource in holders.resources.keys() {
            if let Some((_, subresource)) = resource.split_once('/') {
                by_subresource
                    .entry(subresource)
                    .or_default()
                    .push(resource);
            }
        }
        for (at, rule) in held.iter().enumerate() {
            holders.add(at, rule, &by_subresource);
        }
        holders
    }

    fn add(&mut self, at: usize, rule: &PolicyRule, by_subresource: &HashMap<&str, Vec<&str>>) {
        mark_all(&mut self.verbs, rule.verbs(), at);
        mark_all(&mut self.groups, rule.api_groups(), at);
        mark_all(&mut self.resources, rule.resources(), at);
        for resource in rule.resources() {
            let subresource = resource.strip_prefix("*/");
            let matched = subresource.and_then(|subresource| by_subresource.get(subresource));
            for known in matched.into_iter().flatten() {
                mark(&mut self.resources, known, at);
            }
        }
        if rule.resource_names().is_empty() {
            set_bit(&mut self.without_names, at);
        }
        for name in rule.resource_names() {
            mark(&mut self.names, name, at);
        }
        for (url, set) in &mut self.urls {
            let mut patterns = rule.non_resource_urls().iter();
            if patterns.any(|pattern| path_matches(pattern, url)) {
                set_bit(set, at);
            }
        }
    }

    fn set<'b>(&'b self, sets: &'b Sets<'a>, value: &str) -> &'b Set {
        sets.get(value).unwrap_or(&self.none)
    }

    fn add_missing_resources(&self, rule: &'a PolicyRule, missing: &mut Vec<Permission<'a>>) {
        for group in rule.api_groups() {
            let of_group = self.set(&self.groups, group);
            for resource in rule.resources() {
                let of_resource = self.set(&self.resources, resource);
                for verb in rule.verbs() {
                    let of_verb = self.set(&self.verbs, verb);
                    let of_all = [of_group, of_resource, of_verb];
                    let free = intersect(&[of_group, of_resource, of_verb, &self.without_names]);
                    if free {
                        continue;
                    }
                    let permission = |name| Permission::Resource {
                        group,
                        resource,
                        verb,
                        name,
                    };
                    if rule.resource_names().is_empty() {
                        missing.push(permission(None));
                    }
                    for name in rule.resource_names() {
                        let [group, resource, verb] = of_all;
                        if !intersect(&[group, resource, verb, self.set(&self.names, name)]) {
                            missing.push(permission(Some(name.as_str())));
                        }
                    }
                }
            }
        }
    }
}

/// Marks that a held rule has these values, or all if one of them is `*`.
fn mark_all(sets: &mut Sets<'_>, values: &[Str], at: usize) {
    if values.iter().any(|value| value == ALL) {
        sets.values_mut().for_each(|set| set_bit(set, at));
        return;
    }
    for value in values {
        mark(sets, value, at);
    }
}

fn mark(sets: &mut Sets<'_>, value: &str, at: usize) {
    if let Some(set) = sets.get_mut(value) {
        set_bit(set, at);
    }
}

fn set_bit(set: &mut Set, at: usize) {
    set[at / 64] |= 1 << (at % 64);
}

/// Returns whether a held rule is in all of the sets.
fn intersect(sets: &[&Set]) -> bool {
    let Some((first, others)) = sets.split_first() else {
        return false;
    };
    let common = |at: usize| others.iter().fold(first[at], |bits, set| bits & set[at]);
    (0..first.len()).any(|at| common(at) != 0)
}
