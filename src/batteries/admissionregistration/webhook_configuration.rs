//! Configurations of admission webhooks.

use super::match_rules;
use super::match_rules::{
    FAILURE_POLICIES, MATCH_POLICIES, REINVOCATION_POLICIES, validate_match_conditions,
    validate_rule,
};
use crate::shared::network::webhook_client::validate_client;
use crate::shared::table_cells::{age_cell, count_cell, name_cell};
use crate::shared::validation::complaints::{complain, one_of_if_set};
use crate::shared::validation::domain_names::qualified_domain;
use crate::shared::validation::members::texts;
use crate::shared::validation::selectors::{SelectorValues, selector, selector_values};
use polyplane_apimachinery::Value;
use polyplane_apimachinery::complaints::Complaints;
use polyplane_apimachinery::field_error::{Bad, FieldError, Path};
use polyplane_apimachinery::names::{self, NameRule};
use polyplane_registry::strategy::{Context, Strategy};
use polyplane_registry::{Scope, metadata};
use std::collections::BTreeSet;

const REVIEW_VERSIONS: [&str; 2] = ["v1", "v1beta1"];
const SIDE_EFFECTS: [&str; 4] = ["None", "NoneOnDryRun", "Some", "Unknown"];
const NO_SIDE_EFFECTS: [&str; 2] = ["None", "NoneOnDryRun"];
/// The resources that no webhook sees: a cluster could not be repaired if one of them refused these.
const UNSEEN: [(&str, &str); 6] = [
    ("authentication.k8s.io", "selfsubjectreviews"),
    ("authentication.k8s.io", "tokenreviews"),
    ("authorization.k8s.io", "localsubjectaccessreviews"),
    ("authorization.k8s.io", "selfsubjectaccessreviews"),
    ("authorization.k8s.io", "selfsubjectrulesreviews"),
    ("authorization.k8s.io", "subjectaccessreviews"),
];

/// Behaviour of ValidatingWebhookConfigurations and MutatingWebhookConfigurations.
#[derive(Debug)]
pub struct WebhookConfiguration;

/// The requirements on webhooks. Objects that were stored before may satisfy fewer.
#[derive(Clone, Copy, Debug)]
struct Demands {
    match_conditions: bool,
    no_side_effects: bool,
    known_review_version: bool,
    unique_names: bool,
    values: SelectorValues,
}

impl Demands {
    const ALL: Self = Self {
        match_conditions: true,
        no_side_effects: true,
        known_review_version: true,
        unique_names: true,
        values: SelectorValues::Checked,
    };

    fn of_update(hooks: &[Value], old: &[Value]) -> Self {
        let same =
            |(hook, old): (&Value, &Value)| hook["matchConditions"] == old["matchConditions"];
        let unchanged = hooks.len() == old.len() && hooks.iter().zip(old).all(same);
        let quiet = |hook: &Value| NO_SIDE_EFFECTS.contains(&hook.str_at(&["sideEffects"]));
        let known = |hook: &Value| {
            let versions = texts(&hook["admissionReviewVersions"]);
            versions.is_empty()
                || versions
                    .iter()
                    .any(|version| REVIEW_VERSIONS.contains(version))
        };
        let names: BTreeSet<&str> = old.iter().map(|hook| hook.str_at(&["name"])).collect();
        let free = |hook: &Value| {
            let fields = ["namespaceSelector", "objectSelector"];
            fields
                .iter()
                .any(|field| selector_values(&hook[*field]) == SelectorValues::Free)
        };
        Self {
            match_conditions: !unchanged,
            no_side_effects: old.iter().all(quiet),
            known_review_version: old.iter().all(known),
            unique_names: names.len() == old.len(),
            values: if old.iter().any(free) {
                SelectorValues::Free
            } else {
                SelectorValues::Checked
            },
        }
    }
}

impl Strategy for WebhookConfiguration {
    fn counts_empties(&self) -> bool {
        true
    }

