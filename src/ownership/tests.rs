//! Several replicas in one process on one store: rings, planes, and peers that are function calls
//! with delays and cuts.

mod alone;
mod chaos;
mod contact;
mod copies;
mod crashes;
mod cut_off;
mod frozen;
mod hand_offs;
mod membership;
mod refusals;
mod seeds;
mod tape;
mod terms;

use std::collections::{BTreeMap, HashMap};
use std::sync::{Arc, Weak};
use std::time::Duration;

use async_trait::async_trait;
use parking_lot::Mutex;
use polyplane_fencing::LeaseTerms;
use polyplane_plane::{
    Base, Committed, Flags, Key, Layer, LogBounds, NewObject, Operation, Plane, Snapshot,
    SubmitError, Version, Write, external,
};
use polyplane_ring::PlaneId;
use polyplane_storage::{FaultyStore, MemoryOptions, MemoryStore, Op, Revision, Store, Txn};
use tokio::time::{Instant, sleep};

use crate::*;

/// The longest time that anything in a test may take before it counts as failed.
const PATIENCE: Duration = Duration::from_secs(20);

/// A store with the replicas on it.
struct Town {
    store: Arc<dyn Store>,
    wires: Arc<Wires>,
    layer: Arc<Layer>,
    replicas: Mutex<BTreeMap<String, Arc<Replica>>>,
}

/// One replica, with a store of its own that fails on request.
struct Replica {
    ring: Arc<Ring>,
    planes: Arc<Planes>,
    store: Arc<FaultyStore>,
}

/// The connections between the replicas.
#[derive(Default)]
struct Wires {
    /// The planes of each replica that can be reached.
    listening: Mutex<HashMap<ReplicaId, Weak<Planes>>>,
    /// Pairs of replicas: calls from the first to the second get no answer.
    cut: Mutex<Vec<(ReplicaId, ReplicaId)>>,
    /// Pairs of replicas: connections from the first to the second end before any answer, as at a
    /// listener that others have filled.
    ending: Mutex<Vec<(ReplicaId, ReplicaId)>>,
    /// Replicas whose certificates no other one trusts, and which trust no other one's.
    strangers: Mutex<Vec<ReplicaId>>,
    /// Replicas at whose addresses another one answers.
    misplaced: Mutex<Vec<ReplicaId>>,
    /// Replicas whose own certificates have expired.
    expired: Mutex<Vec<ReplicaId>>,
    /// The CAs that replicas name; one that is not here names none.
    trusts: Mutex<HashMap<ReplicaId, PeerTrust>>,
    delay: Mutex<Duration>,
}

struct Wire {
    from: ReplicaId,
    wires: Arc<Wires>,
}

#[async_trait]
impl Peers for Wire {
    async fn call(&self, to: &Member, request: PeerRequest) -> Result<PeerReply, PeerError> {
        let delay = *self.wires.delay.lock();
        sleep(delay).await;
        let cut = (self.from.clone(), to.id.clone());
        if self.wires.cut.lock().contains(&cut) {
            std::future::pending::<()>().await;
        }
        if self.wires.ending.lock().contains(&cut) {
            return Err(PeerError::Ended("closed".to_owned()));
        }
        let is_stranger = |one: &ReplicaId| self.wires.strangers.lock().contains(one);
        if to.id != self.from && (is_stranger(&self.from) || is_stranger(&to.id)) {
            return Err(PeerError::Untrusted("unknown issuer".to_owned()));
        }
        if self.wires.misplaced.lock().contains(&to.id) {
            let text = format!("{}: this is replica x", to.address);
            return Err(PeerError::OtherReplica(text));
        }
        let listening = self.wires.listening.lock().get(&to.id).cloned();
        let planes = listening.and_then(|planes| planes.upgrade());
        let planes = planes.ok_or(PeerError::Refused)?;
        Ok(planes.handle(&self.from, request).await)
    }

    fn trust(&self) -> Option<PeerTrust> {
        self.wires.trusts.lock().get(&self.from).cloned()
    }

    fn own_invalidity(&self) -> Option<String> {
        let is_expired = self.wires.expired.lock().contains(&self.from);
        is_expired.then(|| "it expired".to_owned())
    }
}

fn id(name: &str) -> ReplicaId {
    name.parse().expect("a replica id")
}

fn options(name: &str) -> ReplicaOptions {
    ReplicaOptions {
        member_ttl: Duration::from_secs(1),
        ..ReplicaOptions::new(id(name), format!("{name}:1").parse().expect("an address"))
    }
}

/// Joins a replica that has no planes.
async fn joined(store: &Arc<dyn Store>, options: ReplicaOptions) -> Result<Arc<Ring>, JoinError> {
    let ring = Ring::newcomer(Arc::clone(store), options, Arc::new(NoPeers)).await?;
    ring.join().await?;
    Ok(ring)
}

