//! Jobs.

pub mod indexes;
pub mod spec;
mod status;
mod update;

use crate::shared::pod::{defaults, init_annotations, table_cells};
use crate::shared::validation::equality::alike;
use crate::shared::workload::{self, shown_selector};
use polyplane_apimachinery::complaints::Complaints;
use polyplane_apimachinery::field_error::Path;
use polyplane_apimachinery::json::scan::Scanned;
use polyplane_apimachinery::labels;
use polyplane_apimachinery::time::{Timestamp, human_duration};
use polyplane_apimachinery::{Str, Value};
use polyplane_registry::strategy::{Context, Strategy, age};

/// Labels of a Job's Pods: its name and its uid, in the older and in the newer spelling.
pub const NAME_LABELS: [&str; 2] = ["job-name", "batch.kubernetes.io/job-name"];
/// See [`NAME_LABELS`].
pub const UID_LABELS: [&str; 2] = ["controller-uid", "batch.kubernetes.io/controller-uid"];

const TEMPLATE: [&str; 2] = ["spec", "template"];
const RETRIES: i64 = 6;

/// The kind of object that a job spec belongs to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Owner {
    /// The spec of a Job.
    Job,
    /// The template of a CronJob.
    CronJob,
}

/// Behaviour of Jobs.
#[derive(Debug)]
pub struct Job;

impl Strategy for Job {
    fn default(&self, object: &mut Value) {
        default_spec(&mut object["spec"]);
        take_labels(object);
        defaults::default_template_at(object, &TEMPLATE);
    }

    fn prepare_create(&self, context: &Context<'_>, object: &mut Value) {
        // A Job without labels shares the map of its template in upstream's memory, so what is added to one is in
        // both.
        let labels = object.at(&["metadata", "labels"]);
        let shares_labels = context.lacks_labels && labels.is_some();
        if !object.bool_at(&["spec", "manualSelector"]) {
            generate_selector(object);
        }
        if shares_labels {
            drop(object.remove(&["metadata", "labels"]));
            take_labels(object);
        }
        take_good_labels(object);
        object.set(&["metadata", "generation"], 1i64);
        init_annotations::drop_at(object, &TEMPLATE);
    }

    fn prepare_update(&self, context: &Context<'_>, object: &mut Value, old: &Value) {
        init_annotations::drop_at(object, &TEMPLATE);
        take_good_labels(object);
        let (spec, before) = (&object["spec"], &old["spec"]);
        if !alike(context.schemas, update::SPEC, spec, before) {
            let generation = old.int_at(&["metadata", "generation"]).unwrap_or(0);
            object.set(&["metadata", "generation"], generation + 1);
        }
    }

    fn prepare_subresource(&self, _: &Context<'_>, object: &mut Value, old: &Value) {
        object.set(&["spec"], old["spec"].clone());
        take_good_labels(object);
    }

    fn validate_create(&self, context: &Context<'_>, object: &Value) -> Complaints {
        let mut errors = update::generated_selector(object);
        let privileged = context.settings.privileged;
        errors.extend(update::whole_spec(object, None, privileged));
        update::name_allows_completions(object, &mut errors);
        errors
    }

    fn validate_update(&self, context: &Context<'_>, object: &Value, old: &Value) -> Complaints {
        update::validate(context, object, old)
    }

    fn validate_subresource(&self, _: &Context<'_>, object: &Value, old: &Value) -> Complaints {
        status::validate(object, old)
    }

    fn warnings(&self, _: &Context<'_>, object: &Value, old: Option<&Value>) -> Vec<String> {
        let mut warnings: Vec<String> = workload::name_warning(object, old).into_iter().collect();
        if workload::has_changed(object, old) {
            warnings.extend(spec::warnings(&object["spec"], &Path::new("spec")));
        }
        warnings
    }

    fn cells(&self, object: &Value, now: i64) -> Vec<Value> {
        let (spec, status) = (&object["spec"], &object["status"]);
        let (names, images) = table_cells::containers(&spec["template"]["spec"]);
        let succeeded = status.int_at(&["succeeded"]).unwrap_or(0);
        let completions = match (spec.int_at(&["completions"]), spec.int_at(&["parallelism"])) {
            (Some(completions), _) => format!("{succeeded}/{completions}"),
            (None, Some(parallelism)) if parallelism > 1 => {
                format!("{succeeded}/1 of {parallelism}")
            }
            _ => format!("{succeeded}/1"),
        };
        vec![
            object.str_at(&["metadata", "name"]).into(),
            phase(object).into(),
            completions.into(),
            passed(status, now).into(),
            age(object.str_at(&["metadata", "creationTimestamp"]), now),
            names.into(),
            images.into(),
            shown_selector(&spec["selector"]).into(),
        ]
    }

