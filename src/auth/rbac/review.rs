//! The rules of a user, which SelfSubjectRulesReview returns.

use super::decision::Naming;
use super::index::Index;
use super::policy_rule::PolicyRule;
use crate::user::UserInfo;

/// The rules that apply to a user in a namespace.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct UserRules<'a> {
    /// All rules, in the order of the bindings: first those of the cluster, each part by name. A
    /// rule that two roles have stands here twice.
    pub rules: Vec<&'a PolicyRule>,
    /// True if there are more rules.
    pub is_cut: bool,
    /// A text about the roles that are missing, or about rules that are. The others hold all the same.
    pub error: Option<String>,
}

/// Most weight of the rules that a review shows, some megabytes. A tenant can bind a large role to a user thousands
/// of times.
const SHOWN_WEIGHT_MAX: usize = 100_000;
/// What a review says that does not show all rules.
const TOO_MANY: &str = "there are too many rules to show all of them";

impl<'a> UserRules<'a> {
    /// Returns the rules about resources.
    pub fn of_resources(&self) -> impl Iterator<Item = &'a PolicyRule> {
        let rules = self.rules.iter().copied();
        rules.filter(|rule| !rule.resources().is_empty())
    }

    /// Returns the rules about paths.
    pub fn of_paths(&self) -> impl Iterator<Item = &'a PolicyRule> {
        let rules = self.rules.iter().copied();
        rules.filter(|rule| !rule.non_resource_urls().is_empty())
    }
}

impl Index {
    /// Returns the rules that apply to a user in `namespace`; only those of the cluster if it is
    /// empty. Of very many, only the first ones.
    #[must_use]
    pub fn rules_for(&self, user: &UserInfo, namespace: &str) -> UserRules<'_> {
        let mut found = self.rules_within(user, namespace, Naming::Kind, SHOWN_WEIGHT_MAX);
        if found.is_cut {
            found.error = Some(match found.error {
                None => TOO_MANY.to_owned(),
                Some(error) => format!("{error}, {TOO_MANY}"),
            });
        }
        found
    }

    /// Returns the rules that apply to a user, up to a sum of their weights.
    pub(crate) fn rules_within(
        &self,
        user: &UserInfo,
        namespace: &str,
        naming: Naming,
        weight_max: usize,
    ) -> UserRules<'_> {
        let bindings = self.applying(user, namespace).into_iter();
        let roles =
            bindings.filter_map(|binding| self.referred(binding.role(), binding.namespace()));
        let (mut rules, mut weight, mut is_cut) = (Vec::new(), 0, false);
        for rule in roles.flat_map(|role| role.rules()) {
            weight += rule.weight();
            is_cut = weight > weight_max;
            if is_cut {
                break;
            }
            rules.push(rule);
        }
        UserRules {
            rules,
            is_cut,
            error: self.missing_roles(user, namespace, naming),
        }
    }
}
