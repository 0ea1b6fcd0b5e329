//! The roles and bindings of a plane: the index of them that every cut carries, and the authorizer
//! that decides by it.
//!
//! A decision is as new as the cut: the index is changed by the very write that changes a role. The
//! planes of one layer share the index of its roles, so a plane that has none of its own takes no
//! memory for it.

use crate::authority::{PlaneAuthorizer, RuleLists};
use polyplane_apimachinery::json;
use polyplane_auth::rbac::binding::ObjectName;
use polyplane_auth::rbac::index::{Index, RbacResource};
use polyplane_auth::{Attributes, Decision, UserInfo};
use polyplane_plane::{Key, Snapshot, Summarize, Summary};
use std::sync::Arc;

/// Makes the index, and decides by it.
#[derive(Clone, Copy, Debug)]
pub struct Roles;

/// Returns the index of the roles of a cut; `None` if its plane keeps none.
pub fn index_of(cut: &Snapshot) -> Option<&Index> {
    cut.summary()?.downcast_ref()
}

impl Summarize for Roles {
    fn covers(&self, key: &Key) -> bool {
        RbacResource::of(key.group(), key.resource()).is_some()
    }

    fn empty(&self) -> Summary {
        Arc::new(Index::default())
    }

    fn next(&self, summary: &Summary, key: &Key, body: Option<&[u8]>) -> Summary {
        let (Some(index), Some(resource)) = (
            summary.downcast_ref::<Index>(),
            RbacResource::of(key.group(), key.resource()),
        ) else {
            return Arc::clone(summary);
        };
        let name = ObjectName {
            namespace: key.namespace().unwrap_or_default(),
            name: key.name(),
        };
        let mut next = index.clone();
        let object = body.and_then(|body| json::parse(body, &json::Limits::default()).ok());
        match object {
            Some(object) => next.put(resource, name, &object.value),
            // What cannot be read grants nothing.
            None => next.remove(resource, name),
        }
        Arc::new(next)
    }
}

impl PlaneAuthorizer for Roles {
    fn authorize_at(&self, cut: &Snapshot, attributes: &Attributes<'_>) -> Decision {
        match index_of(cut) {
            Some(index) if !attributes.user.is_foreign => match index.decide(attributes) {
                // The chain names the authorizer that gives a reason.
                Decision::NoOpinion(why) if !why.is_empty() => {
                    Decision::NoOpinion(format!("rbac: {why}"))
                }
                other => other,
            },
            _ => Decision::NoOpinion(String::new()),
        }
    }

    fn reason_at(&self, cut: &Snapshot, attributes: &Attributes<'_>) -> Option<String> {
        let index = index_of(cut).filter(|_| !attributes.user.is_foreign)?;
        Some(index.authorize(attributes)?.reason(attributes.user))
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
    }
}
