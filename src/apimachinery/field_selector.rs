//! Field selectors: `metadata.name=x,spec.nodeName!=y`.
//!
//! Owns the grammar and the matching. By which fields a kind may be selected is decided by the
//! kind.

use std::collections::{BTreeSet, HashMap, HashSet};
use std::fmt;

use crate::labels::allocated;

/// A field selector: every term must hold.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct FieldSelector {
    terms: Vec<Term>,
    /// What the terms say together, if they are many.
    many: Option<Box<Many>>,
}

/// Terms whose work for an object does not grow with their number: a request may have thousands.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct Many {
    exact: BTreeSet<(String, String)>,
    denied: HashMap<String, HashSet<String>>,
}

/// Terms up to which comparing them one after the other is faster.
const FEW: usize = 16;

/// One condition on one field.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Term {
    /// The field's name, as the client wrote it.
    pub field: String,
    /// The comparison.
    pub operator: FieldOperator,
    /// The value, with escapes resolved.
    pub value: String,
}

/// The comparison of a field with a value.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FieldOperator {
    /// The field has the value.
    Equals,
    /// The field has another value.
    NotEquals,
}

/// The reason why a field selector cannot be parsed; the texts are upstream's.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum FieldSelectorError {
    /// A term without an operator.
    #[error("invalid selector: '{selector}'; can't understand '{term}'")]
    Term {
        /// The whole selector.
        selector: String,
        /// The part that cannot be parsed.
        term: String,
    },
    /// There is a backslash before a character that needs none.
    #[error("invalid field selector: invalid escape sequence: {0}")]
    Escape(String),
    /// There is a comma or an equals sign in a value without a backslash before it.
    #[error("invalid field selector: unescaped character in value: {}", u32::from(*.0))]
    Unescaped(char),
}

impl Many {
    /// Creates it, unless there are only a few terms.
    fn of(terms: &[Term]) -> Option<Self> {
        if terms.len() <= FEW {
            return None;
        }
        let mut many = Self::default();
        for Term {
            field,
            operator,
            value,
        } in terms.iter().cloned()
        {
            match operator {
                FieldOperator::Equals => {
                    many.exact.insert((field, value));
                }
                FieldOperator::NotEquals => {
                    many.denied.entry(field).or_default().insert(value);
                }
            }
        }
        Some(many)
    }
}

impl FieldSelector {
    /// Parses a selector. Sorts the terms and drops empty ones.
    ///
    /// # Errors
    /// See [`FieldSelectorError`].
    pub fn parse(selector: &str) -> Result<Self, FieldSelectorError> {
        let mut parts = split_terms(selector);
        parts.sort_unstable();
        let mut terms = Vec::new();
        for part in parts.into_iter().filter(|part| !part.is_empty()) {
            let Some((field, operator, value)) = split_term(part) else {
                return Err(FieldSelectorError::Term {
                    selector: selector.into(),
                    term: part.into(),
                });
            };
            let value = unescape_value(value)?;
            if !field.is_empty() || !value.is_empty() {
                terms.push(Term {
                    field: field.into(),
                    operator,
                    value,
                });
            }
        }
        Ok(Self {
            many: Many::of(&terms).map(Box::new),
            terms,
        })
    }

    /// Creates a selector of one term.
    pub fn equals(field: impl Into<String>, value: impl Into<String>) -> Self {
        let term = Term {
            field: field.into(),
            operator: FieldOperator::Equals,
            value: value.into(),
        };
        Self {
            terms: vec![term],
            many: None,
        }
    }

    /// Returns the terms in order.
    pub fn terms(&self) -> &[Term] {
        &self.terms
    }

    /// Returns about how many bytes of memory it takes beside itself.
    pub fn heap_bytes(&self) -> usize {
        let of_one = |term: &Term| {
            size_of::<Term>() + allocated(term.field.len()) + allocated(term.value.len())
        };
        let terms: usize = self.terms.iter().map(of_one).sum();
        // What many terms say together has the same texts, in entries of about the same size.
        match self.many {
            Some(_) => 2 * terms,
            None => terms,
        }
    }

    /// Returns true if everything is selected.
    pub fn is_empty(&self) -> bool {
        self.terms.is_empty()
    }

    /// Passes every term through `change`, which may rename fields and values or refuse them. A
    /// term that `change` returns with both empty is dropped.
    ///
    /// # Errors
    /// Returns the first refusal.
    pub fn transform<E>(
        self,
        mut change: impl FnMut(String, String) -> Result<(String, String), E>,
    ) -> Result<Self, E> {
        let mut terms = Vec::with_capacity(self.terms.len());
        for term in self.terms {
            let (field, value) = change(term.field, term.value)?;
            if !field.is_empty() || !value.is_empty() {
                terms.push(Term {
                    field,
                    operator: term.operator,
                    value,
                });
            }
        }
        Ok(Self {
            many: Many::of(&terms).map(Box::new),
            terms,
        })
    }

    /// Returns true if every term holds. `lookup` returns a field's text, empty if it has none.
    pub fn matches<'a>(&self, lookup: impl Fn(&str) -> std::borrow::Cow<'a, str>) -> bool {
        let Some(many) = &self.many else {
            return self.terms.iter().all(|term| {
                let equal = lookup(&term.field) == term.value;
                equal == (term.operator == FieldOperator::Equals)
            });
        };
        let mut exact = many.exact.iter();
        let mut denied = many.denied.iter();
        exact.all(|(field, value)| lookup(field) == *value)
            && denied.all(|(field, values)| !values.contains(&*lookup(field)))
    }

    /// Returns the value that `field` must have, if a term requires one.
    pub fn requires_exact_match(&self, field: &str) -> Option<&str> {
        let exact = |term: &&Term| term.field == field && term.operator == FieldOperator::Equals;
        self.terms
            .iter()
            .find(exact)
            .map(|term| term.value.as_str())
    }
}

