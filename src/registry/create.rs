//! POST: a new object.

use crate::body::{self, Expected};
use crate::call::Call;
use crate::environment::generate_name;
use crate::metadata;
use crate::negotiate;
use crate::object::plan_create;
use crate::options::WriteOptions;
use crate::prepare;
use crate::write::{self, Attempt, Plan, Written};
use polyplane_apimachinery::status::{ApiError, Reason};
use polyplane_apimachinery::time::Timestamp;
use polyplane_apimachinery::{Str, Value};
use polyplane_plane::{Key, Snapshot};

/// How often a generated name is drawn anew before the client is told that it exists.
const GENERATED_NAMES_MAX: u32 = 8;

/// Creates the object of the request's body.
///
/// # Errors
/// As upstream; see the crate's texts.
pub async fn create(call: &Call<'_>) -> Result<Written, ApiError> {
    let syntax = negotiate::input(call.request)?;
    let options = WriteOptions::parse(call.request, "CreateOptions")?;
    let tree = body::decode(
        call,
        syntax,
        Expected::of(call.row),
        options.field_validation,
    )?;
    let tree = admit(call, tree)?;
    let mut attempt = Create::new(call, tree, options);
    write::run(call, &mut attempt).await
}

/// Brings a decoded body into the state in which creation begins.
///
/// # Errors
/// 400 if it contradicts the path.
pub fn admit(call: &Call<'_>, mut tree: Value) -> Result<Value, ApiError> {
    default_served(call, &mut tree);
    metadata::wipe_system_fields(&mut tree);
    body::match_path(call, &mut tree)?;
    if !tree.str_at(&["metadata", "resourceVersion"]).is_empty()
        && tree.str_at(&["metadata", "resourceVersion"]) != "0"
    {
        return Err(ApiError::new(
            Reason::Unknown,
            "resourceVersion should not be set on objects to be created",
        ));
    }
    drop(tree.remove(&["metadata", "resourceVersion"]));
    let duplicates = metadata::dedup_owner_references(&mut tree);
    if !duplicates.is_empty() {
        call.warn(duplicate_owners(&duplicates));
    }
    Ok(call.to_stored(tree))
}

/// The warning about owner references that were given twice.
pub fn duplicate_owners(uids: &[Str]) -> String {
    format!(
        ".metadata.ownerReferences contains duplicate entries; API server dedups owner references in 1.20+, and may reject such requests as early as 1.24; please fix your requests; duplicate UID(s) observed: {}",
        uids.join(", ")
    )
}

/// Applies the defaults of the request's version.
pub fn default_served(call: &Call<'_>, tree: &mut Value) {
    prepare::default(call.row, call.row.definition, tree);
}

/// The creation of one object.
pub struct Create<'a> {
    call: &'a Call<'a>,
    tree: Value,
    options: WriteOptions,
    uid: Str,
    names_left: u32,
}

impl<'a> Create<'a> {
    /// Prepares the creation of `tree`, which is in the stored version.
    pub fn new(call: &'a Call<'a>, tree: Value, options: WriteOptions) -> Self {
        let uid = call.environment.uid();
        Self {
            call,
            tree,
            options,
            uid,
            names_left: GENERATED_NAMES_MAX,
        }
    }
}

impl Attempt for Create<'_> {
    fn key(&self) -> Key {
        self.call.key(self.tree.str_at(&["metadata", "name"]))
    }

    async fn plan(&mut self, cut: &Snapshot) -> Result<Plan, ApiError> {
        let now = Timestamp::from_seconds(self.call.environment.now()).to_rfc3339();
        let mut tree = self.tree.clone();
        metadata::fill_system_fields(&mut tree, self.uid.clone(), &now);
        let base = Str::from(tree.str_at(&["metadata", "generateName"]));
        if base.is_empty() || !tree.str_at(&["metadata", "name"]).is_empty() {
            return plan_create(self.call, cut, tree, self.options.persistence);
        }
        let mut name = generate_name(&base, self.call.environment);
        while self.names_left > 1 && cut.get(&self.call.key(&name)).is_some() {
            self.names_left -= 1;
            name = generate_name(&base, self.call.environment);
        }
        tree.set(&["metadata", "name"], name);
        plan_create(self.call, cut, tree, self.options.persistence)
    }
}
