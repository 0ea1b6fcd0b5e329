//! The presence of members in an object, and the texts of a list.

use polyplane_apimachinery::Value;

/// Returns true for a pointer, list or structure that is set.
pub fn present(value: &Value) -> bool {
    !value.is_null()
}

/// Returns true if the object has the member `name` and it is not null.
pub fn has(object: &Value, name: &str) -> bool {
    present(&object[name])
}

/// Returns the texts of a list.
pub fn texts(list: &Value) -> Vec<&str> {
    list.as_array()
        .unwrap_or(&[])
        .iter()
        .map(|item| item.as_str().unwrap_or(""))
        .collect()
}
