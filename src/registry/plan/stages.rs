//! The stages of a plan that need no calls: prepare, validate, and the stored bytes.

use super::admission::{Admitted, AdmittedDeletion, Allowed};
use super::call_outs::Interrupted;
use super::run::Run;
use super::{ObjectChange, ObjectDeletion};
use crate::kinds::conversion;
use crate::kinds::conversion::KindVersion;
use crate::kinds::table::Resource;
use crate::metadata;
use crate::plan::fields::{self, ManagedKind};
use crate::plan::object;
use crate::plan::prepare;
use crate::request::Verb;
use crate::request::options::{self, Persistence};
use crate::request::trees::Source;
use crate::strategy::{Allocation, Context};
use crate::write::{PlannedWrite, Unstored};
use polyplane_apimachinery::Value;
use polyplane_apimachinery::status::{ApiError, Reason};
use polyplane_apimachinery::value::Weight;
use polyplane_plane::{Claim, ObjectRef, Operation, Write};

/// The object that a write changes.
pub enum Target {
    /// An object that does not exist yet.
    New,
    /// An object that exists.
    Present(Present),
}

/// An object that exists, as one run has read it.
pub struct Present {
    object: ObjectRef,
    tree: Value,
    /// True if the object is stored in another version than it would be today, so that even a write
    /// that changes nothing stores the object again.
    is_stale: bool,
    /// The stored tree of a custom object that is shown in another form.
    stored: Option<Value>,
}

impl Present {
    /// Reads an object of the cut.
    ///
    /// # Errors
    /// Returns 500 if its bytes are damaged or cannot be converted, 429 if there is no memory for it, or
    /// requests a reply that is needed first.
    pub fn read(run: &mut Run<'_>, row: &Resource, object: ObjectRef) -> Result<Self, Interrupted> {
        let stored = run.call.stored_tree_of(&object.body())?;
        let weigh = || Weight::of(&stored);
        run.call
            .count_tree(Source::Stored, object.body_len(), weigh)?;
        // A record that is to be sealed anew is written even by a write that changes nothing.
        let is_stale = conversion::is_stale(row, &object)
            || run.call.tenant.plane.is_stale_at_rest(object.key());
        if let Some(custom) = &row.custom {
            if run.call.shows_as_stored(&object) {
                return Ok(Self {
                    object,
                    tree: stored,
                    is_stale,
                    stored: None,
                });
            }
            let tree = custom.shown(row, object.storage_version(), stored.clone())?;
            return Ok(Self {
                object,
                tree,
                is_stale,
                stored: Some(stored),
            });
        }
        let forms = (KindVersion::of(row, &object), KindVersion::prepared(row));
        let tree = run.convert(row, stored, forms)?;
        Ok(Self {
            object,
            tree,
            is_stale,
            stored: None,
        })
    }

    /// Returns the object.
    pub fn object(&self) -> &ObjectRef {
        &self.object
    }

    /// Returns the object's tree in the version that objects are prepared in, with
    /// `resourceVersion`, if it has one.
    pub fn tree(&self) -> &Value {
        &self.tree
    }
}

/// The rules that prepare and validate an object.
#[derive(Clone, Copy)]
pub enum Rules<'a> {
    /// The rules of the kind, for writes through this subresource; empty for the object itself.
    OfKind(&'a str),
    /// None: the verb has made the object exactly as it is to be stored.
    OfVerb,
}

/// The effect of a write on its object.
pub enum ObjectFate {
    /// This tree is stored.
    Stored(Value),
    /// The object is removed.
    Removed,
    /// The object stays as it is.
    Unchanged,
}

/// A write that has been prepared.
pub(super) struct Prepared(Planned);

/// A write that breaks no rule of its kind.
pub(super) struct Valid(Planned);

/// The effect of a write on its object, with the facts and further writes that belong to it.
pub(super) struct Planned {
    pub(super) target: Target,
    pub(super) next: ObjectFate,
    pub(super) persistence: Persistence,
    /// True if the object is removed once a change takes away the last reason that keeps it.
    goes_with_last_finalizer: bool,
    allocation: Allocation,
    pub(super) claims: Vec<Claim>,
}

impl Valid {
    pub(super) fn into_planned(self) -> Planned {
        self.0
    }
}

