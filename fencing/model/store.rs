//! The store of the model: one fence, member keys, and a history of writes. Owns the effect of a
//! transaction on them and the invariants that the store can see.

use polyplane_fencing::{
    Attempt, Compare, Directory, Epoch, Fence, FenceState, Holder, Incarnation, Observed, Outcome,
    Refusal, Revision, Terms, Time, Transaction, Write,
    naming::{EachName, Name},
};

use super::{Breach, Scenario, Writes};

/// The purpose of a transaction.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Request {
    Fence(Attempt),
    Commit { write: u8, epoch: Epoch },
}

/// The outcome of a transaction, with the history at that moment.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Reply {
    pub outcome: Outcome,
    pub history: Vec<u8>,
}

/// A transaction on its way to the store, or its reply on the way back.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Message {
    pub from: usize,
    pub sender: Option<Holder>,
    pub request: Request,
    pub transaction: Transaction,
    pub sent: Time,
    pub reply: Option<Reply>,
    /// True if its sender has reported it as unknown.
    pub forgotten: bool,
}

impl Message {
    /// Returns the same message, sent by this process.
    pub fn of(self, process: usize) -> Self {
        Self {
            from: process,
            ..self
        }
    }

    /// Returns the write that the message is to apply, if it is a commit.
    pub fn write(&self) -> Option<u8> {
        match self.request {
            Request::Commit { write, .. } => Some(write),
            Request::Fence(_) => None,
        }
    }

    pub fn each_write(&mut self, visit: &mut dyn FnMut(&mut u8)) {
        if let Request::Commit { write, .. } = &mut self.request {
            visit(write);
        }
        let replied = self.reply.iter_mut();
        replied.flat_map(|reply| &mut reply.history).for_each(visit);
    }

    /// Returns the sender of the message and its purpose, as text.
    pub fn outline(&self) -> String {
        let writes = self.transaction.writes.iter().map(|write| match write {
            Write::PutFence(fence) => format!("{:?}", fence.state),
            Write::PutMember { .. }
            | Write::DeleteMember(_)
            | Write::PutTerms(_)
            | Write::PutAdoption { .. } => format!("{write:?}"),
        });
        let writes: Vec<String> = writes.collect();
        let (from, forgotten) = (self.from, self.forgotten);
        let outcome = self.reply.as_ref().map(|reply| match reply.outcome {
            Outcome::Applied(_) => "applied",
            Outcome::Refused(_) => "refused",
            Outcome::Rejected => "rejected",
            Outcome::Unknown => "unknown",
        });
        format!("{from} {writes:?} {forgotten} {outcome:?}")
    }

    pub fn releases(&self) -> bool {
        self.transaction.writes.iter().any(|write| match write {
            Write::PutFence(fence) => matches!(fence.state, FenceState::Released { .. }),
            Write::PutMember { .. }
            | Write::DeleteMember(_)
            | Write::PutTerms(_)
            | Write::PutAdoption { .. } => false,
        })
    }
}

/// The model's store. Fence, member keys and history each have a revision counter of their own,
/// where a real store has one: no machine compares a revision of one with a revision of another,
/// and fewer states differ. Lease terms share the counter of the member keys, because a view's
/// number is compared with theirs (PROTOCOL 8).
#[derive(Debug, Clone, Default, PartialEq, Eq, Hash)]
pub struct Store {
    fence: Option<Observed<Fence>>,
    members: [Option<Incarnation>; 3],
    member_revision: u64,
    /// The store's record of the terms; `None` in scenarios that do not change them.
    terms: Option<Observed<Terms>>,
    /// For each replica, the life that has confirmed terms and the revision of the confirmed
    /// record.
    adopted: [Option<(Incarnation, Revision)>; 3],
    history: Vec<u8>,
    /// The length of the history at each put of the fence, oldest first.
    fence_puts: Vec<(Revision, u8)>,
}

impl Store {
    pub fn fence(&self) -> Option<Observed<Fence>> {
        self.fence.clone()
    }

    pub fn is_deleted(&self) -> bool {
        let fence = self.fence.as_ref();
        fence.is_some_and(|fence| fence.value.state == FenceState::Deleted)
    }

    pub fn is_held_by(&self, holder: Option<&Holder>) -> bool {
        let fence = self.fence.as_ref().map(|fence| &fence.value);
        fence.is_some_and(|fence| fence.state == FenceState::Held && Some(&fence.holder) == holder)
    }

    pub fn member(&self, name: usize) -> Option<Incarnation> {
        self.members[name]
    }

