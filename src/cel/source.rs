//! The text of an expression, positions in it, and complaints about them.

use std::fmt;

/// Most characters of a line that a complaint shows. Longer lines would flood the client.
const SNIPPET_BYTES_MAX: usize = 16_384;
/// Most complaints that are shown of one expression.
const SHOWN_MAX: usize = 100;

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
        for (number, issue) in self.issues.iter().take(SHOWN_MAX).enumerate() {
            if number > 0 {
                out.write_str("\n")?;
            }
            out.write_str(&issue.show(&self.text))?;
        }
        match self.issues.len().saturating_sub(SHOWN_MAX) {
            0 => Ok(()),
            more => write!(out, "\n{more} more errors were truncated"),
        }
    }
}
