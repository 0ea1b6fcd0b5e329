//! Checks objects that are embedded in custom objects and have a kind and metadata of their own.

use crate::complaints;
use polyplane_apimachinery::Value;
use polyplane_apimachinery::complaints::Complaints;
use polyplane_apimachinery::field_error::{FieldError, Path};
use polyplane_apimachinery::names::{NameRule, dns1035_label};
use polyplane_apimachinery::shape::Shape;
use polyplane_registry::{Scope, metadata};

/// Returns the complaints about all embedded objects below a position.
pub(crate) fn validate<'s, S: Shape<'s>>(shape: S, value: &Value, path: &Path<'_>) -> Complaints {
    let mut errors = Complaints::default();
    node(shape, value, path, &mut errors);
    errors
}

fn node<'s, S: Shape<'s>>(shape: S, value: &Value, path: &Path<'_>, errors: &mut Complaints) {
    if errors.is_full() {
        return;
    }
    match value {
        Value::Object(members) => {
            if shape.is_embedded() {
                embedded(value, path, errors);
            }
            for (name, value) in members.iter() {
                let step = complaints::step(name);
                if let Some(child) = shape.child(name) {
                    node(child, value, &path.child(&step), errors);
                } else if let Some(values) = shape.member(name) {
                    node(values, value, &path.key(&step), errors);
                }
            }
        }
        Value::Array(items) => {
            let Some(item) = shape.item() else { return };
            for (at, value) in items.iter().enumerate() {
                node(item, value, &path.index(at), errors);
            }
        }
        Value::Null | Value::Bool(_) | Value::Int(_) | Value::Float(_) | Value::String(_) => {}
    }
}

fn embedded(object: &Value, path: &Path<'_>, errors: &mut Complaints) {
    for name in ["apiVersion", "kind"] {
        if object.get(name).is_none() {
            errors.push(FieldError::required(&path.child(name), ""));
        }
    }
    if let Some(version) = object.get("apiVersion") {
        let complaint = match version {
            Value::String(text) if text.is_empty() => Some("must not be empty".to_owned()),
            Value::String(text) if text.matches('/').count() > 1 => {
                Some(format!("unexpected GroupVersion string: {text}"))
            }
            Value::String(_) => None,
            _ => Some("must be a string".to_owned()),
        };
        let place = path.child("apiVersion");
        if let Some(text) = complaint {
            errors.push(FieldError::invalid(&place, version.clone(), text));
        }
    }
    if let Some(kind) = object.get("kind") {
        let complaint = match kind {
            Value::String(text) if text.is_empty() => Some("must not be empty".to_owned()),
            Value::String(text) => {
                let complaints = dns1035_label(&text.to_lowercase()).join(",");
                let intro = "may have mixed case, but should otherwise match: ";
                (!complaints.is_empty()).then(|| format!("{intro}{complaints}"))
            }
            _ => Some("must be a string".to_owned()),
        };
        let place = path.child("kind");
        if let Some(text) = complaint {
            errors.push(FieldError::invalid(&place, kind.clone(), text));
        }
    }
    if let Some(own) = object.get("metadata") {
        own_metadata(own, &path.child("metadata"), errors);
    }
}

fn own_metadata(own: &Value, path: &Path<'_>, errors: &mut Complaints) {
    // As in Go, where null leaves a struct as it is.
    if own.is_null() {
        return;
    }
    if own.as_object().is_none() {
        let of = match own {
            Value::Bool(_) => "bool",
            Value::Int(_) | Value::Float(_) => "number",
            Value::String(_) => "string",
            Value::Array(_) => "array",
            Value::Null | Value::Object(_) => "object",
        };
        let text = format!("json: cannot unmarshal {of} into Go value of type v1.ObjectMeta");
        errors.push(FieldError::invalid(path, own.clone(), text));
        return;
    }
    let mut object = Value::object();
    object.set(&["metadata"], own.clone());
    if own.str_at(&["name"]).is_empty() {
        // Embedded objects need no name.
        object.set(&["metadata", "name"], "fakename");
    }
    let scope = match own.str_at(&["namespace"]) {
        "" => Scope::Cluster,
        _ => Scope::Namespaced,
    };
    for mut error in metadata::validate(&object, scope, NameRule::PathSegment) {
        let below = error.field.strip_prefix("metadata").unwrap_or("");
        error.field = complaints::path(format!("{path}{below}"));
        errors.push(error);
    }
}

#[cfg(test)]
mod tests {
    use polyplane_apimachinery::json;
    use polyplane_apimachinery::structural::Structural;

    use super::*;
    use crate::complaints::below_long_names;

    #[test]
    fn metadata_that_is_no_object_is_refused_in_the_words_of_upstream() {
        let schema = r#"{"type": "object", "x-kubernetes-embedded-resource": true}"#;
        let read = |text: &str| json::parse(text.as_bytes(), &json::Limits::default());
        let schema = read(schema).expect("it is JSON").value;
        let structural = Structural::parse(&schema).expect("it is structural");
        for (metadata, found) in [
            ("\"a\"", "string"),
            ("1", "number"),
            ("1.5", "number"),
            ("true", "bool"),
            ("[]", "array"),
        ] {
            let text = format!(r#"{{"apiVersion": "v1", "kind": "A", "metadata": {metadata}}}"#);
            let object = read(&text).expect("it is JSON").value;
            let errors = validate(structural.root(), &object, &Path::NIL);
            let texts: Vec<String> = errors.iter().map(ToString::to_string).collect();
            let text =
                format!("json: cannot unmarshal {found} into Go value of type v1.ObjectMeta");
            assert!(
                texts.len() == 1 && texts[0].ends_with(&text),
                "{metadata}: {texts:?}"
            );
        }
        let object = read(r#"{"apiVersion": "v1", "kind": "A", "metadata": null}"#);
        let object = object.expect("it is JSON").value;
        assert!(validate(structural.root(), &object, &Path::NIL).is_empty());
    }

    #[test]
    fn complaints_about_embedded_objects_have_a_bound_in_bytes() {
        let embedded = json!({"type": "object", "x-kubernetes-embedded-resource": true});
        let schema = json!({"type": "array", "items": embedded});
        let object = Value::Array(vec![Value::object(); 10_000]);
        let (schema, object) = below_long_names(schema, object, 200_000);
        let structural = Structural::parse(&schema).expect("it is structural");
        let found = validate(structural.root(), &object, &Path::NIL);
        let bytes: usize = found.iter().map(|error| error.to_string().len()).sum();
        assert!(
            found.len() > 100 && bytes < 2 * complaints::BYTES_MAX,
            "{bytes}"
        );
    }
}
