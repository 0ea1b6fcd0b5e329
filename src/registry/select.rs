//! The selection of the objects that a list, watch or deletecollection covers.

use crate::kinds::Kinds;
use crate::kinds::conversion;
use crate::kinds::conversion::KindVersion;
use crate::kinds::table::{Resource, Scope};
use crate::request::call::{Call, tree_of};
use crate::request::options::ListOptions;
use polyplane_apimachinery::Str;
use polyplane_apimachinery::field_selector::FieldSelector;
use polyplane_apimachinery::json::scan::Scanned;
use polyplane_apimachinery::labels::{ManyRequirements, Selector};
use polyplane_apimachinery::status::ApiError;
use polyplane_plane::{Key, ObjectRef, Prefix, Version};
use std::borrow::Cow;
use std::sync::Arc;

/// The work for one term of a selector by fields, expressed in bytes that are read.
const TERM_BYTES: usize = 32;

/// The selectors of a request, validated for the kind.
#[derive(Clone, Debug)]
pub struct Selection {
    labels: Option<LabelTest>,
    fields: FieldSelector,
    /// True if the key of an object has all fields.
    fields_are_in_key: bool,
    name: Option<Str>,
    /// The kinds in all their versions, because an object may be stored in another one. Only
    /// selection by fields needs them.
    kinds: Option<Kinds>,
    /// See [`Call::defined`].
    defined: Option<Version>,
}

/// The requirements on labels, in the form in which they are compared with those of an object.
#[derive(Clone, Debug)]
enum LabelTest {
    Few(Arc<Selector>),
    Many(Arc<ManyRequirements>),
}

impl Selection {
    /// Reads the selectors of a request, whose path may name one object.
    ///
    /// # Errors
    /// Returns 400 for a selector that cannot be parsed or that names a field which is not
    /// selectable, and for one by fields beside the name of a path that does not require that name.
    pub fn of(call: &Call<'_>, options: &ListOptions) -> Result<Self, ApiError> {
        let (row, name) = (call.row, call.request.name.as_ref());
        let parsed = Selector::parse(&options.label_selector)
            .map_err(|error| ApiError::bad_request(error.to_string()))?;
        let fields = FieldSelector::parse(&options.field_selector)
            .map_err(|error| ApiError::bad_request(error.to_string()))?;
        let mut fields_are_in_key = true;
        for term in fields.terms() {
            check_field(row, &term.field)?;
            let in_key = matches!(term.field.as_str(), "metadata.name" | "metadata.namespace");
            fields_are_in_key &= in_key;
            if !in_key && row.strategy.converter().is_some() {
                // Otherwise each object might have to be converted before it is known whether it is
                // selected.
                let why = format!("{} cannot be selected by {:?}", row.qualified, term.field);
                return Err(ApiError::internal(why));
            }
        }
        let exact = fields.requires_exact_match("metadata.name").map(Str::from);
        if name.is_some() && !fields.is_empty() && exact.as_ref() != name {
            return Err(ApiError::bad_request(
                "fieldSelector metadata.name doesn't match requested name",
            ));
        }
        // Only the form that is used: a watch keeps it.
        let labels = match ManyRequirements::of(&parsed) {
            Some(many) => Some(LabelTest::Many(Arc::new(many))),
            None if parsed.is_everything() => None,
            None => Some(LabelTest::Few(Arc::new(parsed))),
        };
        Ok(Self {
            labels,
            kinds: (!fields.is_empty()).then(|| call.tenant.kinds()),
            defined: (!fields.is_empty()).then(|| call.defined()).flatten(),
            fields,
            fields_are_in_key,
            name: name.cloned().or(exact),
        })
    }

    /// Returns true if every object is selected.
    pub fn is_everything(&self) -> bool {
        self.labels.is_none() && self.fields.is_empty() && self.name.is_none()
    }

    /// Returns the key of the only object that can be selected, if the selection names it.
    pub fn single(&self, call: &Call<'_>) -> Option<Key> {
        let name = self.name.as_ref()?;
        let placed = call.row.scope == Scope::Cluster || !call.namespace().is_empty();
        placed.then(|| call.key(name))
    }

