//! Reviews of tokens, of the caller's identity and of access: kinds that are answered but not
//! stored.

mod check;

use crate::answer::negotiate;
use crate::authority::{AsOf, RuleLists};
use crate::complaints;
use crate::metadata;
use crate::plan::fields;
use crate::request::body;
use crate::request::body::Expected;
use crate::request::call::Call;
use crate::request::options::WriteOptions;
use crate::tokens;
use crate::verbs::review::check::Selectors;
use polyplane_apimachinery::status::{ApiError, Qualified};
use polyplane_apimachinery::time::Timestamp;
use polyplane_apimachinery::{Map, Str, Value};
use polyplane_auth::rbac::policy_rule::PolicyRule;
use polyplane_auth::service_account::TokenFault;
use polyplane_auth::{Attributes, Authentication, Credentials, Decision, Subject, UserInfo};
use std::sync::Arc;
use std::time::{Duration, UNIX_EPOCH};

/// Handles a review and returns the JSON of the reviewed object.
///
/// # Errors
/// Returns 400 or 422 for a bad body, 404 for a kind that is not reviewed here.
pub async fn review(call: &Call<'_>, as_of: &AsOf<'_>) -> Result<Vec<u8>, ApiError> {
    let syntax = negotiate::input(call.request)?;
    let options = WriteOptions::parse(call.request, "CreateOptions")?;
    let mut tree = body::decode(
        call,
        syntax,
        Expected::of(call.row),
        options.field_validation,
    )?;
    body::match_path(call, &mut tree)?;
    metadata::wipe_system_fields(&mut tree);
    // The answers of the other reviews are made anew, and nobody owns them.
    if !matches!(
        call.row.kind.as_str(),
        "SelfSubjectReview" | "SelfSubjectRulesReview"
    ) {
        let name = fields::manager_name(call, &options.field_manager);
        fields::manage_unstored(call, &name, &mut tree);
    }
    match call.row.kind.as_str() {
        "SelfSubjectReview" => {
            drop(tree.remove(&["metadata"]));
            tree.set(&["metadata", "creationTimestamp"], now(call));
            tree.set(&["status", "userInfo"], user_tree(&call.request.user));
        }
        "TokenReview" => review_token(call, as_of, &mut tree).await?,
        "SelfSubjectAccessReview" => {
            check_access(call, &tree, check::Kind::OfSelf)?;
            let user = UserInfo::clone(&call.request.user);
            decide(&mut tree, &user, as_of).await;
        }
        "SubjectAccessReview" | "LocalSubjectAccessReview" => {
            let kind = match call.row.kind.as_str() {
                "LocalSubjectAccessReview" => check::Kind::Local,
                _ => check::Kind::OfAnybody,
            };
            check_access(call, &tree, kind)?;
            let user = named_user(&tree);
            decide(&mut tree, &user, as_of).await;
        }
        "SelfSubjectRulesReview" => {
            let namespace = tree.str_at(&["spec", "namespace"]);
            if namespace.is_empty() {
                return Err(ApiError::bad_request("no namespace on request"));
            }
            let rules = as_of.rules_for(&call.request.user, namespace);
            set_rules(&mut tree, &rules);
        }
        _ => return Err(crate::dispatch::unknown()),
    }
    let body = call.row.schemas.to_vec(call.row.definition, &tree);
    let mut out = call.row.prefix.to_vec();
    out.extend_from_slice(&body[1..]);
    Ok(out)
}

fn now(call: &Call<'_>) -> String {
    Timestamp::from_seconds(call.environment.now()).to_rfc3339()
}

fn strings(items: &[Str]) -> Value {
    Value::Array(items.iter().map(|item| Value::from(item.clone())).collect())
}

fn user_tree(user: &UserInfo) -> Value {
    let mut tree = Value::object();
    tree.set(&["username"], user.name.clone());
    if !user.uid.is_empty() {
        tree.set(&["uid"], user.uid.clone());
    }
    if !user.groups.is_empty() {
        tree.set(&["groups"], strings(&user.groups));
    }
    if !user.extra.is_empty() {
        let extra: Map = user
            .extra
            .iter()
            .map(|(key, values)| (key.clone(), strings(values)))
            .collect();
        tree.set(&["extra"], extra);
    }
    tree
}

