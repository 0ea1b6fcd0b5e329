//! POST of a TokenRequest: a new token of a service account, perhaps bound to a pod, a Secret or a
//! node. Nothing is stored.

use crate::answer::negotiate;
use crate::plan::{admit_sent, fields};
use crate::request::body;
use crate::request::body::Expected;
use crate::request::call::{Call, missing};
use crate::request::options::WriteOptions;
use crate::tokens::no_issuer;
use crate::write::answerable;
use polyplane_apimachinery::complaints::Complaints;
use polyplane_apimachinery::field_error::{Bad, FieldError, Path};
use polyplane_apimachinery::json::scan::Scanned;
use polyplane_apimachinery::status::{ApiError, Qualified};
use polyplane_apimachinery::time::Timestamp;
use polyplane_apimachinery::{Map, Str, Value};
use polyplane_auth::jws::TOKEN_BYTES_MAX;
use polyplane_auth::service_account::claims::{AUDIENCES_MAX, Binding, Claims, ObjectClaim};
use polyplane_plane::{Key, Snapshot};

/// The kind of the request.
const KIND: &str = "TokenRequest";
/// The name of its Go type, which upstream's errors show.
pub(crate) const GO_TYPE: &str = "*authentication.TokenRequest";
/// Its group.
const GROUP: &str = "authentication.k8s.io";
/// Seconds for which a token is valid if the request does not say; upstream's default.
const SECONDS_DEFAULT: i64 = 3600;
/// Fewest seconds that a request may ask for; upstream's limit.
const SECONDS_MIN: i64 = 600;
/// Most seconds that a request may ask for; upstream's limit.
const SECONDS_MAX: i64 = 1 << 32;
/// The odd number of seconds that the admission of pods asks for. Tokens of that age live longer, so
/// that old clients, which never read the renewed one, do not fail; they are marked.
const PROJECTED_SECONDS: i64 = 3607;
/// How long such tokens live: a year, as upstream.
const EXTENDED_SECONDS: i64 = 365 * 24 * 3600;

/// The annotation in the audit that names the issued token.
const ISSUED_ID: &str = "authentication.kubernetes.io/issued-credential-id";

/// Issues a token for the account of the path, and returns the JSON of the request with its status.
///
/// # Errors
/// Returns 400 or 422 for a bad request, 404 if the account or the bound object does not exist, 409
/// if one of them has another uid, 503 if the plane has no keys.
pub async fn request(call: &Call<'_>) -> Result<Vec<u8>, ApiError> {
    let syntax = negotiate::input(call.request)?;
    let options = WriteOptions::parse(call.request, "CreateOptions")?;
    let expected = expected(call)?;
    let mut tree = body::decode(call, syntax, expected, options.field_validation)?;
    body::match_path(call, &mut tree)?;
    if tree
        .at(&["spec", "expirationSeconds"])
        .is_none_or(Value::is_null)
    {
        tree.set(&["spec", "expirationSeconds"], SECONDS_DEFAULT);
    }
    let manager = fields::manager_name(call, &options.field_manager);
    fields::manage_unstored_subresource(call, expected, &manager, &mut tree);
    answerable(call).await?;
    let cut = call.newest().await?;
    admit_sent(call, &cut, expected, &options, &mut tree)?;
    issue(call, &cut, &mut tree)?;
    let body = expected.schemas.to_vec(expected.definition, &tree);
    let mut out = format!("{{\"kind\":\"{KIND}\",\"apiVersion\":\"{GROUP}/v1\",").into_bytes();
    out.extend_from_slice(&body[1..]);
    Ok(out)
}

fn expected<'a>(call: &Call<'a>) -> Result<Expected<'a>, ApiError> {
    let schemas = call.tenant.base.schemas();
    let definition = schemas.find("io.k8s.api.authentication.v1.TokenRequest");
    Ok(Expected {
        group: GROUP,
        version: "v1",
        kind: KIND,
        schemas,
        definition: definition
            .ok_or_else(|| ApiError::internal("the schema of TokenRequest is missing"))?,
        custom: None,
    })
}