    /// Returns true if `object` is selected.
    pub fn matches(&self, row: &Resource, object: &ObjectRef) -> bool {
        if let Some(name) = &self.name
            && object.key().name() != name
        {
            return false;
        }
        let labels = object.labels_json();
        let fits = match &self.labels {
            Some(LabelTest::Many(many)) => many.matches_bytes(labels),
            Some(LabelTest::Few(few)) => few.matches_bytes(labels),
            None => true,
        };
        if !fits {
            return false;
        }
        self.fields.is_empty() || self.fields_match(row, object)
    }

    /// Returns the work of [`Self::matches`] for an object, expressed in bytes that it reads.
    pub fn test_bytes(&self, row: &Resource, object: &ObjectRef) -> usize {
        let labels = match &self.labels {
            None => 0,
            Some(LabelTest::Many(_)) => object.labels_json().len(),
            // Each requirement looks for its label.
            Some(LabelTest::Few(few)) => object.labels_json().len() * few.requirements().len(),
        };
        let is_known = self.fields_are_in_key || object.remembers_selectable(row.number);
        let fields = match is_known {
            true => 0,
            false => object.body_len(),
        };
        labels + fields + TERM_BYTES * self.fields.terms().len()
    }

    /// Returns true if an object is selected that has this name, no namespace and no labels.
    pub fn matches_name(&self, name: &str) -> bool {
        let fits = match &self.labels {
            None => true,
            Some(LabelTest::Few(few)) => few.matches_bytes(&[]),
            Some(LabelTest::Many(many)) => many.matches_bytes(&[]),
        };
        fits && self.name.as_deref().is_none_or(|wanted| wanted == name)
            && self.fields.matches(|field| match field {
                "metadata.name" => Cow::Borrowed(name),
                _ => Cow::Borrowed(""),
            })
    }

    /// Returns the requirements on labels, if they are many.
    pub(crate) fn many_labels(&self) -> Option<&Arc<ManyRequirements>> {
        match &self.labels {
            Some(LabelTest::Many(many)) => Some(many),
            Some(LabelTest::Few(_)) | None => None,
        }
    }

    /// Replaces the requirements on labels by equal ones, which others use too.
    pub(crate) fn share_labels(&mut self, equal: Arc<ManyRequirements>) {
        self.labels = Some(LabelTest::Many(equal));
    }

    /// Returns about how many bytes of memory it takes without [`Self::many_labels`].
    pub(crate) fn other_bytes(&self) -> usize {
        let labels = match &self.labels {
            Some(LabelTest::Few(few)) => few.heap_bytes(),
            Some(LabelTest::Many(_)) | None => 0,
        };
        labels + self.fields.heap_bytes() + self.name.as_ref().map_or(0, |name| name.len())
    }

    fn fields_match(&self, row: &Resource, object: &ObjectRef) -> bool {
        let look = |values: &[u8]| {
            self.fields.matches(|field| {
                let known = of_key(object.key(), field);
                Cow::Borrowed(known.unwrap_or_else(|| value_in(row, values, field)))
            })
        };
        if self.fields_are_in_key {
            return look(&[]);
        }
        let values = |body: &[u8]| match self.prepared(row, object) {
            None => values_of(row, body),
            Some(body) => values_of(row, &body),
        };
        object.with_selectable(row.number, values, look)
    }

    /// Returns the converted body of an object that is stored in another version than the one that
    /// fields are read in.
    fn prepared(&self, row: &Resource, object: &ObjectRef) -> Option<Vec<u8>> {
        if let Some(custom) = &row.custom {
            if custom.is_fresh(row, object, self.defined) {
                return None;
            }
            let shown = tree_of(&object.body())
                .and_then(|tree| custom.shown(row, object.storage_version(), tree));
            return Some(
                row.schemas
                    .to_vec(row.definition, &shown.unwrap_or_default()),
            );
        }
        let forms = (KindVersion::of(row, object), KindVersion::prepared(row));
        if conversion::is_same(row, forms.0, forms.1) {
            return None;
        }
        let tree = tree_of(&object.body());
        let tree = tree.and_then(|tree| match &self.kinds {
            Some(kinds) => conversion::in_place(kinds, row, tree, forms),
            None => Ok(tree),
        });
        let definition = row.prepared_definition();
        Some(row.schemas.to_vec(definition, &tree.unwrap_or_default()))
    }
}

