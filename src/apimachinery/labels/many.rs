//! Selectors of many requirements, whose work for an object does not grow with their number.
//!
//! A request may name thousands of requirements, and a list compares them with each object of a kind. A watch
//! keeps them for as long as it is open, so they stand in slices in order: maps take several times the memory.

use std::collections::BTreeSet;

use super::{Operator, Requirement, Selector, allocated, parse_int};
use crate::json::scan;

/// Requirements and values up to which comparing them one after the other is faster.
const FEW: usize = 16;

/// What many requirements say together about one label.
#[derive(Debug, PartialEq, Eq, Hash)]
struct Rule {
    key: Box<str>,
    /// The label has to be there.
    is_required: bool,
    /// The label must not be there.
    is_forbidden: bool,
    values: Values,
    /// Comparisons with numbers, which are rare.
    bounds: Option<Box<Bounds>>,
}

/// The values that a label may have; those that are named are in order.
#[derive(Debug, PartialEq, Eq, Hash)]
enum Values {
    OneOf(Box<[Box<str>]>),
    NoneOf(Box<[Box<str>]>),
}

/// The numbers between which a label has to be.
#[derive(Debug, Default, PartialEq, Eq, Hash)]
struct Bounds {
    above: Option<i64>,
    below: Option<i64>,
}

/// The requirements of a selector by labels.
#[derive(Debug, PartialEq, Eq, Hash)]
pub struct ManyRequirements {
    /// In order of their keys.
    rules: Box<[Rule]>,
    /// The number of labels that have to be there.
    required: usize,
}

impl ManyRequirements {
    /// Creates them, unless there are only a few.
    pub fn of(selector: &Selector) -> Option<Self> {
        let mut requirements: Vec<&Requirement> = selector.requirements().iter().collect();
        let weights = requirements.iter().map(|it| 1 + it.values().len());
        if weights.sum::<usize>() <= FEW {
            return None;
        }
        requirements.sort_by(|a, b| a.key().cmp(b.key()));
        let of_one_label = requirements.chunk_by(|a, b| a.key() == b.key());
        let rules: Box<[Rule]> = of_one_label.filter_map(Rule::of).collect();
        let required = rules.iter().filter(|rule| rule.is_required).count();
        Some(Self { rules, required })
    }

    /// Returns true if the labels in these canonical JSON bytes are selected. Empty bytes mean no labels.
    pub fn matches_bytes(&self, labels: &[u8]) -> bool {
        let mut found = 0;
        for (key, value) in scan::members(labels) {
            let rule = scan::string(key).and_then(|key| self.rule(&key));
            let Some(rule) = rule else { continue };
            let value = scan::string(&labels[value]);
            if !value.is_some_and(|value| rule.fits(&value)) {
                return false;
            }
            found += usize::from(rule.is_required);
        }
        found == self.required
    }

    /// Returns about how many bytes of memory it takes beside itself.
    pub fn heap_bytes(&self) -> usize {
        self.rules.iter().map(Rule::bytes).sum()
    }

    fn rule(&self, key: &str) -> Option<&Rule> {
        let at = self.rules.binary_search_by(|rule| (*rule.key).cmp(key));
        self.rules.get(at.ok()?)
    }
}

impl Rule {
    /// Returns the rule of requirements on one label; `None` if there are none.
    fn of(requirements: &[&Requirement]) -> Option<Self> {
        let mut rule = Self {
            key: requirements.first()?.key().into(),
            is_required: false,
            is_forbidden: false,
            values: Values::NoneOf(Box::default()),
            bounds: None,
        };
        let mut allowed: Option<BTreeSet<&str>> = None;
        let mut denied: BTreeSet<&str> = BTreeSet::new();
        for requirement in requirements {
            let values = requirement.values().iter().map(String::as_str);
            match requirement.operator() {
                Operator::In | Operator::Equals | Operator::DoubleEquals => {
                    rule.is_required = true;
                    let mut both: BTreeSet<&str> = values.collect();
                    if let Some(known) = &allowed {
                        both.retain(|value| known.contains(value));
                    }
                    allowed = Some(both);
                }
                Operator::NotIn | Operator::NotEquals => denied.extend(values),
                Operator::Exists => rule.is_required = true,
                Operator::DoesNotExist => rule.is_forbidden = true,
                Operator::GreaterThan => rule.compare(requirement, |bounds, bound| {
                    bounds.above = bounds.above.max(Some(bound));
                }),
                Operator::LessThan => rule.compare(requirement, |bounds, bound| {
                    bounds.below = Some(bounds.below.map_or(bound, |known| known.min(bound)));
                }),
            }
        }
        rule.values = match allowed {
            None => Values::NoneOf(texts(&denied)),
            Some(allowed) => Values::OneOf(texts(&(&allowed - &denied))),
        };
        Some(rule)
    }

