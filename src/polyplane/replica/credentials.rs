//! Issues certificates for the users of planes.

use crate::replica::access::Access;
use crate::replica::root_secret::SharedSecret;
use polyplane_apimachinery::field_error::{FieldError, Path};
use polyplane_apimachinery::status::{ApiError, Qualified};
use polyplane_apimachinery::time::Timestamp;
use polyplane_apimachinery::{Str, Value, json};
use polyplane_auth::{
    ALL_AUTHENTICATED, ClientChain, KeyGeneration, PlaneAccess, Purpose, Renewal,
};
use polyplane_batteries::polyplane::access::{
    LIFETIME, LIFETIME_MAX, LIFETIME_MIN, PlaneAccessSpec, credential_errors,
};
use polyplane_batteries::polyplane::control_plane::{GROUP, RESOURCE};
use polyplane_pki::{CREDENTIAL_BACKDATING, ClientCertificate, IssueError, PlaneCa};
use polyplane_registry::IssueCredential;
use polyplane_registry::request::options::Persistence;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

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
        if self.secret.to_issue().is_none() {
            return Err(ApiError::service_unavailable(not_yet(&self.secret)));
        }
        if persistence == Persistence::DryRun {
            return Ok(Duration::ZERO);
        }
        let spec = PlaneAccessSpec::of(plane);
        let user = credential.str_at(&["spec", "user"]);
        let revoked = spec.record.revoked_before(user);
        let begins = revoked.map_or(backdated(now), |before| before.max(backdated(now)));
        let renewable = credential.int_at(&["spec", "renewableSeconds"]);
        let wanted = Wanted {
            id: plane.str_at(&["status", "id"]),
            name: &name,
            generation: spec.generation,
            begins,
            ends: now + lifetime,
            renewal: renewable.map(|seconds| Renewal {
                lifetime,
                until: now + seconds,
            }),
        };
        sign(&self.secret, &wanted, credential, now)?;
        let wait = u64::try_from(begins - now).unwrap_or_default();
        Ok(Duration::from_secs(wait))
    }
}

/// Replaces a certificate that a user of a plane has by one for the same user with another key. `body`
/// is a Credential that says nothing but the public key. Returns the Credential with its status.
///
/// Its holder can neither gain a right by that nor keep one: what the first certificate says of user,
/// groups and the end of renewals, the next one says too. It begins no later than five minutes before
/// now, unless the one before did, so a revocation that this replica has not seen yet ends it as well.
///
/// # Errors
/// Returns 403 if the certificate is none of the plane's own or may not be renewed, and 422 for a body
/// that asks for anything else.
pub fn renew(
    access: &Access,
    plane: &RenewingPlane<'_>,
    chain: &ClientChain,
    body: &[u8],
) -> Result<Vec<u8>, ApiError> {
    let forbidden =
        |why: &str| ApiError::forbidden(Qualified::new(GROUP, "credentials"), plane.name, why);
    let own = plane
        .access
        .own_certificate(chain, at(plane.now))
        .map_err(|_| forbidden("only a certificate of this control plane's own can be renewed"))?;
    let renewal = own.renewal.filter(|renewal| plane.now < renewal.until);
    let renewal = renewal.ok_or_else(|| forbidden("this certificate may not be renewed"))?;
    let mut credential = key_in(body, plane.name)?;
    credential.set(&["spec", "user"], own.user.name.clone());
    if !own.user.uid.is_empty() {
        credential.set(&["spec", "uid"], own.user.uid.clone());
    }
    let groups = own.user.groups.iter();
    let groups = groups.filter(|group| **group != ALL_AUTHENTICATED);
    let groups: Vec<Value> = groups.map(|group| Value::string(group.clone())).collect();
    credential.set(&["spec", "groups"], groups);
    let ends = renewal.until.min(plane.now + renewal.lifetime);
    credential.set(&["spec", "expirationSeconds"], ends - plane.now);
    let wanted = Wanted {
        id: plane.id,
        name: plane.name,
        generation: plane.generation,
        begins: own.begins.max(backdated(plane.now)),
        ends,
        renewal: Some(renewal),
    };
    sign(access.secret(), &wanted, &mut credential, plane.now)?;
    Ok(json::to_vec(&credential))
}

