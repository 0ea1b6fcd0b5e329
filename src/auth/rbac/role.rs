//! Roles and ClusterRoles.

use std::collections::HashSet;

use polyplane_apimachinery::labels::Selector;
use polyplane_apimachinery::{Str, Value};

use super::policy_rule::PolicyRule;

/// The parts of a Role or ClusterRole that authorization and aggregation read.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Role {
    rules: Box<[PolicyRule]>,
    /// Labels by key. Only aggregation reads them.
    labels: Box<[(Str, Str)]>,
    aggregation: Aggregation,
    weight: usize,
    rules_bytes: usize,
}

/// The aggregation rule of a ClusterRole.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) enum Aggregation {
    /// The rules are the role's own.
    #[default]
    None,
    /// The rules are those of all ClusterRoles that one of the selectors selects. No two selectors are equal:
    /// the second of two selects nothing more, and a body has room for a million of them.
    Selectors(Box<[Selector]>),
    /// A selector cannot be read, so that the rules stay as they are. Validation refuses such a
    /// role.
    Unreadable,
}

impl Role {
    /// Reads a Role or ClusterRole.
    #[must_use]
    pub fn from_value(object: &Value) -> Self {
        let rules = object.items_at(&["rules"]).iter();
        let labels = object.at(&["metadata", "labels"]);
        let labels = labels
            .and_then(Value::as_object)
            .into_iter()
            .flat_map(|labels| {
                let pair = |(key, value): (&str, &Value)| {
                    (key.into(), value.as_str().unwrap_or("").into())
                };
                labels.iter().map(pair)
            });
        let rules: Box<[PolicyRule]> = rules.map(PolicyRule::from_value).collect();
        Self {
            weight: rules.iter().map(PolicyRule::weight).sum(),
            rules_bytes: rules.iter().map(PolicyRule::bytes).sum(),
            rules,
            labels: labels.collect(),
            aggregation: Aggregation::from_value(object.get("aggregationRule")),
        }
    }

    /// Returns the role with other rules.
    #[cfg(test)]
    pub(crate) fn with_rules(self, rules: &Value) -> Self {
        let rules = rules.as_array().unwrap_or_default().iter();
        let rules: Box<[PolicyRule]> = rules.map(PolicyRule::from_value).collect();
        Self {
            weight: rules.iter().map(PolicyRule::weight).sum(),
            rules_bytes: rules.iter().map(PolicyRule::bytes).sum(),
            rules,
            ..self
        }
    }

    /// Returns the weights of all rules together.
    pub(crate) fn weight(&self) -> usize {
        self.weight
    }

    /// Returns about how many bytes the rules take in the object.
    pub(crate) fn rules_bytes(&self) -> usize {
        self.rules_bytes
    }

    /// Returns the rules.
    #[must_use]
    pub fn rules(&self) -> &[PolicyRule] {
        &self.rules
    }

    /// Returns whether the role has an aggregation rule that selects roles, which only somebody
    /// with all rights may write.
    #[must_use]
    pub fn selects_roles(&self) -> bool {
        match &self.aggregation {
            Aggregation::None => false,
            Aggregation::Selectors(selectors) => !selectors.is_empty(),
            Aggregation::Unreadable => true,
        }
    }

    pub(crate) fn aggregation(&self) -> &Aggregation {
        &self.aggregation
    }

    /// Returns the place of the first selector that selects the role. Takes the comparisons that this may need from
    /// `budget`.
    pub(crate) fn first_selector(
        &self,
        selectors: &[Selector],
        budget: &mut usize,
    ) -> Result<Option<usize>, OutOfBudget> {
        for (at, selector) in selectors.iter().enumerate() {
            let requirements = selector.requirements();
            let values: usize = requirements.iter().map(|one| one.values().len()).sum();
            let comparisons = 1 + values + requirements.len() * self.labels.len();
            *budget = budget.checked_sub(comparisons).ok_or(OutOfBudget)?;
            let labels = self.labels.iter();
            if selector.matches_pairs(labels.map(|(key, value)| (key.as_str(), value.as_str()))) {
                return Ok(Some(at));
            }
        }
        Ok(None)
    }
}

/// There are more comparisons to make than the budget has.
#[derive(Debug)]
pub(crate) struct OutOfBudget;

impl Aggregation {
    fn from_value(rule: Option<&Value>) -> Self {
        let Some(rule) = rule.filter(|rule| !rule.is_null()) else {
            return Self::None;
        };
        let selectors = rule.items_at(&["clusterRoleSelectors"]).iter();
        let (mut known, mut different) = (HashSet::new(), Vec::new());
        for selector in selectors {
            let Ok(selector) = Selector::from_label_selector(Some(selector)) else {
                return Self::Unreadable;
            };
            if known.insert(selector.clone()) {
                different.push(selector);
            }
        }
        Self::Selectors(different.into())
    }
}
