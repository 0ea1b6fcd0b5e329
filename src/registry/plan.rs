//! A write as a plan of stages, the same for every verb.
//!
//! [`change`] and [`deletion`] read top to bottom in the order in which a write is prepared:
//! authorize → decode → default, prune → merge, field management → mutating admission → default
//! again → prepare → validate → validating admission, quota → stored bytes → claims. A verb only
//! defines how the new object is made from the request and the present one ([`ObjectChange`],
//! [`ObjectDeletion`]). Each stage accepts a value that only the stage before it can create, so
//! none can be left out or swapped.
//!
//! A plan runs against one cut, without waiting. A stage that needs the reply of a webhook, a
//! converter or an authorizer takes it from [`CallOuts`]; if there is no reply yet, the run ends
//! with [`Interrupted::NeedsReplies`]. The driver ([`crate::write`]) then returns its seat and its
//! queue, makes the call, and runs the plan again from the newest state. Replies are kept by what
//! was sent, so the second run calls again only if what it would send has changed.

mod admission;
mod call_outs;
mod defaulted;
pub(crate) mod fields;
pub mod object;
pub mod prepare;
mod run;
mod stages;

pub use admission::{
    Admission, AdmissionChain, Attributes, Interest, Measured, Mutated, Operation, Options,
};
pub(crate) use admission::{admit_post, admit_sent};
pub use call_outs::{CallOuts, Interrupted};
pub use defaulted::{Decoded, Defaulted, PathName, default};
pub use fields::Ownership;
pub use run::{Run, Suffix};
pub use stages::{ObjectFate, Present, Rules, Target};

pub(crate) use call_outs::call_out;
pub(crate) use run::PlanState;

use crate::kinds::table::Resource;
use crate::request::body::Expected;
use crate::request::call::Call;
use crate::request::options::{DeleteOptions, WriteOptions};
use crate::strategy::Allocation;
use crate::write::PlannedWrite;
use object::VersionPrecondition;
use polyplane_apimachinery::status::ApiError;
use polyplane_apimachinery::{Str, Value};
use polyplane_plane::Key;
use std::borrow::Cow;

/// The request of a change: the parts of it that every verb reads in the same way.
pub struct ChangeRequest<'a> {
    /// The request with its plane and its kind.
    pub call: &'a Call<'a>,
    /// The name of the object; empty if it is to be generated.
    pub name: Str,
    /// Returns the options of the write.
    pub options: WriteOptions,
}

/// The part of a verb in the plan of a new or changed object.
pub trait ObjectChange: Send {
    /// Returns the request that the change is made for.
    fn request(&self) -> &ChangeRequest<'_>;

    /// Returns the object's key. A write that failed because another write came first waits in the
    /// queue of this key.
    fn key(&self) -> Key {
        let request = self.request();
        request.call.key(&request.name)
    }

