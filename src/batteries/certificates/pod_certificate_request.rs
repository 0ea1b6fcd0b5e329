//! PodCertificateRequests: a pod's request for a certificate, and its outcome.

use super::keys::{Certificate, Key, KeyKind, Request};
use crate::certificates::pem::{Block, blocks};
use crate::core::config_map::bytes_of;
use crate::shared::object_metadata;
use crate::shared::pod::validation::projected::{user_annotations, validate_signer};
use crate::shared::table_cells::name_cell;
use crate::shared::validation::bad_value;
use crate::shared::validation::complaints::{IMMUTABLE, complain, named};
use crate::shared::validation::conditions::conditions;
use polyplane_apimachinery::complaints::Complaints;
use polyplane_apimachinery::field_error::{Bad, FieldError, Path};
use polyplane_apimachinery::time::{Timestamp, duration_text};
use polyplane_apimachinery::{Map, Value, names};
use polyplane_registry::strategy::{Context, Strategy};

const UID_BYTES_MAX: usize = 128;
const KEY_BYTES_MAX: usize = 10 * 1024;
const CHAIN_BYTES_MAX: usize = 100 * 1024;
const HOUR_SECONDS: i64 = 3600;
const DAY_SECONDS: i64 = 24 * HOUR_SECONDS;
/// Seconds by which the beginning of a certificate may differ from the present time.
const SKEW_SECONDS: i64 = 300;
/// Seconds that must lie between the time of refreshing a certificate and both ends of its
/// validity.
const REFRESH_SECONDS: i64 = 600;
const SPEC: &str = "io.k8s.api.certificates.v1.PodCertificateRequestSpec";
const OUTCOMES: [&str; 3] = ["Issued", "Denied", "Failed"];

/// Behaviour of PodCertificateRequests.
#[derive(Debug)]
pub struct PodCertificate;

impl Strategy for PodCertificate {
    fn validate_create(&self, _: &Context<'_>, object: &Value) -> Complaints {
        let mut errors = object_metadata::validate_finalizers(object);
        validate_spec(&mut errors, &object["spec"]);
        errors
    }

    fn validate_update(&self, _: &Context<'_>, object: &Value, old: &Value) -> Complaints {
        let mut errors = object_metadata::validate_update(object, old);
        if object["spec"] != old["spec"] {
            let bad = bad_value::typed(SPEC, &object["spec"]);
            errors.push(FieldError::invalid(&Path::new("spec"), bad, IMMUTABLE));
        }
        errors
    }

    fn validate_subresource(
        &self,
        context: &Context<'_>,
        object: &Value,
        old: &Value,
    ) -> Complaints {
        let mut errors = object_metadata::validate_update(object, old);
        if errors.is_empty() {
            validate_status(&mut errors, object, old, context.now);
        }
        errors
    }

    /// Version v1 has no fields for the key of a request in the form of v1beta1.
    fn to_served(&self, served: &str, mut object: Value) -> Value {
        if let ("v1", Some(spec)) = (served, object.get_mut("spec")) {
            for field in ["pkixPublicKey", "proofOfPossession"] {
                drop(spec.remove(&[field]));
            }
        }
        object
    }

    fn cells(&self, object: &Value, _: i64) -> Vec<Value> {
        let spec = &object["spec"];
        let reached = |condition: &&Value| OUTCOMES.contains(&condition.str_at(&["type"]));
        let outcome = object
            .items_at(&["status", "conditions"])
            .iter()
            .rfind(reached);
        let annotations = spec["unverifiedUserAnnotations"]
            .as_object()
            .into_iter()
            .flat_map(Map::iter);
        let annotations: Vec<String> = annotations
            .map(|(key, value)| format!("{key}={}", value.as_str().unwrap_or("")))
            .collect();
        let annotations = if annotations.is_empty() {
            "<none>".to_owned()
        } else {
            annotations.join(",")
        };
        vec![
            name_cell(object),
            spec.str_at(&["podName"]).into(),
            spec.str_at(&["serviceAccountName"]).into(),
            spec.str_at(&["nodeName"]).into(),
            spec.str_at(&["signerName"]).into(),
            outcome
                .map_or("Pending", |condition| condition.str_at(&["type"]))
                .into(),
            annotations.into(),
        ]
    }
}

