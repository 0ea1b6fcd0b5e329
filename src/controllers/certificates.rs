//! Certificate signing requests: approves those of kubelets, signs what is approved with the CAs of
//! the plane, and deletes those that are done with.
//!
//! Invariant: a signer of the plane signs with the plane's own CA of that purpose, and never a
//! certificate that signs others. A request of another signer is left to whoever serves it. This
//! module does not decide when a reconciler runs.

use crate::client::{OwnRequest, tree};
use crate::work::{Progress, ReconcilerContext};
use base64::Engine as _;
use base64::prelude::BASE64_STANDARD;
use polyplane_apimachinery::status::{ApiError, Reason};
use polyplane_apimachinery::time::Timestamp;
use polyplane_apimachinery::{Str, Value, json};
use polyplane_auth::rbac::index::GROUP as ROLES;
use polyplane_auth::{Purpose, ROOT_USER_PREFIX};
use polyplane_batteries::certificate_keys::{Certificate, Request};
use polyplane_batteries::pem::blocks;
use polyplane_batteries::polyplane::controllers::Controller;
use polyplane_pki::{AlternativeName, CREDENTIAL_BACKDATING, SigningRequest, Usages};
use polyplane_plane::{Key, Prefix, Start, YieldBudget};
use polyplane_registry::request::call::tree_of;
use polyplane_registry::{AnswerBody, Resource, Tenant, Verb};
use std::collections::BTreeSet;
use std::ops::Range;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

const GROUP: &str = "certificates.k8s.io";
const RESOURCE: &str = "certificatesigningrequests";
/// The group that a kubelet's certificate has to name, and no other.
const NODES: &str = "system:nodes";
/// The beginning of the name of a kubelet.
const NODE_PREFIX: &str = "system:node:";
/// The longest life of a certificate, which is also that of one whose request names none: the
/// default of the controller manager's `--cluster-signing-duration`.
const LIFETIME_MAX: Duration = Duration::from_secs(365 * 86_400);
/// The shortest life. The API refuses shorter ones by itself.
const LIFETIME_MIN: Duration = Duration::from_secs(600);
/// The life from which on the time by which the beginning is backdated is taken off the end.
const LONG_LIFE: Duration = Duration::from_secs(8 * 3600);
/// Seconds after which a request is deleted that was denied, has failed or has its certificate.
const SETTLED_SECONDS: i64 = 3600;
/// Seconds after which a request is deleted that nobody decided on or signed.
const PENDING_SECONDS: i64 = 86_400;

/// A signer whose requests are signed here.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Signer {
    /// Of clients of the API.
    Client,
    /// Of kubelets as clients of the API.
    KubeletClient,
    /// Of kubelets as servers.
    KubeletServing,
}

impl Signer {
    fn of(request: &Value) -> Option<Self> {
        match request.str_at(&["spec", "signerName"]) {
            "kubernetes.io/kube-apiserver-client" => Some(Self::Client),
            "kubernetes.io/kube-apiserver-client-kubelet" => Some(Self::KubeletClient),
            "kubernetes.io/kubelet-serving" => Some(Self::KubeletServing),
            // Nobody can make a request of the legacy signer in the version that is served.
            _ => None,
        }
    }

    const fn purpose(self) -> Purpose {
        match self {
            Self::Client | Self::KubeletClient => Purpose::ClientCa,
            Self::KubeletServing => Purpose::KubeletServingCa,
        }
    }

    /// Checks that a request is one that the signer signs.
    ///
    /// # Errors
    /// Returns what is wrong, in upstream's words where upstream checks it too.
    fn check(self, request: &SigningRequest, usages: &[&str]) -> Result<(), String> {
        match self {
            Self::Client => client_usages(usages).and_then(|()| client_name(request)),
            Self::KubeletClient => kubelet_client(request, usages),
            Self::KubeletServing => kubelet_serving(request, usages),
        }
    }
}

