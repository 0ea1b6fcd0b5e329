//! PriorityLevelConfigurations: how many requests of a level run at once, and how many wait.

use super::flow_schema::{mandatory_spec, same, validate_status};
use crate::shared::object_metadata;
use crate::shared::table_cells::{age_cell, name_cell};
use crate::shared::validation::bad_value;
use crate::shared::validation::complaints::named;
use crate::shared::validation::members::present;
use polyplane_apimachinery::Value;
use polyplane_apimachinery::complaints::Complaints;
use polyplane_apimachinery::field_error::{FieldError, Path};
use polyplane_apimachinery::names::NameRule;
use polyplane_registry::Scope;
use polyplane_registry::strategy::{Context, Strategy};

const DEFINITION: &str = "io.k8s.api.flowcontrol.v1.PriorityLevelConfigurationSpec";
const KEEP_ZERO_ANNOTATION: &str = "flowcontrol.k8s.io/v1beta3-preserve-zero-concurrency-shares";
const QUEUES_MAX: i64 = 10_000_000;
/// Number of hash bits that choosing queues may use at most.
const HASH_BITS_MAX: i64 = 60;

/// Behaviour of PriorityLevelConfigurations.
#[derive(Debug)]
pub struct PriorityLevelConfiguration;

impl Strategy for PriorityLevelConfiguration {
    fn validate_create(&self, _: &Context<'_>, object: &Value) -> Complaints {
        let mut errors = object_metadata::validate_finalizers(object);
        validate(&mut errors, object);
        errors
    }

    fn validate_update(&self, _: &Context<'_>, object: &Value, _: &Value) -> Complaints {
        let mut errors = object_metadata::validate(object, Scope::Cluster, NameRule::DnsSubdomain);
        validate(&mut errors, object);
        errors
    }

    fn validate_subresource(&self, _: &Context<'_>, object: &Value, _: &Value) -> Complaints {
        let mut errors = Complaints::default();
        validate_status(&mut errors, object);
        errors
    }

    fn cells(&self, object: &Value, now: i64) -> Vec<Value> {
        let limited = &object["spec"]["limited"];
        let queuing = &limited["limitResponse"]["queuing"];
        let number = |owner: &Value, field: &str| match owner {
            Value::Null => Value::string("<none>"),
            owner => owner.int_at(&[field]).unwrap_or(0).into(),
        };
        vec![
            name_cell(object),
            object.str_at(&["spec", "type"]).into(),
            number(limited, "nominalConcurrencyShares"),
            number(queuing, "queues"),
            number(queuing, "handSize"),
            number(queuing, "queueLengthLimit"),
            age_cell(object, now),
        ]
    }
}

fn validate(errors: &mut Complaints, object: &Value) {
    let name = object.str_at(&["metadata", "name"]);
    if present(&object["metadata"]["annotations"][KEEP_ZERO_ANNOTATION]) {
        let path = Path::new("metadata");
        let detail = format!("annotation '{KEEP_ZERO_ANNOTATION}' is forbidden");
        errors.push(FieldError::forbidden(&path.child("annotations"), detail));
    }
    let (path, spec) = (Path::new("spec"), &object["spec"]);
    validate_spec(errors, name, spec, &path);
    if let Some(wanted) = mandatory_spec("prioritylevelconfigurations", name) {
        let mut compared = spec.clone();
        let mut except = "";
        if name == "exempt" {
            compared.set(&["exempt"], wanted["exempt"].clone());
            except = "except the 'spec.exempt' field ";
        }
        if !same(wanted, &compared) {
            let detail = format!("spec of '{name}' {except}must equal the fixed value");
            errors.push(FieldError::invalid(
                &path,
                bad_value::typed(DEFINITION, spec),
                detail,
            ));
        }
    }
    validate_status(errors, object);
}

