//! The change of the lease terms, which all members of a ring make together (PROTOCOL 8).
//!
//! A replica that sees next terms in the record follows both the current and the next ones, and
//! confirms this in a record of its own. Once every member has confirmed, the member that is first
//! by name waits out those that died without confirming, and then makes the next terms the current
//! ones. Safety does not depend on which member does this: the transaction compares the record, so
//! a second one does nothing.

use alloc::vec;
use alloc::vec::Vec;

use polyplane_ring::ViewNumber;

use super::{Action, Living, Member, Phase};
use crate::record::{Holder, Observed, Revision};
use crate::rules::Rule;
use crate::terms::Terms;
use crate::time::Time;
use crate::transaction::{Attempt, Compare, Outcome, Transaction, Write};

/// A member, and the record of the lease terms that it has confirmed.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Adopter {
    /// The member's life.
    pub holder: Holder,
    /// The revision of that record; `None` if the member has confirmed none. A member that joined
    /// after a record was written follows it without confirming.
    pub adopted: Option<Revision>,
}

impl Adopter {
    /// Returns whether the member is known to follow the record of this revision.
    pub fn goes_by(&self, terms: Revision) -> bool {
        let joined_later = self.holder.incarnation.get() > terms.get();
        joined_later || self.adopted.is_some_and(|adopted| adopted >= terms)
    }
}

/// The state of a life in the newest change of terms.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(super) struct Change {
    adoption: Adoption,
    /// The time since which every member is known to follow both terms, at the member that is to
    /// finish the change.
    all_since: Option<Time>,
    finish: Option<Attempt>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
enum Adoption {
    /// This life follows both terms and has to confirm that.
    Due,
    Sent(Attempt),
    Done,
}

impl Change {
    /// Returns the state in which there is nothing to confirm.
    pub(super) const fn adopted() -> Self {
        Self {
            adoption: Adoption::Done,
            all_since: None,
            finish: None,
        }
    }

    pub(super) fn waits_for(&self, attempt: Attempt) -> bool {
        self.adoption == Adoption::Sent(attempt) || self.finish == Some(attempt)
    }

    #[cfg(feature = "model")]
    pub(super) fn times_mut(&mut self) -> impl Iterator<Item = &mut Time> {
        self.all_since.iter_mut()
    }
}

impl Member {
    pub(super) fn see_terms(&mut self, terms: Observed<Terms>) -> Vec<Action> {
        let Phase::Living(living) = &mut self.phase else {
            return Vec::new();
        };
        if self.terms_at.is_some_and(|known| terms.revision <= known) {
            return Vec::new();
        }
        living.change = Change {
            adoption: match terms.value.next {
                Some(_) => Adoption::Due,
                None => Adoption::Done,
            },
            ..Change::adopted()
        };
        (self.terms, self.terms_at) = (terms.value, Some(terms.revision));
        let mut actions = vec![self.go_by_terms()];
        actions.extend(self.adopt());
        actions
    }

    /// Makes this replica answer and wait by the record from now on. This happens before the
    /// confirmation is sent, because others rely on it as soon as they read the confirmation.
    pub(super) fn go_by_terms(&mut self) -> Action {
        self.lease.set_length(self.terms.read_lease(self.rules));
        Action::WaitBy(self.terms.wait(self.rules))
    }

    /// Confirms that this life follows both terms. The transaction compares the confirmed record,
    /// so one that is applied late never counts for a later change.
    pub(super) fn adopt(&mut self) -> Option<Action> {
        let attempt = self.attempts + 1;
        let terms = self.terms_at?;
        let Phase::Living(living) = &mut self.phase else {
            return None;
        };
        if living.change.adoption != Adoption::Due {
            return None;
        }
        living.change.adoption = Adoption::Sent(Attempt(attempt));
        let holder = living.me.clone();
        let transaction = Transaction {
            compares: vec![
                Compare::MemberIs(holder.clone()),
                Compare::LeaseTermsAt(Some(terms)),
            ],
            writes: vec![Write::PutAdoption { holder, terms }],
        };
        let attempt = self.next_attempt();
        Some(Action::Transact {
            attempt,
            transaction,
        })
    }

    pub(super) fn adopters(
        &mut self,
        now: Time,
        at: ViewNumber,
        members: &[Adopter],
    ) -> Vec<Action> {
        let (terms, rules) = (self.terms, self.rules);
        let (Phase::Living(living), Some(next), Some(terms_at)) =
            (&mut self.phase, terms.next, self.terms_at)
        else {
            return Vec::new();
        };
        // If the view is older than the record, a replica that is missing in it may have joined
        // since, by the old terms.
        let new = at.get() >= terms_at.get() || !rules.keep(Rule::ChangeNeedsNewView);
        let all = members.iter().all(|member| member.goes_by(terms_at));
        let first = members.iter().map(|member| &member.holder.replica).min();
        let mine = first == Some(&self.replica);
        if !mine || !new || !all && rules.keep(Rule::ChangeNeedsAll) {
            living.change.all_since = None;
            return Vec::new();
        }
        let since = *living.change.all_since.get_or_insert(now);
        if living.change.finish.is_some() {
            return Vec::new();
        }
        // A member that was in the ring when the change began and died without confirming may
        // answer by the earlier terms until this wait is over. A replica that has not seen a death
        // yet may wait by the next terms from then on.
        let waited = now.since(since) >= terms.wait(rules).wait();
        if !waited && rules.keep(Rule::ChangeOutwaitsTheDead) {
            return Vec::new();
        }
        let compares = vec![
            Compare::MemberIs(living.me.clone()),
            Compare::LeaseTermsAt(Some(terms_at)),
        ];
        let attempt = self.next_attempt();
        if let Phase::Living(Living { change, .. }) = &mut self.phase {
            change.finish = Some(attempt);
        }
        vec![Action::Transact {
            attempt,
            transaction: Transaction {
                compares,
                writes: vec![Write::PutTerms(Terms::settled(next))],
            },
        }]
    }

    /// Handles the outcome of a transaction about the change. A refusal means that the record has
    /// changed, which [`super::Event::Terms`] will report, or that this life is over, which another
    /// event will report.
    pub(super) fn change_done(&mut self, attempt: Attempt, outcome: &Outcome) -> Vec<Action> {
        let Phase::Living(living) = &mut self.phase else {
            return Vec::new();
        };
        let change = &mut living.change;
        let final_word = match outcome {
            Outcome::Applied(_) | Outcome::Refused(_) => true,
            Outcome::Rejected | Outcome::Unknown => false,
        };
        match (change.finish == Some(attempt), final_word) {
            // The new record will be reported by [`super::Event::Terms`].
            (true, true) => {}
            (true, false) => change.finish = None,
            (false, true) => change.adoption = Adoption::Done,
            (false, false) => change.adoption = Adoption::Due,
        }
        Vec::new()
    }
}
