//! Declarative validation as data: the tags of a field in upstream's sources.
//!
//! Owns the grammar of tags, not their meaning (see [`super::validate`]).

use crate::value::{Str, Value};

/// The stage of a rule. Rules in alpha are not enforced.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Stage {
    /// Enforced: neither alpha nor beta.
    #[default]
    Stable,
    /// Enforced, although still in beta.
    Beta,
    /// Evaluated, because it may end the evaluation of a field, but not reported.
    Alpha,
}

/// One rule: `+k8s:name(arguments)=value`.
#[derive(Clone, Debug, PartialEq)]
pub struct Tag {
    /// The name without `+k8s:` and without the wrappers for stages.
    pub name: Str,
    /// The arguments in order; unnamed ones have an empty name.
    pub arguments: Vec<(Str, Str)>,
    /// The value behind the equals sign.
    pub value: TagValue,
    /// The stage of the rule.
    pub stage: Stage,
}

/// The value behind the equals sign of a tag.
#[derive(Clone, Debug, Default, PartialEq)]
pub enum TagValue {
    /// There is no value.
    #[default]
    None,
    /// A number.
    Number(i64),
    /// A text.
    Text(Str),
    /// Another tag.
    Tag(Box<Tag>),
}

impl Tag {
    /// Parses the data form: an object of names and values, or a list of texts.
    pub(super) fn read(json: &str) -> Vec<Self> {
        let Ok(value) = super::load::read_value(json) else {
            return Vec::new();
        };
        let mut tags = Vec::new();
        match &value {
            Value::Object(members) => {
                for (name, value) in members.iter() {
                    Self::read_member(name, value, &mut tags);
                }
            }
            Value::Array(lines) => tags.extend(
                lines
                    .iter()
                    .filter_map(Value::as_str)
                    .filter_map(Self::parse),
            ),
            _ => {}
        }
        tags
    }

    fn read_member(name: &str, value: &Value, tags: &mut Vec<Self>) {
        if let Value::Array(values) = value {
            for value in values {
                Self::read_member(name, value, tags);
            }
            return;
        }
        let (arguments, value) = match value {
            Value::Object(_) => (parse_arguments(value.str_at(&["arg"])), &value["value"]),
            other => (Vec::new(), other),
        };
        let value = match value {
            Value::Int(number) => TagValue::Number(*number),
            Value::String(text) => parse_value(text),
            _ => TagValue::None,
        };
        tags.extend(
            Self {
                name: name.into(),
                arguments,
                value,
                stage: Stage::Stable,
            }
            .unwrap_stage(),
        );
    }

    /// Parses the source form, `+k8s:name(arguments)=value`.
    pub fn parse(text: &str) -> Option<Self> {
        let text = text.trim().strip_prefix("+k8s:")?;
        let end = text.find(['(', '=']).unwrap_or(text.len());
        let (name, mut rest) = text.split_at(end);
        let mut arguments = Vec::new();
        if rest.starts_with('(') {
            let close = closing(rest)?;
            arguments = parse_arguments(&rest[1..close]);
            rest = &rest[close + 1..];
        }
        let value = rest.strip_prefix('=').map_or(TagValue::None, parse_value);
        Self {
            name: name.into(),
            arguments,
            value,
            stage: Stage::Stable,
        }
        .unwrap_stage()
    }

    fn unwrap_stage(self) -> Option<Self> {
        let stage = match self.name.as_str() {
            "alpha" => Stage::Alpha,
            "beta" => Stage::Beta,
            _ => return Some(self),
        };
        match self.value {
            TagValue::Tag(mut inner) => {
                inner.stage = stage;
                Some(*inner)
            }
            _ => None,
        }
    }

    /// Returns the number behind the equals sign.
    pub fn number(&self) -> Option<i64> {
        match self.value {
            TagValue::Number(number) => Some(number),
            _ => None,
        }
    }

    /// Returns the text behind the equals sign.
    pub fn text(&self) -> &str {
        match &self.value {
            TagValue::Text(text) => text,
            _ => "",
        }
    }

    /// Returns the tag behind the equals sign. It has the stage of this one unless it has its own.
    pub fn inner(&self) -> Option<Self> {
        match &self.value {
            TagValue::Tag(inner) => {
                let mut inner = inner.as_ref().clone();
                if inner.stage == Stage::Stable {
                    inner.stage = self.stage;
                }
                Some(inner)
            }
            _ => None,
        }
    }

    /// Returns the argument `name`; the unnamed one has an empty name.
    pub fn argument(&self, name: &str) -> Option<&str> {
        self.arguments
            .iter()
            .find(|(key, _)| key == name)
            .map(|(_, value)| value.as_str())
    }
}

/// Returns the position of the parenthesis that closes the one at the start.
fn closing(text: &str) -> Option<usize> {
    let mut depth = 0usize;
    let mut quoted = false;
    for (at, byte) in text.bytes().enumerate() {
        match byte {
            b'"' => quoted = !quoted,
            b'(' if !quoted => depth += 1,
            b')' if !quoted => {
                depth -= 1;
                if depth == 0 {
                    return Some(at);
                }
            }
            _ => {}
        }
    }
    None
}

fn parse_arguments(text: &str) -> Vec<(Str, Str)> {
    let parts = text
        .split(',')
        .map(str::trim)
        .filter(|part| !part.is_empty());
    let split = |part: &str| match part.split_once(':') {
        Some((name, value)) => (Str::from(name.trim()), Str::from(unquote(value))),
        None => (Str::default(), Str::from(unquote(part))),
    };
    parts.map(split).collect()
}

fn parse_value(text: &str) -> TagValue {
    let text = text.trim();
    if let Some(tag) = Tag::parse(text) {
        return TagValue::Tag(Box::new(tag));
    }
    match text.parse() {
        Ok(number) => TagValue::Number(number),
        Err(_) => TagValue::Text(unquote(text).into()),
    }
}

fn unquote(text: &str) -> &str {
    let text = text.trim();
    let inner = text
        .strip_prefix(['"', '`'])
        .and_then(|text| text.strip_suffix(['"', '`']));
    inner.unwrap_or(text)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn stages_are_taken_off_and_kept() {
        let tag =
            Tag::parse("+k8s:beta(since: \"1.37\")=+k8s:subfield(name)=+k8s:format=k8s-long-name")
                .expect("a tag");
        assert_eq!(
            (tag.name.as_str(), tag.stage, tag.argument("")),
            ("subfield", Stage::Beta, Some("name"))
        );
        let inner = tag.inner().expect("an inner tag");
        assert_eq!(
            (inner.name.as_str(), inner.stage, inner.text()),
            ("format", Stage::Beta, "k8s-long-name")
        );
    }

    #[test]
    fn the_data_form_and_the_source_form_are_one() {
        let data = r#"{"alpha":{"arg":"since: \"1.37\"","value":"+k8s:required"},"beta":[{"arg":"since:\"1.37\"","value":"+k8s:maxItems=32"}],"update":["NoSet","NoUnset"],"optional":true}"#;
        let names: Vec<_> = Tag::read(data)
            .iter()
            .map(|tag| (tag.name.to_string(), tag.stage))
            .collect();
        let expected = [
            ("required", Stage::Alpha),
            ("maxItems", Stage::Beta),
            ("optional", Stage::Stable),
            ("update", Stage::Stable),
            ("update", Stage::Stable),
        ];
        assert_eq!(
            names,
            expected.map(|(name, stage)| (name.to_owned(), stage))
        );
        assert_eq!(Tag::read(data)[1].number(), Some(32));
    }
}
