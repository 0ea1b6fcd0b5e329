//! Authorization by the objects of a plane.
//!
//! Roles and bindings are objects of the plane, so a decision about a request has to be made in the
//! very state that the request reads or writes against. An [`Authority`] decides
//! - before a body is read, on impersonation and on the request itself ([`AccessCheck`]);
//! - again in the state that a read shows, and in each state that a write is prepared against, on all
//!   accesses that the first check granted ([`GrantedAccess`]);
//! - on what stages of a write ([`crate::plan::CallOuts::authorize`]) and access reviews ([`AsOf`]) need.
//!
//! An authority that reads no object decides only before the body: its decisions hold in all states.
//!
//! A replica that forwards a request has no state of the plane. It proves who the caller is; the
//! owner decides.

use crate::request::call::Tenant;
use crate::write::answerable_by;
use polyplane_apimachinery::Str;
use polyplane_apimachinery::status::{ApiError, Qualified};
use polyplane_auth::{Attributes, Authorizer, Decision, Forbidden, Subject, UserInfo, Verdict};
use polyplane_plane::Snapshot;
use std::sync::Arc;
use tokio::time::Instant;

/// Decides by the objects of a plane.
pub trait PlaneAuthorizer: Send + Sync {
    /// Judges `attributes` as of `cut`, without waiting. What it needs to be fast is an index of the
    /// plane (see [`polyplane_plane::Index`]), which the cut carries.
    fn authorize_at(&self, cut: &Snapshot, attributes: &Attributes<'_>) -> Decision;
}

/// One authorizer of an [`Authority`].
#[derive(Clone)]
pub enum ChainedAuthorizer {
    /// Reads no object of a plane, and may have to call a webhook.
    Fixed(Arc<dyn Authorizer>),
    /// Decides by the objects of a plane.
    OfCut(Arc<dyn PlaneAuthorizer>),
}

/// The authorizers of a plane in order: the first that allows or denies wins.
#[derive(Clone)]
pub struct Authority {
    authorizers: Vec<ChainedAuthorizer>,
}

impl Authority {
    /// Asks `authorizers` in the order given.
    pub fn new(authorizers: Vec<ChainedAuthorizer>) -> Self {
        Self { authorizers }
    }

    /// One that looks at no object of a plane.
    pub fn fixed(authorizer: impl Authorizer + 'static) -> Self {
        Self::new(vec![ChainedAuthorizer::Fixed(Arc::new(authorizer))])
    }

    /// Starts the check of one request.
    ///
    /// # Errors
    /// 503 or 504 if the plane cannot be read here and has to be.
    pub fn access_check<'a>(
        &'a self,
        tenant: &'a Tenant,
        deadline: Instant,
    ) -> Verdict<'a, Result<AccessCheck<'a>, ApiError>> {
        match self.fixed_access_check() {
            Some(access_check) => Verdict::now(Ok(access_check)),
            None => Verdict::later(async move {
                let newest = self.newest(tenant, deadline).await?;
                Ok(AccessCheck::new(newest))
            }),
        }
    }

    /// An access check without a plane; `None` if an authorizer decides by the objects of one.
    pub fn fixed_access_check(&self) -> Option<AccessCheck<'_>> {
        let as_of = AsOf {
            authority: self,
            cut: None,
        };
        self.is_fixed().then(|| AccessCheck::new(as_of))
    }

    /// As of the newest state of a plane, if an authorizer reads it.
    ///
    /// # Errors
    /// See [`Self::access_check`].
    pub async fn newest(&self, tenant: &Tenant, deadline: Instant) -> Result<AsOf<'_>, ApiError> {
        let mut cut = None;
        if !self.is_fixed() {
            // A refusal is an answer, and no answer may be older than a write that was acknowledged.
            answerable_by(&tenant.plane, deadline).await?;
            cut = Some(tenant.plane.snapshot());
        }
        Ok(AsOf {
            authority: self,
            cut,
        })
    }

    /// As of a state of a plane.
    pub fn as_of(&self, cut: Snapshot) -> AsOf<'_> {
        AsOf {
            authority: self,
            cut: Some(cut),
        }
    }

    fn is_fixed(&self) -> bool {
        let mut authorizers = self.authorizers.iter();
        authorizers.all(|judge| matches!(judge, ChainedAuthorizer::Fixed(_)))
    }

    /// Calls an authorizer that may call a webhook, by its position.
    pub(crate) async fn ask(&self, judge: usize, access: &Access) -> Result<Decision, ApiError> {
        match self.authorizers.get(judge) {
            Some(ChainedAuthorizer::Fixed(authorizer)) => {
                Ok(authorizer.authorize(&access.attributes()).await)
            }
            Some(ChainedAuthorizer::OfCut(_)) | None => Err(ApiError::internal(
                "no authorizer can be called for this access",
            )),
        }
    }
}

