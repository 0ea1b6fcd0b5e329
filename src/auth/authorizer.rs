//! Authorizers, which decide whether a user may make a request. This module does not know where
//! roles are kept.

use polyplane_apimachinery::quote::quote;

use crate::user::{
    ALL_AUTHENTICATED, ALL_UNAUTHENTICATED, METRICS_READERS, SYSTEM_MASTERS, UserInfo,
};
use crate::verdict::Verdict;

/// The subject of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Subject<'a> {
    /// An API resource. Parts that do not apply are empty.
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
        /// The field selector to which the request is restricted, as text; empty for none.
        field_selector: &'a str,
    },
    /// Any other path.
    Path(&'a str),
}

/// Everything on which an authorizer may base its decision.
#[derive(Clone, Copy, Debug)]
pub struct Attributes<'a> {
    /// The user who makes the request.
    pub user: &'a UserInfo,
    /// The verb: `get`, `list`, `create` … for resources, the lower-case method for paths.
    pub verb: &'a str,
    /// The subject of the request.
    pub subject: Subject<'a>,
}

/// The decision of an authorizer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Decision {
    /// The request is allowed, whatever later authorizers would decide.
    Allow,
    /// The request is refused, whatever later authorizers would decide. The client gets the text.
    Deny(String),
    /// The next authorizer decides. If none allows the request, the client gets the text, unless it
    /// is empty.
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
    /// The text after `… is forbidden: `.
    pub text: String,
}

impl Forbidden {
    /// Creates the refusal of a request with `attributes`. Its text ends with `reason`, unless that
    /// is empty.
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

/// Allows members of `system:masters` everything.
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

/// Allows members of [`METRICS_READERS`] to read the metrics. Has no opinion on anything else.
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

/// Allows what a new cluster lets everybody read: health and version, and discovery for
/// authenticated users.
#[derive(Clone, Copy, Debug, Default)]
pub struct PublicRules;

/// Paths for everybody. A trailing `*` stands for any rest.
const PUBLIC_INFO: &[&str] = &["/healthz", "/livez", "/readyz", "/version", "/version/"];
/// Paths for authenticated users.
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

/// Allows everybody to ask about a server's health.
#[derive(Clone, Copy, Debug, Default)]
pub struct HealthRules;

impl Authorizer for HealthRules {
    fn authorize<'a>(&'a self, attributes: &'a Attributes<'a>) -> Verdict<'a, Decision> {
        let Subject::Path("/healthz" | "/livez" | "/readyz") = attributes.subject else {
            return Verdict::now(Decision::NoOpinion(String::new()));
        };
        PublicRules.authorize(attributes)
    }
}

/// Asks an authorizer about users of other planes alone, whom no role of this plane can mean.
#[derive(Clone, Copy, Debug, Default)]
pub struct ForForeigners<A>(pub A);

impl<A: Authorizer> Authorizer for ForForeigners<A> {
    fn authorize<'a>(&'a self, attributes: &'a Attributes<'a>) -> Verdict<'a, Decision> {
        if attributes.user.is_foreign {
            self.0.authorize(attributes)
        } else {
            Verdict::now(Decision::NoOpinion(String::new()))
        }
    }
}

/// Has no opinion on any request, which at the end of a chain is a refusal.
#[derive(Clone, Copy, Debug, Default)]
pub struct DenyAll;

impl Authorizer for DenyAll {
    fn authorize<'a>(&'a self, _attributes: &'a Attributes<'a>) -> Verdict<'a, Decision> {
        Verdict::now(Decision::NoOpinion(String::new()))
    }
}

/// The authorizer `AlwaysDeny` of a configuration: as [`DenyAll`], with upstream's reason.
#[derive(Clone, Copy, Debug, Default)]
pub struct AlwaysDeny;

impl Authorizer for AlwaysDeny {
    fn authorize<'a>(&'a self, _attributes: &'a Attributes<'a>) -> Verdict<'a, Decision> {
        let reason = "Everything is forbidden.";
        Verdict::now(Decision::NoOpinion(reason.to_owned()))
    }
}

/// Allows every request, for tests of the stages after authorization.
#[derive(Clone, Copy, Debug, Default)]
pub struct AllowAll;

impl Authorizer for AllowAll {
    fn authorize<'a>(&'a self, _attributes: &'a Attributes<'a>) -> Verdict<'a, Decision> {
        Verdict::now(Decision::Allow)
    }
}