    pub fn members(&self) -> [Option<Incarnation>; 3] {
        self.members
    }

    pub fn view(&self) -> Revision {
        Revision::new(self.member_revision)
    }

    pub fn history(&self) -> Vec<u8> {
        self.history.clone()
    }

    /// Returns the holder and content of the fence, the living members, and the number of writes,
    /// as text.
    pub fn outline(&self) -> String {
        let fence = self.fence.as_ref().map(|fence| &fence.value);
        let fence = fence.map(|fence| (&fence.holder, &fence.state));
        let terms = self.terms.as_ref().map(|terms| terms.value);
        let (members, length) = (self.members, self.history.len());
        format!("{fence:?} {members:?} {terms:?} {length}")
    }

    pub fn history_mut(&mut self) -> &mut Vec<u8> {
        &mut self.history
    }

    /// Returns whether no later state of the store lets these compares hold.
    pub fn never_holds(&self, scenario: &Scenario, compare: &Compare) -> bool {
        match compare {
            Compare::FenceAbsent => self.fence.is_some(),
            Compare::FenceAt(at) => self.fence.as_ref().is_some_and(|f| f.revision > *at),
            // No incarnation occurs twice.
            Compare::MemberIs(_) => !self.holds(scenario, compare),
            Compare::DirectoryPresent
            | Compare::MemberIsNot(_)
            | Compare::MemberAbsent(_)
            | Compare::LevelFloorAt(_)
            | Compare::LeaseTermsAt(_) => false,
        }
    }

    /// Forgets the puts of the fence that are not the first after one of these revisions.
    pub fn keep_puts_after(&mut self, compared: &[Revision]) {
        let mut kept: Vec<_> = compared
            .iter()
            .filter_map(|revision| {
                self.fence_puts
                    .iter()
                    .find(|put| put.0 > *revision)
                    .copied()
            })
            .collect();
        kept.sort_unstable();
        kept.dedup();
        self.fence_puts = kept;
    }

    /// Returns the length of the history at the first put of the fence after the one at this
    /// revision.
    pub fn superseded(&self, compared: Revision) -> Option<usize> {
        let mut puts = self.fence_puts.iter();
        let first = puts.find(|(revision, _)| *revision > compared);
        first.map(|(_, length)| usize::from(*length))
    }

    pub fn terms(&self) -> Option<Observed<Terms>> {
        self.terms.clone()
    }

    pub fn put_terms(&mut self, value: Terms) {
        self.member_revision += 1;
        let revision = self.view();
        self.terms = Some(Observed { value, revision });
    }

    /// Returns the revision of the record of the terms that this life has confirmed.
    pub fn adopted(&self, name: usize, incarnation: Incarnation) -> Option<Revision> {
        let adopted = self.adopted[name].filter(|(of, _)| *of == incarnation);
        adopted.map(|(_, terms)| terms)
    }

    /// Returns whether a transaction compares a record of the terms that is not the current one.
    pub fn has_other_terms(&self, transaction: &Transaction) -> bool {
        let at = self.terms.as_ref().map(|terms| terms.revision);
        let mut compares = transaction.compares.iter();
        compares.any(|compare| matches!(compare, Compare::LeaseTermsAt(terms) if *terms != at))
    }

    /// Applies or refuses a transaction of a living member of this name.
    pub fn apply_of_member(&mut self, name: usize, transaction: &Transaction) -> Outcome {
        let mut compares = transaction.compares.iter();
        let lost = compares.any(|compare| {
            matches!(compare, Compare::MemberIs(me) if self.members[name] != Some(me.incarnation))
        });
        if lost || self.has_other_terms(transaction) {
            return Outcome::Refused(Refusal {
                at: self.view(),
                fence: None,
                own_incarnation: self.members[name],
                directory: Directory::Present,
            });
        }
        for write in &transaction.writes {
            match write {
                Write::PutTerms(terms) => self.put_terms(*terms),
                Write::PutAdoption { holder, terms } => {
                    self.adopted[name] = Some((holder.incarnation, *terms));
                }
                Write::PutFence(_) | Write::PutMember { .. } | Write::DeleteMember(_) => {}
            }
        }
        Outcome::Applied(self.view())
    }

    pub fn put_member(&mut self, name: usize) -> Revision {
        self.member_revision += 1;
        self.members[name] = Some(Incarnation::new(self.member_revision));
        self.view()
    }

    pub fn remove_member(&mut self, name: usize) {
        self.member_revision += 1;
        self.members[name] = None;
    }

