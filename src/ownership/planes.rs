//! The planes of one store at this replica: where each plane is, which ones are awake, and how a
//! plane wakes. The files of the folder add methods to [`Planes`], so they and this file name each
//! other.
//!
//! A plane that is not used is only a row of the root plane: it has no task, no timer, no slot
//! here, and its fence is released. `take` acquires and loads, `release` hands off and puts to
//! sleep, `delete` deletes, `rebalance` follows the ring.

pub(crate) mod delete;
pub(crate) mod fence_driver;
mod fence_sweep;
pub(crate) mod inspect;
pub(crate) mod level_floor;
pub(crate) mod metrics;
pub(crate) mod options;
mod peer_handler;
pub(crate) mod plane_slot;
mod rebalance;
pub(crate) mod release;
pub(crate) mod rewrap;
mod streamed_states;
mod suspend;
mod take;

use crate::copy::record::{CopyRecordError, read_numbering};
use crate::directory::Directory;
use crate::directory::birth::Birth;
use crate::membership::ring::Ring;
use crate::peers::PeerError;
use crate::planes::fence_driver::FenceDriver;
use crate::planes::level_floor::FloorSeen;
use crate::planes::metrics::{PlaneMetrics, PlanesStats};
use crate::planes::options::PlanesOptions;
use crate::planes::plane_slot::{PlaneSlot, WakeResult, WakeStep};
use crate::planes::streamed_states::StreamedStates;
use crate::records::Damaged;
use bytes::Bytes;
use parking_lot::Mutex;
use polyplane_plane::{
    Committer, Ended, LayerHash, Layers, Memory, Numbering, OpenError, Plane, Version,
};
use polyplane_ring::{Member, Pin, PlaneId};
use polyplane_storage::{CommitError, Compare, Op, ReadError, Revision, Store, Txn};
use prometheus::proto::MetricFamily;
use serde::{Deserialize, Serialize};
use std::collections::{BTreeMap, HashMap};
use std::sync::{Arc, OnceLock, Weak};
use std::time::{Duration, Instant};
use tokio::sync::{Semaphore, broadcast, watch};
use tokio_util::sync::CancellationToken;
use uuid::Uuid;

/// The root plane's id.
pub const ROOT: &str = "root";
pub(crate) const ROOT_KEY: &str = "root";
pub(crate) const SECRET_KEY: &str = "secret";
const SECRET_BYTES: usize = 32;
/// Number of planes that are handed off at once. More would make each hand-off, and so each plane's
/// pause, longer.
const HAND_OFFS_MAX: usize = 16;
/// The longest time that a wake waits until this replica has a member key.
const LIFE_PATIENCE: Duration = Duration::from_secs(5);

