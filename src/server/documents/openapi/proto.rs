//! The document of version 2 as protobuf. kubectl requests it before it validates a `List`, and
//! older clients request it before they validate anything.
//!
//! The messages are upstream's; `src/batteries/generate` reads them from its library. JSON becomes
//! protobuf by a few rules: a member becomes the field of its name, `x-…` an extension, other
//! members become entries of the message's only list of named values, and a field with alternatives
//! holds the one that the members fit. Arbitrary JSON is written as text, which upstream reads as
//! YAML.

use std::collections::HashMap;

use polyplane_apimachinery::{Value, json};

const MESSAGES: &[u8] = include_bytes!("messages.json");

/// A value that no field of the messages can hold.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
#[error("{message} has no place for {member}")]
pub(super) struct NoPlace {
    message: String,
    member: String,
}

/// Encodes a document of version 2.
///
/// # Errors
/// Returns an error if the document has a value that no field of the messages can hold.
pub(super) fn version2(document: &Value) -> Result<Vec<u8>, NoPlace> {
    Messages::new().encode("Document", document)
}

struct Field {
    name: String,
    number: u64,
    repeated: bool,
    ty: Type,
}

enum Type {
    Text,
    Bool,
    Int,
    Double,
    Message(String),
}

struct Messages(HashMap<String, Vec<Field>>);

impl Messages {
    fn new() -> Self {
        let parsed = json::parse(MESSAGES, &json::Limits::default());
        let all = parsed.expect("the generator writes JSON").value;
        let message = |(name, fields): (&str, &Value)| {
            let fields = fields.as_array().unwrap_or_default();
            (name.to_owned(), fields.iter().map(field).collect())
        };
        let all = all.as_object().expect("an object of messages");
        Self(all.iter().map(message).collect())
    }

    fn encode(&self, message: &str, value: &Value) -> Result<Vec<u8>, NoPlace> {
        let fields = &self.0[message];
        let mut out = Vec::new();
        if message == "Any" {
            let mut text = json::to_vec(value);
            text.push(b'\n');
            let field = find(fields, "yaml").expect("any value is text");
            bytes(&mut out, field.number, &text);
        } else if let Some(chosen) = choice(message, value) {
            let field = find(fields, chosen).expect("a choice is a field");
            self.put(&mut out, field, value)?;
        } else if matches!(message, "TypeItem" | "ItemsItem" | "StringArray") {
            // The value is one item or a list of items.
            for item in value
                .as_array()
                .unwrap_or_else(|| std::slice::from_ref(value))
            {
                self.put(&mut out, &fields[0], item)?;
            }
        } else {
            self.members(&mut out, message, value)?;
        }
        Ok(out)
    }

    /// Encodes the members of an object, in the order of the fields.
    fn members(&self, out: &mut Vec<u8>, message: &str, value: &Value) -> Result<(), NoPlace> {
        let (fields, members) = (&self.0[message], value.as_object());
        let mut left: Vec<&str> = members.map_or_else(Vec::new, |map| map.keys().collect());
        let extended = find(fields, "vendor_extension").is_some();
        for field in fields {
            let takes = |member: &str| match field.named() {
                Some(_) if field.name == "vendor_extension" => member.starts_with("x-"),
                // In a message without extensions, a name that begins with `x-` is an ordinary one.
                Some(_) => !(extended && member.starts_with("x-")),
                None => snake(member) == field.name,
            };
            let (mine, others) = left.into_iter().partition(|member| takes(member));
            left = others;
            let mine: Vec<&str> = mine;
            for member in mine {
                let value = members.and_then(|map| map.get(member));
                self.member(out, field, member, value.unwrap_or(&Value::Null))?;
            }
        }
        match left.first() {
            None => Ok(()),
            Some(member) => Err(NoPlace {
                message: message.to_owned(),
                member: (*member).to_owned(),
            }),
        }
    }

    fn member(
        &self,
        out: &mut Vec<u8>,
        field: &Field,
        member: &str,
        value: &Value,
    ) -> Result<(), NoPlace> {
        if let Some(named) = field.named() {
            let parts = &self.0[named];
            let name = find(parts, "name").expect("a named value has a name");
            let of = find(parts, "value").expect("a named value has a value");
            let mut entry = Vec::new();
            bytes(&mut entry, name.number, member.as_bytes());
            self.put(&mut entry, of, value)?;
            bytes(out, field.number, &entry);
            return Ok(());
        }
        match value.as_array() {
            Some(items) if field.repeated => {
                items.iter().try_for_each(|item| self.put(out, field, item))
            }
            _ => self.put(out, field, value),
        }
    }

