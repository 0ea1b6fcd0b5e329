//! A backend with a few planes and no store. The name of an object and the parameters of a request
//! say how it answers. The plane `stuck` never wakes.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use bytes::Bytes;
use futures_util::{StreamExt as _, stream};
use polyplane_apimachinery::schema::Schemas;
use polyplane_apimachinery::status::{ApiError, Qualified};
use polyplane_auth::{
    Authentication, Authenticator, ChainJudge, ClientCa, Credentials, Denied, Masters, PublicRules,
    SYSTEM_MASTERS, StaticToken, StaticTokens, UnionAuthenticator, UserInfo, Verdict,
};
use polyplane_fairness::PlaneMeter;
use polyplane_pki::{Identity, Pki};
use polyplane_registry::strategy::Strategy;
use polyplane_registry::{
    AccessCheck, Answer, AnswerBody, Authority, ChainedAuthorizer, Features, KindTable, Kinds,
    Outcome, ResourceRequest, StreamEnd, Verb, WatchChunk, WatchProgress, WatchStream,
};
use polyplane_server::{
    Backend, BoxFuture, CheckScope, Config, HealthCheck, LocateError, Location, Options, PlaneApi,
    PlaneRecord, PlaneReference, StopHandle, Stopped,
};
use tokio::sync::Notify;
use tokio::task::JoinHandle;

/// How long an update of `held` holds its thread at most.
const HELD_MAX: Duration = Duration::from_secs(20);
/// Bytes of the answer to a GET of `large`.
pub const LARGE_BYTES: usize = 1 << 20;
/// A token that is not judged, for lack of a place.
pub const CROWDED: &str = "crowded";
/// A token of an administrator that is judged once the gate is notified.
pub const UNDECIDED: &str = "undecided";

#[derive(Debug)]
struct NoBehaviour;

impl Strategy for NoBehaviour {}

/// Returns the built-in kinds.
pub fn kinds() -> Arc<KindTable> {
    let schemas = include_bytes!("../../../batteries/data/schemas.json");
    let rows = include_bytes!("../../../batteries/data/rows.json");
    let mut schemas = Schemas::parse(schemas).expect("the schemas are sound");
    let discovery = include_bytes!("../../../batteries/data/discovery.json");
    schemas
        .extend(discovery)
        .expect("so are those of discovery");
    let schemas = Arc::new(schemas);
    let gates = include_bytes!("../../../batteries/data/gates.json");
    let features = Features::parse(gates, b"[]").expect("the gates are sound");
    let behaviour = |_: &str, _: &str, _: &str| Some(Arc::new(NoBehaviour) as Arc<dyn Strategy>);
    let table = KindTable::build(&[rows], schemas, Arc::new(features), &behaviour, 1);
    Arc::new(table.expect("the rows are sound"))
}

/// Members of `system:masters` may do everything, and everybody may read what is public.
pub fn authority() -> Authority {
    Authority::new(vec![
        ChainedAuthorizer::fixed(Arc::new(Masters)),
        ChainedAuthorizer::fixed(Arc::new(PublicRules)),
    ])
}

pub struct Fake {
    knowledge: Knowledge,
    planes: Vec<Arc<Plane>>,
    waits: Arc<AtomicUsize>,
}

/// What a fake knows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Knowledge {
    /// All planes.
    Planes,
    /// The root plane alone, as long as its replica has not joined a ring.
    RootAlone,
}

pub struct Plane {
    name: &'static str,
    ca: ClientCa,
    tokens: UnionAuthenticator,
    authority: Authority,
    kinds: Arc<KindTable>,
    woken: Arc<AtomicUsize>,
    meter: Arc<PlaneMeter>,
    /// When notified, lets requests for objects called `gate` continue.
    pub gate: Arc<Notify>,
    /// Set by a GET of `release`, for which an update of `held` holds its thread.
    released: AtomicBool,
    large: Arc<AtomicUsize>,
}

/// The answer to a GET of `large`, which is counted as long as any of it is in memory.
struct Large {
    bytes: Vec<u8>,
    count: Arc<AtomicUsize>,
}

impl Large {
    fn counted(count: &Arc<AtomicUsize>) -> Bytes {
        count.fetch_add(1, Ordering::SeqCst);
        Bytes::from_owner(Self {
            bytes: vec![b'x'; LARGE_BYTES],
            count: Arc::clone(count),
        })
    }
}

