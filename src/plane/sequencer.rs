//! The sequencer of one plane: which writes are accepted, in which order, and what becomes of them.
//!
//! Everything here runs under one short lock and never waits. The accepted state includes writes
//! under way; the published one does not. A part is the longest prefix of the queue without a
//! repeated key; at most one part is under way.

use std::collections::{HashSet, VecDeque};
use std::sync::Arc;

use tokio::sync::oneshot;

use crate::claim::{Broken, Claim, Committed, SubmitError};
use crate::entry::Entry;
use crate::key::Key;
use crate::state::{Context, Cut, Root};
use crate::step::LayerCommit;
use crate::version::Version;
use crate::watch::Ended;

/// How many withdrawals are remembered for those who still hold a cut from before them.
const WITHDRAWALS_KEPT: usize = 64;
/// Writes that wait in one plane's queue at most.
const QUEUE_MAX: usize = 10_000;
/// Bytes of landed entries that the accepted state may hold in the form they were under way in.
const LANDED_BYTES_MAX: usize = 256 << 10;
/// So often a write is sent again that was not answered and not done.
const UNANSWERED_MAX: u32 = 3;
/// So many final refusals in a row make the plane read-only.
const REJECTIONS_MAX: u32 = 3;

/// One operation as it waits.
#[derive(Debug)]
pub(crate) struct Step {
    pub(crate) change: Change,
    /// What the key had when the operation was accepted. Whatever wrote that has landed before
    /// this is sent, for a key stands once in a part and one part is under way.
    pub(crate) previous: Option<Arc<Entry>>,
}

/// What an operation does.
#[derive(Debug)]
pub(crate) enum Change {
    /// The entry under way.
    Put(Arc<Entry>),
    Delete(Key),
}

impl Step {
    pub(crate) fn new(change: Change) -> Self {
        Self {
            change,
            previous: None,
        }
    }

    pub(crate) fn key(&self) -> &Key {
        match &self.change {
            Change::Put(entry) => entry.key(),
            Change::Delete(key) => key,
        }
    }

    fn apply(&self, root: &mut Root, context: &Context) -> Option<Arc<Entry>> {
        match &self.change {
            Change::Put(entry) => root.put(Arc::clone(entry), context),
            Change::Delete(key) => root.remove(key, context),
        }
    }
}

pub(crate) type Reply = oneshot::Sender<Result<Committed, SubmitError>>;

/// A write with its answer's address.
#[derive(Debug)]
pub(crate) struct Queued {
    pub(crate) steps: Vec<Step>,
    /// A commit of a layer step; it is a part of its own and has no `steps`.
    pub(crate) layers: Option<Arc<LayerCommit>>,
    pub(crate) bytes: usize,
    pub(crate) reply: Reply,
    position: u64,
    /// How often it was sent without an answer and turned out not to be done.
    unanswered: u32,
}

impl Queued {
    pub(crate) fn new(steps: Vec<Step>, bytes: usize, reply: Reply) -> Self {
        Self {
            steps,
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

    /// Does what was accepted once more, to a state made anew.
    fn apply_again(&self, root: &mut Root, context: &Context) {
        if let Some(commit) = &self.layers {
            commit.apply(root, context);
        }
        for step in &self.steps {
            step.apply(root, context);
        }
    }

    /// Version indexes of its own.
    pub(crate) fn indexes(&self) -> usize {
        let layers = self.layers.as_ref().map_or(0, |commit| commit.places());
        self.steps.len() + layers
    }

    /// Operations in the store, the head record aside.
    pub(crate) fn ops(&self) -> usize {
        let layers = self.layers.as_ref();
        self.steps.len() + layers.map_or(0, |commit| 1 + commit.drops().len())
    }

    pub(crate) fn answer(self, answer: Result<Committed, SubmitError>) {
        // Whoever stopped waiting does not want to know.
        let _ = self.reply.send(answer);
    }
}

/// What the plane does with writes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Mode {
    Accepting,
    /// The outcome of a part is unknown: writes wait.
    Settling,
    /// The store refuses: writes are refused until a probe gets through.
    ReadOnly(String),
    /// Writes are refused, what is queued is finished.
    Closing,
    Ended(Ended),
}

/// Why a write did not get into the queue.
#[derive(Debug)]
pub(crate) enum NotAccepted {
    /// An answer for the caller.
    Answer(SubmitError),
    /// Try again when the mode has changed.
    Wait(Queued),
}

/// Whether somebody has to tell the committer that this plane has work.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[must_use]
pub(crate) enum Tell {
    Committer,
    Nobody,
}

/// How much of a transaction is left for a part.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Budget {
    pub(crate) ops: usize,
    /// Version indexes.
    pub(crate) indexes: usize,
    pub(crate) bytes: usize,
    /// Writes larger than this travel in a transaction of their own.
    pub(crate) alone_bytes: usize,
    /// Nothing is in the transaction yet.
    pub(crate) fresh: bool,
    /// What this plane's turn adds to its share; `None` if nobody else waits.
    pub(crate) share: Option<usize>,
}