fn validate_spec(errors: &mut Complaints, spec: &Value) {
    let path = Path::new("spec");
    let signer = spec.str_at(&["signerName"]);
    validate_signer(signer, &path.child("signerName"), errors);
    user_annotations(
        &spec["unverifiedUserAnnotations"],
        &path.child("unverifiedUserAnnotations"),
        errors,
    );
    for (name, uid) in [
        ("podName", "podUID"),
        ("serviceAccountName", "serviceAccountUID"),
        ("nodeName", "nodeUID"),
    ] {
        let text = spec.str_at(&[name]);
        let complaints = names::dns1123_subdomain(text).into_iter();
        errors
            .extend(complaints.map(|detail| FieldError::invalid(&path.child(name), text, detail)));
        let (text, place) = (spec.str_at(&[uid]), path.child(uid));
        if text.is_empty() {
            errors.push(FieldError::invalid(
                &place,
                named(text),
                "must not be empty",
            ));
        }
        if text.len() > UID_BYTES_MAX {
            errors.push(FieldError::too_long(&place, UID_BYTES_MAX));
        }
    }
    let place = path.child("maxExpirationSeconds");
    let Some(seconds) = spec.int_at(&["maxExpirationSeconds"]) else {
        errors.push(FieldError::required(&place, "must be set"));
        return;
    };
    let host = signer.split('/').next().unwrap_or("");
    let own = host == "kubernetes.io" || host.ends_with(".kubernetes.io");
    let most = if own { DAY_SECONDS } else { 91 * DAY_SECONDS };
    if !(HOUR_SECONDS..=most).contains(&seconds) {
        let detail = format!("must be in the range [{HOUR_SECONDS}, {most}]");
        errors.push(FieldError::invalid(&place, seconds, detail));
    }
    let given = ["stubPKCS10Request", "pkixPublicKey", "proofOfPossession"];
    match given.map(|field| !spec.str_at(&[field]).is_empty()) {
        [true, false, false] => validate_stub(errors, spec, &path.child("stubPKCS10Request")),
        [false, true, true] => validate_proof(errors, spec, &path),
        _ => {
            let detail = "exactly one of (stubPKCS10Request) or (pkixPublicKey, proofOfPossession) must be set";
            errors.push(FieldError::invalid(&path, Bad::Omitted, detail));
        }
    }
}

/// Returns the complaint about the kind of a key, with the form in which the kind is shown.
fn kind_complaint(kind: KeyKind, curves: &str) -> Option<(Bad, String)> {
    use super::keys::Curve;
    match kind {
        KeyKind::Ecdsa(curve @ Curve::P224) => Some((
            Bad::from(format!("curve {}", curve.name())),
            format!("elliptic public keys must use curve {curves}"),
        )),
        KeyKind::Rsa(bits) if bits != 3072 && bits != 4096 => Some((
            Bad::from(format!("{bits}-bit modulus")),
            "RSA keys must have modulus size 3072 or 4096".to_owned(),
        )),
        KeyKind::Other => Some((
            Bad::Omitted,
            "unknown public key type; supported types are Ed25519, ECDSA, and RSA".to_owned(),
        )),
        KeyKind::Ed25519 | KeyKind::Ecdsa(_) | KeyKind::Rsa(_) => None,
    }
}

fn validate_stub(errors: &mut Complaints, spec: &Value, path: &Path<'_>) {
    let der = bytes_of(&spec["stubPKCS10Request"]);
    if der.len() > KEY_BYTES_MAX {
        errors.push(FieldError::too_long(path, KEY_BYTES_MAX));
        return;
    }
    let Some(request) = Request::read(&der) else {
        errors.push(FieldError::invalid(
            path,
            Bad::Omitted,
            "must be a valid PKCS#10 CSR",
        ));
        return;
    };
    if let Some((bad, detail)) = kind_complaint(request.key.kind, "P256, P384, or P521") {
        errors.push(FieldError::invalid(path, bad, detail));
    } else if request.verify().is_err() {
        errors.push(FieldError::invalid(path, Bad::Omitted, "invalid signature"));
    }
}

fn validate_proof(errors: &mut Complaints, spec: &Value, path: &Path<'_>) {
    let (key_place, proof_place) = (path.child("pkixPublicKey"), path.child("proofOfPossession"));
    let (der, proof) = (
        bytes_of(&spec["pkixPublicKey"]),
        bytes_of(&spec["proofOfPossession"]),
    );
    for (bytes, place) in [(&der, &key_place), (&proof, &proof_place)] {
        if bytes.len() > KEY_BYTES_MAX {
            errors.push(FieldError::too_long(place, KEY_BYTES_MAX));
            return;
        }
    }
    let shown = || Bad::Json(spec["pkixPublicKey"].clone());
    let Some(key) = Key::read(&der) else {
        let detail = "must be a valid PKIX-serialized public key";
        errors.push(FieldError::invalid(&key_place, shown(), detail));
        return;
    };
    if let Some((bad, detail)) = kind_complaint(key.kind, "P256 or P384") {
        let bad = if key.kind == KeyKind::Other {
            shown()
        } else {
            bad
        };
        errors.push(FieldError::invalid(&key_place, bad, detail));
    } else if key
        .verify_possession(spec.str_at(&["podUID"]).as_bytes(), &proof)
        .is_err()
    {
        let detail = "could not verify proof-of-possession signature";
        errors.push(FieldError::invalid(&proof_place, Bad::Omitted, detail));
    }
}

