//! Label selectors: requirements on labels, their text form and the `LabelSelector` of objects.
//!
//! Owns grammar, validation and matching, with upstream's texts. Must not know where labels are
//! stored: the caller passes a lookup, and labels inside canonical bytes need no tree.

mod many;
mod parse;

use std::borrow::Cow;
use std::fmt;

use crate::complaints::Complaints;
use crate::field_error::{FieldError, Path, aggregate};
use crate::json::scan;
use crate::names;
use crate::quote::quote;
use crate::value::Value;

pub use many::ManyRequirements;

/// The condition of a requirement on a label.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Operator {
    /// The label has one of the values.
    In,
    /// The label is absent or has none of the values.
    NotIn,
    /// The label has the value, written `=`.
    Equals,
    /// The label has the value, written `==`.
    DoubleEquals,
    /// The label is absent or has another value.
    NotEquals,
    /// The label is present.
    Exists,
    /// The label is absent.
    DoesNotExist,
    /// The label is a number greater than the value.
    GreaterThan,
    /// The label is a number less than the value.
    LessThan,
}

/// One condition on one label.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Requirement {
    key: String,
    operator: Operator,
    values: Vec<String>,
}

/// The reason why a selector is refused; the texts are upstream's.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
pub enum SelectorError {
    /// The text form has an unexpected token.
    #[error("found '{found}', expected: {expected}")]
    Token {
        /// The token that was found.
        found: String,
        /// The tokens that are allowed there.
        expected: &'static str,
    },
    /// The text form has no list of values where one is required. The missing comma in the message
    /// is upstream's.
    #[error("found '{0}' expected: '('")]
    NoList(String),
    /// A requirement of the text form cannot be parsed.
    #[error("unable to parse requirement: {0}")]
    Requirement(Box<SelectorError>),
    /// A key in the text form is not a label key.
    #[error("{0}")]
    Key(FieldError),
    /// The key or the values of a requirement are not valid for a label, or the number of values
    /// does not suit the operator.
    #[error("{}", aggregate(.0).unwrap_or_default())]
    Invalid(Complaints),
    /// An object names an operator that does not exist.
    #[error("{} is not a valid label selector operator", quote(.0))]
    Operator(String),
}

impl Requirement {
    /// Creates a requirement after checking it.
    ///
    /// # Errors
    /// Returns an error if the key or the values are not valid for a label, or if their number does
    /// not suit the operator.
    pub fn new(key: &str, operator: Operator, values: Vec<String>) -> Result<Self, SelectorError> {
        let mut errors = Complaints::default();
        let path = Path::NIL;
        errors.extend(check_key(key, &path.child("key")));
        let path = path.child("values");
        errors.extend(check_count(operator, &values, &path));
        if matches!(operator, Operator::GreaterThan | Operator::LessThan) {
            for (index, value) in values.iter().enumerate() {
                if parse_int(value).is_none() {
                    let detail = "for 'Gt', 'Lt' operators, the value must be an integer";
                    errors.push(FieldError::invalid(
                        &path.index(index),
                        value.as_str(),
                        detail,
                    ));
                }
            }
        }
        for (index, value) in values.iter().enumerate() {
            let complaints = names::label_value(value);
            if !complaints.is_empty() {
                let path = path.index(index);
                errors.push(FieldError::invalid(
                    &path.key(key),
                    value.as_str(),
                    complaints.join("; "),
                ));
            }
        }
        if !errors.is_empty() {
            return Err(SelectorError::Invalid(errors));
        }
        Ok(Self {
            key: key.into(),
            operator,
            values,
        })
    }

    /// Returns the label's key.
    pub fn key(&self) -> &str {
        &self.key
    }

    /// Returns the condition.
    pub fn operator(&self) -> Operator {
        self.operator
    }

    /// Returns the values, in the order given.
    pub fn values(&self) -> &[String] {
        &self.values
    }

