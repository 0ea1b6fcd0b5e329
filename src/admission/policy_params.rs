//! Who writes an admission policy or a binding needs the right to read the parameters that it refers to:
//! what a policy reports about a request may show what they contain.
//!
//! Upstream checks this where policies and bindings are stored, once they are valid. Members of
//! `system:masters` are not checked.

use crate::objects;
use polyplane_apimachinery::field_error::{FieldError, Path};
use polyplane_apimachinery::{Str, Value};
use polyplane_auth::{Attributes as Access, Decision, SYSTEM_MASTERS, Subject, UserInfo};
use polyplane_plane::{Claim, Key};
use polyplane_registry::Admission;
use polyplane_registry::plan::{Attributes, CallOuts, Interest, Interrupted, Operation};

const GROUP: &str = "admissionregistration.k8s.io";

/// See the module.
#[derive(Debug)]
pub(crate) struct PolicyParams;

impl Admission for PolicyParams {
    fn name(&self) -> &'static str {
        "PolicyParams"
    }

    fn interest(&self) -> Interest {
        Interest::Resources(&[
            "validatingadmissionpolicies.admissionregistration.k8s.io",
            "validatingadmissionpolicybindings.admissionregistration.k8s.io",
            "mutatingadmissionpolicies.admissionregistration.k8s.io",
            "mutatingadmissionpolicybindings.admissionregistration.k8s.io",
        ])
    }

    fn validate(
        &self,
        what: &Attributes<'_>,
        object: Option<&Value>,
        call_outs: &mut CallOuts<'_>,
    ) -> Result<Vec<Claim>, Interrupted> {
        let is_checked = what.operation != Operation::Delete
            && what.call.subresource().is_empty()
            && !what.call.request.user.in_group(SYSTEM_MASTERS);
        if let Some(object) = object.filter(|_| is_checked) {
            check(what, &object["spec"], call_outs)?;
        }
        Ok(Vec::new())
    }
}

fn check(
    what: &Attributes<'_>,
    spec: &Value,
    call_outs: &mut CallOuts<'_>,
) -> Result<(), Interrupted> {
    let policies = match &*what.call.row.name {
        "validatingadmissionpolicybindings" => Some("validatingadmissionpolicies"),
        "mutatingadmissionpolicybindings" => Some("mutatingadmissionpolicies"),
        _ => None,
    };
    let (field, why) = match policies {
        None => ("paramKind", policy_refusal(what, spec, call_outs)?),
        Some(policies) => {
            let why = binding_refusal(what, spec, policies, call_outs)?;
            ("paramRef", why)
        }
    };
    let Some(why) = why else {
        return Ok(());
    };
    let path = Path::new("spec");
    let error = FieldError::forbidden(&path.child(field), why);
    Err(what.call.invalid(what.name, &[error]).into())
}

/// Returns why the user may not write a policy with these parameters. A kind that an update leaves as it
/// is needs no right.
fn policy_refusal(
    what: &Attributes<'_>,
    spec: &Value,
    call_outs: &mut CallOuts<'_>,
) -> Result<Option<String>, Interrupted> {
    let kind = &spec["paramKind"];
    let is_kept = what
        .old
        .is_some_and(|old| old["spec"]["paramKind"] == *kind);
    if kind.is_null() || is_kept {
        return Ok(None);
    }
    let params = Params::of(what, kind);
    if params.may(what, call_outs, ("get", "*", "*"))? {
        return Ok(None);
    }
    Ok(Some(format!(
        "user {} must have \"get\" permission on all objects of the referenced paramKind (kind={}, apiVersion={})",
        go_text(&what.call.request.user),
        kind.str_at(&["kind"]),
        kind.str_at(&["apiVersion"])
    )))
}

