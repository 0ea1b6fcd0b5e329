//! The protocol in a hostile world: one plane, up to three processes, one store, and transactions
//! that are applied late, whose replies are late or lost. Owns the scenarios and the possible
//! events; every decision is made by the crate's own machines.
//!
//! A paused process is one that is not scheduled. One tick is one nanosecond on every clock, but
//! each process may miss one tick in a run. The read lease is two ticks, the margin one.

mod breach;
mod canonical;
mod changing;
mod replica;
pub mod scenarios;
pub mod search;
mod store;
mod tenure;
mod world;

use std::sync::Arc;

use polyplane_fencing::{CommitPermit, Duration, LeaseTerms, ReplicaId, Rule, Rules, Terms};
use stateright::{Model, Property};

pub use breach::Breach;
use replica::Replica;
use store::{Message, Request, Store};

/// R in ticks.
pub const READ_LEASE: u64 = 2;
/// The margin in ticks.
pub const MARGIN: u64 = 1;
/// The time at which every clock begins.
pub const ORIGIN: u64 = 100;

/// A set of writes, one bit each.
pub type Writes = u32;

/// The choice whether a reply may arrive long after its transaction was applied.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Replies {
    Prompt,
    Lagging,
}

/// The way in which the member key is read.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum MemberReads {
    /// Nothing is read: only writes are checked.
    None,
    /// A read is sent, served and answered in one step.
    AtOnce,
    /// A read takes three steps.
    InSteps,
}

/// The choice whether processes send each other their views.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum PeerViews {
    Untold,
    Told,
}

/// The choice whether puts of the fence have budgets of their own.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Puts {
    /// A lost or rejected put counts in the same budget as a lost or rejected commit.
    AsCommits,
    /// Lost and rejected puts count in budgets of their own.
    Apart,
}

/// The choice whether the check includes that each lone survivor can acquire the plane (F8).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Survival {
    Unchecked,
    Checked,
}

/// The number of times that each event may happen in one run.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Hash)]
pub struct Budget {
    pub writes: u8,
    pub reads: u8,
    pub acquires: u8,
    pub hand_offs: u8,
    pub losses: u8,
    pub expiries: u8,
    pub ticks: u8,
    /// Ticks that one of the clocks misses.
    pub slow: u8,
    /// Transactions that the store refuses to consider.
    pub rejections: u8,
    pub sleeps: u8,
    pub deletions: u8,
    /// Tasks that die between a transaction and its reply.
    pub deaths: u8,
    /// Callers that stop waiting.
    pub give_ups: u8,
    pub bookmarks: u8,
    /// Lost puts of the fence, if [`Puts::Apart`]; the next field has the rejected ones.
    pub lost_puts: u8,
    pub rejected_puts: u8,
}

/// A function that selects one count of a budget.
type Count = fn(&Budget) -> u8;

impl Budget {
    fn fields(&self) -> [u8; 16] {
        [
            self.writes,
            self.reads,
            self.acquires,
            self.hand_offs,
            self.losses,
            self.expiries,
            self.ticks,
            self.slow,
            self.rejections,
            self.sleeps,
            self.deletions,
            self.deaths,
            self.give_ups,
            self.bookmarks,
            self.lost_puts,
            self.rejected_puts,
        ]
    }

    /// Packs the counts into four bits each, the highest of which is clear.
    fn packed(&self) -> u64 {
        self.fields().into_iter().fold(0, |packed, count| {
            assert!(count < 8, "small budgets only");
            packed << 4 | u64::from(count)
        })
    }

    fn unpacked(packed: u64) -> Self {
        let count = |at: u32| (packed >> (4 * (15 - at)) & 15) as u8;
        Self {
            writes: count(0),
            reads: count(1),
            acquires: count(2),
            hand_offs: count(3),
            losses: count(4),
            expiries: count(5),
            ticks: count(6),
            slow: count(7),
            rejections: count(8),
            sleeps: count(9),
            deletions: count(10),
            deaths: count(11),
            give_ups: count(12),
            bookmarks: count(13),
            lost_puts: count(14),
            rejected_puts: count(15),
        }
    }
}

impl World {
    /// Returns the number of events so far, by kind.
    pub fn spent(&self) -> &Budget {
        &self.spent
    }
}