    /// Returns true if a label with this value, or an absent one, satisfies the requirement.
    pub fn matches(&self, value: Option<&str>) -> bool {
        let has = |value: &str| self.values.iter().any(|candidate| candidate == value);
        match self.operator {
            Operator::In | Operator::Equals | Operator::DoubleEquals => value.is_some_and(has),
            Operator::NotIn | Operator::NotEquals => !value.is_some_and(has),
            Operator::Exists => value.is_some(),
            Operator::DoesNotExist => value.is_none(),
            Operator::GreaterThan | Operator::LessThan => {
                let bound = self.values.first().and_then(|bound| parse_int(bound));
                let (Some(value), Some(bound)) = (value.and_then(parse_int), bound) else {
                    return false;
                };
                if self.operator == Operator::GreaterThan {
                    value > bound
                } else {
                    value < bound
                }
            }
        }
    }
}

impl fmt::Display for Requirement {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (before, after) = match self.operator {
            Operator::Exists => return f.write_str(&self.key),
            Operator::DoesNotExist => return write!(f, "!{}", self.key),
            Operator::In => (" in (", ")"),
            Operator::NotIn => (" notin (", ")"),
            Operator::Equals => ("=", ""),
            Operator::DoubleEquals => ("==", ""),
            Operator::NotEquals => ("!=", ""),
            Operator::GreaterThan => (">", ""),
            Operator::LessThan => ("<", ""),
        };
        let mut values: Vec<&str> = self.values.iter().map(String::as_str).collect();
        values.sort_unstable();
        write!(f, "{}{before}{}{after}", self.key, values.join(","))
    }
}

/// A label selector.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Selector {
    /// Selects nothing: an absent `LabelSelector`.
    Nothing,
    /// Selects everything that satisfies all requirements; everything if there are none.
    All(Vec<Requirement>),
}

impl Default for Selector {
    fn default() -> Self {
        Self::All(Vec::new())
    }
}

impl Selector {
    /// Parses the text form: `a=b,c in (d,e),!f`.
    ///
    /// # Errors
    /// Returns an error with upstream's text.
    pub fn parse(text: &str) -> Result<Self, SelectorError> {
        parse::parse(text).map(Self::from_requirements)
    }

    /// Returns the selector of these requirements, in order of their keys.
    pub fn from_requirements(mut requirements: Vec<Requirement>) -> Self {
        requirements.sort_by(|a, b| a.key.cmp(&b.key));
        Self::All(requirements)
    }

    /// Returns the selector of a `LabelSelector` object: absent or null selects nothing, an empty
    /// one everything.
    ///
    /// # Errors
    /// Returns an error if it is malformed, with upstream's text.
    pub fn from_label_selector(object: Option<&Value>) -> Result<Self, SelectorError> {
        let Some(object) = object.filter(|object| !object.is_null()) else {
            return Ok(Self::Nothing);
        };
        let mut requirements = Vec::new();
        if let Some(labels) = object.get("matchLabels").and_then(Value::as_object) {
            for (key, value) in labels.iter() {
                let value = value.as_str().unwrap_or("").to_owned();
                requirements.push(Requirement::new(key, Operator::Equals, vec![value])?);
            }
        }
        for expression in object.items_at(&["matchExpressions"]) {
            let operator = match expression.str_at(&["operator"]) {
                "In" => Operator::In,
                "NotIn" => Operator::NotIn,
                "Exists" => Operator::Exists,
                "DoesNotExist" => Operator::DoesNotExist,
                other => return Err(SelectorError::Operator(other.to_owned())),
            };
            let values = expression
                .items_at(&["values"])
                .iter()
                .map(|value| value.as_str().unwrap_or("").to_owned());
            requirements.push(Requirement::new(
                expression.str_at(&["key"]),
                operator,
                values.collect(),
            )?);
        }
        Ok(Self::from_requirements(requirements))
    }

    /// Returns the requirements in order of their keys; none for [`Selector::Nothing`] too.
    pub fn requirements(&self) -> &[Requirement] {
        match self {
            Self::Nothing => &[],
            Self::All(requirements) => requirements,
        }
    }