fn has_outcome(object: &Value, outcomes: &[&str]) -> bool {
    object
        .items_at(&["status", "conditions"])
        .iter()
        .any(|condition| {
            outcomes.contains(&condition.str_at(&["type"]))
                && condition.str_at(&["status"]) == "True"
        })
}

fn validate_status(errors: &mut Complaints, object: &Value, old: &Value, now: i64) {
    let status = Path::new("status");
    validate_outcomes(errors, object, &status.child("conditions"));
    conditions(
        errors,
        &status.child("conditions"),
        &object["status"]["conditions"],
    );
    if !errors.is_empty() {
        return;
    }
    let mut demand = |equal: bool, detail: &str| {
        if !equal {
            errors.push(FieldError::invalid(&status, Bad::Omitted, detail));
        }
    };
    let unchanged = object["status"] == old["status"];
    if has_outcome(old, &OUTCOMES) {
        demand(
            unchanged,
            "immutable after PodCertificateRequest is issued, denied, or failed",
        );
    } else if has_outcome(object, &["Denied", "Failed"]) {
        let mut members = object["status"].as_object().into_iter().flat_map(Map::iter);
        let only = members.all(|(key, value)| key == "conditions" || value.is_null());
        demand(
            only,
            "non-condition status fields must be empty when denying or failing the PodCertificateRequest",
        );
    } else if has_outcome(object, &["Issued"]) {
        let status = &object["status"];
        errors.extend(
            Issue {
                status,
                spec: &old["spec"],
                now,
            }
            .validate(),
        );
    } else {
        demand(
            unchanged,
            "status is immutable unless transitioning to \"Issued\", \"Denied\", or \"Failed\"",
        );
    }
}

fn validate_outcomes(errors: &mut Complaints, object: &Value, list: &Path<'_>) {
    let mut outcomes = 0;
    for (at, condition) in object
        .items_at(&["status", "conditions"])
        .iter()
        .enumerate()
    {
        let step = format!("[{at}]");
        let path = list.child(&step);
        let (kind, text) = (condition.str_at(&["type"]), condition.str_at(&["status"]));
        if !OUTCOMES.contains(&kind) {
            errors.push(FieldError::not_supported(
                &path.child("type"),
                kind,
                &OUTCOMES,
            ));
            continue;
        }
        outcomes += 1;
        if outcomes > 1 {
            let detail = "There may be at most one condition with type \"Issued\", \"Denied\", or \"Failed\"";
            errors.push(FieldError::invalid(&path.child("type"), kind, detail));
        }
        if text != "True" {
            errors.push(FieldError::not_supported(
                &path.child("status"),
                named(text),
                &["True"],
            ));
        }
    }
}

/// A certificate that a signer has written into the status.
struct Issue<'v> {
    status: &'v Value,
    spec: &'v Value,
    now: i64,
}

