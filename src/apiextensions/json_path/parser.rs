//! The parser of paths.

use super::{
    ELEMENTS_MAX, FILTERS_MAX, Filter, JsonPath, JsonPathError, Operand, Operator, STEPS_MAX,
    Slice, Step,
};
use crate::complaints;
use polyplane_apimachinery::{Str, Value};

/// Says where a path ends.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Ends {
    /// At the end of the text.
    Never,
    /// Inside a filter: at an operator, a space or the closing parenthesis.
    InFilter,
}

/// Returns the complaint about the beginning of a text, of which it shows no more than of a step.
fn unexpected(text: &str) -> JsonPathError {
    JsonPathError::Unexpected(complaints::step(text).into_owned())
}

/// Parses a path.
pub(super) struct Parser<'t> {
    rest: &'t str,
    /// The filters that the present place is in.
    depth: usize,
    /// The elements of all brackets so far.
    elements: usize,
}

impl<'t> Parser<'t> {
    /// Begins with a text.
    pub fn new(text: &'t str) -> Self {
        Self {
            rest: text,
            depth: 0,
            elements: 0,
        }
    }

    /// Parses the whole text.
    ///
    /// # Errors
    /// Returns what is wrong with it.
    pub fn whole(mut self) -> Result<JsonPath, JsonPathError> {
        let path = self.path(Ends::Never)?;
        match self.rest {
            "" => Ok(path),
            rest => Err(unexpected(rest)),
        }
    }

    fn path(&mut self, ends: Ends) -> Result<JsonPath, JsonPathError> {
        let mut steps = Vec::new();
        if let Some(rest) = self.rest.strip_prefix(['$', '@']) {
            self.rest = rest;
        }
        while let Some(first) = self.rest.chars().next() {
            if steps.len() >= STEPS_MAX {
                return Err(JsonPathError::TooLong);
            }
            match first {
                '.' if self.rest.starts_with("..") => {
                    if steps.last() == Some(&Step::Recursive) {
                        return Err(unexpected(self.rest));
                    }
                    self.rest = &self.rest[2..];
                    steps.push(Step::Recursive);
                    if self
                        .rest
                        .starts_with(|next: char| next.is_alphanumeric() || next == '_')
                    {
                        steps.push(self.field()?);
                    }
                }
                '.' => {
                    self.rest = &self.rest[1..];
                    if self.rest.starts_with('[') || self.rest.is_empty() {
                        continue;
                    }
                    steps.push(self.field()?);
                }
                '[' => {
                    self.rest = &self.rest[1..];
                    steps.push(self.bracket()?);
                }
                _ if ends == Ends::InFilter => break,
                _ if steps.is_empty() && (first.is_alphanumeric() || first == '_') => {
                    steps.push(self.field()?);
                }
                _ => return Err(unexpected(self.rest)),
            }
        }
        Ok(JsonPath { steps })
    }

    fn field(&mut self) -> Result<Step, JsonPathError> {
        let mut name = String::new();
        let mut letters = self.rest.char_indices();
        let mut end = self.rest.len();
        while let Some((at, letter)) = letters.next() {
            match letter {
                '\\' => name.extend(letters.next().map(|(_, escaped)| escaped)),
                '.' | '[' | ']' | '|' | ' ' | ')' | '=' | '!' | '<' | '>' | ',' | '\r' | '\n' => {
                    end = at;
                    break;
                }
                letter => name.push(letter),
            }
        }
        let (_, rest) = self.rest.split_at(end);
        if name.is_empty() {
            return Err(unexpected(self.rest));
        }
        self.rest = rest;
        Ok(match name.as_str() {
            "*" => Step::Wildcard,
            name => Step::Field(name.into()),
        })
    }

