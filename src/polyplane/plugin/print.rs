//! The plugin's output: results to standard output, progress to standard error, and a limited part
//! of a server's text.

use std::io::{self, Write};

/// Characters of a server's message that are shown. Without the limit an unexpected answer, such as
/// a list of megabytes, would fill the terminal.
const MESSAGE_CHARS_MAX: usize = 2_000;

/// Prints a line of the result.
///
/// # Errors
/// Returns an error if the line cannot be written, also if the reader has closed the pipe, as
/// `head` does.
pub fn line(text: &str) -> io::Result<()> {
    writeln!(io::stdout(), "{text}")
}

/// Prints a part of the result, which has its line breaks.
///
/// # Errors
/// See [`line`].
pub fn bytes(text: &[u8]) -> io::Result<()> {
    let mut stdout = io::stdout().lock();
    stdout.write_all(text)?;
    stdout.flush()
}

/// Prints progress. A closed standard error is ignored, because the command can still succeed.
pub fn progress(text: &str) {
    let mut stderr = io::stderr();
    let _ = write!(stderr, "{text}").and_then(|()| stderr.flush());
}

/// Returns whether the error only means that the reader of standard output closed the pipe.
pub fn reader_left(error: &anyhow::Error) -> bool {
    let mut causes = error.chain();
    causes.any(|cause| {
        let cause = cause.downcast_ref::<io::Error>();
        cause.is_some_and(|cause| cause.kind() == io::ErrorKind::BrokenPipe)
    })
}

/// Returns a server's text in a form that is safe for a terminal: at most `MESSAGE_CHARS_MAX`
/// characters, and no control characters, with which a server could overwrite the screen.
pub fn excerpt(text: &str) -> String {
    let mut shown: String = text
        .chars()
        .take(MESSAGE_CHARS_MAX)
        .map(|character| match character {
            '\n' | '\t' => character,
            control if control.is_control() => '\u{fffd}',
            other => other,
        })
        .collect();
    if text.chars().nth(MESSAGE_CHARS_MAX).is_some() {
        shown.push_str(&format!(" … ({} bytes in all)", text.len()));
    }
    shown
}

/// Rows in columns, printed as they arrive. A column is as wide as its widest cell so far.
pub struct Table<const COLUMNS: usize> {
    widths: [usize; COLUMNS],
    /// The headings; `None` once they are printed.
    headings: Option<[String; COLUMNS]>,
}

impl<const COLUMNS: usize> Table<COLUMNS> {
    /// Creates an empty table.
    pub fn new(headings: [&str; COLUMNS]) -> Self {
        Self {
            widths: [0; COLUMNS],
            headings: Some(headings.map(str::to_owned)),
        }
    }

    /// Prints rows, and the headings before the first ones.
    ///
    /// # Errors
    /// Returns an error if a line cannot be printed.
    pub fn print(&mut self, rows: &[[String; COLUMNS]]) -> io::Result<()> {
        for text in self.lay_out(rows) {
            line(&text)?;
        }
        Ok(())
    }

    fn lay_out(&mut self, rows: &[[String; COLUMNS]]) -> Vec<String> {
        let headings = self.headings.take();
        let rows = || headings.iter().chain(rows);
        for row in rows() {
            for (width, cell) in self.widths.iter_mut().zip(row) {
                *width = (*width).max(cell.len());
            }
        }
        let text = |row: &[String; COLUMNS]| {
            let cells = row.iter().zip(self.widths);
            let cells: Vec<String> = cells
                .map(|(cell, width)| format!("{cell:width$}"))
                .collect();
            cells.join("   ").trim_end().to_owned()
        };
        rows().map(text).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_server_says_is_shown_in_part_and_without_control_characters() {
        assert_eq!(excerpt("planes \"a\" not found"), "planes \"a\" not found");
        assert_eq!(excerpt("a\u{1b}[2Jb\rc\nd"), "a\u{fffd}[2Jb\u{fffd}c\nd");
        let long = "ä".repeat(9_000_000);
        let shown = excerpt(&long);
        assert!(
            shown.ends_with("ä … (18000000 bytes in all)"),
            "{}",
            shown.len()
        );
        assert_eq!(shown.chars().count(), MESSAGE_CHARS_MAX + 26);
        let whole = "x".repeat(MESSAGE_CHARS_MAX);
        assert_eq!(excerpt(&whole), whole);
    }

    #[test]
    fn later_rows_keep_the_columns_of_earlier_ones() {
        let row = |cells: [&str; 2]| cells.map(str::to_owned);
        let mut table = Table::new(["NAME", "AGE"]);
        let first = table.lay_out(&[row(["team-a", "3s"]), row(["b", "4s"])]);
        assert_eq!(first, ["NAME     AGE", "team-a   3s", "b        4s"]);
        assert_eq!(table.lay_out(&[row(["c", "5s"])]), ["c        5s"]);
        let wider = table.lay_out(&[row(["team-long", "5s"]), row(["d", "5s"])]);
        assert_eq!(wider, ["team-long   5s", "d           5s"]);
    }
}
