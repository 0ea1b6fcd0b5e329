//! PUT and the patches: a changed object.

use crate::body::{self, Expected};
use crate::call::Call;
use crate::create::{default_served, duplicate_owners};
use crate::metadata;
use crate::negotiate;
use crate::object::{VersionWish, plan_create, plan_update};
use crate::options::{Persistence, WriteOptions};
use crate::write::{self, Attempt, Plan, Written};
use polyplane_apimachinery::status::ApiError;
use polyplane_apimachinery::time::Timestamp;
use polyplane_apimachinery::{Str, Value};
use polyplane_plane::{Key, ObjectRef, Snapshot};

/// Replaces the object of the path by the request's body.
///
/// # Errors
/// As upstream.
pub async fn update(call: &Call<'_>) -> Result<Written, ApiError> {
    let name = call.name()?.clone();
    let options = WriteOptions::parse(call.request, "UpdateOptions")?;
    let syntax = negotiate::input(call.request)?;
    let mut tree = body::decode(
        call,
        syntax,
        Expected::of(call.row),
        options.field_validation,
    )?;
    default_served(call, &mut tree);
    body::match_path(call, &mut tree)?;
    body::match_name(&tree, &name)?;
    let duplicates = metadata::dedup_owner_references(&mut tree);
    if !duplicates.is_empty() {
        call.warn(duplicate_owners(&duplicates));
    }
    let tree = call.to_stored(tree);
    let mut attempt = Update {
        call,
        name,
        tree,
        persistence: options.persistence,
    };
    write::run(call, &mut attempt).await
}

struct Update<'a> {
    call: &'a Call<'a>,
    name: Str,
    tree: Value,
    persistence: Persistence,
}

impl Attempt for Update<'_> {
    fn key(&self) -> Key {
        self.call.key(&self.name)
    }

    async fn plan(&mut self, cut: &Snapshot) -> Result<Plan, ApiError> {
        let call = self.call;
        let Some(existing) = cut.get(&self.key()) else {
            return self.plan_absent(cut);
        };
        check_uid(call, &self.tree, &existing)?;
        plan_update(
            call,
            cut,
            &existing,
            self.tree.clone(),
            VersionWish::AsGiven,
            self.persistence,
        )
    }
}

impl Update<'_> {
    fn plan_absent(&self, cut: &Snapshot) -> Result<Plan, ApiError> {
        let call = self.call;
        if !call.row.rules.create_on_update || call.request.subresource.is_some() {
            return Err(call.not_found(&self.name));
        }
        let uid = self.tree.str_at(&["metadata", "uid"]);
        if !uid.is_empty() {
            let detail = precondition_failed(call, &self.name, "UID", uid, "");
            return Err(call.conflict(&self.name, &detail));
        }
        let mut tree = self.tree.clone();
        metadata::wipe_system_fields(&mut tree);
        drop(tree.remove(&["metadata", "resourceVersion"]));
        let now = Timestamp::from_seconds(call.environment.now()).to_rfc3339();
        metadata::fill_system_fields(&mut tree, call.environment.uid(), &now);
        plan_create(call, cut, tree, self.persistence)
    }
}

/// Checks that the uid in a body is that of the stored object.
///
/// # Errors
/// 409 if it is another.
pub fn check_uid(call: &Call<'_>, tree: &Value, existing: &ObjectRef) -> Result<(), ApiError> {
    let given = tree.str_at(&["metadata", "uid"]);
    if given.is_empty() {
        return Ok(());
    }
    let body = existing.body();
    let present = polyplane_apimachinery::json::scan::string_at(&body, &["metadata", "uid"]);
    let present = present.unwrap_or_default();
    if present == given {
        return Ok(());
    }
    let name = existing.key().name();
    Err(call.conflict(
        name,
        &precondition_failed(call, name, "UID", given, &present),
    ))
}

/// Upstream's text for a precondition that does not hold.
pub fn precondition_failed(
    call: &Call<'_>,
    name: &str,
    what: &str,
    wished: &str,
    present: &str,
) -> String {
    let place = match call.namespace() {
        "" => format!("/registry/{}/{name}", call.row.storage.resource),
        namespace => format!("/registry/{}/{namespace}/{name}", call.row.storage.resource),
    };
    format!(
        "StorageError: invalid object, Code: 4, Key: {place}, ResourceVersion: 0, AdditionalErrorMsg: Precondition failed: {what} in precondition: {wished}, {what} in object meta: {present}"
    )
}
