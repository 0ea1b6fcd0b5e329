//! Admission: plug-ins that may change or refuse a write, and the quota that the write uses.
//!
//! All planes of a process share one ordered chain of plug-ins. A write that none of them acts on
//! costs one look-up in a table.

mod chain;
mod measure;

pub use chain::{AdmissionChain, Interest};
pub use measure::Measured;

use measure::{Phase, Step};

use super::call_outs::{CallOutMemo, CallOuts, Interrupted};
use super::defaulted::Decoded;
use super::fields::{self, Managed};
use super::run::{Run, Suffix};
use super::stages::{ObjectFate, Planned, Present, Target, Valid};
use super::{ObjectChange, ObjectDeletion};
use crate::authority;
use crate::kinds::conversion::KindVersion;
use crate::metrics::Family;
use crate::plan::object::{admit_kind, admit_namespace};
use crate::request::Verb;
use crate::request::body::Expected;
use crate::request::call::Call;
use crate::request::options::{DeleteOptions, Persistence, WriteOptions};
use async_trait::async_trait;
use bytes::Bytes;
use polyplane_apimachinery::Value;
use polyplane_apimachinery::schema::decode::Empties;
use polyplane_apimachinery::shape::prune::Report;
use polyplane_apimachinery::status::{ApiError, Qualified};
use polyplane_auth::Subject;
use polyplane_plane::{Claim, Snapshot};
use std::fmt::{Debug, Display};
use std::sync::OnceLock;

/// The operation of a write, as admission distinguishes it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Operation {
    /// Creates an object, or posts to a subresource.
    Create,
    /// Changes an object.
    Update,
    /// Removes an object.
    Delete,
}

/// The options that the client has sent beside the object.
#[derive(Clone, Copy, Debug)]
pub enum Options<'a> {
    /// The options of a create, update or patch.
    Write(&'a WriteOptions),
    /// The options of a deletion.
    Delete(&'a DeleteOptions),
}

impl Options<'_> {
    /// Returns whether the write is stored.
    pub fn persistence(self) -> Persistence {
        match self {
            Self::Write(options) => options.persistence,
            Self::Delete(options) => options.persistence,
        }
    }
}

/// The facts about a write that admission may use beside the new object.
pub struct Attributes<'a> {
    /// The request: its user, resource and subresource. A plug-in adds warnings to it.
    pub call: &'a Call<'a>,
    /// The operation of the write.
    pub operation: Operation,
    /// The kind of the objects.
    pub subject: Expected<'a>,
    /// The API version of the objects: that of the request in [`Admission::mutate`], that in which
    /// the registry prepares objects in [`Admission::validate`].
    pub version: &'a str,
    /// The object's name; empty while it has none.
    pub name: &'a str,
    /// The present object, in the same version.
    pub old: Option<&'a Value>,
    /// The options that the client has sent.
    pub options: Options<'a>,
    /// The state that the write is prepared against. It may not be durable yet: a plug-in must call
    /// webhooks through [`CallOuts`], because those calls wait until the state is durable.
    pub cut: &'a Snapshot,
    /// Five random letters for a name that a plug-in generates.
    pub suffix: Suffix<'a>,
    /// The time at which the write is prepared, in seconds since 1970.
    pub now: i64,
}

impl Attributes<'_> {
    /// Returns the 403 of a plug-in that refuses the write of `object` for this reason.
    pub fn forbidden(&self, object: Option<&Value>, why: impl Display) -> ApiError {
        let named = |member| object.map_or("", |object| object.str_at(&["metadata", member]));
        let names = [self.name, named("name"), named("generateName"), "Unknown"];
        let name = names.into_iter().find(|name| !name.is_empty());
        let row = self.call.row;
        let what = Qualified::new(&row.group, &row.name);
        ApiError::forbidden(what, name.unwrap_or(""), why)
    }
}

