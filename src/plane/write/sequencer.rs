//! The sequencer of one plane: it checks claims, orders writes, and tracks them until they settle.
//!
//! All of this runs under one lock that is never held across a wait. The *accepted* state includes
//! writes under way, the *published* one does not. A *part* is the longest prefix of the queue in
//! which no key repeats; at most one part is under way. The fence's machine decides, through the
//! guard, whether writes are accepted and whether a part may be sent.

use std::collections::{HashSet, VecDeque};
use std::sync::Arc;

use arc_swap::ArcSwapOption;
use bytes::Bytes;
use polyplane_sealing::Nonce;
use polyplane_storage::Compare;
use tokio::sync::oneshot;

use crate::guard::{Intake, SendPermit};
use crate::history::watch::Ended;
use crate::key::Key;
use crate::layers::step::LayerCommit;
use crate::state::claim::Claim;
use crate::state::entry::Entry;
use crate::state::overlay::Overlay;
use crate::state::{Context, Cut, Root};
use crate::version::Version;
use crate::write::prepared_write::{Broken, Committed, SubmitError};

/// Number of withdrawals that are remembered, to tell whether a cut from before them still holds. A
/// cut that is older than all of them counts as withdrawn, and its answer is computed again.
const WITHDRAWALS_KEPT: usize = 64;
/// Number of writes in one plane's queue. Further writes wait outside the queue, in no order.
const QUEUE_MAX: usize = 10_000;
/// Bytes of durable entries that the accepted state may hold beside the copies in the published
/// state. Beyond this limit the accepted state is rebuilt from the published one.
const LANDED_BYTES_MAX: usize = 256 << 10;
/// Number of times that a write is sent again after the store did not reply to it and it was proven
/// not to be applied. More would hide a dead store from the client.
const UNANSWERED_MAX: u32 = 3;
/// Why a plane is read-only while no part of it was refused: the fence counts refused releases too.
const RELEASE_REFUSED: &str = "it has refused to release the control plane";

/// One operation in the queue.
#[derive(Debug)]
pub(crate) struct QueuedOperation {
    pub(crate) change: QueuedChange,
    /// The entry that the key had when the operation was accepted. It is published before the
    /// operation is sent, because a key occurs once in a part and only one part is under way.
    pub(crate) previous: Option<Arc<Entry>>,
}

/// The change that an operation makes.
#[derive(Debug)]
pub(crate) enum QueuedChange {
    /// Puts this entry.
    Put {
        entry: Arc<Entry>,
        /// The packed form of its body, if the store gets that.
        packed: Option<Bytes>,
        /// What its record is sealed with; `None` if it stays in clear.
        nonce: Option<Nonce>,
    },
    Delete(Key),
}

impl QueuedOperation {
    pub(crate) fn new(change: QueuedChange) -> Self {
        Self {
            change,
            previous: None,
        }
    }

    pub(crate) fn key(&self) -> &Key {
        match &self.change {
            QueuedChange::Put { entry, .. } => entry.key(),
            QueuedChange::Delete(key) => key,
        }
    }

    fn apply(&self, root: &mut Root, context: &Context) -> Option<Arc<Entry>> {
        match &self.change {
            QueuedChange::Put { entry, .. } => root.put(Arc::clone(entry), context),
            QueuedChange::Delete(key) => root.remove(key, context),
        }
    }
}

pub(crate) type Reply = oneshot::Sender<Result<Committed, SubmitError>>;

/// A write in the queue, with the channel for its answer.
#[derive(Debug)]
pub(crate) struct QueuedWrite {
    pub(crate) operations: Vec<QueuedOperation>,
    /// A commit of a layer step; it is a part of its own and has no `steps`.
    pub(crate) layers: Option<Arc<LayerCommit>>,
    pub(crate) bytes: usize,
    pub(crate) reply: Reply,
    position: u64,
    /// Number of times that the write was sent without a reply and was proven not to be applied.
    unanswered: u32,
}

impl QueuedWrite {
    pub(crate) fn new(operations: Vec<QueuedOperation>, bytes: usize, reply: Reply) -> Self {
        Self {
            operations,
            layers: None,
            bytes,
            reply,
            position: 0,
            unanswered: 0,
        }
    }

