//! Authorization by the objects of a plane.
//!
//! Roles and bindings are objects of the plane, so a decision about a request has to be made in the
//! state that the request reads or writes against. An [`Authority`] decides
//! - before a body is read, on impersonation and on the request itself ([`AccessCheck`]);
//! - again in the state that a read shows, and in each state that a write is prepared against, on all
//!   accesses that the first check granted ([`GrantedAccess`]);
//! - on accesses that stages of a write ([`crate::plan::CallOuts::authorize`]) and access reviews
//!   ([`AsOf`]) need.
//!
//! An authorizer that reads no object and decides before the first that does is asked only before the
//! body: its decision holds in all states, and the request of an administrator reads no role.
//!
//! A replica that forwards a request has no state of the plane. It proves the caller's identity to
//! the owner, which decides.

mod as_of;
mod chain;
mod decisions;
mod replaceable;

use crate::metrics::Family;
use crate::request::call::Tenant;
use crate::request::wait::answerable_by;
use crate::tokens;
use polyplane_apimachinery::Str;
use polyplane_apimachinery::status::{ApiError, Qualified};
use polyplane_auth::rbac::policy_rule::PolicyRule;
use polyplane_auth::service_account::VerifiedToken;
use polyplane_auth::{
    Attributes, Authorizer, BootstrapToken, Decision, Forbidden, Subject, UserInfo,
};
use polyplane_plane::Snapshot;
use std::fmt::Display;
use std::sync::Arc;
use std::time::SystemTime;
use tokio::time::Instant;

pub use as_of::AsOf;
pub use chain::ChainedAuthorizer;
pub use replaceable::ReplaceableAuthorizers;

use chain::Decides;
pub(crate) use chain::{Asked, AuthorizerOutcome, AuthorizerRun};
pub(crate) use replaceable::Pinned;

/// An authorizer that decides by the objects of a plane.
pub trait PlaneAuthorizer: Send + Sync {
    /// Decides on `attributes` as of `cut`, without waiting. To be fast, it can read an index of
    /// the plane (see [`polyplane_plane::Summary`]), which the cut carries.
    fn authorize_at(&self, cut: &Snapshot, attributes: &Attributes<'_>) -> Decision;

    /// Decides as [`Self::authorize_at`], and returns why it allows; empty if it does not, or for no
    /// reason that can be told.
    fn explain_at(&self, cut: &Snapshot, attributes: &Attributes<'_>) -> (Decision, String) {
        (self.authorize_at(cut, attributes), String::new())
    }

    /// Adds the rules that apply to a user in a namespace, as of `cut`.
    fn list_rules_at(
        &self,
        cut: &Snapshot,
        user: &UserInfo,
        namespace: &str,
        rules: &mut RuleLists,
    ) {
        let _ = (cut, user, namespace, rules);
    }
}

/// What a user may do, as SelfSubjectRulesReview returns it.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct RuleLists {
    /// The rules about resources.
    pub resources: Vec<PolicyRule>,
    /// The rules about paths.
    pub paths: Vec<PolicyRule>,
    /// Texts about rules that could not be listed.
    pub errors: Vec<String>,
    /// True if an authorizer decides by more than rules.
    pub is_incomplete: bool,
}

/// The authorizers of a plane in order: the first that allows or denies wins.
#[derive(Clone)]
pub struct Authority {
    authorizers: Vec<ChainedAuthorizer>,
    /// The id of the plane with authorizers of its own, and these.
    apart: Option<Box<(Str, Arc<ReplaceableAuthorizers>)>>,
}

impl Authority {
    /// Creates an authority that calls `authorizers` in the order given.
    pub fn new(authorizers: Vec<ChainedAuthorizer>) -> Self {
        Self {
            authorizers,
            apart: None,
        }
    }

    /// Gives the plane with this id authorizers of its own. A webhook that is the operator's must be asked
    /// about the users of the root alone: its question names no plane, and users of two planes may have
    /// one name.
    #[must_use]
    pub fn with_plane(self, id: &str, authorizers: Arc<ReplaceableAuthorizers>) -> Self {
        Self {
            apart: Some(Box::new((id.into(), authorizers))),
            ..self
        }
    }