fn validate_spec(errors: &mut Complaints, name: &str, spec: &Value, path: &Path<'_>) {
    let kind = spec.str_at(&["type"]);
    if (name == "exempt") != (kind == "Exempt") {
        let detail = "must be 'Exempt' if and only if `name` is 'exempt'";
        errors.push(FieldError::invalid(
            &path.child("type"),
            named(kind),
            detail,
        ));
    }
    match kind {
        "Exempt" => {
            let exempt = path.child("exempt");
            shares(errors, &spec["exempt"], &exempt);
            lendable(errors, &spec["exempt"], &exempt);
        }
        "Limited" => validate_limited(errors, &spec["limited"], &path.child("limited")),
        "" => {}
        other => {
            let known = ["Exempt", "Limited"];
            errors.push(FieldError::not_supported(
                &path.child("type"),
                named(other),
                &known,
            ));
        }
    }
}

fn shares(errors: &mut Complaints, owner: &Value, path: &Path<'_>) {
    let number = owner.int_at(&["nominalConcurrencyShares"]).unwrap_or(0);
    if number < 0 {
        let detail = "must be a non-negative integer";
        errors.push(FieldError::invalid(
            &path.child("nominalConcurrencyShares"),
            number,
            detail,
        ));
    }
}

fn lendable(errors: &mut Complaints, owner: &Value, path: &Path<'_>) {
    let percent = owner.int_at(&["lendablePercent"]).unwrap_or(0);
    if !(0..=100).contains(&percent) {
        let detail = "must be between 0 and 100, inclusive";
        errors.push(FieldError::invalid(
            &path.child("lendablePercent"),
            percent,
            detail,
        ));
    }
}

fn validate_limited(errors: &mut Complaints, limited: &Value, path: &Path<'_>) {
    if limited.is_null() {
        return;
    }
    shares(errors, limited, path);
    let (response, place) = (&limited["limitResponse"], path.child("limitResponse"));
    match response.str_at(&["type"]) {
        "Queue" => validate_queuing(errors, &response["queuing"], &place.child("queuing")),
        "Reject" | "" => {}
        other => {
            let known = ["Queue", "Reject"];
            errors.push(FieldError::not_supported(
                &place.child("type"),
                named(other),
                &known,
            ));
        }
    }
    lendable(errors, limited, path);
    let percent = limited.int_at(&["borrowingLimitPercent"]).unwrap_or(0);
    if percent < 0 {
        let detail = "if specified, must be a non-negative integer";
        errors.push(FieldError::invalid(
            &path.child("borrowingLimitPercent"),
            percent,
            detail,
        ));
    }
}

fn validate_queuing(errors: &mut Complaints, queuing: &Value, path: &Path<'_>) {
    if queuing.is_null() {
        return;
    }
    let number = |field: &str| queuing.int_at(&[field]).unwrap_or(0);
    let (limit, queues, hand) = (
        number("queueLengthLimit"),
        number("queues"),
        number("handSize"),
    );
    if limit <= 0 {
        errors.push(FieldError::invalid(
            &path.child("queueLengthLimit"),
            limit,
            "must be positive",
        ));
    }
    if queues <= 0 {
        errors.push(FieldError::invalid(
            &path.child("queues"),
            queues,
            "must be positive",
        ));
    } else if queues > QUEUES_MAX {
        let detail = format!("must not be greater than {QUEUES_MAX}");
        errors.push(FieldError::invalid(&path.child("queues"), queues, detail));
    }
    let place = path.child("handSize");
    if hand <= 0 {
        errors.push(FieldError::invalid(&place, hand, "must be positive"));
    } else if hand > queues {
        let detail = format!("should not be greater than queues ({queues})");
        errors.push(FieldError::invalid(&place, hand, detail));
    } else if ((queues as f64).log2() * hand as f64).ceil() as i64 > HASH_BITS_MAX {
        let detail = format!(
            "required entropy bits of deckSize {queues} and handSize {hand} should not be greater than {HASH_BITS_MAX}"
        );
        errors.push(FieldError::invalid(&place, hand, detail));
    }
}
