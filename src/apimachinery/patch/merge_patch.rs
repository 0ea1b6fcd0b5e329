//! JSON merge patch as the API server applies it.
//!
//! The API server's library differs from RFC 7386 in arrays: objects inside a patch's array lose
//! their null members, unless the array replaces an object.

use crate::json::{JsonError, Limits, parse};
use crate::value::{Map, Str, Value, Weight};

/// The reason why a merge patch cannot be used; the texts are shown to clients.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum MergePatchError {
    /// The body is not JSON.
    #[error("invalid JSON patch")]
    NotJson(#[source] JsonError),
    /// The body is JSON but not an object.
    #[error(
        "error decoding patch: json: cannot unmarshal {kind} into Go value of type map[string]interface {{}}"
    )]
    NotAnObject {
        /// Its type, in Go's words.
        kind: &'static str,
    },
    /// The body is `null`, or nothing that the library merges.
    #[error("Invalid JSON Patch")]
    Null,
}

/// A merge patch after parsing.
#[derive(Clone, Debug, PartialEq)]
pub struct MergePatch {
    members: Map,
    /// What takes the place of the document, if the patch is no object.
    whole: Option<Value>,
    /// Paths of keys that were repeated, for `fieldValidation`.
    pub duplicates: Vec<String>,
}

impl MergePatch {
    /// Parses the body of a request.
    ///
    /// # Errors
    /// Returns an error if the body is not a JSON object.
    pub fn parse(body: &[u8], limits: &Limits) -> Result<Self, MergePatchError> {
        let parsed = parse(body, limits).map_err(MergePatchError::NotJson)?;
        match parsed.value {
            Value::Object(members) => Ok(Self {
                members,
                whole: None,
                duplicates: parsed.duplicates,
            }),
            Value::Null => Err(MergePatchError::Null),
            other => Err(MergePatchError::NotAnObject {
                kind: other.go_kind(),
            }),
        }
    }

    /// Parses the body of a request whose fields are not validated. The API server's library then takes an array, too,
    /// which becomes the document.
    ///
    /// # Errors
    /// Returns an error if the body is neither a JSON object nor an array.
    pub fn parse_unchecked(body: &[u8], limits: &Limits) -> Result<Self, MergePatchError> {
        match Self::parse(body, limits) {
            Err(MergePatchError::NotAnObject { kind: "array" }) => {
                let parsed = parse(body, limits).map_err(MergePatchError::NotJson)?;
                let mut whole = parsed.value;
                drop_nulls(&mut whole);
                Ok(Self {
                    members: Map::new(),
                    whole: Some(whole),
                    duplicates: parsed.duplicates,
                })
            }
            Err(MergePatchError::NotAnObject { .. }) => Err(MergePatchError::Null),
            parsed => parsed,
        }
    }

    /// Returns true if the patch may change the value at a chain of member names, or one that it is
    /// in. False means that the result does not depend on the value.
    pub fn changes(&self, path: &[&str]) -> bool {
        if self.whole.is_some() {
            return true;
        }
        let mut members = &self.members;
        for name in path {
            match members.get(name) {
                None => return false,
                Some(Value::Object(inner)) => members = inner,
                Some(_) => return true,
            }
        }
        true
    }

    /// Returns what the values of the patch take.
    #[must_use]
    pub fn weight(&self) -> Weight {
        Weight::of_all(self.members.values().chain(&self.whole))
    }

    /// Changes `document`. One that is not an object becomes an object.
    pub fn apply(&self, document: &mut Value) {
        if let Some(whole) = &self.whole {
            document.clone_from(whole);
            return;
        }
        merge_members(document.make_object(), &self.members);
    }
}

fn merge_members(document: &mut Map, patch: &Map) {
    let mut removed: Vec<&str> = Vec::new();
    let mut added: Vec<(Str, Value)> = Vec::new();
    for (key, value) in patch.iter() {
        if value.is_null() {
            removed.push(key);
            continue;
        }
        match (document.get_mut(key), value) {
            (Some(Value::Object(current)), Value::Object(members)) => {
                merge_members(current, members)
            }
            (Some(current @ Value::Object(_)), other) => *current = other.clone(),
            (current, other) => {
                let mut value = other.clone();
                drop_nulls(&mut value);
                match current {
                    Some(current) => *current = value,
                    None => added.push((key.into(), value)),
                }
            }
        }
    }
    document.remove_all(&removed);
    document.add_all(added);
}

