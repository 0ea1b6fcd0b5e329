//! Values as parts of paths: equality and order across number types, and Go's ways to print them.

use std::cmp::Ordering;
use std::fmt::Write;

use polyplane_apimachinery::complaints::{BoundedText, STEP_BYTES_MAX};
use polyplane_apimachinery::json::write_float_verb;
use polyplane_apimachinery::quote::quote;
use polyplane_apimachinery::value::Value;

/// Returns true if two values are equal. The numbers 1 and 1.0 are.
pub fn equal(left: &Value, right: &Value) -> bool {
    match (left, right) {
        (Value::Object(left), Value::Object(right)) => {
            left.len() == right.len()
                && left
                    .iter()
                    .zip(right.iter())
                    .all(|((a, left), (b, right))| a == b && equal(left, right))
        }
        (Value::Array(left), Value::Array(right)) => {
            left.len() == right.len()
                && left
                    .iter()
                    .zip(right)
                    .all(|(left, right)| equal(left, right))
        }
        (Value::Float(_) | Value::Int(_), Value::Float(_) | Value::Int(_)) => {
            order(left, right) == Ordering::Equal
        }
        _ => left == right,
    }
}

/// Orders any two values: numbers, texts, booleans, lists, objects, `null`.
pub fn order(left: &Value, right: &Value) -> Ordering {
    match (left, right) {
        (Value::Int(left), Value::Int(right)) => left.cmp(right),
        (Value::Float(left), Value::Float(right)) => order_floats(*left, *right),
        (Value::Int(left), Value::Float(right)) => order_int(*left, *right),
        (Value::Float(left), Value::Int(right)) => order_int(*right, *left).reverse(),
        (Value::String(left), Value::String(right)) => left.as_str().cmp(right),
        (Value::Bool(left), Value::Bool(right)) => left.cmp(right),
        (Value::Array(left), Value::Array(right)) => {
            let pairs = left.iter().zip(right);
            let mut unequal = pairs.map(|(left, right)| order(left, right));
            let first = unequal.find(|order| order.is_ne());
            first.unwrap_or_else(|| left.len().cmp(&right.len()))
        }
        (Value::Object(left), Value::Object(right)) => {
            let pairs = left.iter().zip(right.iter());
            let mut unequal =
                pairs.map(|((a, left), (b, right))| a.cmp(b).then_with(|| order(left, right)));
            let first = unequal.find(|order| order.is_ne());
            first.unwrap_or_else(|| left.len().cmp(&right.len()))
        }
        (left, right) => rank(left).cmp(&rank(right)),
    }
}

/// Orders a whole number and a fraction by what they are exactly. By the nearest fraction, as upstream does, two
/// different whole numbers would equal one fraction: no order that one can sort by.
fn order_int(left: i64, right: f64) -> Ordering {
    let by_nearest = order_floats(left as f64, right);
    by_nearest.then_with(|| i128::from(left).cmp(&(right as i128)))
}

fn order_floats(left: f64, right: f64) -> Ordering {
    left.partial_cmp(&right).unwrap_or(Ordering::Equal)
}

fn rank(value: &Value) -> u8 {
    match value {
        Value::Int(_) | Value::Float(_) => 0,
        Value::String(_) => 1,
        Value::Bool(_) => 2,
        Value::Array(_) => 3,
        Value::Object(_) => 4,
        Value::Null => 5,
    }
}

/// Appends a value as it is shown in paths: texts are quoted. Ends where the text is cut.
pub(crate) fn show(value: &Value, out: &mut BoundedText) {
    if out.is_cut() {
        return;
    }
    match value {
        Value::Null => out.push("null"),
        // What follows so many bytes is cut anyway, and is not worth quoting.
        Value::String(text) => out.push(&quote(
            &text[..text.floor_char_boundary(2 * STEP_BYTES_MAX)],
        )),
        Value::Array(items) => {
            out.push("[");
            for (at, item) in items.iter().enumerate() {
                if out.is_cut() {
                    return;
                }
                if at > 0 {
                    out.push(",");
                }
                show(item, out);
            }
            out.push("]");
        }
        Value::Object(members) => {
            for (name, value) in members.iter() {
                if out.is_cut() {
                    return;
                }
                out.push(name);
                out.push("=");
                show(value, out);
            }
        }
        Value::Bool(_) | Value::Int(_) | Value::Float(_) => {
            let mut text = String::new();
            print(value, &mut text);
            out.push(&text);
        }
    }
}

/// Appends a value as Go's `%v` prints it.
pub(crate) fn print(value: &Value, out: &mut String) {
    match value {
        Value::Null => out.push_str("<nil>"),
        Value::Bool(truth) => out.push_str(if *truth { "true" } else { "false" }),
        Value::Int(number) => {
            let _ = write!(out, "{number}");
        }
        Value::Float(number) => {
            let mut digits = Vec::new();
            write_float_verb(*number, &mut digits);
            out.push_str(&String::from_utf8_lossy(&digits));
        }
        Value::String(text) => out.push_str(text),
        Value::Array(items) => {
            out.push('[');
            for (at, item) in items.iter().enumerate() {
                if at > 0 {
                    out.push(' ');
                }
                print(item, out);
            }
            out.push(']');
        }
        Value::Object(members) => {
            out.push_str("map[");
            for (at, (name, value)) in members.iter().enumerate() {
                if at > 0 {
                    out.push(' ');
                }
                out.push_str(name);
                out.push(':');
                print(value, out);
            }
            out.push(']');
        }
    }
}

/// Appends a value as Go's `%#v` prints it.
pub(crate) fn print_syntax(value: &Value, out: &mut String) {
    match value {
        Value::Null => out.push_str("interface {}(nil)"),
        Value::Bool(_) | Value::Int(_) | Value::Float(_) => print(value, out),
        Value::String(text) => out.push_str(&quote(text)),
        Value::Array(items) => {
            out.push_str("[]interface {}{");
            for (at, item) in items.iter().enumerate() {
                if at > 0 {
                    out.push_str(", ");
                }
                print_syntax(item, out);
            }
            out.push('}');
        }
        Value::Object(members) => {
            out.push_str("map[string]interface {}{");
            for (at, (name, value)) in members.iter().enumerate() {
                if at > 0 {
                    out.push_str(", ");
                }
                out.push_str(&quote(name));
                out.push(':');
                print_syntax(value, out);
            }
            out.push('}');
        }
    }
}