    /// Returns the authority of a plane, for one request.
    pub(crate) fn of(&self, tenant: &Tenant) -> Pinned<'_> {
        match self.apart.as_deref() {
            Some((id, authorizers)) if *id == tenant.plane.id() => authorizers.pin(),
            Some(_) | None => Pinned::Own(self),
        }
    }

    /// Creates an authority that reads no object of a plane.
    pub fn fixed(authorizer: impl Authorizer + 'static) -> Self {
        Self::new(vec![ChainedAuthorizer::fixed(Arc::new(authorizer))])
    }

    /// Starts the check of one request. The plane is read only if the authorizers before the first
    /// that decides by its objects leave a decision open.
    pub fn access_check<'a>(&'a self, tenant: &'a Tenant, deadline: Instant) -> AccessCheck<'a> {
        AccessCheck::new(self.of(tenant), Some((tenant, deadline)))
    }

    /// Starts the check of one request to a plane that cannot be read here. What is not decided
    /// without it fails with 503.
    pub fn access_check_without_plane(&self) -> AccessCheck<'_> {
        AccessCheck::new(Pinned::Own(self), None)
    }

    /// Returns the authority as of the newest state of a plane.
    ///
    /// # Errors
    /// Returns 503 or 504 if the plane cannot be read here.
    pub async fn newest(&self, tenant: &Tenant, deadline: Instant) -> Result<AsOf<'_>, ApiError> {
        // A refusal is an answer, and an answer must not be older than a write that was
        // acknowledged.
        answerable_by(&tenant.plane, deadline).await?;
        Ok(self.as_of(tenant, tenant.plane.snapshot()))
    }

    /// Returns the authority as of a state of a plane.
    pub fn as_of(&self, tenant: &Tenant, cut: Snapshot) -> AsOf<'_> {
        AsOf {
            authority: self.of(tenant),
            cut,
        }
    }

    /// Returns the authorizers before the first that decides by objects of a plane, and the rest.
    fn split(&self) -> (&[ChainedAuthorizer], &[ChainedAuthorizer]) {
        let mut authorizers = self.authorizers.iter();
        let first = authorizers.position(|one| matches!(one.decides, Decides::OfCut(_)));
        self.authorizers
            .split_at(first.unwrap_or(self.authorizers.len()))
    }

    /// Calls the authorizer at a position, which may call a webhook.
    pub(crate) async fn ask(
        &self,
        authorizer: usize,
        access: &Access,
    ) -> Result<Decision, ApiError> {
        match self.authorizers.get(authorizer).map(|one| &one.decides) {
            Some(Decides::Fixed(authorizer)) => {
                Ok(authorizer.authorize(&access.attributes()).await)
            }
            Some(Decides::OfCut(_)) | None => Err(ApiError::internal(
                "no authorizer can be called for this access",
            )),
        }
    }

    /// Returns the metric of all decisions.
    pub(crate) fn decisions(&self) -> Family {
        let apart = self.apart.iter().flat_map(|apart| apart.1.counts());
        let own = self.authorizers.iter();
        let own = own.filter_map(|authorizer| authorizer.count.clone());
        let all: Vec<_> = own.chain(apart).collect();
        decisions::family(all.iter().map(|count| &**count))
    }
}

/// The outcome of the check of one access.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CheckedAccess {
    /// An authorizer has allowed it.
    Allowed,
    /// An authorizer has denied it.
    Denied,
    /// No authorizer has an opinion, so it is refused.
    NoOpinion,
    /// The authorizers could not be asked.
    Failed,
}

impl CheckedAccess {
    /// Returns whether the access is allowed; `None` if the authorizers could not be asked.
    pub fn is_allowed(self) -> Option<bool> {
        match self {
            Self::Allowed => Some(true),
            Self::Denied | Self::NoOpinion => Some(false),
            Self::Failed => None,
        }
    }
}

