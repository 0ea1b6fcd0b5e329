//! Names of resources such as `cpu` and `requests.nvidia.com/gpu`, and amounts of them.

use polyplane_apimachinery::Value;
use polyplane_apimachinery::complaints::Complaints;
use polyplane_apimachinery::field_error::{Bad, FieldError, Path};
use polyplane_apimachinery::names;
use polyplane_apimachinery::quantity::Quantity;

const HUGE_PAGES: &str = "hugepages-";
const REQUESTS: &str = "requests.";

/// The resources that a quota may name without a domain.
const QUOTA: [&str; 19] = [
    "cpu",
    "memory",
    "ephemeral-storage",
    "requests.cpu",
    "requests.memory",
    "requests.storage",
    "requests.ephemeral-storage",
    "limits.cpu",
    "limits.memory",
    "limits.ephemeral-storage",
    "pods",
    "resourcequotas",
    "services",
    "replicationcontrollers",
    "secrets",
    "persistentvolumeclaims",
    "configmaps",
    "services.nodeports",
    "services.loadbalancers",
];

/// The resources that can only be counted as whole numbers.
const WHOLE: [&str; 9] = [
    "pods",
    "resourcequotas",
    "services",
    "replicationcontrollers",
    "secrets",
    "configmaps",
    "persistentvolumeclaims",
    "services.nodeports",
    "services.loadbalancers",
];

/// Returns true for `hugepages-2Mi` and the like.
pub fn is_huge_pages(name: &str) -> bool {
    name.starts_with(HUGE_PAGES)
}

fn is_quota_huge_pages(name: &str) -> bool {
    is_huge_pages(name) || name.starts_with("requests.hugepages-")
}

/// Returns true for a resource that a quota may name without a domain.
pub fn is_standard_quota(name: &str) -> bool {
    QUOTA.contains(&name) || is_quota_huge_pages(name)
}

fn is_standard(name: &str) -> bool {
    is_standard_quota(name) || name == "storage"
}

/// Returns true for a resource that upstream itself defines.
pub fn is_native(name: &str) -> bool {
    !name.contains('/') || name.contains("kubernetes.io/")
}

/// Returns true for a resource that a third party defines and that a quota can count.
pub fn is_extended(name: &str) -> bool {
    !is_native(name)
        && !name.starts_with(REQUESTS)
        && names::qualified_name(&format!("{REQUESTS}{name}")).is_empty()
}

/// Returns true for a resource that can only be counted as whole numbers.
pub fn is_whole(name: &str) -> bool {
    WHOLE.contains(&name) || is_extended(name)
}

/// Returns true for a resource that can be overcommitted.
pub fn may_overcommit(name: &str) -> bool {
    is_native(name) && !is_huge_pages(name)
}

fn invalid(path: &Path<'_>, name: &str, detail: impl Into<String>) -> FieldError {
    FieldError::invalid(path, Bad::Json(name.into()), detail)
}

/// Validates the name of a resource.
pub fn validate_name(name: &str, path: &Path<'_>) -> Complaints {
    let complaints = names::qualified_name(name);
    if !complaints.is_empty() {
        return complaints
            .into_iter()
            .map(|detail| invalid(path, name, detail))
            .collect();
    }
    if !name.contains('/') && !is_standard(name) {
        return Complaints::from([invalid(
            path,
            name,
            "must be a standard resource type or fully qualified",
        )]);
    }
    Complaints::default()
}

/// Validates the name of a resource that containers request.
pub fn validate_container_name(name: &str, path: &Path<'_>) -> Complaints {
    let mut errors = validate_name(name, path);
    if !name.contains('/') {
        if !["cpu", "memory", "ephemeral-storage"].contains(&name) && !is_huge_pages(name) {
            errors.push(invalid(
                path,
                name,
                "must be a standard resource for containers",
            ));
        }
    } else if !is_native(name) && !is_extended(name) {
        errors.push(invalid(
            path,
            name,
            "doesn't follow extended resource name standard",
        ));
    }
    errors
}

/// Validates the name of a resource in a quota.
pub fn validate_quota_name(name: &str, path: &Path<'_>) -> Complaints {
    let mut errors = validate_name(name, path);
    if !name.contains('/') && !is_standard_quota(name) {
        errors.push(invalid(path, name, "must be a standard resource for quota"));
    }
    errors
}

/// Returns the amount in a tree. A text that is not an amount counts as zero, because the schema
/// has reported it before.
pub fn amount(value: Option<&Value>) -> Quantity {
    let text = value.and_then(Value::as_str).unwrap_or("0");
    Quantity::parse(text).unwrap_or_default()
}

/// Validates an amount that may not be negative.
pub fn validate_nonnegative(value: &Value, path: &Path<'_>) -> Complaints {
    let amount = amount(Some(value));
    if amount.sign() >= 0 {
        return Complaints::default();
    }
    Complaints::from([FieldError::invalid(
        path,
        amount.to_string(),
        "must be greater than or equal to 0",
    )])
}

/// Validates an amount that must be positive.
pub fn validate_positive(value: &Value, path: &Path<'_>) -> Complaints {
    let amount = amount(Some(value));
    if amount.sign() > 0 {
        return Complaints::default();
    }
    Complaints::from([FieldError::invalid(
        path,
        amount.to_string(),
        "must be greater than zero",
    )])
}

/// Validates the amount of a resource.
pub fn validate_amount(name: &str, value: &Value, path: &Path<'_>) -> Complaints {
    let mut errors = validate_nonnegative(value, path);
    let amount = amount(Some(value));
    if is_whole(name) && amount.milli_value() % 1000 != 0 {
        errors.push(FieldError::invalid(
            path,
            amount.to_string(),
            "must be an integer",
        ));
    }
    errors
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn resources_are_told_apart_by_their_names() {
        let path = Path::new("x");
        for good in [
            "cpu",
            "hugepages-2Mi",
            "nvidia.com/gpu",
            "kubernetes.io/batch",
        ] {
            assert!(validate_container_name(good, &path).is_empty(), "{good}");
        }
        assert_eq!(validate_container_name("storage", &path).len(), 1);
        assert_eq!(validate_container_name("gpu", &path).len(), 2);
        assert!(validate_quota_name("requests.nvidia.com/gpu", &path).is_empty());
        assert_eq!(validate_quota_name("storage", &path).len(), 1);
        assert!(is_whole("nvidia.com/gpu") && !is_whole("cpu"));
        assert_eq!(validate_amount("pods", &"1500m".into(), &path).len(), 1);
        assert_eq!(validate_amount("cpu", &"-1".into(), &path).len(), 1);
    }
}