    fn field(&self, object: Scanned<'_>, name: &str) -> Option<Str> {
        let succeeded = || object.int_at(&["status", "succeeded"]).unwrap_or(0);
        (name == "status.successful").then(|| succeeded().to_string().into())
    }
}

/// Gives a Job without labels those of its Pods.
fn take_labels(object: &mut Value) {
    let labels = object.at(&TEMPLATE).and_then(defaults::template_labels);
    let own = object
        .at(&["metadata", "labels"])
        .and_then(Value::as_object);
    if let (Some(labels), true) = (labels, own.is_none_or(|own| own.is_empty())) {
        object.set(&["metadata", "labels"], labels);
    }
}

/// Gives a Job the labels of its Pods as upstream does when it reads a stored object. Invalid
/// labels are never stored; they are left out here so that errors name only the template.
fn take_good_labels(object: &mut Value) {
    let given = object
        .at(&TEMPLATE)
        .map(|template| &template["metadata"]["labels"]);
    if labels::validate_labels(given, &Path::NIL).is_empty() {
        take_labels(object);
    }
}

fn default_spec(spec: &mut Value) {
    let set = |spec: &mut Value, field: &str, value: Value| {
        if spec[field].is_null() {
            spec.set(&[field], value);
        }
    };
    if spec["completions"].is_null() && spec["parallelism"].is_null() {
        spec.set(&["completions"], 1i64);
    }
    set(spec, "parallelism", 1i64.into());
    let per_index = !spec["backoffLimitPerIndex"].is_null();
    set(
        spec,
        "backoffLimit",
        if per_index {
            i64::from(i32::MAX)
        } else {
            RETRIES
        }
        .into(),
    );
    set(spec, "completionMode", "NonIndexed".into());
    set(spec, "suspend", false.into());
    let has_policy = !spec["podFailurePolicy"].is_null();
    set(
        spec,
        "podReplacementPolicy",
        if has_policy {
            "Failed"
        } else {
            "TerminatingOrFailed"
        }
        .into(),
    );
    set(spec, "manualSelector", false.into());
}

/// Sets the selector and the labels by which the Job finds its Pods.
fn generate_selector(object: &mut Value) {
    let name = object.str_at(&["metadata", "name"]).to_owned();
    let uid = object.str_at(&["metadata", "uid"]).to_owned();
    let labels = object["spec"]["template"]["metadata"]["labels"].make_object();
    for (keys, value) in [(NAME_LABELS, &name), (UID_LABELS, &uid)] {
        for key in keys {
            if !labels.contains_key(key) {
                labels.insert(key, value.as_str());
            }
        }
    }
    let selected = object["spec"]["selector"]["matchLabels"].make_object();
    if !selected.contains_key(UID_LABELS[1]) {
        selected.insert(UID_LABELS[1], uid);
    }
}

/// Returns true if the condition is present and true.
pub fn is_true(object: &Value, kind: &str) -> bool {
    let conditions = object["status"].items_at(&["conditions"]);
    conditions
        .iter()
        .any(|one| one.str_at(&["type"]) == kind && one.str_at(&["status"]) == "True")
}

fn phase(object: &Value) -> &'static str {
    let conditions = object["status"].items_at(&["conditions"]);
    let first = |kind: &str| {
        let found = conditions.iter().find(|one| one.str_at(&["type"]) == kind);
        found.is_some_and(|one| one.str_at(&["status"]) == "True")
    };
    let is_deleted = !object.str_at(&["metadata", "deletionTimestamp"]).is_empty();
    match () {
        () if first("Complete") => "Complete",
        () if first("Failed") => "Failed",
        () if is_deleted => "Terminating",
        () if first("Suspended") => "Suspended",
        () if first("FailureTarget") => "FailureTarget",
        () if first("SuccessCriteriaMet") => "SuccessCriteriaMet",
        () => "Running",
    }
}

/// Returns the duration for which the Job has run.
fn passed(status: &Value, now: i64) -> String {
    let time = |field: &str| Timestamp::parse(status.str_at(&[field])).ok();
    let Some(start) = time("startTime") else {
        return String::new();
    };
    let end = time("completionTime").unwrap_or_else(|| Timestamp::from_seconds(now));
    human_duration(end.nanoseconds_since(start))
}