/// Checks the accesses of one request before its body is read. Each access that is granted here by
/// the objects of the plane must be allowed again in each state that the request reads or writes
/// against, see [`GrantedAccess`].
pub struct AccessCheck<'a> {
    authority: Pinned<'a>,
    /// The plane, if it can be read here, and the deadline of the request.
    plane: Option<(&'a Tenant, Instant)>,
    /// The state of the plane, once an authorizer needs it.
    cut: Option<Snapshot>,
    passed: Vec<Access>,
    /// The token by which the caller was proven, if what it rests on has to be looked up.
    token: Option<ProvenBy>,
    last: CheckedAccess,
    /// The reason of the last decision; `None` if nobody wants to know.
    reason: Option<String>,
}

impl<'a> AccessCheck<'a> {
    fn new(authority: Pinned<'a>, plane: Option<(&'a Tenant, Instant)>) -> Self {
        Self {
            authority,
            plane,
            cut: None,
            passed: Vec::new(),
            token: None,
            last: CheckedAccess::Failed,
            reason: None,
        }
    }

    /// Keeps the reason of each further decision, for [`Self::take_reason`]. To tell why an access is allowed
    /// takes memory, so it is not told to nobody.
    pub fn explain(&mut self) {
        self.reason = Some(String::new());
    }

    /// Checks that what the caller's token rests on exists, and requires it of each state that the
    /// request reads or writes against.
    ///
    /// # Errors
    /// Returns 401 if it does not; 503 or 504 if the plane cannot be read here.
    pub async fn prove(
        &mut self,
        token: Arc<VerifiedToken>,
        now: SystemTime,
    ) -> Result<(), ApiError> {
        let token = ProvenBy::Account { token, now };
        token.check(self.cut().await?)?;
        self.token = Some(token);
        Ok(())
    }

    /// Checks whom a bootstrap token proves, and requires the same user of each state that the request
    /// reads or writes against. Returns false if that is another one than `user`, because the Secret
    /// has changed since it was read for him.
    ///
    /// # Errors
    /// Returns 401 if the token proves nobody; 503 or 504 if the plane cannot be read here.
    pub async fn prove_bootstrapper(
        &mut self,
        token: BootstrapToken,
        user: &Arc<UserInfo>,
        now: SystemTime,
    ) -> Result<bool, ApiError> {
        let found = tokens::bootstrapper(self.cut().await?, &token, now);
        let found = found.map_err(|why| unauthorized(&why))?.user;
        if found != *user {
            return Ok(false);
        }
        let user = found;
        self.token = Some(ProvenBy::Bootstrap { token, user, now });
        Ok(true)
    }

    /// Checks one access of `user`, and records it if it was granted by the objects of the plane.
    ///
    /// # Errors
    /// Returns 403 if the user may not do this; 503 or 504 if the plane has to be read and cannot
    /// be read here.
    pub async fn pass(
        &mut self,
        user: &Arc<UserInfo>,
        verb: &str,
        subject: Subject<'_>,
    ) -> Result<(), ApiError> {
        let attributes = Attributes {
            user,
            verb,
            subject,
        };
        self.last = CheckedAccess::Failed;
        let (decision, has_read) = self.decide(&attributes).await?;
        self.last = match &decision {
            Decision::Allow => CheckedAccess::Allowed,
            Decision::Deny(_) => CheckedAccess::Denied,
            Decision::NoOpinion(_) => CheckedAccess::NoOpinion,
        };
        if let (Decision::Deny(why) | Decision::NoOpinion(why), Some(reason)) =
            (&decision, &mut self.reason)
        {
            reason.clone_from(why);
        }
        allow(&attributes, decision)?;
        if has_read {
            self.passed.push(Access::new(Arc::clone(user), &attributes));
        }
        Ok(())
    }

    /// Returns the outcome of the last access that was checked.
    pub fn last(&self) -> CheckedAccess {
        self.last
    }

    /// Removes and returns why the last access is allowed or refused; empty if that is not known.
    pub fn take_reason(&mut self) -> String {
        self.reason.as_mut().map(std::mem::take).unwrap_or_default()
    }

    /// Returns the number of accesses that passed so far and rest on objects of the plane.
    pub fn mark(&self) -> usize {
        self.passed.len()
    }

    /// Forgets the accesses that passed since `mark`: the request rests on others.
    pub fn forget_since(&mut self, mark: usize) {
        self.passed.truncate(mark);
    }

    /// Returns the decision, and whether it rests on objects of the plane.
    async fn decide(&mut self, attributes: &Attributes<'_>) -> Result<(Decision, bool), ApiError> {
        let authority = self.authority.clone();
        let (fixed, of_cut) = authority.split();
        let mut first = AuthorizerRun::of(fixed, None, attributes, Asked::First);
        let decision = first.settle().await;
        if of_cut.is_empty() || !matches!(decision, Decision::NoOpinion(_)) {
            self.reason.iter_mut().for_each(String::clear);
            return Ok((decision, false));
        }
        let explains = self.reason.is_some();
        let cut = Some(self.cut().await?);
        let mut run = AuthorizerRun::of(of_cut, cut, attributes, Asked::First);
        if explains {
            run.explain();
        }
        run.note(decision);
        let decision = run.settle().await;
        self.reason = run.into_reason();
        Ok((decision, true))
    }

    /// Returns the state of the plane in which the request is checked.
    async fn cut(&mut self) -> Result<&Snapshot, ApiError> {
        let cut = match self.cut.take() {
            Some(cut) => cut,
            None => {
                let (tenant, deadline) = self.plane.ok_or_else(unreadable)?;
                self.authority.newest(tenant, deadline).await?.cut
            }
        };
        Ok(self.cut.insert(cut))
    }

    /// Returns all accesses that passed. Drops the state that they were checked in.
    pub fn granted(self) -> GrantedAccess {
        if self.passed.is_empty() && self.token.is_none() {
            return GrantedAccess(None);
        }
        GrantedAccess(Some(Arc::new(Granted {
            accesses: self.passed,
            token: self.token,
        })))
    }
}

