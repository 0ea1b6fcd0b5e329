//! What backends share: the queue in front of them, when a batch is due, and who waits for a line.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use parking_lot::{Condvar, Mutex};
use tokio::sync::{Notify, oneshot};

use crate::event::PlaneName;
use crate::queue::{Line, Queue, QueueLimits, Share, Text};

/// Bytes of lines that may wait for one backend. More would be memory that requests need; fewer
/// would lose events while a disk or a receiver pauses.
const WAITING_BYTES_MAX: usize = 32 << 20;

/// When a backend records events, and whether requests wait for it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mode {
    /// In batches; no request waits. Events that find no room are lost.
    Batch,
    /// At once; the events of a request are recorded before it goes on, unless that fails.
    Blocking,
    /// As `Blocking`, and a request fails whose arrival cannot be recorded.
    BlockingStrict,
}

impl Mode {
    /// All of them.
    pub const ALL: [Self; 3] = [Self::Batch, Self::Blocking, Self::BlockingStrict];

    /// Returns the name in flags.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Batch => "batch",
            Self::Blocking => "blocking",
            Self::BlockingStrict => "blocking-strict",
        }
    }

    /// Returns the mode of this name.
    #[must_use]
    pub fn named(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|mode| mode.name() == name)
    }
}

/// The rate of batches.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Throttle {
    /// Batches a second.
    pub per_second: f32,
    /// Batches that may leave at once.
    pub burst: u32,
}

/// How events become batches.
#[derive(Clone, Copy, Debug)]
pub struct BatchOptions {
    /// Events that may wait. Beyond them the plane with most loses its oldest.
    pub waiting_max: usize,
    /// Events of one batch.
    pub events_max: usize,
    /// How long the first event of a batch waits for others.
    pub wait_max: Duration,
    /// The rate of batches; `None` for no limit.
    pub throttle: Option<Throttle>,
}

/// The longest events and batches of a backend, in bytes.
#[derive(Clone, Copy, Debug)]
pub struct Truncation {
    /// Bytes of an event. A longer one loses its bodies; one that is longer without them is lost.
    pub event_bytes_max: usize,
    /// Bytes of the events of a batch.
    pub batch_bytes_max: usize,
}

/// What backends have in common.
#[derive(Clone, Copy, Debug)]
pub struct SinkOptions {
    /// Whether requests wait.
    pub mode: Mode,
    /// How events become batches; without effect unless the mode is `Batch`.
    pub batch: BatchOptions,
    /// The longest events; `None` for no bound but the queue's.
    pub truncation: Option<Truncation>,
}

/// What was counted.
#[derive(Debug, Default)]
pub(crate) struct Counters {
    /// Events that found no room.
    pub(crate) lost: AtomicU64,
    /// Events that the backend has not recorded.
    pub(crate) failed: AtomicU64,
    /// Events that were too long without their bodies, too.
    pub(crate) too_long: AtomicU64,
}

/// The queue in front of a backend.
#[derive(Debug)]
pub(crate) struct Waiting {
    state: Mutex<State>,
    /// Wakes a thread that waits for a batch.
    wake: Condvar,
    /// Wakes a task that waits for a batch.
    woken: Notify,
    pub(crate) counters: Counters,
    pub(crate) options: SinkOptions,
    /// Events of one batch, and their bytes.
    batch_max: (usize, usize),
    /// How long the first event of a batch waits for others.
    wait_max: Duration,
}

#[derive(Debug)]
struct State {
    queue: Queue,
    /// When the first of the lines came.
    since: Instant,
    is_stopping: bool,
}

impl Waiting {
    /// Creates a queue. A batch has at most so many events and bytes.
    pub(crate) fn new(options: SinkOptions, events_max: usize, batch_bytes_max: usize) -> Self {
        let batch_bytes_max = match options.truncation {
            Some(truncation) => truncation.batch_bytes_max.min(batch_bytes_max),
            None => batch_bytes_max,
        };
        let is_batch = options.mode == Mode::Batch;
        Self {
            state: Mutex::new(State {
                queue: Queue::new(QueueLimits {
                    lines_max: options.batch.waiting_max,
                    bytes_max: WAITING_BYTES_MAX,
                }),
                since: Instant::now(),
                is_stopping: false,
            }),
            wake: Condvar::new(),
            woken: Notify::new(),
            counters: Counters::default(),
            options,
            batch_max: (events_max.max(1), batch_bytes_max),
            wait_max: match is_batch {
                true => options.batch.wait_max,
                false => Duration::ZERO,
            },
        }
    }

