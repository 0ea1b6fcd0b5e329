//! Secrets that hold a token of a service account: fills them, deletes those whose account is gone,
//! removes deleted ones from their account's list, and writes down the day on which a token was last
//! used, and since when that is done. This module does not decide when a reconciler runs.

use crate::client::{OwnClient, OwnRequest, tree};
use crate::work::{Progress, ReconcilerContext};
use base64::Engine as _;
use base64::prelude::BASE64_STANDARD;
use polyplane_apimachinery::json::scan::Scanned;
use polyplane_apimachinery::status::{ApiError, Reason};
use polyplane_apimachinery::time::Timestamp;
use polyplane_apimachinery::{Str, Value, json};
use polyplane_auth::service_account::claims::{Binding, Claims, LEGACY_ISSUER, ObjectClaim};
use polyplane_auth::service_account::issuer::TokenIssuer;
use polyplane_batteries::polyplane::controllers::Controller;
use polyplane_plane::{Flags, Key, ObjectRef, Prefix, Snapshot, Start, YieldBudget};
use polyplane_registry::tokens::TOKEN_SECRET;
use polyplane_registry::{Tenant, Verb};
use std::sync::Arc;
use std::time::SystemTime;

/// The annotation with the name of the account.
const ACCOUNT: &str = "kubernetes.io/service-account.name";
/// The annotation with the account's uid.
const ACCOUNT_UID: &str = "kubernetes.io/service-account.uid";
const SECRETS: &str = "secrets";
const SERVICE_ACCOUNTS: &str = "serviceaccounts";
const CONFIG_MAPS: &str = "configmaps";
/// The label of a Secret with the day on which its token was last used.
const LAST_USED: &str = "kubernetes.io/legacy-token-last-used";
/// The config map that says since when the use of tokens is written down: here, since the plane has one. A plane that
/// never had a Secret for a token needs no such object.
const TRACKING: &str = "kube-apiserver-legacy-service-account-token-tracking";
const SYSTEM: &str = "kube-system";
const DAY_SECONDS: i64 = 86_400;

/// Returns the Secrets that a write may have given work.
pub(crate) fn touched(tenant: &Tenant, object: &ObjectRef, gone: bool) -> Vec<Key> {
    let key = object.key();
    match (key.group(), key.resource()) {
        ("", SECRETS) if !gone && has_work(object, &tenant.settings.serving_ca) => {
            vec![key.clone()]
        }
        ("", SERVICE_ACCOUNTS) if gone => {
            let namespace = key.namespace().unwrap_or("");
            let prefix = Prefix::namespaced("", SECRETS, namespace);
            let cut = tenant.plane.snapshot();
            let secrets = cut.range(&prefix, Start::First);
            secrets
                .filter(|secret| account_of(secret).is_some_and(|name| name == key.name()))
                .map(|secret| secret.key().clone())
                .collect()
        }
        _ => Vec::new(),
    }
}

/// A deleted Secret for a token, which its account may list.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) struct DeletedSecret {
    secret: Key,
    account: Str,
    /// The account's uid; empty if the Secret did not name it.
    account_uid: Str,
}

impl DeletedSecret {
    /// Returns the Secret for a token that a write has deleted.
    pub(crate) fn of(object: &ObjectRef, gone: bool) -> Option<Self> {
        let key = object.key();
        if !gone || (key.group(), key.resource()) != ("", SECRETS) {
            return None;
        }
        let account = account_of(object)?;
        let body = object.body();
        Some(Self {
            secret: key.clone(),
            account,
            account_uid: Scanned(&body)
                .str_at(&["metadata", "annotations", ACCOUNT_UID])
                .into(),
        })
    }
}

/// Returns whether a write is of a Secret for a token, of a plane that does not yet say since when the use of tokens is
/// written down, or is the deletion of what says it: as upstream, that comes back. This is no controller's work:
/// another program may fill the Secrets.
pub(crate) fn starts_tracking(tenant: &Tenant, object: &ObjectRef, gone: bool) -> bool {
    let key = object.key();
    let is_cause = match (key.group(), key.resource()) {
        ("", SECRETS) => !gone && account_of(object).is_some(),
        ("", CONFIG_MAPS) => gone && *key == tracking_key(),
        _ => false,
    };
    is_cause && !is_tracked(&tenant.plane.snapshot())
}

fn tracking_key() -> Key {
    Key::new("", CONFIG_MAPS, Some(SYSTEM), TRACKING)
}

fn is_tracked(cut: &Snapshot) -> bool {
    cut.get(&tracking_key()).is_some()
}

/// What a plane has to do for its Secrets for tokens.
#[derive(Debug, Default)]
pub(crate) struct Pending {
    /// The Secrets that lack something, or whose account is gone.
    pub(crate) secrets: Vec<Key>,
    /// Whether there are such Secrets and the plane does not say since when the use of tokens is written down: its
    /// last owner may have ended between the two.
    pub(crate) lacks_tracking: bool,
}

