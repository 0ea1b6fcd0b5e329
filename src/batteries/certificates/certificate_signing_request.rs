//! CertificateSigningRequests: a request for a certificate, its approval and the certificate.

use super::keys::{Certificate, KeyKind, Request};
use crate::certificates::pem::blocks;
use crate::core::config_map::bytes_of;
use crate::shared::object_metadata;
use crate::shared::pod::validation::projected::validate_signer;
use crate::shared::table_cells::{age_cell, name_cell};
use crate::shared::validation::complaints::named;
use crate::shared::validation::members::texts;
use polyplane_apimachinery::complaints::Complaints;
use polyplane_apimachinery::field_error::{Bad, FieldError, Path};
use polyplane_apimachinery::names::NameRule;
use polyplane_apimachinery::quote::quote;
use polyplane_apimachinery::time::{Timestamp, human_duration};
use polyplane_apimachinery::{Map, Value};
use polyplane_registry::Scope;
use polyplane_registry::strategy::{Context, Strategy};
use std::collections::BTreeSet;

const LEGACY_SIGNER: &str = "kubernetes.io/legacy-unknown";
const SECONDS_MIN: i64 = 600;
/// Conditions about the decision and the outcome, which can only be true.
const DECISIONS: [&str; 3] = ["Approved", "Denied", "Failed"];
const STATUSES: [&str; 3] = ["False", "True", "Unknown"];
const USAGES: [&str; 23] = [
    "any",
    "cert sign",
    "client auth",
    "code signing",
    "content commitment",
    "crl sign",
    "data encipherment",
    "decipher only",
    "digital signature",
    "email protection",
    "encipher only",
    "ipsec end system",
    "ipsec tunnel",
    "ipsec user",
    "key agreement",
    "key encipherment",
    "microsoft sgc",
    "netscape sgc",
    "ocsp signing",
    "s/mime",
    "server auth",
    "signing",
    "timestamping",
];

/// Behaviour of CertificateSigningRequests.
#[derive(Debug)]
pub struct SigningRequest;

impl Strategy for SigningRequest {
    fn prepare_create(&self, context: &Context<'_>, object: &mut Value) {
        let user = context.user;
        for field in ["username", "uid", "groups", "extra"] {
            drop(object.remove(&["spec", field]));
        }
        object.set(&["spec", "username"], user.name.clone());
        object.set(&["spec", "uid"], user.uid.clone());
        let list = |items: &[_]| -> Value {
            items
                .iter()
                .cloned()
                .map(Value::String)
                .collect::<Vec<_>>()
                .into()
        };
        if !user.groups.is_empty() {
            object.set(&["spec", "groups"], list(&user.groups));
        }
        if !user.extra.is_empty() {
            let extra: Map = user
                .extra
                .iter()
                .map(|(key, values)| (key.clone(), list(values)))
                .collect();
            object.set(&["spec", "extra"], Value::Object(extra));
        }
    }

    fn prepare_update(&self, _: &Context<'_>, object: &mut Value, old: &Value) {
        keep(object, old, &["spec"]);
    }

    fn prepare_subresource(&self, context: &Context<'_>, object: &mut Value, old: &Value) {
        keep(object, old, &["spec"]);
        if context.subresource == "approval" {
            stamp(object, old, context.now);
            let conditions = object.at(&["status", "conditions"]).cloned();
            keep(object, old, &["status"]);
            match conditions {
                Some(conditions) => object.set(&["status", "conditions"], conditions),
                None => drop(object.remove(&["status", "conditions"])),
            }
        } else {
            keep_decision(object, old, "Approved");
            keep_decision(object, old, "Denied");
            stamp(object, old, context.now);
        }
    }

    fn validate_create(&self, _: &Context<'_>, object: &Value) -> Complaints {
        let mut errors = object_metadata::validate_finalizers(object);
        validate(&mut errors, object, None);
        errors
    }

    fn validate_update(&self, context: &Context<'_>, object: &Value, old: &Value) -> Complaints {
        let mut errors = object_metadata::validate(object, Scope::Cluster, NameRule::PathSegment);
        validate(&mut errors, object, Some(old));
        validate_change(&mut errors, context.subresource, object, old);
        errors.extend(object_metadata::validate_update(object, old));
        errors
    }

    fn validate_subresource(
        &self,
        context: &Context<'_>,
        object: &Value,
        old: &Value,
    ) -> Complaints {
        self.validate_update(context, object, old)
    }

    fn cells(&self, object: &Value, now: i64) -> Vec<Value> {
        let spec = &object["spec"];
        let signer = match spec.str_at(&["signerName"]) {
            "" => "<none>",
            signer => signer,
        };
        let duration = match spec.int_at(&["expirationSeconds"]) {
            Some(seconds) => human_duration(seconds.saturating_mul(1_000_000_000)),
            None => "<none>".to_owned(),
        };
        vec![
            name_cell(object),
            age_cell(object, now),
            signer.into(),
            spec.str_at(&["username"]).into(),
            duration.into(),
            state(object).into(),
        ]
    }
}