/// Turns the admitted subject into the object, and sets the fields that the server decides.
pub(super) fn prepare<C: ObjectChange>(
    run: &mut Run<'_>,
    change: &mut C,
    admitted: Admitted,
    target: Target,
) -> Result<Prepared, Interrupted> {
    let (subject, claims) = admitted.into_parts();
    let mut tree = change.apply(run, subject, &target)?;
    let row = change.row();
    let rules = change.rules();
    let allocation = match (&target, rules) {
        (_, Rules::OfVerb) => Allocation::default(),
        (Target::New, Rules::OfKind(through)) => prepare_new(run, row, through, &mut tree)?,
        (Target::Present(present), Rules::OfKind(through)) => {
            object::check_version(
                run.call,
                present.object(),
                &tree,
                change.version_precondition(),
            )?;
            prepare_present(run, row, through, present, &mut tree)?
        }
    };
    Ok(Prepared(Planned {
        target,
        next: ObjectFate::Stored(tree),
        persistence: change.request().options.persistence,
        goes_with_last_finalizer: matches!(rules, Rules::OfKind(_)),
        allocation,
        claims,
    }))
}

fn prepare_new(
    run: &mut Run<'_>,
    row: &Resource,
    through: &str,
    tree: &mut Value,
) -> Result<Allocation, Interrupted> {
    if run.call.request.verb != Verb::Create {
        object::check_new_version(tree)?;
    }
    let now = run.time();
    metadata::fill_system_fields(tree, run.uid(), &now);
    if let Some(name) = run.missing_name(row, tree) {
        tree.set(&["metadata", "name"], name);
    }
    let context = run.context(row, through);
    prepare::create(row, &context, tree);
    let mut allocation = match through {
        // As upstream: the next write of the object itself allocates what it needs.
        "status" => Allocation::default(),
        _ => row.strategy.allocate(&context, run.cut, tree, None)?,
    };
    run.canonical(row, tree)?;
    if let Some(manager) = row.strategy.server_manager() {
        let claims = settle(run, row, manager, tree)?;
        allocation.claims.extend(claims);
    }
    Ok(allocation)
}

/// Lets the kind write the status that upstream's controllers write, and makes the server its owner.
/// Returns the claims that the status rests on.
fn settle(
    run: &mut Run<'_>,
    row: &Resource,
    manager: &str,
    tree: &mut Value,
) -> Result<Vec<Claim>, Interrupted> {
    let before = tree.clone();
    let claims = row.strategy.settle(&run.context(row, ""), run.cut, tree);
    run.canonical(row, tree)?;
    if before["status"] != tree["status"] && !run.drops_owners() {
        let mut kind = ManagedKind::of(run.call, run.call.row, "status");
        fields::update(run, &mut kind, manager, Some(&before), tree)?;
    }
    Ok(claims)
}

fn prepare_present(
    run: &mut Run<'_>,
    row: &Resource,
    through: &str,
    present: &Present,
    tree: &mut Value,
) -> Result<Allocation, Interrupted> {
    let context = run.context(row, through);
    let old = present.tree();
    let generation = run.generation_of(row, &context, tree, old)?;
    prepare::update(row, &context, tree, old);
    if let Some(generation) = generation {
        tree.set(&["metadata", "generation"], generation);
    }
    row.strategy.observe_generation(tree);
    let version = present.object().version();
    let version = version.map(|version| version.to_string());
    tree.set(
        &["metadata", "resourceVersion"],
        version.unwrap_or_default(),
    );
    let mut allocation = if through.is_empty() {
        row.strategy.allocate(&context, run.cut, tree, Some(old))?
    } else {
        row.strategy
            .admit_subresource(&context, run.cut, tree, old)?;
        Allocation::default()
    };
    run.canonical(row, tree)?;
    if let (Some(manager), true) = (row.strategy.server_manager(), through.is_empty()) {
        let claims = settle(run, row, manager, tree)?;
        allocation.claims.extend(claims);
    }
    Ok(allocation)
}

