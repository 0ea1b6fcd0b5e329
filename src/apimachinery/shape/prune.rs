//! Removal of members that a schema does not have.

use super::{Shape, Values};
use crate::complaints::{PATH_BYTES_MAX, STEP_BYTES_MAX, shortened};
use crate::value::{Map, Value};

/// The members of every object that has a kind of its own.
pub const META_FIELDS: [&str; 3] = ["apiVersion", "kind", "metadata"];

/// Number of paths that are reported for one object. A client needs only a few, and an attacker
/// could request millions.
pub const PATHS_MAX: usize = 100;

/// The kind of object that is pruned.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Root {
    /// A resource: kind, apiVersion and metadata are not changed, whatever the schema says.
    Resource,
    /// Any other value.
    Value,
}

/// The choice whether the removed paths are reported.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Report {
    /// The paths are returned.
    Paths,
    /// Nothing is returned, which saves building the paths.
    Nothing,
}

/// Removes members that are not in the schema, and returns their paths, sorted. Members inside a
/// part that preserves unknown members are kept, unless there is a schema for their content.
pub fn prune<'s, S: Shape<'s>>(
    shape: S,
    value: &mut Value,
    root: Root,
    report: Report,
) -> Vec<String> {
    let mut pruner = Pruner {
        report,
        path: String::new(),
        paths: Vec::new(),
    };
    let spare_meta = root == Root::Resource || shape.is_embedded();
    pruner.node(Some(shape), value, spare_meta);
    pruner.paths.sort();
    pruner.paths
}

struct Pruner {
    report: Report,
    path: String,
    paths: Vec<String>,
}

impl Pruner {
    /// Prunes one value. `shape` is `None` inside a part about which nothing is known.
    fn node<'s, S: Shape<'s>>(&mut self, shape: Option<S>, value: &mut Value, spare_meta: bool) {
        if let Some(shape) = shape.filter(|shape| shape.preserves_unknown()) {
            return self.preserved(shape, value, spare_meta);
        }
        match value {
            Value::Object(members) => self.object(shape, members, spare_meta),
            Value::Array(items) => {
                let item = shape.and_then(Shape::item);
                self.items(items, |pruner, value| pruner.below(item, value));
            }
            Value::Null | Value::Bool(_) | Value::Int(_) | Value::Float(_) | Value::String(_) => {}
        }
    }

    fn below<'s, S: Shape<'s>>(&mut self, shape: Option<S>, value: &mut Value) {
        self.node(shape, value, shape.is_some_and(Shape::is_embedded));
    }

    fn object<'s, S: Shape<'s>>(&mut self, shape: Option<S>, members: &mut Map, spare_meta: bool) {
        members.retain(|name, value| {
            if spare_meta && META_FIELDS.contains(&name) {
                return true;
            }
            if let Some(known) = known(shape, name) {
                self.at(name, |pruner| pruner.below(known.shape(), value));
                return true;
            }
            // The kind and metadata of the object itself are removed without a report.
            if !self.path.is_empty() || shape.is_none() || !META_FIELDS.contains(&name) {
                self.note(name);
            }
            false
        });
    }

    /// Keeps all members, but prunes those for which there is a schema.
    fn preserved<'s, S: Shape<'s>>(&mut self, shape: S, value: &mut Value, spare_meta: bool) {
        match value {
            Value::Object(members) => {
                for (name, value) in members.iter_mut() {
                    if spare_meta && META_FIELDS.contains(&name) {
                        continue;
                    }
                    if let Some(known) = known(Some(shape), name) {
                        self.at(name, |pruner| pruner.below(known.shape(), value));
                    }
                }
            }
            Value::Array(items) => {
                if let Some(item) = shape.item() {
                    let embedded = item.is_embedded();
                    self.items(items, |pruner, value| {
                        pruner.preserved(item, value, embedded);
                    });
                }
            }
            Value::Null | Value::Bool(_) | Value::Int(_) | Value::Float(_) | Value::String(_) => {}
        }
    }

    fn items(&mut self, items: &mut [Value], mut visit: impl FnMut(&mut Self, &mut Value)) {
        let length = self.path.len();
        for (index, value) in items.iter_mut().enumerate() {
            if self.reports() {
                self.path.push_str(&format!("[{index}]"));
            }
            visit(self, value);
            self.path.truncate(length);
        }
    }

    fn at(&mut self, name: &str, visit: impl FnOnce(&mut Self)) {
        let length = self.path.len();
        if self.reports() {
            self.step(name);
        }
        visit(self);
        self.path.truncate(length);
    }

    /// Returns whether a further path is reported. If not, none is built.
    fn reports(&self) -> bool {
        self.report == Report::Paths && self.paths.len() < PATHS_MAX
    }

    fn step(&mut self, name: &str) {
        if !self.path.is_empty() {
            self.path.push('.');
        }
        self.path.push_str(&shortened(name, STEP_BYTES_MAX));
    }

    fn note(&mut self, name: &str) {
        if !self.reports() {
            return;
        }
        let length = self.path.len();
        self.step(name);
        self.paths
            .push(shortened(&self.path, PATH_BYTES_MAX).into_owned());
        self.path.truncate(length);
    }
}

/// Returns the facts about a member; `None` if the schema does not have it.
fn known<'s, S: Shape<'s>>(shape: Option<S>, name: &str) -> Option<Values<S>> {
    let shape = shape?;
    match shape.child(name) {
        Some(child) => Some(Values::Of(child)),
        None => shape.values(),
    }
}