    fn validate_create(&self, _: &Context<'_>, object: &Value) -> Complaints {
        let mut errors = Complaints::default();
        validate(&mut errors, object, Demands::ALL);
        match_rules::validate_name(&mut errors, object);
        errors
    }

    fn validate_update(&self, _: &Context<'_>, object: &Value, old: &Value) -> Complaints {
        let mut errors = metadata::validate(object, Scope::Cluster, NameRule::DnsSubdomain);
        let demands =
            Demands::of_update(object.items_at(&["webhooks"]), old.items_at(&["webhooks"]));
        validate(&mut errors, object, demands);
        errors
    }

    fn warnings(&self, _: &Context<'_>, object: &Value, _: Option<&Value>) -> Vec<String> {
        let mut warnings = match_rules::name_warnings(object);
        let list = Path::new("webhooks");
        for (at, hook) in object.items_at(&["webhooks"]).iter().enumerate() {
            let path = list.index(at);
            warn_of_rules(&mut warnings, &hook["rules"], &path.child("rules"));
        }
        warnings
    }

    fn cells(&self, object: &Value, now: i64) -> Vec<Value> {
        vec![
            name_cell(object),
            count_cell(&object["webhooks"]),
            age_cell(object, now),
        ]
    }
}

/// Warns of rules that name a resource which no webhook sees. A rule with a wildcard means others too.
fn warn_of_rules(warnings: &mut Vec<String>, rules: &Value, list: &Path<'_>) {
    for (at, rule) in rules.as_array().unwrap_or(&[]).iter().enumerate() {
        let (groups, resources) = (texts(&rule["apiGroups"]), texts(&rule["resources"]));
        if groups.contains(&"*") || resources.contains(&"*") {
            continue;
        }
        // A rule may have a hundred thousand groups and as many resources, so that not each pair is looked at.
        let groups = once_each(groups, |group| UNSEEN.iter().any(|(of, _)| *of == group));
        let resources = once_each(resources, |name| UNSEEN.iter().any(|(_, of)| *of == name));
        let pairs = groups
            .iter()
            .flat_map(|group| resources.iter().map(move |name| (*group, *name)));
        for (group, name) in pairs.filter(|pair| UNSEEN.contains(pair)) {
            let path = list.index(at);
            warnings.push(format!(
                "{path}: {name}.{group} is excluded from admission webhooks; this rule will have no effect"
            ));
        }
    }
}

/// Returns the texts that are wanted, each once. They are few, whatever the list is.
fn once_each(list: Vec<&str>, is_wanted: impl Fn(&str) -> bool) -> Vec<&str> {
    let mut found = Vec::new();
    for text in list {
        if is_wanted(text) && !found.contains(&text) {
            found.push(text);
        }
    }
    found
}

fn validate(errors: &mut Complaints, object: &Value, demands: Demands) {
    let list = Path::new("webhooks");
    let mut seen = BTreeSet::new();
    for (at, hook) in object.items_at(&["webhooks"]).iter().enumerate() {
        let path = list.index(at);
        validate_hook(errors, hook, &path, demands);
        validate_review_versions(
            errors,
            hook,
            &path.child("admissionReviewVersions"),
            demands,
        );
        let name = hook.str_at(&["name"]);
        if demands.unique_names && !name.is_empty() && !seen.insert(name) {
            errors.push(FieldError::duplicate(&path.child("name"), name));
        }
    }
}