/// Completes the request by what the plane knows, and gives it a token.
fn issue(call: &Call<'_>, cut: &Snapshot, tree: &mut Value) -> Result<(), ApiError> {
    let (name, namespace) = (call.name()?, call.namespace());
    check_name(tree, name)?;
    let account = object(cut, "serviceaccounts", Some(namespace), name)?;
    let given = tree.str_at(&["metadata", "uid"]);
    if !given.is_empty() && given != account.uid {
        let why = format!(
            "the UID in the token request ({given}) does not match the UID of the service account ({})",
            account.uid
        );
        return Err(ApiError::conflict(Qualified::new(GROUP, KIND), name, why));
    }
    let issuer = call.services.tokens.as_ref().ok_or_else(no_issuer)?;
    let issuer = issuer
        .issuer(call.tenant.plane.id())
        .ok_or_else(no_issuer)?;
    if tree.items_at(&["spec", "audiences"]).is_empty() {
        let own = issuer.audiences().iter().cloned().map(Value::String);
        tree.set(&["spec", "audiences"], own.collect::<Vec<_>>());
    }
    let now = call.environment.now();
    tree.set(&["metadata", "name"], name.clone());
    tree.set(&["metadata", "uid"], account.uid.clone());
    tree.set(&["metadata", "creationTimestamp"], time(now));
    validate(&tree["spec"])?;
    let audiences = audiences(tree)?;
    let bound = bind(cut, &tree["spec"], name, namespace)?;
    let seconds = shortened(call, tree);
    let is_own = audiences.iter().all(|one| issuer.audiences().contains(one));
    let is_extended = call.tenant.settings.lifetimes.are_pod_tokens_extended
        && matches!(bound, Binding::Pod { .. })
        && seconds == PROJECTED_SECONDS
        && is_own;
    let (lifetime, warn_after) = match is_extended {
        true => (EXTENDED_SECONDS, Some(now + seconds)),
        false => (seconds, None),
    };
    let mut claims = Claims {
        issuer: issuer.name().clone(),
        audiences,
        issued_at: Some(now),
        not_before: Some(now),
        expires: Some(now + lifetime),
        id: call.environment.uid(),
        namespace: namespace.into(),
        account,
        binding: bound,
        warn_after,
    };
    // `nbf` stays the present: many relying parties check it without any leeway, and do not check `iat`.
    claims.issued_at = Some(issuer.issue_time(&claims.user_name(), now));
    let token = issuer.sign(&claims).map_err(ApiError::internal)?;
    if token.len() > TOKEN_BYTES_MAX {
        let message = format!("the token would have more than {TOKEN_BYTES_MAX} bytes");
        return Err(ApiError::bad_request(message));
    }
    call.annotate(ISSUED_ID, || format!("JTI={}", claims.id));
    let mut status = Value::object();
    status.set(&["token"], token);
    status.set(&["expirationTimestamp"], time(now + seconds));
    tree.set(&["status"], status);
    Ok(())
}

/// Returns the seconds for which a token is valid: those that are requested, or fewer. The client is
/// warned then.
fn shortened(call: &Call<'_>, tree: &mut Value) -> i64 {
    let seconds = tree
        .int_at(&["spec", "expirationSeconds"])
        .unwrap_or(SECONDS_DEFAULT);
    let most = call.tenant.settings.lifetimes.token_seconds_max;
    let Some(most) = most.filter(|most| seconds > *most) else {
        return seconds;
    };
    call.warn(format!(
        "requested expiration of {seconds} seconds shortened to {most} seconds"
    ));
    tree.set(&["spec", "expirationSeconds"], most);
    most
}

fn time(seconds: i64) -> String {
    Timestamp::from_seconds(seconds).to_rfc3339()
}

/// Checks that a body that has a name has that of the path.
fn check_name(tree: &Value, name: &str) -> Result<(), ApiError> {
    let given = tree.str_at(&["metadata", "name"]);
    if given.is_empty() || given == name {
        return Ok(());
    }
    let path = Path::new("metadata");
    let detail = "must match the service account name if specified";
    let error = FieldError::invalid(&path.child("name"), given, detail);
    let kind = Qualified::new(GROUP, KIND);
    Err(ApiError::invalid(kind, name, &[error]))
}

fn validate(spec: &Value) -> Result<(), ApiError> {
    let path = Path::new("spec");
    let mut errors = Complaints::default();
    let seconds = spec
        .int_at(&["expirationSeconds"])
        .unwrap_or(SECONDS_DEFAULT);
    let detail = match seconds {
        ..SECONDS_MIN => Some("may not specify a duration less than 10 minutes"),
        SECONDS_MIN..=SECONDS_MAX => None,
        _ => Some("may not specify a duration larger than 2^32 seconds"),
    };
    if let Some(detail) = detail {
        errors.push(FieldError::invalid(
            &path.child("expirationSeconds"),
            seconds,
            detail,
        ));
    }
    let attestations = &spec["attestations"];
    let count = attestations.as_object().map_or(0, Map::len);
    let at = path.child("attestations");
    if is_webhook(&spec["boundObjectRef"]) {
        if spec.items_at(&["audiences"]).len() != 1 {
            let detail = "must be length 1 when bound to a webhook config";
            let bad = Bad::Json(spec["audiences"].clone());
            errors.push(FieldError::invalid(&path.child("audiences"), bad, detail));
        }
        if count != 1 {
            let detail =
                "webhook bound requests require exactly one admissionReviewAPIGroups attestation";
            let bad = Bad::Json(attestations.clone());
            errors.push(FieldError::invalid(&at, bad, detail));
        }
    } else if count > 0 {
        let detail = "attestations may only be specified with a webhook bound object reference";
        let bad = Bad::Json(attestations.clone());
        errors = Complaints::from([FieldError::invalid(&at, bad, detail)]);
    }
    if errors.is_empty() {
        return Ok(());
    }
    Err(ApiError::invalid(Qualified::new(GROUP, KIND), "", &errors))
}

