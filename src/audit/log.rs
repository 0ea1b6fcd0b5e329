//! The log: a thread that writes lines to a file or to standard output.
//!
//! Invariant: nobody waits for the log. A line that finds no room, or that the file system refuses,
//! is lost and counted.

use std::io::{self, Write as _};
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, SystemTime};

use parking_lot::{Condvar, Mutex};
use polyplane_apimachinery::Str;

use crate::event;
use crate::queue::{Queue, Waiting};
use crate::rotation::RotatingFile;

/// Bytes of lines that may wait. More would be memory that requests need; fewer would lose events
/// while a disk pauses.
const WAITING_BYTES_MAX: usize = 32 << 20;
/// Bytes that one write has at most, beside its last line. Fewer would mean more system calls.
const WRITE_BYTES: usize = 256 << 10;

/// Where the log is, and how long its files are kept.
#[derive(Clone, Debug)]
pub struct LogOptions {
    /// The file; `-` for standard output.
    pub path: PathBuf,
    /// The length in megabytes from which the file is renamed; 0 for never.
    pub megabytes_max: u64,
    /// Renamed files that are kept; 0 for all.
    pub kept_max: usize,
    /// Days that renamed files are kept; 0 for ever.
    pub days_max: u64,
}

/// The log cannot be opened.
#[derive(Debug, thiserror::Error)]
#[error("cannot open the audit log {path}")]
pub struct LogError {
    path: String,
    #[source]
    source: io::Error,
}

enum Target {
    Output,
    File(RotatingFile),
}

/// A log of events.
pub struct Log {
    shared: Arc<Shared>,
    writer: Mutex<Option<JoinHandle<()>>>,
}

#[derive(Default)]
struct Counters {
    lost: AtomicU64,
    failed: AtomicU64,
}

struct Shared {
    queue: Mutex<State>,
    wake: Condvar,
    counters: Counters,
}

struct State {
    queue: Queue,
    stopping: bool,
}

impl Log {
    /// Opens the log and starts its thread.
    ///
    /// # Errors
    /// Returns an error if the file cannot be opened.
    pub fn open(options: &LogOptions) -> Result<Self, LogError> {
        let target = if options.path.as_os_str() == "-" {
            Target::Output
        } else {
            let day = Duration::from_secs(24 * 3600);
            let age_max = day * u32::try_from(options.days_max).unwrap_or(u32::MAX);
            let bytes_max = options.megabytes_max.saturating_mul(1 << 20);
            let file = RotatingFile::open(&options.path, bytes_max, options.kept_max, age_max);
            Target::File(file.map_err(|source| LogError {
                path: options.path.display().to_string(),
                source,
            })?)
        };
        let shared = Arc::new(Shared {
            queue: Mutex::new(State {
                queue: Queue::new(WAITING_BYTES_MAX),
                stopping: false,
            }),
            wake: Condvar::new(),
            counters: Counters::default(),
        });
        let of_thread = Arc::clone(&shared);
        let writer = std::thread::Builder::new()
            .name("audit-log".to_owned())
            .spawn(move || of_thread.write(target))
            .map_err(|source| LogError {
                path: options.path.display().to_string(),
                source,
            })?;
        Ok(Self {
            shared,
            writer: Mutex::new(Some(writer)),
        })
    }

    /// Queues a line of a plane.
    pub(crate) fn add(&self, plane: &(Str, Str), line: Vec<u8>) {
        let mut state = self.shared.queue.lock();
        let was_empty = state.queue.is_empty();
        let lost = state.queue.add(plane, line);
        drop(state);
        if lost > 0 {
            self.shared.counters.lost.fetch_add(lost, Ordering::Relaxed);
        }
        if was_empty {
            self.shared.wake.notify_one();
        }
    }

    /// Returns the lines that were lost because the queue was full, and those that the file system
    /// refused.
    pub(crate) fn losses(&self) -> (u64, u64) {
        let counters = &self.shared.counters;
        (
            counters.lost.load(Ordering::Relaxed),
            counters.failed.load(Ordering::Relaxed),
        )
    }

    /// Writes what waits, and ends the thread. Blocks until the file system has taken the lines.
    pub fn close(&self) {
        self.shared.queue.lock().stopping = true;
        self.shared.wake.notify_one();
        if let Some(writer) = self.writer.lock().take()
            && writer.join().is_err()
        {
            tracing::error!("the audit log's thread panicked");
        }
    }
}

impl Shared {
    fn write(&self, mut target: Target) {
        let mut failing = false;
        loop {
            let (batch, stopping) = {
                let mut state = self.queue.lock();
                while state.queue.is_empty() && !state.stopping {
                    self.wake.wait(&mut state);
                }
                (state.queue.take(), state.stopping)
            };
            if batch.is_empty() && stopping {
                return;
            }
            for part in parts(batch) {
                match target.append(&part.bytes) {
                    Ok(()) => failing = false,
                    Err(error) => {
                        self.counters
                            .failed
                            .fetch_add(part.lines, Ordering::Relaxed);
                        if !failing {
                            tracing::error!(%error, "the audit log cannot be written");
                        }
                        failing = true;
                    }
                }
            }
        }
    }
}

/// Lines that are written at once.
#[derive(Default)]
struct Part {
    bytes: Vec<u8>,
    lines: u64,
}

fn parts(batch: Vec<Waiting>) -> Vec<Part> {
    let mut parts = vec![Part::default()];
    let mut add = |line: &[u8]| {
        if parts
            .last()
            .is_none_or(|part| part.bytes.len() >= WRITE_BYTES)
        {
            parts.push(Part::default());
        }
        if let Some(part) = parts.last_mut() {
            part.bytes.extend_from_slice(line);
            part.lines += 1;
        }
    };
    for waiting in batch {
        if waiting.lost > 0 {
            add(&event::lost(
                &waiting.plane,
                waiting.lost,
                SystemTime::now(),
            ));
        }
        for line in &waiting.lines {
            add(line);
        }
    }
    parts.retain(|part| part.lines > 0);
    parts
}

impl Target {
    fn append(&mut self, lines: &[u8]) -> io::Result<()> {
        match self {
            Self::Output => {
                let mut output = io::stdout().lock();
                output.write_all(lines)?;
                output.flush()
            }
            Self::File(file) => file.append(lines, SystemTime::now()),
        }
    }
}
