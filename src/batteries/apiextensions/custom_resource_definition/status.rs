//! The status of definitions: which names are accepted, and whether the kind is served.
//!
//! Upstream's controllers write it after the definition; here it is part of the write that makes
//! the definition what it is, so that whoever sees the definition can use the kind.

use super::spec::bundle_complaint;
use super::{APPROVAL, Approval, approval, is_protected};
use polyplane_apiextensions::definition;
use polyplane_apimachinery::json::scan::{self, Scanned};
use polyplane_apimachinery::quote::quote;
use polyplane_apimachinery::time::Timestamp;
use polyplane_apimachinery::{Str, Value, json};
use polyplane_plane::{Claim, Index, IndexId, IndexRow, Key, Snapshot};
use polyplane_registry::metadata;
use std::borrow::Cow;
use std::collections::BTreeSet;

/// The finalizer by which a definition waits until the objects of its kind are gone.
pub const CLEANUP: &str = "customresourcecleanup.apiextensions.k8s.io";

/// The type of the condition that says whether a kind is served.
const ESTABLISHED: &str = "Established";

/// Returns the position of [`AcceptedNames`] among the indexes of a plane.
pub fn names_index() -> IndexId {
    IndexId(crate::core::BATTERY.indexes.len())
}

/// Computes the rows of the names that definitions have been granted, by group. Resources and kinds
/// are different sets of names.
#[derive(Debug)]
pub struct AcceptedNames;

impl Index for AcceptedNames {
    fn covers(&self, key: &Key) -> bool {
        key.is_of(definition::GROUP, definition::RESOURCE)
    }

    // A definition may have megabytes, and its writes are put into the index one after the other: each part is walked
    // once.
    fn rows(&self, _: &Key, body: &[u8]) -> Vec<IndexRow> {
        let [metadata, spec, status] = Scanned(body).parts(["metadata", "spec", "status"]);
        let [group, own] = spec.map_or([None; 2], |spec| spec.parts(["group", "names"]));
        let accepted = status.and_then(|status| status.at(&["acceptedNames"]));
        let group = group.map(Scanned::text).unwrap_or_default();
        let name = |field: &str| {
            accepted.map_or(String::new(), |names| names.str_at(&[field]).into_owned())
        };
        let short = accepted.and_then(|names| names.at(&["shortNames"]));
        let short = short.into_iter().flat_map(Scanned::items);
        let short = short
            .filter_map(|name| scan::string(name.0))
            .map(Cow::into_owned);
        let resources = ["plural", "singular"].map(name).into_iter().chain(short);
        let kinds = ["kind", "listKind"].map(name).into_iter();
        let resources = resources.map(|name| (NameSet::Resources, name));
        let kinds = kinds.map(|name| (NameSet::Kinds, name));
        let named = resources.chain(kinds).filter(|(_, name)| !name.is_empty());
        let mut values: BTreeSet<String> =
            named.map(|(set, name)| value(&group, set, &name)).collect();
        if own.map(|names| names.0) != accepted.map(|names| names.0) {
            let metadata = metadata.unwrap_or(Scanned(b""));
            values.insert(pending(&group, &metadata.str_at(&["name"])));
        }
        let rows = values.into_iter().map(|value| IndexRow {
            value: value.into(),
            amount: 1,
        });
        rows.collect()
    }
}

/// The names that exclude each other.
#[derive(Clone, Copy, PartialEq, Eq)]
enum NameSet {
    Resources,
    Kinds,
}

fn value(group: &str, set: NameSet, name: &str) -> String {
    let set = match set {
        NameSet::Resources => "r",
        NameSet::Kinds => "k",
    };
    format!("{group}/{set}/{name}")
}

/// Returns the value under which a definition is found whose names were not all accepted.
fn pending(group: &str, name: &str) -> String {
    format!("?{group}/{name}")
}

/// Returns the definitions of a group whose names were not all accepted; of all groups if it is
/// empty.
pub fn pending_in(cut: &Snapshot, group: &str) -> Vec<Str> {
    let beginning = match group {
        "" => "?".to_owned(),
        group => pending(group, ""),
    };
    let values = cut.index_values(names_index(), beginning.as_bytes());
    let values = values.map_while(|(value, _)| {
        let value = value.strip_prefix(beginning.as_bytes())?;
        std::str::from_utf8(value).ok()
    });
    let names = values.map(|value| value.rsplit_once('/').map_or(value, |(_, name)| name));
    names.map(Str::from).collect()
}

