//! Secrets: their type determines the required content.

mod key_pair;

use super::config_map::{
    VALUE_BYTES_MAX, bytes_of, fill_bytes, members, validate_frozen, validate_key,
};
use crate::shared::object_metadata;
use base64::Engine;
use base64::prelude::BASE64_STANDARD;
use polyplane_apimachinery::complaints::Complaints;
use polyplane_apimachinery::field_error::{Bad, FieldError, Path};
use polyplane_apimachinery::names::NameRule;
use polyplane_apimachinery::{Value, json};
use polyplane_registry::Scope;
use polyplane_registry::strategy::{Context, Strategy, age};
use std::borrow::Cow;
use std::collections::BTreeSet;

/// Behaviour of Secrets.
#[derive(Debug)]
pub struct Secret;

impl Strategy for Secret {
    fn normalize(&self, object: &mut Value, _: i64) {
        if object.get("stringData").is_some() {
            merge_texts(object);
        }
    }

    fn prepare_create(&self, _: &Context<'_>, object: &mut Value) {
        merge_texts(object);
    }

    fn prepare_update(&self, _: &Context<'_>, object: &mut Value, old: &Value) {
        merge_texts(object);
        if object.str_at(&["type"]).is_empty() {
            object.set(&["type"], old["type"].clone());
        }
    }

    fn validate_create(&self, _: &Context<'_>, object: &Value) -> Complaints {
        let mut errors = object_metadata::validate_finalizers(object);
        errors.extend(validate_content(object));
        errors
    }

    fn validate_update(&self, _: &Context<'_>, object: &Value, old: &Value) -> Complaints {
        let mut old = Cow::Borrowed(old);
        if old.get("stringData").is_some() {
            merge_texts(old.to_mut());
        }
        let mut errors = object_metadata::validate_update(object, &old);
        if object["type"] != old["type"] {
            let bad = Bad::Json(object.str_at(&["type"]).into());
            errors.push(FieldError::invalid(
                &Path::new("type"),
                bad,
                "field is immutable",
            ));
        }
        errors.extend(validate_frozen(object, &old, &["data"]));
        errors.extend(object_metadata::validate(
            object,
            Scope::Namespaced,
            NameRule::DnsSubdomain,
        ));
        errors.extend(validate_content(object));
        errors
    }

    fn warnings(&self, _: &Context<'_>, object: &Value, _: Option<&Value>) -> Vec<String> {
        if object.str_at(&["type"]) != "kubernetes.io/tls" {
            return Vec::new();
        }
        let input = |key: &str| bytes_of(&object["data"][key]);
        let warning = key_pair::warning(&input("tls.crt"), &input("tls.key"));
        warning.into_iter().collect()
    }

    fn cells(&self, object: &Value, now: i64) -> Vec<Value> {
        let keys: BTreeSet<&str> = ["data", "stringData"]
            .iter()
            .flat_map(|map| members(&object[*map]))
            .map(|(key, _)| key)
            .collect();
        vec![
            object.str_at(&["metadata", "name"]).into(),
            object.str_at(&["type"]).into(),
            Value::Int(i64::try_from(keys.len()).unwrap_or(i64::MAX)),
            age(object.str_at(&["metadata", "creationTimestamp"]), now),
        ]
    }
}

/// Moves `stringData` into `data`: it is another way to write the same data.
fn merge_texts(object: &mut Value) {
    fill_bytes(object, "data");
    let Some(texts) = object.remove(&["stringData"]) else {
        return;
    };
    for (key, text) in members(&texts) {
        let text = text.as_str().unwrap_or("");
        object.set(&["data", key], BASE64_STANDARD.encode(text));
    }
}

fn validate_content(object: &Value) -> Complaints {
    let mut errors = Complaints::default();
    let path = Path::new("data");
    let data = &object["data"];
    let mut bytes = 0;
    for (key, value) in members(data) {
        validate_key(key, &path, &mut errors);
        bytes += bytes_of(value).len();
    }
    if bytes > VALUE_BYTES_MAX {
        errors.push(FieldError::too_long(&path, VALUE_BYTES_MAX));
    }
    let require = |key: &str| FieldError::required(&path.key(key), "");
    let has = |key: &str| data.get(key).is_some();
    match object.str_at(&["type"]) {
        "kubernetes.io/service-account-token" => {
            let annotation = "kubernetes.io/service-account.name";
            if object
                .str_at(&["metadata", "annotations", annotation])
                .is_empty()
            {
                let metadata = Path::new("metadata");
                let annotations = metadata.child("annotations");
                errors.push(FieldError::required(&annotations.key(annotation), ""));
            }
        }
        "kubernetes.io/dockercfg" => errors.extend(validate_json(data, ".dockercfg", &path)),
        "kubernetes.io/dockerconfigjson" => {
            errors.extend(validate_json(data, ".dockerconfigjson", &path));
        }
        "kubernetes.io/basic-auth" if !has("username") && !has("password") => {
            errors.extend([require("username"), require("password")]);
        }
        "kubernetes.io/ssh-auth" if data.str_at(&["ssh-privatekey"]).is_empty() => {
            errors.push(require("ssh-privatekey"));
        }
        "kubernetes.io/tls" => {
            let keys = ["tls.crt", "tls.key"].into_iter().filter(|key| !has(key));
            errors.extend(keys.map(require));
        }
        _ => {}
    }
    errors
}

/// Validates a value that must be present and contain a JSON object.
fn validate_json(data: &Value, key: &str, path: &Path<'_>) -> Option<FieldError> {
    let Some(value) = data.get(key) else {
        return Some(FieldError::required(&path.key(key), ""));
    };
    let detail = match json::parse(&bytes_of(value), &json::Limits::default()) {
        Ok(parsed) => {
            let found = match parsed.value {
                Value::Object(_) | Value::Null => return None,
                Value::Array(_) => "array",
                Value::String(_) => "string",
                Value::Bool(_) => "bool",
                Value::Int(_) | Value::Float(_) => "number",
            };
            format!(
                "json: cannot unmarshal {found} into Go value of type map[string]interface {{}}"
            )
        }
        Err(error) => error.to_string(),
    };
    Some(FieldError::invalid(
        &path.key(key),
        "<secret contents redacted>",
        detail,
    ))
}
