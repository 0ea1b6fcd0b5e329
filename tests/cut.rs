//! Removes `managedFields` from texts that are compared as text.

/// Removes `managedFields` from JSON (compact or indented) or YAML text.
pub fn without_managed_fields(text: &str) -> String {
    if let Some(at) = text.find("\"managedFields\":") {
        let Some(open) = text[at..].find('[').map(|open| at + open) else {
            return text.to_owned();
        };
        let end = open + closing_bracket(&text[open..]);
        let before = text[..at].trim_end();
        return match before.strip_suffix(',') {
            Some(before) => without_managed_fields(&format!("{before}{}", &text[end..])),
            None => {
                let rest = text[end..].trim_start().trim_start_matches(',');
                without_managed_fields(&format!("{before}{rest}"))
            }
        };
    }
    let mut kept = String::with_capacity(text.len());
    let mut depth = None;
    for line in text.split_inclusive('\n') {
        let indent = line.len() - line.trim_start().len();
        if let Some(owner) = depth {
            let item = indent == owner && line.trim_start().starts_with('-');
            if indent > owner || item {
                continue;
            }
            depth = None;
        }
        match line.trim_start().starts_with("managedFields:") {
            true => depth = Some(indent),
            false => kept.push_str(line),
        }
    }
    kept
}

/// Removes `managedFields` from an object that a message quotes with backslashes.
pub fn without_quoted_managed_fields(text: &str) -> String {
    const NAME: &str = r#"\"managedFields\":["#;
    let Some(at) = text.find(NAME) else {
        return text.to_owned();
    };
    let open = at + NAME.len() - 1;
    let mut depth = 0_usize;
    let end = text[open..].find(|letter| {
        match letter {
            '[' | '{' => depth += 1,
            ']' | '}' => depth -= 1,
            _ => {}
        }
        depth == 0
    });
    let end = end.map_or(text.len(), |end| open + end + 1);
    let (before, rest) = (&text[..at], &text[end..]);
    match before.strip_suffix(',') {
        Some(before) => format!("{before}{rest}"),
        None => format!("{before}{}", rest.strip_prefix(',').unwrap_or(rest)),
    }
}

/// Returns the length of the bracketed JSON text at the start of `text`.
fn closing_bracket(text: &str) -> usize {
    let (mut depth, mut quoted, mut escaped) = (0_usize, false, false);
    for (at, byte) in text.bytes().enumerate() {
        match byte {
            _ if escaped => escaped = false,
            b'\\' if quoted => escaped = true,
            b'"' => quoted = !quoted,
            b'[' | b'{' if !quoted => depth += 1,
            b']' | b'}' if !quoted => {
                depth -= 1;
                if depth == 0 {
                    return at + 1;
                }
            }
            _ => {}
        }
    }
    text.len()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn managed_fields_are_cut_out_of_text_in_every_form() {
        let compact = r#"{"metadata":{"name":"a","managedFields":[{"f":"]"}]},"data":{}}"#;
        assert_eq!(
            without_managed_fields(compact),
            r#"{"metadata":{"name":"a"},"data":{}}"#
        );
        let first = r#"{"managedFields":[{}],"name":"a"}"#;
        assert_eq!(without_managed_fields(first), r#"{"name":"a"}"#);
        let quoted = r#"value: "{\"name\":\"a\",\"managedFields\":[{\"f\":{}}]}""#;
        let expected = r#"value: "{\"name\":\"a\"}""#;
        assert_eq!(without_quoted_managed_fields(quoted), expected);
        let yaml = "metadata:\n  managedFields:\n  - a: b\n    c: d\n  name: x\n";
        assert_eq!(without_managed_fields(yaml), "metadata:\n  name: x\n");
    }
}
