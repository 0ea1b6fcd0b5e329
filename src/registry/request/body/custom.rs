//! Bodies of custom objects, which upstream reads without a type: the version is looked at last, the kind
//! only after admission, and unknown members are those that the schema prunes.

use super::{
    BodyError, BodySyntax, Complaints, Document, Expected, cannot_be_handled, named_kind, summary,
};
use crate::kinds::custom::CustomKind;
use crate::kinds::table::api_version;
use polyplane_apimachinery::field_error::{FieldError, Path};
use polyplane_apimachinery::json::{self, Limits};
use polyplane_apimachinery::quote::quote;
use polyplane_apimachinery::schema::decode::{Beyond, DecodeError, Problem};
use polyplane_apimachinery::shape::prune::Report;
use polyplane_apimachinery::status::{ApiError, Qualified};
use polyplane_apimachinery::value::Sharing;
use polyplane_apimachinery::{Value, yaml};

/// Reads bytes that should be a custom object of the `expected` kind.
///
/// # Errors
/// Returns 400 with upstream's reason. The 422 for an object of another kind is among the complaints.
pub(super) fn read(
    body: &[u8],
    syntax: BodySyntax,
    (expected, custom): (Expected<'_>, &CustomKind),
    sharing: Option<Sharing<'_>>,
) -> Result<(Value, Complaints), ApiError> {
    let unrecognized = |error: &dyn std::fmt::Display| {
        let shown = summary(body);
        ApiError::bad_request(format!(
            "the object provided is unrecognized (must be of type {}): {error} ({shown})",
            expected.kind
        ))
    };
    let document = parse(body, syntax, sharing).map_err(|error| unrecognized(&error))?;
    let mut tree = document.tree;
    let named = named_kind(&tree).map_err(|error| unrecognized(&error))?;
    if tree.str_at(&["kind"]).is_empty() {
        let shown = String::from_utf8_lossy(body);
        return Err(unrecognized(&format!(
            "Object 'Kind' is missing in '{shown}'"
        )));
    }
    let kind = tree.str_at(&["kind"]).to_owned();
    let is_expected = kind == expected.kind;
    let problems = match is_expected {
        true => custom.decode(expected.schemas, &mut tree, Report::Paths),
        // The schema says nothing about objects of another kind.
        false => decode_other(&mut tree, expected, custom),
    };
    let problems =
        problems.map_err(|error| cannot_be_handled(&named, expected, &error.to_string()))?;
    if (&*named.group, &*named.version) != (expected.group, expected.version) {
        let found = api_version(&named.group, &named.version);
        let wanted = api_version(expected.group, expected.version);
        return Err(ApiError::bad_request(format!(
            "the API version in the data ({found}) does not match the expected API version ({wanted})"
        )));
    }
    let other_kind = || of_another_kind(&tree, &kind, expected);
    let problems = problems.iter().map(complaint);
    let complaints = Complaints {
        named,
        texts: document.complaints.into_iter().chain(problems).collect(),
        beyond: Beyond::Nothing,
        other_kind: (!is_expected).then(other_kind),
    };
    Ok((tree, complaints))
}

/// Returns the complaint about a member of a custom object. Upstream does not escape the path of an unknown one.
pub(crate) fn complaint(problem: &Problem) -> String {
    match problem {
        Problem::Unknown(path) => format!("unknown field \"{path}\""),
        Problem::Duplicate(_) => problem.to_string(),
    }
}

/// Brings as much of an object of another kind into canonical form as is looked at before it is refused.
fn decode_other(
    tree: &mut Value,
    expected: Expected<'_>,
    custom: &CustomKind,
) -> Result<Vec<Problem>, DecodeError> {
    for named in ["kind", "apiVersion"] {
        drop(tree.remove(&[named]));
    }
    custom.decode_metadata(expected.schemas, tree)?;
    Ok(Vec::new())
}

fn of_another_kind(tree: &Value, found: &str, expected: Expected<'_>) -> ApiError {
    let detail = format!("must be {}", expected.kind);
    let error = FieldError::invalid(&Path::new("kind"), found, detail);
    // The complaint is about the kind that the object names.
    let what = Qualified::new(expected.group, found);
    ApiError::invalid(what, tree.str_at(&["metadata", "name"]), &[error])
}

/// The reason why a patched tree does not name its kind.
#[derive(Debug)]
pub(crate) enum Misnamed {
    /// Upstream's decoder cannot read what it names.
    Unread(BodyError),
    /// Upstream's decoder refuses it because it names no kind.
    NoKind,
    /// Upstream's registry refuses it.
    Refused(ApiError),
}

/// Checks that a patch through this `subresource` has not changed kind and version, which the tree has.
///
/// # Errors
/// Returns upstream's reason if it has.
pub(crate) fn check_patched(
    tree: &Value,
    expected: Expected<'_>,
    subresource: &str,
) -> Result<(), Misnamed> {
    named_kind(tree).map_err(Misnamed::Unread)?;
    let (kind, api) = (tree.str_at(&["kind"]), tree.str_at(&["apiVersion"]));
    if kind.is_empty() {
        return Err(Misnamed::NoKind);
    }
    let (group, version) = api.split_once('/').unwrap_or(("", api));
    if version.is_empty() {
        let why = "Object 'apiVersion' is missing in 'object has no apiVersion field'";
        return Err(Misnamed::Refused(ApiError::internal(why)));
    }
    if !subresource.is_empty() {
        // The registry makes such an object of the old one, with its kind and version.
        return Ok(());
    }
    let wanted = api_version(expected.group, expected.version);
    let members = [("kind", kind, expected.kind), ("apiVersion", api, &*wanted)];
    let wrong = members
        .into_iter()
        .filter(|(_, found, wanted)| found != wanted);
    let errors: Vec<FieldError> = wrong
        .map(|(field, found, wanted)| {
            FieldError::invalid(&Path::new(field), found, format!("must be {wanted}"))
        })
        .collect();
    if errors.is_empty() {
        return Ok(());
    }
    let name = tree.str_at(&["metadata", "name"]);
    let refused = ApiError::invalid(Qualified::new(group, kind), name, &errors);
    Err(Misnamed::Refused(refused))
}

/// Brings a patched tree into canonical form.
///
/// # Errors
/// Returns an error if the patch has made its metadata malformed.
pub(crate) fn decode_patched(
    tree: &mut Value,
    expected: Expected<'_>,
    custom: &CustomKind,
) -> Result<Vec<Problem>, DecodeError> {
    custom.decode(expected.schemas, tree, Report::Paths)
}

fn parse(
    body: &[u8],
    syntax: BodySyntax,
    sharing: Option<Sharing<'_>>,
) -> Result<Document, BodyError> {
    let limits = Limits::default();
    match syntax {
        BodySyntax::Json => {
            let parsed = json::parse_sharing(body, &limits, sharing).map_err(BodyError::Json)?;
            let repeated = parsed.duplicates.iter();
            let repeated = repeated.map(|path| format!("duplicate field {}", quote(path)));
            Ok(Document {
                complaints: repeated.collect(),
                tree: parsed.value,
                repeats: false,
            })
        }
        BodySyntax::Yaml => {
            let parsed = yaml::parse(body, &limits)?;
            Ok(Document {
                tree: parsed.value,
                complaints: parsed.strict_error.into_iter().collect(),
                repeats: false,
            })
        }
        BodySyntax::Protobuf => Err(BodyError::NoObject("protobuf")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_path_of_an_unknown_member_is_not_escaped() {
        let path = || "spec.a\"\\".to_owned();
        let unknown = complaint(&Problem::Unknown(path()));
        assert_eq!(unknown, r#"unknown field "spec.a"\""#);
        let repeated = complaint(&Problem::Duplicate(path()));
        assert_eq!(repeated, r#"duplicate field "spec.a\"\\""#);
    }
}