/// The space that one check explores.
#[derive(Debug, Clone)]
pub struct Scenario {
    pub rules: Rules,
    /// The replica name of each process; two processes of one name are two incarnations.
    pub names: Vec<usize>,
    /// Number of processes that run from the start. The others may start at any time.
    pub running: usize,
    pub budget: Budget,
    pub replies: Replies,
    pub member_reads: MemberReads,
    pub peer_views: PeerViews,
    pub survival: Survival,
    pub puts: Puts,
    /// Number of refusals in a row that make a plane read-only.
    pub read_only_after: u8,
    /// Number of ticks by which one event moves the clocks: a whole wait at once, where no answer
    /// depends on single ticks.
    pub stride: u64,
    /// The lease terms at the start of the run.
    pub first: LeaseTerms,
    /// The lease terms that they change to in the run. Neither wait is longer than that of the
    /// terms in the other scenarios.
    pub then: Option<LeaseTerms>,
    /// A filter for events: a scenario that looks for one hole leaves out events that have no part
    /// in it.
    pub focus: Option<fn(&World, Happening) -> bool>,
    ids: Vec<ReplicaId>,
}

impl Scenario {
    /// Returns a scenario of two replicas and all rules, in which process 0 owns the plane first.
    pub fn new(budget: Budget) -> Self {
        let id = |n| format!("r{n}").parse().expect("a replica id");
        Self {
            rules: Rules::default(),
            names: vec![0, 1],
            running: 2,
            budget,
            replies: Replies::Prompt,
            member_reads: MemberReads::AtOnce,
            peer_views: PeerViews::Untold,
            survival: Survival::Unchecked,
            puts: Puts::AsCommits,
            read_only_after: 1,
            stride: 1,
            first: terms((READ_LEASE, MARGIN)),
            then: None,
            focus: None,
            ids: (0..3).map(id).collect(),
        }
    }

    /// Returns the scenario without one rule.
    pub fn without(self, rule: Rule) -> Self {
        Self {
            rules: Rules::without(rule),
            ..self
        }
    }

    /// Returns the scenario with these processes, the first `running` of which run from the start.
    pub fn processes(self, names: &[usize], running: usize) -> Self {
        Self {
            names: names.to_vec(),
            running,
            ..self
        }
    }
}

/// Returns the terms with R and margin in ticks.
fn terms((read_lease, margin): (u64, u64)) -> LeaseTerms {
    let ticks = Duration::from_nanos;
    LeaseTerms::new(ticks(read_lease), ticks(margin)).expect("neither is zero")
}

/// One state of the whole model.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct World {
    store: Arc<Store>,
    replicas: Vec<Arc<Replica>>,
    net: Vec<Arc<Message>>,
    spent: Budget,
    next_write: u8,
    /// Writes acknowledged to a caller, or seen by an answered read.
    observed: Writes,
    /// Writes whose caller got the answer that they were not applied.
    denied: Writes,
    /// Writes that some replica has published; the next field has those of which its observers were
    /// notified.
    published: Writes,
    notified: Writes,
    /// True if observers are notified by the publisher, whether or not the write's caller still
    /// waits.
    by_publisher: bool,
    pub breach: Option<Breach>,
}

/// One event that may happen.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Happening {
    /// All clocks advance, except at most one.
    Tick {
        slow: Option<usize>,
    },
    /// The store drops the member key of a replica.
    Expire(usize),
    /// A process starts, as a newcomer.
    Start(usize),
    /// A process sees the newest view.
    See(usize),
    /// A process that the store does not answer gets the view of another.
    HearView {
        from: usize,
        to: usize,
    },
    /// The store's record of the lease terms names the next ones.
    BeginChange,
    /// A newcomer reads that record, possibly long before it joins.
    ReadTerms(usize),
    /// A member sees the newest record and follows it.
    SeeTerms(usize),
    /// A member reads which of the members it knows have confirmed the newest record.
    SeeAdopters(usize),
    ReadMember(usize),
    SendMemberRead(usize),
    ServeMemberRead(usize),
    AnswerMemberRead(usize),
    Acquire(usize),
    Apply(usize),
    Reply(usize),
    /// The sender stops waiting; the transaction may be applied at any time, or never.
    Lose(usize),
    Write(usize),
    /// A handler takes the plane's state from memory.
    Read(usize),
    /// The handler sends its answer, if the check allows it.
    Answer(usize),
    HandOff {
        from: usize,
        to: usize,
    },
    DeliverStream {
        from: usize,
        to: usize,
    },
    EndStream(usize),
    CallOff(usize),
    /// The plane falls asleep: its fence is released without a successor.
    Sleep(usize),
    Delete(usize),
    /// The store refuses to consider a transaction.
    Reject(usize),
    /// A read-only plane puts its fence.
    Probe(usize),
    /// The task that waits for this reply dies.
    Die(usize),
    /// The first of the two reads that settle a batch whose barrier was refused; the next event is
    /// the second.
    SettleFirst(usize),
    SettleSecond(usize),
    /// A caller stops waiting.
    GiveUp(usize),
    /// A member read that finds this life sees the store's revision.
    Observe(usize),
    /// The first of the two steps of a bookmark; the next event is the second.
    BeginBookmark(usize),
    EndBookmark(usize),
}

