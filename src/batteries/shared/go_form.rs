//! Objects as texts about them show upstream's internal structures: with the names of Go fields,
//! in their order, and with every field that is not set.

use polyplane_apimachinery::field_error::Bad;
use polyplane_apimachinery::{Value, json};

/// A structure: its fields in order.
pub type GoStruct = &'static [GoField];

/// One field of a structure.
#[derive(Debug)]
pub struct GoField {
    /// Name in the tree.
    pub json: &'static str,
    /// Name in Go.
    pub go: &'static str,
    /// What stands for it.
    pub form: GoForm,
}

/// What stands for a value.
#[derive(Debug, Clone, Copy)]
pub enum GoForm {
    /// The value, or this JSON if there is none.
    Plain(&'static str),
    /// A structure that is always there.
    Struct(GoStruct),
    /// A structure, or null.
    Pointer(GoStruct),
    /// A list of structures, or null.
    List(GoStruct),
    /// A structure that keeps the names of the tree and leaves out what is not set, or null; these
    /// are its fields in order.
    Tagged(&'static [&'static str]),
}

/// A field that holds a plain value.
pub const fn plain(json: &'static str, go: &'static str, zero: &'static str) -> GoField {
    GoField {
        json,
        go,
        form: GoForm::Plain(zero),
    }
}

/// A field that holds something else.
pub const fn field(json: &'static str, go: &'static str, form: GoForm) -> GoField {
    GoField { json, go, form }
}

/// The JSON of a structure.
pub fn show(structure: GoStruct, value: &Value) -> String {
    let mut out = String::new();
    write_struct(structure, value, &mut out);
    out
}

/// The JSON of one field of an object.
pub fn show_field(field: &GoField, object: &Value) -> String {
    let mut out = String::new();
    write_form(field.form, &object[field.json], &mut out);
    out
}

/// The bad value of an error that shows a structure.
pub fn bad(structure: GoStruct, value: &Value) -> Bad {
    if value.is_null() {
        Bad::Plain(Value::Null)
    } else {
        Bad::Shown(show(structure, value).into())
    }
}

/// The bad value of an error that shows a list of texts, which may not be there.
pub fn texts(value: &Value) -> Bad {
    Bad::Json(value.clone())
}

fn write_struct(structure: GoStruct, value: &Value, out: &mut String) {
    out.push('{');
    for (at, field) in structure.iter().enumerate() {
        if at > 0 {
            out.push(',');
        }
        out.push('"');
        out.push_str(field.go);
        out.push_str("\":");
        write_form(field.form, &value[field.json], out);
    }
    out.push('}');
}

fn write_form(form: GoForm, value: &Value, out: &mut String) {
    match (form, value) {
        (GoForm::Plain(zero), Value::Null) => out.push_str(zero),
        (GoForm::Plain(_), value) => out.push_str(&json::to_string(value)),
        (GoForm::Struct(structure), value) => write_struct(structure, value, out),
        (GoForm::Pointer(_) | GoForm::List(_) | GoForm::Tagged(_), Value::Null) => {
            out.push_str("null")
        }
        (GoForm::Tagged(names), value) => {
            let set = names.iter().filter(|name| !value[**name].is_null());
            let members = set.map(|name| format!("\"{name}\":{}", json::to_string(&value[*name])));
            let members: Vec<String> = members.collect();
            out.push_str(&format!("{{{}}}", members.join(",")));
        }
        (GoForm::Pointer(structure), value) => write_struct(structure, value, out),
        (GoForm::List(structure), value) => {
            out.push('[');
            for (at, item) in value.as_array().unwrap_or(&[]).iter().enumerate() {
                if at > 0 {
                    out.push(',');
                }
                write_struct(structure, item, out);
            }
            out.push(']');
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use polyplane_apimachinery::json;

    const INNER: GoStruct = &[plain("a", "A", "0")];
    const OUTER: GoStruct = &[
        plain("name", "Name", "\"\""),
        field("inner", "Inner", GoForm::Pointer(INNER)),
        field("list", "List", GoForm::List(INNER)),
        field("tagged", "Tagged", GoForm::Tagged(&["b", "a"])),
    ];

    #[test]
    fn every_field_is_shown_in_order() {
        assert_eq!(
            show(OUTER, &json!({})),
            r#"{"Name":"","Inner":null,"List":null,"Tagged":null}"#
        );
        let full = json!({"name": "x", "inner": {}, "list": [{"a": 7i64}], "tagged": {"a": 1i64, "b": 2i64}});
        assert_eq!(
            show(OUTER, &full),
            r#"{"Name":"x","Inner":{"A":0},"List":[{"A":7}],"Tagged":{"b":2,"a":1}}"#
        );
    }
}
