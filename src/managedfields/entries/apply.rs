//! What server-side apply does to the entries.

use polyplane_apimachinery::value::Value;

use super::identity::Operation;
use super::last_applied;
use super::update::strip;
use super::{Entries, Writer};
use crate::apply::{Applied, ApplyError, Force, apply};
use crate::conversion::{Answers, Step, Versions};
use crate::update::{UpdateError, Write};

/// The manager of what an object has when it is applied for the first time.
const BEFORE: &str = "before-first-apply";

/// An apply request.
pub struct Apply<'a, V> {
    /// The versions of the kind.
    pub versions: &'a V,
    /// The API version of the request and of all objects here.
    pub version: &'a str,
    /// The one who applies.
    pub writer: Writer<'a>,
    /// An object of the kind without content.
    pub empty: &'a Value,
    /// The stored object; the empty one if there is none.
    pub live: &'a Value,
    /// The object that the client applies.
    pub wanted: &'a Value,
    /// The treatment of conflicts.
    pub force: Force,
}

impl<V> Clone for Apply<'_, V> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<V> Copy for Apply<'_, V> {}

impl Entries {
    /// Applies an object. Returns the merged object; `None` if it is the live one. A step that needs
    /// conversions, and an error, leave the entries in a state that must not be used.
    ///
    /// # Errors
    /// See [`ApplyError`].
    pub fn apply<'s, V: Versions<'s>>(
        &mut self,
        request: Apply<'_, V>,
        answers: &Answers,
    ) -> Result<Step<Option<Value>>, ApplyError> {
        if self.is_empty() {
            self.begin(request, answers)?;
        }
        let result = self.apply_once(request, answers);
        let Err(ApplyError::Conflicts(conflicts)) = result else {
            return result;
        };
        match last_applied::left(&request, conflicts) {
            Some(left) => Err(ApplyError::Conflicts(left)),
            None => {
                let forced = Apply {
                    force: Force::Yes,
                    ..request
                };
                self.apply_once(forced, answers)
            }
        }
    }

    /// Says who owns what the object had before anything was applied.
    fn begin<'s, V: Versions<'s>>(
        &mut self,
        request: Apply<'_, V>,
        answers: &Answers,
    ) -> Result<(), ApplyError> {
        let writer = Writer {
            name: BEFORE,
            ..request.writer
        };
        let objects = (request.empty, request.live);
        match self.update(request.versions, request.version, writer, objects, answers) {
            // Items of a built-in object may lack their keys, and a custom one may have any content in a
            // status that nobody has checked.
            Err(UpdateError::Compare(faults)) => Err(ApplyError::Existing(faults)),
            // An object without managers is converted to no other version.
            Ok(Step::Done(()) | Step::Need(_)) => Ok(()),
            Err(UpdateError::Version(version)) => Err(ApplyError::Version(version)),
            Err(UpdateError::UnknownVersion(error)) => Err(error.into()),
        }
    }

    fn apply_once<'s, V: Versions<'s>>(
        &mut self,
        request: Apply<'_, V>,
        answers: &Answers,
    ) -> Result<Step<Option<Value>>, ApplyError> {
        let writer = request.writer;
        let identity = writer.identity(Operation::Apply, request.version);
        let write = Write {
            versions: request.versions,
            version: request.version,
            manager: &identity,
            live: request.live,
            managers: &self.managers,
        };
        let Applied {
            object,
            mut managers,
        } = match apply(write, request.wanted, request.force, answers)? {
            Step::Done(applied) => applied,
            Step::Need(needs) => return Ok(Step::Need(needs)),
        };
        strip(&mut managers, &identity);
        if let (Some(previous), Some(owned)) =
            (self.managers.get(&identity), managers.get(&identity))
            && previous.set == owned.set
        {
            // The same set in memory is not written again.
            let mut owned = owned.clone();
            owned.set = previous.set.clone();
            managers.insert(identity.clone(), owned);
        }
        self.managers = managers;
        if object.is_some() {
            self.set_time(&identity, Some(writer.now.into()));
        }
        Ok(Step::Done(object))
    }
}
