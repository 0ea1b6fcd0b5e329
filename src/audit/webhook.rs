//! The webhook: batches of events as lists, posted to a server.
//!
//! Invariant: batches under way are few, so that events wait in the queue, where planes have their
//! shares, and not in calls to a server that does not answer.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant, SystemTime};

use bytes::Bytes;
use http::header::{ACCEPT, CONTENT_TYPE};
use http::{HeaderMap, HeaderValue, Method};
use parking_lot::Mutex;
use polyplane_outbound::{Call, CallError, Target};
use tokio::sync::{Semaphore, watch};
use tokio::task::{JoinHandle, JoinSet};

use crate::event;
use crate::queue::Share;
use crate::sink::{Bucket, Mode, SinkOptions, Waiting};

/// Batches under way. More would take memory while the server does not answer; one would halve the
/// rate with the distance of the server.
const UNDER_WAY_MAX: usize = 4;
/// Bytes of the events of one batch, unless truncation says fewer.
const BATCH_BYTES_MAX: usize = 10 << 20;
/// Events of one batch if requests wait, which share a call.
const BLOCKING_EVENTS_MAX: usize = 400;
/// How long one call may take, as upstream.
const CALL: Duration = Duration::from_secs(30);
/// Calls for one batch, as upstream.
const ATTEMPTS: u32 = 5;
/// How much longer each further pause between calls is, as upstream.
const BACKOFF_FACTOR: f64 = 1.5;
/// The part of a pause that is added at random, so that replicas do not come at once.
const JITTER: f64 = 0.2;
/// Bytes of the longest answer, which nobody reads.
const ANSWER_BYTES_MAX: usize = 64 << 10;
/// How long what waits may take to leave when the server stops.
const DRAIN: Duration = Duration::from_secs(10);
/// The longest pause between calls for one batch when the server stops. All its calls have to fit in [`DRAIN`].
const LAST_PAUSE: Duration = Duration::from_secs(2);

/// A server to which events are posted.
pub struct WebhookOptions {
    /// The server.
    pub target: Target,
    /// Headers of each call.
    pub headers: HeaderMap,
    /// The pause before a batch that was not taken is sent again; each further one is longer.
    pub initial_backoff: Duration,
    /// When events are sent, and who waits for it.
    pub sink: SinkOptions,
}

/// A backend that posts events.
pub struct Webhook {
    pub(crate) waiting: Arc<Waiting>,
    shared: Arc<Shared>,
    task: Mutex<Option<JoinHandle<()>>>,
}

/// The reason why the server has not taken a batch.
#[derive(Debug, thiserror::Error)]
enum NotTaken {
    #[error(transparent)]
    Call(#[from] CallError),
    #[error("it answered {0}")]
    Status(u16),
}

struct Shared {
    waiting: Arc<Waiting>,
    target: Target,
    headers: HeaderMap,
    initial_backoff: Duration,
    /// True once the server stops.
    stopping: watch::Sender<bool>,
    /// Events of the batches under way.
    under_way: AtomicUsize,
}

impl Webhook {
    /// Starts the task that sends. Nothing is connected before the first event. Must be called in a
    /// runtime.
    #[must_use]
    pub fn start(options: WebhookOptions) -> Self {
        let WebhookOptions {
            target,
            mut headers,
            initial_backoff,
            sink,
        } = options;
        headers.insert(CONTENT_TYPE, HeaderValue::from_static("application/json"));
        headers.insert(ACCEPT, HeaderValue::from_static("application/json"));
        let events_max = match sink.mode {
            Mode::Batch => sink.batch.events_max,
            Mode::Blocking | Mode::BlockingStrict => BLOCKING_EVENTS_MAX,
        };
        let waiting = Arc::new(Waiting::new(sink, events_max, BATCH_BYTES_MAX));
        let shared = Arc::new(Shared {
            waiting: Arc::clone(&waiting),
            target,
            headers,
            initial_backoff,
            stopping: watch::Sender::new(false),
            under_way: AtomicUsize::new(0),
        });
        let task = tokio::spawn(Arc::clone(&shared).run());
        Self {
            waiting,
            shared,
            task: Mutex::new(Some(task)),
        }
    }

    /// Sends what waits, and ends the task. What the server has not taken in time is lost.
    pub(crate) async fn close(&self) {
        self.waiting.stop();
        self.shared.stopping.send_replace(true);
        let Some(mut task) = self.task.lock().take() else {
            return;
        };
        match tokio::time::timeout(DRAIN, &mut task).await {
            Ok(Ok(())) => {}
            Ok(Err(error)) => tracing::error!(%error, "the audit webhook's task failed"),
            Err(_) => {
                task.abort();
                let left = self.waiting.lines() + self.shared.under_way.load(Ordering::Relaxed);
                tracing::error!(
                    events = left,
                    "the audit webhook did not take all events in time"
                );
            }
        }
    }
}

impl Shared {
    async fn run(self: Arc<Self>) {
        let places = Arc::new(Semaphore::new(UNDER_WAY_MAX));
        let options = self.waiting.options;
        let throttle = options.batch.throttle;
        let throttle = throttle.filter(|_| options.mode == Mode::Batch);
        let mut bucket = throttle.map(|throttle| Bucket::new(throttle, Instant::now()));
        let mut under_way = JoinSet::new();
        // The place first: what has none waits in the queue.
        while let Ok(place) = Arc::clone(&places).acquire_owned().await {
            let Some(batch) = self.waiting.batch().await else {
                break;
            };
            if let Some(bucket) = &mut bucket {
                self.pause(bucket.take(Instant::now())).await;
            }
            let this = Arc::clone(&self);
            under_way.spawn(async move {
                this.deliver(batch).await;
                drop(place);
            });
            while let Some(ended) = under_way.try_join_next() {
                report(ended);
            }
        }
        while let Some(ended) = under_way.join_next().await {
            report(ended);
        }
    }

