//! Clients whose every operation is recorded in the form that the checker of histories reads.
//!
//! Owns how an answer of a plane becomes a recorded outcome. A client uses the plane that it is
//! given, as a request does that was slow between routing and answering; its answer must be true
//! nevertheless.

use super::*;
use polyplane_plane::{Claim, Ended, Next, ObjectRef, Prefix, Start, WatchFrom, WatchScope};
use polyplane_tests::history::{
    Change, ClientId, Cut, Event, Failure, History, Listing, Moment, Operation as Recorded,
    Outcome, PlaneName, Refusal, Session, SessionEnd, Value, Verb, Version as Number, Watch,
};
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use tokio_util::sync::CancellationToken;

/// The longest time that a read waits for the right to answer.
const READ_PATIENCE: Duration = Duration::from_millis(30);
/// The longest time that a write waits for its outcome.
const WRITE_PATIENCE: Duration = Duration::from_secs(5);
/// The status that a server returns if it does not serve the plane.
const UNAVAILABLE: u16 = 503;

/// One recorded run.
pub(super) struct Tape {
    began: Instant,
    values: AtomicU64,
    clients: AtomicU32,
    plane: PlaneName,
    history: Mutex<History>,
}

impl Tape {
    /// Creates an empty recording of one plane.
    pub(super) fn new(plane: &str) -> Arc<Self> {
        Arc::new(Self {
            began: Instant::now(),
            values: AtomicU64::new(0),
            clients: AtomicU32::new(0),
            plane: plane.into(),
            history: Mutex::default(),
        })
    }

    /// Adds a client.
    pub(super) fn client(self: &Arc<Self>) -> Client {
        Client {
            tape: Arc::clone(self),
            id: ClientId(self.clients.fetch_add(1, Ordering::Relaxed)),
        }
    }

    /// Returns everything that was recorded so far.
    pub(super) fn history(&self) -> History {
        self.history.lock().clone()
    }

    fn now(&self) -> Moment {
        let nanos = self.began.elapsed().as_nanos();
        Moment(u64::try_from(nanos).expect("a run is short"))
    }

    fn value(&self) -> Value {
        Value(self.values.fetch_add(1, Ordering::Relaxed) + 1)
    }
}

/// A client whose operations are recorded.
pub(super) struct Client {
    tape: Arc<Tape>,
    id: ClientId,
}

impl Client {
    /// Creates an object that must not exist yet.
    pub(super) async fn create(&self, plane: &Arc<Plane>, name: &str) -> Outcome {
        let value = self.tape.value();
        let claims = vec![Claim::Absent(key(name))];
        self.put(plane, name, Verb::Create(value), claims).await
    }

    /// Writes an object that exists.
    pub(super) async fn write(&self, plane: &Arc<Plane>, name: &str) -> Outcome {
        let value = self.tape.value();
        self.put(plane, name, Verb::Patch(value), Vec::new()).await
    }

    async fn put(&self, plane: &Arc<Plane>, name: &str, verb: Verb, claims: Vec<Claim>) -> Outcome {
        let value = verb.writes().expect("it is a write");
        let start = self.tape.now();
        let write = Write {
            operations: vec![put(name, &value.0.to_string())],
            claims,
            deadline: Some(Instant::now() + WRITE_PATIENCE),
        };
        let outcome = match plane.submit(write).await {
            Ok(committed) => Outcome::Object {
                version: number(committed.version),
                value,
            },
            Err(SubmitError::Deadline) => Outcome::Unknown(Failure::TimedOut),
            // Each of these errors says that nothing was applied, and nothing will be.
            Err(_) => Outcome::Failed(Failure::Status(UNAVAILABLE)),
        };
        self.record(name, verb, start, outcome.clone());
        outcome
    }

    /// Reads an object from memory, as a consistent read.
    pub(super) async fn read(&self, plane: &Arc<Plane>, name: &str) {
        let start = self.tape.now();
        let cut = plane.snapshot();
        let answerable = plane.answerable(Instant::now() + READ_PATIENCE).await;
        let outcome = match (answerable, cut.get(&key(name))) {
            (Ok(()), Some(object)) => {
                let (version, value) = content(&object);
                Outcome::Object { version, value }
            }
            (Ok(()), None) => Outcome::Refused(Refusal::NotFound),
            (Err(_), _) => Outcome::Failed(Failure::Status(UNAVAILABLE)),
        };
        self.record(name, Verb::Get, start, outcome);
    }

    fn record(&self, name: &str, verb: Verb, start: Moment, outcome: Outcome) {
        let operation = Recorded {
            client: self.id,
            plane: self.tape.plane.clone(),
            object: name.into(),
            verb,
            start,
            end: self.tape.now(),
            outcome,
        };
        self.tape.history.lock().operations.push(operation);
    }

    /// Reads everything, as a consistent read.
    pub(super) async fn list(&self, plane: &Arc<Plane>) -> Option<Cut> {
        let start = self.tape.now();
        let snapshot = plane.snapshot();
        let answerable = plane.answerable(Instant::now() + READ_PATIENCE).await;
        let scope = everything();
        let objects = snapshot.range(&scope, Start::First);
        let items = objects
            .map(|object| (object.key().name().into(), content(&object)))
            .collect();
        let cut = Cut {
            version: number(snapshot.version()),
            items,
        };
        let outcome = match answerable {
            Ok(()) => Ok(cut),
            Err(_) => Err(Failure::Status(UNAVAILABLE)),
        };
        self.tape.history.lock().listings.push(Listing {
            client: self.id,
            plane: self.tape.plane.clone(),
            start,
            end: self.tape.now(),
            outcome: outcome.clone(),
        });
        outcome.ok()
    }

