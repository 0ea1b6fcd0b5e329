//! The stage that proves who a caller is, by what the directory knows of the plane alone.

use std::sync::Arc;
use std::time::SystemTime;

use http::HeaderMap;
use http::header::AUTHORIZATION;
use polyplane_apimachinery::status::ApiError;
use polyplane_auth::{Authentication, Authenticator as _, Credentials, Denied, UserInfo};

use crate::backend::PlaneRecord;
use crate::pipeline::{Located, Pipeline};
use crate::respond::Refusal;

/// Proof of who the caller is. Made only by `prove`.
pub(crate) struct Proven {
    user: Arc<UserInfo>,
}

impl Proven {
    pub(crate) fn user(&self) -> &Arc<UserInfo> {
        &self.user
    }
}

impl Pipeline<'_> {
    /// Proves the caller by the plane's record alone: first its certificate, then its token.
    pub(crate) async fn prove(&self, located: &Located) -> Result<Proven, Refusal> {
        let record = &**located.record();
        let now = SystemTime::now();
        let (bearer, chain) = (self.bearer(), self.caller.connection.chain());
        let mut denied = None;
        if chain.is_some() {
            match self
                .caller
                .connection
                .user_of_chain(record.client_ca(), now)
            {
                Ok(user) => return Ok(Proven { user }),
                Err(why) => denied = Some(why),
            }
        }
        let credentials = Credentials {
            bearer,
            chain,
            path: self.path,
            now,
        };
        let judged = match bearer {
            Some(_) => record.bearer().authenticate(&credentials).await,
            None => self.shared.anonymous.authenticate(&credentials).await,
        };
        match judged {
            Authentication::User(user) => Ok(Proven { user }),
            Authentication::Denied(why) => Err(unauthorized(record, &denied.unwrap_or(why))),
            Authentication::NoOpinion => {
                Err(unauthorized(record, &denied.unwrap_or(Denied::Nothing)))
            }
        }
    }

    pub(crate) fn bearer(&self) -> Option<&str> {
        bearer_of(&self.parts.headers)
    }
}

/// The bearer token that a request carries.
pub(crate) fn bearer_of(headers: &HeaderMap) -> Option<&str> {
    let text = headers.get(AUTHORIZATION)?.to_str().ok()?;
    let mut words = text.trim().splitn(3, ' ');
    let scheme = words.next()?;
    let token = words.next()?;
    (scheme.eq_ignore_ascii_case("bearer") && !token.is_empty()).then_some(token)
}

fn unauthorized(record: &dyn PlaneRecord, why: &Denied) -> Refusal {
    tracing::debug!(plane = record.name(), %why, "unauthorized");
    ApiError::unauthorized("Unauthorized").into()
}
