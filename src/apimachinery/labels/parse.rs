//! The text form of label selectors: a lexer and a parser with upstream's complaints.

use super::{Operator, Requirement, SelectorError, check_key};
use crate::field_error::Path;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Token {
    Error,
    End,
    Close,
    Comma,
    Not,
    DoubleEquals,
    Equals,
    Greater,
    Identifier,
    In,
    Less,
    NotEquals,
    NotIn,
    Open,
}

/// The choice whether `in` and `notin` are operators or plain words.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Context {
    Operator,
    Value,
}

pub(super) fn parse(text: &str) -> Result<Vec<Requirement>, SelectorError> {
    let mut parser = Parser {
        tokens: lex(text),
        at: 0,
    };
    parser.parse()
}

fn keyword(text: &str) -> Option<Token> {
    Some(match text {
        ")" => Token::Close,
        "," => Token::Comma,
        "!" => Token::Not,
        "==" => Token::DoubleEquals,
        "=" => Token::Equals,
        ">" => Token::Greater,
        "in" => Token::In,
        "<" => Token::Less,
        "!=" => Token::NotEquals,
        "notin" => Token::NotIn,
        "(" => Token::Open,
        _ => return None,
    })
}

fn is_special(byte: u8) -> bool {
    matches!(byte, b'=' | b'!' | b'(' | b')' | b',' | b'>' | b'<')
}

fn is_space(byte: u8) -> bool {
    matches!(byte, b' ' | b'\t' | b'\r' | b'\n')
}

/// Returns all tokens with their texts, including the end.
fn lex(text: &str) -> Vec<(Token, String)> {
    let bytes = text.as_bytes();
    let mut tokens = Vec::new();
    let mut at = 0;
    loop {
        while bytes.get(at).is_some_and(|byte| is_space(*byte)) {
            at += 1;
        }
        match bytes.get(at) {
            // A zero byte ends the text, as upstream reads it.
            None | Some(0) => {
                tokens.push((Token::End, String::new()));
                return tokens;
            }
            Some(byte) if is_special(*byte) => tokens.push(lex_special(text, &mut at)),
            Some(_) => {
                let start = at;
                while bytes
                    .get(at)
                    .is_some_and(|byte| *byte != 0 && !is_special(*byte) && !is_space(*byte))
                {
                    at += 1;
                }
                let word = &text[start..at];
                if bytes.get(at) == Some(&0) {
                    at += 1;
                }
                tokens.push((keyword(word).unwrap_or(Token::Identifier), word.to_owned()));
            }
        }
    }
}

/// Returns the longest run of special characters that is a token. A run of which no prefix is a
/// token is an error; any other run ends before the first character that makes it invalid.
fn lex_special(text: &str, at: &mut usize) -> (Token, String) {
    let bytes = text.as_bytes();
    let start = *at;
    let mut last = None;
    while let Some(byte) = bytes.get(*at) {
        if !is_special(*byte) {
            if *byte == 0 {
                *at += 1;
                return last.unwrap_or_else(|| unknown(&text[start..*at - 1]));
            }
            break;
        }
        let run = &text[start..=*at];
        match keyword(run) {
            Some(token) => last = Some((token, run.to_owned())),
            None if last.is_some() => break,
            None => {}
        }
        *at += 1;
    }
    last.unwrap_or_else(|| unknown(&text[start..*at]))
}

fn unknown(run: &str) -> (Token, String) {
    (
        Token::Error,
        format!("error expected: keyword found '{run}'"),
    )
}

fn unexpected(found: impl Into<String>, expected: &'static str) -> SelectorError {
    SelectorError::Token {
        found: found.into(),
        expected,
    }
}

struct Parser {
    tokens: Vec<(Token, String)>,
    at: usize,
}

impl Parser {
    /// Returns the next token without consuming it; past the end, the end again.
    fn look(&self, context: Context) -> (Token, &str) {
        let last = self.tokens.len() - 1;
        let (token, text) = &self.tokens[self.at.min(last)];
        match token {
            Token::In | Token::NotIn if context == Context::Value => (Token::Identifier, text),
            _ => (*token, text),
        }
    }

    fn take(&mut self, context: Context) -> (Token, String) {
        let (token, text) = self.look(context);
        let taken = (token, text.to_owned());
        self.at += 1;
        taken
    }

