//! The planes this replica serves: woken at first use, put to sleep when nobody needs them.
//!
//! A plane that nobody uses is a row of the root plane and nothing else: no task, no timer, no
//! entry here. One sweep for all planes puts those to sleep that were left alone.

use crate::birth::Birth;
use crate::layers::Layers;
use crate::options::Place;
use bytes::Bytes;
use parking_lot::Mutex;
use polyplane_plane::{
    Base, CommitGuard, Committer, Ended, Index, LayerHash, LayerLink, LogBounds, OpenError, Plane,
    PlaneParams, PlaneRecord, ShelfError, SoleHolder, Version, delete_range, uid_seed,
};
use polyplane_ring::{Member, Pin};
use polyplane_storage::{CommitError, Compare, Op, ReadError, Revision, Store, Txn};
use serde::{Deserialize, Serialize};
use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};
use tokio::sync::OnceCell;
use uuid::Uuid;

/// The root plane's id.
pub const ROOT: &str = "root";
const ROOT_KEY: &str = "root";
const SECRET_KEY: &str = "secret";
const SECRET_BYTES: usize = 32;
const FENCE_PREFIX: &str = "fence/";

/// How planes are served.
#[derive(Clone)]
pub struct PlanesOptions {
    /// Indexes that planes are opened with.
    pub indexes: Vec<Arc<dyn Index>>,
    /// How much of a plane's log is kept.
    pub log: LogBounds,
    /// How long a plane stays awake without being used.
    pub idle: Duration,
    /// Name of this replica, as fences show it.
    pub replica: String,
}

