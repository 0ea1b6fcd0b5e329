//! The body of a deletion: its options, which may be in the version of any group.
//!
//! Upstream reads options with a registry of their own, which knows a few other kinds too. An object of one
//! of these is read first, and then cannot be converted.

use super::named::{Named, named_in_text, named_kind};
use super::protobuf::{self, Message};
use super::{BodyError, parse};
use crate::answer::negotiate::BodySyntax;
use crate::request::call::Call;
use polyplane_apimachinery::Value;
use polyplane_apimachinery::schema::decode::Empties;
use polyplane_apimachinery::schema::{DefId, Schemas};
use polyplane_apimachinery::status::ApiError;

/// The place of upstream's registry of option kinds, as its errors name it.
const SCHEME: &str = "pkg/apis/meta/internalversion/scheme/register.go:27";
const GROUP: &str = "meta.k8s.io";
const KIND: &str = "DeleteOptions";
/// The version of upstream's internal types.
const INTERNAL: &str = "__internal";
/// Other kinds that the registry knows in each version of each group.
const IN_ALL_VERSIONS: [&str; 7] = [
    "APIGroup",
    "APIGroupList",
    "APIResourceList",
    "APIVersions",
    "CreateOptions",
    "Status",
    "UpdateOptions",
];

/// Reads a body of options.
///
/// # Errors
/// Returns 400 if it cannot be read as options.
pub(crate) fn decode(
    call: &Call<'_>,
    syntax: BodySyntax,
    definition: DefId,
) -> Result<Value, ApiError> {
    let schemas = call.tenant.base.schemas();
    let body = &call.request.body;
    let tree = match syntax {
        BodySyntax::Protobuf => read_message(body, (schemas, definition)),
        BodySyntax::Json | BodySyntax::Yaml => read_text(body, syntax, (schemas, definition)),
    };
    tree.map_err(|error| ApiError::bad_request(error.to_string()))
}

fn read_message(body: &[u8], (schemas, definition): (&Schemas, DefId)) -> Result<Value, BodyError> {
    let (envelope, mut named) = Message::open(body)?.into_parts();
    if named.version.is_empty() {
        named.group = GROUP.into();
    }
    let other = another_kind(named, || {
        format!("{} {}", envelope.api_version, envelope.kind)
    })?;
    let target = definition_of(schemas, definition, other.as_ref());
    if let Some(target) = target {
        let mut tree = protobuf::object((schemas, target), envelope)?;
        schemas.decode(target, &mut tree, Empties::Null)?;
        if other.is_none() {
            return Ok(tree);
        }
    }
    Err(unconvertible(other))
}

fn read_text(
    body: &[u8],
    syntax: BodySyntax,
    (schemas, definition): (&Schemas, DefId),
) -> Result<Value, BodyError> {
    let document = parse((schemas, definition), body, syntax, None)?;
    let mut tree = document.tree;
    let named = match syntax {
        BodySyntax::Json => named_in_text(&tree, body)?,
        BodySyntax::Yaml | BodySyntax::Protobuf => named_kind(&tree)?,
    };
    let other = another_kind(named, || String::from_utf8_lossy(body).into_owned())?;
    let target = definition_of(schemas, definition, other.as_ref());
    if let Some(target) = target {
        let mut outcome = schemas.decode(target, &mut tree, Empties::Null);
        if syntax == BodySyntax::Json && (document.repeats || outcome.is_err()) {
            // The error about JSON text depends on the order of its members and on the digits of its
            // numbers, which the tree does not have.
            let explained = schemas.explain(target, body);
            if outcome.is_ok() || explained.is_err() {
                outcome = explained;
            }
        }
        outcome?;
        if other.is_none() {
            return Ok(tree);
        }
    }
    Err(unconvertible(other))
}

/// A kind of the registry that is not that of a deletion's options.
struct AnotherKind {
    kind: String,
    /// Its type in Go, as errors name it.
    go_type: String,
}

/// Returns the kind that a body names if the registry knows it, and it is another one than the options of a
/// deletion. `shown` writes the body for an error.
fn another_kind(
    mut named: Named,
    shown: impl FnOnce() -> String,
) -> Result<Option<AnotherKind>, BodyError> {
    if named.kind.is_empty() {
        named.kind = KIND.into();
    }
    if named.version.is_empty() {
        if named.group.is_empty() {
            named.group = GROUP.into();
        }
        if named.group != GROUP {
            return Err(BodyError::NoVersion(shown()));
        }
        named.version = "v1".into();
    }
    if named.kind == KIND {
        return Ok(None);
    }
    match go_type(&named) {
        Some(go_type) => Ok(Some(AnotherKind {
            kind: named.kind.to_string(),
            go_type,
        })),
        None => Err(BodyError::OtherKind(named.unregistered(SCHEME))),
    }
}

