//! This replica's complaints about others in the store, during one life. Owns the way to what the
//! eviction machine wanted last, in whatever order the store applies what was sent. Must not know why
//! the machine complains.

use crate::membership::own_life::OwnLife;
use crate::peers::Life;
use crate::records::{complaint_key, encode_life};
use parking_lot::Mutex;
use polyplane_fencing::Holder;
use polyplane_ring::ReplicaId;
use polyplane_storage::{Backoff, CommitError, Compare, Op, Revision, Store, Txn};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;
use tokio::time::timeout;
use tokio_util::sync::CancellationToken;

/// The longest time that one commit may take. After it the wanted state is looked at again, because the
/// suspicion may be over by then.
const COMMIT_PATIENCE: Duration = Duration::from_secs(1);

/// The complaints of one life.
pub(crate) struct OwnComplaints {
    store: Arc<dyn Store>,
    life: Arc<OwnLife>,
    /// Cancelled when the membership ends.
    stop: CancellationToken,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    /// The lives to complain about.
    wanted: BTreeMap<ReplicaId, Holder>,
    /// The replicas about which a task brings the complaint to what is wanted.
    in_work: BTreeSet<ReplicaId>,
}

impl OwnComplaints {
    /// Returns the complaints of a life that has none.
    pub(crate) fn new(
        store: &Arc<dyn Store>,
        life: &Arc<OwnLife>,
        stop: &CancellationToken,
    ) -> Arc<Self> {
        Arc::new(Self {
            store: Arc::clone(store),
            life: Arc::clone(life),
            stop: stop.clone(),
            state: Mutex::default(),
        })
    }

    /// Puts the complaint about a life, as soon as the store lets it.
    pub(crate) fn complain(self: &Arc<Self>, about: Holder) {
        let mut state = self.state.lock();
        let replica = about.replica.clone();
        state.wanted.insert(replica.clone(), about);
        self.begin(&mut state, &replica);
    }

    /// Removes the complaint about a life, as soon as the store lets it.
    pub(crate) fn withdraw(self: &Arc<Self>, about: &Holder) {
        let mut state = self.state.lock();
        if state.wanted.get(&about.replica) == Some(about) {
            state.wanted.remove(&about.replica);
        }
        self.begin(&mut state, &about.replica);
    }

    /// Reports what the store has as the complaint about a replica. It differs from what is wanted if a
    /// commit without a reply was applied late.
    pub(crate) fn observe(self: &Arc<Self>, about: &ReplicaId, found: Option<&Holder>) {
        let mut state = self.state.lock();
        if state.wanted.get(about) != found {
            self.begin(&mut state, about);
        }
    }

    fn begin(self: &Arc<Self>, state: &mut State, about: &ReplicaId) {
        if state.in_work.insert(about.clone()) {
            tokio::spawn(Arc::clone(self).run(about.clone()));
        }
    }

    /// Brings one complaint to what is wanted, until the life or the membership ends.
    async fn run(self: Arc<Self>, about: ReplicaId) {
        tokio::select! {
            // The ends are polled first: nothing is sent after them.
            biased;
            () = self.stop.cancelled() => {}
            () = self.life.over().cancelled() => {}
            () = self.bring(&about) => {}
        }
    }

    async fn bring(&self, about: &ReplicaId) {
        let mut backoff = Backoff::default();
        loop {
            let wanted = self.state.lock().wanted.get(about).cloned();
            let txn = self.txn(about, wanted.as_ref());
            match timeout(COMMIT_PATIENCE, self.store.commit(txn)).await {
                Ok(Ok(_)) => {
                    let mut state = self.state.lock();
                    if state.wanted.get(about) == wanted.as_ref() {
                        state.in_work.remove(about);
                        return;
                    }
                    continue;
                }
                // The member key is gone, so this life complains no more.
                Ok(Err(CommitError::Refused { .. })) => return,
                Ok(Err(error)) => tracing::debug!(%error, "a complaint got no reply"),
                Err(_) => tracing::debug!("the store was too slow for a complaint"),
            }
            backoff.wait().await;
        }
    }

    fn txn(&self, about: &ReplicaId, wanted: Option<&Holder>) -> Txn {
        let me = self.life.holder();
        let key = complaint_key(&me.replica, about);
        let op = match wanted {
            Some(about) => Op::Put {
                key,
                value: encode_life(&Life::from(about)),
                lease: Some(self.life.lease()),
            },
            None => Op::Delete { key },
        };
        Txn {
            compares: vec![Compare::CreatedAt {
                key: self.life.member_key().clone(),
                revision: Revision(me.incarnation.get()),
            }],
            ops: vec![op],
        }
    }
}