    /// Adds a comparison with a number.
    fn compare(&mut self, requirement: &Requirement, add: impl FnOnce(&mut Bounds, i64)) {
        self.is_required = true;
        let bound = requirement.values().first();
        match bound.and_then(|bound| parse_int(bound)) {
            Some(bound) => {
                let bounds: &mut Bounds = self.bounds.get_or_insert_default();
                add(bounds, bound);
            }
            // No label compares with what is no number.
            None => self.is_forbidden = true,
        }
    }

    /// Returns true if the label may have this value.
    fn fits(&self, value: &str) -> bool {
        let is_allowed = match &self.values {
            Values::OneOf(values) => has(values, value),
            Values::NoneOf(values) => !has(values, value),
        };
        !self.is_forbidden && is_allowed && self.bounds.as_ref().is_none_or(|it| it.fit(value))
    }

    /// Returns about how many bytes of memory it takes.
    fn bytes(&self) -> usize {
        let (Values::OneOf(values) | Values::NoneOf(values)) = &self.values;
        let texts: usize = values.iter().map(|value| allocated(value.len())).sum();
        let values = allocated(size_of_val(&**values));
        let bounds = self.bounds.as_ref().map_or(0, |_| size_of::<Bounds>());
        size_of::<Self>() + allocated(self.key.len()) + values + texts + bounds
    }
}

impl Bounds {
    fn fit(&self, value: &str) -> bool {
        parse_int(value).is_some_and(|value| {
            self.above.is_none_or(|bound| value > bound)
                && self.below.is_none_or(|bound| value < bound)
        })
    }
}

fn has(values: &[Box<str>], value: &str) -> bool {
    let at = values.binary_search_by(|one| (**one).cmp(value));
    at.is_ok()
}

fn texts(values: &BTreeSet<&str>) -> Box<[Box<str>]> {
    values.iter().copied().map(Box::from).collect()
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

    #[test]
    fn a_selector_takes_a_bounded_multiple_of_its_text() {
        let joined = |term: &dyn Fn(usize) -> String| {
            let terms: Vec<String> = (100..1000).map(term).collect();
            terms.join(",")
        };
        for text in [
            format!("a in ({})", joined(&|at| at.to_string())),
            joined(&|at| format!("!{at}")),
            joined(&|at| format!("{at}=b")),
            joined(&|at| format!("a!={at}")),
        ] {
            let selector = Selector::parse(&text).expect("well formed");
            let many = ManyRequirements::of(&selector).expect("they are many");
            let bytes = many.heap_bytes();
            assert!(
                (text.len()..24 * text.len()).contains(&bytes),
                "{bytes} {text}"
            );
        }
    }

    #[test]
    fn numbers_that_are_compared_take_no_memory_each() {
        let bytes_of = |count: i64| {
            let terms: Vec<String> = (0..count)
                .map(|at| format!("a>{at},a<{}", at + 99))
                .collect();
            let selector = Selector::parse(&terms.join(",")).expect("well formed");
            let many = ManyRequirements::of(&selector).expect("they are many");
            assert!(!many.matches_bytes(br#"{"a":"30"}"#) || count <= 30);
            many.heap_bytes()
        };
        assert_eq!(bytes_of(20), bytes_of(2000));
    }
}
