//! The driver of the member machine: performs each [`Action`] and reports its outcome to the
//! machine, life after life. Must not know planes or peers.
//!
//! It runs on a thread of its own, so that it notices when the executor of the planes is stuck: the
//! lease is renewed only if a task of that executor has run between two ticks (PROTOCOL 18).

use crate::membership::beats::Beats;
use crate::membership::join_facts::{JoinError, facts};
use crate::membership::late_proofs;
use crate::membership::lease_terms;
use crate::membership::member_record::{MemberRecord, new_life};
use crate::membership::members;
use crate::membership::own_life::OwnLife;
use crate::membership::own_record;
use crate::membership::refused_join::RefusedJoin;
use crate::membership::state::{RingCommand, RingState, newcomer};
use crate::membership::welcome::{is_name_taken, welcome};
use crate::transactions::{MemberPut, member_outcome, member_txn};
use polyplane_fencing::member::{Action, Event};
use polyplane_fencing::{Holder, Outcome, Rule, Transaction, Write};
use polyplane_plane::EndWithPanic;
use polyplane_storage::{Backoff, LeaseError, LeaseId, Store};
use std::collections::VecDeque;
use std::future::pending;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;
use tokio::runtime::{Builder, Handle};
use tokio::sync::{Semaphore, mpsc, oneshot};
use tokio::time::{MissedTickBehavior, interval, sleep, timeout};

/// Pause between two ticks of the machine. With a longer one the member's store lease is renewed
/// late.
const TICK: Duration = Duration::from_millis(50);
/// Number of member reads in flight at most. More would only load a store that is slow already.
const READS_MAX: usize = 3;
/// The longest time a member read may take. A later reply would prove nothing.
const READ_PATIENCE: Duration = Duration::from_secs(5);
/// Number of attempts at one renewal. The next renewal follows at a third of the TTL anyway.
const RENEWALS_MAX: usize = 3;
/// Pause between two attempts at one renewal. A longer one would leave less of the TTL for the next
/// attempts.
const RENEW_AGAIN: Duration = Duration::from_millis(100);
/// The longest time that the store may take to remove this replica's member key at shutdown.
/// Without this limit a store that does not answer would keep the process alive; the key expires by
/// itself.
const LEAVE_PATIENCE: Duration = Duration::from_secs(3);

/// Starts the driver's thread and waits until the replica has joined and is in the view.
pub(crate) async fn start(
    shared: &Arc<RingState>,
    commands: mpsc::Receiver<RingCommand>,
) -> Result<(), JoinError> {
    let (tell, joined) = oneshot::channel();
    let planes = Handle::current();
    let driver = Arc::clone(shared);
    let thread = std::thread::Builder::new().name("polyplane-ring".to_owned());
    let runtime = Builder::new_current_thread().enable_all().build();
    let runtime = runtime.map_err(JoinError::Thread)?;
    let run = move || {
        let _end_with_it = EndWithPanic("the ring's thread");
        runtime.block_on(run(driver, commands, planes, tell));
    };
    // The thread is not joined: it ends when `stop` is cancelled, and nothing waits for that.
    drop(thread.spawn(run).map_err(JoinError::Thread)?);
    joined.await.unwrap_or(Err(JoinError::Stopped))?;
    let own = {
        let life = shared.current();
        life.map(|life| life.holder().clone())
    };
    let mut views = shared.view_changed.subscribe();
    let seen = |shared: &RingState| {
        let view = shared.view.load();
        let own = own.as_ref();
        own.is_none_or(|own| {
            let member = view.member(&own.replica);
            member.is_some_and(|member| member.incarnation >= own.incarnation)
        })
    };
    while !seen(shared) {
        tokio::select! {
            // Stop is polled first: a stopped ring publishes no further view.
            biased;
            () = shared.stop.cancelled() => return Err(JoinError::Stopped),
            changed = views.changed() => drop(changed),
        }
    }
    Ok(())
}