/// The answer to whether a plug-in has changed an object.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Mutated {
    /// It has not.
    Unchanged,
    /// It has, and has given all members that it has added their defaults.
    Completed,
    /// It has, and the result needs defaults.
    Changed,
}

/// One plug-in of the chain. The object is `None` if the write deletes it.
///
/// Neither method waits or does I/O. The registry may call both any number of times for one
/// request, each time with the newest state. A plug-in that needs a webhook's reply requests it by
/// [`CallOuts::ask`].
#[async_trait]
pub trait Admission: Debug + Send + Sync {
    /// Returns the plug-in's name for messages.
    fn name(&self) -> &'static str;

    /// Returns the writes that the plug-in acts on. Its other methods see no others.
    fn interest(&self) -> Interest {
        Interest::Everything
    }

    /// Returns which calls of the plug-in are counted in the metrics of admission.
    fn measured(&self) -> Measured {
        Measured::NEVER
    }

    /// Returns the metrics of the plug-in's own.
    fn families(&self) -> Vec<Family> {
        Vec::new()
    }

    /// Returns whether the plug-in may change `metadata.managedFields`, because the object that it
    /// returns is not made here. If it makes them invalid, those from before it are kept.
    fn may_change_owners(&self) -> bool {
        false
    }

    /// May change the object. The result is validated like an object that a client sends, and
    /// defaulted if the plug-in says so.
    ///
    /// # Errors
    /// Returns the refusal, or requests a reply that is needed first.
    fn mutate(
        &self,
        what: &Attributes<'_>,
        object: Option<&mut Value>,
        call_outs: &mut CallOuts<'_>,
    ) -> Result<Mutated, Interrupted> {
        let _ = (what, object, call_outs);
        Ok(Mutated::Unchanged)
    }

    /// May refuse the object, which is passed as it will be stored. Returns facts that the write
    /// must rest on, such as room in a quota.
    ///
    /// # Errors
    /// See [`Self::mutate`].
    fn validate(
        &self,
        what: &Attributes<'_>,
        object: Option<&Value>,
        call_outs: &mut CallOuts<'_>,
    ) -> Result<Vec<Claim>, Interrupted> {
        let _ = (what, object, call_outs);
        Ok(Vec::new())
    }

    /// Calls the plug-in's webhook. The state that `question` was made from is durable. During the
    /// call the request holds no key queue, no seat and no state; the call ends at the request's
    /// deadline.
    ///
    /// # Errors
    /// An error becomes the reply to the question: the plug-in decides what a failure means.
    async fn call(&self, question: &Bytes) -> Result<Bytes, ApiError> {
        let _ = question;
        let why = format!("admission plug-in {:?} has no webhook to call", self.name());
        Err(ApiError::internal(why))
    }
}

/// An object that mutating admission has let through, in the version of the request, with the facts
/// it rests on.
pub(super) struct Admitted {
    tree: Value,
    claims: Vec<Claim>,
}

impl Admitted {
    pub(super) fn into_parts(self) -> (Value, Vec<Claim>) {
        (self.tree, self.claims)
    }
}

/// Lets the chain change the new object, and applies defaults again if it has changed.
pub(super) fn mutate<C: ObjectChange>(
    run: &mut Run<'_>,
    change: &C,
    managed: Managed,
    target: &Target,
) -> Result<Admitted, Interrupted> {
    let mut tree = managed.into_tree();
    let mut step = Step::begin(&run.call.services.admission, Phase::Admit);
    let claims = match target {
        Target::Present(_) => Vec::new(),
        Target::New => step.lifecycle(|| admit_new(run, change, &tree))?,
    };
    // Upstream refuses another kind when it validates the object. Here no plug-in gets such an object.
    if let Some(refusal) = run.refusal.take() {
        return Err(refusal.into());
    }
    let acting = acting_on(run.call);
    if !acting.is_empty() {
        let may_change = |at: &usize| run.call.services.admission.plugin(*at).may_change_owners();
        let managed = acting.iter().any(may_change);
        let managed = managed.then(|| fields::before_admission(&tree));
        let mutated = mutate_by_chain(run, change, &mut tree, target, step)?;
        if mutated != Mutated::Unchanged
            && let Some(managed) = managed
        {
            fields::after_admission(run, managed, &mut tree);
        }
        if mutated == Mutated::Changed {
            // Upstream decodes it again, with the labels that it has by then.
            run.lacks_labels = false;
            tree = default_again(run, change, tree)?;
        }
    } else if matches!(target, Target::New) {
        step.pass(Operation::Create);
    }
    Ok(Admitted { tree, claims })
}