fn client_usages(usages: &[&str]) -> Result<(), String> {
    let allowed = ["digital signature", "key encipherment", "client auth"];
    if let Some(other) = usages.iter().find(|usage| !allowed.contains(usage)) {
        return Err(format!("invalid usage for client certificate: {other}"));
    }
    match usages.contains(&"client auth") {
        true => Ok(()),
        false => Err("missing required usage for client certificate: client auth".to_owned()),
    }
}

/// Refuses the name of a user of the root plane, who enters by a grant: in the audit log and in bindings
/// its holder would be taken for that user. Other names are as free as upstream's.
fn client_name(request: &SigningRequest) -> Result<(), String> {
    match request.common_name().starts_with(ROOT_USER_PREFIX) {
        true => Err(format!(
            "subject common name begins with {ROOT_USER_PREFIX}, as the server alone names users of the root plane"
        )),
        false => Ok(()),
    }
}

fn kubelet_client(request: &SigningRequest, usages: &[&str]) -> Result<(), String> {
    if !request.organizations().eq([NODES]) {
        return Err(OTHER_ORGANIZATION.to_owned());
    }
    let has = |kind: fn(&AlternativeName) -> bool| request.names().iter().any(kind);
    for (is_there, kind) in [
        (has(|name| matches!(name, AlternativeName::Dns(_))), "DNS"),
        (has(is_email), "Email"),
        (
            has(|name| matches!(name, AlternativeName::Address(_))),
            "IP",
        ),
        (has(is_uri), "URI"),
    ] {
        if is_there {
            return Err(format!("{kind} subjectAltNames are not allowed"));
        }
    }
    node_name(request)?;
    kubelet_usages(usages, "client auth")
}

fn kubelet_serving(request: &SigningRequest, usages: &[&str]) -> Result<(), String> {
    if !request.organizations().eq([NODES]) {
        return Err(OTHER_ORGANIZATION.to_owned());
    }
    let names = request.names();
    if !names.iter().any(|name| !is_email(name) && !is_uri(name)) {
        return Err("DNS or IP subjectAltName is required".to_owned());
    }
    if names.iter().any(is_email) {
        return Err("Email subjectAltNames are not allowed".to_owned());
    }
    if names.iter().any(is_uri) {
        return Err("URI subjectAltNames are not allowed".to_owned());
    }
    kubelet_usages(usages, "server auth")?;
    node_name(request)
}

const OTHER_ORGANIZATION: &str = "subject organization is not system:nodes";

const fn is_email(name: &AlternativeName) -> bool {
    matches!(name, AlternativeName::Email(_))
}

const fn is_uri(name: &AlternativeName) -> bool {
    matches!(name, AlternativeName::Uri(_))
}

fn node_name(request: &SigningRequest) -> Result<(), String> {
    match request.common_name().starts_with(NODE_PREFIX) {
        true => Ok(()),
        false => Err("subject common name does not begin with system:node:".to_owned()),
    }
}

/// Checks the usages of a kubelet's certificate, of which only one with an RSA key enciphers keys.
fn kubelet_usages(usages: &[&str], role: &str) -> Result<(), String> {
    let wanted = BTreeSet::from([role, "digital signature"]);
    let mut with_encipherment = wanted.clone();
    with_encipherment.insert("key encipherment");
    let usages: BTreeSet<&str> = usages.iter().copied().collect();
    if usages == wanted || usages == with_encipherment {
        return Ok(());
    }
    let all: Vec<&str> = with_encipherment.into_iter().collect();
    Err(format!("usages did not match [{}]", all.join(" ")))
}

/// Returns whether a key is that of a request.
pub(crate) fn is_request(key: &Key) -> bool {
    key.is_of(GROUP, RESOURCE)
}

/// Returns whether a write may have given work to the requests that nobody decided on: after a change of roles their
/// users may have got the right.
pub(crate) fn may_be_decided(tenant: &Tenant, key: &Key) -> bool {
    key.group() == ROLES && exist(tenant)
}

