//! Server-side apply: merges what a manager wants into the live object, and removes what it wanted
//! before and gave up.

use std::collections::BTreeMap;
use std::sync::Arc;

use polyplane_apimachinery::shape::Shape;
use polyplane_apimachinery::value::{Str, Value};

use crate::conversion::{Answers, Converter, Object, Step, Subject, Tree, Unfit, Versions};
use crate::fault::Faults;
use crate::managers::{Conflict, Conflicts, Managers, VersionedSet};
use crate::position::Position;
use crate::scalar;
use crate::set::FieldSet;
use crate::update::{Stop, UnknownVersion, Write, adapt, check_versions, settle};
use crate::walk::field_set::field_set;
use crate::walk::merge::merge;
use crate::walk::named::with_named_fields;
use crate::walk::remove::remove;
use crate::walk::validate::{Duplicates, validate};

/// The treatment of fields that other managers own with another value.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Force {
    /// They are conflicts.
    No,
    /// They are taken.
    Yes,
}

/// The result of applying.
#[derive(Clone, Debug)]
pub struct Applied {
    /// The object to be stored; `None` if it is the live one.
    pub object: Option<Value>,
    /// The managers of the object.
    pub managers: Managers,
}

/// The reason why something cannot be applied.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ApplyError {
    /// Other managers own fields with other values.
    #[error("{0}")]
    Conflicts(Conflicts),
    /// The applied object does not fit its schema.
    #[error("{0}")]
    Object(Faults),
    /// The live object does not fit its schema.
    #[error("{0}")]
    Live(Faults),
    /// The live object does not fit its schema, so that nobody can own what it had before.
    #[error("{0}")]
    Existing(Faults),
    /// The applied object cannot be merged into the live one.
    #[error("failed to merge config: {0}")]
    Merge(Faults),
    /// An object does not fit its schema in another version.
    #[error("failed to compare objects: {0}")]
    Compare(Faults),
    /// An object has members that it may not have in the version of another manager.
    #[error("{0}")]
    Convert(String),
    /// The version of the request does not exist.
    #[error("no version {0}")]
    Version(Str),
    /// Fields are owned in a version that does not exist.
    #[error(transparent)]
    UnknownVersion(#[from] UnknownVersion),
}

/// Applies an object.
///
/// Conversions are asked for in at most four rounds: those of the live and the merged object; those
/// of what is left after removing; where that removed what others own in another version, those of
/// what was put back; those of the result.
///
/// # Errors
/// See [`ApplyError`].
pub fn apply<'s, V: Versions<'s>>(
    write: Write<'_, V>,
    wanted: &Value,
    force: Force,
    answers: &Answers,
) -> Result<Step<Applied>, ApplyError> {
    let position = write.versions.position(write.version);
    let position = position.ok_or_else(|| ApplyError::Version(write.version.into()))?;
    validate(position, wanted, Duplicates::Refused).map_err(ApplyError::Object)?;
    if write.versions.may_not_fit(write.version, write.live) {
        validate(position, write.live, Duplicates::Allowed).map_err(ApplyError::Live)?;
    }
    check_versions(write.versions, write.managers)?;
    let mut managers = write.managers.clone();
    adapt(write.versions, &mut managers);
    let merged = merge(position, write.live, wanted).map_err(ApplyError::Merge)?;
    let mut set = field_set(position, wanted);
    if let Some(filter) = write.versions.filter(write.version) {
        set = filter.apply(&set);
    }
    let last = managers.remove(write.manager);
    let owned = VersionedSet {
        set,
        version: write.version.into(),
        is_applied: true,
    };
    let mut run = Run {
        write,
        converter: Converter::new(write.versions, answers),
        owned,
        managers,
    };
    let outcome = run.finish(&merged, last.as_ref());
    let (object, conflicts) = match outcome {
        Ok(done) => done,
        Err(Stop::Need(needs)) => return Ok(Step::Need(needs)),
        Err(Stop::Faults(faults)) => return Err(ApplyError::Compare(faults)),
        Err(Stop::Unfit(unfit)) => {
            let last = last.as_ref().filter(|last| !last.set.is_empty());
            let last = last.map(|last| last.version.as_str());
            let text = unfit_text(&unfit, write.version, last);
            return Err(ApplyError::Convert(text));
        }
        Err(Stop::Version(version)) => return Err(ApplyError::Version(version)),
    };
    if force == Force::No && !conflicts.is_empty() {
        return Err(ApplyError::Conflicts(Conflicts(conflicts)));
    }
    let mut managers = run.managers;
    managers.insert(write.manager, run.owned);
    Ok(Step::Done(Applied { object, managers }))
}

