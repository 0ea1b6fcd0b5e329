//! `spec.suspended` of a ControlPlane: nobody uses the plane, and nothing of it runs, until it is taken
//! back. Its objects, its users and its keys stay.
//!
//! Suspension only takes rights away, and resumption gives back what `spec.access` says, so both need the
//! right to update the ControlPlane, and no right to enter it.

use crate::polyplane::control_plane::condition;
use crate::polyplane::not_read_by_all;
use polyplane_apimachinery::complaints::Complaints;
use polyplane_apimachinery::field_error::Path;
use polyplane_apimachinery::time::Timestamp;
use polyplane_apimachinery::{Value, json};
use polyplane_registry::strategy::Context;

/// Returns whether a ControlPlane is to be suspended.
pub(crate) fn is_suspended(object: &Value) -> bool {
    object.bool_at(&["spec", "suspended"])
}

/// Returns whether the canonical bytes of a ControlPlane say that it is suspended.
pub(crate) fn read(body: &[u8]) -> bool {
    let range = json::scan::find(body, &["spec", "suspended"]);
    range.is_some_and(|range| &body[range] == b"true")
}

/// Returns the condition `Ready` of a plane that has been suspended or resumed.
pub(crate) fn ready(object: &Value, now: &str) -> Value {
    match is_suspended(object) {
        true => {
            let why = "every request is refused until spec.suspended is false";
            condition("Ready", "False", "Suspended", why, now)
        }
        false => condition(
            "Ready",
            "True",
            "Resumed",
            "the control plane can be used",
            now,
        ),
    }
}

/// Brings the condition in line with the wish, unless the plane is being deleted.
pub(crate) fn prepare_update(object: &mut Value, old: &Value, now: i64) {
    let is_deleting = !object.str_at(&["metadata", "deletionTimestamp"]).is_empty();
    if is_deleting || is_suspended(object) == is_suspended(old) {
        return;
    }
    let now = Timestamp::from_seconds(now).to_rfc3339();
    let mut conditions = object.items_at(&["status", "conditions"]).to_vec();
    conditions.retain(|known| known.str_at(&["type"]) != "Ready");
    conditions.insert(0, ready(object, &now));
    object.set(&["status", "conditions"], conditions);
}

/// Returns what is wrong with the wish. Before all programs of the ring read it, it may not be set: an
/// older one would serve the plane.
pub(crate) fn errors(context: &Context<'_>, object: &Value) -> Complaints {
    match is_suspended(object) && !context.settings.records_say_suspension.present() {
        true => Complaints::from([not_read_by_all(&Path::new("spec").child("suspended"))]),
        false => Complaints::default(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::polyplane::access;

    #[test]
    fn the_condition_follows_the_wish_and_only_changes_with_it() {
        let old =
            json!({"status": {"conditions": [{"type": "Ready", "status": "True"}, {"type": "X"}]}});
        let mut plane = old.clone();
        plane.set(&["spec", "suspended"], true);
        prepare_update(&mut plane, &old, 0);
        let conditions = plane.items_at(&["status", "conditions"]);
        assert_eq!(conditions.len(), 2);
        assert_eq!(conditions[0].str_at(&["reason"]), "Suspended");
        assert_eq!(conditions[0].str_at(&["status"]), "False");
        let mut again = plane.clone();
        prepare_update(&mut again, &plane, 60);
        assert_eq!(again, plane);
        let mut resumed = plane.clone();
        resumed.remove(&["spec", "suspended"]);
        prepare_update(&mut resumed, &plane, 60);
        assert_eq!(
            resumed.items_at(&["status", "conditions"])[0].str_at(&["status"]),
            "True"
        );
        let mut deleting = old.clone();
        deleting.set(&["metadata", "deletionTimestamp"], "1970-01-01T00:00:00Z");
        let before = deleting.clone();
        deleting.set(&["spec", "suspended"], true);
        prepare_update(&mut deleting, &before, 0);
        assert_eq!(deleting["status"], old["status"]);
    }

    #[test]
    fn the_directory_reads_the_wish_and_tells_it_from_none() {
        for (body, suspended) in [
            (&b"{\"spec\":{\"suspended\":true}}"[..], true),
            (b"{\"spec\":{\"suspended\":false}}", false),
            (b"{\"spec\":{}}", false),
            (b"{\"metadata\":{\"name\":\"suspended\"}}", false),
        ] {
            assert_eq!(read(body), suspended, "{}", String::from_utf8_lossy(body));
        }
        let kept = access::raw(b"{\"spec\":{\"suspended\":true}}");
        assert_ne!(kept, access::raw(b"{\"spec\":{}}"));
    }
}
