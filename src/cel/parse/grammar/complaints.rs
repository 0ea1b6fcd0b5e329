//! What is said of syntax errors, and how parsing goes on behind the small ones.
//!
//! Upstream's parser skips one token if the next one fits, and acts as if one were there if what
//! follows fits behind it. Both are done here; after any other error parsing stops.

use crate::source::Issue;

use super::super::lex::{Kind, Token};
use super::{ParseAborted, Parser, begins};

/// The tokens that may begin an operand, as upstream lists them.
pub(super) const OPERANDS: &str = "{'[', '{', '(', '.', '-', '!', 'true', 'false', 'null', NUM_FLOAT, NUM_INT, NUM_UINT, STRING, BYTES, IDENTIFIER}";
/// Like [`OPERANDS`], behind the opening bracket of a list.
pub(super) const LIST: &str = "{'[', ']', '{', '(', '.', ',', '-', '!', '?', 'true', 'false', 'null', NUM_FLOAT, NUM_INT, NUM_UINT, STRING, BYTES, IDENTIFIER}";
/// Like [`OPERANDS`], behind the opening brace of a map.
pub(super) const MAP: &str = "{'[', '{', '}', '(', '.', ',', '-', '!', '?', 'true', 'false', 'null', NUM_FLOAT, NUM_INT, NUM_UINT, STRING, BYTES, IDENTIFIER}";
/// Like [`OPERANDS`], behind the opening bracket of arguments.
pub(super) const ARGUMENTS: &str = "{'[', '{', '(', ')', '.', '-', '!', 'true', 'false', 'null', NUM_FLOAT, NUM_INT, NUM_UINT, STRING, BYTES, IDENTIFIER}";
/// Like [`OPERANDS`], behind the opening bracket of an index.
pub(super) const INDEX: &str = "{'[', '{', '(', '.', '-', '!', '?', 'true', 'false', 'null', NUM_FLOAT, NUM_INT, NUM_UINT, STRING, BYTES, IDENTIFIER}";

/// The names of fields, as upstream lists them.
pub(super) const FIELD: &str = "{IDENTIFIER, ESC_IDENTIFIER}";
/// Like [`FIELD`], behind the opening brace of a message.
pub(super) const FIELDS: &str = "{'}', ',', '?', IDENTIFIER, ESC_IDENTIFIER}";

/// The marks that may stand behind an operand anywhere.
const OPERATORS: [&str; 17] = [
    ".", "[", "*", "/", "%", "+", "-", "<", "<=", ">=", ">", "==", "!=", "in", "&&", "||", "?",
];

/// Where an expression stands.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Place {
    Arguments,
    Brackets,
    Index,
    List,
    Key,
    Value,
    /// Between the question mark and the colon of a condition.
    Middle,
}

impl Place {
    /// Returns the marks that may stand behind the expression.
    fn closers(self) -> &'static [&'static str] {
        match self {
            Self::Arguments => &[",", ")"],
            Self::Brackets => &[")"],
            Self::Index => &["]"],
            Self::List => &[",", "]"],
            Self::Key | Self::Middle => &[":"],
            Self::Value => &[",", "}"],
        }
    }
}

/// Writes a token's text as complaints show it.
fn shown(text: &str) -> String {
    text.replace('\n', "\\n")
        .replace('\r', "\\r")
        .replace('\t', "\\t")
}

