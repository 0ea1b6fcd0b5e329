//! The digits of quantities that JSON text has as numbers. A tree keeps only the value of such a number.

use std::collections::HashMap;
use std::collections::hash_map::Entry;

use crate::json::{self, document, scan};
use crate::schema::{DefId, Schemas, Type};
use crate::value::{Str, Value};

/// Depth below which nothing is looked for if a number is written in two ways: each level is scanned once
/// for every level around it. No quantity of a built-in kind is so deep.
const DEPTH_MAX: usize = 24;

/// The numbers in a JSON text that trees have as floats, as they were written.
#[derive(Clone, Debug, Default)]
pub struct Literals {
    /// The text of each number, by its bits; `None` if it is written in more than one way.
    texts: HashMap<u64, Option<Str>>,
    /// True if one of them is.
    is_ambiguous: bool,
}

impl Literals {
    /// Finds the numbers of a text that can be parsed.
    pub fn of(text: &[u8]) -> Self {
        let mut found = Self::default();
        let mut at = 0;
        while let Some(byte) = text.get(at) {
            at = match byte {
                b'"' => scan::string_end(text, at).unwrap_or(text.len()),
                b'-' | b'0'..=b'9' => {
                    let digits = text[at..].iter().take_while(|byte| is_of_number(**byte));
                    let length = digits.count();
                    found.add(&text[at..at + length]);
                    at + length
                }
                _ => at + 1,
            };
        }
        found
    }

    /// Adds a number, unless it is one that trees have as an integer.
    fn add(&mut self, literal: &[u8]) {
        let text = std::str::from_utf8(literal).unwrap_or_default();
        if text.parse::<i64>().is_ok() {
            return;
        }
        let Ok(number) = text.parse::<f64>() else {
            return;
        };
        match self.texts.entry(number.to_bits()) {
            Entry::Vacant(slot) => {
                slot.insert(Some(text.into()));
            }
            Entry::Occupied(mut slot) => {
                if slot.get().as_deref() != Some(text) {
                    slot.insert(None);
                    self.is_ambiguous = true;
                }
            }
        }
    }
}

fn is_of_number(byte: u8) -> bool {
    matches!(byte, b'0'..=b'9' | b'+' | b'-' | b'.' | b'e' | b'E')
}

impl Schemas {
    /// Turns the quantities that are floats in `tree` into the texts that these numbers have in `literals`.
    /// The tree is what a patch has made of an object. A number that the patch writes in two ways stays.
    pub fn restore_quantities(&self, id: DefId, tree: &mut Value, literals: &Literals) {
        if !literals.texts.is_empty() {
            self.restore(&Type::Ref(id), tree, literals);
        }
    }

    fn restore(&self, ty: &Type, tree: &mut Value, literals: &Literals) {
        match (ty, &mut *tree) {
            (Type::Nullable(inner), value) => self.restore(inner, value, literals),
            (Type::Ref(id), Value::Object(members)) => {
                let definition = self.get(*id);
                for (key, value) in members.iter_mut() {
                    if let Some(field) = definition.field(key) {
                        self.restore(&field.ty, value, literals);
                    }
                }
            }
            (Type::Map(item), Value::Object(members)) => {
                for (_, value) in members.iter_mut() {
                    self.restore(item, value, literals);
                }
            }
            (Type::List(item), Value::Array(items)) => {
                for value in items {
                    self.restore(item, value, literals);
                }
            }
            (Type::Quantity, Value::Float(number)) => {
                if let Some(Some(text)) = literals.texts.get(&number.to_bits()) {
                    *tree = Value::String(text.clone());
                }
            }
            _ => {}
        }
    }

    /// Turns the quantities that are floats in `tree` into the texts that `text` has in their places.
    /// Upstream reads a quantity from its digits: `1e3` has an exponent, and a float has not all digits
    /// of `12345678901234567890`. The tree is what the text was parsed to; see
    /// [`crate::json::Parsed::floats`].
    pub fn keep_written_quantities(&self, id: DefId, tree: &mut Value, text: &[u8]) {
        let literals = Literals::of(text);
        if !literals.is_ambiguous {
            return self.restore_quantities(id, tree, &literals);
        }
        let text = json::replace_bad_bytes(text);
        self.keep_written(&Type::Ref(id), tree, text.trim(), DEPTH_MAX);
    }

    fn keep_written(&self, ty: &Type, tree: &mut Value, text: &str, depth: usize) {
        let Some(depth) = depth.checked_sub(1) else {
            return;
        };
        match (ty, &mut *tree) {
            (Type::Nullable(inner), value) => self.keep_written(inner, value, text, depth),
            (Type::Ref(id), Value::Object(members)) => {
                let definition = self.get(*id);
                for (key, text) in document::members(text) {
                    let (field, value) = (definition.field(&key), members.get_mut(&key));
                    if let (Some(field), Some(value)) = (field, value) {
                        self.keep_written(&field.ty, value, text, depth);
                    }
                }
            }
            (Type::Map(item), Value::Object(members)) => {
                for (key, text) in document::members(text) {
                    if let Some(value) = members.get_mut(&key) {
                        self.keep_written(item, value, text, depth);
                    }
                }
            }
            (Type::List(item), Value::Array(items)) => {
                for (value, text) in items.iter_mut().zip(document::items(text)) {
                    self.keep_written(item, value, text, depth);
                }
            }
            // Of a member that occurs twice, only the one whose value counts is the one in the tree.
            (Type::Quantity, Value::Float(number)) if text.parse::<f64>() == Ok(*number) => {
                *tree = Value::string(text);
            }
            _ => {}
        }
    }
}