    /// Sends a batch until the server takes it, at most [`ATTEMPTS`] times. While the circuit of the
    /// server is open nothing is sent, so such a pause is no attempt: else batches would be lost that
    /// come before the circuit finds out that the server is back. Once this server stops, there is no time to wait for
    /// the circuit, and pauses are short.
    async fn deliver(&self, batch: Vec<Share>) {
        let count = batch.iter().map(|share| share.lines.len()).sum();
        self.under_way.fetch_add(count, Ordering::Relaxed);
        let body = list(&batch);
        let mut pause = self.initial_backoff;
        let mut attempt = 1;
        let until = Instant::now() + time_max(self.initial_backoff);
        let outcome = loop {
            let is_stopping = *self.stopping.borrow();
            let wait = match self.post(body.clone(), is_stopping).await {
                Ok(()) => break Ok(()),
                Err(why) if Instant::now() >= until => break Err(why),
                Err(NotTaken::Call(CallError::Open(time))) => time,
                Err(why) if attempt >= ATTEMPTS => break Err(why),
                Err(_) => {
                    attempt += 1;
                    let wait = pause;
                    pause = pause.mul_f64(BACKOFF_FACTOR);
                    wait
                }
            };
            match is_stopping {
                true => tokio::time::sleep(wait.min(LAST_PAUSE)).await,
                false => self.pause(jittered(wait)).await,
            }
        };
        if let Err(why) = &outcome {
            tracing::error!(
                events = count,
                "the audit webhook did not take events: {why}"
            );
        }
        self.waiting.settle(batch, outcome.is_ok());
        self.under_way.fetch_sub(count, Ordering::Relaxed);
    }

    async fn post(&self, body: Bytes, is_stopping: bool) -> Result<(), NotTaken> {
        let call = Call {
            method: Method::POST,
            path: None,
            headers: self.headers.clone(),
            body,
            timeout: CALL,
            answer_bytes_max: ANSWER_BYTES_MAX,
        };
        let answer = match is_stopping {
            true => self.target.call_despite_circuit(call).await?,
            false => self.target.call(call).await?,
        };
        match answer.status.is_success() {
            true => Ok(()),
            false => Err(NotTaken::Status(answer.status.as_u16())),
        }
    }

    /// Waits, but no longer once the server stops.
    async fn pause(&self, time: Duration) {
        if time.is_zero() {
            return;
        }
        let mut stopping = self.stopping.subscribe();
        let stopped = stopping.wait_for(|stopping| *stopping);
        // Either end is the end of the pause.
        drop(tokio::time::timeout(time, stopped).await);
    }
}

/// Returns the list of a batch.
fn list(batch: &[Share]) -> Bytes {
    let bytes: usize = batch.iter().map(Share::bytes).sum();
    let mut body = Vec::with_capacity(bytes + 256);
    body.extend_from_slice(
        br#"{"kind":"EventList","apiVersion":"audit.k8s.io/v1","metadata":{},"items":["#,
    );
    let begin = body.len();
    let mut add = |line: &[u8]| {
        if body.len() > begin {
            body.push(b',');
        }
        let (open, rest) = event::item(line);
        body.extend_from_slice(open);
        body.extend_from_slice(rest);
    };
    for share in batch {
        if share.lost > 0 {
            add(&event::lost(&share.plane(), share.lost, SystemTime::now()));
        }
        for line in &share.lines {
            add(&line.text.whole());
        }
    }
    body.extend_from_slice(b"]}\n");
    body.into()
}

/// Returns the time that the attempts for one batch can take, pauses between them included. A batch
/// that waits longer for a circuit is lost: requests may wait for it.
fn time_max(initial_backoff: Duration) -> Duration {
    let mut pause = initial_backoff.mul_f64(1.0 + JITTER);
    let mut time = CALL;
    for _ in 1..ATTEMPTS {
        time += pause + CALL;
        pause = pause.mul_f64(BACKOFF_FACTOR);
    }
    time
}

fn jittered(pause: Duration) -> Duration {
    let since = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH);
    let part = f64::from(since.unwrap_or_default().subsec_nanos()) / 1e9;
    pause.mul_f64(1.0 + JITTER * part)
}

fn report(ended: Result<(), tokio::task::JoinError>) {
    if let Err(error) = ended {
        tracing::error!(%error, "a batch of the audit webhook failed");
    }
}

#[cfg(test)]
mod tests;