/// What a plane gives to a transaction.
#[derive(Debug)]
pub(crate) enum Taken {
    Part(Vec<Queued>),
    /// It has work that does not fit this time.
    Later,
    Nothing,
}

/// What became of a cut.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Standing {
    Stands,
    Pending,
    Withdrawn,
}

/// The state under the lock.
#[derive(Debug)]
pub(crate) struct Sequencer {
    accepted: Root,
    /// Bytes of landed entries in `accepted` that are not what is published.
    landed_bytes: usize,
    queue: VecDeque<Queued>,
    under_way: bool,
    /// The plane stands in the committer's list.
    listed: bool,
    share: usize,
    pub(crate) mode: Mode,
    /// The last write that was accepted.
    position: u64,
    /// Everything up to this write is settled.
    durable: u64,
    generation: u64,
    /// What was durable at each of the last withdrawals.
    withdrawals: VecDeque<u64>,
    rejections: u32,
    /// The plane closes once the outcome is known.
    closing: bool,
    /// Nothing is sent: writes wait for the plane to go on, or to end.
    paused: bool,
}

impl Sequencer {
    pub(crate) fn new(accepted: Root) -> Self {
        Self {
            accepted,
            landed_bytes: 0,
            queue: VecDeque::new(),
            under_way: false,
            listed: false,
            share: 0,
            mode: Mode::Accepting,
            position: 0,
            durable: 0,
            generation: 0,
            withdrawals: VecDeque::new(),
            rejections: 0,
            closing: false,
            paused: false,
        }
    }

    /// The newest accepted state, and which writes it has in it.
    pub(crate) fn accepted(&self) -> (Root, Cut) {
        let cut = Cut {
            position: self.position,
            generation: self.generation,
        };
        (self.accepted.clone(), cut)
    }

    /// Checks the claims and puts a write into its place.
    pub(crate) fn accept(
        &mut self,
        mut write: Queued,
        claims: &[Claim],
        context: &Context,
    ) -> Result<Tell, NotAccepted> {
        let refuse = |error| Err(NotAccepted::Answer(error));
        match &self.mode {
            Mode::Accepting if self.paused => return Err(NotAccepted::Wait(write)),
            Mode::Accepting => {}
            Mode::Settling => return Err(NotAccepted::Wait(write)),
            Mode::ReadOnly(reason) => return refuse(SubmitError::ReadOnly(reason.clone())),
            Mode::Closing | Mode::Ended(_) => return refuse(SubmitError::Lost),
        }
        if self.queue.len() >= QUEUE_MAX {
            return Err(NotAccepted::Wait(write));
        }
        if let Some(at) = claims.iter().position(|c| !self.accepted.holds(c)) {
            return refuse(SubmitError::ClaimFailed(Broken::Claim(at)));
        }
        let absent = |step: &Step| match &step.change {
            Change::Put(_) => false,
            Change::Delete(key) => self.accepted.resources.get(key).is_none(),
        };
        if let Some(at) = write.steps.iter().position(absent) {
            return refuse(SubmitError::ClaimFailed(Broken::Operation(at)));
        }
        if let Some(commit) = &write.layers {
            if !commit.holds(&self.accepted) {
                return refuse(SubmitError::Withdrawn);
            }
            commit.apply(&mut self.accepted, context);
        }
        for step in &mut write.steps {
            step.previous = step.apply(&mut self.accepted, context);
        }
        self.position += 1;
        write.position = self.position;
        self.queue.push_back(write);
        Ok(self.tell())
    }

