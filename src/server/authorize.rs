//! From a decision to a go-ahead or a refusal.

use std::sync::Arc;

use polyplane_apimachinery::status::{ApiError, Qualified};
use polyplane_auth::{Attributes, Authorizer, Decision, Forbidden, Subject, UserInfo};

use crate::request_info::RequestInfo;
use crate::respond::Refusal;

/// Proof that a user may do what it asked for. Made only by [`authorize`].
#[derive(Debug)]
pub(crate) struct Authorized {
    user: Arc<UserInfo>,
}

impl Authorized {
    /// Who may.
    pub(crate) fn into_user(self) -> Arc<UserInfo> {
        self.user
    }
}

/// Asks `authorizer` whether `user` may do what `info` says.
pub(crate) async fn authorize(
    authorizer: &dyn Authorizer,
    user: Arc<UserInfo>,
    info: &RequestInfo<'_>,
    query: &[(String, String)],
    method: &http::Method,
) -> Result<Authorized, Refusal> {
    let (lower, name);
    let attributes = match info {
        RequestInfo::Resource(info) => {
            name = info.authorized_name(query);
            Attributes {
                user: &user,
                verb: info.verb_name(),
                subject: Subject::Resource {
                    group: info.group,
                    version: info.version,
                    resource: info.resource,
                    subresource: info.subresource,
                    namespace: info.namespace,
                    name: &name,
                },
            }
        }
        RequestInfo::Path(path) => Attributes {
            user: &user,
            verb: if method == http::Method::GET {
                "get"
            } else {
                lower = method.as_str().to_ascii_lowercase();
                &lower
            },
            subject: Subject::Path(path),
        },
    };
    match authorizer.authorize(&attributes).await {
        Decision::Allow => Ok(Authorized { user }),
        Decision::Deny(reason) | Decision::NoOpinion(reason) => {
            Err(forbidden(&attributes, &reason).into())
        }
    }
}

/// The refusal of `attributes` in upstream's words.
pub(crate) fn forbidden(attributes: &Attributes<'_>, reason: &str) -> ApiError {
    let refusal = Forbidden::new(attributes, reason);
    let what = Qualified::new(&refusal.group, &refusal.resource);
    ApiError::forbidden(what, &refusal.name, &refusal.text)
}