    /// Returns true if everything is selected.
    pub fn is_everything(&self) -> bool {
        matches!(self, Self::All(requirements) if requirements.is_empty())
    }

    /// Returns true if the labels that `lookup` returns are selected.
    pub fn matches<'a>(&self, lookup: impl Fn(&str) -> Option<Cow<'a, str>>) -> bool {
        match self {
            Self::Nothing => false,
            Self::All(requirements) => requirements
                .iter()
                .all(|requirement| requirement.matches(lookup(&requirement.key).as_deref())),
        }
    }

    /// Returns true if the labels in these pairs of key and value are selected.
    pub fn matches_pairs<'a>(
        &self,
        labels: impl Iterator<Item = (&'a str, &'a str)> + Clone,
    ) -> bool {
        self.matches(|key| {
            labels
                .clone()
                .find(|(name, _)| *name == key)
                .map(|(_, value)| Cow::Borrowed(value))
        })
    }

    /// Returns true if the labels in this tree, an object of texts or nothing, are selected.
    pub fn matches_value(&self, labels: Option<&Value>) -> bool {
        self.matches(|key| labels?.get(key)?.as_str().map(Cow::Borrowed))
    }

    /// Returns true if the labels in these canonical JSON bytes are selected. Empty bytes mean no
    /// labels.
    pub fn matches_bytes(&self, labels: &[u8]) -> bool {
        self.matches(|key| {
            let (_, value) = scan::members(labels).find(|(name, _)| scan::key_is(name, key))?;
            scan::string(&labels[value])
        })
    }

    /// Returns about how many bytes of memory it takes beside itself.
    pub fn heap_bytes(&self) -> usize {
        let of_one = |requirement: &Requirement| {
            let values = requirement.values.iter();
            let texts = values.map(|value| size_of::<String>() + allocated(value.len()));
            size_of::<Requirement>() + allocated(requirement.key.len()) + texts.sum::<usize>()
        };
        self.requirements().iter().map(of_one).sum()
    }

    /// Returns the value that `key` must have, if a requirement demands one.
    pub fn requires_exact_match(&self, key: &str) -> Option<&str> {
        let requirement = self
            .requirements()
            .iter()
            .find(|requirement| requirement.key == key)?;
        match (requirement.operator, requirement.values.as_slice()) {
            (Operator::Equals | Operator::DoubleEquals | Operator::In, [value]) => Some(value),
            _ => None,
        }
    }
}

impl fmt::Display for Selector {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (index, requirement) in self.requirements().iter().enumerate() {
            if index > 0 {
                f.write_str(",")?;
            }
            requirement.fmt(f)?;
        }
        Ok(())
    }
}

/// Validates a `LabelSelector` inside an object. An absent one is valid.
pub fn validate_label_selector(selector: Option<&Value>, path: &Path<'_>) -> Complaints {
    let mut errors = Complaints::default();
    let Some(selector) = selector.filter(|selector| !selector.is_null()) else {
        return errors;
    };
    let labels = path.child("matchLabels");
    errors.extend(validate_labels(selector.get("matchLabels"), &labels));
    let expressions = path.child("matchExpressions");
    for (index, expression) in selector.items_at(&["matchExpressions"]).iter().enumerate() {
        let path = expressions.index(index);
        validate_requirement(expression, &path, UnknownOperators::Refused, &mut errors);
    }
    errors
}

/// What becomes of an operator that is not known.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum UnknownOperators {
    /// It is an error.
    Refused,
    /// A newer client may know it: whoever evaluates the selector leaves it out.
    Allowed,
}