    /// Takes the next part out of the queue, as far as it fits.
    pub(crate) fn take(&mut self, budget: Budget) -> Taken {
        let Some(first) = self.queue.front().filter(|_| !self.paused) else {
            self.listed = false;
            self.share = 0;
            return Taken::Nothing;
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
            return Taken::Later;
        }
        let mut part: Vec<Queued> = Vec::new();
        let mut keys: HashSet<Key> = HashSet::new();
        let mut bytes = 0;
        // One operation is kept for the head record.
        let mut ops = 1;
        let mut indexes = 0;
        while let Some(write) = self.queue.front() {
            let big = write.bytes > budget.alone_bytes || write.layers.is_some();
            let alone = alone || part.iter().any(|write| write.layers.is_some());
            let fits = bytes + write.bytes <= bytes_max
                && ops + write.ops() <= budget.ops
                && indexes + write.indexes() <= budget.indexes;
            let repeats = write.steps.iter().any(|step| keys.contains(step.key()));
            if !fits || repeats || ((alone || big) && !part.is_empty()) {
                break;
            }
            bytes += write.bytes;
            ops += write.ops();
            indexes += write.indexes();
            keys.extend(write.steps.iter().map(|step| step.key().clone()));
            part.extend(self.queue.pop_front());
        }
        if part.is_empty() {
            return Taken::Later;
        }
        self.share = self.share.saturating_sub(bytes);
        self.listed = false;
        self.under_way = true;
        Taken::Part(part)
    }

    /// A part is durable and published.
    ///
    /// Its entries stay in the accepted state as they were under way: they know what became of
    /// them, and to put the durable ones in their place would copy a path of the tree for each.
    pub(crate) fn landed(
        &mut self,
        last: u64,
        published: &Root,
        entries: &[Arc<Entry>],
        context: &Context,
    ) -> Tell {
        self.durable = self.durable.max(last);
        self.under_way = false;
        self.rejections = 0;
        self.end_settling();
        self.landed_bytes += entries.iter().map(|entry| entry.body_len()).sum::<usize>();
        if self.queue.is_empty() {
            self.share = 0;
        }
        if self.queue.is_empty() || self.landed_bytes > LANDED_BYTES_MAX {
            // What is accepted is what is published, and the queue.
            self.rest_on(published);
            for write in &self.queue {
                write.apply_again(&mut self.accepted, context);
            }
        } else {
            self.accepted.head = published.head;
        }
        self.tell()
    }

    /// Nothing is accepted but what is published.
    fn rest_on(&mut self, published: &Root) {
        self.accepted = published.clone();
        self.landed_bytes = 0;
    }

    /// Nothing of a part was done, nor will be, and nothing is wrong with it: it goes again
    /// unchanged, unless the plane has ended meanwhile.
    pub(crate) fn again(&mut self, part: Vec<Queued>) -> Result<Tell, Vec<Queued>> {
        self.under_way = false;
        self.end_settling();
        if matches!(self.mode, Mode::Ended(_)) {
            return Err(part);
        }
        for write in part.into_iter().rev() {
            self.queue.push_front(write);
        }
        Ok(self.tell())
    }

    /// A part came to nothing: the accepted state falls back to the published one. Returns what was
    /// queued behind it, to be prepared again.
    pub(crate) fn withdraw(&mut self, published: &Root) -> Vec<Queued> {
        self.under_way = false;
        self.rest_on(published);
        self.withdrawals.push_back(self.durable);
        if self.withdrawals.len() > WITHDRAWALS_KEPT {
            self.withdrawals.pop_front();
        }
        self.generation += 1;
        self.durable = self.position;
        self.share = 0;
        self.end_settling();
        self.queue.drain(..).collect()
    }

    /// The outcome of the part under way is unknown: writes wait.
    pub(crate) fn settling(&mut self) {
        if !matches!(self.mode, Mode::Ended(_)) {
            self.closing |= self.mode == Mode::Closing;
            self.mode = Mode::Settling;
        }
    }

