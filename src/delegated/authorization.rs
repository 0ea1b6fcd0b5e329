//! The file `AuthorizationConfiguration` of `apiserver.config.k8s.io`: authorizers in the order in which
//! they decide, several webhooks among them. This module makes no authorizer.

use std::collections::BTreeSet;
use std::path::{Path as FilePath, PathBuf};
use std::time::Duration;

use polyplane_apimachinery::complaints::Complaints;
use polyplane_apimachinery::config::{ConfigError, Section, document, finished};
use polyplane_apimachinery::field_error::{FieldError, Path};
use polyplane_apimachinery::time::{duration_text, parse_duration};
use polyplane_apimachinery::{Value, names};

use crate::oidc::expressions::Expression;
use crate::webhook::{MatchConditions, OnFailure, ReviewVersion};

/// Versions of the kind, which have the same fields.
const KINDS: [(&str, &str); 3] = [
    ("AuthorizationConfiguration", "apiserver.config.k8s.io/v1"),
    (
        "AuthorizationConfiguration",
        "apiserver.config.k8s.io/v1beta1",
    ),
    (
        "AuthorizationConfiguration",
        "apiserver.config.k8s.io/v1alpha1",
    ),
];
const WANTED: &str = "AuthorizationConfiguration of apiserver.config.k8s.io/v1";
/// Types of authorizers, in upstream's order of names.
const TYPES: [&str; 6] = [
    "ABAC",
    "AlwaysAllow",
    "AlwaysDeny",
    "Node",
    "RBAC",
    "Webhook",
];
/// Authorizers of one file. Upstream has no limit; each webhook is asked about each request.
const AUTHORIZERS_MAX: usize = 32;
/// Conditions of one webhook, as upstream.
const CONDITIONS_MAX: usize = 64;
/// The longest time of one call, as upstream.
const TIMEOUT_MAX: Duration = Duration::from_secs(30);
/// How long answers that allow, and that do not, are kept, unless the file says otherwise.
const LIFETIMES: (Duration, Duration) = (Duration::from_secs(300), Duration::from_secs(30));

/// The configuration of authorization.
#[derive(Clone, Debug)]
pub struct AuthorizationConfig {
    /// The authorizers, in the order in which they decide.
    pub authorizers: Vec<AuthorizerConfig>,
}

/// One authorizer.
#[derive(Clone, Debug)]
pub enum AuthorizerConfig {
    /// Allows everything.
    AlwaysAllow,
    /// Allows nothing.
    AlwaysDeny,
    /// Decides on what belongs to a node.
    Node,
    /// Decides by roles.
    Rbac,
    /// Asks a webhook.
    Webhook(Box<WebhookConfig>),
}

/// A webhook, and when and how it is asked.
#[derive(Clone, Debug)]
pub struct WebhookConfig {
    /// The name, for messages.
    pub name: String,
    /// The kubeconfig of the webhook, an absolute path.
    pub kubeconfig: PathBuf,
    /// The version of the review.
    pub version: ReviewVersion,
    /// How long answers that allow, and that do not, are kept; zero for not at all.
    pub lifetimes: (Duration, Duration),
    /// How long one call may take.
    pub timeout: Duration,
    /// What is decided without an answer.
    pub on_failure: OnFailure,
    /// What the webhook is asked about.
    pub conditions: MatchConditions,
}

impl AuthorizationConfig {
    /// Reads a file.
    ///
    /// # Errors
    /// Returns everything that is wrong with it.
    pub fn parse(text: &[u8]) -> Result<Self, ConfigError> {
        Self::of(&document(text)?)
    }

    fn of(document: &Value) -> Result<Self, ConfigError> {
        let root = Section::of_kind(document, &KINDS, WANTED)?;
        let mut errors = Complaints::default();
        root.only(&["apiVersion", "kind", "authorizers"], &mut errors);
        let list = Path::new("authorizers");
        let items = root.items("authorizers", &mut errors);
        if items.is_empty() {
            let why = "at least one authorization mode must be defined";
            errors.push(FieldError::required(&list, why));
        }
        if items.len() > AUTHORIZERS_MAX {
            errors.push(FieldError::too_many(&list, items.len(), AUTHORIZERS_MAX));
        }
        let mut seen = Seen::default();
        let mut authorizers = Vec::new();
        for (place, value) in items.iter().take(AUTHORIZERS_MAX).enumerate() {
            let path = list.index(place);
            let section = Section { value, path: &path };
            authorizers.extend(read_authorizer(&section, &mut seen, &mut errors));
        }
        finished(Self { authorizers }, errors)
    }
}

/// The types and names of the authorizers before one.
#[derive(Default)]
struct Seen {
    types: BTreeSet<String>,
    names: BTreeSet<String>,
}

