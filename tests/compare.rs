//! Structured differences between a recording and a replay, and the list of accepted differences.
//!
//! This module defines what counts as equal. It does not know how either side was obtained.

use std::cell::Cell;
use std::collections::BTreeSet;
use std::fmt;
use std::path::Path;

use anyhow::{Context, Result, ensure};
use serde::Deserialize;
use serde_json::Value;

use crate::golden::{Golden, Recorded};

/// One place where a replay differs from the recording.
#[derive(Clone, Debug, PartialEq)]
pub struct Difference {
    /// The step.
    pub step: String,
    /// The place in the answer: `/status`, `/headers/…` or `/body/…`.
    pub path: String,
    /// The reference's value.
    pub recorded: Option<Value>,
    /// The value in the replay.
    pub answered: Option<Value>,
}

impl fmt::Display for Difference {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        let show = |value: &Option<Value>| match value {
            None => "(absent)".to_owned(),
            Some(value) => shortened(&value.to_string()),
        };
        writeln!(out, "    {}", self.path)?;
        writeln!(out, "      - {}", show(&self.recorded))?;
        write!(out, "      + {}", show(&self.answered))
    }
}

fn shortened(text: &str) -> String {
    const CHARS_MAX: usize = 600;
    match text.char_indices().nth(CHARS_MAX) {
        Some((at, _)) => format!("{} … ({} bytes)", &text[..at], text.len()),
        None => text.to_owned(),
    }
}

/// Returns every place where `answered` differs from `recorded`.
pub fn differences(recorded: &Golden, answered: &Golden) -> Vec<Difference> {
    let mut found = Vec::new();
    for step in &recorded.steps {
        match answered.steps.iter().find(|other| other.step == step.step) {
            Some(other) => step_differences(step, other, &mut found),
            None => found.push(Difference {
                step: step.step.clone(),
                path: String::new(),
                recorded: Some(Value::String(step.request.clone())),
                answered: None,
            }),
        }
    }
    order_difference(recorded, answered, &mut found);
    found
}

fn step_differences(recorded: &Recorded, answered: &Recorded, found: &mut Vec<Difference>) {
    let mut add = |path: String, recorded: Option<Value>, answered: Option<Value>, step: &str| {
        found.push(Difference {
            step: step.to_owned(),
            path,
            recorded,
            answered,
        });
    };
    if recorded.status != answered.status {
        let code = |status: Option<u16>| status.map(Value::from);
        add(
            "/status".into(),
            code(recorded.status),
            code(answered.status),
            &recorded.step,
        );
    }
    let names: BTreeSet<_> = recorded
        .headers
        .keys()
        .chain(answered.headers.keys())
        .collect();
    for name in names {
        let of = |headers: &std::collections::BTreeMap<String, String>| {
            headers.get(name).map(|value| Value::String(value.clone()))
        };
        let (one, other) = (of(&recorded.headers), of(&answered.headers));
        if one != other {
            add(format!("/headers/{name}"), one, other, &recorded.step);
        }
    }
    let mut path = "/body".to_owned();
    let mut add_body = |path: &str, one: Option<&Value>, other: Option<&Value>| {
        add(
            path.to_owned(),
            one.cloned(),
            other.cloned(),
            &recorded.step,
        );
    };
    value_differences(&mut path, &recorded.body, &answered.body, &mut add_body);
}

/// Returns the places at which two values differ, each as lines: the path, and the values of both
/// sides.
pub fn places(recorded: &Value, answered: &Value) -> Vec<String> {
    let mut differ = Vec::new();
    let shown = |value: Option<&Value>| value.map_or("(absent)".to_owned(), Value::to_string);
    let mut add = |path: &str, one: Option<&Value>, other: Option<&Value>| {
        differ.push(format!("{path}\n  - {}\n  + {}", shown(one), shown(other)));
    };
    value_differences(&mut String::new(), recorded, answered, &mut add);
    differ
}

/// Adds a difference: a path, and the values of both sides.
type AddPlace<'a> = dyn FnMut(&str, Option<&Value>, Option<&Value>) + 'a;