impl Parser<'_> {
    pub(super) fn complain(&mut self, at: usize, text: String) -> ParseAborted {
        self.builder.issues.push(Issue::at(at, text));
        ParseAborted
    }

    pub(super) fn mismatch(&mut self, expected: &str) -> ParseAborted {
        let token = self.peek(0);
        let text = format!(
            "Syntax error: mismatched input '{}' expecting {expected}",
            shown(&token.text)
        );
        self.complain(token.at, text)
    }

    /// Complains about a token and skips it.
    pub(super) fn extraneous(&mut self, expected: &str) {
        let token = self.peek(0);
        let text = format!(
            "Syntax error: extraneous input '{}' expecting {expected}",
            shown(&token.text)
        );
        self.complain(token.at, text);
        self.next += 1;
    }

    /// Complains that no rule takes what begins at `begin` and goes up to the next token.
    pub(super) fn no_viable(&mut self, begin: usize) -> ParseAborted {
        let token = self.peek(0);
        let end = match token.kind {
            Kind::End => self.letters.len(),
            _ => token.at + token.text.chars().count(),
        };
        let input: String = self
            .letters
            .get(begin..end)
            .unwrap_or_default()
            .iter()
            .collect();
        let text = format!(
            "Syntax error: no viable alternative at input '{}'",
            shown(&input)
        );
        self.complain(token.at, text)
    }

    /// Takes a mark that must be there.
    pub(super) fn expect(&mut self, mark: &str) -> Result<usize, ParseAborted> {
        let at = self.peek(0).at;
        if self.take(mark) {
            Ok(at)
        } else {
            self.close(mark).map(|()| at)
        }
    }

    /// Takes the mark that closes brackets. One token too many, or the missing mark, is complained
    /// about, and parsing goes on.
    pub(super) fn close(&mut self, mark: &str) -> Result<(), ParseAborted> {
        if self.take(mark) {
            return Ok(());
        }
        let expected = format!("'{mark}'");
        if self.peek(1).is(mark) {
            self.extraneous(&expected);
            self.next += 1;
            return Ok(());
        }
        let token = self.peek(0);
        let fits = if mark == ":" {
            begins(token)
        } else {
            self.may_follow(token)
        };
        if fits {
            let text = format!(
                "Syntax error: missing {expected} at '{}'",
                shown(&token.text)
            );
            self.complain(token.at, text);
            return Ok(());
        }
        Err(self.mismatch(&expected))
    }

    /// Takes the comma behind an element, or the end. Returns false at the end.
    pub(super) fn next_or_end(&mut self, end: &str) -> Result<bool, ParseAborted> {
        if self.take(",") {
            return Ok(true);
        }
        if self.take(end) {
            return Ok(false);
        }
        let expected = format!("{{'{end}', ','}}");
        let next = self.peek(1);
        if next.is(end) || next.is(",") {
            self.extraneous(&expected);
            return self.next_or_end(end);
        }
        Err(self.mismatch(&expected))
    }

    /// Returns whether the comma before ended a list: unless an element begins here, the end must.
    pub(super) fn ends(&mut self, end: &str) -> Result<bool, ParseAborted> {
        let token = self.peek(0);
        if begins(token) || token.is("?") || token.is(end) {
            return Ok(false);
        }
        self.close(end).map(|()| true)
    }

    /// Checks that the first operand behind an opening bracket begins here.
    pub(super) fn operand(&mut self, expected: &str) -> Result<(), ParseAborted> {
        let fits = |token: &Token| {
            let quoted = format!("'{}'", token.text);
            let is_field = matches!(token.kind, Kind::Name | Kind::Quoted);
            let good = if expected == FIELDS {
                is_field
            } else {
                begins(token)
            };
            good || token.kind == Kind::Mark && expected.contains(&quoted)
        };
        if fits(self.peek(0)) {
            return Ok(());
        }
        if self.peek(0).kind != Kind::End && fits(self.peek(1)) {
            self.extraneous(expected);
            return Ok(());
        }
        Err(self.mismatch(expected))
    }

    /// Parses an expression that stands inside something.
    pub(super) fn within<T>(
        &mut self,
        place: Place,
        parse: impl FnOnce(&mut Self) -> Result<T, ParseAborted>,
    ) -> Result<T, ParseAborted> {
        self.places.push(place);
        let parsed = parse(self);
        self.places.pop();
        parsed
    }

    /// Returns whether a token may stand behind an operand at this place.
    fn may_follow(&self, token: &Token) -> bool {
        let place = self.places.last();
        if token.kind == Kind::End {
            return place.is_none();
        }
        if token.is("?") && place == Some(&Place::Middle) {
            return false;
        }
        let closers = place.map_or(&[][..], |place| place.closers());
        OPERATORS.iter().chain(closers).any(|mark| token.is(mark))
    }

    /// Checks that nothing follows.
    pub(super) fn end(&mut self) {
        if self.peek(0).kind == Kind::End {
            return;
        }
        if self.peek(1).kind == Kind::End {
            self.extraneous("<EOF>");
        } else {
            self.mismatch("<EOF>");
        }
    }
}
