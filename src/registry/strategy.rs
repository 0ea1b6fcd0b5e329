//! What data cannot say about a kind: the seam between the verbs and the batteries.
//!
//! A strategy works on trees in the version its kind is *prepared* in (for built-in kinds the one it
//! is stored in), already decoded, pruned and filled with the constant defaults of the data. Every
//! method has the answer of a kind without behaviour, so a kind's file holds only what is special
//! about it.
//!
//! Order of calls for a create: `to_stored` (if the versions differ) → `default` → metadata is
//! filled → `prepare_create` → `allocate` → `validate_create` → `companions`. For an update:
//! `default` → `prepare_update` (or `prepare_subresource`) → `validate_update` (or
//! `validate_subresource`). None of them does I/O; what they may look at is in [`Context`].

use crate::kinds::Kinds;
use crate::kinds::conversion;
use crate::kinds::conversion::{Converter, PreparedIn};
use crate::kinds::feature_gates::Features;
use crate::kinds::table::KindTable;
use polyplane_apimachinery::field_error::FieldError;
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

/// What a strategy may know beside the object.
#[derive(Debug, Clone, Copy)]
pub struct Context<'a> {
    /// Seconds since 1970 at the owner.
    pub now: i64,
    /// Who asks.
    pub user: &'a UserInfo,
    /// The subresource that is written; empty for the object itself.
    pub subresource: &'a str,
    /// Facts of this plane that kinds need.
    pub settings: &'a PlaneSettings,
    /// The schemas that the kind's definition is part of.
    pub schemas: &'a Schemas,
    /// Which features are on.
    pub features: &'a Features,
    /// The kinds that planes share.
    pub kinds: &'a Arc<KindTable>,
}

impl Context<'_> {
    /// The tree of a stored object of a shared kind, in the version that it is stored in today.
    ///
    /// # Errors
    /// See [`conversion::stored_tree`].
    pub fn stored_tree(&self, object: &ObjectRef) -> Result<Value, ApiError> {
        let kinds = Kinds::new(Arc::clone(self.kinds), None);
        conversion::stored_tree(&kinds, object)
    }
}

/// Facts of a plane that kinds need.
#[derive(Debug, Clone)]
pub struct PlaneSettings {
    /// Range from which Services get addresses.
    pub service_range: ServiceRange,
    /// First and last node port.
    pub node_ports: (u16, u16),
    /// Text of `kube-root-ca.crt`: the certificates that sign the serving certificate.
    pub serving_ca: Str,
    /// Where clients reach this server: scheme, host and port, without a path.
    pub endpoint: Str,
    /// The layer that planes are born with.
    pub birth_layer: BirthLayer,
}

/// The layer that planes are born with, by its hash. It becomes another one while the server runs.
#[derive(Clone)]
pub struct BirthLayer(Arc<dyn Fn() -> Str + Send + Sync>);

impl BirthLayer {
    /// Whatever `hash` says when a plane is born.
    pub fn new(hash: impl Fn() -> Str + Send + Sync + 'static) -> Self {
        Self(Arc::new(hash))
    }

    /// Always the same.
    pub fn fixed(hash: impl Into<Str>) -> Self {
        let hash = hash.into();
        Self::new(move || hash.clone())
    }

    /// Its hash now.
    pub fn hash(&self) -> Str {
        (self.0)()
    }
}

impl std::fmt::Debug for BirthLayer {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_tuple("BirthLayer").field(&self.hash()).finish()
    }
}

/// An IPv4 range in the form of a base address and a prefix length.
#[derive(Debug, Clone, Copy)]
pub struct ServiceRange {
    /// The network's address.
    pub base: std::net::Ipv4Addr,
    /// Bits of the network.
    pub bits: u8,
}

/// An object that is stored in the same part as the one that was asked for.
#[derive(Debug, Clone)]
pub struct Companion {
    /// Storage group.
    pub group: Str,
    /// Storage resource.
    pub resource: Str,
    /// Namespace, if the kind has one.
    pub namespace: Option<Str>,
    /// Name.
    pub name: Str,
    /// What happens to it.
    pub change: CompanionChange,
}

/// What happens to a companion.
#[derive(Debug, Clone)]
pub enum CompanionChange {
    /// It is created; if it exists it is left alone.
    Ensure(Value),
    /// It is created; if it exists the whole write is prepared again.
    Create(Value),
    /// It becomes this if it exists. The allocation claims the version that it was made of.
    Replace(Value),
    /// It is removed if it exists.
    Remove,
}

/// What an allocation adds to a write.
#[derive(Debug, Default)]
pub struct Allocation {
    /// Facts the write rests on, checked again in the sequencer.
    pub claims: Vec<Claim>,
    /// Objects that record the allocation.
    pub companions: Vec<Companion>,
}

/// How a deletion with a grace period goes on.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Grace {
    /// The object is removed at once.
    Now,
    /// The object stays, marked, for so many seconds.
    Seconds(i64),
}

/// The behaviour of one kind.
pub trait Strategy: Debug + Send + Sync {
    /// Defaults that ask whether a field was given that has a constant default: runs before the
    /// constants are filled in, in the version of the request. Must be idempotent.
    fn default_first(&self, object: &mut Value) {
        let _ = object;
    }

    /// Defaults that look at other fields, in the version of the request. Must be idempotent.
    fn default(&self, object: &mut Value) {
        let _ = object;
    }

    /// Sets what the server decides on a create. Before it, status has been removed and generation
    /// set to 1 where the row says so.
    fn prepare_create(&self, context: &Context<'_>, object: &mut Value) {
        let _ = (context, object);
    }

