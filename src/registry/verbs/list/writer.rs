//! A writer of lists, object by object, in each shape that a client can request.
//!
//! In YAML, the members of an object are in the order of their keys, so that some of a list's come
//! behind its items. Each piece is written in JSON first.

use crate::answer::negotiate::{Encoding, MetaVersion, Representation, Shape};
use crate::answer::representation;
use crate::answer::representation::{Columns, RowObject, Shown, TableWriter};
use crate::request::call::{Call, tree_of};
use polyplane_apimachinery::Str;
use polyplane_apimachinery::schema::proto;
use polyplane_apimachinery::status::ApiError;
use polyplane_apimachinery::value::{Map, Value};
use polyplane_apimachinery::yaml;
use polyplane_plane::ObjectRef;
use std::borrow::Cow;
use std::cmp::Ordering;

/// Bytes of a list that are collected before they are sent as one piece.
pub const CHUNK_BYTES: usize = 64 * 1024;
/// Bytes for which a chunk is allocated. A chunk ends behind the object that fills it; without room
/// for that object, most chunks would be moved when they are nearly full.
const CHUNK_CAPACITY: usize = CHUNK_BYTES + 8 * 1024;

/// A writer of lists, which writes object by object.
pub struct ListWriter<'a> {
    call: &'a Call<'a>,
    form: Form<'a>,
    yaml: Option<YamlList>,
}

/// A list in YAML, made from one in JSON.
struct YamlList {
    out: Vec<u8>,
    /// The name of the member with the items.
    items: &'static str,
    /// The members behind the items.
    tail: Map,
    is_empty: bool,
}

enum Form<'a> {
    Items {
        out: Vec<u8>,
        partial: Option<MetaVersion>,
        is_empty: bool,
    },
    Table(TableWriter<'a>),
    /// The fields of the list's message. Its envelope is [`envelope_head`], and the end that
    /// [`ListWriter::finish`] writes.
    Protobuf {
        out: Vec<u8>,
        partial: bool,
    },
}

/// Returns the beginning of a list in protobuf whose writer has written or will write `written`
/// bytes in all.
pub fn envelope_head(call: &Call<'_>, shape: Shape, written: usize) -> Vec<u8> {
    let (kind, api) = names(call, shape);
    proto::envelope_head(api, kind, written - proto::ENVELOPE_END.len())
}

/// Returns kind and apiVersion of a list.
fn names<'c>(call: &'c Call<'_>, shape: Shape) -> (&'c str, &'c str) {
    match shape {
        Shape::Metadata(version, _) => ("PartialObjectMetadataList", version.api_version()),
        Shape::Table(version) => ("Table", version.api_version()),
        Shape::Whole => (&call.row.list_kind, &call.row.api_version),
    }
}

impl YamlList {
    /// Writes the beginning, up to the items. `head` is that of the list in JSON.
    fn begin(mut head: Vec<u8>, items: &'static str) -> Result<Self, ApiError> {
        head.extend_from_slice(b"]}");
        let mut out = Vec::with_capacity(CHUNK_CAPACITY);
        let mut tail = Map::new();
        if let Value::Object(members) = tree_of(&head)? {
            for (key, value) in members {
                match (*key).cmp(items) {
                    Ordering::Less => yaml::write(&member(key, value), &mut out),
                    Ordering::Equal => {}
                    Ordering::Greater => drop(tail.insert(key, value)),
                }
            }
        }
        Ok(Self {
            out,
            items,
            tail,
            is_empty: true,
        })
    }

    /// Writes the item that `json` ends with, behind a comma unless it is the first one.
    fn item(&mut self, json: &[u8]) -> Result<(), ApiError> {
        if std::mem::replace(&mut self.is_empty, false) {
            self.out.extend_from_slice(self.items.as_bytes());
            self.out.extend_from_slice(b":\n");
        }
        let item = tree_of(json.strip_prefix(b",").unwrap_or(json))?;
        yaml::write(&Value::Array(vec![item]), &mut self.out);
        Ok(())
    }

    /// Ends the list. `empty` is what a list without items has in their place.
    fn finish(mut self, empty: Value) -> Vec<u8> {
        if self.is_empty {
            yaml::write(&member(self.items.into(), empty), &mut self.out);
        }
        if !self.tail.is_empty() {
            yaml::write(&Value::Object(self.tail), &mut self.out);
        }
        self.out
    }
}