/// Returns upstream's text about an object that does not fit the version of another manager. `to` is the version of
/// the request, `last` the one that the manager applied before.
fn unfit_text(unfit: &Unfit, to: &str, last: Option<&str>) -> String {
    let Unfit {
        subject,
        version,
        faults,
    } = unfit;
    let restoring = "failed to prune fields: failed add back owned items: failed to convert";
    match (subject, last) {
        (Subject::Live, _) => faults.to_string(),
        (Subject::New, Some(last)) if last == version => format!(
            "failed to prune fields: failed to convert merged object to last applied version: {faults}"
        ),
        (Subject::New, Some(_)) => {
            format!("{restoring} merged object at version {version}: {faults}")
        }
        (Subject::Result, Some(_)) if version == to => format!("failed to prune fields: {faults}"),
        (Subject::New | Subject::Result, _) => format!("failed to convert new object: {faults}"),
        (Subject::Pruned | Subject::Restored(_), _) => {
            format!("{restoring} pruned object at version {version}: {faults}")
        }
    }
}

/// One run of a step that may end early, to be run again with more answers.
struct Run<'a, V> {
    write: Write<'a, V>,
    converter: Converter<'a, V>,
    /// What the manager wants now.
    owned: VersionedSet,
    /// The other managers.
    managers: Managers,
}

impl<'a, 's, V: Versions<'s>> Run<'a, V> {
    /// Returns the object, if it is not the live one, and the conflicts.
    fn finish(
        &mut self,
        merged: &Value,
        last: Option<&VersionedSet>,
    ) -> Result<(Option<Value>, Vec<Conflict>), Stop> {
        let live = self.write.object();
        let merged = Object {
            subject: Subject::New,
            tree: Tree::Borrowed(merged),
            version: self.write.version.into(),
        };
        self.convert_first(&live, &merged, last)?;
        let pruned = match last {
            Some(last) if !last.set.is_empty() && !self.keeps(last) => self.prune(&merged, last)?,
            _ => None,
        };
        let result = match pruned {
            Some(pruned) => self.converted_back(pruned)?,
            None => merged,
        };
        let conflicts = settle(
            &mut self.converter,
            &live,
            &result,
            self.write,
            &mut self.managers,
        )?
        .1;
        let object = &*result.tree;
        let is_changed = !scalar::equal(self.write.live, object);
        Ok((is_changed.then(|| object.clone()), conflicts))
    }