impl AsRef<[u8]> for Large {
    fn as_ref(&self) -> &[u8] {
        &self.bytes
    }
}

impl Drop for Large {
    fn drop(&mut self) {
        self.count.fetch_sub(1, Ordering::SeqCst);
    }
}

/// A server of others that has no place for [`CROWDED`], takes its time for [`UNDECIDED`], and knows no other token.
struct Crowd {
    gate: Arc<Notify>,
}

impl Authenticator for Crowd {
    fn authenticate<'a>(&'a self, credentials: &'a Credentials<'a>) -> Verdict<'a, Authentication> {
        Verdict::now(match credentials.bearer {
            Some(CROWDED) => Authentication::Denied(Denied::Crowded),
            Some(UNDECIDED) => {
                return Verdict::later(async {
                    self.gate.notified().await;
                    let admin = UserInfo::new("admin", &[SYSTEM_MASTERS]);
                    Authentication::User(Arc::new(admin))
                });
            }
            Some(_) | None => Authentication::NoOpinion,
        })
    }
}

/// A plane behind an `Arc`, because the trait needs an owned value.
struct Handle(Arc<Plane>);

impl Backend for Fake {
    fn schemas(&self) -> Arc<Schemas> {
        Arc::clone(self.planes[0].kinds.schemas())
    }

    fn knows_planes(&self) -> bool {
        self.knowledge == Knowledge::Planes
    }

    fn locate<'a>(
        &'a self,
        plane: PlaneReference<'a>,
    ) -> Verdict<'a, Result<Arc<dyn PlaneRecord>, LocateError>> {
        let name = match plane {
            PlaneReference::Root => "root",
            PlaneReference::Named(_) | PlaneReference::Id(_)
                if self.knowledge == Knowledge::RootAlone =>
            {
                return Verdict::now(Err(LocateError::Unavailable));
            }
            PlaneReference::Named("down") => return Verdict::now(Err(LocateError::Unavailable)),
            PlaneReference::Named("leaving") => return Verdict::now(Err(LocateError::Deleting)),
            PlaneReference::Named("unheard") | PlaneReference::Id("unheard") => {
                return Verdict::later(async {
                    self.waits.fetch_add(1, Ordering::SeqCst);
                    tokio::task::yield_now().await;
                    Err(LocateError::NotFound)
                });
            }
            PlaneReference::Named(name) | PlaneReference::Id(name) => name,
        };
        let found = self.planes.iter().find(|plane| plane.name == name);
        Verdict::now(match found {
            Some(plane) => Ok(Arc::new(Handle(Arc::clone(plane)))),
            None => Err(LocateError::NotFound),
        })
    }

    fn checks(&self) -> Vec<HealthCheck> {
        vec![HealthCheck {
            name: "store",
            scope: CheckScope::Ready,
            check: Arc::new(|| Ok(())),
        }]
    }
}

impl PlaneRecord for Handle {
    fn name(&self) -> &str {
        self.0.name
    }

    fn id(&self) -> &str {
        self.0.name
    }

    fn location(&self) -> Location {
        Location::Here
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

    fn wake(&self) -> Verdict<'_, Result<Arc<dyn PlaneApi>, LocateError>> {
        self.0.woken.fetch_add(1, Ordering::Relaxed);
        if self.0.name == "stuck" {
            return Verdict::later(std::future::pending());
        }
        Verdict::now(Ok(Arc::new(Handle(Arc::clone(&self.0)))))
    }
}

impl PlaneApi for Handle {
    fn kinds(&self) -> Kinds {
        Kinds::new(Arc::clone(&self.0.kinds), None)
    }

    fn access_check(&self, _: tokio::time::Instant) -> AccessCheck<'_> {
        self.0.authority.access_check_without_plane()
    }

    fn handle(&self, request: ResourceRequest) -> BoxFuture<'_, Result<Answer, ApiError>> {
        Box::pin(answer(&self.0, request))
    }
}

fn json(outcome: Outcome, body: Vec<Bytes>) -> Answer {
    Answer {
        outcome,
        content_type: "application/json".into(),
        warnings: Vec::new(),
        body: AnswerBody::Slices(body),
    }
}

