//! The check of one rule on one value.

use crate::complaints::Complaints;
use crate::field_error::{Bad, FieldError, Path};
use crate::names;
use crate::schema::tags::{Tag, TagValue};
use crate::value::Value;

/// The form in which texts show a bad value.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Style {
    /// The value as it is.
    Plain,
    /// The value as JSON, because its type has a name.
    Named,
}

impl Style {
    fn show(self, value: &Value) -> Bad {
        match self {
            Self::Plain => Bad::Plain(value.clone()),
            Self::Named => Bad::Json(value.clone()),
        }
    }
}

/// Returns the number in a rule that sets a bound.
pub(super) fn bound(tag: &Tag) -> usize {
    tag.number()
        .and_then(|number| usize::try_from(number).ok())
        .unwrap_or(usize::MAX)
}

/// Checks a present value by one rule. `allowed` are the values of its type, as JSON text.
pub(super) fn check(
    tag: &Tag,
    value: &Value,
    style: Style,
    allowed: Option<&str>,
    path: &Path<'_>,
) -> Complaints {
    let error = match (tag.name.as_str(), value) {
        ("minimum", Value::Int(number)) => match tag.number() {
            Some(least) if *number < least => FieldError::invalid(
                path,
                *number,
                format!("must be greater than or equal to {least}"),
            ),
            _ => return Complaints::default(),
        },
        ("maximum", Value::Int(number)) => match tag.number() {
            Some(most) if *number > most => FieldError::invalid(
                path,
                *number,
                format!("must be less than or equal to {most}"),
            ),
            _ => return Complaints::default(),
        },
        ("maxLength", Value::String(text)) if too_long(text, bound(tag)) => {
            FieldError::too_long_characters(path, bound(tag))
        }
        ("maxBytes", Value::String(text)) if text.len() > bound(tag) => {
            FieldError::too_long(path, bound(tag))
        }
        ("minLength", Value::String(text)) if text.chars().count() < bound(tag) => {
            FieldError::too_short(path, style.show(value), bound(tag))
        }
        ("minItems", Value::Array(items)) if items.len() < bound(tag) => {
            FieldError::too_few(path, items.len(), bound(tag))
        }
        ("minItems" | "minProperties", Value::Null) if bound(tag) > 0 => {
            FieldError::too_few(path, 0, bound(tag))
        }
        ("minProperties", Value::Object(members)) if members.len() < bound(tag) => {
            FieldError::too_few(path, members.len(), bound(tag))
        }
        ("neq", value) => match disallowed(tag, value) {
            Some(shown) => FieldError::invalid(
                path,
                style.show(value),
                format!("must not be equal to {shown}"),
            ),
            None => return Complaints::default(),
        },
        ("enum", Value::String(_)) => {
            return allowed
                .map(|allowed| one_of(value, style, allowed, path))
                .unwrap_or_default();
        }
        ("format", Value::String(text)) => return format(tag.text(), text, style, path),
        _ => return Complaints::default(),
    };
    Complaints::from([error])
}

fn too_long(text: &str, most: usize) -> bool {
    text.len() > most && text.chars().count() > most
}

fn disallowed(tag: &Tag, value: &Value) -> Option<String> {
    match (&tag.value, value) {
        (TagValue::Text(text), Value::String(found)) if text == found => {
            Some(crate::quote::quote(text))
        }
        (TagValue::Number(number), Value::Int(found)) if number == found => {
            Some(number.to_string())
        }
        (TagValue::Text(text), Value::Bool(found)) if text.parse() == Ok(*found) => {
            Some(text.to_string())
        }
        _ => None,
    }
}

fn one_of(value: &Value, style: Style, allowed: &str, path: &Path<'_>) -> Complaints {
    let Ok(Value::Array(mut allowed)) = crate::schema::load::read_value(allowed) else {
        return Complaints::default();
    };
    if allowed.contains(value) {
        return Complaints::default();
    }
    allowed.sort_by(|a, b| a.as_str().cmp(&b.as_str()));
    let names: Vec<&str> = allowed.iter().filter_map(Value::as_str).collect();
    Complaints::from([FieldError::not_supported(path, style.show(value), &names)])
}

