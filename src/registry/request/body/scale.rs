//! Scales that a body names in a version which no path serves, and scales of custom kinds, which upstream
//! reads with a registry of their own.

use super::named::{Named, named_kind};
use super::{BodyError, Expected};
use polyplane_apimachinery::Value;
use polyplane_apimachinery::schema::decode::{DecodeError, Empties};
use polyplane_apimachinery::status::ApiError;

/// The place of upstream's registry of the scales of custom kinds, as its errors name it.
const SCHEME: &str = "k8s.io/client-go/scale/util.go:146";
/// The groups and versions whose Scale upstream still knows, although no path serves it.
const OLD: [(&str, &str); 3] = [
    ("apps", "v1beta1"),
    ("apps", "v1beta2"),
    ("extensions", "v1beta1"),
];
/// The type in Go of the Scale of a custom kind.
const CUSTOM: &str = "v1.Scale";

/// Returns true for a Scale that upstream knows although no path serves it.
pub(super) fn is_old(named: &Named) -> bool {
    named.kind == "Scale" && OLD.contains(&(named.group.as_str(), named.version.as_str()))
}

/// Checks the selector of a patched tree that names an old Scale, in which it is a map.
pub(super) fn check_old_selector(tree: &Value) -> Result<(), BodyError> {
    match &tree["status"]["selector"] {
        Value::String(_) => {
            let text = "json: cannot unmarshal string into Go struct field ScaleStatus.status.selector of type map[string]string";
            Err(DecodeError(text.to_owned()).into())
        }
        _ => Ok(()),
    }
}

/// Returns the error about a sent Scale of a custom kind that cannot be read, whatever is wrong with it.
/// Upstream looks for its type among those of the custom kind, where it is not, to say what it is.
pub(crate) fn unreadable() -> ApiError {
    ApiError::bad_request(format!(
        "no kind is registered for the type {CUSTOM} in scheme \"pkg/apiserver/customresource_handler.go:781\""
    ))
}

/// Checks that a patch has not changed kind and version of the Scale of a custom kind.
///
/// # Errors
/// Returns the error of upstream's decoder about the Scale.
pub(crate) fn check_patched(tree: &Value, expected: Expected<'_>) -> Result<(), BodyError> {
    let named = named_kind(tree)?.or(expected);
    if named.is(expected) {
        return Ok(());
    }
    if is_old(&named) {
        check_old_selector(tree)?;
        return Err(BodyError::OtherKind(named.unconvertible_to(CUSTOM)));
    }
    let is_known = named.kind == "Status"
        || (named.group == expected.group && named.version == expected.version);
    let schemas = expected.schemas;
    let other = schemas
        .kind(&named.group, &named.version, &named.kind)
        .filter(|_| is_known)
        .ok_or_else(|| BodyError::OtherKind(named.unregistered(SCHEME)))?;
    schemas.decode(other, &mut tree.clone(), Empties::Null)?;
    Err(BodyError::OtherKind(named.unconvertible_to(CUSTOM)))
}
