//! What a tree takes: of memory, and of the text that it is written as.

use super::{Map, Str, Value};

/// Bytes that an allocation takes beside those that were requested.
const ALLOCATION_BYTES: usize = 16;

/// What a tree takes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Weight {
    /// The number of its values, nested ones included, but not those in members that are shared.
    pub values: usize,
    /// About how many bytes of memory it takes. Members that are shared are not counted, even if no other tree has
    /// them any more; they take at most a few dozen times their text.
    pub memory_bytes: usize,
    /// The bytes of its JSON text at least: numbers and escapes may need more.
    pub text_bytes: usize,
}

impl Weight {
    /// Returns what a tree takes.
    pub fn of(tree: &Value) -> Self {
        Self::of_all([tree])
    }

    /// Returns what several trees take together.
    pub fn of_all<'v>(trees: impl IntoIterator<Item = &'v Value>) -> Self {
        let mut weight = Self::default();
        for tree in trees {
            weight.memory_bytes += size_of::<Value>();
            weight.add(tree);
        }
        weight
    }

    /// Adds a value, whose own place is counted with what contains it.
    fn add(&mut self, value: &Value) {
        self.values += 1;
        match value {
            Value::Null | Value::Bool(_) => self.text_bytes += 4,
            Value::Int(_) | Value::Float(_) => self.text_bytes += 1,
            Value::String(text) => self.add_text(text),
            Value::Array(items) => {
                self.add_places(items.capacity(), size_of::<Value>());
                // The brackets, and the commas between the items.
                self.text_bytes += 1 + items.len().max(1);
                for item in items {
                    self.add(item);
                }
            }
            Value::Object(members) => self.add_members(members),
        }
    }

    fn add_members(&mut self, members: &Map) {
        if let Some(shared) = members.shared() {
            self.text_bytes += shared.text().len();
            return;
        }
        self.add_places(members.len(), size_of::<(Str, Value)>());
        // The braces, and the commas between the members; then a colon in each.
        self.text_bytes += 1 + members.len().max(1) + members.len();
        for (name, value) in members.iter() {
            self.add_text(name);
            self.add(value);
        }
    }

    fn add_text(&mut self, text: &str) {
        self.text_bytes += 2 + text.len();
        if text.len() > size_of::<Str>() {
            self.memory_bytes += ALLOCATION_BYTES + text.len();
        }
    }

    fn add_places(&mut self, count: usize, bytes: usize) {
        if count > 0 {
            self.memory_bytes += ALLOCATION_BYTES + count * bytes;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::json;

    #[test]
    fn a_weight_has_the_length_of_the_text_and_the_memory_of_each_value() {
        let long = "x".repeat(100);
        let tree = json!({"a": [null, 1i64, true, {}, []], "b": {"c": "", "d": long}});
        let weight = Weight::of(&tree);
        assert_eq!(weight.values, 10);
        assert_eq!(weight.text_bytes, json::to_vec(&tree).len());
        let places = 6 * size_of::<Value>() + 4 * size_of::<(Str, Value)>();
        assert_eq!(weight.memory_bytes, places + 4 * ALLOCATION_BYTES + 100);
        assert_eq!(Weight::of_all([&tree, &tree]).values, 20);
    }

    #[test]
    fn a_list_of_nulls_takes_what_its_places_take() {
        let list = Value::Array(vec![Value::Null; 1000]);
        let weight = Weight::of(&list);
        assert_eq!(weight.text_bytes, "null,".len() * 1000 + 1);
        assert!(weight.memory_bytes >= 1000 * size_of::<Value>());
    }
}
