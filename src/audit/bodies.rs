//! The bodies of a request and its answer, and the Status that ends it, as events have them.

use bytes::Bytes;
use polyplane_apimachinery::json;
use polyplane_apimachinery::status::ApiError;
use polyplane_apimachinery::{Str, Value};

use crate::event::{Event, Outcome};
use crate::policy::{Level, Plan};

/// The longest body in bytes that an event has. A longer one is left out, and an annotation says so.
pub const BODY_BYTES_MAX: usize = 1 << 20;

impl Event {
    /// Notes the body of the request, which has so many bytes; `None` for one that cannot be read.
    /// `kind` and `version` are those of the object in it, if it must have them.
    pub fn show_request(&mut self, tree: Option<Value>, length: usize, kind: Option<(&str, &str)>) {
        if self.plan.level < Level::Request {
            return;
        }
        let tree = tree.map(|mut tree| {
            if let Some((kind, version)) = kind {
                for (field, value) in [("kind", kind), ("apiVersion", version)] {
                    if tree.str_at(&[field]).is_empty() {
                        tree.set(&[field], Str::from(value));
                    }
                }
            }
            tree
        });
        match shown(&self.plan, tree, length) {
            Some(body) => self.request = body,
            None => self.request_left_out = true,
        }
    }

    /// Notes the body of the answer, which has so many bytes; `None` for one that cannot be read.
    pub fn show_response(&mut self, tree: Option<Value>, length: usize) {
        if self.plan.level < Level::RequestResponse {
            return;
        }
        match shown(&self.plan, tree, length) {
            Some(body) => self.response = body,
            None => self.response_left_out = true,
        }
    }

    /// Notes that the request ends with an error.
    pub fn refuse(&mut self, error: &ApiError) {
        if self.plan.level == Level::RequestResponse {
            self.response = error.to_json().into();
        }
        self.outcome = Some(Outcome::refused(error));
    }
}

impl Outcome {
    /// Returns the outcome of a request that ends with an error.
    #[must_use]
    pub fn refused(error: &ApiError) -> Self {
        let parsed = json::parse(&error.to_json(), &json::Limits::default());
        let status = parsed.map(|parsed| parsed.value).unwrap_or_default();
        Self {
            code: error.code,
            status: shown_status(status),
        }
    }
}

/// Returns a Status as events have it.
#[must_use]
pub fn shown_status(mut status: Value) -> Bytes {
    for field in ["kind", "apiVersion"] {
        drop(status.remove(&[field]));
    }
    json::to_vec(&status).into()
}

/// Returns a body as events have it; `None` if it cannot be shown.
fn shown(plan: &Plan, tree: Option<Value>, length: usize) -> Option<Bytes> {
    let mut tree = tree.filter(|_| length <= BODY_BYTES_MAX)?;
    if plan.omits_managed_fields {
        drop(tree.remove(&["metadata", "managedFields"]));
        let items = tree.get_mut("items").and_then(Value::as_array_mut);
        for item in items.into_iter().flatten() {
            drop(item.remove(&["metadata", "managedFields"]));
        }
    }
    Some(json::to_vec(&tree).into())
}
