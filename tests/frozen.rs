//! Forms that a later release must not change by accident, recorded in `frozen/`: records in the
//! store, messages between replicas, metric names, flags, and names in logs.
//!
//! If a file differs from the code, its test fails and shows the lines. If the difference is
//! intended, run `tests/bless` and commit the file, so that a review shows it. A record or frame
//! that was once written stays in its file, because every later release must read it.
//!
//! This module owns the files and the comparison. It does not know the content.

use std::fmt::Write as _;
use std::path::PathBuf;

use anyhow::{Context, Result, bail, ensure};

use crate::golden::folder;

/// Set to rewrite the files instead of comparing with them.
const BLESS: &str = "POLYPLANE_BLESS";
/// Bytes on one line of a dump.
const LINE_BYTES: usize = 16;
/// Differing lines that a failure shows.
const SHOWN_LINES: usize = 60;

/// A record or frame that today's program writes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Written {
    /// The record or frame, and what is special about this one.
    pub name: String,
    /// The bytes of the record or frame.
    pub bytes: Vec<u8>,
}

impl Written {
    /// Creates a record or frame with its name.
    pub fn new(name: &str, bytes: impl Into<Vec<u8>>) -> Self {
        Self {
            name: name.to_owned(),
            bytes: bytes.into(),
        }
    }
}

/// One entry of a file of records.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Entry {
    name: String,
    /// The content of the bytes, as today's decoder reads it.
    reads: String,
    bytes: Vec<u8>,
}

/// Compares a text with `frozen/<name>.txt`.
///
/// # Errors
/// Returns an error that shows the lines and says how to rewrite the file if the two differ.
pub fn text(name: &str, now: &str) -> Result<()> {
    compare(name, now, blesses())
}

/// Compares the records of today's program with `frozen/<name>.txt`, and reads every entry of that
/// file with today's decoder, also those that only older programs wrote.
///
/// # Errors
/// Returns an error if today's decoder reads an entry otherwise than the file says, or if today's
/// program writes a form that is not the newest one in the file.
pub fn records(
    name: &str,
    written: &[Written],
    read: impl Fn(&str, &[u8]) -> Result<String>,
) -> Result<()> {
    let blesses = blesses();
    let path = path(name);
    let before = match std::fs::read_to_string(&path) {
        Ok(text) => parse(&text).with_context(|| format!("{} is damaged", path.display()))?,
        Err(_) if blesses => Vec::new(),
        Err(error) => return Err(error).with_context(|| missing(name)),
    };
    let mut entries = Vec::new();
    for entry in before {
        let reads = read(&entry.name, &entry.bytes);
        let reads = reads.with_context(|| {
            let name = &entry.name;
            format!("a store or peer may hold {name:?} of {path:?}, and it cannot be read any more")
        })?;
        entries.push(Entry { reads, ..entry });
    }
    for one in written {
        let newest = entries.iter().rposition(|entry| entry.name == one.name);
        if newest.is_some_and(|at| entries[at].bytes == one.bytes) {
            continue;
        }
        let place = newest.map_or(entries.len(), |at| at + 1);
        let entry = Entry {
            name: one.name.clone(),
            reads: read(&one.name, &one.bytes)?,
            bytes: one.bytes.clone(),
        };
        entries.insert(place, entry);
    }
    compare(name, &show(&entries), blesses)
}

fn blesses() -> bool {
    std::env::var_os(BLESS).is_some_and(|value| value == "1")
}

fn path(name: &str) -> PathBuf {
    folder().join("frozen").join(format!("{name}.txt"))
}

fn missing(name: &str) -> String {
    format!("there is no tests/frozen/{name}.txt; make it with tests/bless")
}

fn compare(name: &str, now: &str, blesses: bool) -> Result<()> {
    let path = path(name);
    if blesses {
        std::fs::create_dir_all(folder().join("frozen"))?;
        return Ok(std::fs::write(&path, now)?);
    }
    let frozen = std::fs::read_to_string(&path).with_context(|| missing(name))?;
    if frozen == now {
        return Ok(());
    }
    bail!(
        "tests/frozen/{name}.txt (-) and the code (+) differ:\n{}\
         If an older replica, client, dashboard or script can live with that, rewrite the file with \
         `tests/bless` (which sets {BLESS}=1) and commit it; its difference is what is reviewed.",
        difference(&frozen, now)
    );
}