/// Looks at all Secrets of a plane.
pub(crate) async fn pending(tenant: &Tenant) -> Pending {
    let cut = tenant.plane.snapshot();
    let (mut found, mut yield_budget) = (Pending::default(), YieldBudget::default());
    for secret in cut.range(&Prefix::resource("", SECRETS), Start::First) {
        yield_budget.spend(secret.body().len()).await;
        if account_of(&secret).is_none() {
            continue;
        }
        found.lacks_tracking = true;
        if has_work(&secret, &tenant.settings.serving_ca) || is_orphan(&cut, &secret) {
            found.secrets.push(secret.key().clone());
        }
    }
    found.lacks_tracking &= !is_tracked(&cut);
    found
}

/// Returns the name of the account whose token a Secret holds; `None` for other Secrets.
fn account_of(secret: &ObjectRef) -> Option<Str> {
    let body = secret.body();
    let body = Scanned(&body);
    let holds_token = body.str_at(&["type"]) == TOKEN_SECRET;
    holds_token.then(|| body.str_at(&["metadata", "annotations", ACCOUNT]).into())
}

/// Returns whether a Secret for a token lacks something.
fn has_work(secret: &ObjectRef, certificates: &str) -> bool {
    let body = secret.body();
    let body = Scanned(&body);
    let data = |key: &str| body.str_at(&["data", key]);
    body.str_at(&["type"]) == TOKEN_SECRET
        && !secret.flags().has(Flags::DELETING)
        && (data("token").is_empty()
            || data("namespace").is_empty()
            || data("ca.crt") != BASE64_STANDARD.encode(certificates))
}

fn is_orphan(cut: &Snapshot, secret: &ObjectRef) -> bool {
    let Some(name) = account_of(secret) else {
        return false;
    };
    let key = Key::new("", "serviceaccounts", secret.key().namespace(), &name);
    cut.get(&key).is_none()
}

/// Fills a Secret, or deletes it if its account is gone.
pub(crate) async fn reconcile(
    context: &ReconcilerContext,
    tenant: &Tenant,
    key: &Key,
) -> Result<Progress, ApiError> {
    let issuer = context.client.registry.token_issuer(tenant);
    let cut = tenant.plane.snapshot();
    let Some(secret) = cut.get(key) else {
        return Ok(Progress::Done);
    };
    let Some(issuer) = issuer else {
        return Ok(Progress::Done);
    };
    let kinds = tenant.kinds();
    let mut tree = tree(&kinds, &secret)?;
    let Some(row) = kinds.stored("", SECRETS) else {
        return Ok(Progress::Done);
    };
    if tree.str_at(&["type"]) != TOKEN_SECRET || secret.flags().has(Flags::DELETING) {
        return Ok(Progress::Done);
    }
    let namespace = key.namespace().unwrap_or("");
    let (verb, body) = match account(&cut, namespace, &tree["metadata"]["annotations"]) {
        None => {
            let uid = Str::from(tree.str_at(&["metadata", "uid"]));
            (Verb::Delete, json!({"preconditions": {"uid": uid}}))
        }
        Some(account) => {
            if !fill(
                &mut tree,
                &issuer,
                namespace,
                account,
                &tenant.settings.serving_ca,
            )? {
                return Ok(Progress::Done);
            }
            (Verb::Update, tree)
        }
    };
    let own = OwnRequest {
        body: &body,
        ..OwnRequest::of(
            Controller::ServiceAccountToken,
            verb,
            row,
            namespace,
            key.name(),
        )
    };
    match own.send(&context.client, tenant).await {
        Err(error) if error.reason != Reason::NotFound => Err(error),
        _ => Ok(Progress::Done),
    }
}

/// Removes a Secret that is gone from the list of the account whose token it held.
pub(crate) async fn unlist(
    client: &OwnClient,
    tenant: &Tenant,
    deleted: &DeletedSecret,
) -> Result<Progress, ApiError> {
    let kinds = tenant.kinds();
    let namespace = deleted.secret.namespace().unwrap_or("");
    let key = Key::new("", SERVICE_ACCOUNTS, Some(namespace), &deleted.account);
    let cut = tenant.plane.snapshot();
    let account = cut.get(&key).filter(|_| cut.get(&deleted.secret).is_none());
    let (Some(row), Some(account)) = (kinds.stored("", SERVICE_ACCOUNTS), account) else {
        return Ok(Progress::Done);
    };
    let mut body = tree(&kinds, &account)?;
    let uid = deleted.account_uid.as_str();
    let is_other_account = !uid.is_empty() && body.str_at(&["metadata", "uid"]) != uid;
    let listed = body.items_at(&["secrets"]);
    let others = listed
        .iter()
        .filter(|one| one.str_at(&["name"]) != deleted.secret.name());
    let others: Vec<Value> = others.cloned().collect();
    if is_other_account || others.len() == listed.len() {
        return Ok(Progress::Done);
    }
    body.set(&["secrets"], others);
    let actor = Controller::ServiceAccountToken;
    let own = OwnRequest {
        body: &body,
        ..OwnRequest::of(actor, Verb::Update, row, namespace, key.name())
    };
    match own.send(client, tenant).await {
        Err(error) if error.reason != Reason::NotFound => Err(error),
        _ => Ok(Progress::Done),
    }
}

