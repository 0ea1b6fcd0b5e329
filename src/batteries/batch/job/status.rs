//! Validation of a changed status of a Job.
//!
//! Most rules are only checked if their fields have changed, so that an invalid status can be
//! repaired step by step.

use super::{indexes, is_true};
use crate::shared::object_metadata;
use crate::shared::validation::bad_value;
use crate::shared::validation::members::has;
use crate::shared::validation::numbers::non_negative_members;
use polyplane_apimachinery::Value;
use polyplane_apimachinery::complaints::Complaints;
use polyplane_apimachinery::field_error::{Bad, FieldError, Path};
use polyplane_apimachinery::time::Timestamp;
use std::collections::BTreeSet;

/// Validates the new status.
pub fn validate(object: &Value, old: &Value) -> Complaints {
    let mut errors = object_metadata::validate_finalizers(object);
    let path = Path::new("status");
    let change = StatusUpdate {
        object,
        old,
        new: &object["status"],
        before: &old["status"],
    };
    let counts = ["active", "succeeded", "failed", "ready", "terminating"];
    non_negative_members(change.new, &counts, &path, &mut errors);
    uncounted(
        change.new,
        &path.child("uncountedTerminatedPods"),
        &mut errors,
    );
    change.times(&path, &mut errors);
    change.finished(&path, &mut errors);
    change.indexes(&path, &mut errors);
    change.counters(&path, &mut errors);
    change.conditions(&path, &mut errors);
    change.history(&path, &mut errors);
    errors
}

struct StatusUpdate<'a> {
    object: &'a Value,
    old: &'a Value,
    new: &'a Value,
    before: &'a Value,
}

fn is_finished(object: &Value) -> bool {
    is_true(object, "Complete") || is_true(object, "Failed")
}

fn uncounted(status: &Value, path: &Path<'_>, errors: &mut Complaints) {
    let mut seen = BTreeSet::new();
    for list in ["succeeded", "failed"] {
        let place = path.child(list);
        for (at, uid) in status["uncountedTerminatedPods"]
            .items_at(&[list])
            .iter()
            .enumerate()
        {
            let (uid, place) = (uid.as_str().unwrap_or(""), place.index(at));
            let bad = Bad::Json(uid.into());
            if uid.is_empty() {
                errors.push(FieldError::invalid(&place, bad, "must not be empty"));
            } else if !seen.insert(uid) {
                errors.push(FieldError::duplicate(&place, bad));
            }
        }
    }
}

