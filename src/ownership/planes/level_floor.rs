//! The store's level floor: no binary below it may join, and planes step to the layer that it
//! names. Owns following and raising it; must not know what a layer contains.
//!
//! It is raised in two transactions, because a view does not show a member that joins a moment
//! later. The first one writes the wanted level: from then on no member below it joins, because a
//! joining member compares the record that it has read. Once the watch on the member keys has
//! reached the revision of that transaction, the view is complete. The second transaction raises
//! the floor if the view has no member below the level.
//!
//! Invariant: the floor never falls, and when it rises no member below it is in the ring.

use std::sync::Arc;

use bytes::Bytes;
use polyplane_plane::PACKED_LEVEL;
use polyplane_ring::ViewNumber;
use polyplane_storage::{
    Backoff, CommitError, Compare, KeyValue, Op, ReadError, Revision, Store, Txn, WatchEnd,
};
use tokio::sync::watch;

use crate::planes::take::VIEW_PATIENCE;
use crate::planes::{Planes, StartError};
use crate::records::{Damaged, FLOOR_KEY, Floor, decode_floor, encode_floor};

/// The floor as this replica has last seen it.
pub(crate) struct FloorSeen {
    floor: watch::Sender<Floor>,
    from: Revision,
}

/// The reason why the floor was not raised.
#[derive(Debug, thiserror::Error)]
pub enum RaiseError {
    /// The view is empty.
    #[error("no member of the ring is known")]
    NoMember,
    /// A member below the wanted level has joined in the meantime, or the view is not up to date.
    #[error("not every member of the ring is known to have level {0}")]
    Members(u32),
    /// The store did not answer.
    #[error("the store's floor cannot be read")]
    Read(#[from] ReadError),
    /// The store refused the floor's record, its outcome is unknown, or another replica has changed
    /// it in the meantime.
    #[error("the store's floor cannot be written")]
    Commit(#[from] CommitError),
    /// A record of the store was not written by this program.
    #[error("the store's floor cannot be decoded")]
    Damaged(#[from] Damaged),
}

impl FloorSeen {
    pub(crate) async fn read(store: &Arc<dyn Store>) -> Result<Self, StartError> {
        let (from, found) = store.get(FLOOR_KEY).await?;
        let floor = of(found.as_ref())?;
        Ok(Self {
            floor: watch::Sender::new(floor),
            from,
        })
    }

    fn see(&self, floor: Floor) {
        self.floor.send_if_modified(|known| {
            let changed = *known != floor;
            if changed && known.level != floor.level {
                tracing::info!(level = floor.level, "the store's level floor has risen");
            }
            *known = floor;
            changed
        });
    }
}

/// Follows the floor until the planes are closed.
pub(crate) fn follow(planes: &Arc<Planes>) {
    let weak = Arc::downgrade(planes);
    let (store, closing) = (Arc::clone(planes.store()), planes.closing().clone());
    let mut after = planes.floor_seen().from;
    let following = async move {
        let start = Bytes::from_static(FLOOR_KEY);
        let end: Bytes = [FLOOR_KEY, b"\0"].concat().into();
        let mut backoff = Backoff::default();
        loop {
            // A watch that cannot be opened needs no report, because the record is read below
            // instead.
            if let Ok(mut watch) = store.watch(start.clone(), end.clone(), after).await {
                backoff = Backoff::default();
                let ended = loop {
                    let batch = match watch.next().await {
                        Ok(batch) => batch,
                        Err(end) => break end,
                    };
                    let Some(planes) = weak.upgrade() else {
                        return;
                    };
                    let values = batch.events.iter().map(|event| event.value.as_ref());
                    for value in values.flatten() {
                        see(&planes, decode_floor(value));
                    }
                    after = batch.revision;
                };
                if matches!(ended, WatchEnd::Closed) {
                    return;
                }
            }
            backoff.wait().await;
            // The record includes every change that no watch has delivered.
            let (Ok((at, found)), Some(planes)) = (store.get(FLOOR_KEY).await, weak.upgrade())
            else {
                continue;
            };
            see(&planes, of(found.as_ref()));
            after = at;
        }
    };
    tokio::spawn(async move {
        tokio::select! {
            // The end is polled first: closed planes need no floor.
            biased;
            () = closing.cancelled() => {}
            () = following => {}
        }
    });
}

fn see(planes: &Planes, floor: Result<Floor, Damaged>) {
    match floor {
        Ok(floor) => {
            planes.allow_by(&floor);
            planes.floor_seen().see(floor);
        }
        Err(error) => tracing::error!(%error, "the store's floor cannot be decoded"),
    }
}

fn of(found: Option<&KeyValue>) -> Result<Floor, Damaged> {
    found.map_or(Ok(Floor::default()), |found| decode_floor(&found.value))
}

impl Planes {
    /// Lets the committer write what only programs of the floor's level read. The floor never falls,
    /// so nothing is ever taken back.
    pub(crate) fn allow_by(&self, floor: &Floor) {
        if floor.level >= PACKED_LEVEL {
            self.committer().begin_packing();
        }
    }

    /// Returns the store's level floor as this replica has last seen it.
    pub fn floor(&self) -> Floor {
        self.floor_seen().floor.borrow().clone()
    }

    /// Returns a receiver that is notified at each change of the floor.
    pub fn floor_changes(&self) -> watch::Receiver<Floor> {
        self.floor_seen().floor.subscribe()
    }

    /// Returns whether planes may step to this binary's own layer, because every binary that may
    /// still join knows it.
    pub fn may_step(&self) -> bool {
        let (floor, own) = (self.floor(), self.ring().options());
        floor.level >= own.level && floor.layer.as_ref() == Some(&own.layer)
    }

    /// Raises the store's floor to the lowest level of all members, and returns the floor. From
    /// then on no older binary joins, and planes step to that level's layer.
    ///
    /// # Errors
    /// See [`RaiseError`]. The floor is not changed.
    pub async fn raise_floor(&self) -> Result<Floor, RaiseError> {
        let wanted = self.ring().level_of_all().ok_or(RaiseError::NoMember)?;
        let (_, found) = self.store().get(FLOOR_KEY).await?;
        let floor = of(found.as_ref())?;
        let since = found.map(|found| found.modified);
        let named = floor.layer.is_some() || wanted.layer.is_none();
        if wanted.number < floor.level || wanted.number == floor.level && named {
            // An announced rise was not completed, and cannot be while there are members below its
            // level.
            if floor.raising.is_some() {
                let settled = Floor {
                    raising: None,
                    ..floor.clone()
                };
                self.put_floor(since, &settled).await?;
            }
            return Ok(floor);
        }
        let announced = Floor {
            raising: Some(wanted.number),
            ..floor.clone()
        };
        let at = self.put_floor(since, &announced).await?;
        let reached = self
            .ring()
            .reach(ViewNumber::new(at.0), VIEW_PATIENCE)
            .await;
        let all = self.ring().level_of_all();
        let known = all.filter(|all| reached && all.number >= wanted.number);
        if known.is_none() {
            let back = Floor {
                raising: None,
                ..floor
            };
            self.put_floor(Some(at), &back).await?;
            return Err(RaiseError::Members(wanted.number));
        }
        let raised = Floor {
            level: wanted.number,
            layer: wanted.layer,
            raising: None,
        };
        self.put_floor(Some(at), &raised).await?;
        tracing::info!(level = raised.level, "the store's level floor was raised");
        Ok(raised)
    }

    /// Puts the floor's record if it has not changed since `since`.
    async fn put_floor(
        &self,
        since: Option<Revision>,
        floor: &Floor,
    ) -> Result<Revision, CommitError> {
        let key = Bytes::from_static(FLOOR_KEY);
        let compare = match since {
            None => Compare::Absent { key: key.clone() },
            Some(revision) => Compare::Unchanged {
                key: key.clone(),
                revision,
            },
        };
        let put = Op::Put {
            key,
            value: encode_floor(floor),
            lease: None,
        };
        let txn = Txn {
            compares: vec![compare],
            ops: vec![put],
        };
        Ok(self.store().commit(txn).await?.revision)
    }
}
