//! Checks of single values that many kinds share, with upstream's texts.
//!
//! Each takes the place of the value and adds its complaints to a list. Knows no kinds.

use polyplane_apimachinery::Value;
use polyplane_apimachinery::field_error::{Bad, FieldError, Path};
use polyplane_apimachinery::names;
use polyplane_apimachinery::quantity::Quantity;

/// The text about numbers below zero.
pub const NEGATIVE: &str = "must be greater than or equal to 0";
/// The text about a field that an update may not change.
pub const IMMUTABLE: &str = "field is immutable";

/// A text of a named type, which upstream shows as JSON.
pub fn named(text: &str) -> Bad {
    Bad::Json(text.into())
}

/// One error for every complaint about a value.
pub fn complain(
    complaints: Vec<String>,
    path: &Path<'_>,
    bad: impl Into<Bad>,
    errors: &mut Vec<FieldError>,
) {
    if complaints.is_empty() {
        return;
    }
    let bad = bad.into();
    for complaint in complaints {
        errors.push(FieldError::invalid(path, bad.clone(), complaint));
    }
}

/// A number that may not be below zero; absent ones are fine.
pub fn non_negative(number: Option<i64>, path: &Path<'_>, errors: &mut Vec<FieldError>) {
    if let Some(number) = number.filter(|number| *number < 0) {
        errors.push(FieldError::invalid(path, number, NEGATIVE));
    }
}

/// The members `names` of `object`, numbers that may not be below zero.
pub fn non_negative_members(
    object: &Value,
    names: &[&str],
    path: &Path<'_>,
    errors: &mut Vec<FieldError>,
) {
    for name in names {
        non_negative(object.int_at(&[name]), &path.child(name), errors);
    }
}

/// -1, 0 or 1; absent and malformed quantities give `None`.
pub fn sign(quantity: &Value) -> Option<i32> {
    match quantity {
        Value::Int(number) => Some(number.signum() as i32),
        other => Some(Quantity::parse(other.as_str()?).ok()?.sign()),
    }
}

/// A quantity that may not be below zero.
pub fn non_negative_quantity(quantity: &Value, path: &Path<'_>, errors: &mut Vec<FieldError>) {
    if sign(quantity) == Some(-1) {
        errors.push(FieldError::invalid(path, quantity.clone(), NEGATIVE));
    }
}

/// The name of a CSI driver in a field.
pub fn csi_driver_name(name: &str, path: &Path<'_>, errors: &mut Vec<FieldError>) {
    if name.is_empty() {
        errors.push(FieldError::required(path, ""));
        return;
    }
    if name.len() > 63 {
        errors.push(FieldError::too_long(path, 63));
    }
    complain(
        names::dns1123_subdomain(&name.to_lowercase()),
        path,
        name,
        errors,
    );
}

/// The texts of a list, absent and other types as empty texts.
pub fn texts<'a>(object: &'a Value, path: &[&str]) -> impl Iterator<Item = &'a str> {
    object
        .items_at(path)
        .iter()
        .map(|item| item.as_str().unwrap_or(""))
}

/// True if the object has the member `name` and it is not null.
pub fn has(object: &Value, name: &str) -> bool {
    !object[name].is_null()
}