fn state(object: &Value) -> String {
    let has = |kind: &str| decisions(object, kind).next().is_some();
    let mut text = match (has("Denied"), has("Approved")) {
        (true, _) => "Denied",
        (false, true) => "Approved",
        (false, false) => "Pending",
    }
    .to_owned();
    if has("Failed") {
        text.push_str(",Failed");
    }
    if !object.str_at(&["status", "certificate"]).is_empty() {
        text.push_str(",Issued");
    }
    text
}

fn keep(object: &mut Value, old: &Value, path: &[&str]) {
    match old.at(path) {
        Some(value) => object.set(path, value.clone()),
        None => drop(object.remove(path)),
    }
}

fn conditions(object: &Value) -> &[Value] {
    object.items_at(&["status", "conditions"])
}

fn decisions<'v>(object: &'v Value, kind: &'v str) -> impl Iterator<Item = &'v Value> {
    conditions(object)
        .iter()
        .filter(move |condition| condition.str_at(&["type"]) == kind)
}

fn conditions_mut(object: &mut Value) -> impl Iterator<Item = &mut Value> {
    object
        .at_mut(&["status", "conditions"])
        .and_then(Value::as_array_mut)
        .into_iter()
        .flatten()
}

/// Keeps the conditions of a type as they were, if their number is the same.
fn keep_decision(object: &mut Value, old: &Value, kind: &str) {
    let before: Vec<Value> = decisions(old, kind).cloned().collect();
    if decisions(object, kind).count() != before.len() {
        return;
    }
    let now = conditions_mut(object).filter(|condition| condition.str_at(&["type"]) == kind);
    for (condition, before) in now.zip(before) {
        *condition = before;
    }
}

/// Fills in the times that are not set.
fn stamp(object: &mut Value, old: &Value, now: i64) {
    let now = Timestamp::from_seconds(now).to_rfc3339();
    for condition in conditions_mut(object) {
        if condition.str_at(&["lastUpdateTime"]).is_empty() {
            condition.set(&["lastUpdateTime"], now.as_str());
        }
        if condition.str_at(&["lastTransitionTime"]).is_empty() {
            let same = |old: &&Value| {
                ["type", "status"]
                    .iter()
                    .all(|field| old.str_at(&[field]) == condition.str_at(&[field]))
                    && !old.str_at(&["lastTransitionTime"]).is_empty()
            };
            let before = conditions(old).iter().find(same);
            let time = before
                .map_or(now.as_str(), |old| old.str_at(&["lastTransitionTime"]))
                .to_owned();
            condition.set(&["lastTransitionTime"], time);
        }
    }
}

fn validate(errors: &mut Complaints, object: &Value, old: Option<&Value>) {
    let (path, spec) = (Path::new("spec"), &object["spec"]);
    if let Some(complaint) = request_complaint(spec) {
        errors.push(FieldError::invalid(
            &path.child("request"),
            Bad::Json(spec["request"].clone()),
            complaint,
        ));
    }
    validate_usages(errors, spec, old, &path.child("usages"));
    let (signer, place) = (spec.str_at(&["signerName"]), path.child("signerName"));
    let was_legacy = old.is_some_and(|old| old.str_at(&["spec", "signerName"]) == LEGACY_SIGNER);
    if signer == LEGACY_SIGNER && !was_legacy {
        let detail = "the legacy signerName is not allowed via this API version";
        errors.push(FieldError::invalid(&place, signer, detail));
    } else {
        validate_signer(signer, &place, errors);
    }
    if let Some(seconds) = spec
        .int_at(&["expirationSeconds"])
        .filter(|seconds| *seconds < SECONDS_MIN)
    {
        let detail = "may not specify a duration less than 600 seconds (10 minutes)";
        errors.push(FieldError::invalid(
            &path.child("expirationSeconds"),
            seconds,
            detail,
        ));
    }
    validate_conditions(errors, object, old);
    let tolerated = old.is_some_and(|old| {
        old["status"]["certificate"] == object["status"]["certificate"]
            || certificate_complaint(old).is_some()
    });
    if let Some(complaint) = certificate_complaint(object).filter(|_| !tolerated) {
        let status = Path::new("status");
        errors.push(FieldError::invalid(
            &status.child("certificate"),
            "<certificate data>",
            complaint,
        ));
    }
}

fn request_complaint(spec: &Value) -> Option<&'static str> {
    let text = bytes_of(&spec["request"]);
    let found = blocks(&String::from_utf8_lossy(&text)).into_iter().next();
    let Some(block) = found.filter(|block| block.label == "CERTIFICATE REQUEST") else {
        return Some("PEM block type must be CERTIFICATE REQUEST");
    };
    let Some(request) = Request::read(&block.bytes) else {
        return Some("asn1: structure error: malformed certificate request");
    };
    request.verify().err().map(|_| match request.key.kind {
        KeyKind::Ed25519 => "x509: Ed25519 verification failure",
        KeyKind::Ecdsa(_) => "x509: ECDSA verification failure",
        KeyKind::Rsa(_) => "crypto/rsa: verification error",
        KeyKind::Other => "x509: cannot verify signature: algorithm unimplemented",
    })
}

