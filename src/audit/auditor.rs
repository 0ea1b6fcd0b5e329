//! The auditor: the policy, the backends, and what is counted.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::SystemTime;

use polyplane_auth::Attributes;
use tokio::sync::oneshot;

use crate::event::{Bodies, Event, Head, Stage};
use crate::legacy::LegacyHead;
use crate::log::{Format, Log};
use crate::policy::{Level, Plan, Policy};
use crate::queue::Text;
use crate::sink::{Mode, Waiting};
use crate::webhook::Webhook;

/// Names of the levels, in the order of [`AuditMetrics::requests`].
pub const LEVELS: [&str; 4] = ["None", "Metadata", "Request", "RequestResponse"];

/// What an auditor has counted.
#[derive(Clone, Debug, Default)]
pub struct AuditMetrics {
    /// Requests by the level that the policy gives them.
    pub requests: [u64; 4],
    /// Events made.
    pub events: u64,
    /// Requests that failed because their arrival could not be recorded.
    pub rejected: u64,
    /// Events lost because too many waited.
    pub lost: u64,
    /// Events that were longer than a backend takes, even without bodies.
    pub too_long: u64,
    /// The backends: name, events that it did not record, events that wait for it.
    pub backends: Vec<(&'static str, u64, usize)>,
}

/// Where events go.
pub enum Backend {
    /// A file or standard output.
    Log(Log),
    /// A server.
    Webhook(Webhook),
}

impl Backend {
    fn waiting(&self) -> &Arc<Waiting> {
        match self {
            Self::Log(log) => &log.waiting,
            Self::Webhook(webhook) => &webhook.waiting,
        }
    }

    const fn name(&self) -> &'static str {
        match self {
            Self::Log(_) => "log",
            Self::Webhook(_) => "webhook",
        }
    }

    /// Returns whether the backend can write the lines of events itself: no request waits for it, and it
    /// cuts no line.
    fn writes_lines(&self) -> bool {
        let options = &self.waiting().options;
        matches!(self, Self::Log(log) if log.format == Format::Json)
            && options.mode == Mode::Batch
            && options.truncation.is_none()
    }

    const fn format(&self) -> Format {
        match self {
            Self::Log(log) => log.format,
            Self::Webhook(_) => Format::Json,
        }
    }
}

/// Records requests.
pub struct Auditor {
    policy: Policy,
    backends: Vec<Backend>,
    /// True if requests wait for a backend.
    waits: bool,
    /// True if every backend can write lines itself. Otherwise a request writes one for all of them.
    writes_later: bool,
    has_legacy: bool,
    requests: [AtomicU64; 4],
    events: AtomicU64,
    rejected: AtomicU64,
}

/// An event whose arrival a strict backend could not record.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
#[error("failed to store audit event")]
pub struct NotRecorded;

/// What hears of an event whether it is recorded. A request waits for it, or drops it.
#[derive(Debug, Default)]
#[must_use]
pub struct Recorded(Vec<(Mode, oneshot::Receiver<bool>)>);

impl Recorded {
    /// Waits until the backends for which requests wait have recorded the event, or cannot.
    ///
    /// # Errors
    /// Returns an error if a strict backend has not recorded it.
    ///
    /// # Cancel safety
    /// The event is recorded all the same.
    pub async fn wait(self) -> Result<(), NotRecorded> {
        let mut result = Ok(());
        for (mode, heard) in self.0 {
            let is_recorded = heard.await.unwrap_or(false);
            if !is_recorded && mode == Mode::BlockingStrict {
                result = Err(NotRecorded);
            }
        }
        result
    }

    /// Waits for another event too.
    pub fn and(&mut self, mut other: Self) {
        self.0.append(&mut other.0);
    }

    /// Returns whether there is nothing to wait for.
    #[must_use]
    pub fn is_settled(&self) -> bool {
        self.0.is_empty()
    }
}

impl Auditor {
    /// Creates an auditor.
    #[must_use]
    pub fn new(policy: Policy, backends: Vec<Backend>) -> Self {
        let mode = |backend: &Backend| backend.waiting().options.mode;
        Self {
            policy,
            waits: backends.iter().any(|backend| mode(backend) != Mode::Batch),
            writes_later: backends.iter().all(Backend::writes_lines),
            has_legacy: backends
                .iter()
                .any(|backend| backend.format() == Format::Legacy),
            backends,
            requests: Default::default(),
            events: AtomicU64::new(0),
            rejected: AtomicU64::new(0),
        }
    }

    /// Returns what is recorded of a request; `None` for nothing.
    #[must_use]
    pub fn plan(&self, request: &Attributes<'_>) -> Option<Plan> {
        let plan = self.policy.plan(request);
        self.requests[plan.level as usize].fetch_add(1, Ordering::Relaxed);
        (plan.level != Level::None).then_some(plan)
    }

