//! One replica's membership: from newcomer to a life with an incarnation, to its loss. Owns the
//! member key's life and the read lease that hangs on it; must not know planes.
//!
//! The key is put once per incarnation, against absence. Whoever lost it is over: the driver drops
//! every plane and starts a new [`Member`], a newcomer without planes (PROTOCOL 5). `changing` has
//! the lease terms: how all members come to others together (PROTOCOL 8).

mod changing;
#[cfg(test)]
mod tests;

use alloc::vec;
use alloc::vec::Vec;

use polyplane_ring::{Incarnation, ReplicaId, Standing, ViewNumber};

use crate::read_lease::{Proof, ReadLease};
use crate::record::{Holder, Observed, Revision};
use crate::rules::{Rule, Rules};
use crate::terms::{LeaseTerms, Terms};
use crate::time::{Duration, Time};
use crate::transaction::{Attempt, Compare, Outcome, Transaction, Write};

pub use changing::Adopter;
use changing::Change;

/// How often a living member reads and renews its key.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Cadence {
    /// Time between two linearizable reads of this replica's member key; well below R.
    pub read_every: Duration,
    /// Between two renewals of the store lease; a third of its TTL.
    pub renew_every: Duration,
}

/// What a newcomer read, linearizably and in one instant, before it joins.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct JoinFacts {
    /// The revision that created the key under the own name, if there is one: a predecessor's.
    pub predecessor: Option<Incarnation>,
    /// The revision of the store's level floor, which this binary was found to reach.
    pub level_floor: Option<Revision>,
    /// The store's lease terms, if it has any yet.
    pub terms: Option<Observed<Terms>>,
}

/// Whether the replica's own executor got anywhere since the last tick.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Progress {
    /// It did.
    Made,
    /// It did not. Alive but stuck is dead: the lease is not renewed (PROTOCOL 18).
    Stuck,
}

/// What happens to a member.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub enum Event {
    /// The facts requested by [`Action::ReadJoinFacts`].
    Facts(JoinFacts),
    /// The outcome of an [`Action::Transact`].
    Done {
        /// Which sending.
        attempt: Attempt,
        /// What became of it.
        outcome: Outcome,
    },
    /// The reply to an [`Action::ReadMember`]. Replies that do not come are simply not reported.
    MemberRead {
        /// When the read was handed to the store's client.
        sent: Time,
        /// The revision that created the key found, if one was found.
        found: Option<Incarnation>,
    },
    /// A commit was acknowledged; it compared the own member key.
    Proven(Proof),
    /// The store refused something of ours because the own member key is gone or another's, or it
    /// does not know the store lease any more.
    LossProven,
    /// A peer sent its view while the store gave none: what it shows under the own name. A view is
    /// what the store said in its order, so one that is newer than this life and does not show it
    /// proves that the key is gone. It proves nothing else, and never that the key stands.
    PeerView {
        /// The view's number.
        number: ViewNumber,
        /// The incarnation it shows, if it shows one.
        found: Option<Incarnation>,
    },
    /// The store's record of the lease terms, as it is now. An older one than the newest known
    /// changes nothing.
    Terms(Observed<Terms>),
    /// The members of the ring, and the record of the lease terms that each has confirmed.
    Adopters {
        /// All members at this revision of the store are in the list or gone.
        at: ViewNumber,
        /// The members, in any order.
        members: Vec<Adopter>,
    },
    /// Give the planes away: say Draining in the member key. There is no way back.
    Drain,
    /// Time has passed.
    Tick(Progress),
}

/// What the driver does for a member, in order.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub enum Action {
    /// Read the [`JoinFacts`] linearizably and report them. Repeat until it succeeds.
    ReadJoinFacts,
    /// Send this once and report the outcome. For [`Write::PutMember`] without a life yet, use a
    /// fresh store lease.
    Transact {
        /// Names the sending.
        attempt: Attempt,
        /// What to send.
        transaction: Transaction,
    },
    /// The replica has a life: fences may be taken in this holder's name.
    Joined(Holder),
    /// Takers wait these out from now on: tell the [`Witness`](crate::Witness), and copy the read
    /// lease wherever it is copied to, before anything else is done.
    WaitBy(LeaseTerms),
    /// Read the own member key linearizably. Note the time before it is handed to the client.
    ReadMember,
    /// Renew the store lease.
    Renew,
    /// The member key says Draining.
    DrainAnnounced,
    /// This life is over: close every plane, stop renewing, start again as a newcomer.
    CloseAllPlanes,
}

/// The membership of one replica in one life.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Member {
    replica: ReplicaId,
    terms: Terms,
    /// The revision of the store's record of them; `None` before it is known.
    terms_at: Option<Revision>,
    cadence: Cadence,
    rules: Rules,
    attempts: u32,
    lease: ReadLease,
    phase: Phase,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash)]
enum Phase {
    New,
    /// Deleting the predecessor's key.
    Clearing(Attempt),
    /// Putting the own key, against absence.
    Joining(Attempt),
    Living(Living),
    Over,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash)]
