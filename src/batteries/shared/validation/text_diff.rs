//! The difference of two structures as errors about immutable fields show it: a unified diff of
//! indented JSON.

use std::fmt::Write;
use std::ops::Range;

/// Number of equal lines that are shown around a change.
const CONTEXT: usize = 3;

/// Returns the diff of two documents of compact JSON.
pub fn texts(old: &str, new: &str) -> String {
    unified(&indented(old), &indented(new))
}

/// Returns compact JSON split into lines, each level indented by one blank more.
fn indented(compact: &str) -> Vec<String> {
    let mut lines = vec![String::new()];
    let mut depth = 0;
    let mut in_text = false;
    let mut chars = compact.chars().peekable();
    let next_line = |depth: usize, lines: &mut Vec<String>| lines.push(" ".repeat(depth));
    while let Some(char) = chars.next() {
        let push = |text: char, lines: &mut Vec<String>| {
            lines
                .last_mut()
                .expect("there is a line at all times")
                .push(text);
        };
        match char {
            '"' => {
                in_text = !in_text;
                push(char, &mut lines);
            }
            '\\' if in_text => {
                push(char, &mut lines);
                if let Some(escaped) = chars.next() {
                    push(escaped, &mut lines);
                }
            }
            _ if in_text => push(char, &mut lines),
            '{' | '[' => {
                push(char, &mut lines);
                match chars.peek() {
                    Some(close @ ('}' | ']')) => {
                        push(*close, &mut lines);
                        chars.next();
                    }
                    _ => {
                        depth += 1;
                        next_line(depth, &mut lines);
                    }
                }
            }
            '}' | ']' => {
                depth -= 1;
                next_line(depth, &mut lines);
                push(char, &mut lines);
            }
            ',' => {
                push(char, &mut lines);
                next_line(depth, &mut lines);
            }
            ':' => {
                push(char, &mut lines);
                push(' ', &mut lines);
            }
            _ => push(char, &mut lines),
        }
    }
    lines
}

/// A range of lines in both texts.
#[derive(Clone, Debug, PartialEq)]
struct DiffSpan {
    equal: bool,
    old: Range<usize>,
    new: Range<usize>,
}

/// Finds equal ranges: the longest first, then those before and after it.
fn matches(
    old: &[String],
    new: &[String],
    a: Range<usize>,
    b: Range<usize>,
    out: &mut Vec<(usize, usize, usize)>,
) {
    let (mut at_old, mut at_new, mut length) = (a.start, b.start, 0);
    let mut before = vec![0usize; b.end + 1];
    for i in a.clone() {
        let mut now = vec![0usize; b.end + 1];
        for j in b.clone() {
            if old[i] == new[j] {
                let run = if j > b.start { before[j - 1] } else { 0 } + 1;
                now[j] = run;
                if run > length {
                    (at_old, at_new, length) = (i + 1 - run, j + 1 - run, run);
                }
            }
        }
        before = now;
    }
    if length == 0 {
        return;
    }
    matches(old, new, a.start..at_old, b.start..at_new, out);
    out.push((at_old, at_new, length));
    matches(
        old,
        new,
        at_old + length..a.end,
        at_new + length..b.end,
        out,
    );
}

fn spans(old: &[String], new: &[String]) -> Vec<DiffSpan> {
    let mut blocks = Vec::new();
    matches(old, new, 0..old.len(), 0..new.len(), &mut blocks);
    blocks.push((old.len(), new.len(), 0));
    let (mut i, mut j) = (0, 0);
    let mut spans: Vec<DiffSpan> = Vec::new();
    for (a, b, length) in blocks {
        if i < a || j < b {
            spans.push(DiffSpan {
                equal: false,
                old: i..a,
                new: j..b,
            });
        }
        if length > 0 {
            let span = DiffSpan {
                equal: true,
                old: a..a + length,
                new: b..b + length,
            };
            match spans
                .last_mut()
                .filter(|last| last.equal && last.old.end == a && last.new.end == b)
            {
                Some(last) => (last.old.end, last.new.end) = (span.old.end, span.new.end),
                None => spans.push(span),
            }
        }
        (i, j) = (a + length, b + length);
    }
    spans
}

/// Groups changes with the lines around them; long equal ranges separate the groups.
fn groups(mut spans: Vec<DiffSpan>) -> Vec<Vec<DiffSpan>> {
    if let Some(first) = spans.first_mut().filter(|span| span.equal) {
        first.old.start = first.old.start.max(first.old.end.saturating_sub(CONTEXT));
        first.new.start = first.new.start.max(first.new.end.saturating_sub(CONTEXT));
    }
    if let Some(last) = spans.last_mut().filter(|span| span.equal) {
        last.old.end = last.old.end.min(last.old.start + CONTEXT);
        last.new.end = last.new.end.min(last.new.start + CONTEXT);
    }
    let mut groups = Vec::new();
    let mut group: Vec<DiffSpan> = Vec::new();
    for mut span in spans {
        if span.equal && span.old.len() > 2 * CONTEXT {
            let mut head = span.clone();
            head.old.end = head.old.start + CONTEXT;
            head.new.end = head.new.start + CONTEXT;
            group.push(head);
            groups.push(std::mem::take(&mut group));
            span.old.start = span.old.end - CONTEXT;
            span.new.start = span.new.end - CONTEXT;
        }
        group.push(span);
    }
    if group.iter().any(|span| !span.equal) {
        groups.push(group);
    }
    groups
}

fn unified(old: &[String], new: &[String]) -> String {
    let mut out = String::new();
    for group in groups(spans(old, new)) {
        let (Some(first), Some(last)) = (group.first(), group.last()) else {
            continue;
        };
        let old_range = shown_range(first.old.start..last.old.end);
        let new_range = shown_range(first.new.start..last.new.end);
        let _ = writeln!(out, "@@ -{old_range} +{new_range} @@");
        for span in &group {
            let mut write = |mark: char, lines: &[String]| {
                for line in lines {
                    let _ = writeln!(out, "{mark}{line}");
                }
            };
            if span.equal {
                write(' ', &old[span.old.clone()]);
            } else {
                write('-', &old[span.old.clone()]);
                write('+', &new[span.new.clone()]);
            }
        }
    }
    out
}

fn shown_range(range: Range<usize>) -> String {
    match range.len() {
        1 => (range.start + 1).to_string(),
        0 => format!("{},0", range.start),
        length => format!("{},{length}", range.start + 1),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_change_is_shown_with_three_lines_around_it() {
        let old = r#"{"A":0,"B":"x,{","C":0,"D":0,"E":0,"F":0}"#;
        let new = r#"{"A":0,"B":["y"],"C":0,"D":0,"E":0,"F":0}"#;
        let text = texts(old, new);
        let lines = [
            "@@ -1,6 +1,8 @@",
            " {",
            "  \"A\": 0,",
            "- \"B\": \"x,{\",",
            "+ \"B\": [",
            "+  \"y\"",
            "+ ],",
        ];
        let lines = [
            &lines[..],
            &["  \"C\": 0,", "  \"D\": 0,", "  \"E\": 0,", ""],
        ]
        .concat();
        assert_eq!(text, lines.join("\n"));
        assert_eq!(texts(old, old), "");
    }
}