/// Checks the object by the rules of its kind.
pub(super) fn validate<C: ObjectChange>(
    run: &Run<'_>,
    change: &C,
    prepared: Prepared,
) -> Result<Valid, Interrupted> {
    let Prepared(planned) = prepared;
    if let (Rules::OfKind(through), ObjectFate::Stored(tree)) = (change.rules(), &planned.next) {
        let old = match &planned.target {
            Target::New => None,
            Target::Present(present) => Some(present.tree()),
        };
        let row = change.row();
        check(run, row, &run.context(row, through), tree, old)?;
    }
    Ok(Valid(planned))
}

fn check(
    run: &Run<'_>,
    row: &Resource,
    context: &Context<'_>,
    tree: &Value,
    old: Option<&Value>,
) -> Result<(), ApiError> {
    let errors = match old {
        None => prepare::validate_create(row, context, tree),
        Some(old) => prepare::validate_update(row, context, tree, old),
    };
    if !errors.is_empty() {
        let name = tree.str_at(&["metadata", "name"]);
        return Err(run.call.invalid(name, &errors));
    }
    for text in row.strategy.warnings(context, tree, old) {
        run.call.warn(text);
    }
    Ok(())
}

/// Decides what happens to an object that may be deleted.
pub(super) fn mark<D: ObjectDeletion>(
    run: &Run<'_>,
    deletion: &mut D,
    admitted: AdmittedDeletion,
) -> Result<Valid, Interrupted> {
    let present = admitted.into_present();
    let next = deletion.mark(run, &present)?;
    Ok(Valid(Planned {
        target: Target::Present(present),
        next,
        persistence: deletion.options()?.persistence,
        goes_with_last_finalizer: false,
        allocation: deletion.along(),
        claims: Vec::new(),
    }))
}

/// Creates the bytes to be stored, and the claims they rest on.
pub(super) fn store(
    run: &mut Run<'_>,
    row: &Resource,
    allowed: Allowed,
) -> Result<PlannedWrite, Interrupted> {
    let Planned {
        target,
        mut next,
        persistence,
        goes_with_last_finalizer,
        allocation,
        mut claims,
    } = allowed.into_planned();
    claims.append(&mut run.claims);
    if let (true, ObjectFate::Stored(tree)) = (run.says_empties, &mut next) {
        prepare::without_said_empties(row, tree)?;
    }
    if let (Some(custom), ObjectFate::Stored(tree)) = (&row.custom, &mut next)
        && options::is_apply(run.call.request)
    {
        custom.complete_apply(&row.schemas, tree)?;
    }
    let storing = Storing {
        run,
        row,
        persistence,
        allocation,
        claims,
    };
    match (target, next) {
        (Target::New, ObjectFate::Stored(tree)) => storing.create(tree),
        (Target::New, ObjectFate::Removed | ObjectFate::Unchanged) => {
            Err(ApiError::internal("nothing is planned for nothing").into())
        }
        (Target::Present(present), ObjectFate::Unchanged) => {
            Ok(PlannedWrite::Answer(Unstored::Unchanged(present.object)))
        }
        (Target::Present(present), ObjectFate::Removed) => match persistence {
            Persistence::DryRun => Ok(PlannedWrite::Answer(Unstored::Removed(present.object))),
            Persistence::Store => Ok(PlannedWrite::Commit(storing.remove(&present)?)),
        },
        (Target::Present(present), ObjectFate::Stored(mut tree)) => {
            tree.remove(&["metadata", "resourceVersion"]);
            if goes_with_last_finalizer
                && object::goes_with_last_finalizer(row, &tree, &present.tree)
            {
                return storing.remove_last(&present, tree);
            }
            storing.replace(present, tree)
        }
    }
}

/// The last stage: from a plan to a write.
struct Storing<'s, 'r> {
    run: &'s mut Run<'r>,
    row: &'s Resource,
    persistence: Persistence,
    allocation: Allocation,
    claims: Vec<Claim>,
}