/// Returns an object with one member.
fn member(key: Str, value: Value) -> Value {
    Value::Object([(key, value)].into_iter().collect())
}

impl<'a> ListWriter<'a> {
    /// Writes the beginning, up to the items; `meta` is the JSON of the list's metadata.
    ///
    /// # Errors
    /// Returns 500 if the metadata are not JSON.
    pub fn begin(
        call: &'a Call<'a>,
        wish: Representation,
        include: RowObject,
        meta: &str,
    ) -> Result<Self, ApiError> {
        let mut list = Self::with_head(call, wish, include, meta);
        if wish.encoding == Encoding::Yaml {
            let items = match list.form {
                Form::Table(_) => "rows",
                Form::Items { .. } | Form::Protobuf { .. } => "items",
            };
            list.yaml = Some(YamlList::begin(list.form.take(0), items)?);
        }
        Ok(list)
    }

    /// Creates a writer that continues behind objects which were written before. `meta` is that of
    /// the beginning.
    ///
    /// # Errors
    /// Returns 500 if the metadata are not JSON.
    pub fn resume(
        call: &'a Call<'a>,
        wish: Representation,
        include: RowObject,
        meta: &str,
    ) -> Result<Self, ApiError> {
        if wish.encoding != Encoding::Yaml {
            return Ok(Self::without_head(call, wish, include));
        }
        let mut list = Self::begin(call, wish, include, meta)?;
        if let Some(yaml) = &mut list.yaml {
            yaml.out.clear();
            yaml.is_empty = false;
        }
        Ok(list)
    }

    /// Lets the row of the object `name` say that it is the default one, if the list is a table.
    pub fn mark_default(&mut self, name: Str) {
        if let Form::Table(table) = &mut self.form {
            table.mark_default(name);
        }
    }

    fn with_head(call: &'a Call<'a>, wish: Representation, include: RowObject, meta: &str) -> Self {
        let mut list = Self::without_head(call, wish, include);
        match &mut list.form {
            Form::Table(table) => table.begin(meta.as_bytes(), Columns::Shown),
            Form::Protobuf { out, .. } => {
                // This JSON was written just before, so reading it cannot fail.
                let meta = tree_of(meta.as_bytes()).unwrap_or_default();
                let message = call.tenant.base.schemas().list_metadata_to_proto(&meta);
                proto::write_list_metadata(&message, out);
            }
            Form::Items {
                out,
                partial,
                is_empty,
            } => {
                let (kind, api) = names(call, wish.shape);
                // A list of custom objects shows that there is no next page.
                let ends = call.row.custom.is_some() && partial.is_none();
                let meta = match meta.strip_prefix('{').filter(|_| ends) {
                    Some(rest) if !meta.contains("\"continue\":") => {
                        Cow::Owned(format!("{{\"continue\":\"\",{rest}"))
                    }
                    _ => Cow::Borrowed(meta),
                };
                let head = format!(
                    "{{\"kind\":\"{kind}\",\"apiVersion\":\"{api}\",\"metadata\":{meta},\"items\":["
                );
                out.extend_from_slice(head.as_bytes());
                *is_empty = true;
            }
        }
        list
    }

    fn without_head(call: &'a Call<'a>, wish: Representation, include: RowObject) -> Self {
        if wish.encoding == Encoding::Protobuf {
            let form = Form::Protobuf {
                out: Vec::with_capacity(CHUNK_CAPACITY),
                partial: matches!(wish.shape, Shape::Metadata(..)),
            };
            return Self::of(call, form);
        }
        let partial = match wish.shape {
            Shape::Table(version) => {
                let form = Form::Table(TableWriter::resume(call, version, include));
                return Self::of(call, form);
            }
            Shape::Metadata(version, _) => Some(version),
            Shape::Whole => None,
        };
        let form = Form::Items {
            out: Vec::with_capacity(CHUNK_CAPACITY),
            partial,
            is_empty: false,
        };
        Self::of(call, form)
    }

    fn of(call: &'a Call<'a>, form: Form<'a>) -> Self {
        Self {
            call,
            form,
            yaml: None,
        }
    }

    /// Writes one object.
    ///
    /// # Errors
    /// Returns 500 if stored bytes are damaged.
    pub fn write(&mut self, object: &ObjectRef) -> Result<(), ApiError> {
        self.show(&Shown::Stored(object))
    }