/// Returns why the user may not write a binding with these parameters. Upstream means to check no update
/// that leaves them as they are, but compares pointers that always differ.
fn binding_refusal(
    what: &Attributes<'_>,
    spec: &Value,
    policies: &str,
    call_outs: &mut CallOuts<'_>,
) -> Result<Option<String>, Interrupted> {
    let reference = &spec["paramRef"];
    if reference.is_null() {
        return Ok(None);
    }
    let policy_name = spec.str_at(&["policyName"]);
    let policy = objects::get(what, &Key::new(GROUP, policies, None, policy_name))?;
    let kind = policy.as_ref().map(|policy| &policy["spec"]["paramKind"]);
    let params = match kind {
        Some(kind) if !kind.is_null() => Params::of(what, kind),
        Some(_) | None => Params::any(None),
    };
    let name = reference.str_at(&["name"]);
    let verb = if name.is_empty() { "list" } else { "get" };
    let namespace = reference.str_at(&["namespace"]);
    if params.may(what, call_outs, (verb, namespace, name))? {
        return Ok(None);
    }
    let user = go_text(&what.call.request.user);
    let rest = format!(
        "to determine minimum required permissions and user {user} does not have \"{verb}\" permission for all groups, versions and resources"
    );
    Ok(Some(match (kind, params.vague) {
        (None, _) => format!("unable to get policy {policy_name} {rest}"),
        (Some(kind), Some(step)) => {
            let parts = ["apiVersion", "kind"].map(|part| kind.str_at(&[part]));
            format!("unable to {step} paramKind &{{{}}} {rest}", parts.join(" "))
        }
        (Some(_), None) => {
            // Upstream's text about mutating policies has them the other way round.
            let (who, right) = match policies {
                "mutatingadmissionpolicies" => (verb, user.as_str()),
                _ => (user.as_str(), verb),
            };
            format!(
                "user {who} does not have \"{right}\" permission on the object referenced by paramRef"
            )
        }
    }))
}

/// The resource of the parameters, as far as it is known. What is not known is `*`, so that it needs the right
/// to read everything.
struct Params {
    group: Str,
    version: Str,
    resource: Str,
    /// The step of finding the resource that failed.
    vague: Option<&'static str>,
}

impl Params {
    fn any(vague: Option<&'static str>) -> Self {
        Self {
            group: "*".into(),
            version: "*".into(),
            resource: "*".into(),
            vague,
        }
    }

    fn of(what: &Attributes<'_>, kind: &Value) -> Self {
        let api_version = kind.str_at(&["apiVersion"]);
        let (group, version) = api_version.split_once('/').unwrap_or(("", api_version));
        if version.contains('/') {
            return Self::any(Some("parse"));
        }
        let name = kind.str_at(&["kind"]);
        let kinds = what.call.tenant.kinds();
        let row = kinds
            .resources()
            .find(|row| row.group == group && row.version == version && row.kind == name);
        Self {
            group: group.into(),
            version: version.into(),
            resource: row.map_or_else(|| "*".into(), |row| row.name.clone()),
            vague: row.is_none().then_some("resolve"),
        }
    }

    /// Returns whether the user may read parameters by a verb.
    fn may(
        &self,
        what: &Attributes<'_>,
        call_outs: &mut CallOuts<'_>,
        (verb, namespace, name): (&str, &str, &str),
    ) -> Result<bool, Interrupted> {
        let access = Access {
            user: &what.call.request.user,
            verb,
            subject: Subject::Resource {
                group: &self.group,
                version: &self.version,
                resource: &self.resource,
                subresource: "",
                namespace,
                name,
                field_selector: "",
            },
        };
        Ok(call_outs.authorize(&access)? == Decision::Allow)
    }
}

/// Returns a user as upstream's texts show it: as Go prints a pointer to its struct.
fn go_text(user: &UserInfo) -> String {
    let list = |items: &[Str]| {
        let items: Vec<&str> = items.iter().map(Str::as_str).collect();
        format!("[{}]", items.join(" "))
    };
    let extra = user.extra.iter();
    let extra: Vec<String> = extra
        .map(|(key, values)| format!("{key}:{}", list(values)))
        .collect();
    format!(
        "&{{{} {} {} map[{}]}}",
        user.name,
        user.uid,
        list(&user.groups),
        extra.join(" ")
    )
}
