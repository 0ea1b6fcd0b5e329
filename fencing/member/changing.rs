//! How the members of a ring come to other lease terms together (PROTOCOL 8).
//!
//! Whoever sees the record name the next terms goes by both pairs, and says so in a record of its
//! own. The member that is first by name makes the next terms the current ones once it has seen
//! everybody say so, and has outwaited those who died without a word. Which member does it has no
//! part in the safety: the transaction compares the record, so a second one does nothing.

use alloc::vec;
use alloc::vec::Vec;

use polyplane_ring::ViewNumber;

use super::{Action, Living, Member, Phase};
use crate::record::{Holder, Observed, Revision};
use crate::rules::Rule;
use crate::terms::Terms;
use crate::time::Time;
use crate::transaction::{Attempt, Compare, Outcome, Transaction, Write};

/// A member, and the record of the lease terms that it said it goes by.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Adopter {
    /// Its life.
    pub holder: Holder,
    /// The revision of that record; none if it said nothing. Who joined later than a record was
    /// written goes by it without a word.
    pub adopted: Option<Revision>,
}

impl Adopter {
    /// Whether it is known to go by the record of this revision.
    pub fn goes_by(&self, terms: Revision) -> bool {
        let joined_later = self.holder.incarnation.get() > terms.get();
        joined_later || self.adopted.is_some_and(|adopted| adopted >= terms)
    }
}

/// Where a life stands in the newest change of terms.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(super) struct Change {
    adoption: Adoption,
    /// Since when every member is known to go by both pairs, at the member that is to finish.
    all_since: Option<Time>,
    finish: Option<Attempt>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
enum Adoption {
    /// It goes by both pairs and has to say so.
    Due,
    Sent(Attempt),
    Done,
}

impl Change {
    /// There is nothing to say.
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

    /// From here on this replica answers and waits as the record says. It comes before the word
    /// that it does: whoever reads that word relies on it.
    pub(super) fn go_by_terms(&mut self) -> Action {
        self.lease.set_length(self.terms.read_lease(self.rules));
        Action::WaitBy(self.terms.wait(self.rules))
    }

    /// Says that this life goes by both pairs. The word compares the record it is about: one that
    /// is applied late never stands in for one about a later change.
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
        // A replica that is missing in an older view may have joined since, by the old terms.
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
        // Who was in the ring when the change began and died without a word may answer by the terms
        // from before, until now; and whoever has not seen a death yet has to wait no longer.
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

    /// What was refused found another record, which comes by [`super::Event::Terms`], or the end of
    /// this life, which comes by itself.
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
            // The new record is on its way.
            (true, true) => {}
            (true, false) => change.finish = None,
            (false, true) => change.adoption = Adoption::Done,
            (false, false) => change.adoption = Adoption::Due,
        }
        Vec::new()
    }
}
