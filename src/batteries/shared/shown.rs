//! How texts show whole objects: as the JSON of their published type, or as that of upstream's
//! internal type, whose members carry Go's names and are all written.

use crate::catalog;
use polyplane_apimachinery::field_error::Bad;
use polyplane_apimachinery::json;
use polyplane_apimachinery::schema::{Definition, Field, Schemas, Type};
use polyplane_apimachinery::{Map, Value};
use std::borrow::Cow;

/// `value` as upstream shows it where it complains about the published type `definition`.
pub fn published(definition: &str, value: &Value) -> Bad {
    let schemas = catalog::schemas();
    match schemas.find(definition) {
        Some(id) if !value.is_null() => schemas.shown(None, &Type::Ref(id), value),
        _ => Bad::Json(value.clone()),
    }
}

/// A label selector as texts show it.
pub fn selector(value: &Value) -> Bad {
    published("io.k8s.apimachinery.pkg.apis.meta.v1.LabelSelector", value)
}

/// `value` as upstream shows it where it complains about the internal twin of `definition`.
pub fn internal(definition: &str, value: &Value) -> Bad {
    Bad::Shown(internal_text(definition, value).into())
}

/// A list of internal objects.
pub fn internal_list(definition: &str, values: &[Value]) -> Bad {
    let texts: Vec<String> = values
        .iter()
        .map(|value| internal_text(definition, value))
        .collect();
    Bad::Shown(format!("[{}]", texts.join(",")).into())
}

/// The JSON of the internal twin of `definition`.
pub fn internal_text(definition: &str, value: &Value) -> String {
    let schemas = catalog::schemas();
    let mut out = Vec::new();
    match schemas.find(definition) {
        Some(id) if !value.is_null() && is_published(schemas.get(id)) => {
            out = schemas.to_vec(id, value);
        }
        Some(id) if !value.is_null() => write_object(&schemas, schemas.get(id), value, &mut out),
        _ => json::write(value, &mut out),
    }
    String::from_utf8_lossy(&out).into_owned()
}

/// Types of the machinery have the same JSON everywhere.
fn is_published(definition: &Definition) -> bool {
    definition.name.starts_with("io.k8s.apimachinery.")
}

fn write_object(schemas: &Schemas, definition: &Definition, value: &Value, out: &mut Vec<u8>) {
    out.push(b'{');
    let start = out.len();
    for field in &definition.fields {
        if out.len() > start {
            out.push(b',');
        }
        let member = &value[field.name.as_str()];
        if field.name == "metadata" {
            // Metadata is embedded: its members stand among the object's own, by published names.
            let inner = written(schemas, &field.ty, &without_nulls(member));
            let inner = without_zero_time(
                inner
                    .get(1..inner.len().saturating_sub(1))
                    .unwrap_or_default(),
            );
            if inner.is_empty() {
                if out.len() > start {
                    out.pop();
                }
            } else {
                out.extend(inner);
            }
            continue;
        }
        json::write_string(&go_name(field), out);
        out.push(b':');
        write_member(schemas, field, &field.ty, member, out);
    }
    out.push(b'}');
}

/// Metadata writes an unset creation time as null only where a decoder left it there.
fn without_zero_time(inner: &[u8]) -> Vec<u8> {
    let text = String::from_utf8_lossy(inner);
    let text = text
        .replace("\"creationTimestamp\":null,", "")
        .replace(",\"creationTimestamp\":null", "");
    if text == "\"creationTimestamp\":null" {
        Vec::new()
    } else {
        text.into_bytes()
    }
}

fn without_nulls(value: &Value) -> Value {
    match value {
        Value::Object(map) => {
            let mut map: Map = map.clone();
            map.retain(|_, member| !member.is_null());
            Value::Object(map)
        }
        _ => Value::object(),
    }
}

fn write_member(schemas: &Schemas, field: &Field, ty: &Type, value: &Value, out: &mut Vec<u8>) {
    match (ty, value) {
        (Type::Ref(id), _) => {
            let definition = schemas.get(*id);
            if value.is_null()
                && field.presence == polyplane_apimachinery::schema::Presence::Pointer
            {
                out.extend(b"null");
            } else if is_published(definition) {
                out.extend(written(schemas, ty, value));
            } else {
                write_object(schemas, definition, value, out);
            }
        }
        (Type::List(item), Value::Array(items)) => {
            out.push(b'[');
            for (at, value) in items.iter().enumerate() {
                if at > 0 {
                    out.push(b',');
                }
                write_member(schemas, field, item, value, out);
            }
            out.push(b']');
        }
        (Type::Map(item), Value::Object(map)) => {
            out.push(b'{');
            for (at, (key, value)) in map.iter().enumerate() {
                if at > 0 {
                    out.push(b',');
                }
                json::write_string(key, out);
                out.push(b':');
                write_member(schemas, field, item, value, out);
            }
            out.push(b'}');
        }
        (_, Value::Null) => json::write(&schemas.zero_of(field), out),
        (_, value) => json::write(value, out),
    }
}

fn written(schemas: &Schemas, ty: &Type, value: &Value) -> Vec<u8> {
    match ty {
        Type::Ref(id) => schemas.to_vec(*id, value),
        _ => json::to_vec(value),
    }
}

/// Go's name of a field.
fn go_name(field: &Field) -> Cow<'_, str> {
    if let Some(name) = &field.notes.go_name {
        return Cow::Borrowed(name);
    }
    let mut letters = field.name.chars();
    let first = letters.next().map(|first| first.to_ascii_uppercase());
    Cow::Owned(first.into_iter().chain(letters).collect())
}
