//! Validation of the spec of a Job, alone or in a CronJob.

use super::{Owner, indexes};
use crate::shared::pod::validation::{PodOptions, validate_pod_template_spec};
use crate::shared::pod::warnings as pod_warnings;
use crate::shared::validation::bad_value;
use crate::shared::validation::complaints::{complain, named};
use crate::shared::validation::members::has;
use crate::shared::validation::numbers::{non_negative, non_negative_members};
use polyplane_apimachinery::complaints::Complaints;
use polyplane_apimachinery::field_error::{Bad, FieldError, Path};
use polyplane_apimachinery::{Value, names};
use polyplane_registry::settings::Privileged;
use std::collections::BTreeSet;

const INDEXES_MAX: i64 = 100_000;
const LARGE_COMPLETIONS: i64 = 100_000;
const PARALLEL_OF_LARGE_MAX: i64 = 10_000;
const LARGE_WARNING: &str = "In Indexed Jobs with a number of completions higher than 10^5 and a parallelism higher than 10^4, Kubernetes might not be able to track completedIndexes when a big number of indexes fail";
const RULES_MAX: usize = 20;
const EXIT_CODES_MAX: usize = 255;
const CONTROLLER_BYTES_MAX: usize = 63;
const INDEX_TEXT_BYTES_MAX: usize = 64 * 1024;
const ACTIONS: [&str; 4] = ["Count", "FailIndex", "FailJob", "Ignore"];

/// Validates a job spec, apart from its selector. `old` is the one before a change.
pub fn validate(
    spec: &Value,
    (old, privileged): (Option<&Value>, Privileged),
    _: Owner,
    path: &Path<'_>,
    errors: &mut Complaints,
) {
    let counts = [
        "parallelism",
        "completions",
        "activeDeadlineSeconds",
        "backoffLimit",
        "ttlSecondsAfterFinished",
        "backoffLimitPerIndex",
        "maxFailedIndexes",
    ];
    non_negative_members(spec, &counts, path, errors);
    if has(spec, "maxFailedIndexes") && !has(spec, "backoffLimitPerIndex") {
        let detail = "when maxFailedIndexes is specified";
        errors.push(FieldError::required(
            &path.child("backoffLimitPerIndex"),
            detail,
        ));
    }
    if let Some(name) = spec["managedBy"].as_str() {
        controller(name, &path.child("managedBy"), errors);
    }
    completion(spec, path, errors);
    if has(spec, "podFailurePolicy") {
        failure_policy(spec, &path.child("podFailurePolicy"), errors);
    }
    success_policy(spec, &path.child("successPolicy"), errors);
    replacement(spec, &path.child("podReplacementPolicy"), errors);
    let template = path.child("template");
    let options = PodOptions::for_template(old.map(|old| &old["template"])).with(privileged);
    errors.extend(validate_pod_template_spec(
        &spec["template"],
        &template,
        &options,
    ));
    restart(spec, &template.child("spec").child("restartPolicy"), errors);
}

/// Returns warnings about a job spec that is accepted.
pub fn warnings(spec: &Value, path: &Path<'_>) -> Vec<String> {
    let number = |field: &str| spec.int_at(&[field]).unwrap_or(0);
    let is_large =
        number("completions") > LARGE_COMPLETIONS && number("parallelism") > PARALLEL_OF_LARGE_MAX;
    let mut warnings = Vec::new();
    if is_large && spec.str_at(&["completionMode"]) == "Indexed" {
        warnings.push(format!("{path}: {LARGE_WARNING}"));
    }
    let template = path.child("template");
    warnings.extend(pod_warnings::template(&spec["template"], &template));
    warnings
}

fn restart(spec: &Value, path: &Path<'_>, errors: &mut Complaints) {
    let policy = spec.str_at(&["template", "spec", "restartPolicy"]);
    match policy {
        "" | "Always" => {
            errors.push(FieldError::required(
                path,
                "valid values: \"OnFailure\", \"Never\"",
            ));
        }
        "OnFailure" if has(spec, "podFailurePolicy") => {
            let detail = "only \"Never\" is supported when podFailurePolicy is specified";
            errors.push(FieldError::invalid(path, named(policy), detail));
        }
        "OnFailure" | "Never" => {}
        _ => errors.push(FieldError::not_supported(
            path,
            named(policy),
            &["OnFailure", "Never"],
        )),
    }
}

