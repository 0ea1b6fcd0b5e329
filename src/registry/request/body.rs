//! The conversion of the bytes of a request body into a canonical tree.
//!
//! Owns the order in which the errors of a body are found: syntax, then the kind it names, then the
//! types of its members, then members that are unknown or repeated. The texts are upstream's.

pub(crate) mod custom;
mod named;
pub(crate) mod options;
mod protobuf;
pub(crate) mod scale;

use crate::answer::negotiate::BodySyntax;
use crate::kinds::custom::CustomKind;
use crate::kinds::table::{Resource, api_version};
use crate::plan::fields;
use crate::request::call::Call;
use crate::request::options::FieldValidation;
use crate::request::trees::{self, Source};
use named::{Named, named_in_text, named_kind};
use polyplane_apimachinery::json::{self, Duplicates, Limits};
use polyplane_apimachinery::schema::decode::{
    AsSent, Beyond, DecodeError, Empties, Numbers, Problem,
};
use polyplane_apimachinery::schema::proto::{Envelope, ProtoError};
use polyplane_apimachinery::schema::{DefId, Schemas};
use polyplane_apimachinery::status::ApiError;
use polyplane_apimachinery::value::{Sharing, Weight};
use polyplane_apimachinery::{Str, Value, yaml};
use protobuf::Message;

/// The kind a body is expected to have.
#[derive(Debug, Clone, Copy)]
pub struct Expected<'a> {
    /// The API group.
    pub group: &'a str,
    /// Version.
    pub version: &'a str,
    /// Kind.
    pub kind: &'a str,
    /// The schemas that `definition` belongs to.
    pub schemas: &'a Schemas,
    /// Schema.
    pub definition: DefId,
    /// The schema of a kind that an object of the plane has defined.
    pub custom: Option<&'a CustomKind>,
}

impl<'a> Expected<'a> {
    /// Returns the kind of a row.
    pub fn of(row: &'a Resource) -> Self {
        Self {
            group: &row.group,
            version: &row.version,
            kind: &row.kind,
            schemas: &row.schemas,
            definition: row.definition,
            custom: row.custom.as_ref(),
        }
    }
}

/// Returns the place of upstream's registry of a group's kinds, as errors of released binaries name
/// it. A binary built from modules names the place where any such registry is made instead.
fn scheme(group: &str) -> &'static str {
    match group {
        "apiextensions.k8s.io" => "pkg/apiserver/apiserver.go:56",
        "apiregistration.k8s.io" => "pkg/apiserver/scheme/scheme.go:28",
        _ => "pkg/api/legacyscheme/scheme.go:30",
    }
}

/// Number of bytes of a body that are shown to a client which has sent something other than an
/// object.
const SHOWN_MAX: usize = 30;
const UNKNOWN_KIND: &str = "couldn't get version/kind; json parse error: ";
const META_STRUCT: &str = "struct { APIVersion string \"json:\\\"apiVersion,omitempty\\\"\"; Kind string \"json:\\\"kind,omitempty\\\"\" }";