async fn run(
    shared: Arc<RingState>,
    commands: mpsc::Receiver<RingCommand>,
    planes: Handle,
    tell: oneshot::Sender<Result<(), JoinError>>,
) {
    let lives = async {
        let mut tell = Some(tell);
        let mut driver = Driver {
            shared: Arc::clone(&shared),
            commands,
            beats: Beats::new(planes),
            reads: Arc::new(Semaphore::new(READS_MAX)),
            is_draining: false,
            draining: Vec::new(),
        };
        let mut backoff = Backoff::default();
        loop {
            if driver.until_welcome().await == After::Left {
                return;
            }
            match driver.join().await {
                // Another process has joined meanwhile: this one waits for its end, as before a join.
                Ok(None) => {}
                Ok(Some(life)) => {
                    if let Some(tell) = tell.take() {
                        // An error means that the caller of `start` has gone.
                        let _ = tell.send(Ok(()));
                    }
                    backoff = Backoff::default();
                    if driver.live(&life).await == After::Left {
                        return;
                    }
                    shared.lives_lost.fetch_add(1, Ordering::Relaxed);
                    let view = shared.view.load_full();
                    shared.contact.life_ended(&view, &shared.options.id);
                }
                Err(error) => match tell.take() {
                    Some(tell) => {
                        let _ = tell.send(Err(error));
                        return;
                    }
                    None => {
                        tracing::error!(%error, "this replica cannot join the ring again");
                        backoff.wait().await;
                    }
                },
            }
        }
    };
    tokio::select! {
        // Stop is polled first: a stopped ring ends at once, whatever the other branches have
        // ready.
        biased;
        () = shared.stop.cancelled() => {}
        () = members::follow(&shared) => {}
        () = lease_terms::follow(&shared) => {}
        () = lives => {}
    }
    shared.stop.cancel();
    if let Some(life) = shared.current() {
        life.end();
    }
}

/// What follows a life, or the wait before one.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum After {
    /// The replica joins, again if its member key was lost.
    Newcomer,
    /// The replica was requested to leave: nothing follows.
    Left,
}

struct Driver {
    shared: Arc<RingState>,
    commands: mpsc::Receiver<RingCommand>,
    beats: Beats,
    reads: Arc<Semaphore>,
    /// True once the replica was requested to drain: it begins no further life.
    is_draining: bool,
    /// The reply channels of callers that wait until Draining is in the member key.
    draining: Vec<oneshot::Sender<()>>,
}

/// The attempts of one life to put Draining into its member key.
#[derive(Default)]
struct Announcing {
    /// The attempt under way. It ends with its outcome, behind a pause if it was not applied.
    attempt: Option<Pin<Box<dyn Future<Output = Event> + Send>>>,
    backoff: Backoff,
}

impl Announcing {
    /// Waits for the outcome of the attempt under way, for ever if there is none.
    ///
    /// # Cancel safety
    /// The next call continues.
    async fn outcome(&mut self) -> Event {
        match &mut self.attempt {
            Some(attempt) => {
                let outcome = attempt.await;
                self.attempt = None;
                outcome
            }
            None => pending().await,
        }
    }
}

impl Driver {
    /// Waits until this replica may join. A replica that shall drain has nothing to hand over between
    /// two lives, and does not join any more.
    async fn until_welcome(&mut self) -> After {
        let welcome = welcome(Arc::clone(&self.shared), self.beats.planes().clone());
        tokio::pin!(welcome);
        loop {
            if self.is_draining {
                self.tell_drained();
            }
            tokio::select! {
                // A request is polled first: who leaves does not join.
                biased;
                command = self.commands.recv() => match command {
                    Some(RingCommand::Drain(done)) => {
                        self.is_draining = true;
                        self.draining.push(done);
                    }
                    Some(RingCommand::Leave(done)) => {
                        let _ = done.send(());
                        return After::Left;
                    }
                    None => return After::Left,
                },
                () = &mut welcome, if !self.is_draining => return After::Newcomer,
            }
        }
    }

    /// Joins: returns the newcomer's life once its read lease is proven; `None` if another process has
    /// joined under this replica's name since its last life.
    async fn join(&mut self) -> Result<Option<Arc<OwnLife>>, JoinError> {
        let shared = Arc::clone(&self.shared);
        let (machine, actions) = newcomer(&shared.options);
        *shared.machine.lock() = machine;
        let (uid, began) = new_life();
        let record = MemberRecord {
            id: shared.options.id.clone(),
            address: shared.options.address.clone(),
            zone: shared.options.zone.clone(),
            weight: shared.options.weight,
            level: shared.options.level,
            layer: shared.options.layer.clone(),
            ttl: shared.options.member_ttl,
            trust: shared.peers.trust(),
            uid,
            began,
        };
        let mut backoff = Backoff::default();
        let mut refused = RefusedJoin::new(&shared);
        let mut queue: VecDeque<Action> = actions.into();
        let mut lease = None;
        while let Some(action) = queue.pop_front() {
            match action {
                Action::ReadJoinFacts => {
                    let facts = facts(&self.shared, &mut backoff).await?;
                    // A transaction compares what is read here. So from the last life on no key is
                    // deleted that this check has not seen.
                    let found = facts.predecessor;
                    if found.is_some_and(|found| is_name_taken(&shared, found)) {
                        return Ok(None);
                    }
                    queue.extend(self.step(Event::Facts(facts)));
                }
                Action::Transact {
                    attempt,
                    transaction,
                } => {
                    let sent = self.send(&record, &transaction, &mut lease, &mut refused);
                    let outcome = sent.await?;
                    if !matches!(outcome, Outcome::Applied(_)) {
                        backoff.wait().await;
                    }
                    queue.extend(self.step(Event::Done { attempt, outcome }));
                }
                Action::Joined(holder) => {
                    let lease = lease.expect("the key was put under a lease");
                    return Ok(Some(self.begin(holder, record, lease).await));
                }
                Action::WaitBy(wait) => shared.witness.lock().wait_by(wait),
                Action::ReadMember
                | Action::Renew
                | Action::DrainAnnounced
                | Action::CloseAllPlanes => {}
            }
        }
        Err(JoinError::Stopped)
    }