/// Returns the value of a field that is part of the key.
fn of_key<'a>(key: &'a Key, field: &str) -> Option<&'a str> {
    match field {
        "metadata.name" => Some(key.name()),
        "metadata.namespace" => Some(key.namespace().unwrap_or("")),
        _ => None,
    }
}

/// Returns the values of all selectable fields in the order of the kind's row, each behind its
/// length.
fn values_of(row: &Resource, body: &[u8]) -> Vec<u8> {
    let mut values = Vec::new();
    for field in &row.selectable_fields {
        let value = match field.as_str() {
            "metadata.name" | "metadata.namespace" => Str::default(),
            field => field_value(row, body, field),
        };
        values.extend((value.len() as u64).to_le_bytes());
        values.extend(value.as_bytes());
    }
    values
}

/// Returns the value of a field from the output of [`values_of`].
fn value_in<'a>(row: &Resource, mut values: &'a [u8], field: &str) -> &'a str {
    for known in &row.selectable_fields {
        let Some((length, rest)) = values.split_first_chunk() else {
            return "";
        };
        let length = usize::try_from(u64::from_le_bytes(*length)).unwrap_or(usize::MAX);
        let (value, rest) = rest.split_at(length.min(rest.len()));
        if known == field {
            return std::str::from_utf8(value).unwrap_or("");
        }
        values = rest;
    }
    ""
}

/// Returns the value of a selectable field of a stored object, read from its bytes.
pub fn field_value(row: &Resource, body: &[u8], field: &str) -> Str {
    let object = Scanned(body);
    if let Some(value) = row.strategy.field(object, field) {
        return value;
    }
    let path: Vec<&str> = field.split('.').collect();
    match object.at(&path).map(|value| value.0) {
        Some(b"true") => "true".into(),
        Some(b"false") => "false".into(),
        Some([b'"', ..]) => Str::from(&*object.str_at(&path)),
        _ => object
            .int_at(&path)
            .map_or(Str::default(), |number| number.to_string().into()),
    }
}

fn check_field(row: &Resource, field: &str) -> Result<(), ApiError> {
    if row.selectable_fields.iter().any(|known| known == field) {
        return Ok(());
    }
    let is_metadata = |known: &Str| known.starts_with("metadata.");
    let why = match &*row.kind {
        _ if row.custom.is_some() => format!("field label not supported: {field}"),
        // Upstream's text for kinds that have no fields of their own.
        _ if row.selectable_fields.iter().all(is_metadata) => format!(
            "{field:?} is not a known field selector: only \"metadata.name\", \"metadata.namespace\""
        ),
        "Job" => format!("field label {field:?} not supported for Job"),
        "ResourceSlice" => {
            let (group, version, kind) = (&row.group, &row.version, &row.kind);
            format!("field label not supported for {group}/{version}, Kind={kind}: {field}")
        }
        _ => format!("field label not supported: {field}"),
    };
    Err(ApiError::bad_request(why))
}

/// Returns the keys a list or watch is about.
pub fn prefix(call: &Call<'_>) -> Prefix {
    let storage = &call.row.storage;
    match call.namespace() {
        "" => Prefix::resource(&storage.group, &storage.resource),
        namespace => Prefix::namespaced(&storage.group, &storage.resource, namespace),
    }
}

/// Returns whether a request is about all keys under a prefix: see [`prefix`].
pub fn is_about(call: &Call<'_>, keys: &Prefix) -> bool {
    let storage = &call.row.storage;
    match call.namespace() {
        "" => keys.is_resource(&storage.group, &storage.resource),
        namespace => keys.is_namespaced(&storage.group, &storage.resource, namespace),
    }
}
