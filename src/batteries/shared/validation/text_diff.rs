//! The difference of two structures as errors about immutable fields show it: a unified diff of
//! indented JSON.

use std::collections::HashMap;
use std::fmt::Write;
use std::ops::Range;

/// Number of equal lines that are shown around a change.
const CONTEXT: usize = 3;

/// Number of lines of the new text from which on frequent lines count as noise, as in upstream's diff.
const NOISE_FROM: usize = 200;
/// Comparisons of lines after which the rest counts as different: some hundredths of a second. The work grows with
/// the cube of the lines, and clients choose how many there are. Upstream has no such limit.
const WORK_MAX: usize = 4_000_000;

/// The work that the diffs of one request may still take.
#[derive(Debug)]
pub struct DiffWork(usize);

impl Default for DiffWork {
    fn default() -> Self {
        Self(WORK_MAX)
    }
}

/// Returns the diff of two documents of compact JSON. Of very long ones that differ very much, some equal lines are
/// shown as removed and added.
pub fn texts(old: &str, new: &str) -> String {
    texts_within(old, new, &mut DiffWork::default())
}

/// Returns one of several diffs that a request shows, as [`texts`].
pub fn texts_within(old: &str, new: &str, work: &mut DiffWork) -> String {
    unified(&indented(old), &indented(new), work)
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

/// Equal lines: where they begin in the old and in the new text, and how many they are.
type Block = (usize, usize, usize);

/// Finds the equal lines of two texts: the longest block first, then those before and after it. Lines are compared
/// by numbers.
struct Matcher<'w> {
    old: Vec<usize>,
    new: Vec<usize>,
    /// Where each line stands in the new text, by its number; nowhere if it is so frequent that it is noise.
    places: Vec<Vec<usize>>,
    work: &'w mut DiffWork,
}

/// What is left to do, in order of the lines.
enum Step {
    Search(Range<usize>, Range<usize>),
    Found(Block),
}

impl<'w> Matcher<'w> {
    fn new(old: &[String], new: &[String], work: &'w mut DiffWork) -> Self {
        let mut numbers = HashMap::new();
        let (old, new) = (numbered(old, &mut numbers), numbered(new, &mut numbers));
        let mut places = vec![Vec::new(); numbers.len()];
        for (at, line) in new.iter().enumerate() {
            places[*line].push(at);
        }
        if new.len() >= NOISE_FROM {
            let places_max = new.len() / 100 + 1;
            let noise = places.iter_mut().filter(|all| all.len() > places_max);
            noise.for_each(Vec::clear);
        }
        Self {
            old,
            new,
            places,
            work,
        }
    }

    /// Returns all blocks in order. Behind the limit of work no more are found.
    fn blocks(mut self) -> Vec<Block> {
        let mut blocks = Vec::new();
        // Not recursive: the blocks of long texts would need a deep stack.
        let mut steps = vec![Step::Search(0..self.old.len(), 0..self.new.len())];
        while let Some(step) = steps.pop() {
            match step {
                Step::Found(block) => blocks.push(block),
                Step::Search(a, b) => {
                    let (i, j, length) = self.longest(&a, &b);
                    if length > 0 {
                        steps.push(Step::Search(i + length..a.end, j + length..b.end));
                        steps.push(Step::Found((i, j, length)));
                        steps.push(Step::Search(a.start..i, b.start..j));
                    }
                }
            }
        }
        blocks
    }

    /// Returns the longest block within ranges of both texts, the first of equally long ones; its length is
    /// 0 if there is none. A block begins as one without noise, which then grows into noise.
    fn longest(&mut self, a: &Range<usize>, b: &Range<usize>) -> Block {
        let (mut i, mut j, mut length) = (a.start, b.start, 0);
        // The blocks that end at the line before, by their end in the new text.
        let (mut before, mut now): (Vec<(usize, usize)>, _) = (Vec::new(), Vec::new());
        for line in a.clone() {
            let places = &self.places[self.old[line]];
            let first = places.partition_point(|place| *place < b.start);
            let mut earlier = before.iter().peekable();
            now.clear();
            for place in places[first..].iter().take_while(|place| **place < b.end) {
                while earlier.next_if(|(end, _)| end + 1 < *place).is_some() {}
                let joined = earlier.peek().filter(|(end, _)| end + 1 == *place);
                let run = 1 + joined.map_or(0, |(_, run)| *run);
                now.push((*place, run));
                if run > length {
                    (i, j, length) = (line + 1 - run, place + 1 - run, run);
                }
            }
            self.work.0 = self.work.0.saturating_sub(1 + now.len());
            if self.work.0 == 0 {
                return (a.start, b.start, 0);
            }
            std::mem::swap(&mut before, &mut now);
        }
        while i > a.start && j > b.start && self.old[i - 1] == self.new[j - 1] {
            (i, j, length) = (i - 1, j - 1, length + 1);
        }
        while i + length < a.end
            && j + length < b.end
            && self.old[i + length] == self.new[j + length]
        {
            length += 1;
        }
        (i, j, length)
    }
}

/// Returns the lines as numbers: equal lines have the same one.
fn numbered<'t>(lines: &'t [String], numbers: &mut HashMap<&'t str, usize>) -> Vec<usize> {
    let number = |line: &'t String| {
        let next = numbers.len();
        *numbers.entry(line).or_insert(next)
    };
    lines.iter().map(number).collect()
}

fn spans(old: &[String], new: &[String], work: &mut DiffWork) -> Vec<DiffSpan> {
    let mut blocks = Matcher::new(old, new, work).blocks();
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

fn unified(old: &[String], new: &[String], work: &mut DiffWork) -> String {
    let mut out = String::new();
    for group in groups(spans(old, new, work)) {
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

    #[test]
    fn the_difference_of_long_texts_is_what_upstream_shows() {
        for line in include_str!("text_diff/diffs.jsonl").lines() {
            let case: serde_json::Value = serde_json::from_str(line).expect("a case");
            let [old, new] = ["old", "new"].map(|side| case[side].to_string());
            assert_eq!(texts(&old, &new), case["diff"].as_str().expect("a text"));
        }
    }

    #[test]
    fn texts_that_differ_everywhere_take_little_work() {
        let document = |text: &dyn Fn(usize) -> String| {
            let lines: Vec<String> = (0..60_000).map(text).collect();
            format!("[{}]", lines.join(","))
        };
        let old = document(&|at| (at % 500).to_string());
        let new = document(&|at| ((at * 7) % 499).to_string());
        // Without the limit this takes hours; without the loop in place of a recursion it ends the process.
        let shown = texts(&old, &new);
        assert!(
            shown.starts_with("@@ -1,60002 +1,60002 @@"),
            "{}",
            &shown[..80]
        );
        let mut work = DiffWork::default();
        for _ in 0..100 {
            assert!(!texts_within("[1,2]", "[2,3]", &mut work).is_empty());
        }
        assert!(work.0 < WORK_MAX - 100, "all diffs of a request share it");
        let shifted = document(&|at| (at + at / 2).to_string());
        let alternating = document(&|at| (at + at / 2 + at % 2).to_string());
        assert!(!texts(&shifted, &alternating).is_empty());
    }
}