    /// Returns a pruned object in the version of the request. Others see it only then, because a conversion drops
    /// maps and lists that became empty.
    fn converted_back<'o>(&mut self, pruned: Object<'o>) -> Result<Object<'o>, Stop> {
        let version = self.write.version;
        let tree = self.converter.convert(&pruned, version);
        self.converter.check()?;
        Ok(Object {
            subject: pruned.subject,
            tree: tree.ok_or_else(|| Stop::Version(version.into()))?,
            version: version.into(),
        })
    }

    /// Asks at once for everything that will be needed in any case.
    fn convert_first(
        &mut self,
        live: &Object<'_>,
        merged: &Object<'_>,
        last: Option<&VersionedSet>,
    ) -> Result<(), Stop> {
        let versions: Vec<Str> = self
            .managers
            .iter()
            .map(|(_, owned)| owned)
            .chain(last)
            .map(|owned| owned.version.clone())
            .collect();
        for version in &versions {
            self.converter.convert(live, version);
            self.converter.convert(merged, version);
        }
        Ok(self.converter.check()?)
    }

    /// Returns true if the manager wants everything that it wanted before, so that nothing can be
    /// removed.
    fn keeps(&self, last: &VersionedSet) -> bool {
        last.version == self.owned.version && last.set.is_subset(&self.owned.set)
    }

    /// Returns the merged object without what the manager wanted before, does not want now, and
    /// nobody else owns; `None` if that is everything.
    fn prune(
        &mut self,
        merged: &Object<'_>,
        last: &VersionedSet,
    ) -> Result<Option<Object<'a>>, Stop> {
        let version = last.version.as_str();
        let (Some(whole), Some(at)) = (
            self.converter.convert(merged, version),
            self.write.versions.position(version),
        ) else {
            return Ok(None);
        };
        let given_up = with_named_fields(at, &last.set);
        let mut claims = self.claims();
        let mut pruned = (*whole).clone();
        remove(at, &mut pruned, &given_up);
        if let Some(claimed) = claims.remove(&last.version) {
            pruned = restored(at, &whole, &pruned, &claimed);
        }
        let left = self.left(merged, at, pruned, last, &claims)?;
        let all = with_named_fields(at, &field_set(at, &whole));
        let left = with_named_fields(at, &left);
        let gone = all.difference(&left).intersection(&given_up);
        if gone.is_empty() && last.version == self.owned.version {
            return Ok(None);
        }
        // A conversion there and back may change the object even if nothing is removed.
        let mut result = (*whole).clone();
        remove(at, &mut result, &gone);
        Ok(Some(Object {
            subject: Subject::Result,
            tree: Tree::Shared(Arc::new(result)),
            version: last.version.clone(),
        }))
    }

    /// Returns what all managers own, by version.
    fn claims(&self) -> BTreeMap<Str, FieldSet> {
        let mut claims: BTreeMap<Str, FieldSet> = BTreeMap::new();
        let all = self.managers.iter().map(|(_, owned)| owned);
        for owned in all.chain([&self.owned]) {
            let claimed = claims.entry(owned.version.clone()).or_default();
            *claimed = claimed.union(&owned.set);
        }
        claims
    }

    /// Returns the fields that are left of a pruned object, with those that are owned in other
    /// versions.
    fn left(
        &mut self,
        merged: &Object<'_>,
        at: Position<V::Shape>,
        pruned: Value,
        last: &VersionedSet,
        claims: &BTreeMap<Str, FieldSet>,
    ) -> Result<FieldSet, Stop> {
        let own = field_set(at, &pruned);
        let pruned = Object {
            subject: Subject::Pruned,
            tree: Tree::Shared(Arc::new(pruned)),
            version: last.version.clone(),
        };
        let mut others = Vec::new();
        for (version, claimed) in claims {
            let before = self.converter.convert(merged, version);
            let after = self.converter.convert(&pruned, version);
            let position = self.write.versions.position(version);
            if let (Some(before), Some(after), Some(position)) = (before, after, position) {
                others.push((version, restored(position, &before, &after, claimed)));
            }
        }
        self.converter.check()?;
        if others.is_empty() {
            return Ok(own);
        }
        // What does not come back from another version is not left.
        let mut back = Vec::new();
        for (version, with_claims) in others {
            let object = Object {
                subject: Subject::Restored(version.clone()),
                tree: Tree::Shared(Arc::new(with_claims)),
                version: version.clone(),
            };
            back.push(self.converter.convert(&object, &last.version));
        }
        self.converter.check()?;
        let sets = back.into_iter().flatten().map(|tree| field_set(at, &tree));
        Ok(sets.fold(FieldSet::default(), |left, set| left.union(&set)))
    }
}

/// Returns a pruned object with the fields that are claimed, as the whole object has them.
fn restored<'s, S: Shape<'s>>(
    at: Position<S>,
    whole: &Value,
    pruned: &Value,
    claimed: &FieldSet,
) -> Value {
    let named = |set: &FieldSet| with_named_fields(at, set);
    let all = named(&field_set(at, whole));
    let kept = named(&field_set(at, pruned)).union(&named(claimed));
    let mut object = whole.clone();
    remove(at, &mut object, &all.difference(&kept));
    object
}
