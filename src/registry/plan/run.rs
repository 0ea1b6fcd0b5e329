//! One run of a plan ([`Run`]), and the state that is kept from one run to the next
//! ([`PlanState`]).

use super::call_outs::{CallOut, CallOutMemo, CallOuts, Interrupted, RepliedCallOut};
use crate::authority;
use crate::environment::{Environment, generate_name};
use crate::kinds::conversion;
use crate::kinds::conversion::KindVersion;
use crate::kinds::table::Resource;
use crate::plan::prepare;
use crate::request::call::Call;
use crate::request::options::Persistence;
use crate::strategy::Context;
use polyplane_apimachinery::status::ApiError;
use polyplane_apimachinery::time::Timestamp;
use polyplane_apimachinery::{Str, Value};
use polyplane_auth::Verdict;
use polyplane_plane::{Claim, Snapshot};
use std::sync::OnceLock;

/// Number of names that are generated for one object before the client gets 409. Upstream has the
/// same limit.
const GENERATED_NAMES_MAX: u32 = 8;

/// One run of a plan over one cut. All of it happens at one moment.
pub struct Run<'r> {
    /// The request.
    pub call: &'r Call<'r>,
    /// The state that the plan reads.
    pub cut: &'r Snapshot,
    /// Replies of webhooks, converters and authorizers, and the calls that have to be made.
    pub call_outs: CallOuts<'r>,
    /// The time of the run, in seconds since 1970.
    pub now: i64,
    /// True if the object of the request has empty lists or maps that are not stored, but say something
    /// to whoever prepares and validates it.
    pub says_empties: bool,
    /// The letters for names that admission plug-ins generate.
    pub(super) suffix: Suffix<'r>,
    /// Whether the write is stored.
    pub(super) persistence: Persistence,
    /// True if the client has given the object no labels, so that those it has are defaults.
    pub(super) lacks_labels: bool,
    /// The error of an object that names another kind, which comes after those of its place.
    pub(super) refusal: Option<ApiError>,
    /// Facts that the write rests on, beside those that belong to a stage.
    pub(super) claims: Vec<Claim>,
    new: &'r mut NewObject,
    owners: &'r mut Owners,
}

/// Five random letters for a name that an admission plug-in generates. They are drawn when the first
/// plug-in needs them, which few do, and are the same in all runs of a plan, so that later plug-ins
/// see the same object again.
#[derive(Clone, Copy)]
pub struct Suffix<'a> {
    drawn: &'a OnceLock<Str>,
    environment: &'a dyn Environment,
}

impl<'a> Suffix<'a> {
    /// Creates letters that are kept in `drawn`.
    pub(super) fn new(drawn: &'a OnceLock<Str>, environment: &'a dyn Environment) -> Self {
        Self { drawn, environment }
    }

    /// Returns the letters.
    pub fn letters(self) -> &'a str {
        let draw = || generate_name("", self.environment).into();
        self.drawn.get_or_init(draw)
    }
}

/// The treatment of the owners of fields by the runs of a plan.
#[derive(Clone, Copy, Default, PartialEq, Eq)]
enum Owners {
    /// No run has changed them.
    #[default]
    Untouched,
    /// A run has brought them up to date.
    Kept,
    /// They are dropped, because the object is too large with them.
    Dropped,
}

/// The state that a plan keeps from one run to the next.
#[derive(Default)]
pub(crate) struct PlanState {
    memo: CallOutMemo,
    new: NewObject,
    /// See [`Suffix`].
    suffix: OnceLock<Str>,
    /// The time of the first run that needed a call. Later runs use the same time: objects stamped
    /// with a later one would be different calls, without a reply.
    since: Option<i64>,
    now: i64,
    owners: Owners,
}

/// The values that the server draws for a new object. They are drawn once, so that admission sees
/// the same object again.
#[derive(Default)]
struct NewObject {
    uid: Option<Str>,
    /// The prefix that the name was generated from, and the name.
    name: Option<(Str, Str)>,
    redrawn: u32,
}

