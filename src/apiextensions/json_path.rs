//! JSONPath as kubectl reads it, as far as one expression selects values: fields, wildcards,
//! recursion, indexes, slices, unions and filters.

mod parser;

use std::cell::Cell;

use parser::Parser;
use polyplane_apimachinery::{Map, Str, Value};

/// Number of steps and filters in one path. Each may visit the whole object.
const STEPS_MAX: usize = 64;
/// Number of filters in one another. Parsing and searching recurse that deep, and the text is a client's.
const FILTERS_MAX: usize = 16;
/// Number of elements in all brackets of one path, filters among them. Each takes thirty times its text in memory, and
/// unions of unions multiply what a search looks at.
const ELEMENTS_MAX: usize = 1_000;
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
    /// There are too many elements in brackets.
    #[error("has more than {ELEMENTS_MAX} elements in brackets")]
    TooWide,
    /// There are too many filters in one another.
    #[error("has more than {FILTERS_MAX} filters in one another")]
    TooDeep,
}

#[derive(Clone, Debug, PartialEq)]
enum Step {
    Field(Str),
    Wildcard,
    /// All lists and objects below that are not empty, the present one included.
    Recursive,
    Slice(Slice),
    Index(i64),
    Union(Vec<Step>),
    Filter(Box<Filter>),
}

/// A part of a list. Bounds below zero count from its end.
#[derive(Clone, Debug, PartialEq)]
struct Slice {
    from: Option<i64>,
    to: Option<i64>,
    step: i64,
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
        Parser::new(text.trim()).whole()
    }

    /// Returns the values that the path selects; none for keys that are missing, and none if the path does not suit
    /// the value, such as an index of what is not a list, or there are too many.
    pub fn find<'v>(&self, value: &'v Value) -> Vec<&'v Value> {
        self.find_within(value, &Visits::default())
    }

    /// Like [`Self::find`], with a limit that other searches share.
    pub fn find_within<'v>(&self, value: &'v Value, visits: &Visits) -> Vec<&'v Value> {
        match self.walk(value, visits) {
            Ok(found) if !visits.is_over() => found,
            _ => Vec::new(),
        }
    }

    fn walk<'v>(&self, value: &'v Value, visits: &Visits) -> Selected<'v> {
        let walk = |found, step: &Step| step.select(found, visits);
        self.steps.iter().try_fold(vec![value], walk)
    }
}

/// What a step selects of some values, or what is left of them where it does not suit one of them: the check whether
/// something exists goes on with that.
type Selected<'v> = Result<Vec<&'v Value>, Vec<&'v Value>>;

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
    fn select<'v>(&self, input: Vec<&'v Value>, visits: &Visits) -> Selected<'v> {
        if input.iter().any(|_| !visits.count()) {
            return Err(Vec::new());
        }
        let mut out = Vec::new();
        match self {
            Self::Field(name) => out.extend(input.iter().filter_map(|value| value.get(name))),
            Self::Wildcard => {
                for value in input {
                    out.extend(below(value).take_while(|_| visits.count()));
                }
            }
            Self::Recursive => {
                for value in input {
                    recurse(value, &mut out, visits);
                }
            }
            Self::Index(at) => {
                let part = |items: &'v [Value]| {
                    let at = place(*at, items.len())?;
                    items.get(at..=at)
                };
                return parts(input, 1, visits, part);
            }
            Self::Slice(slice) => {
                let part = |items: &'v [Value]| slice.of(items);
                return parts(input, slice.step(), visits, part);
            }
            Self::Union(steps) => {
                for step in steps {
                    // It takes time even where there is no value.
                    if !visits.count() {
                        return Err(input);
                    }
                    match step.select(input.clone(), visits) {
                        Ok(found) => out.extend(found),
                        Err(_) => return Err(input),
                    }
                }
            }
            Self::Filter(filter) => return filter.select(input, visits),
        }
        Ok(out)
    }
}