fn format(name: &str, text: &str, style: Style, path: &Path<'_>) -> Complaints {
    let value = Value::from(text);
    let plain = |messages: Vec<String>| {
        messages
            .into_iter()
            .map(|message| FieldError::invalid(path, style.show(&value), in_bytes(message)))
            .collect()
    };
    match name {
        "k8s-short-name" => plain(names::dns1123_label(text)),
        "k8s-long-name" => plain(names::dns1123_subdomain(text)),
        "k8s-long-name-caseless" => plain(names::dns1123_subdomain_caseless(text)),
        "k8s-label-key" => plain(names::qualified_name(text)),
        "k8s-label-value" => plain(names::label_value(text)),
        "k8s-path-segment-name" => plain(names::path_segment_name(text)),
        "k8s-prefixed-label-key" => plain(prefixed_label_key(text)),
        "k8s-uuid" if !is_uuid(text) => Complaints::from([FieldError::invalid(
            path,
            text,
            "must be a lowercase UUID in 8-4-4-4-12 format",
        )]),
        "k8s-resource-pool-name" => pool_name(text, path),
        "k8s-extended-resource-name" => extended_resource_name(text, path),
        "k8s-resource-fully-qualified-name" => fully_qualified_name(text, path),
        _ => Complaints::default(),
    }
}

/// Replaces "characters" by "bytes" in a message: declarative rules count bytes.
fn in_bytes(message: String) -> String {
    match message.strip_suffix(" characters") {
        Some(head) if head.starts_with("must be no more than ") => format!("{head} bytes"),
        _ => message,
    }
}

fn prefixed_label_key(text: &str) -> Vec<String> {
    let messages = names::qualified_name(text);
    if messages.is_empty() && text.split('/').count() != 2 {
        return vec!["must include a prefix (e.g. 'example.com/key')".to_owned()];
    }
    messages
}

fn is_uuid(text: &str) -> bool {
    let fits = |(at, byte): (usize, u8)| match at {
        8 | 13 | 18 | 23 => byte == b'-',
        _ => byte.is_ascii_digit() || (b'a'..=b'f').contains(&byte),
    };
    text.len() == 36 && text.bytes().enumerate().all(fits)
}

fn pool_name(text: &str, path: &Path<'_>) -> Complaints {
    let mut errors = Complaints::default();
    if text.len() > 253 {
        errors.push(FieldError::too_long(path, 253));
    }
    for (at, part) in text.split('/').enumerate() {
        if part.is_empty() {
            errors.push(FieldError::invalid(
                path,
                text,
                format!("segment {at}: must not be empty"),
            ));
            continue;
        }
        for message in names::dns1123_subdomain(part) {
            errors.push(FieldError::invalid(
                path,
                part,
                format!("segment {at}: {message}"),
            ));
        }
    }
    errors
}

fn extended_resource_name(text: &str, path: &Path<'_>) -> Complaints {
    let mut errors = Complaints::default();
    let mut complain = |detail: String| errors.push(FieldError::invalid(path, text, detail));
    if !text.contains('/') {
        complain("a name must be a domain-prefixed path, such as 'example.com/my-prop'".to_owned());
    } else if text.contains("kubernetes.io/") {
        complain("must not have \"kubernetes.io/\" domain".to_owned());
    }
    if text.starts_with("requests.") {
        complain("must not have \"requests.\" prefix".to_owned());
    }
    for message in names::qualified_name(&format!("requests.{text}")) {
        complain(message);
    }
    errors
}

fn fully_qualified_name(text: &str, path: &Path<'_>) -> Complaints {
    let mut errors = Complaints::default();
    let parts: Vec<&str> = text.split('/').collect();
    match parts.as_slice() {
        [name] => errors.extend(identifier(name, path)),
        [prefix, name] => {
            if prefix.is_empty() {
                errors.push(FieldError::invalid(path, "", "prefix must not be empty"));
            } else {
                if prefix.len() > 63 {
                    errors.push(FieldError::too_long(path, 63));
                }
                for message in names::dns1123_subdomain(prefix) {
                    errors.push(FieldError::invalid(
                        path,
                        *prefix,
                        format!("prefix: {message}"),
                    ));
                }
            }
            if name.is_empty() {
                errors.push(FieldError::invalid(path, "", "name must not be empty"));
            } else {
                errors.extend(identifier(name, path));
            }
        }
        _ => {}
    }
    if !text.contains('/') {
        let detail = "a fully qualified name must be a domain and a name separated by a slash";
        errors.push(FieldError::invalid(path, text, detail));
    }
    errors
}

fn identifier(name: &str, path: &Path<'_>) -> Complaints {
    let mut errors = Complaints::default();
    if name.len() > 32 {
        errors.push(FieldError::too_long(path, 32));
    }
    errors.extend(
        names::c_identifier(name)
            .into_iter()
            .map(|message| FieldError::invalid(path, name, message)),
    );
    errors
}
