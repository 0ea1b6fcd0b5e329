//! What becomes of a batch while the receiver is away.

use std::sync::atomic::AtomicBool;

use polyplane_outbound::{Caller, Trust};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpListener;
use tokio::sync::Notify;

use super::*;
use crate::event::PlaneName;
use crate::queue::Text;
use crate::sink::BatchOptions;

/// The last bytes of each list.
const END: &[u8] = b"]}\n";

/// A receiver that closes each connection without an answer until it is back.
struct Receiver {
    url: String,
    is_back: Arc<AtomicBool>,
    /// Woken by each connection that was closed.
    has_refused: Arc<Notify>,
    task: JoinHandle<()>,
}

impl Receiver {
    async fn start() -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a free port");
        let address = listener.local_addr().expect("bound");
        let is_back = Arc::new(AtomicBool::new(false));
        let answers = Arc::clone(&is_back);
        let has_refused = Arc::new(Notify::new());
        let refuses = Arc::clone(&has_refused);
        let task = tokio::spawn(async move {
            while let Ok((mut connection, _)) = listener.accept().await {
                if !answers.load(Ordering::Relaxed) {
                    refuses.notify_one();
                    continue;
                }
                let mut request = Vec::new();
                while !request.ends_with(END) {
                    let read = connection.read_buf(&mut request).await;
                    assert!(read.expect("read") > 0, "the whole list comes");
                }
                let answer = b"HTTP/1.1 200 OK\r\nconnection: close\r\ncontent-length: 0\r\n\r\n";
                connection.write_all(answer).await.expect("answered");
            }
        });
        Self {
            url: format!("http://{address}/"),
            is_back,
            has_refused,
            task,
        }
    }

    fn target(&self) -> Target {
        let caller = Caller::new(Vec::new()).of_operator();
        let trust = Trust::new(None, None).expect("the system's");
        Target::new(&caller, &self.url, &trust).expect("a target")
    }
}

/// Starts a webhook. In the mode `Batch` events wait until it stops.
fn start(target: Target, mode: Mode) -> Webhook {
    Webhook::start(WebhookOptions {
        target,
        headers: HeaderMap::new(),
        initial_backoff: Duration::from_millis(10),
        sink: SinkOptions {
            mode,
            batch: BatchOptions {
                waiting_max: 10,
                events_max: 10,
                wait_max: Duration::from_secs(3600),
                throttle: None,
            },
            truncation: None,
        },
    })
}

impl Drop for Receiver {
    fn drop(&mut self) {
        self.task.abort();
    }
}

/// Makes calls until the circuit is open.
async fn open_circuit(target: &Target) {
    let call = Call {
        method: Method::POST,
        path: None,
        headers: HeaderMap::new(),
        body: Bytes::new(),
        timeout: CALL,
        answer_bytes_max: ANSWER_BYTES_MAX,
    };
    for _ in 0..100 {
        match target.call(call.clone()).await {
            Err(CallError::Open(_)) => return,
            Err(_) => {}
            Ok(answer) => panic!("it answered {}", answer.status),
        }
    }
    panic!("the circuit stays closed");
}

/// The pauses of the circuit are many times longer than those between attempts.
#[tokio::test]
async fn a_batch_is_not_lost_while_the_circuit_is_open() {
    let receiver = Receiver::start().await;
    let target = receiver.target();
    open_circuit(&target).await;
    receiver.is_back.store(true, Ordering::Relaxed);
    let webhook = start(target, Mode::Blocking);
    let plane = PlaneName { name: "a", id: "a" };
    let line = event::lost(&plane, 1, SystemTime::now());
    let heard = webhook.waiting.add(&plane, Text::Written(line));
    let recorded = heard.expect("the mode is blocking").await;
    assert_eq!(recorded, Ok(true), "the receiver has it");
    assert_eq!(webhook.waiting.counters.failed.load(Ordering::Relaxed), 0);
    webhook.close().await;
}

/// Nothing waits for the circuit any more, which may be open for longer than the end may take.
#[tokio::test]
async fn what_waits_at_the_end_is_sent_though_the_circuit_is_open() {
    let receiver = Receiver::start().await;
    let target = receiver.target();
    open_circuit(&target).await;
    receiver.is_back.store(true, Ordering::Relaxed);
    let webhook = start(target, Mode::Batch);
    let plane = PlaneName { name: "a", id: "a" };
    let line = event::lost(&plane, 1, SystemTime::now());
    assert!(webhook.waiting.add(&plane, Text::Written(line)).is_none());
    webhook.close().await;
    assert_eq!(webhook.waiting.counters.failed.load(Ordering::Relaxed), 0);
    assert_eq!(webhook.shared.under_way.load(Ordering::Relaxed), 0);
}

#[tokio::test]
async fn what_waits_at_the_end_is_sent_again_if_it_is_not_taken() {
    let receiver = Receiver::start().await;
    let webhook = start(receiver.target(), Mode::Batch);
    let plane = PlaneName { name: "a", id: "a" };
    let line = event::lost(&plane, 1, SystemTime::now());
    assert!(webhook.waiting.add(&plane, Text::Written(line)).is_none());
    let back = async {
        receiver.has_refused.notified().await;
        receiver.is_back.store(true, Ordering::Relaxed);
    };
    tokio::join!(webhook.close(), back);
    assert_eq!(webhook.waiting.counters.failed.load(Ordering::Relaxed), 0);
    assert_eq!(webhook.shared.under_way.load(Ordering::Relaxed), 0);
}

#[test]
fn a_batch_waits_no_longer_than_its_attempts_may_take() {
    let backoff = Duration::from_secs(10);
    let time = time_max(backoff);
    // 5 calls of 30 s and pauses of 10, 15, 22.5 and 33.75 s with their jitter.
    assert_eq!(time.as_millis(), 150_000 + 97_500);
    assert!(time_max(Duration::ZERO) == CALL * ATTEMPTS);
}
