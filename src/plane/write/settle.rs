//! The handling of a part after the store has replied, or has failed to.
//!
//! Nothing is acknowledged before it is durable. An unknown outcome is settled by a write, never by
//! a read: the plane puts its fence again, after which no older transaction can be applied, and
//! then reads in the store's history whether the part was. A part is sent again only after this
//! proof that it was not applied and never will be. So an election of the store's leader is only a
//! delay for clients. If the store refuses the put of the fence, as a full one does, the part is
//! *withheld*: the plane refuses writes, serves reads, and goes on trying.
//!
//! Only if the store's reply to the part itself was final, but does not say whether the part was
//! applied, a read settles it.

use std::sync::Arc;
use std::time::Duration;

use polyplane_storage::{Backoff, Op, ReadError, Rejection, Revision, StoreEvent};
use tokio::sync::Notify;

use crate::guard::{BarrierError, Intake, NotDone};
use crate::history::event::Event;
use crate::history::watch::Ended;
use crate::key::Prefix;
use crate::plane::Plane;
use crate::state::Root;
use crate::state::entry::Versions;
use crate::state::overlay::Derive;
use crate::version::Version;
use crate::write::committer::{CommitPart, encode};
use crate::write::prepared_write::{Committed, SubmitError, Written};
use crate::write::sequencer::{QueuedChange, QueuedWrite, last_position, may_resend};

/// Time for which a plane that has ended still waits for the reply to the put of its fence. With less,
/// callers get `Deadline` although the reply is on its way; with more, they wait for a store that is away.
const REPLY_PATIENCE: Duration = Duration::from_secs(1);

/// The result of settling a part that the store did not reply to.
enum PartOutcome {
    Done(Revision),
    NotDone,
    /// The plane ended before the store could be read.
    Unknowable,
}

/// The new state and events of a durable part, computed before any of it is published.
struct Landing {
    root: Root,
    events: Vec<Arc<Event>>,
    /// The resources whose definitions the events change, each with the version of the change.
    defined: Vec<(Prefix, Version)>,
    /// Bytes of the bodies of its entries.
    bytes: usize,
    answers: Vec<Committed>,
}

impl Plane {
    /// Publishes a durable part, in revision order if the plane follows external writes.
    pub(crate) fn land(self: Arc<Self>, part: CommitPart, revision: Revision) {
        match self.follow() {
            Some(follow) => self.durable(follow, part, revision),
            None => self.publish_part(part, revision),
        }
    }

    /// Publishes a durable part, notifies watchers, and answers the part's callers.
    pub(crate) fn publish_part(self: Arc<Self>, part: CommitPart, revision: Revision) {
        debug_assert!(self.follows_published(&part));
        let landing = self.compute_landing(&part, revision);
        self.note_expiries(&landing.events);
        self.set_revision(revision);
        let published = landing.root.clone();
        self.log()
            .append(&landing.events, &landing.defined, published.head, || {
                self.publish(landing.root);
            });
        if part.is_withheld {
            self.sequencer().lock().include_withheld(&published);
        }
        // Called after the publication: a release that waits for this part exports the published
        // state.
        self.guard().landed(revision);
        if let Some(keys) = self.data_keys() {
            keys.landed(&part);
        }
        let last = last_position(&part.writes);
        let context = self.context();
        let wakeup = self
            .sequencer()
            .lock()
            .landed(last, &published, landing.bytes, context);
        for (write, answer) in part.writes.into_iter().zip(landing.answers) {
            write.answer(Ok(answer));
        }
        self.changed();
        self.wake_committer(wakeup);
        if let Some(observer) = self.observer() {
            observer.published(&self, &landing.events);
        }
    }

    /// Answers the callers of a durable part that this replica can no longer publish.
    pub(crate) fn acknowledge(&self, part: CommitPart, revision: Revision) {
        let landing = self.compute_landing(&part, revision);
        for (write, answer) in part.writes.into_iter().zip(landing.answers) {
            write.answer(Ok(answer));
        }
    }

    /// Handles a part that the store refused for good. Enough refusals in a row make the plane
    /// read-only.
    pub(crate) fn reject(self: Arc<Self>, part: CommitPart, rejection: &Rejection) {
        self.guard().not_done(NotDone::Rejected);
        let plane = Arc::clone(&self);
        plane.withdraw(part, rejection);
        self.wait_for_store();
    }

