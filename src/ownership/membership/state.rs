//! The state that the tasks of one replica's membership share. Owns the fields and makes no
//! decision: each field is changed by the module whose type it has, so this module and those name
//! each other.

use crate::membership::candidates::Candidates;
use crate::membership::contact::Contact;
use crate::membership::late_proofs::LateProofs;
use crate::membership::lease_terms::TermsSeen;
use crate::membership::options::ReplicaOptions;
use crate::membership::own_life::{OwnLife, clock_time};
use crate::membership::suspicion::Suspicion;
use crate::peer_trust::PeerTrust;
use crate::peers::Peers;
use arc_swap::ArcSwap;
use parking_lot::Mutex;
use polyplane_fencing::member::Cadence;
use polyplane_fencing::{Duration as Length, Member as Machine, Time, Witness};
use polyplane_plane::LayerHash;
use polyplane_ring::{ReplicaId, View, ViewNumber};
use polyplane_storage::{Clock, Revision, Store};
use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::AtomicU64;
use std::time::Duration;
use tokio::sync::{oneshot, watch};
use tokio_util::sync::CancellationToken;

/// Pause between two reads of this replica's member key. The read lease must outlast at least two
/// reads, or one slow read would stop all answers.
pub(crate) const READ_EVERY: Duration = Duration::from_millis(100);

/// The level of a binary: which records and layers it can read and write.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Level {
    pub(crate) number: u32,
    /// The layer of that level; `None` if the binary is too old to name it.
    pub(crate) layer: Option<LayerHash>,
}

/// A request to the member driver.
pub(crate) enum RingCommand {
    /// Put Draining into the member key. The driver replies once the store has it.
    Drain(oneshot::Sender<()>),
    /// Remove this replica's member key and stop. The driver replies once the key is removed, or
    /// once the store has failed to answer.
    Leave(oneshot::Sender<()>),
}

/// The state that all tasks of one ring share.
pub(crate) struct RingState {
    pub(crate) store: Arc<dyn Store>,
    pub(crate) options: ReplicaOptions,
    pub(crate) peers: Arc<dyn Peers>,
    pub(crate) clock: Arc<dyn Clock>,
    pub(crate) machine: Arc<Mutex<Machine>>,
    pub(crate) witness: Mutex<Witness>,
    pub(crate) life: watch::Sender<Option<Arc<OwnLife>>>,
    pub(crate) view: ArcSwap<View>,
    /// The newest view that a peer sent while the store did not answer this replica.
    pub(crate) peer_view: ArcSwap<View>,
    /// Notified at each change of the view.
    pub(crate) view_changed: watch::Sender<ViewNumber>,
    /// The revision up to which the watch on the member keys has delivered every change.
    pub(crate) members_seen_to: watch::Sender<Revision>,
    /// True once the member keys have been read. Until then the view is empty and says nothing.
    pub(crate) members_known: watch::Sender<bool>,
    /// The lease terms in the store, and which record of them each member follows.
    pub(crate) terms: watch::Sender<TermsSeen>,
    /// The level of each member's binary.
    pub(crate) levels: Mutex<BTreeMap<ReplicaId, Level>>,
    /// The CAs of the peer certificates of each member that names them.
    pub(crate) trusts: Mutex<BTreeMap<ReplicaId, PeerTrust>>,
    pub(crate) suspicion: Suspicion,
    pub(crate) contact: Contact,
    /// The replicas that wait outside the ring.
    pub(crate) candidates: Candidates,
    /// Whether the reads of this replica's member key are answered within the read lease.
    pub(crate) reads: Mutex<LateProofs>,
    /// Whether the directory reaches what such a read has seen within the read lease.
    pub(crate) directory_reads: Mutex<LateProofs>,
    pub(crate) stop: CancellationToken,
    pub(crate) lives_lost: AtomicU64,
    pub(crate) peer_views: AtomicU64,
}

impl RingState {
    /// Returns the time on the clock, for a check that is made now.
    pub(crate) fn now(&self) -> Time {
        clock_time(&*self.clock)
    }

    /// Returns the current life, over or not.
    pub(crate) fn current(&self) -> Option<Arc<OwnLife>> {
        self.life.borrow().clone()
    }

    /// Returns this replica's own view, or the one of a peer if that is newer.
    pub(crate) fn newest_view(&self) -> Arc<View> {
        let (own, of_peers) = (self.view.load_full(), self.peer_view.load_full());
        match of_peers.number() > own.number() {
            true => of_peers,
            false => own,
        }
    }
}

/// Returns the machine of a replica that has not joined, and its first actions.
pub(crate) fn newcomer(
    options: &ReplicaOptions,
) -> (Machine, Vec<polyplane_fencing::member::Action>) {
    let length = |duration: Duration| {
        Length::from_nanos(u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX))
    };
    let cadence = Cadence {
        read_every: length(READ_EVERY),
        renew_every: length(options.member_ttl / 3),
    };
    Machine::new(options.id.clone(), options.terms, cadence, options.rules())
}
