//! PATCH: JSON patch, merge patch, strategic merge patch and server-side apply.
//!
//! A patch is applied to the object in the version of the request. It is applied again whenever
//! another write came first; that is a conflict only if the patch itself names a version. An apply
//! also creates the object.

mod shown;

use crate::answer::negotiate::{CUSTOM_PATCH_TYPES, PATCH_TYPES};
use crate::plan::fields;
use crate::plan::fields::ManagedKind;
use crate::plan::object::VersionPrecondition;
use crate::plan::{
    self, ChangeRequest, Decoded, Defaulted, Interrupted, ObjectChange, Ownership, PathName,
    Present, Rules, Run, Target,
};
use crate::request::body;
use crate::request::body::Expected;
use crate::request::body::custom::Misnamed;
use crate::request::call::{Call, check_key_name};
use crate::request::options::{self, FieldValidation, WriteOptions};
use crate::request::trees;
use crate::verbs::apply::Configuration;
use crate::verbs::patch::shown::{go_map, shown};
use crate::write::{self, Written};
use polyplane_apimachinery::field_error::{FieldError, Path};
use polyplane_apimachinery::json::{self, Limits};
use polyplane_apimachinery::patch::json_patch;
use polyplane_apimachinery::patch::json_patch::{FieldCheck, JsonPatch};
use polyplane_apimachinery::patch::merge_patch::MergePatch;
use polyplane_apimachinery::patch::strategic_merge_patch;
use polyplane_apimachinery::patch::strategic_merge_patch::remainder::remainder;
use polyplane_apimachinery::quote::quote;
use polyplane_apimachinery::schema::decode::{AsSent, Beyond, Literals, Numbers, Problem};
use polyplane_apimachinery::schema::{DefId, Schemas};
use polyplane_apimachinery::status::{ApiError, Qualified, Reason};
use polyplane_apimachinery::value::Weight;
use polyplane_apimachinery::{Map, Value};
use polyplane_plane::ObjectRef;

/// A patch after parsing.
pub enum Patch {
    /// A list of operations (RFC 6902).
    Json(JsonPatch),
    /// A tree of changes (RFC 7386).
    Merge(MergePatch),
    /// A tree of changes that follows the schema of the kind (strategic merge patch).
    Strategic(Value),
}

/// A parsed patch with the complaints about its text.
pub struct ReadPatch {
    /// The patch.
    pub patch: Patch,
    /// The complaints of strict parsing, such as repeated keys.
    pub complaints: Vec<String>,
    /// The numbers that its result has with the digits that were written. Upstream turns those of a strategic
    /// merge patch into floats.
    literals: Literals,
}

fn media_type<'c>(call: &'c Call<'_>) -> &'c str {
    let media = call.request.content_type.as_deref().unwrap_or("");
    media.split(';').next().unwrap_or("").trim()
}

/// Checks the type of a patch of a custom object, which upstream does before anything else.
///
/// # Errors
/// Returns 415 for a type that custom kinds do not accept.
pub fn check_type(call: &Call<'_>) -> Result<(), ApiError> {
    match call.row.custom.is_none() || CUSTOM_PATCH_TYPES.contains(&media_type(call)) {
        true => Ok(()),
        false => Err(ApiError::unsupported_media_type(&CUSTOM_PATCH_TYPES)),
    }
}

