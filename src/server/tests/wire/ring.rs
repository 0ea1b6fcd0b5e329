//! A few servers that forward to each other, in front of one plane that tests can move.
//!
//! The plane is a list of events and a list of the creates that were carried out. One replica owns
//! it; tests can make replicas believe in a wrong owner.

use std::collections::VecDeque;
use std::net::SocketAddr;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use async_trait::async_trait;
use bytes::Bytes;
use futures_util::stream;
use parking_lot::Mutex;
use polyplane_apimachinery::schema::Schemas;
use polyplane_apimachinery::status::ApiError;
use polyplane_auth::{
    Authenticator, BootstrapToken, ChainJudge, ClientCa, Credentials, SYSTEM_MASTERS, StaticToken,
    StaticTokens, UserInfo, Verdict,
};
use polyplane_fairness::PlaneMeter;
use polyplane_ownership::{PeerHandler, PeerMessage, PeerReply, PeerRequest};
use polyplane_pki::{Identity, PeerTls, Pki};
use polyplane_registry::request::options::{Bookmarks, InitialEvents, ListOptions, ListPurpose};
use polyplane_registry::{
    AccessCheck, Answer, AnswerBody, Authority, KindTable, Kinds, Outcome, ResourceRequest,
    StreamEnd, Verb, WatchChunk, WatchProgress, WatchStream,
};
use polyplane_server::{
    Backend, BoxFuture, Config, LocateError, Location, NotJudged, Options, Peer, PeerLimits,
    PeerTransport, Peering, PlaneApi, PlaneRecord, PlaneReference, StopHandle, Stopped,
};
use tokio::net::TcpListener;
use tokio::sync::watch;
use tokio::task::JoinHandle;

use crate::client::{Client, Protocol};
use crate::fake::{authority, kinds};

/// The bootstrap token that proves somebody.
pub const GOOD_TOKEN: &str = "abcdef.0123456789abcdef";
/// The bootstrap token for which the plane has been woken too often.
pub const SLEEPY_TOKEN: &str = "sleepy.0123456789abcdef";

/// The true state of the plane, whatever replicas believe.
#[derive(Clone, Default)]
pub struct Truth {
    pub owner: Option<usize>,
    /// The newest version; event `n` has version `n`, from 1.
    pub head: u64,
}

/// The plane, and records of everything that replicas did with it.
pub struct World {
    pub truth: watch::Sender<Truth>,
    /// For each replica, where it believes the plane; `None` if it knows the truth.
    pub beliefs: Mutex<Vec<Option<Location>>>,
    pub peers: Mutex<Vec<Peer>>,
    /// For each replica, the id of the plane that has the name there.
    pub ids: Mutex<Vec<&'static str>>,
    /// True if the other replicas get no answers to their pings from the first one.
    pub is_first_silent: AtomicBool,
    /// The number of times that a request was not sent to the first replica because it answered no
    /// pings.
    pub held: AtomicUsize,
    /// The bodies of creates that were carried out, each with its replica.
    pub created: Mutex<Vec<(usize, String)>>,
    /// The replicas that judged a bootstrap token, each time that they did.
    pub judged: Mutex<Vec<usize>>,
    /// The number of requests that reached a plane.
    pub asked: AtomicUsize,
    /// The number of requests that were dropped before they were answered.
    pub dropped: AtomicUsize,
    /// True if the first replica hangs: its watches send nothing and do not end.
    pub is_first_frozen: AtomicBool,
    /// True if the plane is asleep and its owner cannot wake it.
    pub cannot_wake: AtomicBool,
    /// True if no replica may answer from memory.
    pub is_store_away: AtomicBool,
    /// The number of times that an owner did not answer for that reason.
    pub kept_waiting: AtomicUsize,
    /// The number of initial events after which the first replica hangs; 0 if it does not.
    pub first_stops_after: AtomicUsize,
    /// The number of chunks of long lists that were read.
    pub chunks: AtomicUsize,
    /// The messages that replicas received: replica, sender, message and length of the payload.
    pub messages: Mutex<Vec<(usize, String, PeerMessage, usize)>>,
    kinds: Arc<KindTable>,
}

