//! The text of an expression, positions in it, and complaints about them.

use std::fmt;

/// Most characters of a line that a complaint shows. Longer lines would flood the client.
const SNIPPET_BYTES_MAX: usize = 16_384;
/// Most complaints that are shown of one expression.
const SHOWN_MAX: usize = 100;
/// Most bytes of the shown complaints of one expression, but for the last one. A definition may have thousands of
/// expressions.
const SHOWN_BYTES_MAX: usize = 256 << 10;
/// Most bytes of one complaint. It may name types of a thousand parts, whose names come from a schema.
const TEXT_BYTES_MAX: usize = 16 << 10;
/// Most bytes of all complaints about the types of one expression. Each node may have one.
const MADE_BYTES_MAX: usize = 1 << 20;
/// Stands for what was cut off.
const REST: &str = "…";

/// The text of an expression by characters, because positions count characters.
#[derive(Debug, Clone)]
pub struct Source {
    letters: Box<[char]>,
}

impl Source {
    /// Wraps the text of an expression.
    #[must_use]
    pub fn new(text: &str) -> Self {
        Self {
            letters: text.chars().collect(),
        }
    }

    /// Returns the characters.
    #[must_use]
    pub fn letters(&self) -> &[char] {
        &self.letters
    }

    /// Returns the line, from 1, and the column, from 0, of a position in characters.
    #[must_use]
    pub fn location(&self, at: usize) -> (usize, usize) {
        let before = &self.letters[..at.min(self.letters.len())];
        let line = before.iter().filter(|letter| **letter == '\n').count();
        let column = before
            .iter()
            .rev()
            .take_while(|letter| **letter != '\n')
            .count();
        (line + 1, column)
    }

    fn line(&self, line: usize) -> Option<String> {
        let found = self.letters.split(|letter| *letter == '\n').nth(line - 1)?;
        Some(found.iter().collect())
    }
}

/// A complaint about an expression.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Issue {
    /// The position in characters from the beginning; `None` if it is about the whole.
    pub at: Option<usize>,
    /// The complaint.
    pub text: String,
}

impl Issue {
    /// Makes a complaint about a position.
    #[must_use]
    pub fn at(at: usize, text: impl Into<String>) -> Self {
        Self {
            at: Some(at),
            text: text.into(),
        }
    }

    /// Makes a complaint about the whole expression.
    #[must_use]
    pub fn whole(text: impl Into<String>) -> Self {
        Self {
            at: None,
            text: text.into(),
        }
    }

    fn show(&self, source: &Source) -> String {
        let Some(at) = self.at else {
            return format!("ERROR: <input>:-1:0: {}", self.text);
        };
        if source.letters.is_empty() {
            // Upstream finds no line in it, and so no place.
            return format!("ERROR: <input>:1:0: {}", self.text);
        }
        let (line, column) = source.location(at);
        let head = format!("ERROR: <input>:{line}:{}: {}", column + 1, self.text);
        let Some(snippet) = source
            .line(line)
            .filter(|snippet| snippet.len() <= SNIPPET_BYTES_MAX)
        else {
            return head;
        };
        let wide = |letter: char| letter.len_utf8() > 1;
        let dots: String = snippet
            .chars()
            .take(column)
            .map(|letter| if wide(letter) { '．' } else { '.' })
            .collect();
        let mark = if snippet.chars().nth(column).is_some_and(wide) {
            '＾'
        } else {
            '^'
        };
        let snippet = snippet.replace('\t', " ");
        format!("{head}\n | {snippet}\n | {dots}{mark}")
    }
}

/// The complaints about the types of an expression while they are made, in a bounded number of bytes. The number of
/// complaints stays right.
#[derive(Debug, Default)]
pub(crate) struct Complaints {
    issues: Vec<Issue>,
    bytes: usize,
}

impl Complaints {
    /// Adds a complaint about a position.
    pub fn add(&mut self, at: usize, text: fmt::Arguments<'_>) {
        let text = match self.bytes < MADE_BYTES_MAX {
            true => written(text),
            false => REST.to_owned(),
        };
        self.bytes += text.len();
        self.issues.push(Issue::at(at, text));
    }

