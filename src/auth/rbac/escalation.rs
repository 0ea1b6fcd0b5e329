//! Escalation: nobody may give rights that they do not hold.
//!
//! Whoever writes a role must hold its rules, or be allowed the verb `escalate` on the role;
//! whoever binds a role must hold its rules, or be allowed `bind`. The caller asks its chain of
//! authorizers about the verb first ([`escalate`], [`bind`]; members of `system:masters` need
//! neither), and only then compares rules.

mod covering;

use std::collections::{BTreeSet, HashMap};

use polyplane_apimachinery::Value;
use polyplane_apimachinery::quote::quote;

use super::binding::{ObjectName, RoleKind, RoleRef};
use super::decision::{Naming, WEIGHT_MAX};
use super::index::{GROUP, Index};
use super::policy_rule::PolicyRule;
use super::role::Role;
use crate::authorizer::{Attributes, Subject};
use crate::user::UserInfo;

pub use covering::{Permission, TooMany, uncovered};

/// The version in the attributes of the verbs `escalate` and `bind`, which no request names.
const ANY_VERSION: &str = "*";

/// The reason why a role or binding may not be written. Its text is the rest of a 403.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Escalation {
    /// The user does not hold all the rules.
    #[error("{}", .0.text())]
    Missing(Box<MissingRights>),
    /// Only somebody with all rights may write an aggregation rule, because it can select any role.
    #[error("must have cluster-admin privileges to use the aggregationRule")]
    Aggregation,
    /// The role to be bound does not exist, which is a 404, or its kind has no roles, which is a 500.
    #[error("{}", Naming::Resource.missing(.0))]
    NoRole(RoleRef),
    /// Comparing the rules would take too long.
    #[error("{0}")]
    TooMany(#[from] TooMany),
}

/// The rights that a user does not hold.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MissingRights {
    user: UserInfo,
    /// What is missing, in order.
    rights: Vec<String>,
    /// A text about roles of the user that do not exist.
    error: Option<String>,
}

impl MissingRights {
    fn text(&self) -> String {
        let groups: Vec<String> = self.user.groups.iter().map(|group| quote(group)).collect();
        let mut text = format!(
            "user {} (groups=[{}]) is attempting to grant RBAC permissions not currently held:\n{}",
            quote(&self.user.name),
            groups.join(" "),
            self.rights.join("\n")
        );
        if let Some(error) = &self.error {
            text.push_str(&format!("; resolution errors: [{error}]"));
        }
        text
    }
}

/// Returns the access that lets a user write any rules into a role.
#[must_use]
pub fn escalate<'a>(user: &'a UserInfo, role: ObjectName<'a>) -> Attributes<'a> {
    let resource = if role.namespace.is_empty() {
        "clusterroles"
    } else {
        "roles"
    };
    role_access(user, "escalate", resource, role)
}

/// Returns the access that lets a user bind a role in `namespace`, which is empty for a
/// ClusterRoleBinding; `None` if the reference's kind has no roles.
#[must_use]
pub fn bind<'a>(
    user: &'a UserInfo,
    reference: &'a RoleRef,
    namespace: &'a str,
) -> Option<Attributes<'a>> {
    let name = ObjectName {
        namespace,
        name: &reference.name,
    };
    let resource = match reference.kind {
        RoleKind::Role => "roles",
        RoleKind::ClusterRole => "clusterroles",
        RoleKind::Unsupported(_) => return None,
    };
    Some(role_access(user, "bind", resource, name))
}

fn role_access<'a>(
    user: &'a UserInfo,
    verb: &'a str,
    resource: &'a str,
    name: ObjectName<'a>,
) -> Attributes<'a> {
    Attributes {
        user,
        verb,
        subject: Subject::Resource {
            group: GROUP,
            version: ANY_VERSION,
            resource,
            subresource: "",
            namespace: name.namespace,
            name: name.name,
            field_selector: "",
        },
    }
}