/// Returns the error of a decision that needs a plane which cannot be read.
fn unreadable() -> ApiError {
    ApiError::service_unavailable("the roles of the control plane cannot be read here for now")
}

/// The accesses that a request was granted.
#[derive(Clone, Debug, Default)]
pub struct GrantedAccess(Option<Arc<Granted>>);

#[derive(Debug)]
struct Granted {
    accesses: Vec<Access>,
    token: Option<ProvenBy>,
}

/// The token by which a caller was proven, and when.
#[derive(Debug)]
enum ProvenBy {
    /// That of a service account.
    Account {
        token: Arc<VerifiedToken>,
        now: SystemTime,
    },
    /// A bootstrap token, which proves this user.
    Bootstrap {
        token: BootstrapToken,
        user: Arc<UserInfo>,
        now: SystemTime,
    },
}

impl ProvenBy {
    fn check(&self, cut: &Snapshot) -> Result<(), ApiError> {
        match self {
            Self::Account { token, now } => {
                tokens::check_live(cut, token, *now).map_err(|why| unauthorized(&why))
            }
            Self::Bootstrap { token, user, now } => match tokens::bootstrapper(cut, token, *now) {
                Ok(found) if found.user == *user => Ok(()),
                Ok(_) => Err(unauthorized(&"its Secret names other groups")),
                Err(why) => Err(unauthorized(&why)),
            },
        }
    }
}

fn unauthorized(why: &dyn Display) -> ApiError {
    tracing::debug!(%why, "unauthorized");
    ApiError::unauthorized("Unauthorized")
}

impl GrantedAccess {
    /// Returns the grant of a request that is allowed whatever a plane holds: either no authorizer
    /// that decided on it reads objects, or the server itself makes the request.
    pub const fn of_every_cut() -> Self {
        Self(None)
    }