impl World {
    pub fn move_to(&self, owner: usize) {
        self.truth.send_modify(|truth| truth.owner = Some(owner));
    }

    pub fn tell(&self, events: u64) {
        self.truth.send_modify(|truth| truth.head += events);
    }
}

/// The world as one replica sees it.
struct Seen {
    index: usize,
    world: Arc<World>,
    ca: ClientCa,
    tokens: StaticTokens,
    authority: Authority,
    meter: Arc<PlaneMeter>,
}

struct Handle(Arc<Seen>);

impl Backend for Handle {
    fn schemas(&self) -> Arc<Schemas> {
        Arc::clone(kinds().schemas())
    }

    fn locate<'a>(
        &'a self,
        plane: PlaneReference<'a>,
    ) -> Verdict<'a, Result<Arc<dyn PlaneRecord>, LocateError>> {
        Verdict::now(match plane {
            PlaneReference::Root | PlaneReference::Named("team-a") => {
                Ok(Arc::new(Handle(Arc::clone(&self.0))) as Arc<dyn PlaneRecord>)
            }
            PlaneReference::Named(_) | PlaneReference::Id(_) => Err(LocateError::NotFound),
        })
    }

    fn may_answer(&self) -> bool {
        let is_away = self.0.world.is_store_away.load(Ordering::SeqCst);
        let waiting = &self.0.world.kept_waiting;
        waiting.fetch_add(usize::from(is_away), Ordering::SeqCst);
        !is_away
    }

    fn stale_reason(&self) -> Option<&'static str> {
        let is_away = self.0.world.is_store_away.load(Ordering::SeqCst);
        is_away.then_some("the store is away")
    }

    fn view(&self) -> u64 {
        7
    }

    fn answers(&self, peer: &Peer) -> bool {
        let is_silent = self.0.world.is_first_silent.load(Ordering::SeqCst);
        let answers = !is_silent || peer.replica != "polyplane-0";
        let held = usize::from(!answers);
        self.0.world.held.fetch_add(held, Ordering::SeqCst);
        answers
    }
}

impl PlaneRecord for Handle {
    fn name(&self) -> &str {
        "team-a"
    }

    fn id(&self) -> &str {
        self.0.world.ids.lock()[self.0.index]
    }

    fn location(&self) -> Location {
        let world = &self.0.world;
        if let Some(belief) = &world.beliefs.lock()[self.0.index] {
            return belief.clone();
        }
        match world.truth.borrow().owner {
            None => Location::Nobody,
            Some(owner) if owner == self.0.index => Location::Here,
            Some(owner) => Location::There(world.peers.lock()[owner].clone()),
        }
    }

    fn meter(&self) -> &Arc<PlaneMeter> {
        &self.0.meter
    }

    fn clients(&self) -> &dyn ChainJudge {
        &self.0.ca
    }

    fn bearer(&self) -> &dyn Authenticator {
        &self.0.tokens
    }

    fn takes_bootstrap_tokens(&self) -> bool {
        true
    }

    fn bootstrapper<'a>(
        &'a self,
        token: &'a BootstrapToken,
        _: &'a Credentials<'a>,
        _: tokio::time::Instant,
    ) -> BoxFuture<'a, Result<Option<Arc<UserInfo>>, NotJudged>> {
        self.0.world.judged.lock().push(self.0.index);
        let is = |text: &str| BootstrapToken::read(text).as_ref() == Some(token);
        Box::pin(std::future::ready(match () {
            () if is(GOOD_TOKEN) => Ok(Some(Arc::new(token.user()))),
            () if is(SLEEPY_TOKEN) => Err(NotJudged::TooManyWakes),
            () => Ok(None),
        }))
    }

    fn wake(&self) -> Verdict<'_, Result<Arc<dyn PlaneApi>, LocateError>> {
        if self.0.world.cannot_wake.load(Ordering::SeqCst) {
            let why = "no space".to_owned();
            return Verdict::later(async { Err(LocateError::StoreReadOnly(why)) });
        }
        Verdict::now(Ok(Arc::new(Handle(Arc::clone(&self.0)))))
    }
}

impl PlaneApi for Handle {
    fn kinds(&self) -> Kinds {
        Kinds::new(Arc::clone(&self.0.world.kinds), None)
    }

