//! Parses YAML text into a tree. Events come from the parser; anchors are kept as finished values.

use std::collections::HashSet;

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use granit_parser::{Event, Options, Parser, ScalarStyle, Span, Tag};

use super::complaint::complaint;
use super::float_text;
use super::resolve::{Resolved, looks_like_timestamp, resolve};
use crate::json::Limits;
use crate::quote::quote;
use crate::value::{Map, Str, Value};

/// A YAML document after parsing.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct YamlParsed {
    /// The document.
    pub value: Value,
    /// The complaint of strict parsing: keys that occur twice, with upstream's text.
    pub strict_error: Option<String>,
}

/// The reason why a text cannot be used as a YAML document. Its texts are those that upstream shows
/// the client.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum YamlError {
    /// The text is not YAML.
    #[error("yaml: {}{message}", line_text(*line))]
    Syntax {
        /// The line that upstream names, if it names one.
        line: Option<usize>,
        /// The text about the error.
        message: String,
    },
    /// The text is YAML without an equivalent in JSON, or exceeds a limit.
    #[error("yaml: {0}")]
    Unusable(String),
    /// A number cannot be represented in JSON.
    #[error("json: unsupported value: {0}")]
    Number(&'static str),
    /// A key is neither text nor number nor boolean.
    #[error("unsupported map key of type: {0}")]
    Key(&'static str),
}

const ALIASING: &str = "document contains excessive aliasing";
/// Number of keys that are reported as occurring twice. More would only lengthen the error.
const DUPLICATES_MAX: usize = 100;

/// Parses the first document. Text behind it is ignored, as upstream does.
///
/// # Errors
/// See [`YamlError`].
pub fn parse(bytes: &[u8], limits: &Limits) -> Result<YamlParsed, YamlError> {
    if bytes.len() > limits.bytes_max {
        return Err(YamlError::Unusable(format!(
            "document is larger than {} bytes",
            limits.bytes_max
        )));
    }
    let text = std::str::from_utf8(bytes)
        .map_err(|_| YamlError::Unusable("invalid leading UTF-8 octet".into()))?;
    let text = text.strip_prefix('\u{feff}').unwrap_or(text);
    if text.chars().any(is_forbidden) {
        return Err(YamlError::Unusable(
            "control characters are not allowed".into(),
        ));
    }
    if text.trim_start_matches(['\n', '\r', ' ']).starts_with('\t') {
        return Err(YamlError::Unusable(
            "found character that cannot start any token".into(),
        ));
    }
    if let Some(line) = incompatible_directive(text) {
        return Err(YamlError::Syntax {
            line: (line > 0).then_some(line),
            message: "found incompatible YAML document".into(),
        });
    }
    let options = options(limits);
    let mut reader = Reader {
        text,
        parser: Parser::new_from_str_with_options(text, options),
        limits,
        frames: Vec::new(),
        anchors: Vec::new(),
        nodes: 0,
        alias_nodes: 0,
        alias_bytes: 0,
        duplicates: Vec::new(),
    };
    let value = reader.document()?;
    let strict_error = (!reader.duplicates.is_empty()).then(|| {
        format!(
            "yaml: unmarshal errors:\n  {}",
            reader.duplicates.join("\n  ")
        )
    });
    Ok(YamlParsed {
        value,
        strict_error,
    })
}

/// Returns the number of lines before a directive of another version than 1.1, which is the only one that
/// upstream reads.
fn incompatible_directive(text: &str) -> Option<usize> {
    for (at, line) in text.lines().enumerate() {
        if let Some(version) = line.strip_prefix("%YAML") {
            let mut words = version.split([' ', '\t']);
            let is_separate = words.next() == Some("");
            let (major, minor) = words.find(|word| !word.is_empty())?.split_once('.')?;
            let (major, minor) = (major.parse::<u32>().ok()?, minor.parse::<u32>().ok()?);
            return (is_separate && (major, minor) != (1, 1)).then_some(at);
        }
        let is_passed = line.starts_with('%') || line.trim_start().starts_with('#');
        if !is_passed && !line.trim().is_empty() {
            return None;
        }
    }
    None
}

fn options(limits: &Limits) -> Options {
    let nesting = limits.depth_max + 1;
    let mut options = Options::default();
    options.flow_nesting_limit = nesting;
    options.block_nesting_limit = nesting;
    options.emit_comments = false;
    options
}

/// Returns true for characters that no YAML text may have.
fn is_forbidden(character: char) -> bool {
    match character {
        '\t' | '\n' | '\r' | '\u{85}' => false,
        '\0'..'\u{20}' | '\u{7f}'..'\u{a0}' | '\u{fffe}' | '\u{ffff}' => true,
        _ => false,
    }
}

/// A finished node and the cost of cloning it.
#[derive(Clone)]
struct Node {
    value: Value,
    kind: Kind,
    nodes: usize,
    bytes: usize,
    line: usize,
}

/// The type of a node, where its value does not show it.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Kind {
    Plain,
    /// The plain scalar `<<`.
    Merge,
    Alias,
    /// A number beyond 64 bits signed, which cannot be a key.
    Unsigned,
}

