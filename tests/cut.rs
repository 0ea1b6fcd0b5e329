//! Sorts `managedFields` in texts that are compared as text. Two writes may be in one second or in
//! two, and that second decides the order in which a server shows them.

use std::sync::LazyLock;

use regex::Regex;

/// The time of an entry, in JSON, in YAML, or quoted in a message.
static TIME: LazyLock<Regex> = LazyLock::new(|| {
    Regex::new(r#"time\\*"?: ?\\*"?[-0-9T:]+Z"#).expect("the pattern is a constant")
});

/// Sorts the entries of all `managedFields` in JSON (compact or indented) or YAML text by all but
/// their times.
pub fn with_sorted_managers(text: &str) -> String {
    match text.contains("\"managedFields\":") {
        true => sorted_in_json(text, "\"managedFields\":"),
        false => sorted_in_yaml(text),
    }
}

/// Sorts the entries of `managedFields` in an object that a message quotes with backslashes.
pub fn with_sorted_quoted_managers(text: &str) -> String {
    sorted_in_json(text, r#"\"managedFields\":"#)
}

fn sorted_in_json(text: &str, name: &str) -> String {
    let mut sorted = String::with_capacity(text.len());
    let mut rest = text;
    while let Some(at) = rest.find(name) {
        let (before, list) = rest.split_at(at + name.len());
        let items = items(list);
        sorted.push_str(before);
        rest = put_sorted(list, &items, &mut sorted);
    }
    sorted.push_str(rest);
    sorted
}

/// Writes the list up to the end of its last item, with its items in order. Returns what follows.
fn put_sorted<'t>(list: &'t str, items: &[std::ops::Range<usize>], out: &mut String) -> &'t str {
    let mut texts: Vec<&str> = items.iter().map(|range| &list[range.clone()]).collect();
    texts.sort_by_cached_key(|text| TIME.replace(text, "").into_owned());
    let mut from = 0;
    for (range, text) in items.iter().zip(texts) {
        out.push_str(&list[from..range.start]);
        out.push_str(text);
        from = range.end;
    }
    &list[from..]
}

/// Returns the places of the objects in the list that begins in `text`. Brackets inside of keys such
/// as `k:{…}` come in pairs.
fn items(text: &str) -> Vec<std::ops::Range<usize>> {
    let (mut items, mut depth, mut start) = (Vec::new(), 0_usize, 0);
    for (at, byte) in text.bytes().enumerate() {
        match byte {
            b'[' | b'{' => {
                if depth == 1 {
                    start = at;
                }
                depth += 1;
            }
            b']' | b'}' => {
                depth = depth.saturating_sub(1);
                match depth {
                    0 => return items,
                    1 => items.push(start..at + 1),
                    _ => {}
                }
            }
            _ => {}
        }
    }
    items
}

fn sorted_in_yaml(text: &str) -> String {
    let mut sorted = String::with_capacity(text.len());
    let mut lines = text.split_inclusive('\n').peekable();
    while let Some(line) = lines.next() {
        sorted.push_str(line);
        if !line.trim_start().starts_with("managedFields:") {
            continue;
        }
        let owner = indent(line);
        let mut items: Vec<String> = Vec::new();
        while let Some(line) =
            lines.next_if(|line| indent(line) > owner || begins_item(line, owner))
        {
            match items.last_mut() {
                Some(item) if !begins_item(line, owner) => item.push_str(line),
                _ => items.push(line.to_owned()),
            }
        }
        items.sort_by_cached_key(|item| TIME.replace(item, "").into_owned());
        items.iter().for_each(|item| sorted.push_str(item));
    }
    sorted
}

fn begins_item(line: &str, owner: usize) -> bool {
    indent(line) == owner && line.trim_start().starts_with('-')
}

fn indent(line: &str) -> usize {
    line.len() - line.trim_start().len()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn entries_are_sorted_by_all_but_their_times_in_every_form() {
        let early = r#"{"a":{"k:{\"x\":1}":{}},"time":"2026-01-01T00:00:01Z"}"#;
        let late = r#"{"b":"2","time":"2026-01-01T00:00:02Z"}"#;
        let object = |one: &str, other: &str| {
            format!(r#"{{"metadata":{{"managedFields":[{one},{other}],"name":"n"}}}}"#)
        };
        let expected = object(early, late);
        assert_eq!(with_sorted_managers(&object(early, late)), expected);
        assert_eq!(with_sorted_managers(&object(late, early)), expected);
        // The time decides nothing.
        let (same, other) = (late.replace(":02Z", ":00Z"), early.replace(":01Z", ":09Z"));
        let shown = with_sorted_managers(&object(&same, &other));
        assert_eq!(shown, object(&other, &same));
        let quoted = |text: &str| format!("value: {}", text.replace('"', "\\\""));
        assert_eq!(
            with_sorted_quoted_managers(&quoted(&object(late, r#"{"a":{}}"#))),
            quoted(&object(r#"{"a":{}}"#, late))
        );
        let yaml = "metadata:\n  managedFields:\n  - b: c\n    d: e\n  - a: b\n  name: x\n";
        let expected = "metadata:\n  managedFields:\n  - a: b\n  - b: c\n    d: e\n  name: x\n";
        assert_eq!(with_sorted_managers(yaml), expected);
    }
}
