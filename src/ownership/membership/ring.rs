//! The ring as this replica sees it: its own life, the view of all members, and the deaths of
//! others that it has itself witnessed. The tasks behind it are in `member_driver`, `members` and
//! `suspicion`.
//!
//! Must not know planes. Invariant: a fence is judged by a view, and a view follows from what the
//! store delivered, in the store's order.

use crate::membership::candidates::{self, Candidate};
use crate::membership::contact;
use crate::membership::join_facts::{self, JoinError};
use crate::membership::late_proofs;
use crate::membership::member_driver;
use crate::membership::options::ReplicaOptions;
use crate::membership::own_life::{OwnLife, clock_time};
use crate::membership::state::{Level, RingCommand, RingState, newcomer};
use crate::membership::suspicion::Suspicion;
use crate::membership::welcome::is_name_taken;
use crate::peers::{PeerError, PeerReply, PeerRequest, Peers};
use arc_swap::ArcSwap;
use parking_lot::Mutex;
use polyplane_fencing::{Fence, Holder, LeaseStatus, Observed, Sighting, Terms, Time, Witness};
use polyplane_ring::{Member, Pin, PlaneId, ReplicaId, Standing, View, ViewNumber};
use polyplane_storage::{Clock, Revision, Store, SystemClock};
use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::Duration;
use tokio::sync::{mpsc, oneshot, watch};
use tokio::time::{Instant, timeout, timeout_at};
use tokio_util::sync::CancellationToken;

/// Number of requests to the driver that may be queued. Further callers wait.
const COMMANDS_MAX: usize = 16;

/// Metrics of the ring.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct RingStats {
    /// The number of the newest view.
    pub view: u64,
    /// Number of members that accept planes.
    pub serving: usize,
    /// Number of members that hand their planes over.
    pub draining: usize,
    /// The time for which this replica could still answer from memory without a further proof.
    pub read_lease_margin: Duration,
    /// Number of lives of this replica that have ended since the process began.
    pub lives_lost: u64,
    /// Number of peers that this replica has removed from the ring.
    pub evictions: u64,
    /// Number of views that peers sent and this replica used because the store did not answer it.
    pub peer_views: u64,
    /// The time that the newest read of this replica's member key took. Beyond the read lease the
    /// read proves nothing.
    pub member_read: Duration,
    /// Number of reads of this replica's member key that were answered too late to prove anything.
    pub late_reads: u64,
    /// Number of peers that do not answer this replica's pings.
    pub unreachable: usize,
    /// Number of replicas that wait outside the ring because of certificates or of their address.
    pub candidates: usize,
}

/// The membership of this replica. Before [`Ring::join`] it has no members and owns nothing.
/// Afterwards it needs no further calls: a replica that loses its member key joins again as a
/// newcomer without planes. If another process has joined under its name, it waits until that one has
/// left.
pub struct Ring {
    shared: Arc<RingState>,
    /// The channel of requests to the driver; unset until [`Ring::join`].
    commands: OnceLock<mpsc::Sender<RingCommand>>,
}

