//! Splits an expression into tokens.

use crate::source::Issue;

/// The kind of a token.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Kind {
    /// A name.
    Name,
    /// A name between backticks, for fields.
    Quoted,
    /// A whole number.
    Int,
    /// A whole number with `u` at its end.
    Uint,
    /// A number with a fraction or an exponent.
    Float,
    /// A text.
    Text,
    /// Bytes.
    Bytes,
    /// `true`, `false` or `null`.
    Word,
    /// An operator, a bracket or `in`.
    Mark,
    /// The end.
    End,
}

/// A token and the position at which it begins, in characters.
#[derive(Debug, Clone)]
pub(super) struct Token {
    pub kind: Kind,
    /// The text as written.
    pub text: String,
    pub at: usize,
}

impl Token {
    /// Returns true for the mark `text`.
    pub fn is(&self, text: &str) -> bool {
        self.kind == Kind::Mark && self.text == text
    }
}

const MARKS: [&str; 24] = [
    "==", "!=", "<=", ">=", "&&", "||", "<", ">", "[", "]", "{", "}", "(", ")", ".", ",", "-", "!",
    "?", ":", "+", "*", "/", "%",
];

/// Returns the tokens, the end last, and complaints about text that is no token.
pub(super) fn tokens(letters: &[char]) -> (Vec<Token>, Vec<Issue>) {
    let (mut tokens, mut issues) = (Vec::new(), Vec::new());
    let mut at = 0;
    while at < letters.len() {
        let rest = &letters[at..];
        let skipped = blank(rest);
        if skipped > 0 {
            at += skipped;
            continue;
        }
        match word(rest) {
            Ok((kind, length)) => {
                tokens.push(Token {
                    kind,
                    text: rest[..length].iter().collect(),
                    at,
                });
                at += length;
            }
            // The lexer reads on until no token can begin like that, and skips what it read.
            Err(read) => {
                let bad: String = rest.iter().take(read + 1).collect();
                let text = format!("Syntax error: token recognition error at: '{bad}'");
                issues.push(Issue::at(at, text));
                at += read + 1;
            }
        }
    }
    tokens.push(Token {
        kind: Kind::End,
        text: "<EOF>".to_owned(),
        at: letters.len(),
    });
    (tokens, issues)
}

/// Returns the number of characters of white space or comments at the beginning.
fn blank(rest: &[char]) -> usize {
    match rest {
        ['/', '/', ..] => rest
            .iter()
            .position(|letter| *letter == '\n')
            .unwrap_or(rest.len()),
        _ => rest
            .iter()
            .take_while(|letter| [' ', '\t', '\r', '\n', '\u{c}'].contains(letter))
            .count(),
    }
}

/// Returns the longest token at the beginning, or how many characters could begin one.
fn word(rest: &[char]) -> Result<(Kind, usize), usize> {
    let first = rest[0];
    if first.is_ascii_digit() || (first == '.' && rest.get(1).is_some_and(char::is_ascii_digit)) {
        return Ok(number(rest));
    }
    if let Some(found) = quoted(rest) {
        return found;
    }
    if first == '`' {
        let inner = rest[1..]
            .iter()
            .take_while(|letter| is_inner(**letter) || "./- ".contains(**letter))
            .count();
        let closed = inner > 0 && rest.get(inner + 1) == Some(&'`');
        return if closed {
            Ok((Kind::Quoted, inner + 2))
        } else {
            Err(inner + 1)
        };
    }
    if first.is_ascii_alphabetic() || first == '_' {
        let length = rest.iter().take_while(|letter| is_inner(**letter)).count();
        let text: String = rest[..length].iter().collect();
        let kind = match text.as_str() {
            "true" | "false" | "null" => Kind::Word,
            "in" => Kind::Mark,
            _ => Kind::Name,
        };
        return Ok((kind, length));
    }
    let begins = |mark: &&&str| mark.chars().eq(rest.iter().take(mark.len()).copied());
    if let Some(mark) = MARKS.iter().find(begins) {
        return Ok((Kind::Mark, mark.len()));
    }
    Err(usize::from("=&|".contains(first)))
}

fn is_inner(letter: char) -> bool {
    letter.is_ascii_alphanumeric() || letter == '_'
}

