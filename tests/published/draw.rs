//! Draws objects from the schema of their kind: most fit it, some do not.

use std::sync::LazyLock;

use regex::Regex;
use serde_json::{Map, Number, Value, json};

use crate::dice::Dice;

/// Texts that patterns, formats and rules of published schemas ask for. The first that fits is taken.
const TEXTS: [&str; 22] = [
    "a",
    "web",
    "example.com",
    "*.example.com",
    "/path",
    "10s",
    "1h30m",
    "5m0s",
    "100Mi",
    "v1",
    "HTTPS",
    "https://example.com/x",
    "ssh://git@example.com/x",
    "sha256:0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef",
    "10.0.0.1",
    "10.0.0.0/8",
    "2024-01-01T00:00:00Z",
    "Always",
    "group.example.com/name",
    "100",
    "oci://example.com/x",
    "a=b",
];
/// Nesting below which nothing is drawn that is not required.
const DEPTH_MAX: usize = 7;
const LONG: usize = 300;

/// Draws values from schemas.
pub struct Draw {
    dice: Dice,
    /// How many of 1000 values are wrong on purpose.
    faults: usize,
    /// How many of 100 optional members are there.
    optional: usize,
}

impl Draw {
    /// Creates a source of objects.
    pub fn new(seed: u64) -> Self {
        let mut dice = Dice::new(seed);
        Self {
            faults: *dice.pick(&[0, 0, 0, 5, 40]),
            optional: *dice.pick(&[5, 25, 50]),
            dice,
        }
    }

    /// Draws a whole object of a kind, with `{name}` as its name.
    pub fn object(&mut self, api_version: &str, kind: &str, schema: &Value) -> Value {
        let mut object = self.value(schema, 0);
        if !object.is_object() {
            object = json!({});
        }
        object["apiVersion"] = json!(api_version);
        object["kind"] = json!(kind);
        object["metadata"] = json!({"name": "{name}"});
        if self.dice.chance(70)
            && let Some(members) = object.as_object_mut()
        {
            members.remove("status");
        }
        object
    }

    fn value(&mut self, schema: &Value, depth: usize) -> Value {
        if self.dice.below(1000) < self.faults {
            return self.wrong();
        }
        if schema["nullable"] == true && self.dice.chance(5) {
            return Value::Null;
        }
        if let Some(values) = schema["enum"].as_array()
            && !values.is_empty()
        {
            return self.dice.pick(values).clone();
        }
        if schema["x-kubernetes-int-or-string"] == true {
            return match self.dice.below(3) {
                0 => self.number(schema, true),
                1 => json!("50%"),
                _ => self.text(schema),
            };
        }
        match schema["type"].as_str().unwrap_or_default() {
            "object" => self.members(schema, depth),
            "array" => self.items(schema, depth),
            "string" => self.text(schema),
            "integer" => self.number(schema, true),
            "number" => self.number(schema, false),
            "boolean" => json!(self.dice.chance(50)),
            _ => self
                .dice
                .pick(&[json!("x"), json!(1), json!({"x": "y"})])
                .clone(),
        }
    }

    fn wrong(&mut self) -> Value {
        let long = "x".repeat(LONG);
        let values = [
            Value::Null,
            json!("wrong"),
            json!(long),
            json!(-1),
            json!(1.5),
            json!(true),
            json!([]),
            json!({}),
            json!(["a", "a"]),
        ];
        self.dice.pick(&values).clone()
    }

    fn members(&mut self, schema: &Value, depth: usize) -> Value {
        let mut members = Map::new();
        let required = schema["required"].as_array();
        let is_required = |name: &str| {
            let mut names = required.into_iter().flatten();
            names.any(|known| known == name)
        };
        for (name, member) in schema["properties"].as_object().into_iter().flatten() {
            let root = depth == 0 && ["apiVersion", "kind", "metadata"].contains(&name.as_str());
            let share = match (is_required(name), depth) {
                (true, _) => 99,
                (false, 0) => 90,
                (false, depth) if depth >= DEPTH_MAX => 0,
                (false, depth) => self.optional / depth.max(1),
            };
            if !root && self.dice.chance(share) {
                members.insert(name.clone(), self.value(member, depth + 1));
            }
        }
        if schema["x-kubernetes-embedded-resource"] == true {
            members.insert("apiVersion".into(), json!("v1"));
            members.insert("kind".into(), json!("ConfigMap"));
            members.insert("metadata".into(), self.metadata());
        }
        if schema["x-kubernetes-preserve-unknown-fields"] == true && self.dice.chance(50) {
            members.insert("free".into(), json!({"x": [1, 2.5, null], "y": null}));
        }
        if schema["additionalProperties"].is_object() {
            for name in self.dice.some(&["a", "b"]) {
                let value = self.value(&schema["additionalProperties"], depth + 1);
                members.insert(name.to_owned(), value);
            }
        }
        if self.dice.below(1000) < self.faults {
            members.insert("unknown".into(), json!({"x": 1}));
        }
        Value::Object(members)
    }

    fn metadata(&mut self) -> Value {
        match self.dice.below(4) {
            0 => json!({"name": "x", "labels": {"a": "b"}, "strange": 1}),
            1 => json!({"name": "X_"}),
            _ => json!({"name": "x"}),
        }
    }

    fn items(&mut self, schema: &Value, depth: usize) -> Value {
        let number = |name: &str| {
            let found = schema[name].as_u64();
            found.and_then(|number| usize::try_from(number).ok())
        };
        let least = number("minItems").unwrap_or(0);
        let most = number("maxItems").unwrap_or(usize::MAX).min(least.max(2));
        let count = least + self.dice.below(most.saturating_sub(least) + 1);
        let items = (0..count).map(|_| self.value(&schema["items"], depth + 1));
        items.collect()
    }

    fn number(&mut self, schema: &Value, whole: bool) -> Value {
        let least = schema["minimum"].as_f64().unwrap_or(0.0);
        let most = schema["maximum"].as_f64().unwrap_or(least + 100.0);
        let share = self.dice.below(101) as f64 / 100.0;
        let number = least + (most - least) * share;
        if whole {
            return json!(number as i64);
        }
        Number::from_f64(number).map_or(Value::Null, Value::Number)
    }

    fn text(&mut self, schema: &Value) -> Value {
        static ANY: LazyLock<Regex> = LazyLock::new(|| Regex::new("").expect("a constant"));
        let pattern = schema["pattern"].as_str();
        let pattern = pattern.and_then(|pattern| Regex::new(pattern).ok());
        let pattern = pattern.as_ref().unwrap_or(&ANY);
        let of_format = match schema["format"].as_str() {
            Some("date-time") => Some("2024-01-01T00:00:00Z"),
            Some("byte") => Some("YQ=="),
            Some("uri") => Some("https://example.com/x"),
            _ => None,
        };
        if let Some(text) = of_format {
            return json!(text);
        }
        let least = schema["minLength"].as_u64().unwrap_or(0);
        let most = schema["maxLength"].as_u64().unwrap_or(u64::MAX);
        let fits = |text: &&&str| {
            let length = text.len() as u64;
            pattern.is_match(text) && length >= least && length <= most
        };
        let fitting: Vec<&&str> = TEXTS.iter().filter(fits).collect();
        match fitting.is_empty() {
            true => json!("a"),
            false => json!(**self.dice.pick(&fitting)),
        }
    }
}
