//! The responders in the status of an Eviction. They act one after the other, by priority; each reports its
//! progress, and no state is ever taken back. Several programs write the status, so each change is checked
//! against the state before and the clock.

use super::conditions_hold;
use crate::shared::validation::bad_value;
use crate::shared::validation::complaints::{IMMUTABLE, named};
use polyplane_apimachinery::Value;
use polyplane_apimachinery::complaints::Complaints;
use polyplane_apimachinery::field_error::{Bad, FieldError, Path};
use polyplane_apimachinery::time::Timestamp;
use std::collections::BTreeSet;

/// Number of responders at most, as the schema declares.
const RESPONDERS_MAX: usize = 11;
/// Upstream's own responder, and its priority.
const IMPERATIVE: (&str, i64) = ("imperative-eviction.k8s.io/evictor", 100);
/// Priorities below are for upstream's responders.
const PRIORITY_MIN: i64 = 1000;
const SECOND: i64 = 1_000_000_000;
/// Nanoseconds after which a responder that does not report is passed over.
const HEARTBEAT: i64 = 20 * 60 * SECOND;
/// Nanoseconds by which the clock of a writer may differ.
const SKEW: i64 = 30 * SECOND;
/// Nanoseconds after which a responder is ready at the latest: ten years.
const COMPLETION_MAX: i64 = 10 * 365 * 24 * 3600 * SECOND;
const TARGET: &str = "io.k8s.api.lifecycle.v1alpha1.TargetResponder";
const REPORT: &str = "io.k8s.api.lifecycle.v1alpha1.ResponderStatus";
const CONDITION: &str = "io.k8s.apimachinery.pkg.apis.meta.v1.Condition";
/// The states that a responder never leaves.
pub const FINAL: [&str; 3] = ["Canceled", "Completed", "Interrupted"];

/// The status, the status before, and what follows from them.
struct Change<'a> {
    new: &'a Value,
    old: &'a Value,
    /// True if the eviction has ended, one way or the other.
    is_final: bool,
    /// Nanoseconds since 1970.
    now: i64,
}

/// Validates the responders of a changed status, and that an eviction that has ended stays so. `now` is in
/// seconds since 1970.
pub fn validate(errors: &mut Complaints, new: &Value, old: &Value, now: i64) {
    let path = Path::new("status");
    let mut is_final = false;
    for kind in ["TargetEvicted", "Failed"] {
        let (held, holds) = (conditions_hold(old, kind), conditions_hold(new, kind));
        let kept = new.items_at(&["conditions"]).iter();
        let mut kept = kept.filter(|condition| condition.str_at(&["type"]) == kind);
        let is_reverted = held.is_some_and(|held| {
            kept.next().is_none_or(|kept| {
                kept.str_at(&["status"]) == "False" || kept["reason"] != held["reason"]
            })
        });
        is_final |= holds.is_some() || is_reverted;
        if is_reverted {
            let bad = bad_value::list(CONDITION, new.items_at(&["conditions"]));
            let detail = format!("{kind} condition status cannot be reverted");
            errors.push(FieldError::invalid(&path.child("conditions"), bad, detail));
        }
    }
    let change = Change {
        new,
        old,
        is_final,
        now: now.saturating_mul(SECOND),
    };
    change.validate_targets(errors, &path.child("targetResponders"));
    change.validate_reports(errors, &path.child("responders"));
}