    /// Counts a final refusal by the store; too many in a row make the plane read-only.
    pub(crate) fn rejected(&mut self, reason: &str) {
        self.rejections += 1;
        if self.rejections >= REJECTIONS_MAX && self.mode == Mode::Accepting {
            self.mode = Mode::ReadOnly(reason.to_owned());
        }
    }

    /// The store takes writes again.
    pub(crate) fn writable(&mut self) {
        if matches!(self.mode, Mode::ReadOnly(_)) {
            self.mode = Mode::Accepting;
            self.rejections = 0;
        }
    }

    pub(crate) fn standing(&self, cut: Cut) -> Standing {
        let decide = |durable| {
            if cut.position <= durable {
                Standing::Stands
            } else {
                Standing::Pending
            }
        };
        if cut.generation == self.generation {
            return decide(self.durable);
        }
        let behind = usize::try_from(self.generation - cut.generation).unwrap_or(usize::MAX);
        let kept = self.withdrawals.len().checked_sub(behind);
        match kept.map(|at| decide(self.withdrawals[at])) {
            Some(Standing::Stands) => Standing::Stands,
            Some(Standing::Pending | Standing::Withdrawn) | None => Standing::Withdrawn,
        }
    }

    /// Sends nothing from now on.
    pub(crate) fn pause(&mut self) {
        self.paused = true;
    }

    /// Sends again.
    pub(crate) fn resume(&mut self) -> Tell {
        self.paused = false;
        self.tell()
    }

    /// Nothing may be sent.
    pub(crate) fn holds_back(&self) -> bool {
        self.paused || matches!(self.mode, Mode::Ended(_))
    }

    /// Paused with nothing under way: what is published stays as it is.
    pub(crate) fn is_held(&self) -> bool {
        self.paused && self.is_settled()
    }

    /// Writes past this sequencer were published.
    pub(crate) fn beside(
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
    }

    /// Refuses new writes from now on and sends the rest; says whether the plane has ended.
    pub(crate) fn close(&mut self, ended: Ended) -> (bool, Tell) {
        self.paused = false;
        match self.mode {
            Mode::Ended(_) => return (true, Tell::Nobody),
            Mode::Settling => self.closing = true,
            Mode::Accepting | Mode::ReadOnly(_) | Mode::Closing => self.mode = Mode::Closing,
        }
        let idle = !self.under_way && self.queue.is_empty();
        if idle {
            self.mode = Mode::Ended(ended);
        }
        (idle, self.tell())
    }

    /// Ends at once. Returns what was never sent.
    pub(crate) fn end(
        &mut self,
        ended: Ended,
        published: impl FnOnce() -> Arc<Root>,
    ) -> Vec<Queued> {
        if matches!(self.mode, Mode::Ended(_)) {
            return Vec::new();
        }
        let under_way = self.under_way;
        let unsent = self.withdraw(&published());
        self.under_way = under_way;
        self.mode = Mode::Ended(ended);
        unsent
    }

    /// No part was sent whose outcome is not known yet.
    pub(crate) fn is_settled(&self) -> bool {
        !self.under_way && self.mode != Mode::Settling
    }

    pub(crate) fn queued(&self) -> usize {
        self.queue.len()
    }

    fn end_settling(&mut self) {
        if self.mode == Mode::Settling {
            self.mode = if self.closing {
                Mode::Closing
            } else {
                Mode::Accepting
            };
        }
    }

    fn tell(&mut self) -> Tell {
        if self.under_way || self.listed || self.queue.is_empty() {
            return Tell::Nobody;
        }
        self.listed = true;
        Tell::Committer
    }
}

/// Counts that a part was sent without an answer and not done; says whether it goes again.
pub(crate) fn goes_again(part: &mut [Queued]) -> bool {
    for write in &mut *part {
        write.unanswered += 1;
    }
    part.iter().all(|write| write.unanswered <= UNANSWERED_MAX)
}

/// The position of the last write of a part.
pub(crate) fn last_position(part: &[Queued]) -> u64 {
    part.last().map_or(0, |write| write.position)
}
