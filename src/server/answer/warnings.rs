//! `Warning` headers, one for each text, shortened if all texts together are too long.

use http::HeaderValue;

/// Characters of all texts together above which each text is shortened, and above which further
/// shortened texts are dropped. A longer header could exceed what clients and proxies accept.
const TOTAL_CHARS_MAX: usize = 4096;
/// Characters that a shortened text keeps. With more, fewer texts would fit the limit for all.
const TEXT_CHARS_MAX: usize = 256;

/// Returns the headers for `texts`, in order. The registry has each text once. As upstream, which adds one text
/// after the other: until the limit is exceeded, texts that can be no header do not count, and the one that
/// exceeds it is added shortened, as are those before it.
pub(crate) fn headers(texts: &[String]) -> Vec<HeaderValue> {
    if texts.is_empty() {
        return Vec::new();
    }
    let texts = texts.iter().map(String::as_str);
    let texts: Vec<&str> = texts.filter(|text| !text.is_empty()).collect();
    let mut total = 0;
    let exceeding = texts.iter().position(|text| {
        if can_be_header(text) {
            total += text.chars().count();
        }
        total > TOTAL_CHARS_MAX
    });
    match exceeding {
        None => texts.into_iter().filter_map(header).collect(),
        Some(exceeding) => shortened(&texts, exceeding),
    }
}

/// Returns the headers for texts of which the one at `exceeding` is the first that exceeds the limit.
fn shortened(texts: &[&str], exceeding: usize) -> Vec<HeaderValue> {
    let mut written = 0;
    let mut headers = Vec::new();
    for (at, text) in texts.iter().enumerate() {
        if at > exceeding && written >= TOTAL_CHARS_MAX {
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

/// Returns whether a text can be the value of a header.
fn can_be_header(text: &str) -> bool {
    !text.chars().any(char::is_control)
}

/// Returns the header for a text, or `None` if the text cannot be the value of a header.
fn header(text: &str) -> Option<HeaderValue> {
    if !can_be_header(text) {
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
    fn texts_are_quoted_if_they_can_be_headers() {
        let texts = ["unknown field \"spec.x\"", "", "a\\b", "two\nlines"].map(str::to_owned);
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

    #[test]
    fn the_text_that_exceeds_the_limit_is_added_and_later_ones_are_not() {
        let mut texts: Vec<String> = (0..16)
            .map(|number| format!("{number:03}{}", "a".repeat(253)))
            .collect();
        assert_eq!(headers(&texts).len(), 16, "they fit");
        texts.extend(["short", "too late"].map(str::to_owned));
        let lines = headers(&texts);
        assert_eq!(lines.len(), 17);
        assert_eq!(lines[16], r#"299 - "short""#);
    }

    #[test]
    fn what_can_be_no_header_does_not_count() {
        let lost = format!("{}\n", "a".repeat(4000));
        let texts = [lost, "b".repeat(300)];
        let lines = headers(&texts);
        assert_eq!(lines.len(), 1);
        assert_eq!(lines[0].len(), 300 + "299 - \"\"".len(), "it is whole");
    }

    #[test]
    fn of_very_many_texts_the_first_ones_are_said() {
        let texts: Vec<String> = (0..200_000).map(|at| at.to_string()).collect();
        let lines = headers(&texts);
        assert_eq!(lines[0], r#"299 - "0""#);
        assert_eq!(lines[1], r#"299 - "1""#);
        assert!(lines.len() < 2000, "{}", lines.len());
    }
}
