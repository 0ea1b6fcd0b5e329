//! The documents as protobuf. kubectl requests version 2 so before it validates a `List`; older clients
//! do before they validate anything. Generators and other clients in Go request version 3.
//!
//! The messages are upstream's; `src/batteries/generate` reads them from its library. JSON becomes
//! protobuf by a few rules: a member becomes the field of its name, `x-…` an extension, other
//! members become entries of the message's only list of named values, and a field with alternatives
//! holds the one that the members fit. Arbitrary JSON is written as YAML. What the messages have no
//! place for, such as a member that no version of OpenAPI knows, is left out.

use std::collections::HashMap;

use polyplane_apimachinery::yaml::Layout;
use polyplane_apimachinery::{Value, json, yaml};

use super::node::Node;

const MESSAGES_2: &[u8] = include_bytes!("messages.json");
const MESSAGES_3: &[u8] = include_bytes!("messages3.json");

/// Encodes a document of version 2.
pub(super) fn version2(document: Node<'_>) -> Pieces {
    Messages::new(MESSAGES_2, choice2).encode_node("Document", document)
}

/// Encodes a document of version 3.
pub(super) fn version3(document: Node<'_>) -> Pieces {
    Messages::new(MESSAGES_3, choice3).encode_node("Document", document)
}

/// An encoded message in parts. They are not copied when it becomes part of another message, whose head says how long
/// it is.
#[derive(Default)]
pub(super) struct Pieces {
    parts: Vec<Vec<u8>>,
    bytes: usize,
}

impl Pieces {
    /// Returns the length of the message.
    pub(super) fn bytes(&self) -> usize {
        self.bytes
    }

    /// Returns the bytes of the message in order.
    pub(super) fn into_parts(self) -> Vec<Vec<u8>> {
        self.parts
    }

    fn push(&mut self, mut part: Vec<u8>) {
        part.shrink_to_fit();
        self.bytes += part.len();
        self.parts.push(part);
    }

    /// Adds a field that holds a message.
    fn push_field(&mut self, number: u64, message: Self) {
        let mut head = Vec::new();
        varint(&mut head, number << 3 | 2);
        varint(&mut head, message.bytes as u64);
        self.push(head);
        self.bytes += message.bytes;
        self.parts.extend(message.parts);
    }
}

/// What a message of a name holds of a value.
enum Choice {
    /// The value's members, each in a field of its own.
    Members,
    /// The value in one of the alternatives.
    Field(&'static str),
    /// None of the alternatives.
    Nothing,
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

/// Whether a value that is zero, false or empty is written. A lone field leaves it out, because its
/// absence says the same.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Zero {
    Written,
    LeftOut,
}

struct Messages {
    fields: HashMap<String, Vec<Field>>,
    choice: fn(&str, &Value) -> Choice,
}

impl Messages {
    fn new(messages: &[u8], choice: fn(&str, &Value) -> Choice) -> Self {
        let parsed = json::parse(messages, &json::Limits::default());
        let all = parsed.expect("the generator writes JSON").value;
        let message = |(name, fields): (&str, &Value)| {
            let fields = fields.as_array().unwrap_or_default();
            (name.to_owned(), fields.iter().map(field).collect())
        };
        let all = all.as_object().expect("an object of messages");
        Self {
            fields: all.iter().map(message).collect(),
            choice,
        }
    }

    fn encode(&self, message: &str, value: &Value) -> Vec<u8> {
        let fields = &self.fields[message];
        let mut out = Vec::new();
        if message == "Any" {
            let mut text = Vec::new();
            yaml::write_as(value, Layout::Wide, &mut text);
            let field = find(fields, "yaml").expect("any value is text");
            bytes(&mut out, field.number, &text);
            return out;
        }
        if matches!(message, "TypeItem" | "ItemsItem" | "StringArray") {
            // The value is one item or a list of items.
            let items = value
                .as_array()
                .unwrap_or_else(|| std::slice::from_ref(value));
            for item in items {
                self.put(&mut out, &fields[0], item, Zero::Written);
            }
            return out;
        }
        match (self.choice)(message, value) {
            Choice::Members => self.members(&mut out, message, value),
            Choice::Nothing => {}
            Choice::Field(chosen) => {
                let field = find(fields, chosen).expect("a choice is a field");
                self.put(&mut out, field, value, Zero::Written);
            }
        }
        out
    }