/// Reads the patch of the request's body.
///
/// # Errors
/// Returns 415 for an unknown type, 400 if it is malformed, 413 if it has too many operations.
pub fn read(call: &Call<'_>, validation: FieldValidation) -> Result<ReadPatch, ApiError> {
    let body = &call.request.body;
    check_type(call)?;
    match media_type(call) {
        "application/json-patch+json" => {
            let check = match validation {
                FieldValidation::Ignore => FieldCheck::Ignore,
                FieldValidation::Warn | FieldValidation::Strict => FieldCheck::Report,
            };
            let patch =
                JsonPatch::parse(body, &Limits::default(), check).map_err(|error| match error {
                    json_patch::DecodeError::TooMany(_) => {
                        ApiError::request_entity_too_large(error.to_string())
                    }
                    other => ApiError::bad_request(other.to_string()),
                })?;
            let complaints = patch.strict_errors.clone();
            Ok(ReadPatch {
                patch: Patch::Json(patch),
                complaints,
                literals: Literals::of(body),
            })
        }
        "application/merge-patch+json" => {
            let is_checked = validation != FieldValidation::Ignore || call.row.custom.is_some();
            let parsed = match is_checked {
                true => MergePatch::parse(body, &Limits::default()),
                false => MergePatch::parse_unchecked(body, &Limits::default()),
            };
            let patch = parsed.map_err(|error| ApiError::bad_request(error.to_string()))?;
            let complaints = repeated(&patch.duplicates);
            Ok(ReadPatch {
                patch: Patch::Merge(patch),
                complaints,
                literals: Literals::of(body),
            })
        }
        "application/strategic-merge-patch+json" => {
            let parsed = json::parse(body, &Limits::default())
                .map_err(|_| ApiError::bad_request("invalid JSON patch"))?;
            let tree = match parsed.value {
                tree @ Value::Object(_) => tree,
                // In Go this is a map without members.
                Value::Null => Value::object(),
                other => {
                    let kind = other.go_kind();
                    return Err(ApiError::bad_request(format!(
                        "json: cannot unmarshal {kind} into Go value of type map[string]interface {{}}"
                    )));
                }
            };
            let complaints = repeated(&parsed.duplicates);
            Ok(ReadPatch {
                patch: Patch::Strategic(tree),
                complaints,
                literals: Literals::default(),
            })
        }
        _ => Err(ApiError::unsupported_media_type(&PATCH_TYPES)),
    }
}

/// The reason why a patch has no result.
enum Failed {
    /// The patch fails with this error.
    Answer(ApiError),
    /// The result is not an object of the kind. The client gets this reason.
    Refused(String),
    /// The result names no kind.
    NoKind,
}

impl From<Misnamed> for Failed {
    fn from(misnamed: Misnamed) -> Self {
        match misnamed {
            Misnamed::Unread(error) => Self::Refused(error.to_string()),
            Misnamed::NoKind => Self::NoKind,
            Misnamed::Refused(error) => Self::Answer(error),
        }
    }
}

impl From<ApiError> for Failed {
    fn from(error: ApiError) -> Self {
        Self::Answer(error)
    }
}

/// The part of an object that a patch is applied to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Part {
    /// All of it.
    Whole,
    /// All but the owners of its fields, which stay as they are if the patch does not name them.
    /// They are often half of an object.
    WithoutOwners,
}

impl ReadPatch {
    /// Applies the patch to a tree that has its kind and version in it, and decodes the result.
    /// `tree` is called again, for the whole object, if a refusal shows the original.
    ///
    /// # Errors
    /// Returns upstream's errors, which depend on the kind of patch.
    pub fn apply(
        &self,
        call: &Call<'_>,
        expected: Expected<'_>,
        tree: impl Fn(Part) -> Value,
        validation: FieldValidation,
    ) -> Result<Decoded, ApiError> {
        let schemas = expected.schemas;
        let definition = expected.definition;
        let failed = match self.apply_once(call, expected, tree(self.needs()), validation) {
            Ok(patched) => return Ok(patched),
            Err(Failed::Answer(error)) => return Err(error),
            Err(Failed::Refused(why)) => Some(why),
            Err(Failed::NoKind) => None,
        };
        let original = tree(Part::Whole);
        let shown = match &self.patch {
            Patch::Strategic(patch) => {
                go_map(&remainder(schemas, definition, &original, patch.clone()))
            }
            Patch::Json(_) | Patch::Merge(_) => {
                let patched = self.changed(schemas, definition, tree(Part::Whole))?;
                match expected.custom {
                    None => shown(schemas, definition, &original, &patched),
                    // Upstream stores custom objects in the order of their members' names.
                    Some(_) => json::to_string(&patched),
                }
            }
        };
        let why = failed.unwrap_or_else(|| format!("Object 'Kind' is missing in '{shown}'"));
        Err(refused(&shown, &why))
    }

