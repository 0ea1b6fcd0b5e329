//! The effect of each event: as little of a driver as is needed, and the invariants that it can
//! see. Owns no decision: those are the crate's.

use std::sync::Arc;

use polyplane_fencing::{
    Action, Event, Incarnation, Load, Outcome, Proof, ReplicaId, TenureEnd, Time, Verdict,
    ViewNumber, member,
};

use super::replica::{self, Intent, Replica, View};
use super::store::{Reply, Request, Store};
use super::{Breach, Happening, MARGIN, Puts, READ_LEASE, Replies, Scenario, World};

impl World {
    pub(super) fn happen(&mut self, scenario: &Scenario, happening: Happening) {
        match happening {
            Happening::Tick { slow } => self.tick(scenario.stride, slow),
            Happening::Expire(process) => {
                self.spent.expiries += 1;
                self.expire(process);
            }
            Happening::Start(process) => self.start(scenario, process),
            Happening::See(process) => self.see(process),
            Happening::HearView { from, to } => self.hear_view(from, to),
            Happening::BeginChange => self.begin_change(scenario),
            Happening::ReadTerms(process) => self.read_terms(process),
            Happening::SeeTerms(process) => self.see_terms(process),
            Happening::SeeAdopters(process) => self.see_adopters(scenario, process),
            Happening::ReadMember(process) => self.read_member(process),
            Happening::SendMemberRead(process) => self.replica(process).send_member_read(),
            Happening::ServeMemberRead(process) => {
                let found = self.store.member(self.replicas[process].name());
                self.replica(process).serve_member_read(found);
            }
            Happening::AnswerMemberRead(process) => {
                if let Some((sent, found)) = self.replica(process).take_member_read() {
                    self.member_read(process, sent, found);
                }
            }
            Happening::Acquire(process) => {
                self.spent.acquires += 1;
                self.acquire(process);
            }
            Happening::Apply(index) => {
                self.apply(scenario, index);
                let prompt = scenario.replies == Replies::Prompt;
                if prompt && self.net.get(index).is_some_and(|m| m.reply.is_some()) {
                    self.reply(index);
                }
            }
            Happening::Reply(index) => self.reply(index),
            Happening::Lose(index) => {
                let put = self.is_put_apart(scenario, index);
                self.spent.lost_puts += u8::from(put);
                self.spent.losses += u8::from(!put);
                self.lose(index);
            }
            Happening::Write(process) => self.write(process),
            Happening::Read(process) => {
                self.spent.reads += 1;
                let floor = self.observed;
                self.replica(process).read(floor);
            }
            Happening::Answer(process) => self.answer(process),
            Happening::HandOff { from, to } => {
                self.spent.hand_offs += 1;
                self.part(from, Intent::HandOff { to });
            }
            Happening::Sleep(process) => {
                self.spent.sleeps += 1;
                self.part(process, Intent::Sleep);
            }
            Happening::Delete(process) => {
                self.spent.deletions += 1;
                self.part(process, Intent::Delete);
            }
            Happening::Reject(index) => {
                let put = self.is_put_apart(scenario, index);
                self.spent.rejected_puts += u8::from(put);
                self.spent.rejections += u8::from(!put);
                self.reject(index);
            }
            Happening::Probe(process) => self.fence_event(process, Event::Probe, None),
            Happening::Die(index) => {
                self.spent.deaths += 1;
                self.die(index);
            }
            Happening::SettleFirst(process) => self.settle_first(scenario, process),
            Happening::SettleSecond(process) => self.settle_second(process),
            Happening::GiveUp(process) => {
                self.spent.give_ups += 1;
                self.replica(process).give_up();
            }
            Happening::Observe(process) => {
                let revision = self.store.history().len();
                self.replica(process).observe(revision);
            }
            Happening::BeginBookmark(process) => {
                self.spent.bookmarks += 1;
                self.begin_bookmark(scenario, process);
            }
            Happening::EndBookmark(process) => self.end_bookmark(scenario, process),
            Happening::DeliverStream { from, to } => {
                let state = self.replicas[from].state().to_vec();
                let event = self.replica(to).receive_stream(state);
                self.fence_event(to, event, None);
            }
            Happening::EndStream(process) => {
                self.replica(process).stream_is_over();
                self.fence_event(process, Event::StreamEnded, None);
            }
            Happening::CallOff(process) => {
                self.replica(process).stream_is_over();
                self.replica(process).drop_intent();
                self.fence_event(process, Event::CallOff, None);
            }
        }
        self.continue_relinquishing(scenario);
    }

