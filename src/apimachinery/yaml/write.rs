//! Writes a tree as YAML text: block style, as Go's libraries print it. What is nested so deeply that its
//! indentation would be many times as long as its text is written in flow style, on one line.

use super::float_text;
use super::read::whole_or_float;
use super::scalar::{Layout, Role, Writer};
use crate::value::{Map, Value};

/// Bytes beyond which a key is written in the long form, behind a question mark.
const SIMPLE_KEY_BYTES_MAX: usize = 128;

/// Appends `value` as a YAML document, in [`Layout::Narrow`].
pub fn write(value: &Value, out: &mut Vec<u8>) {
    write_as(value, Layout::Narrow, out);
}

/// Appends `value` as a YAML document.
pub fn write_as(value: &Value, layout: Layout, out: &mut Vec<u8>) {
    let mut writer = Writer::new(out, layout);
    node(value, &mut writer, Parent::Document);
    writer.end();
}

/// The parent of a node.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Parent {
    Document,
    Sequence,
    Mapping,
}

fn node(value: &Value, writer: &mut Writer<'_>, parent: Parent) {
    match value {
        Value::Array(items) if items.is_empty() => writer.indicator("[]"),
        Value::Array(items) => {
            let below_its_key = parent == Parent::Mapping && !writer.indention;
            let indentless = below_its_key && writer.layout == Layout::Narrow;
            match writer.affords(items.len(), writer.level(indentless)) {
                true => sequence(items, writer, indentless),
                false => flow(value, writer),
            }
        }
        Value::Object(map) if map.is_empty() => writer.indicator("{}"),
        Value::Object(map) => match writer.affords(map.len(), writer.level(false)) {
            true => mapping(map, writer),
            false => flow(value, writer),
        },
        Value::String(text) => writer.text(text, Role::Value),
        Value::Null | Value::Bool(_) | Value::Int(_) | Value::Float(_) => plain(value, writer),
    }
}

/// Writes what is neither text nor has members.
fn plain(value: &Value, writer: &mut Writer<'_>) {
    match value {
        Value::Null => writer.plain("null"),
        Value::Bool(truth) => writer.plain(if *truth { "true" } else { "false" }),
        Value::Int(number) => writer.plain(&number.to_string()),
        Value::Float(number) => match whole_or_float(*number) {
            Value::Int(whole) => writer.plain(&whole.to_string()),
            _ => writer.plain(&number_text(*number)),
        },
        Value::String(_) | Value::Array(_) | Value::Object(_) => {}
    }
}

/// Writes a value in flow style, on one line.
fn flow(value: &Value, writer: &mut Writer<'_>) {
    match value {
        Value::Array(items) => {
            writer.open('[');
            for (at, item) in items.iter().enumerate() {
                if at > 0 {
                    writer.comma();
                }
                flow(item, writer);
            }
            writer.close(']');
        }
        Value::Object(map) => {
            writer.open('{');
            for (at, (key, value)) in members(map, writer.layout).into_iter().enumerate() {
                if at > 0 {
                    writer.comma();
                }
                if key.len() <= SIMPLE_KEY_BYTES_MAX {
                    writer.quoted(key);
                    writer.colon();
                } else {
                    writer.indicator("?");
                    writer.quoted(key);
                    writer.indicator(":");
                }
                flow(value, writer);
            }
            writer.close('}');
        }
        Value::String(text) => writer.quoted(text),
        Value::Null | Value::Bool(_) | Value::Int(_) | Value::Float(_) => plain(value, writer),
    }
}

fn number_text(number: f64) -> String {
    // Whole numbers up to 64 bits unsigned stay whole numbers.
    let mut text = Vec::new();
    crate::json::write_float(number, &mut text);
    let text = String::from_utf8(text).expect("only digits were written");
    if text.parse::<u64>().is_ok() {
        text
    } else {
        float_text(number)
    }
}

fn sequence(items: &[Value], writer: &mut Writer<'_>, indentless: bool) {
    let before = writer.increase_indent(indentless);
    for item in items {
        writer.new_line();
        writer.item_indicator("-");
        node(item, writer, Parent::Sequence);
    }
    writer.indent = before;
}

fn mapping(map: &Map, writer: &mut Writer<'_>) {
    let before = writer.increase_indent(false);
    for (key, value) in members(map, writer.layout) {
        writer.new_line();
        let simple = key.len() <= SIMPLE_KEY_BYTES_MAX
            && !key.contains(['\n', '\r', '\u{85}', '\u{2028}', '\u{2029}']);
        if simple {
            writer.text(key, Role::SimpleKey);
            writer.colon();
        } else {
            writer.item_indicator("?");
            writer.text(key, Role::Value);
            writer.new_line();
            writer.item_indicator(":");
        }
        node(value, writer, Parent::Mapping);
    }
    writer.indent = before;
}

/// Returns the members of a mapping in the order of a layout.
fn members(map: &Map, layout: Layout) -> Vec<(&str, &Value)> {
    match layout {
        Layout::Narrow => sort_naturally(map.iter().collect()),
        Layout::Wide => map.iter().collect(),
    }
}

/// Sorts members into the natural order of their keys. That order is upstream's and has cycles
/// (`a1b`, `a9`, `a10`), for which the standard sort may panic; a merge sort never does.
fn sort_naturally<'a>(members: Vec<(&'a str, &'a Value)>) -> Vec<(&'a str, &'a Value)> {
    if members.len() < 2 {
        return members;
    }
    let (left, right) = members.split_at(members.len() / 2);
    let mut left = sort_naturally(left.to_vec()).into_iter().peekable();
    let mut right = sort_naturally(right.to_vec()).into_iter().peekable();
    let mut sorted = Vec::with_capacity(members.len());
    while let (Some(a), Some(b)) = (left.peek(), right.peek()) {
        let next = if less(b.0, a.0) {
            right.next()
        } else {
            left.next()
        };
        sorted.extend(next);
    }
    sorted.extend(left);
    sorted.extend(right);
    sorted
}

/// Returns true if `a` sorts before `b`: letters after everything else, digits by the number they
/// form.
fn less(a: &str, b: &str) -> bool {
    let Some(at) = a.chars().zip(b.chars()).position(|(a, b)| a != b) else {
        return a.len() < b.len();
    };
    let tail = |text: &str| text.chars().skip(at).collect::<Vec<char>>();
    let (first, second) = (tail(a), tail(b));
    let (x, y) = (first[0], second[0]);
    match (x.is_alphabetic(), y.is_alphabetic()) {
        (true, true) => return x < y,
        (false, false) => {}
        (_, letter) => return letter,
    }
    // A zero inside a number is not a leading zero.
    let inside = (x == '0' || y == '0')
        && a.chars()
            .take(at)
            .collect::<Vec<char>>()
            .iter()
            .rev()
            .take_while(|c| c.is_numeric())
            .any(|c| *c != '0');
    let number = |digits: &[char]| {
        let length = digits.iter().take_while(|c| c.is_ascii_digit()).count();
        let start = i64::from(inside);
        let value = digits[..length].iter().fold(start, |value, digit| {
            value
                .wrapping_mul(10)
                .wrapping_add(i64::from(u32::from(*digit) - u32::from('0')))
        });
        (value, length)
    };
    let (a, b) = (number(&first), number(&second));
    if a == b { x < y } else { a < b }
}