    /// Answers the callers of a part that was not applied and never will be. If the plane was lost
    /// in the meantime they get `Lost`, so that they try the new owner.
    pub(crate) fn withdraw(self: Arc<Self>, part: CommitPart, rejection: &Rejection) {
        let (behind, ended) = {
            let mut sequencer = self.sequencer().lock();
            sequencer.note_refusal(&rejection.to_string());
            let ended = sequencer.ended() == Some(Ended::Lost);
            (sequencer.withdraw(&self.published()), ended)
        };
        let answer = match ended {
            true => SubmitError::Lost,
            false => SubmitError::Refused(rejection.clone()),
        };
        answer_all(part.writes, &answer);
        answer_all(behind, &SubmitError::Withdrawn);
        self.changed();
    }

    /// Registers a read-only plane to be resumed when its store accepts writes again.
    pub(crate) fn wait_for_store(self: &Arc<Self>) {
        if self.guard().intake() == Intake::ReadOnly {
            self.committer.prober().add(self);
        }
    }

    /// Sends a part again, unchanged, that was not applied and never will be: a compare of another
    /// plane failed, or the part's unknown outcome was settled.
    pub(crate) fn requeue(self: Arc<Self>, part: CommitPart) {
        let again = self.sequencer().lock().requeue(part.writes);
        self.changed();
        match again {
            Ok(wakeup) => self.wake_committer(wakeup),
            Err(writes) => answer_all(writes, &SubmitError::Lost),
        }
    }

    /// Ends the plane because another replica holds the fence: nothing of the part was applied, and
    /// nothing will be.
    pub(crate) fn lose(self: Arc<Self>, part: CommitPart) {
        answer_all(part.writes, &SubmitError::Lost);
        self.end_lost();
    }

    /// Settles a part to which the store has given a final reply, `rejection`, that does not say whether
    /// the part was applied. It was sent after the store had the revision `before`.
    pub(crate) async fn settle_by_read(
        self: Arc<Self>,
        part: CommitPart,
        rejection: Rejection,
        before: Revision,
    ) {
        // The plane's last commit may be long ago, and its history compacted. It has done nothing since.
        let after = self.sent_after().max(before);
        let settled = self.outcome_in_history(&part, FenceStatus::Untested, after);
        match settled.await {
            PartOutcome::Done(revision) => self.land(part, revision),
            PartOutcome::NotDone => self.reject(part, &rejection),
            PartOutcome::Unknowable => {
                answer_all(part.writes, &SubmitError::Deadline);
                self.end_lost();
            }
        }
    }

    /// Settles a part of unknown outcome. Notifies `refused` if the store refuses that for now.
    pub(crate) async fn settle(
        self: Arc<Self>,
        mut part: CommitPart,
        reason: String,
        refused: Arc<Notify>,
    ) {
        tracing::warn!(
            plane = self.id(),
            reason,
            "the outcome of a commit is unknown"
        );
        self.guard().not_done(NotDone::Unknown);
        let (fence, outcome) = self.resolve_outcome(&mut part, &refused).await;
        // A part that was not withheld is still in the accepted state, so it can be sent unchanged.
        let is_unchanged = fence == FenceStatus::Held && !part.is_withheld;
        match outcome {
            PartOutcome::Done(revision) => Arc::clone(&self).land(part, revision),
            PartOutcome::NotDone if is_unchanged && may_resend(&mut part.writes) => {
                self.committer.metrics().resent();
                self.guard().never_done();
                self.requeue(part);
                return;
            }
            PartOutcome::NotDone => {
                let behind = {
                    let mut sequencer = self.sequencer().lock();
                    let behind = sequencer.withdraw(&self.published());
                    // Called under the lock, so that no write is accepted on top of what was just
                    // withdrawn.
                    self.guard().never_done();
                    behind
                };
                let answer = match fence {
                    FenceStatus::Held | FenceStatus::Untested => SubmitError::Unavailable(reason),
                    FenceStatus::Lost => SubmitError::Lost,
                };
                answer_all(part.writes, &answer);
                answer_all(behind, &SubmitError::Withdrawn);
                self.changed();
            }
            PartOutcome::Unknowable => {
                answer_all(part.writes, &SubmitError::Deadline);
                self.end_lost();
            }
        }
        if fence == FenceStatus::Lost {
            self.end_lost();
        }
    }

