//! The behaviour of a kind that data cannot express: the interface between the verbs and the
//! batteries.
//!
//! A strategy works on trees in the version its kind is *prepared* in (for built-in kinds the one
//! it is stored in), already decoded, pruned and filled with the constant defaults of the data.
//! Every method has a default for kinds without special behaviour, so a kind's file has only what
//! is special about it.
//!
//! Order of calls for a create: `default` → `normalize` → `to_stored` (if the versions differ) →
//! metadata is filled → `prepare_create` → `allocate` → `validate_create` → `companions`. For an update:
//! `default` → `normalize` → `prepare_update` (or `prepare_subresource`) → `validate_update` (or
//! `validate_subresource`). No method does I/O; the facts that it may use are in [`Context`].

use crate::kinds::Kinds;
use crate::kinds::conversion::{self, Converter, PreparedIn};
use crate::kinds::feature_gates::Features;
use crate::kinds::table::KindTable;
use crate::request::options::Persistence;
use crate::request::warnings::Warnings;
use crate::settings::{Lifetimes, PlaneSettings};
use polyplane_apimachinery::complaints::Complaints;
use polyplane_apimachinery::json::scan::Scanned;
use polyplane_apimachinery::names::NameRule;
use polyplane_apimachinery::schema::Schemas;
use polyplane_apimachinery::status::ApiError;
use polyplane_apimachinery::time::{Timestamp, human_duration};
use polyplane_apimachinery::{Str, Value};
use polyplane_auth::UserInfo;
use polyplane_plane::{Claim, ObjectRef, Snapshot};
use std::fmt::Debug;
use std::sync::Arc;

/// The facts that a strategy may use beside the object.
#[derive(Debug, Clone, Copy)]
pub struct Context<'a> {
    /// The owner's time, in seconds since 1970.
    pub now: i64,
    /// The user who made the request.
    pub user: &'a UserInfo,
    /// The subresource that is written; empty for the object itself.
    pub subresource: &'a str,
    /// Whether the write is stored.
    pub persistence: Persistence,
    /// True if the client has given the object no labels, so that those it has are defaults.
    pub lacks_labels: bool,
    /// True if the metadata is wrong in a way that keeps the rules of a custom kind from being
    /// checked.
    pub metadata_blocks_rules: bool,
    /// The id of the plane.
    pub plane: &'a str,
    /// The facts about this plane that kinds need.
    pub settings: &'a PlaneSettings,
    /// The schemas that the kind's definition is part of.
    pub schemas: &'a Schemas,
    /// The feature gates.
    pub features: &'a Features,
    /// The kinds that planes share.
    pub kinds: &'a Arc<KindTable>,
    /// The warnings for the client.
    pub warnings: &'a Warnings,
}

impl Context<'_> {
    /// Returns the tree of a stored object of a shared kind, in the version that it is stored in
    /// today.
    ///
    /// # Errors
    /// See [`conversion::stored_tree`].
    pub fn stored_tree(&self, object: &ObjectRef) -> Result<Value, ApiError> {
        let kinds = Kinds::new(Arc::clone(self.kinds), None);
        conversion::stored_tree(&kinds, object)
    }
}

/// An object that is written in the same commit as the requested one.
#[derive(Debug, Clone)]
pub struct Companion {
    /// The storage group.
    pub group: Str,
    /// The storage resource.
    pub resource: Str,
    /// The namespace, if the kind has one.
    pub namespace: Option<Str>,
    /// Name.
    pub name: Str,
    /// The manager of the fields that the server sets: that of upstream's program which writes such
    /// objects, so that this program goes on with its own fields where it runs.
    pub manager: &'static str,
    /// The change of the companion.
    pub change: CompanionChange,
}