impl Change<'_> {
    fn validate_targets(&self, errors: &mut Complaints, path: &Path<'_>) {
        let [new, old] = [self.new, self.old].map(|status| status.items_at(&["targetResponders"]));
        let refused =
            |detail: &str| FieldError::invalid(path, bad_value::list(TARGET, new), detail);
        if !old.is_empty() && new.len() != old.len() {
            return errors.push(refused("must preserve the same length and the same keys"));
        }
        let names = names(new);
        if old.iter().any(|old| !names.contains(name(old))) {
            return errors.push(refused("must preserve the same keys"));
        }
        // The schema refuses what is too long or has doubles.
        if new.is_empty() || new.len() > RESPONDERS_MAX || names.len() < new.len() {
            return;
        }
        let (new, old) = (by_turn(new), by_turn(old));
        for (turn, (at, target)) in new.iter().enumerate() {
            let expected = self.expected(turn, &new, &old);
            self.validate_target(errors, &path.index(*at), target, &expected);
        }
    }

    /// Returns the states that the responder with this turn may have, and why.
    fn expected(&self, turn: usize, new: &[Turn<'_>], old: &[Turn<'_>]) -> (Vec<String>, &str) {
        let state = |list: &[Turn<'_>], at: usize| list[at].1.str_at(&["state"]).to_owned();
        let finals = || FINAL.map(str::to_owned).to_vec();
        let active = (0..old.len()).find(|at| state(old, *at) == "Active");
        let has_changed = active.is_some_and(|at| state(new, at) != "Active");
        let is_processed = old
            .last()
            .is_some_and(|(_, last)| self.is_final || FINAL.contains(&last.str_at(&["state"])));
        let is_before = active.is_some_and(|active| turn < active);
        let is_next = match active {
            Some(active) => has_changed && turn == active + 1,
            None => old.is_empty() && turn == 0,
        };
        if is_before || active.is_none() && is_processed {
            (vec![state(old, turn)], "final state is immutable")
        } else if active == Some(turn) && has_changed {
            (finals(), "this responder must reach a final state")
        } else if active == Some(turn) && self.is_final {
            (finals(), ENDED)
        } else if active == Some(turn) {
            (
                vec!["Active".to_owned()],
                "the eviction request stays active",
            )
        } else if is_next && self.is_final {
            (vec!["Inactive".to_owned()], ENDED)
        } else if is_next {
            (vec!["Active".to_owned()], "this responder is next in line")
        } else {
            let why = "the previously active has not finished processing";
            (vec!["Inactive".to_owned()], why)
        }
    }

    fn validate_target(
        &self,
        errors: &mut Complaints,
        path: &Path<'_>,
        target: &Value,
        (expected, why): &(Vec<String>, &str),
    ) {
        let reports = self.new.items_at(&["responders"]);
        let Some(report) = reports.iter().rfind(|report| name(report) == name(target)) else {
            let detail = format!(
                "{:?} has to be tracked in status.responders first",
                name(target)
            );
            let bad = bad_value::typed(TARGET, target);
            return errors.push(FieldError::invalid(path, bad, detail));
        };
        if let Some(priority) = target
            .int_at(&["priority"])
            .filter(|priority| *priority >= 0)
        {
            let detail = match name(target) == IMPERATIVE.0 {
                true if priority == IMPERATIVE.1 => None,
                true => Some(format!(
                    "core k8s responder is expected to have priority: {}",
                    IMPERATIVE.1
                )),
                false => (priority < PRIORITY_MIN).then(|| {
                    "priorities 0-999 are reserved for responders with *.k8s.io suffix".to_owned()
                }),
            };
            if let Some(detail) = detail {
                let place = path.child("priority");
                errors.push(FieldError::invalid(&place, priority, detail));
            }
        }
        let state = target.str_at(&["state"]);
        let place = path.child("state");
        if !expected.iter().any(|expected| expected == state) {
            let detail = format!("must be one of: {}, because {why}", expected.join(", "));
            return errors.push(FieldError::invalid(&place, named(state), detail));
        }
        let completed = time(report, "completionTime");
        let last = time(report, "heartbeatTime").or(time(report, "startTime"));
        let last = last.filter(|_| time(report, "startTime").is_some());
        let is_in_progress = last.is_some_and(|last| self.now < last + HEARTBEAT - SKEW);
        if state != "Active" && completed.is_none() && !self.is_final && is_in_progress {
            let detail = "must stay Active because the responder is in progress and it should report status.responders.heartbeatTime or status.responders.completionTime";
            errors.push(FieldError::forbidden(&place, detail));
        }
        if state == "Completed" && completed.is_none() {
            let detail = "cannot become Completed because the responder didn't report status.responders.completionTime";
            errors.push(FieldError::invalid(&place, named(state), detail));
        }
    }

    fn validate_reports(&self, errors: &mut Complaints, path: &Path<'_>) {
        let targets = self.new.items_at(&["targetResponders"]);
        let reports = self.new.items_at(&["responders"]);
        let refused =
            |detail: &str| FieldError::invalid(path, bad_value::list(REPORT, reports), detail);
        if targets.len() != reports.len() {
            let detail =
                "must be the same length as status.targetResponders and contain the same keys";
            return errors.push(refused(detail));
        }
        let names = names(reports);
        if targets.iter().any(|target| !names.contains(name(target))) {
            let detail = "must contain the same keys as status.targetResponders";
            return errors.push(refused(detail));
        }
        if reports.len() > RESPONDERS_MAX || names.len() < reports.len() {
            return;
        }
        for (at, report) in reports.iter().enumerate() {
            let mut targets = targets.iter();
            let target = targets.rfind(|target| name(target) == name(report));
            let state = target.map_or("", |target| target.str_at(&["state"]));
            let old = self.old.items_at(&["responders"]).iter();
            let old = old.rev().find(|old| name(old) == name(report));
            self.validate_report(errors, &path.index(at), (report, old), state == "Active");
        }
    }

    /// Validates what a responder reports. Only an active one may change it.
    fn validate_report(
        &self,
        errors: &mut Complaints,
        path: &Path<'_>,
        (report, old): (&Value, Option<&Value>),
        is_active: bool,
    ) {
        if old.is_some_and(|old| !is_active && old != report) {
            let bad = bad_value::typed(REPORT, report);
            return errors.push(FieldError::invalid(path, bad, IMMUTABLE));
        }
        let at = |field: &str| (time(report, field), old.and_then(|old| time(old, field)));
        let refuse = |errors: &mut Complaints, field: &str, detail: &str| {
            let bad = Bad::Json(report[field].clone());
            errors.push(FieldError::invalid(&path.child(field), bad, detail));
        };
        let is_near = |time: i64| (time - self.now).abs() < SKEW;
        let (started, before) = at("startTime");
        let is_kept = before.is_none() || before == started;
        match started {
            _ if !is_kept => {}
            None if is_active => {
                let detail = "is required for an active responder";
                errors.push(FieldError::required(&path.child("startTime"), detail));
            }
            Some(time) if before.is_none() && !is_near(time) => {
                refuse(errors, "startTime", "must be set to the present time");
            }
            _ => {}
        }
        let early = format!("cannot be set before {} is set", path.child("startTime"));
        let late = format!("must occur after {}", path.child("startTime"));
        // What is wrong with a time that must lie behind the start.
        let behind = |time: i64| match started {
            None => Some(early.as_str()),
            Some(started) if time < started => Some(late.as_str()),
            Some(_) => None,
        };
        let (beat, before) = at("heartbeatTime");
        if before.is_some() && beat.is_none() {
            let detail = "is required once set";
            errors.push(FieldError::required(&path.child("heartbeatTime"), detail));
        }
        if let Some(time) = beat.filter(|_| beat != before) {
            let decreased = before.filter(|before| started.is_some() && time < *before);
            let decreased = decreased.map(|_| "cannot be decreased");
            let present = (!is_near(time)).then_some("must be set to the present time");
            if let Some(detail) = decreased.or_else(|| behind(time)).or(present) {
                refuse(errors, "heartbeatTime", detail);
            }
        }
        let (expected, before) = at("expectedCompletionTime");
        if let Some(time) = expected.filter(|_| expected != before) {
            let past = (time < self.now - SKEW).then_some("cannot be set to the past time");
            let far = time > self.now.saturating_add(COMPLETION_MAX);
            let far = far.then_some("must complete within 10 years");
            if let Some(detail) = behind(time).or(past).or(far) {
                refuse(errors, "expectedCompletionTime", detail);
            }
        }
        let (completed, before) = at("completionTime");
        if let Some(time) = completed.filter(|_| before.is_none() || before == completed) {
            let is_new = before.is_none() && !is_near(time);
            let present = is_new.then_some("must be set to the present time");
            if let Some(detail) = behind(time).or(present) {
                refuse(errors, "completionTime", detail);
            }
        }
    }
}