    fn parse(&mut self) -> Result<Vec<Requirement>, SelectorError> {
        let mut requirements = Vec::new();
        loop {
            let (token, text) = self.look(Context::Value);
            match token {
                Token::Identifier | Token::Not => {
                    let requirement = self.requirement().map_err(Box::new);
                    requirements.push(requirement.map_err(SelectorError::Requirement)?);
                    match self.take(Context::Value) {
                        (Token::End, _) => return Ok(requirements),
                        (Token::Comma, _) => {
                            let (next, text) = self.look(Context::Value);
                            if next != Token::Identifier && next != Token::Not {
                                return Err(unexpected(text, "identifier after ','"));
                            }
                        }
                        (_, text) => {
                            return Err(unexpected(text, "',' or 'end of string'"));
                        }
                    }
                }
                Token::End => return Ok(requirements),
                _ => {
                    return Err(unexpected(text, "!, identifier, or 'end of string'"));
                }
            }
        }
    }

    fn requirement(&mut self) -> Result<Requirement, SelectorError> {
        let (mut token, mut key) = self.take(Context::Value);
        let absent = token == Token::Not;
        if absent {
            (token, key) = self.take(Context::Value);
        }
        if token != Token::Identifier {
            return Err(unexpected(key, "identifier"));
        }
        if let Some(error) = check_key(&key, &Path::NIL) {
            return Err(SelectorError::Key(error));
        }
        let bare = matches!(self.look(Context::Value).0, Token::End | Token::Comma);
        if absent || bare {
            let operator = if absent {
                Operator::DoesNotExist
            } else {
                Operator::Exists
            };
            return Requirement::new(&key, operator, Vec::new());
        }
        let operator = self.operator()?;
        let mut values = match operator {
            Operator::In | Operator::NotIn => self.values()?,
            _ => vec![self.exact_value()?],
        };
        values.sort_unstable();
        values.dedup();
        Requirement::new(&key, operator, values)
    }

    fn operator(&mut self) -> Result<Operator, SelectorError> {
        match self.take(Context::Operator) {
            (Token::In, _) => Ok(Operator::In),
            (Token::Equals, _) => Ok(Operator::Equals),
            (Token::DoubleEquals, _) => Ok(Operator::DoubleEquals),
            (Token::Greater, _) => Ok(Operator::GreaterThan),
            (Token::Less, _) => Ok(Operator::LessThan),
            (Token::NotIn, _) => Ok(Operator::NotIn),
            (Token::NotEquals, _) => Ok(Operator::NotEquals),
            (_, text) => Err(unexpected(text, "in, notin, =, ==, !=, gt, lt")),
        }
    }

    fn exact_value(&mut self) -> Result<String, SelectorError> {
        if matches!(self.look(Context::Value).0, Token::End | Token::Comma) {
            return Ok(String::new());
        }
        match self.take(Context::Value) {
            (Token::Identifier, text) => Ok(text),
            (_, text) => Err(unexpected(text, "identifier")),
        }
    }

    fn values(&mut self) -> Result<Vec<String>, SelectorError> {
        let (token, text) = self.take(Context::Value);
        if token != Token::Open {
            return Err(SelectorError::NoList(text));
        }
        let (token, text) = self.look(Context::Value);
        match token {
            Token::Identifier | Token::Comma => {
                let first = text.to_owned();
                let values = self.value_list()?;
                if self.take(Context::Value).0 != Token::Close {
                    return Err(unexpected(first, "')'"));
                }
                Ok(values)
            }
            Token::Close => {
                self.at += 1;
                Ok(vec![String::new()])
            }
            _ => Err(unexpected(text, "',', ')' or identifier")),
        }
    }

    fn value_list(&mut self) -> Result<Vec<String>, SelectorError> {
        let mut values = Vec::new();
        loop {
            match self.take(Context::Value) {
                (Token::Identifier, text) => {
                    values.push(text);
                    match self.look(Context::Value) {
                        (Token::Comma, _) => {}
                        (Token::Close, _) => return Ok(values),
                        (_, text) => return Err(unexpected(text, "',' or ')'")),
                    }
                }
                (Token::Comma, _) => {
                    if values.is_empty() {
                        values.push(String::new());
                    }
                    match self.look(Context::Value).0 {
                        Token::Close => {
                            values.push(String::new());
                            return Ok(values);
                        }
                        Token::Comma => values.push(String::new()),
                        _ => {}
                    }
                }
                (_, text) => return Err(unexpected(text, "',', or identifier")),
            }
        }
    }
}