impl StatusUpdate<'_> {
    fn of(&self, field: &str) -> bool {
        self.new[field] != self.before[field]
    }

    fn count(&self, field: &str) -> bool {
        self.new.int_at(&[field]).unwrap_or(0) != self.before.int_at(&[field]).unwrap_or(0)
    }

    fn text(&self, field: &str) -> bool {
        self.new.str_at(&[field]) != self.before.str_at(&[field])
    }

    fn condition(&self, kind: &str) -> bool {
        is_true(self.object, kind) != is_true(self.old, kind)
    }

    fn finish(&self) -> bool {
        is_finished(self.object) != is_finished(self.old)
    }

    fn times(&self, path: &Path<'_>, errors: &mut Complaints) {
        let (place, end) = (path.child("completionTime"), &self.new["completionTime"]);
        let complete = is_true(self.object, "Complete");
        if self.condition("Complete") || self.of("completionTime") {
            if !end.is_null() && !complete {
                let detail = "cannot set completionTime when there is no Complete=True condition";
                errors.push(FieldError::invalid(&place, end.clone(), detail));
            }
            if end.is_null() && complete {
                errors.push(FieldError::required(
                    &place,
                    "completionTime is required for Complete jobs",
                ));
            }
        }
        if self.of("startTime") || self.of("completionTime") {
            let time = |field: &str| Timestamp::parse(self.new.str_at(&[field])).ok();
            if let (Some(start), Some(stop)) = (time("startTime"), time("completionTime"))
                && stop.nanoseconds_since(start) < 0
            {
                errors.push(FieldError::invalid(
                    &place,
                    end.clone(),
                    "must be equal to or after `startTime`",
                ));
            }
        }
    }

    fn finished(&self, path: &Path<'_>, errors: &mut Complaints) {
        if !is_finished(self.object) {
            return;
        }
        let (new, spec) = (self.new, &self.object["spec"]);
        let number = |field: &str| new.int_at(&[field]).unwrap_or(0);
        if (self.finish() || self.count("active")) && number("active") > 0 {
            let detail = "active>0 is invalid for finished job";
            errors.push(FieldError::invalid(
                &path.child("active"),
                number("active"),
                detail,
            ));
        }
        let ran_nothing = spec.bool_at(&["suspend"]) && spec.int_at(&["completions"]) == Some(0);
        if (self.finish() || self.of("startTime")) && !ran_nothing && !has(new, "startTime") {
            errors.push(FieldError::required(
                &path.child("startTime"),
                "startTime is required for finished job",
            ));
        }
        let pods = &new["uncountedTerminatedPods"];
        let uncounted = ["failed", "succeeded"]
            .iter()
            .any(|list| !pods.items_at(&[list]).is_empty());
        if (self.finish() || self.of("uncountedTerminatedPods")) && uncounted {
            let bad = bad_value::typed("io.k8s.api.batch.v1.UncountedTerminatedPods", pods);
            let place = path.child("uncountedTerminatedPods");
            errors.push(FieldError::invalid(
                &place,
                bad,
                "must be empty for finished job",
            ));
        }
        if (self.finish() || self.of("terminating")) && number("terminating") > 0 {
            let detail = "terminating>0 is invalid for finished job";
            errors.push(FieldError::invalid(
                &path.child("terminating"),
                number("terminating"),
                detail,
            ));
        }
    }

    fn indexes(&self, path: &Path<'_>, errors: &mut Complaints) {
        let spec = &self.object["spec"];
        let (completed, failed) = (
            self.new.str_at(&["completedIndexes"]),
            self.new["failedIndexes"].as_str(),
        );
        let (completed_changed, failed_changed) =
            (self.text("completedIndexes"), self.of("failedIndexes"));
        let mut invalid = |field: &str, bad: &str, detail: String| {
            errors.push(FieldError::invalid(&path.child(field), bad, detail));
        };
        let completions = spec.int_at(&["completions"]);
        let per_index = has(spec, "backoffLimitPerIndex");
        if let (true, Some(completions)) = (completed_changed, completions)
            && let Err(error) = indexes::count(completed, completions)
        {
            invalid(
                "completedIndexes",
                completed,
                format!("error parsing completedIndexes: {error}"),
            );
        }
        if let (true, true, Some(completions), Some(failed)) =
            (failed_changed, per_index, completions, failed)
            && let Err(error) = indexes::count(failed, completions)
        {
            invalid(
                "failedIndexes",
                failed,
                format!("error parsing failedIndexes: {error}"),
            );
        }
        if completed_changed
            && !completed.is_empty()
            && spec.str_at(&["completionMode"]) != "Indexed"
        {
            let detail = "cannot set non-empty completedIndexes when non-indexed completion mode";
            invalid("completedIndexes", completed, detail.to_owned());
        }
        let Some(failed) = failed else { return };
        if failed_changed && !per_index {
            let detail = "cannot set non-null failedIndexes when backoffLimitPerIndex is null";
            invalid("failedIndexes", failed, detail.to_owned());
        }
        if let (true, Some(completions)) = (failed_changed || completed_changed, completions)
            && let Some(index) = indexes::overlap(completed, failed, completions)
        {
            let detail = format!("failedIndexes and completedIndexes overlap at index: {index}");
            invalid("failedIndexes", failed, detail);
        }
    }

    fn counters(&self, path: &Path<'_>, errors: &mut Complaints) {
        let number = |status: &Value, field: &str| status.int_at(&[field]).unwrap_or(0);
        let ready = number(self.new, "ready");
        if (self.of("ready") || self.count("active"))
            && has(self.new, "ready")
            && ready > number(self.new, "active")
        {
            let detail = "cannot set more ready pods than active";
            errors.push(FieldError::invalid(&path.child("ready"), ready, detail));
        }
        let spec = &self.object["spec"];
        let elastic = spec.str_at(&["completionMode"]) == "Indexed"
            && spec["completions"] == spec["parallelism"];
        for field in ["failed", "succeeded"] {
            let new = number(self.new, field);
            if new < number(self.before, field) && !(field == "succeeded" && elastic) {
                let detail = format!("cannot decrease the {field} counter");
                errors.push(FieldError::invalid(&path.child(field), new, detail));
            }
        }
    }

    fn conditions(&self, path: &Path<'_>, errors: &mut Complaints) {
        let is = |kind: &str| is_true(self.object, kind);
        let (complete, failed) = (is("Complete"), is("Failed"));
        let (target, success) = (is("FailureTarget"), is("SuccessCriteriaMet"));
        let place = path.child("conditions");
        let mut refuse = |bad: bool, detail: &str| {
            if bad {
                errors.push(FieldError::invalid(&place, Bad::Omitted, detail));
            }
        };
        let changed = |kind: &str| self.condition(kind);
        let ends = changed("Complete") || changed("Failed");
        refuse(
            ends && complete && failed,
            "cannot set Complete=True and Failed=true conditions",
        );
        let aims = changed("Complete") || changed("FailureTarget");
        refuse(
            aims && complete && target,
            "cannot set Complete=True and FailureTarget=true conditions",
        );
        let fails = changed("Failed") || self.of("failedIndexes");
        refuse(
            fails && failed && !target,
            "cannot set Failed=True condition without the FailureTarget=true condition",
        );
        let succeeds = changed("Complete") || changed("SuccessCriteriaMet");
        refuse(
            succeeds && complete && !success,
            "cannot set Complete=True condition without the SuccessCriteriaMet=true condition",
        );
        refuse(
            success && failed,
            "cannot set SuccessCriteriaMet=True and Failed=true conditions",
        );
        refuse(
            success && target,
            "cannot set SuccessCriteriaMet=True and FailureTarget=true conditions",
        );
        let has_policy = has(&self.object["spec"], "successPolicy");
        refuse(
            has_policy && !success && complete,
            "cannot set Complete=True for Job with SuccessPolicy unless SuccessCriteriaMet=True",
        );
        for kind in ["Failed", "Complete", "FailureTarget"] {
            let detail = format!("cannot disable the terminal {kind}=True condition");
            refuse(is_true(self.old, kind) && !is(kind), &detail);
        }
        let was = is_true(self.old, "SuccessCriteriaMet");
        refuse(
            was && !success,
            "cannot disable the SuccessCriteriaMet=True condition",
        );
        refuse(
            is_true(self.old, "Complete") && !was && success,
            "cannot set SuccessCriteriaMet=True for Job already has Complete=true conditions",
        );
    }

    fn history(&self, path: &Path<'_>, errors: &mut Complaints) {
        let (end, was) = (&self.new["completionTime"], &self.before["completionTime"]);
        if !end.is_null() && !was.is_null() && end != was {
            errors.push(FieldError::invalid(
                &path.child("completionTime"),
                end.clone(),
                "field is immutable",
            ));
        }
        let suspended = |object: &Value, status: &str| {
            let mut conditions = object["status"].items_at(&["conditions"]).iter();
            conditions.any(|one| {
                one.str_at(&["type"]) == "Suspended" && one.str_at(&["status"]) == status
            })
        };
        let resumes = suspended(self.old, "True") && suspended(self.object, "False");
        let fixed = has(self.before, "startTime") && !self.object.bool_at(&["spec", "suspend"]);
        if self.of("startTime") && fixed && !resumes {
            let detail = "field is immutable for unsuspended job once set";
            let bad = Bad::Json(self.new["startTime"].clone());
            errors.push(FieldError::invalid(&path.child("startTime"), bad, detail));
        }
    }
}
