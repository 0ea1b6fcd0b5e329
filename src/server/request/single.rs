//! A server of one plane, which looks as a plain kube-apiserver does: all paths are the root plane's,
//! strangers are `system:anonymous`, and a front proxy may name users.

use std::sync::Arc;
use std::time::SystemTime;

use polyplane_auth::{AnonymousAccess, FrontProxy, UserInfo};

use crate::pipeline::Pipeline;
use crate::request::route::{PlaneReference, Route, RouteError};
use crate::server_state::ServerState;

/// What a server of one plane does otherwise than one of many.
pub struct SinglePlane {
    /// Where a request without a credential is made by `system:anonymous`, whose rights the
    /// authorizers decide on. Elsewhere it is refused.
    pub anonymous: AnonymousAccess,
    /// Who may name users in headers; `None` for nobody.
    pub front_proxy: Option<FrontProxy>,
    /// The version that `/version` shows instead of the program's own.
    pub version: Option<String>,
}

/// Routes the raw path of a request.
///
/// # Errors
/// Returns the errors of [`Route::parse`].
pub(crate) fn route<'a>(state: &ServerState, raw: &'a str) -> Result<Route<'a>, RouteError> {
    match state.single {
        Some(_) => Route::of_root(raw),
        None => Route::parse(raw),
    }
}

impl Pipeline<'_> {
    /// Returns `system:anonymous` for a request without a credential, if the plane admits it.
    pub(crate) fn anonymous_user(&self, plane: PlaneReference<'_>) -> Option<Arc<UserInfo>> {
        let single = self.state.single.as_ref()?;
        let admitted = single.anonymous.admits(self.path) && plane == PlaneReference::Root;
        (admitted && self.has_no_credential()).then(|| Arc::new(UserInfo::anonymous()))
    }

    /// Returns the user whom a front proxy names, if the caller has proven to be one.
    pub(crate) fn user_of_front_proxy(&self, now: SystemTime) -> Option<Arc<UserInfo>> {
        let settings = self.state.single.as_ref()?.front_proxy.as_ref()?;
        let connection = &self.caller.connection;
        connection.chain()?;
        let headers = self.parts.headers.iter();
        let headers: Vec<(&str, &str)> = headers
            .filter_map(|(name, value)| Some((name.as_str(), value.to_str().ok()?)))
            .collect();
        let user = settings.headers.user(&headers)?;
        let proxy = connection.user_of_chain(settings.ca(), now).ok()?;
        settings.allows(&proxy.name).then_some(user)
    }
}
