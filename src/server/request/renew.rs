//! A user of a plane replaces a certificate that is still valid by the next one.
//!
//! The plane's owner answers from the plane's record alone: the plane sleeps on, and no role is asked,
//! because the answer gives the caller nothing that the shown certificate does not.

use http::header::CONTENT_LENGTH;
use http::{Method, StatusCode};
use polyplane_apimachinery::status::{ApiError, Qualified};

use crate::answer::respond::{Refusal, Reply, raw_json};
use crate::pipeline::Pipeline;
use crate::request::impersonate;
use crate::request::prove::{Located, Proven};
use crate::request::route::PlaneReference;

/// The path inside a plane to which the request for the next certificate is posted.
const PATH: &str = "/polyplane/credential";
/// Bytes of the longest request. That of an RSA key of 8192 bits has 1 600.
const BODY_BYTES_MAX: usize = 4096;

impl Pipeline<'_> {
    /// Returns whether the request is for the next certificate. Whoever impersonates others has none of
    /// theirs.
    pub(crate) fn is_renewal(&self, plane: PlaneReference<'_>) -> bool {
        self.path == PATH
            && self.parts.method == Method::POST
            && plane != PlaneReference::Root
            && !impersonate::is_wanted(&self.parts.headers)
    }

    /// Answers with the next certificate.
    pub(crate) async fn renew(
        &mut self,
        located: &Located,
        proven: &Proven,
    ) -> Result<Reply, Refusal> {
        let record = &**located.record();
        let Some(chain) = self.caller.connection.chain() else {
            let what = Qualified::new("polyplane.dev", "credentials");
            let why = "only a client certificate can be renewed";
            return Err(ApiError::forbidden(what, &proven.user().name, why).into());
        };
        let length = self.parts.headers.get(CONTENT_LENGTH);
        let length = length.and_then(|length| length.to_str().ok()?.parse().ok());
        let too_long = || ApiError::request_entity_too_large(format!("limit is {BODY_BYTES_MAX}"));
        // Before the body is read. One of unknown length is bounded like all bodies.
        if length.is_some_and(|length: usize| length > BODY_BYTES_MAX) {
            return Err(too_long().into());
        }
        let body = self.body(located).await?;
        if body.len() > BODY_BYTES_MAX {
            return Err(too_long().into());
        }
        let credential = record.renew(chain, &body)?;
        Ok(raw_json(StatusCode::CREATED, &credential))
    }
}
