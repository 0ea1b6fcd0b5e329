//! The log: a thread that writes lines to a file or to standard output.
//!
//! Invariant: in the mode `batch` nobody waits for the log. A line that finds no room, or that the
//! file system refuses, is lost, counted, and told by an event.

use std::io::{self, Write as _};
use std::path::PathBuf;
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::{Duration, Instant, SystemTime};

use parking_lot::Mutex;

use crate::event;
use crate::legacy;
use crate::queue::Share;
use crate::rotation::RotatingFile;
use crate::sink::{Bucket, Mode, SinkOptions, Waiting};

/// Bytes that one write has at most, beside its last line. Fewer would mean more system calls; more
/// would be memory.
const WRITE_BYTES: usize = 1 << 20;

/// How an event looks in the log.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Format {
    /// The event, as JSON.
    Json,
    /// A text of one line, without bodies, annotations and Status.
    Legacy,
}

impl Format {
    /// All of them.
    pub const ALL: [Self; 2] = [Self::Json, Self::Legacy];

    /// Returns the name in flags.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Json => "json",
            Self::Legacy => "legacy",
        }
    }

    /// Returns the format of this name.
    #[must_use]
    pub fn named(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|format| format.name() == name)
    }
}

/// Where the log is, and how long its files are kept.
#[derive(Clone, Debug)]
pub struct LogOptions {
    /// The file; `-` for standard output.
    pub path: PathBuf,
    /// How events look.
    pub format: Format,
    /// The length in megabytes from which the file is renamed; 0 for never.
    pub megabytes_max: u64,
    /// Renamed files that are kept; 0 for all.
    pub kept_max: usize,
    /// Days that renamed files are kept; 0 for ever.
    pub days_max: u64,
    /// When lines are written, and who waits for it.
    pub sink: SinkOptions,
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
    pub(crate) waiting: Arc<Waiting>,
    pub(crate) format: Format,
    writer: Mutex<Option<JoinHandle<()>>>,
}

impl Log {
    /// Opens the log and starts its thread.
    ///
    /// # Errors
    /// Returns an error if the file cannot be opened.
    pub fn open(options: &LogOptions) -> Result<Self, LogError> {
        let failed = |source| LogError {
            path: options.path.display().to_string(),
            source,
        };
        let target = if options.path.as_os_str() == "-" {
            Target::Output
        } else {
            let day = Duration::from_secs(24 * 3600);
            let age_max = day * u32::try_from(options.days_max).unwrap_or(u32::MAX);
            let bytes_max = options.megabytes_max.saturating_mul(1 << 20);
            let file = RotatingFile::open(&options.path, bytes_max, options.kept_max, age_max);
            Target::File(file.map_err(failed)?)
        };
        // Those who wait share a write.
        let events_max = match options.sink.mode {
            Mode::Batch => options.sink.batch.events_max,
            Mode::Blocking | Mode::BlockingStrict => usize::MAX,
        };
        let waiting = Arc::new(Waiting::new(options.sink, events_max, WRITE_BYTES));
        let throttle = options.sink.batch.throttle;
        let throttle = throttle.filter(|_| options.sink.mode == Mode::Batch);
        let mut writer = Writer {
            waiting: Arc::clone(&waiting),
            format: options.format,
            target,
            bucket: throttle.map(|throttle| Bucket::new(throttle, Instant::now())),
            buffer: Vec::new(),
            is_failing: false,
        };
        let writer = std::thread::Builder::new()
            .name("audit-log".to_owned())
            .spawn(move || writer.run())
            .map_err(failed)?;
        Ok(Self {
            waiting,
            format: options.format,
            writer: Mutex::new(Some(writer)),
        })
    }

    /// Writes what waits, and ends the thread. Blocks until the file system has taken the lines.
    pub(crate) fn close(&self) {
        self.waiting.stop();
        if let Some(writer) = self.writer.lock().take()
            && writer.join().is_err()
        {
            tracing::error!("the audit log's thread panicked");
        }
    }
}

/// The thread's own.
struct Writer {
    waiting: Arc<Waiting>,
    format: Format,
    target: Target,
    bucket: Option<Bucket>,
    buffer: Vec<u8>,
    is_failing: bool,
}

impl Writer {
    fn run(&mut self) {
        while let Some(batch) = self.waiting.next_batch() {
            let pause = self
                .bucket
                .as_mut()
                .map(|bucket| bucket.take(Instant::now()));
            if let Some(pause) = pause.filter(|pause| !pause.is_zero()) {
                #[expect(clippy::disallowed_methods, reason = "the thread is the log's own")]
                std::thread::sleep(pause);
            }
            self.fill(&batch);
            let written = self.target.append(&self.buffer);
            if let Err(error) = &written
                && !self.is_failing
            {
                tracing::error!(%error, "the audit log cannot be written");
            }
            self.is_failing = written.is_err();
            self.waiting.settle(batch, written.is_ok());
            // One long body must not stay in memory for good.
            self.buffer.shrink_to(WRITE_BYTES);
        }
    }

    /// Puts a batch together, so that it takes one system call.
    fn fill(&mut self, batch: &[Share]) {
        self.buffer.clear();
        for share in batch {
            if share.lost > 0 {
                let (plane, now) = (share.plane(), SystemTime::now());
                let line = match self.format {
                    Format::Json => event::lost(&plane, share.lost, now),
                    Format::Legacy => legacy::lost(plane.name, share.lost, now),
                };
                self.buffer.extend_from_slice(&line);
            }
            for line in &share.lines {
                line.text.write(&mut self.buffer);
            }
        }
    }
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