    /// Encodes a node. Members that are written one by one are encoded so, and must be of a message that holds the
    /// members of its value.
    fn encode_node(&self, message: &str, node: Node<'_>) -> Pieces {
        let mut pieces = Pieces::default();
        let members = match node {
            Node::Members(members) => members,
            Node::Value(value) => {
                pieces.push(self.encode(message, &value));
                return pieces;
            }
            Node::Made(make) => {
                pieces.push(self.encode(message, &make()));
                return pieces;
            }
        };
        let fields = &self.fields[message];
        let extended = fields.iter().any(Field::is_extension);
        let mut left: Vec<_> = members.into_iter().collect();
        for field in fields {
            let all = left.into_iter();
            let (mine, others): (Vec<_>, Vec<_>) =
                all.partition(|(member, _)| field.takes(member, extended));
            left = others;
            for (member, node) in mine {
                self.member_node(&mut pieces, field, &member, node);
            }
        }
        pieces
    }

    fn member_node(&self, pieces: &mut Pieces, field: &Field, member: &str, node: Node<'_>) {
        let value = match node {
            Node::Value(value) => value,
            Node::Made(make) => make(),
            Node::Members(_) => {
                debug_assert!(!field.repeated, "{member} holds one message");
                if let Type::Message(message) = &field.ty {
                    pieces.push_field(field.number, self.encode_node(message, node));
                }
                return;
            }
        };
        let mut encoded = Vec::new();
        self.member(&mut encoded, field, member, &value);
        pieces.push(encoded);
    }

    /// Encodes the members of an object, in the order of the fields.
    fn members(&self, out: &mut Vec<u8>, message: &str, value: &Value) {
        let (fields, Some(members)) = (&self.fields[message], value.as_object()) else {
            return;
        };
        let mut left: Vec<&str> = members.keys().collect();
        let extended = fields.iter().any(Field::is_extension);
        for field in fields {
            let takes = |member: &&str| field.takes(member, extended);
            let (mine, others): (Vec<&str>, _) = left.into_iter().partition(takes);
            left = others;
            for member in mine {
                let value = members.get(member).unwrap_or(&Value::Null);
                self.member(out, field, member, value);
            }
        }
    }

    fn member(&self, out: &mut Vec<u8>, field: &Field, member: &str, value: &Value) {
        if let Some(named) = field.named() {
            let parts = &self.fields[named];
            let name = find(parts, "name").expect("a named value has a name");
            let of = find(parts, "value").expect("a named value has a value");
            let mut entry = Vec::new();
            bytes(&mut entry, name.number, member.as_bytes());
            self.put(&mut entry, of, value, Zero::LeftOut);
            bytes(out, field.number, &entry);
            return;
        }
        match value.as_array() {
            Some(items) if field.repeated => {
                for item in items {
                    self.put(out, field, item, Zero::Written);
                }
            }
            _ => self.put(out, field, value, Zero::LeftOut),
        }
    }

    /// Encodes one value; nothing if it is of another type than the field.
    fn put(&self, out: &mut Vec<u8>, field: &Field, value: &Value, zero: Zero) {
        let written = zero == Zero::Written;
        match (&field.ty, value) {
            (Type::Message(message), _) => bytes(out, field.number, &self.encode(message, value)),
            (Type::Text, Value::String(text)) if written || !text.is_empty() => {
                bytes(out, field.number, text.as_bytes());
            }
            (Type::Bool, Value::Bool(truth)) if written || *truth => {
                varint(out, field.number << 3);
                varint(out, u64::from(*truth));
            }
            (Type::Int, Value::Int(number)) if written || *number != 0 => {
                varint(out, field.number << 3);
                varint(out, number.cast_unsigned());
            }
            #[expect(clippy::cast_precision_loss, reason = "JSON's numbers are doubles")]
            (Type::Double, Value::Int(number)) if written || *number != 0 => {
                double(out, field.number, *number as f64);
            }
            (Type::Double, Value::Float(number)) if written || *number != 0.0 => {
                double(out, field.number, *number);
            }
            _ => {}
        }
    }
}

impl Field {
    /// Returns whether a member of this name becomes this field. `extended` says whether the message has a field of
    /// extensions.
    fn takes(&self, member: &str, extended: bool) -> bool {
        match self.named() {
            Some(_) if self.is_extension() => member.starts_with("x-"),
            // In a message without extensions, a name that begins with `x-` is an ordinary one.
            Some(_) => !(extended && member.starts_with("x-")),
            None => snake(member) == self.name,
        }
    }

    /// Returns the message of the entries if this field is a list of named values.
    fn named(&self) -> Option<&str> {
        match &self.ty {
            Type::Message(name) if self.repeated && name.starts_with("Named") => Some(name),
            _ => None,
        }
    }