/// Why planes cannot be served from a store at all.
#[derive(Debug, thiserror::Error)]
pub enum StartError {
    /// The store could not be read.
    #[error("cannot read the store")]
    Read(#[from] ReadError),
    /// The store did not take what a new store needs.
    #[error("cannot prepare the store")]
    Commit(#[from] CommitError),
    /// What stands there was not written by this program.
    #[error("the store's record {0:?} is damaged")]
    Damaged(&'static str),
}

/// Why a plane cannot be woken.
#[derive(Debug, thiserror::Error)]
pub enum WakeError {
    /// Its layer cannot be had.
    #[error("cannot get the layer of the control plane")]
    Layer(#[from] ShelfError),
    /// Its fence cannot be taken.
    #[error("cannot take the fence of the control plane")]
    Fence(#[source] CommitError),
    /// It cannot be loaded.
    #[error("cannot load the control plane")]
    Open(#[from] OpenError),
    /// It is being deleted.
    #[error("the control plane is being deleted")]
    Deleted,
    /// It is not to be served here: it is, or is to be, this member's. None if nobody is known.
    #[error("the control plane is another replica's")]
    Moved(Option<Box<Member>>),
}

/// Why a plane's range could not be removed.
#[derive(Debug, thiserror::Error)]
pub enum DeleteError {
    /// Its fence cannot be moved.
    #[error("cannot move the fence of the control plane")]
    Fence(#[source] CommitError),
    /// Its objects cannot be removed.
    #[error("cannot remove the objects of the control plane")]
    Range(#[source] polyplane_plane::DeleteError),
}

/// A fence as it stands in the store.
#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
struct FenceRecord {
    holder: String,
    incarnation: String,
    epoch: u64,
    state: FenceState,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
enum FenceState {
    Held,
    Deleted,
}

struct Slot {
    plane: OnceCell<Arc<Plane>>,
    /// Seconds since this process began at which the plane was last used.
    used: AtomicU64,
}

/// The planes of one store.
pub struct Planes {
    store: Arc<dyn Store>,
    committer: Arc<Committer>,
    layers: Layers,
    options: PlanesOptions,
    secret: Bytes,
    root: (Version, String),
    /// Tells this life of the process from every other.
    incarnation: String,
    started: Instant,
    slots: Mutex<HashMap<String, Arc<Slot>>>,
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
        store: Arc<dyn Store>,
        options: PlanesOptions,
        now: &str,
        layer: &LayerHash,
    ) -> Result<(Arc<Self>, LayerHash), StartError> {
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
        let born = Version::new(Base(0), created, 0);
        let planes = Arc::new(Self {
            committer: Committer::new(Arc::clone(&store)),
            layers: Layers::new(Arc::clone(&store)),
            store,
            options,
            secret,
            root: (born, record.born_at),
            incarnation: Uuid::new_v4().to_string(),
            started: Instant::now(),
            slots: Mutex::new(HashMap::new()),
        });
        Ok((planes, LayerHash(record.layer)))
    }

    /// The store.
    pub fn store(&self) -> &Arc<dyn Store> {
        &self.store
    }

    /// The layers planes are opened with.
    pub fn layers(&self) -> &Layers {
        &self.layers
    }

    /// The root plane's birth.
    pub fn root_birth(&self, layer: LayerHash, params: BTreeMap<String, String>) -> Birth {
        let (born, born_at) = self.root.clone();
        Birth {
            id: ROOT.to_owned(),
            base: 0,
            layer,
            born,
            born_at,
            params,
            directory: None,
            pin: Pin::Anywhere,
        }
    }

    /// Where a plane is. Asks nobody. The only replica of a store has all of them.
    pub fn place(&self, _birth: &Birth) -> Place {
        Place::Here
    }

    /// A plane that is awake.
    pub fn awake(&self, id: &str) -> Option<Arc<Plane>> {
        let slot = self.slots.lock().get(id).cloned()?;
        slot.used.store(self.seconds(), Ordering::Relaxed);
        slot.plane.get().cloned()
    }

    /// All planes that are awake.
    pub fn all_awake(&self) -> Vec<Arc<Plane>> {
        self.slots
            .lock()
            .values()
            .filter_map(|slot| slot.plane.get().cloned())
            .collect()
    }

    fn seconds(&self) -> u64 {
        self.started.elapsed().as_secs()
    }

    /// The plane, loaded if it was asleep. Many who ask at once load it once.
    ///
    /// # Errors
    /// See [`WakeError`].
    pub async fn wake(&self, birth: &Birth) -> Result<Arc<Plane>, WakeError> {
        let slot = {
            let mut slots = self.slots.lock();
            let fresh = || {
                Arc::new(Slot {
                    plane: OnceCell::new(),
                    used: AtomicU64::new(0),
                })
            };
            Arc::clone(slots.entry(birth.id.clone()).or_insert_with(fresh))
        };
        slot.used.store(self.seconds(), Ordering::Relaxed);
        slot.plane
            .get_or_try_init(|| self.open(birth))
            .await
            .cloned()
    }

    async fn open(&self, birth: &Birth) -> Result<Arc<Plane>, WakeError> {
        let layer = self.layers.get(&birth.layer).await?;
        let guard = self.take_fence(&birth.id).await?;
        let record = PlaneRecord {
            id: birth.id.clone(),
            base: birth.base,
            birth: None,
            layers: vec![LayerLink {
                hash: birth.layer.clone(),
                version: None,
            }],
            params: birth.params.clone(),
        };
        let acquired = guard.fence();
        let plane = Plane::open(PlaneParams {
            record,
            born: birth.born,
            born_at: birth.born_at.clone(),
            layer,
            uid_seed: uid_seed(&self.secret, &birth.id, birth.born),
            indexes: self.options.indexes.clone(),
            committer: Arc::clone(&self.committer),
            guard: guard as Arc<dyn CommitGuard>,
            acquired,
            log: self.options.log,
            foreign: None,
            import: None,
        })
        .await?;
        tracing::debug!(plane = birth.id, "woke");
        Ok(plane)
    }

    /// Takes a plane's fence. The store is open in this process alone, which proves every earlier
    /// holder dead, so nobody is asked and nobody waits.
    async fn take_fence(&self, id: &str) -> Result<Arc<SoleHolder>, WakeError> {
        let key = fence_key(id);
        let epoch = match self.fence(&key).await {
            Some(FenceRecord {
                state: FenceState::Deleted,
                ..
            }) => return Err(WakeError::Deleted),
            Some(record) => record.epoch + 1,
            None => 1,
        };
        let value = self.record(epoch, FenceState::Held);
        SoleHolder::take(Arc::clone(&self.store), key, value)
            .await
            .map_err(WakeError::Fence)
    }

    async fn fence(&self, key: &[u8]) -> Option<FenceRecord> {
        let (_, found) = self.store.get(key).await.ok()?;
        serde_json::from_slice(&found?.value).ok()
    }

    fn record(&self, epoch: u64, state: FenceState) -> Vec<u8> {
        let record = FenceRecord {
            holder: self.options.replica.clone(),
            incarnation: self.incarnation.clone(),
            epoch,
            state,
        };
        serde_json::to_vec(&record).expect("a fence is plain data")
    }

    /// Puts planes to sleep that nobody has used or watched for a while, and drops log events that
    /// are too old. For one clock that runs for all planes together.
    pub async fn sweep(&self) {
        let idle = self.options.idle.as_secs();
        let now = self.seconds();
        let mut sleepy = Vec::new();
        {
            let mut slots = self.slots.lock();
            slots.retain(|id, slot| {
                let Some(plane) = slot.plane.get() else {
                    return true;
                };
                plane.sweep_log();
                let unused = now.saturating_sub(slot.used.load(Ordering::Relaxed)) >= idle;
                let stats = plane.stats();
                let sleeps = id != ROOT && unused && stats.watchers == 0 && stats.queued == 0;
                if sleeps {
                    sleepy.push(Arc::clone(plane));
                }
                !sleeps
            });
        }
        for plane in sleepy {
            plane.close(Ended::Closed).await;
            tracing::debug!(plane = plane.id(), "went to sleep");
        }
    }

    /// Ends a plane for good: nobody is answered any more, its fence is put to Deleted, its
    /// objects are removed. Calling again goes on where it stopped.
    ///
    /// # Errors
    /// See [`DeleteError`].
    pub async fn delete(&self, id: &str) -> Result<(), DeleteError> {
        let slot = self.slots.lock().remove(id);
        if let Some(plane) = slot.and_then(|slot| slot.plane.get().cloned()) {
            plane.close(Ended::Deleted).await;
        }
        let key = fence_key(id);
        let epoch = self.fence(&key).await.map_or(0, |record| record.epoch) + 1;
        let value = self.record(epoch, FenceState::Deleted);
        let put = Op::Put {
            key: key.clone().into(),
            value: value.into(),
            lease: None,
        };
        let txn = Txn {
            compares: Vec::new(),
            ops: vec![put],
        };
        let fence = self
            .store
            .commit(txn)
            .await
            .map_err(DeleteError::Fence)?
            .revision;
        let compare = Compare::Unchanged {
            key: key.into(),
            revision: fence,
        };
        delete_range(&self.store, id, vec![compare])
            .await
            .map_err(DeleteError::Range)?;
        Ok(())
    }

    /// Removes the fence of a deleted plane, once its directory record is gone.
    ///
    /// # Errors
    /// What the store said.
    pub async fn forget(&self, id: &str) -> Result<(), CommitError> {
        let key = Bytes::from(fence_key(id));
        let txn = Txn {
            compares: vec![Compare::Present { key: key.clone() }],
            ops: vec![Op::Delete { key }],
        };
        match self.store.commit(txn).await {
            Ok(_) | Err(CommitError::Refused { .. }) => Ok(()),
            Err(error) => Err(error),
        }
    }

    /// Ends all planes: finishes what is queued and ends their watches.
    pub async fn close(&self) {
        let slots: Vec<Arc<Slot>> = self.slots.lock().drain().map(|(_, slot)| slot).collect();
        for slot in slots {
            if let Some(plane) = slot.plane.get() {
                plane.close(Ended::Closed).await;
            }
        }
    }
}

fn fence_key(id: &str) -> Vec<u8> {
    format!("{FENCE_PREFIX}{id}").into_bytes()
}

/// The value at a key and the revision that created it; put first if there is none.
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
        compares: vec![Compare::Absent { key: bytes }],
        ops: vec![put],
    };
    let committed = store.commit(txn).await?;
    Ok((committed.revision, value))
}