fn controller(name: &str, path: &Path<'_>, errors: &mut Complaints) {
    match name.split_once('/') {
        _ if name.is_empty() => errors.push(FieldError::required(path, "")),
        Some((host, rest)) if !host.is_empty() && !rest.is_empty() => {
            complain(errors, path, host, names::dns1123_subdomain(host));
            let is_path =
                |byte: u8| byte.is_ascii_alphanumeric() || b"/-._~%!$&'()*+,;=:".contains(&byte);
            if !rest.bytes().all(is_path) {
                let detail =
                    names::regex_complaint("Invalid path", r"[A-Za-z0-9/\-._~%!$&'()*+,;=:]+", &[]);
                errors.push(FieldError::invalid(path, rest, detail));
            }
        }
        _ => {
            let detail = "must be a domain-prefixed path (such as \"acme.io/foo\")";
            errors.push(FieldError::invalid(path, name, detail));
        }
    }
    if name.len() > CONTROLLER_BYTES_MAX {
        errors.push(FieldError::too_long(path, CONTROLLER_BYTES_MAX));
    }
}

/// Checks the completion mode and the fields that depend on it.
fn completion(spec: &Value, path: &Path<'_>, errors: &mut Complaints) {
    let number = |field: &str| spec.int_at(&[field]);
    let mut invalid = |field: &str, bad: i64, detail: String| {
        errors.push(FieldError::invalid(&path.child(field), bad, detail));
    };
    match spec["completionMode"].as_str() {
        Some("Indexed") => {}
        None | Some("NonIndexed") => {
            for field in ["backoffLimitPerIndex", "maxFailedIndexes"] {
                if let Some(number) = number(field) {
                    invalid(field, number, "requires indexed completion mode".to_owned());
                }
            }
            return;
        }
        Some(mode) => {
            let place = path.child("completionMode");
            errors.push(FieldError::not_supported(
                &place,
                named(mode),
                &["NonIndexed", "Indexed"],
            ));
            return;
        }
    }
    indexed(spec, path, errors);
}

/// Checks the counts of a job whose pods have indexes.
fn indexed(spec: &Value, path: &Path<'_>, errors: &mut Complaints) {
    let number = |field: &str| spec.int_at(&[field]);
    let (completions, parallel, failed) = (
        number("completions"),
        number("parallelism"),
        number("maxFailedIndexes"),
    );
    if completions.is_none() {
        errors.push(FieldError::required(
            &path.child("completions"),
            "when completion mode is Indexed",
        ));
    }
    let mut above = |field: &str, number: Option<i64>, most: i64, detail: String| {
        if let Some(number) = number.filter(|number| *number > most) {
            errors.push(FieldError::invalid(&path.child(field), number, detail));
        }
    };
    let detail =
        format!("must be less than or equal to {INDEXES_MAX} when completion mode is Indexed");
    above("parallelism", parallel, INDEXES_MAX, detail);
    if let Some(completions) = completions {
        above(
            "maxFailedIndexes",
            failed,
            completions,
            "must be less than or equal to completions".to_owned(),
        );
    }
    above(
        "maxFailedIndexes",
        failed,
        INDEXES_MAX,
        format!("must be less than or equal to {INDEXES_MAX}"),
    );
    if completions.is_none_or(|completions| completions <= LARGE_COMPLETIONS)
        || number("backoffLimitPerIndex").is_none()
    {
        return;
    }
    let detail = format!(
        "must be less than or equal to {PARALLEL_OF_LARGE_MAX} when completions are above {LARGE_COMPLETIONS} and used with backoff limit per index"
    );
    above(
        "parallelism",
        parallel,
        PARALLEL_OF_LARGE_MAX,
        detail.clone(),
    );
    above("maxFailedIndexes", failed, PARALLEL_OF_LARGE_MAX, detail);
    if failed.is_none() {
        let detail = format!("must be specified when completions is above {LARGE_COMPLETIONS}");
        errors.push(FieldError::required(
            &path.child("maxFailedIndexes"),
            detail,
        ));
    }
}