impl Slice {
    /// Returns the items between the bounds; `None` if a bound is outside, or the step is not positive.
    fn of<'v>(&self, items: &'v [Value]) -> Option<&'v [Value]> {
        let length = i64::try_from(items.len()).ok()?;
        let bound = |at: i64| if at < 0 { at + length } else { at };
        let (from, to) = (
            bound(self.from.unwrap_or(0)),
            bound(self.to.unwrap_or(length)),
        );
        if from == to {
            return Some(&[]);
        }
        let is_good = from < length && self.step > 0;
        let range = usize::try_from(from).ok()?..usize::try_from(to).ok()?;
        items.get(range).filter(|_| is_good)
    }

    fn step(&self) -> usize {
        usize::try_from(self.step).unwrap_or(1).max(1)
    }
}

/// Selects from lists: each `step`th of the items that `part` returns of a list, which is `None` if it does not suit.
fn parts<'v>(
    input: Vec<&'v Value>,
    step: usize,
    visits: &Visits,
    part: impl Fn(&'v [Value]) -> Option<&'v [Value]>,
) -> Selected<'v> {
    let mut out = Vec::new();
    for &value in &input {
        let found = match value {
            Value::Null => continue,
            Value::Array(items) => part(items),
            _ => None,
        };
        match found {
            None => return Err(input),
            // Upstream looks at no further value behind one of which it selects nothing.
            Some([]) => break,
            Some(items) => {
                let selected = items.iter().step_by(step);
                out.extend(selected.take_while(|_| visits.count()));
            }
        }
    }
    Ok(out)
}

/// Returns the values right below a value.
fn below(value: &Value) -> Box<dyn Iterator<Item = &Value> + '_> {
    match value {
        Value::Array(items) => Box::new(items.iter()),
        Value::Object(members) => Box::new(values(members)),
        _ => Box::new(std::iter::empty()),
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

/// The operands of a filter cannot be compared.
struct Unsuited;

impl Filter {
    fn select<'v>(&self, input: Vec<&'v Value>, visits: &Visits) -> Selected<'v> {
        let mut out = Vec::new();
        for &value in &input {
            let Value::Array(items) = value else {
                return Err(input);
            };
            for item in items {
                match self.fits(item, visits) {
                    Ok(true) => out.push(item),
                    Ok(false) => {}
                    Err(Unsuited) => return Err(input),
                }
            }
        }
        Ok(out)
    }

    fn fits(&self, value: &Value, visits: &Visits) -> Result<bool, Unsuited> {
        if !visits.count() {
            return Err(Unsuited);
        }
        let Some((operator, right)) = &self.compare else {
            return Ok(self.left.exists(value, visits));
        };
        let left = self.left.value(value, visits)?;
        let Some(left) = left else {
            return Ok(false);
        };
        match right.value(value, visits)? {
            Some(right) => operator.holds(left, right),
            None => Ok(false),
        }
    }
}

impl Operand {
    /// Returns the value, if there is one.
    fn value<'v>(
        &'v self,
        value: &'v Value,
        visits: &Visits,
    ) -> Result<Option<&'v Value>, Unsuited> {
        match self {
            Self::Path(path) => match path.walk(value, visits).map_err(|_| Unsuited)?[..] {
                [] => Ok(None),
                [only] => Ok(Some(only)),
                _ => Err(Unsuited),
            },
            Self::Literal(literal) => Ok(Some(literal)),
        }
    }

    fn exists(&self, value: &Value, visits: &Visits) -> bool {
        match self {
            Self::Path(path) => {
                let (Ok(found) | Err(found)) = path.walk(value, visits);
                !found.is_empty()
            }
            Self::Literal(_) => true,
        }
    }
}