/// The change of a companion.
#[derive(Debug, Clone)]
pub enum CompanionChange {
    /// It is created. If it exists, it stays as it is.
    Ensure(Value),
    /// It is created. If it exists, the whole write is prepared again.
    Create(Value),
    /// It is replaced by this tree, if it exists. The allocation claims the version that the tree
    /// was made from.
    Replace(Value),
    /// It is removed if it exists.
    Remove,
}

/// The part of a write that records an allocation.
#[derive(Debug, Default)]
pub struct Allocation {
    /// The facts that the write rests on, which the sequencer checks again.
    pub claims: Vec<Claim>,
    /// The objects that record the allocation.
    pub companions: Vec<Companion>,
}

/// The result of deleting an object with a grace period.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Grace {
    /// The object is removed at once.
    Now,
    /// The object stays, marked as being deleted, for this many seconds.
    Seconds(i64),
}

/// That the object of a table row has run to completion, so that clients may show it less prominently.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RowCompletion {
    /// Why, in one word.
    pub reason: &'static str,
    /// The same for humans.
    pub message: &'static str,
}

/// The behaviour of one kind.
pub trait Strategy: Debug + Send + Sync {
    /// Sets defaults that depend on whether the client has given a field which has a constant
    /// default. Called before the constant defaults are filled in, in the version of the request.
    /// Must be idempotent.
    fn default_first(&self, object: &mut Value) {
        let _ = object;
    }

    /// Sets defaults that depend on other fields, in the version of the request. Must be
    /// idempotent.
    fn default(&self, object: &mut Value) {
        let _ = object;
    }

    /// Returns a defaulted object as it is after a conversion into the stored version and back, if
    /// that changes it. Upstream converts every object at once, so managers own what they send in
    /// this form.
    fn converted_at_once(&self, object: &Value) -> Option<Value> {
        let _ = object;
        None
    }

    /// Makes the changes to a defaulted object that upstream makes while it decodes: those of its
    /// conversions, and defaults that are the time of the request. Whoever writes owns them. Called
    /// in the version of the request. Must be idempotent.
    fn normalize(&self, object: &mut Value, now: i64) {
        let _ = (object, now);
    }

    /// Returns the error of upstream's conversion of an object, in the version of the request; `None` if
    /// it can be converted.
    fn unconvertible(&self, object: &Value) -> Option<String> {
        let _ = object;
        None
    }

    /// Sets what upstream's conversion adds to an object without content, which a bookmark is, in the
    /// version of the request.
    fn fill_empty(&self, object: &mut Value) {
        let _ = object;
    }

    /// Sets the fields that the server decides on a create. Status was removed before, and
    /// generation set to 1, if the row says so.
    fn prepare_create(&self, context: &Context<'_>, object: &mut Value) {
        let _ = (context, object);
    }

    /// Drops the fields that upstream's conversions leave out, from an object that no other method
    /// prepares.
    fn forget_old_forms(&self, object: &mut Value) {
        let _ = object;
    }

    /// Returns true if a new object keeps the status that its creator gives it.
    fn keeps_status(&self) -> bool {
        false
    }

    /// Keeps the fields that an update may not change. Status and generation are those of `old`
    /// before; after it, generation is counted if the row says so.
    fn prepare_update(&self, context: &Context<'_>, object: &mut Value, old: &Value) {
        let _ = (context, object, old);
    }

    /// Returns whether `metadata.generation` counts a change, for kinds that count; `None` counts
    /// every change outside metadata and status, unless it only writes an equal value in another
    /// way.
    fn counts_generation(&self, object: &Value, old: &Value) -> Option<bool> {
        let _ = (object, old);
        None
    }

    /// Copies `metadata.generation`, which has just been counted, into a status that names it.
    fn observe_generation(&self, _object: &mut Value) {}

    /// Returns true if `metadata.generation` counts an empty list or map in the place of none as a
    /// change: see [`Field::empties_count`](polyplane_apimachinery::schema::Field::empties_count).
    fn counts_empties(&self) -> bool {
        false
    }

