//! Evictions: what responders do, one after the other, so that a pod goes.

use super::responders::{self, FINAL};
use super::{progress, target, validate_create, validate_status, validate_update};
use crate::shared::table_cells::{age_cell, name_cell};
use polyplane_apimachinery::Value;
use polyplane_apimachinery::complaints::Complaints;
use polyplane_apimachinery::names::NameRule;
use polyplane_apimachinery::time::{Timestamp, human_duration};
use polyplane_registry::strategy::{Context, Strategy, age};

/// Behaviour of Evictions.
#[derive(Debug)]
pub struct Eviction;

impl Strategy for Eviction {
    fn name_rule(&self) -> Option<NameRule> {
        Some(NameRule::GeneratedSubdomain)
    }

    fn validate_create(&self, _: &Context<'_>, object: &Value) -> Complaints {
        validate_create(object)
    }

    fn validate_update(&self, _: &Context<'_>, object: &Value, old: &Value) -> Complaints {
        validate_update(object, old)
    }

    fn validate_subresource(
        &self,
        context: &Context<'_>,
        object: &Value,
        old: &Value,
    ) -> Complaints {
        let mut errors = validate_status(object, old);
        let (status, before) = (&object["status"], &old["status"]);
        responders::validate(&mut errors, status, before, context.now);
        errors
    }

    fn cells(&self, object: &Value, now: i64) -> Vec<Value> {
        let [name, kind] = target(object);
        let responders = object.items_at(&["status", "targetResponders"]);
        let in_state = |states: &[&str]| {
            let mut all = responders.iter().rev();
            all.find(|one| states.contains(&one.str_at(&["state"])))
        };
        let current = in_state(&["Active"]).or_else(|| in_state(&FINAL));
        let begun = responders.iter();
        let begun = begun.filter(|one| {
            let state = one.str_at(&["state"]);
            state == "Active" || FINAL.contains(&state)
        });
        let shown = current.map_or("<unset>", |one| one.str_at(&["name"]));
        let cells = current.map_or_else(Responder::default, |one| responder(object, one, now));
        vec![
            name_cell(object),
            name,
            kind,
            progress(object).into(),
            format!("{shown} ({}/{})", begun.count(), responders.len()).into(),
            cells.state.into(),
            cells.completion.into(),
            requesters(object).into(),
            age_cell(object, now),
            cells.heartbeat.into(),
            cells.message.into(),
        ]
    }
}

/// What the table shows of the responder whose turn it is, or was last.
struct Responder {
    state: String,
    completion: String,
    heartbeat: String,
    message: String,
}

impl Default for Responder {
    fn default() -> Self {
        Self {
            state: "<unset>".to_owned(),
            completion: "<unknown>".to_owned(),
            heartbeat: "<unset>".to_owned(),
            message: "<unset>".to_owned(),
        }
    }
}

/// Returns what the responder of `object` named by `current` reports.
fn responder(object: &Value, current: &Value, now: i64) -> Responder {
    let mut shown = Responder::default();
    let mut reports = object.items_at(&["status", "responders"]).iter();
    let Some(report) = reports.find(|one| one["name"] == current["name"]) else {
        return shown;
    };
    let state = current.str_at(&["state"]);
    let since = |field: &str| {
        let time = report[field].as_str()?;
        Some(age(time, now).as_str().unwrap_or_default().to_owned())
    };
    state.clone_into(&mut shown.state);
    match state {
        "Active" => {
            if let Some(started) = since("startTime") {
                shown.state = format!("Started ({started} ago)");
                if let Some(time) = report["expectedCompletionTime"].as_str() {
                    shown.completion = completion(time, now);
                }
            }
        }
        "Completed" => {
            if let Some(completed) = since("completionTime") {
                shown.state = format!("{state} ({completed} ago)");
            }
            "-".clone_into(&mut shown.completion);
        }
        _ => "-".clone_into(&mut shown.completion),
    }
    if let Some(beat) = since("heartbeatTime") {
        shown.heartbeat = format!("{beat} ago");
    }
    let message = report.str_at(&["message"]).trim();
    if !message.is_empty() {
        message.clone_into(&mut shown.message);
    }
    shown
}

/// Returns the time at which a responder wants to be ready, from now.
fn completion(time: &str, now: i64) -> String {
    let Ok(at) = Timestamp::parse(time) else {
        return "<unknown>".to_owned();
    };
    let left = at.nanoseconds_since(Timestamp::from_seconds(now));
    match left > 0 {
        true => format!("in {}", human_duration(left)),
        false => format!("{} ago", human_duration(-left)),
    }
}

/// Returns who wants the eviction: the first by name, and how many more.
fn requesters(object: &Value) -> String {
    let all = object.items_at(&["status", "requesters"]);
    let wanting = all.iter();
    let wanting = wanting.filter(|one| one.str_at(&["intent"]) != "Withdrawn");
    let mut names: Vec<&str> = wanting.map(|one| one.str_at(&["name"])).collect();
    names.sort_unstable();
    match names[..] {
        [] if all.is_empty() => "<none>".to_owned(),
        [] => "<withdrawn>".to_owned(),
        [""] => "<unset>".to_owned(),
        [only] => only.to_owned(),
        [first, ..] => format!("{first} + {} more...", names.len() - 1),
    }
}