/// Brings the status of a definition up to date, and returns the claims that it rests on.
pub fn settle(object: &mut Value, cut: &Snapshot, now: i64) -> Vec<Claim> {
    let now = Timestamp::from_seconds(now).to_rfc3339();
    let mut names = NameCheck::new(object, cut);
    let conflict = names.accept();
    let NameCheck {
        accepted, claims, ..
    } = names;
    object.set(&["status", "acceptedNames"], accepted);
    let (status, reason, message) = match &conflict {
        None => ("True", "NoConflicts", "no conflicts found"),
        Some((reason, message)) => ("False", *reason, message.as_str()),
    };
    set_condition(object, ["NamesAccepted", status, reason, message], &now);
    if let Some(established) = establish(object, conflict.is_none()) {
        set_condition(object, established, &now);
    }
    settle_approval(object, &now);
    claims
}

/// Returns the condition that says whether a kind is served; `None` if it stays as it is.
fn establish(object: &Value, named: bool) -> Option<[&'static str; 4]> {
    let mut conditions = object.items_at(&["status", "conditions"]).iter();
    let is_known = conditions.any(|condition| condition.str_at(&["type"]) == ESTABLISHED);
    if super::is_established(object) || (is_known && !named) {
        return None;
    }
    let [status, reason, message] = if !named {
        ["False", "NotAccepted", "not all names are accepted"]
    } else if bundle_complaint(&object["spec"]).is_some() {
        let message = "The conversion webhook CABundle is invalid";
        ["False", "InvalidCABundle", message]
    } else {
        let message = "the initial names have been accepted";
        ["True", "InitialNamesAccepted", message]
    };
    Some([ESTABLISHED, status, reason, message])
}

/// Sets the condition about the approval of a kind in a group of the Kubernetes project.
fn settle_approval(object: &mut Value, now: &str) {
    if !is_protected(object.str_at(&["spec", "group"])) {
        return;
    }
    let text = object
        .str_at(&["metadata", "annotations", APPROVAL])
        .to_owned();
    let needed = format!("protected groups must have approval annotation {APPROVAL:?}");
    let help = super::APPROVAL_HELP;
    let (status, reason, message) = match approval(object) {
        Approval::Missing => ("False", "MissingAnnotation", format!("{needed}, {help}")),
        Approval::Invalid => (
            "False",
            "InvalidAnnotation",
            format!("{needed} with either a URL or a reason starting with \"unapproved\", {help}"),
        ),
        Approval::Bypassed => (
            "False",
            "UnapprovedAnnotation",
            format!("not approved: {}", quote(&text)),
        ),
        Approval::Given => ("True", "ApprovedAnnotation", format!("approved in {text}")),
    };
    let kind = "KubernetesAPIApprovalPolicyConformant";
    set_condition(object, [kind, status, reason, &message], now);
}

/// The comparison of the names that a definition wants with those that others have.
struct NameCheck<'a> {
    cut: &'a Snapshot,
    owner: Key,
    group: Str,
    wanted: Value,
    /// The names that the definition has.
    accepted: Value,
    claims: Vec<Claim>,
}

impl<'a> NameCheck<'a> {
    fn new(object: &Value, cut: &'a Snapshot) -> Self {
        let name = object.str_at(&["metadata", "name"]);
        let accepted = match &object["status"]["acceptedNames"] {
            accepted @ Value::Object(_) => accepted.clone(),
            _ => Value::object(),
        };
        Self {
            cut,
            owner: Key::new(definition::GROUP, definition::RESOURCE, None, name),
            group: object.str_at(&["spec", "group"]).into(),
            wanted: object["spec"]["names"].clone(),
            accepted,
            claims: Vec::new(),
        }
    }

    /// Accepts the names that are free. Returns reason and message of the last conflict.
    fn accept(&mut self) -> Option<(&'static str, String)> {
        let mut conflict = None;
        let singles = [
            ("plural", NameSet::Resources, "PluralConflict"),
            ("singular", NameSet::Resources, "SingularConflict"),
            ("kind", NameSet::Kinds, "KindConflict"),
            ("listKind", NameSet::Kinds, "ListKindConflict"),
        ];
        for (field, set, reason) in singles {
            if field == "kind" {
                conflict = self.accept_short().or(conflict);
            }
            let wanted = Str::from(self.wanted.str_at(&[field]));
            match self.taken(set, &wanted) {
                Some(why) => conflict = Some((reason, why)),
                None if wanted.is_empty() => drop(self.accepted.remove(&[field])),
                None => self.accepted.set(&[field], wanted),
            }
        }
        match self.wanted.get("categories") {
            Some(categories) => self.accepted.set(&["categories"], categories.clone()),
            None => drop(self.accepted.remove(&["categories"])),
        }
        conflict
    }

    /// Accepts the short names, all or none.
    fn accept_short(&mut self) -> Option<(&'static str, String)> {
        let wanted = metadata::strings(&self.wanted["shortNames"]);
        let wanted: Vec<Str> = wanted.into_iter().map(Str::from).collect();
        let taken: Vec<String> = wanted
            .iter()
            .filter_map(|name| self.taken(NameSet::Resources, name))
            .collect();
        match taken.as_slice() {
            [] if wanted.is_empty() => {
                drop(self.accepted.remove(&["shortNames"]));
                None
            }
            [] => {
                let names: Vec<Value> = wanted.into_iter().map(Value::from).collect();
                self.accepted.set(&["shortNames"], names);
                None
            }
            [only] => Some(("ShortNamesConflict", only.clone())),
            several => Some(("ShortNamesConflict", format!("[{}]", several.join(", ")))),
        }
    }

