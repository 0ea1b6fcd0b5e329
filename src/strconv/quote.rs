//! Strings as Go's `%q` and `strconv.Quote` print them, which many error texts contain.

use std::fmt::Write;
use std::sync::LazyLock;

use regex::Regex;

/// The characters beyond ASCII that Go calls printable: letters, marks, numbers, punctuation and
/// symbols of Unicode 15.0.0, which is the version of Go 1.26.
static PRINTABLE: LazyLock<Regex> = LazyLock::new(|| {
    Regex::new(r"^[[\p{L}\p{M}\p{N}\p{P}\p{S}]&&\p{Age=15.0}]$")
        .expect("a constant pattern compiles")
});

/// Quotes `text` as Go does.
pub fn quote(text: &str) -> String {
    let mut out = String::with_capacity(text.len() + 2);
    push_quote(text, &mut out);
    out
}

/// Appends `text`, quoted as Go does.
pub fn push_quote(text: &str, out: &mut String) {
    let is_plain = |byte: u8| (b' '..=b'~').contains(&byte) && !matches!(byte, b'"' | b'\\');
    out.push('"');
    if text.bytes().all(is_plain) {
        out.push_str(text);
    } else {
        for character in text.chars() {
            push_quoted(character, out);
        }
    }
    out.push('"');
}

/// Returns true if Go's `unicode.IsPrint` does: for graphic characters and the ASCII space.
pub fn is_print(character: char) -> bool {
    if character.is_ascii() {
        return (' '..='~').contains(&character);
    }
    PRINTABLE.is_match(character.encode_utf8(&mut [0; 4]))
}

fn push_quoted(character: char, out: &mut String) {
    let written = match character {
        '"' | '\\' => write!(out, "\\{character}"),
        '\u{7}' => out.write_str("\\a"),
        '\u{8}' => out.write_str("\\b"),
        '\u{c}' => out.write_str("\\f"),
        '\n' => out.write_str("\\n"),
        '\r' => out.write_str("\\r"),
        '\t' => out.write_str("\\t"),
        '\u{b}' => out.write_str("\\v"),
        _ if is_print(character) => out.write_char(character),
        '\0'..' ' | '\u{7f}' => write!(out, "\\x{:02x}", u32::from(character)),
        '\u{80}'..='\u{ffff}' => write!(out, "\\u{:04x}", u32::from(character)),
        _ => write!(out, "\\U{:08x}", u32::from(character)),
    };
    written.expect("a String takes all characters");
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn text_is_quoted_as_go_does() {
        assert_eq!(quote("a\"b\\c\n\t\u{7f}\u{0}"), r#""a\"b\\c\n\t\x7f\x00""#);
        assert_eq!(
            quote("é\u{301}\u{a0}\u{200b}\u{1f600}\u{e000}"),
            "\"é\u{301}\\u00a0\\u200b\u{1f600}\\ue000\""
        );
    }

    #[test]
    fn letters_that_go_does_not_know_yet_are_escaped() {
        // The first one is new in Unicode 15.0, the second one in 15.1, the third one in 16.0.
        let text = "\u{1df25}\u{2ebf0}\u{1c89}";
        assert_eq!(quote(text), "\"\u{1df25}\\U0002ebf0\\u1c89\"");
    }
}