/// Returns whether a token shall be bound to the configuration of a webhook, which a feature gate
/// forbids that is off.
fn is_webhook(reference: &Value) -> bool {
    let is_kind = matches!(
        reference.str_at(&["kind"]),
        "ValidatingWebhookConfiguration" | "MutatingWebhookConfiguration"
    );
    is_kind && reference.str_at(&["apiVersion"]) == "admissionregistration.k8s.io/v1"
}

fn audiences(tree: &Value) -> Result<Vec<Str>, ApiError> {
    let items = tree.items_at(&["spec", "audiences"]);
    if items.len() > AUDIENCES_MAX {
        let message = format!("a token may have at most {AUDIENCES_MAX} audiences");
        return Err(ApiError::bad_request(message));
    }
    let texts = items.iter().filter_map(Value::as_str);
    Ok(texts.map(Str::from).collect())
}

/// Returns the object that the token shall be bound to.
fn bind(cut: &Snapshot, spec: &Value, account: &str, namespace: &str) -> Result<Binding, ApiError> {
    let reference = &spec["boundObjectRef"];
    if reference.is_null() {
        return Ok(Binding::Account);
    }
    let (api_version, kind) = (
        reference.str_at(&["apiVersion"]),
        reference.str_at(&["kind"]),
    );
    let (group, version) = api_version.split_once('/').unwrap_or(("", api_version));
    let name = reference.str_at(&["name"]);
    let (bound, uid) = match (group, kind) {
        ("", "Pod") => {
            let pod = object(cut, "pods", Some(namespace), name)?;
            let uid = pod.uid.clone();
            (bind_pod(cut, pod, account, namespace)?, uid)
        }
        ("", "Node") => {
            let node = object(cut, "nodes", None, name)?;
            (Binding::Node(node.clone()), node.uid)
        }
        ("", "Secret") => {
            let secret = object(cut, "secrets", Some(namespace), name)?;
            (Binding::Secret(secret.clone()), secret.uid)
        }
        _ => {
            let text = format!("{group}/{version}, Kind={kind}");
            let why = match is_webhook(reference) {
                true => " (feature gate APIServerWebhookAuthenticationToken is disabled)",
                false => "",
            };
            let message = format!("cannot bind token to object of type {text}{why}");
            return Err(ApiError::bad_request(message));
        }
    };
    let given = reference.str_at(&["uid"]);
    if !given.is_empty() && given != uid {
        let why = format!(
            "the UID in the bound object reference ({given}) does not match the UID in record. The object might have been deleted and then recreated"
        );
        // Upstream names the kind of the request here, not the object's.
        return Err(ApiError::conflict(Qualified::new(group, kind), name, why));
    }
    Ok(bound)
}

fn bind_pod(
    cut: &Snapshot,
    pod: ObjectClaim,
    account: &str,
    namespace: &str,
) -> Result<Binding, ApiError> {
    let body = cut.get(&Key::new("", "pods", Some(namespace), &pod.name));
    let body = body.map(|pod| pod.body()).unwrap_or_default();
    let body = Scanned(&body);
    if body.str_at(&["spec", "serviceAccountName"]) != account {
        return Err(ApiError::bad_request(format!(
            "cannot bind token for serviceaccount {account:?} to pod running with different serviceaccount name."
        )));
    }
    let node = body.str_at(&["spec", "nodeName"]);
    let node = (!node.is_empty()).then(|| {
        // The token names the node of a pod even if there is no such node.
        object(cut, "nodes", None, &node).unwrap_or_else(|_| ObjectClaim {
            name: Str::from(&*node),
            uid: Str::default(),
        })
    });
    Ok(Binding::Pod { pod, node })
}

/// Returns the name and uid of an object.
fn object(
    cut: &Snapshot,
    resource: &str,
    namespace: Option<&str>,
    name: &str,
) -> Result<ObjectClaim, ApiError> {
    let found = cut.get(&Key::new("", resource, namespace, name));
    let found = found.ok_or_else(|| missing(Qualified::new("", resource), name))?;
    let uid = Scanned(&found.body()).str_at(&["metadata", "uid"]).into();
    Ok(ObjectClaim {
        name: name.into(),
        uid,
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use polyplane_apimachinery::json;

    /// A configuration of another version cannot be bound to, whatever its audiences and attestations are.
    #[test]
    fn the_rules_for_webhooks_apply_to_configurations_of_v1() {
        let refused = |version: &str| {
            let reference = json!({
                "apiVersion": (format!("admissionregistration.k8s.io/{version}")),
                "kind": "ValidatingWebhookConfiguration"
            });
            validate(&json!({"audiences": ["a", "b"], "boundObjectRef": reference})).is_err()
        };
        assert!(refused("v1"));
        assert!(!refused("v1beta1"));
    }
}