#[cfg(test)]
mod tests {
    use super::Literals;
    use crate::json::{Limits, parse};
    use crate::schema::decode::Empties;
    use crate::schema::fixture::{SCHEMAS, kind};
    use crate::value::Value;

    #[test]
    fn numbers_are_quantities_with_the_digits_that_were_written() {
        let pod = kind("/v1/Pod").expect("pods are known");
        for (number, quantity, is_float) in [
            ("1000", "1k", false),
            ("1e3", "1e3", true),
            ("1E3", "1E3", true),
            ("1e30", "1e30", true),
            ("1e+30", "1e+30", true),
            ("0.1e31", "1e30", true),
            ("1.10", "1100m", true),
            ("12345678901234567890", "12345678901234567890", true),
            ("999999999999999999.1", "999999999999999999100m", true),
            ("9999999999999999999.0", "9999999999999999999", true),
            ("0.12345678901234567890", "123456790n", true),
            ("1e-10", "1e-9", true),
        ] {
            let text = format!(
                r#"{{"spec":{{"containers":[{{}},{{"resources":{{"limits":{{"cpu": {number} }}}}}}]}}}}"#
            );
            let parsed = parse(text.as_bytes(), &Limits::default()).expect("it is JSON");
            assert_eq!(parsed.floats, is_float, "{number}");
            let mut tree = parsed.value;
            SCHEMAS.keep_written_quantities(pod, &mut tree, text.as_bytes());
            SCHEMAS
                .decode(pod, &mut tree, Empties::Null)
                .expect("numbers are quantities");
            let found = &tree["spec"]["containers"][1]["resources"]["limits"]["cpu"];
            assert_eq!(found.as_str(), Some(quantity), "{number}");
        }
    }

    #[test]
    fn a_number_that_is_written_in_two_ways_keeps_its_digits_in_each_place() {
        let pod = kind("/v1/Pod").expect("pods are known");
        let text = r#"{"spec":{"overhead":{"cpu":1e3,"memory":1.0e3,"x\"1e3":1e3}}}"#;
        let parsed = parse(text.as_bytes(), &Limits::default()).expect("it is JSON");
        let mut tree = parsed.value;
        SCHEMAS.keep_written_quantities(pod, &mut tree, text.as_bytes());
        let overhead = &tree["spec"]["overhead"];
        assert_eq!(overhead.str_at(&["cpu"]), "1e3");
        assert_eq!(overhead.str_at(&["memory"]), "1.0e3");
        assert_eq!(overhead.str_at(&["x\"1e3"]), "1e3");
    }

    #[test]
    fn the_numbers_of_a_patch_are_quantities_with_their_digits() {
        let quota = kind("/v1/ResourceQuota").expect("quotas are known");
        let patch = r#"[{"op":"add","path":"/spec/hard/cpu","value":12345678901234567890},
            {"op":"add","path":"/spec/hard/memory","value":1.50},{"value":1.5,"x":[-2e-3,"7e7"]}]"#;
        let literals = Literals::of(patch.as_bytes());
        let patched =
            r#"{"spec":{"hard":{"cpu":12345678901234567890,"memory":1.5,"x":-0.002,"y":7e7}}}"#;
        let mut tree = parse(patched.as_bytes(), &Limits::default())
            .expect("it is JSON")
            .value;
        SCHEMAS.restore_quantities(quota, &mut tree, &literals);
        let hard = &tree["spec"]["hard"];
        assert_eq!(hard.str_at(&["cpu"]), "12345678901234567890");
        assert_eq!(hard.str_at(&["x"]), "-2e-3");
        // Those that are written in two ways, or only in a text, are not known.
        assert_eq!(hard["memory"], Value::Float(1.5));
        assert!(hard["y"].as_str().is_none());
    }

    #[test]
    fn of_a_quantity_that_is_said_twice_the_last_one_counts() {
        let pod = kind("/v1/Pod").expect("pods are known");
        let text = r#"{"spec":{"overhead":{"cpu":1e3,"cpu":2e3,"memory":1e3,"memory":"2"}}}"#;
        let parsed = parse(text.as_bytes(), &Limits::default()).expect("it is JSON");
        let mut tree = parsed.value;
        SCHEMAS.keep_written_quantities(pod, &mut tree, text.as_bytes());
        let overhead = &tree["spec"]["overhead"];
        assert_eq!(overhead.str_at(&["cpu"]), "2e3");
        assert_eq!(overhead.str_at(&["memory"]), "2");
    }
}