    /// Puts the fence again until there is a final reply, then reads which writes were applied before
    /// it. Stops retrying once the plane has ended.
    async fn resolve_outcome(
        &self,
        part: &mut CommitPart,
        refused: &Notify,
    ) -> (FenceStatus, PartOutcome) {
        let mut backoff = Backoff::default();
        let fence = loop {
            let barrier = tokio::select! {
                // The reply is polled first: a final reply gives callers a better answer than the
                // plane's end does.
                biased;
                barrier = self.guard().barrier() => barrier,
                () = self.ended_long_ago() => return (FenceStatus::Lost, PartOutcome::Unknowable),
            };
            match barrier {
                Ok(_) => break FenceStatus::Held,
                Err(BarrierError::Lost) => break FenceStatus::Lost,
                Err(BarrierError::Rejected(reason)) => {
                    self.withhold(part, &reason);
                    refused.notify_one();
                }
                Err(BarrierError::Unavailable(error)) => {
                    tracing::debug!(
                        plane = self.id(),
                        error,
                        "the fence could not be put again yet"
                    );
                }
            }
            if self.ends_within(backoff.next_pause()).await {
                return (FenceStatus::Lost, PartOutcome::Unknowable);
            }
        };
        let settled = self.outcome_in_history(part, fence, self.sent_after());
        let outcome = settled.await;
        (fence, outcome)
    }

    /// Refuses writes while the store refuses to settle this part, so that their callers get an answer.
    fn withhold(&self, part: &mut CommitPart, reason: &str) {
        if part.is_withheld {
            return;
        }
        tracing::warn!(
            plane = self.id(),
            reason,
            "the store refuses to settle a commit of unknown outcome; the control plane refuses writes"
        );
        part.is_withheld = true;
        let behind = {
            let mut sequencer = self.sequencer().lock();
            sequencer.withhold(&self.published(), reason)
        };
        answer_all(behind, &SubmitError::ReadOnly(reason.to_owned()));
        self.changed();
    }

    /// Reads until the store's history says whether a part was applied that can no longer be. Stops
    /// retrying once the plane has ended.
    async fn outcome_in_history(
        &self,
        part: &CommitPart,
        fence: FenceStatus,
        after: Revision,
    ) -> PartOutcome {
        let mut backoff = Backoff::default();
        loop {
            match self.landed(part, fence, after).await {
                Ok(outcome) => return outcome,
                Err(ReadError::Compacted { .. } | ReadError::Closed | ReadError::Corrupt(_)) => {
                    return PartOutcome::Unknowable;
                }
                Err(error @ (ReadError::Unavailable(_) | ReadError::Future { .. })) => {
                    tracing::debug!(plane = self.id(), %error, "the history cannot be read yet");
                }
            }
            if self.ends_within(backoff.next_pause()).await {
                return PartOutcome::Unknowable;
            }
        }
    }

    /// Waits until the plane has ended, and then for [`REPLY_PATIENCE`].
    async fn ended_long_ago(&self) {
        self.until_ended().await;
        tokio::time::sleep(REPLY_PATIENCE).await;
    }

    /// Returns whether a part that can no longer be applied is in the store's history after a revision.
    async fn landed(
        &self,
        part: &CommitPart,
        fence: FenceStatus,
        after: Revision,
    ) -> Result<PartOutcome, ReadError> {
        let (start, end) = self.keys().bounds();
        let history = self.store().history(start, end, after).await?;
        // Read after the history: the next owner takes the fence before its first write. So if the
        // history has such a write, this read finds the revision before it.
        let before = match fence {
            FenceStatus::Held => None,
            FenceStatus::Lost | FenceStatus::Untested => self.guard().superseded().await?,
        };
        let mut events = history.events;
        let external = |key: &[u8]| self.follow().is_some_and(|follow| follow.follows(key));
        events.retain(|event| {
            let own = before.is_none_or(|before| event.revision < before);
            own && !external(&event.key)
        });
        let Some(first) = events.first().map(|event| event.revision) else {
            return Ok(PartOutcome::NotDone);
        };
        events.retain(|event| event.revision == first);
        match (self.is_part(part, &events), fence) {
            (true, _) => Ok(PartOutcome::Done(first)),
            (false, FenceStatus::Lost) => Ok(PartOutcome::NotDone),
            (false, FenceStatus::Held | FenceStatus::Untested) => {
                let plane = self.id();
                tracing::error!(plane, %first, "the store has a commit of this plane that this replica did not send");
                Ok(PartOutcome::Unknowable)
            }
        }
    }

