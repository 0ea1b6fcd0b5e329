//! JSONPath as kubectl reads it, as far as one expression selects values: fields, wildcards,
//! recursion, indexes, slices, unions and filters.

use std::cell::Cell;

use polyplane_apimachinery::{Map, Str, Value};

/// Number of steps and filters in one path. Each may visit the whole object.
const STEPS_MAX: usize = 64;
/// Number of values that are looked at for one purpose, such as a row of a table. Recursion below recursion and
/// filters in filters would look at more than an object has.
const VISITS_MAX: usize = 100_000;

/// A path that was parsed.
#[derive(Clone, Debug, PartialEq)]
pub struct JsonPath {
    steps: Vec<Step>,
}

/// The reason why a path cannot be parsed.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum JsonPathError {
    /// A bracket, quote or parenthesis is not closed.
    #[error("{0} is not closed")]
    Open(&'static str),
    /// Something stands where a step should begin.
    #[error("unexpected {0:?}")]
    Unexpected(String),
    /// There are too many steps.
    #[error("has more than {STEPS_MAX} steps")]
    TooLong,
}

#[derive(Clone, Debug, PartialEq)]
enum Step {
    Field(Str),
    Wildcard,
    /// All lists and objects below that are not empty, the present one included.
    Recursive,
    /// A step that is not positive selects nothing.
    Slice {
        from: Option<i64>,
        to: Option<i64>,
        step: i64,
    },
    Index(i64),
    Union(Vec<Step>),
    Filter(Box<Filter>),
}

#[derive(Clone, Debug, PartialEq)]
struct Filter {
    left: Operand,
    /// The comparison; `None` asks whether the left side exists.
    compare: Option<(Operator, Operand)>,
}

#[derive(Clone, Debug, PartialEq)]
enum Operand {
    Path(JsonPath),
    Literal(Value),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Operator {
    Equal,
    Unequal,
    Less,
    LessOrEqual,
    Greater,
    GreaterOrEqual,
}

impl JsonPath {
    /// Parses a path such as `.status.conditions[?(@.type=="Ready")].status`.
    ///
    /// # Errors
    /// Returns what is wrong with it.
    pub fn parse(text: &str) -> Result<Self, JsonPathError> {
        let mut parser = Parser { rest: text.trim() };
        let path = parser.path(Ends::Never)?;
        match parser.rest {
            "" => Ok(path),
            rest => Err(JsonPathError::Unexpected(rest.to_owned())),
        }
    }

    /// Returns the values that the path selects; none for keys that are missing, and none if there are too many.
    pub fn find<'v>(&self, value: &'v Value) -> Vec<&'v Value> {
        self.find_within(value, &Visits::default())
    }

    /// Like [`Self::find`], with a limit that other searches share.
    pub fn find_within<'v>(&self, value: &'v Value, visits: &Visits) -> Vec<&'v Value> {
        let mut found = vec![value];
        for step in &self.steps {
            let mut next = Vec::new();
            for value in found {
                if visits.is_over() {
                    return Vec::new();
                }
                step.select(value, &mut next, visits);
            }
            found = next;
        }
        match visits.is_over() {
            true => Vec::new(),
            false => found,
        }
    }
}

/// What is left of the values that searches may look at.
#[derive(Debug)]
pub struct Visits(Cell<usize>);

impl Default for Visits {
    fn default() -> Self {
        Self(Cell::new(VISITS_MAX))
    }
}

impl Visits {
    fn is_over(&self) -> bool {
        self.0.get() == 0
    }

    /// Counts a value; returns false if it is one too many.
    fn count(&self) -> bool {
        self.0.set(self.0.get().saturating_sub(1));
        !self.is_over()
    }
}