    /// Drops what upstream's conversions leave out, of an object that no other method prepares.
    fn forget_old_forms(&self, object: &mut Value) {
        let _ = object;
    }

    /// True if a new object comes with the status that its creator gives it.
    fn keeps_status(&self) -> bool {
        false
    }

    /// Keeps what an update may not change. Before it, status and generation are those of `old`;
    /// after it, generation is counted where the row says so.
    fn prepare_update(&self, context: &Context<'_>, object: &mut Value, old: &Value) {
        let _ = (context, object, old);
    }

    /// Whether a change counts in `metadata.generation`, for kinds that count; `None` counts every
    /// change outside metadata and status.
    fn counts_generation(&self, object: &Value, old: &Value) -> Option<bool> {
        let _ = (object, old);
        None
    }

    /// Keeps what a write through the subresource of `context` may not change. The default suits a
    /// status subresource: only `status` and `metadata.managedFields` come from the write.
    fn prepare_subresource(&self, context: &Context<'_>, object: &mut Value, old: &Value) {
        let _ = context;
        let status = object.get("status").cloned();
        let managed = object.at(&["metadata", "managedFields"]).cloned();
        *object = old.clone();
        match status {
            Some(status) => object.set(&["status"], status),
            None => drop(object.remove(&["status"])),
        }
        if let Some(managed) = managed {
            object.set(&["metadata", "managedFields"], managed);
        }
    }

    /// The rule for names of new objects, if it is not that of the kind's row: a kind whose names
    /// depend on other fields is lenient here and checks them in `validate_create`.
    fn name_rule(&self) -> Option<NameRule> {
        None
    }

    /// Validates a new object. Its metadata has been checked before, names by the rule of the kind's
    /// row; finalizers have not, see `object_metadata::validate_finalizers`.
    fn validate_create(&self, context: &Context<'_>, object: &Value) -> Vec<FieldError> {
        let _ = (context, object);
        Vec::new()
    }

    /// Validates a changed object; for its metadata call `object_metadata::validate_update`.
    fn validate_update(
        &self,
        context: &Context<'_>,
        object: &Value,
        old: &Value,
    ) -> Vec<FieldError> {
        let _ = (context, object, old);
        Vec::new()
    }

    /// Validates an object changed through the subresource of `context`.
    fn validate_subresource(
        &self,
        context: &Context<'_>,
        object: &Value,
        old: &Value,
    ) -> Vec<FieldError> {
        let _ = (context, object, old);
        Vec::new()
    }

    /// Texts for the client about an object that is accepted.
    fn warnings(&self, context: &Context<'_>, object: &Value, old: Option<&Value>) -> Vec<String> {
        let _ = (context, object, old);
        Vec::new()
    }

    /// The cells of the object's table row, one for each column of the kind's row.
    fn cells(&self, object: &Value, now: i64) -> Vec<Value> {
        vec![
            Value::string(object.str_at(&["metadata", "name"])),
            age(object.str_at(&["metadata", "creationTimestamp"]), now),
        ]
    }

    /// The value of a selectable field of a stored object; `None` takes it from the path of that
    /// name. Reads the bytes: whoever watches by a field asks it of each event.
    fn field(&self, object: Scanned<'_>, name: &str) -> Option<Str> {
        let _ = (object, name);
        None
    }

    /// The version that objects are prepared and validated in.
    fn prepared_in(&self) -> PreparedIn {
        PreparedIn::Storage
    }

    /// What converts objects of the kind between any two versions, if `to_stored` and `to_served`
    /// do not.
    fn converter(&self) -> Option<Arc<dyn Converter>> {
        None
    }

    /// Turns an object of the version `served` into the stored one.
    fn to_stored(&self, served: &str, object: Value) -> Value {
        let _ = served;
        object
    }

    /// Turns a stored object into one of the version `served`.
    fn to_served(&self, served: &str, object: Value) -> Value {
        let _ = served;
        object
    }

    /// Addresses, ports and the like that a write takes or gives back: fills `object` and returns
    /// the claims that keep two writes from taking the same. `old` is absent on create, `object`
    /// null on delete.
    ///
    /// # Errors
    /// The error for the client if nothing is free or the requested value is taken.
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

    /// Refuses a write through the subresource of `context` for what other objects say.
    ///
    /// # Errors
    /// The error for the client.
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

    /// Objects that come with a new one in the same commit.
    fn companions(&self, context: &Context<'_>, object: &Value) -> Vec<Companion> {
        let _ = (context, object);
        Vec::new()
    }

    /// True if a deleted object stays for something beside its finalizers.
    fn awaits(&self, object: &Value) -> bool {
        let _ = object;
        false
    }

    /// Changes an object that is marked as deleted and stays for a while.
    fn prepare_deletion(&self, object: &mut Value) {
        let _ = object;
    }

    /// How long the object stays when it is deleted with the wished grace period.
    fn grace(&self, object: &Value, wished: Option<i64>) -> Grace {
        let _ = (object, wished);
        Grace::Now
    }

    /// Refuses a deletion.
    ///
    /// # Errors
    /// The error for the client.
    fn admit_delete(&self, context: &Context<'_>, object: &Value) -> Result<(), ApiError> {
        let _ = (context, object);
        Ok(())
    }

    /// A warning for every client of the kind, if it is deprecated.
    fn deprecation(&self) -> Option<&'static str> {
        None
    }

    /// True if a deletion answers with the object instead of a Status.
    fn returns_deleted(&self) -> bool {
        false
    }

    /// Seconds after which a new object expires; `None` for never.
    fn lifetime(&self, object: &Value) -> Option<i64> {
        let _ = object;
        None
    }
}

/// The cell that tells how long ago `time` was: `5d3h`, or `<unknown>` if it is not set.
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
