//! CSIDrivers: what a driver requires of the cluster.

use crate::shared::object_metadata;
use crate::shared::table_cells::{age_cell, name_cell};
use crate::shared::validation::complaints::{IMMUTABLE, one_of, one_of_if_set};
use crate::shared::validation::members::{present, texts};
use polyplane_apimachinery::Value;
use polyplane_apimachinery::complaints::Complaints;
use polyplane_apimachinery::field_error::{Bad, FieldError, Path};
use polyplane_registry::strategy::{Context, Strategy};
use std::collections::BTreeSet;

/// Seconds between two updates of a node's limits, at least.
const UPDATE_SECONDS_MIN: i64 = 10;
/// The least and the most seconds for which a token is valid.
const TOKEN_SECONDS: (i64, i64) = (600, 1 << 32);
const LOGGED_TOKENS: &str = "spec.serviceAccountTokenInSecrets is unset; if supported by this CSI driver, set to true to prevent possible logging of tokens in volume attributes";

/// Behaviour of CSIDrivers.
#[derive(Debug)]
pub struct CsiDriver;

impl Strategy for CsiDriver {
    fn default(&self, object: &mut Value) {
        if object
            .items_at(&["spec", "volumeLifecycleModes"])
            .is_empty()
        {
            object.set(
                &["spec", "volumeLifecycleModes"],
                vec![Value::string("Persistent")],
            );
        }
    }

    fn prepare_update(&self, _: &Context<'_>, object: &mut Value, old: &Value) {
        if object["spec"] != old["spec"] {
            let generation = old.int_at(&["metadata", "generation"]).unwrap_or(0);
            object.set(&["metadata", "generation"], generation + 1);
        }
    }

    fn validate_create(&self, _: &Context<'_>, object: &Value) -> Complaints {
        let mut errors = object_metadata::validate_finalizers(object);
        validate_spec(&mut errors, &object["spec"]);
        errors
    }

    fn validate_update(&self, _: &Context<'_>, object: &Value, old: &Value) -> Complaints {
        let mut errors = object_metadata::validate_update(object, old);
        let (spec, before) = (&object["spec"], &old["spec"]);
        validate_spec(&mut errors, spec);
        let root = Path::new("spec");
        if spec["attachRequired"] != before["attachRequired"] {
            let bad = spec["attachRequired"].clone();
            errors.push(FieldError::invalid(
                &root.child("attachedRequired"),
                bad,
                IMMUTABLE,
            ));
        }
        if texts(&spec["volumeLifecycleModes"]) != texts(&before["volumeLifecycleModes"]) {
            let bad = Bad::Json(spec["volumeLifecycleModes"].clone());
            errors.push(FieldError::invalid(
                &root.child("volumeLifecycleModes"),
                bad,
                IMMUTABLE,
            ));
        }
        errors
    }

    fn warnings(&self, _: &Context<'_>, object: &Value, old: Option<&Value>) -> Vec<String> {
        let spec = &object["spec"];
        let requests = spec.items_at(&["tokenRequests"]);
        let same = old.is_some_and(|old| old.items_at(&["spec", "tokenRequests"]) == requests);
        let unsaid = spec["serviceAccountTokenInSecrets"].is_null();
        if !requests.is_empty() && !same && unsaid {
            vec![LOGGED_TOKENS.to_owned()]
        } else {
            Vec::new()
        }
    }

    fn cells(&self, object: &Value, now: i64) -> Vec<Value> {
        let spec = &object["spec"];
        let audiences: Vec<&str> = spec
            .items_at(&["tokenRequests"])
            .iter()
            .map(|request| request.str_at(&["audience"]))
            .collect();
        let requests = if present(&spec["tokenRequests"]) {
            audiences.join(",")
        } else {
            "<unset>".to_owned()
        };
        let modes = texts(&spec["volumeLifecycleModes"]).join(",");
        vec![
            name_cell(object),
            spec["attachRequired"].as_bool().unwrap_or(true).into(),
            spec.bool_at(&["podInfoOnMount"]).into(),
            spec.bool_at(&["storageCapacity"]).into(),
            requests.into(),
            spec.bool_at(&["requiresRepublish"]).into(),
            if modes.is_empty() {
                "<none>".into()
            } else {
                modes.into()
            },
            age_cell(object, now),
        ]
    }
}

fn validate_spec(errors: &mut Complaints, spec: &Value) {
    let path = Path::new("spec");
    let needed = [
        ("attachRequired", "attachedRequired"),
        ("podInfoOnMount", "podInfoOnMount"),
        ("storageCapacity", "storageCapacity"),
    ];
    for (field, name) in needed {
        if spec[field].is_null() {
            errors.push(FieldError::required(&path.child(name), ""));
        }
    }
    let policies = ["File", "None", "ReadWriteOnceWithFSType"];
    one_of_if_set(
        errors,
        &path.child("fsGroupPolicy"),
        &spec["fsGroupPolicy"],
        &policies,
    );
    validate_tokens(
        errors,
        spec.items_at(&["tokenRequests"]),
        &path.child("tokenRequests"),
    );
    for mode in texts(&spec["volumeLifecycleModes"]) {
        one_of(
            errors,
            &path.child("volumeLifecycleModes"),
            mode,
            &["Persistent", "Ephemeral"],
        );
    }
    if spec["seLinuxMount"].is_null() {
        errors.push(FieldError::required(&path.child("seLinuxMount"), ""));
    }
    let period = "nodeAllocatableUpdatePeriodSeconds";
    if let Some(seconds) = spec
        .int_at(&[period])
        .filter(|seconds| *seconds < UPDATE_SECONDS_MIN)
    {
        let detail = "must be greater than or equal to 10 seconds";
        errors.push(FieldError::invalid(&path.child(period), seconds, detail));
    }
    let secrets = &spec["serviceAccountTokenInSecrets"];
    if present(secrets) && spec.items_at(&["tokenRequests"]).is_empty() {
        let detail = "serviceAccountTokenInSecrets is set but no tokenRequests are specified";
        errors.push(FieldError::invalid(
            &path.child("serviceAccountTokenInSecrets"),
            secrets.clone(),
            detail,
        ));
    }
    if spec["preventPodSchedulingIfMissing"].is_null() {
        errors.push(FieldError::required(
            &path.child("preventPodSchedulingIfMissing"),
            "",
        ));
    }
}

fn validate_tokens(errors: &mut Complaints, requests: &[Value], path: &Path<'_>) {
    let mut audiences = BTreeSet::new();
    for (at, request) in requests.iter().enumerate() {
        let path = path.index(at);
        let audience = request.str_at(&["audience"]);
        if !audiences.insert(audience) {
            errors.push(FieldError::duplicate(&path.child("audience"), audience));
            continue;
        }
        let Some(seconds) = request.int_at(&["expirationSeconds"]) else {
            continue;
        };
        let place = path.child("expirationSeconds");
        if seconds < TOKEN_SECONDS.0 {
            errors.push(FieldError::invalid(
                &place,
                seconds,
                "may not specify a duration less than 10 minutes",
            ));
        }
        if seconds > TOKEN_SECONDS.1 {
            errors.push(FieldError::invalid(
                &place,
                seconds,
                "may not specify a duration larger than 2^32 seconds",
            ));
        }
    }
}