impl Step {
    fn select<'v>(&self, value: &'v Value, out: &mut Vec<&'v Value>, visits: &Visits) {
        if !visits.count() {
            return;
        }
        match self {
            Self::Field(name) => out.extend(value.get(name)),
            Self::Wildcard => match value {
                Value::Array(items) => out.extend(items.iter().take_while(|_| visits.count())),
                Value::Object(members) => {
                    out.extend(values(members).take_while(|_| visits.count()));
                }
                _ => {}
            },
            Self::Recursive => recurse(value, out, visits),
            Self::Index(at) => {
                let items = value.as_array().unwrap_or_default();
                out.extend(place(*at, items.len()).and_then(|at| items.get(at)));
            }
            Self::Slice { from, to, step } => {
                let items = value.as_array().unwrap_or_default();
                let length = i64::try_from(items.len()).unwrap_or(i64::MAX);
                let bound = |at: i64| (if at < 0 { at + length } else { at }).clamp(0, length);
                let (from, to) = (bound(from.unwrap_or(0)), bound(to.unwrap_or(length)));
                let Some(step) = usize::try_from(*step).ok().filter(|step| *step > 0) else {
                    return;
                };
                let range = usize::try_from(from).unwrap_or(0)..usize::try_from(to).unwrap_or(0);
                let selected = items.get(range).unwrap_or_default().iter().step_by(step);
                out.extend(selected.take_while(|_| visits.count()));
            }
            Self::Union(steps) => steps
                .iter()
                .for_each(|step| step.select(value, out, visits)),
            Self::Filter(filter) => match value {
                Value::Array(items) => {
                    out.extend(items.iter().filter(|item| filter.fits(item, visits)));
                }
                Value::Object(members) => {
                    out.extend(values(members).filter(|value| filter.fits(value, visits)));
                }
                _ => {}
            },
        }
    }
}

fn values(members: &Map) -> impl Iterator<Item = &Value> {
    members.iter().map(|(_, value)| value)
}

fn recurse<'v>(value: &'v Value, out: &mut Vec<&'v Value>, visits: &Visits) {
    if !visits.count() {
        return;
    }
    match value {
        Value::Array(items) if !items.is_empty() => {
            out.push(value);
            items.iter().for_each(|item| recurse(item, out, visits));
        }
        Value::Object(members) if !members.is_empty() => {
            out.push(value);
            values(members).for_each(|value| recurse(value, out, visits));
        }
        _ => {}
    }
}

fn place(at: i64, length: usize) -> Option<usize> {
    let length = i64::try_from(length).ok()?;
    usize::try_from(if at < 0 { at + length } else { at }).ok()
}

impl Filter {
    fn fits(&self, value: &Value, visits: &Visits) -> bool {
        if !visits.count() {
            return false;
        }
        let left = self.left.value(value, visits);
        let Some((operator, right)) = &self.compare else {
            return left.is_some();
        };
        match (left, right.value(value, visits)) {
            (Some(left), Some(right)) => operator.holds(left, right),
            _ => false,
        }
    }
}

impl Operand {
    fn value<'v>(&'v self, value: &'v Value, visits: &Visits) -> Option<&'v Value> {
        match self {
            Self::Path(path) => path.find_within(value, visits).first().copied(),
            Self::Literal(literal) => Some(literal),
        }
    }
}

impl Operator {
    fn holds(self, left: &Value, right: &Value) -> bool {
        use std::cmp::Ordering;
        let order = match (left, right) {
            (Value::Int(left), Value::Int(right)) => Some(left.cmp(right)),
            (Value::String(left), Value::String(right)) => Some(left.cmp(right)),
            (Value::Bool(left), Value::Bool(right)) => Some(left.cmp(right)),
            _ => match (number(left), number(right)) {
                (Some(left), Some(right)) => left.partial_cmp(&right),
                _ => None,
            },
        };
        match self {
            Self::Equal => order == Some(Ordering::Equal),
            Self::Unequal => order != Some(Ordering::Equal),
            Self::Less => order == Some(Ordering::Less),
            Self::LessOrEqual => matches!(order, Some(Ordering::Less | Ordering::Equal)),
            Self::Greater => order == Some(Ordering::Greater),
            Self::GreaterOrEqual => matches!(order, Some(Ordering::Greater | Ordering::Equal)),
        }
    }
}