/// Says whom a token proves: one that the plane has issued, or else one of those whom it believes. The
/// server's own tokens are not looked at: a review must not be a way to guess them.
async fn review_token(call: &Call<'_>, as_of: &AsOf<'_>, tree: &mut Value) -> Result<(), ApiError> {
    let token = Str::from(tree.str_at(&["spec", "token"]));
    if token.is_empty() {
        let message = "token is required for TokenReview in authentication";
        return Err(ApiError::bad_request(message));
    }
    let wanted = tree.items_at(&["spec", "audiences"]).iter();
    let wanted: Vec<Str> = wanted.filter_map(Value::as_str).map(Str::from).collect();
    let mut status = Value::object();
    let reviewed = match reviewed(call, as_of, &token, &wanted) {
        Err(fault) => {
            let others = reviewed_by_others(call, &token, &wanted).await?;
            others.ok_or(fault)
        }
        own => own,
    };
    match reviewed {
        Ok((user, audiences)) => {
            status.set(&["authenticated"], true);
            status.set(&["user"], user_tree(&user));
            status.set(&["audiences"], strings(&audiences));
        }
        Err(fault) => {
            status.set(&["user"], Value::object());
            status.set(&["error"], fault_text(&fault));
        }
    }
    tree.set(&["status"], status);
    Ok(())
}

fn reviewed(
    call: &Call<'_>,
    as_of: &AsOf<'_>,
    token: &str,
    wanted: &[Str],
) -> Result<(Arc<UserInfo>, Vec<Str>), TokenFault> {
    let tokens = call.services.tokens.as_ref();
    let issuer = tokens.and_then(|tokens| Some((tokens, tokens.issuer(call.tenant.plane.id())?)));
    let (tokens, issuer) = issuer.ok_or(TokenFault::Foreign)?;
    let verified = tokens.verify(&issuer, token)?;
    let own = issuer.audiences_of(&verified);
    let wanted = if wanted.is_empty() { &*own } else { wanted };
    let audiences = verified.audiences(&own, wanted)?;
    let seconds = u64::try_from(call.environment.now()).unwrap_or(0);
    let now = UNIX_EPOCH + Duration::from_secs(seconds);
    verified.check_times(now)?;
    issuer.check_revoked(&verified)?;
    tokens::check_live(as_of.cut(), &verified, now)?;
    Ok((Arc::clone(&verified.user), audiences))
}

/// A user, and the audiences for which a token proves it.
type Reviewed = (Arc<UserInfo>, Vec<Str>);

/// Returns the user whom a token of others proves, and for which of the wanted audiences. As upstream, such
/// a token is for all audiences of the plane, because who judges it has looked at its own.
///
/// # Errors
/// Returns 429 or 503 if nobody judges the token now, so that it does not count as refused.
async fn reviewed_by_others(
    call: &Call<'_>,
    token: &str,
    wanted: &[Str],
) -> Result<Option<Reviewed>, ApiError> {
    let Some(reviewer) = call.request.token_reviewer.as_ref() else {
        return Ok(None);
    };
    let tokens = call.services.tokens.as_ref();
    let issuer = tokens.and_then(|tokens| tokens.issuer(call.tenant.plane.id()));
    let own = issuer.map_or_else(Vec::new, |issuer| issuer.audiences().to_vec());
    let audiences: Vec<Str> = match wanted {
        [] => own,
        wanted => {
            let is_own = |one: &&Str| own.contains(one);
            let common: Vec<Str> = wanted.iter().filter(is_own).cloned().collect();
            if common.is_empty() {
                return Ok(None);
            }
            common
        }
    };
    let seconds = u64::try_from(call.environment.now()).unwrap_or(0);
    let credentials = Credentials {
        bearer: Some(token),
        chain: None,
        path: "",
        now: UNIX_EPOCH + Duration::from_secs(seconds),
        source: Credentials::NO_SOURCE,
    };
    match reviewer.0.authenticate(&credentials).await {
        Authentication::User(user) => Ok(Some((user, audiences))),
        Authentication::Denied(why) => why.put_off().map_or(Ok(None), Err),
        Authentication::Token(_) | Authentication::NoOpinion => Ok(None),
    }
}

