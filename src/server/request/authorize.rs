//! The stage that authorizes a request at the owner of its plane.

use std::sync::Arc;

use polyplane_auth::{Subject, UserInfo};
use polyplane_registry::{AccessCheck, GrantedAccess};

use crate::answer::respond::Refusal;
use crate::request::request_info::RequestInfo;

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

/// Checks with the plane's `access_check` whether `user` may do what `info` says.
pub(crate) async fn authorize(
    mut access_check: AccessCheck<'_>,
    user: Arc<UserInfo>,
    info: &RequestInfo<'_>,
    query: &[(String, String)],
    method: &http::Method,
) -> Result<Authorized, Refusal> {
    let (lower, name);
    let (verb, subject) = match info {
        RequestInfo::Resource(info) => {
            name = info.authorized_name(query);
            let subject = Subject::Resource {
                group: info.group,
                version: info.version,
                resource: info.resource,
                subresource: info.subresource,
                namespace: info.namespace,
                name: &name,
            };
            (info.verb_name(), subject)
        }
        RequestInfo::Path(path) => {
            let verb = if method == http::Method::GET {
                "get"
            } else {
                lower = method.as_str().to_ascii_lowercase();
                &lower
            };
            (verb, Subject::Path(path))
        }
    };
    let passed = access_check.pass(&user, verb, subject).await;
    passed.map_err(Refusal::of_access)?;
    Ok(Authorized {
        user,
        granted: access_check.granted(),
    })
}
