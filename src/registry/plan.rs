//! A write as a plan of stages, the same for every verb.
//!
//! [`change`] and [`deletion`] read top to bottom in the order in which a write is worked out:
//! authorize → decode → default, prune → merge, field management → mutating admission → default again →
//! prepare → validate → validating admission, quota → stored bytes → claims. A verb only says how
//! the new object is made from the request and the present one ([`ObjectChange`], [`ObjectDeletion`]). Each
//! stage takes a value that only the stage before can make, so none can be left out or swapped.
//!
//! A plan is worked out against one cut, without waiting. A stage that needs an answer of somebody
//! else asks [`CallOuts`] for it; if it is not there, the run ends with [`Interrupted::NeedsReplies`]. The driver
//! ([`crate::write`]) then gives back what others need, gets the answer, and has the plan worked
//! out again from the newest state. Equal questions have equal answers, so a second run calls out
//! only if what it would send has changed.

mod admission;
mod call_outs;
mod fields;
pub mod object;
pub mod prepare;
mod run;
mod stages;

pub use admission::{Admission, Attributes, Mutated, Operation, Options};
pub use call_outs::{CallOuts, Interrupted};
pub use run::Run;
pub use stages::{Decoded, Defaulted, ObjectFate, PathName, Present, Rules, Target, default};

pub(crate) use call_outs::call_out;
pub(crate) use run::PlanState;

use crate::kinds::table::Resource;
use crate::request::body::Expected;
use crate::request::call::Call;
use crate::request::options::{DeleteOptions, WriteOptions};
use crate::strategy::Allocation;
use crate::write::PlannedWrite;
use object::VersionPrecondition;
use polyplane_apimachinery::Value;
use polyplane_apimachinery::status::ApiError;
use polyplane_plane::Key;
use std::borrow::Cow;

/// What a verb adds to the plan of a new or changed object.
pub trait ObjectChange: Send {
    /// The object's key, in whose turn the write is prepared once it has been beaten.
    fn key(&self) -> Key;

    /// What the client said beside the object.
    fn options(&self) -> &WriteOptions;

    /// The kind that the client sends and that admission looks at; that of the row, unless it is a
    /// subresource of its own kind.
    fn subject(&self) -> Expected<'_> {
        Expected::of(self.row())
    }

    /// The row that the object is stored under.
    fn row(&self) -> &Resource;

    /// Whose rules prepare and validate the object.
    fn rules(&self) -> Rules<'_>;

    /// What the client has to say of the version it replaces.
    fn version_precondition(&self) -> VersionPrecondition {
        VersionPrecondition::Any
    }

    /// What the client wants to have, made from the request and the present object.
    ///
    /// # Errors
    /// What the client is told, or what has to be known first.
    fn propose(&mut self, run: &mut Run<'_>) -> Result<(Defaulted, Target), Interrupted>;

    /// Applies the defaults of the subject and checks it against the path: after decoding, and
    /// again if admission has changed it.
    ///
    /// # Errors
    /// 400 if it contradicts the path.
    fn default(&self, call: &Call<'_>, decoded: Decoded) -> Result<Defaulted, ApiError>;

    /// Makes the object, in the version that it is prepared in, of the admitted subject.
    ///
    /// # Errors
    /// As [`Self::propose`].
    fn apply(
        &mut self,
        run: &mut Run<'_>,
        subject: Value,
        target: &Target,
    ) -> Result<Value, Interrupted> {
        let _ = target;
        Ok(run.call.to_prepared(subject))
    }

    /// What is done to a present object, and that object as mutating admission sees it: in the
    /// version of the request.
    fn present_subject(&self, run: &Run<'_>, present: &Present) -> (Operation, Option<Value>) {
        let old = run.call.to_served(present.tree().clone());
        (Operation::Update, Some(old))
    }

    /// The new object as validating admission sees it.
    fn shown<'v>(&'v self, object: &'v Value) -> Cow<'v, Value> {
        Cow::Borrowed(object)
    }

    /// What is done to a present object, and that object as validating admission sees it.
    fn shown_present<'v>(&'v self, present: &'v Present) -> (Operation, Option<Cow<'v, Value>>) {
        (Operation::Update, Some(Cow::Borrowed(present.tree())))
    }
}

/// Works out a new or changed object.
///
/// # Errors
/// What the client is told, or what has to be known first.
pub fn change<C: ObjectChange>(
    run: &mut Run<'_>,
    change: &mut C,
) -> Result<PlannedWrite, Interrupted> {
    run.check_granted()?;
    let (defaulted, target) = change.propose(run)?;
    let managed = fields::manage(run, defaulted, &target)?;
    let admitted = admission::mutate(run, change, managed, &target)?;
    let prepared = stages::prepare(run, change, admitted, target)?;
    let valid = stages::validate(run, change, prepared)?;
    let allowed = admission::validate(run, change, valid)?;
    stages::store(run, change.row(), allowed)
}

/// What a verb adds to the plan of a deletion.
pub trait ObjectDeletion: Send {
    /// The object's key, in whose turn the write is prepared once it has been beaten.
    fn key(&self) -> Key;

    /// What the client said.
    ///
    /// # Errors
    /// 400 or 422 if it cannot be read.
    fn options(&self) -> Result<&DeleteOptions, ApiError>;

    /// The object, if it is there and the client may mean it.
    ///
    /// # Errors
    /// What the client is told, or what has to be known first.
    fn find(&mut self, run: &mut Run<'_>) -> Result<Present, Interrupted>;

    /// The kind that admission looks at.
    fn kind(&self) -> Expected<'_>;

    /// What the client posts instead of a DELETE: an eviction.
    fn subject(&self) -> Option<&Value> {
        None
    }

    /// What is stored in the same commit, once the object is marked or gone.
    fn along(&mut self) -> Allocation {
        Allocation::default()
    }

    /// What becomes of the object: it goes, or stays for a while with a mark.
    ///
    /// # Errors
    /// As [`Self::options`].
    fn mark(&mut self, run: &Run<'_>, present: &Present) -> Result<ObjectFate, ApiError>;
}

/// Works out a deletion.
///
/// # Errors
/// What the client is told, or what has to be known first.
pub fn deletion<D: ObjectDeletion>(
    run: &mut Run<'_>,
    deletion: &mut D,
) -> Result<PlannedWrite, Interrupted> {
    run.check_granted()?;
    let present = deletion.find(run)?;
    let admitted = admission::mutate_deletion(run, deletion, present)?;
    let valid = stages::mark(run, deletion, admitted)?;
    let allowed = admission::validate_deletion(run, deletion, valid)?;
    stages::store(run, run.call.row, allowed)
}
