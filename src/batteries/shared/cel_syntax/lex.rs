//! Splits an expression into tokens.

use super::Complaint;

/// The kind of a token.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Kind {
    /// A name.
    Name,
    /// A name between backticks, for fields.
    Quoted,
    /// A literal, with its type.
    Literal(&'static str),
    /// An operator, a bracket or `in`.
    Mark,
    /// The end.
    End,
}

/// A token and the position at which it begins, in characters.
#[derive(Debug, Clone)]
pub struct Token {
    /// The token's kind.
    pub kind: Kind,
    /// The token's text as written.
    pub text: String,
    /// The token's position.
    pub at: usize,
}

impl Token {
    /// Returns true for the mark `text`.
    pub fn is(&self, text: &str) -> bool {
        self.kind == Kind::Mark && self.text == text
    }
}

const MARKS: [&str; 25] = [
    "==", "!=", "<=", ">=", "&&", "||", "<", ">", "[", "]", "{", "}", "(", ")", ".", ",", "-", "!",
    "?", ":", "+", "*", "/", "%", "=",
];

/// Returns the tokens of `expression`, the end last, and complaints about text that is no token.
pub fn tokens(expression: &str) -> (Vec<Token>, Vec<Complaint>) {
    let letters: Vec<char> = expression.chars().collect();
    let (mut tokens, mut complaints) = (Vec::new(), Vec::new());
    let mut at = 0;
    while at < letters.len() {
        let rest = &letters[at..];
        let skipped = blank(rest);
        if skipped > 0 {
            at += skipped;
            continue;
        }
        match word(rest) {
            Some((kind, length)) => {
                tokens.push(Token {
                    kind,
                    text: rest[..length].iter().collect(),
                    at,
                });
                at += length;
            }
            None => {
                let text = format!(
                    "Syntax error: token recognition error at: '{}'",
                    shown(rest[0])
                );
                complaints.push(Complaint { at, text });
                at += 1;
            }
        }
    }
    tokens.push(Token {
        kind: Kind::End,
        text: "<EOF>".to_owned(),
        at: letters.len(),
    });
    (tokens, complaints)
}

fn shown(letter: char) -> String {
    match letter {
        '\n' => "\\n".to_owned(),
        '\t' => "\\t".to_owned(),
        '\r' => "\\r".to_owned(),
        other => other.to_string(),
    }
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

fn word(rest: &[char]) -> Option<(Kind, usize)> {
    let string = string(rest);
    if string.is_some() {
        return string;
    }
    let first = rest[0];
    if first.is_ascii_digit() || (first == '.' && rest.get(1).is_some_and(char::is_ascii_digit)) {
        return Some(number(rest));
    }
    if first == '`' {
        let inner = rest[1..]
            .iter()
            .take_while(|letter| is_inner(**letter) || "./- ".contains(**letter))
            .count();
        let closed = inner > 0 && rest.get(inner + 1) == Some(&'`');
        return closed.then_some((Kind::Quoted, inner + 2));
    }
    if first.is_ascii_alphabetic() || first == '_' {
        let length = rest.iter().take_while(|letter| is_inner(**letter)).count();
        let text: String = rest[..length].iter().collect();
        let kind = match text.as_str() {
            "true" | "false" => Kind::Literal("bool"),
            "null" => Kind::Literal("null"),
            "in" => Kind::Mark,
            _ => Kind::Name,
        };
        return Some((kind, length));
    }
    let mark = MARKS
        .iter()
        .find(|mark| mark.chars().eq(rest.iter().take(mark.len()).copied()))?;
    // A single equals sign is a token, but no rule of the grammar uses it.
    Some((Kind::Mark, mark.len()))
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
    let unsigned = |length: usize| match rest.get(length) {
        Some('u' | 'U') => (Kind::Literal("uint"), length + 1),
        _ => (Kind::Literal("int"), length),
    };
    if let ['0', 'x', ..] = rest {
        let hex = rest[2..]
            .iter()
            .take_while(|letter| letter.is_ascii_hexdigit())
            .count();
        if hex > 0 {
            return unsigned(hex + 2);
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
        (Kind::Literal("double"), length)
    } else {
        unsigned(length)
    }
}

/// Parses a text or bytes, raw or not, in one or three quotes of either kind.
fn string(rest: &[char]) -> Option<(Kind, usize)> {
    let prefix = rest
        .iter()
        .take(2)
        .take_while(|letter| "rRbB".contains(**letter))
        .count();
    let prefixes: Vec<char> = rest[..prefix]
        .iter()
        .map(char::to_ascii_lowercase)
        .collect();
    let (is_bytes, is_raw) = match prefixes.as_slice() {
        [] => (false, false),
        ['r'] => (false, true),
        ['b'] => (true, false),
        ['b', 'r'] => (true, true),
        _ => return None,
    };
    let body = &rest[prefix..];
    let quote = *body.first().filter(|letter| ['"', '\''].contains(letter))?;
    let triple = body.len() >= 3 && body[..3].iter().all(|letter| *letter == quote);
    let kind = Kind::Literal(if is_bytes { "bytes" } else { "string" });
    let width = if triple { 3 } else { 1 };
    let mut at = width;
    while at < body.len() {
        if body[at] == '\\' && !is_raw {
            at += 2;
            continue;
        }
        let ends =
            body.len() >= at + width && body[at..at + width].iter().all(|letter| *letter == quote);
        if ends {
            return Some((kind, prefix + at + width));
        }
        if !triple && ['\n', '\r'].contains(&body[at]) {
            break;
        }
        at += 1;
    }
    // Three quotes without closing ones are an empty text and the beginning of another text.
    triple.then_some((kind, prefix + 2))
}