/// Returns, as JSON, what the fake received of a request.
fn seen(plane: &Plane, request: &ResourceRequest) -> Bytes {
    let query: Vec<_> = request
        .query
        .iter()
        .map(|(key, value)| format!("{key}={value}"))
        .collect();
    let seen = serde_json::json!({
        "plane": plane.name,
        "verb": request.verb.name(),
        "group": request.group.as_str(),
        "version": request.version.as_str(),
        "resource": request.resource.as_str(),
        "namespace": request.namespace.as_deref(),
        "name": request.name.as_deref(),
        "subresource": request.subresource.as_deref(),
        "query": query.join("&"),
        "accept": request.accept,
        "type": request.content_type,
        "user": request.user.name.as_str(),
        "body": String::from_utf8_lossy(&request.body),
    });
    format!("{seen}\n").into()
}

async fn answer(plane: &Plane, request: ResourceRequest) -> Result<Answer, ApiError> {
    let name = request.name.as_deref().unwrap_or("");
    match (request.verb, name) {
        (Verb::Get, "missing") => Err(ApiError::not_found(
            Qualified::new("", &request.resource),
            name,
        )),
        (Verb::Get, "busy") => Err(ApiError::too_many_requests("later", 7)),
        (Verb::Get, "forever") => std::future::pending().await,
        (Verb::Get, "panic") => panic!("asked for"),
        (Verb::Get, "gate") => {
            plane.gate.notified().await;
            Ok(json(Outcome::Ok, vec![seen(plane, &request)]))
        }
        (Verb::Get, "large") => Ok(json(Outcome::Ok, vec![Large::counted(&plane.large)])),
        (Verb::Get, "release") => {
            plane.released.store(true, Ordering::SeqCst);
            Ok(json(Outcome::Ok, vec![seen(plane, &request)]))
        }
        (Verb::Update, "held") => {
            let began = Instant::now();
            while !plane.released.load(Ordering::SeqCst) {
                if began.elapsed() > HELD_MAX {
                    return Err(ApiError::internal("nobody released it"));
                }
                std::thread::yield_now();
            }
            Ok(json(Outcome::Ok, vec![seen(plane, &request)]))
        }
        (Verb::Create, _) => {
            let mut answer = json(Outcome::Created, vec![seen(plane, &request)]);
            answer.warnings = vec!["unknown field \"spec.x\"".to_owned()];
            Ok(answer)
        }
        (Verb::List, _) => Ok(list(plane, &request)),
        (Verb::Watch, _) if parameter(&request, "limit") == "never" => std::future::pending().await,
        (Verb::Watch, _) => Ok(watch(plane, &request)),
        _ => Ok(json(Outcome::Ok, vec![seen(plane, &request)])),
    }
}

/// Returns the first value of a parameter by which a test instructs this fake, or an empty text.
fn parameter<'a>(request: &'a ResourceRequest, name: &str) -> &'a str {
    let found = request.query.iter().find(|(key, _)| key == name);
    found.map_or("", |(_, value)| value)
}

/// Returns `limit` items of 1 KiB, in slices or, with `continue=stream`, as a stream.
fn list(plane: &Plane, request: &ResourceRequest) -> Answer {
    let count = parameter(request, "limit").parse().unwrap_or(0_usize);
    if count == 0 {
        return json(Outcome::Ok, vec![seen(plane, request)]);
    }
    let mut slices = vec![Bytes::from_static(b"{\"items\":[")];
    for number in 0..count {
        let comma = if number > 0 { "," } else { "" };
        slices.push(format!("{comma}\"{number:06}{}\"", "x".repeat(1016)).into());
    }
    slices.push(Bytes::from_static(b"]}\n"));
    if parameter(request, "continue") != "stream" {
        return json(Outcome::Ok, slices);
    }
    let body = stream::iter(slices.into_iter().map(Ok));
    Answer {
        body: AnswerBody::Stream(Box::pin(body)),
        ..json(Outcome::Ok, Vec::new())
    }
}

