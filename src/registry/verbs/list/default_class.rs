//! The default storage class of a list, whose row says so behind its name.
//!
//! As upstream, only a list shows it: of the classes that are marked as the default one, the newest. The row of
//! one object that is read alone, and the rows of a watch, show names alone.

use crate::answer::negotiate::{Representation, Shape};
use crate::request::call::Call;
use crate::verbs::list::poll_budget::PollBudget;
use polyplane_apimachinery::Str;
use polyplane_apimachinery::json::scan;
use polyplane_apimachinery::time::Timestamp;
use polyplane_plane::ObjectRef;
use std::cmp::Reverse;

const RESOURCE: &str = "storageclasses.storage.k8s.io";
/// The annotations, today's and an older one, that mark a class as the default one.
const MARKS: [&str; 2] = [
    "storageclass.kubernetes.io/is-default-class",
    "storageclass.beta.kubernetes.io/is-default-class",
];

/// Returns whether a list shows which of its objects is the default one.
pub(super) fn is_shown(call: &Call<'_>, wish: Representation) -> bool {
    matches!(wish.shape, Shape::Table(_)) && call.row.qualified == RESOURCE
}

/// Returns the name of the default class among the objects of a list; of equally old classes the first by name.
/// `None` if no class is marked, or if the list does not show it.
pub(super) async fn of(
    call: &Call<'_>,
    wish: Representation,
    objects: &[ObjectRef],
    budget: &mut PollBudget,
) -> Option<Str> {
    if !is_shown(call, wish) {
        return None;
    }
    let mut newest: Option<(Option<Timestamp>, Reverse<Str>)> = None;
    for object in objects {
        if budget.is_over() {
            budget.yield_now().await;
        }
        let body = object.body();
        budget.spend(body.len());
        let is_marked = MARKS.into_iter().any(|mark| {
            let value = scan::string_at(&body, &["metadata", "annotations", mark]);
            value.as_deref() == Some("true")
        });
        let created = scan::string_at(&body, &["metadata", "creationTimestamp"]);
        let created = created.and_then(|time| Timestamp::parse(&time).ok());
        if is_marked {
            newest = newest.max(Some((created, Reverse(Str::from(object.key().name())))));
        }
    }
    newest.map(|(_, Reverse(name))| name)
}