fn validate_hook(errors: &mut Complaints, hook: &Value, path: &Path<'_>, demands: Demands) {
    qualified_domain(errors, &path.child("name"), hook.str_at(&["name"]));
    for (at, rule) in hook.items_at(&["rules"]).iter().enumerate() {
        validate_rule(errors, rule, &path.child("rules").index(at));
    }
    one_of_if_set(
        errors,
        &path.child("failurePolicy"),
        &hook["failurePolicy"],
        &FAILURE_POLICIES,
    );
    one_of_if_set(
        errors,
        &path.child("matchPolicy"),
        &hook["matchPolicy"],
        &MATCH_POLICIES,
    );
    let allowed: &[&str] = if demands.no_side_effects {
        &NO_SIDE_EFFECTS
    } else {
        &SIDE_EFFECTS
    };
    let place = path.child("sideEffects");
    if hook["sideEffects"].is_null() {
        errors.push(FieldError::required(
            &place,
            format!("must specify one of {}", allowed.join(", ")),
        ));
    }
    one_of_if_set(errors, &place, &hook["sideEffects"], allowed);
    if let Some(seconds) = hook
        .int_at(&["timeoutSeconds"])
        .filter(|seconds| !(1..=30).contains(seconds))
    {
        let detail = "the timeout value must be between 1 and 30 seconds";
        errors.push(FieldError::invalid(
            &path.child("timeoutSeconds"),
            seconds,
            detail,
        ));
    }
    for field in ["namespaceSelector", "objectSelector"] {
        selector(errors, &path.child(field), &hook[field], demands.values);
    }
    let place = path.child("reinvocationPolicy");
    one_of_if_set(
        errors,
        &place,
        &hook["reinvocationPolicy"],
        &REINVOCATION_POLICIES,
    );
    validate_client(errors, &hook["clientConfig"], &path.child("clientConfig"));
    if demands.match_conditions {
        let place = path.child("matchConditions");
        validate_match_conditions(errors, hook.items_at(&["matchConditions"]), &place, false);
    }
}

fn validate_review_versions(
    errors: &mut Complaints,
    hook: &Value,
    list: &Path<'_>,
    demands: Demands,
) {
    let versions = texts(&hook["admissionReviewVersions"]);
    if versions.is_empty() {
        let detail = format!("must specify one of {}", REVIEW_VERSIONS.join(", "));
        errors.push(FieldError::required(list, detail));
        return;
    }
    validate_versions(errors, &versions, list);
    let known = versions
        .iter()
        .any(|version| REVIEW_VERSIONS.contains(version));
    if demands.known_review_version && !known {
        let detail = format!(
            "must include at least one of {}",
            REVIEW_VERSIONS.join(", ")
        );
        let bad = Bad::Json(hook["admissionReviewVersions"].clone());
        errors.push(FieldError::invalid(list, bad, detail));
    }
}

/// Checks that versions of reviews are labels and that each is named once.
pub fn validate_versions(errors: &mut Complaints, versions: &[&str], list: &Path<'_>) {
    let mut seen = BTreeSet::new();
    for (at, version) in versions.iter().enumerate() {
        if seen.insert(version) {
            complain(
                errors,
                &list.index(at),
                *version,
                names::dns1035_label(version),
            );
        } else {
            errors.push(FieldError::invalid(
                &list.index(at),
                *version,
                "duplicate version",
            ));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use polyplane_apimachinery::json;

    #[test]
    fn rules_about_what_no_webhook_sees_are_warned_of() {
        let warnings = |groups: &[&str], resources: &[&str]| {
            let list = |items: &[&str]| {
                let items = items.iter().map(|item| Value::string(*item));
                Value::Array(items.collect())
            };
            let rule = json!({"apiGroups": (list(groups)), "resources": (list(resources))});
            let mut warnings = Vec::new();
            let path = Path::new("rules");
            warn_of_rules(&mut warnings, &Value::Array([rule].into()), &path);
            warnings
        };
        let (authentication, authorization) = ("authentication.k8s.io", "authorization.k8s.io");
        let said = |name: &str| {
            format!(
                "rules[0]: {name} is excluded from admission webhooks; this rule will have no effect"
            )
        };
        assert_eq!(
            warnings(
                &["apps", authorization, authentication],
                &["tokenreviews", "subjectaccessreviews", "tokenreviews"]
            ),
            [
                said("subjectaccessreviews.authorization.k8s.io"),
                said("tokenreviews.authentication.k8s.io")
            ]
        );
        for (groups, resources) in [
            (["*"], ["tokenreviews"]),
            ([authentication], ["*"]),
            ([authentication], ["subjectaccessreviews"]),
            ([""], ["pods"]),
        ] {
            let none = warnings(&groups, &resources);
            assert!(none.is_empty(), "{none:?}");
        }
    }
}