fn replacement(spec: &Value, path: &Path<'_>, errors: &mut Complaints) {
    let Some(policy) = spec["podReplacementPolicy"].as_str() else {
        return;
    };
    let known: &[&str] = if has(spec, "podFailurePolicy") {
        &["Failed"]
    } else {
        &["Failed", "TerminatingOrFailed"]
    };
    if !known.contains(&policy) {
        errors.push(FieldError::not_supported(path, named(policy), known));
    }
}

fn failure_policy(spec: &Value, path: &Path<'_>, errors: &mut Complaints) {
    let (rules, place) = (
        spec["podFailurePolicy"].items_at(&["rules"]),
        path.child("rules"),
    );
    if rules.len() > RULES_MAX {
        errors.push(FieldError::too_many(&place, rules.len(), RULES_MAX));
    }
    let pods = &spec["template"]["spec"];
    let containers: BTreeSet<&str> = ["containers", "initContainers"]
        .iter()
        .flat_map(|list| pods.items_at(&[list]))
        .map(|container| container.str_at(&["name"]))
        .collect();
    for (at, rule) in rules.iter().enumerate() {
        let place = place.index(at);
        let (action, action_path) = (rule.str_at(&["action"]), place.child("action"));
        match action {
            "" => {
                let detail = "valid values: [\"Count\" \"FailIndex\" \"FailJob\" \"Ignore\"]";
                errors.push(FieldError::required(&action_path, detail));
            }
            "FailIndex" if !has(spec, "backoffLimitPerIndex") => {
                let detail = "requires the backoffLimitPerIndex to be set";
                errors.push(FieldError::invalid(&action_path, named(action), detail));
            }
            _ if !ACTIONS.contains(&action) => {
                errors.push(FieldError::not_supported(
                    &action_path,
                    named(action),
                    &ACTIONS,
                ));
            }
            _ => {}
        }
        let (codes, conditions) = (&rule["onExitCodes"], rule.items_at(&["onPodConditions"]));
        if !codes.is_null() {
            exit_codes(codes, &containers, &place.child("onExitCodes"), errors);
        }
        if !conditions.is_empty() {
            pod_conditions(conditions, &place.child("onPodConditions"), errors);
        }
        let detail = match (codes.is_null(), conditions.is_empty()) {
            (false, false) => "specifying both OnExitCodes and OnPodConditions is not supported",
            (true, true) => "specifying one of OnExitCodes and OnPodConditions is required",
            _ => continue,
        };
        errors.push(FieldError::invalid(&place, Bad::Omitted, detail));
    }
}

fn exit_codes(rule: &Value, containers: &BTreeSet<&str>, path: &Path<'_>, errors: &mut Complaints) {
    let (operator, place) = (rule.str_at(&["operator"]), path.child("operator"));
    match operator {
        "" => errors.push(FieldError::required(
            &place,
            "valid values: [\"In\" \"NotIn\"]",
        )),
        "In" | "NotIn" => {}
        _ => errors.push(FieldError::not_supported(
            &place,
            named(operator),
            &["In", "NotIn"],
        )),
    }
    if let Some(name) = rule["containerName"]
        .as_str()
        .filter(|name| !containers.contains(name))
    {
        let detail = "must be one of the container or initContainer names in the pod template";
        errors.push(FieldError::invalid(
            &path.child("containerName"),
            name,
            detail,
        ));
    }
    let (values, place) = (rule.items_at(&["values"]), path.child("values"));
    if values.is_empty() {
        errors.push(FieldError::invalid(
            &place,
            Bad::Json(rule["values"].clone()),
            "at least one value is required",
        ));
    } else if values.len() > EXIT_CODES_MAX {
        errors.push(FieldError::too_many(&place, values.len(), EXIT_CODES_MAX));
    }
    let numbers: Vec<i64> = values
        .iter()
        .map(|value| value.as_int().unwrap_or(0))
        .collect();
    let mut seen = BTreeSet::new();
    for (at, number) in numbers.iter().enumerate() {
        let place = place.index(at);
        if operator == "In" && *number == 0 {
            errors.push(FieldError::invalid(
                &place,
                *number,
                "must not be 0 for the In operator",
            ));
        }
        if !seen.insert(number) {
            errors.push(FieldError::duplicate(&place, *number));
        }
    }
    if !numbers.is_sorted() {
        errors.push(FieldError::invalid(
            &place,
            Bad::Json(rule["values"].clone()),
            "must be ordered",
        ));
    }
}