    fn weight(&self) -> Weight {
        match &self.patch {
            Patch::Json(patch) => patch.weight(),
            Patch::Merge(patch) => patch.weight(),
            Patch::Strategic(patch) => Weight::of(patch),
        }
    }

    /// Returns the part of the object that the result depends on.
    fn needs(&self) -> Part {
        let names_owners = match &self.patch {
            // A path may reach them in many ways, and a directive may remove what it does not name.
            Patch::Json(_) | Patch::Strategic(_) => true,
            Patch::Merge(patch) => patch.changes(&["metadata", "managedFields"]),
        };
        match names_owners {
            true => Part::Whole,
            false => Part::WithoutOwners,
        }
    }

    /// Returns the result of the patch on a tree, not yet in canonical form.
    fn changed(
        &self,
        schemas: &Schemas,
        definition: DefId,
        mut tree: Value,
    ) -> Result<Value, ApiError> {
        match &self.patch {
            Patch::Json(patch) => patch.apply(tree).map_err(|error| unprocessable(&error.0)),
            Patch::Merge(patch) => {
                patch.apply(&mut tree);
                Ok(tree)
            }
            Patch::Strategic(patch) => {
                strategic_merge_patch::apply(schemas, definition, tree, patch.clone()).map_err(
                    |error| {
                        let text = error.to_string();
                        match error.answer() {
                            strategic_merge_patch::Answer::BadRequest => {
                                ApiError::bad_request(text)
                            }
                            strategic_merge_patch::Answer::Unprocessable => unprocessable(&text),
                            strategic_merge_patch::Answer::Internal => {
                                ApiError::new(Reason::Unknown, &text)
                            }
                        }
                    },
                )
            }
        }
    }

    fn apply_once(
        &self,
        call: &Call<'_>,
        expected: Expected<'_>,
        tree: Value,
        validation: FieldValidation,
    ) -> Result<Decoded, Failed> {
        let schemas = expected.schemas;
        let definition = expected.definition;
        let mut patched = self.changed(schemas, definition, tree)?;
        if let Patch::Json(patch) = &self.patch
            && patch.copies()
        {
            // A short patch of a short object may make one of any length.
            let weigh = || Weight::of(&patched);
            call.count_tree(trees::Source::Stored, usize::MAX, weigh)?;
        }
        if expected.custom.is_none() {
            schemas.restore_quantities(definition, &mut patched, &self.literals);
            fields::keep_reset(&mut patched);
        }
        let mut complaints = self.complaints.clone();
        if expected.custom.is_some() {
            body::custom::check_patched(&patched, expected, call.subresource())?;
        } else if !matches!(self.patch, Patch::Strategic(_)) {
            let of_custom_kind = call.row.custom.is_some();
            let checked = match of_custom_kind {
                true => body::scale::check_patched(&patched, expected),
                false => body::check_patched(&patched, expected),
            };
            checked.map_err(|error| Failed::Refused(error.to_string()))?;
            if !of_custom_kind && patched.str_at(&["apiVersion"]).is_empty() {
                complaints.extend(all_unknown(&patched));
                patched = Value::object();
            }
        }
        let numbers = match self.patch {
            Patch::Strategic(_) => Numbers::ByValue,
            _ => Numbers::AsWritten,
        };
        let decoded = match expected.custom {
            Some(custom) => {
                body::custom::decode_patched(&mut patched, expected, custom).map(|problems| {
                    AsSent {
                        problems,
                        beyond: Beyond::Nothing,
                    }
                })
            }
            None => schemas.decode_as_sent(definition, &mut patched, numbers),
        };
        let decoded = decoded.map_err(|error| Failed::Refused(error.to_string()))?;
        self.check_convertible(call, expected, &patched)?;
        let complaint: fn(&Problem) -> String = match expected.custom {
            Some(_) => body::custom::complaint,
            None => Problem::to_string,
        };
        complaints.extend(decoded.problems.iter().map(complaint));
        match validation {
            FieldValidation::Ignore => {}
            FieldValidation::Warn => complaints.into_iter().for_each(|text| call.warn(text)),
            FieldValidation::Strict if complaints.is_empty() => {}
            FieldValidation::Strict => {
                let text = format!("strict decoding error: {}", complaints.join(", "));
                return Err(Failed::Refused(text));
            }
        }
        Ok(Decoded::as_sent(patched, decoded.beyond))
    }