/// Sends three events and then nothing. With `limit=broken` the source fails after them; with
/// `limit=flood` events of 1 KiB follow without end; with `limit=never`, handled by the caller, the
/// watch does not even begin.
fn watch(plane: &Plane, request: &ResourceRequest) -> Answer {
    let first = seen(plane, request);
    let chunk = |bytes| WatchChunk {
        bytes,
        progress: WatchProgress::Initial,
    };
    let events = [first, "{\"n\":2}\n".into(), "{\"n\":3}\n".into()];
    let events = stream::iter(events.map(|event| Ok(chunk(event))));
    let body: WatchStream = match parameter(request, "limit") {
        "broken" => Box::pin(events.chain(stream::iter([Err(StreamEnd::Lagged)]))),
        "flood" => {
            let event = Bytes::from(format!("\"{}\"\n", "x".repeat(1021)));
            Box::pin(events.chain(stream::repeat(chunk(event)).map(Ok)))
        }
        _ => Box::pin(events.chain(stream::pending())),
    };
    Answer {
        outcome: Outcome::Ok,
        content_type: "application/json".into(),
        warnings: Vec::new(),
        body: AnswerBody::Watch(body),
    }
}

/// A running server, its folder and its credentials.
pub struct Running {
    pub address: std::net::SocketAddr,
    pub pki: Arc<Pki>,
    pub admin: Identity,
    /// Signs certificates for the plane `team-b` only.
    pub other_ca: Pki,
    pub stop: StopHandle,
    pub served: JoinHandle<Stopped>,
    pub woken: Arc<AtomicUsize>,
    /// The number of requests that waited for the directory.
    pub waits: Arc<AtomicUsize>,
    pub gate: Arc<Notify>,
    /// The number of answers to GETs of `large` that are in memory.
    pub large: Arc<AtomicUsize>,
    /// What the root plane has used.
    pub root_meter: Arc<PlaneMeter>,
    _folder: tempfile::TempDir,
}

pub async fn start() -> Running {
    start_with(|_| {}).await
}

/// Starts a server whose configuration `change` may change.
pub async fn start_with(change: impl FnOnce(&mut Config)) -> Running {
    start_knowing(Knowledge::Planes, change).await
}

/// Starts a server that does not know its planes yet.
pub async fn start_early() -> Running {
    start_knowing(Knowledge::RootAlone, |_| {}).await
}

async fn start_knowing(knowledge: Knowledge, change: impl FnOnce(&mut Config)) -> Running {
    let folder = tempfile::tempdir().expect("a folder");
    let options = Options {
        data_folder: folder.path().to_owned(),
        listen: vec!["127.0.0.1:0".to_owned()],
        ..Options::default()
    };
    let completed = options.complete().expect("the options are sound");
    let listeners = completed.listen().await.expect("a free port");
    let mut config = completed.configure().expect("keys are made");
    change(&mut config);
    let pki = Arc::clone(&config.pki);
    let other_ca = Pki::load_or_create(&folder.path().join("other")).expect("keys are made");
    let (kinds, gate) = (kinds(), Arc::new(Notify::new()));
    let woken = Arc::new(AtomicUsize::new(0));
    let large = Arc::new(AtomicUsize::new(0));
    let plane = |name, ca: &Pki| {
        let user = |name: &str, groups: &[&str]| UserInfo::new(name, groups);
        Arc::new(Plane {
            name,
            ca: ClientCa::new(std::slice::from_ref(ca.root())).expect("a root"),
            tokens: UnionAuthenticator::new(vec![
                Arc::new(StaticTokens::new(vec![
                    StaticToken::new(pki.admin_token(), user("admin", &[SYSTEM_MASTERS])),
                    StaticToken::new("member", user("jane", &["dev"])),
                ])),
                Arc::new(Crowd {
                    gate: Arc::clone(&gate),
                }),
            ]),
            authority: authority(),
            kinds: Arc::clone(&kinds),
            woken: Arc::clone(&woken),
            meter: Arc::default(),
            gate: Arc::clone(&gate),
            released: AtomicBool::new(false),
            large: Arc::clone(&large),
        })
    };
    let waits = Arc::new(AtomicUsize::new(0));
    let root = plane("root", &pki);
    let root_meter = Arc::clone(&root.meter);
    let fake = Fake {
        knowledge,
        waits: Arc::clone(&waits),
        planes: vec![
            root,
            plane("team-a", &pki),
            plane("team-b", &other_ca),
            plane("stuck", &pki),
        ],
    };
    let server = config.build(Arc::new(fake), listeners);
    let address = server.addresses()[0];
    let stop = server.stop_handle();
    Running {
        address,
        admin: pki
            .issue_client("admin", &[SYSTEM_MASTERS])
            .expect("issued"),
        pki,
        other_ca,
        stop,
        served: tokio::spawn(server.run()),
        woken,
        waits,
        gate,
        large,
        root_meter,
        _folder: folder,
    }
}
