//! `Impersonate-*` headers, by which a caller acts as another user.
//!
//! A caller may have the right in one of several [`Mode`]s, which are tried in a fixed order, except
//! that the mode which last let this caller through comes first. The first mode that lets the caller
//! through decides which groups the user gets. A caller whom all modes refuse gets the text of the
//! mode that was tried first.
//!
//! Unlike upstream, which keeps what a mode allowed for ten seconds, the server decides on every
//! request, and the rights by which a mode let the caller through must hold in each state that the
//! request reads or writes against.

pub(crate) mod memory;
mod modes;
#[cfg(test)]
mod tests;
mod wanted;

use std::sync::Arc;

use http::{HeaderMap, HeaderName};
use polyplane_apimachinery::status::ApiError;
use polyplane_auth::{Attributes, UserInfo};
use polyplane_registry::AccessCheck;

use crate::answer::respond::Refusal;
use memory::ModeMemory;
use modes::{Check, Mode};
use wanted::WantedUser;

/// Returns whether the headers of a request ask for another user than the proven one.
pub(crate) fn is_wanted(headers: &HeaderMap) -> bool {
    headers.keys().any(is_of_impersonation)
}

/// Returns whether a header is one of those that ask for another user.
pub(crate) fn is_of_impersonation(name: &HeaderName) -> bool {
    name.as_str().starts_with("impersonate-")
}

/// The user that a request acts as.
#[derive(Clone, Debug)]
pub(crate) struct ActingUser {
    pub user: Arc<UserInfo>,
    /// The verb of the constrained mode that let the caller act as this user; empty if there was
    /// none. Audit shows it.
    pub constraint: &'static str,
}

/// Returns the user that a request acts as: the proven one, or the one that its headers name.
/// `requested` is the request as the proven user would make it, to the plane with the id `plane`.
///
/// # Errors
/// Returns 400 if the headers name no user, 403 if the caller may not act as the user that they
/// name, 503 or 504 if the plane cannot be read here.
pub(crate) async fn acting_user(
    requested: &Attributes<'_>,
    proven: &Arc<UserInfo>,
    headers: &HeaderMap,
    access_check: &mut AccessCheck<'_>,
    (memory, plane): (&ModeMemory, &str),
) -> Result<ActingUser, Refusal> {
    let itself = || ActingUser {
        user: Arc::clone(proven),
        constraint: "",
    };
    if !is_wanted(headers) {
        return Ok(itself());
    }
    let Some(wanted) = WantedUser::of(headers).map_err(Refusal::of_impersonation)? else {
        // The headers are empty or unknown, so nobody is impersonated.
        return Ok(itself());
    };
    let mut first_refusal = None;
    let last = memory.last(plane, &proven.name);
    let others = Mode::ALL.into_iter().filter(|mode| Some(*mode) != last);
    for mode in last.into_iter().chain(others) {
        if !mode.applies(&wanted, proven) {
            continue;
        }
        let before = access_check.mark();
        let check = Check::new(mode, &wanted, proven, access_check);
        match check.run(requested).await {
            Ok(user) => {
                memory.remember(plane, &proven.name, mode);
                return Ok(ActingUser {
                    user: Arc::new(user),
                    constraint: mode.constraint(),
                });
            }
            Err(refused) if refused.code == 403 => {
                // The request does not rest on what this mode allowed before it refused.
                access_check.forget_since(before);
                first_refusal.get_or_insert(refused);
            }
            Err(error) => return Err(error.into()),
        }
    }
    let refusal =
        first_refusal.unwrap_or_else(|| ApiError::internal("all impersonation modes failed"));
    Err(Refusal::of_impersonation(refusal))
}