impl PlanState {
    /// Begins a run.
    pub(crate) fn run<'r>(&'r mut self, call: &'r Call<'r>, cut: &'r Snapshot) -> Run<'r> {
        self.now = self.since.unwrap_or_else(|| call.environment.now());
        Run {
            call,
            cut,
            call_outs: self.memo.begin(call.authority(), cut),
            now: self.now,
            says_empties: false,
            suffix: Suffix::new(&self.suffix, call.environment),
            persistence: Persistence::Store,
            lacks_labels: false,
            refusal: None,
            claims: Vec::new(),
            new: &mut self.new,
            owners: &mut self.owners,
        }
    }

    /// Makes later runs drop the owners of fields. Returns false if that makes the object no
    /// smaller.
    pub(crate) fn drop_owners(&mut self) -> bool {
        let has = self.owners == Owners::Kept;
        if has {
            self.owners = Owners::Dropped;
        }
        has
    }

    /// Returns whether calls have been made.
    pub(crate) fn has_asked(&self) -> bool {
        self.since.is_some()
    }

    /// Returns whether the last run needs other calls than an earlier one, because the objects have
    /// changed in the meantime.
    pub(crate) fn is_overtaken(&self) -> bool {
        self.memo.has_unasked()
    }

    /// Returns the calls that the last run needs and that have no reply.
    pub(crate) fn take_open(&mut self) -> Vec<CallOut> {
        self.since = Some(self.now);
        self.memo.take_open()
    }

    /// Keeps replies for the next run.
    pub(crate) fn keep(&mut self, answers: Vec<RepliedCallOut>) {
        self.memo.keep(answers);
    }
}

impl<'r> Run<'r> {
    /// Returns the time of the run as objects store it.
    pub fn time(&self) -> String {
        Timestamp::from_seconds(self.now).to_rfc3339()
    }

    /// Checks that the caller is still proven, and that all accesses that the request was granted are
    /// allowed, in the state of this run.
    ///
    /// # Errors
    /// Returns 401 or 403, or requests a reply that is needed first.
    pub(super) fn check_granted(&mut self) -> Result<(), Interrupted> {
        self.call.request.granted.check_caller(self.cut)?;
        for access in self.call.request.granted.accesses() {
            let attributes = access.attributes();
            let decision = self.call_outs.authorize_again(&attributes)?;
            authority::allow(&attributes, decision)?;
        }
        Ok(())
    }