impl Town {
    fn new() -> Arc<Self> {
        Self::over(Arc::new(MemoryStore::new(MemoryOptions::default())))
    }

    fn over(store: Arc<dyn Store>) -> Arc<Self> {
        Arc::new(Self {
            store,
            wires: Arc::default(),
            layer: Layer::empty(),
            replicas: Mutex::default(),
        })
    }

    async fn join(self: &Arc<Self>, name: &str) -> Arc<Replica> {
        self.join_as(options(name)).await
    }

    async fn join_as(self: &Arc<Self>, options: ReplicaOptions) -> Arc<Replica> {
        let name = options.id.clone();
        let store = Arc::new(FaultyStore::new(Arc::clone(&self.store)));
        let wire = Wire {
            from: name.clone(),
            wires: Arc::clone(&self.wires),
        };
        let ring = Ring::newcomer(store.clone(), options, Arc::new(wire)).await;
        let ring = ring.expect("the store is for it");
        let planes_options = PlanesOptions {
            derived_params: None,
            indexes: Vec::new(),
            derivation: None,
            summarize: None,
            log: LogBounds::default(),
            memory: Arc::default(),
            sealing: None,
            idle: Duration::from_secs(3600),
        };
        let now = "2026-01-01T00:00:00Z";
        let started = Planes::start(Arc::clone(&ring), planes_options, now, self.layer.hash());
        let (planes, _) = started.await.expect("the store can be used");
        planes
            .layers()
            .bring(&self.layer)
            .await
            .expect("it is stored");
        let listener = Arc::downgrade(&planes);
        // Listens before it joins, because every member must be reachable.
        self.wires.listening.lock().insert(name.clone(), listener);
        ring.join().await.expect("it joins");
        let replica = Arc::new(Replica {
            ring,
            planes,
            store,
        });
        let known = Arc::clone(&replica);
        self.replicas.lock().insert(name.to_string(), known);
        replica
    }

    /// Ends the process of a replica and its listener without any message.
    fn crash(&self, name: &str) -> Arc<Replica> {
        self.wires.listening.lock().remove(&id(name));
        let replica = self.replicas.lock().remove(name).expect("it runs");
        replica.ring.vanish();
        replica
    }

    /// Creates a plane: puts its directory record and returns its birth.
    async fn plane(&self, name: &str) -> Birth {
        let key = external::object_key(ROOT, &Key::new("polyplane.dev", "planes", None, name));
        let put = Op::Put {
            key: key.clone(),
            value: external::encode(&object(name, "plane")),
            lease: None,
        };
        let txn = Txn {
            compares: Vec::new(),
            ops: vec![put],
        };
        let created = self.store.commit(txn).await.expect("it is put").revision;
        Birth {
            id: name.to_owned(),
            base: 0,
            layer: self.layer.hash().clone(),
            born: Version::new(Base(0), created, 0),
            born_at: "2026-01-01T00:00:00Z".to_owned(),
            params: BTreeMap::new(),
            directory: Some(DirectoryKey { key, created }),
            pin: Pin::Anywhere,
        }
    }

    /// Returns a plane that `owner` is designated for while all replicas of `ring` are members.
    async fn plane_of(&self, owner: &str, ring: &[&str]) -> Birth {
        let members = ring.iter().map(|name| member(name));
        let view = View::new(ViewNumber::new(1), members);
        let placed = |n: usize| {
            let plane: PlaneId = format!("plane-{n}").parse().expect("a plane id");
            let designated = view.designated(&plane, &Pin::Anywhere);
            designated.is_some_and(|member| member.id == id(owner))
        };
        let n = (0..1000).find(|n| placed(*n)).expect("one of a thousand");
        self.plane(&format!("plane-{n}")).await
    }

    fn any(&self) -> Arc<Replica> {
        let replicas = self.replicas.lock();
        Arc::clone(replicas.values().next().expect("somebody runs"))
    }

    /// Returns the plane, awake at its owner, as a request at any replica finds it.
    async fn find(&self, birth: &Birth) -> Arc<Plane> {
        let deadline = Instant::now() + PATIENCE;
        let mut replica = self.any();
        loop {
            match replica.planes.wake(birth).await {
                Ok(plane) => return plane,
                Err(WakeError::Moved(Some(member))) => {
                    let known = self.replicas.lock().get(member.id.as_str()).cloned();
                    replica = known.unwrap_or_else(|| self.any());
                }
                Err(WakeError::Moved(None) | WakeError::Unavailable(_)) => replica = self.any(),
                Err(error) => panic!("the plane cannot be had: {error:?}"),
            }
            assert!(Instant::now() < deadline, "the plane is nobody's");
            sleep(Duration::from_millis(5)).await;
        }
    }