fn value_differences(
    path: &mut String,
    recorded: &Value,
    answered: &Value,
    add: &mut AddPlace<'_>,
) {
    let length = path.len();
    match (recorded, answered) {
        (Value::Object(one), Value::Object(other)) => {
            let names: BTreeSet<_> = one.keys().chain(other.keys()).collect();
            for name in names {
                path.push('/');
                path.push_str(&name.replace('~', "~0").replace('/', "~1"));
                match (one.get(name), other.get(name)) {
                    (Some(one), Some(other)) => value_differences(path, one, other, add),
                    (one, other) => add(path, one, other),
                }
                path.truncate(length);
            }
        }
        (Value::Array(one), Value::Array(other)) => {
            for index in 0..one.len().max(other.len()) {
                path.push_str(&format!("/{index}"));
                match (one.get(index), other.get(index)) {
                    (Some(one), Some(other)) => value_differences(path, one, other, add),
                    (one, other) => add(path, one, other),
                }
                path.truncate(length);
            }
        }
        _ if recorded == answered => {}
        _ => add(path, Some(recorded), Some(answered)),
    }
}

/// Compares the order of the versions that both sides have seen, which must be the same.
fn order_difference(recorded: &Golden, answered: &Golden, found: &mut Vec<Difference>) {
    let common = |order: &[String], other: &[String]| -> Vec<String> {
        let other: BTreeSet<_> = other.iter().collect();
        order
            .iter()
            .filter(|symbol| other.contains(symbol))
            .cloned()
            .collect()
    };
    let one = common(&recorded.order, &answered.order);
    let other = common(&answered.order, &recorded.order);
    if let Some(at) = (0..one.len()).find(|at| one[*at] != other[*at]) {
        found.push(Difference {
            step: "(all)".to_owned(),
            path: format!("/order/{at}"),
            recorded: Some(Value::String(one[at].clone())),
            answered: Some(Value::String(other[at].clone())),
        });
    }
}

/// One accepted difference of tests/differences.toml.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Accepted {
    /// The scenario. A `*` stands for any text, here and in the fields below.
    pub scenario: String,
    /// The step.
    pub step: String,
    /// The place in the answer.
    pub path: String,
    /// The reference's value, as JSON; absent for any value.
    pub recorded: Option<String>,
    /// The value in the replay, as JSON; absent for any value.
    pub answered: Option<String>,
    /// The reason why this difference is right.
    pub reason: String,
    #[serde(skip)]
    uses: Cell<usize>,
}

/// The accepted differences.
#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct AcceptedList {
    /// The entries in the order of the file.
    #[serde(default)]
    pub difference: Vec<Accepted>,
}

impl AcceptedList {
    /// Reads the list.
    ///
    /// # Errors
    /// Returns an error if the file is damaged, or an entry has no reason.
    pub fn load(path: &Path) -> Result<Self> {
        let text = std::fs::read_to_string(path)
            .with_context(|| format!("cannot read {}", path.display()))?;
        Self::parse(&text).with_context(|| format!("{} is damaged", path.display()))
    }

    fn parse(text: &str) -> Result<Self> {
        let list: Self = toml::from_str(text)?;
        for entry in &list.difference {
            ensure!(
                entry.reason.split_whitespace().count() >= 3,
                "the difference at {} of {} gives no reason",
                entry.path,
                entry.scenario
            );
        }
        Ok(list)
    }

    /// Returns whether an entry accepts the difference, and marks that entry as used.
    pub fn accepts(&self, scenario: &str, difference: &Difference) -> bool {
        let entry = self.difference.iter().find(|entry| {
            like(&entry.scenario, scenario)
                && like(&entry.step, &difference.step)
                && like(&entry.path, &difference.path)
                && same(entry.recorded.as_deref(), difference.recorded.as_ref())
                && same(entry.answered.as_deref(), difference.answered.as_ref())
        });
        if let Some(entry) = entry {
            entry.uses.set(entry.uses.get() + 1);
        }
        entry.is_some()
    }