impl Ring {
    /// Returns the ring of a store, for a replica that is to join it. Writes nothing. Waits while
    /// the store does not answer.
    ///
    /// # Errors
    /// Returns [`JoinError::Floor`] or [`JoinError::Damaged`] if this program must not use the
    /// store.
    pub async fn newcomer(
        store: Arc<dyn Store>,
        options: ReplicaOptions,
        peers: Arc<dyn Peers>,
    ) -> Result<Arc<Self>, JoinError> {
        let clock: Arc<dyn Clock> = Arc::new(SystemClock);
        let witness = match store.opened_at() {
            // From the join on the store's terms are used. Before the join no fence is acquired.
            Some(at) => Witness::embedded_store(crate::transactions::revision(at), options.terms),
            None => Witness::shared_store(options.terms),
        };
        let (machine, _) = newcomer(&options);
        let shared = Arc::new(RingState {
            store,
            peers,
            clock,
            machine: Arc::new(Mutex::new(machine)),
            witness: Mutex::new(witness),
            life: watch::Sender::new(None),
            view: ArcSwap::default(),
            peer_view: ArcSwap::default(),
            view_changed: watch::Sender::new(ViewNumber::default()),
            members_seen_to: watch::Sender::new(Revision(0)),
            members_known: watch::Sender::new(false),
            terms: watch::Sender::default(),
            levels: Mutex::default(),
            trusts: Mutex::default(),
            suspicion: Suspicion::default(),
            contact: Default::default(),
            candidates: Default::default(),
            reads: Mutex::default(),
            directory_reads: Mutex::default(),
            stop: CancellationToken::new(),
            lives_lost: AtomicU64::new(0),
            peer_views: AtomicU64::new(0),
            options,
        });
        join_facts::admitted(&shared).await?;
        let commands = OnceLock::new();
        Ok(Arc::new(Self { shared, commands }))
    }

    /// Joins, and returns once the view shows this replica. From then on the life of a predecessor
    /// of the same name is over. Begin to answer peers before calling this: they hand planes to
    /// every member, and evict a member that does not answer. Waits while it can speak with no member
    /// because they do not trust each other's certificates, while no member answers and its own certificate
    /// is not valid, while there are members and another replica answers at its advertised address, or while
    /// the store does not accept its member key; [`Self::join_problems`] says so.
    ///
    /// The membership runs on a thread of its own and renews its lease only while tasks of the
    /// calling runtime make progress: a replica that is stuck counts as dead (PROTOCOL 18). Waits
    /// while the store does not answer.
    ///
    /// # Errors
    /// See [`JoinError`]. Returns [`JoinError::Stopped`] if this has been called before.
    pub async fn join(&self) -> Result<(), JoinError> {
        let (commands, received) = mpsc::channel(COMMANDS_MAX);
        if self.commands.set(commands).is_err() {
            return Err(JoinError::Stopped);
        }
        let shared = &self.shared;
        member_driver::start(shared, received).await?;
        tokio::spawn(crate::membership::suspicion::ping(Arc::clone(shared)));
        tokio::spawn(crate::membership::suspicion::follow_complaints(Arc::clone(
            shared,
        )));
        tokio::spawn(crate::membership::peer_view::poll(Arc::clone(shared)));
        tokio::spawn(candidates::follow(Arc::clone(shared)));
        Ok(())
    }

    /// Returns a receiver of the reason why this replica waits before it joins. It has none while
    /// nothing keeps the replica from joining.
    pub fn join_problems(&self) -> watch::Receiver<Option<String>> {
        self.shared.contact.held_back()
    }

    /// Returns why this replica is no useful member of the ring: it may not join, or the others do
    /// not reach it.
    pub fn join_problem(&self) -> Option<String> {
        let held_back = self.join_problems().borrow().clone();
        held_back.or_else(|| {
            let why = self.shared.contact.why_unreached()?;
            let may_be_reached = contact::has_peers(&self.view(), self.id());
            // A member that is alone needs nobody to reach it.
            (self.life().is_none() || may_be_reached).then_some(why)
        })
    }

    /// Returns why the store's answers come too late for this replica to answer requests, and what
    /// to do; `None` while they come in time.
    pub fn read_lease_problem(&self) -> Option<String> {
        let of_reads = self.shared.reads.lock().problem();
        of_reads.or_else(|| self.shared.directory_reads.lock().problem())
    }

    /// Returns why this replica answers no requests: the store's answers come too late, or none has come for some
    /// seconds; `None` otherwise, and while it has no member key.
    pub fn read_lease_failure(&self) -> Option<String> {
        let lapsed = || late_proofs::lapsed(self.life()?.lapsed());
        self.read_lease_problem().or_else(lapsed)
    }