    fn access_check(&self, _: tokio::time::Instant) -> AccessCheck<'_> {
        self.0.authority.access_check_without_plane()
    }

    fn handle(&self, request: ResourceRequest) -> BoxFuture<'_, Result<Answer, ApiError>> {
        Box::pin(answer(Arc::clone(&self.0), request))
    }
}

fn answer_of(outcome: Outcome, body: AnswerBody) -> Answer {
    Answer {
        outcome,
        content_type: "application/json".into(),
        warnings: Vec::new(),
        body,
    }
}

/// Counts a request if it is dropped before its answer.
struct Dropped(Option<Arc<World>>);

impl Drop for Dropped {
    fn drop(&mut self) {
        if let Some(world) = &self.0 {
            world.dropped.fetch_add(1, Ordering::SeqCst);
        }
    }
}

async fn answer(seen: Arc<Seen>, request: ResourceRequest) -> Result<Answer, ApiError> {
    let world = &seen.world;
    world.asked.fetch_add(1, Ordering::SeqCst);
    if world.truth.borrow().owner != Some(seen.index) {
        return Err(ApiError::moved());
    }
    match (request.verb, request.name.as_deref().unwrap_or("")) {
        (Verb::Watch, _) => Ok(answer_of(
            Outcome::Ok,
            AnswerBody::Watch(events(Arc::clone(&seen), &request)),
        )),
        (Verb::List, _) => {
            let count = parameter(&request, "limit").parse().unwrap_or(1_usize);
            let world = Arc::clone(world);
            let chunks = (0..count).map(move |number| {
                world.chunks.fetch_add(1, Ordering::SeqCst);
                Ok(Bytes::from(format!("{number:07}{}\n", "x".repeat(65_528))))
            });
            let body = AnswerBody::Stream(Box::pin(stream::iter(chunks)));
            Ok(answer_of(Outcome::Ok, body))
        }
        (_, "forever") => {
            let _dropped = Dropped(Some(Arc::clone(world)));
            std::future::pending().await
        }
        (Verb::Create, _) => {
            let text = String::from_utf8_lossy(&request.body).into_owned();
            world.created.lock().push((seen.index, text));
            if parameter(&request, "fieldManager") == "broken" {
                std::future::pending::<()>().await;
            }
            Ok(answer_of(Outcome::Created, about(&seen, &request)))
        }
        _ => Ok(answer_of(Outcome::Ok, about(&seen, &request))),
    }
}

fn about(seen: &Seen, request: &ResourceRequest) -> AnswerBody {
    let left = request
        .deadline
        .saturating_duration_since(tokio::time::Instant::now());
    let about = serde_json::json!({
        "replica": seen.index,
        "user": request.user.name.as_str(),
        "groups": request.user.groups.iter().map(|group| group.as_str()).collect::<Vec<_>>(),
        "accept": request.accept,
        "secondsLeft": left.as_secs(),
        "body": String::from_utf8_lossy(&request.body),
    });
    AnswerBody::Slices(vec![format!("{about}\n").into()])
}

/// Returns the bookmark after the initial events. It begins with a space, which no registry writes.
/// A forwarding replica that parses lines instead of reading records therefore takes it for an
/// event, and the test fails.
fn initial_end(version: u64) -> String {
    format!(
        "{{ \"type\":\"BOOKMARK\",\"object\":{{\"kind\":\"Pod\",\"metadata\":{{\"resourceVersion\":\
         \"{version}\",\"annotations\":{{\"k8s.io/initial-events-end\":\"true\"}}}}}}}}\n"
    )
}

fn event(kind: &str, version: u64) -> String {
    format!(
        "{{\"type\":\"{kind}\",\"object\":{{\"kind\":\"Pod\",\"metadata\":\
         {{\"name\":\"p{version}\",\"resourceVersion\":\"{version}\"}}}}}}\n"
    )
}

fn chunk(lines: String, progress: WatchProgress) -> WatchChunk {
    WatchChunk {
        bytes: lines.into(),
        progress,
    }
}

/// Returns the first value of a parameter by which a test instructs this fake, or an empty text.
fn parameter<'a>(request: &'a ResourceRequest, name: &str) -> &'a str {
    let found = request.query.iter().find(|(key, _)| key == name);
    found.map_or("", |(_, value)| value)
}