    /// Adds a complaint about the whole expression.
    pub fn add_whole(&mut self, text: &str) {
        self.issues.push(Issue::whole(text));
    }

    /// Returns true if there is no complaint.
    pub fn is_empty(&self) -> bool {
        self.issues.is_empty()
    }

    /// Returns the complaints with the text of the expression.
    pub fn about(self, source: Source) -> Issues {
        Issues::new(source, self.issues)
    }
}

/// Writes a text up to its bound.
fn written(text: fmt::Arguments<'_>) -> String {
    let mut out = Bounded(String::new());
    // It ends with an error where the bound is.
    let _ = fmt::write(&mut out, text);
    out.0
}

struct Bounded(String);

impl fmt::Write for Bounded {
    fn write_str(&mut self, part: &str) -> fmt::Result {
        let room = TEXT_BYTES_MAX.saturating_sub(self.0.len());
        if part.len() <= room {
            self.0.push_str(part);
            return Ok(());
        }
        self.0.push_str(&part[..part.floor_char_boundary(room)]);
        self.0.push_str(REST);
        Err(fmt::Error)
    }
}

/// The complaints about an expression, with its text; `Display` shows them as upstream does.
#[derive(Debug, Clone, thiserror::Error)]
pub struct Issues {
    text: Source,
    issues: Vec<Issue>,
}

impl Issues {
    /// Collects complaints about `source`, sorted by their place.
    #[must_use]
    pub fn new(source: Source, mut issues: Vec<Issue>) -> Self {
        let end = source.letters.len();
        issues.sort_by_key(|issue| issue.at.map(|at| at.min(end)));
        Self {
            text: source,
            issues,
        }
    }

    /// Returns the complaints, those about the whole first, then by position.
    #[must_use]
    pub fn all(&self) -> &[Issue] {
        &self.issues
    }
}

impl fmt::Display for Issues {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (mut shown, mut bytes) = (0, 0);
        for issue in self.issues.iter().take(SHOWN_MAX) {
            if bytes > SHOWN_BYTES_MAX {
                break;
            }
            if shown > 0 {
                out.write_str("\n")?;
            }
            let text = issue.show(&self.text);
            out.write_str(&text)?;
            (shown, bytes) = (shown + 1, bytes + text.len());
        }
        match self.issues.len() - shown {
            0 => Ok(()),
            more => write!(out, "\n{more} more errors were truncated"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn complaints_have_a_bound_in_bytes_and_their_number_stays_right() {
        let mut complaints = Complaints::default();
        let long = "é".repeat(TEXT_BYTES_MAX);
        for at in 0..1_000 {
            complaints.add(at, format_args!("{long}"));
        }
        let bytes: usize = complaints.issues.iter().map(|issue| issue.text.len()).sum();
        assert!(bytes < MADE_BYTES_MAX + (64 << 10), "{bytes}");
        let shown = complaints.about(Source::new("a")).to_string();
        assert!(
            shown.len() < SHOWN_BYTES_MAX + (64 << 10),
            "{}",
            shown.len()
        );
        let count = shown.matches("ERROR: ").count();
        assert!(shown.ends_with(&format!("\n{} more errors were truncated", 1_000 - count)));
    }

    #[test]
    fn lines_of_the_expression_are_shown_in_a_bounded_number_of_bytes() {
        let source = Source::new(&"é".repeat(SNIPPET_BYTES_MAX / 2));
        let issues = (0..100).map(|at| Issue::at(at * 80, "wrong"));
        let shown = Issues::new(source, issues.collect()).to_string();
        assert!(
            shown.len() < SHOWN_BYTES_MAX + (64 << 10),
            "{}",
            shown.len()
        );
        assert!(shown.contains("more errors were truncated"));
    }

    #[test]
    fn short_complaints_are_shown_whole() {
        let mut complaints = Complaints::default();
        complaints.add(1, format_args!("one"));
        complaints.add_whole("all");
        let shown = complaints.about(Source::new("ab")).to_string();
        let wanted = "ERROR: <input>:-1:0: all\nERROR: <input>:1:2: one\n | ab\n | .^";
        assert_eq!(shown, wanted);
    }
}