    /// Refuses a result that upstream cannot convert. If a strategic merge patch makes it, the client gets the bare
    /// error.
    fn check_convertible(
        &self,
        call: &Call<'_>,
        expected: Expected<'_>,
        patched: &Value,
    ) -> Result<(), Failed> {
        match (
            body::unconvertible(call, expected.kind, patched),
            &self.patch,
        ) {
            (None, _) => Ok(()),
            (Some(why), Patch::Strategic(_)) => Err(ApiError::new(Reason::Unknown, why).into()),
            (Some(why), Patch::Json(_) | Patch::Merge(_)) => Err(Failed::Refused(why)),
        }
    }
}

/// Reports that the result of a patch, which upstream shows as `shown`, is not an object of the kind.
fn refused(shown: &str, why: &str) -> ApiError {
    let error = FieldError::invalid(&Path::new("patch"), shown, why);
    ApiError::invalid(Qualified::new("", ""), "", &[error])
}

/// Returns the complaints about an object without a version. Upstream reads it in its internal form, which has
/// none of the fields of any version.
fn all_unknown(patched: &Value) -> impl Iterator<Item = String> {
    let members = patched.as_object().into_iter().flat_map(Map::keys);
    let unknown = members.filter(|name| !matches!(*name, "kind" | "apiVersion"));
    unknown.map(|name| Problem::Unknown(name.to_owned()).to_string())
}

fn repeated(paths: &[String]) -> Vec<String> {
    paths
        .iter()
        .map(|path| format!("duplicate field {}", quote(path)))
        .collect()
}

fn unprocessable(text: &str) -> ApiError {
    ApiError::generic(422, "", Qualified::new("", ""), "", text)
}

/// Patches the object of the path.
///
/// # Errors
/// Returns upstream's errors.
pub async fn patch(call: &Call<'_>) -> Result<Written, ApiError> {
    check_type(call)?;
    let name = call.name()?.clone();
    let options = WriteOptions::parse(call.request, "PatchOptions")?;
    let source = if options::is_apply(call.request) {
        Source::Apply(Configuration::read(call)?)
    } else {
        // An error in a patch, other than one of its syntax, is reported only once there is an
        // object to patch.
        let patch = read(call, options.field_validation);
        if patch.is_err() && !json::validate(&call.request.body, &Limits::default()) {
            return Err(ApiError::bad_request("invalid JSON patch"));
        }
        if let Ok(patch) = &patch {
            let text_bytes = call.request.body.len();
            call.count_tree(trees::Source::Body, text_bytes, || patch.weight())?;
        }
        Source::Patch(patch)
    };
    let mut patch = PatchObject {
        request: ChangeRequest {
            call,
            name,
            options,
        },
        source,
        version: VersionPrecondition::Any,
    };
    write::change(call, &mut patch).await
}

/// The body of a PATCH.
enum Source {
    Patch(Result<ReadPatch, ApiError>),
    Apply(Configuration),
}

struct PatchObject<'a> {
    request: ChangeRequest<'a>,
    source: Source,
    /// The version that the patched object names.
    version: VersionPrecondition,
}