    /// Returns the facts that the strategy of `row` may use when an object is written through
    /// `subresource`.
    pub fn context<'s>(&'s self, row: &'s Resource, subresource: &'s str) -> Context<'s> {
        Context {
            now: self.now,
            user: &self.call.request.user,
            subresource,
            persistence: self.persistence,
            lacks_labels: self.lacks_labels,
            metadata_blocks_rules: false,
            plane: self.call.tenant.plane.id(),
            settings: &self.call.tenant.settings,
            schemas: &row.schemas,
            features: &row.features,
            kinds: &self.call.tenant.base,
            warnings: self.call.warnings(),
        }
    }

    /// Brings the object into its canonical form: see [`prepare::canonical`].
    pub(super) fn canonical(&mut self, row: &Resource, tree: &mut Value) -> Result<(), ApiError> {
        self.says_empties = prepare::canonical(row, tree)?;
        Ok(())
    }

    /// Returns the generation of an object that [`Self::says_empties`]: these are no change by
    /// themselves. Returns nothing for other objects, and for kinds that count none or count these.
    pub(super) fn generation_of(
        &self,
        row: &Resource,
        context: &Context<'_>,
        tree: &Value,
        old: &Value,
    ) -> Result<Option<i64>, ApiError> {
        if !self.says_empties || row.strategy.counts_empties() {
            return Ok(None);
        }
        let mut plain = tree.clone();
        prepare::without_said_empties(row, &mut plain)?;
        prepare::update(row, context, &mut plain, old);
        Ok(plain.int_at(&["metadata", "generation"]))
    }

    /// Returns whether the object is stored without the owners of its fields.
    pub(super) fn drops_owners(&self) -> bool {
        *self.owners == Owners::Dropped
    }

    /// Notes that the object has owners of fields, without which it would be smaller.
    pub(super) fn note_owners(&mut self) {
        *self.owners = Owners::Kept;
    }

    /// Converts an object of a kind from one version to another. Built-in kinds need no call.
    ///
    /// # Errors
    /// Returns 500 if it cannot be converted, or requests a reply that is needed first.
    pub(crate) fn convert(
        &mut self,
        row: &Resource,
        mut object: Value,
        forms: (KindVersion<'_>, KindVersion<'_>),
    ) -> Result<Value, Interrupted> {
        let (from, to) = forms;
        if conversion::is_same(row, from, to) {
            return Ok(object);
        }
        let Some(converter) = row.strategy.converter() else {
            let kinds = self.call.tenant.kinds();
            return Ok(conversion::in_place(&kinds, row, object, forms)?);
        };
        // The version is left out of the call: an object gets one only when it is durable, and must
        // make the same call before and after that.
        let version = object.remove(&["metadata", "resourceVersion"]);
        let names = (from.version(), to.version());
        let known = match converter.convert(vec![object.clone()], names.0, names.1) {
            Verdict::Now(Some(converted)) => Some(converted.and_then(conversion::only)),
            Verdict::Now(None) | Verdict::Later(_) => None,
        };
        let converted = match known {
            Some(converted) => converted,
            None => self.call_outs.convert(converter, object, names)?,
        };
        let mut converted = converted.map_err(|error| conversion::failed(row, from, to, &error))?;
        if let Some(version) = version {
            converted.set(&["metadata", "resourceVersion"], version);
        }
        Ok(converted)
    }

    /// Returns the uid of the new object.
    pub(super) fn uid(&mut self) -> Str {
        let environment = self.call.environment;
        self.new
            .uid
            .get_or_insert_with(|| environment.uid())
            .clone()
    }

    /// Returns the name that a new object gets, if the client has given only the prefix of one.
    pub(super) fn missing_name(&mut self, row: &Resource, tree: &Value) -> Option<Str> {
        let meta = &tree["metadata"];
        let base = meta.str_at(&["generateName"]);
        let missing = !base.is_empty() && meta.str_at(&["name"]).is_empty();
        missing.then(|| self.generated_name(row, base))
    }

    /// Returns a name that begins with `base`. It is free, unless too many drawn names were taken.
    fn generated_name(&mut self, row: &Resource, base: &str) -> Str {
        let taken = |name: &str| {
            let key = crate::request::call::key_of(row, self.call.namespace(), name);
            self.cut.get(&key).is_some()
        };
        let draw = || Str::from(generate_name(base, self.call.environment));
        let mut name = match self.new.name.take() {
            Some((of, name)) if of == base => name,
            _ => draw(),
        };
        while self.new.redrawn + 1 < GENERATED_NAMES_MAX && taken(&name) {
            self.new.redrawn += 1;
            name = draw();
        }
        self.new.name = Some((base.into(), name.clone()));
        name
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::environment::System;
    use std::sync::atomic::{AtomicUsize, Ordering};

    #[derive(Default)]
    struct Counting(AtomicUsize);

    impl Environment for Counting {
        fn now(&self) -> i64 {
            0
        }

        fn uid(&self) -> Str {
            Str::default()
        }

        fn random(&self, bytes: &mut [u8]) {
            self.0.fetch_add(1, Ordering::Relaxed);
            System.random(bytes);
        }
    }

    #[test]
    fn the_letters_for_names_are_drawn_when_they_are_needed_and_stay_the_same() {
        let (environment, drawn) = (Counting::default(), OnceLock::new());
        let first = Suffix::new(&drawn, &environment);
        let draws = || environment.0.load(Ordering::Relaxed);
        assert_eq!(draws(), 0);
        let letters = first.letters();
        let needed = draws();
        let second = Suffix::new(&drawn, &environment);
        assert_eq!((second.letters(), draws()), (letters, needed));
        assert_eq!(letters.len(), 5);
    }
}