/// Returns the events after the version in the request, or all events in reverse order and a
/// bookmark. The watch ends with a move once the replica does not own the plane any more. Options
/// are read as the registry reads them.
fn events(seen: Arc<Seen>, request: &ResourceRequest) -> WatchStream {
    let options = ListOptions::parse(request, ListPurpose::Watch).expect("sound options");
    let asked: u64 = options.resource_version.parse().unwrap_or(0);
    let is_initial = match options.initial_events {
        Some(initial) => initial == InitialEvents::Send,
        None => asked == 0,
    };
    let head = seen.world.truth.borrow().head;
    let mut first = VecDeque::new();
    let stops_after = match seen.world.first_stops_after.load(Ordering::SeqCst) {
        count if count > 0 && seen.index == 0 => count,
        _ => usize::MAX,
    };
    let told = if is_initial {
        let initial = (1..=head).rev().take(stops_after);
        let initial: String = initial.map(|version| event("ADDED", version)).collect();
        first.extend((!initial.is_empty()).then(|| chunk(initial, WatchProgress::Initial)));
        let ends = options.initial_events.is_some() && options.bookmarks == Bookmarks::Welcome;
        if ends && stops_after == usize::MAX {
            first.push_back(chunk(initial_end(head), WatchProgress::Bookmark(head)));
        }
        head
    } else {
        asked
    };
    let is_stopped = is_initial && stops_after < usize::MAX;
    let truth = seen.world.truth.subscribe();
    let state = (seen, truth, told, first, false);
    Box::pin(stream::unfold(
        state,
        move |(seen, mut truth, told, mut first, over)| async move {
            if over {
                return None;
            }
            if let Some(chunk) = first.pop_front() {
                return Some((Ok(chunk), (seen, truth, told, first, false)));
            }
            loop {
                let now = truth.borrow_and_update().clone();
                if is_stopped {
                    std::future::pending::<()>().await;
                }
                if seen.index == 0 && seen.world.is_first_frozen.load(Ordering::SeqCst) {
                    std::future::pending::<()>().await;
                }
                if now.owner != Some(seen.index) {
                    let end = Err(StreamEnd::Moved {
                        sent_up_to: Some(told),
                    });
                    return Some((end, (seen, truth, told, first, true)));
                }
                if now.head > told {
                    let next = told + 1;
                    let event = chunk(event("ADDED", next), WatchProgress::Events(next));
                    return Some((Ok(event), (seen, truth, next, first, false)));
                }
                truth.changed().await.ok()?;
            }
        },
    ))
}

struct Messages(usize, Arc<World>);

#[async_trait]
impl PeerHandler for Messages {
    async fn handle(&self, from: &polyplane_ring::ReplicaId, request: PeerRequest) -> PeerReply {
        let heard = (
            self.0,
            from.as_str().to_owned(),
            request.message,
            request.payload.len(),
        );
        self.1.messages.lock().push(heard);
        PeerReply::Pong { view: 7 }
    }
}

/// A running replica.
pub struct Replica {
    pub address: SocketAddr,
    pub peer: Peer,
    pub transport: Arc<PeerTransport>,
    pub stop: StopHandle,
    pub served: Option<JoinHandle<Stopped>>,
}

/// All replicas, and the state that they share.
pub struct Ring {
    pub world: Arc<World>,
    pub replicas: Vec<Replica>,
    pub pki: Arc<Pki>,
    pub admin: Identity,
    pub folder: tempfile::TempDir,
}

impl Ring {
    /// Starts `count` replicas; the first owns the plane.
    pub async fn start(count: usize) -> Self {
        Self::start_with(count, |_| {}).await
    }

    pub async fn start_with(count: usize, change: impl Fn(&mut Config)) -> Self {
        Self::start_limited(count, &PeerLimits::default(), change).await
    }

    /// Starts a ring with these limits for the connections between replicas.
    pub async fn start_limited(
        count: usize,
        limits: &PeerLimits,
        change: impl Fn(&mut Config),
    ) -> Self {
        Self::start_prepared(count, limits, |_| {}, change).await
    }

