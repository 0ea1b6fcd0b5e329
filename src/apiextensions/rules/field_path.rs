//! The paths by which rules name the field that their complaint is about.

use polyplane_apimachinery::Value;

/// Returns a path as complaints show it, if it leads to a field of the schema.
pub fn normalized(path: &str, schema: &Value) -> Option<String> {
    let mut shown = String::new();
    let mut schema = schema;
    let mut rest = path;
    while !rest.is_empty() {
        let (name, after) = step(rest)?;
        rest = after;
        if schema["properties"].as_object().is_some() {
            schema = schema["properties"].get(&name)?;
            if !shown.is_empty() {
                shown.push('.');
            }
            shown.push_str(&name);
        } else {
            schema = schema.get("additionalProperties")?;
            shown.push_str(&format!("[{name}]"));
        }
    }
    (!shown.is_empty()).then_some(shown)
}

/// Takes one step off a path: `.name` or `['name']`.
fn step(path: &str) -> Option<(String, &str)> {
    if let Some(rest) = path.strip_prefix('.') {
        let end = rest.find(['.', '[', ']']).unwrap_or(rest.len());
        let (name, rest) = rest.split_at(end);
        return (!name.is_empty()).then(|| (name.to_owned(), rest));
    }
    let rest = path.strip_prefix("['")?;
    let mut name = String::new();
    let mut letters = rest.char_indices();
    while let Some((at, letter)) = letters.next() {
        match letter {
            '\'' => return rest[at + 1..].strip_prefix(']').map(|rest| (name, rest)),
            '\\' => name.push(match letters.next()?.1 {
                'a' => '\u{7}',
                'b' => '\u{8}',
                'f' => '\u{c}',
                'n' => '\n',
                'r' => '\r',
                't' => '\t',
                'v' => '\u{b}',
                plain @ ('\'' | '\\') => plain,
                _ => return None,
            }),
            letter => name.push(letter),
        }
    }
    None
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
            ("", None),
        ] {
            assert_eq!(normalized(path, &schema).as_deref(), shown, "{path}");
        }
    }
}