impl Operator {
    /// Compares values of one type; objects and lists cannot be compared, and truth has no order.
    fn holds(self, left: &Value, right: &Value) -> Result<bool, Unsuited> {
        use std::cmp::Ordering;
        let order = match (left, right) {
            (Value::Int(left), Value::Int(right)) => Some(left.cmp(right)),
            (Value::Float(left), Value::Float(right)) => left.partial_cmp(right),
            (Value::String(left), Value::String(right)) => Some(left.cmp(right)),
            (Value::Bool(left), Value::Bool(right)) => match self {
                Self::Equal => return Ok(left == right),
                Self::Unequal => return Ok(left != right),
                _ => return Err(Unsuited),
            },
            _ => return Err(Unsuited),
        };
        Ok(match self {
            Self::Equal => order == Some(Ordering::Equal),
            Self::Unequal => order != Some(Ordering::Equal),
            Self::Less => order == Some(Ordering::Less),
            Self::LessOrEqual => matches!(order, Some(Ordering::Less | Ordering::Equal)),
            Self::Greater => order == Some(Ordering::Greater),
            Self::GreaterOrEqual => matches!(order, Some(Ordering::Greater | Ordering::Equal)),
        })
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
    fn filters_in_one_another_are_limited() {
        let path = |levels: usize| {
            let (open, close) = ("[?(@.a".repeat(levels), ")]".repeat(levels));
            JsonPath::parse(&format!(".{open}{close}"))
        };
        path(FILTERS_MAX).expect("few are accepted");
        assert_eq!(path(FILTERS_MAX + 1), Err(JsonPathError::TooDeep));
        let open = format!(".{}", "[?(@".repeat(300_000));
        assert_eq!(JsonPath::parse(&open), Err(JsonPathError::TooDeep));
    }

    #[test]
    fn elements_of_all_brackets_are_limited() {
        let path =
            |count: usize| JsonPath::parse(&format!(".a[0][{}]", vec!["0"; count].join(",")));
        path(ELEMENTS_MAX - 1).expect("few are accepted");
        assert_eq!(path(ELEMENTS_MAX), Err(JsonPathError::TooWide));
    }

    #[test]
    fn unions_count_their_elements_where_there_is_no_value_too() {
        let path = format!(".absent{}", "[0,0,0,0,0,0,0,0]".repeat(50));
        let path = JsonPath::parse(&path).expect("a path");
        let (object, visits) = (Value::object(), Visits::default());
        assert!(path.find_within(&object, &visits).is_empty());
        assert!(visits.0.get() <= VISITS_MAX - 50 * 8, "{visits:?}");
    }

    #[test]
    fn complaints_about_paths_are_short() {
        let long = "?".repeat(1 << 20);
        let refused = JsonPath::parse(&format!(".a[0]{long}")).expect_err("it is no path");
        assert!(refused.to_string().len() < 2_000);
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
        let mut object = json!(1i64);
        for _ in 0..12 {
            object = Value::Array([object].into());
        }
        object = json!({"a": object});
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

    /// Upstream answers an error for the whole path, and so nothing.
    #[test]
    fn a_step_that_does_not_suit_one_of_the_values_selects_nothing() {
        let object = json!({
            "mixed": [{"a": [1i64]}, {"a": [2i64, 3i64]}, {"a": 4i64}],
            "lists": [{"a": [1i64]}, {"a": [2i64, 3i64]}],
            "gaps": [{"a": []}, {"a": [2i64]}],
            "half": [{"a": (Value::Null)}, {"a": [2i64]}],
            "numbers": [1i64, 2i64, 3i64],
            "objects": {"x": {"n": 1i64}},
            "kinds": [{"n": 1i64}, {"n": "1"}]
        });
        for (path, values) in [
            (".lists[*].a[0]", "1 2"),
            (".lists[*].a[1]", ""),
            (".mixed[*].a[0]", ""),
            (".mixed[*].a[0:1]", ""),
            (".half[*].a[0]", "2"),
            (".gaps[*].a[:]", ""),
            (".numbers[3]", ""),
            (".numbers[0:4]", ""),
            (".numbers[2:1]", ""),
            (".numbers[1:1]", ""),
            (".numbers[0:3:0]", ""),
            (".numbers[-2:]", "2 3"),
            (".numbers[0,3]", ""),
            (".objects[*]", ""),
            (".objects[?(@.n==1)]", ""),
            (".kinds[?(@.n==1)].n", ""),
            (".kinds[?(@.n)].n", "1 \"1\""),
            (".kinds[?(@.n[0])].n", "1 \"1\""),
            (".numbers[?(@>1.5)]", ""),
            (".numbers[?(@>1)]", "2 3"),
        ] {
            let found = JsonPath::parse(path).expect(path);
            let found: Vec<String> = found
                .find(&object)
                .into_iter()
                .map(json::to_string)
                .collect();
            assert_eq!(found.join(" "), values, "{path}");
        }
    }

    #[test]
    fn what_is_not_closed_is_refused() {
        for path in [".a[", ".a['b", ".a[?(@.b==1]", ".a[x]", ".a]"] {
            assert!(JsonPath::parse(path).is_err(), "{path}");
        }
    }
}