    /// Begins the events of a request.
    #[must_use]
    pub fn event(&self, plan: Plan, head: Head<'_>) -> Event {
        let legacy = self.has_legacy.then(|| Box::new(LegacyHead::new(&head)));
        Event::new(plan, head, legacy)
    }

    /// Returns whether requests wait until their events are recorded, beginning with their arrival.
    #[must_use]
    pub const fn waits(&self) -> bool {
        self.waits
    }

    /// Records a stage of a request that goes on.
    pub fn record(&self, event: &Event, stage: Stage, now: SystemTime) -> Recorded {
        self.events.fetch_add(1, Ordering::Relaxed);
        let mut recorded = Recorded::default();
        let mut whole = None;
        let last = self.backends.len().saturating_sub(1);
        for (index, backend) in self.backends.iter().enumerate() {
            let text = match (backend.format(), &event.legacy) {
                (Format::Legacy, Some(legacy)) => legacy.line(event, stage),
                _ => {
                    let made = whole.take();
                    let made = made.unwrap_or_else(|| event.line(stage, now, Bodies::Whole));
                    if index != last {
                        whole = Some(made.clone());
                    }
                    made
                }
            };
            let waiting = backend.waiting();
            let Some(text) = fitting(waiting, text, event, stage, now) else {
                continue;
            };
            if let Some(heard) = waiting.add(&event.plane(), Text::Written(text)) {
                recorded.0.push((waiting.options.mode, heard));
            }
        }
        recorded
    }

    /// Records a stage of a request whose event does not change any more. As [`Self::record`], but the
    /// backends write the line if they can.
    pub fn record_whole(&self, event: &Arc<Event>, stage: Stage, now: SystemTime) -> Recorded {
        if !self.writes_later {
            return self.record(event, stage, now);
        }
        self.events.fetch_add(1, Ordering::Relaxed);
        let bytes = event.line_bytes(stage, Bodies::Whole);
        for backend in &self.backends {
            let text = Text::Unwritten {
                event: Arc::clone(event),
                stage,
                now,
                bytes,
            };
            drop(backend.waiting().add(&event.plane(), text));
        }
        Recorded::default()
    }

    /// Records the arrival of a request, and waits until it is recorded.
    ///
    /// # Errors
    /// Returns an error if a strict backend has not recorded it: the request must not be carried out.
    ///
    /// # Cancel safety
    /// The event is recorded all the same.
    pub async fn record_arrival(&self, event: &Event) -> Result<(), NotRecorded> {
        let recorded = self.record(event, Stage::RequestReceived, event.received);
        let result = recorded.wait().await;
        if result.is_err() {
            self.rejected.fetch_add(1, Ordering::Relaxed);
        }
        result
    }

    /// Returns what was counted.
    #[must_use]
    pub fn metrics(&self) -> AuditMetrics {
        let read = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        let of = |count: fn(&Waiting) -> &AtomicU64| {
            let counts = self.backends.iter();
            counts
                .map(|backend| read(count(backend.waiting())))
                .sum::<u64>()
        };
        let backends = self.backends.iter().map(|backend| {
            let waiting = backend.waiting();
            let failed = read(&waiting.counters.failed);
            (backend.name(), failed, waiting.lines())
        });
        AuditMetrics {
            requests: self.requests.each_ref().map(read),
            events: read(&self.events),
            rejected: read(&self.rejected),
            lost: of(|waiting| &waiting.counters.lost),
            too_long: of(|waiting| &waiting.counters.too_long),
            backends: backends.collect(),
        }
    }

    /// Writes and sends what waits. Returns once the file system has it, and the webhook has it or
    /// did not take it in time. What comes later is lost.
    pub async fn close(self: Arc<Self>) {
        let this = Arc::clone(&self);
        let logs = tokio::task::spawn_blocking(move || {
            for backend in &this.backends {
                if let Backend::Log(log) = backend {
                    log.close();
                }
            }
        });
        for backend in &self.backends {
            if let Backend::Webhook(webhook) = backend {
                webhook.close().await;
            }
        }
        if let Err(error) = logs.await {
            tracing::error!(%error, "the audit log was not closed");
        }
    }
}

/// Returns the line as the backend takes it; `None`, counted, if it is too long even without bodies.
fn fitting(
    waiting: &Waiting,
    text: Vec<u8>,
    event: &Event,
    stage: Stage,
    now: SystemTime,
) -> Option<Vec<u8>> {
    let bytes_max = match waiting.options.truncation {
        Some(truncation) => truncation.event_bytes_max,
        None => return Some(text),
    };
    if text.len() <= bytes_max {
        return Some(text);
    }
    if event.wants_request() {
        let text = event.line(stage, now, Bodies::Truncated);
        if text.len() <= bytes_max {
            return Some(text);
        }
    }
    waiting.counters.too_long.fetch_add(1, Ordering::Relaxed);
    None
}

#[cfg(test)]
mod tests;
