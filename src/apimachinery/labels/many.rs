//! Selectors of many requirements, whose work for an object does not grow with their number.
//!
//! A request may name thousands of requirements, and a list compares them with each object of a kind.

use std::collections::{BTreeMap, HashSet};

use super::{Operator, Requirement, Selector, parse_int};
use crate::json::scan;

/// Requirements and values up to which comparing them one after the other is faster.
const FEW: usize = 16;

/// What many requirements say together about one label.
#[derive(Debug, Default)]
struct Rule {
    /// The label has to be there.
    is_required: bool,
    /// The label must not be there.
    is_forbidden: bool,
    /// The values of which it has to have one; `None` for any.
    allowed: Option<HashSet<String>>,
    denied: HashSet<String>,
    /// Comparisons with numbers.
    numbers: HashSet<(bool, String)>,
}

/// The requirements of a selector by labels.
#[derive(Debug)]
pub struct ManyRequirements {
    rules: BTreeMap<String, Rule>,
    /// The number of labels that have to be there.
    required: usize,
}

impl ManyRequirements {
    /// Creates them, unless there are only a few.
    pub fn of(selector: &Selector) -> Option<Self> {
        let requirements = selector.requirements();
        let weights = requirements.iter().map(|it| 1 + it.values().len());
        if weights.sum::<usize>() <= FEW {
            return None;
        }
        let mut rules: BTreeMap<String, Rule> = BTreeMap::new();
        for requirement in requirements {
            let rule = rules.entry(requirement.key().to_owned()).or_default();
            rule.add(requirement);
        }
        let required = rules.values().filter(|rule| rule.is_required).count();
        Some(Self { rules, required })
    }

    /// Returns true if the labels in these canonical JSON bytes are selected. Empty bytes mean no labels.
    pub fn matches_bytes(&self, labels: &[u8]) -> bool {
        let mut found = 0;
        for (key, value) in scan::members(labels) {
            let rule = scan::string(key).and_then(|key| self.rules.get(&*key));
            let Some(rule) = rule else { continue };
            let value = scan::string(&labels[value]);
            if !value.is_some_and(|value| rule.fits(&value)) {
                return false;
            }
            found += usize::from(rule.is_required);
        }
        found == self.required
    }
}

impl Rule {
    fn add(&mut self, requirement: &Requirement) {
        let values = || requirement.values().iter().cloned();
        match requirement.operator() {
            Operator::In | Operator::Equals | Operator::DoubleEquals => {
                self.is_required = true;
                let mut allowed: HashSet<String> = values().collect();
                if let Some(known) = &self.allowed {
                    allowed.retain(|value| known.contains(value));
                }
                self.allowed = Some(allowed);
            }
            Operator::NotIn | Operator::NotEquals => self.denied.extend(values()),
            Operator::Exists => self.is_required = true,
            Operator::DoesNotExist => self.is_forbidden = true,
            operator @ (Operator::GreaterThan | Operator::LessThan) => {
                self.is_required = true;
                let bound = requirement.values().first().cloned().unwrap_or_default();
                self.numbers
                    .insert((operator == Operator::GreaterThan, bound));
            }
        }
    }

    /// Returns true if the label may have this value.
    fn fits(&self, value: &str) -> bool {
        let fits_number = |(is_greater, bound): &(bool, String)| {
            let pair = parse_int(value).zip(parse_int(bound));
            pair.is_some_and(|(value, bound)| match is_greater {
                true => value > bound,
                false => value < bound,
            })
        };
        !self.is_forbidden
            && self
                .allowed
                .as_ref()
                .is_none_or(|allowed| allowed.contains(value))
            && !self.denied.contains(value)
            && self.numbers.iter().all(fits_number)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::json;
    use crate::value::Value;

    proptest! {
        #[test]
        fn many_requirements_select_what_each_of_them_selects(
            terms in prop::collection::vec(
                "[a-d](=[x-z1-3]|!=[x-z1-3]|>[1-3]|<[1-3]| in \\([x-z],[1-3]\\)| notin \\([x-z],[1-3]\\))?|![a-d]",
                1..6,
            ),
            labels in prop::collection::btree_map("[a-d]", "[x-z1-3]", 0..4),
        ) {
            // Requirements that always hold make them many.
            let always = (0..FEW).map(|at| format!("!never-{at}"));
            let text: Vec<String> = terms.into_iter().chain(always).collect();
            let selector = Selector::parse(&text.join(",")).expect("they are well formed");
            let mut tree = Value::object();
            for (key, value) in &labels {
                tree.set(&[key.as_str()], value.as_str());
            }
            let bytes = json::to_vec(&tree);
            let many = ManyRequirements::of(&selector).expect("they are many");
            prop_assert_eq!(many.matches_bytes(&bytes), selector.matches_bytes(&bytes));
        }
    }
}
