//! The digits of quantities that JSON text has as numbers. A tree keeps only the value of such a number.

use crate::json::{self, document};
use crate::schema::{DefId, Schemas, Type};
use crate::value::Value;

/// Depth below which nothing is looked for: each level is scanned once for every level around it. No
/// quantity of a built-in kind is so deep.
const DEPTH_MAX: usize = 24;

impl Schemas {
    /// Turns the quantities that are floats in `tree` into the texts that `text` has in their places.
    /// Upstream reads a quantity from its digits: `1e3` has an exponent, and a float has not all digits
    /// of `12345678901234567890`. The tree is what the text was parsed to; see
    /// [`crate::json::Parsed::floats`].
    pub fn keep_written_quantities(&self, id: DefId, tree: &mut Value, text: &[u8]) {
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
    use crate::json::{Limits, parse};
    use crate::schema::decode::Empties;
    use crate::schema::fixture::{SCHEMAS, kind};

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