/// Validates whether a requirement has the values that its operator wants, and the operator.
pub fn validate_operator(
    requirement: &Value,
    path: &Path<'_>,
    unknown: UnknownOperators,
    errors: &mut Complaints,
) {
    let values = requirement.items_at(&["values"]);
    let values_path = path.child("values");
    match requirement.str_at(&["operator"]) {
        "In" | "NotIn" => {
            if values.is_empty() {
                let detail = "must be specified when `operator` is 'In' or 'NotIn'";
                errors.push(FieldError::required(&values_path, detail));
            }
        }
        "Exists" | "DoesNotExist" => {
            if !values.is_empty() {
                let detail = "may not be specified when `operator` is 'Exists' or 'DoesNotExist'";
                errors.push(FieldError::forbidden(&values_path, detail));
            }
        }
        _ if unknown == UnknownOperators::Allowed => {}
        other => {
            let bad = crate::field_error::Bad::Json(other.into());
            errors.push(FieldError::invalid(
                &path.child("operator"),
                bad,
                "not a valid selector operator",
            ));
        }
    }
}

/// Validates a requirement of a label selector.
pub fn validate_requirement(
    requirement: &Value,
    path: &Path<'_>,
    unknown: UnknownOperators,
    errors: &mut Complaints,
) {
    validate_operator(requirement, path, unknown, errors);
    errors.extend(validate_label_name(
        requirement.str_at(&["key"]),
        &path.child("key"),
    ));
    let values_path = path.child("values");
    for (index, value) in requirement.items_at(&["values"]).iter().enumerate() {
        let value = value.as_str().unwrap_or("");
        for complaint in names::label_value(value) {
            errors.push(FieldError::invalid(
                &values_path.index(index),
                value,
                complaint,
            ));
        }
    }
}

/// Validates a label's key.
pub fn validate_label_name(name: &str, path: &Path<'_>) -> Complaints {
    let complaints = names::qualified_name(name).into_iter();
    complaints
        .map(|complaint| FieldError::invalid(path, name, complaint))
        .collect()
}

/// Validates a map of labels. Every error names the map, not the label, as upstream's do.
pub fn validate_labels(labels: Option<&Value>, path: &Path<'_>) -> Complaints {
    let mut errors = Complaints::default();
    for (key, value) in labels
        .and_then(Value::as_object)
        .into_iter()
        .flat_map(|labels| labels.iter())
    {
        errors.extend(validate_label_name(key, path));
        let value = value.as_str().unwrap_or("");
        for complaint in names::label_value(value) {
            errors.push(FieldError::invalid(path, value, complaint));
        }
    }
    errors
}

/// Returns the complaints about a key as one error.
fn check_key(key: &str, path: &Path<'_>) -> Option<FieldError> {
    let complaints = names::qualified_name(key);
    (!complaints.is_empty()).then(|| FieldError::invalid(path, key, complaints.join("; ")))
}

fn check_count(operator: Operator, values: &[String], path: &Path<'_>) -> Option<FieldError> {
    let (good, detail) = match operator {
        Operator::In | Operator::NotIn => (
            !values.is_empty(),
            "for 'in', 'notin' operators, values set can't be empty",
        ),
        Operator::Equals | Operator::DoubleEquals | Operator::NotEquals => (
            values.len() == 1,
            "exact-match compatibility requires one single value",
        ),
        Operator::Exists | Operator::DoesNotExist => (
            values.is_empty(),
            "values set must be empty for exists and does not exist",
        ),
        Operator::GreaterThan | Operator::LessThan => (
            values.len() == 1,
            "for 'Gt', 'Lt' operators, exactly one value is required",
        ),
    };
    let shown = || match values {
        [] => Value::Null,
        values => Value::Array(values.iter().map(|value| value.as_str().into()).collect()),
    };
    (!good).then(|| FieldError::invalid(path, shown(), detail))
}

/// Returns about how many bytes an allocator takes for so many.
pub(crate) const fn allocated(bytes: usize) -> usize {
    bytes.next_multiple_of(16)
}

/// Parses a number as Go's `ParseInt` does in base ten.
fn parse_int(text: &str) -> Option<i64> {
    text.parse().ok()
}

#[cfg(test)]
mod tests;