    pub(crate) fn layers(commit: Arc<LayerCommit>, bytes: usize, reply: Reply) -> Self {
        Self {
            layers: Some(commit),
            ..Self::new(Vec::new(), bytes, reply)
        }
    }

    /// Applies a write that was accepted before to an accepted state that is being rebuilt.
    fn apply_again(&self, root: &mut Root, context: &Context) {
        if let Some(commit) = &self.layers {
            commit.apply(root, context);
        }
        for operation in &self.operations {
            operation.apply(root, context);
        }
    }

    /// Returns the number of version indexes that the write needs.
    pub(crate) fn indexes(&self) -> usize {
        let layers = self.layers.as_ref().map_or(0, |commit| commit.changes());
        self.operations.len() + layers
    }

    /// Returns the number of operations of the write in the store, without the head record.
    pub(crate) fn ops(&self) -> usize {
        let layers = self.layers.as_ref();
        self.operations.len() + layers.map_or(0, |commit| 1 + commit.drops().len())
    }

    pub(crate) fn answer(self, answer: Result<Committed, SubmitError>) {
        // An error means that the caller has stopped waiting.
        let _ = self.reply.send(answer);
    }
}

/// The reason why a write was not added to the queue.
#[derive(Debug)]
pub(crate) enum NotAccepted {
    /// The answer to return to the caller.
    Answer(SubmitError),
    /// The plane does not accept writes now: try again when something about the plane has changed.
    Wait(QueuedWrite),
}

/// The answer to whether the caller must wake the committer, because this plane has work for it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[must_use]
pub(crate) enum Wakeup {
    Committer,
    None,
}

/// The room in a transaction that is left for a part.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Budget {
    /// Writes of one plane, at most.
    pub(crate) writes: usize,
    /// Operations of the writes, without those beside them.
    pub(crate) ops: usize,
    /// Number of version indexes left.
    pub(crate) indexes: usize,
    pub(crate) bytes: usize,
    /// Bytes beyond which a write gets a transaction of its own.
    pub(crate) alone_bytes: usize,
    /// True if the transaction has no parts yet.
    pub(crate) fresh: bool,
    /// Bytes that this round adds to the plane's share; `None` if no other plane waits.
    pub(crate) share: Option<usize>,
}

/// The answer of a plane that is offered room in a transaction.
#[derive(Debug)]
pub(crate) enum NextPart {
    /// These writes, to be sent with these compares.
    Part(Vec<QueuedWrite>, Vec<Compare>),
    /// The plane has writes, but none that fits into this transaction.
    Later,
    /// The plane has no writes, or must not send now. The code that permits it again wakes the
    /// committer.
    Nothing,
    /// The plane's tenure has ended.
    Lost,
}

/// The answer to whether the writes that a cut shows are settled.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum CutStatus {
    Durable,
    Pending,
    Withdrawn,
}

/// The sequencer's state, which is under one lock.
#[derive(Debug)]
pub(crate) struct Sequencer {
    accepted: Root,
    /// The overlay of `accepted`, for readers without the lock.
    overlay: Arc<ArcSwapOption<Overlay>>,
    /// Bytes of durable entries in `accepted` that are also in the published state.
    landed_bytes: usize,
    queue: VecDeque<QueuedWrite>,
    under_way: bool,
    /// True if the plane is in the committer's list.
    listed: bool,
    share: usize,
    /// The reason why the plane has ended here, if it has.
    ended: Option<Ended>,
    /// The store's reason for refusing the last refused part; `RELEASE_REFUSED` before there is one.
    refusal: String,
    /// The store's reason for refusing to settle the part under way; `None` while it does not. Until
    /// the part is settled, the accepted state lacks it and no write is accepted.
    withheld: Option<String>,
    /// The position of the last accepted write.
    position: u64,
    /// The position up to which all writes are settled.
    durable: u64,
    /// Number of withdrawals so far.
    withdrawal_count: u64,
    /// The value of `durable` at each of the last withdrawals.
    withdrawals: VecDeque<u64>,
}

