//! The documents by which others verify a plane's service account tokens: the key set, and OpenID
//! Connect discovery, which says where the key set is.
//!
//! At the path of the plane's id both are public, because a relying party has no credential of the
//! plane: its issuer names that path. They are computed from the plane's record, so strangers wake no
//! plane. At any other path roles decide, as upstream.

use std::time::SystemTime;

use http::header::{CACHE_CONTROL, CONTENT_TYPE};
use http::{HeaderValue, StatusCode};
use polyplane_auth::Verdict;
use polyplane_auth::service_account::issuer::{
    CONFIGURATION_PATH, JWKS_PATH, METADATA_SECONDS, TokenIssuer,
};

use crate::answer::body::ResponseBody;
use crate::answer::respond::{Refusal, Reply, bare};
use crate::documents::paths::{PathRequest, require_get};
use crate::pipeline::Pipeline;
use crate::request::route::PlaneReference;

impl Pipeline<'_> {
    /// Answers a request for a document that is public; `None` for any other request.
    pub(crate) fn published(&self, plane: PlaneReference<'_>) -> Option<Result<Reply, Refusal>> {
        let PlaneReference::Id(_) = plane else {
            return None;
        };
        let document = OpenIdDocument::of(self.path)?;
        // A plane that is not known at once is none to a stranger: a wait would tell him more.
        let located = match self.state.backend.locate(plane) {
            Verdict::Now(Some(Ok(record))) => Some(record),
            Verdict::Now(_) | Verdict::Later(_) => None,
        };
        let issuer = located?.token_issuer()?;
        Some(document.serve(&self.path_request(plane), Some(&issuer)))
    }
}

/// One of the two documents.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum OpenIdDocument {
    /// The OpenID Connect discovery document.
    Configuration,
    /// The key set.
    KeySet,
}

impl OpenIdDocument {
    /// Both documents.
    pub(crate) const ALL: [Self; 2] = [Self::Configuration, Self::KeySet];

    /// Returns the document at a path inside a plane.
    pub(crate) fn of(path: &str) -> Option<Self> {
        match path.strip_suffix('/').unwrap_or(path) {
            CONFIGURATION_PATH => Some(Self::Configuration),
            JWKS_PATH => Some(Self::KeySet),
            _ => None,
        }
    }

    /// Returns the path of the document inside a plane.
    pub(crate) fn path(self) -> &'static str {
        match self {
            Self::Configuration => CONFIGURATION_PATH,
            Self::KeySet => JWKS_PATH,
        }
    }

    /// Answers a request for the document.
    pub(crate) fn serve(
        self,
        request: &PathRequest<'_>,
        issuer: Option<&TokenIssuer>,
    ) -> Result<Reply, Refusal> {
        let issuer = issuer.ok_or_else(Refusal::no_such_path)?;
        require_get(request)?;
        let now = SystemTime::now();
        let (body, content_type) = match self {
            Self::Configuration => (issuer.configuration(now), "application/json"),
            Self::KeySet => (issuer.key_set(now), "application/jwk-set+json"),
        };
        let mut reply = bare(StatusCode::OK, ResponseBody::whole(body));
        let headers = reply.headers_mut();
        headers.insert(CONTENT_TYPE, HeaderValue::from_static(content_type));
        let age = format!("public, max-age={METADATA_SECONDS}");
        let age = HeaderValue::try_from(age).expect("made of ASCII");
        headers.insert(CACHE_CONTROL, age);
        Ok(reply)
    }
}
