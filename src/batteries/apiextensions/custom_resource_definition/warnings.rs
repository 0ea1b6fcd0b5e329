//! Warnings about schemas that are accepted: formats that are not checked, and sets of values that
//! cannot be compared.

use super::structural_schema::kind;
use polyplane_apimachinery::Value;
use polyplane_apimachinery::quote::quote;
use std::collections::{BTreeSet, HashSet};

/// The formats of texts that are checked, without dashes.
const FORMATS: [&str; 26] = [
    "bsonobjectid",
    "byte",
    "cidr",
    "creditcard",
    "date",
    "datetime",
    "duration",
    "email",
    "hexcolor",
    "hostname",
    "ipv4",
    "ipv6",
    "isbn",
    "isbn10",
    "isbn13",
    "k8slongname",
    "k8sshortname",
    "mac",
    "password",
    "rgbcolor",
    "ssn",
    "uri",
    "uuid",
    "uuid3",
    "uuid4",
    "uuid5",
];

/// Returns the warnings about a spec, without those that also apply to the spec before.
pub fn warnings(spec: &Value, before: Option<&Value>) -> Vec<String> {
    let known = before.map(Found::of).unwrap_or_default();
    let found = Found::of(spec);
    // A set: a schema may have a hundred thousand formats, before and after.
    let before: HashSet<&String> = known.formats.iter().collect();
    let formats = found.formats.iter();
    let formats = formats.filter(|format| !before.contains(format));
    let mut warnings: Vec<String> = formats
        .map(|format| format!("unrecognized format {}", quote(format)))
        .collect();
    for kind in found.set_items.difference(&known.set_items) {
        warnings.push(format!(
            "x-kubernetes-list-type: set for items of type {kind:?} is not supported by server-side apply or CEL validation rules"
        ));
    }
    warnings
}

/// The places that deserve a warning.
#[derive(Default)]
struct Found {
    formats: Vec<String>,
    set_items: BTreeSet<String>,
}

impl Found {
    fn of(spec: &Value) -> Self {
        let mut found = Self::default();
        let schema = |version: &Value| version["schema"]["openAPIV3Schema"].clone();
        let versions = spec.items_at(&["versions"]);
        let schemas: Vec<Value> = versions.iter().map(schema).collect();
        // The parts that all versions share are checked once.
        let common = schemas.windows(2).all(|pair| pair[0] == pair[1]);
        let looked_at = if common {
            schemas.len().min(1)
        } else {
            schemas.len()
        };
        schemas
            .iter()
            .take(looked_at)
            .for_each(|schema| found.walk(schema));
        found
    }

    fn walk(&mut self, schema: &Value) {
        if schema.as_object().is_none() {
            return;
        }
        let format = schema.str_at(&["format"]);
        if !format.is_empty() && !is_known(kind(schema), format) {
            self.formats.push(format.to_owned());
        }
        let items = kind(&schema["items"]);
        if schema.str_at(&["x-kubernetes-list-type"]) == "set"
            && matches!(items, "object" | "array")
        {
            self.set_items.insert(items.to_owned());
        }
        for name in ["items", "not", "additionalProperties", "additionalItems"] {
            self.walk(&schema[name]);
        }
        for name in ["items", "allOf", "anyOf", "oneOf"] {
            schema
                .items_at(&[name])
                .iter()
                .for_each(|schema| self.walk(schema));
        }
        for name in [
            "properties",
            "patternProperties",
            "definitions",
            "dependencies",
        ] {
            let members = schema[name]
                .as_object()
                .into_iter()
                .flat_map(|members| members.values());
            members.for_each(|schema| self.walk(schema));
        }
    }
}

fn is_known(kind: &str, format: &str) -> bool {
    match kind {
        "" | "string" => {
            let format = format.replace('-', "");
            FORMATS.contains(&format.as_str())
        }
        "integer" => matches!(format, "int32" | "int64"),
        "number" => matches!(format, "float" | "double"),
        _ => false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use polyplane_apimachinery::json;

    fn spec(format: &str) -> Value {
        json!({"versions": [{"schema": {"openAPIV3Schema": {
            "properties": {"a": {"type": "string", "format": format}}
        }}}]})
    }

    #[test]
    fn only_new_formats_are_told() {
        assert_eq!(
            warnings(&spec("zip"), None),
            ["unrecognized format \"zip\""]
        );
        assert_eq!(
            warnings(&spec("z\u{301}\u{7f}"), None),
            ["unrecognized format \"z\u{301}\\x7f\""],
            "it is quoted as Go does"
        );
        assert!(warnings(&spec("date-time"), None).is_empty());
        assert!(warnings(&spec("zip"), Some(&spec("zip"))).is_empty());
    }

    #[test]
    fn sets_of_objects_are_told_once() {
        let spec = json!({"versions": [{"schema": {"openAPIV3Schema": {"properties": {
            "a": {"x-kubernetes-list-type": "set", "items": {"type": "object"}},
            "b": {"x-kubernetes-list-type": "set", "items": {"type": "object"}}
        }}}}]});
        assert_eq!(warnings(&spec, None).len(), 1);
    }
}