impl Sequencer {
    pub(crate) fn new(accepted: Root) -> Self {
        let overlay = Arc::new(ArcSwapOption::new(accepted.overlay.clone()));
        Self {
            accepted,
            overlay,
            landed_bytes: 0,
            queue: VecDeque::new(),
            under_way: false,
            listed: false,
            share: 0,
            ended: None,
            refusal: RELEASE_REFUSED.to_owned(),
            withheld: None,
            position: 0,
            durable: 0,
            withdrawal_count: 0,
            withdrawals: VecDeque::new(),
        }
    }

    /// Returns the newest accepted state, and its position among the writes.
    pub(crate) fn accepted(&self) -> (Root, Cut) {
        let cut = Cut {
            position: self.position,
            withdrawal_count: self.withdrawal_count,
        };
        (self.accepted.clone(), cut)
    }

    /// Returns the cell that holds the overlay of the newest accepted state, also after later
    /// changes.
    pub(crate) fn overlay(&self) -> Arc<ArcSwapOption<Overlay>> {
        Arc::clone(&self.overlay)
    }

    /// Publishes the overlay of `accepted`. Called after each change of it.
    fn publish_overlay(&self) {
        let address = |overlay: Option<&Arc<Overlay>>| overlay.map(Arc::as_ptr);
        let shown = self.overlay.load();
        if address(shown.as_ref()) != address(self.accepted.overlay.as_ref()) {
            self.overlay.store(self.accepted.overlay.clone());
        }
    }

    /// Checks the claims and queues a write, unless `intake` forbids that.
    pub(crate) fn accept(
        &mut self,
        mut write: QueuedWrite,
        claims: &[Claim],
        context: &Context,
        intake: Intake,
    ) -> Result<Wakeup, NotAccepted> {
        let refuse = |error| Err(NotAccepted::Answer(error));
        if self.ended.is_some() {
            return refuse(SubmitError::Lost);
        }
        match intake {
            Intake::Open => {}
            Intake::Wait => match &self.withheld {
                Some(reason) => return refuse(SubmitError::ReadOnly(reason.clone())),
                None => return Err(NotAccepted::Wait(write)),
            },
            Intake::ReadOnly => return refuse(SubmitError::ReadOnly(self.refusal.clone())),
            Intake::Ended => return refuse(SubmitError::Lost),
        }
        if self.queue.len() >= QUEUE_MAX {
            return Err(NotAccepted::Wait(write));
        }
        if let Some(at) = claims.iter().position(|c| !self.accepted.holds(c)) {
            return refuse(SubmitError::ClaimFailed(Broken::Claim(at)));
        }
        let absent = |operation: &QueuedOperation| match &operation.change {
            QueuedChange::Put { .. } => false,
            QueuedChange::Delete(key) => self.accepted.resources.get(key).is_none(),
        };
        if let Some(at) = write.operations.iter().position(absent) {
            return refuse(SubmitError::ClaimFailed(Broken::Operation(at)));
        }
        if let Some(commit) = &write.layers {
            if !commit.holds(&self.accepted) {
                return refuse(SubmitError::Withdrawn);
            }
            commit.apply(&mut self.accepted, context);
        }
        for operation in &mut write.operations {
            operation.previous = operation.apply(&mut self.accepted, context);
        }
        self.publish_overlay();
        self.position += 1;
        write.position = self.position;
        self.queue.push_back(write);
        Ok(self.wakeup())
    }

    /// Removes the next part, as many writes as fit, from the queue, if `permit` allows it to be
    /// sent.
    pub(crate) fn take(&mut self, budget: Budget, permit: impl FnOnce() -> SendPermit) -> NextPart {
        let Some(first) = self.queue.front() else {
            return self.nothing();
        };
        let alone = first.bytes > budget.alone_bytes;
        if let Some(share) = budget.share {
            self.share += share;
        }
        let room = if alone { usize::MAX } else { budget.bytes };
        let bytes_max = match budget.share {
            Some(_) => self.share.min(room),
            None => room,
        };
        if (alone && !budget.fresh) || first.bytes > bytes_max {
            return NextPart::Later;
        }
        let fitting = self.fitting(budget, alone, bytes_max);
        if fitting == 0 {
            return NextPart::Later;
        }
        let compares = match permit() {
            SendPermit::Granted(compares) => compares,
            SendPermit::Wait => return self.nothing(),
            SendPermit::Lost => {
                self.listed = false;
                return NextPart::Lost;
            }
        };
        let part: Vec<QueuedWrite> = self.queue.drain(..fitting).collect();
        let bytes = part.iter().map(|write| write.bytes).sum();
        self.share = self.share.saturating_sub(bytes);
        self.listed = false;
        self.under_way = true;
        NextPart::Part(part, compares)
    }