    /// Parses what follows an opening bracket.
    fn bracket(&mut self) -> Result<Step, JsonPathError> {
        if let Some(rest) = self.rest.strip_prefix("?(") {
            self.rest = rest;
            if self.depth == FILTERS_MAX {
                return Err(JsonPathError::TooDeep);
            }
            self.count_element()?;
            self.depth += 1;
            let filter = self.filter()?;
            self.depth -= 1;
            self.rest = self
                .rest
                .trim_start()
                .strip_prefix(")]")
                .ok_or(JsonPathError::Open("a filter"))?;
            return Ok(Step::Filter(Box::new(filter)));
        }
        let mut steps = Vec::new();
        loop {
            self.rest = self.rest.trim_start();
            self.count_element()?;
            steps.push(self.element()?);
            self.rest = self.rest.trim_start();
            if let Some(rest) = self.rest.strip_prefix(']') {
                self.rest = rest;
                break;
            }
            self.rest = self
                .rest
                .strip_prefix(',')
                .ok_or(JsonPathError::Open("a bracket"))?;
        }
        Ok(match steps.pop() {
            Some(only) if steps.is_empty() => only,
            last => {
                steps.extend(last);
                Step::Union(steps)
            }
        })
    }

    fn count_element(&mut self) -> Result<(), JsonPathError> {
        if self.elements == ELEMENTS_MAX {
            return Err(JsonPathError::TooWide);
        }
        self.elements += 1;
        Ok(())
    }

    /// Parses one of the elements in brackets.
    fn element(&mut self) -> Result<Step, JsonPathError> {
        if self.rest.starts_with(['\'', '"']) {
            return Ok(Step::Field(self.quoted()?));
        }
        let end = self
            .rest
            .find([']', ','])
            .ok_or(JsonPathError::Open("a bracket"))?;
        let (text, rest) = self.rest.split_at(end);
        self.rest = rest;
        let text = text.trim();
        if text == "*" {
            // In brackets it selects from lists alone.
            return Ok(Step::Slice(Slice {
                from: None,
                to: None,
                step: 1,
            }));
        }
        if !text.contains(':') {
            return text.parse().map(Step::Index).map_err(|_| unexpected(text));
        }
        let mut parts = text.split(':').map(|part| match part.trim() {
            "" => Ok(None),
            part => part.parse::<i64>().map(Some).map_err(|_| unexpected(text)),
        });
        let mut part = || parts.next().unwrap_or(Ok(None));
        Ok(Step::Slice(Slice {
            from: part()?,
            to: part()?,
            step: part()?.unwrap_or(1),
        }))
    }

    fn quoted(&mut self) -> Result<Str, JsonPathError> {
        let mut letters = self.rest.char_indices();
        let quote = letters.next().map(|(_, quote)| quote);
        let mut text = String::new();
        while let Some((at, letter)) = letters.next() {
            if Some(letter) == quote {
                self.rest = &self.rest[at + 1..];
                return Ok(text.into());
            }
            match letter {
                '\\' => text.extend(letters.next().map(|(_, escaped)| escaped)),
                letter => text.push(letter),
            }
        }
        Err(JsonPathError::Open("a quote"))
    }

    fn filter(&mut self) -> Result<Filter, JsonPathError> {
        let left = self.operand()?;
        self.rest = self.rest.trim_start();
        let operators = [
            ("==", Operator::Equal),
            ("!=", Operator::Unequal),
            ("<=", Operator::LessOrEqual),
            (">=", Operator::GreaterOrEqual),
            ("<", Operator::Less),
            (">", Operator::Greater),
        ];
        for (text, operator) in operators {
            if let Some(rest) = self.rest.strip_prefix(text) {
                self.rest = rest;
                let right = self.operand()?;
                return Ok(Filter {
                    left,
                    compare: Some((operator, right)),
                });
            }
        }
        Ok(Filter {
            left,
            compare: None,
        })
    }

    fn operand(&mut self) -> Result<Operand, JsonPathError> {
        self.rest = self.rest.trim_start();
        match self.rest.chars().next() {
            Some('\'' | '"') => Ok(Operand::Literal(Value::String(self.quoted()?))),
            Some('@' | '$' | '.') => Ok(Operand::Path(self.path(Ends::InFilter)?)),
            _ => {
                let end = self.rest.find([' ', ')', '=', '!', '<', '>']);
                let (text, rest) = self.rest.split_at(end.unwrap_or(self.rest.len()));
                self.rest = rest;
                let whole = text.parse().ok().map(Value::Int);
                let other = || text.parse().ok().map(Value::Float);
                let literal = match text {
                    "true" => Some(Value::Bool(true)),
                    "false" => Some(Value::Bool(false)),
                    _ => whole.or_else(other),
                };
                literal
                    .map(Operand::Literal)
                    .ok_or_else(|| unexpected(text))
            }
        }
    }
}