fn pod_conditions(patterns: &[Value], path: &Path<'_>, errors: &mut Complaints) {
    if patterns.len() > RULES_MAX {
        errors.push(FieldError::too_many(path, patterns.len(), RULES_MAX));
    }
    for (at, pattern) in patterns.iter().enumerate() {
        let place = path.index(at);
        let kind = pattern.str_at(&["type"]);
        complain(
            errors,
            &place.child("type"),
            kind,
            names::qualified_name(kind),
        );
        let (status, place) = (pattern.str_at(&["status"]), place.child("status"));
        let known = ["False", "True", "Unknown"];
        if status.is_empty() {
            errors.push(FieldError::required(
                &place,
                "valid values: [\"False\" \"True\" \"Unknown\"]",
            ));
        } else if !known.contains(&status) {
            errors.push(FieldError::not_supported(&place, named(status), &known));
        }
    }
}

fn success_policy(spec: &Value, path: &Path<'_>, errors: &mut Complaints) {
    let policy = &spec["successPolicy"];
    if policy.is_null() {
        return;
    }
    if spec.str_at(&["completionMode"]) != "Indexed" {
        let bad = bad_value::typed("io.k8s.api.batch.v1.SuccessPolicy", policy);
        errors.push(FieldError::invalid(
            path,
            bad,
            "requires indexed completion mode",
        ));
        return;
    }
    let (rules, place) = (policy.items_at(&["rules"]), path.child("rules"));
    if rules.is_empty() {
        let detail = "at least one rules must be specified when the successPolicy is specified";
        errors.push(FieldError::required(&place, detail));
    }
    if rules.len() > RULES_MAX {
        errors.push(FieldError::too_many(&place, rules.len(), RULES_MAX));
    }
    let completions = spec.int_at(&["completions"]).unwrap_or(0);
    for (at, rule) in rules.iter().enumerate() {
        success_rule(rule, completions, &place.index(at), errors);
    }
}

fn success_rule(rule: &Value, completions: i64, path: &Path<'_>, errors: &mut Complaints) {
    let (text, count) = (
        rule["succeededIndexes"].as_str(),
        rule.int_at(&["succeededCount"]),
    );
    if text.is_none() && count.is_none() {
        let detail = "at least one of succeededCount or succeededIndexes must be specified";
        errors.push(FieldError::required(path, detail));
    }
    let mut total = 0;
    if let Some(text) = text {
        let place = path.child("succeededIndexes");
        if text.len() > INDEX_TEXT_BYTES_MAX {
            errors.push(FieldError::too_long(&place, INDEX_TEXT_BYTES_MAX));
        }
        match indexes::count(text, completions) {
            Ok(count) => total = count,
            Err(error) => {
                let detail = format!("error parsing succeededIndexes: {error}");
                errors.push(FieldError::invalid(&place, text, detail));
            }
        }
    }
    let Some(count) = count else { return };
    let place = path.child("succeededCount");
    non_negative(Some(count), &place, errors);
    if count > completions {
        let detail = format!(
            "must be less than or equal to {completions} (the number of specified completions)"
        );
        errors.push(FieldError::invalid(&place, count, detail));
    }
    if text.is_some() && count > total {
        let detail = format!(
            "must be less than or equal to {total} (the number of indexes in the specified succeededIndexes field)"
        );
        errors.push(FieldError::invalid(&place, count, detail));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use polyplane_apimachinery::json;

    #[test]
    fn jobs_with_more_indexes_than_can_be_tracked_are_warned_about() {
        let warned = |mode: &str, completions: i64, parallelism: i64| {
            let spec = json!({
                "completionMode": mode,
                "completions": completions,
                "parallelism": parallelism
            });
            warnings(&spec, &Path::new("spec"))
        };
        let large = vec![format!("spec: {LARGE_WARNING}")];
        assert_eq!(warned("Indexed", 100_001, 10_001), large);
        for (mode, completions, parallelism) in [
            ("NonIndexed", 100_001, 10_001),
            ("Indexed", 100_000, 10_001),
            ("Indexed", 100_001, 10_000),
        ] {
            assert!(warned(mode, completions, parallelism).is_empty());
        }
    }
}