    fn nothing(&mut self) -> NextPart {
        self.listed = false;
        self.share = 0;
        NextPart::Nothing
    }

    /// Returns the number of writes at the front of the queue that make the next part.
    fn fitting(&self, budget: Budget, alone: bool, bytes_max: usize) -> usize {
        let most = self.queue.len().min(budget.ops).min(budget.writes);
        let mut keys: HashSet<&Key> = HashSet::with_capacity(most);
        let mut bytes = 0;
        let mut ops = 0;
        let mut indexes = 0;
        let mut alone = alone;
        for (at, write) in self.queue.iter().enumerate() {
            let big = write.bytes > budget.alone_bytes || write.layers.is_some();
            let fits = bytes + write.bytes <= bytes_max
                && ops + write.ops() <= budget.ops
                && indexes + write.indexes() <= budget.indexes;
            // `check_operations` refuses a write that repeats a key itself. If one got here, it would
            // have to be sent: passing over the first write would keep the committer at it for ever.
            let mut of_write = write.operations.iter().map(QueuedOperation::key);
            let repeats = of_write.any(|key| !keys.insert(key));
            if !fits || at >= budget.writes || ((alone || big || repeats) && at > 0) {
                return at;
            }
            alone |= write.layers.is_some();
            bytes += write.bytes;
            ops += write.ops();
            indexes += write.indexes();
        }
        self.queue.len()
    }

    /// Records that a part is durable and published. The bodies of its entries have `bytes` together.
    ///
    /// The accepted state keeps the part's entries from before it was durable. Each refers to its
    /// durable form, and replacing them would copy a path of the tree for each.
    pub(crate) fn landed(
        &mut self,
        last: u64,
        published: &Root,
        bytes: usize,
        context: &Context,
    ) -> Wakeup {
        self.durable = self.durable.max(last);
        self.under_way = false;
        self.landed_bytes += bytes;
        if self.queue.is_empty() {
            self.share = 0;
        }
        if self.queue.is_empty() || self.landed_bytes > LANDED_BYTES_MAX {
            // Nothing else is under way, so the accepted state is the published one plus the queue.
            self.reset_to(published);
            for write in &self.queue {
                write.apply_again(&mut self.accepted, context);
            }
            self.publish_overlay();
        } else {
            self.accepted.head = published.head;
        }
        self.wakeup()
    }

    /// Sets the accepted state to the published one.
    fn reset_to(&mut self, published: &Root) {
        self.accepted = published.clone();
        self.landed_bytes = 0;
    }

    /// Puts a part back into the queue that was not applied and never will be, through no fault of
    /// its own. It is sent again unchanged, unless the plane has ended.
    pub(crate) fn requeue(&mut self, part: Vec<QueuedWrite>) -> Result<Wakeup, Vec<QueuedWrite>> {
        self.under_way = false;
        if self.ended.is_some() {
            return Err(part);
        }
        for write in part.into_iter().rev() {
            self.queue.push_front(write);
        }
        Ok(self.wakeup())
    }

    /// Gives up the part under way and sets the accepted state back to the published one. Returns
    /// the writes that were queued behind the part. They rest on it and must be prepared again.
    pub(crate) fn withdraw(&mut self, published: &Root) -> Vec<QueuedWrite> {
        self.under_way = false;
        self.withheld = None;
        self.reset_to(published);
        self.publish_overlay();
        self.withdrawals.push_back(self.durable);
        if self.withdrawals.len() > WITHDRAWALS_KEPT {
            self.withdrawals.pop_front();
        }
        self.withdrawal_count += 1;
        self.durable = self.position;
        self.share = 0;
        self.queue.drain(..).collect()
    }

