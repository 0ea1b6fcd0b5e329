//! What Go's parser of YAML says about a text that is not YAML. The parser here finds the same faults
//! in other words and sometimes at other places; both follow from the kind of the fault.

use granit_parser::{ErrorKind, ScanError};

use super::read::YamlError;

/// The part of Go's parser that finds a fault. It decides which line is named.
#[derive(Clone, Copy)]
enum Finder {
    /// Whoever reads characters names the line after that of the fault.
    Characters,
    /// Whoever reads tokens names the line of the fault.
    Tokens,
}

impl Finder {
    /// Returns the line that is named for a fault. Lines count from 0, and line 0 is not named.
    fn line(self, fault: usize) -> Option<usize> {
        match (self, fault) {
            (_, 0) => None,
            (Self::Characters, line) => Some(line + 1),
            (Self::Tokens, line) => Some(line),
        }
    }
}

/// Returns the error for the client.
pub(super) fn complaint(text: &str, error: &ScanError) -> YamlError {
    let fault = error.marker().line().saturating_sub(1);
    let (line, message) = match error.kind() {
        ErrorKind::UnclosedFlowCollection { open } => {
            let close = if *open == '{' { '}' } else { ']' };
            // The end of all tokens is behind the last line.
            let end = Finder::Tokens.line(text.lines().count());
            (end, format!("did not find expected ',' or '{close}'"))
        }
        ErrorKind::UnclosedQuotedScalar => {
            let end = text.lines().count().saturating_sub(1);
            let message = "found unexpected end of stream".into();
            (Finder::Characters.line(end), message)
        }
        ErrorKind::UnknownAnchor => {
            let name = alias(text, fault, error.marker().col());
            (None, format!("unknown anchor '{name}' referenced"))
        }
        kind => match wording(kind) {
            Some((finder, message)) => (finder.line(fault), message.to_owned()),
            None => (Some(fault + 1), error.info()),
        },
    };
    YamlError::Syntax { line, message }
}

/// Returns what Go's parser says about a fault that both parsers find at the same place.
fn wording(kind: &ErrorKind) -> Option<(Finder, &'static str)> {
    use Finder::{Characters, Tokens};
    Some(match kind {
        ErrorKind::ExpectedFlowMappingSeparator => (Tokens, "did not find expected ',' or '}'"),
        ErrorKind::ExpectedFlowSequenceSeparator => (Tokens, "did not find expected ',' or ']'"),
        ErrorKind::ExpectedBlockMappingKey => (Tokens, "did not find expected key"),
        ErrorKind::ExpectedBlockSequenceEntry => (Tokens, "did not find expected '-' indicator"),
        ErrorKind::TabNotAllowed
        | ErrorKind::TabInBlockIndentation
        | ErrorKind::TabInIndentation => {
            (Characters, "found character that cannot start any token")
        }
        ErrorKind::MappingValueNotAllowed => {
            (Characters, "mapping values are not allowed in this context")
        }
        _ => return None,
    })
}

/// Returns the name of the alias at a place of a text.
fn alias(text: &str, line: usize, column: usize) -> String {
    let rest = text.lines().nth(line).unwrap_or_default().chars();
    let rest = rest
        .skip(column)
        .skip_while(|letter| *letter != '*')
        .skip(1);
    let is_name = |letter: &char| letter.is_ascii_alphanumeric() || matches!(letter, '_' | '-');
    rest.take_while(is_name).collect()
}
