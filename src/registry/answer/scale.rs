//! A Scale in the form that a client wants. It is not stored and has no row among the kinds, so its table
//! has columns of its own.

use crate::answer::AnswerBody;
use crate::answer::negotiate::{MetaVersion, Number, Representation, Shape};
use crate::answer::representation::{self, RowObject};
use crate::kinds::table::Column;
use crate::request::call::{Call, tree_of};
use crate::strategy::age;
use bytes::Bytes;
use polyplane_apimachinery::json::{self, scan};
use polyplane_apimachinery::status::ApiError;
use polyplane_apimachinery::{Str, Value};

/// Writes a Scale, of which this is the JSON.
///
/// # Errors
/// Returns 406 if it has no such form, 400 for a bad table option.
pub fn scale(call: &Call<'_>, wish: Representation, json: Vec<u8>) -> Result<AnswerBody, ApiError> {
    let whole = Bytes::from(json);
    let is_custom = call.row.custom.is_some();
    let slices = match wish.shape {
        Shape::Whole => vec![whole],
        Shape::Metadata(version, Number::One) => representation::partial(call.row, version, &whole),
        Shape::Metadata(_, Number::Many) => {
            let go_type = if is_custom {
                "*v1.Scale"
            } else {
                "*autoscaling.Scale"
            };
            return Err(representation::not_a_list(go_type));
        }
        Shape::Table(version) => vec![table(call, version, &whole)?],
    };
    representation::encode(call, wish.encoding, slices)
}

fn table(call: &Call<'_>, version: MetaVersion, whole: &Bytes) -> Result<Bytes, ApiError> {
    let include = RowObject::parse(call)?;
    let is_custom = call.row.custom.is_some();
    let resource_version = scan::string_at(whole, &["metadata", "resourceVersion"]);
    let resource_version = resource_version.as_deref().unwrap_or("");
    let metadata = representation::json_object(&[("resourceVersion", resource_version)]);
    let mut out = Vec::new();
    let columns = columns(is_custom);
    representation::begin_table(version, metadata.as_bytes(), Some(&columns), &mut out);
    let tree = tree_of(whole)?;
    let number = |path: &[&str]| match tree.int_at(path) {
        Some(number) => Value::Int(number),
        // Upstream's column of a custom kind looks for the field, which an empty number is without.
        None if is_custom => Value::Null,
        None => Value::Int(0),
    };
    let cells = vec![
        tree.str_at(&["metadata", "name"]).into(),
        number(&["spec", "replicas"]),
        number(&["status", "replicas"]),
        age(
            tree.str_at(&["metadata", "creationTimestamp"]),
            call.environment.now(),
        ),
    ];
    out.extend_from_slice(b"{\"cells\":");
    json::write(&Value::Array(cells), &mut out);
    out.extend_from_slice(b",\"object\":");
    match include {
        RowObject::None => out.extend_from_slice(b"null"),
        RowObject::Metadata => representation::partial(call.row, version, whole)
            .iter()
            .for_each(|part| out.extend_from_slice(part)),
        RowObject::Whole => out.extend_from_slice(whole),
    }
    out.extend_from_slice(b"}]}");
    Ok(out.into())
}

/// Returns the columns, which for custom kinds are those of upstream's tables of custom kinds.
fn columns(is_custom: bool) -> [Column; 4] {
    let (format, age) = if is_custom {
        ("name", "date")
    } else {
        ("", "string")
    };
    let column = |name: &'static str, kind: &'static str, format: &'static str| Column {
        name: name.into(),
        kind: kind.into(),
        format: format.into(),
        description: Str::default(),
        priority: 0,
    };
    [
        column("Name", "string", format),
        column("Desired", "integer", ""),
        column("Available", "integer", ""),
        column("Age", age, ""),
    ]
}
