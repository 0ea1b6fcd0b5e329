//! One replica's membership: from newcomer to a life with an incarnation, to its loss. Owns the
//! lifetime of the member key and the read lease that depends on it; must not know planes.
//!
//! The key is put once per incarnation, against absence. When a replica loses its key, its driver
//! drops every plane and starts a new [`Member`], a newcomer without planes (PROTOCOL 5).
//! `changing` has the change of the lease terms, which all members make together (PROTOCOL 8).

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

/// The intervals at which a living member reads and renews its key.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Cadence {
    /// Time between two linearizable reads of this replica's member key; well below R.
    pub read_every: Duration,
    /// Time between two renewals of the store lease: a third of its TTL.
    pub renew_every: Duration,
}

/// The facts that a newcomer has read, linearizably and at one revision, before it joins.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct JoinFacts {
    /// The revision that created the key under this replica's name, if there is one: a
    /// predecessor's key.
    pub predecessor: Option<Incarnation>,
    /// The revision of the store's level floor. The driver has checked that this binary reaches
    /// that level.
    pub level_floor: Option<Revision>,
    /// The store's lease terms, if it has any yet.
    pub terms: Option<Observed<Terms>>,
}

/// Whether the replica's executor has run tasks since the last tick.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Progress {
    /// It has.
    Made,
    /// It has not. A process that is alive but stuck counts as dead: the lease is not renewed
    /// (PROTOCOL 18).
    Stuck,
}

/// An input of the machine.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub enum Event {
    /// The facts requested by [`Action::ReadJoinFacts`].
    Facts(JoinFacts),
    /// The outcome of an [`Action::Transact`].
    Done {
        /// The number of the attempt.
        attempt: Attempt,
        /// Its outcome.
        outcome: Outcome,
    },
    /// The reply to an [`Action::ReadMember`]. A read without a reply is not reported.
    MemberRead {
        /// The time at which the read was handed to the store's client.
        sent: Time,
        /// The revision that created the key, if the read found a key.
        found: Option<Incarnation>,
    },
    /// A commit was acknowledged that compared this replica's member key.
    Proven(Proof),
    /// A refusal of the store has shown that this replica's member key is deleted or another
    /// life's, or that the store does not know the store lease any more.
    LossProven,
    /// A peer sent its view while the store did not answer. Views follow what the store delivered,
    /// in its order. So a view that is newer than this life and does not show it proves that the
    /// key is deleted. A view proves nothing else, and never that the key still exists.
    PeerView {
        /// The view's number.
        number: ViewNumber,
        /// The incarnation that the view shows under this replica's name, if it shows one.
        found: Option<Incarnation>,
    },
    /// The store's current record of the lease terms. A record that is older than the newest known
    /// one changes nothing.
    Terms(Observed<Terms>),
    /// The members of the ring, and the record of the lease terms that each has confirmed.
    Adopters {
        /// The revision of the store up to which the list is complete: every member at that
        /// revision is in it or has left.
        at: ViewNumber,
        /// The members, in any order.
        members: Vec<Adopter>,
    },
    /// Hand the planes over: put Draining into the member key. This cannot be undone.
    Drain,
    /// Time has passed.
    Tick(Progress),
}

/// An output of the machine. The driver performs the actions of a step in order.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub enum Action {
    /// Read the [`JoinFacts`] linearizably and report them. Repeat until it succeeds.
    ReadJoinFacts,
    /// Send this transaction once and report the outcome. For [`Write::PutMember`] without a life
    /// yet, use a new store lease.
    Transact {
        /// The number of the attempt.
        attempt: Attempt,
        /// The transaction.
        transaction: Transaction,
    },
    /// The replica has a life: its driver may acquire fences in this holder's name.
    Joined(Holder),
    /// These are the terms that takers wait out from now on. Pass them to the
    /// [`Witness`](crate::Witness), and update every copy of the read lease, before anything else
    /// is done.
    WaitBy(LeaseTerms),
    /// Read this replica's member key linearizably. Take the time before the read is handed to the
    /// client.
    ReadMember,
    /// Renew the store lease.
    Renew,
    /// The member key says Draining now.
    DrainAnnounced,
    /// This life is over: close every plane, stop renewing, and start again as a newcomer.
    CloseAllPlanes,
}

/// The membership of one replica in one life.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Member {
    replica: ReplicaId,
    terms: Terms,
    /// The revision of the store's record of the terms; `None` before it is known.
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
    /// The predecessor's key is being deleted.
    Clearing(Attempt),
    /// This replica's key is being put, against absence.
    Joining(Attempt),
    Living(Living),
    Over,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash)]
struct Living {
    me: Holder,
    /// The time since which this life is known. Reads that were sent earlier prove nothing about
    /// it.
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
    /// Returns a newcomer and its first actions. It follows the store's lease terms; `founding` are
    /// those of a store that has none yet.
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

    /// Returns the life, if there is one.
    pub fn holder(&self) -> Option<&Holder> {
        match &self.phase {
            Phase::Living(living) => Some(&living.me),
            Phase::New | Phase::Clearing(_) | Phase::Joining(_) | Phase::Over => None,
        }
    }

    /// Returns the record of the lease terms that this replica follows.
    pub fn terms(&self) -> Terms {
        self.terms
    }

    /// Returns the right to answer from memory.
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

    /// Applies one event and returns the actions to perform, in order.
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
                // If a late copy of the transaction still creates a key, the newcomer finds that
                // key as a predecessor's and deletes it.
                Outcome::Refused(_) | Outcome::Rejected | Outcome::Unknown => self.start_over(),
            },
            Phase::Clearing(waiting) if *waiting == attempt => self.start_over(),
            Phase::Living(living) if living.drain == Drain::Announcing(attempt) => {
                self.drain_done(outcome)
            }
            Phase::Living(living) if living.change.waits_for(attempt) => {
                self.change_done(attempt, &outcome)
            }
            // This is a late outcome of an attempt that was given up.
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
            // The transaction has compared the record, or written it.
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
            // The transaction compares nothing but this life, so the life is over.
            Outcome::Refused(_) => self.lost(),
            // Sends the same transaction again. A late copy of the first one would put the same
            // value.
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
        // Sent again only as often as the key is read, so that a store that does not answer is not
        // flooded.
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
