//! The conversion of stored bytes into the representation that a client has requested.
//!
//! The whole object in JSON is the stored body behind a constant prefix, without a copy. Every
//! other shape is made from it for the answer.

use crate::answer::AnswerBody;
use crate::answer::held::{HELD_BYTES_MIN, hold_until_sent, room};
use crate::answer::negotiate::{Encoding, MetaVersion, Number, Representation, Shape};
use crate::kinds::conversion;
use crate::kinds::conversion::Wanted;
use crate::kinds::table::{Column, Resource};
use crate::request::Verb;
use crate::request::call::{Call, tree_of};
use crate::request::parameters::INCLUDE_OBJECT;
use crate::strategy::RowCompletion;
use bytes::Bytes;
use polyplane_apimachinery::field_error::{FieldError, Path};
use polyplane_apimachinery::json::{self, scan};
use polyplane_apimachinery::status::{ApiError, Reason};
use polyplane_apimachinery::{Str, Value, yaml};
use polyplane_descriptions::Descriptions;
use polyplane_plane::{ObjectRef, Share, Version};
use std::sync::LazyLock;

/// The part of its object that a table row includes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RowObject {
    /// No part.
    None,
    /// The metadata.
    Metadata,
    /// The whole object.
    Whole,
}

impl RowObject {
    /// Reads the parameter that says which part of its object a row includes.
    ///
    /// # Errors
    /// Returns 400 for an unknown value.
    pub fn parse(call: &Call<'_>) -> Result<Self, ApiError> {
        match INCLUDE_OBJECT.read(&call.request.query) {
            "" | "Metadata" => Ok(Self::Metadata),
            "None" => Ok(Self::None),
            "Object" => Ok(Self::Whole),
            other => {
                let detail = "must be 'Metadata', 'Object', 'None', or empty";
                let error = FieldError::invalid(&Path::new("includeObject"), other, detail);
                Err(ApiError::bad_request(format!(
                    "Unable to convert to Table as requested: {error}"
                )))
            }
        }
    }
}

/// An object to be sent: a stored one, or a tree that is not stored.
pub enum Shown<'a> {
    /// A stored object.
    Stored(&'a ObjectRef),
    /// A stored object with its version replaced.
    At(&'a ObjectRef, Version),
    /// A tree of the version that objects are prepared in.
    Tree(Value),
}

impl Shown<'_> {
    /// Returns the object as a tree in the version that columns are computed from.
    ///
    /// # Errors
    /// Returns 500 if stored bytes are damaged.
    pub fn tree(&self, call: &Call<'_>) -> Result<Value, ApiError> {
        match self {
            Self::Stored(object) => conversion::tree(call, object, Wanted::Prepared),
            Self::At(object, version) => {
                let mut tree = conversion::tree(call, object, Wanted::Prepared)?;
                tree.set(&["metadata", "resourceVersion"], version.to_string());
                Ok(tree)
            }
            Self::Tree(tree) => Ok(tree.clone()),
        }
    }

    /// Appends [`Self::body`] to a buffer, without a copy between where that can be avoided.
    fn append_body(&self, call: &Call<'_>, out: &mut Vec<u8>) -> Result<(), ApiError> {
        if let Self::Stored(object) = self
            && call.shows_as_stored(object)
        {
            object.append_to(out);
            return Ok(());
        }
        out.extend_from_slice(&self.body(call)?);
        Ok(())
    }

    /// Returns the body in the version of the request, without kind and apiVersion.
    fn body(&self, call: &Call<'_>) -> Result<Bytes, ApiError> {
        let object = match self {
            Self::Stored(object) | Self::At(object, _) => object,
            Self::Tree(tree) => return Ok(encoded(call, &call.to_served(tree.clone()))),
        };
        let same = call.shows_as_stored(object);
        match self {
            Self::At(object, version) if same => Ok(object.body_at(*version)),
            _ if same => Ok(object.body()),
            _ => {
                let mut tree = conversion::tree(call, object, Wanted::Served)?;
                if let Self::At(_, version) = self {
                    tree.set(&["metadata", "resourceVersion"], version.to_string());
                }
                Ok(encoded(call, &tree))
            }
        }
    }
}

