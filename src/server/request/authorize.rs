//! The stage that authorizes a request at the owner of its plane.

use std::borrow::Cow;
use std::sync::Arc;
use std::time::Instant;

use polyplane_apimachinery::status::{ApiError, Qualified};
use polyplane_auth::{Attributes, Subject, UserInfo};
use polyplane_registry::{AccessCheck, GrantedAccess};

use crate::answer::respond::Refusal;
use crate::operations::access_metrics::AccessOutcome;
use crate::request::audited::Audited;
use crate::request::request_info::RequestInfo;

/// The verb that a stream to a pod needs. The handshake of a WebSocket is a GET, but who may only read
/// must not run commands.
const CREATE: &str = "create";

/// Proof that a user may do what the request says. Only [`authorize`] makes one.
#[derive(Debug)]
pub(crate) struct Authorized {
    user: Arc<UserInfo>,
    granted: GrantedAccess,
}

impl Authorized {
    /// Returns the authorized user.
    pub(crate) fn into_user(self) -> Arc<UserInfo> {
        self.user
    }

    /// Returns the authorized user, and the grant for the registry.
    pub(crate) fn into_parts(self) -> (Arc<UserInfo>, GrantedAccess) {
        (self.user, self.granted)
    }
}

/// What a request wants, as authorization and audit see it.
pub(crate) struct Requested<'a> {
    /// The verb: of the API for resources, the lower-case method for paths.
    pub verb: Cow<'a, str>,
    /// The name of the object; empty for none.
    pub name: Cow<'a, str>,
    /// The field selector of a collection; empty for none.
    field_selector: &'a str,
    info: &'a RequestInfo<'a>,
}

impl<'a> Requested<'a> {
    pub(crate) fn of(
        info: &'a RequestInfo<'a>,
        query: &'a [(String, String)],
        method: &http::Method,
    ) -> Self {
        let (verb, name) = match info {
            RequestInfo::Resource(info) => (info.verb_name().into(), info.authorized_name(query)),
            RequestInfo::Path(_) if method == http::Method::GET => ("get".into(), "".into()),
            RequestInfo::Path(_) => {
                let lower = method.as_str().to_ascii_lowercase();
                (lower.into(), "".into())
            }
        };
        let field_selector = match info {
            RequestInfo::Resource(info) => info.authorized_fields(query),
            RequestInfo::Path(_) => "",
        };
        Self {
            verb,
            name,
            field_selector,
            info,
        }
    }

    /// Returns what an authorizer decides on if `user` makes the request.
    pub(crate) fn by<'b>(&'b self, user: &'b UserInfo) -> Attributes<'b> {
        Attributes {
            user,
            verb: &self.verb,
            subject: self.subject(),
        }
    }

    pub(crate) fn subject(&self) -> Subject<'_> {
        match self.info {
            RequestInfo::Resource(info) => Subject::Resource {
                group: info.group,
                version: info.version,
                resource: info.resource,
                subresource: info.subresource,
                namespace: info.namespace,
                name: &self.name,
                field_selector: self.field_selector,
            },
            RequestInfo::Path(path) => Subject::Path(path),
        }
    }
}

/// Where it is noted whether a request is allowed.
pub(crate) struct Notes<'a> {
    /// The metrics.
    pub outcome: &'a mut AccessOutcome,
    /// The audit, if the request is recorded.
    pub audited: Option<&'a mut Audited>,
}

/// Checks with the plane's `access_check` whether `user` may make the request, and notes the outcome.
pub(crate) async fn authorize(
    mut access_check: AccessCheck<'_>,
    user: Arc<UserInfo>,
    info: &RequestInfo<'_>,
    requested: &Requested<'_>,
    notes: Notes<'_>,
) -> Result<Authorized, Refusal> {
    let began = Instant::now();
    if notes.audited.is_some() {
        access_check.explain();
    }
    let passed = access_check.pass(&user, &requested.verb, requested.subject());
    let passed = passed.await;
    notes.outcome.checked(access_check.last(), began.elapsed());
    if let Some(audited) = notes.audited {
        audited.decided(access_check.last(), access_check.take_reason());
    }
    passed.map_err(Refusal::of_access)?;
    if let RequestInfo::Resource(info) = info
        && info.opens_a_stream()
        && requested.verb != CREATE
    {
        let passed = access_check.pass(&user, CREATE, requested.subject());
        passed.await.map_err(|error| match error.code {
            403 => ApiError::forbidden(Qualified::new(info.group, info.resource), info.name, ""),
            _ => error,
        })?;
    }
    Ok(Authorized {
        user,
        granted: access_check.granted(),
    })
}