    /// Keeps the fields that a write through the subresource of `context` may not change. The
    /// default suits a status subresource: only `status` and `metadata.managedFields` come from the
    /// write.
    fn prepare_subresource(&self, context: &Context<'_>, object: &mut Value, old: &Value) {
        let _ = context;
        let status = object.remove(&["status"]);
        crate::metadata::keep_all_but_managers(object, old.clone());
        match status {
            Some(status) => object.set(&["status"], status),
            None => drop(object.remove(&["status"])),
        }
    }

    /// Returns the rule for names of new objects, if it differs from that of the kind's row. A kind
    /// whose names depend on other fields returns a lenient rule here and checks the names in
    /// `validate_create`.
    fn name_rule(&self) -> Option<NameRule> {
        None
    }

    /// Returns true if upstream validates the metadata of a new object only when `validate_create` has no complaint.
    fn validates_metadata_last(&self) -> bool {
        false
    }

    /// Validates a new object. Its metadata has been validated before, its name by the rule of the
    /// kind's row, but not its finalizers, see `object_metadata::validate_finalizers`.
    fn validate_create(&self, context: &Context<'_>, object: &Value) -> Complaints {
        let _ = (context, object);
        Complaints::default()
    }

    /// Validates a changed object; for its metadata call `object_metadata::validate_update`.
    fn validate_update(&self, context: &Context<'_>, object: &Value, old: &Value) -> Complaints {
        let _ = (context, object, old);
        Complaints::default()
    }

    /// Validates an object changed through the subresource of `context`.
    fn validate_subresource(
        &self,
        context: &Context<'_>,
        object: &Value,
        old: &Value,
    ) -> Complaints {
        let _ = (context, object, old);
        Complaints::default()
    }

    /// Returns warnings for the client about an object that is accepted.
    fn warnings(&self, context: &Context<'_>, object: &Value, old: Option<&Value>) -> Vec<String> {
        let _ = (context, object, old);
        Vec::new()
    }

    /// Returns the cells of the object's table row, one for each column of the kind's row.
    fn cells(&self, object: &Value, now: i64) -> Vec<Value> {
        vec![
            Value::string(object.str_at(&["metadata", "name"])),
            age(object.str_at(&["metadata", "creationTimestamp"]), now),
        ]
    }

    /// Returns how the object of a table row has run to completion; `None` unless it has.
    fn completion(&self, object: &Value) -> Option<RowCompletion> {
        let _ = object;
        None
    }

    /// Returns the number of a stored object by which the rows of tables are sorted before its name;
    /// `None` if they are sorted by the name alone.
    fn row_order(&self) -> Option<fn(Scanned<'_>) -> i64> {
        None
    }

    /// Returns the value of a selectable field of a stored object; `None` means that the value is
    /// at the path of that name. Reads the bytes without parsing the object, because this is called
    /// for each event and each watcher that selects by a field.
    fn field(&self, object: Scanned<'_>, name: &str) -> Option<Str> {
        let _ = (object, name);
        None
    }

    /// Returns the version that objects are prepared and validated in.
    fn prepared_in(&self) -> PreparedIn {
        PreparedIn::Storage
    }

    /// Returns the converter between any two versions of the kind, if `to_stored` and `to_served`
    /// do not convert.
    fn converter(&self) -> Option<Arc<dyn Converter>> {
        None
    }

    /// Converts an object from the version `served` into the stored one.
    fn to_stored(&self, served: &str, object: Value) -> Value {
        let _ = served;
        object
    }

    /// Converts a stored object into the version `served`.
    fn to_served(&self, served: &str, object: Value) -> Value {
        let _ = served;
        object
    }

    /// Returns the path by which errors name a field in the served version, if it differs from the one in
    /// the stored form, where the declarations of the schema are checked.
    fn declared_field(&self, stored: &str) -> Option<String> {
        let _ = stored;
        None
    }