fn read_authorizer(
    section: &Section<'_>,
    seen: &mut Seen,
    errors: &mut Complaints,
) -> Option<AuthorizerConfig> {
    section.only(&["type", "name", "webhook"], errors);
    let (kind, name) = (section.text("type", errors), section.text("name", errors));
    let path = section.path.child("type");
    if kind.is_empty() {
        errors.push(FieldError::required(&path, ""));
        return None;
    }
    if !TYPES.contains(&kind.as_str()) {
        errors.push(FieldError::not_supported(&path, kind.as_str(), &TYPES));
        return None;
    }
    if kind != "Webhook" && !seen.types.insert(kind.clone()) {
        errors.push(FieldError::duplicate(&path, kind.as_str()));
        return None;
    }
    if kind == "ABAC" {
        errors.push(FieldError::invalid(&path, "ABAC", "there is no ABAC here"));
        return None;
    }
    check_name(&kind, &name, section.path, seen, errors);
    let webhook = section
        .value
        .get("webhook")
        .filter(|value| !value.is_null());
    let path = section.path.child("webhook");
    match (kind.as_str(), webhook) {
        ("Webhook", None) => {
            errors.push(FieldError::required(&path, "required when type=Webhook"));
            None
        }
        ("Webhook", Some(value)) => {
            // Upstream names the fields of a webhook as if they were those of the authorizer.
            let webhook = Section {
                value,
                path: section.path,
            };
            let read = read_webhook(&webhook, name, errors)?;
            Some(AuthorizerConfig::Webhook(Box::new(read)))
        }
        (_, Some(_)) => {
            let why = "may only be specified when type=Webhook";
            errors.push(FieldError::invalid(&path, "non-null", why));
            None
        }
        ("RBAC", None) => Some(AuthorizerConfig::Rbac),
        ("Node", None) => Some(AuthorizerConfig::Node),
        ("AlwaysAllow", None) => Some(AuthorizerConfig::AlwaysAllow),
        (_, None) => Some(AuthorizerConfig::AlwaysDeny),
    }
}

fn check_name(kind: &str, name: &str, path: &Path<'_>, seen: &mut Seen, errors: &mut Complaints) {
    let path = path.child("name");
    let complaints = names::dns1123_subdomain(name);
    let expected = kind.to_lowercase();
    if name.is_empty() {
        errors.push(FieldError::required(&path, ""));
    } else if !seen.names.insert(name.to_owned()) {
        errors.push(FieldError::duplicate(&path, name));
    } else if !complaints.is_empty() {
        let why = format!("authorizer name is invalid: {}", complaints.join(", "));
        errors.push(FieldError::invalid(&path, name, why));
    } else if kind != "Webhook" && name != expected {
        let why = format!("expected name {expected} for authorizer {kind} instead of {name}");
        errors.push(FieldError::invalid(&path, name, why));
    }
}

fn read_webhook(
    webhook: &Section<'_>,
    name: String,
    errors: &mut Complaints,
) -> Option<WebhookConfig> {
    let fields = [
        "authorizedTTL",
        "cacheAuthorizedRequests",
        "unauthorizedTTL",
        "cacheUnauthorizedRequests",
        "timeout",
        "subjectAccessReviewVersion",
        "matchConditionSubjectAccessReviewVersion",
        "failurePolicy",
        "connectionInfo",
        "matchConditions",
    ];
    webhook.only(&fields, errors);
    let before = errors.len();
    let timeout = read_timeout(webhook, errors);
    let allowed = read_lifetime(webhook, "authorizedTTL", LIFETIMES.0, errors);
    let refused = read_lifetime(webhook, "unauthorizedTTL", LIFETIMES.1, errors);
    let kept =
        |field: &str, lifetime: Duration, errors: &mut Complaints| match &webhook.value[field] {
            Value::Null | Value::Bool(true) => lifetime,
            Value::Bool(false) => Duration::ZERO,
            other => {
                let path = webhook.path.child(field);
                errors.push(FieldError::invalid(
                    &path,
                    other.clone(),
                    "must be a boolean",
                ));
                lifetime
            }
        };
    let lifetimes = (
        kept("cacheAuthorizedRequests", allowed, errors),
        kept("cacheUnauthorizedRequests", refused, errors),
    );
    let version = read_version(webhook, errors);
    let conditions = read_conditions(webhook, errors);
    let on_failure = read_failure_policy(webhook, errors);
    let kubeconfig = read_connection(webhook, errors);
    (errors.len() == before).then_some(WebhookConfig {
        name,
        kubeconfig: kubeconfig?,
        version: version?,
        lifetimes,
        timeout: timeout?,
        on_failure: on_failure?,
        conditions,
    })
}

/// Returns a duration in nanoseconds; `None` if it is missing or zero.
fn read_duration(webhook: &Section<'_>, field: &str, errors: &mut Complaints) -> Option<i64> {
    let text = webhook.text(field, errors);
    if text.is_empty() {
        return None;
    }
    match parse_duration(&text) {
        Ok(0) => None,
        Ok(nanoseconds) => Some(nanoseconds),
        Err(error) => {
            let path = webhook.path.child(field);
            errors.push(FieldError::invalid(&path, text, error.to_string()));
            None
        }
    }
}