    fn is_put_apart(&self, scenario: &Scenario, index: usize) -> bool {
        scenario.puts == Puts::Apart && self.net[index].write().is_none()
    }

    fn tick(&mut self, stride: u64, slow: Option<usize>) {
        self.spent.ticks += 1;
        for process in 0..self.replicas.len() {
            self.replica(process).key_stays_lost(stride);
            match slow == Some(process) {
                true => {
                    self.spent.slow += 1;
                    self.replica(process).lose_a_tick();
                    self.replica(process).advance(stride - 1);
                }
                false => self.replica(process).advance(stride),
            }
        }
    }

    pub(super) fn lives(&self, process: usize) -> bool {
        self.replicas[process].holder().is_some_and(|holder| {
            self.store.member(self.replicas[process].name()) == Some(holder.incarnation)
        })
    }

    fn expire(&mut self, process: usize) {
        let name = self.replicas[process].name();
        Arc::make_mut(&mut self.store).remove_member(name);
        for other in 0..self.replicas.len() {
            if self.replicas[other].name() == name && self.replicas[other].runs() {
                self.replica(other).key_was_lost();
            }
        }
    }

    /// A newcomer removes its predecessor's key and puts its own, as [`member::Member`] says.
    pub(super) fn start(&mut self, scenario: &Scenario, process: usize) {
        let name = self.replicas[process].name();
        let read = self.replica(process).take_terms_read();
        let facts = |store: &Store| member::JoinFacts {
            predecessor: store.member(name),
            level_floor: None,
            terms: read.clone().or_else(|| store.terms()),
        };
        let mut member = replica::newcomer(scenario, process);
        let now = self.replicas[process].now();
        for _ in 0..2 {
            let predecessor = self.store.member(name);
            let actions = member.step(now, member::Event::Facts(facts(&self.store)));
            let [
                member::Action::Transact {
                    attempt,
                    transaction,
                },
            ] = &actions[..]
            else {
                panic!("a newcomer sends one transaction, not {actions:?}");
            };
            if self.store.has_other_terms(transaction) {
                // The newcomer reads the facts again.
                return;
            }
            let attempt = *attempt;
            let revision = match predecessor {
                Some(_) => {
                    self.expire(process);
                    self.store.view()
                }
                None => Arc::make_mut(&mut self.store).put_member(name),
            };
            let outcome = Outcome::Applied(revision);
            member.step(now, member::Event::Done { attempt, outcome });
            if member.holder().is_some() {
                break;
            }
        }
        self.replica(process).begin(scenario, member);
        self.see(process);
    }

    pub(super) fn see(&mut self, process: usize) {
        let view = View {
            number: self.store.view(),
            members: self.store.members(),
        };
        let ids: Vec<(usize, ReplicaId)> = self
            .replicas
            .iter()
            .filter_map(|r| Some((r.name(), r.holder()?.replica.clone())))
            .collect();
        self.replica(process).see(view, &ids);
    }

    fn read_member(&mut self, process: usize) {
        let now = self.replicas[process].now();
        let found = self.store.member(self.replicas[process].name());
        self.member_read(process, now, found);
    }

    fn hear_view(&mut self, from: usize, to: usize) {
        let View { number, members } = self.replicas[from].view();
        let found = members[self.replicas[to].name()];
        let number = ViewNumber::new(number.get());
        self.member_event(to, member::Event::PeerView { number, found });
        if !self.replicas[to].believes_to_live() && self.lives(to) {
            self.breach = Some(Breach::EndedAlive);
        }
    }

    fn member_read(&mut self, process: usize, sent: Time, found: Option<Incarnation>) {
        let event = member::Event::MemberRead { sent, found };
        self.member_event(process, event);
    }

    pub(super) fn member_event(&mut self, process: usize, event: member::Event) {
        let actions = self.replica(process).member_step(event);
        self.perform_of_member(process, actions);
    }

    pub(super) fn could_acquire(&self, process: usize) -> bool {
        let mut probe = Replica::clone(&self.replicas[process]);
        let actions = probe.acquire(self.store.fence());
        actions.iter().any(|a| matches!(a, Action::Transact { .. }))
    }

    pub(super) fn acquire(&mut self, process: usize) {
        let fence = self.store.fence();
        let actions = self.replica(process).acquire(fence);
        self.perform(process, actions, None);
    }

    fn write(&mut self, process: usize) {
        self.spent.writes += 1;
        let write = self.next_write;
        self.next_write += 1;
        let request = self.replica(process).send_write(write).of(process);
        self.net.push(Arc::new(request));
    }

