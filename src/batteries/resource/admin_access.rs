//! Administrative access to devices, which is independent of their allocation and only allowed in
//! labelled namespaces.

use polyplane_apimachinery::field_error::{FieldError, Path};
use polyplane_apimachinery::status::{ApiError, Qualified};
use polyplane_apimachinery::{Value, json};
use polyplane_plane::{Key, Snapshot};

/// The label of a namespace in which such access is allowed.
const LABEL: &str = "resource.kubernetes.io/admin-access";

/// Refuses a new claim or template whose `spec` requests such access in a namespace that does not
/// allow it.
///
/// # Errors
/// Returns 422 about the first device request that requests the access.
pub fn admit(kind: &str, cut: &Snapshot, object: &Value, spec: &Value) -> Result<(), ApiError> {
    let requests = spec.items_at(&["devices", "requests"]);
    let Some(at) = requests
        .iter()
        .position(|request| request.bool_at(&["exactly", "adminAccess"]))
    else {
        return Ok(());
    };
    // The path is that of a claim of an older version, also for templates, as upstream's.
    let path = Path::new("spec");
    let path = path.child("devices");
    let path = path.child("requests");
    needs_label(kind, cut, object, &path.index(at))
}

/// Refuses a claim's first allocation if it grants such access in a namespace that does not allow
/// it.
///
/// # Errors
/// Returns 422 about the first result that grants the access.
pub fn admit_status(cut: &Snapshot, object: &Value, old: &Value) -> Result<(), ApiError> {
    let first = |claim: &Value| {
        let results = claim.items_at(&["status", "allocation", "devices", "results"]);
        results
            .iter()
            .position(|result| result.bool_at(&["adminAccess"]))
    };
    match (first(old), first(object)) {
        // An allocation does not change, so access that was granted stays granted.
        (Some(_), _) | (_, None) => Ok(()),
        (None, Some(at)) => {
            let path = Path::new("status.allocation.devices.results");
            needs_label("ResourceClaim", cut, object, &path.index(at))
        }
    }
}

fn needs_label(
    kind: &str,
    cut: &Snapshot,
    object: &Value,
    path: &Path<'_>,
) -> Result<(), ApiError> {
    if is_labelled(cut, object.str_at(&["metadata", "namespace"])) {
        return Ok(());
    }
    let detail = format!(
        "admin access to devices requires the `{LABEL}: true` label on the containing namespace"
    );
    let errors = [FieldError::forbidden(&path.child("adminAccess"), detail)];
    let name = object.str_at(&["metadata", "name"]);
    Err(ApiError::invalid(
        Qualified::new("resource.k8s.io", kind),
        name,
        &errors,
    ))
}

fn is_labelled(cut: &Snapshot, namespace: &str) -> bool {
    let Some(namespace) = cut.get(&Key::new("", "namespaces", None, namespace)) else {
        return false;
    };
    json::scan::string_at(&namespace.body(), &["metadata", "labels", LABEL])
        .is_some_and(|value| value == "true")
}