    /// Returns whether these events are exactly the operations of a part, in order, with equal
    /// bytes. A delete of an absent key makes no event.
    fn is_part(&self, part: &CommitPart, events: &[StoreEvent]) -> bool {
        let mut ops = Vec::new();
        encode(part, &mut ops);
        let mut events = events.iter().peekable();
        for op in &ops {
            let does = |event: &&StoreEvent| match op {
                Op::Put { key, value, .. } => {
                    event.key == *key && event.value.as_ref() == Some(value)
                }
                Op::Delete { key } => event.key == *key && event.value.is_none(),
            };
            match (events.next_if(does), op) {
                (Some(_), _) | (None, Op::Delete { .. }) => {}
                (None, Op::Put { .. }) => return false,
            }
        }
        events.peek().is_none()
    }

    /// Returns whether the published entry of each key of a part is the one that the part replaces.
    fn follows_published(&self, part: &CommitPart) -> bool {
        let published = self.published();
        let mut operations = part.writes.iter().flat_map(|write| &write.operations);
        operations.all(|operation| {
            let known = operation.previous.as_ref().map(|entry| entry.stamp());
            let found = published.resources.get(operation.key());
            found.map(|entry| entry.stamp()) == known
        })
    }

    fn compute_landing(&self, part: &CommitPart, revision: Revision) -> Landing {
        let context = self.context();
        let before = self.published();
        let mut root = (*before).clone();
        let mut events = Vec::with_capacity(part.writes.len());
        let mut defined = Vec::new();
        let mut bytes = 0;
        let mut answers = Vec::with_capacity(part.writes.len());
        let mut index = part.index;
        for write in &part.writes {
            let mut objects = Vec::with_capacity(write.operations.len());
            let mut last = Version::ZERO;
            if let Some(commit) = &write.layers {
                let version = Version::new(self.base(), revision, index);
                let landed = commit.land(&mut root, context, version);
                defined.extend(context.derive.defined(&landed));
                events.extend(landed);
                last = version.end_of_revision();
            }
            for operation in &write.operations {
                let known = root.overlay.clone();
                let version = Version::new(self.base(), revision, index);
                let (previous, current) = match &operation.change {
                    QueuedChange::Put { entry, .. } => {
                        let previous = operation.previous.as_ref();
                        let created = previous.and_then(|old| root.object(old).created());
                        let created = created.unwrap_or(version);
                        let durable =
                            entry.made_durable(Versions { version, created }, &context.interner);
                        bytes += durable.body_len();
                        let old = root.put(Arc::clone(&durable), context);
                        (old, Some(durable))
                    }
                    QueuedChange::Delete(key) => (root.remove(key, context), None),
                };
                let overlays = [known.as_ref(), root.overlay.as_ref()];
                defined.extend(Derive::changed(overlays, operation.key(), version));
                let previous = previous.map(|entry| root.object(&entry));
                let current = current.map(|entry| root.object(&entry));
                let object = current.clone().or_else(|| previous.clone());
                objects.push(Written {
                    object: object.expect("a delete was accepted only of what is there"),
                    version,
                });
                events.push(Event::new(
                    version,
                    operation.key().clone(),
                    previous,
                    current,
                ));
                last = version;
                index += 1;
            }
            answers.push(Committed {
                objects,
                version: last,
            });
        }
        let known = before.overlay.as_ref();
        root.overlay = context.derive.shared(root.overlay.take(), known);
        root.head = Version::after(self.base(), revision);
        Landing {
            root,
            events,
            defined,
            bytes,
            answers,
        }
    }

    fn note_expiries(&self, events: &[Arc<Event>]) {
        let expiry =
            |object: &crate::ObjectRef| object.expires().map(|at| (at, object.key().clone()));
        for event in events {
            let gone = event.previous().and_then(expiry);
            let new = event.current().and_then(expiry);
            if gone.is_none() && new.is_none() {
                continue;
            }
            let mut expiries = self.expiries().lock();
            if let Some(gone) = gone {
                expiries.remove(&gone);
            }
            expiries.extend(new);
        }
    }

    /// Ends a plane that has lost its fence, or cannot continue under it.
    pub(crate) fn end_lost(self: &Arc<Self>) {
        self.guard().lost();
        self.end(Ended::Lost);
    }
}

/// What is known of the fence once a part can no longer be applied.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum FenceStatus {
    /// It was put again.
    Held,
    Lost,
    /// It was not put again, because the reply to the part was final.
    Untested,
}

pub(crate) fn answer_all(writes: Vec<QueuedWrite>, answer: &SubmitError) {
    for write in writes {
        write.answer(Err(answer.clone()));
    }
}