    /// Returns whether the grant holds in all states.
    pub(crate) fn holds_in_every_cut(&self) -> bool {
        self.0.is_none()
    }

    /// Returns the accesses that must be allowed in each state; none if one decision holds in all
    /// states.
    pub(crate) fn accesses(&self) -> &[Access] {
        self.0.as_ref().map_or(&[], |granted| &granted.accesses)
    }

    /// Checks that what the caller's token rests on exists in a state.
    ///
    /// # Errors
    /// Returns 401 if it does not.
    pub(crate) fn check_caller(&self, cut: &Snapshot) -> Result<(), ApiError> {
        match self.0.as_ref().and_then(|granted| granted.token.as_ref()) {
            Some(token) => token.check(cut),
            None => Ok(()),
        }
    }

    /// Checks that the caller is still proven and all accesses are allowed as of a state.
    ///
    /// # Errors
    /// Returns 401 if he is not, 403 if one of them is not.
    pub(crate) async fn check(&self, as_of: &AsOf<'_>) -> Result<(), ApiError> {
        self.check_caller(&as_of.cut)?;
        for access in self.accesses() {
            let attributes = access.attributes();
            allow(&attributes, as_of.authorize_again(&attributes).await)?;
        }
        Ok(())
    }
}

/// One access that a user has requested: [`Attributes`] that own their texts.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Access {
    user: Arc<UserInfo>,
    verb: Str,
    what: What,
}

#[derive(Clone, Debug, PartialEq, Eq)]
enum What {
    Resource {
        group: Str,
        version: Str,
        resource: Str,
        subresource: Str,
        namespace: Str,
        name: Str,
        field_selector: Str,
    },
    Path(Str),
}

impl Access {
    /// Creates the access of `user` that `attributes` describe.
    pub(crate) fn new(user: Arc<UserInfo>, attributes: &Attributes<'_>) -> Self {
        let what = match attributes.subject {
            Subject::Resource {
                group,
                version,
                resource,
                subresource,
                namespace,
                name,
                field_selector,
            } => What::Resource {
                group: group.into(),
                version: version.into(),
                resource: resource.into(),
                subresource: subresource.into(),
                namespace: namespace.into(),
                name: name.into(),
                field_selector: field_selector.into(),
            },
            Subject::Path(path) => What::Path(path.into()),
        };
        Self {
            user,
            verb: attributes.verb.into(),
            what,
        }
    }

    /// Returns the access in the form that authorizers accept.
    pub(crate) fn attributes(&self) -> Attributes<'_> {
        let subject = match &self.what {
            What::Resource {
                group,
                version,
                resource,
                subresource,
                namespace,
                name,
                field_selector,
            } => Subject::Resource {
                group,
                version,
                resource,
                subresource,
                namespace,
                name,
                field_selector,
            },
            What::Path(path) => Subject::Path(path),
        };
        Attributes {
            user: &self.user,
            verb: &self.verb,
            subject,
        }
    }

    /// Returns about how many bytes of memory it takes.
    pub(crate) fn bytes(&self) -> usize {
        match &self.what {
            What::Resource {
                resource,
                namespace,
                name,
                field_selector,
                ..
            } => resource.len() + namespace.len() + name.len() + field_selector.len(),
            What::Path(path) => path.len(),
        }
    }
}

/// Turns a decision into an error unless it allows the access.
///
/// # Errors
/// Returns 403 unless the access is allowed.
pub(crate) fn allow(attributes: &Attributes<'_>, decision: Decision) -> Result<(), ApiError> {
    match decision {
        Decision::Allow => Ok(()),
        Decision::Deny(reason) | Decision::NoOpinion(reason) => Err(forbidden(attributes, &reason)),
    }
}

/// Returns the refusal of `attributes` with upstream's text.
pub fn forbidden(attributes: &Attributes<'_>, reason: &str) -> ApiError {
    let refusal = Forbidden::new(attributes, reason);
    let what = Qualified::new(&refusal.group, &refusal.resource);
    ApiError::forbidden(what, &refusal.name, &refusal.text)
}