/// Admits a new object to its namespace. Returns the facts that this rests on.
fn admit_new<C: ObjectChange>(
    run: &mut Run<'_>,
    change: &C,
    tree: &Value,
) -> Result<Vec<Claim>, Interrupted> {
    let drawn = run.missing_name(change.row(), tree);
    let name = drawn.as_deref();
    let name = name.unwrap_or_else(|| tree.str_at(&["metadata", "name"]));
    // First, as upstream, whose admission of custom kinds begins with it.
    let custom = change.row().custom.as_ref();
    let kind = custom.map(|custom| admit_kind(run, custom, tree));
    let mut claims: Vec<Claim> = kind.transpose()?.into_iter().collect();
    claims.extend(admit_namespace(run.call, run.cut, name)?);
    Ok(claims)
}

/// Admits what a POST sends to a subresource to the namespace of the request. The write rests on it.
///
/// Verbs call this before they look for the object, as upstream: in a namespace that does not exist the
/// error is about the namespace.
///
/// # Errors
/// See [`admit_namespace`].
pub(crate) fn admit_post(run: &mut Run<'_>, name: &str) -> Result<(), Interrupted> {
    let (call, cut) = (run.call, run.cut);
    let mut step = Step::begin(&call.services.admission, Phase::Admit);
    let claim = step.lifecycle(|| admit_namespace(call, cut, name).map_err(Interrupted::from))?;
    run.claims.extend(claim);
    Ok(())
}

/// Returns the positions of the plug-ins that act on writes of the request's resource.
fn acting_on<'a>(call: &'a Call<'_>) -> &'a [usize] {
    call.services.admission.acting_on(&call.row.qualified)
}

fn mutate_by_chain<C: ObjectChange>(
    run: &mut Run<'_>,
    change: &C,
    tree: &mut Value,
    target: &Target,
    step: Step<'_>,
) -> Result<Mutated, Interrupted> {
    let (operation, old) = match target {
        Target::New => (Operation::Create, None),
        Target::Present(present) => change.present_subject(run, present),
    };
    let name = tree.str_at(&["metadata", "name"]).to_owned();
    let what = Attributes {
        call: run.call,
        operation,
        subject: change.subject(),
        version: &run.call.row.version,
        name: &name,
        old: old.as_deref(),
        options: Options::Write(&change.request().options),
        cut: run.cut,
        suffix: run.suffix,
        now: run.now,
    };
    chain(run.call, &what, Some(tree), &mut run.call_outs, step)
}

/// Runs the mutating side of the chain, in order.
fn chain(
    call: &Call<'_>,
    what: &Attributes<'_>,
    mut object: Option<&mut Value>,
    call_outs: &mut CallOuts<'_>,
    mut step: Step<'_>,
) -> Result<Mutated, Interrupted> {
    let mut mutated = Mutated::Unchanged;
    for at in acting_on(call) {
        let object = object.as_deref_mut();
        let plugin = call.services.admission.plugin(*at);
        let mutate = || plugin.mutate(what, object, &mut call_outs.of(*at));
        mutated = mutated.max(step.run(*at, what.operation, mutate)?);
    }
    step.pass(what.operation);
    Ok(mutated)
}