    /// Returns the kind that the client sends and that admission sees: the kind of the row, unless
    /// it is a subresource with a kind of its own.
    fn subject(&self) -> Expected<'_> {
        Expected::of(self.row())
    }

    /// Returns the row that the object is stored under.
    fn row(&self) -> &Resource {
        self.request().call.row
    }

    /// Returns the rules that prepare and validate the object.
    fn rules(&self) -> Rules<'_>;

    /// Returns how the version that the client names is compared with the present one.
    fn version_precondition(&self) -> VersionPrecondition {
        VersionPrecondition::Any
    }

    /// Returns who brings the owners of the object's fields up to date.
    fn ownership(&self) -> Ownership {
        Ownership::OfChanges
    }

    /// Creates the wanted object from the request and the present object.
    ///
    /// # Errors
    /// See [`Interrupted`].
    fn propose(&mut self, run: &mut Run<'_>) -> Result<(Defaulted, Target), Interrupted>;

    /// Applies the defaults of the subject and checks it against the path. Called after decoding,
    /// and again if admission has changed the subject.
    ///
    /// # Errors
    /// Returns 400 if the subject contradicts the path.
    fn default(&self, call: &Call<'_>, decoded: Decoded) -> Result<Defaulted, ApiError>;

    /// Creates the object, in the version that objects are prepared in, from the admitted subject.
    ///
    /// # Errors
    /// See [`Self::propose`].
    fn apply(
        &mut self,
        run: &mut Run<'_>,
        subject: Value,
        target: &Target,
    ) -> Result<Value, Interrupted> {
        let _ = target;
        Ok(run.call.to_prepared(subject))
    }

    /// Returns the operation on a present object, and that object as mutating admission sees it: in
    /// the version of the request.
    fn present_subject<'v>(
        &self,
        run: &Run<'_>,
        present: &'v Present,
    ) -> (Operation, Option<Cow<'v, Value>>) {
        (Operation::Update, Some(run.call.as_served(present.tree())))
    }

    /// Returns the new object as validating admission sees it.
    fn shown<'v>(&'v self, object: &'v Value) -> Cow<'v, Value> {
        Cow::Borrowed(object)
    }

    /// Returns the operation on a present object, and that object as validating admission sees it.
    fn shown_present<'v>(&'v self, present: &'v Present) -> (Operation, Option<Cow<'v, Value>>) {
        (Operation::Update, Some(Cow::Borrowed(present.tree())))
    }
}

/// Prepares the write of a new or changed object.
///
/// # Errors
/// See [`Interrupted`].
pub fn change<C: ObjectChange>(
    run: &mut Run<'_>,
    change: &mut C,
) -> Result<PlannedWrite, Interrupted> {
    run.check_granted()?;
    run.persistence = change.request().options.persistence;
    let (mut defaulted, target) = change.propose(run)?;
    run.refusal = defaulted.take_refusal();
    let managed = fields::manage(run, change, defaulted, &target)?;
    let admitted = admission::mutate(run, change, managed, &target)?;
    let prepared = stages::prepare(run, change, admitted, target)?;
    let valid = stages::validate(run, change, prepared)?;
    let allowed = admission::validate(run, change, valid)?;
    stages::store(run, change.row(), allowed)
}

/// The part of a verb in the plan of a deletion.
pub trait ObjectDeletion: Send {
    /// Returns the object's key. A write that failed because another write came first waits in the
    /// queue of this key.
    fn key(&self) -> Key;

    /// Returns the options of the deletion.
    ///
    /// # Errors
    /// Returns 400 or 422 if they cannot be read.
    fn options(&self) -> Result<&DeleteOptions, ApiError>;

    /// Returns the object, if it exists and satisfies the client's preconditions.
    ///
    /// # Errors
    /// See [`Interrupted`].
    fn find(&mut self, run: &mut Run<'_>) -> Result<Present, Interrupted>;

    /// Returns the kind that admission sees.
    fn kind(&self) -> Expected<'_>;

    /// Returns the object that the client posts instead of a DELETE, which is an eviction.
    fn subject(&self) -> Option<&Value> {
        None
    }

    /// Returns further writes for the same commit. Called once the object is marked or removed.
    fn along(&mut self) -> Allocation {
        Allocation::default()
    }

    /// Removes the object, or marks it as being deleted.
    ///
    /// # Errors
    /// See [`Self::options`].
    fn mark(&mut self, run: &Run<'_>, present: &Present) -> Result<ObjectFate, ApiError>;
}

/// Prepares a deletion.
///
/// # Errors
/// See [`Interrupted`].
pub fn deletion<D: ObjectDeletion>(
    run: &mut Run<'_>,
    deletion: &mut D,
) -> Result<PlannedWrite, Interrupted> {
    run.check_granted()?;
    if let Ok(options) = deletion.options() {
        run.persistence = options.persistence;
    }
    let present = deletion.find(run)?;
    let admitted = admission::mutate_deletion(run, deletion, present)?;
    let valid = stages::mark(run, deletion, admitted)?;
    let allowed = admission::validate_deletion(run, deletion, valid)?;
    stages::store(run, run.call.row, allowed)
}