const ENDED: &str = "the eviction request has finished processing";

/// A responder with its place in the list.
type Turn<'a> = (usize, &'a Value);

/// Returns responders in the order in which they act: those with the highest priority first, then by the names
/// of their domains, the last part first.
fn by_turn(list: &[Value]) -> Vec<Turn<'_>> {
    let mut turns: Vec<Turn<'_>> = list.iter().enumerate().collect();
    turns.sort_by(|(_, left), (_, right)| {
        let priority = |of: &Value| of.int_at(&["priority"]);
        let first = priority(right).cmp(&priority(left));
        first.then_with(|| parts(left).cmp(&parts(right)))
    });
    turns
}

/// Returns the parts of the domain in a name, the last one first, and the rest of the name.
fn parts(responder: &Value) -> (Vec<&str>, &str) {
    let name = name(responder);
    let (domain, key) = name.split_once('/').unwrap_or((name, ""));
    (domain.rsplit('.').collect(), key)
}

fn names(list: &[Value]) -> BTreeSet<&str> {
    list.iter().map(name).collect()
}

fn name(responder: &Value) -> &str {
    responder.str_at(&["name"])
}

/// Returns a time in nanoseconds since 1970.
fn time(of: &Value, field: &str) -> Option<i64> {
    let time = Timestamp::parse(of[field].as_str()?).ok()?;
    Some(time.nanoseconds_since(Timestamp::from_seconds(0)))
}

