//! One process of the model: the crate's machines and as little of a driver as they need. Owns the
//! process's clock, the plane's published state, the batch in flight and one slow reader.

use polyplane_fencing::{
    Action, CommitPermit, Compare, Event, Fence, Holder, Incarnation, Intake, Member, Observed,
    PlaneFence, PlaneKind, ReplicaId, Revision, Tenure, Terms, Time, Transaction, Verdict,
    ViewNumber, Witness, member,
};

mod canonical;
mod changing;

pub use canonical::since_origin;

use super::{Happening, MARGIN, Message, ORIGIN, READ_LEASE, Request, Scenario, Writes};

/// The member keys as a process has seen them.
#[derive(Debug, Clone, Copy)]
pub struct View {
    pub number: Revision,
    pub members: [Option<Incarnation>; 3],
}

/// A state taken from memory for a request that is not answered yet.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Read {
    pub tenure: Tenure,
    pub value: Writes,
    /// The writes that had been acknowledged or seen when the request arrived.
    pub floor: Writes,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
enum MemberRead {
    Idle,
    Sent(Time),
    Served(Time, Option<Incarnation>),
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
enum Stream {
    None,
    Chosen(usize),
    Running(usize),
}

/// A batch whose barrier was refused. Two reads of the store, one after the other, decide its
/// outcome.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Unsettled {
    pub write: u8,
    /// The revision of the fence that the batch compared.
    pub compared: Revision,
    /// The length of the history when the batch was sent; later entries are newer than the batch.
    pub sent_after: usize,
    pub history: Option<Vec<u8>>,
    pub superseded: Option<Option<usize>>,
}

/// The purpose of a pause: what follows once the plane stands still.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Intent {
    HandOff { to: usize },
    Sleep,
    Delete,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash)]
struct Machines {
    member: Member,
    fence: PlaneFence,
    witness: Witness,
    me: Holder,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Replica {
    name: usize,
    clock: u64,
    lost_a_tick: bool,
    machines: Option<Machines>,
    seen: Revision,
    /// The member keys of the newest view that the process has seen.
    members: [Option<Incarnation>; 3],
    /// Number of ticks since the member key was dropped, counted only as far as it matters.
    key_lost_for: Option<u64>,
    /// The newest tenure, open or ended: a slow handler may still hold it.
    tenure: Option<Tenure>,
    state: Vec<u8>,
    batch: Option<u8>,
    received: Option<Vec<u8>>,
    stream: Stream,
    read: Option<Read>,
    member_read: MemberRead,
    /// The fence's revision and the length of the history when the batch in flight was sent.
    sent: (Revision, usize),
    unsettled: Option<Unsettled>,
    intent: Option<Intent>,
    /// True if the caller of the batch in flight has stopped waiting.
    gave_up: bool,
    /// The revision of the newest member read; the next field has a bookmark that was begun.
    observed: usize,
    bookmark: Option<Option<usize>>,
    /// The lease terms that a newcomer has read.
    terms_read: Option<Observed<Terms>>,
}

/// Returns a newcomer of this process's name.
pub fn newcomer(scenario: &Scenario, process: usize) -> Member {
    let cadence = member::Cadence {
        read_every: polyplane_fencing::Duration::from_nanos(1),
        renew_every: polyplane_fencing::Duration::from_nanos(1),
    };
    let id = scenario.id(process);
    let (member, _) = Member::new(id, scenario.first, cadence, scenario.rules);
    member
}

impl Replica {
    pub fn idle(name: usize) -> Self {
        Self {
            name,
            clock: ORIGIN,
            lost_a_tick: false,
            machines: None,
            seen: Revision::default(),
            members: [None; 3],
            key_lost_for: None,
            tenure: None,
            state: Vec::new(),
            batch: None,
            received: None,
            stream: Stream::None,
            read: None,
            member_read: MemberRead::Idle,
            sent: (Revision::default(), 0),
            unsettled: None,
            intent: None,
            gave_up: false,
            observed: 0,
            bookmark: None,
            terms_read: None,
        }
    }