/// The reason why a body cannot be read, with upstream's text.
#[derive(Debug, thiserror::Error)]
pub enum BodyError {
    /// The body is not JSON.
    #[error("{UNKNOWN_KIND}{0}")]
    Json(json::JsonError),
    /// The body is not YAML.
    #[error(transparent)]
    Yaml(#[from] yaml::YamlError),
    /// The body is not a protobuf message in the envelope of the API.
    #[error(transparent)]
    Protobuf(#[from] ProtoError),
    /// A member has another type than its schema.
    #[error(transparent)]
    Member(#[from] DecodeError),
    /// The body is a JSON value of this type, and not an object.
    #[error("{UNKNOWN_KIND}json: cannot unmarshal {0} into Go value of type {META_STRUCT}")]
    NoObject(&'static str),
    /// The member for kind or version is not a text.
    #[error(
        "{UNKNOWN_KIND}json: cannot unmarshal {found} into Go struct field .{member} of type string"
    )]
    NoText {
        /// The name of the member.
        member: &'static str,
        /// The type of its value.
        found: &'static str,
    },
    /// The version has more than one slash.
    #[error("unexpected GroupVersion string: {0}")]
    GroupVersion(Str),
    /// The body, which this shows, names a group without a version.
    #[error("Object 'apiVersion' is missing in '{0}'")]
    NoVersion(String),
    /// The kind is not the expected one; the text is upstream's.
    #[error("{0}")]
    OtherKind(String),
}

/// Reads the request's body, which should be of the `expected` kind. Complaints that do not fail
/// the request become warnings of `call`.
///
/// # Errors
/// Returns 400 with upstream's reason, and 429 if there is no memory for an object of so many values.
pub fn decode(
    call: &Call<'_>,
    syntax: BodySyntax,
    expected: Expected<'_>,
    validation: FieldValidation,
) -> Result<Value, ApiError> {
    let mut sent = decode_as_sent(call, syntax, expected, validation)?;
    if let Some(error) = sent.other_kind {
        return Err(error);
    }
    if sent.beyond != Beyond::Nothing {
        to_stored_form(expected, &mut sent.tree)?;
    }
    Ok(sent.tree)
}

/// Brings a tree that was decoded as it was sent into the form that is stored, but for empty lists and
/// maps that say something to whoever prepares and validates the object. Returns true if there are such.
///
/// # Errors
/// Returns 400 if something has changed the tree so that the schema does not allow it.
pub fn to_stored_form(expected: Expected<'_>, tree: &mut Value) -> Result<bool, ApiError> {
    let schemas = expected.schemas;
    let decoded = schemas.decode_again(expected.definition, tree, Empties::NullUnlessSaid);
    decoded
        .map(|decoded| decoded.beyond == Beyond::Said)
        .map_err(|error| ApiError::bad_request(error.to_string()))
}

/// Returns a tree as it is shown: without the empty lists and maps that its fields leave out. Nobody can
/// own them.
///
/// # Errors
/// See [`to_stored_form`].
pub fn as_shown(expected: Expected<'_>, tree: &Value) -> Result<Value, ApiError> {
    let mut shown = tree.clone();
    let schemas = expected.schemas;
    let decoded = schemas.decode_again(expected.definition, &mut shown, Empties::Keep);
    decoded
        .map(|_| shown)
        .map_err(|error| ApiError::bad_request(error.to_string()))
}

/// A body that was decoded as it was sent.
pub struct AsSentBody {
    /// The object.
    pub tree: Value,
    /// What the tree has beyond its stored form.
    pub beyond: Beyond,
    /// See [`Complaints::other_kind`].
    pub other_kind: Option<ApiError>,
}

/// Reads the request's body as [`decode`] does, but keeps what matters for the owners of fields:
/// see [`Empties::AsSent`].
///
/// # Errors
/// See [`decode`].
pub fn decode_as_sent(
    call: &Call<'_>,
    syntax: BodySyntax,
    expected: Expected<'_>,
    validation: FieldValidation,
) -> Result<AsSentBody, ApiError> {
    let body = &call.request.body;
    let (tree, complaints) = read(body, syntax, expected, Some(call.sharing()))?;
    let text_bytes = match syntax {
        BodySyntax::Yaml => trees::yaml_bytes(body.len()),
        BodySyntax::Json | BodySyntax::Protobuf => body.len(),
    };
    call.count_tree(Source::Body, text_bytes, || Weight::of(&tree))?;
    if let Some(why) = unconvertible(call, expected.kind, &tree) {
        return Err(cannot_be_handled(&complaints.named, expected, &why));
    }
    match validation {
        FieldValidation::Ignore => {}
        FieldValidation::Warn => complaints.texts.iter().for_each(|text| warn_of(call, text)),
        FieldValidation::Strict if complaints.texts.is_empty() => {}
        FieldValidation::Strict => {
            let text = format!("strict decoding error: {}", complaints.texts.join(", "));
            return Err(cannot_be_handled(&complaints.named, expected, &text));
        }
    }
    Ok(AsSentBody {
        tree,
        beyond: complaints.beyond,
        other_kind: complaints.other_kind,
    })
}

/// Returns the error of upstream's conversion of a decoded object of a kind; `None` if it can be converted.
pub(crate) fn unconvertible(call: &Call<'_>, kind: &str, tree: &Value) -> Option<String> {
    if kind != call.row.kind {
        return None;
    }
    call.row.strategy.unconvertible(tree)
}

/// Adds a complaint to the warnings. The complaints about YAML are in one text, one on each line.
pub(crate) fn warn_of(call: &Call<'_>, text: &str) {
    match text.strip_prefix("yaml: unmarshal errors:\n") {
        Some(lines) => lines.lines().for_each(|line| call.warn(line.trim())),
        None => call.warn(text),
    }
}

/// The complaints of strict decoding about a body.
pub struct Complaints {
    named: Named,
    /// The texts of the complaints.
    pub texts: Vec<String>,
    /// What the tree has beyond its stored form.
    pub beyond: Beyond,
    /// The error of a custom object that names another kind. Upstream finds it only when it validates the object,
    /// after the place of the object and its definition have been checked.
    pub other_kind: Option<ApiError>,
}

/// Reads bytes that should be of the `expected` kind. Sets of fields in them are taken from other
/// documents in `sharing` that had the same ones.
///
/// # Errors
/// Returns 400 with upstream's reason.
pub fn read(
    body: &[u8],
    syntax: BodySyntax,
    expected: Expected<'_>,
    sharing: Option<Sharing<'_>>,
) -> Result<(Value, Complaints), ApiError> {
    if let Some(custom) = expected.custom {
        return custom::read(body, syntax, (expected, custom), sharing);
    }
    let schemas = expected.schemas;
    let unrecognized = |error: BodyError| {
        let shown = summary(body);
        ApiError::bad_request(format!(
            "the object provided is unrecognized (must be of type {}): {error} ({shown})",
            expected.kind
        ))
    };
    let document = match syntax {
        BodySyntax::Protobuf => {
            let message = Message::open(body).map_err(unrecognized)?;
            Document::of(message.decode(expected)?)
        }
        BodySyntax::Json | BodySyntax::Yaml => {
            parse((schemas, expected.definition), body, syntax, sharing).map_err(unrecognized)?
        }
    };
    let Document {
        mut tree,
        complaints,
        repeats,
    } = document;
    let named = match syntax {
        BodySyntax::Json => named_in_text(&tree, body),
        BodySyntax::Yaml | BodySyntax::Protobuf => named_kind(&tree),
    };
    let named = named.map_err(unrecognized)?.or(expected);
    check_kind(&named, expected)?;
    fields::keep_reset(&mut tree);
    let decoded = bring_into_form(expected, &mut tree, syntax);
    let beyond = decoded.as_ref().map(|decoded| decoded.beyond);
    let beyond = beyond.unwrap_or_default();
    let mut outcome = decoded.map(|decoded| decoded.problems);
    if syntax == BodySyntax::Json
        && (repeats || !matches!(&outcome, Ok(problems) if problems.is_empty()))
    {
        // The error about JSON text depends on the order of its members, which the tree does not
        // have.
        let explained = schemas.explain(expected.definition, body);
        if outcome.is_ok() || explained.is_err() {
            outcome = explained;
        }
    }
    let problems =
        outcome.map_err(|error| cannot_be_handled(&named, expected, &error.to_string()))?;
    let texts = complaints
        .into_iter()
        .chain(problems.iter().map(Problem::to_string))
        .collect();
    let complaints = Complaints {
        named,
        texts,
        beyond,
        other_kind: None,
    };
    Ok((tree, complaints))
}

/// Brings the tree of a body into canonical form: see [`Empties::AsSent`].
fn bring_into_form(
    expected: Expected<'_>,
    tree: &mut Value,
    syntax: BodySyntax,
) -> Result<AsSent, DecodeError> {
    let (schemas, definition) = (expected.schemas, expected.definition);
    match syntax {
        BodySyntax::Protobuf => schemas.decode_again(definition, tree, Empties::AsSent),
        BodySyntax::Json | BodySyntax::Yaml => {
            schemas.decode_as_sent(definition, tree, Numbers::AsWritten)
        }
    }
}

/// A body that was parsed.
struct Document {
    tree: Value,
    /// The complaints of strict parsing about its syntax.
    complaints: Vec<String>,
    /// True if one of its members occurs more than once.
    repeats: bool,
}

impl Document {
    /// Returns the document of a tree about which there is nothing to say.
    fn of(tree: Value) -> Self {
        Self {
            tree,
            complaints: Vec::new(),
            repeats: false,
        }
    }
}

/// Parses bytes of any syntax.
fn parse(
    (schemas, definition): (&Schemas, DefId),
    body: &[u8],
    syntax: BodySyntax,
    sharing: Option<Sharing<'_>>,
) -> Result<Document, BodyError> {
    let limits = Limits {
        duplicates: Duplicates::MergeObjects,
        ..Limits::default()
    };
    match syntax {
        BodySyntax::Json => match json::parse_sharing(body, &limits, sharing) {
            Ok(mut parsed) => {
                if parsed.floats {
                    schemas.keep_written_quantities(definition, &mut parsed.value, body);
                }
                Ok(Document {
                    repeats: !parsed.duplicates.is_empty(),
                    ..Document::of(parsed.value)
                })
            }
            Err(error) => Err(BodyError::Json(error)),
        },
        BodySyntax::Yaml => match yaml::parse(body, &limits) {
            Ok(parsed) => Ok(Document {
                tree: parsed.value,
                complaints: parsed.strict_error.into_iter().collect(),
                repeats: false,
            }),
            Err(error) => Err(error.into()),
        },
        BodySyntax::Protobuf => {
            let tree = protobuf::object((schemas, definition), Envelope::open(body)?)?;
            Ok(Document::of(tree))
        }
    }
}

/// Checks that a patch has not changed kind and version.
///
/// # Errors
/// Returns the error of upstream's decoder about the object.
pub fn check_patched(tree: &Value, expected: Expected<'_>) -> Result<(), BodyError> {
    let named = named_kind(tree)?.or(expected);
    if named.is(expected) {
        return Ok(());
    }
    if scale::is_old(&named) {
        scale::check_old_selector(tree)?;
        // Upstream converts an old Scale to the one that is expected.
        return match expected.kind {
            "Scale" => Ok(()),
            _ => Err(BodyError::OtherKind(named.unconvertible(expected))),
        };
    }
    let schemas = expected.schemas;
    let other = schemas
        .kind(&named.group, &named.version, &named.kind)
        .ok_or_else(|| BodyError::OtherKind(named.unregistered(scheme(expected.group))))?;
    schemas.decode(other, &mut tree.clone(), Empties::Null)?;
    Err(BodyError::OtherKind(named.unconvertible(expected)))
}

fn check_kind(named: &Named, expected: Expected<'_>) -> Result<(), ApiError> {
    if named.is(expected) {
        return Ok(());
    }
    // A kind that another scheme serves is not known to this scheme.
    let foreign = scheme(&named.group) != scheme(expected.group);
    let served = expected
        .schemas
        .kind(&named.group, &named.version, &named.kind);
    if foreign || (served.is_none() && !scale::is_old(named)) {
        return Err(cannot_be_handled(
            named,
            expected,
            &named.unregistered(scheme(expected.group)),
        ));
    }
    if named.kind == expected.kind {
        let found = api_version(&named.group, &named.version);
        let wanted = api_version(expected.group, expected.version);
        return Err(ApiError::bad_request(format!(
            "the API version in the data ({found}) does not match the expected API version ({wanted})"
        )));
    }
    Err(cannot_be_handled(
        named,
        expected,
        &named.unconvertible(expected),
    ))
}

fn cannot_be_handled(named: &Named, expected: Expected<'_>, error: &str) -> ApiError {
    ApiError::bad_request(format!(
        "{} in version {:?} cannot be handled as a {}: {error}",
        named.kind, named.version, expected.kind
    ))
}

fn summary(body: &[u8]) -> String {
    let (shown, more) = match body.get(..SHOWN_MAX) {
        Some(shown) if body.len() > SHOWN_MAX => (shown, " ..."),
        _ => (body, ""),
    };
    match body.first() {
        None => "<empty>".to_owned(),
        Some(b'{') => format!("{}{more}", String::from_utf8_lossy(shown)),
        Some(_) => {
            let hex: String = shown.iter().map(|byte| format!("{byte:02x}")).collect();
            format!("{hex}{more}")
        }
    }
}

/// Checks that namespace and name of a body agree with those of the path, and fills in those that
/// the body leaves out.
///
/// # Errors
/// Returns 400 if they differ.
pub fn match_path(call: &Call<'_>, tree: &mut Value) -> Result<(), ApiError> {
    let wanted = call.namespace();
    let given = Str::from(tree.str_at(&["metadata", "namespace"]));
    if wanted.is_empty() {
        if !given.is_empty() {
            drop(tree.remove(&["metadata", "namespace"]));
        }
    } else if given.is_empty() {
        tree.set(&["metadata", "namespace"], wanted);
    } else if given != wanted {
        return Err(ApiError::bad_request(
            "the namespace of the provided object does not match the namespace sent on the request",
        ));
    }
    Ok(())
}

/// Checks that the name of a body is that of the path.
///
/// # Errors
/// Returns 400 if the body names another one or none.
pub fn match_name(tree: &Value, name: &str) -> Result<(), ApiError> {
    let given = tree.str_at(&["metadata", "name"]);
    if given.is_empty() {
        return Err(ApiError::bad_request(format!(
            "the name of the object ({name} based on URL) was undeterminable: name must be provided"
        )));
    }
    if given != name {
        return Err(ApiError::bad_request(format!(
            "the name of the object ({given}) does not match the name on the URL ({name})"
        )));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn named(text: &str) -> Result<(String, String, String), String> {
        let tree = json::parse(text.as_bytes(), &Limits::default())
            .expect("JSON")
            .value;
        let named = named_in_text(&tree, text.as_bytes()).map_err(|error| error.to_string())?;
        Ok((
            named.group.to_string(),
            named.version.to_string(),
            named.kind.to_string(),
        ))
    }

    #[test]
    fn the_last_spelling_of_the_kind_counts() {
        let found = named(
            r#"{"KIND":"A","kind":"B","APIversion":"apps/v1","\u212aind":"C","x":{"kind":"D"}}"#,
        );
        assert_eq!(
            found,
            Ok(("apps".to_owned(), "v1".to_owned(), "C".to_owned()))
        );
        let found = named(r#"{"Kind":"A","kind":"B","apiVersion":"v1"}"#);
        assert_eq!(found, Ok((String::new(), "v1".to_owned(), "B".to_owned())));
    }

    #[test]
    fn versions_of_more_than_two_parts_and_kinds_that_are_no_text_are_refused() {
        assert_eq!(
            named(r#"{"apiVersion":"a/b/c"}"#),
            Err("unexpected GroupVersion string: a/b/c".to_owned())
        );
        let error = named(r#"{"kINd":[]}"#).expect_err("a kind is text");
        assert!(
            error.ends_with("cannot unmarshal array into Go struct field .kind of type string"),
            "{error}"
        );
    }
}