fn certificate_complaint(object: &Value) -> Option<String> {
    let text = bytes_of(&object["status"]["certificate"]);
    if text.is_empty() {
        return None;
    }
    let found = blocks(&String::from_utf8_lossy(&text));
    for block in &found {
        if block.label != "CERTIFICATE" {
            return Some(format!(
                "only CERTIFICATE PEM blocks are allowed, found {}",
                quote(&block.label)
            ));
        }
        if block.has_headers {
            return Some("no PEM block headers are permitted".to_owned());
        }
        if Certificate::read(&block.bytes).is_none() {
            return Some("x509: malformed certificate".to_owned());
        }
    }
    found
        .is_empty()
        .then(|| "must contain at least one CERTIFICATE PEM block".to_owned())
}

fn validate_usages(errors: &mut Complaints, spec: &Value, old: Option<&Value>, list: &Path<'_>) {
    let usages = texts(&spec["usages"]);
    let before = old
        .map(|old| texts(&old["spec"]["usages"]))
        .unwrap_or_default();
    let unknown = |usage: &str| !USAGES.contains(&usage);
    if usages.is_empty() {
        errors.push(FieldError::required(list, ""));
    }
    if !before.iter().any(|usage| unknown(usage)) {
        for (at, usage) in usages
            .iter()
            .enumerate()
            .filter(|(_, usage)| unknown(usage))
        {
            errors.push(FieldError::not_supported(
                &list.index(at),
                named(usage),
                &USAGES,
            ));
        }
    }
    let distinct: BTreeSet<&str> = before.iter().copied().collect();
    if distinct.len() == before.len() {
        let mut seen = BTreeSet::new();
        for (at, usage) in usages.iter().enumerate() {
            if !seen.insert(usage) {
                errors.push(FieldError::duplicate(&list.index(at), named(usage)));
            }
        }
    }
}

fn validate_conditions(errors: &mut Complaints, object: &Value, old: Option<&Value>) {
    let before: Vec<&str> = old
        .map(conditions)
        .unwrap_or_default()
        .iter()
        .map(|condition| condition.str_at(&["type"]))
        .collect();
    let distinct: BTreeSet<&str> = before.iter().copied().collect();
    let status = Path::new("status");
    let list = status.child("conditions");
    let mut seen = BTreeSet::new();
    for (at, condition) in conditions(object).iter().enumerate() {
        let path = list.index(at);
        let (kind, text) = (condition.str_at(&["type"]), condition.str_at(&["status"]));
        if kind.is_empty() && !before.contains(&"") {
            errors.push(FieldError::required(&path.child("type"), ""));
        }
        let allowed: &[&str] = if DECISIONS.contains(&kind) {
            &["True"]
        } else {
            &STATUSES
        };
        if text.is_empty() {
            errors.push(FieldError::required(&path.child("status"), ""));
        } else if !allowed.contains(&text) {
            errors.push(FieldError::not_supported(
                &path.child("status"),
                named(text),
                allowed,
            ));
        }
        if !seen.insert(kind) && distinct.len() == before.len() {
            errors.push(FieldError::duplicate(&path.child("type"), named(kind)));
        }
    }
}

/// Checks the changes that a write makes to decisions and to the certificate.
fn validate_change(errors: &mut Complaints, subresource: &str, object: &Value, old: &Value) {
    let status = Path::new("status");
    let list = status.child("conditions");
    let count = |object: &Value, kind: &str| decisions(object, kind).count();
    for kind in DECISIONS {
        if count(object, kind) < count(old, kind) {
            let detail = format!("updates may not remove a condition of type {kind:?}");
            errors.push(FieldError::forbidden(&list, detail));
        }
    }
    if subresource != "approval" {
        for kind in &DECISIONS[..2] {
            let (now, then) = (count(object, kind), count(old, kind));
            if now > then {
                let detail = format!("updates may not add a condition of type {kind:?}");
                errors.push(FieldError::forbidden(&list, detail));
            } else if now == then && !decisions(object, kind).eq(decisions(old, kind)) {
                let detail = format!("updates may not modify a condition of type {kind:?}");
                errors.push(FieldError::forbidden(&list, detail));
            }
        }
    }
    let certificate = |object: &Value| object.str_at(&["status", "certificate"]).to_owned();
    if certificate(object) != certificate(old) {
        let place = status.child("certificate");
        if subresource != "status" {
            errors.push(FieldError::forbidden(
                &place,
                "updates may not set certificate content",
            ));
        } else if !certificate(old).is_empty() {
            errors.push(FieldError::forbidden(
                &place,
                "updates may not modify existing certificate content",
            ));
        }
    }
}
