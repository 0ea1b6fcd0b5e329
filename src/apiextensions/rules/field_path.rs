//! Paths that lead to a field of a schema: those by which rules name the field that their complaint
//! is about, and those of the fields by which lists can be filtered.

use polyplane_apimachinery::Value;

/// The steps that a path may take.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Steps {
    /// `.name` only.
    Names,
    /// `.name` and `['name']`.
    NamesAndKeys,
}

/// The field that a path leads to.
#[derive(Clone, Debug, PartialEq)]
pub struct FoundField<'v> {
    /// The path as complaints show it.
    pub shown: String,
    /// Its first step.
    pub root: String,
    /// The schema of the field.
    pub schema: &'v Value,
}

const NO_FIELD: &str = "does not refer to a valid field";
const ENDS: &str = "unexpected end of JSON path";

/// Finds the field of a schema that a path leads to.
///
/// # Errors
/// Returns upstream's text if the path is malformed or leads to no field.
pub fn find_field<'v>(
    path: &str,
    schema: &'v Value,
    steps: Steps,
) -> Result<FoundField<'v>, String> {
    let mut found = FoundField {
        shown: String::new(),
        root: String::new(),
        schema,
    };
    let mut tokens = Tokens(path);
    while let Some(token) = tokens.next() {
        match token {
            "[" if steps == Steps::Names => {
                return Err("array notation is not allowed".to_owned());
            }
            "[" => {
                let quoted = tokens.next().ok_or(ENDS)?;
                let inner = quoted.strip_prefix('\'');
                let inner = inner.and_then(|inner| inner.strip_suffix('\''));
                let inner = inner
                    .ok_or_else(|| format!("expected single quoted string but got {quoted}"))?;
                let name =
                    unescaped(inner).map_err(|why| format!("invalid string literal: {why}"))?;
                found.step(&name)?;
                match tokens.next().ok_or(ENDS)? {
                    "]" => {}
                    other => return Err(format!("expected ] but got {other}")),
                }
            }
            "." => found.step(tokens.next().ok_or(ENDS)?)?,
            other => return Err(format!("expected [ or . but got: {other}")),
        }
    }
    Ok(found)
}

/// Returns a path as complaints show it, if it leads to a field of the schema.
pub fn normalized(path: &str, schema: &Value) -> Option<String> {
    let found = find_field(path, schema, Steps::NamesAndKeys).ok()?;
    Some(found.shown)
}

impl FoundField<'_> {
    /// Goes to a property, or to the values of a map.
    fn step(&mut self, name: &str) -> Result<(), String> {
        let properties = self.schema["properties"].as_object();
        let properties = properties.filter(|properties| !properties.is_empty());
        let (next, shown) = match properties {
            Some(properties) => {
                let point = if self.shown.is_empty() { "" } else { "." };
                (properties.get(name), format!("{point}{name}"))
            }
            None => {
                let values = self.schema.get("additionalProperties");
                let values = values.filter(|values| values.as_object().is_some());
                (values, format!("[{name}]"))
            }
        };
        self.schema = next.ok_or(NO_FIELD)?;
        if self.shown.is_empty() {
            self.root.clone_from(&shown);
        }
        self.shown.push_str(&shown);
        Ok(())
    }
}

/// The tokens of the rest of a path: `.`, `[`, `]`, a text in single quotes, and any other text up to
/// one of the three.
struct Tokens<'p>(&'p str);

impl<'p> Iterator for Tokens<'p> {
    type Item = &'p str;

    fn next(&mut self) -> Option<&'p str> {
        let bytes = self.0.as_bytes();
        let end = match *bytes.first()? {
            b'\'' => {
                let closes = |at: &usize| bytes[*at] == b'\'' && bytes[at - 1] != b'\\';
                (1..bytes.len()).find(closes).map(|at| at + 1)
            }
            b'.' | b'[' | b']' => Some(1),
            _ => self.0.find(['.', '[', ']']),
        };
        let (token, rest) = self.0.split_at(end.unwrap_or(bytes.len()));
        self.0 = rest;
        Some(token)
    }
}

/// Replaces the escapes of a quoted text.
///
/// # Errors
/// Returns upstream's text about the last escape that is none.
fn unescaped(text: &str) -> Result<String, String> {
    let (mut out, mut wrong) = (String::new(), None);
    let mut letters = text.chars().peekable();
    while let Some(letter) = letters.next() {
        let escaped = letters.next_if(|next| letter == '\\' && *next != '\n');
        out.push(match escaped {
            None => letter,
            Some('a') => '\u{7}',
            Some('b') => '\u{8}',
            Some('f') => '\u{c}',
            Some('n') => '\n',
            Some('r') => '\r',
            Some('t') => '\t',
            Some('v') => '\u{b}',
            Some(plain @ ('\'' | '\\')) => plain,
            Some(other) => {
                wrong = Some(format!("invalid escape char \\{other}"));
                continue;
            }
        });
    }
    wrong.map_or(Ok(out), Err)
}

#[cfg(test)]
mod tests {
    use super::*;
    use polyplane_apimachinery::json;

    #[test]
    fn paths_lead_to_fields() {
        let schema = json!({"properties": {
            "a": {"properties": {"b": {"type": "string"}, "c d": {"type": "string"}}},
            "m": {"additionalProperties": {"properties": {"x": {"type": "string"}}}}
        }});
        for (path, shown) in [
            (".a", Some("a")),
            (".a.b", Some("a.b")),
            (".a['c d']", Some("a.c d")),
            (".m['k'].x", Some("m[k].x")),
            (".z", None),
            ("a", None),
            (".a.b.c", None),
            (".a['b", None),
            (".a['\\q']", None),
            ("", Some("")),
        ] {
            assert_eq!(normalized(path, &schema).as_deref(), shown, "{path}");
        }
        let named = find_field(".a['b']", &schema, Steps::Names);
        assert_eq!(named, Err("array notation is not allowed".to_owned()));
        let root = find_field(".m['k'].x", &schema, Steps::NamesAndKeys).map(|found| found.root);
        assert_eq!(root, Ok("m".to_owned()));
    }
}
