//! Authorizers: whether a user may make a request. Must not know where roles are kept.

use polyplane_apimachinery::quote::quote;

use crate::user::{
    ALL_AUTHENTICATED, ALL_UNAUTHENTICATED, METRICS_READERS, SYSTEM_MASTERS, UserInfo,
};
use crate::verdict::Verdict;

/// What a request is about.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Subject<'a> {
    /// An API resource; empty text where a part does not apply.
    Resource {
        /// The API group; empty for the core group.
        group: &'a str,
        /// The version in the path.
        version: &'a str,
        /// The resource, plural.
        resource: &'a str,
        /// The subresource.
        subresource: &'a str,
        /// The namespace.
        namespace: &'a str,
        /// The object's name.
        name: &'a str,
    },
    /// Any other path.
    Path(&'a str),
}

/// Everything an authorizer may look at.
#[derive(Clone, Copy, Debug)]
pub struct Attributes<'a> {
    /// Who asks.
    pub user: &'a UserInfo,
    /// The verb: `get`, `list`, `create` … for resources, the lower-case method for paths.
    pub verb: &'a str,
    /// What it is about.
    pub subject: Subject<'a>,
}

/// What an authorizer decides.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Decision {
    /// Yes, whatever others say after it.
    Allow,
    /// No, whatever others say after it; the text goes to the client.
    Deny(String),
    /// Ask the next one; the text, if any, goes to the client when nobody allows.
    NoOpinion(String),
}

/// Decides on requests.
pub trait Authorizer: Send + Sync {
    /// Judges `attributes`.
    fn authorize<'a>(&'a self, attributes: &'a Attributes<'a>) -> Verdict<'a, Decision>;
}

/// The parts of a 403 that clients read: the resource in `details`, and the text of the message.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Forbidden {
    /// The group of `details`.
    pub group: String,
    /// The resource of `details`.
    pub resource: String,
    /// The name of `details`.
    pub name: String,
    /// What stands behind `… is forbidden: `.
    pub text: String,
}

impl Forbidden {
    /// Makes the refusal of a request with `attributes`; its text ends with `reason` unless that is
    /// empty.
    pub fn new(attributes: &Attributes<'_>, reason: &str) -> Self {
        let mut text = escape_markup(&message(attributes));
        if !reason.is_empty() {
            text.push_str(": ");
            text.push_str(reason);
        }
        let (group, resource, name) = match attributes.subject {
            Subject::Resource {
                group,
                resource,
                name,
                ..
            } => (group, resource, name),
            Subject::Path(_) => ("", "", ""),
        };
        Self {
            group: group.to_owned(),
            resource: resource.to_owned(),
            name: name.to_owned(),
            text,
        }
    }
}

fn message(attributes: &Attributes<'_>) -> String {
    let user = quote(&attributes.user.name);
    let verb = attributes.verb;
    match attributes.subject {
        Subject::Path(path) => format!("User {user} cannot {verb} path {}", quote(path)),
        Subject::Resource {
            group,
            resource,
            subresource,
            namespace,
            ..
        } => {
            let mut full = resource.to_owned();
            if !subresource.is_empty() {
                full.push('/');
                full.push_str(subresource);
            }
            let scope = if namespace.is_empty() {
                "at the cluster scope".to_owned()
            } else {
                format!("in the namespace {}", quote(namespace))
            };
            format!(
                "User {user} cannot {verb} resource {} in API group {} {scope}",
                quote(&full),
                quote(group)
            )
        }
    }
}

fn escape_markup(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    for character in text.chars() {
        match character {
            '&' => out.push_str("&amp;"),
            '<' => out.push_str("&lt;"),
            '>' => out.push_str("&gt;"),
            other => out.push(other),
        }
    }
    out
}

/// Members of `system:masters` may do everything.
#[derive(Clone, Copy, Debug, Default)]
pub struct Masters;

impl Authorizer for Masters {
    fn authorize<'a>(&'a self, attributes: &'a Attributes<'a>) -> Verdict<'a, Decision> {
        Verdict::now(if attributes.user.in_group(SYSTEM_MASTERS) {
            Decision::Allow
        } else {
            Decision::NoOpinion(String::new())
        })
    }
}

/// The path of a server's metrics.
pub const METRICS_PATH: &str = "/metrics";

/// Members of [`METRICS_READERS`] may read the metrics. Says nothing about anything else.
#[derive(Clone, Copy, Debug, Default)]
pub struct MetricsRules;

impl Authorizer for MetricsRules {
    fn authorize<'a>(&'a self, attributes: &'a Attributes<'a>) -> Verdict<'a, Decision> {
        let reads = attributes.verb == "get" && attributes.subject == Subject::Path(METRICS_PATH);
        Verdict::now(if reads && attributes.user.in_group(METRICS_READERS) {
            Decision::Allow
        } else {
            Decision::NoOpinion(String::new())
        })
    }
}

/// What a fresh cluster lets everybody read: health and version, and discovery for those who
/// proved who they are.
#[derive(Clone, Copy, Debug, Default)]
pub struct PublicRules;

/// Paths for everybody; a trailing `*` stands for any rest.
const PUBLIC_INFO: &[&str] = &["/healthz", "/livez", "/readyz", "/version", "/version/"];
/// Paths for the authenticated.
const DISCOVERY: &[&str] = &[
    "/api",
    "/api/*",
    "/apis",
    "/apis/*",
    "/openapi",
    "/openapi/*",
];

fn listed(paths: &[&str], path: &str) -> bool {
    paths.iter().any(|rule| match rule.strip_suffix('*') {
        Some(prefix) => path.starts_with(prefix),
        None => *rule == path,
    })
}

impl Authorizer for PublicRules {
    fn authorize<'a>(&'a self, attributes: &'a Attributes<'a>) -> Verdict<'a, Decision> {
        let Subject::Path(path) = attributes.subject else {
            return Verdict::now(Decision::NoOpinion(String::new()));
        };
        let authenticated = attributes.user.in_group(ALL_AUTHENTICATED);
        let known = authenticated || attributes.user.in_group(ALL_UNAUTHENTICATED);
        let allowed = attributes.verb == "get"
            && ((known && listed(PUBLIC_INFO, path)) || (authenticated && listed(DISCOVERY, path)));
        Verdict::now(if allowed {
            Decision::Allow
        } else {
            Decision::NoOpinion(String::new())
        })
    }
}

/// Has no opinion on anything, which at the end of a chain is a refusal.
#[derive(Clone, Copy, Debug, Default)]
pub struct DenyAll;

impl Authorizer for DenyAll {
    fn authorize<'a>(&'a self, _attributes: &'a Attributes<'a>) -> Verdict<'a, Decision> {
        Verdict::now(Decision::NoOpinion(String::new()))
    }
}

/// Allows everything; for tests of what stands behind authorization.
#[derive(Clone, Copy, Debug, Default)]
pub struct AllowAll;

impl Authorizer for AllowAll {
    fn authorize<'a>(&'a self, _attributes: &'a Attributes<'a>) -> Verdict<'a, Decision> {
        Verdict::now(Decision::Allow)
    }
}