    /// Returns true if the field has the members that begin with `x-`.
    fn is_extension(&self) -> bool {
        matches!(
            self.name.as_str(),
            "vendor_extension" | "specification_extension"
        )
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

/// Chooses the field of a message of version 2 by the members that distinguish the alternatives.
fn choice2(message: &str, value: &Value) -> Choice {
    let is_reference = is_reference(value);
    Choice::Field(
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
            _ => return Choice::Members,
        },
    )
}

/// Chooses the field of a message of version 3, as [`choice2`] does for version 2.
fn choice3(message: &str, value: &Value) -> Choice {
    Choice::Field(match (message, value) {
        ("AdditionalPropertiesItem", Value::Bool(_)) => "boolean",
        ("AdditionalPropertiesItem", _) => "schema_or_reference",
        ("DefaultType", Value::Bool(_)) => "boolean",
        ("DefaultType", Value::String(_)) => "string",
        ("DefaultType", Value::Int(_) | Value::Float(_)) => "number",
        // Upstream's message cannot hold them either.
        ("DefaultType", _) => return Choice::Nothing,
        _ if message.ends_with("OrReference") && is_reference(value) => "reference",
        ("CallbackOrReference", _) => "callback",
        ("ExampleOrReference", _) => "example",
        ("HeaderOrReference", _) => "header",
        ("LinkOrReference", _) => "link",
        ("ParameterOrReference", _) => "parameter",
        ("RequestBodyOrReference", _) => "request_body",
        ("ResponseOrReference", _) => "response",
        ("SchemaOrReference", _) => "schema",
        ("SecuritySchemeOrReference", _) => "security_scheme",
        _ => return Choice::Members,
    })
}

fn is_reference(value: &Value) -> bool {
    let members = value.as_object();
    members.is_some_and(|members| members.contains_key("$ref"))
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

fn double(out: &mut Vec<u8>, number: u64, value: f64) {
    varint(out, number << 3 | 1);
    out.extend_from_slice(&value.to_le_bytes());
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

#[cfg(test)]
mod tests {
    use std::io::Read as _;

    use base64::Engine as _;
    use base64::engine::general_purpose::STANDARD;
    use flate2::read::GzDecoder;

    use super::*;

    #[test]
    fn documents_are_encoded_as_upstreams_library_encodes_them() {
        let mut vectors = String::new();
        GzDecoder::new(&include_bytes!("../testdata/documents.jsonl.gz")[..])
            .read_to_string(&mut vectors)
            .expect("the generator packs text");
        let mut sizes = Vec::new();
        for line in vectors.lines() {
            let vector = json::parse(line.as_bytes(), &json::Limits::default());
            let vector = vector.expect("a vector is JSON").value;
            let (name, text) = (vector.str_at(&["name"]), vector.str_at(&["json"]));
            let document = json::parse(text.as_bytes(), &json::Limits::default());
            let document = document.expect("a document is JSON").value;
            let encoded = match vector.int_at(&["v"]) {
                Some(2) => version2(Node::Value(document)),
                _ => version3(Node::Value(document)),
            };
            let encoded = encoded.into_parts().concat();
            let wanted = STANDARD.decode(vector.str_at(&["proto"])).expect("base64");
            let pairs = encoded.iter().zip(&wanted);
            let same = pairs.take_while(|(ours, theirs)| ours == theirs).count();
            let around = |bytes: &[u8]| {
                let part = &bytes[same.saturating_sub(60)..bytes.len().min(same + 60)];
                part.escape_ascii().to_string()
            };
            assert!(
                encoded == wanted,
                "{name} differs at byte {same}\n  {}\n  {}",
                around(&encoded),
                around(&wanted)
            );
            sizes.push((name.to_owned(), encoded.len()));
        }
        let count = sizes.len();
        println!("OpenAPI: {count} of 6 documents are equal to the last byte: {sizes:?}");
        assert_eq!(count, 6);
    }

    #[test]
    fn what_the_messages_have_no_place_for_is_left_out() {
        let document = |more: &str| {
            let text = format!(r#"{{"openapi":"3.0.0","info":{{"title":"a"}}{more}}}"#);
            let parsed = json::parse(text.as_bytes(), &json::Limits::default());
            let document = Node::Value(parsed.expect("it is JSON").value);
            version3(document).into_parts().concat()
        };
        let plain = document("");
        assert_eq!(document(r#","unknown":{"a":[1]}"#), plain);
        assert_eq!(document(r#","openapi":3"#).len(), plain.len() - 7);
    }
}