    /// Returns upstream's text if another definition has the name; claims it otherwise.
    fn taken(&mut self, set: NameSet, name: &str) -> Option<String> {
        if name.is_empty() {
            return None;
        }
        let claim = Claim::Free {
            index: names_index(),
            value: value(&self.group, set, name).into(),
            owner: self.owner.clone(),
        };
        if self.cut.holds(&claim) {
            self.claims.push(claim);
            return None;
        }
        Some(format!("{} is already in use", quote(name)))
    }
}

/// Marks a definition as being deleted: its kind accepts no new objects, and it stays until those
/// that exist are gone.
pub fn terminate(object: &mut Value) {
    let mut finalizers = object.items_at(&["metadata", "finalizers"]).to_vec();
    let cleanup = Value::string(CLEANUP);
    if finalizers.contains(&cleanup) {
        return;
    }
    finalizers.push(cleanup);
    object.set(&["metadata", "finalizers"], finalizers);
    // Unlike other deletions, this one is not counted.
    if let Some(generation) = object.int_at(&["metadata", "generation"]) {
        object.set(&["metadata", "generation"], (generation - 1).max(1));
    }
    let now = object.str_at(&["metadata", "deletionTimestamp"]).to_owned();
    drop(object.remove(&["metadata", "deletionGracePeriodSeconds"]));
    let condition = [
        "Terminating",
        "True",
        "InstanceDeletionPending",
        "CustomResourceDefinition marked for deletion; CustomResource deletion will begin soon",
    ];
    set_condition(object, condition, &now);
}

/// Says in the status of a deleted definition that the objects of its kind are being deleted. Returns
/// whether that is news; it is none if nothing waits for these objects.
pub fn begin_cleanup(object: &mut Value, now: &str) -> bool {
    let [kind, status, reason, message] = [
        "Terminating",
        "True",
        "InstanceDeletionInProgress",
        "CustomResource deletion is in progress",
    ];
    let waits = object.items_at(&["metadata", "finalizers"]).iter();
    let waits = waits.filter_map(Value::as_str).any(|name| name == CLEANUP);
    let mut conditions = object.items_at(&["status", "conditions"]).iter();
    let is_said = conditions.any(|known| {
        let is_same = |field: &str, text: &str| known.str_at(&[field]) == text;
        is_same("type", kind) && is_same("status", status) && is_same("reason", reason)
    });
    if !waits || is_said {
        return false;
    }
    set_condition(object, [kind, status, reason, message], now);
    true
}

fn set_condition(object: &mut Value, [kind, status, reason, message]: [&str; 4], now: &str) {
    let mut conditions = object.items_at(&["status", "conditions"]).to_vec();
    let known = conditions
        .iter_mut()
        .find(|known| known.str_at(&["type"]) == kind);
    match known {
        None => conditions.push(json!({
            "type": kind,
            "status": status,
            "lastTransitionTime": now,
            "reason": reason,
            "message": message
        })),
        // It may have members that others write, such as the generation that they have seen.
        Some(known) => {
            let is_news = known.str_at(&["status"]) != status;
            if is_news || known.str_at(&["lastTransitionTime"]).is_empty() {
                known.set(&["lastTransitionTime"], now);
            }
            for (field, text) in [("status", status), ("reason", reason), ("message", message)] {
                known.set(&[field], text);
            }
        }
    }
    object.set(&["status", "conditions"], conditions);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_condition_keeps_what_others_have_written_into_it() {
        let mut object = json!({"status": {"conditions": [
            {"type": "A", "status": "True", "lastTransitionTime": "then", "observedGeneration": 7i64},
            {"type": "B", "status": "True"}
        ]}});
        for (kind, status) in [("A", "True"), ("B", "True"), ("C", "False")] {
            set_condition(&mut object, [kind, status, "Why", "said"], "now");
        }
        let wanted = json!([
            {"type": "A", "status": "True", "lastTransitionTime": "then", "observedGeneration": 7i64,
             "reason": "Why", "message": "said"},
            {"type": "B", "status": "True", "lastTransitionTime": "now", "reason": "Why", "message": "said"},
            {"type": "C", "status": "False", "lastTransitionTime": "now", "reason": "Why", "message": "said"}
        ]);
        assert_eq!(object["status"]["conditions"], wanted);
        set_condition(&mut object, ["A", "False", "Why", "said"], "now");
        let time = object["status"]["conditions"][0].str_at(&["lastTransitionTime"]);
        assert_eq!(time, "now");
    }
}