/// Returns all requests of a plane that may have work.
pub(crate) async fn pending(tenant: &Tenant) -> Vec<Str> {
    let cut = tenant.plane.snapshot();
    let (kinds, prefix) = (tenant.kinds(), prefix());
    let (mut yield_budget, mut pending) = (YieldBudget::default(), Vec::new());
    for request in cut.range(&prefix, Start::First) {
        yield_budget.spend(request.body_len()).await;
        let tree = tree(&kinds, &request).unwrap_or_default();
        if !is_issued(&tree) && !has(&tree, "Denied") && !has(&tree, "Failed") {
            pending.push(request.key().name().into());
        }
    }
    pending
}

/// Returns whether a plane has any requests.
pub(crate) fn exist(tenant: &Tenant) -> bool {
    tenant.plane.snapshot().count(&prefix()) > 0
}

fn prefix() -> Prefix {
    Prefix::resource(GROUP, RESOURCE)
}

fn has(request: &Value, decision: &str) -> bool {
    let conditions = request.items_at(&["status", "conditions"]);
    let mut kinds = conditions.iter().map(|one| one.str_at(&["type"]));
    kinds.any(|kind| kind == decision)
}

fn is_issued(request: &Value) -> bool {
    !request.str_at(&["status", "certificate"]).is_empty()
}

fn usages_of(request: &Value) -> Vec<&str> {
    let usages = request.items_at(&["spec", "usages"]).iter();
    usages.filter_map(Value::as_str).collect()
}

fn find(tenant: &Tenant, name: &str) -> Result<Option<Value>, ApiError> {
    let key = Key::new(GROUP, RESOURCE, None, name);
    let found = tenant.plane.snapshot().get(&key);
    found.map(|found| tree(&tenant.kinds(), &found)).transpose()
}

/// Reads the request that a client made, if its signature is that of its own key.
fn parsed(object: &Value) -> Option<SigningRequest> {
    let pem = BASE64_STANDARD.decode(object.str_at(&["spec", "request"]));
    let block = blocks(&String::from_utf8_lossy(&pem.ok()?))
        .into_iter()
        .next()?;
    Request::read(&block.bytes)?.verify().ok()?;
    SigningRequest::read(&block.bytes)
}

/// Approves a kubelet's request for a client certificate if the roles of the plane let its user make
/// such a request.
pub(crate) async fn approve(
    context: &ReconcilerContext,
    tenant: &Tenant,
    name: &str,
) -> Result<Progress, ApiError> {
    let Some(mut object) = find(tenant, name)? else {
        return Ok(Progress::Done);
    };
    let is_decided = has(&object, "Approved") || has(&object, "Denied");
    if is_decided || is_issued(&object) || Signer::of(&object) != Some(Signer::KubeletClient) {
        return Ok(Progress::Done);
    }
    let Some(request) = parsed(&object) else {
        return Ok(Progress::Done);
    };
    if kubelet_client(&request, &usages_of(&object)).is_err() {
        return Ok(Progress::Done);
    }
    let is_own = object.str_at(&["spec", "username"]) == request.common_name();
    let own = ("selfnodeclient", "self kubelet client certificate");
    let any = ("nodeclient", "kubelet client certificate");
    for (subresource, what) in is_own.then_some(own).into_iter().chain([any]) {
        if !is_allowed(context, tenant, &object["spec"], subresource).await? {
            continue;
        }
        let message = format!("Auto approving {what} after SubjectAccessReview.");
        let condition = json!({"type": "Approved", "status": "True", "reason": "AutoApproved",
            "message": message});
        add_condition(&mut object, condition);
        let actor = Controller::CertificateApproving;
        return write(context, tenant, (actor, "approval"), name, &object).await;
    }
    // A role that allows it queues the request again.
    Ok(Progress::Waiting)
}

