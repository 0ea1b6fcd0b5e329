//! What a create, an update or a patch does to the entries.

use std::sync::LazyLock;

use polyplane_apimachinery::value::{Str, Value};

use super::cap::UPDATES_MAX;
use super::identity::{Identity, Operation};
use super::{Entries, Writer};
use crate::conversion::{Answers, Step, Versions};
use crate::element::PathElement;
use crate::managers::{Managers, VersionedSet};
use crate::set::FieldSet;
use crate::update::{UpdateError, Write, update};

/// The identity of who writes until it is known whether the write changes fields.
const SELF: &str = "current-operation";
/// The name of who writes without one.
pub(super) const UNKNOWN: &str = "unknown";

/// The fields that the server decides and nobody owns.
pub(super) static UNOWNED: LazyLock<FieldSet> = LazyLock::new(|| {
    const ROOT: [&str; 3] = ["apiVersion", "kind", "metadata"];
    const META: [&str; 9] = [
        "name",
        "namespace",
        "creationTimestamp",
        "selfLink",
        "uid",
        "clusterName",
        "generation",
        "managedFields",
        "resourceVersion",
    ];
    let mut set = FieldSet::EMPTY;
    for name in ROOT {
        set.insert(&[PathElement::field(name)]);
    }
    for name in META {
        set.insert(&[PathElement::field("metadata"), PathElement::field(name)]);
    }
    set
});

impl Writer<'_> {
    pub(super) fn identity(&self, operation: Operation, version: &str) -> Str {
        let identity = Identity {
            manager: if self.name.is_empty() {
                UNKNOWN
            } else {
                self.name
            },
            operation,
            version,
            subresource: self.subresource,
        };
        identity.to_text()
    }
}

/// Takes the fields that nobody owns from a manager.
pub(super) fn strip(managers: &mut Managers, identity: &str) {
    let Some(owned) = managers.get(identity) else {
        return;
    };
    if owned.set.intersects(&UNOWNED) {
        let stripped = VersionedSet {
            set: owned.set.difference(&UNOWNED),
            ..owned.clone()
        };
        managers.insert(identity, stripped);
    }
}

impl Entries {
    /// Brings the entries up to date with a write that stores `new` instead of `live`, both in
    /// `version`. A step that needs conversions changes nothing.
    ///
    /// # Errors
    /// Returns an error if the objects do not fit the schema.
    pub fn update<'s, V: Versions<'s>>(
        &mut self,
        versions: &V,
        version: &str,
        writer: Writer<'_>,
        (live, new): (&Value, &Value),
        answers: &Answers,
    ) -> Result<Step<()>, UpdateError> {
        let write = Write {
            versions,
            version,
            manager: SELF,
            live,
            managers: &self.managers,
        };
        let mut managers = match update(write, new, answers)? {
            Step::Done(managers) => managers,
            Step::Need(needs) => return Ok(Step::Need(needs)),
        };
        strip(&mut managers, SELF);
        let taken = managers.remove(SELF);
        self.managers = managers;
        if let Some(mut taken) = taken {
            let identity = writer.identity(Operation::Update, version);
            if let Some(previous) = self.managers.get(&identity) {
                taken.set = match taken.set.is_subset(&previous.set) {
                    // The same set in memory is not written again.
                    true => previous.set.clone(),
                    false => taken.set.union(&previous.set),
                };
            }
            self.managers.insert(identity.clone(), taken);
            self.set_time(&identity, Some(writer.now.into()));
        }
        self.cap(UPDATES_MAX);
        Ok(Step::Done(()))
    }
}
