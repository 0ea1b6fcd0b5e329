//! Which resources are sealed.
//!
//! The rules are those of upstream's file: the first list that names a resource decides. What no list
//! names is in clear.

use aws_lc_rs::digest;

/// A resource in a list: `secrets`, `deployments.apps`, `*.apps`, `*.` or `*.*`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Rule {
    /// The group; `*` for every one.
    pub group: String,
    /// The resource; `*` for every one of the group.
    pub resource: String,
    pub is_sealed: bool,
}

impl Rule {
    /// Splits `resource.group` at the first dot, as upstream does.
    pub fn parse(text: &str, is_sealed: bool) -> Self {
        let (resource, group) = text.split_once('.').unwrap_or((text, ""));
        Self {
            group: group.to_owned(),
            resource: resource.to_owned(),
            is_sealed,
        }
    }

    fn names(&self, group: &str, resource: &str) -> bool {
        (self.group == "*" || self.group == group)
            && (self.resource == "*" || self.resource == resource)
    }
}

/// The resources that are sealed. Replicas of one policy have one fingerprint.
#[derive(Clone, Debug)]
pub struct SealPolicy {
    rules: Vec<Rule>,
    fingerprint: u64,
}

impl SealPolicy {
    /// The directory of control planes, which every replica reads from the store.
    const DIRECTORY: (&str, &str) = ("polyplane.dev", "controlplanes");

    pub(crate) fn new(rules: Vec<Rule>) -> Self {
        let mut context = digest::Context::new(&digest::SHA256);
        for rule in &rules {
            let sealed = if rule.is_sealed { "sealed" } else { "clear" };
            context.update(format!("{}\n{}\n{sealed}\n", rule.group, rule.resource).as_bytes());
        }
        let digest = context.finish();
        let first = digest.as_ref()[..8].try_into().expect("it has 32 bytes");
        Self {
            rules,
            // Zero means that no policy is known to hold.
            fingerprint: u64::from_be_bytes(first).max(1),
        }
    }

    /// Returns the policy by which everything is sealed, for tests.
    #[must_use]
    pub fn everything() -> Self {
        Self::new(vec![Rule::parse("*.*", true)])
    }

    /// Returns whether new records of a resource are sealed.
    #[must_use]
    pub fn seals(&self, group: &str, resource: &str) -> bool {
        let rule = self.rules.iter().find(|rule| rule.names(group, resource));
        rule.is_some_and(|rule| rule.is_sealed) && (group, resource) != Self::DIRECTORY
    }

    /// Returns a number other than zero that differs between policies.
    #[must_use]
    pub fn fingerprint(&self) -> u64 {
        self.fingerprint
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_list_that_names_a_resource_decides() {
        let rules = [
            ("events", false),
            ("secrets", true),
            ("deployments.apps", false),
            ("*.apps", true),
            ("*.", true),
        ];
        let rules = rules.map(|(text, is_sealed)| Rule::parse(text, is_sealed));
        let policy = SealPolicy::new(rules.to_vec());
        for (group, resource, sealed) in [
            ("", "events", false),
            ("", "secrets", true),
            ("", "configmaps", true),
            ("apps", "deployments", false),
            ("apps", "daemonsets", true),
            ("batch", "jobs", false),
        ] {
            assert_eq!(policy.seals(group, resource), sealed, "{resource}.{group}");
        }
        let everything = SealPolicy::everything();
        assert!(everything.seals("batch", "jobs") && everything.seals("", "secrets"));
        assert!(!everything.seals("polyplane.dev", "controlplanes"));
        assert_ne!(everything.fingerprint(), policy.fingerprint());
        let nothing = SealPolicy::new(Vec::new());
        assert!(!nothing.seals("", "secrets") && nothing.fingerprint() != 0);
    }
}