    /// Begins a life without planes.
    pub fn begin(&mut self, scenario: &Scenario, member: Member) {
        let me = member
            .holder()
            .cloned()
            .expect("a newcomer that joined has a life");
        let fence = PlaneFence::new(me.clone(), PlaneKind::Root, scenario.rules);
        let fence = fence.read_only_after(scenario.read_only_after);
        let witness = Witness::shared_store(member.terms().wait(scenario.rules));
        *self = Self {
            clock: self.clock,
            lost_a_tick: self.lost_a_tick,
            machines: Some(Machines {
                member,
                fence,
                witness,
                me,
            }),
            ..Self::idle(self.name)
        };
    }

    pub fn name(&self) -> usize {
        self.name
    }

    pub fn runs(&self) -> bool {
        self.machines.is_some()
    }

    /// Returns the life that this process has or had.
    pub fn holder(&self) -> Option<Holder> {
        self.machines.as_ref().map(|machines| machines.me.clone())
    }

    pub fn now(&self) -> Time {
        Time::from_nanos(self.clock)
    }

    pub fn advance(&mut self, ticks: u64) {
        self.clock += ticks;
    }

    pub fn may_lose_a_tick(&self) -> bool {
        self.runs() && !self.lost_a_tick
    }

    pub fn lose_a_tick(&mut self) {
        self.lost_a_tick = true;
    }

    pub fn key_was_lost(&mut self) {
        self.key_lost_for.get_or_insert(0);
    }

    pub fn key_stays_lost(&mut self, more: u64) {
        if let Some(ticks) = &mut self.key_lost_for {
            *ticks = (*ticks + more).min(READ_LEASE + MARGIN);
        }
    }

    pub fn key_lost_for(&self) -> Option<u64> {
        self.key_lost_for
    }

    pub fn seen(&self) -> Revision {
        self.seen
    }

    /// Returns the newest view that the process has seen, as it sends it to a peer.
    pub fn view(&self) -> View {
        View {
            number: self.seen,
            members: self.members,
        }
    }

    /// Returns whether the process believes that its member key exists.
    pub fn believes_to_live(&self) -> bool {
        let machines = self.machines.as_ref();
        machines.is_some_and(|machines| machines.member.holder().is_some())
    }

    pub fn see(&mut self, view: View, ids: &[(usize, ReplicaId)]) {
        let now = self.now();
        self.seen = view.number;
        self.members = view.members;
        let Some(machines) = &mut self.machines else {
            return;
        };
        let holder = |(name, incarnation): (usize, &Option<Incarnation>)| {
            let incarnation = (*incarnation)?;
            let (_, replica) = ids.iter().find(|(known, _)| *known == name)?;
            Some(Holder {
                replica: replica.clone(),
                incarnation,
            })
        };
        let members = view.members.iter().enumerate().filter_map(holder);
        machines
            .witness
            .observe(now, ViewNumber::new(view.number.get()), members);
    }

    pub fn member_step(&mut self, event: member::Event) -> Vec<member::Action> {
        let now = self.now();
        match &mut self.machines {
            Some(machines) => machines.member.step(now, event),
            None => Vec::new(),
        }
    }

    pub fn fence_step(&mut self, event: Event) -> Vec<Action> {
        let now = self.now();
        match &mut self.machines {
            Some(machines) => machines.fence.step(now, event),
            None => Vec::new(),
        }
    }

    pub fn acquire(&mut self, fence: Option<Observed<Fence>>) -> Vec<Action> {
        let now = self.now();
        match &mut self.machines {
            Some(machines) => {
                let sighting = machines.witness.sighting(fence);
                machines.fence.step(now, Event::Acquire(sighting))
            }
            None => Vec::new(),
        }
    }

    pub fn tenure(&self) -> Option<Tenure> {
        self.machines.as_ref()?.fence.tenure()
    }

    /// Returns whether an answer under the newest tenure would be sent now.
    pub fn answers(&self) -> bool {
        self.tenure()
            .is_some_and(|tenure| self.verdict(tenure) == Verdict::Answer)
    }

    fn verdict(&self, tenure: Tenure) -> Verdict {
        match &self.machines {
            Some(machines) => machines
                .fence
                .answer(self.now(), machines.member.lease(), tenure),
            None => Verdict::Moved,
        }
    }

    pub fn permit(&self) -> CommitPermit {
        match (&self.machines, self.tenure()) {
            (Some(machines), Some(tenure)) => machines.fence.commit_permit(self.now(), tenure),
            (Some(_), None) | (None, _) => CommitPermit::Moved,
        }
    }

