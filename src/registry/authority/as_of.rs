//! What the authorizers of a plane say in one state of it.

use super::{Asked, AuthorizerOutcome, AuthorizerRun, Decides, Pinned, RuleLists};
use polyplane_auth::{Attributes, Authorizer, Decision, UserInfo, Verdict};
use polyplane_plane::Snapshot;

/// An authority as of one state of a plane.
pub struct AsOf<'a> {
    pub(super) authority: Pinned<'a>,
    pub(super) cut: Snapshot,
}

impl AsOf<'_> {
    /// Returns the state.
    pub(crate) fn cut(&self) -> &Snapshot {
        &self.cut
    }

    /// Returns the rules that apply to a user in a namespace, those of all authorizers that can list
    /// them.
    pub fn rules_for(&self, user: &UserInfo, namespace: &str) -> RuleLists {
        let mut rules = RuleLists::default();
        for authorizer in &self.authority.authorizers {
            if let Decides::OfCut(authorizer) = &authorizer.decides {
                authorizer.list_rules_at(&self.cut, user, namespace, &mut rules);
            }
        }
        rules
    }

    /// Judges an access, and returns why it is allowed; empty if it is not, or if the authorizer that allows
    /// it gives no reason.
    pub async fn explain(&self, attributes: &Attributes<'_>) -> (Decision, String) {
        let mut run = AuthorizerRun::new(&self.authority, &self.cut, attributes, Asked::First);
        run.explain();
        let decision = run.settle().await;
        (decision, run.into_reason().unwrap_or_default())
    }
}

impl AsOf<'_> {
    /// Judges an access that was allowed in another state.
    pub(super) fn authorize_again<'a>(
        &'a self,
        attributes: &'a Attributes<'a>,
    ) -> Verdict<'a, Decision> {
        self.decide(attributes, Asked::Again)
    }

    fn decide<'a>(&'a self, attributes: &'a Attributes<'a>, asked: Asked) -> Verdict<'a, Decision> {
        let mut authorizer_run = AuthorizerRun::new(&self.authority, &self.cut, attributes, asked);
        match authorizer_run.resume() {
            AuthorizerOutcome::Decided(decision) => Verdict::now(decision),
            AuthorizerOutcome::Waits(_, verdict) => Verdict::later(async move {
                match authorizer_run.note(verdict.await) {
                    Some(settled) => settled,
                    None => authorizer_run.settle().await,
                }
            }),
        }
    }
}

impl Authorizer for AsOf<'_> {
    fn authorize<'a>(&'a self, attributes: &'a Attributes<'a>) -> Verdict<'a, Decision> {
        self.decide(attributes, Asked::First)
    }
}
