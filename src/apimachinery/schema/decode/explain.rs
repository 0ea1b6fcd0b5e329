//! A second reading of JSON text in its own order, which only finds the right error text.

use std::collections::HashSet;

use super::{DecodeError, Decoder, Empties, MAX_PROBLEMS, Outcome, PathSegment, Problem, Trail};
use crate::json::{self, Duplicates, Limits, document};
use crate::schema::{DefId, Definition, Presence, Schemas, Type, Unknown};
use crate::value::Value;

/// Depth beyond which objects are read in the order of names. Each level is scanned once for every
/// level around it, so deep text would be slow.
const EXPLAINED_DEPTH: usize = 64;

impl Schemas {
    /// Returns the complaints of decoding about JSON text that can be parsed, in the order of the
    /// text: the error that ends decoding, or else unknown and repeated members, each once.
    /// Repeated members inside parts that are kept as they were sent are not reported.
    ///
    /// # Errors
    /// See [`Schemas::decode`].
    pub fn explain(&self, id: DefId, text: &[u8]) -> Result<Vec<Problem>, DecodeError> {
        let text = json::replace_bad_bytes(text);
        let mut decoder = Decoder::new(self, Empties::Keep);
        decoder.text(text.trim(), &Type::Ref(id), &Trail::ROOT)?;
        match decoder.type_error {
            Some(error) => Err(error),
            None => Ok(decoder.problems),
        }
    }
}

impl<'s> Decoder<'s> {
    fn text(&mut self, text: &'s str, ty: &Type, trail: &Trail<'_>) -> Outcome {
        match (ty, text.as_bytes().first()) {
            (_, Some(b'n')) => Ok(()),
            (Type::Nullable(inner), _) => self.text(text, inner, trail),
            (Type::Ref(id), Some(b'{')) if self.depth < EXPLAINED_DEPTH => {
                self.depth += 1;
                let outcome = self.members(text, self.schemas.get(*id), trail);
                self.depth -= 1;
                outcome
            }
            (Type::List(item), Some(b'[')) => {
                let mut items = document::items(text).enumerate();
                items.try_for_each(|(index, value)| {
                    self.text(value, item, &trail.then(PathSegment::Index(index)))
                })
            }
            (Type::Map(item), Some(b'{')) => {
                let mut seen = HashSet::new();
                for (key, value) in document::members(text) {
                    if !seen.insert(key.clone()) {
                        self.note(Problem::Duplicate, &key, trail);
                    }
                    self.text(value, item, &trail.then(PathSegment::Key(&key)))?;
                }
                Ok(())
            }
            _ => self.leaf(text, ty, trail),
        }
    }

    fn members(&mut self, text: &'s str, definition: &Definition, trail: &Trail<'_>) -> Outcome {
        let mut seen = HashSet::new();
        for (key, value) in document::members(text) {
            let repeated = !seen.insert(key.clone());
            let Some(field) = definition.field(&key) else {
                if definition.type_meta && matches!(key.as_ref(), "kind" | "apiVersion") {
                    if repeated {
                        self.note(Problem::Duplicate, &key, trail);
                    }
                    // Those of the root are checked by whoever finds its kind.
                    if trail.field().is_some()
                        && let Some(value) = parsed(value)
                    {
                        self.type_meta(&key, &value, definition, trail);
                    }
                } else if definition.unknown == Unknown::Drop {
                    self.note(Problem::Unknown, &key, trail);
                }
                continue;
            };
            if repeated {
                self.note(Problem::Duplicate, &key, trail);
            }
            let trail = trail.then(PathSegment::Field(definition, field));
            if value == "null" && field.ty == Type::Duration && field.presence == Presence::Plain {
                self.leaf(value, &field.ty, &trail)?;
            } else {
                self.text(value, &field.ty, &trail)?;
            }
        }
        Ok(())
    }

    /// Reads a value that is not an object or a list of a known type, or that should be one and is
    /// not.
    fn leaf(&mut self, text: &'s str, ty: &Type, trail: &Trail<'_>) -> Outcome {
        let Some(mut value) = parsed(text) else {
            return Ok(());
        };
        self.literal = Some(text);
        let outcome = self.value(&mut value, ty, trail);
        self.literal = None;
        outcome
    }

    fn note(&mut self, kind: fn(String) -> Problem, key: &str, trail: &Trail<'_>) {
        if self.problems.len() >= MAX_PROBLEMS {
            return;
        }
        let problem = kind(trail.then(PathSegment::Key(key)).path());
        if !self.problems.contains(&problem) {
            self.problems.push(problem);
        }
    }
}

/// Returns the value of a part of the text.
fn parsed(text: &str) -> Option<Value> {
    let limits = Limits {
        duplicates: Duplicates::MergeObjects,
        ..Limits::default()
    };
    let parsed = json::parse(text.as_bytes(), &limits);
    parsed.ok().map(|parsed| parsed.value)
}

#[cfg(test)]
mod tests {
    use crate::schema::decode::Empties;
    use crate::schema::fixture;

    #[test]
    fn complaints_come_in_the_order_of_the_text() {
        let pod = fixture::kind("/v1/Pod").expect("pods are known");
        let text = br#"{"zzz":1,"metadata":{"nope":{"a":1,"a":2},"labels":{"a":"1","a":"2"}},"metadata":{"name":"x"},"kind":"Pod","kind":"Pod"}"#;
        let problems = fixture::SCHEMAS
            .explain(pod, text)
            .expect("types are right");
        let texts: Vec<String> = problems.iter().map(ToString::to_string).collect();
        assert_eq!(
            texts,
            [
                "unknown field \"zzz\"",
                "unknown field \"metadata.nope\"",
                "duplicate field \"metadata.labels.a\"",
                "duplicate field \"metadata\"",
                "duplicate field \"kind\""
            ]
        );
    }

    #[test]
    fn the_kind_of_an_object_within_another_one_is_a_text() {
        let set = fixture::kind("apps/v1/StatefulSet").expect("sets are known");
        for (member, found) in [("kind", "1.5"), ("apiVersion", "[]")] {
            let claims = format!(r#"[{{"{member}":null}},{{"{member}":{found}}},{{"spec":[]}}]"#);
            let text = format!(r#"{{"kind":1,"spec":{{"volumeClaimTemplates":{claims}}}}}"#);
            let explained = fixture::SCHEMAS.explain(set, text.as_bytes());
            let mut tree = fixture::tree(&text);
            let decoded = fixture::SCHEMAS.decode(set, &mut tree, Empties::Keep);
            let found = if member == "kind" { "number" } else { "array" };
            let wanted = format!(
                "json: cannot unmarshal {found} into Go struct field PersistentVolumeClaim.spec.volumeClaimTemplates.TypeMeta.{member} of type string"
            );
            for error in [
                explained.expect_err("a wrong type"),
                decoded.expect_err("a wrong type"),
            ] {
                assert_eq!(error.to_string(), wanted);
            }
        }
    }

    #[test]
    fn a_wrong_number_is_shown_as_it_was_written_and_the_first_one_counts() {
        let pod = fixture::kind("/v1/Pod").expect("pods are known");
        let text = br#"{"spec":{"terminationGracePeriodSeconds":99999999999999999999,"hostNetwork":1},"metadata":1}"#;
        let error = fixture::SCHEMAS
            .explain(pod, text)
            .expect_err("no number of 64 bits");
        assert_eq!(
            error.to_string(),
            "json: cannot unmarshal number 99999999999999999999 into Go struct field PodSpec.spec.terminationGracePeriodSeconds of type int64"
        );
    }
}