impl ObjectChange for PatchObject<'_> {
    fn request(&self) -> &ChangeRequest<'_> {
        &self.request
    }

    fn rules(&self) -> Rules<'_> {
        Rules::OfKind(self.request.call.subresource())
    }

    fn ownership(&self) -> Ownership {
        match self.source {
            Source::Patch(_) => Ownership::OfChanges,
            Source::Apply(_) => Ownership::OfVerb,
        }
    }

    fn version_precondition(&self) -> VersionPrecondition {
        self.version
    }

    fn propose(&mut self, run: &mut Run<'_>) -> Result<(Defaulted, Target), Interrupted> {
        let call = self.request.call;
        let existing = run.cut.get(&self.key());
        let patch = match &self.source {
            Source::Apply(configuration) => return self.merge(run, configuration, existing),
            Source::Patch(patch) => patch,
        };
        let Some(existing) = existing else {
            return Err(call.not_found(&self.request.name).into());
        };
        let patch = patch.as_ref().map_err(ApiError::clone)?;
        let present = Present::read(run, call.row, existing)?;
        let served = |part| {
            let tree = match part {
                Part::Whole => present.tree().clone(),
                Part::WithoutOwners => fields::without_owners(present.tree()),
            };
            let mut tree = call.to_served(tree);
            tree.set(&["kind"], call.row.kind.clone());
            tree.set(&["apiVersion"], call.row.api_version.clone());
            tree
        };
        let validation = self.request.options.field_validation;
        let merged = patch.apply(call, self.subject(), served, validation)?;
        let merged = self.default(call, merged)?;
        let names = |tree: &Value| {
            let version = tree.str_at(&["metadata", "resourceVersion"]);
            !matches!(version, "" | "0")
        };
        // The patch has taken away the version that it was given.
        self.version = match names(present.tree()) && !names(merged.tree()) {
            true => VersionPrecondition::AsGiven,
            false => VersionPrecondition::Any,
        };
        Ok((merged, Target::Present(present)))
    }

    fn default(&self, call: &Call<'_>, decoded: Decoded) -> Result<Defaulted, ApiError> {
        plan::default(call, decoded, PathName::Given(&self.request.name))
    }

    /// An apply that changes nothing keeps the stored object, which a conversion there and back
    /// could change.
    fn apply(
        &mut self,
        run: &mut Run<'_>,
        subject: Value,
        target: &Target,
    ) -> Result<Value, Interrupted> {
        if let (Source::Apply(_), Target::Present(present)) = (&self.source, target)
            && run.call.row.converts()
            && fields::same_content(&subject, &run.call.as_served(present.tree()))
        {
            return Ok(fields::with_owners_of(present.tree(), &subject));
        }
        Ok(run.call.to_prepared(subject))
    }
}

impl PatchObject<'_> {
    /// Applies to the existing object, or creates one.
    fn merge(
        &self,
        run: &mut Run<'_>,
        configuration: &Configuration,
        existing: Option<ObjectRef>,
    ) -> Result<(Defaulted, Target), Interrupted> {
        let call = self.request.call;
        let name = &self.request.name;
        let kind = ManagedKind::of_row(run.call);
        let options = &self.request.options;
        let Some(existing) = existing else {
            let creates = match call.subresource() {
                "" => true,
                "status" => call.row.rules.create_on_update || call.row.strategy.status_creates(),
                _ => false,
            };
            if !creates {
                return Err(call.not_found(name).into());
            }
            check_key_name(name)?;
            let applied = configuration.apply(run, kind, None, options)?;
            let uid = applied.str_at(&["metadata", "uid"]);
            if !uid.is_empty() {
                let why = format!(
                    "uid mismatch: the provided object specified uid {uid}, and no existing object was found"
                );
                return Err(call.conflict(name, &why).into());
            }
            let applied = self.default(call, Decoded::new(applied))?;
            return Ok((applied.as_new(), Target::New));
        };
        let present = Present::read(run, call.row, existing)?;
        let live = call.as_served(present.tree());
        let applied = configuration.apply(run, kind, Some(&live), options)?;
        drop(live);
        let applied = self.default(call, Decoded::new(applied))?;
        Ok((applied, Target::Present(present)))
    }
}
