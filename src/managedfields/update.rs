//! Who owns what after a write.

use std::collections::BTreeMap;

use polyplane_apimachinery::value::{Str, Value};

use crate::conversion::{
    Answers, Converter, Need, Object, Step, Subject, Tree, Unanswered, Unfit, Versions,
};
use crate::fault::Faults;
use crate::managers::{Conflict, Managers, VersionedSet};
use crate::set::FieldSet;
use crate::walk::compare::compare;
use crate::walk::reconcile::reconcile;
use crate::walk::validate::{Duplicates, validate};

/// A write to an object.
pub struct Write<'a, V> {
    /// The versions of the kind.
    pub versions: &'a V,
    /// The version of the request, of the live object and of the written one.
    pub version: &'a str,
    /// The identity of who writes.
    pub manager: &'a str,
    /// The stored object; `null` or an empty object if there is none.
    pub live: &'a Value,
    /// The managers of the stored object.
    pub managers: &'a Managers,
}

impl<V> Clone for Write<'_, V> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<V> Copy for Write<'_, V> {}

/// The reason why a write has no owners.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum UpdateError {
    /// An object does not fit its schema.
    #[error("failed to compare objects: {0}")]
    Compare(Faults),
    /// The version of the request does not exist.
    #[error("no version {0}")]
    Version(Str),
    /// Fields are owned in a version that does not exist.
    #[error(transparent)]
    UnknownVersion(#[from] UnknownVersion),
}

/// A version to which upstream's converter of custom kinds cannot convert, with its text.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("request to convert CR to an invalid group/version: {0}")]
pub struct UnknownVersion(pub Str);

/// Returns the managers after a create, an update or a patch that stores `new`. Whoever writes owns
/// what the write changes, and nobody owns what it removes.
///
/// # Errors
/// Returns an error if the objects do not fit the schema. The caller then keeps the managers of the
/// live object, as upstream does.
pub fn update<'s, V: Versions<'s>>(
    write: Write<'_, V>,
    new: &Value,
    answers: &Answers,
) -> Result<Step<Managers>, UpdateError> {
    check_versions(write.versions, write.managers)?;
    let mut managers = write.managers.clone();
    if write.live == new {
        managers.retain(|_, owned| write.versions.position(&owned.version).is_some());
        return Ok(Step::Done(managers));
    }
    for object in [new, write.live] {
        let position = write.versions.position(write.version);
        let position = position.filter(|_| write.versions.may_not_fit(write.version, object));
        let checked = position.map(|at| validate(at, object, Duplicates::Allowed));
        checked.transpose().map_err(UpdateError::Compare)?;
    }
    adapt(write.versions, &mut managers);
    let mut converter = Converter::new(write.versions, answers);
    let old = write.object();
    let new = Object {
        subject: Subject::New,
        tree: Tree::Borrowed(new),
        version: write.version.into(),
    };
    let outcome = settle(&mut converter, &old, &new, write, &mut managers);
    let (changes, _) = match outcome {
        Ok(done) => done,
        Err(Stop::Need(needs)) => return Ok(Step::Need(needs)),
        Err(Stop::Faults(faults)) => return Err(UpdateError::Compare(faults)),
        Err(Stop::Unfit(unfit)) => return Err(UpdateError::Compare(unfit.faults)),
        Err(Stop::Version(version)) => return Err(UpdateError::Version(version)),
    };
    let own = managers.get(write.manager);
    let own = own.map(|own| own.set.difference(&changes.removed));
    let mut set = own.unwrap_or_default().union(&changes.set);
    if let Some(filter) = write.versions.filter(write.version) {
        set = filter.apply(&set);
    }
    let owned = VersionedSet {
        set,
        version: write.version.into(),
        is_applied: false,
    };
    managers.insert(write.manager, owned);
    Ok(Step::Done(managers))
}

impl<'a, V> Write<'a, V> {
    /// Returns the live object under its name for conversions.
    pub(crate) fn object(&self) -> Object<'a> {
        Object {
            subject: Subject::Live,
            tree: Tree::Borrowed(self.live),
            version: self.version.into(),
        }
    }
}