    fn step(&self, event: Event) -> Vec<Action> {
        let now = self.shared.now();
        self.shared.machine.lock().step(now, event)
    }

    /// Sends a transaction of a newcomer. One that puts the member key gets a new store lease.
    async fn send(
        &self,
        record: &MemberRecord,
        transaction: &Transaction,
        lease: &mut Option<LeaseId>,
        refused: &mut RefusedJoin,
    ) -> Result<Outcome, JoinError> {
        let store = &self.shared.store;
        let puts = |write: &Write| matches!(write, Write::PutMember { .. });
        let mut put = None;
        if transaction.writes.iter().any(puts) {
            match store.lease_grant(record.ttl).await {
                Ok(fresh) => {
                    *lease = Some(fresh);
                    put = Some(MemberPut {
                        record: record.clone(),
                        lease: fresh,
                    });
                }
                Err(error @ LeaseError::Closed) => return Err(JoinError::Lease(error)),
                Err(error) => {
                    refused.note(&error);
                    // The transaction was not sent, so the machine may send another one.
                    return Ok(Outcome::Rejected);
                }
            }
        }
        let txn = member_txn(transaction, put.as_ref());
        let reply = store.commit(txn).await;
        refused.note_reply(&reply);
        let outcome = member_outcome(reply);
        if let (Some(put), false) = (put, matches!(outcome, Outcome::Applied(_))) {
            // If a late copy of the transaction still puts the key, the store removes the key with
            // this lease. If the revocation fails, the lease expires by itself.
            let _ = store.lease_revoke(put.lease).await;
        }
        Ok(outcome)
    }

    /// Begins a life whose member key is in the store. The first read of the key will prove the
    /// read lease.
    async fn begin(&self, holder: Holder, record: MemberRecord, lease: LeaseId) -> Arc<OwnLife> {
        let shared = &self.shared;
        tracing::info!(
            replica = %holder.replica,
            incarnation = %holder.incarnation,
            "joined the ring"
        );
        let life = OwnLife::new(
            holder,
            MemberPut { record, lease },
            shared.options.rules(),
            Arc::clone(&shared.clock),
            Arc::clone(&shared.machine),
        );
        shared.contact.life_began();
        read_member(shared, &life).await;
        shared.life.send_replace(Some(Arc::clone(&life)));
        crate::membership::suspicion::start_life(shared, &life);
        life
    }

    /// Reads the member key and renews its lease until the life is over.
    async fn live(&mut self, life: &Arc<OwnLife>) -> After {
        let mut ticks = interval(TICK);
        ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        let mut terms = self.shared.terms.subscribe();
        terms.mark_changed();
        let mut announcing = Announcing::default();
        loop {
            let changes = self.shared.terms.borrow().changes();
            tokio::select! {
                // The end of the life is polled first, then requests, then routine.
                biased;
                () = life.over().cancelled() => return After::Newcomer,
                command = self.commands.recv() => match command {
                    Some(RingCommand::Drain(done)) => {
                        self.is_draining = true;
                        self.draining.push(done);
                        if announcing.attempt.is_none() {
                            let actions = self.step(Event::Drain);
                            if actions.is_empty() {
                                // It was announced before.
                                self.tell_drained();
                            }
                            self.announce(life, actions, &mut announcing);
                        }
                    }
                    Some(RingCommand::Leave(done)) => {
                        self.leave(life).await;
                        let _ = done.send(());
                        return After::Left;
                    }
                    None => return After::Left,
                },
                outcome = announcing.outcome() => {
                    let actions = self.step(outcome);
                    self.announce(life, actions, &mut announcing);
                }
                _ = terms.changed() => lease_terms::apply(&self.shared, life),
                _ = ticks.tick() => {
                    let progress = self.beats.progress();
                    for action in self.step(Event::Tick(progress)) {
                        self.routine(life, action);
                    }
                    if changes {
                        lease_terms::apply(&self.shared, life);
                    }
                }
            }
        }
    }