fn digits(rest: &[char]) -> usize {
    rest.iter()
        .take_while(|letter| letter.is_ascii_digit())
        .count()
}

fn number(rest: &[char]) -> (Kind, usize) {
    let whole = |length: usize| match rest.get(length) {
        Some('u' | 'U') => (Kind::Uint, length + 1),
        _ => (Kind::Int, length),
    };
    if let ['0', 'x', hex @ ..] = rest {
        let hex = hex
            .iter()
            .take_while(|letter| letter.is_ascii_hexdigit())
            .count();
        if hex > 0 {
            return whole(hex + 2);
        }
    }
    let mut length = digits(rest);
    let mut is_float = false;
    if rest.get(length) == Some(&'.') {
        let fraction = digits(&rest[length + 1..]);
        if fraction > 0 {
            (length, is_float) = (length + 1 + fraction, true);
        }
    }
    if let Some('e' | 'E') = rest.get(length) {
        let sign = usize::from(matches!(rest.get(length + 1), Some('+' | '-')));
        let exponent = digits(rest.get(length + 1 + sign..).unwrap_or(&[]));
        if exponent > 0 {
            (length, is_float) = (length + 1 + sign + exponent, true);
        }
    }
    if is_float {
        (Kind::Float, length)
    } else {
        whole(length)
    }
}

/// Reads a text or bytes, raw or not, in one or three quotes of either kind. `None` if no quote
/// begins here.
fn quoted(rest: &[char]) -> Option<Result<(Kind, usize), usize>> {
    let prefix = rest
        .iter()
        .take(2)
        .take_while(|letter| "rRbB".contains(**letter))
        .count();
    let prefixes: String = rest[..prefix].iter().collect();
    let (is_bytes, is_raw) = match prefixes.to_ascii_lowercase().as_str() {
        "" => (false, false),
        "r" => (false, true),
        "b" => (true, false),
        "br" => (true, true),
        _ => return None,
    };
    let body = &rest[prefix..];
    let quote = *body.first().filter(|letter| ['"', '\''].contains(letter))?;
    let kind = if is_bytes { Kind::Bytes } else { Kind::Text };
    let triple = body.len() >= 3 && body[..3].iter().all(|letter| *letter == quote);
    let width = if triple { 3 } else { 1 };
    match closing(body, quote, width, is_raw) {
        Ok(end) => Some(Ok((kind, prefix + end))),
        // Three quotes without closing ones are an empty text and the beginning of another one.
        Err(_) if triple => Some(Ok((kind, prefix + 2))),
        // Without the quotes the letters before them are a name.
        Err(_) if prefix > 0 => None,
        Err(read) => Some(Err(read)),
    }
}

/// Returns the number of characters up to and with the closing quotes, or how many could be part of
/// the text.
fn closing(body: &[char], quote: char, width: usize, is_raw: bool) -> Result<usize, usize> {
    let mut at = width;
    while let Some(letter) = body.get(at) {
        if *letter == '\\' && !is_raw {
            at += escape(&body[at..]).map_err(|read| at + read)?;
            continue;
        }
        let end = at + width;
        if body.len() >= end && body[at..end].iter().all(|letter| *letter == quote) {
            return Ok(end);
        }
        if width == 1 && ['\n', '\r'].contains(letter) {
            break;
        }
        at += 1;
    }
    Err(at)
}

/// Returns the number of characters of the escape at the beginning, or how many were good.
fn escape(rest: &[char]) -> Result<usize, usize> {
    let hex: fn(&char) -> bool = char::is_ascii_hexdigit;
    let octal: fn(&char) -> bool = |letter| ('0'..='7').contains(letter);
    let (count, is_good) = match rest.get(1) {
        Some('a' | 'b' | 'f' | 'n' | 'r' | 't' | 'v' | '"' | '\'' | '\\' | '?' | '`') => (0, hex),
        Some('x' | 'X') => (2, hex),
        Some('u') => (4, hex),
        Some('U') => (8, hex),
        Some('0'..='3') => (2, octal),
        _ => return Err(1),
    };
    let good = rest[2..]
        .iter()
        .take(count)
        .take_while(|letter| is_good(letter))
        .count();
    if good == count {
        Ok(count + 2)
    } else {
        Err(good + 2)
    }
}
