//! The lines with which `store copy` says how far it is. Owns their form and how often they appear.

use polyplane_ownership::CopyState;
use std::fmt::Write as _;
use std::io::{IsTerminal, Write};
use std::time::{Duration, Instant};

/// Time between two lines on a terminal, where each replaces the last.
const TERMINAL_EVERY: Duration = Duration::from_secs(1);
/// Time between two lines elsewhere. More of them would fill the log of a job.
const LOG_EVERY: Duration = Duration::from_secs(10);

/// Writes progress to standard error.
pub struct Progress {
    terminal: bool,
    began: Instant,
    /// What was done when this process began.
    before: u64,
    next: Instant,
}

impl Progress {
    /// Creates the progress of a copy that is this far.
    pub fn new(state: CopyState) -> Self {
        let terminal = std::io::stderr().is_terminal();
        let began = Instant::now();
        let first = if terminal { TERMINAL_EVERY } else { LOG_EVERY };
        Self {
            terminal,
            began,
            before: steps(&state),
            next: began + first,
        }
    }

    /// Writes a line if it is time for one.
    pub fn report(&mut self, state: CopyState) {
        let now = Instant::now();
        if now < self.next {
            return;
        }
        let every = if self.terminal {
            TERMINAL_EVERY
        } else {
            LOG_EVERY
        };
        self.next = now + every;
        let line = line(&state, self.before, now - self.began);
        let mut out = std::io::stderr().lock();
        // A closed standard error must not end the copy.
        let _ = match self.terminal {
            true => write!(out, "\r{line}\x1b[K"),
            false => writeln!(out, "{line}"),
        };
        let _ = out.flush();
    }

    /// Ends the line on a terminal.
    pub fn end(&self) {
        if self.terminal {
            let _ = write!(std::io::stderr(), "\r\x1b[K");
        }
    }

    /// Returns the time since this process began the copy.
    pub fn elapsed(&self) -> Duration {
        self.began.elapsed()
    }
}

fn steps(state: &CopyState) -> u64 {
    state.done.objects + state.done.revisions
}

fn line(state: &CopyState, before: u64, elapsed: Duration) -> String {
    let (done, total) = (&state.done, &state.total);
    let mut line = "copied ".to_owned();
    // A store that is young has nothing but history.
    if total.objects > 0 {
        let _ = write!(
            line,
            "{} of {} planes, {} of {} objects, ",
            done.planes, total.planes, done.objects, total.objects
        );
    }
    if total.revisions > 0 {
        let _ = write!(
            line,
            "{} of {} revisions of history, ",
            done.revisions, total.revisions
        );
    }
    line += &size(done.bytes);
    let millis = elapsed.as_millis().max(1);
    let rate = u128::from(steps(state).saturating_sub(before)) * 1000 / millis;
    let _ = write!(line, ", {rate} a second");
    line
}

/// Returns a number of bytes for people.
pub fn size(bytes: u64) -> String {
    match bytes {
        0..10_000 => format!("{bytes} bytes"),
        10_000..10_000_000 => format!("{} KB", bytes / 1000),
        _ => format!("{} MB", bytes / 1_000_000),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use polyplane_ownership::CopyFigures;

    #[test]
    fn a_line_says_what_is_done_of_what_and_how_fast() {
        let figures = |planes, objects, bytes, revisions| CopyFigures {
            planes,
            objects,
            bytes,
            revisions,
        };
        let mut state = CopyState {
            done: figures(5, 400, 12_345_678, 0),
            total: figures(10, 900, 0, 0),
            content: figures(12, 950, 0, 0),
        };
        assert_eq!(
            line(&state, 100, Duration::from_secs(2)),
            "copied 5 of 10 planes, 400 of 900 objects, 12 MB, 150 a second"
        );
        (state.done.revisions, state.total) = (30, figures(0, 0, 0, 70));
        assert_eq!(
            line(&state, 400, Duration::from_secs(1)),
            "copied 30 of 70 revisions of history, 12 MB, 30 a second"
        );
        assert_eq!(
            (size(9_999), size(10_000)),
            ("9999 bytes".into(), "10 KB".into())
        );
    }
}