    /// Takes the part under way, whose outcome cannot be settled yet, out of the accepted state, and
    /// refuses writes until it is settled. Returns the writes that were queued behind it.
    pub(crate) fn withhold(&mut self, published: &Root, reason: &str) -> Vec<QueuedWrite> {
        if self.ended.is_some() {
            return Vec::new();
        }
        let behind = self.withdraw(published);
        self.under_way = true;
        self.withheld = Some(reason.to_owned());
        behind
    }

    /// Returns why no write is accepted, if the part under way is withheld.
    pub(crate) fn withheld(&self) -> Option<&str> {
        self.withheld.as_deref()
    }

    /// Sets the accepted state to the published one, which has the withheld part by now. Call this
    /// before the guard permits writes again.
    pub(crate) fn include_withheld(&mut self, published: &Root) {
        self.withheld = None;
        self.reset_to(published);
        self.publish_overlay();
    }

    /// Remembers why the store refused a part. A read-only plane gives this reason to clients.
    pub(crate) fn note_refusal(&mut self, reason: &str) {
        reason.clone_into(&mut self.refusal);
    }

    /// Returns the store's reason for refusing the last refused part.
    pub(crate) fn refusal(&self) -> &str {
        &self.refusal
    }

    pub(crate) fn cut_status(&self, cut: Cut) -> CutStatus {
        let decide = |durable| {
            if cut.position <= durable {
                CutStatus::Durable
            } else {
                CutStatus::Pending
            }
        };
        if cut.withdrawal_count == self.withdrawal_count {
            return decide(self.durable);
        }
        let behind = self.withdrawal_count - cut.withdrawal_count;
        let behind = usize::try_from(behind).unwrap_or(usize::MAX);
        let kept = self.withdrawals.len().checked_sub(behind);
        match kept.map(|at| decide(self.withdrawals[at])) {
            Some(CutStatus::Durable) => CutStatus::Durable,
            Some(CutStatus::Pending | CutStatus::Withdrawn) | None => CutStatus::Withdrawn,
        }
    }

    /// Wakes the queue, because it may be sent again after a pause or a permit that had to wait.
    pub(crate) fn permits_changed(&mut self) -> Wakeup {
        self.wakeup()
    }

    /// Adds published external writes to the accepted state.
    pub(crate) fn apply_external(
        &mut self,
        changes: &[(Key, Option<Arc<Entry>>)],
        head: Version,
        context: &Context,
    ) {
        self.accepted.head = head;
        for (key, entry) in changes {
            match entry {
                Some(entry) => self.accepted.put(Arc::clone(entry), context),
                None => self.accepted.remove(key, context),
            };
        }
        self.publish_overlay();
    }

    /// Ends the plane at once. Returns the writes that were never sent.
    pub(crate) fn end(
        &mut self,
        ended: Ended,
        published: impl FnOnce() -> Arc<Root>,
    ) -> Vec<QueuedWrite> {
        if self.ended.is_some() {
            return Vec::new();
        }
        let under_way = self.under_way;
        let unsent = self.withdraw(&published());
        self.under_way = under_way;
        self.ended = Some(ended);
        unsent
    }

    /// Returns why the plane has ended here, if it has.
    pub(crate) fn ended(&self) -> Option<Ended> {
        self.ended
    }

    /// Returns whether no part is with the committer or the store, or unsettled.
    pub(crate) fn is_settled(&self) -> bool {
        !self.under_way
    }

    pub(crate) fn queued(&self) -> usize {
        self.queue.len()
    }

    fn wakeup(&mut self) -> Wakeup {
        if self.under_way || self.listed || self.queue.is_empty() || self.ended.is_some() {
            return Wakeup::None;
        }
        self.listed = true;
        Wakeup::Committer
    }
}

/// Counts one more time that a part got no reply and was not applied. Returns whether it may be
/// sent again.
pub(crate) fn may_resend(part: &mut [QueuedWrite]) -> bool {
    for write in &mut *part {
        write.unanswered += 1;
    }
    part.iter().all(|write| write.unanswered <= UNANSWERED_MAX)
}

/// Returns the position of the last write of a part.
pub(crate) fn last_position(part: &[QueuedWrite]) -> u64 {
    part.last().map_or(0, |write| write.position)
}