#[cfg(test)]
mod tests {
    use super::*;
    use polyplane_apimachinery::json;

    const NOW: i64 = 1_715_000_000;

    fn errors(new: &Value, old: &Value) -> Vec<String> {
        let mut errors = Complaints::default();
        validate(&mut errors, new, old, NOW);
        errors.iter().map(ToString::to_string).collect()
    }

    fn status(states: [&str; 2], started: [Option<&str>; 2]) -> Value {
        let names = ["a.example.com/x", "b.example.com/x"];
        let target = |at: usize| {
            let priority = [2000i64, 1000][at];
            json!({"name": (names[at]), "priority": priority, "state": (states[at])})
        };
        let report = |at: usize| {
            let mut report = json!({"name": (names[at])});
            if let Some(time) = started[at] {
                report.set(&["startTime"], time);
            }
            report
        };
        let (targets, reports) = ([0, 1].map(target), [0, 1].map(report));
        json!({
            "targetResponders": (Value::Array(targets.into())),
            "responders": (Value::Array(reports.into()))
        })
    }

    #[test]
    fn responders_act_by_priority_and_domain() {
        let list = json!([
            {"name": "example.com/b", "priority": 1i64},
            {"name": "a.example.com/z", "priority": 1i64},
            {"name": "example.com/a", "priority": 1i64},
            {"name": "x.org/a", "priority": 2i64}
        ]);
        let turns = by_turn(list.as_array().expect("a list"));
        let places: Vec<usize> = turns.iter().map(|(at, _)| *at).collect();
        assert_eq!(places, [3, 2, 0, 1]);
    }

    #[test]
    fn the_first_is_active_and_the_next_once_it_is_passed_over() {
        let (present, long_ago) = (Some("2024-05-06T12:53:20Z"), Some("2024-05-06T12:00:00Z"));
        let first = status(["Active", "Inactive"], [present, None]);
        assert_eq!(errors(&first, &Value::Null), Vec::<String>::new());
        let says = |texts: &[String], words: &str| texts.iter().any(|text| text.contains(words));
        let skipped = errors(&status(["Inactive", "Active"], [present, None]), &first);
        assert!(says(&skipped, "must reach a final state"), "{skipped:?}");
        let next = status(["Interrupted", "Active"], [present, present]);
        let early = errors(&next, &first);
        assert!(says(&early, "must stay Active"), "{early:?}");
        let first = status(["Active", "Inactive"], [long_ago, None]);
        let next = status(["Interrupted", "Active"], [long_ago, present]);
        assert_eq!(errors(&next, &first), Vec::<String>::new());
    }
}