struct Living {
    me: Holder,
    /// Reads sent before the life was known cannot speak about it.
    since: Time,
    read_at: Time,
    renewed_at: Time,
    drain: Drain,
    change: Change,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash)]
enum Drain {
    Not,
    Announcing(Attempt),
    Announced,
}

impl Member {
    /// A newcomer, and what to do first. It goes by the store's lease terms; `founding` are those
    /// of a store that has none yet.
    pub fn new(
        replica: ReplicaId,
        founding: LeaseTerms,
        cadence: Cadence,
        rules: Rules,
    ) -> (Self, Vec<Action>) {
        let lease = ReadLease::new(founding.read_lease(), rules);
        let phase = Phase::New;
        let member = Self {
            replica,
            terms: Terms::settled(founding),
            terms_at: None,
            cadence,
            rules,
            attempts: 0,
            lease,
            phase,
        };
        (member, vec![Action::ReadJoinFacts])
    }

    /// The life, while there is one.
    pub fn holder(&self) -> Option<&Holder> {
        match &self.phase {
            Phase::Living(living) => Some(&living.me),
            Phase::New | Phase::Clearing(_) | Phase::Joining(_) | Phase::Over => None,
        }
    }

    /// The record of the lease terms that this replica goes by.
    pub fn terms(&self) -> Terms {
        self.terms
    }

    /// The right to answer from memory.
    pub fn lease(&self) -> &ReadLease {
        &self.lease
    }

    #[cfg(feature = "model")]
    pub(crate) fn lease_mut(&mut self) -> &mut ReadLease {
        &mut self.lease
    }

    #[cfg(feature = "model")]
    pub(crate) fn times_mut(&mut self) -> impl Iterator<Item = &mut Time> {
        let living = match &mut self.phase {
            Phase::Living(living) => Some(living),
            Phase::New | Phase::Clearing(_) | Phase::Joining(_) | Phase::Over => None,
        };
        let times = living.map(|l| {
            let own = [&mut l.since, &mut l.read_at, &mut l.renewed_at];
            own.into_iter().chain(l.change.times_mut())
        });
        times.into_iter().flatten()
    }

    /// Takes one event in and says what to do, in order.
    pub fn step(&mut self, now: Time, event: Event) -> Vec<Action> {
        match event {
            Event::Facts(facts) => self.facts(facts),
            Event::Done { attempt, outcome } => self.done(now, attempt, outcome),
            Event::MemberRead { sent, found } => self.member_read(now, sent, found),
            Event::Proven(proof) => self.proven(now, proof),
            Event::LossProven => self.lost(),
            Event::PeerView { number, found } => self.peer_view(number, found),
            Event::Terms(terms) => self.see_terms(terms),
            Event::Adopters { at, members } => self.adopters(now, at, &members),
            Event::Drain => self.drain(),
            Event::Tick(progress) => self.tick(now, progress),
        }
    }

    fn facts(&mut self, facts: JoinFacts) -> Vec<Action> {
        if self.phase != Phase::New {
            return Vec::new();
        }
        if let Some(terms) = &facts.terms {
            (self.terms, self.terms_at) = (terms.value, Some(terms.revision));
        }
        let attempt = self.next_attempt();
        let transaction = match facts.predecessor {
            Some(incarnation) => {
                self.phase = Phase::Clearing(attempt);
                let predecessor = Holder {
                    replica: self.replica.clone(),
                    incarnation,
                };
                Transaction {
                    compares: vec![Compare::MemberIs(predecessor)],
                    writes: vec![Write::DeleteMember(self.replica.clone())],
                }
            }
            None => {
                self.phase = Phase::Joining(attempt);
                self.join(&facts)
            }
        };
        vec![Action::Transact {
            attempt,
            transaction,
        }]
    }

    fn join(&self, facts: &JoinFacts) -> Transaction {
        let mut writes = vec![self.put(Standing::Serving)];
        if facts.terms.is_none() {
            writes.push(Write::PutTerms(self.terms));
        }
        let mut compares = vec![
            Compare::MemberAbsent(self.replica.clone()),
            Compare::LevelFloorAt(facts.level_floor),
        ];
        if self.rules.keep(Rule::JoinComparesTerms) {
            let terms = facts.terms.as_ref().map(|terms| terms.revision);
            compares.push(Compare::LeaseTermsAt(terms));
        }
        Transaction { compares, writes }
    }

    fn done(&mut self, now: Time, attempt: Attempt, outcome: Outcome) -> Vec<Action> {
        match &self.phase {
            Phase::Joining(waiting) if *waiting == attempt => match outcome {
                Outcome::Applied(revision) => self.joined(now, revision),
                // Whatever key a late copy may create is then found as a predecessor's and cleared.
                Outcome::Refused(_) | Outcome::Rejected | Outcome::Unknown => self.start_over(),
            },
            Phase::Clearing(waiting) if *waiting == attempt => self.start_over(),
            Phase::Living(living) if living.drain == Drain::Announcing(attempt) => {
                self.drain_done(outcome)
            }
            Phase::Living(living) if living.change.waits_for(attempt) => {
                self.change_done(attempt, &outcome)
            }
            // A late outcome of what was given up.
            Phase::New
            | Phase::Clearing(_)
            | Phase::Joining(_)
            | Phase::Living(_)
            | Phase::Over => Vec::new(),
        }
    }

