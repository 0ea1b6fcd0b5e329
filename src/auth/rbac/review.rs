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
    /// A text about the roles that are missing. The other rules hold all the same.
    pub error: Option<String>,
}

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
    /// empty.
    #[must_use]
    pub fn rules_for(&self, user: &UserInfo, namespace: &str) -> UserRules<'_> {
        self.rules_named(user, namespace, Naming::Kind)
    }

    pub(crate) fn rules_named(
        &self,
        user: &UserInfo,
        namespace: &str,
        naming: Naming,
    ) -> UserRules<'_> {
        let bindings = self.applying(user, namespace).into_iter();
        let roles =
            bindings.filter_map(|binding| self.referred(binding.role(), binding.namespace()));
        UserRules {
            rules: roles.flat_map(|role| role.rules()).collect(),
            error: self.missing_roles(user, namespace, naming),
        }
    }
}