    /// Queues a line of a plane. Returns what hears whether it is recorded, unless the mode is
    /// `Batch`.
    pub(crate) fn add(&self, plane: &PlaneName<'_>, text: Text) -> Option<oneshot::Receiver<bool>> {
        let (done, heard) = match self.options.mode {
            Mode::Batch => (None, None),
            Mode::Blocking | Mode::BlockingStrict => {
                let (done, heard) = oneshot::channel();
                (Some(done), Some(heard))
            }
        };
        let mut state = self.state.lock();
        if state.is_stopping {
            drop(state);
            self.counters.lost.fetch_add(1, Ordering::Relaxed);
            return heard;
        }
        let was_empty = state.queue.is_empty();
        if was_empty {
            state.since = Instant::now();
        }
        let lost = state.queue.add(plane, Line { text, done });
        // Once for the first line, from which the writer counts the time, and once for the last.
        let wakes = was_empty || state.queue.lines() == self.batch_max.0;
        drop(state);
        if lost > 0 {
            self.counters.lost.fetch_add(lost, Ordering::Relaxed);
        }
        if wakes {
            self.wake.notify_one();
            self.woken.notify_one();
        }
        heard
    }

    /// Returns the next batch; `None` once the queue is stopped and empty. Blocks until a batch is
    /// due.
    pub(crate) fn next_batch(&self) -> Option<Vec<Share>> {
        let mut state = self.state.lock();
        loop {
            match self.due(&mut state) {
                Due::Now(batch) => return Some(batch),
                Due::At(until) => _ = self.wake.wait_until(&mut state, until),
                Due::Unknown => self.wake.wait(&mut state),
                Due::Never => return None,
            }
        }
    }

    /// Returns the next batch; `None` once the queue is stopped and empty.
    ///
    /// # Cancel safety
    /// No line is lost if the future is dropped.
    pub(crate) async fn batch(&self) -> Option<Vec<Share>> {
        loop {
            let woken = self.woken.notified();
            let due = self.due(&mut self.state.lock());
            match due {
                Due::Now(batch) => return Some(batch),
                Due::At(until) => {
                    let woken = tokio::time::timeout_at(until.into(), woken);
                    drop(woken.await);
                }
                Due::Unknown => woken.await,
                Due::Never => return None,
            }
        }
    }

    fn due(&self, state: &mut State) -> Due {
        if state.queue.is_empty() {
            return match state.is_stopping {
                true => Due::Never,
                false => Due::Unknown,
            };
        }
        let (lines_max, bytes_max) = self.batch_max;
        let until = state.since + self.wait_max;
        if state.is_stopping || state.queue.lines() >= lines_max || until <= Instant::now() {
            return Due::Now(state.queue.take(lines_max, bytes_max));
        }
        Due::At(until)
    }

    /// Settles the lines of a batch: those who wait hear it, and what is lost is counted and told
    /// with the next batch.
    pub(crate) fn settle(&self, batch: Vec<Share>, recorded: bool) {
        if !recorded {
            let mut state = self.state.lock();
            let mut failed = 0;
            for share in &batch {
                let count = share.lines.len() as u64;
                failed += count;
                state.queue.note_lost(&share.plane(), count + share.lost);
            }
            drop(state);
            self.counters.failed.fetch_add(failed, Ordering::Relaxed);
        }
        for done in batch
            .into_iter()
            .flat_map(|share| share.lines)
            .filter_map(|line| line.done)
        {
            // Whoever has gone need not hear it.
            let _ = done.send(recorded);
        }
    }

    /// Lets what waits leave at once. What comes later is lost.
    pub(crate) fn stop(&self) {
        self.state.lock().is_stopping = true;
        self.wake.notify_one();
        self.woken.notify_one();
    }

    /// Returns how many lines wait.
    pub(crate) fn lines(&self) -> usize {
        self.state.lock().queue.lines()
    }
}

/// When the next batch is due.
enum Due {
    Now(Vec<Share>),
    At(Instant),
    /// After the next line.
    Unknown,
    /// The queue has stopped and is empty.
    Never,
}

/// A count of the batches that a [`Throttle`] still allows.
#[derive(Debug)]
pub(crate) struct Bucket {
    throttle: Throttle,
    left: f64,
    at: Instant,
}

impl Bucket {
    pub(crate) fn new(throttle: Throttle, now: Instant) -> Self {
        Self {
            throttle,
            left: f64::from(throttle.burst),
            at: now,
        }
    }

    /// Takes one batch. Returns how long it has to wait.
    pub(crate) fn take(&mut self, now: Instant) -> Duration {
        let rate = f64::from(self.throttle.per_second);
        let gained = now.saturating_duration_since(self.at).as_secs_f64() * rate;
        self.left = (self.left + gained).min(f64::from(self.throttle.burst)) - 1.0;
        self.at = now;
        match self.left < 0.0 {
            true => Duration::try_from_secs_f64(-self.left / rate).unwrap_or(Duration::MAX),
            false => Duration::ZERO,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_burst_leaves_at_once_and_then_the_rate_holds() {
        let mut now = Instant::now();
        let throttle = Throttle {
            per_second: 10.0,
            burst: 3,
        };
        let mut bucket = Bucket::new(throttle, now);
        let waits: Vec<u128> = (0..5).map(|_| bucket.take(now).as_millis()).collect();
        assert_eq!(waits, [0, 0, 0, 100, 200]);
        now += Duration::from_secs(60);
        let waits: Vec<u128> = (0..4).map(|_| bucket.take(now).as_millis()).collect();
        assert_eq!(waits, [0, 0, 0, 100]);
    }
}