impl Model for Scenario {
    type State = World;
    type Action = Happening;

    fn init_states(&self) -> Vec<World> {
        let mut world = World {
            store: Arc::default(),
            replicas: self
                .names
                .iter()
                .map(|name| Arc::new(Replica::idle(*name)))
                .collect(),
            net: Vec::new(),
            spent: Budget::default(),
            next_write: 0,
            observed: 0,
            denied: 0,
            published: 0,
            notified: 0,
            by_publisher: self.rules.keep(Rule::PublisherTellsObservers),
            breach: None,
        };
        if self.then.is_some() {
            Arc::make_mut(&mut world.store).put_terms(Terms::settled(self.first));
        }
        for process in 0..self.running {
            world.start(self, process);
        }
        for process in 0..self.running {
            world.see(process);
        }
        // Process 0 owns the plane.
        world.acquire(0);
        world.apply(self, 0);
        world.reply(0);
        vec![world]
    }

    fn actions(&self, world: &World, out: &mut Vec<Happening>) {
        if world.breach.is_some() {
            return;
        }
        self.time_and_members(world, out);
        self.of_terms(world, out);
        for process in 0..self.names.len() {
            if world.replicas[process].runs() {
                self.of_process(world, process, out);
            }
        }
        for (index, message) in world.net.iter().enumerate() {
            match &message.reply {
                None => out.push(Happening::Apply(index)),
                Some(_) => out.push(Happening::Reply(index)),
            }
            let (losses, rejections) = self.spent_on(message);
            if !message.forgotten && losses(&world.spent) < losses(&self.budget) {
                out.push(Happening::Lose(index));
            }
            let waits = message.reply.is_none() && !message.forgotten;
            if waits && rejections(&world.spent) < rejections(&self.budget) {
                out.push(Happening::Reject(index));
            }
            if world.spent.deaths < self.budget.deaths && world.may_die(index) {
                out.push(Happening::Die(index));
            }
        }
        if let Some(focus) = self.focus {
            out.retain(|happening| focus(world, *happening));
        }
    }

    fn next_state(&self, world: &World, happening: Happening) -> Option<World> {
        let mut next = world.clone();
        next.happen(self, happening);
        Some(next)
    }

    fn properties(&self) -> Vec<Property<Self>> {
        vec![
            Property::always("no invariant is broken", |_, world: &World| {
                world.breach.is_none()
            }),
            Property::always("F1 two holders are never both valid", |_, world: &World| {
                let valid = world.replicas.iter().filter(|replica| replica.answers());
                valid.count() <= 1
            }),
            Property::always(
                "F8 a lone survivor owns the plane",
                |scenario: &Self, world: &World| {
                    scenario.survival == Survival::Unchecked
                        || (0..scenario.names.len())
                            .all(|process| world.survived_by(scenario, process))
                },
            ),
            Property::sometimes("the plane has a second owner", |_, world: &World| {
                let mut others = world.replicas.iter().skip(1);
                others.any(|replica| replica.tenure().is_some())
            }),
        ]
    }
}

impl Scenario {
    /// Returns the counts in which a loss and a rejection of this message are counted.
    fn spent_on(&self, message: &Message) -> (Count, Count) {
        match (self.puts, message.write()) {
            (Puts::Apart, None) => (|b| b.lost_puts, |b| b.rejected_puts),
            (Puts::Apart, Some(_)) | (Puts::AsCommits, _) => (|b| b.losses, |b| b.rejections),
        }
    }

