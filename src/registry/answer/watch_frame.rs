//! Frames: the events of a watch in the form that a client has requested.

use crate::answer::negotiate::{Encoding, MetaVersion, Representation, Shape};
use crate::answer::representation;
use crate::answer::representation::{Columns, RowObject, Shown, TableWriter};
use crate::kinds::table::Resource;
use crate::request::call::Call;
use crate::select::Selection;
use bytes::Bytes;
use polyplane_apimachinery::schema::proto;
use polyplane_apimachinery::status::ApiError;
use polyplane_plane::{Event, ObjectRef};
use std::sync::Arc;

/// The form in which events are shown.
#[derive(Clone, Copy)]
pub(crate) struct Form {
    pub(crate) wish: Representation,
    /// The part of its object that a table row includes.
    pub(crate) include: RowObject,
    /// The kind's [`Resource::number`].
    pub(crate) number: u32,
}

impl Form {
    /// Returns a number for this form and type of event; `None` for tables, which cannot be shared
    /// because they show ages.
    fn view(self, kind: Kind) -> Option<u32> {
        let shape = match self.wish.shape {
            Shape::Whole => 0,
            Shape::Metadata(MetaVersion::V1, _) => 1,
            Shape::Metadata(MetaVersion::V1Beta1, _) => 2,
            Shape::Table(_) => return None,
        };
        let encoding = match self.wish.encoding {
            Encoding::Json | Encoding::Yaml => 0,
            Encoding::Protobuf => 4,
        };
        let number = self
            .number
            .checked_shl(8)
            .filter(|number| number >> 8 == self.number)?;
        Some(number | (shape | encoding) << 4 | kind as u32)
    }

    /// Returns the frame of an event of this form, from the JSON of its object.
    ///
    /// # Errors
    /// Returns 406 if the object has no form in the encoding.
    pub(crate) fn wrap(
        self,
        call: &Call<'_>,
        kind: &str,
        object: &[Bytes],
    ) -> Result<Bytes, ApiError> {
        Ok(match self.wish.encoding {
            Encoding::Json | Encoding::Yaml => line(kind, object),
            Encoding::Protobuf => {
                let object = representation::protobuf(call, object)?;
                proto::watch_frame(kind, &object).into()
            }
        })
    }

    /// Returns the frame of an error.
    pub(crate) fn error(self, call: &Call<'_>, error: &ApiError) -> Bytes {
        let status = [Bytes::from(error.to_json())];
        // A Status has all forms.
        self.wrap(call, "ERROR", &status)
            .unwrap_or_else(|_| line("ERROR", &status))
    }
}

/// The type of an event as one watcher sees it.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Kind {
    Added = 0,
    Modified = 1,
    Deleted = 2,
}

impl Kind {
    const fn name(self) -> &'static str {
        match self {
            Self::Added => "ADDED",
            Self::Modified => "MODIFIED",
            Self::Deleted => "DELETED",
        }
    }
}

/// Returns the type of an event for a watcher of a selection; `None` if the event does not concern
/// it.
pub(crate) fn kind_for(selection: &Selection, row: &Resource, event: &Event) -> Option<Kind> {
    let selected =
        |object: Option<&ObjectRef>| object.is_some_and(|object| selection.matches(row, object));
    if selection.is_everything() {
        return Some(match (event.previous(), event.current()) {
            (None, _) => Kind::Added,
            (Some(_), Some(_)) => Kind::Modified,
            (Some(_), None) => Kind::Deleted,
        });
    }
    match (selected(event.previous()), selected(event.current())) {
        (false, true) => Some(Kind::Added),
        (true, true) => Some(Kind::Modified),
        (true, false) => Some(Kind::Deleted),
        (false, false) => None,
    }
}

/// Returns the frame of an event, built once for all watchers of one form.
pub(crate) fn event_frame(
    call: &Call<'_>,
    form: Form,
    columns: Columns,
    event: &Arc<Event>,
    kind: Kind,
) -> Result<Bytes, ApiError> {
    let Some(view) = form.view(kind) else {
        return build(call, form, columns, event, kind);
    };
    let mut failure = None;
    let frame = event.frame(view, |event| {
        match build(call, form, columns, event, kind) {
            Ok(frame) => frame,
            Err(error) => {
                let frame = form.error(call, &error);
                failure = Some(error);
                frame
            }
        }
    });
    failure.map_or(Ok(frame), Err)
}

/// Builds the frame of an event. A deletion shows the previous object with the version of the
/// event.
fn build(
    call: &Call<'_>,
    form: Form,
    columns: Columns,
    event: &Event,
    kind: Kind,
) -> Result<Bytes, ApiError> {
    let (object, gone) = match kind {
        Kind::Deleted => (event.previous(), true),
        Kind::Added | Kind::Modified => (event.current(), false),
    };
    let object = object.ok_or_else(|| ApiError::internal("an event without an object"))?;
    let shown = if gone {
        Shown::At(object, event.version())
    } else {
        Shown::Stored(object)
    };
    frame(call, form, columns, kind, &shown)
}

pub(crate) fn frame(
    call: &Call<'_>,
    form: Form,
    columns: Columns,
    kind: Kind,
    shown: &Shown<'_>,
) -> Result<Bytes, ApiError> {
    let body = representation::served_body(call, shown)?;
    let slices = match form.wish.shape {
        Shape::Whole => representation::whole(call.row, body),
        Shape::Metadata(version, _) => representation::partial(call.row, version, &body),
        Shape::Table(version) => {
            let version_text = polyplane_apimachinery::json::scan::string_at(
                &body,
                &["metadata", "resourceVersion"],
            );
            let meta = representation::json_object(&[(
                "resourceVersion",
                version_text.as_deref().unwrap_or(""),
            )]);
            let mut table = TableWriter::new(call, version, form.include);
            table.begin(meta.as_bytes(), columns);
            table.row(shown, &body)?;
            vec![table.finish().into()]
        }
    };
    form.wrap(call, kind.name(), &slices)
}

fn line(kind: &str, object: &[Bytes]) -> Bytes {
    let length: usize = object.iter().map(Bytes::len).sum();
    let mut out = Vec::with_capacity(length + 40);
    out.extend_from_slice(b"{\"type\":\"");
    out.extend_from_slice(kind.as_bytes());
    out.extend_from_slice(b"\",\"object\":");
    object.iter().for_each(|part| out.extend_from_slice(part));
    out.extend_from_slice(b"}\n");
    out.into()
}