struct Frame {
    anchor: usize,
    line: usize,
    nodes: usize,
    bytes: usize,
    content: Content,
}

enum Content {
    Sequence(Vec<Value>),
    Mapping {
        members: Vec<(Str, Value)>,
        /// The keys of `members`.
        keys: HashSet<Str>,
        key: Option<Node>,
    },
}

struct Reader<'a> {
    text: &'a str,
    parser: Parser<'a, granit_parser::StrInput<'a>>,
    limits: &'a Limits,
    frames: Vec<Frame>,
    anchors: Vec<Option<Node>>,
    nodes: usize,
    alias_nodes: usize,
    alias_bytes: usize,
    duplicates: Vec<String>,
}

impl Reader<'_> {
    fn document(&mut self) -> Result<Value, YamlError> {
        let mut root = Value::Null;
        while let Some(event) = self.parser.next_event() {
            let (event, span) = event.map_err(|error| complaint(self.text, &error))?;
            if matches!(event, Event::DocumentEnd | Event::StreamEnd) {
                break;
            }
            if let Some(node) = self.event(event, span)? {
                root = node.value;
            }
        }
        Ok(root)
    }

    /// Processes one event. Returns the outermost node once it is finished.
    fn event(&mut self, event: Event<'_>, span: Span) -> Result<Option<Node>, YamlError> {
        let line = span.start.line();
        match event {
            Event::Scalar(text, style, anchor, tag) => {
                let (value, kind) = scalar(&text, style, tag.as_deref())?;
                let bytes = text.len();
                self.finish(
                    Node {
                        value,
                        kind,
                        nodes: 1,
                        bytes,
                        line,
                    },
                    anchor,
                )
            }
            Event::SequenceStart(_, anchor, _) => {
                self.open(anchor, line, Content::Sequence(Vec::new()))
            }
            Event::MappingStart(_, anchor, _) => self.open(
                anchor,
                line,
                Content::Mapping {
                    members: Vec::new(),
                    keys: HashSet::new(),
                    key: None,
                },
            ),
            Event::SequenceEnd | Event::MappingEnd => {
                let frame = self.frames.pop().expect("the parser closes what it opened");
                let value = match frame.content {
                    Content::Sequence(items) => Value::Array(items),
                    Content::Mapping { members, .. } => {
                        Value::Object(Map::from_unsorted(members, |_| {}))
                    }
                };
                let node = Node {
                    value,
                    kind: Kind::Plain,
                    nodes: frame.nodes + 1,
                    bytes: frame.bytes,
                    line: frame.line,
                };
                self.finish(node, frame.anchor)
            }
            Event::Alias(id) => {
                let node = self.alias(id, line)?;
                self.finish(node, 0)
            }
            _ => Ok(None),
        }
    }

    fn open(
        &mut self,
        anchor: usize,
        line: usize,
        content: Content,
    ) -> Result<Option<Node>, YamlError> {
        if self.frames.len() >= self.limits.depth_max {
            return Err(YamlError::Unusable(format!(
                "exceeded max depth of {}",
                self.limits.depth_max
            )));
        }
        self.frames.push(Frame {
            anchor,
            line,
            nodes: 0,
            bytes: 0,
            content,
        });
        Ok(None)
    }

    /// Returns a copy of an anchored node, if the budget has room for it.
    fn alias(&mut self, id: usize, line: usize) -> Result<Node, YamlError> {
        let Some(Some(anchored)) = self.anchors.get(id) else {
            return Err(YamlError::Unusable("anchor value contains itself".into()));
        };
        self.nodes += anchored.nodes;
        self.alias_nodes += anchored.nodes;
        self.alias_bytes += anchored.bytes;
        #[expect(clippy::cast_precision_loss, reason = "a ratio needs no precision")]
        let ratio = self.alias_nodes as f64 / self.nodes as f64;
        let many =
            self.alias_nodes > 100 && self.nodes > 1000 && ratio > allowed_alias_ratio(self.nodes);
        if many || self.alias_bytes > self.limits.bytes_max {
            return Err(YamlError::Unusable(ALIASING.into()));
        }
        let mut node = anchored.clone();
        if node.kind == Kind::Merge {
            node.kind = Kind::Plain;
        }
        if node.value.as_object().is_some() {
            node.kind = Kind::Alias;
        }
        node.line = line;
        Ok(node)
    }

    /// Adds a finished node to its parent, or returns it if it has none.
    fn finish(&mut self, node: Node, anchor: usize) -> Result<Option<Node>, YamlError> {
        self.nodes += 1;
        if anchor > 0 {
            if self.anchors.len() <= anchor {
                self.anchors.resize(anchor + 1, None);
            }
            self.anchors[anchor] = Some(node.clone());
        }
        let Some(frame) = self.frames.last_mut() else {
            return Ok(Some(node));
        };
        frame.nodes += node.nodes;
        frame.bytes += node.bytes;
        match &mut frame.content {
            Content::Sequence(items) => items.push(node.value),
            Content::Mapping { members, keys, key } => match key.take() {
                None => *key = Some(node),
                Some(name) if name.kind == Kind::Merge => {
                    for (text, value) in merged(node.value)? {
                        let name = Node {
                            value: text.as_str().into(),
                            ..name.clone()
                        };
                        note_duplicate(keys, &text, &name, node.line, &mut self.duplicates);
                        members.push((text, value));
                    }
                }
                Some(name) => {
                    let text = key_text(&name)?;
                    note_duplicate(keys, &text, &name, node.line, &mut self.duplicates);
                    members.push((text, node.value));
                }
            },
        }
        Ok(None)
    }
}

