//! Walks over objects along a schema. Each file has one walk.

pub(crate) mod compare;
pub(crate) mod extract;
pub(crate) mod field_set;
pub(crate) mod first;
pub(crate) mod merge;
pub(crate) mod named;
pub(crate) mod reconcile;
pub(crate) mod remove;
pub(crate) mod validate;

use polyplane_apimachinery::shape::Shape;
use polyplane_apimachinery::value::{Map, Value};

use crate::element::Borrowed;
use crate::position::Items;

/// The items of a list in the order of their elements, and among equal elements in that of the list.
pub(crate) struct Sorted<'v> {
    items: Vec<(Borrowed<'v>, usize)>,
}

impl<'v> Sorted<'v> {
    /// Sorts the items that have an identity, and calls `fault` with the place and the error of each
    /// one that has none.
    pub(crate) fn of<'s: 'v, S: Shape<'s>>(
        items: &Items<'s, S>,
        list: &'v [Value],
        mut fault: impl FnMut(usize, String),
    ) -> Self {
        let mut sorted = Vec::with_capacity(list.len());
        for (at, item) in list.iter().enumerate() {
            match items.element(item) {
                Ok(element) => sorted.push((element, at)),
                Err(error) => fault(at, error),
            }
        }
        Self::new(sorted)
    }

    pub(crate) fn new(mut items: Vec<(Borrowed<'v>, usize)>) -> Self {
        let order = |a: &(Borrowed<'_>, usize), b: &(Borrowed<'_>, usize)| {
            a.0.order(&b.0).then(a.1.cmp(&b.1))
        };
        if !items.is_sorted_by(|a, b| order(a, b).is_le()) {
            items.sort_unstable_by(order);
        }
        Self { items }
    }

    /// Returns the groups of items with equal elements, in order.
    pub(crate) fn groups(&self) -> impl Iterator<Item = &[(Borrowed<'v>, usize)]> {
        self.items.chunk_by(|a, b| a.0.order(&b.0).is_eq())
    }

    /// Returns the group of an element; empty if there is none.
    pub(crate) fn group(&self, element: &Borrowed<'_>) -> &[(Borrowed<'v>, usize)] {
        let start = self
            .items
            .partition_point(|item| item.0.order(element).is_lt());
        let rest = &self.items[start..];
        let length = rest.partition_point(|item| item.0.order(element).is_eq());
        &rest[..length]
    }
}

/// Returns the members of a value; none if it is not an object.
fn map_of(value: Option<&Value>) -> &Map {
    static NONE: Map = Map::new();
    value.and_then(Value::as_object).unwrap_or(&NONE)
}

/// Returns the items of a value; none if it is not a list.
fn list_of(value: Option<&Value>) -> &[Value] {
    value.and_then(Value::as_array).unwrap_or_default()
}