/// Returns upstream's text: it names what is wrong only with tokens that the plane has issued.
fn fault_text(fault: &TokenFault) -> String {
    match fault {
        TokenFault::Foreign
        | TokenFault::UnknownKey
        | TokenFault::KeyReplaced
        | TokenFault::Jws(_)
        | TokenFault::Claims(_) => "invalid bearer token".to_owned(),
        TokenFault::Expired
        | TokenFault::NotYetValid
        | TokenFault::IssuedInFuture
        | TokenFault::Audience { .. }
        | TokenFault::Revoked
        | TokenFault::Invalidated(_) => format!("[invalid bearer token, {fault}]"),
    }
}

fn check_access(call: &Call<'_>, tree: &Value, kind: check::Kind) -> Result<(), ApiError> {
    let errors = check::check(tree, kind);
    if errors.is_empty() {
        return Ok(());
    }
    let errors = complaints::bound(errors, |error| call.row.schemas.show(&mut error.bad));
    let what = Qualified::new(&call.row.group, "");
    Err(ApiError::invalid(what, "", &errors))
}

fn named_user(tree: &Value) -> UserInfo {
    let spec = &tree["spec"];
    let texts = |items: &[Value]| {
        items
            .iter()
            .filter_map(Value::as_str)
            .map(Str::from)
            .collect::<Vec<_>>()
    };
    UserInfo {
        name: spec.str_at(&["user"]).into(),
        uid: spec.str_at(&["uid"]).into(),
        groups: texts(spec.items_at(&["groups"])),
        extra: spec["extra"]
            .as_object()
            .into_iter()
            .flat_map(Map::iter)
            .map(|(key, values)| (key.into(), texts(values.as_array().unwrap_or(&[]))))
            .collect(),
        is_foreign: false,
    }
}

async fn decide(tree: &mut Value, user: &UserInfo, as_of: &AsOf<'_>) {
    let spec = tree["spec"].clone();
    let of_resource = &spec["resourceAttributes"];
    let of_path = &spec["nonResourceAttributes"];
    let selectors = Selectors::of(of_resource);
    let (verb, subject) = if of_resource.is_null() {
        (
            of_path.str_at(&["verb"]),
            Subject::Path(of_path.str_at(&["path"])),
        )
    } else {
        let part = |name: &str| of_resource.str_at(&[name]);
        let subject = Subject::Resource {
            group: part("group"),
            version: part("version"),
            resource: part("resource"),
            subresource: part("subresource"),
            namespace: part("namespace"),
            name: part("name"),
            field_selector: &selectors.fields,
        };
        (of_resource.str_at(&["verb"]), subject)
    };
    let attributes = Attributes {
        user,
        verb,
        subject,
    };
    let (decision, why) = as_of.explain(&attributes).await;
    let mut status = Value::object();
    let (allowed, reason) = match decision {
        Decision::Allow => (true, why),
        Decision::Deny(reason) => {
            status.set(&["denied"], true);
            (false, reason)
        }
        Decision::NoOpinion(reason) => (false, reason),
    };
    status.set(&["allowed"], allowed);
    if !reason.is_empty() {
        status.set(&["reason"], reason);
    }
    if !selectors.left_out.is_empty() {
        status.set(&["evaluationError"], selectors.left_out);
    }
    tree.set(&["status"], status);
}

/// Fills in what the user may do.
fn set_rules(tree: &mut Value, rules: &RuleLists) {
    // The answer does not repeat the question.
    tree.set(&["spec"], Value::object());
    let values = |rules: &[PolicyRule]| {
        let values = rules.iter().map(PolicyRule::to_value).collect();
        Value::Array(values)
    };
    tree.set(&["status", "resourceRules"], values(&rules.resources));
    tree.set(&["status", "nonResourceRules"], values(&rules.paths));
    tree.set(&["status", "incomplete"], rules.is_incomplete);
    if !rules.errors.is_empty() {
        tree.set(&["status", "evaluationError"], rules.errors.join("\n"));
    }
}
