//! Writes a tree as compact JSON, with the same bytes as Go's encoder for the same data.

use super::find;
use super::number::write_float;
use crate::value::Value;

/// Appends `value` in compact form. Members are written in the order of the map, which is sorted.
pub fn write(value: &Value, out: &mut Vec<u8>) {
    match value {
        Value::Null => out.extend_from_slice(b"null"),
        Value::Bool(true) => out.extend_from_slice(b"true"),
        Value::Bool(false) => out.extend_from_slice(b"false"),
        Value::Int(number) => write_int(*number, out),
        Value::Float(number) => write_float(*number, out),
        Value::String(text) => write_string(text, out),
        Value::Array(items) => {
            out.push(b'[');
            for (index, item) in items.iter().enumerate() {
                if index > 0 {
                    out.push(b',');
                }
                write(item, out);
            }
            out.push(b']');
        }
        Value::Object(map) => {
            if let Some(shared) = map.shared() {
                out.extend_from_slice(shared.text().as_bytes());
                return;
            }
            out.push(b'{');
            for (index, (key, item)) in map.iter().enumerate() {
                if index > 0 {
                    out.push(b',');
                }
                write_string(key, out);
                out.push(b':');
                write(item, out);
            }
            out.push(b'}');
        }
    }
}

/// Returns the compact form as bytes.
pub fn to_vec(value: &Value) -> Vec<u8> {
    let mut out = Vec::with_capacity(256);
    write(value, &mut out);
    out
}

/// Returns the compact form as text.
pub fn to_string(value: &Value) -> String {
    String::from_utf8(to_vec(value)).expect("only text was written")
}

/// Appends an integer in decimal.
pub(crate) fn write_int(number: i64, out: &mut Vec<u8>) {
    let mut digits = [0u8; 20];
    let mut at = digits.len();
    let mut rest = number.unsigned_abs();
    loop {
        at -= 1;
        digits[at] = b'0' + (rest % 10) as u8;
        rest /= 10;
        if rest == 0 {
            break;
        }
    }
    if number < 0 {
        out.push(b'-');
    }
    out.extend_from_slice(&digits[at..]);
}

/// Appends `text` in quotes. Escapes the characters that Go escapes by default: quotes, controls,
/// `<`, `>`, `&` and the line separators U+2028 and U+2029.
pub fn write_string(text: &str, out: &mut Vec<u8>) {
    let bytes = text.as_bytes();
    out.reserve(bytes.len() + 2);
    out.push(b'"');
    let mut at = find::unescaped(bytes);
    out.extend_from_slice(&bytes[..at]);
    while at < bytes.len() {
        let found = match bytes[at..] {
            [0xE2, 0x80, 0xA8, ..] => {
                out.extend_from_slice(b"\\u2028");
                3
            }
            [0xE2, 0x80, 0xA9, ..] => {
                out.extend_from_slice(b"\\u2029");
                3
            }
            [0xE2, ..] => {
                out.push(0xE2);
                1
            }
            _ => {
                write_escape(bytes[at], out);
                1
            }
        };
        let rest = &bytes[at + found..];
        let plain = find::unescaped(rest);
        out.extend_from_slice(&rest[..plain]);
        at += found + plain;
    }
    out.push(b'"');
}

fn write_escape(byte: u8, out: &mut Vec<u8>) {
    let short = match byte {
        b'"' | b'\\' => byte,
        0x08 => b'b',
        0x0C => b'f',
        b'\n' => b'n',
        b'\r' => b'r',
        b'\t' => b't',
        _ => {
            const HEX: &[u8; 16] = b"0123456789abcdef";
            out.extend_from_slice(b"\\u00");
            out.push(HEX[usize::from(byte >> 4)]);
            out.push(HEX[usize::from(byte & 15)]);
            return;
        }
    };
    out.extend_from_slice(&[b'\\', short]);
}
