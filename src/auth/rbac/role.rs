//! Roles and ClusterRoles.

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
}

/// The aggregation rule of a ClusterRole.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) enum Aggregation {
    /// The rules are the role's own.
    #[default]
    None,
    /// The rules are those of all ClusterRoles that one of the selectors selects.
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
            rules,
            labels: labels.collect(),
            aggregation: Aggregation::from_value(object.get("aggregationRule")),
        }
    }

    /// Returns the role with other rules.
    #[cfg(test)]
    pub(crate) fn with_rules(self, rules: &Value) -> Self {
        let rules = rules.as_array().unwrap_or_default().iter();
        Self {
            rules: rules.map(PolicyRule::from_value).collect(),
            ..self
        }
    }

    /// Returns the weights of all rules together.
    pub(crate) fn weight(&self) -> usize {
        self.weight
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

    pub(crate) fn is_selected_by(&self, selector: &Selector) -> bool {
        let labels = self.labels.iter();
        selector.matches_pairs(labels.map(|(key, value)| (key.as_str(), value.as_str())))
    }
}

impl Aggregation {
    fn from_value(rule: Option<&Value>) -> Self {
        let Some(rule) = rule.filter(|rule| !rule.is_null()) else {
            return Self::None;
        };
        let selectors = rule.items_at(&["clusterRoleSelectors"]).iter();
        let selectors = selectors.map(|selector| Selector::from_label_selector(Some(selector)));
        match selectors.collect::<Result<_, _>>() {
            Ok(selectors) => Self::Selectors(selectors),
            Err(_) => Self::Unreadable,
        }
    }
}