    fn answer(&mut self, process: usize) {
        let Some((read, verdict)) = self.replica(process).check_read() else {
            return;
        };
        match verdict {
            Verdict::Answer => {
                if read.floor & !read.value != 0 {
                    self.breach = Some(Breach::StaleRead);
                }
                let lost = self.replicas[process].key_lost_for();
                if lost.is_some_and(|ticks| ticks >= READ_LEASE + MARGIN) {
                    self.breach = Some(Breach::AnswerOfTheDead);
                }
                self.observed |= read.value;
                self.replica(process).end_read();
            }
            Verdict::Moved => self.replica(process).end_read(),
            Verdict::Wait => {}
        }
    }

    pub(super) fn apply(&mut self, scenario: &Scenario, index: usize) {
        let message = Arc::clone(&self.net[index]);
        let sender = &self.replicas[message.from];
        let Some(holder) = message.sender.clone() else {
            return;
        };
        let alive = self.store.member(sender.name()) == Some(holder.incarnation);
        let (outcome, breach) =
            Arc::make_mut(&mut self.store).apply(scenario, &message, alive, self.denied);
        self.breach = self.breach.or(breach);
        if message.forgotten {
            self.net.remove(index);
            return;
        }
        let history = self.store.history();
        Arc::make_mut(&mut self.net[index]).reply = Some(Reply { outcome, history });
    }

    pub(super) fn reply(&mut self, index: usize) {
        let message = Arc::unwrap_or_clone(self.net.remove(index));
        let Some(reply) = message.reply else {
            return;
        };
        if self.replicas[message.from].holder().as_ref() != message.sender.as_ref() {
            return;
        }
        self.outcome(
            message.from,
            message.request,
            reply.outcome,
            reply.history,
            message.sent,
        );
    }

    fn lose(&mut self, index: usize) {
        let message = Arc::make_mut(&mut self.net[index]);
        message.forgotten = true;
        let (from, request, sent) = (message.from, message.request, message.sent);
        let sender = message.sender.clone();
        let applied = message.reply.is_some();
        if applied {
            self.net.remove(index);
        }
        let history = self.store.history();
        if self.replicas[from].holder() == sender {
            self.outcome(from, request, Outcome::Unknown, history, sent);
        }
    }

    /// Reports one outcome to the machines, and answers the caller of a write.
    pub(super) fn outcome(
        &mut self,
        process: usize,
        request: Request,
        outcome: Outcome,
        history: Vec<u8>,
        sent: Time,
    ) {
        let loss = match &outcome {
            Outcome::Refused(refusal) => {
                let mine = self.replicas[process]
                    .holder()
                    .map(|holder| holder.incarnation);
                refusal.own_incarnation != mine
            }
            Outcome::Applied(_) | Outcome::Rejected | Outcome::Unknown => false,
        };
        match request {
            Request::Fence(attempt) => {
                let event = Event::Done { attempt, outcome };
                self.fence_event(process, event, Some(&history));
            }
            Request::Commit { write, .. } => {
                if let Outcome::Applied(at) = outcome {
                    let proof = Proof { sent };
                    self.member_event(process, member::Event::Proven(proof));
                    self.publish(process, write);
                    self.acknowledge(write);
                    self.fence_event(process, Event::Landed { at }, Some(&history));
                    return;
                }
                let refused = matches!(outcome, Outcome::Refused(_) | Outcome::Rejected);
                let event = Event::CommitDone(outcome);
                self.fence_event(process, event, Some(&history));
                if refused && self.replica(process).take_batch().is_some() {
                    self.deny(write);
                }
            }
        }
        if loss {
            self.member_event(process, member::Event::LossProven);
        }
    }

    pub(super) fn acknowledge(&mut self, write: u8) {
        self.observed |= 1 << write;
        if !self.store.history().contains(&write) {
            self.breach = Some(Breach::AcknowledgedButLost);
        }
        if self.denied & 1 << write != 0 {
            self.breach = Some(Breach::SettledTwice);
        }
    }

    pub(super) fn deny(&mut self, write: u8) {
        self.denied |= 1 << write;
        if self.store.history().contains(&write) {
            self.breach = Some(Breach::DeniedButDone);
        }
    }

    pub(super) fn fence_event(&mut self, process: usize, event: Event, history: Option<&[u8]>) {
        let actions = self.replica(process).fence_step(event);
        self.perform(process, actions, history);
    }