/// Returns the lines that only one of two texts has, in order, each with its number. It pairs lines
/// by the nearest common line, which is not minimal but good enough to read.
fn difference(old: &str, new: &str) -> String {
    let (old, new): (Vec<&str>, Vec<&str>) = (old.lines().collect(), new.lines().collect());
    let mut shown = String::new();
    let (mut a, mut b, mut lines) = (0, 0, 0);
    while (a < old.len() || b < new.len()) && lines < SHOWN_LINES {
        if a < old.len() && b < new.len() && old[a] == new[b] {
            (a, b) = (a + 1, b + 1);
            continue;
        }
        // Continue at the nearest line that both sides have.
        let (skip_old, skip_new) = next_common(&old[a..], &new[b..]);
        for line in &old[a..a + skip_old] {
            let _ = writeln!(shown, "  {:>5} - {line}", a + 1);
            a += 1;
        }
        for line in &new[b..b + skip_new] {
            let _ = writeln!(shown, "  {:>5} + {line}", b + 1);
            b += 1;
        }
        lines += skip_old + skip_new;
    }
    if a < old.len() || b < new.len() {
        shown.push_str("  (only the first differences are shown)\n");
    }
    shown
}

/// Returns how many lines of each side to skip until both have the same line.
fn next_common(old: &[&str], new: &[&str]) -> (usize, usize) {
    for both in 1..old.len() + new.len() {
        for skip_old in 0..=both.min(old.len()) {
            let skip_new = both - skip_old;
            let (Some(left), Some(right)) = (old.get(skip_old), new.get(skip_new)) else {
                continue;
            };
            if left == right {
                return (skip_old, skip_new);
            }
        }
    }
    (old.len(), new.len())
}

fn show(entries: &[Entry]) -> String {
    let mut text = String::from(
        "# Made by tests/bless. The last entry of a name is what this program writes; all are read.\n",
    );
    for entry in entries {
        let _ = writeln!(text, "\n[{}]\nreads {}", entry.name, entry.reads);
        for (at, line) in entry.bytes.chunks(LINE_BYTES).enumerate() {
            let hex: Vec<String> = line.iter().map(|byte| format!("{byte:02x}")).collect();
            let seen = |byte: &u8| match byte {
                b' '..=b'~' => char::from(*byte),
                _ => '.',
            };
            let seen: String = line.iter().map(seen).collect();
            let _ = writeln!(
                text,
                "{:06x}  {:<47}  |{seen}|",
                at * LINE_BYTES,
                hex.join(" ")
            );
        }
    }
    text
}

fn parse(text: &str) -> Result<Vec<Entry>> {
    let mut entries: Vec<Entry> = Vec::new();
    for line in text.lines() {
        if line.is_empty() || line.starts_with('#') {
            continue;
        }
        let name = line
            .strip_prefix('[')
            .and_then(|line| line.strip_suffix(']'));
        if let Some(name) = name {
            entries.push(Entry {
                name: name.to_owned(),
                reads: String::new(),
                bytes: Vec::new(),
            });
            continue;
        }
        let entry = entries
            .last_mut()
            .context("a line before the first entry")?;
        if let Some(reads) = line.strip_prefix("reads ") {
            entry.reads = reads.to_owned();
            continue;
        }
        let hex = line.split("  ").nth(1);
        for byte in hex.context("a line of no known form")?.split(' ') {
            entry.bytes.push(u8::from_str_radix(byte, 16)?);
        }
    }
    ensure!(!entries.is_empty(), "no entry");
    Ok(entries)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_of_records_reads_back_as_shown() {
        let bytes: Vec<u8> = (0..=255).collect();
        let entry = |name: &str, bytes: &[u8]| Entry {
            name: name.to_owned(),
            reads: "Thing { a: 1 }  |x|".to_owned(),
            bytes: bytes.to_owned(),
        };
        let entries = [
            entry("all bytes", &bytes),
            entry("one", &[32]),
            entry("none", &[]),
        ];
        assert_eq!(parse(&show(&entries)).expect("its own"), entries);
    }

    #[test]
    fn a_difference_shows_what_came_and_went_and_nothing_else() {
        let shown = difference("a\nb\nc\nd\n", "a\nc\nx\nd\ne\n");
        let lines: Vec<&str> = shown.lines().map(str::trim).collect();
        assert_eq!(lines, ["2 - b", "3 + x", "5 + e"]);
    }

    #[test]
    fn a_changed_text_fails_and_says_how_it_is_accepted() {
        let error = compare("never-made", "x", false).expect_err("no such file");
        assert!(error.to_string().contains("tests/bless"), "{error}");
    }
}