/// Drops null members everywhere; null items of arrays stay.
fn drop_nulls(value: &mut Value) {
    match value {
        Value::Object(map) => map.retain(|_, member| {
            drop_nulls(member);
            !member.is_null()
        }),
        Value::Array(items) => items.iter_mut().for_each(drop_nulls),
        Value::Null | Value::Bool(_) | Value::Int(_) | Value::Float(_) | Value::String(_) => {}
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::json;

    fn merged(document: Value, patch: &str) -> Value {
        let mut document = document;
        MergePatch::parse(patch.as_bytes(), &Limits::default())
            .expect("a good patch")
            .apply(&mut document);
        document
    }

    #[test]
    fn nulls_remove_and_objects_merge() {
        let document = json!({"a": {"b": 1i64, "c": 2i64}, "d": [1i64]});
        assert_eq!(
            merged(document, r#"{"a":{"b":null,"e":{"f":null}},"d":{"g":1}}"#),
            json!({
                "a": {"c": 2i64, "e": {}}, "d": {"g": 1i64}
            })
        );
    }

    #[test]
    fn many_members_are_added_and_removed_like_few() {
        for count in [3, 40] {
            let all = |parts: &[usize]| -> Value {
                let numbers = (0..4 * count).filter(|number| parts.contains(&(number % 4)));
                let members = numbers.map(|number| (format!("k{number}"), Value::Int(1)));
                Value::Object(members.collect())
            };
            // Of four members one stays, one is removed, one is set again and one is new.
            let patch = (0..4 * count).filter_map(|number| match number % 4 {
                0 => None,
                1 => Some(format!("\"k{number}\":null")),
                _ => Some(format!("\"k{number}\":1")),
            });
            let patch = format!("{{{}}}", patch.collect::<Vec<_>>().join(","));
            assert_eq!(merged(all(&[0, 1, 2]), &patch), all(&[0, 2, 3]));
        }
    }

    #[test]
    fn arrays_lose_null_members_unless_they_replace_an_object() {
        let patch = r#"{"a":[null,{"b":null}]}"#;
        assert_eq!(
            merged(json!({"a": [1i64]}), patch),
            json!({"a": [null, {}]})
        );
        assert_eq!(merged(json!({}), patch), json!({"a": [null, {}]}));
        assert_eq!(
            merged(json!({"a": {}}), patch),
            json!({"a": [null, {"b": null}]})
        );
    }

    #[test]
    fn a_body_that_is_no_object_is_refused_in_upstreams_words() {
        let complaint = |body: &str| {
            MergePatch::parse(body.as_bytes(), &Limits::default())
                .expect_err(body)
                .to_string()
        };
        assert_eq!(complaint("{"), "invalid JSON patch");
        assert_eq!(complaint("null"), "Invalid JSON Patch");
        assert_eq!(
            complaint("[]"),
            "error decoding patch: json: cannot unmarshal array into Go value of type map[string]interface {}"
        );
    }

    #[test]
    fn an_array_becomes_the_document_if_fields_are_not_validated() {
        let parsed = |body: &str| MergePatch::parse_unchecked(body.as_bytes(), &Limits::default());
        let mut document = json!({"a": 1i64});
        let patch = parsed(r#"[null,{"b":null}]"#).expect("an array is taken");
        assert!(patch.changes(&["metadata"]));
        patch.apply(&mut document);
        assert_eq!(document, json!([null, {}]));
        for (body, text) in [
            ("1", "Invalid JSON Patch"),
            ("null", "Invalid JSON Patch"),
            ("[", "invalid JSON patch"),
        ] {
            assert_eq!(parsed(body).expect_err(body).to_string(), text);
        }
        let object = MergePatch::parse(b"{}", &Limits::default());
        assert_eq!(parsed("{}"), object);
    }

    proptest::proptest! {
        /// Without arrays the RFC and the API server agree.
        #[test]
        fn objects_merge_as_the_rfc_says(document in crate::json::tests::tree_without_arrays(),
                                         patch in crate::json::tests::tree_without_arrays()) {
            let mut theirs: serde_json::Value = serde_json::from_slice(&crate::json::to_vec(&document)).expect("json");
            let patch = json!({"p": (patch), "q": {}});
            let theirs_patch: serde_json::Value = serde_json::from_slice(&crate::json::to_vec(&patch)).expect("json");
            if !theirs.is_object() { theirs = serde_json::json!({}); }
            json_patch::merge(&mut theirs, &theirs_patch);
            let ours = merged(document, &crate::json::to_string(&patch));
            let theirs = parse(theirs.to_string().as_bytes(), &Limits::default()).expect("json").value;
            proptest::prop_assert_eq!(ours, theirs);
        }
    }
}