/// Reviews whether the user of a request may make one of this kind.
async fn is_allowed(
    context: &ReconcilerContext,
    tenant: &Tenant,
    spec: &Value,
    subresource: &str,
) -> Result<bool, ApiError> {
    let mut review = json!({"resourceAttributes": {"group": GROUP, "version": "*",
        "resource": RESOURCE, "subresource": subresource, "verb": "create"}});
    for (field, of_request) in [
        ("user", "username"),
        ("uid", "uid"),
        ("groups", "groups"),
        ("extra", "extra"),
    ] {
        if let Some(value) = spec.get(of_request) {
            review.set(&[field], value.clone());
        }
    }
    let row = tenant
        .base
        .resolve("authorization.k8s.io", "v1", "subjectaccessreviews");
    let row = row.ok_or_else(|| ApiError::internal("access reviews are not served"))?;
    let body = json!({"spec": review});
    let own = OwnRequest {
        body: &body,
        ..OwnRequest::of(Controller::CertificateApproving, Verb::Create, row, "", "")
    };
    let answer = own.send(&context.client, tenant).await?;
    let AnswerBody::Slices(slices) = answer.body else {
        return Err(ApiError::internal("a review was answered by a stream"));
    };
    let answer = tree_of(&slices.concat())?;
    Ok(answer.at(&["status", "allowed"]).and_then(Value::as_bool) == Some(true))
}

fn add_condition(object: &mut Value, condition: Value) {
    let mut conditions = object.items_at(&["status", "conditions"]).to_vec();
    conditions.push(condition);
    object.set(&["status", "conditions"], conditions);
}

async fn write(
    context: &ReconcilerContext,
    tenant: &Tenant,
    (actor, subresource): (Controller, &str),
    name: &str,
    object: &Value,
) -> Result<Progress, ApiError> {
    let row = row(tenant)?;
    let own = OwnRequest {
        subresource,
        body: object,
        ..OwnRequest::of(actor, Verb::Update, &row, "", name)
    };
    match own.send(&context.client, tenant).await {
        Err(error) if error.reason == Reason::NotFound => Ok(Progress::Done),
        sent => sent.map(|_| Progress::Done),
    }
}

fn row(tenant: &Tenant) -> Result<Arc<Resource>, ApiError> {
    let row = tenant.base.stored(GROUP, RESOURCE).cloned();
    row.ok_or_else(|| ApiError::internal("certificate signing requests are not served"))
}

/// Signs an approved request, or writes why it cannot be signed.
pub(crate) async fn sign(
    context: &ReconcilerContext,
    tenant: &Tenant,
    name: &str,
) -> Result<Progress, ApiError> {
    let Some(mut object) = find(tenant, name)? else {
        return Ok(Progress::Done);
    };
    let is_wanted = has(&object, "Approved") && !has(&object, "Denied") && !has(&object, "Failed");
    let Some(signer) = Signer::of(&object).filter(|_| is_wanted && !is_issued(&object)) else {
        return Ok(Progress::Done);
    };
    let Some(request) = parsed(&object) else {
        return Ok(Progress::Done);
    };
    match signed(context, tenant, (signer, &request), &object)? {
        None => return Ok(Progress::Done),
        Some(Ok(certificate)) => {
            let certificate = BASE64_STANDARD.encode(certificate);
            object.set(&["status", "certificate"], certificate);
        }
        Some(Err(why)) => {
            let condition = json!({"type": "Failed", "status": "True",
                "reason": "SignerValidationFailure", "message": why});
            add_condition(&mut object, condition);
        }
    }
    let actor = (Controller::CertificateSigning, "status");
    write(context, tenant, actor, name, &object).await
}

