//! ConfigMaps: two maps without common keys, which may be immutable.

use crate::shared::object_metadata;
use base64::Engine;
use base64::prelude::BASE64_STANDARD;
use polyplane_apimachinery::complaints::Complaints;
use polyplane_apimachinery::field_error::{FieldError, Path};
use polyplane_apimachinery::names::{self, NameRule};
use polyplane_apimachinery::{Map, Value};
use polyplane_registry::Scope;
use polyplane_registry::strategy::{Context, Strategy, age};

/// Most bytes that the values of a ConfigMap or Secret may have together, as upstream limits them.
pub const VALUE_BYTES_MAX: usize = 1024 * 1024;

/// Behaviour of ConfigMaps.
#[derive(Debug)]
pub struct ConfigMap;

impl Strategy for ConfigMap {
    fn prepare_create(&self, _: &Context<'_>, object: &mut Value) {
        fill_bytes(object, "binaryData");
    }

    fn prepare_update(&self, _: &Context<'_>, object: &mut Value, _: &Value) {
        fill_bytes(object, "binaryData");
    }

    fn validate_create(&self, _: &Context<'_>, object: &Value) -> Complaints {
        let mut errors = object_metadata::validate_finalizers(object);
        errors.extend(validate_content(object));
        errors
    }

    fn validate_update(&self, _: &Context<'_>, object: &Value, old: &Value) -> Complaints {
        let mut errors = object_metadata::validate_update(object, old);
        errors.extend(validate_frozen(object, old, &["data", "binaryData"]));
        errors.extend(object_metadata::validate(
            object,
            Scope::Namespaced,
            NameRule::DnsSubdomain,
        ));
        errors.extend(validate_content(object));
        errors
    }

    fn cells(&self, object: &Value, now: i64) -> Vec<Value> {
        let count = members(&object["data"]).count() + members(&object["binaryData"]).count();
        vec![
            object.str_at(&["metadata", "name"]).into(),
            Value::Int(i64::try_from(count).unwrap_or(i64::MAX)),
            age(object.str_at(&["metadata", "creationTimestamp"]), now),
        ]
    }
}

/// Returns the members of a map; none if the map is absent.
pub fn members(map: &Value) -> impl Iterator<Item = (&str, &Value)> {
    map.as_object().into_iter().flat_map(Map::iter)
}

/// Replaces null among bytes by an empty value.
pub fn fill_bytes(object: &mut Value, field: &str) {
    let map = object.get_mut(field).and_then(Value::as_object_mut);
    for (_, value) in map.into_iter().flat_map(Map::iter_mut) {
        if value.is_null() {
            *value = "".into();
        }
    }
}

/// Returns the bytes that a base64 text represents.
pub fn bytes_of(value: &Value) -> Vec<u8> {
    BASE64_STANDARD
        .decode(value.as_str().unwrap_or(""))
        .unwrap_or_default()
}

/// Complains about changes of fields that must not change in an immutable object.
pub fn validate_frozen(object: &Value, old: &Value, fields: &[&str]) -> Complaints {
    let mut errors = Complaints::default();
    if !old.bool_at(&["immutable"]) {
        return errors;
    }
    let detail = "field is immutable when `immutable` is set";
    if !object.bool_at(&["immutable"]) {
        errors.push(FieldError::forbidden(&Path::new("immutable"), detail));
    }
    for field in fields {
        if object[*field] != old[*field] {
            errors.push(FieldError::forbidden(&Path::new(field), detail));
        }
    }
    errors
}

fn validate_content(object: &Value) -> Complaints {
    let mut errors = Complaints::default();
    let mut bytes = 0;
    let (data, binary) = (Path::new("data"), Path::new("binaryData"));
    for (key, value) in members(&object["data"]) {
        validate_key(key, &data, &mut errors);
        if object["binaryData"].get(key).is_some() {
            let detail = "duplicate of key present in binaryData";
            errors.push(FieldError::invalid(&data.key(key), key, detail));
        }
        bytes += value.as_str().map_or(0, str::len);
    }
    for (key, value) in members(&object["binaryData"]) {
        validate_key(key, &binary, &mut errors);
        bytes += bytes_of(value).len();
    }
    if bytes > VALUE_BYTES_MAX {
        errors.push(FieldError::too_long(&Path::new("[]"), VALUE_BYTES_MAX));
    }
    errors
}

/// Validates a key of a ConfigMap or Secret.
pub fn validate_key(key: &str, map: &Path<'_>, errors: &mut Complaints) {
    for detail in names::config_map_key(key) {
        errors.push(FieldError::invalid(&map.key(key), key, detail));
    }
}