    /// Returns the entries for replayed scenarios that accepted nothing. They are stale and have to
    /// be removed.
    pub fn unused<'a>(&'a self, replayed: &'a [String]) -> impl Iterator<Item = &'a Accepted> {
        self.difference.iter().filter(|entry| {
            entry.uses.get() == 0 && replayed.iter().any(|name| like(&entry.scenario, name))
        })
    }
}

fn same(wanted: Option<&str>, value: Option<&Value>) -> bool {
    match (wanted, value) {
        (None, _) => true,
        (Some(wanted), Some(value)) => like(wanted, &value.to_string()),
        (Some(wanted), None) => wanted == "(absent)",
    }
}

/// Compares a text with a pattern in which `*` stands for any text.
fn like(pattern: &str, text: &str) -> bool {
    let mut pieces = pattern.split('*');
    let Some(mut rest) = text.strip_prefix(pieces.next().unwrap_or_default()) else {
        return false;
    };
    let pieces: Vec<&str> = pieces.collect();
    let Some((last, middle)) = pieces.split_last() else {
        return rest.is_empty();
    };
    for piece in middle {
        match rest.find(piece) {
            Some(at) => rest = &rest[at + piece.len()..],
            None => return false,
        }
    }
    rest.ends_with(last)
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn golden(status: u16, body: Value, order: &[&str]) -> Golden {
        let recorded = Recorded {
            step: "s".into(),
            request: "GET /".into(),
            status: Some(status),
            headers: std::collections::BTreeMap::new(),
            body,
        };
        Golden {
            steps: vec![recorded],
            order: order.iter().map(|symbol| (*symbol).to_owned()).collect(),
        }
    }

    #[test]
    fn every_differing_place_is_named_once() {
        let one = golden(
            200,
            json!({"a": [1, 2], "b/c": 1, "same": {}}),
            &["x", "y", "z"],
        );
        let other = golden(404, json!({"a": [1], "b/c": 2, "same": {}}), &["y", "x"]);
        let paths: Vec<_> = differences(&one, &other)
            .into_iter()
            .map(|found| found.path)
            .collect();
        assert_eq!(paths, ["/status", "/body/a/1", "/body/b~1c", "/order/0"]);
        assert!(differences(&one, &one).is_empty());
    }

    #[test]
    fn a_step_that_did_not_run_is_a_difference() {
        let one = golden(200, json!({}), &[]);
        let none = Golden {
            steps: Vec::new(),
            order: Vec::new(),
        };
        assert_eq!(differences(&one, &none).len(), 1);
    }

    #[test]
    fn accepted_differences_match_precisely_and_must_be_used() {
        let list = AcceptedList::parse(
            "[[difference]]\nscenario = \"a*\"\nstep = \"s\"\npath = \"/body/a/*\"\nanswered = \"(absent)\"\nreason = \"for a good reason\"\n",
        )
        .expect("valid");
        let one = golden(200, json!({"a": [1, 2]}), &[]);
        let other = golden(200, json!({"a": [1]}), &[]);
        let found = differences(&one, &other);
        assert_eq!(list.unused(&["ab".to_owned()]).count(), 1);
        assert!(!list.accepts("b", &found[0]));
        assert!(list.accepts("ab", &found[0]));
        assert_eq!(list.unused(&["ab".to_owned()]).count(), 0);
        let changed = differences(&one, &golden(200, json!({"a": [1, 3]}), &[]));
        assert!(!list.accepts("ab", &changed[0]));
    }

    #[test]
    fn an_accepted_difference_needs_a_reason() {
        let text = "[[difference]]\nscenario=\"a\"\nstep=\"s\"\npath=\"/\"\nreason=\"\"\n";
        assert!(AcceptedList::parse(text).is_err());
    }

    #[test]
    fn patterns_match_whole_texts() {
        assert!(like("a*c", "abc") && like("*", "") && like("abc", "abc"));
        assert!(!like("a*c", "abd") && !like("abc", "abcd") && !like("ab*b", "ab"));
    }
}
