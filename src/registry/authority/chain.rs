//! The chain of a plane's authorizers: its links, and one run along it.

use super::decisions::DecisionCount;
use super::{Authority, PlaneAuthorizer};
use polyplane_auth::{Attributes, Authorizer, Decision, Verdict};
use polyplane_plane::Snapshot;
use std::sync::Arc;

/// One authorizer of an [`Authority`].
#[derive(Clone)]
pub struct ChainedAuthorizer {
    pub(super) decides: Decides,
    /// Counts the decisions; `None` if no metric shows them.
    pub(super) count: Option<Arc<DecisionCount>>,
}

/// How an authorizer decides.
#[derive(Clone)]
pub(super) enum Decides {
    Fixed(Arc<dyn Authorizer>),
    OfCut(Arc<dyn PlaneAuthorizer>),
}

impl ChainedAuthorizer {
    /// Chains an authorizer that reads no object of a plane, and may have to call a webhook.
    pub fn fixed(authorizer: Arc<dyn Authorizer>) -> Self {
        Self {
            decides: Decides::Fixed(authorizer),
            count: None,
        }
    }

    /// Chains an authorizer that decides by the objects of a plane.
    pub fn of_cut(authorizer: Arc<dyn PlaneAuthorizer>) -> Self {
        Self {
            decides: Decides::OfCut(authorizer),
            count: None,
        }
    }

    /// Counts the decisions in the metrics, under the type that a configuration of authorization names
    /// and the name that the operator gives, which also stands before the reasons that it gives. As upstream,
    /// those that nobody configures are not counted.
    #[must_use]
    pub fn counted_as(self, kind: &'static str, name: &str) -> Self {
        Self {
            count: Some(Arc::new(DecisionCount::new(kind, name))),
            ..self
        }
    }
}

/// Whether a decision is made for the first time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Asked {
    /// It is, and the metrics count it.
    First,
    /// It was made before and has to hold in another state, too.
    Again,
}

/// The decision on one access while it is being made, one authorizer after the other.
pub(crate) struct AuthorizerRun<'a> {
    authorizers: &'a [ChainedAuthorizer],
    /// The state; `None` only if none of the authorizers reads it.
    cut: Option<&'a Snapshot>,
    attributes: &'a Attributes<'a>,
    next: usize,
    reasons: Vec<String>,
    /// Why the authorizer that was called last allows the access; `None` if nobody wants to know.
    reason: Option<String>,
    asked: Asked,
}

/// The state of an [`AuthorizerRun`] that cannot continue without waiting.
pub(crate) enum AuthorizerOutcome<'a> {
    /// The authorizers have decided.
    Decided(Decision),
    /// The authorizer at this position has to call a webhook first.
    Waits(usize, Verdict<'a, Decision>),
}

impl<'a> AuthorizerRun<'a> {
    /// Begins a run of all authorizers.
    pub(crate) fn new(
        authority: &'a Authority,
        cut: &'a Snapshot,
        attributes: &'a Attributes<'a>,
        asked: Asked,
    ) -> Self {
        Self::of(&authority.authorizers, Some(cut), attributes, asked)
    }

    /// Begins a run of some of the authorizers.
    pub(super) fn of(
        authorizers: &'a [ChainedAuthorizer],
        cut: Option<&'a Snapshot>,
        attributes: &'a Attributes<'a>,
        asked: Asked,
    ) -> Self {
        Self {
            authorizers,
            cut,
            attributes,
            next: 0,
            reasons: Vec::new(),
            reason: None,
            asked,
        }
    }

    /// Asks for the reason why the access is allowed, for [`Self::into_reason`].
    pub(super) fn explain(&mut self) {
        self.reason = Some(String::new());
    }

    /// Returns why the access is allowed, if that was asked for; empty if it is not, or for no reason that
    /// can be told.
    pub(super) fn into_reason(self) -> Option<String> {
        self.reason
    }

    /// Runs the authorizers until one decides or has to wait.
    pub(crate) fn resume(&mut self) -> AuthorizerOutcome<'a> {
        while let Some(authorizer) = self.authorizers.get(self.next) {
            self.next += 1;
            let decision = match &authorizer.decides {
                Decides::Fixed(authorizer) => match authorizer.authorize(self.attributes) {
                    Verdict::Now(Some(decision)) => decision,
                    verdict @ (Verdict::Now(None) | Verdict::Later(_)) => {
                        return AuthorizerOutcome::Waits(self.next - 1, verdict);
                    }
                },
                Decides::OfCut(authorizer) => {
                    let cut = self
                        .cut
                        .expect("there is a cut unless all authorizers are fixed");
                    match &mut self.reason {
                        None => authorizer.authorize_at(cut, self.attributes),
                        Some(reason) => {
                            let (decision, why) = authorizer.explain_at(cut, self.attributes);
                            *reason = why;
                            decision
                        }
                    }
                }
            };
            if let Some(settled) = self.note(decision) {
                return AuthorizerOutcome::Decided(settled);
            }
        }
        AuthorizerOutcome::Decided(Decision::NoOpinion(self.reasons.join("\n")))
    }

    /// Runs the authorizers to the end, waiting for those that call a webhook.
    pub(super) async fn settle(&mut self) -> Decision {
        loop {
            match self.resume() {
                AuthorizerOutcome::Decided(decision) => return decision,
                AuthorizerOutcome::Waits(_, verdict) => {
                    if let Some(settled) = self.note(verdict.await) {
                        return settled;
                    }
                }
            }
        }
    }

    /// Records the decision of the authorizer that was called last. Returns it if it ends the run.
    pub(crate) fn note(&mut self, decision: Decision) -> Option<Decision> {
        let last = self.next.checked_sub(1);
        let authorizer = last.and_then(|last| self.authorizers.get(last));
        let last_count = authorizer.and_then(|one| one.count.as_ref());
        match decision {
            Decision::NoOpinion(reason) => {
                if !reason.is_empty() {
                    // As upstream, which lists the reasons of all authorizers.
                    self.reasons.push(match last_count {
                        Some(count) => format!("{}: {reason}", count.name()),
                        None => reason,
                    });
                }
                None
            }
            settled @ (Decision::Allow | Decision::Deny(_)) => {
                if self.asked == Asked::First
                    && let Some(count) = last_count
                {
                    count.count(&settled);
                }
                Some(settled)
            }
        }
    }
}
