//! Items of lists by their keys.

use std::collections::HashMap;

use polyplane_apimachinery::{Str, Value, json};

/// Items of a list up to which they are compared one after the other, which is faster for few.
const FEW: usize = 16;

/// The items of a list, by the values of the members that are their keys. Of several with the same keys, the first
/// counts.
#[derive(Debug)]
pub(crate) struct ByKeys<'v> {
    keys: &'v [Str],
    items: &'v [Value],
    /// Empty for few items.
    places: HashMap<String, usize>,
}

impl<'v> ByKeys<'v> {
    pub(crate) fn new(keys: &'v [Str], items: &'v [Value]) -> Self {
        let mut places = HashMap::new();
        if items.len() > FEW {
            for (at, item) in items.iter().enumerate() {
                places.entry(text(keys, item)).or_insert(at);
            }
        }
        Self {
            keys,
            items,
            places,
        }
    }

    /// Returns the place of the item whose keys are those of `item`. Members that both lack are the same.
    pub(crate) fn place(&self, item: &Value) -> Option<usize> {
        if self.items.len() > FEW {
            return self.places.get(&text(self.keys, item)).copied();
        }
        let same = |known: &Value| self.keys.iter().all(|key| known.get(key) == item.get(key));
        self.items.iter().position(same)
    }

    /// Returns the item whose keys are those of `item`.
    pub(crate) fn find(&self, item: &Value) -> Option<&'v Value> {
        self.items.get(self.place(item)?)
    }
}

/// Returns the keys of an item as one text. JSON tells all values from each other.
fn text(keys: &[Str], item: &Value) -> String {
    let mut text = String::new();
    for key in keys {
        if let Some(value) = item.get(key) {
            text.push_str(&json::to_string(value));
        }
        text.push('\n');
    }
    text
}
