//! The roles and bindings of a plane: the index of them that every cut carries, and the authorizer
//! that decides by it.
//!
//! A decision is as new as the cut: the index is changed by the very write that changes a role. The
//! planes of one layer share the index of its roles, so a plane that has none of its own takes no
//! memory for it.

use crate::authority::{PlaneAuthorizer, RuleLists};
use crate::summary;
use polyplane_auth::rbac::index::Index;
use polyplane_auth::{Attributes, Decision, UserInfo};
use polyplane_plane::Snapshot;

/// Decides by the index.
#[derive(Clone, Copy, Debug)]
pub struct Roles;

/// Returns the index of the roles of a cut; `None` if its plane keeps none.
pub fn index_of(cut: &Snapshot) -> Option<&Index> {
    Some(&summary::of(cut)?.roles)
}

impl PlaneAuthorizer for Roles {
    fn authorize_at(&self, cut: &Snapshot, attributes: &Attributes<'_>) -> Decision {
        match index_of(cut) {
            Some(index) if !attributes.user.is_foreign => index.decide(attributes),
            _ => Decision::NoOpinion(String::new()),
        }
    }

    fn explain_at(&self, cut: &Snapshot, attributes: &Attributes<'_>) -> (Decision, String) {
        let index = index_of(cut).filter(|_| !attributes.user.is_foreign);
        match index.and_then(|index| index.authorize(attributes)) {
            Some(grant) => (Decision::Allow, grant.reason(attributes.user)),
            None => (self.authorize_at(cut, attributes), String::new()),
        }
    }

    fn list_rules_at(
        &self,
        cut: &Snapshot,
        user: &UserInfo,
        namespace: &str,
        rules: &mut RuleLists,
    ) {
        let Some(index) = index_of(cut).filter(|_| !user.is_foreign) else {
            return;
        };
        let found = index.rules_for(user, namespace);
        rules.resources.extend(found.of_resources().cloned());
        rules.paths.extend(found.of_paths().cloned());
        rules.errors.extend(found.error);
        rules.is_incomplete |= found.is_cut;
    }
}