/// Runs the validating side of the chain, in order.
fn refuse(
    call: &Call<'_>,
    what: &Attributes<'_>,
    object: Option<&Value>,
    call_outs: &mut CallOuts<'_>,
    claims: &mut Vec<Claim>,
) -> Result<(), Interrupted> {
    let mut step = Step::begin(&call.services.admission, Phase::Validate);
    for at in acting_on(call) {
        let plugin = call.services.admission.plugin(*at);
        let validate = || plugin.validate(what, object, &mut call_outs.of(*at));
        claims.extend(step.run(*at, what.operation, validate)?);
    }
    step.pass(what.operation);
    Ok(())
}

/// Decodes and defaults an object that the chain has changed, like one that a client sends. Upstream has such an
/// object as JSON text, too: a time that is null is none, and a custom object may have any member, which its
/// readers do not get if the schema does not have it.
fn default_again<C: ObjectChange>(
    run: &Run<'_>,
    change: &C,
    mut tree: Value,
) -> Result<Value, Interrupted> {
    let subject = change.subject();
    let schemas = subject.schemas;
    let decoded = match subject.custom {
        Some(custom) => custom.decode(schemas, &mut tree, Report::Nothing),
        None => schemas.decode(subject.definition, &mut tree, Empties::NullUnlessSaid),
    };
    decoded.map_err(|error| {
        let kind = subject.kind;
        ApiError::internal(format!("admission made a malformed {kind}: {error}"))
    })?;
    let mut tree = change.default(run.call, Decoded::new(tree))?.into_tree();
    fields::normalize(run, change, &mut tree);
    Ok(tree)
}

/// Admits what a request sends to a subresource and what is not stored, the request of a token, to its
/// namespace, and runs the mutating side of the chain on it.
///
/// # Errors
/// Returns the refusal of a plug-in, and 500 if one needs a reply from outside.
pub(crate) fn admit_sent(
    call: &Call<'_>,
    cut: &Snapshot,
    subject: Expected<'_>,
    options: &WriteOptions,
    sent: &mut Value,
) -> Result<(), ApiError> {
    let version = subject.version;
    let drawn = OnceLock::new();
    let what = Attributes {
        call,
        operation: Operation::Create,
        subject,
        version,
        name: call.name()?,
        old: None,
        options: Options::Write(options),
        cut,
        suffix: Suffix::new(&drawn, call.environment),
        now: call.environment.now(),
    };
    let mut memo = CallOutMemo::default();
    let mut call_outs = memo.begin(call.authority(), cut);
    let mut step = Step::begin(&call.services.admission, Phase::Admit);
    let admitted = step
        .lifecycle(|| admit_namespace(call, cut, what.name).map_err(Interrupted::from))
        .and_then(|_| chain(call, &what, Some(sent), &mut call_outs, step));
    match admitted {
        Ok(_) => Ok(()),
        Err(Interrupted::Failed(error)) => Err(error),
        Err(Interrupted::NeedsReplies | Interrupted::VersionUnsettled) => Err(ApiError::internal(
            "an admission plug-in needs a reply from outside",
        )),
    }
}

/// A write that all plug-ins admit.
pub(super) struct Allowed(Planned);

impl Allowed {
    pub(super) fn into_planned(self) -> Planned {
        self.0
    }
}

/// Runs the validating side of the chain on the object, including the quota that the write uses.
pub(super) fn validate<C: ObjectChange>(
    run: &mut Run<'_>,
    change: &C,
    valid: Valid,
) -> Result<Allowed, Interrupted> {
    let mut planned = valid.into_planned();
    if matches!(planned.target, Target::New) && run.call.request.verb != Verb::Create {
        check_create(run, change)?;
    }
    if !acting_on(run.call).is_empty() {
        validate_by_chain(run, change, &mut planned)?;
    }
    Ok(Allowed(planned))
}