    /// Returns whether the read lease allows this replica to answer from memory now.
    pub fn holds_read_lease(&self) -> bool {
        let holds = |life: Arc<OwnLife>| life.status(life.now()) == LeaseStatus::Open;
        self.life().is_some_and(holds)
    }

    /// Returns the replicas that wait outside the ring because of certificates or of their address. A
    /// replica that has not joined knows of none.
    pub fn candidates(&self) -> Vec<Candidate> {
        candidates::list(&self.shared)
    }

    /// Returns why the peer certificates of this member are probably the wrong ones, and not those of the
    /// replicas that wait outside; `None` if nothing says so.
    pub fn outvoted(&self) -> Option<String> {
        candidates::outvoted(&self.shared)
    }

    /// Records that a peer has sent a message to this replica.
    pub(crate) fn reached_by(&self, peer: &ReplicaId) {
        if peer != self.id() {
            self.shared.contact.reached();
        }
    }

    /// Records that the directory has reached what a member read saw that was sent at `sent`, a time
    /// of this replica's clock in nanoseconds.
    pub(crate) fn directory_proven(&self, sent: u64) {
        let proofs = &self.shared.directory_reads;
        late_proofs::count(&self.shared, proofs, Time::from_nanos(sent));
    }

    /// Returns the newest view.
    pub fn view(&self) -> Arc<View> {
        self.shared.view.load_full()
    }

    /// Returns a receiver that is notified at each change of the view.
    pub fn view_changes(&self) -> watch::Receiver<ViewNumber> {
        self.shared.view_changed.subscribe()
    }

    /// Returns the name and incarnation of this life; `None` while the replica has no member key.
    pub fn holder(&self) -> Option<Holder> {
        Some(self.life()?.holder().clone())
    }

    /// Returns the token that is cancelled when this life loses its member key: every plane
    /// acquired in the life is then lost. It is already cancelled while the replica has no member
    /// key.
    pub fn over(&self) -> CancellationToken {
        match self.life() {
            Some(life) => life.over().clone(),
            None => {
                let over = CancellationToken::new();
                over.cancel();
                over
            }
        }
    }

    /// Returns the name of this replica.
    pub fn id(&self) -> &ReplicaId {
        &self.shared.options.id
    }

    /// Returns whether a member is this replica, and not another process that has joined under its name
    /// while this one waits (PROTOCOL 5).
    pub fn is_own(&self, member: &Member) -> bool {
        member.id == *self.id() && !is_name_taken(&self.shared, member.incarnation)
    }

    /// Returns this replica's own record in the newest view.
    pub fn own_member(&self) -> Option<Member> {
        self.view().member(self.id()).cloned()
    }

    /// Returns the newest revision that a member read of this life has returned. A directory that
    /// has reached it has every plane that was created before that read was sent (PROTOCOL 21).
    pub fn observed(&self) -> Revision {
        self.life().map_or(Revision(0), |life| life.observed())
    }

    /// Waits for the answer of a member read that is sent after this call, and returns its
    /// revision; `None` if there is no such answer before the deadline.
    pub async fn next_observed(&self, deadline: Instant) -> Option<Revision> {
        let life = self.life()?;
        let from = life.now();
        loop {
            let changed = life.changed().notified();
            tokio::pin!(changed);
            changed.as_mut().enable();
            if life.over().is_cancelled() {
                return None;
            }
            if let Some(revision) = life.observed_since(from) {
                return Some(revision);
            }
            timeout_at(deadline, changed).await.ok()?;
        }
    }

    /// Waits for the answer of a member read that was sent after a time of this replica's clock.
    /// Returns when it was sent, and a revision that is not older; `None` if there is no such answer
    /// before the deadline.
    pub(crate) async fn read_after(
        &self,
        after: u64,
        deadline: Instant,
    ) -> Option<(u64, Revision)> {
        let life = self.life()?;
        loop {
            let changed = life.changed().notified();
            tokio::pin!(changed);
            changed.as_mut().enable();
            if life.over().is_cancelled() {
                return None;
            }
            if let Some(read) = life.newest_read().filter(|(sent, _)| *sent > after) {
                return Some(read);
            }
            timeout_at(deadline, changed).await.ok()?;
        }
    }