impl Index {
    /// Checks that a user holds all of `rules` in `namespace`, which is empty for rules that apply
    /// to the cluster.
    ///
    /// # Errors
    /// Returns an error if the user does not, or if there is too much to compare.
    pub fn confirm_no_escalation(
        &self,
        user: &UserInfo,
        namespace: &str,
        rules: &[PolicyRule],
    ) -> Result<(), Escalation> {
        let held = self.rules_within(user, namespace, Naming::Resource, WEIGHT_MAX);
        if held.is_cut {
            return Err(TooMany.into());
        }
        let missing = uncovered(&held.rules, rules)?;
        if missing.is_empty() {
            return Ok(());
        }
        Err(Escalation::Missing(Box::new(MissingRights {
            user: user.clone(),
            rights: Permission::describe(&missing),
            error: held.error,
        })))
    }

    /// Checks that a user may write a role under `name`: the rules, and an aggregation rule that it
    /// has or had.
    ///
    /// # Errors
    /// Returns an error if the user may not, or if there is too much to compare.
    pub fn confirm_role(
        &self,
        user: &UserInfo,
        name: ObjectName<'_>,
        role: &Role,
        old: Option<&Role>,
    ) -> Result<(), Escalation> {
        self.confirm_no_escalation(user, name.namespace, role.rules())?;
        if !role.selects_roles() && !old.is_some_and(Role::selects_roles) {
            return Ok(());
        }
        let everything = self.confirm_no_escalation(user, name.namespace, &full_authority());
        everything.map_err(|_| Escalation::Aggregation)
    }

    /// Checks that a user holds the rules of the role that a binding in `namespace` gives, which is
    /// empty for a ClusterRoleBinding.
    ///
    /// # Errors
    /// Returns an error if the role does not exist, if the user does not hold its rules, or if there
    /// is too much to compare.
    pub fn confirm_binding(
        &self,
        user: &UserInfo,
        reference: &RoleRef,
        namespace: &str,
    ) -> Result<(), Escalation> {
        let role = self.referred(reference, namespace);
        let role = role.ok_or_else(|| Escalation::NoRole(reference.clone()))?;
        self.confirm_no_escalation(user, namespace, role.rules())
    }
}

/// Returns the rules of somebody with all rights.
fn full_authority() -> [PolicyRule; 2] {
    let all = || Value::Array(vec!["*".into()]);
    let rule = |lists: &[&str]| {
        let mut rule = Value::object();
        for list in lists {
            rule.set(&[list], all());
        }
        PolicyRule::from_value(&rule)
    };
    [
        rule(&["verbs", "apiGroups", "resources"]),
        rule(&["verbs", "nonResourceURLs"]),
    ]
}

impl Permission<'_> {
    /// Returns texts about permissions as upstream prints them, sorted: those that differ in the
    /// verb alone are one, except about paths.
    #[must_use]
    pub fn describe(permissions: &[Self]) -> Vec<String> {
        let mut texts = BTreeSet::new();
        let mut verbs: Vec<(Self, Vec<&str>)> = Vec::new();
        let mut places = HashMap::new();
        for permission in permissions {
            let Self::Resource { verb, .. } = *permission else {
                texts.insert(permission.text(&[permission.verb()]));
                continue;
            };
            let place = *places.entry(permission.without_verb()).or_insert_with(|| {
                verbs.push((*permission, Vec::new()));
                verbs.len() - 1
            });
            verbs[place].1.push(verb);
        }
        texts.extend(verbs.iter().map(|(one, verbs)| one.text(verbs)));
        texts.into_iter().collect()
    }

    fn text(&self, verbs: &[&str]) -> String {
        let list = |name: &str, items: &[&str]| {
            let items: Vec<String> = items.iter().map(|item| quote(item)).collect();
            format!("{name}:[{}]", items.join(" "))
        };
        let mut parts = Vec::new();
        match *self {
            Self::Resource {
                group,
                resource,
                name,
                ..
            } => {
                parts.push(list("APIGroups", &[group]));
                parts.push(list("Resources", &[resource]));
                parts.extend(name.map(|name| list("ResourceNames", &[name])));
            }
            Self::Path { url, .. } => parts.push(list("NonResourceURLs", &[url])),
        }
        parts.push(list("Verbs", verbs));
        format!("{{{}}}", parts.join(", "))
    }
}