/// Returns the day of a time, as upstream writes it.
fn day(seconds: i64) -> Str {
    let mut day = Timestamp::from_seconds(seconds).to_rfc3339();
    day.truncate("2006-01-02".len());
    day.into()
}

/// Returns whether the use of a Secret's token today is still to be written down. The day after counts
/// too, because the clock of the replica that wrote it may be ahead.
pub(crate) fn is_use_unknown(secret: &ObjectRef, now: i64) -> bool {
    let body = secret.body();
    let known = Scanned(&body)
        .str_at(&["metadata", "labels", LAST_USED])
        .to_string();
    known != *day(now) && known != *day(now + DAY_SECONDS)
}

/// Writes down that the token of a Secret was used today.
pub(crate) async fn note_use(
    context: &ReconcilerContext,
    tenant: &Tenant,
    key: &Key,
) -> Result<Progress, ApiError> {
    let now = Timestamp::from(SystemTime::now()).seconds;
    let secret = tenant.plane.snapshot().get(key);
    let Some(secret) = secret.filter(|secret| is_use_unknown(secret, now)) else {
        return Ok(Progress::Done);
    };
    let kinds = tenant.kinds();
    let Some(row) = kinds.stored("", SECRETS) else {
        return Ok(Progress::Done);
    };
    let mut body = tree(&kinds, &secret)?;
    body.set(&["metadata", "labels", LAST_USED], day(now));
    let namespace = key.namespace().unwrap_or("");
    let own = OwnRequest {
        body: &body,
        ..OwnRequest::new(Verb::Update, row, namespace, key.name())
    };
    match own.send(&context.client, tenant).await {
        Err(error) if error.reason != Reason::NotFound => Err(error),
        _ => Ok(Progress::Done),
    }
}

/// Makes the config map that says since when the use of tokens is written down.
pub(crate) async fn track(client: &OwnClient, tenant: &Tenant) -> Result<Progress, ApiError> {
    let kinds = tenant.kinds();
    let row = kinds.stored("", CONFIG_MAPS);
    let Some(row) = row.filter(|_| !is_tracked(&tenant.plane.snapshot())) else {
        return Ok(Progress::Done);
    };
    let today = day(Timestamp::from(SystemTime::now()).seconds);
    let map = json!({"metadata": {"name": (TRACKING)}, "data": {"since": today}});
    let own = OwnRequest {
        body: &map,
        ..OwnRequest::new(Verb::Create, row, SYSTEM, "")
    };
    match own.send(client, tenant).await {
        // The namespace can be gone only while the plane is deleted.
        Err(error) if !matches!(error.reason, Reason::AlreadyExists | Reason::NotFound) => {
            Err(error)
        }
        _ => Ok(Progress::Done),
    }
}

/// Returns the account that the annotations of a Secret mean, if it exists.
fn account(cut: &Snapshot, namespace: &str, annotations: &Value) -> Option<ObjectClaim> {
    let name = annotations.str_at(&[ACCOUNT]);
    let found = cut.get(&Key::new("", "serviceaccounts", Some(namespace), name))?;
    let uid: Str = Scanned(&found.body()).str_at(&["metadata", "uid"]).into();
    let wanted = annotations.str_at(&[ACCOUNT_UID]);
    (wanted.is_empty() || wanted == uid).then(|| ObjectClaim {
        name: name.into(),
        uid,
    })
}

/// Completes a Secret. Returns false if it is complete.
fn fill(
    secret: &mut Value,
    issuer: &Arc<TokenIssuer>,
    namespace: &str,
    account: ObjectClaim,
    certificates: &str,
) -> Result<bool, ApiError> {
    let before = secret.clone();
    secret.set(&["data", "ca.crt"], BASE64_STANDARD.encode(certificates));
    if secret.str_at(&["data", "namespace"]).is_empty() {
        secret.set(&["data", "namespace"], BASE64_STANDARD.encode(namespace));
    }
    if secret.str_at(&["data", "token"]).is_empty() {
        let mut claims = Claims {
            issuer: LEGACY_ISSUER.into(),
            audiences: Vec::new(),
            issued_at: None,
            not_before: None,
            expires: None,
            id: Str::default(),
            namespace: namespace.into(),
            account: account.clone(),
            binding: Binding::HeldBy(secret.str_at(&["metadata", "name"]).into()),
            warn_after: None,
        };
        let now = Timestamp::from(SystemTime::now()).seconds;
        claims.issued_at = Some(issuer.issue_time(&claims.user_name(), now));
        let token = issuer.sign(&claims).map_err(ApiError::internal)?;
        secret.set(&["data", "token"], BASE64_STANDARD.encode(token));
    }
    secret.set(&["metadata", "annotations", ACCOUNT], account.name);
    secret.set(&["metadata", "annotations", ACCOUNT_UID], account.uid);
    Ok(*secret != before)
}
