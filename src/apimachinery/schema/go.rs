//! Go's names of types and Go's formatting of values, in the texts that clients see.

use super::{Definition, Field, Schemas, Type};
use crate::json::write_float_verb;
use crate::value::Value;

/// Returns the name of a type of a field, or of an item of it, as Go prints it.
pub(crate) fn type_name(schemas: &Schemas, field: &Field, ty: &Type) -> String {
    let known = field.notes.go_type.as_deref();
    match known.and_then(|text| part(text, &field.ty, ty)) {
        Some(text) => text.to_owned(),
        None => plain_name(schemas, ty),
    }
}

/// Returns the part of the text of the type `whole` that is the text of the type `wanted`.
fn part<'t>(text: &'t str, whole: &Type, wanted: &Type) -> Option<&'t str> {
    if whole == wanted {
        return Some(text);
    }
    match whole {
        Type::List(item) => part(text.strip_prefix("[]")?, item, wanted),
        Type::Map(item) => part(text.strip_prefix("map[")?.split_once(']')?.1, item, wanted),
        Type::Nullable(item) => part(text.strip_prefix('*')?, item, wanted),
        _ => None,
    }
}

/// Returns the package of a definition: its name without its path.
fn package(definition: &Definition) -> &str {
    let path = definition.go.rsplit('/').next().unwrap_or_default();
    match path.split_once('.') {
        Some((package, _)) => package,
        None => definition.name.rsplit('.').nth(1).unwrap_or_default(),
    }
}

fn plain_name(schemas: &Schemas, ty: &Type) -> String {
    match ty {
        Type::String => "string".to_owned(),
        Type::Bool => "bool".to_owned(),
        Type::Int32 => "int32".to_owned(),
        Type::Int64 => "int64".to_owned(),
        Type::Float64 => "float64".to_owned(),
        Type::Bytes => "[]uint8".to_owned(),
        Type::Time => "v1.Time".to_owned(),
        Type::MicroTime => "v1.MicroTime".to_owned(),
        Type::Duration => "v1.Duration".to_owned(),
        Type::Quantity => "resource.Quantity".to_owned(),
        Type::IntOrString => "intstr.IntOrString".to_owned(),
        Type::Raw => "runtime.RawExtension".to_owned(),
        Type::Json => "v1.JSON".to_owned(),
        Type::FieldsV1 => "v1.FieldsV1".to_owned(),
        Type::Ref(id) => struct_type(schemas.get(*id)),
        Type::List(item) => format!("[]{}", plain_name(schemas, item)),
        Type::Map(item) => format!("map[string]{}", plain_name(schemas, item)),
        Type::Nullable(item) => format!("*{}", plain_name(schemas, item)),
        Type::SchemaOrBool(_) => "v1.JSONSchemaPropsOrBool".to_owned(),
        Type::SchemaOrArray(_) => "v1.JSONSchemaPropsOrArray".to_owned(),
        Type::SchemaOrStrings(_) => "v1.JSONSchemaPropsOrStringArray".to_owned(),
    }
}

/// Returns the Go type of a definition, such as `v1.PodSpec`.
pub(crate) fn struct_type(definition: &Definition) -> String {
    format!("{}.{}", package(definition), struct_name(definition))
}

/// Returns the Go type of a definition without package.
pub(crate) fn struct_name(definition: &Definition) -> &str {
    let go = definition.go.rsplit('/').next().unwrap_or_default();
    match go.split_once('.') {
        Some((_, name)) => name,
        None => definition.short_name(),
    }
}

/// The verb with which Go prints the scalars of a tree.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Verb {
    /// The verb `%v`.
    Value,
    /// The verb `%s`, which adds a complaint to values that are not text.
    Text,
}

/// Appends a tree as Go prints `map[string]any` with `%v`.
pub(crate) fn print(value: &Value, out: &mut String) {
    print_as(Verb::Value, value, out);
}

/// Appends a list as Go prints `[]any` with `%v`.
pub(crate) fn print_list(items: &[Value], out: &mut String) {
    print_items(Verb::Value, items, out);
}

/// Appends a tree as Go prints `map[string]any` with this verb.
pub(crate) fn print_as(verb: Verb, value: &Value, out: &mut String) {
    use std::fmt::Write;
    let ty = match value {
        Value::Null | Value::String(_) | Value::Array(_) | Value::Object(_) => "",
        Value::Bool(_) => "bool=",
        Value::Int(_) => "int64=",
        Value::Float(_) => "float64=",
    };
    let complains = verb == Verb::Text && (value.is_null() || !ty.is_empty());
    if complains {
        out.push_str("%!s(");
        out.push_str(ty);
    }
    match value {
        Value::Null => out.push_str("<nil>"),
        Value::Bool(truth) => write!(out, "{truth}").expect("a String takes any text"),
        Value::Int(number) => write!(out, "{number}").expect("a String takes any text"),
        Value::Float(number) => print_float(*number, out),
        Value::String(text) => out.push_str(text),
        Value::Array(items) => print_items(verb, items, out),
        Value::Object(members) => {
            out.push_str("map[");
            for (at, (key, value)) in members.iter().enumerate() {
                if at > 0 {
                    out.push(' ');
                }
                out.push_str(key);
                out.push(':');
                print_as(verb, value, out);
            }
            out.push(']');
        }
    }
    if complains {
        out.push(')');
    }
}

fn print_items(verb: Verb, items: &[Value], out: &mut String) {
    out.push('[');
    for (at, item) in items.iter().enumerate() {
        if at > 0 {
            out.push(' ');
        }
        print_as(verb, item, out);
    }
    out.push(']');
}

/// Appends a float as Go prints it with `%v`.
fn print_float(number: f64, out: &mut String) {
    let mut text = Vec::new();
    write_float_verb(number, &mut text);
    out.push_str(&String::from_utf8_lossy(&text));
}