    /// Starts a ring to whose folder of certificates `prepare` adds files first.
    pub async fn start_prepared(
        count: usize,
        limits: &PeerLimits,
        prepare: impl FnOnce(&Path),
        change: impl Fn(&mut Config),
    ) -> Self {
        let folder = tempfile::tempdir().expect("a folder");
        let truth = Truth {
            owner: Some(0),
            head: 3,
        };
        let world = Arc::new(World {
            truth: watch::Sender::new(truth),
            beliefs: Mutex::new(vec![None; count]),
            peers: Mutex::default(),
            ids: Mutex::new(vec!["p-1"; count]),
            is_first_silent: AtomicBool::new(false),
            held: AtomicUsize::new(0),
            created: Mutex::default(),
            judged: Mutex::default(),
            asked: AtomicUsize::new(0),
            dropped: AtomicUsize::new(0),
            is_first_frozen: AtomicBool::new(false),
            cannot_wake: AtomicBool::new(false),
            is_store_away: AtomicBool::new(false),
            kept_waiting: AtomicUsize::new(0),
            first_stops_after: AtomicUsize::new(0),
            chunks: AtomicUsize::new(0),
            messages: Mutex::default(),
            kinds: kinds(),
        });
        let pki = Arc::new(Pki::load_or_create(&folder.path().join("pki")).expect("made"));
        prepare(&folder.path().join("pki"));
        let mut ring = Self {
            admin: pki
                .issue_client("carla", &[SYSTEM_MASTERS])
                .expect("issued"),
            world,
            replicas: Vec::new(),
            pki,
            folder,
        };
        for index in 0..count {
            ring.add(index, limits, &change).await;
        }
        ring
    }

    async fn add(&mut self, index: usize, limits: &PeerLimits, change: impl Fn(&mut Config)) {
        let options = Options {
            data_folder: self.folder.path().to_owned(),
            listen: vec!["127.0.0.1:0".to_owned()],
            ..Options::default()
        };
        let completed = options.complete().expect("the options are sound");
        let listeners = completed.listen().await.expect("a free port");
        let peer_listener = TcpListener::bind("127.0.0.1:0").await.expect("a free port");
        let mut config = completed.configure().expect("keys are there");
        let peer = Peer {
            replica: format!("polyplane-{index}"),
            address: peer_listener.local_addr().expect("bound").to_string(),
        };
        let tls = PeerTls::load_or_create(&self.folder.path().join("pki"), &peer.replica);
        let transport = PeerTransport::new(tls.expect("made"), limits.clone());
        config.peering = Some(Peering {
            transport: Arc::clone(&transport),
            handler: Arc::new(Messages(index, Arc::clone(&self.world))),
            listeners: vec![peer_listener],
        });
        change(&mut config);
        self.world.peers.lock().push(peer.clone());
        let admin = UserInfo::new("admin", &[SYSTEM_MASTERS]);
        let seen = Seen {
            index,
            world: Arc::clone(&self.world),
            ca: ClientCa::new(std::slice::from_ref(self.pki.root())).expect("a root"),
            tokens: StaticTokens::new(vec![
                StaticToken::new(self.pki.admin_token(), admin),
                StaticToken::new("member", UserInfo::new("jane", &["dev"])),
            ]),
            authority: authority(),
            meter: Arc::default(),
        };
        let mut server = config.build(Arc::new(Handle(Arc::new(seen))), listeners);
        let peers = server.serve_peers();
        self.replicas.push(Replica {
            address: server.addresses()[0],
            peer,
            transport,
            stop: server.stop_handle(),
            served: Some(tokio::spawn(async move {
                let stopped = server.run().await;
                peers.close().await;
                stopped
            })),
        });
    }

    /// Connects an administrator's client to one replica.
    pub async fn client(&self, index: usize) -> Client {
        let token = Some(self.pki.admin_token());
        let address = self.replicas[index].address;
        Client::to(address, &self.pki, Protocol::Http2, token, None).await
    }

    /// Aborts a replica, and waits until its connections are closed.
    pub async fn kill(&mut self, index: usize) {
        self.replicas[index].stop.abort();
        let served = self.replicas[index].served.take().expect("it runs");
        served.await.expect("stopped");
    }
}
