//! PUT: replacing an object, or creating one for some kinds.

use crate::answer::negotiate;
use crate::kinds::table::Resource;
use crate::plan::object::VersionPrecondition;
use crate::plan::{
    self, ChangeRequest, Decoded, Defaulted, Interrupted, ObjectChange, PathName, Present, Rules,
    Run, Target,
};
use crate::request::call::{Call, check_key_name};
use crate::request::options::{Persistence, WriteOptions};
use crate::verbs::create::Sent;
use crate::write::{self, Written};
use polyplane_apimachinery::Value;
use polyplane_apimachinery::status::ApiError;
use polyplane_plane::ObjectRef;

/// Replaces the object of the path by the request's body.
///
/// # Errors
/// Returns upstream's errors.
pub async fn update(call: &Call<'_>) -> Result<Written, ApiError> {
    let name = call.name()?.clone();
    let options = WriteOptions::parse(call.request, "UpdateOptions")?;
    let syntax = negotiate::input(call.request)?;
    let sent = Sent::read(call, syntax, &options, PathName::Given(&name))?;
    let mut update = Update {
        request: ChangeRequest {
            call,
            name,
            options,
        },
        sent,
    };
    write::change(call, &mut update).await
}

struct Update<'a> {
    request: ChangeRequest<'a>,
    sent: Sent,
}

impl ObjectChange for Update<'_> {
    fn request(&self) -> &ChangeRequest<'_> {
        &self.request
    }

    fn rules(&self) -> Rules<'_> {
        Rules::OfKind(self.request.call.subresource())
    }

    fn version_precondition(&self) -> VersionPrecondition {
        VersionPrecondition::AsGiven
    }

    fn propose(&mut self, run: &mut Run<'_>) -> Result<(Defaulted, Target), Interrupted> {
        let existing = run.cut.get(&self.key());
        if existing.is_none() && !self.may_create() {
            return Err(self.request.call.not_found(&self.request.name).into());
        }
        let path_name = PathName::Given(&self.request.name);
        let sent = self.sent.take(run.call, &self.request.options, path_name)?;
        match existing {
            Some(existing) => {
                check_uid(&self.request, sent.tree(), &existing)?;
                let present = Present::read(run, self.request.call.row, existing)?;
                Ok((sent, Target::Present(present)))
            }
            None => {
                check_key_name(&self.request.name)?;
                let uid = sent.tree().str_at(&["metadata", "uid"]);
                if !uid.is_empty() {
                    let call = self.request.call;
                    let detail = precondition_failed(&self.request, call.row, "UID", uid, "");
                    return Err(call.conflict(&self.request.name, &detail).into());
                }
                Ok((sent.as_new(), Target::New))
            }
        }
    }

    fn default(&self, call: &Call<'_>, decoded: Decoded) -> Result<Defaulted, ApiError> {
        plan::default(call, decoded, PathName::Given(&self.request.name))
    }
}

impl Update<'_> {
    /// Returns whether a PUT to an absent name creates an object.
    fn may_create(&self) -> bool {
        let call = self.request.call;
        call.row.rules.create_on_update && matches!(call.subresource(), "" | "status")
    }
}

/// Checks that the uid in a body is that of the stored object.
///
/// # Errors
/// Returns 409 if it is another one.
pub fn check_uid(
    request: &ChangeRequest<'_>,
    tree: &Value,
    existing: &ObjectRef,
) -> Result<(), ApiError> {
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
    let call = request.call;
    let detail = precondition_failed(request, call.row, "UID", given, &present);
    Err(call.conflict(&request.name, &detail))
}

/// Returns upstream's text for a precondition that does not hold, about the object of a request that
/// is stored under `row`.
pub fn precondition_failed(
    request: &ChangeRequest<'_>,
    row: &Resource,
    what: &str,
    wished: &str,
    present: &str,
) -> String {
    let why = format!(
        "Precondition failed: {what} in precondition: {wished}, {what} in object meta: {present}"
    );
    let object = (row, request.call.namespace(), &*request.name);
    invalid_object(object, request.options.persistence, &why)
}

/// Returns upstream's text about an object that its store does not take for what it should be.
pub fn invalid_object(
    (row, namespace, name): (&Resource, &str, &str),
    persistence: Persistence,
    why: &str,
) -> String {
    // A dry run does not reach the layer of upstream's store that adds the root to keys.
    let root = match persistence {
        Persistence::Store => "/registry",
        Persistence::DryRun => "",
    };
    let prefix = &row.storage.upstream_prefix;
    let place = match namespace {
        "" => format!("{root}/{prefix}/{name}"),
        namespace => format!("{root}/{prefix}/{namespace}/{name}"),
    };
    format!(
        "StorageError: invalid object, Code: 4, Key: {place}, ResourceVersion: 0, AdditionalErrorMsg: {why}"
    )
}