    /// Writes as a client of the ring does: tries again at the new owner what the old one refused
    /// because it lost the plane.
    async fn write(&self, birth: &Birth, name: &str, value: &str) -> Committed {
        let deadline = Instant::now() + PATIENCE;
        loop {
            let plane = self.find(birth).await;
            let write = Write {
                operations: vec![put(name, value)],
                ..Write::default()
            };
            match plane.submit(write).await {
                Ok(committed) => return committed,
                Err(SubmitError::Lost) => {}
                Err(error) => panic!("a write failed: {error:?}"),
            }
            assert!(Instant::now() < deadline, "a write never got through");
            sleep(Duration::from_millis(2)).await;
        }
    }

    /// Reads as a client of the ring does.
    async fn read(&self, birth: &Birth, name: &str) -> Option<String> {
        let deadline = Instant::now() + PATIENCE;
        loop {
            let plane = self.find(birth).await;
            let cut = plane.snapshot();
            if plane.answerable(deadline).await.is_ok() {
                return value(&cut, name);
            }
            assert!(Instant::now() < deadline, "nobody answers");
        }
    }
}

fn member(name: &str) -> Member {
    Member {
        id: id(name),
        incarnation: polyplane_ring::Incarnation::new(1),
        address: "h:1".parse().expect("an address"),
        zone: None,
        weight: Weight::default(),
        standing: Standing::Serving,
    }
}

/// Returns a config map with one value.
fn object(name: &str, value: &str) -> NewObject {
    let head = format!(r#"{{"metadata":{{"name":"{name}","#);
    let tail = r#""creationTimestamp":"2026-01-01T00:00:00Z"}"#;
    NewObject {
        version_slot: head.len(),
        labels: None,
        body: format!(r#"{head}{tail},"data":{{"k":"{value}"}}}}"#).into(),
        storage_version: "v1".into(),
        expires: None,
        flags: Flags::NONE,
    }
}

fn key(name: &str) -> Key {
    Key::new("", "configmaps", Some("ns"), name)
}

fn put(name: &str, value: &str) -> Operation {
    Operation::Put {
        key: key(name),
        object: object(name, value),
    }
}

fn value(cut: &Snapshot, name: &str) -> Option<String> {
    let object = cut.get(&key(name))?;
    let body: serde_json::Value = serde_json::from_slice(&object.body()).expect("JSON");
    body["data"]["k"].as_str().map(str::to_owned)
}

/// Waits until a condition holds.
async fn until(what: &str, holds: impl Fn() -> bool) {
    let deadline = Instant::now() + PATIENCE;
    while !holds() {
        assert!(Instant::now() < deadline, "never: {what}");
        sleep(Duration::from_millis(5)).await;
    }
}

fn members(replica: &Replica) -> Vec<String> {
    let view = replica.ring.view();
    view.members().map(|member| member.id.to_string()).collect()
}

/// A small random number generator; a seed determines one run.
struct Dice(u64);

impl Dice {
    fn roll(&mut self, sides: u64) -> u64 {
        self.0 = self
            .0
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1);
        (self.0 >> 33) % sides
    }
}

/// Returns the sum of read lease and margin.
fn wait_of(terms: LeaseTerms) -> Duration {
    Duration::from_nanos(terms.read_lease().as_nanos() + terms.margin().as_nanos())
}

/// Returns the store's current revision.
async fn revision(town: &Town) -> Revision {
    town.store.revision().await.expect("it answers")
}

/// The value of a row whose plane is suspended.
const SUSPENDED: &str = "is-suspended";

/// Reads a row of the test's directory. Its value is the replica that the user wants, or none.
fn read_row(body: &[u8]) -> Option<crate::directory::DirectoryRow> {
    let body: serde_json::Value = serde_json::from_slice(body).ok()?;
    let wish = body["data"]["k"].as_str()?;
    Some(crate::directory::DirectoryRow {
        switches: 0,
        data_key_generation: 0,
        id: body["metadata"]["name"].as_str()?.into(),
        layer: "l".into(),
        born_at: "2026-01-01T00:00:00Z".into(),
        pin: match wish {
            SUSPENDED => Pin::Anywhere,
            wish => wish.parse().map_or(Pin::Anywhere, Pin::Replica),
        },
        suspended: wish == SUSPENDED,
        access: Vec::new(),
    })
}

/// Makes a replica follow the directory, whose rows are the planes that the town has created.
async fn follow_directory(town: &Town, replica: &Replica) {
    let rows = polyplane_plane::Prefix::resource("polyplane.dev", "planes");
    let prefix = external::object_prefix(ROOT, &rows);
    let follow = crate::directory::Directory::follow;
    // The directory is followed until the test ends.
    let stop = tokio_util::sync::CancellationToken::new();
    let numbering = replica.planes.numbering();
    let directory = follow(Arc::clone(&town.store), prefix, read_row, numbering, stop).await;
    replica
        .planes
        .attach_directory(&directory.expect("it is read"));
}
