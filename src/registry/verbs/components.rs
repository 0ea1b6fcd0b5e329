//! ComponentStatuses: what a plane runs on, asked when a client asks. They are stored nowhere and have no
//! version, so there are no pages and nothing to wait for.
//!
//! Upstream names its store, and the scheduler and controller manager of its own machine. A plane has
//! only the store: which controllers its users run, and where, a server cannot know.

use crate::answer::negotiate;
use crate::answer::negotiate::Conversions;
use crate::answer::representation;
use crate::answer::representation::Shown;
use crate::answer::{Answer, Outcome};
use crate::request::call::Call;
use crate::request::options::{ListOptions, ListPurpose};
use crate::select::Selection;
use crate::verbs::list::whole;
use polyplane_apimachinery::status::{ApiError, Qualified};
use polyplane_apimachinery::{Value, json};

/// The resource.
pub(crate) const RESOURCE: &str = "componentstatuses";
/// The store. Upstream numbers its servers of etcd; a plane has one store, whatever that consists of.
const STORE: &str = "etcd-0";

/// What planes run on.
pub trait Components: Send + Sync {
    /// Returns whether the store takes writes now.
    fn store_works(&self) -> bool;
}

/// Handles GET of one component.
///
/// # Errors
/// Returns 404 if a plane has no such component.
pub(crate) fn get(call: &Call<'_>) -> Result<Answer, ApiError> {
    let wish = negotiate::output(call, Conversions::Offered)?;
    let name = call.name()?;
    let store = store(call).filter(|_| name == STORE);
    // In upstream's error the resource is in the singular, for this kind alone.
    let what = Qualified::new("", "componentstatus");
    let store = store.ok_or_else(|| ApiError::not_found(what, name))?;
    let body = representation::object(call, wish, &Shown::Tree(store))?;
    Ok(Answer::finite(call, wish, Outcome::Ok, body))
}

/// Handles a list.
///
/// # Errors
/// Returns 400 for options that no list takes, 406 for a shape that a list does not have.
pub(crate) fn list(call: &Call<'_>) -> Result<Answer, ApiError> {
    let wish = negotiate::output(call, Conversions::Offered)?;
    let options = ListOptions::parse(call.request, ListPurpose::List)?;
    let selection = Selection::of(call, &options)?;
    let store = store(call).filter(|_| selection.matches_name(STORE));
    let shown = store.into_iter().map(Shown::Tree);
    let body = whole::write_shown(call, wish, "{}", shown)?;
    Ok(Answer::finite(call, wish, Outcome::Ok, body))
}

/// Returns the status of the store; `None` if this server does not tell it.
fn store(call: &Call<'_>) -> Option<Value> {
    let works = call.services.components.as_ref()?.store_works();
    let (status, message) = match works {
        true => ("True", "ok"),
        // Not the reason: it is the operator's, and tells where the store is.
        false => ("False", "the store takes no writes"),
    };
    Some(json!({
        "metadata": {"name": STORE},
        "conditions": [{"type": "Healthy", "status": status, "message": message}],
    }))
}