    /// Applies or refuses a transaction.
    pub fn apply(
        &mut self,
        scenario: &Scenario,
        message: &Message,
        sender_lives: bool,
        denied: Writes,
    ) -> (Outcome, Option<Breach>) {
        let transaction = &message.transaction;
        if !transaction
            .compares
            .iter()
            .all(|compare| self.holds(scenario, compare))
        {
            let refusal = Refusal {
                at: Revision::new(self.history.len() as u64),
                fence: self.fence.clone(),
                own_incarnation: self.members[scenario.names[message.from]],
                directory: Directory::Present,
            };
            return (Outcome::Refused(refusal), None);
        }
        match message.request {
            Request::Commit { write, epoch } => {
                let breach = self.commit_breach(message, epoch, sender_lives, denied, write);
                self.history.push(write);
                (
                    Outcome::Applied(Revision::new(self.history.len() as u64)),
                    breach,
                )
            }
            Request::Fence(_) => {
                let breach = self.put_fence(transaction);
                let revision = self
                    .fence
                    .as_ref()
                    .map_or(Revision::default(), |f| f.revision);
                (Outcome::Applied(revision), breach)
            }
        }
    }

    fn commit_breach(
        &self,
        message: &Message,
        epoch: Epoch,
        sender_lives: bool,
        denied: Writes,
        write: u8,
    ) -> Option<Breach> {
        let current = self.fence.as_ref().is_some_and(|fence| {
            let fence = &fence.value;
            let holder = Some(&fence.holder) == message.sender.as_ref();
            holder && fence.epoch == epoch && fence.state == FenceState::Held
        });
        if !current {
            return Some(Breach::OldEpochWrote);
        }
        if !sender_lives {
            return Some(Breach::DeadWrote);
        }
        (denied & 1 << write != 0).then_some(Breach::DeniedThenDone)
    }

    fn put_fence(&mut self, transaction: &Transaction) -> Option<Breach> {
        let mut breach = None;
        for write in &transaction.writes {
            let Write::PutFence(value) = write else {
                continue;
            };
            let revision = self.fence.as_ref().map_or(0, |fence| fence.revision.get()) + 1;
            if let Some(Observed { value: old, .. }) = &self.fence {
                let same = old.holder == value.holder && old.epoch == value.epoch;
                if !same && value.epoch <= old.epoch {
                    breach = Some(Breach::EpochFell);
                }
            }
            let revision = Revision::new(revision);
            let length = u8::try_from(self.history.len()).unwrap_or(u8::MAX);
            self.fence_puts.push((revision, length));
            self.fence = Some(Observed {
                value: value.clone(),
                revision,
            });
        }
        breach
    }

    fn holds(&self, scenario: &Scenario, compare: &Compare) -> bool {
        let key = |replica| {
            let name = scenario.ids.iter().position(|id| id == replica);
            name.and_then(|name| self.members[name])
        };
        match compare {
            Compare::FenceAbsent => self.fence.is_none(),
            Compare::FenceAt(at) => self.fence.as_ref().is_some_and(|f| f.revision == *at),
            Compare::DirectoryPresent => true,
            Compare::MemberIs(holder) => key(&holder.replica) == Some(holder.incarnation),
            Compare::MemberIsNot(holder) => key(&holder.replica) != Some(holder.incarnation),
            Compare::MemberAbsent(replica) => key(replica).is_none(),
            Compare::LevelFloorAt(floor) => floor.is_none(),
            Compare::LeaseTermsAt(terms) => {
                *terms == self.terms.as_ref().map(|terms| terms.revision)
            }
        }
    }
}

impl EachName for Store {
    fn each_name(&mut self, visit: &mut dyn FnMut(Name<'_>)) {
        if let Some(fence) = &mut self.fence {
            fence.each_name(visit);
        }
        for (revision, _) in &mut self.fence_puts {
            visit(Name::Fence(revision));
        }
    }
}

impl EachName for Message {
    fn each_name(&mut self, visit: &mut dyn FnMut(Name<'_>)) {
        self.transaction.each_name(visit);
        visit(Name::Time(&mut self.sent));
        match &mut self.request {
            Request::Fence(attempt) => {
                visit(Name::Attempt(attempt));
                if let Some(reply) = &mut self.reply {
                    reply.outcome.each_name(visit);
                }
            }
            Request::Commit { epoch, .. } => {
                visit(Name::Epoch(epoch));
                if let Some(Reply {
                    outcome: Outcome::Refused(refusal),
                    ..
                }) = &mut self.reply
                {
                    refusal.each_name(visit);
                }
            }
        }
    }
}
