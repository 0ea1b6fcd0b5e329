//! Issues certificates for the users of planes.

use crate::replica::root_secret::SharedSecret;
use polyplane_apimachinery::field_error::{FieldError, Path};
use polyplane_apimachinery::status::{ApiError, Qualified};
use polyplane_apimachinery::time::Timestamp;
use polyplane_apimachinery::{Str, Value};
use polyplane_auth::Purpose;
use polyplane_batteries::polyplane::access::{LIFETIME_MAX, PlaneAccessSpec, credential_errors};
use polyplane_batteries::polyplane::control_plane::{GROUP, RESOURCE};
use polyplane_pki::{CREDENTIAL_BACKDATING, ClientCertificate, IssueError, PlaneCa};
use polyplane_registry::IssueCredential;
use polyplane_registry::request::options::Persistence;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

/// Seconds for which a credential is valid, unless its request says otherwise.
const LIFETIME: i64 = 86_400;
/// The shortest life of a credential, in seconds. With less, a slow clock would refuse it at once.
const LIFETIME_MIN: i64 = 60;

/// Issues certificates with the keys that derive from the root secret.
pub struct CredentialIssuer {
    secret: Arc<SharedSecret>,
}

impl CredentialIssuer {
    /// Creates an issuer.
    pub fn new(secret: Arc<SharedSecret>) -> Self {
        Self { secret }
    }
}

impl IssueCredential for CredentialIssuer {
    fn issue(
        &self,
        plane: &Value,
        credential: &mut Value,
        persistence: Persistence,
        now: i64,
    ) -> Result<Duration, ApiError> {
        let name = Str::from(plane.str_at(&["metadata", "name"]));
        let lifetime = validate(credential, &name)?;
        if !plane.str_at(&["metadata", "deletionTimestamp"]).is_empty() {
            let what = Qualified::new(GROUP, RESOURCE);
            let why = "the control plane is being deleted";
            return Err(ApiError::conflict(what, &name, why));
        }
        let Some(secret) = self.secret.to_issue() else {
            return Err(ApiError::service_unavailable(not_yet(&self.secret)));
        };
        if persistence == Persistence::DryRun {
            return Ok(Duration::ZERO);
        }
        let spec = PlaneAccessSpec::of(plane);
        let user = credential.str_at(&["spec", "user"]);
        let backdated = now - CREDENTIAL_BACKDATING.as_secs() as i64;
        let revoked = spec.record.revoked_before(user);
        let begins = revoked.map_or(backdated, |before| before.max(backdated));
        let ends = now + lifetime;
        let groups = credential.items_at(&["spec", "groups"]).iter();
        let id = plane.str_at(&["status", "id"]);
        let ca = PlaneCa::derive(secret, Purpose::ClientCa, id, spec.generation);
        let issued = ca.issue_client(&ClientCertificate {
            public_key: credential.str_at(&["spec", "publicKey"]),
            user,
            uid: credential.str_at(&["spec", "uid"]),
            groups: groups.filter_map(Value::as_str).collect(),
            begins: at(begins),
            ends: at(ends),
        });
        let certificate = issued.map_err(|error| refused(&error, &name))?;
        tracing::info!(
            plane = id,
            user,
            seconds = lifetime,
            "issued a certificate for a user of a control plane"
        );
        credential.set(&["status", "certificate"], certificate);
        let ends = Timestamp::from_seconds(ends).to_rfc3339();
        credential.set(&["status", "expirationTimestamp"], ends);
        let wait = u64::try_from(begins - now).unwrap_or_default();
        Ok(Duration::from_secs(wait))
    }
}

/// Returns the lifetime of a valid request, in seconds.
fn validate(credential: &mut Value, name: &str) -> Result<i64, ApiError> {
    let groups = credential.items_at(&["spec", "groups"]).iter();
    let groups: Vec<&str> = groups.map(|group| group.as_str().unwrap_or("")).collect();
    let mut errors = credential_errors(credential.str_at(&["spec", "user"]), &groups);
    let path = Path::new("spec");
    let lifetime = credential.int_at(&["spec", "expirationSeconds"]);
    let lifetime = lifetime.unwrap_or(LIFETIME);
    if !(LIFETIME_MIN..=LIFETIME_MAX).contains(&lifetime) {
        let why = format!("must be between {LIFETIME_MIN} and {LIFETIME_MAX}");
        let path = path.child("expirationSeconds");
        errors.push(FieldError::invalid(&path, lifetime, why));
    }
    if credential.str_at(&["spec", "publicKey"]).is_empty() {
        let why = "the client makes a key pair and sends the public key, PEM";
        errors.push(FieldError::required(&path.child("publicKey"), why));
    }
    if !errors.is_empty() {
        let what = Qualified::new(GROUP, "Credential");
        return Err(ApiError::invalid(what, name, &errors));
    }
    credential.set(&["spec", "expirationSeconds"], lifetime);
    Ok(lifetime)
}

fn refused(error: &IssueError, name: &str) -> ApiError {
    match error {
        IssueError::NotAKey | IssueError::KeyAlgorithm => {
            let path = Path::new("spec");
            let path = path.child("publicKey");
            let error = FieldError::invalid(&path, "", error.to_string());
            ApiError::invalid(Qualified::new(GROUP, "Credential"), name, &[error])
        }
        IssueError::Random => ApiError::internal(error.to_string()),
    }
}

fn not_yet(secret: &SharedSecret) -> &'static str {
    match secret.secret() {
        Some(_) => {
            "the ring issues no credentials yet, because replicas of an earlier release may still \
             join it: see `kubectl plane ring`, and its --raise-floor"
        }
        None => {
            "this installation has no root secret, so control planes have no users of their own: \
             `polyplane certs` makes one in the folder of --certs; every replica needs the same"
        }
    }
}

fn at(seconds: i64) -> SystemTime {
    SystemTime::UNIX_EPOCH + Duration::from_secs(u64::try_from(seconds).unwrap_or_default())
}
