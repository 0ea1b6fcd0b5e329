//! POST of a Credential: a certificate for a user of the control plane that the path names.
//!
//! This module reads the request and the plane's object; an [`IssueCredential`] decides and signs.

use crate::answer::negotiate;
use crate::request::body;
use crate::request::body::Expected;
use crate::request::call::Call;
use crate::request::options::{Persistence, WriteOptions};
use polyplane_apimachinery::Value;
use polyplane_apimachinery::status::ApiError;
use std::time::Duration;

/// Longest wait for a credential to become valid. A clock that was set back would hold the request
/// for longer.
const BEGIN_WITHIN: Duration = Duration::from_secs(2);

/// Issues credentials for the users of planes.
pub trait IssueCredential: Send + Sync {
    /// Validates `credential` and fills its status, for the plane with this object. Signs nothing
    /// in a dry run. Returns the time after which the credential is valid; if its user's earlier
    /// ones have just been revoked, that is up to a second.
    ///
    /// # Errors
    /// Returns the error for the client.
    fn issue(
        &self,
        plane: &Value,
        credential: &mut Value,
        persistence: Persistence,
        now: i64,
    ) -> Result<Duration, ApiError>;
}

/// Issues the credential of the request, and returns its JSON.
///
/// # Errors
/// Returns 404 if there is no such plane, 400 or 422 for a bad body, and the errors of the issuer.
pub async fn create(call: &Call<'_>, plane: &Value) -> Result<Vec<u8>, ApiError> {
    let issuer = call.services.credentials.as_ref();
    let issuer = issuer.ok_or_else(crate::dispatch::unknown)?;
    let schemas = &call.row.schemas;
    let definition = schemas
        .find("dev.polyplane.v1alpha1.Credential")
        .ok_or_else(|| ApiError::internal("the schema of Credential is missing"))?;
    let expected = Expected {
        group: &call.row.group,
        version: &call.row.version,
        kind: "Credential",
        custom: None,
        schemas,
        definition,
    };
    let syntax = negotiate::input(call.request)?;
    let options = WriteOptions::parse(call.request, "CreateOptions")?;
    let mut credential = body::decode(call, syntax, expected, options.field_validation)?;
    let name = credential.str_at(&["metadata", "name"]);
    if !name.is_empty() && name != *call.name()? {
        let text = "the name in the URL does not match metadata.name of the Credential";
        return Err(ApiError::bad_request(text));
    }
    credential.set(&["metadata", "name"], call.name()?.clone());
    drop(credential.remove(&["status"]));
    let now = call.environment.now();
    let not_before = issuer.issue(plane, &mut credential, options.persistence, now)?;
    // The client may use it as soon as it has the answer.
    tokio::time::sleep(not_before.min(BEGIN_WITHIN)).await;
    let body = schemas.to_vec(definition, &credential);
    let version = &call.row.version;
    let start = format!(
        "{{\"kind\":\"Credential\",\"apiVersion\":\"{}/{version}\",",
        call.row.group
    );
    let mut out = start.into_bytes();
    out.extend_from_slice(&body[1..]);
    Ok(out)
}