    /// Encodes one value. Zero values are left out, except in lists.
    fn put(&self, out: &mut Vec<u8>, field: &Field, value: &Value) -> Result<(), NoPlace> {
        let wrong = || NoPlace {
            message: field.name.clone(),
            member: String::from_utf8_lossy(&json::to_vec(value)).into_owned(),
        };
        match &field.ty {
            Type::Message(message) => bytes(out, field.number, &self.encode(message, value)?),
            Type::Text => {
                let text = value.as_str().ok_or_else(wrong)?;
                if !text.is_empty() || field.repeated {
                    bytes(out, field.number, text.as_bytes());
                }
            }
            Type::Bool => {
                if value.as_bool().ok_or_else(wrong)? {
                    varint(out, field.number << 3);
                    varint(out, 1);
                }
            }
            Type::Int => {
                varint(out, field.number << 3);
                varint(out, value.as_int().ok_or_else(wrong)?.cast_unsigned());
            }
            Type::Double => {
                let number = match value {
                    #[expect(clippy::cast_precision_loss, reason = "JSON's numbers are doubles")]
                    Value::Int(number) => *number as f64,
                    Value::Float(number) => *number,
                    _ => return Err(wrong()),
                };
                varint(out, field.number << 3 | 1);
                out.extend_from_slice(&number.to_le_bytes());
            }
        }
        Ok(())
    }
}

impl Field {
    /// Returns the message of the entries if this field is a list of named values.
    fn named(&self) -> Option<&str> {
        match &self.ty {
            Type::Message(name) if self.repeated && name.starts_with("Named") => Some(name),
            _ => None,
        }
    }
}

fn field(row: &Value) -> Field {
    let row = row.as_array().unwrap_or_default();
    let [name, number, ty] = row else {
        panic!("a field is a name, a number and a type");
    };
    let ty = ty.as_str().unwrap_or("");
    let single = ty.trim_matches(['[', ']']);
    Field {
        name: name.as_str().unwrap_or("").to_owned(),
        number: number.as_int().unwrap_or(0).cast_unsigned(),
        repeated: single.len() < ty.len(),
        ty: match single {
            "string" => Type::Text,
            "bool" => Type::Bool,
            "int64" => Type::Int,
            "double" => Type::Double,
            other => Type::Message(other.trim_start_matches(':').to_owned()),
        },
    }
}

fn find<'a>(fields: &'a [Field], name: &str) -> Option<&'a Field> {
    fields.iter().find(|field| field.name == name)
}

/// Chooses the field of a message with alternatives by the members that distinguish them.
fn choice(message: &str, value: &Value) -> Option<&'static str> {
    let is_reference = value
        .as_object()
        .is_some_and(|map| map.contains_key("$ref"));
    Some(
        match (message, value.str_at(&["in"]), value.str_at(&["type"])) {
            ("AdditionalPropertiesItem", ..) if value.as_bool().is_some() => "boolean",
            ("AdditionalPropertiesItem", ..) => "schema",
            ("SchemaItem", _, "file") => "file_schema",
            ("SchemaItem", ..) => "schema",
            ("ParametersItem" | "ResponseValue", ..) if is_reference => "json_reference",
            ("ParametersItem", ..) => "parameter",
            ("ResponseValue", ..) => "response",
            ("Parameter", "body", _) => "body_parameter",
            ("Parameter", ..) => "non_body_parameter",
            ("NonBodyParameter", "header", _) => "header_parameter_sub_schema",
            ("NonBodyParameter", "formData", _) => "form_data_parameter_sub_schema",
            ("NonBodyParameter", "path", _) => "path_parameter_sub_schema",
            ("NonBodyParameter", ..) => "query_parameter_sub_schema",
            ("SecurityDefinitionsItem", _, "basic") => "basic_authentication_security",
            ("SecurityDefinitionsItem", _, "apiKey") => "api_key_security",
            ("SecurityDefinitionsItem", ..) => match value.str_at(&["flow"]) {
                "implicit" => "oauth2_implicit_security",
                "password" => "oauth2_password_security",
                "application" => "oauth2_application_security",
                _ => "oauth2_access_code_security",
            },
            _ => return None,
        },
    )
}

/// Returns the name of the field for a member: `operation_id` for `operationId`, `_ref` for `$ref`.
fn snake(member: &str) -> String {
    let mut name = String::with_capacity(member.len() + 4);
    for letter in member.chars() {
        match letter {
            '$' => name.push('_'),
            letter if letter.is_ascii_uppercase() => {
                name.push('_');
                name.push(letter.to_ascii_lowercase());
            }
            letter => name.push(letter),
        }
    }
    name
}

fn bytes(out: &mut Vec<u8>, number: u64, content: &[u8]) {
    varint(out, number << 3 | 2);
    varint(out, content.len() as u64);
    out.extend_from_slice(content);
}

fn varint(out: &mut Vec<u8>, mut value: u64) {
    while value >= 0x80 {
        out.push(value.to_le_bytes()[0] | 0x80);
        value >>= 7;
    }
    out.push(value.to_le_bytes()[0]);
}