/// Returns the body of a tree of the request's version.
fn encoded(call: &Call<'_>, tree: &Value) -> Bytes {
    call.row.schemas.to_vec(call.row.definition, tree).into()
}

/// Writes one object.
///
/// # Errors
/// Returns 500 if stored bytes are damaged, 400 for a bad table option.
pub fn object(
    call: &Call<'_>,
    wish: Representation,
    shown: &Shown<'_>,
) -> Result<AnswerBody, ApiError> {
    let slices = match wish.shape {
        Shape::Whole => whole(call.row, shown.body(call)?),
        Shape::Metadata(version, Number::One) => partial(call.row, version, &shown.body(call)?),
        Shape::Metadata(_, Number::Many) => {
            return Err(not_a_list(&go_type(call.row, &call.row.kind)));
        }
        Shape::Table(version) => {
            let body = shown.body(call)?;
            let resource_version = scan::string_at(&body, &["metadata", "resourceVersion"]);
            let mut table = TableWriter::new(call, version, RowObject::parse(call)?);
            let meta =
                json_object(&[("resourceVersion", resource_version.as_deref().unwrap_or(""))]);
            table.begin(meta.as_bytes(), Columns::Shown);
            table.row(shown, &body)?;
            vec![table.finish().into()]
        }
    };
    encode(call, wish.encoding, slices)
}

/// Returns the error of who wants the metadata of a list, and has asked for an object of this Go type.
pub(crate) fn not_a_list(go_type: &str) -> ApiError {
    let message = format!(
        "you requested PartialObjectMetadataList, but the requested object is not a list ({go_type})"
    );
    ApiError::new(Reason::NotAcceptable, message)
}

/// Returns a kind in the form in which upstream names its Go type: `*apps.Deployment`. All custom kinds have one type.
pub fn go_type(row: &Resource, kind: &str) -> String {
    if row.custom.is_some() {
        let list = if row.list_kind == kind { "List" } else { "" };
        return format!("*unstructured.Unstructured{list}");
    }
    let package = row.storage.group.split('.').next().unwrap_or("");
    format!(
        "*{}.{kind}",
        if package.is_empty() { "core" } else { package }
    )
}

/// Encodes the JSON of a value that is not a stored object, such as a Status.
///
/// # Errors
/// Returns 406 if the value has no form in the encoding.
pub fn value(call: &Call<'_>, encoding: Encoding, json: Vec<u8>) -> Result<AnswerBody, ApiError> {
    encode(call, encoding, vec![json.into()])
}

/// Writes an object that is not stored, from its JSON with kind and apiVersion. `go_type` is upstream's
/// name of its type.
///
/// # Errors
/// Returns 406 if the shape is that of a list, or if the object has no form in the encoding.
pub fn unstored(
    call: &Call<'_>,
    wish: Representation,
    go_type: &str,
    json: Vec<u8>,
) -> Result<AnswerBody, ApiError> {
    let json = Bytes::from(json);
    let slices = match wish.shape {
        Shape::Metadata(version, Number::One) => partial(call.row, version, &json),
        Shape::Metadata(_, Number::Many) => return Err(not_a_list(go_type)),
        Shape::Whole | Shape::Table(_) => vec![json],
    };
    encode(call, wish.encoding, slices)
}

/// Returns `{"kind":…,"apiVersion":…,` and the body behind its brace.
pub fn whole(row: &Resource, body: Bytes) -> Vec<Bytes> {
    vec![row.prefix.clone(), body.slice(1..)]
}

/// Returns only the metadata, as an object of its own.
pub fn partial(row: &Resource, version: MetaVersion, body: &Bytes) -> Vec<Bytes> {
    let head: &'static [u8] = match version {
        MetaVersion::V1 => {
            b"{\"kind\":\"PartialObjectMetadata\",\"apiVersion\":\"meta.k8s.io/v1\",\"metadata\":"
        }
        MetaVersion::V1Beta1 => {
            b"{\"kind\":\"PartialObjectMetadata\",\"apiVersion\":\"meta.k8s.io/v1beta1\",\"metadata\":"
        }
    };
    let metadata = scan::find(body, &["metadata"])
        .map_or(Bytes::from_static(b"{}"), |range| body.slice(range));
    let hidden = row.strategy.hidden_annotations();
    // Once for all names, because most objects have no annotations.
    let shows_all = hidden.is_empty() || scan::find(&metadata, &["annotations"]).is_none();
    let metadata = match shows_all {
        true => metadata,
        false => hidden.iter().fold(metadata, |metadata, name| {
            without_annotation(&metadata, name)
        }),
    };
    vec![Bytes::from_static(head), metadata, Bytes::from_static(b"}")]
}