    /// Performs the repeated actions of a living member, each on a task of its own. These tasks
    /// have no owner: each has a time limit or makes one commit, and its result is ignored once the
    /// life is over.
    fn routine(&self, life: &Arc<OwnLife>, action: Action) {
        let (shared, life) = (Arc::clone(&self.shared), Arc::clone(life));
        match action {
            Action::ReadMember => {
                let Ok(place) = Arc::clone(&self.reads).try_acquire_owned() else {
                    return;
                };
                tokio::spawn(async move {
                    let _place = place;
                    // A later reply would prove nothing.
                    let read = timeout(READ_PATIENCE, read_member(&shared, &life));
                    let _ = read.await;
                });
            }
            Action::Renew => drop(tokio::spawn(async move {
                renew(Arc::clone(&shared.store), Arc::clone(&life)).await;
                own_record::refresh(&shared, &life).await;
            })),
            Action::Transact { .. } | Action::WaitBy(_) => {
                lease_terms::perform(&shared, &life, action)
            }
            Action::ReadJoinFacts
            | Action::Joined(_)
            | Action::DrainAnnounced
            | Action::CloseAllPlanes => {}
        }
    }

    /// Tells those who wait for a drain that this replica takes no planes any more.
    fn tell_drained(&mut self) {
        for done in self.draining.drain(..) {
            // An error means that the caller has gone.
            let _ = done.send(());
        }
    }

    /// Performs the actions of a drain. A transaction that puts Draining into the member key becomes the
    /// announcement, whose outcome [`Self::live`] waits for beside its routine: a store that refuses it for
    /// long must not keep the lease from being renewed.
    fn announce(&mut self, life: &Arc<OwnLife>, actions: Vec<Action>, announcing: &mut Announcing) {
        for action in actions {
            match action {
                Action::Transact {
                    attempt,
                    transaction,
                } => {
                    let store = Arc::clone(&self.shared.store);
                    let txn = member_txn(&transaction, Some(&life.put()));
                    let pause = announcing.backoff.next_pause();
                    announcing.attempt = Some(Box::pin(async move {
                        let outcome = member_outcome(store.commit(txn).await);
                        if !matches!(outcome, Outcome::Applied(_)) {
                            sleep(pause).await;
                        }
                        Event::Done { attempt, outcome }
                    }));
                }
                Action::DrainAnnounced => self.tell_drained(),
                Action::CloseAllPlanes => life.end(),
                Action::ReadMember
                | Action::Renew
                | Action::ReadJoinFacts
                | Action::Joined(_)
                | Action::WaitBy(_) => self.routine(life, action),
            }
        }
    }

    /// Removes this replica's member key by revoking its lease. A replica that waits for the end of
    /// this life then waits for the read lease and the margin at most.
    async fn leave(&self, life: &Arc<OwnLife>) {
        life.end();
        let revoked = timeout(LEAVE_PATIENCE, self.shared.store.lease_revoke(life.lease()));
        match revoked.await {
            Ok(Ok(()) | Err(LeaseError::NotFound | LeaseError::Closed)) => {}
            Ok(Err(error)) => {
                tracing::warn!(%error, "the member key was not removed and expires by itself")
            }
            Err(_) => tracing::warn!("the member key was not removed and expires by itself"),
        }
    }
}

/// Reads this replica's member key and reports the result to the life. The clock is read before the
/// read is handed to the store's client (PROTOCOL 11).
async fn read_member(shared: &RingState, life: &Arc<OwnLife>) {
    let sent = life.now();
    match shared.store.get(life.member_key()).await {
        Ok((at, Some(found)))
            if found.created.0 == life.holder().incarnation.get()
                || !life.rules().keep(Rule::ProofNamesIncarnation) =>
        {
            life.read_found(sent, at);
            late_proofs::count(shared, &shared.reads, sent);
        }
        Ok(_) => life.lost(),
        Err(error) => tracing::debug!(%error, "a member read failed"),
    }
}

async fn renew(store: Arc<dyn Store>, life: Arc<OwnLife>) {
    for _ in 0..RENEWALS_MAX {
        match store.lease_keep_alive(life.lease()).await {
            Ok(()) => return,
            Err(LeaseError::NotFound) => return life.lost(),
            Err(error) => tracing::debug!(%error, "the member's store lease was not renewed"),
        }
        sleep(RENEW_AGAIN).await;
    }
}