/// Returns the type in Go of a kind that the registry knows.
fn go_type(named: &Named) -> Option<String> {
    let (version, kind) = (named.version.as_str(), named.kind.as_str());
    if IN_ALL_VERSIONS.contains(&kind) {
        return Some(format!("v1.{kind}"));
    }
    if named.group != GROUP {
        return None;
    }
    let name = match (version, kind) {
        (INTERNAL, "ListOptions") => "internalversion.ListOptions".to_owned(),
        (INTERNAL, "WatchEvent") => "v1.InternalEvent".to_owned(),
        ("v1beta1" | INTERNAL, "PartialObjectMetadataList") => format!("v1beta1.{kind}"),
        ("v1", "ListOptions" | "PatchOptions" | "PartialObjectMetadataList" | "WatchEvent")
        | ("v1" | INTERNAL, "GetOptions")
        | ("v1" | "v1beta1" | INTERNAL, "Table" | "TableOptions" | "PartialObjectMetadata") => {
            format!("v1.{kind}")
        }
        _ => return None,
    };
    Some(name)
}

/// Returns the schema by which a body is read: that of the options, or of the other kind if there is one.
fn definition_of(schemas: &Schemas, options: DefId, other: Option<&AnotherKind>) -> Option<DefId> {
    match other {
        None => Some(options),
        Some(other) => {
            let name = format!("io.k8s.apimachinery.pkg.apis.meta.v1.{}", other.kind);
            schemas.find(&name)
        }
    }
}

fn unconvertible(other: Option<AnotherKind>) -> BodyError {
    let from = other.map_or_else(|| format!("v1.{KIND}"), |other| other.go_type);
    BodyError::OtherKind(format!(
        "converting ({from}) to (v1.{KIND}): unknown conversion"
    ))
}

#[cfg(test)]
mod tests {
    use super::*;
    use polyplane_apimachinery::json::{self, Limits};

    fn other(text: &str) -> String {
        let tree = json::parse(text.as_bytes(), &Limits::default()).expect("JSON");
        let named = named_in_text(&tree.value, text.as_bytes()).expect("it names a kind");
        match another_kind(named, || text.to_owned()) {
            Ok(None) => "options".to_owned(),
            Ok(other) => unconvertible(other).to_string(),
            Err(error) => error.to_string(),
        }
    }

    #[test]
    fn options_are_read_in_the_version_of_any_group() {
        for fine in [
            "{}",
            r#"{"kind":"DeleteOptions"}"#,
            r#"{"apiVersion":"apps/v1"}"#,
            r#"{"KIND":"DeleteOptions","apiVersion":"nothing/v9"}"#,
            r#"{"apiVersion":"meta.k8s.io/"}"#,
        ] {
            assert_eq!(other(fine), "options", "{fine}");
        }
        let text = r#"{"apiVersion":"apps/"}"#;
        let error = format!("Object 'apiVersion' is missing in '{text}'");
        assert_eq!(other(text), error);
    }

    #[test]
    fn kinds_known_beside_options_cannot_be_converted() {
        for (group, version, kind, from) in [
            ("", "v1", "Status", "v1.Status"),
            ("apps", "v2", "APIGroupList", "v1.APIGroupList"),
            (GROUP, "v1", "ListOptions", "v1.ListOptions"),
            (
                GROUP,
                INTERNAL,
                "ListOptions",
                "internalversion.ListOptions",
            ),
            (GROUP, "v1beta1", "Table", "v1.Table"),
        ] {
            let text = format!(r#"{{"kind":"{kind}","apiVersion":"{group}/{version}"}}"#);
            let error = format!("converting ({from}) to (v1.DeleteOptions): unknown conversion");
            assert_eq!(other(&text), error, "{text}");
        }
    }

    #[test]
    fn kinds_unknown_to_the_registry_of_options_are_named_with_their_version() {
        for (text, what) in [
            (
                r#"{"kind":"Pod","apiVersion":"v1"}"#,
                r#"kind "Pod" is registered for version "v1""#,
            ),
            (
                r#"{"kind":"Pod"}"#,
                r#"kind "Pod" is registered for version "meta.k8s.io/v1""#,
            ),
            (
                r#"{"kind":"ListOptions","apiVersion":"v1"}"#,
                r#"kind "ListOptions" is registered for version "v1""#,
            ),
            (
                r#"{"kind":"Pod","apiVersion":"apps/__internal"}"#,
                r#"kind "Pod" is registered for the internal version of group "apps""#,
            ),
        ] {
            assert_eq!(other(text), format!("no {what} in scheme {SCHEME:?}"));
        }
    }
}