/// Returns the share of all nodes that may come from aliases: the larger the document, the smaller.
/// It bounds documents whose aliases multiply each other.
fn allowed_alias_ratio(nodes: usize) -> f64 {
    const LOW: usize = 400_000;
    const HIGH: usize = 4_000_000;
    match nodes {
        ..=LOW => 0.99,
        HIGH.. => 0.10,
        #[expect(clippy::cast_precision_loss, reason = "a ratio needs no precision")]
        _ => 0.99 - 0.89 * ((nodes - LOW) as f64 / (HIGH - LOW) as f64),
    }
}

fn line_text(line: Option<usize>) -> String {
    line.map_or_else(String::new, |line| format!("line {line}: "))
}

/// Returns the members of a mapping, or of several mappings; later members win.
fn merged(value: Value) -> Result<Vec<(Str, Value)>, YamlError> {
    let mut members = Vec::new();
    let wrong =
        || YamlError::Unusable("map merge requires map or sequence of maps as the value".into());
    match value {
        Value::Object(map) => members.extend(map),
        Value::Array(items) => {
            for item in items.into_iter().rev() {
                match item {
                    Value::Object(map) => members.extend(map),
                    _ => return Err(wrong()),
                }
            }
        }
        _ => return Err(wrong()),
    }
    Ok(members)
}

