//! What the modes of a backend mean for those who record, and what is counted.

use std::path::Path;
use std::time::Duration;

use polyplane_auth::{Subject, UserInfo};

use super::*;
use crate::event::{PlaneName, Sources};
use crate::log::LogOptions;
use crate::sink::{BatchOptions, SinkOptions, Truncation};

const POLICY: &[u8] = b"apiVersion: audit.k8s.io/v1\nkind: Policy\nrules:\n- level: Request\n";

fn sink(mode: Mode, wait_max: Duration) -> SinkOptions {
    SinkOptions {
        mode,
        batch: BatchOptions {
            waiting_max: 100,
            events_max: 10,
            wait_max,
            throttle: None,
        },
        truncation: None,
    }
}

fn auditor(path: &Path, format: Format, sink: SinkOptions) -> Arc<Auditor> {
    let log = Log::open(&LogOptions {
        path: path.to_owned(),
        format,
        megabytes_max: 0,
        kept_max: 0,
        days_max: 0,
        sink,
    });
    let policy = Policy::parse(POLICY).expect("a policy");
    let log = Backend::Log(log.expect("it opens"));
    Arc::new(Auditor::new(policy, vec![log]))
}

fn event(auditor: &Auditor) -> Event {
    let user = Arc::new(UserInfo::new("jane", &[]));
    let request = Attributes {
        user: &user,
        verb: "get",
        subject: Subject::Path("/x"),
    };
    let plan = auditor.plan(&request).expect("everything is recorded");
    let head = Head {
        audit_id: "id",
        uri: "/x",
        verb: "get",
        user: &user,
        sources: Sources::default(),
        user_agent: "",
        object: None,
        plane: PlaneName {
            name: "a",
            id: "id-a",
        },
        received: SystemTime::now(),
    };
    auditor.event(plan, head)
}

fn complete(auditor: &Auditor, event: &Event) -> Recorded {
    auditor.record(event, Stage::ResponseComplete, SystemTime::now())
}

/// Nothing can be written to `/dev/full`: the arrival of a request is an error in the mode
/// blocking-strict alone, and every event is counted in all modes.
#[tokio::test]
async fn a_full_disk_fails_requests_in_the_strict_mode_alone() {
    for mode in Mode::ALL {
        let full = Path::new("/dev/full");
        let auditor = auditor(full, Format::Json, sink(mode, Duration::ZERO));
        let event = event(&auditor);
        assert_eq!(auditor.waits(), mode != Mode::Batch);
        let arrived = auditor.record_arrival(&event).await;
        let is_strict = mode == Mode::BlockingStrict;
        assert_eq!(arrived.is_err(), is_strict, "{mode:?}");
        let event = Arc::new(event);
        let ended = auditor.record_whole(&event, Stage::ResponseComplete, SystemTime::now());
        assert_eq!(ended.is_settled(), mode == Mode::Batch);
        assert_eq!(ended.wait().await.is_err(), is_strict);
        Arc::clone(&auditor).close().await;
        let metrics = auditor.metrics();
        assert_eq!(metrics.backends, [("log", 2, 0)], "{mode:?}");
        assert_eq!(metrics.rejected, u64::from(is_strict));
        // What comes after the end is lost, and is no reason to wait.
        drop(complete(&auditor, &event).wait().await);
        assert_eq!(auditor.metrics().lost, 1);
    }
}

/// Whoever writes a line, the request or the log, it has the same bytes, and lines stay in order.
#[tokio::test]
async fn the_log_writes_the_line_that_the_request_would_have_written() {
    let folder = tempfile::tempdir().expect("a folder");
    for (number, mode) in Mode::ALL.into_iter().enumerate() {
        let path = folder.path().join(number.to_string());
        let auditor = auditor(&path, Format::Json, sink(mode, Duration::ZERO));
        let mut event = event(&auditor);
        event.decided(true, "RBAC: allowed by \"x\"");
        event.annotate("example.com/a", "\u{1}");
        event.created = "b".into();
        let groups = ["g".repeat(2000), "h".repeat(2000)];
        let groups: Vec<&str> = groups.iter().map(String::as_str).collect();
        event.impersonated = Some(Arc::new(UserInfo::new("another", &groups)));
        let body = polyplane_apimachinery::Value::string("y".repeat(300));
        event.show_request(Some(body), 300, None);
        let (event, now) = (Arc::new(event), SystemTime::now());
        for stage in [Stage::RequestReceived, Stage::ResponseComplete] {
            drop(auditor.record(&event, stage, now));
            drop(auditor.record_whole(&event, stage, now));
        }
        Arc::clone(&auditor).close().await;
        let text = std::fs::read_to_string(&path).expect("it is read");
        let lines: Vec<&str> = text.lines().collect();
        let [first, second, third, fourth] = &lines[..] else {
            panic!("{} lines", lines.len());
        };
        assert_eq!((first, third), (second, fourth), "{mode:?}");
        assert!(first.contains("RequestReceived") && third.contains(&"y".repeat(300)));
        // What the queue counts for a line that is not written yet is no less than the line.
        for (stage, line) in [
            (Stage::RequestReceived, first),
            (Stage::ResponseComplete, third),
        ] {
            assert!(event.line_bytes(stage, Bodies::Whole) > line.len());
        }
    }
}

/// Events that wait for a batch are written when the log closes, in one piece and in order.
#[tokio::test]
async fn a_log_that_closes_writes_what_waits() {
    let folder = tempfile::tempdir().expect("a folder");
    for format in Format::ALL {
        let path = folder.path().join(format.name());
        let hour = Duration::from_secs(3600);
        let auditor = auditor(&path, format, sink(Mode::Batch, hour));
        let event = event(&auditor);
        for _ in 0..9 {
            drop(complete(&auditor, &event));
        }
        let waiting = || std::fs::read_to_string(&path).expect("it is read");
        assert_eq!(waiting(), "", "the batch is not due");
        Arc::clone(&auditor).close().await;
        assert_eq!(waiting().lines().count(), 9);
        assert!(waiting().ends_with('\n'));
    }
}

#[tokio::test]
async fn a_long_event_loses_its_bodies_and_one_that_is_still_too_long_is_counted() {
    let folder = tempfile::tempdir().expect("a folder");
    for (bytes_max, written, too_long) in [(500, 1, 0), (100, 0, 1)] {
        let path = folder.path().join(format!("{bytes_max}"));
        let mut options = sink(Mode::Blocking, Duration::ZERO);
        options.truncation = Some(Truncation {
            event_bytes_max: bytes_max,
            batch_bytes_max: 1000,
        });
        let auditor = auditor(&path, Format::Json, options);
        let mut event = event(&auditor);
        let body = polyplane_apimachinery::Value::string("x".repeat(500));
        event.show_request(Some(body), 500, None);
        assert_eq!(complete(&auditor, &event).wait().await, Ok(()));
        Arc::clone(&auditor).close().await;
        let text = std::fs::read_to_string(&path).expect("it is read");
        assert_eq!(text.lines().count(), written, "{text}");
        assert_eq!(text.contains("audit.k8s.io/truncated"), written == 1);
        assert_eq!(auditor.metrics().too_long, too_long);
    }
}