/// Returns metadata without an annotation.
fn without_annotation(metadata: &Bytes, name: &str) -> Bytes {
    let without = without_member(metadata, &["annotations", name]);
    match scan::find(&without, &["annotations"]) {
        Some(range) if &without[range.clone()] == b"{}" => {
            without_member(&without, &["annotations"])
        }
        _ => without,
    }
}

/// Returns compact JSON without a member and one of the commas beside it. The rest keeps its order.
fn without_member(object: &Bytes, path: &[&str]) -> Bytes {
    let (Some(value), Some(name)) = (scan::find(object, path), path.last()) else {
        return object.clone();
    };
    // The name in quotes and a colon stand before the value.
    let (mut from, mut to) = (value.start.saturating_sub(name.len() + 3), value.end);
    if object.get(to) == Some(&b',') {
        to += 1;
    } else if from > 0 && object[from - 1] == b',' {
        from -= 1;
    }
    [&object[..from], &object[to..]].concat().into()
}

/// Turns compact JSON into the requested encoding, with the line end that upstream writes behind
/// text.
///
/// # Errors
/// Returns 406 if the value has no form in the encoding, and 429 to a read if answers on their way to clients fill
/// their share of memory.
pub fn encode(
    call: &Call<'_>,
    encoding: Encoding,
    mut compact: Vec<Bytes>,
) -> Result<AnswerBody, ApiError> {
    let slices = match encoding {
        Encoding::Json => {
            compact.push(Bytes::from_static(b"\n"));
            compact
        }
        Encoding::Protobuf => vec![protobuf(call, &compact)?],
        Encoding::Yaml => {
            let mut out = Vec::new();
            yaml::write(&tree_of(&compact.concat())?, &mut out);
            vec![out.into()]
        }
    };
    let bytes = slices.iter().map(Bytes::len).sum();
    let body = AnswerBody::Slices(slices);
    if bytes < HELD_BYTES_MIN {
        return Ok(body);
    }
    let hold = match call.request.verb {
        Verb::Get => room(call, bytes)?,
        // What was written must be answered.
        _ => call.tenant.plane.memory().hold(Share::Answers, bytes),
    };
    Ok(hold_until_sent(body, Some(hold)))
}

/// Returns an object in its envelope in protobuf, from its compact JSON.
///
/// # Errors
/// Returns 406 if objects of its kind have no form in protobuf.
pub fn protobuf(call: &Call<'_>, compact: &[Bytes]) -> Result<Bytes, ApiError> {
    let schemas = call.tenant.base.schemas();
    let object = schemas.proto_of_json(&compact.concat());
    object.map(Bytes::from).ok_or_else(|| {
        let text = "the object has no form in protobuf; request application/json";
        ApiError::new(Reason::NotAcceptable, text)
    })
}

/// Returns a flat JSON object of strings; empty values are left out.
pub fn json_object(members: &[(&str, &str)]) -> String {
    let mut out = Vec::from(b"{");
    for (key, value) in members.iter().filter(|(_, value)| !value.is_empty()) {
        if out.len() > 1 {
            out.push(b',');
        }
        json::write_string(key, &mut out);
        out.push(b':');
        json::write_string(value, &mut out);
    }
    out.push(b'}');
    String::from_utf8(out).expect("strings were written as UTF-8")
}

/// The choice whether a table names its columns.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Columns {
    /// It names them.
    Shown,
    /// It does not, because the client has them already.
    Known,
}

/// Writes a table row by row.
pub struct TableWriter<'a> {
    call: &'a Call<'a>,
    version: MetaVersion,
    include: RowObject,
    /// The name of the object whose row says that it is the default one.
    default: Option<Str>,
    out: Vec<u8>,
    rows: usize,
}