/// The decision of the authorizers on one access, one authorizer after the other.
pub(crate) struct AuthorizerRun<'a> {
    authority: &'a Authority,
    cut: Option<&'a Snapshot>,
    attributes: &'a Attributes<'a>,
    next: usize,
    reasons: Vec<String>,
}

/// How far an [`AuthorizerRun`] came without waiting.
pub(crate) enum AuthorizerOutcome<'a> {
    /// This is decided.
    Decided(Decision),
    /// The authorizer at this position has to call a webhook first.
    Waits(usize, Verdict<'a, Decision>),
}

impl<'a> AuthorizerRun<'a> {
    pub(crate) fn new(
        authority: &'a Authority,
        cut: Option<&'a Snapshot>,
        attributes: &'a Attributes<'a>,
    ) -> Self {
        Self {
            authority,
            cut,
            attributes,
            next: 0,
            reasons: Vec::new(),
        }
    }

    /// Goes on to a decision, or to an authorizer that has to wait.
    pub(crate) fn resume(&mut self) -> AuthorizerOutcome<'a> {
        while let Some(judge) = self.authority.authorizers.get(self.next) {
            self.next += 1;
            let decision = match judge {
                ChainedAuthorizer::Fixed(authorizer) => match authorizer.authorize(self.attributes)
                {
                    Verdict::Now(Some(decision)) => decision,
                    verdict @ (Verdict::Now(None) | Verdict::Later(_)) => {
                        return AuthorizerOutcome::Waits(self.next - 1, verdict);
                    }
                },
                ChainedAuthorizer::OfCut(authorizer) => {
                    let cut = self
                        .cut
                        .expect("there is a cut unless all authorizers are fixed");
                    authorizer.authorize_at(cut, self.attributes)
                }
            };
            if let Some(settled) = self.note(decision) {
                return AuthorizerOutcome::Decided(settled);
            }
        }
        AuthorizerOutcome::Decided(Decision::NoOpinion(self.reasons.join("\n")))
    }

    /// Takes an authorizer's decision; returns it if it ends the run.
    pub(crate) fn note(&mut self, decision: Decision) -> Option<Decision> {
        match decision {
            Decision::NoOpinion(reason) => {
                if !reason.is_empty() {
                    self.reasons.push(reason);
                }
                None
            }
            settled @ (Decision::Allow | Decision::Deny(_)) => Some(settled),
        }
    }
}

/// An authority as of one state of a plane.
pub struct AsOf<'a> {
    authority: &'a Authority,
    /// Absent only if no authorizer reads it.
    cut: Option<Snapshot>,
}

impl Authorizer for AsOf<'_> {
    fn authorize<'a>(&'a self, attributes: &'a Attributes<'a>) -> Verdict<'a, Decision> {
        let mut authorizer_run = AuthorizerRun::new(self.authority, self.cut.as_ref(), attributes);
        let mut outcome = authorizer_run.resume();
        if let AuthorizerOutcome::Decided(decision) = outcome {
            return Verdict::now(decision);
        }
        Verdict::later(async move {
            loop {
                let verdict = match outcome {
                    AuthorizerOutcome::Decided(decision) => return decision,
                    AuthorizerOutcome::Waits(_, verdict) => verdict,
                };
                if let Some(settled) = authorizer_run.note(verdict.await) {
                    return settled;
                }
                outcome = authorizer_run.resume();
            }
        })
    }
}

