//! The values of literals.

use std::sync::Arc;

use crate::ast::Literal;

use super::lex::{Kind, Token};

/// Returns the value of a literal, `negative` if a minus belongs to it, or a complaint.
pub(super) fn value(token: &Token, negative: bool) -> Result<Literal, &'static str> {
    let text = token.text.as_str();
    match token.kind {
        Kind::Int => int(text, negative).map(Literal::Int),
        Kind::Uint => uint(&text[..text.len() - 1])
            .map(Literal::Uint)
            .ok_or("invalid uint literal"),
        Kind::Float => {
            let number: f64 = text.parse().map_err(|_| "invalid double literal")?;
            if number.is_infinite() {
                return Err("invalid double literal");
            }
            Ok(Literal::Double(if negative { -number } else { number }))
        }
        Kind::Text => {
            let bytes = unquote(text, false)?;
            let text = String::from_utf8(bytes).map_err(|_| "invalid unicode code point")?;
            Ok(Literal::String(text.into()))
        }
        Kind::Bytes => Ok(Literal::Bytes(Arc::from(unquote(&text[1..], true)?))),
        _ => Ok(match text {
            "true" => Literal::Bool(true),
            "false" => Literal::Bool(false),
            _ => Literal::Null,
        }),
    }
}

fn uint(text: &str) -> Option<u64> {
    match text.strip_prefix("0x") {
        Some(hex) => u64::from_str_radix(hex, 16).ok(),
        None => text.parse().ok(),
    }
}

fn int(text: &str, negative: bool) -> Result<i64, &'static str> {
    let size = uint(text).map(i128::from).ok_or("invalid int literal")?;
    i64::try_from(if negative { -size } else { size }).map_err(|_| "invalid int literal")
}

/// Returns what a text between quotes stands for.
fn unquote(text: &str, is_bytes: bool) -> Result<Vec<u8>, &'static str> {
    let text = text.replace("\r\n", "\n").replace('\r', "\n");
    let raw = text.starts_with(['r', 'R']);
    let body = if raw { &text[1..] } else { text.as_str() };
    let triple = body.len() >= 6 && (body.starts_with("'''") || body.starts_with("\"\"\""));
    let width = if triple { 3 } else { 1 };
    let inner = body
        .get(width..body.len().saturating_sub(width))
        .ok_or("unable to unescape string")?;
    if raw {
        return Ok(inner.as_bytes().to_vec());
    }
    unescape(inner, is_bytes)
}

fn unescape(inner: &str, is_bytes: bool) -> Result<Vec<u8>, &'static str> {
    let mut made = Vec::with_capacity(inner.len());
    let mut letters = inner.chars();
    while let Some(letter) = letters.next() {
        if letter != '\\' {
            made.extend_from_slice(letter.encode_utf8(&mut [0; 4]).as_bytes());
            continue;
        }
        let kind = letters
            .next()
            .ok_or("unable to unescape string, found '\\' as last character")?;
        let (count, radix, mut code) = match kind {
            'x' | 'X' => (2, 16, 0),
            'u' if !is_bytes => (4, 16, 0),
            'U' if !is_bytes => (8, 16, 0),
            '0'..='3' => (2, 8, kind.to_digit(8).unwrap_or(0)),
            other => {
                made.push(simple(other).ok_or("unable to unescape string")?);
                continue;
            }
        };
        for _ in 0..count {
            let digit = letters.next().and_then(|letter| letter.to_digit(radix));
            let digit = digit.ok_or("unable to unescape string")?;
            code = code * radix + digit;
        }
        if is_bytes {
            made.push(u8::try_from(code).map_err(|_| "unable to unescape string")?);
        } else {
            let letter = char::from_u32(code).ok_or("invalid unicode code point")?;
            made.extend_from_slice(letter.encode_utf8(&mut [0; 4]).as_bytes());
        }
    }
    Ok(made)
}

fn simple(letter: char) -> Option<u8> {
    Some(match letter {
        'a' => 7,
        'b' => 8,
        'f' => 12,
        'n' => b'\n',
        'r' => b'\r',
        't' => b'\t',
        'v' => 11,
        '\\' | '\'' | '"' | '`' | '?' => u8::try_from(letter).ok()?,
        _ => return None,
    })
}