fn read_timeout(webhook: &Section<'_>, errors: &mut Complaints) -> Option<Duration> {
    let before = errors.len();
    let path = webhook.path.child("timeout");
    let Some(nanoseconds) = read_duration(webhook, "timeout", errors) else {
        if errors.len() == before {
            errors.push(FieldError::required(&path, ""));
        }
        return None;
    };
    let timeout = u64::try_from(nanoseconds).map(Duration::from_nanos);
    match timeout {
        Ok(timeout) if timeout <= TIMEOUT_MAX => Some(timeout),
        _ => {
            let why = "must be > 0s and <= 30s";
            errors.push(FieldError::invalid(&path, duration_text(nanoseconds), why));
            None
        }
    }
}

fn read_lifetime(
    webhook: &Section<'_>,
    field: &str,
    default: Duration,
    errors: &mut Complaints,
) -> Duration {
    let Some(nanoseconds) = read_duration(webhook, field, errors) else {
        return default;
    };
    u64::try_from(nanoseconds).map_or_else(
        |_| {
            let path = webhook.path.child(field);
            let text = duration_text(nanoseconds);
            errors.push(FieldError::invalid(&path, text, "must be > 0s"));
            default
        },
        Duration::from_nanos,
    )
}

fn read_version(webhook: &Section<'_>, errors: &mut Complaints) -> Option<ReviewVersion> {
    let field = "subjectAccessReviewVersion";
    let (text, path) = (webhook.text(field, errors), webhook.path.child(field));
    if text.is_empty() {
        errors.push(FieldError::required(&path, ""));
        return None;
    }
    let version = ReviewVersion::named(&text);
    if version.is_none() {
        errors.push(FieldError::not_supported(&path, text, &["v1", "v1beta1"]));
    }
    version
}

fn read_failure_policy(webhook: &Section<'_>, errors: &mut Complaints) -> Option<OnFailure> {
    let path = webhook.path.child("failurePolicy");
    match webhook.text("failurePolicy", errors).as_str() {
        "NoOpinion" => return Some(OnFailure::NoOpinion),
        "Deny" => return Some(OnFailure::Deny),
        "" => errors.push(FieldError::required(&path, "")),
        other => {
            let known = ["NoOpinion", "Deny"];
            errors.push(FieldError::not_supported(&path, other, &known));
        }
    }
    None
}

fn read_connection(webhook: &Section<'_>, errors: &mut Complaints) -> Option<PathBuf> {
    let path = webhook.path.child("connectionInfo");
    let connection = Section {
        value: &webhook.value["connectionInfo"],
        path: &path,
    };
    connection.only(&["type", "kubeConfigFile"], errors);
    let kind = connection.text("type", errors);
    let file = connection.text("kubeConfigFile", errors);
    let (of_type, of_file) = (path.child("type"), path.child("kubeConfigFile"));
    match kind.as_str() {
        "KubeConfigFile" if file.is_empty() => errors.push(FieldError::required(&of_file, "")),
        "KubeConfigFile" if !FilePath::new(&file).is_absolute() => {
            errors.push(FieldError::invalid(
                &of_file,
                file,
                "must be an absolute path",
            ));
        }
        "KubeConfigFile" => return Some(file.into()),
        "InClusterConfig" => {
            let why = "the server cannot ask itself; give the kubeconfig of a webhook";
            errors.push(FieldError::invalid(&of_type, kind, why));
        }
        "" => errors.push(FieldError::required(&of_type, "")),
        _ => {
            let known = ["InClusterConfig", "KubeConfigFile"];
            errors.push(FieldError::not_supported(&of_type, kind, &known));
        }
    }
    None
}

fn read_conditions(webhook: &Section<'_>, errors: &mut Complaints) -> MatchConditions {
    let items = webhook.items("matchConditions", errors);
    let field = "matchConditionSubjectAccessReviewVersion";
    let path = webhook.path.child(field);
    match webhook.text(field, errors).as_str() {
        "v1" => {}
        "" if items.is_empty() => {}
        "" => {
            let why = "required if match conditions are specified";
            errors.push(FieldError::required(&path, why));
        }
        other => errors.push(FieldError::not_supported(&path, other, &["v1"])),
    }
    let list = webhook.path.child("matchConditions");
    if items.len() > CONDITIONS_MAX {
        errors.push(FieldError::too_many(&list, items.len(), CONDITIONS_MAX));
        return MatchConditions::default();
    }
    let mut compiled: Vec<Expression> = Vec::new();
    let mut seen = BTreeSet::new();
    for (place, value) in items.iter().enumerate() {
        let path = list.index(place);
        let condition = Section { value, path: &path };
        condition.only(&["expression"], errors);
        let text = condition.text("expression", errors);
        let path = path.child("expression");
        if text.trim().is_empty() {
            errors.push(FieldError::required(&path, ""));
        } else if !seen.insert(text.clone()) {
            errors.push(FieldError::duplicate(&path, text));
        } else {
            match Expression::match_condition(&text) {
                Ok(expression) => compiled.push(expression),
                Err(why) => errors.push(FieldError::invalid(&path, text, why)),
            }
        }
    }
    MatchConditions::new(compiled)
}

#[cfg(test)]
mod tests;