impl Issue<'_> {
    fn validate(&self) -> Complaints {
        let status = Path::new("status");
        let path = status.child("certificateChain");
        let chain = self.status.str_at(&["certificateChain"]);
        if chain.len() > CHAIN_BYTES_MAX {
            return Complaints::from([FieldError::too_long(&path, CHAIN_BYTES_MAX)]);
        }
        let found = blocks(chain);
        let invalid = |detail: &str| FieldError::invalid(&path, chain, detail);
        let leaf = match found.first() {
            None => {
                return Complaints::from([invalid(
                    "issued certificate chain must contain at least one certificate",
                )]);
            }
            Some(block) if block.label != "CERTIFICATE" => {
                return Complaints::from([invalid(
                    "issued certificate chain must consist entirely of CERTIFICATE PEM blocks",
                )]);
            }
            Some(block) => Certificate::read(&block.bytes),
        };
        let Some(leaf) = leaf else {
            return Complaints::from([invalid("leaf certificate does not parse as valid X.509")]);
        };
        let mut errors = self.name_complaints(&leaf, &path);
        if let Some(error) = self.key_complaint(&leaf, chain, &path) {
            errors.push(error);
            return errors;
        }
        for (field, detail) in [
            (
                "notBefore",
                "must be present and consistent with the issued certificate",
            ),
            (
                "notAfter",
                "must be present and consistent with the issued certificate",
            ),
            (
                "beginRefreshAt",
                "must be present and in the range [notbefore+10min, notafter-10min]",
            ),
        ] {
            if self.status[field].is_null() {
                errors.push(FieldError::required(&status.child(field), detail));
            }
        }
        if errors.is_empty() {
            errors.extend(self.time_complaint(&leaf, &status, &path));
        }
        if errors.is_empty() {
            errors.extend(found.iter().skip(1).find_map(rest_complaint).map(invalid));
        }
        errors
    }

    fn name_complaints(&self, leaf: &Certificate, path: &Path<'_>) -> Complaints {
        let mut errors = Complaints::default();
        for name in &leaf.dns_names {
            let mut invalid = |bad: bool, detail: &str| {
                if bad {
                    complain(&mut errors, path, name.as_str(), vec![detail.to_owned()]);
                }
            };
            invalid(
                name.is_empty(),
                "leaf certificate should not contain empty DNSName",
            );
            invalid(
                name.contains(".."),
                "leaf certificate's DNSName should not contain '..'",
            );
            let edge = name.starts_with('.') || name.ends_with('.');
            invalid(
                edge,
                "leaf certificate's DNSName should not start or end with '.'",
            );
        }
        for address in &leaf.mail_addresses {
            let parts = address
                .rsplit_once('@')
                .filter(|(user, host)| !user.is_empty() && !host.is_empty());
            if parts.is_none() || address.contains(char::is_whitespace) {
                let detail = "leaf certificate should not contain invalid EmailAddress";
                complain(&mut errors, path, address.as_str(), vec![detail.to_owned()]);
            }
        }
        errors
    }

    fn key_complaint(
        &self,
        leaf: &Certificate,
        chain: &str,
        path: &Path<'_>,
    ) -> Option<FieldError> {
        let spec = Path::new("spec");
        let stub = bytes_of(&self.spec["stubPKCS10Request"]);
        let wanted = if stub.is_empty() {
            let key = Key::read(&bytes_of(&self.spec["pkixPublicKey"]));
            key.ok_or((
                "pkixPublicKey",
                "must be a valid PKIX-serialized public key",
            ))
        } else {
            let request = Request::read(&stub);
            request
                .map(|request| request.key)
                .ok_or(("stubPKCS10Request", "must be a valid PKCS#10 CSR"))
        };
        match wanted {
            Err((field, detail)) => Some(FieldError::invalid(
                &spec.child(field),
                Bad::Omitted,
                detail,
            )),
            Ok(key) if key != leaf.key => {
                let detail = "leaf certificate was not issued to the requested public key";
                Some(FieldError::invalid(path, chain, detail))
            }
            Ok(_) => None,
        }
    }

    fn time_complaint(
        &self,
        leaf: &Certificate,
        status: &Path<'_>,
        chain: &Path<'_>,
    ) -> Option<FieldError> {
        let time = |field: &str| {
            let then = Timestamp::parse(self.status.str_at(&[field])).ok();
            then.map_or(0, |then| {
                then.nanoseconds_since(Timestamp::from_seconds(0)) / 1_000_000_000
            })
        };
        let (begin, end, refresh) = (time("notBefore"), time("notAfter"), time("beginRefreshAt"));
        let invalid = |field: &str, detail: &str| {
            Some(FieldError::invalid(
                &status.child(field),
                self.status[field].clone(),
                detail,
            ))
        };
        if begin != leaf.not_before {
            return invalid(
                "notBefore",
                "must be set to the NotBefore time encoded in the leaf certificate",
            );
        }
        if (begin - self.now).abs() >= SKEW_SECONDS {
            return invalid(
                "notBefore",
                "must be set to within 5 minutes of kube-apiserver's current time",
            );
        }
        if end != leaf.not_after {
            return invalid(
                "notAfter",
                "must be set to the NotAfter time encoded in the leaf certificate",
            );
        }
        let lifetime = leaf.not_after - leaf.not_before;
        let most = self.spec.int_at(&["maxExpirationSeconds"]).unwrap_or(0);
        let shown = || Bad::Shown(duration_text(lifetime.saturating_mul(1_000_000_000)).into());
        if lifetime < HOUR_SECONDS {
            let detail = "leaf certificate lifetime must be >= 1 hour";
            return Some(FieldError::invalid(chain, shown(), detail));
        }
        if lifetime > most {
            let detail =
                format!("leaf certificate lifetime must be <= spec.maxExpirationSeconds ({most})");
            return Some(FieldError::invalid(chain, shown(), detail));
        }
        if refresh < begin + REFRESH_SECONDS {
            return invalid(
                "beginRefreshAt",
                "must be at least 10 minutes after status.notBefore",
            );
        }
        if refresh > end - REFRESH_SECONDS {
            return invalid(
                "beginRefreshAt",
                "must be at least 10 minutes before status.notAfter",
            );
        }
        None
    }
}

fn rest_complaint(block: &Block) -> Option<&'static str> {
    if block.label != "CERTIFICATE" {
        return Some("issued certificate chain must consist entirely of CERTFICATE PEM blocks");
    }
    let readable = Certificate::read(&block.bytes).is_some();
    (!readable).then_some("intermediate certificate does not parse as valid X.509")
}