fn number(value: &Value) -> Option<f64> {
    match value {
        Value::Int(number) => Some(*number as f64),
        Value::Float(number) => Some(*number),
        _ => None,
    }
}

/// Says where a path ends.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Ends {
    /// At the end of the text.
    Never,
    /// Inside a filter: at an operator, a space or the closing parenthesis.
    InFilter,
}

struct Parser<'t> {
    rest: &'t str,
}

impl<'t> Parser<'t> {
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
                        return Err(JsonPathError::Unexpected(self.rest.to_owned()));
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
                _ => return Err(JsonPathError::Unexpected(self.rest.to_owned())),
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
            return Err(JsonPathError::Unexpected(self.rest.to_owned()));
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
            let filter = self.filter()?;
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
            return Ok(Step::Slice {
                from: None,
                to: None,
                step: 1,
            });
        }
        let unexpected = || JsonPathError::Unexpected(text.to_owned());
        if !text.contains(':') {
            return text.parse().map(Step::Index).map_err(|_| unexpected());
        }
        let mut parts = text.split(':').map(|part| match part.trim() {
            "" => Ok(None),
            part => part.parse::<i64>().map(Some).map_err(|_| unexpected()),
        });
        let mut part = || parts.next().unwrap_or(Ok(None));
        Ok(Step::Slice {
            from: part()?,
            to: part()?,
            step: part()?.unwrap_or(1),
        })
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
                    .ok_or_else(|| JsonPathError::Unexpected(text.to_owned()))
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use polyplane_apimachinery::json;

    fn found(path: &str) -> String {
        let object = json!({
            "a": {"b.c": 1i64, "list": [
                {"type": "Ready", "status": "True", "n": 1i64},
                {"type": "Done", "status": "False", "n": 2i64}
            ]},
            "numbers": [1i64, 2i64, 3i64]
        });
        let path = JsonPath::parse(path).expect("a path");
        let found: Vec<String> = path
            .find(&object)
            .into_iter()
            .map(json::to_string)
            .collect();
        found.join(" ")
    }

    #[test]
    fn paths_select_what_kubectl_selects() {
        for (path, values) in [
            (r".a.b\.c", "1"),
            (".a['b.c']", "1"),
            (".a.list[0].type", r#""Ready""#),
            (".a.list[-1].type", r#""Done""#),
            (".a.list[*].n", "1 2"),
            (".a.list[0][*]", ""),
            (r#".a.list[?(@.type=="Ready")].status"#, r#""True""#),
            (r#".a.list[?(@.type == 'Done')].status"#, r#""False""#),
            (".a.list[?(@.n>1)].n", "2"),
            (".a.list[?(@.absent)].n", ""),
            (".numbers[0:2]", "1 2"),
            (".numbers[1,2]", "2 3"),
            ("..n", "1 2"),
            (".nothing.at.all", ""),
            ("$.numbers[0]", "1"),
        ] {
            assert_eq!(found(path), values, "{path}");
        }
    }

    #[test]
    fn paths_that_would_visit_very_much_select_nothing() {
        let object = json!({"a": [[[[1i64]]]]});
        let many = format!("[{}]", ["0"; 20].join(","));
        let inner = many.repeat(3);
        let path = format!(".a{inner}[?(@{inner}[?(@{inner})])]");
        let path = JsonPath::parse(&path).expect("a path");
        let visits = Visits::default();
        assert!(path.find_within(&object, &visits).is_empty() && visits.is_over());
        // What shares the limit finds nothing either.
        let simple = JsonPath::parse(".a[0]").expect("a path");
        assert!(simple.find_within(&object, &visits).is_empty());
        assert_eq!(simple.find(&object).len(), 1);
    }

    #[test]
    fn what_is_not_closed_is_refused() {
        for path in [".a[", ".a['b", ".a[?(@.b==1]", ".a[x]", ".a]"] {
            assert!(JsonPath::parse(path).is_err(), "{path}");
        }
    }
}