/// The plane whose user renews a certificate.
pub struct RenewingPlane<'a> {
    /// The id.
    pub id: &'a str,
    /// The name.
    pub name: &'a str,
    /// The plane's authenticators.
    pub access: &'a PlaneAccess,
    /// The generation of the keys that sign.
    pub generation: KeyGeneration,
    /// The second since 1970.
    pub now: i64,
}

/// Returns the Credential in the body of a renewal, with its public key alone.
fn key_in(body: &[u8], name: &str) -> Result<Value, ApiError> {
    let parsed = json::parse(body, &json::Limits::default())
        .map_err(|error| ApiError::bad_request(format!("the body is no Credential: {error}")))?;
    let key = parsed.value.str_at(&["spec", "publicKey"]);
    let wanted = json!({
        "kind": "Credential",
        "apiVersion": "polyplane.dev/v1alpha1",
        "spec": {"publicKey": key}
    });
    match wanted == parsed.value {
        true => Ok(wanted),
        false => {
            let path = Path::new("spec");
            let why = "a renewal is a Credential of polyplane.dev/v1alpha1 with spec.publicKey and nothing else: \
                       user, groups and lifetime are those of the certificate";
            let error = FieldError::forbidden(&path, why);
            let what = Qualified::new(GROUP, "Credential");
            Err(ApiError::invalid(what, name, &[error]))
        }
    }
}

/// What is signed beside the fields of a Credential's spec.
struct Wanted<'a> {
    /// The plane's id.
    id: &'a str,
    /// The plane's name.
    name: &'a str,
    generation: KeyGeneration,
    begins: i64,
    ends: i64,
    renewal: Option<Renewal>,
}

/// Signs a certificate for the user that the spec of a Credential names, and fills the status.
fn sign(
    secret: &SharedSecret,
    wanted: &Wanted<'_>,
    credential: &mut Value,
    now: i64,
) -> Result<(), ApiError> {
    let unable = || ApiError::service_unavailable(not_yet(secret));
    let secret = secret.to_issue().ok_or_else(unable)?;
    let ca = PlaneCa::derive(secret, Purpose::ClientCa, wanted.id, wanted.generation);
    let groups = credential.items_at(&["spec", "groups"]).iter();
    let user = credential.str_at(&["spec", "user"]);
    let issued = ca.issue_client(&ClientCertificate {
        public_key: credential.str_at(&["spec", "publicKey"]),
        user,
        uid: credential.str_at(&["spec", "uid"]),
        groups: groups.filter_map(Value::as_str).collect(),
        renewal: wanted.renewal,
        begins: at(wanted.begins),
        ends: at(wanted.ends),
    });
    let certificate = issued.map_err(|error| refused(&error, wanted.name))?;
    let lifetime = wanted.ends - now;
    tracing::info!(
        plane = wanted.id,
        user,
        seconds = lifetime,
        "issued a certificate for a user of a control plane"
    );
    let time = |seconds: i64| Timestamp::from_seconds(seconds).to_rfc3339();
    credential.set(&["status", "certificate"], certificate);
    credential.set(&["status", "expirationTimestamp"], time(wanted.ends));
    // The last one ends with the right to renew it.
    if wanted
        .renewal
        .is_some_and(|renewal| wanted.ends < renewal.until)
    {
        let at = time(now + lifetime * 2 / 3);
        credential.set(&["status", "renewTimestamp"], at);
    }
    Ok(())
}

fn backdated(now: i64) -> i64 {
    now - CREDENTIAL_BACKDATING.as_secs() as i64
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
    if let Some(renewable) = credential.int_at(&["spec", "renewableSeconds"])
        && !(lifetime..=LIFETIME_MAX).contains(&renewable)
    {
        let why = format!("must be between expirationSeconds and {LIFETIME_MAX}");
        let path = path.child("renewableSeconds");
        errors.push(FieldError::invalid(&path, renewable, why));
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
        IssueError::TooLong(_) => {
            let path = Path::new("spec");
            let path = path.child("groups");
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