impl Storing<'_, '_> {
    fn create(mut self, mut tree: Value) -> Result<PlannedWrite, Interrupted> {
        let run = &mut *self.run;
        if self.persistence == Persistence::Store {
            // As upstream, whose store checks it: after all rules, and never in a dry run, which shows the version.
            let version = tree.remove(&["metadata", "resourceVersion"]);
            let version = version.as_ref().and_then(Value::as_str);
            let is_set = version.is_some_and(|text| text.parse().is_ok_and(|at: u64| at != 0));
            if is_set && run.call.request.verb == Verb::Create {
                let why = "resourceVersion should not be set on objects to be created";
                return Err(ApiError::new(Reason::Unknown, why).into());
            }
        }
        let key = run.call.key(tree.str_at(&["metadata", "name"]));
        if let Some(present) = run.cut.get(&key) {
            return Err(object::exists(run.call, &tree, &present).into());
        }
        if self.persistence == Persistence::DryRun {
            let tree = self.as_shown(tree)?;
            return Ok(PlannedWrite::Answer(Unstored::Created(tree)));
        }
        let strategy = &self.row.strategy;
        let companions = strategy.companions(&run.context(self.row, ""), &tree);
        self.allocation.companions.extend(companions);
        self.claims.push(Claim::Absent(key.clone()));
        let put = object::put(run, self.row, key, &tree)?;
        Ok(PlannedWrite::Commit(self.write(put)?))
    }

    fn replace(mut self, present: Present, mut tree: Value) -> Result<PlannedWrite, Interrupted> {
        let Present {
            object,
            tree: old,
            is_stale,
            stored,
        } = present;
        let is_same = match (&self.row.custom, &stored) {
            (Some(custom), Some(stored)) => {
                let kept = custom.kept(self.row, &tree)?;
                fields::is_same(kept.as_ref().unwrap_or(&tree), stored)
            }
            _ => fields::is_same(&tree, &old),
        };
        if is_same && !is_stale {
            return Ok(PlannedWrite::Answer(Unstored::Unchanged(object)));
        }
        if self.persistence == Persistence::DryRun {
            if object.version().is_none() {
                // Without a version the answer would look like that of a new object.
                return Err(Interrupted::VersionUnsettled);
            }
            object::set_version(&mut tree, &object);
            let tree = self.as_shown(tree)?;
            return Ok(PlannedWrite::Answer(Unstored::Tree(tree)));
        }
        let key = object.key().clone();
        self.claims.push(Claim::At(key.clone(), object.stamp()));
        let put = object::put(self.run, self.row, key, &tree)?;
        Ok(PlannedWrite::Commit(self.write(put)?))
    }

    /// Returns what would be shown of an object if it were stored.
    fn as_shown(&self, tree: Value) -> Result<Value, ApiError> {
        match &self.row.custom {
            Some(custom) => custom.as_read(self.row, tree),
            None => Ok(tree),
        }
    }

    /// Removes an object whose change takes away the last reason that kept it. The client gets the
    /// changed object with the version that it had.
    fn remove_last(
        mut self,
        present: &Present,
        mut tree: Value,
    ) -> Result<PlannedWrite, Interrupted> {
        if present.object.version().is_none() {
            return Err(Interrupted::VersionUnsettled);
        }
        object::set_version(&mut tree, &present.object);
        if self.persistence == Persistence::DryRun {
            return Ok(PlannedWrite::Answer(Unstored::Tree(tree)));
        }
        self.allocation = Allocation::default();
        Ok(PlannedWrite::CommitAs(self.remove(present)?, tree))
    }

    /// Removes an object, and the objects that are removed with it.
    fn remove(mut self, present: &Present) -> Result<Write, Interrupted> {
        let key = present.object.key().clone();
        self.claims
            .push(Claim::At(key.clone(), present.object.stamp()));
        let context = self.run.context(self.row, "");
        let mut nothing = Value::Null;
        let given_back = self.row.strategy.allocate(
            &context,
            self.run.cut,
            &mut nothing,
            Some(&present.tree),
        )?;
        self.allocation.claims.extend(given_back.claims);
        self.allocation.companions.extend(given_back.companions);
        self.write(Operation::Delete { key })
    }

    /// Returns the write with this operation and everything that was allocated with it.
    fn write(self, operation: Operation) -> Result<Write, Interrupted> {
        let mut write = Write {
            operations: vec![operation],
            claims: self.claims,
            deadline: Some(self.run.call.request.deadline),
        };
        write.claims.extend(self.allocation.claims);
        object::add_companions(self.run, self.allocation.companions, &mut write)?;
        Ok(write)
    }
}
