//! Who writes the status of a ResourceClaim needs a right for each part of it that changes.
//!
//! Upstream checks this where claims are stored: the allocation and the pods in
//! `status.reservedFor` need `resourceclaims/binding`, the devices of a driver need
//! `resourceclaims/driver` of its name, by a verb that says whether the driver runs on the claim's node.

use polyplane_apimachinery::complaints::Complaints;
use polyplane_apimachinery::field_error::{FieldError, Path};
use polyplane_apimachinery::status::{ApiError, Qualified};
use polyplane_apimachinery::{Value, names};
use polyplane_auth::{Attributes as Access, Decision, Subject, UserInfo};
use polyplane_registry::Admission;
use polyplane_registry::authority::forbidden;
use polyplane_registry::plan::{Attributes, CallOuts, Interest, Interrupted, Mutated, Operation};
use std::collections::{BTreeMap, BTreeSet};

const GROUP: &str = "resource.k8s.io";

/// See the module.
#[derive(Debug)]
pub(crate) struct ResourceClaimStatus;

impl Admission for ResourceClaimStatus {
    fn name(&self) -> &'static str {
        "ResourceClaimStatus"
    }

    fn interest(&self) -> Interest {
        Interest::Resources(&["resourceclaims.resource.k8s.io"])
    }

    fn mutate(
        &self,
        what: &Attributes<'_>,
        object: Option<&mut Value>,
        call_outs: &mut CallOuts<'_>,
    ) -> Result<Mutated, Interrupted> {
        if let (Operation::Update, "status", Some(object), Some(old)) =
            (what.operation, what.call.subresource(), object, what.old)
        {
            check(what, object, old, call_outs)?;
        }
        Ok(Mutated::Unchanged)
    }
}

fn check(
    what: &Attributes<'_>,
    object: &Value,
    old: &Value,
    call_outs: &mut CallOuts<'_>,
) -> Result<(), Interrupted> {
    let subject = what.subject;
    let is_same = |part: &str| {
        let path = ["status", part];
        let schemas = subject.schemas;
        schemas.alike_at(subject.definition, &path, object, old)
    };
    let (status, old) = (&object["status"], &old["status"]);
    let verb = what.call.request.verb.name();
    let root = Path::new("status");
    let mut errors = Complaints::default();
    let is_bound_anew = !is_same("allocation") || !is_same("reservedFor");
    if is_bound_anew && let Some(why) = refusal(what, call_outs, ("binding", verb), ("", ""))? {
        let detail = format!(
            "changing status.allocation or status.reservedFor requires resource=\"resourceclaims/binding\", verb=\"{verb}\" permission: {}",
            why.message
        );
        errors.push(FieldError::forbidden(&root.child("allocation"), detail));
    }
    // The devices of a claim without an allocation are dropped.
    if !status["allocation"].is_null() {
        let verbs = driver_verbs(&what.call.request.user, &status["allocation"], verb);
        for driver in changed_drivers(status, old) {
            if let Some(why) = driver_refusal(what, call_outs, &verbs, driver)? {
                let detail = format!(
                    "changing status.devices requires resource=\"resourceclaims/driver\", verb=\"[{}]\" permission: {}",
                    verbs.join(" "),
                    why.message
                );
                errors.push(FieldError::forbidden(&root.child("devices"), detail));
            }
        }
    }
    if errors.is_empty() {
        return Ok(());
    }
    let kind = Qualified::new(GROUP, "ResourceClaim");
    Err(ApiError::invalid(kind, what.name, &errors).into())
}

/// Returns why none of the verbs is allowed for a driver: the first one's refusal.
fn driver_refusal(
    what: &Attributes<'_>,
    call_outs: &mut CallOuts<'_>,
    verbs: &[String],
    driver: &str,
) -> Result<Option<ApiError>, Interrupted> {
    let mut first = None;
    for verb in verbs {
        let place = (what.call.namespace(), driver);
        match refusal(what, call_outs, ("driver", verb), place)? {
            None => return Ok(None),
            Some(why) => first = first.or(Some(why)),
        }
    }
    Ok(first)
}

/// Returns why the user may not use a verb on a subresource of claims that exists in rights alone.
fn refusal(
    what: &Attributes<'_>,
    call_outs: &mut CallOuts<'_>,
    (subresource, verb): (&str, &str),
    (namespace, name): (&str, &str),
) -> Result<Option<ApiError>, Interrupted> {
    let access = Access {
        user: &what.call.request.user,
        verb,
        subject: Subject::Resource {
            group: GROUP,
            version: what.version,
            resource: "resourceclaims",
            subresource,
            namespace,
            name,
            field_selector: "",
        },
    };
    Ok(match call_outs.authorize(&access)? {
        Decision::Allow => None,
        Decision::Deny(reason) | Decision::NoOpinion(reason) => Some(forbidden(&access, &reason)),
    })
}

/// Returns the verbs by which the user may write the devices of a driver; one of them is enough.
fn driver_verbs(user: &UserInfo, allocation: &Value, verb: &str) -> Vec<String> {
    let arbitrary = format!("arbitrary-node:{verb}");
    match node_of(allocation) {
        Some(node) if runs_on(user, node) => vec![format!("associated-node:{verb}"), arbitrary],
        Some(_) | None => vec![arbitrary],
    }
}

/// Returns the node that an allocation selects by its name, and by nothing else.
fn node_of(allocation: &Value) -> Option<&str> {
    let [term] = allocation.items_at(&["nodeSelector", "nodeSelectorTerms"]) else {
        return None;
    };
    let [field] = term.items_at(&["matchFields"]) else {
        return None;
    };
    let [node] = field.items_at(&["values"]) else {
        return None;
    };
    let is_by_name = field.str_at(&["key"]) == "metadata.name"
        && field.str_at(&["operator"]) == "In"
        && term.items_at(&["matchExpressions"]).is_empty();
    node.as_str().filter(|_| is_by_name)
}

/// Returns whether a user is a service account whose token names the node.
fn runs_on(user: &UserInfo, node: &str) -> bool {
    user.service_account().is_some()
        && user.node_of_pod() == Some(node)
        && names::dns1123_subdomain(node).is_empty()
}

/// Returns the drivers of the devices that were added, changed or removed.
fn changed_drivers<'a>(status: &'a Value, old: &'a Value) -> BTreeSet<&'a str> {
    let mut before: BTreeMap<[&str; 4], &Value> = BTreeMap::new();
    for device in old.items_at(&["devices"]) {
        before.insert(device_key(device), device);
    }
    let mut changed = BTreeSet::new();
    for device in status.items_at(&["devices"]) {
        let key = device_key(device);
        if before.remove(&key).is_none_or(|known| known != device) {
            changed.insert(key[0]);
        }
    }
    changed.extend(before.keys().map(|key| key[0]));
    changed
}

fn device_key(device: &Value) -> [&str; 4] {
    ["driver", "pool", "device", "shareID"].map(|part| device.str_at(&[part]))
}
