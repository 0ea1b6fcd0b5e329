//! CronJobs.

pub mod schedule;

use super::job::{self, Owner};
use crate::shared::object_metadata;
use crate::shared::pod::{defaults, init_annotations, table_cells};
use crate::shared::validation::bad_value;
use crate::shared::validation::complaints::named;
use crate::shared::validation::members::has;
use crate::shared::validation::numbers::non_negative_members;
use crate::shared::workload::{self, shown_selector};
use polyplane_apimachinery::Value;
use polyplane_apimachinery::complaints::Complaints;
use polyplane_apimachinery::field_error::{FieldError, Path};
use polyplane_registry::settings::Privileged;
use polyplane_registry::strategy::{Context, Strategy, age};

const TEMPLATE: [&str; 4] = ["spec", "jobTemplate", "spec", "template"];
/// Longest name of a CronJob: a Job's name has at most 63 characters, of which the controller needs
/// 11 for its suffix.
const NAME_BYTES_MAX: usize = 52;
/// The warning about a time zone in the schedule. It names the field as upstream does, by another path than it has.
const ZONE_IN_SCHEDULE: &str = "cannot use TZ or CRON_TZ in spec.spec.schedule, use timeZone instead, see https://kubernetes.io/docs/concepts/workloads/controllers/cron-jobs/ for more details";

/// Behaviour of CronJobs.
#[derive(Debug)]
pub struct CronJob;

impl Strategy for CronJob {
    fn default(&self, object: &mut Value) {
        defaults::default_template_at(object, &TEMPLATE);
    }

    fn prepare_create(&self, _: &Context<'_>, object: &mut Value) {
        init_annotations::drop_at(object, &TEMPLATE);
    }

    fn prepare_update(&self, _: &Context<'_>, object: &mut Value, _: &Value) {
        init_annotations::drop_at(object, &TEMPLATE);
    }

    fn prepare_subresource(&self, _: &Context<'_>, object: &mut Value, old: &Value) {
        object.set(&["spec"], old["spec"].clone());
    }

    fn validate_create(&self, context: &Context<'_>, object: &Value) -> Complaints {
        let mut errors = spec_errors(object, None, context.settings.privileged);
        let name = object.str_at(&["metadata", "name"]);
        if name.len() > NAME_BYTES_MAX {
            let path = Path::new("metadata");
            let detail = format!("must be no more than {NAME_BYTES_MAX} characters");
            errors.push(FieldError::invalid(&path.child("name"), name, detail));
        }
        errors
    }

    fn validate_update(&self, context: &Context<'_>, object: &Value, old: &Value) -> Complaints {
        spec_errors(object, Some(old), context.settings.privileged)
    }

    fn warnings(&self, context: &Context<'_>, object: &Value, old: Option<&Value>) -> Vec<String> {
        match context.subresource {
            "status" => Vec::new(),
            _ => warnings(object, old),
        }
    }

    fn cells(&self, object: &Value, now: i64) -> Vec<Value> {
        let (spec, status) = (&object["spec"], &object["status"]);
        let job = &spec["jobTemplate"]["spec"];
        let (names, images) = table_cells::containers(&job["template"]["spec"]);
        let suspended = match spec["suspend"].as_bool() {
            None => "<unset>",
            Some(true) => "True",
            Some(false) => "False",
        };
        let last = match status["lastScheduleTime"].as_str() {
            Some(time) => age(time, now),
            None => "<none>".into(),
        };
        vec![
            object.str_at(&["metadata", "name"]).into(),
            spec.str_at(&["schedule"]).into(),
            spec["timeZone"].as_str().unwrap_or("<none>").into(),
            suspended.into(),
            (status.items_at(&["active"]).len() as i64).into(),
            last,
            age(object.str_at(&["metadata", "creationTimestamp"]), now),
            names.into(),
            images.into(),
            shown_selector(&job["selector"]).into(),
        ]
    }
}

fn warnings(object: &Value, old: Option<&Value>) -> Vec<String> {
    let mut warnings: Vec<String> = workload::name_warning(object, old).into_iter().collect();
    if workload::has_changed(object, old) {
        let job = &object["spec"]["jobTemplate"]["spec"];
        let path = Path::new("spec.jobTemplate.spec");
        warnings.extend(job::spec::warnings(job, &path));
    }
    if old.is_some() && object.str_at(&["spec", "schedule"]).contains("TZ") {
        warnings.push(ZONE_IN_SCHEDULE.to_owned());
    }
    warnings
}

