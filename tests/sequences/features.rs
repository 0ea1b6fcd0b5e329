//! What sequences contain, seen from the reference's answers.

use std::fmt;

use serde_json::{Map, Value};

use super::sequence::Step;

/// The features, by their bits.
const NAMES: [&str; 7] = [
    "conflict",
    "force",
    "removal",
    "set",
    "keyed list",
    "atomic",
    "version change",
];
const CONFLICT: u8 = 1;
const FORCE: u8 = 1 << 1;
const REMOVAL: u8 = 1 << 2;
const SET: u8 = 1 << 3;
const KEYED: u8 = 1 << 4;
const ATOMIC: u8 = 1 << 5;
const VERSIONS: u8 = 1 << 6;

/// The features of one sequence.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Features(u8);

impl Features {
    /// Adds what one write has shown: the object before it, and the answer.
    pub fn add(&mut self, step: &Step, before: &Value, status: u16, answer: &Value) {
        if status == 409 {
            let causes = answer["details"]["causes"].as_array().into_iter().flatten();
            let mut causes = causes.into_iter();
            if causes.any(|cause| cause["reason"] == "FieldManagerConflict") {
                self.0 |= CONFLICT;
            }
        }
        if status >= 300 || !step.answers_object() {
            return;
        }
        let (old, new) = (entries(before), entries(answer));
        let of_step =
            |entry: &&Value| entry["manager"] == step.manager && entry["operation"] == "Apply";
        let fields = |entry: &Value| entry["fieldsV1"].to_string();
        if step.is_forced() {
            let is_there = |entry: &Value| {
                let mut same = new
                    .iter()
                    .filter(|other| identity(other) == identity(entry));
                same.any(|other| fields(other) == fields(entry))
            };
            if old
                .iter()
                .filter(|entry| !of_step(entry))
                .any(|entry| !is_there(entry))
            {
                self.0 |= FORCE;
            }
        }
        if step.is_apply() {
            let own = |entries: &[Value]| {
                entries
                    .iter()
                    .find(of_step)
                    .map(|entry| entry["fieldsV1"].clone())
            };
            if let (Some(old), Some(new)) = (own(&old), own(&new))
                && !covers(&new, &old)
            {
                self.0 |= REMOVAL;
            }
        }
        for entry in &new {
            let text = fields(entry);
            self.0 |= if text.contains(r#""v:"#) { SET } else { 0 };
            self.0 |= if text.contains(r#""k:"#) { KEYED } else { 0 };
            self.0 |= if has_atomic(&entry["fieldsV1"], answer) {
                ATOMIC
            } else {
                0
            };
        }
        if new
            .windows(2)
            .any(|two| two[0]["apiVersion"] != two[1]["apiVersion"])
        {
            self.0 |= VERSIONS;
        }
    }
}

fn entries(object: &Value) -> Vec<Value> {
    let list = object["metadata"]["managedFields"].as_array();
    list.cloned().unwrap_or_default()
}

fn identity(entry: &Value) -> [Value; 4] {
    ["manager", "operation", "apiVersion", "subresource"].map(|name| entry[name].clone())
}

/// Returns true if one set of fields has all fields of another one.
fn covers(set: &Value, other: &Value) -> bool {
    let of = |value: &Value| value.as_object().cloned().unwrap_or_default();
    let set = of(set);
    let all = of(other);
    all.iter()
        .all(|(name, below)| set.get(name).is_some_and(|found| covers(found, below)))
}

/// Returns true if a set of fields has a list or map without fields below it.
fn has_atomic(set: &Value, value: &Value) -> bool {
    let empty = Map::new();
    let fields = set.as_object().unwrap_or(&empty);
    fields.iter().any(|(name, below)| {
        let Some(member) = name.strip_prefix("f:").and_then(|name| value.get(name)) else {
            return false;
        };
        let is_leaf = below.as_object().is_none_or(Map::is_empty);
        let has_content = match member {
            Value::Array(items) => !items.is_empty(),
            Value::Object(members) => !members.is_empty(),
            _ => false,
        };
        is_leaf && has_content || has_atomic(below, member)
    })
}

/// How many sequences have each feature.
#[derive(Clone, Copy, Debug, Default)]
pub struct Tally {
    sequences: usize,
    counts: [usize; NAMES.len()],
}

impl Tally {
    /// Counts a sequence.
    pub fn add(&mut self, features: Features) {
        self.sequences += 1;
        for (at, count) in self.counts.iter_mut().enumerate() {
            *count += usize::from(features.0 & (1 << at) != 0);
        }
    }

    /// Returns the features that fewer than `percent` of 100 sequences have.
    pub fn rarer_than(&self, percent: usize) -> Vec<&'static str> {
        let rare = |count: &usize| count * 100 < percent * self.sequences;
        let all = NAMES.into_iter().zip(self.counts);
        all.filter(|(_, count)| rare(count))
            .map(|(name, _)| name)
            .collect()
    }
}

impl fmt::Display for Tally {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (at, (name, count)) in NAMES.into_iter().zip(self.counts).enumerate() {
            let comma = if at == 0 { "" } else { ", " };
            write!(out, "{comma}{name} in {count}")?;
        }
        Ok(())
    }
}
