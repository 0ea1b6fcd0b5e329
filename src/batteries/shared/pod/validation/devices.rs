//! Validation of a node's report about the devices of containers.

use crate::shared::pod::validation::containers_of;
use crate::shared::validation::complaints::named;
use crate::shared::validation::numbers;
use polyplane_apimachinery::Value;
use polyplane_apimachinery::complaints::Complaints;
use polyplane_apimachinery::field_error::{FieldError, Path};
use std::collections::BTreeSet;

/// Most bytes of a message about a device.
const MESSAGE_BYTES_MAX: usize = 1024;

/// Validates reports about the health of devices.
pub fn validate(status: &Value, spec: &Value, path: &Path<'_>, errors: &mut Complaints) {
    let field = "allocatedResourcesStatus";
    for list in ["containerStatuses", "initContainerStatuses"] {
        let list_path = path.child(list);
        for (at, container) in status.items_at(&[list]).iter().enumerate() {
            let container_path = list_path.index(at);
            let resources = container_path.child(field);
            let name = container.str_at(&["name"]);
            let own = containers_of(spec).find(|one| one.str_at(&["name"]) == name);
            for (at, resource) in container.items_at(&[field]).iter().enumerate() {
                let path = resources.index(at);
                if let Some(own) = own {
                    validate_device_name(resource, own, status, &path, errors);
                }
                validate_health(
                    resource.items_at(&["resources"]),
                    &path.child("resources"),
                    errors,
                );
            }
        }
    }
    let list_path = path.child("ephemeralContainerStatuses");
    for (at, container) in status
        .items_at(&["ephemeralContainerStatuses"])
        .iter()
        .enumerate()
    {
        if !container.items_at(&[field]).is_empty() {
            let detail = "must not be specified in container status";
            errors.push(FieldError::forbidden(
                &list_path.index(at).child(field),
                detail,
            ));
        }
    }
}

fn validate_device_name(
    resource: &Value,
    container: &Value,
    status: &Value,
    path: &Path<'_>,
    errors: &mut Complaints,
) {
    let name = resource.str_at(&["name"]);
    let (known, detail) = match name.strip_prefix("claim:") {
        Some(reference) => {
            let mut claims = container.items_at(&["resources", "claims"]).iter();
            let own =
                claims.any(
                    |claim| match (claim.str_at(&["name"]), claim.str_at(&["request"])) {
                        (claim, "") => claim == reference,
                        (claim, request) => reference.split_once('/') == Some((claim, request)),
                    },
                );
            let detail = "must match one of the container's resource claims as 'claim:<claimName>/<requestName>' when container.resources.claims[*].request is set or 'claim:<claimName>' when it is empty";
            (
                own || is_extended(reference, container, &status["extendedResourceClaimStatus"]),
                detail,
            )
        }
        None => {
            let known = container["resources"]["requests"].get(name).is_some();
            (known, "must match one of the container's resource requests")
        }
    };
    if !known {
        errors.push(FieldError::invalid(
            &path.child("name"),
            named(name),
            detail,
        ));
    }
}

/// Returns true if a claim that was made for extended resources provides what the container
/// requests.
fn is_extended(reference: &str, container: &Value, claim: &Value) -> bool {
    let Some((name, request)) = reference.split_once('/') else {
        return false;
    };
    if name.is_empty() || request.is_empty() || name != claim.str_at(&["resourceClaimName"]) {
        return false;
    }
    claim.items_at(&["requestMappings"]).iter().any(|mapping| {
        mapping.str_at(&["containerName"]) == container.str_at(&["name"])
            && mapping.str_at(&["requestName"]) == request
            && container["resources"]["requests"]
                .get(mapping.str_at(&["resourceName"]))
                .is_some_and(|amount| numbers::sign(amount) != Some(0))
    })
}

fn validate_health(devices: &[Value], path: &Path<'_>, errors: &mut Complaints) {
    let mut seen = BTreeSet::new();
    for (at, device) in devices.iter().enumerate() {
        let path = path.index(at);
        let known = ["Healthy", "Unhealthy", "Unknown"];
        let health = device.str_at(&["health"]);
        if !known.contains(&health) {
            errors.push(FieldError::not_supported(
                &path.child("health"),
                named(health),
                &known,
            ));
        }
        if let Some(message) = device.get("message").and_then(Value::as_str) {
            if message.is_empty() {
                errors.push(FieldError::required(
                    &path.child("message"),
                    "must be non-empty if specified",
                ));
            } else if message.len() > MESSAGE_BYTES_MAX {
                errors.push(FieldError::too_long(
                    &path.child("message"),
                    MESSAGE_BYTES_MAX,
                ));
            }
        }
        let id = device.str_at(&["resourceID"]);
        if !seen.insert(id) {
            errors.push(FieldError::duplicate(&path.child("resourceID"), named(id)));
        }
    }
}