    /// Returns the time on this replica's clock, in nanoseconds.
    pub(crate) fn clock_nanos(&self) -> u64 {
        clock_time(&*self.shared.clock).as_nanos()
    }

    /// Waits until the view has this number or a newer one. Returns whether it does in time.
    pub async fn reach(&self, number: ViewNumber, patience: Duration) -> bool {
        let mut seen_to = self.shared.members_seen_to.subscribe();
        if seen_to.borrow().0 >= number.get() {
            return true;
        }
        if let Err(error) = self.shared.store.request_progress().await {
            tracing::debug!(%error, "progress could not be requested from the store");
        }
        let reached = seen_to.wait_for(|seen_to| seen_to.0 >= number.get());
        matches!(timeout(patience, reached).await, Ok(Ok(_)))
    }

    /// Returns the member that should own a plane, by the newest view. A replica that does not
    /// reach the store uses a peer's view, of which it is no member itself.
    ///
    /// A member with which this replica could not speak for lack of trust, or because another replica
    /// answered at its address, in this life or an earlier one, is passed over while another one is Serving:
    /// requests could not be forwarded to it. Members that do not agree on this do not move the plane: it
    /// stays where it is held (PROTOCOL 19).
    pub fn designated(&self, plane: &PlaneId, pin: &Pin) -> Option<Member> {
        let view = self.shared.newest_view();
        let first = view.designated(plane, pin)?;
        let (contact, now) = (&self.shared.contact, self.shared.now());
        if !contact.is_distrusted(now, &first.id) {
            return Some(first.clone());
        }
        let fit = |member: &&&Member| {
            member.standing == Standing::Serving && !contact.is_distrusted(now, &member.id)
        };
        let ranked = view.ranked(plane, pin);
        let trusted = ranked.iter().find(fit).copied();
        Some(trusted.unwrap_or(first).clone())
    }

    /// Sends a request to a member and records whether the member could be reached (PROTOCOL 18).
    ///
    /// # Errors
    /// Returns the transport's error, or [`PeerError::TimedOut`] after `patience`.
    pub async fn call(
        &self,
        to: &Member,
        request: PeerRequest,
        patience: Duration,
    ) -> Result<PeerReply, PeerError> {
        crate::membership::suspicion::call(&self.shared, to, request, patience).await
    }

    /// Reports whether a member could be reached, for callers that talk to peers without
    /// [`Self::call`]. Do not report a time-out of a request that may take long: it proves nothing.
    pub fn report(&self, about: &Member, result: Result<(), &PeerError>) {
        crate::membership::suspicion::report(&self.shared, about, result);
    }

    /// Returns whether a member owes this replica the answer to a ping for longer than usual. The
    /// member may be dead, stuck, cut off or merely slow. That proves nothing, but a request that
    /// can wait should not be sent to it now.
    pub fn is_silent(&self, replica: &str) -> bool {
        self.shared.suspicion.is_silent(replica)
    }

    /// Puts Draining into the member key: from then on planes are handed to other members. A
    /// process cannot undo this. Returns once the store has the new value.
    pub async fn announce_drain(&self) {
        self.send_command(RingCommand::Drain).await;
    }

    /// Removes this replica's member key and ends the membership. The caller releases every plane
    /// first.
    pub async fn leave(&self) {
        self.send_command(RingCommand::Leave).await;
        self.shared.stop.cancel();
    }

    /// Sends a request to the driver. Returns once the request is done or the driver has ended.
    async fn send_command(&self, command: impl FnOnce(oneshot::Sender<()>) -> RingCommand) {
        let (done, complaints) = oneshot::channel();
        if let Some(commands) = self.commands.get()
            && commands.send(command(done)).await.is_ok()
        {
            // An error means that the driver has ended.
            let _ = complaints.await;
        }
    }

