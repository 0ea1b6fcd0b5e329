//! Nobody may give rights that they do not hold.
//!
//! Upstream checks this where roles and bindings are stored; here it is the last plug-in that may
//! change an object, so that it sees what is to be stored, before the object is validated. Whoever
//! may `escalate` or `bind` the role is not compared with it. The decision rests on all roles and
//! bindings of the plane: none of them may change until the write is sequenced.

use crate::objects;
use polyplane_apimachinery::Value;
use polyplane_apimachinery::status::{ApiError, Qualified, Reason};
use polyplane_auth::rbac::binding::{ObjectName, RoleKind, RoleRef};
use polyplane_auth::rbac::escalation::{self, Escalation};
use polyplane_auth::rbac::role::Role;
use polyplane_auth::{Decision, SYSTEM_MASTERS};
use polyplane_plane::Claim;
use polyplane_registry::Admission;
use polyplane_registry::plan::{Attributes, CallOuts, Interest, Interrupted, Mutated, Operation};
use polyplane_registry::roles;

/// See the module.
#[derive(Debug)]
pub(crate) struct RoleEscalation;

impl Admission for RoleEscalation {
    fn name(&self) -> &'static str {
        "RoleEscalation"
    }

    fn interest(&self) -> Interest {
        Interest::Resources(&[
            "roles.rbac.authorization.k8s.io",
            "clusterroles.rbac.authorization.k8s.io",
            "rolebindings.rbac.authorization.k8s.io",
            "clusterrolebindings.rbac.authorization.k8s.io",
        ])
    }

    fn mutate(
        &self,
        what: &Attributes<'_>,
        object: Option<&mut Value>,
        call_outs: &mut CallOuts<'_>,
    ) -> Result<Mutated, Interrupted> {
        match object {
            Some(object) if is_checked(what) && changes_more_than_owners(what, object) => {
                check(what, object, call_outs)?;
            }
            Some(_) | None => {}
        }
        Ok(Mutated::Unchanged)
    }

    fn validate(
        &self,
        what: &Attributes<'_>,
        object: Option<&Value>,
        _: &mut CallOuts<'_>,
    ) -> Result<Vec<Claim>, Interrupted> {
        let rests_on_roles = object.is_some() && is_checked(what);
        let summary = what.cut.summary().filter(|_| rests_on_roles);
        Ok(summary.cloned().map(Claim::Summary).into_iter().collect())
    }
}

/// Returns whether the write is one that its user must hold the rights for.
fn is_checked(what: &Attributes<'_>) -> bool {
    let user = &what.call.request.user;
    what.operation != Operation::Delete && !user.in_group(SYSTEM_MASTERS)
}

/// Returns whether a write changes more than what lets the garbage collector remove the object.
fn changes_more_than_owners(what: &Attributes<'_>, object: &Value) -> bool {
    let rest = objects::without_owners;
    what.old.is_none_or(|old| rest(old) != rest(object))
}

fn is_role(what: &Attributes<'_>) -> bool {
    matches!(&*what.call.row.name, "roles" | "clusterroles")
}

fn check(
    what: &Attributes<'_>,
    object: &Value,
    call_outs: &mut CallOuts<'_>,
) -> Result<(), Interrupted> {
    let user = &what.call.request.user;
    let Some(index) = roles::index_of(what.cut) else {
        return Ok(());
    };
    let name = ObjectName {
        namespace: what.call.namespace(),
        name: object.str_at(&["metadata", "name"]),
    };
    let confirmed = if is_role(what) {
        if allows(call_outs, &escalation::escalate(user, name))? {
            return Ok(());
        }
        let old = what.old.map(Role::from_value);
        index.confirm_role(user, name, &Role::from_value(object), old.as_ref())
    } else {
        let reference = RoleRef::from_value(&object["roleRef"]);
        if let Some(access) = escalation::bind(user, &reference, name.namespace)
            && allows(call_outs, &access)?
        {
            return Ok(());
        }
        index.confirm_binding(user, &reference, name.namespace)
    };
    Ok(confirmed.map_err(|why| refusal(what, object, &why))?)
}

fn allows(
    call_outs: &mut CallOuts<'_>,
    access: &polyplane_auth::Attributes<'_>,
) -> Result<bool, Interrupted> {
    Ok(call_outs.authorize(access)? == Decision::Allow)
}

fn refusal(what: &Attributes<'_>, object: &Value, why: &Escalation) -> ApiError {
    match why {
        Escalation::NoRole(reference) => {
            let row = what.call.row;
            no_role(Qualified::new(&row.group, &row.name), reference)
        }
        Escalation::Missing(_) | Escalation::Aggregation | Escalation::TooMany(_) => {
            what.forbidden(Some(object), why)
        }
    }
}

/// Returns the refusal of a binding to a role that does not exist.
fn no_role(binding: Qualified<'_>, reference: &RoleRef) -> ApiError {
    match reference.kind {
        // Upstream names the kind of the binding beside the name of the role.
        RoleKind::Role | RoleKind::ClusterRole => ApiError::not_found(binding, &reference.name),
        // Upstream validates the binding only later, and answers with the bare error. Members of
        // `system:masters` are not checked here, so they get the validation's complaint.
        RoleKind::Unsupported(_) => {
            let error = Escalation::NoRole(reference.clone());
            ApiError::new(Reason::Unknown, error.to_string())
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use polyplane_apimachinery::json;

    /// The texts are those of the kube-apiserver for a user who may bind all roles.
    #[test]
    fn a_binding_to_a_role_of_no_kind_is_not_said_to_lack_the_role() {
        let bindings = Qualified::new("rbac.authorization.k8s.io", "clusterrolebindings");
        let refusal = |reference: &Value| {
            let refused = no_role(bindings, &RoleRef::from_value(reference));
            (refused.code, refused.reason.as_str(), refused.message)
        };
        let missing = refusal(&json!({"kind": "ClusterRole", "name": "nope"}));
        let text = "clusterrolebindings.rbac.authorization.k8s.io \"nope\" not found";
        assert_eq!(missing, (404, "NotFound", text.to_owned()));
        for (reference, kind) in [
            (json!({"kind": "Foo", "name": "nope"}), "Foo"),
            (json!({"name": "nope"}), ""),
        ] {
            let text = format!("unsupported role reference kind: \"{kind}\"");
            assert_eq!(refusal(&reference), (500, "", text));
        }
    }
}
