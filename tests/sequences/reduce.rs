//! Makes a sequence that differs as short as possible.

use anyhow::Result;
use serde_json::Value;

use super::play::{Outcome, Pair};
use super::sequence::{Body, Sequence};

/// The most times that a sequence is played to make it shorter. More rarely takes away anything.
const PLAYS_MAX: usize = 300;

/// Returns a shorter sequence that still differs, with what happened to it.
///
/// # Errors
/// Returns an error if a server cannot be reached.
pub async fn reduce(
    pair: &Pair,
    mut sequence: Sequence,
    mut outcome: Outcome,
) -> Result<(Sequence, Outcome)> {
    sequence.steps.truncate(outcome.sent);
    let mut plays = 0;
    loop {
        let mut found = None;
        for candidate in candidates(&sequence) {
            plays += 1;
            if plays > PLAYS_MAX {
                return Ok((sequence, outcome));
            }
            let shorter = pair.play(&candidate).await?;
            if is_like(&shorter, &outcome) {
                found = Some((candidate, shorter));
                break;
            }
        }
        match found {
            Some((candidate, shorter)) => {
                sequence = candidate;
                sequence.steps.truncate(shorter.sent);
                outcome = shorter;
            }
            None => return Ok((sequence, outcome)),
        }
    }
}

/// Returns true if a shorter sequence differs in a place where the longer one does.
fn is_like(shorter: &Outcome, longer: &Outcome) -> bool {
    let places = || {
        longer
            .differences
            .iter()
            .map(|difference| top(&difference.path))
    };
    let mut found = shorter.differences.iter();
    found.any(|difference| places().any(|place| place == top(&difference.path)))
}

fn top(path: &str) -> String {
    let parts: Vec<&str> = path.split('/').take(4).collect();
    parts.join("/")
}

/// Returns the sequences with one step or one member less; those with the most gone first.
fn candidates(sequence: &Sequence) -> Vec<Sequence> {
    let mut all = Vec::new();
    let last = sequence.steps.len().saturating_sub(1);
    for at in 0..last {
        let mut shorter = sequence.clone();
        shorter.steps.remove(at);
        all.push(shorter);
    }
    for (at, step) in sequence.steps.iter().enumerate() {
        let (Body::Sent(tree) | Body::WithVersion(tree)) = &step.body else {
            continue;
        };
        let mut places = Vec::new();
        places_of(tree, &mut String::new(), &mut places);
        places.sort_by_key(|place| place.matches('/').count());
        for place in places {
            let mut shorter = sequence.clone();
            if let Body::Sent(tree) | Body::WithVersion(tree) = &mut shorter.steps[at].body {
                remove(tree, &place);
            }
            all.push(shorter);
        }
    }
    all
}

fn places_of(tree: &Value, path: &mut String, places: &mut Vec<String>) {
    let mut below = |name: &str, value: &Value, path: &mut String| {
        let length = path.len();
        path.push('/');
        path.push_str(&name.replace('~', "~0").replace('/', "~1"));
        places.push(path.clone());
        places_of(value, path, places);
        path.truncate(length);
    };
    match tree {
        Value::Object(members) => members
            .iter()
            .filter(|(name, _)| {
                !["apiVersion", "kind", "name", "metadata"].contains(&name.as_str())
            })
            .chain(members.get_key_value("metadata"))
            .for_each(|(name, value)| below(name, value, path)),
        Value::Array(items) => {
            for (at, value) in items.iter().enumerate() {
                below(&at.to_string(), value, path);
            }
        }
        _ => {}
    }
}

fn remove(tree: &mut Value, place: &str) {
    let Some((parent, name)) = place.rsplit_once('/') else {
        return;
    };
    if place == "/metadata" {
        return;
    }
    let name = name.replace("~1", "/").replace("~0", "~");
    match tree.pointer_mut(parent) {
        Some(Value::Object(members)) => drop(members.remove(&name)),
        Some(Value::Array(items)) => {
            if let Ok(at) = name.parse::<usize>() {
                items.remove(at);
            }
        }
        _ => {}
    }
}