    /// Begins to watch everything. Nothing is received before [`Watching::receive`].
    pub(super) async fn watch(self, plane: &Arc<Plane>) -> Watching {
        let first = self.list(plane).await.expect("the owner answers");
        let watch = Watch {
            client: self.id,
            plane: self.tape.plane.clone(),
            since: self.tape.now(),
            first,
            sessions: Vec::new(),
        };
        Watching {
            client: self,
            watch,
        }
    }
}

/// A watch between two connections.
pub(super) struct Watching {
    client: Client,
    watch: Watch,
}

/// A watch whose events are being received.
pub(super) struct Receiving {
    stop: CancellationToken,
    task: tokio::task::JoinHandle<Watching>,
    reached: Arc<AtomicU64>,
}

impl Receiving {
    /// Breaks the connection.
    pub(super) async fn break_off(self) -> Watching {
        self.stop.cancel();
        self.task.await.expect("the watcher does not fail")
    }

    /// Waits until the watch has delivered a version. Returns whether it did in time.
    pub(super) async fn reaches(&self, version: Number, patience: Duration) -> bool {
        let deadline = Instant::now() + patience;
        while self.reached.load(Ordering::Acquire) < version.0 {
            if Instant::now() >= deadline {
                return false;
            }
            sleep(Duration::from_millis(2)).await;
        }
        true
    }
}

impl Watching {
    /// Connects to the plane's present owner, and again whenever a session ends.
    pub(super) fn receive(mut self, town: &Arc<Town>, birth: &Birth) -> Receiving {
        let stop = CancellationToken::new();
        let reached = Arc::new(AtomicU64::new(0));
        let (town, birth, stopped) = (Arc::clone(town), birth.clone(), stop.clone());
        let told = Arc::clone(&reached);
        let task = tokio::spawn(async move {
            while !stopped.is_cancelled() {
                let found = stopped.run_until_cancelled(town.find(&birth)).await;
                if let Some(plane) = found {
                    self.session(&plane, &stopped, &told).await;
                    sleep(Duration::from_millis(2)).await;
                }
            }
            self
        });
        Receiving {
            stop,
            task,
            reached,
        }
    }

    async fn session(&mut self, plane: &Arc<Plane>, stop: &CancellationToken, told: &AtomicU64) {
        let from = self.watch.reached();
        let mut session = Session {
            from,
            start: self.client.tape.now(),
            events: Vec::new(),
            end: SessionEnd::Broken,
        };
        let after = WatchFrom::After(Version::from_raw(from.0));
        let opened = plane.watch(WatchScope::Prefix(everything()), after).await;
        let mut watcher = match opened {
            Ok(watcher) => watcher,
            Err(error) => {
                session.end = match error {
                    polyplane_plane::WatchError::Expired(_) => SessionEnd::Expired,
                    polyplane_plane::WatchError::Future { .. }
                    | polyplane_plane::WatchError::Unavailable
                    | polyplane_plane::WatchError::Ended(_) => SessionEnd::Refused(UNAVAILABLE),
                };
                return self.watch.sessions.push(session);
            }
        };
        while let Some(next) = stop.run_until_cancelled(watcher.next()).await {
            let now = self.client.tape.now();
            match next {
                Next::Events(events) => {
                    let changes = events.iter().map(|event| (now, change(event)));
                    session.events.extend(changes);
                }
                Next::Bookmark(version) => {
                    session.events.push((now, Event::Bookmark(number(version))));
                }
                Next::Lagged => {
                    session.end = SessionEnd::Expired;
                    break;
                }
                Next::Closed(Ended::Closed | Ended::Lost | Ended::Moved) => {
                    session.end = SessionEnd::Closed;
                    break;
                }
                Next::Closed(Ended::Deleted | Ended::KindChanged) => {
                    session.end = SessionEnd::Error(UNAVAILABLE);
                    break;
                }
            }
            let newest = session.events.last().map(|(_, event)| event.version().0);
            told.fetch_max(newest.unwrap_or_default(), Ordering::AcqRel);
        }
        self.watch.sessions.push(session);
    }

    /// Ends the watch and records the events that it has delivered.
    pub(super) fn finish(self) {
        self.client.tape.history.lock().watches.push(self.watch);
    }
}

fn change(event: &polyplane_plane::Event) -> Event {
    let change = match (event.previous(), event.current()) {
        (None, _) => Change::Added,
        (Some(_), Some(_)) => Change::Modified,
        (Some(_), None) => Change::Deleted,
    };
    let object = event.current().or(event.previous());
    let (_, value) = content(object.expect("an event is about an object"));
    Event::Change {
        change,
        object: event.key().name().into(),
        version: number(event.version()),
        value,
    }
}

fn everything() -> Prefix {
    Prefix::resource("", "configmaps")
}

fn number(version: Version) -> Number {
    Number(version.raw())
}

/// Returns the version and the value of a published object.
fn content(object: &ObjectRef) -> (Number, Value) {
    let version = object.version().expect("it is published");
    let body: serde_json::Value = serde_json::from_slice(&object.body()).expect("JSON");
    let value = body["data"]["k"]
        .as_str()
        .and_then(|text| text.parse().ok());
    (number(version), Value(value.expect("a number was written")))
}
