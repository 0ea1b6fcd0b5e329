//! `Warning` headers: at most one per text, shortened if all texts together are too long.

use http::HeaderValue;

/// Characters of all texts together above which each text is shortened, and above which further
/// shortened texts are dropped. A longer header could exceed what clients and proxies accept.
const TOTAL_CHARS_MAX: usize = 4096;
/// Characters that a shortened text keeps. With more, fewer texts would fit the limit for all.
const TEXT_CHARS_MAX: usize = 256;

/// Returns the headers for `texts`, in order.
pub(crate) fn headers(texts: &[String]) -> Vec<HeaderValue> {
    let mut distinct: Vec<&str> = Vec::with_capacity(texts.len());
    for text in texts {
        if !text.is_empty() && !distinct.contains(&text.as_str()) {
            distinct.push(text);
        }
    }
    let total: usize = distinct.iter().map(|text| text.chars().count()).sum();
    if total <= TOTAL_CHARS_MAX {
        return distinct.into_iter().filter_map(header).collect();
    }
    let mut written = 0;
    let mut headers = Vec::new();
    for text in distinct {
        if written >= TOTAL_CHARS_MAX {
            break;
        }
        let end = text
            .char_indices()
            .nth(TEXT_CHARS_MAX)
            .map_or(text.len(), |(at, _)| at);
        let short = &text[..end];
        if let Some(value) = header(short) {
            written += short.chars().count();
            headers.push(value);
        }
    }
    headers
}

/// Returns the header for a text, or `None` if the text cannot be the value of a header.
fn header(text: &str) -> Option<HeaderValue> {
    if text.chars().any(char::is_control) {
        return None;
    }
    let mut line = String::with_capacity(text.len() + 10);
    line.push_str("299 - \"");
    for character in text.chars() {
        if matches!(character, '"' | '\\') {
            line.push('\\');
        }
        line.push(character);
    }
    line.push('"');
    HeaderValue::from_bytes(line.as_bytes()).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn texts_are_quoted_and_said_once() {
        let texts =
            ["unknown field \"spec.x\"", "", "a\\b", "a\\b", "two\nlines"].map(str::to_owned);
        let lines: Vec<_> = headers(&texts);
        assert_eq!(
            lines,
            [r#"299 - "unknown field \"spec.x\"""#, r#"299 - "a\\b""#]
        );
    }

    #[test]
    fn too_much_text_is_shortened_and_then_left_out() {
        let texts: Vec<String> = (0..30)
            .map(|number| format!("{number:03}{}", "ä".repeat(400)))
            .collect();
        let lines = headers(&texts);
        assert_eq!(lines.len(), 16);
        for line in &lines {
            let text = String::from_utf8(line.as_bytes().to_vec()).expect("UTF-8 stays UTF-8");
            assert_eq!(text.chars().count(), 256 + "299 - \"\"".len());
        }
        assert_eq!(headers(&texts[..10]).len(), 10);
    }
}