    fn start_over(&mut self) -> Vec<Action> {
        self.phase = Phase::New;
        vec![Action::ReadJoinFacts]
    }

    fn joined(&mut self, now: Time, revision: Revision) -> Vec<Action> {
        let incarnation = Incarnation::new(revision.get());
        let me = Holder {
            replica: self.replica.clone(),
            incarnation,
        };
        self.phase = Phase::Living(Living {
            me: me.clone(),
            since: now,
            read_at: now,
            renewed_at: now,
            drain: Drain::Not,
            // The transaction compared the record, or wrote it.
            change: Change::adopted(),
        });
        self.terms_at.get_or_insert(revision);
        vec![self.go_by_terms(), Action::Joined(me), Action::ReadMember]
    }

    fn member_read(&mut self, now: Time, sent: Time, found: Option<Incarnation>) -> Vec<Action> {
        let Phase::Living(living) = &self.phase else {
            return Vec::new();
        };
        if sent < living.since {
            return Vec::new();
        }
        let mine = match self.rules.keep(Rule::ProofNamesIncarnation) {
            true => found == Some(living.me.incarnation),
            false => found.is_some(),
        };
        if !mine {
            return self.lost();
        }
        self.lease.prove(now, Proof { sent });
        Vec::new()
    }

    fn peer_view(&mut self, number: ViewNumber, found: Option<Incarnation>) -> Vec<Action> {
        let Phase::Living(living) = &self.phase else {
            return Vec::new();
        };
        let incarnation = living.me.incarnation;
        let newer =
            number.get() > incarnation.get() || !self.rules.keep(Rule::PeerViewIsNewerThanLife);
        match newer && found != Some(incarnation) {
            true => self.lost(),
            false => Vec::new(),
        }
    }

    fn proven(&mut self, now: Time, proof: Proof) -> Vec<Action> {
        if let Phase::Living(_) = self.phase {
            self.lease.prove(now, proof);
        }
        Vec::new()
    }

    fn lost(&mut self) -> Vec<Action> {
        let Phase::Living(_) = self.phase else {
            return Vec::new();
        };
        self.lease.end();
        self.phase = Phase::Over;
        vec![Action::CloseAllPlanes]
    }

    fn drain(&mut self) -> Vec<Action> {
        match &self.phase {
            Phase::Living(Living {
                drain: Drain::Not, ..
            }) => self.announce_drain(),
            Phase::New
            | Phase::Clearing(_)
            | Phase::Joining(_)
            | Phase::Living(_)
            | Phase::Over => Vec::new(),
        }
    }

    fn announce_drain(&mut self) -> Vec<Action> {
        let attempt = self.next_attempt();
        let write = self.put(Standing::Draining);
        let Phase::Living(living) = &mut self.phase else {
            return Vec::new();
        };
        living.drain = Drain::Announcing(attempt);
        let transaction = Transaction {
            compares: vec![Compare::MemberIs(living.me.clone())],
            writes: vec![write],
        };
        vec![Action::Transact {
            attempt,
            transaction,
        }]
    }

    fn drain_done(&mut self, outcome: Outcome) -> Vec<Action> {
        match outcome {
            Outcome::Applied(_) => {
                if let Phase::Living(living) = &mut self.phase {
                    living.drain = Drain::Announced;
                }
                vec![Action::DrainAnnounced]
            }
            // It compares nothing but this life.
            Outcome::Refused(_) => self.lost(),
            // The same words again: a late copy of the first says nothing else.
            Outcome::Rejected | Outcome::Unknown => self.announce_drain(),
        }
    }

    fn tick(&mut self, now: Time, progress: Progress) -> Vec<Action> {
        let cadence = self.cadence;
        let Phase::Living(living) = &mut self.phase else {
            return Vec::new();
        };
        let mut actions = Vec::new();
        let reads = now.since(living.read_at) >= cadence.read_every;
        if reads {
            living.read_at = now;
            actions.push(Action::ReadMember);
        }
        let due = now.since(living.renewed_at) >= cadence.renew_every;
        if due && progress == Progress::Made {
            living.renewed_at = now;
            actions.push(Action::Renew);
        }
        // As often as the key is read, so that a store that does not answer is not pressed.
        if reads {
            actions.extend(self.adopt());
        }
        actions
    }

    fn put(&self, standing: Standing) -> Write {
        Write::PutMember {
            replica: self.replica.clone(),
            standing,
        }
    }

    fn next_attempt(&mut self) -> Attempt {
        self.attempts += 1;
        Attempt(self.attempts)
    }
}