impl fmt::Display for FieldSelector {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (index, term) in self.terms.iter().enumerate() {
            if index > 0 {
                f.write_str(",")?;
            }
            let operator = match term.operator {
                FieldOperator::Equals => "=",
                FieldOperator::NotEquals => "!=",
            };
            write!(f, "{}{operator}{}", term.field, escape_value(&term.value))?;
        }
        Ok(())
    }
}

/// Returns the value with a backslash before every backslash, comma and equals sign.
pub fn escape_value(value: &str) -> String {
    let mut out = String::with_capacity(value.len());
    for character in value.chars() {
        if matches!(character, '\\' | ',' | '=') {
            out.push('\\');
        }
        out.push(character);
    }
    out
}

/// Returns the value that [`escape_value`] has escaped to `text`.
///
/// # Errors
/// Returns an error if a backslash precedes a character that needs none, or if a special character
/// has no backslash.
pub fn unescape_value(text: &str) -> Result<String, FieldSelectorError> {
    let mut out = String::with_capacity(text.len());
    let mut characters = text.chars();
    while let Some(character) = characters.next() {
        match character {
            '\\' => match characters.next() {
                Some(escaped @ ('\\' | ',' | '=')) => out.push(escaped),
                Some(other) => return Err(FieldSelectorError::Escape(format!("\\{other}"))),
                None => return Err(FieldSelectorError::Escape("\\".into())),
            },
            ',' | '=' => return Err(FieldSelectorError::Unescaped(character)),
            _ => out.push(character),
        }
    }
    Ok(out)
}

fn split_terms(selector: &str) -> Vec<&str> {
    let mut escaped = false;
    selector
        .split(|character| match character {
            _ if escaped => {
                escaped = false;
                false
            }
            '\\' => {
                escaped = true;
                false
            }
            _ => character == ',',
        })
        .collect()
}

fn split_term(term: &str) -> Option<(&str, FieldOperator, &str)> {
    let bytes = term.as_bytes();
    let at = (0..bytes.len()).find(|at| bytes[*at] == b'=' || bytes[*at..].starts_with(b"!="))?;
    let (field, rest) = term.split_at(at);
    if let Some(value) = rest.strip_prefix("!=") {
        return Some((field, FieldOperator::NotEquals, value));
    }
    let value = rest.strip_prefix("==").or_else(|| rest.strip_prefix('='))?;
    Some((field, FieldOperator::Equals, value))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::borrow::Cow;

    #[test]
    fn many_terms_select_what_each_of_them_selects() {
        let always: Vec<String> = (0..FEW).map(|at| format!("z!=never-{at}")).collect();
        for text in [
            "x=a",
            "x=a,x=b",
            "x!=a",
            "x!=b,y=",
            "y!=",
            "x=a,x!=a",
            "x=a,x=a,y!=c",
        ] {
            let few = FieldSelector::parse(text).expect(text);
            let many = FieldSelector::parse(&format!("{text},{}", always.join(","))).expect(text);
            assert!(few.many.is_none() && many.many.is_some());
            for value in ["a", "b", ""] {
                let lookup = |field: &str| Cow::Borrowed(if field == "x" { value } else { "" });
                assert_eq!(few.matches(lookup), many.matches(lookup), "{text} {value}");
            }
        }
    }

    #[test]
    fn a_selector_reads_and_prints_as_upstream() {
        for (input, printed) in [
            ("", ""),
            (",", ""),
            ("x=a,y!=b", "x=a,y!=b"),
            ("y==b,x=a", "x=a,y=b"),
            ("x=", "x="),
            ("x=a\\,b\\=c\\\\", "x=a\\,b\\=c\\\\"),
            ("=a", "=a"),
            ("=", ""),
        ] {
            assert_eq!(
                FieldSelector::parse(input).expect(input).to_string(),
                printed,
                "{input}"
            );
        }
    }

    #[test]
    fn a_bad_selector_is_refused_in_upstreams_words() {
        for (input, text) in [
            ("a", "invalid selector: 'a'; can't understand 'a'"),
            ("a=b,c", "invalid selector: 'a=b,c'; can't understand 'c'"),
            (
                "a=b=c",
                "invalid field selector: unescaped character in value: 61",
            ),
            (
                "a=\\x",
                "invalid field selector: invalid escape sequence: \\x",
            ),
            (
                "a=\\",
                "invalid field selector: invalid escape sequence: \\",
            ),
        ] {
            assert_eq!(
                FieldSelector::parse(input).expect_err(input).to_string(),
                text
            );
        }
    }

    #[test]
    fn an_absent_field_is_empty_text() {
        let selector = FieldSelector::parse("spec.nodeName=,status.phase!=Running").expect("good");
        assert!(selector.matches(|_| Cow::Borrowed("")));
        assert!(
            !selector.matches(|field| Cow::Borrowed(if field == "spec.nodeName" {
                "n"
            } else {
                ""
            }))
        );
        assert_eq!(selector.requires_exact_match("spec.nodeName"), Some(""));
        assert_eq!(selector.requires_exact_match("status.phase"), None);
    }

    proptest::proptest! {
        #[test]
        fn a_value_survives_escaping(value in ".*") {
            proptest::prop_assert_eq!(unescape_value(&escape_value(&value)).expect("was escaped"), value);
        }

        #[test]
        fn any_text_is_read_or_refused(text in ".*") {
            if let Ok(selector) = FieldSelector::parse(&text) {
                let printed = selector.to_string();
                let again = FieldSelector::parse(&printed).map(|selector| selector.to_string());
                proptest::prop_assert!(again.is_ok());
            }
        }
    }
}