/// Returns the JSON text of a key.
fn key_text(key: &Node) -> Result<Str, YamlError> {
    match &key.value {
        _ if key.kind == Kind::Unsigned => Err(YamlError::Key("uint64")),
        Value::String(text) => Ok(text.clone()),
        Value::Bool(truth) => Ok(Str::from(if *truth { "true" } else { "false" })),
        Value::Int(number) => Ok(Str::from(number.to_string())),
        #[expect(
            clippy::cast_possible_truncation,
            reason = "upstream prints keys in single precision"
        )]
        Value::Float(number) => Ok(Str::from(float_text(f64::from(*number as f32)))),
        Value::Null => Err(YamlError::Key("%!s(<nil>)")),
        Value::Array(_) => Err(YamlError::Unusable(
            "invalid map key: []interface {}".into(),
        )),
        Value::Object(_) => Err(YamlError::Unusable(
            "invalid map key: map[interface {}]interface {}".into(),
        )),
    }
}

fn note_duplicate(
    keys: &mut HashSet<Str>,
    text: &Str,
    key: &Node,
    line: usize,
    found: &mut Vec<String>,
) {
    if !keys.insert(text.clone()) && found.len() < DUPLICATES_MAX {
        let shown = if key.value.as_str().is_some() {
            quote(text)
        } else {
            text.to_string()
        };
        found.push(format!("line {line}: key {shown} already set in map"));
    }
}

fn scalar(text: &str, style: ScalarStyle, tag: Option<&Tag>) -> Result<(Value, Kind), YamlError> {
    let plain = |value| Ok((value, Kind::Plain));
    let Some(tag) = tag else {
        if style != ScalarStyle::Plain {
            return plain(Value::from(text));
        }
        if text == "<<" {
            return Ok((Value::from(text), Kind::Merge));
        }
        return value_of(resolve(text), text);
    };
    let suffix = tag.suffix_in_namespace("tag:yaml.org,2002:");
    match suffix.as_deref() {
        Some("str" | "timestamp") => plain(Value::from(text)),
        Some("binary") => match STANDARD.decode(text.replace(['\n', '\r', ' '], "")) {
            Ok(data) => plain(Value::from(String::from_utf8_lossy(&data).into_owned())),
            Err(_) => Err(YamlError::Unusable(
                "!!binary value contains invalid base64 data".into(),
            )),
        },
        Some(name @ ("int" | "float" | "bool" | "null")) => {
            let resolved = resolve(text);
            let found = match &resolved {
                Resolved::Null => "null",
                Resolved::Bool(_) => "bool",
                Resolved::Int(number) if name == "float" => {
                    #[expect(clippy::cast_precision_loss, reason = "the tag asks for a float")]
                    let number = *number as f64;
                    return value_of(Resolved::Float(number), text);
                }
                Resolved::Int(_) | Resolved::Unsigned(_) => "int",
                Resolved::Float(_) => "float",
                Resolved::Text if looks_like_timestamp(text) => "timestamp",
                Resolved::Text => "str",
            };
            if found == name {
                return value_of(resolved, text);
            }
            Err(YamlError::Unusable(format!(
                "cannot decode !!{found} `{text}` as a !!{name}"
            )))
        }
        _ => plain(Value::from(text)),
    }
}

/// Returns the value after conversion to JSON and back: a float without fraction becomes an
/// integer.
fn value_of(resolved: Resolved, text: &str) -> Result<(Value, Kind), YamlError> {
    let value = match resolved {
        Resolved::Null => Value::Null,
        Resolved::Bool(truth) => Value::Bool(truth),
        Resolved::Int(number) => Value::Int(number),
        #[expect(
            clippy::cast_precision_loss,
            reason = "JSON numbers beyond 64 bits signed are floats"
        )]
        Resolved::Unsigned(number) => return Ok((Value::Float(number as f64), Kind::Unsigned)),
        Resolved::Float(number) if number.is_nan() => return Err(YamlError::Number("NaN")),
        Resolved::Float(f64::INFINITY) => return Err(YamlError::Number("+Inf")),
        Resolved::Float(f64::NEG_INFINITY) => return Err(YamlError::Number("-Inf")),
        Resolved::Float(number) => whole_or_float(number),
        Resolved::Text => Value::from(text),
    };
    Ok((value, Kind::Plain))
}

pub(super) fn whole_or_float(number: f64) -> Value {
    let mut text = Vec::new();
    crate::json::write_float(number, &mut text);
    match std::str::from_utf8(&text)
        .ok()
        .and_then(|text| text.parse::<i64>().ok())
    {
        Some(whole) => Value::Int(whole),
        None => Value::Float(number),
    }
}