/// Checks that all versions exist in which fields are owned, unless entries in others are dropped.
pub(crate) fn check_versions<'s, V: Versions<'s>>(
    versions: &V,
    managers: &Managers,
) -> Result<(), UnknownVersion> {
    if versions.drops_unknown() {
        return Ok(());
    }
    let mut named = managers.iter().map(|(_, owned)| &owned.version);
    match named.find(|version| versions.position(version).is_none()) {
        Some(version) => Err(UnknownVersion(version.clone())),
        None => Ok(()),
    }
}

/// Brings sets in line with the schemas of now, and drops those of versions that are gone.
pub(crate) fn adapt<'s, V: Versions<'s>>(versions: &V, managers: &mut Managers) {
    managers.retain(|_, owned| {
        let Some(position) = versions.position(&owned.version) else {
            return false;
        };
        if let Some(set) = reconcile(position, &owned.set) {
            owned.set = set;
        }
        true
    });
}

/// The reason why a run ends early.
pub(crate) enum Stop {
    Need(Vec<Need>),
    Faults(Faults),
    Unfit(Unfit),
    Version(Str),
}

impl From<Unanswered> for Stop {
    fn from(unanswered: Unanswered) -> Self {
        match unanswered {
            Unanswered::Needs(needs) => Self::Need(needs),
            Unanswered::Unfit(unfit) => Self::Unfit(unfit),
        }
    }
}

/// Takes from all managers but the one who writes what the write changes or removes. Returns the
/// changes in the request's version, and the conflicts: what the others owned and lost to a change.
pub(crate) fn settle<'s, V: Versions<'s>>(
    converter: &mut Converter<'_, V>,
    old: &Object<'_>,
    new: &Object<'_>,
    write: Write<'_, V>,
    managers: &mut Managers,
) -> Result<(Changes, Vec<Conflict>), Stop> {
    let mut changes = compare_all(converter, old, new, write, managers)?;
    let mut conflicts = Vec::new();
    managers.retain(|manager, owned| {
        if manager == write.manager {
            return true;
        }
        let Some(Some(changes)) = changes.get(&owned.version) else {
            return false;
        };
        let lost = owned.set.intersection(&changes.set);
        if !lost.is_empty() {
            owned.set = owned.set.difference(&lost);
            conflicts.push(Conflict {
                manager: manager.into(),
                fields: lost,
            });
        }
        if owned.set.intersects(&changes.removed) {
            owned.set = owned.set.difference(&changes.removed);
        }
        true
    });
    let own = changes.remove(write.version).flatten();
    let own = own.ok_or_else(|| Stop::Version(write.version.into()))?;
    Ok((own, conflicts))
}

/// The differences between the objects in one version.
pub(crate) struct Changes {
    /// The fields that are new or have another value.
    pub(crate) set: FieldSet,
    /// The fields that are gone.
    pub(crate) removed: FieldSet,
}

/// The changes in each version that matters; `None` if the version is gone.
type ChangesByVersion = BTreeMap<Str, Option<Changes>>;

fn compare_all<'s, V: Versions<'s>>(
    converter: &mut Converter<'_, V>,
    old: &Object<'_>,
    new: &Object<'_>,
    write: Write<'_, V>,
    managers: &Managers,
) -> Result<ChangesByVersion, Stop> {
    let others = managers
        .iter()
        .filter(|(manager, _)| *manager != write.manager);
    let others = others.map(|(_, owned)| owned.version.as_str());
    let mut pairs = BTreeMap::new();
    for version in std::iter::once(write.version).chain(others) {
        if !pairs.contains_key(version) {
            let pair = (
                converter.convert(old, version),
                converter.convert(new, version),
            );
            pairs.insert(Str::from(version), pair);
        }
    }
    converter.check()?;
    let mut changes = BTreeMap::new();
    for (version, pair) in pairs {
        let position = write.versions.position(&version);
        let compared = match (pair, position) {
            ((Some(old), Some(new)), Some(position)) => {
                let changes = compare(position, &old, &new).map_err(Stop::Faults)?;
                let changes = changes.filtered(write.versions.filter(&version));
                Some(Changes {
                    set: changes.modified.union(&changes.added),
                    removed: changes.removed,
                })
            }
            _ => None,
        };
        changes.insert(version, compared);
    }
    Ok(changes)
}