    pub fn message(
        &self,
        attempt: polyplane_fencing::Attempt,
        transaction: Transaction,
    ) -> Message {
        self.message_for(Request::Fence(attempt), transaction)
    }

    fn message_for(&self, request: Request, transaction: Transaction) -> Message {
        Message {
            from: usize::MAX,
            sender: self.holder(),
            request,
            transaction,
            sent: self.now(),
            reply: None,
            forgotten: false,
        }
    }

    pub fn send_write(&mut self, write: u8) -> Message {
        let CommitPermit::Granted(guard) = self.permit() else {
            panic!("a write is sent only with a permit");
        };
        let epoch = self.tenure().map(Tenure::epoch).unwrap_or_default();
        let compared = match guard.fence() {
            Some(Compare::FenceAt(revision)) => revision,
            _ => Revision::default(),
        };
        self.sent = (compared, self.state.len());
        self.gave_up = false;
        self.fence_step(Event::CommitSent);
        self.batch = Some(write);
        let compares = guard.fence().into_iter().chain(guard.member()).collect();
        let transaction = Transaction {
            compares,
            writes: Vec::new(),
        };
        self.message_for(Request::Commit { write, epoch }, transaction)
    }

    pub fn intake(&self) -> Intake {
        match (&self.machines, self.tenure()) {
            (Some(machines), Some(tenure)) => machines.fence.intake(tenure),
            (Some(_), None) | (None, _) => Intake::Ended,
        }
    }

    /// Returns whether the process answers and accepts a write.
    pub fn serves(&self) -> bool {
        self.answers() && matches!(self.permit(), CommitPermit::Granted(_))
    }

    pub fn is_quiescent(&self) -> bool {
        let (Some(machines), Some(tenure)) = (&self.machines, self.tenure) else {
            return false;
        };
        machines.fence.is_quiescent(tenure)
    }

    pub fn is_relinquishing(&self) -> bool {
        let machines = self.machines.as_ref();
        machines.is_some_and(|machines| machines.fence.is_relinquishing())
    }

    pub fn intend(&mut self, intent: Intent) {
        self.intent = Some(intent);
    }

    /// Removes and returns the purpose of the pause, if the plane stands still now.
    pub fn take_intent(&mut self) -> Option<Intent> {
        match self.is_quiescent() || self.is_relinquishing() {
            true => self.intent.take(),
            false => None,
        }
    }

    pub fn drop_intent(&mut self) {
        self.intent = None;
    }

    pub fn has_intent(&self) -> bool {
        self.intent.is_some()
    }

    /// Records that the barrier of the batch was refused, so that its outcome must be read.
    pub fn leave_unsettled(&mut self, write: u8) {
        let (compared, sent_after) = self.sent;
        self.unsettled = Some(Unsettled {
            write,
            compared,
            sent_after,
            history: None,
            superseded: None,
        });
    }

    pub fn unsettled(&self) -> Option<&Unsettled> {
        self.unsettled.as_ref()
    }

    pub fn unsettled_mut(&mut self) -> Option<&mut Unsettled> {
        self.unsettled.as_mut()
    }

    pub fn settle(&mut self) -> Option<Unsettled> {
        self.unsettled.take()
    }

    pub fn give_up(&mut self) {
        self.gave_up = true;
    }

    /// Returns whether a caller waits for the batch in flight.
    pub fn waits(&self) -> bool {
        self.batch.is_some() && !self.gave_up
    }

    pub fn has_batch(&self) -> bool {
        self.batch.is_some()
    }

    pub fn gave_up(&self) -> bool {
        self.gave_up
    }

    pub fn observe(&mut self, revision: usize) {
        self.observed = self.observed.max(revision);
    }

    pub fn observed(&self) -> usize {
        self.observed
    }

    pub fn bookmark_mut(&mut self) -> &mut Option<Option<usize>> {
        &mut self.bookmark
    }

    pub fn bookmark(&self) -> Option<Option<usize>> {
        self.bookmark
    }

    /// Returns whether a bookmark may name a member read: in an open tenure with nothing under way.
    pub fn may_bookmark(&self) -> bool {
        self.tenure().is_some() && self.batch.is_none() && self.unsettled.is_none()
    }

    pub fn take_batch(&mut self) -> Option<u8> {
        self.batch.take()
    }