/// Returns the certificate that answers a request, or why there is none; `None` if the plane signs
/// nothing.
///
/// # Errors
/// Returns an error if the plane cannot sign at present.
fn signed(
    context: &ReconcilerContext,
    tenant: &Tenant,
    (signer, request): (Signer, &SigningRequest),
    object: &Value,
) -> Result<Option<Result<String, String>>, ApiError> {
    let plane = tenant.plane.id();
    let Some(ca) = context.info.signing_ca(plane, signer.purpose())? else {
        return Ok(None);
    };
    let usages = usages_of(object);
    if let Err(why) = signer.check(request, &usages) {
        return Ok(Some(Err(why)));
    }
    let usages = Usages {
        digital_signature: usages.contains(&"digital signature"),
        key_encipherment: usages.contains(&"key encipherment"),
        client_auth: usages.contains(&"client auth"),
        server_auth: usages.contains(&"server auth"),
    };
    let revoked = context.info.revoked_before(plane, request.common_name());
    let seconds = object.int_at(&["spec", "expirationSeconds"]);
    let valid = validity(SystemTime::now(), seconds, revoked);
    let issued = ca.sign(request, usages, valid);
    Ok(Some(issued.map_err(|error| error.to_string())))
}

/// Returns when a certificate is valid that is issued at `now`. It begins after the time up to which
/// the credentials of its user were revoked, because it would be refused with them.
fn validity(
    now: SystemTime,
    seconds: Option<i64>,
    revoked: Option<SystemTime>,
) -> Range<SystemTime> {
    let wanted = seconds.map(|seconds| Duration::from_secs(u64::try_from(seconds).unwrap_or(0)));
    let lifetime = wanted.map_or(LIFETIME_MAX, |wanted| {
        wanted.clamp(LIFETIME_MIN, LIFETIME_MAX)
    });
    let begins = now - CREDENTIAL_BACKDATING;
    let begins = revoked.map_or(begins, |revoked| revoked.max(begins));
    let ends = match lifetime < LONG_LIFE {
        true => now + lifetime,
        false => now + lifetime - CREDENTIAL_BACKDATING,
    };
    begins..ends
}

/// Deletes the requests that are done with, or that nobody has decided on for a day.
pub(crate) async fn clean(
    context: &ReconcilerContext,
    tenant: &Tenant,
) -> Result<Progress, ApiError> {
    let row = row(tenant)?;
    let now = Timestamp::from(SystemTime::now()).seconds;
    let cut = tenant.plane.snapshot();
    let prefix = prefix();
    for request in cut.range(&prefix, Start::First) {
        if !is_over(&tree(&tenant.kinds(), &request)?, now) {
            continue;
        }
        let (actor, name) = (Controller::CertificateCleaner, request.key().name());
        let own = OwnRequest::of(actor, Verb::Delete, &row, "", name);
        match own.send(&context.client, tenant).await {
            Err(error) if error.reason == Reason::NotFound => {}
            sent => drop(sent?),
        }
    }
    Ok(Progress::Done)
}

fn is_over(request: &Value, now: i64) -> bool {
    let is_older = |time: &str, seconds| {
        let time = Timestamp::parse(time).map(|time| time.seconds);
        time.is_ok_and(|time| now - time > seconds)
    };
    let conditions = request.items_at(&["status", "conditions"]);
    if conditions.is_empty() {
        let created = request.str_at(&["metadata", "creationTimestamp"]);
        return is_older(created, PENDING_SECONDS);
    }
    conditions.iter().any(|condition| {
        let since = condition.str_at(&["lastUpdateTime"]);
        match condition.str_at(&["type"]) {
            "Denied" | "Failed" => is_older(since, SETTLED_SECONDS),
            "Approved" if is_issued(request) => {
                is_older(since, SETTLED_SECONDS) || has_ended(request, now)
            }
            "Approved" => is_older(since, PENDING_SECONDS),
            _ => false,
        }
    })
}

/// Returns whether the certificate of a request is no longer valid.
fn has_ended(request: &Value, now: i64) -> bool {
    let pem = BASE64_STANDARD.decode(request.str_at(&["status", "certificate"]));
    let pem = pem.unwrap_or_default();
    let first = blocks(&String::from_utf8_lossy(&pem)).into_iter().next();
    let certificate = first.and_then(|block| Certificate::read(&block.bytes));
    certificate.is_some_and(|certificate| certificate.not_after < now)
}

#[cfg(test)]
mod tests;