impl<'a> TableWriter<'a> {
    /// Creates an empty table.
    pub fn new(call: &'a Call<'a>, version: MetaVersion, include: RowObject) -> Self {
        Self {
            call,
            version,
            include,
            default: None,
            out: Vec::new(),
            rows: 0,
        }
    }

    /// Creates the rows that follow others which were taken by [`Self::take`].
    pub fn resume(call: &'a Call<'a>, version: MetaVersion, include: RowObject) -> Self {
        Self {
            rows: 1,
            ..Self::new(call, version, include)
        }
    }

    /// Lets the row of the object `name` say that it is the default one.
    pub fn mark_default(&mut self, name: Str) {
        self.default = Some(name);
    }

    /// Writes the text before the rows; `metadata` is the JSON of the list's metadata.
    pub fn begin(&mut self, metadata: &[u8], columns: Columns) {
        self.rows = 0;
        let columns = match columns {
            Columns::Known => None,
            Columns::Shown => Some(&*self.call.row.columns),
        };
        begin_table(self.version, metadata, columns, &mut self.out);
    }

    /// Writes one row. `body` is the object in the version of the request.
    ///
    /// # Errors
    /// Returns 500 if stored bytes are damaged.
    pub fn row(&mut self, shown: &Shown<'_>, body: &Bytes) -> Result<(), ApiError> {
        if self.rows > 0 {
            self.out.push(b',');
        }
        self.rows += 1;
        let tree = shown.tree(self.call)?;
        let now = self.call.environment.now();
        let mut cells = self.call.row.strategy.cells(&tree, now);
        if let (Some(default), Some(name)) = (&self.default, cells.first_mut())
            && name.as_str() == Some(default.as_str())
        {
            *name = format!("{default} (default)").into();
        }
        self.out.extend_from_slice(b"{\"cells\":");
        json::write(&Value::Array(cells), &mut self.out);
        if let Some(completion) = self.call.row.strategy.completion(&tree) {
            write_completion(completion, &mut self.out);
        }
        self.out.extend_from_slice(b",\"object\":");
        match self.include {
            RowObject::None => self.out.extend_from_slice(b"null"),
            RowObject::Metadata => partial(self.call.row, self.version, body)
                .iter()
                .for_each(|part| self.out.extend_from_slice(part)),
            RowObject::Whole => whole(self.call.row, body.clone())
                .iter()
                .for_each(|part| self.out.extend_from_slice(part)),
        }
        self.out.push(b'}');
        Ok(())
    }

    /// Writes a row without an object's cells, which represents a bookmark. `object` is the JSON of what
    /// it includes.
    pub fn bookmark_row(&mut self, object: &[u8]) {
        let nothing = self.call.row.schemas.get(self.call.row.definition).zero();
        let cells = self
            .call
            .row
            .strategy
            .cells(nothing, self.call.services.environment.now());
        self.out.extend_from_slice(b"{\"cells\":");
        json::write(&Value::Array(cells), &mut self.out);
        self.out.extend_from_slice(b",\"object\":");
        self.out.extend_from_slice(object);
        self.out.push(b'}');
    }

    /// Removes and returns the bytes written so far. Further rows follow them.
    pub fn take(&mut self) -> Vec<u8> {
        std::mem::take(&mut self.out)
    }

    /// Ends the table and returns its last bytes.
    pub fn finish(mut self) -> Vec<u8> {
        if self.is_null_without_rows() && self.out.ends_with(b"[") {
            self.out.pop();
            self.out.extend_from_slice(b"null}");
        } else {
            self.out.extend_from_slice(b"]}");
        }
        self.out
    }

    /// Returns whether a table without rows has `null` in their place instead of an empty list. Upstream's
    /// tables of built-in kinds do if they show when an object was created instead of its age.
    pub fn is_null_without_rows(&self) -> bool {
        let row = self.call.row;
        let mut columns = row.columns.iter();
        row.custom.is_none() && columns.any(|column| column.name == "Created At")
    }

    /// Returns the number of bytes that [`Self::take`] would return.
    pub fn pending(&self) -> usize {
        self.out.len()
    }
}