fn spec_errors(object: &Value, old: Option<&Value>, privileged: Privileged) -> Complaints {
    let mut errors = object_metadata::validate_finalizers(object);
    let (spec, path) = (&object["spec"], Path::new("spec"));
    let before = old.map(|old| &old["spec"]);
    schedule(spec, before, &path.child("schedule"), &mut errors);
    non_negative_members(spec, &["startingDeadlineSeconds"], &path, &mut errors);
    if before.is_none_or(|before| before["timeZone"] != spec["timeZone"]) {
        zone(&spec["timeZone"], &path.child("timeZone"), &mut errors);
    }
    let (policy, place) = (
        spec.str_at(&["concurrencyPolicy"]),
        path.child("concurrencyPolicy"),
    );
    match policy {
        "" => errors.push(FieldError::required(&place, "")),
        "Allow" | "Forbid" | "Replace" => {}
        _ => errors.push(FieldError::not_supported(
            &place,
            named(policy),
            &["Allow", "Forbid", "Replace"],
        )),
    }
    let job = &spec["jobTemplate"]["spec"];
    let place = path.child("jobTemplate");
    let place = place.child("spec");
    let old_job = before.map(|before| &before["jobTemplate"]["spec"]);
    let before = (old_job, privileged);
    job::spec::validate(job, before, Owner::CronJob, &place, &mut errors);
    if has(job, "selector") {
        let bad = bad_value::selector(&job["selector"]);
        errors.push(FieldError::invalid(
            &place.child("selector"),
            bad,
            "`selector` will be auto-generated",
        ));
    }
    if job.bool_at(&["manualSelector"]) {
        errors.push(FieldError::not_supported(
            &place.child("manualSelector"),
            true,
            &["nil", "false"],
        ));
    }
    non_negative_members(
        spec,
        &["successfulJobsHistoryLimit", "failedJobsHistoryLimit"],
        &path,
        &mut errors,
    );
    errors
}

fn schedule(spec: &Value, before: Option<&Value>, path: &Path<'_>, errors: &mut Complaints) {
    let text = spec.str_at(&["schedule"]);
    if text.is_empty() {
        errors.push(FieldError::required(path, ""));
        return;
    }
    if let Some(detail) = schedule::complaint(text) {
        errors.push(FieldError::invalid(path, text, detail));
    }
    let had_zone = before.is_some_and(|before| before.str_at(&["schedule"]).contains("TZ"));
    match (text.contains("TZ"), had_zone) {
        (true, true) if has(spec, "timeZone") => {
            let detail = "cannot use both timeZone field and TZ or CRON_TZ in schedule";
            errors.push(FieldError::invalid(path, text, detail));
        }
        (true, false) => {
            let detail = "cannot use TZ or CRON_TZ in schedule, use timeZone field instead";
            errors.push(FieldError::invalid(path, text, detail));
        }
        _ => {}
    }
}

fn zone(zone: &Value, path: &Path<'_>, errors: &mut Complaints) {
    let Some(name) = zone.as_str() else { return };
    let mut complain = |detail: String| errors.push(FieldError::invalid(path, named(name), detail));
    if name.is_empty() {
        return complain("timeZone must be nil or non-empty string".to_owned());
    }
    let is_odd = |part: &str| {
        matches!(part, "." | ".." | "")
            || part.starts_with('-')
            || part.len() > 14
            || !part
                .bytes()
                .all(|byte| byte.is_ascii_alphanumeric() || b".-_+".contains(&byte))
    };
    if name.split('/').any(is_odd) {
        return complain(format!("unknown time zone {name}"));
    }
    let is_local = name.eq_ignore_ascii_case("Local");
    if is_local {
        let detail =
            "timeZone must be an explicit time zone as defined in https://www.iana.org/time-zones";
        complain(detail.to_owned());
    }
    if name != "Local" && !schedule::is_zone(name) {
        complain(format!("unknown time zone {name}"));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use polyplane_apimachinery::json;

    #[test]
    fn a_zone_in_the_schedule_is_warned_about_whenever_a_cron_job_changes() {
        let scheduled = |schedule: &str| json!({"spec": {"schedule": schedule}});
        for (schedule, wanted) in [
            ("0 1 * * *", Vec::new()),
            ("TZ=UTC 0 1 * * *", vec![ZONE_IN_SCHEDULE.to_owned()]),
            ("CRON_TZ=UTC 0 1 * * *", vec![ZONE_IN_SCHEDULE.to_owned()]),
        ] {
            let object = scheduled(schedule);
            assert_eq!(warnings(&object, Some(&object)), wanted);
        }
    }
}