    fn time_and_members(&self, world: &World, out: &mut Vec<Happening>) {
        if world.spent.ticks < self.budget.ticks {
            out.push(Happening::Tick { slow: None });
            for (process, replica) in world.replicas.iter().enumerate() {
                if world.spent.slow < self.budget.slow && replica.may_lose_a_tick() {
                    out.push(Happening::Tick {
                        slow: Some(process),
                    });
                }
            }
        }
        for (process, replica) in world.replicas.iter().enumerate() {
            if !replica.runs() {
                out.push(Happening::Start(process));
            } else if world.lives(process) && world.spent.expiries < self.budget.expiries {
                out.push(Happening::Expire(process));
            }
        }
    }

    fn of_process(&self, world: &World, process: usize, out: &mut Vec<Happening>) {
        let replica = &world.replicas[process];
        if replica.seen() != world.store.view() && replica.holder().is_some() {
            out.push(Happening::See(process));
        }
        if self.peer_views == PeerViews::Told && replica.believes_to_live() {
            let others = (0..self.names.len()).filter(|from| *from != process);
            let sources = others.filter(|from| world.replicas[*from].runs());
            out.extend(sources.map(|from| Happening::HearView { from, to: process }));
        }
        match self.member_reads {
            MemberReads::None => {}
            MemberReads::AtOnce if replica.wants_proof() => {
                out.push(Happening::ReadMember(process));
            }
            MemberReads::AtOnce => {}
            MemberReads::InSteps => out.extend(replica.next_of_member_read(process)),
        }
        if world.spent.acquires < self.budget.acquires && world.could_acquire(process) {
            out.push(Happening::Acquire(process));
        }
        if replica.has_read() {
            out.push(Happening::Answer(process));
        } else if world.spent.reads < self.budget.reads && replica.may_read() {
            out.push(Happening::Read(process));
        }
        let granted = matches!(replica.permit(), CommitPermit::Granted(_));
        if granted && world.spent.writes < self.budget.writes {
            out.push(Happening::Write(process));
        }
        if let Some(to) = replica.streaming_to() {
            if world.replicas[to].runs() && !world.replicas[to].has_stream() {
                out.push(Happening::DeliverStream { from: process, to });
            }
            out.push(Happening::EndStream(process));
        }
        if replica.may_call_off() {
            out.push(Happening::CallOff(process));
        }
        self.of_tenure(world, process, out);
        if world.spent.hand_offs < self.budget.hand_offs && replica.tenure().is_some() {
            for to in 0..self.names.len() {
                if to != process && world.replicas[to].runs() && !replica.leaving() {
                    out.push(Happening::HandOff { from: process, to });
                }
            }
        }
    }

    /// Collects the possible events of a plane's tenure other than writes and hand-offs.
    fn of_tenure(&self, world: &World, process: usize, out: &mut Vec<Happening>) {
        let replica = &world.replicas[process];
        let free = !replica.leaving() && !replica.has_intent();
        let begins = free && (replica.tenure().is_some() || replica.is_relinquishing());
        if begins && world.spent.sleeps < self.budget.sleeps {
            out.push(Happening::Sleep(process));
        }
        if begins && world.spent.deletions < self.budget.deletions {
            out.push(Happening::Delete(process));
        }
        if world.may_probe(self, process) {
            out.push(Happening::Probe(process));
        }
        match replica.unsettled() {
            Some(unsettled) if unsettled.history.is_none() && unsettled.superseded.is_none() => {
                out.push(Happening::SettleFirst(process));
            }
            Some(_) => out.push(Happening::SettleSecond(process)),
            None => {}
        }
        if replica.waits() && world.spent.give_ups < self.budget.give_ups {
            out.push(Happening::GiveUp(process));
        }
        if world.spent.bookmarks < self.budget.bookmarks {
            if world.lives(process) && replica.observed() < world.store.history().len() {
                out.push(Happening::Observe(process));
            }
            if replica.bookmark().is_none() {
                out.push(Happening::BeginBookmark(process));
            }
        }
        if replica.bookmark().is_some() {
            out.push(Happening::EndBookmark(process));
        }
    }

    fn id(&self, process: usize) -> ReplicaId {
        self.ids[self.names[process]].clone()
    }
}
