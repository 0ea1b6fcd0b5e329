//! Which objects a list, watch or deletecollection is about.

use crate::call::{Call, tree_of};
use crate::kind::{Resource, Scope};
use polyplane_apimachinery::fields::FieldSelector;
use polyplane_apimachinery::json::scan;
use polyplane_apimachinery::labels::Selector;
use polyplane_apimachinery::status::ApiError;
use polyplane_apimachinery::{Str, Value};
use polyplane_plane::{Key, ObjectRef, Prefix};
use std::borrow::Cow;
use std::sync::Arc;

/// The selectors of a request, checked against the kind.
#[derive(Clone, Debug)]
pub struct Selection {
    labels: Option<Arc<Selector>>,
    fields: FieldSelector,
    name: Option<Str>,
}

impl Selection {
    /// Reads the selectors of a request for `row`.
    ///
    /// # Errors
    /// 400 for a selector that cannot be read or names a field that cannot be selected by.
    pub fn parse(
        row: &Resource,
        labels: &str,
        fields: &str,
        name: Option<&Str>,
    ) -> Result<Self, ApiError> {
        let parsed =
            Selector::parse(labels).map_err(|error| ApiError::bad_request(error.to_string()))?;
        let fields = FieldSelector::parse(fields)
            .map_err(|error| ApiError::bad_request(error.to_string()))?;
        for term in fields.terms() {
            check_field(row, &term.field).map_err(ApiError::bad_request)?;
        }
        let exact = fields.requires_exact_match("metadata.name").map(Str::from);
        if let (Some(path), Some(selected)) = (name, &exact)
            && path != selected
        {
            return Err(ApiError::bad_request(
                "fieldSelector metadata.name doesn't match requested name",
            ));
        }
        Ok(Self {
            labels: (!parsed.is_everything()).then(|| Arc::new(parsed)),
            fields,
            name: name.cloned().or(exact),
        })
    }

    /// True if every object is selected.
    pub fn is_everything(&self) -> bool {
        self.labels.is_none() && self.fields.is_empty() && self.name.is_none()
    }

    /// The one object that can be selected, if the selection names it.
    pub fn single(&self, call: &Call<'_>) -> Option<Key> {
        let name = self.name.as_ref()?;
        let placed = call.row.scope == Scope::Cluster || !call.namespace().is_empty();
        placed.then(|| call.key(name))
    }

    /// True if `object` is selected.
    pub fn matches(&self, row: &Resource, object: &ObjectRef) -> bool {
        if let Some(name) = &self.name
            && object.key().name() != name
        {
            return false;
        }
        if let Some(labels) = &self.labels
            && !labels.matches_bytes(object.labels_json())
        {
            return false;
        }
        self.fields.is_empty() || self.fields_match(row, object)
    }

    fn fields_match(&self, row: &Resource, object: &ObjectRef) -> bool {
        let body = object.body();
        let mut tree: Option<Value> = None;
        let values: Vec<(String, String)> = self
            .fields
            .terms()
            .iter()
            .map(|term| {
                (
                    term.field.clone(),
                    field_value(row, object, &body, &mut tree, &term.field),
                )
            })
            .collect();
        self.fields.matches(|field| {
            let found = values.iter().find(|(name, _)| name == field);
            Cow::Borrowed(found.map_or("", |(_, value)| value.as_str()))
        })
    }
}

fn field_value(
    row: &Resource,
    object: &ObjectRef,
    body: &[u8],
    tree: &mut Option<Value>,
    field: &str,
) -> String {
    match field {
        "metadata.name" => return object.key().name().to_owned(),
        "metadata.namespace" => return object.key().namespace().unwrap_or("").to_owned(),
        _ => {}
    }
    let parsed = tree.get_or_insert_with(|| tree_of(body).unwrap_or_default());
    if let Some(value) = row.strategy.field(parsed, field) {
        return value.to_string();
    }
    let path: Vec<&str> = field.split('.').collect();
    match parsed.at(&path) {
        Some(Value::String(text)) => text.to_string(),
        Some(Value::Int(number)) => number.to_string(),
        Some(Value::Bool(truth)) => truth.to_string(),
        _ => scan::string_at(body, &path)
            .map(Cow::into_owned)
            .unwrap_or_default(),
    }
}

fn check_field(row: &Resource, field: &str) -> Result<(), String> {
    if row.selectable_fields.iter().any(|known| known == field) {
        return Ok(());
    }
    Err(if row.selectable_fields.len() <= 2 {
        format!(
            "{field:?} is not a known field selector: only \"metadata.name\", \"metadata.namespace\""
        )
    } else if row.kind == "Job" {
        format!("field label {field:?} not supported for Job")
    } else {
        format!("field label not supported: {field}")
    })
}

/// The keys a list or watch is about.
pub fn prefix(call: &Call<'_>) -> Prefix {
    let storage = &call.row.storage;
    match call.namespace() {
        "" => Prefix::resource(&storage.group, &storage.resource),
        namespace => Prefix::namespaced(&storage.group, &storage.resource, namespace),
    }
}