/// Checks what one request does before its body is read. What is granted here has to be allowed again
/// in each state that the request reads or writes against, see [`GrantedAccess`].
pub struct AccessCheck<'a> {
    as_of: AsOf<'a>,
    passed: Vec<Access>,
}

impl<'a> AccessCheck<'a> {
    fn new(as_of: AsOf<'a>) -> Self {
        Self {
            as_of,
            passed: Vec::new(),
        }
    }

    /// Checks one access of `user` and notes it.
    ///
    /// # Errors
    /// 403 if it may not.
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
        allow(&attributes, self.as_of.authorize(&attributes).await)?;
        if self.as_of.cut.is_some() {
            self.passed.push(Access::new(Arc::clone(user), &attributes));
        }
        Ok(())
    }

    /// All accesses that passed. Drops the state that they were checked in.
    pub fn granted(self) -> GrantedAccess {
        let passed = (!self.passed.is_empty()).then(|| self.passed.into());
        GrantedAccess(passed)
    }
}

/// The accesses that a request was granted.
#[derive(Clone, Debug, Default)]
pub struct GrantedAccess(Option<Arc<[Access]>>);

impl GrantedAccess {
    /// Of a request that is allowed whatever a plane holds: no authorizer that decided on it reads
    /// objects, or the server itself makes the request.
    pub const fn of_every_cut() -> Self {
        Self(None)
    }

    /// All that has to be allowed in each state; nothing if one decision holds in all of them.
    pub(crate) fn accesses(&self) -> &[Access] {
        self.0.as_deref().unwrap_or_default()
    }

    /// Fails unless all of it is allowed as of a state.
    ///
    /// # Errors
    /// 403 otherwise.
    pub(crate) async fn check(&self, as_of: &AsOf<'_>) -> Result<(), ApiError> {
        for access in self.accesses() {
            let attributes = access.attributes();
            allow(&attributes, as_of.authorize(&attributes).await)?;
        }
        Ok(())
    }
}

/// One thing that a user wants to do: [`Attributes`] that own their texts.
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
    },
    Path(Str),
}

impl Access {
    /// What `attributes` say of `user`.
    pub(crate) fn new(user: Arc<UserInfo>, attributes: &Attributes<'_>) -> Self {
        let what = match attributes.subject {
            Subject::Resource {
                group,
                version,
                resource,
                subresource,
                namespace,
                name,
            } => What::Resource {
                group: group.into(),
                version: version.into(),
                resource: resource.into(),
                subresource: subresource.into(),
                namespace: namespace.into(),
                name: name.into(),
            },
            Subject::Path(path) => What::Path(path.into()),
        };
        Self {
            user,
            verb: attributes.verb.into(),
            what,
        }
    }

    /// The same as an authorizer takes it.
    pub(crate) fn attributes(&self) -> Attributes<'_> {
        let subject = match &self.what {
            What::Resource {
                group,
                version,
                resource,
                subresource,
                namespace,
                name,
            } => Subject::Resource {
                group,
                version,
                resource,
                subresource,
                namespace,
                name,
            },
            What::Path(path) => Subject::Path(path),
        };
        Attributes {
            user: &self.user,
            verb: &self.verb,
            subject,
        }
    }

    /// About how many bytes it takes.
    pub(crate) fn bytes(&self) -> usize {
        match &self.what {
            What::Resource {
                resource,
                namespace,
                name,
                ..
            } => resource.len() + namespace.len() + name.len(),
            What::Path(path) => path.len(),
        }
    }
}

/// Turns a decision into a go-ahead or a refusal.
///
/// # Errors
/// 403 unless it is allowed.
pub(crate) fn allow(attributes: &Attributes<'_>, decision: Decision) -> Result<(), ApiError> {
    match decision {
        Decision::Allow => Ok(()),
        Decision::Deny(reason) | Decision::NoOpinion(reason) => Err(forbidden(attributes, &reason)),
    }
}

/// The refusal of `attributes` in upstream's words.
pub fn forbidden(attributes: &Attributes<'_>, reason: &str) -> ApiError {
    let refusal = Forbidden::new(attributes, reason);
    let what = Qualified::new(&refusal.group, &refusal.resource);
    ApiError::forbidden(what, &refusal.name, &refusal.text)
}