/// Writes the text of a table before its rows; `metadata` is the JSON of the list's metadata. Without columns
/// the client has them already.
pub(crate) fn begin_table(
    version: MetaVersion,
    metadata: &[u8],
    columns: Option<&[Column]>,
    out: &mut Vec<u8>,
) {
    let api = version.api_version();
    out.extend_from_slice(
        format!("{{\"kind\":\"Table\",\"apiVersion\":\"{api}\",\"metadata\":").as_bytes(),
    );
    out.extend_from_slice(metadata);
    out.extend_from_slice(b",\"columnDefinitions\":");
    match columns {
        None => out.extend_from_slice(b"null"),
        Some(columns) => {
            out.push(b'[');
            for (at, column) in columns.iter().enumerate() {
                if at > 0 {
                    out.push(b',');
                }
                write_column(column, out);
            }
            out.push(b']');
        }
    }
    out.extend_from_slice(b",\"rows\":[");
}

/// Writes the conditions of a row whose object has run to completion.
fn write_completion(completion: RowCompletion, out: &mut Vec<u8>) {
    out.extend_from_slice(br#","conditions":[{"type":"Completed","status":"True","reason":"#);
    json::write_string(completion.reason, out);
    out.extend_from_slice(b",\"message\":");
    json::write_string(completion.message, out);
    out.extend_from_slice(b"}]");
}

fn write_column(column: &Column, out: &mut Vec<u8>) {
    let text = |name: &str, value: &str, out: &mut Vec<u8>| {
        out.extend_from_slice(format!("\"{name}\":").as_bytes());
        json::write_string(value, out);
        out.push(b',');
    };
    out.push(b'{');
    text("name", &column.name, out);
    text("type", &column.kind, out);
    text("format", &column.format, out);
    text("description", description(column), out);
    out.extend_from_slice(format!("\"priority\":{}}}", column.priority).as_bytes());
}

/// What upstream says about the name of an object and about the time of its creation.
struct MetadataTexts {
    name: String,
    created: String,
}

/// Returns the description of a column. Those that show the name and the age of an object have upstream's, which
/// are those of the fields.
fn description(column: &Column) -> &str {
    // Kept, because it takes milliseconds to unpack the descriptions.
    static TEXTS: LazyLock<MetadataTexts> = LazyLock::new(|| {
        let all = Descriptions::shared();
        let fields = all.of("io.k8s.apimachinery.pkg.apis.meta.v1.ObjectMeta");
        let text = |field| fields.field(field).unwrap_or_default().to_owned();
        MetadataTexts {
            name: text("name"),
            created: text("creationTimestamp"),
        }
    });
    if !column.description.is_empty() {
        return &column.description;
    }
    match column.name.as_str() {
        "Name" => &TEXTS.name,
        "Age" | "Created At" => &TEXTS.created,
        _ => "",
    }
}

/// Returns the body of a stored object in the version of the request.
///
/// # Errors
/// Returns 500 if it is damaged.
pub fn served_body(call: &Call<'_>, shown: &Shown<'_>) -> Result<Bytes, ApiError> {
    shown.body(call)
}

/// Appends [`served_body`] to a buffer.
///
/// # Errors
/// Those of [`served_body`].
pub fn append_served_body(
    call: &Call<'_>,
    shown: &Shown<'_>,
    out: &mut Vec<u8>,
) -> Result<(), ApiError> {
    shown.append_body(call, out)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_hidden_annotation_goes_and_the_rest_keeps_its_order() {
        let cases = [
            (r#"{"name":"a"}"#, r#"{"name":"a"}"#),
            (
                r#"{"name":"a","annotations":{"h":"1"},"b":1}"#,
                r#"{"name":"a","b":1}"#,
            ),
            (r#"{"annotations":{"h":"1"}}"#, "{}"),
            (r#"{"name":"a","annotations":{"h":"1"}}"#, r#"{"name":"a"}"#),
            (
                r#"{"annotations":{"z":"1","h":"1"}}"#,
                r#"{"annotations":{"z":"1"}}"#,
            ),
            (
                r#"{"annotations":{"h":"1","z":"1"}}"#,
                r#"{"annotations":{"z":"1"}}"#,
            ),
        ];
        for (metadata, expected) in cases {
            let without = without_annotation(&Bytes::from_static(metadata.as_bytes()), "h");
            assert_eq!(without, expected.as_bytes(), "{metadata}");
        }
    }
}
