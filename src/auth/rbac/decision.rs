//! Decisions on requests.

use std::collections::BTreeSet;
use std::ops::ControlFlow;

use polyplane_apimachinery::quote::quote;

use super::binding::{Binding, RoleKind, RoleRef};
use super::index::{GROUP, Index};
use super::policy_rule::{PolicyRule, Verb};
use crate::authorizer::{Attributes, Decision, Subject};
use crate::user::UserInfo;

/// Most missing roles that a refusal names. A tenant can bind any number of roles that do not exist
/// to everybody, and each refusal would carry all their names.
const MISSING_MAX: usize = 100;

/// Most weight of the roles that a decision looks at, which takes some milliseconds. It is done for each request
/// before anything else, and a tenant can bind a role of tens of thousands of rules to one user thousands of times.
pub(super) const WEIGHT_MAX: usize = 1_000_000;
/// The reason of a decision that would look at more.
const TOO_MANY: &str = "RBAC: too many rules apply to the user";

/// Bytes that most reasons fit in.
const REASON_BYTES: usize = 192;

/// The binding and the rule that allow a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Grant<'a> {
    /// The binding that gives the role.
    pub binding: &'a Binding,
    /// The rule of the role.
    pub rule: &'a PolicyRule,
}

impl Grant<'_> {
    /// Returns the reason why `user`, who was granted this, is allowed the request. Upstream
    /// writes it into the audit log.
    #[must_use]
    pub fn reason(&self, user: &UserInfo) -> String {
        let mut reason = String::with_capacity(REASON_BYTES);
        reason.push_str("RBAC: allowed by ");
        self.binding.describe(user, &mut reason);
        reason
    }
}

/// More rules apply to a user than a decision looks at.
struct TooManyRules;

impl Index {
    /// Returns why `attributes` are allowed; `None` if no rule allows them, or only one that comes after more rules
    /// than a decision looks at. Does not allocate.
    #[must_use]
    pub fn authorize(&self, attributes: &Attributes<'_>) -> Option<Grant<'_>> {
        self.search(attributes).ok().flatten()
    }

    fn search(&self, attributes: &Attributes<'_>) -> Result<Option<Grant<'_>>, TooManyRules> {
        let verb = Verb::new(attributes.verb);
        let subject = &attributes.subject;
        let mut looked_at = 0;
        let found = self.visit(attributes.user, namespace_of(subject), |binding| {
            let Some(role) = self.referred(binding.role(), binding.namespace()) else {
                return ControlFlow::Continue(());
            };
            looked_at += role.weight();
            if looked_at > WEIGHT_MAX {
                return ControlFlow::Break(Err(TooManyRules));
            }
            match role.rules().iter().find(|rule| rule.allows(verb, subject)) {
                Some(rule) => ControlFlow::Break(Ok(Grant { binding, rule })),
                None => ControlFlow::Continue(()),
            }
        });
        found.break_value().transpose()
    }

    /// Decides on `attributes` as one authorizer of a chain. Allocates only if it does not allow
    /// them and a role is missing.
    #[must_use]
    pub fn decide(&self, attributes: &Attributes<'_>) -> Decision {
        match self.search(attributes) {
            Ok(Some(_)) => return Decision::Allow,
            Ok(None) => {}
            Err(TooManyRules) => return Decision::NoOpinion(TOO_MANY.to_owned()),
        }
        let namespace = namespace_of(&attributes.subject);
        let missing = self.missing_roles(attributes.user, namespace, Naming::Kind);
        Decision::NoOpinion(missing.map_or_else(String::new, |text| format!("RBAC: {text}")))
    }

    /// Returns a text about the roles that bindings give to a user and that do not exist; `None`
    /// if there are none.
    pub(crate) fn missing_roles(
        &self,
        user: &UserInfo,
        namespace: &str,
        naming: Naming,
    ) -> Option<String> {
        let is_missing =
            |binding: &Binding| self.referred(binding.role(), binding.namespace()).is_none();
        let any = self.visit(user, namespace, |binding| match is_missing(binding) {
            true => ControlFlow::Break(()),
            false => ControlFlow::Continue(()),
        });
        any.break_value()?;
        let applying = self.applying(user, namespace).into_iter();
        let missing = applying.filter(|binding| is_missing(binding));
        Some(aggregate(
            missing.map(|binding| naming.missing(binding.role())),
        ))
    }
}

fn namespace_of<'a>(subject: &Subject<'a>) -> &'a str {
    match *subject {
        Subject::Resource { namespace, .. } => namespace,
        Subject::Path(_) => "",
    }
}

/// How the error about a missing role calls its kind.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Naming {
    /// By the lower-case kind, as upstream's authorizer does.
    Kind,
    /// By the resource, as upstream's storage does where it checks escalation.
    Resource,
}

impl Naming {
    /// Returns the error about a role that does not exist.
    pub(crate) fn missing(self, role: &RoleRef) -> String {
        let what = match (&role.kind, self) {
            (RoleKind::Role, Self::Kind) => "role",
            (RoleKind::Role, Self::Resource) => "roles",
            (RoleKind::ClusterRole, Self::Kind) => "clusterrole",
            (RoleKind::ClusterRole, Self::Resource) => "clusterroles",
            (RoleKind::Unsupported(kind), _) => {
                return format!("unsupported role reference kind: {}", quote(kind));
            }
        };
        format!("{what}.{GROUP} {} not found", quote(&role.name))
    }
}

/// Joins errors as upstream does: each text once, in brackets if there are several.
fn aggregate(errors: impl Iterator<Item = String>) -> String {
    let mut seen = BTreeSet::new();
    let mut texts = Vec::new();
    for error in errors {
        if seen.insert(error.clone()) {
            texts.push(error);
        }
    }
    let more = texts.len().saturating_sub(MISSING_MAX);
    if more > 0 {
        texts.truncate(MISSING_MAX);
        texts.push(format!("and {more} more"));
    }
    match texts.as_slice() {
        [only] => only.clone(),
        _ => format!("[{}]", texts.join(", ")),
    }
}