/// The reason why no plane of a store can be served.
#[derive(Debug, thiserror::Error)]
pub enum StartError {
    /// The store could not be read.
    #[error("cannot read the store")]
    Read(#[from] ReadError),
    /// The store refused the records that a new store needs, or their outcome is unknown.
    #[error("cannot prepare the store")]
    Commit(#[from] CommitError),
    /// A record of the store was not written by this program.
    #[error("the store's record {0:?} is damaged")]
    Damaged(&'static str),
    /// The store is a copy that is not complete, or its copy record was not written by this program.
    #[error("the store is no complete copy")]
    Copy(#[source] CopyRecordError),
    /// The store's level floor was not written by this program.
    #[error("the store's level floor cannot be decoded")]
    Floor(#[from] Damaged),
}

/// The reason why a plane cannot be woken.
#[derive(Debug, Clone, thiserror::Error)]
pub enum WakeError {
    /// The plane cannot be loaded.
    #[error("cannot load the control plane")]
    Open(#[source] Arc<OpenError>),
    /// The plane's fence cannot be acquired for now, because of the store, of its holder or of this
    /// replica's membership. A later attempt may succeed.
    #[error("the control plane is not available for now: {0}")]
    Unavailable(Unavailable),
    /// The plane is being deleted.
    #[error("the control plane is being deleted")]
    Deleted,
    /// The plane is suspended: nothing wakes it.
    #[error("the control plane is suspended")]
    Suspended,
    /// Another member serves the plane or should serve it; `None` if no such member is known.
    #[error("another replica serves the control plane")]
    Moved(Option<Box<Member>>),
}

/// The location of a plane, as far as this replica knows from memory.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum PlaneLocation {
    /// This replica holds the plane or should acquire it.
    Here,
    /// This member holds the plane or should acquire it.
    There(Member),
    /// The view has no member.
    Nobody,
}

/// The reason why a plane's fence cannot be acquired for now.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Unavailable {
    /// This replica has no member key.
    #[error("this replica is not in the ring")]
    NotInRing,
    /// The member key was lost while the fence was being acquired.
    #[error("this replica lost its member key")]
    MemberKeyLost,
    /// Another replica took the fence before the plane could be served.
    #[error("another replica took the fence")]
    FenceLost,
    /// The fence was changed while it was being acquired.
    #[error("the fence has changed")]
    FenceChanged,
    /// The fence could not be read.
    #[error("the fence cannot be read: {0}")]
    FenceUnreadable(Arc<ReadError>),
    /// The store refuses writes.
    #[error("the store accepts no writes")]
    StoreReadOnly,
    /// The plane's holder is handing over as many other planes as it may at once.
    #[error("its holder is handing other control planes over")]
    HolderBusy,
    /// The plane's holder tried to hand it over and failed, for the reason it gives.
    #[error("{0}")]
    HolderFailed(String),
    /// The plane's holder gave an answer that the protocol does not allow.
    #[error("its holder gave a wrong answer")]
    HolderConfused,
    /// The plane's holder gave no answer.
    #[error("its holder gave no answer: {0}")]
    HolderUnreachable(PeerError),
    /// No attempt succeeded in time, and none gave another reason.
    #[error("no attempt succeeded in time")]
    TimedOut,
    /// The task that acquired the plane has ended or panicked.
    #[error("the task that acquired it has ended")]
    TaskEnded,
}

/// The planes of one store.
pub struct Planes {
    me: Weak<Self>,
    ring: Arc<Ring>,
    committer: Arc<Committer>,
    layers: Arc<Layers>,
    /// The layer of the store's first planes. Planes are born with it until the floor names
    /// another.
    first_layer: LayerHash,
    floor: FloorSeen,
    options: PlanesOptions,
    secret: Bytes,
    numbering: Numbering,
    root: (Version, String),
    started: Instant,
    slots: Mutex<HashMap<String, Arc<PlaneSlot>>>,
    streamed_states: StreamedStates,
    /// The directory, which knows where users want planes; unset until
    /// [`Planes::attach_directory`].
    directory: OnceLock<Arc<Directory>>,
    /// Limits hand-offs to others. Incoming states have limits of their own, so that two replicas
    /// that swap planes never wait for each other (PROTOCOL 19).
    hand_off_permits: Semaphore,
    metrics: PlaneMetrics,
    pub(crate) taken: broadcast::Sender<String>,
    /// Cancelled when the service ends: no plane is acquired any more.
    closing: CancellationToken,
}

#[derive(Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
struct RootRecord {
    born_at: String,
    layer: String,
}

impl Planes {
    /// Prepares a store for planes: writes the root plane's record and the secret if it is new.
    /// `now` is the time, RFC 3339; `layer` is the layer of planes born from now on.
    ///
    /// # Errors
    /// See [`StartError`].
    pub async fn start(
        ring: Arc<Ring>,
        options: PlanesOptions,
        now: &str,
        layer: &LayerHash,
    ) -> Result<(Arc<Self>, LayerHash), StartError> {
        let store = Arc::clone(ring.store());
        let record = RootRecord {
            born_at: now.to_owned(),
            layer: layer.0.clone(),
        };
        let record = serde_json::to_vec(&record).expect("a record is plain data");
        let (created, record) = ensure(&store, ROOT_KEY, record).await?;
        let record: RootRecord =
            serde_json::from_slice(&record).map_err(|_| StartError::Damaged(ROOT_KEY))?;
        let mut secret = Vec::with_capacity(SECRET_BYTES);
        while secret.len() < SECRET_BYTES {
            secret.extend_from_slice(Uuid::new_v4().as_bytes());
        }
        let (_, secret) = ensure(&store, SECRET_KEY, secret).await?;
        let floor = FloorSeen::read(&store).await?;
        let (numbering, _) = read_numbering(&store).await?.map_err(StartError::Copy)?;
        let of_store = || Version::new(numbering.planes.base, created, 0);
        let born = numbering.root_born.unwrap_or_else(of_store);
        let planes = Arc::new_cyclic(|me| Self {
            me: me.clone(),
            ring,
            committer: Committer::with_sealing(
                Arc::clone(&store),
                Arc::clone(&options.memory),
                options.sealing.clone(),
            ),
            streamed_states: StreamedStates::new(Arc::clone(&options.memory)),
            layers: Layers::new(store),
            first_layer: LayerHash(record.layer.clone()),
            floor,
            options,
            secret,
            numbering: numbering.planes,
            root: (born, record.born_at),
            started: Instant::now(),
            slots: Mutex::default(),
            directory: OnceLock::new(),
            hand_off_permits: Semaphore::new(HAND_OFFS_MAX),
            metrics: PlaneMetrics::default(),
            taken: broadcast::Sender::new(crate::planes::take::TAKEN_MAX),
            closing: CancellationToken::new(),
        });
        planes.allow_by(&planes.floor());
        crate::planes::rebalance::start(&planes);
        crate::planes::level_floor::follow(&planes);
        Ok((planes, LayerHash(record.layer)))
    }

    /// Returns the store.
    pub fn store(&self) -> &Arc<dyn Store> {
        self.ring.store()
    }

    /// Follows the pins of the directory from now on: a plane's row decides where it belongs,
    /// whatever its birth says, and a plane that is awake moves when its row changes. Call this
    /// once.
    pub fn attach_directory(&self, directory: &Arc<Directory>) {
        if self.directory.set(Arc::clone(directory)).is_ok() {
            crate::planes::rebalance::follow_pins(self.me.clone(), directory.pin_changes());
        }
    }

    /// Returns the memory budget of all planes.
    pub fn memory(&self) -> &Arc<Memory> {
        &self.options.memory
    }

    /// Returns how the store numbers the history of its planes.
    pub fn numbering(&self) -> Numbering {
        self.numbering
    }

    /// Returns the ring that this replica is in.
    pub fn ring(&self) -> &Arc<Ring> {
        &self.ring
    }

    /// Returns the cache of layers that planes are opened with.
    pub fn layers(&self) -> &Arc<Layers> {
        &self.layers
    }

    /// Returns the layer that planes are born with now. Every binary that may still join knows it.
    pub fn birth_layer(&self) -> LayerHash {
        let floor = self.floor();
        floor.layer.unwrap_or_else(|| self.first_layer.clone())
    }

    /// Returns the root plane's birth.
    pub fn root_birth(&self, layer: LayerHash, params: BTreeMap<String, String>) -> Birth {
        let (born, born_at) = self.root.clone();
        Birth {
            id: ROOT.to_owned(),
            base: self.numbering.base.0,
            layer,
            born,
            born_at,
            params,
            directory: None,
            pin: Pin::Anywhere,
        }
    }

    /// Returns the location of a plane, from memory alone: here if it is held or being acquired
    /// here, else where the newest view places it.
    pub fn location(&self, birth: &Birth) -> PlaneLocation {
        let slot = self.slots.lock().get(&birth.id).cloned();
        if slot.is_some_and(|slot| slot.is_here()) {
            return PlaneLocation::Here;
        }
        match self.designated(birth) {
            Some(member) if self.ring.is_own(&member) => PlaneLocation::Here,
            Some(member) => PlaneLocation::There(member),
            None => PlaneLocation::Nobody,
        }
    }

    /// Returns a plane that is awake.
    pub fn awake(&self, id: &str) -> Option<Arc<Plane>> {
        let slot = self.known(id)?;
        let awake = slot.awake()?;
        slot.touch(self.seconds());
        Some(awake.plane)
    }

    /// Returns a plane that is awake. The call does not count as use.
    pub fn awake_unused(&self, id: &str) -> Option<Arc<Plane>> {
        self.known(id)?.awake().map(|awake| awake.plane)
    }

    /// Returns all planes that are awake.
    pub fn all_awake(&self) -> Vec<Arc<Plane>> {
        let slots = self.slots();
        let awake = slots.iter().filter_map(|slot| slot.awake());
        awake.map(|awake| awake.plane).collect()
    }

    /// Returns metrics: how long moves of planes and commits took, and their outcomes.
    pub fn collect(&self) -> Vec<MetricFamily> {
        let mut families = self.metrics.collect();
        families.extend(self.committer.collect());
        families
    }

    /// Returns metrics about planes and their moves.
    pub fn stats(&self) -> PlanesStats {
        let slots = self.slots();
        let epochs = slots.iter().filter_map(|slot| slot.fence.epoch());
        let (owned, epoch_max) = epochs.fold((0, 0), |(owned, max), epoch| {
            (owned + 1, max.max(epoch.get()))
        });
        let awake = slots.iter().filter(|slot| slot.awake().is_some()).count();
        self.metrics.stats(owned, awake, epoch_max)
    }

    /// Returns the plane. Acquires and loads it if it is not in memory; concurrent calls load it
    /// once.
    ///
    /// # Errors
    /// See [`WakeError`].
    ///
    /// # Cancel safety
    /// A wake that has begun continues after the caller is dropped.
    pub async fn wake(&self, birth: &Birth) -> Result<Arc<Plane>, WakeError> {
        loop {
            if self.closing.is_cancelled() {
                return Err(WakeError::Moved(self.designated(birth).map(Box::new)));
            }
            if self.is_suspended(&birth.id) {
                return Err(WakeError::Suspended);
            }
            let slot = self.slot(birth).await?;
            let mut woken = match slot.begin_wake(self.seconds()) {
                WakeStep::Ready(plane) => return Ok(plane),
                WakeStep::LookAgain => continue,
                WakeStep::WaitForTask => {
                    drop(slot.busy().await);
                    continue;
                }
                WakeStep::WaitForWake(woken) => woken,
                WakeStep::Start {
                    wake_result,
                    woken,
                    lost,
                } => {
                    if let Some(lost) = lost {
                        self.metrics().conflict();
                        lost.plane.end(Ended::Lost);
                    }
                    let planes = self.me.upgrade().expect("it is borrowed right now");
                    tokio::spawn(planes.wake_slot(slot, wake_result));
                    woken
                }
            };
            match woken.wait_for(Option::is_some).await {
                Ok(woken) => {
                    if let Some(woken) = woken.clone() {
                        return woken;
                    }
                }
                Err(_) => {
                    return Err(WakeError::Unavailable(Unavailable::TaskEnded));
                }
            }
        }
    }

    /// Acquires and loads the plane of a slot, and notifies every waiting call. After a wake that
    /// failed or panicked, the next one starts from the beginning.
    async fn wake_slot(
        self: Arc<Self>,
        slot: Arc<PlaneSlot>,
        wake_result: watch::Sender<Option<WakeResult>>,
    ) {
        let busy = slot.busy().await;
        let (planes, taken) = (Arc::clone(&self), Arc::clone(&slot));
        // A task of its own contains a panic, so the waiting calls get an answer.
        let woken = tokio::spawn(async move { planes.take_and_load(&taken).await }).await;
        let woken = woken.unwrap_or_else(|panic| {
            tracing::error!(plane = slot.birth.id, %panic, "waking a control plane panicked");
            Err(WakeError::Unavailable(Unavailable::TaskEnded))
        });
        if woken.is_err() {
            slot.abandon_wake();
        }
        drop(busy);
        if woken.is_err() {
            self.drop_if_idle(&slot);
        }
        wake_result.send_replace(Some(woken));
    }

    /// Returns the plane's slot in this life. Creates it if there is none.
    async fn slot(&self, birth: &Birth) -> Result<Arc<PlaneSlot>, WakeError> {
        let life = self.ring.await_life(LIFE_PATIENCE).await;
        let life = life.ok_or(WakeError::Unavailable(Unavailable::NotInRing))?;
        let mut slots = self.slots.lock();
        if let Some(slot) = slots.get(&birth.id)
            && Arc::ptr_eq(slot.fence.life(), &life)
        {
            return Ok(Arc::clone(slot));
        }
        let fence = FenceDriver::new(Arc::clone(self.store()), life, birth);
        let slot = PlaneSlot::new(birth.clone(), fence);
        // A slot of an earlier life holds no fence any more; only its plane must be ended.
        if let Some(old) = slots.insert(birth.id.clone(), Arc::clone(&slot)) {
            drop(slots);
            crate::planes::rebalance::end_slot(old);
        }
        Ok(slot)
    }
}

/// Methods for the other files of this crate.
impl Planes {
    pub(crate) fn options(&self) -> &PlanesOptions {
        &self.options
    }

    /// Returns the directory of all planes, once attached.
    pub(crate) fn directory(&self) -> Option<&Arc<Directory>> {
        self.directory.get()
    }

    pub(crate) fn committer(&self) -> &Arc<Committer> {
        &self.committer
    }

    pub(crate) fn floor_seen(&self) -> &FloorSeen {
        &self.floor
    }

    pub(crate) fn secret(&self) -> &[u8] {
        &self.secret
    }

    pub(crate) fn hand_off_permits(&self) -> &Semaphore {
        &self.hand_off_permits
    }

    /// Returns an owned handle for a task; `None` while the planes are being dropped.
    pub(crate) fn shared(&self) -> Option<Arc<Self>> {
        self.me.upgrade()
    }

    pub(crate) fn metrics(&self) -> &PlaneMetrics {
        &self.metrics
    }

    pub(crate) fn streamed_states(&self) -> &StreamedStates {
        &self.streamed_states
    }

    pub(crate) fn closing(&self) -> &CancellationToken {
        &self.closing
    }

    pub(crate) fn seconds(&self) -> u64 {
        self.started.elapsed().as_secs()
    }

    /// Returns all slots at this moment.
    pub(crate) fn slots(&self) -> Vec<Arc<PlaneSlot>> {
        self.slots.lock().values().cloned().collect()
    }

    /// Returns the slot of a plane, if there is one.
    pub(crate) fn known(&self, id: &str) -> Option<Arc<PlaneSlot>> {
        self.slots.lock().get(id).cloned()
    }

    /// Returns the slot of a plane in this life, to acquire or delete the plane.
    pub(crate) async fn slot_of(&self, birth: &Birth) -> Result<Arc<PlaneSlot>, WakeError> {
        self.slot(birth).await
    }

    /// Removes a slot from the map if it holds nothing, no task works on it and no call waits for
    /// it.
    pub(crate) fn drop_if_idle(&self, slot: &Arc<PlaneSlot>) {
        self.end_if_lost(slot);
        let mut slots = self.slots.lock();
        let same = slots.get(&slot.birth.id);
        if same.is_some_and(|known| Arc::ptr_eq(known, slot)) && slot.retire_if_idle() {
            slots.remove(&slot.birth.id);
        }
    }

    /// Removes a slot whose life is over from the map.
    pub(crate) fn drop_dead(&self, slot: &Arc<PlaneSlot>) {
        let mut slots = self.slots.lock();
        let same = slots.get(&slot.birth.id);
        if same.is_some_and(|known| Arc::ptr_eq(known, slot)) {
            slots.remove(&slot.birth.id);
        }
    }

    /// Returns the member that should own a plane, by the newest view; `None` for an invalid id.
    pub fn designated(&self, birth: &Birth) -> Option<Member> {
        let id: PlaneId = birth.id.parse().ok()?;
        let entry = self.directory.get().and_then(|rows| rows.by_id(&birth.id));
        let pin = entry.as_ref().map_or(&birth.pin, |entry| &entry.pin);
        self.ring.designated(&id, pin)
    }

    /// Returns whether this replica should own a plane, by the newest view.
    pub(crate) fn designated_here(&self, birth: &Birth) -> bool {
        let designated = self.designated(birth);
        designated.is_some_and(|member| self.ring.is_own(&member))
    }
}

impl Drop for Planes {
    fn drop(&mut self) {
        self.closing.cancel();
    }
}

/// Returns the value at a key and the revision that created it. Puts `value` first if the key is
/// absent.
async fn ensure(
    store: &Arc<dyn Store>,
    key: &'static str,
    value: Vec<u8>,
) -> Result<(Revision, Bytes), StartError> {
    let bytes = Bytes::from_static(key.as_bytes());
    if let (_, Some(found)) = store.get(&bytes).await? {
        return Ok((found.created, found.value));
    }
    let value = Bytes::from(value);
    let put = Op::Put {
        key: bytes.clone(),
        value: value.clone(),
        lease: None,
    };
    let txn = Txn {
        compares: vec![Compare::Absent { key: bytes.clone() }],
        ops: vec![put],
    };
    match store.commit(txn).await {
        Ok(committed) => Ok((committed.revision, value)),
        // Another replica put the key first: its value counts.
        Err(CommitError::Refused { found, .. }) => {
            let found = found.into_iter().flatten().find(|found| found.key == bytes);
            let found = found.ok_or(StartError::Damaged(key))?;
            Ok((found.created, found.value))
        }
        Err(error) => Err(error.into()),
    }
}