    /// Ends the membership as a crash would, without sending anything to the store. For tests.
    pub fn vanish(&self) {
        self.shared.stop.cancel();
    }

    /// Returns metrics of the ring.
    pub fn stats(&self) -> RingStats {
        let view = self.view();
        let of = |standing| view.members().filter(|m| m.standing == standing).count();
        let margin = self.life().map_or(0, |life| life.margin());
        let reads = *self.shared.reads.lock();
        RingStats {
            view: view.number().get(),
            serving: of(Standing::Serving),
            draining: of(Standing::Draining),
            read_lease_margin: Duration::from_nanos(margin),
            lives_lost: self.shared.lives_lost.load(Ordering::Relaxed),
            evictions: self.shared.suspicion.evictions(),
            peer_views: self.shared.peer_views.load(Ordering::Relaxed),
            member_read: Duration::from_nanos(reads.took().as_nanos()),
            late_reads: reads.late(),
            unreachable: self.shared.contact.failing(),
            candidates: self.shared.candidates.count(),
        }
    }

    /// Returns the store of the ring.
    pub fn store(&self) -> &Arc<dyn Store> {
        &self.shared.store
    }

    /// Returns the options of this replica.
    pub fn options(&self) -> &ReplicaOptions {
        &self.shared.options
    }

    /// Returns the current life.
    pub(crate) fn life(&self) -> Option<Arc<OwnLife>> {
        let life = self.shared.life.borrow().clone();
        life.filter(|life| !life.over().is_cancelled())
    }

    /// Waits for a life that is not over, at most for `patience`.
    pub(crate) async fn await_life(&self, patience: Duration) -> Option<Arc<OwnLife>> {
        let mut lives = self.shared.life.subscribe();
        let living = |life: &Option<Arc<OwnLife>>| {
            life.as_ref()
                .is_some_and(|life| !life.over().is_cancelled())
        };
        let found = timeout(patience, lives.wait_for(living)).await;
        found.ok()?.ok()?.clone()
    }

    /// Adds the witness's facts to a fence from the store: whether its holder lives, and the read
    /// lease that a replica waits out before it takes the fence of a dead holder.
    pub(crate) fn sighting(&self, fence: Option<Observed<Fence>>) -> Sighting {
        self.shared.witness.lock().sighting(fence)
    }

    /// Returns the lowest level of all members, if there are any.
    pub(crate) fn level_of_all(&self) -> Option<Level> {
        let levels = self.shared.levels.lock();
        levels.values().min_by_key(|level| level.number).cloned()
    }

    /// Returns the lease terms that this replica follows.
    pub fn terms(&self) -> Terms {
        self.shared.machine.lock().terms()
    }

    /// Returns, while the lease terms change, the members that have not confirmed yet that they
    /// follow both.
    pub fn terms_awaited(&self) -> Vec<ReplicaId> {
        crate::membership::lease_terms::awaited(&self.shared)
    }

    /// Returns the level of each member's binary.
    pub fn levels(&self) -> BTreeMap<ReplicaId, u32> {
        let levels = self.shared.levels.lock();
        let of = |(id, level): (&ReplicaId, &Level)| (id.clone(), level.number);
        levels.iter().map(of).collect()
    }

    /// Returns the read lease of the machine, for the test that its copy is equal.
    #[cfg(test)]
    pub(crate) fn read_lease(&self) -> polyplane_fencing::ReadLease {
        self.shared.machine.lock().lease().clone()
    }

    /// Returns the token that is cancelled when the membership ends.
    pub(crate) fn stopped(&self) -> &CancellationToken {
        &self.shared.stop
    }
}

impl Drop for Ring {
    fn drop(&mut self) {
        self.shared.stop.cancel();
    }
}