    pub fn publish(&mut self, write: u8) {
        if self.batch.take().is_some() {
            self.state.push(write);
        }
    }

    pub fn state(&self) -> &[u8] {
        &self.state
    }

    pub fn load(&mut self, stored: Vec<u8>) -> Event {
        self.received = None;
        self.state = stored;
        self.keep()
    }

    pub fn load_stream(&mut self) -> Event {
        self.state = self.received.take().unwrap_or_default();
        self.keep()
    }

    pub fn keep(&mut self) -> Event {
        self.batch = None;
        self.tenure = self.tenure();
        Event::Loaded { head: self.head() }
    }

    pub fn replay(&mut self, history: Vec<u8>) -> Event {
        self.state = history;
        Event::Replayed { head: self.head() }
    }

    fn head(&self) -> Revision {
        Revision::new(self.state.len() as u64)
    }

    /// Returns the writes in the state in memory.
    pub fn writes(&self) -> Writes {
        self.state
            .iter()
            .fold(0, |writes, write| writes | 1 << write)
    }

    /// Returns whether a handler that holds the newest tenure could still answer at some time.
    pub fn may_read(&self) -> bool {
        self.tenure
            .is_some_and(|tenure| self.verdict(tenure) != Verdict::Moved)
    }

    pub fn read(&mut self, floor: Writes) {
        let value = self.writes();
        self.read = self.tenure.map(|tenure| Read {
            tenure,
            value,
            floor,
        });
    }

    pub fn has_read(&self) -> bool {
        self.read.is_some()
    }

    pub fn check_read(&self) -> Option<(Read, Verdict)> {
        self.read.map(|read| (read, self.verdict(read.tenure)))
    }

    pub fn end_read(&mut self) {
        self.read = None;
    }

    /// Returns whether a member read now would lengthen the read lease, or find the loss.
    pub fn wants_proof(&self) -> bool {
        self.machines.as_ref().is_some_and(|machines| {
            let lease = machines.member.lease();
            let until = lease.until().map_or(0, Time::as_nanos);
            machines.member.holder().is_some() && until < self.clock + lease.length().as_nanos()
        })
    }

    pub fn next_of_member_read(&self, process: usize) -> Option<Happening> {
        match self.member_read {
            MemberRead::Idle if self.wants_proof() => Some(Happening::SendMemberRead(process)),
            MemberRead::Idle => None,
            MemberRead::Sent(_) => Some(Happening::ServeMemberRead(process)),
            MemberRead::Served(..) => Some(Happening::AnswerMemberRead(process)),
        }
    }

    pub fn send_member_read(&mut self) {
        self.member_read = MemberRead::Sent(self.now());
    }

    pub fn serve_member_read(&mut self, found: Option<Incarnation>) {
        if let MemberRead::Sent(sent) = self.member_read {
            self.member_read = MemberRead::Served(sent, found);
        }
    }

    pub fn take_member_read(&mut self) -> Option<(Time, Option<Incarnation>)> {
        let MemberRead::Served(sent, found) = self.member_read else {
            return None;
        };
        self.member_read = MemberRead::Idle;
        Some((sent, found))
    }

    pub fn receive_stream(&mut self, state: Vec<u8>) -> Event {
        let head = Revision::new(state.len() as u64);
        self.received = Some(state);
        Event::StreamReceived { head }
    }

    pub fn has_stream(&self) -> bool {
        self.received.is_some()
    }

    pub fn stream_towards(&mut self, to: usize) {
        self.stream = Stream::Chosen(to);
    }

    pub fn stream_runs(&mut self) {
        if let Stream::Chosen(to) = self.stream {
            self.stream = Stream::Running(to);
        }
    }

    pub fn stream_is_over(&mut self) {
        self.stream = Stream::None;
    }

    pub fn streaming_to(&self) -> Option<usize> {
        match self.stream {
            Stream::Running(to) => Some(to),
            Stream::None | Stream::Chosen(_) => None,
        }
    }

    pub fn leaving(&self) -> bool {
        self.stream != Stream::None
    }

    /// Returns whether calling a hand-off off would have an effect.
    pub fn may_call_off(&self) -> bool {
        let mut probe = self.clone();
        !probe.fence_step(Event::CallOff).is_empty()
    }
}