/// Checks that the user may create an object that an update or a patch creates.
fn check_create<C: ObjectChange>(run: &mut Run<'_>, change: &C) -> Result<(), Interrupted> {
    let call = run.call;
    let attributes = polyplane_auth::Attributes {
        user: &call.request.user,
        verb: Verb::Create.name(),
        subject: Subject::Resource {
            group: &call.row.group,
            version: &call.row.version,
            resource: &call.row.name,
            subresource: call.subresource(),
            namespace: call.namespace(),
            name: &change.request().name,
            field_selector: "",
        },
    };
    let decision = run.call_outs.authorize(&attributes)?;
    Ok(authority::allow(&attributes, decision)?)
}

fn validate_by_chain<C: ObjectChange>(
    run: &mut Run<'_>,
    change: &C,
    planned: &mut Planned,
) -> Result<(), Interrupted> {
    let object = match &planned.next {
        ObjectFate::Stored(tree) => Some(change.shown(tree)),
        ObjectFate::Removed | ObjectFate::Unchanged => None,
    };
    let (operation, old) = match &planned.target {
        Target::New => (Operation::Create, None),
        Target::Present(present) => change.shown_present(present),
    };
    let object = object.as_deref();
    let what = Attributes {
        call: run.call,
        operation,
        subject: change.subject(),
        version: KindVersion::prepared(change.row()).version(),
        name: object.map_or("", |object| object.str_at(&["metadata", "name"])),
        old: old.as_deref(),
        options: Options::Write(&change.request().options),
        cut: run.cut,
        suffix: run.suffix,
        now: run.now,
    };
    refuse(
        run.call,
        &what,
        object,
        &mut run.call_outs,
        &mut planned.claims,
    )
}

/// An object whose deletion the mutating side of the chain has let through.
pub(super) struct AdmittedDeletion(Present);

impl AdmittedDeletion {
    pub(super) fn into_present(self) -> Present {
        self.0
    }
}

/// Runs the mutating side of the chain on a deletion, in which it can change nothing.
pub(super) fn mutate_deletion<D: ObjectDeletion>(
    run: &mut Run<'_>,
    deletion: &D,
    present: Present,
) -> Result<AdmittedDeletion, Interrupted> {
    if !acting_on(run.call).is_empty() {
        let mut sent = deletion.subject().cloned();
        let moment = (run.now, run.suffix);
        let what = of_deletion((run.call, run.cut), moment, deletion, &present)?;
        let step = Step::begin(&run.call.services.admission, Phase::Admit);
        chain(run.call, &what, sent.as_mut(), &mut run.call_outs, step)?;
    }
    Ok(AdmittedDeletion(present))
}

/// Runs the validating side of the chain on a deletion.
pub(super) fn validate_deletion<D: ObjectDeletion>(
    run: &mut Run<'_>,
    deletion: &D,
    valid: Valid,
) -> Result<Allowed, Interrupted> {
    let mut planned = valid.into_planned();
    if let Target::Present(present) = &planned.target
        && !acting_on(run.call).is_empty()
    {
        let moment = (run.now, run.suffix);
        let what = of_deletion((run.call, run.cut), moment, deletion, present)?;
        let claims = &mut planned.claims;
        refuse(
            run.call,
            &what,
            deletion.subject(),
            &mut run.call_outs,
            claims,
        )?;
    }
    Ok(Allowed(planned))
}

fn of_deletion<'a, D: ObjectDeletion>(
    (call, cut): (&'a Call<'a>, &'a Snapshot),
    (now, suffix): (i64, Suffix<'a>),
    deletion: &'a D,
    present: &'a Present,
) -> Result<Attributes<'a>, ApiError> {
    let sent = deletion.subject();
    Ok(Attributes {
        call,
        operation: match sent {
            Some(_) => Operation::Create,
            None => Operation::Delete,
        },
        subject: deletion.kind(),
        version: KindVersion::prepared(call.row).version(),
        name: present.object().key().name(),
        old: sent.is_none().then(|| present.tree()),
        options: Options::Delete(deletion.options()?),
        cut,
        suffix,
        now,
    })
}