    /// Performs the actions of a plane's fence, in order.
    fn perform(&mut self, process: usize, actions: Vec<Action>, history: Option<&[u8]>) {
        for action in actions {
            match action {
                Action::Transact {
                    attempt,
                    transaction,
                } => {
                    let message = self.replicas[process]
                        .message(attempt, transaction)
                        .of(process);
                    if message.releases() && self.replicas[process].tenure().is_some() {
                        self.breach = Some(Breach::ReleasedUnderTenure);
                    }
                    self.net.push(Arc::new(message));
                }
                Action::OpenTenure { load, .. } => {
                    let stored = self.store.history();
                    let event = match load {
                        Load::Store { .. } => self.replica(process).load(stored),
                        Load::Streamed { .. } => self.replica(process).load_stream(),
                        Load::Kept { .. } => self.replica(process).keep(),
                    };
                    let misses = self.observed & !self.replicas[process].writes() != 0;
                    if misses && self.is_loaded(process, load) {
                        self.breach = Some(Breach::StaleLoad);
                    }
                    self.fence_event(process, event, None);
                }
                Action::EndTenure { end, .. } => {
                    let batch = self.replica(process).take_batch();
                    if let (
                        Some(write),
                        TenureEnd::Lost {
                            settled_through: Some(_),
                        },
                    ) = (batch, end)
                    {
                        self.replica(process).leave_unsettled(write);
                    }
                }
                Action::Settle { .. } => {
                    let decided = history.map(<[u8]>::to_vec).unwrap_or_default();
                    if let Some(write) = self.replica(process).take_batch() {
                        if decided.contains(&write) {
                            self.tell_observers(process, write);
                        }
                        self.decide(write, &decided);
                    }
                    let event = self.replica(process).replay(decided);
                    self.fence_event(process, event, None);
                }
                Action::Stream { .. } => self.replica(process).stream_runs(),
                Action::ReadFence
                | Action::StopAccepting
                | Action::ResumeAccepting
                | Action::Released { .. }
                | Action::RemoveRange { .. }
                | Action::AskHolder(_)
                | Action::NotTaken(_)
                | Action::NotYet { .. } => {}
            }
        }
    }

    /// Returns whether the state in memory was loaded, or is current because no other replica has
    /// held the fence. A tenure that continues after the store rejected its Released may have lost
    /// the plane in the meantime, as any tenure may at any time: its read lease keeps it from
    /// answering, and the checks of reads would find a violation.
    fn is_loaded(&self, process: usize, load: Load) -> bool {
        match load {
            Load::Store { .. } | Load::Streamed { .. } => true,
            Load::Kept { .. } => self
                .store
                .is_held_by(self.replicas[process].holder().as_ref()),
        }
    }

    /// Decides the outcome of a batch by the history up to a write that no older transaction can
    /// follow.
    fn decide(&mut self, write: u8, history: &[u8]) {
        match history.contains(&write) {
            true => self.acknowledge(write),
            false => self.deny(write),
        }
    }

    pub(super) fn replica(&mut self, process: usize) -> &mut Replica {
        Arc::make_mut(&mut self.replicas[process])
    }

    /// F8: all others are dead and all messages under way are lost. Returns whether this process
    /// can come to answer.
    pub(super) fn survived_by(&self, scenario: &Scenario, survivor: usize) -> bool {
        if self.breach.is_some() || !self.replicas[survivor].runs() {
            return true;
        }
        let mut world = self.clone();
        for other in 0..world.replicas.len() {
            if other != survivor && world.lives(other) {
                world.expire(other);
            }
        }
        world.net.retain(|message| message.from == survivor);
        for _ in 0..12 {
            if world.replicas[survivor].serves() || world.store.is_deleted() {
                return true;
            }
            if !world.lives(survivor) {
                world.start(scenario, survivor);
            }
            world.see(survivor);
            world.replica(survivor).advance(READ_LEASE + MARGIN);
            world.read_member(survivor);
            while !world.net.is_empty() {
                world.apply(scenario, 0);
                if world
                    .net
                    .first()
                    .is_some_and(|message| message.reply.is_some())
                {
                    world.reply(0);
                }
            }
            if world.replicas[survivor].unsettled().is_some() {
                world.settle_first(scenario, survivor);
                world.settle_second(survivor);
            }
            if world.replicas[survivor].may_call_off() {
                world.happen(scenario, Happening::CallOff(survivor));
            }
            if world.may_probe(scenario, survivor) {
                world.happen(scenario, Happening::Probe(survivor));
            } else {
                world.acquire(survivor);
            }
        }
        false
    }
}