    /// Writes an object that need not be stored.
    ///
    /// # Errors
    /// Returns 500 if stored bytes are damaged.
    pub fn show(&mut self, object: &Shown<'_>) -> Result<(), ApiError> {
        self.write_item(object)?;
        match &mut self.yaml {
            None => Ok(()),
            Some(yaml) => {
                // The next item is about as long as this one.
                let length = self.form.pending();
                yaml.item(&self.form.take(length))
            }
        }
    }

    fn write_item(&mut self, shown: &Shown<'_>) -> Result<(), ApiError> {
        let (out, partial) = match &mut self.form {
            Form::Table(table) => {
                return table.row(shown, &representation::served_body(self.call, shown)?);
            }
            Form::Protobuf { out, partial } => return item(self.call, shown, *partial, out),
            Form::Items {
                out,
                partial,
                is_empty,
            } => {
                if !std::mem::replace(is_empty, false) {
                    out.push(b',');
                }
                (out, *partial)
            }
        };
        let slices = match partial {
            Some(version) => {
                let body = representation::served_body(self.call, shown)?;
                representation::partial(self.call.row, version, &body)
            }
            None if self.call.row.items_name_kind() => {
                let body = representation::served_body(self.call, shown)?;
                representation::whole(self.call.row, body)
            }
            None => return representation::append_served_body(self.call, shown, out),
        };
        for slice in slices {
            out.extend_from_slice(&slice);
        }
        Ok(())
    }

    /// Returns the number of bytes that [`Self::take`] would return.
    pub fn pending(&self) -> usize {
        match &self.yaml {
            Some(yaml) => yaml.out.len(),
            None => self.form.pending(),
        }
    }

    /// Removes and returns the bytes written so far. Further objects follow them.
    pub fn take(&mut self) -> Vec<u8> {
        match &mut self.yaml {
            Some(yaml) => std::mem::replace(&mut yaml.out, Vec::with_capacity(CHUNK_CAPACITY)),
            None => self.form.take(CHUNK_CAPACITY),
        }
    }

    /// Ends the list and returns its last bytes.
    pub fn finish(self) -> Vec<u8> {
        let Some(yaml) = self.yaml else {
            return self.form.finish();
        };
        // As in JSON.
        let empty = match &self.form {
            Form::Items {
                partial: Some(_), ..
            } => Value::Null,
            Form::Table(table) if table.is_null_without_rows() => Value::Null,
            Form::Items { .. } | Form::Table(_) | Form::Protobuf { .. } => Value::Array(Vec::new()),
        };
        yaml.finish(empty)
    }
}

impl Form<'_> {
    fn pending(&self) -> usize {
        match self {
            Self::Items { out, .. } | Self::Protobuf { out, .. } => out.len(),
            Self::Table(table) => table.pending(),
        }
    }

    /// Removes and returns the bytes written so far. What follows them is expected to have `capacity`
    /// bytes.
    fn take(&mut self, capacity: usize) -> Vec<u8> {
        match self {
            Self::Items { out, .. } | Self::Protobuf { out, .. } => {
                std::mem::replace(out, Vec::with_capacity(capacity))
            }
            Self::Table(table) => table.take(),
        }
    }

    fn finish(self) -> Vec<u8> {
        let mut out = match self {
            Self::Table(table) => table.finish(),
            Self::Protobuf { mut out, .. } => {
                out.extend_from_slice(proto::ENVELOPE_END);
                return out;
            }
            // A list of metadata without items has no `items`, rather than empty ones, as
            // upstream's has.
            Self::Items {
                mut out,
                partial: Some(_),
                is_empty: true,
            } => {
                out.pop();
                out.extend_from_slice(b"null}");
                out
            }
            Self::Items { mut out, .. } => {
                out.extend_from_slice(b"]}");
                out
            }
        };
        out.push(b'\n');
        out
    }
}

/// Writes one object, or its metadata, as an item of a list in protobuf.
fn item(
    call: &Call<'_>,
    shown: &Shown<'_>,
    partial: bool,
    out: &mut Vec<u8>,
) -> Result<(), ApiError> {
    let body = representation::served_body(call, shown)?;
    let message = if partial {
        let slices = representation::partial(call.row, MetaVersion::V1, &body);
        call.tenant
            .base
            .schemas()
            .partial_to_proto(&tree_of(&slices.concat())?)
    } else {
        call.row
            .schemas
            .to_proto(call.row.definition, &tree_of(&body)?)
    };
    proto::write_item(&message, out);
    Ok(())
}