    /// Allocates or releases addresses, ports and the like for a write: fills `object`, and returns
    /// claims that keep two writes from allocating the same one. `old` is absent on create,
    /// `object` null on delete.
    ///
    /// # Errors
    /// Returns the error for the client if nothing is free, or if the requested value is allocated
    /// already.
    fn allocate(
        &self,
        context: &Context<'_>,
        cut: &Snapshot,
        object: &mut Value,
        old: Option<&Value>,
    ) -> Result<Allocation, ApiError> {
        let _ = (context, cut, object, old);
        Ok(Allocation::default())
    }

    /// Refuses a write through the subresource of `context` because of other objects.
    ///
    /// # Errors
    /// Returns the error for the client.
    fn admit_subresource(
        &self,
        context: &Context<'_>,
        cut: &Snapshot,
        object: &Value,
        old: &Value,
    ) -> Result<(), ApiError> {
        let _ = (context, cut, object, old);
        Ok(())
    }

    /// Returns the annotations that upstream keeps in other fields in memory, so that they do not show
    /// where only metadata is shown.
    fn hidden_annotations(&self) -> &'static [&'static str] {
        &[]
    }

    /// Returns whether an apply to the status of an absent object creates the object. Upstream
    /// refuses that for most kinds.
    fn status_creates(&self) -> bool {
        false
    }

    /// Returns the manager that owns the part of the status that [`Self::settle`] writes; `None` if
    /// it writes none.
    fn server_manager(&self) -> Option<&'static str> {
        None
    }

    /// Writes the status that upstream's controllers write after the object, if the object is to have
    /// it at once. Returns the facts that the status rests on. Called for writes of the object itself,
    /// after [`Self::allocate`].
    fn settle(&self, context: &Context<'_>, cut: &Snapshot, object: &mut Value) -> Vec<Claim> {
        let _ = (context, cut, object);
        Vec::new()
    }

    /// Returns the objects that are created together with a new one, in the same commit.
    fn companions(&self, context: &Context<'_>, object: &Value) -> Vec<Companion> {
        let _ = (context, object);
        Vec::new()
    }

    /// Returns true if a deleted object stays for another reason than its finalizers.
    fn awaits(&self, object: &Value) -> bool {
        let _ = object;
        false
    }

    /// Returns true if the first deletion of an object leaves its finalizers as they are, whatever a client wants
    /// to become of the dependents.
    fn is_deleted_without_propagation(&self) -> bool {
        false
    }

    /// Changes an object that is marked as being deleted and stays for a while.
    fn prepare_deletion(&self, object: &mut Value) {
        let _ = object;
    }

    /// Returns for how long the object stays if it is deleted with the requested grace period.
    fn grace(&self, object: &Value, wished: Option<i64>) -> Grace {
        let _ = (object, wished);
        Grace::Now
    }

    /// Refuses a deletion, if the kind forbids it.
    ///
    /// # Errors
    /// Returns the error for the client.
    fn admit_delete(&self, context: &Context<'_>, object: &Value) -> Result<(), ApiError> {
        let _ = (context, object);
        Ok(())
    }

    /// Returns true if a deletion answers with the object instead of a Status.
    fn returns_deleted(&self) -> bool {
        false
    }

    /// Returns the seconds after which a written object expires; `None` for never.
    fn lifetime(&self, lifetimes: &Lifetimes) -> Option<i64> {
        let _ = lifetimes;
        None
    }
}

/// Returns the cell that shows how long ago `time` was: `5d3h`, or `<unknown>` if it is not set.
pub fn age(time: &str, now: i64) -> Value {
    match Timestamp::parse(time) {
        Ok(then) => {
            let passed = Timestamp::from_seconds(now).nanoseconds_since(then);
            Value::string(human_duration(passed))
        }
        Err(_) => Value::string("<unknown>"),
    }
}

/// The strategy of a kind without behaviour of its own.
#[derive(Debug)]
pub struct Plain;

impl Strategy for Plain {}
